"""Tensors that are read in windows, `x[b,2*p+u]`: computations on them before the windows open."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

from .build import node, number
from .node import Affine, Entries, Gather, Node, Operand, along

__all__ = ["Windowed", "opened"]


@dataclass(frozen=True)
class Windowed:
    """A tensor that is still to be read in windows.

    Attributes:
        node: the tensor.
        reads: where it is to be read.
        around: the zeros still to be added before and after it, for some of the windows.
    """

    node: Node
    reads: Entries
    around: Mapping[Affine | Gather, tuple[int, int]]

    def plainly(self, windows: Container[Affine | Gather]) -> Operand:
        """The tensor, read along plain axes instead of some windows."""
        reads = (along(("at", each)) if each in windows else each for each in self.reads)
        return Operand(self.node, tuple(reads))

    def followed(self, made: Operand) -> Windowed:
        """A tensor computed from this one, to be read in the windows that its axes replace."""
        axes = (entry.axis for entry in made.reads)
        reads = (axis[1] if isinstance(axis, tuple) else along(axis) for axis in axes)
        return replace(self, node=made.node, reads=tuple(reads))

    def padded(self, windows: Container[Affine | Gather]) -> Windowed:
        """The tensor, padded with the zeros for some windows."""
        amounts = [self.around.get(each, (0, 0)) if each in windows else (0, 0) for each in self.reads]
        if not any(map(any, amounts)):
            return self
        sizes = dict(enumerate(self.node.shape))
        written = tuple(Affine(((d, 1),), before) for d, (before, _) in enumerate(amounts))
        shape = [length + sum(each) for length, each in zip(self.node.shape, amounts, strict=True)]
        operand = Operand(self.node, tuple(map(along, sizes)))
        made = node("copy", sizes, [operand], written, shape, options=(("fill", number(0)),))
        return replace(self, node=made)


def opened(readers: Mapping[Node, int], operand: Operand, windows: Container[Affine | Gather]) -> Windowed:
    """A tensor that is read in windows, without zero padding that only this reader uses."""
    child, reads = operand
    whole = Windowed(child, reads, {})
    if child.attributes.get("fill") is not number(0) or readers[child] > 1:
        return whole
    ((inner, plain),) = child.operands
    around: dict[Affine | Gather, tuple[int, int]] = {}
    for d, (entry, read) in enumerate(zip(child.result, reads, strict=True)):
        before = entry.offset  # type: ignore[union-attr]
        after = child.shape[d] - inner.shape[d] - before
        counts = isinstance(before, int) and isinstance(after, int) and min(before, after) >= 0
        if plain[d] != along(d) or not counts or (before + after and read not in windows):
            return whole
        around[read] = before, after
    return Windowed(inner, reads, around)
