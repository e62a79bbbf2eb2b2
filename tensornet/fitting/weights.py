"""The weights of a trained graph as factors: each approximated in the form of the equations that replace it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import EquationError, ShapeError
from ..graph.graph import Graph
from ..language.expression import fresh
from ..protocol import backend_of
from ..runtime.arguments import wrong_names
from ..sizes import evaluate
from ..weights.substitution import Replacement, replaced
from .activations import batches_of, metrics
from .approximating import Progress, Settings, Target, Task, approximate, approximated, errors, numbers, sized
from .forms import Factor, Form, form_of
from .metrics import DAMPING, Metric

__all__ = ["Misfit", "fit"]


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


def fit(
    graph: Graph,
    params: Mapping[str, Any],
    substituted: Graph,
    /,
    *,
    inputs: Any = None,
    iterations: int | None = None,
    restarts: int = 1,
    regularization: float = 0.0,
    tolerance: float = 1e-5,
    damping: float = DAMPING,
    seed: int = 0,
    dtype: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> tuple[dict[str, Any], dict[str, Misfit]]:
    """The parameters with which the equations of a substituted graph approximate trained weights best.

    Each weight W has an equation Ŵ = f(factors). The fit minimizes

        ‖W − Ŵ‖² + λ·Σ‖factor‖²,    or, with `inputs`,    E‖(W − Ŵ)·x‖²

    where x is the tensor that the graph multiplies by the weight. The equation decides the method:

    - Two factors (low rank, a sum of Kronecker products, also batched over axes that both have): one singular value
      decomposition, which is optimal. Kronecker products follow Van Loan and Pitsianis (1993).
    - Tensor trains, block tensor trains and trees: one decomposition for each bond (Oseledets 2011).
    - Tucker forms: these, then higher-order orthogonal iteration (De Lathauwer, De Moor, Vandewalle 2000).
    - Other sums of products, such as CP and tensor rings: alternating least squares (Kolda, Bader 2009).
    - All others, such as concatenations, and small factors near the end: L-BFGS (Liu, Nocedal 1989).

    Factors are then scaled to equal norms, which changes no product. Weights that share factors are fitted as one
    stack, W[l,o,i], each with its own metric.

    Args:
        graph: the graph that was trained.
        params: its parameters, name to array of any library.
        substituted: the graph with equations in place of weights, as from `tensornet.substitute`.
        inputs: batches that weigh the error: an array, a tuple of the graph's inputs in order, or an iterable of these.
        iterations: the limit of rounds for each weight. The default is 2 for trains, or 0 if they have large ranks.
            For other forms it is 200, or 5 for very large factors.
        restarts: the number of starts where there are rounds of least squares. The first start uses singular
            vectors, the others are random; the best result is kept.
        regularization: λ, in units of the mean square of the weight.
        tolerance: rounds end when one lowers the error by less than this fraction.
        damping: added to the second moments of x, in units of their mean, so that directions without data count.
        seed: the seed of random starts.
        dtype: the element type of the computation; by default float64, but float32 for very large float32 weights.
        progress: called after each round.

    Returns:
        The parameters of `substituted`, and the errors by the name of each weight. New parameters have the library,
        element type and device of the weights that they replace.

    Raises:
        EquationError: no weight is replaced; a replaced weight depends on an input; weights that share factors have
            different equations or, with `inputs`, are multiplied along different dimensions.
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
    settings = Settings(iterations, restarts, regularization, tolerance, seed, dtype, progress)
    if set(params) != {leaf.name for leaf in graph.parameters}:
        raise wrong_names(graph, params)
    found = _replacements(graph, substituted)
    groups = _sharing(found, [leaf.name for leaf in graph.parameters])
    weighed = {}
    if inputs is not None:
        backend = backend_of(params[found[0].path])
        paths = [each.path for each in found]
        weighed = metrics(graph, params, paths, batches_of(inputs), backend, damping)
    made: dict[str, Any] = {}
    lost: dict[str, Misfit] = {}
    for group in groups:
        metric = {each.path: weighed[each.path] for each in group if each.path in weighed}
        if len(group) > 1:
            arrays, misfits = _fitted_together(group, params, settings, metric)
            made |= arrays
            lost |= misfits
            continue
        (each,), known = group, _known(group[0], params)
        given: dict[str, Any] = {"known": known, "settings": settings, "metric": metric.get(each.path)}
        result = approximate(each.program, params[each.path], **given, path=each.path)
        made |= {**known, **result.factors}
        lost[each.path] = Misfit(result.error, result.output)
    in_order = {each.path: lost[each.path] for each in found}
    return _all_of(substituted, {**params, **made}), in_order


def _known(each: Replacement, params: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves of a weight's program that keep their values."""
    known = {leaf.name: params[leaf.name] for leaf in each.program.parameters if leaf.name in params}
    return known if each.kept is None else {**known, each.kept: params[each.path]}


def _sharing(found: Sequence[Replacement], before: Collection[str]) -> list[tuple[Replacement, ...]]:
    """The weights in groups: those connected by shared factors are in one group.

    Args:
        found: the weights, and what replaces each.
        before: the parameters of the original graph. They keep their values, and do not connect weights.
    """
    groups: list[tuple[set[str], list[Replacement]]] = []
    for each in found:
        names = {leaf.name for leaf in each.program.parameters} - set(before)
        joined = [group for group in groups if group[0] & names]
        groups = [group for group in groups if not group[0] & names]
        whole = [*(one for _, ones in joined for one in ones), each]
        groups.append((names.union(*(group[0] for group in joined)), whole))
    return [tuple(ones) for _, ones in groups]


def _fitted_together(
    group: Sequence[Replacement],
    params: Mapping[str, Any],
    settings: Settings,
    weighed: Mapping[str, Metric],
) -> tuple[dict[str, Any], dict[str, Misfit]]:
    """The factors of weights that share some, and the errors of each weight. They are fitted as one stack.

    W_l[o,i] = Σ U[o,r]·S_l[r,s]·V[s,i]   →   W[l,o,i] = Σ U[o,r]·S[l,r,s]·V[s,i]
    """
    weights = [numbers(params[each.path], each.path, settings.dtype) for each in group]
    kind, forms = str(weights[0].dtype), list[Form | None]()
    known, shapes = dict[str, Any](), dict[str, Any]()
    for each, weight in zip(group, weights, strict=True):
        own = {name: numbers(array, name, kind) for name, array in _known(each, params).items()}
        program = sized(each.program, weight.shape, {name: array.shape for name, array in own.items()})
        known |= own | {leaf.name: leaf.value.array() for leaf in program.constants if leaf.value is not None}
        shapes |= {leaf.name: [evaluate(n, program.bound) for n in leaf.shape] for leaf in program.leaves}
        forms.append(form_of(program))
    form, places = _stacked(group, forms)
    axes = {factor.name: factor.axes for factor in form.read()}
    given = {
        first: np.stack([known[name] for name in dict.fromkeys(names)])
        .astype(kind)
        .reshape(form.shape(axes[first]))
        for first, names in places.items()
        if first in known
    }
    metric = _metric_of([each.path for each in group], weighed) if weighed else None
    wanted = tuple(name for name in places if name not in given)
    found, whole = approximated(
        Task(Target(np.stack(weights), metric, group[0].path), given, wanted, settings), form
    )
    misfits = {
        each.path: Misfit(*errors(weight, made, weighed.get(each.path)))
        for each, weight, made in zip(group, weights, whole, strict=True)
    }
    backend, like = backend_of(params[group[0].path]), params[group[0].path]
    dtype, device = backend.dtype(like), backend.device(like)
    made = {
        name: (found[first] if len({*places[first]}) == 1 else found[first][n]).reshape(shapes[name])
        for first in wanted
        for n, name in enumerate(places[first])
    }
    arrays = {name: backend.asarray(array, dtype, device) for name, array in made.items()}
    return {name: array for each in group for name, array in _known(each, params).items()} | arrays, misfits


def _stacked(
    group: Sequence[Replacement], forms: Sequence[Form | None]
) -> tuple[Form, dict[str, tuple[str, ...]]]:
    """The form of a stack of weights, and each of its factors to the factors of the weights that stand there.

    Factors that belong to one weight get a new axis, which numbers the weights; shared factors do not.

    Raises:
        EquationError: the weights have different equations.
    """
    shown = [
        form
        and (form.dims, form.sizes, [(p.coefficient, [f.axes for f in p.factors]) for p in form.products])
        for form in forms
    ]
    names = zip(*([factor.name for factor in form.read()] if form else () for form in forms), strict=False)
    places = {each[0]: each for each in names}
    first, distinct = forms[0], {len(set(each)) for each in places.values()}
    if first is None or any(each != shown[0] for each in shown) or distinct - {1, len(group)}:
        uses = Counter(leaf.name for each in group for leaf in each.program.leaves)
        several = next(name for name, count in uses.items() if count > 1)
        paths = " and ".join(f"'{each.path}'" for each in group[:2])
        told = f"'{several}' is a factor of several weights, of which {paths} are of other equations"
        raise EquationError(told, fix="give weights that share factors one equation, or train them")
    axis = fresh("l", {*first.sizes})

    def grown(factor: Factor) -> Factor:
        return factor if len({*places[factor.name]}) == 1 else Factor(factor.name, (axis, *factor.axes))

    products = tuple(replace(each, factors=tuple(map(grown, each.factors))) for each in first.products)
    return Form(((axis,), *first.dims), {**first.sizes, axis: len(group)}, products), places


def _metric_of(paths: Sequence[str], weighed: Mapping[str, Metric]) -> Metric:
    """The metric of a stack of weights, with the moments of each weight.

    Raises:
        EquationError: a weight has no metric, or its columns are other dimensions.
    """
    like, first = next(iter(weighed.items()))
    for path in paths:
        if path not in weighed or weighed[path].dims != first.dims:
            told = f"'{path}' shares factors with '{like}', and is not multiplied by its input as that is"
            raise EquationError(told, fix="leave inputs= out, or give it parameters of its own")
    moments = np.stack([weighed[path].moments for path in paths])
    return Metric(tuple(dim + 1 for dim in first.dims), moments, first.damping, apart=0)


def _replacements(graph: Graph, substituted: Graph) -> tuple[Replacement, ...]:
    """The weights that the other graph computes.

    Raises:
        EquationError: there are none, or one depends on an input.
    """
    found = replaced(graph, substituted)
    if not found:
        fix = "give the graph that tensornet.substitute made of it"
        raise EquationError("no parameter of the graph is computed in the other", fix=fix)
    for each in found:
        if each.program.inputs:
            name = each.program.inputs[0].name
            fix = "fit what depends on parameters alone, and train the rest"
            raise EquationError(f"'{each.path}' depends on the input '{name}'", fix=fix)
    return found


def _all_of(graph: Graph, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a graph, in its order.

    Raises:
        ShapeError: a new parameter belongs to no weight, so that nothing determines its value.
    """
    missing = [leaf.name for leaf in graph.parameters if leaf.name not in arrays]
    if missing:
        fix = "compute a weight of the graph from it, or leave it out"
        raise ShapeError(f"nothing tells what the parameter '{missing[0]}' is", fix=fix)
    return {leaf.name: arrays[leaf.name] for leaf in graph.parameters}
