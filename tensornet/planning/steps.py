"""Steps: one operation over at most two tensors, or a call of a block, with costs."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..codec import Scope, document
from ..contraction.pairs import Arrangement
from ..documents import Part
from ..graph.call import scoped, shown_call
from ..graph.leaves import Leaf
from ..graph.shape_inference import Axis
from ..language.equation import Equation
from ..language.expression import Call, Contraction, Expression, Ref, Size
from ..ops.table import Element
from ..sizes import put_in, size_names, symbol

if TYPE_CHECKING:
    from .plans import Plan

__all__ = ["CallStep", "Repetition", "Result", "Slicing", "Step", "Table"]


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
    arrangement: Arrangement | None = None
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

    def shown(self, names: Mapping[Plan, str]) -> str:
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
        segment: where nothing is kept for the way back but the states between segments, of which each is made again
            there, the positions of one.
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
        again = "" if self.segment is None else f", made again {self.segment} at a time"
        return f"along {self.axis.name}{' from its end' if self.back else ''}, {self.count} times{again}"


@document()
@dataclass(frozen=True)
class CallStep:
    """A call of a block, which is planned once and called as often as the graph does.

    Attributes:
        plan: the plan of the block.
        scope: stands before the names of its parameters and constants.
        operands: the tensors given, each with a dimension for each that the block declares.
        results: the tensors that come back.
        shapes: their sizes, integers or in open sizes.
        frees: tensors that are not needed after it.
        tables: what the tables of the block are called here.
        slicing: how it is done piece by piece, if it is.
        again: whether nothing is kept of it for the way back but what it is given: there it is made again.
        along: how it is repeated along an axis, if it is; the results, the first ones of the block, are put
            together along that.
    """

    plan: Plan
    scope: Scope
    operands: tuple[str, ...]
    results: tuple[str, ...]
    shapes: tuple[tuple[Any, ...], ...]
    frees: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    slicing: Slicing | None = None
    again: bool = False
    along: Repetition | None = None

    def checked(self, part: Part) -> None:
        """Refuses a call that does not fit its block."""
        block, along = self.plan, self.along
        made = 1 if block.backward is not None else len(block.results)  # what backward needs is made besides
        if along is not None:
            made = len(self.results)
            joined = along.joined(made)
            wrong = not 0 <= joined <= len(block.results) or any(
                n >= len(block.results) for n in along.states
            )
            if wrong or len(along.cuts) + len(along.states) > len(self.operands):
                raise part.fail("is repeated with states that it does not make")
            if along.segment is not None and along.segment < 1:
                raise part.fail("is made again no position at a time")
        if len(self.operands) != len(block.graph.inputs) or len(self.results) != made:
            raise part.fail(
                "gives a block another number of tensors than it takes, or takes another than it gives"
            )
        if len(self.shapes) != len(self.results):
            raise part.fail("has not a shape for each result")
        if len(self.tables) not in (0, len(block.tables)):
            raise part.fail("has not a name for each table of its block")

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that it reads: the operands, the parameters, the constants and the tables of the block."""
        return (*self.operands, *self.held, *self.tables)

    @property
    def held(self) -> tuple[str, ...]:
        """The parameters and the constants of the block, as they are called here."""
        leaves = (*self.plan.graph.parameters, *self.plan.constants)
        return tuple(scoped(self.scope, leaf.name) for leaf in leaves)

    @property
    def open_sizes(self) -> frozenset[str]:
        """The open sizes that it depends on."""
        own = size_names(self.along.axis.size) if self.along is not None else ()
        return frozenset((*self.plan.graph.open_sizes, *own))

    @property
    def defines(self) -> tuple[str, ...]:
        """The tensors that it computes."""
        return self.results

    @property
    def elements(self) -> tuple[Element, ...]:
        """What the results hold."""
        made = [result.element for result in self.plan.results]
        if self.along is None:
            return tuple(made[: len(self.results)])
        joined = self.along.joined(len(self.results))
        return (*made[:joined], *(made[n] for n in self.along.states if self.along.last))

    @property
    def times(self) -> int:
        """How often the block is called: once for each piece, or each position."""
        if self.along is not None:
            return self.along.count
        return 1 if self.slicing is None else self.slicing.count

    @property
    def flops(self) -> int:
        """FLOPs of the contractions in the block."""
        return self.times * self.plan.flops

    @property
    def flop_formula(self) -> Any:
        """The same in the names of the axes."""
        formula = self.plan.flop_formula
        if self.along is not None:
            return formula * self.along.axis.size
        return (
            formula
            if self.slicing is None
            else put_in(formula, {self.slicing.piece: symbol(self.slicing.size)})
        )

    @property
    def bytes(self) -> int:
        """Bytes read and written in the block."""
        return self.times * self.plan.bytes

    @property
    def seconds(self) -> float:
        """Expected time of the block."""
        return self.times * self.plan.seconds

    def shown(self, names: Mapping[Plan, str]) -> str:
        """The call as a line, the block by its name."""
        call = shown_call(self.results, names[self.plan], self.operands, self.scope)
        call += ", made again for the way back" if self.again else ""
        call += f" {self.along}" if self.along is not None else ""
        return call if self.slicing is None else f"{call} {self.slicing}"


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
