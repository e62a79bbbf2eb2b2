"""A layer or a model as a value: named tensors, the equations between them, what comes out.

    Graph = sizes · leaves (inputs, parameters, constants) · equations, in order · outputs

A graph is frozen, compares and hashes by value, prints as the equations it was made of (and
`layer(str(graph)) == graph`), and has been checked: every name is defined before it is read and
every axis has one size in an equation. It knows nothing of arrays or backends.
"""

from __future__ import annotations

import fnmatch
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ..errors import EquationError, ShapeError, TensornetError, near
from ..language.equation import Equation
from ..language.expression import Call, Ref, Size, axes_of_index, references, subexpressions
from ..operations.functions import FUNCTIONS, RESERVED
from ..operations.registering import pack, unpack
from ..sizes import LARGEST, as_size, evaluate, show_size, size_names
from .elaboration import rebuild
from .leaves import Constant, Leaf
from .shape import Dim, Scope, dim_size, disagreement, result_dims, scope_of

__all__ = ["Graph"]


@dataclass(frozen=True)
class Graph:
    """Equations as a value; made by `tensornet.layer` and `tensornet.model`.

    Attributes:
        leaves: inputs, parameters and constants, in the order of their first use.
        equations: the definitions, each reading only what stands before it.
        outputs: the names of the results.
        sizes: the sizes that have a value, as (name, integer), or a formula, as (name, expression);
            all others are open.
    """

    leaves: tuple[Leaf, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[str, ...]
    sizes: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(sorted(self.sizes, key=lambda each: each[0])))
        self._check_names()
        self._check_spoken()
        self._check_sizes()

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.leaves, self.equations, self.outputs, self.sizes))

    def _check_names(self) -> None:
        known: set[str] = set()
        for name in [leaf.name for leaf in self.leaves]:
            if name in known:
                raise EquationError(f"'{name}' is declared twice", fix="give each tensor one name")
            known.add(name)
        for equation in self.equations:
            for ref in references(equation.right):
                if ref.name not in known:
                    raise EquationError(f"'{ref.name}' is used before it is defined", ref.place)
            if equation.name in known:
                raise EquationError(
                    f"'{equation.name}' is defined twice",
                    equation.place,
                    "give each result a name of its own",
                )
            known.add(equation.name)
        for name in self.outputs:
            if name not in known:
                raise EquationError(
                    f"the output '{name}' is not defined", fix=f"choose of {', '.join(sorted(known))}"
                )
        if not self.outputs:
            raise EquationError("there is no equation, so nothing comes out", fix="write y[b] = x[b,i]")

    def _check_spoken(self) -> None:
        """A size that equations speak of by a name reads back as nothing else."""
        tensors = {leaf.name for leaf in self.leaves} | {equation.name for equation in self.equations}
        for equation in self.equations:
            for part in subexpressions(equation.right):
                if isinstance(part, Size) and part.axis in tensors | set(FUNCTIONS) | RESERVED:
                    owner = "a tensor" if part.axis in tensors else "the language"
                    raise EquationError(
                        f"the size '{part.axis}' has a name that belongs to {owner}",
                        part.place or equation.place,
                        "give the axis, or the symbol of its size, another name",
                    )

    def _check_sizes(self) -> None:
        for name, size in self.sizes:
            self._check_size(f"'{name}'", size, 1)
        for tensor, dims in self.dims.items():
            for dim in dims:
                self._check_size(f"'{dim[0].name}' in '{tensor}'" if dim else "", dim_size(dim), 0)
                for axis in dim:
                    self._check_size(f"'{axis.name}' in '{tensor}'", axis.size, 0)

    def check_at(self, sizes: Mapping[str, int]) -> None:
        """Refuses values of open sizes at which a result has no size, or an index points outside.

        Args:
            sizes: the values.

        Raises:
            ShapeError: a dimension would be negative or no whole number, or a position is not there.
        """
        known = {**self.bound, **sizes}
        for equation in self.equations:
            for dim in self.dims[equation.name]:
                for axis in dim:
                    if not getattr(axis.size, "is_Symbol", True):
                        self._check_size(f"'{axis.name}' in '{equation.name}'", axis.size, 0, known)
            if any(isinstance(entry, int) for ref in references(equation.right) for entry in ref.index):
                scope_of(equation.right, self.dims, self.agree, known)

    def _check_size(self, what: str, size: Any, least: int, known: Mapping[str, Any] | None = None) -> None:
        value = evaluate(size, self.bound if known is None else known)
        number = getattr(value, "is_number", isinstance(value, int))
        if number and not (isinstance(value, int) and least <= value <= LARGEST):
            shown = f"{size} = {value}" if str(size) != str(value) else str(size)
            raise ShapeError(
                f"the size of {what} is {shown}", fix=f"choose sizes that make it a whole number from {least}"
            )

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

    @functools.cached_property
    def dims(self) -> Mapping[str, tuple[Dim, ...]]:
        """The dimensions of every tensor, by name."""
        known = {leaf.name: leaf.dims for leaf in self.leaves}
        for equation in self.equations:
            known[equation.name] = result_dims(equation, self.scope(equation, known))
        return known

    def scope(self, equation: Equation, dims: Mapping[str, tuple[Dim, ...]] | None = None) -> Scope:
        """The sizes of the axes in one equation."""
        return scope_of(equation.right, self.dims if dims is None else dims, self.agree, self.bound)

    def agree(self, a: Any, b: Any, axis: str, ref: Ref | None) -> Any:
        """`a` if the two sizes are equal as far as can be told; an error if they are not."""
        if a == b:
            return a
        difference = evaluate(a - b, self.bound)
        if difference == 0 or getattr(difference, "expand", lambda: 1)() == 0:
            return a
        raise disagreement(a, b, axis, ref, self.bound)

    @functools.cached_property
    def open_sizes(self) -> tuple[str, ...]:
        """The names of the sizes that are still open, sorted."""
        names: set[str] = set()
        for dims in self.dims.values():
            for dim in dims:
                for axis in dim:
                    names.update(size.name for size in getattr(axis.size, "free_symbols", ()))
        for equation in self.equations:
            local = set(axes_of_index(equation.left)) | {
                axis for ref in references(equation.right) for axis in axes_of_index(ref.index)
            }
            for part in subexpressions(equation.right):
                match part:
                    case Size(spoken):
                        names |= {spoken} - local
                    case Call(function, axes=over) if FUNCTIONS[function].axes == "made":
                        names |= set(over) - local
        for size in self.bound.values():
            names.update(name.name for name in getattr(size, "free_symbols", ()))
        return tuple(sorted(names - set(self.bound)))

    # ---- in another process

    def __getstate__(self) -> dict[str, Any]:
        """What it was made of, with the functions in it that the user registered."""
        made = {each.name: getattr(self, each.name) for each in fields(self)}
        calls = (part for equation in self.equations for part in subexpressions(equation.right))
        return made | {"registered": pack(part.function for part in calls if isinstance(part, Call))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        unpack(state["registered"])
        self.__dict__.update({name: value for name, value in state.items() if name != "registered"})

    # ---- text

    def _size_lines(self) -> dict[str, Any]:
        """The sizes that have a value; and those that equations speak of and no axis is called after,
        which would read back as parameters."""
        spoken = set[str]()
        axes = {axis.name for leaf in self.leaves for dim in leaf.dims for axis in dim}
        for equation in self.equations:
            axes.update(axes_of_index(equation.left))
            for part in subexpressions(equation.right):
                match part:
                    case Size(axis):
                        spoken.add(axis)
                    case Ref(_, index):
                        axes.update(axes_of_index(index))
                    case Call(axes=over):
                        axes.update(over)
        return {**{name: name for name in sorted(spoken - axes)}, **self.bound}

    def __str__(self) -> str:
        lines = [f"{name}: {show_size(size)}" for name, size in self._size_lines().items()]
        lines += [str(leaf) for leaf in self.leaves]
        lines += [str(equation) for equation in self.equations]
        if not self.equations or self.outputs != (self.equations[-1].name,):
            lines += [f"{name}: output" for name in self.outputs]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Graph {', '.join(self.outputs)}: {len(self.parameters)} parameters, {len(self.equations)} equations>"

    def to_json(self) -> str:
        """The graph as JSON: its lines in the equation language, and the values of constants and starts."""
        constants = {leaf.name: leaf.value.plain() for leaf in self.constants if leaf.value is not None}
        starts = {
            leaf.name: leaf.start.plain() for leaf in self.parameters if isinstance(leaf.start, Constant)
        }
        document = {
            "format": "tensornet.graph",
            "version": 1,
            "sizes": {
                name: size if isinstance(size, int) else show_size(size)
                for name, size in self._size_lines().items()
            },
            "leaves": [str(leaf) for leaf in self.leaves],
            "equations": [str(equation) for equation in self.equations],
            "outputs": list(self.outputs),
            "constants": constants,
            "init": starts,
        }
        return json.dumps(document, indent=1)

    @staticmethod
    def from_json(text: str) -> Graph:
        """Reads what `to_json` wrote.

        Raises:
            EquationError: the text is not such a document.
        """
        try:
            document = json.loads(text)
            if document["format"] != "tensornet.graph" or document["version"] != 1:
                raise EquationError(f"not a graph of version 1: {document['format']} {document['version']}")
            lines = [f"{name}: {value}" for name, value in document["sizes"].items()]
            lines += document["leaves"] + document["equations"]
            constants, starts = (
                {name: Constant.of_plain(each).array() for name, each in document.get(part, {}).items()}
                for part in ("constants", "init")
            )
            return Graph(*rebuild("\n".join(lines), document["outputs"], constants, starts))
        except TensornetError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise EquationError(
                f"this is not a graph in JSON: {error!r}", fix="use what to_json wrote"
            ) from None

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

    def bind(self, /, **sizes: int) -> Graph:
        """The graph with more sizes given.

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
                    fix=f"leave {name}= out, or build anew",
                )
            if name not in self.bound and name not in self.open_sizes:
                raise ShapeError(f"'{name}' is not an open size of this graph", fix=self._open_told(name))
        return Graph(self.leaves, self.equations, self.outputs, tuple({**self.bound, **sizes}.items()))

    def _open_told(self, wrong: str) -> str:
        """Which sizes to bind instead: that of the axis, if one is called so."""
        for dims in self.dims.values():
            for size in (axis.size for dim in dims for axis in dim if axis.name == wrong):
                if size_names(size) or not isinstance(size, int):
                    names = ", ".join(f"{name}=" for name in size_names(size))
                    return f"the size of axis '{wrong}' is {show_size(size)}: give {names}"
        return f"{near(wrong, self.open_sizes)}open sizes: {', '.join(self.open_sizes) or 'none'}"

    def select(self, outputs: str | Sequence[str]) -> Graph:
        """The same graph with other results: intermediate ones, by their scoped names.

        A name may be a pattern of `fnmatch`, where `*` stands for anything, dots included. The
        inputs and parameters stay what they are.

        Args:
            outputs: names and patterns, `"blocks.*.attention.a y"` or a list of them. The results
                come in this order, those of one pattern in the order of their equations, each once.

        Raises:
            EquationError: a name or a pattern fits nothing that the graph computes.

        Example:
            >>> import tensornet as tn
            >>> layer = tn.layer("h[b,f] = gelu(x[b,i] * W[f,i])\\ny[b,o] = h * V[o,f]", inputs="x")
            >>> layer.select("h y").outputs
            ('h', 'y')
        """
        wanted = outputs.replace(",", " ").split() if isinstance(outputs, str) else outputs
        if (
            not isinstance(wanted, Sequence)
            or not all(isinstance(each, str) for each in wanted)
            or not wanted
        ):
            raise EquationError(f"outputs are names, not {outputs!r}", fix='write "h y" or ["h", "y"]')
        names = dict.fromkeys([*(equation.name for equation in self.equations), *self.outputs])
        found: dict[str, None] = {}
        for pattern in wanted:
            matches = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
            if not matches:
                few = f"{', '.join(list(names)[-12:])}{' at the end' if len(names) > 12 else ''}"
                fix = f"{near(pattern, names)}there are {few}"
                raise EquationError(f"'{pattern}' is no result of this graph", fix=fix)
            found.update(dict.fromkeys(matches))
        return replace(self, outputs=tuple(found))

    def needed(self) -> frozenset[str]:
        """The names that the outputs depend on."""
        wanted = set(self.outputs)
        for equation in reversed(self.equations):
            if equation.name in wanted:
                wanted.update(ref.name for ref in references(equation.right))
        return frozenset(wanted)
