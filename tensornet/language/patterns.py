"""Patterns: equations with wildcards, matched to select kernels.

A tensor of a pattern matches any part of a program, and a name without axes matches a number. An axis matches all
axes that occur in the same tensors: `b` may match a batch, or a batch, windows and heads, or nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ..errors import EquationError
from ..ops.record import KernelEquation
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
    placed_axes,
    product_of,
    references,
    subexpressions,
)
from .parser import parse_block, rule_of


@dataclass(frozen=True)
class Pattern:
    """The equation that a kernel computes, parsed for matching.

    Attributes:
        expression: the right side of the equation, in canonical form. `sized` names the sizes of axes in it.
        functions: the functions that must occur in a matching expression.
        operands: the operands of the kernel.
        holders: for each axis, the tensors that have it, among those that may lack no axes.
        left: the axes of the result.
        partial: the tensors that may lack axes, each with the axes that it may have.
        axes: the axes that the kernel is called with.
        placed: the axes that the kernel is called with or whose positions it uses. These may occur in the same
            tensors as another axis.
        complex: whether all its functions take complex numbers.
    """

    expression: Expression
    functions: frozenset[str]
    operands: tuple[Expression, ...]
    holders: Mapping[str, frozenset[str]]
    left: tuple[str, ...]
    axes: tuple[str, ...]
    partial: Mapping[str, tuple[str, ...]]
    placed: frozenset[str]
    complex: bool

    @functools.cached_property
    def outermost(self) -> frozenset[str]:
        """The functions to which no other function is applied."""
        form = self.expression
        parts = form.factors if isinstance(form, Contraction) else (form,)
        called = {each.function for each in parts if isinstance(each, Call)}
        return self.functions.intersection(called)

    @functools.cached_property
    def keeps_numbers(self) -> bool:
        """Whether numbers in a matched outermost product stay outside the kernel, as its own product has none."""
        factors = self.expression.factors if isinstance(self.expression, Contraction) else ()
        return not any(is_scalar(each) or (isinstance(each, Ref) and not each.index) for each in factors)

    @functools.cached_property
    def held_by(self) -> Mapping[frozenset[str], str]:
        """The axis that exactly some tensors have; one whose positions do not matter, if there is one."""
        by_place = sorted(self.holders.items(), key=lambda each: each[0] not in self.placed)
        return {holders: axis for axis, holders in by_place}

    @property
    def tensors(self) -> tuple[Ref, ...]:
        """The operands that are plain tensors."""
        return tuple(each for each in self.operands if isinstance(each, Ref))

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names that stand for numbers."""
        return tuple(dict.fromkeys(ref.name for ref in references(self.expression) if not ref.index))

    def groups(self, axes: Iterable[Sequence[str]]) -> dict[str, tuple[str, ...]]:
        """The program's axes for each axis of the pattern, from the axes that its operands match, in order."""
        found = groups_of(self, {ref.name: each for ref, each in zip(self.tensors, axes, strict=True)})
        assert found is not None
        return found


@functools.lru_cache(maxsize=256)
def pattern_of(meaning: KernelEquation) -> Pattern:
    """The pattern of an equation that a kernel computes.

    Raises:
        EquationError: the text is no equation, or one that cannot be matched.
    """
    match parse_block(meaning.text):
        case (Equation() as equation,):
            right = einstein(equation).right
        case _:
            raise EquationError("this is not one equation", fix="write one, as 'y[b,i] = exp(x[b,i]) * w[i]'")
    tensors = [ref for ref in references(right) if ref.index]
    for message, fix in _faults(equation, right, tensors):
        raise EquationError(message, equation.place, fix)
    whole = [ref for ref in tensors if ref.name not in meaning.partial]
    holders = {
        axis: frozenset(ref.name for ref in whole if axis in ref.index)
        for axis in dict.fromkeys(axis for ref in tensors for axis in axes_of_index(ref.index))
    }
    placed = frozenset(meaning.axes) | placed_axes(right)
    apart = [held for axis, held in holders.items() if axis not in placed]
    if len(set(apart)) < len(apart):
        message = "two axes occur in the same tensors, so a match cannot tell them apart"
        raise EquationError(message, equation.place, "write one axis for both: it matches any number of axes")
    read = tuple(map(rule_of, meaning.operands)) or tuple(dict.fromkeys(tensors))
    left = axes_of_index(equation.left)
    axes = meaning.axes or tuple(axis for axis in holders if axis not in left)
    partial = {ref.name: axes_of_index(ref.index) for ref in tensors if ref.name in meaning.partial}
    form = CanonicalForms(lambda call: product_of([Size(sized(axis)) for axis in call.axes])).of(right)
    called = {part.function for part in subexpressions(right) if isinstance(part, Call)}
    is_complex = all(FUNCTIONS[each].complex == "taken" for each in called)
    return Pattern(form, _functions(form), read, holders, left, axes, partial, placed, is_complex)


def _functions(form: Expression) -> frozenset[str]:
    """The functions of tensors in a canonical form; `power` only if some power is no product of equal factors."""
    called, roots = set[str](), False
    for part in subexpressions(form):
        if isinstance(part, Call) and not is_scalar(part):
            called.add(part.function)
        if isinstance(part, Call) and part.function == "power":
            value = value_of(part.arguments[1])
            roots = roots or not (isinstance(value, int) and value > 0)
    return frozenset(called if roots else called - {"power"})


def sized(axis: str) -> str:
    """The name that a pattern uses for the size of an axis; no program has such a name."""
    return f"#{axis}"


def _faults(equation: Equation, right: Expression, tensors: Sequence[Ref]) -> Iterator[tuple[str, str]]:
    """The reasons why an equation cannot be matched with programs, each with what to do instead."""
    held = {axis for ref in tensors for axis in axes_of_index(ref.index)}
    for index in (equation.left, *(ref.index for ref in tensors)):
        if not all(isinstance(entry, str) for entry in index) or len(set(index)) < len(index):
            fix = "leave positions out: an axis matches any number of axes, and a tensor also reads at positions"
            yield "in a kernel's equation, brackets take axis names only, each once", fix
    for part in subexpressions(right):
        match part:
            case Size(axis) | Ref(axis, ()) if axis in held:
                yield f"the size of '{axis}' differs between programs", "write a scalar name in its place"
            case Contraction(factors):
                named = [each for each in factors if _is_of_names(each)]
                if named and (
                    any(map(is_scalar, factors)) or len(named) > 1 or not isinstance(named[0], Ref)
                ):
                    message = "a product in a kernel's equation takes one scalar at most, as a bare name"
                    yield message, "write one name for all scalar factors"
            case Call("add", terms) if sum(isinstance(term, Ref) and not term.index for term in terms) > 1:
                yield "two scalar names in one sum cannot be told apart", "write one name for both"
            case Call(name, _, axes):
                if FUNCTIONS[name].axes in ("exchanged", "joined", "moved") or not held.issuperset(axes):
                    message = f"'{name}' works on one axis, but an axis of a kernel matches any number"
                    yield message, "write it outside the kernel"


def _is_of_names(expression: Expression) -> bool:
    """Whether an expression reads no tensors with axes, but bare names, which stand for numbers."""
    named = [*references(expression)]
    return bool(named) and not any(ref.index for ref in named)


def groups_of(
    pattern: Pattern,
    axes: Mapping[str, Sequence[str]],
    told: Mapping[str, frozenset[str]] = MappingProxyType({}),
) -> dict[str, tuple[str, ...]] | None:
    """The program's axes that match each axis of a pattern; None if one of them matches none.

    Args:
        pattern: the pattern.
        axes: for each tensor of the pattern, the axes of the expression that it matches.
        told: for axes whose positions the pattern uses, the axes whose positions the program uses there.
    """
    groups: dict[str, tuple[str, ...]] = dict.fromkeys(pattern.holders, ())
    holders: dict[str, list[str]] = {}
    for name in (name for name in axes if name not in pattern.partial):
        for axis in axes[name]:
            holders.setdefault(axis, []).append(name)
    for axis, names in holders.items():
        held = frozenset(names)
        named = (each for each, own in told.items() if axis in own and pattern.holders[each] == held)
        of_axis = next(named, pattern.held_by.get(held))
        if of_axis is None:
            return None
        groups[of_axis] = (*groups[of_axis], axis)
    for name, own in pattern.partial.items():
        if not {axis for each in own for axis in groups[each]}.issuperset(axes.get(name, ())):
            return None
    return groups
