"""Terminal output: text from outside, made safe to print."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    """The text with what would steer a terminal shown instead of obeyed; lines and tabs stay.

    Names, paths and formulas may come from elsewhere, and an escape sequence in one of them could
    clear the screen or forge what is printed.

    Example:
        >>> print(printable("runs\\x1b[2J/\\u202e.json"))
        runs\\x1b[2J/\\u202e.json
    """
    return "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text)
