"""Constant folding: tensors that no call changes are computed once.

A tensor is invariant if it is computed from constants, positions and numbers alone. An invariant tensor that another
step reads is a table. Tables are computed once for each device, element type and length, and passed to the function
as further constants. A tensor much larger than the constants it comes from is computed again at each call instead.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..graph.element_types import bytes_of, of_leaves
from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..graph.shape_inference import dim_size
from ..language.expression import Call, Ref, Taken
from ..ops.table import FUNCTIONS
from ..sizes import evaluate, product, size_names
from .liveness import with_frees
from .plans import AnyStep, CallStep, Result, Table
from .target import Target

SMALL = 64 * 2**20
"""A table of at most this many bytes is always kept."""

GROWTH = 32
"""A larger table is kept if it has at most this many times the bytes of the constants that it is computed from."""


def is_worth_keeping(size: float, made_of: float) -> bool:
    """Whether a tensor is kept from call to call, given its bytes and those of the constants it is computed from."""
    return size <= max(SMALL, GROWTH * made_of)


def is_invariant(step: AnyStep, invariant: Container[str], sizes: frozenset[str]) -> bool:
    """Whether a step depends on no argument of a call.

    Args:
        step: the step.
        invariant: the tensors that depend on no argument of a call, including the constants.
        sizes: the open sizes that it may depend on.
    """
    if not all(name in invariant for name in step.reads) or not step.open_sizes <= sizes:
        return False
    if isinstance(step, CallStep):
        checks = any(table.below is not None for table in step.plan.tables)
        return not checks and _is_repeatable(step.plan.graph.called())
    return _is_repeatable(step.equation.called)


def _is_repeatable(calls: Iterable[Call]) -> bool:
    return all(FUNCTIONS[call.function].is_repeatable for call in calls)


class Folded:
    """The steps of a graph in two parts: those done once, and those done at each call.

    Args:
        graph: the graph, as it was lowered.
        steps: its steps.
        results: where its outputs are. Outputs are computed at each call, so that the caller owns them.
        values: the value of every open size.
        target: the target of the plan.
        alone: whether each block runs on its own.

    Attributes:
        once: the steps that depend on no argument of a call.
        steps: all others.
        tables: the results of `once` that `steps` read.
    """

    def __init__(
        self,
        graph: Graph,
        steps: Sequence[AnyStep],
        results: Sequence[Result],
        values: Mapping[str, int],
        target: Target,
        alone: bool = False,
    ) -> None:
        self._all, self._target, self._alone = steps, target, alone
        self._bound, self._sizes = graph.bound, {**values, **graph.bound}
        self._told = target.told_sizes(graph.leaves, graph.bound)
        self._outputs = {each.value.name for each in results}
        self._dims, self._elements = {leaf.name: leaf.dims for leaf in graph.leaves}, of_leaves(graph)
        for step in steps:
            self._dims.update(zip(step.defines, step.dims, strict=True))
            self._elements.update(zip(step.defines, step.elements, strict=True))
        self._taken = Taken(self._dims)
        self._invariant = self._found({leaf.name: frozenset({leaf.name}) for leaf in graph.constants})
        self._tables: dict[tuple[str, Any], Table] = {}  # by the tensor, and the size that it must be below
        once, repeated = self._divided()
        made = {name for step in once for name in step.defines}
        for name in dict.fromkeys(name for step in repeated for name in step.reads if name in made):
            self._table(name, None)
        self.tables = tuple(self._tables.values())
        self.once = with_frees(once, [table.made for table in self.tables])
        self.steps = with_frees(repeated, self._outputs)

    # ---- which steps

    def _divided(self) -> tuple[list[AnyStep], list[AnyStep]]:
        """The steps done once, of equal ones only the first, and those of each call."""
        once, repeated = dict[AnyStep, AnyStep](), list[AnyStep]()
        held = {name for step in self._all if isinstance(step, CallStep) for name in step.held}
        same = dict[str, str]()
        for step in (each.reading(same) for each in self._all):
            if step.defines[0] not in self._invariant:
                repeated.append(self._looked_up(step))
                continue
            first = once.setdefault(step.defining(("",) * len(step.defines)), step)
            if held.isdisjoint(step.defines):
                same.update(zip(step.defines, first.defines, strict=True))
            elif first is not step:  # a block reads it by its name
                once[step] = step
        return [*once.values()], repeated

    def _found(self, constants: Mapping[str, frozenset[str]]) -> set[str]:
        """The invariant tensors, given that each constant is computed from itself.

        Outputs do not count as invariant, nor does a tensor that would be a table but is not worth keeping, nor what
        is computed from these.
        """
        refused = set(self._outputs)
        while True:
            roots, read = dict(constants), set[str]()
            for step in self._all:
                apart = self._alone and isinstance(step, CallStep) and step.along is None
                known = apart or not refused.isdisjoint(step.defines)
                if not known and is_invariant(step, roots, self._told):
                    made_of = frozenset[str]().union(*(roots[name] for name in step.reads))
                    roots.update(dict.fromkeys(step.defines, made_of))
                else:
                    read.update(step.reads)
            more = {
                name
                for name in read.intersection(roots) - constants.keys()
                if self._is_large(name, roots[name])
            }
            if not more:
                return {*roots}
            refused |= more

    def _is_large(self, name: str, roots: Iterable[str]) -> bool:
        """Whether a tensor is too large to be kept, for the constants that it is computed from."""
        return not is_worth_keeping(self._bytes(name), sum(map(self._bytes, roots)))

    def _shape(self, name: str) -> tuple[Any, ...]:
        return tuple(evaluate(dim_size(dim), self._bound) for dim in self._dims[name])

    def _bytes(self, name: str) -> int:
        elements = product(evaluate(size, self._sizes) for size in self._shape(name))
        return int(elements) * bytes_of(self._elements[name], self._target.itemsize)

    # ---- tables

    def _table(self, made: str, below: Any) -> str:
        """The name of the table of an invariant tensor, or of positions that must be below a size."""
        if (made, below) not in self._tables:
            name = made if below is None else self._taken.fresh(made)
            leaf = Leaf(name, "constant", self._dims[made], holds=self._elements[made])
            self._tables[made, below] = Table(leaf, made, below)
        return self._tables[made, below].leaf.name

    def _looked_up(self, step: AnyStep) -> AnyStep:
        """The step with its invariant positions read from tables, where they have been checked."""
        if isinstance(step, CallStep):
            pairs = zip(step.tables, step.plan.tables, strict=False)
            return replace(step, tables=tuple(self._looked_at(name, each.below) for name, each in pairs))
        right = step.equation.right
        if not isinstance(right, Ref):
            return step
        index = tuple(
            replace(entry, name=self._looked_at(entry.name, size)) if isinstance(entry, Ref) else entry
            for entry, size in zip(right.index, self._shape(right.name), strict=True)
        )
        return replace(step, equation=replace(step.equation, right=replace(right, index=index)))

    def _looked_at(self, name: str, below: Any) -> str:
        """The table of invariant positions, checked to be below a size. The tensor itself if there can be no table."""
        is_table = below is not None and name in self._invariant and self._told.issuperset(size_names(below))
        return self._table(name, below) if is_table else name
