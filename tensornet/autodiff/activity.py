"""Activity analysis: which tensors depend on the leaves to differentiate by."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable

from ..errors import DtypeError, EquationError
from ..frontend.elaborate_ir import of_tensors
from ..graph.graph import Apply, Graph
from ..ir.node import Node
from ..language.equation import Equation
from ..language.expression import Call, Contraction, Expression, Literal, Ref
from ..ops.table import FUNCTIONS, Element

_DERIVATIVE = re.compile(r"\.(grad|tangent)(_\d+)?$")
"""The end of the name of a gradient or of a tangent."""

REAL = "give the real and the imaginary part as separate tensors"
"""The fix for complex numbers: the records of functions declare no derivatives for them."""


def check_real(graph: Graph) -> None:
    """Raises an error if a graph to differentiate contains complex numbers.

    Raises:
        DtypeError: an equation or a constant contains some.
    """
    for leaf in (leaf for part in graph.parts for leaf in part.constants):
        if leaf.value is not None and "c" in leaf.value.dtype:
            raise DtypeError(
                f"gradients need real numbers, and the constant '{leaf.name}' is complex", fix=REAL
            )
    for part in (part for block in graph.parts for equation in block.own for part in equation.parts):
        if isinstance(part, Literal) and isinstance(part.value, complex):
            raise DtypeError(f"gradients need real numbers, and {part.value} is complex", part.place, REAL)


def check_derivatives(graph: Graph) -> None:
    """Raises an error if a graph that is given complex numbers computes derivatives.

    Raises:
        DtypeError: it does, by the names of its tensors.
    """
    for name in sorted(graph.flat.needed()):
        if _DERIVATIVE.search(name):
            raise DtypeError(
                f"the derivative '{name}' needs real numbers, and complex ones are given", fix=REAL
            )


def check_rules(equations: Iterable[Equation], found: Container[str]) -> None:
    """Raises an error if gradients go through a function without a derivative.

    Raises:
        EquationError: there is such a function.
    """
    for part in (part for equation in equations for part in equation.parts):
        match part:
            case Call(name, arguments) if not FUNCTIONS[name].derivative and not FUNCTIONS[name].random:
                if any(changes(each, found) for each in arguments):
                    fix = f"register it with one: tn.register('{name}', derivative=…, …)"
                    raise EquationError(f"'{name}' has no derivative", part.place, fix)


def active(graph: Graph, wrt: Iterable[str], zeros: bool = False) -> set[str]:
    """The tensors of a graph that depend on some leaves; with `zeros`, also if the gradient is always 0."""
    found, elements = set(wrt), of_tensors(graph)
    before = -1
    while before != len(found):  # once, and again for recurrent tensors
        before = len(found)
        for item in graph.body:
            if isinstance(item, Apply):
                inside = active_inside(item, found, zeros)
                found.update(result for output, result in item.made if output in inside)
            elif elements[item.name] >= Element.WIDE and changes(item.right, found, zeros):
                found.add(item.name)
        if not graph.recurrences:
            break
    return found


def active_inside(call: Apply, found: Container[str], zeros: bool = False) -> set[str]:
    """The tensors of a block that depend, in a call, on the tensors already found."""
    leaves = {leaf for leaf, name in call.names().items() if name in found}
    while True:
        inside = active(call.graph, leaves, zeros)
        carried = {leaf for leaf, output in call.carried() if output in inside}
        if carried <= leaves:
            return inside
        leaves |= carried


def changes(expression: Expression, tensors: Container[str], zeros: bool = False) -> bool:
    """Whether a gradient goes from the value of an expression to one of some tensors; with `zeros`, also one of 0."""
    match expression:
        case Ref(name):
            return name in tensors
        case Contraction(factors):
            return any(changes(factor, tensors, zeros) for factor in factors)
        case Call(function, arguments):
            row = FUNCTIONS[function]
            is_real = zeros and row.yields not in ("truth", "position") and row.converts is not Element.WHOLE
            return any(
                is_real or not row.derivative or row.gradient(n) != "0"
                for n, argument in enumerate(arguments)
                if changes(argument, tensors, zeros)
            )
    return False


def is_active(each: Node, tensors: Container[Node]) -> bool:
    """Whether a gradient goes from a node to one of its operands in `tensors`."""
    if each.element < Element.WIDE:
        return False
    read = [n for n, operand in enumerate(each.operands) if operand.node in tensors]
    if each.op in ("contract", "copy"):
        return bool(read)
    row = each.function
    return any(not row.derivative or row.gradient(n) != "0" for n in read)
