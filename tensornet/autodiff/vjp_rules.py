"""Vjp rules: the cotangent of each operand of an equation, from the records of functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..errors import EquationError
from ..graph.algebra import ONE, ZERO, multiplied, spread, summed_over
from ..graph.shape_inference import Scope
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Literal,
    Ref,
    axes_of_index,
    free_axes,
    option_axes,
    product_of,
    sum_of,
)
from ..language.parser import parse_rule
from ..ops.record import OPERANDS
from ..ops.table import FUNCTIONS
from .vjp_context import GRADIENT, VjpContext

__all__ = ["handed_back"]


def handed_back(
    context: VjpContext, equation: Equation, gradient: Expression
) -> Iterator[tuple[Ref, Expression]]:
    """What each tensor on the right gets."""
    match equation.right:
        case Ref() as ref if ref.name in context.active:
            yield ref, gradient
        case Contraction(factors):
            for n, operand in enumerate(factors):
                if isinstance(operand, Ref) and operand.name in context.active:
                    product = multiplied((gradient, *factors[:n], *factors[n + 1 :]))
                    yield operand, _summed(context, product, operand, (), Scope())
        case Call(_, arguments) as call:
            made = call.axes if FUNCTIONS[call.function].axes in ("made", "joined") else ()
            around = tuple(each for each in axes_of_index(equation.left) if each not in made)
            y, scope = Ref(equation.name, equation.left), context.scope(call)
            for n, operand in enumerate(arguments):
                if isinstance(operand, Ref) and operand.name in context.active:
                    term = _of_call(context, call, n, gradient, y)
                    is_kept = FUNCTIONS[call.function].axes == "kept"
                    own = set(call.axes).difference(free_axes(operand)) if is_kept else set()
                    over = tuple(each for each in around if each not in own)
                    yield operand, _summed(context, term, operand, over, scope)


def _summed(
    context: VjpContext, term: Expression, operand: Ref, around: tuple[str, ...], scope: Scope
) -> Expression:
    """A gradient as the operand gets it: summed over the axes that this has not.

    Args:
        term: the gradient, before.
        operand: the operand.
        around: all axes at hand; the gradient is alike along those that it lacks.
        scope: their sizes.
    """
    here, own = free_axes(term), free_axes(operand)
    alike = [axis for axis in dict.fromkeys(around) if axis not in (*here, *own)]
    factors = multiplied([*(context.extent(scope[axis]) for axis in alike), term])
    return summed_over(factors, [axis for axis in here if axis not in own])


def _of_call(context: VjpContext, call: Call, operand: int, gradient: Expression, y: Ref) -> Expression:
    """What an operand of a function gets, as the record of the function says."""
    function, argument = FUNCTIONS[call.function], call.arguments[operand]
    if not function.derivative:
        fix = f"register it with one: tn.register('{function.name}', derivative=…, …)"
        raise EquationError(f"'{function.name}' has no derivative", call.place, fix)
    if function.axes in ("kept", "made"):
        gradient = spread(gradient, call.axes)
    meaning: dict[str, Expression] = dict(zip(OPERANDS, call.arguments, strict=False))
    numbers = dict(function.options)
    meaning.update({name: Literal(value) for name, value in numbers.items()})
    meaning.update({name: values[0] for name, values in call.options if name in numbers})
    scope = context.scope(call if function.axes == "kept" else argument)
    count = product_of([ONE, *(context.extent(scope[axis]) for axis in call.axes)])
    text = function.gradient(operand)
    match function.axes:
        case "joined" if call.axes[0] not in free_axes(gradient):
            return gradient
        case "joined":
            meaning.update(_around(context, call, operand))
        case "moved":
            return _moved_back(context, call, text, meaning, gradient)
    return parse_rule(text, {**meaning, "y": y, "n": count, "g": gradient}, call.axes)


def _moved_back(
    context: VjpContext, call: Call, text: str, meaning: Mapping[str, Expression], gradient: Expression
) -> Expression:
    """What the operand of a function gets that moves elements, axis by axis."""
    function = FUNCTIONS[call.function]
    moved = {axis: values for axis, values in call.options if axis in option_axes(call)}
    if function.resized is not None and not moved.keys() <= set(free_axes(gradient)):
        name = context.numbered(GRADIENT.format(call.function))
        gradient = context.tensor(spread(gradient, moved), context.scope(call), name)
    for axis in sorted(moved.keys() & set(free_axes(gradient))):
        amounts = dict(zip(function.amounts, moved[axis], strict=True))
        gradient = parse_rule(text, {**meaning, **amounts, "g": gradient}, (axis,))
    return gradient


def _around(context: VjpContext, call: Call, operand: int) -> dict[str, Expression]:
    """How many positions are before an operand, and after it, along the axis on which they follow one another."""
    (axis,) = call.axes
    extents = [
        context.extent(context.scope(each)[axis]) if axis in free_axes(each) else ONE
        for each in call.arguments
    ]
    return {
        "before": sum_of([ZERO, *extents[:operand]]),
        "after": sum_of([ZERO, *extents[operand + 1 :]]),
    }
