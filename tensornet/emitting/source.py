"""Plan to source: a plain Python function of the backend's own operations, one line a step.

The function holds no loop and no plan; sizes that are open are read from the shapes of the
arguments, so one function serves every batch size.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import BackendError, ShapeError
from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..language.expression import (
    ELLIPSIS,
    Call,
    Contraction,
    Expression,
    Index,
    Ref,
    axes_of_index,
    fresh,
    is_scalar,
    option_axes,
    references,
    show,
)
from ..language.patterns import pattern_of
from ..operations.functions import CONVERSIONS, FUNCTIONS, Element
from ..operations.structure import CONCAT
from ..planning.arrangement import Arrangement, flatten, view_order
from ..planning.blocks import with_functions
from ..planning.plans import CallStep, Plan, Result, Step, Table
from ..protocol import Backend
from ..sizes import invert_size, product, symbol
from .spelling import (
    FUNCTION_NAME,
    OBSERVED,
    TABLES_NAME,
    Speller,
    identifier,
    remark,
    reserved,
    tuple_source,
)

__all__ = ["FUNCTION_NAME", "TABLES_NAME", "arguments_around", "generate", "generate_around", "has_dropout"]

LONGEST = 100
"""So many characters may stand in a line that takes another in."""


def generate(plan: Plan, backend: Backend) -> str:
    """The source of a function of the inputs, parameters, constants and tables of a plan, in order.

    The blocks that it calls stand before it, each a function of its own; and the function that makes the
    tables, where there are any.

    Raises:
        BackendError: the backend cannot do one of the steps.
    """
    taken = reserved(backend)
    names = {block: identifier(name, taken) for block, name in plan.functions.items()}
    functions = [_Writer(block, backend, name, names).source() for block, name in names.items()]
    if plan.tables:
        functions.append(_Tables(plan, backend, names).source())
    return "\n\n".join([*functions, _Writer(plan, backend, FUNCTION_NAME, names).source()])


def generate_around(plan: Plan, backend: Backend, leaves: Sequence[str], scopes: Sequence[str]) -> str:
    """The source of a function that is given the blocks as well, ready to be called.

    Args:
        plan: the plan.
        backend: whose operations it spells.
        leaves, scopes: what it takes, as `arguments_around` says.
    """
    taken = reserved(backend)
    cut = dict.fromkeys(step.plan for step in plan.steps if isinstance(step, CallStep) and step.slicing)
    names = {block: identifier("block", taken) for block in cut}
    functions = [_Writer(block, backend, name, names).source() for block, name in names.items()]
    functions += [_Tables(plan, backend, {}).source()] if plan.tables else []
    return "\n\n".join([*functions, _Around(plan, backend, leaves, scopes, names).source()])


@functools.lru_cache(maxsize=256)
def arguments_around(graph: Graph, around: frozenset[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the function of `generate_around` takes: the inputs and the leaves that no block has to itself,
    by their names, tables after them, and then the blocks, by their scopes."""
    whole = with_functions(graph, around)
    read = {ref.name for equation in whole.own for ref in references(equation.right)} | set(whole.outputs)
    read |= {name for call in whole.calls for name in call.operands}
    leaves = (leaf.name for leaf in _arguments(graph) if leaf.kind == "input" or leaf.name in read)
    return tuple(leaves), tuple(dict.fromkeys(call.scope for call in whole.calls))


def _arguments(graph: Graph) -> tuple[Leaf, ...]:
    return (*graph.inputs, *graph.parameters, *graph.constants)


def has_dropout(graph: Graph) -> bool:
    """Whether the function takes `training=`."""
    return any(isinstance(part, Call) and FUNCTIONS[part.function].random for part in graph.expressions())


@dataclass(frozen=True)
class _Line:
    """A line of a function: the names that it defines, what they become, its mathematics, and what it frees."""

    names: tuple[str, ...]
    text: str
    remarks: tuple[str, ...]
    frees: tuple[str, ...]

    def written(self) -> Iterator[str]:
        """The line, and one that frees."""
        yield f"{', '.join(self.names)} = {self.text}  # {'; '.join(self.remarks)}"
        if self.frees:
            yield f"del {', '.join(self.frees)}"

    def taking(self, former: _Line) -> _Line | None:
        """The line with the text of the one before it in the place of its name, if a person would write it so.

        Nothing then lives longer than it would.
        """
        (name,) = former.names
        places = list(re.finditer(rf"(?<![\w.]){name}(?!\w)", self.text))
        inner = former.text if _is_closed(former.text) else f"({former.text})"
        if len(places) != 1 or former.frees:
            return None
        text = f"{self.text[: places[0].start()]}{inner}{self.text[places[0].end() :]}"
        if len(text) > LONGEST:
            return None
        frees = tuple(each for each in self.frees if each != name)
        return _Line(self.names, text, (*former.remarks, *self.remarks), frees)


class _Writer(Speller):
    """Writes the function of one plan.

    Args:
        plan: the plan.
        backend: whose operations it spells.
        name: of the function.
        functions: those of the blocks that it calls.
        leaves: what it takes, if not all of the graph's.
    """

    element = Element.NUMBER  # of the step being written
    is_repeated = True  # at each call

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        name: str,
        functions: Mapping[Plan, str],
        leaves: Sequence[Leaf] | None = None,
    ) -> None:
        super().__init__(plan, backend, plan.leaves if leaves is None else leaves, functions.values())
        self.name, self.functions = name, functions
        self.looked_at = {table.leaf.name for table in plan.tables if table.below is not None}

    # ---- the whole function

    def source(self) -> str:
        body = [line for part in self._lines() for line in part.written()]
        body.append(f"return {', '.join(self.results())}")
        training = ["*", "training=False"] if self.is_repeated and has_dropout(self.graph) else []
        head = [f"def {self.name}({', '.join([*self.arguments(), *training])}):"]
        lines = self._docstring() + self._prologue() + body
        return "\n".join(head + [f"    {line}" if line else "" for line in lines]) + "\n"

    def _lines(self) -> list[_Line]:
        """A line for each step; one that only the next step reads, and once, goes into that."""
        lines, taken = list[_Line](), set[str]()
        reads = Counter(name for step in self.steps for name in step.reads)
        reads.update(self.read_last())
        last = len(self.steps) - 1
        for number, step in enumerate(self.steps):
            text = self.call_of(step) if isinstance(step, CallStep) else self.step(step)
            if isinstance(step, CallStep):
                self.shapes.update(zip(step.results, step.shapes, strict=True))
            names = tuple(self.names[name] for name in step.defines)
            frees = tuple(self.names[name] for name in step.frees) if number < last else ()
            line = _Line(names, text, (remark(step.shown(self.functions)),), frees)
            former = self.steps[number - 1] if lines else None
            if former is not None and len(former.defines) == 1 and reads[former.defines[0]] == 1:
                joined = line.taking(lines[-1])
                if joined is not None:
                    line = joined
                    taken.update(lines.pop().names)
            lines.append(line)
        return [
            replace(line, frees=tuple(each for each in line.frees if each not in taken)) for line in lines
        ]

    @property
    def steps(self) -> tuple[Step | CallStep, ...]:
        """The steps that the function does."""
        return self.plan.steps

    def read_last(self) -> list[str]:
        """The tensors that the results are made of."""
        return [each.value.name for each in self.plan.results]

    def results(self) -> list[str]:
        """What it returns."""
        return [self.result(each) for each in self.plan.results]

    def arguments(self) -> list[str]:
        """The names of what it takes."""
        return [self.names[leaf.name] for leaf in self.leaves]

    def call_of(self, step: CallStep) -> str:
        """The call of a block, with what it reads."""
        given = [self.names[name] for name in step.reads]
        training = ["training=training"] if has_dropout(step.plan.graph) else []
        slicing, name = step.slicing, self.functions[step.plan]
        if slicing is None:
            return f"{name}({', '.join(given + training)})"
        at, cut = next((at, given[n]) for n, at in enumerate(slicing.operands) if at is not None)
        for n, each in enumerate(slicing.operands):
            given[n] += "" if each is None else f"[{':, ' * each}at:at + {slicing.length}]"
        pieces = f"range(0, max({cut}.shape[{at}], 1), {slicing.length})"
        calls = f"{name}({', '.join(given + training)}) for at in {pieces}"
        if len(slicing.results) == 1:
            return self.op(CONCAT.name, calls, axis=str(slicing.results[0]))
        put_together = self.op(CONCAT.name, "*each", axis="axis")
        return f"[{put_together} for each, axis in zip(zip(*[{calls}]), {slicing.results})]"

    def _docstring(self) -> list[str]:
        lines = self.graph.lines() or [str(leaf) for leaf in self.leaves]
        equations = [remark(each) for each in lines]
        if len(equations) == 1:
            return [f'"""{equations[0]}"""']
        return ['"""', *equations, '"""']

    def _prologue(self) -> list[str]:
        """Leading axes made one, and open sizes read from shapes."""
        lines: list[str] = []
        for leaf in self.graph.inputs:
            at = next((n for n, dim in enumerate(leaf.dims) if dim and dim[0].name == ELLIPSIS), None)
            if at is None:
                continue
            name, after = self.names[leaf.name], len(leaf.dims) - at - 1
            stop = f"-{after}" if after else ""
            if not any(line.startswith("leading =") for line in lines):
                lines.append(f"leading = {name}.shape[{at or ''}:{stop}]")
            kept = [f"{name}.shape[{n}]" for n in range(at)] + ["math.prod(leading)"]
            kept += [f"{name}.shape[{n - len(leaf.dims)}]" for n in range(at + 1, len(leaf.dims))]
            lines.append(f"{name} = {self.op('reshape', name, shape=tuple_source(kept))}")
        return lines + self._size_lines() + ([self.dtype_line()] if self.needs_dtype else [])

    def _size_lines(self) -> list[str]:
        lines: list[str] = []
        known: set[str] = set()
        wanted = set(self.used_sizes)
        while wanted - known:
            before = len(known)
            for leaf in self.leaves:
                for position, size in enumerate(self.shapes[leaf.name]):
                    names = {name.name for name in getattr(size, "free_symbols", ())} - known
                    if len(names) == 1 and names & wanted:
                        (name,) = names
                        line = self._size_line(name, size, f"{self.names[leaf.name]}.shape[{position}]")
                        lines += line
                        known |= names if line else set()
            if len(known) == before:
                more = {
                    name.name
                    for leaf in self.leaves
                    for size in self.shapes[leaf.name]
                    for name in getattr(size, "free_symbols", ())
                }
                if more <= wanted:
                    left = ", ".join(sorted(wanted - known))
                    raise ShapeError(
                        f"the size of {left} cannot be told from the shapes of the arguments",
                        fix=f"bind it first: graph.bind({left}=…)",
                    )
                wanted |= more
        return lines

    def _size_line(self, name: str, size: Any, observed: str) -> list[str]:
        """The line that reads a size from a shape, if the shape tells it."""
        solution = invert_size(size, name, symbol(OBSERVED))
        if solution is None:
            return []
        source = self.size(solution, quietly=True).replace(OBSERVED, observed)
        return [f"{self.size_names[name]} = {source}"]

    # ---- steps

    def step(self, step: Step) -> str:
        """The right side of the line for one step."""
        equation = step.equation
        self.sizes = {axis.name: axis.size for axis in step.axes}
        self.element = step.element
        text = self._step(step, equation.left)
        self.shapes[equation.name] = self.entry_sizes(equation.left)
        return text

    def _step(self, step: Step, left: tuple[Any, ...]) -> str:
        match step.equation.right:
            case Contraction((Ref() as a, Ref() as b), _) if step.arrangement is not None:
                return self.pair(a, b, step.arrangement, left)
            case Call(_, (Contraction((Ref() as a, Ref() as b), _), Ref() as bias)) if (
                step.arrangement is not None
            ):
                return self.linear(a, b, step.arrangement, bias)
            case Contraction((Ref() as ref,), summed) if summed:
                return self.op(
                    "sum", self.atomic(ref), axes=tuple_source([str(n) for n in _positions(ref, summed)])
                )
            case Ref() as ref if _is_plain(ref):
                return self.copy(ref, [(entry,) if isinstance(entry, str) else entry for entry in left])
            case Ref() as ref:
                return self.special(ref, left)
            case Call(function) as call if FUNCTIONS[function].axes != "none":
                return self.along(call, left)
            case expression if is_scalar(expression):
                return self.number(expression)
            case expression:
                return self.render(expression, left)

    def copy(self, ref: Ref, groups: Sequence[tuple[str, ...]]) -> str:
        """An operand with one dimension for each group, lying in memory in their order."""
        text, layout = self.view(ref, groups), axes_of_index(ref.index)
        merged = view_order(layout, tuple(groups)) is None and any(len(group) > 1 for group in groups)
        return text if merged or layout == flatten(tuple(groups)) else self.op("contiguous", text)

    def number(self, expression: Expression) -> str:
        """A number as a tensor."""
        dtype = self.element_dtype(self.element)
        return self.op("scalar", self.scalar(expression), dtype=dtype, like=self.first())

    def pair(self, a: Ref, b: Ref, way: Arrangement, left: tuple[Any, ...]) -> str:
        if way.kind == "multiply":
            return f"{self.aligned(a, left)} * {self.aligned(b, left)}"
        if way.kind == "linear":
            return self.linear(a, b, way)
        if way.kind == "dot":
            groups = [way.batch, way.summed]
            return self.op("vecdot", self.view(a, groups), self.view(b, groups))
        first, second, rows, columns = (
            (b, a, way.columns, way.rows) if way.swapped else (a, b, way.rows, way.columns)
        )
        one = self._matrix(first, way.batch, rows, way.summed)
        two = self._matrix(second, way.batch, way.summed, columns)
        whole = self.element is Element.WHOLE and "whole_matmul" in self.backend.templates
        text = self.op("whole_matmul" if whole else "matmul", one, two)
        if way.batch and not (rows and columns):
            text = self.op("reshape", text, shape=self.shape(self.entry_sizes(left)))
        return text

    def linear(self, a: Ref, b: Ref, way: Arrangement, *bias: Ref) -> str:
        """The product of a tensor with a matrix, and what is added to each row."""
        *rows, columns = way.result
        first, second = (b, a) if way.swapped else (a, b)
        one = self.view(first, [*rows, way.summed])
        two = self.view(second, [columns, way.summed])
        return self.op("linear", ", ".join([one, two, *(self.view(each, [columns]) for each in bias)]))

    def _matrix(
        self, ref: Ref, batch: tuple[str, ...], outer: tuple[str, ...], inner: tuple[str, ...]
    ) -> str:
        layout = axes_of_index(ref.index)
        own = tuple(axis for axis in batch if axis in layout)
        groups = [own, outer, inner]
        ones = [n for n in (1, 2) if batch and not groups[n]]
        if own or not batch:
            return self.view(ref, groups, ones)
        matrix = self.view(ref, [outer, inner], ones)
        shape = [product(self.sizes[axis] for axis in group) for group in (batch, outer, inner)]
        return self.op("broadcast", matrix, shape=self.shape(shape))

    def special(self, ref: Ref, left: tuple[Any, ...]) -> str:
        """Integer indices, gathers and diagonals, one after another on one dimension for each entry."""
        sizes = [self.shapes[ref.name][n] for n in range(len(ref.index))]
        text = self.names[ref.name]
        entries: list[Index] = list(ref.index)
        if any(isinstance(entry, int) for entry in entries):
            inside = ", ".join(str(entry) if isinstance(entry, int) else ":" for entry in entries)
            text = f"{text}[{inside}]"
            sizes = [size for size, entry in zip(sizes, entries, strict=True) if not isinstance(entry, int)]
            entries = [entry for entry in entries if not isinstance(entry, int)]
        flat: list[Index] = []
        atoms: list[Any] = []
        for entry, size in zip(entries, sizes, strict=True):
            parts: list[Index] = list(entry) if isinstance(entry, tuple) else [entry]
            flat += parts
            atoms += (
                [self.sizes[part] for part in parts if isinstance(part, str)]
                if isinstance(entry, tuple)
                else [size]
            )
        if len(flat) != len(entries):
            text = self.op("reshape", text, shape=self.shape(atoms))
        return self._gathered(text, flat, atoms, axes_of_index(left))

    def _gathered(self, text: str, entries: list[Index], sizes: list[Any], left: tuple[str, ...]) -> str:
        """Takes along the dimensions that an index tensor or a repeated axis picks from."""
        gathers = [entry for entry in entries if isinstance(entry, Ref)]
        inside = {axis for each in gathers for axis in axes_of_index(each.index)}
        names = [entry for entry in entries if isinstance(entry, str)]
        picked = [
            n
            for n, entry in enumerate(entries)
            if isinstance(entry, Ref) or entry in inside or names.count(str(entry)) > 1
        ]
        rest = [n for n in range(len(entries)) if n not in picked]
        kept = tuple(str(entries[n]) for n in rest)
        if not picked:
            return self._to_order(text, kept, left)
        order = picked + rest
        if order != list(range(len(entries))):
            text = self.op("permute", text, axes=tuple_source([str(n) for n in order]))
        taken = dict.fromkeys(inside) | dict.fromkeys(
            str(entries[n]) for n in picked if isinstance(entries[n], str)
        )
        axes = tuple(axis for axis in left if axis in taken)
        flat = self._flat_index([entries[n] for n in picked], [sizes[n] for n in picked], axes)
        total = product(sizes[n] for n in picked)
        if len(picked) > 1:
            text = self.op("reshape", text, shape=self.shape([total, *(sizes[n] for n in rest)]))
        text = self.op("take", text, self.op("reshape", flat, shape="(-1,)"), axis="0")
        shape = [self.sizes[axis] for axis in axes] + [sizes[n] for n in rest]
        if len(axes) != 1:
            text = self.op("reshape", text, shape=self.shape(shape))
        return self._to_order(text, axes + kept, left)

    def _flat_index(self, entries: list[Index], sizes: list[Any], axes: tuple[str, ...]) -> str:
        """Row-major positions in the picked dimensions, over `axes`."""
        terms: list[str] = []
        for n, entry in enumerate(entries):
            stride = product(sizes[n + 1 :])
            if isinstance(entry, Ref):
                term = self.aligned(entry, axes)
                if entry.name not in self.looked_at:
                    term = self.op("within", term, size=self.size(sizes[n]), name=repr(entry.name))
            else:
                ones = [self.size(sizes[n])] + ["1"] * (len(axes) - axes.index(str(entry)) - 1)
                term = self.positions(sizes[n])
                term = self.op("reshape", term, shape=tuple_source(ones)) if len(ones) > 1 else term
            terms.append(term if stride == 1 else f"{term} * ({self.size(stride)})")
        text = " + ".join(terms)
        if len(terms) == 1 and isinstance(entries[0], Ref) and axes_of_index(entries[0].index) == axes:
            return text
        shape = self.shape([self.sizes[axis] for axis in axes])
        return self.op("broadcast", f"({text})", shape=shape)

    def _to_order(self, text: str, have: tuple[str, ...], want: tuple[str, ...]) -> str:
        if have == want:
            return text
        return self.op("permute", text, axes=tuple_source([str(have.index(axis)) for axis in want]))

    def along(self, call: Call, left: tuple[Any, ...]) -> str:
        """A step of a function that does something to axes."""
        function = FUNCTIONS[call.function]
        if function.spelled is not None:
            return function.spelled(self, call, left)
        if function.means:
            return self.kernel(call, left)
        match function.axes:
            case "made":
                return self.made(call)
            case "joined":
                return self.joined(call, left)
            case "moved":
                return self.moved(call)
        return self.over_axes(call, left)

    def kernel(self, call: Call, left: tuple[Any, ...]) -> str:
        """A kernel of the user's own, of operands with a dimension for each axis of its equation."""
        self._check_registered(call.function, dict(FUNCTIONS[call.function].implementations))
        pattern = pattern_of(FUNCTIONS[call.function].means[0])
        refs = [ref for ref in call.arguments if isinstance(ref, Ref)]
        groups = pattern.groups([axes_of_index(ref.index) for ref in refs])
        given = []
        for ref, tensor in zip(refs, pattern.tensors, strict=True):
            own = [groups[axis] for axis in axes_of_index(tensor.index)]
            given.append(self.view(ref, own, [n for n, group in enumerate(own) if not group]))
        numbers = [f"{name}={text}" for name, text in self.options(call).items()]
        text = f'functions["{call.function}"]({", ".join([*given, *numbers])})'
        return text if all(groups[axis] for axis in pattern.left) else self.reshaped(text, left)

    def over_axes(self, call: Call, left: tuple[Any, ...]) -> str:
        """A function along dimensions of its operand."""
        ref, *affine = call.arguments
        assert isinstance(ref, Ref)
        own = [axis for axis in call.axes if axis in ref.index]
        if tuple(call.axes) in ref.index:
            text, at = self.names[ref.name], [ref.index.index(tuple(call.axes))]
        elif len(own) == len(call.axes):
            text, at = self.names[ref.name], [ref.index.index(axis) for axis in own]
        else:
            text, at = self.atomic(ref), _positions(ref, call.axes)
        axes = tuple_source([str(n) for n in at])
        details = self.options(call)
        if affine:
            others = [self.atomic(each) for each in affine if isinstance(each, Ref)]
            return self.op(f"{call.function}_affine", text, *others, axis=str(at[0]), **details)
        implementations = dict(FUNCTIONS[call.function].implementations)
        if implementations:
            self._check_registered(call.function, implementations)
            return f'functions["{call.function}"]({text}, {at[0]})'
        if self.asks(call.function, "positions"):
            details["positions"] = self._positions_at(at[0], len(left), self.sizes_of(call.axes))
        return self.op(call.function, text, axis=str(at[0]), axes=axes, **details)

    def sizes_of(self, axes: Sequence[str]) -> Any:
        return product(self.sizes[axis] for axis in axes)

    def _positions_at(self, at: int, rank: int, size: Any) -> str:
        """0, 1, 2, … along one of the dimensions of a tensor."""
        shape = tuple_source([self.size(size)] + ["1"] * (rank - at - 1))
        places = self.positions(size)
        return self.op("reshape", places, shape=shape) if rank - at > 1 else places

    def made(self, call: Call) -> str:
        """Positions along the axis that the call makes, or what is compared with them."""
        operands = [self.atomic(each) for each in call.arguments if isinstance(each, Ref)]
        return self.op(call.function, *operands, positions=self.positions(self.sizes[call.axes[0]]))

    def moved(self, call: Call) -> str:
        """Elements moved along the axes that keywords name."""
        (ref,) = call.arguments
        assert isinstance(ref, Ref)
        named = [(name, values) for name, values in call.options if name in option_axes(call)]
        details = self.options(call)
        for n, amount in enumerate(FUNCTIONS[call.function].amounts):
            details[amount] = tuple_source([str(self.integer(values[n])) for _, values in named])
        at = _positions(ref, [name for name, _ in named])
        axes = tuple_source([str(n) for n in at])
        return self.op(call.function, self.atomic(ref), axes=axes, **details)

    def joined(self, call: Call, left: tuple[Any, ...]) -> str:
        """Operands as large as the result, but for the axis along which they follow one another."""
        axis, parts = call.axes[0], []
        at = left.index(axis)
        for ref in call.arguments:
            assert isinstance(ref, Ref)
            own = self.label_sizes(ref)
            full = [own.get(name, 1 if name == axis else self.sizes[name]) for name in left]
            text = self.aligned(ref, left) if ref.index else self.names[ref.name]
            if set(axes_of_index(ref.index)) | {axis} != set(left):
                text = self.op("broadcast", text, shape=self.shape(full))
            elif axis not in own:
                text = self.op("reshape", text, shape=self.shape(full))
            parts.append(text)
        return self.op(call.function, ", ".join(parts), axis=str(at))

    # ---- pointwise expressions

    def render(self, expression: Expression, left: tuple[Any, ...]) -> str:
        """A pointwise expression over operands aligned to the result."""
        match expression:
            case Ref():
                return self.aligned(expression, left)
            case _ if is_scalar(expression):
                return self.scalar(expression)
            case Contraction(factors, ()):
                return self.product(factors, lambda factor: self.render(factor, left))
            case Call("add", arguments):
                return self._sum([self.render(each, left) for each in arguments])
            case Call(function, (Contraction(factors, ()),)) if FUNCTIONS[function].rounds:
                by = FUNCTIONS[function].rounds
                return self.product(factors, lambda factor: self.render(factor, left), by=by)
            case Call(function) if (spelled := FUNCTIONS[function].spelled) is not None:
                return spelled(self, expression, left)
            case Call(function, arguments):
                return self.call(function, [self.render(each, left) for each in arguments])
        raise AssertionError(show(expression))

    def _sum(self, terms: list[str]) -> str:
        text = terms[0]
        for term in terms[1:]:
            text += f" - {term[1:]}" if term.startswith("-") else f" + {term}"
        return text

    def call(self, function: str, operands: list[str]) -> str:
        row = FUNCTIONS[function]
        if row.implementations:
            self._check_registered(function, dict(row.implementations))
            return f'functions["{function}"]({", ".join(operands)})'
        if function in self.backend.templates:
            return self.op(function, *operands)
        if row.infix and len(operands) == 2:
            return f"{_operand(operands[0])} {row.infix} {_operand(operands[1])}"
        if row.infix:
            return f"{row.infix}{_operand(operands[0])}"
        return self.op(function, *operands)

    def _check_registered(self, function: str, implementations: Mapping[str, Any]) -> None:
        if self.backend.name not in implementations:
            raise BackendError(
                f"'{function}' is registered for {', '.join(implementations)}, not for {self.backend.name}",
                fix=f"tensornet.register('{function}', {self.backend.name}=...)",
            )

    # ---- results

    def result(self, result: Result) -> str:
        """An output in the order and grouping the equation gives it."""
        self.sizes = {axis.name: axis.size for axis in result.axes}
        wanted = [(entry,) if isinstance(entry, str) else entry for entry in result.left]
        text = self.view(result.value, wanted)
        if ELLIPSIS in axes_of_index(result.left):
            parts = [
                "*leading" if group == (ELLIPSIS,) else self.size(product(self.sizes[axis] for axis in group))
                for group in wanted
            ]
            text = self.op("reshape", text, shape=tuple_source(parts))
        return text


class _Around(_Writer):
    """Writes a function that is given its blocks: what each of them reads besides is its own affair."""

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        leaves: Sequence[str],
        scopes: Sequence[str],
        cut: Mapping[Plan, str],
    ) -> None:
        known = {leaf.name: leaf for leaf in plan.graph.leaves}
        given = [
            known[each] for each in leaves if known[each].kind != "constant" or known[each] in plan.constants
        ]
        tables = [table.leaf for table in plan.tables]
        super().__init__(plan, backend, FUNCTION_NAME, {**plan.functions, **cut}, [*given, *tables])
        self.blocks = {scope: identifier(scope, self.taken) for scope in scopes}

    def arguments(self) -> list[str]:
        """The leaves, then the blocks."""
        return [*super().arguments(), *self.blocks.values()]

    def call_of(self, step: CallStep) -> str:
        """The call of a block, with numbers of the working type."""
        if step.slicing is not None:
            return super().call_of(step)
        given = []
        for leaf, name in zip(step.plan.graph.inputs, step.operands, strict=True):
            text = self.names[name]
            given.append(self.op(CONVERSIONS[Element.NUMBER], text) if leaf.holds is Element.WIDE else text)
        return f"{self.blocks[step.scope]}({', '.join(given)})"


def _is_closed(text: str) -> bool:
    """Whether an expression is a name or a call, so that it can stand anywhere."""
    tree = ast.parse(text, mode="eval").body
    return isinstance(tree, ast.Call | ast.Name | ast.Subscript | ast.Attribute)


class _Tables(_Writer):
    """Writes the function of what is done once: of an empty array of the element type and on the device that
    are asked for, of the constants that the tables are made of, and of the open sizes that they depend on."""

    is_repeated = False

    def __init__(self, plan: Plan, backend: Backend, functions: Mapping[Plan, str]) -> None:
        like = Leaf(fresh("like", set(plan.graph.named)), "input", ())
        super().__init__(plan, backend, TABLES_NAME, functions, [like, *plan.sources])
        steps = (step.equation for step in plan.once if isinstance(step, Step))
        self.views = {equation.name for equation in steps if isinstance(equation.right, Ref)}

    @property
    def steps(self) -> tuple[Step | CallStep, ...]:
        return self.plan.once

    def read_last(self) -> list[str]:
        return [table.made for table in self.plan.tables]

    def results(self) -> list[str]:
        """The tables; positions are looked at here, and never again."""
        return [f"({', '.join(map(self._table, self.plan.tables))},)"]

    def _table(self, table: Table) -> str:
        text = self.names[table.made]
        if table.leaf.dims and table.made in self.views:
            text = self.op("contiguous", text)
        if table.below is None:
            return text
        return self.op("within", text, size=self.size(table.below), name=repr(table.made))

    def arguments(self) -> list[str]:
        sizes = (self.size_names[name] for name in self.plan.sizes_once)
        return [*(self.names[leaf.name] for leaf in self.leaves), *sizes]

    def _docstring(self) -> list[str]:
        return ['"""What depends on nothing that a call gives."""']

    def _prologue(self) -> list[str]:
        return [self.dtype_line()] if self.needs_dtype else []


def _is_plain(ref: Ref) -> bool:
    flat = [name for entry in ref.index for name in ((entry,) if not isinstance(entry, tuple) else entry)]
    return all(isinstance(name, str) for name in flat) and len(flat) == len(set(flat))


def _positions(ref: Ref, axes: Sequence[str]) -> list[int]:
    layout = axes_of_index(ref.index)
    return [layout.index(axis) for axis in axes]


def _operand(text: str) -> str:
    """An operand of an infix sign: a negative number or a compound one in parentheses."""
    return f"({text})" if text.startswith("-") or (" " in text and not text.endswith(")")) else text
