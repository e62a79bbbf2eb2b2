"""Elaboration of graphs to the core form: functions of numbered axes, and their names.

    x[b,i] * W[o,i] + c[o]        add(contract(x[0,2], W[1,2]) [0,1], c[1])

A graph without recurrences is one function; `scan.cut` cuts other graphs at these. A scatter becomes a product that
is written at positions. A crop or a padding becomes a copy.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ..graph.element_types import holding, of_leaves, of_number
from ..graph.graph import Apply, Graph
from ..graph.leaves import Leaf
from ..graph.recurrences import is_step, read_later
from ..graph.shape_inference import Scope, dim_size, scalar_size, size_expression
from ..ir.equations import scalar_expression
from ..ir.node import (
    Affine,
    Axis,
    Entries,
    Function,
    Gather,
    Names,
    Node,
    Operand,
    Size,
    along,
    axes_of,
    index,
    items,
    leaf,
    met_axes,
    node,
    number,
    row_major,
    size,
    substitute,
)
from ..language import expression
from ..language.affine import affine
from ..language.equation import Equation
from ..language.expression import Call, Contraction, Expression, Index, Literal, Ref, axes_of_index
from ..ops.along_axes import PREVIOUS
from ..ops.record import Left
from ..ops.structure import CONCAT, INDEX, INSIDE, ONEHOT, PAD, REPEAT, amounts_in, is_inside
from ..ops.table import FUNCTIONS, Element
from ..sizes import evaluate, larger, product, put_in, smaller, symbol


def function_of(graph: Graph) -> tuple[Function, Names]:
    """The function of a graph without recurrences, and its names.

    Sizes with an integer value stay names. Sizes with a formula are replaced by it.
    """
    expressions = Expressions(graph)
    inputs, tensors = elaborated(expressions, graph.leaves, of_leaves(graph), graph.body)
    outputs = tuple(expressions.tensors[name] for name in graph.outputs)
    names = Names(graph.leaves, graph.outputs, graph.sizes, tensors, expressions.axes)
    return Function(inputs, outputs, size_arguments(graph)), names


def elaborated(
    expressions: Expressions,
    leaves: Sequence[Leaf],
    elements: Mapping[str, Element],
    body: Iterable[Equation | Apply],
    shapes: Mapping[str, tuple[Any, ...]] = {},
) -> tuple[tuple[Node, ...], dict[Node, str]]:
    """Elaborates equations and calls in order; `expressions.tensors` then has the node of each tensor.

    Args:
        expressions: elaborates their right sides.
        leaves: the tensors that they read.
        elements: the element types of these.
        body: the equations and calls.
        shapes: the shapes of leaves that are declared in the sizes of another graph.

    Returns:
        The nodes of the leaves without a value, and the names of constants and of all tensors that are defined.
    """
    inputs, names = list[Node](), dict[Node, str]()
    for n, each in enumerate(leaves):
        shape, element = [*map(expressions.size, shapes.get(each.name, each.shape))], elements[each.name]
        if each.value is None:
            given = leaf("input", shape, element, n=n)
            inputs.append(given)
        else:
            given = leaf("constant", shape, element, value=each.value)
            names[given] = each.name
        expressions.tensors[each.name] = given
    for item in body:
        made = expressions.call(item) if isinstance(item, Apply) else [expressions.define(item)]
        for result, name in zip(made, item.defines, strict=True):
            names.setdefault(result, name)
    return tuple(inputs), names


@functools.lru_cache(maxsize=1024)
def of_tensors(graph: Graph) -> Mapping[str, Element]:
    """The element types of the tensors of the graph itself, and of the results of its calls.

    Those of tensors that are read before they are defined, in recurrences, are the lowest that agree.
    """
    known = of_leaves(graph)
    later = dict.fromkeys(read_later(graph.body, known), Element.TRUTH)
    while True:
        expressions = Expressions(graph)
        for name, element in later.items():
            shape = [expressions.size(dim_size(dim)) for dim in graph.named[name]]
            expressions.tensors[name] = leaf("input", shape, element, n=name)
        elaborated(expressions, graph.leaves, known, graph.body)
        found = {name: each.element for name, each in expressions.tensors.items()}
        if all(found[name] is element for name, element in later.items()):
            return MappingProxyType(found)
        later = {name: found[name] for name in later}


def size_arguments(graph: Graph) -> tuple[str, ...]:
    """The names of the sizes that the function of a graph uses."""
    whole = (name for name, value in graph.sizes if isinstance(value, int))
    return tuple(dict.fromkeys((*graph.open_sizes, *whole)))


# ---------------------------------------------------------------------------- expressions


class Expressions:
    """Converts expressions of a graph to nodes; without a graph, an axis has the same size everywhere.

    Attributes:
        graph: the graph, if there is one.
        tensors: the nodes, by the names of tensors.
        reads: the operands of references that do not name a tensor.
        axes: the names of the axes of nodes.
        draws: numbers for random operations, so that no two draws are the same node.
    """

    def __init__(self, graph: Graph | None, draws: int = 0) -> None:
        self.graph = graph
        sizes = graph.sizes if graph is not None else ()
        formulas = {name: value for name, value in sizes if not isinstance(value, int)}
        self.formulas = {name: evaluate(symbol(name), formulas) for name in formulas}
        self.tensors: dict[str, Node] = {}
        self.reads: dict[Ref, Operand] = {}
        self.axes: dict[Node, tuple[str, ...]] = {}
        self.draws = itertools.count(draws)

    def size(self, length: Any) -> Size:
        """A size with the graph's formulas put in."""
        return put_in(length, self.formulas)

    def define(self, equation: Equation) -> Node:
        """Converts an equation of the graph, which defines a tensor."""
        assert self.graph is not None
        made = self.value(equation.right, equation.left, self.graph.scope(equation))
        self.tensors[equation.name] = made
        return made

    def call(self, call: Apply) -> list[Node]:
        """Converts a call of the graph to its results."""
        assert self.graph is not None
        named, operands = self.graph.named, {leaf: self.tensors[name] for leaf, name in call.names().items()}
        shapes = [[self.size(dim_size(dim)) for dim in named[name]] for name in call.results]
        inside = of_tensors(holding(call.graph, {name: each.element for name, each in operands.items()}))
        made = items(call, [*operands.values()], shapes, [inside[output] for output, _ in call.made])
        self.tensors.update(zip(call.results, made, strict=True))
        return made

    def value(self, part: Expression, left: Left, scope: Scope) -> Node:
        """Converts an expression to a node.

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
                if all(each == Literal(0) for _, each in amounts_in(part)):
                    return self.value(part.arguments[0], left, scope.inside(part))
                return self._padded(part, left, scope)
            case Call() if is_step(part):
                return self.value(moved(part), left, scope)
            case Call(_, arguments) if not part.is_scalar:
                function = FUNCTIONS[part.function]
                if function.one_by_one and len(part.axes) > 1:
                    inner = replace(part, axes=part.axes[:1])
                    return self.value(replace(part, arguments=(inner,), axes=part.axes[1:]), left, scope)
                if function.axes == "joined":
                    return self._joined(part, left, scope)
                over = (*part.axes, *(name for name, _ in part.options if name in part.option_axes))
                told = (
                    (f"shift{over.index(name)}" if name in over else name, each)
                    for name, (each,) in part.options
                )
                options: tuple[tuple[str, Any], ...] = tuple(
                    (n, self.scalar(each, scope)) for n, each in told
                )
                if function.random or function.trains:
                    options += (("draw", next(self.draws)),)
                return self._made(part.function, arguments, left, scope.inside(part), over, options)
        return self._made("copy", (part,), left, scope)

    def part(self, part: Expression, scope: Scope) -> Operand:
        """Converts a part of an expression to an operand."""
        if part.is_scalar:
            return Operand(self.scalar(part, scope))
        match part:
            case Ref() if part in self.reads:
                return self.reads[part]
            case Ref(name, entries):
                read = self.tensors[name]
                pairs = zip(entries, read.shape, strict=True)
                return Operand(read, tuple(self._entry(entry, length, scope) for entry, length in pairs))
            case Call(INDEX.name, (), (axis,)):
                return Operand(index(self.size(scope[axis])), (along(axis),))
        axes = part.free_axes
        return Operand(self.value(part, axes, scope), tuple(map(along, axes)))

    def scalar(self, part: Expression, scope: Scope) -> Node:
        """Converts a number that consists of literals and sizes."""
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
        """The node of an operation on parts of an expression."""
        operands = [self.part(each, scope) for each in parts]
        axes = [*axes_of_index(left), *over, *_axes_in(operands)]
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
        """Builds a node, and keeps the names of its axes."""
        made = node(op, sizes, operands, result, shape, over, options)
        met = met_axes(operands, result, over)
        if made.op == op and len(met) == len(made.sizes):
            self.axes.setdefault(made, tuple(str(axis) for axis in met))
        return made

    # ---- positions

    def _entry(self, entry: Index, length: Size, scope: Scope) -> Affine | Gather:
        """Converts an entry of brackets for a dimension of this length."""
        match entry:
            case str():
                return along(entry)
            case int():
                return Affine((), length + entry if entry < 0 else entry)
            case tuple():
                return row_major(entry, {axis: self.size(scope[axis]) for axis in entry})
        return self._position(entry, scope)

    def _position(self, told: Expression, scope: Scope) -> Affine | Gather:
        """Converts an expression of positions: a sum of axes, or a tensor that holds them."""
        if told.is_scalar:
            return Affine((), self._amount(told, scope))
        found = affine(told)
        if found is None:
            return Gather(*self.part(told, scope))
        steps = ((axis, self._amount(step, scope)) for axis, step in found.steps)
        return Affine(
            tuple((axis, step) for axis, step in steps if step != 0), self._amount(found.offset, scope)
        )

    def _amount(self, told: Expression, scope: Scope) -> Size:
        """Converts a scalar expression to a number of positions."""
        return self.size(scalar_size(told, scope))

    # ---- products

    def _product(self, part: Contraction, left: Left, scope: Scope) -> Node:
        """A product that is written at the positions of its one-hot factors: a scatter."""
        scope = scope.inside(part)
        hot = [each for each in part.factors if isinstance(each, Call) and _is_write(each, part, left)]
        operands = [self.part(each, scope) for each in part.factors if each not in hot]
        places = {each.axes[0]: self._position(each.arguments[0], scope) for each in hot}
        read = {*_axes_in(operands), *axes_of(tuple(places.values()))}
        unread = tuple(axis for axis in part.summed if axis not in read)
        axes = [*axes_of_index(left), *read, *unread]
        sizes = {axis: self.size(scope[str(axis)]) for axis in axes}
        written = _written(left, sizes)
        shape = [product(sizes[axis] for axis in entry.axes) for entry in written]
        result = tuple(places.get(str(entry.axis), entry) for entry in written)
        return self._node("contract", sizes, operands, result, shape, unread)

    # ---- operations that move elements

    def _whole(self, part: Expression, scope: Scope) -> Operand:
        """Converts a part that is read along distinct axes only; any other part is copied."""
        index = part.index if isinstance(part, Ref) else (0,)
        if all(isinstance(entry, str) for entry in index) and len({*index}) == len(index):
            return self.part(part, scope)
        axes = part.free_axes
        return Operand(self.value(part, axes, scope), tuple(map(along, axes)))

    def _padded(self, part: Call, left: Left, scope: Scope) -> Node:
        """A crop or a padding: a copy of the kept elements, and a fill value elsewhere."""
        amounts = {name: values for name, values in part.options if len(values) > 1}
        told = {name: values for name, values in part.options if len(values) == 1}
        inside = scope.inside(part)
        operand = self._whole(part.arguments[0], inside)
        sizes: dict[Axis, Size] = {}
        read: dict[Axis, Affine] = {}
        written: list[Affine] = []
        shape: list[Size] = []
        axes = operand.axes
        for axis, length in zip(axes, operand.node.shape, strict=True):
            given = amounts.get(str(axis), (Literal(0), Literal(0)))
            before, after = (self._amount(each, inside) for each in given)
            sizes[axis] = length + smaller(before, 0) + smaller(after, 0)
            read[axis] = Affine(((axis, 1),), larger(-before, 0))
            written.append(Affine(((axis, 1),), larger(before, 0)))
            shape.append(length + before + after)
        fill = self.scalar(told.get("value", (Literal(0),))[0], scope)
        options = (("fill", fill), *([(INSIDE, number(1))] if is_inside(part) else []))
        moved = [Operand(operand.node, substitute(operand.reads, read))]
        made = self._node("copy", sizes, moved, tuple(written), shape, options=options)
        lengths = dict(zip(axes, shape, strict=True))
        return self._node("copy", lengths, [Operand(made, tuple(map(along, axes)))], _written(left, lengths))

    def _joined(self, part: Call, left: Left, scope: Scope) -> Node:
        """Joins operands along an axis: `over` holds the axis of the result, and that of each operand."""
        (joined,) = part.axes
        operands: list[Operand] = []
        pieces: dict[Axis, Size] = {}
        for n, argument in enumerate(part.arguments):
            has = joined in argument.free_axes
            read = self._whole(argument, scope.inside(part, n)) if has else self.part(argument, scope)
            pieces[joined, n] = read.node.shape[read.axes.index(joined)] if has else 1
            table = {axis: along((joined, n) if axis == joined else axis) for axis in read.axes}
            operands.append(Operand(read.node, substitute(read.reads, table)))
        axes = [*axes_of_index(left), *(axis for axis in _axes_in(operands) if axis not in pieces)]
        sizes = {axis: self.size(scope[str(axis)]) for axis in axes} | pieces
        sizes[joined] = sum(pieces.values())
        return self._node(part.function, sizes, operands, _written(left, sizes), over=(joined, *pieces))


# ---------------------------------------------------------------------------- helpers


def moved(step: Call) -> Expression:
    """A step at all positions at once: its operand with the start on one side, cropped on the other."""
    operand, *starts = step.arguments
    ahead = 1 if step.function == PREVIOUS.name else -1
    (axis,) = step.axes
    if not starts or starts[0].is_scalar:
        fill = (("value", (starts[0],)),) if starts else ()
        return Call(PAD.name, (operand,), (), ((axis, (Literal(ahead), Literal(-ahead))), *fill))
    parts = (*starts, operand) if ahead > 0 else (operand, *starts)
    amounts = (Literal(min(ahead, 0)), Literal(min(-ahead, 0)))
    return Call(PAD.name, (Call(CONCAT.name, parts, (axis,), place=step.place),), (), ((axis, amounts),))


def _written(left: Left, sizes: Mapping[Any, Size]) -> tuple[Affine, ...]:
    """The positions that an equation writes: axes and composites."""
    return tuple(along(entry) if isinstance(entry, str) else row_major(entry, sizes) for entry in left)


def _axes_in(operands: Iterable[Operand]) -> list[Any]:
    """The axes that operands are read along."""
    return [axis for each in operands for axis in each.axes]


def _is_write(factor: Call, part: Contraction, left: Left) -> bool:
    """Whether a one-hot factor says where a product is written, along an axis that no other factor has.

    Positions that a tensor holds must be inside the axis. Affine positions may reach past an end.
    """
    if factor.function != ONEHOT.name or factor.arguments[0].is_scalar:
        return False
    (axis,), (told,) = factor.axes, factor.arguments
    having = sum(axis in each.free_axes for each in part.factors)
    alone = axis in left and axis not in told.free_axes and axes_of_index(left).count(axis) == 1
    return alone and having == 1 and is_inside(factor) == (affine(told) is None)


# ---------------------------------------------------------------------------- rules of records


class NodeRule(Expressions):
    """Converts a rule to a node in terms of the axes of another.

    Attributes:
        each: the node whose operands the rule is about.
        over: the names of the axes that it runs over.
    """

    def __init__(self, each: Node) -> None:
        super().__init__(None)
        self.each, self.over = each, self.named(each.over)

    def named(self, axes: Iterable[int]) -> tuple[str, ...]:
        """The names of some axes of the node."""
        return tuple(f"@{axis}" for axis in axes)

    def ref(self, name: str, operand: Operand) -> Expression:
        """An operand as an expression: a number, or a reference of some name."""
        if operand.node.is_scalar:
            return scalar_expression(operand.node)
        axes = dict.fromkeys(operand.axes)
        found, table = Ref(name, self.named(axes)), {axis: along(f"@{axis}") for axis in axes}
        self.reads[found] = Operand(operand.node, substitute(operand.reads, table))
        return found

    @property
    def count(self) -> Expression:
        """The number of positions that the node runs over."""
        return size_expression(product(self.each.sizes[axis] for axis in self.each.over))

    def operand(self, rule: Expression) -> Operand:
        """The node of a rule as an operand of the other node, along the axes that the rule has."""
        axes = [axis for axis in range(len(self.each.sizes)) if f"@{axis}" in rule.free_axes]
        return Operand(self.made(rule, self.named(axes)), tuple(map(along, axes)))

    def made(self, rule: Expression, left: Left) -> Node:
        """The node of a rule, written along some axes."""
        sizes = {f"@{axis}": size for axis, size in enumerate(self.each.sizes)}
        return self.value(rule, left, Scope(sizes))
