"""Moment propagation: mean and mean square of an expression, assuming independent factors.

    E[(Σᵢ xᵢ·Wᵢ)²] = I·E[x²]·E[W²] + I·(I − 1)·E[x]²·E[W]²

The second term is present if no factor has a mean of zero. Functions are integrated by Gauss–Hermite quadrature over
a normal argument. The measured pass corrects for factors that depend on one another.

`Starts` holds the starts chosen so far, and the moments that follow.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

from ..errors import EquationError, TensornetWarning
from ..graph.graph import Graph
from ..graph.leaves import Constant, Leaf
from ..graph.shape_inference import Scope, scope_inside
from ..language.canonical import expanded, function_of_one, put, value_of
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Literal,
    Ref,
    Size,
    calls_in,
    free_axes,
    is_scalar,
    references,
    scalar_value,
    show,
    subexpressions,
)
from ..ops.record import STANDARD, UNKNOWN, Known, Moments
from ..ops.table import FUNCTIONS
from ..sizes import evaluate
from .samplers import fan_of, square_of

TYPICAL = 64
"""The size assumed for an axis that is open."""

NODES = 41
"""The number of quadrature points for a normal variable."""

SPREAD = 2.5
"""The variance of a mean of squares is below this multiple of its squared mean, even for a single square."""


FAR = 3.6
"""A mean square that is off by more than this factor (a deviation by nearly 2) gives a warning."""


class Estimator:
    """Estimates the moments of expressions of a graph from those of its tensors.

    Attributes:
        tensors: the known moments, by tensor.
        definitions: the equations that compute weights from parameters; they are looked through.
        lines: the moments of such weights, as last estimated. A new start of a parameter removes them.
        scopes: the sizes of axes in expressions, which do not depend on starts.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.tensors: dict[str, Moments] = {}
        self.definitions: dict[str, Equation] = {}
        self.lines: dict[str, Moments] = {}
        self.scopes: dict[Expression, Scope] = {}
        for leaf in graph.leaves:
            if (found := moments_of_start(graph, leaf)) is not None:
                self.tensors[leaf.name] = found

    # ---- sizes

    def scope(self, expression: Expression, around: Scope | None = None) -> Scope:
        """The sizes of the axes in an expression, and of the axes around it."""
        if isinstance(expression, Contraction):
            expression = Contraction(expression.factors)
        found = self.scopes.get(expression)
        if found is None:
            found = self.scopes[expression] = scope_inside(expression, self.graph.dims, self.graph.bound)
        if around is None:
            return found
        return Scope({**around.sizes, **found.sizes}, {**around.assumed, **found.assumed})

    def counts(self, part: Expression, axes: Iterable[str], around: Scope | None = None) -> dict[str, float]:
        """The sizes of some axes in a part of an equation, as numbers."""
        scope = self.scope(part, around)
        found = {axis: evaluate(scope[axis], self.graph.bound) for axis in axes}
        return {axis: float(size if isinstance(size, int) else TYPICAL) for axis, size in found.items()}

    # ---- moments

    def of(self, expression: Expression, scope: Scope | None = None) -> Moments:
        """The moments of the elements of an expression."""
        scope = self.scope(expression) if scope is None else scope
        match expression:
            case Ref(name):
                return self.tensors.get(name) or (
                    self._of_line(name) if name in self.definitions else STANDARD
                )
            case _ if is_scalar(expression):
                return self._number(expression, scope)
            case _ if (mapped := _mapped(expression)) is not None:
                return self._of_map(expression, mapped, scope)
            case Contraction():
                return self._product(expression, scope)
            case Call("add", terms):
                return _sum(self.of(term, scope) for term in terms)
            case Call():
                return self._call(expression, scope)
        raise AssertionError(expression)

    def _of_line(self, name: str) -> Moments:
        """The moments of a computed weight. Earlier lines come first, so that a long chain needs no deep recursion."""
        for line, equation in self.definitions.items():
            if line not in self.lines:
                self.lines[line] = self.of(equation.right)
            if line == name:
                break
        return self.lines[name]

    def _number(self, expression: Expression, scope: Scope) -> Moments:
        value = scalar_value(expression, lambda axis: self.counts(expression, [axis], scope)[axis])
        value = 1.0 if value is None or not math.isfinite(abs(value)) else value
        number = float(abs(value) if value.imag else value.real)
        return Moments(number, number**2)

    def _of_map(self, expression: Expression, argument: Expression, scope: Scope) -> Moments:
        form = put(expression, argument, _BLANK)
        for part in subexpressions(form):
            if isinstance(part, Size) and part != _BLANK:
                form = put(form, part, Literal(self.counts(part, [part.axis], scope)[part.axis]))
        return _of_form(form, self.of(argument, scope).rounded())

    def _call(self, call: Call, scope: Scope) -> Moments:
        function = FUNCTIONS[call.function]
        inner = self.scope(call.arguments[0], scope) if call.arguments else scope
        count = math.prod(self.counts(call, call.axes, inner).values())
        if function.moments is None and function.expansion:
            return self.of(expanded(call, Literal(count)), inner)
        found = tuple(self.of(argument, scope) for argument in call.arguments)
        tensors = tuple(n for n, argument in enumerate(call.arguments) if not is_scalar(argument))
        told = None if function.moments is None else function.moments(Known(found, tensors, count))
        mixes = function.kind in ("axis", "reduction") and not function.carries
        return told or (STANDARD if mixes or not found else found[0])

    # ---- products

    def _product(self, term: Contraction, scope: Scope) -> Moments:
        """The moments of a product, by sums of logarithms: a long product may leave the range of a float."""
        scope = self.scope(term, scope)
        factors = [(free_axes(factor), self.of(factor, scope)) for factor in self._grouped(term.factors)]
        logs = {axis: _log(count) for axis, count in self.counts(term, term.summed, scope).items()}
        zero_mean = {axis for axes, moments in factors if not moments.mean for axis in axes}
        apart = {axis: count for axis, count in logs.items() if axis not in zero_mean}
        whole, runs = sum(logs.values()), sum(apart.values())
        sign = math.prod(math.copysign(1.0, moments.mean) for _, moments in factors)
        mean = sign * _exp(whole + sum(_log(abs(moments.mean)) for _, moments in factors))
        square = _exp(whole + sum(_log(moments.square) for _, moments in factors))
        if apart:
            for axes, moments in factors:
                whole += _log(moments.square if apart.keys().isdisjoint(axes) else moments.mean**2)
            square += (1 - _exp(-runs)) * _exp(whole + runs)
        return Moments(mean, square)

    def _grouped(self, factors: Iterable[Expression]) -> list[Expression]:
        """The factors of a product. Functions of one tensor, read at the same index, are one factor."""
        places = dict[Ref | int, list[Expression]]()
        for n, factor in enumerate(factors):
            places.setdefault(function_of_one(factor) or n, []).append(factor)
        return [each[0] if len(each) == 1 else Contraction(tuple(each)) for each in places.values()]


def _sum(terms: Iterable[Moments]) -> Moments:
    found = [*terms]
    mean = sum(each.mean for each in found)
    return Moments(mean, mean**2 + sum(each.variance for each in found))


# ---------------------------------------------------------------------------- leaves


def moments_of_start(graph: Graph, leaf: Leaf) -> Moments | None:
    """The moments of a leaf that are known from the beginning; None for a parameter without a given start."""
    match leaf.value if leaf.kind == "constant" else leaf.start:
        case Constant() as value:
            return _of_array(value)
        case (kind, number):
            found = (evaluate(size, graph.bound) for size in leaf.shape)
            shape = tuple(float(size) if isinstance(size, int) else float(TYPICAL) for size in found)
            mean = number if kind == "value" else 0.0
            return Moments(mean, square_of(kind, number, shape, fan_of(graph, leaf)))
    return STANDARD if leaf.kind == "input" else None


def _of_array(value: Constant) -> Moments:
    """The moments of the elements that are no mask: neither infinite nor at least 1e6 in absolute value."""
    array = value.array().ravel()
    finite = array[abs(array) < 1e6] if array.dtype.kind in "fc" else array[:0]
    if not finite.size:
        return STANDARD
    return Moments(float(abs(finite.mean())), float((abs(finite) ** 2).mean()))


# ---------------------------------------------------------------------------- functions

_BLANK = Size("")
"""The placeholder for the one tensor of an expression: a number without a name."""


def _mapped(expression: Expression) -> Expression | None:
    """The only operand that an expression maps element by element with functions of numbers, or None."""
    if (one := function_of_one(expression)) is not None:
        return one
    match expression:
        case Call(name, arguments) if FUNCTIONS[name].scalar and FUNCTIONS[name].kind == "pointwise":
            tensors = [argument for argument in arguments if not is_scalar(argument)]
            return tensors[0] if len(tensors) == 1 and name != "add" else None
    return None


@functools.lru_cache(1024)
def _of_form(form: Expression, moments: Moments) -> Moments:
    """The moments of a function of the placeholder; `UNKNOWN` if the integral does not exist."""
    levels = _levels(form) and moments.variance < SPREAD * moments.mean**2
    deviation, mean, square = 0.0 if levels else math.sqrt(moments.variance), 0.0, 0.0
    try:
        for node, weight in _points() if deviation else ((0.0, 1.0),):
            found: Any = scalar_value(form, {_BLANK.axis: moments.mean + deviation * node}.get)
            result = float(abs(found) if isinstance(found, complex) else found)
            mean, square = mean + weight * result, square + weight * result**2
    except (ArithmeticError, ValueError, TypeError, EquationError):
        return UNKNOWN
    return Moments(mean, square) if square < 1e12 else UNKNOWN


@functools.cache
def _points() -> tuple[tuple[float, float], ...]:
    """Nodes and weights of E[f(z)] for a standard normal z."""
    import numpy

    nodes, weights = numpy.polynomial.hermite_e.hermegauss(NODES)
    return tuple(zip(nodes.tolist(), (weights / math.sqrt(2 * math.pi)).tolist(), strict=True))


def _levels(form: Expression) -> bool:
    """Whether a function takes positive numbers and compresses them, as a root or its reciprocal does.

    Its argument is then replaced by its mean. In a norm this is exact, since the numerator is large where this is.
    """
    match form:
        case Call("power", (_, exponent)):
            value = value_of(exponent)
            return isinstance(value, int | float) and value < 1
        case Call(name):
            return FUNCTIONS[name].positive
    return False


def _log(value: float) -> float:
    return math.log(value) if value else -math.inf


def _exp(value: float) -> float:
    return math.inf if value > 700 else math.exp(value)


# ---------------------------------------------------------------------------- the starts chosen so far


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
        if any(FUNCTIONS[call.function].of_axis_alone for call in calls_in(expression)):
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
        match self.behind(expression):
            case Ref() as ref:
                return {*self.free(ref)}
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
