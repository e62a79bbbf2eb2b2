"""Allocation of one budget to the weights of a network, so that the error is small."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Annotated, Any, TypeAlias

from ..codec import Part, Text, document, read, write
from ..display import Filled, columns, printable, rounded, table, wrapped
from ..errors import ShapeError, checked_call, checked_number, names_in
from ..weights.equations import checked_modes, rounding_of
from ..weights.factorizations import SHARING, Rank, form_named
from .levels import AUTO, BYTES, ROUNDED, Candidate, Cost, Level

LEAST = 1e-6
"""Differences of the error below this value are ignored."""

FrozenModes: TypeAlias = int | tuple[int | tuple[int, ...], ...]

Curve: TypeAlias = Sequence[Level]
"""The levels of a weight."""

UNITS = {"parameters": "parameters", "bytes": "bytes", "flops": "FLOPs", "seconds": "seconds"}


@document()
@dataclass(frozen=True)
class Budget:
    """A limit on the cost of a network, or on its error.

    Attributes:
        kind: "parameters", "bytes", "flops", "seconds" or "error".
        amount: a fraction of the current cost as a float, or a number as an int; the limit itself for "error".
    """

    kind: Annotated[str, ("parameters", "bytes", "flops", "seconds", "error")]
    amount: float

    @staticmethod
    def of(**given: float | None) -> Budget:
        """The one budget that is given.

        Raises:
            ShapeError: none or several are given, or the amount is invalid.
        """
        told = [(kind, amount) for kind, amount in given.items() if amount is not None]
        if len(told) != 1:
            found = f"are {len(told)} budgets" if told else "is no budget"
            raise ShapeError(f"there {found}", fix=f"give one of {', '.join(f'{kind}=' for kind in given)}")
        ((kind, amount),) = told
        is_part = kind in ("seconds", "error") or not isinstance(amount, Integral)
        whole = "" if kind in ("seconds", "error") else ", or a whole number"
        fix = f"give a part of what it is now, as 0.2{whole}"
        checked_number(amount, f"the budget {kind}=", None, 1.0 if is_part else math.inf, fix=fix)
        return Budget(kind, float(amount) if is_part else int(amount))

    def limit(self, now: float) -> float:
        """The limit of the cost, given the current cost; 0 for an error, for which no cost is too low."""
        if self.kind == "error":
            return 0.0
        return self.amount * now if isinstance(self.amount, float) else float(self.amount)


@dataclass(frozen=True)
class Options:
    """The options of an allocation; see `tensornet.compress`."""

    budget: Budget
    methods: tuple[str, ...]
    modes: FrozenModes | None
    max_error: float
    uniform: bool
    include: str | Sequence[str]
    exclude: str | Sequence[str]
    progress: Callable[[str, int, int], None] | None
    activations: str | None = None

    @staticmethod
    def of(budget: Budget, method: Any, modes: Any, max_error: float | None, *others: Any) -> Options:
        """The options as a user gives them.

        Raises:
            EquationError: forms are not given by name.
            ShapeError: a form or the largest error is invalid.
        """
        most = math.inf if max_error is None else checked_number(max_error, "max_error", None, 1.0)
        modes = None if modes is None else checked_modes(modes)
        methods = _named((AUTO if budget.kind == BYTES else "low_rank") if method is None else method)
        methods = ROUNDED if methods == (AUTO,) and budget.kind == BYTES else methods
        checked_call(others[-1], "progress", "a name, the number done, and their total")
        return Options(budget, methods, modes, most, *others)


@document()
@dataclass(frozen=True)
class Allotted:
    """The level that an allocation chooses for a weight.

    Attributes:
        path, shape: the name and the shape of the weight.
        level: the chosen form and rank, and its error.
        dense: the level of the dense weight.
        reason: why this level was chosen.
    """

    path: str
    shape: tuple[int, ...]
    level: Level
    dense: Level
    reason: Text


@document(error=lambda self: self.error)
@dataclass(frozen=True)
class Allocation:
    """A form and a rank for each weight, chosen under one budget.

    Attributes:
        budget: the budget.
        before, after: the cost of the network in the unit of the budget, or in parameters if the budget is an error.
        parameters: the number of parameters of the network before and after.
        rows: the level of each weight, in the order of the network.
        modes: the parts into which dimensions are split.
    """

    budget: Budget
    before: float
    after: float
    parameters: tuple[int, int]
    rows: tuple[Allotted, ...]
    modes: FrozenModes | None = None

    @property
    def weights(self) -> dict[str, tuple[str, Rank]]:
        """The weights that become factors, in the format of `substitute`: name to form and rank."""
        return {row.path: (row.level.method, row.level.rank) for row in self.rows if row.level.method}

    @property
    def error(self) -> float:
        """The root mean square error of all weights: (Σ ‖W − Ŵ‖²/‖W‖² / count)^½."""
        return _mean([row.level for row in self.rows])

    def __str__(self) -> str:
        """Plain text, 80 characters wide: a line of numbers for each weight, and below it the reason for its level."""
        return "\n".join([*wrapped(self._title, ""), "", columns(self._table, "<<<<>>><", formula=7)])

    def _repr_html_(self) -> str:
        heads, *lines = self._table
        cells = list[list[str | Filled]]()
        for (*first, error, why), row in zip(lines, self.rows, strict=True):
            cells.append([*first, Filled(error, min(row.level.error, 1.0)), why])
        return table(heads, cells, "llllrrrl", self._title)

    @property
    def _table(self) -> list[tuple[str, ...]]:
        """The headings, and the cells of each weight: four texts, three numbers, and why it has this level."""
        in_bytes = self.budget.kind == BYTES
        unit = "bytes" if in_bytes else "parameters"
        found: list[tuple[str, ...]] = [("weight", "shape", "form", "rank", unit, "of dense", "error", "why")]
        for row in self.rows:
            level, shape = row.level, "×".join(map(str, row.shape))
            size, dense = (each.cost if in_bytes else each.parameters for each in (level, row.dense))
            rank = level.rank if isinstance(level.rank, str) else ",".join(map(str, level.rank))
            texts = printable(row.path), shape, level.method or "dense", rank if level.method else ""
            found.append((*texts, f"{size:,.0f}", f"{size / dense:.0%}", f"{level.error:.3f}", row.reason))
        return found

    @property
    def _title(self) -> str:
        kind, (before, after) = self.budget.kind, self.parameters
        parts = [] if kind == BYTES else [f"{before:,} → {after:,} parameters ({after / before:.1%})"]
        if kind in ("bytes", "flops", "seconds"):
            digits = ",.0f" if kind == BYTES else ",.4g"
            spent = f"{self.before:{digits}} → {self.after:{digits}} {UNITS[kind]}"
            parts.insert(0, f"{spent} ({self.after / self.before:.1%})")
        return ", ".join([*parts, f"root mean square error {self.error:.3f}"])

    def to_json(self) -> str:
        """The budget and the level of each weight, as JSON."""
        return json.dumps(write(self), indent=1)

    @staticmethod
    def from_json(text: str) -> Allocation:
        """The allocation that `to_json` wrote.

        Raises:
            EquationError: the text is not a document of this kind.
        """
        return read(Allocation, Part.of(text, "allocation"))


@dataclass(frozen=True)
class Whole:
    """A network as a whole.

    Attributes:
        cost: the cost of a weight in the unit of the budget.
        total: the cost of the network; None where only the weights count that may become factors.
        parameters: the number of its parameters.
    """

    cost: Cost
    total: float | None
    parameters: int


def allotted(
    candidates: Sequence[Candidate], curves: Sequence[Curve], options: Options, whole: Whole
) -> Allocation:
    """Spreads a budget over weights. Weights step down their levels in the order of added loss per saved cost.

    The useful levels of a weight are the corners of the convex hull of cost and loss. All steps down these
    hulls are sorted by slope. The result is optimal for a budget that it meets exactly (Everett, 1963). A uniform
    budget, for comparison, leaves each weight the same fraction of its cost: steps from large fractions come first.

    Args:
        candidates: the weights.
        curves: the levels of each.
        options: the budget, and how it is spread.
        whole: the whole network.

    Raises:
        ShapeError: even the lowest levels cost more than the budget.
    """
    own = sum(curve[0].cost for curve in curves)
    others = 0.0 if whole.total is None else max(0.0, whole.total - own)
    limit = options.budget.limit(others + own)
    hulls = [_hull(curve, options.uniform) for curve in curves]
    chosen = _descended(hulls, options, limit - others)
    least = others + sum(level.cost for level in chosen)
    if options.budget.kind != "error" and least > limit * (1 + 1e-9):
        raise _too_little(options.budget, others + own, others, least)
    if not options.uniform:
        chosen = _filled(curves, chosen, limit - least)
    after = others + sum(level.cost for level in chosen)
    saved = sum(curve[0].parameters - level.parameters for curve, level in zip(curves, chosen, strict=True))
    rows = tuple(
        Allotted(each.path, each.shape, level, hull[0], _reason(each.stays, hull, level))
        for each, hull, level in zip(candidates, hulls, chosen, strict=True)
    )
    sizes = (whole.parameters, whole.parameters - saved)
    return Allocation(options.budget, others + own, after, sizes, rows, options.modes)


def _hull(curve: Sequence[Level], uniform: bool) -> tuple[Level, ...]:
    """The levels on the lower convex hull of cost and loss, from the dense level down; if uniform, on the front."""

    def worth(level: Level) -> tuple[float, float]:
        return level.loss if uniform else _slope(found[-1], level), level.cost

    found = [curve[0]]
    while below := [each for each in curve if each.cost < found[-1].cost]:
        found.append(min(below, key=worth))
    return tuple(found)


def _slope(above: Level, below: Level) -> float:
    """The loss that a step down adds for each unit of cost that it saves."""
    return (below.loss - above.loss) / (above.cost - below.cost)


def _descended(hulls: Sequence[tuple[Level, ...]], options: Options, limit: float) -> list[Level]:
    """The levels reached by stepping down the hulls until their costs are within the limit.

    For an error budget, each step is taken that stays within it.
    """

    def order(step: tuple[int, Level, Level]) -> tuple[float, int]:
        number, above, below = step
        return (-above.cost / hulls[number][0].cost if options.uniform else _slope(above, below)), number

    is_error, chosen = options.budget.kind == "error", [hull[0] for hull in hulls]
    total = math.inf if is_error else sum(level.cost for level in chosen)
    steps = ((n, *pair) for n, hull in enumerate(hulls) for pair in itertools.pairwise(hull))
    for number, _, below in sorted(steps, key=order):
        if total <= limit and (options.uniform or below.error > LEAST):
            break
        lower = [*chosen[:number], below, *chosen[number + 1 :]]
        if not is_error or _mean(lower) <= options.budget.amount:
            total += below.cost - chosen[number].cost
            chosen = lower
        elif options.uniform:
            break
    return chosen


def _too_little(budget: Budget, before: float, others: float, lowest: float) -> ShapeError:
    unit, in_seconds = UNITS[budget.kind], budget.kind == "seconds"
    if in_seconds and lowest >= before * (1 - 1e-9):
        fix = "give a budget of parameters or FLOPs, include more, or choose other methods"
        return ShapeError(f"no form is faster than what there is, {rounded(before, 3)} {unit}", fix=fix)
    limit, now, outside, forms, least = (
        rounded(each, 3) if in_seconds else f"{each:,.0f}"
        for each in (budget.limit(before), before, others, lowest - others, lowest)
    )
    told = f"{limit} {unit} of {now} are too few: {outside} are of what no form is looked for, and the lowest forms"
    return ShapeError(f"{told} take {forms}", fix=f"allow {least}, include more, or choose other methods")


def _filled(curves: Sequence[Curve], chosen: Sequence[Level], room: float) -> list[Level]:
    """The levels after spending the rest of the budget on better ones. Hulls have few corners and leave such a rest."""
    found = list(chosen)
    while better := [
        ((level.loss - each.loss) / (each.cost - level.cost), number, each)
        for number, (curve, level) in enumerate(zip(curves, found, strict=True))
        for each in curve
        if level.cost < each.cost <= level.cost + room
        and each.loss < level.loss
        and each.error < level.error - LEAST
    ]:
        _, number, each = max(better, key=lambda one: one[:2])
        room -= each.cost - found[number].cost
        found[number] = each
    return found


def _mean(chosen: Sequence[Level]) -> float:
    return math.sqrt(sum(level.error**2 for level in chosen) / len(chosen)) if chosen else 0.0


def _reason(stays: str, hull: Sequence[Level], level: Level) -> str:
    """Why a level was chosen: what the next ones on the hull would lose."""
    above = [each for each in hull if each.cost > level.cost and each.error < level.error]
    if len(hull) == 1:
        return stays or "no form of this weight costs less"
    if level.method is None:
        return f"dense: the next cheaper form has an error of {hull[1].error:.3f}"
    if not above:
        return "no dearer form of this weight has less error"
    times, form = rounded(above[-1].cost / level.cost, 2), above[-1].method or "dense"
    return f"the next dearer form, {form} at {times}× the cost, has an error of {above[-1].error:.3f}"


def _named(methods: str | Sequence[str]) -> tuple[str, ...]:
    """The names of one or several forms, in lower case.

    Raises:
        EquationError: these are no names.
        ShapeError: there is no such form, its factors cannot be rounded, or several weights share them.
    """
    found = names_in(methods, "forms", 1)
    for name in found if found != (AUTO,) else ():
        if name.lower() in SHARING:
            told = f"'{name}' is a form of several weights together, and a budget is spread one by one"
            call = f"""tensornet.substitute(graph, {{"*.Wq": "{name}"}}, rank=16), tensornet.fit"""
            raise ShapeError(told, fix=f"choose its rank: {call}")
        kind, rounding = rounding_of(name)
        form_named(kind)
        if rounding is not None and kind != "dense" and (kind != "low_rank" or rounding.group is not None):
            fix = f"choose int{rounding.bits}, int{rounding.bits}/64 or low_rank:int{rounding.bits}"
            raise ShapeError(f"factors of '{kind}' are not rounded so: '{name}'", fix=fix)
    return tuple(name.lower() for name in found)
