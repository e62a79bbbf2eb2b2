"""Display: amounts with units, text that is safe for a terminal, and HTML for a notebook with long parts folded."""

from __future__ import annotations

import contextlib
import html
import math
import operator
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .errors import BackendError


@dataclass(frozen=True)
class Filled:
    """A cell of a table with a bar behind its text, as long as a share from 0 to 1 tells."""

    text: str
    share: float


def folded(title: str, shown: str, parts: Mapping[str, str]) -> str:
    """HTML of a title, of a part that is shown, and of parts that are folded, each of them HTML. It has no scripts.

    Example:
        >>> print(folded("a graph", preformatted("y = x"), {"2 leaves": preformatted("x: input")}))
        <div style="overflow-x:auto"><b>a graph</b>
        <pre>y = x</pre>
        <details><summary><code>2 leaves</code></summary><pre>x: input</pre></details>
        </div>
    """
    lines = [f'<div style="overflow-x:auto"><b>{html.escape(title)}</b>', shown]
    lines += [
        f"<details><summary><code>{html.escape(name)}</code></summary>{part}</details>"
        for name, part in parts.items()
        if part
    ]
    return "\n".join([*lines, "</div>"])


def preformatted(text: str) -> str:
    """HTML of lines as they are; empty for none.

    Example:
        >>> preformatted("a < b")
        '<pre>a &lt; b</pre>'
    """
    return f"<pre>{html.escape(text)}</pre>" if text else ""


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str | Filled]],
    sides: str = "",
    title: str = "",
    notes: Iterable[str] = (),
) -> str:
    """An HTML table, in the colours of the page that it is on. The notebook renders formulas between `$`.

    Args:
        heads: the headings.
        rows: the cells, row by row.
        sides: for each column "l" for text, "c" for code or "r" for numbers; columns beyond hold text.
        title: the caption, if any.
        notes: lines below the table.

    Example:
        >>> print(table(["n"], [["< 2"]], "r"))  # doctest: +ELLIPSIS
        <table><tr><th style="padding:2px 8px;text-align:right;white-space:nowrap">n</th>...
    """

    def line(cells: Sequence[str | Filled], tag: str) -> str:
        styled = zip(cells, sides.ljust(len(cells), "l"), strict=False)
        return "<tr>" + "".join(_cell(cell, tag, side) for cell, side in styled) + "</tr>"

    caption = f"<caption>{html.escape(title)}</caption>" if title else ""
    lines = "".join(line(row, "td") for row in rows)
    below = "<br/>".join(map(html.escape, notes))
    return f"<table>{caption}{line(heads, 'th')}{lines}</table>" + (f"<p>{below}</p>" if below else "")


def _cell(cell: str | Filled, tag: str, side: str) -> str:
    """A cell; the bar is half transparent, so that it can be seen on light and on dark pages."""
    style = "padding:2px 8px;" + ("text-align:right;white-space:nowrap" if side == "r" else "text-align:left")
    text = html.escape(cell.text if isinstance(cell, Filled) else cell)
    if isinstance(cell, Filled):
        end = f"{cell.share:.1%}"
        style += f";background:linear-gradient(90deg,rgba(14,165,233,.35) {end},transparent {end})"
    shown = f"<code>{text}</code>" if side == "c" and tag == "td" else text
    return f'<{tag} style="{style}">{shown}</{tag}>'


def printable(text: str) -> str:
    """The text with unprintable characters escaped, so that they cannot control a terminal; newlines and tabs stay.

    Names, paths and formulas may come from untrusted sources. An escape sequence in one of them could
    clear the screen or forge the output.

    Example:
        >>> print(printable("runs\\x1b[2J/\\u202e.json"))
        runs\\x1b[2J/\\u202e.json
    """
    return "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text)


# ---------------------------------------------------------------------------- plain text

WIDTH = 80
"""The characters of a line of plain text."""


INDENT = "    "


def wrapped(text: str, first: str = INDENT) -> list[str]:
    """Text in lines of at most `WIDTH` characters, broken at spaces. The first line begins with `first`."""
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=INDENT, break_on_hyphens=False)


def columns(rows: Sequence[Sequence[str]], sides: str, formula: int) -> str:
    """Rows of text in columns. Where a row is too wide, each formula stands below its row, and a long name above it.

    Args:
        rows: the cells, row by row, a name first.
        sides: for each column "<" or ">", to which its text is aligned.
        formula: the number of the column with formulas or other long texts.

    Example:
        >>> print(columns([("W", "i*o", "8"), ("u", "o", "12")], "<<>", 1))
        W  i*o   8
        u  o    12
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    is_wide = sum(widths) + 2 * len(widths) - 2 > WIDTH
    kept = [n for n in range(len(widths)) if n != formula or not is_wide]
    widths[0] = min(widths[0], max(len(rows[0][0]), WIDTH - sum(widths[n] + 2 for n in kept[1:])))
    lines = list[str]()
    for row in rows:
        name, *cells = (f"{row[n]:{sides[n]}{widths[n]}}" for n in kept)
        lines += [name] if len(name) > widths[0] else []
        lines.append("  ".join([name if len(name) == widths[0] else " " * widths[0], *cells]).rstrip())
        lines += wrapped(row[formula]) if is_wide else []
    return "\n".join(lines)


# ---------------------------------------------------------------------------- amounts

Memory = int | float | str
"""An amount of memory: bytes, or a text such as "512 MiB"."""

PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


def rounded(value: float, digits: int) -> str:
    """A number with so many digits, without an exponent unless it is very large or very small.

    Example:
        >>> rounded(816.58, 2), rounded(1.72, 2), rounded(12_345, 3), rounded(0.044, 2)
        ('820', '1.7', '12,300', '0.044')
    """
    return f"{float(f'{value:.{digits}g}'):,.12g}"


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
            return f"{rounded(value / scale, 3)} {prefix}{unit}"
    return f"{rounded(value, 3)} {unit}"


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
            number = float(digits) * (1024 if binary else 1000) ** " kmgt".index((prefix or " ").lower())
    elif not isinstance(limit, bool):
        with contextlib.suppress(TypeError):
            number = limit if isinstance(limit, float) else operator.index(limit)
    if not 0 <= number < math.inf:
        fix = 'give bytes, or a text such as "512 MiB" or "1GB"'
        raise BackendError(f"memory_limit={limit!r} is no amount of memory", fix=fix)
    return int(number)
