"""Calls of blocks in a text: given graphs, `def` blocks, and calls along an axis."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import EquationError, ShapeError, told_in
from ..graph.graph import Apply, Graph
from ..graph.leaves import Leaf, scoped
from ..graph.shape_inference import Dim, dim_size, index_of, size_names_of
from ..language.equation import Calling, renamed_axes, spoken_sizes
from ..language.expression import Index, Ref, show_index
from ..scan.unroll import Repeated
from ..sizes import are_equal, evaluate, symbol
from .context import Known, Text, leaves_of
from .instantiate import Matched, Operand


@told_in("blocks")
def call(text: Text, line: Calling) -> None:
    """Elaborates a call of a block; its leaves and its results are known from here on."""
    block = _called(text, line)
    for name in line.operands:
        _dims_of(text, name, line)
    add_call(text, block, line)


def add_call(text: Text, block: Graph, line: Calling) -> None:
    """Adds a call of a block to a text; an operand without axes gets those of the block."""
    known = [(name, text.known[name].dims) for name in line.operands]
    operands = [(name, None if dims is None else text.unifier.dims(dims)) for name, dims in known]
    call: Apply | Matched
    if text.define is not None and _is_sized(text, block, operands):
        call = Apply(block, line.operands, line.results, line.scope)
    else:
        call = Matched(block, operands, line, text.unifier, text.open_names())
        for name, dims in call.taken():
            text.known[name].dims = text.known[name].dims or dims
    text.told.update(_leaves_known(text, call, line))
    for name, (_, dims) in zip(line.results, call.returned(text.unifier.bound), strict=True):
        text.known[name] = Known("result", dims)
    text.items.append(call)


def _is_sized(text: Text, block: Graph, operands: Sequence[Operand]) -> bool:
    """Whether a block has the sizes of its caller already, as in a text that was printed."""
    bound = text.unifier.bound
    spoken = size_names_of(dim for leaf in block.leaves for dim in leaf.dims)
    return all(bound.get(name) == size for name, size in block.sizes if name in spoken) and all(
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
    block, axis = _called(text, line).flat, line.along.axis
    for name, index in zip(line.operands, line.along.read, strict=True):
        text.meet(Ref(name, index, line.place))
    operands = [
        (name, *_at_one(text, name, index, axis, line))
        for name, index in zip(line.operands, line.along.read, strict=True)
    ]
    for each in line.lefts:
        text.foresee(each)
    _check_ranks(text, block, line)
    results = [_at_one(text, each.name, each.left, axis, line)[0] for each in line.lefts]
    given = [(name, dims) for name, dims, _ in operands]
    call = Matched(block, given, line, text.unifier, text.open_names(), results)
    if call.lead is not None:
        fix = "name the axes of what it takes"
        raise EquationError(f"'{line.block}' reads '...', and is called along an axis", line.place, fix)
    _leaves_known(text, call, line)
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


def _called(text: Text, line: Calling) -> Graph:
    """The block that a line calls, after a check of the number of operands and results."""
    block = _defined(text, line)
    if len(line.operands) != len(block.inputs) or len(line.results) != len(block.outputs):
        counts = f"{len(block.inputs)} tensor(s) and returns {len(block.outputs)}"
        fix = f"match that: this call passes {len(line.operands)} and names {len(line.results)} result(s)"
        raise EquationError(f"'{line.block}' takes {counts}", line.place, fix)
    return block


def _defined(text: Text, line: Calling) -> Graph:
    """The graph of a block that the text defines, with the values given for its leaves under this scope."""
    definition, prefix = text.definitions[line.block], f"{line.scope}." if line.scope else ""
    inside = tuple(leaves_of(definition.statements))
    constants, init = (
        {name: part[f"{prefix}{name}"] for name in inside if f"{prefix}{name}" in part}
        for part in text.values
    )
    key = (line.block, *((name, id(value)) for part in (constants, init) for name, value in part.items()))
    if key not in text.blocks:
        given = (definition.statements, definition.inputs, constants, init, text.define)
        assert text.define is not None
        scope = scoped(text.scope, line.scope)
        text.blocks[key] = text.define(Text(*given, scope=scope, printed=text.printed))
    return text.blocks[key]


def _leaves_known(text: Text, call: Apply | Matched, line: Calling) -> list[str]:
    """Enters the leaves of a called block, or shares those that are known; returns the names of the new ones."""
    found = []
    for leaf in call.leaves():
        known = text.known.get(leaf.name)
        if known is None:
            text.known[leaf.name] = Known(leaf.kind, leaf.dims, leaf.start, line.place, leaf.value)
            text.init.pop(leaf.name, None)
            found.append(leaf.name)
        elif leaf.name in text.told or text.define is None:  # what the lines of a text declare holds as it is
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
