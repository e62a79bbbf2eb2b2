"""Exact search: variable elimination (nonserial dynamic programming; Bertelè and Brioschi 1972).

A cost is a sum of tables, each over a few variables. To eliminate a variable, the tables that have it are added up, and
their minimum over it is a table over its neighbours. The variables that are kept are those of the table that remains: a
block is solved once for all placements of what goes in and comes out.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

MOST = 1 << 22
"""The most entries of a table. Where more are needed, the unlikely choices of its variables are dropped first."""

Variable: TypeAlias = Hashable


class CostTable(NamedTuple):
    """Costs of the choices of some variables, one dimension of the array for each."""

    variables: tuple[Variable, ...]
    costs: Any


@dataclass
class Solved:
    """What remains after elimination.

    Attributes:
        table: the least costs, over the variables that were kept.
        traces: for each eliminated variable, its neighbours, and its best choice for each of theirs.
        left: the numbers of the choices that remain, for each variable that lost some.
    """

    table: CostTable
    traces: list[tuple[Variable, tuple[Variable, ...], Any]] = field(default_factory=list)
    left: dict[Variable, Any] = field(default_factory=dict)

    def choices(self, kept: Mapping[Variable, int]) -> dict[Variable, int]:
        """The best choice of each variable, given those of the variables that were kept."""
        found = dict(kept)
        for variable, others, best in reversed(self.traces):
            found[variable] = int(best[tuple(found[each] for each in others)])
        return {each: int(self.left[each][n]) if each in self.left else n for each, n in found.items()}


def eliminated(
    domains: Mapping[Variable, int], tables: Iterable[CostTable], kept: Sequence[Variable] = ()
) -> Solved:
    """Eliminates all variables but those that are kept, each time the one whose table is smallest.

    Args:
        domains: the number of choices of each variable.
        tables: the costs, which add up.
        kept: the variables of the resulting table, in order.
    """
    left = _Elimination(domains, tables, tuple(kept))
    degrees = {each: left.degree(each) for each in domains if each not in kept}
    while degrees:
        variable = min(degrees, key=degrees.__getitem__)
        del degrees[variable]
        others = left.eliminate(variable)
        degrees |= {each: left.degree(each) for each in others if each in degrees}
    return left.solved()


class _Elimination:
    """An elimination under way.

    Attributes:
        sizes: the number of choices that each variable has left.
        alive: the tables that remain, by number.
        of: the numbers of the tables of each variable.
    """

    def __init__(
        self, domains: Mapping[Variable, int], tables: Iterable[CostTable], kept: tuple[Variable, ...]
    ) -> None:
        self.sizes, self.kept = dict(domains), kept
        self.traces: list[tuple[Variable, tuple[Variable, ...], Any]] = []
        self.left: dict[Variable, Any] = {}
        self.alive: dict[int, CostTable] = {}
        self.of: dict[Variable, dict[int, None]] = {each: {} for each in self.sizes}
        self.count = 0
        for table in tables:
            self._add(table)

    def solved(self) -> Solved:
        """What remains."""
        costs = _sum(self.alive.values(), self.kept, self.sizes)
        return Solved(CostTable(self.kept, costs), self.traces, self.left)

    def degree(self, variable: Variable) -> int:
        """The entries of the table that the elimination of a variable makes."""
        return math.prod(self.sizes[each] for each in (variable, *self._near(variable)))

    def eliminate(self, variable: Variable) -> tuple[Variable, ...]:
        """Puts a table of the least costs in place of those of a variable; its neighbours."""
        others = self._near(variable)
        self._prune((variable, *others))
        tables = [self._take(number) for number in (*self.of[variable],)]
        total = _sum(tables, (*others, variable), self.sizes)
        self.traces.append((variable, others, total.argmin(-1)))
        self._add(CostTable(others, total.min(-1)))
        return others

    def _add(self, table: CostTable) -> None:
        self.count += 1
        self.alive[self.count] = table
        for each in table.variables:
            self.of[each][self.count] = None

    def _take(self, number: int) -> CostTable:
        table = self.alive.pop(number)
        for each in table.variables:
            del self.of[each][number]
        return table

    def _near(self, variable: Variable) -> tuple[Variable, ...]:
        """The variables that share a table with one."""
        near = dict.fromkeys(each for number in self.of[variable] for each in self.alive[number].variables)
        near.pop(variable, None)
        return (*near,)

    def _prune(self, variables: Sequence[Variable]) -> None:
        """Drops the choices of some variables whose least costs, table by table, are largest, until a table fits."""
        import numpy

        while math.prod(self.sizes[each] for each in variables) > MOST:
            free = [each for each in variables if each not in self.kept]
            largest = max(free, key=self.sizes.__getitem__)
            bound = numpy.zeros(self.sizes[largest])
            for number in self.of[largest]:
                others, costs = self.alive[number]
                at = others.index(largest)
                bound += costs.min(tuple(n for n in range(len(others)) if n != at))
            self._keep(largest, numpy.sort(numpy.argsort(bound, kind="stable")[: len(bound) // 2]))

    def _keep(self, variable: Variable, best: Any) -> None:
        """Leaves a variable only some of its choices."""

        def taken(others: tuple[Variable, ...], table: Any) -> Any:
            return table.take(best, others.index(variable)) if variable in others else table

        for number in self.of[variable]:
            others, costs = self.alive[number]
            self.alive[number] = CostTable(others, taken(others, costs))
        self.traces = [(each, others, taken(others, table)) for each, others, table in self.traces]
        self.left[variable] = self.left[variable][best] if variable in self.left else best
        self.sizes[variable] = len(best)


def _sum(tables: Iterable[CostTable], order: tuple[Variable, ...], sizes: Mapping[Variable, int]) -> Any:
    """The sum of tables as an array over variables in some order; small tables are added up first."""
    import numpy

    total = numpy.zeros((1,) * len(order))
    for variables, costs in sorted(tables, key=lambda table: table.costs.size):
        places = [order.index(each) for each in variables]
        turned = numpy.transpose(costs, sorted(range(len(places)), key=places.__getitem__))
        shape = [1] * len(order)
        for at, n in zip(sorted(places), turned.shape, strict=True):
            shape[at] = n
        total = total + turned.reshape(shape)
    return numpy.broadcast_to(total, [sizes[each] for each in order])
