"""A report as a self-contained HTML page: pictures, sortable tables, and models in foldable sections."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Model", "Section", "page"]


@dataclass(frozen=True)
class Section:
    """A heading and a table."""

    heading: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Model:
    """A classifier, with its foldable sections: headings and texts."""

    name: str
    told: Sequence[tuple[str, str]]


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; font-size: 13px; display: block; overflow-x: auto; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: right; }
th { cursor: pointer; border-bottom: 2px solid #888; white-space: nowrap; }
th[aria-sort=ascending]::after { content: " ▲"; }
th[aria-sort=descending]::after { content: " ▼"; }
td:first-child, th:first-child, .text { text-align: left; }
figure { margin: 1.5rem 0; } figure img { max-width: 100%; } figcaption { font-size: 13px; color: #555; }
pre { overflow-x: auto; background: #f6f6f6; padding: .8rem; font-size: 12px; }
summary { cursor: pointer; } details details { margin-left: 1.2rem; }
"""

SCRIPT = """
for (const head of document.querySelectorAll("th")) head.onclick = () => {
  const row = head.parentNode, body = head.closest("table").tBodies[0];
  const column = [...row.cells].indexOf(head), up = head.getAttribute("aria-sort") !== "ascending";
  const value = line => {
    const text = line.cells[column].innerText.replaceAll(",", ""), number = parseFloat(text);
    return /^-?[\\d.]/.test(text) && !isNaN(number) ? number : text;
  };
  const compare = (a, b) => typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a < typeof b ? -1 : 1;
  for (const each of row.cells) each.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  body.append(...[...body.rows].sort((a, b) => (up ? 1 : -1) * compare(value(a), value(b))));
};
"""
"""A click on a heading sorts by its column; the next click reverses the order."""


def page(
    *,
    title: str,
    introduction: str,
    tables: Sequence[Section],
    figures: Sequence[tuple[str, bytes]],
    reading: str,
    meanings: Sequence[str],
    models: Sequence[Model],
    environment: str,
    command: str,
) -> str:
    """The page as HTML.

    Args:
        title: its heading.
        introduction: the text below the heading.
        tables: the tables with their headings; **bold** is bold.
        figures: pairs of a caption and a picture as SVG.
        reading: how to read the numbers.
        meanings: the meaning of each column.
        models: the classifiers, in foldable sections.
        environment: the values that numbers depend on, as JSON, in a foldable section.
        command: the command that reproduces the numbers.
    """
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{_marked(introduction)}</p>",
        *(f"<h2>{escape(each.heading)}</h2>\n{_table(each)}" for each in tables),
        f"<p>{_marked(reading)}</p>",
        *(_figure(caption, svg) for caption, svg in figures),
        "<h2>Columns</h2>",
        "<ul>\n" + "\n".join(f"<li>{_marked(each)}</li>" for each in meanings) + "\n</ul>",
        "<h2>Models</h2>",
        *(_folded(each.name, "\n".join(_folded(*_block(told)) for told in each.told)) for each in models),
        "<h2>Environment</h2>",
        _folded("What the numbers depend on", f"<pre>{escape(environment)}</pre>"),
        f"<pre>$ {escape(command)}</pre>",
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + f"\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _table(section: Section) -> str:
    kinds = ["" if _is_number(section, place) else ' class="text"' for place in range(len(section.columns))]
    head = "".join(
        f"<th{kind}>{escape(each)}</th>" for each, kind in zip(section.columns, kinds, strict=True)
    )
    lines = (
        "".join(f"<td{kind}>{_marked(each)}</td>" for each, kind in zip(line, kinds, strict=True))
        for line in section.lines
    )
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _is_number(section: Section, place: int) -> bool:
    return any(line[place][:1].isdigit() for line in section.lines) and place > 0


def _figure(caption: str, svg: bytes) -> str:
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
    return (
        f'<figure>\n<img src="{source}" alt="{escape(caption)}">\n'
        f"<figcaption>{escape(caption)}</figcaption>\n</figure>"
    )


def _folded(summary: str, inside: str) -> str:
    return f"<details>\n<summary>{escape(summary)}</summary>\n{inside}\n</details>"


def _block(told: tuple[str, str]) -> tuple[str, str]:
    heading, text = told
    return heading, f"<pre>{escape(text)}</pre>"


def _marked(text: str) -> str:
    """The escaped text, with parts between ** in bold and parts between ` as code."""
    for mark, tag in (("**", "b"), ("`", "code")):
        parts = text.split(mark) if tag == "code" else escape(text).split(mark)
        text = "".join(f"<{tag}>{each}</{tag}>" if place % 2 else each for place, each in enumerate(parts))
    return text
