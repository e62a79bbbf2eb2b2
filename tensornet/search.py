"""Ordering one n-ary contraction: what is to be ordered, what an order is, and the exact search."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .arrangement import Arrangement, Layout, arrangements, flatten
from .device import DeviceProfile

__all__ = ["Choose", "Order", "Pair", "Problem", "Search", "Tree", "left_to_right", "path_of", "tree_of"]

FORMS = 8
"""Of each intermediate so many orders in memory are followed."""


@dataclass(frozen=True)
class Problem:
    """An n-ary contraction to be ordered."""

    layouts: tuple[Layout, ...]
    kept: frozenset[str]
    wanted: Layout | None
    sizes: Mapping[str, int]
    profile: DeviceProfile
    itemsize: int

    def needed(self, rest: Sequence[Layout], union: frozenset[str]) -> frozenset[str]:
        """The axes of an intermediate that something else still needs."""
        others = self.kept.union(*rest) if rest else self.kept
        return union & others


@dataclass(frozen=True)
class Pair:
    """Two operands, or what came of pairs before, and the way to contract them."""

    first: Order
    second: Order
    way: Arrangement


Order: TypeAlias = "int | Pair"
"""An n-ary contraction decided: which pairs, and each in which way. A number is an operand."""

Choose: TypeAlias = "Callable[[Problem], Order]"


Tree: TypeAlias = "int | tuple[Tree, Tree]"
"""Which operands to contract with which; a number is an operand."""

_Form: TypeAlias = tuple[Layout, bool]
"""The order a tensor comes out in, and whether any other would have cost the same."""

_Forms: TypeAlias = dict[_Form, tuple[float, Order]]
"""For every form an intermediate may take, the fastest way to it."""


class Search:
    """Ways to make the intermediates of one contraction, by dynamic programming over their forms."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.everything = (1 << len(problem.layouts)) - 1

    def operand(self, number: int) -> _Forms:
        return {(self.problem.layouts[number], False): (0.0, number)}

    def kept(self, subset: int) -> frozenset[str]:
        """The axes of the intermediate made of a subset of the operands."""
        layouts = self.problem.layouts
        inside = [layout for n, layout in enumerate(layouts) if subset >> n & 1]
        outside = [layout for n, layout in enumerate(layouts) if not subset >> n & 1]
        return self.problem.needed(outside, frozenset(itertools.chain.from_iterable(inside)))

    def join(self, subset: int, first: _Forms, second: _Forms, best: _Forms) -> None:
        """Adds to `best` the ways to make a subset from two intermediates."""
        problem, kept = self.problem, self.kept(subset)
        wanted = problem.wanted if subset == self.everything else None
        for (a, (time_a, order_a)), (b, (time_b, order_b)) in itertools.product(
            first.items(), second.items()
        ):
            loose = (a[1], b[1])
            for way in arrangements(
                a[0], b[0], kept, wanted, problem.sizes, problem.profile, problem.itemsize, loose
            ):
                form, seconds = (flatten(way.result), way.kind == "multiply"), time_a + time_b + way.seconds
                if form not in best or seconds < best[form][0]:
                    best[form] = (seconds, Pair(order_a, order_b, way))

    def worthwhile(self, forms: _Forms) -> _Forms:
        """The forms that nothing beats: not the fastest and a permutation, and the quickest `FORMS` of them."""
        least, (layout, _) = min((seconds, form) for form, (seconds, _) in forms.items())
        elements = math.prod(self.problem.sizes[axis] for axis in layout)
        bound = least + self.problem.profile.permute(elements, self.problem.itemsize)
        ranked = sorted(forms.items(), key=lambda each: each[1][0])
        return dict([each for each in ranked if each[1][0] <= bound][:FORMS])

    def along(self, tree: Tree) -> tuple[float, Order]:
        """The fastest forms along a given tree."""

        def walk(part: Tree) -> tuple[int, _Forms]:
            if isinstance(part, int):
                return 1 << part, self.operand(part)
            (set_a, a), (set_b, b) = walk(part[0]), walk(part[1])
            best: _Forms = {}
            self.join(set_a | set_b, a, b, best)
            return set_a | set_b, self.worthwhile(best)

        return min(walk(tree)[1].values(), key=lambda each: each[0])

    def exhaustive(self) -> tuple[float, Order]:
        """The fastest of all trees."""
        count = len(self.problem.layouts)
        found = {1 << n: self.operand(n) for n in range(count)}
        for number in range(2, count + 1):
            for members in itertools.combinations(range(count), number):
                subset = sum(1 << n for n in members)
                best: _Forms = {}
                for half in _halves(subset):
                    self.join(subset, found[half], found[subset ^ half], best)
                found[subset] = self.worthwhile(best)
        return min(found[self.everything].values(), key=lambda each: each[0])


def _halves(subset: int) -> list[int]:
    """The ways to cut a set of operands in two, each once."""
    lowest = subset & -subset
    halves, half = [], (subset - 1) & subset
    while half:
        if half & lowest:
            halves.append(half)
        half = (half - 1) & subset
    return halves


def left_to_right(count: int) -> Tree:
    tree: Tree = 0
    for number in range(1, count):
        tree = (tree, number)
    return tree


def tree_of(path: Sequence[Sequence[int]], count: int) -> Tree:
    """opt_einsum's path (positions in a shrinking list) as a tree of pairs."""
    operands: list[Tree] = list(range(count))
    for positions in path:
        taken = [operands.pop(position) for position in sorted(positions, reverse=True)][::-1]
        operands.append(functools.reduce(lambda a, b: (a, b), taken))
    return functools.reduce(lambda a, b: (a, b), operands)


def path_of(order: Order, count: int) -> list[tuple[int, ...]]:
    """An order of pairs as opt_einsum's path."""
    operands: list[Order] = list(range(count))
    path: list[tuple[int, ...]] = []

    def walk(part: Order) -> None:
        if isinstance(part, int):
            return
        walk(part.first)
        walk(part.second)
        positions = sorted((operands.index(part.first), operands.index(part.second)))
        path.append(tuple(positions))
        for position in reversed(positions):
            operands.pop(position)
        operands.append(part)

    walk(order)
    return path
