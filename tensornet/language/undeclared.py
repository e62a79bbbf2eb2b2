"""A name that nothing declares is a number to be trained; where it stands may tell that none was meant."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator

from ..errors import nearest
from ..operations.functions import FUNCTIONS
from ..operations.structure import INDEX
from .expression import Call, Contraction, Expression, Literal, Ref, Size, parts_of

__all__ = ["misplaced", "slip_of"]

_WORD = re.compile(r"[^\W\d_]+")


def misplaced(expression: Expression, names: Collection[str]) -> Iterator[tuple[Ref, str]]:
    """Reads of these names where a number to be trained makes no sense, and why.

    No gradient reaches it, in a condition, a comparison or a rounding; or it is a size, under a root or among
    positions.
    """
    return _misplaced(expression, names, "")


def _misplaced(expression: Expression, names: Collection[str], why: str) -> Iterator[tuple[Ref, str]]:
    if isinstance(expression, Ref) and not expression.index:
        if why and expression.name in names:
            yield expression, why
        return
    reasons = itertools.chain(_reasons(expression, why), itertools.repeat(""))
    for part, reason in zip(parts_of(expression), reasons, strict=False):
        yield from _misplaced(part, names, reason)


def _reasons(whole: Expression, why: str) -> list[str]:
    """Why no number to be trained can be an argument, or a factor, of an expression; nothing where it can."""
    match whole:
        case Contraction(factors):
            return [why] * len(factors)
        case Call("add", terms):
            among = any(_is_position(term) for term in terms)
            return ["it is added to positions" if among else why] * len(terms)
        case Call(function, arguments) if FUNCTIONS[function].root:
            return ["it is under a root"] * len(arguments)
        case Call(function, arguments):
            rules = FUNCTIONS[function].derivative or ("",)
            still = (rules[min(number, len(rules) - 1)] == "0" for number in range(len(arguments)))
            return ["no gradient reaches it here" if each else "" for each in still]
    return []


def _is_position(term: Expression) -> bool:
    """Whether a term tells positions: it is made of these, of sizes and numbers alone."""
    match term:
        case Call(INDEX.name):
            return True
        case Contraction(factors):
            rest = [factor for factor in factors if not isinstance(factor, Literal | Size)]
            return len(rest) == 1 and _is_position(rest[0])
    return False


def slip_of(name: str, known: Collection[str]) -> str | None:
    """The known name that differs from this in one word, by a slip; a number or a letter tells names apart."""
    parts = _WORD.split(name)
    words = _WORD.findall(name)
    for other in known:
        theirs = _WORD.findall(other)
        if len(words) != len(theirs) or parts != _WORD.split(other):
            continue
        apart = [pair for pair in zip(words, theirs, strict=True) if pair[0] != pair[1]]
        if len(apart) == 1 and min(map(len, apart[0])) > 3 and nearest(apart[0][0], [apart[0][1]]):
            return other
    return None
