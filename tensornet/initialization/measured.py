"""Measured initialisation (LSUV): what gains foresee is corrected by tensors that are computed on noise.

Gains suppose that factors are independent, and that many terms are summed. A tensor is computed from several starts,
by a function that runs the graph, and parameters are chosen again until it is typically on its scale (Mishkin and
Matas 2016). What is measured takes the place of what was foreseen, for the equations that follow as well.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..language.equation import Equation
from ..language.expression import Call, Expression, axes_of_index, subexpressions
from ..ops.moments import Moments
from ..ops.table import FUNCTIONS
from .gain_propagation import aim
from .state import FAR, Starts

__all__ = ["Measurement", "Sampled", "Seen", "check"]

EXTREME = 100.0
"""The same of losses, scores and averages, which have no scale to keep."""

PASSED = 2.5
"""So many terms may be added up, one after another, before what comes out is held against their number."""

ALIVE = 0.55
"""A tensor is on its scale if more than this share of starts is."""

ENOUGH = 2.0
"""A mean square is left as it is within this factor."""

LOOSE = 1.2
"""A mean square is as foreseen within this factor."""

TRIES = 3
"""So often a line is aimed and measured again."""


@dataclass(frozen=True)
class Seen:
    """A tensor as it comes out of several starts.

    Attributes:
        mean: of all elements.
        squares: the mean square of each start.
    """

    mean: float
    squares: tuple[float, ...]

    @property
    def moments(self) -> Moments:
        """Those of the typical start."""
        return Moments(self.mean, max(statistics.median(self.squares), self.mean**2))

    @property
    def is_off(self) -> bool:
        """Whether the typical start is too large or too small, by a number that may be made up for."""
        square = self.moments.square
        return 0 < square < math.inf and not 1 / ENOUGH <= square <= ENOUGH

    def differs(self, square: float) -> bool:
        """Whether the typical mean square is another than what was foreseen."""
        typical = self.moments.square
        return not typical / LOOSE <= square <= typical * LOOSE

    @property
    def is_alive(self) -> bool:
        """Whether more than half of the starts have a deviation within a factor of 2, nearly, of 1."""
        return self.share > ALIVE

    @property
    def is_clear(self) -> bool:
        """Whether more starts would hardly say otherwise: two and a half deviations of the share, at most."""
        return abs(self.share - ALIVE) > 1.25 / math.sqrt(len(self.squares))

    @property
    def share(self) -> float:
        """The share of starts whose mean square is not far from 1."""
        return sum(1 / FAR <= square <= FAR for square in self.squares) / len(self.squares)

    def against(self, square: float) -> Seen:
        """The same, were the deviation that it is held against the root of this one, if that is more than 1."""
        if square <= 1:
            return self
        return Seen(self.mean / math.sqrt(square), tuple(each / square for each in self.squares))


Sampled: TypeAlias = Callable[[str, Mapping[str, tuple[str, float]]], "Seen | None"]
"""A tensor as it comes out, where parameters start so; nothing where that takes too long."""


class Measurement:
    """Follows the equations in order, and measures what comes out.

    Not where positions of the data are averaged, nor behind it: how alike they are is the data's affair, and noise is
    not alike. Nor what recurs, which gates may keep small.
    """

    def __init__(self, starts: Starts, sampled: Sampled) -> None:
        graph = starts.graph
        self.starts, self.sampled = starts, sampled
        self.averages = {equation.name for each in graph.recurrences for equation in each.equations}
        self.coming = {leaf.name: list(range(len(leaf.dims))) for leaf in graph.inputs}

    def correct(self, equation: Equation, free: Sequence[str]) -> Seen | None:
        """Measures a tensor, its parameters chosen again until that is typically on its scale.

        Args:
            equation: what defines the tensor.
            free: the parameters that can bring its mean square anywhere.
        """
        if self._averages(equation):
            return None
        starts, target = self.starts, 1.0
        seen = self.sampled(equation.name, starts.found)
        for _ in range(TRIES):
            if seen is None or not free or not seen.is_off:
                break
            target /= seen.moments.square
            starts.forget(free)
            aim(starts, equation.right, target, starts.known.scope(equation.right))
            seen = self.sampled(equation.name, starts.found)
        return seen

    def _averages(self, equation: Equation) -> bool:
        """Whether positions that come in are averaged, here or before."""
        coming = {
            axis
            for ref in equation.references
            for n in self.coming.get(ref.name, ())
            for axis in axes_of_index(ref.index[n : n + 1])
        }
        self.coming[equation.name] = [
            n for n, entry in enumerate(equation.left) if coming.intersection(axes_of_index((entry,)))
        ]
        read = {ref.name for ref in equation.references}
        if (
            any(coming.intersection(share.axes) for share in _averaging(equation.right))
            or read & self.averages
        ):
            self.averages.add(equation.name)
        return equation.name in self.averages


def check(starts: Starts, equation: Equation, seen: Seen, chosen: Sequence[str]) -> None:
    """Notes a doubt where a tensor is not on its scale, though parameters were chosen for it.

    A number without axes is a loss or a score, and averages of noise are small: a word is said of what is extreme.
    """
    right, seen = equation.right, seen.against(_carried(starts, equation.right, chosen))
    square = seen.moments.square
    of_function = isinstance(right, Call) and right.function != "add"
    if seen.is_alive or not square or not chosen or of_function or starts.below(right) & starts.given:
        return
    has_scale = bool(equation.left) and not (square < 1 and any(_averaging(right)))
    if not has_scale and 1 / EXTREME <= square <= EXTREME:
        return
    if 1 / FAR <= square <= FAR:
        starts.doubt(right, "starts far too large or too small more often than not")
    else:
        times = f"{math.sqrt(square):.2g}" if math.isfinite(square) else "unforeseeable"
        starts.doubt(right, f"starts at {times} times the deviation of what goes in")


def _carried(starts: Starts, right: Expression, chosen: Sequence[str]) -> float:
    """The mean square of what a sum passes on and of something beside that is on its scale, in units of `PASSED`: a
    stack of such sums grows by one from each to the next."""
    terms = right.arguments if isinstance(right, Call) and right.function == "add" else ()
    passed = [term for term in terms if not starts.below(term).intersection(chosen)]
    return (max((starts.known.of(term).square for term in passed), default=1.0) + 1.0) / PASSED


def _averaging(right: Expression) -> list[Call]:
    """The weights that sum to one, of averages."""
    calls = (part for part in subexpressions(right) if isinstance(part, Call))
    return [call for call in calls if FUNCTIONS[call.function].sums_to_one]
