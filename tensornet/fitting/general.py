"""Factors of equations that are linear in each of them but no sum of products: concatenations, shifts, averages.

Each factor in turn is found by LSMR (D. Fong, M. Saunders, SIAM J. Sci. Comput. 33 (2011), 2950). LSMR needs
only the equations and their derivative, and the library plans both.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import EquationError
from ..graph.graph import Graph
from ..passes.dead_code import eliminate_dead_code
from ..planning.gradients import gradient
from ..runtime.executable import Executable
from ..sizes import evaluate

__all__ = ["General", "check_linear"]

STEPS = 100
"""The steps of LSMR for one factor in one round."""


def check_linear(program: Graph, wanted: tuple[str, ...]) -> None:
    """Raises an error if a program is not linear in each of some leaves: if its derivative by a leaf reads that leaf.

    Raises:
        EquationError: the program is not linear in a leaf, has no derivative, or does not read a leaf.
    """
    for name in wanted:
        if name not in program.needed():
            raise EquationError(f"'{program.outputs[0]}' does not depend on '{name}'", fix="take it out")
        if name in eliminate_dead_code(gradient(program, wrt=[name])).needed():
            raise EquationError(
                f"'{program.outputs[0]}' is not linear in '{name}', and is fitted by least squares in one factor "
                "after another",
                fix=f"write it as sums of products that have '{name}' once, or train it on "
                "‖W − Ŵ‖²: tensornet.value_and_grad(program, loss=…)",
            )


@dataclass
class General:
    """A least squares problem in the leaves of a graph, and their current values.

    Attributes:
        program: the graph that computes the weight, from parameters alone.
        weight: the array to approximate, with its columns weighed.
        arrays: the values of the program's parameters.
        wanted: the names of the parameters to be found.
        turned: the linear map that weighs the columns of a weight; it is symmetric.
        regularization: λ, in units of the weight's mean square.
    """

    program: Graph
    weight: Any
    arrays: dict[str, Any]
    wanted: tuple[str, ...]
    turned: Callable[[Any], Any]
    regularization: float = 0.0

    @functools.cached_property
    def _forward(self) -> Executable:
        return Executable(self.program, "numpy")

    @functools.cached_property
    def _backward(self) -> Mapping[str, Executable]:
        return {name: Executable(gradient(self.program, wrt=[name]), "numpy") for name in self.wanted}

    def value(self, changed: Mapping[str, Any]) -> Any:
        """The weighed output of the program, with some leaves changed."""
        return self.turned(self._forward({**self.arrays, **changed}))

    def error(self) -> float:
        """(‖W − Ŵ‖² + λ·Σ‖factor‖²)^½ / ‖W‖."""
        gap, norm = self.weight - self.value({}), float(np.linalg.norm(self.weight))
        ridge = self.regularization * float((self.weight**2).mean())
        squares = sum(float(np.linalg.norm(self.arrays[name])) ** 2 for name in self.wanted if ridge)
        return math.sqrt(float(np.vdot(gap, gap)) + ridge * squares) / (norm or 1.0)

    def start(self, generator: Any) -> None:
        """Sets factors to random initial values."""
        shapes = {leaf.name: leaf.shape for leaf in self.program.parameters}
        for name in self.wanted:
            shape = tuple(evaluate(size, self.program.bound) for size in shapes[name])
            made = generator.standard_normal(shape) / math.sqrt(max(shape, default=1))
            self.arrays[name] = made.astype(self.weight.dtype)

    def round(self) -> float:
        """Moves each factor to its optimum, or towards it. The result is the relative error."""
        for name in self.wanted:
            self.arrays[name] = self.arrays[name] + self._step(name)
        return self.error()

    def _step(self, name: str) -> Any:
        from scipy.sparse.linalg import LinearOperator, lsmr

        before = self.arrays[name]
        base = self.value({name: np.zeros_like(before)})
        mean = float((self.weight**2).mean())
        damp = math.sqrt(self.regularization * mean)

        def forward(vector: Any) -> Any:
            return (self.value({name: vector.reshape(before.shape)}) - base).ravel()

        def back(vector: Any) -> Any:
            seed = self.turned(vector.reshape(self.weight.shape))
            return self._backward[name](self.arrays, seed).ravel()

        operator = LinearOperator(
            (self.weight.size, before.size), matvec=forward, rmatvec=back, dtype=before.dtype
        )
        gap = (self.weight - base).ravel() - forward(before.ravel())
        if damp:  # λ applies to the factor itself, not to the step
            return (
                lsmr(operator, (self.weight - base).ravel(), damp=damp, maxiter=STEPS)[0].reshape(
                    before.shape
                )
                - before
            )
        return lsmr(operator, gap, atol=1e-14, btol=1e-14, maxiter=STEPS)[0].reshape(before.shape)


def of_parameters(program: Graph) -> Graph:
    """The program with every leaf as a parameter, so that all values are passed by name."""
    leaves = tuple(replace(leaf, kind="parameter", start=None, value=None) for leaf in program.leaves)
    return replace(program, leaves=leaves)
