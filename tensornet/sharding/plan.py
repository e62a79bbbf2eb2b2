"""Plans of sharded graphs: collectives with their bytes and seconds, the memory of a device, and alternatives."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..autodiff.activity import active, active_inside
from ..display import amount
from ..dtypes import itemsize
from ..errors import ShapeError
from ..frontend.elaborate_ir import Expressions, of_tensors
from ..graph.element_types import bytes_of
from ..graph.graph import Graph
from ..graph.shape_inference import dim_size
from ..ir.node import leaf
from ..language.equation import Equation
from ..language.expression import Call, Expression, free_axes, references, rename, show
from ..ops.collectives import COLLECTIVES, MESH, VJP
from ..planning.gradients import leaves_of
from ..planning.planner import with_functions
from ..planning.plans import CallStep, Plan
from ..sizes import evaluate
from .mesh import Mesh, Placement
from .sharded import AUTO, Shard, Sharded, shard_graph

STATES = 4
"""The arrays of the size of the parameters while Adam trains: values, gradients and two states."""


@dataclass(frozen=True)
class Collective:
    """A collective of a plan.

    Attributes:
        name: the collective, such as "all_reduce".
        axis: the name of the mesh axis.
        of: its operand, as text.
        bytes: the bytes that leave each device.
        seconds: its expected time.
        backward: whether it is one of the backward pass.
    """

    name: str
    axis: str
    of: str
    bytes: float
    seconds: float
    backward: bool


def collectives_of(local: Graph, mesh: Mesh, size: int, wrt: frozenset[str]) -> Counter[Collective]:
    """The collectives of a local graph that move bytes, and how often each runs in a step of training.

    Gradients that are always 0, such as that of `sign`, count too: autograd sends them.

    Args:
        local: the graph that each device runs.
        mesh: the mesh.
        size: the bytes of a number.
        wrt: the leaves that get gradients.
    """
    local, found = with_functions(local), Counter[Collective]()
    elements, known = of_tensors(local), frozenset(active(local, tuple(wrt), zeros=True))
    runs: dict[Expression, tuple[Equation, Call]] = {}  # equal ones run once
    for item in local.own:
        for part in item.parts:
            if isinstance(part, Call) and part.function in COLLECTIVES:
                axes = dict.fromkeys((*free_axes(part.arguments[0]), *part.axes))
                key = rename(part, {axis: f"a{n}" for n, axis in enumerate(axes)})
                runs.setdefault(key, (item, part))
    for item, part in runs.values():
        found.update(_of_call(local, item, part, mesh, elements, size, known))
    for call in local.calls:
        times = 1 if call.along is None else int(call.along.axis.size)
        first = frozenset(leaf for leaf, name in call.names().items() if name in known)
        later = frozenset(
            active_inside(call, known, zeros=True)
        )  # states change from the second iteration on
        for inner, count in ((first, 1), (later, times - 1)):
            each = collectives_of(call.graph, mesh, size, inner) if count else Counter()
            found.update({collective: n * count for collective, n in each.items()})
    return found


def _of_call(
    local: Graph, item: Equation, call: Call, mesh: Mesh, elements: Any, size: int, known: frozenset[str]
) -> Iterator[Collective]:
    """The collective of a call, and that of its backward pass."""
    (argument,), scope, expressions = call.arguments, local.scope(item), Expressions(local)
    for ref in references(argument):
        shape = [dim_size(dim) for dim in local.named[ref.name]]
        expressions.tensors[ref.name] = leaf("input", shape, elements[ref.name], n=ref.name)
    element = expressions.part(argument, scope).node.element
    lengths = {axis: evaluate(scope[axis], local.bound) for axis in free_axes(argument)}
    n, before = _operand(call, lengths, bytes_of(element, size))
    after = mesh.after(call.function, n, before)
    runs = [(call.function, before, False)]
    if any(ref.name in known for ref in references(argument)):
        runs.append((VJP[call.function], after, True))
    for name, operand, backward in runs:
        moved = mesh.moved(name, n, operand)
        if moved:
            of = show(argument)
            yield Collective(name, mesh.axes[n], of, moved, mesh.seconds(name, n, operand), backward)


def _operand(call: Call, lengths: Mapping[str, Any], size: int) -> tuple[int, float]:
    """The number of the mesh axis of a collective, and the bytes of its operand, given those of a number."""
    (told,), axes = dict(call.options)[MESH], free_axes(call.arguments[0])
    return int(getattr(told, "value", 0)), float(size * math.prod(int(lengths[axis]) for axis in axes))


@dataclass(frozen=True)
class ShardedPlan:
    """The plan of a graph on a mesh of devices.

    Attributes:
        sharded: the graph, that which each device runs, and the placements.
        make: makes the plan of a graph for one device.
        dtype: the element type.
        wrt: the leaves that get gradients.
        others: the same graph in other placements, by name.
    """

    sharded: Sharded
    make: Callable[[Graph, Mesh, Sequence[str]], Plan]
    dtype: str
    wrt: frozenset[str]
    others: Callable[[], tuple[tuple[str, Sharded], ...]] = tuple

    @functools.cached_property
    def collectives(self) -> Counter[Collective]:
        """The collectives of a step of training, forward and backward, and how often each runs."""
        return collectives_of(self.sharded.local, self.sharded.mesh, itemsize(self.dtype), self.wrt)

    @functools.cached_property
    def local(self) -> Plan:
        """The plan of each device, where collectives are steps with the bytes that leave it and their seconds."""
        made = self.make(self.sharded.local, self.sharded.mesh, sorted(self.wrt))
        return _priced(made, self.sharded.mesh)

    @property
    def moved(self) -> float:
        """The bytes that leave each device in a step of training."""
        return sum(each.bytes * times for each, times in self.collectives.items())

    @property
    def memory(self) -> int:
        """The bytes of the parameters on each device."""
        leaves = self.sharded.local.parameters
        return itemsize(self.dtype) * sum(
            math.prod(int(dim_size(dim)) for dim in leaf.dims) for leaf in leaves
        )

    @property
    def results_memory(self) -> int:
        """The bytes of the results on each device."""
        local, elements, size = self.sharded.local, of_tensors(self.sharded.local), itemsize(self.dtype)
        shapes = {name: map(dim_size, local.named[name]) for name in local.outputs}
        return sum(
            math.prod(int(evaluate(length, local.bound)) for length in shape) * bytes_of(elements[name], size)
            for name, shape in shapes.items()
        )

    @property
    def training_memory(self) -> int:
        """The bytes on each device before the backward pass: parameters, gradients, states, results and what is kept.

        What is kept is known with `training=True`.
        """
        return STATES * self.memory + self.results_memory + sum(size for _, size in self.local.kept)

    def placement(self, name: str) -> str:
        """A leaf with the mesh axes that divide each of its dimensions: `W[f:model,c]`."""
        found = next(each for each in self.sharded.graph.leaves if each.name == name)
        names = [
            "(" + ",".join(axis.name for axis in dim) + ")" if len(dim) > 1 else dim[0].name
            for dim in found.dims
        ]
        return f"{name}[{','.join(self._divided(names, self.sharded.places[name]))}]"

    def _divided(self, names: list[str], place: Placement) -> Iterator[str]:
        for d, name in enumerate(names):
            axes = [axis for axis, p in zip(self.sharded.mesh.axes, place, strict=True) if p == d]
            yield f"{name}:{'·'.join(axes)}" if axes else name

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        mesh = self.sharded.mesh
        yield f"plan for {mesh.size} devices, {mesh}, {self.dtype}"
        shown = Counter(_numberless(self.placement(leaf.name)) for leaf in self.sharded.graph.leaves)
        yield from (f"  {text}{f'  {times}×' if times > 1 else ''}" for text, times in shown.items())
        for backward in (False, True):
            rows = [(e, times) for e, times in self.collectives.items() if e.backward is backward]
            yield f"{'backward' if backward else 'forward'}:{'' if rows else ' no collectives'}"
            for each, times in rows:
                yield (
                    f"  {each.name:<20} {each.axis:<8} {each.of[:40]:<40}  {amount(each.bytes, 'B'):>9}"
                    f"  {amount(each.seconds, 's'):>9}{f'  {times}×' if times > 1 else ''}"
                )
        yield self._row("this plan")
        seen = {self.sharded.local}
        for name, other in self.others():
            if other.local not in seen:
                seen.add(other.local)
                row = replace(self, sharded=other)._row(name)
                yield f"{row}  ({other.seconds / self.sharded.seconds:.2f}× the time)"

    def _row(self, name: str) -> str:
        """The costs of a step of training on each device."""
        held, seconds = self.memory, amount(self.sharded.seconds, "s")
        return (
            f"     {name + ':':<16} {amount(self.moved, 'B')} sent by each device, {amount(held, 'B')} of parameters"
            f" ({amount(STATES * held, 'B')} with gradients and Adam), expected {seconds}"
        )


def sharded_plan(
    graph: Graph,
    mesh: Any,
    shard: Shard,
    links: Mapping[str, tuple[float, float]] | None,
    dtype: str,
    sizes: Mapping[str, int],
    wrt: str | Sequence[str] | None,
    make: Callable[[Graph, Mesh, Sequence[str]], Plan],
) -> ShardedPlan:
    """The plan of a graph on a mesh, with other placements as alternatives."""
    leaves = leaves_of(graph, wrt)
    made = functools.partial(shard_graph, graph, Mesh.of(mesh, links), dtype=dtype, sizes=sizes, wrt=leaves)

    def others() -> Iterator[tuple[str, Sharded]]:
        first = {leaf.dims[0][0].name for leaf in graph.inputs if leaf.dims}
        ways: dict[str, Shard] = {"least time": AUTO}
        ways |= {f"by {name}": {name: Mesh.of(mesh).axes} for name in sorted(first)}
        for name, way in ways.items():
            try:
                yield name, made(shard=way)
            except ShapeError:
                continue  # the mesh has more devices than the axis has positions

    return ShardedPlan(made(shard=shard), make, dtype, frozenset(leaves), lambda: tuple(others()))


def _numberless(text: str) -> str:
    """A placement without the numbers of blocks in its name."""
    name, bracket, rest = text.partition("[")
    return ".".join("*" if part.isdigit() else part for part in name.split(".")) + bracket + rest


def _priced(plan: Plan, mesh: Mesh) -> Plan:
    """A plan in which collectives cost what the mesh says."""

    def priced(step: Any) -> Any:
        if isinstance(step, CallStep):
            return replace(step, plan=_priced(step.plan, mesh))
        call = step.equation.right
        if not isinstance(call, Call) or call.function not in COLLECTIVES:
            return step
        lengths = {axis.name: axis.size for axis in step.axes}
        n, size = _operand(call, lengths, bytes_of(step.element, itemsize(plan.dtype)))
        moved, seconds = mesh.moved(call.function, n, size), mesh.seconds(call.function, n, size)
        return replace(step, bytes=round(moved), seconds=seconds)

    return replace(plan, steps=tuple(map(priced, plan.steps)))
