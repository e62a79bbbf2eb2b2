"""Names of the parts of a function: a side table, and which nodes of it have an equation of their own."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..graph.leaves import Leaf
from ..language.expression import ELLIPSIS
from .equations import MADE, is_lone, is_told, reads_of
from .function import order
from .node import Node, Operand

__all__ = ["Written", "Names"]


@dataclass(frozen=True)
class Names:
    """What a graph calls the parts of a function: a side table, for printing alone.

    Attributes:
        leaves: the inputs and constants as the graph has them; those without a value are the inputs, in order.
        outputs: the names of the results.
        sizes: the sizes that have a value.
        tensors: the names of nodes that equations define, and of constants.
        axes: the names of the axes of nodes.
    """

    leaves: tuple[Leaf, ...]
    outputs: tuple[str, ...]
    sizes: tuple[tuple[str, Any], ...]
    tensors: dict[Node, str] = field(repr=False)
    axes: dict[Node, tuple[str, ...]] = field(repr=False)

    def moved(self, new: Mapping[Node, Node]) -> Names:
        """The names of other nodes in the place of some; those of others are left out, as are those of other axes."""
        tensors = {new[each]: name for each, name in self.tensors.items() if each in new}
        pairs = ((each, new[each], names) for each, names in self.axes.items() if each in new)
        axes = {other: names[: _alike(each, other)] for each, other, names in pairs}
        return replace(self, tensors=tensors, axes=axes)


def _alike(one: Node, other: Node) -> int:
    """How many axes two nodes have alike, the first ones, if they have the same dimensions."""
    pairs = zip(one.sizes, other.sizes, strict=False) if one.dims == other.dims else ()
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


# ---------------------------------------------------------------------------- what gets an equation


class Written:
    """Which nodes of a function get an equation, and by which names they are asked for.

    Attributes:
        nodes: what the outputs need, those with names as they were written.
        stems: what a node is called, with a number, that has no name of its own.
        called: the names of axes, those of others that run along them included.
        lone: the nodes that are written where they are read: those that `is_apart` tells, with their readers, are not.
    """

    def __init__(
        self, names: Names, outputs: Sequence[Node], is_apart: Callable[[Node, Iterable[Node]], bool]
    ) -> None:
        self.names, self.outputs = names, tuple(outputs)
        needed = {*order(outputs)}
        self.nodes = order([*(each for each in names.tensors if each in needed), *outputs])
        self.stems: dict[Node, str] = dict(zip(outputs, names.outputs, strict=False))
        self.called = dict[tuple[Node, int], str]()
        for each in reversed(self.nodes):
            self._ask(each)
        self.lone = self._written_where_read(is_apart)

    def __iter__(self) -> Iterator[Node]:
        """The nodes that get an equation, in order."""
        return (each for each in self.nodes if not (each in self.lone or each.is_scalar or each.op in MADE))

    def _ask(self, each: Node) -> None:
        """Has what a node reads go by the names of the node and of its axes, where it has none of its own."""
        stem = self.names.tensors.get(each) or self.stems.get(each, "v")
        self.stems |= dict.fromkeys(each.children, stem)
        self.called |= {(each, n): name for n, name in enumerate(self.names.axes.get(each, ()))}
        for child, reads in each.operands:
            for axes, entry in zip(child.dims, reads, strict=True):
                name = self.called.get((each, entry.axis), ELLIPSIS) if entry.axis is not None else ELLIPSIS
                if axes and len(axes) == 1 and name != ELLIPSIS:
                    self.called.setdefault((child, axes[0]), name)

    def _written_where_read(self, is_apart: Callable[[Node, Iterable[Node]], bool]) -> set[Node]:
        """The nodes without a name that are read along axes alone: once, or as positions that kernels are told."""
        counts = Counter(each for node in self.nodes for each in node.children)
        reading: dict[Node, list[Operand]] = defaultdict(list)
        for node in self.nodes:
            for child, reads in reads_of(node):
                reading[child].append(Operand(node, reads))
        found: set[Node] = set()
        for child in reversed(self.nodes):
            pairs = reading[child]
            asked = child in self.outputs or child in self.names.tensors or counts[child] != len(pairs)
            if asked or not pairs or is_apart(child, (node for node, _ in pairs)):
                continue
            if not all(is_lone(node, child, reads) for node, reads in pairs):
                continue
            if len(pairs) == 1 or all(is_told(node, child) for node, _ in pairs):
                found.add(child)
        return found

    def name(self, each: Node | None, taken: Container[str], given: Container[str]) -> str:
        """A name for the tensor of a node: its own, if no other node has it.

        Args:
            each: the node; nothing for one that nobody reads.
            taken: the names that a new one may not be.
            given: those that nodes have by now.
        """
        own = self.names.tensors.get(each, "") if each is not None else ""
        stem = own or (self.stems.get(each, "v") if each is not None else "v")
        numbered = (f"{stem}_{n}" for n in itertools.count(1))
        return own if own and own not in given else next(name for name in numbered if name not in taken)
