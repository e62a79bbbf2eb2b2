"""Source lines, and inlining of lines that only one other line reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Line"]

LONGEST = 100
"""The most characters that an expression may have after another line is inlined into it."""


@dataclass(frozen=True)
class Line:
    """A line of a function: the names that it defines, its expression, its mathematics, and the names it frees."""

    names: tuple[str, ...]
    text: str
    remarks: tuple[str, ...]
    frees: tuple[str, ...]

    def written(self) -> Iterator[str]:
        """The line, and a `del` line if it frees names."""
        yield f"{', '.join(self.names)} = {self.text}  # {'; '.join(self.remarks)}"
        if self.frees:
            yield f"del {', '.join(self.frees)}"

    def taking(self, former: Line) -> Line | None:
        """The line with the former line inlined; nothing if it does not read that once, or gets too long.

        A line that frees tensors is not inlined, so that no tensor lives longer.
        """
        (name,) = former.names
        places = list(re.finditer(rf"(?<![\w.]){name}(?!\w)", self.text))
        inner = former.text if _is_closed(former.text) else f"({former.text})"
        if len(places) != 1 or former.frees:
            return None
        text = f"{self.text[: places[0].start()]}{inner}{self.text[places[0].end() :]}"
        if len(text) > LONGEST:
            return None
        frees = tuple(each for each in self.frees if each != name)
        return Line(self.names, text, (*former.remarks, *self.remarks), frees)


def _is_closed(text: str) -> bool:
    """Whether an expression is a name, call, subscript or attribute, which needs no parentheses anywhere."""
    tree = ast.parse(text, mode="eval").body
    return isinstance(tree, ast.Call | ast.Name | ast.Subscript | ast.Attribute)
