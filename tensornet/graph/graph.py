"""The graph: a layer or a model as a value, checked when it is created; its calls, and their inlining.

    Graph = sizes · leaves (inputs, parameters, constants) · equations and calls, in order · outputs
    Apply = graph · operands · results · scope

A graph is frozen, and compares and hashes by value. It prints as its equations, and `layer(str(graph)) == graph`.
It has been checked: every name is defined before it is read, and every axis has one size in an equation. A call
applies another graph, a block, which is written once however often it is called. A graph does not know arrays or
backends.

Inlining replaces calls by the equations of their block. Axis names are local to an equation and are kept. A size that
an axis has by its name alone (the `h` of `x[b,(h,d)]`) is the block's own. If two of these names meet with different
sizes, the axis gets a number.
"""

from __future__ import annotations

import functools
import itertools
import json
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar

from ..codec import Scope as Prefix
from ..codec import document, hashed_once, state_of
from ..display import folded, preformatted
from ..errors import EquationError, ShapeError, check_arguments, near, told_in
from ..language.equation import Equation, renamed_axes, spoken_sizes
from ..language.expression import (
    Call,
    Ref,
    Taken,
    axes_windowed,
    check_numbers,
    fresh,
    is_computed_index,
    rename_tensors,
    sized_by_name,
)
from ..language.latex import aligned, heading, row, row_of_call
from ..language.recurrences import as_printed
from ..ops.structure import is_inside
from ..ops.table import FUNCTIONS, RESERVED, pack, unpack
from ..protocol import reader_of
from ..sizes import are_equal, as_size, evaluate, name_of, put_in, size_names, symbol
from .checks import check_names, check_size, check_sizes, check_spoken
from .leaves import (
    Along,
    Constant,
    Leaf,
    called_last,
    names_of_blocks,
    scoped,
    shown_call,
    told_apart,
    told_by,
)
from .recurrences import Recurrence, dims_of_recurrences, read_later, recurrences
from .shape_inference import Dim, Scope, dim_size, disagreement, resized, result_dims, scope_of, size_names_of

P = ParamSpec("P")
R = TypeVar("R")

FORMAT, VERSION = "tensornet.graph", 2
"""The name and the version of the JSON format of graphs."""


@document(shared=True)
@hashed_once
@dataclass(frozen=True)
class Graph:
    """Equations as a value; created by `tensornet.layer` and `tensornet.model`.

    Attributes:
        leaves: inputs, parameters and constants, in the order of their first use.
        body: equations and calls of other graphs. Each reads only tensors defined before it, except by the steps of
            recurrences.
        outputs: the names of the results.
        sizes: the sizes that have a value, as (name, integer), or a formula, as (name, expression). All other
            sizes are open.
    """

    leaves: tuple[Leaf, ...]
    body: tuple[Equation | Apply, ...]
    outputs: tuple[str, ...]
    sizes: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(sorted(self.sizes, key=lambda each: each[0])))
        check_names(self.leaves, self.body, self.outputs)
        self._check_sizes()
        if not self.bound.keys() <= size_names_of(dim for leaf in self.leaves for dim in leaf.dims):
            self._drop_unused_sizes()

    def _drop_unused_sizes(self) -> None:
        """Drops the values of sizes that nothing in it mentions, as a text must have none of these."""
        used = self.by_name.union(self.outer_sizes, *(call.graph.bound for call in self.calls))
        sizes = tuple(size for size in self.sizes if size[0] in used)
        if sizes != self.sizes:
            object.__setattr__(self, "sizes", sizes)
            del self.__dict__["bound"], self.__dict__["outer_sizes"]
            self._drop_unused_sizes()

    def _check_call(self, call: Apply, known: Mapping[str, tuple[Dim, ...]]) -> None:
        """Checks that the operands of a call have the dimensions and sizes that its block reads."""
        block, inner = call.graph, call.names()
        cuts = dict(enumerate(call.along.cuts)) if call.along is not None else {}
        if len(call.results) != len(block.outputs) and call.along is None:
            raise ShapeError(f"a call has {len(block.outputs)} result(s), and {len(call.results)} are named")
        for number, leaf in enumerate(block.leaves):
            name = inner[leaf.name]
            given = known[name]
            if number in cuts:
                given = given[: cuts[number]] + given[cuts[number] + 1 :]
            if given == leaf.dims:
                continue
            if len(given) != len(leaf.dims):
                raise ShapeError(
                    f"the block's '{leaf}' has {len(leaf.dims)} dimension(s), and '{name}' has {len(given)}"
                )
            for ours, theirs in zip(leaf.dims, given, strict=True):
                self.unify(dim_size(ours), dim_size(theirs), "_".join(a.name for a in ours), Ref(name, ()))

    @told_in("sizes")
    def _check_sizes(self) -> None:
        check_spoken(self.own, self.named)
        check_sizes(self.sizes, self.named, self.bound)

    @told_in("sizes")
    def check_at(self, sizes: Mapping[str, Any]) -> None:
        """Raises an error if open sizes have values at which a result has no size, or an index is out of bounds.

        Args:
            sizes: the values; in a block, those of the caller.

        Raises:
            ShapeError: a dimension would be negative or not a whole number, or a position does not exist.
            EquationError: a number cannot be computed, as `3 % (n - 2)` where n is 2.
        """
        known = {**sizes, **self.bound}
        for block in dict.fromkeys(call.graph for call in self.calls):
            block.check_at(known)
        for equation in self.own:
            entries = (entry for ref in equation.references for entry in ref.index)
            slices = (part for part in equation.called if is_inside(part))
            if any(slices) or any(isinstance(entry, int) or is_computed_index(entry) for entry in entries):
                scope_of(equation.right, self.named, functools.partial(self.unify, known=known), known)
            scope = self.scope(equation)
            check_numbers(equation.right, lambda axis: _number(evaluate(scope[axis], known)))  # noqa: B023
            for dim in self.named[equation.name]:
                for axis in dim:
                    if not isinstance(axis.size, int) and name_of(axis.size) is None:
                        check_size(f"'{axis.name}' in '{equation.name}'", axis.size, 0, known)

    # ---- parts

    @property
    def inputs(self) -> tuple[Leaf, ...]:
        """The tensors a caller passes, in order."""
        return tuple(leaf for leaf in self.leaves if leaf.kind == "input")

    @property
    def parameters(self) -> tuple[Leaf, ...]:
        """The tensors that are trained."""
        return tuple(leaf for leaf in self.leaves if leaf.kind == "parameter")

    @property
    def constants(self) -> tuple[Leaf, ...]:
        """The tensors with a fixed value."""
        return tuple(leaf for leaf in self.leaves if leaf.kind == "constant")

    @functools.cached_property
    def bound(self) -> Mapping[str, Any]:
        """Name to value, an integer or a formula, for the sizes that have one."""
        return dict(self.sizes)

    def sizes_beside(self, bound: Mapping[str, Any]) -> dict[str, Any]:
        """The sizes that have a value here that differs from `bound`, or that `bound` lacks."""
        return {name: size for name, size in self.sizes if bound.get(name) != size}

    @property
    def own(self) -> tuple[Equation, ...]:
        """The equations of the graph itself, without those of the blocks that it calls."""
        return tuple(item for item in self.body if isinstance(item, Equation))

    @property
    def calls(self) -> tuple[Apply, ...]:
        """The calls of blocks."""
        return tuple(item for item in self.body if isinstance(item, Apply))

    @functools.cached_property
    def parts(self) -> tuple[Graph, ...]:
        """The graph and every block called in it, at any depth, each once."""
        found: dict[Graph, None] = {self: None}
        for call in self.calls:
            if call.graph not in found:
                found.update(dict.fromkeys(call.graph.parts))
        return tuple(found)

    @functools.cached_property
    def flat(self) -> Graph:
        """The same graph with every call inlined, except those along an axis."""
        return inlined(self, lambda call: call.along is None) if self.calls else self

    @property
    def equations(self) -> tuple[Equation, ...]:
        """All equations of the flat graph; those of blocks are named under the scopes of their calls."""
        return self.flat.own

    @functools.cached_property
    def reads_below(self) -> bool:
        """Whether an equation reads, at another position, a tensor that is defined below; it need not be recurrent."""
        return next(read_later(self.body, (leaf.name for leaf in self.leaves)), None) is not None

    @functools.cached_property
    def recurrences(self) -> tuple[Recurrence, ...]:
        """The recurrent equations, in groups, each along an axis."""
        return recurrences(self.own) if self.reads_below else ()

    @functools.cached_property
    def by_name(self) -> frozenset[str]:
        """The axes sized by their names, as no tensor sizes them in some equation, or only recurrent tensors do."""
        found = {name for equation in self.own for name in sized_by_name(equation.right)}
        told = size_names_of(dim for leaf in self.leaves for dim in leaf.dims)
        for name in (name for group in self.recurrences for name in group.names):
            axes = (axis for dim in self.named[name] for axis in dim)
            found.update(
                axis.name for axis in axes if axis.size == symbol(axis.name) and axis.name not in told
            )
        return frozenset(found)

    @functools.cached_property
    def _sized(self) -> tuple[dict[str, tuple[Dim, ...]], dict[str, Scope]]:
        """The dimensions of the tensors, and the sizes of the axes in each equation, by the name of its result."""
        known = {leaf.name: leaf.dims for leaf in self.leaves}
        if self.reads_below:
            known.update(dims_of_recurrences(self.leaves, self.body, self.recurrences, self.bound))
        scopes: dict[str, Scope] = {}
        for item in self.body:
            if isinstance(item, Apply):
                self._check_call(item, known)
                known.update(item.returned(self.bound))
            else:
                scopes[item.name] = self._scope_of(item, known)
                known.setdefault(item.name, result_dims(item, scopes[item.name]))
        return known, scopes

    def _scope_of(self, equation: Equation, known: Mapping[str, tuple[Dim, ...]]) -> Scope:
        """The sizes in an equation, which caches them: the graphs before and after a pass share most equations."""
        read = tuple(known.get(ref.name) for ref in equation.references), self.bound
        kept: tuple[Any, Scope] | None = equation.__dict__.get("kept_scope")
        if kept is None or kept[0] != read:
            kept = read, scope_of(equation.right, known, self.unify, self.bound)
            equation.__dict__["kept_scope"] = kept
        return kept[1]

    @property
    def named(self) -> Mapping[str, tuple[Dim, ...]]:
        """The dimensions of the tensors of the graph itself, and of the results of its calls."""
        return self._sized[0]

    @property
    def dims(self) -> Mapping[str, tuple[Dim, ...]]:
        """The dimensions of every tensor by name; those inside of blocks are under their scopes."""
        return self.flat.named

    def scope(self, equation: Equation) -> Scope:
        """The sizes of the axes in one equation of the graph."""
        return self._sized[1][equation.name]

    def unify(
        self, a: Any, b: Any, axis: str, ref: Ref | Call | None, known: Mapping[str, Any] | None = None
    ) -> Any:
        """`a` if the two sizes are equal as far as is known; raises an error if they are not.

        Args:
            a, b: the sizes.
            axis: the axis that has them.
            ref: the reference that gives the second.
            known: values of sizes; by default, those that are bound.
        """
        known = self.bound if known is None else known
        if are_equal(a, b, known):
            return a
        raise disagreement(a, b, axis, ref, known)

    @functools.cached_property
    def open_sizes(self) -> tuple[str, ...]:
        """The names of the sizes that are still open, sorted."""
        names = size_names_of(dim for dims in self.named.values() for dim in dims)
        for equation in self.own:
            names.update(spoken_sizes(equation))
            for part in equation.called:
                names |= set(FUNCTIONS[part.function].makes(part.axes)) - equation.axes
        for size in self.bound.values():
            names.update(size_names(size))
        for call in self.calls:
            names.update(call.graph.open_sizes)
        return tuple(sorted(names - set(self.bound)))

    @functools.cached_property
    def outer_sizes(self) -> frozenset[str]:
        """The names of sizes that it, or a block in it, gets from outside."""
        names = {name for item in self.own for name in (*spoken_sizes(item), *sized_by_name(item.right))}
        names -= self.by_name & self.bound.keys()
        results = (self.named[name] for call in self.calls for name in call.results)
        given = itertools.chain(*results, *(leaf.dims for leaf in self.leaves))
        names |= size_names_of(given)
        formulas = (size_names(size) for size in self.bound.values() if not isinstance(size, int))
        return frozenset(names.union(*formulas, *(call.graph.outer_sizes for call in self.calls)))

    def called(self) -> Iterator[Call]:
        """Every call of a function in the graph and in the blocks that it calls; each block is visited once."""
        return (call for part in self.parts for equation in part.own for call in equation.called)

    # ---- pickling

    def __getstate__(self) -> dict[str, Any]:
        """Its fields, with the functions in it that the user registered."""
        made = state_of(self)
        return made | {"registered": pack(call.function for call in self.called())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        unpack(state["registered"])
        self.__dict__.update({name: value for name, value in state.items() if name != "registered"})

    # ---- text

    def _size_lines(self) -> dict[str, Any]:
        """The sizes that have a value, and those that equations mention and no axis is named after. Without a line
        of their own, the latter would be parsed as parameters."""
        axes = {axis.name for leaf in self._declared() for dim in leaf.dims for axis in dim}
        spoken = set[str]()
        for equation in self.own:
            axes.update(equation.axes, *(part.axes for part in equation.called))
            spoken.update(size.axis for size in equation.right.sizes)
        return {**{name: name for name in sorted(spoken - axes)}, **self.bound}

    def _declared(self) -> tuple[Leaf, ...]:
        """The leaves that the calls do not declare. It is all leaves if those of the calls come in another order, or
        are read before their call."""
        own = told_apart(self.leaves, self.calls)
        known = {leaf.name for leaf in own}
        for item in self.body:
            if not known.issuperset(item.operands):
                return self.leaves
            known.update(item.defines)
            if isinstance(item, Apply):
                known.update(item.held)
        return own if called_last(own, self.calls) == self.leaves else self.leaves

    def names_of_blocks(self) -> dict[Graph, str]:
        """The names of the blocks in a text."""
        taken = set(self.named) | set(FUNCTIONS) | RESERVED
        return names_of_blocks(((call.graph, call.scope) for call in self.calls), taken)

    def lines(self) -> list[str]:
        """The definitions of the blocks that it calls, then its equations and calls, as lines of the text."""
        return [*self._definitions(), *self.body_lines()]

    def _definitions(self) -> list[str]:
        lines = list[str]()
        for block, name in self.names_of_blocks().items():
            takes = ", ".join(leaf.name for leaf in block.inputs)
            lines += [f"def {name}({takes}):", *textwrap.indent(str(block), "    ").split("\n"), ""]
        return lines

    def body_lines(self) -> list[str]:
        """The equations and the calls, in order, as lines of the text."""
        names = self.names_of_blocks()
        return [
            item.shown(names[item.graph]) if isinstance(item, Apply) else str(item)
            for item in as_printed(self.body)
        ]

    def _output_lines(self) -> list[str]:
        last = self.body[-1].defines if self.body else ()
        return [] if self.outputs == last else [f"{name}: output" for name in self.outputs]

    def _declaration_lines(self) -> list[str]:
        """The sizes and the leaves, as lines of the text."""
        sizes = [f"{name}: {size!s}" for name, size in self._size_lines().items()]
        return [*sizes, *map(str, self._declared())]

    def __str__(self) -> str:
        declared = [*self._definitions(), *self._declaration_lines()]
        return "\n".join(declared + self.body_lines() + self._output_lines())

    def __repr__(self) -> str:
        return f"<Graph {', '.join(self.outputs)}: {len(self.parameters)} parameters, {len(self.equations)} equations>"

    def _repr_html_(self) -> str:
        """The graph in a notebook: its lines, the leaves and the blocks folded."""
        blocks = {
            f"def {name}(…):": preformatted(str(block)) for block, name in self.names_of_blocks().items()
        }
        lines = "\n".join(self.body_lines() + self._output_lines())
        leaves = preformatted("\n".join(self._declaration_lines()))
        return folded(repr(self), preformatted(lines), {"sizes and leaves": leaves, **blocks})

    def _repr_latex_(self) -> str:
        """The equations and the calls, one row each, below those of the blocks."""
        return aligned(self._latex_rows())

    def _latex_rows(self) -> Iterator[str]:
        names = self.names_of_blocks()
        for block, name in names.items():
            yield heading(name, (leaf.name for leaf in block.inputs))
            yield from block._latex_rows()
        for item in as_printed(self.body):
            if isinstance(item, Apply):
                yield row_of_call(item.results, names[item.graph], item.operands)
            else:
                yield row(item)

    def to_json(self) -> str:
        """The graph as JSON: its text, and the values of constants and starts."""
        values = {leaf.name: leaf.value for leaf in self.constants}
        starts = {leaf.name: leaf.start for leaf in self.parameters if isinstance(leaf.start, Constant)}
        arrays = dict.fromkeys((*values.values(), *starts.values()))
        places = {each: number for number, each in enumerate(arrays)}
        document = {
            "format": FORMAT,
            "version": VERSION,
            "text": str(self).splitlines(),
            "arrays": [each.plain() for each in arrays if each is not None],
            "constants": {name: places[each] for name, each in values.items()},
            "init": {name: places[each] for name, each in starts.items()},
        }
        return json.dumps(document, indent=1)

    @staticmethod
    def from_json(text: str) -> Graph:
        """Reads what `to_json` wrote.

        Raises:
            EquationError: the text is not a document of this format.
        """
        found: Graph = reader_of(FORMAT)(text)
        return found

    # ---- composition and change

    def __call__(self, *tensors: Any, scope: str = "") -> Any:
        """Applies the graph to symbolic tensors of a model being built; see `tensornet.model`.

        Args:
            *tensors: one for each input, in order.
            scope: a prefix for the names of the parameters; the same scope shares them.

        Returns:
            A symbolic tensor, or a tuple of them for several outputs.
        """
        expected = [leaf.name for leaf in self.inputs]
        if len(tensors) != len(expected):
            names = f" ({', '.join(expected)})" if expected else ""
            raise ShapeError(f"the layer takes {len(expected)} input(s){names}, not {len(tensors)}")
        receiver = next((tensor for tensor in tensors if hasattr(tensor, "receive")), None)
        if receiver is None:
            given = f"on {type(tensors[0]).__name__}" if tensors else "without inputs"
            raise EquationError(
                f"a graph is called on the tensors of a model, not {given}",
                fix="to run it on arrays: tensornet.compile(graph, backend=...)(parameters, x)",
            )
        return receiver.receive(self, tensors, scope)

    @told_in("sizes")
    def bind(self, /, **sizes: int) -> Graph:
        """The graph with more sizes bound.

        Raises:
            ShapeError: a name is not open, or is already given another value.
        """
        sizes = {name: as_size(value, name) for name, value in sizes.items()}
        for name, value in sizes.items():
            if not isinstance(value, int):
                raise ShapeError(f"the size of '{name}' is {value}", fix="give an integer")
            if name in self.bound and self.bound[name] != value:
                raise ShapeError(
                    f"the size of '{name}' is {self.bound[name]} already",
                    fix=f"leave {name}= out, or build the graph with another size",
                )
            if name not in self.bound and name not in self.open_sizes:
                raise ShapeError(f"'{name}' is not an open size of this graph", fix=self._open_told(name))
        body = tuple(item if isinstance(item, Equation) else item.bound(sizes) for item in self.body)
        return Graph(self.leaves, body, self.outputs, tuple({**self.bound, **sizes}.items()))

    def _open_told(self, wrong: str) -> str:
        """Advice on which sizes to bind instead: those in the size of the axis of that name, else the open ones."""
        sizes = [
            axis.size for dims in self.named.values() for dim in dims for axis in dim if axis.name == wrong
        ]
        for equation in self.own:
            scope = self.scope(equation)
            sizes += [scope[wrong]] if wrong in equation.axes or wrong in scope.inner else []
        for size in (size for size in sizes if size_names(size) or not isinstance(size, int)):
            names = ", ".join(f"{name}=" for name in size_names(size))
            return f"the size of axis '{wrong}' is {size!s}: give {names}"
        return f"{near(wrong, self.open_sizes)}open sizes: {', '.join(self.open_sizes) or 'none'}"

    def select(self, outputs: str | Sequence[str]) -> Graph:
        """The same graph with other results, which may be intermediate ones, by their scoped names.

        A name may be a pattern of `fnmatch`, where `*` matches anything, dots included. The
        inputs and parameters stay the same.

        Args:
            outputs: names and patterns, `"blocks.*.attention.a y"` or a list of them. The results
                come in this order, those of one pattern in the order of their equations, each once.

        Raises:
            EquationError: a name or a pattern matches nothing that the graph computes.

        Example:
            >>> import tensornet as tn
            >>> layer = tn.layer("h[b,f] = gelu(x[b,i] * W[f,i])\\ny[b,o] = h * V[o,f]", inputs="x")
            >>> layer.select("h y").outputs
            ('h', 'y')
        """
        names = dict.fromkeys([*(equation.name for equation in self.equations), *self.outputs])
        found = told_by(outputs, [*names], "result of this graph", "outputs", last=True)
        inside = [name for name in found if name not in self.named]
        opened = inlined(self, lambda call: any(name.startswith(f"{call.scope}.") for name in inside))
        return replace(opened, outputs=found)

    def needed(self) -> frozenset[str]:
        """The names that the outputs depend on."""
        wanted, before = set(self.outputs), 0
        while len(wanted) > before and (not before or self.reads_below):
            before = len(wanted)
            for item in reversed(self.body):
                if wanted.intersection(item.defines):
                    wanted.update(item.reads)
        return frozenset(wanted)


@document()
@dataclass(frozen=True)
class Apply:
    """`z = encoder(x, scope='blocks.0')`: a call, which computes the results of a block from given tensors.

    The block's axes are its own; its sizes are those of the caller. Two calls at equal sizes hold equal
    blocks, so a block is checked, planned and written once however often it is called.

    Attributes:
        graph: the block.
        operands: the tensors that are the inputs of the block, in order.
        results: the caller's names of the outputs of the block, in order.
        scope: the prefix of the names of its parameters and constants in the caller.
        apart: whether it is planned as a call in any case, so that its intermediates are freed after it.
        along: the axis along which it is repeated, if any. The results are then the first outputs of the block,
            and the last states if these are required.
    """

    graph: Graph
    operands: tuple[str, ...]
    results: tuple[str, ...]
    scope: Prefix
    apart: bool = False
    along: Along | None = None

    @property
    def defines(self) -> tuple[str, ...]:
        """The tensors that it defines."""
        return self.results

    @property
    def made(self) -> Iterator[tuple[str, str]]:
        """Its results, each after the output of the block that it comes from."""
        yield from zip(self.graph.outputs, self.results, strict=self.along is None)

    def carried(self) -> Iterator[tuple[str, str]]:
        """The states that it passes on, each before the output of the block that is its next value."""
        if self.along is not None:
            states = self.graph.inputs[len(self.along.cuts) :]
            outputs = (self.graph.outputs[n] for n in self.along.states)
            yield from zip((leaf.name for leaf in states), outputs, strict=False)

    def scoped(self, name: str) -> str:
        """The caller's name of a tensor of the block that is neither an input nor an output."""
        return scoped(self.scope, name)

    def leaves(self) -> Iterator[Leaf]:
        """The parameters and constants of the block, under their names in the caller."""
        for leaf in self.graph.leaves:
            if leaf.kind != "input":
                yield replace(leaf, name=self.scoped(leaf.name))

    @property
    def held(self) -> tuple[str, ...]:
        """The names of these in the caller."""
        return tuple(self.scoped(leaf.name) for leaf in self.graph.leaves if leaf.kind != "input")

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that it reads, those that its block declares included."""
        return tuple(self.names().values())

    def names(self) -> dict[str, str]:
        """The caller's name of each leaf of the block."""
        inputs = (leaf.name for leaf in self.graph.inputs)
        own = {leaf.name: self.scoped(leaf.name) for leaf in self.graph.leaves}
        return {**own, **dict(zip(inputs, self.operands, strict=True))}

    def returned(self, bound: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Dim, ...]]]:
        """The dimensions of the results, in the caller's sizes; the block's own sizes are substituted.

        Args:
            bound: the sizes that have a value in the caller.
        """
        local = self.graph.sizes_beside(bound)
        first = () if self.along is None else ((self.along.axis,),)
        for output, result in self.made:
            yield result, resized((*first, *self.graph.named[output]), lambda size: put_in(size, local))

    def bound(self, sizes: Mapping[str, int]) -> Apply:
        """The call with values for sizes that are open in its block."""
        known = {name: value for name, value in sizes.items() if name in self.graph.open_sizes}
        return replace(self, graph=self.graph.bind(**known)) if known else self

    def shown(self, function: str) -> str:
        """The call as a line of text."""
        return shown_call(self.results, function, self.operands, self.scope)


def of_tensors_named(item: Equation | Apply, names: Mapping[str, str]) -> Any:
    """The equation or call with its tensors renamed."""
    if isinstance(item, Equation):
        right = rename_tensors(item.right, names)
        return replace(item, name=names.get(item.name, item.name), right=right)
    operands, results = (tuple(names.get(each, each) for each in of) for of in (item.operands, item.results))
    return replace(item, operands=operands, results=results)


# ---------------------------------------------------------------------------- inlining


def inlined(graph: Graph, chosen: Callable[[Apply], bool]) -> Graph:
    """The graph with the chosen calls inlined, and also the chosen calls inside of those.

    Args:
        graph: the graph.
        chosen: whether to inline a call, which it gets with the scope that the call has in `graph`.
    """
    if not any(chosen(call) for call in graph.calls):
        return graph
    return _Inlining(graph, chosen).graph()


def own_windows(graph: Graph, equation: Equation, named: Collection[str], taken: Taken) -> dict[str, str]:
    """New names for the axes that are as long as a window allows and whose name is that of a size of the caller."""
    axes = sorted(axes_windowed(equation.right).intersection(named))
    sizes = {name: graph.scope(equation)[name] for name in axes}
    fits = (name for name, size in sizes.items() if not are_equal(size, symbol(name), graph.bound))
    return {name: taken.fresh(name) for name in fits}


def sizes_apart(equation: Equation, tensors: Collection[str]) -> Equation:
    """The equation with new names for axes that have the name of a tensor, where it mentions their sizes."""
    mentioned = {size.axis for size in equation.right.sizes}
    if not (shared := mentioned.intersection(tensors, equation.axes)):
        return equation
    taken = Taken((*tensors, *equation.axes))
    return renamed_axes(equation, {name: taken.fresh(name) for name in sorted(shared)})


class _Inlining:
    """The growing body, and the names that are taken in it."""

    def __init__(self, graph: Graph, chosen: Callable[[Apply], bool]) -> None:
        self.whole, self.chosen = graph, chosen
        self.body: list[Equation | Apply] = []
        self.taken = {leaf.name for leaf in graph.leaves}
        for item in graph.body:
            self.taken.update(item.defines)
        self.meaning = {
            name: evaluate(symbol(name), graph.bound) for name in set(graph.bound) | graph.outer_sizes
        }
        self.sizes = dict(graph.sizes)

    def graph(self) -> Graph:
        """The finished graph."""
        names = {name: name for name in self.taken}
        self._place(self.whole, names, "", {})
        outputs = tuple(names[name] for name in self.whole.outputs)
        return replace(self.whole, body=tuple(self.body), outputs=outputs, sizes=tuple(self.sizes.items()))

    def _place(self, graph: Graph, names: dict[str, str], prefix: str, axes: Mapping[str, str]) -> None:
        """Appends the body of a graph; `names` maps its tensors to their new names, and is extended."""
        for name in read_later(graph.body, names):
            self._name(name, names, prefix)
        for item in graph.body:
            for name in item.defines:
                self._name(name, names, prefix)
            if isinstance(item, Equation):
                own = own_windows(graph, item, self.meaning, Taken((*self.meaning, *item.axes)))
                self.meaning.update(dict.fromkeys(own.values()))
                item = of_tensors_named(renamed_axes(item, {**axes, **own}), names)
                self.body.append(sizes_apart(item, self.taken))
                continue
            call = replace(of_tensors_named(item, names), scope=scoped(prefix, item.scope))
            if self.chosen(call):
                self._open(call, item.results, names)
            else:
                self.body.append(call)

    def _name(self, name: str, names: dict[str, str], prefix: str) -> None:
        if name not in names:
            names[name] = fresh(scoped(prefix, name), self.taken)
            self.taken.add(names[name])

    def _open(self, call: Apply, results: tuple[str, ...], names: dict[str, str]) -> None:
        """Inlines a call. A tensor that the block only passes through keeps its name in the caller."""
        block, inner = call.graph, call.names()
        for output, local, name in zip(block.outputs, results, call.results, strict=True):
            if output in inner:
                names[local] = inner[output]
            else:
                inner[output] = name
        self._place(block, inner, call.scope, self._own_axes(block))

    def _own_axes(self, block: Graph) -> dict[str, str]:
        """New names for axes of the block that are sized by name, where this name has another size here."""
        renamed: dict[str, str] = {}
        for name in sorted(block.by_name):
            own, chosen = evaluate(symbol(name), block.bound), name
            size = evaluate(own, self.whole.bound)
            if self.meaning.get(name, size) != size:
                taken = set(self.meaning) | {axis for each in block.own for axis in each.axes}
                chosen = renamed[name] = fresh(name, taken)
            self.meaning[chosen] = size
            if name in block.bound and own != symbol(chosen):
                formula = block.bound[name]  # it may mention sizes that only the block knows
                is_known = evaluate(formula, self.whole.bound) == size
                self.sizes.setdefault(chosen, formula if is_known else own)
        return renamed


# ---------------------------------------------------------------------------- arguments that are graphs


def of_graph(function: Callable[P, R]) -> Callable[P, R]:
    """Lets a function raise an error unless its first argument is a graph.

    Raises:
        EquationError: the argument is not a graph.
    """

    calling = check_arguments(function)

    @functools.wraps(function)
    def checked(*arguments: P.args, **options: P.kwargs) -> R:
        given = (*arguments, options.get("graph"))[0]
        if not isinstance(given, Graph) and (arguments or "graph" in options):
            shown = (
                repr(given) if given is None or isinstance(given, str | int | float) else type(given).__name__
            )
            fix = "make one by tensornet.layer(…) or tensornet.model(…)"
            if isinstance(getattr(given, "graph", None), Graph):
                fix = "give its attribute `graph`"
            elif hasattr(given, "named_modules"):
                fix += "; tensornet.compress and tensornet.adapt take modules of torch"
            elif isinstance(given, str):
                fix = "make one of the equations: tensornet.layer(…)"
            raise EquationError(f"a graph is expected here, not {shown}", fix=fix)
        return calling(*arguments, **options)

    return checked


def _number(size: Any) -> Any:
    """The size; None while a name in it is open."""
    return None if size_names(size) else size
