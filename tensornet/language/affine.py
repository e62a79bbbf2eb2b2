"""Affine indices: positions that are a sum of scaled axes, `x[b, 2*p + u - 1]`."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from ..ops.record import Reached
from ..ops.structure import INDEX, INSIDE, ONEHOT
from .expression import Call, Contraction, Expression, Literal, Ref, product_of, scalar_value, sum_of

ZERO, ONE = Literal(0), Literal(1)


@dataclass(frozen=True)
class Affine:
    """`offset + Σ step · axis`.

    Attributes:
        steps: the axes in the order of the text, each with its step in positions. A step may contain sizes.
        offset: the position at the start of all axes.
    """

    steps: tuple[tuple[str, Expression], ...]
    offset: Expression

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes. If nothing else gives the size of the first, it is as long as the tensor read allows."""
        return tuple(axis for axis, _ in self.steps)


@functools.lru_cache(maxsize=1 << 12)
def affine(expression: Expression) -> Affine | None:
    """The positions of an expression in affine form; None if it is not affine, or names an axis twice."""
    if not expression.free_axes:
        return None
    try:
        terms = [*_terms(expression)]
    except ValueError:
        return None
    steps = tuple((axis, step) for axis, step in terms if axis)
    if len({axis for axis, _ in steps}) < len(steps):
        return None
    return Affine(steps, sum_of([step for axis, step in terms if not axis] or [ZERO]))


def _terms(expression: Expression, by: tuple[Expression, ...] = ()) -> Iterator[tuple[str, Expression]]:
    """The terms of a sum, each an axis and its step. A term without an axis is a number.

    Raises:
        ValueError: it is no sum of scaled axes.
    """
    match expression:
        case _ if expression.is_scalar:
            yield "", product_of([each for each in (*by, expression) if each != ONE] or [ONE])
        case Call(INDEX.name, (), (axis,)):
            yield axis, product_of(by or [ONE])
        case Call("add", arguments):
            for each in arguments:
                yield from _terms(each, by)
        case Contraction(factors, ()) if sum(not each.is_scalar for each in factors) == 1:
            (moving,) = (each for each in factors if not each.is_scalar)
            yield from _terms(moving, (*by, *(each for each in factors if each not in (moving, ONE))))
        case _:
            raise ValueError(expression)


def is_window(expression: Expression) -> bool:
    """Whether positions are affine in one or two axes, with integer steps ≥ 1 and an integer offset ≥ 0."""
    found = affine(expression)
    if found is None or len(found.steps) > 2:
        return False
    steps, offset = [scalar_value(step) for _, step in found.steps], scalar_value(found.offset)
    return all(isinstance(each, int) for each in (*steps, offset)) and min(steps) > 0 and offset >= 0  # type: ignore


def is_descending(expression: Expression) -> bool:
    """Whether positions go backwards along one axis, by whole steps from a whole position."""
    found = affine(expression)
    if found is None or len(found.steps) > 1:
        return False
    step, offset = scalar_value(found.steps[0][1]), scalar_value(found.offset)
    return isinstance(step, int) and isinstance(offset, int) and step < 0 <= offset


def is_cut(ref: Ref) -> bool:
    """Whether a tensor is read with a constant stride along some dimensions, and whole along the others."""
    told = ref.parts
    evenly = all(len(entry.free_axes) == 1 and is_window(entry) for entry in told)
    return bool(told) and evenly and not any(isinstance(entry, int) for entry in ref.index)


def reached(expression: Expression) -> Reached:
    """The steps and the offset of a window (see `is_window`). The second axis is unnamed if there is only one."""
    found = affine(expression)
    assert found is not None
    (one, by), (other, apart), *_ = *((axis, scalar_value(step)) for axis, step in found.steps), ("", 1)
    return (one, by), (other, apart), scalar_value(found.offset)  # type: ignore[return-value]


def ones_at(told: Expression, axis: str) -> Call:
    """A one-hot tensor with ones at the positions that an expression gives along an axis.

    Positions read from a tensor must be inside the axis. Those of axes alone may pass an end, as windows do.
    """
    holds = isinstance(told, Ref) or any(ref.index for ref in told.references)
    options = ((INSIDE, (ONE,)),) if holds else ()
    return Call(ONEHOT.name, (told,), (axis,), options)
