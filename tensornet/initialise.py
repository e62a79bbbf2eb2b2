"""Initial values derived from the equations, so that every product keeps the variance.

A product of independent factors with second moments m₁, m₂, …, summed over axes of total size
S, has second moment S·m₁·m₂·…; the parameters in it share the variance that makes this 1. Each
summed axis is charged to the parameters that have it. Functions change second moments: E[f(z)²]
of a standard normal z is taken by Gauss–Hermite quadrature.

    product with a sum            normal, variances as above (Glorot and Bengio 2010; He et al. 2015)
    factor that only scales       one            gain[c] * normalize[c](x)
    term of a sum with data       zero           x[b,i] * W[o,i] + bias[o]
    alone (a table, a token)      normal, variance 1
    inside a function only        zero
"""

from __future__ import annotations

import math
import zlib
from typing import Any

from .device import element_type
from .errors import ShapeError
from .expression import (
    Call,
    Contraction,
    Expression,
    Ref,
    free_axes,
    is_scalar,
    references,
    scalar_value,
    subexpressions,
)
from .functions import FUNCTIONS
from .graph import Graph
from .protocol import Backend, load_backend
from .shape import Scope, scope_of
from .sizes import evaluate

__all__ = ["init", "starts"]

TYPICAL = 64
"""The size assumed for an axis that is open."""


def init(
    graph: Graph,
    *,
    seed: int = 0,
    backend: str | Backend = "numpy",
    dtype: str = "float32",
    device: str | None = None,
    **sizes: int,
) -> dict[str, Any]:
    """Initial parameters of a graph, with variances derived from its equations.

    Args:
        graph: a layer or a model.
        seed: the same seed gives the same numbers, on every backend.
        backend: the library of the arrays.
        dtype: their element type.
        device: where they are put.
        **sizes: values for open sizes.

    Returns:
        Name to array.

    Raises:
        ShapeError: the size of a parameter is open.

    Example:
        >>> import tensornet as tn
        >>> layer = tn.layer("y[b,o] = x[b,i] * W[o,i] + u[o]", inputs="x", i=100, o=400)
        >>> {name: (array.shape, round(float(array.std()), 2)) for name, array in tn.init(layer).items()}
        {'W': ((400, 100), 0.1), 'u': ((400,), 0.0)}
    """
    import numpy

    chosen, dtype = load_backend(backend), element_type(dtype)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ShapeError(f"the seed is {seed!r}", fix="give an integer from 0")
    graph = graph.bind(**sizes) if sizes else graph
    found = starts(graph)
    arrays: dict[str, Any] = {}
    for leaf in graph.parameters:
        shape = tuple(evaluate(size, graph.bound) for size in leaf.shape)
        if not all(isinstance(size, int) for size in shape):
            names = sorted({s.name for size in shape for s in getattr(size, "free_symbols", ())})
            raise ShapeError(
                f"the parameter '{leaf}' has an open size", fix=f"give {', '.join(f'{n}=' for n in names)}"
            )
        kind, number = leaf.start or found[leaf.name]
        generator = numpy.random.default_rng([seed, zlib.crc32(leaf.name.encode())])
        if kind == "std" and number > 0:
            array = generator.standard_normal(shape)
            array *= number / math.sqrt(float((array**2).mean()))  # exactly the moment, not only on average
        else:
            array = numpy.full(shape, number if kind == "value" else 0.0)
        arrays[leaf.name] = chosen.asarray(array, dtype, device)
    return arrays


def starts(graph: Graph) -> dict[str, tuple[str, float]]:
    """How each parameter starts: `("std", s)` or `("value", v)`, as the equations imply."""
    deriver = _Deriver(graph)
    for equation in graph.equations:
        deriver.equation(equation.name, equation.right)
    return {leaf.name: deriver.found.get(leaf.name, ("value", 0.0)) for leaf in graph.parameters}


class _Deriver:
    """Walks the equations in order with the second moment of every tensor at hand."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.found: dict[str, tuple[str, float]] = {}
        self.moments: dict[str, float] = {leaf.name: 1.0 for leaf in graph.inputs}
        for leaf in graph.constants:
            self.moments[leaf.name] = _constant_moment(leaf)
        self.weights: dict[str, Expression] = {}  # made of parameters alone, sized by who reads them
        self.parameters = {leaf.name for leaf in graph.parameters}
        for leaf in graph.parameters:
            if leaf.start is not None:
                self.moments[leaf.name] = leaf.start[1] ** 2

    def equation(self, name: str, right: Expression) -> None:
        if self.is_weight(right) and any(
            ref.name == name for other in self.graph.equations for ref in references(other.right)
        ):
            self.weights[name] = right
            return
        self.moments[name] = self.moment(right, self.scope(right))

    def is_weight(self, expression: Expression) -> bool:
        """Whether nothing but parameters goes into the value, and no axis of the data."""
        if any(isinstance(part, Call) and part.function == "index" for part in subexpressions(expression)):
            return False
        names = [ref.name for ref in references(expression)]
        return bool(names) and all(name in self.parameters or name in self.weights for name in names)

    def is_free(self, expression: Expression) -> bool:
        """Whether the expression is a parameter (or made of them) whose start is still to be chosen."""
        return isinstance(expression, Ref) and (
            expression.name in self.weights
            or (expression.name in self.parameters and expression.name not in self.moments)
        )

    def scope(self, expression: Expression) -> Scope:
        return scope_of(expression, self.graph.dims, self.graph.agree, self.graph.bound)

    def count(self, scope: Scope, axis: str) -> float:
        size = evaluate(scope[axis], self.graph.bound)
        return float(size) if isinstance(size, int) else float(TYPICAL)

    # ---- choosing

    def choose(self, name: str, moment: float) -> None:
        """Gives a parameter, or what a weight is made of, this second moment."""
        if name in self.parameters:
            if name not in self.moments:
                self.moments[name] = moment
                self.found[name] = ("std", math.sqrt(moment))
            return
        if name in self.moments:
            return
        right = self.weights[name]
        self.moments[name] = moment
        if isinstance(right, Contraction):
            whole = Contraction(right.factors)
            self.product(right, self.scope(whole), moment)
        elif isinstance(right, Call) and right.function in ("concat", "pad", "roll", "add"):
            share = moment / len(right.arguments) if right.function == "add" else moment
            for part in right.arguments:
                if self.is_free(part) and isinstance(part, Ref):
                    self.choose(part.name, share)
        elif isinstance(right, Ref):
            self.choose(right.name, moment)
        else:
            self.moment(right, self.scope(right))

    def product(self, term: Contraction, scope: Scope, target: float = 1.0) -> float:
        """Chooses the parameters of a product so that it has the second moment `target`."""
        factors = [factor for factor in term.factors if not is_scalar(factor)]
        scale = math.prod(self.number(factor, scope) ** 2 for factor in term.factors if is_scalar(factor))
        free = [factor for factor in factors if self.is_free(factor)]
        others = [factor for factor in factors if not self.is_free(factor)]
        given = scale * math.prod(self.moment(factor, scope) for factor in others)
        total = math.prod(self.count(scope, axis) for axis in term.summed)
        if not free:
            return given * total
        if not term.summed and others and self._only_scales(free, others):
            for factor in free:
                assert isinstance(factor, Ref)
                self._start_at_one(factor.name)
            return given
        charges = [1.0] * len(free)
        unclaimed = target / given if given > 0 else target
        for axis in term.summed:
            holders = [n for n, factor in enumerate(free) if axis in free_axes(factor)]
            size = self.count(scope, axis)
            for n in holders:
                charges[n] *= size ** (-1.0 / len(holders))
            unclaimed /= 1.0 if holders else size
        for factor, charge in zip(free, charges, strict=True):
            assert isinstance(factor, Ref)
            self.choose(factor.name, charge * unclaimed ** (1.0 / len(free)))
        return target

    def _only_scales(self, free: list[Expression], others: list[Expression]) -> bool:
        axes = {axis for factor in others for axis in free_axes(factor)}
        return all(set(free_axes(factor)) <= axes for factor in free)

    def _start_at_one(self, name: str) -> None:
        if name in self.parameters:
            self.found[name], self.moments[name] = ("value", 1.0), 1.0
        else:
            self.choose(name, 1.0)

    def number(self, expression: Expression, scope: Scope) -> float:
        value = scalar_value(expression, lambda axis: self.count(scope, axis))
        return abs(value) if value is not None and math.isfinite(abs(value)) else 1.0

    # ---- second moments

    def moment(self, expression: Expression, scope: Scope) -> float:
        """The second moment of a value, parameters in it chosen on the way."""
        match expression:
            case Ref(name):
                if self.is_free(expression):
                    self.choose(name, 1.0)
                return self.moments.get(name, 1.0)
            case _ if is_scalar(expression):
                return self.number(expression, scope) ** 2
            case Contraction():
                inner = self.scope(Contraction(expression.factors))
                return self.product(expression, Scope({**scope.sizes, **inner.sizes}, scope.assumed))
            case Call("add", terms):
                return self.sum(terms, scope)
            case Call():
                return self.call(expression, scope)
        return 1.0

    def sum(self, terms: tuple[Expression, ...], scope: Scope) -> float:
        """Beside data a parameter is a bias, and starts at zero; parameters alone share the moment."""
        data = [term for term in terms if not self.is_weight(term)]
        if data:
            for term in terms:
                if self.is_free(term) and isinstance(term, Ref):
                    self._start_at_zero(term.name)
        else:
            for term in terms:
                if self.is_free(term) and isinstance(term, Ref):
                    self.choose(term.name, 1.0 / len(terms))
        return sum(self.moment(term, scope) for term in terms)

    def _start_at_zero(self, name: str) -> None:
        if name in self.parameters:
            self.found[name], self.moments[name] = ("value", 0.0), 0.0
        else:
            self.choose(name, 1.0)

    def call(self, call: Call, scope: Scope) -> float:
        function = FUNCTIONS[call.function]
        inner = self.scope(call.arguments[0]) if call.arguments else scope
        for argument in call.arguments:
            if function.kind == "pointwise" and self.is_free(argument) and isinstance(argument, Ref):
                self._start_at_zero(argument.name)
        moments = [self.moment(argument, self._inside(argument, scope)) for argument in call.arguments]
        over = (
            math.prod(self.count(inner, axis) for axis in call.axes) if function.kind != "structure" else 1.0
        )
        match call.function:
            case "softmax" | "hardmax" | "mean":
                return (moments[0] if call.function == "mean" else 1.0) / over
            case "normalize" | "sign" | "index" | "logsumexp" | "log_softmax":
                return 1.0
            case "onehot":
                return 1.0 / self.count(scope, call.axes[0])
            case "where" if is_scalar(call.arguments[1]) or is_scalar(call.arguments[2]):
                return moments[2] if is_scalar(call.arguments[1]) else moments[1]  # the number is a mask
            case "concat" | "where" | "maximum" | "minimum":
                return (
                    sum(moments[-2:]) / len(moments[-2:])
                    if call.function != "concat"
                    else sum(moments) / len(moments)
                )
        if len(moments) == 1 and function.kind == "pointwise" and function.scalar is not None:
            return _through(call.function, moments[0])
        return moments[0] if moments else 1.0

    def _inside(self, argument: Expression, scope: Scope) -> Scope:
        inner = self.scope(argument)
        return Scope({**scope.sizes, **inner.sizes}, {**scope.assumed, **inner.assumed})


def _through(function: str, moment: float) -> float:
    """E[f(z·√m)²] for a standard normal z; 1 where that does not exist."""
    import numpy

    compute = FUNCTIONS[function].scalar
    assert compute is not None
    points, weights = numpy.polynomial.hermite_e.hermegauss(40)
    total = 0.0
    try:
        for point, weight in zip(points, weights, strict=True):
            total += float(weight) * float(compute(float(point) * math.sqrt(moment))) ** 2
    except (ArithmeticError, ValueError):
        return 1.0
    total /= math.sqrt(2.0 * math.pi)
    return total if math.isfinite(total) and 0.0 < total < 1e6 else 1.0


def _constant_moment(leaf: Any) -> float:
    array = leaf.value.array()
    if array.dtype.kind not in "fc" or not array.size:
        return 1.0
    finite = abs(array[abs(array) < 1e6]) ** 2
    return float(finite.mean()) if finite.size and finite.mean() > 0 else 1.0
