"""Element type inference: the element type of a node, from the record of its op and its operands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..ops.record import Element
from ..ops.structure import PAD
from ..ops.table import FUNCTIONS
from .node import Node, Operand

__all__ = ["of_node"]


def of_node(op: str, operands: Sequence[Operand], options: Mapping[str, Any], is_scattered: bool) -> Element:
    """The element type of the result of an operation.

    Args:
        op: `contract`, `copy`, or a function of the language.
        operands: its operands.
        options: its options.
        is_scattered: whether it is written at some positions only; zeros fill the others.
    """
    found = [each.node.element for each in operands]
    if op == "contract":
        return max(Element.WHOLE, Element.NUMBER if is_scattered else Element.TRUTH, *found)
    if op == "copy":
        fill = options.get("fill")
        return found[0] if fill is None else FUNCTIONS[PAD.name].element(found, list, [fill.element])
    function = FUNCTIONS[op]
    if function.rounds and _is_whole_quotient(operands[0].node):
        return Element.WHOLE
    return function.element(found, lambda: [_value(each.node) for each in operands])


def _value(node: Node) -> Any:
    """The value of a number that consists of literals alone; None for any other node."""
    if node.op == "number":
        return node.attributes["value"]
    if node.op == "size":
        return None
    values = [_value(each.node) for each in node.operands] if node.is_scalar else [None]
    if None in values:
        return None
    return math.prod(values) if node.op == "contract" else FUNCTIONS[node.op].scalar(*values)  # type: ignore[misc]


def _is_whole_quotient(node: Node) -> bool:
    """Whether the node divides integers by an integer scalar other than 0."""
    if node.op != "contract" or len(node.operands) < 2 or len(node.sizes) > len(node.shape):
        return False
    *above, last = (each.node for each in node.operands)
    if last.op != "reciprocal":
        return False
    below = last.operands[0].node
    whole = all(each.element <= Element.WHOLE for each in (*above, below))
    return whole and below.is_scalar and _value(below) != 0
