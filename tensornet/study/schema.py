"""Values from JSON, checked: each field is present, has its type, and is finite."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

__all__ = ["read"]

Value = TypeVar("Value")


def read(kind: type[Value], document: Any, name: str = "it") -> Value:
    """The value of a type, which `asdict` and JSON wrote.

    Args:
        kind: `str`, `bool`, `int`, `float`, `dict`, a tuple `tuple[kind, ...]`, a dataclass of such fields, or
            `kind | None`; a field whose default is None may be missing.
        document: the parsed JSON.
        name: its name in the error.

    Raises:
        ValueError: the document is something else, or a number is not finite.

    Example:
        >>> read(tuple[int, ...], [1, 2])
        (1, 2)
    """
    value: Any = document
    if get_origin(kind) is UnionType:
        some, _ = get_args(kind)
        value = None if document is None else read(some, document, name)
    elif is_dataclass(kind):
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
    needed = {field.name for field in fields(kind) if field.default is not None}
    found = _of(dict, document, name).keys()
    if not needed <= found <= hints.keys():
        missing = ", ".join(sorted((needed - found) | (found - hints.keys())))
        raise ValueError(f"{name} is of other fields: {missing}")
    return kind(**{field: read(hints[field], document[field], field) for field in found})


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
