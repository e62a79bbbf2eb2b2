"""Equations as LaTeX, the way a paper prints them: sums as Σ, axes as indices, divisions as fractions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..operations.functions import FUNCTIONS
from .equation import Equation
from .expression import Call, Contraction, Expression, Literal, Ref, Size, show, show_index

__all__ = ["aligned", "latex_of"]

SIGNS = {
    "==": "=",
    "!=": r"\neq",
    "<=": r"\leq",
    ">=": r"\geq",
    "&": r"\wedge",
    "|": r"\vee",
    "//": r"\mathbin{/\!\!/}",
    "%": r"\bmod",
}
"""Signs that LaTeX writes otherwise."""

SUM, PRODUCT, ATOM = 1, 2, 3
"""How tightly what is written binds."""


def aligned(equations: Sequence[Equation]) -> str:
    """Equations below one another, their signs in one column."""
    lines = r" \\ ".join(_equation(each, " &= ") for each in equations)
    return rf"$\displaystyle \begin{{aligned}} {lines} \end{{aligned}}$"


def latex_of(equation: Equation) -> str:
    """One equation.

    Example:
        >>> from tensornet.language.reading import parse_block
        >>> from tensornet.language.equation import einstein
        >>> (line,) = parse_block("y[b,o] = x[b,i] * W1[o,i] / sqrt(2)")
        >>> print(latex_of(einstein(line)))
        y_{b o} = \\sum_{i} x_{b i} \\, W1_{o i} \\frac{1}{\\operatorname{sqrt}\\left(2\\right)}
    """
    return _equation(equation, " = ")


def _equation(equation: Equation, sign: str) -> str:
    left = _tensor(equation.name, show_index(equation.left))
    return f"{left}{sign}{_written(equation.right)[0]}"


def _tensor(name: str, index: str) -> str:
    """`x_{b i}`; a name of several letters upright, commas of composites kept."""
    letters = re.sub(r"([_%#&$])", r"\\\1", name)
    shown = letters if re.fullmatch(r"[^\W\d_]\d*", name) else rf"\mathrm{{{letters}}}"
    if not index:
        return shown
    entries = re.sub(r",(?![^(\[]*[)\]])", " ", index)  # those between entries
    return f"{shown}_{{{_plain(entries)}}}"


def _plain(text: str) -> str:
    return re.sub(r"([_%#&$])", r"\\\1", text).replace("...", r"\ldots").replace("*", r"\,")


def _name(axis: str) -> str:
    return _plain(axis) if len(axis) == 1 else rf"\mathit{{{_plain(axis)}}}"


def _written(expression: Expression) -> tuple[str, int]:
    """The text, and how tightly it binds."""
    match expression:
        case Ref(name, index):
            return _tensor(name, show_index(index)), ATOM
        case Literal():
            return show(expression).replace("inf", r"\infty"), ATOM
        case Size(axis):
            return _name(axis), ATOM
        case Contraction(factors, summed):
            over = rf"\sum_{{{' '.join(map(_name, summed))}}} " if summed else ""
            return over + _product(factors), SUM if summed else PRODUCT
        case Call("add", terms):
            return _sum(terms), SUM
        case Call("reciprocal", (below,)):
            return rf"\frac{{1}}{{{_written(below)[0]}}}", ATOM
        case Call("power", (base, exponent)):
            return f"{_bound(base, ATOM)}^{{{_written(exponent)[0]}}}", PRODUCT
        case Call(function, arguments) if FUNCTIONS[function].infix:
            sign = FUNCTIONS[function].infix
            if len(arguments) == 1:
                return rf"\neg {_bound(arguments[0], ATOM)}", PRODUCT
            return f" {SIGNS.get(sign, sign)} ".join(_bound(each, ATOM) for each in arguments), SUM
    return _call(expression), ATOM


def _call(call: Call) -> str:
    name = rf"\operatorname{{{_plain(call.function)}}}"
    alone = FUNCTIONS[call.function].of_axis_alone
    over = rf"_{{{' '.join(map(_name, call.axes))}}}" if call.axes and not alone else ""
    inside = [*(_written(each)[0] for each in call.arguments), *(map(_name, call.axes) if alone else ())]
    for option, values in call.options:
        shown = ", ".join(_written(value)[0] for value in values)
        inside.append(f"{_name(option)}={shown if len(values) == 1 else f'({shown})'}")
    return rf"{name}{over}\left({', '.join(inside)}\right)"


def _bound(expression: Expression, level: int) -> str:
    text, own = _written(expression)
    return text if own >= level else rf"\left({text}\right)"


def _product(factors: Sequence[Expression]) -> str:
    sign, rest = ("-", factors[1:]) if factors[0] == Literal(-1) and len(factors) > 1 else ("", factors)
    return sign + r" \, ".join(_bound(each, PRODUCT) for each in rest).replace(r"\, \frac", r"\frac")


def _sum(terms: Sequence[Expression]) -> str:
    texts = [_bound(each, PRODUCT) if isinstance(each, Call) else _written(each)[0] for each in terms]
    return texts[0] + "".join(
        f" - {each[1:]}" if each.startswith("-") else f" + {each}" for each in texts[1:]
    )
