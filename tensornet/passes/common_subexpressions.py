"""Common subexpression elimination: what occurs twice is computed once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ..graph.graph import Graph
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Ref,
    Size,
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

__all__ = ["is_random", "eliminate_common_subexpressions"]


def eliminate_common_subexpressions(graph: Graph) -> Graph:
    """Computes once what occurs twice: equal equations merge, equal subexpressions get a name."""
    graph = _merge(graph)
    repeated = _repeated(graph)
    return _merge(_hoist(graph, repeated)) if repeated else graph


def _repeated(graph: Graph) -> set[Expression]:
    """The forms that occur more than once: of calls and sums over something, not products of whole equations."""
    inner = (part for equation in graph.own for part in equation.parts[1:])
    outlines = [(_outline(part), part) for part in inner if isinstance(part, Call | Contraction)]
    alike = Counter(outline for outline, _ in outlines)
    parts = (part for outline, part in outlines if alike[outline] > 1 and _is_shareable(part))
    counts = Counter(_canonical(part)[0] for part in parts)
    return {form for form, count in counts.items() if count > 1}


def _is_shareable(part: Expression) -> bool:
    return not is_scalar(part) and _is_mergeable(part)


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


def _depends_on_place(expression: Expression) -> bool:
    """Whether sizes of the surrounding equation show in the value."""
    return any(
        isinstance(part, Size) or (isinstance(part, Call) and FUNCTIONS[part.function].tells_sizes)
        for part in subexpressions(expression)
    )


def _canonical(expression: Expression) -> tuple[Expression, dict[str, str]]:
    """The expression with its free axes renamed by order, and the renaming."""
    names = {axis: f"#{position}" for position, axis in enumerate(free_axes(expression))}
    return rename(expression, names), names


def _hoist(graph: Graph, repeated: set[Expression]) -> Graph:
    equations: list[Equation] = []
    named: dict[Expression, str] = {}
    taken = set(graph.dims)

    def visit(part: Expression) -> Expression:
        form, names = _canonical(part) if isinstance(part, Call | Contraction) else (part, {})
        if form not in repeated:
            return transform(part, visit)
        if form not in named:
            named[form] = fresh("shared", taken)
            taken.add(named[form])
            equations.append(Equation(named[form], tuple(names), transform(part, visit), part.place))
        return Ref(named[form], tuple(names), part.place)

    for equation in graph.own:
        right = transform(equation.right, visit)
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
            seen.setdefault(_said(alike), alike.name)
            same = seen.setdefault(_said(equation), equation.name)
            if same != equation.name and equation.name not in graph.outputs and _is_mergeable(equation.right):
                renamed[equation.name] = same
                continue
        kept.append(equation)
    return replace(graph, body=tuple(kept)) if renamed else graph


def _said(equation: Equation) -> tuple[object, ...]:
    """What an equation says, whatever its axes are called."""
    form, names = _canonical(equation.right)
    left = (
        names[entry] if isinstance(entry, str) else tuple(names[axis] for axis in entry)
        for entry in equation.left
    )
    return (*left, form)


def _is_mergeable(expression: Expression) -> bool:
    return not (is_random(expression) or _depends_on_place(expression))
