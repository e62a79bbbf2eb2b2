"""Metrics for weights: the second moments of what they multiply, and of the gradients of what they make.

y = W·x differs from Ŵ·x by E‖(W − Ŵ)·x‖² = ‖(W − Ŵ)·C^½‖², C = E[x·xᵀ]. With g the gradient of the output of the
network by y, the output differs by about ‖G^½·(W − Ŵ)·C^½‖², G = E[g·gᵀ] (Kronecker-factored curvature: J. Martens,
R. Grosse, 2015). If only one factor has the axes of x, W·C^½ is fitted directly, and that factor is then multiplied by
the inverse of the root. With two factors this is optimal (P. Chen et al., 2021, "DRONE"; X. Wang et al., 2024,
"SVD-LLM"). Otherwise factors that have a part of these axes are fitted so by the moments of that part, as a start.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import DtypeError
from .forms import Factor, Form

__all__ = ["DAMPING", "Metric", "held", "holders", "remaining", "times", "weighed"]

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
            raise DtypeError(what, fix="give batches for which the network computes finite numbers")

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

    def marginals(self, shape: Sequence[int]) -> Iterator[Metric]:
        """The moments of each single dimension of the columns, of a weight of some shape: partial traces."""
        count, sizes = len(self.dims), [shape[dim] for dim in self.dims]
        whole = self.moments.reshape(*sizes, *sizes)
        for n, dim in enumerate(self.dims):
            twice = [each if each != n else count for each in range(count)]
            yield Metric((dim,), np.einsum(whole, [*range(count), *twice], [n, count]), self.damping)

    def norm(self, weight: Any) -> float:
        """‖G^½·W·C^½‖ without damping: (E‖W·x‖²)^½ up to a constant factor where there is no G."""
        turned = times(weight, *((side.dims, side.moments) for side in self.sides))
        return math.sqrt(max(float(np.vdot(weight, turned)), 0.0))

    def relative(self, weight: Any, made: Any) -> float:
        """‖G^½·(W − Ŵ)·C^½‖ / ‖G^½·W·C^½‖."""
        return self.norm(weight - made) / (self.norm(weight) or 1.0)

    def of_axes(self, form: Form) -> Metric:
        """The same for the weight with a dimension for each axis of a form."""
        ends = np.cumsum([0, *map(len, form.dims)])
        dims = tuple(n for dim in self.dims for n in range(ends[dim], ends[dim + 1]))
        return replace(self, dims=dims, other=self.other and self.other.of_axes(form))


def times(array: Any, *sides: tuple[tuple[int, ...], Any]) -> Any:
    """The array with some dimensions, taken as one, multiplied by a symmetric matrix, for each pair of these."""
    for dims, matrix in sides:
        ends = tuple(range(array.ndim - len(dims), array.ndim))
        last = np.moveaxis(array, dims, ends)
        turned = last.reshape(-1, len(matrix)) @ matrix.astype(array.dtype)
        array = np.ascontiguousarray(np.moveaxis(turned.reshape(last.shape), ends, dims))
    return array


def weighed(weight: Any, sides: Iterable[Metric], inverse: bool = False) -> Any:
    """G^½·W·C^½ for some sides, with the shape of W; with the inverse of the roots if so."""
    return times(weight, *((side.dims, side.roots[inverse]) for side in sides))


def holders(side: Metric, form: Form, known: Iterable[str] = ()) -> list[Factor]:
    """The factor of each product that alone has the axes of a side, and has them all; none if a product has none.

    Args:
        side: a side of the metric of the weight with a dimension for each axis of the form.
        form: the form.
        known: the names of the factors that are not looked for.
    """
    axes, found = {form.axes[dim] for dim in side.dims}, list[Factor]()
    for product in form.products:
        having = [factor for factor in product.factors if not axes.isdisjoint(factor.axes)]
        if len(having) != 1 or not axes <= {*having[0].axes} or having[0].name in known:
            return []
        found += having
    return found


def held(metric: Metric | None, form: Form, known: Iterable[str] = ()) -> list[Metric]:
    """The sides of a metric that factors hold, in each product one to be found; of other sides, their held axes."""
    found = list[Metric]()
    for side in metric.sides if metric is not None else ():
        parts = [side] if holders(side, form, known) else side.marginals(form.shape(form.axes))
        found += [part for part in parts if holders(part, form, known)]
    return found


def remaining(metric: Metric, sides: Sequence[Metric], shape: Sequence[int]) -> list[Metric]:
    """The moments of a weight that is weighed by some sides already: C′ = S⁻¹·C·S⁻¹, where it is not the identity."""
    found = list[Metric]()
    for side in metric.sides:
        parts = [each for each in sides if {*each.dims} <= {*side.dims}]
        if [part.dims for part in parts] != [side.dims]:
            local = [(tuple(side.dims.index(dim) + 1 for dim in each.dims), each.roots[1]) for each in parts]
            inverse = np.eye(len(side.damped)).reshape(-1, *(shape[dim] for dim in side.dims))
            inverse = times(inverse, *local).reshape(side.damped.shape)
            found.append(Metric(side.dims, inverse @ side.damped @ inverse, 0.0))
    return found
