"""Diagrams of graphs: tensors and operations as nodes, the axes that each tensor is read with on the edges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..graph.graph import Apply, Graph
from ..graph.recurrences import is_step
from ..graph.shape_inference import dim_size, index_of
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Ref,
    is_scalar,
    parts_of,
    show_entry,
    show_index,
)
from ..ops.along_axes import STEPS
from ..ops.structure import INDEX
from ..ops.table import FUNCTIONS
from ..sizes import evaluate, name_of

__all__ = ["Diagram", "Edge", "Node", "diagram_of"]

LONGEST = 48
"""The most characters in a line below a name."""

FEW = 4
"""The most results of a block that have an edge each to one reader."""


@dataclass(frozen=True)
class Node:
    """A node.

    Attributes:
        kind: "input", "parameter", "constant", "equation" or "block"; in a tensor network also "axis", which joins
            tensors or is open, and "text".
        title: its name.
        details: lines below the name.
        result: whether it is a result of the graph.
    """

    kind: str
    title: str
    details: tuple[str, ...] = ()
    result: bool = False

    @property
    def lines(self) -> tuple[str, ...]:
        """The name and the details."""
        return (self.title, *self.details)


@dataclass(frozen=True)
class Edge:
    """An edge, from a tensor to what reads it; in a tensor network between two that share an axis.

    Attributes:
        start, end: the nodes.
        label: the axes.
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


def diagram_of(graph: Graph, title: str = "") -> Diagram:
    """The diagram of a graph, with its calls of blocks folded, and those in a chain in one node."""
    runs = [*_runs(graph)]
    edges = tuple(_bundled(dict.fromkeys(_edges(graph, runs)), runs))
    read = {edge.start for edge in edges}
    nodes: dict[str, Node] = {}
    for leaf in graph.leaves:
        result = leaf.name in graph.outputs
        if leaf.name in read or result:
            index = show_index(index_of(leaf.dims))
            shown = _sizes(graph, leaf.name) or (f"[{index}]" if index else "")
            nodes[leaf.name] = Node(leaf.kind, leaf.name, _told(shown), result)
    names = graph.names_of_blocks()
    for run in runs:
        item = run.last
        result = any(name in graph.outputs for name in item.defines)
        if isinstance(item, Equation):
            left = f"{item.name}[{show_index(item.left)}]" if item.left else item.name
            told = _told(_done(item.right), _sizes(graph, item.name))
            nodes[item.name] = Node("equation", left, told, result)
        else:
            nodes[item.results[0]] = _of_call(graph, run, item, names[item.graph], result)
    return Diagram(title, nodes, edges)


@dataclass(frozen=True)
class _Run:
    """Lines of a graph in one node: an equation, a call, or calls of one block, each on the results of the one before.

    Attributes:
        first: the line whose operands the node reads.
        last: the line whose results it has.
        times: the number of lines.
    """

    first: Equation | Apply
    last: Equation | Apply
    times: int = 1


def _runs(graph: Graph) -> Iterator[_Run]:
    """The lines of a graph in runs, in order."""
    readers: dict[str, set[int]] = {}
    for number, item in enumerate(graph.body):
        read = item.operands if isinstance(item, Apply) else (ref.name for ref in item.references)
        for name in read:
            readers.setdefault(name, set()).add(number)
    run: _Run | None = None
    for number, item in enumerate(graph.body):
        alone = run is not None and all(
            readers.get(name, {number}) == {number} and name not in graph.outputs for name in run.last.defines
        )
        if run is not None and alone and _goes_on(run, item):
            run = _Run(run.first, item, run.times + 1)
            continue
        if run is not None:
            yield run
        run = _Run(item, item)
    if run is not None:
        yield run


def _goes_on(run: _Run, item: Equation | Apply) -> bool:
    """Whether a line is a call of the block of a run, with the same operands but those that the run passes on."""
    last, first = run.last, run.first
    if not (isinstance(item, Apply) and isinstance(last, Apply) and isinstance(first, Apply)):
        return False
    pairs = [*zip(last.operands, item.operands, strict=False)]
    return (
        (item.graph, item.along, bool(item.scope)) == (last.graph, last.along, bool(last.scope))
        and any(new in last.results for _, new in pairs)
        and all(old == new or new in last.results for old, new in pairs)
    )


def _told(*lines: str) -> tuple[str, ...]:
    """The lines that are not empty, cut where they are too long for a box."""
    return tuple(line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…" for line in lines if line)


def _of_call(graph: Graph, run: _Run, call: Apply, name: str, result: bool) -> Node:
    """The node of a call, or of a run: its scope, the block if it has another name, and the results."""
    assert isinstance(run.first, Apply)
    title = run.first.scope or name
    if run.times > 1 and call.scope:
        stem = call.scope.rpartition(".")[0]
        title += (
            f" … {call.scope.removeprefix(f'{stem}.') if title.rpartition('.')[0] == stem else call.scope}"
        )
    block = f"{run.times} × {name}(…)" if run.times > 1 else f"{name}(…)" if title != name else ""
    along = f"along {call.along.axis.name}" if call.along is not None else ""
    alone = len(call.results) == 1
    results = [_sizes(graph, each) if alone else _short(each, call.scope) for each in call.results]
    shown = ", ".join(results)
    told = shown if len(shown) <= LONGEST else f"{len(results)} results"
    return Node("block", title, _told(" ".join(filter(None, (block, along))), told), result)


def _short(name: str, scope: str) -> str:
    """A name without the scope that it is under."""
    return name.removeprefix(f"{scope}.")


def _done(right: Expression) -> str:
    """The operations of an equation: the functions that it applies to tensors, and the axes that it sums."""
    waiting, summed, called = [right], dict[str, None](), dict[str, None]()
    products = False
    while waiting:
        part = waiting.pop(0)
        if is_scalar(part) or isinstance(part, Ref):
            continue
        if isinstance(part, Contraction):
            summed.update(dict.fromkeys(part.summed))
            products |= sum(not is_scalar(each) for each in part.factors) > 1
        elif isinstance(part, Call):
            row = FUNCTIONS[part.function]
            if is_step(part) or part.function == INDEX.name:
                waiting += part.arguments
                continue
            over = f"[{','.join(part.axes)}]" if part.axes else ""
            called["÷" if row.name == "reciprocal" else row.infix or f"{row.name}{over}"] = None
        waiting += parts_of(part)
    words = [*called, *(["×"] if products else []), *([f"Σ {','.join(summed)}"] if summed else [])]
    return " ".join(words)


def _sizes(graph: Graph, name: str) -> str:
    """The sizes of a tensor, `b×4×8`, with an axis where the size is a formula; empty if none is known."""
    dims = graph.named[name]
    sizes = [evaluate(dim_size(dim), graph.bound) for dim in dims]
    shown = (
        str(size) if isinstance(size, int) or name_of(size) else entry
        for size, entry in zip(sizes, map(show_entry, index_of(dims)), strict=True)
    )
    return "×".join(shown) if any(isinstance(size, int) for size in sizes) else ""


def _edges(graph: Graph, runs: Iterable[_Run]) -> Iterator[Edge]:
    """The edges: an edge from each tensor to each reader, for each way in which the tensor is read."""
    made = {name: item for item in graph.body for name in item.defines}
    known = {leaf.name for leaf in graph.leaves}
    for run in runs:
        here = run.last.defines[0]
        for name, axes in _read(graph, run.first):
            start = made[name].defines[0] if name in made else name
            several = name in made and len(made[name].defines) > 1
            label = f"{_short(name, getattr(made[name], 'scope', ''))}[{axes}]" if several else axes
            yield Edge(start, here, label, name not in known)
        known.update(run.last.defines)


def _bundled(edges: Iterable[Edge], runs: Iterable[_Run]) -> Iterator[Edge]:
    """The edges, with one in place of those to one reader that has more than a few results of a block."""
    results = {run.last.defines[0]: len(run.last.defines) for run in runs}
    bundles: dict[tuple[str, str, bool], list[Edge]] = {}
    for edge in edges:
        bundles.setdefault((edge.start, edge.end, edge.back), []).append(edge)
    for (start, end, back), bundle in bundles.items():
        if len(bundle) > FEW and results.get(start, 1) > 1:
            yield Edge(start, end, f"{len(bundle)} results", back)
        else:
            yield from bundle


def _read(graph: Graph, item: Equation | Apply) -> Iterator[tuple[str, str]]:
    """The tensors that an equation or a call reads, and the axes that it reads each with."""
    if isinstance(item, Equation):
        yield from _shifted(item.right, {})
    else:
        for name in item.operands:
            yield name, show_index(index_of(graph.named[name]))


def _shifted(part: Expression, by: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """The tensors in a part of an equation, with the steps at which they are read: `h` with `b,t-1,p`."""
    if isinstance(part, Ref):
        entries = (f"{each}{by[each]:+d}" if each in by else each for each in part.index)  # type: ignore[index]
        yield part.name, show_index(tuple(entries))
    if isinstance(part, Call) and is_step(part):
        (axis,) = part.axes
        step = next(step for step, name in STEPS.items() if name == part.function)
        yield from _shifted(part.arguments[0], {**by, axis: by.get(axis, 0) + step})
        for start in part.arguments[1:]:
            yield from _shifted(start, by)
        return
    for each in parts_of(part):
        yield from _shifted(each, by)
