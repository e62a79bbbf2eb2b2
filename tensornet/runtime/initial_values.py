"""Initial values at run time: gains from the equations, then one measured pass."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..dtypes import element_type
from ..errors import DtypeError, EquationError, ShapeError, near, warn
from ..graph.graph import Graph, of_graph
from ..graph.leaves import start_of
from ..initialization.initial_values import Derived, derived
from ..initialization.samplers import fan_of, start_array
from ..ops.table import FUNCTIONS, Function
from ..protocol import Backend, load_backend
from .sampling import Sample

__all__ = ["init", "starts"]


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
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ShapeError(f"the seed is {seed!r}", fix="give an integer from 0")
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
        for pattern, value in init.items():
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
    leaves = (replace(leaf, start=told.get(leaf.name, leaf.start)) for leaf in graph.leaves)
    return replace(graph, leaves=tuple(leaves))


def starts(graph: Graph) -> dict[str, tuple[str, float]]:
    """The start of each parameter, `("std", s)` or `("value", v)`, derived from the equations."""
    found = _derived(graph.flat, tuple(row for row in FUNCTIONS.values() if row.implementations))
    for doubt in found.doubts:
        warn(doubt)
    return {leaf.name: found.starts.get(leaf.name, ("value", 0.0)) for leaf in graph.flat.parameters}


@functools.lru_cache(maxsize=64)
def _derived(graph: Graph, own: tuple[Function, ...]) -> Derived:
    """The derived starts, cached for a graph and the user's own functions, which may change between calls."""
    sample = Sample.of(graph)
    return derived(graph, None if sample is None else sample.seen)
