"""Cotangent accumulation: the gradient of a tensor is the sum over its readers.

One that is the same all along an axis goes without that axis for as long as it can.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..graph.algebra import ZERO, as_numbers, folded, multiplied, spread, summed_over
from ..graph.shape_inference import Dim, Scope, beside, dim_size
from ..language.affine import ones_at
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Index,
    Literal,
    Ref,
    free_axes,
    fresh,
    is_scalar,
    occurring,
    sum_of,
)
from ..ops.pointwise import EQUAL, WHERE
from ..ops.structure import INDEX
from .vjp_context import GRADIENT, VjpContext

__all__ = ["added_up", "full", "give", "gradient_of", "part_of", "whole", "zeros"]


def give(context: VjpContext, ref: Ref, term: Expression, sizes: Scope) -> None:
    """Adds to the gradient of a tensor what a reader hands on.

    Args:
        ref: the tensor, as it is read.
        term: what it gets, under the axes of the reader.
        sizes: the sizes of these.
    """
    entries, term, sizes = _told_apart(context, ref, term, sizes)
    left: list[str | tuple[str, ...]] = []
    axes: list[str] = []
    for known, axis in zip(entries, context.axes(ref.name), strict=True):
        if set(_parts(known)) & set(free_axes(term)):
            term = spread(term, _parts(known))
            left.append(known)
            axes.append(axis)
    kept = {part for entry in left for part in _parts(entry)}
    term = folded(summed_over(term, [axis for axis in free_axes(term) if axis not in kept]))
    if is_scalar(term):
        context.terms[ref.name].append(term)
        return
    names = dict(zip(left, axes, strict=True))
    if not isinstance(term, Ref) or len(set(term.index)) < len(names) or not names.keys() >= {*term.index}:
        name = part_of(context, ref.name)
        context.put(name, tuple(left), term, sizes)
        term = Ref(name, tuple(left))
    context.terms[ref.name].append(replace(term, index=tuple(names[each] for each in term.index)))  # type: ignore[index]


def _told_apart(
    context: VjpContext, ref: Ref, term: Expression, sizes: Scope
) -> tuple[list[str | tuple[str, ...]], Expression, Scope]:
    """An axis of its own for each dimension of a tensor, and the term and its sizes under these.

    A dimension that is read at positions, or on a diagonal, gets a new one, at which the term is placed.
    """
    entries: list[str | tuple[str, ...]] = []
    taken = {*occurring(ref), *occurring(term)}
    groups = (group for group in context.graph.recurrences if ref.name in group.names)
    along = next(
        (group.dimension(ref.name) for group in groups), None
    )  # which keeps its axis, on a diagonal too
    for n, (entry, axis, dim) in enumerate(
        zip(ref.index, context.axes(ref.name), context.dims[ref.name], strict=True)
    ):
        parts = _parts(entry)
        others: list[Index] = [*entries, *([] if along in (None, n) else [ref.index[along]])]
        if not parts or any(part in _parts(each) for each in others for part in parts):
            parts = (fresh(axis, taken),)
            taken.update(parts)
            term = _placed(context, entry, parts[0], term, dim, sizes)
            sizes = beside(sizes, Scope({parts[0]: dim_size(dim)}))
        entries.append(parts[0] if len(parts) == 1 else parts)
    return entries, term, sizes


def part_of(context: VjpContext, name: str) -> str:
    """What is called what a tensor gets from one of its readers: numbered where it has several."""
    stem = GRADIENT.format(name)
    return context.fresh(stem) if context.uses[name] == 1 else context.numbered(stem)


def full(term: Expression, axes: Iterable[str]) -> Expression:
    """A gradient that is there at every position of these axes."""
    return spread(as_numbers(term) if is_scalar(term) else term, axes)


def _placed(
    context: VjpContext, entry: Index, axis: str, term: Expression, dim: Dim, sizes: Scope
) -> Expression:
    """A gradient where its tensor was read: at a position, at positions that a tensor tells, on a diagonal."""
    match entry:
        case Ref() | Contraction() | Call():
            return multiplied([ones_at(entry, axis), spread(term, free_axes(entry))])
        case int():
            at: Expression = (
                Literal(entry) if entry >= 0 else sum_of([context.extent(dim_size(dim)), Literal(entry)])
            )
        case _:
            at = Call(INDEX.name, (), (_parts(entry)[0],))
            for part in _parts(entry)[1:]:
                at = sum_of([multiplied([at, context.extent(sizes[part])]), Call(INDEX.name, (), (part,))])
    here = Call(EQUAL.name, (Call(INDEX.name, (), (axis,)), at))
    return Call(WHERE.name, (here, spread(term, _parts(entry)), ZERO))


def added_up(context: VjpContext, name: str) -> Expression:
    """The gradient of a tensor: a number or a tensor, which lacks axes along which it is all alike."""
    terms = context.terms.pop(name)
    if len(terms) == 1:
        return terms[0]
    total = sum_of(terms)
    made, axes = context.fresh(GRADIENT.format(name)), context.axes(name)
    left = tuple(axis for axis in axes if axis in free_axes(total))
    context.put(made, left, total, context.axis_sizes(name))
    return Ref(made, left)


def gradient_of(context: VjpContext, equation: Equation) -> Expression:
    """The gradient of what an equation defines, under the axes that it has there."""
    total = added_up(context, equation.name)
    if not isinstance(total, Ref):
        return total
    entries = dict(zip(context.axes(equation.name), equation.left, strict=True))
    return replace(total, index=tuple(entries[str(axis)] for axis in total.index))


def whole(context: VjpContext, name: str) -> str:
    """The tensor that is the gradient of another, with all axes; zeros where that has none."""
    total = added_up(context, name) if context.terms[name] else ZERO
    axes = context.axes(name)
    if isinstance(total, Ref) and total.index == axes:
        return total.name
    made = context.fresh(GRADIENT.format(name))
    context.put(made, axes, full(total, axes), context.axis_sizes(name))
    return made


def zeros(context: VjpContext, name: str) -> str:
    """A tensor of zeros, as large as another."""
    made, axes = context.fresh(f"{name}.none"), context.axes(name)
    context.put(made, axes, spread(as_numbers(ZERO), axes), context.axis_sizes(name))
    return made


def _parts(entry: Index) -> tuple[str, ...]:
    """The axes that an entry of brackets names."""
    if isinstance(entry, str):
        return (entry,)
    return entry if isinstance(entry, tuple) else ()
