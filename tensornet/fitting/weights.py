"""The weights of a trained graph as factors: each brought into the form that equations put in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import EquationError, ShapeError
from ..graph.graph import Graph
from ..protocol import backend_of
from ..runtime.arguments import wrong_names
from ..runtime.compiling import compile
from ..weights.substitution import Replacement, replaced
from .activations import batches_of, metrics
from .approximating import Progress, Settings, approximate
from .metrics import DAMPING, Metric
from .stacks import sharing, stack_of

__all__ = ["Misfit", "fit"]


@dataclass(frozen=True)
class Misfit:
    """What is lost where factors stand for a weight.

    Attributes:
        weight: ‖W − Ŵ‖ / ‖W‖.
        output: ‖(W − Ŵ)·x‖ / ‖W·x‖ over the batches that were given, nothing where none were, or where the weight is
            not simply multiplied by something.
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
    """Parameters for a graph in which equations stand in the place of weights: those nearest to the weights.

    For each weight W and its equation Ŵ = f(factors), linear in each factor, least

        ‖W − Ŵ‖² + λ·Σ‖factor‖²,    or, with `inputs`,    E‖(W − Ŵ)·x‖²

    over what the weight is multiplied by in the graph, x. How is told from the equation: two factors (low rank, a
    sum of Kronecker products, each for all places of axes that both have) by one singular value decomposition, which
    nothing betters; tensor trains, block tensor trains and trees by one for each bond (Oseledets 2011); Tucker forms
    by these, then higher-order orthogonal iteration (De Lathauwer, De Moor, Vandewalle 2000); Kronecker products as
    Van Loan and Pitsianis (1993); all others, as CP, tensor rings, sums of such, by alternating least squares
    (Kolda, Bader 2009). Factors are then scaled to equal norms, which changes no product. Weights that share factors
    are fitted as one, the stack of them, W[l,o,i], each weighed by what it meets itself.

    Args:
        graph: the graph that was trained.
        params: its parameters, name to array of any library.
        substituted: the same with equations in the place of parameters, as `tensornet.substitute` makes it.
        inputs: batches to weigh weights by: an array, a tuple of the graph's inputs in order, or an iterable of such.
        iterations: rounds at most, for each weight; by default 2 for trains, and 200 or, of very large
            factors, 5 for other forms that have any.
        restarts: how many starts are tried where there are rounds of least squares, the first from singular
            vectors, the others random; the best is kept.
        regularization: λ, in units of the mean square of the weight.
        tolerance: rounds end when one lowers the error by less than this part.
        damping: added to the second moments of x, in units of their mean, so that what was not seen counts.
        seed: of random starts.
        dtype: the element type of the computation; float64 if not given, but for very large float32 weights.
        progress: called after each round.

    Returns:
        The parameters of `substituted`, the new ones of the library, element type and device of the weights that
        they stand for; and what is lost, by the name of each weight.

    Raises:
        EquationError: no weight is replaced; or an equation is not linear in each of its new parameters; weights that
            share factors are not of one equation, or not multiplied alike where they are to be weighed.
        ShapeError: a parameter is missing, or of another shape.
        DtypeError: a weight holds no finite real numbers.

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
    groups = sharing(found, [leaf.name for leaf in graph.parameters])
    weighed = {}
    if inputs is not None:
        backend = backend_of(params[found[0].path])
        paths = [each.path for each in found]
        weighed = metrics(graph, params, paths, batches_of(inputs), backend, damping)
    made: dict[str, Any] = {}
    lost: dict[str, Misfit] = {}
    for group in groups:
        if len(group) > 1:
            metric = {each.path: weighed[each.path] for each in group if each.path in weighed}
            arrays, misfits = _fitted_together(group, params, settings, metric)
            made |= arrays
            lost |= misfits
            continue
        (each,) = group
        known = _known(each, params)
        result = approximate(
            each.program,
            params[each.path],
            known=known,
            settings=settings,
            metric=weighed.get(each.path),
            path=each.path,
        )
        made |= {**known, **result.factors}
        lost[each.path] = Misfit(result.error, result.output)
    in_order = {each.path: lost[each.path] for each in found}
    return _all_of(substituted, {**params, **made}), in_order


def _known(each: Replacement, params: Mapping[str, Any]) -> dict[str, Any]:
    """Those leaves of a weight's program that stay as they are."""
    known = {leaf.name: params[leaf.name] for leaf in each.program.parameters if leaf.name in params}
    return known if each.kept is None else {**known, each.kept: params[each.path]}


def _fitted_together(
    group: Sequence[Replacement],
    params: Mapping[str, Any],
    settings: Settings,
    weighed: Mapping[str, Metric],
) -> tuple[dict[str, Any], dict[str, Misfit]]:
    """The factors of weights that share some, and what each weight loses."""
    stack, like = stack_of(group), params[group[0].path]
    backend = backend_of(like)
    dtype, device = backend.dtype(like), backend.device(like)
    known = {name: array for each in group for name, array in _known(each, params).items()}
    arrays = {name: backend_of(array).numpy(array) for name, array in known.items()}
    targets = [backend.numpy(params[each.path]) for each in group]
    result = approximate(
        stack.program,
        np.stack(targets),
        known=stack.gathered(arrays),
        settings=settings,
        metric=_metric_of([each.path for each in group], weighed) if weighed else None,
        path=group[0].path,
    )
    whole = compile(stack.program, backend="numpy")({**stack.gathered(arrays), **result.factors})
    misfits = {
        each.path: _misfit(target, made, weighed.get(each.path))
        for each, target, made in zip(group, targets, whole, strict=True)
    }
    factors = stack.spread(result.factors)
    return {
        **known,
        **{name: backend.asarray(array, dtype, device) for name, array in factors.items()},
    }, misfits


def _metric_of(paths: Sequence[str], weighed: Mapping[str, Metric]) -> Metric:
    """What weighs the stack of weights: each by what it meets itself.

    Raises:
        EquationError: some are not multiplied by anything, or along other dimensions.
    """
    like, first = next(iter(weighed.items()))
    for path in paths:
        if path not in weighed or weighed[path].dims != first.dims:
            told = f"'{path}' shares factors with '{like}', and is not multiplied by its input as that is"
            raise EquationError(told, fix="leave inputs= out, or give it parameters of its own")
    moments = np.stack([weighed[path].moments for path in paths])
    return Metric(tuple(dim + 1 for dim in first.dims), moments, first.damping, apart=0)


def _misfit(weight: Any, made: Any, metric: Metric | None) -> Misfit:
    """What is lost of a weight."""
    output = None if metric is None else metric.norm(weight - made) / (metric.norm(weight) or 1.0)
    return Misfit(float(np.linalg.norm(weight - made)) / (float(np.linalg.norm(weight)) or 1.0), output)


def _replacements(graph: Graph, substituted: Graph) -> tuple[Replacement, ...]:
    """The weights that are computed in the other graph."""
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
        ShapeError: there is one that no weight is computed from, and that was none before.
    """
    missing = [leaf.name for leaf in graph.parameters if leaf.name not in arrays]
    if missing:
        fix = "compute a weight of the graph from it, or leave it out"
        raise ShapeError(f"nothing tells what the parameter '{missing[0]}' is", fix=fix)
    return {leaf.name: arrays[leaf.name] for leaf in graph.parameters}
