"""Programs as sums of products, with the axes that factors share.

    W[out] = Σₚ cₚ · Σ_summed factor[axes] · factor[axes] · …

The structure is read from the core form. A program that moves elements or reads positions has no such form.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..frontend.elaborate_ir import function_of
from ..graph.graph import Graph
from ..ir.node import Node, fills, value_of
from ..ir.rewriting import Program
from ..passes.algebraic_simplification import fused
from ..runtime.eager import einsum
from ..sizes import evaluate
from ..weights.factorizations import Factor

Axes = tuple[str, ...]

SMALL = 2**14
"""Up to this many elements, the library's search for the best order takes longer than all rounds together."""

MOST = 52
"""The most axes that NumPy's einsum takes."""


def kept(method: Callable[..., Any]) -> Any:
    """A method whose results the object keeps, by the arguments."""

    @functools.wraps(method)
    def found(self: Any, *key: Any) -> Any:
        results = self.__dict__.setdefault(f"_{method.__name__}_kept", {})
        if key not in results:
            results[key] = method(self, *key)
        return results[key]

    return found


@dataclass(frozen=True)
class Product:
    """c · Σ factor · factor · …, summed over the axes that the result does not have."""

    coefficient: float
    factors: tuple[Factor, ...]

    @functools.cached_property
    def axes(self) -> frozenset[str]:
        """The axes that the factors have."""
        return frozenset(axis for factor in self.factors for axis in factor.axes)

    def without(self, name: str) -> tuple[Factor, ...]:
        """The factors except one."""
        return tuple(factor for factor in self.factors if factor.name != name)


@dataclass(frozen=True)
class Form:
    """A sum of products.

    Attributes:
        dims: the axes of each dimension of the result.
        sizes: the sizes of all axes; each summed axis of each product has its own name.
        products: the terms.
    """

    dims: tuple[Axes, ...]
    sizes: Mapping[str, int]
    products: tuple[Product, ...]

    @functools.cached_property
    def axes(self) -> Axes:
        """The axes of the result, in order."""
        return tuple(axis for dim in self.dims for axis in dim)

    def shape(self, axes: Sequence[str]) -> tuple[int, ...]:
        """The sizes of some axes."""
        return tuple(self.sizes[axis] for axis in axes)

    def count(self, axes: Sequence[str]) -> int:
        """The number of elements of a tensor with these axes."""
        return math.prod(self.shape(axes))

    def value(self, arrays: Mapping[str, Any], products: Sequence[Product] | None = None) -> Any:
        """The sum of all or some products, of size 1 along axes of the result that none has; 0 if there are none."""
        total: Any = 0.0
        for product in self.products if products is None else products:
            axes = tuple(axis for axis in self.axes if axis in product.axes)
            named = [(arrays[each.name], each.axes) for each in product.factors]
            made = contract(named, axes) if named else np.ones(())
            wide = [self.sizes[axis] if axis in axes else 1 for axis in self.axes]
            total = total + product.coefficient * made.reshape(wide)
        return total


# ---------------------------------------------------------------------------- from programs


def form_of(program: Graph) -> Form | None:
    """The form of the one output of a graph without open sizes, or None if it has no form.

    No factor has an axis twice, and each summed axis of a product is one of several factors.
    """
    made = Program(*function_of(program.flat)).rewritten(fused)
    leaves, (output,) = {each: leaf.name for each, leaf in made.leaves.items()}, made.function.outputs

    def value(size: Any) -> Any:
        return evaluate(size, program.bound)

    dims = tuple(tuple(map(str, own or ())) for own in output.dims)
    sizes = {axis: int(value(output.sizes[int(axis)])) for own in dims for axis in own}

    def axes_named(each: Node, dims: Sequence[Axes]) -> list[str]:
        """The axes of a node by name: those of its dimensions have these names, others get new ones."""
        axes = dict[int, str]()
        for own, given in zip(each.dims, dims, strict=True):
            if own is None or len(own) != len(given):
                raise _NoFormError
            axes.update(zip(own, given, strict=True))
        for n, size in enumerate(each.sizes):
            name = axes.setdefault(n, str(len(sizes)))
            if sizes.setdefault(name, int(value(size))) != value(size):
                raise _NoFormError
        return [axes[n] for n in range(len(each.sizes))]

    def products(each: Node, dims: Sequence[Axes]) -> list[Product]:
        """The terms of a node whose dimensions have these axes."""
        if each in leaves:
            return [Product(1.0, (Factor(leaves[each], tuple(itertools.chain(*dims))),))]
        if each.is_scalar:
            return [Product(float(value_of(each, value)), ())]
        if each.op not in ("contract", "copy", "add") or each.options:
            raise _NoFormError
        axes, terms = axes_named(each, dims), list[Product]()
        for node, reads in each.operands:
            pairs = zip(reads, node.shape, strict=True)
            if not all(fills(entry, each.sizes, length, made.same) for entry, length in pairs):
                raise _NoFormError
            found = products(node, [tuple(axes[n] for n in entry.axes) for entry in reads])
            if each.op != "add" and len(found) > 1:
                raise _NoFormError
            terms += found
        return terms if each.op == "add" else [_joined(terms, {*axes} - {*itertools.chain(*dims)}, sizes)]

    try:
        return Form(dims, sizes, tuple(products(output, dims)))
    except _NoFormError:
        return None


def _joined(terms: Sequence[Product], summed: Collection[str], sizes: Mapping[str, int]) -> Product:
    """The product of terms. A summed axis that none of them has multiplies the coefficient by its size."""
    factors = tuple(factor for term in terms for factor in term.factors)
    counts = Counter(axis for factor in factors for axis in factor.axes)
    is_twice = any(len({*factor.axes}) < len(factor.axes) for factor in factors)
    if is_twice or any(counts[axis] == 1 for axis in summed):
        raise _NoFormError
    alone = math.prod(sizes[axis] for axis in summed if not counts[axis])
    return Product(alone * math.prod(term.coefficient for term in terms), factors)


class _NoFormError(Exception):
    """The program is not a sum of products."""


# ---------------------------------------------------------------------------- arrays with named axes


def contract(operands: Sequence[tuple[Any, tuple[Any, ...]]], axes: tuple[Any, ...]) -> Any:
    """The product of arrays with named axes, summed over all axes but `axes`, which are those of the result.

    Example:
        >>> import numpy as np
        >>> contract([(np.eye(2), ("i", "j")), (np.array([1.0, 2.0]), ("j",))], ("i",))
        array([1., 2.])
    """
    arrays = [array for array, _ in operands]
    numbers = {axis: n for n, axis in enumerate(dict.fromkeys(axis for _, own in operands for axis in own))}
    terms = tuple(tuple(map(numbers.__getitem__, own)) for own in (*(own for _, own in operands), axes))
    given = [*itertools.chain(*zip(arrays, terms, strict=False)), terms[-1]]
    is_numpy = all(isinstance(array, np.ndarray) for array in arrays)
    if not is_numpy or sum(array.size for array in arrays) > SMALL or len(numbers) > MOST:
        return einsum(*given)
    return np.einsum(*given, optimize=len(arrays) > 2 and _path(terms, tuple(each.shape for each in arrays)))


@functools.lru_cache(maxsize=2048)
def _path(terms: tuple[tuple[int, ...], ...], shapes: tuple[tuple[int, ...], ...]) -> Any:
    """The pairs of operands, chosen greedily by their sizes."""
    arrays = (np.broadcast_to(0.0, shape) for shape in shapes)
    given: list[Any] = [*itertools.chain(*zip(arrays, terms, strict=False)), terms[-1]]
    return np.einsum_path(*given, optimize="greedy")[0]


def moved(array: Any, before: Sequence[Any], after: Sequence[Any]) -> Any:
    """An array with its axes in another order."""
    return np.asarray(array.transpose([before.index(axis) for axis in after]), order="C")  # 0 dimensions stay
