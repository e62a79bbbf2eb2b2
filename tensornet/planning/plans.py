"""What a plan is: steps, each an equation over at most a pair of tensors or a call, with their costs."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..amounts import amount
from ..documents import Part
from ..dtypes import itemsize
from ..errors import EquationError, TensornetError
from ..graph.apply import names_of_blocks, scoped, shown_call
from ..graph.elements import bytes_of, of_leaf
from ..graph.encoding import read_axes, read_element, read_graph, write_axes, write_graph
from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..graph.shape import Axis
from ..language.encoding import (
    read_equation,
    read_left,
    read_ref,
    read_size,
    write_equation,
    write_index,
    write_ref,
    write_size,
)
from ..language.equation import Equation
from ..language.expression import Call, Ref, Size, axes_of_index
from ..notebook import folded
from ..operations.functions import Element
from ..sizes import evaluate, product, put_in, size_names, symbol
from .arrangement import Arrangement
from .device import CONSTANTS, Certainty

__all__ = [
    "Alternative",
    "CallStep",
    "Plan",
    "Repetition",
    "Result",
    "Slicing",
    "Step",
    "Table",
    "read_plan",
    "write_plan",
]


SHOWN = 8
"""So many of the tensors kept for a way back are shown one by one, the largest."""


@dataclass(frozen=True)
class Step:
    """One operation of a plan.

    Attributes:
        equation: what it computes; the left side is the order in memory.
        axes: the axes in it, with their sizes, integers or in open sizes.
        flops: FLOPs of a contraction of two tensors, 0 for anything else.
        flop_formula: the same in the names of the axes.
        bytes: bytes read and written.
        seconds: expected time.
        element: what the elements of the result are.
        frees: tensors that are not needed after it.
        arrangement: how a pair is contracted, as a matrix product or otherwise.
        into: of a sum, the term that it is written into, which nothing else reads; "" if memory is made for it.
    """

    equation: Equation
    axes: tuple[Axis, ...]
    flops: int
    flop_formula: Any
    bytes: int
    seconds: float
    element: Element = Element.NUMBER
    frees: tuple[str, ...] = ()
    arrangement: Arrangement | None = None
    into: str = ""

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that it reads."""
        return tuple(ref.name for ref in self.equation.references)

    @property
    def defines(self) -> tuple[str, ...]:
        """The tensor that it computes."""
        return (self.equation.name,)

    @property
    def terms(self) -> tuple[str, ...]:
        """The tensors that are terms of it, where it is a sum."""
        match self.equation.right:
            case Call("add", terms):
                return tuple(term.name for term in terms if isinstance(term, Ref))
        return ()

    @functools.cached_property
    def open_sizes(self) -> frozenset[str]:
        """The open sizes that it depends on."""
        spoken = (part.axis for part in self.equation.parts if isinstance(part, Size))
        return frozenset((*spoken, *(name for axis in self.axes for name in size_names(axis.size))))

    def shown(self, names: Mapping[Plan, str]) -> str:
        """The step as a line of mathematics."""
        return str(self.equation)


@dataclass(frozen=True)
class Slicing:
    """A call done piece by piece along an axis, so that less is alive at once.

    Attributes:
        size: the name of the size of the axis.
        piece: that of the size of a piece, in the block.
        length: the positions of each piece but the last.
        count: the pieces there are at the sizes planned for.
        operands: the dimension along which each operand is cut, if it is.
        results: the dimension along which the pieces of each result are put together.
    """

    size: str
    piece: str
    length: int
    count: int
    operands: tuple[int | None, ...]
    results: tuple[int, ...]

    def __str__(self) -> str:
        return f"in {self.count} pieces of {self.length} along {self.size}"


@dataclass(frozen=True)
class Repetition:
    """A call repeated along an axis, each time with what the last one left.

    Attributes:
        axis: the axis; its size is an integer, or in open sizes.
        count: the positions there are at the sizes planned for.
        cuts: the dimension along which each of the first operands is cut.
        states: for each of the operands behind them the result of the block that takes its place.
        back: whether it goes from the last position to the first.
        segment: where nothing is kept for the way back but the states between segments, of which each is made again
            there, the positions of one.
    """

    axis: Axis
    count: int
    cuts: tuple[int, ...]
    states: tuple[int, ...]
    back: bool
    segment: int | None = None

    def __str__(self) -> str:
        again = "" if self.segment is None else f", made again {self.segment} at a time"
        return f"along {self.axis.name}{' from its end' if self.back else ''}, {self.count} times{again}"


@dataclass(frozen=True)
class CallStep:
    """A call of a block, which is planned once and called as often as the graph does.

    Attributes:
        plan: the plan of the block.
        scope: stands before the names of its parameters and constants.
        operands: the tensors given, each with a dimension for each that the block declares.
        results: the tensors that come back.
        shapes: their sizes, integers or in open sizes.
        frees: tensors that are not needed after it.
        tables: what the tables of the block are called here.
        slicing: how it is done piece by piece, if it is.
        again: whether nothing is kept of it for the way back but what it is given: there it is made again.
        along: how it is repeated along an axis, if it is; the results, the first ones of the block, are put
            together along that.
    """

    plan: Plan
    scope: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    shapes: tuple[tuple[Any, ...], ...]
    frees: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    slicing: Slicing | None = None
    again: bool = False
    along: Repetition | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that it reads: the operands, the parameters, the constants and the tables of the block."""
        block = self.plan
        held = (leaf.name for leaf in (*block.graph.parameters, *block.constants))
        return (*self.operands, *(scoped(self.scope, name) for name in held), *self.tables)

    @property
    def open_sizes(self) -> frozenset[str]:
        """The open sizes that it depends on."""
        own = size_names(self.along.axis.size) if self.along is not None else ()
        return frozenset((*self.plan.graph.open_sizes, *own))

    @property
    def defines(self) -> tuple[str, ...]:
        """The tensors that it computes."""
        return self.results

    @property
    def times(self) -> int:
        """How often the block is called: once for each piece, or each position."""
        if self.along is not None:
            return self.along.count
        return 1 if self.slicing is None else self.slicing.count

    @property
    def flops(self) -> int:
        """FLOPs of the contractions in the block."""
        return self.times * self.plan.flops

    @property
    def flop_formula(self) -> Any:
        """The same in the names of the axes."""
        formula = self.plan.flop_formula
        if self.along is not None:
            return formula * self.along.axis.size
        return (
            formula
            if self.slicing is None
            else put_in(formula, {self.slicing.piece: symbol(self.slicing.size)})
        )

    @property
    def bytes(self) -> int:
        """Bytes read and written in the block."""
        return self.times * self.plan.bytes

    @property
    def seconds(self) -> float:
        """Expected time of the block."""
        return self.times * self.plan.seconds

    def shown(self, names: Mapping[Plan, str]) -> str:
        """The call as a line, the block by its name."""
        call = shown_call(self.results, names[self.plan], self.operands, self.scope)
        call += ", made again for the way back" if self.again else ""
        call += f" {self.along}" if self.along is not None else ""
        return call if self.slicing is None else f"{call} {self.slicing}"


@dataclass(frozen=True)
class Result:
    """Where an output of the graph is found when the steps are done, and what its elements are."""

    name: str
    value: Ref
    left: tuple[str | tuple[str, ...], ...]
    axes: tuple[Axis, ...]
    element: Element = Element.NUMBER


@dataclass(frozen=True)
class Table:
    """A tensor that is computed once and handed to the function at each call.

    Attributes:
        leaf: what the steps know it as.
        made: the constant or the result of a step done once that it is.
        below: where it holds positions that are looked up, the size that they must be below.
    """

    leaf: Leaf
    made: str
    below: Any = None


@dataclass(frozen=True)
class Alternative:
    """Another order for the same graph, for comparison."""

    name: str
    flops: int
    bytes: int
    seconds: float
    peak_memory: int


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
    backend: str
    device: str
    dtype: str
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
    code: str = field(default="", repr=False)

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
        return json.dumps({"format": FORMAT, "version": VERSION, **write_plan(self)}, indent=1)

    @staticmethod
    def from_json(text: str) -> Plan:
        """Reads what `to_json` wrote: an equal plan. Nothing in it is run.

        Raises:
            EquationError: the text is no such document, or the plan in it cannot be.
            ShapeError: nor can its sizes.
        """
        document = Part.of(text, "plan")
        if document["format"].value != FORMAT or document["version"].value != VERSION:
            found = f"{document['format'].value} {document['version'].value}"
            fix = "plan anew, or use the library that wrote it"
            raise EquationError(f"not a plan of version {VERSION}: {found}", fix=fix)
        return read_plan(document)


def _kind(step: CallStep) -> str:
    """What a function is called that has no scope."""
    return "product" if step.plan.backward is not None else "step" if step.along is not None else ""


# ---------------------------------------------------------------------------- as JSON

FORMAT, VERSION = "tensornet.plan", 9


def write_plan(plan: Plan) -> dict[str, Any]:
    """A plan as a value of JSON; its sums stand there for whoever reads it, and are not read back."""
    numbers = {block: number for number, block in enumerate(plan.functions)}
    return {"functions": [_write_plan(block, numbers) for block in numbers], **_write_plan(plan, numbers)}


def _write_plan(plan: Plan, numbers: Mapping[Plan, int]) -> dict[str, Any]:
    return {
        "backend": plan.backend,
        "device": plan.device,
        "dtype": plan.dtype,
        "sizes": dict(plan.sizes),
        "assumed": list(plan.assumed),
        "graph": write_graph(plan.graph),
        "steps": [_write_any(step, numbers) for step in plan.steps],
        "once": [_write_any(step, numbers) for step in plan.once],
        "tables": [_write_table(table) for table in plan.tables],
        "results": [_write_result(result) for result in plan.results],
        "flops": plan.flops,
        "bytes": plan.bytes,
        "seconds": plan.seconds,
        "peak_memory": plan.peak_memory,
        "certainty": plan.certainty and asdict(plan.certainty),
        "backward": plan.backward and write_plan(plan.backward),
        "recorded": dict(plan.recorded),
        "alternatives": [asdict(each) for each in plan.alternatives],
        "code": plan.code,
    }


def read_plan(part: Part, graph: Graph | None = None) -> Plan:
    """What `write_plan` gave, checked: every tensor is there before it is read.

    Args:
        part: the plan.
        graph: what it computes, if that is known.

    Raises:
        EquationError: it is no plan.
        ShapeError: its sizes cannot be.
    """
    blocks: list[Plan] = []
    for each in part["functions"]:
        blocks.append(_read_plan(each, blocks))
    return _read_plan(part, blocks, graph)


def _read_plan(part: Part, blocks: Sequence[Plan], graph: Graph | None = None) -> Plan:
    try:
        found = Plan(
            read_graph(part["graph"]) if graph is None else graph,
            part["backend"].text(),
            part["device"].text(),
            part["dtype"].text(),
            tuple((name, size.whole()) for name, size in part["sizes"].items()),
            tuple(_read_step(each, blocks) for each in part["steps"]),
            tuple(_read_result(each) for each in part["results"]),
            part["peak_memory"].whole(),
            part["assumed"].names(),
            tuple(_read_alternative(each) for each in part["alternatives"]),
            tuple(_read_step(each, blocks) for each in part["once"]),
            tuple(_read_table(each) for each in part["tables"]),
            None if part["certainty"].is_none else _read_certainty(part["certainty"]),
            None if part["backward"].is_none else read_plan(part["backward"]),
            tuple((name, size.whole()) for name, size in part["recorded"].items()),
            part["code"].text(),
        )
    except TensornetError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise part.fail(f"is no plan: {error!r}") from None
    _check_names(found, part)
    return found


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


def _read_certainty(part: Part) -> Certainty:
    return Certainty(part["spread"].real(), part["constants"].one_of(*CONSTANTS))


def _write_any(step: Step | CallStep, numbers: Mapping[Plan, int]) -> dict[str, Any]:
    return _write_call(step, numbers) if isinstance(step, CallStep) else _write_step(step)


def _write_table(table: Table) -> dict[str, Any]:
    assert table.leaf.holds is not None
    return {
        "name": table.leaf.name,
        "dims": [write_axes(dim) for dim in table.leaf.dims],
        "element": table.leaf.holds.name,
        "made": table.made,
        "below": None if table.below is None else write_size(table.below),
    }


def _read_table(part: Part) -> Table:
    dims = tuple(read_axes(dim) for dim in part["dims"])
    leaf = Leaf(part["name"].name(), "constant", dims, holds=read_element(part["element"]))
    below = part["below"]
    return Table(leaf, part["made"].name(), None if below.is_none else read_size(below))


def _write_step(step: Step) -> dict[str, Any]:
    return {
        **write_equation(step.equation),
        "axes": write_axes(step.axes),
        "flops": step.flops,
        "flop_formula": write_size(step.flop_formula),
        "bytes": step.bytes,
        "seconds": step.seconds,
        "element": step.element.name,
        "frees": list(step.frees),
        "arrangement": step.arrangement and asdict(step.arrangement),
        "into": step.into,
    }


def _write_call(step: CallStep, numbers: Mapping[Plan, int]) -> dict[str, Any]:
    return {
        "function": numbers[step.plan],
        "scope": step.scope,
        "operands": list(step.operands),
        "results": list(step.results),
        "shapes": [[write_size(size) for size in shape] for shape in step.shapes],
        "frees": list(step.frees),
        "tables": list(step.tables),
        "slicing": step.slicing and asdict(step.slicing),
        "again": step.again,
        "along": step.along and _write_repetition(step.along),
    }


def _write_repetition(along: Repetition) -> dict[str, Any]:
    return {**asdict(along), "axis": write_axes((along.axis,))}


def _read_repetition(part: Part) -> Repetition:
    (axis,) = read_axes(part["axis"])
    cuts, states = (tuple(each.whole() for each in part[name]) for name in ("cuts", "states"))
    segment = None if part["segment"].is_none else part["segment"].whole()
    return Repetition(axis, part["count"].whole(), cuts, states, part["back"].truth(), segment)


def _read_call(part: Part, blocks: Sequence[Plan]) -> CallStep:
    call = CallStep(
        part["function"].among(blocks),
        part["scope"].scope(),
        part["operands"].names(),
        part["results"].names(),
        tuple(tuple(read_size(size) for size in shape) for shape in part["shapes"]),
        part["frees"].names(),
        part["tables"].names(),
        None if part["slicing"].is_none else _read_slicing(part["slicing"]),
        part["again"].truth(),
        None if part["along"].is_none else _read_repetition(part["along"]),
    )
    block = call.plan
    made = 1 if block.backward is not None else len(block.results)  # besides is what its way back is given
    taken = len(call.results) if call.along is not None else made
    if call.along is not None:
        _check_repetition(call, call.along, part)
    if len(call.operands) != len(block.graph.inputs) or len(call.results) != taken:
        raise part.fail(
            "gives a block another number of tensors than it takes, or takes another than it gives"
        )
    if len(call.shapes) != len(call.results):
        raise part.fail("has not a shape for each result")
    if len(call.tables) not in (0, len(block.tables)):
        raise part.fail("has not a name for each table of its block")
    return call


def _check_repetition(call: CallStep, along: Repetition, part: Part) -> None:
    """Refuses a repetition that hands on what is not there."""
    given, made = len(along.cuts) + len(along.states), len(call.plan.results)
    if len(call.results) > made or given > len(call.operands) or any(at >= made for at in along.states):
        raise part.fail("is repeated with states that it does not make")
    if along.segment is not None and along.segment < 1:
        raise part.fail("is made again no position at a time")


def _read_slicing(part: Part) -> Slicing:
    return Slicing(
        part["size"].name(),
        part["piece"].name(),
        part["length"].whole(),
        part["count"].whole(),
        tuple(None if each.is_none else each.whole() for each in part["operands"]),
        tuple(each.whole() for each in part["results"]),
    )


def _read_step(part: Part, blocks: Sequence[Plan]) -> Step | CallStep:
    if part.get("function") is not None:
        return _read_call(part, blocks)
    arrangement = part["arrangement"]
    return Step(
        read_equation(part),
        read_axes(part["axes"]),
        part["flops"].whole(),
        read_size(part["flop_formula"]),
        part["bytes"].whole(),
        part["seconds"].real(),
        read_element(part["element"]),
        part["frees"].names(),
        None if arrangement.is_none else _read_arrangement(arrangement),
        part["into"].text(),
    )


def _read_arrangement(part: Part) -> Arrangement:
    return Arrangement(
        part["kind"].one_of("matmul", "linear", "dot", "multiply"),
        part["swapped"].truth(),
        part["batch"].names(),
        part["rows"].names(),
        part["columns"].names(),
        part["summed"].names(),
        tuple(group.names() for group in part["result"]),
        part["seconds"].real(),
    )


def _write_result(result: Result) -> dict[str, Any]:
    return {
        "name": result.name,
        "value": write_ref(result.value),
        "left": write_index(result.left),
        "axes": write_axes(result.axes),
        "element": result.element.name,
    }


def _read_result(part: Part) -> Result:
    left, axes = read_left(part["left"]), read_axes(part["axes"])
    return Result(part["name"].name(), read_ref(part["value"]), left, axes, read_element(part["element"]))


def _read_alternative(part: Part) -> Alternative:
    return Alternative(
        part["name"].text(),
        part["flops"].whole(),
        part["bytes"].whole(),
        part["seconds"].real(),
        part["peak_memory"].whole(),
    )
