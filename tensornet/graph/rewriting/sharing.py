"""What occurs twice is computed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from ...language.equation import Equation
from ...language.expression import (
    Call,
    Contraction,
    Expression,
    Ref,
    Size,
    free_axes,
    fresh,
    is_scalar,
    rename,
    rename_tensors,
    subexpressions,
    transform,
)
from ...operations.functions import FUNCTIONS
from ..graph import Graph

__all__ = ["is_random", "share"]


def share(graph: Graph) -> Graph:
    """Computes once what occurs twice: equal equations merge, equal subexpressions get a name."""
    graph = _merge(graph)
    counts: Counter[Expression] = Counter()
    for equation in graph.own:
        for part in _shareable(equation.right):
            counts[_canonical(part)[0]] += 1
    repeated = {form for form, count in counts.items() if count > 1}
    if not repeated:
        return graph
    return _merge(_hoist(graph, repeated))


def _shareable(expression: Expression) -> Iterator[Expression]:
    """The parts worth a name: calls and sums over something, not products of whole equations."""
    for part in subexpressions(expression):
        if part is expression or not isinstance(part, Call | Contraction) or is_scalar(part):
            continue
        if not _depends_on_place(part) and not is_random(part):
            yield part


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
    seen: dict[tuple[object, ...], str] = {}
    renamed: dict[str, str] = {}
    kept: list[Equation] = []
    for equation in graph.own:
        if renamed:
            equation = replace(equation, right=rename_tensors(equation.right, renamed))
        form, names = _canonical(equation.right)
        left = tuple(
            names[entry] if isinstance(entry, str) else tuple(names[axis] for axis in entry)
            for entry in equation.left
        )
        key = (left, form)
        random = is_random(equation.right)
        if (
            key in seen
            and equation.name not in graph.outputs
            and not random
            and not _depends_on_place(equation.right)
        ):
            renamed[equation.name] = seen[key]
        else:
            seen.setdefault(key, equation.name)
            kept.append(equation)
    return replace(graph, body=tuple(kept)) if renamed else graph
