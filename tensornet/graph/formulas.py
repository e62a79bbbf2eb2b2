"""Cost formulas: parameters in elements, work in FLOPs."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..display import columns, table
from ..errors import ShapeError
from ..language.expression import Contraction
from ..sizes import as_formula, evaluate, product, to_sympy, total
from .graph import Graph, of_graph
from .leaves import Leaf
from .shape_inference import scope_inside


class ParameterPart(NamedTuple):
    """The parameters of one part of a model.

    Attributes:
        name: the part.
        formula: their number, as a formula in the names of the axes.
        parameters: their number: an integer, or a formula in the sizes still open.
    """

    name: str
    formula: Any
    parameters: Any


class ParameterTable(tuple[ParameterPart, ...]):
    """Parameters by part, a tuple of `ParameterPart`; prints as a table."""

    __slots__ = ()

    @property
    def parameters(self) -> Any:
        """Their total number: an integer, or a formula in the sizes still open."""
        return sum(part.parameters for part in self)

    def _rows(self) -> list[tuple[str, str, str]]:
        rows = [(part.name, str(part.formula), _grouped(part.parameters)) for part in self]
        return [*rows, ("total", "", _grouped(self.parameters))]

    def __str__(self) -> str:
        return columns(self._rows(), "<<>", 1)

    def _repr_html_(self) -> str:
        return table(("part", "formula", "parameters"), self._rows(), "llr")


def _grouped(number: Any) -> str:
    return f"{number:,}" if isinstance(number, int) else str(number)


@of_graph
def parameter_formula(graph: Graph) -> Any:
    """The number of trainable elements: Σ over the parameters of the product of their sizes.

    Args:
        graph: a layer or a model.

    Returns:
        A sympy expression in the names of the axes; sizes given as expressions are kept.

    Example:
        >>> import tensornet as tn
        >>> tn.parameter_formula(tn.layer("y[b,p,q] = x[b,i,j] * U[p,i] * V[q,j]", inputs="x"))
        i*p + j*q
    """
    import sympy

    return sum(map(_elements, graph.parameters), sympy.Integer(0))


def _elements(leaf: Leaf) -> Any:
    """The number of elements as a formula, in the sizes as they were given."""
    return product(map(to_sympy, leaf.shape))


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
    bound = (graph.bind(**sizes) if sizes else graph).bound
    return as_formula(total(evaluate(product(leaf.shape), bound) for leaf in graph.parameters))


@of_graph
def parameter_table(graph: Graph, depth: int = 1) -> ParameterTable:
    """The parameters by part: names cut to `depth` dotted parts, each with its formula and its number.

    Args:
        graph: a layer or a model.
        depth: the number of dotted parts of a name that identify a part of the model.

    Raises:
        ShapeError: the depth is not a whole number from 1.

    Example:
        >>> import tensornet as tn
        >>> print(tn.parameter_table(tn.layer("y[b,o] = x[b,i] * W[o,i] + u[o]", inputs="x", i=4, o=2)))
        W      i*o   8
        u      o     2
        total       10
    """
    if not isinstance(depth, int) or depth < 1:
        raise ShapeError(f"depth={depth!r}", fix="give a whole number from 1")
    parts: dict[str, list[Leaf]] = {}
    for leaf in graph.parameters:
        parts.setdefault(".".join(leaf.name.split(".")[:depth]), []).append(leaf)
    return ParameterTable(
        ParameterPart(
            name,
            sum(map(_elements, leaves)),
            as_formula(total(evaluate(product(leaf.shape), graph.bound) for leaf in leaves)),
        )
        for name, leaves in parts.items()
    )


def naive_flops(graph: Graph) -> Any:
    """FLOPs of all contractions as written: for each, 2 × the product of all its axes, all factors at once."""
    flat = graph.flat
    parts = (part for equation in flat.own for part in equation.parts if isinstance(part, Contraction))
    return evaluate(total(_term_flops(part, flat) for part in parts), flat.sizes_beside(graph.bound))


def _term_flops(term: Contraction, graph: Graph) -> Any:
    tensors = [factor for factor in term.factors if not factor.is_scalar]
    if len(tensors) < 2:
        return 0
    scope = scope_inside(Contraction(tuple(tensors)), graph.dims, graph.bound)
    axes = dict.fromkeys(axis for factor in tensors for axis in factor.free_axes)
    return 2 * product(scope[axis] for axis in axes)
