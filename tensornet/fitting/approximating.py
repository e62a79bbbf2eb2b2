"""Approximation of weights: the factors of a form, or of equations, with the least error."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..errors import DtypeError, EquationError, ShapeError, checked_number
from ..graph.argument_shapes import sizes_from_shapes
from ..graph.graph import Graph, of_graph
from ..graph.leaves import Leaf
from ..planning.gradients import gradient
from ..protocol import backend_of, load_backend
from ..runtime.executable import Executable, wrong_names
from ..sizes import evaluate
from ..weights.substitution import Replacement, computing, replaced
from .forms import Form, form_of
from .least_squares import ROUNDS, Least, Problem, Settings, split
from .metrics import DAMPING, Metric, held, holders, metrics, times, weighed
from .trees import Decomposed, tree_of

LARGE = 1 << 27
"""Float32 arrays with at least this many elements are fitted in float32, not in float64."""


@dataclass(frozen=True)
class Misfit:
    """The errors of the factors that replace a weight.

    Attributes:
        weight: ‖W − Ŵ‖ / ‖W‖.
        output: ‖(W − Ŵ)·x‖ / ‖W·x‖ over the given batches. None without batches, or if the graph does not simply
            multiply the weight by other tensors.
    """

    weight: float
    output: float | None = None


@dataclass(frozen=True)
class Approximation:
    """Factors, name to array, of the library and element type of a weight, and their errors."""

    factors: Mapping[str, Any]
    misfit: Misfit


@dataclass(frozen=True, eq=False)
class Target:
    """A weight to approximate, with its decompositions, which all forms and ranks share.

    Attributes:
        array: its values, an array of any library.
        metric: the metric that weighs its rows and columns, if there is one.
        path: its name.
    """

    array: Any
    metric: Metric | None = None
    path: str = ""
    _decomposed: dict[Any, Decomposed] = field(default_factory=dict)

    @functools.cached_property
    def weight(self) -> Any:
        """Its values as a NumPy array."""
        return numbers(self.array, self.path or "weight")

    def turned(self, gap: Any) -> Any:
        """G·gap·C with the scale of both, damped: weights count by what they are multiplied by."""
        sides = self.metric.sides if self.metric is not None else ()
        return times(gap, *((side.dims, side.mean * side.damped) for side in sides))

    def misfit(self, made: Any) -> Misfit:
        """The errors of Ŵ."""
        norms = (np.linalg.norm, *((self.metric.norm,) if self.metric else ()))
        return Misfit(*(float(norm(self.weight - made) / (norm(self.weight) or 1.0)) for norm in norms))

    def decomposed(self, form: Form, known: Sequence[str] = ()) -> Decomposed:
        """The weight with a dimension for each axis of a form, weighed on the sides that its factors hold."""
        shape = form.shape(form.axes)
        metric = None if self.metric is None else self.metric.of_axes(form)
        sides = [] if metric is None else held(metric, form, known)
        dims = [side.dims for side in sides]
        key = (shape, *dims)
        if key not in self._decomposed:
            is_whole = metric is None or all(side.dims in dims for side in metric.sides)
            self._decomposed[key] = Decomposed(weighed(self.weight.reshape(shape), sides), sides, is_whole)
        return self._decomposed[key]

    def error(self, form: Form) -> float | None:
        """The error, weighed by the metric, of the factors that decompositions give; None if they form no tree."""
        if (tree := tree_of(form)) is None:
            return None
        decomposed = self.decomposed(form)
        if self.metric is None or decomposed.is_whole:
            return decomposed.error(tree)
        made = weighed(form.value(decomposed.factors(tree)), decomposed.sides, inverse=True)
        return self.misfit(made.reshape(self.weight.shape)).output

    def spectrum(self, form: Form) -> tuple[Any, list[tuple[str, ...]]] | None:
        """The squares of the core of full rank, if several factors of a form stand around a centre, and their bonds."""
        tree = tree_of(form)
        if tree is None or not tree.has_centre or len(tree.cuts) < 2:
            return None
        return self.decomposed(form).squares(tree), [cut.bond for cut in tree.cuts]


def approximate(
    program: Graph,
    target: Any,
    *,
    known: Mapping[str, Any] | None = None,
    settings: Settings | None = None,
    metric: Metric | None = None,
) -> Approximation:
    """The factors with which a program approximates an array best: they minimize ‖W − Ŵ‖.

    Factors that form a tree (low rank, Kronecker products of two, trains, Tucker) are found by singular value
    decompositions, other sums of products by alternating least squares, and the rest by L-BFGS.

    Args:
        program: a graph whose one output is the weight, and whose parameters are the factors.
        target: W, an array of any library, of the output's shape; or a `Target`, which has its own metric.
        known: the leaves of the program that keep their values.
        settings: the options; see `tensornet.fit`.
        metric: weights for the columns of W; the fit then minimizes ‖(W − Ŵ)·C^½‖.

    Raises:
        EquationError: the program has no factor that is not known, or no derivative.
        ShapeError: sizes do not match, or some are open.
        DtypeError: the target holds no finite real numbers.

    Example:
        >>> import numpy as np, tensornet as tn
        >>> low = tn.layer("W[o,i] = A[o,r] * B[r,i]", r=1, o=3, i=2)
        >>> found = approximate(low, np.outer([1.0, 2.0, 3.0], [1.0, -1.0]))
        >>> {name: array.shape for name, array in found.factors.items()}, round(found.misfit.weight, 6)
        ({'A': (3, 1), 'B': (1, 2)}, 0.0)
    """
    settings = settings or Settings()
    if not isinstance(target, Target):
        target = Target(target, metric)
    factors, (misfit,) = solved(program, [target], known or {}, settings)
    return Approximation(factors, misfit)


def solved(
    program: Graph, targets: Sequence[Target], known: Mapping[str, Any], settings: Settings
) -> tuple[dict[str, Any], list[Misfit]]:
    """The factors of one weight, or of several that share factors, and the errors of each weight.

    Args:
        program: a graph whose outputs are the weights.
        targets: the weights.
        known: the leaves of the program that keep their values.
        settings: the options.
    """
    kind = str(targets[0].weight.dtype)
    given = {leaf.name: leaf.value.array().astype(kind) for leaf in program.leaves if leaf.value is not None}
    given |= {name: numbers(array, name, kind) for name, array in known.items()}
    program = sized(program, [each.weight.shape for each in targets], given)
    wanted = [leaf for leaf in program.parameters if leaf.name not in given]
    if not wanted:
        fix = "leave what is to be found out of known=, as a parameter of the program"
        raise EquationError(f"'{program.outputs[0]}' has no factor that is not known", fix=fix)
    shapes = {leaf.name: [int(evaluate(size, program.bound)) for size in leaf.shape] for leaf in wanted}
    form = form_of(program) if len(targets) == 1 else None
    counts = Counter(factor.name for product in form.products for factor in product.factors) if form else {}
    if form is None or any(counts.get(name) != 1 for name in shapes):
        arrays = given | {name: np.empty(shape, kind) for name, shape in shapes.items()}
        weight = np.concatenate([each.weight for each in targets], axis=None)
        problem = OfGraph(weight, arrays, tuple(shapes), settings, targets[0].path, program, targets)
        found, made = problem.fitted()
    else:
        found, made = _by_form(form, targets[0], given, tuple(shapes), settings)
    backend, like = backend_of(targets[0].array), targets[0].array
    dtype = backend.dtype(like) if "float" in backend.dtype(like) else kind
    wide = {name: found[name].reshape(shape) for name, shape in shapes.items()}
    factors = {name: backend.asarray(each, dtype, backend.device(like)) for name, each in wide.items()}
    return factors, [target.misfit(each) for target, each in zip(targets, made, strict=True)]


def numbers(array: Any, name: str, dtype: str | None = None) -> Any:
    """An array as a NumPy array of the element type of the computation.

    Raises:
        DtypeError: it holds other values than finite real numbers, or their squares overflow or all underflow.
    """
    backend = backend_of(array)
    found = np.asarray(backend.numpy(array))
    if found.dtype.kind not in "biuf" or not np.isfinite(found).all():
        what = f"{found.dtype}" if found.dtype.kind not in "biuf" else "what is not finite"
        raise DtypeError(f"'{name}' holds {what}", fix="give finite real numbers")
    is_large = found.size >= LARGE and found.dtype == np.float32
    made = found.astype(dtype or ("float32" if is_large else "float64"))
    largest, limits = float(np.abs(made).max(initial=0.0)), np.finfo(made.dtype)
    if largest and not math.sqrt(limits.tiny) <= largest <= math.sqrt(limits.max) / made.size:
        told = f"'{name}' holds numbers up to {largest:.3g}, whose squares {made.dtype} cannot add up"
        raise DtypeError(told, fix="scale it, and what it is multiplied by, or leave it out")
    return made


def sized(program: Graph, shapes: Sequence[tuple[int, ...]], known: Mapping[str, Any]) -> Graph:
    """The program with the sizes that follow from the weights and the known leaves.

    Raises:
        ShapeError: sizes do not match, or some remain open.
    """
    leaves = [Leaf(name, "input", program.named[name]) for name in program.outputs]
    given = [leaf for leaf in program.leaves if leaf.name in known]
    every = [*shapes, *(known[each.name].shape for each in given)]
    sizes = sizes_from_shapes(program, [*leaves, *given], every)
    bound = program.bind(**sizes) if sizes else program
    if bound.open_sizes:
        names = ", ".join(f"{name}=" for name in bound.open_sizes)
        told = f"'{program.outputs[0]}' has open sizes: {', '.join(bound.open_sizes)}"
        raise ShapeError(told, fix=f"give {names}")
    return bound


# ---------------------------------------------------------------------------- sums of products


def _by_form(
    form: Form, target: Target, known: Mapping[str, Any], wanted: tuple[str, ...], settings: Settings
) -> tuple[dict[str, Any], Sequence[Any]]:
    """The factors of a sum of products, and Ŵ. Products without wanted factors are subtracted from the weight first."""
    factors = [factor for product in form.products for factor in product.factors]
    arrays = {f.name: known[f.name].reshape(form.shape(f.axes)) for f in factors if f.name in known}
    fixed = [each for each in form.products if not any(factor.name in wanted for factor in each.factors)]
    constant = np.broadcast_to(form.value(arrays, fixed), form.shape(form.axes))
    constant = constant.astype(target.weight.dtype).reshape(target.weight.shape)
    if fixed:
        form = replace(form, products=tuple(each for each in form.products if each not in fixed))
        target = replace(target, array=target.weight - constant, _decomposed={})
    decomposed = target.decomposed(form, tuple(arrays))
    least = Least(decomposed.weight, arrays, wanted, settings, target.path, form, decomposed)
    least.best()
    least.balance()
    for side in decomposed.sides:
        for factor in holders(side, form):
            dims = tuple(factor.axes.index(form.axes[dim]) for dim in side.dims)
            least.arrays[factor.name] = times(least.arrays[factor.name], (dims, side.roots[1]))
    if not decomposed.is_whole:
        least.weight = target.weight.reshape(least.weight.shape)
        least.refine(lambda gap: target.turned(gap.reshape(target.weight.shape)).reshape(gap.shape))
    least.balance()
    made = np.broadcast_to(least.whole(), least.weight.shape)
    return least.arrays, (made.reshape(target.weight.shape) + constant,)


# ---------------------------------------------------------------------------- general programs


@dataclass
class OfGraph(Problem):
    """Least squares in the parameters of a graph, whose outputs are one weight or several that share parameters.

    Attributes:
        graph: the graph.
        targets: the weights. `weight` has all their elements.
    """

    graph: Graph
    targets: Sequence[Target]

    def fitted(self) -> tuple[dict[str, Any], Sequence[Any]]:
        """The factors, and each Ŵ."""
        self.best()
        if any(each.metric is not None for each in self.targets):
            self.refine(self.weighed)
        return self.arrays, self.parts(self.whole())

    def weighed(self, gap: Any) -> Any:
        """The elements of all G·gap·C."""
        pairs = zip(self.targets, self.parts(gap), strict=True)
        return np.concatenate([target.turned(part) for target, part in pairs], axis=None)

    def parts(self, whole: Any) -> list[Any]:
        """What belongs to each weight."""
        return split(whole, [each.weight.shape for each in self.targets])

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

    def whole(self) -> Any:
        """The elements of all Ŵ."""
        made = self._runs[0](self.arrays)
        return np.concatenate(made if isinstance(made, tuple) else (made,), axis=None)

    def pulled_back(self, gap: Any) -> Mapping[str, Any]:
        """Jᵀ·gap for each factor, J the derivative of Ŵ."""
        made = self._runs[1](self.arrays, *self.parts(gap))
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
            leaves = computing(self.graph, output).leaves
            *_, last = (leaf.name for leaf in leaves if leaf.name in self.wanted)
            self.arrays[last] = np.zeros_like(self.arrays[last])
        if (self.whole() != self.weight).any():
            self.arrays.update(before)


# ---------------------------------------------------------------------------- weights of a graph


@of_graph
def fit(
    graph: Graph,
    params: Mapping[str, Any],
    substituted: Graph,
    /,
    *,
    inputs: Any = None,
    iterations: int | None = None,
    restarts: int = 1,
    tolerance: float = 1e-5,
    damping: float = DAMPING,
    seed: int = 0,
    progress: Callable[[str, int, int, float], None] | None = None,
) -> tuple[dict[str, Any], dict[str, Misfit]]:
    """The parameters with which the equations of a substituted graph approximate trained weights best.

    Each weight W has an equation Ŵ = f(factors). The fit minimizes

        ‖W − Ŵ‖²,    or, with `inputs`,    E‖(W − Ŵ)·x‖²

    where x is the tensor that the graph multiplies by the weight. The equation decides the method:

    - Two factors (low rank, a sum of Kronecker products, also batched over axes that both have): one singular value
      decomposition, which is optimal. Kronecker products follow Van Loan and Pitsianis (1993).
    - Tensor trains, block tensor trains and trees: one decomposition for each bond (Oseledets 2011).
    - Tucker forms: these, then higher-order orthogonal iteration (De Lathauwer, De Moor, Vandewalle 2000).
    - Other sums of products, such as CP and tensor rings: alternating least squares (Kolda, Bader 2009).
    - All others, such as concatenations, and small factors near the end: L-BFGS (Liu, Nocedal 1989).

    Factors are then scaled to equal norms, which changes no product. Weights that share factors are fitted together,
    by L-BFGS, each with its own metric.

    Args:
        graph: the graph that was trained.
        params: its parameters, name to array of any library.
        substituted: the graph with equations in place of weights, as from `tensornet.substitute`.
        inputs: batches that weigh the error: an array, a tuple of the graph's inputs in order, or an iterable of these.
        iterations: the limit of rounds for each weight. The default is 2 for trains, or 0 if they have large ranks.
            For other forms it is 200, or 5 for very large factors, and 80 more where `inputs` weigh the error and no
            single factor meets them.
        restarts: the number of starts where there are rounds of least squares. The first start uses singular
            vectors, the others are random; the best result is kept.
        tolerance: rounds end when one lowers the error by less than this fraction.
        damping: added to the second moments of x, in units of their mean, so that directions without data count.
        seed: the seed of random starts.
        progress: called after each round with the name of the weight, the numbers of the start and of the round from
            0, and ‖W − Ŵ‖ / ‖W‖.

    Returns:
        The parameters of `substituted`, and the errors by the name of each weight. New parameters have the library,
        element type and device of the weights that they replace.

    Raises:
        EquationError: no weight is replaced; a replaced weight depends on an input.
        ShapeError: a parameter is missing, unknown, or has another shape.
        DtypeError: a weight holds other values than finite real numbers.

    Example:
        >>> import numpy as np, tensornet as tn
        >>> dense = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x")
        >>> low = tn.layer("W[o,i] = A[o,r] * B[r,i]\\ny[b,o] = x[b,i] * W[o,i]", inputs="x", r=1)
        >>> params, lost = fit(dense, {"W": np.diag([4.0, 3.0])}, low)
        >>> np.round(params["A"] @ params["B"], 6), lost["W"]
        (array([[4., 0.],
               [0., 0.]]), Misfit(weight=0.6, output=None))
    """
    settings = Settings(iterations, restarts, tolerance, seed, progress)
    checked_number(damping, "damping")
    if not isinstance(params, Mapping) or set(params) != {leaf.name for leaf in graph.parameters}:
        raise wrong_names(graph, params)
    if not isinstance(substituted, Graph):
        fix = "give tensornet.substitute(graph, …)"
        raise EquationError(f"a graph with equations for weights is expected, not {substituted!r}", fix=fix)
    found = replaced(graph, substituted)
    for each in found:
        if each.program.inputs:
            told = f"'{each.path}' depends on the input '{each.program.inputs[0].name}'"
            raise EquationError(told, fix="fit what depends on parameters alone, and train the rest")
    paths = [each.path for each in found]
    weighed = {} if inputs is None else metrics(graph, params, paths, inputs, damping)
    made, lost = dict(params), dict[str, Misfit]()
    for group in _sharing(found, params):
        own = [each.path for each in group]
        program = computing(substituted.flat, *own)
        known = {leaf.name: params[leaf.name] for leaf in program.parameters if leaf.name in params}
        known |= {each.kept: params[each.path] for each in group if each.kept is not None}
        targets = [Target(params[path], weighed.get(path), path) for path in own]
        factors, misfits = solved(program, targets, known, settings)
        made |= known | factors
        lost |= dict(zip(own, misfits, strict=True))
    if any(leaf.name not in made for leaf in substituted.parameters):
        raise wrong_names(substituted, made)
    made = {leaf.name: made[leaf.name] for leaf in substituted.parameters}
    return made, {path: lost[path] for path in paths}


def _sharing(found: Sequence[Replacement], before: Collection[str]) -> list[list[Replacement]]:
    """The weights in groups: those connected by shared factors are in one group.

    Args:
        found: the weights, and what replaces each.
        before: the parameters of the original graph. They keep their values, and do not connect weights.
    """

    def factors(weights: Sequence[Replacement]) -> set[str]:
        return {leaf.name for each in weights for leaf in each.program.parameters} - {*before}

    groups: list[list[Replacement]] = []
    for each in found:
        joined = [group for group in groups if factors(group) & factors([each])]
        groups = [group for group in groups if group not in joined] + [[*itertools.chain(*joined), each]]
    return groups
