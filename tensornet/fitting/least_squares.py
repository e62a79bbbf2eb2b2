"""Least squares in the factors of a weight, all at once by L-BFGS (D. Liu, J. Nocedal, Math. Program. 45 (1989), 503).

L-BFGS needs only the loss ‖W − Ŵ‖² + λ·Σ‖factor‖² and its derivative by the factors, Jᵀ·(W − Ŵ). For a graph that is no
sum of products, such as a concatenation or a shift of factors, the library plans both.
"""

from __future__ import annotations

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import EquationError
from ..graph.graph import Graph
from ..planning.gradients import gradient
from ..runtime.executable import Executable
from ..sizes import evaluate

__all__ = ["OfGraph", "Problem", "of_parameters"]

STEPS = 10
"""The steps of L-BFGS in one round."""


@dataclass(kw_only=True)
class Problem(ABC):
    """A least squares problem in the factors of a weight, and their current values.

    Attributes:
        weight: the array to approximate.
        arrays: all tensors that Ŵ is computed from.
        wanted: the names of the factors to be found.
        norm: the norm that errors are relative to: ‖W‖, known terms included.
        regularization: λ, in units of the weight's mean square.
    """

    weight: Any
    arrays: dict[str, Any]
    wanted: tuple[str, ...]
    norm: float
    regularization: float = 0.0

    @abstractmethod
    def whole(self) -> Any:
        """Ŵ."""

    @abstractmethod
    def pulled_back(self, gap: Any) -> Mapping[str, Any]:
        """Jᵀ·gap for each factor, J the derivative of Ŵ."""

    @functools.cached_property
    def penalty(self) -> float:
        """λ times the mean square of the weight."""
        return self.regularization * self.norm**2 / int(self.weight.size)

    def ridge(self) -> float:
        """λ·Σ‖factor‖²."""
        squares = (float(np.linalg.norm(self.arrays[name]) ** 2) for name in self.wanted if self.penalty)
        return self.penalty * sum(squares)

    def error(self) -> float:
        """(‖W − Ŵ‖² + λ·Σ‖factor‖²)^½ / ‖W‖."""
        square = float(np.linalg.norm(self.weight - self.whole())) ** 2 + self.ridge()
        return math.sqrt(square) / (self.norm or 1.0)

    def descend(self, rounds: int, tell: Callable[[int, float], None]) -> None:
        """Moves all factors at once, at most so many rounds. `tell` gets the number of each and the relative error."""
        from scipy.optimize import minimize

        before = {name: self.arrays[name] for name in self.wanted}
        ends = [*itertools.accumulate(each.size for each in before.values())]
        scale, count = self.norm**2 or 1.0, itertools.count(1)

        def put(values: Any) -> None:
            for (name, old), part in zip(before.items(), np.split(values, ends[:-1]), strict=True):
                self.arrays[name] = part.reshape(old.shape).astype(old.dtype)

        def loss(values: Any) -> tuple[float, Any]:
            put(values)
            gap = self.weight - self.whole()
            pulled = self.pulled_back(gap)
            parts = [self.penalty * self.arrays[name] - pulled[name] for name in self.wanted]
            slope = np.concatenate([part.ravel() for part in parts]).astype(np.float64)
            return (float(np.vdot(gap, gap)) + self.ridge()) / scale, 2 * slope / scale

        def told(intermediate_result: Any) -> None:
            number = next(count)
            if number % STEPS == 0:
                tell(number // STEPS - 1, math.sqrt(intermediate_result.fun))

        start = np.concatenate([each.ravel() for each in before.values()]).astype(np.float64)
        limits = {"maxiter": rounds * STEPS, "maxfun": 2 * rounds * STEPS, "ftol": 1e-16, "gtol": 1e-12}
        put(minimize(loss, start, jac=True, method="L-BFGS-B", callback=told, options=limits).x)


@dataclass(kw_only=True)
class OfGraph(Problem):
    """Least squares in the parameters of a graph.

    Attributes:
        program: the graph that computes Ŵ, from parameters alone.
        turned: the symmetric linear map that weighs the columns of a weight; that of `weight` are weighed.
    """

    program: Graph
    turned: Callable[[Any], Any]

    @functools.cached_property
    def _forward(self) -> Executable:
        return Executable(self.program, "numpy")

    @functools.cached_property
    def _backward(self) -> Executable:
        for name in self.wanted:
            if name not in self.program.needed():
                told = f"'{self.program.outputs[0]}' does not depend on '{name}'"
                raise EquationError(told, fix="take it out")
        return Executable(gradient(self.program, wrt=self.wanted), "numpy")

    def whole(self) -> Any:
        """Ŵ, with its columns weighed."""
        return self.turned(self._forward(self.arrays))

    def pulled_back(self, gap: Any) -> Mapping[str, Any]:
        """Jᵀ·gap for each factor, J the derivative of Ŵ."""
        made = self._backward(self.arrays, self.turned(gap))
        return dict(zip(self.wanted, made if isinstance(made, tuple) else (made,), strict=True))

    def start(self, generator: Any) -> None:
        """Sets factors to random initial values."""
        shapes = {leaf.name: leaf.shape for leaf in self.program.parameters}
        for name in self.wanted:
            shape = tuple(evaluate(size, self.program.bound) for size in shapes[name])
            made = generator.standard_normal(shape) / math.sqrt(max(shape, default=1))
            self.arrays[name] = made.astype(self.weight.dtype)


def of_parameters(program: Graph) -> Graph:
    """The program with every leaf as a parameter, so that all values are passed by name."""
    leaves = tuple(replace(leaf, kind="parameter", start=None, value=None) for leaf in program.leaves)
    return replace(program, leaves=leaves)
