"""Recurrence groups: strongly connected equations that read each other at earlier or later positions.

    h[b,t,o] = tanh(z[b,t,o])
    z[b,t,o] = x[b,t,o] + previous[t](h[b,t,p]) * U[o,p]

The tensors of a group are computed one position of the axis at a time, from tensors at the same position and from
the state that the position before left. An equation reads a tensor that is defined below it only by `previous` or
`following`. A group that is also recurrent along a second axis, `previous[i](h[i,j]) + previous[j](h[i,j])`, runs
along that axis at each position of the first.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import EquationError, told_in
from ..language.equation import Equation
from ..language.expression import Call, Contraction, Expression, Ref, axes_of_index
from ..ops.along_axes import STEPS
from ..ops.record import names_in
from ..sizes import invert_size, name_of, put_in, size_names, symbol, terms_of
from .leaves import Called, Leaf
from .shape_inference import Axis, Dim, Scope, scope_of
from .unify import Unifier

T = TypeVar("T")
N = TypeVar("N", bound=Hashable)

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


def is_step(part: Expression) -> bool:
    """Whether a part of an expression reads another position."""
    return isinstance(part, Call) and part.function in _STEP_OF


def _below(step: Expression) -> tuple[Expression, list[Expression]]:
    """What nested steps in one direction read, and their starts."""
    inner, starts = step, list[Expression]()
    while isinstance(inner, Call) and isinstance(step, Call) and inner.function == step.function:
        starts += inner.arguments[1:]
        inner = inner.arguments[0]
    return inner, starts


def late(equation: Equation) -> list[Ref]:
    """The tensors that an equation reads at another position, which may be defined below."""
    outer = _outer(equation)
    found = [] if outer is equation.parts else [_below(part)[0] for part in outer if is_step(part)]
    return [inner for inner in found if isinstance(inner, Ref)]


def _outer(equation: Equation) -> Sequence[Expression]:
    """The parts of an equation. Of nested steps, only the outermost and the starts; not the tensor that they read."""
    if not _STEP_OF.keys() & {part.function for part in equation.called}:
        return equation.parts
    waiting, found = [equation.right], list[Expression]()
    while waiting:
        found.append(part := waiting.pop())
        if is_step(part):
            inner, starts = _below(part)
            waiting += [*starts, *(inner.parts if isinstance(inner, Ref) else (inner,))]
        else:
            waiting += part.parts
    return found


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


# ---------------------------------------------------------------------------- topological orders


def postorder(roots: Iterable[T], before: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """Depth-first postorder: the roots, each after what must come before it, as far as that forms no cycle."""
    entered = set[int]()
    waiting: list[tuple[T | None, Iterator[T]]] = [(None, iter(roots))]
    while waiting:
        item, others = waiting[-1]
        other = next((each for each in others if id(each) not in entered), None)
        if other is not None:
            entered.add(id(other))
            waiting.append((other, iter(before(other))))
        else:
            waiting.pop()
            if item is not None:
                yield item


def strongly_connected(reads: Mapping[N, Iterable[N]]) -> Iterator[tuple[N, ...]]:
    """The strongly connected components, each after the components that it reads (Kosaraju; Sharir 1981).

    Args:
        reads: names, and the names that each of them reads.
    """
    names = {name: name for name in reads}
    readers: dict[N, list[N]] = {name: [] for name in reads}
    for name, others in reads.items():
        for each in others:
            if each in readers:
                readers[each].append(name)
    found, done = list[tuple[N, ...]](), set[N]()
    last_first = [*postorder(names, lambda name: [names[each] for each in reads[name] if each in names])]
    for root in reversed(last_first):
        group = [root] if root not in done else []
        done.add(root)
        for each in group:  # it grows
            new = [reader for reader in readers[each] if reader not in done]
            done.update(new)
            group += new
        found += [tuple(group)] if group else []
    return reversed(found)


def in_order(equations: Sequence[Equation], groups: Iterable[Recurrence]) -> Iterator[Equation]:
    """Equations, each after what it reads, except at other positions of its own recurrence.

    Args:
        equations: the equations, in any order.
        groups: the recurrences among them.
    """
    by_name = {each.name: each for each in equations}
    group_of = {name: each.names for each in groups for name in each.names}

    def before(equation: Equation) -> Iterator[Equation]:
        own = group_of.get(equation.name, frozenset())
        read = (*early(equation), *(ref for ref in late(equation) if ref.name not in own))
        return (by_name[ref.name] for ref in read if ref.name in by_name)

    return postorder(equations, before)


def calls_late(
    items: Sequence[T], before: Callable[[T], Iterable[T]], is_call: Callable[[T], bool]
) -> Iterator[T]:
    """Items in a topological order: each after its predecessors, otherwise as given. Calls keep their order. A call
    moves up only if an item needs it, so calls at the end of `items` come as late as possible."""
    calls = [each for each in items if is_call(each)]
    previous = {id(call): other for other, call in itertools.pairwise(calls)}

    def first(item: T) -> Iterator[T]:
        if id(item) in previous:
            yield previous[id(item)]
        yield from before(item)

    return postorder(items, first)


@told_in("recurrences")
def recurrences(equations: Sequence[Equation]) -> tuple[Recurrence, ...]:
    """The recurrences among some equations.

    Raises:
        EquationError: tensors form a cycle other than along one axis, in one direction.
    """
    by_name = {each.name: each for each in equations}
    reads = {each.name: dict.fromkeys(each.operands) for each in equations}
    found = []
    for group in strongly_connected(reads):
        if len(group) > 1 or group[0] in reads[group[0]]:
            inside = set(group)
            found.append(_recurrence([each for each in equations if each.name in inside], by_name))
    return tuple(found)


def _recurrence(group: Sequence[Equation], by_name: Mapping[str, Equation]) -> Recurrence:
    """Equations that form a cycle, as one recurrence along the axis along which most of their reads step, so that as
    little as possible runs one position after another along a second axis."""
    names = {each.name for each in group}
    found = [(each, step, ref) for each in group for step, ref in _steps_of(each) if ref.name in names]
    axes = defaultdict[tuple[str, int], set[str]](set)
    for each, step, ref in found:
        axes[each.name, id(ref)].add(step.axes[0])
    ways = list[dict[str, str]]()
    for first in found:
        labels = _labels([first, *found], group, by_name)
        ways += [labels] if labels not in ways else []

    def reads_along(labels: Mapping[str, str]) -> int:
        return sum(labels[name] in own for (name, _), own in axes.items())

    for labels in sorted(ways, key=reads_along, reverse=True):
        with contextlib.suppress(EquationError):
            return _along(group, labels, found)
    return _along(group, next(iter(ways), {}), found)  # raises the error of the axis that is read first


def _along(
    group: Sequence[Equation], labels: Mapping[str, str], found: Sequence[tuple[Equation, Call, Ref]]
) -> Recurrence:
    """The recurrence of some equations along an axis, which `labels` names in each.

    Args:
        group: the equations.
        labels: the names of the axis.
        found: the steps by which they read each other.
    """
    steps = {
        _STEP_OF[step.function]: step for each, step, _ in found if step.axes[0] == labels.get(each.name)
    }
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


def _labels(
    steps: Sequence[tuple[Equation, Call, Ref]], group: Sequence[Equation], by_name: Mapping[str, Equation]
) -> dict[str, str]:
    """The axis of the first of some steps, by its name in each equation."""
    labels = dict[str, str]()
    for each, step, _ in steps:
        if each.name not in labels:
            labels[each.name] = step.axes[0]
            _spread(labels, group, by_name)
    return labels


def _steps_of(equation: Equation) -> Iterator[tuple[Call, Ref]]:
    """The steps by which an equation reads tensors at other positions, each with its tensor."""
    for step in filter(is_step, equation.called):
        inner, _ = _below(step)
        if isinstance(inner, Ref):
            yield step, inner


def _spread(labels: dict[str, str], group: Sequence[Equation], by_name: Mapping[str, Equation]) -> None:
    """Adds the names of the axis in the other equations, as far as they follow from the known ones."""
    inside = {each.name for each in group}
    before = -1
    while before < len(labels) < len(group):
        before = len(labels)
        for each in group:
            here = labels.get(each.name)
            for ref in each.references:
                is_clear = ref.name in inside and ref.index.count(here or "") < 2
                for entry, theirs in zip(ref.index, by_name[ref.name].left, strict=True) if is_clear else ():
                    if isinstance(entry, str) and isinstance(theirs, str):
                        if entry == here:
                            labels.setdefault(ref.name, theirs)
                        elif theirs == labels.get(ref.name):
                            labels.setdefault(each.name, entry)


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
                bound = bound or axis in part.axes or axis in part.option_axes
            case Contraction(_, summed):
                bound = bound or axis in summed
        for each in part.parts:
            visit(each, bound)

    visit(equation.right, False)


def _elsewhere(ref: Ref, axis: str) -> EquationError:
    return EquationError(
        f"'{ref.name}' is read at positions along '{axis}' that are not computed yet",
        ref.place,
        f"in its recurrence, read it at {axis}, {axis}-1 or {axis}+1",
    )


# ---------------------------------------------------------------------------- shape inference

_MARK = "@"  # no name contains it


def dims_of_recurrences(
    leaves: Iterable[Leaf],
    body: Iterable[Equation | Called],
    groups: Iterable[Recurrence],
    bound: Mapping[str, Any],
) -> dict[str, tuple[Dim, ...]]:
    """The dimensions of the tensors that are recurrent or defined below their readers. An axis that nothing sizes gets
    the size of its name.

    Args:
        leaves, body: the leaves and the body of a graph.
        groups: its recurrences.
        bound: the sizes that have a value.
    """
    body, found = list(body), _Foreseen({})
    known = {leaf.name: leaf.dims for leaf in leaves}
    later = {*read_later(body, known)}
    round_about = {each.name: each for group in groups for each in group.equations}
    round_about |= {each.name: each for each in body if isinstance(each, Equation) and each.name in later}
    known.update({name: _marked(each, Scope()) for name, each in round_about.items()})
    for item in body:
        if not isinstance(item, Equation):
            known.update(item.returned(bound))
            continue
        scope = scope_of(item.right, known, found.unify, bound, solves=False)
        made = _marked(item, scope)
        for ours, theirs in zip(made, known.get(item.name, made), strict=True):
            for one, other in zip(ours, theirs, strict=True):
                found.unify(one.size, other.size, one.name, None)
        known[item.name] = made
    return {name: tuple(map(_named, found.dims(known[name]))) for name in round_about}


def _marked(equation: Equation, scope: Scope) -> tuple[Dim, ...]:
    """The dimensions of an equation's result, with a marked symbol for each size that is not known yet."""
    told = {**scope.inner, **scope.assumed, **scope.sizes}

    def axis(name: str) -> Axis:
        return Axis(name, told.get(name, symbol(f"{equation.name}{_MARK}{name}")))

    return tuple(tuple(map(axis, names_in(entry))) for entry in equation.left)


def _named(dim: Dim) -> Dim:
    """A dimension in which an axis whose size is still marked gets the size of its name. In a size that is made of
    marked ones, as that of a padded axis, each becomes the size of the axis that it marks."""

    def named(axis: Axis) -> Axis:
        marks = {name: symbol(name.partition(_MARK)[2]) for name in size_names(axis.size) if _MARK in name}
        return Axis(axis.name, symbol(axis.name) if name_of(axis.size) in marks else put_in(axis.size, marks))

    return tuple(map(named, dim))


class _Foreseen(Unifier):
    """Solves for the marked sizes only. Whether other sizes agree is checked later."""

    def unify(self, a: Any, b: Any, axis: str, ref: Ref | Call | None) -> Any:
        a, b = self.resolve(a), self.resolve(b)
        difference = a - b
        alone = [name_of(b), name_of(a)]  # before names in sizes that are made of several
        for name in (*filter(None, alone), *reversed(size_names(difference))):
            if _MARK in name and dict(terms_of(difference)).get(((name, 1),)) in (1, -1):
                found = invert_size(difference, name, 0)
                if found is not None:
                    self.solution[name] = found
                    return self.resolve(a)
        return a
