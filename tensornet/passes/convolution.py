"""Kernel selection of windows: convolutions, `x[b,c,2*p+u] * K[o,c,u]`, and pooling, `max[u](x[b,2*p+u])`.

A window goes along with products over other axes. So factors of the kernel that share channels with the operand may
be multiplied with it before, those of the result behind, and one dimension after the other where no factor ties
them: of a Tucker kernel that is a 1×1, a smaller one and a 1×1, of a CP kernel one for each dimension.

The backward pass has ones where positions meet, `onehot[i](2*p+u)`: summed over both axes, a product with these is what
the operand of a convolution gets.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..graph.graph import Graph
from ..language.affine import Affine, affine, is_window
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Index,
    Literal,
    Ref,
    axes_of_index,
    contraction,
    free_axes,
    fresh,
    is_told,
    occurring,
    rename,
    without,
)
from ..ops.convolution import CONVOLUTION, DIMENSIONS
from ..ops.structure import PAD, is_inside
from ..ops.table import FUNCTIONS
from .rewriter import Change, Cost, Draft, by_kernels, improved, replaced

__all__ = ["select_convolutions", "select_pooling"]


def select_convolutions(
    graph: Graph, cost: Cost, supported: Container[str], simplify: Callable[[Graph], Graph]
) -> Graph:
    """Computes products of windows by convolutions, in the order that takes least.

    Args:
        graph: the graph.
        cost: what a part of it takes.
        supported: the kernels that there are.
        simplify: the passes that always pay, which bring the factors of a product together.
    """
    if CONVOLUTION.name not in supported:
        return graph
    whole = simplify(graph)
    found = improved(whole, whole.own, _convolutions, cost)
    return graph if found == whole else found


@dataclass(frozen=True)
class _Way:
    """A way to compute a product.

    Attributes:
        made: equations to come before.
        found: what stands in the place of the product then.
        replaced: the equations that nothing reads any more.
    """

    made: tuple[Equation, ...]
    found: Expression
    replaced: tuple[Equation, ...] = ()


def _convolutions(draft: Draft, reader: Equation) -> Iterator[Change]:
    for product in reader.parts:
        if not isinstance(product, Contraction) or not product.summed or not draft.is_number(product):
            continue
        factors, summed = _flat(draft, product)
        if any(
            isinstance(each, Call) and is_inside(each) for each in factors
        ):  # they choose, and do not multiply
            continue
        windowed = [each for each in factors if isinstance(each, Ref) and any(map(is_told, each.index))]
        ones = [each for each in factors if _is_ones(each)]
        if len(windowed) == 1 and not ones:
            others = without(factors, windowed)
            ways = _read(draft, reader, windowed[0], others, summed)
        elif ones and not windowed:
            others = tuple(each for each in factors if not _is_ones(each))
            ways = _made(others, ones, summed)
        else:
            continue
        for way in ways:
            right = replaced(reader.right, product, way.found)
            yield Change((*way.made, replace(reader, right=right)), (*way.replaced, reader))


def _read(
    draft: Draft, reader: Equation, operand: Ref, others: tuple[Expression, ...], summed: frozenset[str]
) -> Iterator[_Way]:
    """The ways to compute a product with what is read in windows; where these are summed whole, factors along one
    side of theirs come after the convolution."""
    yield from _Reading(draft, reader, operand, others, summed).ways()
    windows = [window for entry in operand.index if is_told(entry) and (window := affine(entry)) is not None]
    sides = zip(*(window.axes for window in windows), strict=False)
    for side in sides if all(set(window.axes) <= summed for window in windows) else ():
        after = tuple(each for each in others if set(side) & set(free_axes(each)))
        inner = tuple(each for each in others if each not in after)
        for way in _Reading(draft, reader, operand, inner, summed - _axes(after)).ways() if after else ():
            yield replace(way, found=_summed((way.found, *after), summed, ()))


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


@dataclass(frozen=True)
class _Operand:
    """A tensor that is read in windows, and how many zeros are still to be put around it where it is."""

    ref: Ref
    around: Mapping[Index, tuple[Expression, ...]]


@dataclass
class _Chain:
    """Equations one after another, the last of which is still to be read in windows.

    Attributes:
        draft, reader: the graph, and the equation of the product.
        operand: what the windows are of.
        made: the equations.
    """

    draft: Draft
    reader: Equation
    operand: _Operand
    made: tuple[Equation, ...] = ()

    def _put(self, kind: str, left: Sequence[Any], right: Expression) -> str:
        """Adds an equation; what it defines."""
        name = self.draft.fresh(f"{self.operand.ref.name}_{kind}", [each.name for each in self.made])
        self.made = (*self.made, Equation(name, tuple(left), right, self.operand.ref.place))
        return name

    def _plain(self, kept: Container[Index] = ()) -> tuple[Ref, dict[str, Index]]:
        """The operand read plainly but for some windows, and the windows that axes are read in then."""
        ref = self.operand.ref
        taken = {*occurring(self.reader.right), *axes_of_index(self.reader.left), *occurring(ref)}
        taken |= set(self.draft.graph.bound)
        windows: dict[str, Index] = {}
        index: list[Index] = []
        for entry in ref.index:
            if is_told(entry) and entry not in kept:
                axis = fresh("i", taken | set(windows))
                windows[axis] = entry
                index.append(axis)
            else:
                index.append(entry)
        return replace(ref, index=tuple(index)), windows

    def times(
        self, factors: Sequence[Expression], others: Sequence[Expression], summed: frozenset[str]
    ) -> None:
        """Multiplies the operand with factors, and sums what no others have."""
        if not factors:
            return
        plain, windows = self._plain()
        product = _summed((plain, *factors), summed, _axes(others))
        made = free_axes(product)
        left = [*(axis for axis in made if axis not in windows), *windows]  # as kernels take it
        name = self._put("times", left, product)
        self._goes_on(name, [windows.get(axis, axis) for axis in left])

    def _goes_on(self, name: str, index: Sequence[Index]) -> None:
        self.operand = replace(self.operand, ref=Ref(name, tuple(index), self.operand.ref.place))

    def read(self, windows: Container[Index]) -> tuple[Ref, dict[str, Index]]:
        """The operand, read in some windows, with the zeros for these, and plainly in the others."""
        around = {entry: amounts for entry, amounts in self.operand.around.items() if entry in windows}
        if around:
            plain, found = self._plain()
            axes = {entry: axis for axis, entry in found.items()}
            options = tuple((axes[entry], amounts) for entry, amounts in around.items())
            name = self._put("padded", plain.index, Call(PAD.name, (plain,), (), options))
            self._goes_on(name, self.operand.ref.index)
            rest = {entry: each for entry, each in self.operand.around.items() if entry not in around}
            self.operand = replace(self.operand, around=rest)
        return self._plain(windows)

    def along(self, window: Index, call: Call, waiting: Mapping[str, Index]) -> None:
        """Goes on with what came of one window."""
        left = free_axes(call)
        self._goes_on(self._put("along", left, call), [waiting.get(axis, axis) for axis in left])


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

    def ways(self) -> Iterator[_Way]:
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
        rest = [each for each in without(self.others, core) if not outer & set(free_axes(each))]
        for first in _grown(plain & self.summed, rest):
            behind = without(self.others, (*core, *first))
            for held in _grown(_axes(core) & self.summed, without(rest, first)):
                yield from self._way(windows, first, [*core, *held], without(behind, held))
            yield from self._by_dimension(windows, first, core, behind)

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

    def _chain(self, opened: bool) -> tuple[_Chain, tuple[Equation, ...]]:
        """The beginning of a chain; if it is opened, with the tensor that zeros are put around for this product
        alone, and the equation that does so."""
        if (
            opened
            and self.operand.name in self.draft
            and self.draft.only_reader(self.operand.name) is not None
        ):
            equation = self.draft[self.operand.name]
            names = dict(zip(equation.left, self.operand.index, strict=True))
            match equation.right:
                case Call(PAD.name, (Ref(name, index),), (), options) if index == equation.left and all(
                    axis in names and is_told(names[axis]) and _are_counts(amounts)
                    for axis, amounts in options
                ):
                    around = {names[axis]: amounts for axis, amounts in options}
                    ref = replace(self.operand, name=name)
                    return _Chain(self.draft, self.reader, _Operand(ref, around)), (equation,)
        return _Chain(self.draft, self.reader, _Operand(self.operand, {})), ()

    def _way(
        self,
        windows: Mapping[Index, Affine],
        first: Sequence[Expression],
        held: Sequence[Expression],
        behind: Sequence[Expression],
    ) -> Iterator[_Way]:
        """Some factors before the windows, some in the kernel, and some behind."""
        chain, replaced = self._chain(bool(first))
        chain.times(first, [*held, *behind], self.summed)
        operand, _ = chain.read(windows)
        found = self._convolved(operand, held, behind)
        if found is not None:
            yield _Way(chain.made, _summed((found, *behind), self.summed, ()), replaced)

    def _convolved(
        self, operand: Ref, held: Sequence[Expression], behind: Sequence[Expression]
    ) -> Call | None:
        """The operand, read in windows, with a kernel that is a product; nothing if one has an axis by itself."""
        kernel = _summed(held, self.summed, {*free_axes(operand), *_axes(behind)})
        own = set(free_axes(operand)) | set(free_axes(kernel))
        axes = (own & self.summed) - _axes(behind)
        if not axes <= set(free_axes(operand)) & set(free_axes(kernel)):
            return None
        return Call(CONVOLUTION.name, (operand, kernel), tuple(sorted(axes)), place=self.operand.place)

    def _by_dimension(
        self,
        windows: Mapping[Index, Affine],
        before: Sequence[Expression],
        core: Sequence[Expression],
        behind: Sequence[Expression],
    ) -> Iterator[_Way]:
        """One dimension after the other, if each factor of the kernel has one of them."""
        parts = [
            [each for each in core if set(window.axes) & set(free_axes(each))] for window in windows.values()
        ]
        if len(parts) < 2 or sum(map(len, parts)) != len(core) or not all(parts):
            return
        chain, replaced = self._chain(True)
        chain.times(before, [*core, *behind], self.summed)
        *firsts, last = zip(windows, parts, strict=True)
        for n, (window, held) in enumerate(firsts, 1):
            operand, waiting = chain.read((window,))
            later = [*itertools.chain(*parts[n:]), *behind]
            call = self._convolved(operand, held, later)
            if call is None:
                return
            chain.along(window, call, waiting)
        operand, _ = chain.read((last[0],))
        found = self._convolved(operand, last[1], behind)
        if found is not None:
            yield _Way(chain.made, _summed((found, *behind), self.summed, ()), replaced)


def _grown(axes: set[str], factors: Sequence[Expression]) -> Iterator[tuple[Expression, ...]]:
    """None of some factors, those that have one of some axes, and those that then have one in common with these, …"""
    found: tuple[Expression, ...] = ()
    while True:
        yield found
        tied = axes | _axes(found)
        more = tuple(each for each in factors if each not in found and tied & set(free_axes(each)))
        if not more:
            return
        found += more


def _are_counts(amounts: Sequence[Expression]) -> bool:
    """Whether these are whole numbers of zeros."""
    return all(
        isinstance(each, Literal) and isinstance(each.value, int) and each.value >= 0 for each in amounts
    )


# ---------------------------------------------------------------------------- what is made of windows


def _made(
    others: tuple[Expression, ...], ones: Sequence[Expression], summed: frozenset[str]
) -> Iterator[_Way]:
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
        rest = list(without(rest, core))
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
            yield _Way((), found)


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


# ---------------------------------------------------------------------------- pooling


@by_kernels
def select_pooling(draft: Draft, reader: Equation, supported: Container[str]) -> Iterator[Change]:
    """Reduces windows without laying them out, where that pays."""
    for part in reader.parts:
        match part:
            case Call(function, (Ref() as operand,), axes) if FUNCTIONS[function].pools in supported:
                if _is_pool(operand, axes) and draft.is_number(part):
                    made: Expression = replace(part, function=FUNCTIONS[function].pools)
                    yield Change((replace(reader, right=replaced(reader.right, part, made)),), (reader,))


def _is_pool(operand: Ref, axes: tuple[str, ...]) -> bool:
    """Whether a tensor is read in windows, of all of whose elements something is made."""
    windows = [affine(entry) for entry in operand.index if is_told(entry) and is_window(entry)]
    plain = [entry for entry in operand.index if isinstance(entry, str | tuple)]
    named = [axis for window in windows if window is not None for axis in window.axes]
    inner = [window.axes[1] for window in windows if window is not None and len(window.axes) == 2]
    whole = len(plain) + len(windows) == len(operand.index) and len(named) == 2 * len(inner) == 2 * len(
        windows
    )
    apart = len({*named, *axes_of_index(tuple(plain))}) == len(named) + sum(
        len(axes_of_index((entry,))) for entry in plain
    )
    return whole and apart and 0 < len(inner) <= DIMENSIONS and sorted(inner) == sorted(axes)
