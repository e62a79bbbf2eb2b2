"""The rewriter: equations of a graph while they change, and cost-driven rewriting."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from ..errors import ShapeError
from ..graph.element_types import of_expression, of_tensors
from ..graph.graph import Apply, Graph
from ..graph.leaves import Leaf
from ..graph.shape_inference import Scope, result_dims, scope_inside, scope_of
from ..language.equation import Equation
from ..language.expression import Call, Expression, flat, fresh, occurring, transform
from ..ops.table import FUNCTIONS, RESERVED, Element
from ..sizes import evaluate, size_names

__all__ = ["Change", "Cost", "Draft", "between_calls", "by_kernels", "improved", "replaced"]

Cost: TypeAlias = "Callable[[Graph], float]"
"""The expected seconds of a graph."""

LEAST = 0.1
"""The share of the time of some equations that others in their place must save: seconds are expected ones, and
what libraries have a function for they have in the form that people write."""


@dataclass(frozen=True)
class Change:
    """Equations that may stand in the place of others; what both define has the same value.

    Attributes:
        made: the proposed ones, each before what reads it.
        replaced: the present ones.
        is_due: whether the present ones cannot stay, however long others take.
    """

    made: tuple[Equation, ...]
    replaced: tuple[Equation, ...]
    is_due: bool = False

    @property
    def asked(self) -> tuple[str, ...]:
        """What both define."""
        names = {equation.name for equation in self.replaced}
        return tuple(equation.name for equation in self.made if equation.name in names)


class Draft:
    """The equations of a graph while some are rewritten: who reads what, kept up at each change.

    A tensor that is there keeps its dimensions and the kind of its elements, so only an equation that
    changes has to be looked at again.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.dims = dict(graph.named)
        self.elements = of_tensors(graph)
        self._leaves = {leaf.name: leaf for leaf in graph.leaves if leaf.kind != "input"}
        self._equations: dict[str, Equation] = {}
        self._readers: dict[str, Counter[str]] = defaultdict(Counter)
        for equation in graph.own:
            self._add(equation)

    @functools.cached_property
    def _told(self) -> set[str]:
        """The open sizes that the shapes of what is given tell."""
        shapes = (evaluate(size, self.graph.bound) for leaf in self.graph.leaves for size in leaf.shape)
        return {name for size in shapes for name in size_names(size)}

    def __contains__(self, name: str) -> bool:
        return name in self._equations

    def __getitem__(self, name: str) -> Equation:
        return self._equations[name]

    # ---- what is there

    def readers(self, name: str) -> tuple[Equation, ...]:
        """The equations that read a tensor."""
        return tuple(self._equations[reader] for reader in +self._readers[name])

    def only_reader(self, name: str) -> Equation | None:
        """The equation that reads a tensor, if it alone does, once, and no caller wants it."""
        readers = self._readers[name]
        if name in self.graph.outputs or readers.total() != 1:
            return None
        return self._equations[next(iter(readers.elements()))]

    def scope(self, expression: Expression) -> Scope:
        """The sizes of the axes visible in an expression."""
        return scope_inside(expression, self.dims, self.graph.bound)

    def is_sized(self, part: Expression) -> bool:
        """Whether what dimensions are taken apart into in a part is as large as they are, if nothing else tells it."""
        try:
            scope_of(part, self.dims, self.graph.agree, self.graph.bound)
        except ShapeError:
            return False
        return True

    def stands_alone(self, part: Expression, inside: Scope) -> bool:
        """Whether the axes of a part have the same sizes where nothing else tells them.

        Args:
            part: some expression.
            inside: the sizes where it stands now.
        """
        alone, bound = self.scope(part), self.graph.bound
        return all(evaluate(inside[axis], bound) == evaluate(alone[axis], bound) for axis in occurring(part))

    def is_number(self, expression: Expression) -> bool:
        """Whether the value holds numbers of the working type: what others are may hang on the last bit."""
        return of_expression(expression, self.elements) is Element.NUMBER

    def fresh(self, stem: str, taken: Iterable[str] = ()) -> str:
        """A name that no tensor, size or function has, nor any of `taken`."""
        sizes = {*self.graph.bound, *self.graph.open_sizes}
        return fresh(stem, {*self.dims, *sizes, *FUNCTIONS, *RESERVED, *taken})

    # ---- changes

    def put(self, equation: Equation) -> None:
        """Another equation in the place of the one of its name; what nothing reads any more goes."""
        self.take(Change((equation,), (self._equations[equation.name],)))

    def take(self, change: Change) -> None:
        """Makes a change; what nothing reads any more goes."""
        former = [self._equations[name] for name in change.asked]
        for equation in change.made:
            if equation.name not in self.dims:
                self.dims[equation.name] = result_dims(equation, self.scope(equation.right))
                self.elements[equation.name] = of_expression(equation.right, self.elements)
            self._add(equation)
        for equation in former:
            self._forget(equation)

    def takes_best(self, changes: Iterable[Change], cost: Cost) -> bool:
        """Makes that of some changes which saves most time; whether one saves enough, or is due."""
        saved = [
            (seconds, change)
            for change in changes
            if (seconds := self._saves(change, cost)) > 0 or change.is_due
        ]
        if not saved:
            return False
        self.take(max(saved, key=lambda each: each[0])[1])
        return True

    def _saves(self, change: Change, cost: Cost) -> float:
        """The seconds that a change saves, if enough to be made, or if it is due."""
        before, after = (cost(self.part(each, change.asked)) for each in (change.replaced, change.made))
        return before - after if change.is_due or after < (1 - LEAST) * before else 0.0

    def part(self, equations: tuple[Equation, ...], outputs: tuple[str, ...]) -> Graph:
        """Some equations, present or proposed, as a graph by themselves: what they read is a parameter, constant if
        it is the same at every call, or given."""
        made = {equation.name for equation in equations}
        read = dict.fromkeys(ref.name for each in equations for ref in each.references)
        leaves = tuple(self._leaf(name) for name in read if name not in made)
        return Graph(leaves, equations, outputs, self.graph.sizes)

    def _leaf(self, name: str) -> Leaf:
        if name in self._leaves:
            return self._leaves[name]
        kind = "constant" if self._is_still(name) else "input"
        return Leaf(name, kind, self.dims[name], holds=self.elements[name])

    def _is_still(self, name: str) -> bool:
        """Whether a tensor is made of constants and positions alone, along axes as long as what is given tells."""
        if name not in self._equations:
            return name in self._leaves and self._leaves[name].kind == "constant"
        equation = self._equations[name]
        sizes = (evaluate(size, self.graph.bound) for size in self.scope(equation.right).sizes.values())
        return (
            all(self._told.issuperset(size_names(size)) for size in sizes)
            and all(
                FUNCTIONS[each.function].is_repeatable for each in equation.parts if isinstance(each, Call)
            )
            and all(self._is_still(ref.name) for ref in equation.references)
        )

    def finished(self) -> Graph:
        """The graph of what stands now, checked again as a whole."""
        equations = tuple(_before_readers(self._equations))
        return self.graph if equations == self.graph.own else replace(self.graph, body=equations)

    def _add(self, equation: Equation) -> None:
        self._equations[equation.name] = equation
        for ref in equation.references:
            self._readers[ref.name][equation.name] += 1

    def _forget(self, equation: Equation) -> None:
        for ref in equation.references:
            readers = self._readers[ref.name]
            readers[equation.name] -= 1
            if not readers.total() and ref.name in self and ref.name not in self.graph.outputs:
                self._forget(self._equations.pop(ref.name))


def improved(
    graph: Graph,
    equations: Iterable[Equation],
    changes: Callable[[Draft, Equation], Iterable[Change]],
    cost: Cost,
) -> Graph:
    """The graph after all changes to some equations, one after another, that save time.

    Args:
        graph: the graph.
        equations: which of its equations, in which order.
        changes: the ways to change an equation as it stands.
        cost: the expected seconds of a graph; it is asked about a few equations at a time.
    """
    draft = Draft(graph)
    for name in [equation.name for equation in equations]:
        while name in draft and draft.takes_best(changes(draft, draft[name]), cost):
            pass
    return draft.finished()


class Rewrite(Protocol):
    """A rewrite of a graph to what takes less time, by a cost and the kernels that there are."""

    def __call__(self, graph: Graph, cost: Cost, supported: Container[str] = ()) -> Graph: ...


def by_kernels(changes: Callable[[Draft, Equation, Container[str]], Iterable[Change]]) -> Rewrite:
    """The rewrite that makes, of the changes to each equation that some kernels allow, those that save time."""

    def rewrite(graph: Graph, cost: Cost, supported: Container[str] = ()) -> Graph:
        return improved(graph, graph.own, lambda draft, reader: changes(draft, reader, supported), cost)

    rewrite.__doc__ = changes.__doc__
    return rewrite


def _before_readers(equations: Mapping[str, Equation]) -> Iterable[Equation]:
    """The equations as they come, but each before what reads it."""
    done: dict[str, Equation] = {}
    for equation in equations.values():
        waiting = [equation]
        while waiting:
            reads = (ref.name for ref in waiting[-1].references)
            missing = [equations[name] for name in reads if name in equations and name not in done]
            if missing:
                waiting.append(missing[0])
            else:
                last = waiting.pop()
                done[last.name] = last
    return done.values()


def replaced(expression: Expression, part: Expression, other: Expression) -> Expression:
    """The expression with another in the place of a part; sums of sums, and so products, are one."""
    if expression is part:
        return other
    changed = transform(expression, lambda each: replaced(each, part, other))
    return expression if changed == expression else flat(changed)


# ---------------------------------------------------------------------------- beside calls


def between_calls(graph: Graph, change: Callable[[Graph], Graph]) -> Graph:
    """A rewrite of the equations of the graph itself; its calls stay as they are."""
    if not graph.calls:
        return change(graph)
    asked = dict.fromkeys((*graph.outputs, *(name for call in graph.calls for name in call.names().values())))
    made = {equation.name for equation in graph.own}
    outputs = tuple(name for name in asked if name in made)
    if not outputs:
        return replace(graph, body=graph.calls)
    elements = of_tensors(graph)
    leaves = [replace(leaf, holds=elements[leaf.name]) for leaf in graph.leaves]
    for call in graph.calls:
        leaves += [Leaf(name, "input", graph.named[name], holds=elements[name]) for name in call.results]
    changed = change(Graph(tuple(leaves), graph.own, outputs, graph.sizes))
    return replace(graph, body=tuple(_in_order(changed.own, graph.calls)))


def _in_order(equations: Iterable[Equation], calls: Iterable[Apply]) -> Iterator[Equation | Apply]:
    """Equations and calls, both in their order, each call before what reads its results."""
    waiting = list(calls)
    for equation in equations:
        read = {ref.name for ref in equation.references}
        while any(read.intersection(call.results) for call in waiting):
            yield waiting.pop(0)
        yield equation
    yield from waiting
