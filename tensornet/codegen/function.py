"""Code generation of functions: a plan to Python source, one line per step.

The function contains no loop and no plan. Open sizes are read from the shapes of the arguments, so one function
serves every batch size.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from ..errors import ShapeError
from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..language.expression import ELLIPSIS, Call, Expression, Ref, fresh, is_scalar
from ..ops.protocols import axes_in, extent, names_in
from ..ops.table import CONVERSIONS, FUNCTIONS, Element
from ..planning.blocks import with_functions
from ..planning.plans import AnyStep, CallStep, Plan
from ..planning.steps import Repetition, Result, Step, Table
from ..protocol import Backend
from ..sizes import invert_size, size_names, size_source, symbol
from .context import CodegenContext
from .names import FUNCTION_NAME, TABLES_NAME, identifier, remark, reserved, tuple_source
from .steps import write_step

_OBSERVED = "@"
"""In the solution for an open size: a placeholder for the size that is read from a shape."""


def generate(plan: Plan, backend: Backend, around: frozenset[str] | None = None) -> str:
    """The source of a function of the inputs, parameters, constants and tables of a plan, in order.

    Before it come the functions of the blocks that it calls, and the function that computes the tables, if there
    are any.

    Args:
        plan: the plan.
        backend: the backend whose operations it uses.
        around: the scopes whose blocks run by themselves. The function then takes only what `arguments_around` gives,
            with the blocks as callables.

    Raises:
        BackendError: the backend cannot do one of the steps.
    """
    taken, leaves, called, scopes = reserved(backend), plan.leaves, plan.functions, tuple[str, ...]()
    if around is not None:
        given, scopes = arguments_around(plan.graph, around)
        unread = {leaf.name for leaf in plan.graph.leaves}.difference(given)
        leaves = tuple(leaf for leaf in leaves if leaf.name not in unread)
        own = (step.plan for step in plan.steps if isinstance(step, CallStep) and _is_own(step))
        every = dict.fromkeys(block for each in own for block in (*each.functions, each))
        called = {block: "product" if block.backward else "block" for block in every}
    names = {block: identifier(name, taken) for block, name in called.items()}
    parts = [*_functions(backend, names, taken), *_tables(plan, backend, names)]
    context = CodegenContext(plan, backend, leaves, {**plan.functions, **names}, scopes)
    parts.append(_function(context, FUNCTION_NAME))
    if plan.remakes:
        parts.append(f"{FUNCTION_NAME} = {context.op('without_cheap', FUNCTION_NAME)}\n")
    return "\n\n".join(parts)


@functools.lru_cache(maxsize=256)
def arguments_around(graph: Graph, around: frozenset[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The arguments of the function around blocks: the names of its leaves, and the scopes of its blocks.
    The leaves are the inputs, and those that are read outside the blocks. Tables come between leaves and blocks."""
    whole = with_functions(graph, around)
    read = {ref.name for equation in whole.own for ref in equation.references} | set(whole.outputs)
    read |= {name for call in whole.calls for name in call.operands}
    given = (*graph.inputs, *graph.parameters, *graph.constants)
    leaves = (leaf.name for leaf in given if leaf.kind == "input" or leaf.name in read)
    return tuple(leaves), tuple(dict.fromkeys(call.scope for call in whole.calls))


def has_dropout(graph: Graph) -> bool:
    """Whether the function of a graph takes `training=`."""
    return any(isinstance(part, Call) and FUNCTIONS[part.function].trains for part in graph.expressions())


def _is_own(step: CallStep) -> bool:
    """Whether a call is of a function without a module: it is sliced or repeated, or has its own backward pass."""
    return any(each is not None for each in (step.slicing, step.along, step.plan.backward))


# ---------------------------------------------------------------------------- whole functions


def _functions(backend: Backend, names: Mapping[Plan, str], taken: set[str]) -> Iterator[str]:
    """The functions of blocks, each under its name. A backward pass is joined with the forward function."""
    for block, name in names.items():
        yield _function(CodegenContext(block, backend, block.leaves, names), name)
        if (back := block.backward) is not None:
            other = identifier(f"{name}_backward", taken)
            yield _function(CodegenContext(back, backend, back.leaves, names), other)
            known = [leaf.name for leaf in block.graph.inputs]
            places = [*known, *block.graph.outputs[1:]]
            read = (places.index(leaf.name) for leaf in back.graph.inputs if leaf.name in places)
            gives = (known.index(each.removesuffix(".grad")) for each in back.graph.outputs)
            details = {"reads": tuple_source(read), "gives": tuple_source(gives)}
            yield f"{name} = {backend.templates['with_vjp'].format(name, other, **details)}\n"


def _function(context: CodegenContext, name: str) -> str:
    """The function of a plan."""
    plan, graph = context.plan, context.plan.graph
    body = [*_body(context, plan.steps)]
    lasting = _views_of(plan, {leaf.name for leaf in plan.leaves if leaf.kind == "constant"})
    body.append(f"return {', '.join(_result(context, each, lasting) for each in plan.results)}")
    given = [*(context.names[leaf.name] for leaf in context.leaves), *context.blocks.values()]
    given += ["*", "training=False"] if has_dropout(graph) else []
    equations = [remark(each) for each in graph.body_lines() or map(str, context.leaves)]
    docstring = [f'"""{equations[0]}"""'] if len(equations) == 1 else ['"""', *equations, '"""']
    before = [*_leading(context), *_size_lines(context), *_dtype_line(context)]
    return _source(name, given, [*docstring, *before, *body])


def _tables(plan: Plan, backend: Backend, functions: Mapping[Plan, str]) -> Iterator[str]:
    """The function that computes the tables. Its arguments are an empty array of the required element type and
    device, the constants that the tables are computed from, and the open sizes that they depend on."""
    if not plan.tables:
        return
    like = Leaf(fresh("like", set(plan.graph.named)), "input", ())
    context = CodegenContext(plan, backend, [like, *plan.sources], functions)
    body = [*_body(context, plan.once)]
    steps = (step.equation for step in plan.once if isinstance(step, Step))
    views = {equation.name for equation in steps if isinstance(equation.right, Ref)}
    tables = (_table(context, each, each.made in views) for each in plan.tables)
    body.append(f"return ({', '.join(tables)},)")
    given = [context.names[leaf.name] for leaf in context.leaves]
    given += [context.size_names[name] for name in plan.sizes_once]
    docstring = '"""What depends on nothing that a call gives."""'
    yield _source(TABLES_NAME, given, [docstring, *_dtype_line(context), *body])


def _table(context: CodegenContext, table: Table, is_view: bool) -> str:
    """A table, copied if it is a view of another array. Positions are checked here, and never again."""
    text = context.names[table.made]
    if table.leaf.dims and is_view:
        text = context.op("contiguous", text)
    return text if table.below is None else context.below(text, table.made, table.below)


def _source(name: str, given: Sequence[str], lines: Sequence[str]) -> str:
    head = f"def {name}({', '.join(given)}):"
    return "\n".join([head, *(f"    {line}" if line else "" for line in lines)]) + "\n"


def _body(context: CodegenContext, steps: Sequence[AnyStep]) -> Iterator[str]:
    """A line for each step with its mathematics, and a `del` line where it frees names."""
    for step in steps:
        text = _call(context, step) if isinstance(step, CallStep) else write_step(context, step)
        context.shapes.update(zip(step.defines, step.shapes, strict=True))
        names = ", ".join(context.names[name] for name in step.defines)
        yield f"{names} = {text}  # {remark(step.shown(context.functions))}"
        if step.frees and step is not steps[-1]:
            yield f"del {', '.join(context.names[name] for name in step.frees)}"


def _views_of(plan: Plan, leaves: set[str]) -> set[str]:
    """Some leaves of a plan, and the tensors that may share memory with them or are numbers, which may be kept."""
    found = set(leaves)
    for step in plan.steps:
        if isinstance(step, Step):
            may = _may_be_view(step.equation.right) and not found.isdisjoint(step.reads)
            found.update(step.defines if may or is_scalar(step.equation.right) else ())
        elif not found.isdisjoint(step.operands):
            given = zip(step.plan.graph.inputs, step.operands, strict=True)
            inside = _views_of(step.plan, {leaf.name for leaf, name in given if name in found})
            made = zip(step.results, step.plan.results, strict=False)
            found.update(name for name, result in made if result.value.name in inside)
    return found


def _may_be_view(right: Expression) -> bool:
    """Whether a library may return an operand, or a view of it, as it does where nothing is converted or added."""
    if not isinstance(right, Call):
        return isinstance(right, Ref)
    function = FUNCTIONS[right.function]
    return function.axes == "moved" or function.trains or right.function in CONVERSIONS.values()


def _result(context: CodegenContext, result: Result, lasting: Container[str]) -> str:
    """An output in the order and grouping that its equation declares; a copy of what lasts from call to call."""
    context.sizes = {axis.name: axis.size for axis in result.axes}
    groups = list(map(names_in, result.left))
    text = context.view(result.value, groups)
    text = context.op("copy", text) if result.value.name in lasting else text
    if ELLIPSIS not in axes_in(result.left):
        return text
    sizes = (
        "*leading" if group == (ELLIPSIS,) else context.size(extent(context.sizes, group)) for group in groups
    )
    return context.op("reshape", text, shape=tuple_source(sizes))


# ---------------------------------------------------------------------------- calls of blocks


def _call(context: CodegenContext, step: CallStep) -> str:
    """The call of a block, with its arguments."""
    if step.scope in context.blocks and not _is_own(step):
        return _call_of_module(context, step)
    given = [context.names[name] for name in step.reads]
    training = ["training=training"] if has_dropout(step.plan.graph) else []
    name = context.functions[step.plan]
    if step.recomputed:
        return context.op("recomputed", ", ".join([name, *given, *training]))
    if step.along is not None:
        return _call_along(context, step, step.along, given, training)
    slicing = step.slicing
    if slicing is None:
        return f"{name}({', '.join(given + training)})"
    cuts = {n: axis for n, axis in enumerate(slicing.operands) if axis is not None}
    first, at = next(iter(cuts.items()))
    size = f"{given[first]}.shape[{at}]"
    for n, axis in cuts.items():
        given[n] = _piece(context, given[n], axis)
    piece = f"lambda at, length: {name}({', '.join(given + training)})"
    length, axes = str(slicing.length), tuple_source(slicing.results)
    return context.op(
        "in_tiles" if slicing.is_tile else "in_pieces", piece, size=size, length=length, axes=axes
    )


def _call_of_module(context: CodegenContext, step: CallStep) -> str:
    """The call of a block that the function is given. Wide operands are converted to the working type."""
    given = []
    for leaf, name in zip(step.plan.graph.inputs, step.operands, strict=True):
        text = context.names[name]
        given.append(context.op(CONVERSIONS[Element.NUMBER], text) if leaf.holds is Element.WIDE else text)
    return f"{context.blocks[step.scope]}({', '.join(given)})"


def _piece(context: CodegenContext, text: str, axis: int) -> str:
    """The piece of an operand that begins at position `at`: a slice, unless the backend has an operation for it."""
    if "piece" in context.backend.templates:
        return context.op("piece", text, axis=str(axis))
    return f"{text}[{':, ' * axis}at:at + length]"


def _call_along(
    context: CodegenContext, step: CallStep, along: Repetition, given: Sequence[str], training: Sequence[str]
) -> str:
    """The call of a block along an axis, with the operands that are cut, the first states and the invariant ones."""
    name, recomputed = context.functions[step.plan], along.segment is not None
    function = (
        f"lambda *given: {name}(*given, {', '.join(training)})" if training and not recomputed else name
    )
    more = {"segment": str(along.segment), "more": ", ".join(["recomputed", *training])} if recomputed else {}
    cuts, states, tables = len(along.cuts), len(along.states), step.plan.tables
    before = len(given) - len(tables)
    looked = [
        text if each.below is None else context.below(text, made, each.below)
        for text, made, each in zip(given[before:], step.tables, tables, strict=True)
    ]
    parts = (given[:cuts], given[cuts : cuts + states], [*given[cuts + states : before], *looked])
    return context.op(
        "along_recomputed" if recomputed else "along",
        function,
        *map(tuple_source, parts),
        size=context.size(along.axis.size),
        axes=tuple_source(along.cuts),
        states=tuple_source(along.states),
        results=str(len(step.results)),
        back=str(along.back),
        **more,
    )


# ---------------------------------------------------------------------------- sizes and element types


def _leading(context: CodegenContext) -> Iterator[str]:
    """The lines that merge leading axes into one."""
    first = True
    for leaf in context.plan.graph.inputs:
        at = next((n for n, dim in enumerate(leaf.dims) if dim and dim[0].name == ELLIPSIS), None)
        if at is None:
            continue
        name, count = context.names[leaf.name], len(leaf.dims)
        if first:
            yield f"leading = {name}.shape[{at or ''}:{at + 1 - count or ''}]"
        kept = (f"{name}.shape[{n if n < at else n - count}]" for n in range(count) if n != at)
        shape = list(kept)
        shape.insert(at, "math.prod(leading)")
        yield f"{name} = {context.op('reshape', name, shape=tuple_source(shape))}"
        first = False


def _size_lines(context: CodegenContext) -> Iterator[str]:
    """The lines that read open sizes from shapes. Those that others are solved with come first."""
    read = [
        (size, f"{context.names[leaf.name]}.shape[{position}]")
        for leaf in context.leaves
        for position, size in enumerate(context.shapes[leaf.name])
    ]
    solved, before = dict[str, tuple[Any, str]](), -1
    while len(solved) > before:
        before = len(solved)
        for size, observed in read:
            names = [name for name in size_names(size) if name not in solved]
            solution = invert_size(size, names[0], symbol(_OBSERVED)) if len(names) == 1 else None
            if solution is not None:
                solved[names[0]] = solution, observed
    needed = set(context.used_sizes)
    if not needed <= solved.keys():
        left = sorted(needed - solved.keys())
        what = f"the size of {', '.join(left)} does not follow from the shapes of the arguments"
        given = ", ".join(f"{name}=…" for name in left)
        raise ShapeError(what, fix=f"bind {'it' if len(left) == 1 else 'them'} first: graph.bind({given})")
    for name in reversed(solved):
        needed |= {*size_names(solved[name][0])} - {_OBSERVED} if name in needed else set()
    for name in (each for each in solved if each in needed):
        solution, observed = solved[name]
        source = size_source(solution, {**context.size_names, _OBSERVED: observed})
        yield f"{context.size_names[name]} = {source}"


def _dtype_line(context: CodegenContext) -> Iterator[str]:
    """The line that finds the working element type: that of a parameter, or else of an input."""
    if context.needs_dtype:
        real = [leaf for leaf in context.leaves if leaf.holds is not Element.WIDE]
        ranked = [leaf for kind in ("parameter", "input") for leaf in real if leaf.kind == kind]
        names = "".join(f"{context.names[leaf.name]}, " for leaf in ranked)
        yield f"dtype = {context.op('floating', f'({names})', context.op('dtype', context.plan.dtype))}"
