"""Naming: a function as a graph of equations, which can be printed.

Names of axes are chosen while an equation is written: an axis is named after a dimension of its size that it runs
along. If there is none, its name determines its size, which is then the same throughout a graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..graph.shape_inference import Axis, size_expression
from ..language import expression
from ..language.expression import ELLIPSIS, Expression, numbered
from ..sizes import floored, is_never_negative, name_of, put_in, size_names, symbol, total
from .equations import Written, amounts_of, hints, is_in_window, parted, reads_of, size_of
from .node import Affine, Function, Names, Node, Operand, Size, gathered, partial_reads
from .node import Sizes as AxisSizes

# ---------------------------------------------------------------------------- the equations of a graph


@dataclass(frozen=True)
class Sizes:
    """The names of axes, with their sizes.

    Attributes:
        known: the names that determine a size by themselves in a graph.
        made: the new names that were chosen to determine a size, in any graph.
        axes: all other names, in any graph.
    """

    known: dict[str, Size]
    made: dict[str, Size] = field(default_factory=dict)
    axes: dict[str, Size] = field(default_factory=dict)

    def name(self, size: Size, stem: str, used: Container[str], taken: Container[str]) -> str:
        """A name that determines a size and that the line does not use yet; a new name is not a tensor's."""
        found = {**self.made, **self.known}
        alike = [name for name, each in found.items() if each == size and name not in used]
        if alike:
            return min(alike, key=lambda name: (name != stem, name != name_of(size)))
        names = itertools.chain((stem,), numbered(stem))
        free = (each for each in names if each not in found and each not in used and each not in taken)
        name = next(each for each in free if self.axes.get(each, size) == size)
        self.made[name] = size
        return name

    def fits(self, name: str, size: Size, same: Callable[[Size, Size], bool]) -> bool:
        """Whether an axis of this size may have a name: the name determines no other size."""
        return all(same(each.get(name, size), size) for each in (self.known, self.made))


def told(function: Function, names: Names) -> Sizes:
    """The names that determine sizes in a function."""
    formulas = {name: value for name, value in names.sizes if not isinstance(value, int)}
    whole = (name for name, value in names.sizes if isinstance(value, int))
    return Sizes({name: symbol(name) for name in (*function.sizes, *whole)} | formulas)


def graph_of(function: Function, names: Names, sizes: Sizes | None = None) -> Graph:
    """The graph of a function, which `frontend.elaborate_ir` can read.

    Args:
        function: the function.
        names: the names of its parts.
        sizes: the names that determine sizes, which graphs that are joined share.
    """
    return _Graph(function, names, sizes or told(function, names)).graph()


class _Graph(Written):
    """The equations of a graph under construction.

    Attributes:
        sizes: the names that determine sizes.
        reserved: the names of tensors at first, which no size may have.
    """

    def __init__(self, function: Function, names: Names, sizes: Sizes) -> None:
        self.sizes = sizes
        free = (each.name for each in names.leaves if each.value is None)
        super().__init__(function, names, dict(zip(function.inputs, free, strict=True)))
        self.leaves, self.reserved = [*names.leaves], frozenset(self.taken)
        self.taken.update(sizes.known, sizes.made)

    def axes(self, each: Node) -> _SizeNames:
        """Gives names to the axes of the equation of a node."""
        return _SizeNames(self, {*_placed(self, each)})

    def is_apart(self, each: Node, readers: Sequence[Node]) -> bool:
        """Whether a node mentions sizes, or has an axis whose size neither its operands nor its name determines."""
        own = self.names.axes.get(each, ())
        told = bool(_spoken_by(each)) or not all(
            axis < len(own) and self.same(self.sizes.known.get(own[axis]), each.sizes[axis])
            for axis in parted(each, self.same)
        )
        return told or super().is_apart(each, readers)

    def graph(self) -> Graph:
        """The graph."""
        self.write()
        return Graph(tuple(self.leaves), tuple(self.body), self.names.outputs, tuple(self.bound.items()))

    def tensor(self, each: Node) -> str:
        """The name of a node, which gets an equation if it has none yet; a constant is declared."""
        if each.op == "constant" and each not in self.tensors:
            self.tensors[each] = name = self.new_name(each)
            if name not in self.dims:
                self.dims[name] = tuple((Axis(f"{name}{d}", size),) for d, size in enumerate(each.shape))
                self.leaves.append(Leaf(name, "constant", self.dims[name], value=each.attributes["value"]))
        return super().tensor(each)


# ---------------------------------------------------------------------------- names of axes


class _SizeNames:
    """The names of the axes of one equation; see `equations.AxisNames`.

    Attributes:
        used: the names used so far, and those that are sizes wherever the equation has them.
    """

    def __init__(self, naming: _Graph, placed: set[str]) -> None:
        self.naming, self.used = naming, placed

    def sized(self, size: Size, stem: str = "", in_window: bool = False) -> str:
        """A name that determines a size; in a window it needs a value, or the axis would be as long as fits."""
        taken, used = self.naming.reserved, self.used
        if in_window and name_of(size) not in self.naming.bound:
            used = used | {str(name_of(size))}
        return self._taken(self.naming.sizes.name(size, stem or name_of(size) or "n", used, taken))

    def _taken(self, name: str) -> str:
        """Marks a name as used by the line; the graph records the size that it determines."""
        self.used.add(name)
        told = self.naming.sizes.known.get(name, self.naming.sizes.made.get(name))
        if told is not None:
            self.naming.taken.add(name)
            if name_of(told) != name:
                self.naming.bound.setdefault(name, told)
        return name

    def named(self, each: Node, axis: int) -> str:
        """A name for an axis: its own, that of a dimension of its size, or one that determines the size itself."""
        called = self.naming.called.get((each, axis))
        own = () if called is None else (called,)
        found, size = [*hints(self.naming, each, axis)], size_of(each, axis)
        if not found and own != (ELLIPSIS,):
            return self.sized(size, called or "", is_in_window(each, axis))
        stems = (*own, *found)
        names = itertools.chain(stems, numbered(stems[0]))
        unused = (name for name in names if name not in self.used)
        name = next(each for each in unused if self.naming.sizes.fits(each, size, self.naming.same))
        named = name in self.naming.sizes.known or size == 0  # a text cannot give the size 0
        if not named and self._reaches_window(each, axis):
            self.naming.sizes.made[name] = size  # the window may be read before what else determines it
        self.naming.sizes.axes[name] = size
        return self._taken(name)

    def _reaches_window(self, each: Node, axis: int) -> bool:
        """Whether an axis occurs in a window of a node, or of the nodes that are written inside it."""
        inner = (
            (child, axes[0])
            for child, reads in each.operands
            if child in self.naming.lone
            for axes, entry in zip(child.dims, reads, strict=True)
            if entry.axis == axis and axes and len(axes) == 1
        )
        return is_in_window(each, axis) or any(self._reaches_window(*pair) for pair in inner)

    def spoken(self, size: Size, alike: Iterable[str] = ()) -> Expression:
        """A size as the size of an axis, or as a formula; a name that is also a tensor's is replaced by its value."""
        for axis in alike:
            return expression.Size(axis)
        clashing = {*size_names(size)} & self.naming.reserved & self.naming.values.keys()
        return size_expression(put_in(size, {name: self.naming.values[name] for name in clashing}))

    def in_order(self, each: Node, entry: Affine, length: Size) -> Affine:
        """A window, reordered to start with an axis that is exactly as long as fits next to the others."""
        first = fitting(entry, each.sizes, length, self.naming.same)
        assert first is not None, f"a window that does not reach from end to end: {each}"
        return Affine((first, *(term for term in entry.terms if term is not first)), entry.offset)


def _spoken_by(each: Node) -> set[str]:
    """The names of sizes in the amounts that a crop or a padding adds before and after."""
    amounts = amounts_of(each) if "fill" in each.attributes else ()
    return {name for _, *both in amounts for size in both for name in size_names(size)}


def _placed(naming: Written, each: Node, inside: bool = False) -> Iterator[str]:
    """The names of sizes in the positions of an equation, and in amounts: there, an axis of that name would be meant.

    Args:
        naming: the equations.
        each: the node of the equation, or one that is written inside it.
        inside: whether the node holds positions.
    """
    yield from _spoken_by(each)
    yield from size_names(each.attributes["size"]) if inside and each.op == "size" else ()
    held = {*gathered((*each.result, *(entry for operand in each.operands for entry in operand.reads)))}
    for child, reads in reads_of(each):
        for entry in partial_reads(Operand(child, reads), each.sizes, naming.same):
            if isinstance(entry, Affine):
                yield from (name for size in (entry.offset, *entry.steps) for name in size_names(size))
        if child in naming.lone or child.is_scalar:
            yield from _placed(naming, child, inside or child in held)


def fitting(
    entry: Affine, sizes: AxisSizes, length: Size, same: Callable[[Size, Size], bool]
) -> tuple[Any, Size] | None:
    """The first term of a window whose axis is as long as fits, so that the window reaches from end to end."""
    fits = (term for term in entry.terms if same(_fit(entry, sizes, term[0], length), sizes[term[0]]))
    return next(fits, None)


def _fit(entry: Affine, sizes: AxisSizes, axis: Any, length: Size) -> Size:
    """The largest size of an axis in a window, given the reach of the other axes."""
    step = dict(entry.terms)[axis]
    low, high = reach(Affine(tuple(each for each in entry.terms if each[0] != axis), entry.offset), sizes)
    return (floored(low, -step) if is_negative(step) else floored(length - 1 - high, step)) + 1


def reach(entry: Affine, sizes: AxisSizes) -> tuple[Size, Size]:
    """The first and the last position of a window."""
    ends = [((sizes[axis] - 1) * step, is_negative(step)) for axis, step in entry.terms]
    low, high = (total(end for end, is_back in ends if is_back is back) for back in (True, False))
    return entry.offset + low, entry.offset + high


def is_negative(step: Size) -> bool:
    """Whether a number of positions is below 0 at all sizes."""
    return step != 0 and is_never_negative(-step)
