"""Leaves: inputs, parameters and constants, their selection by patterns of names, and those of calls of blocks."""

from __future__ import annotations

import base64
import fnmatch
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Annotated, Any, Protocol, TypeVar

from ..codec import Part, Text, document, hashed_once
from ..errors import DtypeError, EquationError, ShapeError, checked_number, names_in, near, told_in
from ..language.expression import fresh
from ..language.parser import STARTS
from ..ops.table import Element
from ..sizes import is_name
from .shape_inference import Axis, Dim, dim_size


@document()
@dataclass(frozen=True)
class Constant:
    """The frozen value of a constant tensor, or the start of a parameter: a table of positions, a mask."""

    dtype: Text
    shape: tuple[int, ...]
    data: bytes = field(repr=False)

    def checked(self, part: Part) -> None:
        """Raises an error if the data are not as long as the shape says."""
        self.array()

    @classmethod
    def of(cls, array: Any, what: str) -> Constant:
        """Freezes an array of any library. A torch tensor is detached, and bfloat16 is widened to float32.

        Args:
            array: anything `numpy.asarray` takes.
            what: its name in an error, `the constant 'm'`.

        Raises:
            ShapeError: rows differ in length.
            DtypeError: it holds no numbers.
        """
        import numpy

        if hasattr(array, "detach"):
            array = array.detach().cpu()
            array = array.float() if str(array.dtype) == "torch.bfloat16" else array
        try:
            value = numpy.asarray(array)
        except ValueError:  # raised by NumPy if rows differ in length
            raise ShapeError(f"the rows of {what} differ in length", fix="give an array") from None
        except (TypeError, RuntimeError) as error:  # a library that does not convert its arrays
            raise DtypeError(f"{what} cannot be read: {error}", fix="give a NumPy array") from None
        if value.dtype.kind not in "biufc":
            raise DtypeError(f"{what} holds {value.dtype}", fix="give numbers or truth values")
        return cls(value.dtype.str, value.shape, value.tobytes())

    def array(self) -> Any:
        """The value as a NumPy array."""
        import numpy

        return numpy.frombuffer(self.data, dtype=numpy.dtype(self.dtype)).reshape(self.shape)

    def plain(self) -> dict[str, Any]:
        """The value in JSON types."""
        data = base64.b64encode(self.data).decode()
        return {"dtype": self.dtype, "shape": list(self.shape), "data": data}

    @classmethod
    def of_plain(cls, document: Mapping[str, Any]) -> Constant:
        """The constant that `plain` wrote."""
        return cls(document["dtype"], tuple(document["shape"]), base64.b64decode(document["data"]))


@document()
@hashed_once
@dataclass(frozen=True)
class Leaf:
    """A tensor that no equation defines.

    `start` is the initialisation of a parameter: `("std", 0.02)`, `("value", 0.0)`, an array, or None.
    With None, it is derived from the equations (`initialization`). `holds` is the element type,
    known once an array has been seen (`element_types.py`).
    """

    name: str
    kind: Annotated[str, ("input", "parameter", "constant")]
    dims: tuple[Dim, ...]
    start: tuple[Annotated[str, STARTS], float] | Constant | None = field(default=None, hash=False)
    value: Constant | None = field(default=None, hash=False)  # it may be large
    holds: Element | None = None

    @functools.cached_property
    def shape(self) -> tuple[Any, ...]:
        """The size of each dimension, symbolic where open."""
        return tuple(dim_size(dim) for dim in self.dims)

    def __str__(self) -> str:
        brackets = ",".join(_show_declared(dim) for dim in self.dims)
        match self.start:
            case Constant():
                start = "(value=...)"  # the array itself is stored next to the text
            case (kind, number):
                start = f"({kind}={number!r})"
            case _:
                start = ""
        return f"{self.name}[{brackets or '()'}]: {self.kind}{start}"


def _show_declared(dim: Dim) -> str:
    names = [axis.name for axis in dim]
    sizes = [str(axis.size) for axis in dim]
    if len(dim) == 1:
        return names[0] if names == sizes or names[0] == "..." else f"{names[0]}:{sizes[0]}"
    shown = f"({','.join(names)})"
    return shown if names == sizes else f"{shown}:({','.join(sizes)})"


_NAMED = {"zeros": ("value", 0.0), "ones": ("value", 1.0), **{kind: (kind, 1.0) for kind in STARTS[2:]}}
"""The initialisations that have a name in `init=`."""


@told_in("starts")
def start_of(name: str, value: Any) -> tuple[str, float] | Constant:
    """The initialisation that `init=` gives a parameter: a standard deviation, a word, or the array itself."""
    if isinstance(value, str) and value in _NAMED:
        return _NAMED[value]
    if hasattr(value, "__array__") and not isinstance(value, Real):
        return Constant.of(value, f"init of '{name}'")
    meant = near(value, _NAMED) if isinstance(value, str) else ""
    fix = f"{meant}give a standard deviation, an array, or one of {', '.join(map(repr, _NAMED))}"
    return "std", float(checked_number(value, f"init of '{name}'", fix=fix))


# ---------------------------------------------------------------------------- name matching


def told_by(
    names: str | Sequence[str], known: Sequence[str], one: str, all_of_them: str, last: bool = False
) -> tuple[str, ...]:
    """The names that match the patterns, in the order of the patterns, each once.

    Args:
        names: patterns of `fnmatch`, as `"encoder.* head.W"` or a list of them. `*` matches anything, dots
            included.
        known: the existing names; the pattern `*` may match none.
        one, all_of_them: the singular and the plural noun for what has these names, for the error.
        last: whether the error lists the last names.

    Raises:
        EquationError: a pattern matches nothing, or the patterns are not strings.
    """
    found: dict[str, None] = {}
    for pattern in names_in(names, all_of_them, 1):
        fitting = [name for name in known if fnmatch.fnmatchcase(name, pattern)]
        if not fitting and pattern != "*":
            more = len(known) > 12
            few = ", ".join(known[-12:] if last else known[:12]) or "none"
            few += (" at the end" if last else ", …") if more else ""
            raise EquationError(f"'{pattern}' is no {one}", fix=f"{near(pattern, known)}there are {few}")
        found.update(dict.fromkeys(fitting))
    return tuple(found)


# ---------------------------------------------------------------------------- calls of blocks

T = TypeVar("T")


class Called(Protocol):
    """A call of a block, as the modules below that of the graph know it."""

    @property
    def defines(self) -> tuple[str, ...]:
        """The tensors that it defines."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that it reads."""

    def leaves(self) -> Iterator[Leaf]:
        """Its parameters and constants, under their names in the caller."""

    def returned(self, bound: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Dim, ...]]]:
        """Its results and their dimensions in the caller's sizes; `bound` holds those that have a value there."""


@document()
@dataclass(frozen=True)
class Along:
    """How a block is called along an axis: once for each position, with the states that the previous call left.

    The first inputs of the block are slices of operands at a position. The next inputs are the states.

    Attributes:
        axis: the axis, which comes first in each result: results are stacked along it.
        cuts: for each operand that is sliced, the dimension that runs along the axis.
        states: for each state, the output of the block that is its next value; its operand is the initial value.
        back: whether it runs from the last position to the first.
    """

    axis: Axis
    cuts: tuple[int, ...]
    states: tuple[int, ...]
    back: bool


def scoped(scope: str, name: str) -> str:
    """A name under a scope; either may be empty."""
    return f"{scope}.{name}" if scope and name else scope or name


def axis_without_name(tensor: str, position: int) -> str:
    """The axis of a dimension that is read at positions alone, where no line gives it a name."""
    return f"{tensor.replace('.', '_')}{position}"


def shown_call(results: Iterable[str], function: str, operands: Iterable[str], scope: str) -> str:
    """A call as a line of text."""
    given = [*operands, *([f"scope='{scope}'"] if scope else [])]
    return f"{', '.join(results)} = {function}({', '.join(given)})"


def names_of_blocks(scopes: Iterable[tuple[T, str]], taken: Iterable[str]) -> dict[T, str]:
    """The names of blocks in a text: the last word of the scope of the first call of each.

    Args:
        scopes: blocks, or keys that represent them, each with the scope of a call.
        taken: names that mean something else.
    """
    names: dict[T, str] = {}
    others = set(taken)
    for block, scope in scopes:
        if block not in names:
            words = [word for word in scope.split(".") if is_name(word)]
            names[block] = fresh(words[-1] if words else "block", others)
            others.add(names[block])
    return names


def told_apart(leaves: Iterable[Leaf], calls: Sequence[Called]) -> tuple[Leaf, ...]:
    """The leaves that no call declares, or that a call declares differently."""
    told = {leaf.name: leaf for call in reversed(calls) for leaf in call.leaves()}
    return tuple(leaf for leaf in leaves if told.get(leaf.name) != leaf)


def called_last(own: Iterable[Leaf], calls: Iterable[Called]) -> tuple[Leaf, ...]:
    """The leaves of a graph in the order of its text: its own leaves first, then those of its calls."""
    found = {leaf.name: leaf for leaf in own}
    for call in calls:
        for leaf in call.leaves():
            found.setdefault(leaf.name, leaf)
    return tuple(found.values())
