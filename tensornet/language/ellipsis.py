"""What `...` stands for, written out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .expression import ELLIPSIS, Expression, Ref, transform

__all__ = ["expand_ellipsis", "expand_index"]


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
