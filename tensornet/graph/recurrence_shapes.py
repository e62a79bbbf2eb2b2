"""Shape inference of recurrences: their equations read results that are defined later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from ..language.equation import Equation
from ..language.expression import Ref
from ..sizes import invert_size, name_of, size_names, symbol, terms_of
from .leaves import Leaf
from .recurrences import Recurrence, read_later
from .shape_inference import Axis, Dim, Scope, scope_of
from .unify import Unifier

__all__ = ["dims_of_recurrences"]

_MARK = "@"  # no name contains it


class Returning(Protocol):
    """A call, which returns tensors of known dimensions."""

    @property
    def defines(self) -> tuple[str, ...]:
        """The tensors that it returns."""

    def returned(self, bound: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Dim, ...]]]:
        """Their dimensions in the caller's sizes; `bound` holds the sizes that have a value in the caller."""


def dims_of_recurrences(
    leaves: Iterable[Leaf],
    body: Iterable[Equation | Returning],
    groups: Iterable[Recurrence],
    bound: Mapping[str, Any],
) -> dict[str, tuple[Dim, ...]]:
    """The dimensions of the tensors that are recurrent or defined below their readers. An axis that nothing sizes gets
    the size of its name.

    Args:
        leaves, body: the leaves and the body of a graph.
        groups: its recurrences.
        bound: the sizes that have a value.
    """
    body, found = list(body), _Foreseen()
    known = {leaf.name: leaf.dims for leaf in leaves}
    later = {*read_later(body, known)}
    round_about = {each.name: each for group in groups for each in group.equations}
    round_about |= {each.name: each for each in body if isinstance(each, Equation) and each.name in later}
    known.update({name: _marked(each, Scope()) for name, each in round_about.items()})
    for item in body:
        if not isinstance(item, Equation):
            known.update(item.returned(bound))
            continue
        scope = scope_of(item.right, known, found.unify, bound, solves=False)
        made = _marked(item, scope)
        for ours, theirs in zip(made, known.get(item.name, made), strict=True):
            for one, other in zip(ours, theirs, strict=True):
                found.unify(one.size, other.size, one.name, None)
        known[item.name] = made
    return {name: tuple(map(_named, found.dims(known[name]))) for name in round_about}


def _marked(equation: Equation, scope: Scope) -> tuple[Dim, ...]:
    """The dimensions of an equation's result, with a marked symbol for each size that is not known yet."""
    told = {**scope.inner, **scope.assumed, **scope.sizes}

    def axis(name: str) -> Axis:
        return Axis(name, told.get(name, symbol(f"{equation.name}{_MARK}{name}")))

    entries = ((entry,) if isinstance(entry, str) else entry for entry in equation.left)
    return tuple(tuple(map(axis, entry)) for entry in entries)


def _named(dim: Dim) -> Dim:
    """A dimension in which an axis whose size is still marked gets the size of its name."""
    marked = {axis.name for axis in dim if any(_MARK in name for name in size_names(axis.size))}
    return tuple(Axis(axis.name, symbol(axis.name)) if axis.name in marked else axis for axis in dim)


class _Foreseen(Unifier):
    """Solves for the marked sizes only. Whether other sizes agree is checked later."""

    def __init__(self) -> None:
        super().__init__({})

    def is_open(self, size: Any) -> bool:
        return _MARK in (name_of(size) or "")

    def unify(self, a: Any, b: Any, axis: str, ref: Ref | None) -> Any:
        a, b = self.resolve(a), self.resolve(b)
        difference = a - b
        for name in reversed(size_names(difference)):
            if _MARK in name and dict(terms_of(difference)).get(((name, 1),)) in (1, -1):
                found = invert_size(difference, name, 0)
                if found is not None:
                    self.solution[name] = found
                    return self.resolve(a)
        return a
