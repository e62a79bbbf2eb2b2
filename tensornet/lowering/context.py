"""The lowering context: what is lowered, for which target, and the steps so far."""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ..autodiff.joint import JointGraph
from ..contraction.pairs import Layout
from ..contraction.search import Choose
from ..device.model import DeviceProfile
from ..errors import ShapeError
from ..graph.element_types import of_leaves
from ..graph.graph import Graph
from ..graph.shape_inference import Dim, Scope, beside, scope_inside, without_axes
from ..language.equation import Equation
from ..language.expression import ELLIPSIS, Call, Contraction, Expression, parts_of, remade_axes
from ..ops.protocols import Entry, Left, Value
from ..ops.table import Element
from ..planning.plans import CallStep, Plan
from ..planning.steps import Step
from ..planning.target import Target
from ..sizes import evaluate, product, size_names
from .layout_assignment import Laid, common_orders

__all__ = ["Context", "Stored", "as_declared", "entry_of"]


@dataclass(frozen=True)
class Stored:
    """Where a named tensor is: a variable, its order in memory, the dimensions it stands for, its elements."""

    variable: str
    entries: Left
    logical: tuple[tuple[str, ...], ...]
    dims: tuple[Dim, ...]
    element: Element

    @property
    def left(self) -> Left:
        """Its dimensions in the order that is declared."""
        return tuple(map(entry_of, self.logical))

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes of the axes that it was made with."""
        axes = (axis for dim in self.dims for axis in dim)
        return {label: axis.size for label, axis in zip(itertools.chain(*self.logical), axes, strict=True)}


def entry_of(axes: tuple[str, ...]) -> Entry:
    """The dimension that has some axes."""
    return axes[0] if len(axes) == 1 else axes


def as_declared(name: str, dims: tuple[Dim, ...], element: Element) -> Stored:
    """A tensor that lies in memory as it is declared, its axes numbered so that each is distinct; `...` stays."""
    logical = tuple(
        tuple(ELLIPSIS if axis.name == ELLIPSIS else f"{n}.{m}" for m, axis in enumerate(dim))
        for n, dim in enumerate(dims)
    )
    return Stored(name, tuple(map(entry_of, logical)), logical, dims, element)


@dataclass
class Context(ABC):
    """What the functions of lowering share.

    Attributes:
        graph: what is lowered.
        values: every open size, for costs.
        target: what it is lowered for.
        choose: orders an n-ary contraction.
        product: plans a product whose factors get gradients, forward and backward, at some sizes.
        steps: the steps so far.
        stored: where each named tensor is.
        invariant: the tensors that depend on nothing that a call gives.
        changing: those that get gradients.
        read_by_name: the tensors that blocks read by their own names.
        readers: how many references read each tensor.
        copies: of a variable, in other orders, which are told by the places of its axes.
        laid: the variables of tensors that are laid out in the order that several of their readers have in common.
        written: the order in which the equation at hand writes its axes.
        asked: the part of those who read it that have it copied into that order.
    """

    graph: Graph
    values: Mapping[str, int]
    target: Target
    choose: Choose
    product: Callable[[JointGraph, Mapping[str, int]], Plan] | None = None
    steps: list[Step | CallStep] = field(default_factory=list)
    copies: dict[str, dict[tuple[int, ...], str]] = field(default_factory=lambda: defaultdict(dict))
    laid: dict[str, str] = field(default_factory=dict)
    written: Layout = ()
    asked: float = 1.0

    def __post_init__(self) -> None:
        graph, elements = self.graph, of_leaves(self.graph)
        self.open = functools.cache(lambda size: evaluate(size, graph.bound))
        self.known = functools.cache(functools.partial(_positions, {**self.values, **graph.bound}))
        self.told_sizes = self.target.told_sizes(graph)
        self.invariant = {leaf.name for leaf in graph.constants}
        self.changing = set(self.target.changing)
        self.taken = set(graph.named)
        self.read_by_name = {leaf.name for call in graph.calls for leaf in call.leaves()}
        self.numbered = (f"t{number}" for number in itertools.count(1))
        self.readers = Counter(ref.name for equation in graph.own for ref in equation.references)
        self.stored = {
            leaf.name: as_declared(leaf.name, leaf.dims, elements[leaf.name]) for leaf in graph.leaves
        }
        self.common: Mapping[str, Laid] = common_orders(graph, self._count_in)

    @abstractmethod
    def lower(self, expression: Expression, scope: Scope, wanted: Layout | None) -> Value:
        """The value of an expression; `wanted` is the order in memory that would suit."""

    @property
    def profile(self) -> DeviceProfile:
        """The constants of the device."""
        return self.target.profile

    @functools.cached_property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.target.itemsize

    def name(self) -> str:
        """A variable that nothing has yet."""
        return next(name for name in self.numbered if name not in self.taken)

    def inside(self, binder: Contraction | Call, scope: Scope, expression: Expression | None = None) -> Scope:
        """The scope inside of a binder, or of one of its operands: an axis may have another size there."""
        inner = Contraction(tuple(parts_of(binder))) if expression is None else expression
        outer = without_axes(scope, remade_axes(binder)) if isinstance(binder, Call) else scope
        return beside(outer, scope_inside(inner, self.graph.named, self.graph.bound))

    def count(self, sizes: Mapping[str, Any], axes: Iterable[str]) -> int:
        """The number of positions along some axes, at the sizes planned for."""
        return int(product(self.known(sizes[axis]) for axis in axes))

    def _count_in(self, equation: Equation, axes: Iterable[str]) -> int:
        scope = self.graph.scope(equation)
        return int(product(self.known(scope[axis]) for axis in axes))


def _positions(values: Mapping[str, Any], size: Any) -> int:
    """The value of a size."""
    value = evaluate(size, values)
    if isinstance(value, Fraction):  # 64 of something assumed may not divide by 5 of another
        return max(1, round(float(value)))
    if not isinstance(value, int):
        names = ", ".join(size_names(value))
        raise ShapeError(f"no tensor has the axis {names}, so its size is unknown", fix=f"give {names}=")
    return value
