"""The functions an equation may call: one table, a row each, and `register` for the user's own.

What a function does to the axes is its `kind`; how a backend spells it is in that backend's
table of templates under the same name.
"""

from __future__ import annotations

import functools
import math
import pickle
import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Literal

from ..errors import BackendError, EquationError
from ..sizes import is_name

__all__ = ["FUNCTIONS", "RESERVED", "Element", "Function", "pack", "register", "unpack"]

Kind = Literal["pointwise", "axis", "reduction", "structure"]
Yield = Literal["truth", "same", "real", "number", "own"]


class Element(IntEnum):
    """What the elements of a tensor are. Where two meet, both become the greater of the two.

    Positions, and what is made of them, stay exact until they meet numbers of the working type.
    """

    TRUTH = 0
    """True and false."""
    SHORT = 1
    """Integers of any width, as they were given; computed with in int64."""
    WHOLE = 2
    """Integers, in int64: positions, counts."""
    WIDE = 3
    """Real numbers made of those and of constants, in float32, or in float64 beside it."""
    NUMBER = 4
    """Numbers of the working type: the one floating type of the arrays that are given."""


@dataclass(frozen=True)
class Function:
    """One function of the equation language.

    `pointwise` maps elements (operands align by axis name), `axis` keeps the axes it runs over
    (softmax), `reduction` removes them (mean), `structure` moves elements (roll, concat).
    `written` shows how an equation writes it, where kind and arity do not tell.

    `yields` says what comes out of exact operands: truth values (`less`), the same as went in
    (`maximum`: integers stay integers), reals (`exp`, which takes nothing else), numbers of the
    working type (`onehot`), or what only the user knows who registered the function.
    """

    name: str
    kind: Kind
    arity: tuple[int, int]
    formula: str
    options: tuple[tuple[str, float], ...] = ()
    infix: str = ""
    written: str = ""
    scalar: Callable[..., Any] | None = field(default=None, compare=False)
    implementations: tuple[tuple[str, Callable[..., Any]], ...] = field(default=(), compare=False)
    yields: Yield = "own"

    @property
    def takes_axes(self) -> bool:
        """Whether the function is written with axes in brackets, as `softmax[j](s)`."""
        return self.kind in ("axis", "reduction") or self.name in ("concat", "onehot")

    @property
    def form(self) -> str:
        """How an equation writes it: `softmax[j](a)`, `a + b`, `where(condition, a, b)`."""
        operands = string.ascii_lowercase[: self.arity[0]]
        if self.written:
            return self.written
        if self.infix:
            return f" {self.infix} ".join(operands) if len(operands) > 1 else f"{self.infix}a"
        arguments = [*operands, *(f"{name}={value:g}" for name, value in self.options)]
        return f"{self.name}{'[j]' if self.takes_axes else ''}({', '.join(arguments)})"


def _pointwise(
    name: str,
    formula: str,
    arity: int | tuple[int, int] = 1,
    infix: str = "",
    scalar: Callable[..., Any] | None = None,
    written: str = "",
    yields: Yield = "real",
) -> Function:
    bounds = arity if isinstance(arity, tuple) else (arity, arity)
    return Function(
        name, "pointwise", bounds, formula, infix=infix, written=written, scalar=scalar, yields=yields
    )


def _sigmoid(a: float) -> float:
    return 0.5 * (1.0 + math.tanh(0.5 * a))


def _gelu(a: float) -> float:
    return 0.5 * a * (1.0 + math.erf(a * math.sqrt(0.5)))


def _gelu_tanh(a: float) -> float:
    return 0.5 * a * (1.0 + math.tanh(math.sqrt(2.0 / math.pi) * (a + 0.044715 * a**3)))


def _power(a: float, b: float) -> float:
    """Exact for integers, as long as 64 bits hold the result."""
    real: float = float(a) ** float(b)
    exact = isinstance(a, int) and isinstance(b, int) and b >= 0 and abs(real) < 2**63
    return a**b if exact else real


def _softplus(a: float) -> float:
    return max(a, 0.0) + math.log1p(math.exp(-abs(a)))


def _table() -> dict[str, Function]:
    many = (2, 10**6)
    rows = [
        _pointwise("add", "a + b + …", many, "+", lambda *a: sum(a), yields="same"),
        _pointwise("reciprocal", "1 / a", scalar=lambda a: 1 / a),
        _pointwise("power", "aᵇ", 2, "**", _power),
        _pointwise("exp", "eᵃ", scalar=math.exp),
        _pointwise("expm1", "eᵃ − 1", scalar=math.expm1),
        _pointwise("log", "natural logarithm", scalar=math.log),
        _pointwise("log1p", "log(1 + a)", scalar=math.log1p),
        _pointwise("sqrt", "√a", scalar=math.sqrt),
        _pointwise("rsqrt", "1 / √a", scalar=lambda a: 1 / math.sqrt(a)),
        _pointwise("square", "a²", scalar=lambda a: a * a, yields="same"),
        _pointwise("abs", "|a|", scalar=abs, yields="same"),
        _pointwise("sign", "−1, 0 or 1", scalar=lambda a: (a > 0) - (a < 0), yields="same"),
        _pointwise("floor", "largest integer ≤ a", scalar=math.floor, yields="same"),
        _pointwise("sin", "sine", scalar=math.sin),
        _pointwise("cos", "cosine", scalar=math.cos),
        _pointwise("tanh", "hyperbolic tangent", scalar=math.tanh),
        _pointwise("erf", "error function", scalar=math.erf),
        _pointwise("sigmoid", "1 / (1 + e⁻ᵃ)", scalar=_sigmoid),
        _pointwise("relu", "max(a, 0)", scalar=lambda a: max(a, 0.0), yields="same"),
        _pointwise("gelu", "a·Φ(a), exact", scalar=_gelu),
        _pointwise("gelu_tanh", "a·Φ(a), tanh approximation", scalar=_gelu_tanh),
        _pointwise("silu", "a·sigmoid(a)", scalar=lambda a: a * _sigmoid(a)),
        _pointwise("softplus", "log(1 + eᵃ)", scalar=_softplus),
        _pointwise("maximum", "the larger of a and b", 2, scalar=max, yields="same"),
        _pointwise("minimum", "the smaller of a and b", 2, scalar=min, yields="same"),
        _pointwise(
            "where",
            "a if condition else b",
            3,
            scalar=lambda c, a, b: a if c else b,
            written="where(condition, a, b)",
            yields="same",
        ),
        _pointwise("equal", "a = b", 2, "==", scalar=lambda a, b: a == b, yields="truth"),
        _pointwise("not_equal", "a ≠ b", 2, "!=", scalar=lambda a, b: a != b, yields="truth"),
        _pointwise("less", "a < b", 2, "<", scalar=lambda a, b: a < b, yields="truth"),
        _pointwise("less_equal", "a ≤ b", 2, "<=", scalar=lambda a, b: a <= b, yields="truth"),
        _pointwise("greater", "a > b", 2, ">", scalar=lambda a, b: a > b, yields="truth"),
        _pointwise("greater_equal", "a ≥ b", 2, ">=", scalar=lambda a, b: a >= b, yields="truth"),
        _pointwise("logical_and", "a and b", 2, "&", scalar=lambda a, b: bool(a and b), yields="truth"),
        _pointwise("logical_or", "a or b", 2, "|", scalar=lambda a, b: bool(a or b), yields="truth"),
        _pointwise("logical_not", "not a", 1, "~", lambda a: not a, yields="truth"),
        _pointwise("int64", "a as an integer of 64 bits", scalar=int),
        _pointwise("cast", "a in the working type", scalar=float),
        _pointwise("widen", "a in float32, or in the working type if that is longer", scalar=float),
        _pointwise(
            "dropout",
            "a / (1 − rate) with probability 1 − rate, else 0; a when evaluating",
            2,
            written="dropout(a, rate)",
        ),
        Function("softmax", "axis", (1, 1), "eᵃ / Σ eᵃ", yields="real"),
        Function("log_softmax", "axis", (1, 1), "a − log Σ eᵃ", yields="real"),
        Function("hardmax", "axis", (1, 1), "1 at the first largest element, 0 elsewhere", yields="number"),
        Function(
            "normalize", "axis", (1, 1), "(a − mean) / √(variance + eps)", (("eps", 1e-5),), yields="real"
        ),
        Function("mean", "reduction", (1, 1), "arithmetic mean", yields="real"),
        Function("var", "reduction", (1, 1), "biased variance", yields="real"),
        Function("max", "reduction", (1, 1), "largest element", yields="same"),
        Function("min", "reduction", (1, 1), "smallest element", yields="same"),
        Function("prod", "reduction", (1, 1), "product of the elements", yields="same"),
        Function("logsumexp", "reduction", (1, 1), "log Σ eᵃ", yields="real"),
        Function(
            "index", "structure", (0, 0), "position along an axis, from 0", written="index(i)", yields="same"
        ),
        Function(
            "roll", "structure", (1, 1), "a at i − s, around the ends", written="roll(a, i=s)", yields="same"
        ),
        Function(
            "concat",
            "structure",
            (1, 10**6),
            "operands one after another along an axis",
            written="concat[j](a, b, …)",
            yields="same",
        ),
        Function(
            "pad",
            "structure",
            (1, 1),
            "a with so many more positions along an axis, fewer where negative",
            (("value", 0),),
            written="pad(a, i=(before, after), value=0)",
            yields="same",
        ),
        Function("onehot", "structure", (1, 1), "1 where a is the position along j, else 0", yields="number"),
    ]
    return {row.name: row for row in rows}


FUNCTIONS: dict[str, Function] = _table()

SUM = Function("sum", "reduction", (1, 1), "Σ a")
"""Read as a contraction, so no row of the table; a user meets it as one function among others."""

RESERVED = frozenset({"sum", "pi", "inf"})
"""Words of the language that are no row of the table."""


def register(name: str, *, over_axis: bool = False, arity: int = 1, **backends: Callable[..., Any]) -> None:
    """Adds a function of your own to the equation language, for every later equation.

    A pointwise function is called with arrays aligned to one another; with `over_axis=True` it
    is called as `f(array, axis)` and keeps the shape, written `name[j](x)`.

    Args:
        name: how equations call it; a Python name.
        over_axis: whether it runs along one axis instead of element by element.
        arity: how many arrays a pointwise function takes.
        **backends: the implementation for each backend, as `numpy=...`, `torch=...`, `cupy=...`.

    Raises:
        EquationError: the name is not a Python name or belongs to the language, the arity is no
            number of arrays, or an implementation is missing or cannot be called.

    Example:
        >>> import numpy as np, tensornet as tn
        >>> tn.register("cube", numpy=lambda a: a**3, torch=lambda a: a**3)
        >>> f = tn.compile(tn.layer("y[i] = cube(x[i])", inputs="x"), backend="numpy")
        >>> f({}, np.array([1.0, 2.0]))
        array([1., 8.])
    """
    if not isinstance(name, str) or not is_name(name):
        raise EquationError(f"{name!r} cannot name a function", fix="use letters, digits and '_'")
    if (name in FUNCTIONS and not FUNCTIONS[name].implementations) or name in RESERVED:
        raise EquationError(f"'{name}' belongs to the language", fix="register under another name")
    if not backends:
        raise EquationError(f"'{name}' has no implementation", fix=f"register('{name}', numpy=...)")
    for backend, implementation in backends.items():
        if not callable(implementation):
            fix = f"give a function of arrays of {backend}"
            raise EquationError(f"'{name}' for {backend} is {implementation!r}", fix=fix)
    if not isinstance(arity, int) or isinstance(arity, bool) or arity < 1:
        raise EquationError(f"the arity of '{name}' is {arity!r}", fix="give how many arrays it takes")
    kind: Kind = "axis" if over_axis else "pointwise"
    FUNCTIONS[name] = Function(
        name, kind, (arity, arity), "registered by the user", implementations=tuple(backends.items())
    )


# ---------------------------------------------------------------------------- to another process


@dataclass(frozen=True)
class Packed:
    """A registered function on its way to another process; its implementations by name, as pickle has them."""

    row: Function
    implementations: tuple[tuple[str, bytes], ...]


def pack(names: Iterable[str]) -> tuple[Packed, ...]:
    """Those of the functions that the user registered, to be pickled."""
    rows = [FUNCTIONS[name] for name in dict.fromkeys(names)]
    return tuple(
        Packed(
            replace(row, implementations=()), tuple((name, _by_name(f)) for name, f in row.implementations)
        )
        for row in rows
        if row.implementations
    )


def unpack(packed: Iterable[Packed]) -> None:
    """Registers what was packed, where it is not registered already."""
    for each in packed:
        name = each.row.name
        found = tuple((backend, _found(name, data)) for backend, data in each.implementations)
        FUNCTIONS.setdefault(name, replace(each.row, implementations=found))


def _by_name(function: Callable[..., Any]) -> bytes:
    """A pickle of a function that can be imported; nothing for another, such as a lambda."""
    try:
        return pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError):
        return b""


def _found(name: str, data: bytes) -> Callable[..., Any]:
    """The function, where it can be imported here; else one that says so when it is called."""
    try:
        function: Callable[..., Any] = pickle.loads(data)
    except (ImportError, AttributeError, EOFError):
        return functools.partial(_left_behind, name)
    return function


def _left_behind(name: str, *_: Any) -> Any:
    raise BackendError(
        f"'{name}' was registered in another process, and its function cannot be imported in this one",
        fix=f"call tensornet.register('{name}', …) here first, or define the function at the top of a module",
    )
