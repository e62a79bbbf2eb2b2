"""The state of initialisation: scales that are settled, and the moments that follow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..errors import TensornetWarning
from ..graph.graph import Graph
from ..graph.shape_inference import Scope
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

__all__ = ["FAR", "Link", "Starts"]

FAR = 3.6
"""A mean square this many times too large or too small, a deviation nearly twice, is worth a word."""


@dataclass(frozen=True)
class Link:
    """A weight of a product that starts near the identity.

    Attributes:
        name: the parameter.
        ends: the axes between which it is one.
        beside: its other axes, which features have.
        scale: the number that stands on the diagonal.
    """

    name: str
    ends: tuple[str, str]
    beside: tuple[str, ...]
    scale: float


@dataclass
class Starts:
    """What is settled of the parameters of a graph, and what follows from it.

    Attributes:
        graph: the graph, without calls.
        known: the moments of every tensor that has some yet.
        parameters: whose starts are chosen.
        given: the leaves whose values or starts are told.
        leaves: the parameters and given leaves that each weight is made of.
        read: the tensors that equations read.
        found: the starts that are chosen.
        links: the parameters among them that start near the identity.
        doubts: of which products no start is right.
        line: the equation that is read now.
    """

    graph: Graph
    known: Estimator
    parameters: frozenset[str]
    given: frozenset[str]
    leaves: dict[str, frozenset[str]]
    read: set[str]
    found: dict[str, tuple[str, float]] = field(default_factory=dict)
    links: dict[str, Link] = field(default_factory=dict)
    doubts: list[TensornetWarning] = field(default_factory=list)
    line: Equation = field(init=False)

    @classmethod
    def of(cls, graph: Graph) -> Starts:
        """Those of a graph of which nothing is chosen yet."""
        parameters = frozenset(leaf.name for leaf in graph.parameters)
        given = frozenset(leaf.name for leaf in graph.leaves if leaf.start or leaf.kind == "constant")
        leaves = {name: frozenset((name,)) for name in parameters | given}
        read = {ref.name for equation in graph.equations for ref in equation.references}
        return cls(graph, Estimator(graph), parameters, given, leaves, read)

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

    def is_elastic(self, expression: Expression) -> bool:
        """Whether its mean square can be made anything."""
        match expression:
            case Ref(name) if name in self.known.definitions:
                return self.is_elastic(self.known.definitions[name].right)
            case Ref(name):
                return name not in self.known.tensors
            case Contraction(factors):
                return any(self.is_elastic(factor) for factor in factors if not is_scalar(factor))
            case Call("add", terms):
                return all(self.is_elastic(term) for term in terms)
            case Call(function, arguments) if FUNCTIONS[function].kind == "structure":
                return all(self.is_elastic(argument) for argument in arguments)
        return False

    def is_drawn(self, name: str) -> bool:
        """Whether a tensor is a parameter that starts at random."""
        return self.found.get(name, ("",))[0] == "std"

    def behind(self, expression: Expression, scope: Scope) -> tuple[Expression, Scope]:
        """What a weight with a line of its own is, and the sizes there."""
        while isinstance(expression, Ref) and expression.name in self.known.definitions:
            expression = self.known.definitions[expression.name].right
            scope = self.known.scope(expression)
        return expression, scope

    # ---- choosing

    def define(self, equation: Equation) -> None:
        """A weight made by a line of its own, which waits for who reads it."""
        self.known.definitions[equation.name] = equation
        self.leaves[equation.name] = self.below(equation.right)

    def start(self, name: str, kind: str, number: float) -> None:
        """Settles a parameter."""
        moments = self.known.of_start(name, (kind, number))
        self.found[name] = (kind, number)
        if self.known.tensors.get(name) == moments:
            return
        self.known.tensors[name] = moments
        for line in [line for line in self.known.lines if name in self.leaves[line]]:
            del self.known.lines[line]

    def forget(self, names: Iterable[str]) -> None:
        """Parameters are to be chosen again."""
        for name in names:
            for chosen in (self.found, self.links, self.known.tensors):
                chosen.pop(name, None)
        self.known.lines.clear()
        self.known.assumed.clear()

    # ---- what comes of it

    def reached(self, term: Contraction, squares: Mapping[Expression, float], scope: Scope) -> float:
        """The mean square of a product, were these the mean squares of some factors."""
        known, assumed, lines = self.known, self.known.assumed, dict(self.known.lines)
        known.assumed = assumed | {factor: Moments(0.0, square) for factor, square in squares.items()}
        found = known.of(term, scope).square
        known.assumed, known.lines = assumed, lines
        return found

    def doubt(self, term: Expression, what: str) -> None:
        """Notes that no start suits a product."""
        names = sorted(self.below(term) - self.given)
        fix = f"scale it by a number, normalize within it, or say how {', '.join(names)} start, by init="
        place = term.place or self.line.place
        self.doubts.append(TensornetWarning(f"in '{self.line.name}', {show(term)} {what}", place, fix))
