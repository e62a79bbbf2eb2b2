"""The elaboration context: the facts known about each name while a text is read."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..errors import EquationError, Place, ShapeError, told_in
from ..graph.graph import Apply, Graph
from ..graph.leaves import Constant, axis_without_name, scoped, start_of
from ..graph.recurrences import is_step
from ..graph.shape_inference import Axis, Dim, Scope, dim_size, index_of, result_dims, scope_of, size_names_of
from ..graph.unify import Unifier
from ..language.equation import Calling, Declaration, Definition, Equation, Statement
from ..language.expression import (
    ELLIPSIS,
    Call,
    Contraction,
    Expression,
    Index,
    Ref,
    Taken,
    axes_of_index,
    axes_windowed,
    remade_axes,
)
from ..language.parser import parse_names
from ..ops.record import names_in
from ..sizes import as_size, size_names, symbol
from .instantiate import Matched

Names: TypeAlias = "str | Sequence[str]"

LEAVES = ("input", "parameter", "constant")
"""The kinds of tensors that no line defines."""


@dataclass
class Known:
    """The facts known about a tensor.

    Attributes:
        kind: the kind of a leaf, or "result", or "foreseen" if it is read before it is defined.
        dims: its dimensions.
        start: the initial value of a parameter.
        place: where it was declared or first read.
        value: the value of a constant.
    """

    kind: str
    dims: tuple[Dim, ...] | None = None
    start: tuple[str, float] | Constant | None = None
    place: Place | None = None
    value: Constant | None = None

    @property
    def index(self) -> tuple[Index, ...] | None:
        """The index that a bare name is read with."""
        return None if self.dims is None else index_of(self.dims)


Lengths: TypeAlias = "tuple[tuple[int | None, ...], ...]"
"""For each operand of a call, the lengths of its dimensions; None where they are open."""


class Text:
    """The statements of a block of text, and the facts that are gathered as they are read in order.

    Attributes:
        lines: the equations as they were written.
        body: the equations and the calls.
        blocks: the graphs of the blocks that the text defines, by their names and the values of their leaves.
        definitions: the blocks that the text defines.
        scope: the scope under which the block itself is called.
        printed: whether the text was printed from a graph.
        lengths: of the inputs of a block, the lengths of their dimensions, where they are known.
        reaching: the sizes that a block has from the text around it.
        given: the sizes that are given, as arguments or in the text.
        strict: the sizes given as arguments. They hold wherever the axis is named; `i: 4` in the text holds only in
            windows and where no tensor determines the size.
        windowed: the axes in windows. No size of a called block gets such a name, since it would hold in the window.
        values: the values of constants, and the starts of parameters, as they were given.
        init: the starts that no parameter has taken yet.
        declared_outputs: the outputs that lines declare.
        known: the tensors.
        guessed: leaves that take their axes from the line that reads them first.
        axes: the names of axes.
        formulas: the names in the sizes that are given or declared.
        unifier: collects and solves the sizes.
        items: the equations that were read, with the sizes in each, and the calls.
        calls: the lines of these calls.
        remade: the axes that functions in these equations resize.
        told: the leaves that come from calls.
        waiting: equations that cut parts from foreseen tensors, kept until these are defined.
        openings: the axes of each initial value of a recurrence, and the tensor that holds it.
    """

    def __init__(
        self,
        statements: Sequence[Statement] = (),
        inputs: Names = (),
        constants: Mapping[str, Any] = {},
        init: Mapping[str, Any] = {},
        given: Mapping[str, Any] = {},
        scope: str = "",
        printed: bool = False,
        lengths: Mapping[str, tuple[int | None, ...]] = {},
        reaching: frozenset[str] = frozenset(),
    ) -> None:
        self.scope, self.printed, self.lengths, self.reaching = scope, printed, lengths, reaching
        declarations = [s for s in statements if isinstance(s, Declaration)]
        self.lines = [s for s in statements if isinstance(s, Equation)]
        self.body = [s for s in statements if isinstance(s, Equation | Calling)]
        self.blocks: dict[tuple[Any, ...], Graph] = {}
        self.definitions = {s.name: s for s in statements if isinstance(s, Definition)}
        self.items: list[tuple[Equation, Scope] | Apply | Matched] = []
        self.calls: list[Calling] = []
        self.told, self.remade = set[str](), set[str]()
        self.waiting = defaultdict[str, list[Equation]](list)
        self.openings: dict[str, tuple[tuple[str, ...], Ref]] = {}
        self.values = constants, init
        self.strict = frozenset(given)
        self.given = _sizes_told(given, declarations)
        self.unifier = Unifier(self.given)
        self.unifier.is_weight = self.is_weight
        self.unifier.check_circles()
        self.init = {name: start_of(name, value) for name, value in init.items()}
        self.known: dict[str, Known] = {}
        self.declared_outputs = [each.name for each in declarations if each.kind == "output"]
        self._take_declarations(_in_order(declarations, parse_names(inputs, "input")))
        self._take_lengths()
        inner = leaves_of(s for s in statements if isinstance(s, Calling | Definition))
        self._take_constants(constants, inner)
        self.guessed: set[str] = set()
        self.axes = Taken(self._axis_names())
        self.formulas = size_names_of(self.dims_known()).union(*map(size_names, self.given.values()))
        self.windowed = window_axes(self.lines)

    def _take_lengths(self) -> None:
        """Unifies the sizes of declared inputs with their known lengths."""
        for name, each in self.lengths.items():
            for dim, length in zip(self.known[name].dims or (), each, strict=False):
                if length is not None:
                    self.unifier.unify(dim_size(dim), length, "_".join(axis.name for axis in dim), None)

    def _take_declarations(self, declarations: Iterable[Declaration]) -> None:
        """Enters declared leaves, and the sizes that their axes are declared with."""
        for each in declarations:
            if each.kind in LEAVES:
                self._declare(each)
        axes = (axis for dim in self.dims_known() for axis in dim)
        self.unifier.declared = {name for each in axes for name in size_names(each.size)}
        for name, size in self._sizes_declared():
            self.unifier.unify(symbol(name), size, name, None)

    def dims_known(self) -> Iterator[Dim]:
        """The dimensions of all tensors."""
        return itertools.chain.from_iterable(entry.dims or () for entry in self.known.values())

    def _sizes_declared(self) -> Iterator[tuple[str, Any]]:
        """Sizes that lines mention and only declarations give: `t` of `v[t:4]` where no line has this axis."""
        parts = [part for line in self.lines for part in line.parts]
        spoken = {ref.name for ref in parts if isinstance(ref, Ref) and not ref.index}
        spoken |= window_axes(self.lines)
        indices = (*(line.left for line in self.lines), *(ref.index for ref in parts if isinstance(ref, Ref)))
        plain = (entry for index in indices for entry in index if isinstance(entry, str | tuple))
        spoken -= {*axes_of_index(tuple(plain)), *self.given}
        found: dict[str, set[Any]] = {}
        for axis in itertools.chain.from_iterable(self.dims_known()):
            found.setdefault(axis.name, set()).add(axis.size)
        for name in sorted(spoken & found.keys()):
            if len(found[name]) == 1 and symbol(name) not in found[name]:
                yield name, found[name].pop()

    def _declare(self, each: Declaration) -> None:
        previous = self.known.get(each.name)
        if previous is not None and (previous.kind != each.kind or (previous.dims and each.dims)):
            raise EquationError(f"'{each.name}' is declared twice", each.place, "declare it once")
        entry = previous or Known(each.kind, place=each.place)
        if each.dims is not None:
            entry.dims = dims_declared(each)
        if each.options:
            entry.start = each.options[0]
        self.known[each.name] = entry

    def _take_constants(self, constants: Mapping[str, Any], of_blocks: Iterable[str]) -> None:
        """Enters constants with their values; calls take the constants of blocks."""
        elsewhere = set(of_blocks).difference(self.known)
        for name, value in constants.items():
            if name not in elsewhere:
                entry = self.known.setdefault(name, Known("constant"))
                entry.kind, entry.value = "constant", Constant.of(value, f"the constant '{name}'")

    def is_size(self, name: str) -> bool:
        """Whether a name that is no axis of an equation is a size: that of an axis elsewhere, or in a formula."""
        return name in self.axes or name in self.formulas

    def _axis_names(self) -> set[str]:
        names = {*self.given, *(axis.name for dim in self.dims_known() for axis in dim)}
        for line in self.lines:
            names.update(line.kept, line.right.occurring)
        if ELLIPSIS in names and "lead" in names:
            raise EquationError("'lead' is the size of '...'", fix="give the axis 'lead' another name")
        return names

    def meet(self, ref: Ref) -> None:
        """Gives a leaf its axes when it is first read with brackets."""
        entry = self.known.setdefault(ref.name, Known("parameter", place=ref.place))
        if entry.dims is None and ref.index:
            entry.dims = self.dims_read(ref, Scope())
            self.guessed.add(ref.name)

    def is_weight(self, name: str) -> bool:
        """Whether a name is a parameter that is as long as where it is read first."""
        return name in self.guessed and self.known[name].kind == "parameter"

    def dims_read(self, ref: Ref, sizes: Scope) -> tuple[Dim, ...]:
        """The dimensions of a leaf that is first read with these brackets.

        Args:
            ref: the leaf, as it is read.
            sizes: the known sizes of axes.
        """
        dims, lengths = list[Dim](), dict(enumerate(self.lengths.get(ref.name, ())))
        for position, entry in enumerate(ref.index):
            if isinstance(entry, str | tuple):
                dims.append(tuple(Axis(name, sizes.get(name, symbol(name))) for name in names_in(entry)))
            else:
                name = axis_without_name(ref.name, position)
                dims.append((Axis(name, lengths.get(position) or symbol(name)),))
        return tuple(dims)

    def foresee(self, lines: Iterable[Equation]) -> None:
        """Enters tensors that recurrences read before their definitions. Each axis has the size of a tensor that its
        line reads along this axis, else that of its own name. Lines that know all sizes come first, since others read
        their tensors."""
        left = [line for line in lines if line.name not in self.known]
        while left:
            sizes = {line.name: self._sizes_read(line) for line in left}
            whole = [line for line in left if {*line.kept} <= sizes[line.name].keys()]
            for line in (ready := whole or left[:1]):
                self.axes.update(line.kept)
                self.known[line.name] = Known("foreseen", result_dims(line, Scope(sizes[line.name])))
            left = [line for line in left if line not in ready]

    def _sizes_read(self, line: Equation) -> dict[str, Any]:
        """The sizes of the axes along which a line reads known tensors."""
        sizes = dict[str, Any]()
        for ref in _read_outside_functions(line.right):
            dims = self.known.get(ref.name, Known("")).dims or ()
            for entry, dim in zip(ref.index or index_of(dims), dims, strict=False):
                if isinstance(entry, str):
                    sizes.setdefault(entry, dim_size(dim))
        return sizes

    def keep(self, line: Equation, scope: Scope) -> None:
        """Adds an equation, and enters the tensor that it defines."""
        self.items.append((line, scope))
        self.remade |= remade_in(line.right)
        dims = result_dims(line, scope)
        foreseen = self.known.get(line.name)
        if foreseen is not None and foreseen.dims is not None:
            for ours, theirs in zip(dims, foreseen.dims, strict=True):
                for one, other in zip(ours, theirs, strict=True):
                    self.unifier.unify(one.size, other.size, one.name, Ref(line.name, line.left, line.place))
        self.known[line.name] = Known("result", dims)
        for part in self.waiting.pop(line.name, ()):
            self.keep(part, self.sizes_around(part.right))

    @told_in("sizes")
    def sizes_around(self, expression: Expression) -> Scope:
        """The sizes of the axes in an expression; other sizes that follow from it are solved."""
        return scope_of(
            expression, self.dims(expression), self.unifier.unify, self.unifier.bound, solves=False
        )

    def dims(self, expression: Expression) -> dict[str, tuple[Dim, ...]]:
        """The dimensions of the tensors that an expression reads, where they are known."""
        read = {ref.name: self.known.get(ref.name) for ref in expression.references}
        return {
            name: entry.dims for name, entry in read.items() if entry is not None and entry.dims is not None
        }

    def held(self, expression: Expression) -> frozenset[str]:
        """The axes that have their given size in an expression: no function in it resizes them, and their size does
        not depend on another axis of a window."""
        windowed, remade = axes_windowed(expression), remade_in(expression)
        return frozenset(
            name
            for name in expression.occurring & self.given.keys()
            if name not in remade and windowed.isdisjoint({*size_names(self.given[name])} - {name})
        )

    def take_declared_sizes(self) -> None:
        """Gives an axis that no argument sizes the size with which declarations name it: `q` of `A[q:3]`."""
        declared: dict[str, set[Any]] = {}
        leaves = [entry for entry in self.known.values() if entry.kind in LEAVES]
        for axis in (axis for entry in leaves for dim in entry.dims or () for axis in dim):
            declared.setdefault(axis.name, set()).add(self.unifier.resolve(axis.size))
        told = {name for sizes in declared.values() for size in sizes for name in size_names(size)}
        for name in sorted(self.open_names() - told):
            sizes = declared.get(name, set())
            if len(sizes) == 1 and isinstance(size := sizes.pop(), int):
                self.unifier.bound[name] = size

    def open_names(self) -> set[str]:
        """The names without a value: those in sizes of tensors, and those of axes in windows."""
        sizes = {axis.size for dim in self.dims_known() for axis in dim}
        found = {name for size in sizes for name in size_names(self.unifier.resolve(size))}
        return (found | self.windowed) - set(self.unifier.bound)


def _in_order(declarations: Sequence[Declaration], inputs: Sequence[Declaration]) -> list[Declaration]:
    """Declared leaves and inputs: the lines order the leaves if they declare the same inputs."""
    declared = [(each.name, None) for each in declarations if each.kind == "input"]
    same = declared and declared == [(each.name, each.dims) for each in inputs]
    return [*declarations, *inputs] if same else [*inputs, *declarations]


def _sizes_told(given: Mapping[str, Any], declarations: Iterable[Declaration]) -> dict[str, Any]:
    """The sizes given as arguments, and those in the text."""
    found = dict(given)
    for each in declarations:
        if each.kind == "size":
            size = as_size(each.size, each.name)
            if found.get(each.name, size) != size:
                message = f"the size of '{each.name}' is given twice: {found[each.name]} and {size}"
                raise ShapeError(message, each.place, "give it once")
            found[each.name] = size
    return found


def _read_outside_functions(expression: Expression) -> Iterator[Ref]:
    """The tensors that an expression reads outside of sums and of functions over axes, which may resize an axis.
    Steps of recurrences resize none."""
    match expression:
        case Ref():
            yield expression
        case Call(_, (inner, *_)) if is_step(expression):
            yield from _read_outside_functions(inner)
        case Call(_, _, (_, *_)) | Call(_, _, _, (_, *_)) | Contraction(_, (_, *_)):
            pass
        case _:
            for part in expression.parts:
                yield from _read_outside_functions(part)


def dims_declared(declaration: Declaration) -> tuple[Dim, ...]:
    """The dimensions of a declared leaf; an axis without a size has that of its name."""
    return tuple(
        tuple(Axis(axis, symbol(axis) if size is None else size) for axis, size in dim)
        for dim in declaration.dims or ()
    )


def leaves_of(statements: Iterable[Statement]) -> Iterator[str]:
    """The names in a text that may be leaves: declared, or read but not defined; names in blocks are scoped."""
    statements = tuple(statements)
    made = {name for s in statements for name in s.defines}
    blocks = {s.name: s for s in statements if isinstance(s, Definition)}
    for statement in statements:
        match statement:
            case Declaration(name):
                yield name
            case Equation():
                yield from (name for name in statement.operands if name not in made)
            case Calling(block=block, scope=scope) if block in blocks:
                yield from (scoped(scope, name) for name in leaves_of(blocks[block].statements))


def window_axes(lines: Iterable[Equation]) -> set[str]:
    """The axes in windows of equations as written, where a bare name may be an axis."""
    entries = [entry for line in lines for ref in line.references for entry in ref.parts]
    names = {ref.name for entry in entries for ref in entry.references if not ref.index}
    return names.union(*(entry.occurring for entry in entries))


def remade_in(expression: Expression) -> set[str]:
    """The axes that functions in an expression resize."""
    return {axis for call in expression.calls for axis in remade_axes(call)}
