"""Calls of blocks: how one goes along an axis, under which scope it stands, and what a text calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ..codec import document
from ..language.expression import fresh
from ..sizes import is_name
from .leaves import Leaf
from .shape_inference import Axis

__all__ = ["Along", "called_last", "calls_late", "names_of_blocks", "scoped", "shown_call", "told_apart"]

T = TypeVar("T")


class Owner(Protocol):
    """What brings leaves of its own: a call."""

    def leaves(self) -> Iterator[Leaf]:
        """Its parameters and constants, as the caller has them."""


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


def told_apart(leaves: Iterable[Leaf], calls: Sequence[Owner]) -> tuple[Leaf, ...]:
    """Those of some leaves that calls do not tell, or tell otherwise."""
    told = {leaf.name: leaf for call in reversed(calls) for leaf in call.leaves()}
    return tuple(leaf for leaf in leaves if told.get(leaf.name) != leaf)


def called_last(own: Iterable[Leaf], calls: Iterable[Owner]) -> tuple[Leaf, ...]:
    """The leaves of a graph in the order that its text tells: its own ones, then those of its calls."""
    found = {leaf.name: leaf for leaf in own}
    for call in calls:
        for leaf in call.leaves():
            found.setdefault(leaf.name, leaf)
    return tuple(found.values())


def calls_late(
    items: Sequence[T], before: Callable[[T], Iterable[T]], is_call: Callable[[T], bool]
) -> Iterator[T]:
    """Items as they come, but each below those before it; calls in their order, and as late as can be (a topological
    order)."""
    calls, done = [each for each in items if is_call(each)], set[int]()
    waiting = [*items][::-1]
    while waiting:
        last = waiting[-1]
        missing = next((each for each in before(last) if id(each) not in done), None)
        if missing is None or id(last) in done:
            waiting.pop()
            if id(last) not in done:
                done.add(id(last))
                yield last
        elif is_call(missing):
            waiting.append(next(call for call in calls if id(call) not in done))
        else:
            waiting.append(missing)
