"""Argument shapes against leaves: whether arrays fit, and which open sizes they determine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import Place, ShapeError
from ..language.expression import ELLIPSIS, show_entry
from ..ops.structure import amounts_in, is_inside
from ..sizes import evaluate, name_of, size_names, solve_size, symbol
from .graph import Graph
from .leaves import Leaf, axis_without_name
from .shape_inference import dim_size, index_of, scalar_size


def sizes_from_shapes(
    graph: Graph, leaves: Sequence[Leaf], shapes: Sequence[tuple[int, ...]]
) -> dict[str, int]:
    """The open sizes implied by the shapes of the leaves.

    Raises:
        ShapeError: a shape does not fit the equations, two shapes disagree, or a dimension of 0 leaves a size unknown.
    """
    known: dict[str, int] = {}
    origin: dict[str, str] = {}
    dims: list[tuple[Leaf, int, Any, int]] = []
    lead: dict[str, tuple[tuple[int, ...], str]] = {}
    for leaf, shape in zip(leaves, shapes, strict=False):
        shape = _without_lead(leaf, shape, lead)
        for position, (dim, size) in enumerate(zip(leaf.dims, shape, strict=True)):
            dims.append((leaf, position, evaluate(dim_size(dim), graph.bound), size))
    formulas = [(leaf, formula, size) for leaf, _, formula, size in dims if not isinstance(formula, int)]
    more = True
    while more:
        more = False
        for leaf, formula, size in formulas:
            if solved := solve_size(evaluate(formula, known), size):
                known[solved[0]], origin[solved[0]], more = solved[1], leaf.name, True
    for leaf, position, formula, size in dims:
        expected = evaluate(formula, known)
        if expected != size:
            raise _wrong_size(leaf, position, expected, size, origin)
        untold = [name for name in size_names(formula) if name not in known]
        if untold and size == 0:
            raise _untold(leaf, position, untold[0])
    return {name: known[name] for name in graph.open_sizes if name in known}


def least_lengths(graph: Graph) -> Iterator[tuple[int, int, int]]:
    """The dimensions of inputs with an open size in which slices need some positions: the numbers of the input and of
    the dimension, and how many positions."""
    least: dict[str, int] = {}
    for equation in graph.flat.own:
        for part in equation.called:
            if is_inside(part):
                sizes = graph.flat.scope(equation).inside(part)
                for more in (scalar_size(each, sizes) for _, each in amounts_in(part)):
                    needed = {name: evaluate(more + symbol(name), graph.bound) for name in size_names(more)}
                    for name, length in needed.items():
                        if isinstance(length, int):
                            least[name] = max(length, least.get(name, 0))
    for number, leaf in enumerate(graph.inputs):
        names = [name_of(dim_size(dim)) or "" for dim in leaf.dims]
        if ELLIPSIS not in names:
            yield from ((number, at, least[name]) for at, name in enumerate(names) if least.get(name, 0))


def _without_lead(
    leaf: Leaf, shape: tuple[int, ...], lead: dict[str, tuple[tuple[int, ...], str]]
) -> tuple[int, ...]:
    """The shape with the axes that `...` stands for merged into one."""
    at = next((n for n, dim in enumerate(leaf.dims) if dim and dim[0].name == "..."), None)
    if at is None:
        if len(shape) != len(leaf.dims):
            raise _wrong_rank(leaf, shape)
        return shape
    after = len(leaf.dims) - at - 1
    if len(shape) < len(leaf.dims) - 1:
        raise _wrong_rank(leaf, shape)
    leading = shape[at : len(shape) - after]
    known = lead.setdefault("...", (leading, leaf.name))
    if known[0] != leading:
        raise ShapeError(
            f"'...' is {known[0]} in '{known[1]}', and {leading} in '{leaf.name}'",
            fix="'...' stands for the same axes in all lines: write out those that differ",
        )
    return (*shape[:at], math.prod(leading), *shape[len(shape) - after :])


def _wrong_rank(leaf: Leaf, shape: tuple[int, ...]) -> ShapeError:
    text = str(leaf)
    return ShapeError(
        f"'{leaf.name}' has shape {shape}: {len(shape)} dimension(s), where the equations read {len(leaf.dims)}",
        Place(text, 1, 0, len(text.split(":")[0])),
        "pass an array with a dimension for each axis",
    )


def _untold(leaf: Leaf, position: int, name: str) -> ShapeError:
    what, place = _place_of(leaf, position)
    return ShapeError(
        f"the size of '{name}' is unknown: {what} has 0 positions for any '{name}'",
        place,
        f"give its size: tensornet.layer(…, {name}=…)",
    )


def _wrong_size(leaf: Leaf, position: int, expected: Any, size: int, origin: Mapping[str, str]) -> ShapeError:
    what, place = _place_of(leaf, position)
    if len(unknown := size_names(expected)) > 1:
        message = f"the sizes {', '.join(unknown)} do not follow from {what}, which is {size}"
        return ShapeError(message, place, f"bind all but one of them first: graph.bind({unknown[0]}=…)")
    why = next((f" (as '{origin[a.name]}' has it)" for a in leaf.dims[position] if a.name in origin), "")
    return ShapeError(
        f"sizes disagree: {what} is {size}, and should be {expected}{why}",
        place,
        f"pass '{leaf.name}' with {expected} positions along dimension {position}",
    )


def _place_of(leaf: Leaf, position: int) -> tuple[str, Place]:
    """A dimension of a leaf in words, and its place in the index, where `…` is what no line gives a name."""
    index = enumerate(index_of(leaf.dims))
    dims = ["…" if each == axis_without_name(leaf.name, n) else show_entry(each) for n, each in index]
    column = len(leaf.name) + 1 + sum(len(each) + 2 for each in dims[:position])
    what = f"dimension {position}" if dims[position] == "…" else f"axis '{dims[position]}'"
    place = Place(f"{leaf.name}[{', '.join(dims)}]", 1, column, len(dims[position]))
    return f"{what} of '{leaf.name}'", place
