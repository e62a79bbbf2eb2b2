"""Expansion: functions that the backend does not spell, written in the functions that they are made of."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial

from ..graph.graph import Graph
from ..language.canonical import expanded
from ..language.equation import Equation
from ..language.expression import Call, Expression, Size, flat, product_of, transform
from ..ops.table import FUNCTIONS
from .common_subexpressions import is_random

__all__ = ["expand", "is_made_of_others"]


def is_made_of_others(part: object) -> bool:
    """Whether a part of an equation is a call that others say as well."""
    return isinstance(part, Call) and bool(FUNCTIONS[part.function].expansion)


def expand(graph: Graph, supported: Collection[str]) -> Graph:
    """The graph with expansions in the place of functions that the backend has no spelling for.

    Args:
        graph: a graph.
        supported: the operations that the backend has; none where nothing is to run, and then nothing lacks.
    """
    if not supported:
        return graph
    body = tuple(
        replace(item, right=_expanded(item.right, supported)) if isinstance(item, Equation) else item
        for item in graph.body
    )
    return graph if body == graph.body else replace(graph, body=body)


def _expanded(part: Expression, supported: Collection[str]) -> Expression:
    changed = transform(part, partial(_expanded, supported=supported))
    if not isinstance(changed, Call) or not is_made_of_others(changed) or changed.function in supported:
        return part if changed is part else flat(changed)
    if any(map(is_random, changed.arguments)):  # an expansion reads it more than once, and would draw again
        return changed
    return _expanded(expanded(changed, _count(changed)), supported)


def _count(call: Call) -> Expression:
    """The number of positions that a call runs over."""
    return product_of([Size(axis) for axis in call.axes])
