"""Abstract syntax of expressions, the right sides of equations: five kinds of frozen nodes.

    expression := Ref          x[b, i], E[t[b, i], c], Q[(h, d), e], z[b, 0], x[b, 2*p + u]
                | Literal      2, 0.5, inf
                | Size         d, the size of an axis (a number, with no axes of its own)
                | Contraction  Σ_summed factor · factor · …
                | Call         f(…), f[axes](…): a row of the table of operations, `ops.table.FUNCTIONS`

Everything downstream (graphs, rewrites, plans, generated code) is built from these nodes. A step
of a plan is an equation with a right side that is one level deep.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from .codec import document
from .errors import Place


@document()
@dataclass(frozen=True)
class Ref:
    """A tensor read under axis names: `x[b, i]`. Axis names are local to the equation."""

    name: str
    index: tuple[Index, ...]
    place: Place | None = field(default=None, compare=False, repr=False)

    @property
    def said(self) -> str:
        """The name that the text reads there: rewriting gives a part of `x` the name `x_part`."""
        read = self.place.text.partition("[")[0] if self.place is not None else ""
        return read if read and self.name.startswith(read.replace(".", "_")) else self.name


@document()
@dataclass(frozen=True, eq=False)
class Literal:
    """A number. 2 and 2.0 differ: integers stay exact where real numbers do not."""

    value: bool | int | float | complex
    place: Place | None = field(default=None, compare=False, repr=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self._written == other._written

    def __hash__(self) -> int:
        return hash(self._written)

    @property
    def _written(self) -> str:
        return repr(self.value)


@document()
@dataclass(frozen=True)
class Size:
    """The size of an axis, as a number: of the axis in this equation, else the size of that name in the graph."""

    axis: str
    place: Place | None = field(default=None, compare=False, repr=False)


@document()
@dataclass(frozen=True)
class Contraction:
    """A product of factors, summed over the axes in `summed` (sorted; none for a plain product)."""

    factors: tuple[Expression, ...]
    summed: tuple[str, ...] = ()
    place: Place | None = field(default=None, compare=False, repr=False)


@document()
@dataclass(frozen=True)
class Call:
    """A function of the table of operations, applied to arguments, over axes if it takes any."""

    function: str
    arguments: tuple[Expression, ...] = ()
    axes: tuple[str, ...] = ()
    options: tuple[tuple[str, tuple[Expression, ...]], ...] = ()
    place: Place | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Span:
    """`start:stop:step` in brackets, as parsed. In equations a crop replaces it."""

    start: Expression | None = None
    stop: Expression | None = None
    step: int = 1
    place: Place | None = field(default=None, compare=False, repr=False)


Index: TypeAlias = "str | int | tuple[str, ...] | Ref | Contraction | Call"
"""An entry in brackets: an axis, a position, a composite, or an expression of positions, in which `index(p)`
is written `p`."""

Expression: TypeAlias = "Ref | Literal | Size | Contraction | Call"
