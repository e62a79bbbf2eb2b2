"""Code generation of indices: slices, windows, gathers, diagonals and integers in brackets."""

from __future__ import annotations

from typing import Any

from ..language.affine import reached
from ..language.expression import Index, Ref, axes_of_index, free_axes, is_computed_index
from ..ops.protocols import Left, layout_of
from ..sizes import are_equal, product
from .expressions import Writing

__all__ = ["indexed", "positions_along"]

Read = tuple[Index, Any]
"""A dimension: its index entry, and its size."""


def indexed(context: Writing, ref: Ref, left: Left) -> str:
    """A tensor read by integer indices, slices, windows, gathers or diagonals, with its axes in the order `left`."""
    text, dimensions = _sliced(context, ref)
    apart: list[Read] = []
    for entry, size in dimensions:
        parts = (
            [(part, context.sizes[part]) for part in entry] if isinstance(entry, tuple) else [(entry, size)]
        )
        apart.extend(parts)
    if len(apart) != len(dimensions):
        text = context.reshape(text, [size for _, size in apart])
    return _gathered(context, text, apart, axes_of_index(left))


def _sliced(context: Writing, ref: Ref) -> tuple[str, list[Read]]:
    """Applies integer indices, slices and windows. The result has the entries and sizes of the dimensions left."""
    dimensions = list(zip(ref.index, context.shapes[ref.name], strict=True))
    text, cuts = context.names[ref.name], [_slice(context, entry, size) for entry, size in dimensions]
    if any(cut != ":" for cut in cuts):
        text = f"{text}[{', '.join(cuts)}]"
    found: list[Read] = []
    for entry, size in dimensions:
        if isinstance(entry, int):
            continue
        if not is_computed_index(entry) or isinstance(entry, Ref):
            found.append((entry, size))
            continue
        (outer, by), (inner, apart), first = reached(entry)
        if inner:
            counts = {"outer": context.extent([outer]), "inner": context.extent([inner])}
            places = {"by": str(by), "apart": str(apart), "first": str(first)}
            text = context.op("windows", text, axis=str(len(found)), **places, **counts)
        found += [(axis, context.sizes[axis]) for axis in (outer, inner) if axis]
    return text, found


def _slice(context: Writing, entry: Index, size: Any) -> str:
    """The slice of a dimension, as it is written between brackets."""
    if isinstance(entry, int):
        return str(entry)
    if not is_computed_index(entry) or isinstance(entry, Ref) or len(free_axes(entry)) > 1:
        return ":"
    (axis, by), _, first = reached(entry)
    room, count = size - first, context.sizes[axis]
    fits = room if by == 1 else (room + by - 1) // by
    stop = "" if are_equal(count, fits, {}) else context.size(first + by * count)
    return f"{first or ''}:{stop}" + (f":{by}" if by > 1 else "")


def _gathered(context: Writing, text: str, dimensions: list[Read], left: tuple[str, ...]) -> str:
    """Gathers along the dimensions that an index tensor or a repeated axis picks from."""
    entries = [entry for entry, _ in dimensions]
    inside = {axis for each in entries if isinstance(each, Ref) for axis in layout_of(each)}
    picked = [n for n, e in enumerate(entries) if isinstance(e, Ref) or e in inside or entries.count(e) > 1]
    if not picked:
        return context.in_order(text, tuple(map(str, entries)), left)
    first, count = picked[0], len(picked)
    if picked[-1] - first >= count:  # not adjacent
        order = [*picked, *(n for n in range(len(entries)) if n not in picked)]
        text, dimensions, first = context.permute(text, order), [dimensions[n] for n in order], 0
    before, chosen, after = dimensions[:first], dimensions[first : first + count], dimensions[first + count :]
    taken = inside.union(entry for entry, _ in chosen if isinstance(entry, str))
    axes = tuple(axis for axis in left if axis in taken)
    flat = _flat_index(context, chosen, axes)
    around = [size for _, size in before], [size for _, size in after]
    if count > 1:
        text = context.reshape(text, [*around[0], product(size for _, size in chosen), *around[1]])
    text = context.op("take", text, context.op("reshape", flat, shape="(-1,)"), axis=str(first))
    if len(axes) != 1:
        text = context.reshape(text, [*around[0], *(context.sizes[axis] for axis in axes), *around[1]])
    lying = (*(str(entry) for entry, _ in before), *axes, *(str(entry) for entry, _ in after))
    return context.in_order(text, lying, left)


def _flat_index(context: Writing, dimensions: list[Read], axes: tuple[str, ...]) -> str:
    """Row-major positions in the picked dimensions, over `axes`."""
    terms: list[str] = []
    sizes = [size for _, size in dimensions]
    for n, (entry, size) in enumerate(dimensions):
        stride = product(sizes[n + 1 :])
        if isinstance(entry, Ref):
            term = context.below(context.aligned(entry, axes), entry.name, size, product(sizes[: n + 1]))
        else:
            term = positions_along(context, size, len(axes) - axes.index(str(entry)))
        terms.append(term if stride == 1 else f"{term} * ({context.size(stride)})")
    text = " + ".join(terms)
    (entry, _), *others = dimensions
    if not others and isinstance(entry, Ref) and layout_of(entry) == axes:
        return text
    return context.op("broadcast", f"({text})", shape=context.shape(context.sizes[axis] for axis in axes))


def positions_along(context: Writing, size: Any, rank: int) -> str:
    """0, 1, 2, … along the first of `rank` dimensions."""
    places = context.positions(size)
    return context.reshape(places, [size, *[1] * (rank - 1)]) if rank > 1 else places
