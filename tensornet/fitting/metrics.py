"""Metrics for weights: the second moments of what they multiply, and of the gradients of what they make.

    y[b,o] = x[b,i] · W[o,i]:    C[i,j] = Σ_b x[b,i] · x[b,j]

y = W·x differs from Ŵ·x by E‖(W − Ŵ)·x‖² = ‖(W − Ŵ)·C^½‖². With g the gradient of the output of the
network by y, the output differs by about ‖G^½·(W − Ŵ)·C^½‖², G = E[g·gᵀ] (Kronecker-factored curvature: J. Martens,
R. Grosse, 2015). If only one factor has the axes of x, W·C^½ is fitted directly, and that factor is then multiplied by
the inverse of the root. With two factors this is optimal (P. Chen et al., 2021, "DRONE"; X. Wang et al., 2024,
"SVD-LLM"). Otherwise factors that have a part of these axes are fitted so by the moments of that part, as a start for
L-BFGS.

W and x may share an axis that is not summed, such as heads. Then there is one matrix C for each position along it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import DtypeError, EquationError
from ..graph.graph import Graph
from ..language.equation import Equation
from ..language.expression import Contraction, Expression, Ref, axes_of_index, fresh, product_of
from ..passes.dead_code import eliminate_dead_code
from ..protocol import backend_of
from ..runtime.compiling import compile
from ..weights.factorizations import Factor
from .forms import Form, contract

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
        """R and its inverse, for C = R·Rᵀ scaled to mean diagonal 1 and damped."""
        try:
            root = np.linalg.cholesky(self.damped)
        except np.linalg.LinAlgError:  # sums of float32 may have negative eigenvalues
            values, vectors = np.linalg.eigh(self.damped)
            root = vectors * np.sqrt(np.maximum(values, self.damping))
        return root, np.linalg.inv(root)

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

    def of_axes(self, form: Form) -> Metric:
        """The same for the weight with a dimension for each axis of a form."""
        ends = np.cumsum([0, *map(len, form.dims)])
        dims = tuple(n for dim in self.dims for n in range(ends[dim], ends[dim + 1]))
        return replace(self, dims=dims, other=self.other and self.other.of_axes(form))


def times(array: Any, *sides: tuple[tuple[int, ...], Any]) -> Any:
    """The array with some dimensions, taken as one, multiplied by a matrix, for each pair of these."""
    for dims, matrix in sides:
        ends = tuple(range(array.ndim - len(dims), array.ndim))
        last = np.moveaxis(array, dims, ends)
        turned = last.reshape(-1, len(matrix)) @ matrix.astype(array.dtype, copy=False)
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


def held(metric: Metric, form: Form, known: Iterable[str] = ()) -> list[Metric]:
    """The sides of a metric that factors hold, in each product one to be found; of other sides, their held axes."""
    found = list[Metric]()
    for side in metric.sides:
        parts = [side] if holders(side, form, known) else side.marginals(form.shape(form.axes))
        found += [part for part in parts if holders(part, form, known)]
    return found


# ---------------------------------------------------------------------------- moments of activations


@dataclass(frozen=True)
class Site:
    """A contraction in which a weight is an operand.

    Attributes:
        line: the equation.
        product: the contraction of the weight with the other operands.
        weight: the reference to the weight.
    """

    line: Equation
    product: Contraction
    weight: Ref

    @functools.cached_property
    def rest(self) -> Expression:
        """The product of the other operands that have axes."""
        others = (each for each in self.product.factors if each is not self.weight)
        return product_of(each for each in others if not each.is_scalar)

    @property
    def around(self) -> tuple[str, ...]:
        """The axes of the other operands."""
        return self.rest.free_axes

    def axes(self, *dims: int) -> tuple[str, ...]:
        """The axes of some dimensions of the weight."""
        return axes_of_index(tuple(self.weight.index[dim] for dim in dims))

    @functools.cached_property
    def dims(self) -> tuple[int, ...]:
        """The dimensions of the weight that the other operands have too.

        Empty if they have only some axes of a dimension, if an axis of the weight alone is summed, or if none of
        these dimensions is summed.
        """
        every = range(len(self.weight.index))
        if any(not isinstance(entry, str | tuple) for entry in self.weight.index):
            return ()
        own = {*self.axes(*every)}
        both, summed = own.intersection(self.around), own.intersection(self.product.summed)
        dims = tuple(dim for dim in every if self.axes(dim) and both.issuperset(self.axes(dim)))
        return dims if both == {*self.axes(*dims)} and summed and summed <= both else ()

    @property
    def kept(self) -> tuple[str, ...]:
        """The axes of `dims` that are not summed."""
        return tuple(axis for axis in self.axes(*self.dims) if axis not in self.product.summed)

    def moments(self, x: Any) -> Any:
        """The second moments along `dims` of the tensor that multiplies the weight, as one matrix.

        Entries between different positions along kept axes are zero.
        """
        other = {axis: axis if axis in self.kept else f"{axis}′" for axis in self.axes(*self.dims)}
        axes = tuple(dict.fromkeys((*other, *other.values())))
        twice = tuple(other.get(axis, axis) for axis in self.around)
        found = backend_of(x).numpy(contract([(x, self.around), (x, twice)], axes))
        sizes, places = found.shape[: len(other)], [axes.index(axis) for axis in (*other, *other.values())]
        whole = np.zeros(sizes * 2)
        np.einsum(whole, places, [*range(len(axes))])[...] = found
        return whole.reshape(math.prod(sizes), -1)


def batches_of(inputs: Any) -> Iterator[tuple[Any, ...]]:
    """The batches that a user gives: one array, one tuple of the inputs in order, or an iterable of these."""
    is_one = isinstance(inputs, tuple) or hasattr(inputs, "shape")
    for batch in (inputs,) if is_one else checked_batches(inputs):
        yield batch if isinstance(batch, tuple) else (batch,)


def checked_batches(given: Any) -> Iterable[Any]:
    """Several batches. Raises an error for what cannot be iterated over, and for text."""
    is_many = hasattr(given, "__iter__") or hasattr(given, "__getitem__")
    if isinstance(given, str) or not is_many or getattr(given, "shape", None) == ():
        fix = "give an array, a tuple of several inputs, or a list or a loader of these"
        raise EquationError(f"{given!r} is no batch of inputs", fix=fix)
    return given  # type: ignore[no-any-return]


def no_batches() -> EquationError:
    """The error for an empty iterable of batches."""
    fix = "give a list or a loader, and no iterator that was used up"
    return EquationError("there are no batches to weigh weights by", fix=fix)


def metrics(
    graph: Graph, params: Mapping[str, Any], paths: Sequence[str], inputs: Any, damping: float
) -> dict[str, Metric]:
    """The metric of each weight that the graph only multiplies by other tensors. Other weights have none.

    Args:
        graph: the graph before its weights are substituted.
        params: its parameters.
        paths: the names of the weights.
        inputs: the batches; see `batches_of`.
        damping: see `Metric`.

    Raises:
        EquationError: there are no batches.
        DtypeError: a tensor that multiplies a weight is not finite.
    """
    flat = graph.flat
    found = [(path, site) for path in paths for site in sites(flat, path)]
    if not found:
        return {}
    lines, backend = [_operand(flat, *each) for each in found], backend_of(params[found[0][0]])
    body, outputs = (*flat.body, *lines), tuple(line.name for line in lines)
    asked = eliminate_dead_code(replace(flat, body=body, outputs=outputs))
    run = compile(asked, backend=backend, params={leaf.name: params[leaf.name] for leaf in asked.parameters})
    totals: dict[str, Any] = {}
    for batch in batches_of(inputs):
        made = run(*batch[: len(asked.inputs)])
        for (path, site), x in zip(found, made if isinstance(made, tuple) else (made,), strict=True):
            totals[path] = totals.get(path, 0.0) + site.moments(x)
    if not totals:
        raise no_batches()
    return {path: Metric(site.dims, totals[path], damping) for path, site in found}


def sites(graph: Graph, path: str) -> list[Site]:
    """The contractions that read a weight; none if another expression reads it or their dimensions differ."""
    reads, found = sum(ref.name == path for line in graph.own for ref in line.references), list[Site]()
    for line in graph.own:
        for part in line.parts:
            if isinstance(part, Contraction):
                operands = [each for each in part.factors if isinstance(each, Ref) and each.name == path]
                found += [Site(line, part, operands[0])] if len(operands) == 1 else []
    found = [site for site in found if site.dims]
    return found if len(found) == reads and len({site.dims for site in found}) == 1 else []


def _operand(graph: Graph, path: str, site: Site) -> Equation:
    """The tensor that multiplies a weight."""
    name = f"{path}.{site.line.name}.{site.line.parts.index(site.product)}.x"
    return Equation(fresh(name, {*graph.named}), site.around, site.rest)
