"""States of recurrences: each tensor read at another position as its own equation, `h_1 = previous[t](h, h0)`.

A step outside of a recurrence becomes a crop, concatenated with its start.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from ..errors import EquationError
from ..graph.builder import Written
from ..graph.graph import Graph
from ..graph.recurrences import Recurrence, in_order, is_step, read_later
from ..graph.shape_inference import Scope
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Expression,
    Index,
    Literal,
    Ref,
    axes_of_index,
    free_axes,
    fresh,
    is_scalar,
    references,
    rename,
    transform,
)
from ..ops.along_axes import PREVIOUS
from ..ops.structure import CONCAT, PAD

__all__ = ["moved", "states_of", "with_states"]


@functools.lru_cache(maxsize=256)
def with_states(graph: Graph) -> Graph:
    """The graph, with an equation for each recurrent tensor of another position: `h_1 = previous[t](h, h0)`.

    Only recurrent tensors are read before they are defined; each other equation follows those that it reads.
    """
    if next(read_later(graph.body, (leaf.name for leaf in graph.leaves)), None) is None:
        return graph
    units = in_order(graph.body, graph.recurrences)
    body = (each for unit in units for each in (unit.equations if isinstance(unit, Recurrence) else (unit,)))
    graph = replace(graph, body=tuple(body))
    return _States(graph).changed() if graph.recurrences else graph


class _States(Written):
    """Puts the equation of a state before the equation that reads it first."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.states: dict[Expression, Ref] = {}
        self.round = {name for each in graph.recurrences for name in each.names}

    def changed(self) -> Graph:
        """The changed graph."""
        for item in self.graph.body:
            if isinstance(item, Equation) and item.name in self.round:
                item = self._told(item)
            self.body.append(item)
        return replace(self.graph, body=tuple(self.body), sizes=tuple(self.bound.items()))

    def _told(self, equation: Equation) -> Equation:
        if is_step(equation.right) and _is_state(equation):
            return equation

        def visit(part: Expression) -> Expression:
            part = transform(part, visit)
            if isinstance(part, Call) and is_step(part) and self._recurs(part.arguments[0]):
                return self._state(part, equation)
            return part

        return replace(equation, right=visit(equation.right))

    def _recurs(self, expression: Expression) -> bool:
        return any(ref.name in self.round for ref in references(expression))

    def _state(self, step: Call, equation: Equation) -> Ref:
        """The state that a step reads, under the axes of the reader."""
        operand, *starts = step.arguments
        if not isinstance(operand, Ref) or _hangs_on(operand.index, step.axes[0]):
            left, name = free_axes(operand), self.numbered(equation.name)
            self.put(name, left, operand, self.graph.scope(equation))
            self.round.add(name)
            operand = Ref(name, left)
        names, entries, is_whole = self._canonical(operand)
        axis = names[step.axes[0]]
        if is_whole:
            starts = [rename(each, {old: new for old, new in names.items() if old != new}) for each in starts]
        else:
            at = operand.index.index(step.axes[0])
            given, own = (index[:at] + index[at + 1 :] for index in (operand.index, entries))
            starts = [self._in_its_parts(each, given, own, operand, equation) for each in starts]
        right = Call(step.function, (Ref(operand.name, entries), *starts), (axis,))
        if right not in self.states:
            name = self.fresh(f"{operand.name}.{step.function}")
            self.put(name, entries, right, Scope())
            self.round.add(name)
            self.states[right] = Ref(name, entries)
        return Ref(self.states[right].name, operand.index)

    def _in_its_parts(
        self,
        start: Expression,
        left: tuple[Index, ...],
        index: tuple[Index, ...],
        state: Ref,
        equation: Equation,
    ) -> Expression:
        """The start of a state whose reader groups its axes differently: a new tensor, read in the state's groups."""
        if is_scalar(start):
            return start
        flat = _flat(left)
        if set(flat) != set(free_axes(start)) or len(set(flat)) < len(flat):
            fix = "read it under axes of its own, in a line of its own"
            raise EquationError(f"'{state.name}' has a start, and is read in parts", state.place, fix)
        name = self.numbered(equation.name)
        self.put(name, left, start, self.graph.scope(equation))
        return Ref(name, index)

    def _canonical(self, ref: Ref) -> tuple[dict[str, str], tuple[str | tuple[str, ...], ...], bool]:
        """Axes of a tensor for all readers: the new names of a reader's axes, the index, whether it has each once."""
        names, entries, is_whole = dict[str, str](), list[str | tuple[str, ...]](), True
        taken: set[str] = set()

        def named(axis: str) -> str:
            taken.add(found := fresh(axis, taken))
            return found

        for entry, dim in zip(ref.index, self.dims[ref.name], strict=True):
            made: str | tuple[str, ...]
            if isinstance(entry, tuple) and len(entry) == len(dim):
                made = tuple(named(axis.name) for axis in dim)
                pairs: list[tuple[Any, str]] = list(zip(entry, made, strict=True))
            else:
                made = named("_".join(axis.name for axis in dim))
                pairs = [(entry, made)]
            for mine, theirs in pairs:
                is_whole = is_whole and isinstance(mine, str) and mine not in names
                if isinstance(mine, str):
                    names.setdefault(mine, theirs)
            entries.append(made)
        return names, tuple(entries), is_whole


def states_of(group: Recurrence) -> tuple[Equation, ...]:
    """The equations of the states of a recurrence."""
    return tuple(
        each
        for each in group.equations
        if isinstance(each.right, Call) and each.right.axes == (group.labels[each.name],) and _is_state(each)
    )


def _is_state(equation: Equation) -> bool:
    """Whether an equation is only a tensor at another position."""
    match equation.right:
        case Call(_, (Ref(_, index), *_), (_,)) as step if is_step(step):
            plain = all(isinstance(entry, str | tuple) for entry in index)
            return plain and index == equation.left and len(set(axes_of_index(index))) == len(_flat(index))
    return False


def _hangs_on(index: tuple[Index, ...], axis: str) -> bool:
    """Whether an index uses an axis other than as one plain entry."""
    return axis in axes_of_index(tuple(entry for entry in index if entry != axis)) or index.count(axis) > 1


def _flat(index: tuple[Index, ...]) -> list[Any]:
    return [axis for entry in index for axis in (entry if isinstance(entry, tuple) else (entry,))]


# ---------------------------------------------------------------------------- steps outside of recurrences


def moved(step: Call) -> Expression:
    """A step at all positions at once: its operand, cropped on one side, with the start on the other."""
    operand, *starts = step.arguments
    ahead = 1 if step.function == PREVIOUS.name else -1
    (axis,) = step.axes
    if not starts or is_scalar(starts[0]):
        fill = (("value", (starts[0],)),) if starts else ()
        return Call(PAD.name, (operand,), (), ((axis, (Literal(ahead), Literal(-ahead))), *fill))
    amounts = (Literal(min(ahead, 0)), Literal(min(-ahead, 0)))
    rest = Call(PAD.name, (operand,), (), ((axis, amounts),))
    return Call(CONCAT.name, (*starts, rest) if ahead > 0 else (rest, *starts), (axis,), place=step.place)
