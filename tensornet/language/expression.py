"""Expressions: construction, renaming, evaluation and printing. The nodes and their properties are in `syntax`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from ..errors import EquationError, Place
from ..ops.structure import INDEX
from ..ops.table import FUNCTIONS
from ..syntax import (
    Call,
    Contraction,
    Expression,
    Index,
    Literal,
    Ref,
    Size,
    Span,
    axes_of_index,
    is_computed_index,
)

__all__ = [
    "Call",
    "Contraction",
    "Expression",
    "Index",
    "Literal",
    "Ref",
    "Size",
    "Span",
    "axes_of_index",
    "is_computed_index",
]

Found = TypeVar("Found")
SizeOf: TypeAlias = "Callable[[str], int | float | None]"
"""Gives the size of an axis, or None while it is unknown."""

ELLIPSIS = "..."
"""The axis name of `...`: any number of leading axes, treated as one."""


# ---------------------------------------------------------------------------- construction


def factors_in(expression: Expression) -> tuple[Expression, ...]:
    """The factors of a product that sums nothing; any other expression is its only factor."""
    is_product = isinstance(expression, Contraction) and not expression.summed
    return expression.factors if is_product else (expression,)  # type: ignore[union-attr]


def terms_in(expression: Expression) -> tuple[Expression, ...]:
    """The terms of a sum; any other expression is its only term."""
    is_sum = isinstance(expression, Call) and expression.function == "add"
    return expression.arguments if is_sum else (expression,)  # type: ignore[union-attr]


def product_of(factors: Iterable[Expression], place: Place | None = None) -> Expression:
    """The product, with inner products flattened if they sum nothing, and a leading 1 dropped."""
    flat = [part for factor in factors for part in factors_in(factor)]
    if len(flat) > 1 and flat[0] == Literal(1):
        flat = flat[1:]
    if len(flat) == 1:
        return flat[0]
    if len(flat) == 2 and flat[0] == Literal(-1) and isinstance(flat[1], Literal):
        return Literal(-flat[1].value, place)  # as its text is parsed
    return Contraction(tuple(flat), (), place)


def sum_of(terms: Iterable[Expression], place: Place | None = None) -> Expression:
    """The sum of terms, with inner sums flattened; 0 if there are no terms."""
    flat = tuple(part for term in terms for part in terms_in(term))
    if not flat:
        return Literal(0)
    return flat[0] if len(flat) == 1 else Call("add", flat, place=place)


def without(parts: Iterable[Expression], gone: Iterable[Expression]) -> tuple[Expression, ...]:
    """The parts with each of the given ones removed once: `w * w` without `w` is `w`."""
    left = list(parts)
    for each in gone:
        left.remove(each)
    return tuple(left)


def contraction(factors: tuple[Expression, ...], summed: tuple[str, ...], place: Place | None) -> Expression:
    """Σ_summed of the product; the factor itself if it is the only one and nothing is summed."""
    if len(factors) == 1 and not summed:
        return factors[0]
    return Contraction(factors, tuple(sorted(set(summed))), place)


def flat(expression: Expression) -> Expression:
    """The expression with inner products and inner sums flattened, as the parser would."""
    match expression:
        case Contraction(factors, summed, place):
            return contraction(factors_in(product_of(factors)), summed, place)
        case Call("add", arguments):
            return sum_of(arguments, expression.place)
    return expression


def fresh(name: str, taken: Container[str]) -> str:
    """The first of `name`, `name_1`, `name_2`, … that is not taken."""
    numbered_names = numbered("lead" if name == ELLIPSIS else name)
    return next(each for each in itertools.chain([name], numbered_names) if each not in taken)


def numbered(stem: str) -> Iterator[str]:
    """`stem_1`, `stem_2`, …, without an end."""
    return (f"{stem}_{n}" for n in itertools.count(1))


class Taken(set[str]):
    """Names that new ones must differ from; a new one is taken from then on."""

    def fresh(self, name: str) -> str:
        """A new name: this one, or this one with a number."""
        self.add(found := fresh(name, self))
        return found

    def numbered(self, stem: str) -> str:
        """A new name, always with a number."""
        self.add(found := next(name for name in numbered(stem) if name not in self))
        return found


# ---------------------------------------------------------------------------- structure


def axes_told(expression: Expression) -> set[str]:
    """The axes that index a dimension of a tensor directly, not inside of an expression."""
    return {axis for ref in expression.references for axis in ref.plain_axes}


def axes_windowed(expression: Expression) -> set[str]:
    """The axes that index tensors only inside of expressions, so that no dimension gives their size."""
    entries = [entry for ref in expression.references for entry in ref.parts]
    windowed = {axis for entry in entries for axis in entry.free_axes}
    return windowed - axes_told(expression) if windowed else windowed


def bound_axes(part: Contraction | Call) -> frozenset[str]:
    """The axes that exist only inside a part: those that it sums, or that a reduction removes."""
    if isinstance(part, Contraction):
        return frozenset(part.summed)
    return frozenset(FUNCTIONS[part.function].leaves_out(part.axes))


def axes_through(call: Call) -> frozenset[str]:
    """The axes along which a call is not computed position by position: one position depends on others."""
    through = FUNCTIONS[call.function].through
    more = () if through is None else through([each.free_axes for each in call.arguments])
    return frozenset((*call.axes, *call.option_axes, *more))


def remade_axes(call: Call) -> frozenset[str]:
    """The axes whose size in the value differs from that in an argument: `n` in `concat[n](x, z)`."""
    function = FUNCTIONS[call.function]
    if function.axes == "joined":
        return frozenset(call.axes)
    return call.option_axes if function.resized is not None else frozenset()


def placed_axes(expression: Expression) -> set[str]:
    """The axes whose positions an expression uses, as `index` calls."""
    return {axis for call in expression.calls if call.function == INDEX.name for axis in call.axes}


def sized_by_name(expression: Expression) -> set[str]:
    """The axes whose size no dimension may give: parts of composites, and axes that functions create."""
    names: set[str] = set()
    for part in expression.subexpressions:
        if isinstance(part, Ref):
            names.update(axis for entry in part.index if isinstance(entry, tuple) for axis in entry)
        elif isinstance(part, Call):
            names.update(FUNCTIONS[part.function].makes(part.axes))
    return names


def depth(expression: Expression) -> int:
    """The nesting depth of an expression."""
    found, level = 0, [expression]
    while level:
        found, level = found + 1, [part for each in level for part in each.parts]
    return found


def rename(expression: Expression, names: Mapping[str, str]) -> Expression:
    """The expression with axes renamed. A bound axis that would capture a new name is renamed too."""
    bound = bound_axes(expression) if isinstance(expression, Contraction | Call) else frozenset[str]()
    if bound:
        names = {old: new for old, new in names.items() if old not in bound}
        arriving = {names[axis] for axis in expression.free_axes if axis in names}
        for axis in sorted(bound & arriving):
            apart = fresh(axis, {*expression.occurring, *names, *names.values()})
            expression = relabel(expression, {axis: apart})
    return _renamed(expression, names, rename) if names else expression


def relabel(expression: Expression, names: Mapping[str, str]) -> Expression:
    """The expression with axes renamed everywhere, bound ones too. The new names must occur nowhere in it."""
    return _renamed(expression, names, relabel)


def _renamed(
    expression: Expression,
    names: Mapping[str, str],
    inside: Callable[[Expression, Mapping[str, str]], Expression],
) -> Expression:
    """The expression with the axes renamed that it names itself, and its parts by `inside`."""

    def new(axes: Iterable[str]) -> tuple[str, ...]:
        return tuple(names.get(axis, axis) for axis in axes)

    changed = expression.transform(lambda part: inside(part, names))
    match changed:
        case Ref(name, index, place):
            renamed = renamed_index(index, names)
            return changed if renamed == index else Ref(name, renamed, place)
        case Size(axis, place) if axis in names:
            return Size(names[axis], place)
        case Contraction(factors, summed, place) if summed:
            return Contraction(factors, tuple(sorted(new(summed))), place)
        case Call(axes=axes, options=options):
            moved = changed.option_axes
            if not names.keys().isdisjoint((*axes, *moved)):
                told = tuple((names.get(each, each) if each in moved else each, by) for each, by in options)
                return replace(changed, axes=new(axes), options=told)
    return changed


def renamed_index(index: tuple[Any, ...], names: Mapping[str, str]) -> tuple[Any, ...]:
    """The entries of brackets with axes and the parts of composites renamed; computed positions stay as they are."""

    def renamed(entry: Any) -> Any:
        return tuple(map(renamed, entry)) if isinstance(entry, tuple) else names.get(entry, entry)

    return tuple(map(renamed, index))


def rename_tensors(expression: Expression, names: Mapping[str, str]) -> Expression:
    """The expression with tensors renamed; axis names stay."""

    def change(part: Expression) -> Expression:
        if isinstance(part, Ref) and part.name in names:
            return replace(part, name=names[part.name])
        return part

    return expression.rewrite(change) if names else expression


def scalar_value(expression: Expression, size: SizeOf = lambda axis: None) -> int | float | complex | None:
    """The value of a number, or None while a size in it is unknown.

    Raises:
        EquationError: the number cannot be computed, such as 1/0 or a power that overflows.
    """
    try:
        return _scalar_value(expression, size)
    except (ArithmeticError, ValueError, TypeError) as error:
        message = f"{show(expression)} cannot be computed: {error}"
        fix = "choose numbers and sizes with which it is finite, or write inf"
        raise EquationError(message, expression.place, fix) from None


def check_numbers(expression: Expression, size: SizeOf = lambda axis: None) -> None:
    """Raises an error, at its place, for a number that cannot be computed, such as 10**400 or 1/0.

    Args:
        expression: the right side of an equation.
        size: the sizes of axes. An array may be divided by a size that is 0.
    """
    if isinstance(expression, Call) and FUNCTIONS[expression.function].trains:
        _check_rate(expression, size)
    for part in (expression,) if expression.is_scalar else expression.parts:
        if not part.is_scalar:
            check_numbers(part, size)
        elif isinstance(expression, Contraction) and (below := divisor_of(part)) and below.sizes:
            scalar_value(below, size)
        else:
            scalar_value(part, size)


def _check_rate(call: Call, size: SizeOf) -> None:
    """Raises an error for a rate of dropout that is a number and no probability."""
    rate = call.arguments[-1]
    value = scalar_value(rate, size) if rate.is_scalar else None
    if value is not None and (isinstance(value, complex) or not 0 <= value <= 1):
        fix = "give a probability, from 0 to 1"
        raise EquationError(f"a rate of dropout is {value}", rate.place or call.place, fix, call.function)


def divisor_of(factor: Expression) -> Expression | None:
    """What a factor divides by; None if it is no reciprocal."""
    return factor.arguments[0] if isinstance(factor, Call) and factor.function == "reciprocal" else None


def _scalar_value(expression: Expression, size: SizeOf) -> int | float | complex | None:
    match expression:
        case Literal(value):
            return value
        case Size(axis):
            return size(axis)
        case Contraction(factors, ()):
            total: int | float | complex = 1
            for factor in factors:  # a reciprocal divides: 49 / 49 is 1, but 49 · (1 / 49) is not
                below = divisor_of(factor)
                by = _scalar_value(factor if below is None else below, size)
                if by is None:
                    return None
                total = total * by if below is None else total / by
            return total
        case Call(function, arguments, _, options):
            values = [_scalar_value(argument, size) for argument in arguments]
            told = {name: _scalar_value(given[0], size) for name, given in options}
            compute = FUNCTIONS[function].scalar
            if compute is not None and None not in (*values, *told.values()):
                return compute(*values, **told)  # type: ignore[no-any-return]
    return None


# ---------------------------------------------------------------------------- printing

_COMPARISON = dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), 3)
_LEVELS = {"|": 1, "&": 2, **_COMPARISON, "//": 6, "%": 6}
_ATOM = 9


def show_index(index: tuple[Index, ...]) -> str:
    """`b, (h, d), 0`: the entries of brackets as text."""
    return ",".join(show_entry(entry) for entry in index)


def show_entry(entry: Index) -> str:
    """`(h, d)`: one entry of brackets as text. `index(c)` alone is a window, and `c` alone an axis."""
    match entry:
        case Call(INDEX.name):
            return show(entry)
        case tuple():
            return "(" + ",".join(entry) + ("," if len(entry) < 2 else "") + ")"
        case Ref() | Contraction() | Call():
            return show(by_names(entry)).replace(" ", "")
        case _:
            return str(entry)


def by_names(expression: Expression) -> Expression:
    """An expression of positions as it is written in brackets, where `index(p)` is written `p`."""
    if isinstance(expression, Call) and expression.function == INDEX.name:
        return Size(expression.axes[0])
    return expression if isinstance(expression, Ref) else expression.transform(by_names)


def show(expression: Expression) -> str:
    """The expression as an equation would write it, with an explicit `sum` for all axes in `summed`."""
    return _show(expression)[0]


def _show(expression: Expression) -> tuple[str, int]:
    """The text and its precedence level."""
    match expression:
        case Ref(name, index):
            return (f"{name}[{show_index(index)}]" if index else name), _ATOM
        case Literal(value):
            return _show_number(value)
        case Size(axis):
            return axis, _ATOM
        case Contraction(factors, summed) if summed:
            return f"sum[{','.join(summed)}]({_show_product(factors)[0]})", _ATOM
        case Contraction(factors, _):
            return _show_product(factors)
        case Call("add", arguments):
            return _show_sum(arguments), 5
        case Call("reciprocal", (argument,)):
            return f"1 / {_wrap(argument, 7)}", 6
        case Call(function, arguments) if FUNCTIONS[function].infix:
            return _show_infix(FUNCTIONS[function].infix, arguments)
        case Call(function, arguments, axes, options):
            alone = FUNCTIONS[function].of_axis_alone
            brackets = f"[{','.join(axes)}]" if axes and not alone else ""
            inside = [*map(show, arguments), *(axes if alone else ())]
            for name, values in options:
                shown = ", ".join(map(show, values))
                inside.append(f"{name}={shown if len(values) == 1 else f'({shown})'}")
            return f"{function}{brackets}({', '.join(inside)})", _ATOM


def _show_number(value: int | float | complex) -> tuple[str, int]:
    if isinstance(value, complex):
        return f"{value.imag!r}j".replace(".0j", "j"), _ATOM if value.imag >= 0 else 7
    return repr(value), 7 if repr(value).startswith("-") else _ATOM  # -0.0 is signed too


def _wrap(expression: Expression, level: int) -> str:
    text, own = _show(expression)
    return text if own >= level else f"({text})"


def _show_product(factors: tuple[Expression, ...]) -> tuple[str, int]:
    if len(factors) == 1:
        return _show(factors[0])
    negative = factors[0] == Literal(-1)
    rest = factors[1:] if negative else factors
    if negative and isinstance(rest[0], Literal):
        return f"-({_show_product(rest)[0]})", 7
    text = _wrap(rest[0], 6 if divisor_of(rest[0]) and not negative else 7)
    for factor in rest[1:]:
        below = divisor_of(factor)
        text += f" * {_wrap(factor, 7)}" if below is None else f" / {_wrap(below, 7)}"
    return (f"-{text}" if negative else text), (7 if negative and len(rest) == 1 else 6)


def _show_sum(terms: tuple[Expression, ...]) -> str:
    text = _wrap(terms[0], 6)
    for term in terms[1:]:
        shown = _wrap(term, 6)
        match (
            term
        ):  # a leading minus is a subtraction where that is parsed back to the same term, not in `-a // b`
            case Literal(int()) | Contraction((Literal(-1), *_), ()) if shown.startswith("-"):
                text += f" - {shown[1:]}"
            case _:
                text += f" + {shown}"
    return text


def _show_infix(sign: str, arguments: tuple[Expression, ...]) -> tuple[str, int]:
    if len(arguments) == 1:
        return f"{sign}{_wrap(arguments[0], _ATOM)}", 7
    level = _LEVELS.get(sign, 8)
    left, right = (_wrap(argument, max(level + 1, 4)) for argument in arguments)
    return f"{left} {sign} {right}", level
