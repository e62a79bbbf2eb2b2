"""Least squares in the factors of a weight, all at once by L-BFGS (D. Liu, J. Nocedal, Math. Program. 45 (1989), 503).

L-BFGS needs only the loss ‖W − Ŵ‖² + λ·Σ‖factor‖² and its derivative by the factors, Jᵀ·(W − Ŵ). For a graph that is no
sum of products, such as a concatenation or a shift of factors, the library plans both.
"""

from __future__ import annotations

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import EquationError
from ..graph.graph import Graph
from ..planning.gradients import gradient
from ..runtime.executable import Executable

__all__ = ["OfGraphs", "Problem"]

STEPS = 40
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

    @property
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

    def descend(self, rounds: int, tolerance: float, tell: Callable[[int, float], None]) -> None:
        """Moves all factors at once, at most so many rounds, until one lowers the error by less than a fraction.

        `tell` gets the number of each round and the relative error.
        """
        from scipy.optimize import minimize

        before = {name: self.arrays[name] for name in self.wanted}
        ends = [*itertools.accumulate(each.size for each in before.values())]
        scale, errors = self.norm**2 or 1.0, list[float]()

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
            errors.append(math.sqrt(intermediate_result.fun))
            if len(errors) % STEPS == 0:
                tell(len(errors) // STEPS - 1, errors[-1])
                if errors[-STEPS] - errors[-1] <= tolerance * errors[-STEPS]:
                    raise StopIteration

        start = np.concatenate([each.ravel() for each in before.values()]).astype(np.float64)
        limits = {"maxiter": rounds * STEPS, "maxfun": 2 * rounds * STEPS, "ftol": 1e-16, "gtol": 1e-12}
        put(minimize(loss, start, jac=True, method="L-BFGS-B", callback=told, options=limits).x)


@dataclass(kw_only=True)
class OfGraphs(Problem):
    """Least squares in the parameters of graphs, one for each of some weights, that may share parameters.

    Attributes:
        programs: the graphs, each with a weight as its one output.
        targets: the weights. `weight` has all their elements, weighed.
        turned: the symmetric linear map that weighs each weight.
    """

    programs: tuple[Graph, ...]
    targets: tuple[Any, ...]
    weight: Any = None
    norm: float = 1.0
    turned: tuple[Callable[[Any], Any], ...] = ()

    @functools.cached_property
    def _runs(self) -> list[tuple[Executable, tuple[str, ...], Executable, tuple[str, ...]]]:
        """The functions that compute each weight and the derivative by its factors, with the names that they take."""
        found = []
        for program in self.programs:
            own, needed = program.outputs[0], program.needed()
            leaves = tuple(replace(each, kind="parameter", start=None, value=None) for each in program.leaves)
            whole, wanted = replace(program, leaves=leaves), []
            for leaf in program.parameters:
                if leaf.name in self.wanted and leaf.name not in needed:
                    raise EquationError(f"'{own}' does not depend on '{leaf.name}'", fix="take it out")
                wanted += [leaf.name] if leaf.name in self.wanted else []
            back = Executable(gradient(whole, wrt=wanted), "numpy")
            found.append(
                (Executable(whole, "numpy"), tuple(each.name for each in leaves), back, tuple(wanted))
            )
        return found

    def weigh(self, turned: Sequence[Callable[[Any], Any]]) -> None:
        """Weighs the weights by some maps."""
        self.turned = tuple(turned)
        self.weight = self.joined(self.targets)
        self.norm = float(np.linalg.norm(self.weight))

    def made(self) -> list[Any]:
        """Each Ŵ."""
        return [run({name: self.arrays[name] for name in names}) for run, names, *_ in self._runs]

    def whole(self) -> Any:
        """All Ŵ, weighed."""
        return self.joined(self.made())

    def joined(self, arrays: Sequence[Any]) -> Any:
        """Arrays of the shapes of the weights as one, weighed."""
        return np.concatenate(
            [turned(each).ravel() for turned, each in zip(self.turned, arrays, strict=True)]
        )

    def pulled_back(self, gap: Any) -> Mapping[str, Any]:
        """Jᵀ·gap for each factor, J the derivative of Ŵ."""
        ends = [*itertools.accumulate(each.size for each in self.targets)]
        parts = zip(self._runs, self.turned, self.targets, np.split(gap, ends[:-1]), strict=True)
        total = {name: np.zeros_like(self.arrays[name]) for name in self.wanted}
        for (_, names, back, wanted), turned, target, part in parts:
            made = back({name: self.arrays[name] for name in names}, turned(part.reshape(target.shape)))
            for name, each in zip(wanted, made if isinstance(made, tuple) else (made,), strict=True):
                total[name] = total[name] + each
        return total

    def start(self, shapes: Mapping[str, Sequence[int]], generator: Any) -> None:
        """Sets factors to random initial values; if terms without factors suffice, the last factors to zero."""
        for name, shape in shapes.items():
            made = generator.standard_normal(shape) / math.sqrt(max(shape, default=1))
            self.arrays[name] = made.astype(self.weight.dtype)
        before = dict(self.arrays)
        for *_, wanted in self._runs:
            self.arrays[wanted[-1]] = np.zeros_like(self.arrays[wanted[-1]])
        if (self.whole() != self.weight).any():
            self.arrays.update(before)
