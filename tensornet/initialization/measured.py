"""Measured initialisation (LSUV): tensors are computed on noise where independence is too much to assume.

Where factors hang together, few terms are summed, or a start falls short, moments do not tell what is typical:
there the tensor itself is looked at, by a function that runs the graph (LSUV, Mishkin and Matas 2015), and what is
seen takes the place of what was foreseen.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..language.equation import Equation
from ..language.expression import Call, Contraction, Expression, Ref, axes_of_index, subexpressions
from ..ops.moments import Moments
from ..ops.table import FUNCTIONS
from .gain_propagation import aim
from .state import FAR, Starts

__all__ = ["Looking", "Sampled", "Seen"]

EXTREME = 100.0
"""The same of losses, scores and averages, which have no scale to keep."""

PASSED = 2.5
"""So many terms may be added up, one after another, before what comes out is held against their number."""

LOOSE = math.log(1.5)
"""Where what is typical lies this far behind the mean square, it is looked at."""

TRIES = 4
"""So often a line is measured and aimed again."""


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

    def against(self, square: float) -> Seen:
        """The same, were the deviation that it is held against the root of this one, if that is more than 1."""
        if square <= 1:
            return self
        return Seen(self.mean / math.sqrt(square), tuple(each / square for each in self.squares))

    @property
    def is_alive(self) -> bool:
        """Whether more than half of the starts have a deviation within a factor of 2, nearly, of 1."""
        return self.share(FAR) > 0.55

    @property
    def is_plain(self) -> bool:
        """Whether nearly all are, or nearly none, so that few starts tell."""
        return not 0.1 < self.share(2.5) < 0.9

    @property
    def is_clear(self) -> bool:
        """Whether so many are, or so few, that more starts would hardly say otherwise."""
        return not 0.35 < self.share(FAR) < 0.75

    def share(self, most: float) -> float:
        """Of how many starts the mean square is within a factor of 1."""
        return sum(1 / most <= square <= most for square in self.squares) / len(self.squares)


Sampled: TypeAlias = Callable[[str, Mapping[str, tuple[str, float]]], "Seen | None"]
"""A tensor as it comes out, where parameters start so; nothing where that takes too long."""


class Looking:
    """Follows the equations in order, and looks at what comes out where that is doubtful."""

    def __init__(self, starts: Starts, sampled: Sampled) -> None:
        graph = starts.graph
        self.starts, self.sampled = starts, sampled
        self.recurs = {equation.name for each in graph.recurrences for equation in each.equations}
        self.averages = set[str]()
        self.coming = {leaf.name: list(range(len(leaf.dims))) for leaf in graph.inputs}

    def look(
        self, equation: Equation, found: Moments, since: int, free: Sequence[str], elastic: bool
    ) -> Moments:
        """The moments of a tensor: as they are foreseen, or as they are seen where that is not enough.

        Args:
            equation: what defines the tensor.
            found: the moments that are foreseen.
            since: how many doubts there were before it was read.
            free: the parameters that it is the first to read.
            elastic: whether these can bring its mean square anywhere.
        """
        self.follow(equation, found, free)
        seen = self.seen(equation, free if elastic else []) if self.is_unsure(equation) else None
        if seen is None:
            return found
        self.judge(equation, seen, since, free)
        return seen.moments

    def follow(self, equation: Equation, found: Moments, chosen: Sequence[str]) -> None:
        """Notes how loosely a tensor is known, of itself and by what it is made of."""
        name, read, parts = (
            equation.name,
            {ref.name for ref in equation.references},
            [*subexpressions(equation.right)],
        )
        self.starts.decays[name] = self.starts.decays.get(name, 0.0) + max(
            (self.starts.decays.get(one, 0.0) for one in read), default=0.0
        )
        is_off = name in self.starts.graph.outputs and not 1 / 2 <= found.square <= 2
        if is_off or any(
            isinstance(part, Contraction) and self.hangs_together(part, chosen) for part in parts
        ):
            self.starts.unsure.add(name)
        coming = {
            axis
            for ref in equation.references
            for n in self.coming.get(ref.name, ())
            for axis in axes_of_index(ref.index[n : n + 1])
        }
        self.coming[name] = [
            n for n, entry in enumerate(equation.left) if coming.intersection(axes_of_index((entry,)))
        ]
        shares = [part for part in parts if isinstance(part, Call) and FUNCTIONS[part.function].sums_to_one]
        if (
            any(coming.intersection(share.axes) for share in shares)
            or read & self.averages
            or name in self.recurs
        ):
            self.averages.add(name)
        elif shares and name in self.starts.read:
            self.starts.unsure.add(name)

    def hangs_together(self, term: Contraction, chosen: Sequence[str]) -> bool:
        """Whether a product multiplies what is computed of the same data, other than by a norm."""
        data = self.starts.data(self.starts.known.apart_from_norms(term.factors))
        computes = any(not isinstance(factor, Ref) for factor in data)
        return len(data) > 1 and (computes or bool(self.starts.below(term).intersection(chosen)))

    def is_unsure(self, equation: Equation) -> bool:
        """Whether a tensor is to be looked at: what comes out is, if anything on the way is doubtful.

        Where positions are averaged it is not: how alike they are is the data's affair, and noise is not alike.
        """
        name = equation.name
        if name in self.averages:
            return False
        loose = self.starts.decays[name] > LOOSE
        return (
            loose
            or name in self.starts.unsure
            or bool(self.starts.unsure and name in self.starts.graph.outputs)
        )

    def seen(self, equation: Equation, free: Sequence[str]) -> Seen | None:
        """A tensor as it comes out, its parameters chosen again until that is typically on its scale."""
        name, decay, target = equation.name, self.starts.decays[equation.name], 1.0
        enough = math.log(2.0 if name in self.starts.unsure else FAR)
        for _ in range(TRIES):
            seen = self.sampled(name, self.starts.found)
            if seen is None or not free or not 0 < (square := seen.moments.square) < math.inf:
                break
            if abs(math.log(square)) <= enough:
                break
            target /= square
            self.starts.forget(free)
            aim(self.starts, equation.right, target, self.starts.known.scope(equation.right))
        self.starts.decays[name] = decay
        return seen

    def judge(self, equation: Equation, seen: Seen, since: int, chosen: Sequence[str]) -> None:
        """What is seen stands for what was foreseen of it; and what is alive in the end was so on the way.

        A number without axes is a loss or a score, and averages of noise are small: a word is said of what is extreme.
        """
        if seen.is_alive and self.starts.graph.outputs == (equation.name,):
            self.starts.doubts.clear()
        right, seen = equation.right, seen.against(self.carried(equation.right, chosen))
        square = seen.moments.square
        del self.starts.doubts[since:]
        of_function = isinstance(right, Call) and right.function != "add"
        if (
            seen.is_alive
            or not square
            or not chosen
            or of_function
            or self.starts.below(right) & self.starts.given
        ):
            return
        has_scale = bool(equation.left) and not (square < 1 and _shared_out(right))
        if not has_scale and 1 / EXTREME <= square <= EXTREME:
            return
        if 1 / FAR <= square <= FAR:
            self.starts.doubt(right, "starts far too large or too small more often than not")
        else:
            self.starts.doubt(right, f"starts at {math.sqrt(square):.2g} times the deviation of what goes in")

    def carried(self, right: Expression, chosen: Sequence[str]) -> float:
        """The mean square of what a sum passes on and of something beside that is on its scale, in units of `PASSED`: a
        stack of such sums grows by one from each to the next."""
        terms = right.arguments if isinstance(right, Call) and right.function == "add" else ()
        passed = [term for term in terms if not self.starts.below(term).intersection(chosen)]
        return (max((self.starts.known.of(term).square for term in passed), default=1.0) + 1.0) / PASSED


def _shared_out(right: Expression) -> bool:
    """Whether weights that sum to one take averages."""
    calls = (part for part in subexpressions(right) if isinstance(part, Call))
    return any(FUNCTIONS[call.function].sums_to_one for call in calls)
