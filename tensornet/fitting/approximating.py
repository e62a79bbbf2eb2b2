"""Approximation of one array: the factors of a form with the least error."""

from __future__ import annotations

import functools
import math
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import DtypeError, ShapeError
from ..graph.argument_shapes import sizes_from_shapes
from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..protocol import backend_of
from ..sizes import evaluate
from .alternating import DIRECT, Least, balanced, started
from .forms import Form, form_of
from .general import General, check_linear, of_parameters
from .metrics import ROOT, Metric, holders, times, with_root
from .together import Together, fits_in
from .trees import Tree, tree_of

__all__ = ["Approximation", "Progress", "Settings", "approximate", "numbers"]

LARGE = 1 << 27
"""Float32 arrays with at least this many elements are fitted in float32, not in float64."""

ROUNDS = 200
"""The default limit of rounds."""

FEW, NARROW = 2, 512
"""The limit of rounds for a train, whose decompositions are almost optimal.

A train gets none if more unknowns than `NARROW` are solved for at once.
"""

LONG = 5
"""The limit of rounds if a factor has too many unknowns for a direct solution."""

SLOW, WARM = 0.2, 8
"""A round is slow if it lowers the error by less than this fraction. The first `WARM` rounds never count as slow."""

EXACT = 1e-7
"""A relative error that counts as zero: sums of squares resolve little below it."""


@dataclass(frozen=True)
class Progress:
    """The progress of a fit.

    Attributes:
        path: the name of the weight.
        start: the number of the start, from 0.
        round: the number of the round, from 0.
        error: the relative error after this round.
    """

    path: str
    start: int
    round: int
    error: float


@dataclass(frozen=True)
class Approximation:
    """Factors and their error.

    Attributes:
        factors: name to array, of the target's library and element type.
        error: ‖W − Ŵ‖ / ‖W‖.
        output: ‖(W − Ŵ)·C^½‖ / ‖W·C^½‖, if there is a metric.
    """

    factors: Mapping[str, Any]
    error: float
    output: float | None = None


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
        whole = {"iterations": (self.iterations, 0), "restarts": (self.restarts, 1), "seed": (self.seed, 0)}
        for name, (value, least) in whole.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise ShapeError(f"{name} is {value!r}", fix=f"give an integer from {least}")
        for name, number in {"regularization": self.regularization, "tolerance": self.tolerance}.items():
            if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < math.inf:
                raise ShapeError(f"{name} is {number!r}", fix="give a number from 0")


def approximate(
    program: Graph,
    target: Any,
    *,
    known: Mapping[str, Any] | None = None,
    settings: Settings | None = None,
    metric: Metric | None = None,
    path: str = "",
) -> Approximation:
    """The factors with which a program approximates an array best: they minimize ‖W − Ŵ‖.

    Factors that form a tree (low rank, Kronecker products of two, trains, Tucker) are found by singular value
    decompositions, others by alternating least squares; see `trees.py` and `alternating.py`.

    Args:
        program: a graph whose one output is the weight, and whose parameters are the factors.
        target: W, an array of any library, of the output's shape.
        known: the leaves of the program that keep their values.
        settings: the options; see `tensornet.fit`.
        metric: weights for the columns of W; the fit then minimizes ‖(W − Ŵ)·C^½‖.
        path: the name of the weight in progress reports.

    Raises:
        EquationError: the program is not linear in each factor.
        ShapeError: sizes do not match, or some are open.
        DtypeError: the target holds no finite real numbers.

    Example:
        >>> import numpy as np, tensornet as tn
        >>> low = tn.layer("W[o,i] = A[o,r] * B[r,i]", r=1, o=3, i=2)
        >>> found = approximate(low, np.outer([1.0, 2.0, 3.0], [1.0, -1.0]))
        >>> {name: array.shape for name, array in found.factors.items()}, round(found.error, 6)
        ({'A': (3, 1), 'B': (1, 2)}, 0.0)
    """
    settings = settings or Settings()
    backend = backend_of(target)
    weight = numbers(target, path or program.outputs[0], settings.dtype)
    given = {name: numbers(array, name, str(weight.dtype)) for name, array in (known or {}).items()}
    program = _sized(program, weight.shape, {name: array.shape for name, array in given.items()})
    for leaf in program.constants:
        if leaf.value is not None:
            given[leaf.name] = leaf.value.array().astype(weight.dtype)
    wanted = tuple(leaf.name for leaf in program.parameters if leaf.name not in given)
    task = _Task(program, weight, given, wanted, settings, metric, path)
    found, whole = _fitted(task)
    dtype, device = backend.dtype(target), backend.device(target)
    if not any(kind in dtype for kind in ("float",)):
        dtype = str(weight.dtype)
    shapes = {leaf.name: leaf.shape for leaf in program.parameters}
    factors = {
        name: backend.asarray(found[name].reshape(_whole(shapes[name], program)), dtype, device)
        for name in wanted
    }
    output = None if metric is None else metric.norm(weight - whole) / (metric.norm(weight) or 1.0)
    error = float(np.linalg.norm(weight - whole)) / (float(np.linalg.norm(weight)) or 1.0)
    return Approximation(factors, error, output)


def numbers(array: Any, name: str, dtype: str | None = None) -> Any:
    """An array as a NumPy array of the element type of the computation.

    Raises:
        DtypeError: it holds other values than finite real numbers, or their squares overflow or all underflow.
    """
    backend = backend_of(array)
    found, kind = backend.numpy(array), backend.dtype(array)
    if found.dtype.kind not in "biuf" or not np.isfinite(found).all():
        what = kind if found.dtype.kind not in "biuf" else "what is not finite"
        raise DtypeError(f"'{name}' holds {what}", fix="give finite real numbers")
    large = found.size >= LARGE and found.dtype == np.float32
    made = found.astype(dtype or ("float32" if large else "float64"))
    _check_squares(made, name)
    return made


def _check_squares(array: Any, name: str) -> None:
    largest, kind = float(np.abs(array).max(initial=0.0)), np.finfo(array.dtype)
    lowest, highest = math.sqrt(kind.tiny), math.sqrt(kind.max) / max(1, array.size)
    if largest and not lowest <= largest <= highest:
        raise DtypeError(
            f"'{name}' holds numbers up to {largest:.3g}, whose squares {array.dtype} cannot add up",
            fix="scale it, and what it is multiplied by, or leave it out",
        )


def _sized(program: Graph, shape: tuple[int, ...], known: Mapping[str, tuple[int, ...]]) -> Graph:
    """The program with the sizes that follow from the weight and the known leaves.

    Raises:
        ShapeError: sizes do not match, or some remain open.
    """
    (output,) = program.outputs
    leaves = [leaf for leaf in program.leaves if leaf.name in known]
    whole = Leaf(output, "input", program.named[output])
    sizes = sizes_from_shapes(program, [whole, *leaves], [shape, *(known[leaf.name] for leaf in leaves)])
    bound = program.bind(**sizes) if sizes else program
    if bound.open_sizes:
        names = ", ".join(f"{name}=" for name in bound.open_sizes)
        raise ShapeError(f"'{output}' has open sizes: {', '.join(bound.open_sizes)}", fix=f"give {names}")
    return bound


@dataclass(frozen=True)
class _Task:
    """One weight to fit, as NumPy arrays.

    Attributes:
        program: the graph that computes the weight, without open sizes.
        weight: the array to approximate, of the output's shape.
        known: the leaves that keep their values.
        wanted: the names of the factors to be found.
    """

    program: Graph
    weight: Any
    known: Mapping[str, Any]
    wanted: tuple[str, ...]
    settings: Settings
    metric: Metric | None
    path: str

    @functools.cached_property
    def norm(self) -> float:
        """The norm that errors are relative to."""
        weight = self.weight if self.metric is None else self.metric.weighed(self.weight)
        return float(np.linalg.norm(weight))

    def tell(self, start: int, round: int, error: float) -> None:
        """Reports progress."""
        if self.settings.progress is not None:
            self.settings.progress(Progress(self.path, start, round, error))

    def generator(self, start: int) -> Any:
        """A random number generator that is different for each start of each weight."""
        return np.random.default_rng([self.settings.seed, zlib.crc32(self.path.encode()), start])


def _fitted(task: _Task) -> tuple[dict[str, Any], Any]:
    """The factors, and the weight computed from them."""
    form = form_of(task.program)
    if form is not None and _alternates(form, task.wanted):
        return _by_form(task, form)
    check_linear(task.program, task.wanted)
    return _by_program(task)


def _alternates(form: Form, wanted: Sequence[str]) -> bool:
    """Whether each wanted factor is in one product, once, and shares each of its summed axes with another factor."""
    counts = Counter(factor.name for product in form.products for factor in product.factors)
    if any(counts[name] != 1 for name in wanted):
        return False
    for product in form.products:
        readers = Counter(axis for factor in product.factors for axis in factor.axes)
        own = {axis for factor in product.factors if factor.name in wanted for axis in factor.axes}
        if any(readers[axis] < 2 for axis in own - set(form.axes)):
            return False
    return True


# ---------------------------------------------------------------------------- sums of products


def _by_form(task: _Task, form: Form) -> tuple[dict[str, Any], Any]:
    """The factors of a sum of products. Products without wanted factors are subtracted from the weight first."""
    arrays = {
        name: task.known[name].reshape(form.shape(each.axes))
        for name, each in form.read().items()
        if name in task.known
    }
    fixed = [p for p in form.products if not any(factor.name in task.wanted for factor in p.factors)]
    weight = task.weight.reshape(form.shape(form.axes))
    constant = Least(replace(form, products=tuple(fixed)), weight, arrays, (), 1.0).whole()
    form = replace(form, products=tuple(each for each in form.products if each not in fixed))
    least = Least(form, weight - constant, arrays, task.wanted, task.norm, task.settings.regularization)
    found = _solved(task, least) if task.metric is None else _weighed(task, least, task.metric)
    whole = constant + replace(least, arrays=found).whole()
    return found, whole.reshape(task.weight.shape)


def _weighed(task: _Task, least: Least, metric: Metric) -> dict[str, Any]:
    """The factors that minimize ‖(W − Ŵ)·C^½‖, the error of the output."""
    form = least.form
    axes = tuple(axis for dim in metric.dims for axis in form.dims[dim])
    turned = metric.weighed(least.weight.reshape(task.weight.shape)).reshape(least.weight.shape)
    root, inverse = metric.roots
    apart = () if metric.apart is None else form.dims[metric.apart]
    alone = holders(form, task.wanted, axes, apart)
    if alone is None:
        rooted = with_root(form, axes, apart)
        shape = rooted.shape(rooted.read()[ROOT].axes)
        arrays = {**least.arrays, ROOT: root.reshape(shape).astype(turned.dtype)}
        again = replace(least, form=rooted, weight=turned, arrays={**arrays, **_solved(task, least)})
        _alternated(task, again, 0)
        balanced(again, task.generator(0))
        return dict(again.arrays)
    found = _solved(task, replace(least, weight=turned))
    for factor in alone:
        dims = tuple(factor.axes.index(axis) for axis in axes)
        place = factor.axes.index(apart[0]) if apart else None
        found[factor.name] = times(found[factor.name], dims, inverse, place)
    return found


def _solved(task: _Task, least: Least) -> dict[str, Any]:
    """The factors of the terms: by decompositions if there is one term and it is a tree, else by least squares."""
    trees = [tree_of(least.form, product) for product in least.form.products]
    if len(trees) == 1 and trees[0] is not None and _all_wanted(trees[0], task) and not least.regularization:
        _decomposed(task, least, trees[0])
        balanced(least, task.generator(0))
        return dict(least.arrays)
    best: tuple[float, dict[str, Any]] | None = None
    for start in range(task.settings.restarts):
        _begun(task, least, trees, start)
        _alternated(task, least, start)
        balanced(least, task.generator(0))
        error = least.error()
        if best is None or error < best[0]:
            best = error, dict(least.arrays)
        if error < EXACT:
            break
    assert best is not None
    return best[1]


def _all_wanted(tree: Tree, task: _Task) -> bool:
    return all(factor.name in task.wanted for factor in tree.factors)


def _decomposed(task: _Task, least: Least, tree: Tree) -> None:
    """Finds the factors of a tree by decompositions, then improves them in rounds unless they are optimal."""
    weight = least.weight / tree.product.coefficient
    around = tree.is_around
    least.arrays.update(tree.truncated(weight) if around else tree.decomposed(weight))
    error = least.error()
    task.tell(0, 0, error)
    if tree.is_optimal or error < EXACT:
        return
    if around:
        most = FEW if len(tree.ends) == 2 else ROUNDS
        _rounds(task, lambda: _iterated(least, tree, weight), 0, 0, most)
    else:
        train = all(tree.bonds.values())
        _rounds(task, least.round, 0, 0, (FEW if least.widest <= NARROW else 0) if train else ROUNDS)


def _iterated(least: Least, tree: Tree, weight: Any) -> float:
    """One round of orthogonal iteration. The error follows from ‖W‖² minus the squared norm of the centre."""
    made = tree.iterated(weight, least.arrays)
    for name, array in made.items():
        least.put(name, array)
    assert tree.centre is not None
    square = np.linalg.norm(weight) ** 2 - np.linalg.norm(made[tree.centre.name]) ** 2
    return abs(tree.product.coefficient) * math.sqrt(max(float(square), 0.0)) / (least.norm or 1.0)


def _begun(task: _Task, least: Least, trees: Sequence[Tree | None], start: int) -> None:
    """Sets the factors to their initial values.

    For the first start, each term decomposes what the terms before it leave of the weight, if all terms are trees.
    """
    started(least, start == 0, task.generator(start))
    if start:
        return
    if any(tree is None or not _all_wanted(tree, task) for tree in trees):
        return
    left = least.weight
    for product, tree in zip(least.form.products, trees, strict=True):
        assert tree is not None
        for name, array in tree.decomposed(left / product.coefficient).items():
            least.put(name, array)
        left = left - least.value(product)


def _alternated(task: _Task, least: Least, start: int) -> None:
    """Alternating rounds. When these get slow, all factors are moved at once, if they have few enough elements."""
    most = ROUNDS if least.widest <= DIRECT else LONG
    limit = most if task.settings.iterations is None else task.settings.iterations
    if not fits_in(least):
        _rounds(task, least.round, start, 0, limit)
        return
    done, error = _rounds(task, least.round, start, 0, limit, slow=SLOW)
    if error >= EXACT and done < limit:
        _rounds(task, Together(least).round, start, done, limit - done)


def _rounds(
    task: _Task,
    once: Callable[[], float],
    start: int,
    done: int = 0,
    most: int = ROUNDS,
    slow: float = 0.0,
) -> tuple[int, float]:
    """Runs rounds until the error stops falling.

    Args:
        task: the weight to fit.
        once: runs one round, and returns the relative error.
        start: the number of the start, for progress.
        done: the number of rounds that ran before.
        most: the limit of rounds, unless the user gives one.
        slow: rounds also end when one lowers the error by less than this fraction, after the first `WARM` rounds.

    Returns:
        The number of rounds, and the error.
    """
    error = math.inf
    limit = most if task.settings.iterations is None or done else task.settings.iterations
    for number in range(limit):
        before, error = error, once()
        task.tell(start, done + number, error)
        least = max(task.settings.tolerance, slow if number >= WARM else 0.0)
        if error < EXACT or (number and before - error <= least * before):
            return number + 1, error
    return limit, error


# ---------------------------------------------------------------------------- general programs


def _by_program(task: _Task) -> tuple[dict[str, Any], Any]:
    """The factors of a program that is linear in each of them, and the weight computed from them."""
    turned = task.metric.weighed if task.metric is not None else np.asarray
    program = of_parameters(task.program)
    weight, penalty = turned(task.weight), task.settings.regularization
    general = General(program, weight, dict(task.known), task.wanted, turned, penalty)
    best: tuple[float, dict[str, Any]] | None = None
    for start in range(task.settings.restarts):
        general.start(task.generator(start))
        _rounds(task, general.round, start)
        error = general.error()
        if best is None or error < best[0]:
            best = error, dict(general.arrays)
    assert best is not None
    return best[1], replace(general, arrays=best[1], turned=np.asarray).value({})


def _whole(shape: Sequence[Any], program: Graph) -> tuple[int, ...]:
    return tuple(evaluate(size, program.bound) for size in shape)
