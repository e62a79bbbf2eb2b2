"""An independent interpreter of graphs: NumPy in float64, one node at a time, no planning.

It shares the parsed expressions with the library and nothing below them: no rewrite, no search,
no layouts, no generated code. Products go through `numpy.einsum`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.special

from tensornet.graph.call import Apply
from tensornet.graph.graph import Graph
from tensornet.graph.shape_inference import dim_size
from tensornet.language.equation import Equation
from tensornet.language.expression import (
    Call,
    Contraction,
    Expression,
    Literal,
    Ref,
    Size,
    is_told,
    references,
)

Named = tuple[tuple[str, ...], np.ndarray]

UNARY = {
    "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "sqrt": np.sqrt, "square": np.square,
    "abs": np.abs, "sign": np.sign, "floor": np.floor, "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
    "erf": scipy.special.erf, "sigmoid": scipy.special.expit, "logical_not": np.logical_not,
    "rsqrt": lambda a: a**-0.5, "reciprocal": lambda a: 1.0 / a, "relu": lambda a: np.where(a > 0, a, 0.0),
    "gelu": lambda a: a * scipy.special.ndtr(a), "silu": lambda a: a * scipy.special.expit(a),
    "gelu_tanh": lambda a: a * scipy.special.expit(2 * math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)),
    "softplus": lambda a: np.log1p(np.exp(-np.abs(a))) + np.maximum(a, 0), 
    "ceil": np.ceil, "round": np.round, "log_sigmoid": lambda a: -np.logaddexp(0, -a),
    "leaky_relu": lambda a, slope=0.01: np.where(a > 0, a, slope * a),
    "elu": lambda a, alpha=1.0: np.where(a > 0, a, alpha * np.expm1(a)),
    "selu": lambda a: 1.0507009873554805 * np.where(a > 0, a, 1.6732632423543772 * np.expm1(a)),
    "mish": lambda a: a * np.tanh(np.logaddexp(0, a)), "softsign": lambda a: a / (1 + np.abs(a)),
    "hardsigmoid": lambda a: np.clip(a / 6 + 0.5, 0, 1), "hardswish": lambda a: a * np.clip(a / 6 + 0.5, 0, 1),
    "cast": lambda a: a.astype(float), "widen": lambda a: a.astype(float), "int64": np.trunc,
}  # fmt: skip
BINARY = {
    "power": np.power, "floor_divide": np.floor_divide, "remainder": np.mod, "maximum": np.maximum, "minimum": np.minimum, "equal": np.equal, "less": np.less,
    "not_equal": np.not_equal, "less_equal": np.less_equal, "greater": np.greater,
    "greater_equal": np.greater_equal, "logical_and": np.logical_and, "logical_or": np.logical_or,
    "dropout": lambda a, rate: a, "clip": np.clip,
}  # fmt: skip
OVER = {
    "mean": np.mean, "var": np.var, "max": np.max, "min": np.min, "prod": np.prod,
    "logsumexp": scipy.special.logsumexp, "std": np.std, "norm": lambda a, axis: np.sqrt(np.sum(a * a, axis=axis)),
}  # fmt: skip
TOLD = {
    "argmax": np.argmax, "argmin": np.argmin, "argsort": lambda a, axis: np.argsort(a, axis=axis, kind="stable"),
    "top": lambda a, axis: np.argsort(-a, axis=axis, kind="stable"),
}  # fmt: skip
"""Functions that tell positions along one axis."""


def _hardmax(array: np.ndarray, axis: tuple[int, ...]) -> np.ndarray:
    flat = np.moveaxis(array, axis[0], -1)
    return np.moveaxis(np.eye(flat.shape[-1])[flat.argmax(-1)], -1, axis[0])


def _normalize(array: np.ndarray, axis: tuple[int, ...], eps: float = 1e-5) -> np.ndarray:
    return (array - array.mean(axis, keepdims=True)) / np.sqrt(array.var(axis, keepdims=True) + eps)


def recur(a: np.ndarray, b: np.ndarray, start: float = 0.0, back: float = 0.0) -> np.ndarray:
    """y[..., 0] = start, y[..., j] = a[..., j-1] * y[..., j-1] + b[..., j-1]; from the end if `back`."""
    a, b = np.broadcast_arrays(a, b)
    if back:
        return recur(a[..., ::-1], b[..., ::-1], start)[..., ::-1]
    y = np.full(a.shape, start)
    for j in range(1, a.shape[-1]):
        y[..., j] = a[..., j - 1] * y[..., j - 1] + b[..., j - 1]
    return y


def _running(function: Any) -> Any:
    """A function of the elements up to each position, or from there on."""

    def found(array: np.ndarray, axis: tuple[int, ...], back: float = 0.0) -> np.ndarray:
        return np.flip(function(np.flip(array, axis), axis[0]), axis) if back else function(array, axis[0])

    return found


ALONG = {
    "softmax": scipy.special.softmax, "log_softmax": scipy.special.log_softmax, "hardmax": _hardmax,
    "normalize": _normalize, "cumsum": _running(np.cumsum), "cumprod": _running(np.cumprod),
}  # fmt: skip
POSITIVE = ("log", "log1p", "sqrt", "rsqrt")
"""Functions that are tried on positive numbers."""
OWN = ("reciprocal", "logical_not", "int64", "cast", "widen")
"""Functions that are tried by themselves, since they are signs or conversions."""


def run(
    graph: Graph, arrays: Mapping[str, Any], sizes: Mapping[str, int] | None = None
) -> dict[str, np.ndarray]:
    """Every output of a graph, by name; `arrays` holds inputs and parameters."""
    known = {**(sizes or {}), **graph.bound}
    tensors = {name: _wide(np.asarray(array)) for name, array in arrays.items()}
    leading = join_leading(graph, tensors)
    known["lead"] = math.prod(leading)
    _compute(graph, tensors, known)
    return {name: split_leading(graph, name, tensors[name], leading) for name in graph.outputs}


def _compute(graph: Graph, tensors: dict[str, np.ndarray], known: Mapping[str, Any]) -> None:
    """Adds what the graph computes to the tensors; a block computes with tensors of its own."""
    known = {**known, **{name: _number(size, known) for name, size in graph.bound.items()}}
    for leaf in graph.constants:
        assert leaf.value is not None
        tensors[leaf.name] = _wide(leaf.value.array())
    sweeps = 1
    for group in graph.recurrences:  # swept through until the last position has what it reads
        for each in group.equations:
            dims = graph.named[each.name]
            tensors[each.name] = np.zeros([_number(dim_size(dim), known) for dim in dims])
        sweeps += tensors[each.name].shape[group.dimension(each.name)]
    for _ in range(sweeps):
        for item in graph.body:
            _compute_one(graph, item, tensors, known)


def _compute_one(
    graph: Graph, item: Apply | Equation, tensors: dict[str, np.ndarray], known: Mapping[str, Any]
) -> None:
    """Adds what an equation or a call computes to the tensors."""
    if isinstance(item, Equation):
        tensors[item.name] = _value_of(graph, item, tensors, known)
        return
    block = item.graph
    inner = dict(
        zip((leaf.name for leaf in block.inputs), map(tensors.__getitem__, item.operands), strict=True)
    )
    own = [leaf.name for leaf in block.parameters]
    inner |= {name: tensors[f"{item.scope}.{name}" if item.scope else name] for name in own}
    _compute(block, inner, known)
    tensors.update(zip(item.results, (inner[name] for name in block.outputs), strict=True))


def _value_of(
    graph: Graph, equation: Equation, tensors: Mapping[str, np.ndarray], known: Mapping[str, Any]
) -> np.ndarray:
    scope = _inner_sizes(equation.right, tensors)
    told = graph.scope(equation)
    scope |= {name: _number(size, known) for name, size in {**told.inner, **told.sizes}.items()}
    axes, array = _Evaluator(tensors, known).value(equation.right, scope)
    flat = [a for entry in equation.left for a in ([entry] if isinstance(entry, str) else entry)]
    array = np.einsum(array, [axes.index(a) for a in axes], [axes.index(a) for a in flat])
    where = dict(zip(flat, array.shape, strict=True))
    shape = [math.prod(where[a] for a in ([e] if isinstance(e, str) else e)) for e in equation.left]
    return array.reshape(shape)


def _inner_sizes(expression: Expression, tensors: Mapping[str, np.ndarray]) -> dict[str, int]:
    """The sizes of axes as tensors are read with them, those of summed axes included."""
    return {
        entry: size
        for ref in references(expression)
        for entry, size in zip(ref.index, tensors[ref.name].shape, strict=True)
        if isinstance(entry, str)
    }


def _wide(array: np.ndarray) -> np.ndarray:
    return array if array.dtype.kind in "bc" else array.astype(float)


def join_leading(graph: Graph, tensors: dict[str, np.ndarray]) -> tuple[int, ...]:
    """Makes one axis of those that `...` stands for; returns their shape."""
    leading: tuple[int, ...] = ()
    for leaf in graph.inputs:
        names = [dim[0].name if dim else "" for dim in leaf.dims]
        if "..." in names:
            at, shape = names.index("..."), tensors[leaf.name].shape
            stop = len(shape) - (len(names) - at - 1)
            leading = shape[at:stop]
            tensors[leaf.name] = tensors[leaf.name].reshape(*shape[:at], math.prod(leading), *shape[stop:])
    return leading


def split_leading(graph: Graph, name: str, array: np.ndarray, leading: tuple[int, ...]) -> np.ndarray:
    names = [dim[0].name if dim else "" for dim in graph.dims[name]]
    if "..." not in names:
        return array
    at = names.index("...")
    return array.reshape(*array.shape[:at], *leading, *array.shape[at + 1 :])


def _number(size: Any, known: Mapping[str, int]) -> Any:
    return size if isinstance(size, int) else int(size.subs(known))


class _Evaluator:
    def __init__(self, tensors: Mapping[str, np.ndarray], known: Mapping[str, int]) -> None:
        self.tensors, self.known = tensors, known

    def value(self, node: Expression, scope: Mapping[str, int]) -> Named:
        match node:
            case Literal(value):
                return (), np.asarray(float(value) if isinstance(value, int) else value)
            case Size(axis):
                return (), np.asarray(float(scope.get(axis, self.known.get(axis, 0))))
            case Ref():
                return self.ref(node, scope)
            case Contraction(factors, ()):
                return self.quotient(factors, scope)
            case Contraction(factors, summed):
                return self.product([self.value(f, scope) for f in factors], summed)
            case Call():
                return self.call(node, scope)
        raise AssertionError(node)

    def product(self, values: list[Named], summed: tuple[str, ...]) -> Named:
        axes = list(dict.fromkeys(a for names, _ in values for a in names))
        out = [a for a in axes if a not in summed]
        operands: list[Any] = []
        for names, array in values:
            operands += [_counted(array), [axes.index(a) for a in names]]
        return tuple(out), np.einsum(*operands, [axes.index(a) for a in out])

    def quotient(self, factors: tuple[Expression, ...], scope: Mapping[str, int]) -> Named:
        """A product that sums nothing, from left to right, as Python reads it."""
        names, array = self.value(factors[0], scope)
        array = _counted(array)
        for factor in factors[1:]:
            divides = isinstance(factor, Call) and factor.function == "reciprocal"
            other = self.value(factor.arguments[0] if divides else factor, scope)
            union = list(dict.fromkeys([*names, *other[0]]))
            one, two = _spread((names, array), union), _counted(_spread(other, union))
            names, array = tuple(union), one / two if divides else one * two
        return names, array

    def ref(self, node: Ref, scope: Mapping[str, int]) -> Named:
        array = self.tensors[node.name]
        grids: list[Any] = []
        axes: list[str] = []
        entries: list[Any] = []
        shape: list[int] = []
        for entry, size in zip(node.index, array.shape, strict=True):
            parts = (
                [(part, self.part_size(part, scope)) for part in entry]
                if isinstance(entry, tuple)
                else [(entry, size)]
            )
            missing = [part for part, each in parts if each is None]
            if missing:
                rest = math.prod(each for _, each in parts if each is not None)
                parts = [(part, size // rest if each is None else each) for part, each in parts]
            for part, each in parts:
                entries.append(part)
                shape.append(each)
                if isinstance(part, str) and part not in axes:
                    axes.append(part)
        array = array.reshape(shape)
        inner = [self.value(e, scope) if is_told(e) else None for e in entries]
        for names in inner:
            axes += [a for a in (names[0] if names else ()) if a not in axes]
        counts = {e: s for e, s in zip(entries, shape, strict=True) if isinstance(e, str)}
        for value in inner:
            if value is not None:
                counts.update(dict(zip(value[0], value[1].shape, strict=True)))
        for entry, value in zip(entries, inner, strict=True):
            if isinstance(entry, int):
                grids.append(entry)
            elif value is not None:
                grids.append(_spread(value, axes).astype(int))
            else:
                grids.append(_spread(((entry,), np.arange(counts[entry])), axes))
        return tuple(axes), (array[tuple(grids)] if grids else array)

    def part_size(self, part: str, scope: Mapping[str, int]) -> int | None:
        return scope.get(part, self.known.get(part))

    def call(self, node: Call, scope: Mapping[str, int]) -> Named:
        name, axes = node.function, node.axes
        if name == "index":
            return (axes[0],), np.arange(scope.get(axes[0], self.known.get(axes[0], 0)), dtype=float)
        if name == "onehot":
            names, array = self.value(node.arguments[0], scope)
            size = scope.get(axes[0], self.known.get(axes[0], 0))
            return (*names, axes[0]), (_counted(array)[..., None] == np.arange(size)).astype(float)
        if name == "repeat":
            names, array = self.value(node.arguments[0], scope)
            size = scope.get(axes[0], self.known.get(axes[0], 0))
            return (*names, axes[0]), np.repeat(array[..., None], size, axis=-1)
        if name in ("concat", "stack"):
            return self.concat(node, scope)
        if name in ("roll", "pad"):
            return self.moved(node, scope)
        values = [self.value(argument, scope) for argument in node.arguments]
        if name in TOLD:
            return self.told(node, values[0], scope)
        if name in OVER:
            names, array = values[0]
            rest = tuple(a for a in names if a not in axes)
            return rest, OVER[name](_counted(array), axis=tuple(names.index(a) for a in axes))
        if name in ALONG:
            return self.along(node, (values[0][0], _counted(values[0][1])))
        union = list(dict.fromkeys(a for names, _ in values for a in names))
        if name in ("previous", "following"):
            return tuple(union), _step(
                [_spread(value, union) for value in values], union.index(axes[0]), name
            )
        if name == "recur":
            union = [*(a for a in union if a not in axes), *axes]
            options = {option: float(found[0].value) for option, found in node.options}  # type: ignore[union-attr]
            return tuple(union), recur(*(_counted(_spread(value, union)) for value in values), **options)
        arrays = [_spread(value, union) for value in values]
        if name == "where":
            return tuple(union), np.where(*arrays)
        if name == "dropped":
            return tuple(union), _counted(arrays[1]) + 0 * _counted(arrays[0])
        arrays = [_counted(array) for array in arrays]
        if name == "add":
            return tuple(union), sum(arrays[1:], arrays[0])
        told = {option: float(self.value(given[0], scope)[1]) for option, given in node.options}
        found = UNARY[name](*arrays, **told) if name in UNARY else BINARY[name](*arrays)
        return tuple(union), found

    def told(self, node: Call, value: Named, scope: Mapping[str, int]) -> Named:
        names, array = value
        axis, *made = node.axes
        positions = TOLD[node.function](_counted(array), axis=names.index(axis))
        if made:
            positions = np.take(
                positions, range(scope.get(made[0], self.known.get(made[0], 0))), axis=names.index(axis)
            )
        if positions.ndim < array.ndim:
            return tuple(a for a in names if a != axis), positions
        return tuple(made[0] if made and a == axis else a for a in names), positions

    def along(self, node: Call, value: Named) -> Named:
        names, array = value
        at = tuple(names.index(a) for a in node.axes)
        options = {option: float(values[0].value) for option, values in node.options}  # type: ignore[union-attr]
        return names, ALONG[node.function](array, axis=at, **options)

    def concat(self, node: Call, scope: Mapping[str, int]) -> Named:
        (axis,) = node.axes
        values = [self.value(argument, scope) for argument in node.arguments]
        union = list(dict.fromkeys([a for names, _ in values for a in names] + [axis]))
        counts = {
            a: s for names, array in values for a, s in zip(names, array.shape, strict=True) if a != axis
        }
        parts = []
        for names, array in values:
            shape = [counts.get(a, dict(zip(names, array.shape, strict=True)).get(a, 1)) for a in union]
            parts.append(np.broadcast_to(_spread((names, array), union), shape))
        return tuple(union), np.concatenate(parts, axis=union.index(axis))

    def moved(self, node: Call, scope: Mapping[str, int]) -> Named:
        names, array = self.value(node.arguments[0], scope)
        inner = dict(scope) | dict(zip(names, array.shape, strict=True))
        fill = 0.0
        for option, values in node.options:
            amounts = [int(self.value(v, inner)[1]) for v in values]
            if option == "value":
                fill = float(self.value(values[0], inner)[1])
        for option, values in node.options:
            if option == "value":
                continue
            at, amounts = names.index(option), [round(float(self.value(v, inner)[1])) for v in values]
            if node.function == "roll":
                array = np.roll(array, amounts[0], axis=at)
            else:
                take = np.arange(-amounts[0], array.shape[at] + amounts[1])
                inside = (take >= 0) & (take < array.shape[at])
                array = np.take(array, np.clip(take, 0, array.shape[at] - 1), axis=at)
                mask = inside.reshape([-1 if n == at else 1 for n in range(array.ndim)])
                array = np.where(mask, array, fill)
        return names, array


def _step(arrays: list[np.ndarray], axis: int, name: str) -> np.ndarray:
    """The array one position later, or earlier, and the start where none comes in."""
    array, start = arrays[0], (arrays[1] if len(arrays) > 1 else np.zeros(()))
    found = np.roll(array, 1 if name == "previous" else -1, axis)
    first = 0 if name == "previous" else array.shape[axis] - 1
    shape = [-1 if n == axis else 1 for n in range(array.ndim)]
    return np.where(np.arange(array.shape[axis]).reshape(shape) == first, start, found)


def _counted(array: np.ndarray) -> np.ndarray:
    """Truth values as 1 and 0."""
    return array.astype(float) if array.dtype == bool else array


def _spread(value: Named, axes: list[str]) -> np.ndarray:
    """The array with its axes in the given order, 1 where one is missing."""
    names, array = value
    own = [a for a in axes if a in names]
    array = np.transpose(array, [names.index(a) for a in own])
    sizes = dict(zip(own, array.shape, strict=True))
    return array.reshape([sizes.get(a, 1) for a in axes])
