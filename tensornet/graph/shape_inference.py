"""Shape inference: sizes of the axes in an equation, in one walk over the expression."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ..codec import document
from ..errors import EquationError, Place, ShapeError
from ..language.affine import Affine, affine
from ..language.einstein import locate
from ..language.equation import Equation
from ..language.expression import (
    ELLIPSIS,
    Call,
    Contraction,
    Expression,
    Literal,
    Ref,
    Size,
    Taken,
    axes_of_index,
    free_axes,
    option_axes,
    product_of,
    references,
    show,
    show_entry,
    show_index,
    sum_of,
)
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
    return {name for dim in dims for axis in dim for name in size_names(axis.size)}


def resized(dims: Iterable[Dim], change: Callable[[Any], Any]) -> tuple[Dim, ...]:
    """The dimensions, with each size of an axis changed."""
    return tuple(tuple(Axis(axis.name, change(axis.size)) for axis in dim) for dim in dims)


Unify: TypeAlias = "Callable[[Any, Any, str, Ref | None], Any]"
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
        size: the size of the dimension.
        left: the number of positions that are not read.
        back: whether these are the first positions.
    """

    ref: Ref
    position: int
    size: int
    left: int
    back: bool


Binder: TypeAlias = "int | tuple[int, int]"
"""The id of a part that binds or resizes axes, or that of a join and the number of an operand."""


@dataclass
class Scope:
    """The sizes of axes by name: fixed by tensors (`sizes`), limited by windows (`fitting`), or only assumed by
    functions (`assumed`). `binders` holds the sizes that axes have inside of parts that bind or resize them, by id,
    and inside of each operand of a join, by id and number."""

    sizes: dict[str, Any] = field(default_factory=dict)
    assumed: dict[str, Any] = field(default_factory=dict)
    inner: dict[str, Any] = field(default_factory=dict)  # of axes summed inside, which a size may mention
    fitting: dict[str, list[_Fit]] = field(default_factory=dict)
    composites: list[tuple[Ref, tuple[str, ...], Any]] = field(default_factory=list)
    windows: list[_Window] = field(default_factory=list)
    binders: dict[Binder, dict[str, Any]] = field(default_factory=dict)

    def __getitem__(self, axis: str) -> Any:
        found = self.sizes.get(axis)
        if found is None and axis in self.fitting:
            found = self.fitting[axis][0].size
        if found is None:
            found = self.assumed.get(axis, self.inner.get(axis))
        return symbol(axis) if found is None else found

    def inside(self, part: Expression, number: int | None = None, keeps: bool = True) -> Scope:
        """The scope inside of a part that binds or resizes axes; with `keeps`, unsized ones keep their size.

        With a number, the scope inside of this operand of a join.
        """
        bound = self.binders.get(id(part) if number is None else (id(part), number))
        if not bound:
            return self
        outer = {name: size for name, size in self.sizes.items() if keeps or name not in bound}
        found = {name: size for name, size in bound.items() if size is not None}
        return replace(self, sizes={**outer, **found})


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
    walk = _Walk(dims, unify, bound, told, shorter, solves)
    return replace(walk.settled(walk.scope(expression)), binders=walk.binders)


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
    """A walk over an expression, which makes the scope of each part from those of its parts; see `scope_of`."""

    dims: Mapping[str, tuple[Dim, ...]]
    unify: Unify
    bound: Mapping[str, Any]
    told: frozenset[str]
    shorter: list[Shorter] | None
    solves: bool
    binders: dict[Binder, dict[str, Any]] = field(default_factory=dict)

    def scope(self, expression: Expression) -> Scope:
        """The scope of an expression, in which windows and composites may be unsettled."""
        match expression:
            case Ref():
                return self._of_ref(expression)
            case Contraction(factors, summed):
                return self._without(self._of_all(factors), summed, expression)
            case Call(function, arguments, axes):
                row = FUNCTIONS[function]
                if row.axes == "joined":
                    return self._of_joined(expression)
                scope = self._of_all(arguments)
                if row.resized is not None:
                    moved = option_axes(expression)
                    self.settled(scope, moved)
                    self.binders[id(expression)] = {name: scope[name] for name in moved}
                    for name, values in expression.options:
                        if name in scope.sizes and name in moved:
                            amounts = (scalar_size(value, scope) for value in values)
                            scope.sizes[name] = row.resized(scope.sizes[name], *amounts)
                scope = self._without(scope, row.leaves_out(axes), expression)
                for axis in row.makes(axes):
                    scope.assumed.setdefault(axis, symbol(axis))
                return scope
        return Scope()

    def _of_all(self, parts: Sequence[Expression]) -> Scope:
        """The common scope of several parts of an equation; numbers add nothing."""
        found: Scope | None = None
        for part in parts:
            if isinstance(part, Literal | Size):
                continue
            scope = self.scope(part)
            if found is None:
                found = scope
            else:
                self._add(found, scope, part)
        return Scope() if found is None else found

    def _of_ref(self, ref: Ref) -> Scope:
        scope, known = Scope(), self.dims.get(ref.name)
        if known is not None and len(known) != len(ref.index):
            raise ShapeError(
                f"'{ref.name}' has {len(known)} dimension(s), and is read with {len(ref.index)}",
                ref.place,
                f"'{ref.name}' was defined as {ref.name}[{show_index(index_of(known))}]",
            )
        for position, entry in enumerate(ref.index):
            dim = known[position] if known is not None else None
            match entry:
                case str() if dim and (entry == ELLIPSIS) != (dim[0].name == ELLIPSIS):
                    raise EquationError(
                        f"'{ref.name}' is read with '...' in one place, and with axes there in another",
                        ref.place,
                        f"write {ref.name}[{show_index(index_of(known or ()))}] throughout",
                    )
                case str() if dim is not None:
                    self._tell(scope, entry, dim_size(dim), ref)
                case tuple() if dim is not None:
                    self._tell_composite(scope, ref, entry, dim)
                case Ref() | Contraction() | Call():
                    self._add(scope, self.scope(entry), entry)
                    window = affine(entry)
                    if dim is not None and window is not None:
                        scope.windows.append(_Window(ref, position, window, dim_size(dim)))
                case int() if dim is not None:
                    size = evaluate(dim_size(dim), self.bound)
                    if isinstance(size, int) and not -size <= entry < size:
                        raise ShapeError(
                            f"index {entry} is outside '{ref.name}', whose dimension {position} has size {size}",
                            ref.place,
                            f"use an index below {size}",
                        )
        return scope

    def _of_joined(self, join: Call) -> Scope:
        """The scope of a join. The joined axis is new: its size is the sum over the operands, 1 for one without it."""
        scope, length, (axis,) = Scope(), 0, join.axes
        for number, argument in enumerate(join.arguments):
            inner = self.settled(self.scope(argument), (axis,))
            length = length + (inner[axis] if axis in free_axes(argument) else 1)
            self.binders[id(join), number] = {axis: inner[axis]}
            self._add(scope, self._without(inner, (axis,)), argument)
        scope.sizes[axis] = length
        return scope

    # ---- scopes

    def _tell(self, scope: Scope, axis: str, size: Any, origin: Ref | None) -> None:
        """Adds the size of an axis that a tensor fixes."""
        known = scope.sizes.get(axis)
        scope.sizes[axis] = size if known is None else self.unify(known, size, axis, origin)

    def _tell_composite(self, scope: Scope, ref: Ref, names: tuple[str, ...], dim: Dim) -> None:
        """Sizes a composite `(h,d)` part by part if it matches the parts of the dimension, else by the product."""
        if componentwise(names, dim, self.bound):
            for name, size in {name: axis.size for name, axis in zip(names, dim, strict=True)}.items():
                self._tell(scope, name, size, ref)
            return
        for name in names:
            scope.assumed.setdefault(name, symbol(name))
        scope.composites.append((ref, names, dim_size(dim)))

    def _add(self, scope: Scope, other: Scope, part: Expression) -> None:
        """Adds the sizes from another part of the equation."""
        for name, size in other.sizes.items():
            agrees = scope.sizes.get(name, size) == size
            self._tell(scope, name, size, None if agrees else self._sizing(part, name, size))
        scope.assumed = other.assumed | scope.assumed
        scope.inner = other.inner | scope.inner
        for name, fits in other.fitting.items():
            scope.fitting.setdefault(name, []).extend(fits)
        scope.composites += other.composites
        scope.windows += other.windows

    def _sizing(self, part: Expression, axis: str, size: Any) -> Ref | None:
        """The first tensor in a part of an equation that gives an axis its size there."""
        read = ((ref, self.dims.get(ref.name, ())) for ref in references(part))
        sized = ((ref, pair) for ref, dims in read for pair in zip(ref.index, dims, strict=False))
        return next((ref for ref, (at, dim) in sized if at == axis and dim_size(dim) == size), None)

    def _without(self, scope: Scope, axes: tuple[str, ...], binder: Expression | None = None) -> Scope:
        """The scope outside a binder of `axes`."""
        if not axes:
            return scope
        self.settled(scope, axes)
        gone = {name: size for name, size in scope.sizes.items() if name in axes}
        if binder is not None:
            self.binders[id(binder)] = {name: gone.get(name) for name in axes}
        return replace(
            scope,
            sizes={name: size for name, size in scope.sizes.items() if name not in axes},
            assumed={name: size for name, size in scope.assumed.items() if name not in axes},
            inner=scope.inner | gone,
        )

    # ---- windows and composites

    def settled(self, scope: Scope, axes: Collection[str] | None = None) -> Scope:
        """The scope, after each composite that names one of `axes` (or any axis) is unified with its dimension. Windows
        along them get the size that fits, or a smaller one that is known from elsewhere."""

        def is_due(names: Iterable[str]) -> bool:
            return axes is None or not set(axes).isdisjoint(names)

        windows, scope.windows = scope.windows, []
        for window in windows:
            for axis in self.told.intersection(window.positions.axes):
                scope.sizes.setdefault(axis, symbol(axis))
        for window in windows:
            if is_due(window.positions.axes):
                self._fit(scope, window)
            else:
                scope.windows.append(window)
        for axis in [axis for axis in scope.fitting if is_due((axis,))]:
            for fit in scope.fitting.pop(axis):
                self._meet(scope, axis, fit)
        waiting, scope.composites = scope.composites, []
        for ref, names, size in waiting:
            if is_due(names):
                if self.solves:
                    self._solve(scope, names, size)
                self.unify(size, product(scope[name] for name in names), "(" + ",".join(names) + ")", ref)
            else:
                scope.composites.append((ref, names, size))
        return scope

    def _solve(self, scope: Scope, names: tuple[str, ...], size: Any) -> None:
        """Computes the size of the only unknown part of a composite from the size of its dimension."""
        whole, parts = self._value(size), {name: self._value(scope[name]) for name in names}
        unknown = [name for name, part in parts.items() if part == symbol(name)]
        others = [part for name, part in parts.items() if name not in unknown]
        if len(unknown) == 1 and all(isinstance(each, int) and each for each in (whole, *others)):
            length, left = divmod(whole, math.prod(others))
            if not left:
                scope.sizes[unknown[0]] = length

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
        scope.fitting.setdefault(axis, []).append(_Fit(size, window, step, room))

    def _meet(self, scope: Scope, axis: str, fit: _Fit) -> None:
        """Gives an axis the size that fits, unless it is known to be shorter."""
        window, ref = fit.window, fit.window.ref
        told, fits = self._value(scope.sizes.get(axis, fit.size)), self._value(fit.size)
        if isinstance(told, int) and _is_told_by_many(fits, told) and fit.step != 1:
            needed = window.size - fit.room + larger(fit.step, -fit.step) * (told - 1)
            self.unify(window.size, needed, axis, ref)  # it ends at the last position that is read
        elif not isinstance(told, int) or not isinstance(fits, int) or told == fits:
            self._tell(scope, axis, fit.size, ref)
        elif told > fits:
            raise ShapeError(
                f"'{ref.name}' is read beyond its end: axis '{axis}' is {told} long, and {fits} fit",
                ref.place,
                f"pad it there first, or make '{axis}' shorter",
            )
        elif self.shorter is None:
            self._tell(scope, axis, fit.size, ref)
        else:
            size, room, step = map(self._value, (window.size, fit.room, fit.step))
            self.shorter.append(Shorter(ref, window.position, size, room - abs(step) * (told - 1), step < 0))

    def _value(self, size: Any) -> Any:
        return evaluate(size, self.bound)

    def _is_negative(self, size: Any) -> bool:
        """Whether a size is known to be below 0: a negative number, or a negative multiple of a product of sizes."""
        value = self._value(size)
        if isinstance(value, int):
            return value < 0
        return len(terms_of(value)) == 1 and terms_of(value)[0][1] < 0


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
        if a == 1:  # as an axis inside a window is where nothing else says how long it is
            return f"give {axis}={b}, if a window left it the one position that fits; or "
        read = ",".join(f"{axis}+0" if entry == axis else show_entry(entry) for entry in ref.index)
        return f"read the first {a} of the {b}, {ref.name}[{read}]; or "
    if isinstance(a, int) or not isinstance(more, int):
        return ""
    return f"read a part of the longer, as in x[{abs(more)}:] or x[:-{abs(more)}]; or "
