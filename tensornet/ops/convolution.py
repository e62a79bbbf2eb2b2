"""Convolution and pooling kernels: products and reductions over affine indices `first + by·p + apart·u`.

A convolution relates an operand with axis `i`, a kernel with `u` and a result with `p`. Each is computed from the other
two: the result in the forward pass, the gradients of the operand and of the kernel in the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

from ..syntax import Call, Expression, Ref
from .record import (
    Element,
    Function,
    Left,
    Lowering,
    Value,
    Writer,
    common,
    extent,
    left_of,
    placed_kernel,
    sizes_of,
)

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


def _windows_of(ones: Sequence[Expression], asked: Lowering | Writer) -> tuple[Window, ...]:
    """The dimensions that some one-hot calls describe."""
    found = []
    for each in cast("Sequence[Call]", ones):
        (outer, by), (inner, apart), first = asked.reached(each.arguments[0])
        found.append(Window(each.axes[0], outer, inner, by, apart, first))
    return tuple(found)


def _as_they_lie(ones: Sequence[Expression], value: Value, asked: Lowering) -> tuple[Call, ...]:
    """One-hot calls in the order in memory of their dimensions."""

    def place(each: Call) -> int:
        ((outer, _), _, _), axes = asked.reached(each.arguments[0]), value.layout
        return axes.index(outer if outer in axes else each.axes[0])

    return tuple(sorted(cast("Sequence[Call]", ones), key=place))


class _Form(NamedTuple):
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
    def of(one: Axes, other: Axes, windows: tuple[Window, ...], summed: Axes) -> _Form:
        """Derives the form from the axes of two tensors, whichever axis of a window the text names first."""
        moving = {axis for each in windows for axis in (each.at, each.outer, each.inner)}
        kept, gone = common(one, other, but=(summed,)), common(one, other, summed)
        first, second = common(one, but=(other, moving)), common(other, but=(one, moving))
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
    def tensors(self) -> tuple[list[Axes], list[Axes], list[Axes]]:
        """The dimensions of the two given tensors, and of the one that is computed."""
        match self.made:
            case "x":
                return self.result, self.kernel, self.operand
            case "k":
                return self.operand, self.result, self.kernel
        return self.operand, self.kernel, self.result


def _lower(lowering: Lowering, call: Call) -> Value:
    """Lowers a convolution: each operand has a batch dimension, one of groups and channels, and one per window."""
    values = [lowering.convert(lowering.lower(each), Element.NUMBER) for each in call.arguments[:2]]
    ones = _as_they_lie(call.arguments[2:], values[0], lowering)
    form = _Form.of(values[0].layout, values[1].layout, _windows_of(ones, lowering), call.axes)
    *given, made = form.tensors
    one, other = (lowering.grouped(*each) for each in zip(values, given, strict=True))
    right = replace(call, arguments=(one.ref, other.ref, *ones))
    inner = [each.inner for each in form.windows if each.inner]
    outer = [each.outer for each in form.windows]
    _, batch, groups, channels, out, _ = form
    seconds = lowering.profile.convolution(
        lowering.count(groups),
        lowering.count(out),
        lowering.count(batch, outer),
        lowering.count(channels),
        lowering.count(inner),
        lowering.itemsize,
    )
    axes = (*batch, *groups, *out, *channels, *inner, *outer)
    sizes = {axis: lowering.size(axis) for axis in axes} | sizes_of((one, other))
    return lowering.emit(
        left_of(made), right, [one, other], Element.NUMBER, seconds=seconds, flops=2 * extent(sizes, axes)
    )


def _spell(writer: Writer, call: Call, left: Left) -> str:
    """The call with two tensors, the number of groups, and by, apart, first and the computed size per dimension."""
    refs, ones = _parts(call)
    form = _Form.of(refs[0].layout, refs[1].layout, _windows_of(ones, writer), call.axes)
    *given, made = form.tensors
    texts = [writer.view(*each, ones=True) for each in zip(refs, (*given, made[1:2]), strict=False)]
    dimensions = [
        f"({each.by}, {each.apart}, {each.first}, {writer.extent(group)}),"
        for each, group in zip(form.windows, made[2:], strict=True)
    ]
    suffix = "bias" if len(refs) > len(given) else form.made
    name = f"{call.function}_{suffix}" if suffix else call.function
    text = writer.op(name, *texts, groups=writer.extent(form.groups), windows=f"({' '.join(dimensions)})")
    return text if all(made) else writer.reshaped(text, left)


def with_bias(lowering: Lowering, call: Call, bias: Value) -> Call | None:
    """A convolution with a bias of the channels of its result, if it has none and nothing but these."""
    (one, other, *more), ones = _parts(call)
    form = _Form.of(one.layout, other.layout, _windows_of(ones, lowering), call.axes)
    takes = not form.made and not more and bias.layout == (*form.groups, *form.out)
    return replace(call, arguments=(one, other, bias.ref, *ones)) if takes else None


def _parts(call: Call) -> tuple[list[Ref], list[Expression]]:
    """The tensors of a step, with a bias last if there is one, and the one-hot calls."""
    refs = [each for each in call.arguments if isinstance(each, Ref)]
    return refs, [*call.arguments[len(refs) :]]


# ---------------------------------------------------------------------------- pooling


def _pool_groups(layout: Axes, windows: tuple[Window, ...]) -> list[Axes]:
    """The dimensions of an operand: one for all axes without a window, and one for each window."""
    places = [each.at for each in windows]
    return [common(layout, but=(places,)), *((axis,) for axis in places)]


def _lower_pool(lowering: Lowering, call: Call) -> Value:
    """Lowers a pool, the maximum or mean over `max[u](x[b,2*p+u])`."""
    value = lowering.convert(lowering.lower(call.arguments[0]), Element.NUMBER)
    ones = _as_they_lie(call.arguments[1:], value, lowering)
    windows = _windows_of(ones, lowering)
    rest, *_ = groups = _pool_groups(value.layout, windows)
    value = lowering.grouped(value, groups)
    outer, inner = ([getattr(each, name) for each in windows] for name in ("outer", "inner"))
    written = lowering.itemsize * lowering.count(rest, outer)
    seconds = lowering.profile.pointwise(written * (1.0 + lowering.count(inner)), written)
    right = replace(call, arguments=(value.ref, *ones))
    left = left_of((rest, *((axis,) for axis in outer)))
    return lowering.emit(left, right, [value], Element.NUMBER, seconds=seconds)


def _spell_pool(writer: Writer, call: Call, left: Left) -> str:
    """The call with a tensor, and by, apart, first, result size and number of window elements per dimension."""
    ref, *ones = call.arguments
    windows = _windows_of(ones, writer)
    groups = _pool_groups(cast("Ref", ref).layout, windows)
    text = writer.view(cast("Ref", ref), groups, ones=True)
    dimensions = [
        f"({each.by}, {each.apart}, {each.first}, {writer.extent((each.outer,))}, {writer.extent((each.inner,))}),"
        for each in windows
    ]
    text = writer.op(call.function, text, windows=f"({' '.join(dimensions)})")
    return text if all(groups) else writer.reshaped(text, left)


def _pool(name: str, formula: str) -> Function:
    return placed_kernel(
        name, formula, arity=(1, 1 + DIMENSIONS), complex="refused", lowered=_lower_pool, spelled=_spell_pool
    )


CONVOLUTION = placed_kernel(
    "convolution",
    "Σ a·b, where positions in one are sums of those in the other and in the result",
    arity=(2, 3 + DIMENSIONS),
    lowered=_lower,
    spelled=_spell,
)

ROWS = (
    CONVOLUTION,
    _pool("max_pool", "the largest element of each window"),
    _pool("mean_pool", "the arithmetic mean of each window"),
)
