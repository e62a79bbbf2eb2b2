"""Argument checking: names, shapes, sizes and dtypes of a caller's arguments."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..dtypes import real_type
from ..errors import ArgumentError, BackendError, DtypeError, ShapeError, TensornetError, near
from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..graph.shape_inference import scope_of
from ..language.einstein import locate
from ..language.expression import Call
from ..ops.table import FUNCTIONS
from ..protocol import Backend, backend_of
from ..sizes import evaluate


def check_backward(backward: str) -> None:
    """Raises an error if a way of computing gradients is unknown."""
    if backward not in ("planned", "autograd"):
        raise BackendError(f"there is no backward={backward!r}", fix="use 'planned' or 'autograd'")


def wrong_names(graph: Graph, given: Any) -> ShapeError:
    """The error for parameters that are not those of the graph."""
    known = [leaf.name for leaf in graph.parameters]
    if not hasattr(given, "keys"):
        inputs = "".join(f", {leaf.name}" for leaf in graph.inputs)
        fix = f"call f(parameters{inputs}), or hold them: tensornet.compile(graph, params=…)"
        return ShapeError(
            f"the parameters are a {type(given).__name__}, not a dictionary of arrays by name", fix=fix
        )
    missing = [name for name in known if name not in given]
    unknown = [str(name) for name in given if name not in known]
    parts = []
    for names, what in ((missing, "missing"), (unknown, "unknown")):
        one, quoted = len(names) == 1, _few([f"'{name}'" for name in names])
        parts += (
            [f"the parameter{'' if one else 's'} {quoted} {'is' if one else 'are'} {what}"] if names else []
        )
    hint = near(unknown[0], missing or known) if unknown else ""
    return ShapeError("; ".join(parts), fix=f"{hint}the graph has {_few(known)}")


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:6]) or "no parameters"
    return f"{shown}, … ({len(names)})" if len(names) > 6 else shown


def wrong_count(
    inputs: Sequence[str], count: int, takes_parameters: bool, named: Iterable[str] = ()
) -> TensornetError:
    """The error for a call with another number of arguments than a function takes, or with arguments by name."""
    called = ", ".join([*["parameters"] * takes_parameters, *inputs])
    for name in named:
        return ArgumentError(f"the function takes no argument by name, as {name}=", fix=f"call f({called})")
    message = f"the function takes {len(inputs)} input(s) ({', '.join(inputs)}), not {max(0, count - takes_parameters)}"
    return ShapeError(message, fix=f"call f({called})")


def not_an_array(leaves: Sequence[Leaf], arrays: Sequence[Any], backend: Backend) -> BackendError:
    """The error for an argument that has no shape, or belongs to another library."""
    for leaf, array in zip(leaves, arrays, strict=False):
        with contextlib.suppress(RuntimeError):  # from a nested tensor
            if hasattr(array, "shape"):
                continue
        what = f"'{leaf.name}' is a {type(array).__name__}, not an array of {backend.name}"
        return BackendError(what, fix="pass arrays")
    check_arrays([leaf.name for leaf in leaves], arrays, backend)
    raise AssertionError(f"arrays of {backend.name} that are none")


def check_arrays(names: Sequence[str], arrays: Sequence[Any], backend: Backend) -> None:
    """Raises an error for arrays of another library, or on two devices; a scalar on the processor goes with any."""
    first = None
    for name, array in zip(names, arrays, strict=False):
        found = backend_of(array)
        if found.name != backend.name:
            raise BackendError(
                f"'{name}' is an array of {found.name}, and the graph is compiled for {backend.name}",
                fix=f"tensornet.to_backend(arrays, '{backend.name}'), or compile for {found.name}",
            )
        if found.name == "numpy" and getattr(array, "__array_priority__", 0) > 0:  # a matrix, a masked array
            what = f"'{name}' is a {type(array).__name__}, with an arithmetic of its own"
            raise BackendError(what, fix="pass numpy.asarray(…) of it")
    for name, array in zip(names, arrays, strict=False):
        device = backend.device(array)
        if device != "cpu" or array.ndim:
            first = first or (name, device)
            if device != first[1]:
                raise BackendError(
                    f"'{name}' is on {device}, and '{first[0]}' on {first[1]}",
                    fix=f"tensornet.to_backend(arrays, '{backend.name}', device=…) moves arrays",
                )


def check_choices(graph: Graph, sizes: Mapping[str, int]) -> None:
    """Raises an error if a function such as the maximum runs over an axis without positions."""
    for part in graph.parts():
        known = {**graph.bound, **sizes, **part.bound}
        found = (each for equation in part.own for each in equation.parts if isinstance(each, Call))
        for call in (each for each in found if FUNCTIONS[each.function].needs_position):
            scope = scope_of(call.arguments[0], part.named, part.unify, part.bound)
            for axis in FUNCTIONS[call.function].runs_over(call.axes):
                if evaluate(scope[axis], known) == 0:
                    raise ShapeError(
                        f"axis '{axis}' has no positions, and {call.function} takes one of them",
                        locate(call.place, axis),
                        f"pass arrays with at least one position along '{axis}'",
                    )


def check_dtypes(dtypes: Mapping[str, str], backend: Backend) -> None:
    """Raises an error unless all floating types are of one precision; integers and truth values may be mixed in."""
    for name, dtype in dtypes.items():
        if not dtype.startswith(("float", "bfloat", "int", "uint", "bool", "complex")):  # qint8 is quantized
            raise DtypeError(f"'{name}' holds {dtype}", fix="give numbers or truth values")
    floating = {name: dtype for name, dtype in dtypes.items() if "float" in dtype or "complex" in dtype}
    for (one, first), (other, second) in itertools.pairwise(floating.items()):
        if real_type(first) != real_type(second):
            moved = f", module.to(torch.{first})" if backend.name == "torch" else ""
            raise DtypeError(
                f"'{one}' is {first} and '{other}' is {second}: numbers are all of one floating type",
                fix=f"tensornet.to_backend(params, '{backend.name}', dtype='{first}'){moved}, or convert '{one}'",
            )
