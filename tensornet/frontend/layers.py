"""Elaboration: a block of text to a graph, with its calls of blocks."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ..errors import EquationError, ShapeError, TensornetError, by_name, near, nearest, told_in
from ..graph.graph import FORMAT, VERSION, Apply, Graph, inlined
from ..graph.leaves import Constant, Leaf, called_last, scoped
from ..graph.recurrences import late, read_later
from ..graph.shape_inference import Dim, Scope, dim_size, index_of, size_names_of
from ..graph.unify import with_sizes
from ..language.diagnostics import called_elsewhere
from ..language.equation import (
    Calling,
    Declaration,
    Definition,
    Equation,
    Statement,
    renamed_axes,
    spoken_sizes,
)
from ..language.expression import ELLIPSIS, Index, Literal, Ref, axes_windowed, show_index, sized_by_name
from ..language.parser import parse_block, parse_names, read_sizes
from ..sizes import are_equal, as_size, evaluate, size_names, symbol
from .context import Known, Lengths, Names, Text, leaves_of, window_axes
from .instantiate import Matched, Operand, Repeated
from .lines import read

R = TypeVar("R", bound="Apply | Matched")

OPTIONS = ("inputs", "outputs", "constants", "init")
"""The other arguments of `tensornet.layer`; the name of a size may be a misspelling of one."""


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
        init: how a parameter starts, by its name, unless that is derived: a standard deviation, an array of its shape,
            `"zeros"`, `"ones"`, `"identity"`, `"near_identity"`, `"orthogonal"`, `"kaiming"` or `"xavier"`.
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
        if not equation.left and isinstance(equation.right, Literal):
            meant = f"a size is a line `{equation.name}: {equation.right.value}`; else "
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
    text = Text(statements, inputs, constants, init, given, printed=printed)
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
    for name, entry in text.known.items():
        if entry.kind == "input" and entry.dims == () and name in text.axes:
            message = f"'{name}' is an axis here, and an input without axes, which could not be read"
            fix = f"rename one of them; a position is one of several, as in inputs='{name}[n]' and E[{name}[0],c]"
            raise EquationError(message, entry.place, fix)
    waiting = ahead.keys() & set(read_later(text.lines, text.known))
    for line in text.body:
        if isinstance(line, Calling):
            (call_along if line.along else call)(text, line)
        else:
            later = waiting & {ref.name for ref in late(line)}
            text.foresee([each for name, each in ahead.items() if name in later])
            read(text, line, defined)
    return gathered(text, _outputs(text, outputs))


# ---------------------------------------------------------------------------- calls of blocks


@told_in("blocks")
def call(text: Text, line: Calling) -> None:
    """Elaborates a call of a block; its leaves and its results are known from here on."""
    dims = [_dims_of(text, name, line) for name in line.operands]
    _enter(text, _fitted(text, line, dims, lambda block: _matched(text, block, line)), line)


def _fitted(text: Text, line: Calling, dims: Sequence[tuple[Dim, ...]], match: Callable[[Graph], R]) -> R:
    """The match of the block that a line calls. A block that does not fit is read again with the lengths of its
    operands, as a window may be shorter than the tensor that it reads."""
    try:
        return match(_called(text, line))
    except ShapeError:
        pass
    sizes = (
        [evaluate(dim_size(dim), text.unifier.bound) for dim in text.unifier.dims(each)] for each in dims
    )
    lengths = (tuple(size if isinstance(size, int) else None for size in each) for each in sizes)
    return match(_called(text, line, tuple(lengths)))


def add_call(text: Text, block: Graph, line: Calling) -> None:
    """Adds a call of a block to a text; an operand without axes gets those of the block."""
    _enter(text, _matched(text, block, line), line)


def _matched(text: Text, block: Graph, line: Calling) -> Apply | Matched:
    """A call of a block, whose sizes are unified with those of its operands."""
    known = [(name, text.known[name].dims) for name in line.operands]
    operands = [(name, None if dims is None else text.unifier.dims(dims)) for name, dims in known]
    if text.body and _is_sized(text, block, operands):
        return Apply(block, line.operands, line.results, line.scope)
    return Matched(block, operands, line, text.unifier, text.open_names())


def _enter(text: Text, call: Apply | Matched, line: Calling) -> None:
    """Enters a call, its leaves and its results."""
    if isinstance(call, Matched):
        for name, dims in call.taken():
            text.known[name].dims = text.known[name].dims or dims
    text.told.update(_leaves_known(text, call, line))
    for name, (_, dims) in zip(line.results, call.returned(text.unifier.bound), strict=True):
        text.known[name] = Known("result", dims)
    text.items.append(call)
    text.calls.append(line)


def _is_sized(text: Text, block: Graph, operands: Sequence[Operand]) -> bool:
    """Whether a block has the sizes of its caller already, as in a text that was printed."""
    bound = text.unifier.bound
    spoken = size_names_of(dim for leaf in block.leaves for dim in leaf.dims)
    spoken.update(*map(spoken_sizes, block.own))
    return all(bound.get(name) == block.bound.get(name) for name in spoken) and all(
        dims is not None
        and len(leaf.dims) == len(dims)
        and all(
            are_equal(dim_size(ours), dim_size(theirs), bound)
            for ours, theirs in zip(leaf.dims, dims, strict=True)
        )
        for leaf, (_, dims) in zip(block.inputs, operands, strict=True)
    )


@told_in("blocks")
def call_along(text: Text, line: Calling) -> None:
    """Elaborates a call of a block at each position of an axis as equations for all positions."""
    assert line.along is not None
    axis = line.along.axis
    for name, index in zip(line.operands, line.along.read, strict=True):
        text.meet(Ref(name, index, line.place))
    operands = [
        (name, *_at_one(text, name, index, axis, line))
        for name, index in zip(line.operands, line.along.read, strict=True)
    ]
    text.foresee(line.lefts)
    results = [_at_one(text, each.name, each.left, axis, line)[0] for each in line.lefts]
    given = [(name, dims) for name, dims, _ in operands]

    def match(block: Graph) -> Matched:
        _check_ranks(text, block, line)
        return Matched(block.flat, given, line, text.unifier, text.open_names(), results)

    call = _fitted(text, line, [dims for _, dims in given], match)
    if call.lead is not None:
        fix = "name the axes of what it takes"
        raise EquationError(f"'{line.block}' reads '...', and is called along an axis", line.place, fix)
    _leaves_known(text, call, line)
    block = call.graph
    names = dict(zip((leaf.name for leaf in block.inputs), line.operands, strict=True))
    names |= {leaf.name: scoped(line.scope, leaf.name) for leaf in block.leaves if leaf.kind != "input"}
    varying = {
        leaf.name: at for leaf, (_, _, at) in zip(block.inputs, operands, strict=True) if at is not None
    }
    own = _sized_alone(text, block, call)
    taken = {*text.known, *(name for each in text.body for name in each.defines)}
    repeated = Repeated(axis, names, varying, taken)
    body = [renamed_axes(each, own) for each in block.own]
    for equation in repeated.equations(line, body, block.outputs):
        text.keep(equation, text.sizes_around(equation.right))


def _called(text: Text, line: Calling, lengths: Lengths = ()) -> Graph:
    """The block that a line calls, after a check of the number of operands and results."""
    block = _defined(text, line, lengths)
    if len(line.operands) != len(block.inputs) or len(line.results) != len(block.outputs):
        counts = f"{len(block.inputs)} tensor(s) and returns {len(block.outputs)}"
        fix = f"match that: this call passes {len(line.operands)} and names {len(line.results)} result(s)"
        raise EquationError(f"'{line.block}' takes {counts}", line.place, fix)
    return block


def _defined(text: Text, line: Calling, lengths: Lengths) -> Graph:
    """The graph of a block that the text defines, with the values given for its leaves under this scope."""
    definition, prefix = text.definitions[line.block], f"{line.scope}." if line.scope else ""
    names = tuple(leaves_of(definition.statements))
    constants, init = (
        {name: part[f"{prefix}{name}"] for name in names if f"{prefix}{name}" in part} for part in text.values
    )
    key = (
        line.block,
        lengths,
        *((name, id(value)) for part in (constants, init) for name, value in part.items()),
    )
    if key not in text.blocks:
        told: dict[str, Any] = {"scope": scoped(text.scope, line.scope), "printed": text.printed}
        told["lengths"] = dict(zip(definition.inputs, lengths, strict=False))
        text.blocks[key] = _block(text, definition, {"constants": constants, "init": init, **told})
    return text.blocks[key]


def _block(text: Text, definition: Definition, options: Mapping[str, Any]) -> Graph:
    """The graph of a block. Sizes of the whole text are its own for names that no tensor sizes, and for all names where
    its axes are else not as long as each other. Axes that are as long as a window allows are its own where the text has
    the name for another."""
    statements, inputs = definition.statements, definition.inputs

    def read_with(names: set[str]) -> Graph:
        sizes = {name: size for name, size in text.given.items() if name in names and size != symbol(name)}
        lines = (Declaration(name, "size", size=size) for name, size in sizes.items())
        return _read_in_order(Text((*lines, *statements), inputs, reaching=frozenset(sizes), **options))

    own = _mentioned(text) & _windowed(statements)
    few, many = _size_names(statements, alone=True) - own, _size_names(statements) - own
    try:
        return read_with(few)
    except ShapeError:
        if not (many - few) & text.given.keys():
            raise
        return read_with(many)


def _size_names(statements: Sequence[Statement], alone: bool = False) -> set[str]:
    """The names that may be sizes of a block or of blocks that it calls, and that none of its lines gives.

    Args:
        statements: the lines of the block.
        alone: without the axes along which it declares or reads tensors that it does not define.
    """
    blocks = {each.name: each.statements for each in statements if isinstance(each, Definition)}
    called = (_size_names(blocks[each.block], alone) for each in statements if isinstance(each, Calling))
    defined = {name for each in statements for name in each.defines}
    found, read = set[str](), set[str]()
    for each in (each for each in statements if isinstance(each, Equation)):
        found |= {*each.axes, *each.right.occurring, *each.operands}
        read.update(*(ref.free_axes for ref in each.references if ref.name not in defined))
    declared = [each for each in statements if isinstance(each, Declaration)]
    given = {each.name for each in declared}
    read.update(axis for each in declared for dim in each.dims or () for axis, _ in dim)
    return (found - (read if alone else set())).union(*called) - given - defined


def _windowed(statements: Iterable[Statement]) -> set[str]:
    """The axes of a block, and of blocks in it, that are in windows and on the left or under a function."""
    found = set[str]()
    for each in statements:
        if isinstance(each, Definition):
            found |= _windowed(each.statements)
        elif isinstance(each, Equation):
            calls = (part.axes for part in each.called)
            found |= window_axes([each]) & {*each.kept, *itertools.chain(*calls)}
    return found


def _leaves_known(text: Text, call: Apply | Matched, line: Calling) -> list[str]:
    """Enters the leaves of a called block, or shares those that are known; returns the names of the new ones."""
    found = []
    for leaf in call.leaves():
        known = text.known.get(leaf.name)
        if known is None:
            text.known[leaf.name] = Known(leaf.kind, leaf.dims, leaf.start, line.place, leaf.value)
            text.init.pop(leaf.name, None)
            found.append(leaf.name)
        elif leaf.name in text.told or not text.body:  # what the lines of a text declare holds as it is
            _share(text, known, leaf)
    return found


def _share(text: Text, known: Known, leaf: Leaf) -> None:
    """Shares a leaf of a called block with the tensor of its name."""
    if known.kind == "result":
        raise EquationError(f"'{leaf.name}' names a result already", fix="use another scope")
    known.start = text.init.pop(leaf.name, known.start) or leaf.start
    if leaf.start not in (None, known.start):
        raise EquationError(
            f"'{leaf.name}' is shared by two calls that initialize it differently",
            fix="give both the same init=, or different scopes",
        )
    bound = text.unifier.bound
    sizes = [[evaluate(dim_size(dim), bound) for dim in dims or ()] for dims in (known.dims, leaf.dims)]
    if known.kind != leaf.kind or sizes[0] != sizes[1] or known.value != leaf.value:
        one, two = (tuple(each) for each in sizes)
        raise ShapeError(
            f"'{leaf.name}' is shared by two calls that disagree: {one} and {two}",
            fix="give the calls different scopes",
        )


def _check_ranks(text: Text, block: Graph, line: Calling) -> None:
    """Raises an error if a result has other axes than the block's output and the axis of the call."""
    for output, each in zip(block.outputs, line.lefts, strict=True):
        own = [len(dim) for dim in block.named[output]]
        said = [1 if isinstance(entry, str) else len(entry) for entry in each.left]
        at = each.left.index(line.along.axis) if line.along else 0
        if said[:at] + said[at + 1 :] != own:
            message = f"'{each.name}' has other axes than the result of '{line.block}'"
            own_axes = show_index(index_of(block.named[output]))
            fix = f"'{line.block}' returns {output}[{own_axes}]: write as many axes, and '{{}}'"
            raise EquationError(message, line.place, fix.format(each.left[at]))


def _at_one(
    text: Text, name: str, index: tuple[Index, ...], axis: str, line: Calling
) -> tuple[tuple[Dim, ...], int | None]:
    """The dimensions of a tensor at one position of an axis, and the index of the dimension with that axis, if any."""
    dims = text.unifier.dims(_dims_of(text, name, line))
    index = index or text.known[name].index or ()
    if len(index) != len(dims):
        message = f"'{name}' has {len(dims)} dimension(s), and is read with {len(index)}"
        raise EquationError(message, line.place, "name each of its axes")
    if axis not in index:
        return dims, None
    at = index.index(axis)
    return (*dims[:at], *dims[at + 1 :]), at


def _dims_of(text: Text, name: str, line: Calling) -> tuple[Dim, ...]:
    """The dimensions of an operand of a call, which must be known."""
    dims = text.known.get(name, Known("")).dims
    if dims is None:
        fix = f"declare them in a line above, as in {name}[b,i]: input, or define '{name}' there"
        raise EquationError(f"the axes of '{name}' are not known", line.place, fix)
    return dims


def _sized_alone(text: Text, block: Graph, call: Matched) -> dict[str, str]:
    """New names for axes of a block that no tensor sizes, and for sizes that its equations mention."""
    names = sorted(block.by_name.union(*map(spoken_sizes, block.own)))
    sizes = {name: call.moved(symbol(name)) for name in names}
    own = [name for name, size in sizes.items() if size != symbol(name)]
    renamed = {name: text.axes.fresh(name) for name in own}
    for name, new in renamed.items():
        text.unifier.unify(symbol(new), sizes[name], name, None)
    return renamed


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
    text.take_declared_sizes()
    _sizes_in_blocks(text)
    leaves = _leaves(text)
    solved = text.unifier.solved()
    items = [item.applied() if isinstance(item, Matched) else item for item in text.items]
    calls = tuple(each for each in items if isinstance(each, Apply))
    text.axes.update(*(call.graph.bound for call in calls))
    body = tuple(
        item
        if isinstance(item, Apply)
        else with_sizes(_with_own_windows(text, *item), solved, item[1].sizes, text.axes)
        for item in items
    )
    equations = tuple(each for each in body if isinstance(each, Equation))
    _check_unused(text, leaves)
    formulas = {
        name: solved[name]
        for equation, (_, scope) in zip(equations, own, strict=True)
        for name in sized_by_name(equation.right)
        if name in solved
        and text.unifier.same(scope[name], symbol(name))
        and (name in text.given or not _is_read(name, equation))
    }
    declared = called_last((leaf for leaf in leaves if leaf.name not in text.told), calls)
    graph = Graph(declared, body, outputs, tuple((formulas | text.unifier.bound).items()))
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
        part = next((other for other in text.known if other.startswith(f"{name}.")), None)
        if part is not None:
            fix = f"'{part}' is a parameter of its own, as tensors have no attributes: write {name}[i,b]"
        raise EquationError(f"the {entry.kind} '{name}' is never used", entry.place, fix)
    owner, _, part = name.rpartition(".")
    if name in text.guessed and owner in text.known and part in _ATTRIBUTES:
        message = f"'{name}' is a parameter of its own, as tensors have no attributes"
        raise EquationError(
            message, entry.place, f"{called_elsewhere(_ATTRIBUTES[part])}or choose another name"
        )
    if entry.start == ("array", 0.0):
        fix = f'pass init={{"{name}": array}}'
        raise EquationError(f"the initial array of '{name}' is not given", entry.place, fix)
    return Leaf(name, entry.kind, text.unifier.dims(entry.dims), entry.start, entry.value)


_ATTRIBUTES = {"T": "transpose", "mT": "transpose", "shape": "shape", "real": "real", "imag": "imag"}
"""What arrays have in their libraries, by the functions that do the same."""


@told_in("sizes")
def _check_value(text: Text, name: str, kind: str, dims: tuple[Dim, ...], value: Constant) -> None:
    if len(dims) != len(value.shape):
        raise ShapeError(
            f"the {kind} '{name}' has {len(value.shape)} dimension(s), and is read with {len(dims)}"
        )
    for dim, size in zip(dims, value.shape, strict=True):
        text.unifier.unify(dim_size(dim), as_size(size, name), dim[0].name, Ref(name, index_of(dims)))


def _check_unused(text: Text, leaves: list[Leaf]) -> None:
    for name in text.init:
        raise EquationError(
            f"init names '{name}', which is no parameter", fix=_listed(leaves, "parameter", name)
        )
    for leaf in leaves:
        if leaf.kind == "constant" and leaf.value is None:
            name = scoped(text.scope, leaf.name)
            raise EquationError(
                f"the constant '{name}' has no value", fix=f'pass constants={{"{name}": array}}'
            )


def _sizes_in_blocks(text: Text) -> None:
    """Unifies each given size that no line of the text speaks of with that of an axis of a block."""
    alone = text.given.keys() - text.reaching - (said := _mentioned(text))
    alone -= {*_sizes_told(text.definitions.values())}  # which blocks have of their own
    for name in sorted(alone):
        if text.given[name] == symbol(name) or (found := _sizes_of_blocks(text, name)) is None:
            continue  # it is a size of the caller, or blocks read it by its name
        if not found:
            unused = "is no axis here" if text.body else "no input and no layer of the model uses"
            fix = _axes_told(text, name, said)
            raise ShapeError(f"a size is given for '{name}', which {unused}", fix=fix)
        if not any(text.unifier.same(text.given[name], size) for size, _ in found):
            _unify_one(text, name, found)


def _sizes_of_blocks(text: Text, name: str) -> list[tuple[Any, Calling]] | None:
    """The sizes that axes of a name have in the blocks that are called; None if a block has the size itself, open."""
    found = list[tuple[Any, Calling]]()
    calls = (each for each in text.items if not isinstance(each, tuple))
    for call, line in zip(calls, text.calls, strict=True):
        block = (call.applied() if isinstance(call, Matched) else call).graph
        own = block.bound.get(name, symbol(name) if name in block.open_sizes else None)
        if own is not None and (not text.body or not isinstance(own, int)):
            return None
        found += [(own, line)] if own is not None else []
        sized = ((part, each) for part in block.parts for each in part.own if name in each.axes)
        found += ((part.scope(each)[name], line) for part, each in sized)
    return found


def _sizes_told(definitions: Iterable[Definition]) -> Iterator[str]:
    """The names whose sizes lines of blocks give."""
    for block in definitions:
        yield from (s.name for s in block.statements if isinstance(s, Declaration) and s.kind == "size")
        yield from _sizes_told(s for s in block.statements if isinstance(s, Definition))


@told_in("blocks")
def _unify_one(text: Text, name: str, found: Sequence[tuple[Any, Calling]]) -> None:
    """Unifies a given size with the first that it may be of those that blocks have; raises an error if it is none."""
    for size, line in found:
        try:
            text.unifier.unify(text.given[name], size, name, None)
            return
        except ShapeError as error:
            message = f"{error.message} in the block '{line.block or line.scope or line.results[0]}'"
            fix = f"leave {name}= out, as an axis of a block is as long as what it is given"
            wrong = ShapeError(message, line.place, fix)
    raise wrong


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


def _mentioned(text: Text) -> set[str]:
    """The names that lines and declarations of the text itself use as axes or as sizes."""
    found: set[str] = set()
    for line in text.lines:
        bare = (part for part in line.parts if isinstance(part, Ref) and not part.index)
        found.update(line.kept, line.right.occurring, (part.name for part in bare))
    found.update(size_names_of(text.dims_known()))
    for name, entry in text.known.items():
        if name not in text.told and entry.kind != "result":
            found.update(axis.name for dim in entry.dims or () for axis in dim)
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
