"""Elaboration of graphs to the core form: names end where a node begins.

    z[b,o] = x[b,i] * W[o,i] + c[o]        add(contract(x[0,2], W[1,2]) [0,1], c[1])

An expression becomes a node over axes under their names, which `ir.build` numbers. A scatter is a product that is
written at positions, a crop or a padding a copy, a block that is called a Function of sizes, and a recurrence a scan.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from ..graph.call import Apply
from ..graph.element_types import of_leaves, of_number
from ..graph.graph import Graph
from ..graph.shape_inference import Scope, scalar_size, scope_inside
from ..ir.build import index, item, leaf, met_axes, node, number, size
from ..ir.function import Function, order, rebuilt
from ..ir.naming import Called, Names
from ..ir.node import Affine, Axis, Entries, Gather, Node, Operand, along, axes_of, row_major, substitute
from ..ir.size import ONE, ZERO, Size, of_sympy, product
from ..language import expression
from ..language.affine import affine
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Index,
    Literal,
    Ref,
    axes_of_index,
    free_axes,
    is_scalar,
    option_axes,
)
from ..ops.structure import INDEX, ONEHOT, PAD, REPEAT, is_inside
from ..ops.table import FUNCTIONS, Element
from ..scan.lowering import looped
from ..sizes import evaluate, put_in, symbol

__all__ = ["function_of"]

Left: TypeAlias = "Sequence[str | tuple[str, ...]]"


def function_of(graph: Graph) -> tuple[Function, Names]:
    """The function of a graph, whose recurrences become scans, and its names.

    Sizes that are whole numbers stay names, those that are formulas are put in.
    """
    graph = looped(graph)
    made = _Elaboration(graph, of_leaves(graph), {})
    outputs = tuple(made.tensors[name] for name in graph.outputs)
    sizes = dict.fromkeys(
        (*graph.open_sizes, *(name for name, value in graph.sizes if isinstance(value, int)))
    )
    return Function(made.inputs, outputs, tuple(sizes)), made.names


Memo: TypeAlias = "dict[Any, tuple[Function, tuple[str, ...], Names]]"


class _Elaboration:
    """The nodes of a graph, one equation after another.

    Attributes:
        tensors: the nodes, by the names of tensors.
        inputs: those of the leaves without a value.
        names: what they are called.
    """

    def __init__(self, graph: Graph, elements: Mapping[str, Element], blocks: Memo) -> None:
        self.graph, self.blocks = graph, blocks
        self.formulas = {
            name: of_sympy(evaluate(symbol(name), {n: s for n, s in graph.sizes if not isinstance(s, int)}))
            for name, value in graph.sizes
            if not isinstance(value, int)
        }
        self.draws = itertools.count()
        self.tensors: dict[str, Node] = {}
        shapes = _shapes(graph)
        for each in graph.leaves:
            shape = [self.size(length) for length in shapes[each.name]]
            if each.value is None:
                made = leaf("input", shape, elements[each.name], n=len(self.tensors))
            else:
                made = leaf("constant", shape, elements[each.name], value=each.value)
            self.tensors[each.name] = made
        self.inputs = tuple(self.tensors[each.name] for each in graph.leaves if each.value is None)
        constants = {self.tensors[each.name]: each.name for each in graph.constants if each.value is not None}
        self.names = Names(graph.leaves, graph.outputs, graph.sizes, constants, {}, {})
        for line in graph.body:
            if isinstance(line, Equation):
                self.tensors[line.name] = self.value(line.right, line.left, graph.scope(line))
            else:
                self.tensors.update(zip(line.results, self.called(line), strict=False))
            for name in line.defines:
                self.names.tensors.setdefault(self.tensors[name], name)

    def size(self, length: Any) -> Size:
        """A size of the graph."""
        return of_sympy(length).at(self.formulas)

    # ---- expressions

    def value(self, part: Expression, left: Left, scope: Scope) -> Node:
        """An expression as a node.

        Args:
            part: the expression.
            left: the axes of the result.
            scope: the sizes of the axes around it.
        """
        match part:
            case Contraction():
                return self._product(part, left, scope)
            case Call(REPEAT.name | INDEX.name):
                return self._made("copy", part.arguments or (part,), left, scope)
            case Call(PAD.name):
                return self._padded(part, left, scope)
            case Call(_, arguments) if not is_scalar(part):
                function = FUNCTIONS[part.function]
                if function.axes == "joined":
                    return self._joined(part, left, scope)
                over = (*part.axes, *(name for name, _ in part.options if name in option_axes(part)))
                told = (
                    (f"shift{over.index(name)}" if name in over else name, each)
                    for name, (each,) in part.options
                )
                options: tuple[tuple[str, Any], ...] = tuple(
                    (n, self.scalar(each, scope)) for n, each in told
                )
                if not function.is_repeatable:
                    options += (("draw", next(self.draws)),)
                inner = self._within(arguments, function.leaves_out(part.axes), scope)
                return self._made(part.function, arguments, left, inner, over, options)
        return self._made("copy", (part,), left, scope)

    def part(self, part: Expression, scope: Scope) -> Operand:
        """A part of an expression as it is read."""
        if is_scalar(part):
            return Operand(self.scalar(part, scope))
        match part:
            case Ref(name, entries):
                read = self.tensors[name]
                pairs = zip(entries, read.shape, strict=True)
                return Operand(read, tuple(self._entry(entry, length, scope) for entry, length in pairs))
            case Call(INDEX.name, (), (axis,)):
                return Operand(index(self.size(scope[axis])), (along(axis),))
        axes = free_axes(part)
        return Operand(self.value(part, axes, scope), tuple(map(along, axes)))

    def scalar(self, part: Expression, scope: Scope) -> Node:
        """A number of literals and sizes."""
        match part:
            case Literal(value):
                return number(value)
            case Contraction(factors) | Call(_, factors):
                options = part.options if isinstance(part, Call) else ()
                op = part.function if isinstance(part, Call) else "contract"
                operands = [Operand(self.scalar(each, scope)) for each in factors]
                given = tuple((name, self.scalar(value, scope)) for name, (value,) in options)
                return node(op, {}, operands, options=given, element=of_number(part))
        assert isinstance(part, expression.Size)
        return size(self.size(scope[part.axis]))

    def _made(
        self,
        op: str,
        parts: Iterable[Expression],
        left: Left,
        scope: Scope,
        over: Sequence[str] = (),
        options: tuple[tuple[str, Any], ...] = (),
    ) -> Node:
        """The node of an operation on parts."""
        operands = [self.part(each, scope) for each in parts]
        axes = [*axes_of_index(tuple(left)), *over, *_axes_in(operands)]
        sizes = {axis: self.size(scope[axis]) for axis in axes}
        return self._node(op, sizes, operands, _written(left, sizes), over=over, options=options)

    def _node(
        self,
        op: str,
        sizes: Mapping[Axis, Size],
        operands: Sequence[Operand],
        result: Entries,
        shape: Sequence[Size] | None = None,
        over: Sequence[Axis] = (),
        options: tuple[tuple[str, Any], ...] = (),
    ) -> Node:
        """A node whose axes have names."""
        made = node(op, sizes, operands, result, shape, over, options)
        met = met_axes(operands, result, over)
        if made.op == op and len(met) == len(made.sizes):
            self.names.axes.setdefault(made, tuple(str(axis) for axis in met))
        return made

    def _within(self, parts: Sequence[Expression], axes: Iterable[str], scope: Scope) -> Scope:
        """The scope inside of what binds some axes, which are as long as the parts tell."""
        bound = tuple(axes)
        if not bound:
            return scope
        inside = scope_inside(Contraction(tuple(parts)), self.graph.named, self.graph.bound)
        return replace(scope, sizes={**scope.sizes, **{axis: inside[axis] for axis in bound}})

    # ---- positions

    def _entry(self, entry: Index, length: Size, scope: Scope) -> Affine | Gather:
        """What stands in brackets, of a dimension of some length."""
        match entry:
            case str():
                return along(entry)
            case int():
                return Affine((), length + entry if entry < 0 else Size.of(entry))
            case tuple():
                return row_major(entry, {axis: self.size(scope[axis]) for axis in entry})
        return self._position(entry, scope)

    def _position(self, told: Expression, scope: Scope) -> Affine | Gather:
        """An expression of positions: a sum of axes, or what a tensor holds."""
        if is_scalar(told):
            return Affine((), self._amount(told, scope))
        found = affine(told)
        if found is None:
            return Gather(*self.part(told, scope))
        steps = tuple((axis, self._amount(step, scope)) for axis, step in found.steps)
        return Affine(steps, self._amount(found.offset, scope))

    def _amount(self, told: Expression, scope: Scope) -> Size:
        """A number of positions."""
        return self.size(scalar_size(told, scope))

    # ---- products

    def _product(self, part: Contraction, left: Left, scope: Scope) -> Node:
        """A product, written where its one-hot factors say: a scatter."""
        scope = self._within(part.factors, part.summed, scope)
        hot = [each for each in part.factors if isinstance(each, Call) and _is_write(each, part, left)]
        operands = [self.part(each, scope) for each in part.factors if each not in hot]
        places = {each.axes[0]: self._position(each.arguments[0], scope) for each in hot}
        read = {*_axes_in(operands), *axes_of(tuple(places.values()))}
        unread = tuple(axis for axis in part.summed if axis not in read)
        axes = [*axes_of_index(tuple(left)), *read, *unread]
        sizes = {axis: self.size(scope[str(axis)]) for axis in axes}
        written = _written(left, sizes)
        shape = [product(sizes[axis] for axis in axes_of((entry,))) for entry in written]
        result = tuple(places.get(str(entry.axis), entry) for entry in written)
        return self._node("contract", sizes, operands, result, shape, unread)

    # ---- what moves elements

    def _whole(self, part: Expression, scope: Scope) -> Operand:
        """A part that is read at axes alone, each once: a copy of it where it is not."""
        index = part.index if isinstance(part, Ref) else (0,)
        if all(isinstance(entry, str) for entry in index) and len({*index}) == len(index):
            return self.part(part, scope)
        axes = free_axes(part)
        return Operand(self.value(part, axes, scope), tuple(map(along, axes)))

    def _padded(self, part: Call, left: Left, scope: Scope) -> Node:
        """A crop or a padding: a copy of what is kept, and a number where nothing is written."""
        amounts = {name: values for name, values in part.options if name in option_axes(part)}
        inside = self._within(part.arguments, amounts, scope)
        operand = self._whole(part.arguments[0], inside)
        sizes: dict[Axis, Size] = {}
        read: dict[Axis, Affine] = {}
        written: list[Affine] = []
        shape: list[Size] = []
        axes = [*axes_of(operand.reads)]
        for axis in axes:
            given = amounts.get(str(axis), (Literal(0), Literal(0)))
            before, after = (self._amount(each, inside) for each in given)
            length = self.size(inside[str(axis)])
            sizes[axis] = length + before.minimum(ZERO) + after.minimum(ZERO)
            read[axis] = Affine(((axis, ONE),), (-before).maximum(ZERO))
            written.append(Affine(((axis, ONE),), before.maximum(ZERO)))
            shape.append(length + before + after)
        fill = self.scalar(dict(part.options).get("value", (Literal(0),))[0], scope)
        moved = [Operand(operand.node, substitute(operand.reads, read))]
        made = self._node("copy", sizes, moved, tuple(written), shape, options=(("fill", fill),))
        lengths = dict(zip(axes, shape, strict=True))
        return self._node("copy", lengths, [Operand(made, tuple(map(along, axes)))], _written(left, lengths))

    def _joined(self, part: Call, left: Left, scope: Scope) -> Node:
        """Operands one after another: `over` holds the axis of the result, and that of each operand."""
        (joined,) = part.axes
        operands: list[Operand] = []
        pieces: dict[Axis, Size] = {}
        for n, argument in enumerate(part.arguments):
            has = joined in free_axes(argument)
            inside = self._within((argument,), (joined,) if has else (), scope)
            read = self._whole(argument, inside) if has else self.part(argument, inside)
            pieces[joined, n] = self.size(inside[joined]) if has else ONE
            table = {axis: along((joined, n) if axis == joined else axis) for axis in axes_of(read.reads)}
            operands.append(Operand(read.node, substitute(read.reads, table)))
        axes = [*axes_of_index(tuple(left)), *(axis for axis in _axes_in(operands) if axis not in pieces)]
        sizes = {axis: self.size(scope[str(axis)]) for axis in axes} | pieces
        return self._node(part.function, sizes, operands, _written(left, sizes), over=(joined, *pieces))

    # ---- calls

    def called(self, call: Apply) -> list[Node]:
        """The results of a block: items of one node that gives them all."""
        call = replace(call, graph=looped(call.graph))
        names = call.names()
        given = [self.tensors[names[each.name]] for each in call.graph.leaves if each.value is None]
        function, symbols, inner = self._block(call, given)
        sizes = tuple(self._argument(name, call.graph) for name in symbols)
        shapes = [
            [length.at(dict(zip(function.sizes, sizes, strict=True))) for length in each.shape]
            for each in function.outputs
        ]
        options: tuple[tuple[str, Any], ...] = (("function", function), ("sizes", sizes))
        if any("draw" in each.told for each in order(function.outputs)):
            options += (("draw", next(self.draws)),)
        chosen = [*range(len(function.outputs))]
        if call.along is None:
            made = node("call", *_whole_reads(given), options=options, element=Element.TRUTH)
        else:
            made = self._scan(call, given, options)
            length = made.sizes[made.over[0]]
            last = [shapes[n] for n in call.along.states]
            shapes = [*([length, *shape] for shape in shapes), *last]
            joined = call.along.joined(len(call.results))
            chosen = [*range(joined), *range(len(chosen), len(shapes))] if call.along.last else chosen
        self.names.calls.setdefault(made, Called(inner, call.scope, call.apart))
        elements = [each.element for each in function.outputs]
        elements += [elements[n] for n in call.along.states] if call.along else []
        return [item(made, n, shapes[n], elements[n]) for n in chosen]

    def _scan(self, call: Apply, given: Sequence[Node], options: tuple[tuple[str, Any], ...]) -> Node:
        """A block along an axis: what comes in position by position is read at it."""
        assert call.along is not None
        sizes, operands = _whole_reads(given)
        inputs = [
            n
            for n, each in enumerate(each for each in call.graph.leaves if each.value is None)
            if each.kind == "input"
        ]
        sizes["along"] = self.size(call.along.axis.size)
        for n, at in zip(inputs, call.along.cuts, strict=False):
            reads = operands[n].reads
            operands[n] = Operand(given[n], (*reads[:at], along("along"), *reads[at + 1 :]))
        states = inputs[len(call.along.cuts) :][: len(call.along.states)]
        options += (("states", tuple(zip(states, call.along.states, strict=True))), ("back", call.along.back))
        return node("scan", sizes, operands, over=("along",), options=options, element=Element.TRUTH)

    def _argument(self, name: str, block: Graph) -> Size:
        """The value of a size of a block, in the caller's sizes."""
        value = block.bound.get(name)
        return (
            Size.of(value)
            if value is not None and self.graph.bound.get(name) != value
            else self.size(symbol(name))
        )

    def _block(self, call: Apply, given: Sequence[Node]) -> tuple[Function, tuple[str, ...], Names]:
        """The function of a block, the names of its sizes in the block, and its names."""
        elements = tuple(each.element for each in given)
        key = call.graph, elements
        if key not in self.blocks:
            free = [each.name for each in call.graph.leaves if each.value is None]
            held = of_leaves(call.graph) | dict(zip(free, elements, strict=True))
            made = _Elaboration(call.graph, held, self.blocks)
            outputs = [made.tensors[name] for name in call.graph.outputs]
            self.blocks[key] = _of_sizes(made.inputs, outputs, made.names)
        return self.blocks[key]


# ---------------------------------------------------------------------------- parts of it


@functools.lru_cache(maxsize=256)
def _shapes(graph: Graph) -> Mapping[str, tuple[Any, ...]]:
    """The shapes of the leaves; of those of a block whose sizes are its own, these put in."""
    shapes = {each.name: each.shape for each in graph.leaves}
    for call in graph.calls:
        local = call.graph.sizes_beside(graph.bound)
        inner = _shapes(call.graph)
        for each in call.graph.leaves:
            if each.kind != "input":
                shapes[call.scoped(each.name)] = tuple(put_in(length, local) for length in inner[each.name])
    return shapes


def _of_sizes(
    inputs: Sequence[Node], outputs: Sequence[Node], names: Names
) -> tuple[Function, tuple[str, ...], Names]:
    """A function whose sizes are numbered as they are met, so that blocks of other sizes are one."""
    nodes = [*inputs, *order(outputs)]
    found = dict.fromkeys(name for each in nodes for length in each.sizes for name in sorted(length.names))
    found |= dict.fromkeys(
        name for each in nodes for length in _lengths(each) for name in sorted(length.names)
    )
    sizes = {name: Size.of(f"s{n}") for n, name in enumerate(found)}
    new: dict[Node, Node] = {}
    slots = rebuilt(inputs, new, sizes=sizes)
    results = rebuilt(outputs, new, sizes=sizes)
    function = Function(tuple(slots), tuple(results), tuple(f"s{n}" for n in range(len(sizes))))
    return function, tuple(found), names.moved(new)


def _lengths(each: Node) -> Iterable[Size]:
    """The sizes that a node speaks of, besides those of its axes."""
    yield from each.shape
    for _, value in each.options:
        yield from (
            inner for inner in (value if isinstance(value, tuple) else (value,)) if isinstance(inner, Size)
        )
    waiting = [*each.result, *(entry for operand in each.operands for entry in operand.reads)]
    while waiting:
        entry = waiting.pop()
        if isinstance(entry, Gather):
            waiting += entry.reads
        else:
            yield from (entry.offset, *entry.steps)


def _whole_reads(given: Sequence[Node]) -> tuple[dict[Axis, Size], list[Operand]]:
    """Tensors that are read as they are, each along axes of its own, and the sizes of these."""
    sizes: dict[Axis, Size] = {
        (n, d): length for n, each in enumerate(given) for d, length in enumerate(each.shape)
    }
    operands = [
        Operand(each, tuple(along((n, d)) for d in range(len(each.shape)))) for n, each in enumerate(given)
    ]
    return sizes, operands


def _written(left: Left, sizes: Mapping[Any, Size]) -> tuple[Affine, ...]:
    """Where an equation writes: axes and composites."""
    return tuple(along(entry) if isinstance(entry, str) else row_major(entry, sizes) for entry in left)


def _axes_in(operands: Iterable[Operand]) -> list[Any]:
    """The axes that operands are read with."""
    return [axis for each in operands for axis in axes_of(each.reads)]


def _is_write(factor: Call, part: Contraction, left: Left) -> bool:
    """Whether a factor says where a product is written: 1 at positions of an axis that nothing else has.

    Positions that a tensor holds must be there; those of axes may reach over an end.
    """
    if factor.function != ONEHOT.name or is_scalar(factor.arguments[0]):
        return False
    (axis,), (told,) = factor.axes, factor.arguments
    having = sum(axis in free_axes(each) for each in part.factors)
    alone = axis in left and axis not in free_axes(told) and axes_of_index(tuple(left)).count(axis) == 1
    return alone and having == 1 and is_inside(factor) == (affine(told) is None)
