"""Values: tensors at hand during lowering, with their layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..contraction.pairs import Layout
from ..graph.element_types import of_number
from ..graph.shape_inference import Dim
from ..language.expression import ELLIPSIS, Expression, Ref, axes_of_index, product_of
from ..ops.table import Element

__all__ = ["Entry", "Operand", "Stored", "Value", "as_declared", "names_in"]

Entry: TypeAlias = "str | tuple[str, ...]"


@dataclass(frozen=True)
class Value:
    """A tensor at hand: how it is read here, the symbolic sizes of the axes, what its elements are."""

    ref: Ref
    sizes: Mapping[str, Any]
    element: Element

    @property
    def layout(self) -> Layout:
        return axes_of_index(self.ref.index)

    @property
    def left(self) -> tuple[Entry, ...]:
        """The left side of a step whose result lies in memory as this does."""
        return tuple(entry for entry in self.ref.index if isinstance(entry, str | tuple))


@dataclass(frozen=True)
class Stored:
    """Where a named tensor is: a variable, its order in memory, the dimensions it stands for, its elements."""

    variable: str
    entries: tuple[Entry, ...]
    logical: tuple[tuple[str, ...], ...]
    dims: tuple[Dim, ...]
    element: Element

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes of the axes that it was made with."""
        return {
            label: axis.size
            for part, dim in zip(self.logical, self.dims, strict=True)
            for label, axis in zip(part, dim, strict=True)
        }


@dataclass(frozen=True)
class Operand:
    """What a pointwise step reads: a tensor with numbers before and after it, or a number alone."""

    value: Value | None
    before: tuple[Expression, ...] = ()
    after: tuple[Expression, ...] = ()

    @property
    def expression(self) -> Expression:
        middle = () if self.value is None else (self.value.ref,)
        return product_of([*self.before, *middle, *self.after])

    @property
    def numbers(self) -> tuple[Element, ...]:
        """What the numbers are."""
        return tuple(of_number(each) for each in (*self.before, *self.after))

    @property
    def is_whole(self) -> bool:
        """Whether it is made of integers."""
        elements = (*self.numbers, *(() if self.value is None else (self.value.element,)))
        return all(each <= Element.WHOLE for each in elements)


def as_declared(name: str, dims: tuple[Dim, ...], element: Element) -> Stored:
    """A tensor that lies in memory as it is declared, its axes numbered so that each is distinct; `...` stays."""
    logical = tuple(
        tuple(ELLIPSIS if axis.name == ELLIPSIS else f"{n}.{m}" for m, axis in enumerate(dim))
        for n, dim in enumerate(dims)
    )
    entries = tuple(part[0] if len(part) == 1 else part for part in logical)
    return Stored(name, entries, logical, dims, element)


def names_in(entry: Entry) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else entry
