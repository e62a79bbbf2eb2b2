"""Initial values, derived from the equations so that every product keeps the variance.

A product of independent factors with mean squares m₁, m₂, …, summed over axes of total size S, has
the mean square S·m₁·m₂·…; the parameters in it share what makes this 1 (`moments.py` estimates it for
any expression). What is asked of an expression is handed down to its parts:

    product            shared by its weights, each charged for the summed axes that it has
                       (Glorot and Bengio 2010; He et al. 2015)
    sum of weights     shared by the terms
    sum with data      a weight beside it is a bias, and starts at zero; of a product of weights the
    or a frozen value  last does, so that the others learn (Hu et al. 2021, LoRA)
    function           its parameters start on the scale that brings it nearest
    factor that only   one           gain[c] * normalize[c](x)
    scales
    product of data    by those of them that weights scale      silu(x * W) * (x * V)
    alone              1             a table, a token

A weight made by lines of their own, `V = A * B`, is looked through, and starts as the product that
reads it asks. Of what no start can bring within a factor of 2 a warning says so.

What is asked is handed down by `gain_propagation.py`. Then the equation is measured on noise and rescaled, if a
function is given that runs the graph (`measured.py`). A state of gates is as large as these let it be: that of an LSTM
a seventh, as at torch's start, and below a half at any.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..errors import EquationError, TensornetWarning
from ..graph.graph import Graph
from ..graph.recurrences import Recurrence, is_step
from ..graph.shape_inference import index_of
from ..language.equation import Equation
from ..language.expression import Contraction, Ref, axes_of_index, free_axes
from ..ops.moments import STANDARD
from ..sizes import evaluate
from .gain_propagation import aim, rescale, vanish
from .measured import Measurement, Sampled, Seen, check
from .moments import Estimator
from .near_identity import behind_its_mean
from .state import FAR, Starts

__all__ = ["Derived", "derived", "starts_of_weight"]

ZERO = ("value", 0.0)

LOOSE = 1.2
"""A mean square is as foreseen within this factor."""

ROUNDS, SETTLED = 32, 0.01
"""So often the moments of a recurrence are gone round, until they change by no more than this share."""


@dataclass(frozen=True)
class Derived:
    """How parameters start, and what is to be said of it.

    Attributes:
        starts: `("std", s)` or `("value", v)` of each parameter that equations say something of.
        doubts: of which products no start is right.
    """

    starts: Mapping[str, tuple[str, float]]
    doubts: tuple[TensornetWarning, ...]


def starts_of_weight(program: Graph, square: float) -> dict[str, tuple[str, float]]:
    """How the parameters of a weight start, whose mean square is to be this.

    Args:
        program: what the weight is made of; its one output is the weight.
        square: the mean square; if it is zero, all but one factor of a product are alive.
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


def derived(graph: Graph, sampled: Sampled | None = None) -> Derived:
    """How the parameters start that equations say something of, the same for every seed.

    Args:
        graph: a layer or a model.
        sampled: measures a tensor, by the starts that are chosen before it; it gives nothing where it cannot.

    Raises:
        EquationError: weights are made of weights too many times.
    """
    graph = graph.flat
    starts, read = Starts(graph), {ref.name for each in graph.equations for ref in each.references}
    measurement = Measurement(starts, sampled) if sampled is not None else None
    try:
        for equation in graph.equations:
            _choose(starts, equation, read, measurement)
            for each in graph.recurrences:
                if equation.name == each.equations[-1].name:
                    _settle(starts.known, each.equations)
                    _check_repeated(starts, each)
    except RecursionError:
        place, fix = starts.line.place, "write the product in fewer lines"
        raise EquationError("weights are made of weights too many times", place, fix) from None
    return Derived(starts.found, tuple(starts.doubts))


def _choose(
    starts: Starts, equation: Equation, read: Collection[str], measurement: Measurement | None = None
) -> None:
    """Chooses what an equation is the first to read; a weight waits for who reads it."""
    starts.line, right, known = equation, equation.right, starts.known
    if equation.name in read and starts.is_weight(right) and starts.below(right) - starts.given:
        starts.define(equation)
        return
    free, linear, since = starts.free(right), starts.linear(right), len(starts.doubts)
    aim(starts, right, 1.0)
    seen = None if measurement is None else measurement.correct(equation, linear)
    if seen is not None:
        del starts.doubts[since:]
    found = known.of(right)
    if seen is not None and seen.differs(found.square, LOOSE):
        found = seen.moments
    elif math.isnan(found.square):
        found = STANDARD
    chosen = [name for name in free if starts.found.get(name, ZERO) != ZERO]
    check(starts, equation, seen or Seen(found.mean, (found.square,)), chosen)
    if seen is not None and seen.is_alive() and starts.graph.outputs == (equation.name,):
        starts.doubts.clear()  # what is alive in the end was so on the way
    known.tensors[equation.name] = found if math.isfinite(found.square) else STANDARD


def _settle(known: Estimator, equations: Sequence[Equation]) -> None:
    """Goes round a recurrence, whose weights are chosen, until the moments stay; who reads it learns of these.

    What grows from step to step, as a running sum does, keeps those of its first step.
    """
    first = {equation.name: known.tensors[equation.name] for equation in equations}
    for _ in range(ROUNDS):
        before = [known.tensors[name].square for name in first]
        for equation in equations:
            known.tensors[equation.name] = known.of(equation.right)
        after = [known.tensors[name].square for name in first]
        if all(math.isclose(one, other, rel_tol=SETTLED) for one, other in zip(before, after, strict=True)):
            return
    known.tensors.update(first)


def _check_repeated(starts: Starts, recurrence: Recurrence) -> None:
    """Notes a doubt where random matrices are multiplied position by position, and nothing is added on the way."""
    random = {name for name, (kind, _) in starts.found.items() if kind == "std"}
    for equation in recurrence.equations:
        starts.line, term, axis = equation, equation.right, recurrence.labels[equation.name]
        if not isinstance(term, Contraction) or not any(map(is_step, term.factors)):
            continue
        drawn = [each for each in term.factors if isinstance(each, Ref) and each.name in random]
        others = [each for each in term.factors if each not in drawn]
        made = {*axes_of_index(equation.left)}.difference({axis}, *map(free_axes, others))
        varies = any(axis in free_axes(each) for each in term.factors if not is_step(each))
        length = evaluate(starts.known.scope(term)[axis], starts.graph.bound)
        if not (varies and drawn and made and isinstance(length, int)):
            continue
        size = math.prod(starts.known.counts(term, made).values())
        decay = length * behind_its_mean(size) / 2
        if decay > math.log(FAR):
            off = f"exp(-{decay:.0f}) = {math.exp(-decay):.0e}"
            starts.doubt(term, f"is multiplied {length} times over: it may end at {off} times its deviation")
