"""Initial values, derived from the equations so that every product keeps the variance, and measured initialisation.

A product of independent factors with mean squares m₁, m₂, …, summed over axes of total size S, has
the mean square S·m₁·m₂·…; its parameters are scaled to make this 1 (`Starts` estimates it for
any expression). The target of an expression is passed down to its parts:

    product            shared by its weights, each scaled down for the summed axes that it has
                       (Glorot and Bengio 2010; He et al. 2015)
    sum of weights     shared by the terms
    sum with data      an added weight is a bias, and starts at zero; in an added product of weights
    or a frozen value  the last starts at zero, so that the product learns (Hu et al. 2021, LoRA)
    function           its parameters start on the scale that brings it nearest
    factor that only   one           gain[c] * normalize[c](x)
    scales
    product of data    by the factors that weights scale        silu(x * W) * (x * V)
    alone              1             a table, a token

A weight that an equation of its own computes, `V = A * B`, is looked through: its parameters start as the
product that reads it requires. A warning names a product that no start can bring within a factor of 2.

`gain_propagation.py` passes the targets down. Then the equation is measured on noise and rescaled, if a function
that runs the graph is given (LSUV). Gates limit the scale of a recurrent state: that of an LSTM is a
seventh, as with torch's initial values, and below a half with any.

Gain propagation assumes that factors are independent and that many terms are summed. Measuring runs the graph and
computes a tensor from several starts. Parameters are rescaled until it is typically on its scale (Mishkin and
Matas 2016). The measured moments replace the estimated ones, also for the equations that follow.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..display import rounded
from ..errors import EquationError
from ..graph.graph import Graph
from ..graph.recurrences import Recurrence, is_step
from ..graph.shape_inference import index_of
from ..language.equation import Equation
from ..language.expression import Call, Contraction, Expression, Ref, axes_of_index
from ..ops.record import STANDARD, Moments
from ..ops.table import FUNCTIONS
from ..sizes import evaluate
from .gain_propagation import FAR, Starts, aim, behind_its_mean, rescale, vanish

ZERO = ("value", 0.0)

LOOSE = 1.2
"""A measured mean square agrees with its estimate within this factor."""

ROUNDS, SETTLED = 32, 0.01
"""The most iterations of the moments of a recurrence, and the relative change at which these have converged."""


def starts_of_weight(program: Graph, square: float) -> dict[str, tuple[str, float]]:
    """The starts of the parameters of a weight that give it this mean square.

    Args:
        program: the equations of the weight, which is the one output.
        square: the mean square. If it is zero, all factors of a product but one are nonzero.
    """
    graph = program.flat
    starts = Starts(graph)
    for equation in graph.equations:
        _choose(starts, equation, {each.name for each in graph.equations})
    (weight,) = graph.outputs
    index = index_of(graph.named[weight])
    read = Ref(weight, index)
    starts.line = Equation(weight, index, read)
    free = starts.free(read)
    if square:
        aim(starts, read, square)
        rescale(starts, free, read, square)
    else:
        vanish(starts, read, 1.0)
    return starts.found


def derived(graph: Graph, sampled: Sampled | None = None) -> Starts:
    """The starts of the parameters that the equations determine, the same for every seed, and doubts about them.

    Args:
        graph: a layer or a model.
        sampled: measures a tensor, given the starts chosen so far. It returns None if it cannot.

    Raises:
        EquationError: weights are computed from weights in too many levels.
    """
    graph = graph.flat
    starts, read = Starts(graph), {ref.name for each in graph.equations for ref in each.references}
    measurement = Measurement(starts, sampled) if sampled is not None else None
    try:
        for equation in graph.equations:
            _choose(starts, equation, read, measurement)
            for each in graph.recurrences:
                if equation.name == each.equations[-1].name:
                    _settle(starts, each.equations)
                    _check_repeated(starts, each)
    except RecursionError:
        place, fix = starts.line.place, "write the product in fewer lines"
        raise EquationError("weights are made of weights too many times", place, fix) from None
    return starts


def _choose(
    starts: Starts, equation: Equation, read: Collection[str], measurement: Measurement | None = None
) -> None:
    """Chooses starts for the parameters that an equation reads first. A computed weight waits for its reader."""
    starts.line, right = equation, equation.right
    if equation.name in read and starts.is_weight(right) and starts.below(right) - starts.given:
        starts.define(equation)
        return
    free, linear, since = starts.free(right), starts.linear(right), len(starts.doubts)
    aim(starts, right, 1.0)
    seen = None if measurement is None else measurement.correct(equation, linear)
    if seen is not None:
        del starts.doubts[since:]
    found = starts.of(right)
    if seen is not None and seen.differs(found.square, LOOSE):
        found = seen.moments
    elif math.isnan(found.square):
        found = STANDARD
    chosen = [name for name in free if starts.found.get(name, ZERO) != ZERO]
    check(starts, equation, seen or Seen(found.mean, (found.square,)), chosen)
    if seen is not None and seen.is_alive() and starts.graph.outputs == (equation.name,):
        starts.doubts.clear()  # an output on scale needs no warning on the way
    starts.tensors[equation.name] = found if math.isfinite(found.square) else STANDARD


def _settle(starts: Starts, equations: Sequence[Equation]) -> None:
    """Iterates the moments of a recurrence with chosen weights until they converge. Its readers see the result.

    If they do not converge, as in a running sum, the moments of the first step are kept.
    """
    first = {equation.name: starts.tensors[equation.name] for equation in equations}
    for _ in range(ROUNDS):
        before = [starts.tensors[name].square for name in first]
        for equation in equations:
            starts.tensors[equation.name] = starts.of(equation.right)
        after = [starts.tensors[name].square for name in first]
        if all(math.isclose(one, other, rel_tol=SETTLED) for one, other in zip(before, after, strict=True)):
            return
    starts.tensors.update(first)


def _check_repeated(starts: Starts, recurrence: Recurrence) -> None:
    """Records a warning if random matrices are multiplied position by position, with nothing added in between."""
    random = {name for name, (kind, _) in starts.found.items() if kind == "std"}
    for equation in recurrence.equations:
        starts.line, term, axis = equation, equation.right, recurrence.labels[equation.name]
        if not isinstance(term, Contraction) or not any(map(is_step, term.factors)):
            continue
        drawn = [each for each in term.factors if isinstance(each, Ref) and each.name in random]
        others = [each for each in term.factors if each not in drawn]
        made = {*equation.kept}.difference({axis}, *(each.free_axes for each in others))
        varies = any(axis in each.free_axes for each in term.factors if not is_step(each))
        length = evaluate(starts.scope(term)[axis], starts.graph.bound)
        if not (varies and drawn and made and isinstance(length, int)):
            continue
        size = math.prod(starts.counts(term, made).values())
        decay = length * behind_its_mean(size) / 2
        if decay > math.log(FAR):
            off = f"exp(-{decay:.0f}) = {math.exp(-decay):.0e}"
            starts.doubt(term, f"is multiplied {length} times over: it may end at {off} times its deviation")


# ---------------------------------------------------------------------------- measured initialisation


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
    return max([1.0, *((starts.of(term).square + 1.0) / PASSED for term in passed)])


def _averaging(right: Expression) -> list[Call]:
    """The calls whose values sum to one: the weights of averages."""
    return [call for call in right.calls if FUNCTIONS[call.function].sums_to_one]
