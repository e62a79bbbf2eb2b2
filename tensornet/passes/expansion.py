"""Expansion: functions that the backend lacks, written in terms of other functions."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from ..frontend.elaborate_ir import Expressions
from ..graph.shape_inference import Scope
from ..ir.node import Node, Operand, along, axes_of, substitute
from ..ir.positions import counted
from ..language.canonical import expanded
from ..language.expression import Call, Expression, Ref, flat, transform
from ..ops.protocols import left_of
from ..ops.table import FUNCTIONS
from ..sizes import product

__all__ = ["expand"]

COUNT = Ref("$count", ())
"""The number of positions that a function runs over."""


def expand(each: Node, supported: Collection[str]) -> Node:
    """The node of a function's expansion, if the backend lacks the function; else the node itself."""
    if not supported or each.op not in FUNCTIONS or _is_there(each.op, supported) or each.is_scalar:
        return each
    names = {axis: f"@{axis}" for axis in range(len(each.sizes))}
    table = {axis: along(name) for axis, name in names.items()}
    expressions, arguments = Expressions(None), list[Ref]()
    for n, (child, reads) in enumerate(each.operands):
        operand = Operand(child, substitute(reads, table))
        arguments.append(Ref(f"${n}", tuple(dict.fromkeys(map(str, axes_of(operand.reads))))))
        expressions.reads[arguments[-1]] = operand
    options = {name: Ref(f"${name}", ()) for name, _ in each.options}
    expressions.reads |= {options[name]: Operand(value) for name, value in each.options}
    expressions.reads[COUNT] = counted(product(each.sizes[axis] for axis in each.over))
    over = tuple(names[axis] for axis in each.over)
    call = Call(each.op, tuple(arguments), over, tuple((name, (ref,)) for name, ref in options.items()))
    left = left_of(tuple(names[axis] for axis in axes or ()) for axes in each.dims)
    sizes = {names[axis]: size for axis, size in enumerate(each.sizes)}
    return expressions.value(_in_others(call, supported), left, Scope(sizes))


def _in_others(part: Expression, supported: Collection[str]) -> Expression:
    """An expression in functions that the backend has."""
    changed = transform(part, partial(_in_others, supported=supported))
    if not isinstance(changed, Call) or _is_there(changed.function, supported):
        return part if changed is part else flat(changed)
    return _in_others(expanded(changed, COUNT), supported)


def _is_there(name: str, supported: Collection[str]) -> bool:
    """Whether a function stays: the backend has it, or Python an operator for it, or it has no expansion."""
    function = FUNCTIONS[name]
    return name in supported or bool(function.infix) or not function.expansion
