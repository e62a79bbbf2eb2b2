"""The seam between the records of functions and the folders above them: what one hands the other.

Records stand below lowering and code generation, so these are protocols.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from ..dtypes import Element
from ..nodes import Call, Expression, Ref
from ..sizes import product

__all__ = [
    "Device",
    "Entry",
    "Left",
    "Lowering",
    "Reached",
    "Value",
    "Writer",
    "axes_in",
    "extent",
    "layout_of",
    "left_of",
    "names_in",
    "sizes_of",
]

Entry: TypeAlias = "str | tuple[str, ...]"
"""A dimension: an axis, or a composite of several."""

Left: TypeAlias = "tuple[Entry, ...]"
"""The order in memory of the result of a step."""

Reached: TypeAlias = "tuple[tuple[str, int], tuple[str, int], int]"
"""An axis and by how many positions it moves on, another or no name, and the first position."""


def names_in(entry: Entry) -> tuple[str, ...]:
    """The axes of a dimension."""
    return entry if isinstance(entry, tuple) else (entry,)


def axes_in(entries: Iterable[Any]) -> list[str]:
    """The axes in the brackets of a tensor that is read as it lies, those of composites included."""
    return [axis for entry in entries for axis in (entry if isinstance(entry, tuple) else (entry,))]


def layout_of(ref: Ref) -> tuple[str, ...]:
    """The axes of a tensor that is read as it lies, in the order in memory."""
    return tuple(axes_in(ref.index))


def left_of(groups: Iterable[tuple[str, ...]]) -> Left:
    """The left side of a step whose result has a dimension for each group of axes; none for one that is empty."""
    return tuple(group[0] if len(group) == 1 else group for group in groups if group)


@dataclass(frozen=True)
class Value:
    """A tensor during lowering: how it is read, the symbolic sizes of its axes, what its elements are."""

    ref: Ref
    sizes: Mapping[str, Any]
    element: Element

    @functools.cached_property
    def layout(self) -> tuple[str, ...]:
        """Its axes in the order in memory."""
        return layout_of(self.ref)

    @property
    def left(self) -> Left:
        """The left side of a step whose result lies in memory as this does."""
        return self.ref.index  # type: ignore[return-value]


def sizes_of(values: Iterable[Value]) -> dict[str, Any]:
    """The sizes of all axes of some tensors."""
    return {axis: size for each in values for axis, size in each.sizes.items()}


def extent(sizes: Mapping[str, Any], axes: Iterable[str]) -> Any:
    """The number of positions along some axes, in open sizes."""
    return product(sizes[axis] for axis in axes)


class Device(Protocol):
    """The constants of a device; `device.model.DeviceProfile` is one."""

    def pointwise(self, moved: float, written: float) -> float:
        """Seconds to read and write `moved` bytes in order, `written` of them as a result."""

    def computed(self, moved: float, written: float, passes: float) -> float:
        """The same where it takes so many passes to compute what is written."""

    @property
    def tile(self) -> float:
        """Keys that the library's attention computes together, or leaves out where all of them are hidden."""

    @property
    def cached(self) -> float:
        """Bytes of a tensor from which going through it takes longer than through parts that stay near."""

    @property
    def scored(self) -> float:
        """Seconds that a score of attention takes whose kernel keeps it on the chip; 0 if none does."""

    def attention(
        self,
        shared: float,
        queries: float,
        keys: float,
        inner: float,
        channels: float,
        size: int,
        masked: bool,
    ) -> float:
        """Seconds of attention by such a kernel."""

    def scatter(self, moved: float, written: float, rows: float) -> float:
        """Seconds to add rows up at told positions, `moved` bytes in all, `written` of them as a result."""

    def convolution(
        self, groups: float, out: float, positions: float, channels: float, inner: float, size: int
    ) -> float:
        """Seconds of a convolution: groups, channels of the result, positions, channels, elements of the kernel."""

    def matmul(self, batch: float, m: float, n: float, k: float, size: int) -> float:
        """Seconds of `batch` products (m×k)·(k×n) with elements of `size` bytes."""


class Lowering(Protocol):
    """Lowering, as a record that becomes steps of its own uses it; `lowering.lower`."""

    @property
    def profile(self) -> Device:
        """The device."""

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""

    def size(self, axis: str) -> Any:
        """The size of an axis of the call."""

    def new_axis(self) -> str:
        """An axis that the call has not."""

    def lower(self, expression: Expression, wanted: tuple[str, ...] | None = None) -> Value:
        """The value of an expression: its steps are there then; `wanted` is the order in memory that would suit."""

    def applied(self, function: str, values: Sequence[Value]) -> Value:
        """A pointwise function of tensors at hand, brought together as it asks."""

    def in_windows(self, ref: Ref, *, bare: bool) -> tuple[Value, tuple[Call, ...]]:
        """A tensor that is read in windows, as it lies, and ones where its positions are those of the windows;
        bare of zeros that were put around it, if asked for."""

    def convert(self, value: Value, element: Element) -> Value:
        """The value with elements of another kind."""

    def offers(self, value: Value, groups: Sequence[tuple[str, ...]]) -> bool:
        """Whether a value has a dimension for each group, the last innermost, without a copy."""

    def grouped(self, value: Value, groups: Sequence[tuple[str, ...]]) -> Value:
        """The value, copied where it does not offer the groups."""

    def count(self, sizes: Mapping[str, Any], axes: Iterable[str]) -> int:
        """The number of positions along some axes, at the sizes planned for."""

    def reached(self, expression: Expression) -> Reached:
        """The positions that an expression tells, as a sum of two axes, or of one and none."""

    def is_even(self, expression: Expression, axes: tuple[str, ...]) -> bool:
        """Whether an expression tells positions at even distances, one for each position along an axis."""

    def raised(self, expression: Expression, least: float) -> Expression:
        """An expression whose numbers below a least one are that."""

    def emit(
        self,
        left: Left,
        right: Expression,
        operands: Sequence[Value],
        sizes: Mapping[str, Any],
        element: Element,
        *,
        seconds: float | None = None,
        flops: Any = 0,
    ) -> Value:
        """Adds a step; returns its result."""


class Writer(Protocol):
    """Code generation, as a record that spells its steps itself uses it; `codegen.steps`."""

    def op(self, template: str, *operands: str, **details: str) -> str:
        """One operation as the backend's template of that name spells it."""

    def render(self, expression: Expression, left: Left) -> str:
        """An operand, or a pointwise expression of operands, aligned to the result."""

    def view(self, ref: Ref, groups: Sequence[tuple[str, ...]], *, ones: bool = False) -> str:
        """An operand with one dimension for each group; with `ones` of size 1 for one that is empty, or else none."""

    def broadcast(self, ref: Ref, groups: Sequence[tuple[str, ...]]) -> str:
        """An operand with one dimension for each group: of size 1 where it has none of its axes, else whole."""

    def extent(self, axes: Sequence[str]) -> str:
        """The number of positions along some axes."""

    def reshaped(self, text: str, left: Left) -> str:
        """A result with a dimension for each entry."""

    def looked(self, text: str, name: str, axis: str) -> str:
        """Positions of a tensor of some name, once they are seen to be those of an axis."""

    def atomic(self, ref: Ref) -> str:
        """An operand with one dimension for each axis, in the order it lies in."""

    def reached(self, expression: Expression) -> Reached:
        """The positions that an expression tells, as a sum of two axes, or of one and none."""

    def options(self, call: Call) -> dict[str, str]:
        """The options of a function as a call gives them, or else as its record does."""

    def scalar(self, expression: Expression) -> str:
        """A number."""

    def number(self, expression: Expression) -> str:
        """A number as a tensor."""

    def integer(self, expression: Expression) -> int:
        """The value of a whole number that is known; an error where it is not."""

    def is_number(self, expression: Expression) -> bool:
        """Whether an operand is a number."""

    def value(self, expression: Expression) -> Any:
        """The value of a number, or nothing for a tensor or while a size in it is open."""
