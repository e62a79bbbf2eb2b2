"""Lowering of references: views of stored tensors, gathers, diagonals and windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from ..graph.shape_inference import Dim, dim_size
from ..language.affine import is_cut, is_window
from ..language.expression import (
    Expression,
    Index,
    Ref,
    axes_of_index,
    free_axes,
    is_computed_index,
)
from ..ops.protocols import Entry, Value, names_in
from .context import LoweringContext, Stored, entry_of

WINDOWS = "windows"
"""The name of the template of a backend that can view an array in windows, without a copy."""


def read(context: LoweringContext, ref: Ref) -> Value:
    """A tensor under the axis names of this reference: the stored tensor, or elements of it picked by a step."""
    stored = context.stored[ref.name]
    found = _as_it_lies(context, ref, stored)
    return _picked(context, ref, stored) if found is None else found


def _as_it_lies(context: LoweringContext, ref: Ref, stored: Stored) -> Value | None:
    """The stored tensor, if each dimension is read whole, and no two of them along the same axis."""
    entries: dict[str, Entry] = {}
    sizes: dict[str, Any] = {}
    for part, dim, entry in zip(stored.logical, stored.dims, ref.index, strict=True):
        match entry:
            case str() if len(part) == 1 and entry not in sizes:
                entries[part[0]], sizes[entry] = entry, dim_size(dim)
            case tuple() if set(entry) & set(sizes):
                return None
            case tuple() if len(part) == 1:
                entries[part[0]] = entry
                sizes.update({name: context.sizes[name] for name in entry})
            case tuple() if _is_componentwise(context, entry, dim):
                entries.update(zip(part, entry, strict=True))
                sizes.update({name: axis.size for name, axis in zip(entry, dim, strict=True)})
            case _:
                return None
    names = (
        tuple(name for label in names_in(each) for name in names_in(entries[label]))
        for each in stored.entries
    )
    return Value(Ref(stored.variable, tuple(map(entry_of, names))), sizes, stored.element)


def _is_componentwise(context: LoweringContext, names: tuple[str, ...], dim: Dim) -> bool:
    """Whether a composite has axes of the same sizes as the dimension it reads, one by one."""
    pairs = zip(names, dim, strict=False)
    return len(names) == len(dim) and all(
        context.open(context.sizes[name]) == context.open(axis.size) for name, axis in pairs
    )


def _picked(context: LoweringContext, ref: Ref, stored: Stored) -> Value:
    """Lowers integer indices, gathers, diagonals, windows, and composites read as one axis."""
    entries: list[Index] = []
    sizes: dict[str, Any] = {}
    operands: list[Value] = []
    for dim, entry in zip(stored.dims, ref.index, strict=True):
        if isinstance(entry, str):
            sizes[entry] = dim_size(dim)
        elif isinstance(entry, tuple):
            sizes.update({name: context.sizes[name] for name in entry})
        elif is_computed_index(entry) and (window := _window(context, entry, ref)) is not None:
            sizes.update({name: context.sizes[name] for name in free_axes(entry)})
            entry = window
        elif is_computed_index(entry):
            inner = context.lower(entry, None)
            operands.append(inner)
            for name, size in inner.sizes.items():
                sizes.setdefault(name, size)
            entry = inner.ref
        entries.append(entry)
    variable, index = _arranged(context, stored, entries)
    picked = Ref(variable, index, ref.place)
    axes = axes_of_index(picked.index)
    names = [name for entry in entries if isinstance(entry, str | tuple) for name in names_in(entry)]
    if all(isinstance(entry, str | tuple) for entry in entries) and len(names) == len(axes):
        return Value(picked, sizes, stored.element)
    operands.append(Value(Ref(variable, axes), sizes, stored.element))
    seconds = context.profile.view if is_cut(picked) else None
    return context.emit(axes, picked, operands, stored.element, sizes=sizes, seconds=seconds)


def _arranged(
    context: LoweringContext, stored: Stored, entries: Sequence[Index]
) -> tuple[str, tuple[Index, ...]]:
    """A variable and the entry of each of its dimensions: as it lies in memory, or reordered where axes are merged."""
    if all(len(part) == 1 for part in stored.logical):
        read_by = {part[0]: entry for part, entry in zip(stored.logical, entries, strict=True)}
        groups = [tuple(read_by[label] for label in names_in(each)) for each in stored.entries]
        if all(len(group) == 1 or all(isinstance(each, str) for each in group) for group in groups):
            found = (group[0] if len(group) == 1 else cast("tuple[str, ...]", group) for group in groups)
            return stored.variable, tuple(found)
    return in_logical_order(context, stored), tuple(entries)


def _window(context: LoweringContext, entry: Expression, ref: Ref) -> Index | None:
    """An index entry of evenly spaced positions, with known sizes substituted, if the backend can view these."""
    if isinstance(entry, Ref):
        return None
    told, axes = context.scalar(entry), free_axes(entry)
    alone = sum(axis in axes_of_index((other,)) for other in ref.index for axis in axes) == len(axes)
    if not alone or not is_window(told) or not (len(axes) == 1 or WINDOWS in context.target.supported):
        return None
    return cast("Index", told)


def in_logical_order(context: LoweringContext, stored: Stored) -> str:
    """A variable with one dimension for each declared dimension of the tensor, in order."""
    value = Value(Ref(stored.variable, stored.entries), stored.sizes, stored.element)
    return context.reorder(value, stored.left).ref.name
