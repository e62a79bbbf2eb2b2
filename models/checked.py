"""Settings of layers and models: their checks against annotations before anything is built, and sizes."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import operator
import reprlib
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, Union, get_args, get_origin, get_type_hints

import tensornet.api as tn
from tensornet.errors import ShapeError, checked_number, near
from tensornet.frontend.instantiate import hygienic
from tensornet.graph.graph import Graph
from tensornet.language.parser import read_sizes
from tensornet.sizes import quotient, size_names

if TYPE_CHECKING:
    from sympy import Expr

    Size: TypeAlias = int | str | Expr
else:

    class Size:
        """A size of a layer: an integer, or a symbol or expression that the formulas of the model keep."""


P = ParamSpec("P")


def with_presets(
    presets: Mapping[str, Mapping[str, Any]],
) -> Callable[[Callable[P, Graph]], Callable[P, Graph]]:
    """A decorator like `checked` for a model that has presets: names, each with settings."""

    def around(make: Callable[P, Graph]) -> Callable[P, Graph]:
        built = checked(make)
        built.presets = presets  # type: ignore[attr-defined]
        return built

    return around


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

    built.presets = {}  # type: ignore[attr-defined]
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
            for each in parts:
                with contextlib.suppress(TypeError):
                    return _read(value, each, name)
        case origin if origin is Sequence or (origin is tuple and parts[-1] is ...):
            return tuple(_read(each, parts[0], name) for each in _items(value))
        case origin if origin is tuple:
            items = _items(value)
            if len(items) == len(parts):
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


# ---------------------------------------------------------------------------- sizes and numbers

MOST = 10_000
"""The largest number of layers that is accepted; a typing error would otherwise take hours to build."""


def sized_layer(text: str, inputs: Any, sizes: Mapping[str, Any], **more: Any) -> tn.Graph:
    """A layer of equations in its own names of sizes, whose values may be formulas in those of a caller.

    Args:
        text: the equations.
        inputs: their inputs, as `tn.layer` takes them.
        sizes: the sizes of axes.
        **more: further arguments of `tn.layer`.
    """
    return hygienic(lambda **known: tn.layer(text, inputs=inputs, **more, **known), dict(sizes))


def sized_model(forward: Callable[..., Any], inputs: Any, sizes: Mapping[str, Any]) -> tn.Graph:
    """A model in its own names of sizes.

    Args:
        forward: takes the inputs one by one; or as one dict by name, if `inputs` are.
        inputs: their declarations, as `tn.model` takes them, or by name.
        sizes: the sizes of axes.
    """
    run, declared = forward, inputs
    if isinstance(inputs, Mapping):
        declared = list(inputs.values())

        def run(*tensors: tn.Tensor) -> Any:
            return forward(dict(zip(inputs, tensors, strict=True)))

    return hygienic(lambda **known: tn.model(run, inputs=declared, **known), dict(sizes))


def halved(total: Size, what: str) -> Size:
    """`total / 2`, the number of sines and of cosines among so many.

    Raises:
        ShapeError: it is odd.
    """
    if isinstance(total, int) and total % 2:
        raise ShapeError(f"{what}={total} is odd", fix=f"give an even one, as {total + 1}: half are sines")
    return divided(total, 2, what, "2")


def divided(total: Size, parts: Size, what: str, into: str) -> Size:
    """`total / parts`, which must be an integer if both are known.

    Args:
        total: a size.
        parts: the number of parts.
        what: the name of the total in an error.
        into: the name of the parts in an error.

    Raises:
        ShapeError: both are integers and there is a remainder.

    Example:
        >>> divided(768, 12, "dim", "heads"), divided("D", "h", "dim", "heads")
        (64, D/h)
    """
    if not (isinstance(total, int) and isinstance(parts, int)):
        return quotient(*(read_sizes({what: size})[what] for size in (total, parts)))
    if parts < 1 or total % parts:
        near = [each for each in range(1, total + 1) if total % each == 0]
        near.sort(key=lambda each: (abs(each - parts), each))
        fits = ", ".join(str(each) for each in sorted(near[:4]))
        down = max(1, total // parts if parts > 0 else 1) * max(parts, 1)
        raise ShapeError(
            f"{what}={total} does not divide by {into}={parts}",
            fix=f"choose {into} of {fits}, …, or {what}={down}",
        )
    return total // parts


def count(number: object, what: str, least: int = 0) -> Any:
    """A count, such as the number of layers.

    Raises:
        ShapeError: it is not an integer from `least` to `MOST`.
    """
    return checked_number(number, what, least, MOST, whole=True)


def real(number: object, what: str, low: float, high: float = math.inf) -> float:
    """A number from `low` to below `high`, as a float.

    Raises:
        ShapeError: it is not a number in this range.
    """
    if high == math.inf:
        return float(checked_number(number, what, low))
    fix = f"give a number from {low:g} below {high:g}"
    return float(checked_number(number, what, low, math.nextafter(high, low), fix=fix))


def encoder_sizes(dim: Size, depth: int, heads: Size, hidden: Size | None = None) -> dict[str, Size]:
    """The sizes D, and if there are layers h and F, of a Transformer of equal layers.

    Args:
        dim: D.
        depth: the number of layers.
        heads: h.
        hidden: F, the width inside of the MLP; 4·D if not given.

    Raises:
        ShapeError: the heads do not divide D, or the depth is no count.
    """
    divided(dim, heads, "dim", "heads")
    hidden = f"4*({dim})" if hidden is None else hidden
    return {"D": dim, **when(count(depth, "depth"), h=heads, F=hidden)}


def pair(size: Size | Sequence[Size], what: str) -> tuple[Size, Size]:
    """A height and a width, from one size for both or from two.

    Raises:
        ShapeError: there are not one or two sizes, or one is not positive.
    """
    found = tuple(size) if isinstance(size, Sequence) and not isinstance(size, str) else (size, size)
    if len(found) != 2 or any(isinstance(each, int | float) and not positive(each) for each in found):
        raise ShapeError(f"{what}={size!r}", fix="give one positive integer, or a height and a width")
    return found[0], found[1]


def composite(names: Sequence[str]) -> str:
    """A dimension of one or several axes, as equations have it."""
    return f"({','.join(names)})" if len(names) > 1 else names[0]


def when(condition: object, **found: Any) -> dict[str, Any]:
    """The given names and values, such as sizes of axes, if a condition holds; otherwise none.

    Example:
        >>> {"D": 8, **when(2 > 1, h=4), **when(None, K=10)}
        {'D': 8, 'h': 4}
    """
    return found if condition else {}


def positive(size: object) -> bool:
    """Whether a size is an integer of at least 1."""
    return isinstance(size, int) and not isinstance(size, bool) and size > 0


def chosen(value: str | None, options: Sequence[str | None], what: str) -> None:
    """Checks that a value is one of the options.

    Raises:
        ShapeError: it is not.
    """
    if value not in options:
        raise ShapeError(
            f"{what}={value!r}", fix=f"choose one of {', '.join(repr(each) for each in options)}"
        )
