"""Eager einsum: a drop-in for `numpy.einsum`, planned once for each pair of an equation and shapes."""

from __future__ import annotations

import functools
import math
import operator
import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opt_einsum.parser import convert_interleaved_input

from ..display import Memory, in_bytes
from ..errors import ArgumentError, EquationError, Place, ShapeError
from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..graph.shape_inference import Axis
from ..language.equation import Equation
from ..language.expression import ELLIPSIS, Ref, contraction, fresh
from ..ops.record import entry_of
from ..protocol import Backend, CallCache, backend_of
from .executable import Executable

_TAKES = "it takes arrays, which give all sizes, and memory_limit=; tensornet.layer(…) takes sizes, as j=2"


def einsum(
    equation: str,
    *operands: Any,
    memory_limit: Memory | None = None,
    optimize: bool | str = True,
    **named: Any,
) -> Any:
    """Contracts arrays by an equation, in the order that is fastest on their device.

    The equation has compact letters, `"bij,pi->bpj"`, or names separated by spaces and factors separated
    by commas, `"b i j, p i -> b p j"`, where `(h d)` splits or joins an axis. `...` stands for
    leading axes and broadcasts. Without `->` the result has the axes that occur once, sorted.
    NumPy's other form, `einsum(a, [0, 1], b, [1, 2], [0, 2])`, works as well.

    Args:
        equation: the equation.
        *operands: arrays of one library, or numbers, one for each factor of the equation.
        memory_limit: bytes that may be alive at once.
        optimize: True, or the name of a search, in code written for NumPy or opt_einsum: the order is planned anyway.

    Returns:
        An array of the operands' library.

    Raises:
        EquationError: the equation cannot be parsed.
        ShapeError: operands do not fit the equation.
        BackendError: the operands are of no known library.
        ArgumentError: there is an argument that it does not take.

    Example:
        >>> import numpy as np, tensornet as tn
        >>> tn.einsum("i j, j -> i", np.eye(2), np.array([1.0, 2.0]))
        array([1., 2.])
    """
    if named:
        raise ArgumentError(f"einsum has no argument {next(iter(named))}=", fix=_TAKES)
    if not optimize or not isinstance(optimize, bool | str):
        fix = "leave optimize= out; what is to be computed first is a call of its own"
        raise ArgumentError(f"optimize={optimize!r}: the order is planned", fix=fix)
    if not isinstance(equation, str):
        equation, operands = _from_lists((equation, *operands))
    if not operands:
        raise EquationError("there are no operands", fix="einsum(equation, array, …)")
    limit = in_bytes(memory_limit)
    calls = _calls(equation, backend_of(operands[0]), limit)
    try:
        function = calls.get(operands)
    except (AttributeError, RuntimeError, TypeError):  # not all are arrays, or a compiler traces
        function = None
    return _planned(equation, operands, limit, calls) if function is None else function(*operands)


@functools.lru_cache(maxsize=512)
def _calls(equation: str, backend: Backend, memory_limit: int | None) -> CallCache:
    """The functions of an equation, by the signature of the operands."""
    return backend.call_cache(most=32)


def _planned(equation: str, operands: Sequence[Any], limit: int | None, calls: CallCache) -> Any:
    """Contracts operands of a new kind, and remembers the function if it takes nothing besides them."""
    backend, arrays = _arrays(operands)
    shapes = tuple(tuple(array.shape) for array in arrays)
    try:
        executable = _executable(equation, shapes, backend, limit)
    except TypeError:  # sizes that cannot be hashed, as in a compiler's trace
        return _executable.__wrapped__(equation, shapes, backend, limit).run(arrays)
    ready = executable.ready(arrays)
    if not ready.more and all(map(operator.is_, arrays, operands)):
        calls.put(operands, ready.function)
    return executable.run(arrays)


def _arrays(operands: Sequence[Any]) -> tuple[Backend, list[Any]]:
    """The library of the arrays, and all operands as arrays of it; a float takes the floating type of the arrays.

    Raises:
        ShapeError: a list does not form an array.
    """
    given = [each for each in operands if not isinstance(each, int | float | complex | list | tuple)]
    backend = backend_of((given or operands)[0])
    dtypes = [backend.dtype(each) for each in given if backend_of(each) is backend]
    floating = next((dtype for dtype in dtypes if "float" in dtype), None)
    try:
        arrays = [
            each
            if hasattr(each, "shape")
            else backend.asarray(each, floating if isinstance(each, float) else None)
            for each in operands
        ]
    except ValueError as error:
        raise ShapeError(f"an operand is no array: {error}", fix="pass arrays") from None
    return backend, arrays


@functools.lru_cache(maxsize=512)
def _executable(
    equation: str, shapes: tuple[tuple[int, ...], ...], backend: Backend, memory_limit: int | None
) -> Executable:
    return Executable(graph_of(equation, shapes), backend, memory_limit=memory_limit)


def _from_lists(arguments: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """Converts NumPy's form with lists of axis numbers to a text and operands."""
    lists = [*arguments[1::2], *(arguments[-1:] if len(arguments) % 2 else ())]
    try:
        for axis in (axis for axes in lists for axis in axes if axis is not Ellipsis):
            operator.index(axis)
        text, operands = convert_interleaved_input(arguments)
    except (TypeError, KeyError):
        fix = "einsum(a, [0, 1], b, [1, 2], [0, 2]), the numbers of the result among the others"
        raise EquationError("the equation is neither text nor lists of axis numbers", fix=fix) from None
    return text, operands


# ---------------------------------------------------------------------------- text


_COMPACT = re.compile(r"(?P<axes>\.\.\.|[a-zA-Z]|[^\x00-\x7f\s])|(?P<wrong>\S+)")
_SPACED = re.compile(r"(?P<axes>\.\.\.|\((?:\s*[^\W\d]\w*\b)+\s*\)|[^\W\d]\w*)|(?P<wrong>\S+)")
"""The parts of a term. A compact term may have any symbol that opt_einsum substitutes for a number."""


@dataclass(frozen=True)
class _Dim:
    """One dimension of a factor or of the result: its axis, `...`, or the parts of `(h d)`."""

    axes: tuple[str, ...]
    place: Place

    def __str__(self) -> str:
        return self.place.line[self.place.column :][: self.place.width]


_Term = tuple[_Dim, ...]


def _terms(equation: str) -> tuple[list[_Term], _Term | None]:
    """The factors, and the result if it is written; with white space between two axes, all axes are names."""
    pattern = _SPACED if re.search(r"\(|[\w.]\s+[\w.]", equation) else _COMPACT
    left, arrow, _ = equation.partition("->")
    spans = (match.span(1) for match in re.finditer("(?:^|,)([^,]*)", left))
    factors = [_term(equation, pattern, *span) for span in spans]
    return factors, _term(equation, pattern, len(left) + 2, len(equation)) if arrow else None


def _term(equation: str, pattern: re.Pattern[str], start: int, end: int) -> _Term:
    """The dimensions that are written between two columns of the text."""
    dims: list[_Dim] = []
    for match in pattern.finditer(equation, start, end):
        dim = _Dim(tuple(match[0].strip("()").split()), Place(equation, 1, match.start(), len(match[0])))
        if match["wrong"] or (dim.axes == (ELLIPSIS,) and any(dim.axes == each.axes for each in dims)):
            term, fix = equation[start:end].strip(), "write letters, names, (h d) or ..."
            raise EquationError(f"'{term}' cannot be read", dim.place, fix)
        if len(set(dim.axes)) < len(dim.axes):
            raise EquationError(f"an axis is twice in '{dim}'", dim.place, "give each part a name of its own")
        dims.append(dim)
    return tuple(dims)


def _expanded(term: _Term, lead: Sequence[str]) -> _Term:
    """The dimensions, with `...` replaced by the names that it stands for."""
    return tuple(
        _Dim(axes, dim.place)
        for dim in term
        for axes in ([(name,) for name in lead] if dim.axes == (ELLIPSIS,) else [dim.axes])
    )


def _check_result(result: _Term, known: Container[str]) -> None:
    """Raises an error for axes that no factor has, and for axes named twice."""
    seen: set[str] = set()
    for axis, place in ((axis, dim.place) for dim in result for axis in dim.axes):
        if axis not in known:
            lost = "'...' is in the result only" if axis == ELLIPSIS else f"axis '{axis}' is in no factor"
            raise EquationError(lost, place, "remove it")
        if axis in seen:
            raise EquationError(f"axis '{axis}' is in the result twice", place, "name it once")
        seen.add(axis)


# ---------------------------------------------------------------------------- text and shapes


def graph_of(equation: str, shapes: Sequence[tuple[int, ...]]) -> Graph:
    """The graph of an einsum equation at given shapes."""
    terms, result = _terms(equation)
    if len(terms) != len(shapes):
        raise ShapeError(
            f"the equation has {len(terms)} factor(s), and {len(shapes)} array(s) are given",
            Place(equation, 1, 0, len(equation.partition("->")[0])),
            "pass one array for each factor",
        )
    counts = Counter(axis for term in terms for dim in term for axis in dim.axes)
    _check_result(result or (), counts)
    lead = [fresh(f"lead{number}", set(counts)) for number in range(max(map(len, shapes)))]
    factors = [_sized(term, shape, lead, equation) for term, shape in zip(terms, shapes, strict=True)]
    sizes = _sizes([each for factor in factors for each in factor], lead)
    lead = [axis for axis in lead if axis in sizes]
    kept: list[tuple[str, ...]]
    if result is None:
        once = sorted(axis for axis in counts if counts[axis] == 1 and axis != ELLIPSIS)
        kept = [(axis,) for axis in (*lead, *once)]
    else:
        kept = [dim.axes for dim in _expanded(result, lead)]
    leaves, refs = zip(*(_operand(f"op{n}", each, sizes) for n, each in enumerate(factors)), strict=True)
    summed = tuple(set(sizes).difference(*kept))
    line = Equation("result", tuple(map(entry_of, kept)), contraction(refs, summed, None))
    return Graph(leaves, (line,), ("result",))


def _operand(name: str, factor: Sequence[_Sized], sizes: Mapping[str, int]) -> tuple[Leaf, Ref]:
    """A factor as an input, and as a reference that reads position 0 of an axis that broadcasts."""
    dims, index = [], []
    for dim, size in factor:
        whole = size == math.prod(sizes[axis] for axis in dim.axes)
        dims.append(tuple(Axis(axis, sizes[axis] if whole else 1) for axis in dim.axes))
        index.append(entry_of(dim.axes) if whole else 0)
    return Leaf(name, "input", tuple(dims)), Ref(name, tuple(index))


_Sized = tuple[_Dim, int]


def _sized(term: _Term, shape: Sequence[int], lead: Sequence[str], equation: str) -> list[_Sized]:
    """The dimensions of a factor with their sizes; `...` takes as many of the last names as it needs."""
    named = [str(dim) for dim in term if dim.axes != (ELLIPSIS,)]
    spare = len(shape) - len(named)
    if spare < 0 or (spare > 0 and len(named) == len(term)):
        message = f"'{' '.join(named)}' names {len(named)} axes, and the array has {len(shape)}: {shape}"
        raise ShapeError(message, Place(equation, 1, 0, len(equation)))
    return list(zip(_expanded(term, lead[len(lead) - spare :]), map(int, shape), strict=True))


def _sizes(dims: Sequence[_Sized], lead: Sequence[str]) -> dict[str, int]:
    """The size of every axis: a size of 1 in `...` is broadcast, and a part of `(h d)` follows from the others."""
    alone = {dim.axes[0]: 1 for dim, size in dims if size == 1 and dim.axes[0] in lead}
    waiting = [each for each in dims if each[1] != 1 or each[0].axes[0] not in lead]
    waiting.sort(key=lambda each: len(each[0].axes))
    sizes: dict[str, int] = {}
    while waiting:
        open_parts = (sum(axis not in sizes for axis in dim.axes) for dim, _ in waiting)
        dim, size = waiting.pop(next((at for at, count in enumerate(open_parts) if count < 2), 0))
        unknown = [axis for axis in dim.axes if axis not in sizes]
        known = math.prod(sizes[axis] for axis in dim.axes if axis in sizes)
        if len(unknown) > 1 or (unknown and known == size == 0):
            message = f"the sizes of {', '.join(unknown)} do not follow from '{dim}', whose size is {size}"
            raise ShapeError(message, dim.place, "split the dimension with reshape")
        if (known == 0 or size % known) if unknown else known != size:
            message = f"sizes disagree: axis '{dim}' is {known} in one array, and {size} in another"
            place = next(each.place for each, _ in dims if each.axes == dim.axes)
            raise ShapeError(message, place, "check the shapes")
        sizes.update((axis, size // known) for axis in unknown)
    return alone | sizes
