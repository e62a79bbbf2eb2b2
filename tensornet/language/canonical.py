"""Canonical forms: one expression for all spellings of a value, `x / sqrt(s)` and `x * s**-0.5`.

A function with an expansion is replaced by it: `square(a)` becomes `a ** 2`. Equal factors become powers. Nested
products and nested sums are flattened. `b < a` is `a > b`, and a `where` has its number last. Numbers stay as they are
written.

The algebra of expressions simplifies as little as one asks for: sums and products without ones and zeros, and
elementwise maps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from ..errors import EquationError
from ..ops.pointwise import GREATER, GREATER_EQUAL, NOT, WHERE
from ..ops.record import OPERANDS, Function
from ..ops.structure import INDEX, REPEAT
from ..ops.table import FUNCTIONS
from .affine import ONE, ZERO
from .expression import (
    Call,
    Contraction,
    Expression,
    Literal,
    Ref,
    Size,
    contraction,
    flat,
    scalar_value,
    sum_of,
    without,
)
from .parser import parse_rule, rule_of

COUNT = "n"
"""The name that expansions use for the number of positions that a function runs over."""


_TURNED = {GREATER.name: (GREATER_EQUAL.name,), GREATER_EQUAL.name: (GREATER.name,), WHERE.name: (NOT.name,)}
"""The functions that a canonical form may have in the place of another, or with it."""


class CanonicalForms:
    """Brings expressions into their canonical form, and remembers how each part was written.

    Args:
        count: the number of positions that a call runs over.
    """

    def __init__(self, count: Callable[[Call], Expression]) -> None:
        self.count = count
        self._written: dict[Expression, Expression] = {}
        self._forms: dict[int, tuple[Expression, Expression]] = {}

    def of(self, expression: Expression) -> Expression:
        """The canonical form."""
        if id(expression) not in self._forms:
            self._forms[id(expression)] = expression, self._form(expression)
        return self._forms[id(expression)][1]

    def _form(self, expression: Expression) -> Expression:
        if expression.is_scalar or isinstance(expression, Ref):
            return expression
        if isinstance(expression, Call) and FUNCTIONS[expression.function].expansion:
            form = self.of(expanded(expression, self.count(expression)))
        else:
            form = _simplified(expression.transform(self.of))
        self._written.setdefault(form, expression)
        return form

    def name(self, expression: Expression, ref: Ref) -> None:
        """Makes `written` show an expression as the given tensor."""
        form = self.of(expression)
        if not isinstance(form, Ref):
            self._written[form] = ref

    def written(self, form: Expression) -> Expression:
        """A canonical form with its parts as they were originally written."""
        return self._written.get(form) or form.transform(self.written)


def expanded(call: Call, count: Expression) -> Expression:
    """The expansion of a call: the same value in terms of other functions.

    Args:
        call: a call of a function that has an expansion.
        count: the number of positions that it runs over.
    """
    row = FUNCTIONS[call.function]
    given: dict[str, Expression] = {COUNT: count} | {name: Literal(value) for name, value in row.options}
    given |= {name: values[0] for name, values in call.options}
    given |= zip(OPERANDS, call.arguments, strict=False)
    return parse_rule(row.expansion, given, call.axes)


def canonical_functions(functions: Iterable[str]) -> frozenset[str]:
    """The functions that the canonical form of an expression may have, which calls the given ones."""
    return frozenset().union(*(_made_of(FUNCTIONS[name]) for name in functions))


def _made_of(row: Function) -> frozenset[str]:
    if not row.expansion:
        return frozenset({row.name, *_TURNED.get(row.name, ())})
    return canonical_functions(call.function for call in rule_of(row.expansion).calls)


def value_of(expression: Expression, sizes: Mapping[str, int] | None = None) -> int | float | complex | None:
    """The value of a number; None for a tensor, a number with an unknown size, or one that cannot be computed."""
    try:
        return scalar_value(expression, (sizes or {}).get) if expression.is_scalar else None
    except EquationError:
        return None


# ---------------------------------------------------------------------------- simplifying one level


def _simplified(expression: Expression) -> Expression:
    """The canonical form of an expression whose parts are in canonical form already."""
    match expression:
        case Contraction():
            return _product(expression)
        case Call("add", terms):
            return sum_of(terms, expression.place)
        case Call("power", (base, exponent)):
            value = value_of(exponent)
            return expression if value is None or isinstance(value, complex) else _power(base, value)
        case Call(WHERE.name, (condition, number, other)) if number.is_scalar and not other.is_scalar:
            return replace(expression, arguments=(_negated(condition), other, number))
        case Call(WHERE.name, (Call(NOT.name, (condition,)), *others)):
            return replace(expression, arguments=(_negated(condition), *others))
    return expression


def _negated(condition: Expression) -> Expression:
    """The condition that holds where the given one does not; positions, which are never NaN, are compared again."""
    match condition:
        case Call(NOT.name, (inner,)):
            return inner
        case Call(function, (Call(INDEX.name) as a, Call(INDEX.name) as b)) if function in _TURNED:
            return replace(condition, function=_TURNED[function][0], arguments=(b, a))
    return Call(NOT.name, (condition,))


def _power(base: Expression, exponent: float) -> Expression:
    """A power, distributed over a power or a product in its base where that holds for all real numbers."""
    whole = float(exponent).is_integer()
    match base:
        case _ if exponent == 1:
            return base
        case Call("power", (inner, Literal(int() | float() as first))) if whole or first % 2:
            return _power(inner, first * exponent)
        case Contraction(factors, ()) if whole:
            return _product(Contraction(tuple(_power(each, exponent) for each in factors)))
    return Call("power", (base, Literal(int(exponent) if whole else exponent)))


def _product(product: Contraction) -> Expression:
    """A product, flattened, with equal factors collected into powers."""
    factors, summed = flattened(product)
    exponents = dict[tuple[Expression, object], float]()  # numbers and random draws stay apart
    for place, factor in enumerate(factors):
        base, exponent = _base(factor)
        key = base, place if base.is_scalar or base.is_random else exponent > 0
        exponents[key] = exponents.get(key, 0) + exponent
    if len(exponents) < len(factors):
        factors = tuple(_power(base, exponent) for (base, _), exponent in exponents.items())
    return contraction(factors, summed, product.place)


def flattened(product: Contraction) -> tuple[tuple[Expression, ...], tuple[str, ...]]:
    """The factors of a product, with inner products flattened, and the axes that any of these products sums."""
    factors, summed = list[Expression](), product.summed
    for factor in product.factors:
        others = Contraction(without(product.factors, (factor,)), summed)
        if isinstance(factor, Contraction) and not set(factor.summed) & others.occurring:
            factors += factor.factors
            summed += factor.summed
        else:
            factors.append(factor)
    return tuple(factors), summed


def _base(factor: Expression) -> tuple[Expression, float]:
    """The base and the exponent of a factor."""
    match factor:
        case Call("power", (base, Literal(int() | float() as exponent))):
            return base, exponent
    return factor, 1


# ---------------------------------------------------------------------------- algebra


_ONES = ONE, Literal(1.0)


def spread(expression: Expression, axes: Iterable[str]) -> Expression:
    """The expression with all of the given axes, repeated along those that it lacks."""
    for axis in axes:
        if axis not in expression.free_axes:
            expression = Call(REPEAT.name, (expression,), (axis,))
    return expression


def folded(expression: Expression) -> Expression:
    """The expression with numbers computed, ones and zeros dropped, and nested products flattened."""
    expression = flat(expression.transform(folded))
    value = scalar_value(expression) if expression.is_scalar else None
    if value is not None and not isinstance(value, bool):
        return Literal(value)
    match expression:
        case Contraction(factors) if ZERO in factors or Literal(0.0) in factors:
            return ZERO
        case Contraction(factors, summed):
            kept = tuple(each for each in factors if each not in _ONES)
            return contraction(kept or (ONE,), summed, expression.place)
        case Call("add", terms):
            return sum_of(term for term in terms if term != ZERO)
        case Call("power", (base, exponent)) if exponent in _ONES:
            return base
    return expression


def function_of_one(expression: Expression) -> Ref | None:
    """The tensor that an expression maps element by element; None unless it is the only one."""
    refs = set(expression.references)
    if len(refs) != 1:
        return None
    for part in expression.subexpressions:
        match part:
            case Ref() | Literal() | Size() | Contraction(summed=()):
                pass
            case Call(function) if FUNCTIONS[function].kind == "pointwise" and FUNCTIONS[function].scalar:
                pass
            case _:
                return None
    return refs.pop()


def put(expression: Expression, one: Expression, other: Expression) -> Expression:
    """The expression with its part `one` replaced by `other`."""
    return expression.rewrite(lambda part: other if part is one or part == one else part)
