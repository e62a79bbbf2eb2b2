"""Scans: recurrences as calls of a block along an axis.

    f[b,t,o] = sigmoid(x[b,t,i] * W[o,i] + previous[t](h[b,t,p]) * U[o,p])
    h[b,t,o] = f * …

The block makes what there is at one position, of what comes in there and of the states that the one before
left. What does not recur is loop-invariant, and leaves the loop by construction: each part of an equation that
reads nothing of the recurrence is an equation of its own, for all positions at once,
`f_1[t,b,o] = x[b,t,i] * W[o,i]`. What has nothing to do with the axis, `U`, is a constant of the block, and what
is made of constants alone is made before the loop. A step outside of a recurrence is a crop beside what it starts
from.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ..errors import EquationError
from ..graph.builder import Written
from ..graph.call import Along
from ..graph.element_types import of_expression
from ..graph.graph import Apply, Graph, reads
from ..graph.leaves import Leaf
from ..graph.recurrences import Recurrence, in_order, is_step, read_later, reads_here
from ..graph.shape_inference import Axis, Dim, Scope, dim_size
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
    free_axes,
    fresh,
    is_scalar,
    is_told,
    parts_of,
    references,
    rename,
    subexpressions,
    sum_of,
    transform,
)
from ..ops.scan import PREVIOUS
from ..ops.structure import CONCAT, INDEX, PAD, REPEAT
from ..ops.table import CONVERSIONS, FUNCTIONS, Element
from ..passes.dead_code import eliminate_dead_code
from ..sizes import evaluate

__all__ = ["Stating", "looped", "states_of", "with_states"]

ZERO = Literal(0)


# ---------------------------------------------------------------------------- states


@functools.lru_cache(maxsize=256)
def with_states(graph: Graph) -> Graph:
    """The graph, in whose recurrences each tensor of another position has an equation: `h_1 = previous[t](h, h0)`.

    What goes round alone is read before it is defined; all else stands below what it reads.
    """
    if next(read_later(graph.body, (leaf.name for leaf in graph.leaves)), None) is None:
        return graph
    units = in_order(graph.body, graph.recurrences)
    body = (each for unit in units for each in (unit.equations if isinstance(unit, Recurrence) else (unit,)))
    graph = replace(graph, body=tuple(body))
    return _States(graph).changed() if graph.recurrences else graph


class _States(Written):
    """Puts the equation of a state before what reads it first."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.states: dict[Expression, Ref] = {}
        self.round = {name for each in graph.recurrences for name in each.names}

    def changed(self) -> Graph:
        """The graph."""
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
        """The tensor that a step reads, under the axes it reads it with."""
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
        """The start of a state that is read in other parts than it has: a tensor, read in those."""
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
        """Axes for a tensor, whoever reads it: what a reader's are called, the index, and whether each has one."""
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
    """The equations of what the position before left."""
    return tuple(
        each
        for each in group.equations
        if isinstance(each.right, Call) and each.right.axes == (group.labels[each.name],) and _is_state(each)
    )


def _is_state(equation: Equation) -> bool:
    """Whether an equation is no more than a tensor at another position."""
    match equation.right:
        case Call(_, (Ref(_, index), *_), (_,)) as step if is_step(step):
            plain = all(isinstance(entry, str | tuple) for entry in index)
            return plain and index == equation.left and len(set(axes_of_index(index))) == len(_flat(index))
    return False


def _hangs_on(index: tuple[Index, ...], axis: str) -> bool:
    """Whether a tensor is read along an axis, and at positions that hang on that besides."""
    return axis in axes_of_index(tuple(entry for entry in index if entry != axis)) or index.count(axis) > 1


def _flat(index: tuple[Index, ...]) -> list[Any]:
    return [axis for entry in index for axis in (entry if isinstance(entry, tuple) else (entry,))]


# ---------------------------------------------------------------------------- steps outside of recurrences


def _at_once(part: Expression) -> Expression:
    """An expression of no recurrence, without steps."""
    part = transform(part, _at_once)
    return _moved(part) if isinstance(part, Call) and is_step(part) else part


def _moved(step: Call) -> Expression:
    """What a step reads, all positions at once: cropped on one side, with the start on the other."""
    operand, *starts = step.arguments
    ahead = 1 if step.function == PREVIOUS.name else -1
    (axis,) = step.axes
    if not starts or is_scalar(starts[0]):
        fill = (("value", (starts[0],)),) if starts else ()
        return Call(PAD.name, (operand,), (), ((axis, (Literal(ahead), Literal(-ahead))), *fill))
    amounts = (Literal(min(ahead, 0)), Literal(min(-ahead, 0)))
    rest = Call(PAD.name, (operand,), (), ((axis, amounts),))
    return Call(CONCAT.name, (*starts, rest) if ahead > 0 else (rest, *starts), (axis,), place=step.place)


# ---------------------------------------------------------------------------- loops


Large: TypeAlias = "Callable[[Sequence[Any]], bool]"
"""Whether a tensor of some sizes had better not be there as a whole."""


def looped(graph: Graph, large: Large = lambda sizes: False, alone: bool = False) -> Graph:
    """The graph with a call along its axis in the place of each recurrence, and without steps otherwise.

    Args:
        graph: the graph.
        large: tells states of which nothing but smaller tensors is made at once, position by position.
        alone: whether products of what comes in are made position by position too, so that they are never there as
            a whole.
    """
    if not any(map(is_step, (part for equation in graph.own for part in equation.parts))):
        return graph
    needed = graph.needed()
    body = tuple(item for item in graph.body if needed.intersection(item.defines))
    return _Looping(with_states(replace(graph, body=body)), large, alone).changed()


@dataclass
class _Block:
    """A block while it is written: what is given to it at each position, and at all of them.

    Attributes:
        group: the recurrence.
        cuts: what is given position by position: the dimension of a tensor, and what the block calls it.
        wholes: what is given as it is.
        body: the equations.
    """

    group: Recurrence
    cuts: dict[tuple[str, int], str] = field(default_factory=dict)
    wholes: dict[str, None] = field(default_factory=dict)
    body: list[Equation] = field(default_factory=list)

    @functools.cached_property
    def states(self) -> tuple[Equation, ...]:
        """The equations of what the position before left."""
        return states_of(self.group)


class Stating(Written):
    """Writes what the states of recurrences start from."""

    def start(self, state: Equation, left: tuple[Any, ...]) -> str:
        """The tensor that a state starts from.

        Args:
            state: its equation.
            left: its axes, without the one along which it goes.
        """
        assert isinstance(state.right, Call)
        element = self.elements[state.name]
        start = _at_once(state.right.arguments[1]) if len(state.right.arguments) > 1 else ZERO
        holds = self.elements[start.name] if isinstance(start, Ref) else None
        if isinstance(start, Ref) and start.index == left and holds is element:
            return start.name
        for each in axes_of_index(left):
            if each not in free_axes(start):
                start = Call(REPEAT.name, (start,), (each,))
        if of_expression(start, self.elements) is not element and element >= Element.WIDE:
            start = Call(CONVERSIONS[element], (start,))
        name = self.fresh(f"{state.name}.start")
        self.put(name, left, start, self.graph.scope(state))
        return name


class _Looping(Stating):
    """Writes the graph anew, each equation after those that it reads, a recurrence as one call."""

    def __init__(self, graph: Graph, large: Large, alone: bool) -> None:
        super().__init__(graph)
        self.large, self.alone = large, alone
        self.recurrences = tuple(map(self._with_readers, graph.recurrences))
        self.groups = {name: each for each in self.recurrences for name in each.names}
        self.wholes: dict[str, tuple[str, int]] = {}  # of a result, what holds it, and where it has the axis

    def changed(self) -> Graph:
        """The graph."""
        for item in in_order(self.graph.body, self.recurrences):
            if isinstance(item, Recurrence):
                self._loop(item)
            elif isinstance(item, Equation):
                self.body.append(replace(item, right=self._outside(item.right)))
            else:
                self.body.append(item)
        return eliminate_dead_code(
            replace(self.graph, body=tuple(self.body), sizes=tuple(self.bound.items()))
        )

    def _outside(self, part: Expression) -> Expression:
        """An expression outside of recurrences: of what these put together, and without steps."""
        part = transform(part, self._outside)
        if isinstance(part, Ref) and part.name in self.wholes:
            name, at = self.wholes[part.name]
            return replace(part, name=name, index=(part.index[at], *part.index[:at], *part.index[at + 1 :]))
        return _moved(part) if isinstance(part, Call) and is_step(part) else part

    @functools.cached_property
    def read(self) -> frozenset[str]:
        """What is read outside of the recurrence that makes it, or is a result."""
        found = set(self.graph.outputs)
        for item in self.graph.body:
            group = self.groups.get(item.defines[0])
            inside = group.names if group is not None else frozenset[str]()
            found.update(name for name, _ in reads(item) if name not in inside)
        return frozenset(found)

    # ---- what reads large states

    def _with_readers(self, group: Recurrence) -> Recurrence:
        """The recurrence with what makes smaller tensors of its large ones, where nothing else reads these."""
        labels, taken = dict(group.labels), list[Equation]()
        after = self._after(group)
        for name in group.names:
            readers = [item for item in after if name in {each for each, _ in reads(item)}]
            sizes = [dim_size(dim) for dim in self.dims[name]]
            if not readers or name in self.graph.outputs or not self.large(sizes):
                continue
            found = [self._label_in(group, item, name, after) for item in readers]
            if all(found):
                equations = [each for each in readers if isinstance(each, Equation)]
                taken += [each for each in equations if each not in taken]
                labels.update(
                    (each.name, label) for each, label in zip(equations, found, strict=True) if label
                )
        return replace(group, equations=(*group.equations, *taken), labels=labels)

    def _after(self, group: Recurrence) -> list[Equation | Apply]:
        """What hangs on a recurrence, and is no part of it."""
        names, found = set(group.names), list[Equation | Apply]()
        for item in self.graph.body:
            if not group.names.intersection(item.defines) and names.intersection(n for n, _ in reads(item)):
                names.update(item.defines)
                found.append(item)
        return found

    def _label_in(
        self, group: Recurrence, item: Equation | Apply, name: str, after: Sequence[Equation | Apply]
    ) -> str | None:
        """What an equation calls the axis, if it makes something smaller of a tensor at each position."""
        made = {each for other in after for each in other.defines}
        if isinstance(item, Apply) or any(item.name in each.names for each in self.graph.recurrences):
            return None
        if any(ref.name in made for ref in item.references):
            return None
        at = group.dimension(name)
        label = next(ref.index[at] for ref in item.references if ref.name == name)
        whole, own = (
            Counter(evaluate(dim_size(dim), self.bound) for dim in self.dims[each])
            for each in (name, item.name)
        )
        if not isinstance(label, str) or label not in item.left:
            return None
        fits = own.total() < whole.total() and not own - whole
        return label if fits and reads_here(item, label, group) else None

    # ---- one recurrence

    def _loop(self, group: Recurrence) -> None:
        """The call of a block along the axis, what it is given before it, and its results under their names."""
        block = _Block(group)
        states = {each.name for each in block.states}
        for equation in group.equations:
            if equation.name not in states:
                left, right = (
                    block.group.without(equation.name, equation.left),
                    self._inside(equation.right, equation, block),
                )
                block.body.append(replace(equation, left=left, right=right))
        starts = [self.start(each, group.without(each.name, each.left)) for each in block.states]
        first = group.equations[0].name
        axis = Axis(group.labels[first], dim_size(self.dims[first][group.dimension(first)]))
        carried = [each.right.arguments[0].name for each in block.states]  # type: ignore[union-attr]
        wanted = set(self.read)
        for each, name in zip(reversed(block.states), reversed(carried), strict=True):
            wanted.update((name,) if each.name in wanted else ())
        results = [each.name for each in block.body if each.name in wanted]
        outputs = (*results, *dict.fromkeys(name for name in carried if name not in results))
        held = [name for name in block.wholes if self.elements[name] < Element.WIDE]
        leaves = self._leaves(block, held)
        stacked = {name: self.fresh(f"{name}.along") for name in results}
        call = Apply(
            Graph(leaves, tuple(block.body), outputs, tuple(self.bound.items())),
            (*(name for name, _ in block.cuts), *starts, *held),
            tuple(stacked.values()),
            "",
            True,
            Along(
                axis, tuple(at for _, at in block.cuts), tuple(map(outputs.index, carried)), group.step > 0
            ),
        )
        self.body.append(call)
        self.dims.update(call.returned(self.bound))
        for name, whole in stacked.items():
            self._return(name, whole, block)
        for each in block.states:
            if each.name in wanted:
                self.body.append(replace(each, right=self._outside(each.right)))

    def _leaves(self, block: _Block, held: Collection[str]) -> tuple[Leaf, ...]:
        """What a block is given: parts of tensors, states, and whole tensors, those that are not held as constants."""
        group = block.group
        return (
            *(self._leaf(leaf, name, at) for (name, at), leaf in block.cuts.items()),
            *(self._leaf(each.name, each.name, group.dimension(each.name)) for each in block.states),
            *(self._leaf(name, name) for name in held),
            *(replace(self._leaf(name, name), kind="constant") for name in block.wholes if name not in held),
        )

    def _leaf(self, leaf: str, name: str, at: int | None = None) -> Leaf:
        """What a block is given of a tensor, of one position of a dimension or of all."""
        dims = self.dims[name]
        cut: tuple[Dim, ...] = dims if at is None else dims[:at] + dims[at + 1 :]
        return Leaf(leaf, "input", cut, holds=self.elements[name])

    def _return(self, name: str, whole: str, block: _Block) -> None:
        """A result under its own name, with the axis where its equation has it."""
        (equation,) = (each for each in block.group.equations if each.name == name)
        self.elements[whole] = self.elements[name]
        label = block.group.labels[name]
        right = Ref(whole, (label, *block.group.without(name, equation.left)))
        self.body.append(replace(equation, right=right))
        self.wholes[name] = whole, block.group.dimension(name)

    # ---- what is inside, and what is not

    def _recurs(self, expression: Expression, block: _Block) -> bool:
        return any(ref.name in block.group.labels for ref in references(expression))

    def _is_alone(self, part: Expression, equation: Equation, block: _Block) -> bool:
        """Whether what comes in is a product that is made position by position, or of such ones element by element."""
        match part:
            case Contraction(_, summed) if summed:
                return self.alone and block.group.labels[equation.name] in free_axes(part)
            case Call(function, arguments) if FUNCTIONS[function].kind == "pointwise":
                return any(self._is_alone(each, equation, block) for each in arguments)
        return False

    def _inside(self, part: Expression, equation: Equation, block: _Block) -> Expression:
        """A part of an equation as the block has it; sums of products are equations there, which may be joined."""
        if not self._recurs(part, block) and not self._is_alone(part, equation, block):
            return self._given(part, equation, block)
        match part:
            case Ref(name) if name in block.group.labels:
                index = block.group.without(name, part.index)
                return replace(part, index=tuple(self._entry(each, equation, block) for each in index))
            case Ref():
                return self._looked_up(part, equation, block)
            case Call("add", terms):
                others = [
                    each
                    for each in terms
                    if not self._recurs(each, block) and not self._is_alone(each, equation, block)
                ]
                inside = [self._inside(each, equation, block) for each in terms if each not in others]
                given = [self._given(sum_of(others), equation, block)] if others else []
                return sum_of([*given, *inside], part.place)
            case Contraction(_, summed) if summed and part is not equation.right:
                product = transform(part, lambda each: self._inside(each, equation, block))
                axes, label = free_axes(product), block.group.labels[equation.name]
                order = [axis for axis in axes_of_index(equation.left) if axis in axes and axis != label]
                left = (*order, *(axis for axis in axes if axis not in order))
                name = self.numbered(equation.name)
                block.body.append(Equation(name, left, product, part.place))
                return Ref(name, left)
        return transform(part, lambda each: self._inside(each, equation, block))

    def _entry(self, entry: Index, equation: Equation, block: _Block) -> Index:
        """What stands in brackets behind a state, of the tensors and sizes that the block has."""
        if entry == block.group.labels[equation.name]:
            entry = Call(INDEX.name, (), (entry,))
        return self._position(entry, equation, block) if is_told(entry) else entry  # type: ignore[return-value]

    def _position(self, part: Expression, equation: Equation, block: _Block) -> Expression:
        """A position at which a state is read."""
        here = isinstance(part, Call) and part.axes == (block.group.labels[equation.name],)
        if isinstance(part, Ref | Size) or here:
            return self._inside(part, equation, block)
        return transform(part, lambda each: self._position(each, equation, block))

    def _looked_up(self, ref: Ref, equation: Equation, block: _Block) -> Ref:
        """A tensor that is looked up by what recurs."""
        label = block.group.labels[equation.name]
        plain = transform(ref, lambda each: self._inside(each, equation, block))
        assert isinstance(plain, Ref)
        if label not in plain.index:
            block.wholes[ref.name] = None
            return plain
        return self._cut(plain, plain.index.index(label), block)

    def _given(self, part: Expression, equation: Equation, block: _Block) -> Expression:
        """What is loop-invariant: a tensor as it is, or the value of an expression, made before the loop."""
        label = block.group.labels[equation.name]
        scope = self.graph.scope(equation)
        if is_scalar(part):
            part = self._sized(part, label, scope)
            if not any(isinstance(each, Size) for each in subexpressions(part)):
                return part
            name = self.numbered(equation.name)  # what blocks are given tells no other sizes
            self.put(name, (), part, scope)
            part = Ref(name, ())
            block.wholes[name] = None
            return part
        if self._grows(part, scope):
            return transform(part, lambda each: self._given(each, equation, block))
        if not isinstance(part, Ref) or not self._is_cut(part, label):
            axes = free_axes(part)
            order = [axis for axis in axes_of_index(equation.left) if axis in axes and axis != label]
            rest = [axis for axis in axes if axis not in (*order, label)]
            left = ((label,) if label in axes else ()) + (*order, *rest)
            name = self.numbered(equation.name)
            self.put(name, left, self._outside(part), scope)
            part = Ref(name, left)
        if label in part.index:
            return self._cut(part, part.index.index(label), block)
        block.wholes[part.name] = None
        return part

    def _grows(self, part: Expression, scope: Scope) -> bool:
        """Whether an expression is a large product of smaller factors, which is made position by position."""
        if not isinstance(part, Contraction) or part.summed:
            return False
        axes = free_axes(part)
        outer = all(len(free_axes(each)) < len(axes) for each in part.factors)
        return outer and self.large([scope[axis] for axis in axes])

    def _sized(self, number: Expression, label: str, scope: Scope) -> Expression:
        """A number, in which the size of the axis is said as at large."""
        if isinstance(number, Size):
            return self.extent(scope[number.axis])
        return transform(number, lambda each: self._sized(each, label, scope))

    def _is_cut(self, ref: Ref, label: str) -> bool:
        """Whether a tensor is read at one position of an axis in one place, or at no other than all, and by no other
        tensor or size."""
        axes = [axis for axis in axes_of_index(ref.index) if axis == label]
        told = [entry for entry in ref.index if not isinstance(entry, str)]
        inner = any(label in axes_of_index((entry,)) for entry in told)
        inner = inner or any(
            isinstance(each, Ref | Size) for part in parts_of(ref) for each in subexpressions(part)
        )
        return not inner and ref.index.count(label) == len(axes)

    def _cut(self, ref: Ref, at: int, block: _Block) -> Ref:
        """A tensor at the position of the loop."""
        if (ref.name, at) not in block.cuts:
            block.cuts[ref.name, at] = self.fresh(f"{ref.name}.at")
        return replace(ref, name=block.cuts[ref.name, at], index=ref.index[:at] + ref.index[at + 1 :])
