"""LaTeX printing: equations as a paper prints them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from ..ops.table import FUNCTIONS
from .equation import Equation
from .expression import (
    Call,
    Contraction,
    Expression,
    Index,
    Literal,
    Parts,
    Ref,
    Size,
    by_names,
    divisor_of,
    show,
)

__all__ = ["aligned", "heading", "row", "row_of_call"]

SIGNS = {
    "==": "=",
    "!=": r"\neq",
    "<=": r"\leq",
    ">=": r"\geq",
    "&": r"\wedge",
    "|": r"\vee",
    "%": r"\operatorname{mod}",
}
"""Operators that LaTeX writes differently."""

SUM, PRODUCT, ATOM = 1, 2, 3
"""Precedence levels: how tightly a printed expression binds."""


def aligned(rows: Iterable[str]) -> str:
    """Rows below one another, aligned at their signs."""
    lines = " \\\\\n".join(rows)
    return f"$\\displaystyle \\begin{{aligned}}\n{lines}\n\\end{{aligned}}$"


def row(equation: Equation) -> str:
    """An equation as a row of `aligned`.

    Example:
        >>> from tensornet.language.parser import parse_block
        >>> from tensornet.language.equation import einstein
        >>> (line,) = parse_block("y[b,o] = x[b,i] * W1[o,i] / sqrt(2)")
        >>> print(row(einstein(line)))
        y_{b o} &= \\sum_{i} \\frac{x_{b i} \\, W1_{o i}}{\\sqrt{2}}
    """
    return f"{_tensor(equation.name, equation.left)} &= {_written(equation.right)[0]}"


def row_of_call(results: Iterable[str], function: str, operands: Iterable[str]) -> str:
    """A call of a block as a row of `aligned`."""
    return f"{_listed(results)} &= {_function(function, operands)}"


def heading(function: str, inputs: Iterable[str]) -> str:
    """The heading above the rows of a block: its name and its inputs."""
    return rf"&{_function(function, inputs)}\colon"


def _function(name: str, operands: Iterable[str]) -> str:
    return rf"\operatorname{{{_plain(name)}}}\left({_listed(operands)}\right)"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(_tensor(name) for name in names)


def _tensor(name: str, index: Sequence[Index] = ()) -> str:
    """`x_{b i}`. A name of several letters is upright; entries that are not letters stand between commas."""
    letters = re.sub(r"([_%#&$])", r"\\\1", name)
    shown = letters if re.fullmatch(r"[^\W\d_]\d*", name) else rf"\mathrm{{{letters}}}"
    entries = [*map(_entry, index)]
    between = " " if all(len(entry) == 1 for entry in entries) else ", "
    return f"{shown}_{{{between.join(entries)}}}" if entries else shown


def _entry(entry: Index | Parts) -> str:
    """An entry of brackets: an axis, a composite, a position that is computed or read."""
    match entry:
        case str():
            return _name(entry)
        case tuple() | Parts():
            parts = entry if isinstance(entry, tuple) else entry.entries
            return f"({','.join(map(_entry, parts))})"
        case Ref() | Contraction() | Call():
            return _written(by_names(entry))[0]
    return _plain(str(entry))


def _plain(text: str) -> str:
    return re.sub(r"([_%#&$])", r"\\\1", text).replace("...", r"\ldots").replace("*", r"\,")


def _name(axis: str) -> str:
    return _plain(axis) if len(axis) == 1 else rf"\mathit{{{_plain(axis)}}}"


def _written(expression: Expression) -> tuple[str, int]:
    """The LaTeX text and its precedence level."""
    match expression:
        case Ref(name, index):
            return _tensor(name, index), ATOM
        case Literal(value):
            return _number(value, show(expression))
        case Size(axis):
            return _name(axis), ATOM
        case Contraction(factors, summed):
            over = rf"\sum_{{{_axes(summed)}}} " if summed else ""
            product = _product(factors)
            if over and product.startswith("-"):
                return f"-{over}{product[1:]}", SUM
            return over + product, SUM if summed else PRODUCT
        case Call("add", terms):
            return _sum(terms), SUM
        case Call("reciprocal"):
            return _product((expression,)), PRODUCT
        case Call(function, arguments) if FUNCTIONS[function].latex:
            text = FUNCTIONS[function].latex.format(*(_written(each)[0] for each in arguments))
            return text, PRODUCT if text.startswith(r"\frac") else ATOM
        case Call("power", (base, exponent)):
            return f"{_bound(base, ATOM)}^{{{_written(exponent)[0]}}}", PRODUCT
        case Call(function, arguments) if FUNCTIONS[function].infix:
            sign = FUNCTIONS[function].infix
            if len(arguments) == 1:
                return rf"\neg {_bound(arguments[0], ATOM)}", PRODUCT
            return f" {SIGNS.get(sign, sign)} ".join(map(_side, arguments)), SUM
    return _call(expression), ATOM


def _call(call: Call) -> str:
    name = rf"\operatorname{{{_plain(call.function)}}}"
    alone = FUNCTIONS[call.function].of_axis_alone
    over = rf"_{{{_axes(call.axes)}}}" if call.axes and not alone else ""
    inside = [*(_written(each)[0] for each in call.arguments), *(map(_name, call.axes) if alone else ())]
    for option, values in call.options:
        shown = ", ".join(_written(value)[0] for value in values)
        inside.append(f"{_name(option)}={shown if len(values) == 1 else f'({shown})'}")
    return rf"{name}{over}\left({', '.join(inside)}\right)"


def _axes(axes: Iterable[str]) -> str:
    return ", ".join(map(_name, axes))


def _number(value: complex, text: str) -> tuple[str, int]:
    """A number and its precedence level: a power of ten, or π, where it is one."""
    if isinstance(value, complex) or "e" not in text:
        shown, level = text.replace("inf", r"\infty").replace(str(math.pi), r"\pi"), ATOM
    else:
        digits, _, power = text.partition("e")
        sign, digits = ("-", digits[1:]) if digits.startswith("-") else ("", digits)
        times = "" if float(digits) == 1 else rf"{digits} \cdot "
        shown, level = f"{sign}{times}10^{{{int(power)}}}", PRODUCT
    return shown, SUM if shown.startswith("-") else level


def _side(expression: Expression) -> str:
    """A side of an operator such as `>`."""
    return _written(expression)[0] if isinstance(expression, Literal) else _bound(expression, ATOM)


def _bound(expression: Expression, level: int) -> str:
    text, own = _written(expression)
    return text if own >= level else rf"\left({text}\right)"


def _product(factors: Sequence[Expression]) -> str:
    """A product; it is one fraction if a factor is a reciprocal."""
    sign, rest = ("-", factors[1:]) if factors[0] == Literal(-1) and len(factors) > 1 else ("", factors)
    below = [divisor for each in rest if (divisor := divisor_of(each))]
    above = [each for each in rest if not divisor_of(each)]
    if not below:
        return sign + _times(above, leads=not sign)
    inside = (_written(each[0])[0] if len(each) == 1 else _times(each) for each in (above, below))
    return rf"{sign}\frac{{{next(inside) or 1}}}{{{next(inside)}}}"


def _times(factors: Sequence[Expression], leads: bool = True) -> str:
    """Factors side by side. A negative number has parentheses unless it is the first one and nothing precedes it."""
    texts = [_bound(each, PRODUCT) for each in factors]
    if leads and factors and isinstance(factors[0], Literal):
        texts[0] = _written(factors[0])[0]
    return r" \, ".join(texts)


def _sum(terms: Sequence[Expression]) -> str:
    texts = [_bound(each, PRODUCT) if isinstance(each, Call) else _written(each)[0] for each in terms]
    return texts[0] + "".join(
        f" - {each[1:]}" if each.startswith("-") else f" + {each}" for each in texts[1:]
    )
