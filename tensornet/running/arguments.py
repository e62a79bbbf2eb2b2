"""What a caller gives, held against what the graph takes: names, shapes, sizes, element types."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..dtypes import real_type
from ..errors import DtypeError, Place, ShapeError, near
from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..graph.shape import dim_size, scope_of
from ..language.equation import locate
from ..language.expression import Call, subexpressions
from ..operations.functions import FUNCTIONS
from ..protocol import Backend
from ..sizes import evaluate, solve_size

__all__ = ["check_choices", "check_dtypes", "sizes_from_shapes", "wrong_names"]


def wrong_names(graph: Graph, given: Any) -> ShapeError:
    """The error for parameters that are not those of the graph."""
    known = [leaf.name for leaf in graph.parameters]
    if not hasattr(given, "keys"):
        inputs = "".join(f", {leaf.name}" for leaf in graph.inputs)
        fix = f"call f(parameters{inputs}), or hold them: tensornet.compile(graph, params=…)"
        return ShapeError(f"the parameters are a {type(given).__name__}, not arrays by their names", fix=fix)
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


def sizes_from_shapes(
    graph: Graph, leaves: Sequence[Leaf], shapes: Sequence[tuple[int, ...]]
) -> dict[str, int]:
    """The open sizes implied by the shapes of the leaves.

    Raises:
        ShapeError: a shape does not fit the equations, or two of them disagree.
    """
    known: dict[str, int] = {}
    origin: dict[str, str] = {}
    dims: list[tuple[Leaf, int, Any, int]] = []
    lead: dict[str, tuple[tuple[int, ...], str]] = {}
    for leaf, shape in zip(leaves, shapes, strict=False):
        shape = _without_lead(leaf, shape, lead)
        for position, (dim, size) in enumerate(zip(leaf.dims, shape, strict=True)):
            dims.append((leaf, position, dim_size(dim), size))
    for _ in range(len(dims) + 1):
        before = len(known)
        for leaf, _position, formula, size in dims:
            solved = solve_size(evaluate(formula, {**graph.bound, **known}), size)
            if solved is not None and solved[0] not in known:
                known[solved[0]] = solved[1]
                origin[solved[0]] = leaf.name
        if len(known) == before:
            break
    for leaf, position, formula, size in dims:
        expected = evaluate(formula, {**graph.bound, **known})
        if expected != size:
            raise _wrong_size(leaf, position, expected, size, origin)
    return {name: known[name] for name in graph.open_sizes if name in known}


def _without_lead(
    leaf: Leaf, shape: tuple[int, ...], lead: dict[str, tuple[tuple[int, ...], str]]
) -> tuple[int, ...]:
    """The shape with the axes that `...` stands for made one."""
    at = next((n for n, dim in enumerate(leaf.dims) if dim and dim[0].name == "..."), None)
    if at is None:
        if len(shape) != len(leaf.dims):
            raise _wrong_rank(leaf, shape)
        return shape
    after = len(leaf.dims) - at - 1
    if len(shape) < len(leaf.dims) - 1:
        raise _wrong_rank(leaf, shape)
    leading = shape[at : len(shape) - after]
    known = lead.setdefault("...", (leading, leaf.name))
    if known[0] != leading:
        raise ShapeError(f"'...' is {known[0]} in '{known[1]}', and {leading} in '{leaf.name}'")
    return (*shape[:at], math.prod(leading), *shape[len(shape) - after :])


def _wrong_rank(leaf: Leaf, shape: tuple[int, ...]) -> ShapeError:
    text = str(leaf)
    return ShapeError(
        f"'{leaf.name}' has shape {shape}: {len(shape)} dimension(s), where the equations read {len(leaf.dims)}",
        Place(text, 1, 0, len(text.split(":")[0])),
        "pass an array with a dimension for each axis",
    )


def _wrong_size(leaf: Leaf, position: int, expected: Any, size: int, origin: Mapping[str, str]) -> ShapeError:
    names = ",".join(axis.name for axis in leaf.dims[position])
    text = f"{leaf.name}[{', '.join(','.join(axis.name for axis in dim) for dim in leaf.dims)}]"
    column = len(leaf.name) + 1 + sum(len(",".join(a.name for a in dim)) + 2 for dim in leaf.dims[:position])
    why = next((f" (as '{origin[a.name]}' has it)" for a in leaf.dims[position] if a.name in origin), "")
    return ShapeError(
        f"sizes disagree: axis '{names}' of '{leaf.name}' is {size}, and should be {expected}{why}",
        Place(text, 1, column, len(names)),
        f"pass '{leaf.name}' with {expected} positions along dimension {position}",
    )


def check_choices(graph: Graph, sizes: Mapping[str, int]) -> None:
    """Refuses the largest or the smallest of nothing."""
    known = {**graph.bound, **sizes}
    for part in graph.parts():
        for equation in part.own:
            for each in subexpressions(equation.right):
                if isinstance(each, Call) and FUNCTIONS[each.function].needs_position:
                    _check_choice(part, each, {**known, **part.bound})


def _check_choice(graph: Graph, call: Call, known: Mapping[str, Any]) -> None:
    scope = scope_of(call.arguments[0], graph.named, graph.agree, graph.bound)
    for axis in call.axes:
        if evaluate(scope[axis], known) == 0:
            raise ShapeError(
                f"axis '{axis}' has no positions, and {call.function} takes one of them",
                locate(call.place, axis),
                f"pass arrays with at least one position along '{axis}'",
            )


def check_dtypes(dtypes: Mapping[str, str], backend: Backend) -> None:
    """All numbers are of one precision; integers and truth values may stand beside them."""
    for name, dtype in dtypes.items():
        if not any(kind in dtype for kind in ("float", "int", "bool", "complex")):
            raise DtypeError(f"'{name}' holds {dtype}", fix="give numbers or truth values")
    floating = {name: dtype for name, dtype in dtypes.items() if "float" in dtype or "complex" in dtype}
    for (one, first), (other, second) in itertools.pairwise(floating.items()):
        if real_type(first) != real_type(second):
            raise DtypeError(
                f"'{one}' is {first} and '{other}' is {second}: numbers are all of one floating type",
                fix=f"tensornet.to_backend(params, '{backend.name}', dtype='{first}'), or convert '{one}'",
            )
