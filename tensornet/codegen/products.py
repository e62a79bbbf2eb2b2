"""Code generation of products of two tensors: matrix products, dot products and elementwise ones."""

from __future__ import annotations

from ..contraction.pairs import Strategy
from ..device.heap import MAPPED
from ..device.model import packed_with
from ..dtypes import Element, itemsize
from ..language.expression import Ref
from ..ops.protocols import Left, extent, layout_of
from ..planning.steps import Multiplied
from ..sizes import evaluate, product
from .context import CodegenContext
from .views import aligned, left_sizes, reshaped, view

__all__ = ["write_product"]


def write_product(context: CodegenContext, product: Multiplied, way: Strategy, left: Left) -> str:
    """A product of two tensors, arranged as it was priced."""
    a, b = product.a, product.b
    match way.kind:
        case "multiply":
            return f"{aligned(context, a, left)} * {aligned(context, b, left)}"
        case "linear":
            return _linear(context, product, way)
        case "dot":
            groups = [way.batch, way.summed]
            return context.op("vecdot", view(context, a, groups), view(context, b, groups))
    rows, columns = way.rows, way.columns
    if way.swapped:
        a, b, rows, columns = b, a, columns, rows
    one = _matrix(context, a, way.batch, rows, way.summed)
    two = _matrix(context, b, way.batch, way.summed, columns)
    whole = context.element is Element.WHOLE and "whole_matmul" in context.backend.templates
    text = context.op("whole_matmul" if whole else _sized(context, "matmul", left, way.packed), one, two)
    if way.added:
        return context.op("sum", text, axes="(0,)")
    return reshaped(context, text, left) if way.batch and not (rows and columns) else text


def _linear(context: CodegenContext, product: Multiplied, way: Strategy) -> str:
    """The product of a tensor with a matrix, with a bias of each row and a function of each element, if any."""
    *rows, columns = way.result
    first, second = (product.b, product.a) if way.swapped else (product.a, product.b)
    given = [view(context, first, [*rows, way.summed]), view(context, second, [columns, way.summed])]
    given += [view(context, product.bias, [columns])] if product.bias is not None else []
    sized = _sized(context, "linear", way.result, way.packed)
    return context.op(packed_with(product.then) if product.then else sized, ", ".join(given))


def _sized(context: CodegenContext, template: str, left: Left, packed: bool) -> str:
    """The name of the template of a product. Products of packed matrices have their own, and so have results
    that are so large that their memory is newly mapped each time."""
    if packed:
        return f"packed_{template}"
    large, plan = f"large_{template}", context.plan
    if large not in context.backend.templates or not plan.device.startswith("cpu"):
        return template
    elements = product(evaluate(size, dict(plan.sizes)) for size in left_sizes(context, left))
    return large if elements * itemsize(plan.dtype) > MAPPED else template


def _matrix(
    context: CodegenContext, ref: Ref, batch: tuple[str, ...], outer: tuple[str, ...], inner: tuple[str, ...]
) -> str:
    """An operand as one matrix per position of the batch. One without batch axes is broadcast."""
    layout = layout_of(ref)
    own = tuple(axis for axis in batch if axis in layout)
    if own or not batch:
        text = view(context, ref, [own, outer, inner], ones=bool(batch))
        scattered = own and layout[-len(own) :] == own and (outer or inner)  # every matrix would be copied
        return context.op("contiguous", text) if scattered else text
    matrix = view(context, ref, [outer, inner], ones=True)
    shape = context.shape(extent(context.sizes, group) for group in (batch, outer, inner))
    return context.op("broadcast", matrix, shape=shape)
