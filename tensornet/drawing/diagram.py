"""Diagrams of graphs: tensors and operations as nodes, the axes that each tensor is read with on the edges.

A product of tensors is a tensor network, in the notation of Penrose 1971: tensors as nodes that share axes, with the
axes of the result as open legs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

from ..graph.graph import Apply, Graph
from ..graph.recurrences import is_step
from ..graph.shape_inference import dim_size, index_of
from ..language.equation import Equation
from ..language.expression import Call, Contraction, Expression, Ref, show_index, terms_in
from ..ops.along_axes import PREVIOUS
from ..ops.structure import INDEX
from ..ops.table import FUNCTIONS
from ..sizes import evaluate, name_of

Line: TypeAlias = "Equation | Apply"

LONGEST = 48
"""The most characters in a line below a name."""

FEW = 4
"""The most results of a block whose axes an edge shows; of more, it shows the number."""


@dataclass(frozen=True)
class Node:
    """A node.

    Attributes:
        kind: "input", "parameter", "constant", "equation" or "block"; in a tensor network also "axis", which joins
            tensors or is open, and "leg".
        lines: its name, and below it its operations or its sizes.
        result: whether it is a result of the graph.
    """

    kind: str
    lines: tuple[str, ...]
    result: bool = False


@dataclass(frozen=True)
class Edge:
    """An edge, from a tensor to what reads it; in a tensor network between two that share an axis.

    Attributes:
        start, end: the nodes.
        label: the axes, in a line for each way in which the tensor is read.
        back: whether the tensor is read at another position and is defined below, or is the reader itself.
    """

    start: str
    end: str
    label: str
    back: bool = False


@dataclass(frozen=True)
class Diagram:
    """Nodes and edges.

    Attributes:
        title: what is above it; empty for none.
        nodes: the nodes by name.
        edges: the edges.
        directed: whether edges lead from tensors to their readers, in layers; otherwise it is a tensor network.
    """

    title: str
    nodes: Mapping[str, Node]
    edges: tuple[Edge, ...]
    directed: bool = True

    @property
    def ends(self) -> list[tuple[int, int]]:
        """The numbers of the nodes of each edge."""
        number = {name: n for n, name in enumerate(self.nodes)}
        return [(number[edge.start], number[edge.end]) for edge in self.edges]


def diagram_of(graph: Graph, title: str = "") -> Diagram:
    """The diagram of a graph, with its calls of blocks folded, and those in a chain in one node."""
    runs = _runs(graph)
    edges = tuple(_edges(graph, runs))
    shown, names = {edge.start for edge in edges}.union(graph.outputs), graph.names_of_blocks()
    nodes: dict[str, Node] = {}
    for leaf in (leaf for leaf in graph.leaves if leaf.name in shown):
        index = f"[{show_index(index_of(leaf.dims))}]"
        lines = _told(leaf.name, _sizes(graph, leaf.name) or index.replace("[]", ""))
        nodes[leaf.name] = Node(leaf.kind, lines, leaf.name in graph.outputs)
    for run in runs:
        item = run[-1]
        if isinstance(item, Equation):
            kind, lines = "equation", _told(_left(item), _operations(item.right), _sizes(graph, item.name))
        else:
            kind, lines = "block", _told(*_of_call(graph, run, item, names[item.graph]))
        nodes[item.defines[0]] = Node(kind, lines, not set(graph.outputs).isdisjoint(item.defines))
    return Diagram(title, nodes, edges)


def _left(equation: Equation) -> str:
    return f"{equation.name}[{show_index(equation.left)}]" if equation.left else equation.name


def _runs(graph: Graph) -> list[list[Line]]:
    """The lines of a graph in order; calls of one block, each on the results of the one before, are together."""
    readers = Counter(name for item in graph.body for name in {*item.operands})
    readers.update(graph.outputs)
    runs = list[list[Line]]()
    for item in graph.body:
        if runs and _goes_on(runs[-1][-1], item, readers):
            runs[-1].append(item)
        else:
            runs.append([item])
    return runs


def _goes_on(last: Line, item: Line, readers: Mapping[str, int]) -> bool:
    """Whether a line calls the block of the one before, and alone reads its results, which it has as operands."""
    if not (isinstance(item, Apply) and isinstance(last, Apply)):
        return False
    pairs = [*zip(last.operands, item.operands, strict=False)]
    passed = [new for _, new in pairs if new in last.results]
    return (
        (item.graph, item.along, bool(item.scope)) == (last.graph, last.along, bool(last.scope))
        and bool(passed)
        and all(old == new or new in passed for old, new in pairs)
        and all(readers[name] == (name in passed) for name in last.results)
    )


def _told(*lines: str) -> tuple[str, ...]:
    """The lines that are not empty, cut where they are too long for a box."""
    return tuple(line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…" for line in lines if line)


def _of_call(graph: Graph, run: Sequence[Line], call: Apply, name: str) -> tuple[str, str, str]:
    """The text for a call, or for a run of calls: its scope, the block if it has another name, and the results."""
    first = getattr(run[0], "scope", "") or name
    title, block = first, f"{name}(…)" if first != name else ""
    if len(run) > 1:
        block = f"{len(run)} × {name}(…)"
        stem = first.rpartition(".")[0]
        title += f" … {call.scope.removeprefix(f'{stem}.')}" if call.scope else ""
    along = f"along {call.along.axis.name}" if call.along is not None else ""
    results = [name.removeprefix(f"{call.scope}.") for name in call.results]
    told = _sizes(graph, call.results[0]) if len(results) == 1 else ", ".join(results)
    return title, f"{block} {along}".strip(), told if len(told) <= LONGEST else f"{len(results)} results"


def _operations(right: Expression) -> str:
    """The operations of an equation: the functions that it applies to tensors, and the axes that it sums."""
    summed, called, products = dict[str, None](), dict[str, None](), False
    for part in right.subexpressions:
        if isinstance(part, Contraction) and not part.is_scalar:
            summed.update(dict.fromkeys(part.summed))
            products |= sum(not each.is_scalar for each in part.factors) > 1
        elif isinstance(part, Call) and not (part.is_scalar or is_step(part) or part.function == INDEX.name):
            row = FUNCTIONS[part.function]
            over = f"[{','.join(part.axes)}]" if part.axes else ""
            called["÷" if row.name == "reciprocal" else row.infix or f"{row.name}{over}"] = None
    return " ".join([*called, *["×"] * products, *[f"Σ {','.join(summed)}"] * bool(summed)])


def _sizes(graph: Graph, name: str) -> str:
    """The sizes of a tensor, `b×4×8`; an axis where the size is a formula or another axis's. Empty if none is known."""
    dims = graph.named[name]
    others = {axis.name for each in graph.named.values() for dim in each for axis in dim}
    sizes = [evaluate(dim_size(dim), graph.bound) for dim in dims]
    axes = [show_index((entry,)) for entry in index_of(dims)]
    shown = (
        str(n) if isinstance(n, int) or (name_of(n) or axis) not in others else axis
        for n, axis in zip(sizes, axes, strict=True)
    )
    return "×".join(shown) if any(isinstance(size, int) for size in sizes) else ""


def _edges(graph: Graph, runs: Iterable[Sequence[Line]]) -> Iterator[Edge]:
    """An edge from each tensor to each reader; with no axes where it has many results of a block."""
    made = {name: item for item in graph.body for name in item.defines}
    known = {leaf.name for leaf in graph.leaves}
    for run in runs:
        first, found = run[0], dict[tuple[tuple[str, ...], bool], dict[str, None]]()
        given = ((name, show_index(index_of(graph.named[name]))) for name in first.operands)
        read = _shifted(first.right, {}) if isinstance(first, Equation) else given
        for name, axes in read:
            results = made[name].defines if name in made else (name,)
            short = name.removeprefix(f"{getattr(made.get(name), 'scope', '')}.")
            label = axes if len(results) == 1 else f"{short}[{axes}]"
            found.setdefault((results, name not in known), {})[label] = None
        for (results, back), labels in found.items():
            many = len(labels) > FEW and len(results) > 1
            label = f"{len(labels)} results" if many else "\n".join(labels)
            yield Edge(results[0], run[-1].defines[0], label, back)
        known.update(run[-1].defines)


def _shifted(part: Expression, by: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """The tensors in a part of an equation, with the steps at which they are read: `h` with `b,t-1,p`."""
    if isinstance(part, Ref):
        entries = (f"{each}{by[each]:+d}" if each in by else each for each in part.index)  # type: ignore[index]
        yield part.name, show_index(tuple(entries))
    parts = part.parts
    if isinstance(part, Call) and is_step(part):
        axis, step = part.axes[0], -1 if part.function == PREVIOUS.name else 1
        yield from _shifted(parts[0], {**by, axis: by.get(axis, 0) + step})
        parts = parts[1:]
    for each in parts:
        yield from _shifted(each, by)


def networks_of(graph: Graph) -> tuple[Diagram, ...]:
    """The networks of the terms of a graph's one equation; nothing if it is no product of tensors, or a sum of such."""
    if len(graph.body) != 1 or not isinstance(graph.body[0], Equation):
        return ()
    equation = graph.body[0]
    products = [
        term.factors if isinstance(term, Contraction) else (term,) for term in terms_in(equation.right)
    ]
    networks = [[factor for factor in factors if _is_node(factor)] for factors in products]
    if [*map(len, networks)] != [*map(len, products)] or max(map(len, networks)) < 2:
        return ()
    return tuple(_network(graph, equation, each) for each in networks)


def _is_node(factor: Expression) -> TypeGuard[Ref]:
    """Whether a factor is a tensor with axes alone, each once, whether of their own or in composites."""
    if not isinstance(factor, Ref) or not all(isinstance(entry, str | tuple) for entry in factor.index):
        return False
    count = sum(len(entry) if isinstance(entry, tuple) else 1 for entry in factor.index)
    return len(factor.free_axes) == count


def _network(graph: Graph, equation: Equation, factors: Sequence[Ref]) -> Diagram:
    kinds = {leaf.name: leaf.kind for leaf in graph.leaves}
    nodes: dict[str, Node] = {}
    holders: dict[str, list[str]] = {}
    for factor in factors:
        name = factor.name if factor.name not in nodes else f"{factor.name} {len(nodes)}"
        nodes[name] = Node(kinds[factor.name], (factor.name,))
        for axis in factor.free_axes:
            holders.setdefault(axis, []).append(name)
    scope, edges = graph.scope(equation), list[Edge]()
    for axis, names in holders.items():
        size, is_open = evaluate(scope[axis], graph.bound), axis in equation.kept
        label = f"{axis}:{size}" if isinstance(size, int) else axis
        if len(names) == 2 and not is_open:
            edges.append(Edge(names[0], names[1], label))
            continue
        joined, several = f"[{axis}]", len(names) > 1
        nodes[joined] = Node("axis" if several else "leg", (label if is_open or several else f"Σ {label}",))
        edges += [Edge(name, joined, "") for name in names]
        if is_open and several:
            nodes[f"{joined} open"] = Node("leg", ())
            edges.append(Edge(joined, f"{joined} open", ""))
    return Diagram(_left(equation), nodes, tuple(edges), directed=False)
