"""Least squares in the factors of a weight, all at once by L-BFGS (D. Liu, J. Nocedal, Math. Program. 45 (1989), 503).

L-BFGS needs only the loss ‖W − Ŵ‖² + λ·Σ‖factor‖² and its derivative by the factors, Jᵀ·(W − Ŵ). For a graph that is no
sum of products, such as a concatenation or a shift of factors, the library plans both.
"""

from __future__ import annotations

import functools
import itertools
import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any

import numpy as np

from ..dtypes import element_type
from ..errors import DtypeError, ShapeError, checked_call
from ..graph.graph import Graph
from ..planning.gradients import gradient
from ..protocol import load_backend
from ..runtime.executable import Executable
from ..weights.substitution import computing

__all__ = ["EXACT", "ROUNDS", "OfGraph", "Problem", "Progress", "Settings", "split"]

STEPS = 40
"""The steps of L-BFGS in one round."""

EXACT = 1e-7
"""A relative error that counts as zero: sums of squares resolve little below it."""

ROUNDS, WEIGHED = 200, 80
"""The default limits of rounds, and of those in a metric after these."""


@dataclass(frozen=True)
class Progress:
    """The progress of a fit.

    Attributes:
        path: the name of the weight.
        start: the number of the start, from 0.
        round: the number of the round, from 0.
        error: (‖W − Ŵ‖² + λ·Σ‖factor‖²)^½ / ‖W‖ after this round.
    """

    path: str
    start: int
    round: int
    error: float


@dataclass(frozen=True)
class Settings:
    """The options of a fit; see `tensornet.fit`."""

    iterations: int | None = None
    restarts: int = 1
    regularization: float = 0.0
    tolerance: float = 1e-5
    seed: int = 0
    dtype: str | None = None
    progress: Callable[[Progress], None] | None = None

    def __post_init__(self) -> None:
        least = {"iterations": 0, "restarts": 1, "seed": 0, "regularization": 0.0, "tolerance": 0.0}
        for name, lowest in least.items():
            value, kind = getattr(self, name), Integral if isinstance(lowest, int) else Real
            is_number = isinstance(value, kind) and not isinstance(value, bool)
            may_lack = name == "iterations" and value is None
            if not may_lack and not (is_number and lowest <= value < math.inf):
                what = "an integer" if kind is Integral else "a number"
                raise ShapeError(f"{name} is {value!r}", fix=f"give {what} from {lowest:g}")
        checked_call(self.progress, "progress", "a tensornet.fitting.Progress")
        if self.dtype is not None and element_type(self.dtype) not in ("float32", "float64"):
            raise DtypeError(f"nothing is fitted in {self.dtype}", fix="give dtype='float32' or 'float64'")


@dataclass
class Problem(ABC):
    """A least squares problem in the factors of a weight, and their current values.

    Attributes:
        weight: the array to approximate.
        arrays: all tensors that Ŵ is computed from.
        wanted: the names of the factors to be found.
        settings: the options.
        path: the name of the weight.
        turned: the symmetric linear map of the metric: losses are ⟨W − Ŵ, turned(W − Ŵ)⟩.
        square: ‖W‖² in this metric; 1 if it is 0.
        attempt, done: the number of the start, and of its rounds so far.
    """

    weight: Any
    arrays: dict[str, Any]
    wanted: tuple[str, ...]
    settings: Settings
    path: str
    turned: Callable[[Any], Any] = field(init=False)
    square: float = field(init=False)
    attempt: int = field(default=0, init=False)
    done: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.weigh(lambda gap: gap)

    def weigh(self, turned: Callable[[Any], Any]) -> None:
        """Sets the metric."""
        self.turned, self.square = turned, float(np.vdot(self.weight, turned(self.weight))) or 1.0

    def refine(self, turned: Callable[[Any], Any]) -> None:
        """Moves the factors to those of the least error in a metric."""
        self.weigh(turned)
        self.descend(self.limit(WEIGHED))

    @abstractmethod
    def whole(self) -> Any:
        """Ŵ."""

    @abstractmethod
    def pulled_back(self, gap: Any) -> Mapping[str, Any]:
        """Jᵀ·gap for each factor, J the derivative of Ŵ."""

    @property
    def penalty(self) -> float:
        """λ times the mean square of the weight."""
        return self.settings.regularization * self.square / int(self.weight.size)

    def ridge(self) -> float:
        """λ·Σ‖factor‖²."""
        squares = (float(np.linalg.norm(self.arrays[name]) ** 2) for name in self.wanted if self.penalty)
        return self.penalty * sum(squares)

    @property
    def generator(self) -> Any:
        """A random number generator that is different for each start of each weight."""
        return np.random.default_rng([self.settings.seed, zlib.crc32(self.path.encode()), self.attempt])

    def loss(self) -> tuple[float, Any]:
        """(‖W − Ŵ‖² + λ·Σ‖factor‖²) / ‖W‖², and W − Ŵ turned."""
        gap = self.weight - self.whole()
        turned = self.turned(gap)
        return (max(float(np.vdot(gap, turned)), 0.0) + self.ridge()) / self.square, turned

    @abstractmethod
    def solve(self) -> None:
        """Finds the factors from one start."""

    def best(self) -> None:
        """The factors with the least error of several starts."""
        found = list[tuple[float, int, dict[str, Any]]]()
        for attempt in range(self.settings.restarts):
            self.attempt, self.done = attempt, 0
            self.solve()
            found.append((math.sqrt(self.loss()[0]), attempt, dict(self.arrays)))
            if found[-1][0] < EXACT:
                break
        self.arrays.update(min(found)[-1])

    def has_ended(self, before: float, error: float, least: float = 0.0) -> bool:
        """Reports a round, and says whether it lowered the error by less than the tolerance or another fraction."""
        if self.settings.progress is not None:
            self.settings.progress(Progress(self.path, self.attempt, self.done, error))
        self.done += 1
        is_slow = before - error <= max(self.settings.tolerance, least) * before
        return error < EXACT or (math.isfinite(before) and is_slow)

    def limit(self, most: int) -> int:
        """The limit of rounds: that of the user, if there is one."""
        return most if self.settings.iterations is None else self.settings.iterations

    def descend(self, rounds: int) -> None:
        """Moves all factors at once, at most so many rounds, until one lowers the error by less than the tolerance."""
        from scipy.optimize import minimize

        if rounds < 1:
            return
        before, errors = [self.arrays[name] for name in self.wanted], list[float]()
        shapes = [each.shape for each in before]

        def put(values: Any) -> None:
            parts = zip(self.wanted, before, split(values, shapes), strict=True)
            self.arrays.update((name, part.astype(old.dtype)) for name, old, part in parts)

        def loss(values: Any) -> tuple[float, Any]:
            put(values)
            found, turned = self.loss()
            pulled = self.pulled_back(turned)
            slopes = [self.penalty * self.arrays[name] - pulled[name] for name in self.wanted]
            return found, 2 * np.concatenate(slopes, axis=None, dtype=np.float64) / self.square

        def told(intermediate_result: Any) -> None:
            errors.append(math.sqrt(intermediate_result.fun))
            if len(errors) % STEPS == 0 and self.has_ended(errors[-STEPS], errors[-1]):
                raise StopIteration

        limits = {"maxiter": rounds * STEPS, "maxfun": 2 * rounds * STEPS, "ftol": 1e-16, "gtol": 1e-12}
        start = np.concatenate(before, axis=None, dtype=np.float64)
        put(minimize(loss, start, jac=True, method="L-BFGS-B", callback=told, options=limits).x)


def split(elements: Any, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """Arrays of some shapes of their elements, one array after another."""
    ends = [*itertools.accumulate(map(math.prod, shapes))]
    return [part.reshape(shape) for part, shape in zip(np.split(elements, ends[:-1]), shapes, strict=True)]


@dataclass
class OfGraph(Problem):
    """Least squares in the parameters of a graph, whose outputs are one weight or several that share parameters.

    Attributes:
        graph: the graph.
        shapes: the shapes of the weights. `weight` has all their elements.
    """

    graph: Graph
    shapes: Sequence[tuple[int, ...]]

    def solve(self) -> None:
        """Finds the factors from a random start."""
        self.start()
        self.descend(self.limit(ROUNDS))

    @functools.cached_property
    def _runs(self) -> tuple[Executable, Executable]:
        """The functions that compute the weights, and the derivative by the factors."""
        leaves = tuple(replace(each, kind="parameter", start=None, value=None) for each in self.graph.leaves)
        whole, numpy = replace(self.graph, leaves=leaves), load_backend("numpy")
        return Executable(whole, numpy), Executable(gradient(whole, wrt=self.wanted), numpy)

    def made(self) -> tuple[Any, ...]:
        """Each Ŵ."""
        made = self._runs[0](self.arrays)
        return made if isinstance(made, tuple) else (made,)

    def whole(self) -> Any:
        """All Ŵ."""
        return np.concatenate(self.made(), axis=None)

    def pulled_back(self, gap: Any) -> Mapping[str, Any]:
        """Jᵀ·gap for each factor, J the derivative of Ŵ."""
        made = self._runs[1](self.arrays, *split(gap, self.shapes))
        return dict(zip(self.wanted, made if isinstance(made, tuple) else (made,), strict=True))

    def start(self) -> None:
        """Sets factors to random initial values; if terms without factors suffice, the last factors to zero."""
        generator = self.generator
        for name in self.wanted:
            shape = self.arrays[name].shape
            made = generator.standard_normal(shape) / math.sqrt(max(shape, default=1))
            self.arrays[name] = made.astype(self.weight.dtype)
        before = dict(self.arrays)
        for output in self.graph.outputs:
            *_, last = (
                leaf.name for leaf in computing(self.graph, output).leaves if leaf.name in self.wanted
            )
            self.arrays[last] = np.zeros_like(self.arrays[last])
        if (self.whole() != self.weight).any():
            self.arrays.update(before)
