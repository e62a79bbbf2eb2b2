"""Display: text that is safe for a terminal, and HTML for a notebook with long parts folded."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["folded", "printable", "table"]


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
