"""Pointwise functions: arithmetic, activations, comparisons, choices, conversions."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from ..nodes import Call
from .moments import Known, Moments, average
from .protocols import Left, Lowering, Value, Writer
from .record import Element, Example, Function

__all__ = [
    "AND",
    "EQUAL",
    "REFLEXIVE",
    "RELU",
    "ROWS",
    "SELU_ALPHA",
    "SELU_SCALE",
    "SIGMOID",
    "TANH",
    "WHERE",
]

MANY = (2, 10**6)

LARGEST_HALF = 65504.0
"""The largest finite number in half precision."""


def _real(
    name: str,
    formula: str,
    scalar: Callable[[float], Any],
    derivative: str,
    passes: float = 1.0,
    **more: Any,
) -> Function:
    """The record of a function of one number whose result is real."""
    costs = (passes, passes)
    return Function(
        name, formula, yields="real", scalar=scalar, derivative=(derivative,), passes=costs, **more
    )


def _same(name: str, formula: str, scalar: Callable[..., Any], *derivative: str, **more: Any) -> Function:
    """The record of a function that keeps integers."""
    return Function(name, formula, yields="same", scalar=scalar, derivative=derivative, **more)


def _truth(name: str, formula: str, infix: str, scalar: Callable[..., Any], **more: Any) -> Function:
    """The record of a function that returns a truth value, so no operand gets a gradient."""
    more = {"arity": (2, 2), **more}
    flat = ("0",) * more["arity"][0]
    return Function(name, formula, infix=infix, yields="truth", scalar=scalar, derivative=flat, **more)


# ---------------------------------------------------------------------------- on numbers


def _sigmoid(a: float) -> float:
    return 0.5 * (1.0 + math.tanh(0.5 * a))


def _gelu(a: float) -> float:
    return 0.5 * a * (1.0 + math.erf(a * math.sqrt(0.5)))


def _gelu_tanh(a: float) -> float:
    return 0.5 * a * (1.0 + math.tanh(math.sqrt(2.0 / math.pi) * (a + 0.044715 * a**3)))


def _power(a: float, b: float) -> float:
    """A power, exact for integers if 64 bits hold the result."""
    real: float = float(a) ** float(b)
    exact = isinstance(a, int) and isinstance(b, int) and b >= 0 and abs(real) < 2**63
    return a**b if exact else real


def _softplus(a: float) -> float:
    return max(a, 0.0) + math.log1p(math.exp(-abs(a)))


def _elu(a: float, alpha: float = 1.0) -> float:
    return a if a > 0 else alpha * math.expm1(a)


def _leaky_relu(a: float, slope: float = 0.01) -> float:
    return a if a > 0 else slope * a


def _hardsigmoid(a: float) -> float:
    return min(max(a + 3.0, 0.0), 6.0) / 6.0


SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772
"""With these the mean 0 and the variance 1 of a wide layer are a fixed point (Klambauer et al. 2017)."""


# ---------------------------------------------------------------------------- rules


def _small_power(base: Any, exponent: Any) -> bool:
    """Whether 64 bits hold this power of any positions: an integer exponent from 0 to 3."""
    return isinstance(exponent, int) and 0 <= exponent <= 3


def _of_two(known: Known) -> Moments | None:
    """The average moments of two tensors, each chosen equally often; None for a tensor and a number."""
    return average(known.operands) if len(known.tensors) > 1 else None


def _of_choices(known: Known) -> Moments:
    return average([known.operands[n] for n in known.tensors if n])


def _spell_where(writer: Writer, call: Call, left: Left) -> str:
    """The call of `where`. Of two numbers the first becomes a tensor; a large mask value is clipped to the type."""
    condition, a, b = call.arguments
    first, second = writer.render(a, left), writer.render(b, left)
    if writer.is_number(a) and writer.is_number(b):
        first = writer.number(a)
    elif not writer.is_number(a) and _is_large(writer.value(b)):
        second = writer.op("finite", second, first)
    return writer.op(call.function, writer.render(condition, left), first, second)


def _spell_dropped(writer: Writer, call: Call, left: Left) -> str:
    """The call of `dropped`. If the dropped operand is a number, it becomes a tensor."""
    kept, a, rate = call.arguments
    value = writer.number(a) if writer.is_number(a) else writer.render(a, left)
    return writer.op(call.function, writer.render(kept, left), value, writer.render(rate, left))


def _lower_whole(lowering: Lowering, call: Call) -> Value:
    """Lowers a rounding function; integers are only converted."""
    value = lowering.lower(call.arguments[0])
    if value.element <= Element.WHOLE:
        return lowering.convert(value, Element.WHOLE)
    return lowering.applied(call.function, [value])


def _is_large(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value) and abs(value) > LARGEST_HALF


# ---------------------------------------------------------------------------- the rows

_ARITHMETIC = (
    _same("add", "a + b + …", lambda *a: sum(a), "g", arity=MANY, infix="+"),
    _real(
        "reciprocal",
        "1 / a",
        lambda a: 1 / a,
        "-g * y ** 2",
        expansion="a ** -1",
        number="(1 / {0})",
        positive=True,
    ),
    _same(
        "floor_divide",
        "⌊a / b⌋, exact for integers, and 0 where they are divided by 0",
        operator.floordiv,
        "0",
        arity=(2, 2),
        infix="//",
        number="({0} // {1})",
        complex="refused",
    ),
    _same(
        "remainder",
        "a − b·⌊a / b⌋, exact for integers, and 0 where they are divided by 0",
        operator.mod,
        "g",
        "-g * (a // b)",
        arity=(2, 2),
        infix="%",
        number="({0} % {1})",
        complex="refused",
    ),
    Function(
        "power",
        "aᵇ",
        arity=(2, 2),
        infix="**",
        yields="real",
        keeps_whole=_small_power,
        scalar=_power,
        number="({0} ** {1})",
        derivative=("g * b * a ** where(b == 0, 1, b - 1)", "g * y * log(where(a > 0, a, 1))"),
        positive=True,
    ),
)

TANH = _real("tanh", "hyperbolic tangent", math.tanh, "g * (1 - y ** 2)", number="math.tanh({0})", passes=8)
SIGMOID = _real("sigmoid", "1 / (1 + e⁻ᵃ)", _sigmoid, "g * y * (1 - y)", passes=3)
RELU = _same("relu", "max(a, 0)", lambda a: max(a, 0.0), "where(a > 0, g, 0)", complex="refused")

_CURVES = (
    _real("exp", "eᵃ", math.exp, "g * y", number="math.exp({0})", passes=3.5),
    _real("expm1", "eᵃ − 1", math.expm1, "g * (y + 1)", number="math.expm1({0})", passes=5),
    _real("log", "natural logarithm", math.log, "g / a", number="math.log({0})", positive=True, passes=4.5),
    _real(
        "log1p",
        "log(1 + a)",
        math.log1p,
        "g / (1 + a)",
        number="math.log1p({0})",
        example=Example.of("y[i] = log1p(a[i])", a=(0.0, 0.5, 2.0)),
        passes=4,
    ),
    _real(
        "sqrt",
        "√a",
        math.sqrt,
        "g / (2 * y)",
        number="({0} ** 0.5)",
        expansion="a ** 0.5",
        positive=True,
        root=True,
        passes=2.5,
        latex=r"\sqrt{{{0}}}",
    ),
    _real(
        "rsqrt",
        "1 / √a",
        lambda a: 1 / math.sqrt(a),
        "-g * y ** 3 / 2",
        number="({0} ** -0.5)",
        expansion="a ** -0.5",
        positive=True,
        root=True,
        passes=2,
    ),
    _same("square", "a²", lambda a: a * a, "2 * g * a", expansion="a ** 2"),
    _same("abs", "|a|", abs, "g * sign(a)", complex="measured"),
    _same("sign", "−1, 0 or 1, and NaN of NaN", lambda a: (a > 0) - (a < 0), "0", complex="refused"),
    _same(
        "floor",
        "largest integer ≤ a",
        math.floor,
        "0",
        in_sizes="floor",
        rounds="//",
        number="math.floor({0})",
        complex="refused",
    ),
    _same(
        "ceil",
        "smallest integer ≥ a",
        math.ceil,
        "0",
        number="math.ceil({0})",
        complex="refused",
        lowered=_lower_whole,
    ),
    _same(
        "round",
        "nearest integer, the even one of two",
        round,
        "0",
        number="round({0})",
        complex="refused",
        lowered=_lower_whole,
    ),
    _real("sin", "sine", math.sin, "g * cos(a)", number="math.sin({0})", passes=6),
    _real("cos", "cosine", math.cos, "-g * sin(a)", number="math.cos({0})", passes=6),
    TANH,
    _real(
        "erf",
        "error function",
        math.erf,
        "g * 2 / sqrt(pi) * exp(-a ** 2)",
        number="math.erf({0})",
        complex="refused",
        passes=8,
    ),
    SIGMOID,
    RELU,
    _real(
        "gelu",
        "a·Φ(a), exact",
        _gelu,
        "g * (0.5 + 0.5 * erf(a * sqrt(0.5)) + a * exp(-0.5 * a ** 2) / sqrt(2 * pi))",
        complex="refused",
        passes=3.5,
    ),
    _real(
        "gelu_tanh",
        "a·Φ(a), tanh approximation",
        _gelu_tanh,
        "g * (0.5 + 0.5 * tanh(sqrt(2 / pi) * (a + 0.044715 * a ** 3))"
        " + 0.5 * a * (1 - tanh(sqrt(2 / pi) * (a + 0.044715 * a ** 3)) ** 2)"
        " * sqrt(2 / pi) * (1 + 0.134145 * a ** 2))",
        complex="refused",
        passes=9,
    ),
    _real(
        "silu",
        "a·sigmoid(a)",
        lambda a: a * _sigmoid(a),
        "g * (sigmoid(a) + y * (1 - sigmoid(a)))",
        expansion="a * sigmoid(a)",
        passes=3,
        elsewhere=("swish",),
    ),
    _real("softplus", "log(1 + eᵃ)", _softplus, "g * sigmoid(a)", complex="refused", passes=9),
    _real(
        "log_sigmoid",
        "log sigmoid(a)",
        lambda a: -_softplus(-a),
        "g * sigmoid(-a)",
        complex="refused",
        passes=9,
    ),
    _real(
        "leaky_relu",
        "a where a > 0, else slope·a",
        _leaky_relu,
        "where(a > 0, g, slope * g)",
        options=(("slope", 0.01),),
        complex="refused",
    ),
    _real(
        "elu",
        "a where a > 0, else alpha·(eᵃ − 1)",
        _elu,
        "where(a > 0, g, g * (y + alpha))",
        options=(("alpha", 1.0),),
        complex="refused",
        passes=2,
    ),
    _real(
        "selu",
        "elu(a) scaled so that variances settle at 1",
        lambda a: SELU_SCALE * _elu(a, SELU_ALPHA),
        f"where(a > 0, {SELU_SCALE} * g, g * (y + {SELU_SCALE * SELU_ALPHA}))",
        complex="refused",
    ),
    _real(
        "mish",
        "a·tanh(softplus(a))",
        lambda a: a * math.tanh(_softplus(a)),
        "g * (tanh(softplus(a)) + a * sigmoid(a) * (1 - tanh(softplus(a)) ** 2))",
        complex="refused",
        passes=20,
    ),
    _real(
        "softsign",
        "a / (1 + |a|)",
        lambda a: a / (1 + abs(a)),
        "g / (1 + abs(a)) ** 2",
        complex="refused",
        passes=2.5,
    ),
    _real(
        "hardsigmoid",
        "(a + 3) / 6, between 0 and 1",
        _hardsigmoid,
        "where(abs(a) < 3, g / 6, 0)",
        complex="refused",
        passes=2.5,
    ),
    _real(
        "hardswish",
        "a·hardsigmoid(a)",
        lambda a: a * _hardsigmoid(a),
        "where(abs(a) < 3, g * (a / 3 + 0.5), where(a < 0, 0, g))",
        complex="refused",
    ),
)

WHERE = _same(
    "where",
    "a if condition else b",
    lambda c, a, b: a if c else b,
    "0",
    "where(a, g, 0)",
    "where(a, 0, g)",
    arity=(3, 3),
    written="where(condition, a, b)",
    example=Example.of("y[i] = where(a[i] > 0, a[i], 10 * a[i])", a=(-1.0, 0.5, 2.0)),
    takes="any",
    conditions=1,
    carries=True,
    moments=_of_choices,
    passes=(3.5, 12.0),
    spelled=_spell_where,
)

_CHOICES = (
    _same(
        "maximum",
        "the larger of a and b",
        max,
        "g * ((a > b) + 0.5 * (a == b))",
        "g * ((b > a) + 0.5 * (a == b))",
        arity=(2, 2),
        in_sizes="Max",
        complex="refused",
        moments=_of_two,
    ),
    _same(
        "minimum",
        "the smaller of a and b",
        min,
        "g * ((a < b) + 0.5 * (a == b))",
        "g * ((b < a) + 0.5 * (a == b))",
        arity=(2, 2),
        in_sizes="Min",
        complex="refused",
        moments=_of_two,
    ),
    _same(
        "clip",
        "a, but low where it is less, and high where more",
        lambda a, low, high: min(max(a, low), high),
        "where((a >= b) & (a <= c), g, 0)",
        "where((a < b) & (b < c), g, 0)",
        "where(maximum(a, b) > c, g, 0)",
        arity=(3, 3),
        written="clip(a, low, high)",
        example=Example.of("y[i] = clip(a[i], 0, 1)", a=(-1.0, 0.5, 2.0)),
        complex="refused",
    ),
    WHERE,
)

EQUAL = _truth("equal", "a = b", "==", lambda a, b: a == b)
AND = _truth(
    "logical_and",
    "a and b",
    "&",
    lambda a, b: bool(a and b),
    takes="truths",
    example=Example.of("y[i] = (a[i] > 0) & (a[i] < 1)", a=(-1.0, 0.5, 2.0)),
)
LESS_EQUAL = _truth("less_equal", "a ≤ b", "<=", lambda a, b: a <= b, complex="refused")
GREATER_EQUAL = _truth("greater_equal", "a ≥ b", ">=", lambda a, b: a >= b, complex="refused")

REFLEXIVE = (EQUAL.name, LESS_EQUAL.name, GREATER_EQUAL.name)
"""The comparisons that are true of equal numbers."""

_TRUTHS = (
    EQUAL,
    _truth("not_equal", "a ≠ b", "!=", lambda a, b: a != b, converts=Element.TRUTH, number="({0} != {1})"),
    _truth("less", "a < b", "<", lambda a, b: a < b, complex="refused"),
    LESS_EQUAL,
    _truth("greater", "a > b", ">", lambda a, b: a > b, complex="refused"),
    GREATER_EQUAL,
    AND,
    _truth(
        "logical_or",
        "a or b",
        "|",
        lambda a, b: bool(a or b),
        takes="truths",
        example=Example.of("y[i] = (a[i] < 0) | (a[i] > 1)", a=(-1.0, 0.5, 2.0)),
    ),
    _truth(
        "logical_not",
        "not a",
        "~",
        lambda a: not a,
        arity=(1, 1),
        takes="truths",
        example=Example.of("y[i] = ~(a[i] > 0)", a=(-1.0, 0.5, 2.0)),
    ),
)

_CONVERSIONS = (
    _real("int64", "a as an integer of 64 bits", int, "0", converts=Element.WHOLE),
    _real(
        "cast",
        "a in the working type",
        float,
        "g",
        number="float({0})",
        converts=Element.NUMBER,
        carries=True,
    ),
    _real(
        "widen",
        "a in float32, or in the working type if that is longer",
        float,
        "g",
        number="float({0})",
        converts=Element.WIDE,
        carries=True,
    ),
)

_RANDOM = (
    Function(
        "dropout",
        "a / (1 − rate) with probability 1 − rate, else 0; a when evaluating",
        arity=(2, 2),
        written="dropout(a, rate)",
        example=Example.of("y[i] = dropout(a[i], 0.1)", a=(-1.0, 0.5, 2.0)),
        yields="real",
        carries=True,
        random=True,
        trains=True,
        drawn="dropped",
    ),
    Function(
        "dropped",
        "a / (1 − rate) where kept, else 0; a when evaluating",
        arity=(3, 3),
        written="dropped(kept, a, rate)",
        example=Example.of("y[i] = dropped(a[i] > 0, a[i], 0.1)", a=(-1.0, 0.5, 2.0)),
        yields="real",
        conditions=1,
        carries=True,
        trains=True,
        moments=_of_choices,
        derivative=("0", "dropped(a, g, c)", "0"),
        spelled=_spell_dropped,
    ),
)

ROWS = (*_ARITHMETIC, *_CURVES, *_CHOICES, *_TRUTHS, *_CONVERSIONS, *_RANDOM)
