"""Functions of tensors and sizes: a model, a block, the body of a loop, a backward pass. Names of their parts."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..graph.leaves import Leaf
from .node import Affine, Entries, Gather, Node, Operand, interned, node


@dataclass(frozen=True)
class Function:
    """A program: outputs as nodes over inputs.

    Attributes:
        inputs: nodes of the op `input`; parameters are inputs too.
        outputs: the results.
        sizes: the size names that it uses, each an argument of a call.
    """

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    sizes: tuple[str, ...] = ()


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
        axes = {other: names[: _equal_axes(each, other)] for each, other, names in pairs}
        return replace(self, tensors=tensors, axes=axes)


def _equal_axes(one: Node, other: Node) -> int:
    """The number of leading axes of equal size in two nodes with the same dimensions, else 0."""
    pairs = zip(one.sizes, other.sizes, strict=False) if one.dims == other.dims else ()
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def order(outputs: Iterable[Node], known: Container[Node] = ()) -> list[Node]:
    """The nodes that outputs need, each after those that it reads (dead code elimination by construction).

    Args:
        outputs: the nodes.
        known: nodes that are available already; they are left out.
    """
    done: dict[Node, None] = {}
    waiting = [each for each in outputs if each not in known][::-1]
    while waiting:
        last = waiting[-1]
        children = last.children if last not in done else ()
        missing = [each for each in children if each not in done and each not in known]
        if missing:
            waiting += missing[::-1]
        else:
            done[waiting.pop()] = None
    return list(done)


def rebuilt(outputs: Iterable[Node], new: dict[Node, Node]) -> list[Node]:
    """Outputs with some of the nodes below them replaced.

    Args:
        outputs: the nodes.
        new: the replacements of some nodes; those of all other nodes are added.
    """
    outputs = list(outputs)
    for old in order(outputs):
        if old not in new:
            new[old] = over_others(old, new)
    return [new[each] for each in outputs]


def over_others(old: Node, new: Mapping[Node, Node], kept: Mapping[Node, Sequence[int]] = {}) -> Node:
    """A node with the nodes that it reads replaced.

    Args:
        old: the node.
        new: the replacements of nodes.
        kept: for nodes that it reads, the dimensions that their replacements still have.
    """
    if all(new.get(each, each) is each for each in old.children):
        return old
    operands = tuple([_read(*each, new, kept) for each in old.operands])
    if len(old.children) == len(operands) and not kept and _alike(old, operands):
        return interned(
            old.op, old.sizes, operands, old.result, old.shape, old.over, old.options, old.element
        )
    result = tuple([entry_over(each, new, kept) for each in old.result])
    pairs = (
        (name, new.get(value, value) if isinstance(value, Node) else value) for name, value in old.options
    )
    element = old.element if old.is_scalar or old.op in ("call", "item") else None
    return node(old.op, old.sizes, operands, result, old.shape, old.over, tuple(pairs), element)


def _read(
    each: Node, reads: Entries, new: Mapping[Node, Node], kept: Mapping[Node, Sequence[int]]
) -> Operand:
    own = tuple([reads[d] for d in kept[each]]) if each in kept else reads
    return Operand(new.get(each, each), tuple([entry_over(entry, new, kept) for entry in own]))


def entry_over(
    each: Affine | Gather, new: Mapping[Node, Node], kept: Mapping[Node, Sequence[int]] = {}
) -> Affine | Gather:
    """An entry with the nodes that hold its positions replaced."""
    return Gather(*_read(each.node, each.reads, new, kept)) if isinstance(each, Gather) else each


def _alike(old: Node, operands: Sequence[Operand]) -> bool:
    """Whether other operands change nothing else of a node; only of a few does the type depend on their values."""
    return not old.function.rounds and all(
        one is two
        or (one.shape == two.shape and one.element is two.element and not (one.is_scalar or two.is_scalar))
        for (one, _), (two, _) in zip(old.operands, operands, strict=True)
    )


def over_operands(old: Node, operands: Sequence[Operand]) -> Node:
    """A node with other operands, read along its axes."""
    if tuple(operands) == old.operands:
        return old
    return node(old.op, old.sizes, operands, old.result, old.shape, old.over, old.options)
