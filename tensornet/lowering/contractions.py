"""Lowering of contractions and quotients, in the chosen contraction order."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..autodiff.joint import Directions
from ..contraction.joint_order import Factor, both_ways, names_of, ordered_both_ways
from ..contraction.pairs import Arrangement, Layout, flatten, view_order
from ..contraction.search import Choose, Order, Problem
from ..device.model import PACKED, packed_with
from ..graph.element_types import of_number
from ..graph.shape_inference import Scope
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Ref,
    axes_of_index,
    is_scalar,
    product_of,
    scalar_value,
)
from ..ops.table import FUNCTIONS, Element
from ..planning.plans import Plan
from ..planning.steps import Step
from .pointwise import Pointwise, is_reciprocal
from .values import Entry, Operand, Value, names_in

__all__ = ["Contracting"]


class Contracting(Pointwise):
    """Makes the steps of products, whose order `choose` gives."""

    choose: Choose
    product: Callable[[Directions, Mapping[str, int]], Plan]

    def contract(self, expression: Contraction, scope: Scope, wanted: Layout | None) -> Value:
        scope = self.inner(replace(expression, summed=()), scope) if expression.summed else scope
        scalars, values = self._factors(expression.factors, scope)
        return self.multiply(values, scalars, expression.summed, wanted)

    def _factors(self, factors: Sequence[Expression], scope: Scope) -> tuple[list[Expression], list[Value]]:
        """The numbers among the factors of a product, and the tensors."""
        scalars = [self.scalar(factor, scope) for factor in factors if is_scalar(factor)]
        return scalars, [self.lower(factor, scope, None) for factor in factors if not is_scalar(factor)]

    def multiply(
        self, values: list[Value], scalars: list[Expression], summed: tuple[str, ...], wanted: Layout | None
    ) -> Value:
        """The product of tensors and numbers, summed over some axes."""
        values = self._sum_alone(values, set(summed))
        exact = [each for each in values if each.element.is_exact]
        if (
            exact
            and len(exact) < len(values)
            and (not summed or len(exact) == 1)
            and len(exact) + len(scalars) > 1
        ):
            together = self.multiply(exact, scalars, (), None)
            values, scalars = [together, *(each for each in values if each not in exact)], []
        element = max(Element.WHOLE, *(each.element for each in values), *map(of_number, scalars))
        values = [self.convert(each, element) for each in values]
        kept = frozenset(axis for each in values for axis in each.layout) - set(summed)
        if scalars:
            smallest = min(range(len(values)), key=lambda n: self._weight(values[n]))
            values[smallest] = self._scaled(values[smallest], scalars)
        if len(values) == 1:
            return values[0]
        sizes = {axis: size for each in values for axis, size in each.sizes.items()}
        wanted = wanted if wanted is not None and set(wanted) == kept else None
        problem = Problem(
            tuple(each.layout for each in values),
            kept,
            wanted,
            {axis: self.count(sizes, (axis,)) for axis in sizes},
            self.profile,
            self.itemsize,
            frozenset(n for n, each in enumerate(values) if each.ref.name in self.still),
            asked=self.asked,
        )
        if len(values) == 2 and any(self.copies[each.ref.name] for each in values):
            return self._of_forms(problem, values, sizes)
        changing = frozenset(n for n, each in enumerate(values) if each.ref.name in self.changing)
        if len(values) > 2 and len(changing) > 1 and element is Element.NUMBER and not problem.still:
            return self.both_ways(problem, ordered_both_ways(problem, changing), values, sizes, changing)
        return self.build(problem, self.choose(problem), values, sizes)

    def _of_forms(self, problem: Problem, values: list[Value], sizes: Mapping[str, Any]) -> Value:
        """The product of two tensors, of copies of them where these are read more quickly."""
        found: list[tuple[float, Order, list[Value]]] = []
        for pair in itertools.product(*map(self.forms, values)):
            order = self.choose(replace(problem, layouts=tuple(each.layout for each in pair)))
            found.append((order[-1].way.seconds, order, list(pair)))
        _, order, values = min(found, key=lambda each: each[0])
        return self.build(problem, order, values, sizes)

    def _weight(self, value: Value) -> tuple[bool, int]:
        """What it takes to do something to a value: nothing where that is done once."""
        return value.ref.name not in self.still, self.count(value.sizes, value.layout)

    def _sum_alone(self, values: list[Value], summed: set[str]) -> list[Value]:
        """Sums the axes that only one factor has, which never hurts; truth values are counted."""
        reduced: list[Value] = []
        holders = Counter(axis for each in values for axis in set(each.layout))
        for each in values:
            alone = tuple(axis for axis in each.layout if axis in summed and holders[axis] == 1)
            if alone:
                each = self.convert(each, max(each.element, Element.WHOLE))
                left = tuple(axis for axis in each.layout if axis not in alone)
                right = Contraction((each.ref,), tuple(sorted(alone)))
                each = self.emit(left, right, [each], each.sizes, each.element)
            reduced.append(each)
        return reduced

    def _scaled(self, value: Value, scalars: list[Expression]) -> Value:
        """The value times some numbers; it is divided by one that may be 0."""
        below = [each for each in scalars if _may_divide_by_zero(each)]
        factors = [*(each for each in scalars if each not in below), value.ref, *below]
        return self.emit(value.left, product_of(factors), [value], value.sizes, value.element)

    # ---- pairs

    def build(
        self, problem: Problem, order: Order, values: Sequence[Value], sizes: Mapping[str, Any]
    ) -> Value:
        """Emits the steps of one contraction, without what its readers will do."""
        made = list(values)
        for pair in order:
            a, b = made[pair.first], self._settled(made[pair.second], made[pair.first], pair.way)
            a, b, way = self._copied_once(a, b, pair.way)
            if pair is order[-1]:
                later = problem.pricing.brought(flatten(way.result), problem.wanted)
                way = replace(way, seconds=max(0.0, way.seconds - later))
            way = self._by_kernel(_linear(way, a, b) if "linear" in self.spelled else way, sizes)
            left: tuple[Entry, ...] = tuple(group[0] if len(group) == 1 else group for group in way.result)
            right = Contraction((a.ref, b.ref), tuple(sorted(way.contracted)))
            made.append(self.emit(left, right, [a, b], sizes, a.element, way))
        return made[-1]

    def _by_kernel(self, way: Arrangement, sizes: Mapping[str, Any]) -> Arrangement:
        """The same by a kernel that lays both matrices out anew, where the library has one and it is quicker."""
        if way.batch or way.kind not in ("matmul", "linear") or PACKED not in self.spelled:
            return way
        one, two = (way.columns, way.rows) if way.swapped else (way.rows, way.columns)
        m, n, k = (self.count(sizes, axes) for axes in (one, two, way.summed))
        return replace(way, packed=self.profile.is_packed(m, n, k, self.itemsize))

    def _copied_once(self, a: Value, b: Value, way: Arrangement) -> tuple[Value, Value, Arrangement]:
        """The operands of a product; what it reads in another order, and others read as well, is copied before it."""
        pair = [a, b]
        for n, each in enumerate(pair):
            order, known = way.read(each.layout, n == 0), each.ref.name
            if order == each.layout or self.readers[known] < 2 or known in self.still:
                continue
            pair[n] = self.reorder(each, order)
            step = self.steps[-1]
            way = replace(way, seconds=max(0.0, way.seconds - step.seconds))
            places = tuple(each.layout.index(axis) for axis in order)
            self.copies[known][places] = pair[n].ref.name
        return pair[0], pair[1], way

    def forms(self, value: Value) -> list[Value]:
        """A tensor as it lies, and copies of it in other orders that are there."""
        layout = value.layout
        orders = (
            (tuple(layout[place] for place in places), name)
            for places, name in self.copies[value.ref.name].items()
            if len(places) == len(layout)
        )
        return [value, *(replace(value, ref=Ref(name, order)) for order, name in orders)]

    def both_ways(
        self,
        problem: Problem,
        order: Order,
        values: Sequence[Value],
        sizes: Mapping[str, Any],
        changing: frozenset[int],
    ) -> Value:
        """The call of a product whose way back is planned with it; factors are brought into the orders it reads."""
        left = problem.wanted or flatten(order[-1].way.result)
        values = [self._apart(each) for each in values]
        for pair in order:
            for number, is_first in ((pair.first, True), (pair.second, False)):
                if number < len(values):
                    lying = pair.way.read(values[number].layout, is_first)
                    values[number] = (
                        self.reorder(values[number], lying)
                        if lying != values[number].layout
                        else values[number]
                    )
        known = {axis: self.open(size) for axis, size in sizes.items()}
        factors = [Factor(each.left, known, n in changing) for n, each in enumerate(values)]
        brought = replace(problem, layouts=tuple(each.layout for each in values))
        directions = both_ways(factors, brought, order, left)
        at = {name: self.count(sizes, (axis,)) for axis, name in zip(sizes, names_of(sizes), strict=True)}
        found = self.called(self.product(directions, at), values, left, sizes)
        self.changing.add(found.ref.name)
        return found

    def _apart(self, value: Value) -> Value:
        """The value as a function may take it: the sizes of what lies together are known, or lie apart."""
        grouped = (axis for entry in value.left if isinstance(entry, tuple) for axis in entry)
        known = all(isinstance(self.open(value.sizes[axis]), int) for axis in grouped)
        return value if known else self.reorder(value, value.layout)

    def _settled(self, value: Value, other: Value, way: Arrangement) -> Value:
        """The second tensor of a product, brought once into the order it is read in at each call, if it is still."""
        if way.kind != "matmul" or value.ref.name not in self.still or other.ref.name in self.still:
            return value
        batch = tuple(axis for axis in way.batch if axis in value.layout)
        inner = (way.summed, way.columns) if batch and not way.swapped else (way.columns, way.summed)
        offered = batch and view_order(value.layout, (batch, *inner)) is not None
        return value if offered else self.reorder(value, flatten((batch, *inner)))

    def _biased(self, terms: Sequence[Operand]) -> Value | None:
        """A matrix product just made, with what is added to each of its rows: one step, which most libraries have."""
        values = [each.value for each in terms if each.value is not None and not each.before + each.after]
        last = self.steps[-1] if self.steps else None
        if "linear" not in self.spelled or len(values) < 2 or not isinstance(last, Step):
            return None
        made, bias = sorted(values, key=lambda each: each.ref.name != last.equation.name)
        way = last.arrangement
        if made.ref.name in self.graph.named:  # which others may read as it is
            return None
        if made.ref.name != last.equation.name or way is None or way.kind not in ("matmul", "linear"):
            return None
        if way.batch or not (way.rows and way.columns) or bias.layout != way.result[-1]:
            return None
        if max(Element.WIDE, bias.element) > made.element or made.element.is_exact:
            return None
        self.steps.pop()
        bias = self.convert(bias, made.element)
        self.steps.append(last)
        right = Call("add", (last.equation.right, bias.ref))
        moved = last.bytes + self.itemsize * self.count(bias.sizes, bias.layout)
        equation, way = replace(last.equation, right=right), replace(way, kind="linear")
        self.steps[-1] = replace(last, equation=equation, bytes=moved, arrangement=way)
        return made

    def _taken(self, function: str, operands: Sequence[Operand]) -> Value | None:
        """A linear product just made, with a function of each element: one step, where the library's kernel has it."""
        (value,), last = (each.value for each in operands), self.steps[-1] if self.steps else None
        if (
            value is None
            or operands[0].numbers
            or not isinstance(last, Step)
            or value.ref.name in self.graph.named
        ):
            return None
        way, product = last.arrangement, last.multiplied
        if packed_with(function) not in self.spelled or value.ref.name != last.equation.name:
            return None
        if way is None or product is None or product.then or not way.packed or way.kind != "linear":
            return None
        moved = 2.0 * self.itemsize * self.count(value.sizes, value.layout)
        alone = self.profile.computed(moved, 0.0, FUNCTIONS[function].passes[0])
        self.steps[-1] = replace(
            last,
            equation=replace(last.equation, right=Call(function, (last.equation.right,))),
            seconds=last.seconds + alone - self.profile.pointwise(moved, 0.0),
        )
        return value

    # ---- divisions

    def quotient(self, factors: tuple[Expression, ...], scope: Scope, wanted: Layout | None) -> Value:
        """A product that sums nothing, from left to right: in `a * b / c * d` the division is one."""
        last = max(n for n, factor in enumerate(factors) if is_reciprocal(factor))
        value = self._divided(*self._division(factors[: last + 1], scope, wanted))
        scalars, values = self._factors(factors[last + 1 :], scope)
        return self.multiply([value, *values], scalars, (), wanted) if scalars or values else value

    def _division(
        self, factors: tuple[Expression, ...], scope: Scope, wanted: Layout | None
    ) -> tuple[Operand, Operand]:
        """What is divided in `a * b / c`, and by what."""
        *above, below = factors
        assert isinstance(below, Call)
        numerator = self.operand(product_of(above), scope, wanted, scaled=True)
        return numerator, self.operand(below.arguments[0], scope, wanted)

    def _divided(self, above: Operand, below: Operand) -> Value:
        return self.combine(FUNCTIONS["reciprocal"], _quotient, [above, below])

    def rounded(self, call: Call, scope: Scope, wanted: Layout | None) -> Value:
        """The integer that a number is rounded to: of integers divided, without a fraction in between."""
        match call.arguments[0]:
            case Contraction((_, *_, last) as factors, ()) if is_reciprocal(last):
                above, below = self._division(factors, scope, wanted)
                if above.value is not None and above.is_whole and _is_whole_divisor(below):
                    return self.combine(
                        FUNCTIONS[call.function],
                        lambda *of: replace(call, arguments=(_quotient(*of),)),
                        [above, below],
                    )
                value = self._divided(above, below)
            case argument:
                value = self.lower(argument, scope, wanted)
        if value.element <= Element.WHOLE:
            return self.convert(value, Element.WHOLE)
        return self.emit(value.left, replace(call, arguments=(value.ref,)), [value], {}, value.element)


def _linear(way: Arrangement, a: Value, b: Value) -> Arrangement:
    """The same product, its rows left as they are where the first tensor has them before what is summed, and
    the second is a matrix of columns and these, as weights are kept."""
    if way.kind != "matmul" or way.batch or way.swapped or not (way.rows and way.columns):
        return way
    if a.element.is_exact:
        return way
    rows = [entry for entry in a.left if set(names_in(entry)) & set(way.rows)]
    if a.layout != (*axes_of_index(tuple(rows)), *way.summed) or b.layout != (*way.columns, *way.summed):
        return way
    return replace(way, kind="linear", result=(*map(names_in, rows), way.columns))


def _may_divide_by_zero(number: Expression) -> bool:
    """Whether a number is the reciprocal of one that is 0, or not known yet."""
    return is_reciprocal(number) and not scalar_value(number.arguments[0])  # type: ignore[union-attr]


def _quotient(above: Expression, below: Expression) -> Expression:
    return product_of([above, Call("reciprocal", (below,))])


def _is_whole_divisor(operand: Operand) -> bool:
    """Whether integers can be divided by it: a whole number, and not 0."""
    return operand.value is None and operand.is_whole and scalar_value(operand.before[0]) != 0
