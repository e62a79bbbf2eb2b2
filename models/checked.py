"""Checks the settings of layers and models against their annotations before anything is built."""

from __future__ import annotations

import functools
import inspect
import math
import operator
import reprlib
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from types import NoneType, UnionType
from typing import Any, ParamSpec, Union, get_args, get_origin, get_type_hints

from tensornet.errors import ShapeError, near
from tensornet.graph.graph import Graph
from tensornet.language.parser import read_sizes
from tensornet.sizes import size_names

from .dimensions import Size

__all__ = ["checked"]

P = ParamSpec("P")


def checked(make: Callable[P, Graph]) -> Callable[P, Graph]:
    """Wraps `make` so that its settings are checked against the names and types of its signature.

    Integers of any library become `int`, numbers `float`, lists and arrays `tuple`.

    Raises:
        ShapeError: a setting is unknown, missing, or does not have the type of its annotation.

    Example:
        >>> @checked
        ... def line(width: int = 2) -> Graph: ...
        >>> line(width="two")
        Traceback (most recent call last):
        tensornet.errors.ShapeError: width='two' is nothing that 'line' takes
        fix: give a whole number, such as 2
    """
    signature = inspect.signature(make)
    kinds = functools.cache(lambda: get_type_hints(make))

    @functools.wraps(make)
    def built(*args: P.args, **kwargs: P.kwargs) -> Graph:
        given = _bound(make.__name__, signature, args, kwargs)
        for name, value in given.arguments.items():
            try:
                given.arguments[name] = _read(value, kinds()[name], name)
            except TypeError:
                raise _unfit(make.__name__, signature.parameters[name], value, kinds()[name]) from None
        return make(*given.args, **given.kwargs)

    built.checked = True  # type: ignore[attr-defined]
    return built


def _bound(
    maker: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """The settings of a call by name.

    Raises:
        ShapeError: a setting is unknown, missing or given twice.
    """
    known = signature.parameters
    fix = f"its settings: {', '.join(known)}"
    for name in kwargs:
        if name not in known:
            raise ShapeError(f"'{maker}' has no setting '{name}'", fix=near(name, known) + fix)
    try:
        given = signature.bind_partial(*args, **kwargs)
    except TypeError as error:  # too many, or one given by position and by name
        raise ShapeError(f"'{maker}' has {error}", fix=fix) from None
    missing = [
        name for name, each in known.items() if each.default is each.empty and name not in given.arguments
    ]
    if missing:
        raise ShapeError(f"'{maker}' needs {', '.join(missing)}", fix=fix)
    return given


def _unfit(maker: str, setting: inspect.Parameter, value: Any, kind: Any) -> ShapeError:
    example = setting.default
    such = "" if example is setting.empty or example is None else f", such as {example!r}"
    return ShapeError(
        f"{setting.name}={reprlib.repr(value)} is nothing that '{maker}' takes",
        fix=f"give {_shown(kind)}{such}",
    )


def _read(value: Any, kind: Any, name: str) -> Any:
    """`value` converted to the annotation `kind`.

    Raises:
        TypeError: it does not have that type.
        TensornetError: it is an invalid size.
    """
    parts = get_args(kind)
    match get_origin(kind) or kind:
        case origin if origin is Union or origin is UnionType:
            return _first(value, parts, name)
        case origin if origin is Sequence or (origin is tuple and parts[-1] is ...):
            return tuple(_read(each, parts[0], name) for each in _items(value))
        case origin if origin is tuple:
            items = _items(value)
            if len(items) != len(parts):
                raise TypeError
            return tuple(_read(each, part, name) for each, part in zip(items, parts, strict=True))
        case origin if origin is Size:
            return _size(value, name)
        case origin if origin is int:
            return _whole(value)
        case origin if origin is float:
            return _number(value)
        case _ if isinstance(value, kind):
            return value
    raise TypeError


def _first(value: Any, kinds: Sequence[Any], name: str) -> Any:
    """`value` converted to the first of `kinds` that it fits."""
    for kind in kinds:
        try:
            return _read(value, kind, name)
        except TypeError:
            continue
    raise TypeError


def _items(value: Any) -> tuple[Any, ...]:
    if isinstance(value, str | bytes | Mapping | Set) or not isinstance(value, Collection):
        raise TypeError
    return tuple(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return int(value) if getattr(value, "is_Integer", False) else operator.index(value)


def _number(value: Any) -> float:
    if isinstance(value, bool | str | bytes) or not hasattr(value, "__float__"):
        raise TypeError
    found = float(value)
    if not math.isfinite(found):
        raise TypeError
    return found


def _size(value: Any, name: str) -> Any:
    """A checked size: an integer if it is constant; otherwise the expression or its text, unchanged."""
    if not isinstance(value, str) and not hasattr(value, "free_symbols") and not size_names(value):
        value = _whole(value)
    read = read_sizes({name: value})[name]
    return read if isinstance(read, int) else value


def _shown(kind: Any) -> str:
    """An annotation in words, for an error message."""
    parts = get_args(kind)
    match get_origin(kind) or kind:
        case origin if origin is Union or origin is UnionType:
            return " or ".join(_shown(each) for each in parts)
        case origin if origin is Sequence or (origin is tuple and parts[-1] is ...):
            return f"a sequence, each {_shown(parts[0])}"
        case origin if origin is tuple:
            return f"({', '.join(_shown(each) for each in parts)})"
        case origin:
            return _WORDS[origin]


_WORDS = {
    Size: "a size",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a name",
    NoneType: "None",
}
