"""Associative scans: linear recurrences in a logarithmic number of rounds.

    h[b,t,n] = a[b,t,n] * previous[t](h[b,t,n]) + u[b,t,n]

What the position before left is `recur[t](a, u)`, and where `a` is 1 a running sum; all else follows from it.
What is infinite may become NaN: the products of several `a` stand for the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ..graph.builder import Written
from ..graph.graph import Graph
from ..graph.recurrences import Recurrence, in_order, is_step, recurrences
from ..graph.shape_inference import dim_size
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Literal,
    Ref,
    axes_of_index,
    free_axes,
    product_of,
    references,
    rename,
    sum_of,
    without,
)
from ..ops.along_axes import RECUR
from ..ops.pointwise import EQUAL, WHERE
from ..ops.scan import CUMSUM, PREVIOUS
from ..ops.structure import INDEX
from ..ops.table import CONVERSIONS, Element
from .states import with_states

__all__ = ["Pays", "doubled"]

Pays: TypeAlias = "Callable[[Any, Sequence[Any]], bool]"
"""Whether it is quicker so, told of the positions along the axis, and of the sizes of the other dimensions."""

ONE, ZERO = Literal(1), Literal(0)


@dataclass(frozen=True)
class _Linear:
    """`factor * m + rest`; what is 0 is nothing."""

    factor: Expression | None
    rest: Expression | None


def doubled(graph: Graph, pays: Pays) -> Graph:
    """The graph, some of whose recurrences go round no more: those of one state that is linear, each element by itself.

    Args:
        graph: the graph.
        pays: whether that is quicker than a loop.
    """
    if not graph.recurrences:
        return graph
    states = with_states(graph)
    return _Doubling(states, pays).changed(graph)


class _Doubling(Written):
    """Puts other equations in the place of those of states."""

    def __init__(self, graph: Graph, pays: Pays) -> None:
        super().__init__(graph)
        self.pays = pays
        self.equations = {equation.name: equation for equation in graph.own}

    def changed(self, before: Graph) -> Graph:
        """The graph; as it was before, if nothing is quicker."""
        found = {}
        for group in self.graph.recurrences:
            for state in _states(group):
                linear = self._linear_state(group, state)
                if linear is not None:
                    found[state.name] = group, linear
        if not found:
            return before
        for item in self.graph.body:
            if isinstance(item, Equation) and item.name in found:
                self._without_circle(item, *found[item.name])
            else:
                self.body.append(item)
        groups = recurrences([item for item in self.body if isinstance(item, Equation)])
        units = in_order(self.body, groups)
        body = [
            each for unit in units for each in (unit.equations if isinstance(unit, Recurrence) else (unit,))
        ]
        return replace(self.graph, body=tuple(body), sizes=tuple(self.bound.items()))

    def _linear_state(self, group: Recurrence, state: Equation) -> _Linear | None:
        """How the next state is made of this one, if that is linear, and quicker without a loop."""
        at, dims = group.dimension(state.name), self.dims[state.name]
        if len(_states(group)) > 1 or self.elements[state.name] < Element.WIDE:
            return None
        sizes = [dim_size(dim) for dim in dims]
        if not self.pays(sizes[at], sizes[:at] + sizes[at + 1 :]):
            return None
        assert isinstance(state.right, Call)
        behind, *starts = state.right.arguments
        found = self._linear(behind, state, frozenset(group.names))
        if found is None:
            return None
        told = [each for each in (found.factor, found.rest, *starts) if each is not None]
        axes = {axis for each in told for axis in free_axes(each)} | set(state.right.axes if starts else ())
        return (
            found if axes.issuperset(axes_of_index(state.left)) else None
        )  # else nothing is as long as it is

    def _linear(self, part: Expression, state: Equation, names: frozenset[str]) -> _Linear | None:
        """An expression under the axes of the state, as a factor of the state and the rest."""
        if not any(ref.name in names for ref in references(part)):
            return _Linear(None, part)
        match part:
            case Ref(name, index) if name == state.name:
                return _Linear(ONE, None) if index == state.left else None
            case Ref(name, index) if name in names:
                equation = self.equations[name]
                own, read = _plain(equation.left), _plain(index)
                if own is None or read is None or len(own) != len(read):
                    return None
                pairs = dict(zip(own, read, strict=True))
                return self._linear(rename(equation.right, pairs), state, names)
            case Call("add", terms):
                found = [self._linear(each, state, names) for each in terms]
                if any(each is None for each in found):
                    return None
                factors = [each.factor for each in found if each is not None and each.factor is not None]
                rests = [each.rest for each in found if each is not None and each.rest is not None]
                return _Linear(sum_of(factors), sum_of(rests) if rests else None)
            case Contraction(factors, ()):
                inside = [each for each in factors if any(ref.name in names for ref in references(each))]
                if len(inside) > 1:
                    return None
                inner = self._linear(inside[0], state, names)
                if inner is None:
                    return None
                others = without(factors, inside)
                return _Linear(_times(inner.factor, others), _times(inner.rest, others))
            case Call(function, (operand,), ()) if function == CONVERSIONS[Element.NUMBER]:
                return self._linear(operand, state, names)
        return None

    # ---- equations

    def _without_circle(self, state: Equation, group: Recurrence, linear: _Linear) -> None:
        """The equations by which a state follows from what it was made of all along."""
        assert isinstance(state.right, Call)
        (axis,), starts = state.right.axes, state.right.arguments[1:]
        scope = self.graph.scope(state)
        back = state.right.function != PREVIOUS.name
        end = sum_of([self.extent(scope[axis]), Literal(-1)]) if back else ZERO
        first = Call(EQUAL.name, (Call(INDEX.name, (), (axis,)), end))
        factor = self._named(linear.factor or ZERO, state, scope)
        rest = self._named(linear.rest or ZERO, state, scope)
        if factor == ONE and rest != ZERO:
            running = Call(CUMSUM.name, (rest,), (axis,), (("back", (Literal(int(back)),)),))
            self.put(name := self.numbered(state.name), state.left, running, scope)
            moved = Call(state.right.function, (Ref(name, state.left),), (axis,))
            self.put(state.name, state.left, sum_of([moved, *starts]), scope)
            return
        start = starts[0] if starts else ZERO
        is_told = isinstance(start, Literal) and axis in {*free_axes(factor), *free_axes(rest)}
        if not is_told:
            added = Call(WHERE.name, (first, product_of([factor, start]), ZERO))
            rest = self._named(sum_of([*([] if rest == ZERO else [rest]), added]), state, scope)
        options = (("start", (start if is_told else ZERO,)), ("back", (Literal(int(back)),)))
        found: Expression = Call(RECUR.name, (factor, rest), (axis,), options)
        if not is_told:
            self.put(name := self.numbered(state.name), state.left, found, scope)
            found = sum_of([Ref(name, state.left), Call(WHERE.name, (first, start, ZERO))])
        self.put(state.name, state.left, found, scope)

    def _named(self, expression: Expression, state: Equation, scope: Any) -> Expression:
        """A tensor of its own for an expression; a number as it is."""
        if isinstance(expression, Ref | Literal):
            return expression
        axes = free_axes(expression)
        left = tuple(axis for axis in axes_of_index(state.left) if axis in axes)
        self.put(name := self.numbered(state.name), left, expression, scope)
        return Ref(name, left)


def _states(group: Recurrence) -> tuple[Equation, ...]:
    """The equations of a recurrence that read another position."""
    return tuple(each for each in group.equations if is_step(each.right))


def _plain(index: tuple[Any, ...]) -> tuple[str, ...] | None:
    """The axes in brackets, if there is nothing else, and each once."""
    names = [axis for entry in index for axis in (entry if isinstance(entry, tuple) else (entry,))]
    plain = all(isinstance(each, str) for each in names) and len(set(names)) == len(names)
    return tuple(names) if plain else None


def _times(expression: Expression | None, others: Sequence[Expression]) -> Expression | None:
    if expression is None:
        return None
    return product_of([*([] if expression == ONE and others else [expression]), *others])
