"""Kernel selection of recurrent cells: LSTM, GRU and plain RNN, however they are written.

    h_1[t,b,o] = lstm_along(x[b,t,i], W[n,i], U[n,p], h0[b,o], c0[b,o], b[n])

The equations of a cell (`ops/rnn.py`) are matched with the next values of the states, as those of any kernel are. What
they leave open are the arguments of the gates: each is a sum of one product with an input, one product with the result
before, and biases. The weights of the gates may be any tensors; they are stacked into matrices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..graph.graph import Graph
from ..ir.node import (
    Axis,
    Node,
    Operand,
    Size,
    along,
    axes_in,
    axes_of,
    concatenated,
    fills,
    moved_in,
    node,
    number,
    row_major,
    substitute,
)
from ..language.expression import Ref
from ..language.patterns import pattern_of
from ..ops.record import KernelEquation
from ..ops.rnn import CELLS, Cell
from ..passes.kernel_selection import operands_matched
from .components import Component
from .linear_forms import LinearForms, NotLinear, Product

Seconds: TypeAlias = "Callable[[Graph], float]"
"""The expected seconds of a graph."""


def select_rnn_kernel(component: Component, seconds: Seconds, supported: Container[str]) -> dict[Node, Node]:
    """The result of a recurrent cell, computed by a kernel; nothing if a component matches none.

    Args:
        component: the nodes that recur.
        seconds: the expected seconds of a graph: that of the recurrence, or of a kernel, with the nodes it alone needs.
        supported: the names of the available kernels.
    """
    read = [each for each in component.nodes if component.is_read(each)]
    if len(read) != 1 or None in read[0].dims or component.states.keys() != component.outer.keys():
        return {}
    (result,) = read
    for cell in CELLS:
        if cell.kernel.name in supported and len(cell.equations) == len(component.outer):
            with contextlib.suppress(NotLinear):
                made, given = _Reading(component, cell, result).kernel()
                return {result: made} if _pays(component, result, made, given, seconds) else {}
    return {}


def _pays(component: Component, result: Node, made: Node, given: Sequence[Node], seconds: Seconds) -> bool:
    """Whether a kernel is quicker than the recurrence that it replaces, each with the nodes it alone needs."""
    components, name = component.components, component.components.names.get(result, "h")
    kernel, loop = (
        components.part(name, made, given),
        components.part(name, result, given, component.states),
    )
    return seconds(kernel) < seconds(loop)


@dataclass(frozen=True)
class _Gate:
    """The argument of a gate: `weight · given + state_weight · state + bias`, each if it has such a term.

    Attributes:
        given: the input: the axes around a cell, and then those of its channels.
        weight, state_weight: the matrices that multiply the input and the result before.
        bias: the vector that is added.
    """

    given: Node | None
    weight: Node | None
    state_weight: Node | None
    bias: Node | None


class _Reading:
    """Matches a component with a cell.

    Attributes:
        states: the states, that of the result last.
        left: the positions of the result, in axes that all parts share.
        label: the axis of the recurrence.
        given: the nodes that the input is computed from.
        made: the axes of the result's channels.
    """

    def __init__(self, component: Component, cell: Cell, result: Node) -> None:
        self.component, self.cell, self.result = component, cell, result
        self.states = sorted(component.outer, key=lambda each: component.outer[each].behind is result)
        table = {axis: along(("f", axis)) for axis in axes_of(result.result)}
        self.forms = LinearForms(component, {("f", axis): result.sizes[axis] for axis in table})
        self.left = substitute(result.result, table)
        self.label = ("f", component.axes[result])
        self.given, self.made = dict[Node, None](), tuple[Axis, ...]()

    # ---- matching the equations

    def _arguments(self) -> Iterator[Operand]:
        """The arguments of the gates, where the states are those of the equations."""
        behind = [self.component.outer[each].behind for each in self.states]
        names = [equation.text.partition("[")[0] for equation in self.cell.equations]
        known = {f"{name}_1": each for name, each in zip(names, self.states, strict=True)}
        known |= dict(zip(names, behind, strict=True))
        if behind[-1] is not self.result:
            raise NotLinear
        for equation, head in zip(self.cell.equations, behind, strict=True):
            yield from self._matched(equation, head, known)

    def _matched(self, equation: KernelEquation, head: Node, known: Mapping[str, Node]) -> list[Operand]:
        """The operands of an equation other than states."""
        written = [each.name if isinstance(each, Ref) else "" for each in pattern_of(equation).operands]
        inside = self.component.nodes.difference(known.values())
        for nodes in operands_matched(self.component.components.program, head, equation, inside):
            found = [*zip(written, (Operand(each, self.left) for each in nodes), strict=True)]
            if all(self._is(each, known[name]) for name, each in found if name in known):
                return [each for name, each in found if name not in known]
        raise NotLinear

    def _is(self, part: Operand, each: Node) -> bool:
        """Whether an operand is a copy of a node along the axes of the result."""
        one, other = (
            self.forms.terms(each, lambda part: part.node.op == "copy")
            for each in (part, Operand(each, self.left))
        )
        return one == other

    # ---- gates

    def _gates(self, arguments: Sequence[Operand]) -> list[_Gate]:
        """The arguments of the gates as products with matrices. Channels are the dimensions that these sum."""
        sums = [self.forms.terms(each, self._opens) for each in arguments]
        factors = (each for terms in sums for term in terms for each in term.factors)
        reads = (each.reads for each in factors if each.node is self.states[-1])
        pairs = ([*zip(self.left, entries, strict=True)] for entries in reads)
        channels = {tuple(mine for mine, theirs in each if mine != theirs) for each in pairs}
        if len(channels) != 1:
            raise NotLinear
        self.made = tuple(axes_of(channels.pop()))
        return [*map(self._gate, sums)]

    def _opens(self, part: Operand) -> bool:
        """Whether an operand may hold several terms: it recurs, or is computed for all positions before the loop."""
        return self.forms.recurs(part) or self.label in axes_of(part.reads)

    def _gate(self, terms: Sequence[Product]) -> _Gate:
        """A gate: at most one product with the result before, products with inputs, and biases."""
        hanging = [each for each in terms if any(map(self.forms.recurs, each.factors))]
        others = [each for each in terms if each not in hanging]
        moving = [each for each in others if not axes_in(each.factors).keys().isdisjoint(self._around)]
        biases = [self.forms.operand(each) for each in others if each not in moving]
        inputs, products = ([*map(self._product, each)] for each in (moving, hanging))
        states = [factor.node for factors, *_ in products for factor in factors]
        if states not in ([], self.states[-1:]) or not {*axes_in(biases)} <= {*self.made}:
            raise NotLinear
        self.given |= dict.fromkeys(
            each.node for factors, *_ in inputs for each in factors if each.node.shape
        )
        return _Gate(
            concatenated([each for _, each, _ in inputs], len(self._around)) if inputs else None,
            concatenated([matrix for *_, matrix in inputs], 1) if inputs else None,
            products[0][-1] if products else None,
            self.forms.node(biases, (row_major(self.made, self.forms.sizes),), "add") if biases else None,
        )

    def _product(self, term: Product) -> tuple[list[Operand], Node, Node]:
        """The factors of a product that are no weights, their product, its channels last, and the weights' matrix."""
        around, (factors, summed) = {*self._around}, term
        given = [each for each in factors if not around.isdisjoint(axes_of(each.reads))]
        weights = [each for each in factors if each not in given]
        if not all(self._is_read_whole(each) for each in given if self.forms.recurs(each)):
            raise NotLinear
        read = tuple(axis for axis in axes_in(given) if axis in {*axes_in(weights)} & summed)
        axes = {*axes_in(weights)} - self.forms.fixed.keys()
        if not axes.issuperset(self.made) or not axes <= {*self.made} | summed:
            raise NotLinear
        alone = frozenset[Axis]() if any(map(self.forms.recurs, given)) else summed
        if not read or {*axes_in(given)} - alone - {*read} != around:
            raise NotLinear
        made, channels = (row_major(each, self.forms.sizes) for each in (self.made, read))
        whole = self.forms.node(given, (*map(along, self._around), channels))
        return given, whole, self.forms.node(weights, (made, channels))

    def _is_read_whole(self, part: Operand) -> bool:
        """Whether a tensor is read along whole dimensions, each element once and in order: the kernel reads it so."""
        axes, same = [*axes_of(part.reads)], self.component.components.program.same
        pairs = zip(part.reads, part.node.shape, strict=True)
        return len({*axes}) == len(axes) and all(
            fills(entry, self.forms.sizes, length, same) for entry, length in pairs
        )

    @property
    def _around(self) -> list[Axis]:
        """The axes of the result that are no channels."""
        return [axis for axis in axes_of(self.left) if axis not in self.made]

    # ---- the kernel

    def kernel(self) -> tuple[Node, list[Node]]:
        """The result as the kernel computes it, and the nodes that its input and its starts are computed from."""
        gates, count = self._gates([*self._arguments()]), self.cell.gates
        taking, reading = (
            [each for each in gates if each.weight],
            [each for each in gates if each.state_weight],
        )
        (given, *others) = {each.given for each in taking} or [None]
        if given is None or others or taking != gates[:count] or reading != [*gates[: count - 1], gates[-1]]:
            raise NotLinear
        weights = [each.weight for each in taking if each.weight]
        state_weights = [each.state_weight for each in reading if each.state_weight]
        starts = [self.component.states[each].begin for each in reversed(self.states)]
        vectors = [[each.bias for each in taking]]
        inner = [None if each.weight else each.bias for each in reading]
        vectors += [inner] if any(inner) else []
        pairs = ([*zip(each, weights, strict=True)] for each in vectors if any(vectors[-1]) or any(each))
        biases = [[bias or _zeros(weight.shape[0]) for bias, weight in each] for each in pairs]
        made = self._called(
            given, [*map(self._stacked, (weights, state_weights))], starts, [*map(self._stacked, biases)]
        )
        return made, [*self.given, *starts]

    def _stacked(self, parts: Sequence[Node]) -> Node:
        """Matrices or vectors of the gates, one after another."""
        return concatenated(parts, 0, self.component.components.program.same)

    def _called(
        self, given: Node, weights: Sequence[Node], starts: Sequence[Node], biases: Sequence[Node]
    ) -> Node:
        """The result of the cell, computed by its kernel."""
        at, (rows, read), columns = self.component.labels[self.result], weights[0].shape, weights[1].shape[1]
        sizes = self.forms.sizes | {"rows": rows, "read": read, "columns": columns}
        first = self.left[:at] + self.left[at + 1 :]
        operands = [
            Operand(given, tuple(map(along, (*self._around, "read")))),
            Operand(weights[0], (along("rows"), along("read"))),
            Operand(weights[1], (along("rows"), along("columns"))),
            *(Operand(each, first) for each in starts),
            *(Operand(each, (along("rows"),)) for each in biases),
        ]
        back = (("back", number(1)),) if self.component.state.back else ()
        over = ("read", "rows", "columns")
        made = node(self.cell.kernel.name, sizes, operands, (self.left[at], *first), None, over, back)
        return moved_in(made, at)


def _zeros(length: Size) -> Node:
    return node("copy", {0: length}, [Operand(number(0))], (along(0),))
