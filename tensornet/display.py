"""Display: amounts with units, text that is safe for a terminal, and HTML for a notebook with long parts folded."""

from __future__ import annotations

import html
import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence

from .errors import BackendError

__all__ = ["Memory", "amount", "folded", "in_bytes", "printable", "table"]


def folded(title: str, parts: Mapping[str, str], text: str) -> str:
    """HTML of a title, folded parts, and a text that is not folded.

    Example:
        >>> print(folded("a graph", {"2 leaves": "x: input"}, "y = x"))
        <div><b>a graph</b>
        <details><summary><code>2 leaves</code></summary><pre>x: input</pre></details>
        <pre>y = x</pre></div>
    """
    lines = [f"<div><b>{html.escape(title)}</b>"]
    lines += [
        f"<details><summary><code>{html.escape(name)}</code></summary><pre>{html.escape(part)}</pre></details>"
        for name, part in parts.items()
        if part
    ]
    return "\n".join([*lines, f"<pre>{html.escape(text)}</pre></div>"])


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table. The notebook renders formulas between `$`.

    Example:
        >>> table(["part"], [["a < b"]])
        '<table><tr><th>part</th></tr><tr><td>a &lt; b</td></tr></table>'
    """
    lines = ["".join(f"<th>{html.escape(head)}</th>" for head in heads)]
    lines += ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def printable(text: str) -> str:
    """The text with unprintable characters escaped, so that they cannot control a terminal; newlines and tabs stay.

    Names, paths and formulas may come from untrusted sources. An escape sequence in one of them could
    clear the screen or forge the output.

    Example:
        >>> print(printable("runs\\x1b[2J/\\u202e.json"))
        runs\\x1b[2J/\\u202e.json
    """
    return "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text)


# ---------------------------------------------------------------------------- amounts

Memory = int | float | str
"""An amount of memory: bytes, or a text such as "512 MiB"."""

PREFIXES = (
    (1e12, "T"),
    (1e9, "G"),
    (1e6, "M"),
    (1e3, "k"),
    (1, ""),
    (1e-3, "m"),
    (1e-6, "µ"),
    (1e-9, "n"),
)


def amount(value: float, unit: str) -> str:
    """An amount with three digits and a prefix.

    Example:
        >>> amount(1_843_000_000, "FLOP"), amount(0.044, "s")
        ('1.84 GFLOP', '44 ms')
    """
    if value == 0:
        return f"0 {unit}"
    for scale, prefix in PREFIXES:
        if value >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


_MEMORY = re.compile(
    r"\s*(\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?)\s*(?:([kmgt])(i?))?(?:b|bytes)?\s*", re.IGNORECASE
)


def in_bytes(limit: Memory | None) -> int | None:
    """An amount of memory in bytes, from a number or a text; None for None.

    Raises:
        BackendError: the value is no amount of memory.

    Example:
        >>> in_bytes("1GB"), in_bytes("512 MiB"), in_bytes("0.5e9"), in_bytes(4096)
        (1000000000, 536870912, 500000000, 4096)
    """
    if limit is None:
        return None
    number: float = -1
    if isinstance(limit, str):
        found = _MEMORY.fullmatch(limit)
        if found is not None:
            digits, prefix, binary = found.groups()
            number = float(digits) * (1024 if binary else 1000) ** (
                "kmgt".index(prefix.lower()) + 1 if prefix else 0
            )
    elif isinstance(limit, float):
        number = limit
    elif not isinstance(limit, bool) and hasattr(limit, "__index__"):
        number = operator.index(limit)
    if not 0 <= number < math.inf:
        fix = 'give bytes, or a text such as "512 MiB" or "1GB"'
        raise BackendError(f"memory_limit={limit!r} is no amount of memory", fix=fix)
    return int(number)
