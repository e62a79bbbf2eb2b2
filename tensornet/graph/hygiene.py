"""A caller's symbols in the sizes of a ready-made layer, kept apart from the layer's own names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..language.equation import Equation
from ..language.expression import (
    Size,
    axes_of_index,
    fresh,
    references,
    relabel,
    sized_by_name,
    subexpressions,
    transform,
)
from ..language.reading import read_sizes
from ..sizes import symbol
from .graph import Graph
from .shape import Axis

__all__ = ["hygienic"]

_MARK = "ʹ"  # a letter to Python, and to nobody else


def hygienic(make: Callable[..., Graph], sizes: Mapping[str, Any]) -> Graph:
    """`make(**sizes)`, where a symbol in a size is the caller's even if the graph has an axis of that name.

    Args:
        make: builds a graph of sizes, as `tensornet.layer` and `tensornet.model` do.
        sizes: axis name to an integer, a sympy expression or a text.

    Example:
        >>> import tensornet as tn
        >>> text = "y[b,o] = x[b,i] * W[o,i]"
        >>> graph = hygienic(lambda **sizes: tn.layer(text, inputs="x", **sizes), {"i": "o", "o": 4})
        >>> print(graph.parameters[0], "with", tn.parameter_formula(graph))
        W[o:o_1,i:o]: parameter with o*o_1
    """
    given = read_sizes(sizes)
    outer = sorted({name.name for size in given.values() for name in getattr(size, "free_symbols", ())})
    if not outer:
        return make(**given)
    marked = {symbol(name): symbol(name + _MARK) for name in outer}
    graph = make(
        **{name: size if isinstance(size, int) else size.xreplace(marked) for name, size in given.items()}
    )
    taken = set(outer) | _size_names(graph) | {axis for each in graph.equations for axis in _axes(each)}
    own: dict[str, str] = {}
    for name in outer:
        if name in _size_names(graph):
            own[name] = fresh(name, taken)
            taken.add(own[name])
    graph = _renamed(graph, own, own)
    captured = {name: fresh(name, taken) for name in outer if _captures(graph, name)}
    return _renamed(graph, {name + _MARK: name for name in outer}, captured)


def _size_names(graph: Graph) -> set[str]:
    """The names that sizes of the graph go by."""
    names = set(graph.bound) | set(graph.open_sizes)
    return names | {name for equation in graph.equations for name in sized_by_name(equation.right)}


def _axes(equation: Equation) -> set[str]:
    read = {axis for ref in references(equation.right) for axis in axes_of_index(ref.index)}
    return read | set(axes_of_index(equation.left))


def _captures(graph: Graph, name: str) -> bool:
    """Whether an equation that speaks of the caller's size has an axis of that name."""
    return any(
        name in _axes(equation)
        and any(
            isinstance(part, Size) and part.axis == name + _MARK for part in subexpressions(equation.right)
        )
        for equation in graph.equations
    )


def _renamed(graph: Graph, sizes: Mapping[str, str], axes: Mapping[str, str]) -> Graph:
    """The graph with sizes, and the axes in its equations, under other names."""
    if not sizes and not axes:
        return graph
    moved = {symbol(old): symbol(new) for old, new in sizes.items()}

    def size(value: Any) -> Any:
        return value if isinstance(value, int) else value.xreplace(moved)

    def spoken(part: Any) -> Any:
        if isinstance(part, Size):
            return replace(part, axis=sizes.get(part.axis, part.axis))
        return transform(part, spoken)

    leaves = tuple(
        replace(leaf, dims=tuple(tuple(Axis(a.name, size(a.size)) for a in dim) for dim in leaf.dims))
        for leaf in graph.leaves
    )
    equations = tuple(
        Equation(
            each.name,
            tuple(
                axes.get(entry, entry) if isinstance(entry, str) else tuple(axes.get(a, a) for a in entry)
                for entry in each.left
            ),
            spoken(relabel(each.right, axes)),
            each.place,
        )
        for each in graph.equations
    )
    named = tuple((sizes.get(name, name), size(value)) for name, value in graph.sizes)
    return Graph(leaves, equations, graph.outputs, named)
