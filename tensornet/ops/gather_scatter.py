"""Scatter-add and grouped GEMM kernels: rows added at positions, or multiplied by matrices that positions select.

Rows at even distances, `x[2*p+1] += y[p]`, need no addition: they are copied, with zeros between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import cast

from ..syntax import Call, Expression, Ref
from .record import (
    Element,
    Left,
    Lowering,
    Value,
    Writer,
    axes_in,
    common,
    extent,
    left_of,
    names_in,
    numeric,
    placed_kernel,
    roles,
    sizes_of,
)
from .structure import INSIDE, is_inside

COUNT = "scatter_count"
"""The template name of a scatter-add without rows, which counts positions."""


SPACED = "spaced"
"""The function that writes rows at even distances, each to its own position."""


def _lower(lowering: Lowering, call: Call) -> Value:
    """Lowers a scatter-add: positions as batch and summed axes; rows, if any, as batch, summed axes and channels.

    Without a batch, channels that lie before the summed axes stay there.
    """
    told, places, *added = call.arguments
    (axis,) = cast("Call", places).axes
    rows = [lowering.convert(lowering.lower(each), Element.NUMBER) for each in added]
    if len(rows) == 1 and lowering.is_even(told, call.axes) and call.axes[0] in rows[0].layout:
        return _spaced(lowering, call, rows[0])
    positions = lowering.lower(told)
    lying = dict.fromkeys(name for each in (*rows, positions) for name in each.layout)
    lead, channels = common(lying, positions.layout), common(lying, but=(positions.layout,))
    batch, summed = common(lead, but=(call.axes,)), common(lead, call.axes)
    before = () if batch or not rows else _before(rows[0].layout, summed)
    groups = (*batch, *before), summed, common(channels, but=(before,))
    positions, *rows = (lowering.grouped(each, groups) for each in (positions, *rows))
    written = lowering.itemsize * lowering.count(batch, (axis,), channels)
    read = lowering.itemsize * lowering.count(lead, channels) * len(rows)
    right = replace(call, arguments=(positions.ref, places, *(each.ref for each in rows)), axes=summed)
    seconds = lowering.profile.scatter(2.0 * (read + written), written, lowering.count(lead))
    left = left_of((groups[0], (axis,), groups[2]))
    return lowering.emit(left, right, [positions, *rows], Element.NUMBER, seconds=seconds)


def _before(layout: Sequence[str], summed: Sequence[str]) -> tuple[str, ...]:
    """The axes of rows before those that are summed, if these lie side by side."""
    first = min((n for n, axis in enumerate(layout) if axis in summed), default=0)
    together = set(layout[first : first + len(summed)]) == set(summed)
    return tuple(layout[:first]) if together else ()


def _spaced(lowering: Lowering, call: Call, rows: Value) -> Value:
    """Rows in their own layout; the axis that they are written along replaces the axis of the positions."""
    told, places, _ = call.arguments
    (axis,), (outer,) = cast("Call", places).axes, call.axes
    left = tuple(axis if each == outer else each for each in rows.layout)
    right = replace(call, function=SPACED, arguments=(told, places, rows.ref))
    read, written = (lowering.itemsize * lowering.count(axes) for axes in (rows.layout, left))
    seconds = lowering.profile.pointwise(read + written, written)
    return lowering.emit(left, right, [rows], Element.NUMBER, seconds=seconds)


def _spell(writer: Writer, call: Call, left: Left) -> str:
    """The call with positions and rows, which have a dimension for each of batch, summed axes and channels, if any."""
    where, places, *added = call.arguments
    where = cast("Ref", where)
    (axis,) = cast("Call", places).axes
    at = left.index(axis)
    lead, channels = ([names_in(entry) for entry in part] for part in (left[:at], left[at + 1 :]))
    batch = [group for group in lead if common(group, where.layout)]
    positions = writer.view(where, [*batch, call.axes])
    if is_inside(call):
        positions = writer.looked(positions, where.name, axis)
    told = {"size": writer.extent((axis,)), "inside": ", inside=True" if is_inside(call) else ""}
    if not added:
        return writer.op(COUNT, positions, **told)
    rows = writer.broadcast(cast("Ref", added[0]), [*lead, call.axes, *channels])
    return writer.op(call.function, positions, rows, axis=str(len(lead) - len(batch)), **told)


def _spell_spaced(writer: Writer, call: Call, left: Left) -> str:
    """The call with rows that have one dimension per axis."""
    told, places, rows = call.arguments
    (axis,) = cast("Call", places).axes
    (_, by), _, first = writer.reached(told)
    groups = [call.axes if each == axis else names_in(each) for each in left]
    where = {"axis": str(left.index(axis)), "first": str(first), "by": str(by)}
    return writer.op(SPACED, writer.view(cast("Ref", rows), groups), size=writer.extent((axis,)), **where)


CALLS = 4
"""The number of small operations for each group besides its product."""

Axes = tuple[str, ...]


MATMUL = "ba brs so"
"""Positions, rows and matrices: `b` are the axes of positions and rows, `a` of positions alone, `r` of rows alone, `o`
of the columns of the result, and `s` are summed."""


def _lower_matmul(lowering: Lowering, call: Call) -> Value:
    """Lowers a grouped product: rows with dimensions for axes of positions, own axes and summed axes; matrices."""
    rows, matrices = cast("tuple[Expression, Ref]", call.arguments)
    (entry,) = [cast("Expression", each) for each in matrices.index if not isinstance(each, str)]
    which = lowering.new_axis()
    plain = replace(matrices, index=tuple(which if each is entry else each for each in matrices.index))
    x, told, w = (lowering.lower(each) for each in (rows, entry, plain))
    x, w = numeric(lowering, [x, w])
    inner = common(w.layout, but=((which,),))
    both, alone, own, summed, out = roles(MATMUL, (told.layout, x.layout, inner)).values()
    told = lowering.grouped(told, (both, alone))
    x = lowering.grouped(x, (both, own, summed))
    if not lowering.offers(w, ((which,), summed, out)):  # matrices may be transposed in memory
        w = lowering.grouped(w, ((which,), out, summed))
    lines, read, made = lowering.count(both, alone, own), lowering.count(summed), lowering.count(out)
    size, groups = lowering.itemsize, lowering.number(w.sizes[which])
    seconds = _seconds(lowering, groups, lines, lambda rows: (rows, made, read))
    seconds += lowering.profile.pointwise(2.0 * size * lines * (read + made), size * lines * made)
    flops = 2 * extent(sizes_of((told, x, w)), (*both, *alone, *own, *out, *summed))
    left = left_of((both, alone, own, out))
    right = replace(call, arguments=(x.ref, told.ref, w.ref))
    return lowering.emit(left, right, [x, told, w], x.element, seconds=seconds, flops=flops)


def _seconds(
    lowering: Lowering, groups: int, rows: int, product: Callable[[float], tuple[float, float, float]]
) -> float:
    """The time of one product per group, each of the average number of rows, and of sorting rows into groups."""
    groups, profile = max(1, min(groups, rows)), lowering.profile
    each = profile.matmul(1.0, *product(max(1.0, rows / groups)), lowering.itemsize)
    apart = profile.scatter(8.0 * rows, 8.0 * rows, float(rows))
    return float(groups * (each + CALLS * profile.pointwise(0.0, 0.0)) + apart)


def _spell_matmul(writer: Writer, call: Call, left: Left) -> str:
    """The call with rows, positions and matrices, in the dimensions that the backend's function requires."""
    x, told, w = cast("tuple[Ref, ...]", call.arguments)
    inner = tuple(axis for axis in w.layout if axis in call.axes or axis in axes_in(left))
    (which,) = common(w.layout, but=(inner,))
    both, alone, own, summed, out = roles(MATMUL, (told.layout, x.layout, inner)).values()
    positions = writer.looked(writer.view(told, (both, alone), ones=True), told.name, which)
    rows = writer.view(x, (both, own, summed), ones=True)
    matrices = writer.view(w, ((which,), out, summed), ones=True)
    return writer.reshaped(writer.op(call.function, rows, positions, matrices), left)


def _in_matmul(call: Call, left: Sequence[str]) -> Iterator[Sequence[str]]:
    """The axes of the working memory: rows sorted by their matrices, and their products in that order."""
    x, told, _ = call.arguments
    yield _axes_of(told, x)
    yield left


# ---------------------------------------------------------------------------- products within each group


def _outer_groups(told: Axes, a: Axes, b: Axes) -> tuple[Axes, ...]:
    """The axes of products summed over rows, in order: of positions and both factors, other axes of positions,
    of both factors without positions, of the first factor alone, and of the second alone."""
    both = common(told, a, b)
    own, first, second = common(a, b, but=(told,)), common(a, but=(b, told)), common(b, but=(a, told))
    return both, common(told, but=(both,)), own, first, second


def _lower_outer(lowering: Lowering, call: Call) -> Value:
    """Lowers a grouped outer product: positions and both factors, each with its own dimensions."""
    entry, places, *factors = call.arguments
    axes = cast("Call", places).axes
    told, *values = (lowering.lower(each) for each in (entry, *factors))
    a, b = numeric(lowering, values)
    both, rest, own, first, second = _outer_groups(told.layout, a.layout, b.layout)
    told = lowering.grouped(told, (both, rest))
    a, b = lowering.grouped(a, (both, rest, own, first)), lowering.grouped(b, (both, rest, own, second))
    lines, rows, columns = lowering.count(both, rest, own), lowering.count(first), lowering.count(second)
    seconds = _seconds(lowering, lowering.count(axes), lines, lambda inner: (rows, columns, inner))
    seconds += lowering.profile.pointwise(2.0 * lowering.itemsize * lines * (rows + columns), 0.0)
    flops = 2 * extent(sizes_of((told, a, b)), (*both, *rest, *own, *first, *second))
    left = left_of((axes, first, second))
    right = replace(call, arguments=(told.ref, places, a.ref, b.ref))
    return lowering.emit(left, right, [told, a, b], a.element, seconds=seconds, flops=flops)


def _spell_outer(writer: Writer, call: Call, left: Left) -> str:
    told, places, a, b = call.arguments
    told, a, b = cast("tuple[Ref, Ref, Ref]", (told, a, b))
    (which,) = cast("Call", places).axes
    both, rest, own, first, second = _outer_groups(*(each.layout for each in (told, a, b)))
    positions = writer.view(told, (both, rest), ones=True)
    if is_inside(call):
        positions = writer.looked(positions, told.name, which)
    one = writer.broadcast(a, (both, rest, own, first))
    other = writer.broadcast(b, (both, rest, own, second))
    text = writer.op(call.function, positions, one, other, size=writer.extent((which,)))
    return writer.reshaped(text, left)


def _in_outer(call: Call, left: Sequence[str]) -> Iterator[Sequence[str]]:
    """The axes of the working memory: both factors sorted by their positions."""
    told, _, a, b = call.arguments
    yield _axes_of(told, a)
    yield _axes_of(told, b)


def _axes_of(*operands: Expression) -> tuple[str, ...]:
    """The axes of some tensors without repetition."""
    return tuple(dict.fromkeys(axis for each in operands for axis in cast("Ref", each).layout))


GROUPED_MATMUL = placed_kernel(
    "grouped_matmul",
    "Σ a·b, where b is the matrix that a position tells of each row",
    arity=(2, 3),
    yields="real",
    works_in=_in_matmul,
    lowered=_lower_matmul,
    spelled=_spell_matmul,
)

GROUPED_OUTER = placed_kernel(
    "grouped_outer",
    "Σ a·b where the positions told are those of an axis",
    arity=(4, 4),
    options=((INSIDE, 0),),
    works_in=_in_outer,
    lowered=_lower_outer,
    spelled=_spell_outer,
)

ROWS = (
    placed_kernel(
        "scatter_add",
        "Σ a where the positions told are those of an axis",
        arity=(2, 3),
        options=((INSIDE, 0),),
        lowered=_lower,
        spelled=_spell,
    ),
    placed_kernel(
        SPACED,
        "a at positions of an axis at even distances, 0 elsewhere",
        arity=(3, 3),
        spelled=_spell_spaced,
    ),
    GROUPED_MATMUL,
    GROUPED_OUTER,
)
