"""Convolutions: products of what is read at sums of two axes, `x[b,c,2*p+u] * K[o,c,u]`, with a kernel of the backend.

A window goes along with products over other axes. So factors of the kernel that share channels with the operand may
be multiplied with it before, those of the result behind, and one dimension after the other where no factor ties
them: of a Tucker kernel that is a 1×1, a smaller one and a 1×1, of a CP kernel one for each dimension.

The way back has ones where positions meet, `onehot[i](2*p+u)`: summed over both axes, a product with these is what
the operand of a convolution gets.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ...language.equation import Equation
from ...language.expression import (
    Call,
    Contraction,
    Expression,
    Index,
    Ref,
    axes_of_index,
    contraction,
    free_axes,
    fresh,
    is_told,
    occurring,
    rename,
)
from ...language.positions import Affine, affine, is_window
from ...operations.convolving import CONVOLUTION, DIMENSIONS
from ...operations.functions import FUNCTIONS
from ..graph import Graph
from .draft import Change, Cost, Draft, improved, replaced

__all__ = ["convolve"]


def convolve(graph: Graph, cost: Cost, spelled: Container[str] = ()) -> Graph:
    """Computes products of windows by convolutions, in the order that takes least.

    Args:
        graph: the graph.
        cost: what a part of it takes.
        spelled: the kernels that there are.
    """
    if CONVOLUTION.name not in spelled:
        return graph
    return improved(graph, graph.own, _convolutions, cost)


def _convolutions(draft: Draft, reader: Equation) -> Iterator[Change]:
    for product in reader.parts:
        if not isinstance(product, Contraction) or not product.summed or not draft.is_number(product):
            continue
        factors, summed = _flat(draft, product)
        windowed = [each for each in factors if isinstance(each, Ref) and any(map(is_told, each.index))]
        ones = [each for each in factors if _is_ones(each)]
        if len(windowed) == 1 and not ones:
            others = tuple(each for each in factors if each is not windowed[0])
            ways = _Reading(draft, reader, windowed[0], others, summed).ways()
        elif ones and not windowed:
            others = tuple(each for each in factors if not _is_ones(each))
            ways = _made(others, ones, summed)
        else:
            continue
        for before, found in ways:
            right = replaced(reader.right, product, found)
            yield Change((*before, replace(reader, right=right)), (reader,))


def _flat(draft: Draft, product: Contraction) -> tuple[tuple[Expression, ...], frozenset[str]]:
    """The factors of a product, and of products in it whose sums may as well be the last; the axes summed over."""
    factors: list[Expression] = []
    summed = set(product.summed)
    for factor in product.factors:
        factor = _written_out(draft, factor)
        inner = factor.summed if isinstance(factor, Contraction) else ()
        others = {axis for each in product.factors if each is not factor for axis in occurring(each)}
        if isinstance(factor, Contraction) and not set(inner) & (summed | others):  # names of its own
            factors += factor.factors
            summed |= set(inner)
        else:
            factors.append(factor)
    return tuple(factors), frozenset(summed)


def _written_out(draft: Draft, factor: Expression) -> Expression:
    """A factor, or the ones that it is called."""
    match factor:
        case Ref(name, index) if name in draft and all(isinstance(entry, str) for entry in index):
            names = dict(zip(draft[name].left, index, strict=True))
            right = draft[name].right
            if (
                len(set(index)) == len(index)
                and all(isinstance(axis, str) for axis in names)
                and _is_ones(right)
            ):
                return rename(right, names)  # type: ignore[arg-type]
    return factor


def _is_ones(factor: Expression) -> bool:
    """Whether a factor is 1 where positions are a sum of two axes."""
    return (
        isinstance(factor, Call)
        and bool(FUNCTIONS[factor.function].selects)
        and is_window(factor.arguments[0])
    )


def _axes(factors: Iterable[Expression]) -> set[str]:
    return {axis for each in factors for axis in free_axes(each)}


def _summed(factors: Sequence[Expression], summed: Iterable[str], outside: Iterable[str]) -> Expression:
    """The product of factors, summed over axes that nothing outside has."""
    inside = (_axes(factors) & set(summed)) - set(outside)
    return contraction(tuple(factors), tuple(inside), None)


# ---------------------------------------------------------------------------- what is read in windows


@dataclass
class _Reading:
    """A product with one factor that is read in windows.

    Attributes:
        draft, reader: the graph, and the equation of the product.
        operand: the factor that is read in windows.
        others: the other factors.
        summed: the axes that the product sums.
    """

    draft: Draft
    reader: Equation
    operand: Ref
    others: tuple[Expression, ...]
    summed: frozenset[str]

    def ways(self) -> Iterator[tuple[tuple[Equation, ...], Expression]]:
        """Equations to come before, and what stands in the place of the product then."""
        windows = self._windows()
        if windows is None:
            return
        inner = {axis for each in windows.values() for axis in each.axes if axis in self.summed}
        outer = {axis for each in windows.values() for axis in each.axes} - inner
        plain = set(axes_of_index(tuple(entry for entry in self.operand.index if not is_told(entry))))
        core = [each for each in self.others if inner & set(free_axes(each))]
        if not inner:
            core = [each for each in self.others if plain & self.summed & set(free_axes(each))][:1]
        if not core or outer & _axes(core):
            return
        rest = [each for each in self.others if each not in core]
        before = [each for each in rest if plain & set(free_axes(each)) and not outer & set(free_axes(each))]
        behind = [each for each in rest if each not in before]
        still = [each for each in behind if not outer & set(free_axes(each))]
        for first in dict.fromkeys((tuple(before), ())):
            for last in dict.fromkeys((tuple(still), ())):
                held = [*core, *(each for each in before if each not in first)]
                held += [each for each in still if each not in last]
                outside = [each for each in behind if each in last or each not in still]
                yield from self._way(windows, first, held, outside)
        yield from self._by_dimension(windows, before, core, behind)

    def _windows(self) -> dict[Index, Affine] | None:
        """Where the operand is read at an axis that is kept, or its sum with one that is not; nothing if it is read
        otherwise."""
        found: dict[Index, Affine] = {}
        for entry in self.operand.index:
            if is_told(entry):
                window = affine(entry)
                if window is None or not is_window(entry) or len(set(window.axes) - self.summed) != 1:
                    return None
                found[entry] = window
            elif isinstance(entry, int):
                return None
        axes = axes_of_index(self.operand.index)
        repeated = sum(len(axes_of_index((entry,))) for entry in self.operand.index) > len(axes)
        return None if repeated or len(found) > DIMENSIONS else found

    def _way(
        self,
        windows: dict[Index, Affine],
        first: Sequence[Expression],
        held: Sequence[Expression],
        behind: Sequence[Expression],
    ) -> Iterator[tuple[tuple[Equation, ...], Expression]]:
        """Some factors before the windows, some in the kernel, and some behind."""
        made, operand = self._before(first, [*held, *behind])
        found = self._convolved(operand, held, behind)
        if found is not None:
            yield made, _summed((found, *behind), self.summed, ())

    def _convolved(
        self, operand: Ref, held: Sequence[Expression], behind: Sequence[Expression]
    ) -> Call | None:
        """The operand, read in windows, with a kernel that is a product; nothing if one has an axis by itself."""
        outside = (*behind,)
        kernel = _summed(held, self.summed, {*free_axes(operand), *_axes(outside)})
        own = set(free_axes(operand)) | set(free_axes(kernel))
        axes = (own & self.summed) - _axes(outside)
        if not axes <= set(free_axes(operand)) & set(free_axes(kernel)):
            return None
        return Call(CONVOLUTION.name, (operand, kernel), tuple(sorted(axes)), place=self.operand.place)

    def _before(
        self, factors: Sequence[Expression], others: Sequence[Expression]
    ) -> tuple[tuple[Equation, ...], Ref]:
        """The operand times some factors, as a tensor that is read in the windows."""
        if not factors:
            return (), self.operand
        entries = list(self.operand.index)
        taken = {*occurring(self.reader.right), *axes_of_index(self.reader.left), *self.draft.graph.bound}
        for n, entry in enumerate(entries):
            if is_told(entry):
                entries[n] = fresh("i", taken)
                taken.add(str(entries[n]))
        told = dict(zip(entries, self.operand.index, strict=True))
        read = replace(self.operand, index=tuple(entries))
        product = _summed((read, *factors), self.summed, _axes(others))
        name = self.draft.fresh(f"{self.operand.name}_before")
        left = free_axes(product)
        index = tuple(told[axis] if is_told(told.get(axis)) else axis for axis in left)
        return (Equation(name, left, product, self.operand.place),), Ref(name, index, self.operand.place)

    def _by_dimension(
        self,
        windows: dict[Index, Affine],
        before: Sequence[Expression],
        core: Sequence[Expression],
        behind: Sequence[Expression],
    ) -> Iterator[tuple[tuple[Equation, ...], Expression]]:
        """One dimension after the other, if each factor of the kernel has one of them."""
        parts = [
            [each for each in core if set(window.axes) & set(free_axes(each))] for window in windows.values()
        ]
        if len(parts) < 2 or sum(map(len, parts)) != len(core) or not all(parts):
            return
        made, operand = self._before(before, [*core, *behind])
        equations = list(made)
        names: list[str] = []
        for n, (entry, held) in enumerate(zip(windows, parts, strict=True)):
            later = [*itertools.chain(*parts[n + 1 :]), *behind]
            if n + 1 == len(parts):
                found = self._convolved(operand, held, later)
                if found is not None:
                    yield tuple(equations), _summed((found, *later), self.summed, ())
                return
            waiting: dict[str, Index] = {}
            index: list[Index] = []
            taken = {*occurring(self.reader.right), *axes_of_index(self.reader.left), *self.draft.graph.bound}
            for each in operand.index:
                if is_told(each) and each != entry:
                    axis = fresh("i", taken | set(waiting))
                    waiting[axis] = each
                    index.append(axis)
                else:
                    index.append(each)
            call = self._convolved(replace(operand, index=tuple(index)), held, later)
            if call is None:
                return
            name = self.draft.fresh(f"{self.operand.name}_along", names)
            names.append(name)
            left = free_axes(call)
            equations.append(Equation(name, left, call, self.operand.place))
            operand = Ref(name, tuple(waiting.get(axis, axis) for axis in left), self.operand.place)


# ---------------------------------------------------------------------------- what is made of windows


def _made(
    others: tuple[Expression, ...], ones: Sequence[Expression], summed: frozenset[str]
) -> Iterator[tuple[tuple[Equation, ...], Expression]]:
    """The product, whose factors that belong to neither windows nor kernel go with one of them, or come last."""
    windows = [window for each in ones if (window := affine(each.arguments[0])) is not None]  # type: ignore[union-attr]
    outer = {window.axes[0] for window in windows}
    inner = {axis for window in windows for axis in window.axes[1:]}
    made = {axis for each in ones for axis in each.axes}  # type: ignore[union-attr]
    apart = len(outer | inner) == sum(len(window.axes) for window in windows)
    if not apart or not outer | inner <= summed or made & summed or len(windows) > DIMENSIONS:
        return
    given = [each for each in others if outer & set(free_axes(each))]
    core = [each for each in others if inner & set(free_axes(each))]
    rest = [each for each in others if each not in given and each not in core]
    if not inner:
        core = [each for each in rest if set(free_axes(each)) & _axes(given) & summed][:1]
        rest = [each for each in rest if each not in core]
    if not given or not core or any(each in core for each in given) or made & _axes((*given, *core)):
        return
    near = [each for each in rest if not made & set(free_axes(each))]
    last = [each for each in rest if each not in near]
    for one, other, behind in dict.fromkeys(
        (
            ((*given, *near), (*core,), (*last,)),
            ((*given,), (*core, *near), (*last,)),
            ((*given,), (*core,), (*rest,)),
        )
    ):
        found = _folded(one, other, behind, ones, summed)
        if found is not None:
            yield (), found


def _folded(
    given: Sequence[Expression],
    core: Sequence[Expression],
    behind: Sequence[Expression],
    ones: Sequence[Expression],
    summed: frozenset[str],
) -> Expression | None:
    """What the operand of a convolution gets, of a gradient and a kernel; nothing if one has an axis by itself."""
    outside = _axes(behind)
    gradient = _summed(given, summed, {*outside, *_axes((*core, *ones))})
    kernel = _summed(core, summed, {*outside, *_axes((*given, *ones))})
    windows = {axis for each in ones for axis in free_axes(each)} & summed
    axes = ((set(free_axes(gradient)) | set(free_axes(kernel))) & summed) - outside
    shared = set(free_axes(gradient)) & set(free_axes(kernel))
    if not axes - windows <= shared or windows & shared or windows & outside:
        return None
    call = Call(CONVOLUTION.name, (gradient, kernel, *ones), tuple(sorted(axes)))
    return _summed((call, *behind), summed, ())
