"""Constant folding: tensors that no call changes are computed once.

A tensor is invariant if it is computed from constants, positions and numbers alone. An invariant tensor that another
step reads is a table. Tables are computed once for each device, element type and length, and passed to the function
as further constants. A tensor much larger than the constants it comes from is computed again at each call instead.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..graph.call import scoped
from ..graph.element_types import bytes_of, of_leaves
from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..graph.shape_inference import Axis
from ..language.expression import Call, Ref, fresh, rename_tensors
from ..ops.table import FUNCTIONS, Element
from ..sizes import evaluate, product, size_names
from .in_place import overwriting
from .liveness import with_frees
from .plans import CallStep
from .steps import Result, Step, Table
from .target import Target

__all__ = ["Folded", "fold_constants", "is_invariant", "is_worth_keeping", "seconds_at_a_call"]

SMALL = 64 * 2**20
"""A table of at most this many bytes is always kept."""

GROWTH = 32
"""A larger table is kept if it has at most this many times the bytes of the constants that it is computed from."""


def is_worth_keeping(size: float, made_of: float) -> bool:
    """Whether a tensor is kept from call to call, given its bytes and those of the constants it is computed from."""
    return size <= max(SMALL, GROWTH * made_of)


def is_invariant(step: Step | CallStep, invariant: Container[str], sizes: frozenset[str]) -> bool:
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
        return not checks and _is_repeatable(step.plan.graph.expressions())
    return _is_repeatable(step.equation.parts)


def _is_repeatable(parts: Iterable[Any]) -> bool:
    return all(FUNCTIONS[part.function].is_repeatable for part in parts if isinstance(part, Call))


def seconds_at_a_call(
    leaves: Iterable[Leaf],
    bound: Mapping[str, Any],
    steps: Sequence[Step | CallStep],
    values: Mapping[str, int],
    target: Target,
) -> float:
    """The expected seconds of a call: those of all steps that are not computed once from constants.

    Args:
        leaves: the leaves that the steps read.
        bound: the sizes that have a value.
        steps: the steps.
        values: the value of every open size.
        target: the target of the plan.
    """
    known, leaves = {**values, **bound}, [*leaves]
    told = target.told_sizes(leaves, bound)
    made_of: dict[str, float] = {
        leaf.name: float(target.itemsize * product(evaluate(size, known) for size in leaf.shape))
        for leaf in leaves
        if leaf.kind == "constant"
    }
    total = 0.0
    for step in steps:
        if step.reads and is_invariant(step, made_of, told):
            roots = sum(made_of[name] for name in step.reads)
            if is_worth_keeping(step.bytes, roots):
                made_of.update(dict.fromkeys(step.defines, roots))
                continue
        total += step.seconds
    return total


@dataclass(frozen=True)
class Folded:
    """The steps of a plan in two parts: those done once, and those done at each call.

    Attributes:
        once: the steps that depend on no argument of a call.
        steps: all others.
        tables: the results of `once` that `steps` read.
    """

    once: tuple[Step | CallStep, ...]
    steps: tuple[Step | CallStep, ...]
    tables: tuple[Table, ...]


def fold_constants(
    graph: Graph,
    steps: Sequence[Step | CallStep],
    results: Sequence[Result],
    values: Mapping[str, int],
    target: Target,
    alone: bool = False,
) -> Folded:
    """Constant folding: separates the steps of a graph that are done once from those that each call repeats.

    Args:
        graph: the graph, as it was lowered.
        steps: its steps.
        results: where its outputs are. Outputs are computed at each call, so that the caller owns them.
        values: the value of every open size.
        target: the target of the plan.
        alone: whether each block runs on its own, and computes its own tables.
    """
    return _Division(graph, steps, results, {**values, **graph.bound}, target, alone).done()


@dataclass(frozen=True)
class _Form:
    """An invariant tensor: its dimensions, its element type, and the constants that it is computed from."""

    dims: tuple[tuple[Axis, ...], ...]
    element: Element
    roots: frozenset[str]

    @property
    def shape(self) -> tuple[Any, ...]:
        return tuple(product(axis.size for axis in dim) for dim in self.dims)


class _Division:
    def __init__(
        self,
        graph: Graph,
        steps: Sequence[Step | CallStep],
        results: Sequence[Result],
        sizes: Mapping[str, Any],
        target: Target,
        alone: bool,
    ) -> None:
        self.sizes, self.target, self.itemsize, self.alone = sizes, target, target.itemsize, alone
        self.told = target.told_sizes(graph.leaves, graph.bound)
        self.outputs = {each.value.name for each in results}
        self.taken = {leaf.name for leaf in graph.leaves} | {name for step in steps for name in step.defines}
        self.shapes = {
            leaf.name: tuple(evaluate(size, graph.bound) for size in leaf.shape) for leaf in graph.leaves
        }
        elements = of_leaves(graph)
        self.forms = {
            leaf.name: _Form(leaf.dims, elements[leaf.name], frozenset({leaf.name}))
            for leaf in graph.constants
        }
        self.once: list[Step | CallStep] = []
        self.done_already: dict[Step | CallStep, tuple[str, ...]] = {}
        self.same: dict[str, str] = {}
        self.tables: dict[tuple[str, Any], Table] = {}
        self.steps = list(steps)
        calls = [step for step in steps if isinstance(step, CallStep)]
        self.held = {name for step in calls for name in step.held}  # blocks read these by exactly these names

    def done(self) -> Folded:
        invariant = self._invariant()
        steps: list[Step | CallStep] = []
        for number, step in enumerate(self.steps):
            of_its_own = isinstance(step, CallStep) and step.along is None
            if (
                isinstance(step, CallStep)
                and of_its_own
                and step.plan.tables
                and (step.slicing or not self.alone)
            ):
                step = replace(step, tables=tuple(self._of_block(step, number in invariant)))
            if number in invariant:
                self.same.update(zip(step.defines, self._do_once(step, self.same), strict=True))
            else:
                steps.append(self._looked_up(_moved(step, self.same)))
        made = {name for step in self.once for name in step.defines}
        for name in dict.fromkeys(name for step in steps for name in step.reads if name in made):
            self._table(name, None)
        tables = tuple(self.tables.values())
        once = with_frees(self.once, [table.made for table in tables])
        repeated = overwriting(steps, self.outputs, self.sizes, self.target)
        return Folded(once, with_frees(repeated, self.outputs), tables)

    # ---- which steps

    def _invariant(self) -> set[int]:
        """The numbers of the steps that are done once.

        These are the invariant steps, except those that `_refused` gives and those that read results of these.
        """
        given, refused = dict(self.forms), set[int]()
        while True:
            self.forms, found = dict(given), set[int]()
            for number, step in enumerate(self.steps):
                self._note_shape(step)
                apart = self.alone and isinstance(step, CallStep) and step.along is None
                if number not in refused and not apart and is_invariant(step, self.forms, self.told):
                    found.add(number)
                    self._note_form(step)
            more = self._refused(found)
            if not more:
                return found
            refused |= more

    def _note_shape(self, step: Step | CallStep) -> None:
        if isinstance(step, CallStep):
            self.shapes.update(zip(step.results, step.shapes, strict=True))
        else:
            self.shapes[step.equation.name] = tuple(product(a.size for a in dim) for dim in _dims(step))

    def _note_form(self, step: Step | CallStep) -> None:
        roots = frozenset[str]().union(*(self.forms[name].roots for name in step.reads))
        if isinstance(step, CallStep):
            for name, shape, element in zip(step.results, step.shapes, step.elements, strict=True):
                dims = tuple((Axis(f"d{n}", size),) for n, size in enumerate(shape))
                self.forms[name] = _Form(dims, element, roots)
        else:
            self.forms[step.equation.name] = _Form(_dims(step), step.element, roots)

    def _refused(self, invariant: set[int]) -> set[int]:
        """The invariant steps with a result that would be a table but is an output or not worth keeping."""
        read = set(self.outputs)
        for number, step in enumerate(self.steps):
            if number not in invariant:
                read.update(step.reads)
        return {
            number
            for number in invariant
            if any(
                name in self.outputs or (name in read and not self._is_worth_keeping(name))
                for name in self.steps[number].defines
            )
        }

    def _is_worth_keeping(self, name: str) -> bool:
        form = self.forms[name]
        return is_worth_keeping(self._bytes(form), sum(self._bytes(self.forms[root]) for root in form.roots))

    def _bytes(self, form: _Form) -> int:
        elements = product(evaluate(size, self.sizes) for size in form.shape)
        return int(elements) * bytes_of(form.element, self.itemsize)

    # ---- tables

    def _table(self, made: str, below: Any) -> str:
        """The name of the table of an invariant tensor, or of positions that must be below a size."""
        if (made, below) not in self.tables:
            form = self.forms[made]
            name = made
            if below is not None:
                name = fresh(made, self.taken)
                self.taken.add(name)
            self.tables[made, below] = Table(
                Leaf(name, "constant", form.dims, holds=form.element), made, below
            )
        return self.tables[made, below].leaf.name

    def _looked_up(self, step: Step | CallStep) -> Step | CallStep:
        """The step with its invariant positions read from tables, where they have been checked."""
        if isinstance(step, CallStep) and step.along is not None:
            pairs = zip(step.tables, step.plan.tables, strict=True)
            return replace(step, tables=tuple(self._looked_at(name, each.below) for name, each in pairs))
        if isinstance(step, CallStep) or not isinstance(step.equation.right, Ref):
            return step
        right = step.equation.right
        index = tuple(
            replace(entry, name=self._looked_at(entry.name, size)) if isinstance(entry, Ref) else entry
            for entry, size in zip(right.index, self.shapes[right.name], strict=True)
        )
        return replace(step, equation=replace(step.equation, right=replace(right, index=index)))

    def _looked_at(self, name: str, below: Any) -> str:
        """The table of invariant positions, checked to be below a size. The tensor itself if there can be no table."""
        is_table = below is not None and name in self.forms and self.told.issuperset(size_names(below))
        return self._table(name, below) if is_table else name

    # ---- blocks

    def _of_block(self, step: CallStep, invariant: bool) -> Iterator[str]:
        """The names in this graph of the tables that a block reads. Their steps are added to those done once."""
        block = step.plan
        names = {leaf.name: scoped(step.scope, leaf.name) for leaf in block.graph.constants}
        for each in block.once:
            names.update(zip(each.defines, self._do_once(each, names, step.scope), strict=True))
        for table in block.tables:
            yield names[table.made] if invariant else self._table(names[table.made], table.below)

    # ---- steps that are done once

    def _do_once(
        self, step: Step | CallStep, names: Mapping[str, str], scope: str | None = None
    ) -> tuple[str, ...]:
        """Adds a step to those done once, unless an equal one is there already. The names of its results.

        Args:
            step: the step, of the graph or of a block.
            names: the names in this graph of the tensors that it reads, where they differ.
            scope: the scope of the block. None where the step is of the graph.
        """
        moved = _moved(step, names, scope or "")
        nameless = _defining(moved, ("",) * len(step.defines))
        if nameless not in self.done_already or not self.held.isdisjoint(step.defines):
            made = tuple(self._own_name(name, scope) for name in step.defines)
            moved = _defining(moved, made)
            self.once.append(moved)
            self._note_shape(moved)
            self._note_form(moved)
            self.done_already[nameless] = made
        return self.done_already[nameless]

    def _own_name(self, name: str, scope: str | None) -> str:
        """The name of a result of a block outside the block."""
        found = name if scope is None else fresh(scoped(scope, name), self.taken)
        self.taken.add(found)
        return found


def _moved(step: Step | CallStep, names: Mapping[str, str], scope: str = "") -> Step | CallStep:
    """The step with other names for the tensors it reads. A call in a block gets the scope of the block in front."""
    if isinstance(step, Step):
        right = rename_tensors(step.equation.right, names)
        return replace(step, equation=replace(step.equation, right=right), frees=())
    operands, tables = (tuple(names.get(name, name) for name in of) for of in (step.operands, step.tables))
    return replace(step, operands=operands, tables=tables, scope=scoped(scope, step.scope), frees=())


def _defining(step: Step | CallStep, names: tuple[str, ...]) -> Step | CallStep:
    """The step with other names for the tensors it computes."""
    if isinstance(step, CallStep):
        return replace(step, results=names)
    return replace(step, equation=replace(step.equation, name=names[0]))


def _dims(step: Step) -> tuple[tuple[Axis, ...], ...]:
    """The dimensions of the result of a step."""
    axes = {axis.name: axis for axis in step.axes}
    left = step.equation.left
    return tuple(tuple(axes[name] for name in ((e,) if isinstance(e, str) else e)) for e in left)
