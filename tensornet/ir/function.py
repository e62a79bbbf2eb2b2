"""Functions of tensors and sizes: a model, a block, the body of a loop, a backward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..sizes import Size as Formula
from ..sizes import put_in
from .build import node
from .node import Affine, Entries, Gather, Node, Operand, Size

__all__ = ["Function", "applied", "order", "rebuilt", "rewritten"]


@dataclass(frozen=True)
class Function:
    """A program: outputs as nodes over inputs.

    Attributes:
        inputs: nodes of the op `input`; parameters are inputs too.
        outputs: the results.
        sizes: the names that sizes in it speak of, each an argument of a call.
    """

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    sizes: tuple[str, ...] = ()


Rule: TypeAlias = "Callable[[Node], Node]"
"""A rewrite: another node in the place of one whose operands are rewritten."""


def order(outputs: Iterable[Node]) -> list[Node]:
    """The nodes that outputs need, each after those that it reads (dead code elimination by construction)."""
    done: dict[Node, None] = {}
    waiting = list(outputs)[::-1]
    while waiting:
        last = waiting[-1]
        missing = [each for each in last.nodes() if each not in done] if last not in done else []
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
    """Outputs over other nodes.

    Args:
        outputs: the nodes.
        new: what stands in the place of some nodes; those that are rebuilt are added.
        rule: a rewrite of each other node.
        sizes: what stands in the place of names of sizes.
    """
    outputs = list(outputs)
    moved = functools.partial(put_in, values=sizes)
    for old in order(outputs):
        if old not in new:
            same = not sizes and all(new[each] is each for each in old.nodes())
            new[old] = rule(old if same else _copied(old, new, moved))
    return [new[each] for each in outputs]


def _copied(old: Node, new: Mapping[Node, Node], moved: Callable[[Size], Size]) -> Node:
    """A node over other nodes and sizes."""

    def entry(each: Affine | Gather) -> Affine | Gather:
        if isinstance(each, Gather):
            return Gather(new[each.node], entries(each.reads))
        return Affine(tuple((axis, moved(step)) for axis, step in each.terms), moved(each.offset))

    def entries(every: Entries) -> Entries:
        return tuple(map(entry, every))

    def option(value: Any) -> Any:
        match value:
            case Node():
                return new[value]
            case Formula():
                return moved(value)
            case tuple():
                return tuple(map(option, value))
        return value

    return node(
        old.op,
        dict(enumerate(map(moved, old.sizes))),
        [Operand(new[each.node], entries(each.reads)) for each in old.operands],
        entries(old.result),
        [*map(moved, old.shape)],
        old.over,
        tuple((name, option(value)) for name, value in old.options),
        old.element if old.op in ("call", "scan", "item") or old.is_scalar or not old.operands else None,
    )


def rewritten(function: Function, rule: Rule) -> Function:
    """The function with a rewrite applied to each of its nodes, from the inputs on."""
    new = {each: each for each in function.inputs}
    return Function(function.inputs, tuple(rebuilt(function.outputs, new, rule)), function.sizes)


def applied(function: Function, given: Sequence[Node], sizes: Sequence[Size] = ()) -> list[Node]:
    """The outputs of a function of tensors and sizes: a call written out (inlining)."""
    new = dict(zip(function.inputs, given, strict=True))
    return rebuilt(function.outputs, new, sizes=dict(zip(function.sizes, sizes, strict=True)))
