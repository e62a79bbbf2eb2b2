"""Slices and positions: how brackets index the dimensions of a tensor."""

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
    is_computed_index,
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


def cropped(expression: Expression, dims: Mapping[str, tuple[Dim, ...]]) -> Expression:
    """The expression with slices replaced by crops: `x[b,1:]` is `pad(x[b,t], t=(-1,0))`.

    The axis is that of the tensor's definition. A slice with a step is an affine index: `x[b,::2]` is `x[b,2*t]`.

    Args:
        expression: the right side of an equation, as it was parsed.
        dims: the known dimensions of the tensors.

    Raises:
        EquationError: the axis of a slice is unknown or a composite, or a slice with a step has an end.
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
            fix = "crop in a line before: z[b,t] = x[b,:4]"
            raise EquationError("a slice with a step cannot have an end", entry.place, fix)
    read = replace(changed, index=tuple(index))
    return Call(PAD.name, (read,), (), tuple(amounts), changed.place) if amounts else read


def _amounts(span: Span, size: Expression) -> tuple[Expression, Expression]:
    """The padding before and after, as `pad` takes it: 0, or negative for a crop."""
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
    """The expression with each sum of axes reordered to begin with an axis that nothing else sizes, if there is one.

    That axis is as long as fits. `x[u+p] * K[u]` becomes `x[p+u] * K[u]`, where it is `p`.

    Args:
        expression: the right side of an equation, with its names resolved.
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
    """The axes that index a dimension of a tensor directly, not inside of an expression."""
    return {
        axis
        for ref in references(expression)
        for axis in axes_of_index(tuple(entry for entry in ref.index if not is_computed_index(entry)))
    }


def axes_windowed(expression: Expression) -> set[str]:
    """The axes that index tensors only inside of expressions, so that no dimension gives their size."""
    entries = (entry for ref in references(expression) for entry in ref.index if is_computed_index(entry))
    return {axis for entry in entries for axis in free_axes(entry)} - axes_told(expression)


def _first(entry: Index, rank: Callable[[Expression], int]) -> Index:
    """The entry; if it is a sum of axes, a term of the lowest rank is moved to the front."""
    if isinstance(entry, Call) and entry.function == "add" and affine(entry) is not None:
        moving = [each for each in entry.arguments if free_axes(each)]
        numbers = [each for each in entry.arguments if not free_axes(each)]
        first = min(moving, key=rank)
        rest = [each for each in moving if each is not first]
        found = (first, *rest, *numbers)
        return entry if rank(moving[0]) == rank(first) else replace(entry, arguments=found)
    return entry


def cut_to_window(shorter: Shorter, dims: tuple[Dim, ...], name: str) -> tuple[Equation, Ref]:
    """An equation that crops a tensor to the part that a window reads, and the window over all of that part.

    Args:
        shorter: the window.
        dims: the dimensions of the tensor.
        name: the name of that part.
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
    """The expression with each occurrence of one reference replaced by another."""
    changed = transform(expression, lambda part: reading(part, old, new))
    return new if changed == old else changed


# ---------------------------------------------------------------------------- integers


def read_in(entry: Expression) -> Iterator[Ref]:
    """The tensors that hold the positions in an entry of brackets; not those in which `argmax` finds positions."""
    if isinstance(entry, Ref):
        yield entry
    elif not _finds(entry):
        for part in parts_of(entry):
            yield from read_in(part)


def _finds(entry: Expression) -> bool:
    """Whether the entry is a call that yields positions, whatever its operands are."""
    return isinstance(entry, Call) and FUNCTIONS[entry.function].yields == "position"


def not_whole(entry: Expression) -> Expression | None:
    """A part of an expression of positions that is not an integer; None if all parts are."""
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
