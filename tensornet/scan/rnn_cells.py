"""Kernel selection of recurrent cells: LSTM, GRU and plain RNN, however written.

    h.along[t,b,o] = lstm_along(x[b,t,i], W[n,i], U[n,p], h0[b,o], c0[b,o], b[n])

A block that is called along an axis is read from what it leaves, `h = o·tanh(c)`: its gates by the functions that
these are, and what goes into each as one product of an input, one of the state before, and the rest. What comes in
at a position is followed to where it is made before the loop. The weights of the gates, whatever they are made of,
become matrices one above another.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ..graph.builder import Written
from ..graph.graph import Apply, Graph
from ..graph.leaves import Leaf
from ..graph.shape_inference import Scope, dim_size
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Literal,
    Ref,
    axes_of_index,
    contraction,
    free_axes,
    fresh,
    product_of,
    references,
    rename,
    sum_of,
    transform,
)
from ..ops.pointwise import RELU, SIGMOID, TANH
from ..ops.rnn import GRU_ALONG, LSTM_ALONG, RELU_ALONG, TANH_ALONG
from ..ops.structure import CONCAT, REPEAT
from ..ops.table import Function
from ..passes.dead_code import eliminate_dead_code

__all__ = ["as_cells"]

Pays: TypeAlias = "Callable[[Graph, Graph], bool]"
"""Whether the second of two graphs that compute the same is the quicker one."""

ONE, ZERO, LESS = Literal(1), Literal(0), Literal(-1)

KERNELS = (LSTM_ALONG, GRU_ALONG, TANH_ALONG, RELU_ALONG)


def as_cells(graph: Graph, pays: Pays, supported: Container[str]) -> Graph:
    """The graph, some of whose calls along an axis are kernels.

    Args:
        graph: the graph, its recurrences called along their axes.
        pays: whether a kernel is quicker than a loop, told of both with what serves them alone.
        supported: the kernels that there are.
    """
    kinds = [row for row in KERNELS if row.name in supported]
    if not kinds or all(call.along is None for call in graph.calls):
        return graph
    return _Writing(graph, pays, kinds).changed()


# ---------------------------------------------------------------------------- what a block says


class _Other(Exception):  # noqa: N818
    """A block is something else than what it is read as."""


@dataclass(frozen=True)
class _Gate:
    """What goes into the function of a gate: `weight · given + state_weight · state + biases`.

    Attributes:
        given: the input.
        weight, state_weight: what it and the state are multiplied with.
        read, state: the channels of input and state, as the weights have them.
        biases: what is added.
        inner: what is added to the product of the state alone.
        sign: -1 where the kernel has 1 less this gate in its place.
    """

    given: Expression
    weight: Expression
    state_weight: Expression
    read: tuple[str, ...]
    state: tuple[str, ...]
    biases: tuple[Expression, ...]
    inner: tuple[Expression, ...] = ()
    sign: int = 1


@dataclass(frozen=True)
class _Cell:
    """A block, read.

    Attributes:
        kind: the kernel.
        gates, states: in the order of the kernel; states as the tensors that they start from.
        left: the axes of a state.
        channels: which of its dimensions are no batch.
        label: the axis of positions.
        fixed: the axes of which a gate is one position, and which.
    """

    kind: Function
    gates: tuple[_Gate, ...]
    states: tuple[str, ...]
    left: tuple[Any, ...]
    channels: frozenset[int]
    label: str
    fixed: Mapping[str, int]

    @property
    def made(self) -> tuple[str, ...]:
        """The channels of a state."""
        return axes_of_index(tuple(self.left[n] for n in sorted(self.channels)))


class _Reading:
    """Reads a block that is called along an axis as one of the cells that have kernels."""

    def __init__(self, call: Apply, outside: Mapping[str, Equation]) -> None:
        assert call.along is not None
        self.inside = {equation.name: equation for equation in call.graph.own}
        self.outside, self.names = outside, call.names()
        leaves = [leaf.name for leaf in call.graph.inputs]
        first = len(call.along.cuts)
        self.cut = dict(zip(leaves, call.along.cuts, strict=False))
        made = (call.graph.outputs[n] for n in call.along.states)
        self.next = dict(zip(leaves[first:], made, strict=False))
        name = call.graph.outputs[0]
        self.left: tuple[Any, ...] = self.inside[name].left if name in self.inside else ()
        self.result = Ref(name, self.left)
        self.label = fresh(call.along.axis.name, set(axes_of_index(self.left)))
        self.channels: frozenset[int] | None = None
        self.fixed: dict[tuple[str, int], str] = {}

    def cell(self) -> _Cell | None:
        """The block as a cell, if it is one."""
        kinds = {1: (self._gru, self._plain), 2: (self._lstm,)}.get(len(self.next), ())
        for kind in kinds if self.left else ():
            self.channels, self.fixed = None, {}
            try:
                return kind()
            except _Other:
                continue
        return None

    def _cell(self, kind: Function, states: Sequence[str], *gates: _Gate) -> _Cell:
        first = gates[0]
        for each in gates[1:]:
            names = dict(zip(each.read, first.read, strict=False))
            if len(each.read) != len(first.read) or rename(each.given, names) != first.given:
                raise _Other
        assert self.channels is not None
        fixed = {name: position for (_, position), name in self.fixed.items()}
        starts = tuple(self.names[each] for each in states)
        return _Cell(kind, gates, starts, self.left, self.channels, self.label, fixed)

    # ---- kinds

    def _lstm(self) -> _Cell:
        """h = o·tanh(c), c = f·c' + i·g."""
        h, c = sorted(self.next, key=lambda state: self.next[state] != self.result.name)
        cell = Ref(self.next[c], self.left)
        whole, leave = self._pair(self.result, lambda each: self._is(each, TANH))
        if self._look(self._argument(whole, TANH)) != self._look(cell):
            raise _Other
        kept, new = self._kept_and_new(cell, c)
        candidate, enter = self._pair(new, lambda each: self._is(each, TANH))
        inside = [self._argument(each, SIGMOID) for each in (enter, kept, leave)]
        inside.insert(2, self._argument(candidate, TANH))
        return self._cell(LSTM_ALONG, (h, c), *(self._gate(each, h) for each in inside))

    def _gru(self) -> _Cell:
        """h = (1 − z)·n + z·h', n = tanh(x·W + b + r·(h'·U + u))."""
        (h,) = self.next
        kept, new = self._kept_and_new(self.result, h)
        candidate, taken = self._pair(new, lambda each: self._is(each, TANH))
        sign = 1 if self._is(kept, SIGMOID) else -1
        update, rest = (kept, taken) if sign > 0 else (taken, kept)
        self._check_rest(rest, update)
        held, others = self._apart(self._terms(self._argument(candidate, TANH)))
        reset, inner = self._reset(held)
        product, added = self._apart(self._terms(inner))
        weight, state = self._of_state(product, h)
        gates = (
            self._gate(self._argument(reset, SIGMOID), h),
            replace(self._gate(self._argument(update, SIGMOID), h), sign=sign),
            self._gate_of(others, weight, state, tuple(self._outside(each) for each in added)),
        )
        return self._cell(GRU_ALONG, (h,), *gates)

    def _plain(self) -> _Cell:
        """h = tanh(x·W + h'·U + b), or relu."""
        (h,) = self.next
        for function, kind in ((TANH, TANH_ALONG), (RELU, RELU_ALONG)):
            if self._is(self.result, function):
                return self._cell(kind, (h,), self._gate(self._argument(self.result, function), h))
        raise _Other

    def _kept_and_new(self, made: Ref, state: str) -> tuple[Expression, Expression]:
        """Of what is made of a state times a gate, and something new: that gate, and the new."""
        before = Ref(state, self.left)

        def keeps(term: Expression) -> bool:
            return isinstance(term, Contraction) and before in map(self._look, term.factors)

        kept, new = _one(self._terms(made), keeps)
        return self._pair(kept, lambda each: self._look(each) == before)[1], new

    def _reset(self, product: Expression) -> tuple[Expression, Expression]:
        """A gate, and what it is multiplied with once that is summed."""
        factors = product.factors if isinstance(product, Contraction) else ()
        summed = product.summed if isinstance(product, Contraction) else ()
        gates = [each for each in factors if self._is(each, SIGMOID)]
        if len(gates) != 1 or set(free_axes(gates[0])) & set(summed):
            raise _Other
        return gates[0], contraction(tuple(each for each in factors if each is not gates[0]), summed, None)

    def _check_rest(self, rest: Expression, gate: Expression) -> None:
        """Sees that one factor is 1 less another."""
        _, less = _one(self._terms(rest), lambda each: each == ONE)
        _, other = _one(less.factors if isinstance(less, Contraction) else (), lambda each: each == LESS)
        if self._look(other) != self._look(gate):
            raise _Other

    # ---- parts

    def _look(self, part: Expression) -> Expression:
        """An expression of the block, or what the name that it is stands for."""
        while isinstance(part, Ref) and part.name in self.inside:
            part = self._meaning(part, self.inside[part.name])
        return part

    def _meaning(self, ref: Ref, equation: Equation) -> Expression:
        """What an equation says, under the axes that it is read with; some of them may be fixed."""
        names = dict[str, str]()
        for mine, theirs in zip(equation.left, ref.index, strict=True):
            match mine, theirs:
                case str(), str():
                    names[mine] = theirs
                case str(), int():
                    names[mine] = self.fixed.setdefault((mine, theirs), f"{mine}_at_{len(self.fixed)}")
                case tuple(), tuple() if len(mine) == len(theirs):
                    names.update(zip(mine, theirs, strict=True))
                case _:
                    raise _Other
        if len(set(names.values())) < len(names):
            raise _Other
        return rename(equation.right, names)

    def _terms(self, part: Expression) -> list[Expression]:
        """The terms of a sum."""
        part = self._look(part)
        if isinstance(part, Call) and part.function == "add":
            return [term for each in part.arguments for term in self._terms(each)]
        return [part]

    def _pair(
        self, product: Expression, chosen: Callable[[Expression], bool]
    ) -> tuple[Expression, Expression]:
        """Two factors, the first of them told."""
        product = self._look(product)
        if not isinstance(product, Contraction) or product.summed:
            raise _Other
        return _one(product.factors, chosen)

    def _is(self, part: Expression, function: Function) -> bool:
        part = self._look(part)
        return isinstance(part, Call) and part.function == function.name

    def _argument(self, part: Expression, function: Function) -> Expression:
        part = self._look(part)
        if not isinstance(part, Call) or part.function != function.name:
            raise _Other
        return part.arguments[0]

    def _apart(self, terms: Sequence[Expression]) -> tuple[Expression, list[Expression]]:
        """The one term that hangs on a state, and all others."""
        recurring = [each for each in terms if any(map(self._recurs, references(each)))]
        if len(recurring) != 1:
            raise _Other
        return recurring[0], [each for each in terms if each is not recurring[0]]

    def _recurs(self, ref: Ref) -> bool:
        return ref.name in self.inside or ref.name in self.next

    # ---- gates

    def _gate(self, argument: Expression, state: str) -> _Gate:
        """What goes into the function of a gate."""
        product, others = self._apart(self._terms(argument))
        return self._gate_of(others, *self._of_state(product, state))

    def _gate_of(
        self,
        others: Sequence[Expression],
        weight: Expression,
        state: tuple[str, ...],
        inner: tuple[Expression, ...] = (),
    ) -> _Gate:
        """A gate of a state's weight and of terms beside it: one product of an input, and what is added."""
        terms = [term for each in others for term in self._followed(self._outside(each))]
        around = {self.label, *axes_of_index(self.left)} - self._made
        moving = [each for each in terms if around & set(free_axes(each))]
        if len(moving) != 1 or not isinstance(moving[0], Contraction):
            raise _Other
        biases = tuple(each for each in terms if each is not moving[0])
        factors, summed = moving[0].factors, set(moving[0].summed)
        given = [each for each in factors if around & set(free_axes(each))]
        weights = [each for each in factors if each not in given]
        shared = _axes(given) & _axes(weights) & summed
        read = contraction(tuple(given), tuple((_axes(given) & summed) - shared), None)
        times = contraction(tuple(weights), tuple((_axes(weights) & summed) - shared), None)
        self._check_axes(times, shared)
        for each in (*biases, *inner):
            self._check_axes(each, (), exactly=False)
        if not shared or set(free_axes(read)) != around | shared:
            raise _Other
        channels = tuple(axis for axis in free_axes(read) if axis in shared)
        return _Gate(read, times, weight, channels, state, biases, inner)

    def _of_state(self, product: Expression, state: str) -> tuple[Expression, tuple[str, ...]]:
        """What a state is multiplied with, and its channels there."""
        factors = product.factors if isinstance(product, Contraction) else ()
        found = [each for each in map(self._look, factors) if isinstance(each, Ref) and each.name == state]
        weights = [each for each in factors if self._look(each) not in found]
        if len(found) != 1 or any(self._recurs(ref) for each in weights for ref in references(each)):
            raise _Other
        pairs = list(zip(self.left, found[0].index, strict=True))
        channels = frozenset(n for n, (mine, theirs) in enumerate(pairs) if mine != theirs)
        read = axes_of_index(tuple(pairs[n][1] for n in sorted(channels)))
        if self.channels not in (None, channels) or not channels:
            raise _Other
        self.channels = channels
        summed = set(product.summed) if isinstance(product, Contraction) else set[str]()
        if not summed.issuperset(read):
            raise _Other
        weight = self._outside(contraction(tuple(weights), tuple(summed - set(read)), None))
        self._check_axes(weight, read)
        return weight, read

    @property
    def _made(self) -> set[str]:
        """The channels of what is made."""
        return set(axes_of_index(tuple(self.left[n] for n in self.channels or ())))

    def _check_axes(self, part: Expression, more: Iterable[str], exactly: bool = True) -> None:
        """Sees that an expression has the channels of what is made and some more, and is one position of others."""
        axes, wanted = set(free_axes(part)) - set(self.fixed.values()), self._made | set(more)
        if axes - wanted or (exactly and axes != wanted):
            raise _Other

    def _outside(self, part: Expression) -> Expression:
        """What is given to the block, as it is before the loop: all positions at once."""
        part = transform(self._look(part), self._outside)
        if not isinstance(part, Ref):
            return part
        if part.name in self.next:
            raise _Other
        index = part.index
        if part.name in self.cut:
            at = self.cut[part.name]
            index = (*index[:at], self.label, *index[at:])
        return replace(part, name=self.names[part.name], index=index)

    def _followed(self, part: Expression) -> list[Expression]:
        """The terms of what is made before the loop of what comes in at each position."""
        if isinstance(part, Call) and part.function == "add":
            return [term for each in part.arguments for term in self._followed(each)]
        if isinstance(part, Ref) and part.name in self.outside and self.label in part.index:
            return self._followed(self._meaning(part, self.outside[part.name]))
        return [part]


def _one(parts: Sequence[Expression], chosen: Callable[[Expression], bool]) -> tuple[Expression, Expression]:
    """Of two, the one that is chosen, and the other."""
    found = [each for each in parts if chosen(each)]
    if len(parts) != 2 or len(found) != 1:
        raise _Other
    return found[0], next(each for each in parts if each is not found[0])


def _axes(factors: Iterable[Expression]) -> set[str]:
    return {axis for each in factors for axis in free_axes(each)}


def _entry(axes: Sequence[str]) -> Any:
    """Some axes as one dimension."""
    return axes[0] if len(axes) == 1 else tuple(axes)


# ---------------------------------------------------------------------------- the kernel in its place


class _Writing(Written):
    """Writes the graph anew, with kernels in the place of calls."""

    def __init__(self, graph: Graph, pays: Pays, kinds: Sequence[Function]) -> None:
        super().__init__(graph)
        self.pays, self.kinds = pays, kinds

    def changed(self) -> Graph:
        """The graph."""
        for item in self.graph.body:
            if not isinstance(item, Apply) or item.along is None or not self._is_put(item):
                self.body.append(item)
        if tuple(self.body) == self.graph.body:
            return self.graph
        return eliminate_dead_code(
            replace(self.graph, body=tuple(self.body), sizes=tuple(self.bound.items()))
        )

    def _is_put(self, call: Apply) -> bool:
        """Puts a kernel in the place of a call, if there is one that is quicker."""
        outside = {each.name: each for each in self.body if isinstance(each, Equation)}
        cell = _Reading(call, outside).cell() if len(call.results) == 1 else None
        if cell is None or cell.kind not in self.kinds:
            return False
        first = len(self.body)
        self._put_kernel(call, cell)
        made = self.body[first:]
        given = {ref.name for each in made if isinstance(each, Equation) for ref in each.references}
        if self.pays(self._part([*_behind(outside, call, given), call]), self._part(made)):
            return True
        del self.body[first:]
        return False

    def _part(self, items: Sequence[Equation | Apply]) -> Graph:
        """Some equations and calls by themselves: what they read is given, or constant."""
        made = {name for each in items for name in each.defines}
        constants = {leaf.name: leaf for leaf in self.graph.constants}
        leaves = tuple(
            constants.get(name) or Leaf(name, "input", self.dims[name], holds=self.elements[name])
            for name in dict.fromkeys(name for each in items for name in _read(each))
            if name not in made
        )
        return Graph(leaves, tuple(items), items[-1].defines, tuple(self.bound.items()))

    # ---- equations

    def _put_kernel(self, call: Apply, cell: _Cell) -> None:
        """The equations of the weights, and that of the kernel."""
        assert call.along is not None
        (name,), first, left = call.results, cell.gates[0], cell.left
        told = {cell.label: call.along.axis.size}
        for entry, dim in zip(left, self.dims[name][1:], strict=True):
            told.update(
                {entry: dim_size(dim)}
                if isinstance(entry, str)
                else {axis: each.size for axis, each in zip(entry, dim, strict=True)}
            )
        scope, taken = Scope(told), {*told, *first.read}
        rows, columns = (fresh(stem, taken) for stem in ("n", "p"))
        made, read = _entry(cell.made), _entry(first.read)
        weights, states = [], []
        for gate in cell.gates:
            weight = rename(gate.weight, dict(zip(gate.read, first.read, strict=True)))
            weights.append(self._matrix(name, weight, (made, read), cell, gate, scope))
            state = (made, _entry(gate.state))
            states.append(self._matrix(name, gate.state_weight, state, cell, gate, scope))
        arguments = [
            first.given,
            self._stacked(name, weights, (rows, read), scope),
            self._stacked(name, states, (rows, columns), scope),
            *(Ref(each, left) for each in cell.states),
        ]
        added = [[gate.biases for gate in cell.gates], [gate.inner for gate in cell.gates]]
        while added and not any(added[-1]):
            added.pop()
        for terms in added:
            vectors = [
                self._matrix(name, _spread(each, cell.made), (made,), cell, gate, scope)
                for gate, each in zip(cell.gates, terms, strict=True)
            ]
            arguments.append(self._stacked(name, vectors, (rows,), scope))
        axes = tuple(sorted({*first.read, rows, columns}))
        options = (("back", (ONE,)),) if call.along.back else ()
        right = Call(cell.kind.name, tuple(arguments), axes, options)
        self.put(name, (cell.label, *left), right, scope)

    def _matrix(
        self, stem: str, part: Expression, left: tuple[Any, ...], cell: _Cell, gate: _Gate, scope: Scope
    ) -> str:
        """A tensor that holds an expression of a gate under some axes, of axes that are fixed at one position."""
        fixed = tuple(axis for axis in free_axes(part) if axis in cell.fixed)
        if fixed:
            self.put(name := self.numbered(f"{stem}.weight"), (*fixed, *left), part, scope)
            part = Ref(name, (*(cell.fixed[axis] for axis in fixed), *left))
        if gate.sign < 0:
            part = product_of([LESS, part])
        self.put(name := self.numbered(f"{stem}.weight"), left, part, scope)
        return name

    def _stacked(self, stem: str, parts: Sequence[str], index: tuple[Any, ...], scope: Scope) -> Ref:
        """Matrices one above another."""
        refs = [Ref(each, index) for each in parts]
        if len(refs) == 1:
            return refs[0]
        self.put(
            name := self.numbered(f"{stem}.weight"), index, Call(CONCAT.name, tuple(refs), index[:1]), scope
        )
        return Ref(name, index)


def _spread(terms: Sequence[Expression], axes: Sequence[str]) -> Expression:
    """The sum of some terms, with all of some axes."""
    found = sum_of(list(terms)) if terms else ZERO
    for axis in axes:
        if axis not in free_axes(found):
            found = Call(REPEAT.name, (found,), (axis,))
    return found


def _read(item: Equation | Apply) -> Iterator[str]:
    """The tensors that an equation or a call reads."""
    if isinstance(item, Apply):
        yield from item.names().values()
    else:
        yield from (ref.name for ref in item.references)


def _behind(equations: Mapping[str, Equation], call: Apply, given: Container[str]) -> list[Equation]:
    """The equations that a call hangs on, as far as what is given; each after what it reads."""
    needed, waiting = set[str](), [*_read(call)]
    while waiting:
        name = waiting.pop()
        if name in equations and name not in given and name not in needed:
            needed.add(name)
            waiting.extend(_read(equations[name]))
    return [each for name, each in equations.items() if name in needed]
