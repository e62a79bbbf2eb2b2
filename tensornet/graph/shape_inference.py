"""Shape inference: sizes of the axes in an equation, in one walk over the expression."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..codec import document
from ..errors import EquationError, Place, ShapeError
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
    axes_of_index,
    free_axes,
    option_axes,
    product_of,
    show,
    show_entry,
    sum_of,
)
from ..ops.table import FUNCTIONS
from ..sizes import (
    FUNCTIONS_OF_SIZES,
    LARGEST,
    Floor,
    Positive,
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

__all__ = [
    "Axis",
    "Dim",
    "Scope",
    "Shorter",
    "beside",
    "componentwise",
    "dim_size",
    "index_of",
    "result_dims",
    "scalar_size",
    "scope_inside",
    "scope_of",
    "size_expression",
]


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


def index_of(dims: tuple[Dim, ...]) -> tuple[str | tuple[str, ...], ...]:
    """The index of axes and composites that a tensor of these dimensions was declared with."""
    return tuple(dim[0].name if len(dim) == 1 else tuple(axis.name for axis in dim) for dim in dims)


Unify: TypeAlias = "Callable[[Any, Any, str, Ref | None], Any]"
"""Decides the size of an axis that two places give; raises an error if they cannot unify."""


@dataclass(frozen=True)
class _Window:
    """A dimension that is read at affine positions, with its size and the inputs of the walk that found it."""

    ref: Ref
    position: int
    positions: Affine
    size: Any
    given: _Given


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
        size: the size of the dimension.
        left: the number of positions that are not read.
        back: whether these are the first positions.
    """

    ref: Ref
    position: int
    size: int
    left: int
    back: bool


@dataclass
class Scope:
    """The sizes of axes by name: fixed by tensors (`sizes`), limited by windows (`fitting`), or only assumed by
    functions (`assumed`)."""

    sizes: dict[str, Any] = field(default_factory=dict)
    assumed: dict[str, Any] = field(default_factory=dict)
    fitting: dict[str, list[_Fit]] = field(default_factory=dict)
    composites: list[tuple[Ref, tuple[str, ...], Any, _Given]] = field(default_factory=list)
    inner: dict[str, Any] = field(default_factory=dict)  # of axes summed inside, which a size may mention
    windows: list[_Window] = field(default_factory=list)

    def __getitem__(self, axis: str) -> Any:
        found = self.sizes.get(axis)
        if found is None and axis in self.fitting:
            found = self.fitting[axis][0].size
        if found is None:
            found = self.assumed.get(axis, self.inner.get(axis))
        return symbol(axis) if found is None else found

    def settle(self, unify: Unify, axes: Collection[str] | None = None) -> None:
        """Unifies each composite that names one of `axes` (or any axis) with its dimension. Windows along them get
        the size that fits, or a smaller one that is known from elsewhere."""
        moving, self.windows = self.windows, []
        for window in moving:
            for axis in window.given.told.intersection(window.positions.axes):
                self.sizes.setdefault(axis, symbol(axis))
        for window in moving:
            if axes is not None and not set(axes) & set(window.positions.axes):
                self.windows.append(window)
            else:
                self._fit(window)
        for axis in tuple(self.fitting if axes is None else set(axes) & self.fitting.keys()):
            for fit in self.fitting.pop(axis):
                self._meet(axis, fit, unify)
        waiting, self.composites = self.composites, []
        for ref, names, size, given in waiting:
            if axes is not None and not set(axes) & set(names):
                self.composites.append((ref, names, size, given))
            else:
                if given.solves:
                    self._solve(names, size, given.bound)
                unify(size, product(self[name] for name in names), "(" + ",".join(names) + ")", ref)

    def _solve(self, names: tuple[str, ...], size: Any, bound: Mapping[str, Any]) -> None:
        """Computes the size of the only unknown part of a composite from the size of its dimension."""
        whole, parts = evaluate(size, bound), {name: evaluate(self[name], bound) for name in names}
        unknown = [name for name, part in parts.items() if part == symbol(name)]
        others = [part for name, part in parts.items() if name not in unknown]
        if len(unknown) == 1 and all(isinstance(each, int) and each for each in (whole, *others)):
            length, left = divmod(whole, math.prod(others))
            if not left:
                self.sizes[unknown[0]] = length

    def _meet(self, axis: str, fit: _Fit, unify: Unify) -> None:
        """Gives an axis the size that fits, unless it is known to be shorter."""
        window, given = fit.window, fit.window.given
        known = self.sizes.get(axis, fit.size)
        told, fits = (evaluate(size, given.bound) for size in (known, fit.size))
        if isinstance(told, int) and _is_told_by_many(fits, told) and fit.step != 1:
            needed = window.size - fit.room + larger(fit.step, -fit.step) * (told - 1)
            unify(window.size, needed, axis, window.ref)  # it ends at the last position that is read
        elif not isinstance(told, int) or not isinstance(fits, int) or told == fits:
            self.tell(axis, fit.size, unify, window.ref)
        elif told > fits:
            raise ShapeError(
                f"'{window.ref.name}' is read beyond its end: axis '{axis}' is {told} long, and {fits} fit",
                window.ref.place,
                f"pad it there first, or make '{axis}' shorter",
            )
        elif given.shorter is None:
            self.tell(axis, fit.size, unify, window.ref)
        else:
            size, room, step = (evaluate(each, given.bound) for each in (window.size, fit.room, fit.step))
            left = room - abs(step) * (told - 1)
            given.shorter.append(Shorter(window.ref, window.position, size, left, step < 0))

    def _moving(self, window: _Window) -> list[tuple[str, Any]]:
        """The axes along which a window moves, with their steps."""
        told = ((axis, scalar_size(step, self)) for axis, step in window.positions.steps)
        return [(axis, step) for axis, step in told if step != 0]

    def _fit(self, window: _Window) -> None:
        """Adds to `fitting` how long the first axis of a window may be."""
        ref, bound = window.ref, window.given.bound
        moving = self._moving(window)
        if not moving:
            return  # it does not move, and sizes no axis
        (axis, step), *others = moving
        steps = [(evaluate(self[other], bound) - 1, by) for other, by in others]  # equal sizes look alike
        before = scalar_size(window.positions.offset, self)
        after = (
            window.size
            - 1
            - before
            - sum((last * by for last, by in steps if not _is_negative(by, bound)), 0)
        )
        before += sum((last * by for last, by in steps if _is_negative(by, bound)), 0)
        if _is_negative(before, bound):
            raise _outside(window, axis, evaluate(-before, bound), is_before=True)
        back = _is_negative(step, bound)
        room = before if back else after
        if back and _is_negative(after, bound):
            raise _outside(window, axis, evaluate(-after, bound), is_before=False)
        size = floored(room, -step if back else step) + 1
        there, left, by = (evaluate(each, bound) for each in (window.size, room, step))
        beyond = 0 if others and there else -abs(by) if isinstance(by, int) else -LARGEST
        if isinstance(left, int) and left < beyond:
            raise ShapeError(
                f"a window of '{ref.name}' reaches over {there - left} positions, and there are {there}",
                ref.place,
                "pad it there first, or make the window shorter",
            )
        self.fitting.setdefault(axis, []).append(_Fit(size, window, step, room))

    def without(self, axes: tuple[str, ...], unify: Unify) -> Scope:
        """The scope outside a binder of `axes`."""
        if not axes:
            return self
        self.settle(unify, axes)
        return Scope(
            {name: size for name, size in self.sizes.items() if name not in axes},
            {name: size for name, size in self.assumed.items() if name not in axes},
            self.fitting,
            self.composites,
            {**self.inner, **{name: size for name, size in self.sizes.items() if name in axes}},
            self.windows,
        )

    def tell(self, axis: str, size: Any, unify: Unify, origin: Ref | None) -> None:
        """Adds the size of an axis that a tensor fixes."""
        known = self.sizes.get(axis)
        self.sizes[axis] = size if known is None else unify(known, size, axis, origin)

    def add(self, other: Scope, unify: Unify, origin: Ref | None = None) -> None:
        """Adds the sizes from another part of the equation."""
        for name, size in other.sizes.items():
            self.tell(name, size, unify, origin)
        for name, size in other.assumed.items():
            self.assumed.setdefault(name, size)
        for name, size in other.inner.items():
            self.inner.setdefault(name, size)
        for name, fits in other.fitting.items():
            self.fitting.setdefault(name, []).extend(fits)
        self.composites += other.composites
        self.windows += other.windows


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
    scope = _scope_of(expression, _Given(dims, unify, bound, told, shorter, solves))
    scope.settle(unify)
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


def beside(scope: Scope, nearer: Scope) -> Scope:
    """The sizes of two scopes; where both have one, the size in `nearer` is used."""
    return Scope(
        {**scope.sizes, **nearer.sizes},
        {**scope.assumed, **nearer.assumed},
        inner={**scope.inner, **nearer.inner},
    )


@dataclass(frozen=True)
class _Given:
    """The inputs of a walk over an expression; see `scope_of`."""

    dims: Mapping[str, tuple[Dim, ...]]
    unify: Unify
    bound: Mapping[str, Any]
    told: frozenset[str]
    shorter: list[Shorter] | None
    solves: bool


def _scope_of(expression: Expression, given: _Given) -> Scope:
    unify = given.unify
    match expression:
        case Ref():
            return _scope_of_ref(expression, given)
        case Contraction(factors, summed):
            return _scope_of_all(factors, given).without(summed, unify)
        case Call(function, arguments, axes):
            row = FUNCTIONS[function]
            if row.axes == "joined":
                return _scope_of_joined(arguments, axes[0], given)
            scope = _scope_of_all(arguments, given)
            if row.resized is not None:
                scope.settle(unify, option_axes(expression))
            for name, values in expression.options:
                if row.resized is not None and name in scope.sizes and name in option_axes(expression):
                    amounts = (scalar_size(value, scope) for value in values)
                    scope.sizes[name] = row.resized(scope.sizes[name], *amounts)
            scope = scope.without(row.leaves_out(axes), unify)
            for axis in row.makes(axes):
                scope.assumed.setdefault(axis, symbol(axis))
            return scope
    return Scope()


def _scope_of_all(parts: Sequence[Expression], given: _Given) -> Scope:
    """The common scope of several parts of an equation; numbers add nothing."""
    found: Scope | None = None
    for part in parts:
        if isinstance(part, Literal | Size):
            continue
        scope = _scope_of(part, given)
        if found is None:
            found = scope
        else:
            found.add(scope, given.unify, _first_ref(part))
    return Scope() if found is None else found


def _first_ref(expression: Expression) -> Ref | None:
    return expression if isinstance(expression, Ref) else None


def _scope_of_ref(ref: Ref, given: _Given) -> Scope:
    scope, unify, bound = Scope(), given.unify, given.bound
    known = given.dims.get(ref.name)
    if known is not None and len(known) != len(ref.index):
        raise ShapeError(
            f"'{ref.name}' has {len(known)} dimension(s), and is read with {len(ref.index)}",
            ref.place,
            f"'{ref.name}' was defined as {ref.name}[{','.join(_show_dim(dim) for dim in known)}]",
        )
    for position, entry in enumerate(ref.index):
        dim = known[position] if known is not None else None
        match entry:
            case str() if dim and (entry == ELLIPSIS) != (dim[0].name == ELLIPSIS):
                raise EquationError(
                    f"'{ref.name}' is read with '...' in one place, and with axes there in another",
                    ref.place,
                    f"write {ref.name}[{','.join(_show_dim(each) for each in known or ())}] throughout",
                )
            case str() if dim is not None:
                scope.tell(entry, dim_size(dim), unify, ref)
            case tuple() if dim is not None:
                _tell_composite(scope, ref, entry, dim, given)
            case Ref() | Contraction() | Call():
                scope.add(_scope_of(entry, given), unify, _first_ref(entry))
                window = affine(entry)
                if dim is not None and window is not None:
                    scope.windows.append(_Window(ref, position, window, dim_size(dim), given))
            case int() if dim is not None:
                size = evaluate(dim_size(dim), bound)
                if isinstance(size, int) and not -size <= entry < size:
                    raise ShapeError(
                        f"index {entry} is outside '{ref.name}', whose dimension {position} has size {size}",
                        ref.place,
                        f"use an index below {size}",
                    )
    return scope


def _is_told_by_many(size: Any, observed: int) -> bool:
    """Whether several values of an open size give the observed value, as for ⌊x/3⌋."""
    return not isinstance(size, int) and solve_size(size, observed) is None


def _is_negative(size: Any, bound: Mapping[str, Any]) -> bool:
    """Whether a size is known to be below 0: a negative number, or a negative multiple of a product of sizes."""
    value = evaluate(size, bound)
    if isinstance(value, int):
        return value < 0
    return len(terms_of(value)) == 1 and terms_of(value)[0][1] < 0


def _show_dim(dim: Dim) -> str:
    return dim[0].name if len(dim) == 1 else "(" + ",".join(axis.name for axis in dim) + ")"


def _tell_composite(scope: Scope, ref: Ref, names: tuple[str, ...], dim: Dim, given: _Given) -> None:
    """Sizes a composite `(h,d)` part by part if it matches the parts of the dimension, else by the product."""
    if componentwise(names, dim, given.bound):
        for name, size in {name: axis.size for name, axis in zip(names, dim, strict=True)}.items():
            scope.tell(name, size, given.unify, ref)
        return
    for name in names:
        scope.assumed.setdefault(name, symbol(name))
    scope.composites.append((ref, names, dim_size(dim), given))


def componentwise(names: tuple[str, ...], dim: Dim, bound: Mapping[str, Any]) -> bool:
    """Whether the parts of a composite match those of the dimension that it reads, one by one."""
    return len(names) == len(dim) and all(
        name == axis.name or name not in bound or evaluate(bound[name], bound) == evaluate(axis.size, bound)
        for name, axis in zip(names, dim, strict=True)
    )


def _scope_of_joined(arguments: tuple[Expression, ...], axis: str, given: _Given) -> Scope:
    """The scope of a join. The joined axis is new: its size is the sum over the operands, 1 for one without it."""
    scope, total = Scope(), 0
    for argument in arguments:
        inner = _scope_of(argument, given)
        inner.settle(given.unify, (axis,))
        total = total + (inner[axis] if axis in free_axes(argument) else 1)
        scope.add(inner.without((axis,), given.unify), given.unify, _first_ref(argument))
    scope.sizes[axis] = total
    return scope


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
    match atom:
        case str():
            found: Expression = Size(atom)
        case Floor():
            found = Call(_IN_SIZES["floor"], (size_expression(atom.size),))
        case Positive():
            found = Call(_IN_SIZES["Max"], (Literal(0), size_expression(atom.size)))
        case _:
            found = size_expression(atom.size)
    return found if power == 1 else Call("power", (found, Literal(power)))


def result_dims(equation: Equation, scope: Scope) -> tuple[Dim, ...]:
    """The dimensions of the result of an equation."""
    dims: list[Dim] = []
    for entry in equation.left:
        names = (entry,) if isinstance(entry, str) else entry
        dims.append(tuple(Axis(name, scope[name]) for name in names))
    return tuple(dims)


def _outside(window: _Window, axis: str, count: Any, is_before: bool) -> ShapeError:
    """The error for a window that reads a tensor outside of its positions."""
    ref, amounts = window.ref, f"({count},0)" if is_before else f"(0,{count})"
    fix = f"pad it in a line before, z[…] = pad({ref.name}[…], {axis}={amounts}), and read z"
    fix += f" with {count} added to the position" if is_before else " there"
    if is_before and count == 1 and window.positions.steps == ((axis, Literal(1)),):
        fix = f"previous[{axis}]({ref.name}[…]) reads 0 there, or {fix}"
    side = "before its first" if is_before else "after its last"
    return ShapeError(f"'{ref.name}' is read {count} position(s) {side} one", ref.place, fix)


def disagreement(a: Any, b: Any, axis: str, ref: Ref | None, bound: Mapping[str, Any]) -> ShapeError:
    """The error for an axis that two places size differently."""

    def told(size: Any) -> str:
        value = evaluate(size, bound)
        return f"{size} = {value}" if str(size) != str(value) else f"{value}"

    where = f" in '{ref.name}'" if ref is not None else ""
    remedy = _remedy(evaluate(a, bound), evaluate(b, bound), axis, ref)
    known = axes_of_index(ref.index) if ref is not None else ()
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


def _remedy(a: Any, b: Any, axis: str, ref: Ref | None) -> str:
    """A further fix for two sizes that differ: give the open ones, or else read a part of the longer tensor."""
    more = evaluate(a - b, {})
    whole, other = (a, b) if isinstance(a, int) else (b, a)
    by = _common_factor(other)
    if isinstance(whole, int) and by > 1 and whole % by:
        return f"{whole} is no multiple of {by}, so change one of them; or "
    if open_sizes := size_names(more):
        named = ", ".join(f"{name}=…" for name in open_sizes)
        return f"give those that are not known yet, {named}; or "
    if isinstance(a, int) and isinstance(b, int) and a < b and ref is not None and axis in ref.index:
        read = ",".join(f"{axis}+0" if entry == axis else show_entry(entry) for entry in ref.index)
        return f"read the first {a} of the {b}, {ref.name}[{read}]; or "
    if isinstance(a, int) or not isinstance(more, int):
        return ""
    return f"read a part of the longer, as in x[{abs(more)}:] or x[:-{abs(more)}]; or "
