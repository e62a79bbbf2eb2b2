"""Unification of a call: the sizes of a block and of its operands are made equal."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import Place, ShapeError
from ..graph.call import scoped
from ..graph.graph import Apply, Graph
from ..graph.leaves import Leaf
from ..graph.shape_inference import Axis, Dim, dim_size
from ..graph.unify import Unifier
from ..language.expression import ELLIPSIS
from ..sizes import evaluate, product, size_names, symbol
from .instantiate import Sizes, instance, written_out
from .size_names import Private

__all__ = ["Matched", "Operand", "matched"]

Operand = tuple[str, tuple[Dim, ...]]
"""An operand of a call: its name and its dimensions."""


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

    def size_names(self) -> Iterator[str]:
        """The names in the caller's values of its sizes."""
        for size in self.private.solution.values():
            yield from size_names(size)

    def leaves(self) -> Iterator[Leaf]:
        """Its parameters and constants, in the caller's names and sizes."""
        for leaf in self.graph.leaves:
            if leaf.kind != "input":
                yield replace(leaf, name=scoped(self.scope, leaf.name), dims=self.private.dims(leaf.dims))

    def returned(self) -> Iterator[tuple[str, tuple[Dim, ...]]]:
        """Each output, with its dimensions in the caller's sizes."""
        for output in self.graph.outputs:
            yield output, written_out(self.private.dims(self.graph.named[output]), self.lead)

    def applied(self, unifier: Unifier, values: Sizes) -> Apply:
        """The finished call, with its block in the sizes of the caller."""
        sizes = {name: unifier.resolve(self.private.moved(symbol(name))) for name in self.private.private}
        lead = None if self.lead is None else unifier.dims((self.lead,))[0]
        block = instance(self.graph, tuple(sorted(sizes.items())), values, lead)
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
    private = Private(graph)
    match = _Matching(unifier, private, place)
    lead = match.inputs(graph, operands)
    match.outputs(graph, results)
    private.adopt(unifier, opened)
    for each in match.waiting:
        each()
    return Matched(graph, private, lead, tuple(name for name, _ in operands), scope)


class _Matching:
    """Unifies the sizes of inputs and operands; `waiting` holds those left until all sizes have names."""

    def __init__(self, unifier: Unifier, private: Private, place: Place | None) -> None:
        self.unifier, self.private, self.place = unifier, private, place
        self.waiting: list[Callable[[], bool]] = []

    def inputs(self, graph: Graph, operands: Sequence[Operand]) -> tuple[Axis, ...] | None:
        """Unifies all inputs with their operands, and returns the axes that `...` stands for."""
        lead: tuple[Axis, ...] | None = None
        for leaf, (name, dims) in zip(graph.inputs, operands, strict=True):
            wanted, offered = self.private.dims(leaf.dims), dims
            at = next((n for n, dim in enumerate(wanted) if dim and dim[0].name == ELLIPSIS), None)
            if at is not None:
                count = len(offered) - (len(wanted) - 1)
                if count < 0:
                    raise self._wrong_rank(leaf, name, dims)
                found = tuple(
                    Axis("_".join(axis.name for axis in dim), dim_size(dim))
                    for dim in offered[at : at + count]
                )
                lead = found if lead is None else self._same_lead(leaf, lead, found)
                self.private.leading(product(axis.size for axis in lead))
                wanted = wanted[:at] + wanted[at + 1 :]
                offered = offered[:at] + offered[at + count :]
            if len(wanted) != len(offered):
                raise self._wrong_rank(leaf, name, dims)
            for ours, theirs in zip(wanted, offered, strict=True):
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
        own = private.value(dim_size(ours))
        other = evaluate(self.unifier.resolve(size), self.unifier.bound)
        names = "_".join(axis.name for axis in ours)
        disagreement = ShapeError(
            f"sizes disagree: axis '{names}' of the layer's input '{leaf.name}' is {_public(own)},"
            f" and '{name}' has {other} there",
            self.place,
            f"build the layer with {names}={other}, or pass a tensor of size {_public(own)}",
        )
        if isinstance(own, int) and isinstance(other, int) and own != other:
            raise disagreement
        try:
            if private.waits(own):
                return private.solve(own, size)
            self.unifier.unify(size, own, names, None)
        except ShapeError:
            if names_left := [_public(name) for name in size_names(evaluate(own, self.unifier.bound))]:
                disagreement = ShapeError(
                    f"{disagreement.message}, which leaves {', '.join(names_left)} unknown",
                    self.place,
                    f"give the layer {', '.join(f'{name}=…' for name in names_left)}, or give that"
                    " dimension an axis and a size of its own, as in W[n]: parameter and n: 6",
                )
            raise disagreement from None
        private.follow(dim_size(ours), size)
        return True

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
