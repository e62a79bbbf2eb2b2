"""Code generation of steps: the right side of a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ..errors import BackendError
from ..language.affine import reached
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Index,
    Ref,
    axes_of_index,
    free_axes,
    is_computed_index,
    is_scalar,
    option_axes,
    show,
)
from ..language.patterns import pattern_of
from ..ops.protocols import Left, layout_of, names_in
from ..ops.protocols import extent as size_along
from ..ops.structure import is_inside
from ..ops.table import FUNCTIONS, Function
from ..planning.steps import Step
from .context import CodegenContext
from .indices import indexed, looked, positions_along
from .names import tuple_source
from .products import write_product
from .views import (
    aligned,
    atomic,
    broadcast,
    copied,
    extent,
    integer,
    label_sizes,
    left_sizes,
    options,
    product_source,
    reshaped,
    scalar,
    value,
    view,
)

__all__ = ["Writing", "write_step"]


def write_step(context: Writing, step: Step) -> str:
    """The right side of the line for one step."""
    equation = step.equation
    context.sizes = {axis.name: axis.size for axis in step.axes}
    context.element = step.element
    text = _right_side(context, step, equation.left)
    context.shapes[equation.name] = tuple(left_sizes(context, equation.left))
    return text


def _right_side(context: Writing, step: Step, left: Left) -> str:
    """A product, a sum, a view of a tensor, a function along axes, or a pointwise expression."""
    if step.arrangement is not None and (product := step.multiplied) is not None:
        return write_product(context, product, step.arrangement, left)
    match step.equation.right:
        case Call(_, terms) if step.into:
            return _in_place(context, terms, step.into, left)
        case Contraction((Ref() as ref,), summed) if summed:
            return context.op("sum", atomic(context, ref), axes=tuple_source(_places(ref, summed)))
        case Ref() as ref if _is_plain(ref):
            return copied(context, ref, list(map(names_in, left)))
        case Ref() as ref:
            text, given_back = indexed(context, ref, left), {each.value.name for each in context.plan.results}
            own = step.equation.name in given_back and any(map(_overlaps, ref.index))
            return context.op("contiguous", text) if own else text
        case Call(function) as call if FUNCTIONS[function].axes != "none":
            return _along_axes(context, call, left)
        case expression if is_scalar(expression):
            return number(context, expression)
        case expression:
            return render(context, expression, left)


def _in_place(context: Writing, terms: Sequence[Expression], into: str, left: Left) -> str:
    """A sum that is written into one of its terms."""
    at = next(n for n, term in enumerate(terms) if isinstance(term, Ref) and term.name == into)
    text = render(context, terms[at], left)
    for term in (*terms[:at], *terms[at + 1 :]):
        other = render(context, term, left)
        text = context.op("subtracted" if other[0] == "-" else "added", text, other.removeprefix("-"))
    return text


def number(context: CodegenContext, expression: Expression) -> str:
    """A number as a tensor."""
    like = context.names[context.leaves[0].name] if context.leaves else "None"
    return context.op("scalar", scalar(context, expression), dtype=context.dtype(context.element), like=like)


def _is_plain(ref: Ref) -> bool:
    """Whether a tensor is read whole along each of its dimensions, and no two of them along the same axis."""
    names = [name for entry in ref.index if isinstance(entry, str | tuple) for name in names_in(entry)]
    return all(isinstance(entry, str | tuple) for entry in ref.index) and len(names) == len(set(names))


def _overlaps(entry: Index) -> bool:
    """Whether an entry reads windows, which share memory."""
    return is_computed_index(entry) and not isinstance(entry, Ref) and len(free_axes(entry)) > 1


def _places(ref: Ref, axes: Sequence[str]) -> list[int]:
    layout = layout_of(ref)
    return [layout.index(axis) for axis in axes]


# ---------------------------------------------------------------------------- pointwise expressions


def render(context: Writing, expression: Expression, left: Left) -> str:
    """A pointwise expression over operands aligned to the result."""

    def inner(part: Expression) -> str:
        return render(context, part, left)

    match expression:
        case Ref():
            return aligned(context, expression, left)
        case _ if is_scalar(expression):
            return scalar(context, expression)
        case Contraction(factors, ()):
            return product_source(factors, inner)
        case Call("add", arguments):
            first, *others = map(inner, arguments)
            return first + "".join(f" - {each[1:]}" if each[0] == "-" else f" + {each}" for each in others)
        case Call(function, (Contraction(factors, ()),)) if FUNCTIONS[function].rounds:
            return product_source(factors, inner, by=FUNCTIONS[function].rounds)
        case Call(function) if (spelled := FUNCTIONS[function].spelled) is not None:
            return spelled(context, expression, left)
        case Call(function, arguments):
            operands = list(map(inner, arguments))
            if FUNCTIONS[function].random and is_scalar(
                arguments[0]
            ):  # a function that draws per element needs a tensor
                operands[0] = number(context, arguments[0])
            return _applied(context, expression, operands)
    raise AssertionError(show(expression))


def _applied(context: CodegenContext, call: Call, operands: list[str]) -> str:
    """A function of operands: the user's own, the backend's, or a Python operator."""
    function = FUNCTIONS[call.function]
    if function.implementations:
        return _own(context, function, operands)
    if function.name in context.backend.templates or not function.infix:
        return context.op(function.name, *operands, **options(context, call))
    if len(operands) == 2:
        return f"{_closed(operands[0])} {function.infix} {_closed(operands[1])}"
    return f"{function.infix}{_closed(operands[0])}"


def _own(context: CodegenContext, function: Function, given: Sequence[str]) -> str:
    """A call of the user's own implementation."""
    registered, backend = dict(function.implementations), context.backend.name
    if backend not in registered:
        raise BackendError(
            f"'{function.name}' is registered for {', '.join(registered)}, not for {backend}",
            fix=f"tensornet.register('{function.name}', {backend}=...)",
        )
    return f'functions["{function.name}"]({", ".join(given)})'


def _closed(text: str) -> str:
    """An operand of an infix operator. A negative number or a compound expression gets parentheses."""
    return f"({text})" if text.startswith("-") or (" " in text and not text.endswith(")")) else text


# ---------------------------------------------------------------------------- functions along axes


def _along_axes(context: Writing, call: Call, left: Left) -> str:
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
    groups = pattern.groups([layout_of(ref) for ref in refs])
    given = [
        view(context, ref, [groups[axis] for axis in axes_of_index(tensor.index)], ones=True)
        for ref, tensor in zip(refs, pattern.tensors, strict=True)
    ]
    told = options(context, call)
    if function.implementations:
        text = _own(context, function, [*given, *(f"{name}={text}" for name, text in told.items())])
    else:
        text = context.op(function.name, *given, **told)
    return text if all(groups[axis] for axis in pattern.left) else reshaped(context, text, left)


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
        text, at = atomic(context, ref), _places(ref, over)
    details = {"axis": str(at[0]), **options(context, call)}
    if affine:
        return context.op(
            f"{function.name}_affine", text, *(atomic(context, each) for each in affine), **details
        )
    if function.implementations:
        return _own(context, function, [text, str(at[0])])
    if context.asks(function.name, "positions"):
        size = size_along(context.sizes, over)
        details["positions"] = positions_along(context, size, len(left) - at[0])
    if made:
        details["size"] = extent(context, made)
    return context.op(function.name, text, axes=tuple_source(at), **details)


def _made(context: CodegenContext, call: Call) -> str:
    """Positions along the new axis of a call, or operands compared with them."""
    (axis,), refs = call.axes, cast("tuple[Ref, ...]", call.arguments)
    operands = [atomic(context, each) for each in refs]
    if is_inside(call):
        operands = [looked(context, operands[0], refs[0].name, axis)]
    return context.op(call.function, *operands, positions=context.positions(context.sizes[axis]))


def _moved(context: CodegenContext, call: Call) -> str:
    """A function that moves elements along the axes that its keywords name."""
    (ref,) = cast("tuple[Ref]", call.arguments)
    named = {name: values for name, values in call.options if name in option_axes(call)}
    details = options(context, call)
    for n, amount in enumerate(FUNCTIONS[call.function].amounts):
        details[amount] = tuple_source(integer(values[n]) for values in named.values())
    axes = tuple_source(_places(ref, list(named)))
    return context.op(call.function, atomic(context, ref), axes=axes, **details)


def _joined(context: CodegenContext, call: Call, left: Left) -> str:
    """A concatenation of operands that are broadcast to the size of the result along all other axes."""
    (axis, *_), parts = call.axes, []
    for ref in cast("tuple[Ref, ...]", call.arguments):
        own = label_sizes(context, ref)
        full = [own.get(name, 1 if name == axis else context.sizes[name]) for name in axes_of_index(left)]
        text = aligned(context, ref, left)
        if {*own, axis} != set(left):
            text = context.op("broadcast", text, shape=context.shape(full))
        elif axis not in own:
            text = context.reshape(text, full)
        parts.append(text)
    return context.op(call.function, ", ".join(parts), axis=str(left.index(axis)))


# ---------------------------------------------------------------------------- the seam


class Writing(CodegenContext):
    """The context with the functions that the records of functions call; see `ops.protocols.Writer`."""

    render = render
    view = view
    broadcast = broadcast
    atomic = atomic
    extent = extent
    reshaped = reshaped
    looked = looked
    options = options
    scalar = scalar
    number = number
    reached = staticmethod(reached)
    integer = staticmethod(integer)
    is_number = staticmethod(is_scalar)
    value = staticmethod(value)
