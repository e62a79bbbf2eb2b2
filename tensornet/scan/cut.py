"""Basic blocks: a graph cut at its calls and at the states of its recurrences.

    h[t] = tanh(x[t] + h_1[t]),   h_1[t] = previous[t](h[t], h0)

The remaining program has no cycle. Its inputs are the results of calls and the states. Its outputs are the operands
of calls, and the tensors that states hold at another position.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ..frontend.elaborate_ir import function_of, inputs_of
from ..graph.element_types import of_tensors
from ..graph.graph import Apply, Graph, reads
from ..graph.leaves import Leaf
from ..graph.recurrences import calls_late, is_step
from ..ir.function import Function
from ..ir.naming import Names
from ..ir.node import Node
from ..ir.rewriting import Program
from ..language.equation import Equation
from ..language.expression import Call, Ref, fresh, references
from .states import states_of

__all__ = ["Cut", "State", "cut", "put_together"]


@dataclass(frozen=True)
class State:
    """A state of a recurrence.

    Attributes:
        equation: its equation, a step.
        behind: the tensor that it holds at another position.
        begin: the name of its first value, a tensor without the axis; "" if that is a number or missing.
        level: 0 in a recurrence, 1 in one that recurs at each position of another, and so on.
    """

    equation: Equation
    behind: str
    begin: str
    level: int

    @property
    def step(self) -> Call:
        """The step."""
        assert isinstance(self.equation.right, Call)
        return self.equation.right

    @property
    def at(self) -> int:
        """The dimension along which it recurs."""
        return self.equation.left.index(self.step.axes[0])

    def written(
        self, name: str, left: tuple[Any, ...], over: tuple[str, ...], behind: str, begin: str
    ) -> Equation:
        """The equation of the state under other names and axes.

        Args:
            name, behind: the names of the state and of the tensor behind it.
            left, over: its axes, and the axis along which it recurs.
            begin: the name of its first value; "" for none.
        """
        own = tuple(entry for entry in left if entry not in over)
        arguments = (Ref(behind, left), *([Ref(begin, own)] if begin else []))
        return Equation(name, left, Call(self.step.function, arguments, over))


@dataclass(frozen=True, eq=False)
class Cut:
    """The program that remains of a graph, and the states that are cut out.

    Attributes:
        graph: the graph.
        program: its equations; the results of calls and the states are inputs.
        states: by name.
    """

    graph: Graph
    program: Program
    states: Mapping[str, State]

    @property
    def nodes(self) -> dict[str, Node]:
        """The nodes of the program's inputs and results, by name."""
        function, names = self.program.function, self.program.names
        found = {leaf.name: each for each, leaf in self.program.leaves.items()}
        return found | dict(zip(names.outputs, function.outputs, strict=True))


@functools.lru_cache(maxsize=64)
def cut(graph: Graph) -> Cut:
    """Cuts a graph of `with_states` at its calls and states.

    There each `previous[t](…)` of a recurrence is the whole right side of an equation.
    """
    elements, states = of_tensors(graph), dict[str, State]()
    rest = replace(graph, leaves=tuple(replace(leaf, holds=elements[leaf.name]) for leaf in graph.leaves))

    def given(names: Iterable[str]) -> tuple[Leaf, ...]:
        return tuple(Leaf(name, "input", graph.named[name], holds=elements[name]) for name in names)

    for level in itertools.count():  # also of recurrences inside recurrences
        found = {each.equation.name: each for each in _states(rest, level)}
        if not found:
            break
        states |= found
        body = tuple(item for item in rest.body if found.keys().isdisjoint(item.defines))
        rest = replace(rest, leaves=(*rest.leaves, *given(found)), body=body)
    own = (*rest.own, *(_begin(each) for each in states.values() if each.begin))
    leaves = (*rest.leaves, *given(name for call in graph.calls for name in call.results))
    asked = [*graph.outputs, *(name for call in graph.calls for name in call.names().values())]
    asked += [name for each in states.values() for name in (each.behind, each.begin)]
    asked += [
        ref.name for each in states.values() for start in each.step.arguments[1:] for ref in references(start)
    ]
    made = {each.name for each in own}
    outputs = tuple(name for name in dict.fromkeys(asked) if name in made)
    if outputs:
        program = Program(*function_of(Graph(leaves, own, outputs, graph.sizes)))
    else:
        program = Program(Function(inputs_of(leaves, graph), ()), Names(leaves, (), graph.sizes, {}, {}))
    return Cut(graph, program, states)


def _states(graph: Graph, level: int) -> Iterator[State]:
    """The states of all recurrences."""
    taken = {*graph.named}
    for equation in (each for group in graph.recurrences for each in states_of(group)):
        assert isinstance(equation.right, Call)
        behind, *starts = equation.right.arguments
        assert isinstance(behind, Ref)
        begin = fresh(f"{equation.name}.begin", taken) if starts and isinstance(starts[0], Ref) else ""
        taken.add(begin)
        yield State(equation, behind.name, begin, level)


def _begin(state: State) -> Equation:
    """The equation of the first value of a state."""
    left = state.equation.left
    return Equation(state.begin, left[: state.at] + left[state.at + 1 :], state.step.arguments[1])


# ---------------------------------------------------------------------------- put together again

Item: TypeAlias = "Equation | Apply"


def put_together(items: Sequence[Item], told: bool = True) -> Iterator[Item]:
    """Equations and calls in topological order, except that a step may precede the tensor that it shifts.

    Args:
        items: the equations and calls.
        told: whether calls stay in their order, and come as late as possible.
    """
    makers = {name: item for item in items for name in item.defines}
    return calls_late(
        items, lambda item: _before(item, makers), lambda item: told and isinstance(item, Apply)
    )


def _before(item: Item, makers: Mapping[str, Item]) -> list[Item]:
    """The items that an item must follow; for a step, those that its start reads and other steps."""
    found = [makers[name] for name, _ in reads(item) if name in makers]
    if isinstance(item, Apply) or not isinstance(item.right, Call) or not is_step(item.right):
        return found
    begun = {ref.name for start in item.right.arguments[1:] for ref in references(start)}
    return [
        each
        for each in found
        if not begun.isdisjoint(each.defines) or (isinstance(each, Equation) and is_step(each.right))
    ]
