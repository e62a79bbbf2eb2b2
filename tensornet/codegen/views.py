"""Code generation of views: operands as a step reads them, reshaped, permuted and broadcast; and of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..contraction.pairs import flatten, view_order
from ..errors import EquationError
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Literal,
    Ref,
    Size,
    is_scalar,
    scalar_value,
    show,
)
from ..ops.protocols import Left, layout_of, left_of, names_in
from ..ops.protocols import extent as size_along
from ..ops.table import FUNCTIONS
from .context import CodegenContext

__all__ = [
    "aligned",
    "atomic",
    "broadcast",
    "copied",
    "extent",
    "in_order",
    "integer",
    "label_sizes",
    "left_sizes",
    "options",
    "permuted",
    "product_source",
    "reshaped",
    "scalar",
    "turned",
    "value",
    "view",
]


def extent(context: CodegenContext, axes: Iterable[str]) -> str:
    """The number of positions along some axes."""
    return context.size(size_along(context.sizes, axes))


def left_sizes(context: CodegenContext, left: Left) -> list[Any]:
    """The size of each dimension of a result."""
    return [size_along(context.sizes, names_in(entry)) for entry in left]


def reshaped(context: CodegenContext, text: str, left: Left) -> str:
    """A result reshaped to one dimension for each entry."""
    return context.reshape(text, left_sizes(context, left))


def label_sizes(context: CodegenContext, ref: Ref) -> dict[str, Any]:
    """The sizes of the axes of an operand. That of an axis that is a whole dimension comes from the array."""
    found: dict[str, Any] = {}
    for entry, size in zip(ref.index, context.shapes[ref.name], strict=True):
        if isinstance(entry, str):
            found[entry] = size
        elif isinstance(entry, tuple):
            found.update({axis: context.sizes[axis] for axis in entry})
    return found


# ---------------------------------------------------------------------------- operands


def view(context: CodegenContext, ref: Ref, groups: Sequence[tuple[str, ...]], *, ones: bool = False) -> str:
    """An operand with one dimension for each group. An empty group has size 1 with `ones`, else no dimension."""
    text = context.names[ref.name]
    present = tuple(tuple(group) for group in groups if group)
    order = view_order(layout_of(ref), present)
    if order is None:
        flat = flatten(present)
        text = turned(context, ref, flat) or permuted(context, ref, flat)
        if any(len(group) > 1 for group in present):
            text = _grouped(context, text, ref, present)
    else:
        lying = left_of(present[n] for n in order)
        if lying != ref.index:
            text = _grouped(context, text, ref, map(names_in, lying))
        if list(order) != sorted(order):
            text = context.permute(text, [order.index(n) for n in range(len(order))])
    return _grouped(context, text, ref, groups) if ones and len(present) < len(groups) else text


def _grouped(context: CodegenContext, text: str, ref: Ref, groups: Iterable[tuple[str, ...]]) -> str:
    """An operand, possibly permuted, reshaped to one dimension for each group."""
    sizes = label_sizes(context, ref)
    return context.reshape(text, [size_along(sizes, group) for group in groups])


def turned(context: CodegenContext, ref: Ref, axes: tuple[str, ...]) -> str | None:
    """A transposed matrix, if an order is the layout with its first axes last: libraries copy that fastest."""
    layout = layout_of(ref)
    at = layout.index(axes[0]) if axes else 0
    if len(axes) < 3 or not at or layout[at:] + layout[:at] != axes:
        return None
    return context.permute(
        _grouped(context, context.names[ref.name], ref, (layout[:at], layout[at:])), (1, 0)
    )


def copied(context: CodegenContext, ref: Ref, groups: Sequence[tuple[str, ...]]) -> str:
    """An operand with one dimension for each group, laid out in their order."""
    order = flatten(tuple(groups))
    if view_order(layout_of(ref), tuple(groups)) is None and any(len(group) > 1 for group in groups):
        return view(context, ref, groups)  # merging the axes copies
    matrix = turned(context, ref, order)
    if matrix is not None:
        return _grouped(context, context.op("contiguous", matrix), ref, groups)
    text = view(context, ref, groups)
    return text if layout_of(ref) == order else context.op("contiguous", text)


def broadcast(context: CodegenContext, ref: Ref, groups: Sequence[tuple[str, ...]]) -> str:
    """An operand with one dimension for each group: of full size, or of size 1 if it has no axis of the group."""
    layout, sizes = layout_of(ref), label_sizes(context, ref)
    own = [tuple(axis for axis in group if axis in layout) for group in groups]
    text = view(context, ref, own, ones=True)
    if all(not part or part == group for part, group in zip(own, groups, strict=True)):
        return text
    parts = [(axis, part) for part, group in zip(own, groups, strict=True) for axis in group]
    whole = context.shape(context.sizes[axis] if part else 1 for axis, part in parts)
    text = context.op(
        "broadcast", context.reshape(text, [sizes.get(axis, 1) for axis, _ in parts]), shape=whole
    )
    pairs = zip(own, groups, strict=True)
    return context.reshape(text, [size_along(context.sizes, group if part else ()) for part, group in pairs])


def atomic(context: CodegenContext, ref: Ref) -> str:
    """An operand with one dimension for each axis, in the order of its layout."""
    return permuted(context, ref, layout_of(ref))


def permuted(context: CodegenContext, ref: Ref, axes: Sequence[str]) -> str:
    """An operand with one dimension for each axis, in the order given."""
    return view(context, ref, [(axis,) for axis in axes])


def in_order(context: CodegenContext, text: str, have: tuple[str, ...], want: tuple[str, ...]) -> str:
    """An array permuted from the axes `have` to the axes `want`."""
    return text if have == want else context.permute(text, [have.index(axis) for axis in want])


def aligned(context: CodegenContext, ref: Ref, left: Left) -> str:
    """An operand that broadcasts to the result: axes in the same order, size 1 where an axis is missing."""
    if ref.index == left or not ref.index:
        return context.names[ref.name]
    axes, layout = [axis for entry in left for axis in names_in(entry)], layout_of(ref)
    own = tuple(axis for axis in axes if axis in layout)
    behind = axes[axes.index(own[0]) :]
    if all(axis in layout for axis in behind):
        return permuted(context, ref, own)
    sizes = label_sizes(context, ref)
    text = context.names[ref.name] if layout == own else permuted(context, ref, own)
    return context.reshape(text, [sizes.get(axis, 1) for axis in behind])


# ---------------------------------------------------------------------------- numbers


def scalar(context: CodegenContext, expression: Expression) -> str:
    """A number as source: its value where all sizes are known, else arithmetic on open sizes."""
    known = scalar_value(expression)
    if known is not None:
        return _number(known)
    match expression:
        case Size(axis):
            context.used_sizes.add(axis)
            return context.size_names[axis]
        case Contraction(factors, ()):
            return f"({product_source(factors, lambda factor: scalar(context, factor))})"
        case Call("add", arguments):
            return "(" + " + ".join(scalar(context, each) for each in arguments) + ")"
        case Call(function, arguments) if FUNCTIONS[function].number:
            return FUNCTIONS[function].number.format(*(scalar(context, each) for each in arguments))
    raise EquationError(
        f"{show(expression)} depends on a size that is open",
        expression.place,
        "give the size when building the layer",
    )


def _number(value: int | float | complex) -> str:
    if isinstance(value, float) and math.isinf(value):
        return "-math.inf" if value < 0 else "math.inf"
    return "math.nan" if isinstance(value, float) and math.isnan(value) else repr(value)


def product_source(factors: Sequence[Expression], spell: Callable[[Expression], str], by: str = "/") -> str:
    """Factors from left to right; a reciprocal after the first divides."""
    text = spell(factors[0])
    if factors[0] == Literal(-1):
        text, factors = f"-{spell(factors[1])}", factors[1:]
    for factor in factors[1:]:
        match factor:
            case Call("reciprocal", (below,)):
                text += f" {by} {spell(below)}"
            case _:
                text += f" * {spell(factor)}"
    return text


def options(context: CodegenContext, call: Call) -> dict[str, str]:
    """The options of a function: from the call, or else the defaults of its record."""
    given = dict(call.options)
    return {
        name: scalar(context, given[name][0]) if name in given else repr(default)
        for name, default in FUNCTIONS[call.function].options
    }


def value(expression: Expression) -> int | float | complex | None:
    """The value of a number; nothing for a tensor, or if a size in it is open."""
    return scalar_value(expression) if is_scalar(expression) else None


def integer(expression: Expression) -> int:
    """The value of a known whole number. Raises an error for anything else."""
    found = scalar_value(expression)
    if found is None or isinstance(found, complex) or found != int(found):
        raise EquationError(
            f"{show(expression)} is not a known whole number",
            expression.place,
            "give the sizes that occur in it",
        )
    return int(found)
