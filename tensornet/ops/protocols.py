"""The interface between the records of functions and the folders above them.

Records may not import lowering or code generation, so these are protocols.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from ..dtypes import Element
from ..sizes import product
from ..syntax import Call, Expression, Ref

Entry: TypeAlias = "str | tuple[str, ...]"
"""A dimension: an axis, or a composite of several."""

Left: TypeAlias = "tuple[Entry, ...]"
"""The order in memory of the result of a step."""

Reached: TypeAlias = "tuple[tuple[str, int], tuple[str, int], int]"
"""An axis with its stride in positions, a second axis (or an empty name) with its stride, and the first position."""


def names_in(entry: Entry) -> tuple[str, ...]:
    """The axes of a dimension."""
    return entry if isinstance(entry, tuple) else (entry,)


def axes_in(entries: Iterable[Any]) -> list[str]:
    """The axes in the brackets of a tensor that is read in its layout, with those of composites."""
    return [axis for entry in entries for axis in (entry if isinstance(entry, tuple) else (entry,))]


def layout_of(ref: Ref) -> tuple[str, ...]:
    """The axes of a tensor that is read in its layout, in the order in memory."""
    return tuple(axes_in(ref.index))


def left_of(groups: Iterable[tuple[str, ...]]) -> Left:
    """The left side of a step whose result has one dimension for each group of axes that is not empty."""
    return tuple(group[0] if len(group) == 1 else group for group in groups if group)


def common(
    axes: Iterable[str], *others: Collection[str], but: Iterable[Collection[str]] = ()
) -> tuple[str, ...]:
    """The axes that all others have too, and none of those in `but`, in the order of the first."""
    return tuple(
        axis
        for axis in axes
        if all(axis in each for each in others) and not any(axis in each for each in but)
    )


def roles(signature: str, layouts: Sequence[Collection[str]]) -> dict[str, tuple[str, ...]]:
    """The axes of each letter of a signature: those that exactly the operands with the letter have.

    In `"sid sjd sjf"` a query, a key and a value share the axes `s`, and `d` are the axes of query and key alone.
    """
    words = signature.split()
    axes = dict.fromkeys(axis for each in layouts for axis in each)
    holders = {axis: [axis in each for each in layouts] for axis in axes}
    letters = dict.fromkeys("".join(words))
    own = {letter: [letter in word for word in words] for letter in letters}
    return {letter: tuple(axis for axis in axes if holders[axis] == own[letter]) for letter in letters}


@dataclass(frozen=True)
class Value:
    """A tensor during lowering: how it is read, the symbolic sizes of its axes, the kind of its elements."""

    ref: Ref
    sizes: Mapping[str, Any]
    element: Element

    @functools.cached_property
    def layout(self) -> tuple[str, ...]:
        """Its axes in the order in memory."""
        return layout_of(self.ref)

    @property
    def left(self) -> Left:
        """The left side of a step whose result has the layout of this tensor."""
        return self.ref.index  # type: ignore[return-value]


def sizes_of(values: Iterable[Value]) -> dict[str, Any]:
    """The sizes of all axes of some tensors."""
    return {axis: size for each in values for axis, size in each.sizes.items()}


def extent(sizes: Mapping[str, Any], axes: Iterable[str]) -> Any:
    """The number of positions along some axes, symbolic in open sizes."""
    return product(sizes[axis] for axis in axes)


class Lowering(Protocol):
    """The part of lowering that records with their own `lowered` rule call; see `lowering.lower`."""

    @property
    def profile(self) -> Any:
        """The constants of the device; see `device.cost_model.DeviceProfile`."""

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""

    def size(self, axis: str) -> Any:
        """The size of an axis of the call."""

    def new_axis(self) -> str:
        """A new axis that does not occur in the call."""

    def lower(self, expression: Expression, wanted: tuple[str, ...] | None = None) -> Value:
        """The value of an expression, whose steps this emits; `wanted` is the preferred order in memory."""

    def applied(self, function: str, values: Sequence[Value]) -> Value:
        """A pointwise function of lowered tensors, converted to the element types that it requires."""

    def convert(self, value: Value, element: Element) -> Value:
        """The value with its elements converted to another kind."""

    def offers(self, value: Value, groups: Sequence[tuple[str, ...]]) -> bool:
        """Whether a value has a dimension for each group, the last innermost, without a copy."""

    def grouped(self, value: Value, groups: Sequence[tuple[str, ...]]) -> Value:
        """The value with a dimension for those axes of each group that it has, copied where it does not offer them."""

    def count(self, *groups: Iterable[str]) -> int:
        """The number of positions along the axes of some groups, at the planned sizes."""

    def number(self, size: Any) -> int:
        """The planned value of a size."""

    def reached(self, expression: Expression) -> Reached:
        """The positions that an expression gives, as a sum of two scaled axes, or of one."""

    def is_even(self, expression: Expression, axes: tuple[str, ...]) -> bool:
        """Whether an expression gives positions at even distances, one for each position along an axis."""

    def raised(self, expression: Expression, least: float) -> Expression:
        """An expression in which numbers below `least` are replaced by it."""

    def emit(
        self,
        left: Left,
        right: Call,
        operands: Sequence[Value],
        element: Element,
        *,
        seconds: float | None = None,
        flops: Any = 0,
    ) -> Value:
        """Adds a step and returns its result."""


def numeric(lowering: Lowering, values: Sequence[Value]) -> list[Value]:
    """The values in one type of numbers, of at least float32."""
    element = max([Element.WIDE, *(each.element for each in values)])
    return [lowering.convert(each, element) for each in values]


class Writer(Protocol):
    """The part of code generation that records with their own `spelled` rule call; see `codegen.context`."""

    def op(self, template: str, *operands: str, **details: str) -> str:
        """The source of one operation, from the backend's template of that name."""

    def render(self, expression: Expression, left: Left) -> str:
        """An operand, or a pointwise expression of operands, aligned to the result."""

    def view(self, ref: Ref, groups: Sequence[tuple[str, ...]], *, ones: bool = False) -> str:
        """An operand with one dimension for each group; an empty group gets one of size 1 with `ones`, else none."""

    def broadcast(self, ref: Ref, groups: Sequence[tuple[str, ...]]) -> str:
        """An operand with one dimension for each group: of size 1 if it has none of the group's axes, else full."""

    def extent(self, axes: Sequence[str]) -> str:
        """The number of positions along some axes."""

    def reshaped(self, text: str, left: Left) -> str:
        """A result with one dimension for each entry of the left side."""

    def looked(self, text: str, name: str, axis: str) -> str:
        """The positions in a tensor of some name, after a check that they are within an axis."""

    def atomic(self, ref: Ref) -> str:
        """An operand with one dimension for each axis, in the order in memory."""

    def reached(self, expression: Expression) -> Reached:
        """The positions that an expression gives, as a sum of two scaled axes, or of one."""

    def options(self, call: Call) -> dict[str, str]:
        """The options of a function from its call, or their defaults from its record."""

    def scalar(self, expression: Expression) -> str:
        """The source of a number."""

    def number(self, expression: Expression) -> str:
        """The source of a number as a tensor."""

    def integer(self, expression: Expression) -> int:
        """The value of a known whole number; raises an EquationError otherwise."""

    def is_number(self, expression: Expression) -> bool:
        """Whether an operand is a number."""

    def value(self, expression: Expression) -> Any:
        """The value of a number; None for a tensor, or while a size in it is open."""
