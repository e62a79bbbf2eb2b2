"""`tensornet.einsum`: a drop-in for `numpy.einsum`, planned once for each equation and shapes."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

from ..errors import EquationError, Place, ShapeError
from ..graph.graph import Graph
from ..graph.layers import layer
from ..language.expression import fresh
from ..protocol import Backend, backend_of
from .executable import Executable

__all__ = ["einsum"]


def einsum(equation: str, *operands: Any, memory_limit: int | None = None) -> Any:
    """Contracts arrays by an equation, in the order that is fastest on their device.

    The equation has compact letters, `"bij,pi->bpj"`, or names apart by spaces with factors apart
    by commas, `"b i j, p i -> b p j"`, where `(h d)` splits or joins an axis. `...` stands for
    leading axes and broadcasts; without `->` the result has the axes that occur once, sorted.
    NumPy's other form, `einsum(a, [0, 1], b, [1, 2], [0, 2])`, works as well.

    Args:
        equation: the equation.
        *operands: arrays of one library, as many as the equation has factors.
        memory_limit: bytes that may be alive at once.

    Returns:
        An array of the operands' library.

    Raises:
        EquationError: the equation cannot be read.
        ShapeError: operands do not fit it.
        BackendError: the operands are of no known library.

    Example:
        >>> import numpy as np, tensornet as tn
        >>> tn.einsum("i j, j -> i", np.eye(2), np.array([1.0, 2.0]))
        array([1., 2.])
    """
    if not isinstance(equation, str):
        equation, operands = _from_lists((equation, *operands))
    if not operands:
        raise EquationError("there are no operands", fix="einsum(equation, array, …)")
    backend = backend_of(operands[0])
    try:
        arrays = [each if hasattr(each, "shape") else backend.asarray(each) for each in operands]
    except ValueError as error:
        raise ShapeError(f"an operand is no array: {error}", fix="pass arrays") from None
    shapes = tuple(tuple(array.shape) for array in arrays)
    try:
        executable = _executable(equation, shapes, backend, memory_limit)
    except TypeError:  # sizes that cannot be hashed, as while a compiler traces
        executable = _executable.__wrapped__(equation, shapes, backend, memory_limit)
    return executable.run(arrays)


@functools.lru_cache(maxsize=512)
def _executable(
    equation: str, shapes: tuple[tuple[int, ...], ...], backend: Backend, memory_limit: int | None
) -> Executable:
    return Executable(graph_of(equation, shapes), backend, memory_limit=memory_limit)


def graph_of(equation: str, shapes: Sequence[tuple[int, ...]]) -> Graph:
    """The graph of an einsum equation at given shapes."""
    left, arrow, right = equation.partition("->")
    factors = [_axes(term, equation) for term in left.split(",")]
    if len(factors) != len(shapes):
        raise ShapeError(
            f"the equation has {len(factors)} factor(s), and {len(shapes)} array(s) are given",
            Place(equation, 1, 0, len(left)),
            "pass one array for each factor",
        )
    lead = _lead(factors, shapes, equation)
    result = _axes(right, equation) if arrow else _implied(factors)
    if "..." in result and not any("..." in factor for factor in factors):
        raise EquationError("'...' is in the result only", Place(equation, 1, equation.rfind("...")))
    sizes = _sizes(factors, shapes, lead, equation)
    texts, declared = [], []
    for number, (factor, shape) in enumerate(zip(factors, shapes, strict=True)):
        index, dims = _index(factor, shape, lead, sizes)
        texts.append(f"op{number}[{','.join(index)}]" if index else f"op{number}")
        declared.append(f"op{number}[{','.join(dims) or '()'}]")
    expanded = [entry for each in result for entry in (lead if each == "..." else (each,))]
    known = {axis for factor in factors for entry in factor for axis in _parts(entry)} | set(lead)
    for entry in expanded:
        for axis in _parts(entry):
            if axis not in known:
                at = max(equation.rfind(axis), 0)
                raise EquationError(
                    f"axis '{axis}' is in no factor", Place(equation, 1, at, len(axis)), "remove it"
                )
    flat = [axis for entry in expanded for axis in _parts(entry)]
    if len(flat) != len(set(flat)):
        twice = next(axis for axis in flat if flat.count(axis) > 1)
        place = Place(equation, 1, max(equation.rfind(twice), 0), len(twice))
        raise EquationError(f"axis '{twice}' is in the result twice", place, "name it once")
    target = f"result[{','.join(_written(entry) for entry in expanded)}]" if expanded else "result"
    line = f"{target} = {' * '.join(texts)}"
    given: dict[str, Any] = {axis: size for axis, size in sizes.items() if _written_in(axis, [line])}
    return layer(line, inputs=declared, **given)


def _axes(term: str, equation: str) -> tuple[Any, ...]:
    """`"b i (h d)"` or `"bij"` as names; a composite is a tuple."""
    text = term.strip()
    spaced = (
        " " in equation.strip().replace(", ", ",").replace(" ->", "->").replace("-> ", "->")
        or "(" in equation
    )
    pattern = r"\.\.\.|\([^()]*\)|[^\W\d]\w*" if spaced else r"\.\.\.|[^\W\d_]"
    found: list[Any] = []
    position = 0
    for match in re.finditer(pattern, text):
        if text[position : match.start()].strip():
            break
        position = match.end()
        piece = match.group()
        found.append(tuple(piece[1:-1].split()) if piece.startswith("(") else piece)
    rest = text[position:].strip()
    bad = rest or next(
        (e for e in found if isinstance(e, tuple) and not all(p.isidentifier() for p in e)), ""
    )
    if bad or found.count("...") > 1:
        at = max(equation.find(rest), 0) if rest else max(equation.find(text), 0)
        raise EquationError(
            f"'{term.strip()}' cannot be read",
            Place(equation, 1, at, max(1, len(rest))),
            "write letters, names, (h d) or ...",
        )
    return tuple(entry for entry in found if entry != ())


def _parts(entry: Any) -> tuple[str, ...]:
    return entry if isinstance(entry, tuple) else (entry,)


def _safe(axis: str) -> str:
    """The axis under a name that Python's grammar takes for one."""
    return f"{axis}_"


def _written(entry: Any) -> str:
    if isinstance(entry, tuple):
        return f"({','.join(_safe(axis) for axis in entry)},)"
    return _safe(entry)


def _written_in(axis: str, texts: Sequence[str]) -> bool:
    return any(re.search(rf"\b{re.escape(axis)}\b", text) for text in texts)


def _implied(factors: Sequence[tuple[Any, ...]]) -> tuple[str, ...]:
    """The axes that occur once, sorted, after `...`."""
    flat = [axis for factor in factors for entry in factor for axis in _parts(entry)]
    once = sorted(axis for axis in flat if axis != "..." and flat.count(axis) == 1)
    return (("...",) if "..." in flat else ()) + tuple(once)


def _lead(
    factors: Sequence[tuple[Any, ...]], shapes: Sequence[tuple[int, ...]], equation: str
) -> tuple[str, ...]:
    """Names for the axes that `...` stands for, as many as the longest needs."""
    longest = 0
    for factor, shape in zip(factors, shapes, strict=True):
        named = len([entry for entry in factor if entry != "..."])
        spare = len(shape) - named
        if spare < 0 or (spare > 0 and "..." not in factor):
            shown = " ".join("(" + " ".join(e) + ")" if isinstance(e, tuple) else e for e in factor)
            raise ShapeError(
                f"'{shown}' names {named} axes, and the array has {len(shape)}: {shape}",
                Place(equation, 1, 0, len(equation)),
            )
        longest = max(longest, spare)
    taken = {axis for factor in factors for entry in factor for axis in _parts(entry)}
    names: list[str] = []
    for number in range(longest):
        names.append(fresh(f"lead{number}", taken | set(names)))
    return tuple(names)


def _expanded(factor: tuple[Any, ...], rank: int, lead: tuple[str, ...]) -> list[Any]:
    spare = rank - len([entry for entry in factor if entry != "..."])
    own = lead[len(lead) - spare :] if spare else ()
    return [entry for each in factor for entry in (own if each == "..." else (each,))]


def _sizes(
    factors: Sequence[tuple[Any, ...]],
    shapes: Sequence[tuple[int, ...]],
    lead: tuple[str, ...],
    equation: str,
) -> dict[str, int]:
    """The size of every axis; leading ones of size 1 give way."""
    sizes: dict[str, int] = {}
    for factor, shape in zip(factors, shapes, strict=True):
        for entry, size in zip(_expanded(factor, len(shape), lead), shape, strict=True):
            if isinstance(entry, tuple):
                continue
            known = sizes.get(_safe(entry))
            if known is None or (entry in lead and known == 1):
                sizes[_safe(entry)] = int(size)
            elif known != size and not (entry in lead and size == 1):
                place = Place(equation, 1, max(equation.find(entry), 0), len(entry))
                raise ShapeError(
                    f"sizes disagree: axis '{entry}' is {known} in one array, and {size} in another",
                    place,
                    "check the shapes",
                )
    return {axis: size for axis, size in sizes.items() if size > 0}


def _index(
    factor: tuple[Any, ...], shape: tuple[int, ...], lead: tuple[str, ...], sizes: dict[str, int]
) -> tuple[list[str], list[str]]:
    """How a factor is read, and its axes as declared; a leading axis that broadcasts is read at 0."""
    index, dims = [], []
    for number, (entry, size) in enumerate(zip(_expanded(factor, len(shape), lead), shape, strict=True)):
        if not isinstance(entry, tuple) and entry in lead and size == 1 and sizes[_safe(entry)] != 1:
            index.append("0")
            dims.append(f"one{number}_:1")
        elif isinstance(entry, tuple):
            index.append(_written(entry))
            dims.append(f"whole{number}_:{size}")
        else:
            index.append(_safe(entry))
            repeated = f"again{number}_" if dims.count(_safe(entry)) else _safe(entry)
            dims.append(
                repeated
                if size > 0 and repeated == _safe(entry)
                else f"{repeated}:{size}"
                if size
                else repeated
            )
    return index, dims


def _from_lists(arguments: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """NumPy's form with lists of numbers, as text."""
    arrays, lists = list(arguments[0::2]), list(arguments[1::2])
    result = arrays.pop() if len(arguments) % 2 else None

    try:
        numbers = sorted(
            {int(axis) for axes in [*lists, result or ()] for axis in axes if axis is not Ellipsis}
        )
        letters = dict(zip(numbers, _LETTERS, strict=False))
        texts = [
            "".join("..." if axis is Ellipsis else letters[int(axis)] for axis in axes)
            for axes in [*lists, result or ()]
        ]
    except (TypeError, ValueError, KeyError):
        fix = f"einsum(a, [0, 1], b, [1, 2], [0, 2]), with at most {len(_LETTERS)} axes"
        raise EquationError("the equation is neither text nor lists of axis numbers", fix=fix) from None
    return ",".join(texts[:-1]) + ("" if result is None else f"->{texts[-1]}"), tuple(arrays)


_LETTERS = [chr(ord("a") + n) for n in range(26)] + [chr(ord("а") + n) for n in range(32)]
"""Latin and then Cyrillic letters, in the order in which Python sorts them."""
