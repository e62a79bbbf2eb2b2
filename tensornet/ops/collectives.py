"""Collectives: functions that exchange tensors among the devices along one axis of a mesh.

A sharded program is the same on each device, and its tensors are the local ones. Each tensor is, for each axis of the
mesh, the same on all devices (replicated), a part of a whole along a dimension (sharded), a term of a sum (partial), or
a copy that each device uses for its own part of the work (varying). The cotangent of a replicated tensor is replicated,
that of a sharded one sharded, that of a varying one partial, and that of a partial one varying. So each collective has
another as its vjp:

    all_reduce               partial → replicated     vjp: vary
    vary                     replicated → varying     vjp: all_reduce
    all_gather               sharded → varying        vjp: reduce_scatter
    all_gather_invariant     sharded → replicated     vjp: shard
    reduce_scatter           partial → sharded        vjp: all_gather
    shard                    replicated → sharded     vjp: all_gather_invariant
    all_to_all               sharded → sharded along another dimension     vjp: itself

Functions with brackets run along an axis with a position for each device. The option `mesh` is the number of the axis
of the mesh. The names of the two kinds of `all_gather` are those of JAX.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from ..syntax import Call, Ref
from .record import Axes, Function, Left, Lowering, Value, Writer, axes_in, left_of

MESH = "mesh"
"""The option that holds the number of the mesh axis."""

VJP: Mapping[str, str] = {
    "all_reduce": "vary",
    "vary": "all_reduce",
    "all_gather": "reduce_scatter",
    "all_gather_invariant": "shard",
    "reduce_scatter": "all_gather",
    "shard": "all_gather_invariant",
    "all_to_all": "all_to_all",
}
"""The collective that is the vjp of each."""


def _lower(first: bool, last: bool, lowering: Lowering, call: Call) -> Value:
    """The step of a collective; the axis of the devices is outermost in the operand (`first`), the result (`last`)."""
    value = lowering.lower(call.arguments[0])
    rest = tuple(axis for axis in value.layout if axis not in call.axes)
    if first:
        value = lowering.grouped(value, (call.axes, *((axis,) for axis in rest)))
    moved = float(lowering.itemsize * lowering.count(value.layout, () if first else call.axes))
    right = replace(call, arguments=(value.ref,))
    left = left_of(((*(call.axes if last else ()),), *((axis,) for axis in rest)))
    seconds = lowering.profile.pointwise(2.0 * moved, moved)
    return lowering.emit(left, right, [value], value.element, seconds=seconds)


def _spell(first: bool, writer: Writer, call: Call, left: Left) -> str:
    """The call with an operand that has one dimension for each axis, that of the devices first."""
    ref = cast("Ref", call.arguments[0])
    rest = [(axis,) for axis in axes_in(left) if axis not in call.axes]
    text = writer.view(ref, [*([call.axes] if first else []), *rest])
    return writer.op(call.function, text, **writer.options(call))


def _collective(name: str, formula: str, axes: Axes, first: bool = False, last: bool = False) -> Function:
    return Function(
        name,
        formula,
        axes=axes,
        options=((MESH, 0),),
        yields="same",
        takes="any",
        carries=True,
        placed=True,
        exchanges=True,
        derivative=(f"{VJP[name]}{'' if axes == 'none' else '[j]'}(g, mesh=mesh)",),
        lowered=functools.partial(_lower, first, last),
        spelled=functools.partial(_spell, first),
    )


ROWS = (
    _collective("all_reduce", "Σ a over the devices, on each of them", "none"),
    _collective("vary", "a, with which each device computes another part", "none"),
    _collective("all_gather", "a of each device along j", "made", last=True),
    _collective("all_gather_invariant", "a of each device along j", "made", last=True),
    _collective(
        "reduce_scatter",
        "Σ a over the devices, of which each gets its position along j",
        "removed",
        first=True,
    ),
    _collective("shard", "a at the device's position along j", "removed", first=True),
    _collective(
        "all_to_all", "at j what device j has at this device's position", "kept", first=True, last=True
    ),
)

COLLECTIVES = {row.name: row for row in ROWS}
