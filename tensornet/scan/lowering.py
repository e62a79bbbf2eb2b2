"""Scans: the strongly connected components of a graph as calls of a block along an axis.

    f[b,t,o] = sigmoid(x[b,t,i] * W[o,i] + previous[t](h[b,t,p]) * U[o,p])
    h[b,t,o] = f * …

A graph is cut at its states into basic blocks (`cut.py`). A strongly connected component holds the nodes that recur
along an axis: those between a state and its next value. Its operands and the readers of its results are no part of it.
It is rebuilt as a block, which computes one position from the inputs at that position and the previous states.

Tensors that do not recur leave the loop by construction (loop fission): they are computed for all positions at once.
Tensors without the axis, such as `U`, are constants of the block. Tensors that depend on constants alone are computed
before the loop.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from ..graph.graph import Apply, Graph
from ..graph.leaves import Along, Leaf
from ..graph.recurrences import is_step, strongly_connected
from ..graph.shape_inference import Axis as NamedAxis
from ..graph.shape_inference import Dim
from ..ir.equations import LEAVES, reads_of
from ..ir.node import (
    Affine,
    Axis,
    Entries,
    Gather,
    Node,
    Operand,
    along,
    axes_in,
    axes_of,
    gathered,
    leaf,
    met_axes,
    moved_in,
    node,
    order,
    over_others,
)
from ..ir.positions import held
from ..language.equation import Equation
from ..language.expression import Taken
from ..ops.table import Element
from ..passes.dead_code import eliminate_dead_code
from ..sizes import evaluate, name_of
from .cut import Cut, State, cut, put_together


class Components:
    """A program whose components become calls, one after another.

    Attributes:
        cut, graph: the graph, cut at calls and states.
        states: the states of recurrences, by their nodes.
        outputs: the required nodes, by name.
        names, axes: the names of nodes and of their axes.
        program: the program at first, whose inputs are leaves, results of calls, and states.
        leaves, calls: the present inputs, and the calls that compute some of them.
        new: the node that replaces each old one, rebuilt nodes included.
        results: the nodes that are required from outside.
        rank, readers: the place of each node in a topological order, and its readers.
        reading: the nodes that each node reads; for a state, the tensors that it holds.
        groups: the nodes, those that recur together in one group, each group after those that it reads.
        all: the components, each after those that it reads.
    """

    def __init__(self, found: Cut) -> None:
        self.cut, self.graph, self.program = found, found.graph, found.program
        self.leaves = dict(self.program.leaves)
        self.named = {**self.graph.named, **{each.name: each.dims for each in found.states.values()}}
        self.names = found.program.names.tensors | {each: known.name for each, known in self.leaves.items()}
        self.states, self.axes, self.calls = found.states, dict(found.program.names.axes), list[Apply]()
        self.taken = Taken(found.taken)
        self.numbers = itertools.count(len(self.leaves))
        asked = (*self.graph.outputs, *(n for call in self.graph.calls for n in call.reads))
        own = {each.name for each in self.leaves.values()} - {each.name for each in self.states.values()}
        self.outputs = {name: found.nodes[name] for name in asked if name not in own}
        self.results, self.new = frozenset(self.outputs.values()), dict[Node, Node]()
        self._find()

    def _find(self) -> None:
        """Finds the components and the readers of each node."""
        tied = [each for state in self.states.values() for each in (state.behind, state.begin)]
        around = order([*self.outputs.values(), *tied])
        self.reading = {each: each.children for each in around}
        self.reading |= {each: (state.behind, state.begin) for each, state in self.states.items()}
        self.groups = [*strongly_connected(self.reading)]
        groups = [{*each} for each in self.groups if len(each) > 1 or each[0] in self.reading[each[0]]]
        inside = {each: n for n, group in enumerate(groups) for each in group}
        pairs = ((each, child) for each in around for child in each.children if child in self.states)
        read = self.results | {child for each, child in pairs if inside.get(each) != inside.get(child)}
        wholes = (state.whole for each, state in self.states.items() if each in read)
        nodes = order([*self.outputs.values(), *tied, *wholes])
        self.rank = {each: n for n, each in enumerate(nodes)}
        self.readers: dict[Node, list[Node]] = {each: [] for each in nodes}
        for reader in nodes:
            for each in reader.children:
                self.readers[each].append(reader)
        self.all = [Component(self, group) for group in groups]

    # ---- names

    def asked(self, each: Node, stem: str) -> str:
        """The name of a node, which is required from here on; if it has none, the stem with a number."""
        if each not in self.names:
            self.names[each] = self.taken.numbered(stem)
        if each not in self.leaves:
            self.outputs[self.names[each]] = each
        return self.names[each]

    def call(self, call: Apply, results: Iterable[Node]) -> None:
        """Adds a call, whose results are inputs of the rest."""
        self.calls.append(call)
        for each, (name, dims) in zip(results, call.returned(self.graph.bound), strict=True):
            self.given(each, name, dims)

    def given(self, each: Node, name: str, dims: tuple[Dim, ...]) -> None:
        """Registers a node as an input."""
        self.leaves[each], self.names[each] = Leaf(name, "input", dims, holds=each.element), name

    def dims(self, each: Node) -> tuple[Dim, ...]:
        """The dimensions of a tensor, with names of axes."""
        called = self.axes.get(each, ())

        def axis(at: int) -> NamedAxis:
            size = each.sizes[at]
            return NamedAxis(called[at] if at < len(called) else name_of(size) or "n", size)

        pairs = zip(each.dims, each.shape, strict=True)
        own = (tuple(map(axis, axes or ())) or (NamedAxis(name_of(n) or "n", n),) for axes, n in pairs)
        return self.named.get(self.names.get(each, ""), tuple(own))

    def opened(self, sizes: Iterable[Any]) -> list[Any]:
        """Sizes, with known values put in."""
        return [evaluate(size, self.graph.bound) for size in sizes]

    # ---- replacing nodes

    def moved(self, each: Node) -> Node:
        """A node, rebuilt over the nodes that replace its operands."""
        for old in order([each], self.new):
            self.new[old] = over_others(old, self.new)
        return self.new[each]

    def replace(self, new: Mapping[Node, Node]) -> None:
        """Replaces nodes, states included."""
        for old, each in new.items():
            self.new[old] = self.moved(each)
            self.leaves.pop(old, None)

    def changed(self) -> Graph:
        """The graph with its calls; states that are not replaced are left as they are."""
        made, steps = self._equations([each for each in self.states if self.new.get(each, each) is each])
        items = put_together([*made.own, *steps, *self.graph.calls, *self.calls], told=False)
        sizes = tuple({**self.graph.bound, **made.bound}.items())
        return eliminate_dead_code(replace(self.graph, body=tuple(items), sizes=sizes))

    def part(self, name: str, each: Node, given: Iterable[Node], states: Iterable[Node] = ()) -> Graph:
        """The graph of one node, with some nodes as inputs, and some states left as they are."""
        other = copy.copy(self)
        other.names, other.leaves, other.taken = (
            dict(self.names),
            dict(self.program.leaves),
            Taken(self.taken),
        )
        other.outputs, other.new = {name: each}, {}
        for one in given:
            if one not in self.program.leaves:
                other.new[one] = made = leaf("input", one.shape, one.element, n=next(self.numbers))
                other.given(made, other.taken.fresh(f"{name}.given"), self.dims(one))
        found, steps = other._equations(states)
        body = tuple(put_together([*found.own, *steps]))
        read = {each for item in body for each in item.reads}.difference(*(item.defines for item in body))
        leaves = (known for known in other.leaves.values() if known.name in read)
        return Graph(tuple(leaves), body, (name,), found.sizes)

    def _equations(self, states: Iterable[Node]) -> tuple[Graph, list[Equation]]:
        """The equations of the required nodes, and of some states of recurrences that are left as they are."""
        steps = [self._step(each) for each in states]
        outputs = {name: self.moved(each) for name, each in self.outputs.items()}
        names, axes = dict(self.names), dict(self.axes)
        for old, each in self.new.items():
            if old is not each and old in names:
                names.setdefault(each, names[old])
            if old is not each and old in axes and old.sizes == each.sizes:
                axes.setdefault(each, axes[old])
        leaves = {each: known for each, known in self.leaves.items() if self.new.get(each, each) is each}
        return self.cut.printed(leaves, outputs, names, axes), steps

    def _step(self, each: Node) -> Equation:
        """The equation of a state of a recurrence that is left as it is."""
        state, name = self.states[each], self.names[each]
        behind = self.asked(state.behind, name)
        begin = self.asked(state.begin, f"{name}.start") if state.starts else ""
        return state.written(name, state.left, (state.axis,), behind, begin)


class Component:
    """The nodes that recur along an axis, and where each has the axis.

    Attributes:
        components: all components of the program.
        nodes: the nodes that are computed at each position; more can be taken.
        states: the states of the recurrence, and of others that recur at each position.
        outer: the states of the recurrence alone.
        labels: for each node and state, the dimension along the axis.
        axes: for each node, its number of the axis.
    """

    def __init__(self, components: Components, nodes: set[Node]) -> None:
        self.components = components
        self.states = {each: state for each, state in components.states.items() if each in nodes}
        self.nodes, self.readers = nodes.difference(self.states), components.readers
        self.outer = {each: state for each, state in self.states.items() if state.is_outer}
        self.labels = {each: state.at for each, state in self.outer.items()}
        self.axes, own = dict[Node, Axis](), self.in_order
        before = -1
        while before < len(self.labels):
            before = len(self.labels)
            for each in own:
                if each not in self.labels:
                    self._label_as_read(each)
            inner = ((each, self.labels.get(state.behind)) for each, state in self.states.items())
            self.labels |= {each: at for each, at in inner if at is not None and each not in self.outer}

    @property
    def state(self) -> State:
        """One of its states."""
        return next(iter(self.outer.values()))

    @property
    def length(self) -> Any:
        """The number of positions along the axis."""
        first = next(iter(self.outer))
        return first.shape[self.labels[first]]

    @property
    def in_order(self) -> list[Node]:
        """Its nodes, each after what it reads."""
        return sorted(self.nodes, key=self.components.rank.__getitem__)

    @property
    def starts(self) -> list[str]:
        """The names of the first values of its states, which are required from here on."""
        ask, names = self.components.asked, self.components.names
        return [ask(state.begin, f"{names[each]}.start") for each, state in self.outer.items()]

    def outside(self, each: Node) -> list[Node]:
        """The readers of a node or state that are no part of the component."""
        return [reader for reader in self.readers[each] if reader not in self.nodes]

    def is_read(self, each: Node) -> bool:
        """Whether a node or state is read outside of the component, or is a result."""
        return each in self.components.results or bool(self.outside(each))

    def _label_as_read(self, each: Node) -> None:
        """Labels a node with the axis of the component, if one of its operands is labelled."""
        found = (reads[self.labels[child]].axis for child, reads in reads_of(each) if child in self.labels)
        axis = next(found, None)
        if axis is not None:
            self._label(each, axis)

    def _label(self, each: Node, axis: Axis) -> None:
        self.axes[each] = axis
        self.labels[each] = next(d for d, entry in enumerate(each.result) if entry.axis == axis)

    def take(self, each: Node, axis: Axis) -> None:
        """Adds a node, to be computed position by position along one of its axes."""
        self.nodes.add(each)
        self._label(each, axis)

    def take_sources(self, is_source: Callable[[Node, Axis], bool]) -> None:
        """Takes the sources that only the component reads, and at its own position alone."""
        for reader in (waiting := self.in_order[::-1]):
            for child in dict.fromkeys(reader.children):
                if child in self.labels or not self.nodes.issuperset(self.readers[child]):
                    continue
                axes = {self._read_along(each, child) for each in self.readers[child]}
                axis = axes.pop() if len(axes) == 1 else None
                if axis is not None and is_source(child, axis):
                    self.take(child, axis)
                    waiting.append(child)

    def _read_along(self, reader: Node, child: Node) -> Axis | None:
        """The axis of an operand that is read at the reader's own position; None if other positions are read too."""
        axes = set[Axis | None]()
        for other, entries in reads_of(reader):
            if other is child:
                at = [d for d, entry in enumerate(entries) if self.axes[reader] in entry.axes]
                alone = len(at) == 1 and entries[at[0]].axis == self.axes[reader]
                own = child.dims[at[0]] if alone else None
                axes.add(own[0] if own is not None and len(own) == 1 else None)
        return axes.pop() if len(axes) == 1 else None


class Block:
    """A component at one position.

    Attributes:
        component: the component.
        made: the block's node for each node and state of the component.
        cuts, wholes: the inputs that are cut along a dimension, and those that are whole tensors.
        begins: the first values of states that recur at each position, by name.
        alone: whether products of inputs are computed position by position too.
        leaves, names, axes: the declarations of these inputs, and the names of the block's nodes and axes.
    """

    def __init__(self, component: Component, alone: bool) -> None:
        self.component, self.components, self.alone = component, component.components, alone
        self.numbers = itertools.count()
        self.leaves, self.names = dict[Node, Leaf](), dict[Node, str]()
        self.cuts, self.wholes = dict[tuple[Node, int], Node](), dict[Node, Node]()
        self.axes = dict[Node, tuple[str, ...]]()
        names, nodes = self.components.names, component.in_order
        self.stems = {each: names[each] for each in component.states}
        for each in reversed(nodes):
            self.stems[each] = names.get(each) or self.stems.get(each) or "v"
            for child in each.children:
                self.stems.setdefault(child, self.stems[each])
        self.made = {each: self._part(names[each], each, component.labels[each]) for each in component.states}
        for each in nodes:
            self.made[each] = self._made(each)
            if each in names:
                self.names.setdefault(self.made[each], names[each])
        inner = ((each, state) for each, state in component.states.items() if each not in component.outer)
        self.begins = {each: self._begin(each, state) for each, state in inner if state.starts}

    # ---- inputs

    def _given(self, name: str, each: Node, dims: tuple[Dim, ...], shape: Sequence[Any], kind: Any) -> Node:
        """A new input of the block."""
        made = leaf("input", shape, each.element, n=next(self.numbers))
        self.leaves[made], self.names[made] = Leaf(name, kind, dims, holds=each.element), name
        return made

    def _part(self, name: str, each: Node, at: int) -> Node:
        """A new input: a tensor at the position of the block."""
        dims, shape = self.components.dims(each), each.shape
        return self._given(name, each, dims[:at] + dims[at + 1 :], shape[:at] + shape[at + 1 :], "input")

    def _cut(self, each: Node, at: int, stem: str) -> Node:
        """The input for a tensor at the position of the block."""
        if (each, at) not in self.cuts:
            name = self.components.asked(each, stem)
            self.cuts[each, at] = self._part(self.components.taken.fresh(f"{name}.at"), each, at)
        return self.cuts[each, at]

    def _whole(self, each: Node, stem: str) -> Node:
        """The input for a tensor that does not depend on the axis."""
        if each.op in LEAVES and not is_sized(each):
            return each
        if each not in self.wholes:
            kind = "input" if each.element < Element.WIDE else "constant"
            name = self.components.asked(each, stem)
            self.wholes[each] = self._given(name, each, self.components.dims(each), each.shape, kind)
        return self.wholes[each]

    # ---- one node

    def _made(self, each: Node) -> Node:
        """A node at the position of the block."""
        at = self.component.labels[each]
        operands = [self._operand(each, operand) for operand in self._together(each)]
        result, shape = self._entries(each, each.result, at), each.shape[:at] + each.shape[at + 1 :]
        made = node(each.op, each.sizes, operands, result, shape, each.over, each.options)
        met, called = met_axes(operands, result, each.over), self.components.axes.get(each, ())
        if len(called) == len(each.sizes) and len(met) == len(made.sizes):
            self.axes.setdefault(made, tuple(called[axis] for axis in met))
        return made

    def _together(self, each: Node) -> Sequence[Operand]:
        """The operands of a node; those of a sum that do not recur are added before the loop, and those of a product
        multiplied that alone have an axis which it sums, unless their product has more axes than each of them."""
        labels, axis, operands = self.component.labels, self.component.axes[each], [*each.operands]

        def is_alone(operand: Operand) -> bool:
            return labels.keys().isdisjoint((operand.node, *gathered(operand.reads)))

        if each.op == "add":
            others = [operand for operand in operands if is_alone(operand)]
            if len(others) > 1 and not all(operand.node.is_scalar for operand in others):
                total = self._before("add", each, others, {*axes_in(others)})
                operands = [total, *(operand for operand in operands if operand not in others)]
        elif each.op == "contract" and not self.alone:
            for summed in {*range(len(each.sizes))}.difference(axes_of(each.result), (axis,)):
                having = [operand for operand in operands if summed in operand.axes]
                rest = [operand for operand in operands if operand not in having]
                kept = {axis, *axes_of(each.result), *axes_in(rest)}.intersection(axes_in(having))
                most = max((len({*operand.axes}) for operand in having), default=0)
                alone = all(map(is_alone, having))
                if len(having) > 1 and alone and axis in kept and len(kept) <= most:
                    operands = [*rest, self._before("contract", each, having, kept)]
        return operands

    def _before(self, op: str, each: Node, operands: Sequence[Operand], axes: Container[Axis]) -> Operand:
        """Operands of a node together, for all positions at once; the axis of the component comes first."""
        left = sorted(range(len(each.sizes)), key=lambda other: other != self.component.axes[each])
        own = tuple(along(other) for other in left if other in axes)
        return Operand(node(op, each.sizes, operands, own), own)

    def _operand(self, each: Node, operand: Operand) -> Operand:
        """An operand of a node at the position of the block."""
        child, reads = operand
        axis, stem = self.component.axes[each], self.stems[each]
        if child in self.made:
            return Operand(self.made[child], self._entries(each, reads, self.component.labels[child]))
        if child.is_scalar:
            return Operand(self._whole(child, stem)) if is_sized(child) else operand
        inner = [d for d, entry in enumerate(reads) if axis in entry.axes and not self._recurs(entry)]
        if not inner:
            return Operand(self._whole(child, stem), self._entries(each, reads))
        if len(inner) > 1 or reads[inner[0]].axis != axis:
            child, reads = self._picked(each, operand, inner)
            inner = [0]
        elif child not in self.components.names:
            child, reads = self._in_order_of(each, operand)
            inner = [d for d, entry in enumerate(reads) if entry.axis == axis]
        return Operand(self._cut(child, inner[0], stem), self._entries(each, reads, inner[0]))

    def _in_order_of(self, each: Node, operand: Operand) -> Operand:
        """An operand that is computed before the loop, with its dimensions in the order of its reader."""
        places = {entry.axis: d for d, entry in enumerate(each.result)}
        own = tuple(sorted(operand.reads, key=lambda entry: places.get(entry.axis, -1)))
        if own == operand.reads or not all(entry.axis in places for entry in own):
            return operand
        return Operand(node("copy", each.sizes, [operand], own), own)

    def _picked(self, each: Node, operand: Operand, inner: Sequence[int]) -> Operand:
        """An operand with the dimensions read along the loop's axis and others together gathered before the loop."""
        (child, reads), axis = operand, self.component.axes[each]
        axes = dict.fromkeys(axes_of(tuple(reads[d] for d in inner)))
        own = (axis, *(other for other in axes if other != axis))
        others = [d for d in range(len(reads)) if d not in inner]
        sizes = dict[Axis, Any](enumerate(each.sizes)) | {("of", d): child.shape[d] for d in others}
        picked = tuple(reads[d] if d in inner else along(("of", d)) for d in range(len(reads)))
        left = (*own, *(("of", d) for d in others))
        made = node("copy", sizes, [Operand(child, picked)], tuple(map(along, left)))
        return Operand(made, (*map(along, own), *(reads[d] for d in others)))

    def _recurs(self, entry: Affine | Gather) -> bool:
        """Whether a position is read from a node that recurs."""
        return any(each in self.made for each in gathered((entry,)))

    def _entries(self, each: Node, entries: Entries, at: int | None = None) -> Entries:
        """Positions in the block, without dimension `at`, its own; others along its axis are read from inputs."""
        return tuple(self._entry(each, entry) for d, entry in enumerate(entries) if d != at)

    def _entry(self, each: Node, entry: Affine | Gather) -> Affine | Gather:
        if isinstance(entry, Gather):
            return Gather(*self._operand(each, Operand(entry.node, entry.reads)))
        if self.component.axes[each] in entry.axes:
            return Gather(*self._operand(each, held(entry, each.sizes)))
        return entry

    # ---- equations

    def call(self, outputs: Mapping[str, Node], stems: Iterable[str]) -> Apply:
        """The call of the block along the axis.

        Args:
            outputs: the results of the block, by name.
            stems: the names of the results of the call, which may get numbers.
        """
        graph, component, names = self.graph(outputs), self.component, self.components.names
        given = [names[each] for each, _ in self.cuts] + component.starts
        given += [names[each] for each, made in self.wholes.items() if self.leaves[made].kind == "input"]
        along = Along(
            NamedAxis(component.state.axis, component.length),
            tuple(at for _, at in self.cuts),
            tuple([*outputs].index(self.named(state.behind)) for state in component.outer.values()),
            component.state.back,
        )
        return Apply(graph, tuple(given), tuple(map(self.components.taken.fresh, stems)), "", True, along)

    def graph(self, outputs: Mapping[str, Node]) -> Graph:
        """The block as a graph, whose inputs are cut tensors, states and whole tensors, with constants last.

        Args:
            outputs: its results, by name.
        """
        component = self.component
        steps = [self._step(each) for each in component.states if each not in component.outer]
        told = {name: each for _, nodes in steps for name, each in nodes.items() if each not in self.leaves}
        made = self.components.cut.printed(self.leaves, {**outputs, **told}, self.names, self.axes)
        body = put_together([*made.own, *(equation for equation, _ in steps)])
        sizes = tuple({**self.components.graph.bound, **made.bound}.items())
        firsts = (self.made[each] for each in component.outer)
        given = (self.leaves[each] for each in (*self.cuts.values(), *firsts, *self.wholes.values()))
        leaves = sorted(given, key=lambda known: known.kind == "constant")
        return Graph(tuple(leaves), tuple(body), tuple(outputs), sizes)

    def stacked(self, nodes: Iterable[Node]) -> dict[Node, Node]:
        """The results of a call for some nodes, with the axis first; those that are one node in the block share one."""
        found = dict[Node, Node]()
        for each in nodes:
            at, shape = self.component.labels[each], each.shape
            shape = (shape[at], *shape[:at], *shape[at + 1 :])
            result = leaf("input", shape, each.element, n=next(self.components.numbers))
            found.setdefault(self.made[each], result)
        return {each: found[self.made[each]] for each in nodes}

    def named(self, each: Node) -> str:
        """The block's name of a node of the component."""
        made = self.made[each]
        if made not in self.names:
            self.names[made] = self.components.taken.numbered(self.stems[each])
        return self.names[made]

    def _step(self, each: Node) -> tuple[Equation, dict[str, Node]]:
        """The equation of a state that recurs at each position, and the nodes that it refers to, by name."""
        state, at = self.component.states[each], self.component.labels[each]
        left, behind, begin = state.left, self.named(state.behind), self.begins.get(each)
        left = left[:at] + left[at + 1 :]
        told = {behind: self.made[state.behind], **dict([begin] if begin else [])}
        name = self.names[self.made[each]]
        return state.written(name, left, (state.axis,), behind, begin[0] if begin else ""), told

    def _begin(self, each: Node, state: State) -> tuple[str, Node]:
        """The first value, at the block's position, of a state that recurs at each position."""
        if state.begin in self.made:
            return self.named(state.begin), self.made[state.begin]
        at = self.component.labels[each]
        begin = self._cut(state.begin, at - (at > state.at), f"{state.name}.start")
        return self.names[begin], begin


def is_sized(number: Node) -> bool:
    """Whether a number is computed from sizes."""
    return any(each.op == "size" for each in order([number]))


Large: TypeAlias = "Callable[[Sequence[Any]], bool]"
"""Whether a tensor of these sizes is too large to be held whole."""


Kernel: TypeAlias = "Callable[[Component], Mapping[Node, Node]]"
"""The nodes that a kernel computes in place of nodes or states of a component; none where it does not apply."""


def lower_recurrences(
    graph: Graph, large: Large = lambda sizes: False, alone: bool = False, kernels: Sequence[Kernel] = ()
) -> Graph:
    """The graph with each recurrence replaced by a kernel or by a call along its axis, and with no steps left.

    Args:
        graph: the graph.
        large: whether a tensor of these sizes is too large to hold for all positions at once. The readers of such a
            tensor move into the loop if all of them compute smaller tensors from it.
        alone: whether products of inputs are computed position by position too, so that they are never held whole.
        kernels: what may compute a recurrence without a loop; the first that applies does.
    """
    if not any(map(is_step, (part for equation in graph.own for part in equation.parts))):
        return graph
    needed = graph.needed()
    body = tuple(item for item in graph.body if needed.intersection(item.defines))
    components = Components(cut(replace(graph, body=body)))
    for component in components.all:
        made = next(filter(None, (kernel(component) for kernel in kernels)), None)
        components.replace(made or _loop(component, large, alone))
        components.replace(
            {each: state.whole for each, state in component.states.items() if each not in components.new}
        )
    return components.changed()


def _loop(component: Component, large: Large, alone: bool) -> dict[Node, Node]:
    """The nodes that the call of a block along an axis computes in place of those of a component."""
    _take_readers_of_large(component, large)
    _take_what_comes_in(component, large, alone)
    components, block = component.components, Block(component, alone)
    following = [state.behind for state in component.outer.values()]
    behind = {state.behind for state in component.states.values()}
    nodes = [each for each in block.made if each in component.nodes | behind]
    stacked = block.stacked(nodes)
    joined = [each for each in stacked if component.is_read(each)]
    new = {each: _unstacked(component, each, stacked[each]) for each in joined}
    outputs = {block.named(each): block.made[each] for each in (*joined, *following)}
    call = block.call(outputs, dict.fromkeys(f"{block.named(each)}.along" for each in joined))
    components.call(call, dict.fromkeys(stacked[each] for each in joined))
    return new


def _unstacked(component: Component, each: Node, whole: Node) -> Node:
    """A node as a copy of the call's result for it, with the axes in the node's order."""
    made, names = moved_in(whole, component.labels[each]), component.components.axes
    own = [axes[0] for axes in each.dims if axes is not None and len(axes) == 1]
    if len(own) == len(each.shape) and len(called := names.get(each, ())) == len(each.sizes):
        names[made] = tuple(called[axis] for axis in own)
    return made


# ---------------------------------------------------------------------------- other nodes computed at each position


def _take_what_comes_in(component: Component, large: Large, alone: bool) -> None:
    """Takes products among the inputs that must not be held whole, and elementwise functions of them."""
    names = component.components.names

    def comes_in(each: Node, axis: int) -> bool:
        is_whole = _grows(component, each, large) or (alone and _is_alone(component, each, axis))
        return each not in names and is_whole

    component.take_sources(comes_in)


def _is_alone(component: Component, each: Node, axis: int) -> bool:
    """Whether an input is a contraction, or an elementwise function of one at the same position."""
    if each in component.components.names:
        return False
    if each.op == "contract" and len(each.sizes) > len(each.shape):
        return True
    pairs = (
        (child, dim)
        for child, reads in each.operands
        for dim, entry in zip(child.dims, reads, strict=True)
        if entry.axis == axis
    )
    pointwise = each.function.name and each.function.kind == "pointwise"
    return bool(pointwise) and any(
        _is_alone(component, child, dim[0]) for child, dim in pairs if dim and len(dim) == 1
    )


def _grows(component: Component, each: Node, large: Large) -> bool:
    """Whether a node is a large product of smaller factors, with no axis summed."""
    if each.op != "contract" or len(each.sizes) > len(each.shape) or None in each.dims:
        return False
    outer = all(len({*axes_of(reads)}) < len(each.sizes) for _, reads in each.operands)
    return outer and large(component.components.opened(each.shape))


def _take_readers_of_large(component: Component, large: Large) -> None:
    """Takes the readers of a large node if all of them compute smaller tensors from it."""
    kept, after = component.components.results, set[Node]()
    for each in component.in_order:
        outside = component.outside(each)
        if outside and each not in kept and large(component.components.opened(each.shape)):
            after = after or _after(component)
            axes = [_is_less(component, reader, each, after) for reader in outside]
            for reader, axis in zip(outside, axes, strict=True) if None not in axes else ():
                component.take(reader, axis)


def _after(component: Component) -> set[Node]:
    """The nodes that depend on a component and are no part of it."""
    hanging, reading = {*component.labels}, component.components.reading
    for group in component.components.groups:
        if not hanging.isdisjoint(child for each in group for child in reading[each]):
            hanging.update(group)
    return hanging.difference(component.labels)


def _is_less(component: Component, each: Node, large: Node, after: set[Node]) -> int | None:
    """The axis along which a node computes something smaller than a large one at each position; None if it does not."""
    inner = component.states.keys() - component.outer.keys()
    if not (after | inner).isdisjoint(each.children):
        return None
    axes = {
        reads[component.labels[child]].axis for child, reads in reads_of(each) if child in component.labels
    }
    axis = axes.pop() if len(axes) == 1 else None
    if axis is None or axis in each.over or [entry.axis for entry in each.result].count(axis) != 1:
        return None
    whole, own = (Counter(component.components.opened(made.shape)) for made in (large, each))
    return axis if own.total() < whole.total() and not own - whole else None
