"""The context of code generation: the names, shapes and sizes of everything that a generated function uses."""

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
"""In the solution for an open size: a placeholder for the size that is read from a shape."""


@dataclass
class CodegenContext:
    """The state that is shared while one function is generated.

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

    def op(self, template: str, *operands: str, **details: str) -> str:
        """One operation, written by the backend's template of that name."""
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

    def size(self, size: Any, quietly: bool = False) -> str:
        """A size as source. Records the open sizes in it as used, unless `quietly`."""
        if isinstance(size, int):
            return str(size)
        spelled = {**self.size_names, OBSERVED: OBSERVED}  # no other name may get into the source
        names = {name: spelled[name] for name in size_names(size)}
        if not quietly:
            self.used_sizes.update(names)
        return size_source(size, names)

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
