"""Contraction fusion: contractions that follow one another become one."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ..graph.graph import Graph
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Ref,
    Size,
    axes_of_index,
    bound_axes,
    contraction,
    free_axes,
    fresh,
    is_told,
    occurring,
    rename,
    sized_by_name,
    subexpressions,
    transform,
)
from ..sizes import evaluate
from .rewriter import Draft

__all__ = ["fuse_contractions", "inline"]


MOST = 32
"""So many factors a product that is put into another has at most: the order of more is hardly better than that of
the text, and takes long to find."""


def fuse_contractions(graph: Graph) -> Graph:
    """Puts a contraction that is read once, as a factor, into the contraction that reads it."""
    draft = Draft(graph)
    for name in [equation.name for equation in graph.own]:
        producer, reader = draft[name], draft.only_reader(name)
        if reader is None or not isinstance(producer.right, Contraction | Ref):
            continue
        if isinstance(producer.right, Contraction) and len(producer.right.factors) > MOST:
            continue
        merged = inline(draft, reader, producer)
        if merged is not None:
            draft.put(merged)
    return draft.finished()


def inline(draft: Draft, reader: Equation, producer: Equation, *, sums: bool = False) -> Equation | None:
    """The reader with the producer's expression in place of its name, where it stands as a factor.

    Returns nothing where that cannot be written: inside a function, or split another way.
    """
    ref = _factor_named(reader.right, producer.name)
    if ref is None or any(isinstance(entry, int) or is_told(entry) for entry in ref.index):
        return None
    outer = {*occurring(reader.right), *axes_of_index(reader.left)}
    taken = outer | occurring(producer.right)
    sized = set(draft.graph.bound)  # a new axis of such a name would have that size
    aligned = _aligned(draft, reader, producer, ref, taken, sized)
    if aligned is None:
        return None
    own = outer | (taken - occurring(producer.right))
    sizes = _sized_by_name(draft, producer)
    body = _moved(producer, aligned.names, aligned.splits, own, taken | sized, sizes)
    if body is None:
        return None
    renewed = _factor_named(aligned.reader.right, producer.name)
    assert renewed is not None
    return replace(aligned.reader, right=_substitute(aligned.reader.right, renewed, body, sums))


class _Aligned(NamedTuple):
    """A reader of a producer, what the axes of the producer are called in it, and those that it reads split."""

    reader: Equation
    names: dict[str, str]
    splits: dict[str, tuple[str, ...]]


def _aligned(
    draft: Draft, reader: Equation, producer: Equation, ref: Ref, taken: set[str], sized: set[str]
) -> _Aligned | None:
    """The reader and the producer, dimension by dimension; nothing where they are split in two ways.

    Args:
        draft: the graph.
        reader, producer: its equations.
        ref: the producer's tensor, as it is read.
        taken: names of axes that are taken; it grows.
        sized: names that have a size.
    """
    names: dict[str, str] = {}
    splits: dict[str, tuple[str, ...]] = {}
    for made, read in zip(producer.left, ref.index, strict=True):
        match made, read:
            case str(), str():
                names[made] = read
            case str(), tuple():
                splits[made] = read
            case tuple(), tuple() if len(made) == len(read) and _same_parts(
                draft, reader, producer, made, read
            ):
                names.update(zip(made, read, strict=True))
            case tuple(), str():
                parts = []
                for axis in made:
                    parts.append(fresh(axis, taken | sized))
                    taken.add(parts[-1])
                    names[axis] = parts[-1]
                divided = split(reader, read, tuple(parts))
                if divided is None:
                    return None
                reader = divided
            case _:
                return None
    return _Aligned(reader, names, splits)


def _moved(
    producer: Equation,
    names: dict[str, str],
    splits: dict[str, tuple[str, ...]],
    outer: set[str],
    taken: set[str],
    fixed: set[str],
) -> Expression | None:
    """The producer's expression under the reader's axis names; its own sums give way to the reader's."""
    moves = dict(names)
    for axis, parts in splits.items():
        own = [fresh(part, taken | {*moves, *parts}) for part in parts]  # until all axes are renamed at once
        divided = split(producer, axis, tuple(own))
        if divided is None:
            return None
        producer = divided
        moves.update(zip(own, parts, strict=True))
    right = producer.right
    inner = set(right.summed) if isinstance(right, Contraction) else set()
    whole = Contraction(right.factors, (), right.place) if isinstance(right, Contraction) else right
    targets = set(moves.values())
    if targets & sized_by_name(whole) - set(free_axes(whole)):
        return None  # it would give way, and lose its size
    for axis in sorted(inner):
        moves[axis] = fresh(axis, taken | targets) if axis in outer | targets else axis
        taken.add(moves[axis])
    if len(set(moves.values())) != len(moves):
        return None
    if any(axis in fixed and moves.get(axis, axis) != axis for axis in moves) or fixed & set(splits):
        return None
    renamed = rename(whole, moves)
    if inner and isinstance(renamed, Contraction):
        return Contraction(renamed.factors, tuple(sorted(moves[axis] for axis in inner)), renamed.place)
    return renamed


def _sized_by_name(draft: Draft, equation: Equation) -> set[str]:
    """The axes whose size only their name tells, as `h` in `x[(h,d)]`: they cannot be renamed.

    A sum inside is looked at by itself: what stands outside of it tells it no sizes.
    """
    right = equation.right
    whole = Contraction(right.factors) if isinstance(right, Contraction) else right
    names = {*occurring(whole)} - set(draft.scope(whole).sizes)
    for part in subexpressions(whole):
        if isinstance(part, Contraction | Call) and bound_axes(part):
            inside = Contraction(part.factors if isinstance(part, Contraction) else part.arguments)
            names |= sized_by_name(inside) - set(draft.scope(inside).sizes)
    return names


def _same_parts(
    draft: Draft, reader: Equation, producer: Equation, made: tuple[str, ...], read: tuple[str, ...]
) -> bool:
    outer, inner = draft.scope(reader.right), draft.scope(producer.right)
    bound = draft.graph.bound
    return all(
        evaluate(outer[r], bound) == evaluate(inner[m], bound) for m, r in zip(made, read, strict=True)
    )


def _factor_named(expression: Expression, name: str) -> Ref | None:
    """The reference to `name` that stands as a factor of some contraction."""
    for part in subexpressions(expression):
        if isinstance(part, Contraction):
            for factor in part.factors:
                if isinstance(factor, Ref) and factor.name == name:
                    return factor
    return None


def _substitute(expression: Expression, ref: Ref, body: Expression, sums: bool) -> Expression:
    if isinstance(expression, Contraction) and ref in expression.factors:
        at = expression.factors.index(ref)
        plain = isinstance(body, Contraction) and not sums
        inserted = body.factors if plain and isinstance(body, Contraction) else (body,)
        summed = expression.summed + (body.summed if plain and isinstance(body, Contraction) else ())
        factors = expression.factors[:at] + inserted + expression.factors[at + 1 :]
        return contraction(factors, summed, expression.place)
    return transform(expression, lambda part: _substitute(part, ref, body, sums))


def split(equation: Equation, axis: str, parts: tuple[str, ...]) -> Equation | None:
    """The equation with one axis written as the composite of several, if only brackets name it."""
    right = equation.right
    for part in subexpressions(right):
        match part:
            case Size(name) if name == axis:
                return None
            case Call(_, _, axes, options) if axis in axes or axis in dict(options):
                return None
            case Ref(_, index) if len(axes_of_index(index)) != _length(index):
                return None
    left = tuple(_split_entry(entry, axis, parts) for entry in equation.left)
    return replace(equation, left=left, right=_split(right, axis, parts))


def _length(index: tuple[object, ...]) -> int:
    """How many axis names stand in brackets, repeats and gathers counted so that both differ."""
    return sum(
        len(entry) if isinstance(entry, tuple) else 0 if isinstance(entry, int) else 1 for entry in index
    )


def _split(expression: Expression, axis: str, parts: tuple[str, ...]) -> Expression:
    changed = transform(expression, lambda part: _split(part, axis, parts))
    match changed:
        case Ref(_, index):
            return replace(
                changed,
                index=tuple(
                    _split_entry(entry, axis, parts) if isinstance(entry, str | tuple) else entry
                    for entry in index
                ),
            )
        case Contraction(_, summed) if axis in summed:
            return replace(changed, summed=tuple(sorted({*summed, *parts} - {axis})))
    return changed


def _split_entry(entry: str | tuple[str, ...], axis: str, parts: tuple[str, ...]) -> str | tuple[str, ...]:
    if isinstance(entry, str):
        return parts if entry == axis else entry
    return tuple(name for each in entry for name in (parts if each == axis else (each,)))
