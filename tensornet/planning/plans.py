"""The plan: steps in order with their costs, printed and serialised.

A step is one operation on at most two tensors. A call may be sliced, or repeated along an axis.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ..codec import Part, Scope, Text, document, read, state_of, write
from ..contraction.pairs import Groups, Strategy, view_order
from ..device.cost_model import Certainty
from ..display import Filled, amount, folded, preformatted, table
from ..dtypes import Element, itemsize
from ..errors import EquationError
from ..graph.element_types import bytes_of, of_leaf
from ..graph.graph import Graph
from ..graph.leaves import Along, Leaf, names_of_blocks, scoped, shown_call
from ..graph.shape_inference import Axis, Dim, dim_size
from ..language.equation import Equation
from ..language.expression import Call, Contraction, Ref, rename_tensors
from ..ops.record import names_in
from ..sizes import evaluate, product, put_in, size_names, symbol, total


@dataclass(frozen=True)
class Multiplied:
    """A product of two tensors.

    Attributes:
        a, b: the tensors.
        bias: the tensor that is added to each row, if any.
    """

    a: Ref
    b: Ref
    bias: Ref | None = None

    def read_by(self, way: Strategy) -> tuple[tuple[Ref, Groups], tuple[Ref, Groups]]:
        """The left and the right operand, each with the groups of axes that the product reads, in their order."""
        a, b, rows, columns = self.a, self.b, way.rows, way.columns
        if way.swapped:
            a, b, rows, columns = b, a, columns, rows
        match way.kind:
            case "linear":
                return (a, (*way.result[:-1], way.summed)), (b, (way.result[-1], way.summed))
            case "dot":
                return (a, (way.batch, way.summed)), (b, (way.batch, way.summed))
        return (a, (way.batch, rows, way.summed)), (b, (way.batch, way.summed, columns))


@document()
@dataclass(frozen=True)
class Step:
    """One operation of a plan.

    Attributes:
        equation: the equation that it computes. The left side is the order in memory.
        axes: the axes in it, with their sizes, integers or in open sizes.
        flops: FLOPs of a contraction of two tensors, 0 for anything else.
        flop_formula: the same in the names of the axes.
        bytes: bytes read and written.
        seconds: expected time.
        element: the element type of the result.
        frees: tensors that are not needed after it.
        arrangement: how a pair is contracted, as a matrix product or otherwise.
    """

    equation: Equation
    axes: tuple[Axis, ...]
    flops: int
    flop_formula: Any
    bytes: int
    seconds: float
    element: Element = Element.NUMBER
    frees: tuple[str, ...] = ()
    arrangement: Strategy | None = None

    @functools.cached_property
    def reads(self) -> tuple[str, ...]:
        """The tensors that it reads."""
        return self.equation.operands

    @functools.cached_property
    def defines(self) -> tuple[str, ...]:
        """The tensor that it computes."""
        return (self.equation.name,)

    @property
    def elements(self) -> tuple[Element, ...]:
        """The element type of its result."""
        return (self.element,)

    @functools.cached_property
    def dims(self) -> tuple[tuple[Dim, ...]]:
        """The dimensions of its result."""
        axes = {axis.name: axis for axis in self.axes}
        return (tuple(tuple(axes[name] for name in names_in(entry)) for entry in self.equation.left),)

    @property
    def shapes(self) -> tuple[tuple[Any, ...]]:
        """The sizes of its result."""
        return (tuple(map(dim_size, self.dims[0])),)

    def reading(self, names: Mapping[str, str], scope: str = "") -> Step:
        """The step with other names for the tensors that it reads, outside of the block that it is in."""
        if not self.frees and names.keys().isdisjoint(self.reads):
            return self
        right = rename_tensors(self.equation.right, names)
        return replace(self, equation=replace(self.equation, right=right), frees=())

    def defining(self, names: Sequence[str]) -> Step:
        """The step with another name for the tensor that it computes."""
        return replace(self, equation=replace(self.equation, name=names[0]))

    @functools.cached_property
    def multiplied(self) -> Multiplied | None:
        """The product that it is, if it is one."""
        match self.equation.right if self.arrangement is not None else None:
            case Contraction((Ref() as a, Ref() as b)):
                return Multiplied(a, b)
            case Call("add", (Contraction((Ref() as a, Ref() as b)), Ref() as bias)):
                return Multiplied(a, b, bias)
        return None

    @functools.cached_property
    def copied(self) -> list[tuple[Ref, Groups]]:
        """The operands that a product of matrices or vectors copies, each with the groups of the copy."""
        way, product, found = self.arrangement, self.multiplied, list[tuple[Ref, Groups]]()
        if way is None or product is None or way.kind in ("multiply", "sum"):
            return found
        for ref, groups in product.read_by(way):
            layout = ref.layout
            own = tuple(tuple([axis for axis in group if axis in layout]) for group in groups)
            order = view_order(layout, own)
            if order is None or (way.kind == "matmul" and own[0] and len(order) > 1 and order[-1] == 0):
                found.append((ref, own))
        return found

    @functools.cached_property
    def open_sizes(self) -> frozenset[str]:
        """The open sizes that it depends on."""
        spoken = (size.axis for size in self.equation.right.sizes)
        return frozenset((*spoken, *(name for axis in self.axes for name in size_names(axis.size))))

    def shown(self, names: Mapping[Any, str]) -> str:
        """The step as a line of mathematics."""
        return str(self.equation)


@document()
@dataclass(frozen=True)
class Slicing:
    """A call computed piece by piece along an axis, so that less is alive at once, or stays in the cache.

    Attributes:
        size: the name of the size of the axis.
        piece: the name of the size of a piece, in the block.
        length: the number of positions of each piece except the last.
        count: the number of pieces at the sizes of the plan.
        operands: the dimension along which each operand is cut, if it is.
        results: the dimension along which the pieces of each result are concatenated.
        is_tile: whether it is for speed alone: what is recorded, by a compiler or by autograd, is computed whole.
    """

    size: str
    piece: str
    length: int
    count: int
    operands: tuple[int | None, ...]
    results: tuple[int, ...]
    is_tile: bool = False

    def into(self, length: int, size: int) -> Slicing:
        """The slicing of an axis of the given size into pieces of the given length."""
        return replace(self, length=length, count=-(-size // length))

    def __str__(self) -> str:
        return f"in {self.count} pieces of {self.length} along {self.size}"


@document()
@dataclass(frozen=True)
class Repetition(Along):
    """A call repeated along an axis, where each iteration gets the states that the one before left.

    Attributes:
        axis, cuts, states, back: as in the graph.
        count: the number of positions at the sizes of the plan.
        segment: the positions of a segment, if only the states between segments are kept for the backward pass.
    """

    count: int = 1
    segment: int | None = None

    def __str__(self) -> str:
        recomputed = "" if self.segment is None else f", recomputed {self.segment} at a time"
        return f"along {self.axis.name}{' from its end' if self.back else ''}, {self.count} times{recomputed}"


@document()
@dataclass(frozen=True)
class Result:
    """Where an output of the graph is found after the steps, and its element type."""

    name: str
    value: Ref
    left: tuple[str | tuple[str, ...], ...]
    axes: tuple[Axis, ...]
    element: Element = Element.NUMBER


@document()
@dataclass(frozen=True)
class Table:
    """A tensor that is computed once and passed to the function at each call.

    Attributes:
        leaf: the leaf that the steps read.
        made: the constant, or the result of a step done once, that the table holds.
        below: the size that its elements must be below, if they are positions that are looked up.
    """

    leaf: Leaf
    made: str
    below: Any = None


SHOWN = 8
"""The number of tensors kept for a backward pass that are shown one by one, the largest first."""


@document()
@dataclass(frozen=True)
class Alternative:
    """Another order for the same graph, for comparison."""

    name: Text
    flops: int
    bytes: int
    seconds: float
    peak_memory: int


class OnDemand(Sequence[Alternative]):
    """Alternatives that are planned at first access: finding them takes a third of the time of a plan."""

    def __init__(self, make: Callable[[], Iterable[Alternative]]) -> None:
        self._make = make

    @functools.cached_property
    def _found(self) -> tuple[Alternative, ...]:
        return tuple(self._make())

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, at: Any) -> Any:
        return self._found[at]

    def __eq__(self, other: object) -> bool:
        return self._found == (other._found if isinstance(other, OnDemand) else other)

    def __hash__(self) -> int:
        return hash(self._found)

    def __repr__(self) -> str:
        return repr(self._found)

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self._found,)


@document()
@dataclass(frozen=True)
class CallStep:
    """A call of a block. The block is planned once and called as often as the graph calls it.

    Attributes:
        plan: the plan of the block.
        scope: the prefix of the names of its parameters and constants.
        operands: the tensors passed in. Each has one dimension for each that the block declares.
        results: the tensors returned.
        shapes: their sizes, integers or in open sizes.
        frees: tensors that are not needed after it.
        tables: the names of the block's tables in the caller.
        slicing: how it is computed piece by piece, if it is.
        recomputed: whether the backward pass computes it again, so that only its operands are kept.
        along: how it is repeated along an axis, if it is. The results are the first ones of the block, stacked along
            that axis, and then the last states if these are results too.
    """

    plan: Plan
    scope: Scope
    operands: tuple[str, ...]
    results: tuple[str, ...]
    shapes: tuple[tuple[Any, ...], ...]
    frees: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    slicing: Slicing | None = None
    recomputed: bool = False
    along: Repetition | None = None

    def checked(self, part: Part) -> None:
        """Raises an error if the call does not fit its block."""
        block, along, made = self.plan, self.along, len(self.results)
        outputs, taken = len(block.results), len(self.operands)
        fits = taken == len(block.graph.inputs) and made == len(self.shapes)
        fits &= len(self.tables) in (0, len(block.tables))
        if along is None:
            fits &= made == (1 if block.backward is not None else outputs)  # others are residuals
        else:
            fits &= made <= outputs and all(n < outputs for n in along.states)
            fits &= len(along.cuts) + len(along.states) <= taken and (
                along.segment is None or along.segment >= 1
            )
        if not fits:
            raise part.fail("does not fit the block that it calls")

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that it reads: the operands, the parameters, the constants and the tables of the block."""
        return (*self.operands, *self.held, *self.tables)

    @property
    def held(self) -> tuple[str, ...]:
        """The names of the block's parameters and constants in the caller."""
        leaves = (*self.plan.graph.parameters, *self.plan.constants)
        return tuple(scoped(self.scope, leaf.name) for leaf in leaves)

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
    def elements(self) -> tuple[Element, ...]:
        """The element types of the results."""
        return tuple(result.element for result in self.plan.results[: len(self.results)])

    @property
    def dims(self) -> tuple[tuple[Dim, ...], ...]:
        """The dimensions of each result, with axes of their own."""
        return tuple(tuple((Axis(f"d{n}", size),) for n, size in enumerate(shape)) for shape in self.shapes)

    @property
    def times(self) -> int:
        """How often the block is called: once, or once for each piece or position."""
        if self.along is not None:
            return self.along.count
        return 1 if self.slicing is None else self.slicing.count

    @property
    def flops(self) -> int:
        """FLOPs of the contractions in all calls of the block."""
        return self.times * self.plan.flops

    @property
    def flop_formula(self) -> Any:
        """The same in the names of the axes."""
        formula, slicing = self.plan.flop_formula, self.slicing
        if self.along is not None:
            return formula * self.along.axis.size
        return formula if slicing is None else put_in(formula, {slicing.piece: symbol(slicing.size)})

    @property
    def bytes(self) -> int:
        """Bytes read and written in all calls of the block."""
        return self.times * self.plan.bytes

    @property
    def seconds(self) -> float:
        """Expected time of all calls of the block."""
        return self.times * self.plan.seconds

    def reading(self, names: Mapping[str, str], scope: str = "") -> CallStep:
        """The call with other names for the tensors that it reads. In a block, its scope is below that of the block."""
        operands, tables = (
            tuple(names.get(name, name) for name in of) for of in (self.operands, self.tables)
        )
        return replace(self, operands=operands, tables=tables, scope=scoped(scope, self.scope), frees=())

    def defining(self, names: Sequence[str]) -> CallStep:
        """The call with other names for the tensors that it computes."""
        return replace(self, results=tuple(names))

    def shown(self, names: Mapping[Plan, str]) -> str:
        """The call as a line of text, with the name of the block."""
        call = shown_call(self.results, names[self.plan], self.operands, self.scope)
        call += ", recomputed in the backward pass" if self.recomputed else ""
        call += f" {self.along}" if self.along is not None else ""
        return call if self.slicing is None else f"{call} {self.slicing}"


AnyStep: TypeAlias = Step | CallStep


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
        graph: the graph that is computed, as the user wrote it.
        backend, device, dtype: the target of the plan.
        sizes: names and values of the sizes of the plan.
        assumed: the names among them whose values were not given.
        steps: the operations and calls of blocks, in order.
        results: where the outputs are.
        peak_memory: bytes of the tensors alive at the worst step, inputs and parameters included.
        alternatives: other orders ("as written", "fewest FLOPs"), for comparison.
        once: the operations that depend on no argument of a call. They are done before the first call.
        tables: the tensors that `once` computes and the steps read.
        certainty: how reliable the expected times are. For a block, the plan that calls it has this.
        backward: the plan of the backward pass of a product that gradients go through.
        remakes: whether autograd's backward pass recomputes the results of cheap functions.
        recorded: the bytes that autograd keeps for its backward pass, where it is used: first those outside of calls,
            then those of each call, by its result. Leaves count as zero bytes.
        code: the source of the Python function that runs, and of the one that computes its tables.
    """

    graph: Graph
    backend: Text
    device: Text
    dtype: Text
    sizes: tuple[tuple[str, int], ...]
    steps: tuple[AnyStep, ...]
    results: tuple[Result, ...]
    peak_memory: int
    assumed: tuple[str, ...] = ()
    alternatives: Sequence[Alternative] = ()
    once: tuple[AnyStep, ...] = ()
    tables: tuple[Table, ...] = ()
    certainty: Certainty | None = None
    backward: Plan | None = None
    remakes: bool = False
    recorded: tuple[tuple[str, int], ...] = ()
    code: Text = field(default="", repr=False)

    def checked(self, part: Part) -> None:
        """Raises an error if a step or a result reads a tensor that is not defined."""
        given = {leaf.name for leaf in self.graph.leaves}
        made = _check_steps(self.once, {leaf.name for leaf in self.graph.constants}, part["once"])
        lost = [table.made for table in self.tables if table.made not in made]
        if lost:
            raise part.fail(f"cannot be: a table is '{lost[0]}', which is not there")
        known = _check_steps(self.steps, given | {table.leaf.name for table in self.tables}, part["steps"])
        for result in self.results:
            if result.value.name not in known:
                raise part.fail(
                    f"cannot be: the result '{result.name}' is '{result.value.name}', which is not there"
                )

    __getstate__ = state_of

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.graph, self.backend, self.device, self.dtype, self.sizes, self.code))

    @functools.cached_property
    def functions(self) -> Mapping[Plan, str]:
        """The plans of the blocks that are called, each with a name. Those called by others come first."""
        return names_of_blocks(self._called(), ())

    @property
    def goes_back(self) -> bool:
        """Whether products in it are planned forward and backward."""
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
        """The constants that the steps of each call read."""
        return self._read_by(self.steps, (each.value.name for each in self.results))

    @functools.cached_property
    def sources(self) -> tuple[Leaf, ...]:
        """The constants that the tables are computed from."""
        return self._read_by(self.once, (table.made for table in self.tables))

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The leaves that the steps may read (inputs, parameters, constants that they read, and tables)."""
        tables = (table.leaf for table in self.tables)
        return (*self.graph.inputs, *self.graph.parameters, *self.constants, *tables)

    def _read_by(self, steps: Iterable[AnyStep], others: Iterable[str]) -> tuple[Leaf, ...]:
        read = {*others, *(name for step in steps for name in step.reads)}
        return tuple(leaf for leaf in self.graph.constants if leaf.name in read)

    @functools.cached_property
    def sizes_once(self) -> tuple[str, ...]:
        """The open sizes that the tables depend on, sorted."""
        names = {name for table in self.tables for name in size_names(table.below or 0)}
        return tuple(sorted(names.union(*(step.open_sizes for step in self.once))))

    @property
    def flops(self) -> int:
        """FLOPs of the contractions, which are 2 × the product of the sizes of all axes of each pairwise step."""
        return sum(step.flops for step in self.steps)

    @property
    def flop_formula(self) -> Any:
        """The same in the names of the axes."""
        return total(step.flop_formula for step in self.steps)

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
        for name, flops, moved, peak, seconds, ratio in self._costs():
            line = f"     {name + ':':<15} {flops}, {moved} moved, peak {peak}, expected {seconds}"
            lines.append(f"{line}  ({ratio} the time)" if ratio else line)
        if self.certainty is not None:
            lines.append(f"     {'expected times:':<15} {self.certainty}")
        return "\n".join(lines)

    def _costs(self) -> Iterator[tuple[str, ...]]:
        """The costs of the plan, of its backward pass if it has one, and of other orders, as text.

        These are the name, FLOPs, bytes moved, peak memory, expected time, and for other orders the ratio of times."""
        rows = [Alternative("this plan", self.flops, self.bytes, self.seconds, self.peak_memory)]
        if back := [
            (plan.backward, times) for plan, times in self._calls.items() if plan.backward is not None
        ]:
            flops, moved = (sum(n * getattr(plan, cost) for plan, n in back) for cost in ("flops", "bytes"))
            seconds = sum(n * plan.seconds for plan, n in back)
            rows.append(Alternative("back", flops, moved, seconds, max(plan.peak_memory for plan, _ in back)))
        for number, row in enumerate((*rows, *self.alternatives)):
            costs = ((row.flops, "FLOP"), (row.bytes, "B"), (row.peak_memory, "B"), (row.seconds, "s"))
            ratio = f"{row.seconds / self.seconds:.2f}×" if number >= len(rows) and self.seconds else ""
            yield row.name, *(amount(*cost) for cost in costs), ratio

    def _repr_html_(self) -> str:
        """The plan in a notebook: its steps, with those of the called functions folded."""
        title, *rest = str(self).splitlines()
        calls = self._calls
        parts = {
            f"{name}, called {calls[block]}×": block._table(block.steps)
            for block, name in self.functions.items()
        }
        if self.once:
            parts["done once"] = self._table(self.once)
        parts["all of it as text"] = preformatted("\n".join(rest))
        return folded(title, self._table(self.steps) + self._table_of_costs(), parts)

    def _table(self, steps: Sequence[AnyStep]) -> str:
        """The steps with their costs, and a bar for the time of each beside that of the longest."""
        longest = max((step.seconds for step in steps), default=0) or 1.0
        rows = (
            (
                str(number),
                step.shown(self.functions),
                amount(step.flops, "FLOP"),
                amount(step.bytes, "B"),
                Filled(amount(step.seconds, "s"), step.seconds / longest),
            )
            for number, step in enumerate(steps, 1)
        )
        return table(("", "step", "FLOPs", "moved", "expected time"), rows, "rcrrr")

    def _table_of_costs(self) -> str:
        """The costs of the plan, of its backward pass and of other orders."""
        notes = [] if self.certainty is None else [f"expected times: {self.certainty}"]
        return table(
            ("", "FLOPs", "moved", "peak memory", "expected time", "×"), self._costs(), "lrrrrr", notes=notes
        )

    @property
    def kept(self) -> tuple[tuple[str, int], ...]:
        """The tensors kept from the forward to the backward pass, with their bytes. Leaves are not counted."""
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
        """How often each of the functions is called. The plan itself counts once."""
        found = Counter({self: 1})
        for step in (step for each in (self, *self.functions) for step in (*each.once, *each.steps)):
            if isinstance(step, CallStep):
                found[step.plan] += 1 if step.along is None else step.along.count
        return found

    def _shown_body(self) -> Iterator[str]:
        """The lines of the steps, of the called functions, of the steps done once, and of the backward pass."""
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
        """The lines of the tensors kept for the backward pass, and of its steps."""
        if self.backward is not None:
            yield f"back, of what is given and of {self._shown_kept() or 'nothing else'}:"
            yield from self.backward._shown_body()
        elif self.recorded:
            total = sum(size for _, size in self.kept)
            told = f"{amount(total, 'B')}: {self._shown_kept()}" if total else "nothing but what is given"
            yield f"autograd keeps {told}{', and recomputes cheap results' if self.remakes else ''}"

    def _shown_kept(self) -> str:
        """The kept tensors as text. The largest are listed one by one, the others only in total."""
        largest = sorted((each for each in self.kept if each[1]), key=lambda each: -each[1])
        told = [f"{name or 'what is around calls'} of {amount(size, 'B')}" for name, size in largest[:SHOWN]]
        rest = [size for _, size in largest[SHOWN:]]
        return ", ".join([*told, *([f"{len(rest)} more of {amount(sum(rest), 'B')}"] if rest else [])])

    def _shown_steps(self, steps: Sequence[AnyStep]) -> Iterator[str]:
        shown = [step.shown(self.functions) for step in steps]
        width = min(76, max((len(text) for text in shown), default=0))
        for number, (text, step) in enumerate(zip(shown, steps, strict=True), 1):
            cost = f"{amount(step.flops, 'FLOP'):>12}  {amount(step.bytes, 'B'):>9}  {amount(step.seconds, 's'):>9}"
            yield f"{number:3}  {text:<{width}}  {cost}"

    def _shown_sizes(self) -> str:
        shown = {True: list[str](), False: list[str]()}
        for name, value in self.sizes:
            shown[name in self.assumed].append(f"{name}={value:,}")
        told = {"at": shown[False], "assuming": shown[True]}
        return "".join(f", {word} {', '.join(sizes)}" for word, sizes in told.items() if sizes)

    def to_json(self) -> str:
        """The plan as JSON: the graph and target, the steps as equations with their costs, the code."""
        return json.dumps({"format": FORMAT, "version": VERSION, **write(self)}, indent=1)

    @staticmethod
    def from_json(text: str) -> Plan:
        """An equal plan, read from the output of `to_json`. No code in it is run.

        A plan is read to look at its steps, costs and code, and to compare it. What runs is its graph:
        `tn.compile(plan.graph, backend=plan.backend, device=plan.device, dtype=plan.dtype)`, which plans again unless
        the folder `TENSORNET_CACHE` has the plan.

        Example:
            >>> import numpy as np, tensornet as tn
            >>> plan = tn.Plan.from_json(tn.plan(tn.layer("y[i] = 2 * x[i]", inputs="x")).to_json())
            >>> tn.compile(plan.graph, backend=plan.backend)({}, np.ones(2))
            array([2., 2.])

        Raises:
            EquationError: the text is no such document, or the plan in it is invalid.
            ShapeError: the sizes in it are invalid.
        """
        whole = Part.of(text, "plan")
        if whole["format"].value != FORMAT or whole["version"].value != VERSION:
            found = f"{whole['format'].value} {whole['version'].value}"
            fix = "plan again, or use the version of the library that wrote it"
            raise EquationError(f"not a plan of version {VERSION}: {found}", fix=fix)
        return read(Plan, whole)


def _kind(step: CallStep) -> str:
    """The name of a function that has no scope."""
    return "product" if step.plan.backward is not None else "step" if step.along is not None else ""


# ---------------------------------------------------------------------------- as JSON

FORMAT, VERSION = "tensornet.plan", 16


def _check_steps(steps: Sequence[AnyStep], known: set[str], part: Part) -> set[str]:
    """The names defined after the steps. Raises an error if a step reads a name that is not defined before it."""
    known = set(known)
    for number, step in enumerate(steps):
        lost = sorted({*step.reads} - known)
        if isinstance(step, Step):
            lost += sorted({*step.equation.kept} - {axis.name for axis in step.axes})
        if lost or known.intersection(step.defines):
            message = (
                f"reads '{lost[0]}', which is not there" if lost else "defines a tensor that exists already"
            )
            raise part.fail(f"cannot be: step {number + 1} {message}")
        known.update(step.defines)
    return known
