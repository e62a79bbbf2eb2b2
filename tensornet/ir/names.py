"""Names of the parts of a function: a side table, and the choice of the nodes that get an equation."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..graph.leaves import Leaf
from ..language.expression import ELLIPSIS
from .equations import MADE, is_lone, is_position_operand, reads_of
from .function import order
from .node import Node, Operand

__all__ = ["Written", "Names"]


@dataclass(frozen=True)
class Names:
    """The names of the parts of a function in a graph: a side table, used only for printing.

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
        """The names after nodes are replaced; names of nodes not in `new`, and of axes that changed, are dropped."""
        tensors = {new[each]: name for each, name in self.tensors.items() if each in new}
        pairs = ((each, new[each], names) for each, names in self.axes.items() if each in new)
        axes = {other: names[: _alike(each, other)] for each, other, names in pairs}
        return replace(self, tensors=tensors, axes=axes)


def _alike(one: Node, other: Node) -> int:
    """The number of leading axes of equal size in two nodes with the same dimensions, else 0."""
    pairs = zip(one.sizes, other.sizes, strict=False) if one.dims == other.dims else ()
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


# ---------------------------------------------------------------------------- nodes that get an equation


class Written:
    """Determines which nodes of a function get an equation, and suggests names for them.

    Attributes:
        nodes: the nodes that the outputs need; named ones are in the order in which they were written.
        stems: the stems of numbered names, for nodes without a name of their own.
        called: the names of axes; an axis may take the name of a reader's axis that runs along it.
        lone: the nodes that are written inside their readers; `is_apart`, given a node and its readers, excludes some.
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
        """Passes the names of a node and of its axes to the nodes that it reads, where these have none."""
        stem = self.names.tensors.get(each) or self.stems.get(each, "v")
        self.stems |= dict.fromkeys(each.children, stem)
        self.called |= {(each, n): name for n, name in enumerate(self.names.axes.get(each, ()))}
        for child, reads in each.operands:
            for axes, entry in zip(child.dims, reads, strict=True):
                name = self.called.get((each, entry.axis), ELLIPSIS) if entry.axis is not None else ELLIPSIS
                if axes and len(axes) == 1 and name != ELLIPSIS:
                    self.called.setdefault((child, axes[0]), name)

    def _written_where_read(self, is_apart: Callable[[Node, Iterable[Node]], bool]) -> set[Node]:
        """The unnamed nodes that are read along plain axes: either once, or as positions of kernels."""
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
            if len(pairs) == 1 or all(is_position_operand(node, child) for node, _ in pairs):
                found.add(child)
        return found

    def name(self, each: Node | None, taken: Container[str], given: Container[str]) -> str:
        """A name for the tensor of a node: its own, if no other node has it.

        Args:
            each: the node; None for a tensor that no node reads.
            taken: the names that a new name must differ from.
            given: the names that nodes have already.
        """
        own = self.names.tensors.get(each, "") if each is not None else ""
        stem = own or (self.stems.get(each, "v") if each is not None else "v")
        numbered = (f"{stem}_{n}" for n in itertools.count(1))
        return own if own and own not in given else next(name for name in numbered if name not in taken)
