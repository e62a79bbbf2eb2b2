"""Freezing: parameters become constants with the values they have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import ShapeError, by_name
from ..graph.argument_shapes import sizes_from_shapes
from ..graph.graph import Apply, Graph, of_graph
from ..graph.leaves import Constant
from ..graph.match_names import told_by
from ..language.equation import Equation

__all__ = ["freeze"]


@of_graph
def freeze(graph: Graph, params: Mapping[str, Any], names: str | Sequence[str] = "*") -> Graph:
    """Makes parameters constants with the values they have; the others stay parameters.

    What depends on constants alone is computed once, where the graph runs. So a frozen weight in factors is
    multiplied together, in part or as a whole, wherever going through the factors at each call takes longer:
    y = x·A·B becomes y = x·W with W = A·B, or stays as it is, whichever is faster at the batch it meets.

    Args:
        graph: a layer or a model.
        params: name to array of any library; more than those that are frozen may be there.
        names: which parameters, by their scoped names: patterns of `fnmatch`, where `*` stands for
            anything, dots included, as `"encoder.* head.W"` or a list of them; all if not given.

    Raises:
        EquationError: a name or a pattern fits no parameter.
        ShapeError: an array is missing, or has another shape than the graph says.
        DtypeError: an array holds no numbers.

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


def _others(known: Sequence[str], missing: Sequence[str]) -> str:
    rest = [name for name in known if name not in missing]
    return f"names='{' '.join(rest[:6])}'" if rest else "others"


def _holding(graph: Graph, values: Mapping[str, Constant]) -> Graph:
    """The graph, and the blocks that it calls, with constants in the place of parameters."""
    leaves = tuple(
        replace(leaf, kind="constant", start=None, value=values[leaf.name])
        if leaf.kind == "parameter" and leaf.name in values
        else leaf
        for leaf in graph.leaves
    )
    body = tuple(item if isinstance(item, Equation) else _call(item, values) for item in graph.body)
    return graph if leaves == graph.leaves else replace(graph, leaves=leaves, body=body)


def _call(call: Apply, values: Mapping[str, Constant]) -> Apply:
    names = {leaf.name: call.scoped(leaf.name) for leaf in call.graph.parameters}
    own = {name: values[outer] for name, outer in names.items() if outer in values}
    return replace(call, graph=_holding(call.graph, own))
