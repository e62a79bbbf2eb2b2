"""Kernel selection of windows: convolutions, `x[b,c,2*p+u] * K[o,c,u]`, and pooling, `max[u](x[b,2*p+u])`.

A window commutes with products over other axes. So kernel factors that share channels with the operand may be
multiplied before the convolution, and factors with channels of the result after it. Dimensions that no factor ties
together may be convolved one after another. A Tucker kernel becomes a 1×1 convolution, a smaller convolution and a
1×1 convolution. A CP kernel becomes one convolution for each dimension.

The backward pass writes its result where positions meet, at `2*p+u`. Summed over both axes, such a product is the
cotangent of a convolution's operand.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ..ir.node import (
    Affine,
    Axis,
    Kernel,
    Node,
    Operand,
    Size,
    along,
    axes_in,
    axes_of,
    called,
    computed,
    node,
    part,
    partial_reads,
    substitute,
    summed_axes,
)
from ..ir.positions import Windowed, apart, chooses, ones_of, position_of, seen_through, windowed, with_ones
from ..ir.rewriting import Change, PassContext, Program, improved
from ..ops.convolution import CONVOLUTION, DIMENSIONS
from ..ops.table import Element
from ..sizes import put_in
from .algebraic_simplification import fused
from .pushdown import push_positions_down

Factors: TypeAlias = "Sequence[Operand]"

Way: TypeAlias = "tuple[Kernel, Factors]"
"""A convolution, and the factors that its result is multiplied by."""


def select_convolutions(program: Program, context: PassContext) -> Program:
    """Computes products of windows by convolutions, in the order that takes least time.

    The passes that always pay run first: they bring the factors of a product together.
    """
    if CONVOLUTION.name not in context.supported:
        return program
    whole = push_positions_down(program).rewritten(fused)
    found = improved(whole, whole.nodes, _convolutions, context.cost)
    return program if found.function == whole.function else found


def _convolutions(program: Program, product: Node) -> Iterator[Change]:
    if product.op != "contract" or product.element is not Element.NUMBER:
        return
    whole = with_ones(product)
    if any(map(chooses, whole.operands)):  # these ones select instead of multiplying
        return
    whole = _ascending(program, whole)
    windowed = [
        each for each in whole.operands if axes_of((*partial_reads(each, whole.sizes, program.same),))
    ]
    ones = [each for each in whole.operands if _window_of(each) is not None]
    if ones and not windowed:
        made = (computed(whole, *way, whole.sizes) for way in _made(whole, ones))
    elif len(windowed) == 1 and not ones:
        reading, others = _reading(whole, windowed[0], program.same), _without(whole.operands, windowed)
        made = (computed(whole, *way, reading.sizes) for way in _read(reading, others))
    else:
        return
    yield from (Change(product, each) for each in made)


def _ascending(program: Program, product: Node) -> Node:
    """The product with a window that ascends along both axes, and other factors read from end to end.

    A filter may be turned round, `x[t - k + 2] * h[k]` or `x[t + k] * h[2 - k]`. What is summed is counted from its
    end, and factors that are read at some positions, or from the end, are copied.
    """
    partly = {each: [*partial_reads(each, product.sizes, program.same)] for each in product.operands}
    sums = [each for each, found in partly.items() if any(len(_terms(entry)) == 2 for entry in found)]
    if len(sums) != 1 or len(product.operands) < 2:
        return product
    terms = itertools.chain(*map(_terms, partly[sums[0]]))
    down = {axis for axis, step in terms if isinstance(step, int) and step < 0} & summed_axes(product)
    lengths = {axis: put_in(product.sizes[axis], program.numbers) for axis in down}
    table = {axis: Affine(((axis, -1),), size - 1) for axis, size in lengths.items() if isinstance(size, int)}
    operands = []
    for each in product.operands:
        read = Operand(each.node, substitute(each.reads, table))
        if each is not sums[0] and (partly[each] or read != each):
            read = apart(read, dict(enumerate(product.sizes)))
        operands.append(read)
    return node(product.op, product.sizes, operands, product.result, product.shape, product.over)


def _terms(entry: object) -> tuple[tuple[Axis, Size], ...]:
    return entry.terms if isinstance(entry, Affine) else ()


def _window_of(factor: Operand) -> Affine | None:
    """The window at which a one-hot factor has its ones; None for any other factor."""
    ones = ones_of(factor)
    told = position_of(ones.told) if ones is not None else None
    return told if told is not None and _is_window(told) else None


def _without(factors: Factors, others: Factors) -> Factors:
    """The factors that are not among some others."""
    return [each for each in factors if not any(each is other for other in others)]


def _having(factors: Factors, axes: Collection[Axis]) -> Factors:
    """The factors that have at least one of some axes."""
    return [each for each in factors if not {*axes}.isdisjoint(each.axes)]


# ---------------------------------------------------------------------------- windows that are read


def _reading(product: Node, operand: Operand, same: Callable[[Size, Size], bool]) -> _Reading:
    """A product with a factor that is read in windows."""
    windows = _windows(product, operand, same)
    tensor = windowed(operand, windows)
    return _Reading(tensor, windows, summed_axes(product), tensor.sized(dict(enumerate(product.sizes))))


def _read(reading: _Reading, others: Factors) -> Iterator[Way]:
    """The ways to compute a product with a factor that is read in windows.

    If the product sums over all axes of the windows, the factors along one axis of each window may come after the
    convolution.
    """
    if not 0 < len(reading.windows) <= DIMENSIONS:
        return
    yield from reading.ways(others)
    if reading.summed.issuperset(axis for each in reading.windows for axis, _ in each.terms):
        for side in zip(*([axis for axis, _ in each.terms] for each in reading.windows), strict=False):
            after = _having(others, side)
            inner = replace(reading, summed=reading.summed.difference(axes_in(after)))
            ways = inner.ways(_without(others, after)) if after else ()
            yield from ((kernel, [*behind, *after]) for kernel, behind in ways)


@dataclass(frozen=True)
class _Reading:
    """A product with one factor that is read in windows.

    Attributes:
        tensor: the factor that is read in windows.
        windows: its windows.
        summed: the axes that the product sums over.
        sizes: of all axes, and of those that replace windows.
    """

    tensor: Windowed
    windows: list[Affine]
    summed: set[Axis]
    sizes: Mapping[Axis, Size]

    def ways(self, others: Factors) -> Iterator[Way]:
        """Convolutions with products of other factors, each with the factors that come after it."""
        moving = {axis for each in self.windows for axis, _ in each.terms}
        if any(len({axis for axis, _ in each.terms} - self.summed) != 1 for each in self.windows):
            return
        inner, outer = moving & self.summed, moving - self.summed
        channels = self.summed.intersection(axes_of(self.tensor.reads)) - inner
        core = _having(others, inner) if inner else _having(others, channels)[:1]
        if not core or not outer.isdisjoint(axes_in(core)):
            return
        rest = _without(others, [*core, *_having(others, outer)])
        for first in _grown(channels, rest):
            behind = _without(others, [*core, *first])
            for held in _grown(self.summed.intersection(axes_in(core)), _without(rest, first)):
                yield from self._at_once(first, [*core, *held], _without(behind, held))
            yield from self._by_dimension(first, core, behind)

    def _at_once(self, first: Factors, held: Factors, behind: Factors) -> Iterator[Way]:
        """One convolution: some factors come before the windows, some are in the kernel, and some come after."""
        tensor = self._times(first, [*held, *behind])
        kernel = self._convolved(tensor, self.windows, held, behind)
        if kernel is not None:
            yield kernel, behind

    def _by_dimension(self, first: Factors, core: Factors, behind: Factors) -> Iterator[Way]:
        """One convolution after another, one for each dimension, if each factor of the kernel has only one of them."""
        parts = [_having(core, [axis for axis, _ in each.terms]) for each in self.windows]
        if len(parts) < 2 or sum(map(len, parts)) != len(core) or not all(parts):
            return
        tensor = self._times(first, [*core, *behind])
        for n, (window, held) in enumerate(zip(self.windows, parts, strict=True), 1):
            later = [*itertools.chain(*parts[n:]), *behind]
            kernel = self._convolved(tensor, [window], held, later)
            if kernel is None:
                return
            if n == len(parts):
                yield kernel, behind
            else:
                tensor = tensor.followed(called(kernel, self.sizes))

    def _times(self, factors: Factors, others: Factors) -> Windowed:
        """The tensor multiplied by factors and summed over the axes that no other factor has."""
        if not factors:
            return self.tensor
        plain = self.tensor.plainly(self.windows)
        gone = self.summed.difference(axes_in(others))
        kept = [axis for axis in axes_in([plain, *factors]) if axis not in gone]
        left = tuple(map(along, sorted(kept, key=lambda axis: isinstance(axis, tuple))))  # as kernels expect
        made = node("contract", self.sizes, [plain, *factors], left)
        return self.tensor.followed(Operand(made, left))

    def _convolved(
        self, tensor: Windowed, windows: Sequence[Affine], held: Factors, behind: Factors
    ) -> Kernel | None:
        """The convolution of a tensor with a product of factors; None if only one of them has some summed axis.

        Args:
            tensor: the tensor.
            windows: the windows that it is read in here.
            held: the factors.
            behind: the factors that come after it.
        """
        operand, ones = tensor.plainly(self.windows), tensor.marked(windows, self.sizes)
        summed = self.summed.difference(axes_in(behind))
        own = {*axes_in([operand])}.union(axis for each in windows for axis, _ in each.terms)
        kernel = part(held, summed - own, self.sizes)
        other = {*kernel.axes}
        axes, at = (own | other) & summed, tuple(("at", each) for each in windows)
        return _call(operand, kernel, axes, ones, at) if axes <= own & other else None


def _call(one: Operand, other: Operand, axes: set[Axis], ones: Factors, at: tuple[Axis, ...] = ()) -> Kernel:
    """The convolution of two tensors over some axes, and over those of windows."""
    return CONVOLUTION.name, (one, other, *ones), (*sorted(axes), *at), ()


def _grown(axes: Collection[Axis], factors: Factors) -> Iterator[Factors]:
    """No factors, then those that have one of some axes, then also those that share an axis with these, …"""
    found: list[Operand] = []
    while True:
        yield [*found]
        more = _having(_without(factors, found), {*axes, *axes_in(found)})
        if not more:
            return
        found += more


# ---------------------------------------------------------------------------- windows that are written


def _made(product: Node, ones: Factors) -> Iterator[Way]:
    """The ways to compute a product whose result is written in windows.

    Factors that belong to neither gradient nor kernel join the gradient, or multiply the result.
    """
    windows = [window for each in ones if (window := _window_of(each)) is not None]
    summed, others = summed_axes(product), _without(product.operands, ones)
    outer = {each.terms[0][0] for each in windows}
    inner = {axis for each in windows for axis, _ in each.terms[1:]}
    made = {*axes_in(ones)} - outer - inner
    apart = len(outer | inner) == sum(len(each.terms) for each in windows)
    if not apart or not outer | inner <= summed or made & summed or len(windows) > DIMENSIONS:
        return
    given, core = _having(others, outer), _having(others, inner)
    if not inner:
        core = _having(_without(others, given), summed.intersection(axes_in(given)))[:1]
    rest = _without(others, [*given, *core])
    if not outer.issubset(axes_in(given)):  # along another axis nothing is convolved
        return
    if not core or _having(given, inner) or _having([*given, *core], made):
        return
    last = _having(rest, made)
    near = _without(rest, last)
    kernel = _folded(product, ones, [*given, *near], core, last)
    if kernel is not None:
        yield kernel, last


def _folded(product: Node, ones: Factors, given: Factors, core: Factors, behind: Factors) -> Kernel | None:
    """The cotangent of a convolution's operand, from a gradient and a kernel; None if only one has some summed axis."""
    summed = summed_axes(product).difference(axes_in(behind))
    moving = summed_axes(product).intersection(axes_in(ones))
    alone = summed - moving
    gradient = part(given, alone.difference(axes_in(core)), product.sizes)
    kernel = part(core, alone.difference(axes_in(given)), product.sizes)
    one, other = {*gradient.axes}, {*kernel.axes}
    apart = moving.isdisjoint(one & other) and moving <= summed
    axes = (one | other) & summed
    return _call(gradient, kernel, axes, ones) if apart and axes - moving <= one & other else None


# ---------------------------------------------------------------------------- pooling


def pools(context: PassContext, program: Program, each: Node) -> Iterator[Change]:
    """A reduction over all elements of windows as a pooling kernel, which does not materialise them."""
    pooling = each.function.pools
    if pooling not in context.supported or each.element is not Element.NUMBER:
        return
    (operand,) = each.operands
    if operand.node.op == "copy" and "fill" not in operand.node.attributes:
        (operand,) = seen_through(operand) or (operand,)
    windows = _windows(each, operand, program.same)
    inner = [axis for window in windows for axis, _ in window.terms[1:]]
    whole = len(inner) == len(windows) and sorted(inner) == sorted(each.over)
    if whole and 0 < len(windows) <= DIMENSIONS:
        tensor = Windowed(*operand, {})
        sizes = tensor.sized(dict(enumerate(each.sizes)))
        operands = [tensor.plainly(windows), *tensor.marked(windows, sizes)]
        over = (*each.over, *(("at", window) for window in windows))
        yield Change(each, node(pooling, sizes, operands, each.result, each.shape, over, each.options))


def _windows(each: Node, operand: Operand, same: Callable[[Size, Size], bool]) -> list[Affine]:
    """The windows that an operand is read in: along an axis or a sum of two, with positive integer steps.

    Empty if it is read at other positions as well, or twice along one axis.
    """
    axes, found = operand.axes, partial_reads(operand, each.sizes, same)
    windows = [entry for entry in found if isinstance(entry, Affine) and _is_window(entry)]
    return windows if len(windows) == len(found) and len({*axes}) == len(axes) else []


def _is_window(entry: Affine) -> bool:
    """Whether positions run along an axis or a sum of two, with positive integer steps and an offset of at least 0."""
    whole = all(isinstance(each, int) for each in (entry.offset, *entry.steps))
    return whole and 0 < len(entry.terms) <= 2 and min(entry.steps) > 0 and entry.offset >= 0
