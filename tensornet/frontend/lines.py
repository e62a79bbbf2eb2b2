"""Elaboration of one line: bare names, `...`, windows, and checks of what it reads."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial

from ..errors import EquationError, ShapeError, told_in
from ..graph.recurrences import early
from ..graph.shape_inference import Dim, Scope, Shorter, dim_size, index_of, scope_of
from ..graph.slices import axes_windowed, cropped, cut_to_window, in_order, not_whole, read_in, reading
from ..language.desugaring import expand_ellipsis, expand_index
from ..language.equation import Equation, Opening, resolve
from ..language.expression import (
    ELLIPSIS,
    Contraction,
    Expression,
    Index,
    Ref,
    axes_of_index,
    free_axes,
    fresh,
    is_computed_index,
    occurring,
    rename,
    show,
    show_index,
    transform,
)
from ..sizes import symbol
from .context import Known, Text, remade_in

__all__ = [
    "check_given",
    "check_order",
    "check_positions",
    "check_summed",
    "opened",
    "resolved",
    "whole",
    "with_lead",
]


def check_order(text: Text, line: Equation, definitions: set[str]) -> None:
    """Raises an error for a read of a later line's result, except at earlier positions of a recurrence."""
    for ref in early(line):
        if ref.name in definitions and text.known.get(ref.name, Known("foreseen")).kind == "foreseen":
            raise EquationError(
                f"'{ref.name}' is used before it is defined",
                ref.place,
                "order the lines so that it comes first",
            )


def resolved(text: Text, line: Equation) -> Equation:
    """The line with brackets after every tensor name; a sum of axes begins with the axis that it sizes."""
    dims = text.dims(line.right)
    indices: dict[str, tuple[Index, ...]] = {name: index_of(each) for name, each in dims.items()}
    indices |= _read_here(text, line, indices)
    if isinstance(line, Opening) and isinstance(line.right, Ref) and line.right.name not in text.axes:
        indices.setdefault(line.right.name, line.left)
    for ref in line.references:
        entry = text.known.get(ref.name)
        if entry is not None and entry.index is None and not ref.index and entry.kind == "input":
            if ref.name in indices or ref.name in text.axes:
                continue
            fix = f'write {ref.name}[b,i], or list it as inputs="{ref.name}[b,i]", one number as "{ref.name}[()]"'
            raise EquationError(f"the axes of the input '{ref.name}' are not known yet", ref.place, fix)
    right = cropped(_openings_read(text, line.right), dims)
    kept = axes_of_index(line.left)
    right = resolve(right, indices, lambda name: name in text.axes, kept)
    return replace(line, right=in_order(right, kept, text.held(right)))


def opened(text: Text, line: Opening) -> Equation | None:
    """The equation of a recurrence's initial value, without broadcast axes; None if the value is a tensor already."""
    right, left = line.right, axes_of_index(line.left)
    present = free_axes(right)
    kept = tuple(axis for axis in left if axis in present)
    if isinstance(right, Ref) and len(kept) == len(axes_of_index(right.index)) and not _reads_part(right):
        text.openings[line.name] = left, right
        return None
    text.openings[line.name] = left, Ref(line.name, kept, line.place)
    return Equation(line.name, kept, right, line.place)


def _reads_part(ref: Ref) -> bool:
    """Whether the brackets contain anything but axes."""
    return not all(isinstance(entry, str | tuple) for entry in ref.index)


def _openings_read(text: Text, part: Expression) -> Expression:
    """An expression in which initial values of recurrences are read from the tensors that hold them."""
    part = transform(part, partial(_openings_read, text))
    if not isinstance(part, Ref) or part.name not in text.openings:
        return part
    left, start = text.openings[part.name]
    return rename(start, dict(zip(left, axes_of_index(part.index), strict=True)))


def _read_here(text: Text, line: Equation, known: Collection[str]) -> dict[str, tuple[Index, ...]]:
    """The indices of new tensors that the line reads both with brackets and by a bare name."""
    found: dict[str, tuple[Index, ...]] = {}
    bare = {ref.name: ref for ref in line.references if not ref.index}
    for ref in line.references:
        if ref.name in known or ref.name in text.axes or not ref.index or ref.name not in bare:
            continue
        first = found.setdefault(ref.name, ref.index)
        if first != ref.index or _reads_part(ref):
            shown = " and ".join(
                dict.fromkeys(f"{ref.name}[{show_index(each)}]" for each in (first, ref.index))
            )
            message = f"'{ref.name}' without brackets is ambiguous: the line also reads {shown}"
            raise EquationError(message, bare[ref.name].place, f"write {ref.name}[…] with the axes you mean")
    return found


@told_in("axes")
def with_lead(text: Text, line: Equation) -> Equation:
    """Replaces `...` by axis names wherever a tensor's leading axes are known by name."""
    lead: tuple[str, ...] | None = None
    for ref in line.references:
        entry = text.known.get(ref.name)
        if ELLIPSIS not in ref.index or entry is None or entry.dims is None:
            continue
        if any(axis.name == ELLIPSIS for dim in entry.dims for axis in dim):
            continue
        count = len(entry.dims) - (len(ref.index) - 1)
        if count < 0 or (lead is not None and len(lead) != count):
            expected = "none" if count < 0 else f"{len(lead or ())}"
            raise ShapeError(
                f"'...' stands for {max(count, 0)} axes of '{ref.name}', and for {expected} elsewhere in the line",
                ref.place,
                "write the axes out",
            )
        if lead is None:
            lead = _lead_names(text, line, entry.dims, ref.index.index(ELLIPSIS), count)
    if lead is None:
        return line
    return Equation(line.name, expand_index(line.left, lead), expand_ellipsis(line.right, lead), line.place)


def _lead_names(text: Text, line: Equation, dims: tuple[Dim, ...], start: int, count: int) -> tuple[str, ...]:
    taken = {*occurring(line.right), *axes_of_index(line.left)}
    names: list[str] = []
    for dim in dims[start : start + count]:
        names.append(fresh("_".join(axis.name for axis in dim), taken))
        taken.add(names[-1])
    return tuple(names)


@told_in("axes")
def check_positions(text: Text, line: Equation) -> None:
    """Raises an error for positions that are not integers."""
    for ref in line.references:
        for entry in ref.index:
            if is_computed_index(entry):
                _check_told(text, ref, entry)


def _check_told(text: Text, ref: Ref, entry: Expression) -> None:
    found = not_whole(entry)
    if found is not None:
        raise EquationError(
            f"{show(found)} is an index of '{ref.name}', and is not an integer",
            found.place or ref.place,
            "use + - * // % and other functions that keep integers",
        )
    for each in read_in(entry):
        if text.known[each.name].kind == "parameter":
            raise EquationError(
                f"'{each.name}' is an index of '{ref.name}', and cannot be a parameter",
                each.place,
                f"list '{each.name}' in inputs=, or give its integers in constants=",
            )


@told_in("sizes")
def whole(text: Text, line: Equation) -> Equation:
    """The line with windows that reach from end to end; for a shorter one, a line of its own cuts the tensor."""
    dims = text.dims(line.right)
    shorter: list[Shorter] = []
    told = text.held(line.right)
    scope_of(line.right, dims, text.unifier.unify, text.unifier.bound, told, shorter, solves=False)
    if not shorter:
        return line
    first, read = shorter[0], {ref.name for each in text.lines for ref in each.references}
    name = fresh(f"{first.ref.name.replace('.', '_')}_cut", {*text.known, *text.axes, *read})
    cut, instead = cut_to_window(first, dims[first.ref.name] or (), name)
    if text.known[first.ref.name].kind == "foreseen":
        text.foresee(cut)
        text.waiting[first.ref.name].append(cut)
    else:
        text.keep(cut, text.sizes_around(cut.right))
    return whole(text, replace(line, right=reading(line.right, first.ref, instead)))


@told_in("sizes")
def check_given(text: Text, line: Equation) -> None:
    """Makes a size that the user gave hold wherever the axis is named, unless concat or pad resizes it."""
    remade = text.remade | remade_in(line.right)
    for ref in line.references:
        for entry, dim in zip(ref.index, text.known[ref.name].dims or (), strict=True):
            if isinstance(entry, str) and entry in text.strict and entry not in remade:
                text.unifier.unify(symbol(entry), dim_size(dim), entry, ref)


@told_in("sizes")
def check_summed(text: Text, line: Equation, scope: Scope) -> None:
    """Raises an error for a sum over a window axis without a size; a stride without a value is read as one."""
    summed = {axis for part in line.parts if isinstance(part, Contraction) for axis in part.summed}
    windowed = axes_windowed(line.right) & summed
    for axis in sorted(
        windowed.difference(scope.sizes, scope.inner, scope.assumed, scope.fitting, text.given)
    ):
        raise ShapeError(
            f"no tensor has the axis {axis}, so its size is unknown", line.place, f"give {axis}="
        )
