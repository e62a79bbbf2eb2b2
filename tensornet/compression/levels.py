"""Levels of a weight: its cost and its error in each form and at each rank."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, log, prod, sqrt
from typing import Any, TypeAlias

import numpy as np

from ..codec import Text, document
from ..codegen.program import planned
from ..dtypes import itemsize
from ..errors import ShapeError, unwarned
from ..fitting.approximating import Approximation, Target, approximate, numbers
from ..fitting.forms import Form, Product, kept
from ..fitting.least_squares import Settings
from ..fitting.metrics import Metric
from ..fitting.rounding import Halves, Kind, scaled
from ..fitting.trees import tree_of
from ..frontend.layers import layer
from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..protocol import Backend, backend_of
from ..sizes import evaluate
from ..weights.equations import CODES, MIXED, WIDTHS, Formed, Modes, formed, rounding_of
from ..weights.factorizations import FACTORIZATIONS, Rank
from ..weights.substitution import substitute

Dims: TypeAlias = tuple[tuple[int, ...], ...]
"""The sizes of the axes of each dimension of a weight."""

LETTERS = "abcdefghijlm"
"""The beginnings of the names of axes in a layer of a weight alone, one for each dimension."""

WEIGHT = "weight"
"""The name of the weight in a layer of this weight alone."""

FRACTIONS = (1.0, 0.7, 0.5, 0.36, 0.25, 0.18, 0.13, 0.09, 0.06, 0.04, 0.025, 0.015, 0.008)
"""The fractions of the dense parameters at which a form is tried."""

RANKS = 56
"""The most ranks at which a matrix is tried. Low ranks are closer together."""

AUTO = "auto"
"""The method that chooses forms for each weight."""

KERNELS = ("low_rank", "tucker", "tt")
"""The forms that are tried of a kernel."""

MATRICES = ("low_rank", "kronecker", "btt", "tt")
"""The forms that are tried of a matrix. A monarch is a btt of rank 1; in two parts, a blocktt is a kronecker."""

BYTES = "bytes"
"""The unit of a budget that rounding lowers."""

ROUNDED = ("int8", "int6", "int4", "int4/64", "int3", "int3/64", "int2", "int2/64", "int1", "int1/64", MIXED)
"""The forms that are tried under a budget of bytes."""

LARGEST, SMALL = 64, 1024
"""An adapter with more than `LARGEST` times the parameters of its weight is refused as a mistake.

A smaller weight counts as one of `SMALL` parameters.
"""

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
        stays: why it stays dense, if it has to.
    """

    path: str
    dims: Dims
    layer: Graph
    array: Any
    rows: int = 1
    metric: Metric | None = None
    scale: float = 1.0
    stays: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight."""
        return tuple(int(size) for size in self.array.shape)

    @property
    def dtype(self) -> str:
        """The element type of its factors."""
        own = backend_of(self.array).dtype(self.array)
        return own if "float" in own else "float64"

    @functools.cached_property
    def target(self) -> Target:
        """The weight with its decompositions, which all forms and ranks share."""
        return Target(self.array, self.metric, self.path)

    @property
    def halves(self) -> Halves:
        """The weight as a matrix, with its roundings. It takes much memory, and no one keeps it."""
        return Halves(numbers(self.array, self.path), self.metric)

    @kept
    def fitted(self, method: str, rank: Rank, modes: Modes | None) -> Approximation:
        """The factors of a form. Of weighed ones, decompositions are a good start, and few rounds follow."""
        form = formed(self.dims, method, rank, modes)
        if form.bits:
            return self._rounded(form)
        is_start = self.metric is not None and tree_of(_form(form)) is not None
        settings = Settings(iterations=AFTER if is_start else None)
        return approximate(form.program, self.target, settings=settings)

    def _rounded(self, form: Formed) -> Approximation:
        """The codes and scales of a rounded form."""
        halves = self.halves
        if form.product.ranks:
            arrays: tuple[Any, ...] = halves.low_rank(form.bits)
            made = (arrays[1] * arrays[0]) @ (arrays[3] * arrays[2])
        else:
            (arrays,) = halves.columns.rounded(halves.matrix, [_kind(form)], descends=True)
            made = scaled(*arrays)
        backend, factors = backend_of(self.array), dict[str, Any]()
        for factor, shape, array in zip(form.product.factors, form.shapes, arrays, strict=True):
            dtype = "int8" if factor.name.endswith(CODES) else self.dtype
            factors[factor.name] = backend.asarray(array.reshape(shape), dtype, backend.device(self.array))
        target = Target(self.array, self.metric, self.path)
        return Approximation(factors, target.misfit(made.reshape(self.shape)))


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


def dims_of(leaf: Leaf, graph: Graph) -> Dims:
    """The sizes of the axes of each dimension of a leaf of a graph, which are bound."""
    return tuple(tuple(int(evaluate(axis.size, graph.bound)) for axis in dim) for dim in leaf.dims)


@functools.lru_cache(maxsize=256)
def alone(dims: Dims, columns: tuple[int, ...] = (), kept: tuple[int, ...] = (), groups: int = 1) -> Graph:
    """The layer of a weight alone.

    Args:
        dims: the sizes of the axes of each dimension.
        columns: the dimensions that the input has too. If there are none, rows of the weight are looked up.
        kept: the dimensions of `columns` that are not summed.
        groups: the number of groups into which the first dimension is split. Each reads its own inputs.

    Example:
        >>> for made in (alone(((8,), (2, 2)), (1,)), alone(((100,), (8,))), alone(((8,), (3,)), (1,), groups=2)):
        ...     print(made.equations[0])
        y[n,a0] = x[n,(b0,b1)] * weight[a0,(b0,b1)]
        y[n,b0] = weight[k[n],b0]
        y[n,g,a0] = x[n,g,b0] * weight[(g,a0),b0]
    """
    names = [[f"{letter}{n}" for n in range(len(dim))] for letter, dim in zip(LETTERS, dims, strict=False)]
    sizes: dict[str, Any] = dict(zip(itertools.chain(*names), itertools.chain(*dims), strict=True))
    axes = [each[0] if len(each) == 1 else f"({','.join(each)})" for each in names]
    rest, rows = ",".join(axes[1:]), ["n"]
    if not columns:
        text = f"{WEIGHT}[{axes[0]},{rest}]: parameter\ny[n,{rest}] = {WEIGHT}[k[n],{rest}]"
        return layer(text, inputs="k", **sizes)
    read = [axes[each] for each in columns]
    left = [axis for each, axis in enumerate(axes) if each not in columns or each in kept]
    if groups > 1:
        rows, axes[0] = ["n", "g"], f"(g,{axes[0]})"
        sizes |= {"g": groups, "a0": dims[0][0] // groups}
    x, y = ",".join([*rows, *read]), ",".join([*rows, *left])
    return layer(f"y[{y}] = x[{x}] * {WEIGHT}[{','.join(axes)}]", inputs="x", **sizes)


@functools.lru_cache(maxsize=4096)
def _formed(dims: Dims, method: str, rank: Rank, modes: Modes | None) -> Formed | ShapeError:
    """A weight in a form, or the error that it has no such form."""
    try:
        with unwarned():
            return formed(dims, method, rank, modes)
    except ShapeError as error:
        return error.with_traceback(None)


def check_modes(candidates: Sequence[Candidate], methods: Sequence[str], modes: Modes | None) -> None:
    """Raises an error if the given modes fit none of the weights in any form.

    Raises:
        ShapeError: the message names the modes, and why they do not fit the first weight.
    """
    if modes is None or methods == (AUTO,):
        return
    tried = [(each.path, _formed(each.dims, name, 1, modes)) for each in candidates for name in methods]
    refused = [(path, found) for path, found in tried if isinstance(found, ShapeError)]
    if refused and len(refused) == len(tried):
        path, error = refused[0]
        raise ShapeError(f"modes={modes!r} fit no weight: of '{path}', {error.message}", fix=error.fix)


def check_rank(path: str, dims: Dims, method: str, rank: Rank, modes: Modes | None) -> None:
    """Raises an error if the rank makes an adapter far larger than its weight.

    Raises:
        ShapeError: the message names the rank at which the adapter can express any change of the weight.
    """
    with unwarned():
        count, dense = elements(formed(dims, method, rank, modes).shapes), prod(map(prod, dims))
        if count <= LARGEST * max(dense, SMALL):
            return
        full = tuple(formed(dims, method, "same", modes).product.ranks.values())
    raise ShapeError(
        f"rank={rank} gives '{path}' an adapter of {count:,} parameters, and it has {dense:,} itself",
        fix=f"give a rank up to {full[0] if len(set(full)) == 1 else full}, at which it can be any change",
    )


# ---------------------------------------------------------------------------- costs

Cost: TypeAlias = Callable[..., float]
"""A function for the cost of a candidate, dense or as a `Formed` weight, whose method and rank come third."""


def cost_of(kind: str, backend: Backend, device: str | None, modes: Modes | None) -> Cost:
    """The function for the cost of a weight in the unit of a budget; FLOPs and seconds are of a call of its layer."""
    if kind not in ("flops", "seconds"):
        return bytes_of if kind == BYTES else parameters_of

    @functools.cache
    def of_layer(layer: Graph, rows: int, named: tuple[str, Rank] | None) -> float:
        with unwarned():
            layer = layer if named is None else substitute(layer, {WEIGHT: named}, modes=modes)
        plan = planned(layer, {"n": rows}, backend, device or backend.device(), "float32")
        return float(getattr(plan, kind))

    return lambda candidate, form=None, named=None: of_layer(candidate.layer, candidate.rows, named)


def parameters_of(candidate: Candidate, form: Formed | None = None, named: Any = None) -> float:
    """The number of elements of a weight or its factors."""
    return float(elements((candidate.shape,) if form is None else form.shapes))


def bytes_of(candidate: Candidate, form: Formed | None = None, named: Any = None) -> float:
    """The bytes of a weight or its factors."""
    return float(bytes_in(candidate.array) if form is None else form.bytes(itemsize(candidate.dtype)))


def bytes_in(array: Any) -> int:
    """The bytes of the elements of an array."""
    return int(prod(array.shape)) * itemsize(backend_of(array).dtype(array))


def elements(shapes: Iterable[Sequence[int]]) -> int:
    """The number of elements of arrays of some shapes."""
    return sum(map(prod, shapes))


# ---------------------------------------------------------------------------- levels


def levels(
    weight: Candidate, methods: Sequence[str], cost: Cost, modes: Modes | None = None, max_error: float = inf
) -> tuple[Level, ...]:
    """The levels of a weight: dense, and each form at each rank that has fewer parameters and costs less.

    Args:
        weight: the weight.
        methods: the names of forms.
        cost: the cost of a weight in the unit of the budget.
        modes: the parts into which dimensions are split, as for `substitute`.
        max_error: levels with a larger error are left out.
    """
    size, dense = prod(weight.shape), cost(weight)
    found = [Level(None, "same", (weight.shape,), size, dense, 0.0, 0.0)]
    if weight.stays:
        return tuple(found)
    auto, halves = KERNELS if len(weight.dims) > 2 else MATRICES, weight.halves
    methods = auto if methods == (AUTO,) else methods
    same = (_formed(weight.dims, kind, "same", modes) for kind in methods)
    rounded = tuple(
        _kind(each) for each in same if isinstance(each, Formed) and each.bits and not each.product.ranks
    )
    for kind in methods:
        tried = (_formed(weight.dims, kind, rank, modes) for rank in _ranks(weight, kind, modes, halves))
        forms = {(elements(each.shapes), each.bits): each for each in tried if isinstance(each, Formed)}
        for (count, bits), form in forms.items():
            counts = (*map(bits.count, WIDTHS),) if kind == MIXED else tuple(form.product.ranks.values())
            rank = counts or "same"
            if (bits or count < size) and (spent := cost(weight, form, (kind, rank))) < dense:
                error = _error(weight, form, halves, rounded)
                if error <= max_error:
                    found.append(Level(kind, rank, form.shapes, count, spent, error, weight.scale * error**2))
    return tuple(found)


def _ranks(candidate: Candidate, kind: str, modes: Modes | None, halves: Halves) -> Sequence[Rank]:
    """The ranks at which a form is tried."""
    if kind == MIXED:
        return halves.mixtures()
    kind, rounding = rounding_of(kind)
    if rounding is not None and kind == "dense":
        return ("same",)
    if FACTORIZATIONS[kind].halves:
        most = min(candidate.shape[0], prod(candidate.shape[1:]))
        return [*dict.fromkeys(np.geomspace(1, most, RANKS).round().astype(int).tolist())]
    full = _formed(candidate.dims, kind, "same", modes)
    spectrum = candidate.target.spectrum(_form(full)) if isinstance(full, Formed) else None
    return _descent(full, *spectrum) if isinstance(full, Formed) and spectrum else FRACTIONS


def _descent(full: Formed, squares: Any, bonds: Sequence[tuple[str, ...]]) -> list[Rank]:
    """Ranks from full ones down: each step lowers the one that loses least for the parameters that it saves."""
    for dim in range(squares.ndim):
        squares = squares.cumsum(dim)

    def measured(ranks: Sequence[int]) -> tuple[float, int]:
        """What is kept of the squares at some ranks, and the number of parameters."""
        form = replace(full, sizes={**full.sizes, **dict(zip(full.product.ranks, ranks, strict=True))})
        ends = (min(form.sizes[axis], most) - 1 for (axis,), most in zip(bonds, squares.shape, strict=True))
        return float(squares[tuple(ends)]), elements(form.shapes)

    def worth(lower: tuple[int, ...]) -> float:
        less, fewer = measured(lower)
        return (kept - less) / max(1, count - fewer)

    ranks, found = tuple(full.product.ranks.values()), dict[int, tuple[int, ...]]()
    while max(ranks) > 1:
        kept, count = measured(ranks)
        found[round(log(count) * RANKS / 2)] = ranks
        down = [(*ranks[:n], min(r - 1, int(0.9 * r)), *ranks[n + 1 :]) for n, r in enumerate(ranks) if r > 1]
        ranks = min(down, key=worth)
    return [*found.values(), ranks]


def _form(form: Formed) -> Form:
    return Form(form.dims, form.sizes, (Product(1.0, form.product.factors),))


def _kind(form: Formed) -> Kind:
    """The bits of a rounded weight, and the number of elements of a row that share a scale."""
    scale, codes = form.shapes
    return form.bits[0], prod(codes) // prod(scale)


def _error(candidate: Candidate, form: Formed, halves: Halves, rounded: tuple[Kind, ...]) -> float:
    """The error of a form: by roundings or decompositions alone, if its factors form no tree by least squares.

    Args:
        candidate, halves: the weight.
        form: the form.
        rounded: how the weight itself is rounded in this and other forms; all are found together.
    """
    if form.bits:
        loss = halves.loss(form.bits) if form.product.ranks else halves.dense_loss(rounded)[_kind(form)]
        return sqrt(max(loss, 0.0))
    error = candidate.target.error(_form(form))
    if error is not None:
        return error
    settings = Settings(iterations=ROUNDS, tolerance=1e-4)
    found = approximate(form.program, candidate.target, settings=settings).misfit
    return found.weight if found.output is None else found.output
