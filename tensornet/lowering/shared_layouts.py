"""Shared layouts: a tensor that several products read is copied once, into an order that suits all of them.

Queries, keys and values of windowed attention are products of one tensor, and attention reads each of them window
by window. If that tensor is copied into window order, its products are in that order too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..language.expression import Call, Contraction, Ref, axes_of_index, references
from ..ops.table import FUNCTIONS
from .lines import Line, Lines

__all__ = ["SharedLayout", "shared_layouts", "split_as"]

Split = tuple[tuple[int, ...], ...]
Count = Callable[[Line, tuple[str, ...]], int]


@dataclass(frozen=True)
class SharedLayout:
    """The layout into which a tensor is copied once.

    Attributes:
        split: for each of its dimensions, the sizes of the axes that it is read as.
        order: all of these axes, by number, in memory order.
    """

    split: Split
    order: tuple[int, ...]


def split_as(ref: Ref, count: Callable[[str], int]) -> Split:
    """The sizes of the axes that a reference reads each dimension as."""
    return tuple(tuple(count(axis) for axis in axes_of_index((entry,))) for entry in ref.index)


def shared_layouts(lines: Lines, count: Count) -> Mapping[str, SharedLayout]:
    """The tensors that are copied into a shared layout, and these layouts.

    At least two products must request the layout, and kernels alone read their results. Kernels take tensors whose
    axes are laid out group by group, each group in the declared order. All results together must be larger than the
    tensor.

    Args:
        lines: the lines that are lowered.
        count: the number of positions along some axes of a line.
    """
    asking: dict[tuple[str, SharedLayout], list[int]] = defaultdict(list)
    sizes: dict[str, int] = {}
    for line, ref in _asking(lines):
        axes, left = axes_of_index(ref.index), axes_of_index(line.equation.left)
        order = [axis for axis in left if axis in axes] + [axis for axis in axes if axis not in left]
        if order == list(axes):
            continue
        split = split_as(ref, lambda axis: count(line, (axis,)))  # noqa: B023
        wanted = SharedLayout(split, tuple(axes.index(axis) for axis in order))
        asking[ref.name, wanted].append(count(line, left))
        sizes[ref.name] = count(line, axes)
    return {
        name: wanted for (name, wanted), made in asking.items() if len(made) > 1 and sum(made) > sizes[name]
    }


def _asking(lines: Lines) -> Iterator[tuple[Line, Ref]]:
    """The lines with products that kernels alone read, each with a factor whose dimensions are split."""
    kernels = [
        part
        for line in lines.own
        for part in line.equation.parts
        if isinstance(part, Call) and FUNCTIONS[part.function].computes
    ]
    if not kernels:
        return
    read = lines.readers
    read.update(lines.names.outputs)
    read.update(name for call in lines.calls for name in call.operands)
    read.subtract(ref.name for part in kernels for ref in references(part))
    for line in lines.own:
        if read[line.equation.name]:
            continue
        products = (part for part in line.equation.parts if isinstance(part, Contraction))
        for factor in (factor for part in products if part.summed for factor in part.factors):
            if isinstance(factor, Ref) and any(isinstance(entry, tuple) for entry in factor.index):
                yield line, factor
