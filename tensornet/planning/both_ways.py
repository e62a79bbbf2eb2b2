"""Products that gradients go through: ordered for both ways, and what their ways back are.

A product of pairs (a·b)·c has as many products back as it has factors: of each pair, the gradient of the one is
that of the result times the other. They take the same FLOPs, but not the same time: what is quickest forward may
leave long thin products, or copies, for the way back. So a few trees are priced both ways.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..graph.derivative import Directions, differentiated
from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..graph.shape import Axis
from ..language.equation import Equation
from ..language.expression import ELLIPSIS, Contraction, Ref, fresh
from ..sizes import symbol
from .arrangement import Arrangement, Layout, Pricing, extent, flatten
from .ordering import fastest, fewest_flops, proposals, quickest
from .search import Order, Problem, Search, Tree, searched_once

__all__ = ["Factor", "both_ways", "is_worth_it", "names_of", "ordered_both_ways"]

EVERY, PRICED = 4, 5
"""Of so many factors every tree is looked at; and so many trees are priced, orders in memory and all."""

LEAST = 0.15
"""The share of the time that another order than the one quickest forward must save: seconds are expected ones."""


@dataclass(frozen=True)
class Factor:
    """A factor of a product.

    Attributes:
        left: its dimensions: axes, or composites of them.
        sizes: those of the axes; one that is no integer goes by the name of its axis.
        changes: whether it gets a gradient.
    """

    left: tuple[str | tuple[str, ...], ...]
    sizes: Mapping[str, Any]
    changes: bool


@searched_once
def ordered_both_ways(problem: Problem, changing: frozenset[int]) -> Order:
    """The order that is expected to be quickest, forward and back.

    Args:
        problem: the product.
        changing: the factors that get gradients.
    """
    search, forward = Search(problem), fastest(problem)
    trees = quickest(problem, _trees(problem), PRICED)
    seconds = functools.partial(_seconds, problem, changing=changing)
    found = min((search.along(tree)[1] for tree in trees), key=seconds)
    return found if seconds(found) < (1 - LEAST) * seconds(forward) else forward


def is_worth_it(problem: Problem, order: Order, changing: frozenset[int]) -> bool:
    """Whether an order saves time beside what autograd makes of the one that is quickest forward.

    Products of many small matrices it turns as they are, whatever lies how, where a way back that is planned
    copies; of other products it makes the same, copies of its own included.
    """
    forward = fastest(problem)
    if not any(pair.way.kind == "matmul" and pair.way.batch for pair in forward):
        return True
    return _seconds(problem, order, changing) < (1 - LEAST) * _seconds_alone(problem, forward, changing)


def _seconds(problem: Problem, order: Order, changing: frozenset[int]) -> float:
    """What an order takes forward and back; whoever reads a result that does not suit has it copied, and back."""
    lying, wanted = flatten(order[-1].way.result), problem.wanted
    total = sum(pair.way.seconds for pair in order) + _seconds_back(problem, order, changing)
    if wanted is not None and lying != wanted:
        pricing = Pricing(problem.sizes, problem.profile, problem.itemsize)
        total += pricing.copied(lying, wanted) + pricing.copied(wanted, lying)
    return total


def _trees(problem: Problem) -> Iterator[Tree]:
    """Trees worth pricing."""
    count = len(problem.layouts)
    if count <= EVERY:
        yield from _every_tree(tuple(range(count)), count)
    else:
        yield from proposals(problem)
        yield _largest_last(problem)


def _every_tree(waiting: tuple[int, ...], following: int) -> Iterator[Tree]:
    """All ways to make one of some tensors, two by two."""
    if len(waiting) == 1:
        yield ()
        return
    for one, other in itertools.combinations(waiting, 2):
        rest = tuple(each for each in waiting if each not in (one, other))
        for tree in _every_tree((*rest, following), following + 1):
            yield ((one, other), *tree)


def _largest_last(problem: Problem) -> Tree:
    """The small factors, as weights are, multiplied together in the fewest FLOPs before the largest."""
    extents = [math.prod(problem.sizes[axis] for axis in layout) for layout in problem.layouts]
    largest, count = extents.index(max(extents)), len(extents)
    others = [number for number in range(count) if number != largest]
    layouts = tuple(problem.layouts[number] for number in others)
    present = frozenset(itertools.chain(*layouts))
    kept = (problem.kept | frozenset(problem.layouts[largest])) & present
    numbers = [*others, *range(count, 2 * count)]
    order = fewest_flops(replace(problem, layouts=layouts, kept=kept, wanted=None, still=frozenset()))
    tree = [(numbers[pair.first], numbers[pair.second]) for pair in order]
    return (*tree, (largest, count + len(tree) - 1))


def _seconds_back(problem: Problem, order: Order, changing: frozenset[int]) -> float:
    """What the products back take, each of a gradient that lies as the product before gave it."""
    layouts, changes = _along(problem, order, changing)
    gradients: dict[int, Layout] = {len(layouts) - 1: layouts[-1]}
    forms = [{layout: None} for layout in layouts]  # in which orders each tensor is there
    for pair in order:
        for number, is_first in ((pair.first, True), (pair.second, False)):
            if number < len(problem.layouts):  # a factor that is copied is read so on both ways
                forms[number][pair.way.read(layouts[number], is_first)] = None
    total = 0.0
    for number, pair in reversed(list(enumerate(order, len(problem.layouts)))):
        if not changes[number]:
            continue
        incoming = {gradients[number]: None}
        for one, other in ((pair.first, pair.second), (pair.second, pair.first)):
            if not changes[one]:
                continue
            ways = (
                (_way_back(problem, a, b, layouts[one], one < len(problem.layouts)), a, b)
                for a, b in itertools.product(incoming, forms[other])
            )
            way, a, b = min(ways, key=lambda each: each[0].seconds)
            incoming[way.read(a, True)] = forms[other][way.read(b, False)] = None
            gradients[one] = flatten(way.result)
            total += way.seconds
    return total


def _seconds_alone(problem: Problem, order: Order, changing: frozenset[int]) -> float:
    """What an order takes forward, and back as autograd goes: each product as it was, turned."""
    layouts, changes = _along(problem, order, changing)
    total = sum(pair.way.seconds for pair in order)
    for number, pair in enumerate(order, len(problem.layouts)):
        batch = frozenset(pair.way.batch) if pair.way.kind == "matmul" else frozenset()
        for one, other in ((pair.first, pair.second), (pair.second, pair.first)):
            if changes[one] and batch:
                total += pair.way.seconds
            elif changes[one]:
                total += _way_back(problem, layouts[number], layouts[other], layouts[one], True).seconds
            if changes[one] and not batch <= set(layouts[one]):  # it was repeated, and its gradient is summed
                spread = extent(batch.union(layouts[one]), problem.sizes) * problem.itemsize
                total += problem.profile.pointwise(spread, 0.0)
    return total


def _along(problem: Problem, order: Order, changing: frozenset[int]) -> tuple[list[Layout], list[bool]]:
    """How the factors and the results of the pairs lie, and which get gradients."""
    changes = [number in changing for number in range(len(problem.layouts))]
    for pair in order:
        changes.append(changes[pair.first] or changes[pair.second])
    return [*problem.layouts, *(flatten(pair.way.result) for pair in order)], changes


def _way_back(problem: Problem, a: Layout, b: Layout, result: Layout, is_given: bool) -> Arrangement:
    """The quickest way to multiply a gradient with the other tensor of a pair."""
    wanted = result if is_given else None
    back = Problem((a, b), frozenset(result), wanted, problem.sizes, problem.profile, problem.itemsize)
    return fastest(back)[0].way


# ---------------------------------------------------------------------------- as graphs


def both_ways(factors: Sequence[Factor], order: Order, left: Layout) -> Directions:
    """A product, pair by pair, as a graph with its way back.

    Args:
        factors: the factors.
        order: the pairs.
        left: the axes of the result, in the order in which its gradient is expected to lie.
    """
    axes = dict.fromkeys(axis for each in factors for axis in each.sizes)
    names = dict(zip(axes, names_of(axes), strict=True))
    leaves = tuple(
        Leaf(f"x{number}", "input", tuple(_dim(entry, each.sizes, names) for entry in each.left))
        for number, each in enumerate(factors)
    )
    indices: list[tuple[str | tuple[str, ...], ...]] = [
        tuple(tuple(axis.name for axis in dim) if len(dim) > 1 else dim[0].name for dim in leaf.dims)
        for leaf in leaves
    ]
    made = [leaf.name for leaf in leaves]
    body: list[Equation] = []
    for pair in order:
        lying = flatten(pair.way.result) if pair is not order[-1] else left
        index = tuple(names.get(axis, axis) for axis in lying)
        refs = tuple(Ref(made[each], indices[each]) for each in (pair.first, pair.second))
        summed = tuple(sorted(names.get(axis, axis) for axis in pair.way.summed))
        made.append("y" if pair is order[-1] else f"t{len(body) + 1}")
        indices.append(index)
        body.append(Equation(made[-1], index, Contraction(refs, summed)))
    graph = Graph(leaves, tuple(body), ("y",))
    wrt = tuple(leaf.name for leaf, each in zip(leaves, factors, strict=True) if each.changes)
    return differentiated(graph, ("y",), wrt, _as_it_is)


def names_of(axes: Iterable[str]) -> list[str]:
    """What the graph of a product calls its axes: as they are called, all leading ones together by a name."""
    known = list(axes)
    return [fresh("lead", set(known)) if axis == ELLIPSIS else axis for axis in known]


def _dim(
    entry: str | tuple[str, ...], sizes: Mapping[str, Any], names: Mapping[str, str]
) -> tuple[Axis, ...]:
    axes = (entry,) if isinstance(entry, str) else entry
    sized = ((names.get(axis, axis), sizes[axis]) for axis in axes)
    return tuple(Axis(name, size if isinstance(size, int) else symbol(name)) for name, size in sized)


def _as_it_is(axes: Any, kept: Any, sizes: Any) -> tuple[tuple[int, int], ...]:
    """No product is of more than two."""
    return ()
