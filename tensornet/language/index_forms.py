"""Index forms: `...` and composites with fixed parts, rewritten to plain equations.

y[b,f] = s[b,(0,f)]   is   s_parts[b,i,f] = s[b,(i,f)];  y[b,f] = s_parts[b,0,f]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ..sizes import size_names
from .equation import Calling, Declaration, Definition, Equation, Statement
from .expression import ELLIPSIS, Expression, Index, Parts, Ref, axes_of_index, fresh, occurring, transform

__all__ = ["expand_ellipsis", "expand_index", "written_out"]


def written_out(statements: Iterable[Statement], taken: Iterable[str] = ()) -> Iterator[Statement]:
    """The statements of a block, rewritten so that composites consist of axes only.

    Args:
        statements: the statements of the text.
        taken: names that have a meaning outside the text; new axes and tensors avoid them.
    """
    statements = tuple(statements)
    taken = {*taken, *(name for each in statements for name in _names(each))}
    for each in statements:
        if isinstance(each, Equation) and any(map(_has_parts, each.references)):
            yield from _Writing(each, taken).equations()
        else:
            yield each


def _names(statement: Statement) -> Iterator[str]:
    """The tensors, axes and sizes that a statement names."""
    match statement:
        case Equation():
            yield statement.name
            yield from (*statement.axes, *(ref.name for ref in statement.references))
        case Declaration(name, dims=dims, size=size):
            sizes = [size, *(each for dim in dims or () for _, each in dim)]
            yield from (name, *(axis for dim in dims or () for axis, _ in dim))
            yield from (spoken for each in sizes if each is not None for spoken in size_names(each))
        case Definition(name):
            yield name
        case Calling():
            yield from (*statement.results, *statement.operands)


def _has_parts(ref: Ref) -> bool:
    return any(isinstance(entry, Parts) for entry in ref.index)


@dataclass
class _Writing:
    """Rewrites one equation, and collects the new equations that must precede it."""

    equation: Equation
    taken: set[str]
    before: list[Equation] = field(default_factory=list)

    def equations(self) -> Iterator[Equation]:
        """The equations that replace it."""
        right = self._visit(self.equation.right)
        yield from (*self.before, replace(self.equation, right=right))

    def _visit(self, expression: Expression) -> Expression:
        changed = transform(expression, self._visit)
        return self._apart(changed) if isinstance(changed, Ref) and _has_parts(changed) else changed

    def _apart(self, ref: Ref) -> Ref:
        """A read of a new tensor that has a dimension for each part of a composite."""
        taken = occurring(self.equation.right) | set(axes_of_index(self.equation.left)) | self.taken
        own: set[str] = set()
        whole: list[str | tuple[str, ...]] = []
        apart: list[str | tuple[str, ...]] = []
        read: list[Index] = []

        def named(entry: Index) -> str:
            name = entry if isinstance(entry, str) and entry not in own else fresh("i", taken | own)
            own.add(name)
            return name

        for entry in ref.index:
            if isinstance(entry, Parts):
                names = tuple(map(named, entry.entries))
                whole.append(names)
                apart += names
                read += entry.entries
            else:
                whole.append(tuple(map(named, entry)) if isinstance(entry, tuple) else named(entry))
                apart.append(whole[-1])
                read.append(entry)
        name = fresh(f"{ref.name}_parts", self.taken)
        self.taken.add(name)
        right = Ref(ref.name, tuple(whole), ref.place)
        self.before.append(Equation(name, tuple(apart), right, self.equation.place))
        return Ref(name, tuple(read), ref.place)


def expand_index(index: tuple[Any, ...], lead: tuple[str, ...]) -> tuple[Any, ...]:
    """An index with `...` replaced by the names it stands for."""
    expanded: list[Any] = []
    for entry in index:
        expanded.extend(lead if entry == ELLIPSIS else (entry,))
    return tuple(expanded)


def expand_ellipsis(expression: Expression, lead: tuple[str, ...]) -> Expression:
    """An expression with `...` replaced by the names it stands for."""
    change: Callable[[Expression], Expression] = lambda part: expand_ellipsis(part, lead)  # noqa: E731
    expression = transform(expression, change)
    if isinstance(expression, Ref):
        return replace(expression, index=expand_index(expression.index, lead))
    return expression
