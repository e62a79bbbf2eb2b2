"""Products of factors: partial products, and kernels that compute some of the factors."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TypeAlias

from .build import Options, node
from .node import Axis, Node, Operand, Size, along, axes_of

__all__ = ["Kernel", "axes_in", "called", "computed", "multiplied", "part", "summed_axes"]

Kernel: TypeAlias = "tuple[str, Sequence[Operand], Sequence[Axis], Options]"
"""A call of a kernel: its name, operands, the axes that it runs over, and options."""


def axes_in(operands: Iterable[Operand]) -> dict[Axis, None]:
    """The axes that operands are read along, in order."""
    return dict.fromkeys(axis for each in operands for axis in axes_of(each.reads))


def summed_axes(each: Node) -> set[Axis]:
    """The axes that a product sums over."""
    return {*range(len(each.sizes))}.difference(axes_of(each.result))


def part(factors: Sequence[Operand], summed: Container[Axis], sizes: Mapping[Axis, Size]) -> Operand:
    """The product of some factors as an operand: a new node, or the factor if it is single and not summed.

    Args:
        factors: the factors.
        summed: the axes that it sums over; other axes are ignored.
        sizes: the sizes of the axes.
    """
    axes = axes_in(factors)
    kept = tuple(along(axis) for axis in axes if axis not in summed)
    if len(factors) == 1 and len(kept) == len(axes):
        return factors[0]
    return Operand(node("contract", sizes, factors, kept), kept)


def multiplied(each: Node, factors: Sequence[Operand], sizes: Mapping[Axis, Size]) -> Node:
    """A product with other factors and the same result; a copy if it is a single factor that is not summed."""
    plain = len(factors) == 1 and None not in each.dims and not each.over
    is_copy = plain and {*axes_in(factors)} == {*axes_of(each.result)}
    op = "copy" if is_copy else "contract"
    return node(op, sizes, factors, each.result, each.shape, each.over)


def called(kernel: Kernel, sizes: Mapping[Axis, Size]) -> Operand:
    """The result of a kernel, along those axes of its operands that it does not run over."""
    op, operands, over, options = kernel
    left = tuple(along(axis) for axis in axes_in(operands) if axis not in over)
    return Operand(node(op, sizes, operands, left, None, over, options), left)


def computed(each: Node, kernel: Kernel, beside: Sequence[Operand], sizes: Mapping[Axis, Size]) -> Node:
    """A product in which a kernel computes all factors except those in `beside`."""
    made = called(kernel, sizes)
    alone = not beside and not each.over and None not in each.dims
    if alone and {*axes_in([made])} == {*axes_of(each.result)}:
        op, operands, over, options = kernel
        return node(op, sizes, operands, each.result, each.shape, over, options)
    return multiplied(each, [made, *beside], sizes)
