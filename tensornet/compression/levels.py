"""Levels of a weight: its cost and its error in each form and at each rank."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..codec import Text, document
from ..codegen.program import planned
from ..dtypes import itemsize
from ..errors import ShapeError, TensornetWarning
from ..fitting.approximating import Approximation, Target, approximate, errors, numbers
from ..fitting.forms import Form, Product
from ..fitting.least_squares import Settings
from ..fitting.metrics import Metric
from ..fitting.rounding import Halves, scaled
from ..fitting.trees import tree_of
from ..frontend.layers import layer
from ..graph.graph import Graph
from ..protocol import Backend, backend_of
from ..weights.equations import CODES, Formed, Modes, formed, rounding_of
from ..weights.factorizations import FACTORIZATIONS
from ..weights.ranks import Rank
from ..weights.substitution import substitute

__all__ = [
    *("AUTO", "BYTES", "WEIGHT", "Candidate", "Cost", "Level"),
    *("alone", "any_rank", "bytes_of", "check_modes", "levels", "parameters_of", "planned_cost"),
]

WEIGHT = "weight"
"""The name of the weight in a layer of this weight alone."""

FRACTIONS = (1.0, 0.7, 0.5, 0.36, 0.25, 0.18, 0.13, 0.09, 0.06, 0.04, 0.025, 0.015, 0.008)
"""The fractions of the dense parameters at which a form is tried."""

RANKS = 40
"""The approximate number of ranks at which a matrix is tried. Low ranks are closer together."""

AUTO = "auto"
"""The method that chooses forms for each weight."""

KERNELS = ("low_rank", "tucker", "tt")
"""The forms that are tried of a kernel."""

MATRICES = ("low_rank", "kronecker", "btt", "tt")
"""The forms that are tried of a matrix. A monarch is a btt of rank 1; in two parts, a blocktt is a kronecker."""

BYTES = "bytes"
"""The unit of a budget that rounding lowers."""

ROUNDED = (
    *("int8", "int6", "int4", "int4/64", "int3", "int3/64", "int2", "int2/64"),
    *(f"low_rank:int{bits}" for bits in (8, 6, 4, 3, 2)),
)
"""The forms that are tried under a budget of bytes."""

AFTER = 5
"""The limit of rounds after a weighed decomposition."""

ROUNDS = 10
"""The limit of rounds of least squares for each level."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A weight that may become factors.

    Attributes:
        path: its name in the network.
        dims: the sizes of the axes of each dimension.
        layer: a layer of this weight alone: y[n,…] = Σ x[n,…]·weight[…].
        array: its values.
        rows: the number of rows that a call of the network multiplies by it, or looks up in it.
        metric: the metric that weighs its columns and rows, if there is one.
        scale: the loss at an error of 1.
        plain: the same without a metric, if it has one.
    """

    path: str
    dims: tuple[tuple[int, ...], ...]
    layer: Graph
    array: Any
    rows: int = 1
    metric: Metric | None = None
    scale: float = 1.0
    plain: Candidate | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight."""
        return tuple(int(size) for size in self.array.shape)

    @property
    def bytes(self) -> int:
        """The bytes of its values."""
        return math.prod(self.shape) * itemsize(backend_of(self.array).dtype(self.array))

    @property
    def dtype(self) -> str:
        """The element type of its factors."""
        own = backend_of(self.array).dtype(self.array)
        return own if "float" in own else "float64"

    @functools.cached_property
    def target(self) -> Target:
        """The weight with its decompositions, which all forms and ranks share."""
        return Target(numbers(self.array, self.path), self.metric, self.path)

    @functools.cached_property
    def halves(self) -> Halves:
        """The weight as a matrix, with its roundings."""
        return Halves(self.target.weight, self.metric)

    def fitted(self, method: str, rank: Rank, modes: Modes | None) -> Approximation:
        """The factors of a form. Of weighed ones, decompositions are a good start, and few rounds follow."""
        form = formed(self.dims, method, rank, modes)
        if form.bits is not None:
            return self._rounded(form, rounding_of(method)[0], form.bits)
        is_start = self.metric is not None and tree_of(_form(form)) is not None
        settings = Settings(iterations=AFTER if is_start else None)
        return approximate(form.program, self.array, settings=settings, shared=self.target)

    def _rounded(self, form: Formed, kind: str, bits: int) -> Approximation:
        """The codes and scales of a rounded form."""
        halves, backend = self.halves, backend_of(self.array)
        if kind == "dense":
            arrays: Any = halves.dense(bits, _group(form))
            made = scaled(*arrays)
        else:
            scales, left, others, right = arrays = halves.low_rank(form.sizes["r"], bits)
            made = (left * scales) @ (right * others)
        factors = {
            factor.name: backend.asarray(
                array.reshape(shape).astype("int8" if factor.name.endswith(CODES) else "float64"),
                "int8" if factor.name.endswith(CODES) else self.dtype,
                backend.device(self.array),
            )
            for factor, shape, array in zip(form.product.factors, form.shapes, arrays, strict=True)
        }
        return Approximation(factors, *errors(self.target.weight, made.reshape(self.shape), self.metric))


@document()
@dataclass(frozen=True)
class Level:
    """A form of a weight at a rank, or the dense weight.

    Attributes:
        method, rank: the form and rank, as for `substitute`; a method of None is the dense weight.
        factors: the shape of each factor.
        parameters: the number of elements of the factors.
        cost: the cost in the unit of the budget.
        error: ‖W − Ŵ‖ / ‖W‖, with weighed columns and rows if there is a metric.
        loss: error², or the squared error of the output of the network that it predicts.
    """

    method: Text | None
    rank: tuple[int, ...] | str
    factors: tuple[tuple[int, ...], ...]
    parameters: int
    cost: float
    error: float
    loss: float


@functools.lru_cache(maxsize=256)
def alone(
    dims: tuple[tuple[int, ...], ...],
    columns: tuple[int, ...] = (),
    kept: tuple[int, ...] = (),
    groups: int = 1,
) -> Graph:
    """The layer of a weight alone.

    Args:
        dims: the sizes of the axes of each dimension.
        columns: the dimensions that the input has too. If there are none, rows of the weight are looked up.
        kept: the dimensions of `columns` that are not summed.
        groups: the number of groups into which the first dimension is split. Each reads its own inputs.

    Example:
        >>> for made in (alone(((8,), (2, 2)), (1,)), alone(((100,), (8,))), alone(((8,), (3,)), (1,), groups=2)):
        ...     print(made.equations[0])
        y[n,a] = x[n,(b1,b2)] * weight[a,(b1,b2)]
        y[n,b] = weight[k[n],b]
        y[n,g,a] = x[n,g,b] * weight[(g,a),b]
    """
    axes, sizes = list[str](), dict[str, Any]()
    for letter, dim in zip("abcdefghijlm", dims, strict=False):
        names = [f"{letter}{n}" for n in range(1, len(dim) + 1)] if len(dim) > 1 else [letter]
        axes.append(f"({','.join(names)})" if len(dim) > 1 else letter)
        sizes |= zip(names, dim, strict=True)
    weight, rest = f"{WEIGHT}[{','.join(axes)}]", ",".join(axes[1:])
    if not columns:
        return layer(f"{weight}: parameter\ny[n,{rest}] = {WEIGHT}[k[n],{rest}]", inputs="k", **sizes)
    if groups > 1:
        sizes |= {"g": groups, "a": dims[0][0] // groups}
        return layer(f"y[n,g,a] = x[n,g,{rest}] * {WEIGHT}[(g,a),{rest}]", inputs="x", **sizes)
    read = ",".join(["n", *(axes[each] for each in columns)])
    left = ",".join(["n", *(axis for each, axis in enumerate(axes) if each not in columns or each in kept)])
    return layer(f"y[{left}] = x[{read}] * {weight}", inputs="x", **sizes)


@functools.lru_cache(maxsize=4096)
def _formed(dims: tuple[tuple[int, ...], ...], method: str, rank: Rank, modes: Modes | None) -> Formed | None:
    """A weight in a form, or None if it has no such form."""
    try:
        with any_rank():
            return formed(dims, method, rank, modes)
    except ShapeError:
        return None


@contextlib.contextmanager
def any_rank() -> Iterator[None]:
    """A context without warnings of this library, for code that accepts the nearest rank."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TensornetWarning)
        yield


def check_modes(candidates: Sequence[Candidate], methods: Sequence[str], modes: Modes | None) -> None:
    """Raises an error if the given modes fit none of the weights in any form.

    Raises:
        ShapeError: the message names the modes, and why they do not fit the first weight.
    """
    refused = list[ShapeError]()
    pairs = itertools.product(candidates, methods) if modes is not None and methods != (AUTO,) else ()
    for candidate, method in pairs:
        try:
            with any_rank():
                formed(candidate.dims, method, 1, modes)
        except ShapeError as error:
            told = f"modes={modes!r} fit no weight: of '{candidate.path}', {error.message}"
            refused.append(ShapeError(told, fix=error.fix))
        else:
            return
    if refused:
        raise refused[0]


def _group(form: Formed) -> int | None:
    """The elements of a row that share a scale, if not all do."""
    scale, codes = form.shapes
    return math.prod(codes) // math.prod(scale) if len(scale) > 1 else None


def levels(
    candidate: Candidate,
    methods: Sequence[str],
    cost: Cost,
    modes: Modes | None = None,
    max_error: float | None = None,
) -> tuple[Level, ...]:
    """The levels of a weight: dense, and each form at each rank that has fewer parameters and costs less.

    Args:
        candidate: the weight.
        methods: the names of forms.
        cost: the cost of a weight in the unit of the budget.
        modes: the parts into which dimensions are split, as for `substitute`.
        max_error: levels with a larger error are left out.
    """
    size, dense = math.prod(candidate.shape), cost(candidate)
    found = [Level(None, "same", (candidate.shape,), size, dense, 0.0, 0.0)]
    auto = ROUNDED if cost is bytes_of else KERNELS if len(candidate.dims) > 2 else MATRICES
    for kind in auto if methods == (AUTO,) else methods:
        for parameters, form in _forms(candidate, kind, modes).items():
            rank = tuple(form.product.ranks.values()) or "same"
            cheap = parameters < size or form.bits is not None
            if cheap and (spent := cost(candidate, form, (kind, rank))) < dense:
                error = _error(candidate, form, kind)
                if max_error is None or error <= max_error:
                    loss = candidate.scale * error**2
                    found.append(Level(kind, rank, form.shapes, parameters, spent, error, loss))
    return tuple(found)


Cost: TypeAlias = Callable[..., float]
"""A function for the cost of a candidate, dense or as a `Formed` weight, whose method and rank come third."""


def parameters_of(candidate: Candidate, form: Formed | None = None, named: Any = None) -> float:
    """The number of elements of a weight or its factors."""
    return float(sum(map(math.prod, (candidate.shape,) if form is None else form.shapes)))


def bytes_of(candidate: Candidate, form: Formed | None = None, named: Any = None) -> float:
    """The bytes of a weight or its factors."""
    return float(candidate.bytes if form is None else form.bytes(itemsize(candidate.dtype)))


def planned_cost(kind: str, backend: Backend, device: str | None, modes: Modes | None) -> Cost:
    """The FLOPs or seconds of a call of a candidate's layer."""

    @functools.cache
    def of_layer(layer: Graph, rows: int, named: tuple[str, Rank] | None) -> float:
        with any_rank():
            layer = layer if named is None else substitute(layer, {WEIGHT: named}, modes=modes)
        return float(
            getattr(planned(layer, {"n": rows}, backend, device or backend.device(), "float32"), kind)
        )

    def cost(candidate: Candidate, form: Formed | None = None, named: Any = None) -> float:
        return of_layer(candidate.layer, candidate.rows, named)

    return cost


def _forms(candidate: Candidate, kind: str, modes: Modes | None) -> dict[int, Formed]:
    """A form of a weight at each rank that is tried, by the number of parameters."""
    tried = (_formed(candidate.dims, kind, rank, modes) for rank in _ranks(candidate, kind, modes))
    return {sum(map(math.prod, each.shapes)): each for each in tried if each is not None}


def _ranks(candidate: Candidate, kind: str, modes: Modes | None) -> Sequence[Rank]:
    """The ranks at which a form is tried."""
    kind, rounding = rounding_of(kind)
    if rounding is not None and kind == "dense":
        return ("same",)
    if FACTORIZATIONS[kind].halves:
        return _ladder(min(candidate.shape[0], math.prod(candidate.shape[1:])))
    full = _formed(candidate.dims, kind, "same", modes)
    spectrum = None if full is None else candidate.target.spectrum(_form(full))
    return FRACTIONS if full is None or spectrum is None else _descent(full, *spectrum)


def _descent(full: Formed, squares: Any, bonds: Sequence[tuple[str, ...]]) -> list[tuple[int, ...]]:
    """Ranks from full ones down: each step lowers the one that loses least for the parameters that it saves."""
    for dim in range(squares.ndim):
        squares = squares.cumsum(dim)
    place, names = {axis: n for n, (axis,) in enumerate(bonds)}, list(full.product.ranks)
    ranks, found = tuple(full.product.ranks.values()), list[tuple[int, ...]]()

    def kept(ranks: Sequence[int]) -> float:
        sizes = {place[name]: rank for name, rank in zip(names, ranks, strict=True)}
        return float(squares[tuple(min(sizes[n], size) - 1 for n, size in enumerate(squares.shape))])

    def count(ranks: Sequence[int]) -> int:
        sizes = {**full.sizes, **dict(zip(names, ranks, strict=True))}
        return sum(math.prod(sizes[axis] for axis in factor.axes) for factor in full.product.factors)

    def worth(lower: tuple[int, ...]) -> float:
        return (kept(ranks) - kept(lower)) / max(1, count(ranks) - count(lower))

    while max(ranks) > 1:
        found.append(ranks)
        lower = [
            (*ranks[:n], min(r - 1, int(0.9 * r)), *ranks[n + 1 :]) for n, r in enumerate(ranks) if r > 1
        ]
        ranks = min(lower, key=worth)
    counts = {round(math.log(count(each)) * RANKS / 2): each for each in found}
    return [*counts.values(), ranks]


@functools.cache
def _ladder(most: int) -> tuple[int, ...]:
    """Ranks from 1 to a largest, each at least 1 higher.

    Each is the last one times max(1.08, most^(1/RANKS)), rounded down.
    """
    found, step = [1], max(1.08, most ** (1 / RANKS))
    while found[-1] < most:
        found.append(min(most, max(found[-1] + 1, int(found[-1] * step))))
    return tuple(found)


def _form(form: Formed) -> Form:
    return Form(form.dims, form.sizes, (Product(1.0, form.product.factors),))


def _error(candidate: Candidate, form: Formed, name: str) -> float:
    """The error of a form: by roundings or decompositions alone, if its factors form no tree by least squares."""
    if form.bits is not None:
        if rounding_of(name)[0] == "dense":
            return math.sqrt(candidate.halves.dense_loss(form.bits, _group(form)))
        return math.sqrt(candidate.halves.losses(form.bits)[form.sizes["r"] - 1])
    error = candidate.target.error(_form(form))
    if error is not None:
        return error
    settings = Settings(iterations=ROUNDS, tolerance=1e-4)
    found = approximate(form.program, candidate.array, settings=settings, shared=candidate.target)
    return found.error if found.output is None else found.output
