"""Weight equations: a weight as an expression in factors, from text or from the factorization table.

The result is a graph without data. Its parameters are the new ones, its inputs are other leaves of the model,
and its one output is the weight.
"""

from __future__ import annotations

import itertools
import operator
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from ..errors import EquationError, ShapeError, TensornetError, near
from ..frontend.instantiate import hygienic
from ..frontend.layers import layer
from ..graph.graph import Graph, of_tensors_named
from ..graph.leaves import Leaf, scoped
from ..graph.shape_inference import index_of
from ..initialization.gain_propagation import moments_of_start
from ..initialization.initial_values import starts_of_weight
from ..language.equation import Declaration, Equation
from ..language.expression import fresh, show_index
from ..language.parser import parse_block, parse_names, read_sizes
from ..ops.record import entry_of
from ..sizes import evaluate
from .factorizations import (
    FACTORIZATIONS,
    SHARING,
    Factor,
    Factored,
    Factorization,
    Rank,
    check_sizes,
    factored,
    form_named,
    tensorize,
)
from .sizes import ModelSizes

KEPT = "base"
"""The name of the original weight in the scope of the new one, if the new equation reads it: `W.base`."""

LETTERS = "oijklmnpqstu"
"""The axis names of the dimensions of a weight, in order."""

Modes = int | Sequence[int | Sequence[int]]
"""The split of dimensions: one number of parts for all, or for each a number of parts or their sizes."""


Form = str | tuple[str, Rank]
"""The new form of a weight: equations, the name of a factorization, or that name and a rank."""

FORMS = FACTORIZATIONS | SHARING
"""The factorizations that a weight may become."""


@dataclass(frozen=True)
class Weight:
    """The replacement of a weight.

    Attributes:
        program: its equations, in the sizes of the model. Its parameters have their names in the text.
        operands: the full names of its inputs in the model.
    """

    program: Graph
    operands: tuple[str, ...]


class Weights:
    """Builds the new weights of a model, one after another, with consistent names of sizes.

    Args:
        graph: the model.
        inputs, constants, init, shared, rank, modes, sizes: the arguments of `substitute`.

    Attributes:
        common: the factors that several weights share, as leaves of the model.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: str | Sequence[str],
        constants: Mapping[str, Any],
        init: Mapping[str, Any],
        shared: str | Sequence[str],
        rank: Rank,
        modes: Modes | None,
        sizes: Mapping[str, Any],
    ) -> None:
        self.graph, self.rank, self.modes = graph, rank, modes
        self.inputs = parse_names(inputs, "input")
        self.shared = [each.name for each in parse_names(shared, "parameter")]
        self.constants, self.init, self.sizes = constants, init, read_sizes(sizes)
        self.leaves = {leaf.name: leaf for leaf in graph.leaves}
        self.taken = {*self.leaves, *(equation.name for equation in graph.equations)}
        self.known = ModelSizes(graph)
        self.used: set[str] = set()
        self.common: dict[tuple[tuple[str, ...], str], Leaf] = {}

    def check_given(self) -> None:
        """Raises an error if an argument is given for a name that no weight uses."""
        given = {
            "a size": self.sizes,
            "a constant": self.constants,
            "a start": self.init,
            "an input": [each.name for each in self.inputs],
            "a shared factor": self.shared,
        }
        for what, names in given.items():
            for name in names:
                if name not in self.used:
                    fix = (
                        f"{near(name, self.used)}the names there are {', '.join(sorted(self.used)) or 'none'}"
                    )
                    raise EquationError(f"{what} is given for '{name}', which no equation has", fix=fix)

    def weight(self, leaf: Leaf, text: Form, together: tuple[str, ...]) -> Weight:
        """Builds the replacement of a weight.

        Args:
            leaf: the weight in the model.
            text: its equations, or the name of a factorization, with or without a rank.
            together: the weights that it shares factors with, including itself.

        Raises:
            EquationError: the text is not in the language, or reads an unknown tensor.
            ShapeError: sizes disagree or are missing, or the weight has no such form.
        """
        try:
            return self._weight(leaf, text, together)
        except TensornetError as error:
            raise type(error)(
                f"in the place of '{leaf.name}': {error.message}", error.place, error.fix, error.see
            ) from None

    def square(self, leaf: Leaf) -> float:
        """The mean square that a weight starts with."""
        found = moments_of_start(self.graph, leaf)
        return 1.0 if found is None else found.square

    def _weight(self, leaf: Leaf, form: Form, together: tuple[str, ...]) -> Weight:
        text, rank = form if isinstance(form, tuple) and len(form) == 2 else (form, self.rank)
        if not isinstance(text, str):
            fix = f"write its equation, or one of {', '.join(FORMS)}"
            raise EquationError(f"{text!r} is no text", fix=fix)
        is_text = "=" in text
        kind = "" if is_text else text.removeprefix("+").rpartition("*")[2].strip()
        common = shared_names(kind, self.shared) if kind else self.shared
        text, given = (text, self.sizes) if is_text else self._line(leaf, text, rank, common, len(together))
        program, names = self._read(leaf, text, given, is_text)
        leaves = {program.outputs[0]: leaf} | {name: self.leaves[path] for name, path in names.items()}
        program = self.known.joined(program, leaves, self.sizes)
        for name in [name for name, path in names.items() if path == leaf.name]:
            if KEPT in program.named:
                fix = "give your tensor another name"
                raise EquationError(f"'{KEPT}' is what the weight as it was is called", fix=fix)
            program = _with(program, {name: replace(leaf, name=KEPT, dims=program.named[name])})
        shared = [each.name for each in program.parameters if each.name in common]
        self.used.update(shared)
        had = {name: each for name in shared if (each := self.common.get((together, name))) is not None}
        program = _starting(program, leaf, self.square(leaf), had)
        names |= {name: self._common(program, name, together) for name in shared}
        program = _with(program, {name: Leaf(name, "input", program.named[name]) for name in shared})
        program = _apart(program, leaf.name, self.taken)
        self.taken.update(f"{leaf.name}.{each.name}" for each in program.leaves)
        return Weight(program, tuple(names[each.name] for each in program.inputs))

    def _common(self, program: Graph, name: str, together: tuple[str, ...]) -> str:
        """The name in the model of a factor that several weights share.

        Raises:
            ShapeError: its shape differs from that in an earlier weight.
        """
        leaf = next(each for each in program.parameters if each.name == name)
        if (together, name) not in self.common:
            path = fresh(scoped(_scope_of(together), name), self.taken)
            self.taken.add(path)
            self.common[together, name] = replace(leaf, name=path)
        found = self.common[together, name]
        shapes = [[evaluate(size, self.known.bound) for size in each.shape] for each in (leaf, found)]
        if shapes[0] != shapes[1]:
            ours, theirs = ("×".join(map(str, shape)) for shape in shapes)
            fix = "tell weights that share no factors by patterns of their own"
            raise ShapeError(f"'{name}' is shared, and has shape {ours} here, {theirs} before", fix=fix)
        return found.name

    def _line(
        self, leaf: Leaf, text: str, rank: Rank, common: Collection[str], times: int
    ) -> tuple[str, Mapping[str, Any]]:
        """The equation of a form of the table, and its sizes.

        The form may be added to the original weight, as `+form`, also times a number, as `+0.5*form`.

        Args:
            leaf: the weight.
            text, rank: the form.
            common, times: the factors that several weights share, and the number of these weights.
        """
        factor, _, name = text.removeprefix("+").rpartition("*")
        dims = [tuple(evaluate(axis.size, self.graph.bound) for axis in dim) for dim in leaf.dims]
        if not all(isinstance(size, int) for dim in dims for size in dim):
            shape = ", ".join(str(evaluate(size, self.graph.bound)) for size in leaf.shape)
            names = ", ".join(f"{name}=" for name in self.graph.open_sizes)
            fix = f"bind the sizes first, graph.bind({names}…), or write its equation"
            raise ShapeError(f"its shape ({shape}) is open", fix=fix)
        form = formed(dims, name.strip(), rank, self.modes, common, times)
        added = f"whole[{form.left}] + {f'{factor} * ' if factor else ''}" if text.startswith("+") else ""
        return f"whole[{form.left}] = {added}{form.product}", read_sizes(form.sizes)

    # ---- from a text

    def _read(
        self, leaf: Leaf, text: str, given: Mapping[str, Any], is_own: bool
    ) -> tuple[Graph, dict[str, str]]:
        """The graph of a text of the user or of the table, and the model's leaf for each of its inputs."""
        read = _WeightText(text)
        self.used |= read.words if is_own else read.words & self.init.keys()
        listed = [each for each in self.inputs if each.name in read.words - read.target_names]
        names = {each.name: self._seen(each, leaf.name) for each in (*listed, *read.inputs)}
        inputs = [
            _declared_as(each, self.leaves[names[each.name]], each.name in read.shown) for each in listed
        ]
        if read.reads_itself:
            (target,) = read.target_names
            names[target] = leaf.name
            inputs.append(target if target in read.shown else _read_as(target, leaf))
        sizes, constants, init = (
            {name: value for name, value in part.items() if name in read.words}
            for part in (given, self.constants, self.init)
        )
        whole = read.targeted(leaf)

        def make(**known: Any) -> Graph:
            return layer(whole, inputs=inputs, constants=constants, init=init, **known)

        program = hygienic(make, sizes)
        if len(program.outputs) != 1:
            raise EquationError(f"the text has {len(program.outputs)} results", fix="make it one, the weight")
        return program, names

    def _seen(self, declared: Declaration, path: str) -> str:
        """The leaf that a name in a weight refers to: in the scope of the weight, or in an enclosing one."""
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


@dataclass(frozen=True)
class Formed:
    """A weight in one of the forms of the table.

    Attributes:
        dims: the axes of each dimension.
        sizes: the sizes of these axes, and of the ranks.
        product: the factors.
        bits: the bits of each code of each rank, or of all where there is not one rank; none if it is not rounded.
    """

    dims: tuple[tuple[str, ...], ...]
    sizes: Mapping[str, int]
    product: Factored
    bits: tuple[int, ...] = ()

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the factors."""
        return tuple(tuple(self.sizes[axis] for axis in each.axes) for each in self.product.factors)

    def bytes(self, itemsize: int) -> int:
        """The bytes of the factors: codes are packed, all other elements have `itemsize` bytes."""
        counts = zip(self.product.factors, map(prod, self.shapes), strict=True)
        return sum(
            -(-count * sum(self.bits) // (8 * len(self.bits)))
            if self.bits and each.name.endswith(CODES)
            else itemsize * count
            for each, count in counts
        )

    def widths(self, factor: Factor) -> Any:
        """The bits of the elements of a factor of codes, an array that broadcasts to its shape."""
        if len({*self.bits}) == 1:
            return np.array(self.bits[0])
        return np.array(self.bits).reshape([-1 if axis in self.product.ranks else 1 for axis in factor.axes])

    @property
    def left(self) -> str:
        """The axes of the weight, as an equation has them on its left."""
        return show_index(tuple(map(entry_of, self.dims)))

    @property
    def program(self) -> Graph:
        """The graph whose output is the weight."""
        sizes: dict[str, Any] = {**self.sizes}
        return layer(f"weight[{self.left}] = {self.product}", **sizes)


def formed(
    dims: Sequence[tuple[int, ...]],
    kind: str,
    rank: Rank,
    modes: Modes | None = None,
    shared: Collection[str] = (),
    times: int = 1,
) -> Formed:
    """A weight in one of the forms of the table.

    Args:
        dims: the sizes of the axes of each dimension of the weight.
        kind: the name of the form, in upper or lower case; with `:int4` its factors are rounded to 4 bits, `int4` is
            the weight itself rounded. Of `low_rank:int` each rank has its own bits.
        rank, modes: as for `substitute`; of `low_rank:int` the numbers of ranks in 8, 6, 4, 3 and 2 bits.
        shared, times: the factors that several weights share, and the number of these weights.

    Raises:
        ShapeError: the weight has no such form.
    """
    kind, rounding = rounding_of(kind)
    kind = form_named(kind, tuple(FORMS))
    bits: tuple[int, ...] = () if rounding is None or rounding.bits is None else (rounding.bits,)
    if rounding is not None and not bits:
        rank = len(bits := bits_of_ranks(rank))
    parts = _parts(dims, FORMS[kind], 1 if rounding and kind == "dense" else modes)
    if len(parts) > len(LETTERS):
        raise ShapeError(f"it has {len(parts)} dimensions", fix="write its equation")
    axes = tuple(
        tuple(f"{letter}{n}" for n in range(1, len(dim) + 1)) if len(dim) > 1 else (letter,)
        for letter, dim in zip(LETTERS, parts, strict=False)
    )
    found = factored(kind, axes, parts, rank, shared=shared, times=times)
    sizes = dict(zip(itertools.chain(*axes), itertools.chain(*parts), strict=True))
    made = Formed(axes, {**sizes, **found.ranks}, found)
    if rounding is None:
        return made
    if len(bits) == len(found.ranks) == 1:
        bits *= next(iter(found.ranks.values()))
    return replace(_rounded(made, rounding), bits=bits)


# ---------------------------------------------------------------------------- rounded weights


CODES, SCALE = "_codes", "_scale"
"""The ends of the names of the two factors that a rounded factor becomes."""


@dataclass(frozen=True)
class Rounding:
    """How factors are rounded.

    Attributes:
        bits: of each element; None if each rank has its own.
        group: how many elements of a row share a scale; None for all of it.
    """

    bits: int | None
    group: int | None = None


MIXED, WIDTHS = "low_rank:int", (8, 6, 4, 3, 2)
"""The rounded form with bits for each rank, large ranks first, and the numbers of bits that it has."""


def bits_of_ranks(rank: Rank) -> tuple[int, ...]:
    """The bits of each rank, from the number of ranks with each number of bits.

    Raises:
        ShapeError: these are no such numbers.
    """
    given = [*rank] if isinstance(rank, Sequence) and not isinstance(rank, str) else []
    if (
        len(given) != len(WIDTHS)
        or not all(isinstance(each, int) and each >= 0 for each in given)
        or not sum(given)
    ):
        fix = f"give the numbers of ranks that have {', '.join(map(str, WIDTHS))} bits, as (4, 8, 8, 4, 0)"
        raise ShapeError(f"rank={rank!r} does not tell the bits of each rank", fix=fix)
    return tuple(itertools.chain(*((bits,) * count for bits, count in zip(WIDTHS, given, strict=True))))


def rounding_of(kind: str) -> tuple[str, Rounding | None]:
    """The form of the table in a name, and the rounding.

    Example:
        >>> rounding_of("low_rank:int3"), rounding_of("int4/64"), rounding_of("tt")
        (('low_rank', Rounding(bits=3, group=None)), ('dense', Rounding(bits=4, group=64)), ('tt', None))

    Raises:
        ShapeError: the name is that of a rounding that there is not, such as `int9`.
    """
    if kind.lower() == MIXED:
        return "low_rank", Rounding(None)
    found = re.fullmatch(r"(?:(\w+):)?int([1-8])(?:/([1-9]\d*))?", kind.lower())
    if found is None:
        if re.fullmatch(r"(?:\w+:)?int\d*(?:/.*)?", kind.lower()):
            fix = "give int1 to int8, int4/64 with a scale for each 64 elements, or low_rank:int4"
            raise ShapeError(f"there is no rounding '{kind}'", fix=fix)
        return kind, None
    return found[1] or "dense", Rounding(int(found[2]), int(found[3]) if found[3] else None)


def _rounded(form: Formed, rounding: Rounding) -> Formed:
    """The form with each factor as a scale for each row times integer codes: `U_scale[r] * U_codes[o,r]`.

    A row is a position along the first rank of a factor, or along its first axis if it has no rank. Of a weight
    without ranks that is a matrix, a group is a part of a row.
    """
    factors, dims, sizes = list[Factor](), form.dims, {**form.sizes}
    for factor in form.product.factors:
        row = next((axis for axis in factor.axes if axis in form.product.ranks), factor.axes[0])
        axes, scaled = factor.axes, [row]
        rest = [axis for axis in axes if axis != row]
        axis = max(rest, key=sizes.__getitem__, default=row)
        alone = prod(sizes[each] for each in rest) == sizes[axis]
        if rounding.group is not None and alone and not form.product.ranks and rounding.group < sizes[axis]:
            inner = max(n for n in range(1, rounding.group + 1) if sizes[axis] % n == 0)
            parts = (f"{axis}g", f"{axis}e")
            sizes |= {parts[0]: sizes[axis] // inner, parts[1]: inner}
            axes = tuple(itertools.chain(*(parts if each == axis else (each,) for each in axes)))
            dims = tuple(tuple(itertools.chain(*(parts if n == axis else (n,) for n in dim))) for dim in dims)
            del sizes[axis]
            scaled.append(parts[0])
        factors += [Factor(factor.name + SCALE, tuple(scaled)), Factor(factor.name + CODES, axes)]
    return Formed(dims, sizes, Factored(tuple(factors), form.product.ranks))


FOR_EACH = "give one for each dimension, or one number for all"


def checked_modes(modes: Any) -> int | tuple[int | tuple[int, ...], ...]:
    """The numbers or the sizes of parts, as integers and tuples of them. Raises an error for anything else."""
    try:
        if hasattr(modes, "__index__") and not getattr(modes, "shape", ()):
            return operator.index(modes)
        return tuple([_count(each) for each in modes])
    except TypeError:
        raise ShapeError(f"modes={modes!r} are no numbers of parts", fix=FOR_EACH) from None


def _count(each: Any) -> int | tuple[int, ...]:
    return tuple(map(operator.index, each)) if hasattr(each, "__iter__") else operator.index(each)


def _parts(
    dims: Sequence[tuple[int, ...]], form: Factorization, modes: Modes | None
) -> list[tuple[int, ...]]:
    """The sizes that each dimension is split into."""
    shape = [prod(dim) for dim in dims]
    if modes is None:
        return [_usual(dim, size, form, len(shape)) for dim, size in zip(dims, shape, strict=True)]
    counts = checked_modes(modes)
    given = [counts] * len(shape) if isinstance(counts, int) else list(counts)
    if len(given) != len(shape):
        raise ShapeError(f"modes={modes!r} are {len(given)}, and it has shape {tuple(shape)}", fix=FOR_EACH)
    return [_split(size, each) for size, each in zip(shape, given, strict=True)]


def _usual(dim: tuple[int, ...], size: int, form: Factorization, order: int) -> tuple[int, ...]:
    """The default parts of a dimension: its own axes, if there are as many as the form needs."""
    count = form.parts[0] if form.parts else 1 if form.halves else 2 if form.pairs or order < 3 else 1
    return dim if len(dim) == count else tensorize(size, count)


def _split(size: int, parts: int | Sequence[int]) -> tuple[int, ...]:
    """The sizes of the parts of a dimension: as nearly equal as possible, or as given."""
    if isinstance(parts, int):
        return tensorize(size, parts)
    given = check_sizes(parts, "modes")
    if prod(given) != size:
        fix = f"give parts whose product it is, such as {tensorize(size, len(given))}"
        raise ShapeError(f"a dimension of {size} is no product of {given}", fix=fix)
    return given


# ---------------------------------------------------------------------------- leaves of a weight


def _with(program: Graph, leaves: Mapping[str, Leaf]) -> Graph:
    """The program with other leaves in the place of some, which may have other names."""
    names = {name: leaf.name for name, leaf in leaves.items()}
    return replace(
        program,
        leaves=tuple(leaves.get(each.name, each) for each in program.leaves),
        body=tuple(of_tensors_named(item, names) for item in program.body),
        outputs=tuple(names.get(each, each) for each in program.outputs),
    )


def _apart(program: Graph, path: str, taken: set[str]) -> Graph:
    """The program, with leaves renamed if the model already uses their names."""
    within = {name.removeprefix(f"{path}.") for name in taken if name.startswith(f"{path}.")}
    changed: dict[str, Leaf] = {}
    for leaf in program.leaves:
        if leaf.kind != "input" and leaf.name in within:
            changed[leaf.name] = replace(leaf, name=fresh(leaf.name, within | set(program.named)))
            within.add(changed[leaf.name].name)
    return _with(program.flat, changed) if changed else program


def shared_names(method: str, shared: str | Sequence[str]) -> tuple[str, ...]:
    """The factors of a factorization that several weights share.

    Args:
        method: the name of the factorization.
        shared: further shared factors, besides those that the factorization always shares.

    Raises:
        ShapeError: there is no such factorization.
    """
    own = FORMS[form_named(rounding_of(method)[0], tuple(FORMS))].shared
    return (*own, *(each.name for each in parse_names(shared, "parameter")))


def _scope_of(names: Sequence[str]) -> str:
    """The words that are the same at one place of all scoped names: `blocks.Wq` of `blocks.0.Wq` and `blocks.1.Wq`."""
    columns = zip(*(name.split(".") for name in names), strict=False)
    return ".".join(column[0] for column in columns if len(set(column)) == 1)


def _starting(program: Graph, leaf: Leaf, square: float, had: Mapping[str, Leaf]) -> Graph:
    """The program with starts for its parameters, so that the weight starts with the deviation that was given for it.

    If none was given, the equations of the model determine the starts later. If terms are added to the original
    weight, they start at zero.

    Args:
        square: the mean square of the weight.
        had: the parameters that have their start from an earlier weight.
    """
    kept = any(each.name == KEPT for each in program.leaves)
    if leaf.start is None and not kept:
        return program
    known = {KEPT: leaf.start or ("std", 1.0)} if kept else {name: each.start for name, each in had.items()}
    found = starts_of_weight(_started(program, known), square)
    if leaf.start is None:
        found = {name: start for name, start in found.items() if start == ("value", 0.0)}
    return _started(program, {each.name: each.start or found.get(each.name) for each in program.parameters})


def _started(program: Graph, starts: Mapping[str, Any]) -> Graph:
    """The program with given starts for some leaves."""
    leaves = (each for each in program.leaves if each.name in starts)
    return _with(program, {each.name: replace(each, start=starts[each.name]) for each in leaves})


# ---------------------------------------------------------------------------- the text of a weight


def _read_as(name: str, leaf: Leaf) -> str:
    """The text of a tensor with the axes of a leaf."""
    return f"{name}[{show_index(index_of(leaf.dims)) or '()'}]"


def _declared_as(declared: Declaration, leaf: Leaf, shown: bool) -> str:
    """An input as `layer` takes it, with the axes of the leaf unless it is declared or read with others."""
    if declared.dims is None:
        return declared.name if shown else _read_as(declared.name, leaf)
    index = tuple(entry_of(tuple(axis for axis, _ in dim)) for dim in declared.dims)
    return f"{declared.name}[{show_index(index) or '()'}]"


class _WeightText:
    """The equations of a weight, as a user writes them.

    Attributes:
        words: every name in the text.
        inputs: the inputs that it declares.
        shown: the tensors that it reads with axes.
        target: the last line, if that is an equation. It defines the weight.
    """

    def __init__(self, text: str) -> None:
        statements = parse_block(text)
        self.text = textwrap.dedent(text)
        self.words = set(re.findall(r"[^\W\d]\w*(?:\.\w+)*", text))
        self.declared = [each for each in statements if isinstance(each, Declaration)]
        self.inputs = [each for each in self.declared if each.kind == "input"]
        lines = [each for each in statements if isinstance(each, Equation)]
        self.read = [ref for line in lines for ref in line.references]
        self.shown = {ref.name for ref in self.read if ref.index}
        self.target = lines[-1] if lines and lines[-1] is statements[-1] else None

    @property
    def target_names(self) -> set[str]:
        """The name of the weight in the text; empty if no equation defines it."""
        return {self.target.name} if self.target else set()

    @property
    def reads_itself(self) -> bool:
        """Whether the text reads the original weight, by the weight's own name."""
        return bool(
            self.target_names & {ref.name for ref in self.read} - {each.name for each in self.declared}
        )

    def targeted(self, leaf: Leaf) -> str:
        """The text with axes on the left of its last line, and a new name there if it reads the original weight."""
        if self.target is None:
            return self.text
        place, name = self.target.place, self.target.name
        assert place is not None
        lines = re.split(r"\r\n|\r|\n", self.text)
        line = lines[place.number - 1]
        called = fresh(name, self.words) if self.reads_itself else name
        brackets = "" if self.target.left else _brackets(self.target, leaf)
        lines[place.number - 1] = (
            f"{line[: place.column]}{called}{brackets}{line[place.column + len(name) :]}"
        )
        return "\n".join(lines)


def _brackets(target: Equation, leaf: Leaf) -> str:
    """The axes of a left side without any: as the line reads the original weight, else as the weight is declared."""
    read = (ref.index for ref in target.references if ref.name == target.name and ref.index)
    index = next(read, index_of(leaf.dims))
    return f"[{show_index(index)}]" if index else ""
