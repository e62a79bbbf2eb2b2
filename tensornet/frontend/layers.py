"""Elaboration: a block of text, or a JSON document, to a graph."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import EquationError, ShapeError, TensornetError, by_name, near, nearest, told_in
from ..graph.graph import FORMAT, VERSION, Apply, Graph, inlined
from ..graph.leaves import Constant, Leaf, called_last, scoped
from ..graph.recurrences import late, read_later
from ..graph.shape_inference import Dim, Scope, dim_size, index_of, size_names_of
from ..graph.unify import with_sizes
from ..language.equation import Calling, Declaration, Equation, Opening, einstein, renamed_axes
from ..language.expression import (
    ELLIPSIS,
    Ref,
    axes_of_index,
    check_numbers,
    depth,
    occurring,
    show_index,
    sized_by_name,
)
from ..language.parser import parse_block, parse_names, read_sizes
from ..sizes import as_size, size_names, symbol
from .block_calls import call, call_along
from .context import Known, Names, Text, axes_windowed
from .instantiate import Matched
from .lines import (
    check_given,
    check_order,
    check_positions,
    check_summed,
    check_undeclared,
    declare_leaves,
    doubt_sums,
    opened,
    resolved,
    whole,
    with_extents,
    with_lead,
)

OPTIONS = ("inputs", "outputs", "constants", "init")
"""The other arguments of `tensornet.layer`; the name of a size may be a misspelling of one."""

DEEPEST = 100
"""The nesting limit of functions and operators in a line: the code that traverses it is recursive."""


def layer(
    equations: str,
    *,
    inputs: Names = (),
    outputs: Names = (),
    constants: Mapping[str, Any] | None = None,
    init: Mapping[str, Any] | None = None,
    **sizes: Any,
) -> Graph:
    """Reads a block of equations as a graph.

    A name that no line defines is an input if `inputs` lists it, a constant if `constants` holds
    it, else a parameter. The last line is the output unless `outputs` names others.

    Args:
        equations: one equation a line, `name[axes] = expression`.
        inputs: the names of the inputs, in the order of the call; with axes where the equations
            do not show them, as in `"x[b,n,c] t[b,n]"`.
        outputs: the names of the results.
        constants: arrays with a fixed value, by name.
        init: how a parameter starts, unless that is derived: a standard deviation,
            `"zeros"` or `"ones"`, or an array of its shape.
        **sizes: axis name to a positive integer, a sympy expression or a text such as `"D/h"`; a
            size that is left out is open.

    Raises:
        EquationError: the text is not in the language.
        ShapeError: sizes disagree.
        DtypeError: `init` holds an array that is not numeric.

    Example:
        >>> import tensornet as tn
        >>> print(tn.layer("y[b,o] = gelu(x[b,i] * W[o,i] + u[o])", inputs="x", i=8, o=2))
        i: 8
        o: 2
        x[b,i]: input
        W[o,i]: parameter
        u[o]: parameter
        y[b,o] = gelu(x[b,i] * W[o,i] + u[o])
    """
    values = by_name(constants, "the constants", '{"c": array}')
    starts = by_name(init, "the starts in init", '{"W": 0.02}')
    graph = _elaborated(equations, inputs, outputs, values, starts, sizes)
    _check_every_line_is_read(graph)
    return graph


@told_in("names")
def _check_every_line_is_read(graph: Graph) -> None:
    """Raises an error for a line that no output needs: often another line misspells its name."""
    needed = graph.needed()
    unused = [equation for equation in graph.own if equation.name not in needed]
    read = {ref.name for each in unused for ref in each.references if ref.name != each.name}
    circle = {name for each in graph.recurrences for name in each.names}
    for equation in sorted(unused, key=lambda each: (each.name in read, each.name not in circle))[:1]:
        other = nearest(equation.name, [leaf.name for leaf in graph.parameters])
        meant = f"'{other}' is read as a parameter: did you mean '{equation.name}'? else " if other else ""
        raise EquationError(
            f"no output depends on '{equation.name}': this line is never read",
            equation.place,
            f"{meant}take the line out, or name it in outputs=",
        )


def read_graph(text: str) -> Graph:
    """The graph of a JSON document; see `Graph.from_json`. It may hold lines that no output needs."""
    try:
        document = json.loads(text)
        if document["format"] != FORMAT or document["version"] != VERSION:
            message = f"not a graph of version {VERSION}: {document['format']} {document['version']}"
            fix = "read it with the version of the library that wrote it: tensornet.layer reads its text, str(graph)"
            raise EquationError(message, fix=fix)
        arrays = [Constant.of_plain(each).array() for each in document["arrays"]]
        constants, init = (
            {name: arrays[number] for name, number in document[part].items()}
            for part in ("constants", "init")
        )
        return _elaborated("\n".join(document["text"]), (), (), constants, init, {}, printed=True)
    except TensornetError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise EquationError(f"this is not a graph in JSON: {error!r}", fix="use what to_json wrote") from None


# ---------------------------------------------------------------------------- elaboration


@told_in("names")
def _elaborated(
    equations: str,
    inputs: Names,
    outputs: Names,
    constants: Mapping[str, Any],
    init: Mapping[str, Any],
    sizes: Mapping[str, Any],
    printed: bool = False,
) -> Graph:
    """The graph that a block of text describes; see `layer`.

    Args:
        equations, inputs, outputs, constants, init, sizes: those of `layer`.
        printed: whether the text was printed from a graph, so that doubtful sums are intended.
    """
    given = read_sizes(sizes)
    told = {name for each in parse_names(inputs, "input") for dim in each.dims or () for name, _ in dim}
    told.update(given, *map(size_names, given.values()))
    statements = parse_block(equations, told)
    text = Text(statements, inputs, constants, init, _read_in_order, given, printed=printed)
    try:
        return _read_in_order(text, outputs)
    except RecursionError:
        raise EquationError("the equations are nested too deeply", fix="split the line") from None


def _read_in_order(text: Text, outputs: Names = ()) -> Graph:
    """Reads every line, then assembles the graph. Calls without a scope are inlined, as in a model."""
    calls = (line for line in text.body if isinstance(line, Calling))
    ahead = {line.name: line for line in text.lines} | {
        each.name: each for line in calls for each in line.lefts
    }
    defined = set[str]()
    for name, place in ((name, line.place) for line in text.body for name in line.defines):
        if name in text.known:
            raise EquationError(
                f"'{name}' is declared as {text.known[name].kind}, and defined here",
                place,
                f"take '{name}' out of the declarations, or define another name",
            )
        if name in defined:
            raise EquationError(f"'{name}' is defined twice", place, "give each result its own name")
        defined.add(name)
    waiting = ahead.keys() & set(read_later(text.lines, text.known))
    for line in text.body:
        if isinstance(line, Calling):
            (call_along if line.along else call)(text, line)
        else:
            for name in {ref.name for ref in late(line)} & waiting:
                text.foresee(ahead[name])
            _read(text, line, defined)
    return gathered(text, _outputs(text, outputs))


def _read(text: Text, line: Equation, defined: set[str]) -> None:
    """Elaborates one equation; its leaves and its result are known from here on."""
    if depth(line.right) > DEEPEST:
        raise EquationError("the equation is nested too deeply", line.place, "split the line")
    line = resolved(text, line)
    check_order(text, line, defined)
    found = opened(text, line) if isinstance(line, Opening) else line
    if found is None:
        return
    line = with_lead(text, found)
    line = replace(line, right=with_extents(text, line.right))
    check_undeclared(text, line)
    declare_leaves(text, line)
    implied = line
    line = einstein(line, text.guessed)
    check_numbers(line.right)
    check_positions(text, line)
    line = whole(text, line)
    scope = text.sizes_around(line.right)
    check_given(text, line)
    check_summed(text, line, scope)
    text.keep(line, scope)
    if not text.printed:
        doubt_sums(implied)


# ---------------------------------------------------------------------------- the whole text


def _outputs(text: Text, outputs: Names) -> tuple[str, ...]:
    """The names of the outputs: those given, else those that the text declares, else those of its last line."""
    chosen = _named_once(parse_names(outputs, "output")) or tuple(text.declared_outputs)
    return chosen or (text.body[-1].defines if text.body else ())


def gathered(text: Text, outputs: tuple[str, ...]) -> Graph:
    """The graph of a text; calls without a scope are inlined."""
    own = [each for each in text.items if isinstance(each, tuple)]
    for equation, _ in own:  # again: a later line may have solved what an earlier one left open
        text.sizes_around(equation.right)
    leaves = _leaves(text)
    solved = text.unifier.solved()
    body = tuple(
        with_sizes(_with_own_windows(text, *item), solved, item[1].sizes)
        if isinstance(item, tuple)
        else item.applied()
        if isinstance(item, Matched)
        else item
        for item in text.items
    )
    calls = tuple(each for each in body if isinstance(each, Apply))
    equations = tuple(each for each in body if isinstance(each, Equation))
    _check_unused(text, leaves, calls)
    by_name = {
        name
        for equation, (_, scope) in zip(equations, own, strict=True)
        for name in sized_by_name(equation.right)
        if text.unifier.same(scope[name], symbol(name))
        and (name in text.given or not _is_read(name, equation))
    }
    names = _sizes_in(text, equations, leaves) | {name for call in calls for name in call.graph.bound}
    declared = called_last((leaf for leaf in leaves if leaf.name not in text.told), calls)
    graph = Graph(declared, body, outputs, text.unifier.sizes(names, by_name))
    return inlined(graph, lambda call: not call.scope)


def _with_own_windows(text: Text, equation: Equation, scope: Scope) -> Equation:
    """The equation with another name for an axis of a window whose name has a value, which would hold there."""
    known = axes_windowed(equation.right) & text.unifier.bound.keys()
    other = (axis for axis in sorted(known) if not text.unifier.same(scope[axis], symbol(axis)))
    return renamed_axes(equation, {axis: text.axes.fresh(axis) for axis in other})


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
    for name, size in text.given.items():
        if name not in mentioned and size != symbol(name):  # else it names a size of the layer's caller
            unused = "is no axis here" if text.body else "no input and no layer of the model uses"
            fix = _axes_told(text, name, mentioned)
            raise ShapeError(f"a size is given for '{name}', which {unused}", fix=fix)
    for leaf in leaves:
        if leaf.kind == "constant" and leaf.value is None:
            name = scoped(text.scope, leaf.name)
            raise EquationError(
                f"the constant '{name}' has no value", fix=f'pass constants={{"{name}": array}}'
            )


def _axes_told(text: Text, wrong: str, mentioned: set[str]) -> str:
    """The fix for a size that names no axis; a dimension that is only indexed has no axis yet."""
    axes = sorted((text.axes & mentioned if text.body else mentioned) - {ELLIPSIS, "lead"})
    told = near(wrong, [*axes, *OPTIONS]) + (
        f"the axes are {', '.join(axes)}" if axes else "leave it out: there are no axes"
    )
    for tensor, entry in text.known.items():
        index = index_of(entry.dims or ())
        made = [each for each in index if isinstance(each, str) and each not in text.axes]
        if entry.kind == "parameter" and made and tensor not in text.told:
            named = show_index(tuple(wrong if each == made[0] else each for each in index))
            return f"{told}; to size an indexed dimension of '{tensor}', add the line {tensor}[{named}]: parameter"
    return told


def _mentioned(text: Text, calls: tuple[Apply, ...]) -> set[str]:
    """The names that lines and declarations use as axes or as sizes."""
    found: set[str] = set()
    for line in text.lines:
        bare = (part for part in line.parts if isinstance(part, Ref) and not part.index)
        found.update(axes_of_index(line.left), occurring(line.right), (part.name for part in bare))
    found.update(size_names_of(text.dims_known()))
    for name, entry in text.known.items():
        if name not in text.told and (text.body or entry.kind != "result"):
            found.update(axis.name for dim in entry.dims or () for axis in dim)
    for each in calls:
        found.update(each.graph.bound, each.graph.open_sizes)
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
