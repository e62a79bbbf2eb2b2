"""Networks compressed under a budget: forms and ranks are allocated, weights substituted, factors fitted."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..codegen.program import planned
from ..errors import EquationError, ShapeError
from ..fitting.activations import Site, batches_of, metrics, sites
from ..fitting.metrics import DAMPING
from ..fitting.weights import fit
from ..graph.formulas import parameter_count
from ..graph.graph import Graph
from ..graph.leaves import told_by
from ..language.expression import Ref, axes_of_index
from ..planning.planner import NOMINAL, whole_sizes
from ..protocol import Backend, backend_of, load_backend
from ..runtime.arguments import wrong_names
from ..sizes import evaluate
from ..weights.equations import Modes
from ..weights.ranks import Rank
from ..weights.substitution import substitute
from .allocating import Allocation, Budget, allotted, flat
from .compressed import Compressed, check_module
from .levels import WEIGHT, Candidate, Cost, any_rank, gathered, multiplied

__all__ = ["allocate", "compress", "cost_of", "included"]

Telling = Callable[[str, int, int], None]
"""A callback for progress. Its arguments are a weight, the number of weights done, and their total."""


def allocate(
    graph: Graph,
    params: Mapping[str, Any],
    /,
    *,
    parameters: float | None = None,
    flops: float | None = None,
    seconds: float | None = None,
    error: float | None = None,
    method: str | Sequence[str] = "low_rank",
    modes: Modes | None = None,
    include: str | Sequence[str] = "*",
    exclude: str | Sequence[str] = (),
    uniform: bool = False,
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
        flops: the budget as FLOPs of a call at `sizes`: a fraction or a number.
        seconds: the budget as a fraction of the expected time of a call at `sizes`.
        error: a bound instead of a budget: the largest root mean square of e over the weights. The allocation then
            has as few parameters as the bound allows.
        method: a form of the table of `tensornet.substitute`, or several to choose from.
        modes: the parts into which dimensions are split, as for `substitute`.
        include, exclude: patterns of the names of the weights to compress and to leave out; `*` matches anything.
        uniform: whether each weight keeps the same fraction of its cost, whatever its error: for comparison.
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
    _check_names(graph, params)
    budget = Budget.of(parameters=parameters, flops=flops, seconds=seconds, error=error)
    backend = load_backend(backend)
    cost = cost_of(budget, backend, device, modes)
    known = [leaf.name for leaf in graph.parameters]
    names = included(known, include, exclude, "parameter of this graph", "parameters")
    candidates = tuple(_candidates(graph, params, names, inputs, sizes))
    whole = parameter_count(graph)
    if not isinstance(whole, int):
        missing = ", ".join(f"{name}=" for name in graph.open_sizes)
        raise ShapeError("the parameters have open sizes", fix=f"bind them first: graph.bind({missing}…)")
    total: float = whole
    if budget.kind in ("flops", "seconds"):
        plan = planned(graph, sizes, backend, device or backend.device(), "float32")
        total = float(getattr(plan, budget.kind))
    sizes_of = (
        float(math.prod(each.shape)) if cost is None else cost(each.layer, each.rows) for each in candidates
    )
    others = max(0.0, total - sum(sizes_of))
    return allotted(candidates, budget, flat(method), cost, others, whole, modes, uniform, progress)


def compress(
    network: Any,
    params: Mapping[str, Any] | None = None,
    /,
    *,
    parameters: float | None = None,
    flops: float | None = None,
    seconds: float | None = None,
    error: float | None = None,
    method: str | Sequence[str] = "low_rank",
    modes: Modes | None = None,
    include: str | Sequence[str] = "*",
    exclude: str | Sequence[str] = (),
    uniform: bool = False,
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
        parameters, flops, seconds, error: the one budget, as for `tensornet.allocate`.
        method, modes, include, exclude, uniform: as for `tensornet.allocate`; the names are those of parameters.
        calibrate: batches of inputs, such as a loader. The factors then minimize the error of each weight's output.
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
    options: dict[str, Any] = {"method": method, "modes": modes, "include": include, "exclude": exclude}
    options |= {"parameters": parameters, "flops": flops, "seconds": seconds, "error": error}
    options |= {"uniform": uniform, "device": device, "progress": progress}
    if not isinstance(network, Graph):
        check_module(network)
        if params is not None or sizes:
            given = "parameters" if params is not None else ", ".join(f"{name}=" for name in sizes)
            raise EquationError(f"a module has no use for {given}", fix="leave it out, or give a graph")
        torch: Any = load_backend("torch")
        compressed: Compressed = torch.networks.compressed(network, calibrate=calibrate, **options)
        return compressed
    if params is None:
        raise EquationError("a graph is compressed with its parameters", fix="compress(graph, params, …)")
    calibrate = None if calibrate is None else list(batches_of(calibrate))
    allocation = allocate(network, params, inputs=calibrate, backend=backend, **{**options, **sizes})
    if not allocation.weights:
        return Compressed(network, dict(params), allocation)
    with any_rank():
        made = substitute(network, allocation.weights, modes=modes)
    found, misfits = fit(network, params, made, inputs=calibrate)
    return Compressed(made, found, allocation, misfits)


def _check_names(graph: Graph, params: Mapping[str, Any]) -> None:
    if not hasattr(params, "keys") or set(params) != {leaf.name for leaf in graph.parameters}:
        raise wrong_names(graph, params)


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


def cost_of(budget: Budget, backend: Backend, device: str | None, modes: Modes | None) -> Cost | None:
    """The function for the cost of a layer in the unit of a budget; None if the cost is the number of parameters."""
    if budget.kind in ("parameters", "error"):
        return None

    @functools.cache
    def cost(layer: Graph, rows: int, form: tuple[str, Rank] | None = None) -> float:
        if form is not None:
            layer = substitute(layer, {WEIGHT: form}, modes=modes)
        place = device or backend.device()
        return float(getattr(planned(layer, {"n": rows}, backend, place, "float32"), budget.kind))

    return cost


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
            layer = multiplied(dims, each[0].dims, kept)
            yield Candidate(name, dims, layer, params[name], max(1, rows), weighed.get(name))
        elif looked_up := _looked_up(whole, name, known):
            yield Candidate(name, dims, gathered(dims), params[name], looked_up)


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
