"""A-normal form: equations split until each applies one function or multiplies two tensors.

What the derivatives of several factors have in common is then a tensor with a name, and computed once.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from ..graph.algebra import ONE, ZERO, as_numbers, spread, without_ones
from ..graph.graph import reads
from ..graph.shape_inference import Scope, beside
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Index,
    Ref,
    Size,
    axes_of_index,
    contraction,
    flat,
    free_axes,
    is_random,
    is_scalar,
    remade_axes,
    transform,
    without,
)
from ..ops.structure import PAD
from ..ops.table import CONVERSIONS, FUNCTIONS, Element
from ..sizes import evaluate
from .activity import changes
from .vjp_context import VjpContext
from .window_pushdown import early

__all__ = ["take_apart"]


def take_apart(context: VjpContext, equation: Equation) -> None:
    """One function, or one product of two tensors, an equation."""
    scope, context.order = context.graph.scope(equation), axes_of_index(equation.left)
    right = _one(context, _sized(context, equation.right, scope), scope, equation.name)
    if isinstance(right, Call) and remade_axes(right) and not all(isinstance(e, str) for e in equation.left):
        right = context.tensor(right, scope, context.numbered(equation.name))
    if right == equation.right:
        context.body.append(equation)
    else:
        context.put(equation.name, equation.left, right, scope)


def _sized(context: VjpContext, expression: Expression, scope: Scope) -> Expression:
    """The expression, in which the sizes of its axes are those of names at large."""
    if isinstance(expression, Size):
        return context.extent(scope[expression.axis])
    found = flat(transform(expression, lambda part: _sized(context, part, scope)))
    if isinstance(found, Contraction) and found != expression:
        return contraction(without_ones(found.factors), found.summed, found.place)
    return found


def _one(context: VjpContext, expression: Expression, scope: Scope, stem: str) -> Expression:
    """The expression with a tensor in the place of each operand that gets a gradient."""
    match expression:
        case Call(function, (operand, *_)) if FUNCTIONS[function].random:
            return _masked(context, expression, _operand(context, operand, scope, stem), scope, stem)
        case Call(function, _, (first, *rest)) if rest and FUNCTIONS[function].one_by_one:
            before = replace(expression, axes=(first,))
            return _one(context, replace(expression, arguments=(before,), axes=tuple(rest)), scope, stem)
        case Call(_, arguments):
            operands = tuple(_operand(context, each, scope, stem) for each in arguments)
            return replace(expression, arguments=operands)
        case Contraction(factors, summed):
            numbers = [each for each in factors if is_scalar(each)]
            others = [_operand(context, each, scope, stem) for each in factors if not is_scalar(each)]
            if len(others) > 2:
                others = _before_windows(context, others, frozenset(free_axes(expression)), scope, stem)
            if len(others) > 2:
                others = _in_pairs(context, others, frozenset(free_axes(expression)), scope, stem)
            inside = {axis for each in others for axis in free_axes(each)}
            return contraction((*numbers, *others), tuple(inside & set(summed)), expression.place)
    return expression


def _operand(context: VjpContext, expression: Expression, scope: Scope, stem: str) -> Expression:
    """A tensor that holds the value of an expression, or the expression where no gradient goes there.

    What is drawn is a tensor in any case: the backward pass reads what the forward pass drew.
    """
    if isinstance(expression, Ref) or not (changes(expression, context.active) or is_random(expression)):
        return expression
    if isinstance(expression, Call) and remade_axes(expression):
        scope = beside(scope, context.scope(expression))
    return context.tensor(_one(context, expression, scope, stem), scope, context.numbered(stem))


def _before_windows(
    context: VjpContext, factors: list[Expression], kept: frozenset[str], scope: Scope, stem: str
) -> list[Expression]:
    """The factors, those that have nothing to do with windows multiplied before these open, where that is less."""
    while len(factors) > 2:
        sizes = {axis: evaluate(scope[axis], context.bound) for each in factors for axis in free_axes(each)}
        found = early(factors, kept, sizes, context.dims)
        if found is None:
            break
        factors = list(without(factors, (found.replaced, found.partner)))
        outside = kept.union(found.windows, *(free_axes(each) for each in factors))
        padded = _padded(context, found.opened, found.windows)
        pair = (found.opened if padded is None else padded.arguments[0], found.partner)
        inside = {axis for each in pair for axis in free_axes(each)}
        made: Expression = contraction(pair, tuple(inside - outside), None)
        if padded is not None:
            made = context.tensor(made, scope, context.numbered(stem), found.windows)
            made = replace(padded, arguments=(made,))
        around = beside(scope, Scope(dict(found.sizes)))
        factors = [found.read(context.tensor(made, around, context.numbered(stem), found.windows)), *factors]
    return factors


def _padded(context: VjpContext, ref: Ref, axes: Container[Index]) -> Call | None:
    """Zeros around a tensor along some axes, in the place of what holds them for one product alone; nothing if
    there are none."""
    made = next((each for each in context.body if isinstance(each, Equation) and each.name == ref.name), None)
    readers = sum(name == ref.name for item in context.graph.body for name, _ in reads(item))
    if made is None or readers != 1 or ref.name in context.graph.outputs:
        return None
    match made.right:
        case Call(PAD.name, (Ref() as plain,), (), options) as call if plain.index == made.left:
            names = {str(mine): axis for mine, axis in zip(plain.index, ref.index, strict=True)}
            if all(names.get(axis) in axes for axis, _ in options):  # which no value but 0 is
                context.body.remove(made)
                told = tuple((str(names[axis]), amounts) for axis, amounts in options)
                return replace(call, arguments=(replace(plain, index=ref.index),), options=told)
    return None


def _in_pairs(
    context: VjpContext, factors: list[Expression], kept: frozenset[str], scope: Scope, stem: str
) -> list[Expression]:
    """Two factors, products of all: an axis is summed as soon as nothing else has it."""
    axes = [free_axes(each) for each in factors]
    sizes = {axis: evaluate(scope[axis], context.bound) for each in axes for axis in each}
    waiting = dict(enumerate(factors))
    for number, (one, other) in enumerate(context.pairs(axes, kept, sizes), len(factors)):
        if len(waiting) == 2:
            break
        pair = (waiting.pop(one), waiting.pop(other))
        outside = kept.union(*(free_axes(each) for each in waiting.values()))
        inside = {axis for each in pair for axis in free_axes(each)}
        product = contraction(pair, tuple(inside - outside), None)
        waiting[number] = context.tensor(product, scope, context.numbered(stem))
    return list(waiting.values())


def _masked(context: VjpContext, call: Call, operand: Expression, scope: Scope, stem: str) -> Expression:
    """What is drawn, a tensor of its own of truth values: the same mask in both passes."""
    ones = spread(as_numbers(ONE), free_axes(operand))
    numbers = replace(call, arguments=(ones, *call.arguments[1:]))
    drawn = Call(CONVERSIONS[Element.TRUTH], (numbers, ZERO))
    mask = context.tensor(drawn, scope, context.fresh(f"{stem}_mask"))
    return Call(FUNCTIONS[call.function].drawn, (mask, operand, *call.arguments[1:]))
