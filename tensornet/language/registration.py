"""Registration of user functions and kernels."""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Literal

from ..errors import EquationError, check_arguments, checked_number, told_in
from ..ops.record import OPERANDS, Function, KernelEquation
from ..ops.table import FUNCTIONS, RESERVED
from ..sizes import is_name
from .expression import Call, subexpressions
from .patterns import pattern_of


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
    calls = (part for part in subexpressions(pattern.expression) if isinstance(part, Call))
    if any(FUNCTIONS[call.function].trains for call in calls):
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
