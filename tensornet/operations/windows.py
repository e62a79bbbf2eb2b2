"""Windows of kernels: where positions along an axis are a sum of two others, `i = first + by·p + apart·u`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from ..language.expression import Call, Expression
    from ..planning.values import Value
    from .services import Lowering, Writer

__all__ = ["DIMENSIONS", "Axes", "Window", "as_they_lie", "windows_of"]

DIMENSIONS = 3
"""So many dimensions libraries have convolutions and pools of."""

Axes = tuple[str, ...]


@dataclass(frozen=True)
class Window:
    """One dimension: the axes `at` of the operand, `outer` of the result, `inner` of the kernel, and how they meet.

    A kernel of one element along it has no axis there, and `inner` no name.
    """

    at: str
    outer: str
    inner: str
    by: int
    apart: int
    first: int

    @property
    def turned(self) -> Window:
        """The same positions, in which the two axes change places."""
        return replace(self, outer=self.inner, inner=self.outer, by=self.apart, apart=self.by)


def windows_of(ones: Sequence[Expression], asked: Lowering | Writer) -> tuple[Window, ...]:
    """The dimensions that calls of ones say."""
    found = []
    for each in cast("Sequence[Call]", ones):
        (outer, by), (inner, apart), first = asked.reached(each.arguments[0])
        found.append(Window(each.axes[0], outer, inner, by, apart, first))
    return tuple(found)


def as_they_lie(ones: Sequence[Call], value: Value, asked: Lowering) -> tuple[Call, ...]:
    """Calls of ones in the order in which the dimensions lie in memory."""

    def place(each: Call) -> int:
        ((outer, _), _, _), axes = asked.reached(each.arguments[0]), value.layout
        return axes.index(outer if outer in axes else each.axes[0])

    return tuple(sorted(ones, key=place))
