"""Checks of a graph: each name is defined once and before it is read, and each size is valid."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..errors import EquationError, Place, ShapeError, near, told_in
from ..language.equation import Equation
from ..ops.table import FUNCTIONS, RESERVED
from ..sizes import LARGEST, evaluate, size_names
from .leaves import Called, Leaf
from .recurrences import early, late
from .shape_inference import Dim, dim_size


@told_in("names")
def check_names(leaves: Iterable[Leaf], body: Sequence[Equation | Called], outputs: Collection[str]) -> None:
    """Raises an error if a name is declared or defined twice, or read before it is defined, or an output is missing."""
    known: set[str] = set()
    for name in [leaf.name for leaf in leaves]:
        if name in known:
            raise EquationError(f"'{name}' is declared twice", fix="give each tensor one name")
        known.add(name)
    for item in body:
        for name, place in _read_first(item):
            if name not in known:
                raise EquationError(f"'{name}' is used before it is defined", place)
        for name in item.defines:
            if name in known:
                place = item.place if isinstance(item, Equation) else None
                raise EquationError(f"'{name}' is defined twice", place, "give each result a name of its own")
            known.add(name)
    for ref in (ref for item in body if isinstance(item, Equation) for ref in late(item)):
        if ref.name not in known:
            raise EquationError(f"'{ref.name}' is not defined", ref.place)
    for name in outputs:
        if name not in known:
            fix = f"{near(name, known)}choose of {', '.join(sorted(known))}"
            raise EquationError(f"the output '{name}' is not defined", fix=fix)
    if not outputs:
        raise EquationError("there is no equation, so nothing comes out", fix="write y[b] = x[b,i]")


def _read_first(item: Equation | Called) -> Iterator[tuple[str, Place | None]]:
    """The tensors that an equation or a call reads, and where; without reads at other positions of a recurrence."""
    if isinstance(item, Equation):
        yield from ((ref.name, ref.place) for ref in early(item))
    else:
        yield from ((name, None) for name in item.reads)


def check_spoken(equations: Iterable[Equation], tensors: Collection[str]) -> None:
    """Raises an error if an equation mentions a size by a name that a text would read as something else."""
    for equation in equations:
        for size in equation.right.sizes:
            name = size.axis
            if name in tensors or name in FUNCTIONS or name in RESERVED:
                owner = "a tensor" if name in tensors else "the language"
                raise EquationError(
                    f"the size '{name}' has a name that belongs to {owner}",
                    size.place or equation.place,
                    "give the axis, or the symbol of its size, another name",
                )


def check_sizes(
    sizes: Iterable[tuple[str, Any]], named: Mapping[str, tuple[Dim, ...]], bound: Mapping[str, Any]
) -> None:
    """Raises an error if a size or a dimension of a tensor is not a whole number, or too small or too large."""
    for name, size in sizes:
        check_size(f"'{name}'", size, 1, bound)
    seen: set[Dim] = set()  # many tensors share few distinct dimensions
    for tensor, dims in named.items():
        for dim in (dim for dim in dims if dim and dim not in seen):
            seen.add(dim)
            if len(dim) > 1:
                check_size(f"'{dim[0].name}' in '{tensor}'", dim_size(dim), 0, bound)
            for axis in dim:
                check_size(f"'{axis.name}' in '{tensor}'", axis.size, 0, bound)


def check_size(what: str, size: Any, least: int, known: Mapping[str, Any]) -> None:
    """Raises an error if a size is known and is not a whole number between `least` and `LARGEST`.

    Args:
        what: the owner of the size, for the error.
        size: the size.
        least: the smallest value allowed.
        known: the sizes that have a value.
    """
    value = evaluate(size, known)
    if not (least <= value <= LARGEST if isinstance(value, int) else size_names(value)):
        shown = f"{size} = {value}" if str(size) != str(value) else str(size)
        raise ShapeError(
            f"the size of {what} is {shown}", fix=f"choose sizes that make it a whole number from {least}"
        )
