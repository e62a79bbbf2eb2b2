"""Patterns: equations with wildcards, matched to select kernels.

A tensor of a pattern matches any part of a program, and a name without axes matches a number. An axis matches all
axes that occur in the same tensors: `b` may match a batch, or a batch, windows and heads, or nothing.

Registration adds a user's functions, and kernels with the patterns that they compute.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from ..errors import EquationError, check_arguments, checked_number, told_in
from ..ops.record import OPERANDS, Function, KernelEquation
from ..ops.table import FUNCTIONS, RESERVED
from ..sizes import is_name
from .canonical import CanonicalForms, value_of
from .equation import Equation, einstein
from .expression import Call, Contraction, Expression, Ref, Size, placed_axes, product_of
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
    def keeps_numbers(self) -> bool:
        """Whether numbers in a matched outermost product stay outside the kernel, as its own product has none."""
        factors = self.expression.factors if isinstance(self.expression, Contraction) else ()
        return not any(each.is_scalar or (isinstance(each, Ref) and not each.index) for each in factors)

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
        return tuple(dict.fromkeys(ref.name for ref in self.expression.references if not ref.index))

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
    tensors = [ref for ref in right.references if ref.index]
    for message, fix in _faults(equation, right, tensors):
        raise EquationError(message, equation.place, fix)
    whole = [ref for ref in tensors if ref.name not in meaning.partial]
    holders = {
        axis: frozenset(ref.name for ref in whole if axis in ref.index)
        for axis in dict.fromkeys(axis for ref in tensors for axis in ref.free_axes)
    }
    placed = frozenset(meaning.axes) | placed_axes(right)
    apart = [held for axis, held in holders.items() if axis not in placed]
    if len(set(apart)) < len(apart):
        message = "two axes occur in the same tensors, so a match cannot tell them apart"
        raise EquationError(message, equation.place, "write one axis for both: it matches any number of axes")
    read = tuple(map(rule_of, meaning.operands)) or tuple(dict.fromkeys(tensors))
    left = equation.kept
    axes = meaning.axes or tuple(axis for axis in holders if axis not in left)
    partial = {ref.name: ref.free_axes for ref in tensors if ref.name in meaning.partial}
    form = CanonicalForms(lambda call: product_of([Size(sized(axis)) for axis in call.axes])).of(right)
    is_complex = all(FUNCTIONS[each.function].complex == "taken" for each in right.calls)
    return Pattern(form, _functions(form), read, holders, left, axes, partial, placed, is_complex)


def _functions(form: Expression) -> frozenset[str]:
    """The functions of tensors in a canonical form; `power` only if some power is no product of equal factors."""
    called, roots = set[str](), False
    for part in form.subexpressions:
        if isinstance(part, Call) and not part.is_scalar:
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
    held = {axis for ref in tensors for axis in ref.free_axes}
    for index in (equation.left, *(ref.index for ref in tensors)):
        if not all(isinstance(entry, str) for entry in index) or len(set(index)) < len(index):
            fix = "leave positions out: an axis matches any number of axes, and a tensor also reads at positions"
            yield "in a kernel's equation, brackets take axis names only, each once", fix
    for part in right.subexpressions:
        match part:
            case Size(axis) | Ref(axis, ()) if axis in held:
                yield f"the size of '{axis}' differs between programs", "write a scalar name in its place"
            case Contraction(factors):
                named = [each for each in factors if _is_of_names(each)]
                if named and (
                    any(each.is_scalar for each in factors) or len(named) > 1 or not isinstance(named[0], Ref)
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
    named = [*expression.references]
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


# ---------------------------------------------------------------------------- registration


@told_in("functions-of-your-own")
@check_arguments
def register(
    name: str,
    *,
    over_axis: bool = False,
    arity: int = 1,
    derivative: str | Sequence[str] = (),
    computes: str = "",
    **backends: Callable[..., Any],
) -> None:
    """Adds a function to the equation language, for every later equation, or a kernel to the planner.

    A pointwise function is called with arrays aligned to one another. With `over_axis=True` it is
    called as `f(array, axis)` and keeps the shape; equations write `name[j](x)`.

    A kernel `computes` an equation. It runs wherever a program computes the same, in any order, in any number
    of equations and in any spelling: `x / sqrt(s)` is `x * s ** -0.5`, and `sum[i](x) / i` is `mean[i](x)`.
    Each axis of the equation matches all axes of the program that occur in the same tensors. If there
    are none, it has size 1. The kernel is called with the tensors in the order in which the equation first
    names them. Each has one dimension for each axis that is written. Names without axes are numbers, and are
    passed by these names. The kernel returns an array of the left side. A tensor that lacks one of its axes,
    or holds integers, does not match.

    Args:
        name: how equations call it; a Python name.
        over_axis: whether it runs along one axis instead of element by element.
        arity: how many arrays a pointwise function takes.
        derivative: for each operand of a pointwise function, its gradient in the equation language. It may
            use the operands `a`, `b`, …, the result `y` and the incoming gradient `g`.
        computes: the equation of a kernel, `"y[b,i] = exp(scale * x[b,i]) * w[i]"`.
        **backends: the implementation for each backend: `numpy=...`, `torch=...`, `jax=...`.

    Raises:
        EquationError: the name is not a Python name or belongs to the language, the arity is no
            positive integer, an implementation is missing or cannot be called, the derivative is not
            one expression for each operand, or `computes` is not an equation that can be matched.

    Example:
        >>> import numpy as np, tensornet as tn
        >>> tn.register("cube", derivative="3 * g * a ** 2", numpy=lambda a: a**3, torch=lambda a: a**3)
        >>> f = tn.compile(tn.layer("y[i] = cube(x[i])", inputs="x"), backend="numpy")
        >>> f({}, np.array([1.0, 2.0]))
        array([1., 8.])
    """
    if not isinstance(name, str) or not is_name(name):
        raise EquationError(f"{name!r} cannot name a function", fix="use letters, digits and '_'")
    if (name in FUNCTIONS and not FUNCTIONS[name].implementations) or name in RESERVED:
        raise EquationError(f"'{name}' belongs to the language", fix="register under another name")
    if not backends:
        raise EquationError(f"'{name}' has no implementation", fix=f"register('{name}', numpy=...)")
    for backend, implementation in backends.items():
        if not callable(implementation):
            fix = f"give a function of arrays of {backend}"
            raise EquationError(f"'{name}' for {backend} is {implementation!r}", fix=fix)
    checked_number(arity, f"the arity of '{name}'", 1, whole=True, fix="give how many arrays it takes")
    texts = (derivative,) if isinstance(derivative, str) else tuple(derivative)
    operands = {*OPERANDS[:arity], "y", "g"}
    fits = not over_axis and len(texts) == arity and all(_is_expression(each, operands) for each in texts)
    if texts and not fits:
        fix = "give an expression for each operand of a pointwise function, as '3 * g * a ** 2'"
        raise EquationError(f"the derivative of '{name}' is {derivative!r}", fix=fix)
    own: dict[str, Any] = {"implementations": tuple(backends.items())}
    if computes:
        FUNCTIONS[name] = _kernel(name, computes, own)
    else:
        axes: Literal["kept", "none"] = "kept" if over_axis else "none"
        FUNCTIONS[name] = Function(name, _FORMULA, axes, (arity, arity), derivative=texts, **own)


_FORMULA = "registered by the user"


def _kernel(name: str, computes: str, own: Mapping[str, Any]) -> Function:
    """The record of a kernel; names without axes in its equation are numbers."""
    what = f"'{name}' has computes={computes!r}"
    if not isinstance(computes, str):
        raise EquationError(what, fix="give an equation, as 'y[b,i] = exp(x[b,i]) * w[i]'")
    meaning = KernelEquation(computes)
    try:
        pattern = pattern_of(meaning)
    except EquationError as error:
        raise EquationError(f"{what}: {error.message}", error.place, error.fix) from None
    if len(set(pattern.holders.values())) < len(pattern.holders):  # it is called with tensors alone
        message = f"{what}: two axes occur in the same tensors, and only index(…) tells them apart"
        raise EquationError(message, fix="pass the positions as a tensor, `p[i]`")
    if any(FUNCTIONS[call.function].trains for call in pattern.expression.calls):
        fix = "write it outside the kernel, which does not know whether it is training"
        raise EquationError(f"{what}, which is random", fix=fix)
    numbers = tuple((number, 0.0) for number in pattern.numbers)
    arity = 1, 10**6
    return Function(
        name, _FORMULA, "removed", arity, options=numbers, yields="real", computes=(meaning,), **own
    )


def _is_expression(text: Any, names: Container[str]) -> bool:
    """Whether Python's grammar, which the language shares, parses a text as one expression of the given names."""
    try:
        parts = list(ast.walk(ast.parse(text, mode="eval"))) if isinstance(text, str) else []
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    called = [part.func for part in parts if isinstance(part, ast.Call)]
    read = [part.id for part in parts if isinstance(part, ast.Name) and part not in called]
    return bool(parts) and all(name in names or name in RESERVED for name in read)
