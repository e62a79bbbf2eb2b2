"""The step builder: steps with their axes, costs and element types."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..contraction.pairs import Arrangement, Layout, Pricing, flatten, view_order
from ..errors import ShapeError
from ..graph.element_types import of_leaves
from ..graph.graph import Graph
from ..graph.shape_inference import Axis, Scope, componentwise, dim_size, scope_inside, size_expression
from ..language.affine import is_cut, is_window, reached
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
    free_axes,
    references,
    scalar_value,
    transform,
)
from ..ops.protocols import Reached
from ..ops.table import CONVERSIONS, FUNCTIONS, Element, Function
from ..planning.loop_invariants import is_still
from ..planning.plans import Plan
from ..planning.steps import CallStep, Step
from ..planning.target import Target
from ..sizes import evaluate, product
from .layout_assignment import common_orders, split_as
from .values import Entry, Stored, Value, as_declared, names_in

__all__ = ["Making"]

WINDOWS = "windows"
"""What a backend has a spelling for that looks at an array in windows, without a copy."""


class Making(ABC):
    """The steps so far, and what is known of the tensors that they made."""

    def __init__(self, graph: Graph, values: Mapping[str, int], target: Target) -> None:
        self.graph, self.spelled = graph, target.spelled
        self.profile, self.itemsize = target.profile, target.itemsize
        self.told, self.still = target.told_sizes(graph), {leaf.name for leaf in graph.constants}
        self.values = {**values, **graph.bound}
        self.opened, self.known = dict[Any, Any](), dict[Any, int]()
        self.steps: list[Step | CallStep] = []
        self.taken = set(graph.named)
        self.parameters = {leaf.name for leaf in graph.parameters}
        self.changing = set(target.changing)  # the tensors that get gradients
        self.written: Layout = ()  # the order in which the equation at hand writes its axes
        self.asked = 1.0  # the part of those who read it that have it copied into that order
        self.numbered = (f"t{number}" for number in itertools.count(1))
        self.common = common_orders(graph, self._count_in)
        self.laid: dict[str, str] = {}  # the variables of tensors that are laid out in such an order
        self.readers = Counter(ref.name for equation in graph.own for ref in equation.references)
        self.copies = defaultdict[str, dict[tuple[int, ...], str]](dict)  # of a variable, in other orders
        elements = of_leaves(graph)
        self.stored = {
            leaf.name: as_declared(leaf.name, leaf.dims, elements[leaf.name]) for leaf in graph.leaves
        }

    @abstractmethod
    def lower(self, expression: Expression, scope: Scope, wanted: Layout | None) -> Value:
        """The value of an expression; `wanted` is the order in memory that would suit."""

    # ---- sizes

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

    # ---- numbers and scopes

    def scalar(self, expression: Expression, scope: Scope) -> Expression:
        """A number, with the sizes it speaks of put in."""
        if isinstance(expression, Size):
            return size_expression(self.open(scope[expression.axis]))
        return transform(expression, lambda part: self.scalar(part, scope))

    def inner(self, expression: Expression, scope: Scope) -> Scope:
        """The scope inside a binder."""
        found = scope_inside(expression, self.graph.named, self.graph.bound)
        return Scope({**scope.sizes, **found.sizes}, {**scope.assumed, **found.assumed})

    def within(self, call: Call, scope: Scope) -> Scope:
        """The scope inside of a call that runs over axes, these included."""
        return self.inner(Contraction(call.arguments), scope)

    def reached(self, expression: Expression) -> Reached:
        """The positions that an expression tells, as a sum of two axes, or of one and none."""
        return reached(expression)

    def is_even(self, expression: Expression, axes: tuple[str, ...]) -> bool:
        """Whether an expression tells positions at even distances, one for each position along an axis."""
        return free_axes(expression) == axes and len(axes) == 1 and is_window(expression)

    def raised(self, expression: Expression, least: float) -> Expression:
        """An expression whose numbers below a least one are that."""
        value = scalar_value(expression) if isinstance(expression, Literal) else None
        if isinstance(value, int | float) and value < least:
            return Literal(least)
        return transform(expression, lambda part: self.raised(part, least))

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
        if isinstance(right, Call):  # some that no operand has by itself
            everything |= dict.fromkeys(axis for axis in right.axes if axis in known)
        elements = self.count(known, axes)
        moved = self.itemsize * (elements + sum(self.count(each.sizes, each.layout) for each in operands))
        if arrangement is not None:
            seconds, flops = arrangement.seconds, 2 * self.positions(known, tuple(everything))
        elif seconds is None:
            seconds = self._seconds(right, operands, axes, moved, self.itemsize * elements)
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
        if element >= Element.WIDE and any(each.ref.name in self.changing for each in operands):
            self.changing.add(name)
        return Value(Ref(name, left), {axis: known[axis] for axis in axes}, element)

    def called(self, plan: Plan, operands: Sequence[Value], left: Layout, sizes: Mapping[str, Any]) -> Value:
        """Adds a call of a function of tensors at hand; returns its first result."""
        name = next(name for name in self.numbered if name not in self.taken)
        given = tuple(each.ref.name for each in operands)
        self.steps.append(
            CallStep(plan, "", given, (name,), (tuple(self.open(sizes[axis]) for axis in left),))
        )
        self._note_still()
        return Value(Ref(name, left), {axis: sizes[axis] for axis in left}, Element.NUMBER)

    def _note_still(self) -> None:
        """Notes whether the last step depends on nothing that a call gives."""
        if is_still(self.steps[-1], self.still, self.told):
            self.still.update(self.steps[-1].defines)

    def _seconds(
        self, right: Expression, operands: Sequence[Value], order: Layout, moved: int, written: int
    ) -> float:
        """The time of a step that is no product: what its function takes along such axes, and to read operands
        that lie otherwise than the result."""
        if not isinstance(right, Call):
            return self.profile.pointwise(moved, written)
        function = FUNCTIONS[right.function]
        if function.is_look(right):
            return self.profile.view
        seconds = function.seconds(self.profile, moved, written, self._in_order(function, right, operands))
        layouts = tuple(each.layout for each in operands)
        if function.axes != "none" or all(each == order for each in layouts):
            return seconds
        return (
            seconds + self.pricing(operands).walked(order, layouts) - self.profile.pointwise(moved, written)
        )

    def _in_order(self, function: Function, call: Call, operands: Sequence[Value]) -> bool:
        """Whether the axes that a function runs over are the innermost, and its conditions follow from positions."""
        if function.conditions:
            asked = itertools.chain.from_iterable(map(references, call.arguments[: function.conditions]))
            return all(ref.name in self.still for ref in asked)
        over = function.runs_over(call.axes)
        return not over or not operands or set(over) == set(operands[0].layout[-len(over) :])

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
        order = axes_of_index(left)
        seconds = self.profile.view if order == value.layout else self.copied(value, order)
        return self.emit(left, value.ref, [value], value.sizes, value.element, seconds=seconds)

    def copied(self, value: Value, order: Layout) -> float:
        """Seconds to bring a value into another order."""
        return self.pricing([value]).copied(value.layout, order)

    def pricing(self, values: Sequence[Value]) -> Pricing:
        """What it takes to go through some values."""
        sizes = {axis: self.count(each.sizes, (axis,)) for each in values for axis in each.layout}
        return Pricing(sizes, self.profile, self.itemsize)

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
                for name in names_in(labels[label])
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

    def _read_specially(self, ref: Ref, stored: Stored, scope: Scope) -> Value:
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
                case Contraction() | Call() if (window := self._window(entry, ref, scope)) is not None:
                    entries.append(window)
                    sizes.update({name: scope[name] for name in free_axes(entry)})
                case Ref() | Contraction() | Call():
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
        seconds = self.profile.view if is_cut(read) else None
        return self.emit(axes, read, operands, sizes, stored.element, seconds=seconds)

    def _window(self, entry: Expression, ref: Ref, scope: Scope) -> Index | None:
        """An entry that tells positions at even distances, its numbers put in, if the backend looks at such."""
        told = self.scalar(entry, scope)
        axes = free_axes(entry)
        alone = sum(axis in axes_of_index((other,)) for other in ref.index for axis in axes) == len(axes)
        if not alone or not is_window(told) or not (len(axes) == 1 or WINDOWS in self.spelled):
            return None
        return told  # type: ignore[return-value]

    def _in_logical_order(self, stored: Stored) -> str:
        """A variable with one dimension for each of the tensor, in order."""
        wanted = tuple(part[0] if len(part) == 1 else part for part in stored.logical)
        if stored.entries == wanted:
            return stored.variable
        value = Value(Ref(stored.variable, stored.entries), stored.sizes, stored.element)
        return self.reorder(value, wanted).ref.name


def _distinct(index: tuple[Index, ...]) -> bool:
    flat = [name for entry in index for name in (names_in(entry) if isinstance(entry, str | tuple) else ())]
    return len(flat) == len(set(flat))
