"""Metrics for weights: the second moments of the tensors that they multiply.

y = W·x differs from Ŵ·x by E‖(W − Ŵ)·x‖² = ‖(W − Ŵ)·C^½‖², C = E[x·xᵀ]. If only one factor has the axes of x,
W·C^½ is fitted directly, and that factor is then multiplied by the inverse of the root. With two factors this is
optimal (P. Chen et al., 2021, "DRONE"; X. Wang et al., 2024, "SVD-LLM"). Otherwise the root is a further, constant
factor of each product. A stack of weights W[l,o,i] has one C for each l.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import DtypeError
from .forms import Factor, Form, Product

__all__ = ["DAMPING", "ROOT", "Metric", "holders", "times", "with_root"]

DAMPING = 1e-4
"""The default damping of second moments of activations, in units of their mean."""

ROOT = "√C"
"""The name of the root among the factors of a form. It is not a name that the language allows."""


@dataclass(frozen=True)
class Metric:
    """Second moments of the columns of a weight.

    Attributes:
        dims: the dimensions of the weight that make up its columns.
        moments: C, with one row and one column for each element of these dimensions, the last dimension varying
            fastest. With `apart`, a stack of such matrices.
        damping: added to the diagonal, in units of its mean, so that columns without activations count too.
        apart: the dimension of the weight that has its own moments for each position, if any.
    """

    dims: tuple[int, ...]
    moments: Any
    damping: float = 1e-6
    apart: int | None = None

    def __post_init__(self) -> None:
        if not np.isfinite(self.moments).all():
            what = "what a weight is multiplied by in these batches is not finite"
            raise DtypeError(what, fix="give batches of which the network makes finite numbers")

    @functools.cached_property
    def roots(self) -> tuple[Any, Any]:
        """C^½ and its inverse, for C scaled to mean diagonal 1 and damped."""
        moments = (self.moments + self.moments.mT) / 2
        mean = float(np.diagonal(moments, axis1=-2, axis2=-1).mean())
        values, vectors = np.linalg.eigh(moments / (mean or 1.0))
        values = np.sqrt(np.maximum(values, 0.0) + self.damping)[..., None, :]
        return (vectors * values) @ vectors.mT, (vectors / values) @ vectors.mT

    def weighed(self, weight: Any) -> Any:
        """W·C^½, with the shape of W."""
        return times(weight, self.dims, self.roots[0], self.apart)

    def norm(self, weight: Any) -> float:
        """(E‖W·x‖²)^½ up to a constant factor, without damping."""
        square = float(np.vdot(weight, times(weight, self.dims, self.moments, self.apart)))
        return math.sqrt(max(square, 0.0))


def times(array: Any, dims: tuple[int, ...], matrix: Any, apart: int | None = None) -> Any:
    """The array with some dimensions, taken as one, multiplied by a symmetric matrix.

    With `apart`, there is one matrix for each position along that dimension.
    """
    first = () if apart is None else (apart,)
    ends = (*range(len(first)), *range(array.ndim - len(dims), array.ndim))
    moved = np.moveaxis(array, (*first, *dims), ends)
    rows = moved.reshape(*moved.shape[: len(first)], -1, matrix.shape[-1])
    turned = (rows @ matrix.astype(array.dtype)).reshape(moved.shape)
    return np.ascontiguousarray(np.moveaxis(turned, ends, (*first, *dims)))


def holders(
    form: Form, wanted: tuple[str, ...], axes: tuple[str, ...], apart: tuple[str, ...] = ()
) -> tuple[Factor, ...] | None:
    """The wanted factor in each product that alone has the given axes, all of them, and also the axes `apart`.

    None if a product has no such factor.
    """
    found = []
    for product in form.products:
        having = [factor for factor in product.factors if set(axes) & set(factor.axes)]
        if len(having) != 1 or having[0].name not in wanted or not {*axes, *apart} <= set(having[0].axes):
            return None
        found.append(having[0])
    return tuple(found)


def with_root(form: Form, axes: tuple[str, ...], apart: tuple[str, ...] = ()) -> Form:
    """The form of Ŵ·C^½. The root has the axes of the columns, and new axes that replace them in the result."""
    new = {axis: f"{axis}″" for axis in axes}
    root = Factor(ROOT, (*apart, *axes, *new.values()))
    products = tuple(Product(each.coefficient, (*each.factors, root)) for each in form.products)
    sizes = {**form.sizes, **{name: form.sizes[axis] for axis, name in new.items()}}
    dims = tuple(tuple(new.get(axis, axis) for axis in dim) for dim in form.dims)
    return replace(form, dims=dims, sizes=sizes, products=products)
