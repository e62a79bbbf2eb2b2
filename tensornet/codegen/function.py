"""Code generation of functions: a plan to Python source, one line a step.

The function holds no loop and no plan; sizes that are open are read from the shapes of the
arguments, so one function serves every batch size.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import ShapeError
from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..language.expression import ELLIPSIS, Call, Ref, axes_of_index, fresh
from ..ops.table import CONVERSIONS, FUNCTIONS, Element
from ..planning.blocks import with_functions
from ..planning.plans import Plan
from ..planning.steps import CallStep, Repetition, Result, Step, Table
from ..protocol import Backend
from ..sizes import invert_size, product, symbol
from .expressions import FUNCTION_NAME, OBSERVED, TABLES_NAME, identifier, remark, reserved, tuple_source
from .lines import Line
from .step_expressions import Stepping

__all__ = ["FUNCTION_NAME", "TABLES_NAME", "arguments_around", "generate", "generate_around", "has_dropout"]


def generate(plan: Plan, backend: Backend) -> str:
    """The source of a function of the inputs, parameters, constants and tables of a plan, in order.

    The blocks that it calls stand before it, each a function of its own; and the function that makes the
    tables, where there are any.

    Raises:
        BackendError: the backend cannot do one of the steps.
    """
    taken = reserved(backend)
    names = {block: identifier(name, taken) for block, name in plan.functions.items()}
    functions = list(_functions(backend, names, taken))
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
    own = dict.fromkeys(step.plan for step in plan.steps if isinstance(step, CallStep) and _is_own(step))
    names = {block: identifier("product" if block.backward else "block", taken) for block in own}
    functions = list(_functions(backend, names, taken))
    functions += [_Tables(plan, backend, {}).source()] if plan.tables else []
    return "\n\n".join([*functions, _Around(plan, backend, leaves, scopes, names).source()])


def _functions(backend: Backend, names: Mapping[Plan, str], taken: set[str]) -> Iterator[str]:
    """The functions of blocks, each under its name; one that has a way back is both."""
    for block, name in names.items():
        back = block.backward
        yield _Writer(block, backend, name, names).source()
        if back is not None:
            other = identifier(f"{name}_backward", taken)
            yield _Writer(back, backend, other, names).source()
            known = [leaf.name for leaf in block.graph.inputs]
            places = [*known, *block.graph.outputs[1:]]
            read = [leaf.name for leaf in back.graph.inputs]
            gradients = [known.index(each.removesuffix(".grad")) for each in back.graph.outputs]
            details = {
                "reads": tuple_source([str(places.index(each)) for each in read if each in places]),
                "gives": tuple_source(list(map(str, gradients))),
            }
            yield f"{name} = {backend.templates['both_ways'].format(name, other, **details)}\n"


def _is_own(step: CallStep) -> bool:
    """Whether a call is of a function that no module stands for."""
    return any(each is not None for each in (step.slicing, step.along, step.plan.backward))


@functools.lru_cache(maxsize=256)
def arguments_around(graph: Graph, around: frozenset[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the function of `generate_around` takes: the inputs and the leaves that no block has to itself,
    by their names, tables after them, and then the blocks, by their scopes."""
    whole = with_functions(graph, around)
    read = {ref.name for equation in whole.own for ref in equation.references} | set(whole.outputs)
    read |= {name for call in whole.calls for name in call.operands}
    leaves = (leaf.name for leaf in _arguments(graph) if leaf.kind == "input" or leaf.name in read)
    return tuple(leaves), tuple(dict.fromkeys(call.scope for call in whole.calls))


def _arguments(graph: Graph) -> tuple[Leaf, ...]:
    return (*graph.inputs, *graph.parameters, *graph.constants)


def has_dropout(graph: Graph) -> bool:
    """Whether the function takes `training=`."""
    return any(isinstance(part, Call) and FUNCTIONS[part.function].trains for part in graph.expressions())


class _Writer(Stepping):
    """Writes the function of one plan.

    Args:
        plan: the plan.
        backend: whose operations it spells.
        name: of the function.
        functions: those of the blocks that it calls.
        leaves: what it takes, if not all of the graph's.
    """

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

    # ---- the whole function

    def source(self) -> str:
        body = [line for part in self._lines() for line in part.written()]
        body.append(f"return {', '.join(self.results())}")
        training = ["*", "training=False"] if self.is_repeated and has_dropout(self.graph) else []
        head = [f"def {self.name}({', '.join([*self.arguments(), *training])}):"]
        lines = self._docstring() + self._prologue() + body
        return "\n".join(head + [f"    {line}" if line else "" for line in lines]) + "\n"

    def _lines(self) -> list[Line]:
        """A line for each step; one that only the next step reads, and once, goes into that."""
        lines, taken = list[Line](), set[str]()
        reads = Counter(name for step in self.steps for name in step.reads)
        reads.update(self.read_last())
        last = len(self.steps) - 1
        for number, step in enumerate(self.steps):
            text = self.call_of(step) if isinstance(step, CallStep) else self.step(step)
            if isinstance(step, CallStep):
                self.shapes.update(zip(step.results, step.shapes, strict=True))
            names = tuple(self.names[name] for name in step.defines)
            frees = tuple(self.names[name] for name in step.frees) if number < last else ()
            line = Line(names, text, (remark(step.shown(self.functions)),), frees)
            former = self.steps[number - 1] if lines else None
            apart = isinstance(step, CallStep) and (
                step.slicing is not None or step.along is not None
            )  # nothing is done for each piece again
            if (
                former is not None
                and not apart
                and len(former.defines) == 1
                and reads[former.defines[0]] == 1
            ):
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
        if step.again:
            return self.op("again", ", ".join([name, *given, *training]))
        if step.along is not None:
            return self._along(step, step.along, given, training)
        if slicing is None:
            return f"{name}({', '.join(given + training)})"
        at, cut = next((at, given[n]) for n, at in enumerate(slicing.operands) if at is not None)
        for n, each in enumerate(slicing.operands):
            if each is not None:
                given[n] = self._piece(given[n], each, slicing.length)
        piece = f"lambda at: {name}({', '.join(given + training)})"
        axes = tuple_source([str(each) for each in slicing.results])
        return self.op("in_pieces", piece, size=f"{cut}.shape[{at}]", length=str(slicing.length), axes=axes)

    def _along(self, step: CallStep, along: Repetition, given: Sequence[str], training: Sequence[str]) -> str:
        """The call of a block along an axis: what comes in, what it goes on from, and what is always the same."""
        name, again = self.functions[step.plan], along.segment is not None
        function = f"lambda *given: {name}(*given, {', '.join(training)})" if training and not again else name
        more = {"segment": str(along.segment), "more": ", ".join(["again", *training])} if again else {}
        cuts, states, tables = len(along.cuts), len(along.states), step.plan.tables
        own = zip(given[len(given) - len(tables) :], step.tables, tables, strict=True)
        looked = [
            text if each.below is None else self.below(text, made, each.below, each.below)
            for text, made, each in own
        ]
        given = [*given[: len(given) - len(tables)], *looked]
        parts = (given[:cuts], given[cuts : cuts + states], given[cuts + states :])
        return self.op(
            "along_again" if again else "along",
            function,
            *map(tuple_source, parts),
            size=self.size(along.axis.size),
            axes=tuple_source(list(map(str, along.cuts))),
            states=tuple_source(list(map(str, along.states))),
            results=str(along.joined(len(step.results))),
            back=str(along.back),
            last=str(along.last),
            **more,
        )

    def _piece(self, text: str, axis: int, length: int) -> str:
        """The piece of an operand that begins `at` a position: a slice, where a library has nothing of its own."""
        if "piece" in self.backend.templates:
            return self.op("piece", text, axis=str(axis), length=str(length))
        return f"{text}[{':, ' * axis}at:at + {length}]"

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
        if _is_own(step):
            return super().call_of(step)
        given = []
        for leaf, name in zip(step.plan.graph.inputs, step.operands, strict=True):
            text = self.names[name]
            given.append(self.op(CONVERSIONS[Element.NUMBER], text) if leaf.holds is Element.WIDE else text)
        return f"{self.blocks[step.scope]}({', '.join(given)})"


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
        return self.below(text, table.made, table.below, table.below)

    def arguments(self) -> list[str]:
        sizes = (self.size_names[name] for name in self.plan.sizes_once)
        return [*(self.names[leaf.name] for leaf in self.leaves), *sizes]

    def _docstring(self) -> list[str]:
        return ['"""What depends on nothing that a call gives."""']

    def _prologue(self) -> list[str]:
        return [self.dtype_line()] if self.needs_dtype else []
