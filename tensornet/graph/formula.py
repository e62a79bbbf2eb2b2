"""What a graph costs, as formulas: parameters in elements, work in FLOPs."""

from __future__ import annotations

from typing import Any

from ..errors import ShapeError
from ..language.expression import Contraction, free_axes, is_scalar
from ..sizes import evaluate, product
from .graph import Graph, of_graph
from .shape import scope_inside

__all__ = ["naive_flop_formula", "parameter_count", "parameter_formula", "parameter_table"]


@of_graph
def parameter_formula(graph: Graph) -> Any:
    """The number of trainable elements: Σ over the parameters of the product of their sizes.

    Args:
        graph: a layer or a model.

    Returns:
        A sympy expression in the names of the axes; sizes given as expressions appear as such.

    Example:
        >>> import tensornet as tn
        >>> tn.parameter_formula(tn.layer("y[b,p,q] = x[b,i,j] * U[p,i] * V[q,j]", inputs="x"))
        i*p + j*q
    """
    import sympy

    return sympy.Integer(0) + sum((product(leaf.shape) for leaf in graph.parameters), sympy.Integer(0))


@of_graph
def parameter_count(graph: Graph, **sizes: int) -> Any:
    """The number of trainable elements: an `int`, or a formula in the sizes still open.

    Args:
        graph: a layer or a model.
        **sizes: values for open sizes.

    Raises:
        ShapeError: a size is given that is not open.

    Example:
        >>> import tensornet as tn
        >>> tn.parameter_count(tn.layer("y[b,o] = x[b,i] * W[o,i] + u[o]", inputs="x", i=4, o=2))
        10
    """
    return evaluate(parameter_formula(graph), (graph.bind(**sizes) if sizes else graph).bound)


@of_graph
def parameter_table(graph: Graph, depth: int = 1) -> tuple[tuple[str, Any, Any], ...]:
    """The parameters by part: (scope, formula, number), scopes cut to `depth` dotted names.

    Raises:
        ShapeError: the depth is less than 1.
    """
    if not isinstance(depth, int) or depth < 1:
        raise ShapeError(f"depth={depth!r}", fix="give a whole number from 1")
    parts: dict[str, Any] = {}
    for leaf in graph.parameters:
        scope = ".".join(leaf.name.split(".")[:depth])
        parts[scope] = parts.get(scope, 0) + product(leaf.shape)
    return tuple((scope, formula, evaluate(formula, graph.bound)) for scope, formula in parts.items())


def naive_flop_formula(graph: Graph) -> Any:
    """2 × the product of all axes of each contraction as it is written, all factors at once."""
    import sympy

    flat, total = graph.flat, sympy.Integer(0)
    for equation in flat.own:
        for part in equation.parts:
            if isinstance(part, Contraction):
                total += _term_flops(part, flat)
    return sympy.sympify(evaluate(total, flat.sizes_beside(graph.bound)))


def _term_flops(term: Contraction, graph: Graph) -> Any:
    tensors = [factor for factor in term.factors if not is_scalar(factor)]
    if len(tensors) < 2:
        return 0
    scope = scope_inside(Contraction(tuple(tensors)), graph.dims, graph.bound)
    axes = dict.fromkeys(axis for factor in tensors for axis in free_axes(factor))
    return 2 * product(scope[axis] for axis in axes)
