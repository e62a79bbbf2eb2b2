"""LaTeX printing: equations as a paper prints them, by way of sympy expressions that nothing evaluates."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from ..ops.table import FUNCTIONS
from .equation import Equation
from .expression import Call, Contraction, Expression, Index, Literal, Ref, Size, by_names

SIGNS = {"==": "=", "!=": r"\neq", "<=": r"\leq", ">=": r"\geq", "&": r"\wedge", "|": r"\vee"}
"""Operators that LaTeX writes differently."""


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
    return f"{_tensor(equation.name, equation.left)} &= {_written(equation.right)}"


def row_of_call(results: Iterable[str], function: str, operands: Iterable[str]) -> str:
    """A call of a block as a row of `aligned`."""
    return f"{', '.join(map(_tensor, results))} &= {_function(function, map(_tensor, operands))}"


def heading(function: str, inputs: Iterable[str]) -> str:
    """The heading above the rows of a block: its name and its inputs."""
    return rf"&{_function(function, map(_tensor, inputs))}\colon"


def _function(name: str, operands: Iterable[str], over: str = "") -> str:
    return rf"\operatorname{{{_plain(name)}}}{over}\left({', '.join(operands)}\right)"


def _tensor(name: str, index: Sequence[Index] = ()) -> str:
    """`x_{b i}`. A name of several letters is upright; entries that are not letters stand between commas."""
    letters = re.sub(r"([_%#&$])", r"\\\1", name)
    shown = letters if re.fullmatch(r"[^\W\d_]\d*", name) else rf"\mathrm{{{letters}}}"
    entries = [*map(_entry, index)]
    between = " " if all(len(entry) == 1 for entry in entries) else ", "
    return f"{shown}_{{{between.join(entries)}}}" if entries else shown


def _entry(entry: Index) -> str:
    """An entry of brackets: an axis, a composite, a position that is computed or read."""
    match entry:
        case str():
            return _name(entry)
        case tuple():
            return f"({','.join(map(_entry, entry))})"
        case Ref() | Contraction() | Call():
            return _written(by_names(entry))
    return _plain(str(entry))


def _plain(text: str) -> str:
    return re.sub(r"([_%#&$])", r"\\\1", text).replace("...", r"\ldots").replace("*", r"\,")


def _name(axis: str) -> str:
    return _plain(axis) if len(axis) == 1 else rf"\mathit{{{_plain(axis)}}}"


def _written(expression: Expression, alone: bool = True) -> str:
    """An expression as LaTeX. `alone`: whether a sum over axes needs no parentheses."""
    import sympy

    return sympy.latex(_formula(expression, alone), order="none", mul_symbol=r" \, ")  # type: ignore[no-any-return]


def _formula(expression: Expression, alone: bool = False) -> Any:
    """An expression in sympy. What sympy has no form for is a symbol that is called by its LaTeX text."""
    from sympy import Add, Mul, Pow, Symbol, pi, sympify

    match expression:
        case Literal(value):
            return pi if value == math.pi else sympify(value)
        case Contraction(factors, summed) if not summed:
            return Mul(*map(_formula, factors), evaluate=False)
        case Contraction((Literal(-1), *factors), summed):
            return Mul(-1, _formula(Contraction(tuple(factors), summed), True), evaluate=False)
        case Call("add", terms):
            return Add(*(_formula(term, alone) for term in terms), evaluate=False)
        case Call("reciprocal", (below,)):
            return Pow(_formula(below), -1, evaluate=False)
        case Call("power", (base, exponent)):
            is_float = isinstance(base, Literal) and isinstance(base.value, float)
            below = Symbol(_written(base)) if is_float else _formula(base)
            return Pow(below, _formula(exponent), evaluate=False)
    return Symbol(_atom(expression, alone))


def _atom(expression: Expression, alone: bool) -> str:
    """The LaTeX text of what is no arithmetic."""
    match expression:
        case Ref(name, index):
            return _tensor(name, index)
        case Size(axis):
            return _name(axis)
        case Contraction(factors, summed):
            product = _written(Contraction(factors), False)
            if isinstance(factors[0], Call) and factors[0].function == "add" and len(factors) == 1:
                product = rf"\left({product}\right)"
            text = rf"\sum_{{{', '.join(map(_name, summed))}}} {product}"
            return text if alone else rf"\left({text}\right)"
        case Call(function, arguments) if FUNCTIONS[function].latex:
            text = FUNCTIONS[function].latex.format(*map(_written, arguments))
            return rf"\left({text}\right)" if text.startswith(r"\frac") and not alone else text
        case Call(function, arguments) if (sign := FUNCTIONS[function].infix) in (*SIGNS, "<", ">"):
            return rf"\left({f' {SIGNS.get(sign, sign)} '.join(map(_written, arguments))}\right)"
        case Call(function, arguments, axes, options):
            names = [*map(_name, axes)]
            alone = FUNCTIONS[function].of_axis_alone
            inside = [*map(_written, arguments), *(names if alone else ())]
            for option, values in options:
                shown = ", ".join(map(_written, values))
                inside.append(f"{_name(option)}={shown if len(values) == 1 else f'({shown})'}")
            return _function(function, inside, rf"_{{{', '.join(names)}}}" if axes and not alone else "")
    raise TypeError(expression)
