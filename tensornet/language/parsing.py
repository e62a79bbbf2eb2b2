"""Text as a tree, by Python's own `ast`, whose nodes know their places in it."""

from __future__ import annotations

import ast
import re

from ..errors import EquationError, Place
from ..sizes import DOT

__all__ = ["Parsed"]

_SCOPED = re.compile(r"(?<![\w.])[^\W\d]\w*(?:\.\w+)+")
_COMMENT = re.compile(r"#[^\r\n]*")
_LINE_END = re.compile(r"\r\n|\r|\n")
_RUN_ON = re.compile(rf"(?<![\w{DOT}])\.?\d[\w.]*?(?:and|else|for|if|in|is|not|or)")
_ESCAPE = re.compile(r"\\(?!\s*$)")
"""What `ast` warns of, numbers that run into a word (`1if`) and escapes in quotes. Neither is in the
language, and warnings are everybody's: silencing them here would silence those of other threads."""


class Parsed:
    """A text as Python reads it; holds the lines so that every node knows its place."""

    def __init__(self, text: str) -> None:
        self.text = text
        masked = _SCOPED.sub(lambda match: match.group().replace(".", DOT), _COMMENT.sub("", text))
        self.lines = _LINE_END.split(text)
        self.masked = _LINE_END.split(masked)
        self._check_words()
        self.tree = self._parse(masked)

    def _check_words(self) -> None:
        for number, line in enumerate(self.masked):
            found = _RUN_ON.search(line) or _ESCAPE.search(line)
            if found:
                place = Place(self.lines[number], number + 1, found.start(), len(found.group()))
                raise EquationError(f"'{found.group()}' is not part of the language", place, "take it out")

    def _parse(self, text: str) -> ast.Module:
        try:
            return ast.parse(text)
        except SyntaxError as error:
            number = min(max(1, error.lineno or 1), len(self.lines))
            line = self.lines[number - 1]
            column = min(max(0, (error.offset or 1) - 1), len(line))
            message = (error.msg or "this cannot be read").removesuffix(" Perhaps you forgot a comma?")
            raise EquationError(
                f"syntax error: {message.rstrip('.')}",
                Place(line, number, column),
                "an equation reads `name[axes] = expression`, as in `y[b,p] = x[b,i] * W[p,i]`",
            ) from None
        except (ValueError, RecursionError, MemoryError, OverflowError) as error:
            raise EquationError(f"the equations cannot be read: {error}") from None

    def place(self, node: ast.AST) -> Place:
        number = getattr(node, "lineno", 1)
        raw = self.masked[number - 1] if number <= len(self.masked) else ""
        column = len(raw.encode()[: getattr(node, "col_offset", 0)].decode(errors="ignore"))
        line = self.lines[number - 1] if number <= len(self.lines) else ""
        end = len(raw)
        if getattr(node, "end_lineno", number) == number:
            end = len(raw.encode()[: getattr(node, "end_col_offset", 0)].decode(errors="ignore"))
        return Place(line, number, column, max(1, end - column))

    def fail(self, node: ast.AST, message: str, fix: str = "") -> EquationError:
        return EquationError(message, self.place(node), fix)
