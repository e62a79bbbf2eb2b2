"""Recurrences in the surface language: `h[t-1]`, their starts, and blocks called along an axis.

    h[b,t,o] = tanh(x[b,t,i] * W[o,i] + h[b,t-1,p] * U[o,p])      h[b,t-1,p] is previous[t](h[b,t,p], h0[b,p])
    h[b,-1,o] = h0[b,o]

A tensor is recurrent if an equation at or above its definition reads it one position before or after. A tensor with
a start is recurrent too. For reads at `t-1` the start is at -1, one step before the first position. For reads at
`t+1` it is at +1. Without a start it is 0. A computed start gets an equation of its own,
`h_start[b,o] = tanh(z[b,k] * V[o,k])`. If a tensor is read in other parts than its start has, `h[b,t-1,(p,q)]`, it is
read through a new equation too, `h_before[b,t,o] = h[b,t-1,o]`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ..errors import EquationError, Place, told_in
from ..ops.scan import STEPS
from ..ops.structure import INDEX
from .equation import AlongAxis, Calling, Declaration, Equation, Opening
from .expression import (
    Call,
    Contraction,
    Expression,
    Index,
    Literal,
    Ref,
    axes_of_index,
    free_axes,
    fresh,
    is_computed_index,
    option_axes,
    references,
    rename,
    show,
    show_entry,
    subexpressions,
    transform,
)

__all__ = ["CallAlong", "Start", "as_printed", "called_along", "recurring", "step_of", "steps_in"]

_Key: TypeAlias = "tuple[str, int, int]"
"""A tensor, the step at which it is read, and the dimension of the step."""

_Step: TypeAlias = "tuple[str, int] | None"
"""The axis and the step of an entry of brackets; None if it is no step."""

FARTHEST = 8
"""The largest step, in positions."""


@dataclass(frozen=True)
class Start:
    """`h[b,-1,o] = h0[b,o]`: the value of a recurrent tensor outside of its positions.

    Attributes:
        name: the tensor.
        index: the entries of brackets on the left, including the position.
        step: the position, -1 or below, or 1 or above.
        right: its value there.
    """

    name: str
    index: tuple[Index, ...]
    step: int
    right: Expression
    place: Place | None = field(default=None, compare=False, repr=False)

    @property
    def at(self) -> int:
        """The dimension of the position."""
        return next(n for n, entry in enumerate(self.index) if isinstance(entry, int))

    @property
    def key(self) -> _Key:
        """The key by which the start is looked up."""
        return self.name, self.step, self.at

    def __str__(self) -> str:
        before, after = self.index[: self.at], self.index[self.at + 1 :]
        entries = (*map(show_entry, before), f"{self.step:+d}", *map(show_entry, after))
        return f"{self.name}[{','.join(entries)}] = {show(self.right)}"


def step_of(entry: Any) -> tuple[str, int] | None:
    """The axis and the step of an entry such as `t-1`; None for any other."""
    match entry:
        case Call("add", (Ref(axis, ()), Literal(int(by)))) if by:
            return axis, by
    return None


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
    _check_calls(lines)
    names = {name for name, _, _ in starts} | set(_late(lines))
    if not names:
        return list(lines)
    _check_starts(lines, starts)
    taken, sides = _named(lines), _Sides.of(lines, starts, sizes)
    openings = _openings(starts, taken)
    return list(_Telling(names, starts, taken, openings, sides).told(lines))


def _lefts(lines: Iterable[Any]) -> dict[str, tuple[Index, ...]]:
    """The axes that each tensor is defined with."""
    found = {line.name: line.left for line in lines if hasattr(line, "right") and hasattr(line, "left")}
    calls = (line for line in lines if getattr(line, "along", None))
    return found | {
        name: left for line in calls for name, left in zip(line.results, line.along.left, strict=True)
    }


@dataclass(frozen=True)
class _Sides:
    """Decides which entries of brackets are steps. Others, as in `h[t-1,j+1] * W[k,j]`, are windows and positions.

    A step is along an axis of the left, or along the axis that the tensor is defined with. An entry with any other
    axis of the line is a step if the tensor has a start on that side. So is one that goes back along a dimension
    with other steps, since no window reaches before the first position.

    Attributes:
        lefts: the axes that each tensor is defined with.
        starts: the tensor, the side and the dimension of each start.
        back: the tensors that are read a step away, each with the dimension of the step.
        axes: the axes that each bare name stands for; none if it is no tensor.
    """

    lefts: Mapping[str, tuple[Index, ...]]
    starts: Collection[tuple[str, int, int]]
    back: Collection[tuple[str, int]]
    axes: Mapping[str, Collection[str]]

    @classmethod
    def of(cls, lines: Sequence[Any], starts: Iterable[_Key], sizes: Collection[str]) -> _Sides:
        """The rules for the lines of a block."""
        lefts = _lefts(lines)
        sides = {(name, 1 if step > 0 else -1, at) for name, step, at in starts}
        first = cls(lefts, sides, (), _axes_of_names(lines, lefts, sizes))
        back = {
            (ref.name, at)
            for line in lines
            for ref in (steps_in(line.right) if hasattr(line, "right") else ())
            for at, step in enumerate(first.steps(ref, line))
            if step
        }
        return replace(first, back=back)

    def steps(self, ref: Ref, line: Any) -> list[_Step]:
        """For each entry of a read in a line, its axis and step; None if it is no step."""
        kept = axes_of_index(line.index if isinstance(line, Start) else getattr(line, "left", ()))
        own = self.lefts.get(ref.name, ())
        own = own if len(own) == len(ref.index) else ref.index
        found: list[_Step] = []
        for at, (entry, mine) in enumerate(zip(ref.index, own, strict=True)):
            step = step_of(entry)
            if step is not None and step[0] not in kept and mine not in (step[0], entry):
                sign = 1 if step[1] > 0 else -1
                told = (ref.name, sign, at) in self.starts or (sign < 0 and (ref.name, at) in self.back)
                step = step if told and self._may_have(line.right, step[0]) else None
            found.append(step)
        return found

    def _may_have(self, right: Expression, axis: str) -> bool:
        """Whether the right side of a line has an axis, or a bare name whose axes are unknown.

        A bare name inside a position may be a size, so it does not count.
        """
        read = [part for part in references(right) if part.index]
        inside = {part.name for ref in read for part in references(ref) if not part.index}
        for part in subexpressions(right):
            match part:
                case Contraction(_, summed) if axis in summed:
                    return True
                case Call(axes=axes) if axis in axes or axis in option_axes(part):
                    return True
                case Ref(name, ()) if name not in inside and axis in self.axes.get(name, (axis,)):
                    return True
                case Ref(_, index) if axis in axes_of_index(index):
                    return True
        return False


def _axes_of_names(
    lines: Sequence[Any], lefts: Mapping[str, tuple[Index, ...]], sizes: Collection[str]
) -> dict[str, Collection[str]]:
    """The axes that bare names stand for: those of a definition or declaration; none for an axis or a size."""
    declared = {
        line.name: [axis for dim in line.dims for axis, _ in dim]
        for line in lines
        if isinstance(line, Declaration) and line.dims is not None
    }
    reads = (ref.index for line in lines if hasattr(line, "right") for ref in references(line.right))
    axes = {axis for index in (*lefts.values(), *reads) for axis in axes_of_index(index)}
    axes |= {axis for dims in declared.values() for axis in dims}
    return {
        **dict.fromkeys((*axes, *sizes), ()),
        **declared,
        **{name: axes_of_index(left) for name, left in lefts.items()},
    }


def _openings(starts: dict[_Key, Start], taken: set[str]) -> dict[str, list[Opening]]:
    """New equations for computed starts, by the tensor that starts; `starts` then holds reads of their results."""
    found: dict[str, list[Opening]] = {}
    for key, start in starts.items():
        if not _is_plain(start):
            left = _without(start.index, start.at)
            name = fresh(f"{start.name}_start", taken)
            taken.add(name)
            found.setdefault(start.name, []).append(Opening(name, left, start.right, start.place))
            starts[key] = replace(start, right=Ref(name, left, start.place))
    return found


def _is_plain(start: Start) -> bool:
    """Whether a start is a number, or a tensor indexed by axes of the tensor that it starts, each once."""
    if isinstance(start.right, Ref) and start.right.index:
        own, read = (_flat(each) for each in (_without(start.index, start.at), start.right.index))
        return set(read) <= set(own) and len(set(read)) == len(read)
    runs = any(isinstance(part, Call) and option_axes(part) for part in subexpressions(start.right))
    return not runs and not any(references(start.right)) and not free_axes(start.right)


def _named(lines: Iterable[Any]) -> set[str]:
    """The tensors that lines define or read."""
    found = {name for line in lines for name in getattr(line, "results", ())}
    for line in lines:
        if hasattr(line, "right"):
            found |= {line.name, *(ref.name for ref in references(line.right))}
    return found


def _check_calls(lines: Sequence[Any]) -> None:
    """Raises an error for a recurrence through the call of a block without brackets."""
    plain = [line for line in lines if hasattr(line, "results") and not line.along]
    waiting = [name for line in plain for name in line.results]
    for line in lines if waiting else ():
        for ref in steps_in(line.right) if hasattr(line, "right") else ():
            if ref.name in waiting:
                fix = f"write the axes in the call, as in {ref.name}[b,t] = block(x[b,t], {ref.name}[b,t-1])"
                raise EquationError(
                    f"'{ref.name}' is recurrent through the call of a block without brackets", ref.place, fix
                )
        waiting = [name for name in waiting if name not in getattr(line, "results", ())]


def _check_starts(lines: Sequence[Any], starts: Mapping[_Key, Start]) -> None:
    """Raises an error for a start that no read uses, or whose parts differ from those of the first start."""
    farthest: dict[_Key, int] = {}
    for line in lines:
        for ref in steps_in(line.right) if hasattr(line, "right") else ():
            for at, entry in enumerate(ref.index):
                told = step_of(entry)
                if told is not None:
                    key = ref.name, 1 if told[1] > 0 else -1, at
                    farthest[key] = max(farthest.get(key, 0), abs(told[1]))
    for (name, step, at), start in starts.items():
        sign = 1 if step > 0 else -1
        first = starts.get((name, sign, at), start)
        if [*map(_parts, first.index)] != [*map(_parts, start.index)]:
            fix = f"write the same axes as in {first}"
            raise EquationError(
                f"the start of '{name}' at {step:+d} has other axes than its start at {sign:+d}",
                start.place,
                fix,
            )
        if abs(step) > farthest.get((name, sign, at), 0):
            other = farthest.get((name, -sign, at), 0)
            if not other and any(
                farthest.get((name, sign, n), 0) >= abs(step) for n in range(len(start.index))
            ):
                shown = f"[…,{start.step:+d},…]"
                fix = f"write the position {shown} in the dimension of the recurrence"
                raise EquationError(
                    f"the start of '{name}' is along another axis than its recurrence", start.place, fix
                )
            fix = (
                f"'{name}' is read at t{-sign:+d}: give its start at {-sign:+d}"
                if other
                else f"read '{name}' at t{step:+d}, or remove this start"
            )
            raise EquationError(f"no line reads the start of '{name}' at {step:+d}", start.place, fix)


def _late(lines: Sequence[Any]) -> Iterator[str]:
    """The tensors that an equation at or above their definition reads at another position."""
    waiting = {line.name for line in lines if hasattr(line, "right") and not isinstance(line, Start)}
    waiting.update(name for line in lines if getattr(line, "along", None) for name in line.results)
    for line in lines:
        waiting.difference_update(getattr(line, "results", ()))
        if not hasattr(line, "right") or isinstance(line, Start):
            continue
        yield from (ref.name for ref in steps_in(line.right) if ref.name in waiting)
        waiting.discard(line.name)


def steps_in(expression: Expression) -> Iterator[Ref]:
    """The reads in an expression that are at another position."""
    waiting = [expression]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Ref) and any(step_of(entry) for entry in part.index):
            yield part
        transform(part, lambda each: waiting.append(each) or each)  # type: ignore[func-returns-value]


@dataclass
class _Telling:
    """Expresses recurrences by functions.

    Attributes:
        names: the recurrent tensors.
        starts: their starts.
        taken: the names in use.
        openings: the equations of computed starts, by the tensor that starts.
        sides: decides which entries of brackets are steps.
        before: the new tensors that hold reads at another position, by the expression of the read.
        made: the new equations that must precede the next line.
    """

    names: set[str]
    starts: Mapping[_Key, Start]
    taken: set[str]
    openings: dict[str, list[Opening]]
    sides: _Sides
    before: dict[Expression, Ref] = field(default_factory=dict)
    made: list[Equation] = field(default_factory=list)

    def told(self, lines: Iterable[Any]) -> Iterator[Any]:
        """The lines without the starts, each after the new equations that it needs."""
        for line in lines:
            if isinstance(line, Start):
                continue
            if hasattr(line, "right"):
                for name in [ref.name for ref in steps_in(line.right)]:
                    yield from self.told(self.openings.pop(name, ()))
                line = replace(line, right=self._visited(line.right, line))
                yield from self.made
                self.made.clear()
            yield line

    def _visited(self, part: Expression, line: Any) -> Expression:
        part = transform(part, lambda each: self._visited(each, line))
        if not isinstance(part, Ref) or part.name not in self.names:
            return part
        steps = self.sides.steps(part, line)
        return self._in_parts(part, steps) or _read(part, steps, self.starts)

    def _starts_from(self, name: str, at: int, by: int) -> Iterator[Start]:
        """The starts of a tensor that is read `by` positions away."""
        steps = range(-1, by - 1, -1) if by < 0 else range(1, by + 1)
        return (self.starts[name, step, at] for step in steps if (name, step, at) in self.starts)

    def _in_parts(self, ref: Ref, steps: Sequence[_Step]) -> Ref | None:
        """A read through a new equation in the parts of the start; None if the tensor can be read directly."""
        found = next(((n, *step) for n, step in enumerate(steps) if step), None)
        if found is None:
            return None
        at, axis, by = found
        starts = [each for each in self._starts_from(ref.name, at, by) if each.right != Literal(0)]
        if not any(_differ(each, _at_once(ref, steps)) for each in starts) and not _hangs_on(ref, at, axis):
            return None
        whole = starts[0].index if starts else self.sides.lefts.get(ref.name, _numbered(axis, len(ref.index)))
        if len(whole) != len(ref.index):
            return None
        own = _without(whole, at)
        label = fresh(axis, {*axes_of_index(own)})
        left = (*own[:at], label, *own[at:])
        told = (*own[:at], Call("add", (Ref(label, ()), Literal(by))), *own[at:])
        there = [(label, by) if n == at else None for n in range(len(told))]
        right = _read(replace(ref, index=told), there, self.starts)
        if right not in self.before:
            name = fresh(f"{ref.name}_{'before' if by < 0 else 'after'}", self.taken)
            self.taken.add(name)
            self.before[right] = Ref(name, left)
            self.made.append(Equation(name, left, right, ref.place))
        index = (*ref.index[:at], axis, *ref.index[at + 1 :])
        return replace(ref, name=self.before[right].name, index=index)


def _numbered(axis: str, count: int) -> tuple[str, ...]:
    """Names of axes for a tensor that no line defines."""
    return tuple(f"{axis}_{n}" for n in range(1, count + 1))


def _differ(start: Start, index: tuple[Index, ...]) -> bool:
    """Whether a tensor is read in other parts than its start has, or with one axis in two dimensions."""
    both = [[_parts(entry) for entry in _without(each, start.at)] for each in (start.index, index)]
    read = _flat(index)
    apart = both[0] != both[1] or 0 in both[0] or any(read.count(each) > 1 for each in read)
    return len(start.index) == len(index) and apart


def _hangs_on(ref: Ref, at: int, axis: str) -> bool:
    """Whether positions in the other dimensions depend on an axis."""
    others = _without(ref.index, at)
    inside = (part.name for part in references(Ref(ref.name, others)) if not part.index)
    return axis in axes_of_index(others) or axis in inside


def _parts(entry: Index) -> int:
    """The number of axes in an entry of brackets."""
    return len(entry) if isinstance(entry, tuple) else int(isinstance(entry, str))


def _at_once(ref: Ref, steps: Iterable[_Step]) -> tuple[Index, ...]:
    """The index of a read with its steps removed."""
    return tuple(entry if step is None else step[0] for entry, step in zip(ref.index, steps, strict=True))


def _read(ref: Ref, told: Sequence[_Step], starts: Mapping[_Key, Start]) -> Expression:
    """A read at another position as calls of a function, one for each step, along one axis after another."""
    index = _at_once(ref, told)
    found: Expression = replace(ref, index=index)
    before: list[tuple[str, int]] = []
    for at, step in enumerate(told):
        if step is None:
            continue
        axis, by = step
        if abs(by) > FARTHEST:
            message = f"'{ref.name}' is read {abs(by)} positions away"
            raise EquationError(message, ref.place, f"{FARTHEST} at most")
        sign = 1 if by > 0 else -1
        for far in range(1, abs(by) + 1):
            start = starts.get((ref.name, sign * far, at))
            given = () if start is None else _given(start, index, at, ref)
            given = tuple(_moved(each, before) for each in given)
            found = Call(STEPS[sign], (found, *given), (axis,), place=ref.place)
        before.append(step)
    return found


def _moved(start: Expression, steps: Iterable[tuple[str, int]]) -> Expression:
    """A start, moved by the steps that the read takes along other axes."""
    for axis, by in steps:
        for _ in range(abs(by) if axis in free_axes(start) else 0):
            start = Call(STEPS[1 if by > 0 else -1], (start,), (axis,))
    return start


def _given(start: Start, index: tuple[Index, ...], at: int, ref: Ref) -> tuple[Expression, ...]:
    """The start under the axes of the read; empty if it is 0."""
    if len(start.index) != len(index):
        fix = "give it as many axes as it is read with"
        raise EquationError(f"the start of '{ref.name}' has other axes", start.place, fix)
    if start.right == Literal(0):
        return ()
    own, read = _without(start.index, at), _without(index, at)
    pairs: list[tuple[str, str]] = []
    for mine, theirs in zip(own, read, strict=True):
        parts = (each if isinstance(each, tuple) else (each,) for each in (mine, theirs))
        pairs.extend(zip(*parts, strict=True))
    return (rename(start.right, {old: new for old, new in pairs if old != new}),)


def _flat(index: Iterable[Any]) -> list[Any]:
    """The entries of brackets, with composites split into their parts."""
    return [part for entry in index for part in (entry if isinstance(entry, tuple) else (entry,))]


def _without(index: Iterable[Any], at: int) -> tuple[Any, ...]:
    """The entries of brackets without one of them."""
    return tuple(entry for n, entry in enumerate(index) if n != at)


# ---------------------------------------------------------------------------- printing with steps in brackets


@dataclass(frozen=True)
class _Steps:
    """A read some steps away, expressed by functions: `previous[t](previous[t](h[b,t], s[b]), r[b])`.

    Attributes:
        ref, axis, sign: the tensor, the axis of the steps, and their side.
        starts: the start of each step, or None if it has none.
    """

    ref: Ref
    axis: str
    sign: int
    starts: tuple[Expression | None, ...]

    @property
    def at(self) -> int:
        """The dimension of the steps."""
        return self.ref.index.index(self.axis)

    def read(self, starts: Mapping[_Key, Start]) -> Expression:
        """The expression that a parser builds from the tensor with the steps in brackets."""
        there = [
            (self.axis, self.sign * len(self.starts)) if n == self.at else None
            for n in range(len(self.ref.index))
        ]
        return _read(self.told(Ref(self.axis, ())), there, starts)

    def told(self, position: Expression) -> Ref:
        """The tensor with the steps in brackets, where `position` represents the axis."""
        entry = Call("add", (position, Literal(self.sign * len(self.starts))))
        return replace(self.ref, index=(*self.ref.index[: self.at], entry, *self.ref.index[self.at + 1 :]))


def as_printed(lines: Sequence[Any]) -> list[Any]:
    """The lines of a graph with steps in brackets and starts, where `recurring` reads the same back."""
    starts = dict[str, dict[_Key, Start]]()
    for name in _round_about(lines):
        found = _starts_of(name, lines)
        if found is not None:
            starts[name] = found
    if not starts:
        return list(lines)
    printed, waiting = list[Any](), dict(starts)
    for line in lines:
        for name in [each for each in waiting if each in _mentioned(line)]:
            printed.extend(waiting.pop(name).values())
        printed.append(
            replace(line, right=_in_brackets(line.right, starts)) if hasattr(line, "right") else line
        )
    return printed


def _round_about(lines: Sequence[Any]) -> dict[str, None]:
    """The tensors that an equation at or above their definition reads some steps away."""
    waiting = {line.name for line in lines if hasattr(line, "right")}
    found, sides = dict[str, None](), set(STEPS.values())
    for line in lines:
        if hasattr(line, "right"):
            if any(isinstance(part, Call) and part.function in sides for part in line.parts):
                found.update(
                    (each.ref.name, None) for each in _stepped(line.right) if each.ref.name in waiting
                )
            waiting.discard(line.name)
    return found


def _mentioned(line: Any) -> set[str]:
    """The tensor that a line defines, and those that it reads."""
    return {line.name, *(ref.name for ref in line.references)} if hasattr(line, "right") else set()


def _starts_of(name: str, lines: Sequence[Any]) -> dict[_Key, Start] | None:
    """The starts of a tensor, if all reads of it agree; None if it cannot be printed with steps in brackets."""
    left = next(line.left for line in lines if hasattr(line, "right") and line.name == name)
    found_in = [
        (each, axes_of_index(line.left))
        for line in lines
        if hasattr(line, "right")
        for each in _stepped(line.right)
        if each.ref.name == name
    ]
    if not all(each.axis in kept or left[each.at : each.at + 1] == (each.axis,) for each, kept in found_in):
        return None  # in brackets it would be a window
    read = [each for each, _ in found_in]
    found = dict[_Key, Start]()
    for each in read:
        for far, right in enumerate(each.starts, 1):
            if right is not None:
                start = _start(each, left, each.sign * far, right)
                if found.setdefault(start.key, start) != start:
                    return None
    if any(_differ(start, each.ref.index) for each in read for start in found.values()):
        return None
    if not all(map(_is_plain, found.values())):
        return None
    alike = all(each.read(found) == _by_functions(each) for each in read)
    told = (ref for line in lines for ref in getattr(line, "references", ()) if ref.name == name)
    return (
        found if alike and not any(is_computed_index(entry) for ref in told for entry in ref.index) else None
    )


def _start(steps: _Steps, left: tuple[Index, ...], step: int, right: Expression) -> Start:
    """A start under the axes of the definition, or under those of the read if that is in other parts."""
    names = dict[str, str]()
    left = left if [*map(_parts, left)] == [*map(_parts, steps.ref.index)] else steps.ref.index
    for mine, theirs in zip(steps.ref.index, left, strict=True):
        match mine, theirs:
            case str(), str():
                names[mine] = theirs
            case tuple(), tuple():
                names.update(zip(mine, theirs, strict=False))
    at = steps.at
    return Start(steps.ref.name, (*left[:at], step, *left[at + 1 :]), step, rename(right, names))


def _stepped(part: Expression) -> Iterator[_Steps]:
    """The reads in an expression that functions take some steps away."""
    found = _steps(part)
    if found is not None:
        yield found
        inside = [each for each in found.starts if each is not None]
    else:
        inside = list[Expression]()
        transform(part, lambda each: inside.append(each) or each)  # type: ignore[func-returns-value]
    for each in inside:
        yield from _stepped(each)


def _steps(part: Expression) -> _Steps | None:
    """An expression as a read some steps away; None if it is none."""
    sides = {name: step for step, name in STEPS.items()}
    if not isinstance(part, Call) or part.function not in sides:
        return None
    starts: list[Expression | None] = []
    operand: Expression = part
    while isinstance(operand, Call) and operand.function == part.function and operand.axes == part.axes:
        operand, *start = operand.arguments
        starts.insert(0, start[0] if start else None)
    (axis,) = part.axes
    if not isinstance(operand, Ref) or operand.index.count(axis) != 1 or len(starts) > FARTHEST:
        return None
    return _Steps(operand, axis, sides[part.function], tuple(starts))


def _by_functions(steps: _Steps) -> Expression:
    """A read some steps away, expressed by functions."""
    found: Expression = steps.ref
    for start in steps.starts:
        found = Call(STEPS[steps.sign], (found, *([] if start is None else [start])), (steps.axis,))
    return found


def _in_brackets(part: Expression, names: Mapping[str, Any]) -> Expression:
    """An expression with the steps of some tensors in brackets."""
    found = _steps(part)
    if found is not None and found.ref.name in names:
        return found.told(Call(INDEX.name, (), (found.axis,)))
    return transform(part, lambda each: _in_brackets(each, names))


@dataclass(frozen=True)
class CallAlong:
    """A call as it is written, with brackets after its results and operands."""

    results: tuple[Ref, ...]
    block: str
    operands: tuple[Ref, ...]
    scope: str
    place: Place | None = None


@told_in("blocks")
def called_along(lines: Sequence[Any]) -> list[Any]:
    """The lines of a block with the calls in brackets resolved: the axis is known, and the operands are names.

    Raises:
        EquationError: the operands of a call have steps along no axis or several, or a result lacks the axis.
    """
    taken = {ref.name for line in lines if isinstance(line, CallAlong) for ref in line.operands}
    found = list[Any]()
    for line in lines:
        found.extend(_apart(line, taken) if isinstance(line, CallAlong) else (line,))
    return found


def _apart(line: CallAlong, taken: set[str]) -> Iterator[Any]:
    """The equations for operands that a call reads at other positions, and the call."""
    if not any(ref.index for ref in line.operands):
        yield from _named_along(line, taken)
        return
    axis = _axis(line)
    operands = list[Ref]()
    for ref in line.operands:
        if any(map(step_of, ref.index)):
            index = tuple(told[0] if (told := step_of(entry)) else entry for entry in ref.index)
            name = fresh(f"{ref.name}.before", taken)
            taken.add(name)
            yield Equation(name, _plain(ref, index), ref, ref.place)
            ref = Ref(name, index, ref.place)
        else:
            _plain(ref, ref.index)
        operands.append(ref)
    left = tuple(_plain(ref, ref.index) for ref in line.results)
    along = AlongAxis(axis, left, tuple(ref.index for ref in operands))
    names = (tuple(ref.name for ref in refs) for refs in (line.results, operands))
    yield Calling(next(names), line.block, next(names), line.scope, along, line.place)


def _named_along(line: CallAlong, taken: set[str]) -> Iterator[Any]:
    """A call on tensors by their names, and equations that give its results the axes of the line."""
    made = [fresh(f"{ref.name}.made", taken) for ref in line.results]
    operands = tuple(ref.name for ref in line.operands)
    yield Calling(tuple(made), line.block, operands, line.scope, place=line.place)
    for name, ref in zip(made, line.results, strict=True):
        yield Equation(ref.name, _plain(ref, ref.index), Ref(name, ref.index, ref.place), ref.place)


def _axis(line: CallAlong) -> str:
    """The axis that a call goes along: its results at one position are its operands at the next."""
    axes = {told[0]: None for ref in line.operands for entry in ref.index if (told := step_of(entry))}
    if len(axes) != 1:
        fix = (
            "call it without brackets, `y = block(x)`, or read one axis at another position, as in h[b,t-1,p]"
        )
        found = f"several axes, {', '.join(axes)}" if axes else "none"
        raise EquationError(
            f"a block call with brackets needs one axis to step along, and has {found}", line.place, fix
        )
    (axis,) = axes
    for ref in line.results:
        if ref.index.count(axis) != 1:
            raise EquationError(
                f"the call runs along '{axis}', which the brackets of '{ref.name}' must have once",
                ref.place,
                f"write {ref.name}[…,{axis},…]",
            )
    return axis


def _plain(ref: Ref, index: tuple[Any, ...]) -> tuple[Any, ...]:
    """The entries of brackets; raises an error if one is not made of axes."""
    for entry in index:
        if isinstance(entry, int | Call) or is_computed_index(entry) or entry == "...":
            fix = "define what is read in an equation of its own, and pass that to the block"
            raise EquationError(
                f"in a block call, the brackets of '{ref.name}' take axis names only", ref.place, fix
            )
    return index
