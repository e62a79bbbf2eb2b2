"""`tensornet.sweep`: graphs given by name or built for each combination of settings, with their costs side by side."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..dtypes import element_type
from ..errors import TensornetError, TensornetWarning, by_name
from ..fitting.weights import nearest
from ..graph.graph import Graph
from ..protocol import Backend, load_backend
from ..runtime.compiling import to_backend
from .measuring import Bench, Candidate
from .sweeps import Row, Sweep, plain

__all__ = ["sweep"]

BASELINE = "baseline"
"""The name of a baseline that is given as a graph."""


def sweep(
    graphs: Mapping[str, Graph] | Callable[..., Graph],
    /,
    *,
    over: Mapping[str, list[Any]] | None = None,
    inputs: Mapping[str, Any] | None = None,
    backend: str | Backend = "torch",
    device: str | None = None,
    dtype: str = "float32",
    measure: bool = True,
    training: bool = False,
    error: Callable[[Graph], float] | None = None,
    weights: Any = None,
    baseline: str | Graph | None = None,
    rounds: int = 7,
    clock: str = "wall",
    threads: int | None = None,
    seed: int = 0,
    **sizes: int,
) -> Sweep:
    """The costs of many graphs in one table: parameters, FLOPs, bytes, and seconds, expected and measured.

    All graphs are in memory at once, and take turns to be timed in this process. They are compared with one of them,
    because a ratio says more than a time. On torch, calls of `tensornet.module` are timed, with autograd for the
    backward pass. On other backends, calls of `tensornet.compile` are timed, with the gradients as equations. The
    backward pass computes the gradients of all parameters.

    Args:
        graphs: graphs by name; or a function that builds one from the settings in `over`. Bind settings that are the
            same for all before: `functools.partial(tn.models.linear, (32, 32), (32, 32))`.
        over: setting → list of choices. One graph is built for each combination. A tuple is one choice, such as a
            rank for each mode. A combination that the builder refuses becomes a row with the reason.
        inputs: arrays by the names of inputs. Their shapes determine sizes. Other inputs are random, positions are 0.
        backend: "numpy", "torch", "cupy" or "jax".
        device: the device as the backend names it; by default that of the backend.
        dtype: the element type.
        measure: whether to time calls.
        training: whether to report the backward pass too: the time of both passes, and the bytes kept for it.
        error: a function that returns a number for each graph, such as an approximation error.
        weights: instead of `error`, the weights that the graphs approximate. The error is then the least that factors
            can have, ‖W − Ŵ‖ / ‖W‖. Name to array, for graphs that have the weights or compute them from others, as
            after `tensornet.substitute`; or one array, for layers that multiply their one input by it.
        baseline: the graph that the others are compared with: the name of one of them, by default the first that is
            not refused; or a graph, which becomes a further row called "baseline".
        rounds: the number of turns of each graph.
        clock: "wall"; or "process", if other processes use the processor. It counts only the time in which this
            process runs, and needs device="cpu" and threads=1.
        threads: the number of threads of the processor, on torch.
        seed: the seed of random parameters and inputs.
        **sizes: values for open sizes; each graph takes those that it has, and one not given is assumed to be 64.

    Raises:
        TensornetError: there is nothing to sweep over, choices are not a list, all combinations are refused, or there
            is no such baseline, clock or number of threads; an error and weights are both given.
        ShapeError: no graph has a given size or input, or its shape does not match.
        BackendError: there is no such backend or device.

    Example:
        >>> import functools, tensornet as tn
        >>> build = functools.partial(tn.models.tcl, (8, 8))
        >>> found = tn.sweep(build, over={"ranks": [2, (4, 2), 8]}, baseline="ranks=8", measure=False, lead=100)
        >>> [(row.name, row.parameters, found.ratio(row, "parameters")) for row in found]
        [('ranks=2', 32, 0.25), ('ranks=(4, 2)', 48, 0.375), ('ranks=8', 128, 1.0)]
    """
    chosen = load_backend(backend)
    chosen.namespace()
    if inputs is not None and not isinstance(inputs, Mapping):
        fix = 'give arrays by the names of inputs: {"x": array}'
        raise TensornetError(f"inputs is a {type(inputs).__name__}", fix=fix)
    if error is not None and not callable(error):
        fix = "give a function of a graph, or what the graphs are to approximate as weights="
        raise TensornetError(f"error is {error!r}", fix=fix)
    if weights is not None and error is not None:
        raise TensornetError("error and weights are both given", fix="give one of them")
    error = error if weights is None else functools.partial(nearest, weights=weights)
    where, kind = chosen.device() if device is None else device, element_type(dtype)
    given = to_backend(inputs or {}, chosen, device=where)
    bench = Bench(chosen, where, kind, threads, clock, seed, rounds, training, error, sizes, given)
    bench.check()
    found = _candidates(graphs, over, baseline)
    bench.check_names([each.graph for each in found if each.graph is not None])
    with bench.taken():
        found = [bench.planned(each) for each in found]
        plans = [each.plan for each in found if each.plan is not None]
        if not plans:
            raise TensornetError(f"none of the graphs can be planned: {found[0].row.refused}")
        rows = bench.measured(found) if measure else [each.row for each in found]
        version = chosen.version(where)
    first = next(row.name for row in rows if not row.refused)
    return Sweep(
        rows=tuple(rows),
        baseline=BASELINE if isinstance(baseline, Graph) else baseline or first,
        backend=chosen.name,
        device=where,
        dtype=kind,
        where=version,
        threads=threads,
        clock=clock,
        sizes=tuple({name: size for each in found for name, size in each.sizes.items()}.items()),
        assumed=tuple(dict.fromkeys(name for each in found for name in each.assumed)),
        rounds=rounds if measure else 0,
        certainty=str(plans[0].certainty or ""),
    )


def _candidates(
    graphs: Mapping[str, Graph] | Callable[..., Graph],
    over: Mapping[str, list[Any]] | None,
    baseline: str | Graph | None,
) -> list[Candidate]:
    """The graphs, in order. A baseline that is given as a graph comes first.

    Raises:
        TensornetError: there are no graphs or no choices, two graphs have the same name, the baseline is unknown, or
            every combination is refused.
    """
    found = _given(graphs, over) if isinstance(graphs, Mapping) else _built(graphs, over)
    if isinstance(baseline, Graph):
        found = [Candidate(Row(BASELINE), baseline), *found]
    if not found:
        raise TensornetError("there is nothing to sweep over", fix='give graphs by name: {"dense": graph}')
    names = [each.row.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise TensornetError(f"two graphs are called '{name}'", fix="give each choice and name once")
    if not isinstance(baseline, Graph | None) and baseline not in names:
        raise TensornetError(f"there is no baseline '{baseline}'", fix=f"choose of {', '.join(names)}")
    return found


def _given(graphs: Mapping[str, Graph], over: Mapping[str, list[Any]] | None) -> list[Candidate]:
    if over is not None:
        fix = "give what builds a graph, tn.sweep(tn.models.linear, over=…), or leave `over` out"
        raise TensornetError("graphs are given by name, and settings to build them with", fix=fix)
    for name, graph in graphs.items():
        if not isinstance(name, str) or not isinstance(graph, Graph):
            told = f"{name!r}: {type(graph).__name__} is no name with a graph"
            raise TensornetError(told, fix='give graphs by name: {"dense": graph}')
    return [Candidate(Row(name), graph) for name, graph in graphs.items()]


def _built(build: Callable[..., Graph], over: Mapping[str, list[Any]] | None) -> list[Candidate]:
    if isinstance(build, Graph) or not callable(build):
        fix = 'give graphs by name, {"dense": graph}, or a function that builds one'
        raise TensornetError(f"a {type(build).__name__} is nothing to sweep over", fix=fix)
    over = by_name(over, "the settings of over", '{"rank": [4, 8]}')
    if not over:
        fix = 'say what to choose from, by setting: over={"rank": [4, 8]}'
        raise TensornetError("there are no settings to build graphs with", fix=fix)
    for setting, choices in over.items():
        if not isinstance(choices, list):  # a tuple may be one choice, such as a rank for each mode
            told = f"over['{setting}'] is a {type(choices).__name__}, not a list of choices"
            fix = f"to choose from several, give a list; {choices!r} alone is [{choices!r}]"
            raise TensornetError(told, fix=fix)
    found, refused = list[Candidate](), list[TensornetError]()
    for values in itertools.product(*over.values()):
        settings = dict(zip(over, values, strict=True))
        # words appear without their setting, as in `cp, rank=0.1`
        words = (value if isinstance(value, str) else f"{key}={value}" for key, value in settings.items())
        row = Row(", ".join(words), tuple((key, plain(value)) for key, value in settings.items()))
        try:
            graph, note = _noting(build, settings)
        except TensornetError as error:
            found.append(Candidate(replace(row, refused=error.message)))
            refused.append(error)
            continue
        if not isinstance(graph, Graph):
            told = f"what builds graphs returned a {type(graph).__name__}"
            raise TensornetError(told, fix="return a graph, as tn.layer does")
        found.append(Candidate(replace(row, note=note), graph))
    if refused and len(refused) == len(found):
        raise refused[0]
    return found


def _noting(build: Callable[..., Graph], settings: Mapping[str, Any]) -> tuple[Graph, str]:
    """The graph that is built, and the warnings of the library. Other warnings are issued again."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        graph = build(**settings)
    own = [each for each in heard if issubclass(each.category, TensornetWarning)]
    for each in heard:
        if each not in own:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    return graph, "; ".join(dict.fromkeys(str(each.message).split("\n")[0] for each in own))
