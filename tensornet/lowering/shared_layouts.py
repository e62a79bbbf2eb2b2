"""Shared layouts: a tensor that several products read is copied once, into an order that suits all of them.

Queries, keys and values of windowed attention are products of one tensor, and attention reads each of them window
by window. If that tensor is copied into window order, its products are in that order too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from ..language.expression import Call, Contraction, Ref, axes_of_index, references
from ..ops.table import FUNCTIONS
from .lines import Line, Lines

Split = tuple[tuple[int, ...], ...]
SharedLayout = tuple[Split, tuple[int, ...]]
"""For each dimension of a tensor, the sizes of the axes that it is read as; and all of these, by number, in order."""


def split_as(ref: Ref, count: Callable[[str], int]) -> Split:
    """The sizes of the axes that a reference reads each dimension as."""
    return tuple(tuple(count(axis) for axis in axes_of_index((entry,))) for entry in ref.index)


def shared_layouts(lines: Lines, count: Callable[[Line, tuple[str, ...]], int]) -> Mapping[str, SharedLayout]:
    """The layouts into which tensors are copied. At least two products must ask for one, whose results kernels alone
    read, and together are larger than the tensor. Kernels take each group of axes in the declared order.

    Args:
        lines: the lines that are lowered.
        count: the number of positions along some axes of a line.
    """
    asking, sizes = defaultdict[tuple[str, SharedLayout], list[int]](list), dict[str, int]()
    for line, ref in _asking(lines):
        axes, left = axes_of_index(ref.index), axes_of_index(line.equation.left)
        order = sorted(axes, key=lambda axis: left.index(axis) if axis in left else len(left))
        if order != list(axes):
            split = split_as(ref, lambda axis: count(line, (axis,)))  # noqa: B023
            wanted = split, tuple(map(axes.index, order))
            asking[ref.name, wanted].append(count(line, left))
            sizes[ref.name] = count(line, axes)
    return {
        name: wanted for (name, wanted), made in asking.items() if len(made) > 1 and sum(made) > sizes[name]
    }


def _asking(lines: Lines) -> Iterator[tuple[Line, Ref]]:
    """The lines with products that kernels alone read, each with a factor whose dimensions are split."""
    parts = [part for line in lines.own for part in line.equation.parts if isinstance(part, Call)]
    kernels = [part for part in parts if FUNCTIONS[part.function].computes]
    read = lines.readers
    read.update(lines.names.outputs)
    read.update(name for call in lines.calls for name in call.operands)
    read.subtract(ref.name for part in kernels for ref in references(part))
    for line in lines.own:
        products = (part for part in line.equation.parts if isinstance(part, Contraction) and part.summed)
        for factor in (
            factor for part in products for factor in part.factors if not read[line.equation.name]
        ):
            if isinstance(factor, Ref) and any(isinstance(entry, tuple) for entry in factor.index):
                yield line, factor
