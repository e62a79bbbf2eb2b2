"""Structural functions: concat, pad, roll, repeat and others that move elements or add axes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

from ..syntax import Call, Contraction, Expression, Literal, Ref, Size
from .pointwise import EQUAL
from .record import (
    Element,
    Example,
    Function,
    Known,
    Left,
    Lowering,
    Moments,
    Value,
    Writer,
    average,
    names_in,
)

INSIDE = "inside"
"""The option that makes a position outside of the axis an error; without it, such a position has no 1."""


def is_inside(call: Call) -> bool:
    """Whether the positions of a call must be within an axis, so that others are an error."""
    told = (each for name, values in call.options if name == INSIDE and len(values) == 1 for each in values)
    return any(isinstance(each, Literal) and bool(each.value) for each in told)


def _of_onehot(known: Known) -> Moments:
    return Moments(1 / known.count, 1 / known.count)


def _lower_onehot(lowering: Lowering, call: Call) -> Value:
    """Lowers a one-hot call; operands that are not integers are compared with the positions."""
    value = lowering.lower(call.arguments[0])
    if value.element.is_position or is_inside(call):
        return _made(lowering, call, [value], Element.NUMBER)
    positions = _lower_index(lowering, replace(call, function=INDEX.name, arguments=(), options=()))
    return lowering.convert(lowering.applied(EQUAL.name, [value, positions]), Element.NUMBER)


def _lower_index(lowering: Lowering, call: Call) -> Value:
    return _made(lowering, call, [], Element.WHOLE)


def _made(lowering: Lowering, call: Call, values: Sequence[Value], element: Element) -> Value:
    """The step of a call that adds an axis, innermost in memory."""
    (axis,) = call.axes
    left = (*(entry for each in values for entry in each.layout), axis)
    right = replace(call, arguments=tuple(each.ref for each in values))
    return lowering.emit(left, right, values, element)


def _cuts_off(call: Call) -> bool:
    """Whether a call only removes positions, or may do so at the sizes of a call. Its result is a view then."""
    return all(_is_cut(each) or not _is_growth(each) for _, each in amounts_in(call))


def amounts_in(call: Call) -> Iterator[tuple[str, Expression]]:
    """The amounts by which padding changes each axis, before and after."""
    yield from ((axis, each) for axis, values in call.options if len(values) == 2 for each in values)


def _is_cut(amount: Expression) -> bool:
    """Whether an amount is at most 0 for all open sizes: a number, a negative multiple of sizes, or a sum of these."""
    match amount:
        case Call("add", terms):
            return all(map(_is_cut, terms))
        case Literal(int() | float() as value) | Contraction((Literal(int() | float() as value), *_)):
            return value <= 0
    return False


def _spell_pad(writer: Writer, call: Call, left: Left) -> str:
    """The source of padding: an operation of the backend adds positions, and a slice removes some.

    An amount whose sign depends on open sizes, such as `2 - n`, adds where it is positive.
    """
    ref = cast("Ref", call.arguments[0])
    text, fill, layout = writer.atomic(ref), writer.options(call)["value"], ref.layout
    pairs = {name: values for name, values in call.options if len(values) == 2}
    cut = [_slice(writer, axis, pairs.get(axis, ())) for axis in layout]
    cuts = "" if all(each == ":" for each in cut) else f"[{', '.join(cut)}]"
    grows = {} if is_inside(call) else pairs
    grown = [tuple(_grown(writer, each) for each in grows.get(axis, ())) or ("0", "0") for axis in layout]
    amounts = [amount for pair in grown for amount in pair if amount != "0"]
    if not amounts:
        return f"{text}{cuts}"
    forwards = " ".join(f"({before}, {after})," for before, after in grown)
    backwards = ", ".join(amount for pair in reversed(grown) for amount in pair)
    made = writer.op(call.function, text, pairs=f"({forwards})", backwards=f"({backwards})", value=fill)
    if all(amount.startswith(_AT_LEAST_0) for amount in amounts):
        made = f"({made} if {' or '.join(amounts)} else {text})"
    return f"{made}{cuts}"


_AT_LEAST_0 = "max(0, "


def _grown(writer: Writer, amount: Expression) -> str:
    """The number of added positions: a known number, or an expression of open sizes."""
    if _is_cut(amount):
        return "0"
    if not _is_of_sizes(amount):
        return str(writer.integer(amount))
    return writer.scalar(amount) if _is_growth(amount) else f"{_AT_LEAST_0}{writer.scalar(amount)})"


def _is_of_sizes(amount: Expression, least: float = -math.inf) -> bool:
    """Whether an amount is a sum or a product of sizes and of whole numbers, these not below some value."""
    match amount:
        case Call("add", parts) | Contraction(parts):
            return all(_is_of_sizes(part, least) for part in parts)
        case Literal(int() as value):
            return value >= least
        case Call("floor"):
            return least < 0
    return isinstance(amount, Size)


def _is_growth(amount: Expression) -> bool:
    """Whether an amount is at least 0 for all open sizes."""
    return _is_of_sizes(amount, 0)


def _slice(writer: Writer, axis: str, amounts: Sequence[Expression]) -> str:
    """The slice of an axis that removes the given amounts of positions before and after."""
    if not amounts:
        return ":"
    before, after = ("0" if _is_growth(each) else writer.scalar(each) for each in amounts)
    start = "" if before == "0" else _without_sign(writer, amounts[0])
    if after == "0" or after[1:].isdigit():
        return f"{start}:{'' if after == '0' else after}"
    return f"{start}:{f'{start} + ' if start else ''}{writer.extent((axis,))}"


def _without_sign(writer: Writer, amount: Expression) -> str:
    """The number of positions that an amount removes, without its sign."""
    if not _is_cut(amount):
        return f"{_AT_LEAST_0}-{writer.scalar(amount)})"
    if isinstance(amount, Call) and amount.function == "add" and writer.value(amount) is None:
        return " + ".join(_without_sign(writer, each) for each in amount.arguments)
    text = writer.scalar(amount)
    return (text[1:-1] if text[0] == "(" else text)[1:]


def _lower_repeat(lowering: Lowering, call: Call) -> Value:
    """The operand, a number or a tensor, with an additional axis."""
    value = lowering.lower(call.arguments[0])
    return _made(lowering, call, [value], value.element)


def _spell_repeat(writer: Writer, call: Call, left: Left) -> str:
    """The source of a repetition: a broadcast view, copied to a contiguous array like every result."""
    operand = cast("Ref", call.arguments[0])
    groups = [(axis,) for axis in operand.layout]
    text = writer.view(operand, [*groups, ()], ones=True)
    extents = [writer.extent(names_in(entry)) for entry in left]
    shape = f"({', '.join(extents)}{',' if len(extents) == 1 else ''})"
    return writer.op("contiguous", writer.op("broadcast", text, shape=shape))


REPEAT = Function(
    "repeat",
    "a, the same at each position of a new axis",
    "made",
    example=Example.of("y[i,j] = repeat[j](a[i])", a=(1.0, 2.0), j=3),
    elsewhere=("tile", "expand", "broadcast"),
    yields="same",
    takes="any",
    at="a",
    carries=True,
    derivative=("sum[j](g)",),
    lowered=_lower_repeat,
    spelled=_spell_repeat,
)

INDEX = Function(
    "index",
    "position along an axis, from 0",
    "made",
    arity=(0, 0),
    written="index(i)",
    example=Example.of("y[i] = a[i] * index(i)", a=(5.0, 5.0, 5.0)),
    yields="same",
    at="p",
    derivative=("0",),
    lowered=_lower_index,
)

CONCAT = Function(
    "concat",
    "operands one after another along an axis, by whose name each is read; without it, one position; lengths add up",
    "joined",
    arity=(1, 10**6),
    written="concat[j](a, b, …)",
    elsewhere=("cat", "concatenate"),
    derivative=("pad(g, j=(-before, -after))",),
    yields="same",
    takes="any",
    moments=lambda known: average(known.operands),
)

STACK = replace(
    CONCAT,
    name="stack",
    formula="operands side by side along a new axis",
    example=Example.of("y[i,j] = stack[j](a[i], b[i])", a=(1.0, 2.0), b=(3.0, 4.0)),
    written="stack[j](a, b, …)",
    elsewhere=(),
    anew=True,
)

PAD = Function(
    "pad",
    "a with so many more positions along an axis, fewer where negative; with inside=1 more positions are an error",
    "moved",
    options=(("value", 0), (INSIDE, 0)),
    amounts=("before", "after"),
    written="pad(a, i=(before, after), value=0)",
    example=Example.of("y[i] = pad(a[i], i=(1, 2))", a=(1.0, 2.0)),
    resized=lambda size, before, after: size + before + after,
    derivative=("pad(g, j=(-before, -after))",),
    yields="same",
    looks=_cuts_off,
    spelled=_spell_pad,
)

ONEHOT = Function(
    "onehot",
    "1 where a is the position along j, else 0; with inside=1 a position outside of j is an error",
    "made",
    options=((INSIDE, 0),),
    written="onehot[j](a)",
    example=Example.of("y[i,j] = onehot[j](a[i])", a=(2, 0), j=3),
    yields="number",
    at="cast(a == p)",
    selects="maximum(minimum(a, n - 1), 0)",
    scatters="scatter_add",
    derivative=("0",),
    moments=_of_onehot,
    passes=(12.0, 12.0),
    lowered=_lower_onehot,
)

ROWS = (
    INDEX,
    REPEAT,
    Function(
        "roll",
        "a at i − s, around the ends",
        "moved",
        amounts=("shift",),
        written="roll(a, i=s)",
        example=Example.of("y[i] = roll(a[i], i=1)", a=(1.0, 2.0, 3.0)),
        yields="same",
        takes="any",
        derivative=("roll(g, j=-shift)",),
        workspace=(0.0, 1.0),
    ),
    CONCAT,
    STACK,
    PAD,
    ONEHOT,
)
