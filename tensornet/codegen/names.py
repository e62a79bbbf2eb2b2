"""Name hygiene of generated code: Python names for tensors, sizes and blocks, and safe remarks."""

from __future__ import annotations

import functools
import keyword
import re
import unicodedata
from collections.abc import Iterable

from ..errors import EquationError
from ..ops.table import FUNCTIONS
from ..protocol import Backend

FUNCTION_NAME, TABLES_NAME = "forward", "tables"
"""The names of the function of a plan, and of the function that computes its tables once."""

_RESERVED = {"math", "functions", "dtype", "training", "leading", "at", FUNCTION_NAME, TABLES_NAME}
"""The names that this library writes into every function itself."""

_WORD = re.compile(r"(?<![\w.{])[^\W\d]\w*(?!\w*\s*=(?!=))")
"""A name in a template: no attribute, no keyword, no detail in braces."""


def reserved(backend: Backend) -> set[str]:
    """The names that generated code uses for anything but tensors, sizes and blocks."""
    return _RESERVED.union(FUNCTIONS, *map(_words, backend.templates.values()))


@functools.lru_cache(maxsize=1024)
def _words(template: str) -> tuple[str, ...]:
    """The names in a template."""
    return tuple(_WORD.findall(template))


def identifier(name: str, taken: set[str]) -> str:
    """A Python name for a tensor or a size, added to those that are taken.

    Raises:
        EquationError: the name does not consist of words of letters, digits and `_`, joined by dots.
    """
    base = name.replace(".", "_")
    base = f"_{base}" if base[:1].isdigit() else base
    if not base.isidentifier():
        raise EquationError(f"{name!r} cannot name anything", fix="use letters, digits and '_'")
    base = unicodedata.normalize("NFKC", base)  # as Python does: two spellings may be one name
    chosen, number = base, 1
    while chosen in taken or keyword.iskeyword(chosen):
        chosen = f"{base}_{number}"
        number += 1
    taken.add(chosen)
    return chosen


def remark(text: str) -> str:
    """Mathematics for a comment or a docstring, without characters that could end it.

    Raises:
        EquationError: a name in it contains a character that no name may have.
    """
    if not text.isprintable() or '"' in text or "\\" in text:
        fix = "use letters, digits and '_' in names"
        raise EquationError(f"{text!r} cannot be written into code", fix=fix)
    return text


def tuple_source(parts: Iterable[object]) -> str:
    """The source of a tuple of pieces of source, or of numbers."""
    texts = list(map(str, parts))
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"
