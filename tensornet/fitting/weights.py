"""The weights of a trained graph as factors: each approximated in the form of the equations that replace it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..errors import EquationError, ShapeError
from ..graph.graph import Graph, of_graph
from ..runtime.arguments import wrong_names
from ..weights.substitution import Replacement, computing, replaced
from .approximating import Misfit, Target, solved
from .least_squares import Progress, Settings
from .metrics import DAMPING, metrics


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
    dtype: str | None = None,
    progress: Callable[[Progress], None] | None = None,
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
        dtype: the element type of the computation; by default float64, but float32 for very large float32 weights.
        progress: called after each round.

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
    settings = Settings(iterations, restarts, tolerance, seed, dtype, progress, damping)
    if not isinstance(params, Mapping) or set(params) != {leaf.name for leaf in graph.parameters}:
        raise wrong_names(graph, params)
    if not isinstance(substituted, Graph):
        fix = "give tensornet.substitute(graph, …)"
        raise EquationError(f"a graph with equations for weights is expected, not {substituted!r}", fix=fix)
    found = _replacements(graph, substituted)
    paths = [each.path for each in found]
    weighed = {} if inputs is None else metrics(graph, params, paths, inputs, damping)
    made, lost = dict(params), dict[str, Misfit]()
    for group in _sharing(found, params):
        own = [each.path for each in group]
        program = computing(substituted.flat, *own)
        known = {leaf.name: params[leaf.name] for leaf in program.parameters if leaf.name in params}
        known |= {each.kept: params[each.path] for each in group if each.kept is not None}
        targets = [Target(params[path], weighed.get(path), path, dtype) for path in own]
        factors, misfits = solved(program, targets, known, settings)
        made |= known | factors
        lost |= dict(zip(own, misfits, strict=True))
    return _all_of(substituted, made), {path: lost[path] for path in paths}


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
