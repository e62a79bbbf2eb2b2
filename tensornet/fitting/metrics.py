"""What weighs the columns of a weight: the second moments of what is multiplied by it.

y = W·x differs from Ŵ·x by E‖(W − Ŵ)·x‖² = ‖(W − Ŵ)·C^½‖², C = E[x·xᵀ]. Where one factor alone has the axes of x,
W·C^½ is fitted as it stands, and the root taken back out of that factor: with two factors nothing is nearer
(P. Chen et al., 2021, "DRONE"; X. Wang et al., 2024, "SVD-LLM"). Else the root is one tensor more in each product,
which stays as it is. Of a stack of weights W[l,o,i] there is one C for each l.
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
"""What is added to second moments of activations, in units of their mean, if nobody says."""

ROOT = "√C"
"""What the root is called among the tensors of a form: no name of the language."""


@dataclass(frozen=True)
class Metric:
    """Second moments of the columns of a weight.

    Attributes:
        dims: the dimensions of the weight that the columns are.
        moments: C, of as many rows and columns as these dimensions have elements together, the last varying fastest;
            one after another for the places along the dimension that tells them apart, if one does.
        damping: times the mean of its diagonal, added to it, so that columns never seen count as well.
        apart: the dimension of the weight for each place along which there are moments of their own.
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
        """C^½ and its inverse, for C of mean diagonal 1."""
        moments = (self.moments + self.moments.mT) / 2
        mean = float(np.diagonal(moments, axis1=-2, axis2=-1).mean())
        values, vectors = np.linalg.eigh(moments / (mean or 1.0))
        values = np.sqrt(np.maximum(values, 0.0) + self.damping)[..., None, :]
        return (vectors * values) @ vectors.mT, (vectors / values) @ vectors.mT

    def weighed(self, weight: Any) -> Any:
        """W·C^½, of the shape of W."""
        return times(weight, self.dims, self.roots[0], self.apart)

    def norm(self, weight: Any) -> float:
        """(E‖W·x‖²)^½ but for a number, with nothing damped."""
        square = float(np.vdot(weight, times(weight, self.dims, self.moments, self.apart)))
        return math.sqrt(max(square, 0.0))


def times(array: Any, dims: tuple[int, ...], matrix: Any, apart: int | None = None) -> Any:
    """The array, some dimensions as one multiplied by a symmetric matrix, or by one for each place along another."""
    first = () if apart is None else (apart,)
    ends = (*range(len(first)), *range(array.ndim - len(dims), array.ndim))
    moved = np.moveaxis(array, (*first, *dims), ends)
    rows = moved.reshape(*moved.shape[: len(first)], -1, matrix.shape[-1])
    turned = (rows @ matrix.astype(array.dtype)).reshape(moved.shape)
    return np.ascontiguousarray(np.moveaxis(turned, ends, (*first, *dims)))


def holders(
    form: Form, wanted: tuple[str, ...], axes: tuple[str, ...], apart: tuple[str, ...] = ()
) -> tuple[Factor, ...] | None:
    """The factor in each product that alone has all of some axes, if there is one in each, and is to be found.

    It has those too by whose places these are told apart.
    """
    found = []
    for product in form.products:
        having = [factor for factor in product.factors if set(axes) & set(factor.axes)]
        if len(having) != 1 or having[0].name not in wanted or not {*axes, *apart} <= set(having[0].axes):
            return None
        found.append(having[0])
    return tuple(found)


def with_root(form: Form, axes: tuple[str, ...], apart: tuple[str, ...] = ()) -> Form:
    """The form of Ŵ·C^½: the root has the axes of the columns, and those of the result in their place."""
    new = {axis: f"{axis}″" for axis in axes}
    root = Factor(ROOT, (*apart, *axes, *new.values()))
    products = tuple(Product(each.coefficient, (*each.factors, root)) for each in form.products)
    sizes = {**form.sizes, **{name: form.sizes[axis] for axis, name in new.items()}}
    dims = tuple(tuple(new.get(axis, axis) for axis in dim) for dim in form.dims)
    return replace(form, dims=dims, sizes=sizes, products=products)
