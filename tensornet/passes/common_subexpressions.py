"""Common subexpression elimination: what occurs twice is computed once."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ..graph.graph import Graph
from ..graph.shape_inference import Scope, beside, scope_inside, without_axes
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Ref,
    Size,
    bound_axes,
    free_axes,
    fresh,
    is_scalar,
    parts_of,
    rename,
    rename_tensors,
    subexpressions,
    transform,
)
from ..ops.table import FUNCTIONS
from ..sizes import evaluate

__all__ = ["is_random", "eliminate_common_subexpressions"]


def eliminate_common_subexpressions(graph: Graph) -> Graph:
    """Computes once what occurs twice: equal equations merge, equal subexpressions get a name."""
    graph = _merge(graph)
    repeated = _repeated(graph)
    return _merge(_hoist(graph, repeated)) if repeated else graph


def _repeated(graph: Graph) -> set[_Form]:
    """The forms that occur more than once: of calls and sums over something, not products of whole equations."""
    inner = [
        (part, place)
        for equation in graph.own
        for part, place in _placed(equation.right, _Place(graph, equation))
    ]
    alike = Counter(_outline(part) for part, _ in inner)
    found = (each for each in inner if alike[_outline(each[0])] > 1 and _is_shareable(*each))
    counts = Counter(_form(*each) for each in found)
    return {form for form, count in counts.items() if count > 1}


@dataclass(frozen=True)
class _Place:
    """Where a part of an equation stands.

    Attributes:
        graph, equation: which one.
        binders: the sums and functions around it that bind axes, the outermost first.
        is_read: whether it tells positions, in brackets.
    """

    graph: Graph
    equation: Equation
    binders: tuple[Contraction | Call, ...] = ()
    is_read: bool = False

    def within(self, part: Expression) -> _Place:
        """Inside of a part that stands here."""
        if isinstance(part, Ref):
            return replace(self, is_read=True)
        if isinstance(part, Contraction | Call) and bound_axes(part):
            return replace(self, binders=(*self.binders, part))
        return self

    def scope(self) -> Scope:
        """The sizes of the axes there: a name that is bound speaks of no axis further out."""
        found = self.graph.scope(self.equation)
        for binder in self.binders:
            inner = self.alone(Contraction(tuple(parts_of(binder))))
            found = beside(without_axes(found, bound_axes(binder)), inner)
        return found

    def alone(self, part: Expression) -> Scope:
        """The sizes of the axes in a part, as it tells them by itself."""
        return scope_inside(part, self.graph.named, self.graph.bound)


def _placed(expression: Expression, place: _Place) -> Iterator[tuple[Contraction | Call, _Place]]:
    """The calls and products inside of an expression, with their places."""
    parts = parts_of(expression)
    inside = place.within(expression) if parts else place
    for part in parts:
        if isinstance(part, Contraction | Call):
            yield part, inside
        yield from _placed(part, inside)


def _is_shareable(part: Expression, place: _Place) -> bool:
    return not is_scalar(part) and _is_mergeable(part, place)


def _is_mergeable(part: Expression, place: _Place) -> bool:
    return not is_random(part) and not _depends_on(part, place)


def _outline(expression: Expression) -> tuple[object, ...]:
    """What an expression is at a glance: of those that say the same, whatever their axes are called, it is one."""
    inside = (each.name if isinstance(each, Ref) else type(each) for each in parts_of(expression))
    told = expression.function if isinstance(expression, Call) else getattr(expression, "name", "")
    return (type(expression), told, *inside)


def is_random(expression: Expression) -> bool:
    """Whether the value is another each time."""
    return any(
        isinstance(part, Call) and FUNCTIONS[part.function].random for part in subexpressions(expression)
    )


def _shows_sizes(part: Expression) -> bool:
    """Whether sizes of the surrounding equation may show in the value."""
    return any(
        isinstance(each, Size) or (isinstance(each, Call) and FUNCTIONS[each.function].tells_sizes)
        for each in subexpressions(part)
    )


def _depends_on(part: Expression, place: _Place) -> bool:
    """Whether sizes that only the place of a part tells show in its value."""
    if not _shows_sizes(part):
        return False
    parts = subexpressions(part)
    spoken = {each.axis for each in parts if isinstance(each, Size)}
    bound = (bound_axes(each) for each in parts if isinstance(each, Contraction | Call))
    is_of_tensors = any(isinstance(each, Ref) for each in parts)
    if place.is_read or not is_of_tensors or not spoken.isdisjoint(frozenset().union(*bound)):
        return True
    here, alone, known = place.scope(), place.alone(part), place.graph.bound
    axes = {*free_axes(part), *spoken}
    return any(evaluate(here[axis], known) != evaluate(alone[axis], known) for axis in axes)


_Form: TypeAlias = "tuple[Expression, tuple[Any, ...]]"
"""What a part says, whatever its axes are called, and where their sizes show, these."""


def _form(part: Expression, place: _Place) -> _Form:
    form = rename(part, _numbered(part))
    if place.is_read or not _shows_sizes(part):
        return form, ()
    here, known = place.scope(), place.graph.bound
    return form, tuple(evaluate(here[axis], known) for axis in free_axes(part))


def _numbered(expression: Expression) -> dict[str, str]:
    """The free axes of an expression by numbers, in their order."""
    return {axis: f"#{position}" for position, axis in enumerate(free_axes(expression))}


def _hoist(graph: Graph, repeated: set[_Form]) -> Graph:
    equations: list[Equation] = []
    named: dict[_Form, str] = {}
    taken = set(graph.dims)

    def inside(part: Expression, place: _Place) -> Expression:
        return transform(part, functools.partial(visit, place=place.within(part)))

    def visit(part: Expression, place: _Place) -> Expression:
        form = _form(part, place) if isinstance(part, Call | Contraction) else None
        if form not in repeated or not _is_shareable(part, place):
            return inside(part, place)
        names = free_axes(part)
        if form not in named:
            named[form] = fresh("shared", taken)
            taken.add(named[form])
            equations.append(Equation(named[form], names, inside(part, place), part.place))
        return Ref(named[form], names, part.place)

    for equation in graph.own:
        right = inside(equation.right, _Place(graph, equation))
        equations.append(replace(equation, right=right))
    return replace(graph, body=tuple(equations))


def _merge(graph: Graph) -> Graph:
    """Of equations that say the same, keeps the first."""
    first: dict[tuple[object, ...], Equation] = {}
    seen: dict[tuple[object, ...], str] = {}
    renamed: dict[str, str] = {}
    kept: list[Equation] = []
    for equation in graph.own:
        if renamed:
            equation = replace(equation, right=rename_tensors(equation.right, renamed))
        alike = first.setdefault(_outline(equation.right), equation)
        if alike is not equation:
            seen.setdefault(_said(alike, graph), alike.name)
            same = seen.setdefault(_said(equation, graph), equation.name)
            if (
                same != equation.name
                and equation.name not in graph.outputs
                and _is_mergeable(equation.right, _Place(graph, equation))
            ):
                renamed[equation.name] = same
                continue
        kept.append(equation)
    return replace(graph, body=tuple(kept)) if renamed else graph


def _said(equation: Equation, graph: Graph) -> tuple[object, ...]:
    """What an equation says, whatever its axes are called."""
    form, names = _form(equation.right, _Place(graph, equation)), _numbered(equation.right)
    left = (
        names[entry] if isinstance(entry, str) else tuple(names[axis] for axis in entry)
        for entry in equation.left
    )
    return (*left, form)
