"""Basic blocks: a graph cut at its calls and at the states of its recurrences.

    h[t] = tanh(x[t] + h_1[t]),   h_1[t] = previous[t](h[t], h0)

The remaining program has no cycle. Its inputs are the results of calls and the states. Its outputs are the operands
of calls, and the tensors that states hold at another position. A step outside of a recurrence is no state: it becomes
a crop, joined with its start.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeGuard

from ..errors import EquationError, told_in
from ..frontend.elaborate_ir import Expressions, elaborated, moved, of_tensors, size_arguments
from ..graph.graph import Apply, Graph
from ..graph.leaves import Leaf
from ..graph.recurrences import calls_late, in_order, is_step
from ..graph.shape_inference import Axis as NamedAxis
from ..graph.shape_inference import Dim, Scope, axes_of_dims, dim_size
from ..ir.equations import scalar_expression
from ..ir.naming import Sizes, graph_of
from ..ir.node import Function, Names, Node, Operand, Size, along, cast, leaf, node, number, plain_reads
from ..ir.rewriting import Program
from ..language.equation import Equation
from ..language.expression import Call, Expression, Index, Literal, Ref, Taken, axes_of_index
from ..ops.along_axes import PREVIOUS
from ..ops.record import axes_in
from ..ops.structure import REPEAT
from ..ops.table import FUNCTIONS, RESERVED, Element
from ..sizes import evaluate, put_in, symbol


@dataclass(frozen=True, eq=False)
class State:
    """A state of a recurrence: a tensor at the position before each position, or after it.

    Attributes:
        name: its name.
        node: the input that stands for it.
        step: how it is read first: the function and the axis, under the axes of its reader.
        at: the dimension along which it recurs.
        dims: its dimensions, with names.
        behind: the tensor that it holds at another position.
        begin: its first value, without the axis.
        fill: the number that its first value is; None if that is a tensor.
        is_outer: whether it recurs along the axis of its recurrence, not at each position of that.
        readers: the names of the tensors whose equations read it.
    """

    name: str
    node: Node
    step: Call
    at: int
    dims: tuple[Dim, ...]
    behind: Node
    begin: Node
    fill: Node | None
    is_outer: bool
    readers: set[str] = field(default_factory=set)

    @property
    def left(self) -> tuple[str, ...]:
        """A name of an axis for each of its dimensions."""
        return axes_of_dims(self.dims)

    @property
    def axis(self) -> str:
        """The name of the axis along which it recurs."""
        return self.left[self.at]

    @property
    def back(self) -> bool:
        """Whether it runs from the last position to the first."""
        return self.step.function != PREVIOUS.name

    @functools.cached_property
    def whole(self) -> Node:
        """Its values at all positions, where the tensor behind it is known: with the start on one side, cropped on the
        other."""
        left = self.left
        behind, begin = Ref("behind", left), Ref("begin", left[: self.at] + left[self.at + 1 :])
        start = begin if self.fill is None else scalar_expression(self.fill)
        expressions = Expressions(None)
        for ref, each in ((behind, self.behind), (begin, self.begin)):
            expressions.reads[ref] = Operand(each, tuple(map(along, ref.index)))
        step = Call(self.step.function, (behind, start), (self.axis,))
        return expressions.value(moved(step), left, Scope(dict(zip(left, self.node.shape, strict=True))))

    @property
    def starts(self) -> bool:
        """Whether its first value is other than 0."""
        return self.fill is not number(0)

    def written(
        self, name: str, left: tuple[str, ...], over: tuple[str, ...], behind: str, begin: str = ""
    ) -> Equation:
        """The equation of the state under the names of a graph.

        Args:
            name, behind: the names of the state and of the tensor behind it.
            left, over: its axes, and the one along which it recurs.
            begin: the name of its first value; "" where this is a number.
        """
        own = tuple(axis for axis in left if axis not in over)
        starts = (Ref(begin, own),) if begin else self.step.arguments[1:]
        return Equation(name, left, Call(self.step.function, (Ref(behind, left), *starts), over))


@dataclass(frozen=True, eq=False)
class Cut:
    """The program that remains of a graph, and the states that are cut out.

    Attributes:
        graph: the graph.
        program: its equations; the results of calls and the states are inputs.
        states: by their inputs.
        nodes: the inputs, the results and the tensors of states, by name.
        taken: the names that new ones must differ from.
    """

    graph: Graph
    program: Program
    states: Mapping[Node, State]
    nodes: Mapping[str, Node]
    taken: Taken

    def printed(
        self,
        leaves: Mapping[Node, Leaf],
        outputs: Mapping[str, Node],
        names: Mapping[Node, str],
        axes: Mapping[Node, tuple[str, ...]],
        sizes: Sizes | None = None,
    ) -> Graph:
        """Nodes as a graph of equations.

        Args:
            leaves: the inputs and constants.
            outputs: the required nodes, by name.
            names, axes: the names of nodes, and of their axes.
            sizes: the names that determine sizes, which graphs that are joined share.
        """
        tensors = {each: name for each, name in names.items() if each not in leaves or each.op == "constant"}
        told = Names(tuple(leaves.values()), tuple(outputs), self.graph.sizes, tensors, dict(axes))
        free = tuple(each for each, known in leaves.items() if known.value is None)
        return graph_of(Function(free, tuple(outputs.values()), self.program.function.sizes), told, sizes)


@functools.lru_cache(maxsize=64)
def cut(graph: Graph, in_numbers: bool = False) -> Cut:
    """Cuts a graph at its calls and states. With `in_numbers`, each size that has a value becomes a number."""
    elements, expressions = of_tensors(graph), _Stateful(graph)
    if in_numbers:
        expressions.formulas = {name: evaluate(symbol(name), graph.bound) for name in graph.bound}
    results = (name for call in graph.calls for name in call.results)
    leaves = [replace(each, holds=elements[each.name]) for each in graph.leaves]
    leaves += [Leaf(name, "input", graph.named[name], holds=elements[name]) for name in results]
    own = in_order(graph.own, graph.recurrences)
    inputs, tensors = elaborated(expressions, leaves, elements, own, _shapes(graph))
    nodes = {each.name: expressions.tensors[each.name] for each in leaves}
    known = {each: name for name, each in nodes.items()} | tensors
    states = {each.node: each for each in expressions.defined_states(known)}
    called = (name for call in graph.calls for name in call.reads)
    outputs = {name: expressions.tensors[name] for name in (*graph.outputs, *called) if name not in nodes}
    held = [each.behind for each in states.values()]
    held += [each.begin for each in states.values() if each.fill is None]
    outputs |= {known[each]: each for each in held if each.op not in ("input", "constant")}
    leaves += [Leaf(each.name, "input", each.dims, holds=each.node.element) for each in states.values()]
    tensors = {each: name for each, name in known.items() if each.op != "input"}
    names = Names(tuple(leaves), tuple(outputs), graph.sizes, tensors, expressions.axes)
    function = Function((*inputs, *states), tuple(outputs.values()), size_arguments(graph))
    nodes |= {each.name: each.node for each in states.values()} | outputs
    return Cut(graph, Program(function, names), states, nodes, expressions.taken)


class _Stateful(Expressions):
    """Elaborates equations in which recurrences read other positions from states."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.source, self.elements = graph, of_tensors(graph)
        self.groups = {name: group for group in graph.recurrences for name in group.names}
        self.taken = Taken({*graph.named, *graph.bound, *graph.open_sizes, *FUNCTIONS, *RESERVED})
        self.reader = ""
        self.later, self.called = dict[str, Node](), dict[Node, tuple[str, tuple[Dim, ...]]]()
        self.states = dict[Any, State]()

    def define(self, equation: Equation) -> Node:
        """Converts an equation, which may read states."""
        self.reader = equation.name
        return super().define(equation)

    def part(self, part: Expression, scope: Scope) -> Operand:
        """Converts a part of an expression; a step of a recurrence becomes a state."""
        return self._state(part, scope)[0] if self._recurs(part) else super().part(part, scope)

    def value(self, part: Expression, left: Any, scope: Scope) -> Node:
        """Converts an expression; a step of a recurrence becomes a copy of a state."""
        if self._recurs(part):
            return self._made("copy", (part,), left, scope)
        return super().value(part, left, scope)

    def defined_states(self, names: dict[Node, str]) -> Iterator[State]:
        """The states, once all tensors are defined; `names` gets the names of the tensors that only states need."""
        now = {later: self.tensors[name] for name, later in self.later.items()}
        for each in self.states.values():
            behind = now.get(each.behind, each.behind)
            names.setdefault(behind, self.called[each.behind][0])
            if each.fill is None:
                names.setdefault(each.begin, self.taken.fresh(f"{each.name}.begin"))
            yield replace(each, behind=behind)

    def _recurs(self, part: Expression) -> TypeGuard[Call]:
        """Whether a part is a step of the recurrence whose equation it is in."""
        group = self.groups.get(self.reader)
        if group is None or not isinstance(part, Call) or not is_step(part):
            return False
        return any(ref.name in group.names for ref in part.arguments[0].references)

    def _state(self, step: Call, scope: Scope) -> tuple[Operand, tuple[Index, ...]]:
        """The state that a step reads, and its index."""
        (behind, reads), index = self._behind(step, scope)
        at, (name, dims) = index.index(step.axes[0]), self.called[behind]
        left, shape = index[:at] + index[at + 1 :], behind.shape[:at] + behind.shape[at + 1 :]
        start = (*step.arguments[1:], Literal(0))[0]
        fill, begin = self._begin(name, start, left, shape, scope)
        element = FUNCTIONS[step.function].element([behind.element, begin.element], list)
        if begin.element is not element and element >= Element.WIDE:
            begin = cast(begin, element)
        key = behind, at, step.function, begin
        if key not in self.states:
            name = self.taken.fresh(f"{name}.{step.function}")
            made = leaf("input", behind.shape, element, n=f"@{name}")
            self.called[made] = name, dims
            is_outer = step.axes[0] == self.groups[self.reader].labels[self.reader]
            self.states[key] = State(name, made, step, at, dims, behind, begin, fill, is_outer)
        self.states[key].readers.add(self.reader)
        return Operand(self.states[key].node, reads), index

    def _behind(self, step: Call, scope: Scope) -> tuple[Operand, tuple[Index, ...]]:
        """What a step reads, and its index, which has the axis as an entry; a tensor may be defined later."""
        part, (axis,) = step.arguments[0], step.axes
        index: tuple[Index, ...] = ()
        if self._recurs(part):
            read, index = self._state(part, scope)
        elif isinstance(part, Ref):
            read, index = self._later(part, scope), part.index
        if index.count(axis) != 1 or axis in axes_of_index(tuple(each for each in index if each != axis)):
            index = axes = part.free_axes
            read = Operand(self.value(part, axes, scope), tuple(map(along, axes)))
            dims = tuple((NamedAxis(each, scope[each]),) for each in axes)
            self.called.setdefault(read.node, (self.taken.numbered(self.reader), dims))
        return read, index

    def _later(self, ref: Ref, scope: Scope) -> Operand:
        """A recurrent tensor, which may be defined later."""
        if ref.name not in self.later:
            dims = self.source.named[ref.name]
            shape = [self.size(dim_size(dim)) for dim in dims]
            self.later[ref.name] = made = leaf("input", shape, self.elements[ref.name], n=f"@{ref.name}")
            self.called[made] = ref.name, dims
        node = self.later[ref.name]
        entries = zip(ref.index, node.shape, strict=True)
        return Operand(node, tuple(self._entry(entry, length, scope) for entry, length in entries))

    @told_in("recurrences")
    def _begin(
        self, name: str, start: Expression, left: tuple[Index, ...], shape: Sequence[Size], scope: Scope
    ) -> tuple[Node | None, Node]:
        """The number that a start is, if it is one; and the first value of a state, in the order of its dimensions.

        Args:
            name: the tensor that the state holds at another position.
            start, scope: the start, and the sizes of its axes.
            left, shape: the axes of the first value, and their sizes.
        """
        fill = self.scalar(start, scope) if start.is_scalar else None
        if fill is not None:
            begin = node("copy", shape, [Operand(fill)], plain_reads(len(shape)))
        else:
            flat = axes_in(left)
            if len({*flat}) < len(flat) or not all(isinstance(axis, str) for axis in flat):
                fix = "read it under axes of its own, in a line of its own"
                raise EquationError(f"'{name}' has a start, and is read in parts", start.place, fix)
            for axis in sorted({*axes_of_index(left)}.difference(start.free_axes)):
                start = Call(REPEAT.name, (start,), (axis,))
            begin = self.value(start, left, scope)
        return fill, begin


def _shapes(graph: Graph) -> Mapping[str, tuple[Any, ...]]:
    """The shapes of the leaves, those of called blocks included, in the sizes of the graph."""
    shapes = {each.name: each.shape for each in graph.leaves}
    for call in graph.calls:
        local = call.graph.sizes_beside(graph.bound)
        inner = _shapes(call.graph)
        for each in call.graph.leaves:
            if each.kind != "input":
                shapes[call.scoped(each.name)] = tuple(put_in(length, local) for length in inner[each.name])
    return shapes


# ---------------------------------------------------------------------------- put together again

Item: TypeAlias = "Equation | Apply"


def put_together(items: Sequence[Item], told: bool = True) -> Iterator[Item]:
    """Equations and calls in topological order, except that a step may precede the tensor that it shifts.

    Args:
        items: the equations and calls.
        told: whether calls stay in their order, and come as late as possible.
    """
    makers = {name: item for item in items for name in item.defines}
    return calls_late(
        items, lambda item: _before(item, makers), lambda item: told and isinstance(item, Apply)
    )


def _before(item: Item, makers: Mapping[str, Item]) -> list[Item]:
    """The items that an item must follow; for a step, those that its start reads and other steps."""
    found = [makers[name] for name in item.reads if name in makers]
    if isinstance(item, Apply) or not isinstance(item.right, Call) or not is_step(item.right):
        return found
    begun = {ref.name for start in item.right.arguments[1:] for ref in start.references}
    return [
        each
        for each in found
        if not begun.isdisjoint(each.defines) or (isinstance(each, Equation) and is_step(each.right))
    ]
