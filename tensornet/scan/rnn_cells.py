"""Kernel selection of recurrent cells: LSTM, GRU and plain RNN, however they are written.

    h_1[t,b,o] = lstm_along(x[b,t,i], W[n,i], U[n,p], h0[b,o], c0[b,o], b[n])

A component is matched from its result, `h = o·tanh(c)`. Gates are recognised by their functions. The argument of each
is one product with an input, one product with the previous state, and biases. The weights of the gates may be any
tensors; they are stacked into matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..graph.graph import Graph
from ..ir.build import axes_in, concatenated, node, number
from ..ir.node import Affine, Axis, Entries, Node, Operand, Size, along, axes_of, row_major, substitute
from ..ops.pointwise import RELU, SIGMOID, TANH
from ..ops.rnn import GRU_ALONG, LSTM_ALONG, RELU_ALONG, TANH_ALONG
from ..ops.table import Function
from ..sizes import evaluate
from .components import Component

__all__ = ["select_rnn_kernel"]

Seconds: TypeAlias = "Callable[[Graph], float]"
"""The expected seconds of a graph."""


def select_rnn_kernel(component: Component, seconds: Seconds, supported: Container[str]) -> dict[Node, Node]:
    """The result of a recurrent cell, computed by a kernel; nothing if a component matches none.

    Args:
        component: the nodes that recur.
        seconds: the expected seconds of a graph: that of the recurrence, or of a kernel, with the nodes it alone needs.
        supported: the names of the available kernels.
    """
    cell = _Reading(component).cell()
    is_chosen = cell is not None and cell.kind.name in supported and _pays(component, cell, seconds)
    return {cell.result: _kernel(component, cell)} if cell is not None and is_chosen else {}


def _pays(component: Component, cell: _Cell, seconds: Seconds) -> bool:
    """Whether a kernel is quicker than the recurrence that it replaces, each with the nodes it alone needs."""
    components, given = component.components, (*cell.given, *cell.starts)
    name = components.names.get(cell.result, "h")
    loop = components.part(name, cell.result, given, component.states)
    return seconds(components.part(name, _kernel(component, cell), given)) < seconds(loop)


# ---------------------------------------------------------------------------- matching a component


class _Other(Exception):  # noqa: N818
    """A component does not match the cell that is tried."""


@dataclass(frozen=True)
class _Gate:
    """The argument of the function of a gate: `weight · given + state_weight · state + biases`.

    Attributes:
        given: the input: the axes around a cell, and then those of its channels.
        weight, state_weight: the matrices that multiply the input and the state.
        bias: the vector that is added, if any.
        inner: the vector that is added to the product of the state alone.
    """

    given: Node
    weight: Node
    state_weight: Node
    bias: Node | None
    inner: Node | None = None


@dataclass(frozen=True)
class _Cell:
    """A component that matches a cell.

    Attributes:
        kind: the kernel.
        gates: the gates, in the order of the kernel.
        result: its only node that is read outside.
        starts: the first values of its states.
        given: the nodes that its input is computed from.
        left: the positions of the result, in the axes of the cell.
        made: the axes of its channels.
        sizes: the sizes of all axes.
    """

    kind: Function
    gates: tuple[_Gate, ...]
    result: Node
    starts: tuple[Node, ...]
    given: tuple[Node, ...]
    left: Entries
    made: tuple[Axis, ...]
    sizes: Mapping[Axis, Size]


class _Reading:
    """Matches a component with the cells that have kernels.

    A part is an operand, read along the axes of the component's result and others that are summed.
    """

    def __init__(self, component: Component) -> None:
        self.component, self.sizes, self.fixed = component, dict[Axis, Size](), dict[Axis, Size]()
        left = [each for each in component.nodes if component.is_read(each)]
        self.result = left[0] if len(left) == 1 else None
        self.opened = dict[Operand, tuple[list[Operand], frozenset[Axis]]]()
        self.given, self.channels, self.products = dict[Node, None](), frozenset[int](), set[Node]()

    def cell(self) -> _Cell | None:
        """The component as a cell; None if it matches none."""
        states = self.component.states
        kinds = {1: (self._gru, self._plain), 2: (self._lstm,)}.get(len(states), ())
        behind = [state.behind for state in states.values()]
        if self.result not in behind or len(states) > len(self.component.outer) or None in self.result.dims:
            return None
        table = {axis: along(("f", axis)) for axes in self.result.dims for axis in axes or ()}
        self.sizes |= {("f", axis): self.result.sizes[axis] for axis in table}
        self.left = substitute(self.result.result, table)
        self.whole = Operand(self.result, self.left)
        self.label = ("f", self.component.axes[self.result])
        for kind in kinds:
            self.channels = frozenset()
            self.given.clear()
            try:
                return kind()
            except _Other:
                continue
        return None

    def _cell(self, kind: Function, states: Sequence[Node], *gates: _Gate) -> _Cell:
        if any(each.given is not gates[0].given for each in gates) or not self.channels:
            raise _Other
        starts = tuple(self.component.states[each].begin for each in states)
        assert self.result is not None
        return _Cell(kind, gates, self.result, starts, tuple(self.given), self.left, self._made, self.sizes)

    # ---- kinds

    def _lstm(self) -> _Cell:
        """h = o·tanh(c), c = f·c' + i·g."""
        h, c = sorted(
            self.component.states, key=lambda each: self.component.states[each].behind is not self.result
        )
        cell = Operand(self.component.states[c].behind, self.left)
        whole, leave = self._pair(self.whole, lambda each: self._is(each, TANH))
        if self._look(self._argument(whole, TANH)) != self._look(cell):
            raise _Other
        kept, new = self._kept_and_new(cell, c)
        candidate, enter = self._pair(new, lambda each: self._is(each, TANH))
        inside = [self._argument(each, SIGMOID) for each in (enter, kept, leave)]
        inside.insert(2, self._argument(candidate, TANH))
        return self._cell(LSTM_ALONG, (h, c), *(self._gate(each, h) for each in inside))

    def _gru(self) -> _Cell:
        """h = (1 − z)·n + z·h', n = tanh(x·W + b + r·(h'·U + u))."""
        (h,) = self.component.states
        kept, new = self._kept_and_new(self.whole, h)
        candidate, taken = self._pair(new, lambda each: self._is(each, TANH))
        sign = 1 if self._is(kept, SIGMOID) else -1
        update, rest = (kept, taken) if sign > 0 else (taken, kept)
        self._check_rest(rest, update)
        held, others = self._apart(self._terms(self._argument(candidate, TANH)))
        reset, inner = self._reset(held)
        hangs, added = self._apart(inner)
        weight = self._of_state(hangs, h)
        gates = (
            self._gate(self._argument(reset, SIGMOID), h),
            self._gate(self._argument(update, SIGMOID), h, sign),
            self._gate_of(others, weight, inner=added),
        )
        return self._cell(GRU_ALONG, (h,), *gates)

    def _plain(self) -> _Cell:
        """h = tanh(x·W + h'·U + b), or relu."""
        (h,) = self.component.states
        for function, kind in ((TANH, TANH_ALONG), (RELU, RELU_ALONG)):
            if self._is(self.whole, function):
                return self._cell(kind, (h,), self._gate(self._argument(self.whole, function), h))
        raise _Other

    def _kept_and_new(self, made: Operand, state: Node) -> tuple[Operand, Operand]:
        """The gate and the new term in a sum of the state times a gate and a new term."""
        before = Operand(state, self.left)

        def keeps(term: Operand) -> bool:
            term = self._look(term)
            return term.node.op == "contract" and before in map(self._look, self._inside(term)[0])

        kept, new = _one(self._terms(made), keeps)
        return self._pair(kept, lambda each: self._look(each) == before)[1], new

    def _reset(self, held: Operand) -> tuple[Operand, list[Operand]]:
        """A gate, and the terms that it multiplies; a product of several factors is one term."""
        factors, summed = self._factors(held)
        gates = [each for each in factors if self._is(each, SIGMOID)]
        if len(gates) != 1 or {*axes_in(gates)} & summed:
            raise _Other
        rest = [each for each in factors if each is not gates[0]]
        if len(rest) == 1 and not summed:
            return gates[0], self._terms(rest[0])
        return gates[0], [self._product(rest, summed)]

    def _product(self, factors: Sequence[Operand], summed: frozenset[Axis]) -> Operand:
        """A product as a part whose factors are known."""
        axes = [axis for axis in dict.fromkeys(axes_in(factors)) if axis not in summed]
        left = tuple(map(along, axes))
        made = Operand(node("contract", self.sizes, factors, left), left)
        self.opened[made] = [*factors], summed
        if any(map(self._recurs, factors)):
            self.products.add(made.node)
        return made

    def _check_rest(self, rest: Operand, gate: Operand) -> None:
        """Raises `_Other` unless `rest` is 1 minus the gate."""
        _, less = _one(self._terms(rest), lambda each: _is_number(each, 1))
        _, other = _one(self._factors(less)[0], lambda each: _is_number(each, -1))
        if self._look(other) != self._look(gate):
            raise _Other

    # ---- parts

    def _look(self, part: Operand) -> Operand:
        """A part, or the part that it is a mere copy of."""
        while (
            part.node.op == "copy"
            and "fill" not in part.node.attributes
            and part.node in self.component.nodes
        ):
            (part,), summed = self._inside(part)
            if summed:
                raise _Other
        return part

    def _inside(self, part: Operand) -> tuple[list[Operand], frozenset[Axis]]:
        """The operands of a part, and the axes that it sums."""
        if part not in self.opened:
            each, table = part.node, dict[Axis, Affine]()
            for axes, entry, length in zip(each.dims, part.reads, each.shape, strict=True):
                table |= self._table(each, axes, entry, length)
            for axis, size in enumerate(each.sizes):
                if axis not in table:
                    new = ("s", len(self.opened), axis)
                    table[axis], self.sizes[new] = along(new), size
            summed = frozenset(table[a].axis for a in range(len(each.sizes)) if a not in axes_of(each.result))
            operands = [Operand(child, substitute(entries, table)) for child, entries in each.operands]
            self.opened[part] = operands, summed
        return self.opened[part]

    def _table(
        self, each: Node, axes: tuple[int, ...] | None, entry: Any, length: Size
    ) -> dict[Axis, Affine]:
        """The position along each axis of a dimension, given the position in the dimension."""
        if axes is None or not isinstance(entry, Affine):
            raise _Other
        if len(axes) == 1:
            return {axes[0]: entry if entry.terms else self._at(each, axes[0], entry.offset)}
        bound = self.component.components.graph.bound
        steps = row_major(axes, dict(enumerate(each.sizes))).steps
        found, offset, terms = dict[Axis, Affine](), evaluate(entry.offset, bound), dict(entry.terms)
        for axis, step in zip(axes, steps, strict=True):
            alike = [a for a, by in terms.items() if by == step and self.sizes[a] == each.sizes[axis]]
            if alike:
                found[axis] = along(alike[0])
                del terms[alike[0]]
            elif isinstance(offset, int) and isinstance(by := evaluate(step, bound), int):
                found[axis], offset = self._at(each, axis, offset // by), offset % by
        if terms or offset != 0 or len(found) < len(axes):
            raise _Other
        return found

    def _at(self, each: Node, axis: int, position: Size) -> Affine:
        """A new axis for a fixed position of an axis."""
        found = ("at", each, axis, position)
        self.fixed[found], self.sizes[found] = position, each.sizes[axis]
        return along(found)

    def _terms(self, part: Operand) -> list[Operand]:
        """The terms of a sum, also of a sum that is computed for all positions before the loop."""
        part = self._look(part)
        if part.node.op == "add" and (self._recurs(part) or self.label in axes_of(part.reads)):
            return [term for each in self._inside(part)[0] for term in self._terms(each)]
        return [part]

    def _factors(self, part: Operand) -> tuple[list[Operand], frozenset[Axis]]:
        """The factors of a product, and the axes that are summed."""
        part = self._look(part)
        if part not in self.opened and part.node.op != "contract":
            raise _Other
        return self._inside(part)

    def _pair(self, part: Operand, chosen: Callable[[Operand], bool]) -> tuple[Operand, Operand]:
        """The two factors of a product, the chosen one first."""
        factors, summed = self._factors(part)
        if summed:
            raise _Other
        return _one(factors, chosen)

    def _is(self, part: Operand, function: Function) -> bool:
        return self._look(part).node.op == function.name

    def _argument(self, part: Operand, function: Function) -> Operand:
        if not self._is(part, function):
            raise _Other
        return self._inside(self._look(part))[0][0]

    def _apart(self, terms: Sequence[Operand]) -> tuple[Operand, list[Operand]]:
        """The one term that depends on a state, and all others."""
        recurring = [each for each in terms if self._recurs(each)]
        if len(recurring) != 1:
            raise _Other
        return recurring[0], [each for each in terms if each is not recurring[0]]

    def _recurs(self, part: Operand) -> bool:
        """Whether a part depends on a state: it is a node or state of the component, or a product of these."""
        return part.node in self.component.labels or part.node in self.products

    # ---- gates

    @property
    def _made(self) -> tuple[Axis, ...]:
        """The axes of the result's channels."""
        return tuple(axis for d in sorted(self.channels) for axis in axes_of((self.left[d],)))

    def _gate(self, argument: Operand, state: Node, sign: int = 1) -> _Gate:
        """The gate of an argument of its function; with sign -1, of 1 minus the gate."""
        hangs, others = self._apart(self._terms(argument))
        return self._gate_of(others, self._of_state(hangs, state), sign)

    def _of_state(self, part: Operand, state: Node) -> _Product:
        """The weights that multiply a state, and the axes of the state's channels there."""
        factors, summed = self._factors(part)
        found = [each for each in map(self._look, factors) if each.node is state]
        weights = [each for each in factors if self._look(each).node is not state]
        if len(found) != 1 or any(map(self._recurs, weights)):
            raise _Other
        pairs = list(enumerate(zip(self.left, found[0].reads, strict=True)))
        channels = frozenset(d for d, (mine, theirs) in pairs if mine != theirs)
        read = tuple(axis for d, (_, theirs) in pairs if d in channels for axis in axes_of((theirs,)))
        if self.channels not in (frozenset(), channels) or not channels or not summed.issuperset(read):
            raise _Other
        self.channels = channels
        self._check_axes(weights, {*read} | summed)
        return _Product(tuple(weights), read)

    def _gate_of(
        self, others: Sequence[Operand], state: _Product, sign: int = 1, inner: Sequence[Operand] = ()
    ) -> _Gate:
        """A gate from a state's weight and the other terms: one product with an input, and biases."""
        around = tuple(axis for axis in axes_of(self.left) if axis not in self._made)
        moving = [each for each in others if not {*around}.isdisjoint(axes_of(each.reads))]
        if len(moving) != 1:
            raise _Other
        factors, summed = self._factors(moving[0])
        given = [each for each in factors if not {*around}.isdisjoint(axes_of(each.reads))]
        weights = [each for each in factors if each not in given]
        read = tuple(axis for axis in dict.fromkeys(axes_in(given)) if axis in {*axes_in(weights)} & summed)
        self._check_axes(weights, {*read} | summed)
        if not read or {*axes_in(given)} - summed - {*read} != {*around}:
            raise _Other
        self.given |= dict.fromkeys(each.node for each in given if each.node.shape)
        biases = [each for each in others if each is not moving[0]]
        return _Gate(
            self._multiplied(given, tuple(map(along, (*around, *read)))),
            self._multiplied(weights, self._matrix(read), sign),
            self._multiplied(state.weights, self._matrix(state.read), sign),
            self._added(biases, sign),
            self._added(inner, sign),
        )

    def _check_axes(self, parts: Sequence[Operand], more: set[Axis]) -> None:
        """Raises `_Other` unless parts have the axes of the result's channels, and no others than `more`."""
        axes = {*axes_in(parts)} - self.fixed.keys()
        if axes - {*self._made} - more or not axes.issuperset(self._made):
            raise _Other

    def _matrix(self, read: Sequence[Axis]) -> Entries:
        """The result's channels as one dimension, and the channels that are read as another."""
        return _position(self._made, self.sizes), _position(read, self.sizes)

    def _multiplied(self, factors: Sequence[Operand], left: Entries, sign: int = 1) -> Node:
        """The product of some parts, negated if the sign is -1."""
        given = [*([Operand(number(-1))] if sign < 0 else []), *factors]
        left = (*map(along, self._fixed(given)), *left)
        plain = len(given) == 1 and {*axes_in(given)} <= {*axes_of(left)}
        return self._at_fixed(node("copy" if plain else "contract", self.sizes, given, left), given)

    def _fixed(self, parts: Iterable[Operand]) -> list[Axis]:
        """The axes of some parts that are fixed at one position."""
        return [axis for axis in dict.fromkeys(axes_in(parts)) if axis in self.fixed]

    def _at_fixed(self, made: Node, parts: Iterable[Operand]) -> Node:
        """A node computed from some parts, read at the positions of the fixed axes, which come first."""
        positions = tuple(Affine((), self.fixed[axis]) for axis in self._fixed(parts))
        axes = range(len(made.shape) - len(positions))
        rest = tuple(map(along, axes))
        sizes = dict(enumerate(made.shape[len(positions) :]))
        return node("copy", sizes, [Operand(made, (*positions, *rest))], rest) if positions else made

    def _added(self, terms: Sequence[Operand], sign: int) -> Node | None:
        """The sum of some parts along the result's channels, negated if the sign is -1; None for no parts."""
        if not {*axes_in(terms)} - self.fixed.keys() <= {*self._made}:
            raise _Other
        if not terms:
            return None
        left = (*map(along, self._fixed(terms)), _position(self._made, self.sizes))
        made = self._at_fixed(node("add" if len(terms) > 1 else "copy", self.sizes, terms, left), terms)
        vector = (along(0),)
        factors = [Operand(number(-1)), Operand(made, vector)]
        return made if sign > 0 else node("contract", {0: made.shape[0]}, factors, vector)


@dataclass(frozen=True)
class _Product:
    """The weights that multiply a state, and the axes of the state's channels there."""

    weights: tuple[Operand, ...]
    read: tuple[Axis, ...]


def _position(axes: Sequence[Axis], sizes: Mapping[Axis, Size]) -> Affine:
    """Some axes as one dimension."""
    return along(axes[0]) if len(axes) == 1 else row_major(tuple(axes), sizes)


def _is_number(part: Operand, value: int) -> bool:
    return part.node.op == "number" and part.node.attributes["value"] == value


def _one(parts: Sequence[Operand], chosen: Callable[[Operand], bool]) -> tuple[Operand, Operand]:
    """The chosen one of two parts, and the other; raises `_Other` if not exactly one of two is chosen."""
    found = [each for each in parts if chosen(each)]
    if len(parts) != 2 or len(found) != 1:
        raise _Other
    return found[0], next(each for each in parts if each is not found[0])


# ---------------------------------------------------------------------------- the kernel


def _kernel(component: Component, cell: _Cell) -> Node:
    """The result of a cell, computed by its kernel."""
    gates, first = cell.gates, cell.gates[0]
    at = component.labels[cell.result]
    around = [axis for axis in axes_of(cell.left) if axis not in cell.made]
    read = [("r", n) for n in range(len(first.given.shape) - len(around))]
    weights = [
        concatenated([getattr(gate, each) for gate in gates], 0) for each in ("weight", "state_weight")
    ]
    sizes = {**cell.sizes, **dict(zip(read, first.given.shape[len(around) :], strict=True))}
    sizes |= {"rows": weights[0].shape[0], "columns": weights[1].shape[1]}
    left = (cell.left[at], *cell.left[:at], *cell.left[at + 1 :])
    rows = along("rows")
    operands = [
        Operand(first.given, tuple(map(along, (*around, *read)))),
        Operand(weights[0], (rows, _position(read, sizes))),
        Operand(weights[1], (rows, along("columns"))),
        *(Operand(each, left[1:]) for each in cell.starts),
    ]
    added = [[gate.bias for gate in gates], [gate.inner for gate in gates]]
    while added and not any(added[-1]):
        added.pop()
    for vectors in added:
        held = [
            _zeros(gate.weight.shape[0]) if each is None else each
            for each, gate in zip(vectors, gates, strict=True)
        ]
        operands.append(Operand(concatenated(held, 0), (rows,)))
    back = (("back", number(1)),) if component.state.back else ()
    made = node(cell.kind.name, sizes, operands, left, None, (*read, "rows", "columns"), back)
    axes = range(len(left))
    looks = tuple(map(along, (at, *(n for n in axes if n != at))))
    return node("copy", dict(enumerate(cell.result.shape)), [Operand(made, looks)], tuple(map(along, axes)))


def _zeros(length: Size) -> Node:
    return node("copy", {0: length}, [Operand(number(0))], (along(0),))
