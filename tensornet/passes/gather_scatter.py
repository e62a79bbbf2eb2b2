"""One-hot elimination and grouped GEMM: products with one-hot tensors, and with matrices that positions select.

If the axis of the ones is summed, the other factors are read at the positions: `onehot[v](t[b])*E[v,c]` is
`E[p[b],c]*(t[b] == p[b])`. Here `p` is the position, clamped to the axis. A position outside of the axis has no 1, so
its result is 0.

If the axes of the positions are summed, the other factors are added up there: `onehot[v](t[s])*x[s,c]` with `s` summed
is `scatter_add[s](t[s], index(v), x[s,c])`, which drops positions outside of the axis. Products of the factors need not
be materialised: `onehot[v](t[s])*x[s,c]*z[s,d]` is `grouped_outer[s](t[s], index(v), x[s,c], z[s,d])` as well.

Lines that add to a tensor require the positions to be inside of the axis. Then the ones choose: what they do not choose
is not multiplied by 0, which would turn values that are not finite into NaN. So one of these forms, or else a `where`,
replaces the product at any cost, and it reads or adds up only whole products.

A product that is written at positions is treated as a product with ones in it.

`x[n,c]*W[p[n],f,c]` with `c` summed gathers a matrix for each of the rows. Two other forms compute the same:

- `all[n,v,f] = x[n,c]*W[v,f,c]` multiplies each row by all matrices, and is read at the position: `all[n,p[n],f]`;
- `grouped_matmul[c](x[n,c], W[p[n],f,c])` multiplies the rows of each matrix together.

The first of them serves positions by distance too: `q[i,c]*R[i-j+n-1,c]` is `all[i,m] = q[i,c]*R[m,c]`, read at
`all[i,i-j+n-1]`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass

from ..frontend.elaborate_ir import NodeRule
from ..graph.shape_inference import size_expression
from ..ir.node import (
    Affine,
    Axis,
    Gather,
    Node,
    Operand,
    Size,
    Sizes,
    along,
    axes_in,
    axes_of,
    computed,
    index,
    multiplied,
    part,
    partial_reads,
    summed_axes,
)
from ..ir.positions import Ones, applied, chooses, counted, ones_of, read_at, with_ones
from ..ir.rewriting import Change, PassContext, Program
from ..language.parser import parse_rule
from ..ops.gather_scatter import GROUPED_MATMUL, GROUPED_OUTER
from ..ops.pointwise import EQUAL, WHERE
from ..ops.record import Element

MOST = 4
"""With at most this many factors, all ways to split them in two are tried."""


def without_ones(context: PassContext, program: Program, product: Node) -> Iterator[Change]:
    """Ways to read tensors at given positions, or to add them up there, instead of multiplying by ones."""
    if product.op != "contract":
        return
    whole = with_ones(product)
    for at, factor in enumerate(whole.operands):
        ones = ones_of(factor)
        if ones is None or not (ones.is_inside or ones.told.node.element.is_position):
            continue
        beside = [each for n, each in enumerate(whole.operands) if n != at]
        ways = _Ways(whole, ones, beside, context.supported, program.same)
        chosen = ones.is_inside and not all(each.node.is_scalar or chooses(each) for each in beside)
        for made in ways.chosen() if chosen else ways.scattered() if ones.is_inside else ways.all():
            yield Change(product, made, is_due=chosen)


# ---------------------------------------------------------------------------- the forms without ones


@dataclass(frozen=True)
class _Ways:
    """The forms of a product without some ones.

    Attributes:
        product: the product.
        ones: the ones to eliminate.
        others: the other factors.
        supported: the kernels that the backend has.
        same: whether two sizes are equal.
    """

    product: Node
    ones: Ones
    others: list[Operand]
    supported: Container[str]
    same: Callable[[Size, Size], bool]

    @functools.cached_property
    def summed(self) -> set[Axis]:
        """The axes that the product sums over."""
        return summed_axes(self.product)

    @functools.cached_property
    def tells(self) -> set[Axis]:
        """The axes of the tensor that holds the positions."""
        return {*self.ones.told.axes}

    def all(self) -> Iterator[Node]:
        """The equivalent forms, where ones multiply."""
        if self.ones.axis in self.summed:
            yield from self.read()
        else:
            yield from self.scattered()
            yield from self.outer()

    def chosen(self) -> Iterator[Node]:
        """The forms in which ones choose: an element that they do not choose counts as 0, even if it is not finite."""
        is_read = self.ones.axis in self.summed & {*axes_in(self.others)}
        found = [*(self.read() if is_read else ()), *self.scattered(), *self.outer()]
        yield from found
        if not found:
            value = _chosen([*self.product.operands], self.summed, self.product.sizes)
            yield multiplied(self.product, [value], self.product.sizes)

    # ---- gathers

    def read(self) -> Iterator[Node]:
        """Gathers each factor that has the axis; or else the product of these and all factors tied to them."""
        axis, told = self.ones.axis, self.ones.told
        if self.same(self.product.sizes[axis], 0) or told.node.is_scalar:
            return
        position, there = told, list[Operand]()
        if not self.ones.is_inside:
            rule, function = NodeRule(self.product), self.ones.function
            given = {"a": rule.ref("$a", told), "n": size_expression(self.product.sizes[axis])}
            position = rule.operand(parse_rule(function.selects, given))
            there = [rule.operand(parse_rule(function.at, {**given, "p": rule.ref("$p", position)}))]
        holders = [each for each in self.others if axis in each.axes]
        groups = [[[each] for each in holders], [self._tied(holders)] if len(holders) > 0 else []]
        for group in groups if groups[0] != groups[1] else groups[:1]:
            gone = [*itertools.chain(*group)]
            rest = [each for each in self.others if each not in gone]
            read = [self._at(factors, Gather(*position)) for factors in group]
            yield multiplied(self.product, [*rest, *read, *there], self.product.sizes)

    def _tied(self, holders: list[Operand]) -> list[Operand]:
        """The factors that have the axis, and those without axes of the positions that summed axes tie to them."""
        found = holders
        while True:
            tied = self.summed.intersection(axes_in(found))
            more = [
                each
                for each in self.others
                if each in found or (tied & {*axes_in([each])} and not self.tells & {*axes_in([each])})
            ]
            if len(more) == len(found):
                return found
            found = more

    def _at(self, factors: Sequence[Operand], position: Gather) -> Operand:
        """The product of some factors, gathered at the positions along the axis."""
        axis = self.ones.axis
        outside = {axis, *self.tells, *axes_in(each for each in self.others if each not in factors)}
        return read_at(
            part(factors, self.summed - outside, self.product.sizes), {axis: position}, self.product.sizes
        )

    # ---- scatters

    def _kernel(self, operands: Sequence[Operand], over: set[Axis], name: str, beside: list[Operand]) -> Node:
        """The product of the factors `beside` with a kernel that sums other operands at the positions."""
        axis = self.ones.axis
        places = Operand(index(self.product.sizes[axis]), (along(axis),))
        call = name, (self.ones.told, places, *operands), tuple(sorted(over)), self.ones.options
        return computed(self.product, call, beside, self.product.sizes)

    def _needed(self, over: set[Axis]) -> list[Operand] | None:
        """The factors that have one of some axes; None if one of them also has the axis of the ones."""
        needed = [each for each in self.others if over.intersection(each.axes)]
        return None if self.ones.axis in axes_in(needed) else needed

    def scattered(self) -> Iterator[Node]:
        """Adds up the product of the factors that the sum over the positions needs, or of all without the axis."""
        over, name = self.summed & self.tells, self.ones.function.scatters
        needed = self._needed(over)
        if not over or needed is None or name not in self.supported:
            return
        wider = [each for each in self.others if self.ones.axis not in each.axes]
        for rows in [wider] if self.ones.is_inside or needed == wider else [needed, wider]:
            beside = [each for each in self.others if each not in rows]
            gone = self.summed - over - {self.ones.axis, *axes_in(beside)}
            added = [_chosen(rows, gone, self.product.sizes)] if rows else []
            yield self._kernel(added, over, name, beside)

    def outer(self) -> Iterator[Node]:
        """Adds up products of two parts of the factors that have axes of the positions; all these must be summed.

        Ones that choose do not qualify: they would be multiplied.
        """
        needed = self._needed(self.tells)
        if GROUPED_OUTER.name not in self.supported or not self.tells <= self.summed or needed is None:
            return
        if any(map(chooses, needed)):
            return
        beside = [each for each in self.others if each not in needed]
        for count in range(1, len(needed)) if len(needed) <= MOST else ():
            for second in itertools.combinations(range(1, len(needed)), count):
                sides = [
                    [each for n, each in enumerate(needed) if (n in second) is side] for side in (False, True)
                ]
                yield from self._outer(sides, beside)

    def _outer(self, sides: Sequence[Sequence[Operand]], beside: list[Operand]) -> Iterator[Node]:
        """The product by a kernel of two parts of the factors; nothing if their axes do not fit the kernel."""
        outside = {*axes_in(beside)}
        one, other = ({*axes_in(side)} - self.tells for side in sides)
        own = [(each - more - outside) & self.summed for each, more in ((one, other), (other, one))]
        both = one & other
        if both <= self.summed - outside and one - both - own[0] and other - both - own[1]:
            parts = [part(side, alone, self.product.sizes) for side, alone in zip(sides, own, strict=True)]
            yield self._kernel(parts, self.tells | both, GROUPED_OUTER.name, beside)


def _chosen(factors: Sequence[Operand], summed: set[Axis], sizes: Sizes) -> Operand:
    """A product with ones that choose as conditions: elements that they do not choose are 0, even if not finite."""
    choosing = [each for each in factors if chooses(each)]
    rest = [each for each in factors if not chooses(each)]
    if not choosing or not rest:
        return part(factors, summed, sizes)
    value = part(rest, summed.difference(axes_in(choosing)), sizes)
    for each in choosing:
        chosen = applied(EQUAL.name, [each, counted(1)], sizes)
        value = applied(WHERE.name, [chosen, value, counted(0)], sizes)
    return part([value], summed, sizes)


# ---------------------------------------------------------------------------- grouped GEMM


def grouped_gemms(context: PassContext, program: Program, product: Node) -> Iterator[Change]:
    """Ways to multiply rows by matrices that positions select."""
    for at, matrices in enumerate(product.operands if product.op == "contract" else ()):
        told = _told(matrices, product, program.same)
        if told is None or matrices.node.element is not Element.NUMBER:
            continue
        own = {entry.axis for entry in matrices.reads} - {None}
        summed = own & summed_axes(product)
        others = [each for n, each in enumerate(product.operands) if n != at]
        needed = [each for each in others if summed.intersection(each.axes)]
        rest = [each for each in others if each not in needed]
        if not summed:
            continue
        grouped = isinstance(told, Gather) and own & {*axes_in(needed)} == summed
        supported = context.supported if grouped else ()
        for made in _products(product, needed, matrices, told, summed, rest, supported):
            yield Change(product, made)


def _told(factor: Operand, product: Node, same: Callable[[Size, Size], bool]) -> Affine | Gather | None:
    """Where a factor is read at positions, in one dimension; None unless separate axes index all other dimensions.

    Positions by distance are along axes that the product keeps: others are the windows of a convolution.
    """
    told = [*partial_reads(factor, product.sizes, same)]
    tells = {*axes_of(tuple(told))}
    plain = {entry.axis for entry in factor.reads} - {None, *tells}
    if len(told) != 1 or not tells or len(plain) < len(factor.reads) - 1:
        return None
    is_window = isinstance(told[0], Affine) and not tells.isdisjoint(summed_axes(product))
    return None if is_window or told[0].axis is not None else told[0]


def _products(
    product: Node,
    needed: list[Operand],
    matrices: Operand,
    told: Affine | Gather,
    summed: set[Axis],
    rest: list[Operand],
    supported: Container[str],
) -> Iterator[Node]:
    """A product of rows with selected matrices: once by groups, and once with each row times all matrices."""
    sizes: dict[Axis, Size] = dict(enumerate(product.sizes))
    rows = part(needed, (), sizes)
    if rows.node.element is not Element.NUMBER:
        return
    if GROUPED_MATMUL.name in supported:
        call = GROUPED_MATMUL.name, (rows, matrices), tuple(sorted(summed)), ()
        yield computed(product, call, rest, sizes)
    sizes["which"] = matrices.node.shape[matrices.reads.index(told)]
    reads = tuple(along("which") if entry is told else entry for entry in matrices.reads)
    every = part([*needed, Operand(matrices.node, reads)], summed, sizes)
    read = tuple(told if entry.axis == "which" else entry for entry in every.reads)
    yield multiplied(product, [Operand(every.node, read), *rest], sizes)
