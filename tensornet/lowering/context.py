"""The lowering context: what is lowered, for which target, and the steps so far, with their costs and element types."""

from __future__ import annotations

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..contraction.pairs import Choose, Layout, Strategy, flatten, view_order
from ..device.cost_model import DeviceProfile
from ..errors import ShapeError
from ..graph.shape_inference import Axis, Dim, size_expression
from ..language.equation import Equation
from ..language.expression import (
    ELLIPSIS,
    Call,
    Expression,
    Literal,
    Ref,
    Size,
    axes_of_index,
    references,
    transform,
)
from ..ops.protocols import Entry, Left, Value, common, extent, sizes_of
from ..ops.table import CONVERSIONS, FUNCTIONS, Element, Function
from ..planning.constant_folding import is_invariant
from ..planning.plans import AnyStep, Plan
from ..planning.steps import Step
from ..planning.target import Target
from ..sizes import evaluate, product, size_names, symbol
from .lines import Lines

if TYPE_CHECKING:
    from ..autodiff.joint import JointGraph


@dataclass(frozen=True)
class Stored:
    """Where a named tensor is stored: its variable, its layout, its declared dimensions and its element type."""

    variable: str
    entries: Left
    logical: tuple[tuple[str, ...], ...]
    dims: tuple[Dim, ...]
    element: Element

    @property
    def left(self) -> Left:
        """Its dimensions in the declared order."""
        return tuple(map(entry_of, self.logical))

    @property
    def sizes(self) -> dict[str, Any]:
        """The size of each of its axes, by the labels in `logical`."""
        axes = (axis for dim in self.dims for axis in dim)
        return {label: axis.size for label, axis in zip(itertools.chain(*self.logical), axes, strict=True)}


def entry_of(axes: tuple[str, ...]) -> Entry:
    """The dimension with these axes: a single axis, or a composite."""
    return axes[0] if len(axes) == 1 else axes


def as_declared(name: str, dims: tuple[Dim, ...], element: Element) -> Stored:
    """A tensor in its declared layout. Its axes are numbered so that each is distinct; `...` stays."""
    logical = tuple(
        tuple(ELLIPSIS if axis.name == ELLIPSIS else f"{n}.{m}" for m, axis in enumerate(dim))
        for n, dim in enumerate(dims)
    )
    return Stored(name, tuple(map(entry_of, logical)), logical, dims, element)


@dataclass
class LoweringContext(ABC):
    """The state that the functions of lowering share.

    Attributes:
        lines: the lines and calls that are lowered.
        values: every open size, for costs.
        target: the target that they are lowered for.
        choose: orders an n-ary contraction.
        product: plans the forward and backward pass of a product whose factors get gradients, at some sizes.
        limit: the seconds beyond which products are computed as they are written.
        steps: the steps so far.
        named: the names of all leaves, and of all tensors that lines and calls define.
        stored: where each of these tensors is stored.
        invariant: the tensors that depend on no argument of a call; see `planning.constant_folding`.
        changing: the tensors that get gradients.
        read_by_name: the tensors that blocks read by their own names.
        readers: how many references read each tensor.
        sizes: the sizes of the axes in the current line.
        written: the order in which the current line declares its axes.
        asked: the share of the readers of its result that copy it into that order.
    """

    lines: Lines
    values: Mapping[str, int]
    target: Target
    choose: Choose
    product: Callable[[JointGraph, Mapping[str, int]], Plan] | None = None
    limit: float = math.inf
    steps: list[AnyStep] = field(default_factory=list)
    sizes: Mapping[str, Any] = field(default_factory=dict)
    written: Layout = ()
    asked: float = 1.0

    def __post_init__(self) -> None:
        lines = self.lines
        self.open = functools.cache(lambda size: evaluate(size, lines.bound))
        self.number = functools.cache(functools.partial(_positions, {**self.values, **lines.bound}))
        self.told_sizes = self.target.told_sizes(lines.leaves, lines.bound)
        self.invariant = lines.of_kind("constant")
        self.changing = set(self.target.changing)
        self.named = lines.dims.keys()
        self.taken = {*self.named}
        self.read_by_name = {leaf.name for call in lines.calls for leaf in call.leaves()}
        self.numbered = (f"t{number}" for number in itertools.count(1))
        self.readers = lines.readers
        self.stored = {
            leaf.name: as_declared(leaf.name, leaf.dims, lines.elements[leaf.name]) for leaf in lines.leaves
        }

    @abstractmethod
    def lower(self, expression: Expression, wanted: Layout | None) -> Value:
        """The value of an expression; `wanted` is the preferred layout."""

    @property
    def profile(self) -> DeviceProfile:
        """The constants of the device."""
        return self.target.profile

    @functools.cached_property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.target.itemsize

    @property
    def seconds(self) -> float:
        """The seconds of the steps so far that depend on arguments of a call."""
        return sum(step.seconds for step in self.steps if self.invariant.isdisjoint(step.defines))

    def name(self) -> str:
        """The name of a new variable."""
        return next(name for name in self.numbered if name not in self.taken)

    def positions(self, sizes: Mapping[str, Any], axes: Iterable[str]) -> int:
        """The number of positions along some axes of the given sizes, as planned."""
        return int(product(self.number(sizes[axis]) for axis in axes))

    def count(self, *groups: Iterable[str]) -> int:
        """The number of positions along the axes of some groups of the current line."""
        return self.positions(self.sizes, itertools.chain(*groups))

    def size(self, axis: str) -> Any:
        """The size of an axis of the current line."""
        return self.sizes[axis]

    def scalar(self, expression: Expression) -> Expression:
        """A number, with known sizes substituted."""
        if isinstance(expression, Size):
            return size_expression(self.open(symbol(expression.axis)))
        return transform(expression, lambda part: self.scalar(part))

    def options(self, call: Call) -> tuple[tuple[str, tuple[Expression, ...]], ...]:
        """The options of a call, with known sizes substituted."""
        return tuple((name, tuple(map(self.scalar, values))) for name, values in call.options)

    # ---- steps

    def emit(
        self,
        left: Left,
        right: Expression,
        operands: Sequence[Value],
        element: Element,
        *,
        sizes: Mapping[str, Any] = MappingProxyType({}),
        arrangement: Strategy | None = None,
        seconds: float | None = None,
        flops: Any = 0,
    ) -> Value:
        """Adds a step and returns its result. Its time is that of its arrangement, or else of its function.

        Axes have the given sizes, else those of the operands, else those of the current line.
        """
        axes, itemsize = axes_of_index(left), self.itemsize
        known = {**self.sizes, **sizes_of(operands), **sizes}
        everything = dict.fromkeys([*(axis for each in operands for axis in each.layout), *axes])
        if isinstance(right, Call):  # new axes, which no operand has
            everything |= dict.fromkeys(axis for axis in right.axes if axis in known)
        written = itemsize * self.positions(known, axes)
        moved = written + itemsize * sum(self.positions(each.sizes, each.layout) for each in operands)
        if arrangement is not None:
            seconds, flops = arrangement.seconds, 2 * extent(known, everything)
        elif seconds is None:
            seconds = self._seconds(right, operands, axes, moved, written)
        step = Step(
            Equation(self.name(), left, right),
            tuple(Axis(axis, self.open(known[axis])) for axis in everything),
            self.number(flops) if flops else 0,
            flops,
            moved,
            seconds,
            element,
            arrangement=arrangement,
        )
        self.add(step)
        return Value(Ref(step.equation.name, left), {axis: known[axis] for axis in axes}, element)

    def add(self, step: AnyStep) -> None:
        """Adds a step, and records whether its results are invariant and whether they get gradients."""
        self.steps.append(step)
        if is_invariant(step, self.invariant, self.told_sizes):
            self.invariant.update(step.defines)
        real = isinstance(step, Step) and step.element >= Element.WIDE
        if real and not self.changing.isdisjoint(step.reads):
            self.changing.update(step.defines)

    def _seconds(
        self,
        right: Expression,
        operands: Sequence[Value],
        order: Layout,
        moved: int,
        written: int,
    ) -> float:
        """The time of a step that is no product: that of its function along its axes, and that of reading operands
        whose layout differs from the result's."""
        profile = self.profile
        if not isinstance(right, Call):
            return profile.pointwise(moved, written)
        function = FUNCTIONS[right.function]
        if function.is_look(right):
            return profile.view
        seconds = function.seconds(profile, moved, written, self._in_order(function, right, operands))
        if function.axes != "none" or all(each.layout == order for each in operands):
            return seconds
        return seconds + self.access_seconds(operands, order) - profile.pointwise(moved, written)

    def _in_order(self, function: Function, call: Call, operands: Sequence[Value]) -> bool:
        """Whether a function runs over the innermost axes; for one with conditions, whether these are invariant."""
        if function.conditions:
            asked = itertools.chain.from_iterable(map(references, call.arguments[: function.conditions]))
            return all(ref.name in self.invariant for ref in asked)
        over = function.runs_over(call.axes)
        return not over or not operands or set(over) == set(operands[0].layout[-len(over) :])

    def access_seconds(self, values: Sequence[Value], order: Layout) -> float:
        """Seconds to iterate over some values in a given order of axes."""
        sizes = {axis: self.positions(each.sizes, (axis,)) for each in values for axis in each.layout}
        layouts = tuple(each.layout for each in values)
        return self.profile.walk_seconds(order, layouts, sizes, self.itemsize)

    def convert(self, value: Value, element: Element) -> Value:
        """Element type conversion. A number becomes a truth value by comparison with 0."""
        if value.element is element:
            return value
        compared = (Literal(0),) if element is Element.TRUTH else ()
        right = Call(CONVERSIONS[element], (value.ref, *compared))
        return self.emit(value.left, right, [value], element)

    def reorder(self, value: Value, left: Left) -> Value:
        """Transposition: the value in another layout."""
        if value.left == left:
            return value
        order = axes_of_index(left)
        seconds = self.profile.view if order == value.layout else self.transpose_seconds(value, order)
        return self.emit(left, value.ref, [value], value.element, seconds=seconds)

    def transpose_seconds(self, value: Value, order: Layout) -> float:
        """Seconds to copy a value into another layout."""
        return self.access_seconds([value], order) + self.profile.view

    def offers(self, value: Value, groups: Sequence[Layout]) -> bool:
        """Whether a value has a dimension for each group, the last innermost, without a copy."""
        order = view_order(value.layout, tuple(groups))
        return order is not None and (not groups[-1] or order[-1] == len(groups) - 1)

    def grouped(self, value: Value, groups: Sequence[Layout]) -> Value:
        """The value with a dimension for those axes of each group that it has, copied if it does not offer them."""
        own = tuple(common(group, value.layout) for group in groups)
        return value if self.offers(value, own) else self.reorder(value, flatten(own))

    def ungrouped(self, value: Value) -> Value:
        """The value with a dimension for each axis."""
        return self.reorder(value, value.layout)


def _positions(values: Mapping[str, Any], size: Any) -> int:
    """The value of a size as an integer. Raises an error if it is unknown."""
    value = evaluate(size, values)
    if isinstance(value, Fraction):  # an assumed size need not divide evenly: 64 / 5
        return max(1, round(float(value)))
    if not isinstance(value, int):
        names = ", ".join(size_names(value))
        raise ShapeError(f"no tensor has the axis {names}, so its size is unknown", fix=f"give {names}=")
    return value
