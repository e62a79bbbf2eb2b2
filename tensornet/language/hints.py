"""The same words for the same mistake, wherever it is found; and what is written otherwise in other languages."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from ..errors import EquationError, Place, near
from ..operations.functions import FUNCTIONS

__all__ = ["absent_axis", "called_elsewhere", "meant"]

MEANT: dict[type[ast.AST], str] = {
    ast.MatMult: "name the axes of a product, `x[b,i] * w[i,o]`: what is not on the left is summed",
    ast.BitXor: "write a power with **",
    ast.And: "write & between truth values, each in brackets",
    ast.Or: "write | between truth values, each in brackets",
    ast.Not: "write ~ before a truth value in brackets",
    ast.IfExp: "write where(condition, a, b)",
    ast.Compare: "compare two at a time, `(a < b) & (b < c)`",
    ast.Lambda: "write the expression itself, or add a function by tn.register",
    ast.ListComp: "name an axis, and write the expression for each of its positions",
    ast.GeneratorExp: "name an axis, and write the expression for each of its positions",
}
"""What to write instead of what Python has and the language has not."""


def meant(*nodes: ast.AST) -> str:
    """What to write instead of the first of some nodes that tells it; nothing if none does."""
    return next((MEANT[type(node)] for node in nodes if type(node) in MEANT), "")


def called_elsewhere(name: str, axes: Sequence[str] | None = None) -> str:
    """What is written here for a function that other libraries know by this name; nothing if they know none."""
    plain = name.lower().replace("_", "")
    for each in FUNCTIONS.values():
        if plain in each.elsewhere:
            index = f"[{','.join(axes or ['c'])}]" if each.takes_axes else ""
            return f"write {each.name}{index}(…); "
    return ""


def absent_axis(
    axis: str, where: str, known: Iterable[str], place: Place | None, bare: Sequence[str] = ()
) -> EquationError:
    """The error for an axis that is run over, and is in nothing that is said there.

    Args:
        axis: its name.
        where: the function that runs over it, or `the sum`.
        known: the axes that are there.
        place: where it is written.
        bare: tensors there that are read without their axes.
    """
    axes = tuple(dict.fromkeys(known))
    fix = f"{near(axis, axes)}its axes are {', '.join(axes)}" if axes else "it has no axes"
    if bare:
        fix = f"give '{bare[0]}' its axes where it is read first: {bare[0]}[{axis}]"
    return EquationError(f"axis '{axis}' does not occur inside {where}", place, fix)
