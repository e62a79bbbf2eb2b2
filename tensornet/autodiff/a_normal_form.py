"""A-normal form and window pushdown: products of more than two tensors become products of two.

The common parts of the derivatives of several factors are then tensors, and are computed once. Random draws become
masks of their own, the same in both passes.

Factors outside a window are multiplied before it opens. The first pair of `x[b,c,p+u,q+v] * U[c,r] * G[s,r,u,v]` is
`z[b,r,h,w] = x[b,c,h,w] * U[c,r]`, read as `z[b,r,p+u,q+v]`. So no intermediate is as large as all windows.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias

from ..ir.equations import MADE
from ..ir.node import (
    Affine,
    Axis,
    Node,
    Operand,
    Size,
    along,
    axes_in,
    axes_of,
    met_axes,
    node,
    number,
    order,
    over_others,
    partial_reads,
)
from ..ir.positions import Windowed, windowed
from ..ir.rewriting import Program
from ..ops.table import CONVERSIONS, Element
from ..sizes import evaluate, product
from .activity import is_active

Pairs: TypeAlias = (
    "Callable[[Sequence[tuple[str, ...]], frozenset[str], Mapping[str, Any]], Iterable[tuple[int, int]]]"
)
"""Orders a product: the pairs of factors to multiply, given their axes, the axes that are kept, and sizes. Each product
gets the next number."""


def take_apart(program: Program, active: set[Node], pairs: Pairs) -> Program:
    """A program in A-normal form wherever gradients go through it.

    Args:
        program: the program.
        active: the nodes to differentiate by; all nodes that depend on them are added.
        pairs: orders products of more than two factors.
    """
    turned, new, axes = _turned(program), dict[Node, Node](), dict[Node, tuple[str, ...]]()
    products = _Products(program, active, pairs)
    for old in program.nodes:
        each = over_others(old, new, turned)
        if old in turned:
            each = _in_order(each, turned[old])
        if is_active(each, active):
            if each.function.random:
                each = _masked(each)
            elif each.op == "contract":
                each = products.of_two(each, program.names.axes.get(old, ()), axes)
            active.add(each)
        new[old] = each
        products.readers[each] += program.readers[old]
    return program.over(new, axes)


def _turned(program: Program) -> dict[Node, tuple[int, ...]]:
    """For nodes without a name, the dimensions in the order of their reader: they become tensors as well."""
    found = dict[Node, tuple[int, ...]]()
    for each in reversed(program.nodes):
        dims = found.get(each, range(len(each.result)))
        places = {axis: n for n, axis in enumerate(axes_of(tuple(each.result[d] for d in dims)))}
        for child, reads in each.operands:
            lone = program.readers[child] == 1 and child not in program.names.tensors
            axes = [entry.axis for entry in reads]
            if not lone or child.op in MADE or child.is_scalar or "fill" in child.attributes or None in axes:
                continue
            order = tuple(sorted(range(len(axes)), key=lambda d: places.get(axes[d], len(places))))
            if order != (*range(len(axes)),):
                found[child] = order
    return found


def _in_order(each: Node, dims: Sequence[int]) -> Node:
    """A node with its dimensions in another order."""
    result, shape = tuple(each.result[d] for d in dims), [each.shape[d] for d in dims]
    return node(each.op, each.sizes, each.operands, result, shape, each.over, each.options)


def _masked(each: Node) -> Node:
    """A random node as a choice by a mask of truth values; the mask is drawn from ones."""
    operand, *rest = each.operands
    axes = tuple(map(along, dict.fromkeys(operand.axes)))
    one = node(CONVERSIONS[Element.NUMBER], {}, [Operand(number(1))])
    ones = Operand(node("copy", each.sizes, [Operand(one)], axes), axes)
    drawn = Operand(node(each.op, each.sizes, [ones, *rest], axes, None, (), each.options), axes)
    mask = node(CONVERSIONS[Element.TRUTH], each.sizes, [drawn, Operand(number(0))], axes)
    operands, kept = [Operand(mask, axes), operand, *rest], each.function.drawn
    return node(kept, each.sizes, operands, each.result, each.shape, (), each.options)


# ---------------------------------------------------------------------------- products

Windows: TypeAlias = dict[Affine, Size]
"""Windows that a tensor need not be read in yet, with its length there."""


class _Products:
    """Splits the products of a program into products of two factors.

    Attributes:
        active: the nodes that gradients go through; new products are added.
        pairs: orders products of more than two factors.
        readers: how often each node of the new program is read.
        same: whether two sizes are equal.
        bound: the sizes that have a value.
    """

    def __init__(self, program: Program, active: set[Node], pairs: Pairs) -> None:
        self.active, self.pairs, self.same = active, pairs, program.same
        self.readers, self.bound = Counter[Node](), dict(program.names.sizes)

    def of_two(self, each: Node, called: Sequence[str], axes: dict[Node, tuple[str, ...]]) -> Node:
        """A product of two tensors, which are products of others: an axis is summed as soon as nothing else has it.

        Args:
            each: the product.
            called: the names of its axes, if it has some.
            axes: the names of the axes of nodes; those of new products are added.
        """
        sizes: dict[Axis, Size] = dict(enumerate(each.sizes))
        numbers = [factor for factor in each.operands if factor.node.is_scalar]
        factors = [factor for factor in each.operands if not factor.node.is_scalar]
        kept = {*axes_of(each.result), *each.over}
        if len(factors) < 3:
            return each
        factors = self._before_windows(factors, kept, sizes)
        waiting, moving = dict(enumerate(factors)), self._moving(factors, sizes)
        for n, (one, other) in enumerate(self._ordered(factors, kept, sizes), len(factors)):
            if len(waiting) == 2:
                break
            pair = (waiting.pop(one), waiting.pop(other))
            waiting[n] = made = self._product(pair, {*kept, *axes_in(waiting.values())}, sizes, moving)
            met = met_axes(pair, made.reads, ())
            if all(isinstance(axis, int) and axis < len(called) for axis in met):
                axes.setdefault(made.node, tuple(called[axis] for axis in met))
        return node("contract", sizes, [*numbers, *waiting.values()], each.result, each.shape, each.over)

    def _ordered(
        self, factors: Sequence[Operand], kept: AbstractSet[Axis], sizes: Mapping[Axis, Size]
    ) -> Iterable[tuple[int, int]]:
        """The pairs of factors to multiply, in order."""
        names: dict[Axis, str] = {axis: f"{n:05}" for n, axis in enumerate(sizes)}
        read = [tuple(names[axis] for axis in axes_in([factor])) for factor in factors]
        lengths = {names[axis]: evaluate(size, self.bound) for axis, size in sizes.items()}
        return self.pairs(read, frozenset(names[axis] for axis in kept), lengths)

    def _product(
        self,
        factors: Sequence[Operand],
        outside: AbstractSet[Axis],
        sizes: Mapping[Axis, Size],
        moving: AbstractSet[Axis],
    ) -> Operand:
        """The product of some factors, summed over the axes that nothing outside has.

        Axes along which windows move come last, as convolutions expect.
        """
        places = {axis: n for n, axis in enumerate(sizes)}
        axes = [axis for axis in axes_in(factors) if axis in outside]
        kept = tuple(map(along, sorted(axes, key=lambda axis: (axis in moving, places[axis]))))
        made = Operand(node("contract", sizes, factors, kept), kept)
        new = order([made.node], self.readers)
        self.active.update(each for each in new if is_active(each, self.active))
        return made

    # ---- before windows

    def _before_windows(
        self, factors: list[Operand], kept: AbstractSet[Axis], sizes: Mapping[Axis, Size]
    ) -> list[Operand]:
        """The factors, with those outside of windows multiplied before the windows open, where that is smaller."""
        while len(factors) > 2:
            found = next(self._early(factors, kept, sizes), None)
            if found is None:
                break
            at, partner, windows, tensor = found
            rest = [each for n, each in enumerate(factors) if n not in (at, partner)]
            plain, known = tensor.plainly(windows), tensor.sized(sizes)
            own = known.keys() - sizes.keys()
            moving = own | self._moving([plain], known)
            outside = {*kept, *own, *axes_in(rest)}
            made = self._product((plain, factors[partner]), outside, known, moving)
            factors = [tensor.followed(made).padded(windows).plainly(()), *rest]
            new = order([factors[0].node], self.readers)
            self.active.update(each for each in new if is_active(each, self.active))
        return factors

    def _windows(self, operand: Operand, sizes: Mapping[Axis, Size]) -> Windows:
        """The windows that an operand is read in."""
        found = partial_reads(operand, sizes, self.same).items()
        return {entry: length for entry, length in found if isinstance(entry, Affine) and entry.terms}

    def _moving(self, factors: Iterable[Operand], sizes: Mapping[Axis, Size]) -> set[Axis]:
        """The axes along which windows move in factors."""
        return {axis for each in factors for entry in self._windows(each, sizes) for axis, _ in entry.terms}

    def _early(
        self, factors: Sequence[Operand], kept: AbstractSet[Axis], sizes: Mapping[Axis, Size]
    ) -> Iterator[tuple[int, int, Windows, Windowed]]:
        """Pairs of factors to multiply before all windows open, where that gives a smaller tensor.

        Yields the places of both, the windows that the first need not be read in, and the first. A window stays if
        another entry has its axes too, as in `U[k % 2,n+k]`: both move together.
        """
        for at, partner in itertools.permutations(range(len(factors)), 2):
            operand, other = factors[at], {*factors[partner].axes}
            windows: Windows = {}
            for entry, length in self._windows(operand, sizes).items():
                beside = axes_of(tuple(each for each in operand.reads if each is not entry))
                if {*entry.axes}.isdisjoint((*other, *beside)):
                    windows[entry] = length
            tensor = Windowed(*operand, {})
            if self.readers[operand.node] == 1:
                tensor = windowed(operand, windows)
            outside = {*kept, *axes_in(each for n, each in enumerate(factors) if n not in (at, partner))}
            if windows and self._is_smaller(tensor, windows, other, outside, sizes):
                yield at, partner, windows, tensor

    def _is_smaller(
        self,
        tensor: Windowed,
        windows: Windows,
        other: set[Axis],
        outside: AbstractSet[Axis],
        sizes: Mapping[Axis, Size],
    ) -> bool:
        """Whether remaining windows are summed over, and the product is smaller than the tensor and all windows."""
        plain = tensor.plainly(windows)
        own, remaining = {*plain.axes} & sizes.keys(), self._windows(plain, tensor.sized(sizes))
        left = [{axis for axis, _ in entry.terms} for entry in remaining]
        if own.isdisjoint(other) or any(len(axes & outside) > 1 for axes in left):
            return False

        def count(axes: Iterable[Axis]) -> Any:
            return evaluate(product(sizes[axis] for axis in axes), self.bound)

        gone, new = count((own | other).difference(outside, *left)), count(other - own)
        steps = [evaluate(entry.terms[0][1], self.bound) for entry in windows]
        apart = product(abs(step) for step in steps if isinstance(step, int))
        spread = count(axis for entry in windows for axis, _ in entry.terms[1:])
        return all(isinstance(each, int) for each in (gone, new, spread)) and bool(
            gone > new and spread > apart
        )
