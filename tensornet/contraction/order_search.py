"""Contraction order search: trees of pairs that opt_einsum proposes, or all, each priced with its best layouts.

`fastest` is the entry. `layout_search.py` assigns layouts along a tree.

With few operands every tree is considered. With more, several searches each propose a tree of pairs. The time model,
which includes layouts, chooses the fastest of them.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import math
import operator
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import opt_einsum
from opt_einsum.paths import PathOptimizer, greedy, ssa_greedy_optimize

from ..device.model import DeviceProfile
from .layout_search import Order, Problem, Search, Tree, left_to_right, path_of, searched_once, tree_of
from .pairs import extent
from .premultiplied import beforehand

__all__ = [
    "FastestOrder",
    "as_written",
    "fastest",
    "fastest_with_vjp",
    "fewest_flops",
    "proposals",
    "quickest",
]

EXHAUSTIVE = 5
"""The most operands for which every tree is considered."""

OUTER, EXACT = 10, 12
"""The most operands for which dynamic programming considers outer products (`OUTER`), and for which it finds the fewest
FLOPs (`EXACT`)."""

MANY = 80
"""The most operands for which several searches are tried, and their best tree is improved part by part."""

BREADTH = 4
"""The number of parts that an intermediate is cut into for that."""

PATIENCE = 20_000
"""The most pairs of intermediates that dynamic programming may consider: about a second."""

TRIALS, JITTER = 16, 0.25
"""The number of randomised greedy searches, and the standard deviation of their costs, as a share of the cost."""


BEFOREHAND = 1e-4
"""The weight of a second spent once, beforehand, relative to a second spent at each call."""


class FastestOrder(PathOptimizer):  # type: ignore[misc]
    """The library's order as a path optimizer of opt_einsum: `opt_einsum.contract(…, optimize=FastestOrder(p))`.

    Args:
        profile: the device.
        itemsize: bytes of one element.
    """

    def __init__(self, profile: DeviceProfile, itemsize: int = 4) -> None:
        self.profile, self.itemsize = profile, itemsize

    def __call__(
        self,
        inputs: Sequence[Any],
        output: Any,
        size_dict: Mapping[str, int],
        memory_limit: int | None = None,
    ) -> list[tuple[int, ...]]:
        """A path in opt_einsum's form. Operands are assumed to have their axes in memory in sorted order."""
        layouts = tuple(tuple(sorted(each)) for each in inputs)
        problem = Problem(layouts, frozenset(output), None, dict(size_dict), self.profile, self.itemsize)
        return path_of(fastest(problem), len(inputs))


def fastest(problem: Problem) -> Order:
    """The order that is expected to be fastest at a call. Invariant operands may be multiplied beforehand."""
    count = len(problem.layouts)
    if count > MANY or not 0 < len(problem.invariant) < count:
        return _fastest(problem)
    network = _Network(problem)
    trees = [network.programmed(math.inf), network.gathered()]
    return beforehand(problem, [tree for tree in trees if tree is not None], _fastest)


def fastest_with_vjp(problem: Problem) -> Order:
    """The order that is expected to be fastest, without a limit on operands repeated along batch axes.

    For products with a backward pass that is planned as well, instead of left to the library's autograd.
    """
    return fastest(replace(problem, expanded=math.inf))


@searched_once
def _fastest(problem: Problem) -> Order:
    """The order that is expected to be fastest, if everything is computed at each call."""
    search, count = Search(problem), len(problem.layouts)
    if count <= 2:
        return search.along(left_to_right(count))[1]
    if count <= EXHAUSTIVE:
        network = _Network(problem)
        return search.exhaustive([left_to_right(count), network.swept(), network.tree(greedy)])[1]
    seconds, order, tree = search.best_along(proposals(problem))
    is_large = count > MANY
    better = search.along(tree, seconds) if is_large else search.refined(tree, BREADTH, seconds)
    return better[1] if better[0] < seconds else order


@searched_once
def fewest_flops(problem: Problem) -> Order:
    """The order with the fewest FLOPs that opt_einsum finds."""
    network, count = _Network(problem), len(problem.layouts)
    if count <= EXACT:
        tree = network.tree(opt_einsum.DynamicProgramming("flops", search_outer=count <= 8))
    else:
        tree = min(proposals(problem), key=network.flops)
    return Search(problem).along(tree)[1]


@searched_once
def as_written(problem: Problem) -> Order:
    """The order from left to right."""
    return Search(problem).along(left_to_right(len(problem.layouts)))[1]


def proposals(problem: Problem) -> Iterator[Tree]:
    """Trees worth pricing, without duplicates."""
    network, count = _Network(problem), len(problem.layouts)
    found: list[Tree | None] = [left_to_right(count), network.swept()]
    if max((bits.bit_count() for bits in network.holders.values()), default=0) <= MANY:
        found += [network.tree(greedy), network.tree("auto")]
    if count <= MANY:
        found += [network.straying(), network.from_cotengra()]
        least = min(network.seconds(tree) for tree in found if tree is not None)
        found.append(network.programmed(least))
    return iter(dict.fromkeys(tree for tree in found if tree is not None))


def quickest(problem: Problem, trees: Iterable[Tree], most: int) -> list[Tree]:
    """The `most` fastest of some trees, if layouts are ignored."""
    return sorted(dict.fromkeys(trees), key=_Network(problem).seconds)[:most]


class _Network:
    """A problem in opt_einsum's form, and the costs of its trees without layouts.

    Axes are numbered in order of appearance, operand by operand. opt_einsum's dynamic programming numbers them
    so. Sets of numbers are iterated in the same order in every process. Sets of letters are not, so that
    ties between equal costs would be broken at random. A set of operands is a number, with a bit for each.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        names = dict.fromkeys(itertools.chain(*problem.layouts))
        numbers = {axis: number for number, axis in enumerate(names)}
        self.inputs = [tuple(numbers[axis] for axis in layout) for layout in problem.layouts]
        self.output = tuple(numbers[axis] for axis in names if axis in problem.kept)
        self.sizes = {numbers[axis]: problem.sizes[axis] for axis in names}
        self.holders = {numbers[axis]: bits for axis, bits in problem.holders().items()}
        self.invariant = sum(1 << number for number in problem.invariant)
        self.legs = functools.cache(self._legs)

    # ---- proposals

    def tree(self, optimizer: Any) -> Tree:
        """The tree that one of opt_einsum's optimizers, or one like them, proposes."""
        if isinstance(optimizer, str):
            optimizer = opt_einsum.paths.get_path_fn(optimizer)
        return tree_of(optimizer(self.inputs, self.output, self.sizes), len(self.inputs))

    def swept(self) -> Tree:
        """The tree that starts at the first operand and always adds the neighbour with the smallest result.

        Neighbours share an axis. Only the shared axes that the fewest waiting operands have are considered. So
        a batch axis, which makes all operands neighbours, counts only where no other axis is left.
        """
        count = len(self.inputs)
        done, waiting, tree, last = 1, (1 << count) - 2, list[tuple[int, int]](), 0
        while waiting:
            shared = [bits for axis in self.legs(done) if (bits := self.holders[axis] & waiting)]
            fewest = min((bits.bit_count() for bits in shared), default=0)
            near = functools.reduce(operator.or_, (bits for bits in shared if bits.bit_count() == fewest), 0)
            near = near or waiting & -waiting
            chosen = min(_bits(near), key=lambda number: self._count(self.legs(done | 1 << number)))
            tree.append((last, chosen))
            done, waiting, last = done | 1 << chosen, waiting & ~(1 << chosen), count + len(tree) - 1
        return tuple(tree)

    def gathered(self) -> Tree:
        """The tree that contracts all invariant operands first, and the result with the others."""
        count = len(self.inputs)
        bits = _bits(self.invariant)
        others = [number for number in range(count) if number not in self.problem.invariant]
        tree, last = list[tuple[int, int]](), bits[0]
        for number in (*bits[1:], *others):
            tree.append((last, number))
            last = count + len(tree) - 1
        return tuple(tree)

    def straying(self) -> Tree:
        """The tree of fewest FLOPs among those of several greedy searches with slightly random costs.

        opt_einsum's own random search seeds the global random generator. This one has its own.
        """
        drawn = random.Random(0)

        def cost(joined: int, one: int, other: int, *_: Any) -> float:
            return drawn.gauss(1.0, JITTER) * (joined - one - other)

        sets = [frozenset(each) for each in self.inputs]
        found = [
            ssa_greedy_optimize(sets, frozenset(self.output), self.sizes, cost_fn=cost) for _ in range(TRIALS)
        ]
        return min((_in_pairs(each, len(self.inputs)) for each in found), key=self.flops)

    def from_cotengra(self) -> Tree | None:
        """The tree that cotengra proposes, where it is installed."""
        if importlib.util.find_spec("cotengra") is None:
            return None
        import cotengra

        optimizer = cotengra.RandomGreedyOptimizer(max_repeats=TRIALS, seed=0, accel=False)
        return self.tree(optimizer)

    def programmed(self, least: float) -> Tree | None:
        """The fastest tree, by dynamic programming. None if it takes longer than `least` or the search is cut off."""
        left = itertools.count(PATIENCE, -1)

        def compare(
            cost1: float,
            cost2: float,
            union: frozenset[int],
            size_dict: Sequence[int],
            cost_cap: float,
            s1: int,
            s2: int,
            xn: dict[int, Any],
            g: int,
            all_tensors: int,
            inputs: Sequence[frozenset[int]],
            cut: frozenset[int],
            memory_limit: int | None,
            contract1: Any,
            contract2: Any,
        ) -> None:
            if not next(left):
                raise _OutOfPatienceError
            cost = cost1 + cost2 + self.pair(s1, s2)
            if cost <= cost_cap and (s1 | s2 not in xn or cost < xn[s1 | s2][1]):
                xn[s1 | s2] = (self.legs(s1 | s2), cost, (contract1, contract2))

        outer = len(self.inputs) <= OUTER
        optimizer = opt_einsum.DynamicProgramming(compare, cost_cap=least * (1 + 1e-9), search_outer=outer)
        try:
            return self.tree(optimizer)
        except _OutOfPatienceError:
            return None

    # ---- costs

    def _legs(self, subset: int) -> frozenset[int]:
        """The axes of the contraction of a set of operands: those that another operand or the result has."""
        return frozenset(
            axis
            for axis, bits in self.holders.items()
            if bits & subset and (axis in self.output or bits & ~subset)
        )

    def pair(self, one: int, other: int) -> float:
        """The seconds to contract the results of two sets of operands, ignoring layouts. Contractions that can be done
        beforehand are weighted by `BEFOREHAND`."""
        return self._pair(one, other) * (BEFOREHAND if not (one | other) & ~self.invariant else 1.0)

    def _pair(self, one: int, other: int) -> float:
        a, b, joined = self.legs(one), self.legs(other), self.legs(one | other)
        profile, itemsize = self.problem.profile, self.problem.itemsize
        summed = (a | b) - joined
        if summed:
            groups = (a & b & joined, (a - b) & joined, (b - a) & joined, summed)
            batch, *outer, inner = (self._count(group) for group in groups)
            return profile.matmul(batch, min(outer), max(outer), inner, itemsize)
        moved = itemsize * (self._count(a) + self._count(b) + self._count(joined))
        return profile.pointwise(moved, itemsize * self._count(joined))

    def flops(self, tree: Tree) -> float:
        """The multiplications of a tree: the sum over its pairs of the product of the sizes of all axes."""
        sets, total = [1 << number for number in range(len(self.inputs))], 0.0
        for one, other in tree:
            total += self._count(self.legs(sets[one]) | self.legs(sets[other]))
            sets.append(sets[one] | sets[other])
        return total

    def seconds(self, tree: Tree) -> float:
        """The seconds of a tree, ignoring layouts."""
        sets, total = [1 << number for number in range(len(self.inputs))], 0.0
        for one, other in tree:
            total += self.pair(sets[one], sets[other])
            sets.append(sets[one] | sets[other])
        return total

    def _count(self, axes: frozenset[int]) -> float:
        return extent(axes, self.sizes)


def _bits(subset: int) -> list[int]:
    """The members of a set of operands."""
    return [number for number in range(subset.bit_length()) if subset >> number & 1]


class _OutOfPatienceError(Exception):
    """Dynamic programming has considered as many pairs as it may."""


def _in_pairs(path: Sequence[Sequence[int]], count: int) -> Tree:
    """A path over numbered results as pairs. An outer product of several tensors is taken from the left."""
    numbers, tree = dict(enumerate(range(count))), list[tuple[int, int]]()

    def join(one: int, other: int) -> int:
        tree.append((one, other))
        return count + len(tree) - 1

    for number, taken in enumerate(path):
        numbers[count + number] = functools.reduce(join, [numbers[each] for each in taken])
    return tuple(tree)
