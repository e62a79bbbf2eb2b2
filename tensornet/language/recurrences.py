"""Recurrences in the surface language: `h[t-1]`, their starts, and blocks called along an axis.

    h[b,t,o] = tanh(x[b,t,i] * W[o,i] + h[b,t-1,p] * U[o,p])      h[b,t-1,p] is previous[t](h[b,t,p], h0[b,p])
    h[b,-1,o] = h0[b,o]

A tensor is recurrent if an equation at or above its definition, or one that it depends on, reads it one position
before or after. A tensor with a start is recurrent too. For reads at `t-1` the start is at -1, one step before the
first position. For reads at `t+1` it is at +1. Without a start it is 0. A computed start gets an equation of its own,
`h_start[b,o] = tanh(z[b,k] * V[o,k])`. If a tensor is read in other parts than its start has, `h[b,t-1,(p,q)]`, it is
read through a new equation too, `h_before[b,t,o] = h[b,t-1,o]`.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ..errors import EquationError, Place, told_in
from ..ops.along_axes import STEPS
from ..ops.record import axes_in
from ..ops.structure import INDEX
from .equation import AlongAxis, Calling, Declaration, Equation, Opening, Statement
from .expression import (
    ELLIPSIS,
    Call,
    Expression,
    Index,
    Literal,
    Ref,
    Span,
    Taken,
    axes_of_index,
    fresh,
    is_computed_index,
    rename,
    show,
    show_entry,
)

_Key: TypeAlias = "tuple[str, int, int]"
"""A tensor, the step at which it is read, and the dimension of the step."""

_Step: TypeAlias = "tuple[str, int] | None"
"""The axis and the step of an entry of brackets; None if it is no step."""

FARTHEST = 8
"""The largest step, in positions."""


@dataclass(frozen=True)
class Start(Equation):
    """`h[b,-1,o] = h0[b,o]`: the value of a recurrent tensor at a position, -1 or below, or 1 or above."""

    left: tuple[Any, ...]

    @property
    def at(self) -> int:
        """The dimension of the position."""
        return next(n for n, entry in enumerate(self.left) if isinstance(entry, int))

    @property
    def defines(self) -> tuple[str, ...]:
        """None: the equation of the tensor defines it."""
        return ()

    @property
    def key(self) -> _Key:
        """The key by which the start is looked up."""
        return self.name, self.left[self.at], self.at

    def __str__(self) -> str:
        entries = (f"{entry:+d}" if isinstance(entry, int) else show_entry(entry) for entry in self.left)
        return f"{self.name}[{','.join(entries)}] = {show(self.right)}"


def step_of(entry: Any) -> _Step:
    """The axis and the step of an entry such as `t-1`; None for any other."""
    match entry:
        case Call("add", (Ref(axis, ()) | Call(INDEX.name, (), (axis,)), Literal(int(by)))) if by:
            return axis, by
    return None


def _stepped(line: Any) -> Iterator[Ref]:
    """The reads of a line at another position."""
    read = line.references if isinstance(line, Equation) else ()
    return (ref for ref in read if any(map(step_of, ref.index)))


def _side(by: int) -> int:
    """The side of a step: -1 for positions before, 1 for those after."""
    return 1 if by > 0 else -1


@told_in("recurrences")
def recurring(lines: Sequence[Any], sizes: Collection[str] = ()) -> list[Any]:
    """The lines of a block with recurrences expressed by functions, and without the starts.

    Args:
        lines: the lines.
        sizes: names that are known to be sizes and axes.
    """
    starts: dict[_Key, Start] = {}
    for each in lines:
        if isinstance(each, Start):
            if each.key in starts:
                raise EquationError(f"the start of '{each.name}' is given twice", each.place, "give it once")
            starts[each.key] = each
    names = {name for name, _, _ in starts}.union(_late(lines))
    if not names:
        return list(lines)
    names.update(_in_circles(lines))
    _check_starts(lines, starts)
    reading = _Reading(lines, starts, names, sizes)
    return [made for line in lines if not isinstance(line, Start) for made in reading.rewritten(line)]


def _late(lines: Sequence[Any]) -> Iterator[str]:
    """The tensors that an equation at or above their definition reads at another position.

    Raises:
        EquationError: the call of a block without brackets defines one.
    """
    waiting = {name: line for line in lines for name in line.defines}
    for line in lines:
        for ref in _stepped(line):
            if isinstance(call := waiting.get(ref.name), Calling) and not call.along:
                fix = f"write the axes in the call, as in {ref.name}[b,t] = block(x[b,t], {ref.name}[b,t-1])"
                raise EquationError(
                    f"'{ref.name}' is recurrent through the call of a block without brackets", ref.place, fix
                )
            if ref.name in waiting and not isinstance(line, Start):
                yield ref.name
        for name in line.defines:
            waiting.pop(name, None)


def _in_circles(lines: Sequence[Any]) -> Iterator[str]:
    """The tensors that a line reads at another position and that depend on what this line defines."""
    read = {
        name: line.operands for line in lines if isinstance(line, Equation | Calling) for name in line.defines
    }
    for line in lines:
        for name in {ref.name for ref in _stepped(line)}.intersection(read):
            seen, waiting = {name}, [name]
            while waiting:
                new = {each for each in read.get(waiting.pop(), ()) if each not in seen}
                seen |= new
                waiting += new
            if not seen.isdisjoint(line.defines):
                yield name


def _check_starts(lines: Sequence[Any], starts: Mapping[_Key, Start]) -> None:
    """Raises an error for a start that no read uses, or whose parts differ from those of the first start."""
    farthest: dict[_Key, int] = {}
    for ref in itertools.chain(*map(_stepped, lines)):
        for at, step in enumerate(map(step_of, ref.index)):
            if step is not None:
                key = ref.name, _side(step[1]), at
                farthest[key] = max(farthest.get(key, 0), abs(step[1]))
    for (name, by, at), start in starts.items():
        side = _side(by)
        first = starts.get((name, side, at), start)
        if [*map(_parts, first.left)] != [*map(_parts, start.left)]:
            message = f"the start of '{name}' at {by:+d} has other axes than its start at {side:+d}"
            raise EquationError(message, start.place, f"write the same axes as in {first}")
        if farthest.get((name, side, at), 0) < abs(by):
            message = f"no line reads the start of '{name}' at {by:+d} in its dimension {at + 1}"
            others = [
                f"{to * far:+d} in dimension {n + 1}"
                for (other, to, n), far in farthest.items()
                if other == name
            ]
            fix = f"it is read at {' and at '.join(others)}: start it there" if others else "read it there"
            raise EquationError(message, start.place, f"{fix}, or remove this start")


class _Reading:
    """Expresses the recurrences of a block by functions.

    Attributes:
        names: the recurrent tensors.
        starts: their starts; a computed one reads a tensor that holds it.
        sides: the tensor, the side and the dimension of each start.
        lefts: the axes that each tensor is defined with.
        axes: the axes that each bare name stands for; none if it is no tensor.
        taken: the names in use.
        openings: the equations of computed starts that are not written yet, by the tensor that starts.
        before: the new tensors that hold reads at another position, by the expression of the read.
    """

    def __init__(
        self, lines: Sequence[Any], starts: dict[_Key, Start], names: set[str], sizes: Collection[str]
    ) -> None:
        equations = [line for line in lines if isinstance(line, Equation)]
        made = [line for call in lines if isinstance(call, Calling) for line in call.lefts]
        self.names, self.starts = names, starts
        self.sides = {(name, _side(step), at) for name, step, at in starts}
        self.lefts = {each.name: each.left for each in (*equations, *made) if not isinstance(each, Start)}
        tensors: dict[str, Collection[str]] = {
            line.name: [axis for dim in line.dims for axis, _ in dim]
            for line in lines
            if isinstance(line, Declaration) and line.dims is not None
        }
        tensors |= {name: axes_of_index(left) for name, left in self.lefts.items()}
        axes = itertools.chain(sizes, *(each.axes for each in equations), *tensors.values())
        self.axes = dict.fromkeys(axes, ()) | tensors
        read = {ref.name for each in equations for ref in each.references}
        self.taken = Taken(read.union(*(line.defines for line in lines)))
        self.openings: dict[str, list[Opening]] = {}
        for key, start in starts.items():
            if not _is_plain(start):
                left = with_entries(start.left, start.at)
                opening = Opening(self.taken.fresh(f"{start.name}_start"), left, start.right, start.place)
                self.openings.setdefault(start.name, []).append(opening)
                starts[key] = replace(start, right=Ref(opening.name, left, start.place))
        self.before: dict[Expression, Ref] = {}

    def rewritten(self, line: Any) -> Iterator[Any]:
        """A line with its steps as functions, after the new equations that it needs."""
        if isinstance(line, Equation):
            for ref in _stepped(line):
                for opening in self.openings.pop(ref.name, ()):
                    yield from self.rewritten(opening)
            made: list[Equation] = []
            line = replace(line, right=line.right.rewrite(lambda part: self._read(part, line, made)))
            yield from made
        yield line

    def _steps(self, ref: Ref, line: Equation) -> list[_Step]:
        """For each entry of a read in a line, its axis and step; None if it is no step.

        Others, as in `h[t-1,j+1] * W[k,j]`, are windows and positions. A step is along an axis of the left, or along
        the axis that the tensor is defined with. An entry with any other axis of the line is a step if it goes back,
        since no window reaches before the first position, or if the tensor has a start on that side.
        """
        kept, left = line.kept, self.lefts.get(ref.name, ())
        own = left if len(left) == len(ref.index) else ref.index

        def is_step(at: int, axis: str, by: int) -> bool:
            may = by < 0 or (ref.name, 1, at) in self.sides
            return (
                axis in kept or own[at] in (axis, ref.index[at]) or (may and self._may_have(line.right, axis))
            )

        steps = enumerate(map(step_of, ref.index))
        return [step if step and is_step(at, *step) else None for at, step in steps]

    def _may_have(self, right: Expression, axis: str) -> bool:
        """Whether the right side of a line has an axis, or a bare name whose axes are unknown.

        A bare name inside a position may be a size, so it does not count.
        """
        read = [*right.references]
        inside = {each.name for ref in read if ref.index for each in ref.references if not each.index}
        bare = [ref.name for ref in read if not ref.index and ref.name not in inside]
        return axis in right.occurring or any(axis in self.axes.get(name, (axis,)) for name in bare)

    def _read(self, ref: Expression, line: Equation, made: list[Equation]) -> Expression:
        """A read in a line by functions, through a new equation in the parts of the start if it differs from these."""
        if not isinstance(ref, Ref) or ref.name not in self.names:
            return ref
        steps = self._steps(ref, line)
        found = next(((n, *step) for n, step in enumerate(steps) if step), None)
        if found is None:
            return ref
        at, axis, by = found
        keys = ((ref.name, _side(by) * far, at) for far in range(1, abs(by) + 1))
        starts = [start for key in keys if (start := self.starts.get(key)) and start.right != Literal(0)]
        numbered = tuple(f"{ref.name.replace('.', '_')}{n}" for n in range(len(ref.index)))
        whole = starts[0].left if starts else self.lefts.get(ref.name, numbered)
        differs = any(_differ(each, _at_once(ref, steps)) for each in starts) or _hangs_on(ref, at, axis)
        differs = differs or any(isinstance(entry, Span) for entry in ref.index)
        if not differs or len(whole) != len(ref.index):
            return _by_functions(ref, steps, self.starts)
        label = fresh(axis, axes_of_index(with_entries(whole, at)))
        left = with_entries(whole, at, label)
        along = [(label, by) if n == at else None for n in range(len(whole))]
        right = _by_functions(replace(ref, index=left), along, self.starts)
        if right not in self.before:
            name = self.taken.fresh(f"{ref.name}_{'before' if by < 0 else 'after'}")
            self.before[right] = Ref(name, left)
            made.append(Equation(name, left, right, ref.place))
        return replace(ref, name=self.before[right].name, index=with_entries(ref.index, at, axis))


def _is_plain(start: Start) -> bool:
    """Whether a start is a number, or a tensor indexed by axes of the tensor that it starts, each once."""
    if isinstance(start.right, Ref) and start.right.index:
        own, read = (axes_in(each) for each in (with_entries(start.left, start.at), start.right.index))
        return set(read) <= set(own) and len(set(read)) == len(read)
    return not any(start.right.references) and not start.right.occurring


def _differ(start: Start, index: tuple[Index, ...]) -> bool:
    """Whether a tensor is read in other parts than its start has, or with one axis in two dimensions."""
    both = [[*map(_parts, with_entries(each, start.at))] for each in (start.left, index)]
    read = axes_in(index)
    apart = both[0] != both[1] or 0 in both[0] or any(read.count(each) > 1 for each in read)
    return len(start.left) == len(index) and apart


def _hangs_on(ref: Ref, at: int, axis: str) -> bool:
    """Whether positions in the other dimensions depend on an axis."""
    others = Ref(ref.name, with_entries(ref.index, at))
    return axis in others.free_axes or any(part == Ref(axis, ()) for part in others.references)


def _parts(entry: Index) -> int:
    """The number of axes in an entry of brackets that consists of axes; 0 for any other entry."""
    names = axes_in((entry,))
    return len(names) if all(isinstance(each, str) for each in names) else 0


def _at_once(ref: Ref, steps: Iterable[_Step]) -> tuple[Index, ...]:
    """The index of a read with its steps removed."""
    return tuple(entry if step is None else step[0] for entry, step in zip(ref.index, steps, strict=True))


def _by_functions(ref: Ref, steps: Sequence[_Step], starts: Mapping[_Key, Start]) -> Expression:
    """A read at another position as calls of a function, one for each step, along one axis after another."""
    index = _at_once(ref, steps)
    found: Expression = replace(ref, index=index)
    before: list[tuple[str, int]] = []
    for at, step in enumerate(steps):
        if step is None:
            continue
        axis, by = step
        if abs(by) > FARTHEST:
            message = f"'{ref.name}' is read {abs(by)} positions away"
            raise EquationError(message, ref.place, f"{FARTHEST} at most")
        for far in range(1, abs(by) + 1):
            start = starts.get((ref.name, _side(by) * far, at))
            given = () if start is None else _given(start, index, before)
            found = Call(STEPS[_side(by)], (found, *given), (axis,), place=ref.place)
        before.append(step)
    return found


def _given(
    start: Start, index: tuple[Index, ...], before: Iterable[tuple[str, int]]
) -> tuple[Expression, ...]:
    """The start under the axes of the read, moved by its steps along other axes; empty if it is 0."""
    if len(start.left) != len(index):
        fix = "give it as many axes as it is read with"
        raise EquationError(f"the start of '{start.name}' has other axes", start.place, fix)
    if start.right == Literal(0):
        return ()
    pairs = zip(
        axes_in(with_entries(start.left, start.at)), axes_in(with_entries(index, start.at)), strict=True
    )
    found = rename(start.right, {old: new for old, new in pairs if old != new})
    for axis, by in before:
        for _ in range(abs(by) if axis in found.free_axes else 0):
            found = Call(STEPS[_side(by)], (found,), (axis,))
    return (found,)


def with_entries(index: tuple[Any, ...], at: int, *entries: Any) -> tuple[Any, ...]:
    """The entries of brackets with others, or none, in the place of one of them."""
    return (*index[:at], *entries, *index[at + 1 :])


# ---------------------------------------------------------------------------- printing with steps in brackets


def as_printed(lines: Sequence[Any]) -> list[Any]:
    """The lines of a graph with steps in brackets and starts, if `recurring` reads the same back."""
    waiting, lefts = {name: line for line in lines for name in line.defines}, dict[str, Any]()
    for line in lines:
        for steps in map(_steps_of, line.parts if isinstance(line, Equation) else ()):
            if steps and isinstance(defined := waiting.get(steps[0].name), Equation):
                lefts[defined.name] = defined.left
        for name in line.defines:
            waiting.pop(name, None)
    starts: dict[_Key, Start] = {}
    printed = list(lines) if lefts else []
    for n, line in enumerate(printed):
        if isinstance(line, Equation):
            printed[n] = replace(line, right=_in_brackets(line.right, lefts, starts))
    for line in [each for each in printed if isinstance(each, Equation)]:
        for key in [key for key in starts if key[0] in (line.name, *line.operands)]:
            printed.insert(printed.index(line), starts.pop(key))
    try:
        return printed if lefts and recurring(printed) == [*lines] else list(lines)
    except EquationError:
        return list(lines)


def _in_brackets(part: Expression, lefts: Mapping[str, Any], starts: dict[_Key, Start]) -> Expression:
    """An expression with the steps of some tensors in brackets; adds their starts to `starts`.

    A start is under the axes of the definition, or under those of the read if that is in other parts.
    """
    found = _steps_of(part)
    if found is None or found[0].name not in lefts:
        return part.transform(lambda each: _in_brackets(each, lefts, starts))
    ref, axis, side, given = found
    at, left = ref.index.index(axis), lefts[ref.name]
    left = left if [*map(_parts, left)] == [*map(_parts, ref.index)] else ref.index
    names = dict(zip(axes_in(ref.index), axes_in(left), strict=True))
    for far, right in enumerate(given, 1):
        if right is not None:
            right = rename(_in_brackets(right, lefts, starts), names)
            start = Start(ref.name, with_entries(left, at, side * far), right)
            starts.setdefault(start.key, start)
    entry = Call("add", (Call(INDEX.name, (), (axis,)), Literal(side * len(given))))
    return replace(ref, index=with_entries(ref.index, at, entry))


def _steps_of(part: Expression) -> tuple[Ref, str, int, list[Expression | None]] | None:
    """A read by functions, `previous[t](previous[t](h[b,t], s[b]), r[b])`: the tensor, the axis, the side of the steps,
    and the start of each, or None for 0. None if an expression is no such read."""
    starts: list[Expression | None] = []
    operand = part
    while isinstance(operand, Call) and operand.function in STEPS.values():
        if (operand.function, operand.axes) != (part.function, part.axes):  # type: ignore[union-attr]
            return None
        operand, *start = operand.arguments
        starts.insert(0, start[0] if start else None)
    if not starts or not isinstance(operand, Ref) or len(starts) > FARTHEST:
        return None
    side = next(side for side, name in STEPS.items() if name == part.function)  # type: ignore[union-attr]
    (axis,) = part.axes  # type: ignore[union-attr]
    return (operand, axis, side, starts) if operand.index.count(axis) == 1 else None


# ---------------------------------------------------------------------------- blocks called along an axis


def called_along(
    results: tuple[Ref, ...], block: str, operands: tuple[Ref, ...], scope: str, place: Place, names: Taken
) -> Iterator[Statement]:
    """A call with brackets after its results and operands, in lines that call the block on names.

    Where no operand has brackets, equations give its results the axes of the line. Else operands that are read at
    another position get an equation, and the call knows the axis.

    Args:
        names: the names in use.

    Raises:
        EquationError: the operands have steps along no axis or several, or a result lacks the axis.
    """

    if not any(ref.index for ref in operands):
        made = tuple(names.fresh(f"{ref.name}.made") for ref in results)
        yield Calling(made, block, tuple(ref.name for ref in operands), scope, place=place)
        for name, ref in zip(made, results, strict=True):
            yield Equation(ref.name, _plain(ref, ref.index), Ref(name, ref.index, ref.place), ref.place)
        return
    axis = _axis(results, operands, place)
    read = list[Ref]()
    for ref in operands:
        steps = [*map(step_of, ref.index)]
        index = _plain(ref, _at_once(ref, steps))
        name = names.fresh(f"{ref.name}.before") if any(steps) else ref.name
        if any(steps):
            yield Equation(name, index, ref, ref.place)
        read.append(Ref(name, index, ref.place))
    left = tuple(_plain(ref, ref.index) for ref in results)
    along = AlongAxis(axis, left, tuple(ref.index for ref in read))
    made, given = (tuple(ref.name for ref in each) for each in (results, read))
    yield Calling(made, block, given, scope, along, place)


def _axis(results: Iterable[Ref], operands: Iterable[Ref], place: Place) -> str:
    """The axis that a call goes along: its results at one position are its operands at the next."""
    axes = {step[0]: None for ref in operands for entry in ref.index if (step := step_of(entry))}
    if len(axes) != 1:
        fix = (
            "call it without brackets, `y = block(x)`, or read one axis at another position, as in h[b,t-1,p]"
        )
        fix = "write the block's equations in the text, which may step along several axes" if axes else fix
        found = f"several axes, {', '.join(axes)}" if axes else "none"
        raise EquationError(
            f"a block call with brackets needs one axis to step along, and has {found}", place, fix
        )
    (axis,) = axes
    for ref in results:
        if ref.index.count(axis) != 1:
            raise EquationError(
                f"the call runs along '{axis}', which the brackets of '{ref.name}' must have once",
                ref.place,
                f"write {ref.name}[…,{axis},…]",
            )
    return axis


def _plain(ref: Ref, index: tuple[Any, ...]) -> tuple[Any, ...]:
    """The entries of brackets; raises an error if one is not made of axes."""
    if any(isinstance(entry, int) or is_computed_index(entry) or entry == ELLIPSIS for entry in index):
        fix = "define what is read in an equation of its own, and pass that to the block"
        raise EquationError(
            f"in a block call, the brackets of '{ref.name}' take axis names only", ref.place, fix
        )
    return index
