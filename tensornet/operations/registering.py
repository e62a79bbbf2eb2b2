"""Functions of the user's own: `register`, and how they travel to another process."""

from __future__ import annotations

import ast
import functools
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import BackendError, EquationError
from ..sizes import is_name
from .functions import FUNCTIONS, RESERVED
from .record import Function, Meaning

__all__ = ["pack", "register", "unpack"]


def register(
    name: str,
    *,
    over_axis: bool = False,
    arity: int = 1,
    derivative: str | Sequence[str] = (),
    computes: str = "",
    **backends: Callable[..., Any],
) -> None:
    """Adds a function of your own to the equation language, for every later equation; or a kernel to the planner.

    A pointwise function is called with arrays aligned to one another; with `over_axis=True` it
    is called as `f(array, axis)` and keeps the shape, written `name[j](x)`.

    A kernel `computes` an equation, and runs wherever a program says the same, in any order and in as many
    equations. Each axis of the equation stands for all axes of the program that occur in the same of its
    tensors, for one 1 long where there is none. The kernel is called with the tensors in the order in which
    the equation names them first, each with a dimension for each axis that is written, and with the
    numbers, which are written as names without axes, by these names; it returns an array of the left side.

    Args:
        name: how equations call it; a Python name.
        over_axis: whether it runs along one axis instead of element by element.
        arity: how many arrays a pointwise function takes.
        derivative: for each operand of a pointwise function the gradient that it gets, in the equation
            language: of the operands `a`, `b`, …, the result `y` and the gradient `g` that comes in.
        computes: the equation of a kernel, `"y[b,i] = exp(scale * x[b,i]) * w[i]"`.
        **backends: the implementation for each backend, as `numpy=...`, `torch=...`, `cupy=...`.

    Raises:
        EquationError: the name is not a Python name or belongs to the language, the arity is no
            number of arrays, an implementation is missing or cannot be called, the derivative is no
            text for each operand, or what it computes is no equation.

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
    if not isinstance(arity, int) or isinstance(arity, bool) or arity < 1:
        raise EquationError(f"the arity of '{name}' is {arity!r}", fix="give how many arrays it takes")
    texts = (derivative,) if isinstance(derivative, str) else tuple(derivative)
    if texts and (over_axis or len(texts) != arity or not all(map(_is_expression, texts))):
        fix = "give an expression for each operand of a pointwise function, as '3 * g * a ** 2'"
        raise EquationError(f"the derivative of '{name}' is {derivative!r}", fix=fix)
    if computes:
        FUNCTIONS[name] = _kernel(name, computes, tuple(backends.items()))
        return
    FUNCTIONS[name] = Function(
        name,
        "registered by the user",
        "kept" if over_axis else "none",
        (arity, arity),
        derivative=texts,
        implementations=tuple(backends.items()),
    )


def _kernel(
    name: str, computes: str, implementations: tuple[tuple[str, Callable[..., Any]], ...]
) -> Function:
    """The record of a kernel; its names without axes are numbers."""
    left, _, right = computes.partition("=") if isinstance(computes, str) else ("", "", "")
    if not _is_expression(left.strip()) or not _is_expression(right.strip()):
        raise EquationError(
            f"what '{name}' computes is {computes!r}",
            fix="give an equation, as 'y[b,i] = exp(x[b,i]) * w[i]'",
        )
    tree = ast.parse(right.strip(), mode="eval")
    within = {id(part.value) for part in ast.walk(tree) if isinstance(part, ast.Subscript)}
    within |= {
        id(part) for sub in ast.walk(tree) if isinstance(sub, ast.Subscript) for part in ast.walk(sub.slice)
    }
    within |= {id(part.func) for part in ast.walk(tree) if isinstance(part, ast.Call)}
    names = dict.fromkeys(
        part.id for part in ast.walk(tree) if isinstance(part, ast.Name) and id(part) not in within
    )
    numbers = tuple((each, 0.0) for each in names if each not in RESERVED)
    return Function(
        name,
        "registered by the user",
        "removed",
        (1, 10**6),
        options=numbers,
        yields="real",
        means=(Meaning(computes),),
        implementations=implementations,
    )


def _is_expression(text: Any) -> bool:
    """Whether Python's grammar, which the language shares, reads a text as one expression."""
    try:
        return isinstance(text, str) and bool(ast.parse(text, mode="eval"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


# ---------------------------------------------------------------------------- to another process


@dataclass(frozen=True)
class Packed:
    """A registered function on its way to another process; its implementations by name, as pickle has them."""

    row: Function
    implementations: tuple[tuple[str, bytes], ...]


def pack(names: Iterable[str]) -> tuple[Packed, ...]:
    """Those of the functions that the user registered, to be pickled."""
    rows = [FUNCTIONS[name] for name in dict.fromkeys(names)]
    return tuple(
        Packed(
            replace(row, implementations=()), tuple((name, _by_name(f)) for name, f in row.implementations)
        )
        for row in rows
        if row.implementations
    )


def unpack(packed: Iterable[Packed]) -> None:
    """Registers what was packed, where it is not registered already."""
    for each in packed:
        name = each.row.name
        found = tuple((backend, _found(name, data)) for backend, data in each.implementations)
        FUNCTIONS.setdefault(name, replace(each.row, implementations=found))


def _by_name(function: Callable[..., Any]) -> bytes:
    """A pickle of a function that can be imported; nothing for another, such as a lambda."""
    try:
        return pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError):
        return b""


def _found(name: str, data: bytes) -> Callable[..., Any]:
    """The function, where it can be imported here; else one that says so when it is called."""
    try:
        function: Callable[..., Any] = pickle.loads(data)
    except (ImportError, AttributeError, EOFError):
        return functools.partial(_left_behind, name)
    return function


def _left_behind(name: str, *_: Any) -> Any:
    raise BackendError(
        f"'{name}' was registered in another process, and its function cannot be imported in this one",
        fix=f"call tensornet.register('{name}', …) here first, or define the function at the top of a module",
    )
