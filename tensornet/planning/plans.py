"""The plan: steps in order with their costs, printed and serialised."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..codec import Text, document, read, write
from ..device.model import Certainty
from ..documents import Part
from ..dtypes import itemsize
from ..errors import EquationError
from ..graph.call import names_of_blocks
from ..graph.element_types import bytes_of, of_leaf
from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..language.expression import axes_of_index
from ..notebook import folded
from ..sizes import evaluate, product, size_names
from ..units import amount
from .steps import CallStep, Result, Step, Table

__all__ = ["Alternative", "Plan"]


SHOWN = 8
"""So many of the tensors kept for a way back are shown one by one, the largest."""


@document()
@dataclass(frozen=True)
class Alternative:
    """Another order for the same graph, for comparison."""

    name: Text
    flops: int
    bytes: int
    seconds: float
    peak_memory: int


@document(
    shared=True,
    flops=lambda plan: plan.flops,
    bytes=lambda plan: plan.bytes,
    seconds=lambda plan: plan.seconds,
)
@dataclass(frozen=True)
class Plan:
    """The order in which a graph is computed on a device, as data.

    Attributes:
        graph: what is computed, as the user wrote it.
        backend, device, dtype: what it was planned for.
        sizes: the sizes it was planned at, name and value.
        assumed: the names among them that nobody gave a value.
        steps: the operations and calls of blocks, in order.
        results: where the outputs are.
        peak_memory: bytes of the tensors alive at the worst step, inputs and parameters included.
        alternatives: other orders ("as written", "fewest FLOPs"), for comparison.
        once: the operations that depend on nothing that a call gives, done before the first of them.
        tables: what of these the steps read.
        certainty: how sure the times are; of a block the plan that calls it says so.
        backward: of a product that gradients go through, the plan of its way back.
        recorded: where autograd goes back, what it keeps for that of each call, by its result, after what it
            keeps of all else; bytes, of which those of leaves are none.
        code: the source of the Python function that runs, and of the one that makes its tables.
    """

    graph: Graph
    backend: Text
    device: Text
    dtype: Text
    sizes: tuple[tuple[str, int], ...]
    steps: tuple[Step | CallStep, ...]
    results: tuple[Result, ...]
    peak_memory: int
    assumed: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    once: tuple[Step | CallStep, ...] = ()
    tables: tuple[Table, ...] = ()
    certainty: Certainty | None = None
    backward: Plan | None = None
    recorded: tuple[tuple[str, int], ...] = ()
    code: Text = field(default="", repr=False)

    def checked(self, part: Part) -> None:
        """Refuses steps and results that read what is not there."""
        _check_names(self, part)

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.graph, self.backend, self.device, self.dtype, self.sizes, self.code))

    @functools.cached_property
    def functions(self) -> Mapping[Plan, str]:
        """The plans of the blocks that are called, each with a name; those inside of others come first."""
        return names_of_blocks(self._called(), ())

    @property
    def goes_back(self) -> bool:
        """Whether products in it are planned both ways."""
        return any(block.backward is not None for block in self.functions)

    def _called(self) -> Iterator[tuple[Plan, str]]:
        seen = set[Plan]()
        for step in (*self.once, *self.steps):
            if isinstance(step, CallStep) and step.plan not in seen:
                seen.add(step.plan)
                yield from step.plan._called()
                yield step.plan, step.scope or _kind(step)

    @functools.cached_property
    def constants(self) -> tuple[Leaf, ...]:
        """The constants that are read at each call."""
        return self._read_by(self.steps, (each.value.name for each in self.results))

    @functools.cached_property
    def sources(self) -> tuple[Leaf, ...]:
        """The constants that the tables are made of."""
        return self._read_by(self.once, (table.made for table in self.tables))

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """What the steps are given: inputs, parameters, constants that they read, and tables."""
        tables = (table.leaf for table in self.tables)
        return (*self.graph.inputs, *self.graph.parameters, *self.constants, *tables)

    def _read_by(self, steps: Iterable[Step | CallStep], others: Iterable[str]) -> tuple[Leaf, ...]:
        read = {*others, *(name for step in steps for name in step.reads)}
        return tuple(leaf for leaf in self.graph.constants if leaf.name in read)

    @functools.cached_property
    def sizes_once(self) -> tuple[str, ...]:
        """The open sizes that the tables depend on, sorted."""
        names = {name for table in self.tables for name in size_names(table.below or 0)}
        return tuple(sorted(names.union(*(step.open_sizes for step in self.once))))

    @property
    def flops(self) -> int:
        """FLOPs of the contractions: 2 × the product of all axes of each pairwise step."""
        return sum(step.flops for step in self.steps)

    @property
    def flop_formula(self) -> Any:
        """The same as a sympy expression in the names of the axes."""
        import sympy

        return sum((step.flop_formula for step in self.steps), sympy.Integer(0))

    @property
    def bytes(self) -> int:
        """Bytes read and written by the steps."""
        return sum(step.bytes for step in self.steps)

    @property
    def seconds(self) -> float:
        """Expected time on the device."""
        return sum(step.seconds for step in self.steps)

    def __str__(self) -> str:
        lines = [f"plan for {self.backend} on {self.device}, {self.dtype}{self._shown_sizes()}"]
        lines += self._shown_body()
        rows = [
            Alternative("this plan", self.flops, self.bytes, self.seconds, self.peak_memory),
            *self.alternatives,
        ]
        calls = self._calls
        back = [(block.backward, calls[block]) for block in self.functions if block.backward is not None]
        back += [(self.backward, 1)] if self.backward is not None else []
        if back:
            flops, moved = (
                sum(times * getattr(plan, of) for plan, times in back) for of in ("flops", "bytes")
            )
            seconds = sum(times * plan.seconds for plan, times in back)
            peak = max(plan.peak_memory for plan, _ in back)
            rows.insert(1, Alternative("back", flops, moved, seconds, peak))
        for row in rows:
            ratio = (
                ""
                if row.name in ("this plan", "back") or not self.seconds
                else f"  ({row.seconds / self.seconds:.2f}× the time)"
            )
            lines.append(
                f"     {row.name + ':':<15} {amount(row.flops, 'FLOP')}, {amount(row.bytes, 'B')} moved,"
                f" peak {amount(row.peak_memory, 'B')}, expected {amount(row.seconds, 's')}{ratio}"
            )
        if self.certainty is not None:
            lines.append(f"     {'expected times:':<15} {self.certainty}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The plan in a notebook: its steps, those of the functions that are called folded."""
        calls = self._calls
        parts = {
            f"{name}, called {calls[block]}×": "\n".join(block._shown_steps(block.steps))
            for block, name in self.functions.items()
        }
        if self.once:
            parts["done once"] = "\n".join(self._shown_steps(self.once))
        title, *rest = str(self).splitlines()
        steps = list(self._shown_steps(self.steps))
        return folded(title, {**parts, "costs, and all of it": "\n".join(rest)}, "\n".join(steps))

    @property
    def kept(self) -> tuple[tuple[str, int], ...]:
        """The tensors kept from the way forward to the way back, and their bytes; what is given is not counted."""
        if self.backward is None:
            return self.recorded
        sizes, made = dict(self.sizes), set(self.graph.outputs) - {leaf.name for leaf in self.graph.leaves}
        return tuple(
            (
                leaf.name,
                bytes_of(of_leaf(leaf), itemsize(self.dtype))
                * int(product(evaluate(evaluate(size, self.graph.bound), sizes) for size in leaf.shape)),
            )
            for leaf in self.backward.graph.inputs
            if leaf.name in made
        )

    @property
    def _calls(self) -> Counter[Plan]:
        """How often each of the functions is called."""
        steps = (step for each in (self, *self.functions) for step in (*each.once, *each.steps))
        found = Counter[Plan]()
        for step in steps:
            if isinstance(step, CallStep):
                found[step.plan] += 1 if step.along is None else step.along.count
        return found

    def _shown_body(self) -> Iterator[str]:
        """The steps, those of the functions that are called, what is done once, and the way back."""
        yield from self._shown_steps(self.steps)
        calls = self._calls
        for block, name in self.functions.items():
            yield f"{name}, called {'once' if calls[block] == 1 else f'{calls[block]} times'}:"
            yield from self._shown_steps(block.steps)
            yield from block._shown_back()
        if self.once:
            yield "done once:"
            yield from self._shown_steps(self.once)
        yield from self._shown_back()

    def _shown_back(self) -> Iterator[str]:
        """What is kept for the way back, and its steps."""
        if self.backward is not None:
            yield f"back, of what is given and of {self._shown_kept() or 'nothing else'}:"
            yield from self.backward._shown_body()
        elif self.recorded:
            total = sum(size for _, size in self.kept)
            told = f"{amount(total, 'B')}: {self._shown_kept()}" if total else "nothing but what is given"
            yield f"autograd keeps {told}"

    def _shown_kept(self) -> str:
        """The tensors kept, the largest by themselves."""
        largest = sorted((each for each in self.kept if each[1]), key=lambda each: -each[1])
        told = [f"{name or 'what is around calls'} of {amount(size, 'B')}" for name, size in largest[:SHOWN]]
        rest = [size for _, size in largest[SHOWN:]]
        return ", ".join([*told, *([f"{len(rest)} more of {amount(sum(rest), 'B')}"] if rest else [])])

    def _shown_steps(self, steps: Sequence[Step | CallStep]) -> Iterator[str]:
        shown = [step.shown(self.functions) for step in steps]
        width = min(76, max((len(text) for text in shown), default=0))
        for number, (text, step) in enumerate(zip(shown, steps, strict=True), 1):
            cost = f"{amount(step.flops, 'FLOP'):>12}  {amount(step.bytes, 'B'):>9}  {amount(step.seconds, 's'):>9}"
            yield f"{number:3}  {text:<{width}}  {cost}"

    def _shown_sizes(self) -> str:
        given = [f"{name}={value:,}" for name, value in self.sizes if name not in self.assumed]
        assumed = [f"{name}={value:,}" for name, value in self.sizes if name in self.assumed]
        text = f", at {', '.join(given)}" if given else ""
        return text + (f", assuming {', '.join(assumed)}" if assumed else "")

    def to_json(self) -> str:
        """The plan as JSON: what it is for, the steps as equations with their costs, the code."""
        return json.dumps({"format": FORMAT, "version": VERSION, **write(self)}, indent=1)

    @staticmethod
    def from_json(text: str) -> Plan:
        """Reads what `to_json` wrote: an equal plan. Nothing in it is run.

        Raises:
            EquationError: the text is no such document, or the plan in it cannot be.
            ShapeError: nor can its sizes.
        """
        whole = Part.of(text, "plan")
        if whole["format"].value != FORMAT or whole["version"].value != VERSION:
            found = f"{whole['format'].value} {whole['version'].value}"
            fix = "plan anew, or use the library that wrote it"
            raise EquationError(f"not a plan of version {VERSION}: {found}", fix=fix)
        return read(Plan, whole)


def _kind(step: CallStep) -> str:
    """What a function is called that has no scope."""
    return "product" if step.plan.backward is not None else "step" if step.along is not None else ""


# ---------------------------------------------------------------------------- as JSON

FORMAT, VERSION = "tensornet.plan", 11


def _check_names(plan: Plan, part: Part) -> None:
    """Refuses a step or a result that reads what is not there."""
    given = {leaf.name for leaf in plan.graph.leaves}
    made = _check_steps(plan.once, {leaf.name for leaf in plan.graph.constants}, part["once"])
    lost = [table.made for table in plan.tables if table.made not in made]
    if lost:
        raise part.fail(f"cannot be: a table is '{lost[0]}', which is not there")
    known = _check_steps(plan.steps, given | {table.leaf.name for table in plan.tables}, part["steps"])
    for result in plan.results:
        if result.value.name not in known:
            raise part.fail(
                f"cannot be: the result '{result.name}' is '{result.value.name}', which is not there"
            )
    reads = Counter(name for step in plan.steps for name in step.reads)
    reads.update(result.value.name for result in plan.results)
    made = {name for step in plan.steps for name in step.defines}
    for number, step in enumerate(plan.steps):
        if isinstance(step, CallStep) or not step.into:
            continue
        if step.into not in made or step.into not in step.terms or reads[step.into] > 1:
            raise part.fail(f"cannot be: step {number + 1} writes into '{step.into}', which others need")


def _check_steps(steps: Sequence[Step | CallStep], known: set[str], part: Part) -> set[str]:
    """The names that are there after the steps, of which none reads what is not there before it."""
    known = set(known)
    for number, step in enumerate(steps):
        lost = sorted({*step.reads} - known)
        if isinstance(step, Step):
            lost += sorted({*axes_of_index(step.equation.left)} - {axis.name for axis in step.axes})
        if lost or known.intersection(step.defines):
            message = f"reads '{lost[0]}', which is not there" if lost else "makes what is there already"
            raise part.fail(f"cannot be: step {number + 1} {message}")
        known.update(step.defines)
    return known
