"""Steps: one operation over at most two tensors, with its costs; and how a call is cut or repeated."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..codec import Scope, document
from ..contraction.pairs import Strategy
from ..graph.leaves import Leaf
from ..graph.shape_inference import Axis
from ..language.equation import Equation
from ..language.expression import Call, Contraction, Expression, Ref, Size
from ..ops.table import Element
from ..sizes import size_names

__all__ = ["Repetition", "Result", "Slicing", "Step", "Table"]


@dataclass(frozen=True)
class Multiplied:
    """A product of two tensors, and what its kernel does to it before it is written.

    Attributes:
        a, b: the tensors.
        bias: what is added to each row, if something is.
        then: the function that is taken of each element; "" if there is none.
    """

    a: Ref
    b: Ref
    bias: Ref | None = None
    then: str = ""


@document()
@dataclass(frozen=True)
class Step:
    """One operation of a plan.

    Attributes:
        equation: what it computes; the left side is the order in memory.
        axes: the axes in it, with their sizes, integers or in open sizes.
        flops: FLOPs of a contraction of two tensors, 0 for anything else.
        flop_formula: the same in the names of the axes.
        bytes: bytes read and written.
        seconds: expected time.
        element: what the elements of the result are.
        frees: tensors that are not needed after it.
        arrangement: how a pair is contracted, as a matrix product or otherwise.
        into: of a sum, the term that it is written into, which nothing else reads; "" if memory is made for it.
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
    into: Scope = ""

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that it reads."""
        return tuple(ref.name for ref in self.equation.references)

    @property
    def defines(self) -> tuple[str, ...]:
        """The tensor that it computes."""
        return (self.equation.name,)

    @property
    def multiplied(self) -> Multiplied | None:
        """The product that it is, if it is one."""
        return None if self.arrangement is None else _multiplied(self.equation.right)

    @property
    def terms(self) -> tuple[str, ...]:
        """The tensors that are terms of it, where it is a sum."""
        match self.equation.right:
            case Call("add", terms):
                return tuple(term.name for term in terms if isinstance(term, Ref))
        return ()

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
        case Call(then, (inner,)) if (found := _multiplied(inner)) is not None:
            return replace(found, then=then)
    return None


@document()
@dataclass(frozen=True)
class Slicing:
    """A call done piece by piece along an axis, so that less is alive at once.

    Attributes:
        size: the name of the size of the axis.
        piece: that of the size of a piece, in the block.
        length: the positions of each piece but the last.
        count: the pieces there are at the sizes planned for.
        operands: the dimension along which each operand is cut, if it is.
        results: the dimension along which the pieces of each result are put together.
    """

    size: str
    piece: str
    length: int
    count: int
    operands: tuple[int | None, ...]
    results: tuple[int, ...]

    def __str__(self) -> str:
        return f"in {self.count} pieces of {self.length} along {self.size}"


@document()
@dataclass(frozen=True)
class Repetition:
    """A call repeated along an axis, each time with what the last one left.

    Attributes:
        axis: the axis; its size is an integer, or in open sizes.
        count: the positions there are at the sizes planned for.
        cuts: the dimension along which each of the first operands is cut.
        states: for each of the operands behind them the result of the block that takes its place.
        back: whether it goes from the last position to the first.
        last: whether the last states are results too.
        segment: where nothing is kept for the backward pass but the states between segments, the positions of one.
    """

    axis: Axis
    count: int
    cuts: tuple[int, ...]
    states: tuple[int, ...]
    back: bool
    last: bool = False
    segment: int | None = None

    def joined(self, results: int) -> int:
        """How many of so many results are put together along the axis."""
        return results - (len(self.states) if self.last else 0)

    def __str__(self) -> str:
        recomputed = "" if self.segment is None else f", recomputed {self.segment} at a time"
        return f"along {self.axis.name}{' from its end' if self.back else ''}, {self.count} times{recomputed}"


@document()
@dataclass(frozen=True)
class Result:
    """Where an output of the graph is found when the steps are done, and what its elements are."""

    name: str
    value: Ref
    left: tuple[str | tuple[str, ...], ...]
    axes: tuple[Axis, ...]
    element: Element = Element.NUMBER


@document()
@dataclass(frozen=True)
class Table:
    """A tensor that is computed once and handed to the function at each call.

    Attributes:
        leaf: what the steps know it as.
        made: the constant or the result of a step done once that it is.
        below: where it holds positions that are looked up, the size that they must be below.
    """

    leaf: Leaf
    made: str
    below: Any = None
