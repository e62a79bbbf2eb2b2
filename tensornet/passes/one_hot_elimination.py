"""One-hot elimination: products with one-hot tensors become gathers.

Summed over these positions, the other factors are read there: `onehot[v](t[b])*E[v,c]` is `E[p[b],c]*(t[b] == p[b])`,
where `p` is the position, kept inside of the axis: what is told outside of it has no one, and comes out as 0.

Summed over what tells them, the other factors are added up there: `onehot[v](t[s])*x[s,c]` with `s` summed is
`scatter_add[s](t[s], index(v), x[s,c])`, and what is told outside goes nowhere. Products of them need not be there:
`onehot[v](t[s])*x[s,c]*z[s,d]` is `grouped_outer[s](t[s], index(v), x[s,c], z[s,d])` as well.

Where the positions must be those of the axis, as lines that add to a tensor ask, the ones choose: what a position does
not get is not multiplied by 0, which would make NaN of what is not finite. So one of these forms, or else a choice by
`where`, takes the place of such a product whatever it costs, and reads or adds up whole products alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace

from ..errors import Place
from ..graph.element_types import of_expression
from ..graph.shape_inference import size_expression
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Literal,
    Ref,
    contraction,
    free_axes,
    is_scalar,
    occurring,
    rename,
)
from ..language.parser import parse_rule
from ..ops.gather_scatter import GROUPED_OUTER
from ..ops.pointwise import EQUAL, WHERE
from ..ops.structure import INDEX, is_inside
from ..ops.table import FUNCTIONS
from ..sizes import evaluate, size_names
from .rewriter import Change, Draft, by_kernels, replaced

__all__ = ["eliminate_one_hots"]

MOST = 4
"""Of so many factors all ways to part them in two are looked at."""


@by_kernels
def eliminate_one_hots(draft: Draft, reader: Equation, supported: Container[str]) -> Iterator[Change]:
    """Reads tensors at told positions, or adds them up there, instead of multiplying by ones, where that pays."""
    for product in reader.parts:
        if not isinstance(product, Contraction):
            continue
        for at, factor in enumerate(product.factors):
            ones = _ones(draft, factor)
            if ones is None:
                continue
            if is_inside(ones):
                yield from _due(draft, reader, product, at, ones, supported)
                continue
            if not of_expression(ones.arguments[0], draft.elements).is_position:
                continue
            if set(ones.axes) <= set(product.summed):
                yield from _changes(draft, reader, product, at, ones)
                continue
            opened = Contraction((*product.factors[:at], ones, *product.factors[at + 1 :]))
            if not draft.stands_alone(opened, draft.scope(Contraction(product.factors))):
                continue  # the name that the reader gives the axis tells another size, or none
            if FUNCTIONS[ones.function].scatters in supported:
                yield from _scatters(draft, reader, product, at, ones)
            if GROUPED_OUTER.name in supported:
                yield from _outer(draft, reader, product, at, ones)


def _due(
    draft: Draft, reader: Equation, product: Contraction, at: int, ones: Call, supported: Container[str]
) -> Iterator[Change]:
    """The forms of a product in which ones choose; nothing where there is nothing else that could be infinite."""
    if all(is_scalar(factor) or _chooses(draft, factor) for factor in product.factors):
        if FUNCTIONS[ones.function].scatters in supported:
            yield from _scatters(draft, reader, product, at, ones)
        return
    found = list[Change]()
    held = {axis for n, each in enumerate(product.factors) if n != at for axis in free_axes(each)}
    if set(ones.axes) <= held & set(product.summed):
        found += _changes(draft, reader, product, at, ones)
    if FUNCTIONS[ones.function].scatters in supported:
        found += _scatters(draft, reader, product, at, ones)
    if GROUPED_OUTER.name in supported:
        found += _outer(draft, reader, product, at, ones)
    if not found:
        right = replaced(
            reader.right, product, _chosen(draft, product.factors, product.summed, product.place)
        )
        found.append(Change((replace(reader, right=right),), (reader,)))
    yield from (replace(each, is_due=True) for each in found)


def _chosen(
    draft: Draft, factors: Sequence[Expression], summed: Sequence[str], place: Place | None
) -> Expression:
    """A product in which ones that choose are conditions: what they do not choose is 0, whatever it is."""
    choosing = [each for each in factors if _chooses(draft, each)]
    rest = tuple(each for each in factors if each not in choosing)
    if not choosing or not rest:
        return contraction(tuple(factors), tuple(summed), place)
    held = {axis for each in choosing for axis in free_axes(each)}
    value = contraction(rest, tuple(axis for axis in summed if axis not in held), place)
    for each in choosing:
        value = Call(WHERE.name, (Call(EQUAL.name, (each, Literal(1))), value, Literal(0)), place=place)
    left = tuple(axis for axis in summed if axis in held)
    return contraction((value,), left, place) if left else value


def _ones(draft: Draft, factor: Expression) -> Call | None:
    """The call that makes ones at told positions: a factor itself, or what it reads."""
    match factor:
        case Ref(name, index) if name in draft and len(set(index)) == len(index):
            names = dict(zip(draft[name].left, index, strict=True))
            if all(isinstance(axis, str) for pair in names.items() for axis in pair):
                return _ones(draft, rename(draft[name].right, names))  # type: ignore[arg-type]
        case Call(function) if FUNCTIONS[function].selects:
            return factor
    return None


def _chooses(draft: Draft, factor: Expression) -> bool:
    """Whether a factor makes ones that choose."""
    ones = _ones(draft, factor)
    return ones is not None and is_inside(ones)


def _changes(draft: Draft, reader: Equation, product: Contraction, at: int, ones: Call) -> Iterator[Change]:
    """Reads at once each factor that has the axis, or else the product of all that hang together with it."""
    (axis,), (told,) = ones.axes, ones.arguments
    inside = draft.scope(Contraction(product.factors))
    size = evaluate(inside[axis], draft.graph.bound)
    if size == 0 or set(size_names(size)) & occurring(told) or not draft.stands_alone(told, inside):
        return
    p = Ref(draft.fresh(f"{reader.name}_at"), free_axes(told))
    kept_inside, there = told, tuple[Expression, ...]()
    if not is_inside(ones):
        kept_inside = parse_rule(FUNCTIONS[ones.function].selects, {"a": told, "n": size_expression(size)})
        there = (parse_rule(FUNCTIONS[ones.function].at, {"a": told, "p": p}),)
    elif isinstance(told, Ref):
        p = told
    made = () if p is told else (Equation(p.name, free_axes(told), kept_inside, ones.place),)
    holders = [n for n, each in enumerate(product.factors) if n != at and axis in free_axes(each)]
    for groups in dict.fromkeys((tuple((n,) for n in holders), (_table(product, at, holders),))):
        found = _read(draft, reader, product, groups, axis, p)
        if found is None:
            continue
        tables, read = found
        gone = {n for group in groups for n in group} | {at}
        rest = tuple(each for n, each in enumerate(product.factors) if n not in gone)
        factors = (*rest, *read, *there)
        present = {each for factor in factors for each in free_axes(factor)}
        changed = contraction(factors, tuple(present & set(product.summed)), product.place)
        right = replaced(reader.right, product, changed)
        yield Change(
            (*made, *tables, replace(reader, right=right)), (*_read_here(draft, product, at), reader)
        )


def _scatters(draft: Draft, reader: Equation, product: Contraction, at: int, ones: Call) -> Iterator[Change]:
    """Adds up the product of the factors that the sum over the positions needs, or of all without the axis."""
    (axis,), (told,) = ones.axes, ones.arguments
    summed = set(product.summed).intersection(free_axes(told))
    others = [n for n in range(len(product.factors)) if n != at]
    needed = tuple(n for n in others if summed & occurring(product.factors[n]))
    if not summed or any(axis in occurring(product.factors[n]) for n in needed):
        return
    wider = tuple(n for n in others if axis not in occurring(product.factors[n]))
    for group in (wider,) if is_inside(ones) else dict.fromkeys((needed, wider)):
        beside = tuple(product.factors[n] for n in others if n not in group)
        kept = {axis, *(each for factor in beside for each in occurring(factor))}
        rows = tuple(product.factors[n] for n in group)
        gone = {each for factor in rows for each in free_axes(factor)} & set(product.summed) - summed - kept
        added = (_chosen(draft, rows, tuple(gone), product.place),) if rows else ()
        function, places = FUNCTIONS[ones.function].scatters, Call(INDEX.name, (), (axis,))
        run = tuple(sorted(summed))
        scattered = Call(function, (told, places, *added), run, ones.options, ones.place)
        left = tuple(set(product.summed) - summed - gone)
        right = replaced(reader.right, product, contraction((scattered, *beside), left, product.place))
        yield Change((replace(reader, right=right),), (*_read_here(draft, product, at), reader))


def _outer(draft: Draft, reader: Equation, product: Contraction, at: int, ones: Call) -> Iterator[Change]:
    """Adds up products of two parts of the factors that the sum over all that tells the positions needs."""
    (axis,), (told,) = ones.axes, ones.arguments
    tells = set(free_axes(told))
    others = [n for n in range(len(product.factors)) if n != at]
    needed = [n for n in others if tells & occurring(product.factors[n])]
    beside = tuple(product.factors[n] for n in others if n not in needed)
    parted = any(axis in occurring(product.factors[n]) for n in needed)
    if not tells <= set(product.summed) or not 1 < len(needed) <= MOST or parted:
        return
    first, *rest = needed
    for count in range(1, len(needed)):
        for second in itertools.combinations(rest, count):
            halves = ([first, *(n for n in rest if n not in second)], second)
            sides = [[product.factors[n] for n in half] for half in halves]
            changed = _multiplied(product, ones, sides, beside)
            if changed is not None:
                right = replaced(reader.right, product, changed)
                yield Change((replace(reader, right=right),), (*_read_here(draft, product, at), reader))


def _multiplied(
    product: Contraction, ones: Call, sides: Sequence[Sequence[Expression]], beside: tuple[Expression, ...]
) -> Expression | None:
    """A product with the kernel in it of two parts of its factors; nothing where the kernel is of no such parts.

    Args:
        product: the product.
        ones: its factor that makes ones.
        sides: the two parts.
        beside: the other factors.
    """
    tells, held = set(free_axes(ones.arguments[0])), {axis for each in beside for axis in occurring(each)}
    one, other = ({axis for each in side for axis in free_axes(each)} - tells for side in sides)
    summed = set(product.summed)
    own = [(one - other - held) & summed, (other - one - held) & summed]
    if not (one & other) <= summed - held or not one - other - own[0] or not other - one - own[1]:
        return None
    parts = (
        contraction(tuple(side), tuple(alone), product.place) for side, alone in zip(sides, own, strict=True)
    )
    arguments = (*ones.arguments, Call(INDEX.name, (), ones.axes), *parts)
    run = tells | (one & other)
    call = Call(GROUPED_OUTER.name, arguments, tuple(sorted(run)), ones.options, ones.place)
    left = tuple(summed - run - own[0] - own[1])
    return contraction((call, *beside), left, product.place)


def _read_here(draft: Draft, product: Contraction, at: int) -> tuple[Equation, ...]:
    """The equation of a factor, if nothing else reads it."""
    match product.factors[at]:
        case Ref(name) if name in draft and draft.only_reader(name) is not None:
            return (draft[name],)
    return ()


def _table(product: Contraction, at: int, holders: list[int]) -> tuple[int, ...]:
    """The factors that have the axis, and those that summed axes tie to them and no axis of the positions does."""
    told = set(free_axes(product.factors[at]))
    found = set(holders)
    while True:
        tied = {a for n in found for a in free_axes(product.factors[n])} & set(product.summed)
        more = {
            n
            for n, factor in enumerate(product.factors)
            if n != at and tied & set(free_axes(factor)) and not told & set(free_axes(factor))
        }
        if more <= found:
            return tuple(sorted(found))
        found |= more


def _read(
    draft: Draft,
    reader: Equation,
    product: Contraction,
    groups: tuple[tuple[int, ...], ...],
    axis: str,
    position: Ref,
) -> tuple[tuple[Equation, ...], tuple[Expression, ...]] | None:
    """Products of some factors, each at the position; the equations of those that are no tensors."""
    tables: list[Equation] = []
    read: list[Expression] = []
    for group in groups:
        factors = tuple(product.factors[n] for n in group)
        others = (each for n, each in enumerate(product.factors) if n not in group)
        outside = {axis, *(a for each in others for a in free_axes(each))}
        summed = {a for each in factors for a in free_axes(each)} & set(product.summed) - outside
        table = contraction(factors, tuple(summed), product.place)
        if not isinstance(table, Ref) or any(
            axis in entry for entry in table.index if isinstance(entry, tuple)
        ):
            if not draft.stands_alone(table, draft.scope(Contraction(product.factors))):
                return None
            taken = [position.name, *(each.name for each in tables)]
            name = draft.fresh(f"{reader.name}_whole", taken)
            tables.append(Equation(name, free_axes(table), table, product.place))
            table = Ref(name, free_axes(table))
        read.append(replace(table, index=tuple(position if each == axis else each for each in table.index)))
    return tuple(tables), tuple(read)
