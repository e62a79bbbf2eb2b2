"""Scatter-add and grouped GEMM kernels: rows added at positions, or multiplied by matrices that positions select.

Rows at even distances, `x[2*p+1] += y[p]`, need no addition: they are copied, with zeros between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

from ..nodes import Call, Expression, Ref
from .protocols import Left, Lowering, Value, Writer, axes_in, extent, layout_of, left_of, names_in, sizes_of
from .record import Element, Function
from .structure import INSIDE, is_inside

__all__ = ["GROUPED_MATMUL", "GROUPED_OUTER", "ROWS"]

COUNT = "scatter_count"
"""The template name of a scatter-add without rows, which counts positions."""


SPACED = "spaced"
"""The function that writes rows at even distances, each to its own position."""


def _lower(lowering: Lowering, call: Call) -> Value:
    """Lowers a scatter-add: positions as batch and summed axes; rows, if any, as batch, summed axes and channels."""
    told, places, *added = call.arguments
    (axis,) = cast("Call", places).axes
    rows = [lowering.convert(lowering.lower(each), Element.NUMBER) for each in added]
    if len(rows) == 1 and lowering.is_even(told, call.axes) and call.axes[0] in rows[0].layout:
        return _spaced(lowering, call, rows[0])
    positions = lowering.lower(told)
    lying = dict.fromkeys(name for each in (*rows, positions) for name in each.layout)
    lead = tuple(name for name in lying if name in positions.layout)
    batch = tuple(name for name in lead if name not in call.axes)
    summed = tuple(name for name in lead if name in call.axes)
    channels = tuple(name for name in lying if name not in lead)
    positions = lowering.grouped(positions, (batch, summed))
    rows = [
        lowering.grouped(
            each,
            [tuple(name for name in group if name in each.layout) for group in (batch, summed, channels)],
        )
        for each in rows
    ]
    sizes = sizes_of((positions, *rows))
    sizes[axis] = lowering.size(axis)
    count, itemsize = lowering.count(sizes, lead), lowering.itemsize
    written = itemsize * lowering.count(sizes, (*batch, axis, *channels))
    read = itemsize * lowering.count(sizes, (*lead, *channels)) * len(rows)
    left = left_of((batch, (axis,), channels))
    arguments = (positions.ref, places, *(each.ref for each in rows))
    seconds = lowering.profile.scatter(2.0 * (read + written), written, count)
    return lowering.emit(
        left,
        replace(call, arguments=arguments, axes=summed),
        [positions, *rows],
        sizes,
        Element.NUMBER,
        seconds=seconds,
    )


def _spaced(lowering: Lowering, call: Call, rows: Value) -> Value:
    """Rows in their own layout; the axis that they are written along replaces the axis of the positions."""
    told, places, _ = call.arguments
    (axis,), (outer,) = cast("Call", places).axes, call.axes
    left = tuple(axis if each == outer else each for each in rows.layout)
    sizes = {**rows.sizes, axis: lowering.size(axis)}
    written = lowering.itemsize * lowering.count(sizes, left)
    read = lowering.itemsize * lowering.count(rows.sizes, rows.layout)
    return lowering.emit(
        left,
        replace(call, function=SPACED, arguments=(told, places, rows.ref)),
        [rows],
        sizes,
        Element.NUMBER,
        seconds=lowering.profile.pointwise(read + written, written),
    )


def _spell(writer: Writer, call: Call, left: Left) -> str:
    """The call with positions and rows, which have a dimension for each of batch, summed axes and channels, if any."""
    told, places, *added = call.arguments
    told = cast("Ref", told)
    (axis,) = cast("Call", places).axes
    at = left.index(axis)
    batch, channels = ([names_in(entry) for entry in part] for part in (left[:at], left[at + 1 :]))
    positions = writer.view(told, [*batch, call.axes])
    if is_inside(call):
        positions = writer.looked(positions, told.name, axis)
    size = writer.extent((axis,))
    if not added:
        return writer.op(COUNT, positions, size=size)
    rows = writer.broadcast(cast("Ref", added[0]), [*batch, call.axes, *channels])
    return writer.op(call.function, positions, rows, size=size)


def _spell_spaced(writer: Writer, call: Call, left: Left) -> str:
    """The call with rows that have one dimension per axis."""
    told, places, rows = call.arguments
    (axis,) = cast("Call", places).axes
    (_, by), _, first = writer.reached(told)
    groups = [call.axes if each == axis else names_in(each) for each in left]
    where = {"axis": str(left.index(axis)), "first": str(first), "by": str(by)}
    return writer.op(SPACED, writer.view(cast("Ref", rows), groups), size=writer.extent((axis,)), **where)


_SCATTERING = (
    Function(
        "scatter_add",
        "Σ a where the positions told are those of an axis",
        "removed",
        arity=(2, 3),
        options=((INSIDE, 0),),
        yields="number",
        placed=True,
        lowered=_lower,
        spelled=_spell,
    ),
    Function(
        SPACED,
        "a at positions of an axis at even distances, 0 elsewhere",
        "removed",
        arity=(3, 3),
        yields="number",
        placed=True,
        spelled=_spell_spaced,
    ),
)


CALLS = 4
"""The number of small operations for each group besides its product."""

Groups = tuple[tuple[str, ...], ...]


def _matmul_groups(told: Sequence[str], x: Sequence[str], w: Sequence[str], summed: Sequence[str]) -> Groups:
    """The axes of a product of rows and selected matrices, grouped by the operands that have them.

    In order: axes of positions and rows, of positions alone, of rows alone, of the columns of the result, and summed.
    """
    return (
        tuple(axis for axis in told if axis in x),
        tuple(axis for axis in told if axis not in x),
        tuple(axis for axis in x if axis not in told and axis not in summed),
        tuple(axis for axis in w if axis not in summed),
        tuple(axis for axis in w if axis in summed),
    )


def _lower_matmul(lowering: Lowering, call: Call) -> Value:
    """Lowers a grouped product: rows with dimensions for axes of positions, own axes and summed axes; matrices."""
    rows, matrices = cast("tuple[Expression, Ref]", call.arguments)
    (entry,) = [cast("Expression", each) for each in matrices.index if not isinstance(each, str)]
    which = lowering.new_axis()
    plain = replace(matrices, index=tuple(which if each is entry else each for each in matrices.index))
    x, told, w = (lowering.lower(each) for each in (rows, entry, plain))
    element = max(Element.WIDE, x.element, w.element)
    x, w = lowering.convert(x, element), lowering.convert(w, element)
    inner = [axis for axis in w.layout if axis != which]
    both, alone, own, out, summed = _matmul_groups(told.layout, x.layout, inner, call.axes)
    told = lowering.grouped(told, (both, alone))
    x = lowering.grouped(x, (both, own, summed))
    if not lowering.offers(w, ((which,), summed, out)):  # matrices may be transposed in memory
        w = lowering.grouped(w, ((which,), out, summed))
    sizes = sizes_of((told, x, w))
    count, size = lowering.count, lowering.itemsize
    lines = count(sizes, (*both, *alone, *own))
    seconds = _seconds(lowering, sizes, which, lines, count(sizes, out), count(sizes, summed))
    moved = 2.0 * size * lines * (count(sizes, summed) + count(sizes, out))
    seconds += lowering.profile.pointwise(moved, size * lines * count(sizes, out))
    flops = 2 * extent(sizes, (*both, *alone, *own, *out, *summed))
    left = left_of((both, alone, own, out))
    right = replace(call, arguments=(x.ref, told.ref, w.ref))
    return lowering.emit(left, right, [x, told, w], sizes, element, seconds=seconds, flops=flops)


def _seconds(
    lowering: Lowering, sizes: dict[str, object], which: str, rows: int, columns: int, summed: int
) -> float:
    """The time of one product per group, each of the average number of rows, and of sorting rows into groups."""
    groups, profile = max(1, min(lowering.count(sizes, (which,)), rows)), lowering.profile
    each = profile.matmul(1.0, max(1.0, rows / groups), columns, summed, lowering.itemsize)
    apart = profile.scatter(8.0 * rows, 8.0 * rows, float(rows))
    return groups * (each + CALLS * profile.pointwise(0.0, 0.0)) + apart


def _spell_matmul(writer: Writer, call: Call, left: Left) -> str:
    """The call with rows, positions and matrices, in the dimensions that the backend's function requires."""
    x, told, w = cast("tuple[Ref, ...]", call.arguments)
    inner = [axis for axis in layout_of(w) if axis in call.axes or axis in axes_in(left)]
    (which,) = (axis for axis in layout_of(w) if axis not in inner)
    both, alone, own, out, summed = _matmul_groups(layout_of(told), layout_of(x), inner, call.axes)
    positions = writer.looked(_view(writer, told, (both, alone)), told.name, which)
    rows, matrices = _view(writer, x, (both, own, summed)), _view(writer, w, ((which,), out, summed))
    return writer.reshaped(writer.op(call.function, rows, positions, matrices), left)


def _in_matmul(call: Call, left: Sequence[str]) -> Iterator[Sequence[str]]:
    """The axes of the working memory: rows sorted by their matrices, and their products in that order."""
    x, told, _ = call.arguments
    yield _axes_of(told, x)
    yield left


# ---------------------------------------------------------------------------- products within each group


def _outer_groups(told: Sequence[str], a: Sequence[str], b: Sequence[str]) -> Groups:
    """The axes of products summed over rows, in order: of positions and both factors, other axes of positions,
    of both factors without positions, of the first factor alone, and of the second alone."""
    return (
        tuple(axis for axis in told if axis in a and axis in b),
        tuple(axis for axis in told if not (axis in a and axis in b)),
        tuple(axis for axis in a if axis in b and axis not in told),
        tuple(axis for axis in a if axis not in b and axis not in told),
        tuple(axis for axis in b if axis not in a and axis not in told),
    )


def _lower_outer(lowering: Lowering, call: Call) -> Value:
    """Lowers a grouped outer product: positions and both factors, each with its own dimensions."""
    entry, places, *factors = call.arguments
    (which,) = cast("Call", places).axes
    told, a, b = (lowering.lower(each) for each in (entry, *factors))
    element = max(Element.WIDE, a.element, b.element)
    a, b = lowering.convert(a, element), lowering.convert(b, element)
    both, rest, own, first, second = _outer_groups(told.layout, a.layout, b.layout)
    told = lowering.grouped(told, (both, rest))
    a, b = (
        lowering.grouped(
            each, [tuple(axis for axis in group if axis in each.layout) for group in (both, rest, own, alone)]
        )
        for each, alone in ((a, first), (b, second))
    )
    sizes = sizes_of((told, a, b))
    sizes[which] = lowering.size(which)
    count, size = lowering.count, lowering.itemsize
    lines, rows, columns = count(sizes, (*both, *rest, *own)), count(sizes, first), count(sizes, second)
    groups, profile = max(1, min(count(sizes, (which,)), lines)), lowering.profile
    seconds = groups * profile.matmul(1.0, rows, columns, max(1.0, lines / groups), size)
    seconds += groups * CALLS * profile.pointwise(0.0, 0.0)
    seconds += profile.scatter(8.0 * lines, 8.0 * lines, float(lines))
    seconds += profile.pointwise(2.0 * size * lines * (rows + columns), 0.0)
    flops = 2 * extent(sizes, (*both, *rest, *own, *first, *second))
    left = left_of(((which,), first, second))
    right = replace(call, arguments=(told.ref, places, a.ref, b.ref))
    return lowering.emit(left, right, [told, a, b], sizes, element, seconds=seconds, flops=flops)


def _spell_outer(writer: Writer, call: Call, left: Left) -> str:
    told, places, a, b = call.arguments
    told, a, b = cast("tuple[Ref, Ref, Ref]", (told, a, b))
    (which,) = cast("Call", places).axes
    both, rest, own, first, second = _outer_groups(*(layout_of(each) for each in (told, a, b)))
    positions = _view(writer, told, (both, rest))
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
    return tuple(dict.fromkeys(axis for each in operands for axis in axes_in(cast("Ref", each).index)))


def _view(writer: Writer, ref: Ref, groups: Groups) -> str:
    return writer.view(ref, groups, ones=True)


GROUPED_MATMUL = Function(
    "grouped_matmul",
    "Σ a·b, where b is the matrix that a position tells of each row",
    "removed",
    arity=(2, 3),
    yields="real",
    placed=True,
    works_in=_in_matmul,
    lowered=_lower_matmul,
    spelled=_spell_matmul,
)

GROUPED_OUTER = Function(
    "grouped_outer",
    "Σ a·b where the positions told are those of an axis",
    "removed",
    arity=(4, 4),
    options=((INSIDE, 0),),
    yields="number",
    placed=True,
    works_in=_in_outer,
    lowered=_lower_outer,
    spelled=_spell_outer,
)

_GROUPING = (GROUPED_MATMUL, GROUPED_OUTER)

ROWS = (*_SCATTERING, *_GROUPING)
