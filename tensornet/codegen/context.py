"""The context of code generation: the names, shapes and sizes of all that a generated function has at hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..dtypes import Element
from ..errors import BackendError
from ..graph.leaves import Leaf
from ..planning.plans import Plan
from ..protocol import Backend
from ..sizes import evaluate, size_names, size_source
from .names import identifier, reserved, tuple_source

__all__ = ["OBSERVED", "CodegenContext"]

OBSERVED = "@"
"""Where a size is solved for: stands for what a shape says."""


@dataclass
class CodegenContext:
    """What the functions that write one function share.

    Attributes:
        plan: what is written.
        backend: whose operations it is written in.
        leaves: what the function takes.
        functions: the names of the functions of blocks.
        scopes: those of the blocks that the function is given, ready to be called; see `blocks`.
        names, size_names, blocks: what tensors, open sizes and these blocks are called.
        shapes: the size of each dimension of each tensor.
        sizes, element: the axes of the step at hand, and what its elements are.
        used_sizes: the open sizes that the function reads from shapes.
        needs_dtype: whether it asks for the working element type.
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

    def op(self, template: str, *operands: str, **details: str) -> str:
        """One operation as the backend's template of that name spells it."""
        text = self.backend.templates.get(template)
        if text is None:
            raise BackendError(
                f"{self.backend.name} has no '{template}'",
                fix=f"use another backend, or write it in functions that {self.backend.name} has",
            )
        if "{dtype}" in text and "dtype" not in details:
            details["dtype"] = self.dtype()
        return text.format(*operands, **details)

    def asks(self, template: str, detail: str) -> bool:
        """Whether the backend's spelling of an operation speaks of a detail."""
        return f"{{{detail}}}" in self.backend.templates.get(template, "")

    def dtype(self, element: Element = Element.NUMBER) -> str:
        """The type of such elements; that of numbers is the one floating type of the arguments."""
        match element:
            case Element.TRUTH:
                return self.op("dtype", "bool")
            case Element.SHORT | Element.WHOLE:
                return self.op("dtype", "int64")
            case Element.WIDE:
                return self.op("wide")
        self.needs_dtype = True
        return "dtype"

    def size(self, size: Any, quietly: bool = False) -> str:
        """A size as source; notes which open sizes are used."""
        if isinstance(size, int):
            return str(size)
        spelled = {**self.size_names, OBSERVED: OBSERVED}  # and no other name, whatever let it in
        names = {name: spelled[name] for name in size_names(size)}
        if not quietly:
            self.used_sizes.update(names)
        return size_source(size, names)

    def shape(self, sizes: Iterable[Any]) -> str:
        """Sizes as source."""
        return tuple_source(map(self.size, sizes))

    def reshape(self, text: str, sizes: Iterable[Any]) -> str:
        """An array with dimensions of such sizes."""
        return self.op("reshape", text, shape=self.shape(sizes))

    def permute(self, text: str, order: Iterable[int]) -> str:
        """An array with its dimensions in another order."""
        return self.op("permute", text, axes=tuple_source(order))

    def positions(self, size: Any) -> str:
        """0, 1, 2, … on the device of the arguments."""
        if not self.leaves:
            return self.op("arange_alone", self.size(size))
        return self.op("arange", self.size(size), like=self.names[self.leaves[0].name])
