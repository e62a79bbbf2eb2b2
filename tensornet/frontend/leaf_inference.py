"""Leaf inference: a tensor that no line defines gets the axes of its first use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from ..errors import EquationError, TensornetWarning, near, told_in, warn
from ..graph.shape_inference import Scope, scope_of
from ..language.diagnostics import misplaced, slip_of
from ..language.einstein import locate
from ..language.equation import Equation, summed_alone
from ..language.expression import (
    ELLIPSIS,
    Call,
    Contraction,
    Expression,
    Ref,
    axes_of_index,
    contraction,
    fresh,
    option_axes,
    parts_of,
    references,
    remade_axes,
    show,
    transform,
)
from ..ops.table import FUNCTIONS
from ..sizes import symbol
from .context import Known, Text, dims_read

__all__ = ["check_undeclared", "declare_leaves", "doubt_sums", "with_extents"]


def with_extents(text: Text, expression: Expression) -> Expression:
    """`concat[n](cls[1,c], …)`: the 1 is the size of the parameter `cls` along n."""
    if isinstance(expression, Call) and FUNCTIONS[expression.function].axes == "joined":
        arguments = tuple(_with_extent(text, part, expression.axes[0]) for part in expression.arguments)
        expression = replace(expression, arguments=arguments)
    return transform(expression, partial(with_extents, text))


def _with_extent(text: Text, part: Expression, axis: str) -> Expression:
    if not isinstance(part, Ref) or part.name in text.known or axis in axes_of_index(part.index):
        return part
    extents = [entry for entry in part.index if isinstance(entry, int) and entry > 0]
    if len(extents) != 1:
        return part
    index = tuple(axis if isinstance(entry, int) and entry > 0 else entry for entry in part.index)
    part = replace(part, index=index)
    text.known[part.name] = Known("parameter", dims_read(part, {axis: extents[0]}), place=part.place)
    text.guessed.add(part.name)
    return part


@told_in("names")
def check_undeclared(text: Text, line: Equation) -> None:
    """Raises an error for an undeclared scalar parameter that must be a slip, and warns of one that may be."""
    names = {ref.name for ref in line.references if not ref.index} - text.known.keys() - text.init.keys()
    if not names:
        return
    for ref, why in misplaced(line.right, names):
        others = [*text.axes, *(name for name, entry in text.known.items() if entry.index != ())]
        raise EquationError(
            f"'{ref.name}' is no axis, size or tensor here, and hardly a number to be trained: {why}",
            ref.place,
            f"{near(ref.name, others)}give {ref.name}=… if it is a size, list it in inputs= if it is data,"
            f" or declare it, {ref.name}[()]: parameter",
        )
    known = [*text.axes, *(name for name, entry in text.known.items() if entry.index)]
    for ref in line.references:
        if ref.name in names and (other := slip_of(ref.name, known)):
            message = f"'{ref.name}' is read as a number to be trained: did you mean '{other}'?"
            warn(TensornetWarning(message, ref.place, f"else declare it, {ref.name}[()]: parameter"))


def doubt_sums(line: Equation) -> None:
    """Warns of a sum over an axis that only one of several tensors has: its name may be misspelled."""
    for ref, axes in summed_alone(line):
        meant = show(contraction((ref,), axes, None))
        message = f"the axis '{axes[0]}' of {show(ref)} is summed, and nothing else has it"
        fix = f"correct it, or write {meant} where it is meant"
        warn(TensornetWarning(message, locate(ref.place, axes[0]), fix))


def declare_leaves(text: Text, line: Equation) -> None:
    """Gives every new tensor the dimensions that this line reads it with.

    Tensors in functions that resize an axis come first: outside, the axis has the size that the function gives it.
    """
    new = {ref.name for ref in line.references if text.known.get(ref.name, Known("")).dims is None}
    for ref in line.references if new else ():
        text.known.setdefault(ref.name, Known("parameter", place=ref.place))
    calls = (part for part in line.parts if isinstance(part, Call) and remade_axes(part))
    resized = new & {ref.name for call in calls for ref in references(call)}
    for names in filter(None, (resized, new - resized)):
        for ref, scope in _placed(text, line.right, _sizes_met(text, line.right)):
            if ref.name in names and text.known[ref.name].dims is None:
                _declare(text, ref, scope)


def _declare(text: Text, ref: Ref, scope: Scope) -> None:
    """Gives a tensor the dimensions that it is read with."""
    entry = text.known[ref.name]
    entry.dims = dims_read(ref, scope.sizes)
    if ELLIPSIS in ref.index and entry.kind != "input":
        raise EquationError(
            f"the {entry.kind} '{ref.name}' needs axes of its own, not '...'", ref.place, "name its axes"
        )
    text.guessed.add(ref.name)


@told_in("sizes")
def _sizes_met(text: Text, expression: Expression) -> Scope:
    """The sizes of the axes in an expression; a given size holds even if a window could be longer."""
    unifier = text.unifier
    return scope_of(
        expression, text.dims(expression), unifier.unify, unifier.bound, text.held(expression), []
    )


def _placed(text: Text, expression: Expression, scope: Scope) -> Iterator[tuple[Ref, Scope]]:
    """Every tensor that is read, with the sizes around it. Inside a function that resizes an axis
    (concat, pad) or reduces it (mean), the argument gives the size of that axis."""
    own, joined = set[str](), False
    match expression:
        case Ref():
            yield expression, scope
        case Call(function, _, axes):
            row = FUNCTIONS[function]
            joined = row.axes == "joined"
            own = set(axes) if joined else {*option_axes(expression), *row.leaves_out(axes)}
        case Contraction(_, summed):
            own = set(summed)
    for number, part in enumerate(parts_of(expression), 1):
        inner = scope
        if own:
            found = _sizes_met(text, part).sizes
            if joined and number > 1:  # each operand has its own size
                for axis in own:
                    found.setdefault(axis, symbol(fresh(f"{axis}_{number}", text.axes)))
            sizes = {n: s for n, s in scope.sizes.items() if n not in own}
            inner = Scope(sizes | {n: found[n] for n in own if n in found}, scope.assumed)
        yield from _placed(text, part, inner)
