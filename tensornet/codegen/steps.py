"""Code generation of steps: the right side of a line, with views, windows, gathers and products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from ..contraction.pairs import Strategy
from ..device.cost_model import MAPPED
from ..dtypes import Element, itemsize
from ..language.affine import is_descending, reached
from ..language.expression import Call, Contraction, Index, Ref, axes_of_index, is_computed_index
from ..language.patterns import pattern_of
from ..ops.record import Left, names_in
from ..ops.record import extent as size_along
from ..ops.structure import is_inside
from ..ops.table import FUNCTIONS
from ..planning.plans import Multiplied, Step
from ..sizes import are_equal, evaluate, product
from .context import CodegenContext, tuple_source


def write_step(context: CodegenContext, step: Step) -> str:
    """The right side of the line for one step: a product, a sum, a view of a tensor, a function along axes, or a
    pointwise expression."""
    context.sizes = {axis.name: axis.size for axis in step.axes}
    context.element, left = step.element, step.equation.left
    if step.arrangement is not None and (product := step.multiplied) is not None:
        return _product(context, product, step.arrangement, left)
    match step.equation.right:
        case Contraction((Ref() as ref,), summed) if summed:
            return context.op("sum", context.atomic(ref), axes=tuple_source(_places(ref, summed)))
        case Ref() as ref if _is_whole(ref):
            return context.copied(ref, list(map(names_in, left)))
        case Ref() as ref:
            text, given_back = (
                _indexed(context, ref, left),
                {each.value.name for each in context.plan.results},
            )
            own = step.equation.name in given_back and any(map(_overlaps, ref.index))
            return context.op("contiguous", text) if own else text
        case Call(function) as call if FUNCTIONS[function].axes != "none":
            return _along_axes(context, call, left)
        case expression if expression.is_scalar:
            return context.number(expression)
        case expression:
            return context.render(expression, left)


def _is_whole(ref: Ref) -> bool:
    """Whether every element of a tensor is read, exactly once."""
    axes = [axis for entry in ref.index if isinstance(entry, str | tuple) for axis in names_in(entry)]
    return len(set(axes)) == len(axes) and all(isinstance(entry, str | tuple) for entry in ref.index)


def _overlaps(entry: Index) -> bool:
    """Whether an entry reads windows, which share memory."""
    return is_computed_index(entry) and not isinstance(entry, Ref) and len(entry.free_axes) > 1


def _places(ref: Ref, axes: Sequence[str]) -> list[int]:
    layout = ref.layout
    return [layout.index(axis) for axis in axes]


# ---------------------------------------------------------------------------- functions along axes


def _along_axes(context: CodegenContext, call: Call, left: Left) -> str:
    """A step of a function that operates on axes."""
    function = FUNCTIONS[call.function]
    if function.spelled is not None:
        return function.spelled(context, call, left)
    if function.computes:
        return _kernel(context, call, left)
    match function.axes:
        case "made":
            return _made(context, call)
        case "joined":
            return _joined(context, call, left)
        case "moved":
            return _moved(context, call)
    return _over_axes(context, call, left)


def _kernel(context: CodegenContext, call: Call, left: Left) -> str:
    """A kernel, the user's own or a template, of operands with one dimension per axis of its equation."""
    function, refs = FUNCTIONS[call.function], cast("tuple[Ref, ...]", call.arguments)
    pattern = pattern_of(function.computes[0])
    groups = pattern.groups([ref.layout for ref in refs])
    given = [
        context.view(ref, [groups[axis] for axis in tensor.free_axes], ones=True)
        for ref, tensor in zip(refs, pattern.tensors, strict=True)
    ]
    told = context.options(call)
    if function.implementations:
        text = context.own(function, [*given, *(f"{name}={text}" for name, text in told.items())])
    else:
        text = context.op(function.name, *given, **told)
    return text if all(groups[axis] for axis in pattern.left) else context.reshaped(text, left)


def _over_axes(context: CodegenContext, call: Call, left: Left) -> str:
    """A function along dimensions of its operand."""
    ref, *affine = cast("tuple[Ref, ...]", call.arguments)
    function = FUNCTIONS[call.function]
    over, made = function.runs_over(call.axes), function.makes(call.axes)
    if over in ref.index:
        text, at = context.names[ref.name], [ref.index.index(over)]
    elif all(axis in ref.index for axis in over):
        text, at = context.names[ref.name], [ref.index.index(axis) for axis in over]
    else:
        text, at = context.atomic(ref), _places(ref, over)
    details = {"axis": str(at[0]), **context.options(call)}
    if affine:
        return context.op(
            f"{function.name}_affine", text, *(context.atomic(each) for each in affine), **details
        )
    if function.implementations:
        return context.own(function, [text, str(at[0])])
    if context.asks(function.name, "positions"):
        size = size_along(context.sizes, over)
        details["positions"] = _positions_along(context, size, len(left) - at[0])
    if made:
        details["size"] = context.extent(made)
    return context.op(function.name, text, axes=tuple_source(at), **details)


def _made(context: CodegenContext, call: Call) -> str:
    """Positions along the new axis of a call, or operands compared with them."""
    (axis,), refs = call.axes, cast("tuple[Ref, ...]", call.arguments)
    operands = [context.atomic(each) for each in refs]
    if is_inside(call):
        operands = [context.looked(operands[0], refs[0].name, axis)]
    return context.op(call.function, *operands, positions=context.positions(context.sizes[axis]))


def _moved(context: CodegenContext, call: Call) -> str:
    """A function that moves elements along the axes that its keywords name."""
    (ref,) = cast("tuple[Ref]", call.arguments)
    named = {name: values for name, values in call.options if name in call.option_axes}
    details = context.options(call)
    for n, amount in enumerate(FUNCTIONS[call.function].amounts):
        details[amount] = tuple_source(context.integer(values[n]) for values in named.values())
    axes = tuple_source(_places(ref, list(named)))
    return context.op(call.function, context.atomic(ref), axes=axes, **details)


def _joined(context: CodegenContext, call: Call, left: Left) -> str:
    """A concatenation of operands that are broadcast to the size of the result along all other axes."""
    (axis, *_), parts = call.axes, []
    for ref in cast("tuple[Ref, ...]", call.arguments):
        own = context.label_sizes(ref)
        full = [own.get(name, 1 if name == axis else context.sizes[name]) for name in axes_of_index(left)]
        text = context.aligned(ref, left)
        if {*own, axis} != set(left):
            text = context.op("broadcast", text, shape=context.shape(full))
        elif axis not in own and axis == left[0]:  # elsewhere it is there already
            text = context.reshape(text, full)
        parts.append(text)
    return context.op(call.function, ", ".join(parts), axis=str(left.index(axis)))


# ---------------------------------------------------------------------------- indices

Read = tuple[Index, Any]
"""A dimension: its index entry, and its size."""


def _indexed(context: CodegenContext, ref: Ref, left: Left) -> str:
    """A tensor read by integer indices, slices, windows, gathers or diagonals, with its axes in the order `left`."""
    text, dimensions = _sliced(context, ref)
    apart: list[Read] = []
    for entry, size in dimensions:
        parts = (
            [(part, context.sizes[part]) for part in entry] if isinstance(entry, tuple) else [(entry, size)]
        )
        apart.extend(parts)
    if len(apart) != len(dimensions):
        text = context.reshape(text, [size for _, size in apart])
    return _gathered(context, text, apart, axes_of_index(left))


def _sliced(context: CodegenContext, ref: Ref) -> tuple[str, list[Read]]:
    """Applies integer indices, slices and windows. The result has the entries and sizes of the dimensions left."""
    dimensions = list(zip(ref.index, context.shapes[ref.name], strict=True))
    text = context.names[ref.name]
    back = [n for n, (entry, _) in enumerate(dimensions) if is_computed_index(entry) and is_descending(entry)]
    text = context.op("flip", text, axes=tuple_source(back)) if back else text
    cuts = [_slice(context, entry, size) for entry, size in dimensions]
    cutting, index = [n for n, cut in enumerate(cuts) if cut != ":"], ", ".join(cuts)
    if len(cutting) == 1 and isinstance(dimensions[cutting[0]][0], int):
        text = context.op("select", text, cuts[cutting[0]], axis=str(cutting[0]), index=index)
    elif cutting:
        text = f"{text}[{index}]"
    found: list[Read] = []
    for entry, size in dimensions:
        if isinstance(entry, int):
            continue
        if not is_computed_index(entry) or isinstance(entry, Ref):
            found.append((entry, size))
            continue
        (outer, by), (inner, apart), first = reached(entry)
        if inner:
            counts = {"outer": context.extent([outer]), "inner": context.extent([inner])}
            places = {"by": str(by), "apart": str(apart), "first": str(first)}
            text = context.op("windows", text, axis=str(len(found)), **places, **counts)
        found += [(axis, context.sizes[axis]) for axis in (outer, inner) if axis]
    return text, found


def _slice(context: CodegenContext, entry: Index, size: Any) -> str:
    """The slice of a dimension, as it is written between brackets."""
    if isinstance(entry, int):
        return str(entry)
    if not is_computed_index(entry) or isinstance(entry, Ref) or len(entry.free_axes) > 1:
        return ":"
    (axis, by), _, first = reached(entry)
    if by < 0:  # of the dimension in the opposite order
        by, first = -by, size - 1 - first
    room, count = size - first, context.sizes[axis]
    fits = room if by == 1 else (room + by - 1) // by
    stop = "" if are_equal(count, fits, {}) else context.size(first + by * count)
    start = "" if first == 0 else context.size(first)
    return f"{start}:{stop}" + (f":{by}" if by > 1 else "")


def _gathered(context: CodegenContext, text: str, dimensions: list[Read], left: tuple[str, ...]) -> str:
    """Gathers along the dimensions that an index tensor or a repeated axis picks from."""
    text, dimensions = _diagonals(context, text, dimensions)
    entries = [entry for entry, _ in dimensions]
    inside = {axis for each in entries if isinstance(each, Ref) for axis in each.layout}
    picked = [n for n, e in enumerate(entries) if isinstance(e, Ref) or e in inside or entries.count(e) > 1]
    if not picked:
        return context.in_order(text, tuple(map(str, entries)), left)
    first, count = picked[0], len(picked)
    adjacent = picked[-1] - first < count
    row = product(size for _, size in dimensions[picked[-1] + 1 :])
    by_rows = adjacent and (not isinstance(row, int) or row >= ROW)
    if not by_rows and (along := _gathered_along(context, text, dimensions, left)) is not None:
        return along
    if not adjacent:
        order = [*picked, *(n for n in range(len(entries)) if n not in picked)]
        text, dimensions, first = context.permute(text, order), [dimensions[n] for n in order], 0
    before, chosen, after = dimensions[:first], dimensions[first : first + count], dimensions[first + count :]
    taken = inside.union(entry for entry, _ in chosen if isinstance(entry, str))
    axes = tuple(axis for axis in left if axis in taken)
    flat = _flat_index(context, chosen, axes)
    around = [size for _, size in before], [size for _, size in after]
    if count > 1:
        text = context.reshape(text, [*around[0], product(size for _, size in chosen), *around[1]])
    flat = flat if len(axes) == 1 else context.op("reshape", flat, shape="(-1,)")
    text = context.op("take", text, flat, axis=str(first))
    if len(axes) != 1:
        text = context.reshape(text, [*around[0], *(context.sizes[axis] for axis in axes), *around[1]])
    lying = (*(str(entry) for entry, _ in before), *axes, *(str(entry) for entry, _ in after))
    return context.in_order(text, lying, left)


ROW = 8
"""The least elements that are gathered as a row at once, not one by one."""


def _diagonals(context: CodegenContext, text: str, dimensions: list[Read]) -> tuple[str, list[Read]]:
    """Diagonals of dimensions with the same axis, which are views; each goes last."""
    entries = [entry for entry, _ in dimensions]
    for n, entry in enumerate(entries):
        if isinstance(entry, str) and entry in entries[:n]:
            first = entries.index(entry)
            text = context.op("diagonal", text, first=str(first), second=str(n))
            others = [each for at, each in enumerate(dimensions) if at not in (first, n)]
            return _diagonals(context, text, [*others, dimensions[n]])
    return text, dimensions


def _gathered_along(
    context: CodegenContext, text: str, dimensions: list[Read], left: tuple[str, ...]
) -> str | None:
    """A gather along one dimension, at positions that are given for each position along some of the others: one
    position, if these are all others, or several."""
    entries = [entry for entry, _ in dimensions]
    looked = [(n, entry) for n, entry in enumerate(entries) if isinstance(entry, Ref)]
    if "gather" not in context.backend.templates or len(looked) != 1 or len(set(entries)) < len(entries):
        return None
    ((at, ref),) = looked
    inside, others = ref.layout, [*entries[:at], *entries[at + 1 :]]
    made = [axis for axis in inside if axis not in entries]
    if len(made) > 1 or len(inside) == len(made) or (not made and not {*inside}.issuperset(others)):
        return None
    lying = tuple(map(str, (*entries[:at], *made, *entries[at + 1 :])))
    index = context.below(context.aligned(ref, lying), ref.name, dimensions[at][1])
    sizes = [context.sizes[axis] for axis in lying]
    if made:
        index = context.op("broadcast", index, shape=context.shape(sizes))
    else:
        index = context.reshape(index, [*sizes[:at], 1, *sizes[at:]])
    text = context.op("gather", text, index, axis=str(at))
    text = text if made else context.reshape(text, sizes)
    return context.in_order(text, lying, left)


def _flat_index(context: CodegenContext, dimensions: list[Read], axes: tuple[str, ...]) -> str:
    """Row-major positions in the picked dimensions, over `axes`."""
    terms: list[str] = []
    sizes = [size for _, size in dimensions]
    for n, (entry, size) in enumerate(dimensions):
        stride = product(sizes[n + 1 :])
        if isinstance(entry, Ref):
            term = context.below(context.aligned(entry, axes), entry.name, size, product(sizes[: n + 1]))
        else:
            term = _positions_along(context, size, len(axes) - axes.index(str(entry)))
        terms.append(term if stride == 1 else f"{term} * ({context.size(stride)})")
    text = " + ".join(terms)
    (entry, _), *others = dimensions
    if not others and isinstance(entry, Ref) and entry.layout == axes:
        return text
    return context.op("broadcast", f"({text})", shape=context.shape(context.sizes[axis] for axis in axes))


def _positions_along(context: CodegenContext, size: Any, rank: int) -> str:
    """0, 1, 2, … along the first of `rank` dimensions."""
    places = context.positions(size)
    return context.reshape(places, [size, *[1] * (rank - 1)]) if rank > 1 else places


# ---------------------------------------------------------------------------- products of two tensors


def _product(context: CodegenContext, product: Multiplied, way: Strategy, left: Left) -> str:
    """A product of two tensors, arranged as it was priced."""
    a, b = product.a, product.b
    match way.kind:
        case "multiply":
            return f"{context.aligned(a, left)} * {context.aligned(b, left)}"
        case "sum":
            order = (b if way.swapped else a).layout
            text = f"({context.aligned(a, order)} * {context.aligned(b, order)})"
            return context.op("sum", text, axes=tuple_source(map(order.index, way.summed)))
        case "linear":
            given = [context.view(*each) for each in product.read_by(way)]
            given += [context.view(product.bias, way.result[-1:])] if product.bias is not None else []
            return context.op(_sized(context, "linear", way.result), ", ".join(given))
        case "dot":
            return context.op("vecdot", *(context.view(*each) for each in product.read_by(way)))
    one, two = (_matrix(context, ref, *groups) for ref, groups in product.read_by(way))
    whole = context.element is Element.WHOLE and "whole_matmul" in context.backend.templates
    text = context.op("whole_matmul" if whole else _sized(context, "matmul", left), one, two)
    if way.added:
        return context.op("sum", text, axes="(0,)")
    return context.reshaped(text, left) if way.batch and not (way.rows and way.columns) else text


def _sized(context: CodegenContext, template: str, left: Left) -> str:
    """The name of the template of a product. Results so large that their memory is newly mapped each time have their
    own."""
    large, plan = f"large_{template}", context.plan
    if large not in context.backend.templates or not plan.device.startswith("cpu"):
        return template
    elements = product(evaluate(size, dict(plan.sizes)) for size in context.left_sizes(left))
    return large if elements * itemsize(plan.dtype) > MAPPED else template


def _matrix(
    context: CodegenContext, ref: Ref, batch: tuple[str, ...], outer: tuple[str, ...], inner: tuple[str, ...]
) -> str:
    """An operand as one matrix per position of the batch. One without batch axes is broadcast."""
    layout = ref.layout
    own = tuple(axis for axis in batch if axis in layout)
    if own or not batch:
        text = context.view(ref, [own, outer, inner], ones=bool(batch))
        scattered = own and layout[-len(own) :] == own and (outer or inner)  # every matrix would be copied
        return context.op("contiguous", text) if scattered else text
    matrix = context.view(ref, [outer, inner], ones=True)
    shape = context.shape(size_along(context.sizes, group) for group in (batch, outer, inner))
    return context.op("broadcast", matrix, shape=shape)
