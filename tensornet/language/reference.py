"""The function reference, generated from the function records for the page, the command line and `help`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ..errors import PAGE
from ..ops.record import OPERANDS, Element, Example, Function
from ..ops.table import FUNCTIONS, SUM
from .grammar import FORMS, SECTIONS, Section

__all__ = ["HELPER", "call_of", "document", "functions", "in_short", "page", "section_lines", "told"]

KINDS = {
    "pointwise": "Functions of elements",
    "axis": "Functions over axes that keep them",
    "reduction": "Functions over axes that leave none",
    "structure": "Functions that move, join and make",
}
"""The headings of the functions, by kind."""

AXES = {
    "none": "operands align by the names of their axes",
    "kept": "runs over the axes in brackets and keeps them",
    "removed": "runs over the axes in brackets and leaves none of them",
    "exchanged": "runs over the first axis in brackets, leaves none of it and makes the second",
    "made": "makes the axis that it names",
    "joined": "joins its operands along the axis in brackets",
    "moved": "moves elements along the axes that keywords name",
}
"""How a function treats axes, in words."""

YIELDS = {
    "truth": "truth values",
    "position": "positions, which are integers",
    "same": "integers of integers, numbers of numbers",
    "real": "real numbers, of integers too",
    "number": "numbers of the working type",
    "own": "numbers",
}
"""The elements of a result, in words."""

CONVERTED = {
    Element.TRUTH: "truth values",
    Element.WHOLE: "integers of 64 bits",
    Element.WIDE: "real numbers of at least 32 bits",
    Element.NUMBER: "numbers of the working type",
}
"""The elements of a conversion, in words."""

COMPLEX = {
    "taken": "; accepts complex numbers",
    "refused": "; refuses complex numbers",
    "measured": "; real numbers of complex ones",
}
"""How a function treats complex operands, in words."""

HELPER = '''\
import numpy as np
import tensornet as tn


def run(equations, **given):
    """What the equations make of arrays and sizes."""
    sizes = {name: value for name, value in given.items() if isinstance(value, int)}
    arrays = {name: np.array(value) for name, value in given.items() if name not in sizes}
    graph = tn.layer(equations, inputs=list(arrays), **sizes)
    found = np.asarray(tn.compile(graph)({}, *arrays.values()))
    return (found.round(4) if found.dtype == float else found).tolist()
'''
"""The Python source of `run`, which the examples call."""


def functions() -> tuple[Function, ...]:
    """The built-in functions that equations call, including `sum`."""
    own = (row for row in FUNCTIONS.values() if not row.is_kernel and not row.implementations)
    return (*own, SUM)


def call_of(example: Example) -> str:
    """An example as a call of `run`."""
    text = example.equation
    shown = f'"""\n{text}\n"""' if "\n" in text else f'"{text}"'
    return f"run({', '.join([shown, *(f'{name}={_listed(value)!r}' for name, value in example.given)])})"


def _listed(value: Any) -> Any:
    """A value with lists in the place of tuples."""
    return [*map(_listed, value)] if isinstance(value, tuple) else value


def told(row: Function) -> dict[str, str]:
    """The facts about a function, by heading."""
    found = {"form": f"`{row.form}`", "is": row.formula, "axes": AXES[row.axes]}
    if (row.infix and row.arity[1] <= 2) or row.name == "add":
        found["written with"] = f"`{row.infix}`"
    if row.options:
        found["options"] = ", ".join(f"`{name}={value:g}`" for name, value in row.options)
    if row.amounts:
        found["amounts"] = f"the keyword of an axis takes {' and '.join(row.amounts)}"
    found["gives"] = _elements(row) + (COMPLEX[row.complex] if row.arity[1] else "")
    if row.trains:
        found["training"] = "does something else in training than in evaluation"
    found["derivative"] = _derivative(row)
    return found


def _elements(row: Function) -> str:
    """The elements of a result."""
    if row.converts is not None:
        return CONVERTED[row.converts]
    kept = ", but integers of integers where all results are whole, as in `a ** 2`" if row.keeps_whole else ""
    return YIELDS["same" if row is SUM else row.yields] + kept


def _derivative(row: Function) -> str:
    if row is SUM:
        return "of `a`: `g`, the same at each position"
    if not row.derivative:
        return "that of where it kept elements" if row.drawn else "none"
    if all(each == "0" for each in row.derivative):
        return "`0`"
    many = row.arity[1] > len(row.derivative)
    names = ["each operand"] if many else [f"`{name}`" for name in OPERANDS[: row.arity[1]]]
    return "; ".join(f"of {name}: `{text}`" for name, text in zip(names, row.derivative, strict=False))


def document(row: Function) -> dict[str, Any]:
    """A function as a JSON value."""
    plain = ("name", "kind", "form", "formula", "axes", "infix", "yields", "complex")
    return {
        **{each: getattr(row, each) for each in plain},
        "arity": [row.arity[0], row.arity[1] if row.arity[1] < 1000 else None],
        "options": dict(row.options),
        "amounts": list(row.amounts),
        "derivative": list(row.derivative),
        "example": row.shown.equation if not row.implementations else "",
    }


def page(result: Callable[[Example], str]) -> str:
    """The reference page, in Markdown.

    Args:
        result: gives the printed result of an example.
    """
    lines = [
        "# The language",
        "",
        "How layers are written, and every function that they may call. Made of the records of the functions by",
        "`tensornet functions --page`; the examples run as a test. What stands in brackets, in short:",
        "",
        "| form | meaning | example | its result |",
        "|---|---|---|---|",
        *(_form(form, meaning, example, result) for form, meaning, example in FORMS),
        "",
        "The examples below are calls of",
        "",
        "```python",
        HELPER.rstrip(),
        "```",
        "",
        f"Grammar: {', '.join(f'[{each.title}](#{each.anchor})' for each in SECTIONS)}",
    ]
    for kind, heading in KINDS.items():
        names = ", ".join(f"[{row.name}](#{row.name})" for row in functions() if row.kind == kind)
        lines += ["", f"{heading}: {names}"]
    for section in SECTIONS:
        lines += ["", f"## {section.title}", "", *section_lines(section, result)]
    for kind, heading in KINDS.items():
        lines += ["", f"## {heading}"]
        for row in (row for row in functions() if row.kind == kind):
            lines += ["", f"### {row.name}", ""]
            lines += [f"- {what}: {text}" for what, text in told(row).items()]
            lines += _shown(row.shown, result)
    return "\n".join(lines) + "\n"


def section_lines(section: Section, result: Callable[[Example], str]) -> list[str]:
    """The text of a section of the grammar, with its examples and their printed results."""
    return [section.text, *(line for example in section.examples for line in _shown(example, result))]


def _form(form: str, meaning: str, example: Example, result: Callable[[Example], str]) -> str:
    """A row of the table of index forms."""
    given = ", ".join(f"{name} = {_listed(value)}" for name, value in example.given)
    lines = "`; `".join(example.equation.splitlines())
    given, found = (re.sub(r"\.0\b", "", text) for text in (given, result(example)))
    return f"| `{form}` | {meaning} | `{lines}` of `{given}` | `{found}` |"


def _shown(example: Example, result: Callable[[Example], str]) -> list[str]:
    first, *rest = call_of(example).splitlines()
    return ["", "```python", f">>> {first}", *(f"... {line}" for line in rest), result(example), "```"]


def in_short() -> str:
    """The short reference that `help(tensornet.language)` shows."""
    lines = []
    for section in SECTIONS:
        lines += [section.title.upper(), "", section.text, ""]
    for kind, heading in KINDS.items():
        rows = [row for row in functions() if row.kind == kind]
        width = max(len(row.form) for row in rows)
        lines += [heading.upper(), "", *(f"    {row.form:<{width}}  {row.formula}" for row in rows), ""]
    return "\n".join([*lines, f"All of it, with examples: {PAGE} --page"])
