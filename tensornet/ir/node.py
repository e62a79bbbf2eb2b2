"""Hash-consed nodes of the core form, one operation each: common subexpression elimination by construction.

    Node  = op · sizes of its axes · operands, each a node and a read · result, a write · shape · over · options
    entry = Affine: offset + Σ step · axis      an axis, a position, a composite, a window
          | Gather: positions that a node holds

A read has an entry for each dimension of the operand, a write has one for each dimension of the result. Both are maps
from the axes of the node to positions. The op decides the rest:

    contract    the product of the operands, summed where axes write to the same position
    copy        its operand; positions that are not written hold the option `fill`
    input, constant, number, size, index        leaves
    call        the results of a block, which have no axes together; `item` is one of them
    any other   a function of the language: elementwise, or along the axes in `over`

Equal nodes are one object, so none is computed twice.
"""

from __future__ import annotations

import copyreg
import functools
import itertools
import math
import operator
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias, TypeGuard

from ..codec import hashed_once
from ..graph.leaves import Leaf
from ..ops.record import Element
from ..ops.structure import CONCAT, PAD
from ..ops.table import CONVERSIONS, FUNCTIONS, NO_FUNCTION
from ..ops.table import Function as Operation
from ..sizes import product

Size: TypeAlias = Any
"""A whole number, or a formula in open sizes; see `sizes`."""

Axis: TypeAlias = Any
"""An axis of a node is a number; while a node is built, an axis may be any hashable object."""

Sizes: TypeAlias = "Sequence[Size] | Mapping[Axis, Size]"
"""The sizes of axes: of numbered ones in order, of any others by axis."""


@hashed_once
@dataclass(frozen=True)
class Affine:
    """A position: offset + Σ step · axis.

    Attributes:
        terms: axes and their steps, in the order of the text; each axis once.
        offset: the position at which all axes are 0.
    """

    terms: tuple[tuple[Axis, Size], ...] = ()
    offset: Size = 0

    @functools.cached_property
    def axis(self) -> Axis | None:
        """The axis, if the position is exactly one axis."""
        return (
            self.terms[0][0] if len(self.terms) == 1 and self.offset == 0 and self.terms[0][1] == 1 else None
        )

    @functools.cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The axes of the sum."""
        return tuple(axis for axis, _ in self.terms)

    @property
    def steps(self) -> tuple[Size, ...]:
        """The number of positions that each axis advances by."""
        return tuple(step for _, step in self.terms)


@dataclass(frozen=True)
class Gather:
    """A position that is an element of a node, read at the given positions."""

    node: Node
    reads: Entries

    @property
    def axis(self) -> Axis | None:
        """None: a position that a node holds is not an axis."""
        return None

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes that the position depends on."""
        return axes_of(self.reads)


Entries: TypeAlias = "tuple[Affine | Gather, ...]"


class Operand(NamedTuple):
    """A node and the positions at which it is read."""

    node: Node
    reads: Entries = ()

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes that it is read along."""
        return axes_of(self.reads)


class Node:
    """A tensor, built by `node`: equal nodes are the same object.

    Attributes:
        op: the operation; see above.
        sizes: the sizes of its axes, numbered in order of first use: in the result, in `over`, in the operands.
        operands: the nodes that it reads, and where.
        result: the positions at which the result is written, for each of its dimensions.
        shape: the sizes of these dimensions.
        over: the axes along which a function runs.
        options: its attributes as names and values: numbers, sizes, nodes without axes, functions.
        element: the element type.
        dims: the axes of each dimension that is an axis or a composite; None for any other dimension.
        attributes: the options by name.
        children: the nodes that it reads, with repetitions: operands, positions, and options that are nodes.
        is_scalar: whether it is a number computed from numbers and sizes alone, the same wherever it is read.
    """

    __slots__ = (
        *("__weakref__", "attributes", "children", "dims", "element", "is_scalar", "op", "operands"),
        *("options", "over", "result", "shape", "sizes"),
    )

    def __init__(
        self,
        op: str,
        sizes: tuple[Size, ...],
        operands: tuple[Operand, ...],
        result: Entries,
        shape: tuple[Size, ...],
        over: tuple[int, ...],
        options: tuple[tuple[str, Any], ...],
        element: Element,
    ) -> None:
        self.op, self.sizes, self.operands, self.result = op, sizes, operands, result
        self.shape, self.over, self.options, self.element = shape, over, options, element
        self.dims, self.attributes = plain_dims(result, sizes, shape), dict(options)
        self.children, self.is_scalar = tuple(self._children()), self._is_scalar()

    @property
    def function(self) -> Operation:
        """The record of its function; `NO_FUNCTION` if the op is none."""
        return FUNCTIONS.get(self.op, NO_FUNCTION)

    @property
    def plain(self) -> tuple[Affine, ...]:
        """The positions along as many axes as it has dimensions."""
        return plain_reads(len(self.shape))

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        return f"<{self.op} [{shape}] of {', '.join(each.node.op for each in self.operands)}>"

    def _children(self) -> Iterator[Node]:
        for operand in self.operands:
            yield operand.node
            yield from gathered(operand.reads)
        yield from gathered(self.result)
        yield from (value for _, value in self.options if isinstance(value, Node))

    def _is_scalar(self) -> bool:
        if self.op in ("number", "size"):
            return True
        plain = not self.shape and not self.sizes and bool(self.operands) and self.op != "call"
        return plain and "draw" not in self.attributes and all(each.node.is_scalar for each in self.operands)


_TABLE: weakref.WeakValueDictionary[Any, Node] = weakref.WeakValueDictionary()


def interned(*fields: Any) -> Node:
    """The node with these fields, those of `Node.__init__`: one object for as long as it is referenced."""
    *before, options, element = fields
    key = (*before, tuple((name, _key_of(value)) for name, value in options), element)
    found = _TABLE.get(key)
    if found is None:
        found = _TABLE[key] = Node(*fields)
    return found


def _key_of(value: Any) -> Any:
    """The key that an option is compared by: 1, 1.0, True and -0.0 are different, and all nan are the same."""
    return (type(value), repr(value)) if isinstance(value, int | float | complex) else value


def _pickled(each: Node) -> tuple[Any, ...]:
    fields = (each.op, each.sizes, each.operands, each.result)
    return interned, (*fields, each.shape, each.over, each.options, each.element)


copyreg.pickle(Node, _pickled)


# ---------------------------------------------------------------------------- maps


def plain_dims(
    result: Entries, sizes: tuple[Size, ...], shape: tuple[Size, ...]
) -> tuple[tuple[int, ...] | None, ...]:
    """The axes of each dimension that is an axis or a composite of axes that no earlier dimension has; else None."""
    found: list[tuple[int, ...] | None] = []
    before: set[Axis] = set()
    for entry, length in zip(result, shape, strict=True):
        axes = tuple(axes_of((entry,)))
        plain = fills(entry, sizes, length) and before.isdisjoint(axes)
        found.append(axes if plain else None)
        before.update(axes)
    return tuple(found)


def fills(entry: Affine | Gather, sizes: Sizes, length: Size, same: Any = operator.eq) -> TypeGuard[Affine]:
    """Whether a position is that in a composite which fills a dimension; a single axis counts as one."""
    if entry.axis is not None:
        return bool(same(sizes[entry.axis], length))
    if isinstance(entry, Gather) or entry.offset != 0 or len(entry.terms) < 2:
        return False
    axes = tuple(axis for axis, _ in entry.terms)
    steps = zip(entry.steps, row_major(axes, sizes).steps, strict=True)
    return all(same(one, two) for one, two in steps) and same(product(sizes[axis] for axis in axes), length)


def partial_reads(operand: Operand, sizes: Sizes, same: Any = operator.eq) -> dict[Affine | Gather, Size]:
    """The positions that do not run through a dimension from end to end, with the length of the dimension."""
    pairs = zip(operand.reads, operand.node.shape, strict=True)
    return {entry: length for entry, length in pairs if not fills(entry, sizes, length, same)}


@functools.lru_cache(maxsize=1 << 12)
def along(axis: Axis) -> Affine:
    """The position along an axis: the same object for the same axis, so that it is hashed once."""
    return Affine(((axis, 1),))


@functools.lru_cache(maxsize=64)
def plain_reads(count: int) -> tuple[Affine, ...]:
    """The positions along some axes, numbered."""
    return tuple(map(along, range(count)))


def row_major(axes: tuple[Axis, ...], sizes: Sizes) -> Affine:
    """The position in a composite: h · |d| + d for (h, d)."""
    steps = (product(sizes[after] for after in axes[n + 1 :]) for n in range(len(axes)))
    return Affine(tuple(zip(axes, steps, strict=True)))


def gathered(entries: Entries) -> Iterator[Node]:
    """The nodes that hold positions in some entries."""
    for entry in entries:
        if isinstance(entry, Gather):
            yield entry.node
            yield from gathered(entry.reads)


def axes_of(entries: Iterable[Affine | Gather]) -> tuple[Axis, ...]:
    """The axes of some entries, in order."""
    return tuple([axis for entry in entries for axis in entry.axes])


def distinct_axes(reads: Entries) -> tuple[Axis, ...] | None:
    """The axes of some entries; None unless each entry is an axis that no other has."""
    axes = tuple(entry.axis for entry in reads)
    return None if None in axes or len({*axes}) < len(axes) else axes


def has_positions(each: Node) -> bool:
    """Whether a node reads or writes otherwise than along one whole axis in each dimension."""
    return None in each.dims or any(
        entry.axis is None or each.sizes[entry.axis] != length
        for node, reads in each.operands
        for entry, length in zip(reads, node.shape, strict=True)
    )


def runs_outermost(each: Node) -> bool:
    """Whether a function, or a sum of one tensor, runs along the first axis that it reads."""
    reads = [operand.reads[0].axis for operand in each.operands if operand.reads]
    over = summed_axes(each) if each.op == "contract" and len(reads) == 1 else {*each.over}
    return not over.isdisjoint(reads)


def own_axes(each: Node) -> tuple[int, ...] | None:
    """The axes of a node's dimensions; None unless each dimension is one axis."""
    axes = tuple(axes[0] for axes in each.dims if axes is not None and len(axes) == 1)
    return axes if len(axes) == len(each.dims) else None


def substitute(entries: Entries, table: Mapping[Axis, Any]) -> Entries:
    """Entries with axes replaced by positions: the composition of maps. Axes that the table lacks stay."""
    return tuple(_substituted(entry, table) for entry in entries)


def _substituted(entry: Affine | Gather, table: Mapping[Axis, Any]) -> Any:
    if isinstance(entry, Gather):
        return Gather(entry.node, substitute(entry.reads, table))
    return composed(entry, table) if entry.axis is None else table.get(entry.axis, entry)


def composed(entry: Affine, table: Mapping[Axis, Affine]) -> Affine:
    """A sum of axes with these replaced by positions."""
    steps: dict[Axis, Size] = {}
    offset = entry.offset
    for axis, step in entry.terms:
        inner = table.get(axis) or along(axis)
        offset += step * inner.offset
        for each, by in inner.terms:
            steps[each] = steps.get(each, 0) + step * by
    return Affine(tuple((axis, step) for axis, step in steps.items() if step != 0), offset)


# ---------------------------------------------------------------------------- building nodes

Options = tuple[tuple[str, Any], ...]

Kernel: TypeAlias = "tuple[str, Sequence[Operand], Sequence[Axis], Options]"
"""A call of a kernel: its name, operands, the axes that it runs over, and options."""


def node(
    op: str,
    sizes: Sizes,
    operands: Sequence[Operand] = (),
    result: Entries = (),
    shape: Sequence[Size] | None = None,
    over: Sequence[Axis] = (),
    options: Options = (),
    element: Element | None = None,
) -> Node:
    """The node of an operation.

    Args:
        op: the operation; see `node`.
        sizes: the sizes of its axes; those of other axes are ignored.
        operands: the tensors that it reads, and where.
        result: the positions that it writes.
        shape: the sizes of the result; if it is None, each dimension is an axis or a composite.
        over: the axes along which it runs.
        options: its attributes, as names and values.
        element: its element type, where that does not follow.
    """
    met = met_axes(operands, result, over)
    if shape is None:
        shape = [product(sizes[axis] for axis in entry.axes) for entry in result]
    numbers = {axis: n for n, axis in enumerate(met)}
    table = {axis: along(n) for axis, n in numbers.items()}
    read = tuple(Operand(each.node, substitute(each.reads, table)) for each in operands)
    written = substitute(result, table)
    axes = tuple(table.values())
    is_same = op == "copy" and not options and read[0].reads == written == axes
    if is_same and read[0].node.shape == tuple(shape):
        return read[0].node
    lengths = tuple(sizes[axis] for axis in met)
    if element is None:
        scattered = op == "contract" and None in plain_dims(written, lengths, tuple(shape))
        element = of_node(op, read, dict(options), scattered)
    along_axes = tuple(numbers[axis] for axis in over)
    return interned(op, lengths, read, written, tuple(shape), along_axes, options, element)


def met_axes(operands: Sequence[Operand], result: Entries, over: Sequence[Axis]) -> tuple[Axis, ...]:
    """The axes of a node, in the order of their numbers, which is that of first use."""
    met = dict.fromkeys(itertools.chain(axes_of(result), over, *(each.axes for each in operands)))
    return tuple(met)


def leaf(op: str, shape: Sequence[Size], element: Element, **options: Any) -> Node:
    """A tensor that is not computed: an input (parameters are inputs too), a constant, or a number, size or index."""
    return node(
        op, shape, (), plain_reads(len(shape)), shape, options=tuple(options.items()), element=element
    )


def number(value: bool | int | float | complex) -> Node:
    """A number as a node without axes."""
    return leaf("number", (), Element.of(value), value=value)


def size(value: Size) -> Node:
    """A size as a node without axes."""
    return leaf("size", (), Element.WHOLE, size=value)


def index(length: Size) -> Node:
    """0, 1, 2, …: the positions along an axis."""
    return leaf("index", (length,), Element.WHOLE)


def whole(each: Node, tag: Axis = ()) -> Operand:
    """An operand that reads a whole tensor along axes of its own."""
    return Operand(each, tuple(along((tag, n)) for n in range(len(each.shape))))


def cast(each: Node, element: Element) -> Node:
    """A node converted to another element type."""
    return node(CONVERSIONS[element], each.shape, [Operand(each, each.plain)], each.plain)


def items(
    call: Any, operands: Sequence[Node], shapes: Sequence[Any], elements: Sequence[Element]
) -> list[Node]:
    """The results of a call of a block.

    Args:
        call: how the block is called.
        operands: the tensors that the block reads, its parameters and constants included.
        shapes, elements: the shape and the element type of each result.
    """
    given = [whole(each, n) for n, each in enumerate(operands)]
    sizes = {(n, d): length for n, each in enumerate(operands) for d, length in enumerate(each.shape)}
    made = node("call", sizes, given, options=(("call", call),), element=Element.TRUTH)
    pairs = zip(shapes, elements, strict=True)
    return [leaf("item", shape, element, call=made, n=n) for n, (shape, element) in enumerate(pairs)]


def at_position(each: Node, d: int, position: Size) -> Node:
    """A tensor at one position of a dimension."""
    own = each.plain
    reads = (*own[:d], Affine((), position), *own[d + 1 :])
    return node("copy", each.shape, [Operand(each, reads)], own[:d] + own[d + 1 :])


def moved_in(each: Node, d: int) -> Node:
    """A tensor whose first dimension becomes dimension `d`; the others stay in order."""
    sizes = (*each.shape[1 : d + 1], each.shape[0], *each.shape[d + 1 :])
    own = each.plain
    return node("copy", sizes, [Operand(each, (own[d], *own[:d], *own[d + 1 :]))], own)


def concatenated(parts: Sequence[Node], at: int, same: Callable[[Size, Size], bool] = operator.eq) -> Node:
    """Concatenates tensors along a dimension. All slices of one tensor, in order, are that tensor with two dimensions
    as one; `same` compares sizes."""
    if len(parts) == 1:
        return parts[0]
    whole = parts[0].operands[0].node if parts[0].operands else parts[0]
    if len(whole.shape) > at + 1 and same(whole.shape[at], len(parts)):
        slices = [at_position(whole, at, n) for n in range(len(parts))]
        if all(map(functools.partial(_is_same, same), parts, slices)):
            lengths, own = dict(enumerate(whole.shape)), whole.plain
            both = row_major((at, at + 1), lengths)
            return node("copy", lengths, [Operand(whole, own)], (*own[:at], both, *own[at + 2 :]))
    pieces = {(at, n): part.shape[at] for n, part in enumerate(parts)}
    sizes: dict[Axis, Size] = {**dict(enumerate(parts[0].shape)), at: sum(pieces.values()), **pieces}
    own = parts[0].plain
    operands = [Operand(part, (*own[:at], along((at, n)), *own[at + 1 :])) for n, part in enumerate(parts)]
    return node(CONCAT.name, sizes, operands, own, over=(at, *pieces))


def _is_same(same: Callable[[Size, Size], bool], one: Node, other: Node) -> bool:
    """Whether two nodes read the same elements."""
    alike = (one.op, one.operands, one.result) == (other.op, other.operands, other.result)
    return alike and all(map(same, one.shape, other.shape))


# ---------------------------------------------------------------------------- products


def axes_in(operands: Iterable[Operand]) -> dict[Axis, None]:
    """The axes that operands are read along, in order."""
    return dict.fromkeys(axis for each in operands for axis in each.axes)


def summed_axes(each: Node) -> set[Axis]:
    """The axes that a product sums over."""
    return {*range(len(each.sizes))}.difference(axes_of(each.result))


def part(factors: Sequence[Operand], summed: Container[Axis], sizes: Sizes) -> Operand:
    """The product of some factors as an operand: a new node, or the factor if it is single and not summed.

    Args:
        factors: the factors.
        summed: the axes that it sums over; other axes are ignored.
        sizes: the sizes of the axes.
    """
    axes = axes_in(factors)
    kept = tuple(along(axis) for axis in axes if axis not in summed)
    if len(factors) == 1 and len(kept) == len(axes):
        return factors[0]
    return Operand(node("contract", sizes, factors, kept), kept)


def multiplied(each: Node, factors: Sequence[Operand], sizes: Sizes) -> Node:
    """A product with other factors and the same result; a copy if it is a single factor that is not summed."""
    plain = len(factors) == 1 and None not in each.dims and not each.over
    is_copy = plain and {*axes_in(factors)} == {*axes_of(each.result)}
    op = "copy" if is_copy else "contract"
    return node(op, sizes, factors, each.result, each.shape, each.over)


def called(kernel: Kernel, sizes: Sizes) -> Operand:
    """The result of a kernel, along those axes of its operands that it does not run over."""
    op, operands, over, options = kernel
    left = tuple(along(axis) for axis in axes_in(operands) if axis not in over)
    return Operand(node(op, sizes, operands, left, None, over, options), left)


def computed(each: Node, kernel: Kernel, beside: Sequence[Operand], sizes: Sizes) -> Node:
    """A product in which a kernel computes all factors except those in `beside`."""
    made = called(kernel, sizes)
    alone = not beside and not each.over and None not in each.dims
    if alone and {*axes_in([made])} == {*axes_of(each.result)}:
        op, operands, over, options = kernel
        return node(op, sizes, operands, each.result, each.shape, over, options)
    return multiplied(each, [made, *beside], sizes)


# ---------------------------------------------------------------------------- element type inference


def of_node(op: str, operands: Sequence[Operand], options: Mapping[str, Any], is_scattered: bool) -> Element:
    """The element type of the result of an operation.

    Args:
        op: `contract`, `copy`, or a function of the language.
        operands: its operands.
        options: its options.
        is_scattered: whether it is written at some positions only; zeros fill the others.
    """
    found = [each.node.element for each in operands]
    if op == "contract":
        return max(Element.WHOLE, Element.NUMBER if is_scattered else Element.TRUTH, *found)
    if op == "copy":
        fill = options.get("fill")
        return found[0] if fill is None else FUNCTIONS[PAD.name].element(found, list, [fill.element])
    function = FUNCTIONS[op]
    if function.rounds and _is_whole_quotient(operands[0].node):
        return Element.WHOLE
    return function.element(found, lambda: [value_of(each.node) for each in operands])


def value_of(node: Node, known: Callable[[Size], Any] = lambda size: None) -> Any:
    """The value of a number that consists of literals, and of sizes that are known; None for any other node."""
    if node.op in ("number", "size"):
        return node.attributes["value"] if node.op == "number" else known(node.attributes["size"])
    values = [value_of(each.node, known) for each in node.operands] if node.is_scalar else [None]
    if None in values:
        return None
    return math.prod(values) if node.op == "contract" else FUNCTIONS[node.op].scalar(*values)  # type: ignore[misc]


def _is_whole_quotient(node: Node) -> bool:
    """Whether the node divides integers by an integer scalar other than 0."""
    if node.op != "contract" or len(node.operands) < 2 or len(node.sizes) > len(node.shape):
        return False
    *above, last = (each.node for each in node.operands)
    if last.op != "reciprocal":
        return False
    below = last.operands[0].node
    whole = all(each.element <= Element.WHOLE for each in (*above, below))
    return whole and below.is_scalar and value_of(below) != 0


# ---------------------------------------------------------------------------- functions


@dataclass(frozen=True)
class Function:
    """A program: outputs as nodes over inputs.

    Attributes:
        inputs: nodes of the op `input`; parameters are inputs too.
        outputs: the results.
        sizes: the size names that it uses, each an argument of a call.
    """

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    sizes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Names:
    """The names of the parts of a function in a graph: a side table, used only for printing.

    Attributes:
        leaves: the inputs and constants as the graph has them; those without a value are the inputs, in order.
        outputs: the names of the results.
        sizes: the sizes that have a value.
        tensors: the names of nodes that equations define, and of constants.
        axes: the names of the axes of nodes.
    """

    leaves: tuple[Leaf, ...]
    outputs: tuple[str, ...]
    sizes: tuple[tuple[str, Any], ...]
    tensors: dict[Node, str] = field(repr=False)
    axes: dict[Node, tuple[str, ...]] = field(repr=False)

    def moved(self, new: Mapping[Node, Node]) -> Names:
        """The names after nodes are replaced; names of nodes not in `new`, and of axes that changed, are dropped."""
        tensors = {new[each]: name for each, name in self.tensors.items() if each in new}
        pairs = ((each, new[each], names) for each, names in self.axes.items() if each in new)
        axes = {other: names[: _equal_axes(each, other)] for each, other, names in pairs}
        return replace(self, tensors=tensors, axes=axes)


def _equal_axes(one: Node, other: Node) -> int:
    """The number of leading axes of equal size in two nodes with the same dimensions, else 0."""
    pairs = zip(one.sizes, other.sizes, strict=False) if one.dims == other.dims else ()
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def order(outputs: Iterable[Node], known: Container[Node] = ()) -> list[Node]:
    """The nodes that outputs need, each after those that it reads (dead code elimination by construction).

    Args:
        outputs: the nodes.
        known: nodes that are available already; they are left out.
    """
    done: dict[Node, None] = {}
    waiting = [each for each in outputs if each not in known][::-1]
    while waiting:
        last = waiting[-1]
        children = last.children if last not in done else ()
        missing = [each for each in children if each not in done and each not in known]
        if missing:
            waiting += missing[::-1]
        else:
            done[waiting.pop()] = None
    return list(done)


def rebuilt(outputs: Iterable[Node], new: dict[Node, Node]) -> list[Node]:
    """Outputs with some of the nodes below them replaced.

    Args:
        outputs: the nodes.
        new: the replacements of some nodes; those of all other nodes are added.
    """
    outputs = list(outputs)
    for old in order(outputs):
        if old not in new:
            new[old] = over_others(old, new)
    return [new[each] for each in outputs]


def over_others(old: Node, new: Mapping[Node, Node], kept: Mapping[Node, Sequence[int]] = {}) -> Node:
    """A node with the nodes that it reads replaced.

    Args:
        old: the node.
        new: the replacements of nodes.
        kept: for nodes that it reads, the dimensions that their replacements still have.
    """
    if all(new.get(each, each) is each for each in old.children):
        return old
    operands = tuple([_read(*each, new, kept) for each in old.operands])
    if len(old.children) == len(operands) and not kept and _alike(old, operands):
        return interned(
            old.op, old.sizes, operands, old.result, old.shape, old.over, old.options, old.element
        )
    result = tuple([entry_over(each, new, kept) for each in old.result])
    pairs = (
        (name, new.get(value, value) if isinstance(value, Node) else value) for name, value in old.options
    )
    element = old.element if old.is_scalar or old.op in ("call", "item") else None
    return node(old.op, old.sizes, operands, result, old.shape, old.over, tuple(pairs), element)


def _read(
    each: Node, reads: Entries, new: Mapping[Node, Node], kept: Mapping[Node, Sequence[int]]
) -> Operand:
    own = tuple([reads[d] for d in kept[each]]) if each in kept else reads
    return Operand(new.get(each, each), tuple([entry_over(entry, new, kept) for entry in own]))


def entry_over(
    each: Affine | Gather, new: Mapping[Node, Node], kept: Mapping[Node, Sequence[int]] = {}
) -> Affine | Gather:
    """An entry with the nodes that hold its positions replaced."""
    return Gather(*_read(each.node, each.reads, new, kept)) if isinstance(each, Gather) else each


def _alike(old: Node, operands: Sequence[Operand]) -> bool:
    """Whether other operands change nothing else of a node; only of a few does the type depend on their values."""
    return not old.function.rounds and all(
        one is two
        or (one.shape == two.shape and one.element is two.element and not (one.is_scalar or two.is_scalar))
        for (one, _), (two, _) in zip(old.operands, operands, strict=True)
    )


def over_operands(old: Node, operands: Sequence[Operand]) -> Node:
    """A node with other operands, read along its axes."""
    if tuple(operands) == old.operands:
        return old
    return node(old.op, old.sizes, operands, old.result, old.shape, old.over, old.options)
