"""Programs as sums of products, with the axes that factors share.

    W[out] = Σₚ cₚ · Σ_summed factor[axes] · factor[axes] · …

The structure follows from the equations alone. A program that moves elements or reads positions has no such form.
"""

from __future__ import annotations

import functools
import itertools
import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..graph.graph import Graph
from ..graph.shape_inference import Scope, componentwise, dim_size
from ..language.equation import Equation
from ..language.expression import Call, Contraction, Expression, Index, Ref, fresh, is_scalar, scalar_value
from ..runtime.eager import einsum
from ..sizes import evaluate
from ..weights.factorizations import Factor

__all__ = ["Factor", "Form", "Named", "Product", "contract", "form_of"]

_LATIN = string.ascii_letters
_FURTHER = 0x100  # letters of other alphabets begin here

SMALL = 2**14
"""Up to this many elements, a search for the best order takes longer than all rounds together."""


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

    dims: tuple[tuple[str, ...], ...]
    sizes: Mapping[str, int]
    products: tuple[Product, ...]

    @functools.cached_property
    def axes(self) -> tuple[str, ...]:
        """The axes of the result, in order."""
        return tuple(axis for dim in self.dims for axis in dim)

    def shape(self, axes: tuple[str, ...]) -> tuple[int, ...]:
        """The sizes of some axes."""
        return tuple(self.sizes[axis] for axis in axes)

    def count(self, axes: tuple[str, ...]) -> int:
        """The number of elements of a tensor with these axes."""
        return math.prod(self.shape(axes))

    def read(self) -> list[Factor]:
        """The tensors that the products read."""
        return [factor for product in self.products for factor in product.factors]


def form_of(program: Graph) -> Form | None:
    """The form of the one output of a graph without open sizes, or None if it has no form.

    No factor has an axis twice.
    """
    try:
        return _Reader(program.flat).form()
    except _NoFormError:
        return None


class _NoFormError(Exception):
    """The equations are not a sum of products."""


class _Reader:
    """Inlines the equations of a graph into its output, and collects the names and sizes of the axes."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.lines = {line.name: line for line in graph.own}
        self.sizes: dict[str, int] = {}
        self.taken = {axis for line in graph.own for axis in line.axes}

    def form(self) -> Form:
        """The form of the output."""
        line = self.lines.get(self.graph.outputs[0])
        if line is None:
            raise _NoFormError
        dims = tuple(map(_parts, line.left))
        for entry, dim in zip(dims, self.graph.named[line.name], strict=True):
            self._size({name: axis.size for name, axis in zip(entry, dim, strict=True)})
        products = self._products(line.right, line, {axis: axis for entry in dims for axis in entry})
        return Form(dims, self.sizes, tuple(products))

    def _size(self, sizes: Mapping[str, Any]) -> None:
        for name, each in sizes.items():
            size = evaluate(each, self.graph.bound)
            if not isinstance(size, int) or self.sizes.setdefault(name, size) != size:
                raise _NoFormError

    def _products(self, part: Expression, line: Equation, names: Mapping[str, str]) -> list[Product]:
        """The terms of an expression, with its axes renamed by `names`."""
        scope = self.graph.scope(line)
        if is_scalar(part):
            return [Product(self._number(part, scope), ())]
        match part:
            case Ref(name) if name in self.lines:
                return self._of_line(part, names)
            case Ref():
                return [Product(1.0, (self._factor(part, scope, names),))]
            case Contraction(factors, summed):
                inner = {**names, **{axis: self._fresh(axis) for axis in summed}}
                terms = [self._products(factor, line, inner) for factor in factors]
                new = {inner[axis]: scope[axis] for axis in summed}
                return [self._joined(each, new) for each in itertools.product(*terms)]
            case Call("add", arguments):
                return [each for argument in arguments for each in self._products(argument, line, names)]
        raise _NoFormError

    def _number(self, part: Expression, scope: Scope) -> float:
        def size(axis: str) -> int | None:
            value = evaluate(scope[axis], self.graph.bound)
            return value if isinstance(value, int) else None

        value = scalar_value(part, size)
        if not isinstance(value, int | float):
            raise _NoFormError
        return float(value)

    def _fresh(self, axis: str) -> str:
        name = fresh(axis, self.taken)
        self.taken.add(name)
        return name

    def _of_line(self, ref: Ref, names: Mapping[str, str]) -> list[Product]:
        """The terms of an equation, inlined where its result is read."""
        line = self.lines[ref.name]
        inner: dict[str, str] = {}
        for ours, theirs in zip(line.left, ref.index, strict=True):
            if len(_parts(ours)) != len(_parts(theirs)):
                raise _NoFormError
            inner.update((a, names[b]) for a, b in zip(_parts(ours), _parts(theirs), strict=True))
        return self._products(line.right, line, inner)

    def _factor(self, ref: Ref, scope: Scope, names: Mapping[str, str]) -> Factor:
        axes: list[str] = []
        for entry, dim in zip(ref.index, self.graph.named[ref.name], strict=True):
            parts = _parts(entry)
            if isinstance(entry, str):
                self._size({names[entry]: dim_size(dim)})
            elif componentwise(parts, dim, self.graph.bound):
                self._size({names[part]: axis.size for part, axis in zip(parts, dim, strict=True)})
            else:
                self._size({names[part]: scope[part] for part in parts})
            axes += [names[part] for part in parts]
        if len(set(axes)) < len(axes):
            raise _NoFormError
        return Factor(ref.name, tuple(axes))

    def _joined(self, terms: tuple[Product, ...], summed: Mapping[str, Any]) -> Product:
        """The product of terms. A summed axis that none of them has multiplies the coefficient by its size."""
        factors = tuple(factor for term in terms for factor in term.factors)
        read = {axis for factor in factors for axis in factor.axes}
        missing = {name: size for name, size in summed.items() if name not in read}
        self._size(missing)
        number = math.prod(term.coefficient for term in terms) * math.prod(self.sizes[n] for n in missing)
        return Product(number, factors)


def _parts(entry: Index) -> tuple[str, ...]:
    """The axes of a dimension. Other indices, and the ellipsis, cannot be in a form."""
    match entry:
        case str() if entry != "...":
            return (entry,)
        case tuple():
            return entry
    raise _NoFormError


# ---------------------------------------------------------------------------- arrays with named axes


class Named(NamedTuple):
    """An array, and the names of its axes."""

    array: Any
    axes: tuple[str, ...]


def contract(operands: Sequence[Named], axes: tuple[str, ...]) -> Any:
    """The product of arrays, summed over all axes but `axes`, which are the axes of the result, in order.

    Example:
        >>> import numpy as np
        >>> contract([Named(np.eye(2), ("i", "j")), Named(np.array([1.0, 2.0]), ("j",))], ("i",))
        array([1., 2.])
    """
    names = dict.fromkeys(axis for operand in operands for axis in operand.axes)
    letters = {name: _letter(number) for number, name in enumerate(names)}
    terms = ",".join("".join(letters[axis] for axis in operand.axes) for operand in operands)
    equation = f"{terms}->{''.join(letters[axis] for axis in axes)}"
    arrays = [operand.array for operand in operands]
    if len(names) > len(_LATIN) or sum(array.size for array in arrays) > SMALL:
        return einsum(equation, *arrays)
    shapes = tuple(array.shape for array in arrays)
    return np.einsum(equation, *arrays, optimize=len(arrays) > 2 and _path(equation, shapes))


@functools.lru_cache(maxsize=2048)
def _path(equation: str, shapes: tuple[tuple[int, ...], ...]) -> Any:
    """The pairs of operands, chosen greedily by their sizes."""
    return np.einsum_path(equation, *(np.broadcast_to(0.0, shape) for shape in shapes), optimize="greedy")[0]


def _letter(number: int) -> str:
    return _LATIN[number] if number < len(_LATIN) else chr(_FURTHER + number - len(_LATIN))
