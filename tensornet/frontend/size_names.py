"""Hygiene of sizes: a block's own size names, kept apart from its caller's."""

from __future__ import annotations

from typing import Any

from ..errors import ShapeError
from ..graph.graph import Graph
from ..graph.shape_inference import Axis, Dim
from ..graph.unify import Unifier
from ..language.expression import Call, Ref, axes_of_index
from ..sizes import evaluate, invert_size, name_of, put_in, size_names, symbol
from .instantiate import names_of_sizes

__all__ = ["Private"]


class Private:
    """A graph's own sizes under private names, until they are solved or adopted."""

    def __init__(self, graph: Graph) -> None:
        self.axes = _axis_names(graph)
        names = names_of_sizes(graph)
        self.private = {name: f"{name}@" for name in names}
        self.private_symbols = {name: symbol(private) for name, private in self.private.items()}
        self.bound = {
            self.private[name]: value for name, value in graph.bound.items() if isinstance(value, int)
        }
        self.solution: dict[str, Any] = {
            self.private[name]: symbol(name) for name in names - set(graph.bound) - self.axes
        }
        for name, value in graph.bound.items():
            if not isinstance(value, int):
                self.solution[self.private[name]] = self.moved(value)

    def dims(self, dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """The dimensions in the sizes of the model."""
        return tuple(tuple(Axis(axis.name, self.moved(axis.size)) for axis in dim) for dim in dims)

    def moved(self, size: Any) -> Any:
        """A size of the graph in private names; those that are solved are replaced by their values."""
        return self._solved(put_in(size, self.private_symbols))

    def _solved(self, size: Any) -> Any:
        """The size with solved names replaced by their values, until none is left."""
        found = put_in(size, self.solution)
        again = any(name in self.solution and name.endswith("@") for name in size_names(found))
        return self._solved(found) if again else found

    def value(self, size: Any) -> Any:
        """A size in private names, as an integer where everything in it is known."""
        return evaluate(self._solved(size), self.bound)

    def leading(self, size: Any) -> None:
        """Sets the total size of all leading axes."""
        self.solution[self.private.get("lead", "lead@")] = size

    def waits(self, own: Any) -> bool:
        """Whether a size contains names that are neither solved nor adopted."""
        return any(name.endswith("@") for name in size_names(own))

    def solve(self, own: Any, size: Any) -> bool:
        """Solves `own = size` for the only private name in it; returns whether that is possible."""
        names = [name for name in size_names(own) if name.endswith("@")]
        if len(names) != 1:
            return False
        found = invert_size(own, names[0], size)
        if found is None:  # a rounding or a power cannot be inverted
            return False
        if not size_names(found) and not (isinstance(found, int) and found > 0):
            raise ShapeError("no size fits")
        self.solution[names[0]] = found
        return True

    def follow(self, own: Any, size: Any) -> None:
        """Gives a bare name that has a value the model's name for it, so that formulas chain."""
        name = name_of(own)
        if name in self.bound and name not in self.solution:
            self.solution[name] = size

    def adopt(self, outer: Unifier, opened: set[str]) -> None:
        """Gives each size that is still private its own name in the model, or a new one if that is taken."""
        for name, private in sorted(self.private.items()):
            if private not in self.solution:
                value = self.bound.get(private)
                chosen = name if value is None else self._free_name(name, value, outer, opened)
                if value is not None:
                    outer.bound[chosen] = value
                self.solution[private] = symbol(chosen)

    def _free_name(self, name: str, value: Any, outer: Unifier, opened: set[str]) -> str:
        """The name, or the first numbered one that the model does not use for another size."""
        chosen, number = name, 1
        while not self._fits(chosen, value, outer, opened) or (chosen != name and chosen in self.axes):
            chosen, number = f"{name}_{number}", number + 1
        return chosen

    def _fits(self, chosen: str, value: Any, outer: Unifier, opened: set[str]) -> bool:
        if chosen in outer.bound or chosen in outer.solution:
            return bool(evaluate(outer.resolve(symbol(chosen)), outer.bound) == value)
        return chosen not in opened


def _axis_names(graph: Graph) -> set[str]:
    """The names of axes in a graph. An open size with any other name came in a formula, and
    belongs to the model."""
    names = {axis.name for dims in graph.named.values() for dim in dims for axis in dim} | {"lead"}
    for equation in graph.own:
        for part in equation.parts:
            names.update(axes_of_index(part.index) if isinstance(part, Ref) else ())
            names.update(part.axes if isinstance(part, Call) else ())
    return names
