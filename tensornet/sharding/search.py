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

__all__ = ["CostTable", "Solved", "Variable", "eliminated"]

MOST = 1 << 24
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
    """Eliminates all variables but those that are kept.

    Args:
        domains: the number of choices of each variable.
        tables: the costs, which add up.
        kept: the variables of the resulting table, in order.
    """
    import numpy

    sizes, given = dict(domains), _merged(tables)
    of: dict[Variable, set[int]] = {each: set() for each in sizes}
    alive: dict[int, CostTable] = dict(enumerate(given))
    for number, each in alive.items():
        for variable in each.variables:
            of[variable].add(number)
    solved, waiting = Solved(CostTable((), 0.0)), [each for each in sizes if each not in kept]

    def scope(variable: Variable) -> tuple[Variable, ...]:
        near = (each for number in sorted(of[variable]) for each in alive[number].variables)
        return tuple(dict.fromkeys(each for each in near if each != variable))

    degrees = {each: math.prod(sizes[other] for other in (each, *scope(each))) for each in waiting}
    while degrees:
        variable = min(degrees, key=degrees.__getitem__)
        others = scope(variable)
        if degrees[variable] > MOST:
            _prune((variable, *others), sizes, alive, of, solved, kept)
        del degrees[variable]
        chosen = [alive.pop(number) for number in sorted(of[variable])]
        total = _sum(chosen, (*others, variable), sizes)
        best = total.argmin(-1)
        solved.traces.append((variable, others, best))
        number = len(given) + len(solved.traces)
        alive[number] = CostTable(others, numpy.take_along_axis(total, best[..., None], -1)[..., 0])
        for other in others:
            of[other] = {each for each in of[other] if each in alive} | {number}
        for other in others:
            if other in degrees:
                degrees[other] = math.prod(sizes[each] for each in (other, *scope(other)))
    solved.table = CostTable(tuple(kept), _sum(alive.values(), tuple(kept), sizes))
    return solved


def _merged(tables: Iterable[CostTable]) -> list[CostTable]:
    """The tables, those over the same variables added up."""
    found: dict[tuple[Variable, ...], Any] = {}
    for variables, costs in tables:
        found[variables] = costs if variables not in found else found[variables] + costs
    return [CostTable(variables, costs) for variables, costs in found.items()]


def _sum(tables: Iterable[CostTable], order: tuple[Variable, ...], sizes: Mapping[Variable, int]) -> Any:
    """The sum of tables as an array over variables in some order."""
    import numpy

    total = numpy.zeros(tuple(sizes[each] for each in order))
    for variables, costs in tables:
        places = [order.index(each) for each in variables]
        turned = numpy.transpose(costs, sorted(range(len(places)), key=places.__getitem__))
        shape = [1] * len(order)
        for at, n in zip(sorted(places), turned.shape, strict=True):
            shape[at] = n
        total += turned.reshape(shape)
    return total


def _prune(
    variables: Sequence[Variable],
    sizes: dict[Variable, int],
    alive: dict[int, CostTable],
    of: Mapping[Variable, set[int]],
    solved: Solved,
    kept: Sequence[Variable],
) -> None:
    """Drops the choices of some variables whose least costs, table by table, are largest, until a table fits."""
    import numpy

    while math.prod(sizes[each] for each in variables) > MOST:
        free = [each for each in variables if each not in kept]
        largest = max(free, key=sizes.__getitem__)
        bound = numpy.zeros(sizes[largest])
        for number in of[largest]:
            others, costs = alive[number]
            at = others.index(largest)
            bound += costs.min(tuple(n for n in range(len(others)) if n != at))
        best = numpy.sort(numpy.argsort(bound, kind="stable")[: sizes[largest] // 2])
        for number in of[largest]:
            others, costs = alive[number]
            alive[number] = CostTable(others, costs.take(best, others.index(largest)))
        solved.traces[:] = [
            (each, others, table.take(best, others.index(largest)) if largest in others else table)
            for each, others, table in solved.traces
        ]
        solved.left[largest] = solved.left[largest][best] if largest in solved.left else best
        sizes[largest] = len(best)
