"""Values from JSON, checked: each field is there, of its kind, and finite."""

from __future__ import annotations

import math
from dataclasses import is_dataclass
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

__all__ = ["read"]

Value = TypeVar("Value")


def read(kind: type[Value], document: Any, name: str = "it") -> Value:
    """The value of a kind that `asdict` and JSON wrote.

    Args:
        kind: `str`, `bool`, `int`, `float`, `dict`, a tuple `tuple[kind, ...]`, or a dataclass of such fields.
        document: what JSON gave.
        name: what it is called in the error.

    Raises:
        ValueError: it is something else, or a number that is not finite.

    Example:
        >>> read(tuple[int, ...], [1, 2])
        (1, 2)
    """
    value: Any = document
    if is_dataclass(kind):
        value = _fields(kind, document, name)
    elif get_origin(kind) is tuple:
        value = tuple(read(get_args(kind)[0], each, f"one of {name}") for each in _of(list, document, name))
    elif kind is float:
        value = _number(document, name)
    else:
        _of(get_origin(kind) or kind, document, name)
    return value  # type: ignore[no-any-return]


def _fields(kind: Any, document: Any, name: str) -> Any:
    hints = get_type_hints(kind)
    if _of(dict, document, name).keys() != hints.keys():
        missing = ", ".join(sorted(hints.keys() ^ document.keys()))
        raise ValueError(f"{name} is of other fields: {missing}")
    return kind(**{field: read(hint, document[field], field) for field, hint in hints.items()})


def _of(kind: Any, document: Any, name: str) -> Any:
    if type(document) is not kind:
        raise ValueError(f"{name} is no {kind.__name__}")
    return document


def _number(document: Any, name: str) -> float:
    try:
        if type(document) in (int, float) and math.isfinite(document):
            return float(document)
    except OverflowError:
        pass
    raise ValueError(f"{name} is no finite number")
