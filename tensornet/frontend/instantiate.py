"""Instantiation: a graph in the sizes of its caller."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..graph.graph import Apply, Graph, of_tensors_named
from ..graph.shape_inference import Axis, Dim, resized, size_names_of
from ..graph.unify import Unifier
from ..language.desugaring import expand_ellipsis, expand_index
from ..language.equation import Equation, renamed_axes, spoken_sizes
from ..language.expression import ELLIPSIS, Taken, sized_by_name
from ..language.parser import read_sizes
from ..sizes import put_in, size_names, symbol

__all__ = ["hygienic", "instance", "names_of_sizes", "written_out"]


def instance(
    graph: Graph,
    sizes: Mapping[str, Any],
    values: Mapping[str, Any] = {},
    lead: tuple[Axis, ...] | None = None,
) -> Graph:
    """The graph in the sizes of its caller.

    Args:
        graph: the graph.
        sizes: for every size name of the graph, its value in the names of the caller.
        values: the values of the caller's names, where they have one.
        lead: the axes that `...` stands for.
    """
    return _instance(graph, tuple(sorted(sizes.items())), tuple(sorted(values.items())), lead)


@functools.lru_cache(maxsize=1024)
def _instance(graph: Graph, sizes: Sizes, values: Sizes, lead: tuple[Axis, ...] | None) -> Graph:
    return _Instance(dict(sizes), dict(values), lead).of(graph)


def names_of_sizes(graph: Graph) -> set[str]:
    """Every size name that the graph uses."""
    names = set(graph.bound) | set(graph.open_sizes)
    for equation in graph.own:
        names.update(sized_by_name(equation.right), spoken_sizes(equation))
    return names


def written_out(dims: tuple[Dim, ...], lead: tuple[Axis, ...] | None) -> tuple[Dim, ...]:
    """Dimensions, with `...` replaced by one dimension for each axis that it stands for."""
    found: list[Dim] = []
    for dim in dims:
        leading = lead is not None and dim[:1] and dim[0].name == ELLIPSIS
        found.extend(((axis,) for axis in lead or ()) if leading else (dim,))
    return tuple(found)


Sizes = tuple[tuple[str, Any], ...]
"""Names of sizes, and their values: integers, or expressions in other names."""


@dataclass(frozen=True)
class _Instance:
    sizes: dict[str, Any]
    values: dict[str, Any]
    lead: tuple[Axis, ...] | None

    def of(self, graph: Graph) -> Graph:
        """The graph, with its sizes put in."""
        leaves = tuple(replace(leaf, dims=self._dims(leaf.dims)) for leaf in graph.leaves)
        by_name = graph.by_name
        arriving = {name for size in self.sizes.values() for name in size_names(size)}
        axes = self._giving_way(graph, by_name, arriving)
        put = _Simultaneous(
            {axes.get(name, name): size for name, size in self.sizes.items() if size != symbol(name)}
        )
        body = tuple(
            self._call(graph, item)
            if isinstance(item, Apply)
            else self._equation(renamed_axes(item, axes), put)
            for item in graph.body
        )
        local = {axes.get(name, name): self.sizes[name] for name in by_name}
        known = {name: size for name, size in local.items() if size != symbol(name)}
        used = size_names_of(dim for leaf in leaves for dim in leaf.dims)
        used |= {name for size in known.values() for name in size_names(size)} | set(local)
        for item in body:
            used.update(item.graph.bound if isinstance(item, Apply) else spoken_sizes(item))
        values = {name: self.values[name] for name in used - set(known) if name in self.values}
        names = _tensors_giving_way(graph, body)
        return replace(
            graph,
            leaves=tuple(replace(leaf, name=names.get(leaf.name, leaf.name)) for leaf in leaves),
            body=tuple(of_tensors_named(item, names) for item in body) if names else body,
            outputs=tuple(names.get(name, name) for name in graph.outputs),
            sizes=tuple({**known, **values}.items()),
        )

    def _giving_way(self, graph: Graph, by_name: frozenset[str], arriving: set[str]) -> dict[str, str]:
        """New names for axes with a size of their own, if their name is also one of the caller's sizes."""
        taken = Taken(arriving.union(*(equation.axes for equation in graph.own)))
        clashing = (name for name in sorted(by_name & arriving) if self.sizes[name] != symbol(name))
        return {name: taken.fresh(name) for name in clashing}

    def _dims(self, dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Dimensions in the caller's sizes, with `...` expanded."""
        return written_out(resized(dims, self._size), self.lead)

    def _size(self, size: Any) -> Any:
        return put_in(size, self.sizes)

    def _equation(self, equation: Equation, put: Unifier) -> Equation:
        if self.lead is not None:
            names = tuple(map(Taken(equation.axes).fresh, (axis.name for axis in self.lead)))
            left, right = expand_index(equation.left, names), expand_ellipsis(equation.right, names)
            equation = replace(equation, left=left, right=right)
        return put.equation(equation)

    def _call(self, graph: Graph, call: Apply) -> Apply:
        """A call in the graph; its block uses size names of the graph, and some of its own."""
        inner: dict[str, Any] = {}
        for name in names_of_sizes(call.graph):
            known = call.graph.bound.get(name, symbol(name))
            is_same = graph.bound.get(name, symbol(name)) == known
            inner[name] = self._size(symbol(name) if is_same else known)
        return replace(call, graph=instance(call.graph, inner, self.values))


def _tensors_giving_way(graph: Graph, body: Sequence[Equation | Apply]) -> dict[str, str]:
    """New names for tensors whose name is now also a size that equations mention.

    Parameters and constants keep their names, by which the caller knows them.
    """
    spoken = {name for item in body if isinstance(item, Equation) for name in spoken_sizes(item)}
    kept = {leaf.name for leaf in graph.leaves if leaf.kind != "input"}
    taken = Taken((*graph.named, *spoken))
    return {name: taken.fresh(name) for name in sorted((spoken & set(graph.named)) - kept)}


class _Simultaneous(Unifier):
    """Substitutes sizes once, and not again in the substituted sizes."""

    def __init__(self, solution: dict[str, Any]) -> None:
        super().__init__({}, solution)

    def resolve(self, size: Any) -> Any:
        return put_in(size, self.solution)


# ---------------------------------------------------------------------------- symbols of a caller

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
    taken = Taken({*outer, *names}.union(*(equation.axes for equation in graph.own)))
    moved = {name + _MARK: symbol(name) for name in outer}
    moved |= {name: symbol(taken.fresh(name)) for name in outer if name in names}
    values = {name: size for name, size in graph.bound.items() if isinstance(size, int)}
    formulas = {name: size for name, size in graph.bound.items() if name not in values}
    found = {name: put_in(formulas.get(name, symbol(name)), moved) for name in names}
    known = {str(found[name]): value for name, value in values.items()}
    return instance(graph, found, known)
