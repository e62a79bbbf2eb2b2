"""Patterns: equations with wildcards, matched to select kernels.

The tensors of a pattern stand for any part of a program, names without axes for numbers, and each axis for all
axes that occur in the same tensors: one for `b` may be a batch, or a batch, windows and heads, or nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ..errors import EquationError
from ..ops.record import KernelEquation
from ..ops.structure import INDEX
from ..ops.table import FUNCTIONS
from .canonical import CanonicalForms, value_of
from .equation import Equation, einstein
from .expression import (
    Call,
    Contraction,
    Expression,
    Ref,
    Size,
    axes_of_index,
    is_scalar,
    product_of,
    references,
    subexpressions,
)
from .parser import parse_block

__all__ = ["Pattern", "groups_of", "pattern_of", "sized"]


@dataclass(frozen=True)
class Pattern:
    """What a kernel computes, read.

    Attributes:
        expression: the right side of its equation, in canonical form; the size of an axis is called as `sized` says.
        functions: the functions that must occur in what it is.
        operands: what the kernel takes.
        holders: the tensors that hold each axis, of those that have all of theirs.
        left: the axes of the result.
        partial: the tensors that may lack axes, with those that they may have.
        axes: those that the kernel is called with.
        placed: the axes that what it says tells apart from others, whichever tensors have them.
        repeats: whether it says something more than once, which a program computes once.
        complex: whether it says what it does of complex numbers too.
    """

    expression: Expression
    functions: frozenset[str]
    operands: tuple[Expression, ...]
    holders: Mapping[str, frozenset[str]]
    left: tuple[str, ...]
    axes: tuple[str, ...]
    partial: Mapping[str, tuple[str, ...]]
    placed: frozenset[str]
    repeats: bool
    complex: bool

    @functools.cached_property
    def keeps_numbers(self) -> bool:
        """Whether numbers of the outermost product stand beside it, for it has none itself."""
        factors = self.expression.factors if isinstance(self.expression, Contraction) else ()
        return not any(is_scalar(each) or (isinstance(each, Ref) and not each.index) for each in factors)

    @property
    def tensors(self) -> tuple[Ref, ...]:
        """The tensors that a kernel takes as they are."""
        return tuple(each for each in self.operands if isinstance(each, Ref))

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of the numbers."""
        return tuple(dict.fromkeys(ref.name for ref in references(self.expression) if not ref.index))

    def groups(self, axes: Iterable[Sequence[str]]) -> dict[str, tuple[str, ...]]:
        """The axes of a program for each of its own, of what its operands stand for, in order."""
        found = groups_of(self, {ref.name: each for ref, each in zip(self.tensors, axes, strict=True)})
        assert found is not None
        return found


@functools.lru_cache(maxsize=256)
def pattern_of(meaning: KernelEquation) -> Pattern:
    """What a kernel computes, read.

    Raises:
        EquationError: it is no equation, or one that cannot be looked for.
    """
    equation = _equation(meaning.text)
    right = einstein(equation).right
    tensors = [ref for ref in references(right) if ref.index]
    _check(equation, right, tensors)
    whole = [ref for ref in tensors if ref.name not in meaning.partial]
    holders = {
        axis: frozenset(ref.name for ref in whole if axis in ref.index)
        for axis in dict.fromkeys(axis for ref in tensors for axis in axes_of_index(ref.index))
    }
    placed = frozenset(meaning.axes).union(
        axis
        for part in subexpressions(right)
        if isinstance(part, Call) and part.function == INDEX.name
        for axis in part.axes
    )
    apart = [held for axis, held in holders.items() if axis not in placed]
    if len(set(apart)) < len(apart):
        raise EquationError(
            "two axes occur in the same tensors, so that nothing tells them apart",
            equation.place,
            "write one for both: each axis stands for any number of them",
        )
    read = tuple(_equation(f"y = {each}").right for each in meaning.operands) or tuple(dict.fromkeys(tensors))
    left = axes_of_index(equation.left)
    axes = meaning.axes or tuple(axis for axis in holders if axis not in left)
    partial = {ref.name: axes_of_index(ref.index) for ref in tensors if ref.name in meaning.partial}
    form = CanonicalForms(lambda call: product_of([Size(sized(axis)) for axis in call.axes])).of(right)
    called = {part.function for part in subexpressions(right) if isinstance(part, Call)}
    is_complex = all(FUNCTIONS[each].complex == "taken" for each in called)
    return Pattern(
        form, _functions(form), read, holders, left, axes, partial, placed, _repeats(form), is_complex
    )


def _functions(form: Expression) -> frozenset[str]:
    """The functions of tensors in a canonical form; powers among them where products make none of these."""
    parts = [*subexpressions(form)]
    called = {part.function for part in parts if isinstance(part, Call) and not is_scalar(part)}
    return frozenset(called if any(map(_is_root, parts)) else called - {"power"})


def _is_root(part: Expression) -> bool:
    """Whether a part is a power that no product of equal factors is."""
    match part:
        case Call("power", (_, exponent)):
            value = value_of(exponent)
            return not (isinstance(value, int) and value > 0)
    return False


def sized(axis: str) -> str:
    """What a pattern calls the size of an axis, which no program calls a size."""
    return f"#{axis}"


def _repeats(expression: Expression) -> bool:
    """Whether an expression says something more than once, other than to read a tensor."""
    inside = [
        part for part in subexpressions(expression) if not isinstance(part, Ref) and not is_scalar(part)
    ]
    return len(set(inside)) < len(inside)


def _equation(text: str) -> Equation:
    """The one equation of a text."""
    match parse_block(text):
        case (Equation() as equation,):
            return equation
    raise EquationError("this is not one equation", fix="write one, as 'y[b,i] = exp(x[b,i]) * w[i]'")


def _check(equation: Equation, right: Expression, tensors: Sequence[Ref]) -> None:
    """Looks at whether a program can be compared with an equation, part by part."""
    held = {axis for ref in tensors for axis in axes_of_index(ref.index)}
    for index in (equation.left, *(ref.index for ref in tensors)):
        if not all(isinstance(entry, str) for entry in index) or len(set(index)) < len(index):
            fix = "each stands for any number of axes, and a tensor for what is read at positions"
            raise EquationError("a tensor of a pattern has axes alone, each once", equation.place, fix)
    for part in subexpressions(right):
        for message, fix in _beyond(part, held):
            raise EquationError(message, equation.place, fix)


def _beyond(part: Expression, held: set[str]) -> Iterator[tuple[str, str]]:
    """What a part says that cannot be looked for, and what to do instead."""
    match part:
        case Size(axis) | Ref(axis, ()) if axis in held:
            yield f"the size of '{axis}' says something else in each program", "write a name, for any number"
        case Contraction(factors):
            numbers = [each for each in factors if is_scalar(each) or _speaks_of_numbers(each)]
            named = [each for each in numbers if not is_scalar(each)]
            if named and (len(numbers) > 1 or not isinstance(named[0], Ref)):
                yield "a product holds one number that a name stands for", "write one name for all of them"
        case Call("add", terms):
            if sum(isinstance(term, Ref) and not term.index for term in terms) > 1:
                yield "nothing tells two numbers of a sum apart", "write one name for both"
        case Call(name, _, axes) if FUNCTIONS[name].axes in (
            "exchanged",
            "joined",
            "moved",
        ) or not held.issuperset(axes):
            yield f"'{name}' is of one axis, where a pattern speaks of any number", "leave it to the program"


def _speaks_of_numbers(expression: Expression) -> bool:
    """Whether an expression is made of numbers, some of which are names."""
    named = references(expression)
    return bool(named) and not any(ref.index for ref in named)


def groups_of(
    pattern: Pattern,
    axes: Mapping[str, Sequence[str]],
    told: Mapping[str, frozenset[str]] = MappingProxyType({}),
) -> dict[str, tuple[str, ...]] | None:
    """The axes of a program that stand for each axis of a pattern; nothing if one fits none of them.

    Args:
        pattern: the pattern.
        axes: those of what each of its tensors stands for.
        told: of axes whose positions the pattern speaks of, those whose positions the program does.
    """
    groups: dict[str, tuple[str, ...]] = dict.fromkeys(pattern.holders, ())
    by_place = sorted(pattern.holders.items(), key=lambda each: each[0] not in pattern.placed)
    of = {holders: axis for axis, holders in by_place}
    whole = [name for name in axes if name not in pattern.partial]
    for axis in dict.fromkeys(axis for name in whole for axis in axes[name]):
        held = frozenset(name for name in whole if axis in axes[name])
        named = (each for each, own in told.items() if axis in own and pattern.holders[each] == held)
        of_axis = next(named, of.get(held))
        if of_axis is None:
            return None
        groups[of_axis] = (*groups[of_axis], axis)
    for name, own in pattern.partial.items():
        if not {axis for each in own for axis in groups[each]}.issuperset(axes.get(name, ())):
            return None
    return groups
