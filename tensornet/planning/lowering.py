"""Graph to steps: every expression becomes a sequence of equations one level deep.

Lowering decides the order in memory of every intermediate (the left side of its step) and hands
each n-ary contraction to `choose`, which returns which pairs to contract, and how.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ..errors import ShapeError
from ..graph.apply import Apply
from ..graph.elements import holding, of_leaves, of_number
from ..graph.graph import Graph
from ..graph.inlining import renamed_axes
from ..graph.shape import Axis, Dim, Scope, componentwise, dim_size, scalar_size, scope_of, size_expression
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Index,
    Literal,
    Ref,
    Size,
    axes_of_index,
    is_scalar,
    occurring,
    option_axes,
    product_of,
    references,
    scalar_value,
    subexpressions,
    transform,
)
from ..language.patterns import pattern_of
from ..operations.functions import CONVERSIONS, FUNCTIONS, Element, Function
from ..sizes import evaluate, product
from .arrangement import Arrangement, Layout, flatten, ordered, view_order
from .laying import common_orders, split_as
from .memory import with_frees
from .once import is_still
from .plans import CallStep, Plan, Result, Step
from .search import Choose, Order, Problem
from .target import Target

__all__ = ["lower"]

Entry: TypeAlias = "str | tuple[str, ...]"

_NUMBERED = re.compile(r"(.+?)(?:_\d+)+")


@dataclass(frozen=True)
class Value:
    """A tensor at hand: how it is read here, the symbolic sizes of the axes, what its elements are."""

    ref: Ref
    sizes: Mapping[str, Any]
    element: Element

    @property
    def layout(self) -> Layout:
        return axes_of_index(self.ref.index)

    @property
    def left(self) -> tuple[Entry, ...]:
        """The left side of a step whose result lies in memory as this does."""
        return tuple(entry for entry in self.ref.index if isinstance(entry, str | tuple))


@dataclass(frozen=True)
class _Operand:
    """What a pointwise step reads: a tensor with numbers before and after it, or a number alone."""

    value: Value | None
    before: tuple[Expression, ...] = ()
    after: tuple[Expression, ...] = ()

    @property
    def expression(self) -> Expression:
        middle = () if self.value is None else (self.value.ref,)
        return product_of([*self.before, *middle, *self.after])

    @property
    def numbers(self) -> tuple[Element, ...]:
        """What the numbers are."""
        return tuple(of_number(each) for each in (*self.before, *self.after))

    @property
    def is_whole(self) -> bool:
        """Whether it is made of integers."""
        elements = (*self.numbers, *(() if self.value is None else (self.value.element,)))
        return all(each <= Element.WHOLE for each in elements)


def lower(
    graph: Graph,
    values: Mapping[str, int],
    target: Target,
    choose: Choose,
    planned: Callable[[Graph], Plan] | None = None,
    inside: bool = False,
) -> tuple[tuple[Step | CallStep, ...], tuple[Result, ...]]:
    """The steps that compute a graph, and where its outputs are.

    Args:
        graph: the graph, rewritten as far as it should be.
        values: every open size, for costs.
        target: what it is planned for.
        choose: orders an n-ary contraction.
        planned: plans a block that is called.
        inside: whether the graph is such a block, whose results go on being computed with.
    """
    lowering = _Lowering(graph, values, target, choose)
    for item in graph.body:
        if isinstance(item, Apply):
            assert planned is not None
            lowering.apply(item, planned)
        else:
            lowering.equation(item)
    results = tuple(lowering.result(name, inside) for name in graph.outputs)
    names = {*graph.bound, *graph.open_sizes}.union(*(equation.axes for equation in graph.own))
    steps = [_plainly(step, names) for step in lowering.steps]
    return with_frees(steps, [each.value.name for each in results]), results


def _plainly(step: Step | CallStep, known: set[str]) -> Step | CallStep:
    """The step with axes by their plain names, where a number tells none of its own apart.

    Axes are local to an equation; numbers keep those with sizes of their own apart in different ones, where
    blocks are written out, and those of one equation that parts into several steps.

    Args:
        step: the step.
        known: the names of the graph's sizes and axes.
    """
    if isinstance(step, CallStep):
        return step
    present = occurring(step.equation.right) | set(axes_of_index(step.equation.left))
    stems = {
        axis.name: found[1] for axis in step.axes if (found := _NUMBERED.fullmatch(axis.name)) is not None
    }
    alone = Counter(stems.values())
    names = {name: stem for name, stem in stems.items() if stem in known - present and alone[stem] == 1}
    if not names:
        return step
    axes = tuple(replace(axis, name=names.get(axis.name, axis.name)) for axis in step.axes)
    way = None if step.arrangement is None else step.arrangement.renamed(names)
    return replace(step, equation=renamed_axes(step.equation, names), axes=axes, arrangement=way)


@dataclass(frozen=True)
class _Stored:
    """Where a named tensor is: a variable, its order in memory, the dimensions it stands for, its elements."""

    variable: str
    entries: tuple[Entry, ...]
    logical: tuple[tuple[str, ...], ...]
    dims: tuple[Dim, ...]
    element: Element

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes of the axes that it was made with."""
        return {
            label: axis.size
            for part, dim in zip(self.logical, self.dims, strict=True)
            for label, axis in zip(part, dim, strict=True)
        }


class _Lowering:
    def __init__(self, graph: Graph, values: Mapping[str, int], target: Target, choose: Choose) -> None:
        self.graph, self.choose, self.spelled = graph, choose, target.spelled
        self.profile, self.itemsize = target.profile, target.itemsize
        self.told, self.still = target.told_sizes(graph), {leaf.name for leaf in graph.constants}
        self.values = {**values, **graph.bound}
        self.opened, self.known = dict[Any, Any](), dict[Any, int]()
        self.steps: list[Step | CallStep] = []
        self.taken = set(graph.named)
        self.asked_for = frozenset(_asked_for(graph))
        self.written: Layout = ()  # the order in which the equation at hand writes its axes
        self.numbered = (f"t{number}" for number in itertools.count(1))
        self.common = common_orders(graph, self._count_in)
        self.laid: dict[str, str] = {}  # and the variables of those that are
        elements = of_leaves(graph)
        self.stored = {
            leaf.name: _as_declared(leaf.name, leaf.dims, elements[leaf.name]) for leaf in graph.leaves
        }

    # ---- equations

    def equation(self, equation: Equation) -> None:
        scope = self.graph.scope(equation)
        self.written = axes_of_index(equation.left)
        start = len(self.steps)
        value = self.lower(equation.right, scope, self.written if equation.name in self.asked_for else None)
        variable = value.ref.name
        if (
            len(self.steps) > start
            and (variable,) == self.steps[-1].defines
            and variable not in self.graph.named
        ):
            self._rename_last(equation.name)
            variable = equation.name
        logical = tuple((entry,) if isinstance(entry, str) else entry for entry in equation.left)
        missing = set(axes_of_index(equation.left)) - set(value.layout)
        assert not missing, f"{equation} lost {missing}"
        dims = self.graph.named[equation.name]
        self.stored[equation.name] = _Stored(variable, value.left, logical, dims, value.element)

    def _rename_last(self, name: str) -> None:
        last = self.steps[-1]
        assert isinstance(last, Step)
        self.steps[-1] = replace(last, equation=replace(last.equation, name=name))
        self._note_still()

    def apply(self, call: Apply, planned: Callable[[Graph], Plan]) -> None:
        """A call of a block; what it is given, and what it gives, lies in memory as it is declared."""
        names = call.names()
        seen = {leaf.name: self.stored[names[leaf.name]].element for leaf in call.graph.leaves}
        plan = planned(holding(call.graph, seen))
        operands = tuple(self._given(name) for name in call.operands)
        dims = [self.graph.named[name] for name in call.results]
        shapes = tuple(tuple(self.open(dim_size(dim)) for dim in each) for each in dims)
        self.steps.append(CallStep(plan, call.scope, operands, call.results, shapes))
        self._note_still()
        for name, each, result in zip(call.results, dims, plan.results, strict=True):
            self.stored[name] = _as_declared(name, each, result.element)

    def _given(self, name: str) -> str:
        """The variable of a tensor that a block is given; brought in order once, it stays so for other calls."""
        stored = self.stored[name]
        variable = self._in_logical_order(stored)
        entries = tuple(part[0] if len(part) == 1 else part for part in stored.logical)
        self.stored[name] = replace(stored, variable=variable, entries=entries)
        return variable

    def result(self, name: str, inside: bool) -> Result:
        stored = self.stored[name]
        left = tuple(part[0] if len(part) == 1 else part for part in stored.logical)
        axes = tuple(
            Axis(label, self.open(axis.size))
            for part, dim in zip(stored.logical, stored.dims, strict=True)
            for label, axis in zip(part, dim, strict=True)
        )
        value = Value(Ref(stored.variable, stored.entries), stored.sizes, stored.element)
        if stored.element is Element.WIDE and not inside:  # what leaves is of the working type
            value = self.convert(value, Element.NUMBER)
        if inside:  # a caller takes it to lie as it is declared
            value = self.reorder(value, left) if value.layout != axes_of_index(left) else value
        return Result(name, value.ref, left, axes, value.element)

    def open(self, size: Any) -> Any:
        """The size with what is bound put in: an integer, or an expression in open sizes."""
        if size not in self.opened:
            self.opened[size] = evaluate(size, self.graph.bound)
        return self.opened[size]

    def count(self, sizes: Mapping[str, Any], axes: Sequence[str]) -> int:
        """The number of positions along some axes, at the sizes planned for."""
        return int(product(self._known(sizes[axis]) for axis in axes))

    def _count_in(self, equation: Equation, axes: Sequence[str]) -> int:
        """The number of positions along some axes of an equation."""
        scope = self.graph.scope(equation)
        return int(product(self._known(scope[axis]) for axis in axes))

    def positions(self, sizes: Mapping[str, Any], axes: Sequence[str]) -> Any:
        """The number of positions along some axes, in open sizes."""
        return product(sizes[axis] for axis in axes)

    def _known(self, size: Any) -> int:
        if size not in self.known:
            self.known[size] = self._told(size)
        return self.known[size]

    def _told(self, size: Any) -> int:
        value = evaluate(size, self.values)
        if getattr(value, "is_number", False):  # 64 of something assumed may not divide by 5 of another
            return max(1, round(float(value)))
        if not isinstance(value, int):
            names = ", ".join(sorted(str(name) for name in getattr(value, "free_symbols", ())))
            raise ShapeError(f"no tensor has the axis {names}, so its size is unknown", fix=f"give {names}=")
        return value

    # ---- steps

    def emit(
        self,
        left: tuple[Entry, ...],
        right: Expression,
        operands: Sequence[Value],
        sizes: Mapping[str, Any],
        element: Element,
        arrangement: Arrangement | None = None,
        *,
        seconds: float | None = None,
        flops: Any = 0,
    ) -> Value:
        """Adds a step; returns its result. It takes the time of its arrangement, or what its function does."""
        name = next(name for name in self.numbered if name not in self.taken)
        axes = axes_of_index(left)
        everything = dict.fromkeys([axis for each in operands for axis in each.layout] + list(axes))
        known = {axis: size for each in operands for axis, size in each.sizes.items()} | dict(sizes)
        elements = self.count(known, axes)
        moved = self.itemsize * (elements + sum(self.count(each.sizes, each.layout) for each in operands))
        if arrangement is not None:
            seconds, flops = arrangement.seconds, 2 * self.positions(known, tuple(everything))
        elif seconds is None:
            seconds = self._seconds(right, operands, moved, self.itemsize * elements)
        self.steps.append(
            Step(
                Equation(name, left, right),
                tuple(Axis(axis, self.open(known[axis])) for axis in everything),
                self._known(flops) if flops else 0,
                flops,
                moved,
                seconds,
                element,
                arrangement=arrangement,
            )
        )
        self._note_still()
        return Value(Ref(name, left), {axis: known[axis] for axis in axes}, element)

    def _note_still(self) -> None:
        """Notes whether the last step depends on nothing that a call gives."""
        if is_still(self.steps[-1], self.still, self.told):
            self.still.update(self.steps[-1].defines)

    def _seconds(self, right: Expression, operands: Sequence[Value], moved: int, written: int) -> float:
        """The time of a step that is no product: what its function takes along such axes."""
        if not isinstance(right, Call):
            return self.profile.pointwise(moved, written)
        last = operands[0].layout[-len(right.axes) :] if right.axes and operands else ()
        inner = not right.axes or set(right.axes) == set(last)
        return FUNCTIONS[right.function].seconds(self.profile, moved, written, inner)

    def convert(self, value: Value, element: Element) -> Value:
        """The value with elements of another kind: numbers become truth values where they are not 0."""
        if value.element is element:
            return value
        compared = (Literal(0),) if element is Element.TRUTH else ()
        right = Call(CONVERSIONS[element], (value.ref, *compared))
        return self.emit(value.left, right, [value], value.sizes, element)

    def reorder(self, value: Value, left: tuple[Entry, ...]) -> Value:
        """The value in another order in memory."""
        if value.ref.index == left:
            return value
        return self.emit(left, value.ref, [value], value.sizes, value.element)

    def offers(self, value: Value, groups: Sequence[Layout]) -> bool:
        """Whether a value has a dimension for each group, the last innermost, without a copy."""
        order = view_order(value.layout, tuple(groups))
        return order is not None and (not groups[-1] or order[-1] == len(groups) - 1)

    def grouped(self, value: Value, groups: Sequence[Layout]) -> Value:
        """The value, copied where it does not offer the groups."""
        return value if self.offers(value, groups) else self.reorder(value, flatten(tuple(groups)))

    def _ungrouped(self, value: Value) -> Value:
        """The value with a dimension for each axis, for a step that changes the size of one."""
        grouped = any(isinstance(entry, tuple) for entry in value.ref.index)
        return self.reorder(value, value.layout) if grouped else value

    # ---- reading tensors

    def read(self, ref: Ref, scope: Scope) -> Value:
        """A tensor under the axis names of this reference."""
        stored = self.stored[ref.name]
        labels: dict[str, Entry] = {}
        sizes: dict[str, Any] = {}
        plain = True
        for part, dim, entry in zip(stored.logical, stored.dims, ref.index, strict=True):
            match entry:
                case str() if len(part) == 1 and entry not in sizes:
                    labels[part[0]], sizes[entry] = entry, dim_size(dim)
                case tuple() if len(part) == 1 and not set(entry) & set(sizes):
                    labels[part[0]] = entry
                    sizes.update({name: scope[name] for name in entry})
                case tuple() if componentwise(entry, dim, self.graph.bound) and not set(entry) & set(sizes):
                    labels.update(zip(part, entry, strict=True))
                    sizes.update({name: axis.size for name, axis in zip(entry, dim, strict=True)})
                case _:
                    plain = False
        if not plain:
            return self._read_specially(ref, stored, scope)
        index: list[Entry] = []
        for each in stored.entries:
            names = [
                name
                for label in ([each] if isinstance(each, str) else each)
                for name in _names(labels[label])
            ]
            index.append(names[0] if len(names) == 1 else tuple(names))
        value = Value(Ref(stored.variable, tuple(index)), sizes, stored.element)
        return self._laid(ref, value) if ref.name in self.common else value

    def _laid(self, ref: Ref, value: Value) -> Value:
        """A tensor in the order that several of its readers have in common, if this is one of them."""
        common, axes = self.common[ref.name], axes_of_index(ref.index)
        if split_as(ref, lambda axis: self.count(value.sizes, (axis,))) != common.split:
            return value
        order = tuple(axes[number] for number in common.order)
        if ref.name not in self.laid:
            self.laid[ref.name] = self.reorder(value, order).ref.name
        return replace(value, ref=Ref(self.laid[ref.name], order))

    def _read_specially(self, ref: Ref, stored: _Stored, scope: Scope) -> Value:
        """Integer indices, gathers, diagonals, and composites read as one axis."""
        variable = self._in_logical_order(stored)
        entries: list[Index] = []
        sizes: dict[str, Any] = {}
        operands: list[Value] = []
        for dim, entry in zip(stored.dims, ref.index, strict=True):
            match entry:
                case str():
                    entries.append(entry)
                    sizes[entry] = dim_size(dim)
                case tuple():
                    entries.append(entry)
                    sizes.update({name: scope[name] for name in entry})
                case Ref():
                    inner = self.lower(entry, scope, None)
                    operands.append(inner)
                    entries.append(inner.ref)
                    sizes.update({name: size for name, size in inner.sizes.items() if name not in sizes})
                case int():
                    entries.append(entry)
        read = Ref(variable, tuple(entries), ref.place)
        axes = axes_of_index(read.index)
        if all(isinstance(entry, str | tuple) for entry in entries) and _distinct(read.index):
            return Value(read, sizes, stored.element)
        operands.append(Value(Ref(variable, axes), sizes, stored.element))
        return self.emit(axes, read, operands, sizes, stored.element)

    def _in_logical_order(self, stored: _Stored) -> str:
        """A variable with one dimension for each of the tensor, in order."""
        wanted = tuple(part[0] if len(part) == 1 else part for part in stored.logical)
        if stored.entries == wanted:
            return stored.variable
        value = Value(Ref(stored.variable, stored.entries), stored.sizes, stored.element)
        return self.reorder(value, wanted).ref.name

    # ---- expressions

    def lower(self, expression: Expression, scope: Scope, wanted: Layout | None) -> Value:
        """The value of an expression; `wanted` is the order in memory that would suit."""
        match expression:
            case Ref():
                return self.read(expression, scope)
            case _ if is_scalar(expression):
                number = self.scalar(expression, scope)
                return self.emit((), number, [], {}, of_number(number))
            case Contraction(factors, ()) if any(map(_is_reciprocal, factors[1:])):
                return self.quotient(factors, scope, wanted)
            case Contraction():
                return self.contract(expression, scope, wanted)
            case Call():
                return self.call(expression, scope, wanted)
        raise AssertionError(expression)

    def scalar(self, expression: Expression, scope: Scope) -> Expression:
        """A number, with the sizes it speaks of put in."""
        if isinstance(expression, Size):
            return size_expression(self.open(scope[expression.axis]))
        return transform(expression, lambda part: self.scalar(part, scope))

    def inner(self, expression: Expression, scope: Scope) -> Scope:
        """The scope inside a binder."""
        found = scope_of(expression, self.graph.named, self.graph.agree, self.graph.bound)
        return Scope({**scope.sizes, **found.sizes}, {**scope.assumed, **found.assumed})

    def within(self, call: Call, scope: Scope) -> Scope:
        """The scope inside of a call that runs over axes, these included."""
        return self.inner(Contraction(call.arguments), scope)

    def raised(self, expression: Expression, least: float) -> Expression:
        """An expression whose numbers below a least one are that."""
        value = scalar_value(expression) if isinstance(expression, Literal) else None
        if isinstance(value, int | float) and value < least:
            return Literal(least)
        return transform(expression, lambda part: self.raised(part, least))

    # ---- contractions

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
        )
        return self.build(self.choose(problem), values, sizes)

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

    # ---- divisions

    def quotient(self, factors: tuple[Expression, ...], scope: Scope, wanted: Layout | None) -> Value:
        """A product that sums nothing, from left to right: in `a * b / c * d` the division is one."""
        last = max(n for n, factor in enumerate(factors) if _is_reciprocal(factor))
        value = self._divided(*self._division(factors[: last + 1], scope, wanted))
        scalars, values = self._factors(factors[last + 1 :], scope)
        return self.multiply([value, *values], scalars, (), wanted) if scalars or values else value

    def _division(
        self, factors: tuple[Expression, ...], scope: Scope, wanted: Layout | None
    ) -> tuple[_Operand, _Operand]:
        """What is divided in `a * b / c`, and by what."""
        *above, below = factors
        assert isinstance(below, Call)
        numerator = self.operand(product_of(above), scope, wanted, scaled=True)
        return numerator, self.operand(below.arguments[0], scope, wanted)

    def _divided(self, above: _Operand, below: _Operand) -> Value:
        return self.combine(FUNCTIONS["reciprocal"], _quotient, [above, below])

    def rounded(self, call: Call, scope: Scope, wanted: Layout | None) -> Value:
        """The integer that a number is rounded to: of integers divided, without a fraction in between."""
        match call.arguments[0]:
            case Contraction((_, *_, last) as factors, ()) if _is_reciprocal(last):
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

    # ---- calls

    def call(self, call: Call, scope: Scope, wanted: Layout | None) -> Value:
        function = FUNCTIONS[call.function]
        if function.lowered is not None:
            return function.lowered(self, call, scope)
        if function.means:
            return self.kernel(call, scope)
        match function.axes:
            case "none" if function.rounds:
                return self.rounded(call, scope, wanted)
            case "none" if function.converts is not None and len(call.arguments) == 1:
                return self.convert(self.lower(call.arguments[0], scope, wanted), function.converts)
            case "none":
                return self.pointwise(call, scope, wanted)
            case "kept" | "removed":
                return self.over_axes(call, scope, wanted)
            case "made":
                return self.made(call, [self.lower(each, scope, None) for each in call.arguments], scope)
            case "joined":
                return self.joined(call, scope)
            case "moved":
                return self.moved(call, scope)

    def kernel(self, call: Call, scope: Scope) -> Value:
        """A kernel of the user's own: each operand with a dimension for each axis of the kernel's equation."""
        function = FUNCTIONS[call.function]
        pattern = pattern_of(function.means[0])
        scope = self.within(call, scope)
        values = [self.lower(each, scope, None) for each in call.arguments]
        element, result = function.meeting([each.element for each in values])
        values = [self.convert(each, element) for each in values]
        groups = pattern.groups([each.layout for each in values])
        parts = [[groups[axis] for axis in axes_of_index(ref.index)] for ref in pattern.tensors]
        values = [
            each
            if view_order(each.layout, tuple(part)) is not None
            else self.reorder(each, flatten(tuple(part)))
            for each, part in zip(values, parts, strict=True)
        ]
        sizes = {axis: size for each in values for axis, size in each.sizes.items()}
        grouped = (groups[axis] for axis in pattern.left)
        left = tuple(group[0] if len(group) == 1 else group for group in grouped if group)
        return self.emit(
            left, replace(call, arguments=tuple(each.ref for each in values)), values, sizes, result
        )

    def _normed(self, call: Call, scope: Scope) -> Value | None:
        """`gain[c] * normalize[c](x) + bias[c]` as one step, which most libraries have."""
        match call:
            case Call(
                "add", (Contraction(factors, ()), Ref() as bias) | (Ref() as bias, Contraction(factors, ()))
            ) if len(factors) == 2:
                gain = next((each for each in factors if isinstance(each, Ref)), None)
                norm = next((each for each in factors if isinstance(each, Call)), None)
            case _:
                return None
        if gain is None or norm is None or not FUNCTIONS[norm.function].affine or len(norm.axes) != 1:
            return None
        if gain.index != norm.axes or bias.index != norm.axes:
            return None
        value = self.lower(norm.arguments[0], self.inner(norm.arguments[0], scope), None)
        affine = [self.read(each, scope) for each in (gain, bias)]
        element = max(Element.WIDE, value.element, *(each.element for each in affine))
        value, *affine = [self.convert(each, element) for each in (value, *affine)]
        return self._apply(norm, value, norm.axes, False, scope, element, affine)

    def pointwise(self, call: Call, scope: Scope, wanted: Layout | None) -> Value:
        normed = self._normed(call, scope)
        if normed is not None:
            return normed
        function = FUNCTIONS[call.function]
        split = function.conditions
        conditions = [
            _Operand(self.convert(self.lower(each, scope, wanted), Element.TRUTH))
            for each in call.arguments[:split]
        ]
        adds = call.function == "add"
        operands = [self.operand(each, scope, wanted, adds) for each in call.arguments[split:]]
        if function.converts is Element.TRUTH and _is_truth(operands):
            assert operands[0].value is not None
            return operands[0].value
        if adds:
            operands = self._exact_together(operands)
            biased = self._biased(operands) if len(operands) == 2 else None
            if biased is not None:
                return biased
        return self.combine(_rule(call), lambda *each: replace(call, arguments=each), operands, conditions)

    def _biased(self, terms: Sequence[_Operand]) -> Value | None:
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

    def _exact_together(self, terms: list[_Operand]) -> list[_Operand]:
        """The terms of a sum, those that are exact added up before they meet numbers of the working type."""
        exact = [each for each in terms if each.value is None or each.value.element.is_exact]
        if not 1 < len(exact) < len(terms) or all(each.value is None for each in exact):
            return terms
        total = self.combine(FUNCTIONS["add"], lambda *each: Call("add", each), exact)
        return [*(each for each in terms if each not in exact), _Operand(total)]

    def operand(
        self, expression: Expression, scope: Scope, wanted: Layout | None, scaled: bool = False
    ) -> _Operand:
        """What a pointwise step reads; `scaled` where it may multiply by numbers on the way."""
        if is_scalar(expression):
            return _Operand(None, (self.scalar(expression, scope),))
        if scaled and isinstance(expression, Contraction) and not expression.summed:
            factors = expression.factors
            tensors = [n for n, factor in enumerate(factors) if not is_scalar(factor)]
            if len(tensors) == 1 and not (tensors[0] and _is_reciprocal(factors[tensors[0]])):
                (at,) = tensors
                numbers = [self.scalar(f, scope) for n, f in enumerate(factors) if n != at]
                value = self.lower(factors[at], scope, wanted)
                return _Operand(value, tuple(numbers[:at]), tuple(numbers[at:]))
        return _Operand(self.lower(expression, scope, wanted))

    def combine(
        self,
        rule: Function,
        written: Callable[..., Expression],
        operands: Sequence[_Operand],
        first: Sequence[_Operand] = (),
    ) -> Value:
        """A pointwise step of operands brought together as `rule` asks, after some that are as they are."""
        tensors = [each.value.element for each in operands if each.value is not None]
        element, result = rule.meeting(tensors, [number for each in operands for number in each.numbers])
        brought = [*first, *(self._brought(each, element) for each in operands)]
        values = [each.value for each in brought if each.value is not None]
        left = self._common_order(values) if values else ()
        return self.emit(left, written(*(each.expression for each in brought)), values, {}, result)

    def _brought(self, operand: _Operand, element: Element) -> _Operand:
        value = operand.value
        return operand if value is None else replace(operand, value=self.convert(value, element))

    def _common_order(self, values: Sequence[Value]) -> tuple[Entry, ...]:
        """The order of a result made of some operands; theirs, grouped as they are, if they lie alike."""
        if len({each.ref.index for each in values}) == 1:
            return values[0].left
        return self._order({axis for each in values for axis in each.layout}, values)

    def _order(self, axes: set[str], values: Sequence[Value]) -> Layout:
        """The order of a result of these axes: that of an operand that has all of them, the written one if
        there is a choice; and as it is written where none has."""
        whole = [each.layout for each in values if set(each.layout) == axes]
        written = tuple(axis for axis in self.written if axis in axes)
        if set(written) == axes and (not whole or written in whole):
            return written
        by_size = sorted(values, key=lambda each: -self.count(each.sizes, each.layout))
        return ordered(axes, *whole, *(each.layout for each in by_size))

    def applied(self, function: str, values: Sequence[Value]) -> Value:
        """A pointwise step of tensors at hand."""
        operands = [_Operand(each) for each in values]
        return self.combine(FUNCTIONS[function], lambda *each: Call(function, each), operands)

    def over_axes(self, call: Call, scope: Scope, wanted: Layout | None) -> Value:
        function = FUNCTIONS[call.function]
        reduces = function.axes == "removed"
        asked = None if reduces else wanted
        value = self.lower(call.arguments[0], self.inner(call.arguments[0], scope), asked)
        element, result = function.meeting([value.element])
        value = self.convert(value, element)
        axes = tuple(axis for axis in value.layout if axis in call.axes)
        if function.one_by_one and len(axes) > 1:
            for axis in axes:
                value = self._apply(replace(call, axes=(axis,)), value, (axis,), True, scope, result)
            return value
        if not reduces and len(axes) > 1:
            rest = tuple(axis for axis in value.layout if axis not in axes)
            value = self.reorder(value, (*rest, axes))
        return self._apply(replace(call, axes=axes), value, axes, reduces, scope, result)

    def _apply(
        self,
        call: Call,
        value: Value,
        axes: tuple[str, ...],
        reduces: bool,
        scope: Scope,
        result: Element,
        more: Sequence[Value] = (),
    ) -> Value:
        index = value.left
        whole = all(any(axis == entry for entry in index) for axis in axes) or axes in index
        left: tuple[Entry, ...] = index if whole else value.layout
        if reduces:
            left = tuple(entry for entry in left if entry not in axes and entry != axes)
        options = tuple((name, tuple(self.scalar(v, scope) for v in values)) for name, values in call.options)
        right = replace(call, arguments=(value.ref, *(each.ref for each in more)), options=options)
        return self.emit(left, right, [value, *more], value.sizes, result)

    def made(self, call: Call, values: Sequence[Value], scope: Scope) -> Value:
        """Operands at hand, with the axis that the call makes."""
        (axis,) = call.axes
        _, result = FUNCTIONS[call.function].meeting([each.element for each in values])
        left = (*(name for each in values for name in each.layout), axis)
        right = replace(call, arguments=tuple(each.ref for each in values))
        return self.emit(left, right, values, {axis: scope[axis]}, result)

    def joined(self, call: Call, scope: Scope) -> Value:
        """Operands one after another along an axis, which one without it is 1 long."""
        axis = call.axes[0]
        values = [self._ungrouped(self.lower(part, self.inner(part, scope), None)) for part in call.arguments]
        element, result = FUNCTIONS[call.function].meeting([each.element for each in values])
        values = [self.convert(each, element) for each in values]
        left = self._order({axis, *(name for each in values for name in each.layout)}, values)
        sizes = {name: size for each in values for name, size in each.sizes.items()}
        sizes[axis] = scope_of(call, self.graph.named, self.graph.agree, self.graph.bound)[axis]
        right = replace(call, arguments=tuple(each.ref for each in values))
        return self.emit(left, right, values, sizes, result)

    def moved(self, call: Call, scope: Scope) -> Value:
        """The same axes, with the elements moved along some of them."""
        function, argument = FUNCTIONS[call.function], call.arguments[0]
        inside = self.inner(argument, scope)
        value = self._ungrouped(self.lower(argument, inside, None))
        sizes = dict(value.sizes)
        options: list[tuple[str, tuple[Expression, ...]]] = []
        filling: list[Element] = []
        for name, values in call.options:
            numbers = tuple(self.scalar(each, inside) for each in values)
            options.append((name, numbers))
            if name not in option_axes(call):
                filling += [of_number(each) for each in numbers]
            elif function.resized is not None:
                amounts = (self.open(scalar_size(each, inside)) for each in numbers)
                sizes[name] = function.resized(sizes[name], *amounts)
        value = self.convert(value, function.meeting([value.element], filling)[0])
        right = replace(call, arguments=(value.ref,), options=tuple(options))
        return self.emit(value.layout, right, [value], sizes, value.element)

    def build(self, order: Order, values: Sequence[Value], sizes: Mapping[str, Any]) -> Value:
        """Emits the steps of one contraction."""
        made = list(values)
        for pair in order:
            a, b = made[pair.first], self._settled(made[pair.second], made[pair.first], pair.way)
            way = _linear(pair.way, a, b) if "linear" in self.spelled else pair.way
            left: tuple[Entry, ...] = tuple(group[0] if len(group) == 1 else group for group in way.result)
            right = Contraction((a.ref, b.ref), tuple(sorted(way.summed)))
            made.append(self.emit(left, right, [a, b], sizes, a.element, way))
        return made[-1]

    def _settled(self, value: Value, other: Value, way: Arrangement) -> Value:
        """The second tensor of a product, brought once into the order it is read in at each call, if it is still."""
        if way.kind != "matmul" or value.ref.name not in self.still or other.ref.name in self.still:
            return value
        if not (way.batch or way.swapped):
            return self.reorder(value, (*way.columns, *way.summed))
        batch = tuple(axis for axis in way.batch if axis in value.layout)
        groups = (batch, way.summed, way.columns)
        offered = view_order(value.layout, groups) is not None
        return value if offered else self.reorder(value, flatten(groups))


# ---------------------------------------------------------------------------- small things


def _asked_for(graph: Graph) -> Iterator[str]:
    """The tensors that are best made in the order that is written: all but those that go into products alone."""
    yield from graph.outputs
    for call in graph.calls:
        yield from call.operands
    for equation in graph.own:
        sums = (
            part for part in subexpressions(equation.right) if isinstance(part, Contraction) and part.summed
        )
        factors = Counter(each.name for part in sums for each in part.factors if isinstance(each, Ref))
        yield from Counter(ref.name for ref in references(equation.right)) - factors


def _linear(way: Arrangement, a: Value, b: Value) -> Arrangement:
    """The same product, its rows left as they are where the first tensor has them before what is summed, and
    the second is a matrix of columns and these, as weights are kept."""
    if way.kind != "matmul" or way.batch or way.swapped or not (way.rows and way.columns):
        return way
    if a.element.is_exact:
        return way
    rows = [entry for entry in a.left if set(_names(entry)) & set(way.rows)]
    if a.layout != (*axes_of_index(tuple(rows)), *way.summed) or b.layout != (*way.columns, *way.summed):
        return way
    return replace(way, kind="linear", result=(*map(_names, rows), way.columns))


def _as_declared(name: str, dims: tuple[Dim, ...], element: Element) -> _Stored:
    """A tensor that lies in memory as it is declared, its axes numbered so that each is distinct."""
    logical = tuple(tuple(f"{n}.{m}" for m in range(len(dim))) for n, dim in enumerate(dims))
    entries = tuple(part[0] if len(part) == 1 else part for part in logical)
    return _Stored(name, entries, logical, dims, element)


def _is_reciprocal(factor: Expression) -> bool:
    return isinstance(factor, Call) and factor.function == "reciprocal"


def _may_divide_by_zero(number: Expression) -> bool:
    """Whether a number is the reciprocal of one that is 0, or not known yet."""
    return _is_reciprocal(number) and not scalar_value(number.arguments[0])  # type: ignore[union-attr]


def _quotient(above: Expression, below: Expression) -> Expression:
    return product_of([above, Call("reciprocal", (below,))])


def _is_whole_divisor(operand: _Operand) -> bool:
    """Whether integers can be divided by it: a whole number, and not 0."""
    return operand.value is None and operand.is_whole and scalar_value(operand.before[0]) != 0


def _is_truth(operands: Sequence[_Operand]) -> bool:
    """Whether these are a truth value and 0, compared."""
    first, second = operands
    truth = first.value is not None and first.value.element is Element.TRUTH
    return truth and second.value is None and scalar_value(second.before[0]) == 0


def _rule(call: Call) -> Function:
    """The record by which the operands of a pointwise function meet."""
    function = FUNCTIONS[call.function]
    if function.keeps_whole is None:
        return function
    return function.beside([scalar_value(each) if is_scalar(each) else None for each in call.arguments])


def _names(entry: Entry) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else entry


def _distinct(index: tuple[Index, ...]) -> bool:
    flat = [name for entry in index for name in (_names(entry) if isinstance(entry, str | tuple) else ())]
    return len(flat) == len(set(flat))
