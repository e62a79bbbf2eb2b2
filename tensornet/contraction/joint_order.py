"""Joint forward and backward order of a contraction.

The backward pass of a product of pairs (a·b)·c has up to two products for each pair: the gradient of one tensor is the
gradient of the result times the other tensor. Each takes the same FLOPs as its pair, but not the same time. The order
that is fastest forward may leave long thin products, or copies, for the backward pass. So a few trees are priced
forward and backward.
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
from ..graph.shape_inference import Axis, index_of
from ..language.equation import Equation
from ..language.expression import ELLIPSIS, Contraction, Expression, Ref, fresh, transform
from ..ops.protocols import Left, names_in
from ..sizes import symbol
from .layout_search import Search, Tree, searched_once
from .order_search import fastest, fewest_flops, proposals
from .pairs import Layout, Order, Pair, Problem, Strategy, flatten

__all__ = ["joint_order", "joint_product", "names_of"]

EVERY, PRICED = 4, 5
"""The most factors for which every tree is considered, and the number of trees that are priced with layouts."""

GRADIENTS = 2
"""The number of layouts considered for each gradient, besides the layout of the tensor it is the gradient of."""

LEAST = 0.15
"""The share of the time that another tree must save over the one fastest forward, because times are only estimates."""


@searched_once
def joint_order(problem: Problem, changing: frozenset[int], node: float = 0.0) -> Order:
    """The order that is expected to be fastest, forward and backward together; empty if autograd is as fast.

    The gradient of the result is assumed to be in the wanted layout. The backward pass copies one in another layout.

    Args:
        problem: the product.
        changing: the factors that get gradients.
        node: the seconds that a backward pass of its own costs besides its products; 0 if it is planned in any case.
    """
    written = replace(problem, asked=1.0)
    alone, forward, problem = fastest(problem), fastest(written), replace(written, expanded=math.inf)
    search = Search(problem)
    trees = sorted(dict.fromkeys(_trees(search)), key=lambda tree: search.total(tree, search.estimate))
    seconds = functools.cache(functools.partial(_seconds, problem, changing=changing))
    usual = min((forward, search.along(tuple((pair.first, pair.second) for pair in forward))[1]), key=seconds)
    found = min((search.along(tree)[1] for tree in trees[:PRICED]), key=seconds)
    best = found if seconds(found) < (1 - LEAST) * seconds(usual) else usual
    left = _seconds(problem, alone, changing, planned=False) if node else math.inf
    return best if seconds(best) + node < left else ()


def _seconds(problem: Problem, order: Order, changing: frozenset[int], planned: bool = True) -> float:
    """The seconds of an order, forward and backward. A result that is not in the wanted layout is copied.

    `planned`: whether the backward pass is planned, or left to the library's autograd."""
    forward = sum(pair.way.seconds for pair in order)
    return forward + _Backward(problem, order, changing, planned).found().seconds


def _trees(search: Search) -> Iterator[Tree]:
    """Trees worth pricing."""
    count = len(search.axes)
    if count <= EVERY:
        yield from _every_tree(tuple(range(count)), count)
    else:
        yield from proposals(search)
        yield _largest_last(search.problem)


def _every_tree(waiting: tuple[int, ...], following: int) -> Iterator[Tree]:
    """All trees that contract some tensors to one, pair by pair."""
    if len(waiting) == 1:
        yield ()
        return
    for one, other in itertools.combinations(waiting, 2):
        rest = tuple(each for each in waiting if each not in (one, other))
        for tree in _every_tree((*rest, following), following + 1):
            yield ((one, other), *tree)


def _largest_last(problem: Problem) -> Tree:
    """The tree that first multiplies all factors but the largest, as weights are, in the fewest FLOPs."""
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
    """A backward pass from the gradient of a tensor in a given layout: its seconds, and layouts of later gradients."""

    seconds: float = 0.0
    lying: tuple[tuple[int, Layout], ...] = ()

    def after(self, way: Strategy, number: int) -> _Back:
        """This pass preceded by the product `way`, which computes the gradient of the tensor with the given number."""
        return _Back(way.seconds + self.seconds, ((number, flatten(way.result)), *self.lying))

    def beside(self, other: _Back) -> _Back:
        """Both passes together."""
        return _Back(self.seconds + other.seconds, (*self.lying, *other.lying))


class _Backward:
    """The backward products of an order: the best layout of each intermediate's gradient, with all that follows."""

    def __init__(
        self, problem: Problem, order: Order, changing: frozenset[int], planned: bool = True
    ) -> None:
        self.problem, self.order, self.count = problem, order, len(problem.layouts)
        self.planned = planned
        self.changes = [number in changing for number in range(self.count)]
        for pair in order:
            self.changes.append(self.changes[pair.first] or self.changes[pair.second])
        self.layouts = [*problem.layouts, *(flatten(pair.way.result) for pair in order)]
        self.forms = [{layout: None} for layout in self.layouts]  # the layouts in which each tensor exists
        for pair in order:
            for number, is_first in ((pair.first, True), (pair.second, False)):
                if number < self.count:  # the copy of a factor serves both passes
                    self.forms[number][pair.way.read(self.layouts[number], is_first)] = None
        self.read = dict[int, tuple[Pair, Layout]]()
        for pair in order:
            for number, is_first in ((pair.first, True), (pair.second, False)):
                self.read[number] = pair, pair.way.read(self.layouts[number], is_first)
        self.below = functools.cache(self._below)
        self.ways = functools.cache(self._ways if planned else self._usual)

    def found(self) -> _Back:
        """The backward pass from the gradient of the result, in the layout wanted for the result."""
        return self.below(len(self.layouts) - 1, self.problem.wanted or self.layouts[-1])

    def _below(self, number: int, lying: Layout) -> _Back:
        """The backward pass from the gradient of a tensor, in the given layout."""
        if number < self.count:
            return _Back()
        pair = self.order[number - self.count]
        pairs = ((pair.first, pair.second), (pair.second, pair.first))
        waiting = [(one, other) for one, other in pairs if self.changes[one]]
        both = (self._through(lying, each) for each in itertools.permutations(waiting))
        return min(both, key=lambda each: each.seconds)

    def _through(self, lying: Layout, waiting: Sequence[tuple[int, int]]) -> _Back:
        """The gradients of both tensors of a pair, in order. The second product may reuse a copy made for the first."""
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
        """The strategies worth trying for a gradient times the other tensor of a pair, the fastest first."""
        result, given = self.layouts[one], one < self.count
        ways = self.problem.pricing.ways(a, b, frozenset(result), result if given else None, ())
        if given:
            return [min(ways, key=lambda way: way.seconds)]
        ways.sort(key=lambda way: way.seconds)
        return [way for rank, way in enumerate(ways) if rank < GRADIENTS or flatten(way.result) == result]

    def _usual(self, a: Layout, b: Layout, one: int) -> Sequence[Strategy]:
        """What autograd does in their place: it gives a gradient the layout in which the product read the tensor."""
        pair, read = self.read[one]
        pricing, result = self.problem.pricing, frozenset(read)
        if pair.way.kind == "multiply":
            seconds = pricing.walks[a, (a, b)] + (0.0 if result == frozenset(a) else pricing.walks[a, (a,)])
            return [Strategy("multiply", False, read, (), (), (), tuple((axis,) for axis in read), seconds)]
        ways = pricing.ways(a, b, result, read, ())
        return [min(ways, key=lambda way: (flatten(way.result) != read, way.seconds))]


# ---------------------------------------------------------------------------- as graphs


def joint_product(
    factors: Sequence[Left],
    sizes: Mapping[str, Any],
    changing: frozenset[int],
    problem: Problem,
    order: Order,
    left: Layout,
) -> JointGraph:
    """A product, pair by pair, as a graph with its backward pass. The order of axes of each tensor is its layout.

    Args:
        factors: the dimensions of the factors: axes, or composites of them.
        sizes: the sizes of all axes. One that is not an integer is represented by the name of its axis.
        changing: the factors that get gradients.
        problem: their product, with the layouts of the factors.
        order: the pairs.
        left: the axes of the result, in the expected layout of its gradient.
    """
    names = dict(zip(sizes, names_of(sizes), strict=True))
    leaves = _leaves(factors, sizes, names)
    made = [Ref(leaf.name, index_of(leaf.dims)) for leaf in leaves]
    body: list[Equation] = []
    for pair in order:
        name, lying = ("y", left) if pair is order[-1] else (f"t{len(body) + 1}", flatten(pair.way.result))
        summed = tuple(sorted(names[axis] for axis in pair.way.contracted))
        product = Contraction((made[pair.first], made[pair.second]), summed)
        index = tuple(names[axis] for axis in lying)
        made.append(Ref(name, index))
        body.append(Equation(name, index, product))
    graph = Graph(tuple(leaves), tuple(body), ("y",))
    wrt = tuple(leaf.name for number, leaf in enumerate(leaves) if number in changing)
    joint = differentiated(graph, ("y",), wrt, _as_it_is)
    problem = replace(problem, wanted=left, expanded=math.inf)
    orders = {
        GRADIENT.format(made[number].name): tuple(names[axis] for axis in lying)
        for number, lying in _Backward(problem, order, changing).found().lying
        if number >= len(factors)
    }
    return replace(joint, backward=_laid(joint.backward, orders))


def _leaves(factors: Sequence[Left], sizes: Mapping[str, Any], names: Mapping[str, str]) -> list[Leaf]:
    """The factors of a product as inputs of a graph, under the names of their axes."""
    axes = {
        axis: Axis(name, sizes[axis] if isinstance(sizes[axis], int) else symbol(name))
        for axis, name in names.items()
    }
    return [
        Leaf(f"x{number}", "input", tuple(tuple(axes[axis] for axis in names_in(entry)) for entry in each))
        for number, each in enumerate(factors)
    ]


def _laid(graph: Graph, orders: Mapping[str, Layout]) -> Graph:
    """The same graph, with the dimensions of some tensors in other orders."""
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
    """The names of the axes in the graph of a product. They are unchanged, except that `...` becomes a single name."""
    known = list(axes)
    return [fresh("lead", set(known)) if axis == ELLIPSIS else axis for axis in known]


def _as_it_is(axes: Any, kept: Any, sizes: Any) -> tuple[tuple[int, int], ...]:
    """No pairs, because no product has more than two factors."""
    return ()
