"""The tensors that weights of a graph are multiplied by, and their second moments over some batches.

    y[b,o] = x[b,i] · W[o,i]:    C[i,j] = Σ_b x[b,i] · x[b,j]

W and x may share an axis that is not summed, such as heads. Then there is one matrix C for each position along it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import EquationError
from ..graph.graph import Graph
from ..language.equation import Equation
from ..language.expression import (
    Contraction,
    Expression,
    Ref,
    axes_of_index,
    free_axes,
    fresh,
    is_scalar,
    product_of,
)
from ..passes.dead_code import eliminate_dead_code
from ..protocol import backend_of
from ..runtime.compiling import compile
from .forms import contract
from .metrics import Metric

__all__ = ["Site", "batches_of", "metrics", "no_batches", "others_of", "products_with", "sites"]


@dataclass(frozen=True)
class Site:
    """A contraction in which a weight is an operand.

    Attributes:
        line: the equation.
        product: the contraction of the weight with the other operands.
        weight: the reference to the weight.
        dims: the dimensions of the weight whose axes the other operands have too.
    """

    line: Equation
    product: Contraction
    weight: Ref
    dims: tuple[int, ...]

    def axes(self, dim: int) -> tuple[str, ...]:
        """The axes of a dimension of the weight."""
        return axes_of_index((self.weight.index[dim],))

    @property
    def around(self) -> tuple[str, ...]:
        """The axes of the other operands."""
        return free_axes(product_of(others_of(self.product, self.weight)))

    @property
    def columns(self) -> tuple[str, ...]:
        """The axes of `dims`."""
        return axes_of_index(tuple(self.weight.index[dim] for dim in self.dims))

    @property
    def kept(self) -> tuple[str, ...]:
        """The axes of `dims` that are not summed."""
        return tuple(axis for axis in self.columns if axis not in self.product.summed)


def batches_of(inputs: Any) -> Iterator[tuple[Any, ...]]:
    """The batches that a user gives: one array, one tuple of the inputs in order, or an iterable of these."""
    is_one = isinstance(inputs, tuple) or hasattr(inputs, "shape")
    for batch in (inputs,) if is_one else inputs:
        yield batch if isinstance(batch, tuple) else (batch,)


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
    found = [(path, site) for path in paths for site in sites(flat, path) or ()]
    if not found:
        return {}
    lines, backend = [_moments(flat, path, site) for path, site in found], backend_of(params[found[0][0]])
    body, outputs = (*flat.body, *itertools.chain(*lines)), tuple(moments.name for _, moments in lines)
    asked = eliminate_dead_code(replace(flat, body=body, outputs=outputs))
    run = compile(asked, backend=backend, params={leaf.name: params[leaf.name] for leaf in asked.parameters})
    sums: list[Any] = []
    for batch in batches_of(inputs):
        made = run(*batch[: len(asked.inputs)])
        parts = made if isinstance(made, tuple) else (made,)
        seen = [backend.numpy(each).astype(np.float64) for each in parts]
        sums = [total + each for total, each in zip(sums, seen, strict=True)] if sums else seen
    if not sums:
        raise no_batches()
    totals: dict[str, Any] = {}
    for (path, site), moments in zip(found, sums, strict=True):
        totals[path] = totals.get(path, 0.0) + _matrix(site, moments)
    return {path: Metric(site.dims, totals[path], damping) for path, site in found}


def sites(graph: Graph, path: str) -> tuple[Site, ...] | None:
    """The contractions that read a weight, or None if another expression reads it or their dimensions differ."""
    reads = sum(ref.name == path for line in graph.own for ref in line.references)
    found = [Site(*each, dims) for each in products_with(graph, path) if (dims := _contracted(*each[1:]))]
    is_all = reads and len(found) == reads and len({site.dims for site in found}) == 1
    return tuple(found) if is_all else None


def products_with(graph: Graph, name: str) -> Iterator[tuple[Equation, Contraction, Ref]]:
    """The contractions that have a tensor as one operand: the equation, the contraction and the operand."""
    for line in graph.own:
        for part in line.parts:
            if isinstance(part, Contraction):
                operands = [each for each in part.factors if isinstance(each, Ref) and each.name == name]
                if len(operands) == 1:
                    yield line, part, operands[0]


def others_of(product: Contraction, operand: Ref) -> tuple[Expression, ...]:
    """The operands of a contraction that have axes, except one."""
    return tuple(each for each in product.factors if each is not operand and not is_scalar(each))


def _contracted(product: Contraction, weight: Ref) -> tuple[int, ...] | None:
    """The dimensions of a weight that the other operands have too.

    None if they have only some axes of a dimension, if an axis of the weight alone is summed, or if none of
    these dimensions is summed.
    """
    if any(not isinstance(entry, str | tuple) for entry in weight.index):
        return None
    axes = [{*axes_of_index((entry,))} for entry in weight.index]
    own = {*axes_of_index(weight.index)}
    both = own.intersection(free_axes(product_of(others_of(product, weight))))
    dims = tuple(n for n, each in enumerate(axes) if each and each <= both)
    summed = own.intersection(product.summed)
    is_whole = both == {axis for n in dims for axis in axes[n]}
    return dims if is_whole and summed and summed <= both else None


def _moments(graph: Graph, path: str, site: Site) -> tuple[Equation, Equation]:
    """The tensor that multiplies a weight, and its second moments, separate for each position along kept axes."""
    at = f"{path}.{site.line.name}.{site.line.parts.index(site.product)}"
    product = product_of(others_of(site.product, site.weight))
    axes = free_axes(product)
    tensor = Equation(fresh(f"{at}.x", {*graph.named}), axes, product)
    twice = {axis: fresh(f"{axis}_2", {*axes}) for axis in site.columns if axis not in site.kept}
    index = tuple(twice.get(axis, axis) for axis in axes)
    summed = tuple(sorted(axis for axis in axes if axis not in site.columns))
    moments = Contraction((Ref(tensor.name, axes), Ref(tensor.name, index)), summed)
    return tensor, Equation(fresh(f"{at}.xx", {*graph.named}), (*site.columns, *twice.values()), moments)


def _matrix(site: Site, moments: Any) -> Any:
    """The moments as one matrix. Entries between different positions along kept axes are zero."""
    columns, kept = site.columns, site.kept
    twice = tuple(f"{axis}′" for axis in columns)
    read = (*columns, *(other for axis, other in zip(columns, twice, strict=True) if axis not in kept))
    sizes = dict(zip(columns, moments.shape, strict=False))
    same = [(np.eye(sizes[axis]), (axis, f"{axis}′")) for axis in kept]
    size = math.prod(sizes.values())
    return contract([(moments, read), *same], (*columns, *twice)).reshape(size, size)
