"""The function reference, generated from the function records for the page and the command line."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..ops.record import OPERANDS, Element, Example, Function
from ..ops.table import FUNCTIONS, SUM

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

GRAMMAR = Path(__file__).with_name("grammar.md")
"""The grammar by section, as the page begins with it. Error messages refer to its sections."""


def functions() -> tuple[Function, ...]:
    """The built-in functions that equations call, including `sum`."""
    own = (row for row in FUNCTIONS.values() if not row.is_kernel and not row.implementations)
    return (*own, SUM)


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


def sections() -> dict[str, str]:
    """The sections of the grammar, each by the anchor of its heading."""
    _, *found = re.split(r"^## (.*)\n", GRAMMAR.read_text("utf-8"), flags=re.MULTILINE)
    anchors = (title.lower().replace(" ", "-") for title in found[::2])
    return {anchor: text.strip() for anchor, text in zip(anchors, found[1::2], strict=True)}


def page(result: Callable[[Example], str]) -> str:
    """The reference page, in Markdown: the grammar, and the functions from their records.

    Args:
        result: gives the printed result of an example.
    """
    lines = [GRAMMAR.read_text("utf-8")]
    for kind, heading in KINDS.items():
        rows = [row for row in functions() if row.kind == kind]
        lines += [f"## {heading}", "", ", ".join(f"[{row.name}](#{row.name})" for row in rows), ""]
        for row in rows:
            lines += [f"### {row.name}", "", *(f"- {what}: {text}" for what, text in told(row).items()), ""]
            lines += ["```python", f">>> {_call_of(row.shown)}", result(row.shown), "```", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _call_of(example: Example) -> str:
    """An example of one equation as a call of `run`, which the page defines."""
    given = "".join(f", {name}={_listed(value)!r}" for name, value in example.given)
    return f'run("{example.equation}"{given})'


def _listed(value: Any) -> Any:
    """A value with lists in the place of tuples."""
    return [*map(_listed, value)] if isinstance(value, tuple) else value
