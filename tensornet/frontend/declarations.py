"""Declarations and outputs: the leaves, sizes and results of a text, and checks that all are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from ..errors import EquationError, ShapeError, near, told_in
from ..graph.call import called_last, scoped
from ..graph.graph import Apply
from ..graph.leaves import Constant, Leaf
from ..graph.shape_inference import Dim, Scope, dim_size, index_of, size_names_of
from ..language.equation import Calling, Declaration, Equation
from ..language.expression import ELLIPSIS, Ref, axes_of_index, occurring, show_index, sized_by_name
from ..language.parser import parse_names
from ..sizes import as_size, size_names, symbol
from .call_sizes import Matched
from .context import Known, Names, Text
from .instantiate import Sizes

__all__ = ["Parts", "gathered"]

Parts: TypeAlias = (
    "tuple[tuple[Leaf, ...], tuple[Equation | Apply, ...], tuple[str, ...], tuple[tuple[str, Any], ...]]"
)
"""The parts of a graph: leaves, equations and calls, outputs, sizes."""

OPTIONS = ("inputs", "outputs", "constants", "init")
"""The other arguments of `tensornet.layer`; the name of a size may be a misspelling of one."""


def gathered(text: Text, outputs: Names) -> Parts:
    """The parts of the graph; the last line is the output if none is named."""
    own = [each for each in text.items if isinstance(each, tuple)]
    for equation, _ in own:  # again: a later line may have solved what an earlier one left open
        text.sizes_around(equation.right)
    leaves = _leaves(text)
    values = tuple(sorted(text.unifier.bound.items()))
    chosen = _named_once(parse_names(outputs, "output")) or tuple(text.declared_outputs)
    if not chosen and text.body:
        last = text.body[-1]
        chosen = last.results if isinstance(last, Calling) else (last.name,)
    body = tuple(_finished(text, each, values) for each in text.items)
    calls = tuple(each for each in body if isinstance(each, Apply))
    equations = tuple(each for each in body if isinstance(each, Equation))
    _check_unused(text, leaves, calls)
    by_name = {
        name
        for equation, (_, scope) in zip(equations, own, strict=True)
        for name in sized_by_name(equation.right)
        if text.unifier.is_as_long(name, scope[name]) and (name in text.given or not _is_read(name, equation))
    }
    names = _sizes_in(text, equations, leaves) | {name for call in calls for name in call.graph.bound}
    declared = called_last((leaf for leaf in leaves if leaf.name not in text.told), calls)
    return declared, body, chosen, text.unifier.sizes(names, by_name)


def _finished(text: Text, item: tuple[Equation, Scope] | Apply | Matched, values: Sizes) -> Equation | Apply:
    """An equation or a call with all solutions of sizes put in."""
    if isinstance(item, tuple):
        equation, scope = item
        return text.unifier.equation(equation, scope.sizes)
    return item if isinstance(item, Apply) else item.applied(text.unifier, values)


def _is_read(axis: str, equation: Equation) -> bool:
    """Whether a tensor is read along an axis as a whole, and so determines its size."""
    return any(axis in ref.index for ref in equation.references)


def _leaves(text: Text) -> list[Leaf]:
    """The leaves, after a check that values and starts have the shapes that the text reads."""
    for name, entry in text.known.items():
        if entry.kind == "parameter":
            entry.start = text.init.pop(name, entry.start)
        value = entry.start if isinstance(entry.start, Constant) else entry.value
        if value is not None and entry.dims is not None:
            _check_value(text, name, entry.kind, text.unifier.dims(entry.dims), value)
    return [_leaf(text, name, entry) for name, entry in text.known.items() if entry.kind != "result"]


def _leaf(text: Text, name: str, entry: Known) -> Leaf:
    if entry.dims is None:
        fix = {
            "input": f'read it in an equation, or give its axes: inputs="{name}[b,i]"',
            "parameter": f"read it in an equation, or take the line out; a number is {name}[()]: parameter",
            "constant": "read it in an equation, or take it out of constants=",
        }[entry.kind]
        raise EquationError(f"the {entry.kind} '{name}' is never used", entry.place, fix)
    if entry.start == ("array", 0.0):
        fix = f'pass init={{"{name}": array}}'
        raise EquationError(f"the initial array of '{name}' is not given", entry.place, fix)
    return Leaf(name, entry.kind, text.unifier.dims(entry.dims), entry.start, entry.value)


@told_in("sizes")
def _check_value(text: Text, name: str, kind: str, dims: tuple[Dim, ...], value: Constant) -> None:
    if len(dims) != len(value.shape):
        raise ShapeError(
            f"the {kind} '{name}' has {len(value.shape)} dimension(s), and is read with {len(dims)}"
        )
    for dim, size in zip(dims, value.shape, strict=True):
        text.unifier.unify(dim_size(dim), as_size(size, name), dim[0].name, Ref(name, index_of(dims)))


def _sizes_in(text: Text, equations: tuple[Equation, ...], leaves: list[Leaf]) -> set[str]:
    names = size_names_of(dim for leaf in leaves for dim in leaf.dims)
    for equation in equations:
        names.update(*(occurring(part) for part in equation.parts if not isinstance(part, Ref)))
    for name in list(names):
        names.update(size_names(text.unifier.resolve(symbol(name))))
    return names


def _check_unused(text: Text, leaves: list[Leaf], calls: tuple[Apply, ...]) -> None:
    for name in text.init:
        raise EquationError(
            f"init names '{name}', which is no parameter", fix=_listed(leaves, "parameter", name)
        )
    mentioned = _mentioned(text, calls)
    for name in text.given:
        if text.given[name] == symbol(name):  # a name for a size of the layer's caller
            continue
        if name not in mentioned:
            raise ShapeError(
                f"a size is given for '{name}', which is no axis here",
                fix=_axes_told(text, name, mentioned),
            )
    for leaf in leaves:
        if leaf.kind == "constant" and leaf.value is None:
            name = scoped(text.scope, leaf.name)
            raise EquationError(
                f"the constant '{name}' has no value", fix=f'pass constants={{"{name}": array}}'
            )


def _axes_told(text: Text, wrong: str, mentioned: set[str]) -> str:
    """The fix for a size that names no axis; a dimension that is only indexed has no axis yet."""
    axes = sorted(name for name in text.axes & mentioned if name != ELLIPSIS)
    told = near(wrong, [*axes, *OPTIONS]) + (
        f"the axes are {', '.join(axes)}" if axes else "leave it out: there are no axes"
    )
    for tensor, entry in text.known.items():
        index = index_of(entry.dims or ())
        made = [each for each in index if isinstance(each, str) and each not in text.axes]
        if entry.kind == "parameter" and made:
            named = show_index(tuple(wrong if each == made[0] else each for each in index))
            return f"{told}; to size an indexed dimension of '{tensor}', add the line {tensor}[{named}]: parameter"
    return told


def _mentioned(text: Text, calls: tuple[Apply, ...]) -> set[str]:
    """The names that lines and declarations use as axes or as sizes."""
    found: set[str] = set()
    for line in text.lines:
        bare = (part for part in line.parts if isinstance(part, Ref) and not part.index)
        found.update(axes_of_index(line.left), occurring(line.right), (part.name for part in bare))
    for entry in text.known.values():
        for axis in (axis for dim in entry.dims or () for axis in dim):
            found.update((axis.name,), size_names(axis.size))
    for call in calls:
        found.update(call.graph.bound, call.graph.open_sizes)
    for size in text.given.values():
        found.update(size_names(size))
    return found


def _listed(leaves: list[Leaf], kind: str, wrong: str) -> str:
    names = [leaf.name for leaf in leaves if leaf.kind == kind]
    return f"{near(wrong, names)}the {kind}s are {', '.join(names) or 'none'}"


def _named_once(outputs: Sequence[Declaration]) -> tuple[str, ...]:
    """The names of the outputs, each given once and without axes."""
    names = [each.name for each in outputs]
    for each in outputs:
        if each.dims is not None:
            fix = f"write outputs='{each.name}'; its axes are those of its equation"
            raise EquationError(f"the output '{each.name}' is named with axes", each.place, fix)
        if names.count(each.name) > 1:
            raise EquationError(f"the output '{each.name}' is named twice", each.place, "name it once")
    return tuple(names)
