"""The Einstein rule: an axis that the left side lacks is summed, in the innermost product that holds all of it."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Set
from dataclasses import replace

from ..errors import EquationError, Place, near
from ..ops.along_axes import STEPS
from ..ops.structure import PAD
from ..ops.table import FUNCTIONS
from .expression import (
    ELLIPSIS,
    Call,
    Contraction,
    Expression,
    Literal,
    Ref,
    Size,
    axes_of_index,
    contraction,
    factors_in,
    free_axes,
    is_scalar,
    option_axes,
    parts_of,
    product_of,
    rewrite,
    show,
    show_index,
    subexpressions,
    sum_of,
)

_STEPS, SLICES = frozenset(STEPS.values()), (PAD.name,)


def locate(place: Place | None, axis: str) -> Place | None:
    """The part of `place` where an axis name is written."""
    if place is None:
        return None
    start = place.text.find("[") + 1
    pattern = re.escape(axis) if axis == ELLIPSIS else rf"\b{re.escape(axis)}\b"
    found = re.search(pattern, place.text[start:])
    return replace(place, column=place.column + start + found.start(), width=len(axis)) if found else place


def axes_read_once(
    expression: Expression, told: Set[str], strict: bool = True
) -> Iterator[tuple[Ref, tuple[str, ...]]]:
    """The tensors with axes that are not told and that no other factor has.

    Args:
        strict: whether to include what is meant as a rule: an axis that all terms of a sum have alone, a diagonal,
            and sums that are written in a product.
    """
    match expression:
        case Call("add", terms):
            found = [[*axes_read_once(term, told, strict)] for term in terms if not is_scalar(term)]
            alone = [{axis for _, axes in each for axis in axes} for each in found]
            meant = set[str]() if strict or len(alone) < 2 else set.intersection(*alone)
            for ref, axes in itertools.chain(*found):
                if left := tuple(axis for axis in axes if axis not in meant):
                    yield ref, left
        case Contraction(factors, summed):
            known = told | {*summed, *_shared(factors)}
            for factor in factors:
                if strict or not isinstance(factor, Contraction):
                    yield from axes_read_once(factor, known, strict)
        case Ref(_, index):
            counts = Counter(axis for entry in index for axis in axes_of_index((entry,)))
            lost = tuple(
                axis for axis, count in counts.items() if (strict or count == 1) and axis not in told
            )
            if lost and (strict or ELLIPSIS not in lost):
                yield expression, lost


def _shared(factors: Iterable[Expression]) -> set[str]:
    """The axes that several factors have."""
    holders = Counter(axis for factor in factors for axis in set(free_axes(factor)))
    return {axis for axis, count in holders.items() if count > 1}


def sum_out(expression: Expression, kept: frozenset[str], direct: bool) -> Expression:
    """Sums every axis that is not kept. `direct`: whether a lone tensor may be summed."""
    match expression:
        case Literal() | Size():
            return expression
        case Contraction():
            return _sum_out_product(expression, kept, direct)
        case Call("add", arguments):
            return replace(expression, arguments=tuple(sum_out(term, kept, direct) for term in arguments))
        case Call() if not _is_lone(expression):
            return _sum_out_call(expression, kept)
    lost = tuple(axis for axis in free_axes(expression) if axis not in kept)
    if lost and (not direct or ELLIPSIS in lost):
        raise _unsummed(lost[0], expression)
    return contraction((expression,), lost, expression.place)


def _sum_out_product(product: Contraction, kept: frozenset[str], direct: bool) -> Expression:
    summed = set(product.summed)
    holders: dict[str, list[Expression]] = {}
    for factor in product.factors:
        for axis in free_axes(factor):
            holders.setdefault(axis, []).append(factor)
    for axis in product.summed:
        if axis not in holders:
            raise _unknown(axis, product)
    for axis, holding in holders.items():
        if axis not in kept | summed and (len(holding) > 1 or (direct and _is_lone(holding[0]))):
            if axis == ELLIPSIS:
                raise EquationError("'...' is missing on the left", product.place, "write it on both sides")
            for factor in holding:
                if _sums(factor, axis):
                    raise _ambiguous(factor, holding, axis)
            summed.add(axis)
    factors = list[Expression]()
    for factor in product.factors:
        is_sum = isinstance(factor, Call) and factor.function == "add"
        factors += factors_in(sum_out(factor, kept | summed, direct and is_sum))
    return contraction(tuple(factors), tuple(summed), product.place)


def _ambiguous(factor: Expression, holding: Iterable[Expression], axis: str) -> EquationError:
    """The error for an axis that a product may sum, and one of its factors as well."""
    others = product_of([each for each in holding if each is not factor])
    is_product = isinstance(others, Contraction) and all(isinstance(each, Ref) for each in others.factors)
    is_gate = isinstance(factor, Call) and is_product
    gate = f", as in {show(factor)} * sum[{axis}]({show(others)})" if is_gate else ""
    return EquationError(
        f"axis '{axis}' may be summed inside {show(factor)}, or over the whole product",
        locate(factor.place, axis),
        f"to sum inside, give each product a line of its own, or write sum[{axis}](…) around it{gate}; to sum over the"
        f" whole product, write sum[{axis}](…) around all of it; or use another letter inside",
    )


def _sums(expression: Expression, axis: str) -> bool:
    """Whether the products in an expression would sum an axis completely, were it not kept."""
    match expression:
        case Contraction(factors):
            holding = [factor for factor in factors if axis in free_axes(factor)]
            return len(holding) > 1 or (len(holding) == 1 and _sums(holding[0], axis))
        case Call("add", arguments):
            return all(_sums(term, axis) for term in arguments if axis in free_axes(term))
        case Call(_, arguments, axes):
            holding = [argument for argument in arguments if axis in free_axes(argument)]
            named = axis in axes or axis in option_axes(expression)
            return not named and len(holding) == 1 and _sums(holding[0], axis)
    return False


def _sum_out_call(call: Call, kept: frozenset[str]) -> Expression:
    """Sums inside a call. Only products sum there; an axis shared by arguments belongs to no product."""
    function = FUNCTIONS[call.function]
    held = {axis for argument in call.arguments for axis in free_axes(argument)}
    for axis in (*function.runs_over(call.axes), *sorted(option_axes(call))):
        if axis not in held:
            raise _unknown(axis, call)
    for axis in call.axes if function.anew else function.makes(call.axes):
        if axis in held:
            named = ",".join("v" if each == axis else each for each in call.axes)
            inside = ", ".join(map(show, call.arguments))
            fix = f"give the new axis a name of its own, {function.name}[{named}]({inside})"
            message = f"{function.name} creates the axis '{axis}', which occurs inside it already"
            raise EquationError(message, call.place, fix, function.name)
    gone = function.leaves_out(call.axes)
    for axis in (*call.axes, *sorted(option_axes(call))):
        if axis not in kept and axis not in gone:
            raise _unsummed(axis, call)
    inner = kept | frozenset(call.axes)
    seen: set[str] = set()
    for argument in call.arguments:
        for axis in free_axes(argument):
            if axis in seen and axis not in inner:
                raise _unsummed(axis, call)
        seen.update(free_axes(argument))
    if function.axes == "joined":
        _check_shared(call, inner)
    return replace(call, arguments=tuple(sum_out(argument, inner, False) for argument in call.arguments))


def _check_shared(call: Call, kept: frozenset[str]) -> None:
    """Raises an error for an operand that has another name for the axis along which it is joined."""
    (joined,) = call.axes
    for argument in call.arguments:
        held = free_axes(argument)
        others = [axis for axis in held if axis not in kept and not _sums(argument, axis)]
        if others and joined not in held:
            is_ref, written = isinstance(argument, Ref), argument.place.text if argument.place else ""
            own = tuple(axis for axis in held if axis in kept or axis in others)
            read = argument if isinstance(argument, Ref) else Ref("z", own)
            index = tuple(joined if entry == others[0] else entry for entry in read.index)
            raise EquationError(
                f"{show(argument) if is_ref else written} has no axis '{joined}', along which {call.function} joins its"
                " operands",
                locate(argument.place, others[0]) if is_ref else argument.place,
                f"{'' if is_ref else f'make it a line, z[{show_index(own)}] = {written}, and '}"
                f"write {read.name}[{show_index(index)}]: each operand calls that axis '{joined}', and may have a"
                " size of its own",
                call.function,
            )


def _unknown(axis: str, expression: Contraction | Call) -> EquationError:
    """The error for an axis that a function or a sum runs over, and that does not occur inside it."""
    where, see = "the sum", "sums"
    if isinstance(expression, Call):
        where = expression.function
        see = "functions-of-your-own" if FUNCTIONS[where].implementations else where
    known = dict.fromkeys(axis for part in parts_of(expression) for axis in free_axes(part))
    fix = f"{near(axis, known)}its axes are {', '.join(known)}" if known else "it has no axes"
    bare = [part.name for part in subexpressions(expression) if isinstance(part, Ref) and not part.index]
    if bare:
        fix = f"give '{bare[0]}' its axes where it is read first: {bare[0]}[{axis}]"
    return EquationError(f"axis '{axis}' does not occur inside {where}", expression.place, fix, see)


def is_written(expression: Expression, functions: Container[str]) -> bool:
    """Whether it is a call of some functions that was written in brackets: a slice `x[b,:e]`, a step `h[b,t-1]`."""
    place = expression.place
    is_call = isinstance(expression, Call) and expression.function in functions
    return is_call and place is not None and place.text.endswith("]")


def _is_lone(expression: Expression) -> bool:
    """Whether it is a tensor, possibly at another position, whose axes may be summed without a product."""
    return isinstance(expression, Ref) or is_written(expression, _STEPS)


def _unsummed(axis: str, expression: Expression) -> EquationError:
    if is_written(expression, SLICES) and expression.place is not None:
        return EquationError(
            f"the slice {expression.place.text} keeps the axis name '{axis}', which is neither on the left nor summed",
            expression.place,
            f"put '{axis}' on the left, or write sum[{axis}](…) to sum it",
        )
    written = expression.place if isinstance(expression, Ref) and expression.said != expression.name else None
    shown = show(expression) if written is None else written.text
    return EquationError(
        f"axis '{axis}' is neither on the left nor summed by a product: it occurs only in {shown}",
        locate(expression.place, axis),
        f"write sum[{axis}](…) to sum it, or put '{axis}' on the left",
    )


def without_sums(expression: Expression) -> Expression:
    """The expression with its sums left to the Einstein rule, flattened as the parser would."""

    def change(part: Expression) -> Expression:
        match part:
            case Contraction(factors, _, place):
                return product_of(factors, place)
            case Call("add", terms):
                return sum_of(terms, part.place)
            case Call(function) if function in _STEPS:  # without a place it was not written in brackets
                return replace(part, place=None)
        return part

    return rewrite(expression, change)
