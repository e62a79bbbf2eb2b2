"""Pre-multiplied weights: operands that no call changes are contracted beforehand.

A frozen weight in factors may be gone through factor by factor, or be made of some or all of them once and
kept. What is multiplied beforehand takes no time at a call, and lies in whatever order suits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..planning.constant_folding import is_worth_keeping
from .layout_search import Choose, Order, Pair, Problem, Tree
from .pairs import Layout, extent, ordered

__all__ = ["beforehand"]

Group = frozenset[int]
"""Operands that are multiplied beforehand; an invariant one alone is a group as well."""


def beforehand(problem: Problem, trees: Iterable[Tree], choose: Choose) -> Order:
    """The order that is fastest at a call, where groups of invariant operands may be multiplied beforehand.

    Args:
        problem: the contraction; of its operands some are invariant.
        trees: which tensors to contract with which; what they make of invariant operands alone are groups.
        choose: orders a contraction that is done at each call.
    """
    alone = frozenset(frozenset((number,)) for number in problem.invariant)
    groupings = dict.fromkeys([alone, *(frozenset(_groups(problem, tree)) for tree in trees)])
    ways = (
        _Way(problem, sorted(groups, key=min), lying) for groups in groupings for lying in (_outside, _inside)
    )
    orders = [(way.decided(choose), way) for way in ways]
    chosen, way = min(orders, key=lambda each: sum(pair.way.seconds for pair in each[0]))
    return way.whole(chosen, choose)


def _groups(problem: Problem, tree: Tree) -> Iterator[Group]:
    """The largest parts of a tree that are made of invariant operands alone and are worth keeping."""
    count = len(problem.layouts)
    members = [frozenset((number,)) for number in range(count)]
    for one, other in tree:
        members.append(members[one] | members[other])
    waiting = [len(members) - 1]
    while waiting:
        number = waiting.pop()
        if members[number] <= problem.invariant and (number < count or _is_kept(problem, members[number])):
            yield members[number]
        elif number >= count:
            waiting += tree[number - count]


def _is_kept(problem: Problem, group: Group) -> bool:
    """Whether what a group is made into is kept from call to call."""
    made_of = sum(extent(problem.layouts[number], problem.sizes) for number in group)
    size = extent(_axes(problem, group), problem.sizes)
    return is_worth_keeping(problem.itemsize * size, problem.itemsize * made_of)


def _axes(problem: Problem, group: Group) -> frozenset[str]:
    """The axes of what a group is made into: those that the result or another operand has."""
    own = {axis for number in group for axis in problem.layouts[number]}
    others = {axis for number, each in enumerate(problem.layouts) if number not in group for axis in each}
    return frozenset(own & (others | problem.kept))


# ---------------------------------------------------------------------------- orders in memory


def _outside(problem: Problem, group: Group) -> Layout:
    """What is multiplied beforehand, the axes that are summed with others innermost, as weights are kept."""
    batch, outer, inner = _parts(problem, group)
    return batch + outer + inner


def _inside(problem: Problem, group: Group) -> Layout:
    """The same, with those outermost."""
    batch, outer, inner = _parts(problem, group)
    return batch + inner + outer


def _parts(problem: Problem, group: Group) -> tuple[Layout, Layout, Layout]:
    """The axes of a group that it shares and that stay, those that stay, and those that are summed."""
    axes = _axes(problem, group)
    moving = [each for number, each in enumerate(problem.layouts) if number not in problem.invariant]
    others = {axis for number, each in enumerate(problem.layouts) if number not in group for axis in each}
    order = ordered(axes, problem.wanted or (), *moving, *problem.layouts)
    summed = ordered(axes, *moving, *problem.layouts)
    return (
        tuple(axis for axis in order if axis in others and axis in problem.kept),
        tuple(axis for axis in order if axis not in others),
        tuple(axis for axis in summed if axis not in problem.kept),
    )


# ---------------------------------------------------------------------------- orders


@dataclass(frozen=True)
class _Way:
    """Which operands are multiplied beforehand, and how the results lie."""

    problem: Problem
    groups: Sequence[Group]
    lying: Callable[[Problem, Group], Layout]

    @property
    def moving(self) -> list[int]:
        """The operands that a call gives, or that it makes."""
        return [number for number in range(len(self.problem.layouts)) if number not in self.problem.invariant]

    def decided(self, choose: Choose) -> Order:
        """The order in which what a call gives is contracted with what the groups are made into."""
        layouts = [self.problem.layouts[number] for number in self.moving]
        layouts += [self.lying(self.problem, group) for group in self.groups]
        return choose(replace(self.problem, layouts=tuple(layouts), invariant=frozenset()))

    def whole(self, decided: Order, choose: Choose) -> Order:
        """The order with that in which the groups are multiplied before it."""
        pairs: list[Pair] = []
        numbers = dict(enumerate(self.moving))
        for group in self.groups:
            members = dict(enumerate(sorted(group)))
            numbers[len(numbers)] = self._add(pairs, self._of_group(group, choose), members)
        self._add(pairs, tuple(map(self._facing, decided)), numbers)
        return tuple(pairs)

    def _of_group(self, group: Group, choose: Choose) -> Order:
        layouts = tuple(self.problem.layouts[number] for number in sorted(group))
        kept, wanted = _axes(self.problem, group), self.lying(self.problem, group)
        return choose(replace(self.problem, layouts=layouts, kept=kept, wanted=wanted, invariant=frozenset()))

    def _add(self, pairs: list[Pair], order: Order, numbers: dict[int, int]) -> int:
        """Adds the pairs of a part of the problem, whose operands have numbers in the whole; returns the last."""
        count, start = len(numbers), len(self.problem.layouts) + len(pairs)
        numbers = {**numbers, **{count + at: start + at for at in range(len(order))}}
        pairs += [replace(pair, first=numbers[pair.first], second=numbers[pair.second]) for pair in order]
        return numbers[count + len(order) - 1]

    def _facing(self, pair: Pair) -> Pair:
        """The pair with what is multiplied beforehand second, as a weight stands."""
        first, last = len(self.moving), len(self.moving) + len(self.groups)
        if not first <= pair.first < last or first <= pair.second < last or pair.way.kind != "matmul":
            return pair
        way = pair.way
        mirrored = replace(way, swapped=not way.swapped, rows=way.columns, columns=way.rows)
        return Pair(pair.second, pair.first, mirrored)
