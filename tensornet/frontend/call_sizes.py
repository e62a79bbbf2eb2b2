"""Unification of a call: the sizes of a block and of its operands are made equal."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import Place, ShapeError
from ..graph.call import scoped
from ..graph.graph import Apply, Graph
from ..graph.leaves import Leaf
from ..graph.shape_inference import Axis, Dim, dim_size, resized
from ..graph.unify import Unifier
from ..language.expression import ELLIPSIS, Call
from ..sizes import evaluate, invert_size, name_of, product, put_in, size_names, symbol
from .instantiate import instance, names_of_sizes, written_out

__all__ = ["Matched", "Operand", "Private", "matched"]

Operand = tuple[str, tuple[Dim, ...] | None]
"""An operand of a call: its name and its dimensions, or None where they are those of the input."""


@dataclass
class Matched:
    """A call whose open sizes may still be solved by later calls and equations.

    Attributes:
        graph: the called graph, in its own sizes.
        private: these sizes, and their values in the caller's sizes.
        lead: the axes that `...` stands for in the call.
        operands: the names of the operands.
        scope: the prefix of the names of its parameters.
        results: the caller's names of its outputs.
    """

    graph: Graph
    private: Private
    lead: tuple[Axis, ...] | None
    operands: tuple[str, ...]
    scope: str
    results: tuple[str, ...] = ()

    def leaves(self) -> Iterator[Leaf]:
        """Its parameters and constants, in the caller's names and sizes."""
        for leaf in self.graph.leaves:
            if leaf.kind != "input":
                yield replace(leaf, name=scoped(self.scope, leaf.name), dims=self.private.dims(leaf.dims))

    def taken(self) -> Iterator[tuple[str, tuple[Dim, ...]]]:
        """Each operand, with the dimensions of the input in the caller's sizes."""
        for name, leaf in zip(self.operands, self.graph.inputs, strict=True):
            yield name, written_out(self.private.dims(leaf.dims), self.lead)

    def returned(self, bound: Mapping[str, Any] = {}) -> Iterator[tuple[str, tuple[Dim, ...]]]:
        """Each output, with its dimensions in the caller's sizes; see `Apply.returned`."""
        for output in self.graph.outputs:
            yield output, written_out(self.private.dims(self.graph.named[output]), self.lead)

    def applied(self, unifier: Unifier) -> Apply:
        """The finished call, with its block in the sizes of the caller."""
        sizes = {name: unifier.resolve(self.private.moved(symbol(name))) for name in self.private.private}
        lead = None if self.lead is None else unifier.dims((self.lead,))[0]
        block = instance(self.graph, sizes, unifier.bound, lead)
        return Apply(block, self.operands, self.results, self.scope)


def matched(
    graph: Graph,
    operands: Sequence[Operand],
    scope: str,
    unifier: Unifier,
    opened: set[str],
    place: Place | None = None,
    results: Sequence[tuple[Dim, ...]] = (),
) -> Matched:
    """Matches a graph with its operands; the results of the call have no names yet.

    Args:
        graph: the called graph.
        operands: one tensor for each input.
        scope: the prefix of the names of its parameters.
        unifier: the sizes of the caller; the call may solve some of them.
        opened: the caller's size names that are in use and have no value.
        place: where the call is written, if it is.
        results: the dimensions of the results, where they are known before.

    Raises:
        ShapeError: a tensor does not fit.
    """
    match = _Matching(unifier, Private(graph), place)
    lead = match.inputs(graph, operands)
    match.outputs(graph, results)
    match.private.adopt(unifier, opened)
    for each in match.waiting:
        each()
    return Matched(graph, match.private, lead, tuple(name for name, _ in operands), scope)


@dataclass
class _Matching:
    """Unifies the sizes of inputs and operands; `waiting` holds those left until all sizes have names."""

    unifier: Unifier
    private: Private
    place: Place | None
    waiting: list[Callable[[], bool]] = field(default_factory=list)

    def inputs(self, graph: Graph, operands: Sequence[Operand]) -> tuple[Axis, ...] | None:
        """Unifies all inputs with their operands, and returns the axes that `...` stands for."""
        lead: tuple[Axis, ...] | None = None
        for leaf, (name, offered) in zip(graph.inputs, operands, strict=True):
            if offered is None:
                continue
            wanted, given = self.private.dims(leaf.dims), offered
            at = next((n for n, dim in enumerate(wanted) if dim and dim[0].name == ELLIPSIS), None)
            if at is not None:
                end = at + len(given) - (len(wanted) - 1)
                if end < at:
                    raise self._wrong_rank(leaf, name, offered)
                found = tuple(Axis("_".join(a.name for a in dim), dim_size(dim)) for dim in given[at:end])
                lead = found if lead is None else self._same_lead(leaf, lead, found)
                self.private.solution[self.private.private.get("lead", "lead@")] = product(
                    axis.size for axis in lead
                )
                wanted, given = wanted[:at] + wanted[at + 1 :], given[:at] + given[end:]
            if len(wanted) != len(given):
                raise self._wrong_rank(leaf, name, offered)
            for ours, theirs in zip(wanted, given, strict=True):
                if not self._dim(leaf, name, ours, theirs):
                    self.waiting.append(functools.partial(self._dim, leaf, name, ours, theirs))
        return lead

    def outputs(self, graph: Graph, results: Sequence[tuple[Dim, ...]]) -> None:
        """Solves the sizes that are still open from the dimensions of the outputs."""
        for name, dims in zip(graph.outputs, results, strict=False):
            for ours, theirs in zip(self.private.dims(graph.named[name]), dims, strict=False):
                own = self.private.value(dim_size(ours))
                if self.private.waits(own):
                    self.private.solve(own, dim_size(theirs))

    def _same_lead(self, leaf: Leaf, lead: tuple[Axis, ...], found: tuple[Axis, ...]) -> tuple[Axis, ...]:
        """Unifies `lead` with the axes that `...` stands for in another input, and returns it."""
        try:
            for ours, theirs in zip(lead, found, strict=True):
                self.unifier.unify(ours.size, theirs.size, ours.name, None)
        except ValueError:  # a ShapeError is one, and so is a difference in number
            raise ShapeError(
                f"'...' stands for {_named(lead)} and for {_named(found)} in '{leaf.name}'", self.place
            ) from None
        return lead

    def _dim(self, leaf: Leaf, name: str, ours: Dim, theirs: Dim) -> bool:
        """Unifies one dimension of a layer's input and of a tensor; solves for an open size.

        Returns False if the layer's size is open and cannot be solved yet, as with several unknowns.
        """
        private, size = self.private, dim_size(theirs)
        own, axes = private.value(dim_size(ours)), "_".join(axis.name for axis in ours)
        try:
            if private.waits(own):
                return private.solve(own, size)
            self.unifier.unify(size, own, axes, None)
        except ShapeError:
            raise self._disagreement(leaf, name, axes, own, size) from None
        bare = name_of(dim_size(ours))
        if bare in private.bound:  # formulas chain by the model's name
            private.solution.setdefault(bare, size)
        return True

    def _disagreement(self, leaf: Leaf, name: str, axes: str, own: Any, size: Any) -> ShapeError:
        """The error for a dimension of a layer's input that has another size in a tensor."""
        bound = self.unifier.bound
        other, shown = evaluate(self.unifier.resolve(size), bound), _public(own)
        message = (
            f"sizes disagree: axis '{axes}' of the layer's input '{leaf.name}' is {shown},"
            f" and '{name}' has {other} there"
        )
        fix = f"build the layer with {axes}={other}, or pass a tensor of size {shown}"
        left = [] if isinstance(own, int) else [_public(each) for each in size_names(evaluate(own, bound))]
        if left:
            message += f", which leaves {', '.join(left)} unknown"
            fix = (
                f"give the layer {', '.join(f'{each}=…' for each in left)}, or give that"
                " dimension an axis and a size of its own, as in W[n]: parameter and n: 6"
            )
        return ShapeError(message, self.place, fix)

    def _wrong_rank(self, leaf: Leaf, name: str, dims: tuple[Dim, ...]) -> ShapeError:
        return ShapeError(
            f"the layer's input is '{leaf}' and '{name}' has {len(dims)} dimension(s)",
            self.place,
            "pass a tensor with as many dimensions",
        )


def _public(size: Any) -> str:
    return str(size).replace("@", "")


def _named(axes: tuple[Axis, ...]) -> str:
    return "(" + ", ".join(f"{axis.name}={axis.size}" for axis in axes) + ")"


# ---------------------------------------------------------------------------- hygiene


class Private(Unifier):
    """A graph's own sizes under private names, kept apart from its caller's until they are solved or adopted."""

    def __init__(self, graph: Graph) -> None:
        self.axes, names = _axis_names(graph), names_of_sizes(graph)
        self.private = {name: f"{name}@" for name in names}
        self.private_symbols = {name: symbol(private) for name, private in self.private.items()}
        super().__init__(
            {self.private[n]: value for n, value in graph.bound.items() if isinstance(value, int)}
        )
        for name in names - set(graph.bound) - self.axes:
            self.solution[self.private[name]] = symbol(name)
        for name, value in graph.bound.items():
            if not isinstance(value, int):
                self.solution[self.private[name]] = self.moved(value)

    def moved(self, size: Any) -> Any:
        """A size of the graph in private names; those that are solved are replaced by their values."""
        return self.resolve(put_in(size, self.private_symbols))

    def dims(self, dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """The dimensions in the sizes of the model."""
        return resized(dims, self.moved)

    def value(self, size: Any) -> Any:
        """A size in private names, as an integer where everything in it is known."""
        return evaluate(self.resolve(size), self.bound)

    def waits(self, own: Any) -> bool:
        """Whether a size contains names that are neither solved nor adopted."""
        return any(name.endswith("@") for name in size_names(own))

    def solve(self, own: Any, size: Any) -> bool:
        """Solves `own = size` for the only private name in it; returns whether that is possible."""
        names = [name for name in size_names(own) if name.endswith("@")]
        found = invert_size(own, names[0], size) if len(names) == 1 else None
        if found is None:  # there are several, or a rounding or a power cannot be inverted
            return False
        if not size_names(found) and not (isinstance(found, int) and found > 0):
            raise ShapeError("no size fits")
        self.solution[names[0]] = found
        return True

    def adopt(self, outer: Unifier, opened: set[str]) -> None:
        """Gives each size that is still private its own name in the model, or a new one if that is taken."""
        for name, private in sorted(self.private.items()):
            if private in self.solution:
                continue
            self.solution[private] = symbol(name)
            value = self.bound.get(private)
            if value is not None:
                numbered = (f"{name}_{n}" for n in itertools.count(1))
                names = itertools.chain((name,), (each for each in numbered if each not in self.axes))
                chosen = next(each for each in names if _fits(each, value, outer, opened))
                self.solution[private], outer.bound[chosen] = symbol(chosen), value


def _fits(name: str, value: int, outer: Unifier, opened: set[str]) -> bool:
    """Whether the model has no size of this name, or one of this value."""
    if name in outer.bound or name in outer.solution:
        return bool(evaluate(outer.resolve(symbol(name)), outer.bound) == value)
    return name not in opened


def _axis_names(graph: Graph) -> set[str]:
    """The names of axes in a graph. An open size with any other name came in a formula, and
    belongs to the model."""
    names = {axis.name for dims in graph.named.values() for dim in dims for axis in dim} | {"lead"}
    for equation in graph.own:
        names.update(equation.axes, *(part.axes for part in equation.parts if isinstance(part, Call)))
    return names
