"""Code generation of operands, sizes and numbers."""

from __future__ import annotations

import keyword
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..contraction.pairs import flatten, view_order
from ..errors import BackendError, EquationError
from ..graph.leaves import Leaf
from ..language.affine import reached
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Literal,
    Ref,
    Size,
    axes_of_index,
    is_scalar,
    scalar_value,
    show,
)
from ..ops.protocols import Reached
from ..ops.table import FUNCTIONS, Element
from ..planning.plans import Plan
from ..protocol import Backend
from ..sizes import evaluate, product, size_source

__all__ = [
    "FUNCTION_NAME",
    "OBSERVED",
    "TABLES_NAME",
    "Speller",
    "identifier",
    "remark",
    "reserved",
    "tuple_source",
]

FUNCTION_NAME, TABLES_NAME = "forward", "tables"
"""What the function of a plan is called, and the one that makes what it need not compute each time."""

OBSERVED = "@"
"""Where a size is solved for: stands for what a shape says."""

_RESERVED = {"math", "functions", "dtype", "training", "leading", FUNCTION_NAME, TABLES_NAME}
_RESERVED |= {"at"}
"""The names that this library writes into every function itself."""

_WORD = re.compile(r"(?<![\w.{])[^\W\d]\w*(?!\w*\s*=(?!=))")
"""A name in a template: no attribute, no keyword, no detail in braces."""


class Speller:
    """Knows the names and shapes of everything that a generated function has at hand."""

    def __init__(self, plan: Plan, backend: Backend, leaves: Sequence[Leaf], taken: Iterable[str]) -> None:
        self.plan, self.graph, self.backend, self.leaves = plan, plan.graph, backend, leaves
        self.names: dict[str, str] = {}
        self.size_names: dict[str, str] = {}
        self.used_sizes: set[str] = set()
        self.needs_dtype = False
        self.shapes: dict[str, tuple[Any, ...]] = {}
        self.sizes: dict[str, Any] = {}
        self.taken = reserved(backend) | set(taken)
        self._name_everything()

    def _name_everything(self) -> None:
        made = (name for step in (*self.plan.once, *self.plan.steps) for name in step.defines)
        for name in dict.fromkeys((*(leaf.name for leaf in self.leaves), *made)):
            self.names[name] = identifier(name, self.taken)
        for name in self.graph.open_sizes:
            self.size_names[name] = identifier(name, self.taken)
        for leaf in self.leaves:
            self.shapes[leaf.name] = tuple(evaluate(size, self.graph.bound) for size in leaf.shape)

    # ---- operations and sizes

    def op(self, template: str, *operands: str, **details: str) -> str:
        """One operation in the backend's spelling."""
        text = self.backend.templates.get(template)
        if text is None:
            raise BackendError(
                f"{self.backend.name} has no '{template}'",
                fix="use another backend, or tensornet.register the function",
            )
        if self.asks(template, "dtype") and "dtype" not in details:
            details["dtype"] = self.working_dtype()
        return text.format(*operands, **details)

    def asks(self, template: str, detail: str) -> bool:
        """Whether the backend's spelling of an operation speaks of a detail."""
        return f"{{{detail}}}" in self.backend.templates.get(template, "")

    def size(self, size: Any, quietly: bool = False) -> str:
        """A size as source; notes which open sizes are used."""
        import sympy

        if isinstance(size, int):
            return str(size)
        spelled = {**self.size_names, OBSERVED: OBSERVED}  # and no other name, whatever let it in
        names = {name: sympy.Symbol(spelled[name.name]) for name in size.free_symbols}
        if not quietly:
            self.used_sizes.update(name.name for name in size.free_symbols)
        return size_source(size.subs(names, simultaneous=True))

    def shape(self, sizes: Sequence[Any]) -> str:
        return tuple_source([self.size(size) for size in sizes])

    def entry_sizes(self, left: Sequence[str | tuple[str, ...]]) -> tuple[Any, ...]:
        """The size of each dimension of a result."""
        return tuple(
            self.sizes[entry] if isinstance(entry, str) else product(self.sizes[axis] for axis in entry)
            for entry in left
        )

    def label_sizes(self, ref: Ref) -> dict[str, Any]:
        """The sizes of the axes of an operand, those of whole dimensions from the array itself."""
        found: dict[str, Any] = {}
        for entry, size in zip(ref.index, self.shapes[ref.name], strict=True):
            if isinstance(entry, str):
                found[entry] = size
            elif isinstance(entry, tuple):
                found.update({axis: self.sizes[axis] for axis in entry})
        return found

    def view(self, ref: Ref, groups: Sequence[tuple[str, ...]], ones: bool = False) -> str:
        """An operand with one dimension for each group, of size 1 where `ones` names an empty one."""
        text, sizes = self.names[ref.name], self.label_sizes(ref)
        entries = tuple((entry,) if isinstance(entry, str) else entry for entry in ref.index)
        present = [tuple(group) for group in groups if group]
        order = view_order(axes_of_index(ref.index), tuple(present))
        if order is not None:
            lying = [present[n] for n in order]
            if tuple(lying) != entries:
                text = self.op("reshape", text, shape=self._grouped(lying, sizes))
            if list(order) != sorted(order):
                text = self.op(
                    "permute", text, axes=tuple_source([str(order.index(n)) for n in range(len(order))])
                )
        else:
            flat = flatten(tuple(present))
            text = self.turned(ref, flat) or self.permuted(ref, flat)
            if any(len(group) > 1 for group in present):
                text = self.op("reshape", text, shape=self._grouped(present, sizes))
        if ones and not all(groups):
            shape = [
                product(sizes[axis] for axis in group) if group else 1 for group in groups if group or ones
            ]
            text = self.op("reshape", text, shape=self.shape(shape))
        return text

    def turned(self, ref: Ref, axes: tuple[str, ...]) -> str | None:
        """A matrix turned, where an order is the present one with its first axes last: libraries copy that quickest."""
        layout = axes_of_index(ref.index)
        at = layout.index(axes[0]) if axes else 0
        if len(axes) < 3 or not at or layout[at:] + layout[:at] != axes:
            return None
        shape = self._grouped([layout[:at], layout[at:]], self.label_sizes(ref))
        return self.op("permute", self.op("reshape", self.names[ref.name], shape=shape), axes="(1, 0)")

    def broadcast(self, ref: Ref, groups: Sequence[tuple[str, ...]]) -> str:
        """An operand with one dimension for each group: of size 1 where it has none of its axes, else whole."""
        layout = axes_of_index(ref.index)
        own = [tuple(axis for axis in group if axis in layout) for group in groups]
        text = self.view(ref, own, any(not group for group in own))
        if all(not part or part == group for part, group in zip(own, groups, strict=True)):
            return text
        sizes = self.label_sizes(ref)
        ones = [sizes[axis] if axis in layout else 1 for group in groups for axis in group]
        whole = [
            self.sizes[axis] if part else 1 for part, group in zip(own, groups, strict=True) for axis in group
        ]
        text = self.op("reshape", text, shape=self.shape(ones))
        text = self.op("broadcast", text, shape=self.shape(whole))
        merged = [
            product(self.sizes[axis] for axis in group) if part else 1
            for part, group in zip(own, groups, strict=True)
        ]
        return self.op("reshape", text, shape=self.shape(merged))

    def extent(self, axes: Sequence[str]) -> str:
        """The number of positions along some axes."""
        return self.size(product(self.sizes[axis] for axis in axes))

    def reshaped(self, text: str, left: Sequence[str | tuple[str, ...]]) -> str:
        """A result with a dimension for each entry."""
        return self.op("reshape", text, shape=self.shape(self.entry_sizes(left)))

    def _grouped(self, groups: Sequence[tuple[str, ...]], sizes: Mapping[str, Any]) -> str:
        return self.shape([product(sizes[axis] for axis in group) for group in groups])

    def atomic(self, ref: Ref) -> str:
        """An operand with one dimension for each axis, in the order it lies in."""
        if all(isinstance(entry, str) for entry in ref.index):
            return self.names[ref.name]
        sizes = self.label_sizes(ref)
        shape = self.shape([sizes[axis] for axis in axes_of_index(ref.index)])
        return self.op("reshape", self.names[ref.name], shape=shape)

    def layout(self, ref: Ref) -> tuple[str, ...]:
        """The axes of an operand in the order it lies in."""
        return axes_of_index(ref.index)

    def permuted(self, ref: Ref, axes: tuple[str, ...]) -> str:
        """An operand with one dimension for each axis, in the order given."""
        layout = axes_of_index(ref.index)
        text = self.atomic(ref)
        if layout == axes:
            return text
        return self.op("permute", text, axes=tuple_source([str(layout.index(axis)) for axis in axes]))

    def aligned(self, ref: Ref, left: tuple[Any, ...]) -> str:
        """An operand that broadcasts to the result: the same order, 1 where an axis is missing."""
        if ref.index == left or not ref.index:
            return self.names[ref.name]
        axes, layout = axes_of_index(left), axes_of_index(ref.index)
        own = tuple(axis for axis in axes if axis in layout)
        first = axes.index(own[0])
        if all(axis in layout for axis in axes[first:]):
            return self.permuted(ref, own)
        sizes = self.label_sizes(ref)
        shape = self.shape([sizes[axis] if axis in layout else 1 for axis in axes[first:]])
        text = self.names[ref.name] if layout == own else self.permuted(ref, own)
        return self.op("reshape", text, shape=shape)

    def working_dtype(self) -> str:
        """The working element type: the one floating type of the arguments."""
        self.needs_dtype = True
        return "dtype"

    def element_dtype(self, element: Element) -> str:
        """The type of such elements."""
        match element:
            case Element.TRUTH:
                return self.op("dtype", "bool")
            case Element.SHORT | Element.WHOLE:
                return self.op("dtype", "int64")
            case Element.WIDE:
                return self.op("wide")
        return self.working_dtype()

    def dtype_line(self) -> str:
        """The line that finds it."""
        ranked = [
            leaf
            for kind in ("parameter", "input")
            for leaf in self.leaves
            if leaf.kind == kind and leaf.holds is not Element.WIDE
        ]
        names = "".join(f"{self.names[leaf.name]}, " for leaf in ranked)
        return f"dtype = {self.op('floating', f'({names})', self.op('dtype', self.plan.dtype))}"

    def first(self) -> str:
        """An argument, for its device; nothing where there is none."""
        return self.names[self.leaves[0].name] if self.leaves else "None"

    def positions(self, size: Any) -> str:
        """0, 1, 2, … on the device of the arguments."""
        if not self.leaves:
            return self.op("arange_alone", self.size(size))
        return self.op("arange", self.size(size), like=self.names[self.leaves[0].name])

    # ---- numbers

    def scalar(self, expression: Expression) -> str:
        """A number as source: its value where all sizes are known, else arithmetic on open sizes."""
        value = scalar_value(expression)
        if value is not None:
            return _number(value)
        match expression:
            case Size(axis):
                self.used_sizes.add(axis)
                return self.size_names[axis]
            case Contraction(factors, ()):
                return f"({self.product(factors, self.scalar)})"
            case Call("add", arguments):
                return "(" + " + ".join(self.scalar(each) for each in arguments) + ")"
            case Call(function, arguments) if FUNCTIONS[function].number:
                return FUNCTIONS[function].number.format(*map(self.scalar, arguments))
        raise EquationError(
            f"{show(expression)} depends on a size that is open",
            expression.place,
            "give the size when building the layer",
        )

    def product(
        self, factors: Sequence[Expression], spell: Callable[[Expression], str], by: str = "/"
    ) -> str:
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

    def reached(self, expression: Expression) -> Reached:
        """The positions that an expression tells, as a sum of two axes, or of one and none."""
        return reached(expression)

    def options(self, call: Call) -> dict[str, str]:
        """The options of a function as a call gives them, or else as its record does."""
        given = dict(call.options)
        return {
            name: self.scalar(given[name][0]) if name in given else repr(default)
            for name, default in FUNCTIONS[call.function].options
        }

    def is_number(self, expression: Expression) -> bool:
        """Whether an operand is a number."""
        return is_scalar(expression)

    def value(self, expression: Expression) -> int | float | complex | None:
        """The value of a number, or nothing for a tensor or while a size in it is open."""
        return scalar_value(expression) if is_scalar(expression) else None

    def integer(self, expression: Expression) -> int:
        value = scalar_value(expression)
        if value is None or isinstance(value, complex) or value != int(value):
            raise EquationError(
                f"{show(expression)} is not a whole number of positions that is known",
                expression.place,
                "give the sizes it speaks of",
            )
        return int(value)


def reserved(backend: Backend) -> set[str]:
    """The names that generated code uses for something else than tensors, sizes and blocks."""
    return _RESERVED | set(FUNCTIONS) | _words(backend.templates)


def _words(templates: Mapping[str, str]) -> set[str]:
    """The names that code of a backend is made of."""
    return {word for text in templates.values() for word in _WORD.findall(text)}


def remark(text: str) -> str:
    """Mathematics that goes into a comment or a docstring, and cannot end it.

    Raises:
        EquationError: a name in it holds what no name may.
    """
    if not text.isprintable() or '"' in text or "\\" in text:
        fix = "use letters, digits and '_' in names"
        raise EquationError(f"{text!r} cannot be written into code", fix=fix)
    return text


def tuple_source(parts: Sequence[str]) -> str:
    """A tuple of pieces of source."""
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


def _number(value: int | float | complex) -> str:
    if isinstance(value, float) and math.isinf(value):
        return "-math.inf" if value < 0 else "math.inf"
    if isinstance(value, float) and math.isnan(value):
        return "math.nan"
    return repr(value)


def identifier(name: str, taken: set[str]) -> str:
    """A Python name for a tensor or a size, added to those that are taken.

    Raises:
        EquationError: the name is no words of letters, digits and `_`, joined by dots.
    """
    base = name.replace(".", "_")
    base = f"_{base}" if base[:1].isdigit() else base
    if not base.isidentifier():
        raise EquationError(f"{name!r} cannot name anything", fix="use letters, digits and '_'")
    base = unicodedata.normalize("NFKC", base)  # as Python reads it: two spellings may be one name
    chosen, number = base, 1
    while chosen in taken or keyword.iskeyword(chosen):
        chosen = f"{base}_{number}"
        number += 1
    taken.add(chosen)
    return chosen
