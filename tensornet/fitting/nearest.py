"""The least error with which a graph can approximate given weights: the error of the best factors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import EquationError, ShapeError
from ..graph.graph import Graph
from ..graph.shape_inference import dim_size
from ..language.equation import Equation
from ..language.expression import axes_of_index, contraction, free_axes, product_of, references
from ..sizes import evaluate
from ..weights.substitution import computing
from .activations import others_of, products_with
from .approximating import approximate, numbers

__all__ = ["nearest"]

WEIGHT = "weight"
"""The name of the weight that a layer computes implicitly."""


def nearest(graph: Graph, weights: Any) -> float:
    """The least relative error, (Σ ‖W − Ŵ‖² / Σ ‖W‖²)^½ over the weights, that the factors of a graph can have.

    Args:
        graph: a graph that has the weights as parameters or, after `substitute`, computes them from parameters; or
            a layer that multiplies its one input by its parameters.
        weights: name to array; or, for such a layer, one array with the dimensions of the result first and then
            those of the input: W[o,i] of y = x·Wᵀ.

    Raises:
        EquationError: the graph has no such weight, or a weight is not linear in each factor.
        ShapeError: a weight has another shape than in the graph.
        DtypeError: a weight holds other values than finite real numbers.

    Example:
        >>> import numpy as np, tensornet as tn
        >>> low = tn.layer("y[b,o] = x[b,i] * A[i,r] * B[r,o]", inputs="x", r=1)
        >>> nearest(low, np.diag([4.0, 3.0]))
        0.6
    """
    named = weights if isinstance(weights, Mapping) else {None: weights}
    arrays = {name: numbers(array, name or WEIGHT, "float64") for name, array in named.items()}
    squares = {name: float((array**2).sum()) for name, array in arrays.items()}
    lost = sum(_error(graph, name, array) ** 2 * squares[name] for name, array in arrays.items())
    return math.sqrt(lost / (sum(squares.values()) or 1.0))


def _error(graph: Graph, name: str | None, array: Any) -> float:
    """The error of one weight; without a name, of the tensor that multiplies the input of a layer."""
    flat = graph.flat
    leaf = next((leaf for leaf in graph.parameters if leaf.name == name), None)
    if leaf is not None:
        _reshaped(array, leaf.shape, graph, leaf.name)
        return 0.0
    if name is not None and all(line.name != name for line in flat.own):
        names = ", ".join(leaf.name for leaf in graph.parameters[:6])
        raise EquationError(f"the graph has no weight '{name}'", fix=f"its parameters are {names}")
    program = _multiplying(flat) if name is None else computing(flat, name)
    shape = map(dim_size, program.named[program.outputs[0]])
    return approximate(program, _reshaped(array, shape, program, name or WEIGHT)).error


def _reshaped(array: Any, sizes: Iterable[Any], graph: Graph, name: str) -> Any:
    """The array in the shape that a graph has, where composite dimensions may be split; as it is if that is open."""
    shape = [evaluate(size, graph.bound) for size in sizes]
    if not all(isinstance(size, int) for size in shape):
        return array
    if math.prod(shape) != array.size:
        told = "×".join(map(str, shape))
        raise ShapeError(f"'{name}' has shape {array.shape}, and here {told}", fix="give it in that shape")
    return array.reshape(shape)


def _multiplying(flat: Graph) -> Graph:
    """The tensor that multiplies the one input of a layer, as a graph: the axes of the result, then of the input."""
    found = [each for leaf in flat.inputs for each in products_with(flat, leaf.name)]
    if len(flat.own) != 1 or len(flat.inputs) != 1 or len(found) != 1:
        fix = 'name the weights, as {"W": array}, of a graph that has or computes them'
        raise EquationError("the graph is no layer that multiplies one input by its parameters", fix=fix)
    ((line, part, ref),) = found
    factors = others_of(part, ref)
    own = free_axes(product_of(factors))
    ins = [axis for axis in axes_of_index(ref.index) if axis in own and axis in part.summed]
    outs = [axis for axis in axes_of_index(line.left) if axis in own]
    right = contraction(factors, tuple(axis for axis in part.summed if axis not in ins), part.place)
    leaves = tuple(leaf for leaf in flat.leaves if leaf.name in {each.name for each in references(right)})
    return Graph(leaves, (Equation(WEIGHT, (*outs, *ins), right),), (WEIGHT,), flat.sizes)
