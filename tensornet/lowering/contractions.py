"""Lowering of contractions, in the chosen contraction order, and of quotients."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..contraction.order_search import fastest_with_vjp
from ..contraction.pairs import Layout, Order, Problem, Strategy, flatten, view_order
from ..graph.element_types import of_number
from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..graph.shape_inference import Axis, index_of
from ..language.equation import Equation
from ..language.expression import (
    ELLIPSIS,
    Call,
    Contraction,
    Expression,
    Ref,
    axes_of_index,
    divisor_of,
    fresh,
    product_of,
    scalar_value,
)
from ..ops.record import Left, Value, common, left_of, names_in, sizes_of
from ..ops.table import FUNCTIONS, Element
from ..planning.plans import CallStep, Step
from ..sizes import symbol
from .context import LoweringContext, TooLongError
from .pointwise import Operand, combine, operand

if TYPE_CHECKING:
    from ..autodiff.vjp import JointGraph

NODE = 15e-6
"""The seconds that a product and its gradients cost as one node of autograd besides the operations: Python calls the
backward pass. They are planned together always if it is 0, else where that is expected to take less time (PyTorch 2.11,
two-core server)."""


def lower_contraction(context: LoweringContext, expression: Contraction, wanted: Layout | None) -> Value:
    """Lowers a product of several factors that is summed over some axes."""
    scalars, values = _factors(context, expression.factors)
    return _multiply(context, values, scalars, expression.summed, wanted)


def _factors(context: LoweringContext, factors: Sequence[Expression]) -> tuple[list[Expression], list[Value]]:
    """The numbers among the factors of a product, and the tensors."""
    scalars = [context.scalar(factor) for factor in factors if factor.is_scalar]
    return scalars, [context.lower(factor, None) for factor in factors if not factor.is_scalar]


def _multiply(
    context: LoweringContext,
    values: list[Value],
    scalars: list[Expression],
    summed: tuple[str, ...],
    wanted: Layout | None,
) -> Value:
    """The product of tensors and numbers. Exact factors are multiplied before they become the working type."""
    values = _sum_alone(context, values, set(summed))
    exact = [each for each in values if each.element.is_exact]
    apart = exact and len(exact) < len(values) and (not summed or len(exact) == 1)
    if apart and len(exact) + len(scalars) > 1:
        together = _multiply(context, exact, scalars, (), None)
        values, scalars = [together, *(each for each in values if each not in exact)], []
    element = max(Element.WHOLE, *(each.element for each in values), *map(of_number, scalars))
    values = [context.convert(each, element) for each in values]
    if scalars:
        smallest = min(range(len(values)), key=lambda n: _weight(context, values[n]))
        values[smallest] = _scaled(context, values[smallest], scalars)
    return values[0] if len(values) == 1 else _contract(context, values, set(summed), wanted)


def _sum_alone(context: LoweringContext, values: list[Value], summed: set[str]) -> list[Value]:
    """Sums each axis that only one factor has, which is never slower. Truth values are counted."""
    reduced: list[Value] = []
    holders = Counter(axis for each in values for axis in set(each.layout))
    for each in values:
        alone = tuple(axis for axis in each.layout if axis in summed and holders[axis] == 1)
        if alone:
            each = context.convert(each, max(each.element, Element.WHOLE))
            outer = context.before_innermost(each, alone)
            for axes in filter(None, (outer, common(alone, but=(outer,)))):
                left = tuple(axis for axis in each.layout if axis not in axes)
                right = Contraction((each.ref,), tuple(sorted(axes)))
                each = context.emit(left, right, [each], each.element)
        reduced.append(each)
    return reduced


def _weight(context: LoweringContext, value: Value) -> tuple[bool, int]:
    """The cost of an operation on a value. Invariant values come first, since they are computed only once."""
    return value.ref.name not in context.invariant, context.positions(value.sizes, value.layout)


def _scaled(context: LoweringContext, value: Value, scalars: list[Expression]) -> Value:
    """The value times some numbers. The reciprocal of a number that may be 0 becomes a division."""
    below = [each for each in scalars if _may_divide_by_zero(each)]
    factors = [*(each for each in scalars if each not in below), value.ref, *below]
    return context.emit(value.left, product_of(factors), [value], value.element)


def _may_divide_by_zero(number: Expression) -> bool:
    """Whether a number is the reciprocal of 0, or of a number that is not known yet."""
    below = divisor_of(number)
    return below is not None and not scalar_value(below)


# ---------------------------------------------------------------------------- order


def _contract(
    context: LoweringContext, values: list[Value], summed: set[str], wanted: Layout | None
) -> Value:
    """The contraction of several tensors, pair by pair in the chosen order."""
    kept, sizes = frozenset(axis for each in values for axis in each.layout) - summed, sizes_of(values)
    changing = frozenset(n for n, each in enumerate(values) if each.ref.name in context.changing)
    problem = Problem(
        tuple(each.layout for each in values),
        kept,
        wanted if wanted is not None and set(wanted) == kept else None,
        {axis: context.positions(sizes, (axis,)) for axis in sizes},
        context.profile,
        context.itemsize,
        frozenset(n for n, each in enumerate(values) if each.ref.name in context.invariant),
        asked=1.0 if changing else context.asked,  # its gradient comes in the declared layout
    )
    real = all(each.element is Element.NUMBER for each in values)
    several = len(values) > 2 and len(changing) > 1 and real and not problem.invariant
    if context.limit < math.inf and context.seconds > context.limit:
        raise TooLongError
    order = context.choose(problem)
    joint = _with_vjp(context, problem, order, values, changing) if several else None
    return _pairs(context, problem, order, values) if joint is None else joint


def _with_vjp(
    context: LoweringContext, problem: Problem, alone: Order, values: list[Value], changing: frozenset[int]
) -> Value | None:
    """The call of a product that is planned with its backward pass. None if autograd is expected to be as fast.

    Args:
        context: the context.
        problem: the product.
        alone: its order, if autograd differentiates the pairs.
        values: the factors.
        changing: the factors that get gradients.
    """
    order = fastest_with_vjp(problem)
    left = problem.wanted or flatten(order[-1].way.result)
    lying = [_dims(context, each) for each in values]
    sizes = sizes_of(values)
    names = {axis: fresh("lead", {*sizes}) if axis == ELLIPSIS else axis for axis in sizes}
    at = {name: context.positions(sizes, (axis,)) for axis, name in names.items()}
    assert context.product is not None
    joint = _joint_product(context, lying, sizes, names, changing, order, left)
    plan = context.product(joint, at)
    assert plan.backward is not None
    usual = _autograd_seconds(alone, changing, len(values)) if NODE else math.inf
    if plan.seconds + plan.backward.seconds + NODE >= usual:
        return None
    operands = tuple(context.reorder(*each).ref.name for each in zip(values, lying, strict=True))
    name, shape = context.name(), tuple(context.open(sizes[axis]) for axis in left)
    context.add(CallStep(plan, "", operands, (name,), (shape,)))
    context.changing.add(name)
    return Value(Ref(name, left), {axis: sizes[axis] for axis in left}, Element.NUMBER)


def _autograd_seconds(order: Order, changing: frozenset[int], count: int) -> float:
    """The seconds of the pairs, and of their gradients by autograd: each takes about as long as its pair."""
    seconds, changes = 0.0, [number in changing for number in range(count)]
    for pair in order:
        given = (changes[pair.first], changes[pair.second])
        seconds += (1 + sum(given)) * pair.way.seconds
        changes.append(any(given))
    return seconds


def _joint_product(
    context: LoweringContext,
    lying: Sequence[Left],
    sizes: Mapping[str, Any],
    names: Mapping[str, str],
    changing: frozenset[int],
    order: Order,
    left: Layout,
) -> JointGraph:
    """A product, pair by pair, as a graph with its backward pass.

    Args:
        context: the context.
        lying: the dimensions of the factors.
        sizes, names: the sizes of all axes, and their names in the graph.
        changing: the factors that get gradients.
        order: the pairs.
        left: the axes of the result, in the expected layout of its gradient.
    """
    from ..autodiff.vjp import differentiated  # most plans need no derivatives

    known = {axis: context.open(size) for axis, size in sizes.items()}
    opened = {axis: size if isinstance(size, int) else symbol(names[axis]) for axis, size in known.items()}
    axes = {axis: Axis(name, opened[axis]) for axis, name in names.items()}
    leaves = [
        Leaf(f"x{n}", "input", tuple(tuple(axes[axis] for axis in names_in(entry)) for entry in each))
        for n, each in enumerate(lying)
    ]
    made, body = [Ref(leaf.name, index_of(leaf.dims)) for leaf in leaves], list[Equation]()
    for pair in order:
        name, index = f"t{len(body) + 1}", flatten(pair.way.result)
        name, index = ("y", left) if pair is order[-1] else (name, index)
        result = Ref(name, tuple(names[axis] for axis in index))
        summed = tuple(sorted(names[axis] for axis in pair.way.contracted))
        product = Contraction((made[pair.first], made[pair.second]), summed)
        body.append(Equation(result.name, result.free_axes, product))
        made.append(result)
    wrt = tuple(leaf.name for n, leaf in enumerate(leaves) if n in changing)
    return differentiated(Graph(tuple(leaves), tuple(body), ("y",)), ("y",), wrt, lambda *_: ())


def _dims(context: LoweringContext, value: Value) -> Left:
    """The dimensions of an operand of a function: composites are split unless all their sizes are known."""
    grouped = (axis for entry in value.left if isinstance(entry, tuple) for axis in entry)
    known = all(isinstance(context.open(value.sizes[axis]), int) for axis in grouped)
    return value.left if known else value.layout


# ---------------------------------------------------------------------------- pairs


def _pairs(context: LoweringContext, problem: Problem, order: Order, values: Sequence[Value]) -> Value:
    """Emits the steps of one contraction. Their costs exclude the copy of the result that its readers make."""
    made = list(values)
    for pair in order:
        a, b = made[pair.first], _settled(context, made[pair.second], made[pair.first], pair.way)
        way = pair.way
        if pair is order[-1]:
            later = problem.pricing.brought(flatten(way.result), problem.wanted)
            way = replace(way, seconds=max(0.0, way.seconds - later))
        if way.kind == "sum":  # an invariant tensor may lie in another order than was assumed
            rows = tuple(axis for axis in (b if way.swapped else a).layout if axis not in way.summed)
            way = replace(way, rows=rows, result=tuple((axis,) for axis in rows))
        elif "linear" in context.target.supported:
            way = _linear(way, a, b)
        right = Contraction((a.ref, b.ref), tuple(sorted(way.contracted)))
        made.append(context.emit(left_of(way.result), right, [a, b], a.element, arrangement=way))
    return made[-1]


def share_copies(context: LoweringContext) -> None:
    """Makes a copy that several products read a step of its own, before the first of them."""
    steps, later = (
        context.steps,
        {context.renamed.get(name, name): key for key, name in context.copies.items()},
    )
    count = Counter(key for step in steps if isinstance(step, Step) for *_, key in _copies(step))
    context.steps, context.copies = [], {}
    for step in steps:
        if isinstance(step, Step):
            for ref, layout, key in _copies(step):
                if count[key] > 1:
                    value = Value(ref, {axis.name: axis.size for axis in step.axes}, step.element)
                    right = _reading(step.equation.right, ref, context.reorder(value, layout).ref)
                    seconds = max(0.0, step.seconds - context.transpose_seconds(value, layout))
                    step = replace(step, equation=replace(step.equation, right=right), seconds=seconds)
        context.steps.append(step)
        context.copies |= {later[name]: name for name in step.defines if name in later}


def _reading(right: Expression, old: Ref, new: Ref) -> Expression:
    return right.rewrite(lambda part: new if part == old else part)


def _copies(step: Step) -> Iterator[tuple[Ref, Layout, Hashable]]:
    """The operands that a product copies, each with the layout of the copy, and what equal copies share."""
    sizes = {axis.name: axis.size for axis in step.axes}
    for ref, groups in step.copied:
        layout, copied = ref.layout, flatten(groups)
        yield ref, copied, (ref.name, tuple(map(sizes.get, layout)), tuple(map(layout.index, copied)))


def _settled(context: LoweringContext, value: Value, other: Value, way: Strategy) -> Value:
    """The second operand of a product. If it is invariant, it is copied once into the layout that each call reads."""
    invariant = context.invariant
    if way.kind != "matmul" or value.ref.name not in invariant or other.ref.name in invariant:
        return value
    batch = tuple(axis for axis in way.batch if axis in value.layout)
    inner = (way.summed, way.columns) if batch and not way.swapped else (way.columns, way.summed)
    offered = batch and view_order(value.layout, (batch, *inner)) is not None
    return value if offered else context.reorder(value, flatten((batch, *inner)))


def _linear(way: Strategy, a: Value, b: Value) -> Strategy:
    """The same product as a linear layer, which keeps the dimensions of its rows, where the layouts allow that:
    the first operand has its rows before the summed axes, and the second its columns, as weights do."""
    if (
        way.kind != "matmul"
        or way.batch
        or way.swapped
        or not (way.rows and way.columns)
        or a.element.is_exact
    ):
        return way
    rows = [entry for entry in a.left if set(names_in(entry)) & set(way.rows)]
    if a.layout != (*axes_of_index(tuple(rows)), *way.summed) or b.layout != (*way.columns, *way.summed):
        return way
    return replace(way, kind="linear", result=(*map(names_in, rows), way.columns))


# ---------------------------------------------------------------------------- divisions


def lower_quotient(context: LoweringContext, factors: tuple[Expression, ...], wanted: Layout | None) -> Value:
    """Lowers a product that sums nothing, from left to right: `a * b / c * d` has one division, of `a * b`."""
    last = max(n for n, factor in enumerate(factors) if divisor_of(factor))
    value = _divided(context, *_division(context, factors[: last + 1], wanted))
    scalars, values = _factors(context, factors[last + 1 :])
    return _multiply(context, [value, *values], scalars, (), wanted) if scalars or values else value


def _division(
    context: LoweringContext, factors: tuple[Expression, ...], wanted: Layout | None
) -> tuple[Operand, Operand]:
    """The dividend and the divisor of `a * b / c`."""
    *above, below = factors
    assert isinstance(below, Call)
    numerator = operand(context, product_of(above), wanted, scaled=True)
    return numerator, operand(context, below.arguments[0], wanted)


def _divided(context: LoweringContext, above: Operand, below: Operand) -> Value:
    return combine(context, FUNCTIONS["reciprocal"], _quotient, [above, below])


def _quotient(above: Expression, below: Expression) -> Expression:
    return product_of([above, Call("reciprocal", (below,))])


def lower_rounded(context: LoweringContext, call: Call, wanted: Layout | None) -> Value:
    """Lowers the rounding of a number. A quotient of integers is one integer division, without a fraction."""
    match call.arguments[0]:
        case Contraction((_, *_, last) as factors, ()) if divisor_of(last):
            above, below = _division(context, factors, wanted)
            divides = below.value is None and below.is_whole and scalar_value(below.before[0]) != 0
            if divides and above.value is not None and above.is_whole:
                return combine(
                    context,
                    FUNCTIONS[call.function],
                    lambda *of: replace(call, arguments=(_quotient(*of),)),
                    [above, below],
                )
            value = _divided(context, above, below)
        case argument:
            value = context.lower(argument, wanted)
    if value.element <= Element.WHOLE:
        return context.convert(value, Element.WHOLE)
    return context.emit(value.left, replace(call, arguments=(value.ref,)), [value], value.element)
