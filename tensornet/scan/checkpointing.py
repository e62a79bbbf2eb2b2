"""Checkpointing of scans: a recurrence in segments, recomputed in the backward pass.

    h.segments[s,b,t,o] = block(x[b,(s,t),i], h0[b,o], U[o,p])

Of a call that is rematerialised no more is kept than what it starts from: of each segment its first state, instead of
all that is made at each position. What is left over of the positions is a call of its own.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..graph.call import Along
from ..graph.element_types import of_tensors
from ..graph.graph import Apply, Graph, inlined, reads
from ..graph.leaves import Leaf
from ..graph.recurrences import Recurrence, in_order, reads_here
from ..graph.shape_inference import Axis, Dim, Scope, dim_size
from ..language.equation import Equation, renamed_axes
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Literal,
    Ref,
    Size,
    axes_of_index,
    free_axes,
    fresh,
    is_random,
    is_scalar,
    is_told,
    option_axes,
    references,
    subexpressions,
    transform,
)
from ..ops.structure import CONCAT, PAD
from ..passes.dead_code import eliminate_dead_code
from ..sizes import evaluate
from .lowering import Stating, states_of, with_states

__all__ = ["segmented"]


def segmented(graph: Graph, count: int) -> Graph:
    """The graph, whose recurrences go over their axes in about so many segments, each a call.

    Those that draw numbers, or whose axis has no size yet, are left as they are.
    """
    graph = inlined(graph, lambda call: any(part.recurrences for part in call.graph.parts()))
    return _Segmenting(with_states(graph), count).changed() if graph.recurrences else graph


class _Whole(Exception):  # noqa: N818
    """A recurrence that cannot be parted."""


@dataclass
class _Block:
    """A segment while it is written.

    Attributes:
        group: the recurrence.
        axis: what the positions of a segment are called.
        cuts: what is given segment by segment: the dimension of a tensor, and what the block calls it.
        wholes: what is given as it is.
        firsts: what the block calls the first of each state.
        body: the equations.
    """

    group: Recurrence
    axis: str
    cuts: dict[tuple[str, int], str] = field(default_factory=dict)
    wholes: dict[str, None] = field(default_factory=dict)
    firsts: dict[str, str] = field(default_factory=dict)
    body: list[Equation] = field(default_factory=list)


class _Segmenting(Stating):
    """Writes the graph anew, each equation after those that it reads, a recurrence as calls of its segments."""

    def __init__(self, graph: Graph, count: int) -> None:
        super().__init__(graph)
        self.count = count
        self.ends: dict[
            str, tuple[int, tuple[int, int], str]
        ] = {}  # where the last position is, and what holds it

    def changed(self) -> Graph:
        """The graph."""
        for item in in_order(self.graph.body, self.graph.recurrences):
            if not isinstance(item, Recurrence):
                self.body.append(self._outside(item))
                continue
            before = len(self.body)
            try:
                self._part(item)
            except _Whole:
                self.body[before:] = item.equations
        return eliminate_dead_code(
            replace(self.graph, body=tuple(self.body), sizes=tuple(self.bound.items()))
        )

    def _part(self, group: Recurrence) -> None:
        """The calls that a recurrence is, and its results under their names."""
        first = group.equations[0].name
        size = evaluate(dim_size(self.dims[first][group.dimension(first)]), self.bound)
        if not isinstance(size, int) or size < 2:
            raise _Whole
        group = self._with_sources(group)
        length = math.ceil(size / self.count)
        segments, rest = divmod(size, length)
        block = self._written(group)
        states = [each for each in group.equations if each.name in block.firsts]
        starts = tuple(self.start(each, group.without(each.name, each.left)) for each in states)
        carried = [each.right.arguments[0].name for each in states]  # type: ignore[union-attr]
        read = self._read(group, size, carried)
        joined = [each.name for each in group.equations if each.name in read]
        axis = self._axis("segment")
        results = {name: self.fresh(f"{name}.segments") for name in joined}
        lasts = tuple(self.fresh(f"{name}.last") for name in carried)
        cuts = tuple(self._cut(name, at, axis, (segments, length), rest, group) for name, at in block.cuts)
        along = Along(
            Axis(axis, segments),
            tuple(at for _, at in block.cuts),
            tuple(range(len(joined), len(joined) + len(states))),
            group.step > 0,
            last=True,
        )
        self._call(block, length, (*cuts, *starts), (*results.values(), *lasts), joined, along)
        for name in joined:
            made = self.fresh(f"{name}.most") if rest else name
            self._join(made, name, results[name], axis, (segments, length), group)
            results[name] = made
        if rest:
            lasts = self._rest(block, (segments * length, rest), carried, lasts, results)
        self.ends.update(
            (name, (group.dimension(name), _end(group, size), last))
            for name, last in zip(carried, lasts, strict=True)
        )

    def _rest(
        self,
        block: _Block,
        lengths: tuple[int, int],
        carried: Sequence[str],
        lasts: tuple[str, ...],
        results: Mapping[str, str],
    ) -> tuple[str, ...]:
        """The call of what whole segments leave over, behind their results; gives the last states.

        Args:
            block: what is called.
            lengths: the positions of the whole segments, and those that are left.
            carried: what becomes the next states.
            lasts: the states that the segments leave.
            results: of each tensor that is put together, what they give.
        """
        group = block.group
        cuts = tuple(self._cropped(name, at, -lengths[0], group, last=True) for name, at in block.cuts)
        others = {name: self.fresh(f"{name}.rest") for name in results}
        ends = tuple(self.fresh(f"{name}.last") for name in carried)
        self._call(block, lengths[1], (*cuts, *lasts), (*others.values(), *ends), list(results))
        for name, whole in results.items():
            self._concatenate(name, (whole, others[name]), group)
        return ends

    # ---- what is outside

    def _with_sources(self, group: Recurrence) -> Recurrence:
        """The recurrence with what is made for it alone, position by position."""
        taken, labels = list(group.equations), dict(group.labels)
        for item in reversed(self.graph.body):
            if not isinstance(item, Equation) or item.name in labels or item.name in self.graph.outputs:
                continue
            readers = [each for each in self.graph.body if item.name in {name for name, _ in reads(each)}]
            if not readers or is_random(item.right) or not {each.defines[0] for each in readers} <= {*labels}:
                continue
            found = {self._label_of(item, each, labels[each.defines[0]]) for each in readers}
            label = found.pop()
            if label is not None and not found:
                taken.insert(0, item)
                labels[item.name] = label
        return replace(group, equations=tuple(taken), labels=labels)

    def _label_of(self, item: Equation, reader: Equation | Apply, label: str) -> str | None:
        """What an equation calls the axis of one that reads it at its own position alone."""
        assert isinstance(reader, Equation)
        ref = next(each for each in reader.references if each.name == item.name)
        entries = [mine for mine, theirs in zip(item.left, ref.index, strict=True) if theirs == label]
        if len(entries) != 1 or not isinstance(entries[0], str):
            return None
        alone = Recurrence((item,), {item.name: entries[0]}, -1)
        return entries[0] if reads_here(reader, label, alone) else None

    def _read(self, group: Recurrence, size: int, carried: Container[str]) -> set[str]:
        """The tensors of which more than the last position is read outside, or that are results."""
        found = set(self.graph.outputs)
        for item in self.graph.body:
            if isinstance(item, Apply):
                found.update(item.operands)
            elif item.name not in group.names:
                found.update(
                    ref.name
                    for ref in item.references
                    if ref.name in group.names
                    and not (
                        ref.name in carried and ref.index[group.dimension(ref.name)] in _end(group, size)
                    )
                )
        return found

    def _outside(self, item: Equation | Apply) -> Equation | Apply:
        """What reads the last position of a state reads what the last segment left."""
        return replace(item, right=self._ending(item.right)) if isinstance(item, Equation) else item

    def _ending(self, part: Expression) -> Expression:
        part = transform(part, self._ending)
        if isinstance(part, Ref) and part.name in self.ends:
            at, positions, last = self.ends[part.name]
            if part.index[at] in positions:
                return replace(part, name=last, index=part.index[:at] + part.index[at + 1 :])
        return part

    # ---- the block

    def _written(self, group: Recurrence) -> _Block:
        """The block, and what is made before it."""
        taken = {axis for each in group.equations for axis in each.axes}
        block = _Block(
            group, fresh(group.labels[group.equations[0].name], {*taken, *self.taken, *self.sizes})
        )
        self.sizes.add(block.axis)
        states = {each.name for each in states_of(group)}
        for each in group.equations:
            if each.name in states:
                self._state(each, block)
            else:
                right = self._inside(each.right, each, block)
                block.body.append(self._renamed(replace(each, right=right), block))
        return block

    def _renamed(self, equation: Equation, block: _Block) -> Equation:
        return renamed_axes(equation, {block.group.labels[equation.name]: block.axis})

    def _state(self, state: Equation, block: _Block) -> None:
        """A state, which starts from what the segment before left."""
        assert isinstance(state.right, Call)
        block.firsts[state.name] = first = self.fresh(f"{state.name}.first")
        start = Ref(first, block.group.without(state.name, state.left))
        right = replace(state.right, arguments=(state.right.arguments[0], start))
        block.body.append(self._renamed(replace(state, right=right), block))

    def _inside(self, part: Expression, equation: Equation, block: _Block) -> Expression:
        """A part of an equation as the block has it: what is no matter of one position alone is made before."""
        group, label = block.group, block.group.labels[equation.name]
        recurs = any(ref.name in group.labels for ref in references(part))
        if is_random(part):
            raise _Whole
        if is_scalar(part) and not recurs:
            return self._number(part, equation, block)
        if isinstance(part, Ref):
            inner = transform(part, lambda each: self._inside(each, equation, block))
            assert isinstance(inner, Ref)
            if part.name in group.labels:
                return inner
            if self._is_cut(part, label):
                at = part.index.index(label) if label in part.index else None
                return replace(inner, name=self._given(part.name, at, block))
        elif not _is_sized(part) and (recurs or _is_alone(part, label)):
            return transform(part, lambda each: self._inside(each, equation, block))
        if recurs:
            raise _Whole
        axes = free_axes(part)
        left = (*((label,) if label in axes else ()), *(axis for axis in axes if axis != label))
        name = self.numbered(equation.name)
        self.put(name, left, part, self.graph.scope(equation))
        return Ref(self._given(name, 0 if label in axes else None, block), left)

    def _is_cut(self, ref: Ref, label: str) -> bool:
        """Whether a tensor is read at one position of an axis in one place at most, and by what tensors tell."""

        def tells(entry: Any) -> bool:
            named = all(each.name in self.dims for each in references(entry))
            return is_told(entry) and named

        inner = [entry for entry in ref.index if not isinstance(entry, str | int)]
        others = (entry for entry in inner if isinstance(entry, tuple) or not tells(entry))
        return ref.index.count(label) < 2 and label not in axes_of_index(tuple(others))

    def _number(self, number: Expression, equation: Equation, block: _Block) -> Expression:
        """A number; one that is made of sizes is given."""
        if not any(isinstance(each, Size) for each in subexpressions(number)):
            return number
        scope = self.graph.scope(equation)

        def told(part: Expression) -> Expression:
            return self.extent(scope[part.axis]) if isinstance(part, Size) else transform(part, told)

        name = self.numbered(equation.name)
        self.put(name, (), told(number), scope)
        return Ref(self._given(name, None, block), ())

    def _given(self, name: str, at: int | None, block: _Block) -> str:
        """What the block calls a tensor that it is given, of a segment along a dimension or as it is."""
        if at is None:
            block.wholes[name] = None
            return name
        if (name, at) not in block.cuts:
            block.cuts[name, at] = self.fresh(f"{name}.at")
        return block.cuts[name, at]

    # ---- the calls

    def _call(
        self,
        block: _Block,
        length: int,
        given: Sequence[str],
        results: Sequence[str],
        joined: Sequence[str],
        along: Along | None = None,
    ) -> None:
        """A call of the block with segments of some length."""
        group, ends = block.group, list[Equation]()
        last = 0 if group.step > 0 else length - 1
        states = {each.name: each for each in states_of(group)}
        for name in block.firsts:
            carried = states[name].right.arguments[0]  # type: ignore[union-attr]
            assert isinstance(carried, Ref)
            left = group.without(name, states[name].left)
            index = list(carried.index)
            index[group.dimension(carried.name)] = last
            ends.append(Equation(f"{block.firsts[name]}.next", left, replace(carried, index=tuple(index))))
        position = Axis(block.axis, length)
        leaves = (
            *(self._leaf(leaf, name, (at, (position,))) for (name, at), leaf in block.cuts.items()),
            *(self._leaf(leaf, name, (group.dimension(name), None)) for name, leaf in block.firsts.items()),
            *(self._leaf(name, name) for name in block.wholes),
        )
        sizes = {**self.bound, block.axis: length}
        outputs = (*joined, *(each.name for each in ends))
        graph = Graph(leaves, (*block.body, *ends), outputs, tuple(sizes.items()))
        call = Apply(graph, (*given, *block.wholes), tuple(results), "", True, along)
        self.body.append(call)
        inside = of_tensors(graph)
        for (output, name), (_, dims) in zip(call.made, call.returned(self.bound), strict=True):
            self.dims[name], self.elements[name] = dims, inside[output]

    def _leaf(self, leaf: str, name: str, other: tuple[int, Dim | None] | None = None) -> Leaf:
        """What a block is given of a tensor, one of whose dimensions is another there, or none."""
        dims = self.dims[name]
        if other is not None:
            at, dim = other
            dims = (*dims[:at], *(() if dim is None else (dim,)), *dims[at + 1 :])
        return Leaf(leaf, "input", dims, holds=self.elements[name])

    # ---- what goes in and comes out

    def _axis(self, stem: str) -> str:
        """A name of an axis."""
        found = fresh(stem, {*self.taken, *self.sizes})
        self.sizes.add(found)
        return found

    def _axes(self, name: str) -> tuple[str, ...]:
        """An axis for each dimension of a tensor."""
        found: list[str] = []
        for dim in self.dims[name]:
            found.append(fresh("_".join(axis.name for axis in dim), {*found, *self.taken}))
        return tuple(found)

    def _parted(self, name: str, at: int, axis: str, lengths: tuple[int, int]) -> tuple[list[Any], Scope]:
        """Axes for a tensor whose dimension is so many segments of some length; and the sizes of these."""
        axes, inner = list[Any](self._axes(name)), self._axis("position")
        sizes = dict(zip(axes, map(dim_size, self.dims[name]), strict=True))
        axes[at] = (axis, inner)
        return axes, Scope({**sizes, axis: lengths[0], inner: lengths[1]})

    def _cut(
        self, name: str, at: int, axis: str, lengths: tuple[int, int], rest: int, group: Recurrence
    ) -> str:
        """A tensor that is given segment by segment: each a position of a dimension before that which it was."""
        whole = self._cropped(name, at, -rest, group, last=False) if rest else name
        axes, scope = self._parted(whole, at, axis, lengths)
        parted = self.fresh(f"{name}.segments")
        left = (*axes[:at], *axes[at], *axes[at + 1 :])
        self.put(parted, left, Ref(whole, tuple(axes)), scope)
        return parted

    def _cropped(self, name: str, at: int, fewer: int, group: Recurrence, last: bool) -> str:
        """A tensor without some positions of those that come last, or of those that come first."""
        axes = self._axes(name)
        ends = (Literal(0), Literal(fewer))
        amounts = ends if last is (group.step > 0) else ends[::-1]
        part = self.fresh(f"{name}.rest" if last else f"{name}.most")
        sizes = Scope(dict(zip(axes, map(dim_size, self.dims[name]), strict=True)))
        self.put(part, axes, Call(PAD.name, (Ref(name, axes),), (), ((axes[at], amounts),)), sizes)
        return part

    def _join(
        self, made: str, name: str, parts: str, axis: str, lengths: tuple[int, int], group: Recurrence
    ) -> None:
        """Segments one after another."""
        at = group.dimension(name)
        axes, scope = self._parted(name, at, axis, lengths)
        index = (axis, *axes[:at], axes[at][1], *axes[at + 1 :])
        self.put(made, tuple(axes), Ref(parts, index), scope)

    def _concatenate(self, name: str, parts: tuple[str, str], group: Recurrence) -> None:
        """The segments of a result, and what is left over."""
        axes, at = self._axes(name), group.dimension(name)
        refs = tuple(Ref(each, axes) for each in (parts[::-1] if group.step > 0 else parts))
        sizes = Scope(dict(zip(axes, map(dim_size, self.dims[name]), strict=True)))
        self.put(name, axes, Call(CONCAT.name, refs, (axes[at],)), sizes)


def _end(group: Recurrence, size: int) -> tuple[int, int]:
    """The last position of a recurrence, told from the one side and from the other."""
    return (0, -size) if group.step > 0 else (-1, size - 1)


def _is_alone(part: Expression, label: str) -> bool:
    """Whether what does not recur is of each position by itself."""
    bound = part.summed if isinstance(part, Contraction) else ()
    if isinstance(part, Call):
        bound = (*part.axes, *option_axes(part))
    return label in free_axes(part) and label not in bound


def _is_sized(part: Expression) -> bool:
    """Whether sizes stand in what tells how a function is meant."""
    options = part.options if isinstance(part, Call) else ()
    return any(
        isinstance(each, Size) for _, values in options for value in values for each in subexpressions(value)
    )
