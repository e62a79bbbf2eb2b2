"""Functions of tensors and sizes: a model, a block, the body of a loop, a backward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..ops.table import FUNCTIONS
from ..sizes import Size as Formula
from ..sizes import put_in
from .build import node
from .common_subexpressions import interned
from .node import Affine, Entries, Gather, Node, Operand, Size

__all__ = ["Function", "Rule", "order", "over_operands", "over_others", "rebuilt"]


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


Rule: TypeAlias = "Callable[[Node], Node]"
"""A rewrite: returns the replacement of a node whose operands are rewritten already."""


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


def rebuilt(
    outputs: Iterable[Node],
    new: dict[Node, Node],
    rule: Rule = lambda each: each,
    sizes: Mapping[str, Size] = {},
) -> list[Node]:
    """Outputs with some of the nodes below them replaced.

    Args:
        outputs: the nodes.
        new: the replacements of some nodes; those of all other nodes are added.
        rule: a rewrite of each other node.
        sizes: the replacements of size names.
    """
    outputs = list(outputs)
    moved = functools.partial(put_in, values=sizes)
    for old in order(outputs):
        if old not in new:
            new[old] = rule(_copied(old, new, moved) if sizes else over_others(old, new))
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
    operands = tuple(Operand(new.get(each, each), reads) for each, reads in old.operands)
    rounds = old.op in FUNCTIONS and FUNCTIONS[old.op].rounds
    if kept or rounds or len(old.children) > len(operands) or not _alike(old.operands, operands):
        return _copied(old, new, lambda size: size, kept)
    return interned(old.op, old.sizes, operands, old.result, old.shape, old.over, old.options, old.element)


def _alike(old: Sequence[Operand], new: Sequence[Operand]) -> bool:
    """Whether new operands have the shapes and element types of the old ones; scalars must be the same nodes."""
    return all(
        one.node is two.node
        or (
            one.node.shape == two.node.shape
            and one.node.element is two.node.element
            and not (one.node.is_scalar or two.node.is_scalar)
        )
        for one, two in zip(old, new, strict=True)
    )


def over_operands(old: Node, operands: Sequence[Operand]) -> Node:
    """A node with other operands, read along its axes."""
    sizes = dict(enumerate(old.sizes))
    return node(old.op, sizes, operands, old.result, old.shape, old.over, old.options)


def _copied(
    old: Node,
    new: Mapping[Node, Node],
    moved: Callable[[Size], Size],
    kept: Mapping[Node, Sequence[int]] = {},
) -> Node:
    """A node with the nodes and the sizes in it replaced."""

    def entry(each: Affine | Gather) -> Affine | Gather:
        if isinstance(each, Gather):
            return Gather(*read(each.node, each.reads))
        return Affine(tuple((axis, moved(step)) for axis, step in each.terms), moved(each.offset))

    def read(each: Node, reads: Entries) -> Operand:
        dims = kept.get(each, range(len(reads)))
        return Operand(new.get(each, each), tuple(entry(reads[d]) for d in dims))

    def option(value: Any) -> Any:
        match value:
            case Node():
                return new.get(value, value)
            case Formula():
                return moved(value)
            case tuple():
                return tuple(map(option, value))
        return value

    return node(
        old.op,
        dict(enumerate(map(moved, old.sizes))),
        [read(*each) for each in old.operands],
        tuple(map(entry, old.result)),
        [*map(moved, old.shape)],
        old.over,
        tuple((name, option(value)) for name, value in old.options),
        old.element if old.is_scalar or not old.operands else None,
    )
