"""Diagnostics: hints for common mistakes, and undeclared names that look like typos."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Collection, Iterator, Sequence

from ..errors import nearest
from ..ops.table import FUNCTIONS
from .affine import affine
from .expression import Call, Contraction, Expression, Ref

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
    "median": "read the middle of what is sorted, x[o[1]] with o[i] = argsort[i](x[i])",
    "bool": "compare, as in x[b] != 0",
    "any": "take the largest truth value, max[i](x[b,i] > 0)",
    "all": "take the least truth value, min[i](x[b,i] > 0)",
    "tan": "write sin(x) / cos(x)",
    "sinh": "write (exp(x) - exp(-x)) / 2",
    "cosh": "write (exp(x) + exp(-x)) / 2",
    "pow": "write a power with **",
    "crossentropy": "write logsumexp[c](z[b,c]) - z[b,t[b]]",
    "rmsnorm": "write x / sqrt(mean[c](x ** 2) + 0.00001)",
    "scatter": "add at positions, y[k[n]] += x[n]",
    **dict.fromkeys(("log2", "log10"), "divide logarithms, as in log(x) / log(2)"),
    **dict.fromkeys(("mod", "fmod"), "write a remainder with %"),
    **dict.fromkeys(
        ("float", "float32", "float64"), "write 1.0 * x: beside a number of the working type, x is one"
    ),
    **dict.fromkeys(("range", "arange"), "write index(i) for the positions along i"),
    **dict.fromkeys(("len", "size", "shape"), "write i alone: outside of brackets, an axis is its size"),
    **dict.fromkeys(("transpose", "permute", "swapaxes"), "write the axes in another order, y[i,b] = x[b,i]"),
    **dict.fromkeys(("reshape", "view", "flatten"), "write a composite axis, as in y[b,(i,j)] = x[b,i,j]"),
    **dict.fromkeys(("gather", "take", "embedding"), "read at positions, as in E[t[b,n],c]"),
    **dict.fromkeys(("zeros", "ones", "full"), "write the number itself, repeat[i](0) where it has axes"),
    **dict.fromkeys(
        ("eye", "tril", "triu"), "compare positions, as in where(index(i) >= index(j), x[i,j], 0)"
    ),
    **dict.fromkeys(("conv", "conv1d", "conv2d"), "multiply windows, x[b,c,p+u] * K[o,c,u]"),
    **dict.fromkeys(("batchnorm", "batchnorm1d", "batchnorm2d"), "write normalize[b](…) over the batch"),
    **dict.fromkeys(
        ("matmul", "einsum", "dot", "bmm", "mm", "tensordot", "outer"),
        "name the axes of a product, x[b,i] * W[i,o]",
    ),
    **dict.fromkeys(
        ("inv", "solve", "cholesky", "svd", "eigh", "qr", "det", "conj", "real", "imag"),
        "compute it by the library of your arrays, and give it as an input",
    ),
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


_WORD = re.compile(r"[^\W\d_]+")


def misplaced(expression: Expression, names: Collection[str], why: str = "") -> Iterator[tuple[Ref, str]]:
    """The reads of these names where a trainable number makes no sense, each with the reason.

    Either no gradient reaches it, in a condition, a comparison or a rounding. Or it is a size, under a root or
    among positions.
    """
    if isinstance(expression, Ref) and not expression.index:
        if why and expression.name in names:
            yield expression, why
        return
    reasons = itertools.chain(_reasons(expression, why), itertools.repeat(""))
    for part, reason in zip(expression.parts, reasons, strict=False):
        yield from misplaced(part, names, reason)


def _reasons(whole: Expression, why: str) -> list[str]:
    """For each argument or factor, why it cannot be a trainable number; empty where it can."""
    match whole:
        case Contraction(factors):
            return [why] * len(factors)
        case Call("add", terms):
            among = any(map(affine, terms))
            return ["it is added to positions" if among else why] * len(terms)
        case Call(function, arguments) if FUNCTIONS[function].root:
            return ["it is under a root"] * len(arguments)
        case Call(function, arguments):
            rules = FUNCTIONS[function].derivative or ("",)
            still = (rules[min(number, len(rules) - 1)] == "0" for number in range(len(arguments)))
            return ["no gradient reaches it here" if each else "" for each in still]
    return []


def slip_of(name: str, known: Collection[str]) -> str | None:
    """The known name that this one misspells in one word. Other digits or other short words are no misspelling."""
    for other in known:
        if _WORD.split(name) == _WORD.split(other):
            pairs = zip(_WORD.findall(name), _WORD.findall(other), strict=True)
            match [(mine, their) for mine, their in pairs if mine != their]:
                case [(mine, their)] if min(len(mine), len(their)) > 3 and nearest(mine, [their]):
                    return other
    return None
