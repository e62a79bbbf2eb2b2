"""Slices and positions: what brackets read along the dimensions of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import EquationError
from ..language.affine import affine
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Index,
    Literal,
    Ref,
    Span,
    axes_of_index,
    free_axes,
    fresh,
    is_told,
    parts_of,
    product_of,
    references,
    sum_of,
    transform,
)
from ..ops.structure import PAD
from ..ops.table import FUNCTIONS
from .shape_inference import Dim, Shorter, dim_size, index_of, size_expression

__all__ = [
    "axes_told",
    "axes_windowed",
    "cropped",
    "cut_to_window",
    "in_order",
    "not_whole",
    "read_in",
    "reading",
]

ZERO, MINUS = Literal(0), Literal(-1)


# ---------------------------------------------------------------------------- slices


def cropped(expression: Expression, dims: Mapping[str, tuple[Dim, ...] | None]) -> Expression:
    """The expression with crops in the place of slices: `x[b,1:]` is `pad(x[b,t], t=(-1,0))`.

    The axis is the one that the tensor was defined with; a step reads there from position to position,
    `x[b,::2]` is `x[b,2*t]`.

    Args:
        expression: the right side of an equation, as it was read.
        dims: the dimensions of the tensors, of those that are known.

    Raises:
        EquationError: a slice is of a dimension without an axis of its own.
    """
    changed = transform(expression, lambda part: cropped(part, dims))
    if not isinstance(changed, Ref) or not any(isinstance(entry, Span) for entry in changed.index):
        return changed
    known = dims.get(changed.name)
    index: list[Index] = []
    amounts: list[tuple[str, tuple[Expression, ...]]] = []
    for position, entry in enumerate(changed.index):
        if not isinstance(entry, Span):
            index.append(entry)
            continue
        if known is None or len(known) != len(changed.index) or len(known[position]) != 1:
            message = f"the axis of this slice of '{changed.name}' is not known"
            fix = f"give '{changed.name}' its axes first, as in inputs='{changed.name}[b,t]'"
            raise EquationError(message, entry.place, fix)
        (axis,) = known[position]
        if entry.step == 1:
            index.append(axis.name)
            amounts.append((axis.name, _amounts(entry, size_expression(dim_size(known[position])))))
        elif entry.stop is None:
            at = product_of([Literal(entry.step), Ref(axis.name, (), entry.place)])
            index.append(at if entry.start is None else sum_of([at, entry.start]))  # type: ignore[arg-type]
        else:
            raise EquationError(
                "a slice with a step has no end", entry.place, "crop in a line before: z[b,t] = x[b,:4]"
            )
    read = replace(changed, index=tuple(index))
    return Call(PAD.name, (read,), (), tuple(amounts), changed.place) if amounts else read


def _amounts(span: Span, size: Expression) -> tuple[Expression, Expression]:
    """How many positions are put before, and after: none, or fewer."""
    start, stop = span.start or ZERO, span.stop or ZERO
    if _is_negative(start):
        start = sum_of([size, start])
    before = ZERO if start == ZERO else _negated(start)
    if span.stop is None or _is_negative(stop):
        return before, stop
    return before, sum_of([stop, _negated(size)])


def _negated(expression: Expression) -> Expression:
    if isinstance(expression, Literal):
        return Literal(-expression.value)
    if isinstance(expression, Call) and expression.function == "add":
        return sum_of([_negated(each) for each in expression.arguments])
    return product_of([MINUS, expression])


def _is_negative(expression: Expression) -> bool:
    """Whether a bound counts from the end."""
    first = expression.factors[0] if isinstance(expression, Contraction) else expression
    return isinstance(first, Literal) and not isinstance(first.value, complex) and first.value < 0


# ---------------------------------------------------------------------------- windows


def in_order(expression: Expression, kept: Sequence[str], given: Collection[str] = ()) -> Expression:
    """The expression, in which each sum of axes begins with one that nothing else tells the size of, if there is one.

    That one is as long as fits: of `x[u+p] * K[u]`, which becomes `x[p+u] * K[u]`, it is `p`.

    Args:
        expression: the right side of an equation, whose names have their meaning.
        kept: the axes on the left, which come before others.
        given: the axes whose size is given.
    """
    told = axes_told(expression).union(given)

    def rank(term: Expression) -> int:
        axes = free_axes(term)
        return 2 if not axes or set(axes) <= told else int(axes[0] not in kept)

    def visit(part: Expression) -> Expression:
        changed = transform(part, visit)
        if not isinstance(changed, Ref):
            return changed
        return replace(changed, index=tuple(_first(entry, rank) for entry in changed.index))

    return visit(expression)


def axes_told(expression: Expression) -> set[str]:
    """The axes that tensors are read with, other than as parts of sums."""
    return {
        axis
        for ref in references(expression)
        for axis in axes_of_index(tuple(entry for entry in ref.index if not is_told(entry)))
    }


def axes_windowed(expression: Expression) -> set[str]:
    """The axes that tensors are read with in sums alone, so that no dimension tells how long they are."""
    entries = (entry for ref in references(expression) for entry in ref.index if is_told(entry))
    return {axis for entry in entries for axis in free_axes(entry)} - axes_told(expression)


def _first(entry: Index, rank: Callable[[Expression], int]) -> Index:
    """The terms of a sum of axes, those of the lowest rank before others."""
    if isinstance(entry, Call) and entry.function == "add" and affine(entry) is not None:
        moving = [each for each in entry.arguments if free_axes(each)]
        numbers = [each for each in entry.arguments if not free_axes(each)]
        first = min(moving, key=rank)
        rest = [each for each in moving if each is not first]
        found = (first, *rest, *numbers)
        return entry if rank(moving[0]) == rank(first) else replace(entry, arguments=found)
    return entry


def cut_to_window(shorter: Shorter, dims: tuple[Dim, ...], name: str) -> tuple[Equation, Ref]:
    """An equation for as much of a tensor as a window reads of it, and that read from end to end.

    Args:
        shorter: the window.
        dims: the dimensions of the tensor.
        name: what to call that much of it.
    """
    ref, position = shorter.ref, shorter.position
    index: list[Any] = list(index_of(dims))
    index[position] = axis = fresh("i", {axis.name for dim in dims for axis in dim})
    amounts = (Literal(-shorter.left), ZERO) if shorter.back else (ZERO, Literal(-shorter.left))
    cut = Call(PAD.name, (Ref(ref.name, tuple(index), ref.place),), (), ((axis, amounts),), ref.place)
    entries = list(ref.index)
    if shorter.back:
        entries[position] = sum_of([entries[position], Literal(-shorter.left)])  # type: ignore[list-item, assignment]
    return Equation(name, tuple(index), cut, ref.place), Ref(name, tuple(entries), ref.place)


def reading(expression: Expression, old: Ref, new: Ref) -> Expression:
    """The expression, in which another tensor is read where one was, in the same way."""
    changed = transform(expression, lambda part: reading(part, old, new))
    return new if changed == old else changed


# ---------------------------------------------------------------------------- integers


def read_in(entry: Expression) -> Iterator[Ref]:
    """The tensors that hold the positions that an entry of brackets tells; not those in which `argmax` finds them."""
    if isinstance(entry, Ref):
        yield entry
    elif not _finds(entry):
        for part in parts_of(entry):
            yield from read_in(part)


def _finds(entry: Expression) -> bool:
    """Whether it is positions, whatever it is made of."""
    return isinstance(entry, Call) and FUNCTIONS[entry.function].yields == "position"


def not_whole(entry: Expression) -> Expression | None:
    """A part of an expression of positions that is no integer; nothing if all are."""
    match entry:
        case Ref():
            return None
        case Literal(value):
            return None if isinstance(value, int) else entry
        case Call(function):
            row = FUNCTIONS[function]
            if row.rounds or row.converts is not None or _finds(entry):
                return None
            if row.yields in ("real", "number"):
                return entry
    found: Any = map(not_whole, parts_of(entry))
    return next((each for each in found if each is not None), None)
