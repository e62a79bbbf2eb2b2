"""Rewriting of programs: nodes in the place of others, in any case or where a cost says that it pays."""

from __future__ import annotations

import functools
import itertools
import operator
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..graph.shape_inference import Axis as NamedAxis
from ..ops.table import FUNCTIONS
from ..sizes import evaluate, put_in, size_names
from .build import leaf
from .equations import LEAVES, is_told
from .function import Function, order, over_others, rebuilt
from .names import Names
from .naming import graph_of
from .node import Node, Size

__all__ = ["Change", "Cost", "Facts", "Program", "improved"]

Cost: TypeAlias = "Callable[[Program], float]"
"""The expected seconds of a program."""


class Facts(NamedTuple):
    """What rules ask about a program.

    Attributes:
        readers: how often each node is read; a result is read once more.
        same: whether two sizes are equal, as far as sizes have a value.
    """

    readers: Mapping[Node, int]
    same: Callable[[Size, Size], bool]


LEAST = 0.1
"""The share of the time of some nodes that others in their place must save: seconds are expected ones, and what
libraries have a function for they have in the form that people write."""


@dataclass(frozen=True)
class Change:
    """Nodes that may stand in the place of others of the same value.

    Attributes:
        made: the proposed node for each present one.
        is_due: whether the present ones cannot stay, however long others take.
        least: the share of their time that others must save.
        with_readers: whether what reads them is priced with them, which decides how they had best lie.
        with_operands: whether what makes their operands is, where they alone read these.
        axes: the names of the axes of new nodes, where these have some.
    """

    made: Mapping[Node, Node]
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
        """Its equations."""
        return graph_of(self.function, self.names)

    @functools.cached_property
    def nodes(self) -> tuple[Node, ...]:
        """What its results need, each after what it reads."""
        return tuple(order(self.function.outputs))

    @functools.cached_property
    def present(self) -> frozenset[Node]:
        """The same, to ask."""
        return frozenset(self.nodes)

    @functools.cached_property
    def readers(self) -> Mapping[Node, int]:
        """How often each of its nodes is read."""
        return Counter([*self.function.outputs, *(each for node in self.nodes for each in node.children)])

    @property
    def facts(self) -> Facts:
        """What rules ask about it."""
        return Facts(self.readers, self.same)

    @functools.cached_property
    def numbers(self) -> Mapping[str, int]:
        """The sizes that are whole numbers, by name."""
        return {name: value for name, value in self.names.sizes if isinstance(value, int)}

    def same(self, one: Size, two: Size) -> bool:
        """Whether two sizes are equal, as far as sizes have a value."""
        return bool(one == two or put_in(one, self.numbers) == put_in(two, self.numbers))

    @functools.cached_property
    def leaves(self) -> Mapping[Node, Leaf]:
        """The inputs and constants, as the graph has them."""
        free = (each for each in self.names.leaves if each.value is None)
        found = dict(zip(self.function.inputs, free, strict=True))
        named = {each.name: each for each in self.names.leaves}
        return found | {
            each: named[name] for each, name in self.names.tensors.items() if each.op == "constant"
        }

    def over(self, new: dict[Node, Node], axes: Mapping[Node, tuple[str, ...]] = {}) -> Program:
        """The program with other nodes in the place of some, and names of axes; `new` gets all that are rebuilt."""
        outputs = tuple(rebuilt(self.function.outputs, new))
        if all(map(operator.is_, outputs, self.function.outputs)):
            return self
        names = self.names.moved({**{each: each for each in self.function.inputs}, **new})
        kept = {each: called for each, called in self.names.axes.items() if each not in new}
        names.axes.update({**axes, **kept})
        return Program(replace(self.function, outputs=outputs), names)

    def rewritten(self, rule: Callable[[Node, Facts], Node]) -> Program:
        """The program after a rewrite of each of its nodes, from the inputs on."""
        new, count = dict[Node, Node](), Counter[Node]()
        facts = Facts(count, self.same)
        for old in self.nodes:
            new[old] = rule(over_others(old, new), facts)
            count[new[old]] += self.readers[old]
        return self.over(new)

    @property
    def draws(self) -> int:
        """The highest number of something random in it, or less."""
        return max((each.attributes.get("draw", -1) for each in self.nodes), default=-1)

    @functools.cached_property
    def _told(self) -> frozenset[str]:
        """The open sizes that the shapes of what is given tell."""
        sizes = (size for each in self.names.leaves for size in each.shape)
        bound = dict(self.names.sizes)
        return frozenset(name for size in sizes for name in size_names(evaluate(size, bound)))

    @functools.cached_property
    def constants(self) -> Container[Node]:
        """The nodes that are made of constants and positions alone, along axes as long as what is given tells."""
        found, bound = set[Node](), dict(self.names.sizes)
        for each in self.nodes:
            given = self.leaves.get(each)
            if given is not None:
                is_still = given.kind == "constant"
            else:
                names = (name for size in each.sizes for name in size_names(evaluate(size, bound)))
                is_still = (
                    _is_repeatable(each) and self._told.issuperset(names) and found.issuperset(each.children)
                )
            if is_still:
                found.add(each)
        return found

    # ---- prices

    def parts(self, change: Change) -> tuple[Program, Program]:
        """What a change replaces and what it makes, as programs by themselves: what both read is given."""
        made = order(change.made.values())
        replaced, shared, both = {*change.made}, {*made}, set[Node]()
        for each in reversed(self.nodes):
            if self._is_only_read_by(replaced, each) and each not in shared:
                replaced.add(each)
            elif self._is_only_read_by(replaced | both, each) and (
                each not in self.names.tensors  # it stands in one equation with them
                or (change.with_operands and not replaced.isdisjoint(self.reading[each]))
            ):
                both.add(each)
        old = [each for each in self.nodes if each in replaced or each in both]
        new = [each for each in made if each not in self.present or each in both]
        pairs = [*change.made.items()]
        if change.with_readers:
            table = dict(change.made)
            reading = dict.fromkeys(
                each for root in table for each in self.reading[root] if each not in replaced
            )
            moved = [over_others(each, table) for each in reading]
            old, new = [*old, *reading], [*new, *moved]
            pairs = [pair for pair in pairs if pair[0] in self.function.outputs]
            pairs += zip(reading, moved, strict=True)
        before, after = zip(*pairs, strict=True)
        return self._part(old, before), self._part(new, after)

    def _is_only_read_by(self, nodes: Container[Node], each: Node) -> bool:
        """Whether some nodes alone read a node that is computed, and no caller wants it."""
        return (
            each not in self.leaves
            and each not in self.function.outputs
            and all(map(nodes.__contains__, self.reading[each]))
        )

    @functools.cached_property
    def reading(self) -> Mapping[Node, Sequence[Node]]:
        """Who reads each node."""
        found: dict[Node, list[Node]] = {each: [] for each in self.nodes}
        for reader in self.nodes:
            for each in reader.children:
                found[each].append(reader)
        return found

    def _part(self, nodes: Sequence[Node], outputs: Sequence[Node]) -> Program:
        """Some nodes as a program: what they read is a parameter, the same at every call, or given.

        Positions that kernels are told are written where they are read.
        """
        slots, leaves, new = list[Node](), list[Leaf](), dict[Node, Node]()
        given, made = (self._unlike_sizes(stem) for stem in "xy")
        told = {child for each in nodes for child in each.children if is_told(each, child)}

        def give(each: Node) -> None:
            leaves.append(self._leaf(each, next(given)))
            new[each] = leaf("input", each.shape, each.element, n=len(slots))
            slots.append(new[each])

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
            if each not in new:  # what is there already takes no time
                give(each)
        results = {new[each]: next(made) for each in outputs}
        names = Names(tuple(leaves), tuple(results.values()), self.names.sizes, {**results}, {})
        return Program(Function(tuple(slots), tuple(results), self.function.sizes), names)

    def _unlike_sizes(self, stem: str) -> Iterator[str]:
        """Names that no size has."""
        sizes = {*self.function.sizes, *(name for name, _ in self.names.sizes)}
        names = (f"{stem}{n}" for n in itertools.count())
        return (name for name in names if name not in sizes)

    def _leaf(self, each: Node, name: str) -> Leaf:
        """A node that is given, of the kind that it is in the program."""
        given = self.leaves.get(each)
        kind = given.kind if given is not None else "constant" if each in self.constants else "input"
        dims = tuple((NamedAxis(f"{name}_{d}", size),) for d, size in enumerate(each.shape))
        return Leaf(name, kind, dims, holds=each.element)


def _is_repeatable(each: Node) -> bool:
    """Whether a node gives the same each time."""
    function = FUNCTIONS.get(each.op)
    return function is None or function.is_repeatable


def improved(
    program: Program,
    nodes: Iterable[Node],
    changes: Callable[[Program, Node], Iterable[Change]],
    cost: Cost,
    first: bool = False,
) -> Program:
    """The program after all changes to some nodes, one after another, that save time.

    Args:
        program: the program.
        nodes: which of its nodes, in which order.
        changes: the ways to change a node as it stands.
        cost: the expected seconds of a program; it is asked about a few nodes at a time.
        first: whether the first change that saves time is made, not the one that saves most.
    """
    waiting = [*nodes][::-1]
    while waiting:
        each = waiting.pop()
        if each not in program.present:
            continue
        change = _best(program, changes(program, each), cost, first)
        if change is None:
            continue
        new, made = dict(change.made), order(change.made.values())
        fresh = [other for other in made if other not in program.present]
        program = program.over(new, change.axes)
        waiting = [*(new.get(other, other) for other in waiting), *fresh]
    return program


def _best(program: Program, changes: Iterable[Change], cost: Cost, first: bool) -> Change | None:
    """That of some changes which saves most time, if one saves enough, or is due."""
    best: tuple[float, Change] | None = None
    for change in changes:
        before, after = map(cost, program.parts(change))
        saved = before - after
        if not change.is_due and after >= (1 - change.least) * before:
            continue
        if best is None or saved > best[0]:
            best = saved, change
        if first:
            break
    return None if best is None else best[1]
