"""The vjp context: what the forward and backward passes share while they are written."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from ..graph.builder import Written
from ..graph.graph import Graph
from ..graph.shape_inference import Axis, Dim, Scope, dim_size
from ..language.expression import Expression, Ref, free_axes, fresh
from ..sizes import evaluate
from .activity import active, changes
from .window_pushdown import moved

__all__ = ["GRADIENT", "Pairs", "VjpContext"]

Pairs: TypeAlias = (
    "Callable[[Sequence[tuple[str, ...]], frozenset[str], Mapping[str, Any]], Iterable[tuple[int, int]]]"
)
"""Which factors to multiply, told of their axes, the axes that are kept, and sizes: two by two, products numbered
on."""

GRADIENT = "{}.grad"
"""What the gradient of a tensor is called."""


class VjpContext(Written):
    """The equations of the forward pass, and then those of the backward pass.

    Attributes:
        of: the results that have gradients.
        wrt: the leaves whose gradients are asked for.
        pairs: orders products of more than two factors.
        again: the calls of which nothing is kept, by their first results.
        active: the tensors that change with the leaves.
        needed: those that the results are made of.
        terms: what each tensor gets from its readers.
        uses: how many read it.
        states: that recurrences go round through, and their gradients.
        order: of the axes of what is taken apart.
        seeds: the gradients of results that come from outside.
        results: the gradients of the leaves.
    """

    def __init__(
        self,
        graph: Graph,
        of: tuple[str, ...],
        wrt: tuple[str, ...],
        pairs: Pairs,
        alone: bool,
        again: frozenset[str],
    ) -> None:
        super().__init__(graph)
        self.of, self.wrt, self.pairs, self.again = of, wrt, pairs, again
        self.active = active(graph, wrt)
        self.needed = replace(graph, outputs=of).needed() if of else frozenset[str]()
        self.terms = defaultdict[str, list[Expression]](list)
        self.uses = Counter[str]()
        self.states: dict[str, str] = {}
        self.order: tuple[str, ...] = ()
        seeded = [name for name in of if not (alone and not self.dims[name])]
        self.seeds = {name: self.fresh(GRADIENT.format(name)) for name in seeded}
        self.results = {name: self.fresh(GRADIENT.format(name)) for name in wrt}

    def axes(self, name: str) -> tuple[str, ...]:
        """An axis for each dimension of a tensor, under which its gradient is added up."""
        found: list[str] = []
        for dim in self.dims[name]:
            found.append(fresh("_".join(axis.name for axis in dim), set(found)))
        return tuple(found)

    def axis_sizes(self, name: str) -> Scope:
        """The sizes of these axes."""
        return Scope(dict(zip(self.axes(name), map(dim_size, self.dims[name]), strict=True)))

    def resolved(self, dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Dimensions as whoever calls the graph knows them: without names of sizes that are its own."""
        return tuple(tuple(Axis(axis.name, evaluate(axis.size, self.bound)) for axis in dim) for dim in dims)

    def tensor(self, expression: Expression, scope: Scope, name: str, last: Iterable[str] = ()) -> Ref:
        """A tensor of the value of an expression: first the axes of the equation, last those along which windows
        move, as convolutions take it."""
        axes = free_axes(expression)
        moving = {*last, *moved(expression)}
        ordered = (*(each for each in self.order if each in axes), *axes)
        left = tuple(dict.fromkeys(sorted(ordered, key=moving.__contains__)))
        self.put(name, left, expression, scope)
        if changes(expression, self.active):
            self.active.add(name)
            self.needed |= {name}
        return Ref(name, left)
