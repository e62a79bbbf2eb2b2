"""Rules of functions' records over the operands of a node: expressions whose references are operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..graph.shape_inference import Scope, size_expression
from ..ir.node import Node, Operand, along, axes_of, substitute
from ..language.expression import Call, Expression, Literal, Ref, free_axes, product_of
from ..ops.protocols import Left
from ..sizes import product
from .elaborate_ir import Expressions


class NodeRule(Expressions):
    """Converts a rule to a node in terms of the axes of another.

    Attributes:
        each: the node whose operands the rule is about.
        over: the names of the axes that it runs over.
    """

    def __init__(self, each: Node) -> None:
        super().__init__(None)
        self.each, self.over = each, self.named(each.over)

    def named(self, axes: Iterable[int]) -> tuple[str, ...]:
        """The names of some axes of the node."""
        return tuple(f"@{axis}" for axis in axes)

    def ref(self, name: str, operand: Operand) -> Expression:
        """An operand as an expression: a number, or a reference of some name."""
        if operand.node.is_scalar:
            return scalar_expression(operand.node)
        axes = dict.fromkeys(axes_of(operand.reads))
        found, table = Ref(name, self.named(axes)), {axis: along(f"@{axis}") for axis in axes}
        self.reads[found] = Operand(operand.node, substitute(operand.reads, table))
        return found

    @property
    def count(self) -> Expression:
        """The number of positions that the node runs over."""
        return size_expression(product(self.each.sizes[axis] for axis in self.each.over))

    def operand(self, rule: Expression) -> Operand:
        """The node of a rule as an operand of the other node, along the axes that the rule has."""
        axes = [axis for axis in range(len(self.each.sizes)) if f"@{axis}" in free_axes(rule)]
        return Operand(self.made(rule, self.named(axes)), tuple(map(along, axes)))

    def made(self, rule: Expression, left: Left) -> Node:
        """The node of a rule, written along some axes."""
        sizes = {f"@{axis}": size for axis, size in enumerate(self.each.sizes)}
        return self.value(rule, left, Scope(sizes))


def scalar_expression(each: Node, known: Callable[[Any], Any] = lambda size: size) -> Expression:
    """A node without axes as an expression; `known` puts in the values of sizes."""
    match each.op:
        case "number":
            return Literal(each.attributes["value"])
        case "size":
            return size_expression(known(each.attributes["size"]))
    parts = tuple(scalar_expression(operand.node, known) for operand in each.operands)
    if each.op == "contract":
        return product_of([*parts])
    options = tuple((name, (scalar_expression(value, known),)) for name, value in each.options)
    return Call(each.op, parts, (), options)
