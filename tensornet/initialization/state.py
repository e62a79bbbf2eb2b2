"""The state of initialisation: scales that are settled, and the moments that follow."""

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
"""A mean square this many times too large or too small, a deviation nearly twice, is worth a word."""


class Starts:
    """What is settled of the parameters of a graph, and what follows from it.

    Attributes:
        graph: the graph, without calls.
        known: the moments of every tensor that has some yet.
        given: the leaves whose values or starts are told.
        leaves: the parameters and given leaves that each weight is made of.
        found: the starts that are chosen.
        doubts: of which products no start is right.
        line: the equation that is read now.
    """

    line: Equation

    def __init__(self, graph: Graph) -> None:
        self.graph, self.known = graph, Estimator(graph)
        self.given = frozenset(leaf.name for leaf in graph.leaves if leaf.start or leaf.kind == "constant")
        weights = self.given.union(leaf.name for leaf in graph.parameters)
        self.leaves = {name: frozenset((name,)) for name in weights}
        self.found: dict[str, tuple[str, float]] = {}
        self.doubts: list[TensornetWarning] = []

    # ---- what an expression is made of

    def is_weight(self, expression: Expression) -> bool:
        """Whether nothing but parameters and constants goes into the value, and no axis of the data."""
        calls = (part for part in subexpressions(expression) if isinstance(part, Call))
        if any(FUNCTIONS[call.function].of_axis_alone for call in calls):
            return False
        names = [ref.name for ref in references(expression)]
        return bool(names) and all(name in self.leaves for name in names)

    def data(self, factors: Iterable[Expression]) -> list[Expression]:
        """The factors that are neither weights nor numbers."""
        return [each for each in factors if not is_scalar(each) and not self.is_weight(each)]

    def below(self, expression: Expression) -> frozenset[str]:
        """The parameters and constants that go into an expression, by way of weights too."""
        return frozenset().union(*(self.leaves.get(ref.name, ()) for ref in references(expression)))

    def free(self, expression: Expression) -> list[str]:
        """The parameters in it whose start is still to be chosen."""
        return sorted(name for name in self.below(expression) if name not in self.known.tensors)

    def linear(self, expression: Expression) -> set[str]:
        """Those of them that can bring its mean square anywhere: by products, and by sums in all of their terms."""
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
        """What a weight with a line of its own is."""
        while isinstance(expression, Ref) and expression.name in self.known.definitions:
            expression = self.known.definitions[expression.name].right
        return expression

    # ---- choosing

    def define(self, equation: Equation) -> None:
        """A weight made by a line of its own, which waits for who reads it."""
        self.known.definitions[equation.name] = equation
        self.leaves[equation.name] = self.below(equation.right)

    def start(self, name: str, kind: str, number: float) -> None:
        """Settles a parameter."""
        self.found[name] = (kind, number)
        self.known.tensors[name] = Moments(number if kind == "value" else 0.0, number**2)
        for line in [line for line in self.known.lines if name in self.leaves[line]]:
            del self.known.lines[line]

    def doubt(self, term: Expression, what: str) -> None:
        """Notes that no start suits a product."""
        names = sorted(self.below(term) - self.given)
        fix = f"scale it by a number, normalize within it, or say how {', '.join(names)} start, by init="
        place = term.place or self.line.place
        self.doubts.append(TensornetWarning(f"in '{self.line.name}', {show(term)} {what}", place, fix))
