"""Equations: their data types, the Einstein rule, bare names and printing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

from ..codec import document, hashed_once
from ..errors import EquationError, Place, TensornetWarning, near, told_in, warn
from ..ops.structure import INDEX
from ..ops.table import FUNCTIONS, SIGNS
from .einstein import SLICES, axes_read_once, is_written, locate, sum_out, without_sums
from .expression import (
    ELLIPSIS,
    Call,
    Contraction,
    Expression,
    Index,
    Literal,
    Ref,
    Size,
    axes_of_index,
    calls_in,
    free_axes,
    is_computed_index,
    is_scalar,
    occurring,
    option_axes,
    parts_of,
    placed_axes,
    plain_axes,
    references,
    relabel,
    renamed_index,
    show,
    show_index,
    subexpressions,
    terms_in,
    transform,
)


@document(text=str)
@hashed_once
@dataclass(frozen=True)
class Equation:
    """`name[left] = right`, with every sum explicit in `Contraction.summed`."""

    name: str
    left: tuple[str | tuple[str, ...], ...]
    right: Expression
    place: Place | None = field(default=None, compare=False, repr=False)

    @functools.cached_property
    def parts(self) -> tuple[Expression, ...]:
        """The right side and all its subexpressions; cached because most rewrites use them."""
        return subexpressions(self.right)

    @functools.cached_property
    def called(self) -> tuple[Call, ...]:
        """Every call of a function, in the order of the text."""
        return tuple(part for part in self.parts if isinstance(part, Call))

    @functools.cached_property
    def references(self) -> tuple[Ref, ...]:
        """Every tensor read, in the order of the text."""
        return tuple(part for part in self.parts if isinstance(part, Ref))

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the tensors that it reads, in the order of the text."""
        return tuple([ref.name for ref in self.references])

    reads = operands

    @functools.cached_property
    def axes(self) -> frozenset[str]:
        """The names of its axes: those on the left, and those that index the tensors it reads."""
        read = (axis for ref in self.references for axis in axes_of_index(ref.index))
        return frozenset((*axes_of_index(self.left), *read))

    @property
    def defines(self) -> tuple[str, ...]:
        """The tensor that it defines."""
        return (self.name,)

    def __str__(self) -> str:
        return self._text

    @functools.cached_property
    def _text(self) -> str:
        target = f"{self.name}[{show_index(self.left)}]" if self.left else self.name
        bare = replace(self, right=without_sums(self.right))
        try:
            implied = einstein(bare).right == self.right and not any(summed_alone(bare))
        except EquationError:
            implied = False
        written = {*axes_of_index(self.left), *_written(bare.right, {})}
        implied = implied and written.issuperset(free_axes(bare.right))  # else a name may mean a size
        return f"{target} = {show(bare.right if implied else self.right)}"


@dataclass(frozen=True)
class Opening(Equation):
    """The start of a recurrent tensor. The left has that tensor's axes; the right side may lack some of them."""


@dataclass(frozen=True)
class Declaration:
    """A line that declares the kind of a tensor, or the size of an axis."""

    name: str
    kind: str  # "input", "parameter", "constant", "output" or "size"
    dims: tuple[tuple[tuple[str, Any], ...], ...] | None = None  # (axis, size or None) of each dimension
    options: tuple[tuple[str, float], ...] = ()
    size: Any = None
    place: Place | None = field(default=None, compare=False, repr=False)
    defines: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Definition:
    """`def attention(x):` and its indented lines: a block that calls refer to."""

    name: str
    inputs: tuple[str, ...]
    statements: tuple[Statement, ...]
    place: Place | None = field(default=None, compare=False, repr=False)
    defines: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Calling:
    """`y = attention(x, scope='blocks.0')`: a block applied to tensors.

    Attributes:
        along: for a block that computes one position after another, `h[b,t,p] = cell(x[b,t,i], h[b,t-1,p])`: the
            axis, and the brackets of the results and of the operands (empty for a bare name).
    """

    results: tuple[str, ...]
    block: str
    operands: tuple[str, ...]
    scope: str
    along: AlongAxis | None = None
    place: Place | None = field(default=None, compare=False, repr=False)

    @property
    def defines(self) -> tuple[str, ...]:
        """The tensors that it defines."""
        return self.results

    @property
    def lefts(self) -> Iterator[Equation]:
        """Equations with the results on the left, if the call gives their axes."""
        for name, left in zip(self.results, self.along.left, strict=True) if self.along else ():
            yield Equation(name, left, Literal(0), self.place)


@dataclass(frozen=True)
class AlongAxis:
    """The axis that a block is called along, and the brackets of its results and its operands."""

    axis: str
    left: tuple[tuple[str | tuple[str, ...], ...], ...]
    read: tuple[tuple[Index, ...], ...]


Statement: TypeAlias = "Equation | Declaration | Definition | Calling"


def spoken_sizes(equation: Equation) -> Iterator[str]:
    """The sizes that an equation names and that belong to none of its axes."""
    for part in equation.parts:
        if isinstance(part, Size) and part.axis not in equation.axes:
            yield part.axis


def sizes_in_brackets(equation: Equation) -> set[str]:
    """The sizes inside of positions: `s` in `x[2*p + s]`, where `s` is no axis of the equation."""
    parts = (part for entry in _positions(equation.right) for part in subexpressions(entry))
    return {part.axis for part in parts if isinstance(part, Size)}


def _positions(expression: Expression) -> Iterator[Expression]:
    """The expressions of positions in the brackets of tensors."""
    return (entry for ref in references(expression) for entry in ref.index if is_computed_index(entry))


def renamed_axes(equation: Equation, names: Mapping[str, str]) -> Equation:
    """The equation with axes renamed; the new names must occur nowhere in it."""
    if not set(names) & (occurring(equation.right) | set(axes_of_index(equation.left))):
        return equation
    return replace(equation, left=renamed_index(equation.left, names), right=relabel(equation.right, names))


# ---------------------------------------------------------------------------- the Einstein rule


@told_in("sums")
def einstein(equation: Equation, guessed: Collection[str] = ()) -> Equation:
    """Writes out the sums that the equation implies.

    In a product, an axis that is not kept is summed in the innermost product that holds every
    occurrence of it. Each term of a sum is treated on its own. A lone tensor may be summed too.

    Args:
        equation: an equation whose bare names are resolved to tensors with axes.
        guessed: tensors whose axes are known only from the line that first reads them. To sum
            an axis that only their bare name has is an error.

    Raises:
        EquationError: an axis on the left is unknown; or one on the right occurs only inside a function,
            so that no product sums it; or two products could sum it, inside a factor and outside.
    """
    kept = axes_of_index(equation.left)
    for ref, (axis, *_) in axes_read_once(equation.right, frozenset(kept)) if guessed else ():
        if ref.name in guessed and ref.place is not None and ref.place.text == ref.name:
            raise EquationError(
                f"'{ref.name}' without brackets is {show(ref)}, as it was first read, and '{axis}' is neither"
                " on the left nor in another factor",
                ref.place,
                f"write {ref.name}[…] with the axes you mean, or {show(ref)} to sum '{axis}'",
            )
    try:
        right = sum_out(equation.right, frozenset(kept), True)
    except EquationError as error:
        if kept:
            raise
        fix = f"{error.fix}; '{equation.name}' without brackets is a single number"
        raise EquationError(error.message, error.place, fix, error.see) from None
    lost = next((axis for axis in kept if axis not in free_axes(right)), None)
    if lost is not None:
        raise _nowhere(equation, kept, lost)
    return replace(equation, right=right)


def _nowhere(equation: Equation, kept: Collection[str], axis: str) -> EquationError:
    """The error that the right side of an equation lacks an axis of the left."""
    known = free_axes(equation.right)
    others = [name for name in known if name not in kept] or list(known)
    fix = f"{near(axis, others)}the right side has {', '.join(others) or 'no axes'}"
    fix += f"; to copy a value along '{axis}', write repeat[{axis}](…)" if axis != ELLIPSIS else ""
    fix += "" if known else f", and for its positions index({axis})"
    return EquationError(
        f"axis '{axis}' is on the left but nowhere on the right", locate(equation.place, axis), fix
    )


def summed_alone(equation: Equation) -> Iterator[tuple[Ref, tuple[str, ...]]]:
    """Likely mistakes: tensors with axes that the rule sums and nothing else has. A lone tensor is no mistake.

    Args:
        equation: an equation as `einstein` takes it.
    """
    factors = equation.right.factors if isinstance(equation.right, Contraction) else (equation.right,)
    tensors = [each for each in factors if not is_scalar(each) and not _is_place(each)]
    if len(tensors) > 1 or not all(isinstance(each, Ref) for each in tensors):
        told = {part.axis for part in equation.parts if isinstance(part, Size)}  # `/ n` names the axis
        told |= {ref.name for ref in equation.references if not ref.index}  # which may be sizes
        yield from axes_read_once(equation.right, told.union(axes_of_index(equation.left)), strict=False)


def _is_place(factor: Expression) -> bool:
    """Whether a factor is 1 at one fixed position of an axis and 0 elsewhere, as additions use."""
    selects = isinstance(factor, Call) and bool(FUNCTIONS[factor.function].selects)
    return selects and all(map(is_scalar, parts_of(factor)))


# ---------------------------------------------------------------------------- bare names


@told_in("functions")
def resolve(
    expression: Expression,
    definitions: Mapping[str, tuple[Index, ...]],
    is_size: Callable[[str], bool],
    kept: Iterable[str] = (),
) -> Expression:
    """Resolves bare names: each is a tensor with the axes it was defined with, or a size.

    In brackets, the name of an axis of the equation is the position along it: `x[2*p + u]` is read at
    `2*index(p) + index(u)`. A name there that is no such axis, no tensor and no size is an error.

    Args:
        expression: the right side of an equation.
        definitions: the tensors that a bare name may mean, each with the index to read it with.
        is_size: whether a name is that of a size.
        kept: the axes on the left.
    """

    def visit(part: Expression, inside: Ref | None) -> Expression:
        match part:
            case Ref(name, ()) if inside is None or name not in axes:
                if name in definitions:
                    return replace(part, index=definitions[name])
                if is_size(name):
                    return Size(name, part.place)
                if inside is not None:
                    raise _neither(name, part.place, inside, axes)
                return part
            case Ref(name, ()):
                return Call(INDEX.name, (), (name,), place=part.place)
        around = part if isinstance(part, Ref) else inside
        return transform(part, lambda each: visit(each, around))

    axes = {*kept, *_written(expression, definitions)}
    resolved = visit(expression, None)
    for call in calls_in(resolved):
        _check_call(call, axes)
    _check_placed(resolved)
    return resolved


def _neither(name: str, place: Place | None, ref: Ref, axes: Collection[str]) -> EquationError:
    """The error for a name in brackets of a tensor that is no axis of the equation and no size."""
    fix = f"give {name}=…; or say what is {name} long, as in inputs='x[…,{name}]'"
    if any(_is_distance(entry, axes) for entry in ref.index):
        index = [f"m: 2*{name} - 1" if _is_distance(entry, axes) else entry for entry in ref.index]
        fix += f"; or declare the table of distances, {ref.name}[{show_index(tuple(index))}]: parameter"
    fix += f"; or write sum[{name}](…) if it is an axis"
    return EquationError(f"'{name}' is neither an axis of this equation nor a size", place, fix, "axes")


def _is_distance(entry: Index, axes: Collection[str]) -> bool:
    """Whether an entry of brackets, as it was parsed, is the difference of two axes: `j - i + n - 1`."""
    terms = terms_in(entry) if isinstance(entry, Call) else ()
    having = [term for term in terms if any(each.name in axes for each in references(term))]
    return len(having) > 1 and any(
        isinstance(term, Contraction) and term.factors[0] == Literal(-1) for term in having
    )


_COMPARISONS = frozenset(SIGNS[sign] for sign in ("==", "!=", "<", "<=", ">", ">="))


def _check_call(call: Call, axes: Collection[str]) -> None:
    """Raises an error for `where(s <= t, …)`, which compares two sizes where positions were meant, and for an option
    whose value is no number."""
    if call.function in _COMPARISONS and all(map(is_scalar, call.arguments)):
        sides = (
            [each.axis for each in subexpressions(side) if isinstance(each, Size)] for side in call.arguments
        )
        first, second = (next(iter(sizes), None) for sizes in sides)
        if first in axes and second in axes:
            raise EquationError(
                f"this compares the sizes of '{first}' and '{second}', not positions along them",
                call.place,
                f"write index({first}) and index({second}) for the positions",
            )
    for name, value in ((name, value) for name, values in call.options for value in values):
        if not is_scalar(value):
            message, place = f"{name}= takes a number, not a tensor", value.place or call.place
            if is_written(call, SLICES):
                message, place = "the bounds of a slice are integers and sizes, not tensors", call.place
            raise EquationError(message, place, "use integers, or the names of axes for their sizes")


@told_in("axes")
def _check_placed(expression: Expression) -> None:
    """Raises an error for `x[t + s] * k[n - index(s)]`: `s` is a size where a position was meant."""
    entries = [*_positions(expression)]
    placed = set[str]().union(*map(placed_axes, entries))
    for ref in references(expression) if entries else ():
        for computed in filter(is_computed_index, ref.index):
            _doubt_spelling(ref, computed)
    for entry, each in ((one, part) for one in entries for part in subexpressions(one)):
        if isinstance(each, Size) and each.axis in placed - placed_axes(entry):
            raise EquationError(
                f"'{each.axis}' is the size of the axis here, and index({each.axis}) elsewhere is the position",
                each.place,
                f"write index({each.axis}) here too, or give the size another name",
            )


def _doubt_spelling(ref: Ref, entry: Expression) -> None:
    """Warns of a bare name in brackets beside `index(…)`: it is a position too, where a size may be meant."""
    found = [
        part for part in _outside_brackets(entry) if isinstance(part, Call) and part.function == INDEX.name
    ]
    bare = [each for each in found if each.place is not None and each.place.text == each.axes[0]]
    if bare and len(bare) < len(found):
        (name,) = bare[0].axes
        warn(
            TensornetWarning(
                f"'{name}' in the brackets of '{ref.name}' is a position, the same as index({name})",
                bare[0].place,
                f"write index({name}) if that is meant; the size of the axis is '{name}' outside of brackets: if that"
                f" is meant, compute the positions in a line before, at[…] = … {name} …, and read {ref.name}[at[…]]",
            )
        )


def _outside_brackets(part: Expression) -> Iterator[Expression]:
    """The parts of an expression that are not in the brackets of a tensor."""
    yield part
    for each in () if isinstance(part, Ref) else parts_of(part):
        yield from _outside_brackets(each)


def _written(
    expression: Expression, definitions: Mapping[str, tuple[Index, ...]], inside: bool = False
) -> set[str]:
    """The axes that an expression names explicitly: in brackets, alone or in composites, and in functions."""
    found = set[str]()
    match expression:
        case Ref(name, ()):
            found.update(() if inside else axes_of_index(definitions.get(name, ())))
        case Ref():
            found.update(plain_axes(expression))
        case Contraction(_, summed):
            found.update(summed)
        case Call(INDEX.name) if inside:
            return found
        case Call(_, _, axes):
            found.update(axes, option_axes(expression))
    for part in parts_of(expression):
        found |= _written(part, definitions, inside or isinstance(expression, Ref))
    return found
