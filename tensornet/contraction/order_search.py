"""Contraction order search, and pre-multiplied weights: trees of pairs, each priced with its best layouts.

`fastest` is the entry. `layout_search.py` assigns layouts along a tree.

With few operands every tree is considered. With more, opt_einsum's greedy search, its dynamic programming and a sweep
along the operands each propose a tree of pairs. The time model, which includes layouts, chooses the fastest of them.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import opt_einsum
from opt_einsum.paths import greedy

from .layout_search import Search, Tree, left_to_right, searched_once, tree_of
from .pairs import Order, Problem

__all__ = [
    "as_written",
    "fastest",
    "fastest_with_vjp",
    "fewest_flops",
    "proposals",
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


def fastest_with_vjp(problem: Problem) -> Order:
    """The order that is expected to be fastest, for a product whose backward pass is planned as well.

    Operands may be repeated along batch axes without a limit. The result is in the wanted layout.
    """
    return fastest(replace(problem, expanded=math.inf, asked=1.0))


@searched_once
def fastest(problem: Problem) -> Order:
    """The order that is expected to be fastest at a call. Invariant operands may be multiplied beforehand."""
    search, count = Search(problem), len(problem.layouts)
    if count <= 2:
        return search.along(left_to_right(count))[1]
    if count <= EXHAUSTIVE:
        return search.exhaustive([left_to_right(count), _swept(search), _tree(problem, greedy)])[1]
    seconds, order, tree = search.best_along(proposals(search))
    better = (seconds, order) if count > MANY else search.refined(tree, BREADTH, seconds)
    return better[1] if better[0] < seconds else order


@searched_once
def fewest_flops(problem: Problem) -> Order:
    """The order with the fewest FLOPs that opt_einsum finds."""
    search, count = Search(problem), len(problem.layouts)
    if count <= EXACT:
        tree = _tree(problem, opt_einsum.DynamicProgramming("flops", search_outer=count <= 8))
    else:
        tree = min(proposals(search), key=lambda tree: search.total(tree, search.flops))
    return search.along(tree)[1]


@searched_once
def as_written(problem: Problem) -> Order:
    """The order from left to right."""
    return Search(problem).along(left_to_right(len(problem.layouts)))[1]


# ---------------------------------------------------------------------------- proposals


def proposals(search: Search) -> Iterable[Tree]:
    """Trees worth pricing, without duplicates."""
    problem, count = search.problem, len(search.problem.layouts)
    found: list[Tree | None] = [_swept(search), *([_invariant_first(problem)] if search.invariant else [])]
    if max((bits.bit_count() for bits in search.holders.values()), default=0) <= MANY:
        found += [_tree(problem, greedy), _tree(problem, opt_einsum.paths.get_path_fn("auto"))]
    if count <= MANY:
        least = min(search.total(tree, search.estimate) for tree in found if tree is not None)
        found.append(_programmed(search, least))
    return dict.fromkeys(tree for tree in found if tree is not None)


def _numbers(problem: Problem) -> dict[str, int]:
    """Numbers for the axes, in order of appearance, operand by operand, as opt_einsum's dynamic programming has them.

    Sets of numbers are iterated in the same order in every process. Sets of letters are not, so that ties between
    equal costs would be broken at random.
    """
    return {axis: number for number, axis in enumerate(dict.fromkeys(itertools.chain(*problem.layouts)))}


def _tree(problem: Problem, optimizer: Any) -> Tree:
    """The tree that one of opt_einsum's optimizers, or one like them, proposes."""
    numbers = _numbers(problem)
    inputs = [tuple(numbers[axis] for axis in layout) for layout in problem.layouts]
    output = tuple(number for axis, number in numbers.items() if axis in problem.kept)
    sizes = {number: problem.sizes[axis] for axis, number in numbers.items()}
    return tree_of(optimizer(inputs, output, sizes), len(inputs))


def _swept(search: Search) -> Tree:
    """The tree that starts at the first operand and always adds the neighbour with the smallest result.

    Neighbours share an axis. Only the shared axes that the fewest waiting operands have are considered. So
    a batch axis, which makes all operands neighbours, counts only where no other axis is left.
    """
    count = len(search.axes)
    done, waiting, tree, last = 1, (1 << count) - 2, list[tuple[int, int]](), 0
    while waiting:
        shared = [bits for axis in search.axes_of(done) if (bits := search.holders[axis] & waiting)]
        fewest = min((bits.bit_count() for bits in shared), default=0)
        near = functools.reduce(operator.or_, (bits for bits in shared if bits.bit_count() == fewest), 0)
        near = near or waiting & -waiting
        chosen = min(
            (number for number in range(count) if near >> number & 1),
            key=lambda number: search.pricing.extent(search.axes_of(done | 1 << number)),
        )
        tree.append((last, chosen))
        done, waiting, last = done | 1 << chosen, waiting & ~(1 << chosen), count + len(tree) - 1
    return tuple(tree)


def _invariant_first(problem: Problem) -> Tree:
    """The tree that contracts all invariant operands first, and the result with the others."""
    count = len(problem.layouts)
    order = sorted(range(count), key=lambda number: number not in problem.invariant)
    return tuple((order[0] if not at else count + at - 1, number) for at, number in enumerate(order[1:]))


def _programmed(search: Search, least: float = math.inf) -> Tree | None:
    """The fastest tree, by dynamic programming. None if it takes longer than `least` or the search is cut off."""
    left, numbers = itertools.count(PATIENCE, -1), _numbers(search.problem)
    held = [search]  # opt_einsum keeps the last functions that compare, and what they hold

    def compare(
        cost1: float, cost2: float, union: Any, sizes: Any, most: float, s1: int, s2: int, xn: Any, *more: Any
    ) -> None:
        if not next(left):
            raise _OutOfPatienceError
        both, cost = s1 | s2, cost1 + cost2
        if cost > most or (both in xn and cost >= xn[both][1]):
            return
        cost += held[0].estimate(s1, s2)
        if cost <= most and (both not in xn or cost < xn[both][1]):
            xn[both] = (frozenset(map(numbers.get, held[0].axes_of(both))), cost, more[-2:])

    outer = len(search.axes) <= OUTER
    optimizer = opt_einsum.DynamicProgramming(compare, cost_cap=least * (1 + 1e-9), search_outer=outer)
    try:
        return _tree(search.problem, optimizer)
    except _OutOfPatienceError:
        return None
    finally:
        held.clear()


class _OutOfPatienceError(Exception):
    """Dynamic programming has considered as many pairs as it may."""
