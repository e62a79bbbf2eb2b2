"""An interpreter of the core form: NumPy, one node after another, every read and write by index arrays.

A node is computed over the whole space of its axes; nothing of the library is used but the form itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensornet.frontend.elaborate_ir import function_of
from tensornet.graph.element_types import of_tensors
from tensornet.graph.graph import Apply, Graph
from tensornet.graph.leaves import Leaf
from tensornet.graph.shape_inference import dim_size
from tensornet.ir.function import Function, order
from tensornet.ir.node import Entries, Gather, Node, Operand
from tensornet.language.equation import Equation
from tensornet.ops.table import Element
from tensornet.scan.lowering import lower_recurrences
from tensornet.sizes import put_in, solve_size

from . import oracle
from .array_functions import ALONG, BINARY, OVER, TOLD, UNARY, recur

Arrays = dict[Node, Any]
ONE_BY_ONE = {name: np.vectorize(each, otypes=[float]) for name, each in oracle.POINTWISE.items()}
POINTWISE = {
    **ONE_BY_ONE,
    **UNARY,
    **BINARY,
    "where": np.where,
    "add": lambda *terms: sum(terms[1:], terms[0]),
}


def evaluate(function: Function, given: Sequence[Any], sizes: Mapping[str, int]) -> list[Any]:
    """The outputs of a function of arrays, where names of sizes are whole numbers."""
    values: Arrays = dict(zip(function.inputs, given, strict=True))
    with np.errstate(all="ignore"):
        for node in order(function.outputs):
            if node not in values:
                values[node] = _Space(node, values, sizes).value()
    return [values[node] for node in function.outputs]


def sizes_of(
    formulas: Sequence[Sequence[Any]], given: Sequence[Any], known: Mapping[str, int]
) -> dict[str, int]:
    """The names of sizes in the shapes of what is given, as arrays tell them."""
    found = dict(known)
    shapes = [(each, np.shape(array)) for each, array in zip(formulas, given, strict=True)]
    before = -1
    while before < len(found):
        before = len(found)
        for formula, shape in shapes:
            solved = (solve_size(put_in(size, found), n) for size, n in zip(formula, shape, strict=True))
            for name, value in filter(None, solved):
                found.setdefault(name, value)
    return found


def evaluate_body(graph: Graph, given: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """What the equations of a graph without recurrences make, one by one, and its calls along axes, by name."""
    values, elements = dict(given), of_tensors(graph)
    known = {**sizes, **{name: size for name, size in graph.sizes if isinstance(size, int)}}
    for item in graph.body:
        if not isinstance(item, Equation):
            values.update(zip(item.results, _called(item, values, known), strict=True))
            continue
        read = dict.fromkeys(ref.name for ref in item.references)
        own = {leaf.name: leaf for leaf in graph.leaves}
        leaves = [
            own.get(name) or Leaf(name, "input", graph.named[name], holds=elements[name]) for name in read
        ]
        function, _ = function_of(Graph(tuple(leaves), (item,), (item.name,), graph.sizes))
        tensors = [np.asarray(values[each.name]) for each in leaves if each.value is None]
        (values[item.name],) = evaluate(
            function, tensors, sizes_of([each.shape for each in function.inputs], tensors, known)
        )
    return values


def _called(call: Apply, values: Mapping[str, Any], known: Mapping[str, int]) -> list[Any]:
    """The results of a block, called at each position of an axis with the states that the one before left."""
    given = {leaf: values[name] for leaf, name in call.names().items() if name in values}
    along = call.along
    assert along is not None
    inputs = [leaf.name for leaf in call.graph.inputs]
    block = lower_recurrences(call.graph)  # what goes round at each position too
    states, cuts = inputs[len(along.cuts) :], dict(zip(inputs, along.cuts, strict=False))
    first = next((np.shape(given[name])[at] for name, at in cuts.items()), None)
    count = put_in(along.axis.size, known) if first is None else first
    made: list[list[Any]] = []
    for t in range(count)[:: -1 if along.back else 1]:
        now = given | {name: np.take(given[name], t, at) for name, at in cuts.items()}
        inside = evaluate_body(block, now, known)
        made.append([inside[name] for name in call.graph.outputs])
        given |= {name: made[-1][n] for name, n in zip(states, along.states, strict=False)}
    joined = call.results[: along.joined(len(call.results))]
    if not made:
        dims = dict(call.returned(known))
        return [np.zeros([put_in(dim_size(dim), known) for dim in dims[name]]) for name in joined]
    stacked = [np.stack(each[:: -1 if along.back else 1]) for each in zip(*made, strict=True)]
    return stacked[: len(joined)]


class _Space:
    """The axes of one node: each array in it has a dimension for every one of them."""

    def __init__(self, node: Node, values: Arrays, sizes: Mapping[str, int]) -> None:
        self.node, self.values, self.known = node, values, sizes
        self.sizes = [self.number(size) for size in node.sizes]
        self.shape = tuple(map(self.number, node.shape))
        self.grid = np.ogrid[tuple(slice(size) for size in self.sizes)] if self.sizes else ()

    def number(self, size: Any) -> int:
        found = put_in(size, self.known)
        assert isinstance(found, int), size
        return found

    def positions(self, entries: Entries) -> tuple[Any, ...]:
        """The positions of a map, at every place of the space."""
        found = []
        for entry in entries:
            if isinstance(entry, Gather):
                found.append(self.read(Operand(entry.node, entry.reads)).astype(int))
            else:
                terms = (self.grid[axis] * self.number(step) for axis, step in entry.terms)
                found.append(sum(terms, np.array(self.number(entry.offset)).reshape((1,) * len(self.sizes))))
        return tuple(found)

    def read(self, operand: Operand) -> Any:
        array = np.asarray(self.values[operand.node])
        at = self.positions(operand.reads)
        for each, size in zip(at, array.shape, strict=True):
            assert each.size == 0 or (each.min() >= 0 and each.max() < size), (self.node, operand)
        return array[at] if at else array.reshape((1,) * len(self.sizes))

    def write(self, array: Any, fill: Any = 0) -> Any:
        """What is written at each position of the result, added up; beyond its ends nothing is."""
        array, *at = np.broadcast_arrays(array, *self.positions(self.node.result))
        inside, flat = np.ones(array.shape, bool), np.zeros(array.shape, int)
        for each, size in zip(at, self.shape, strict=True):
            inside = inside & (each >= 0) & (each < size)
            flat = flat * size + each
        written = np.full(math.prod(self.shape), fill, np.result_type(array, fill))
        written[flat[inside]] = 0
        np.add.at(written, flat[inside], array[inside])
        return written.reshape(self.shape)

    def value(self) -> Any:
        node, told = self.node, self.node.attributes
        match node.op:
            case "number":
                return np.asarray(told["value"])
            case "size":
                return np.asarray(self.number(told["size"]))
            case "index":
                return np.arange(*self.shape)
            case "constant":
                return told["value"].array()
        operands = [self.read(each) for each in node.operands]
        counted = [each.astype(int) if each.dtype == bool else each for each in operands]
        match node.op:
            case "contract":
                return self.write(np.broadcast_to(math.prod(counted), self.sizes))
            case "copy" if "fill" in told:
                return self.write(counted[0], np.asarray(self.values[told["fill"]]))
            case "copy":
                return self.write(operands[0])
        options = {name: self.values[value] for name, value in node.options if name not in ("draw", "inside")}
        if node.op in ("where", "equal", "not_equal"):
            return self.write(np.asarray(POINTWISE[node.op](*operands)))
        if node.op in POINTWISE:
            return self.typed(POINTWISE[node.op](*counted, **options))
        return self.typed(self.along(counted, options))

    def typed(self, array: Any) -> Any:
        kind = {Element.TRUTH: bool}.get(
            self.node.element,
            int if self.node.element.is_exact and self.node.element < Element.WIDE else float,
        )
        return self.write(np.asarray(array).astype(kind))

    def along(self, operands: list[Any], options: Mapping[str, Any]) -> Any:
        """A function along axes, which its value has too, 1 long where it leaves them out."""
        node, over = self.node, self.node.over
        if node.op == "onehot":
            return operands[0] == self.grid[over[0]]
        if node.op == "roll":
            shifts = [int(options[f"shift{n}"]) for n in range(len(over))]
            return np.roll(self.full(operands[0], over), shifts, over)
        if node.op in ("concat", "stack"):
            joined, *pieces = over
            parts = [
                np.swapaxes(self.full(each, (piece,)), piece, joined)
                for each, piece in zip(operands, pieces, strict=True)
            ]
            return np.concatenate(self.alike(parts, joined), joined)
        if node.op == "recur":
            moved = [np.moveaxis(self.full(each, over), over[0], -1) for each in operands]
            return np.moveaxis(recur(*moved, **options), -1, over[0])
        array = self.full(operands[0], over[:1] if node.op == "top" else over)
        if node.op == "top":
            order_ = np.swapaxes(TOLD["top"](array, axis=over[0]), over[0], over[1])
            return np.take(order_, range(self.sizes[over[1]]), over[1])
        if node.op in TOLD:
            found = TOLD[node.op](array, axis=over[0])
            return found if found.ndim == array.ndim else np.expand_dims(found, over[0])
        if node.op in OVER:
            return np.expand_dims(OVER[node.op](array, axis=over), over)
        return ALONG[node.op](array, over, **options)

    def full(self, array: Any, axes: Sequence[int]) -> Any:
        """An array that has all positions of some axes."""
        shape = [self.sizes[n] if n in axes else size for n, size in enumerate(array.shape)]
        return np.broadcast_to(array, shape)

    def alike(self, parts: Sequence[Any], joined: int) -> list[Any]:
        """Arrays that have the same positions but along one axis."""
        shape = np.broadcast_shapes(*((*each.shape[:joined], 1, *each.shape[joined + 1 :]) for each in parts))
        return [
            np.broadcast_to(each, (*shape[:joined], each.shape[joined], *shape[joined + 1 :]))
            for each in parts
        ]
