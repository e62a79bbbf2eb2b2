"""Unification of weight sizes: those of the model and those of a weight's equations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ShapeError
from ..frontend.instantiate import Private, instance, names_of_sizes
from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..graph.shape_inference import Dim, dim_size
from ..graph.unify import Unifier
from ..sizes import are_equal, evaluate, name_of, size_names, solve_size, symbol


class ModelSizes:
    """The sizes of a model and of its new weights, which are added one after another."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        values: dict[str, set[Any]] = {}
        for part in graph.parts:
            for name in names_of_sizes(part):
                values.setdefault(name, set()).add(evaluate(symbol(name), part.bound))
        agreed = {name: next(iter(found)) for name, found in values.items() if len(found) == 1}
        bound = {name: value for name, value in agreed.items() if isinstance(value, int)}
        self.outer = Unifier(bound)
        self.opened = set(values) - set(bound)  # names with several values, or without one

    @property
    def bound(self) -> Mapping[str, Any]:
        """The sizes that have a value, including those of the weights added so far."""
        return {**self.graph.bound, **self.outer.bound}

    def joined(self, program: Graph, leaves: Mapping[str, Leaf], given: Mapping[str, Any]) -> Graph:
        """A program in the sizes of the model.

        Args:
            program: the equations of a weight.
            leaves: the leaves of the model that its output and its inputs stand for.
            given: the sizes that the user gave by name. A size that is its own name stays open.

        Raises:
            ShapeError: dimensions differ from those of the leaf in number or size, or a size is unknown.
        """
        private = Private(program)
        for name, leaf in leaves.items():
            if len(program.named[name]) != len(leaf.dims):
                count, fix = len(program.named[name]), "give it as many; a composite such as (a,b) is one"
                raise ShapeError(f"'{name}' has {count} dimension(s) here, and is '{leaf}'", fix=fix)
        waiting = [
            (name, each, size)
            for name, leaf in leaves.items()
            for ours, theirs in zip(program.named[name], leaf.dims, strict=True)
            for each, size in _alike(ours, theirs, given)
        ]
        for _ in range(len(waiting) + 1):
            waiting = [each for each in waiting if not self._solved(private, *each)]
        open_ones = {f"{name}@" for name, size in given.items() if size == symbol(name)}
        if unknown := _unknown(program, private) - open_ones:
            raise _missing(unknown, [ours for _, ours, _ in waiting], leaves[program.outputs[0]])
        private.adopt(self.outer, self.opened)
        sizes = {name: self.outer.resolve(private.moved(symbol(name))) for name in names_of_sizes(program)}
        made = instance(program, sizes, self.bound)
        for name, ours, size in waiting:  # dimensions with several open sizes
            own = self.outer.resolve(private.moved(dim_size(ours)))
            if not are_equal(own, size, self.bound):
                raise _unequal(name, ours, own, size)
        return made

    def _solved(self, private: Private, name: str, ours: Dim, size: Any) -> bool:
        """Unifies one dimension of the program with that of the model. Returns whether it is settled."""
        own = evaluate(private.value(private.moved(dim_size(ours))), self.graph.bound)
        other = evaluate(size, self.graph.bound)
        if not private.waits(own):
            if not are_equal(own, other, self.graph.bound):
                raise _unequal(name, ours, own, other)
            return True
        if not isinstance(size if name_of(own) else other, int):  # a name stands for a formula, known or not
            try:
                return private.solve(own, size)
            except ShapeError:
                raise _unequal(name, ours, own, other) from None
        if len(size_names(own)) > 1:
            return False
        found = solve_size(own, other)
        if found is None or not found[1]:
            raise _unequal(name, ours, own, other)
        private.bound[found[0]] = found[1]
        return True


def _alike(ours: Dim, theirs: Dim, given: Mapping[str, Any]) -> list[tuple[Dim, Any]]:
    """Pairs of equal size: the whole dimension, or each axis if the names agree and none has a given size."""
    names = [axis.name for axis in ours]
    if names == [axis.name for axis in theirs] and not given.keys() & set(names):
        return [((own,), axis.size) for own, axis in zip(ours, theirs, strict=True)]
    return [(ours, dim_size(theirs))]


def _unknown(program: Graph, private: Private) -> set[str]:
    """The private names whose size is unknown."""
    sizes = (axis.size for dims in program.named.values() for dim in dims for axis in dim)
    found = {name for size in sizes for name in _waiting(private.value(private.moved(size)))}
    for name in names_of_sizes(program):
        found |= _waiting(private.value(private.moved(symbol(name))))
    return found


def _waiting(size: Any) -> set[str]:
    return {name for name in size_names(size) if name.endswith("@")}


def _missing(names: set[str], waiting: Sequence[Dim], leaf: Leaf) -> ShapeError:
    """The error for unknown sizes. The last axis of a composite need not be given: it follows from the others."""
    unknown = {name.rstrip("@") for name in names}
    wanted = set(unknown)
    for dim in waiting:
        within = [axis.name for axis in dim if axis.name in wanted]
        wanted -= set(within[-1:])
    told = " and of ".join(f"'{name}'" for name in sorted(unknown))
    given = ", ".join(f"{name}=" for name in sorted(wanted))
    fix = f"give {given}, or name axes as the weight has them: {leaf}"
    return ShapeError(f"nothing tells the size of {told}", fix=fix)


def _unequal(name: str, ours: Dim, own: Any, other: Any) -> ShapeError:
    axes = ",".join(axis.name for axis in ours)
    shown = f"({axes})" if len(ours) > 1 else axes
    return ShapeError(
        f"sizes disagree: {shown} of '{name}' is {str(own).replace('@', '')}, and the weight has {other} there",
        fix=f"choose sizes that make {shown} {other}",
    )
