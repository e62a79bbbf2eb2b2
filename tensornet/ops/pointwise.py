"""Pointwise functions: arithmetic, activations, comparisons, choices, conversions."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

from ..syntax import Call
from .record import Element, Example, Function, Known, Left, Lowering, Moments, Value, Writer, Yield, average

MANY = (2, 10**6)

LARGEST_HALF = 65504.0
"""The largest finite number in half precision."""


def _function(
    yields: Yield,
    name: str,
    formula: str,
    scalar: Callable[..., Any],
    *rules: str,
    passes: float | tuple[float, float] = 1.0,
    **more: Any,
) -> Function:
    """The record of a pointwise function: its value on numbers, the derivative of each operand, and its passes.

    A function of Python's own, or of its `math`, and an operator are the same in numbers that depend on open sizes.
    """
    if (module := getattr(scalar, "__module__", "")) in ("math", "builtins"):
        called = f"math.{name}" if module == "math" else scalar.__name__
        operands = ", ".join(f"{{{n}}}" for n in range(more.get("arity", (1, 1))[0]))
        more.setdefault("number", f"{called}({operands})")
    elif more.get("arity") == (2, 2) and "infix" in more:
        more.setdefault("number", f"({{0}} {more['infix']} {{1}})")
    costs = passes if isinstance(passes, tuple) else (passes, passes)
    return Function(name, formula, yields=yields, scalar=scalar, derivative=rules, passes=costs, **more)


_real = functools.partial(_function, "real")
"""The record of a function whose result is real."""

_same = functools.partial(_function, "same")
"""The record of a function that keeps integers."""

_real_only = functools.partial(_real, complex="refused")
_ordered = functools.partial(_same, complex="refused")
"""The same for functions of real numbers only, and for functions that compare numbers."""


def _truth(
    name: str, formula: str, infix: str, scalar: Callable[..., Any], n: int = 2, **more: Any
) -> Function:
    """The record of a function of `n` operands that returns a truth value, so none of them gets a gradient."""
    flat = ("0",) * n
    return _function("truth", name, formula, scalar, *flat, arity=(n, n), infix=infix, **more)


def _logical(
    name: str, formula: str, infix: str, scalar: Callable[..., Any], shown: str, n: int = 2
) -> Function:
    """The record of a function of truth values, with an example."""
    more = {"takes": "truths", "example": Example.of(f"y[i] = {shown}")}
    number = f"(bool({{0}}) {infix} bool({{1}}))" if n > 1 else "(not {0})"
    return _truth(name, formula, infix, scalar, n, number=number, **more)


def _division(
    name: str, formula: str, infix: str, scalar: Callable[..., Any], *rules: str, latex: str = ""
) -> Function:
    """The record of a division with a whole quotient, exact for integers."""
    formula = f"{formula}, exact for integers, and 0 where they are divided by 0"
    return _ordered(name, formula, scalar, *rules, arity=(2, 2), infix=infix, latex=latex)


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


def _hardsigmoid(a: float) -> float:
    return min(max(a + 3.0, 0.0), 6.0) / 6.0


SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772
"""With these the mean 0 and the variance 1 of a wide layer are a fixed point (Klambauer et al. 2017)."""


# ---------------------------------------------------------------------------- rules


def _of_two(known: Known) -> Moments | None:
    """The average moments of two tensors, each chosen equally often; None for a tensor and a number."""
    return average(known.operands) if len(known.tensors) > 1 else None


def _of_choices(known: Known) -> Moments:
    return average([known.operands[n] for n in known.tensors if n])


def _spell_where(writer: Writer, call: Call, left: Left) -> str:
    """The call of `where`. Of two numbers the first becomes a tensor; a large mask value is clipped to the type."""
    condition, a, b = call.arguments
    first, second = writer.render(a, left), writer.render(b, left)
    if a.is_scalar and b.is_scalar:
        first = writer.number(a)
    elif not a.is_scalar and _is_large(writer.value(b)):
        second = writer.op("finite", second, first)
    return writer.op(call.function, writer.render(condition, left), first, second)


def _spell_dropped(writer: Writer, call: Call, left: Left) -> str:
    """The call of `dropped`. If the dropped operand is a number, it becomes a tensor."""
    kept, a, rate = call.arguments
    value = writer.number(a) if a.is_scalar else writer.render(a, left)
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
    _division(
        "floor_divide",
        "⌊a / b⌋",
        "//",
        operator.floordiv,
        "0",
        latex=r"\left\lfloor \frac{{{0}}}{{{1}}} \right\rfloor",
    ),
    _division("remainder", "a − b·⌊a / b⌋", "%", operator.mod, "g", "-g * (a // b)"),
    _real(
        "power",
        "aᵇ",
        _power,
        "g * b * a ** where(b == 0, 1, b - 1)",
        "g * y * log(where(a > 0, a, 1))",
        arity=(2, 2),
        infix="**",
        keeps_whole=lambda base, exponent: (
            isinstance(exponent, int) and 0 <= exponent <= 3
        ),  # 64 bits hold it
        positive=True,
    ),
)

TANH = _real("tanh", "hyperbolic tangent", math.tanh, "g * (1 - y ** 2)", passes=8)
SIGMOID = _real("sigmoid", "1 / (1 + e⁻ᵃ)", _sigmoid, "g * y * (1 - y)", passes=3)
RELU = _ordered("relu", "max(a, 0)", lambda a: max(a, 0.0), "where(a > 0, g, 0)")

ABS = _same("abs", "|a|", abs, "g * sign(a)", complex="measured", latex=r"\left|{0}\right|")

_root = functools.partial(_real, positive=True, root=True)

_ELEMENTARY = (
    _real("exp", "eᵃ", math.exp, "g * y", passes=3.5),
    _real("expm1", "eᵃ − 1", math.expm1, "g * (y + 1)", passes=5),
    _real("log", "natural logarithm", math.log, "g / a", positive=True, passes=4.5, elsewhere=("ln",)),
    _real(
        "log1p",
        "log(1 + a)",
        math.log1p,
        "g / (1 + a)",
        example=Example.of("y[i] = log1p(a[i])", a=(0.0, 0.5, 2.0)),
        passes=4,
    ),
    _root(
        "sqrt",
        "√a",
        math.sqrt,
        "g / (2 * y)",
        number="({0} ** 0.5)",
        expansion="a ** 0.5",
        passes=2.5,
        latex=r"\sqrt{{{0}}}",
    ),
    _root(
        "rsqrt",
        "1 / √a",
        lambda a: 1 / math.sqrt(a),
        "-g * y ** 3 / 2",
        number="({0} ** -0.5)",
        expansion="a ** -0.5",
        passes=2,
        latex=r"\frac{{1}}{{\sqrt{{{0}}}}}",
    ),
    _same("square", "a²", lambda a: a * a, "2 * g * a", expansion="a ** 2", number="({0} ** 2)"),
    ABS,
    _ordered("sign", "−1, 0 or 1, and NaN of NaN", lambda a: (a > 0) - (a < 0), "0"),
    _ordered(
        "floor",
        "largest integer ≤ a",
        math.floor,
        "0",
        in_sizes="floor",
        rounds="//",
        latex=r"\left\lfloor {0} \right\rfloor",
    ),
    _ordered(
        "ceil",
        "smallest integer ≥ a",
        math.ceil,
        "0",
        lowered=_lower_whole,
        latex=r"\left\lceil {0} \right\rceil",
    ),
    _ordered("round", "nearest integer, the even one of two", round, "0", lowered=_lower_whole),
    _real("sin", "sine", math.sin, "g * cos(a)", passes=6),
    _real("cos", "cosine", math.cos, "-g * sin(a)", passes=6),
    TANH,
    _real_only("erf", "error function", math.erf, "g * 2 / sqrt(pi) * exp(-a ** 2)", passes=8),
)

_ACTIVATIONS = (
    SIGMOID,
    RELU,
    _real_only(
        "gelu",
        "a·Φ(a), exact",
        _gelu,
        "g * (0.5 + 0.5 * erf(a * sqrt(0.5)) + a * exp(-0.5 * a ** 2) / sqrt(2 * pi))",
        passes=3.5,
    ),
    _real_only(
        "gelu_tanh",
        "a·Φ(a), tanh approximation",
        _gelu_tanh,
        "g * (0.5 + 0.5 * tanh(sqrt(2 / pi) * (a + 0.044715 * a ** 3))"
        " + 0.5 * a * (1 - tanh(sqrt(2 / pi) * (a + 0.044715 * a ** 3)) ** 2)"
        " * sqrt(2 / pi) * (1 + 0.134145 * a ** 2))",
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
    _real_only("softplus", "log(1 + eᵃ)", _softplus, "g * sigmoid(a)", passes=9),
    _real_only("log_sigmoid", "log sigmoid(a)", lambda a: -_softplus(-a), "g * sigmoid(-a)", passes=9),
    _real_only(
        "leaky_relu",
        "a where a > 0, else slope·a",
        lambda a, slope=0.01: a if a > 0 else slope * a,
        "where(a > 0, g, slope * g)",
        options=(("slope", 0.01),),
        elsewhere=("lrelu",),
    ),
    _real_only(
        "elu",
        "a where a > 0, else alpha·(eᵃ − 1)",
        _elu,
        "where(a > 0, g, g * (y + alpha))",
        options=(("alpha", 1.0),),
        passes=2,
    ),
    _real_only(
        "selu",
        "elu(a) scaled so that variances settle at 1",
        lambda a: SELU_SCALE * _elu(a, SELU_ALPHA),
        f"where(a > 0, {SELU_SCALE} * g, g * (y + {SELU_SCALE * SELU_ALPHA}))",
    ),
    _real_only(
        "mish",
        "a·tanh(softplus(a))",
        lambda a: a * math.tanh(_softplus(a)),
        "g * (tanh(softplus(a)) + a * sigmoid(a) * (1 - tanh(softplus(a)) ** 2))",
        passes=20,
    ),
    _real_only("softsign", "a / (1 + |a|)", lambda a: a / (1 + abs(a)), "g / (1 + abs(a)) ** 2", passes=2.5),
    _real_only(
        "hardsigmoid", "(a + 3) / 6, between 0 and 1", _hardsigmoid, "where(abs(a) < 3, g / 6, 0)", passes=2.5
    ),
    _real_only(
        "hardswish",
        "a·hardsigmoid(a)",
        lambda a: a * _hardsigmoid(a),
        "where(abs(a) < 3, g * (a / 3 + 0.5), where(a < 0, 0, g))",
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
    operands=("condition", "a", "b"),
    number="({1} if {0} else {2})",
    example=Example.of("y[i] = where(a[i] > 0, a[i], 10 * a[i])"),
    takes="any",
    conditions=1,
    carries=True,
    moments=_of_choices,
    passes=(3.5, 12.0),
    spelled=_spell_where,
)


def _extreme(name: str, formula: str, scalar: Callable[..., Any], sign: str) -> Function:
    """The record of `maximum` or `minimum`: equal operands share the gradient."""
    one, other = (f"g * (({a} {sign} {b}) + 0.5 * (a == b))" for a, b in ("ab", "ba"))
    sized = {"arity": (2, 2), "in_sizes": name[:3].capitalize()}
    return _ordered(name, formula, scalar, one, other, moments=_of_two, **sized)


_CHOICES = (
    _extreme("maximum", "the larger of a and b", max, ">"),
    _extreme("minimum", "the smaller of a and b", min, "<"),
    _ordered(
        "clip",
        "a, but low where it is less, and high where more",
        lambda a, low, high: min(max(a, low), high),
        "where((a >= b) & (a <= c), g, 0)",
        "where((a < b) & (b < c), g, 0)",
        "where(maximum(a, b) > c, g, 0)",
        arity=(3, 3),
        operands=("a", "low", "high"),
        number="min(max({0}, {1}), {2})",
        example=Example.of("y[i] = clip(a[i], 0, 1)"),
        elsewhere=("clamp",),
    ),
    WHERE,
)

EQUAL = _truth("equal", "a = b", "==", operator.eq)
AND = _logical("logical_and", "a and b", "&", lambda a, b: bool(a and b), "(a[i] > 0) & (a[i] < 1)")
NOT = _logical("logical_not", "not a", "~", operator.not_, "~(a[i] > 0)", 1)
LESS_EQUAL = _truth("less_equal", "a ≤ b", "<=", operator.le, complex="refused", expansion="b >= a")
GREATER = _truth("greater", "a > b", ">", operator.gt, complex="refused")
GREATER_EQUAL = _truth("greater_equal", "a ≥ b", ">=", operator.ge, complex="refused")

_TRUTHS = (
    EQUAL,
    _truth("not_equal", "a ≠ b", "!=", operator.ne, converts=Element.TRUTH),
    _truth("less", "a < b", "<", operator.lt, complex="refused", expansion="b > a"),
    LESS_EQUAL,
    GREATER,
    GREATER_EQUAL,
    AND,
    _logical("logical_or", "a or b", "|", lambda a, b: bool(a or b), "(a[i] < 0) | (a[i] > 1)"),
    NOT,
)

_cast = functools.partial(_real, carries=True)

_CONVERSIONS = (
    _real("int64", "a as an integer of 64 bits", int, "0", converts=Element.WHOLE, elsewhere=("int", "long")),
    _cast("cast", "a in the working type", float, "g", converts=Element.NUMBER),
    _cast(
        "widen", "a in float32, or in the working type if that is longer", float, "g", converts=Element.WIDE
    ),
)

_dropped = functools.partial(Function, yields="real", carries=True, trains=True)

_RANDOM = (
    _dropped(
        "dropout",
        "a / (1 − rate) with probability 1 − rate, else 0; a when evaluating",
        arity=(2, 2),
        operands=("a", "rate"),
        example=Example.of("y[i] = dropout(a[i], 0.1)"),
        random=True,
        drawn="dropped",
    ),
    _dropped(
        "dropped",
        "a / (1 − rate) where kept, else 0; a when evaluating",
        arity=(3, 3),
        operands=("kept", "a", "rate"),
        example=Example.of("y[i] = dropped(a[i] > 0, a[i], 0.1)"),
        conditions=1,
        moments=_of_choices,
        derivative=("0", "dropped(a, g, c)", "0"),
        spelled=_spell_dropped,
    ),
)

ROWS = (*_ARITHMETIC, *_ELEMENTARY, *_ACTIVATIONS, *_CHOICES, *_TRUTHS, *_CONVERSIONS, *_RANDOM)
