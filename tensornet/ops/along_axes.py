"""Axis functions: softmax, normalisation, scans and shifts, which keep their axes; reductions, which remove them.

An equation that reads itself, or a later one, through `previous` or `following` is a recurrence.

The values of `passes` are means of NumPy and PyTorch. They are measured relative to `normalize`, by
`benchmarks.passes`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

from ..syntax import Call, Literal, Ref
from .record import (
    STANDARD,
    Axes,
    Element,
    Example,
    Function,
    KernelEquation,
    Known,
    Left,
    Lowering,
    Moments,
    Value,
    Writer,
    extreme,
    left_of,
    names_in,
    numeric,
)


def _of_one_chosen(known: Known) -> Moments:
    """The moments as if one element were chosen, so that an average of similar elements is similar to them."""
    return Moments(1 / known.count, 1 / known.count)


def _of_norm(known: Known) -> Moments:
    return STANDARD if known.count != 1 else Moments(0.0, 0.0)


def _lower_recur(lowering: Lowering, call: Call) -> Value:
    """Lowers a recurrence: operands in one type of at least float32, its axis innermost; a literal stays as it is."""
    tensors = [each for each in call.arguments if not isinstance(each, Literal)]
    operands = numeric(lowering, [lowering.lower(each) for each in tensors])
    rest = dict.fromkeys(axis for each in operands for axis in each.layout if axis not in call.axes)
    refs = iter(operands)
    arguments = tuple(each if isinstance(each, Literal) else next(refs).ref for each in call.arguments)
    element = operands[0].element if operands else Element.WIDE
    return lowering.emit((*rest, *call.axes), replace(call, arguments=arguments), operands, element)


def _around(call: Call, layouts: Sequence[Sequence[str]]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """The dimensions of the operands: of the first, the axes in brackets before the others, these, and those after.

    A gain and a bias have either the axes in brackets or the others. Where they have some of each, as of groups of
    channels, the first operand has four dimensions: theirs stand between.
    """
    layout, *affine = layouts
    kept = tuple(axis for axis in layout if axis not in call.axes)
    if not all({*each} in ({*kept}, {*call.axes}) for each in affine):
        places = ((False, False), (True, False), (True, True), (False, True))
        parts = (
            tuple(axis for axis in layout if (axis in affine[0], axis in call.axes) == place)
            for place in places
        )
        _, *channels, _ = whole = tuple(parts)
        yield from (whole, *(tuple(channels) for _ in affine))
        return
    at = min(map(layout.index, kept), default=len(layout))
    before, after = tuple(layout[:at]), tuple(axis for axis in layout[at:] if axis in call.axes)
    yield before, kept, after
    yield from ((kept,) if not {*call.axes}.intersection(each) else (before, (), after) for each in affine)


def _is_outermost(groups: Mapping[str, Sequence[str]], first: Sequence[str]) -> bool:
    """Whether the first axis is normalised: else other kernels are faster."""
    return bool(first) and first[0] in groups["a"]


def _has_groups(groups: Mapping[str, Sequence[str]], first: Sequence[str]) -> bool:
    """Whether several axes are normalised, and some are not: a gain may have some of each."""
    return len(groups["a"]) > 1 and bool(groups["k"])


def _lower_batch_norm(lowering: Lowering, call: Call) -> Value:
    """Lowers a normalisation over the axes on both sides of others; it never pays where these come first.

    A gain and a bias have the same axes.
    """
    values = numeric(lowering, [lowering.lower(each) for each in call.arguments])
    dims = [*_around(call, [each.layout for each in values])]
    written, seconds = lowering.itemsize * lowering.count(*dims[0]), math.inf
    if dims[0][0] and len({frozenset(each.layout) for each in values[1:]}) < 2:
        values = [lowering.grouped(*each) for each in zip(values, dims, strict=True)]
        seconds = lowering.profile.computed(2.0 * written, written, NORMALIZE.passes[0])
    right = replace(call, arguments=tuple(each.ref for each in values))
    return lowering.emit(left_of(dims[0]), right, values, values[0].element, seconds=seconds)


def _spell_batch_norm(writer: Writer, call: Call, left: Left) -> str:
    """The call with three dimensions."""
    refs = cast("tuple[Ref, ...]", call.arguments)
    dims = _around(call, [each.layout for each in refs])
    operands = (writer.view(*each, ones=True) for each in zip(refs, dims, strict=True))
    text = writer.op(call.function, ", ".join(operands), **writer.options(call))
    return writer.reshaped(text, left)


def _spell_recur(writer: Writer, call: Call, left: Left) -> str:
    """Each operand with the dimensions of the result, of size 1 where it lacks an axis."""
    groups = list(map(names_in, left))
    operands = [
        writer.scalar(each) if isinstance(each, Literal) else writer.broadcast(cast("Ref", each), groups)
        for each in call.arguments
    ]
    return writer.op(call.function, *operands, **writer.options(call))


_kept = functools.partial(Function, axes="kept")
_real = functools.partial(_kept, yields="real", complex="refused")
_number = functools.partial(
    _kept, needs_position=True, yields="number", complex="refused", moments=_of_one_chosen, derivative=("0",)
)


def _average(name: str, which: str, extreme: str) -> Function:
    """1/k at each of k equal elements: the derivative of `max` and of `min`."""
    expansion = f"(a == {extreme}[j](a)) / sum[j](a == {extreme}[j](a))"
    formula = f"1/k at each of the k {which} elements, 0 elsewhere"
    return _number(name, formula, passes=(4.0, 6.0), expansion=expansion)


def _shift(name: str, where: str, end: str, written: str, back: str, at: str) -> Function:
    """The previous or the next position; its derivative moves `back`, and gives the start what is `at` the end."""
    return _kept(
        name,
        f"a at the position {where}, and at the {end} one the start; in a recurrence written {written}",
        arity=(1, 2),
        operands=("a", "start"),
        ordered=True,
        yields="same",
        takes="any",
        carries=True,
        derivative=(f"{back}[j](g)", f"sum[j](where(index(j) == {at}, g, 0))"),
    )


_running = functools.partial(_kept, options=(("back", 0),), ordered=True, yields="same", passes=(8.5, 19.0))

RECUR = _kept(
    "recur",
    "yⱼ = aⱼ₋₁·yⱼ₋₁ + bⱼ₋₁ from y₀ = start; from the end with back=1",
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

NORMALIZE = _real(
    "normalize",
    "(a − mean) / √(variance + eps)",
    options=(("eps", 1e-5),),
    elsewhere=("layernorm", "instancenorm", "standardize"),
    moments=_of_norm,
    passes=(4.0, 5.0),
    workspace=(0.0, 1.0),
    affine=True,
    expansion="(a - mean[j](a)) * (var[j](a) + eps) ** -0.5",
    fused=True,
    derivative=("rsqrt(var[j](a) + eps) * (g - mean[j](g) - y * mean[j](g * y))",),
)

PREVIOUS = replace(
    _shift("previous", "before", "first", "a[t-1]", "following", "0"),
    example=Example.of("y[t] = previous[t](a[t], 9)", a=(1.0, 2.0, 3.0)),
)
FOLLOWING = replace(
    _shift("following", "after", "last", "a[t+1]", "previous", "n - 1"),
    example=Example.of("y[t] = following[t](a[t])", a=(1.0, 2.0, 3.0)),
)

STEPS = {-1: PREVIOUS.name, 1: FOLLOWING.name}
"""The functions that form recurrences, by their offset in positions."""

CUMSUM = _running(
    "cumsum",
    "Σ of the elements up to each position; from the end with back=1",
    moments=lambda known: Moments(known.operands[0].mean, known.count * known.operands[0].square),
    derivative=("cumsum[j](g, back=1 - back)",),
)

_KEEPING = (
    _real(
        "softmax",
        "eᵃ / Σ eᵃ",
        moments=_of_one_chosen,
        passes=(4.5, 5.0),
        sums_to_one=True,
        derivative=("y * (g - sum[j](g * y))",),
    ),
    _real("log_softmax", "a − log Σ eᵃ", passes=(4.5, 5.5), derivative=("g - exp(y) * sum[j](g)",)),
    _number("hardmax", "1 at the first largest element, 0 elsewhere", passes=(6.0, 9.0)),
    _average("average_hardmax", "largest", "max"),
    _average("average_hardmin", "smallest", "min"),
    NORMALIZE,
    Function(
        "batch_norm",
        "(a − mean) / √(variance + eps) · gain + bias",
        "kept",
        arity=(1, 3),
        options=(("eps", 1e-5),),
        yields="real",
        complex="refused",
        computes=(
            *(
                KernelEquation(f"y[a,k] = {text}", axes=("a",), needs=("outermost",), fits=_is_outermost)
                for text in (
                    "normalize[a](x[a,k], eps) * gain[k] + bias[k]",
                    "normalize[a](x[a,k], eps) * gain[a] + bias[a]",
                    "normalize[a](x[a,k], eps)",
                )
            ),
            KernelEquation(
                "y[a,k] = normalize[a](x[a,k], eps) * gain[a,k] + bias[a,k]",
                partial=("gain", "bias"),
                axes=("a",),
                needs=("several",),
                fits=_has_groups,
            ),
        ),
        lowered=_lower_batch_norm,
        spelled=_spell_batch_norm,
    ),
    RECUR,
    PREVIOUS,
    FOLLOWING,
    CUMSUM,
    _running(
        "cumprod",
        "Π of the elements up to each position; from the end with back=1",
        derivative=("recur[j](a, 0, start=1, back=back) * (g + recur[j](a, a * g, back=1 - back))",),
    ),
)

# ---------------------------------------------------------------------------- reductions


def _of_product(known: Known) -> Moments:
    (one,) = known.operands
    return Moments(one.mean**known.count, one.square**known.count)


OF_OTHERS = "g * recur[j](a, 0, start=1) * recur[j](a, 0, start=1, back=1)"
"""The derivative of a product: the product of the elements before times that of the elements after. A division
would prevent higher derivatives where an element is 0."""

SUM = Function("sum", "Σ a", "removed")
"""A sum is read as a contraction, so it is no row of the table; users see it as a function like others."""

_removed = functools.partial(Function, axes="removed")
_reduced = functools.partial(_removed, yields="real")
_spread = functools.partial(_reduced, complex="measured")


def _extreme(name: str, formula: str, sign: int) -> Function:
    """The record of `max` or `min`. Equal elements share the gradient."""
    return _removed(
        name,
        formula,
        needs_position=True,
        yields="same",
        complex="refused",
        derivative=(f"g * average_hard{name}[j](a)",),
        moments=lambda known: extreme(known.operands[0], known.count, sign),
        passes=(1.5, 1.5),
    )


def _positions(name: str, formula: str, axes: Axes, passes: float, *, least: bool = True) -> Function:
    """The record of a function that returns positions along one axis.

    Args:
        name, formula, axes, passes: those of the record; the passes hold for any axis.
        least: whether there must be at least one position.
    """
    return Function(
        name,
        formula,
        axes,
        ordered=True,
        needs_position=least,
        yields="position",
        complex="refused",
        derivative=("0",),
        passes=(passes, passes),
    )


MAX = replace(_extreme("max", "largest element", 1), twin="maximum", pools="max_pool")

VAR = _spread(
    "var",
    "biased variance",
    expansion="mean[j]((a - mean[j](a)) ** 2)",
    derivative=("2 / n * g * (a - mean[j](a))",),
    passes=(5.5, 5.0),
)

_REMOVING = (
    _reduced(
        "mean",
        "arithmetic mean",
        averages=True,
        pools="mean_pool",
        expansion="sum[j](a) / n",
        derivative=("g / n",),
        passes=(1.5, 1.5),
    ),
    VAR,
    _spread(
        "std",
        "biased standard deviation",
        expansion="var[j](a) ** 0.5",
        derivative=("g / n * (a - mean[j](a)) / where(y == 0, 1, y)",),
        passes=(5.5, 5.0),
    ),
    _spread(
        "norm",
        "√Σ a²",
        expansion="sum[j](a ** 2) ** 0.5",
        derivative=("g * a / where(y == 0, 1, y)",),
        passes=(2.5, 5.5),
    ),
    MAX,
    replace(_extreme("min", "smallest element", -1), twin="minimum"),
    _removed(
        "prod",
        "product of the elements",
        one_by_one=True,
        yields="same",
        derivative=(OF_OTHERS,),
        moments=_of_product,
        passes=(9.0, 4.0),
    ),
    _reduced(
        "logsumexp", "log Σ eᵃ", derivative=("g * exp(a - where(abs(y) == inf, 0, y))",), passes=(14.0, 11.0)
    ),
    _positions("argmax", "position of the largest element, the first of several", "removed", 6.0),
    _positions("argmin", "position of the smallest element, the first of several", "removed", 6.0),
    _positions("argsort", "positions of the elements, the smallest first", "kept", 200.0, least=False),
    replace(
        _positions(
            "top", "positions along j of the largest elements, the largest first, along k", "exchanged", 30.0
        ),
        example=Example.of("y[k] = top[j,k](a[j])", a=(1.0, 4.0, 2.0, 3.0), k=2),
    ),
)

ROWS = (*_KEEPING, *_REMOVING)
