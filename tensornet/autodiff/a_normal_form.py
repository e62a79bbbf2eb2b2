"""A-normal form: products of more than two tensors become products of two.

The common parts of the derivatives of several factors are then tensors, and are computed once. Random draws become
masks of their own, the same in both passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from ..ir.equations import MADE
from ..ir.function import order, over_others
from ..ir.node import Axis, Node, Operand, Size, along, axes_of, met_axes, node, number
from ..ir.rewriting import Facts, Program
from ..ops.table import CONVERSIONS, FUNCTIONS, Element
from ..sizes import evaluate
from .activity import is_active
from .window_pushdown import before_windows, moved, product_of

Pairs: TypeAlias = (
    "Callable[[Sequence[tuple[str, ...]], frozenset[str], Mapping[str, Any]], Iterable[tuple[int, int]]]"
)
"""Orders a product: the pairs of factors to multiply, given their axes, the axes that are kept, and sizes. Each product
gets the next number."""


def take_apart(program: Program, active: set[Node], pairs: Pairs) -> Program:
    """A program in A-normal form wherever gradients go through it.

    Args:
        program: the program.
        active: the nodes to differentiate by; all nodes that depend on them are added.
        pairs: orders products of more than two factors.
    """
    bound = dict(program.names.sizes)
    turned, new, count = _turned(program), dict[Node, Node](), Counter[Node]()
    axes = dict[Node, tuple[str, ...]]()
    facts = Facts(count, program.same)
    for old in program.nodes:
        each = over_others(old, new, turned)
        if old in turned:
            each = _in_order(each, turned[old])
        if is_active(each, active):
            if each.op in FUNCTIONS and FUNCTIONS[each.op].random:
                each = _masked(each)
            elif each.op == "contract":
                called = program.names.axes.get(old, ())
                each = _in_pairs(each, facts, bound, pairs, active, dict(enumerate(called)), axes)
            elif len(each.over) > 1 and FUNCTIONS[each.op].one_by_one:
                each = _one_by_one(each, active)
            active.add(each)
        new[old] = each
        count[each] += program.readers[old]
    return program.over(new, axes)


def _turned(program: Program) -> dict[Node, tuple[int, ...]]:
    """For nodes without a name, the dimensions in the order of their reader: they become tensors as well."""
    found = dict[Node, tuple[int, ...]]()
    for each in reversed(program.nodes):
        dims = found.get(each, range(len(each.result)))
        places = {axis: n for n, axis in enumerate(axes_of(tuple(each.result[d] for d in dims)))}
        for child, reads in each.operands:
            lone = program.readers[child] == 1 and child not in program.names.tensors
            axes = [entry.axis for entry in reads]
            if not lone or child.op in MADE or child.is_scalar or "fill" in child.attributes or None in axes:
                continue
            order = tuple(sorted(range(len(axes)), key=lambda d: places.get(axes[d], len(places))))
            if order != (*range(len(axes)),):
                found[child] = order
    return found


def _in_order(each: Node, dims: Sequence[int]) -> Node:
    """A node with its dimensions in another order."""
    result, shape = tuple(each.result[d] for d in dims), [each.shape[d] for d in dims]
    return node(each.op, dict(enumerate(each.sizes)), each.operands, result, shape, each.over, each.options)


def _masked(each: Node) -> Node:
    """A random node as a choice by a mask of truth values; the mask is drawn from ones."""
    sizes = dict(enumerate(each.sizes))
    operand, *rest = each.operands
    axes = tuple(map(along, dict.fromkeys(axes_of(operand.reads))))
    one = node(CONVERSIONS[Element.NUMBER], {}, [Operand(number(1))])
    ones = Operand(node("copy", sizes, [Operand(one)], axes), axes)
    drawn = Operand(node(each.op, sizes, [ones, *rest], axes, None, (), each.options), axes)
    mask = node(CONVERSIONS[Element.TRUTH], sizes, [drawn, Operand(number(0))], axes)
    kept = FUNCTIONS[each.op].drawn
    return node(kept, sizes, [Operand(mask, axes), operand, *rest], each.result, each.shape, (), each.options)


def _one_by_one(each: Node, active: set[Node]) -> Node:
    """A function that runs over several axes one after another, as one call for each axis."""
    sizes, row = dict(enumerate(each.sizes)), FUNCTIONS[each.op]
    operand, *rest = each.operands
    for axis in each.over[:-1]:
        axes = dict.fromkeys(axes_of(operand.reads))
        left = tuple(along(a) for a in axes if a != axis or not row.leaves_out((str(axis),)))
        operand = Operand(node(each.op, sizes, [operand, *rest], left, None, (axis,), each.options), left)
        active.add(operand.node)
    return node(each.op, sizes, [operand, *rest], each.result, each.shape, each.over[-1:], each.options)


def _in_pairs(
    each: Node,
    facts: Facts,
    bound: Mapping[str, Any],
    pairs: Pairs,
    active: set[Node],
    called: Mapping[Axis, str],
    axes: dict[Node, tuple[str, ...]],
) -> Node:
    """A product of two tensors, which are products of others: an axis is summed as soon as nothing else has it."""
    sizes: dict[Axis, Size] = dict(enumerate(each.sizes))
    numbers = [factor for factor in each.operands if factor.node.is_scalar]
    factors = [factor for factor in each.operands if not factor.node.is_scalar]
    kept = {*axes_of(each.result), *each.over}
    if len(factors) > 2:
        factors = before_windows(factors, kept, sizes, facts, bound)
        _note(factors, active, facts.readers)
    if len(factors) > 2:
        names: dict[Axis, str] = {axis: f"{n:05}" for n, axis in enumerate(sizes)}
        read = [tuple(names[axis] for axis in dict.fromkeys(axes_of(factor.reads))) for factor in factors]
        told = {names[axis]: evaluate(size, bound) for axis, size in sizes.items()}
        waiting, moving = dict(enumerate(factors)), moved(factors, sizes, facts)
        ordered = pairs(read, frozenset(names[axis] for axis in kept), told)
        for n, (one, other) in enumerate(ordered, len(factors)):
            if len(waiting) == 2:
                break
            pair = (waiting.pop(one), waiting.pop(other))
            outside = kept.union(*(axes_of(factor.reads) for factor in waiting.values()))
            waiting[n] = made = product_of(pair, outside, sizes, moving)
            _note([made], active, facts.readers)
            met = met_axes(pair, made.reads, ())
            if called.keys() >= {*met}:
                axes.setdefault(made.node, tuple(called[axis] for axis in met))
        factors = [*waiting.values()]
    if len(numbers) + len(factors) == len(each.operands):
        return each
    return node("contract", sizes, [*numbers, *factors], each.result, each.shape, each.over)


def _note(made: Iterable[Operand], active: set[Node], known: Container[Node]) -> None:
    """Adds the active ones of new products to `active`, and those of the products inside of them."""
    active.update(each for each in order((factor.node for factor in made), known) if is_active(each, active))
