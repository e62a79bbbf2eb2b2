"""Approximation of one array: the factors of a form with the least error."""

from __future__ import annotations

import functools
import math
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any

import numpy as np

from ..dtypes import element_type
from ..errors import DtypeError, ShapeError
from ..graph.argument_shapes import sizes_from_shapes
from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..protocol import backend_of
from ..sizes import evaluate
from .alternating import DIRECT, Least, balanced
from .forms import Form, form_of
from .least_squares import OfGraphs, Problem
from .metrics import Metric, Placed, held, placed, weighed
from .trees import Decomposed, Tree, tree_of

__all__ = [
    "Approximation",
    "Progress",
    "Settings",
    "Target",
    "approximate",
    "errors",
    "in_library",
    "numbers",
    "solved",
]

LARGE = 1 << 27
"""Float32 arrays with at least this many elements are fitted in float32, not in float64."""

ROUNDS = 200
"""The default limit of rounds."""

FEW, NARROW = 2, 512
"""The limit of rounds for a train, whose decompositions are almost optimal.

A train gets none if more unknowns than `NARROW` are solved for at once.
"""

LONG = 5
"""The limit of rounds if a factor has too many unknowns for a direct solution. These are rounds of L-BFGS."""

SLOW, WARM = 0.2, 8
"""A round is slow if it lowers the error by less than this fraction. The first `WARM` rounds never count as slow."""

UNKNOWNS = 500
"""The most elements that all factors may have to be moved at once when rounds are slow."""

EXACT = 1e-7
"""A relative error that counts as zero: sums of squares resolve little below it."""


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
class Approximation:
    """Factors and their error.

    Attributes:
        factors: name to array, of the target's library and element type.
        error: ‖W − Ŵ‖ / ‖W‖.
        output: the error weighed by the metric, if there is one: ‖(W − Ŵ)·C^½‖ / ‖W·C^½‖.
    """

    factors: Mapping[str, Any]
    error: float
    output: float | None = None


@dataclass(frozen=True, eq=False)
class Target:
    """A weight to approximate, with its decompositions, which all forms and ranks share.

    Attributes:
        weight: a NumPy array.
        metric: the metric that weighs its rows and columns, if there is one.
        path: its name in progress reports.
    """

    weight: Any
    metric: Metric | None = None
    path: str = ""
    _whitened: dict[tuple[Any, ...], Decomposed] = field(default_factory=dict)

    def whitened(self, sides: Sequence[Placed]) -> Decomposed:
        """The weight, weighed on some sides."""
        key = tuple(each.side.dims for each in sides)
        if key not in self._whitened:
            self._whitened[key] = Decomposed(weighed(self.weight, [each.side for each in sides]))
        return self._whitened[key]

    def _tree(self, form: Form) -> tuple[Tree, tuple[Placed, ...], Decomposed] | None:
        """The tree that a form is, the sides that its factors hold, and the weight weighed on these."""
        tree = tree_of(form)
        if tree is None:
            return None
        sides = self.sides_of(form, [factor.name for factor in tree.factors])
        return tree, sides, self.whitened(sides)

    def error(self, form: Form) -> float | None:
        """The error, weighed by the metric, of the factors that decompositions give; None if they form no tree."""
        if (found := self._tree(form)) is None:
            return None
        tree, placed, decomposed = found
        sides = [each.side for each in placed]
        if self.metric is None or sides == [*self.metric.sides]:
            return decomposed.error(tree)
        made = decomposed.nearest(tree).reshape(self.weight.shape)
        return self.metric.relative(self.weight, weighed(made, sides, inverse=True))

    def spectrum(self, form: Form) -> tuple[Any, list[tuple[str, ...]]] | None:
        """The squares of the core of full rank, if several factors of a form stand around a centre, and their bonds."""
        found = self._tree(form)
        if found is None or found[0].centre is None or len(found[0].cuts) < 2:
            return None
        tree, _, decomposed = found
        return decomposed.squares(tree), [cut.bond for cut in tree.cuts]

    def sides_of(self, form: Form, wanted: Sequence[str]) -> tuple[Placed, ...]:
        """The sides of the metric that factors of a form hold."""
        return held(self.metric, form, wanted, self.weight)


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
        kind: Any
        for name, kind, least in _NUMBERS:
            value: Any = getattr(self, name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, kind) or not least <= value < math.inf
            ):
                what = "an integer" if kind is Integral else "a number"
                raise ShapeError(f"{name} is {value!r}", fix=f"give {what} from {least}")
        if self.dtype is not None and element_type(self.dtype) not in ("float32", "float64"):
            raise DtypeError(f"nothing is fitted in {self.dtype}", fix="give dtype='float32' or 'float64'")


_NUMBERS = (
    *(("iterations", Integral, 0), ("restarts", Integral, 1), ("seed", Integral, 0)),
    *(("regularization", Real, 0), ("tolerance", Real, 0)),
)
"""The settings that are numbers, their kinds and their least values."""


def approximate(
    program: Graph,
    target: Any,
    *,
    known: Mapping[str, Any] | None = None,
    settings: Settings | None = None,
    metric: Metric | None = None,
    path: str = "",
    shared: Target | None = None,
) -> Approximation:
    """The factors with which a program approximates an array best: they minimize ‖W − Ŵ‖.

    Factors that form a tree (low rank, Kronecker products of two, trains, Tucker) are found by singular value
    decompositions, other sums of products by alternating least squares, and the rest by L-BFGS.

    Args:
        program: a graph whose one output is the weight, and whose parameters are the factors.
        target: W, an array of any library, of the output's shape.
        known: the leaves of the program that keep their values.
        settings: the options; see `tensornet.fit`.
        metric: weights for the columns of W; the fit then minimizes ‖(W − Ŵ)·C^½‖.
        path: the name of the weight in progress reports.
        shared: the same weight, metric and name, with decompositions that other forms of it need too.

    Raises:
        EquationError: the program does not depend on a factor, or has no derivative.
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
    if shared is None:
        shared = Target(numbers(target, path or program.outputs[0], settings.dtype), metric, path)
    found, (made,) = solved([program], [shared], known or {}, settings)
    return Approximation(in_library(found, target), *errors(shared.weight, made, shared.metric))


def solved(
    programs: Sequence[Graph], targets: Sequence[Target], known: Mapping[str, Any], settings: Settings
) -> tuple[dict[str, Any], list[Any]]:
    """The factors of one weight, or of several that share factors, as NumPy arrays, and each Ŵ.

    Args:
        programs: a graph for each weight.
        targets: the weights.
        known: the leaves of the programs that keep their values.
        settings: the options.
    """
    kind = str(targets[0].weight.dtype)
    given = {name: numbers(array, name, kind) for name, array in known.items()}
    have = {name: array.shape for name, array in given.items()}
    programs = [sized(*each, have) for each in zip(programs, (t.weight.shape for t in targets), strict=True)]
    leaves = [(leaf, program) for program in programs for leaf in program.leaves]
    given |= {leaf.name: leaf.value.array().astype(kind) for leaf, _ in leaves if leaf.value is not None}
    shapes = {
        leaf.name: tuple(int(evaluate(size, program.bound)) for size in leaf.shape)
        for leaf, program in leaves
        if leaf.kind == "parameter" and leaf.name not in given
    }
    task = Task(targets[0], given, tuple(shapes), settings)
    form = form_of(programs[0]) if len(programs) == 1 else None
    if form is not None and _alternates(form, task.wanted):
        found, whole = _approximated(task, form)
        return {name: found[name].reshape(shape) for name, shape in shapes.items()}, [whole]
    return _by_programs(task, programs, targets, shapes)


def in_library(found: Mapping[str, Any], like: Any) -> dict[str, Any]:
    """Factors as arrays of the library, the device and, if it has floats, the element type of a weight."""
    backend = backend_of(like)
    dtype, device = backend.dtype(like), backend.device(like)
    return {
        name: backend.asarray(array, dtype if "float" in dtype else str(array.dtype), device)
        for name, array in found.items()
    }


def errors(weight: Any, made: Any, metric: Metric | None) -> tuple[float, float | None]:
    """‖W − Ŵ‖ / ‖W‖, and the same weighed by the metric, if there is one."""
    output = None if metric is None else metric.relative(weight, made)
    return float(np.linalg.norm(weight - made)) / (float(np.linalg.norm(weight)) or 1.0), output


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
    largest, limits = float(np.abs(made).max(initial=0.0)), np.finfo(made.dtype)
    lowest, highest = math.sqrt(limits.tiny), math.sqrt(limits.max) / max(1, made.size)
    if largest and not lowest <= largest <= highest:
        raise DtypeError(
            f"'{name}' holds numbers up to {largest:.3g}, whose squares {made.dtype} cannot add up",
            fix="scale it, and what it is multiplied by, or leave it out",
        )
    return made


def sized(program: Graph, shape: tuple[int, ...], known: Mapping[str, tuple[int, ...]]) -> Graph:
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
class Task:
    """One weight to fit.

    Attributes:
        target: the weight, of the output's shape.
        known: the leaves that keep their values, as NumPy arrays.
        wanted: the names of the factors to be found.
        settings: the options.
    """

    target: Target
    known: Mapping[str, Any]
    wanted: tuple[str, ...]
    settings: Settings

    def generator(self, start: int) -> Any:
        """A random number generator that is different for each start of each weight."""
        return np.random.default_rng([self.settings.seed, zlib.crc32(self.target.path.encode()), start])

    def tell(self, start: int, round: int, error: float) -> None:
        """Reports progress."""
        if self.settings.progress is not None:
            self.settings.progress(Progress(self.target.path, start, round, error))

    def limit(self, most: int) -> int:
        """The limit of rounds: that of the user, if there is one."""
        return most if self.settings.iterations is None else self.settings.iterations

    def best(self, start: Callable[[int], None], problem: Problem) -> dict[str, Any]:
        """The factors with the least error of several starts."""
        found: list[tuple[float, int, dict[str, Any]]] = []
        for number in range(self.settings.restarts):
            start(number)
            error = problem.error()
            found.append((error, number, dict(problem.arrays)))
            if error < EXACT:
                break
        return min(found)[2]

    def rounds(
        self, once: Callable[[], float], start: int, most: int = ROUNDS, slow: float = 0.0
    ) -> tuple[int, float]:
        """Runs rounds until the error stops falling.

        Args:
            once: runs one round, and returns the relative error.
            start: the number of the start, for progress.
            most: the limit of rounds, unless the user gives one.
            slow: rounds also end when one lowers the error by less than this fraction, after the first `WARM` rounds.

        Returns:
            The number of rounds, and the error.
        """
        error, settings = math.inf, self.settings
        limit = self.limit(most)
        for number in range(limit):
            before, error = error, once()
            self.tell(start, number, error)
            least = max(settings.tolerance, slow if number >= WARM else 0.0)
            if error < EXACT or (number and before - error <= least * before):
                return number + 1, error
        return limit, error


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


def _approximated(task: Task, form: Form) -> tuple[dict[str, Any], Any]:
    """The factors of a sum of products, and Ŵ. Products without wanted factors are subtracted from the weight first."""
    target = task.target
    arrays = {
        f.name: task.known[f.name].reshape(form.shape(f.axes)) for f in form.read() if f.name in task.known
    }
    fixed = tuple(p for p in form.products if not any(factor.name in task.wanted for factor in p.factors))
    constant = 0.0
    if fixed:
        shape = form.shape(form.axes)
        zeros = np.zeros(shape, target.weight.dtype)
        known = Least(form=replace(form, products=fixed), weight=zeros, arrays=arrays, wanted=(), norm=1.0)
        constant = known.whole().reshape(target.weight.shape)
        form = replace(form, products=tuple(each for each in form.products if each not in fixed))
    left = replace(target, weight=target.weight - constant, _whitened={}) if fixed else target
    found = _weighed(replace(task, target=left), form, arrays)
    shaped = left.weight.reshape(form.shape(form.axes))
    made = Least(form=form, weight=shaped, arrays=found, wanted=(), norm=1.0).whole()
    return found, constant + made.reshape(target.weight.shape)


def _weighed(task: Task, form: Form, arrays: dict[str, Any]) -> dict[str, Any]:
    """The factors that minimize ‖G^½·(W − Ŵ)·C^½‖.

    First the sides that factors hold are weighed. With the factors found so as a start, all are, if there are more.
    """
    target = task.target
    start = target.sides_of(form, task.wanted)
    decomposed, shape = target.whitened(start), form.shape(form.axes)

    def problem(form: Form, weight: Any, arrays: dict[str, Any]) -> Least:
        norm, penalty = float(np.linalg.norm(weight)), task.settings.regularization
        shaped = weight.reshape(shape)
        return Least(
            form=form, weight=shaped, arrays=arrays, wanted=task.wanted, norm=norm, regularization=penalty
        )

    found = _solved(task, problem(form, decomposed.weight, arrays), decomposed)
    for each in start:
        found.update(each.undone(found))
    sides = target.metric.sides if target.metric is not None else ()
    if [each.side for each in start] == [*sides]:
        return found
    whole, at = weighed(target.weight, sides), placed(sides, form, task.wanted)
    for each in at:
        form, root = each.rooted(form)
        found[each.name] = root.astype(whole.dtype)
    least = problem(form, whole, found)
    _alternated(task, least, 0)
    balanced(least, task.generator(0))
    return {name: array for name, array in least.arrays.items() if name not in {each.name for each in at}}


def _solved(task: Task, least: Least, decomposed: Decomposed) -> dict[str, Any]:
    """The factors of the terms: by decompositions if there is one term and it is a tree, else by least squares."""
    trees = [tree_of(least.form, product) for product in least.form.products]
    are_trees = all(t is not None and all(f.name in task.wanted for f in t.factors) for t in trees)

    def start(number: int) -> None:
        tree, left = trees[0], least.weight
        if are_trees and tree is not None and len(trees) == 1 and not least.regularization:
            _decomposed(task, least, tree, decomposed)
        else:
            least.start(number == 0, task.generator(number))
            for tree in filter(None, trees if number == 0 and are_trees else ()):
                # each term decomposes what the terms before it leave of the weight
                least.arrays.update(Decomposed(left / tree.product.coefficient).factors(tree))
                left = left - least.value(tree.product)
            _alternated(task, least, number)
        balanced(least, task.generator(0))

    return task.best(start, least)


def _decomposed(task: Task, least: Least, tree: Tree, decomposed: Decomposed) -> None:
    """Finds the factors of a tree by decompositions, then improves them in rounds unless they are optimal."""
    if tree.product.coefficient != 1:
        decomposed = Decomposed(decomposed.weight / tree.product.coefficient)
    least.arrays.update(decomposed.factors(tree))
    error = least.error()
    task.tell(0, 0, error)
    if error < EXACT or len(tree.factors) <= 2:
        return
    if tree.centre is None and all(tree.bonds.values()):
        task.rounds(least.round, 0, FEW if least.widest <= NARROW else 0)
    else:
        _alternated(task, least, 0)


def _alternated(task: Task, least: Least, start: int) -> None:
    """Alternating rounds. When these get slow, all factors are moved at once, if they have few enough elements.

    So they are from the start if one has too many unknowns for a direct solution.
    """
    is_large, tolerance = least.widest > DIRECT, task.settings.tolerance
    limit, tell = task.limit(LONG if is_large else ROUNDS), functools.partial(task.tell, start)
    if is_large:
        least.descend(limit, tolerance, tell)
        return
    are_few = sum(least.arrays[name].size for name in task.wanted) <= UNKNOWNS
    done, error = task.rounds(least.round, start, limit, slow=SLOW if are_few else 0.0)
    if are_few and error >= EXACT and done < limit:
        least.descend(limit - done, tolerance, lambda n, error: tell(done + n, error))


# ---------------------------------------------------------------------------- general programs


def _by_programs(
    task: Task, programs: Sequence[Graph], targets: Sequence[Target], shapes: Mapping[str, Sequence[int]]
) -> tuple[dict[str, Any], list[Any]]:
    """The factors of programs that are no sums of products, or share factors, and each Ŵ."""
    limit, tolerance = task.limit(ROUNDS), task.settings.tolerance
    problem = OfGraphs(
        programs=tuple(programs),
        targets=tuple(each.weight for each in targets),
        arrays=dict(task.known),
        wanted=task.wanted,
        regularization=task.settings.regularization,
    )

    def start(number: int) -> None:
        problem.weigh([np.asarray for _ in targets])
        problem.start(shapes, task.generator(number))
        problem.descend(limit, tolerance, functools.partial(task.tell, number))
        if any(each.metric is not None for each in targets):
            problem.weigh([functools.partial(_turned, each.metric) for each in targets])
            problem.descend(limit, tolerance, functools.partial(task.tell, number))

    problem.arrays.update(task.best(start, problem))
    return {name: problem.arrays[name] for name in shapes}, problem.made()


def _turned(metric: Metric | None, weight: Any) -> Any:
    """G^½·W·C^½, with the scale of G and C: weights that share factors count by what they are multiplied by."""
    sides = metric.sides if metric is not None else ()
    return math.sqrt(math.prod(side.mean for side in sides)) * weighed(weight, sides)
