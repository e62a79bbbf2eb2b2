"""The functions of the language on whole NumPy arrays, written by hand, and leading axes made one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.special

from tensornet.graph.graph import Graph


def _logsumexp(array: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
    """Of no numbers too, along several axes, which scipy's does not take."""
    for each in sorted(np.atleast_1d(axis) % array.ndim, reverse=True):
        array = np.logaddexp.reduce(array, axis=each)
    return array


UNARY = {
    "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "sqrt": np.sqrt, "square": np.square,
    "abs": np.abs, "sign": np.sign, "floor": np.floor, "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
    "erf": scipy.special.erf, "sigmoid": scipy.special.expit, "logical_not": np.logical_not,
    "rsqrt": lambda a: a**-0.5, "reciprocal": lambda a: 1.0 / a, "relu": lambda a: np.maximum(a, 0.0),
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
    "power": np.float_power, "floor_divide": np.floor_divide, "remainder": np.mod, "maximum": np.maximum, "minimum": np.minimum, "equal": np.equal, "less": np.less,
    "not_equal": np.not_equal, "less_equal": np.less_equal, "greater": np.greater,
    "greater_equal": np.greater_equal, "logical_and": np.logical_and, "logical_or": np.logical_or,
    "dropout": lambda a, rate: a, "clip": np.clip,
}  # fmt: skip
OVER = {
    "mean": np.mean, "var": np.var, "max": np.max, "min": np.min, "prod": np.prod,
    "logsumexp": _logsumexp, "std": np.std, "norm": lambda a, axis: np.sqrt(np.sum(a * a, axis=axis)),
}  # fmt: skip
TOLD = {
    "argmax": np.argmax, "argmin": np.argmin, "argsort": lambda a, axis: np.argsort(a, axis=axis, kind="stable"),
    "top": lambda a, axis: np.argsort(-a, axis=axis, kind="stable"),
}  # fmt: skip
"""Functions that tell positions along one axis."""


def _hardmax(array: np.ndarray, axis: tuple[int, ...]) -> np.ndarray:
    flat = np.moveaxis(array, axis[0], -1)
    return np.moveaxis(np.eye(flat.shape[-1])[flat.argmax(-1)], -1, axis[0])


def _average_hardmax(array: np.ndarray, axis: tuple[int, ...]) -> np.ndarray:
    least = -np.inf if array.dtype.kind == "f" else np.iinfo(array.dtype).min
    largest = array == array.max(axis, keepdims=True, initial=least)
    return largest / np.maximum(largest.sum(axis, keepdims=True), 1)


def _average_hardmin(array: np.ndarray, axis: tuple[int, ...]) -> np.ndarray:
    return _average_hardmax(-array, axis)


def _normalize(array: np.ndarray, axis: tuple[int, ...], eps: float = 1e-5) -> np.ndarray:
    return (array - array.mean(axis, keepdims=True)) / np.sqrt(array.var(axis, keepdims=True) + eps)


def recur(a: np.ndarray, b: np.ndarray, start: float = 0.0, back: float = 0.0) -> np.ndarray:
    """y[..., 0] = start, y[..., j] = a[..., j-1] * y[..., j-1] + b[..., j-1]; from the end if `back`."""
    a, b = np.broadcast_arrays(a, b)
    if back:
        return recur(a[..., ::-1], b[..., ::-1], start)[..., ::-1]
    y = np.full(a.shape, float(start))
    for j in range(1, a.shape[-1]):
        y[..., j] = a[..., j - 1] * y[..., j - 1] + b[..., j - 1]
    return y


def _running(function: Any) -> Any:
    """A function of the elements up to each position, or from there on."""

    def found(array: np.ndarray, axis: tuple[int, ...], back: float = 0.0) -> np.ndarray:
        return np.flip(function(np.flip(array, axis), axis[0]), axis) if back else function(array, axis[0])

    return found


def _of_any(function: Any) -> Any:
    """A function along axes that leaves their lengths, of no elements too."""
    return lambda array, axis, **options: function(array, axis, **options) if array.size else array


ALONG = {
    "softmax": _of_any(scipy.special.softmax), "log_softmax": _of_any(scipy.special.log_softmax), "hardmax": _hardmax,
    "average_hardmax": _average_hardmax, "average_hardmin": _average_hardmin,
    "normalize": _normalize, "cumsum": _running(np.cumsum), "cumprod": _running(np.cumprod),
}  # fmt: skip


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
