"""Pre-multiplied weights: operands that no call changes are contracted beforehand.

A frozen weight may be given in factors. Each call can contract with one factor after another, or some or all factors
are multiplied once and the product is kept. That takes no time at a call, and the product can have any layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..planning.constant_folding import is_worth_keeping
from .layout_search import Tree
from .pairs import Choose, Layout, Order, Pair, Problem, extent, ordered

__all__ = ["beforehand"]

Group = frozenset[int]
"""Operands that are multiplied beforehand. A single invariant operand is a group as well."""


def beforehand(problem: Problem, trees: Iterable[Tree], choose: Choose) -> Order:
    """The order that is fastest at a call, where groups of invariant operands may be multiplied beforehand.

    Args:
        problem: the contraction. Some of its operands are invariant.
        trees: trees of pairs. Their intermediates of invariant operands alone are candidate groups.
        choose: orders a contraction that is computed at each call.
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
    """The largest parts of a tree that contain only invariant operands and whose products are worth keeping."""
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
    """Whether the product of a group is kept from call to call."""
    made_of = sum(extent(problem.layouts[number], problem.sizes) for number in group)
    size = extent(_axes(problem, group), problem.sizes)
    return is_worth_keeping(problem.itemsize * size, problem.itemsize * made_of)


def _axes(problem: Problem, group: Group) -> frozenset[str]:
    """The axes of the product of a group: those that the result or another operand has."""
    own = {axis for number in group for axis in problem.layouts[number]}
    others = {axis for number, each in enumerate(problem.layouts) if number not in group for axis in each}
    return frozenset(own & (others | problem.kept))


# ---------------------------------------------------------------------------- orders in memory


def _outside(problem: Problem, group: Group) -> Layout:
    """The layout of a group's product with the axes that are summed later innermost, as weights are usually stored."""
    batch, outer, inner = _parts(problem, group)
    return batch + outer + inner


def _inside(problem: Problem, group: Group) -> Layout:
    """The layout of a group's product with the axes that are summed later outside of its own axes."""
    batch, outer, inner = _parts(problem, group)
    return batch + inner + outer


def _parts(problem: Problem, group: Group) -> tuple[Layout, Layout, Layout]:
    """The axes of a group's product: shared axes that the result keeps, axes of its own, and axes summed later."""
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
    """Which operands are multiplied beforehand, and the layout of their products."""

    problem: Problem
    groups: Sequence[Group]
    lying: Callable[[Problem, Group], Layout]

    @property
    def moving(self) -> list[int]:
        """The operands that are not invariant."""
        return [number for number in range(len(self.problem.layouts)) if number not in self.problem.invariant]

    def decided(self, choose: Choose) -> Order:
        """The order in which the other operands are contracted with the products of the groups."""
        layouts = [self.problem.layouts[number] for number in self.moving]
        layouts += [self.lying(self.problem, group) for group in self.groups]
        return choose(replace(self.problem, layouts=tuple(layouts), invariant=frozenset()))

    def whole(self, decided: Order, choose: Choose) -> Order:
        """The whole order: first the pairs that multiply each group, then the given order."""
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
        """Adds the pairs of a part of the problem, given the numbers of its operands in the whole. The last number."""
        count, start = len(numbers), len(self.problem.layouts) + len(pairs)
        numbers = {**numbers, **{count + at: start + at for at in range(len(order))}}
        pairs += [replace(pair, first=numbers[pair.first], second=numbers[pair.second]) for pair in order]
        return numbers[count + len(order) - 1]

    def _facing(self, pair: Pair) -> Pair:
        """The pair with the product of a group as its second tensor, as a weight usually is."""
        first, last = len(self.moving), len(self.moving) + len(self.groups)
        if not first <= pair.first < last or first <= pair.second < last or pair.way.kind != "matmul":
            return pair
        way = pair.way
        mirrored = replace(way, swapped=not way.swapped, rows=way.columns, columns=way.rows)
        return Pair(pair.second, pair.first, mirrored)
