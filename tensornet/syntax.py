"""Abstract syntax of expressions, the right sides of equations: five kinds of frozen nodes.

    expression := Ref          x[b, i], E[t[b, i], c], Q[(h, d), e], z[b, 0], x[b, 2*p + u]
                | Literal      2, 0.5, inf
                | Size         d, the size of an axis (a number, with no axes of its own)
                | Contraction  Σ_summed factor · factor · …
                | Call         f(…), f[axes](…): a row of the table of operations, `ops.table.FUNCTIONS`

Everything downstream (graphs, rewrites, plans, generated code) is built from these nodes. A step
of a plan is an equation with a right side that is one level deep. A node knows its parts, its axes and the tensors
that it reads; it never changes, so these are computed once.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeGuard

from .codec import document
from .errors import Place

RECORDS: dict[str, Any] = {}
"""The table of operations, by name; `ops.table` fills it."""


def names_in(entry: str | tuple[str, ...]) -> tuple[str, ...]:
    """The axes of a dimension."""
    return entry if isinstance(entry, tuple) else (entry,)


def axes_in(entries: Iterable[Any]) -> list[str]:
    """The axes in the brackets of a tensor that is read in its layout, with those of composites."""
    return [axis for entry in entries for axis in (entry if isinstance(entry, tuple) else (entry,))]


@functools.lru_cache(maxsize=1 << 14)
def axes_of_index(index: tuple[Index, ...]) -> tuple[str, ...]:
    """The axis names in brackets, in order, each once, including those of gathers."""
    found: list[str] = []
    for entry in index:
        match entry:
            case str():
                found.append(entry)
            case tuple():
                found += axes_of_index(entry)
            case Ref() | Contraction() | Call():
                found += entry.free_axes
    return tuple(dict.fromkeys(found))


def is_computed_index(entry: object) -> TypeGuard[Ref | Contraction | Call]:
    """Whether an entry of brackets is an expression of positions."""
    return isinstance(entry, Ref | Contraction | Call)


def _with_positions(index: tuple[Any, ...], positions: Iterator[Expression]) -> tuple[Any, ...]:
    """The entries of brackets with their expressions of positions replaced, in order; numbers become integers."""
    entries: list[Any] = []
    for entry in index:
        if isinstance(entry, tuple):
            entry = _with_positions(entry, positions)
        elif is_computed_index(entry):
            new = next(positions)
            is_number = isinstance(new, Literal) and isinstance(new.value, int) and new.value >= 0
            entry = new.value if is_number else new  # type: ignore[union-attr]
        entries.append(entry)
    return tuple(entries)


class Tree:
    """A node of an expression."""

    @functools.cached_property
    def parts(self) -> tuple[Expression, ...]:
        """The direct parts, in the order of the text, including positions in brackets and options."""
        match self:
            case Ref(_, index):
                entries = (
                    each for entry in index for each in (entry if isinstance(entry, tuple) else (entry,))
                )
                return tuple(filter(is_computed_index, entries))
            case Contraction(factors):
                return factors
            case Call(_, arguments, _, options):
                return (*arguments, *(value for _, values in options for value in values))
        return ()

    @functools.cached_property
    def subexpressions(self) -> tuple[Expression, ...]:
        """The expression and all expressions inside it, in the order of the text."""
        found, waiting = list[Any](), list[Any]([self])
        while waiting:
            found.append(part := waiting.pop())
            waiting += part.parts[::-1]
        return tuple(found)

    @functools.cached_property
    def references(self) -> tuple[Ref, ...]:
        """Every tensor read in the expression, in the order of the text."""
        return tuple(part for part in self.subexpressions if isinstance(part, Ref))

    @functools.cached_property
    def calls(self) -> tuple[Call, ...]:
        """Every call in the expression, in the order of the text."""
        return tuple(part for part in self.subexpressions if isinstance(part, Call))

    @functools.cached_property
    def sizes(self) -> tuple[Size, ...]:
        """Every size mentioned in the expression, in the order of the text."""
        return tuple(part for part in self.subexpressions if isinstance(part, Size))

    @functools.cached_property
    def free_axes(self) -> tuple[str, ...]:
        """The axes of the value, in the order of first appearance."""
        over: tuple[str, ...] = ()
        match self:
            case Ref(_, index):
                return axes_of_index(index)
            case Contraction(inside, gone):
                pass
            case Call(function, inside, over):
                gone = RECORDS[function].leaves_out(over)
            case _:
                return ()
        found = dict.fromkeys((*(axis for part in inside for axis in part.free_axes), *over))
        return tuple(axis for axis in found if axis not in gone)

    @functools.cached_property
    def occurring(self) -> frozenset[str]:
        """Every axis name written anywhere in the expression, bound ones included."""
        found: set[str] = set()
        for part in self.subexpressions:
            match part:
                case Ref():
                    found.update(axes_of_index(part.index))
                case Contraction():
                    found.update(part.summed)
                case Call():
                    found.update(part.axes, part.option_axes)
                case Size():
                    found.add(part.axis)
        return frozenset(found)

    @functools.cached_property
    def is_scalar(self) -> bool:
        """Whether the value is a number computed from literals and sizes alone."""
        match self:
            case Contraction(_, ()):
                pass
            case Call(function) if RECORDS[function].scalar is not None:
                pass
            case _:
                return isinstance(self, Literal | Size)
        return all(part.is_scalar for part in self.parts)

    @functools.cached_property
    def is_random(self) -> bool:
        """Whether the value is random, so that it differs at each evaluation."""
        return any(RECORDS[call.function].random for call in self.calls)

    def transform(self, change: Callable[[Expression], Expression]) -> Expression:
        """The expression with `change` applied to its direct parts (not to the expression itself).

        It is the same object if `change` returns each part itself: most rewrites leave most parts unchanged.
        """
        whole: Any = self
        changed = [change(part) for part in self.parts]
        if all(map(operator.is_, self.parts, changed)):
            return whole  # type: ignore[no-any-return]
        rest = iter(changed)
        match whole:
            case Ref(name, index, place):
                return Ref(name, _with_positions(index, rest), place)
            case Contraction(_, summed, place):
                return Contraction(tuple(changed), summed, place)
        arguments = tuple(itertools.islice(rest, len(whole.arguments)))
        told = tuple((name, tuple(itertools.islice(rest, len(values)))) for name, values in whole.options)
        return Call(whole.function, arguments, whole.axes, told, whole.place)

    def rewrite(self, change: Callable[[Expression], Expression]) -> Expression:
        """The expression with `change` applied to each part, innermost first, and to the expression itself."""
        return change(self.transform(lambda part: part.rewrite(change)))


@document()
@dataclass(frozen=True)
class Ref(Tree):
    """A tensor read under axis names: `x[b, i]`. Axis names are local to the equation."""

    name: str
    index: tuple[Index, ...]
    place: Place | None = field(default=None, compare=False, repr=False)

    @functools.cached_property
    def layout(self) -> tuple[str, ...]:
        """The axes of a tensor that is read in its layout, in the order in memory."""
        return tuple(axes_in(self.index))

    @property
    def plain_axes(self) -> tuple[str, ...]:
        """The axes that index a dimension directly, not inside of an expression of positions."""
        return axes_of_index(tuple(entry for entry in self.index if not is_computed_index(entry)))

    @property
    def said(self) -> str:
        """The name that the text reads there: rewriting gives a part of `x` the name `x_part`."""
        read = self.place.text.partition("[")[0] if self.place is not None else ""
        return read if read and self.name.startswith(read.replace(".", "_")) else self.name


@document()
@dataclass(frozen=True, eq=False)
class Literal(Tree):
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
class Size(Tree):
    """The size of an axis, as a number: of the axis in this equation, else the size of that name in the graph."""

    axis: str
    place: Place | None = field(default=None, compare=False, repr=False)


@document()
@dataclass(frozen=True)
class Contraction(Tree):
    """A product of factors, summed over the axes in `summed` (sorted; none for a plain product)."""

    factors: tuple[Expression, ...]
    summed: tuple[str, ...] = ()
    place: Place | None = field(default=None, compare=False, repr=False)


@document()
@dataclass(frozen=True)
class Call(Tree):
    """A function of the table of operations, applied to arguments, over axes if it takes any."""

    function: str
    arguments: tuple[Expression, ...] = ()
    axes: tuple[str, ...] = ()
    options: tuple[tuple[str, tuple[Expression, ...]], ...] = ()
    place: Place | None = field(default=None, compare=False, repr=False)

    @property
    def option_axes(self) -> frozenset[str]:
        """The axes that it names by keyword: `i` in `roll(x, i=1)`."""
        function = RECORDS[self.function]
        if function.axes != "moved":
            return frozenset()
        known = {name for name, _ in function.options}
        return frozenset(name for name, values in self.options if name not in known or len(values) > 1)


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
