"""Functions that move elements, join them, or make places for them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from .moments import STANDARD, Known, Moments, average
from .pointwise import EQUAL
from .record import Element, Function

if TYPE_CHECKING:
    from ..graph.shape import Scope
    from ..language.expression import Call, Ref
    from ..planning.values import Value
    from .services import Left, Lowering, Writer

__all__ = ["CONCAT", "INDEX", "PAD", "ROWS"]


def _of_onehot(known: Known) -> Moments:
    return Moments(1 / known.count, 1 / known.count)


def _lower_onehot(lowering: Lowering, call: Call, scope: Scope) -> Value:
    """1 where a position is the one told; what is no integer is compared with the positions."""
    value = lowering.lower(call.arguments[0], scope, None)
    if value.element.is_position:
        return lowering.made(call, [value], scope)
    positions = lowering.made(replace(call, function=INDEX.name, arguments=()), [], scope)
    return lowering.convert(lowering.applied(EQUAL.name, [value, positions]), Element.NUMBER)


def _cuts_off(call: Call) -> bool:
    """Whether a call only leaves positions out, which is another look at what is there."""
    amounts = [each for _, values in call.options if len(values) == 2 for each in values]
    return all(getattr(each, "value", 1) <= 0 for each in amounts)


def _spell_pad(writer: Writer, call: Call, left: Left) -> str:
    """What is cut off is a slice, what is put on an operation of the backend."""
    ref = cast("Ref", call.arguments[0])
    text, fill = writer.atomic(ref), writer.options(call)["value"]
    pairs = {name: values for name, values in call.options if len(values) == 2}
    named = {name: tuple(map(writer.integer, values)) for name, values in pairs.items()}
    amounts = [named.get(axis, (0, 0)) for axis in writer.layout(ref)]
    if any(amount < 0 for pair in amounts for amount in pair):
        cut = [f"{max(-before, 0) or ''}:{min(after, 0) or ''}" for before, after in amounts]
        text = f"{text}[{', '.join(cut)}]"
    grown = [(max(before, 0), max(after, 0)) for before, after in amounts]
    if not any(amount for pair in grown for amount in pair):
        return text
    forwards = " ".join(f"({before}, {after})," for before, after in grown)
    backwards = ", ".join(str(amount) for pair in reversed(grown) for amount in pair)
    return writer.op(call.function, text, pairs=f"({forwards})", backwards=f"({backwards})", value=fill)


INDEX = Function(
    "index",
    "position along an axis, from 0",
    "made",
    arity=(0, 0),
    written="index(i)",
    yields="same",
    at="p",
    moments=lambda known: STANDARD,
)

CONCAT = Function(
    "concat",
    "operands one after another along an axis",
    "joined",
    arity=(1, 10**6),
    written="concat[j](a, b, …)",
    yields="same",
    takes="any",
    moments=lambda known: average(known.operands),
)

PAD = Function(
    "pad",
    "a with so many more positions along an axis, fewer where negative",
    "moved",
    options=(("value", 0),),
    amounts=("before", "after"),
    written="pad(a, i=(before, after), value=0)",
    resized=lambda size, before, after: size + before + after,
    yields="same",
    looks=_cuts_off,
    spelled=_spell_pad,
)

ROWS = (
    INDEX,
    Function(
        "roll",
        "a at i − s, around the ends",
        "moved",
        amounts=("shift",),
        written="roll(a, i=s)",
        yields="same",
        takes="any",
        workspace=(0.0, 1.0),
    ),
    CONCAT,
    PAD,
    Function(
        "onehot",
        "1 where a is the position along j, else 0",
        "made",
        yields="number",
        at="cast(a == p)",
        selects="maximum(minimum(a, n - 1), 0)",
        scatters="scatter_add",
        moments=_of_onehot,
        passes=(12.0, 12.0),
        lowered=_lower_onehot,
    ),
)
