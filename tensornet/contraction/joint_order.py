"""Joint forward and backward order of a contraction.

A product of pairs (a·b)·c has as many products back as it has factors: of each pair, the gradient of the one is
that of the result times the other. They take the same FLOPs, but not the same time: what is quickest forward may
leave long thin products, or copies, for the backward pass. So a few trees are priced both ways.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..autodiff.cotangents import GRADIENT
from ..autodiff.joint import JointGraph
from ..autodiff.vjp import differentiated
from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..graph.shape_inference import Axis
from ..language.equation import Equation
from ..language.expression import ELLIPSIS, Contraction, Expression, Ref, fresh, transform
from ..sizes import symbol
from .layout_search import Order, Problem, Search, Tree, searched_once
from .order_search import fastest, fewest_flops, proposals, quickest
from .pairs import Layout, Strategy, flatten

__all__ = ["Factor", "joint_order", "joint_product", "names_of"]

EVERY, PRICED = 4, 5
"""Of so many factors every tree is looked at; and so many trees are priced, orders in memory and all."""

GRADIENTS = 2
"""In so many orders each gradient may lie, besides that of what it is the gradient of."""

LEAST = 0.15
"""The share of the time that another tree than the one quickest forward must save: seconds are expected ones."""


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
def joint_order(problem: Problem, changing: frozenset[int]) -> Order:
    """The order that is expected to be quickest, forward and back.

    The gradient of the result comes in the order that would suit, so that another one is copied in the backward pass.

    Args:
        problem: the product.
        changing: the factors that get gradients.
    """
    problem = replace(problem, asked=1.0)
    forward, problem = fastest(problem), replace(problem, expanded=math.inf)
    search, trees = Search(problem), quickest(problem, _trees(problem), PRICED)
    seconds = functools.cache(functools.partial(_seconds, problem, changing=changing))
    usual = min((forward, search.along(tuple((pair.first, pair.second) for pair in forward))[1]), key=seconds)
    found = min((search.along(tree)[1] for tree in trees), key=seconds)
    return found if seconds(found) < (1 - LEAST) * seconds(usual) else usual


def _seconds(problem: Problem, order: Order, changing: frozenset[int]) -> float:
    """What an order takes forward and back; whoever reads a result that does not suit has it copied."""
    return sum(pair.way.seconds for pair in order) + _Backward(problem, order, changing).found().seconds


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
    order = fewest_flops(replace(problem, layouts=layouts, kept=kept, wanted=None, invariant=frozenset()))
    tree = [(numbers[pair.first], numbers[pair.second]) for pair in order]
    return (*tree, (largest, count + len(tree) - 1))


@dataclass(frozen=True)
class _Back:
    """A backward pass from the gradient of a tensor as that lies: what it takes, and how the next gradients lie."""

    seconds: float = 0.0
    lying: tuple[tuple[int, Layout], ...] = ()

    def after(self, way: Strategy, number: int) -> _Back:
        """With the product before it, which makes the gradient of an intermediate of some number."""
        return _Back(way.seconds + self.seconds, ((number, flatten(way.result)), *self.lying))

    def beside(self, other: _Back) -> _Back:
        """Two ways, both gone."""
        return _Back(self.seconds + other.seconds, (*self.lying, *other.lying))


class _Backward:
    """The products back of an order: how the gradient of each intermediate lies best, all that follows included."""

    def __init__(self, problem: Problem, order: Order, changing: frozenset[int]) -> None:
        self.problem, self.order, self.count = problem, order, len(problem.layouts)
        self.pricing = problem.pricing
        self.layouts, self.changes = _along(problem, order, changing)
        self.forms = [{layout: None} for layout in self.layouts]  # in which orders each tensor is there
        for pair in order:
            for number, is_first in ((pair.first, True), (pair.second, False)):
                if number < self.count:  # a factor that is copied is read so in both passes
                    self.forms[number][pair.way.read(self.layouts[number], is_first)] = None
        self.below, self.ways = functools.cache(self._below), functools.cache(self._ways)

    def found(self) -> _Back:
        """The backward pass from the gradient of the result, which lies as that is wanted."""
        return self.below(len(self.layouts) - 1, self.problem.wanted or self.layouts[-1])

    def _below(self, number: int, lying: Layout) -> _Back:
        """The backward pass from the gradient of a tensor that lies in some order."""
        if number < self.count:
            return _Back()
        pair = self.order[number - self.count]
        pairs = ((pair.first, pair.second), (pair.second, pair.first))
        waiting = [(one, other) for one, other in pairs if self.changes[one]]
        both = (self._through(lying, each) for each in itertools.permutations(waiting))
        return min(both, key=lambda each: each.seconds)

    def _through(self, lying: Layout, waiting: Sequence[tuple[int, int]]) -> _Back:
        """The gradients of both tensors of a pair, one after another: what the first reads copied, the other may."""
        incoming, total = {lying: None}, _Back()
        for one, other in waiting:
            ways = (
                (self.below(one, flatten(way.result)).after(way, one), way, a)
                for a, b in itertools.product(incoming, self.forms[other])
                for way in self.ways(a, b, one)
            )
            back, way, a = min(ways, key=lambda each: each[0].seconds)
            incoming[way.read(a, True)] = None
            total = total.beside(back)
        return total

    def _ways(self, a: Layout, b: Layout, one: int) -> Sequence[Strategy]:
        """The products of a gradient and the other tensor of a pair that are worth looking at, the quickest first."""
        result, given = self.layouts[one], one < self.count
        ways = self.pricing.ways(a, b, frozenset(result), result if given else None, ())
        if given:
            return [min(ways, key=lambda way: way.seconds)]
        ways.sort(key=lambda way: way.seconds)
        return [way for rank, way in enumerate(ways) if rank < GRADIENTS or flatten(way.result) == result]


def _along(problem: Problem, order: Order, changing: frozenset[int]) -> tuple[list[Layout], list[bool]]:
    """How the factors and the results of the pairs lie, and which get gradients."""
    changes = [number in changing for number in range(len(problem.layouts))]
    for pair in order:
        changes.append(changes[pair.first] or changes[pair.second])
    return [*problem.layouts, *(flatten(pair.way.result) for pair in order)], changes


# ---------------------------------------------------------------------------- as graphs


def joint_product(factors: Sequence[Factor], problem: Problem, order: Order, left: Layout) -> JointGraph:
    """A product, pair by pair, as a graph with its backward pass, in which everything is written as it is to lie.

    Args:
        factors: the factors.
        problem: the product of these, as they lie.
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
        summed = tuple(sorted(names.get(axis, axis) for axis in pair.way.contracted))
        made.append("y" if pair is order[-1] else f"t{len(body) + 1}")
        indices.append(index)
        body.append(Equation(made[-1], index, Contraction(refs, summed)))
    graph = Graph(leaves, tuple(body), ("y",))
    wrt = tuple(leaf.name for leaf, each in zip(leaves, factors, strict=True) if each.changes)
    joint = differentiated(graph, ("y",), wrt, _as_it_is)
    changing = frozenset(n for n, each in enumerate(factors) if each.changes)
    problem = replace(problem, wanted=left, expanded=math.inf)
    orders = {
        GRADIENT.format(made[number]): tuple(names.get(axis, axis) for axis in lying)
        for number, lying in _Backward(problem, order, changing).found().lying
        if number >= len(factors)
    }
    return replace(joint, backward=_laid(joint.backward, orders))


def _laid(graph: Graph, orders: Mapping[str, Layout]) -> Graph:
    """The same graph, some of whose tensors have their dimensions in other orders."""
    places = dict[str, list[int]]()

    def read(expression: Expression) -> Expression:
        changed = transform(expression, read)
        if isinstance(changed, Ref) and changed.name in places:
            return replace(changed, index=tuple(changed.index[place] for place in places[changed.name]))
        return changed

    body: list[Equation] = []
    for equation in graph.own:
        left, right = equation.left, read(equation.right)
        order = orders.get(equation.name, left)
        if set(order) == set(left):
            places[equation.name] = [left.index(axis) for axis in order]
            left = order
        body.append(replace(equation, left=left, right=right))
    return replace(graph, body=tuple(body))


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
