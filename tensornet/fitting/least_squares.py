"""Least squares in the factors of a weight: all at once by L-BFGS, or of a form one after another.

L-BFGS (D. Liu, J. Nocedal, Math. Program. 45 (1989), 503) needs only the loss ‖W − Ŵ‖² and its derivative by the
factors, Jᵀ·(W − Ŵ). With all factors of a form but one fixed, the loss is a least squares problem in
that one (alternating least squares):

    Mᵀ·M·f = Mᵀ·(W − other terms),    M the product of the other factors in its term

Mᵀ·M is a contraction of the other factors with themselves. For a canonical (CP) form it is the Hadamard product
of small matrices.

Sources: T. Kolda, B. Bader, SIAM Review 51 (2009), 455, section 3.4; P. Comon, X. Luciani, A. de Almeida,
J. Chemometrics 23 (2009), 393.
"""

from __future__ import annotations

import functools
import itertools
import math
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import checked_call, checked_number
from ..weights.factorizations import Factor
from .forms import Axes, Form, Product, contract, moved
from .trees import Decomposed, leading, tree_of, unfolded

STEPS = 40
"""The steps of L-BFGS in one round."""

EXACT = 1e-7
"""A relative error that counts as zero: sums of squares resolve little below it."""

ROUNDS, WEIGHED = 200, 80
"""The default limits of rounds, and of those in a metric after these."""

DIRECT = 2048
"""The most unknowns of one linear system. More are found by L-BFGS."""

NEAR = 1e-12
"""The weight in float64 of the distance to the previous factor, relative to the mean diagonal of Mᵀ·M.

Directions that Mᵀ·M does not determine then stay as they were.
"""

LONG = 5
"""The limit of rounds if a factor has too many unknowns for a direct solution. These are rounds of L-BFGS."""

SLOW, WARM = 0.2, 8
"""A round is slow if it lowers the error by less than this fraction. The first `WARM` rounds never count as slow."""

UNKNOWNS = 500
"""The most elements that all factors may have to be moved at once when rounds are slow."""

FEW, NARROW = 2, 512
"""The limit of rounds for a train, whose decompositions are almost optimal.

A train gets none if more unknowns than `NARROW` are solved for at once.
"""


@dataclass(frozen=True)
class Settings:
    """The options of a fit; see `tensornet.fit`."""

    iterations: int | None = None
    restarts: int = 1
    tolerance: float = 1e-5
    seed: int = 0
    progress: Callable[[str, int, int, float], None] | None = None

    def __post_init__(self) -> None:
        checked_number(0 if self.iterations is None else self.iterations, "iterations", whole=True)
        checked_number(self.restarts, "restarts", 1, whole=True)
        checked_number(self.seed, "seed", whole=True)
        checked_number(self.tolerance, "tolerance")
        checked_call(self.progress, "progress", "a name, a start, a round, and the error")


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
    def generator(self) -> Any:
        """A random number generator that is different for each start of each weight."""
        return np.random.default_rng([self.settings.seed, zlib.crc32(self.path.encode()), self.attempt])

    def loss(self) -> tuple[float, Any]:
        """‖W − Ŵ‖² / ‖W‖², and W − Ŵ turned."""
        gap = self.weight - self.whole()
        turned = self.turned(gap)
        return max(float(np.vdot(gap, turned)), 0.0) / self.square, turned

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
            self.settings.progress(self.path, self.attempt, self.done, error)
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
            slopes = np.concatenate([pulled[name] for name in self.wanted], axis=None, dtype=np.float64)
            return found, -2 * slopes / self.square

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
class Least(Problem):
    """Least squares in the factors of a form. A factor to be found is in exactly one of its products, once.

    Attributes:
        form: the form.
        decomposed: the weight with its decompositions.
    """

    form: Form
    decomposed: Decomposed

    def solve(self) -> None:
        """Finds the factors: by decompositions if they are a tree, else by least squares."""
        tree, decomposed = tree_of(self.form), self.decomposed
        are_wanted = all(f.name in self.wanted for product in self.form.products for f in product.factors)
        if tree is None or not are_wanted:
            self.start()
            self.alternate()
            return
        self.arrays.update(decomposed.factors(tree))
        if self.has_ended(math.inf, math.sqrt(self.loss()[0])):
            return
        if not tree.has_centre:
            self.rounds(self.round, self.limit(FEW if self.widest <= NARROW else 0))
        elif len(tree.cuts) > 1:
            self.rounds(lambda: decomposed.turn(tree, self.arrays), self.limit(ROUNDS))

    @functools.cached_property
    def terms(self) -> tuple[tuple[Product, tuple[Factor, ...]], ...]:
        """The products that have factors to be found, with these factors."""
        found = ((p, tuple(f for f in p.factors if f.name in self.wanted)) for p in self.form.products)
        return tuple((product, own) for product, own in found if own)

    @property
    def widest(self) -> int:
        """The most unknowns that a factor has for each position along the axes that it shares with the weight."""
        return max(self.form.count(self.inner(factor)) for _, own in self.terms for factor in own)

    def whole(self) -> Any:
        """Ŵ."""
        return self.form.value(self.arrays)

    def pulled_back(self, gap: Any) -> Mapping[str, Any]:
        """Jᵀ·gap for each factor, J the derivative of Ŵ."""
        pairs = ((product, factor) for product, own in self.terms for factor in own)
        return {each.name: self.derivative(product, each, gap, each.axes) for product, each in pairs}

    def derivative(self, product: Product, factor: Factor, gap: Any, axes: Axes) -> Any:
        """Mᵀ·gap, with the axes of a factor in some order."""
        others = [(self.arrays[each.name], each.axes) for each in product.without(factor.name)]
        return product.coefficient * contract([(gap, self.form.axes), *others], axes)

    def inner(self, factor: Factor) -> Axes:
        """The axes of a factor that the weight does not have."""
        return tuple(axis for axis in factor.axes if axis not in self.form.axes)

    # ---- rounds

    def rounds(self, turn: Callable[[], float], most: int, slow: float = 0.0) -> float:
        """Runs rounds until the error stops falling, and returns it.

        Args:
            turn: one round, which returns the error.
            most: the limit of rounds.
            slow: rounds also end when one lowers the error by less than this fraction, after the first `WARM` rounds.
        """
        error = math.inf
        for number in range(most):
            before, error = error, turn()
            if self.has_ended(before, error, slow if number >= WARM else 0.0):
                break
        return error

    def alternate(self) -> None:
        """Alternating rounds. When these get slow, all factors are moved at once, if they have few enough elements.

        So they are from the start if one has too many unknowns for a direct solution.
        """
        if self.widest > DIRECT:
            self.descend(self.limit(LONG))
            return
        are_few = sum(self.arrays[name].size for name in self.wanted) <= UNKNOWNS
        limit = self.limit(ROUNDS)
        error = self.rounds(self.round, limit, SLOW if are_few else 0.0)
        if are_few and error >= EXACT:
            self.descend(limit - self.done)

    def round(self) -> float:
        """Replaces each factor by its optimum. The result is the relative error, computed from sums of squares."""
        error = math.inf
        for product, own in self.terms:
            others = [each for each in self.form.products if each is not product]
            target = self.weight - self.form.value(self.arrays, others)
            square = float(np.vdot(target, target))
            for factor in own:
                left = square + self._improve(product, factor, target)
                error = math.sqrt(max(left, 0.0) / self.square)
        return error

    def _improve(self, product: Product, factor: Factor, target: Any) -> float:
        """Sets a factor f to its optimum, of several the nearest to its value. Returns ‖M·f‖² − 2·⟨target, M·f⟩."""
        others = product.without(factor.name)
        outer, summed = [axis for axis in factor.axes if axis in self.form.axes], self.inner(factor)
        read = {axis for each in others for axis in each.axes}
        batched = tuple(axis for axis in outer if axis in read)
        axes = (*batched, *summed, *(axis for axis in outer if axis not in read))
        shape = (self.form.count(batched), self.form.count(summed), -1)
        right = self.derivative(product, factor, target, axes).reshape(shape)
        now = moved(self.arrays[factor.name], factor.axes, axes).reshape(shape)
        squares = self._gram(product, others, batched, summed).reshape(*shape[:2], shape[1])
        if mean := np.trace(squares, axis1=-2, axis2=-1).max() / shape[1]:
            hold = mean * (NEAR if squares.dtype == np.float64 else 1e-6)
            eye = np.eye(shape[1], dtype=squares.dtype)
            now = now + np.linalg.solve(squares + hold * eye, right - squares @ now)
        self.arrays[factor.name] = moved(now.reshape(self.form.shape(axes)), axes, factor.axes)
        return float(np.vdot(now, squares @ now)) - 2 * float(np.vdot(right, now))

    def _gram(self, product: Product, others: Sequence[Factor], batched: Axes, summed: Axes) -> Any:
        """Mᵀ·M: the other factors twice, the second time with other names for summed axes."""

        def primed(axes: Axes) -> Axes:
            return tuple(axis if axis in self.form.axes else f"{axis}′" for axis in axes)

        pairs = [(self.arrays[each.name], f(each.axes)) for each in others for f in (tuple, primed)]
        scale = product.coefficient**2 * self.form.count([a for a in self.form.axes if a not in product.axes])
        made = contract(pairs, (*batched, *summed, *primed(summed))) if pairs else np.ones(())
        return scale * made

    # ---- starts

    def start(self) -> None:
        """Sets factors to their initial values.

        In the first attempt factors start as leading singular vectors of the weight, unfolded to the axes that they
        share with it (De Lathauwer et al. 2000). Factors with the same axes take different ones. Columns beyond the
        number of these vectors, and all columns otherwise, are random.
        """
        taken, generator = Counter[Axes](), self.generator
        size = float(np.linalg.norm(self.weight)) or 1.0
        for factor, count in [(factor, len(own)) for _, own in self.terms for factor in own]:
            inner, rows = self.inner(factor), tuple(axis for axis in factor.axes if axis in self.form.axes)
            height, width = self.form.count(rows), self.form.count(inner)
            made = generator.standard_normal((height, width)) / math.sqrt(height)
            if self.attempt == 0 and rows and height <= DIRECT:
                first = taken[rows]
                found = leading(unfolded(self.weight, self.form.axes, (), rows), first + width)[:, first:]
                made[:, : found.shape[1]] = found[:, :width]
                taken[rows] += width
            if len(self.terms) > 1:  # a term is lost next to one that is many times as large
                made *= size ** (1 / count)
            whole = made.astype(self.weight.dtype).reshape(self.form.shape((*rows, *inner)))
            self.arrays[factor.name] = moved(whole, (*rows, *inner), factor.axes)

    def balance(self, rounds: int = 4) -> None:
        """Scales the factors of each term to equal norms along every axis between them. The product stays the same.

        Σ_r a_r·b_r = Σ_r (a_r·d_r)·(b_r / d_r): d_r gives both the same norm, so that both get gradients of equal
        size. Both are zero for ranks beyond the rank of the weight. One factor then gets random numbers, so that it
        can be trained.
        """
        generator = self.generator
        for _, own in self.terms:
            counts = Counter(axis for factor in own for axis in self.inner(factor))
            between = [axis for axis, count in counts.items() if count > 1]
            for axis in (*between * rounds, None):
                arrays, norms = self._along(own, axis)
                asleep = (norms == 0).all(axis=0)
                if asleep.any():
                    norm, count = float(norms[0].mean()) or 1.0, arrays[0][..., 0].size
                    random = generator.standard_normal(arrays[0].shape) * norm / math.sqrt(count)
                    arrays[0][...] += (asleep * random).astype(arrays[0].dtype)
                logs = np.log(np.where((norms > 0).all(axis=0), norms, 1.0))
                for array, log in zip(arrays, logs, strict=True):
                    array *= np.exp(logs.mean(axis=0) - log)

    def _along(self, own: Sequence[Factor], axis: str | None) -> tuple[list[Any], Any]:
        """The factors that have an axis, with it last, and their norms along it; all of them if it is None."""
        pairs = [(self.arrays[each.name], each.axes) for each in own if axis in (*each.axes, None)]
        views = [a[..., None] if axis is None else np.moveaxis(a, own.index(axis), -1) for a, own in pairs]
        return views, np.array([np.sqrt((each**2).sum(tuple(range(each.ndim - 1)))) for each in views])
