"""Measured initialisation (LSUV): estimated scales are corrected by measuring tensors on noise.

Gain propagation assumes that factors are independent and that many terms are summed. Here a function runs the graph
and computes a tensor from several starts. Parameters are rescaled until it is typically on its scale (Mishkin and
Matas 2016). The measured moments replace the estimated ones, also for the equations that follow.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..display import rounded
from ..language.equation import Equation
from ..language.expression import Call, Expression, axes_of_index, subexpressions
from ..ops.record import Moments
from ..ops.table import FUNCTIONS
from .gain_propagation import rescale
from .moments import FAR, Starts

EXTREME = 100.0
"""Losses, scores and averages have no scale to keep: a mean square that is off by this factor gives a warning."""

PASSED = 2.5
"""The number of terms that may be added one after another before the expected scale grows with their number."""

ALIVE = 0.55
"""A tensor is on its scale if more than this share of starts is."""

ENOUGH = 2.0
"""A mean square within this factor of its target is not corrected."""

TRIES = 3
"""How often an equation may be rescaled and measured again."""


@dataclass(frozen=True)
class Seen:
    """A tensor as measured from several starts.

    Attributes:
        mean: the mean of all elements.
        squares: the mean square of each start.
    """

    mean: float
    squares: tuple[float, ...]

    @property
    def moments(self) -> Moments:
        """The moments of the typical start."""
        return Moments(self.mean, max(statistics.median(self.squares), self.mean**2))

    def differs(self, square: float, within: float) -> bool:
        """Whether the typical mean square differs from `square` by more than the factor `within`."""
        typical = self.moments.square
        return not typical / within <= square <= typical * within

    def share(self, scale: float = 1.0) -> float:
        """The share of starts whose mean square is within the factor `FAR` of a scale."""
        return sum(scale / FAR <= square <= scale * FAR for square in self.squares) / len(self.squares)

    def is_alive(self, scale: float = 1.0) -> bool:
        """Whether more than the share `ALIVE` of starts has a deviation within a factor of nearly 2 of the scale's."""
        return self.share(scale) > ALIVE

    @property
    def is_clear(self) -> bool:
        """Whether more starts would hardly change the verdict: the share is over 2.5 of its deviations from `ALIVE`."""
        return abs(self.share() - ALIVE) > 1.25 / math.sqrt(len(self.squares))


Sampled: TypeAlias = Callable[[str, Mapping[str, tuple[str, float]]], "Seen | None"]
"""Measures a tensor, given its name and the starts of parameters; None if it is not finite or cannot be computed."""


class Measurement:
    """Measures the results of the equations, in order.

    Averages over positions of the data, and tensors computed from them, are not measured. Their scale depends on how
    similar the positions are, and noise is not similar. Recurrent tensors are not measured: gates may keep them small.
    """

    def __init__(self, starts: Starts, sampled: Sampled) -> None:
        self.starts, self.sampled = starts, sampled
        self.averages = {equation.name for each in starts.graph.recurrences for equation in each.equations}
        self.coming = {leaf.name: {*range(len(leaf.dims))} for leaf in starts.graph.inputs}

    def correct(self, equation: Equation, names: Collection[str]) -> Seen | None:
        """Measures a tensor, and rescales its parameters until it is typically on scale.

        Args:
            equation: the equation that defines the tensor.
            names: the parameters that can bring its mean square to any value.
        """
        starts, target, right = self.starts, 1.0, equation.right
        if self._averages(equation):
            return None
        seen = self.sampled(equation.name, starts.found)
        for _ in range(TRIES):
            if seen is None or not names or not seen.moments.square or not seen.differs(1.0, ENOUGH):
                break
            target /= seen.moments.square
            rescale(starts, names, right, target)
            seen = self.sampled(equation.name, starts.found)
        return seen

    def _averages(self, equation: Equation) -> bool:
        """Whether positions of the inputs are averaged, here or in an operand."""
        read = [(ref, self.coming.get(ref.name, ())) for ref in equation.references]
        coming = {
            axis for ref, places in read for n in places for axis in axes_of_index(ref.index[n : n + 1])
        }
        left = enumerate(equation.left)
        self.coming[equation.name] = {n for n, entry in left if coming.intersection(axes_of_index((entry,)))}
        averaged = {axis for share in _averaging(equation.right) for axis in share.axes}
        if averaged & coming or any(ref.name in self.averages for ref, _ in read):
            self.averages.add(equation.name)
        return equation.name in self.averages


def check(starts: Starts, equation: Equation, seen: Seen, chosen: Sequence[str]) -> None:
    """Records a warning if a tensor is not on its scale although parameters were chosen for it.

    A number without axes is a loss or a score, and averages of noise are small. Both warn only if extreme.
    """
    right, scale = equation.right, _carried(starts, equation.right, chosen)
    square = seen.moments.square / scale
    of_function = isinstance(right, Call) and right.function != "add"
    if seen.is_alive(scale) or not square or not chosen or of_function or starts.below(right) & starts.given:
        return
    has_scale = bool(equation.left) and not (square < 1 and any(_averaging(right)))
    if not has_scale and 1 / EXTREME <= square <= EXTREME:
        return
    if 1 / FAR <= square <= FAR:
        starts.doubt(right, "starts far too large or too small more often than not")
    else:
        starts.doubt(right, f"starts at {rounded(math.sqrt(square), 2)} times the deviation of what goes in")


def _carried(starts: Starts, right: Expression, chosen: Sequence[str]) -> float:
    """The expected scale of a sum: the mean square of the term that it passes on, plus 1, over `PASSED`; at least 1.

    A stack of such sums grows by one from each sum to the next."""
    terms = right.arguments if isinstance(right, Call) and right.function == "add" else ()
    passed = [term for term in terms if not starts.below(term).intersection(chosen)]
    return max([1.0, *((starts.known.of(term).square + 1.0) / PASSED for term in passed)])


def _averaging(right: Expression) -> list[Call]:
    """The calls whose values sum to one: the weights of averages."""
    calls = (part for part in subexpressions(right) if isinstance(part, Call))
    return [call for call in calls if FUNCTIONS[call.function].sums_to_one]
