"""Arrays of every type and kind, and equations of `einsum`, against NumPy in float64."""

from __future__ import annotations

import functools
import string
from typing import Any

import array_api_strict
import numpy as np
import torch

import tensornet as tn
from tensornet.backends.array_api import of
from tensornet.sizes import evaluate

from .. import oracle
from . import SilentChangeError, Trial

_GRAPHS = (
    ("y[b,p] = x[b,i] * W[p,i] + u[p]", "x"),
    ("y[b,p,q] = gelu(x[b,i,j] * U[p,i]) * V[q,j]", "x"),
    ("y[b,d] = E[t[b],d] + x[b,d]", "t x"),
    ("y[b,j] = softmax[j](where(x[b,j] > 0, x[b,j], -inf))", "x"),
    ("y[b] = max[i](x[b,i]) - mean[i](x[b,i]) / 3", "x"),
    ("y[...,o] = normalize[i](x[...,i]) * W[o,i]", "x"),
    ("y[b,j] = onehot[j](t[b]) * W[j] + concat[j](x[b,k], x[b,k])", "t x"),
    ("y[i,j] = (x[i] == z[j]) * x[i] + floor(z[j] / 3)", "x z"),
)
_TYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64")
_ROUNDING = {"float16": 2e-2, "float32": 1e-4, "complex64": 1e-4}


@functools.cache
def _compiled(number: int, backend: str) -> Any:
    text, inputs = _GRAPHS[number]
    chosen = of(array_api_strict) if backend == "strict" else backend
    return tn.compile(tn.layer(text, inputs=inputs, **({"d": 3} if "d]" in text else {})), backend=chosen)


def arrays(trial: Trial) -> None:
    """Calls a compiled function with arrays that fit, more or less."""
    random = trial.random
    number, backend = random.randrange(len(_GRAPHS)), random.choice(("numpy", "torch", "strict"))
    f = _compiled(number, backend)
    graph: tn.Graph = f.graph
    sizes = {**graph.bound, **{name: random.choice((0, 1, 2, 3, 5)) for name in graph.open_sizes}}
    usual = random.choice(("float32", "float64", "float32", *_TYPES))
    given = {leaf.name: _array(leaf, sizes, usual, trial) for leaf in (*graph.inputs, *graph.parameters)}
    wide = {name: array.astype(_wide(array)) for name, array in given.items()}
    trial.note(f"{graph} on {backend}")
    trial.note({name: f"{array.dtype}{array.shape}" for name, array in given.items()})
    parameters = {leaf.name: _on(backend, given[leaf.name], trial) for leaf in graph.parameters}
    inputs = [_on(backend, given[leaf.name], trial) for leaf in graph.inputs]
    if trial.chance(0.03):
        parameters["V1"] = inputs[0]
    if trial.chance(0.03) and inputs:
        inputs.pop()
    if trial.chance(0.03) and inputs:
        inputs[0] = random.choice((None, 3, 2.5, "x", [1.0, 2.0], [[1], [2, 3]], object(), np.array(["a"])))
    with np.errstate(all="ignore"):
        swapped = trial.chance(0.02)
        found = f(inputs[0], parameters) if swapped and inputs else f(parameters, *inputs)
        try:
            expected = oracle.meaning(graph, wide, sizes)[graph.outputs[0]]
        except (ValueError, IndexError, TypeError, oracle.Refused, oracle.Untold):
            return  # nothing to take the largest of
    found = np.asarray(found.float() if getattr(found, "dtype", None) == torch.bfloat16 else found)
    types = [str(array.dtype) for array in given.values() if array.dtype.kind in "fc"]
    rounding = max(_ROUNDING.get(each, 1e-9) for each in types or ["float32"])
    if found.shape != expected.shape:
        raise SilentChangeError(f"the result has shape {found.shape}, not {expected.shape}")
    if not np.allclose(found, expected, rtol=rounding, atol=rounding * 10, equal_nan=True):
        raise SilentChangeError(f"the result is {found.ravel()[:4]}, not {expected.ravel()[:4]}")


def _wide(array: np.ndarray) -> Any:
    return {"f": np.float64, "c": np.complex128, "b": np.bool_}.get(array.dtype.kind, np.int64)


def _array(leaf: Any, sizes: dict[str, int], usual: str, trial: Trial) -> np.ndarray:
    """An array that fits, but for now and then a size or a type."""
    random = trial.random
    shape = [int(evaluate(size, {**sizes, "lead": 2})) for size in leaf.shape]
    if trial.chance(0.05) and shape:
        shape[random.randrange(len(shape))] = random.choice((0, 1, 4))
    if trial.chance(0.03):
        shape = [*shape, 1]
    kind = random.choice(_TYPES) if trial.chance(0.15) else usual
    if leaf.name == "t" and not trial.chance(0.05):
        kind = random.choice(("uint8", "int8", "int16", "int32", "int64"))
    values = np.random.default_rng(random.randrange(2**32)).integers(0, 3, shape).astype(kind)
    if np.dtype(kind).kind in "fc":
        values = values - np.asarray(0.75, kind)
    if trial.chance(0.1) and values.ndim > 1:
        values = np.ascontiguousarray(values.T).T
    if trial.chance(0.1):
        values.flags.writeable = False
    return values


def _on(backend: str, array: np.ndarray, trial: Trial) -> Any:
    """The array in the library of the backend, and in another now and then."""
    if trial.chance(0.02):
        backend = trial.random.choice(("numpy", "torch", "strict"))
    if backend == "torch":
        return torch.tensor(np.array(array))
    if backend == "strict" and array.dtype != np.float16:  # which the standard does not have
        return array_api_strict.asarray(np.array(array))
    return array


def einsum(trial: Trial) -> None:
    """An equation that NumPy may or may not read, on arrays that may or may not fit."""
    random = trial.random
    letters = random.sample(string.ascii_letters, 4)
    sizes = dict(zip(letters, (random.choice((0, 1, 2, 3)) for _ in letters), strict=True))
    terms = [
        [random.choice(letters) for _ in range(random.randint(0, 3))] for _ in range(random.randint(1, 4))
    ]
    shapes = [[sizes[letter] for letter in term] for term in terms]
    texts = ["".join(term) for term in terms]
    for number, text in enumerate(texts):
        if trial.chance(0.1):
            at = random.randint(0, len(text))
            texts[number] = f"{text[:at]}...{text[at:]}"
            shapes[number][at:at] = random.choices((1, 2), k=random.randint(0, 2))
    equation = ",".join(texts)
    if trial.chance(0.8):
        seen = sorted({letter for term in terms for letter in term})
        lead = "..." if "..." in equation else ""
        equation += "->" + lead + "".join(random.sample(seen, random.randint(0, len(seen))))
    if trial.chance(0.1):
        at = random.randint(0, len(equation))
        equation = (
            equation[:at]
            + random.choice((" ", ",", "->", ".", "(", ")", "a", "1", "é", "\n"))
            + equation[at:]
        )
    generator = np.random.default_rng(random.randrange(2**32))
    operands = [generator.uniform(-1, 1, shape) for shape in shapes]
    trial.note(f"{equation!r} {[operand.shape for operand in operands]}")
    given = map(torch.tensor, operands) if trial.chance(0.5) else operands
    found = np.asarray(tn.einsum(equation, *given))
    if " " in equation:
        return  # names apart by spaces to us, letters to NumPy
    try:
        expected = np.einsum(equation, *operands)
    except (ValueError, IndexError, TypeError):
        return  # composites
    if np.shape(found) != np.shape(expected) or not np.allclose(found, expected, atol=1e-9):
        raise SilentChangeError(f"the result is {np.ravel(found)[:4]}, not {np.ravel(expected)[:4]}")
