"""A name that nothing declares is a number to be trained; where it stands may tell that none was meant."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from ..errors import nearest
from ..operations.functions import FUNCTIONS
from ..operations.structure import INDEX
from .expression import Call, Contraction, Expression, Literal, Ref, Size, parts_of

__all__ = ["misplaced", "slip_of"]

_ROOTS = frozenset({"sqrt", "rsqrt"})

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
    for number, part in enumerate(parts_of(expression)):
        yield from _misplaced(part, names, _reason(expression, number, names, why))


def _reason(whole: Expression, number: int, names: Collection[str], why: str) -> str:
    """Why no number to be trained can be a part of an expression."""
    match whole:
        case Call(function, arguments) if number < len(arguments):
            rules = FUNCTIONS[function].derivative
            if rules and rules[min(number, len(rules) - 1)] == "0":
                return "no gradient reaches it here"
            if function in _ROOTS:
                return "it is under a root"
            if function == "add":
                among = any(_is_position(term, names) for term in arguments)
                return "it is added to positions" if among else why
            return ""
        case Contraction():
            return why
    return ""


def _is_position(term: Expression, names: Collection[str]) -> bool:
    """Whether a term tells positions: it is made of these, of sizes and numbers alone."""
    match term:
        case Call(INDEX.name):
            return True
        case Contraction(factors):
            rest = [factor for factor in factors if not isinstance(factor, Literal | Size)]
            return len(rest) == 1 and _is_position(rest[0], names)
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
