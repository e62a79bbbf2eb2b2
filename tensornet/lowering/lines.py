"""Lines: the equations of a program as lowering reads them, in which each axis has a size of its own.

The name of an axis is local to its line. In a graph it may also have to identify a size (`ir.naming`).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..graph.graph import Apply
from ..graph.leaves import Leaf
from ..graph.recurrences import calls_late
from ..graph.shape_inference import Axis, Dim, size_expression
from ..ir import equations
from ..ir.equations import MADE, again, hints, is_kernel, parted, size_of
from ..ir.naming import Written
from ..ir.node import Affine, Node, Size
from ..ir.rewriting import Program
from ..language.equation import Equation
from ..language.expression import Expression
from ..ops.table import FUNCTIONS, RESERVED, Element
from ..sizes import evaluate, name_of, symbol

__all__ = ["Line", "Lines", "in_order", "lines_of"]


@dataclass(frozen=True)
class Line:
    """An equation, and the sizes of its axes."""

    equation: Equation
    sizes: Mapping[str, Size]


Item: TypeAlias = "Line | Apply"


@dataclass(frozen=True)
class Lines:
    """The input of lowering: lines, and calls of blocks between them.

    Attributes:
        leaves: the leaves that are read.
        body: the lines and calls, each after those whose results it reads.
        outputs: the names of the results.
        sizes: the names of all sizes.
        bound: the values of the sizes that are known.
        dims: the dimensions of all tensors, by name.
        elements: the element types of the leaves.
    """

    leaves: tuple[Leaf, ...]
    body: tuple[Item, ...]
    outputs: tuple[str, ...]
    sizes: tuple[str, ...]
    bound: Mapping[str, Any]
    dims: Mapping[str, tuple[Dim, ...]]
    elements: Mapping[str, Element]

    @property
    def own(self) -> tuple[Line, ...]:
        """The lines alone."""
        return tuple(each for each in self.body if isinstance(each, Line))

    @property
    def calls(self) -> tuple[Apply, ...]:
        """The calls alone."""
        return tuple(each for each in self.body if isinstance(each, Apply))

    def of_kind(self, kind: str) -> set[str]:
        """The leaves of a kind."""
        return {leaf.name for leaf in self.leaves if leaf.kind == kind}

    @property
    def readers(self) -> Counter[str]:
        """How often each tensor is read in lines."""
        return Counter(ref.name for line in self.own for ref in line.equation.references)


def lines_of(program: Program, taken: Iterable[str] = ()) -> Lines:
    """The lines of a program. New tensors get none of the names in `taken`."""
    writing = _Writing(program, taken)
    elements = {leaf.name: each.element for each, leaf in program.leaves.items()}
    return Lines(
        tuple(leaf for leaf in program.names.leaves if leaf.name in elements),
        tuple(writing.body),
        program.names.outputs,
        tuple(writing.known),
        writing.bound,
        writing.dims,
        elements,
    )


class _Writing:
    """The lines, while they are built; see `ir.equations.Naming`."""

    def __init__(self, program: Program, taken: Iterable[str]) -> None:
        self.same, names = program.same, program.names
        self.written = Written(names, program.function.outputs, self._is_laid_out)
        self.lone = self.written.lone
        self.tensors = {each: leaf.name for each, leaf in program.leaves.items()}
        self.dims: dict[str, tuple[Dim, ...]] = {each.name: each.dims for each in names.leaves}
        self.bound = dict(names.sizes)
        self.known = {name: symbol(name) for name in program.function.sizes} | self.bound
        self.taken = {
            *self.dims,
            *names.outputs,
            *names.tensors.values(),
            *FUNCTIONS,
            *RESERVED,
            *self.known,
            *taken,
        }
        self.given = {*self.tensors.values()}
        self.body: list[Line] = []
        for each in self.written:
            self.tensor(each)
        for name, each in zip(names.outputs, program.function.outputs, strict=True):
            if self.tensors.get(each) != name:
                self._define(each, name)

    def tensor(self, each: Node) -> str:
        """The name of a node, which gets a line if it has none yet."""
        if each not in self.tensors:
            self.tensors[each] = name = self.written.name(each, self.taken, self.given)
            self.taken.add(name)
            self.given.add(name)
            self._define(each, name)
        return self.tensors[each]

    def _is_laid_out(self, each: Node, readers: Iterable[Node]) -> bool:
        """Whether a node splits a dimension of an operand and a kernel reads the node: see `shared_layouts`."""
        return any(map(is_kernel, readers)) and bool(parted(each, self.same))

    def dimension(self, each: Node, d: int) -> str:
        """The name of a dimension of a node."""
        return "_".join(axis.name for axis in self.dims[self.tensor(each)][d])

    def _define(self, each: Node, name: str) -> None:
        """Adds the line of a node."""
        if each.op in MADE or self.tensors.get(each, name) != name:
            each = again(each)
        axes = _Axes(self)
        equation, dims = equations.Line(self, axes).equation(each, name)
        self.dims[name] = tuple(tuple(Axis(*axis) for axis in dim) for dim in dims)
        self.body.append(Line(equation, axes.sizes))


class _Axes:
    """The axes of one line; see `ir.equations.AxisNames`."""

    def __init__(self, writing: _Writing) -> None:
        self.writing, self.sizes = writing, dict[str, Size]()

    def named(self, each: Node, axis: int) -> str:
        """The name of an axis, or of a dimension that it runs along, with a number if another axis has that name."""
        own, size = self.writing.written.called.get((each, axis)), size_of(each, axis)
        return self.sized(size, own or next(hints(self.writing, each, axis), ""))

    def sized(self, size: Size, stem: str = "") -> str:
        """A name for an axis of some size. An axis may have the name of a size only if it has that size."""
        stem, known = stem or name_of(size) or "n", self.writing.known
        names = itertools.chain((stem,), (f"{stem}_{n}" for n in itertools.count(1)))
        unused = (each for each in names if each not in self.sizes)
        name = next(each for each in unused if self.writing.same(known.get(each, size), size))
        self.sizes[name] = size
        return name

    def spoken(self, size: Size, alike: Iterable[str] = ()) -> Expression:
        """A size as an expression, with known sizes substituted."""
        return size_expression(evaluate(size, self.writing.bound))

    def in_order(self, each: Node, entry: Affine, length: Size) -> Affine:
        """The window, unchanged."""
        return entry


def in_order(items: Sequence[Item]) -> Iterator[Item]:
    """The lines in order, but each before its readers. Calls keep their order and come as late as possible."""
    makers = {name: item for item in items for name in _defines(item)}

    def before(item: Item) -> Iterator[Item]:
        return (makers[name] for name in _reads(item) if name in makers)

    return calls_late(items, before, lambda item: isinstance(item, Apply))


def _defines(item: Item) -> tuple[str, ...]:
    return item.results if isinstance(item, Apply) else (item.equation.name,)


def _reads(item: Item) -> Iterator[str]:
    if isinstance(item, Apply):
        yield from item.names().values()
    else:
        yield from (ref.name for ref in item.equation.references)
