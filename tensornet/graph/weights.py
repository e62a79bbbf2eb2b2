"""The equations of one weight: read from a text or from the table of factorizations, in the sizes of a model.

What comes out is a graph without data: its parameters are the new ones, its inputs other leaves of the model,
its one output the weight.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from ..errors import EquationError, ShapeError, TensornetError, near
from ..factorizations import FACTORIZATIONS, Factorization, factored, form_named, tensorize
from ..language.equation import Declaration, Equation
from ..language.expression import fresh, show_index
from ..language.reading import parse_block, parse_names, read_sizes
from ..ranks import Rank, check_sizes
from ..sizes import are_equal, evaluate, solve_size, symbol
from .graph import Graph
from .hygiene import hygienic
from .initialise import starts_of_weight
from .instances import instance, names_of_sizes, of_tensors_named
from .layers import layer
from .leaves import Constant, Leaf
from .private import Private
from .shape import Dim, dim_size, index_of
from .unify import Unifier

__all__ = ["KEPT", "Modes", "Weight", "Weights"]

KEPT = "base"
"""What a weight that its own equation reads is called under its name: `W.base`."""

LETTERS = "oijklmnpqstu"
"""What the dimensions of a weight are called, in order."""

Modes = int | Sequence[int | Sequence[int]]
"""Into how many parts dimensions are split: one number, or for each a number or the sizes of its parts."""


@dataclass(frozen=True)
class Weight:
    """What stands in the place of a weight.

    Attributes:
        program: its equations, in the sizes of the model; its parameters have the names of the text.
        operands: what its inputs are, by full names.
    """

    program: Graph
    operands: tuple[str, ...]


class Weights:
    """Makes the weights of a model, one after another; their sizes have names that fit together.

    Args:
        graph: the model.
        inputs, constants, init, rank, modes, sizes: those of `substitute`.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: str | Sequence[str],
        constants: Mapping[str, Any],
        init: Mapping[str, Any],
        rank: Rank,
        modes: Modes | None,
        sizes: Mapping[str, Any],
    ) -> None:
        self.graph, self.rank, self.modes = graph, rank, modes
        self.inputs = parse_names(inputs, "input")
        self.constants, self.init, self.sizes = constants, init, read_sizes(sizes)
        self.leaves = {leaf.name: leaf for leaf in graph.leaves}
        self.taken = {*self.leaves, *(equation.name for equation in graph.equations)}
        self.outer, self.opened = _sizes_known(graph)
        self.used: set[str] = set()

    @property
    def bound(self) -> Mapping[str, Any]:
        """The sizes of the model that have a value, with those of the weights made so far."""
        return {**self.graph.bound, **self.outer.bound}

    def check_given(self) -> None:
        """Refuses what was given for a name that no weight has."""
        given = {
            "a size": self.sizes,
            "a constant": self.constants,
            "a start": self.init,
            "an input": [each.name for each in self.inputs],
        }
        for what, names in given.items():
            for name in names:
                if name not in self.used:
                    fix = (
                        f"{near(name, self.used)}the names there are {', '.join(sorted(self.used)) or 'none'}"
                    )
                    raise EquationError(f"{what} is given for '{name}', which no equation has", fix=fix)

    def weight(self, leaf: Leaf, text: str) -> Weight:
        """What stands in the place of a leaf.

        Args:
            leaf: the weight, as the model has it.
            text: its equations, or the name of a factorization.

        Raises:
            EquationError: the text is not in the language, or reads what is not there.
            ShapeError: sizes disagree or are missing, or the weight has no such form.
        """
        try:
            return self._weight(leaf, text)
        except TensornetError as error:
            raise type(error)(
                f"in the place of '{leaf.name}': {error.message}", error.place, error.fix
            ) from None

    def _weight(self, leaf: Leaf, text: str) -> Weight:
        if not isinstance(text, str):
            fix = f"write its equation, or one of {', '.join(FACTORIZATIONS)}"
            raise EquationError(f"{text!r} is no text", fix=fix)
        program, names = self._read(leaf, text) if "=" in text else (self._form(leaf, text), {})
        sized = _keeping(self._sized(program, leaf, names), names, leaf)
        own = _apart(sized, leaf.name, self.taken)
        self.taken.update(f"{leaf.name}.{each.name}" for each in own.leaves)
        return Weight(_starting(own, leaf), tuple(names[each.name] for each in own.inputs))

    # ---- from the table

    def _form(self, leaf: Leaf, name: str) -> Graph:
        """The equation of a factorization."""
        kind = form_named(name)
        form = FACTORIZATIONS[kind]
        parts = self._parts(leaf, form)
        if len(parts) > len(LETTERS):
            raise ShapeError(f"it has {len(parts)} dimensions", fix="write its equation")
        axes = [
            tuple(f"{letter}{n}" for n in range(1, len(dim) + 1)) if len(dim) > 1 else (letter,)
            for letter, dim in zip(LETTERS, parts, strict=False)
        ]
        found = factored(kind, axes, parts, self.rank)
        left = show_index(tuple(dim if len(dim) > 1 else dim[0] for dim in axes))
        sizes = {
            axis: size
            for names, dim in zip(axes, parts, strict=True)
            for axis, size in zip(names, dim, strict=True)
        }
        given: dict[str, Any] = {**sizes, **found.ranks}
        return layer(f"weight[{left}] = {found}", **given)

    def _parts(self, leaf: Leaf, form: Factorization) -> list[tuple[int, ...]]:
        """The sizes that each dimension is split into."""
        shape = [evaluate(size, self.graph.bound) for size in leaf.shape]
        if not all(isinstance(size, int) for size in shape):
            names = ", ".join(f"{name}=" for name in self.graph.open_sizes)
            fix = f"bind the sizes first, graph.bind({names}…), or write its equation"
            raise ShapeError(f"its shape ({', '.join(map(str, shape))}) is open", fix=fix)
        if self.modes is None:
            return [
                self._usual(dim, size, form, len(shape)) for dim, size in zip(leaf.dims, shape, strict=True)
            ]
        given = [self.modes] * len(shape) if isinstance(self.modes, int) else list(self.modes)
        if len(given) != len(shape):
            fix = "give one for each dimension, or one number for all"
            raise ShapeError(
                f"modes={self.modes!r} are {len(given)}, and it has shape {tuple(shape)}", fix=fix
            )
        return [_split(size, each) for size, each in zip(shape, given, strict=True)]

    def _usual(self, dim: Dim, size: int, form: Factorization, order: int) -> tuple[int, ...]:
        """The parts of a dimension where none are asked for: those it has already, if they are as many."""
        count = form.parts[0] if form.parts else 1 if form.halves else 2 if form.pairs or order < 3 else 1
        own = tuple(evaluate(axis.size, self.graph.bound) for axis in dim)
        return own if len(own) == count else tensorize(size, count)

    # ---- from a text

    def _read(self, leaf: Leaf, text: str) -> tuple[Graph, dict[str, str]]:
        """The graph of a text, and the leaf of the model that each of its inputs is."""
        statements = parse_block(text)
        words = set(re.findall(r"[^\W\d]\w*(?:\.\w+)*", text))
        self.used |= words
        read = [each for each in self.inputs if each.name in words]
        declared = [each for each in statements if isinstance(each, Declaration)]
        inside = [each for each in declared if each.kind == "input"]
        names = {each.name: self._seen(each, leaf.name) for each in (*read, *inside)}
        lines = [each for each in statements if isinstance(each, Equation)]
        refs = [ref for line in lines for ref in line.references]
        shown = {ref.name for ref in refs if ref.index}
        inputs = [_declared(each, self.leaves[names[each.name]], each.name in shown) for each in read]
        if lines and lines[-1] is statements[-1]:
            target = lines[-1]
            known = {*names, *(each.name for each in declared)}
            reads = target.name in {ref.name for ref in refs} - known
            if reads:
                names[target.name] = leaf.name
                inputs.append(target.name if target.name in shown else _index(target.name, leaf))
            text = _targeted(text, target, leaf, fresh(target.name, words) if reads else target.name)
        sizes, constants, init = (
            {name: value for name, value in part.items() if name in words}
            for part in (self.sizes, self.constants, self.init)
        )

        def make(**known: Any) -> Graph:
            return layer(text, inputs=inputs, constants=constants, init=init, **known)

        program = hygienic(make, sizes)
        if len(program.outputs) != 1:
            raise EquationError(f"the text has {len(program.outputs)} results", fix="make it one, the weight")
        return program, names

    def _seen(self, declared: Declaration, path: str) -> str:
        """The leaf that a weight means by a name: in its own scope, or in one around it."""
        scopes = path.split(".")[:-1]
        for depth in range(len(scopes), -1, -1):
            name = ".".join([*scopes[:depth], declared.name])
            if name in self.leaves and self.leaves[name].kind != "input":
                return name
        known = [name for name, leaf in self.leaves.items() if leaf.kind != "input"]
        fix = f"{near(declared.name, known)}say it by its path, or leave it out of inputs="
        raise EquationError(
            f"'{declared.name}' is no parameter and no constant of the graph", declared.place, fix
        )

    # ---- sizes

    def _sized(self, program: Graph, leaf: Leaf, names: Mapping[str, str]) -> Graph:
        """The program in the sizes of the model: the weight and what is read have the sizes that they have there."""
        private = Private(program)
        (output,) = program.outputs
        pairs = [(output, program.named[output], leaf)]
        pairs += [(each.name, each.dims, self.leaves[names[each.name]]) for each in program.inputs]
        for name, dims, known in pairs:
            if len(dims) != len(known.dims):
                fix = "give it as many; a composite such as (a,b) is one"
                raise ShapeError(f"'{name}' has {len(dims)} dimension(s) here, and is '{known}'", fix=fix)
        waiting = [
            (name, each, size)
            for name, dims, known in pairs
            for ours, theirs in zip(dims, known.dims, strict=True)
            for each, size in self._alike(ours, theirs)
        ]
        for _ in range(len(waiting) + 1):
            waiting = [each for each in waiting if not self._solved(private, *each)]
        given = {f"{name}@" for name, size in self.sizes.items() if size == symbol(name)}
        unknown = _unknown(program, private) - given
        if unknown:
            raise _missing(unknown, [ours for _, ours, _ in waiting], leaf)
        private.adopt(self.outer, self.opened)
        sizes = {name: self.outer.resolve(private.moved(symbol(name))) for name in names_of_sizes(program)}
        made = instance(program, tuple(sorted(sizes.items())), tuple(sorted(self.bound.items())), None)
        for name, ours, size in waiting:  # what has more than one open size
            own = self.outer.resolve(private.moved(dim_size(ours)))
            if not are_equal(own, size, self.bound):
                raise _unequal(name, ours, own, size)
        return made

    def _alike(self, ours: Dim, theirs: Dim) -> list[tuple[Dim, Any]]:
        """What is as long as what: a dimension, or each of its parts where they have the names of its own."""
        names = [axis.name for axis in ours]
        if names == [axis.name for axis in theirs] and not self.sizes.keys() & set(names):
            return [((own,), axis.size) for own, axis in zip(ours, theirs, strict=True)]
        return [(ours, dim_size(theirs))]

    def _solved(self, private: Private, name: str, ours: Dim, size: Any) -> bool:
        """Makes one dimension of the program as long as it is in the model, if that can be seen by now."""
        own, other = private.value(private.moved(dim_size(ours))), evaluate(size, self.graph.bound)
        if not private.waits(own):
            own = evaluate(own, self.graph.bound)
            if not are_equal(own, other, self.graph.bound):
                raise _unequal(name, ours, own, other)
            return True
        if getattr(own, "is_Symbol", False) and not isinstance(size, int):
            private.solution[own.name] = size
            return True
        if not isinstance(other, int):
            try:
                return private.solve(own, size)
            except ShapeError:
                raise _unequal(name, ours, own, other) from None
        if len(own.free_symbols) > 1:
            return False
        found = solve_size(own, other)
        if found is None or not found[1]:
            raise _unequal(name, ours, own, other)
        private.bound[found[0]] = found[1]
        return True


def _split(size: int, parts: int | Sequence[int]) -> tuple[int, ...]:
    """The sizes of the parts of a dimension: as nearly equal as can be, or those that are given."""
    if isinstance(parts, int):
        return tensorize(size, parts)
    given = check_sizes(parts, "modes")
    if prod(given) != size:
        fix = f"give parts whose product it is, such as {tensorize(size, len(given))}"
        raise ShapeError(f"a dimension of {size} is no product of {given}", fix=fix)
    return given


def _unknown(program: Graph, private: Private) -> set[str]:
    """The private names that nothing tells the size of."""
    sizes = (axis.size for dims in program.named.values() for dim in dims for axis in dim)
    found = {name for size in sizes for name in _waiting(private.value(private.moved(size)))}
    for name in names_of_sizes(program):
        found |= _waiting(private.value(private.moved(symbol(name))))
    return found


def _waiting(size: Any) -> set[str]:
    return {each.name for each in getattr(size, "free_symbols", ()) if each.name.endswith("@")}


def _missing(names: set[str], waiting: Sequence[Dim], leaf: Leaf) -> ShapeError:
    """The error for sizes that nothing tells: of a composite one is what the others leave."""
    unknown = {name.rstrip("@") for name in names}
    wanted = set(unknown)
    for dim in waiting:
        within = [axis.name for axis in dim if axis.name in wanted]
        wanted -= set(within[-1:])
    told = " and of ".join(f"'{name}'" for name in sorted(unknown))
    given = ", ".join(f"{name}=" for name in sorted(wanted))
    fix = f"give {given}, or name axes as the weight has them: {leaf}"
    return ShapeError(f"nothing tells the size of {told}", fix=fix)


def _unequal(name: str, ours: Dim, own: Any, other: Any) -> ShapeError:
    axes = ",".join(axis.name for axis in ours)
    shown = f"({axes})" if len(ours) > 1 else axes
    return ShapeError(
        f"sizes disagree: {shown} of '{name}' is {str(own).replace('@', '')}, and the weight has {other} there",
        fix=f"choose sizes that make {shown} {other}",
    )


def _sizes_known(graph: Graph) -> tuple[Unifier, set[str]]:
    """The sizes that a model goes by: those with one value throughout, and the names that mean something else."""
    values: dict[str, set[Any]] = {}
    for part in graph.parts():
        for name in names_of_sizes(part):
            values.setdefault(name, set()).add(evaluate(symbol(name), part.bound))
    agreed = {name: next(iter(found)) for name, found in values.items() if len(found) == 1}
    bound = {name: value for name, value in agreed.items() if isinstance(value, int)}
    return Unifier(bound), set(values) - set(bound)


# ---------------------------------------------------------------------------- the text


def _index(name: str, leaf: Leaf) -> str:
    """A tensor with the axes that a leaf has."""
    return f"{name}[{show_index(index_of(leaf.dims)) or '()'}]"


def _declared(declared: Declaration, leaf: Leaf, shown: bool) -> str:
    """An input as `layer` takes it: with the axes of the leaf, if nothing shows others."""
    if declared.dims is None:
        return declared.name if shown else _index(declared.name, leaf)
    index = tuple(dim[0][0] if len(dim) == 1 else tuple(axis for axis, _ in dim) for dim in declared.dims)
    return f"{declared.name}[{show_index(index) or '()'}]"


def _targeted(text: str, target: Equation, leaf: Leaf, name: str) -> str:
    """The text, its last line under this name; a bare name on the left has the axes of the weight."""
    place = target.place
    assert place is not None
    lines = re.split(r"\r\n|\r|\n", textwrap.dedent(text))
    line = lines[place.number - 1]
    left = name if target.left else f"{name}{_brackets(target, leaf)}"
    lines[place.number - 1] = line[: place.column] + left + line[place.column + len(target.name) :]
    return "\n".join(lines)


def _brackets(target: Equation, leaf: Leaf) -> str:
    """The axes of a weight that its line does not name: as the line reads the old one, else as it is declared."""
    read = (ref.index for ref in target.references if ref.name == target.name and ref.index)
    index = next(read, index_of(leaf.dims))
    return f"[{show_index(index)}]" if index else ""


# ---------------------------------------------------------------------------- its leaves


def _keeping(program: Graph, names: Mapping[str, str], leaf: Leaf) -> Graph:
    """The program in which the weight as it was, if it reads it, is a parameter of its own."""
    kept = [each.name for each in program.inputs if names[each.name] == leaf.name]
    if not kept:
        return program
    if KEPT in program.named:
        fix = "give your tensor another name"
        raise EquationError(f"'{KEPT}' is what the weight as it was is called", fix=fix)
    leaves = tuple(
        replace(leaf, name=each.name, dims=each.dims) if each.name in kept else each
        for each in program.leaves
    )
    return _renamed(replace(program, leaves=leaves), {kept[0]: KEPT})


def _apart(program: Graph, path: str, taken: set[str]) -> Graph:
    """The program whose leaves have names that nothing in the model has."""
    within = {name.removeprefix(f"{path}.") for name in taken if name.startswith(f"{path}.")}
    names: dict[str, str] = {}
    for leaf in program.leaves:
        if leaf.kind != "input" and leaf.name in within:
            names[leaf.name] = fresh(leaf.name, within | set(program.named))
            within.add(names[leaf.name])
    return _renamed(program, names) if names else program


def _renamed(program: Graph, names: Mapping[str, str]) -> Graph:
    leaves = tuple(replace(leaf, name=names.get(leaf.name, leaf.name)) for leaf in program.leaves)
    body = tuple(of_tensors_named(item, names) for item in program.body)
    outputs = tuple(names.get(each, each) for each in program.outputs)
    return replace(program, leaves=leaves, body=body, outputs=outputs)


def _starting(program: Graph, leaf: Leaf) -> Graph:
    """The program whose parameters start so that the weight has the deviation that it was to start with.

    What the equations of the model imply they imply of the new parameters too. Where a weight is added to what
    it was, all that is added is zero.
    """
    kept = any(each.name == KEPT for each in program.leaves)
    if leaf.start is None and not kept:
        return program
    trial, square = program, _square(leaf)
    if kept:
        given = leaf.start or ("std", 1.0)
        trial = replace(
            program,
            leaves=tuple(
                replace(each, start=given) if each.name == KEPT else each for each in program.leaves
            ),
        )
    found = starts_of_weight(trial, square)
    if leaf.start is None:
        found = {name: start for name, start in found.items() if start == ("value", 0.0)}
    return replace(
        program,
        leaves=tuple(
            replace(each, start=each.start or found.get(each.name)) if each.kind == "parameter" else each
            for each in program.leaves
        ),
    )


def _square(leaf: Leaf) -> float:
    """The mean square that a weight starts with."""
    match leaf.start:
        case Constant():
            return float((abs(leaf.start.array()) ** 2).mean())
        case (_, number):
            return number**2
    return 1.0
