"""Graph to steps: every expression becomes a sequence of equations one level deep.

Lowering decides the order in memory of every intermediate (the left side of its step) and hands
each n-ary contraction to `choose`, which returns which pairs to contract, and how.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from .arrangement import Arrangement, Layout, flatten, ordered
from .device import DeviceProfile
from .equation import Equation
from .errors import ShapeError
from .expression import (
    Call,
    Contraction,
    Expression,
    Index,
    Ref,
    Size,
    axes_of_index,
    is_scalar,
    option_axes,
    product_of,
    references,
    transform,
)
from .functions import FUNCTIONS
from .graph import Graph
from .schedule import Result, Step
from .search import Choose, Order, Problem
from .shape import Axis, Dim, Scope, componentwise, dim_size, scalar_size, scope_of, size_expression
from .sizes import evaluate, product

__all__ = ["lower", "peak_memory"]

Entry: TypeAlias = "str | tuple[str, ...]"

_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_TRUTHS = ("logical_and", "logical_or", "logical_not", *_COMPARISONS)
"""The functions whose value is true or false."""


@dataclass(frozen=True)
class Value:
    """A tensor at hand: how it is read here, and the symbolic sizes of the axes."""

    ref: Ref
    sizes: Mapping[str, Any]

    @property
    def layout(self) -> Layout:
        return axes_of_index(self.ref.index)


def lower(
    graph: Graph,
    values: Mapping[str, int],
    profile: DeviceProfile,
    itemsize: int,
    choose: Choose,
) -> tuple[tuple[Step, ...], tuple[Result, ...]]:
    """The steps that compute a graph, and where its outputs are.

    Args:
        graph: the graph, rewritten as far as it should be.
        values: every open size, for costs.
        profile: the device.
        itemsize: bytes of one element.
        choose: orders an n-ary contraction.
    """
    lowering = _Lowering(graph, values, profile, itemsize, choose)
    for equation in graph.equations:
        lowering.equation(equation)
    results = tuple(lowering.result(name) for name in graph.outputs)
    return _with_frees(lowering.steps, results), results


@dataclass(frozen=True)
class _Stored:
    """Where a named tensor is: a variable, its order in memory, and the dimensions it stands for."""

    variable: str
    entries: tuple[Entry, ...]
    logical: tuple[tuple[str, ...], ...]
    dims: tuple[Dim, ...]


def _positions(graph: Graph) -> set[str]:
    """The equations whose value indexes a tensor, or goes into one that does: they stay integers."""
    found = {
        entry.name
        for equation in graph.equations
        for ref in references(equation.right)
        for entry in ref.index
        if isinstance(entry, Ref)
    }
    for equation in reversed(graph.equations):
        if equation.name in found:
            found.update(ref.name for ref in references(equation.right))
    return found & {equation.name for equation in graph.equations}


class _Lowering:
    def __init__(
        self, graph: Graph, values: Mapping[str, int], profile: DeviceProfile, itemsize: int, choose: Choose
    ) -> None:
        self.graph, self.profile, self.itemsize, self.choose = graph, profile, itemsize, choose
        self.values = {**values, **graph.bound}
        self.steps: list[Step] = []
        self.taken = set(graph.dims)
        self.numbered = (f"t{number}" for number in itertools.count(1))
        self.truths: set[str] = set()  # variables that hold true and false
        self.positions = _positions(graph)  # equations that index a tensor, and what they are made of
        self.stored = {leaf.name: _as_declared(leaf.name, leaf.dims) for leaf in graph.leaves}

    # ---- equations

    def equation(self, equation: Equation) -> None:
        scope = self.graph.scope(equation)
        wanted = axes_of_index(equation.left) if equation.name in self.graph.outputs else None
        start = len(self.steps)
        value = self.lower(equation.right, scope, wanted, equation.name in self.positions)
        variable = value.ref.name
        if (
            len(self.steps) > start
            and variable == self.steps[-1].equation.name
            and variable not in self.graph.dims
        ):
            self._rename_last(equation.name)
            if variable in self.truths:
                self.truths.add(equation.name)
            variable = equation.name
        entries = tuple(entry for entry in value.ref.index if isinstance(entry, str | tuple))
        logical = tuple((entry,) if isinstance(entry, str) else entry for entry in equation.left)
        missing = set(axes_of_index(equation.left)) - set(value.layout)
        assert not missing, f"{equation} lost {missing}"
        self.stored[equation.name] = _Stored(variable, entries, logical, self.graph.dims[equation.name])

    def _rename_last(self, name: str) -> None:
        last = self.steps[-1]
        self.steps[-1] = replace(last, equation=replace(last.equation, name=name))

    def result(self, name: str) -> Result:
        stored = self.stored[name]
        left = tuple(part[0] if len(part) == 1 else part for part in stored.logical)
        axes = tuple(
            Axis(label, self.open(axis.size))
            for part, dim in zip(stored.logical, stored.dims, strict=True)
            for label, axis in zip(part, dim, strict=True)
        )
        return Result(name, Ref(stored.variable, stored.entries), left, axes)

    def open(self, size: Any) -> Any:
        """The size with what is bound put in: an integer, or an expression in open sizes."""
        return evaluate(size, self.graph.bound)

    def count(self, sizes: Mapping[str, Any], axes: Sequence[str]) -> int:
        """The number of positions along some axes, at the sizes planned for."""
        return int(product(self._known(sizes[axis]) for axis in axes))

    def _known(self, size: Any) -> int:
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
        arrangement: Arrangement | None = None,
        flops: bool = False,
    ) -> Value:
        """Adds a step; returns its result."""
        name = next(name for name in self.numbered if name not in self.taken)
        axes = axes_of_index(left)
        everything = dict.fromkeys([axis for each in operands for axis in each.layout] + list(axes))
        known = {axis: size for each in operands for axis, size in each.sizes.items()} | dict(sizes)
        elements = self.count(known, axes)
        moved = self.itemsize * (elements + sum(self.count(each.sizes, each.layout) for each in operands))
        seconds = (
            arrangement.seconds
            if arrangement is not None
            else self.profile.pointwise(moved, self.itemsize * elements)
        )
        self.steps.append(
            Step(
                Equation(name, left, right),
                tuple(Axis(axis, self.open(known[axis])) for axis in everything),
                2 * self.count(known, tuple(everything)) if flops else 0,
                2 * product(known[axis] for axis in everything) if flops else 0,
                moved,
                seconds,
                arrangement=arrangement,
            )
        )
        return Value(Ref(name, left), {axis: known[axis] for axis in axes})

    def numeric(self, value: Value, whole: bool = False) -> Value:
        """The value in the working type: true and false as 1 and 0, positions too if not `whole`."""
        if value.ref.name not in self.truths and (whole or value.ref.name not in self.positions):
            return value
        left = tuple(entry for entry in value.ref.index if isinstance(entry, str | tuple))
        return self.emit(left, Call("cast", (value.ref,)), [value], value.sizes)

    def reorder(self, value: Value, left: tuple[Entry, ...]) -> Value:
        """The value in another order in memory."""
        if value.ref.index == left:
            return value
        return self.emit(left, value.ref, [value], value.sizes)

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
        return Value(Ref(stored.variable, tuple(index)), sizes)

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
                    inner = self.lower(entry, scope, None, True)
                    operands.append(inner)
                    entries.append(inner.ref)
                    sizes.update({name: size for name, size in inner.sizes.items() if name not in sizes})
                case int():
                    entries.append(entry)
        read = Ref(variable, tuple(entries), ref.place)
        axes = axes_of_index(read.index)
        if all(isinstance(entry, str | tuple) for entry in entries) and _distinct(read.index):
            return Value(read, sizes)
        return self.emit(axes, read, [*operands, Value(Ref(variable, axes), sizes)], sizes)

    def _in_logical_order(self, stored: _Stored) -> str:
        """A variable with one dimension for each of the tensor, in order."""
        wanted = tuple(part[0] if len(part) == 1 else part for part in stored.logical)
        if stored.entries == wanted:
            return stored.variable
        sizes = {
            label: axis.size
            for part, dim in zip(stored.logical, stored.dims, strict=True)
            for label, axis in zip(part, dim, strict=True)
        }
        return self.reorder(Value(Ref(stored.variable, stored.entries), sizes), wanted).ref.name

    # ---- expressions

    def lower(
        self, expression: Expression, scope: Scope, wanted: Layout | None, whole: bool = False
    ) -> Value:
        """The value of an expression; `whole` where positions are to stay integers."""
        match expression:
            case Ref():
                return self.read(expression, scope)
            case _ if is_scalar(expression):
                return self.emit((), self.scalar(expression, scope), [], {})
            case Contraction():
                return self.contract(expression, scope, wanted, whole)
            case Call():
                return self.call(expression, scope, whole, wanted)
        raise AssertionError(expression)

    def scalar(self, expression: Expression, scope: Scope) -> Expression:
        """A number, with the sizes it speaks of put in."""
        if isinstance(expression, Size):
            return size_expression(self.open(scope[expression.axis]))
        return transform(expression, lambda part: self.scalar(part, scope))

    def inner(self, expression: Expression, scope: Scope) -> Scope:
        """The scope inside a binder."""
        found = scope_of(expression, self.graph.dims, self.graph.agree, self.graph.bound)
        return Scope({**scope.sizes, **found.sizes}, {**scope.assumed, **found.assumed})

    # ---- contractions

    def contract(self, expression: Contraction, scope: Scope, wanted: Layout | None, whole: bool) -> Value:
        scope = self.inner(replace(expression, summed=()), scope) if expression.summed else scope
        scalars = [self.scalar(factor, scope) for factor in expression.factors if is_scalar(factor)]
        values = [
            self.numeric(self.lower(factor, scope, None, whole), whole)
            for factor in expression.factors
            if not is_scalar(factor)
        ]
        values = self._sum_alone(values, set(expression.summed))
        kept = frozenset(axis for each in values for axis in each.layout) - set(expression.summed)
        if scalars:
            smallest = min(range(len(values)), key=lambda n: self.count(values[n].sizes, values[n].layout))
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
        )
        return self.build(self.choose(problem), values, sizes, wanted)

    def _sum_alone(self, values: list[Value], summed: set[str]) -> list[Value]:
        """Sums the axes that only one factor has, which never hurts."""
        reduced: list[Value] = []
        holders = Counter(axis for each in values for axis in set(each.layout))
        for each in values:
            alone = tuple(axis for axis in each.layout if axis in summed and holders[axis] == 1)
            if alone:
                left = tuple(axis for axis in each.layout if axis not in alone)
                each = self.emit(left, Contraction((each.ref,), tuple(sorted(alone))), [each], each.sizes)
            reduced.append(each)
        return reduced

    def _scaled(self, value: Value, scalars: list[Expression]) -> Value:
        left = tuple(entry for entry in value.ref.index if isinstance(entry, str | tuple))
        return self.emit(left, product_of([*scalars, value.ref]), [value], value.sizes)

    # ---- calls

    def call(self, call: Call, scope: Scope, whole: bool, wanted: Layout | None) -> Value:
        function = FUNCTIONS[call.function]
        if function.kind == "pointwise":
            return self.pointwise(call, scope, whole or call.function in (*_COMPARISONS, "widen"), wanted)
        if function.kind in ("axis", "reduction"):
            return self.over_axes(call, scope, function.kind == "reduction", wanted)
        match call.function:
            case "index":
                return self.position(call.axes[0], scope, whole)
            case "concat":
                return self.concat(call, scope)
            case "onehot":
                value = self.lower(call.arguments[0], scope, None, True)
                left = (*value.layout, call.axes[0])
                right = replace(call, arguments=(value.ref,))
                return self.emit(left, right, [value], {call.axes[0]: scope[call.axes[0]]})
        return self.move(call, scope)

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
        if gain is None or norm is None or norm.function != "normalize" or len(norm.axes) != 1:
            return None
        if gain.index != norm.axes or bias.index != norm.axes:
            return None
        value = self.numeric(self.lower(norm.arguments[0], self.inner(norm.arguments[0], scope), None))
        affine = [self.numeric(self.read(each, scope)) for each in (gain, bias)]
        return self._apply(norm, value, norm.axes, False, scope, affine)

    def pointwise(self, call: Call, scope: Scope, whole: bool, wanted: Layout | None) -> Value:
        normed = self._normed(call, scope)
        if normed is not None:
            return normed
        arguments: list[Expression] = []
        values: list[Value] = []
        for position, argument in enumerate(call.arguments):
            if is_scalar(argument) and not (call.function == "where" and position == 0):
                arguments.append(self.scalar(argument, scope))
                continue
            factors: list[Expression] = []
            if call.function == "add" and isinstance(argument, Contraction) and not argument.summed:
                factors = [self.scalar(f, scope) for f in argument.factors if is_scalar(f)]
                tensors = [f for f in argument.factors if not is_scalar(f)]
                argument = product_of(tensors) if factors and len(tensors) == 1 else argument
                factors = factors if len(tensors) == 1 else []
            value = self.lower(argument, scope, wanted, whole)
            if (
                call.function not in _TRUTHS
                and call.function != "cast"
                and (call.function != "where" or position)
            ):
                value = self.numeric(value, whole)
            values.append(value)
            arguments.append(product_of([*factors, value.ref]) if factors else value.ref)
        if not values:
            return self.emit((), replace(call, arguments=tuple(arguments)), [], {})
        left = self._common_order(values)
        result = self.emit(left, replace(call, arguments=tuple(arguments)), values, {})
        if call.function in _TRUTHS:
            self.truths.add(result.ref.name)
        return result

    def _common_order(self, values: list[Value]) -> tuple[Entry, ...]:
        """The order of the largest operand; grouped as it is if all are grouped so."""
        if len({each.ref.index for each in values}) == 1:
            return tuple(entry for entry in values[0].ref.index if isinstance(entry, str | tuple))
        by_size = sorted(values, key=lambda each: -self.count(each.sizes, each.layout))
        return ordered({axis for each in values for axis in each.layout}, *(each.layout for each in by_size))

    def over_axes(self, call: Call, scope: Scope, reduces: bool, wanted: Layout | None) -> Value:
        asked = None if reduces else wanted
        value = self.numeric(self.lower(call.arguments[0], self.inner(call.arguments[0], scope), asked))
        axes = tuple(axis for axis in value.layout if axis in call.axes)
        if call.function == "prod" and len(axes) > 1:
            for axis in axes:
                value = self._apply(replace(call, axes=(axis,)), value, (axis,), True, scope)
            return value
        if not reduces and len(axes) > 1:
            rest = tuple(axis for axis in value.layout if axis not in axes)
            value = self.reorder(value, (*rest, axes))
        return self._apply(replace(call, axes=axes), value, axes, reduces, scope)

    def _apply(
        self,
        call: Call,
        value: Value,
        axes: tuple[str, ...],
        reduces: bool,
        scope: Scope,
        more: Sequence[Value] = (),
    ) -> Value:
        index = tuple(entry for entry in value.ref.index if isinstance(entry, str | tuple))
        whole = all(any(axis == entry for entry in index) for axis in axes) or axes in index
        left: tuple[Entry, ...] = index if whole else value.layout
        if reduces:
            left = tuple(entry for entry in left if entry not in axes and entry != axes)
        options = tuple((name, tuple(self.scalar(v, scope) for v in values)) for name, values in call.options)
        right = replace(call, arguments=(value.ref, *(each.ref for each in more)), options=options)
        return self.emit(left, right, [value, *more], value.sizes)

    def position(self, axis: str, scope: Scope, whole: bool) -> Value:
        """Positions as integers where they are compared or gathered with, else in the working type."""
        value = self.emit((axis,), Call("index", (), (axis,)), [], {axis: scope[axis]})
        if whole:
            return value
        return self.emit((axis,), Call("cast", (value.ref,)), [value], {axis: scope[axis]})

    def concat(self, call: Call, scope: Scope) -> Value:
        axis = call.axes[0]
        values = [self._ungrouped(self.lower(part, self.inner(part, scope), None)) for part in call.arguments]
        by_size = sorted(values, key=lambda each: -self.count(each.sizes, each.layout))
        left = ordered(
            {name for each in values for name in each.layout} | {axis}, *(v.layout for v in by_size)
        )
        sizes = {name: size for each in values for name, size in each.sizes.items()}
        sizes[axis] = scope_of(call, self.graph.dims, self.graph.agree, self.graph.bound)[axis]
        right = replace(call, arguments=tuple(each.ref for each in values))
        return self.emit(left, right, values, sizes)

    def move(self, call: Call, scope: Scope) -> Value:
        """roll and pad: the same axes, moved along some of them."""
        argument = call.arguments[0]
        inside = self.inner(argument, scope)
        value = self._ungrouped(self.lower(argument, inside, None))
        sizes = dict(value.sizes)
        options: list[tuple[str, tuple[Expression, ...]]] = []
        for name, values in call.options:
            numbers = tuple(self.scalar(each, inside) for each in values)
            options.append((name, numbers))
            if call.function == "pad" and name in option_axes(call):
                before, after = (self.open(scalar_size(each, inside)) for each in numbers)
                sizes[name] = sizes[name] + before + after
        right = replace(call, arguments=(value.ref,), options=tuple(options))
        return self.emit(value.layout, right, [value], sizes)

    def build(
        self, order: Order, values: Sequence[Value], sizes: Mapping[str, Any], wanted: Layout | None
    ) -> Value:
        """Emits the steps of one contraction; `wanted` is heeded where any order costs the same."""
        made, asked = list(values), self._asked(order, len(values), wanted)
        for number, pair in enumerate(order):
            way, a, b = pair.way, made[pair.first], made[pair.second]
            left: tuple[Entry, ...] = tuple(group[0] if len(group) == 1 else group for group in way.result)
            order_asked = asked.get(len(values) + number)
            if way.kind == "multiply" and order_asked is not None:
                left = ordered(flatten(way.result), order_asked)
            right = Contraction((a.ref, b.ref), tuple(sorted(way.summed)))
            made.append(self.emit(left, right, [a, b], sizes, way, True))
        return made[-1]

    def _asked(self, order: Order, count: int, wanted: Layout | None) -> dict[int, Layout]:
        """The order in memory that the reader of each intermediate would like, by its number."""
        asked = {} if wanted is None else {count + len(order) - 1: wanted}
        for number, pair in reversed(list(enumerate(order, count))):
            way = pair.way
            if way.kind != "multiply":
                asked[pair.first] = flatten((way.batch, way.rows, way.summed))
                asked[pair.second] = flatten((way.batch, way.summed, way.columns))
            elif number in asked:
                asked[pair.first] = asked[pair.second] = asked[number]
        return asked


# ---------------------------------------------------------------------------- small things


def _as_declared(name: str, dims: tuple[Dim, ...]) -> _Stored:
    """A tensor that lies in memory as it is declared, its axes numbered so that each is distinct."""
    logical = tuple(tuple(f"{n}.{m}" for m in range(len(dim))) for n, dim in enumerate(dims))
    return _Stored(name, tuple(part[0] if len(part) == 1 else part for part in logical), logical, dims)


def _names(entry: Entry) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else entry


def _distinct(index: tuple[Index, ...]) -> bool:
    flat = [name for entry in index for name in (_names(entry) if isinstance(entry, str | tuple) else ())]
    return len(flat) == len(set(flat))


def _with_frees(steps: list[Step], results: tuple[Result, ...]) -> tuple[Step, ...]:
    """Notes after which step each intermediate is needed no more."""
    last: dict[str, int] = {}
    for number, step in enumerate(steps):
        for ref in references(step.equation.right):
            last[ref.name] = number
    frees: list[list[str]] = [[] for _ in steps]
    for name in {step.equation.name for step in steps} - {each.value.name for each in results}:
        if name in last:
            frees[last[name]].append(name)
    return tuple(replace(step, frees=tuple(sorted(names))) for step, names in zip(steps, frees, strict=True))


def peak_memory(graph: Graph, steps: Sequence[Step], values: Mapping[str, int], itemsize: int) -> int:
    """Bytes of all tensors alive at the worst step, leaves included."""
    known = {**values, **graph.bound}
    alive = sum(int(product(evaluate(size, known) for size in leaf.shape)) for leaf in graph.leaves)
    peak, held = alive, dict[str, int]()
    for step in steps:
        axes = {axis.name: axis.size for axis in step.axes}
        name = step.equation.name
        held[name] = int(product(evaluate(axes[axis], known) for axis in axes_of_index(step.equation.left)))
        alive += held[name]
        peak = max(peak, alive)
        alive -= sum(held[each] for each in step.frees)
    return peak * itemsize
