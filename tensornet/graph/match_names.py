"""Name matching: leaves selected by patterns of their names."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from ..errors import EquationError, near

__all__ = ["told_by"]


def told_by(names: str | Sequence[str], known: Sequence[str], one: str, all_of_them: str) -> tuple[str, ...]:
    """The names that match the patterns, in the order of the patterns, each once.

    Args:
        names: patterns of `fnmatch`, as `"encoder.* head.W"` or a list of them. `*` matches anything, dots
            included.
        known: the existing names; the pattern `*` may match none.
        one, all_of_them: the singular and the plural noun for what has these names, for the error.

    Raises:
        EquationError: a pattern matches nothing, or the patterns are not strings.
    """
    patterns = names.replace(",", " ").split() if isinstance(names, str) else names
    if (
        not isinstance(patterns, Sequence)
        or not all(isinstance(each, str) for each in patterns)
        or not patterns
    ):
        raise EquationError(
            f"{all_of_them} are given by name, not {names!r}", fix='write "A B" or ["A", "B"]'
        )
    found: dict[str, None] = {}
    for pattern in patterns:
        fitting = [name for name in known if fnmatch.fnmatchcase(name, pattern)]
        if not fitting and pattern != "*":
            few = f"{', '.join(known[:12])}{', …' if len(known) > 12 else ''}" or "none"
            raise EquationError(f"'{pattern}' is no {one}", fix=f"{near(pattern, known)}there are {few}")
        found.update(dict.fromkeys(fitting))
    return tuple(found)
