"""Programs: a plan with the source that runs it, chosen by autotuning if that is asked for."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from ..device.calibration import profile_of
from ..device.cost_model import DeviceProfile, default_profile
from ..device.timing import Clock, timings
from ..display import Memory, in_bytes
from ..dtypes import element_type
from ..errors import BackendError, ShapeError, TensornetWarning, warn
from ..frontend.elaborate_ir import of_tensors
from ..graph.element_types import holding
from ..graph.graph import Graph, inlined, of_graph
from ..language.equation import Equation
from ..ops.collectives import COLLECTIVES
from ..ops.table import Element
from ..passes.pipeline import traced
from ..planning.planner import schedule, whole_sizes
from ..planning.plans import CallStep, Plan
from ..planning.target import Target
from ..protocol import Backend, load_backend
from ..threads import apart
from .function import LoadedProgram, Place, arguments, drawn, generate

if TYPE_CHECKING:
    from ..autodiff.vjp import JointGraph
    from ..sharding.mesh import Mesh
    from ..sharding.sharded import Shard, ShardedPlan


@overload
def plan(
    graph: Graph,
    /,
    *,
    backend: str | Backend = "numpy",
    device: str | None = None,
    dtype: str = "float32",
    profile: DeviceProfile | None = None,
    memory_limit: Memory | None = None,
    compare: bool = True,
    outputs: str | Sequence[str] | None = None,
    tune: str | None = None,
    training: bool | int = False,
    wrt: str | Sequence[str] | None = None,
    trace: bool | int | Callable[[str], object] = False,
    **sizes: int,
) -> Plan: ...


@overload
def plan(graph: Graph, /, *, mesh: Any, **options: Any) -> ShardedPlan: ...


@of_graph  # type: ignore[misc]  # a size may be called as the arguments for meshes are
def plan(
    graph: Graph,
    /,
    *,
    backend: str | Backend = "numpy",
    device: str | None = None,
    dtype: str = "float32",
    profile: DeviceProfile | None = None,
    memory_limit: Memory | None = None,
    compare: bool = True,
    outputs: str | Sequence[str] | None = None,
    tune: str | None = None,
    training: bool | int = False,
    wrt: str | Sequence[str] | None = None,
    trace: bool | int | Callable[[str], object] = False,
    mesh: Any = None,
    shard: Shard = "auto",
    links: Mapping[str, tuple[float, float]] | None = None,
    **sizes: int,
) -> Plan | ShardedPlan:
    """Finds the fastest order to compute a graph on a device, or the placements on a mesh of devices.

    Args:
        graph: a layer or a model.
        backend: "numpy", "torch", "cupy" or "jax".
        device: where it will run, as the backend names it; the backend's default if not given.
        dtype: the element type, "float32" and so on; it decides the bytes moved.
        profile: the device constants; those measured on this machine if not given.
        memory_limit: the bytes that may be alive at once, as a number or a text such as "512 MiB" or "1GB".
            `Plan.peak_memory` counts them: inputs, parameters, constants and tables that are read, results, and
            all intermediates. A part of the graph that needs more is computed piece by piece, along an axis that
            allows it; the plan reports this and its cost. Arguments and results are alive in any case. With
            `training`, the tensors kept for the backward pass are alive too, and calls of blocks are recomputed
            there where nothing of them is kept. On torch, autograd keeps these tensors, and the limit is on what it
            keeps, without inputs and parameters. Results of functions such as GELU and layer norms are recomputed
            first, then calls, and recurrences one segment of positions at a time. For a graph without blocks and
            recurrences, the limit is on everything else that is alive, and what autograd keeps is additional.
        compare: whether to price the order as written and the order of fewest FLOPs as well.
        outputs: what to compute instead of the graph's own outputs; see `Graph.select`.
        tune: "measure" to time the few best candidates on the device, on random data at these sizes, and take
            the one that is fastest there.
        training: plan the backward pass to the leaves of `wrt` as well, and report what is kept for it.
            `Plan.backward` is the backward pass that `tensornet.value_and_grad` runs. On torch, autograd runs it,
            and only products that are planned with their backward pass have a `Plan.backward` of their own.
            `Plan.kept` then reports what autograd keeps of each call. A number is the size of an axis of that name.
        wrt: the parameters and inputs that get gradients, as in `tensornet.gradient`; all parameters if not given.
        trace: print the equations after each pass that changed them, see `tensornet.passes.pipeline`; or a function
            that is called with each of these texts.
        mesh: the names of the axes of a mesh of devices with their sizes, `{"data": 8, "model": 8}`, or a mesh of
            torch or JAX. No device is needed. The result is a `ShardedPlan`: the placements, the collectives forward
            and backward with their bytes and seconds, and other placements.
        shard: the axes that are divided along each axis of the mesh, `{"b": "data", "h": "model"}`; the same for
            some blocks, `{"layers.*.mlp": {"f": "model"}}`; or "auto" for the placements that take least time.
        links: bytes a second and seconds of latency of each axis of the mesh, `{"model": (450e9, 3e-6)}`.
        **sizes: values for open sizes to plan at. A size that is not given is assumed to be 64, and the plan
            says so. The code works for other sizes.

    Raises:
        ShapeError: a given size is not open.
        BackendError: there is no such backend, device or way of tuning, or the plan needs more than
            `memory_limit`, even piece by piece.

    Example:
        >>> import tensornet as tn
        >>> layer = tn.layer("y[b,p,q] = x[b,i,j] * U[p,i] * V[q,j]", inputs="x", i=4, j=4, p=2, q=2)
        >>> tn.plan(layer, b=10_000).steps[0].equation.name
        't1'
    """
    chosen, memory_limit = load_backend(backend), in_bytes(memory_limit)
    if not isinstance(profile, DeviceProfile | None):
        fix = "leave it out to have it measured, or take one of tensornet.device.cost_model"
        raise BackendError(f"profile={profile!r} holds no constants of a device", fix=fix)
    graph = graph if outputs is None else graph.select(outputs)
    if isinstance(mesh, int):
        sizes, mesh = {**sizes, "mesh": mesh}, None
    if not isinstance(training, bool):
        sizes, training = {**sizes, "training": training}, False
    if not isinstance(trace, bool) and not callable(trace):
        sizes, trace = {**sizes, "trace": trace}, False
    if mesh is not None:
        from ..sharding.sharded import sharded_plan

        _check_on_mesh(tune=tune, trace=trace)
        chosen = chosen if COLLECTIVES.keys() <= chosen.templates.keys() else load_backend("torch")
        told: dict[str, Any] = {"backend": chosen, "device": device, "dtype": dtype, "profile": profile}
        told |= {"memory_limit": memory_limit, "compare": compare, "training": training}
        alone = functools.partial(_of_each_device, **told)
        return sharded_plan(graph, mesh, shard, links, element_type(dtype), sizes, wrt, alone)
    check_undivided(shard, links)
    check_tuning(tune)
    device = chosen.device() if device is None else device
    write = trace if callable(trace) else print if trace else None
    make = functools.partial(planned, backend=chosen, device=device, dtype=dtype, profile=profile)
    with traced(write):
        if training or wrt is not None:
            from ..planning.gradients import leaves_of  # most plans need no derivatives

            leaves = leaves_of(graph, wrt)
        if not training:
            return make(graph, sizes, memory_limit=memory_limit, compare=compare, tune=tune)
        from .rematerialization import can_rematerialize, with_saved_bytes

        if "with_vjp" not in chosen.templates:
            profile = profile or profile_of(chosen, device, dtype)
            make = functools.partial(make, profile=profile, tune=tune)
            return _both_ways(graph, sizes, leaves, memory_limit, profile, element_type(dtype), make)
        bounded = memory_limit is not None and not can_rematerialize(graph)
        changing = frozenset() if bounded else frozenset(leaves)
        found = make(graph, sizes, memory_limit=memory_limit, compare=compare, changing=changing)
        found = found if found.recorded else with_saved_bytes(found, chosen, frozenset(leaves))
        kept = sum(size for _, size in found.kept)
        if memory_limit is not None and kept > memory_limit:
            message = (
                f"autograd keeps {kept:,} bytes for the backward pass, and memory_limit is {memory_limit:,}"
            )
            fix = "call its parts as blocks, layer(x, scope='a'): only blocks and recurrences are computed again"
            warn(TensornetWarning(message, fix=fix))
        return found


def check_undivided(shard: Shard, links: Mapping[str, tuple[float, float]] | None) -> None:
    """Raises a ShapeError if something is said of a mesh where there is none."""
    if shard != "auto" or links is not None:
        raise ShapeError("shard= and links= are for a mesh, and none is given", fix='give mesh={"data": 2}')


def _check_on_mesh(**options: Any) -> None:
    """Raises a BackendError for options that a plan for a mesh cannot follow."""
    for name, value in options.items():
        if value:
            fix = f"leave it out, or plan what each device runs: tn.plan(plan.sharded.local, {name}=…)"
            raise BackendError(f"{name}={value!r} is for one device, and mesh= has several", fix=fix)


def _of_each_device(
    local: Graph, mesh: Mesh, wrt: Sequence[str], backend: Backend, profile: DeviceProfile | None, **told: Any
) -> Plan:
    """The plan of what each device of a mesh runs, by the constants by which modules on a mesh plan."""
    device = told.pop("device") or backend.device()
    profile = profile or default_profile(device.partition(":")[0])
    with getattr(backend, "on_mesh", contextlib.nullcontext)(mesh):
        found: Plan = plan(local, backend=backend, device=device, profile=profile, wrt=wrt, **told)
        return found


def _both_ways(
    graph: Graph,
    sizes: Mapping[str, int],
    leaves: tuple[str, ...],
    limit: int | None,
    profile: DeviceProfile,
    dtype: str,
    make: Callable[..., Plan],
) -> Plan:
    """The plan of the forward pass, and of the backward pass to some leaves. `make` plans a graph at some sizes."""

    def forth_and_back(joint: JointGraph, limit: int | None) -> tuple[Plan, Plan]:
        forth = make(joint.forward, sizes, memory_limit=limit)
        at = {name: size for name, size in forth.sizes if name in joint.backward.open_sizes}
        held = of_tensors(joint.forward)
        seen = {name: held[name] for name in joint.residuals if held[name] < Element.WIDE}
        return forth, make(holding(joint.backward, seen), at, memory_limit=limit)

    def peak(joint: JointGraph) -> int:
        return max(each.peak_memory for each in forth_and_back(joint, None))

    from ..planning.gradients import rematerialized_to_fit

    known = whole_sizes(graph, sizes)
    joint = rematerialized_to_fit(limit, graph, leaves, profile, dtype, known, peak)
    forward, back = forth_and_back(joint, limit)
    return replace(forward, backward=back)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Pauses Python's garbage collector, which with torch takes a fifth of the time of a large plan, for nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@uncollected()
def planned(
    graph: Graph,
    sizes: Mapping[str, int],
    backend: Backend,
    device: str,
    dtype: str,
    profile: DeviceProfile | None = None,
    memory_limit: int | None = None,
    compare: bool = False,
    around: frozenset[str] | None = None,
    closed: bool = False,
    tune: str | None = None,
    changing: frozenset[str] = frozenset(),
) -> Plan:
    """`plan` with the sizes apart from the settings, so that an axis may be called `dtype`.

    With `around`, the blocks under these scopes, and blocks that are called more than once, run by themselves. With
    `closed`, tensors that depend on open sizes are computed at each call. Products of `changing` leaves are planned
    with their backward pass.
    """
    backend.check_device(device)
    dtype = element_type(dtype)
    profile = profile or profile_of(backend, device, dtype)

    def scheduled(graph: Graph, profile: DeviceProfile, loops: bool = False) -> Plan:
        supported, limit = frozenset(backend.templates), None if changing else memory_limit
        target = Target(backend.name, device, dtype, profile, supported, closed, changing, loops)
        return schedule(graph, target, sizes, limit, compare, around)

    def made(profile: DeviceProfile) -> Plan:
        if not changing or memory_limit is None or around is not None:
            return written(scheduled(graph, profile), backend, around)
        plans = _in_calls(graph, functools.partial(scheduled, profile=profile))  # autograd keeps tensors
        from .rematerialization import rematerialized_within

        return rematerialized_within(plans, memory_limit, backend, changing)

    return made(profile) if tune is None else tuned(made, profile, backend, around is not None)


def check_tuning(tune: str | None) -> None:
    """Raises an error if there is no such way of tuning."""
    if tune not in (None, "measure"):
        raise BackendError(f"there is no way of tuning {tune!r}", fix="use tune='measure', or leave it out")


def _in_calls(graph: Graph, scheduled: Callable[..., Plan]) -> Iterator[Plan]:
    """The plan with all blocks as calls. If there are recurrences, also the plan with these as loops outside calls."""
    yield replace(scheduled(_apart(graph)), graph=graph)
    if any(part.recurrences for part in graph.parts):
        looped = inlined(graph, lambda call: any(part.recurrences for part in call.graph.parts))
        yield replace(scheduled(_apart(looped), loops=True), graph=graph)


def _apart(graph: Graph) -> Graph:
    """The graph with each call marked, so that it is always planned as a call."""
    body = (item if isinstance(item, Equation) else replace(item, apart=True) for item in graph.body)
    return replace(graph, body=tuple(body))


def written(plan: Plan, backend: Backend, around: frozenset[str] | None = None) -> Plan:
    """The plan with its code."""
    return replace(plan, code=generate(plan, backend, around))


# ---------------------------------------------------------------------------- autotuning

# errors of the device model are errors of its constants, so the candidates are the plans that are fastest if one
# constant had another value

VARIED = {
    "flops": (0.4, 2.5),
    "bandwidth": (0.4, 2.5),
    "launch": (5.0,),
    "batch": (0.1, 10.0),
    "scattered": (0.2, 5.0),
}
"""Constants of the device, and the factors by which each of them is varied."""

MOST = 6
"""The most candidates that are timed."""

ROUNDS = 5
"""The number of turns of each candidate."""


def tuned(
    make: Callable[[DeviceProfile], Plan], profile: DeviceProfile, backend: Backend, alone: bool = False
) -> Plan:
    """The fastest of the candidates, as measured.

    Args:
        make: gives the plan for a device, with its code.
        profile: the device.
        backend: the library.
        alone: whether called blocks run by themselves and are not available; a plan that calls any is not tuned.
    """
    first = make(profile)
    if alone and any(isinstance(step, CallStep) and step.slicing is None for step in first.steps):
        return first
    candidates = [first, *_others(make, profile, first)]
    return first if len(candidates) == 1 else apart(lambda: _fastest(candidates, backend))


def _others(make: Callable[[DeviceProfile], Plan], profile: DeviceProfile, first: Plan) -> Iterator[Plan]:
    """Other candidates: plans whose code differs from that of the expected fastest plan and from each other's."""
    known = {first.code}
    for name, factors in VARIED.items():
        for factor in factors:
            if len(known) == MOST:
                return
            try:
                other = make(replace(profile, **{name: factor * getattr(profile, name)}))
            except BackendError:  # it needs more memory than allowed
                continue
            if other.code not in known:
                known.add(other.code)
                yield other


def _fastest(candidates: list[Plan], backend: Backend) -> Plan:
    """The candidate with the least median time of its turns, which the candidates take alternately."""
    calls = {str(number): _call_of(plan, backend) for number, plan in enumerate(candidates)}
    clock = Clock(wait=functools.partial(backend.synchronize, candidates[0].device))
    times = timings(calls, ROUNDS, warmup=1, clock=clock)
    return candidates[int(min(times, key=lambda number: times[number].median))]


def _call_of(plan: Plan, backend: Backend) -> Callable[[], Any]:
    """A call of the function of a plan, on random numbers, and on positions that are all 0."""
    sizes = dict(plan.sizes)
    place = Place(plan.device, plan.dtype, tuple(sizes[name] for name in plan.sizes_once))
    function = LoadedProgram(plan, backend).bound(place)
    taken = (each for each in arguments(plan) if each[0].kind != "constant")
    given = drawn(taken, backend, plan.device).values()
    function(*given)  # the first call is not timed
    return lambda: function(*given)
