"""Diagnostics: hints for common mistakes, and undeclared names that look like typos."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence

from ..errors import nearest
from ..ops.structure import INDEX
from ..ops.table import FUNCTIONS
from .expression import Call, Expression, Literal, Ref, Size, factors_in, subexpressions, terms_in

MEANT: dict[type[ast.AST], str] = {
    ast.MatMult: "name the axes of a product, `x[b,i] * w[i,o]`: what is not on the left is summed",
    ast.BitXor: "write a power with **",
    ast.And: "write & between truth values, each in brackets",
    ast.Or: "write | between truth values, each in brackets",
    ast.Not: "write ~ before a truth value in brackets",
    ast.IfExp: "write where(condition, a, b)",
    ast.Compare: "compare two at a time, `(a < b) & (b < c)`",
    ast.Lambda: "write the expression itself, or add a function by tn.register",
    ast.ListComp: "name an axis, and write the expression for each of its positions",
    ast.GeneratorExp: "name an axis, and write the expression for each of its positions",
    ast.Subscript: "write x[b,0], all in one pair of brackets after a name, which z[b,c] = … gives in a line before",
}
"""What to write instead of Python syntax that the language lacks."""


def meant(*nodes: ast.AST) -> str:
    """The hint for the first of these nodes that has one; empty if none has."""
    return next((MEANT[type(node)] for node in nodes if type(node) in MEANT), "")


IN_OTHER_WORDS = {
    "flip": "read it from its end, as in x[b,n-1-i]",
    "sort": "gather in order, as in x[b,argsort[i](x[b,i])]",
    **dict.fromkeys(("conv", "conv1d", "conv2d"), "multiply windows, x[b,c,p+u] * K[o,c,u]"),
    **dict.fromkeys(("batchnorm", "batchnorm1d", "batchnorm2d"), "write normalize[b](…) over the batch"),
    **dict.fromkeys(("matmul", "einsum", "dot", "bmm"), "name the axes of a product, x[b,i] * W[i,o]"),
    **dict.fromkeys(("fft", "rfft"), "multiply with cos and sin of 2 * pi * index(k) * index(i) / n"),
    **dict.fromkeys(("maxpool", "maxpool1d", "maxpool2d"), "take it of windows, max[u](x[b,c,2*p+u])"),
    **dict.fromkeys(("avgpool", "avgpool1d", "avgpool2d"), "take it of windows, mean[u](x[b,c,2*p+u])"),
    **dict.fromkeys(
        ("detach", "stopgradient"),
        'tn.register("stop_gradient", derivative="0", numpy=lambda a: a, torch=lambda a: a.detach())',
    ),
}
"""What the language says without a function of its own, by the names that other libraries have for it."""


def called_elsewhere(name: str, axes: Sequence[str] = ()) -> str:
    """The hint for a function that other libraries call by this name; empty if there is none."""
    plain = name.lower().replace("_", "")
    if plain in IN_OTHER_WORDS:
        return f"{IN_OTHER_WORDS[plain]}; "
    for each in FUNCTIONS.values():
        if plain in each.elsewhere:
            index = f"[{','.join(axes or ['c'])}]" if each.takes_axes else ""
            return f"write {each.name}{index}(…); "
    return ""


def misplaced(expression: Expression, names: Collection[str]) -> Iterator[Ref]:
    """The reads of these names where a trainable number makes no sense: under a root, among positions, or where no
    gradient reaches it, as in a condition, a comparison or a rounding."""
    for part in subexpressions(expression):
        if isinstance(part, Call):
            row, among = FUNCTIONS[part.function], any(map(_is_position, terms_in(part)))
            for n, argument in enumerate(part.arguments):
                hopeless = among or row.root or (row.derivative and row.gradient(n) == "0")
                factors = (each for term in terms_in(argument) for each in factors_in(term))
                for each in factors if hopeless else ():
                    if isinstance(each, Ref) and not each.index and each.name in names:
                        yield each


def _is_position(term: Expression) -> bool:
    """Whether a term is a position: an `index` call, possibly multiplied by sizes and numbers."""
    rest = [factor for factor in factors_in(term) if not isinstance(factor, Literal | Size)]
    return len(rest) == 1 and isinstance(rest[0], Call) and rest[0].function == INDEX.name


_WORD = re.compile(r"[^\W\d_]+")


def slip_of(name: str, known: Collection[str]) -> str | None:
    """The known name that this one misspells in one word. Other digits or other short words are no misspelling."""
    for other in known:
        if _WORD.split(name) == _WORD.split(other):
            pairs = zip(_WORD.findall(name), _WORD.findall(other), strict=True)
            match [(mine, their) for mine, their in pairs if mine != their]:
                case [(mine, their)] if min(len(mine), len(their)) > 3 and nearest(mine, [their]):
                    return other
    return None
