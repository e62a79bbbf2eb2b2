"""Source lines, and inlining of those that one other line reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Line"]

LONGEST = 100
"""So many characters may stand in a line that takes another in."""


@dataclass(frozen=True)
class Line:
    """A line of a function: the names that it defines, what they become, its mathematics, and what it frees."""

    names: tuple[str, ...]
    text: str
    remarks: tuple[str, ...]
    frees: tuple[str, ...]

    def written(self) -> Iterator[str]:
        """The line, and one that frees."""
        yield f"{', '.join(self.names)} = {self.text}  # {'; '.join(self.remarks)}"
        if self.frees:
            yield f"del {', '.join(self.frees)}"

    def taking(self, former: Line) -> Line | None:
        """The line with the text of the one before it in the place of its name, if a person would write it so.

        Nothing then lives longer than it would.
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
    """Whether an expression is a name or a call, so that it can stand anywhere."""
    tree = ast.parse(text, mode="eval").body
    return isinstance(tree, ast.Call | ast.Name | ast.Subscript | ast.Attribute)
