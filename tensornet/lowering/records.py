"""Lowering as the records of functions use it: for one call, with the sizes of its axes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..contraction.pairs import Layout
from ..device.model import DeviceProfile
from ..language.affine import is_window, reached
from ..language.expression import Call, Expression, Literal, Ref, free_axes, scalar_value, transform
from ..ops.protocols import Left, Reached, Value, axes_in, common, sizes_of
from ..ops.table import Element
from .context import LoweringContext
from .pointwise import applied
from .reading import in_windows
from .steps import convert, emit, grouped, offers

__all__ = ["OneCall"]


@dataclass(frozen=True)
class OneCall:
    """The lowering of one call; see `ops.protocols.Lowering`."""

    context: LoweringContext

    @property
    def profile(self) -> DeviceProfile:
        """The device."""
        return self.context.profile

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.context.itemsize

    def size(self, axis: str) -> Any:
        """The size of an axis of the call."""
        return self.context.sizes[axis]

    def new_axis(self) -> str:
        """The name of a new axis, which the call does not have."""
        return next(name for name in (f"v_{n}" for n in itertools.count()) if name not in self.context.sizes)

    def lower(self, expression: Expression, wanted: Layout | None = None) -> Value:
        """The value of an expression."""
        return self.context.lower(expression, wanted)

    def applied(self, function: str, values: Sequence[Value]) -> Value:
        """A pointwise function of tensors that are lowered already."""
        return applied(self.context, function, values)

    def in_windows(self, ref: Ref, *, bare: bool) -> tuple[Value, tuple[Call, ...]]:
        """A tensor that is read in windows, and one-hot tensors of their positions."""
        return in_windows(self.context, ref, bare=bare)

    def convert(self, value: Value, element: Element) -> Value:
        """The value with elements of another type."""
        return convert(self.context, value, element)

    def offers(self, value: Value, groups: Sequence[Layout]) -> bool:
        """Whether a value has a dimension for each group without a copy."""
        return offers(self.context, value, groups)

    def grouped(self, value: Value, groups: Sequence[Layout]) -> Value:
        """The value with a dimension for those axes of each group that it has, copied if it does not offer them."""
        return grouped(self.context, value, [common(group, value.layout) for group in groups])

    def count(self, *groups: Iterable[str]) -> int:
        """The number of positions along the axes of some groups."""
        return self.context.count(self.context.sizes, itertools.chain(*groups))

    def number(self, size: Any) -> int:
        """The planned value of a size."""
        return int(self.context.known(size))

    def reached(self, expression: Expression) -> Reached:
        """The positions that an expression gives, as a sum of two axes."""
        return reached(expression)

    def is_even(self, expression: Expression, axes: tuple[str, ...]) -> bool:
        """Whether an expression gives positions at even distances, one for each position along an axis."""
        return free_axes(expression) == axes and len(axes) == 1 and is_window(expression)

    def raised(self, expression: Expression, least: float) -> Expression:
        """An expression with its numbers raised to at least `least`."""
        value = scalar_value(expression) if isinstance(expression, Literal) else None
        if isinstance(value, int | float) and value < least:
            return Literal(least)
        return transform(expression, lambda part: self.raised(part, least))

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
        """Adds a step; returns its result."""
        made = (axis for axis in (*axes_in(left), *right.axes) if axis in self.context.sizes)
        sizes = {axis: self.context.sizes[axis] for axis in made} | sizes_of(operands)
        return emit(self.context, left, right, operands, sizes, element, seconds=seconds, flops=flops)
