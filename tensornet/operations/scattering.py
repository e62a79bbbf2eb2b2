"""Rows added up at told positions: the kernel of products with ones there, summed over what tells the positions.

Rows at even distances, `x[2*p+1] += y[p]`, are not added up: they are what lies there, with zeros between them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from .record import Element, Function
from .structure import INSIDE, is_inside

if TYPE_CHECKING:
    from ..graph.shape import Scope
    from ..language.expression import Call, Ref
    from ..planning.values import Value
    from .services import Left, Lowering, Writer

__all__ = ["ROWS"]

COUNT = "scatter_count"
"""What backends call it where there are no rows to add up, and each position counts 1."""


SPACED = "spaced"
"""Rows that come one by one at even distances, each to a place of its own."""


def _lower(lowering: Lowering, call: Call, scope: Scope) -> Value:
    """Positions by batch and what is summed; rows by these and the channels that each has, where there are rows."""
    scope = lowering.within(call, scope)
    told, places, *added = call.arguments
    (axis,) = cast("Call", places).axes
    rows = [lowering.convert(lowering.lower(each, scope, None), Element.NUMBER) for each in added]
    if len(rows) == 1 and lowering.is_even(told, call.axes) and call.axes[0] in rows[0].layout:
        return _spaced(lowering, call, rows[0], scope)
    positions = lowering.lower(told, scope, None)
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
    sizes = {name: size for each in (positions, *rows) for name, size in each.sizes.items()}
    sizes[axis] = scope[axis]
    count, itemsize = lowering.count(sizes, lead), lowering.itemsize
    written = itemsize * lowering.count(sizes, (*batch, axis, *channels))
    read = itemsize * lowering.count(sizes, (*lead, *channels)) * len(rows)
    groups = (group for group in (batch, (axis,), channels) if group)
    left = tuple(group[0] if len(group) == 1 else group for group in groups)
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


def _spaced(lowering: Lowering, call: Call, rows: Value, scope: Scope) -> Value:
    """Rows in the order in which they lie, with the axis they are put along in the place of what tells where."""
    told, places, _ = call.arguments
    (axis,), (outer,) = cast("Call", places).axes, call.axes
    left = tuple(axis if each == outer else each for each in rows.layout)
    sizes = {**rows.sizes, axis: scope[axis]}
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
    """Of positions and rows with a dimension each for batch, what is summed, and channels; those that are there."""
    told, places, *added = call.arguments
    told = cast("Ref", told)
    (axis,) = cast("Call", places).axes
    at = left.index(axis)
    batch, channels = ([_names(entry) for entry in part] for part in (left[:at], left[at + 1 :]))
    positions = writer.view(told, [*batch, call.axes])
    if is_inside(call):
        positions = writer.looked(positions, told.name, axis)
    size = writer.extent((axis,))
    if not added:
        return writer.op(COUNT, positions, size=size)
    rows = writer.broadcast(cast("Ref", added[0]), [*batch, call.axes, *channels])
    return writer.op(call.function, positions, rows, size=size)


def _spell_spaced(writer: Writer, call: Call, left: Left) -> str:
    """Of rows with a dimension for each axis."""
    told, places, rows = call.arguments
    (axis,) = cast("Call", places).axes
    (_, by), _, first = writer.reached(told)
    groups = [call.axes if each == axis else _names(each) for each in left]
    where = {"axis": str(left.index(axis)), "first": str(first), "by": str(by)}
    return writer.op(SPACED, writer.view(cast("Ref", rows), groups), size=writer.extent((axis,)), **where)


def _names(entry: str | tuple[str, ...]) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else entry


ROWS = (
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
