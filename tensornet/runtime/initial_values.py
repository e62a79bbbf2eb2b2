"""Initial values at run time: gains from the equations, then one measured pass."""

from __future__ import annotations

import fnmatch
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..codegen.function import LoadedProgram, Place
from ..codegen.program import planned
from ..device.cost_model import default_profile
from ..dtypes import element_type
from ..errors import (
    DtypeError,
    EquationError,
    ShapeError,
    TensornetError,
    by_name,
    checked_number,
    near,
    warn,
)
from ..graph.element_types import of_leaves
from ..graph.graph import Graph, of_graph
from ..graph.leaves import Constant, start_of
from ..graph.shape_inference import Dim
from ..initialization.gain_propagation import TYPICAL, Starts
from ..initialization.initial_values import Seen, derived
from ..initialization.samplers import fan_of, start_array
from ..ops.table import FUNCTIONS, Element, Function
from ..protocol import Backend, load_backend
from ..sizes import evaluate


@of_graph
def init(
    graph: Graph,
    *,
    seed: int = 0,
    backend: str | Backend = "numpy",
    dtype: str = "float32",
    device: str | None = None,
    init: Any = None,
    **sizes: int,
) -> dict[str, Any]:
    """Initial parameters of a graph, with variances derived from its equations.

    Args:
        graph: a layer or a model.
        seed: the same seed gives the same numbers, on every backend.
        backend: the library of the arrays.
        dtype: their element type.
        device: the device that holds them.
        init: other initial values for some parameters: by name, or by a pattern of `fnmatch`, a standard
            deviation, `"zeros"`, `"ones"`, `"identity"`, `"near_identity"`, `"orthogonal"`, `"kaiming"`,
            `"xavier"` or an array; or one of these for every weight, which leaves biases and gains as they are.
            The fan-in that `"kaiming"` and others use counts the axes that are summed where the parameter is read,
            and that come with data or with a factor before it.
        **sizes: values for open sizes.

    Returns:
        Name to array.

    Raises:
        ShapeError: the size of a parameter is open.
        DtypeError: a parameter starts at complex numbers, and the element type is real.
        EquationError: `init` is no valid start, one that a parameter cannot have, or names no parameter.

    Warns:
        TensornetWarning: no values keep the deviation of a product within a factor of 2.

    Example:
        >>> import numpy as np, tensornet as tn
        >>> layer = tn.layer("y[b,o] = x[b,i] * W[o,i] + u[o]", inputs="x", i=100, o=400)
        >>> {name: (array.shape, round(float(array.std()), 2)) for name, array in tn.init(layer).items()}
        {'W': ((400, 100), 0.1), 'u': ((400,), 0.0)}
        >>> W = tn.init(layer, init="orthogonal")["W"]
        >>> bool(abs(W.T @ W - np.eye(100)).max() < 1e-5)
        True
    """
    chosen, dtype = load_backend(backend), element_type(dtype)
    checked_number(seed, "seed", whole=True)
    if device is not None:
        chosen.check_device(device)
    graph = graph.bind(**sizes) if sizes else graph
    graph = graph if init is None else _told(graph.flat, init)
    found, arrays = starts(graph), dict[str, Any]()
    for leaf in graph.parameters:
        array = start_array(graph.flat, leaf, found[leaf.name], seed)
        if array.dtype.kind == "c" and "complex" not in dtype:
            fix = "give dtype='complex64' or 'complex128', or its real part"
            raise DtypeError(f"'{leaf.name}' starts at complex numbers, and is to be {dtype}", fix=fix)
        arrays[leaf.name] = chosen.asarray(array, dtype, device)
    return arrays


def _told(graph: Graph, init: Any) -> Graph:
    """The graph with the given starts of parameters; a single start applies to those that would be drawn."""
    if isinstance(init, Mapping):
        told = {}
        for pattern, value in by_name(init, "the starts in init", '{"W": 0.02}').items():
            names = [leaf.name for leaf in graph.parameters if fnmatch.fnmatchcase(leaf.name, pattern)]
            if not names:
                known = [leaf.name for leaf in graph.parameters]
                fix = f"{near(pattern, known)}the parameters are {', '.join(known) or 'none'}"
                raise EquationError(f"init names '{pattern}', which is no parameter", fix=fix)
            told.update({name: start_of(name, value) for name in names})
    else:
        found, start = starts(graph), start_of("*", init)
        told = {
            leaf.name: start
            for leaf in graph.parameters
            if leaf.start is None and found[leaf.name][0] != "value" and fan_of(graph, leaf).inner
        }
    for leaf in graph.parameters:
        given, shape = told.get(leaf.name), tuple(evaluate(size, graph.bound) for size in leaf.shape)
        if not isinstance(given, Constant):
            continue
        pairs = zip(shape, given.shape, strict=False)
        if len(shape) != len(given.shape) or any(isinstance(a, int) and a != b for a, b in pairs):
            message = f"'{leaf.name}' has shape ({', '.join(map(str, shape))}), and its start {given.shape}"
            raise ShapeError(message, fix="give an array of its shape")
    leaves = (replace(leaf, start=told.get(leaf.name, leaf.start)) for leaf in graph.leaves)
    return replace(graph, leaves=tuple(leaves))


def starts(graph: Graph) -> dict[str, tuple[str, float]]:
    """The start of each parameter, `("std", s)` or `("value", v)`, derived from the equations."""
    found = _derived(graph.flat, tuple(row for row in FUNCTIONS.values() if row.implementations))
    for doubt in found.doubts:
        warn(doubt)
    return {leaf.name: found.found.get(leaf.name, ("value", 0.0)) for leaf in graph.flat.parameters}


@functools.lru_cache(maxsize=64)
def _derived(graph: Graph, own: tuple[Function, ...]) -> Starts:
    """The derived starts, cached for a graph and the user's own functions, which may change between calls."""
    sample = _Sample.of(graph)
    return derived(graph, None if sample is None else sample.seen)


# ---------------------------------------------------------------------------- measured on noise

COUNTS = 15, 61, 241
"""The numbers of starts to measure: more if fewer leave it unclear whether the result is alive."""

NOISE = 61
"""The seed of the inputs."""

MOST_LINES, MOST_ELEMENTS = 64, 2**16
"""The most equations or parameters, and elements of all tensors; larger graphs are not measured."""

DIGITS = 3
"""Significant digits of the results, so that rounding, which differs between machines, changes no start."""


class _Sample:
    """Runs a graph on NumPy, in float64, with the same plan on every machine.

    Args:
        graph: the graph, with its calls inlined and all sizes bound.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._function = functools.cache(self._made)
        self._inputs, self._parameter = functools.cache(self._noise), functools.cache(self._started)

    @classmethod
    def of(cls, graph: Graph) -> _Sample | None:
        """The sample of a graph with its calls inlined, at typical values of open sizes.

        Returns:
            None if the graph is too large to be measured in some milliseconds, has inputs other than real numbers,
            or uses the user's own functions.
        """
        if max(len(graph.equations), len(graph.parameters)) > MOST_LINES or not _is_known(graph):
            return None
        for batch in (TYPICAL, TYPICAL // 8):
            sizes = dict.fromkeys(graph.open_sizes, TYPICAL) | dict.fromkeys(graph.open_sizes[:1], batch)
            try:
                bound = graph.bind(**sizes)
                bound.check_at({})
            except TensornetError:
                return None
            if sum(_count(dims, bound.bound) for dims in bound.named.values()) <= MOST_ELEMENTS:
                return cls(bound)
        return None

    def seen(self, name: str, starts: Mapping[str, tuple[str, float]]) -> Seen | None:
        """The moments of a tensor for given starts of parameters; None if it is not finite or cannot be computed.

        A parameter whose start is not chosen yet is zero, and is not read.
        """
        import numpy

        chosen = [starts.get(leaf.name, ("value", 0.0)) for leaf in self.graph.parameters]
        found = list[tuple[float, float]]()
        try:
            with numpy.errstate(all="ignore"):
                for count in COUNTS:
                    for seed in range(len(found), count):
                        parameters = [self._parameter(n, start, seed) for n, start in enumerate(chosen)]
                        array = numpy.asarray(self._function(name)(*self._inputs(seed), *parameters))
                        found.append((float(array.mean().real), float((abs(array) ** 2).mean())))
                    if _seen(found).is_clear:
                        break
        except TensornetError:
            return None
        return _seen(found) if all(math.isfinite(square) for _, square in found) else None

    def _made(self, name: str) -> Callable[..., Any]:
        """The function of inputs and parameters that computes a tensor."""
        backend, place = load_backend("numpy"), Place("cpu", "float64", ())
        profile = default_profile(place.device, place.dtype)
        plan = planned(self.graph.select([name]), {}, backend, place.device, place.dtype, profile)
        return LoadedProgram(plan, backend).bound(place)

    def _noise(self, seed: int) -> list[Any]:
        import numpy

        draw, graph = numpy.random.default_rng([NOISE, seed]), self.graph
        shapes = ([evaluate(size, graph.bound) for size in leaf.shape] for leaf in graph.inputs)
        return [draw.standard_normal(shape) for shape in shapes]

    def _started(self, number: int, start: tuple[str, float], seed: int) -> Any:
        return start_array(self.graph, self.graph.parameters[number], start, seed)


def _is_known(graph: Graph) -> bool:
    """Whether all inputs are real numbers, and no function is the user's own."""
    if any(FUNCTIONS[call.function].implementations for each in graph.equations for call in each.called):
        return False
    elements = of_leaves(graph)
    return all(elements[leaf.name] is Element.NUMBER for leaf in graph.inputs)


def _count(dims: Sequence[Dim], known: Mapping[str, Any]) -> int:
    return math.prod(int(evaluate(axis.size, known)) for dim in dims for axis in dim)


def _seen(found: Sequence[tuple[float, float]]) -> Seen:
    mean = sum(mean for mean, _ in found) / len(found)
    return Seen(float(f"{mean:.{DIGITS}g}"), tuple(float(f"{square:.{DIGITS}g}") for _, square in found))
