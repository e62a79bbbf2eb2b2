"""A graph cut where it does not go straight on: at its calls, and at the states of its recurrences.

    h[t] = tanh(x[t] + h_1[t]),   h_1[t] = previous[t](h[t], h0)

What calls give and states hold is given to the program that is left, which has no circle; what calls are given, and
states hold of the position before, it makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ..frontend.elaborate_ir import function_of, inputs_of
from ..graph.element_types import of_tensors
from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..ir.function import Function
from ..ir.names import Names
from ..ir.node import Node
from ..ir.rewriting import Program
from ..language.equation import Equation
from ..language.expression import Call, Ref, fresh, references
from ..scan.lowering import states_of

__all__ = ["Cut", "State", "cut"]


@dataclass(frozen=True)
class State:
    """A state of a recurrence.

    Attributes:
        equation: its equation, a step.
        behind: the tensor whose other position it is.
        begin: what it starts from, as a tensor without its axis; "" if that is a number, or nothing.
    """

    equation: Equation
    behind: str
    begin: str

    @property
    def step(self) -> Call:
        """The step."""
        assert isinstance(self.equation.right, Call)
        return self.equation.right

    @property
    def at(self) -> int:
        """The dimension along which it goes."""
        return self.equation.left.index(self.step.axes[0])


@dataclass(frozen=True)
class Cut:
    """The program that is left of a graph, and what is cut out.

    Attributes:
        graph: the graph.
        program: its equations; what calls give and states hold is given.
        states: by name.
    """

    graph: Graph
    program: Program
    states: Mapping[str, State]

    @property
    def nodes(self) -> dict[str, Node]:
        """The nodes of what is given to the program and of its results, by name."""
        function, names = self.program.function, self.program.names
        found = {leaf.name: each for each, leaf in self.program.leaves.items()}
        return found | dict(zip(names.outputs, function.outputs, strict=True))


def cut(graph: Graph) -> Cut:
    """A graph, in whose recurrences each tensor of another position has an equation, cut there and at its calls."""
    elements, states = of_tensors(graph), dict[str, State]()
    rest = replace(graph, leaves=tuple(replace(leaf, holds=elements[leaf.name]) for leaf in graph.leaves))

    def given(names: Iterable[str]) -> tuple[Leaf, ...]:
        return tuple(Leaf(name, "input", graph.named[name], holds=elements[name]) for name in names)

    while found := {each.equation.name: each for each in _states(rest)}:  # of recurrences in recurrences too
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
        program = Program(Function(inputs_of(leaves, graph), ()), Names(leaves, (), graph.sizes, {}, {}, {}))
    return Cut(graph, program, states)


def _states(graph: Graph) -> Iterator[State]:
    """The states of all recurrences."""
    taken = {*graph.named}
    for equation in (each for group in graph.recurrences for each in states_of(group)):
        assert isinstance(equation.right, Call)
        behind, *starts = equation.right.arguments
        assert isinstance(behind, Ref)
        begin = fresh(f"{equation.name}.begin", taken) if starts and isinstance(starts[0], Ref) else ""
        taken.add(begin)
        yield State(equation, behind.name, begin)


def _begin(state: State) -> Equation:
    """The equation of what a state starts from."""
    left = state.equation.left
    return Equation(state.begin, left[: state.at] + left[state.at + 1 :], state.step.arguments[1])
