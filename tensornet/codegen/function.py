"""Code generation of functions: a plan to Python source, one line per step; and its loading.

The function contains no loop and no plan. Open sizes are read from the shapes of the arguments, so one function
serves every batch size.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import linecache
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..dtypes import real_type
from ..errors import ShapeError
from ..graph.element_types import of_leaf, of_leaves
from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..language.expression import ELLIPSIS, Call, Expression, Ref, fresh
from ..ops.pointwise import WHERE
from ..ops.record import axes_in, extent, names_in
from ..ops.table import CONVERSIONS, FUNCTIONS, Element
from ..planning.planner import with_functions
from ..planning.plans import AnyStep, CallStep, Plan, Repetition, Result, Step, Table
from ..protocol import Backend
from ..sizes import evaluate, size_names, size_source
from ..threads import apart
from .context import (
    FUNCTION_NAME,
    OBSERVED,
    TABLES_NAME,
    CodegenContext,
    identifier,
    remark,
    reserved,
    tuple_source,
)
from .steps import write_step


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
        own = [step.plan for step in plan.steps if isinstance(step, CallStep) and _is_own(step)]
        own += [step.plan for step in plan.once if isinstance(step, CallStep)]  # of the tables
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
    return any(FUNCTIONS[call.function].trains for call in graph.called())


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
            found.update(step.defines if may or step.equation.right.is_scalar else ())
        elif not found.isdisjoint(step.operands):
            given = zip(step.plan.graph.inputs, step.operands, strict=True)
            inside = _views_of(step.plan, {leaf.name for leaf, name in given if name in found})
            made = zip(step.results, step.plan.results, strict=False)
            found.update(name for name, result in made if result.value.name in inside)
    return found


def _may_be_view(right: Expression) -> bool:
    """Whether a library may return an operand, or a view of it, as it does where nothing is converted, added or
    gathered."""
    if not isinstance(right, Call):
        return isinstance(right, Ref) and not any(isinstance(entry, Ref) for entry in right.index)
    function = FUNCTIONS[right.function]
    if right.function == WHERE.name:  # a number may decide
        return isinstance(right.arguments[0], Ref) and not right.arguments[0].index
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
    given = [*(context.names[name] for name in (*step.operands, *step.held)), *_given_tables(context, step)]
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


def _given_tables(context: CodegenContext, step: CallStep) -> Iterator[str]:
    """The tables of a called block. Positions are checked, unless they come from a table that was."""
    for name, table in zip(step.tables, step.plan.tables, strict=False):
        text = context.names[name]
        yield text if table.below is None else context.below(text, name, table.below)


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
    cuts, states = len(along.cuts), len(along.states)
    parts = (given[:cuts], given[cuts : cuts + states], given[cuts + states :])
    return context.op(
        "along_recomputed" if recomputed else "along",
        function,
        *map(tuple_source, parts),
        size=context.size(along.axis.size),
        axes=tuple_source(along.cuts),
        states=tuple_source(along.states),
        results=str(len(step.results)),
        back=str(along.back),
        last=f", {tuple_source(last)}" if (last := _read_last(context.plan, step, along)) else "",
        **more,
    )


def _read_last(plan: Plan, step: CallStep, along: Repetition) -> list[int]:
    """The indices of results of a repeated call that are read at the position of the last iteration alone."""
    whole = {*(result.value.name for result in plan.results), *(table.made for table in plan.tables)}
    for each in (*plan.once, *plan.steps):
        if isinstance(each, Step):
            at = (0 if along.back else -1,)
            whole.update(ref.name for ref in each.equation.references if ref.index[:1] != at)
        else:
            whole.update(each.reads)
    return [n for n, name in enumerate(step.results) if name not in whole]


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
    solved = context.solved_sizes
    needed = set(context.used_sizes)
    if not needed <= solved.keys():
        left = sorted(needed - solved.keys())
        what = f"the size of {', '.join(left)} does not follow from the shapes of the arguments"
        given = ", ".join(f"{name}=…" for name in left)
        raise ShapeError(what, fix=f"bind {'it' if len(left) == 1 else 'them'} first: graph.bind({given})")
    for name in reversed(solved):
        needed |= {*size_names(solved[name][0])} - {OBSERVED} if name in needed else set()
    for name in (each for each in solved if each in needed):
        solution, observed = solved[name]
        source = size_source(solution, {**context.size_names, OBSERVED: observed})
        yield f"{context.size_names[name]} = {source}"


def _dtype_line(context: CodegenContext) -> Iterator[str]:
    """The line that finds the working element type: that of a parameter, or else of an input."""
    if context.needs_dtype:
        real = [leaf for leaf in context.leaves if leaf.holds is not Element.WIDE]
        ranked = [leaf for kind in ("parameter", "input") for leaf in real if leaf.kind == kind]
        names = "".join(f"{context.names[leaf.name]}, " for leaf in ranked)
        yield f"dtype = {context.op('floating', f'({names})', context.op('dtype', context.plan.dtype))}"


# ---------------------------------------------------------------------------- loading


_numbers = itertools.count(1)


def define(source: str, title: str, name: str, names: Mapping[str, Any]) -> Any:
    """The object that generated source defines under a name. Tracebacks show the source while the object lives."""
    filename = f"<tensornet {title}>"
    known = dict(names)
    exec(compile(source, filename, "exec"), known)
    found = known[name]
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    weakref.finalize(found, linecache.cache.pop, filename, None).atexit = False
    return found


def function_of(found: Plan, backend: Backend, **services: Any) -> Callable[..., Any]:
    """The generated function of a plan; its source shows in tracebacks and debuggers.

    Args:
        found: the plan.
        backend: the backend whose names it uses.
        **services: replacements for some of these names.
    """
    names: dict[str, Any] = {**backend.namespace(), **services}
    names["functions"] = {
        row.name: dict(row.implementations)[backend.name]
        for row in FUNCTIONS.values()
        if backend.name in dict(row.implementations)
    }
    function: Callable[..., Any] = define(found.code, f"plan {next(_numbers)}", FUNCTION_NAME, names)
    return function


def arguments(plan: Plan) -> Iterator[tuple[Leaf, tuple[int, ...], str]]:
    """The leaves that the function of a plan takes, with their shapes at the planned sizes and element types."""
    known, elements = {**plan.graph.bound, **dict(plan.sizes)}, of_leaves(plan.graph)
    wide = "float64" if real_type(plan.dtype) == "float64" else "float32"
    dtypes = {Element.TRUTH: "bool", Element.WIDE: wide, Element.NUMBER: plan.dtype}
    for leaf in plan.leaves:
        element = elements[leaf.name] if leaf.name in elements else of_leaf(leaf)
        yield leaf, tuple(int(evaluate(size, known)) for size in leaf.shape), dtypes.get(element, "int64")


def drawn(
    taken: Iterable[tuple[Leaf, tuple[int, ...], str]], backend: Backend, device: str, seed: int = 0
) -> dict[str, Any]:
    """Random arguments for a function, by name; positions and truth values are all 0.

    Args:
        taken: the leaves, shapes and element types, as `arguments` gives them.
        backend, device: where the arrays are.
        seed: the same seed gives the same numbers.
    """
    import numpy

    draw = numpy.random.default_rng(seed)
    found = {}
    for leaf, shape, dtype in taken:
        is_real = dtype not in ("bool", "int64")
        value = draw.standard_normal(shape) if is_real else numpy.zeros(shape, dtype)
        found[leaf.name] = backend.asarray(value, dtype, device)
    return found


class Place(NamedTuple):
    """The device and the element type of tables, and the values of the sizes that they depend on."""

    device: str
    dtype: str
    sizes: tuple[int, ...]


class Tables(list[Any]):
    """The arrays that are computed once, and that a function takes besides the arguments of a call."""


NO_TABLES = Tables()


class LoadedProgram:
    """A plan with its function, and the tables that all its users share.

    Attributes:
        plan: the plan.
        function: the function of inputs, parameters, constants and tables.
        as_one: the same function, compiled as a whole where the library does so.
    """

    def __init__(self, plan: Plan, backend: Backend) -> None:
        self.plan, self.function, self._backend = plan, function_of(plan, backend), backend
        self.as_one = backend.as_one(self.function)
        self._common: weakref.WeakValueDictionary[Place, Tables] = weakref.WeakValueDictionary()

    def tables(self, place: Place, source: Callable[[Leaf], Any]) -> Tables:
        """The tables of a place. They are shared among users, unless they are computed from constants.

        Args:
            place: the place.
            source: gives the array of a constant.
        """
        if not self.plan.tables:
            return NO_TABLES
        found = self._common.get(place)
        if found is None:
            found = apart(lambda: self._made(place, source))
            if not self.plan.sources:
                self._common[place] = found
        return found

    def _made(self, place: Place, source: Callable[[Leaf], Any]) -> Tables:
        like = self._backend.asarray([], place.dtype, place.device)
        sources = [source(leaf) for leaf in self.plan.sources]
        made = inspect.unwrap(self.function).__globals__[TABLES_NAME](like, *sources, *place.sizes)
        self._backend.synchronize(place.device, *made)
        return Tables(made)

    def bound(self, place: Place) -> Callable[..., Any]:
        """The function of inputs and parameters alone, with its constants and tables at a place."""

        def source(leaf: Leaf) -> Any:
            return constant_array(leaf, self._backend, place.dtype, place.device)

        more = [*map(source, self.plan.constants), *self.tables(place, source)]
        return lambda *given: self.function(*given, *more)


def constant_array(leaf: Leaf, backend: Backend, dtype: str, device: str | None) -> Any:
    """The array of a constant; a floating one in float32, or in float64 if the working type has that precision."""
    assert leaf.value is not None
    array = leaf.value.array()
    wide = "float64" if real_type(dtype) == "float64" else "float32"
    return backend.asarray(array.copy(), wide if array.dtype.kind == "f" else None, device)
