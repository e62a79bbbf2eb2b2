"""The context of code generation: names, shapes and sizes, operands, numbers and pointwise expressions."""

from __future__ import annotations

import functools
import itertools
import keyword
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..contraction.pairs import flatten, view_order
from ..dtypes import Element
from ..errors import BackendError, EquationError
from ..graph.leaves import Leaf
from ..language.affine import reached
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Literal,
    Ref,
    Size,
    rename,
    scalar_value,
    show,
)
from ..ops.record import Left, axes_in, left_of, names_in
from ..ops.record import extent as size_along
from ..ops.table import FUNCTIONS, Function
from ..planning.plans import Plan, Step
from ..protocol import Backend
from ..sizes import evaluate, invert_size, put_in, size_names, size_source, symbol

OBSERVED = "@"
"""In the solution for an open size: a placeholder for the size that is read from a shape."""


@dataclass
class CodegenContext:
    """The state that is shared while one function is generated, and how operands and expressions are written.

    What the records of functions call is `ops.record.Writer`.

    Attributes:
        plan: the plan that the function computes.
        backend: the backend whose operations it uses.
        leaves: the leaves that the function takes.
        functions: the names of the functions of blocks.
        scopes: the scopes of the blocks that the function is given as callables; see `blocks`.
        names, size_names, blocks: the Python names of tensors, of open sizes and of these blocks.
        shapes: the size of each dimension of each tensor.
        sizes, element: the sizes of the axes of the current step, and the element type of its result.
        used_sizes: the open sizes that the function reads from shapes.
        needs_dtype: whether it uses the working element type.
    """

    plan: Plan
    backend: Backend
    leaves: Sequence[Leaf]
    functions: Mapping[Plan, str] = field(default_factory=dict)
    scopes: Sequence[str] = ()
    sizes: Mapping[str, Any] = field(default_factory=dict)
    element: Element = Element.NUMBER
    used_sizes: set[str] = field(default_factory=set)
    needs_dtype: bool = False

    def __post_init__(self) -> None:
        plan, bound = self.plan, self.plan.graph.bound
        taken = reserved(self.backend).union(self.functions.values())
        made = (name for step in (*plan.once, *plan.steps) for name in step.defines)
        tensors = dict.fromkeys((*(leaf.name for leaf in self.leaves), *made))
        self.names = {name: identifier(name, taken) for name in tensors}
        self.size_names = {name: identifier(name, taken) for name in plan.graph.open_sizes}
        self.blocks = {scope: identifier(scope, taken) for scope in self.scopes}
        self.shapes = {leaf.name: tuple(evaluate(size, bound) for size in leaf.shape) for leaf in self.leaves}

    @property
    def _observed(self) -> list[tuple[Any, str]]:
        """The size of each dimension of the leaves, and where it is read."""
        return [
            (size, f"{self.names[leaf.name]}.shape[{position}]")
            for leaf in self.leaves
            for position, size in enumerate(self.shapes[leaf.name])
        ]

    @functools.cached_property
    def solved_sizes(self) -> dict[str, tuple[Any, str]]:
        """The open sizes that follow from shapes: the solution of each, and the shape that it is solved for. Those that
        others are solved with come first."""
        solved, before, read = dict[str, tuple[Any, str]](), -1, self._observed
        while len(solved) > before:
            before = len(solved)
            for size, observed in read:
                names = [name for name in size_names(size) if name not in solved]
                solution = invert_size(size, names[0], symbol(OBSERVED)) if len(names) == 1 else None
                if solution is not None:
                    solved[names[0]] = solution, observed
        return solved

    def op(self, template: str, *operands: str, **details: str) -> str:
        """One operation, written by the backend's template of that name."""
        text = self.backend.templates.get(template)
        if text is None:
            fix = f"use another backend, or write it in functions that {self.backend.name} has"
            raise BackendError(f"{self.backend.name} has no '{template}'", fix=fix)
        if "{dtype}" in text and "dtype" not in details:
            details["dtype"] = self.dtype()
        return text.format(*operands, **details)

    def asks(self, template: str, detail: str) -> bool:
        """Whether the backend's template of an operation contains a detail."""
        return f"{{{detail}}}" in self.backend.templates.get(template, "")

    def dtype(self, element: Element = Element.NUMBER) -> str:
        """The source of an element type. That of numbers is the one floating type of the arguments."""
        match element:
            case Element.TRUTH:
                return self.op("dtype", "bool")
            case Element.SHORT | Element.WHOLE:
                return self.op("dtype", "int64")
            case Element.WIDE:
                return self.op("wide")
        self.needs_dtype = True
        return "dtype"

    def size(self, size: Any) -> str:
        """A size as source. Records the open sizes in it as used."""
        size, observed = self._in_wholes(size)
        names = {name: self.size_names[name] for name in size_names(size) if name != OBSERVED}
        self.used_sizes.update(names)
        return size_source(size, {**names, OBSERVED: observed})

    def _in_wholes(self, size: Any) -> tuple[Any, str]:
        """A size of a block by the shape of an argument that its caller joins of parts, whose own sizes are unknown."""
        unknown = {*size_names(size)} - self.solved_sizes.keys()
        for whole, observed in self._observed if len(unknown) > 1 else ():
            name = next((name for name in size_names(whole) if name in unknown), "")
            solution = invert_size(whole, name, symbol(OBSERVED)) if name else None
            found = size if solution is None else put_in(size, {name: solution})
            if unknown.isdisjoint(size_names(found)):
                return found, observed
        return size, ""

    def shape(self, sizes: Iterable[Any]) -> str:
        """Sizes as source."""
        return tuple_source(map(self.size, sizes))

    def reshape(self, text: str, sizes: Iterable[Any]) -> str:
        """An array reshaped to dimensions of these sizes."""
        return self.op("reshape", text, shape=self.shape(sizes))

    def permute(self, text: str, order: Iterable[int]) -> str:
        """An array with its dimensions in another order."""
        return self.op("permute", text, axes=tuple_source(order))

    def positions(self, size: Any) -> str:
        """0, 1, 2, … on the device of the arguments."""
        if not self.leaves:
            return self.op("arange_alone", self.size(size))
        return self.op("arange", self.size(size), like=self.names[self.leaves[0].name])

    def extent(self, axes: Iterable[str]) -> str:
        """The number of positions along some axes."""
        return self.size(size_along(self.sizes, axes))

    def left_sizes(self, left: Left) -> list[Any]:
        """The size of each dimension of a result."""
        return [size_along(self.sizes, names_in(entry)) for entry in left]

    def reshaped(self, text: str, left: Left) -> str:
        """A result reshaped to one dimension for each entry."""
        return self.reshape(text, self.left_sizes(left))

    def label_sizes(self, ref: Ref) -> dict[str, Any]:
        """The sizes of the axes of an operand. That of an axis that is a whole dimension comes from the array."""
        found: dict[str, Any] = {}
        for entry, size in zip(ref.index, self.shapes[ref.name], strict=True):
            if isinstance(entry, str):
                found[entry] = size
            elif isinstance(entry, tuple):
                found.update({axis: self.sizes[axis] for axis in entry})
        return found

    # ---- operands

    def view(self, ref: Ref, groups: Sequence[tuple[str, ...]], *, ones: bool = False) -> str:
        """An operand with one dimension for each group. An empty group has size 1 with `ones`, else no dimension."""
        text, present = self.names[ref.name], tuple(tuple(group) for group in groups if group)
        order, filled = view_order(ref.layout, present), ones and len(present) < len(groups)
        if order is None:
            flat = flatten(present)
            text = self.turned(ref, flat) or self.permuted(ref, flat)
            if any(len(group) > 1 for group in present) and not filled:
                text = self._grouped(text, ref, present)
        elif list(order) != sorted(order):
            lying = left_of(present[n] for n in order)
            text = text if lying == ref.index else self._grouped(text, ref, map(names_in, lying))
            text = self.permute(text, [order.index(n) for n in range(len(order))])
        elif not filled and left_of(present) != ref.index:
            text = self._grouped(text, ref, present)
        return self._grouped(text, ref, groups) if filled else text

    def _grouped(self, text: str, ref: Ref, groups: Iterable[tuple[str, ...]]) -> str:
        """An operand, possibly permuted, reshaped to one dimension for each group."""
        sizes = self.label_sizes(ref)
        return self.reshape(text, [size_along(sizes, group) for group in groups])

    def turned(self, ref: Ref, axes: tuple[str, ...]) -> str | None:
        """A transposed matrix, if an order is the layout with its first axes last: libraries copy that fastest."""
        layout = ref.layout
        at = layout.index(axes[0]) if axes else 0
        if len(axes) < 3 or not at or layout[at:] + layout[:at] != axes:
            return None
        return self.permute(self._grouped(self.names[ref.name], ref, (layout[:at], layout[at:])), (1, 0))

    def copied(self, ref: Ref, groups: Sequence[tuple[str, ...]]) -> str:
        """An operand with one dimension for each group, laid out in their order."""
        order = flatten(tuple(groups))
        if view_order(ref.layout, tuple(groups)) is None and any(len(group) > 1 for group in groups):
            return self.view(ref, groups)  # merging the axes copies
        matrix = self.turned(ref, order)
        if matrix is not None:
            return self._grouped(self.op("contiguous", matrix), ref, groups)
        text = self.view(ref, groups)
        return text if ref.layout == order else self.op("contiguous", text)

    def broadcast(self, ref: Ref, groups: Sequence[tuple[str, ...]]) -> str:
        """An operand with one dimension for each group: of full size, or of size 1 if it has no axis of the group."""
        layout, sizes = ref.layout, self.label_sizes(ref)
        own = [tuple(axis for axis in group if axis in layout) for group in groups]
        full = [group if part else () for part, group in zip(own, groups, strict=True)]
        text = self.view(ref, own, ones=True)
        if own == full:
            return text
        axes = [(axis, bool(part)) for part, group in zip(own, groups, strict=True) for axis in group]
        split = self.reshape(text, [sizes.get(axis, 1) for axis, _ in axes])
        whole = self.shape(self.sizes[axis] if has_part else 1 for axis, has_part in axes)
        text = self.op("broadcast", split, shape=whole)
        return self.reshape(text, [size_along(self.sizes, group) for group in full])

    def atomic(self, ref: Ref) -> str:
        """An operand with one dimension for each axis, in the order of its layout."""
        return self.permuted(ref, ref.layout)

    def permuted(self, ref: Ref, axes: Sequence[str]) -> str:
        """An operand with one dimension for each axis, in the order given."""
        return self.view(ref, [(axis,) for axis in axes])

    def in_order(self, text: str, have: tuple[str, ...], want: tuple[str, ...]) -> str:
        """An array permuted from the axes `have` to the axes `want`."""
        return text if have == want else self.permute(text, [have.index(axis) for axis in want])

    def aligned(self, ref: Ref, left: Left) -> str:
        """An operand that broadcasts to the result: axes in the same order, size 1 where an axis is missing."""
        if ref.index == left or not ref.index:
            return self.names[ref.name]
        layout = ref.layout
        behind = itertools.dropwhile(lambda axis: axis not in layout, axes_in(left))
        return self.view(ref, [(axis,) if axis in layout else () for axis in behind], ones=True)

    def looked(self, text: str, name: str, axis: str) -> str:
        """Positions in the tensor of this name, with a check that they are positions along an axis."""
        return self.below(text, name, self.sizes[axis])

    def below(self, text: str, name: str, size: Any, past: Any = None) -> str:
        """Positions with a check that they are below a size, unless they come from a table that was checked.

        `past`, by default the size, times the stride of a position is beyond everything that is read. A library that
        cannot check values puts it in place of a wrong position.
        """
        if any(table.leaf.name == name and table.below is not None for table in self.plan.tables):
            return text
        details = {"past": self.size(size if past is None else past)} if self.asks("within", "past") else {}
        return self.op("within", text, size=self.size(size), name=repr(self.told(name)), **details)

    def told(self, name: str) -> str:
        """A tensor in a message: its name in the graph, or the expression that a step without such a name computes."""
        steps = [each for each in (*self.plan.once, *self.plan.steps) if isinstance(each, Step)]
        lines = [each.equation for each in steps if each.equation.name not in self.plan.graph.named]
        made: dict[str, Equation] = {each.name: each for each in lines}

        def change(part: Expression) -> Expression:
            if not isinstance(part, Ref) or part.name not in made:
                return part
            line = made[part.name]
            names = {str(old): str(new) for old, new in zip(line.left, part.index, strict=True)}
            plain = all(isinstance(each, str) for each in (*line.left, *part.index))
            return rename(line.right, names).rewrite(change) if plain else part

        return show(change(Ref(name, made[name].left))) if name in made else name

    # ---- numbers

    reached = staticmethod(reached)

    def scalar(self, expression: Expression) -> str:
        """A number as source: its value where all sizes are known, else arithmetic on open sizes."""
        known = scalar_value(expression)
        if known is not None:
            return _number(known)
        match expression:
            case Size(axis):
                self.used_sizes.add(axis)
                return self.size_names[axis]
            case Contraction(factors, ()):
                return f"({product_source(factors, lambda factor: self.scalar(factor))})"
            case Call("add", arguments):
                return "(" + " + ".join(self.scalar(each) for each in arguments) + ")"
            case Call(function, arguments) if FUNCTIONS[function].number:
                return FUNCTIONS[function].number.format(*(self.scalar(each) for each in arguments))
        what = f"{show(expression)} depends on a size that is open"
        raise EquationError(what, expression.place, "give the size when building the layer")

    def options(self, call: Call) -> dict[str, str]:
        """The options of a function: from the call, or else the defaults of its record."""
        given = {name: values for name, values in call.options if len(values) == 1}
        return {
            name: self.scalar(given[name][0]) if name in given else repr(default)
            for name, default in FUNCTIONS[call.function].options
        }

    def number(self, expression: Expression) -> str:
        """A number as a tensor."""
        like = self.names[self.leaves[0].name] if self.leaves else "None"
        return self.op("scalar", self.scalar(expression), dtype=self.dtype(self.element), like=like)

    @staticmethod
    def value(expression: Expression) -> int | float | complex | None:
        """The value of a number; nothing for a tensor, or if a size in it is open."""
        return scalar_value(expression) if expression.is_scalar else None

    @staticmethod
    def integer(expression: Expression) -> int:
        """The value of a known whole number. Raises an error for anything else."""
        found = scalar_value(expression)
        if found is None or isinstance(found, complex) or found != int(found):
            what = f"{show(expression)} is not a known whole number"
            raise EquationError(what, expression.place, "give the sizes that occur in it")
        return int(found)

    # ---- pointwise expressions

    def render(self, expression: Expression, left: Left) -> str:
        """A pointwise expression over operands aligned to the result."""

        def inner(part: Expression) -> str:
            return self.render(part, left)

        match expression:
            case Ref():
                return self.aligned(expression, left)
            case _ if expression.is_scalar:
                return self.scalar(expression)
            case Contraction(factors, ()):
                return product_source(factors, inner)
            case Call("add", arguments):
                first, *others = map(inner, arguments)
                signed = (f" - {each[1:]}" if each[0] == "-" else f" + {each}" for each in others)
                return first + "".join(signed)
            case Call(function, (Contraction(factors, ()),)) if FUNCTIONS[function].rounds:
                return product_source(factors, inner, by=FUNCTIONS[function].rounds)
            case Call(function) if (spelled := FUNCTIONS[function].spelled) is not None:
                return spelled(self, expression, left)
            case Call(function, arguments):
                operands = list(map(inner, arguments))
                if FUNCTIONS[function].random and arguments[0].is_scalar:  # it draws for each element
                    operands[0] = self.number(arguments[0])
                return self._applied(expression, operands)
        raise AssertionError(show(expression))

    def _applied(self, call: Call, operands: list[str]) -> str:
        """A function of operands: the user's own, the backend's, or a Python operator."""
        function = FUNCTIONS[call.function]
        if function.implementations:
            return self.own(function, operands)
        if function.name in self.backend.templates or not function.infix:
            return self.op(function.name, *operands, **self.options(call))
        if len(operands) == 2:
            return f"{_closed(operands[0])} {function.infix} {_closed(operands[1])}"
        return f"{function.infix}{_closed(operands[0])}"

    def own(self, function: Function, given: Sequence[str]) -> str:
        """A call of the user's own implementation."""
        registered, backend = dict(function.implementations), self.backend.name
        if backend not in registered:
            what = f"'{function.name}' is registered for {', '.join(registered)}, not for {backend}"
            raise BackendError(what, fix=f"tensornet.register('{function.name}', {backend}=...)")
        return f'functions["{function.name}"]({", ".join(given)})'


def _number(value: int | float | complex) -> str:
    if isinstance(value, float) and math.isinf(value):
        return "-math.inf" if value < 0 else "math.inf"
    return "math.nan" if isinstance(value, float) and math.isnan(value) else repr(value)


def product_source(factors: Sequence[Expression], spell: Callable[[Expression], str], by: str = "/") -> str:
    """Factors from left to right; a reciprocal after the first divides."""
    text = spell(factors[0])
    if factors[0] == Literal(-1):
        text, factors = f"-{spell(factors[1])}", factors[1:]
    for factor in factors[1:]:
        match factor:
            case Call("reciprocal", (below,)):
                text += f" {by} {spell(below)}"
            case _:
                text += f" * {spell(factor)}"
    return text


def _closed(text: str) -> str:
    """An operand of an infix operator. A negative number or a compound expression gets parentheses."""
    return f"({text})" if text.startswith("-") or (" " in text and not text.endswith(")")) else text


# ---------------------------------------------------------------------------- names and remarks


FUNCTION_NAME, TABLES_NAME = "forward", "tables"
"""The names of the function of a plan, and of the function that computes its tables once."""

_RESERVED = {"math", "functions", "dtype", "training", "leading", "at", FUNCTION_NAME, TABLES_NAME}
"""The names that this library writes into every function itself."""

_WORD = re.compile(r"(?<![\w.{])[^\W\d]\w*(?!\w*\s*=(?!=))")
"""A name in a template: no attribute, no keyword, no detail in braces."""


def reserved(backend: Backend) -> set[str]:
    """The names that generated code uses for anything but tensors, sizes and blocks."""
    return _RESERVED.union(FUNCTIONS, *map(_words, backend.templates.values()))


@functools.lru_cache(maxsize=1024)
def _words(template: str) -> tuple[str, ...]:
    """The names in a template."""
    return tuple(_WORD.findall(template))


def identifier(name: str, taken: set[str]) -> str:
    """A Python name for a tensor or a size, added to those that are taken.

    Raises:
        EquationError: the name does not consist of words of letters, digits and `_`, joined by dots.
    """
    base = name.replace(".", "_")
    base = f"_{base}" if base[:1].isdigit() else base
    if not base.isidentifier():
        raise EquationError(f"{name!r} cannot name anything", fix="use letters, digits and '_'")
    base = unicodedata.normalize("NFKC", base)  # as Python does: two spellings may be one name
    chosen, number = base, 1
    while chosen in taken or keyword.iskeyword(chosen):
        chosen = f"{base}_{number}"
        number += 1
    taken.add(chosen)
    return chosen


def remark(text: str) -> str:
    """Mathematics for a comment or a docstring, without characters that could end it.

    Raises:
        EquationError: a name in it contains a character that no name may have.
    """
    if not text.isprintable() or '"' in text or "\\" in text:
        fix = "use letters, digits and '_' in names"
        raise EquationError(f"{text!r} cannot be written into code", fix=fix)
    return text


def tuple_source(parts: Iterable[object]) -> str:
    """The source of a tuple of pieces of source, or of numbers; in a call `f(…)`, of its arguments."""
    texts = list(map(str, parts))
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts) or '()'})"
