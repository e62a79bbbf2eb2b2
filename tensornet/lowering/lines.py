"""Lines: the equations of a program as lowering reads them, in which each axis has a size of its own.

The name of an axis is local to its line. In a graph it may also have to identify a size (`ir.naming`).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..graph.element_types import of_leaf
from ..graph.graph import Apply
from ..graph.shape_inference import size_expression
from ..ir.equations import Written, hints, is_kernel, parted, size_of
from ..ir.node import Affine, Node, Size, axes_of
from ..ir.positions import ones_of
from ..ir.rewriting import Program
from ..language.equation import Equation
from ..language.expression import Expression
from ..sizes import evaluate, name_of, symbol


@dataclass(frozen=True)
class Line:
    """An equation, and the sizes of its axes."""

    equation: Equation
    sizes: Mapping[str, Size]


class Lines(Written):
    """The input of lowering: the lines of a program, and calls of blocks between them.

    Attributes:
        leaves: the inputs and constants.
        elements: their element types.
        known: the names of all sizes, with the values that are known.
    """

    def __init__(self, program: Program) -> None:
        self.leaves = program.names.leaves
        nodes = {leaf.name: each for each, leaf in program.leaves.items()}
        super().__init__(program.function, program.names, {each: name for name, each in nodes.items()})
        self.elements = {
            each.name: nodes[each.name].element if each.name in nodes else of_leaf(each)
            for each in self.leaves
        }
        self.known = {name: symbol(name) for name in program.function.sizes} | self.bound
        self.taken.update(self.known)
        self.write()

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

    # ---- writing

    def axes(self, each: Node) -> _Axes:
        """Gives names to the axes of a line."""
        return _Axes(self)

    def add(self, equation: Equation, axes: _Axes) -> None:
        """Adds a line."""
        self.body.append(Line(equation, axes.sizes))

    def is_apart(self, each: Node, readers: Sequence[Node]) -> bool:
        """Whether a kernel reads a node that splits a dimension of an operand, or reads it in windows.

        Such a node is laid out as it is declared.
        """
        kernels = [reader for reader in readers if is_kernel(reader)]
        split = kernels and bool(parted(each, self.same))
        return (
            split
            or any(_reads_windows(reader, each) for reader in kernels)
            or super().is_apart(each, readers)
        )


def _reads_windows(kernel: Node, child: Node) -> bool:
    """Whether a kernel reads a node along an axis whose positions a one-hot operand gives."""
    marked = [(operand, ones_of(operand)) for operand in kernel.operands]
    axes = {ones.axis for _, ones in marked if ones is not None}
    return any(
        each.node is child and ones is None and not axes.isdisjoint(axes_of(each.reads))
        for each, ones in marked
    )


class _Axes:
    """The axes of one line; see `ir.equations.AxisNames`."""

    def __init__(self, lines: Lines) -> None:
        self.lines, self.sizes = lines, dict[str, Size]()

    def named(self, each: Node, axis: int) -> str:
        """The name of an axis, or of a dimension that it runs along, with a number if another axis has that name."""
        own, size = self.lines.called.get((each, axis)), size_of(each, axis)
        return self.sized(size, own or next(hints(self.lines, each, axis), ""))

    def sized(self, size: Size, stem: str = "") -> str:
        """A name for an axis of some size. An axis may have the name of a size only if it has that size."""
        stem, known = stem or name_of(size) or "n", self.lines.known
        names = itertools.chain((stem,), (f"{stem}_{n}" for n in itertools.count(1)))
        unused = (each for each in names if each not in self.sizes)
        name = next(each for each in unused if self.lines.same(known.get(each, size), size))
        self.sizes[name] = size
        return name

    def spoken(self, size: Size, alike: Iterable[str] = ()) -> Expression:
        """A size as an expression, with known sizes substituted."""
        return size_expression(evaluate(size, self.lines.bound))

    def in_order(self, each: Node, entry: Affine, length: Size) -> Affine:
        """The window, unchanged."""
        return entry
