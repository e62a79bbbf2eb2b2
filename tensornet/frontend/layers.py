"""Layers: a graph from a block of text, or from its JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import EquationError, TensornetError, by_name, nearest, told_in
from ..graph.graph import FORMAT, VERSION, Graph, inlined
from ..graph.leaves import Constant
from ..graph.recurrences import read_directly
from .elaborate import elaborated

__all__ = ["layer", "read_graph"]

Names = str | Sequence[str]


def layer(
    equations: str,
    *,
    inputs: Names = (),
    outputs: Names = (),
    constants: Mapping[str, Any] | None = None,
    init: Mapping[str, Any] | None = None,
    **sizes: Any,
) -> Graph:
    """Reads a block of equations as a graph.

    A name that no line defines is an input if `inputs` lists it, a constant if `constants` holds
    it, else a parameter. The last line is the output unless `outputs` names others.

    Args:
        equations: one equation a line, `name[axes] = expression`.
        inputs: the names of the inputs, in the order of the call; with axes where the equations
            do not show them, as in `"x[b,n,c] t[b,n]"`.
        outputs: the names of the results.
        constants: arrays with a fixed value, by name.
        init: how a parameter starts, unless that is derived: a standard deviation,
            `"zeros"` or `"ones"`, or an array of its shape.
        **sizes: axis name to a positive integer, a sympy expression or a text such as `"D/h"`; a
            size that is left out is open.

    Raises:
        EquationError: the text is not in the language.
        ShapeError: sizes disagree.
        DtypeError: `init` holds an array that is not numeric.

    Example:
        >>> import tensornet as tn
        >>> print(tn.layer("y[b,o] = gelu(x[b,i] * W[o,i] + u[o])", inputs="x", i=8, o=2))
        i: 8
        o: 2
        x[b,i]: input
        W[o,i]: parameter
        u[o]: parameter
        y[b,o] = gelu(x[b,i] * W[o,i] + u[o])
    """
    values = by_name(constants, "the constants", '{"c": array}')
    starts = by_name(init, "the starts in init", '{"W": 0.02}')
    graph = _made(*elaborated(equations, inputs, outputs, values, starts, sizes, _made))
    _check_every_line_is_read(graph)
    return graph


def _made(*parts: Any) -> Graph:
    """Builds a graph from its parts; calls without a scope are inlined, as in a model."""
    graph = inlined(Graph(*parts), lambda call: not call.scope)
    body = read_directly(graph.body, graph.outputs)
    return graph if body == graph.body else replace(graph, body=body)


@told_in("names")
def _check_every_line_is_read(graph: Graph) -> None:
    """Raises an error for a line that no output needs: often another line misspells its name."""
    needed = graph.needed()
    unused = [equation for equation in graph.own if equation.name not in needed]
    read = {ref.name for each in unused for ref in each.references if ref.name != each.name}
    circle = {name for each in graph.recurrences for name in each.names}
    for equation in sorted(unused, key=lambda each: (each.name in read, each.name not in circle))[:1]:
        other = nearest(equation.name, [leaf.name for leaf in graph.parameters])
        meant = f"'{other}' is read as a parameter: did you mean '{equation.name}'? else " if other else ""
        raise EquationError(
            f"no output depends on '{equation.name}': this line is never read",
            equation.place,
            f"{meant}take the line out, or name it in outputs=",
        )


def read_graph(text: str) -> Graph:
    """The graph of a JSON document; see `Graph.from_json`."""
    try:
        document = json.loads(text)
        if document["format"] != FORMAT or document["version"] != VERSION:
            raise EquationError(
                f"not a graph of version {VERSION}: {document['format']} {document['version']}"
            )
        return _of(document)
    except TensornetError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise EquationError(f"this is not a graph in JSON: {error!r}", fix="use what to_json wrote") from None


def _of(document: Mapping[str, Any]) -> Graph:
    """The graph of a document, or of a block in it; it may hold lines that no output needs."""
    lines = [f"{name}: {value}" for name, value in document["sizes"].items()]
    lines += document["leaves"] + document["equations"]
    constants, starts = (
        {name: Constant.of_plain(each).array() for name, each in document.get(part, {}).items()}
        for part in ("constants", "init")
    )
    blocks = {name: _of(each) for name, each in document.get("blocks", {}).items()}
    outputs = document["outputs"]
    return Graph(
        *elaborated("\n".join(lines), (), outputs, constants, starts, {}, Graph, blocks, printed=True)
    )
