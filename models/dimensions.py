"""Checks of the sizes of a model; their errors name the settings of the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import tensornet.api as tn
from tensornet.errors import ShapeError
from tensornet.frontend.instantiate import hygienic
from tensornet.language.parser import read_sizes
from tensornet.sizes import quotient

if TYPE_CHECKING:
    from sympy import Expr

    Size: TypeAlias = int | str | Expr
else:

    class Size:
        """A size of a layer: an integer, or a symbol or expression that the formulas of the model keep."""


__all__ = [
    "Size",
    "chosen",
    "composite",
    "count",
    "divided",
    "pair",
    "positive",
    "real",
    "sized_layer",
    "sized_model",
    "when",
]


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


def count(number: object, what: str, least: int = 0) -> int:
    """A count, such as the number of layers.

    Raises:
        ShapeError: it is not an integer from `least` to `MOST`.
    """
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= MOST:
        raise ShapeError(f"{what}={number!r}", fix=f"give an integer from {least} to {MOST}")
    return number


def real(number: object, what: str, low: float, high: float = math.inf) -> float:
    """A number from `low` to below `high`, as a float.

    Raises:
        ShapeError: it is not a number in this range.
    """
    try:
        found = float(number)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        found = math.nan
    if not low <= found < high:
        above = f" below {high:g}" if high < math.inf else ""
        raise ShapeError(f"{what}={number!r}", fix=f"give a number from {low:g}{above}")
    return found


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
