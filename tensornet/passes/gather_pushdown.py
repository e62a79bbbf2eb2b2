"""Gather pushdown: a tensor that is read at one position is computed only there.

    y[b,i,o] = gelu(x[b,i,c]*W[o,c]); z[b,o] = y[b,0,o]   is   y_1[b,o] = gelu(x[b,0,c]*W[o,c]); z[b,o] = y_1[b,o]

It goes through products, elementwise functions, and functions that run over other axes.
A function that runs over the axis itself, or moves elements along it, is computed whole and read at the position.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ..ir.build import node
from ..ir.equations import reads_of
from ..ir.function import over_operands, over_others
from ..ir.node import Affine, Axis, Entries, Gather, Node, Operand, Size, along, axes_of, substitute
from ..ir.positions import apart, put_in, stand_alone
from ..ir.rewriting import Change, Cost, Program, improved
from ..ops.structure import INSIDE
from ..ops.table import FUNCTIONS

__all__ = ["push_gathers_down", "push_positions_down"]

Entry = Affine | Gather
"""Where a tensor is read along an axis: at a position, or at positions that another tensor holds."""


# ---------------------------------------------------------------------------- at one position


def push_positions_down(program: Program) -> Program:
    """Computes a tensor at only one position of an axis, if it is read at no other."""
    reads: dict[Node, list[Entries]] = defaultdict(list)
    kept: dict[Node, list[int]] = {}
    narrow: dict[Node, Node] = {}
    for each in reversed(program.nodes):
        fixed = {} if each in program.function.outputs else _fixed(each, reads[each])
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


def push_gathers_down(program: Program, cost: Cost) -> Program:
    """Gathers rows of a tensor's operands instead of its own, where `cost` says that this pays."""
    return improved(program, program.nodes[::-1], _gathers, cost)


def _gathers(program: Program, reader: Node) -> Iterator[Change]:
    """Ways to gather rows before the function or product that computes the tensor."""
    for at, (child, reads) in enumerate(reader.operands):
        gathers = [d for d, entry in enumerate(reads) if isinstance(entry, Gather)]
        if program.readers[child] == 1 and child not in program.leaves and len(gathers) == 1:
            made = _gathered_before(reader, at, gathers[0])
            if made is not None:
                yield Change({reader: made})


def _gathered_before(reader: Node, at: int, d: int) -> Node | None:
    """A reader with an operand that is gathered along a dimension before it is computed; None if it cannot be."""
    child, reads = reader.operands[at]
    gather, others = reads[d], [entry for n, entry in enumerate(reads) if n != d]
    own = [entry.axis for entry in others]
    if None in own or len({*own}) < len(own) or any(axes is None or len(axes) > 1 for axes in child.dims):
        return None
    dims = [axes[0] for axes in child.dims if axes is not None]
    (axis,) = dims[d : d + 1]
    names = dict(zip(own, (each for n, each in enumerate(dims) if n != d), strict=True))
    more = [each for each in dict.fromkeys(axes_of((gather,))) if each not in names]
    table = {
        **{each: along(name) for each, name in names.items()},
        **{each: along(("more", each)) for each in more},
    }
    (entry,) = substitute((gather,), table)
    result = [
        *(child.result[n] for n in range(len(dims)) if n != d),
        *(along(("more", each)) for each in more),
    ]
    shape = [*(child.shape[n] for n in range(len(dims)) if n != d), *(reader.sizes[each] for each in more)]
    made = _narrowed(
        child, {axis: entry}, result, shape, {("more", each): reader.sizes[each] for each in more}
    )
    if made is None:
        return None
    operands = [*reader.operands]
    operands[at] = Operand(made, (*others, *map(along, more)))
    return over_operands(reader, operands)


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
    given = {axis for entry in fixed.values() for axis in axes_of((entry,))}
    if not _goes_through(each) or not {*fixed, *given}.isdisjoint(each.over):
        return None
    read = {entry.axis for child, reads in each.operands if child.op != "index" for entry in reads}
    held = {axis for axis, entry in fixed.items() if isinstance(entry, Gather)}
    if (
        not stand_alone(result, fixed) or not held <= read
    ):  # if nothing else is read along the axis, no position is looked up
        return None
    sizes = {**dict(enumerate(each.sizes)), **more}
    operands = [
        operand if stand_alone(operand.reads, fixed) else apart(operand, sizes) for operand in each.operands
    ]
    operands = [Operand(operand.node, put_in(operand.reads, fixed)) for operand in operands]
    made = node(each.op, sizes, operands, put_in(tuple(result), fixed), shape, each.over, each.options)
    return made if made.element is each.element and not made.is_scalar else None


def _goes_through(each: Node) -> bool:
    """Whether each position of a node is computed on its own, along the axes that it does not run over."""
    if each.op in ("contract", "copy"):
        return "fill" not in each.attributes and not each.is_scalar
    function = FUNCTIONS.get(each.op)
    return (
        bool(each.operands)
        and function is not None
        and not (function.random or function.is_kernel or INSIDE in each.attributes)
    )
