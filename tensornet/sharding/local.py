"""The graph that each device runs: the nodes at local sizes, with collectives between them."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..graph.graph import Apply, Graph
from ..graph.leaves import Leaf, scoped
from ..graph.shape_inference import Axis, Dim
from ..ir.equations import again
from ..ir.naming import graph_of
from ..ir.node import (
    Affine,
    Function,
    Gather,
    Names,
    Node,
    Operand,
    along,
    cast,
    entry_over,
    index,
    leaf,
    node,
    number,
    order,
    rebuilt,
    row_major,
)
from ..ir.positions import applied
from ..language.expression import Taken
from ..ops.collectives import COLLECTIVES, MESH
from ..ops.table import CONVERSIONS, FUNCTIONS
from ..scan.cut import put_together
from .mesh import Mesh, Move, Placement, divisors, local_shape, route
from .part import Part, with_axis
from .rules import ShardingStrategy, operands_of, tensors_of
from .search import Variable


class Local(NamedTuple):
    """The graph that each device runs, and the placements of its leaves by name."""

    graph: Graph
    places: Mapping[str, Placement]


def local_graph(part: Part, chosen: Mapping[Variable, int]) -> Local:
    """The graph that each device runs, given a choice for each variable of a part."""
    made = _Builder(part, chosen)
    return Local(made.graph(), made.places)


_DRAWN = {row.drawn for row in FUNCTIONS.values() if row.drawn}
"""The functions of a mask that a random function draws."""


class _Builder:
    """A local graph under construction.

    Attributes:
        new: the local nodes.
        sent: the tensors in other placements than that in which they are computed.
        outputs: the local nodes that calls and results need, by name.
        placed: the names of tensors in a placement.
    """

    def __init__(self, part: Part, chosen: Mapping[Variable, int]) -> None:
        self.part, self.chosen, self.mesh = part, chosen, part.mesh
        self.new: dict[Node, Node] = {}
        self.sent: dict[tuple[Node, Placement], Node] = {}
        self.outputs: dict[str, Node] = {}
        self.placed: dict[tuple[str, Placement], str] = {}
        self.taken = Taken({*part.graph.named, *(leaf.name for leaf in part.graph.leaves)})
        self.calls = [self._inside(k) for k in range(len(part.calls))]
        self.places = {each.name: self._leaf(each) for each in part.graph.leaves}
        self.leaves = [
            replace(each, dims=self._dims(part.dims(each.name), self.places[each.name]))
            for each in part.graph.leaves
        ]
        results = (name for call in part.graph.calls for name in call.results)
        self.named = {part.nodes[name]: name for name in (*self.places, *results)}
        self.given: list[Leaf] = []
        self.inputs: list[Node] = []

    def place(self, each: Node) -> Placement:
        """The placement in which a tensor is computed, or given."""
        return self.part.outs(each)[self.chosen.get(each, 0)]

    # ---- blocks

    def _inside(self, k: int) -> Local:
        """The local graph of a block."""
        part, call = self.part.calls[k], self.part.graph.calls[k]
        names: dict[Variable, Variable] = {
            ("out", output): self.part.nodes[result] for output, result in reversed([*call.made])
        }
        pairs = ((each, names.get(each, (k, each))) for each in part.inside)
        given = {each: self.chosen[there] for each, there in pairs if there in self.chosen}
        chosen = part.solved.choices(given) if part.is_solved else given
        return _built(part, tuple(chosen.items()))

    def _leaf(self, leaf: Leaf) -> Placement:
        """The placement of a leaf; one of a block has that which it has there."""
        node = self.part.nodes[leaf.name]
        if node in self.part.choices:
            return self.place(node)
        return next(
            inner.places[name]
            for call, inner in zip(self.part.graph.calls, self.calls, strict=True)
            for name in inner.places
            if scoped(call.scope, name) == leaf.name
            and name in {each.name for each in call.graph.leaves if each.kind != "input"}
        )

    def _dims(self, dims: Sequence[Dim], place: Placement) -> tuple[Dim, ...]:
        parts = divisors(place, self.mesh.shape, len(dims))
        return tuple(
            (Axis(dim[0].name, dim[0].size // n), *dim[1:]) for dim, n in zip(dims, parts, strict=True)
        )

    # ---- nodes

    def graph(self) -> Graph:
        """The graph."""
        part, graph = self.part, self.part.graph
        leaves = {each.name: each for each in self.leaves}
        for each in part.program.nodes:
            if each.op == "input":
                self._receive(each, self.named[each])
            elif each.op == "constant" or each.is_scalar or each.op == "index":
                self.new[each] = each
                self.given += [leaves[self.named[each]]] if each in self.named else []
            else:
                self.new[each] = self._node(each)
        calls = [self._call(k, call) for k, call in enumerate(graph.calls)]
        results = tuple(
            self._named(name, part.choices["out", name][self.chosen["out", name]]) for name in graph.outputs
        )
        if not self.outputs:
            return Graph(tuple(self.leaves), tuple(calls), results)
        made = self._program()
        body = put_together([*made.own, *calls])
        return Graph((*self.leaves, *self._added(made)), tuple(body), results, made.sizes)

    def _receive(self, each: Node, name: str) -> None:
        """A leaf, or the result of a call, as an input of the equations."""
        dims = self._dims(self.part.dims(name), self.place(each))
        shape = local_shape(each.shape, self.place(each), self.mesh.shape)
        self.new[each] = leaf("input", shape, each.element, n=len(self.given))
        self.given.append(Leaf(name, "input", dims, holds=each.element))
        self.inputs.append(self.new[each])

    def _added(self, made: Graph) -> list[Leaf]:
        known = {each.name for each in self.leaves} | {
            name for call in self.part.graph.calls for name in call.results
        }
        return [each for each in made.leaves if each.name not in known]

    def _program(self) -> Graph:
        """The equations as a graph."""
        names = self.part.program.names
        tensors = {self.new[each]: name for each, name in names.tensors.items() if each in self.new}
        tensors |= {each: name for name, each in self.outputs.items() if each not in tensors}
        axes = {self.new[each]: found for each, found in names.axes.items() if each in self.new}
        function = Function(tuple(self.inputs), tuple(self.outputs.values()))
        return graph_of(function, Names(tuple(self.given), tuple(self.outputs), (), tensors, axes))

    def _call(self, k: int, call: Apply) -> Apply:
        """A call of a local block, on operands in the placements that it needs."""
        part, cuts = self.part.calls[k], call.along.cuts if call.along is not None else ()
        operands: list[str] = []
        for at, (leaf_, name) in enumerate(zip(call.graph.inputs, call.operands, strict=True)):
            inside = part.nodes[leaf_.name]
            place = part.choices[inside][self.chosen.get((k, inside), 0)]
            if at < len(cuts):
                place = with_axis(place, cuts[at])
            operands.append(self._named(name, place))
        return replace(call, graph=self.calls[k].graph, operands=tuple(operands))

    def _named(self, name: str, place: Placement) -> str:
        """The name of a tensor in a placement, which is computed if need be."""
        each = self.part.nodes[name]
        if (name, place) not in self.placed:
            raw = place == self.place(each)
            is_given = raw and each in self.named
            known = self.named.get(each, name) if raw else self.taken.fresh(f"{name}.sent")
            self.placed[name, place] = known
            if not is_given:
                if each not in self.new:  # it goes from call to call
                    self._receive(each, self.named[each])
                self.outputs[known] = self._sent(each, place)
        return self.placed[name, place]

    def _sent(self, each: Node, place: Placement) -> Node:
        """A tensor in another placement."""
        if (each, place) not in self.sent:
            made = self.new[each]
            moves = route(self.place(each), place)
            assert moves is not None
            for move in moves:
                made = _moved(made, move, self.mesh)
            self.sent[each, place] = made
        return self.sent[each, place]

    def _node(self, each: Node) -> Node:
        """A node at its local sizes, with its operands in the placements that it needs."""
        strategy: ShardingStrategy = self.part.choices[each][self.chosen[each]]
        if each.op in _DRAWN:
            self._draw_after(each, strategy)
        divided = [division.axis for division in strategy.divisions]
        sizes = [
            size // math.prod(n for n, other in zip(self.mesh.shape, divided, strict=True) if other == axis)
            for axis, size in enumerate(each.sizes)
        ]
        needs = {child: strategy.need(k) for k, (child, _) in enumerate(operands_of(each))}
        # an operand that is read twice may be needed in two placements
        places = iter([strategy.need(k) for k in range(len(operands_of(each)))])
        operands = [
            Operand(child if child.is_scalar else self._sent(child, next(places)), reads)
            for child, reads in each.operands
        ]
        held = {child: self._sent(child, needs[child]) for child, _ in operands_of(each)[tensors_of(each) :]}
        operands = [
            Operand(_flat(child, reads), tuple(entry_over(entry, held) for entry in reads))
            for child, reads in operands
        ]
        result = tuple(entry_over(entry, held) for entry in each.result)
        self._tables(each, strategy, sizes, operands)
        shape = local_shape(each.shape, strategy.out, self.mesh.shape)
        options = tuple((n, self.new.get(v, v) if isinstance(v, Node) else v) for n, v in each.options)
        return node(each.op, sizes, operands, result, shape, each.over, options, each.element)

    def _draw_after(self, each: Node, strategy: ShardingStrategy) -> None:
        """Lets the mask of a random function be drawn after its operand is known, as on one device."""
        mask, (child, _) = each.operands[0].node, each.operands[1]
        below = order([self.new[mask]])
        if not any(old.function.random for old in below):
            return
        first = Operand(self._sent(child, strategy.need(1)), (Affine(),) * len(child.shape))
        known = applied("greater_equal", [first, Operand(number(0))], ())
        always = applied("logical_or", [known, applied("logical_not", [known], ())], ())
        one = next(old for old in below if old.is_scalar and old.op in CONVERSIONS.values())
        new = {one: cast(always.node, one.element)}
        (self.new[mask],) = rebuilt([self.new[mask]], new)

    def _tables(
        self, each: Node, strategy: ShardingStrategy, sizes: Sequence[int], operands: list[Operand]
    ) -> None:
        """Puts 0 into `operands` in place of the rows of a divided table that are on other devices."""
        divided = [(n, each_.table) for n, each_ in enumerate(strategy.divisions) if each_.table is not None]
        if not divided:
            return
        k, d = divided[0][1]
        at = [m for m, (child, _) in enumerate(each.operands) if not child.is_scalar][k]
        child, reads = operands[at]
        entry = reads[d]
        assert isinstance(entry, Gather)
        safe, elsewhere = _own_rows(entry, child.shape[d], [n for n, _ in divided], self.mesh, sizes)
        row = Operand(child, (*reads[:d], safe, *reads[d + 1 :]))
        operands[at] = applied("where", [elsewhere, Operand(number(0)), row], sizes)


@functools.lru_cache(maxsize=256)
def _built(part: Part, chosen: tuple[tuple[Variable, int], ...]) -> Local:
    """The local graph of a block, the same for equal choices."""
    return local_graph(part, dict(chosen))


def _flat(each: Node, reads: Sequence[Affine | Gather]) -> Node:
    """A tensor after collectives, as a tensor of its own if a reader splits one of its dimensions in another way."""
    pairs = zip(each.dims, reads, strict=True)
    splits = (
        axes and len(axes) > 1 and isinstance(read, Affine) and read.axis is None for axes, read in pairs
    )
    return again(each) if each.op in COLLECTIVES and any(splits) else each


def _moved(each: Node, move: Move, mesh: Mesh) -> Node:
    """A tensor after a collective."""
    own = [along(d) for d in range(len(each.shape))]
    sizes: dict[Any, Any] = dict(enumerate(each.shape)) | {"r": mesh.shape[move.axis]}
    read, written, over = list(own), list(own), ["r"]
    n = mesh.shape[move.axis]
    if move.name in ("shard", "reduce_scatter"):
        assert move.dim is not None
        sizes[move.dim] //= n
        read[move.dim] = row_major(("r", move.dim), sizes)
    elif move.name == "all_to_all":
        assert move.dim is not None
        assert move.other is not None
        sizes[move.other] //= n
        read[move.other] = row_major(("r", move.other), sizes)
        written[move.dim] = row_major(("r", move.dim), sizes)
    elif move.dim is not None:
        written[move.dim] = row_major(("r", move.dim), sizes)
    else:
        over = []
    options = ((MESH, number(move.axis)),)
    return node(move.name, sizes, [Operand(each, tuple(read))], tuple(written), None, over, options)


def _own_rows(
    entry: Gather, length: int, axes: Sequence[int], mesh: Mesh, sizes: Sequence[int]
) -> tuple[Gather, Operand]:
    """The positions of a gather among the rows of the device, 0 for rows elsewhere; and where they are elsewhere.

    A position outside of the whole table is outside of the device's rows too, where it is an error as on one device.
    """
    first, before = [], length
    for axis in reversed(axes):
        rank = _moved(index(mesh.shape[axis]), Move("shard", axis, 0), mesh)
        first.append(
            Operand(node("contract", {}, [Operand(number(-before)), Operand(rank, (Affine(),))], ()))
        )
        before *= mesh.shape[axis]
    told = Operand(entry.node, entry.reads)
    moved = applied("add", [told, *first], sizes)
    other = applied("logical_not", [_is_among(moved, length, sizes)], sizes)
    elsewhere = applied("logical_and", [_is_among(told, before, sizes), other], sizes)
    safe = applied("where", [elsewhere, Operand(number(0)), moved], sizes)
    return Gather(*safe), elsewhere


def _is_among(positions: Operand, length: int, sizes: Sequence[int]) -> Operand:
    """Whether positions are among so many."""
    low = applied("greater_equal", [positions, Operand(number(0))], sizes)
    return applied(
        "logical_and", [low, applied("greater", [Operand(number(length)), positions], sizes)], sizes
    )
