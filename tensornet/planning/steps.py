"""Steps: one operation on at most two tensors, with its costs. Also how a call is sliced or repeated."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..codec import document
from ..contraction.pairs import Strategy
from ..graph.leaves import Along, Leaf
from ..graph.shape_inference import Axis, Dim, dim_size
from ..language.equation import Equation
from ..language.expression import Call, Contraction, Expression, Ref, Size, rename_tensors
from ..ops.protocols import names_in
from ..ops.table import Element
from ..sizes import size_names

__all__ = ["Repetition", "Result", "Slicing", "Step", "Table"]


@dataclass(frozen=True)
class Multiplied:
    """A product of two tensors.

    Attributes:
        a, b: the tensors.
        bias: the tensor that is added to each row, if any.
    """

    a: Ref
    b: Ref
    bias: Ref | None = None


@document()
@dataclass(frozen=True)
class Step:
    """One operation of a plan.

    Attributes:
        equation: the equation that it computes. The left side is the order in memory.
        axes: the axes in it, with their sizes, integers or in open sizes.
        flops: FLOPs of a contraction of two tensors, 0 for anything else.
        flop_formula: the same in the names of the axes.
        bytes: bytes read and written.
        seconds: expected time.
        element: the element type of the result.
        frees: tensors that are not needed after it.
        arrangement: how a pair is contracted, as a matrix product or otherwise.
    """

    equation: Equation
    axes: tuple[Axis, ...]
    flops: int
    flop_formula: Any
    bytes: int
    seconds: float
    element: Element = Element.NUMBER
    frees: tuple[str, ...] = ()
    arrangement: Strategy | None = None

    @functools.cached_property
    def reads(self) -> tuple[str, ...]:
        """The tensors that it reads."""
        return tuple([ref.name for ref in self.equation.references])

    @functools.cached_property
    def defines(self) -> tuple[str, ...]:
        """The tensor that it computes."""
        return (self.equation.name,)

    @property
    def elements(self) -> tuple[Element, ...]:
        """The element type of its result."""
        return (self.element,)

    @functools.cached_property
    def dims(self) -> tuple[tuple[Dim, ...]]:
        """The dimensions of its result."""
        axes = {axis.name: axis for axis in self.axes}
        return (tuple(tuple(axes[name] for name in names_in(entry)) for entry in self.equation.left),)

    @property
    def shapes(self) -> tuple[tuple[Any, ...]]:
        """The sizes of its result."""
        return (tuple(map(dim_size, self.dims[0])),)

    def reading(self, names: Mapping[str, str], scope: str = "") -> Step:
        """The step with other names for the tensors that it reads, outside of the block that it is in."""
        if not self.frees and names.keys().isdisjoint(self.reads):
            return self
        right = rename_tensors(self.equation.right, names)
        return replace(self, equation=replace(self.equation, right=right), frees=())

    def defining(self, names: Sequence[str]) -> Step:
        """The step with another name for the tensor that it computes."""
        return replace(self, equation=replace(self.equation, name=names[0]))

    @property
    def multiplied(self) -> Multiplied | None:
        """The product that it is, if it is one."""
        return None if self.arrangement is None else _multiplied(self.equation.right)

    @functools.cached_property
    def open_sizes(self) -> frozenset[str]:
        """The open sizes that it depends on."""
        spoken = (part.axis for part in self.equation.parts if isinstance(part, Size))
        return frozenset((*spoken, *(name for axis in self.axes for name in size_names(axis.size))))

    def shown(self, names: Mapping[Any, str]) -> str:
        """The step as a line of mathematics."""
        return str(self.equation)


def _multiplied(right: Expression) -> Multiplied | None:
    match right:
        case Contraction((Ref() as a, Ref() as b)):
            return Multiplied(a, b)
        case Call("add", (Contraction((Ref() as a, Ref() as b)), Ref() as bias)):
            return Multiplied(a, b, bias)
    return None


@document()
@dataclass(frozen=True)
class Slicing:
    """A call computed piece by piece along an axis, so that less is alive at once, or stays in the cache.

    Attributes:
        size: the name of the size of the axis.
        piece: the name of the size of a piece, in the block.
        length: the number of positions of each piece except the last.
        count: the number of pieces at the sizes of the plan.
        operands: the dimension along which each operand is cut, if it is.
        results: the dimension along which the pieces of each result are concatenated.
        is_tile: whether it is for speed alone: what is recorded, by a compiler or by autograd, is computed whole.
    """

    size: str
    piece: str
    length: int
    count: int
    operands: tuple[int | None, ...]
    results: tuple[int, ...]
    is_tile: bool = False

    def into(self, length: int, size: int) -> Slicing:
        """The slicing of an axis of the given size into pieces of the given length."""
        return replace(self, length=length, count=-(-size // length))

    def __str__(self) -> str:
        return f"in {self.count} pieces of {self.length} along {self.size}"


@document()
@dataclass(frozen=True)
class Repetition(Along):
    """A call repeated along an axis, where each iteration gets the states that the one before left.

    Attributes:
        axis, cuts, states, back: as in the graph.
        count: the number of positions at the sizes of the plan.
        segment: the positions of a segment, if only the states between segments are kept for the backward pass.
    """

    count: int = 1
    segment: int | None = None

    def __str__(self) -> str:
        recomputed = "" if self.segment is None else f", recomputed {self.segment} at a time"
        return f"along {self.axis.name}{' from its end' if self.back else ''}, {self.count} times{recomputed}"


@document()
@dataclass(frozen=True)
class Result:
    """Where an output of the graph is found after the steps, and its element type."""

    name: str
    value: Ref
    left: tuple[str | tuple[str, ...], ...]
    axes: tuple[Axis, ...]
    element: Element = Element.NUMBER


@document()
@dataclass(frozen=True)
class Table:
    """A tensor that is computed once and passed to the function at each call.

    Attributes:
        leaf: the leaf that the steps read.
        made: the constant, or the result of a step done once, that the table holds.
        below: the size that its elements must be below, if they are positions that are looked up.
    """

    leaf: Leaf
    made: str
    below: Any = None
