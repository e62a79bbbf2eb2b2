"""Desugaring: scatter statements and composites with fixed parts, rewritten to plain equations; `...` written out.

    y[b,v,c] = 0
    y[b,e[b,t],c] += x[b,t,c] * w[b,t]    is    y[b,v,c] = onehot[v](e[b,t], inside=1) * x[b,t,c] * w[b,t]

    y[b,f] = s[b,(0,f)]    is    s_parts[b,i,f] = s[b,(i,f)];  y[b,f] = s_parts[b,0,f]

A tensor in brackets of a scatter gives positions, and so does `2*p + u` or `0`. The line that initialises the tensor
names the axis. The size of that axis comes from `v=16`, or from another tensor that has it. It is an error if a tensor
gives a position outside of the axis. If axes alone give it, as in windows, it is dropped. A position that is given
twice is added to twice.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from ..errors import EquationError, told_in
from ..ops.structure import INDEX
from .affine import ONE, ones_at
from .equation import Equation, Statement
from .expression import (
    ELLIPSIS,
    Call,
    Expression,
    Index,
    Literal,
    Ref,
    Taken,
    axes_of_index,
    contraction,
    flat,
    fresh,
    is_computed_index,
    product_of,
    show_index,
    sum_of,
)

# ---------------------------------------------------------------------------- scatter statements


@dataclass(frozen=True)
class Addition(Equation):
    """`name[left] += right`: a value added to a tensor, at positions that `left` gives or along axes."""

    left: tuple[Any, ...]


@told_in("additions")
def together(written: Sequence[Statement], names: Container[str]) -> tuple[Statement, ...]:
    """The statements of a block, with all additions to a tensor merged into one definition at the last of them.

    Args:
        written: the statements of the text.
        names: the names in use.

    Raises:
        EquationError: no earlier line initialises the tensor, or its number of dimensions differs.
    """
    additions = defaultdict[str, list[Addition]](list)
    for each in written:
        if isinstance(each, Addition):
            additions[each.name].append(each)
    starts = dict[str, Equation]()
    found = list[Statement]()
    for each in written:
        match each:
            case Addition(name) if name not in starts:
                raise EquationError(
                    f"'{name}' is added to before it has a first value",
                    each.place,
                    f"write a line before it that names its axes, as {name}[{_example(each)}] = 0",
                )
            case Addition(name):
                if each is additions[name][-1]:
                    found += _total(starts[name], additions[name], names)
            case Equation(name) if name in additions and name not in starts:
                starts[name] = each
                if not isinstance(each.right, Literal):
                    found.append(replace(each, name=fresh(f"{name}_0", names)))
            case _:
                found.append(each)
    return tuple(found)


def _total(start: Equation, additions: Sequence[Addition], names: Container[str]) -> Iterator[Equation]:
    """The equations of the terms that are added, and the equation of their sum."""
    first = (
        start.right if isinstance(start.right, Literal) else Ref(fresh(f"{start.name}_0", names), start.left)
    )
    terms = [] if isinstance(first, Literal) and not first.value else [first]
    if not terms and len(additions) == 1:
        yield _part(start, *additions)
        return
    for number, each in enumerate(additions, 1):
        name = fresh(f"{start.name}_{number}", names)
        terms.append(Ref(name, start.left))
        yield replace(_part(start, each), name=name)
    yield Equation(start.name, start.left, sum_of(terms), additions[-1].place)


def _part(start: Equation, addition: Addition) -> Equation:
    """The term that one line adds, as an equation of its own."""
    if len(start.left) != len(addition.left):
        raise EquationError(
            f"'{start.name}' has {len(start.left)} dimension(s), and is added to with {len(addition.left)}",
            addition.place,
            f"it was started with {len(start.left)}: write as many entries in brackets",
        )
    left, factors = list[Any](), list[Call]()
    present = {*addition.right.occurring, *addition.kept}
    for entry, named in zip(addition.left, start.left, strict=True):
        if isinstance(entry, str | tuple) and not _is_fixed(entry):
            left.append(entry)
            continue
        told = _positions(entry, present)
        if told is None:
            message = f"an entry in the brackets of '{start.name}' is neither an axis nor a position"
            fix = "write an axis, t[b,i], 2*p + u or an integer from 0"
            raise EquationError(message, addition.place, fix)
        if not isinstance(named, str) or named in present:
            raise EquationError(
                f"positions along '{show_index((named,))}' need one axis, with a name that this line does not use",
                told.place or addition.place,
                f"give that dimension one new axis name in the first line of '{start.name}'",
            )
        factors.append(replace(ones_at(told, named), place=told.place))
        left.append(named)
    moving = {axis for each in factors for axis in each.arguments[0].free_axes}
    over = tuple(moving.difference(axes_of_index(tuple(left))))  # over the whole term, not in inner products
    right = [] if addition.right == ONE else [addition.right]  # ones are counted
    added = contraction((product_of([*factors, *right]),), over, addition.place)
    return Equation(start.name, tuple(left), flat(added), addition.place)


def _positions(entry: Index, axes: Container[str]) -> Expression | None:
    """The positions of an entry as an expression, with `index` calls for axis names; None if it is no position."""

    def change(part: Expression) -> Expression:
        match part:
            case Ref(name, (), place) if name in axes:
                return Call(INDEX.name, (), (name,), place=place)
        return part

    if isinstance(entry, int):
        return Literal(entry) if entry >= 0 else None
    return entry.rewrite(change) if is_computed_index(entry) else None


def _example(addition: Addition) -> str:
    """Sample axes for the line that initialises a tensor."""
    taken = Taken({*addition.right.occurring, *addition.kept})
    return ",".join(entry if isinstance(entry, str) else taken.fresh("v") for entry in addition.left)


# ---------------------------------------------------------------------------- composites with fixed parts


def written_out(statements: Sequence[Statement], names: Taken) -> Iterator[Statement]:
    """The statements of a block, rewritten so that composites consist of axes only.

    A read with positions in composites reads a new tensor, with a dimension for each part; its equation comes first.

    Args:
        statements: the statements of the text.
        names: the names in use; new axes and tensors avoid them.
    """

    made = dict[tuple[str, int], str]()  # each tensor has sizes of its own for its parts

    def by_parts(ref: Expression) -> Expression:
        if not isinstance(ref, Ref) or not any(map(_is_fixed, ref.index)):
            return ref
        own, numbers = set[str](), itertools.count()

        def named(entry: Any) -> Any:
            if isinstance(entry, tuple):
                return tuple(map(named, entry))
            if isinstance(entry, str) and entry not in own:
                own.add(entry)
                return entry
            key = ref.name, next(numbers)
            return made.get(key) or made.setdefault(key, names.fresh("i"))

        whole = tuple(map(named, ref.index))
        apart, read = list[Any](), list[Any]()
        for entry, new in zip(ref.index, whole, strict=True):
            apart += new if _is_fixed(entry) else (new,)
            read += entry if _is_fixed(entry) else (entry,)
        name = names.fresh(f"{ref.name}_parts")
        before.append(Equation(name, tuple(apart), Ref(ref.name, whole, ref.place), ref.place))
        return Ref(name, tuple(read), ref.place)

    for each in statements:
        before = list[Equation]()
        if isinstance(each, Equation):
            each = replace(each, right=each.right.rewrite(by_parts))
        yield from (*before, each)


def _is_fixed(entry: Any) -> TypeGuard[tuple[Any, ...]]:
    """Whether an entry of brackets is a composite with positions among its parts."""
    return isinstance(entry, tuple) and not all(isinstance(each, str) for each in entry)


# ---------------------------------------------------------------------------- leading axes


def expand_index(index: tuple[Any, ...], lead: tuple[str, ...]) -> tuple[Any, ...]:
    """An index with `...` replaced by the names it stands for."""
    return tuple(each for entry in index for each in (lead if entry == ELLIPSIS else (entry,)))


def expand_ellipsis(expression: Expression, lead: tuple[str, ...]) -> Expression:
    """An expression with `...` replaced by the names it stands for."""

    def change(part: Expression) -> Expression:
        return replace(part, index=expand_index(part.index, lead)) if isinstance(part, Ref) else part

    return expression.rewrite(change)
