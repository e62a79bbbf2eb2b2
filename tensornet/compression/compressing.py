"""Networks compressed under a budget: forms and ranks are allocated, weights substituted, factors fitted.

A compressed network may then be trained to answer what the one that it was made of answers (distillation).
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ..codegen.program import planned
from ..errors import (
    EquationError,
    ShapeError,
    by_name,
    check_arguments,
    checked_call,
    checked_number,
    names_in,
    path_of,
    unwarned,
)
from ..fitting.metrics import DAMPING, Metric, batches_of, checked_batches, metrics, sites
from ..graph.argument_shapes import sizes_from_shapes
from ..graph.formulas import parameter_count
from ..graph.graph import Graph
from ..graph.leaves import told_by
from ..language.equation import Equation
from ..language.expression import Ref, axes_of_index
from ..planning.planner import NOMINAL, whole_sizes
from ..protocol import Backend, backend_of, load_backend
from ..runtime.compiling import compile
from ..runtime.executable import wrong_names
from ..sizes import evaluate
from ..weights.equations import CODES, Modes, rounding_of
from ..weights.substitution import freeze, substitute
from .allocating import Allocation, Budget, Curve, Options, Whole, allotted
from .compressed import INT8, Compressed, networks
from .levels import AUTO, BYTES, Candidate, alone, bytes_in, check_modes, cost_of, dims_of, levels

Factors: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The factors of each weight, by the names of both."""

Telling = Callable[[str, int, int], None]
"""A callback for progress. Its arguments are a weight, the number of weights done, and their total."""


@check_arguments
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
    activations: str | None = None,
    backend: str | Backend = "torch",
    device: str | None = None,
    progress: Telling | None = None,
    **sizes: int,
) -> Compressed:
    """Makes a trained network smaller: spreads a budget over its weights, and replaces weights by factors.

    Each weight W has levels Ŵ, one for each form and rank. A level has a cost, and an error e = ‖W − Ŵ‖/‖W‖. Weights
    step down their levels in the order of added e² per saved cost, until the budget is met. A weight from which no
    step is taken stays dense.

    A graph gives a graph with its parameters, and a `torch.nn.Module` gives a module of the same structure. `Linear`,
    `Conv1d` to `Conv3d`, `Embedding` and `Conv1D` of transformers keep their classes, biases, names and hooks. They
    have factors in place of `weight`, which can still be read; `GRU`, `LSTM` and `RNN` compute with factors too.
    All other matrices among the parameters, of at least 1,024 elements, become factors that a call multiplies
    together, such as the projections of `MultiheadAttention`, `ConvTranspose2d` and the experts of a mixture: a
    budget of FLOPs or seconds leaves them as they are. The given network is not changed.

    Args:
        network: a graph, or a `torch.nn.Module`.
        params: the parameters of the graph, name to array.
        parameters: the budget as parameters of the whole network: 0.2 is a fraction of them, 100_000 a number.
        bytes: the budget as bytes: weights and factors are also rounded, to 1 to 8 bits. Scales count.
        flops: the budget as FLOPs of a call at `sizes`: a fraction or a number.
        seconds: the budget as a fraction of the expected time of a call at `sizes`.
        error: a bound instead of a budget: the largest root mean square of e over the weights. The network then has
            as few parameters as the bound allows.
        method: a form of the table of `tensornet.substitute`, or several; "auto" finds one for each weight.
            By default it is "auto" for a budget of bytes, else "low_rank". With "int4" weights are rounded to 4 bits,
            with "low_rank:int4" factors, those of "low_rank:int" to bits for each rank; "int4/64" has a scale for each
            64 elements of a row.
        modes: the parts into which dimensions are split, as for `substitute`.
        include, exclude: patterns of the names of the weights to compress and to leave out; `*` matches anything.
        uniform: whether each weight keeps the same fraction of its cost, whatever its error: for comparison.
        max_error: the largest e of a weight: levels that lose more are not taken.
        calibrate: batches of inputs, such as a loader. Errors of weights are measured in several ways: of the weights
            alone, of their products with these inputs, and in a module also weighed by how much its output changes with
            them. The way that changes the output least on batches held out is taken. A bound `error` is of the products
            with the inputs. Without bounds, factors and biases of a module then make up for the errors of the layers
            before, if the output changes less so. For a module, each batch is an array, a tuple of arguments, or a
            mapping of keyword arguments.
        activations: "int8" lets rounded linear layers, GRUs and LSTMs of a module round what they multiply as well,
            and run kernels of integers where these are expected to be faster: without gradients, in evaluation mode,
            on x86 processors.
        backend, device: the target for which FLOPs and seconds are planned.
        progress: called with a weight, the number of weights done, and their total.
        **sizes: the sizes of open axes of a graph, for FLOPs and seconds; 64 where none is given.

    Returns:
        The network as `model`, with `params` for a graph; the levels of the weights as `allocation`, and their errors
        as `misfits`.

    Raises:
        ShapeError: not exactly one budget is given, no forms meet it, or the parameters have other names or shapes.
        EquationError: a pattern matches nothing.
        DtypeError: a weight holds other values than finite real numbers.

    Example:
        >>> import numpy as np, tensornet as tn
        >>> graph = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=64, o=64)
        >>> small = compress(graph, {"W": np.outer(np.ones(64), np.arange(64.0))}, parameters=0.1)
        >>> tn.parameter_count(small.model), small.misfits["W"].weight < 1e-12
        (128, True)
    """
    torch = None if isinstance(network, Graph) else networks(network)
    budget = Budget.of(parameters=parameters, bytes=bytes, flops=flops, seconds=seconds, error=error)
    options = Options.of(budget, method, modes, max_error, uniform, include, exclude, progress)
    options = replace(options, activations=_activations(activations, options, torch is not None))
    if torch is not None:
        if params is not None or sizes:
            names = "parameters" if params is not None else ", ".join(f"{name}=" for name in sizes)
            raise EquationError(f"a module has no use for {names}", fix="leave it out, or give a graph")
        found: Compressed = torch.compress(network, options, device, calibrate)
        return found
    if params is None:
        raise EquationError("a graph is compressed with its parameters", fix="compress(graph, params, …)")
    batches, held = (None, []) if calibrate is None else held_out(batches_of(calibrate))
    own = _Network(bound(network, params), params, options, sizes)
    ways = [own.candidates(batches)]
    if calibrate is not None and budget.kind != "error":
        ways.append([replace(each, metric=None) for each in ways[0]])
    loss = functools.partial(own.loss, held if ways[0] else ())
    return best(ways, options, own.whole(load_backend(backend), device), Trial(own.made, loss))


def _activations(given: str | None, options: Options, is_module: bool) -> str | None:
    """The type that activations are rounded to.

    Raises:
        EquationError: there is no such type, no weight is rounded, or the network is a graph.
    """
    if given not in (None, INT8):
        raise EquationError(f"activations={given!r} is no type of activations", fix=f'give "{INT8}" or None')
    is_rounded = options.budget.kind == BYTES or any(rounding_of(name)[1] for name in options.methods)
    if given and not (is_module and is_rounded):
        what = "activations= are of layers with rounded weights of a module, and there are none"
        raise EquationError(what, fix="give a module, and a budget of bytes or a method that rounds, as int8")
    return given


Tried: TypeAlias = tuple[float, Compressed, Sequence[Candidate], Sequence[Curve]]
"""What is lost, what was made of a network, its weights, and their levels."""


@dataclass(frozen=True)
class Trial:
    """How a compressed network is made and measured.

    Attributes:
        made: makes the network with factors, from the allocation and the factors of each weight.
        loss: what its output loses on held batches; None if there are none, or these tell nothing.
        measured: the levels of weights at the losses that were measured for what was first made of them.
        corrected: makes a network in which factors make up for the errors of those before.
    """

    made: Callable[[Allocation, Factors], Compressed]
    loss: Callable[[Compressed], float | None]
    measured: Callable[[Sequence[Curve], Compressed], Sequence[Curve]] | None = None
    corrected: Callable[[Compressed, Sequence[Candidate]], Compressed] | None = None


def best(ways: Iterable[Sequence[Candidate]], options: Options, whole: Whole, trial: Trial) -> Compressed:
    """The compressed network of the way to weigh weights that loses least, or of the first if none tells a loss.

    Args:
        ways: the weights, weighed in each way.
        options: the budget, and how it is spread.
        whole: the whole network.
        trial: how the network is made and measured.
    """

    def tried(candidates: Sequence[Candidate], curves: Sequence[Curve]) -> Tried:
        allocation = allotted(candidates, curves, options, whole)
        chosen = [each for each in candidates if each.path in allocation.weights]
        fits = {each.path: each.fitted(*allocation.weights[each.path], options.modes) for each in chosen}
        small = trial.made(allocation, {path: each.factors for path, each in fits.items()})
        loss, misfits = trial.loss(small), {path: each.misfit for path, each in fits.items()}
        made = replace(small, misfits=misfits, loss=loss)
        return math.inf if loss is None else loss, made, candidates, curves

    found = list[Tried]()
    for candidates in ways:
        check_modes(candidates, options.methods, options.modes)
        curves = list[Curve]()
        for number, each in enumerate(candidates):
            if options.progress is not None:
                options.progress(each.path, number, len(candidates))
            curves += [levels(each, options.methods, whole.cost, options.modes, options.max_error)]
        found.append(tried(candidates, curves))
        if trial.measured is not None and len(found) == 1:
            found.append(tried(candidates, trial.measured(curves, found[0][1])))
        found = [min(found, key=lambda one: one[0])]
    ((loss, least, weights, chosen),) = found
    mixed = {each.level.method for each in least.allocation.rows if each.level.method and len(each.shape) > 2}
    is_told = options.methods == (AUTO,) and math.isfinite(loss) and len(mixed) > 1
    # errors of forms differ in how the rest of the network passes them on
    for name in sorted(mixed) if is_told else ():
        rest, pairs = mixed - {name}, zip(weights, chosen, strict=True)
        alone = [[one for one in own if len(each.dims) < 3 or one.method not in rest] for each, own in pairs]
        with contextlib.suppress(ShapeError):  # this form alone is too large
            found.append(tried(weights, alone))
    loss, least, weights, _ = min(found, key=lambda one: one[0])
    is_bound = options.budget.kind == "error" or math.isfinite(options.max_error)
    if trial.corrected is None or is_bound or not math.isfinite(loss):
        return least
    better = trial.corrected(least, weights)
    now = trial.loss(better)
    return replace(better, loss=now) if now is not None and now < loss else least


# ---------------------------------------------------------------------------- graphs


def bound(graph: Graph, params: Any) -> Graph:
    """A graph with the sizes that its parameters have.

    Raises:
        ShapeError: the parameters have other names, or shapes that do not fit.
    """
    if set(by_name(params, "the parameters", '{"W": array}')) != {leaf.name for leaf in graph.parameters}:
        raise wrong_names(graph, params)
    shapes = [tuple(params[leaf.name].shape) for leaf in graph.parameters]
    sizes = sizes_from_shapes(graph, graph.parameters, shapes)
    return graph.bind(**sizes) if sizes else graph


@dataclass(frozen=True)
class _Network:
    """A graph to compress, with its parameters, which weights are included, and the sizes of open axes."""

    graph: Graph
    params: Mapping[str, Any]
    options: Options
    sizes: Mapping[str, int]

    def whole(self, backend: Backend, device: str | None) -> Whole:
        """What the graph costs on a target."""
        count, kind = parameter_count(self.graph), self.options.budget.kind
        total = float(sum(map(bytes_in, self.params.values())) if kind == BYTES else count)
        if kind in ("flops", "seconds"):
            plan = planned(self.graph, self.sizes, backend, device or backend.device(), "float32")
            total = getattr(plan, kind)
        return Whole(cost_of(kind, backend, device, self.options.modes), total, count)

    def candidates(self, inputs: Any) -> list[Candidate]:
        """The weights that are an operand of a contraction wherever they are read, and those whose rows are looked up.

        Args:
            inputs: batches that weigh them, or None.
        """
        graph, params, options = self.graph, self.params, self.options
        whole, leaves = graph.flat, {leaf.name: leaf for leaf in graph.parameters}
        told = ("parameter of this graph", "parameters")
        names = included([*leaves], options.include, options.exclude, *told)
        places = {name: sites(whole, name) for name in names if params[name].ndim > 1}
        paths, weighed = [name for name, each in places.items() if each], dict[str, Metric]()
        if inputs is not None and paths:
            weighed = metrics(graph, params, paths, inputs, DAMPING)
        known = {**whole.bound, **dict.fromkeys(graph.open_sizes, NOMINAL), **whole_sizes(graph, self.sizes)}
        found = list[Candidate]()
        for name, at in places.items():
            columns = at[0].dims if at else ()
            kept = tuple(n for n in columns if set(at[0].axes(n)) & set(at[0].kept))
            read = [(each.line, set(each.around) - {*each.weight.free_axes}) for each in at]
            rows = 0
            for line, axes in read or _looked_up(whole, name):
                scope = whole.scope(line)
                rows += math.prod(int(evaluate(evaluate(scope[axis], whole.bound), known)) for axis in axes)
            if rows:
                dims = dims_of(leaves[name], graph)
                layer = alone(dims, columns, kept)
                found.append(Candidate(name, dims, layer, params[name], rows, weighed.get(name)))
        return found

    def made(self, allocation: Allocation, factors: Factors) -> Compressed:
        """The graph with factors in the place of weights."""
        if not factors:
            return Compressed(self.graph, dict(self.params), allocation)
        with unwarned():
            graph = substitute(self.graph, allocation.weights, modes=allocation.modes)
        found = {f"{path}.{name}": a for path, each in factors.items() for name, a in each.items()}
        known = dict(self.params) | found
        codes = [name for name in found if name.endswith(CODES)]
        graph = freeze(graph, known, codes) if codes else graph
        return Compressed(graph, {leaf.name: known[leaf.name] for leaf in graph.parameters}, allocation)

    def loss(self, held: Sequence[Any], made: Compressed) -> float | None:
        """‖y − ŷ‖² / ‖y‖² of the outputs for batches."""
        if not held:
            return None
        pairs = ((self.graph, self.params), (made.model, made.params))
        backend = backend_of(next(iter(self.params.values())))
        runs = [compile(each, backend=backend, params=values) for each, values in pairs]
        return lost_by([run(*batch) for run in runs] for batch in held)


def _looked_up(graph: Graph, name: str) -> list[tuple[Equation, set[str]]]:
    """The equations that look up rows of a weight, each with the axes of these; none if one uses it in another way."""
    reads = [(line, ref.index) for line in graph.own for ref in line.references if ref.name == name]
    for _, (first, *rest) in reads:
        if not isinstance(first, Ref) or not all(isinstance(entry, str) for entry in rest):
            return []
    return [(line, {*axes_of_index(index[:1])}) for line, index in reads]


# ---------------------------------------------------------------------------- batches and names


def lost_by(pairs: Iterable[Sequence[Any]]) -> float | None:
    """Σ‖y − ŷ‖² / Σ‖y‖² over pairs of results, each an array or a tuple of arrays; None if all are empty or 0.

    What is −∞ in both, such as a masked logit, does not count. Results of different shapes have an infinite loss.
    """
    lost = whole = 0.0
    for pair in pairs:
        ours, theirs = ([*map(_wide, each)] if isinstance(each, tuple) else [_wide(each)] for each in pair)
        if [each.shape for each in ours] != [each.shape for each in theirs]:
            return math.inf
        for before, after in zip(ours, theirs, strict=True):
            differing = before != after
            lost += float((np.abs(before[differing] - after[differing]) ** 2).sum())
            whole += float((np.abs(before[np.isfinite(before)]) ** 2).sum())
    if not whole and not lost:
        return None
    return lost / (whole or 1.0) if math.isfinite(lost) else math.inf


def _wide(array: Any) -> Any:
    return backend_of(array).numpy(array) * np.float64(1)


def held_out(batches: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """The batches to weigh weights by, and those to choose by: each fourth, or all if there are fewer."""
    given = list(checked_batches(batches))
    held = given[3::4]
    return ([each for n, each in enumerate(given) if n % 4 != 3], held) if held else (given, given)


def included(
    known: Sequence[str], include: str | Sequence[str], exclude: str | Sequence[str], what: str, all_of: str
) -> tuple[str, ...]:
    """The names that match `include` and not `exclude`.

    Args:
        known: the names.
        include, exclude: the patterns.
        what, all_of: the singular and the plural noun for what has these names, for errors.
    """
    out = told_by(exclude, known, what, all_of) if names_in(exclude, all_of) else ()
    return tuple(name for name in told_by(include, known, what, all_of) if name not in out)


# ---------------------------------------------------------------------------- distillation


@check_arguments
def distill(
    student: Any,
    teacher: Any,
    batches: Any,
    /,
    *,
    steps: int = 200,
    rate: float = 3e-4,
    hidden: str | Sequence[str] = (),
    progress: Callable[[int, int, float], None] | None = None,
    resume: str | Path | None = None,
) -> float:
    """Trains a smaller network, in place, to answer what another answers: it minimises Σ ‖y − ŷ‖² / ‖y‖².

    All parameters that require gradients are trained, by Adam. Codes of rounded factors are trained too: they are real
    numbers meanwhile, and rounded in each call. Both networks run in evaluation mode. A fourth of the batches is held
    out. What did best on these is kept, which may be what the student was before.

    Args:
        student: a `torch.nn.Module`, or what `tensornet.compress` or `tensornet.adapt` returned.
        teacher: the network that it was made of.
        batches: as for `calibrate=` of `tensornet.compress`.
        steps: of training, each on one batch.
        rate: the learning rate at the start, in units of the size of each parameter; it falls to 0 along a cosine.
        hidden: the names of modules, the same in both networks, whose results are compared too.
        progress: called ten times, with the step, `steps`, and the loss on the held batches.
        resume: a file that is written each time, and read if it exists: training goes on where it ended.

    Returns:
        The loss on the held batches, the mean of Σ ‖y − ŷ‖² / ‖y‖².

    Raises:
        EquationError: there are no batches, no parameter to train, no module of such a name, or no real results.
        ShapeError: the networks answer in different shapes, or `steps` or `rate` is not positive.
        DtypeError: what they answer is not finite.

    Example:
        >>> import torch, tensornet as tn
        >>> network = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8))
        >>> batches = list(torch.randn(8, 64, 32))
        >>> small = tn.compress(network, bytes=0.1, calibrate=batches)
        >>> distill(small, network, batches, steps=50) <= small.loss * 1.01
        True
    """
    student = student.model if isinstance(student, Compressed) else student
    torch = networks(student, teacher)
    checked_number(steps, "steps", 1, whole=True)
    checked_number(rate, "rate", None)
    names = names_in(hidden, "hidden modules")
    checked_call(progress, "progress", "a step, all steps, and the loss")
    place = None if resume is None else path_of(resume)
    found: float = torch.distilled(student, teacher, batches, steps, rate, names, progress, place)
    return found
