"""Sampling of activations: the results of a graph on noise, at several initial values."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..codegen.loading import LoadedProgram, Place, constant_array
from ..codegen.program import planned
from ..device.model import default_profile
from ..errors import TensornetError
from ..graph.element_types import of_leaves
from ..graph.graph import Graph
from ..graph.shape_inference import Dim
from ..initialization.measured import Seen
from ..initialization.moments import TYPICAL
from ..initialization.samplers import start_array
from ..language.expression import Call, subexpressions
from ..ops.table import FUNCTIONS, Element
from ..protocol import load_backend
from ..sizes import evaluate

__all__ = ["Sample"]

COUNTS = 15, 61, 241
"""The numbers of starts to measure: more if fewer leave it unclear whether the result is alive."""

NOISE = 61
"""The seed of the inputs."""

MOST_LINES, MOST_ELEMENTS = 64, 2**16
"""The most equations or parameters, and elements of all tensors; larger graphs are not measured."""

DIGITS = 3
"""Significant digits of the results, so that rounding, which differs between machines, changes no start."""


class Sample:
    """Runs a graph on NumPy, in float64, with the same plan on every machine.

    Args:
        graph: the graph, with its calls inlined and all sizes bound.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._function = functools.cache(self._made)
        self._inputs, self._parameter = functools.cache(self._noise), functools.cache(self._started)

    @classmethod
    def of(cls, graph: Graph) -> Sample | None:
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
            except TensornetError:
                return None
            if sum(_count(dims, bound.bound) for dims in bound.named.values()) <= MOST_ELEMENTS:
                return cls(bound)
        return None

    def seen(self, name: str, starts: Mapping[str, tuple[str, float]]) -> Seen | None:
        """The moments of a tensor for given starts of parameters; None if it is not finite or cannot be computed."""
        import numpy

        def at(seed: int) -> tuple[float, float]:
            array = numpy.asarray(self._function(name)(*self._drawn(starts, seed)))
            return float(array.mean().real), float((abs(array) ** 2).mean())

        found = list[tuple[float, float]]()
        try:
            with numpy.errstate(all="ignore"):
                for count in COUNTS:
                    found += [at(seed) for seed in range(len(found), count)]
                    if _seen(found).is_clear:
                        break
        except TensornetError:
            return None
        return _seen(found) if all(math.isfinite(square) for _, square in found) else None

    def _made(self, name: str) -> Callable[..., Any]:
        """The function of inputs and parameters that computes a tensor."""
        backend, device, dtype = load_backend("numpy"), "cpu", "float64"
        graph = self.graph.select([name])
        program = LoadedProgram(
            planned(graph, {}, backend, device, dtype, default_profile(device, dtype)), backend
        )
        constants = [constant_array(leaf, backend, dtype, device) for leaf in program.plan.constants]
        place = Place(device, dtype, ())
        tables = program.tables(place, lambda leaf: constant_array(leaf, backend, dtype, device))
        return lambda *given: program.function(*given, *constants, *tables.arrays)

    def _drawn(self, starts: Mapping[str, tuple[str, float]], seed: int) -> list[Any]:
        """Inputs and parameters; a parameter whose start is not chosen yet is zero, and is not read."""
        zero = ("value", 0.0)
        parameters = (
            self._parameter(n, starts.get(leaf.name, zero), seed)
            for n, leaf in enumerate(self.graph.parameters)
        )
        return [*self._inputs(seed), *parameters]

    def _noise(self, seed: int) -> list[Any]:
        import numpy

        draw, graph = numpy.random.default_rng([NOISE, seed]), self.graph
        shapes = ([evaluate(size, graph.bound) for size in leaf.shape] for leaf in graph.inputs)
        return [draw.standard_normal(shape) for shape in shapes]

    def _started(self, number: int, start: tuple[str, float], seed: int) -> Any:
        return start_array(self.graph, self.graph.parameters[number], start, seed)


def _is_known(graph: Graph) -> bool:
    """Whether all inputs are real numbers, and no function is the user's own."""
    parts = (part for equation in graph.equations for part in subexpressions(equation.right))
    if any(FUNCTIONS[part.function].implementations for part in parts if isinstance(part, Call)):
        return False
    elements = of_leaves(graph)
    return all(elements[leaf.name] is Element.NUMBER for leaf in graph.inputs)


def _count(dims: Sequence[Dim], known: Mapping[str, Any]) -> int:
    return math.prod(int(evaluate(axis.size, known)) for dim in dims for axis in dim)


def _seen(found: Sequence[tuple[float, float]]) -> Seen:
    mean = sum(mean for mean, _ in found) / len(found)
    return Seen(float(f"{mean:.{DIGITS}g}"), tuple(float(f"{square:.{DIGITS}g}") for _, square in found))
