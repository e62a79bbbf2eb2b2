"""Rewriting of programs: replaces nodes by others, either always or only where a cost says that it pays."""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..graph.shape_inference import Axis as NamedAxis
from ..ops.table import FUNCTIONS
from ..ops.table import Function as FunctionRecord
from ..sizes import evaluate, put_in, size_names
from .equations import LEAVES, is_position_operand
from .naming import graph_of
from .node import (
    Function,
    Names,
    Node,
    Size,
    has_positions,
    leaf,
    order,
    over_others,
    rebuilt,
    runs_outermost,
)

Cost: TypeAlias = "Callable[..., float]"
"""The expected seconds of a program. With a limit as second argument, what exceeds it may be any larger number."""


@dataclass(frozen=True)
class PassContext:
    """The context of the passes while a graph is planned.

    Attributes:
        cost: the expected seconds of a part of the graph.
        supported: the optional operations that the backend has; empty if nothing will run.
        kernels: the kernels that compute several equations.
        values: every open size.
        sums: whether the working element type can hold long sums.
        real: whether there are no complex numbers.
    """

    cost: Cost
    supported: Collection[str] = ()
    kernels: Sequence[FunctionRecord] = ()
    values: Mapping[str, int] = field(default_factory=dict)
    sums: bool = True
    real: bool = True


class Facts(NamedTuple):
    """The facts about a program that rules use.

    Attributes:
        readers: how often each node is read; a result is read once more.
        same: whether two sizes are equal, given the known values of sizes.
    """

    readers: Mapping[Node, int]
    same: Callable[[Size, Size], bool]


LEAST = 0.1
"""The share of the time of the replaced nodes that a change must save: the seconds are estimates, and the functions of
libraries match the form that people write."""


@dataclass(frozen=True)
class Change:
    """A possible replacement of a node by another of the same value.

    Attributes:
        old, new: both nodes.
        is_due: whether the old one must be replaced, however long the new one takes.
        least: the share of its time that the change must save.
        with_readers: whether its readers, which decide its best layout, are priced with it.
        with_operands: whether the nodes that compute its operands are priced too, if only it reads these.
        axes: the names of the axes of new nodes, where these have names.
    """

    old: Node
    new: Node
    is_due: bool = False
    least: float = LEAST
    with_readers: bool = False
    with_operands: bool = False
    axes: Mapping[Node, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Program:
    """A function and the names of its parts."""

    function: Function
    names: Names

    def __hash__(self) -> int:
        return hash(self.function)

    @functools.cached_property
    def graph(self) -> Graph:
        """Its graph of equations."""
        return graph_of(self.function, self.names)

    @functools.cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that its results need, each after those that it reads."""
        return tuple(order(self.function.outputs))

    @functools.cached_property
    def present(self) -> frozenset[Node]:
        """The same nodes as a set."""
        return frozenset(self.nodes)

    @functools.cached_property
    def readers(self) -> Mapping[Node, int]:
        """How often each of its nodes is read."""
        return Counter([*self.function.outputs, *(each for node in self.nodes for each in node.children)])

    @functools.cached_property
    def features(self) -> frozenset[str]:
        """What passes look for: its operations; "function" for any of the language, "products" for several
        contractions and kernels, "position" for a read or a result that is not along one whole axis a dimension,
        "outermost" for a function, or a sum of one tensor, along the first axis that it reads, and "several" for a
        function that keeps several axes which it runs along.
        """
        found = {each.op for each in self.nodes}
        found |= {"function"} if not found.isdisjoint(FUNCTIONS) else set()
        found |= (
            {"products"}
            if sum(each.op == "contract" or each.function.is_kernel for each in self.nodes) > 1
            else set()
        )
        kept = (each for each in self.nodes if each.function.axes == "kept")
        found |= {"several"} if any(len(each.over) > 1 for each in kept) else set()
        found |= {"outermost"} if any(map(runs_outermost, self.nodes)) else set()
        return frozenset(found | {"position"} if any(map(has_positions, self.nodes)) else found)

    @property
    def facts(self) -> Facts:
        """The facts about it that rules use."""
        return Facts(self.readers, self.same)

    @functools.cached_property
    def numbers(self) -> Mapping[str, int]:
        """The sizes with an integer value, by name."""
        return {name: value for name, value in self.names.sizes if isinstance(value, int)}

    def same(self, one: Size, two: Size) -> bool:
        """Whether two sizes are equal, given the known values of sizes."""
        return bool(one == two or put_in(one, self.numbers) == put_in(two, self.numbers))

    @functools.cached_property
    def leaves(self) -> Mapping[Node, Leaf]:
        """The inputs and constants, as leaves of the graph."""
        free = (each for each in self.names.leaves if each.value is None)
        found = dict(zip(self.function.inputs, free, strict=True))
        named = {each.name: each for each in self.names.leaves}
        return found | {
            each: named[name] for each, name in self.names.tensors.items() if each.op == "constant"
        }

    def over(self, new: dict[Node, Node], axes: Mapping[Node, tuple[str, ...]] = {}) -> Program:
        """The program with some nodes replaced, and names for new axes; all rebuilt nodes are added to `new`."""
        outputs = tuple(rebuilt(self.function.outputs, new))
        if all(map(operator.is_, outputs, self.function.outputs)):
            return self
        names = self.names.moved({**{each: each for each in self.function.inputs}, **new})
        kept = {each: called for each, called in self.names.axes.items() if each not in new}
        names.axes.update({**axes, **kept})
        return Program(replace(self.function, outputs=outputs), names)

    def rewritten(self, rule: Callable[[Node, Facts], Node]) -> Program:
        """The program after a rewrite of each of its nodes, from the inputs to the outputs."""
        new, count = dict[Node, Node](), Counter[Node]()
        facts = Facts(count, self.same)
        for old in self.nodes:
            new[old] = rule(over_others(old, new), facts)
            count[new[old]] += self.readers[old]
        return self.over(new)

    @property
    def draws(self) -> int:
        """The highest number of a random draw in it, or -1."""
        return max((each.attributes.get("draw", -1) for each in self.nodes), default=-1)

    @functools.cached_property
    def _told(self) -> frozenset[str]:
        """The open sizes that the shapes of the leaves determine."""
        sizes = (size for each in self.names.leaves for size in each.shape)
        bound = dict(self.names.sizes)
        return frozenset(name for size in sizes for name in size_names(evaluate(size, bound)))

    @functools.cached_property
    def constants(self) -> Container[Node]:
        """The nodes computed from constants and positions alone, along axes whose sizes the leaves determine."""
        found, bound = set[Node](), dict(self.names.sizes)
        for each in self.nodes:
            given = self.leaves.get(each)
            if given is not None:
                is_still = given.kind == "constant"
            else:
                names = (name for size in each.sizes for name in size_names(evaluate(size, bound)))
                repeats = each.function.is_repeatable and each.op != "call"
                is_still = repeats and self._told.issuperset(names) and found.issuperset(each.children)
            if is_still:
                found.add(each)
        return found

    # ---- costs

    def parts(self, change: Change) -> tuple[Program, Program]:
        """The replaced and the new nodes of a change as two programs; the tensors that they read are leaves."""
        made = order([change.new])
        replaced, shared, both = {change.old}, {*made}, set[Node]()
        for each in reversed(self.nodes):
            if self._is_only_read_by(replaced, each) and each not in shared:
                replaced.add(each)
            elif self._is_only_read_by(replaced | both, each) and (
                each not in self.names.tensors  # it is written in one equation with them
                or (change.with_operands and not replaced.isdisjoint(self.reading[each]))
            ):
                both.add(each)
        old = [each for each in self.nodes if each in replaced or each in both]
        new = [each for each in made if each not in self.present or each in both]
        pairs = [(change.old, change.new)]
        if change.with_readers:
            reading = dict.fromkeys(each for each in self.reading[change.old] if each not in replaced)
            moved = [over_others(each, {change.old: change.new}) for each in reading]
            old, new = [*old, *reading], [*new, *moved]
            pairs = [*(pairs if change.old in self.results else ()), *zip(reading, moved, strict=True)]
        before, after = zip(*pairs, strict=True)
        return self._part(old, before), self._part(new, after)

    def _is_only_read_by(self, nodes: Container[Node], each: Node) -> bool:
        """Whether only the given nodes read `each`, which is computed and is not a result."""
        return (
            each not in self.leaves
            and each.op != "item"
            and each not in self.results
            and all(map(nodes.__contains__, self.reading[each]))
        )

    @functools.cached_property
    def results(self) -> frozenset[Node]:
        """The nodes that are needed whole: its outputs, and the operands of calls."""
        given = (each for node in self.nodes if node.op == "call" for each in node.children)
        return frozenset((*self.function.outputs, *given))

    @functools.cached_property
    def reading(self) -> Mapping[Node, Sequence[Node]]:
        """The readers of each node, calls excepted."""
        found: dict[Node, list[Node]] = {each: [] for each in self.nodes}
        for reader in self.nodes:
            for each in reader.children if reader.op != "call" else ():
                found[each].append(reader)
        return found

    def _part(self, nodes: Sequence[Node], outputs: Sequence[Node]) -> Program:
        """Some nodes as a program; the tensors that they read are parameters, constants or inputs.

        Positions for kernels are written where they are read.
        """
        given, new = dict[Node, Leaf](), dict[Node, Node]()
        told = {child for each in nodes for child in each.children if is_position_operand(each, child)}

        def give(each: Node) -> None:
            new[each] = leaf("input", each.shape, each.element, n=len(given))
            given[new[each]] = self._leaf(each, f"x@{len(given)}")  # no size has such a name

        for each in nodes:
            for child in each.children:
                if child in new:
                    continue
                if child in told or child.op in LEAVES or child.is_scalar:
                    new[child] = child
                else:
                    give(child)
            new[each] = over_others(each, new)
        for each in outputs:
            if each not in new:  # an existing node takes no time
                give(each)
        results = {new[each]: f"y@{n}" for n, each in enumerate(outputs)}
        names = Names(tuple(given.values()), tuple(results.values()), self.names.sizes, {**results}, {})
        return Program(Function(tuple(given), tuple(results), self.function.sizes), names)

    def _leaf(self, each: Node, name: str) -> Leaf:
        """A node as a leaf, of the kind that it has in the program."""
        given = self.leaves.get(each)
        kind = given.kind if given is not None else "constant" if each in self.constants else "input"
        dims = tuple((NamedAxis(f"{name}_{d}", size),) for d, size in enumerate(each.shape))
        return Leaf(name, kind, dims, holds=each.element)


def improved(
    program: Program,
    nodes: Iterable[Node],
    changes: Callable[[Program, Node], Iterable[Change]],
    cost: Cost,
    first: bool = False,
) -> Program:
    """Applies those changes to some nodes that save time, one after another.

    Args:
        program: the program.
        nodes: the nodes to improve, in this order.
        changes: the possible changes of a node in the current program.
        cost: the expected seconds of a program; it is called with a few nodes at a time.
        first: whether to take the first change that saves time, not the one that saves most.
    """
    waiting = [*nodes][::-1]
    while waiting:
        each = waiting.pop()
        if each not in program.present:
            continue
        change = _best(program, changes(program, each), cost, first)
        if change is None:
            continue
        new = {change.old: change.new}
        fresh = [other for other in order([change.new]) if other not in program.present]
        program = program.over(new, change.axes)
        waiting = [*(new.get(other, other) for other in waiting), *fresh]
    return program


def _best(program: Program, changes: Iterable[Change], cost: Cost, first: bool) -> Change | None:
    """The change that saves most time, among those that keep the element types, and save enough or are due."""
    best: tuple[float, Change] | None = None
    for change in changes:
        if change.new.element is not change.old.element:
            continue
        present, new = program.parts(change)
        if first:  # how much it saves does not matter
            after = cost(new)
            before = cost(present, after / (1 - change.least))
        else:
            before, after = cost(present), cost(new)
        saved = before - after
        if not change.is_due and after >= (1 - change.least) * before:
            continue
        if best is None or saved > best[0]:
            best = saved, change
        if first:
            break
    return None if best is None else best[1]
