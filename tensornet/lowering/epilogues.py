"""Epilogue fusion: a bias, or a function of each element, in the step of the matrix product before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..contraction.pairs import Layout
from ..device.model import packed_with
from ..language.expression import Call, Contraction, Ref, axes_of_index, free_axes
from ..ops.protocols import Value
from ..ops.table import FUNCTIONS, Element
from ..planning.steps import Step
from .context import LoweringContext
from .pointwise import Operand

__all__ = ["order_with_bias", "with_bias", "with_function"]


WORTH = 0.3
"""The layout that allows a fused bias is requested if a step for the bias takes at least this part of the time of
its product."""


def _product_of(context: LoweringContext, value: Value) -> Step | None:
    """The last step, if it computes a value that has no name by which other steps may read it."""
    last = context.steps[-1] if context.steps else None
    if not isinstance(last, Step) or last.equation.name != value.ref.name or value.ref.name in context.named:
        return None
    return last


def order_with_bias(context: LoweringContext, call: Call) -> Layout | None:
    """The layout in which a product of two tensors takes a bias in the same step, if it is worth requesting:
    the axes of the bias are innermost."""
    match call.arguments:
        case (Contraction((one, two), (_, *_)) as made, Ref() as bias):
            pass
        case (Ref() as bias, Contraction((one, two), (_, *_)) as made):
            pass
        case _:
            return None
    last = axes_of_index(bias.index)
    own = [{*free_axes(each)}.difference(free_axes(other)) for each, other in ((one, two), (two, one))]
    if "linear" not in context.target.supported or {*last} not in own:
        return None
    rows, other = (one, two) if own[1] == {*last} else (two, one)
    first = axes_of_index(rows.index) if isinstance(rows, Ref) else free_axes(rows)
    kept = tuple(axis for axis in first if axis not in made.summed)
    if not kept or not set(kept).isdisjoint(free_axes(other)):
        return None  # a batch of products, to which no library adds a bias
    if len(kept) > 1 and (not isinstance(rows, Ref) or set(first[len(kept) :]) != set(made.summed)):
        return None
    m, n, k = (float(context.positions(context.sizes, axes)) for axes in (kept, last, made.summed))
    size, profile = context.itemsize, context.profile
    alone = profile.pointwise(2 * size * m * n, size * m * n)
    return (*kept, *last) if alone > WORTH * profile.matmul(1.0, m, n, k, size) else None


def with_bias(context: LoweringContext, terms: Sequence[Operand]) -> Value | None:
    """The last matrix product with a bias added to each of its rows, as one step, which most libraries offer."""
    values = [each.value for each in terms if each.value is not None and not each.numbers]
    if "linear" not in context.target.supported or len(values) != 2:
        return None
    made, bias = values if _product_of(context, values[0]) is not None else reversed(values)
    last = _product_of(context, made)
    if last is None or (way := last.arrangement) is None or way.kind not in ("matmul", "linear"):
        return None
    if way.batch or not (way.rows and way.columns) or bias.layout != way.result[-1]:
        return None
    if max(Element.WIDE, bias.element) > made.element or made.element.is_exact:
        return None
    context.steps.pop()
    bias = context.convert(bias, made.element)
    equation = replace(last.equation, right=Call("add", (last.equation.right, bias.ref)))
    moved = last.bytes + context.itemsize * context.positions(bias.sizes, bias.layout)
    context.steps.append(
        replace(last, equation=equation, bytes=moved, arrangement=replace(way, kind="linear"))
    )
    return made


def with_function(context: LoweringContext, function: str, value: Value) -> Value | None:
    """The last linear product with a function of each element, as one step, if the library's kernel offers it."""
    last = _product_of(context, value)
    if last is None or (way := last.arrangement) is None or not way.packed or way.kind != "linear":
        return None
    if (
        packed_with(function) not in context.target.supported
        or (product := last.multiplied) is None
        or product.then
    ):
        return None
    moved = 2.0 * context.itemsize * context.positions(value.sizes, value.layout)
    alone = context.profile.computed(moved, 0.0, FUNCTIONS[function].passes[0])
    context.steps[-1] = replace(
        last,
        equation=replace(last.equation, right=Call(function, (last.equation.right,))),
        seconds=last.seconds + alone - context.profile.pointwise(moved, 0.0),
    )
    return value
