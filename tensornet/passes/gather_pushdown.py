"""Gather pushdown: what is read at one position is computed there alone.

    y[b,i,o] = gelu(x[b,i,c]*W[o,c]); z[b,o] = y[b,0,o]   is   y_1[b,o] = gelu(x[b,0,c]*W[o,c]); z[b,o] = y_1[b,o]

It goes through products, through functions of elements, and through functions that run over other axes.
What runs over the axis itself, or moves elements along it, is computed whole and read at the position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from ..graph.element_types import of_expression
from ..graph.graph import Graph
from ..graph.shape_inference import dim_size, size_expression
from ..language.affine import affine
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Index,
    Literal,
    Ref,
    Size,
    axes_of_index,
    axes_through,
    bound_axes,
    free_axes,
    fresh,
    is_scalar,
    is_told,
    occurring,
    rename,
    subexpressions,
    sum_of,
    transform,
)
from ..language.parser import parse_rule
from ..ops.structure import is_inside
from ..ops.table import FUNCTIONS
from ..sizes import evaluate, size_names, symbol
from .common_subexpressions import is_random
from .rewriter import Change, Cost, Draft

__all__ = ["push_gathers_down", "push_positions_down"]

Entry: TypeAlias = "int | Ref"
"""Where a tensor is read along an axis: at a position, or at those that another tensor holds."""


# ---------------------------------------------------------------------------- at one position


def push_positions_down(graph: Graph) -> Graph:
    """Computes a tensor at one position of an axis alone, where it is read at no other."""
    draft = Draft(graph)
    for name in [equation.name for equation in reversed(graph.own)]:
        change = _at_one_position(draft, name) if name in draft and name not in graph.outputs else None
        if change is not None:
            draft.take(change)
    return draft.finished()


def _at_one_position(draft: Draft, name: str) -> Change | None:
    producer, readers = draft[name], draft.readers(name)
    reads = [ref.index for reader in readers for ref in reader.references if ref.name == name]
    told = [_told(draft, name, position, reads) for position in range(len(producer.left))]
    fixed = {
        axis: entry
        for axis, entry in zip(producer.left, told, strict=True)
        if isinstance(axis, str) and entry is not None
    }
    if not fixed:
        return None
    kept = [n for n, axis in enumerate(producer.left) if axis not in fixed]
    left = tuple(producer.left[n] for n in kept)
    made = _Narrowing(draft, producer, fixed).equations(left)
    if not made:
        return None

    def read(part: Expression) -> Expression:
        changed = transform(part, read)
        if not isinstance(changed, Ref) or changed.name != name:
            return changed
        return replace(changed, name=made[-1].name, index=tuple(changed.index[n] for n in kept))

    changed = tuple(replace(reader, right=read(reader.right)) for reader in readers)
    return Change((*made, *changed), (producer, *readers))


def _told(draft: Draft, name: str, position: int, reads: list[tuple[Index, ...]]) -> int | None:
    """The place in a dimension at which all read it, if all do at the same."""
    found = {index[position] for index in reads}
    if not all(isinstance(entry, int) for entry in found):
        return None
    size = evaluate(dim_size(draft.dims[name][position]), draft.graph.bound)
    places = {entry % size if isinstance(size, int) else entry for entry in found}  # type: ignore[operator]
    return places.pop() if len(places) == 1 else None  # type: ignore[return-value]


# ---------------------------------------------------------------------------- at positions that a tensor holds


def push_gathers_down(graph: Graph, cost: Cost) -> Graph:
    """Gathers rows of what a tensor is made of instead of its own, where `cost` says that pays."""
    draft = Draft(graph)
    for name in [equation.name for equation in reversed(graph.own)]:
        if name in draft and draft.only_reader(name) is not None:
            draft.takes_best(_gathers(draft, name), cost)
    return draft.finished()


def _gathers(draft: Draft, name: str) -> Iterator[Change]:
    producer, reader = draft[name], draft.only_reader(name)
    assert reader is not None
    ref = next(ref for ref in reader.references if ref.name == name)
    entries = dict(zip(producer.left, ref.index, strict=True))
    named = {axis: entry for axis, entry in entries.items() if isinstance(axis, str)}
    gathers = {axis: entry for axis, entry in named.items() if isinstance(entry, Ref)}
    own = {entry: axis for axis, entry in named.items() if isinstance(entry, str)}
    if len(gathers) != 1 or len(own) + 1 < len(entries):
        return
    ((axis, index),) = gathers.items()
    inner, more = occurring(producer.right), [each for each in free_axes(index) if each not in own]
    names = {each: fresh(each, inner | set(draft.graph.bound)) if each in inner else each for each in more}
    moved = rename(index, {**own, **names})
    assert isinstance(moved, Ref)
    made = _Narrowing(draft, producer, {axis: moved}).equations((*own.values(), *names.values()))
    if not made:
        return

    def read(part: Expression) -> Expression:
        if part is ref:
            return Ref(made[-1].name, (*own, *more), ref.place)
        return transform(part, read)

    yield Change((*made, replace(reader, right=read(reader.right))), (producer, reader))


# ---------------------------------------------------------------------------- how it is written


class _Narrowing:
    """An equation, written for some positions of some of its axes.

    Attributes:
        fixed: those axes, and where the result is read along each.
        given: the axes of what tells where, which no function may run over then.
        parts: equations of what has to be computed along the whole of such an axis.
    """

    def __init__(self, draft: Draft, producer: Equation, fixed: Mapping[str, Entry]) -> None:
        self.draft, self.producer, self.fixed = draft, producer, fixed
        self.scope = draft.scope(producer.right)
        self.given = {axis for entry in fixed.values() if isinstance(entry, Ref) for axis in free_axes(entry)}
        self.parts: list[Equation] = []

    def equations(self, left: tuple[str | tuple[str, ...], ...]) -> tuple[Equation, ...]:
        """The equation under another name, the last, and those of parts that it reads.

        Nothing where it cannot be written so, or nothing would be gained; where it is random; and where the
        kind of the elements would be another.
        """
        right = self.producer.right
        if is_random(right) or not self._speaks_plainly():
            return ()
        try:
            narrowed = self.at(right)
        except _InseparableError:
            return ()
        if any(part.right is right for part in self.parts):
            return ()
        known = dict(self.draft.elements)
        for part in self.parts:
            known[part.name] = of_expression(part.right, known)
        if of_expression(narrowed, known) is not known[self.producer.name]:
            return ()
        name = self.draft.fresh(self.producer.name, known)
        return (*self.parts, Equation(name, left, narrowed, self.producer.place))

    def _speaks_plainly(self) -> bool:
        """Whether the sizes of the axes that go can be spoken of without them."""
        right = self.producer.right
        spoken = {part.axis for part in subexpressions(right) if isinstance(part, Size)} & set(self.fixed)
        names = {name for axis in spoken for name in size_names(self.scope[axis])}
        return all(self.scope[name] == symbol(name) for name in names & occurring(right))

    def at(self, expression: Expression) -> Expression:
        """The expression at the positions."""
        if not occurring(expression) & set(self.fixed):
            return expression
        match expression:
            case Size(axis):
                return size_expression(self.scope[axis])
            case Ref():
                return self._read(expression)
            case Contraction(_, summed):
                if set(summed) & {*self.fixed, *self.given}:
                    raise _InseparableError
                return self._kept(expression, transform(expression, self.at))
            case Call():
                return self._called(expression)
        return expression

    def _read(self, ref: Ref) -> Expression:
        parted = [entry for entry in ref.index if isinstance(entry, tuple) or _is_affine(entry)]
        if set(axes_of_index(tuple(parted))) & set(self.fixed):  # what it reads at one position may be less
            return self._apart(ref)
        index: list[Index] = []
        for entry in ref.index:
            match entry:
                case str():
                    index.append(self.fixed.get(entry, entry))
                case Ref() | Contraction() | Call():
                    index.append(self.at(entry))  # type: ignore[arg-type]
                case _:
                    index.append(entry)
        return replace(ref, index=tuple(index))

    def _called(self, call: Call) -> Expression:
        function = FUNCTIONS[call.function]
        whole = set(bound_axes(call))
        if function.is_kernel or is_inside(call):  # along the axis whose positions it tells
            whole |= {axis for each in subexpressions(call) if isinstance(each, Call) for axis in each.axes}
        if whole & set(self.fixed):
            raise _InseparableError
        if not axes_through(call) & {*self.fixed, *self.given}:
            return self._kept(call, transform(call, self.at))
        entry = self.fixed.get(*call.axes) if function.at else None
        if not isinstance(entry, int):
            return self._apart(call)
        from_end = [size_expression(self.scope[axis]) for axis in call.axes if entry < 0]
        operands = dict(zip("a", map(self.at, call.arguments), strict=False))
        return parse_rule(function.at, {**operands, "p": sum_of([*from_end, Literal(entry)])})

    def _kept(self, whole: Expression, changed: Expression) -> Expression:
        """What became of an expression; one that would be a number now is computed as the tensor that it was,
        but for sums and products, which mean the same of numbers."""
        if not is_scalar(changed) or is_scalar(whole):
            return changed
        parts = subexpressions(changed)
        plain = all(not isinstance(part, Call) or part.function == "add" for part in parts)
        return changed if plain else self._apart(whole)

    def _apart(self, part: Expression) -> Expression:
        """A part that is computed whole, by an equation of its own, read at the positions."""
        if not self.draft.stands_alone(part, self.scope):
            raise _InseparableError
        name = self.draft.fresh(f"{self.producer.name}_whole", [each.name for each in self.parts])
        axes = free_axes(part)
        self.parts.append(Equation(name, axes, part, part.place))
        return Ref(name, tuple(self.fixed.get(axis, axis) for axis in axes), part.place)


def _is_affine(entry: Index) -> bool:
    """Whether an entry of brackets is a position that follows from axes alone, `2*p + u - 1`."""
    return is_told(entry) and affine(entry) is not None


class _InseparableError(Exception):
    """An equation cannot be written for some positions of its axes."""
