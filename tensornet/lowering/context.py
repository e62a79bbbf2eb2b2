"""The lowering context: what is lowered, for which target, and the steps so far, with their costs and element types.

`Lines` are the equations of a program as lowering reads them, in which each axis has a size of its own. The name of an
axis is local to its line. In a graph it may also have to identify a size (`ir.naming`). What a line refers to is read
here as well: views of stored tensors, gathers, diagonals and windows.
"""

from __future__ import annotations

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from ..contraction.pairs import Choose, Layout, Strategy, flatten, view_order
from ..device.cost_model import SHORT_LOOP, DeviceProfile
from ..errors import ShapeError
from ..graph.element_types import of_leaf
from ..graph.graph import Apply
from ..graph.shape_inference import Axis, Dim, dim_size, size_expression
from ..ir.equations import Written, hints, parted, size_of
from ..ir.node import Affine, Node
from ..ir.positions import ones_of
from ..ir.rewriting import Program
from ..language.affine import is_cut, is_descending, is_window
from ..language.equation import Equation
from ..language.expression import (
    ELLIPSIS,
    Call,
    Expression,
    Index,
    Literal,
    Ref,
    Size,
    axes_of_index,
    is_computed_index,
    numbered,
    rename,
    renamed_index,
)
from ..ops.record import Entry, Left, Value, common, entry_of, extent, names_in, sizes_of
from ..ops.table import CONVERSIONS, FUNCTIONS, Element, Function
from ..planning.constant_folding import is_invariant
from ..planning.plans import AnyStep, Plan, Step
from ..planning.target import Target
from ..sizes import evaluate, name_of, product, size_names, symbol

if TYPE_CHECKING:
    from ..autodiff.vjp import JointGraph


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


def as_declared(name: str, dims: tuple[Dim, ...], element: Element) -> Stored:
    """A tensor in its declared layout. Its axes are numbered so that each is distinct; `...` stays."""
    logical = tuple(
        tuple(ELLIPSIS if axis.name == ELLIPSIS else f"{n}.{m}" for m, axis in enumerate(dim))
        for n, dim in enumerate(dims)
    )
    return Stored(name, tuple(map(entry_of, logical)), logical, dims, element)


class TooLongError(Exception):
    """The steps so far take longer than the limit."""


@dataclass
class LoweringContext(ABC):
    """The state that the functions of lowering share.

    Attributes:
        lines: the lines and calls that are lowered.
        values: every open size, for costs.
        target: the target that they are lowered for.
        choose: orders an n-ary contraction.
        product: plans the forward and backward pass of a product whose factors get gradients, at some sizes.
        limit: the seconds beyond which nothing more is lowered.
        alone: whether the blocks with a scope run on their own.
        steps: the steps so far.
        named: the names of all leaves, and of all tensors that lines and calls define.
        stored: where each of these tensors is stored.
        invariant: the tensors that depend on no argument of a call; see `planning.constant_folding`.
        changing: the tensors that get gradients.
        read_by_name: the tensors that blocks read by their own names.
        readers: how many references read each tensor.
        copies: the results of steps that only read elements of a tensor, by what they read, for all who read the same.
        renamed: the names of steps that compute the tensor of a line, before they got its name.
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
    alone: bool = False
    steps: list[AnyStep] = field(default_factory=list)
    copies: dict[Hashable, str] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    sizes: Mapping[str, Any] = field(default_factory=dict)
    written: Layout = ()
    asked: float = 1.0

    def __post_init__(self) -> None:
        lines = self.lines
        self.open = functools.cache(lambda size: evaluate(size, lines.bound))
        self.number = functools.cache(functools.partial(_positions, {**self.values, **lines.bound}))
        self.told_sizes = self.target.told_sizes(lines.leaves, lines.bound)
        self.invariant = {leaf.name for leaf in lines.leaves if leaf.kind == "constant"}
        self.changing = set(self.target.changing)
        self.named = lines.dims.keys()
        self.taken = {*self.named}
        self.read_by_name = {name for call in lines.calls for name in call.held}
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
        return expression.transform(lambda part: self.scalar(part))

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
        self, right: Expression, operands: Sequence[Value], order: Layout, moved: int, written: int
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
            conditions = call.arguments[: function.conditions]
            asked = (ref for each in conditions for ref in each.references)
            return all(ref.name in self.invariant for ref in asked)
        over = function.runs_over(call.axes)
        return not over or not operands or set(over) == set(operands[0].layout[-len(over) :])

    def access_seconds(self, values: Sequence[Value], order: Layout) -> float:
        """Seconds to iterate over some values in a given order of axes."""
        sizes = {axis: self.positions(each.sizes, (axis,)) for each in values for axis in each.layout}
        layouts = tuple(each.layout for each in values)
        return self.profile.walk_seconds(order, layouts, sizes, self.itemsize)

    def before_innermost(self, value: Value, axes: Layout) -> Layout:
        """The axes that a reduction runs over first, if the innermost are few positions. Over both at once, libraries
        take five to thirty times as long, since their loops are over the innermost."""
        inner = tuple(itertools.takewhile(lambda axis: axis in axes, reversed(value.layout)))
        few = 0 < len(inner) < len(axes) and self.positions(value.sizes, inner) <= SHORT_LOOP
        return common(axes, but=(inner,)) if few and self.positions(value.sizes, value.layout) >= MANY else ()

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
        return self.read_once(left, value.ref, [value], value.element, value.sizes, seconds)

    def read_once(
        self,
        left: Left,
        right: Ref,
        operands: Sequence[Value],
        element: Element,
        sizes: Mapping[str, Any],
        seconds: float | None,
    ) -> Value:
        """Elements of a tensor, by a step of their own unless an earlier one reads the same elements in that order."""
        axes = axes_of_index(left)
        names = {axis: str(n) for n, axis in enumerate(axes)}
        alike = rename(right, names), renamed_index(left, names), *(self.open(sizes[axis]) for axis in axes)
        if alike not in self.copies:
            made = self.emit(left, right, operands, element, sizes=sizes, seconds=seconds)
            self.copies[alike] = made.ref.name
        name = self.copies[alike]
        return Value(Ref(self.renamed.get(name, name), left), {axis: sizes[axis] for axis in axes}, element)

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


MANY = 4096
"""The least elements of a reduction that is taken in two steps: a call takes as long as some thousand of them."""


def _positions(values: Mapping[str, Any], size: Any) -> int:
    """The value of a size as an integer. Raises an error if it is unknown."""
    value = evaluate(size, values)
    if isinstance(value, Fraction):  # an assumed size need not divide evenly: 64 / 5
        return max(1, round(float(value)))
    if not isinstance(value, int):
        names = ", ".join(size_names(value))
        raise ShapeError(f"no tensor has the axis {names}, so its size is unknown", fix=f"give {names}=")
    return value


@dataclass(frozen=True)
class Line:
    """An equation, and the sizes of its axes."""

    equation: Equation
    sizes: Mapping[str, Any]


class Lines(Written):
    """The input of lowering: the lines of a program, and calls of blocks between them.

    Attributes:
        leaves: the inputs and constants.
        elements: their element types.
        known: the names of all sizes, with the values that are known.
    """

    def __init__(self, program: Program) -> None:
        self.leaves = program.names.leaves
        nodes = {leaf.name: each for each, leaf in program.leaves.items()}
        super().__init__(program.function, program.names, {each: name for name, each in nodes.items()})
        self.elements = {
            each.name: nodes[each.name].element if each.name in nodes else of_leaf(each)
            for each in self.leaves
        }
        self.known = {name: symbol(name) for name in program.function.sizes} | self.bound
        self.taken.update(self.known)
        self.write()

    @property
    def own(self) -> tuple[Line, ...]:
        """The lines alone."""
        return tuple(each for each in self.body if isinstance(each, Line))

    @property
    def calls(self) -> tuple[Apply, ...]:
        """The calls alone."""
        return tuple(each for each in self.body if isinstance(each, Apply))

    @property
    def readers(self) -> Counter[str]:
        """How often each tensor is read in lines."""
        return Counter(name for line in self.own for name in line.equation.operands)

    # ---- writing

    def axes(self, each: Node) -> _Axes:
        """Gives names to the axes of a line."""
        return _Axes(self)

    def add(self, equation: Equation, axes: _Axes) -> None:
        """Adds a line."""
        self.body.append(Line(equation, axes.sizes))

    def is_apart(self, each: Node, readers: Sequence[Node]) -> bool:
        """Whether a kernel reads a node that splits a dimension of an operand, or reads it in windows.

        Such a node is laid out as it is declared.
        """
        kernels = [reader for reader in readers if reader.function.is_kernel]
        split = kernels and bool(parted(each, self.same))
        return (
            split
            or any(_reads_windows(reader, each) for reader in kernels)
            or super().is_apart(each, readers)
        )


def _reads_windows(kernel: Node, child: Node) -> bool:
    """Whether a kernel reads a node along an axis whose positions a one-hot operand gives."""
    marked = [(operand, ones_of(operand)) for operand in kernel.operands]
    axes = {ones.axis for _, ones in marked if ones is not None}
    return any(
        each.node is child and ones is None and not axes.isdisjoint(each.axes) for each, ones in marked
    )


class _Axes:
    """The axes of one line; see `ir.equations.AxisNames`."""

    def __init__(self, lines: Lines) -> None:
        self.lines, self.sizes = lines, dict[str, Any]()

    def named(self, each: Node, axis: int) -> str:
        """The name of an axis, or of a dimension that it runs along, with a number if another axis has that name."""
        own, size = self.lines.called.get((each, axis)), size_of(each, axis)
        return self.sized(size, own or next(hints(self.lines, each, axis), ""))

    def sized(self, size: Any, stem: str = "") -> str:
        """A name for an axis of some size. An axis may have the name of a size only if it has that size."""
        stem, known = stem or name_of(size) or "n", self.lines.known
        names = itertools.chain((stem,), numbered(stem))
        unused = (each for each in names if each not in self.sizes)
        name = next(each for each in unused if self.lines.same(known.get(each, size), size))
        self.sizes[name] = size
        return name

    def spoken(self, size: Any, alike: Iterable[str] = ()) -> Expression:
        """A size as an expression, with known sizes substituted."""
        return size_expression(evaluate(size, self.lines.bound))

    def in_order(self, each: Node, entry: Affine, length: Any) -> Affine:
        """The window, unchanged."""
        return entry


# ---------------------------------------------------------------------------- lowering of references


WINDOWS = "windows"
"""The name of the template of a backend that can view an array in windows, without a copy."""


def read(context: LoweringContext, ref: Ref) -> Value:
    """A tensor under the axis names of this reference: the stored tensor, or elements of it picked by a step."""
    stored = context.stored[ref.name]
    found = _as_it_lies(context, ref, stored)
    return _picked(context, ref, stored) if found is None else found


def _as_it_lies(context: LoweringContext, ref: Ref, stored: Stored) -> Value | None:
    """The stored tensor, if each dimension is read whole, and no two of them along the same axis."""
    entries: dict[str, Entry] = {}
    sizes: dict[str, Any] = {}
    for part, dim, entry in zip(stored.logical, stored.dims, ref.index, strict=True):
        match entry:
            case str() if len(part) == 1 and entry not in sizes:
                entries[part[0]], sizes[entry] = entry, dim_size(dim)
            case tuple() if set(entry) & set(sizes):
                return None
            case tuple() if len(part) == 1:
                entries[part[0]] = entry
                sizes.update({name: context.sizes[name] for name in entry})
            case tuple() if _is_componentwise(context, entry, dim):
                entries.update(zip(part, entry, strict=True))
                sizes.update({name: axis.size for name, axis in zip(entry, dim, strict=True)})
            case _:
                return None
    names = (
        tuple(name for label in names_in(each) for name in names_in(entries[label]))
        for each in stored.entries
    )
    return Value(Ref(stored.variable, tuple(map(entry_of, names))), sizes, stored.element)


def _is_componentwise(context: LoweringContext, names: tuple[str, ...], dim: Dim) -> bool:
    """Whether a composite has axes of the same sizes as the dimension it reads, one by one."""
    pairs = zip(names, dim, strict=False)
    return len(names) == len(dim) and all(
        context.open(context.sizes[name]) == context.open(axis.size) for name, axis in pairs
    )


def _picked(context: LoweringContext, ref: Ref, stored: Stored) -> Value:
    """Lowers integer indices, gathers, diagonals, windows, and composites read as one axis."""
    entries: list[Index] = []
    sizes: dict[str, Any] = {}
    operands: list[Value] = []
    for dim, entry in zip(stored.dims, ref.index, strict=True):
        if isinstance(entry, str):
            sizes[entry] = dim_size(dim)
        elif isinstance(entry, tuple):
            sizes.update({name: context.sizes[name] for name in entry})
        elif is_computed_index(entry) and (window := _window(context, entry, ref)) is not None:
            sizes.update({name: context.sizes[name] for name in entry.free_axes})
            entry = window
        elif is_computed_index(entry):
            inner = context.lower(entry, None)
            operands.append(inner)
            for name, size in inner.sizes.items():
                sizes.setdefault(name, size)
            entry = inner.ref
        entries.append(entry)
    variable, index = _arranged(context, stored, entries)
    picked = Ref(variable, index, ref.place)
    axes = picked.free_axes
    names = [name for entry in entries if isinstance(entry, str | tuple) for name in names_in(entry)]
    if all(isinstance(entry, str | tuple) for entry in entries) and len(names) == len(axes):
        return Value(picked, sizes, stored.element)
    operands.append(Value(Ref(variable, axes), sizes, stored.element))
    seconds = context.profile.view if is_cut(picked) else None
    return context.read_once(axes, picked, operands, stored.element, sizes, seconds)


def _arranged(
    context: LoweringContext, stored: Stored, entries: Sequence[Index]
) -> tuple[str, tuple[Index, ...]]:
    """A variable and the entry of each of its dimensions: as it lies in memory, or reordered where axes are merged."""
    if all(len(part) == 1 for part in stored.logical):
        read_by = {part[0]: entry for part, entry in zip(stored.logical, entries, strict=True)}
        groups = [tuple(read_by[label] for label in names_in(each)) for each in stored.entries]
        if all(len(group) == 1 or all(isinstance(each, str) for each in group) for group in groups):
            found = (group[0] if len(group) == 1 else cast("tuple[str, ...]", group) for group in groups)
            return stored.variable, tuple(found)
    return in_logical_order(context, stored), tuple(entries)


def _window(context: LoweringContext, entry: Expression, ref: Ref) -> Index | None:
    """An index entry of evenly spaced positions, with known sizes substituted, if the backend can view these."""
    if isinstance(entry, Ref):
        return None
    told, axes = context.scalar(entry), entry.free_axes
    alone = sum(axis in axes_of_index((other,)) for other in ref.index for axis in axes) == len(axes)
    evenly = is_descending(told) or (
        is_window(told) and (len(axes) == 1 or WINDOWS in context.target.supported)
    )
    if not alone or not evenly:
        return None
    return cast("Index", told)


def in_logical_order(context: LoweringContext, stored: Stored) -> str:
    """A variable with one dimension for each declared dimension of the tensor, in order."""
    value = Value(Ref(stored.variable, stored.entries), stored.sizes, stored.element)
    return context.reorder(value, stored.left).ref.name
