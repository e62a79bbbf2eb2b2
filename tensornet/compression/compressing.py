"""Networks compressed under a budget: forms and ranks are allocated, weights substituted, factors fitted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from ..codegen.program import planned
from ..dtypes import itemsize
from ..errors import EquationError, ShapeError
from ..fitting.activations import Site, batches_of, metrics, sites
from ..fitting.approximating import Approximation
from ..fitting.metrics import DAMPING
from ..fitting.weights import Misfit
from ..graph.formulas import parameter_count
from ..graph.graph import Graph
from ..graph.leaves import told_by
from ..language.expression import Ref, axes_of_index
from ..planning.planner import NOMINAL, whole_sizes
from ..protocol import Backend, backend_of, load_backend
from ..runtime.arguments import wrong_names
from ..runtime.compiling import compile
from ..sizes import evaluate
from ..weights.equations import CODES, Modes
from ..weights.freezing import freeze
from ..weights.substitution import substitute
from .allocating import Allocation, Options, allotted
from .compressed import Compressed, networks
from .levels import BYTES, Candidate, Cost, alone, any_rank, bytes_of, parameters_of, planned_cost

__all__ = ["allocate", "best", "compress", "cost_of", "held_out", "included", "lost_by", "misfits_of"]

T = TypeVar("T")

Telling = Callable[[str, int, int], None]
"""A callback for progress. Its arguments are a weight, the number of weights done, and their total."""


def allocate(
    graph: Graph,
    params: Mapping[str, Any],
    /,
    *,
    parameters: float | None = None,
    bytes: float | None = None,
    flops: float | None = None,
    seconds: float | None = None,
    error: float | None = None,
    method: str | Sequence[str] | None = None,
    modes: Modes | None = None,
    include: str | Sequence[str] = "*",
    exclude: str | Sequence[str] = (),
    uniform: bool = False,
    max_error: float | None = None,
    inputs: Any = None,
    backend: str | Backend = "torch",
    device: str | None = None,
    progress: Telling | None = None,
    **sizes: int,
) -> Allocation:
    """Spreads one budget over the weights of a network: which become factors, of which form, at which ranks.

    Each weight W has levels Ŵ, one for each form and rank. A level has a cost, and an error e = ‖W − Ŵ‖/‖W‖. Weights
    step down their levels in the order of added e² per saved cost, until the budget is met. A weight from which no
    step is taken stays dense.

    Args:
        graph: the network.
        params: its parameters, name to array.
        parameters: the budget as parameters of the whole network: 0.2 is a fraction of them, 100_000 a number.
        bytes: the budget as bytes: weights and factors are also rounded, to 2 to 8 bits. Scales count.
        flops: the budget as FLOPs of a call at `sizes`: a fraction or a number.
        seconds: the budget as a fraction of the expected time of a call at `sizes`.
        error: a bound instead of a budget: the largest root mean square of e over the weights. The allocation then
            has as few parameters as the bound allows.
        method: a form of the table of `tensornet.substitute`, or several; "auto" finds one for each weight.
            By default it is "auto" for a budget of bytes, else "low_rank". With "int4" weights are rounded to 4 bits,
            with "low_rank:int4" factors; "int4/64" has a scale for each 64 elements of a row.
        modes: the parts into which dimensions are split, as for `substitute`.
        include, exclude: patterns of the names of the weights to compress and to leave out; `*` matches anything.
        uniform: whether each weight keeps the same fraction of its cost, whatever its error: for comparison.
        max_error: the largest e of a weight: levels that lose more are not taken.
        inputs: batches, as for `tensornet.fit`: e is then ‖(W − Ŵ)·x‖/‖W·x‖ where W is multiplied by a tensor x.
        backend, device: the target for which FLOPs and seconds are planned.
        progress: called with a weight, the number of weights done, and their total.
        **sizes: the sizes of open axes, for FLOPs and seconds; 64 where none is given.

    Raises:
        ShapeError: not exactly one budget is given, no forms meet it, or the parameters have open sizes or other
            names.
        EquationError: a pattern matches nothing.

    Example:
        >>> import numpy as np, tensornet as tn
        >>> graph = tn.layer("h[b,k] = tanh(x[b,i] * A[k,i])\\ny[b,o] = h[b,k] * B[o,k]", inputs="x", i=64, k=64, o=64)
        >>> draw = np.random.default_rng(0)
        >>> params = {"A": np.outer(draw.standard_normal(64), draw.standard_normal(64)), "B": np.eye(64)}
        >>> found = allocate(graph, params, parameters=0.6)
        >>> found.weights, round(found.error, 3)
        ({'A': ('low_rank', (1,))}, 0.0)
    """
    budget = {"parameters": parameters, "bytes": bytes, "flops": flops, "seconds": seconds, "error": error}
    options = Options.of(method, modes, uniform, max_error, progress, **budget)
    network = _Weights(graph, params, load_backend(backend), device, sizes, include, exclude, options)
    return network.allocated(network.candidates(inputs))


def compress(
    network: Any,
    params: Mapping[str, Any] | None = None,
    /,
    *,
    parameters: float | None = None,
    bytes: float | None = None,
    flops: float | None = None,
    seconds: float | None = None,
    error: float | None = None,
    method: str | Sequence[str] | None = None,
    modes: Modes | None = None,
    include: str | Sequence[str] = "*",
    exclude: str | Sequence[str] = (),
    uniform: bool = False,
    max_error: float | None = None,
    calibrate: Any = None,
    backend: str | Backend = "torch",
    device: str | None = None,
    progress: Telling | None = None,
    **sizes: int,
) -> Compressed:
    """Makes a trained network smaller: spreads a budget over its weights, and replaces weights by factors.

    A graph gives a graph with its parameters, and a `torch.nn.Module` gives a module of the same structure. `Linear`,
    `Conv1d` to `Conv3d`, `Embedding`, the projections of `MultiheadAttention` and `Conv1D` of transformers keep their
    classes, biases, names and hooks. They have factors in place of `weight`, which can still be read. The given
    network is not changed.

    Args:
        network: a graph, or a `torch.nn.Module`.
        params: the parameters of the graph, name to array.
        parameters, bytes, flops, seconds, error: the one budget, as for `tensornet.allocate`.
        method, modes, include, exclude, uniform, max_error: as for `tensornet.allocate`; names are those of parameters.
        calibrate: batches of inputs, such as a loader. Weights are weighed by what they are multiplied by, in a module
            also by how much its output changes with them, and not at all; what changes the output least is taken.
            With `error`, inputs alone weigh them.
            For a module, each batch is an array, a tuple of arguments, or a mapping of keyword arguments.
        backend, device: the target for which FLOPs and seconds are planned.
        progress: as for `tensornet.allocate`.
        **sizes: the sizes of open axes of a graph, for FLOPs and seconds.

    Returns:
        The network as `model`, with `params` for a graph; the levels of the weights as `allocation`, and their errors
        as `misfits`.

    Raises:
        ShapeError, EquationError: as for `tensornet.allocate` and `tensornet.fit`.

    Example:
        >>> import numpy as np, tensornet as tn
        >>> graph = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=64, o=64)
        >>> small = compress(graph, {"W": np.outer(np.ones(64), np.arange(64.0))}, parameters=0.1)
        >>> tn.parameter_count(small.model), small.misfits["W"].weight < 1e-12
        (128, True)
    """
    budget = {"parameters": parameters, "bytes": bytes, "flops": flops, "seconds": seconds, "error": error}
    if not isinstance(network, Graph):
        torch = networks(network)
        if params is not None or sizes:
            told = "parameters" if params is not None else ", ".join(f"{name}=" for name in sizes)
            raise EquationError(f"a module has no use for {told}", fix="leave it out, or give a graph")
        options = Options.of(method, modes, uniform, max_error, progress, **budget)
        return best(torch.network_of(network, include, exclude, options, device, calibrate), modes)
    if params is None:
        raise EquationError("a graph is compressed with its parameters", fix="compress(graph, params, …)")
    options = Options.of(method, modes, uniform, max_error, progress, **budget)
    target = load_backend(backend), device, sizes
    return best(_weighed(_Weights(network, params, *target, include, exclude, options), calibrate), modes)


class Network(Protocol):
    """A network, and the ways in which its weights may be weighed."""

    @property
    def ways(self) -> Sequence[Sequence[Candidate]]:
        """The weights, weighed in each way."""

    def allocated(self, candidates: Sequence[Candidate]) -> Allocation:
        """The allocation of the budget."""

    def made(self, allocation: Allocation, found: Mapping[str, Approximation]) -> Compressed:
        """The network with factors."""

    @property
    def held(self) -> Sequence[Any]:
        """The batches that were held out."""

    def loss(self, made: Compressed) -> float | None:
        """What its output loses on these; None if its output tells nothing."""


def best(network: Network, modes: Modes | None) -> Compressed:
    """The compressed network of the way to weigh weights that loses least on held batches; the first if none tells."""
    made = []
    for candidates in network.ways:
        allocation = network.allocated(candidates)
        chosen = [each for each in candidates if each.path in allocation.weights]
        found = {each.path: each.fitted(*allocation.weights[each.path], modes) for each in chosen}
        made.append(network.made(allocation, found))
    if network.held:
        made = [replace(each, loss=network.loss(each)) for each in made]
    return min(made, key=lambda each: math.inf if each.loss is None else each.loss)


@dataclass(frozen=True)
class _Weights:
    """A graph with its parameters, and the target for which its costs are planned."""

    graph: Graph
    params: Mapping[str, Any]
    backend: Backend
    device: str | None
    sizes: Mapping[str, int]
    include: str | Sequence[str]
    exclude: str | Sequence[str]
    options: Options
    ways: Sequence[Sequence[Candidate]] = ()
    held: Sequence[tuple[Any, ...]] = ()

    def __post_init__(self) -> None:
        if not hasattr(self.params, "keys") or set(self.params) != {
            leaf.name for leaf in self.graph.parameters
        }:
            raise wrong_names(self.graph, self.params)

    def candidates(self, inputs: Any) -> Sequence[Candidate]:
        """The weights that may become factors, weighed by some batches."""
        known = [leaf.name for leaf in self.graph.parameters]
        names = included(known, self.include, self.exclude, "parameter of this graph", "parameters")
        return tuple(_candidates(self.graph, self.params, names, inputs, self.sizes))

    def allocated(self, candidates: Sequence[Candidate]) -> Allocation:
        """The allocation of the budget."""
        whole, kind = parameter_count(self.graph), self.options.budget.kind
        if not isinstance(whole, int):
            missing = ", ".join(f"{name}=" for name in self.graph.open_sizes)
            raise ShapeError("the parameters have open sizes", fix=f"bind them first: graph.bind({missing}…)")
        device = self.device or self.backend.device()
        cost, total = cost_of(self.options, self.backend, device), float(whole)
        if kind == BYTES:
            arrays = self.params.values()
            total = sum(math.prod(each.shape) * itemsize(self.backend.dtype(each)) for each in arrays)
        elif kind in ("flops", "seconds"):
            total = getattr(planned(self.graph, self.sizes, self.backend, device, "float32"), kind)
        return allotted(candidates, self.options, cost, total, whole)

    def made(self, allocation: Allocation, found: Mapping[str, Approximation]) -> Compressed:
        """The graph with factors."""
        if not found:
            return Compressed(self.graph, dict(self.params), allocation)
        with any_rank():
            graph = substitute(self.graph, allocation.weights, modes=self.options.modes)
        factors = {f"{path}.{name}": a for path, each in found.items() for name, a in each.factors.items()}
        codes = {name: array for name, array in factors.items() if name.endswith(CODES)}
        graph = freeze(graph, codes, [*codes]) if codes else graph
        params = {leaf.name: {**self.params, **factors}[leaf.name] for leaf in graph.parameters}
        return Compressed(graph, params, allocation, misfits_of(found))

    def loss(self, made: Compressed) -> float | None:
        """‖y − ŷ‖² / ‖y‖² of the outputs for the batches that were held out."""
        runs = [
            compile(graph, backend=backend_of(next(iter(params.values()))), params=params)
            for graph, params in ((self.graph, self.params), (made.model, made.params or {}))
        ]
        return lost_by([run(*batch) for run in runs] for batch in self.held)


def _weighed(network: _Weights, calibrate: Any) -> _Weights:
    """A network with the ways to weigh its weights by some batches."""
    if calibrate is None:
        return replace(network, ways=(network.candidates(None),))
    batches, held = held_out(batches_of(calibrate))
    weighed = network.candidates(batches)
    plain = [each.plain or each for each in weighed]
    ways = (weighed,) if network.options.budget.kind == "error" else (weighed, plain)
    return replace(network, ways=ways, held=held if weighed else [])


def lost_by(pairs: Iterable[Sequence[Any]]) -> float | None:
    """Σ‖y − ŷ‖² / Σ‖y‖² over pairs of results, each an array or a tuple of arrays; None if all are empty or 0.

    What is −∞ in both, such as a masked logit, does not count. Results of different shapes have an infinite loss.
    """
    lost = whole = 0.0
    for pair in pairs:
        ours, theirs = (each if isinstance(each, tuple) else (each,) for each in pair)
        arrays = [[_wide(each) for each in results] for results in (ours, theirs)]
        if [each.shape for each in arrays[0]] != [each.shape for each in arrays[1]]:
            return math.inf
        for before, after in zip(*arrays, strict=True):
            differing = before != after
            lost += float((np.abs(before[differing] - after[differing]) ** 2).sum())
            whole += float((np.abs(before[np.isfinite(before)]) ** 2).sum())
    if not whole and not lost:
        return None
    return lost / (whole or 1.0) if math.isfinite(lost) else math.inf


def _wide(array: Any) -> Any:
    found = backend_of(array).numpy(array)
    return found.astype("complex128" if found.dtype.kind == "c" else "float64")


def held_out(batches: Iterable[T]) -> tuple[list[T], list[T]]:
    """The batches to weigh weights by, and those to choose by: each fourth, or all if there are fewer."""
    given = list(batches)
    held = given[3::4]
    return (given, given) if not held else ([each for n, each in enumerate(given) if n % 4 != 3], held)


def misfits_of(found: Mapping[str, Approximation]) -> dict[str, Misfit]:
    """The errors of some weights."""
    return {path: Misfit(each.error, each.output) for path, each in found.items()}


def included(
    known: Sequence[str], include: str | Sequence[str], exclude: str | Sequence[str], what: str, all_of: str
) -> tuple[str, ...]:
    """The names that match `include` and not `exclude`.

    Args:
        known: the names.
        include, exclude: the patterns.
        what, all_of: the singular and the plural noun for what has these names, for errors.
    """
    out = told_by(exclude, known, what, all_of) if exclude else ()
    return tuple(name for name in told_by(include, known, what, all_of) if name not in out)


def cost_of(options: Options, backend: Backend, device: str | None) -> Cost:
    """The function for the cost of a weight in the unit of a budget."""
    kind = options.budget.kind
    if kind in ("flops", "seconds"):
        return planned_cost(kind, backend, device, options.modes)
    return bytes_of if kind == BYTES else parameters_of


def _candidates(
    graph: Graph, params: Mapping[str, Any], names: Sequence[str], inputs: Any, sizes: Mapping[str, int]
) -> Iterator[Candidate]:
    """The weights that are an operand of a contraction wherever they are read, and those whose rows are looked up."""
    whole = graph.flat
    given = whole_sizes(graph, sizes)
    known = {**whole.bound, **{name: given.get(name, NOMINAL) for name in graph.open_sizes}}
    found = {name: sites(whole, name) for name in names if params[name].ndim > 1}
    dims_of = {
        leaf.name: tuple(tuple(int(evaluate(axis.size, graph.bound)) for axis in dim) for dim in leaf.dims)
        for leaf in graph.parameters
        if leaf.name in found
    }
    weighed = {}
    if inputs is not None and any(found.values()):
        paths = [name for name, each in found.items() if each]
        weighed = metrics(graph, params, paths, batches_of(inputs), backend_of(params[paths[0]]), DAMPING)
    for name, each in found.items():
        dims = dims_of[name]
        if each:
            kept = tuple(n for n in each[0].dims if set(each[0].axes(n)) & set(each[0].kept))
            rows = sum(_rows(whole, site, known) for site in each)
            layer = alone(dims, each[0].dims, kept)
            plain = Candidate(name, dims, layer, params[name], max(1, rows))
            yield replace(plain, metric=weighed[name], plain=plain) if name in weighed else plain
        elif looked_up := _looked_up(whole, name, known):
            yield Candidate(name, dims, alone(dims), params[name], looked_up)


def _rows(graph: Graph, site: Site, known: Mapping[str, int]) -> int:
    """The number of rows that one contraction multiplies by a weight."""
    scope, own = graph.scope(site.line), axes_of_index(site.weight.index)
    rest = (axis for axis in site.around if axis not in own)
    return math.prod(int(evaluate(evaluate(scope[axis], graph.bound), known)) for axis in rest)


def _looked_up(graph: Graph, name: str, known: Mapping[str, int]) -> int:
    """The number of rows of a weight that a call looks up; 0 if the weight is used in any other way."""
    rows = 0
    for line in graph.own:
        for ref in line.references:
            if ref.name != name:
                continue
            first, *rest = ref.index
            if not isinstance(first, Ref) or not all(isinstance(entry, str) for entry in rest):
                return 0
            scope = graph.scope(line)
            axes = [axis for axis in first.index if isinstance(axis, str)]
            rows += math.prod(int(evaluate(evaluate(scope[axis], graph.bound), known)) for axis in axes)
    return rows
