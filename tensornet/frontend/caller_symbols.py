"""Hygiene of symbols: a caller's symbols in the sizes of a ready-made layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..graph.graph import Graph
from ..language.expression import fresh
from ..language.parser import read_sizes
from ..sizes import put_in, size_names, symbol
from .instantiate import instance, names_of_sizes

__all__ = ["hygienic"]

_MARK = "ʹ"  # a letter in Python, which nobody types


def hygienic(make: Callable[..., Graph], sizes: Mapping[str, Any]) -> Graph:
    """Runs `make(**sizes)`; a symbol in a size is the caller's, even if the graph has an axis of that name.

    Args:
        make: builds a graph from sizes, as `tensornet.layer` and `tensornet.model` do.
        sizes: axis name to an integer, a sympy expression or a text.

    Example:
        >>> import tensornet as tn
        >>> text = "y[b,o] = x[b,i] * W[o,i]"
        >>> graph = hygienic(lambda **sizes: tn.layer(text, inputs="x", **sizes), {"i": "o", "o": 4})
        >>> print(graph.parameters[0], "with", tn.parameter_formula(graph))
        W[o:o_1,i:o]: parameter with o*o_1
    """
    given = read_sizes(sizes)
    same = {name for name, size in given.items() if size == symbol(name)}
    outer = sorted({name for size in given.values() for name in size_names(size)} - same)
    if not outer:
        return make(**given)
    marked = {name: symbol(name + _MARK) for name in outer}
    graph = make(**{name: put_in(size, marked) for name, size in given.items()})
    names = names_of_sizes(graph)
    taken = {*outer, *names}.union(*(equation.axes for equation in graph.own))
    moved = {name + _MARK: symbol(name) for name in outer}
    for name in outer:
        if name in names:
            chosen = fresh(name, taken)
            moved[name] = symbol(chosen)
            taken.add(chosen)
    values = {name: size for name, size in graph.bound.items() if isinstance(size, int)}
    formulas = {name: size for name, size in graph.bound.items() if name not in values}
    found = {name: put_in(formulas.get(name, symbol(name)), moved) for name in names}
    known = {str(found[name]): value for name, value in values.items()}
    return instance(graph, tuple(sorted(found.items())), tuple(sorted(known.items())), None)
