"""Argument checking: names, shapes, sizes and dtypes of a caller's arguments."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from ..dtypes import real_type
from ..errors import BackendError, DtypeError, ShapeError, near
from ..graph.graph import Graph
from ..graph.shape_inference import scope_of
from ..language.einstein import locate
from ..language.expression import Call
from ..ops.table import FUNCTIONS
from ..protocol import Backend
from ..sizes import evaluate

__all__ = ["check_backward", "check_choices", "check_dtypes", "wrong_names"]


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
    parts = [(missing, "missing"), (unknown, "unknown")]
    message = "; ".join(f"{_listed(names)} {what}" for names, what in parts if names)
    return ShapeError(
        message, fix=f"{near(unknown[0], missing or known) if unknown else ''}the graph has {_few(known)}"
    )


def _listed(names: Sequence[str]) -> str:
    quoted = _few([f"'{name}'" for name in names])
    return f"the parameter {quoted} is" if len(names) == 1 else f"the parameters {quoted} are"


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:6]) or "no parameters"
    return f"{shown}, … ({len(names)})" if len(names) > 6 else shown


def check_choices(graph: Graph, sizes: Mapping[str, int]) -> None:
    """Raises an error if a function such as the maximum runs over an axis without positions."""
    known = {**graph.bound, **sizes}
    for part in graph.parts():
        for equation in part.own:
            for each in equation.parts:
                if isinstance(each, Call) and FUNCTIONS[each.function].needs_position:
                    _check_choice(part, each, {**known, **part.bound})


def _check_choice(graph: Graph, call: Call, known: Mapping[str, Any]) -> None:
    scope = scope_of(call.arguments[0], graph.named, graph.unify, graph.bound)
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
            raise DtypeError(
                f"'{one}' is {first} and '{other}' is {second}: numbers are all of one floating type",
                fix=f"tensornet.to_backend(params, '{backend.name}', dtype='{first}'), or convert '{one}'",
            )
