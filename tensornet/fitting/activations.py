"""The tensors that weights of a graph are multiplied by, and their second moments over some batches.

    y[b,o] = x[b,i] · W[o,i]:    C[i,j] = Σ_b x[b,i] · x[b,j]

W and x may share an axis that is not summed, such as heads. Then there is one matrix C for each position along it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import EquationError
from ..graph.graph import Graph
from ..language.equation import Equation
from ..language.expression import Contraction, Ref, free_axes, fresh, is_scalar
from ..passes.dead_code import eliminate_dead_code
from ..protocol import Backend
from ..runtime.compiling import compile
from .metrics import Metric

__all__ = ["Site", "batches_of", "metrics", "no_batches", "sites"]


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
        return _axes(self.weight.index[dim])

    @property
    def around(self) -> tuple[str, ...]:
        """The axes of the other operands."""
        rest = (factor for factor in self.product.factors if factor is not self.weight)
        return tuple(dict.fromkeys(axis for factor in rest for axis in free_axes(factor)))

    @property
    def columns(self) -> tuple[str, ...]:
        """The axes of `dims`."""
        return tuple(axis for dim in self.dims for axis in _axes(self.weight.index[dim]))

    @property
    def kept(self) -> tuple[str, ...]:
        """The axes of `dims` that are not summed."""
        return tuple(axis for axis in self.columns if axis not in self.product.summed)


def _axes(entry: Any) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else entry


def batches_of(inputs: Any) -> Iterator[tuple[Any, ...]]:
    """The batches that a user gives: one array, one tuple of the inputs in order, or an iterable of these."""
    if hasattr(inputs, "shape"):
        yield (inputs,)
    elif isinstance(inputs, tuple):
        yield inputs
    else:
        for batch in inputs:
            yield batch if isinstance(batch, tuple) else (batch,)


def no_batches() -> EquationError:
    """The error for an empty iterable of batches."""
    fix = "give a list or a loader, and no iterator that was used up"
    return EquationError("there are no batches to weigh weights by", fix=fix)


def metrics(
    graph: Graph,
    params: Mapping[str, Any],
    paths: Sequence[str],
    batches: Iterable[tuple[Any, ...]],
    backend: Backend,
    damping: float,
) -> dict[str, Metric]:
    """The metric of each weight that the graph only multiplies by other tensors. Other weights have none.

    Args:
        graph: the graph before its weights are substituted.
        params: its parameters.
        paths: the names of the weights.
        batches: the inputs, in order, of each batch.
        backend: the backend of the parameters.
        damping: see `Metric`.

    Raises:
        EquationError: there are no batches.
        DtypeError: a tensor that multiplies a weight is not finite.
    """
    flat = graph.flat
    places = {path: found for path in paths if (found := sites(flat, path)) is not None}
    if not places:
        return {}
    lines = {path: [_moments(flat, path, site) for site in found] for path, found in places.items()}
    new = tuple(line for path in lines for pair in lines[path] for line in pair)
    outputs = tuple(pair[-1].name for path in lines for pair in lines[path])
    asked = eliminate_dead_code(replace(flat, body=(*flat.body, *new), outputs=outputs))
    held = {leaf.name: params[leaf.name] for leaf in asked.parameters}
    run = compile(asked, backend=backend, params=held)
    names = [leaf.name for leaf in graph.inputs]
    taken = [names.index(leaf.name) for leaf in asked.inputs]
    sums: list[Any] = []
    for batch in batches:
        made = run(*(batch[n] for n in taken))
        parts = [made] if len(outputs) == 1 else made
        seen = [backend.numpy(each).astype(np.float64) for each in parts]
        sums = [total + each for total, each in zip(sums, seen, strict=True)] if sums else seen
    if not sums:
        raise no_batches()
    rest = iter(sums)
    return {
        path: Metric(at[0].dims, sum(_matrix(site, next(rest)) for site in at), damping)
        for path, at in places.items()
    }


def sites(graph: Graph, path: str) -> tuple[Site, ...] | None:
    """The contractions that read a weight, or None if another expression reads it or their dimensions differ."""
    reads = sum(ref.name == path for line in graph.own for ref in line.references)
    found = tuple(site for line in graph.own for site in _in_line(line, path))
    if not reads or len(found) != reads or any(site.dims != found[0].dims for site in found):
        return None
    return found


def _in_line(line: Equation, path: str) -> Iterator[Site]:
    for part in line.parts:
        if isinstance(part, Contraction):
            weights = [f for f in part.factors if isinstance(f, Ref) and f.name == path]
            if len(weights) == 1 and (dims := _contracted(part, weights[0])):
                yield Site(line, part, weights[0], dims)


def _contracted(product: Contraction, weight: Ref) -> tuple[int, ...] | None:
    """The dimensions of a weight that the other operands have too.

    None if they have only some axes of a dimension, if an axis of the weight alone is summed, or if none of
    these dimensions is summed.
    """
    others = {axis for factor in product.factors if factor is not weight for axis in free_axes(factor)}
    if any(not isinstance(entry, str | tuple) for entry in weight.index):
        return None
    dims = []
    for number, entry in enumerate(weight.index):
        have = [axis in others for axis in _axes(entry)]
        if any(have) and not all(have):
            return None
        if not any(have) and set(_axes(entry)) & set(product.summed):
            return None
        if have and all(have):
            dims.append(number)
    return tuple(dims) if set(product.summed) & {a for d in dims for a in _axes(weight.index[d])} else None


def _moments(graph: Graph, path: str, site: Site) -> tuple[Equation, Equation]:
    """The tensor that multiplies a weight, and its second moments, separate for each position along kept axes."""
    at = f"{path}.{site.line.name}.{site.line.parts.index(site.product)}"
    rest = [factor for factor in site.product.factors if factor is not site.weight and not is_scalar(factor)]
    product = rest[0] if len(rest) == 1 else Contraction(tuple(rest))
    axes = free_axes(product)
    tensor = Equation(fresh(f"{at}.x", {*graph.named}), axes, product)
    twice = {axis: fresh(f"{axis}_2", {*axes}) for axis in site.columns if axis not in site.kept}
    index = tuple(twice.get(axis, axis) for axis in axes)
    summed = tuple(sorted(axis for axis in axes if axis not in site.columns))
    moments = Contraction((Ref(tensor.name, axes), Ref(tensor.name, index)), summed)
    name = fresh(f"{at}.xx", {*graph.named})
    return tensor, Equation(name, (*site.columns, *twice.values()), moments)


def _matrix(site: Site, moments: Any) -> Any:
    """The moments as one matrix. Entries between different positions along kept axes are zero."""
    columns, kept = site.columns, site.kept
    shape = moments.shape[: len(columns)]
    whole = np.zeros((*shape, *shape))
    places = [
        range(size) if axis in kept else (slice(None),) for axis, size in zip(columns, shape, strict=True)
    ]
    for place in itertools.product(*places):
        twice: tuple[Any, ...] = (*place, *place)
        whole[twice] = moments[place]
    size = math.prod(shape)
    return whole.reshape(size, size)
