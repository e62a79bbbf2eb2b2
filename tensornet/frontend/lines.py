"""Elaboration of one line: bare names, `...`, slices, windows, positions, checks of what it reads, and leaf inference:
a tensor that no line defines gets the axes of its first use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..errors import EquationError, ShapeError, TensornetWarning, near, told_in, warn
from ..graph.element_types import finds_positions, read_in
from ..graph.recurrences import early
from ..graph.shape_inference import Dim, Scope, Shorter, dim_size, index_of, scope_of, size_expression
from ..language.affine import affine
from ..language.canonical import put
from ..language.desugaring import expand_ellipsis, expand_index
from ..language.diagnostics import misplaced, slip_of
from ..language.equation import Equation, Opening, einstein, locate, resolve, sizes_doubted, summed_alone
from ..language.expression import (
    ELLIPSIS,
    Call,
    Contraction,
    Expression,
    Index,
    Literal,
    Ref,
    Span,
    Taken,
    axes_of_index,
    axes_told,
    axes_windowed,
    check_numbers,
    contraction,
    depth,
    fresh,
    product_of,
    remade_axes,
    rename,
    scalar_value,
    show,
    show_index,
    sum_of,
)
from ..language.recurrences import with_entries
from ..ops.structure import INSIDE, PAD, amounts_in
from ..ops.table import FUNCTIONS
from ..sizes import symbol
from .context import Known, Text

ZERO, MINUS = Literal(0), Literal(-1)

DEEPEST = 100
"""The nesting limit of functions and operators in a line: the code that traverses it is recursive."""


def read(text: Text, line: Equation, defined: set[str]) -> None:
    """Elaborates one equation; its leaves and its result are known from here on."""
    if depth(line.right) > DEEPEST:
        raise EquationError("the equation is nested too deeply", line.place, "split the line")
    if any(isinstance(entry, Span) for ref in line.references for entry in ref.index):
        line = _with_lead(text, line)
        line = replace(line, right=line.right.rewrite(partial(_every, text, defined)))
    line = _resolved(text, line)
    _check_order(text, line, defined)
    found = _opened(text, line) if isinstance(line, Opening) else line
    if found is None:
        return
    line = _with_lead(text, found)
    line = replace(line, right=_with_extents(text, line.right))
    _check_undeclared(text, line)
    _declare_leaves(text, line)
    implied = line
    _check_brackets(text, line)
    line = einstein(line, text.guessed)
    check_numbers(line.right)
    _check_positions(text, line)
    line, scope = _whole(text, line)
    _check_given(text, line, scope)
    _check_summed(text, line, scope)
    text.keep(line, scope)
    if not text.printed:
        _doubt_sums(implied)
        _doubt_sizes(implied)


def _check_order(text: Text, line: Equation, defined: set[str]) -> None:
    """Raises an error for a read of a later line's result, except at earlier positions of a recurrence."""
    for ref in early(line):
        ahead = ref.name in defined and ref.name not in text.openings
        if ahead and text.known.get(ref.name, Known("foreseen")).kind == "foreseen":
            if ref.name == line.name:
                message = f"'{ref.name}' reads itself, and not at an earlier position"
                fix = "step by a number along one axis, as in h[b,t-1,o]: a step is no size and no tensor"
            else:
                message = f"'{ref.name}' is used before it is defined"
                fix = "order the lines so that it comes first"
            raise EquationError(message, ref.place, fix)


def _resolved(text: Text, line: Equation) -> Equation:
    """The line with brackets after every tensor name; a sum of axes begins with the axis that it sizes."""
    dims = text.dims(line.right)
    indices: dict[str, tuple[Index, ...]] = {name: index_of(each) for name, each in dims.items()}
    indices |= _read_here(text, line, indices)
    if isinstance(line, Opening) and isinstance(line.right, Ref) and line.right.name not in text.axes:
        indices.setdefault(line.right.name, line.left)
    for ref in line.references:
        entry = text.known.get(ref.name)
        if entry is not None and entry.index is None and not ref.index and entry.kind == "input":
            if ref.name in indices or ref.name in text.axes:
                continue
            fix = f'write {ref.name}[b,i], or list it as inputs="{ref.name}[b,i]", one number as "{ref.name}[()]"'
            raise EquationError(f"the axes of the input '{ref.name}' are not known yet", ref.place, fix)
    right = line.right.rewrite(partial(_openings_read, text)).rewrite(partial(_cropped, dims))
    kept = line.kept
    right = resolve(right, indices, text.is_size, kept)
    return replace(line, right=_window_first(right, kept, text.held(right)))


def _opened(text: Text, line: Opening) -> Equation | None:
    """The equation of a recurrence's initial value, without broadcast axes; None if the value is a tensor already."""
    right, left = line.right, line.kept
    present = right.free_axes
    kept = tuple(axis for axis in left if axis in present)
    if isinstance(right, Ref) and len(kept) == len(right.free_axes) and not _reads_part(right):
        text.openings[line.name] = left, right
        return None
    text.openings[line.name] = left, Ref(line.name, kept, line.place)
    return Equation(line.name, kept, right, line.place)


def _reads_part(ref: Ref) -> bool:
    """Whether the brackets contain anything but axes."""
    return not all(isinstance(entry, str | tuple) for entry in ref.index)


def _openings_read(text: Text, part: Expression) -> Expression:
    """A read of an initial value of a recurrence, from the tensor that holds it."""
    if not isinstance(part, Ref) or part.name not in text.openings:
        return part
    left, start = text.openings[part.name]
    return rename(start, dict(zip(left, part.free_axes, strict=True)))


def _read_here(text: Text, line: Equation, known: Collection[str]) -> dict[str, tuple[Index, ...]]:
    """The indices of new tensors that the line reads both with brackets and by a bare name."""
    found: dict[str, tuple[Index, ...]] = {}
    bare = {ref.name: ref for ref in line.references if not ref.index}
    for ref in line.references:
        if ref.name in known or ref.name in text.axes or not ref.index or ref.name not in bare:
            continue
        first = found.setdefault(ref.name, ref.index)
        if first != ref.index or _reads_part(ref):
            shown = " and ".join(
                dict.fromkeys(f"{ref.name}[{show_index(each)}]" for each in (first, ref.index))
            )
            message = f"'{ref.name}' without brackets is ambiguous: the line also reads {shown}"
            raise EquationError(message, bare[ref.name].place, f"write {ref.name}[…] with the axes you mean")
    return found


@told_in("axes")
def _with_lead(text: Text, line: Equation) -> Equation:
    """Replaces `...` by axis names wherever a tensor's leading axes are known by name."""
    lead: tuple[str, ...] | None = None
    known = text.dims(line.right)
    for ref in line.references:
        dims = known.get(ref.name)
        if ELLIPSIS not in ref.index or dims is None or ELLIPSIS in index_of(dims):
            continue
        at, count = ref.index.index(ELLIPSIS), len(dims) - (len(ref.index) - 1)
        if lead is None and count >= 0:
            names = ("_".join(axis.name for axis in dim) for dim in dims[at : at + count])
            lead = tuple(map(Taken((*line.right.occurring, *line.kept)).fresh, names))
        if lead is None or len(lead) != count:
            expected = "none" if count < 0 else f"{len(lead or ())}"
            raise ShapeError(
                f"'...' stands for {max(count, 0)} axes of '{ref.name}', and for {expected} elsewhere in the line",
                ref.place,
                "write the axes out",
            )
    if lead is None:
        return line
    return replace(line, left=expand_index(line.left, lead), right=expand_ellipsis(line.right, lead))


@told_in("axes")
def _check_brackets(text: Text, line: Equation) -> None:
    """Raises an error for an input whose bare name in brackets is read as an axis, where the left has other axes."""
    lost = set(line.kept).difference(line.right.free_axes)
    for ref in line.references if lost else ():
        for name in ref.plain_axes:
            entry = text.known.get(name)
            if entry is not None and entry.kind == "input" and entry.dims is None:
                index = show_index(tuple(f"{name}[b]" if each == name else each for each in ref.index))
                message = f"'{name}' in brackets is an axis here, and an input"
                fix = f"give its axes where it says positions, as in {ref.name}[{index}]"
                raise EquationError(message, locate(ref.place, name), fix)


@told_in("axes")
def _check_positions(text: Text, line: Equation) -> None:
    """Raises an error for positions that are not integers."""
    for ref in line.references:
        for entry in ref.parts:
            _check_told(text, ref, entry)


def _check_told(text: Text, ref: Ref, entry: Expression) -> None:
    found = _not_whole(entry)
    if found is not None:
        raise EquationError(
            f"{show(found)} is an index of '{ref.name}', and is not an integer",
            found.place or ref.place,
            "use + - * // % and other functions that keep integers",
        )
    for each in read_in(entry):
        if text.known[each.name].kind == "parameter":
            raise EquationError(
                f"'{each.name}' is an index of '{ref.name}', and cannot be a parameter",
                each.place,
                f"list '{each.name}' in inputs=, or give its integers in constants=",
            )


@told_in("sizes")
def _whole(text: Text, line: Equation) -> tuple[Equation, Scope]:
    """The line with windows that reach from end to end, and the sizes in it; for a shorter one, a line of its own cuts
    the tensor."""
    dims, unifier = text.dims(line.right), text.unifier
    shorter: list[Shorter] = []
    told = text.held(line.right)
    scope = scope_of(line.right, dims, unifier.unify, unifier.bound, told, shorter, solves=False)
    if not shorter:
        return line, scope
    first = shorter[0]
    name = _unused(text, _part(first.ref, "cut"))
    own = dims[first.ref.name] or ()
    cut, instead = _cut_to_window(first, own, name, _unused(text, "i", axes_of_index(index_of(own))))
    if text.known[first.ref.name].kind == "foreseen":
        text.foresee([cut])
        text.waiting[first.ref.name].append(cut)
    else:
        text.keep(cut, text.sizes_around(cut.right))
    return _whole(text, replace(line, right=put(line.right, first.ref, instead)))


@told_in("sizes")
def _check_given(text: Text, line: Equation, scope: Scope) -> None:
    """Makes a size that the user gave hold wherever the axis is named. Where concat or pad resizes it, one size in the
    line is the given one, as it holds before or after; in lines below it may be longer or shorter."""
    resizing = {axis: part for part in line.called for axis in remade_axes(part)}
    for ref in line.references:
        for entry, dim in zip(ref.index, text.known[ref.name].dims or (), strict=True):
            if isinstance(entry, str) and entry in text.strict - text.remade and entry not in resizing:
                text.unifier.unify(symbol(entry), dim_size(dim), entry, ref)
    for axis in sorted(text.strict & resizing.keys() - text.remade):
        scopes = (scope, *reversed(scope.parts.values()))
        sizes = [each[axis] for each in scopes if axis in each.sizes or axis in each.assumed]
        if not any(text.unifier.same(symbol(axis), size) for size in sizes):
            text.unifier.unify(symbol(axis), sizes[0], axis, resizing[axis])


@told_in("sizes")
def _check_summed(text: Text, line: Equation, scope: Scope) -> None:
    """Raises an error for a sum over a window axis without a size; a stride without a value is read as one."""
    summed = {axis for part in line.parts if isinstance(part, Contraction) for axis in part.summed}
    windowed = axes_windowed(line.right) & summed
    for axis in sorted(
        windowed.difference(scope.sizes, scope.inner, scope.assumed, scope.fitting, text.given)
    ):
        raise ShapeError(
            f"no tensor has the axis {axis}, so its size is unknown", line.place, f"give {axis}="
        )


# ---------------------------------------------------------------------------- slices


def _every(text: Text, defined: set[str], part: Expression) -> Expression:
    """A read with a slice that has a step, as a slice of a tensor with these positions, which gets lines of its own.

    `x[b,1::2]` is `x_every[b,:]`, with `x_every[b,i] = x[b,2*i+1]`; an end, or a start from the end, is cut off before.
    """
    if not isinstance(part, Ref):
        return part
    for at, span in enumerate(part.index):
        if isinstance(span, Span) and span.step > 1:
            axis = _axis_of_slice(text.dims(part), part, at, span)
            own, first = index_of(text.known[part.name].dims or ()), span.start or ZERO
            if span.stop is not None or _is_negative(first):
                cut = with_entries(own, at, Span(span.start, span.stop, 1, span.place))
                part, first = _held(text, "cut", part, own, cut, defined), ZERO
            new = _unused(text, "i", axes_of_index(own))
            positions = product_of([Literal(span.step), Ref(new, (), span.place)])
            read_at = with_entries(own, at, positions if first == ZERO else sum_of([positions, first]))
            part = _held(text, "every", part, with_entries(own, at, new), read_at, defined)
            dims = (held := text.known[part.name]).dims or ()
            held.dims = with_entries(dims, at, (replace(dims[at][0], name=axis),))
            text.remade.add(axis)
            part = replace(part, index=with_entries(part.index, at, Span(place=span.place)))
    return part


def _held(
    text: Text, ending: str, ref: Ref, left: tuple[Any, ...], index: tuple[Any, ...], defined: set[str]
) -> Ref:
    """A read through a tensor, with a line of its own, that holds another read of the same tensor."""
    name = _unused(text, _part(ref, ending), defined)
    read(text, Equation(name, left, replace(ref, index=index), ref.place), defined)
    return replace(ref, name=name)


def _part(ref: Ref, ending: str) -> str:
    """The stem of the name of a part of a tensor."""
    return f"{ref.name.replace('.', '_')}_{ending}"


def _unused(text: Text, stem: str, taken: Collection[str] = ()) -> str:
    """A name of a tensor or an axis that no line has, as a name that they share would tie their sizes."""
    read = (name for line in text.body for name in line.operands)
    return fresh(stem, {*text.known, *text.axes, *taken, *read})


def _axis_of_slice(dims: Mapping[str, tuple[Dim, ...]], ref: Ref, at: int, span: Span) -> str:
    """The axis that a tensor has where it is read by a slice; raises an error if it is unknown or a composite."""
    known = dims.get(ref.name)
    if known is None:
        message = f"the axis of this slice of '{ref.name}' is not known"
        fix = f"give '{ref.name}' its axes in a line above, or as in inputs='{ref.name}[b,t]'"
        raise EquationError(message, span.place, fix)
    if len(known) != len(ref.index) or len(known[at]) != 1:
        shown = f"{ref.name}[{show_index(index_of(known))}]"
        message = f"this slice does not run along one axis of {shown}"
        fix = "write an entry for each dimension, and give the one of the slice a single axis"
        raise EquationError(message, span.place, fix)
    return known[at][0].name


def _cropped(dims: Mapping[str, tuple[Dim, ...]], changed: Expression) -> Expression:
    """A read with slices replaced by crops: `x[b,1:]` is `pad(x[b,t], t=(-1,0))`.

    The axis is that of the tensor's definition.

    Args:
        dims: the known dimensions of the tensors.
        changed: a part of the right side of an equation, as it was parsed.
    """
    if not isinstance(changed, Ref) or not any(isinstance(entry, Span) for entry in changed.index):
        return changed
    index, amounts = list(changed.index), dict[str, tuple[Expression, ...]]()
    for at, entry in enumerate(changed.index):
        if isinstance(entry, Span):
            index[at] = axis = _axis_of_slice(dims, changed, at, entry)
            amounts[axis] = _amounts(entry, size_expression(dim_size(dims[changed.name][at])))
    cut = Call(PAD.name, (replace(changed, index=tuple(index)),), (), (*amounts.items(),), changed.place)
    sure = INSIDE in amounts or all(isinstance(each, Literal) for _, each in amounts_in(cut))
    return cut if sure else replace(cut, options=(*cut.options, (INSIDE, (Literal(1),))))


def _amounts(span: Span, size: Expression) -> tuple[Expression, Expression]:
    """The padding before and after, as `pad` takes it: 0, or negative for a crop."""
    start, stop = span.start or ZERO, span.stop or ZERO
    if _is_negative(start):
        start = sum_of([size, start])
    before = ZERO if start == ZERO else _negated(start)
    if span.stop is None or _is_negative(stop):
        return before, stop
    return before, sum_of([stop, _negated(size)])


def _negated(expression: Expression) -> Expression:
    if isinstance(expression, Literal):
        return Literal(-expression.value)
    if isinstance(expression, Call) and expression.function == "add":
        return sum_of([_negated(each) for each in expression.arguments])
    return product_of([MINUS, expression])


def _is_negative(expression: Expression) -> bool:
    """Whether a bound counts from the end."""
    first = expression.factors[0] if isinstance(expression, Contraction) else expression
    return isinstance(first, Literal) and not isinstance(first.value, complex) and first.value < 0


# ---------------------------------------------------------------------------- windows


def _window_first(expression: Expression, kept: Sequence[str], given: Collection[str] = ()) -> Expression:
    """The expression with each sum of axes reordered to begin with an axis that nothing else sizes, if there is one.

    That axis is as long as fits. `x[u+p] * K[u]` becomes `x[p+u] * K[u]`, where it is `p`.

    Args:
        expression: the right side of an equation, with its names resolved. A window along one axis sizes it.
        kept: the axes on the left, which come before others.
        given: the axes whose size is given.
    """
    windows = (entry.free_axes for ref in expression.references for entry in ref.parts)
    told = axes_told(expression).union(given, *(axes for axes in windows if len(axes) == 1))

    def rank(term: Expression) -> int:
        axes = term.free_axes
        return 2 if not axes or set(axes) <= told else int(axes[0] not in kept)

    def change(part: Expression) -> Expression:
        if not isinstance(part, Ref):
            return part
        return replace(part, index=tuple(_first(entry, rank) for entry in part.index))

    return expression.rewrite(change)


def _first(entry: Index, rank: Callable[[Expression], int]) -> Index:
    """The entry; if it is a sum of axes, a term of the lowest rank is moved to the front."""
    if isinstance(entry, Call) and entry.function == "add" and affine(entry) is not None:
        moving = [each for each in entry.arguments if each.free_axes]
        numbers = [each for each in entry.arguments if not each.free_axes]
        first = min(moving, key=rank)
        rest = [each for each in moving if each is not first]
        found = (first, *rest, *numbers)
        return entry if rank(moving[0]) == rank(first) else replace(entry, arguments=found)
    return entry


def _cut_to_window(shorter: Shorter, dims: tuple[Dim, ...], name: str, axis: str) -> tuple[Equation, Ref]:
    """An equation that crops a tensor to the part that a window reads, and the window over all of that part.

    Args:
        shorter: the window.
        dims: the dimensions of the tensor.
        name: the name of that part.
        axis: the name of its axis along the window.
    """
    ref, position = shorter.ref, shorter.position
    index: list[Any] = list(index_of(dims))
    index[position] = axis
    amounts = (Literal(-shorter.left), ZERO) if shorter.back else (ZERO, Literal(-shorter.left))
    cut = Call(PAD.name, (Ref(ref.name, tuple(index), ref.place),), (), ((axis, amounts),), ref.place)
    entries = list(ref.index)
    if shorter.back:
        entries[position] = sum_of([entries[position], Literal(-shorter.left)])  # type: ignore[list-item, assignment]
    return Equation(name, tuple(index), cut, ref.place), Ref(name, tuple(entries), ref.place)


# ---------------------------------------------------------------------------- integers


def _not_whole(entry: Expression) -> Expression | None:
    """A part of an expression of positions that is not an integer; None if all parts are."""
    match entry:
        case Ref():
            return None
        case Literal(value):
            return None if isinstance(value, int) else entry
        case Call(function, arguments):
            row = FUNCTIONS[function]
            if row.keeps_whole is not None and row.keeps_whole(*map(scalar_value, arguments)):
                return next((each for each in map(_not_whole, arguments) if each is not None), None)
            if row.rounds or row.converts is not None or finds_positions(entry):
                return None
            if row.yields in ("real", "number"):
                return entry
    found: Any = map(_not_whole, entry.parts)
    return next((each for each in found if each is not None), None)


# ---------------------------------------------------------------------------- leaf inference


def _with_extents(text: Text, expression: Expression) -> Expression:
    """`concat[n](cls[1,c], …)`: the 1 is the size of the parameter `cls` along n."""
    if isinstance(expression, Call) and FUNCTIONS[expression.function].axes == "joined":
        arguments = tuple(_with_extent(text, part, expression.axes[0]) for part in expression.arguments)
        expression = replace(expression, arguments=arguments)
    return expression.transform(partial(_with_extents, text))


def _with_extent(text: Text, part: Expression, axis: str) -> Expression:
    if not isinstance(part, Ref) or part.name in text.known or axis in part.free_axes:
        return part
    extents = [entry for entry in part.index if isinstance(entry, int) and entry > 0]
    if len(extents) != 1:
        return part
    index = tuple(axis if isinstance(entry, int) and entry > 0 else entry for entry in part.index)
    part = replace(part, index=index)
    text.known[part.name] = Known(
        "parameter", text.dims_read(part, Scope({axis: extents[0]})), place=part.place
    )
    text.guessed.add(part.name)
    return part


@told_in("names")
def _check_undeclared(text: Text, line: Equation) -> None:
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


def _doubt_sums(line: Equation) -> None:
    """Warns of a sum over an axis that only one of several tensors has: its name may be misspelled."""
    for ref, axes in summed_alone(line):
        meant = show(contraction((ref,), axes, None))
        message = f"the axis '{axes[0]}' of {show(ref)} is summed, and nothing else has it"
        fix = f"correct it, or write {meant} where it is meant"
        warn(TensornetWarning(message, locate(ref.place, axes[0]), fix))


def _doubt_sizes(line: Equation) -> None:
    """Warns of the size of an axis where the positions along it are more likely meant."""
    for size in sizes_doubted(line):
        message = f"'{size.axis}' is the size of this axis here, not the position along it"
        fix = f"write index({size.axis}) for that; for the size declare a name, x[{size.axis}:n]: input, and write n"
        warn(TensornetWarning(message, size.place, fix))


def _declare_leaves(text: Text, line: Equation) -> None:
    """Gives every new tensor the dimensions that this line reads it with.

    Tensors in functions that resize an axis come first: outside, the axis has the size that the function gives it.
    """
    new = {ref.name for ref in line.references if text.known.get(ref.name, Known("")).dims is None}
    for ref in line.references if new else ():
        text.known.setdefault(ref.name, Known("parameter", place=ref.place))
    calls = (part for part in line.called if remade_axes(part))
    resized = new & {ref.name for call in calls for ref in call.references}
    for names in filter(None, (resized, new - resized)):
        for ref, scope in _unknown(text, line.right):
            if ref.name in names and text.known[ref.name].dims is None:
                _declare(text, ref, scope)
                if len({*ref.index}) < len(ref.index) and not text.printed:
                    _doubt_diagonal(text, line, ref)


def _doubt_diagonal(text: Text, line: Equation, ref: Ref) -> None:
    """Warns of `x[b,i] * W[i,i]` with a new parameter `W`: all but its diagonal would never be read."""
    others = {axis for each in line.references if each.name != ref.name for axis in each.free_axes}
    others.update(line.kept)
    twice = (axis for axis in ref.plain_axes if ref.index.count(axis) > 1 and axis in others)
    axis = next(twice, None)
    if axis is not None and text.known[ref.name].kind == "parameter":
        message = f"{show(ref)} is the diagonal of '{ref.name}', whose other elements nothing reads"
        fix = f"write {ref.name}[{axis}] for a vector; or declare '{ref.name}', as {ref.name}[i,j]: parameter"
        warn(TensornetWarning(message, locate(ref.place, axis), fix))


def _declare(text: Text, ref: Ref, scope: Scope) -> None:
    """Gives a tensor the dimensions that it is read with."""
    entry = text.known[ref.name]
    entry.dims = text.dims_read(ref, scope)
    if ELLIPSIS in ref.index and entry.kind != "input":
        raise EquationError(
            f"the {entry.kind} '{ref.name}' needs axes of its own, not '...'", ref.place, "name its axes"
        )
    text.guessed.add(ref.name)


@told_in("sizes")
def _unknown(text: Text, expression: Expression) -> list[tuple[Ref, Scope]]:
    """The reads of tensors without dimensions, each with the sizes around it. A given size holds even if a window could
    be longer, and each operand of a concatenation has a size of its own along its axis."""
    unifier, told = text.unifier, text.held(expression)
    found = scope_of(expression, text.dims(expression), unifier.unify, unifier.bound, told, [])
    for key, scope in found.parts.items():
        if isinstance(key, tuple) and key[1]:
            (axis,) = scope.own
            if scope[axis] == symbol(axis):
                scope.sizes[axis] = symbol(fresh(f"{axis}_{key[1] + 1}", text.axes))
    return found.unknown
