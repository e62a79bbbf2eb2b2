"""Freezing: parameters become constants with given values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import ShapeError, by_name
from ..graph.argument_shapes import sizes_from_shapes
from ..graph.graph import Apply, Graph, of_graph
from ..graph.leaves import Constant, told_by
from ..language.equation import Equation


@of_graph
def freeze(graph: Graph, params: Mapping[str, Any], names: str | Sequence[str] = "*") -> Graph:
    """Turns parameters into constants with the values in `params`. The others stay parameters.

    Tensors that depend on constants alone are computed once, on the device of the graph. So the factors of a frozen
    weight are multiplied together, in part or in full, if that makes a call faster. For example, y = x·A·B becomes
    y = x·W with W = A·B, or stays as it is, whichever is faster at the batch size of the call.

    Args:
        graph: a layer or a model.
        params: name to array of any library. Parameters that are not frozen may be included.
        names: the scoped names of the parameters to freeze, as `"encoder.* head.W"` or a list. They are
            patterns of `fnmatch`: `*` matches anything, including dots. All parameters by default.

    Raises:
        EquationError: a name or a pattern matches no parameter.
        ShapeError: an array is missing, or its shape does not match the graph.
        DtypeError: an array is not numeric.

    Example:
        >>> import numpy as np, tensornet as tn
        >>> layer = tn.layer("y[b,o] = x[b,i] * A[i,r] * B[r,o] + u[o]", inputs="x")
        >>> frozen = tn.freeze(layer, {"A": np.ones((3, 1)), "B": np.ones((1, 2))}, names="A B")
        >>> [leaf.name for leaf in frozen.parameters], [leaf.name for leaf in frozen.constants]
        (['u'], ['A', 'B'])
    """
    known = [leaf.name for leaf in graph.parameters]
    params = by_name(params, "the parameters", '{"W": array}')
    chosen = told_by(names, known, "parameter of this graph", "parameters")
    missing = [name for name in chosen if name not in params]
    if missing:
        raise ShapeError(
            f"the parameter '{missing[0]}' is missing",
            fix=f"give it in params, or freeze {_others(known, missing)}",
        )
    values = {name: Constant.of(params[name], f"the parameter '{name}'") for name in chosen}
    leaves = [leaf for leaf in graph.parameters if leaf.name in values]
    sizes = sizes_from_shapes(graph, leaves, [values[leaf.name].shape for leaf in leaves])
    return _holding(graph.bind(**sizes) if sizes else graph, values)


def unfrozen(graph: Graph, names: Sequence[str]) -> Graph:
    """The graph with some constants as parameters again."""
    return _holding(graph, dict.fromkeys(names)) if names else graph


def _others(known: Sequence[str], missing: Sequence[str]) -> str:
    rest = [name for name in known if name not in missing]
    return f"names='{' '.join(rest[:6])}'" if rest else "others"


def _holding(graph: Graph, values: Mapping[str, Constant | None]) -> Graph:
    """The graph, and the blocks that it calls, with constants instead of parameters; without values the reverse."""
    leaves = tuple(
        replace(
            leaf, kind="constant" if values[leaf.name] else "parameter", start=None, value=values[leaf.name]
        )
        if leaf.kind != "input" and leaf.name in values
        else leaf
        for leaf in graph.leaves
    )
    body = tuple(item if isinstance(item, Equation) else _call(item, values) for item in graph.body)
    return graph if leaves == graph.leaves else replace(graph, leaves=leaves, body=body)


def _call(call: Apply, values: Mapping[str, Constant | None]) -> Apply:
    names = {leaf.name: call.scoped(leaf.name) for leaf in call.graph.leaves if leaf.kind != "input"}
    own = {name: values[outer] for name, outer in names.items() if outer in values}
    return replace(call, graph=_holding(call.graph, own))
