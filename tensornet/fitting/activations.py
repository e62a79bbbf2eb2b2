"""The tensors that weights of a graph are multiplied by, and their second moments over some batches.

    y[b,o] = x[b,i] · W[o,i]:    C[i,j] = Σ_b x[b,i] · x[b,j]

Where the weight keeps an axis that x has too, as heads are kept, C is one matrix for each place along it.
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
    """A place where a weight is contracted with something.

    Attributes:
        line: the equation.
        product: the weight times the rest, summed.
        weight: the weight there.
        dims: the dimensions of the weight whose axes the rest has.
    """

    line: Equation
    product: Contraction
    weight: Ref
    dims: tuple[int, ...]

    def axes(self, dim: int) -> tuple[str, ...]:
        """Those of a dimension of the weight."""
        return _axes(self.weight.index[dim])

    @property
    def around(self) -> tuple[str, ...]:
        """The axes of the rest."""
        rest = (factor for factor in self.product.factors if factor is not self.weight)
        return tuple(dict.fromkeys(axis for factor in rest for axis in free_axes(factor)))

    @property
    def columns(self) -> tuple[str, ...]:
        """The axes of these dimensions."""
        return tuple(axis for dim in self.dims for axis in _axes(self.weight.index[dim]))

    @property
    def kept(self) -> tuple[str, ...]:
        """Those that are not summed."""
        return tuple(axis for axis in self.columns if axis not in self.product.summed)


def _axes(entry: Any) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else entry


def batches_of(inputs: Any) -> Iterator[tuple[Any, ...]]:
    """The batches that a user gives: one, as an array or a tuple of the inputs in order, or any number of such."""
    if hasattr(inputs, "shape"):
        yield (inputs,)
    elif isinstance(inputs, tuple):
        yield inputs
    else:
        for batch in inputs:
            yield batch if isinstance(batch, tuple) else (batch,)


def no_batches() -> EquationError:
    """What to say where there are none."""
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
    """What weighs the columns of weights, where they are multiplied by something and no more than that.

    Args:
        graph: the graph before anything is put in the place of its weights.
        params: its parameters.
        paths: the weights.
        batches: the inputs, in order, of each batch.
        backend: of the parameters.
        damping: see `Metric`.

    Raises:
        EquationError: there are no batches.
        DtypeError: what a weight is multiplied by is not finite.
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
    """Where a weight is read, if it is multiplied by something wherever that is, along the same dimensions."""
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
    """The dimensions of a weight whose axes the rest of a product has, all of each; nothing if it is not so."""
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
    """What a weight is multiplied by as a tensor, and its second moments: those of each kept place apart."""
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
    """The moments as one matrix: of columns at different kept places there are none."""
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
