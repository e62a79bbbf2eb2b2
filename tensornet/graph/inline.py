"""Inlining: calls replaced by the equations of their block.

Axis names are local to an equation, and come along as they are. A size that an axis has by its name
alone (the `h` of `x[b,(h,d)]`) is the block's own, and its axis gets a number where the names of two meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ..language.equation import Equation
from ..language.expression import (
    Size,
    axes_of_index,
    fresh,
    occurring,
    relabel,
    rename_tensors,
    sized_by_name,
)
from ..sizes import evaluate, size_names, symbol
from .call import Apply, scoped
from .recurrences import read_later

if TYPE_CHECKING:
    from .graph import Graph

__all__ = ["inlined", "renamed_axes", "spoken_sizes"]


def inlined(graph: Graph, chosen: Callable[[Apply], bool]) -> Graph:
    """The graph with the chosen calls written out, and the chosen ones inside of those.

    Args:
        graph: the graph.
        chosen: told of a call, under the scope that it has in `graph`.
    """
    if not any(chosen(call) for call in graph.calls):
        return graph
    return _Inlining(graph, chosen).graph()


class _Inlining:
    """The body that grows, and the names that it has taken."""

    def __init__(self, graph: Graph, chosen: Callable[[Apply], bool]) -> None:
        self.whole, self.chosen = graph, chosen
        self.body: list[Equation | Apply] = []
        self.taken = {leaf.name for leaf in graph.leaves}
        for item in graph.body:
            self.taken.update(item.defines)
        self.meaning = {
            name: evaluate(symbol(name), graph.bound) for name in set(graph.bound) | _outer_sizes(graph)
        }
        self.sizes = dict(graph.sizes)

    def graph(self) -> Graph:
        """The finished graph."""
        names = {name: name for name in self.taken}
        self._place(self.whole, names, "", {})
        outputs = tuple(names[name] for name in self.whole.outputs)
        return replace(self.whole, body=tuple(self.body), outputs=outputs, sizes=tuple(self.sizes.items()))

    def _place(self, graph: Graph, names: dict[str, str], prefix: str, axes: Mapping[str, str]) -> None:
        """Puts what a graph computes at the end; `names` says what its tensors are called by now."""
        for name in read_later(graph.body, names):
            self._name(name, names, prefix)
        for item in graph.body:
            if isinstance(item, Equation):
                self._name(item.name, names, prefix)
                moved = renamed_axes(item, axes)
                right = rename_tensors(moved.right, names)
                self.body.append(replace(moved, name=names[item.name], right=right))
                continue
            for name in item.results:
                self._name(name, names, prefix)
            operands, results = ([names[each] for each in of] for of in (item.operands, item.results))
            call = replace(
                item, operands=tuple(operands), results=tuple(results), scope=scoped(prefix, item.scope)
            )
            if self.chosen(call):
                self._open(call, dict(zip(item.results, results, strict=True)), names)
            else:
                self.body.append(call)

    def _name(self, name: str, names: dict[str, str], prefix: str) -> None:
        if name not in names:
            names[name] = fresh(scoped(prefix, name), self.taken)
            self.taken.add(names[name])

    def _open(self, call: Apply, results: Mapping[str, str], names: dict[str, str]) -> None:
        """Writes a call out; a block that hands a tensor through makes no other of it."""
        block, inner = call.graph, call.names()
        for output, (local, name) in zip(block.outputs, results.items(), strict=True):
            if output in inner:
                names[local] = inner[output]
            else:
                inner[output] = name
        self._place(block, inner, call.scope, self._own_axes(block))

    def _own_axes(self, block: Graph) -> dict[str, str]:
        """Other names for axes of the block whose size, by name alone, is not that of the name here."""
        renamed: dict[str, str] = {}
        for name in sorted(block.by_name):
            size = evaluate(symbol(name), block.bound)
            chosen = name
            if self.meaning.get(name, size) != size:
                taken = set(self.meaning) | {axis for each in block.own for axis in each.axes}
                chosen = renamed[name] = fresh(name, taken)
            self.meaning[chosen] = size
            if name in block.bound and block.bound[name] != symbol(chosen):
                self.sizes.setdefault(chosen, block.bound[name])
        return renamed


def _outer_sizes(graph: Graph) -> set[str]:
    """The names of sizes that a graph, or a block in it, has from outside."""
    names: set[str] = set()
    for part in graph.parts():
        own = part.by_name & set(part.bound)
        for leaf in part.leaves:
            names.update(name for dim in leaf.dims for axis in dim for name in size_names(axis.size))
        for equation in part.own:
            names.update({*spoken_sizes(equation), *sized_by_name(equation.right)} - own)
        for size in part.bound.values():
            names.update(size_names(size))
    return names


def spoken_sizes(equation: Equation) -> Iterator[str]:
    """The sizes that an equation speaks of and that are those of none of its axes."""
    for part in equation.parts:
        if isinstance(part, Size) and part.axis not in equation.axes:
            yield part.axis


def renamed_axes(equation: Equation, names: Mapping[str, str]) -> Equation:
    """The equation with axes under other names, which occur nowhere in it."""
    if not set(names) & (occurring(equation.right) | set(axes_of_index(equation.left))):
        return equation
    left = tuple(
        names.get(entry, entry) if isinstance(entry, str) else tuple(names.get(axis, axis) for axis in entry)
        for entry in equation.left
    )
    return replace(equation, left=left, right=relabel(equation.right, names))
