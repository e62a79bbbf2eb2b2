"""Calls of blocks: their repetition along an axis, their scopes, and their names in a text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ..codec import document
from ..language.expression import fresh
from ..sizes import is_name
from .leaves import Leaf
from .shape_inference import Axis, Dim

__all__ = ["Along", "Called", "called_last", "names_of_blocks", "scoped", "shown_call", "told_apart"]

T = TypeVar("T")


class Called(Protocol):
    """A call of a block, as the modules below that of the graph know it."""

    @property
    def defines(self) -> tuple[str, ...]:
        """The tensors that it defines."""

    def names(self) -> dict[str, str]:
        """The caller's name of each tensor that it reads, by its name in the block."""

    def leaves(self) -> Iterator[Leaf]:
        """Its parameters and constants, under their names in the caller."""

    def returned(self, bound: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Dim, ...]]]:
        """Its results and their dimensions in the caller's sizes; `bound` holds those that have a value there."""


@document()
@dataclass(frozen=True)
class Along:
    """How a block is called along an axis: once for each position, with the states that the previous call left.

    The first inputs of the block are slices of operands at a position. The next inputs are the states.

    Attributes:
        axis: the axis, which comes first in each result that is stacked along it.
        cuts: for each operand that is sliced, the dimension that runs along the axis.
        states: for each state, the output of the block that is its next value; its operand is the initial value.
        back: whether it runs from the last position to the first.
        last: whether the last states are results too, after the stacked results.
    """

    axis: Axis
    cuts: tuple[int, ...]
    states: tuple[int, ...]
    back: bool
    last: bool = False

    def joined(self, results: int) -> int:
        """The number of results that are stacked along the axis, given the number of all results."""
        return results - (len(self.states) if self.last else 0)


def scoped(scope: str, name: str) -> str:
    """A name under a scope; either may be empty."""
    return f"{scope}.{name}" if scope and name else scope or name


def shown_call(results: Iterable[str], function: str, operands: Iterable[str], scope: str) -> str:
    """A call as a line of text."""
    given = [*operands, *([f"scope='{scope}'"] if scope else [])]
    return f"{', '.join(results)} = {function}({', '.join(given)})"


def names_of_blocks(scopes: Iterable[tuple[T, str]], taken: Iterable[str]) -> dict[T, str]:
    """The names of blocks in a text: the last word of the scope of the first call of each.

    Args:
        scopes: blocks, or keys that represent them, each with the scope of a call.
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


def told_apart(leaves: Iterable[Leaf], calls: Sequence[Called]) -> tuple[Leaf, ...]:
    """The leaves that no call declares, or that a call declares differently."""
    told = {leaf.name: leaf for call in reversed(calls) for leaf in call.leaves()}
    return tuple(leaf for leaf in leaves if told.get(leaf.name) != leaf)


def called_last(own: Iterable[Leaf], calls: Iterable[Called]) -> tuple[Leaf, ...]:
    """The leaves of a graph in the order of its text: its own leaves first, then those of its calls."""
    found = {leaf.name: leaf for leaf in own}
    for call in calls:
        for leaf in call.leaves():
            found.setdefault(leaf.name, leaf)
    return tuple(found.values())
