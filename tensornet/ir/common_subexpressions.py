"""Common subexpression elimination, by hash-consing: equal nodes are one object, so none is computed twice."""

from __future__ import annotations

import copyreg
import weakref
from typing import Any

from ..ops.record import Element
from .node import Entries, Node, Operand, Size

__all__ = ["interned"]

_TABLE: weakref.WeakValueDictionary[Any, Node] = weakref.WeakValueDictionary()


def interned(
    op: str,
    sizes: tuple[Size, ...],
    operands: tuple[Operand, ...],
    result: Entries,
    shape: tuple[Size, ...],
    over: tuple[int, ...],
    options: tuple[tuple[str, Any], ...],
    element: Element,
) -> Node:
    """The node with these fields: one object for as long as it is referenced."""
    told = tuple((name, _written(value)) for name, value in options)
    key = (op, sizes, operands, result, shape, over, told, element)
    found = _TABLE.get(key)
    if found is None:
        found = _TABLE[key] = Node(op, sizes, operands, result, shape, over, options, element)
    return found


def _written(value: Any) -> Any:
    """The key that an option is compared by: 1, 1.0, True and -0.0 are different, and all nan are the same."""
    return (type(value), repr(value)) if isinstance(value, int | float | complex) else value


def _pickled(each: Node) -> tuple[Any, ...]:
    fields = (each.op, each.sizes, each.operands, each.result)
    return interned, (*fields, each.shape, each.over, each.options, each.element)


copyreg.pickle(Node, _pickled)
