"""Equations: their data types, the Einstein rule, bare names and printing."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

from ..codec import document, hashed_once
from ..errors import EquationError, Place, TensornetWarning, near, told_in, warn
from ..ops.along_axes import STEPS
from ..ops.pointwise import ABS
from ..ops.structure import INDEX, PAD
from ..ops.table import FUNCTIONS, SIGNS
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
    contraction,
    factors_in,
    placed_axes,
    product_of,
    relabel,
    renamed_index,
    show,
    show_index,
    sum_of,
    terms_in,
)

_STEPS, SLICES = frozenset(STEPS.values()), (PAD.name,)


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
        return self.right.subexpressions

    @functools.cached_property
    def called(self) -> tuple[Call, ...]:
        """Every call of a function, in the order of the text."""
        return self.right.calls

    @functools.cached_property
    def references(self) -> tuple[Ref, ...]:
        """Every tensor read, in the order of the text."""
        return self.right.references

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the tensors that it reads, in the order of the text."""
        return tuple([ref.name for ref in self.references])

    reads = operands

    @property
    def kept(self) -> tuple[str, ...]:
        """The axes on its left."""
        return axes_of_index(self.left)

    @functools.cached_property
    def axes(self) -> frozenset[str]:
        """The names of its axes: those on the left, and those that index the tensors it reads."""
        read = (axis for ref in self.references for axis in ref.free_axes)
        return frozenset((*self.kept, *read))

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
        written = {*self.kept, *_written(bare.right, {})}
        implied = implied and written.issuperset(bare.right.free_axes)  # else a name may mean a size
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
    return (size.axis for size in equation.right.sizes if size.axis not in equation.axes)


def sizes_in_brackets(equation: Equation) -> set[str]:
    """The sizes inside of positions: `s` in `x[2*p + s]`, where `s` is no axis of the equation."""
    return {size.axis for entry in _positions(equation.right) for size in entry.sizes}


def _positions(expression: Expression) -> Iterator[Expression]:
    """The expressions of positions in the brackets of tensors."""
    return (entry for ref in expression.references for entry in ref.parts)


def renamed_axes(equation: Equation, names: Mapping[str, str]) -> Equation:
    """The equation with axes renamed; the new names must occur nowhere in it."""
    if not set(names) & (equation.right.occurring | set(equation.kept)):
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
    kept = equation.kept
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
    lost = next((axis for axis in kept if axis not in right.free_axes), None)
    if lost is not None:
        raise _nowhere(equation, kept, lost)
    return replace(equation, right=right)


def _nowhere(equation: Equation, kept: Collection[str], axis: str) -> EquationError:
    """The error that the right side of an equation lacks an axis of the left."""
    known = equation.right.free_axes
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
    tensors = [each for each in factors if not each.is_scalar and not _is_place(each)]
    if len(tensors) > 1 or not all(isinstance(each, Ref) for each in tensors):
        told = {size.axis for size in equation.right.sizes}  # `/ n` names the axis
        told |= {ref.name for ref in equation.references if not ref.index}  # which may be sizes
        yield from axes_read_once(equation.right, told.union(equation.kept), strict=False)


def _is_place(factor: Expression) -> bool:
    """Whether a factor is 1 at one fixed position of an axis and 0 elsewhere, as additions use."""
    selects = isinstance(factor, Call) and bool(FUNCTIONS[factor.function].selects)
    return selects and all(each.is_scalar for each in factor.parts)


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
            found = [[*axes_read_once(term, told, strict)] for term in terms if not term.is_scalar]
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
    holders = Counter(axis for factor in factors for axis in set(factor.free_axes))
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
    lost = tuple(axis for axis in expression.free_axes if axis not in kept)
    if lost and (not direct or ELLIPSIS in lost):
        raise _unsummed(lost[0], expression)
    return contraction((expression,), lost, expression.place)


def _sum_out_product(product: Contraction, kept: frozenset[str], direct: bool) -> Expression:
    summed = set(product.summed)
    holders: dict[str, list[Expression]] = {}
    for factor in product.factors:
        for axis in factor.free_axes:
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
            holding = [factor for factor in factors if axis in factor.free_axes]
            return len(holding) > 1 or (len(holding) == 1 and _sums(holding[0], axis))
        case Call("add", arguments):
            return all(_sums(term, axis) for term in arguments if axis in term.free_axes)
        case Call(_, arguments, axes):
            holding = [argument for argument in arguments if axis in argument.free_axes]
            named = axis in axes or axis in expression.option_axes
            return not named and len(holding) == 1 and _sums(holding[0], axis)
    return False


def _sum_out_call(call: Call, kept: frozenset[str]) -> Expression:
    """Sums inside a call. Only products sum there; an axis shared by arguments belongs to no product."""
    function = FUNCTIONS[call.function]
    held = {axis for argument in call.arguments for axis in argument.free_axes}
    for axis in (*function.runs_over(call.axes), *sorted(call.option_axes)):
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
    for axis in (*call.axes, *sorted(call.option_axes)):
        if axis not in kept and axis not in gone:
            raise _unsummed(axis, call)
    inner = kept | frozenset(call.axes)
    seen: set[str] = set()
    for argument in call.arguments:
        for axis in argument.free_axes:
            if axis in seen and axis not in inner:
                raise _unsummed(axis, call)
        seen.update(argument.free_axes)
    if function.axes == "joined":
        _check_shared(call, inner)
    return replace(call, arguments=tuple(sum_out(argument, inner, False) for argument in call.arguments))


def _check_shared(call: Call, kept: frozenset[str]) -> None:
    """Raises an error for an operand that has another name for the axis along which it is joined."""
    (joined,) = call.axes
    for argument in call.arguments:
        held = argument.free_axes
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
    known = dict.fromkeys(axis for part in expression.parts for axis in part.free_axes)
    fix = f"{near(axis, known)}its axes are {', '.join(known)}" if known else "it has no axes"
    bare = [part.name for part in expression.subexpressions if isinstance(part, Ref) and not part.index]
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

    return expression.rewrite(change)


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
        return part.transform(lambda each: visit(each, around))

    axes = {*kept, *_written(expression, definitions)}
    resolved = visit(expression, None)
    for call in resolved.calls:
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
    having = [term for term in terms if any(each.name in axes for each in term.references)]
    return len(having) > 1 and any(
        isinstance(term, Contraction) and term.factors[0] == Literal(-1) for term in having
    )


_COMPARISONS = frozenset(SIGNS[sign] for sign in ("==", "!=", "<", "<=", ">", ">="))


def _check_call(call: Call, axes: Collection[str]) -> None:
    """Raises an error for `where(s <= t, …)`, which compares sizes where positions were meant, and for an option
    whose value is no number."""
    if call.function in _COMPARISONS and all(each.is_scalar for each in call.arguments):
        sizes = dict.fromkeys(size.axis for size in call.sizes if size.axis in axes)
        first, second, *_ = *sizes, "", ""
        if second:
            raise EquationError(
                f"this compares the sizes of '{first}' and '{second}', not positions along them",
                call.place,
                f"write index({first}) and index({second}) for the positions",
            )
    for name, value in ((name, value) for name, values in call.options for value in values):
        if not value.is_scalar:
            message, place = f"{name}= takes a number, not a tensor", value.place or call.place
            if is_written(call, SLICES):
                message, place = "the bounds of a slice are integers and sizes, not tensors", call.place
            raise EquationError(message, place, "use integers, or the names of axes for their sizes")


def sizes_doubted(equation: Equation) -> Iterator[Size]:
    """Likely mistakes: sizes of axes that are compared with positions, and in |i - j| and (i - j)².

    Args:
        equation: an equation whose bare names are resolved.
    """
    for call in equation.called:
        placed = placed_axes(call)
        inside = {size.axis: size for size in call.sizes}
        sizes = [inside[axis] for axis in inside if axis in equation.axes - placed]
        match call:
            case Call(ABS.name, (Call("add", terms),)) | Call("power", (Call("add", terms), Literal(2))):
                differ = any(isinstance(each, Contraction) and Literal(-1) in each.factors for each in terms)
                doubted = differ and call.is_scalar and len(sizes) > 1
            case _:
                doubted = bool(placed) and call.function in _COMPARISONS and not any(call.references)
        yield from sizes[:1] if doubted else ()


@told_in("axes")
def _check_placed(expression: Expression) -> None:
    """Raises an error for `x[t + s] * k[n - index(s)]`: `s` is a size where a position was meant."""
    entries = [*_positions(expression)]
    placed = set[str]().union(*map(placed_axes, entries))
    for ref in expression.references if entries else ():
        for computed in ref.parts:
            _doubt_spelling(ref, computed)
    for entry, each in ((one, size) for one in entries for size in one.sizes):
        if each.axis in placed - placed_axes(entry):
            raise EquationError(
                f"'{each.axis}' is the size of the axis here, and index({each.axis}) elsewhere is the position",
                each.place,
                f"write index({each.axis}) here too, or give the size another name",
            )


def _doubt_spelling(ref: Ref, entry: Expression) -> None:
    """Warns of a bare name in brackets beside `index(…)`: it is a position too, where a size may be meant."""
    inner = {id(part) for read in entry.references for part in read.subexpressions}
    calls = (each for each in entry.calls if id(each) not in inner)
    found = [each for each in calls if each.function == INDEX.name]
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


def _written(
    expression: Expression, definitions: Mapping[str, tuple[Index, ...]], inside: bool = False
) -> set[str]:
    """The axes that an expression names explicitly: in brackets, alone or in composites, and in functions."""
    found = set[str]()
    match expression:
        case Ref(name, ()):
            found.update(() if inside else axes_of_index(definitions.get(name, ())))
        case Ref():
            found.update(expression.plain_axes)
        case Contraction(_, summed):
            found.update(summed)
        case Call(INDEX.name) if inside:
            return found
        case Call(_, _, axes):
            found.update(axes, expression.option_axes)
    for part in expression.parts:
        found |= _written(part, definitions, inside or isinstance(expression, Ref))
    return found
