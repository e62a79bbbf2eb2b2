"""Sharding: a graph divided on a mesh, as a value, and its plan.

A plan of a sharded graph tells the collectives with their bytes and seconds, the memory of a device, and alternatives.
"""

from __future__ import annotations

import fnmatch
import functools
import math
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ..autodiff.activity import active, active_inside
from ..display import amount
from ..dtypes import element_type, itemsize
from ..errors import ShapeError, TensornetWarning, near, warn
from ..frontend.elaborate_ir import Expressions, of_tensors
from ..frontend.instantiate import instance, names_of_sizes
from ..graph.argument_shapes import sizes_from_shapes
from ..graph.element_types import bytes_of
from ..graph.formulas import parameter_count
from ..graph.graph import Graph
from ..graph.leaves import Leaf, scoped
from ..graph.shape_inference import Axis, dim_size
from ..ir.node import leaf
from ..language.equation import Equation
from ..language.expression import ELLIPSIS, Call, Expression, rename, show
from ..ops.collectives import COLLECTIVES, MESH, VJP
from ..planning.gradients import leaves_of
from ..planning.planner import NOMINAL, whole_sizes, with_functions
from ..planning.plans import CallStep, Plan
from ..sizes import evaluate, symbol
from .local import local_graph
from .mesh import Mesh, Placement
from .part import Asked, Part, in_loops, part_of
from .search import CostTable, Variable, eliminated

Shard: TypeAlias = "Mapping[str, Any] | str"
"""Axes and the mesh axes that divide them; patterns of scopes and such a mapping for these blocks; or "auto"."""

AUTO = "auto"
"""What leaves all placements to the search."""


LEAD = "lead"
"""The first of the axes that `...` stands for."""


@dataclass(frozen=True)
class Sharded:
    """A graph divided on a mesh.

    Attributes:
        graph: the graph, with numbers for its sizes.
        local: the graph that each device runs.
        mesh: the mesh.
        places: the placement of each input, parameter and constant, by name.
        results: the placement of each output.
        seconds: the expected time of a step forward and backward, by which the placements were chosen.
    """

    graph: Graph
    local: Graph
    mesh: Mesh
    places: Mapping[str, Placement]
    results: tuple[Placement, ...]
    seconds: float


def shard_graph(
    graph: Graph,
    mesh: Any,
    shard: Shard = AUTO,
    links: Mapping[str, tuple[float, float]] | None = None,
    dtype: str = "float32",
    sizes: Mapping[str, int] = {},
    shapes: Mapping[str, Sequence[int]] = {},
    wrt: Sequence[str] | None = None,
    kept: Mapping[str, Placement] = {},
) -> Sharded:
    """Divides a graph on a mesh.

    Args:
        graph: a layer or a model.
        mesh: names and sizes of the axes of the mesh, or a mesh of torch or JAX.
        shard: what is divided along which axis of the mesh; "auto" chooses.
        links: bytes a second and seconds of latency along each axis of the mesh.
        dtype: the element type, for costs.
        sizes: the values of open sizes; those that are missing are assumed.
        shapes: the shapes of inputs, by name, which determine open sizes as well. If an axis of these does not divide,
            as in the last batch of an epoch, it is whole, with a warning.
        wrt: the parameters and inputs that get gradients, by default all parameters.
        kept: the placements of parameters that have one already.

    Raises:
        ShapeError: there is no such axis, or its size does not divide.
    """
    divided = Mesh.of(mesh, links)
    whole = in_numbers(graph, sizes, shapes, math.lcm(NOMINAL, divided.size))
    rules = replace(_rules(shard, divided), kept=tuple(kept.items()))
    _check(whole, rules, divided, shapes.keys())
    leaves = frozenset(leaf.name for leaf in whole.parameters) if wrt is None else frozenset(wrt)
    return _sharded(whole, divided, rules, leaves, itemsize(element_type(dtype)))


def in_numbers(
    graph: Graph, sizes: Mapping[str, int], shapes: Mapping[str, Sequence[int]] = {}, assumed: int = NOMINAL
) -> Graph:
    """The graph with a number for each size; those that are not given are assumed."""
    leaves = [leaf for leaf in graph.leaves if leaf.name in shapes]
    begins = any(dim[0].name == ELLIPSIS for leaf in graph.leaves for dim in leaf.dims)
    leads = (_lead(leaf, shapes[leaf.name]) for leaf in leaves)
    lead = next((lead for lead in leads if lead is not None), (assumed,) if begins else None)
    told = sizes_from_shapes(graph, leaves, [tuple(shapes[leaf.name]) for leaf in leaves])
    given = whole_sizes(graph, {**told, **sizes})
    known = {**graph.bound, **{name: given.get(name, assumed) for name in graph.open_sizes}}
    values = {name: evaluate(symbol(name), known) for name in names_of_sizes(graph)}
    axes = (
        None
        if lead is None
        else tuple(Axis(LEAD + (f"_{n}" if n else ""), size) for n, size in enumerate(lead))
    )
    return instance(graph, values, lead=axes)


def _lead(leaf: Leaf, shape: Sequence[int]) -> tuple[int, ...] | None:
    """The sizes of the axes that `...` stands for, if a leaf begins with them."""
    begins = bool(leaf.dims) and leaf.dims[0][0].name == ELLIPSIS
    return tuple(shape[: len(shape) - len(leaf.dims) + 1]) if begins else None


@functools.lru_cache(maxsize=64)
def _sharded(graph: Graph, mesh: Mesh, rules: _Rules, wrt: frozenset[str], size: int) -> Sharded:
    part = part_of(graph, mesh, _asked(graph, rules, ""), wrt, size)
    sizes = {each: len(found) for each, found in part.choices.items()}
    tables = [*part.tables, *_inputs(part)]
    used = {each for table in tables for each in table.variables}
    solved = eliminated({each: n for each, n in sizes.items() if each in used}, tables)
    seconds = float(solved.table.costs)
    if math.isinf(seconds):
        raise ShapeError(
            f"no placement on {mesh} keeps to what is asked for", fix="give fewer axes, or shard='auto'"
        )
    chosen = solved.choices({})
    return of_choices(part, graph, chosen, seconds)


def of_choices(part: Part, graph: Graph, chosen: Mapping[Variable, int], seconds: float) -> Sharded:
    """A graph in the placements that were chosen for its part."""
    local = local_graph(part, chosen)
    results = tuple(part.choices["out", name][chosen["out", name]] for name in graph.outputs)
    return Sharded(graph, local.graph, part.mesh, local.places, results, seconds)


def _inputs(part: Part) -> Iterator[CostTable]:
    """The costs that leave each input of the whole graph where the user asks for it."""
    for each in part.graph.inputs:
        yield part.only(part.nodes[each.name], part.fixed(part.dims(each.name)))


# ---------------------------------------------------------------------------- what is asked for


@dataclass(frozen=True)
class _Rules:
    """The axes that are divided everywhere, None for those that the search chooses; those of some blocks; and the
    placements of parameters that have one already."""

    everywhere: tuple[tuple[str, int], ...] | None
    blocks: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = ()
    kept: tuple[tuple[str, Placement], ...] = ()

    def at(self, path: str) -> tuple[tuple[str, int], ...] | None:
        """Those of the block under a scope."""
        if self.everywhere is None:
            return None
        found = list(self.everywhere)
        for pattern, axes in self.blocks:
            found += axes if _matches(path, pattern) else ()
        return tuple(dict.fromkeys(found))


def _matches(path: str, pattern: str) -> bool:
    """Whether a pattern means the block under a scope, or one around it."""
    return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, f"{pattern}.*")


def _rules(shard: Shard, mesh: Mesh) -> _Rules:
    if isinstance(shard, str) and shard == AUTO:
        return _Rules(None)
    if not isinstance(shard, Mapping) or not all(isinstance(name, str) for name in shard):
        raise ShapeError(
            f"shard={shard!r} is no mapping of names", fix="give {axis: mesh axis}, or shard='auto'"
        )
    plain = {name: told for name, told in shard.items() if not isinstance(told, Mapping)}
    blocks = ((pattern, told) for pattern, told in shard.items() if isinstance(told, Mapping))
    return _Rules(_pairs(plain, mesh), tuple((pattern, _pairs(told, mesh)) for pattern, told in blocks))


def _pairs(axes: Mapping[str, Any], mesh: Mesh) -> tuple[tuple[str, int], ...]:
    """Names of axes with numbers of mesh axes; one axis may be divided along several."""
    named = [(name, (told,) if isinstance(told, str) else told) for name, told in axes.items()]
    for name, told in named:
        if not isinstance(name, str) or not isinstance(told, Sequence):
            fix = f"give one of {', '.join(mesh.axes)}, or several"
            raise ShapeError(f"{name!r} is divided along {told!r}, which names no axis of the mesh", fix=fix)
    pairs = ((LEAD if name == ELLIPSIS else name, each) for name, several in named for each in several)
    return tuple((name, mesh.number(each)) for name, each in pairs)


@functools.lru_cache(maxsize=1024)
def _asked(graph: Graph, rules: _Rules, path: str) -> Asked:
    """What is asked for in a graph and in its blocks."""
    calls = in_loops(graph).calls
    inside = (_asked(call.graph, rules, scoped(path, call.scope)) for call in calls)
    names = {leaf.name for leaf in graph.parameters}
    pairs = ((name.removeprefix(f"{path}.") if path else name, place) for name, place in rules.kept)
    return Asked(rules.at(path), tuple(inside), tuple(pair for pair in pairs if pair[0] in names))


def _check(graph: Graph, rules: _Rules, mesh: Mesh, called: Container[str] = ()) -> None:
    """Raises a ShapeError if an axis is nowhere, or does not divide, or if a pattern matches no block.

    Of the inputs of a call, it only warns.
    """
    parts = list(_parts(graph, ""))
    for pattern, axes in [("", rules.everywhere or ()), *rules.blocks]:
        matched = [part for path, part in parts if not pattern or _matches(path, pattern)]
        if not matched:
            scopes = sorted({path for path, _ in parts if path})
            fix = f"{near(pattern, scopes)}{_there_are(scopes)}"
            raise ShapeError(f"no block is called as '{pattern}'", fix=fix)
        leaves = [(leaf, part) for part in matched for leaf in _own_leaves(part)]
        dims = [
            (leaf, dim[0].name, evaluate(dim[0].size, part.bound))
            for leaf, part in leaves
            for dim in leaf.dims
        ]
        names = {name for _, name, _ in dims}
        names |= {name for part in matched for equation in part.own for name in equation.axes}
        for name, n in axes:
            if name not in names:
                what = f"no tensor has an axis '{name}' to divide along '{mesh.axes[n]}'"
                raise ShapeError(what, fix=f"{near(name, names)}{_there_are(sorted(names))}")
            by = math.prod(mesh.shape[m] for other, m in axes if other == name)
            odd = [(leaf, size) for leaf, axis, size in dims if axis == name and size % by]
            for each, size in sorted(odd, key=lambda pair: pair[0].name in called)[:1]:
                told = _undivided(each, Axis(name, size), mesh, n, by)
                if each.name not in called:
                    raise told
                warn(TensornetWarning(f"{told.message}: each takes all of them", fix=told.fix))


def _there_are(names: Sequence[str]) -> str:
    """The names that there are, or the first of them."""
    return f"there are {', '.join(names[:12]) or 'none'}{', …' if len(names) > 12 else ''}"


def _parts(graph: Graph, path: str) -> Iterator[tuple[str, Graph]]:
    """A graph and the blocks that it calls, each under its scope."""
    yield path, graph
    for call in graph.calls:
        yield from _parts(call.graph, scoped(path, call.scope))


def _own_leaves(graph: Graph) -> Iterator[Leaf]:
    """The leaves of a graph without those of the blocks that it calls."""
    called = {leaf.name for call in graph.calls for leaf in call.leaves()}
    return (leaf for leaf in graph.leaves if leaf.name not in called)


def _undivided(leaf: Leaf, axis: Axis, mesh: Mesh, n: int, by: int) -> ShapeError:
    known = ", ".join(str(d) for d in range(2, min(axis.size, 64) + 1) if axis.size % d == 0)
    return ShapeError(
        f"the axis '{axis.name}' of '{leaf}' has {axis.size} positions, which {by} devices along"
        f" '{mesh.axes[n]}' do not divide",
        fix=f"choose a multiple of {by}{f', or {known} devices' if known else ''};"
        " {'blocks.*': …} divides some blocks only",
    )


# ---------------------------------------------------------------------------- plans

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
                axes = dict.fromkeys((*part.arguments[0].free_axes, *part.axes))
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
    for ref in argument.references:
        shape = [dim_size(dim) for dim in local.named[ref.name]]
        expressions.tensors[ref.name] = leaf("input", shape, elements[ref.name], n=ref.name)
    element = expressions.part(argument, scope).node.element
    lengths = {axis: evaluate(scope[axis], local.bound) for axis in argument.free_axes}
    n, before = _operand(call, lengths, bytes_of(element, size))
    after = mesh.after(call.function, n, before)
    runs = [(call.function, before, False)]
    if any(ref.name in known for ref in argument.references):
        runs.append((VJP[call.function], after, True))
    for name, operand, backward in runs:
        moved = mesh.moved(name, n, operand)
        if moved:
            of = show(argument)
            yield Collective(name, mesh.axes[n], of, moved, mesh.seconds(name, n, operand), backward)


def _operand(call: Call, lengths: Mapping[str, Any], size: int) -> tuple[int, float]:
    """The number of the mesh axis of a collective, and the bytes of its operand, given those of a number."""
    (told,), axes = dict(call.options)[MESH], call.arguments[0].free_axes
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
        return itemsize(self.dtype) * int(parameter_count(self.sharded.local))

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
