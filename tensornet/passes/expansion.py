"""Expansion: functions that the backend lacks, written in terms of other functions."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from ..frontend.elaborate_ir import NodeRule, scalar_expression
from ..ir.node import Node
from ..language.canonical import expanded
from ..language.expression import Call, Expression, flat, transform
from ..ops.record import left_of
from ..ops.table import FUNCTIONS


def expand(each: Node, supported: Collection[str]) -> Node:
    """The node of a function's expansion, if the backend lacks the function; else the node itself.

    Args:
        each: the node.
        supported: the operations that the backend has; empty if nothing will run, and then nothing is expanded.
    """
    if not supported or not each.function.name or _is_there(each.op, supported) or each.is_scalar:
        return each
    rule = NodeRule(each)
    arguments = tuple(rule.ref(f"${n}", operand) for n, operand in enumerate(each.operands))
    options = tuple((name, (scalar_expression(value),)) for name, value in each.options)
    whole = _in_others(Call(each.op, arguments, rule.over, options), supported, rule.count)
    return rule.made(whole, left_of(rule.named(axes or ()) for axes in each.dims))


def _in_others(part: Expression, supported: Collection[str], count: Expression) -> Expression:
    """An expression in functions that the backend has."""
    changed = transform(part, partial(_in_others, supported=supported, count=count))
    if not isinstance(changed, Call) or _is_there(changed.function, supported):
        return part if changed is part else flat(changed)
    return _in_others(expanded(changed, count), supported, count)


def _is_there(name: str, supported: Collection[str]) -> bool:
    """Whether a function stays: the backend has it, or Python an operator for it, or it has no expansion."""
    function = FUNCTIONS[name]
    return name in supported or bool(function.infix) or not function.expansion
