"""Metrics for weights: the second moments of what they multiply, and of the gradients of what they make.

y = W·x differs from Ŵ·x by E‖(W − Ŵ)·x‖² = ‖(W − Ŵ)·C^½‖², C = E[x·xᵀ]. With g the gradient of the output of the
network by y, the output differs by about ‖G^½·(W − Ŵ)·C^½‖², G = E[g·gᵀ] (Kronecker-factored curvature: J. Martens,
R. Grosse, 2015). If only one factor has the axes of x, W·C^½ is fitted directly, and that factor is then multiplied by
the inverse of the root. With two factors this is optimal (P. Chen et al., 2021, "DRONE"; X. Wang et al., 2024,
"SVD-LLM"). Otherwise the root is a further, constant factor of each product.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import DtypeError
from .forms import Factor, Form

__all__ = ["DAMPING", "Metric"]

DAMPING = 1e-4
"""The default damping of second moments, in units of their mean."""


@dataclass(frozen=True, eq=False)
class Metric:
    """Second moments of the columns of a weight, and maybe of its rows.

    Attributes:
        dims: the dimensions of the weight that make up its columns.
        moments: C, with one row and one column for each element of these dimensions, the last dimension varying
            fastest.
        damping: added to the diagonal, in units of its mean, so that columns without activations count too.
        other: the moments of the rows.
    """

    dims: tuple[int, ...]
    moments: Any
    damping: float = 1e-6
    other: Metric | None = None

    def __post_init__(self) -> None:
        if not np.isfinite(self.moments).all():
            what = "what a weight is multiplied by in these batches is not finite"
            raise DtypeError(what, fix="give batches of which the network makes finite numbers")

    @property
    def sides(self) -> tuple[Metric, ...]:
        """The moments of the columns, and of the rows if there are."""
        return (self,) if self.other is None else (self, *self.other.sides)

    @functools.cached_property
    def mean(self) -> float:
        """The mean of the diagonal of C."""
        return float(np.diagonal(self.moments).mean())

    @functools.cached_property
    def damped(self) -> Any:
        """C scaled to mean diagonal 1 and damped."""
        moments = (self.moments + self.moments.T) / 2 / (self.mean or 1.0)
        return moments + self.damping * np.eye(len(moments))

    @functools.cached_property
    def roots(self) -> tuple[Any, Any]:
        """C^½ and its inverse, for C scaled to mean diagonal 1 and damped."""
        values, vectors = np.linalg.eigh(self.damped)
        values = np.sqrt(np.maximum(values, self.damping))
        return (vectors * values) @ vectors.T, (vectors / values) @ vectors.T

    def marginals(self, weight: Any) -> Iterator[Metric]:
        """The moments of each single dimension of the columns: partial traces."""
        count, shape = len(self.dims), [weight.shape[dim] for dim in self.dims]
        for n, dim in enumerate(self.dims if count > 1 else ()):
            twice = [each if each != n else count for each in range(count)]
            whole = self.moments.reshape(*shape, *shape)
            yield Metric((dim,), np.einsum(whole, [*range(count), *twice], [n, count]), self.damping)

    def norm(self, weight: Any) -> float:
        """‖G^½·W·C^½‖ without damping: (E‖W·x‖²)^½ up to a constant factor where there is no G."""
        turned = weight
        for side in self.sides:
            turned = times(turned, side.dims, side.moments)
        return math.sqrt(max(float(np.vdot(weight, turned)), 0.0))

    def relative(self, weight: Any, made: Any) -> float:
        """‖G^½·(W − Ŵ)·C^½‖ / ‖G^½·W·C^½‖."""
        return self.norm(weight - made) / (self.norm(weight) or 1.0)


def weighed(weight: Any, sides: Sequence[Metric], inverse: bool = False) -> Any:
    """G^½·W·C^½ for some sides, with the shape of W; with the inverse of the roots if so."""
    for side in sides:
        weight = times(weight, side.dims, side.roots[inverse])
    return weight


def times(array: Any, dims: tuple[int, ...], matrix: Any) -> Any:
    """The array with some dimensions, taken as one, multiplied by a symmetric matrix."""
    ends = tuple(range(array.ndim - len(dims), array.ndim))
    moved = np.moveaxis(array, dims, ends)
    turned = (moved.reshape(-1, len(matrix)) @ matrix.astype(array.dtype)).reshape(moved.shape)
    return np.ascontiguousarray(np.moveaxis(turned, ends, dims))


@dataclass(frozen=True)
class Placed:
    """A side of a metric in a form.

    Attributes:
        side: the moments.
        axes: the axes of the form in the dimensions `dims`.
        holders: the wanted factor in each product that alone has these axes, all of them; None if a product has none.
    """

    side: Metric
    axes: tuple[str, ...]
    holders: tuple[Factor, ...] | None

    @property
    def name(self) -> str:
        """The name of the root among the factors of a form. It is not a name that the language allows."""
        return f"√{self.side.dims}"

    def undone(self, arrays: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """The factors that hold the axes, multiplied by the inverse of the root."""
        for factor in self.holders or ():
            dims = tuple(factor.axes.index(axis) for axis in self.axes)
            yield factor.name, times(arrays[factor.name], dims, self.side.roots[1])

    def rooted(self, form: Form) -> tuple[Form, Any]:
        """The form of Ŵ·C^½, and C^½. It has the axes of the columns, and new axes that replace them in the result."""
        new = {axis: f"{axis}″" for axis in self.axes}
        root = Factor(self.name, (*self.axes, *new.values()))
        products = tuple(replace(each, factors=(*each.factors, root)) for each in form.products)
        sizes = {**form.sizes, **{name: form.sizes[axis] for axis, name in new.items()}}
        dims = tuple(tuple(new.get(axis, axis) for axis in dim) for dim in form.dims)
        made = replace(form, dims=dims, sizes=sizes, products=products)
        return made, self.side.roots[0].reshape(made.shape(root.axes))


def placed(sides: Iterable[Metric], form: Form, wanted: Sequence[str]) -> tuple[Placed, ...]:
    """Some sides in a form with some wanted factors."""
    found = []
    for side in sides:
        axes = tuple(axis for dim in side.dims for axis in form.dims[dim])
        having = [[f for f in product.factors if set(axes) & set(f.axes)] for product in form.products]
        alone = all(
            len(each) == 1 and each[0].name in wanted and {*axes} <= set(each[0].axes) for each in having
        )
        found.append(Placed(side, axes, tuple(each[0] for each in having) if alone else None))
    return tuple(found)


def held(metric: Metric | None, form: Form, wanted: Sequence[str], weight: Any) -> tuple[Placed, ...]:
    """The sides that factors hold; of other sides the moments of single dimensions that factors hold."""
    found: list[Placed] = []
    for each in placed(() if metric is None else metric.sides, form, wanted):
        parts = (each,) if each.holders is not None else placed(each.side.marginals(weight), form, wanted)
        found += [part for part in parts if part.holders is not None]
    return tuple(found)
