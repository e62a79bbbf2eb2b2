"""The state of initialisation: the chosen starts, and the moments that follow."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import TensornetWarning
from ..graph.graph import Graph
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Ref,
    is_scalar,
    references,
    show,
    subexpressions,
)
from ..ops.moments import Moments
from ..ops.table import FUNCTIONS
from .moments import Estimator

__all__ = ["FAR", "Starts"]

FAR = 3.6
"""A mean square that is off by more than this factor (a deviation by nearly 2) gives a warning."""


class Starts:
    """The starts chosen so far for the parameters of a graph, and the moments that follow.

    Attributes:
        graph: the graph, without calls.
        known: the estimator, with the moments known so far.
        given: the leaves with a given value or start.
        leaves: the parameters and given leaves that each weight is computed from.
        found: the chosen starts.
        doubts: warnings about products that no start suits.
        line: the current equation.
    """

    line: Equation

    def __init__(self, graph: Graph) -> None:
        self.graph, self.known = graph, Estimator(graph)
        self.given = frozenset(leaf.name for leaf in graph.leaves if leaf.start or leaf.kind == "constant")
        weights = self.given.union(leaf.name for leaf in graph.parameters)
        self.leaves = {name: frozenset((name,)) for name in weights}
        self.found: dict[str, tuple[str, float]] = {}
        self.doubts: list[TensornetWarning] = []

    # ---- the parts of an expression

    def is_weight(self, expression: Expression) -> bool:
        """Whether a value depends on parameters and constants alone, and not on positions along an axis."""
        calls = (part for part in subexpressions(expression) if isinstance(part, Call))
        if any(FUNCTIONS[call.function].of_axis_alone for call in calls):
            return False
        names = [ref.name for ref in references(expression)]
        return bool(names) and all(name in self.leaves for name in names)

    def data(self, factors: Iterable[Expression]) -> list[Expression]:
        """The factors that are neither weights nor numbers."""
        return [each for each in factors if not is_scalar(each) and not self.is_weight(each)]

    def below(self, expression: Expression) -> frozenset[str]:
        """The parameters and constants that an expression is computed from, directly or through weights."""
        return frozenset().union(*(self.leaves.get(ref.name, ()) for ref in references(expression)))

    def free(self, expression: Expression) -> list[str]:
        """The parameters in an expression whose start is not chosen yet."""
        return sorted(name for name in self.below(expression) if name not in self.known.tensors)

    def linear(self, expression: Expression) -> set[str]:
        """The free parameters that can bring its mean square to any value: in a product, or in all terms of a sum."""
        match expression:
            case Ref(name) if name in self.known.definitions:
                return self.linear(self.known.definitions[name].right)
            case Ref():
                return {*self.free(expression)}
            case Contraction(factors):
                return set().union(*map(self.linear, factors))
            case Call(name, arguments) if name == "add" or FUNCTIONS[name].kind == "structure":
                found = [*map(self.linear, arguments)]
                return set().union(*found) if all(found) else set()
        return set()

    def behind(self, expression: Expression) -> Expression:
        """The expression that computes a weight, if one does; else the expression itself."""
        while isinstance(expression, Ref) and expression.name in self.known.definitions:
            expression = self.known.definitions[expression.name].right
        return expression

    # ---- choosing

    def define(self, equation: Equation) -> None:
        """Registers a weight that an equation computes. Its reader chooses the starts of its parameters."""
        self.known.definitions[equation.name] = equation
        self.leaves[equation.name] = self.below(equation.right)

    def start(self, name: str, kind: str, number: float) -> None:
        """Sets the start of a parameter."""
        self.found[name] = (kind, number)
        self.known.tensors[name] = Moments(number if kind == "value" else 0.0, number**2)
        for line in [line for line in self.known.lines if name in self.leaves[line]]:
            del self.known.lines[line]

    def doubt(self, term: Expression, what: str) -> None:
        """Records a warning that no start suits a product."""
        names = sorted(self.below(term) - self.given)
        fix = f"scale it by a number, normalize within it, or say how {', '.join(names)} start, by init="
        place = term.place or self.line.place
        self.doubts.append(TensornetWarning(f"in '{self.line.name}', {show(term)} {what}", place, fix))
