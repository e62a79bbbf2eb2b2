"""Gather pushdown, reduction pushdown and window pull-up, which go through products and elementwise functions.

A tensor that is read at one position is computed only there:

    y[b,i,o] = gelu(x[b,i,c]*W[o,c]); z[b,o] = y[b,0,o]   is   y_1[b,o] = gelu(x[b,0,c]*W[o,c]); z[b,o] = y_1[b,o]

It goes through functions that run over other axes as well. A function that runs over the axis itself, or moves elements
along it, is computed whole and read at the position.

An average is taken before a product: `mean[n](x[b,n,c]*W[o,c] + u[o])` is `mean[n](x[b,n,c])*W[o,c] + u[o]`. If several
factors of a product have an averaged axis, the result is a contraction: `mean[n](x[b,n]*W[n,c])` is
`sum[n](x[b,n]*W[n,c]) / n`.

Windows are taken last: `x[p+u] ** 2` is `x_1[p+u]` of `x_1[t] = x[t] ** 2`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ..ir.equations import reads_of
from ..ir.node import (
    Affine,
    Axis,
    Entries,
    Gather,
    Node,
    Operand,
    Size,
    along,
    distinct_axes,
    node,
    over_operands,
    over_others,
    own_axes,
    substitute,
    whole,
)
from ..ir.positions import Opened, counted, opened, read_at, stand_alone
from ..ir.rewriting import Change, Facts, PassContext, Program
from ..ops.structure import INSIDE
from ..ops.table import Element

Entry = Affine | Gather
"""Where a tensor is read along an axis: at a position, or at positions that another tensor holds."""


# ---------------------------------------------------------------------------- at one position


def push_positions_down(program: Program) -> Program:
    """Computes a tensor at only one position of an axis, if it is read at no other."""
    reads: dict[Node, list[Entries]] = defaultdict(list)
    kept: dict[Node, list[int]] = {}
    narrow: dict[Node, Node] = {}
    for each in reversed(program.nodes):
        fixed = {} if each in program.results else _fixed(each, reads[each])
        made = _at_positions(each, fixed) if fixed else None
        if made is not None:
            kept[each] = [d for d in range(len(each.shape)) if d not in fixed]
        narrow[each] = each if made is None else made
        for operand in reads_of(narrow[each]):
            reads[operand.node].append(operand.reads)
    if not kept:
        return program
    new: dict[Node, Node] = {}
    for each in program.nodes:
        new[each] = over_others(narrow[each], new, kept)
    return program.over(new)


def _fixed(each: Node, reads: Sequence[Entries]) -> dict[int, Affine]:
    """The dimensions along an axis in which all readers read a node at the same position, with that position."""
    found: dict[int, Affine] = {}
    for d, axes in enumerate(each.dims):
        entries = {entries[d] for entries in reads}
        entry = entries.pop() if len(entries) == 1 else None
        if axes is not None and len(axes) == 1 and isinstance(entry, Affine) and not entry.terms:
            found[d] = entry
    return found


def _at_positions(each: Node, fixed: Mapping[int, Affine]) -> Node | None:
    """A node at one position of some of its dimensions; None if it cannot be narrowed."""
    axes = {each.dims[d][0]: entry for d, entry in fixed.items()}  # type: ignore[index]
    left = [d for d in range(len(each.shape)) if d not in fixed]
    return _narrowed(each, axes, [each.result[d] for d in left], [each.shape[d] for d in left], {})


# ---------------------------------------------------------------------------- at positions that a tensor holds


def gathers_first(_: PassContext, program: Program, reader: Node) -> Iterator[Change]:
    """Ways to gather rows of the operands of a tensor instead of its own."""
    for at, (child, reads) in enumerate(reader.operands):
        gathers = [d for d, entry in enumerate(reads) if isinstance(entry, Gather)]
        if program.readers[child] == 1 and child not in program.leaves and len(gathers) == 1:
            made = _gathered_before(reader, at, gathers[0])
            if made is not None:
                yield Change(reader, made)


def _gathered_before(reader: Node, at: int, d: int) -> Node | None:
    """A reader with an operand that is gathered along a dimension before it is computed; None if it cannot be."""
    child, reads = reader.operands[at]
    others = (*reads[:d], *reads[d + 1 :])
    own, dims, left = distinct_axes(others), own_axes(child), [n for n in range(len(reads)) if n != d]
    if own is None or dims is None:
        return None
    more = [axis for axis in dict.fromkeys(reads[d].axes) if axis not in own]
    sizes: dict[Axis, Size] = {("more", axis): reader.sizes[axis] for axis in more}
    table = dict(zip((*own, *more), map(along, (*(dims[n] for n in left), *sizes)), strict=True))
    (entry,) = substitute((reads[d],), table)
    result = [*(child.result[n] for n in left), *map(along, sizes)]
    shape = [*(child.shape[n] for n in left), *sizes.values()]
    made = _narrowed(child, {dims[d]: entry}, result, shape, sizes)
    if made is None:
        return None
    operands = [*reader.operands]
    operands[at] = Operand(made, (*others, *map(along, more)))
    return over_operands(reader, operands)


# ---------------------------------------------------------------------------- windows


def windows_last(_: PassContext, program: Program, each: Node) -> Iterator[Change]:
    """A way to compute an elementwise function of windows, or a product of such, before the windows are taken."""
    goes_through = _goes_through(each) and (each.op == "contract" or not each.over)
    made = _before_windows(program.facts, each) if goes_through else None
    if made is not None:
        yield Change(each, made)


def _before_windows(facts: Facts, each: Node) -> Node | None:
    """A node as a copy, in windows, of a node without them; None unless all operands with an axis of a window are read
    in this window, which reaches every position."""
    lengths: dict[Affine, Size] = {}
    for child, reads in each.operands:
        for entry, length in zip(reads, child.shape, strict=True):
            if isinstance(entry, Affine) and entry.axis is None and entry.terms:
                lengths.setdefault(entry, length)
                reached = sum(each.sizes[axis] for axis in entry.axes) - 1
                if entry.steps != (1, 1) or entry.offset != 0 or not facts.same(length, reached):
                    return None
    moved = {axis for entry in lengths for axis in entry.axes}
    entries = {entry for _, reads in each.operands for entry in reads}.difference(lengths)
    written = [entry.axis for entry in each.result]
    summed = [axis for axis in range(len(each.sizes)) if axis not in written]
    alone = len(moved) == 2 * len(lengths) > 0
    if not alone or None in written or not moved.issuperset(summed):
        return None
    if any(not moved.isdisjoint(entry.axes) for entry in entries):
        return None
    sizes: dict[Axis, Size] = {
        **dict(enumerate(each.sizes)),
        **{("whole", entry): n for entry, n in lengths.items()},
    }
    instead: dict[Entry, Affine] = {entry: along(("whole", entry)) for entry in lengths}
    starts = {entry.axes[0]: entry for entry in lengths}
    reads = tuple(
        starts.get(axis, along(axis)) for axis in (*written, *summed) if axis in starts or axis not in moved
    )
    operands = [Operand(child, tuple(instead.get(n, n) for n in own)) for child, own in each.operands]
    whole = node(each.op, sizes, operands, tuple(instead.get(n, n) for n in reads), options=each.options)
    op = "contract" if summed else "copy"
    return node(op, dict(enumerate(each.sizes)), [Operand(whole, reads)], each.result, each.shape, each.over)


# ---------------------------------------------------------------------------- narrowing a node


def _narrowed(
    each: Node,
    fixed: Mapping[Axis, Entry],
    result: Sequence[Affine | Gather],
    shape: Sequence[Size],
    more: Mapping[Axis, Size],
) -> Node | None:
    """A node computed only at some positions of some of its axes.

    None if the node runs over one of these axes or moves elements along it, or is random. Also None if the result would
    be a number or have another element type.

    Args:
        each: the node.
        fixed: the axes, and where the result is read along each.
        result: where the result is written then.
        shape: its shape.
        more: the sizes of axes that the node itself lacks.
    """
    given = {axis for entry in fixed.values() for axis in entry.axes}
    if not _goes_through(each) or not {*fixed, *given}.isdisjoint(each.over):
        return None
    read = {entry.axis for child, reads in each.operands if child.op != "index" for entry in reads}
    held = {axis for axis, entry in fixed.items() if isinstance(entry, Gather)}
    if (
        not stand_alone(result, fixed) or not held <= read
    ):  # what is read along an axis alone is looked up there
        return None
    sizes = {**dict(enumerate(each.sizes)), **more}
    operands = [read_at(operand, fixed, sizes) for operand in each.operands]
    left = substitute(tuple(result), fixed)
    made = node(each.op, sizes, operands, left, shape, each.over, each.options)
    return made if made.element is each.element and not made.is_scalar else None


def _goes_through(each: Node) -> bool:
    """Whether each position of a node is computed on its own, along the axes that it does not run over."""
    if each.op in ("contract", "copy"):
        return "fill" not in each.attributes and not each.is_scalar
    function = each.function
    moves = function.random or function.is_kernel or INSIDE in each.attributes
    return bool(each.operands and function.name) and not moves


# ---------------------------------------------------------------------------- averages


def averages_first(context: PassContext, program: Program, mean: Node) -> Iterator[Change]:
    """Averages the operands of a product or a sum instead of its result."""
    made = _averaged_first(program.facts, mean, context.sums)
    if made is not None:
        yield Change(mean, made)


def _averaged_first(facts: Facts, mean: Node, sums: bool) -> Node | None:
    """The average of a sum or a product from averages of its parts, or from its sum, divided by the count.

    Averages of factors need averaged axes that no two factors share.
    """
    child = mean.operands[0].node if mean.operands else mean
    is_average = mean.function.averages and child.element is Element.NUMBER
    is_open = child.op in ("add", "contract") and facts.readers[child] == 1 and not child.is_scalar
    found = opened(mean, 0, facts.same) if is_average and is_open and not mean.is_scalar else None
    if found is None:
        return None
    holders = Counter(axis for each in found.inside for axis in {*each.axes} if axis in found.over)
    if child.op == "add" or max(holders.values(), default=0) < 2:
        parts = [_averaged_part(facts, mean, found, each, sums) for each in found.inside]
        return node(child.op, found.sizes, parts, found.result, mean.shape, found.inside_over)
    if not sums:
        return None
    total = node("contract", found.sizes, found.inside, found.result, mean.shape, found.unread(found.inside))
    counts = [node("reciprocal", {}, [counted(mean.sizes[axis])]) for axis in mean.over]
    factors = [whole(total), *map(Operand, counts)]
    lengths = {((), n): length for n, length in enumerate(total.shape)}
    return node("contract", lengths, factors, factors[0].reads)


def _averaged_part(facts: Facts, mean: Node, found: Opened, part: Operand, sums: bool) -> Operand:
    """The average of a part along those averaged axes that it has."""
    own = tuple(dict.fromkeys(part.axes))
    over = tuple(axis for axis in found.over if axis in own)
    if not over:
        return part
    kept = tuple(along(axis) for axis in own if axis not in over)
    made = node(mean.op, found.sizes, [part], kept, None, over)
    return Operand(_averaged_first(facts, made, sums) or made, kept)
