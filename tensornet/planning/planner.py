"""The planner: outlining of blocks, rewrites, orders of contractions, lowering to steps, and the memory schedule."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..autodiff.activity import check_derivatives
from ..contraction.order_search import as_written, fastest, fastest_with_vjp, fewest_flops
from ..contraction.pairs import Choose
from ..errors import BackendError, ShapeError, by_name, near
from ..frontend.instantiate import instance, names_of_sizes
from ..graph.element_types import check_complex, of_leaf, of_leaves, writes_complex
from ..graph.graph import Apply, Graph, inlined
from ..graph.leaves import Leaf
from ..graph.shape_inference import Dim, dim_size
from ..ir.rewriting import PassContext, Program
from ..language.equation import Equation
from ..language.expression import ELLIPSIS
from ..lowering.lower import lower, seconds_of
from ..ops.along_axes import RECUR
from ..ops.table import Element
from ..passes.pipeline import is_traced, noted, optimize, program_of, simplify, traced
from ..scan.kernels import select_associative_scan, select_parallel_form, select_rnn_kernel
from ..scan.lowering import lower_recurrences
from ..sizes import as_size, evaluate, name_of, product, symbol
from .constant_folding import Folded
from .liveness import Liveness
from .plans import Alternative, AnyStep, CallStep, OnDemand, Plan, Result, Step
from .target import Target

if TYPE_CHECKING:
    from ..autodiff.vjp import JointGraph
    from .slicing import Part

NOMINAL = 64
"""The size assumed for an open axis when none is given."""

PER_POSITION = 4
"""The time of one position of a linear recurrence in a loop, in operations: a call, two operations, and a copy."""

ROUNDS, TRIED = 64, 6
"""The most parts that are computed piece by piece, and the candidates tried for each."""

TILE, GAIN = 8 * 2**20, 0.85
"""Bytes of intermediates that stay in the last-level cache, and the share of the time at which tiles are taken: of ten
layers, with expected shares of 0.14 to 0.83, measured shares were 0.12 to 0.80."""

# ---------------------------------------------------------------------------- planning


def schedule(
    graph: Graph,
    target: Target,
    sizes: Mapping[str, int],
    memory_limit: int | None = None,
    compare: bool = False,
    around: frozenset[str] | None = None,
) -> Plan:
    """The plan of a graph, its code not yet generated.

    Args:
        around: scopes whose calls are always kept, for blocks that run on their own.
    """
    is_complex = "complex" in target.dtype
    if is_complex:
        check_derivatives(graph)
    values = dict.fromkeys(graph.open_sizes, NOMINAL) | whole_sizes(graph, sizes)
    has_complex = is_complex or writes_complex(graph)
    noted("as written", None, graph)
    # each step is checked for complex numbers, so that no block is a function of its own
    whole = graph.flat if has_complex and around is None else with_functions(graph, around)
    whole = noted("outlining of blocks", graph, whole)

    def scheduled_for(target: Target) -> _Schedule:
        looped = _looped(whole, values, target, "fastest")
        found = _Schedule(graph, looped, values, target, alone=around is not None)
        if has_complex:
            _check_complex(whole, found.steps, is_complex)
        return found

    if memory_limit is not None:
        scheduled = _fitted(memory_limit, whole, target, scheduled_for)
    elif (scheduled := scheduled_for(target)).peak > target.tiled_from:
        scheduled = _tiled(scheduled)
    return replace(
        scheduled.plan(),
        assumed=tuple(name for name in graph.open_sizes if name not in sizes),
        alternatives=OnDemand(functools.partial(_alternatives, whole, values, target)) if compare else (),
        certainty=target.profile.certainty,
    )


def _fitted(
    limit: int, graph: Graph, target: Target, scheduled_for: Callable[[Target], _Schedule]
) -> _Schedule:
    """The schedule of a graph within a limit, without the parallel form of recurrences if that holds too much."""
    try:
        return _sliced_to_fit(limit, scheduled_for(target))
    except BackendError:
        if not any(part.reads_below for part in graph.parts):
            raise
        return _sliced_to_fit(limit, scheduled_for(replace(target, parallel=False)))


def _check_complex(graph: Graph, steps: Iterable[AnyStep], is_complex: bool) -> None:
    """Raises an error if a step has no meaning for complex numbers."""
    given = of_leaves(graph).items() if is_complex else ()
    numbers = [name for name, holds in given if holds is Element.NUMBER]
    check_complex((step.equation for step in steps if isinstance(step, Step)), numbers)


@dataclass(frozen=True)
class _Schedule:
    """A graph scheduled as steps.

    Attributes:
        original, graph: the graph as given, and the one that is lowered.
        values: the value of every open size, and the length of pieces.
        target: the target of the plan.
        way: how it is planned: one of `_WAYS`.
        inside: whether it is a block, whose results are read by steps of its caller.
        alone: whether blocks run on their own.
        cuts: the parts that are computed piece by piece.
    """

    original: Graph
    graph: Graph
    values: Mapping[str, int]
    target: Target
    way: str = "fastest"
    inside: bool = False
    alone: bool = False
    cuts: tuple[Part, ...] = ()

    @functools.cached_property
    def _lowered(self) -> tuple[tuple[AnyStep, ...], tuple[Result, ...]]:
        """All steps, and where the outputs are. Blocks that are called are planned on the way."""
        values, target, way = self.values, self.target, self.way
        rewritten, choose = _WAYS[way]
        known, alike = {**self.graph.bound, **values}, dict[Graph, Graph]()

        def planned(block: Graph, changing: frozenset[str]) -> Plan:
            block = alike.setdefault(in_numbers(block), block)
            at = tuple((name, evaluate(symbol(name), known)) for name in block.open_sizes)
            made = _function.__wrapped__ if is_traced() else _function
            return made(noted("block", None, bare(block)), at, replace(target, changing=changing), way)

        def product(joint: JointGraph, sizes: Mapping[str, int]) -> Plan:
            at = tuple((name, sizes[name]) for name in joint.forward.open_sizes)
            return _product(joint, at, replace(target, changing=frozenset()))

        program = rewritten(self.graph, values, target)
        steps, results = lower(program, values, target, choose, planned, self.inside, product, self.alone)
        slicings = {
            part.call.results: part.slicing.into(values[part.slicing.piece], self.size(part.slicing.size))
            for part in self.cuts
        }
        local = self.graph.sizes_beside(self.original.bound)

        def finished(step: AnyStep) -> AnyStep:
            """A call with its slicing, or a step with its FLOP formula in the sizes of the original graph."""
            if isinstance(step, CallStep):
                found = None if step.scope else slicings.get(step.results)
                return step if found is None else replace(step, slicing=found)
            if not local or isinstance(step.flop_formula, int):
                return step
            return replace(step, flop_formula=evaluate(step.flop_formula, local))

        return tuple(map(finished, steps)), results

    @property
    def steps(self) -> tuple[AnyStep, ...]:
        """All steps."""
        return self._lowered[0]

    @functools.cached_property
    def parts(self) -> Folded:
        """The steps, divided into those done once and those done at each call."""
        return Folded(self.graph, *self._lowered, self.values, self.target, self.alone)

    @functools.cached_property
    def live(self) -> Liveness:
        """What is alive at each of the steps done at each call."""
        read = {name for step in self.parts.steps for name in step.reads}
        leaves = (leaf for leaf in self.graph.leaves if leaf.kind != "constant" or leaf.name in read)
        tables = (table.leaf for table in self.parts.tables)
        known = {**self.graph.bound, **self.values}
        return Liveness((*leaves, *tables), self.parts.steps, known, self.target.itemsize)

    @property
    def peak(self) -> int:
        """The bytes alive at the worst step."""
        return self.live.peak

    @property
    def results(self) -> int:
        """The bytes of the results."""
        return self.bytes_of(self.graph, {*self.graph.outputs} - {leaf.name for leaf in self.graph.leaves})

    @property
    def seconds(self) -> float:
        """The expected time of the steps done at each call."""
        return sum(step.seconds for step in self.parts.steps)

    @property
    def given(self) -> int:
        """The bytes of the leaves, which are alive in any case."""
        return self.live.used[0]

    @property
    def worst(self) -> int:
        """The number of the step at which most is alive."""
        return max(self.live.used.index(self.peak) - 1, 0)

    @property
    def wanted(self) -> frozenset[str]:
        """The operands of the worst step, and the results of the first step from it on that defines named tensors."""
        steps = self.parts.steps[self.worst :]
        made = next((step.defines for step in steps if set(step.defines) & set(self.graph.named)), ())
        return frozenset((*steps[0].reads, *made)) if steps else frozenset()

    @property
    def apart(self) -> frozenset[Apply]:
        """The calls that cannot be inside a part that is computed piece by piece."""
        cut = {part.call.results for part in self.cuts}
        return frozenset(call for call in self.graph.calls if self.alone or call.results in cut)

    @functools.cached_property
    def beyond(self) -> Mapping[str, float]:
        """The time of the steps that lead to each named tensor, without that of their arithmetic."""
        found, waiting = dict[str, float](), 0.0
        for step in self.parts.steps:
            waiting += max(0.0, step.seconds - step.flops / self.target.profile.flops)
            named = [name for name in step.defines if name in self.graph.named]
            if named:
                found[named[0]] = waiting
                waiting = 0.0
        return found

    def may_gain(self, made: Iterable[str]) -> bool:
        """Whether tiles of the steps that lead to some tensors can gain enough: their arithmetic takes as long."""
        return sum(self.beyond.get(name, 0.0) for name in made) > (1 - GAIN) * self.seconds

    def size(self, name: str) -> int:
        """The value of a size."""
        return int(evaluate(symbol(name), {**self.graph.bound, **self.values}))

    def bytes_of(self, graph: Graph, names: Iterable[str]) -> int:
        """The bytes of tensors of this graph or of one with cuts. Those computed piece by piece count in full size."""

        def size(dim: Dim) -> int:
            return int(evaluate(evaluate(dim_size(dim), graph.bound), self.values))

        return sum(math.prod(map(size, graph.named[name])) for name in names) * self.target.itemsize

    def cut(self, part: Part, length: int) -> _Schedule:
        """The same graph, scheduled with a part computed in pieces of `length` positions."""
        values = {**self.values, part.slicing.piece: length}
        return replace(self, graph=part.graph, values=values, cuts=(*self.cuts, part))

    def plan(self) -> Plan:
        """The plan, its code not yet generated."""
        target, parts = self.target, self.parts
        return Plan(
            self.original,
            target.backend,
            target.device,
            target.dtype,
            tuple((name, self.values[name]) for name in self.original.open_sizes),
            self.live.with_fewer_frees(),
            self._lowered[1],
            self.peak,
            once=parts.once,
            tables=parts.tables,
        )


def _sliced_to_fit(limit: int, scheduled: _Schedule) -> _Schedule:
    """A schedule that keeps to a memory limit, with parts computed piece by piece if necessary.

    Raises:
        BackendError: no schedule that was tried keeps to the limit.
    """
    if scheduled.peak <= limit:
        return scheduled
    found = scheduled
    aim = max(limit, scheduled.given)  # the leaves are alive in any case, and the error names the least
    for _ in range(ROUNDS):
        least = found
        for part in _parts(found):
            trial = _in_pieces(found, part, aim)
            if trial.peak <= limit:
                return trial
            least = min(least, trial, key=lambda each: each.peak)
        if least is found:
            break
        found = least
    raise _too_little(limit, found)


def _tiled(scheduled: _Schedule) -> _Schedule:
    """Loop tiling: parts computed in pieces that stay in the cache, where this is expected to be faster."""
    found = scheduled
    for _ in range(ROUNDS):
        taken = found.peak - found.given - found.results
        is_tried = taken > found.target.tiled_from and found.may_gain(found.beyond)
        trials, parts = list[_Schedule](), _parts(found) if is_tried else ()
        for part in itertools.islice(parts, TRIED // 2):
            if not found.may_gain(name for item in part.call.graph.body for name in item.defines):
                continue
            whole, length = found.size(part.slicing.size), _first_length(found, part, found.given + TILE)
            count = -(-whole // length)
            count = next(
                (n for n in range(count, 2 * count) if whole % n == 0), count
            )  # equal pieces if there are
            with contextlib.suppress(ShapeError):  # the part uses a size that its operands do not determine
                if length * taken <= 2 * TILE * whole:
                    tile = replace(part, slicing=replace(part.slicing, is_tile=True))
                    trials.append(found.cut(tile, -(-whole // count)))
        best = min(trials, key=lambda each: each.seconds, default=found)
        if best.seconds > GAIN * found.seconds:
            break
        found = best
    return found


def _parts(scheduled: _Schedule) -> Iterator[Part]:
    """The parts that may be computed piece by piece so that less is alive at the worst step."""
    from .slicing import cuttable, separated

    graph, wanted, apart = scheduled.graph, scheduled.wanted, scheduled.apart
    for each in dict.fromkeys((graph, separated(graph, apart))):
        yield from itertools.islice(cuttable(each, wanted, apart), TRIED)


def _too_little(limit: int, scheduled: _Schedule) -> BackendError:
    """The error that the best schedule exceeds a memory limit, with the sizes of its parts."""
    given, results = scheduled.given, scheduled.results
    what: object = "the inputs, which are the results"
    for step in scheduled.parts.steps[scheduled.worst :][:1]:
        what = step.equation if isinstance(step, Step) else f"the part that makes {', '.join(step.results)}"
    open_sizes = ", ".join(scheduled.original.open_sizes) or "all are fixed"
    pieces = " and ".join(dict.fromkeys(part.slicing.size for part in scheduled.cuts))
    least = f"the least that was found, in pieces along {pieces}" if pieces else "no part of it can be cut"
    return BackendError(
        f"the plan needs {scheduled.peak:,} bytes at once, and memory_limit is {limit:,}: inputs, parameters and tables"
        f" take {given:,}, the results {results:,}, and the peak is at {what}",
        fix=f"allow {scheduled.peak:,} bytes ({least}), or plan for smaller sizes ({open_sizes})",
    )


def _in_pieces(scheduled: _Schedule, part: Part, limit: int) -> _Schedule:
    """The schedule with a part in pieces that keep to a limit, or the best one that was tried.

    The first length is halved until they do, or doubled as long as they do.
    """
    whole, length, best = scheduled.size(part.slicing.size), _first_length(scheduled, part, limit), scheduled
    is_shorter = False
    with contextlib.suppress(ShapeError):  # the part uses a size that its operands do not determine
        while 0 < length < whole:
            length = -(-whole // -(-whole // length))  # the same number of pieces, of equal length
            trial = scheduled.cut(part, length)
            if trial.peak > limit >= best.peak:
                break
            best = min(best, trial, key=lambda each: each.peak) if trial.peak > limit else trial
            if trial.peak <= limit and is_shorter:
                break
            is_shorter = trial.peak > limit
            length = length // 2 if is_shorter else 2 * length
    return best


def _first_length(scheduled: _Schedule, part: Part, limit: int) -> int:
    """A first guess for the length of pieces: memory beyond the leaves is taken as proportional to the length."""
    whole, call = scheduled.size(part.slicing.size), part.call
    leaves = {leaf.name for leaf in scheduled.graph.leaves}
    beside = scheduled.bytes_of(part.graph, {*call.operands, *call.results} - leaves)
    room, taken = limit - scheduled.given - beside, scheduled.peak - scheduled.given
    return max(1, min(-(-whole // 2), whole * room // taken))


def whole_sizes(graph: Graph, sizes: Mapping[str, Any]) -> dict[str, int]:
    """The given sizes of open axes, as integers. Any other axis may only be given the size that it has."""
    sizes = by_name(sizes, "the sizes to plan at", '{"b": 64}')
    given = {name: as_size(value, name) for name, value in sizes.items()}
    others = [*(given.keys() - set(graph.open_sizes))]
    axes = [axis for dims in graph.named.values() for dim in dims for axis in dim] if others else []
    lengths = {axis.name: axis.size for axis in axes} | dict(graph.bound)
    for name, value in ((name, given.pop(name)) for name in others):
        length = lengths.get(name)
        if length is None or evaluate(evaluate(length, graph.bound), given) != value:
            known = "there is no such axis" if length is None else f"it is {length}"
            raise ShapeError(
                f"a size is given for '{name}', which is not open: {known}",
                fix=f"{near(name, graph.open_sizes)}open sizes: {', '.join(graph.open_sizes) or 'none'}",
            )
    for name, value in given.items():
        if not isinstance(value, int):
            raise ShapeError(f"the size of '{name}' is {value!r}", fix="give a positive integer")
    return given


@functools.lru_cache(maxsize=512)
def _product(joint: JointGraph, at: tuple[tuple[str, int], ...], target: Target) -> Plan:
    """The plan of a product. It contains the plan of its backward pass."""
    forward = _function(joint.forward, at, target, "products", inside=False)
    return replace(forward, backward=_function(joint.backward, at, target, "products", inside=False))


@functools.lru_cache(maxsize=512)
def _function(
    block: Graph, at: tuple[tuple[str, int], ...], target: Target, way: str, inside: bool = True
) -> Plan:
    """The plan of a block, made once for all calls of it."""
    values = dict(at)
    whole = _looped(with_functions(block), values, target, way)
    return _Schedule(block, whole, values, target, way, inside).plan()


def _looped(graph: Graph, values: Mapping[str, int], target: Target, way: str) -> Graph:
    """The graph with its recurrences lowered to calls along their axes.

    Products, associative scans or kernels of the target's library take their place where these are faster."""
    known = {**graph.bound, **values}

    def pays(positions: Any, others: Sequence[Any]) -> bool:
        count = float(evaluate(positions, known))
        size = float(target.itemsize * product(evaluate(each, known) for each in others))
        step = PER_POSITION * target.profile.pointwise(3 * size, size)
        moved = 3 * size * count
        return RECUR.seconds(target.profile, moved, size * count, True) < count * step

    def large(sizes: Sequence[Any]) -> bool:
        return bool(
            product(evaluate(each, known) for each in sizes) * target.itemsize > target.profile.cached
        )

    def seconds(part: Graph) -> float:
        whole = lower_recurrences(part, large)
        return _Schedule(whole, whole, values, target).seconds

    products = [functools.partial(select_parallel_form, seconds=seconds)] if target.parallel else []
    kernels = [] if target.loops else [*products, functools.partial(select_associative_scan, pays=pays)]
    on_cpu = target.device.startswith("cpu")
    alike = not on_cpu or target.dtype in ("float32", "float64")  # on a GPU, others sum less precisely
    if alike and way == "fastest" and not target.loops:
        kernels.append(functools.partial(select_rnn_kernel, seconds=seconds, supported=target.supported))
    return noted("scans", graph, lower_recurrences(graph, large, target.loops, kernels))


def _rewritten(graph: Graph, values: Mapping[str, int], target: Target) -> Program:
    """The program after every rewrite that pays at these sizes."""
    target = replace(target, changing=frozenset())

    @functools.cache  # the present form is priced against each candidate
    def cost(part: Program, limit: float = math.inf) -> float:
        return seconds_of(part, values, target, fastest, limit)

    sums = target.dtype != "float16"  # float16 cannot hold long sums
    real = "complex" not in target.dtype and not writes_complex(graph)
    return optimize(graph, PassContext(cost, target.supported, target.kernels, values, sums, real))


_WAYS: dict[str, tuple[Callable[[Graph, Mapping[str, int], Target], Program], Choose]] = {
    "fastest": (_rewritten, fastest),
    "products": (lambda graph, *_: simplify(graph), fastest_with_vjp),
    "as written": (lambda graph, *_: program_of(graph), as_written),
    "fewest FLOPs": (lambda graph, *_: simplify(graph), fewest_flops),
}
"""Each way of planning: how a graph is rewritten, and how the pairs of a contraction are chosen."""


def _alternatives(graph: Graph, values: Mapping[str, int], target: Target) -> Iterator[Alternative]:
    target = replace(target, changing=frozenset())
    for way in ("as written", "fewest FLOPs"):
        with traced(None):
            graph = _looped(graph, values, target, way)
            found = _Schedule(graph, graph, values, target, way).plan()
        yield Alternative(way, found.flops, found.bytes, found.seconds, found.peak_memory)


# ---------------------------------------------------------------------------- outlining of blocks


LEAST = 5
"""The fewest equations of a block that becomes a function. A smaller block gains more by being planned together with
the equations around it."""


@functools.lru_cache(maxsize=256)
def with_functions(graph: Graph, around: frozenset[str] | None = None) -> Graph:
    """The graph with its calls inlined, except for those that become functions of their own (outlining).

    A call is inlined too if one of its results is not needed.

    Args:
        graph: the graph.
        around: the scopes whose calls are always kept, where each block runs on its own, under its own scope.
            None if no block does.
    """
    blocks = (call.graph for part in graph.parts for call in part.calls)
    sites = Counter(in_numbers(block) for block in blocks if _is_function(block))
    held = defaultdict[str, set[Graph]](set)
    for scope, block in _held(graph):
        held[scope].add(bare(block))

    def written_out(call: Apply) -> bool:
        if call.along is not None:
            return False
        again = _is_function(call.graph) and (call.apart or sites[in_numbers(call.graph)] > 1)
        others = held[call.scope]
        apart = len(others) > 1 and len(set(map(in_numbers, others))) > 1
        return not again if around is None else apart or not (call.scope in around or again)

    found = inlined(graph, written_out)
    needed = found.needed()
    return inlined(found, lambda call: call.along is None and not needed.issuperset(call.results))


def _held(graph: Graph, prefix: str = "") -> Iterator[tuple[str, Graph]]:
    """Every scope in a graph and in its blocks, with each block that is called under it."""
    for call in graph.calls:
        scope = f"{prefix}{call.scope}"
        yield scope, call.graph
        yield from _held(call.graph, f"{scope}.")


@functools.lru_cache(maxsize=1024)
def _is_function(block: Graph) -> bool:
    """Whether a block is large enough for a call, and the shapes of its leaves determine its sizes."""
    dims = [dim for leaf in block.leaves for dim in leaf.dims]
    told = {name_of(dim[0].size) for dim in dims if len(dim) == 1}
    leading = any(axis.name == ELLIPSIS for dim in dims for axis in dim)
    return not leading and set(block.open_sizes) <= told and _length(block) >= LEAST


def _length(block: Graph) -> int:
    """The number of equations of a block, including those of the blocks that it calls."""
    return len(block.own) + sum(_length(call.graph) for call in block.calls)


@functools.lru_cache(maxsize=1024)
def in_numbers(block: Graph) -> Graph:
    """A normal form that is equal for blocks that are computed alike.

    The known sizes are put in as numbers, so that their names do not count. Values that do not affect how the block is
    computed are dropped."""
    block = bare(block)
    sizes = {name: evaluate(symbol(name), block.bound) for name in names_of_sizes(block)}
    return instance(block, sizes)


@functools.lru_cache(maxsize=1024)
def bare(graph: Graph) -> Graph:
    """The graph without the values of its leaves, which do not affect how it is computed."""
    body = tuple(
        item if isinstance(item, Equation) else replace(item, graph=bare(item.graph)) for item in graph.body
    )
    return replace(graph, leaves=tuple(map(_bare, graph.leaves)), body=body)


def _bare(leaf: Leaf) -> Leaf:
    if leaf.start is leaf.value is None:
        return leaf
    holds = of_leaf(leaf) if leaf.value is not None else leaf.holds
    return replace(leaf, start=None, value=None, holds=holds)
