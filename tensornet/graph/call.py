"""Calls: a graph applied to tensors of another, under a scope."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ..codec import Scope, document
from ..language.expression import fresh
from ..sizes import is_name, put_in
from .leaves import Leaf
from .shape_inference import Axis, Dim

if TYPE_CHECKING:
    from .graph import Graph

__all__ = ["Along", "Apply", "called_last", "names_of_blocks", "scoped", "shown_call", "told_apart"]

T = TypeVar("T")


@document()
@dataclass(frozen=True)
class Along:
    """How a block is called along an axis: once for each position, with what the call before left.

    The first inputs of the block are what comes in at a position, the next ones the states.

    Attributes:
        axis: the axis, which is the first of each result.
        cuts: of each operand that comes in position by position, the dimension.
        states: for each state the output of the block that it is next; its operand is what it is first.
        back: whether it goes from the last position to the first.
        last: whether the last states are results too, behind those that are put together.
    """

    axis: Axis
    cuts: tuple[int, ...]
    states: tuple[int, ...]
    back: bool
    last: bool = False

    def joined(self, results: int) -> int:
        """How many of so many results are put together along the axis."""
        return results - (len(self.states) if self.last else 0)


@document()
@dataclass(frozen=True)
class Apply:
    """`z = encoder(x, scope='blocks.0')`: the results of a block, computed from tensors at hand.

    The block's axes are its own, its sizes those of the caller: two calls at equal sizes hold equal
    blocks, so that one is checked, planned and written once however often it is called.

    Attributes:
        graph: the block.
        operands: the tensors that it reads as its inputs, in order.
        results: what the caller calls its outputs, in order.
        scope: stands before the names of its parameters and constants in the caller.
        apart: whether it is planned as a call in any case, so that what is made in it is gone after it.
        along: the axis along which it is repeated, if it is; the results are the first of the block's outputs, and
            the last states where these are asked for.
    """

    graph: Graph
    operands: tuple[str, ...]
    results: tuple[str, ...]
    scope: Scope
    apart: bool = False
    along: Along | None = None

    @property
    def defines(self) -> tuple[str, ...]:
        """The tensors that it defines."""
        return self.results

    @property
    def made(self) -> Iterator[tuple[str, str]]:
        """Its results, each behind the output of the block that it is."""
        if self.along is None:
            yield from zip(self.graph.outputs, self.results, strict=True)
            return
        joined = self.along.joined(len(self.results))
        outputs = self.graph.outputs
        made = (*outputs[:joined], *(outputs[n] for n in self.along.states))
        yield from zip(made, self.results, strict=False)

    def carried(self) -> Iterator[tuple[str, str]]:
        """The states that it hands on, each before the output of the block that takes its place."""
        if self.along is not None:
            states = self.graph.inputs[len(self.along.cuts) :]
            outputs = (self.graph.outputs[n] for n in self.along.states)
            yield from zip((leaf.name for leaf in states), outputs, strict=False)

    def scoped(self, name: str) -> str:
        """What the caller calls a tensor of the block that is none of its inputs or outputs."""
        return scoped(self.scope, name)

    def leaves(self) -> Iterator[Leaf]:
        """The parameters and constants of the block, as the caller has them."""
        for leaf in self.graph.leaves:
            if leaf.kind != "input":
                yield replace(leaf, name=self.scoped(leaf.name))

    def names(self) -> dict[str, str]:
        """What the caller calls each leaf of the block."""
        inputs = (leaf.name for leaf in self.graph.inputs)
        own = {leaf.name: self.scoped(leaf.name) for leaf in self.graph.leaves}
        return {**own, **dict(zip(inputs, self.operands, strict=True))}

    def returned(self, bound: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Dim, ...]]]:
        """The dimensions of the results, in the caller's sizes: those of the block's own are put in.

        Args:
            bound: the sizes that have a value in the caller.
        """
        local = self.graph.sizes_beside(bound)
        first = () if self.along is None else ((self.along.axis,),)
        joined = len(self.results) if self.along is None else self.along.joined(len(self.results))
        for number, (output, result) in enumerate(self.made):
            dims = (*(first if number < joined else ()), *self.graph.named[output])
            yield result, tuple(tuple(Axis(a.name, put_in(a.size, local)) for a in dim) for dim in dims)

    def bound(self, sizes: Mapping[str, int]) -> Apply:
        """The call of the block with values for sizes that are open in it."""
        known = {name: value for name, value in sizes.items() if name in self.graph.open_sizes}
        return replace(self, graph=self.graph.bind(**known)) if known else self

    def shown(self, function: str) -> str:
        """The call as a line of text."""
        return shown_call(self.results, function, self.operands, self.scope)


def scoped(scope: str, name: str) -> str:
    """A name under a scope, either of which may be empty."""
    return f"{scope}.{name}" if scope and name else scope or name


def shown_call(results: Iterable[str], function: str, operands: Iterable[str], scope: str) -> str:
    """A call as a line of text."""
    given = [*operands, *([f"scope='{scope}'"] if scope else [])]
    return f"{', '.join(results)} = {function}({', '.join(given)})"


def names_of_blocks(scopes: Iterable[tuple[T, str]], taken: Iterable[str]) -> dict[T, str]:
    """What blocks are called in a text: by the last word of the scope that each is called under first.

    Args:
        scopes: blocks, or what stands for them, each with the scope of a call.
        taken: names that mean something else.
    """
    names: dict[T, str] = {}
    others = set(taken)
    for block, scope in scopes:
        if block not in names:
            words = [word for word in scope.split(".") if is_name(word)]
            names[block] = fresh(words[-1] if words else "block", others)
            others.add(names[block])
    return names


def told_apart(leaves: Iterable[Leaf], calls: Sequence[Apply]) -> tuple[Leaf, ...]:
    """Those of some leaves that calls do not tell, or tell otherwise."""
    told = {leaf.name: leaf for call in reversed(calls) for leaf in call.leaves()}
    return tuple(leaf for leaf in leaves if told.get(leaf.name) != leaf)


def called_last(own: Iterable[Leaf], calls: Iterable[Apply]) -> tuple[Leaf, ...]:
    """The leaves of a graph in the order that its text tells: its own ones, then those of its calls."""
    found = {leaf.name: leaf for leaf in own}
    for call in calls:
        for leaf in call.leaves():
            found.setdefault(leaf.name, leaf)
    return tuple(found.values())
