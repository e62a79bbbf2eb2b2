"""Recurrence groups: strongly connected equations that read each other at earlier or later positions.

    h[b,t,o] = tanh(z[b,t,o])
    z[b,t,o] = x[b,t,o] + previous[t](h[b,t,p]) * U[o,p]

The tensors of a group are computed one position of the axis at a time, from tensors at the same position and from
the state that the position before left. An equation reads a tensor that is defined below it only by `previous` or
`following`. A group that is also recurrent along a second axis, `previous[i](h[i,j]) + previous[j](h[i,j])`, runs
along that axis at each position of the first.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ..errors import EquationError, told_in
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Ref,
    axes_of_index,
    option_axes,
    parts_of,
    rename,
    transform,
)
from ..ops.along_axes import STEPS

__all__ = [
    "Recurrence",
    "strongly_connected",
    "early",
    "in_order",
    "is_step",
    "late",
    "read_directly",
    "read_later",
    "recurrences",
    "steps_of",
]

T = TypeVar("T", bound=Hashable)

_STEP_OF = {name: step for step, name in STEPS.items()}


@dataclass(frozen=True)
class Recurrence:
    """Equations that are computed together, one position after another.

    Attributes:
        equations: the equations, in order.
        labels: the name of the axis in each equation, by the tensor that it defines.
        step: the side that they read: -1 if they run from the first position to the last, 1 for the other way.
    """

    equations: tuple[Equation, ...]
    labels: Mapping[str, str]
    step: int

    @property
    def names(self) -> frozenset[str]:
        """The tensors that they define."""
        return frozenset(self.labels)

    def dimension(self, name: str) -> int:
        """The dimension of a tensor that runs along the axis."""
        (equation,) = (each for each in self.equations if each.name == name)
        return equation.left.index(self.labels[name])

    def without(self, name: str, index: tuple[Any, ...]) -> tuple[Any, ...]:
        """The index of a tensor that they define, without the axis."""
        at = self.dimension(name)
        return index[:at] + index[at + 1 :]


def is_step(part: Expression) -> bool:
    """Whether a part of an expression reads another position."""
    return isinstance(part, Call) and part.function in _STEP_OF


def late(equation: Equation) -> Iterator[Ref]:
    """The tensors that an equation reads at another position, which may be defined below."""
    for part in _outer(equation):
        if isinstance(part, Call) and part.function in _STEP_OF:
            inner: Expression = part
            while isinstance(inner, Call) and inner.function == part.function:
                inner = inner.arguments[0]
            if isinstance(inner, Ref):
                yield inner


def _outer(equation: Equation) -> Iterator[Expression]:
    """The parts of an equation. Of nested steps, only the outermost and the starts; not the tensor that they read."""
    if not any(map(is_step, equation.parts)):
        yield from equation.parts
        return
    waiting = [equation.right]
    while waiting:
        part = waiting.pop()
        yield part
        if isinstance(part, Call) and part.function in _STEP_OF:
            inner: Expression = part
            while isinstance(inner, Call) and inner.function == part.function:
                waiting.extend(inner.arguments[1:])
                inner = inner.arguments[0]
            waiting.extend([inner] if not isinstance(inner, Ref) else parts_of(inner))
        else:
            waiting.extend(parts_of(part))


def early(equation: Equation) -> Iterator[Ref]:
    """The tensors that an equation reads without a step, which must be defined above."""
    return (part for part in _outer(equation) if isinstance(part, Ref))


def read_later(body: Iterable[Any], known: Iterable[str]) -> Iterator[str]:
    """The tensors that equations read at another position and that are defined below them.

    Args:
        body: equations and calls, in order.
        known: the tensors that are defined before them.
    """
    there = set(known)
    for item in body:
        if isinstance(item, Equation):
            yield from (ref.name for ref in late(item) if ref.name not in there)
        there.update(item.defines)


def strongly_connected(reads: Mapping[T, Iterable[T]]) -> Iterator[tuple[T, ...]]:
    """The strongly connected components, each after the components that it reads (Tarjan 1972).

    Args:
        reads: names, and the names that each of them reads.
    """
    numbers, lows, path, on_path = dict[T, int](), dict[T, int](), list[T](), set[T]()
    for root in reads:
        if root in numbers:
            continue
        waiting: list[tuple[T, Iterator[T]]] = []

        def enter(name: T) -> None:
            numbers[name] = lows[name] = len(numbers)
            path.append(name)
            on_path.add(name)
            waiting.append((name, iter([each for each in reads[name] if each in reads])))  # noqa: B023

        enter(root)
        while waiting:
            name, others = waiting[-1]
            other = next(others, None)
            if other is None:
                waiting.pop()
                if waiting:
                    lows[waiting[-1][0]] = min(lows[waiting[-1][0]], lows[name])
                if lows[name] == numbers[name]:
                    at = path.index(name)
                    group, path[at:] = path[at:], []
                    on_path.difference_update(group)
                    yield tuple(group)
            elif other not in numbers:
                enter(other)
            elif other in on_path:
                lows[name] = min(lows[name], numbers[other])


def in_order(body: Iterable[Any], groups: Iterable[Recurrence]) -> Iterator[Any]:
    """Equations, calls and recurrences, each after what it reads.

    Args:
        body: equations and calls, in any order.
        groups: the recurrences among the equations.
    """
    round_about = {name: each for each in groups for name in each.names}
    units: dict[str, Any] = {}
    for item in body:
        units.update(dict.fromkeys(item.defines, round_about.get(item.defines[0], item)))
    done: set[int] = set()
    for root in units.values():
        waiting = [root]
        while waiting:
            unit = waiting[-1]
            missing = [units[name] for name in _read_by(unit) if name in units]
            missing = [each for each in missing if each is not unit and id(each) not in done]
            if id(unit) in done or not missing:
                waiting.pop()
                if id(unit) not in done:
                    done.add(id(unit))
                    yield unit
            else:
                waiting.append(missing[0])


def _read_by(unit: Any) -> Iterator[str]:
    """The tensors that an equation, a call or a recurrence reads."""
    for item in unit.equations if isinstance(unit, Recurrence) else (unit,):
        if isinstance(item, Equation):
            yield from (ref.name for ref in item.references)
        else:
            yield from item.names().values()


@told_in("recurrences")
def recurrences(equations: Sequence[Equation]) -> tuple[Recurrence, ...]:
    """The recurrences among some equations.

    Raises:
        EquationError: tensors form a cycle other than along one axis, in one direction.
    """
    by_name = {each.name: each for each in equations}
    reads = {each.name: {ref.name for ref in each.references} for each in equations}
    found = []
    for group in strongly_connected(reads):
        if len(group) > 1 or group[0] in reads[group[0]]:
            inside = set(group)
            found.append(_recurrence([each for each in equations if each.name in inside], by_name))
    return tuple(found)


def _recurrence(group: Sequence[Equation], by_name: Mapping[str, Equation]) -> Recurrence:
    """Equations that form a cycle, as one recurrence."""
    names = {each.name for each in group}
    found = [(each, step) for each in group for step, ref in steps_of(each) if ref.name in names]
    labels = dict[str, str]()
    for each, step in found:
        if each.name not in labels:
            labels[each.name] = step.axes[0]
            _spread(labels, group, by_name)
    steps = {_STEP_OF[step.function]: step for each, step in found if step.axes[0] == labels.get(each.name)}
    if len(steps) > 1:
        fix = "split it: one direction first, and the other reads its result"
        raise EquationError("a recurrence reads both earlier and later positions", steps[1].place, fix)
    for each in group:
        if labels.get(each.name) not in each.left:
            raise EquationError(
                f"'{each.name}' depends on itself, but not along one axis on its left",
                each.place,
                f"read '{each.name}', or what is defined below, at t-1 or t+1 of one axis t on the left",
            )
    dimensions = {each.name: each.left.index(labels[each.name]) for each in group}
    for each in group:
        _check(each, labels[each.name], dimensions)
    return Recurrence(tuple(group), labels, next(iter(steps)))


def steps_of(equation: Equation) -> Iterator[tuple[Call, Ref]]:
    """The steps by which an equation reads tensors at other positions, each with its tensor."""
    for part in equation.parts:
        if isinstance(part, Call) and part.function in _STEP_OF:
            inner: Expression = part
            while isinstance(inner, Call) and inner.function == part.function:
                inner = inner.arguments[0]
            if isinstance(inner, Ref):
                yield part, inner


def _spread(labels: dict[str, str], group: Sequence[Equation], by_name: Mapping[str, Equation]) -> None:
    """Adds the names of the axis in the other equations, as far as they follow from the known ones."""
    before = -1
    while before < len(labels) < len(group):
        before = len(labels)
        for each in group:
            for ref in each.references:
                if any(ref.name == other.name for other in group):
                    _tell(labels, each, ref, by_name[ref.name])


def _tell(labels: dict[str, str], equation: Equation, ref: Ref, read: Equation) -> None:
    """Adds the name of the axis in an equation if it is known in the equation that it reads, and vice versa."""
    if ref.index.count(labels.get(equation.name, "")) > 1:
        return
    if equation.name in labels:
        entries = zip(ref.index, read.left, strict=True)
        told = next((each for entry, each in entries if entry == labels[equation.name]), None)
        if isinstance(told, str):
            labels.setdefault(read.name, told)
    elif read.name in labels and labels[read.name] in read.left:
        entry = ref.index[read.left.index(labels[read.name])]
        if isinstance(entry, str):
            labels[equation.name] = entry


def _check(equation: Equation, axis: str, dimensions: Mapping[str, int]) -> None:
    """Raises an error if an equation reads tensors of its recurrence at positions that are not computed yet."""

    def visit(part: Expression, bound: bool) -> None:
        match part:
            case Ref(name, index) if name in dimensions:
                here = axes_of_index(index).count(axis) == 1 and index[dimensions[name]] == axis
                if bound or not here:
                    raise _elsewhere(part, axis)
            case Call(function, (first, *rest), (over,)) if function in _STEP_OF and over == axis:
                for each in (first, *rest):
                    visit(each, bound)
                return
            case Call():
                bound = bound or axis in part.axes or axis in option_axes(part)
            case Contraction(_, summed):
                bound = bound or axis in summed
        for each in parts_of(part):
            visit(each, bound)

    visit(equation.right, False)


def _elsewhere(ref: Ref, axis: str) -> EquationError:
    return EquationError(
        f"'{ref.name}' is read at positions along '{axis}' that are not computed yet",
        ref.place,
        f"in its recurrence, read it at {axis}, {axis}-1 or {axis}+1",
    )


_BEFORE = re.compile(r"\.before(_\d+)?$")
"""The end of the name of a tensor that passes another position of a tensor to a block."""


def read_directly(body: Iterable[Any], outputs: Iterable[str]) -> tuple[Any, ...]:
    """Equations and calls, with tensors named `….before` inlined into their readers where no call needs them."""
    items = list(body)
    for step in [each for each in items if isinstance(each, Equation) and _BEFORE.search(each.name)]:
        step = next(each for each in items if each.defines == step.defines)
        equations = [each for each in items if isinstance(each, Equation)]
        read = [ref.index for each in equations for ref in each.references if ref.name == step.name]
        plain = all(len({*index}) == len(index) and all(isinstance(e, str) for e in index) for index in read)
        given = {name for each in items if not isinstance(each, Equation) for name in each.operands}
        if plain and is_step(step.right) and step.name not in {*given, *outputs}:
            others = [each for each in items if each is not step]
            items = [
                replace(each, right=_put(each.right, step)) if isinstance(each, Equation) else each
                for each in others
            ]
    return tuple(items)


def _put(part: Expression, step: Equation) -> Expression:
    """The expression with reads of a step's result replaced by the step's right side."""
    if isinstance(part, Ref) and part.name == step.name:
        return rename(step.right, dict(zip(step.left, part.index, strict=True)))  # type: ignore[arg-type]
    return transform(part, lambda each: _put(each, step))
