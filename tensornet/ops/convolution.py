"""Convolution and window kernels: products over affine indices `first + by·p + apart·u`.

A convolution relates an operand with axis `i`, a kernel with `u` and a result with `p`. Each is computed from the other
two: the result in the forward pass, the gradients of the operand and of the kernel in the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from ..nodes import Call, Expression, Ref
from .protocols import Left, Lowering, Value, Writer, extent, layout_of, left_of, sizes_of
from .record import Element, Function

__all__ = ["Axes", "CONVOLUTION", "DIMENSIONS", "ROWS", "Window", "as_they_lie", "windows_of"]

DIMENSIONS = 3
"""The most dimensions of convolutions and pools in libraries."""

Axes = tuple[str, ...]


@dataclass(frozen=True)
class Window:
    """One dimension: the axes `at` of the operand, `outer` of the result, `inner` of the kernel, and their relation.

    The operand is read at `first + by·outer + apart·inner`. A kernel of one element has no axis: `inner` is empty.
    """

    at: str
    outer: str
    inner: str
    by: int
    apart: int
    first: int

    @property
    def turned(self) -> Window:
        """The same positions with the outer and the inner axis swapped."""
        return replace(self, outer=self.inner, inner=self.outer, by=self.apart, apart=self.by)


def windows_of(ones: Sequence[Expression], asked: Lowering | Writer) -> tuple[Window, ...]:
    """The dimensions that some one-hot calls describe."""
    found = []
    for each in cast("Sequence[Call]", ones):
        (outer, by), (inner, apart), first = asked.reached(each.arguments[0])
        found.append(Window(each.axes[0], outer, inner, by, apart, first))
    return tuple(found)


def as_they_lie(ones: Sequence[Call], value: Value, asked: Lowering) -> tuple[Call, ...]:
    """One-hot calls in the order in memory of their dimensions."""

    def place(each: Call) -> int:
        ((outer, _), _, _), axes = asked.reached(each.arguments[0]), value.layout
        return axes.index(outer if outer in axes else each.axes[0])

    return tuple(sorted(ones, key=place))


@dataclass(frozen=True)
class _Form:
    """Which of the three tensors of a convolution is computed from the other two, and their axes.

    Attributes:
        made: the tensor that is computed: "" for the result, "x" for the operand, "k" for the kernel.
        batch, groups, channels, out: the axes of operand and result, of all three, of operand and kernel, of kernel
            and result.
        windows: the dimensions.
    """

    made: str
    batch: Axes
    groups: Axes
    channels: Axes
    out: Axes
    windows: tuple[Window, ...]

    @staticmethod
    def of(one: Axes, other: Axes, windows: tuple[Window, ...], summed: Sequence[str]) -> _Form:
        """Derives the form from the axes of two tensors, whichever axis of a window the text names first."""
        moving = {axis for each in windows for axis in (each.at, each.outer, each.inner)}
        shared = [axis for axis in one if axis in other]
        kept = tuple(axis for axis in shared if axis not in summed)
        gone = tuple(axis for axis in shared if axis in summed)
        first = tuple(axis for axis in one if axis not in shared and axis not in moving)
        second = tuple(axis for axis in other if axis not in shared and axis not in moving)
        if windows[0].at not in one:
            return _Form("x", first, kept, second, gone, windows)
        if all(each.outer in other for each in windows):
            return _Form("k", gone, kept, first, second, windows)
        facing = tuple(each.turned if each.outer in other else each for each in windows)
        return _Form("", first, kept, gone, second, facing)

    @property
    def operand(self) -> list[Axes]:
        """The dimensions of the operand."""
        return [self.batch, (*self.groups, *self.channels), *((each.at,) for each in self.windows)]

    @property
    def kernel(self) -> list[Axes]:
        """The dimensions of the kernel."""
        inner = ((each.inner,) if each.inner else () for each in self.windows)
        return [(*self.groups, *self.out), self.channels, *inner]

    @property
    def result(self) -> list[Axes]:
        """The dimensions of the result."""
        return [self.batch, (*self.groups, *self.out), *((each.outer,) for each in self.windows)]

    @property
    def given(self) -> tuple[list[Axes], list[Axes]]:
        """The dimensions of the two given tensors."""
        match self.made:
            case "x":
                return self.result, self.kernel
            case "k":
                return self.operand, self.result
        return self.operand, self.kernel

    @property
    def wanted(self) -> list[Axes]:
        """The dimensions of the computed tensor."""
        return {"x": self.operand, "k": self.kernel}.get(self.made, self.result)


def _lower(lowering: Lowering, call: Call) -> Value:
    """Lowers a convolution: each operand has a batch dimension, one of groups and channels, and one per window."""
    first, second, *told = call.arguments
    ones = cast("tuple[Call, ...]", told)
    if ones:
        value = lowering.lower(first)
    else:
        value, ones = lowering.in_windows(cast("Ref", first), bare=True)
    values = [lowering.convert(each, Element.NUMBER) for each in (value, lowering.lower(second))]
    ones = as_they_lie(ones, values[0], lowering)
    form = _Form.of(values[0].layout, values[1].layout, windows_of(ones, lowering), call.axes)
    one, other = (lowering.grouped(each, groups) for each, groups in zip(values, form.given, strict=True))
    sizes = sizes_of((one, other))
    sizes |= {axis: lowering.size(axis) for group in form.wanted for axis in group if axis not in sizes}
    left = left_of(form.wanted)
    reached = [each.at for each in form.windows] if form.made != "x" else []
    made = replace(call, arguments=(one.ref, other.ref, *ones), axes=(*call.axes, *reached))
    inner, outer = (
        tuple(each.inner for each in form.windows if each.inner),
        tuple(each.outer for each in form.windows),
    )
    for axis in (*inner, *outer):
        sizes.setdefault(axis, lowering.size(axis))
    seconds = lowering.profile.convolution(
        lowering.count(sizes, form.groups),
        lowering.count(sizes, form.out),
        lowering.count(sizes, (*form.batch, *outer)),
        lowering.count(sizes, form.channels),
        lowering.count(sizes, inner),
        lowering.itemsize,
    )
    flops = 2 * extent(sizes, (*form.batch, *form.groups, *form.out, *form.channels, *inner, *outer))
    return lowering.emit(left, made, [one, other], sizes, Element.NUMBER, seconds=seconds, flops=flops)


def _spell(writer: Writer, call: Call, left: Left) -> str:
    """The call with two tensors, the number of groups, and by, apart, first and the computed size per dimension."""
    one, other, *ones = call.arguments
    refs = cast("tuple[Ref, Ref]", (one, other))
    form = _Form.of(layout_of(refs[0]), layout_of(refs[1]), windows_of(ones, writer), call.axes)
    texts = [writer.view(ref, groups, ones=True) for ref, groups in zip(refs, form.given, strict=True)]
    dimensions = [
        f"({each.by}, {each.apart}, {each.first}, {writer.extent(group)}),"
        for each, group in zip(form.windows, form.wanted[2:], strict=True)
    ]
    name = f"{call.function}_{form.made}" if form.made else call.function
    text = writer.op(name, *texts, groups=writer.extent(form.groups), windows=f"({' '.join(dimensions)})")
    return text if all(form.wanted) else writer.reshaped(text, left)


CONVOLUTION = Function(
    "convolution",
    "Σ a·b, where positions in one are sums of those in the other and in the result",
    "removed",
    arity=(2, 2 + DIMENSIONS),
    yields="number",
    placed=True,
    lowered=_lower,
    spelled=_spell,
)

ROWS = (CONVOLUTION,)
