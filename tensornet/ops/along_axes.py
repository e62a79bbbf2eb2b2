"""Axis functions that keep their axes: softmax, normalisation, linear recurrences.

The values of `passes` are means of NumPy and PyTorch. They are measured relative to `normalize`, by
`benchmarks.passes`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from ..nodes import Call, Expression, Literal, Ref
from .moments import STANDARD, Known, Moments
from .protocols import Left, Lowering, Value, Writer, names_in, sizes_of
from .record import Element, Function

__all__ = ["NORMALIZE", "RECUR", "ROWS"]


def _of_one_chosen(known: Known) -> Moments:
    """The moments as if one element were chosen, so that an average of similar elements is similar to them."""
    return Moments(1 / known.count, 1 / known.count)


def _of_norm(known: Known) -> Moments:
    return STANDARD if known.count != 1 else Moments(0.0, 0.0)


def _is_given(expression: Expression) -> bool:
    """Whether an operand is a literal number."""
    return isinstance(expression, Literal)


def _lower_recur(lowering: Lowering, call: Call) -> Value:
    """Lowers a recurrence: operands in one type of at least float32, its axis innermost; a literal stays as it is."""
    values = [None if _is_given(each) else lowering.lower(each) for each in call.arguments]
    element = max([Element.WIDE, *(each.element for each in values if each is not None)])
    values = [None if each is None else lowering.convert(each, element) for each in values]
    operands = [each for each in values if each is not None]
    sizes = sizes_of(operands)
    rest = dict.fromkeys(axis for each in operands for axis in each.layout if axis not in call.axes)
    pairs = zip(call.arguments, values, strict=True)
    arguments = tuple(each if value is None else value.ref for each, value in pairs)
    return lowering.emit((*rest, *call.axes), replace(call, arguments=arguments), operands, sizes, element)


def _spell_recur(writer: Writer, call: Call, left: Left) -> str:
    """Each operand with the dimensions of the result, of size 1 where it lacks an axis."""
    groups = list(map(names_in, left))
    operands = [
        writer.scalar(each) if _is_given(each) else writer.broadcast(cast("Ref", each), groups)
        for each in call.arguments
    ]
    return writer.op(call.function, *operands, **writer.options(call))


RECUR = Function(
    "recur",
    "yⱼ = aⱼ₋₁·yⱼ₋₁ + bⱼ₋₁ from y₀ = start; from the end with back=1",
    "kept",
    arity=(2, 2),
    options=(("start", 0), ("back", 0)),
    ordered=True,
    yields="real",
    passes=(12.0, 14.0),
    workspace=(3.0, 4.0),
    derivative=("y * recur[j](a, g, back=1 - back)", "recur[j](a, g, back=1 - back)"),
    lowered=_lower_recur,
    spelled=_spell_recur,
)

NORMALIZE = Function(
    "normalize",
    "(a − mean) / √(variance + eps)",
    "kept",
    options=(("eps", 1e-5),),
    elsewhere=("layernorm", "instancenorm", "standardize"),
    yields="real",
    complex="refused",
    moments=_of_norm,
    passes=(4.0, 5.0),
    workspace=(0.0, 1.0),
    affine=True,
    expansion="(a - mean[j](a)) * (var[j](a) + eps) ** -0.5",
    fused=True,
    derivative=("rsqrt(var[j](a) + eps) * (g - mean[j](g) - y * mean[j](g * y))",),
)


def _average(name: str, which: str, extreme: str) -> Function:
    """1/k at each of k equal elements: the derivative of `max` and of `min`."""
    return Function(
        name,
        f"1/k at each of the k {which} elements, 0 elsewhere",
        "kept",
        needs_position=True,
        yields="number",
        complex="refused",
        moments=_of_one_chosen,
        passes=(4.0, 6.0),
        expansion=f"(a == {extreme}[j](a)) / sum[j](a == {extreme}[j](a))",
        derivative=("0",),
    )


ROWS = (
    Function(
        "softmax",
        "eᵃ / Σ eᵃ",
        "kept",
        yields="real",
        complex="refused",
        moments=_of_one_chosen,
        passes=(4.5, 5.0),
        sums_to_one=True,
        derivative=("y * (g - sum[j](g * y))",),
    ),
    Function(
        "log_softmax",
        "a − log Σ eᵃ",
        "kept",
        yields="real",
        complex="refused",
        passes=(4.5, 5.5),
        derivative=("g - exp(y) * sum[j](g)",),
    ),
    Function(
        "hardmax",
        "1 at the first largest element, 0 elsewhere",
        "kept",
        needs_position=True,
        yields="number",
        complex="refused",
        moments=_of_one_chosen,
        passes=(6.0, 9.0),
        derivative=("0",),
    ),
    _average("average_hardmax", "largest", "max"),
    _average("average_hardmin", "smallest", "min"),
    NORMALIZE,
    RECUR,
)
