"""Pooling kernels: reductions over windows, `max[u](x[b,2*p+u])`."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from ..nodes import Call, Ref
from .convolution import DIMENSIONS, Axes, Window, as_they_lie, windows_of
from .protocols import Left, Lowering, Value, Writer, layout_of, left_of
from .record import Element, Function

__all__ = ["ROWS"]


def _groups(layout: Axes, windows: tuple[Window, ...]) -> list[Axes]:
    """The dimensions of an operand: one for all axes without a window, and one for each window."""
    places = [each.at for each in windows]
    return [tuple(axis for axis in layout if axis not in places), *((axis,) for axis in places)]


def _lower(lowering: Lowering, call: Call) -> Value:
    """Lowers a pool: the operand has one dimension for all axes without a window, and one for each window."""
    value, ones = lowering.in_windows(cast("Ref", call.arguments[0]), bare=False)
    value = lowering.convert(value, Element.NUMBER)
    ones = as_they_lie(ones, value, lowering)
    windows = windows_of(ones, lowering)
    rest, *_ = groups = _groups(value.layout, windows)
    value = lowering.grouped(value, groups)
    outer, inner = ([getattr(each, name) for each in windows] for name in ("outer", "inner"))
    sizes = {**value.sizes, **{axis: lowering.size(axis) for axis in (*outer, *inner)}}
    left = left_of((rest, *((axis,) for axis in outer)))
    written = lowering.itemsize * lowering.count(sizes, (*rest, *outer))
    seconds = lowering.profile.pointwise(written * (1.0 + lowering.count(sizes, inner)), written)
    right = replace(call, arguments=(value.ref, *ones), axes=(*call.axes, *(each.at for each in windows)))
    return lowering.emit(left, right, [value], sizes, Element.NUMBER, seconds=seconds)


def _spell(writer: Writer, call: Call, left: Left) -> str:
    """The call with a tensor, and by, apart, first, result size and number of window elements per dimension."""
    ref, *ones = call.arguments
    windows = windows_of(ones, writer)
    groups = _groups(layout_of(cast("Ref", ref)), windows)
    text = writer.view(cast("Ref", ref), groups, ones=True)
    dimensions = [
        f"({each.by}, {each.apart}, {each.first}, {writer.extent((each.outer,))}, {writer.extent((each.inner,))}),"
        for each in windows
    ]
    text = writer.op(call.function, text, windows=f"({' '.join(dimensions)})")
    return text if all(groups) else writer.reshaped(text, left)


def _row(name: str, formula: str) -> Function:
    return Function(
        name,
        formula,
        "removed",
        arity=(1, 1 + DIMENSIONS),
        yields="number",
        complex="refused",
        placed=True,
        lowered=_lower,
        spelled=_spell,
    )


ROWS = (
    _row("max_pool", "the largest element of each window"),
    _row("mean_pool", "the arithmetic mean of each window"),
)
