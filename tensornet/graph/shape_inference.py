"""Shape inference: sizes of the axes in an equation, in one walk over the expression."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ..codec import document
from ..errors import EquationError, Place, ShapeError, told_in
from ..language.affine import Affine, affine
from ..language.equation import Equation, locate
from ..language.expression import (
    ELLIPSIS,
    Call,
    Contraction,
    Expression,
    Literal,
    Ref,
    Size,
    Taken,
    is_computed_index,
    product_of,
    show,
    show_entry,
    show_index,
    sum_of,
)
from ..ops.record import names_in
from ..ops.structure import is_inside
from ..ops.table import FUNCTIONS
from ..sizes import (
    FUNCTIONS_OF_SIZES,
    LARGEST,
    evaluate,
    factors_of,
    floored,
    larger,
    power_of,
    product,
    quotient,
    size_names,
    solve_size,
    symbol,
    terms_of,
    total,
)


@document()
@dataclass(frozen=True)
class Axis:
    """A named axis and its size: an integer, or a formula in open sizes."""

    name: str
    size: Any


Dim: TypeAlias = "tuple[Axis, ...]"
"""One dimension of an array: an axis, or several laid out row-major as a composite."""


def dim_size(dim: Dim) -> Any:
    """The number of positions along a dimension."""
    return dim[0].size if len(dim) == 1 else product(axis.size for axis in dim)


def axes_of_dims(dims: Iterable[Dim]) -> tuple[str, ...]:
    """A name of an axis for each dimension."""
    taken = Taken()
    return tuple(taken.fresh("_".join(axis.name for axis in dim)) for dim in dims)


def index_of(dims: tuple[Dim, ...]) -> tuple[str | tuple[str, ...], ...]:
    """The index of axes and composites that a tensor of these dimensions was declared with."""
    return tuple(dim[0].name if len(dim) == 1 else tuple(axis.name for axis in dim) for dim in dims)


def size_names_of(dims: Iterable[Dim]) -> set[str]:
    """The names in the sizes of dimensions."""
    sizes = {axis.size for dim in dims for axis in dim if not isinstance(axis.size, int)}
    return {name for size in sizes for name in size_names(size)}


def resized(dims: Iterable[Dim], change: Callable[[Any], Any]) -> tuple[Dim, ...]:
    """The dimensions, with each size of an axis changed that is not an integer."""
    return tuple(
        tuple(axis if isinstance(axis.size, int) else Axis(axis.name, change(axis.size)) for axis in dim)
        for dim in dims
    )


Unify: TypeAlias = "Callable[[Any, Any, str, Ref | Call | None], Any]"
"""Decides the size of an axis that two places give; raises an error if they cannot unify."""


@dataclass(frozen=True)
class _Window:
    """A dimension that is read at affine positions, and its size."""

    ref: Ref
    position: int
    positions: Affine
    size: Any


@dataclass(frozen=True)
class _Fit:
    """The number of positions at which a window fits; it sizes an axis that nothing else sizes.

    Attributes:
        size: the largest size of the axis that fits.
        window: the dimension that is read.
        step: the number of positions by which the axis advances.
        room: the number of positions after the first one that the axis reads, in the direction of its step.
    """

    size: Any
    window: _Window
    step: Any
    room: Any


@dataclass(frozen=True)
class Shorter:
    """A window that does not cover its dimension from end to end.

    Attributes:
        ref: the tensor, as it is read.
        position: the dimension.
        left: the number of positions that are not read.
        back: whether these are the first positions.
    """

    ref: Ref
    position: int
    left: int
    back: bool


Binder: TypeAlias = "int | tuple[int, int]"
"""The id of a part that binds or resizes axes, or that of a join and the number of an operand."""


@dataclass
class Scope:
    """The sizes of the axes that are visible in a part of an expression, from the inside to the outside.

    Attributes:
        sizes: the sizes that tensors fix, of the axes that are bound here.
        assumed: the sizes that functions give to axes of theirs.
        inner: the sizes of axes that are bound inside, which a size may mention; in the outermost scope.
        own: the axes that are bound here; the outermost scope has all others.
        around: the scope outside.
        fitting: how long the axes of windows may be.
        windows, composites: reads that are compared with their dimensions when the scope is left.
        parts: the scopes of all parts that bind or resize axes.
        unknown: the reads of tensors whose dimensions are not known, each with the scope around it.
    """

    sizes: dict[str, Any] = field(default_factory=dict)
    assumed: dict[str, Any] = field(default_factory=dict)
    inner: dict[str, Any] = field(default_factory=dict)
    own: Collection[str] = ()
    around: Scope | None = None
    fitting: dict[str, list[_Fit]] = field(default_factory=dict)
    windows: list[_Window] = field(default_factory=list)
    composites: list[tuple[Ref, tuple[str, ...], Any]] = field(default_factory=list)
    parts: dict[Binder, Scope] = field(default_factory=dict)
    unknown: list[tuple[Ref, Scope]] = field(default_factory=list)

    def of(self, axis: str) -> Scope:
        """The scope that binds an axis."""
        return self if self.around is None or axis in self.own else self.around.of(axis)

    def get(self, axis: str, default: Any) -> Any:
        """The size that a tensor fixes for an axis, if one does."""
        return self.of(axis).sizes.get(axis, default)

    def __getitem__(self, axis: str) -> Any:
        here = self.of(axis)
        found = here.sizes.get(axis)
        if found is None and axis in here.fitting:
            found = here.fitting[axis][0].size
        if found is None:
            found = here.assumed.get(axis, here.inner.get(axis))
        return symbol(axis) if found is None else found

    def inside(self, part: Expression, number: int | None = None) -> Scope:
        """The scope inside of a part that binds or resizes axes; with a number, inside of this operand of a join."""
        found = self.parts.get(id(part) if number is None else (id(part), number))
        return self if found is None else replace(found, around=self)


def scope_of(
    expression: Expression,
    dims: Mapping[str, tuple[Dim, ...]],
    unify: Unify,
    bound: Mapping[str, Any],
    told: frozenset[str] = frozenset(),
    shorter: list[Shorter] | None = None,
    *,
    solves: bool = True,
) -> Scope:
    """The sizes of the axes visible in an expression.

    Args:
        expression: the expression.
        dims: the dimensions of every tensor it may read; a missing tensor adds nothing.
        unify: called where two places size the same axis.
        bound: the open sizes that have a value.
        told: axes that get the size of their name if no tensor sizes them.
        shorter: a list for the windows that do not cover their dimension; without it they are an error.
        solves: whether to compute the only unknown part of a composite, for a `unify` that does not solve it.
    """
    scope = Scope()
    walk = _Walk(dims, unify, bound, told, shorter, solves)
    walk.visit(expression, scope)
    walk.leave(scope)
    return scope


def scope_inside(part: Expression, dims: Mapping[str, tuple[Dim, ...]], bound: Mapping[str, Any]) -> Scope:
    """The sizes of the axes visible in a part of an equation.

    They are not compared again, as the whole equation was checked. Parts of composites are not solved for: they may
    be sized elsewhere in the equation.

    Args:
        part: the part.
        dims: the dimensions of every tensor it may read.
        bound: the open sizes that have a value.
    """
    return scope_of(part, dims, lambda a, b, axis, ref: a, bound, solves=False)


@dataclass(frozen=True)
class _Walk:
    """A walk over an expression, from the outside to the inside, that fills its scopes; see `scope_of`."""

    dims: Mapping[str, tuple[Dim, ...]]
    unify: Unify
    bound: Mapping[str, Any]
    told: frozenset[str]
    shorter: list[Shorter] | None
    solves: bool

    def visit(self, part: Expression, scope: Scope) -> None:
        """Adds the sizes that a part of the expression gives."""
        match part:
            case Ref():
                self._ref(part, scope)
            case Contraction(factors, summed):
                self._enter(id(part), factors, summed, scope)
            case Call(function, arguments, axes) if FUNCTIONS[function].axes == "joined":
                length = 0
                for number, argument in enumerate(arguments):
                    inside = self._enter((id(part), number), (argument,), axes, scope)
                    length = length + (inside[axes[0]] if axes[0] in argument.free_axes else 1)
                self._tell(scope, axes[0], length, part)
            case Call(function, arguments, axes):
                row = FUNCTIONS[function]
                moved = part.option_axes if row.resized is not None else ()
                inside = self._enter(id(part), arguments, (*row.leaves_out(axes), *moved), scope)
                for name, values in part.options:
                    if row.resized and name in moved and (name in inside.sizes or name in inside.assumed):
                        amounts = [scalar_size(value, inside) for value in values]
                        if is_inside(part):
                            self._check_slice(part, name, inside[name], amounts)
                        self._tell(scope, name, row.resized(inside[name], *amounts), part)
                for axis in row.makes(axes):
                    self._assume(scope, axis)

    def _enter(self, key: Binder, parts: Iterable[Expression], axes: Collection[str], around: Scope) -> Scope:
        """The scope of some parts, in which some axes are bound."""
        scope = around
        if axes:
            scope = Scope(own=axes, around=around, parts=around.parts, unknown=around.unknown)
        for part in parts:
            self.visit(part, scope)
        if axes:
            self.leave(scope)
            around.parts[key] = scope
            outermost = around.of("")
            for axis, size in scope.sizes.items():
                outermost.inner.setdefault(axis, size)
        return scope

    def _ref(self, ref: Ref, scope: Scope) -> None:
        known = self.dims.get(ref.name)
        if known is None:
            scope.unknown.append((ref, scope))
        elif len(known) != len(ref.index):
            raise ShapeError(
                f"'{ref.said}' has {len(known)} dimension(s), and is read with {len(ref.index)}",
                ref.place,
                f"'{ref.said}' was defined as {ref.name}[{show_index(index_of(known))}]",
            )
        for position, entry in enumerate(ref.index):
            dim = known[position] if known is not None else None
            match entry:
                case str() if dim and (entry == ELLIPSIS) != (dim[0].name == ELLIPSIS):
                    raise EquationError(
                        f"'{ref.said}' is read with '...' in one place, and with axes there in another",
                        ref.place,
                        f"write {ref.name}[{show_index(index_of(known or ()))}] throughout",
                    )
                case str() if dim is not None:
                    self._tell(scope, entry, dim_size(dim), ref)
                case tuple() if dim is not None and componentwise(entry, dim, self.bound):
                    for name, axis in zip(entry, dim, strict=True):
                        self._tell(scope, name, axis.size, ref)
                case tuple() if dim is not None:
                    for name in entry:
                        self._assume(scope, name)
                    scope.composites.append((ref, entry, dim_size(dim)))
                case Ref() | Contraction() | Call():
                    self.visit(entry, scope)
                    window = affine(entry)
                    if dim is not None and window is not None:
                        scope.windows.append(_Window(ref, position, window, dim_size(dim)))
                    elif dim is not None and entry.is_scalar:
                        self._check_index(ref, position, self._number(entry, scope), dim_size(dim))
                case int() if dim is not None:
                    self._check_index(ref, position, entry, dim_size(dim), from_end=True)

    def _number(self, entry: Expression, scope: Scope) -> int | None:
        """The value of a position without axes; None if it is open."""
        try:
            value = self._value(scalar_size(entry, scope))
        except ShapeError:  # it is no formula of sizes, and is checked where it is computed
            return None
        return value if isinstance(value, int) else None

    def _check_index(
        self, ref: Ref, position: int, index: int | None, length: Any, from_end: bool = False
    ) -> None:
        """Raises an error for a position outside of a dimension. A written integer may count from the end."""
        size = self._value(length)
        end = size if isinstance(size, int) else LARGEST
        if index is not None and not (-end if from_end else 0) <= index < end:
            where = f"whose dimension {position} has size" if ref.said == ref.name else "where there are"
            message = f"index {index} is outside '{ref.said}', {where} {size}"
            fix = f"use an index below {size}" if size else "it needs a position at least"
            if not from_end and index < 0:
                fix = "only a written integer, as in x[-1], counts from the end"
                entry = ref.index[position]
                within = entry.sizes if is_computed_index(entry) else ()
                for letter in [each.axis for each in within][-1:]:
                    fix += f"; '{letter}' is a size here: write sum[{letter}](…) if it is an axis"
            raise ShapeError(message, ref.place, fix)

    @told_in("axes")
    def _check_slice(self, call: Call, axis: str, size: Any, amounts: Iterable[Any]) -> None:
        """Raises an error for a slice of more positions than there are."""
        more = max((each for each in map(self._value, amounts) if isinstance(each, int)), default=0)
        if more > 0:
            (read,) = call.arguments
            what, length = f"'{read.name}'" if isinstance(read, Ref) else "what is sliced", self._value(size)
            raise ShapeError(
                f"a slice reaches over {length + more} positions along '{axis}' of {what}, and there are {length}",
                call.place,
                "slice fewer, or pass longer arrays",
            )

    def _tell(self, scope: Scope, axis: str, size: Any, origin: Ref | Call) -> None:
        """Adds the size of an axis that a tensor fixes."""
        sizes = scope.of(axis).sizes
        known = sizes.get(axis)
        sizes[axis] = size if known is None else self.unify(known, size, axis, origin)

    def _assume(self, scope: Scope, axis: str) -> None:
        """Adds an axis that has the size of its name unless a tensor fixes another."""
        scope.of(axis).assumed.setdefault(axis, symbol(axis))

    # ---- windows and composites

    def leave(self, scope: Scope) -> None:
        """Unifies composites and windows along axes of a scope with their dimensions; others wait outside. An axis of
        windows gets the size that fits, or a smaller one that is known from elsewhere."""

        def is_due(axes: Iterable[str]) -> bool:
            return scope.around is None or any(axis in scope.own for axis in axes)

        windows = [each for each in scope.windows if is_due(each.positions.axes)]
        composites = [each for each in scope.composites if is_due(each[1])]
        if scope.around is not None:
            scope.around.windows += [each for each in scope.windows if not is_due(each.positions.axes)]
            scope.around.composites += [each for each in scope.composites if not is_due(each[1])]
        for axis in self.told.intersection(axis for each in windows for axis in each.positions.axes):
            scope.of(axis).sizes.setdefault(axis, symbol(axis))
        for window in _dependencies_first(windows, scope):
            self._fit(scope, window)
        for axis in [*scope.fitting]:
            fits = scope.fitting.pop(axis)
            if all(isinstance(self._value(fit.size), int) for fit in fits):
                fits.sort(key=lambda fit: int(self._value(fit.size)))  # it is as long as fits all windows
            for fit in fits:
                self._meet(scope, axis, fit)
        for ref, names, size in composites:
            if self.solves:
                self._solve(scope, names, size)
            self.unify(size, product(scope[name] for name in names), "(" + ",".join(names) + ")", ref)

    def _solve(self, scope: Scope, names: tuple[str, ...], size: Any) -> None:
        """Computes the size of the only unknown part of a composite from the size of its dimension."""
        whole, parts = self._value(size), {name: self._value(scope[name]) for name in names}
        unknown = [name for name, part in parts.items() if part == symbol(name)]
        others = [part for name, part in parts.items() if name not in unknown]
        if len(unknown) == 1 and all(isinstance(each, int) and each for each in (whole, *others)):
            length, left = divmod(whole, math.prod(others))
            if not left:
                scope.of(unknown[0]).sizes[unknown[0]] = length

    def _fit(self, scope: Scope, window: _Window) -> None:
        """Adds to `fitting` how long the first axis of a window may be; one that does not move sizes no axis."""
        steps = [(axis, scalar_size(step, scope)) for axis, step in window.positions.steps]
        steps = [(axis, step) for axis, step in steps if step != 0]
        if not steps:
            return
        (axis, step), *others = steps
        first = scalar_size(window.positions.offset, scope)
        before, after = first, window.size - 1 - first
        for other, by in others:
            reach = (self._value(scope[other]) - 1) * by  # equal sizes look alike
            before, after = (before + reach, after) if self._is_negative(by) else (before, after - reach)
        back = self._is_negative(step)
        if self._is_negative(before):
            raise _outside(window, axis, self._value(-before), is_before=True)
        if back and self._is_negative(after):
            raise _outside(window, axis, self._value(-after), is_before=False)
        if back and not all(isinstance(each, int) for each in map(self._value, (window.size, after))):
            self.unify(window.size, window.size - after, axis, window.ref)  # it begins at the last position
        room = before if back else after
        size = floored(room, -step if back else step) + 1
        there, left, by = map(self._value, (window.size, room, step))
        beyond = 0 if others and there else -abs(by) if isinstance(by, int) else -LARGEST
        if isinstance(left, int) and left < beyond:
            raise ShapeError(
                f"a window of '{window.ref.name}' reaches over {there - left} positions, and there are {there}",
                window.ref.place,
                "pad it there first, or make the window shorter",
            )
        scope.of(axis).fitting.setdefault(axis, []).append(_Fit(size, window, step, room))

    def _meet(self, scope: Scope, axis: str, fit: _Fit) -> None:
        """Gives an axis the size that fits, unless it is known to be shorter."""
        window, ref = fit.window, fit.window.ref
        told, fits = self._value(scope.sizes.get(axis, fit.size)), self._value(fit.size)
        if isinstance(told, int) and _is_told_by_many(fits, told):
            needed = window.size - fit.room + larger(fit.step, -fit.step) * (told - 1)
            self.unify(window.size, needed, axis, ref)  # it ends at the last position that is read
        elif not isinstance(told, int) or not isinstance(fits, int) or told == fits:
            self._tell(scope, axis, fit.size, ref)
        elif told > fits:
            raise ShapeError(
                f"'{ref.said}' is read beyond its end: axis '{axis}' is {told} long, and {fits} fit",
                ref.place,
                f"pad it there first, or make '{axis}' shorter",
            )
        elif self.shorter is None:
            self._tell(scope, axis, fit.size, ref)
        else:
            room, step = map(self._value, (fit.room, fit.step))
            self.shorter.append(Shorter(ref, window.position, room - abs(step) * (told - 1), step < 0))

    def _value(self, size: Any) -> Any:
        return evaluate(size, self.bound)

    def _is_negative(self, size: Any) -> bool:
        """Whether a size is known to be below 0: a negative number, or a negative multiple of a product of sizes."""
        value = self._value(size)
        if isinstance(value, int):
            return value < 0
        return len(terms_of(value)) == 1 and terms_of(value)[0][1] < 0


def _dependencies_first(windows: Sequence[_Window], scope: Scope) -> list[_Window]:
    """The windows in an order in which the other axes of each have their sizes before it sizes its first one."""
    sized = [next(iter(window.positions.axes), "") for window in windows]
    order, left = list[_Window](), [*range(len(windows))]
    while left:
        waiting = {sized[n] for n in left if scope.get(sized[n], None) is None}
        free = [n for n in left if waiting.isdisjoint({*windows[n].positions.axes} - {sized[n]})]
        order += [windows[n] for n in free or left]
        left = [n for n in left if n not in free] if free else []
    return order


def _is_told_by_many(size: Any, observed: int) -> bool:
    """Whether several values of an open size give the observed value, as for ⌊x/3⌋."""
    return not isinstance(size, int) and solve_size(size, observed) is None


def componentwise(names: tuple[str, ...], dim: Dim, bound: Mapping[str, Any]) -> bool:
    """Whether the parts of a composite match those of the dimension that it reads, one by one."""
    return len(names) == len(dim) and all(
        name == axis.name or name not in bound or evaluate(bound[name], bound) == evaluate(axis.size, bound)
        for name, axis in zip(names, dim, strict=True)
    )


def scalar_size(expression: Expression, scope: Scope) -> Any:
    """The value of an integer expression of sizes, such as `-s` in `roll(x, i=-s)`."""
    match expression:
        case Literal(int(value)):
            return value
        case Size(axis):
            return scope[axis]
        case Contraction(factors, ()):
            return product(scalar_size(factor, scope) for factor in factors)
        case Call("add", terms):
            return total(scalar_size(term, scope) for term in terms)
        case Call("reciprocal", (argument,)):
            return quotient(1, scalar_size(argument, scope))
        case Call("power", (base, Literal(int(power)))):
            found = power_of(scalar_size(base, scope), power)
            if found is not None:
                return found
        case Call(function, arguments) if FUNCTIONS[function].in_sizes:
            made = FUNCTIONS_OF_SIZES[FUNCTIONS[function].in_sizes]
            return made(*(scalar_size(argument, scope) for argument in arguments))
    place: Place | None = expression.place
    raise ShapeError(
        f"{show(expression)} is not a valid size or number of positions",
        place,
        "use integers and sizes of axes",
    )


_IN_SIZES = {row.in_sizes: row.name for row in FUNCTIONS.values() if row.in_sizes}


def size_expression(size: Any) -> Expression:
    """A size as an expression of the language."""
    if isinstance(size, int):
        return Literal(size)
    return sum_of([_term_expression(*factors_of(*term)) for term in terms_of(size)])


def _term_expression(above: list[Any], below: list[Any]) -> Expression:
    factors = [_factor_expression(each) for each in above]
    if below:
        factors.append(Call("reciprocal", (product_of([_factor_expression(each) for each in below]),)))
    return product_of(factors)


def _factor_expression(factor: Any) -> Expression:
    """A factor as an expression: a number, or a power of an atom."""
    if isinstance(factor, int):
        return Literal(factor)
    atom, power = factor
    if isinstance(atom, str):
        found: Expression = Size(atom)
    else:
        inner = size_expression(atom.size)
        given = {"floor": (inner,), "Max": (Literal(0), inner)}.get(atom.kind)
        found = Call(_IN_SIZES[atom.kind], given) if given else inner
    return found if power == 1 else Call("power", (found, Literal(power)))


def result_dims(equation: Equation, scope: Scope) -> tuple[Dim, ...]:
    """The dimensions of the result of an equation."""
    return tuple(tuple(Axis(name, scope[name]) for name in names_in(entry)) for entry in equation.left)


def _outside(window: _Window, axis: str, count: Any, is_before: bool) -> ShapeError:
    """The error for a window that reads a tensor outside of its positions."""
    ref, amounts = window.ref, f"({count},0)" if is_before else f"(0,{count})"
    fix = f"pad it in a line before, z[…] = pad({ref.said}[…], {axis}={amounts}), and read z"
    fix += f" with {count} added to the position" if is_before else " there"
    if is_before and count == 1 and window.positions.steps == ((axis, Literal(1)),):
        fix = f"previous[{axis}]({ref.said}[…]) reads 0 there, or {fix}"
    side = "before its first" if is_before else "after its last"
    return ShapeError(f"'{ref.said}' is read {count} position(s) {side} one", ref.place, fix)


def disagreement(
    a: Any, b: Any, axis: str, ref: Ref | Call | None, bound: Mapping[str, Any], is_weight: bool = False
) -> ShapeError:
    """The error for an axis that two places size differently.

    Args:
        a, b: the sizes.
        axis: the axis.
        ref: what has the second size.
        bound: the open sizes that have a value.
        is_weight: whether that is a parameter that has the sizes of another line.
    """

    def told(size: Any) -> str:
        value = evaluate(size, bound)
        return f"{size} = {value}" if str(size) != str(value) else f"{value}"

    where = (
        f" in '{ref.said}'" if isinstance(ref, Ref) else f" in {ref.place.text}" if ref and ref.place else ""
    )
    remedy = (
        "give a second weight a name of its own; or "
        if is_weight
        else _remedy(evaluate(a, bound), evaluate(b, bound), axis, ref)
    )
    known = ref.free_axes if isinstance(ref, Ref) else ()
    return ShapeError(
        f"sizes disagree: axis '{axis}' is {told(a)}, but{where} it is {told(b)}",
        locate(ref.place, axis) if ref is not None and axis in known else (ref.place if ref else None),
        f"{remedy}give the two axes different names, or make their sizes equal",
    )


def _common_factor(size: Any) -> int:
    """The greatest integer that divides an open size whatever its names are; 1 for a number or a quotient."""
    if isinstance(size, int) or "/" in str(size):
        return 1
    return math.gcd(*(factor if isinstance(factor, int) else 1 for _, factor in terms_of(size)))


def _remedy(a: Any, b: Any, axis: str, ref: Ref | Call | None) -> str:
    """A further fix for two sizes that differ: give the open ones, or else read a part of the longer tensor."""
    more = evaluate(a - b, {})
    whole, other = (a, b) if isinstance(a, int) else (b, a)
    by = _common_factor(other)
    if isinstance(whole, int) and by > 1 and whole % by:
        return f"{whole} is no multiple of {by}, so change one of them; or "
    if len({each > 0 for _, each in terms_of(more)}) == 1 and not isinstance(more, int):
        return f"one is longer by {more if terms_of(more)[0][1] > 0 else -more}: "
    if open_sizes := size_names(more):
        named = ", ".join(f"{name}=…" for name in open_sizes)
        return f"give those that are not known yet, {named}; or "
    if isinstance(a, int) and isinstance(b, int) and a < b and isinstance(ref, Ref) and axis in ref.index:
        if a == 1:  # as an axis inside a window is where nothing else says how long it is
            return f"give {axis}={b}, if a window left it the one position that fits; or "
        read = ",".join(f"{axis}+0" if entry == axis else show_entry(entry) for entry in ref.index)
        return f"read the first {a} of the {b}, {ref.said}[{read}]; or "
    in_window = isinstance(ref, Ref) and any(axis in entry.free_axes for entry in ref.parts)
    if isinstance(a, int) and isinstance(ref, Ref) and in_window:
        return f"declare how long '{ref.said}' is there, as in {ref.said}[n:16]: input, to read a part of it; or "
    if isinstance(a, int) or not isinstance(more, int):
        return ""
    return f"read a part of the longer, as in x[{abs(more)}:] or x[:-{abs(more)}]; or "
