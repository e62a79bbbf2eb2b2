"""The lowering context: what is lowered, for which target, and the steps so far."""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ..autodiff.joint import JointGraph
from ..contraction.pairs import Choose, Layout
from ..device.model import DeviceProfile
from ..errors import ShapeError
from ..graph.shape_inference import Dim
from ..language.expression import ELLIPSIS, Expression
from ..ops.protocols import Entry, Left, Value
from ..ops.table import Element
from ..planning.plans import CallStep, Plan
from ..planning.steps import Step
from ..planning.target import Target
from ..sizes import evaluate, product, size_names
from .lines import Line, Lines
from .shared_layouts import SharedLayout, shared_layouts

__all__ = ["LoweringContext", "Stored", "as_declared", "entry_of"]


@dataclass(frozen=True)
class Stored:
    """Where a named tensor is stored: its variable, its layout, its declared dimensions and its element type."""

    variable: str
    entries: Left
    logical: tuple[tuple[str, ...], ...]
    dims: tuple[Dim, ...]
    element: Element

    @property
    def left(self) -> Left:
        """Its dimensions in the declared order."""
        return tuple(map(entry_of, self.logical))

    @property
    def sizes(self) -> dict[str, Any]:
        """The size of each of its axes, by the labels in `logical`."""
        axes = (axis for dim in self.dims for axis in dim)
        return {label: axis.size for label, axis in zip(itertools.chain(*self.logical), axes, strict=True)}


def entry_of(axes: tuple[str, ...]) -> Entry:
    """The dimension with these axes: a single axis, or a composite."""
    return axes[0] if len(axes) == 1 else axes


def as_declared(name: str, dims: tuple[Dim, ...], element: Element) -> Stored:
    """A tensor in its declared layout. Its axes are numbered so that each is distinct; `...` stays."""
    logical = tuple(
        tuple(ELLIPSIS if axis.name == ELLIPSIS else f"{n}.{m}" for m, axis in enumerate(dim))
        for n, dim in enumerate(dims)
    )
    return Stored(name, tuple(map(entry_of, logical)), logical, dims, element)


@dataclass
class LoweringContext(ABC):
    """The state that the functions of lowering share.

    Attributes:
        lines: the lines and calls that are lowered.
        values: every open size, for costs.
        target: the target that they are lowered for.
        choose: orders an n-ary contraction.
        product: plans the forward and backward pass of a product whose factors get gradients, at some sizes.
        steps: the steps so far.
        named: the names of all leaves, and of all tensors that lines and calls define.
        stored: where each of these tensors is stored.
        invariant: the tensors that depend on no argument of a call; see `planning.constant_folding`.
        changing: the tensors that get gradients.
        read_by_name: the tensors that blocks read by their own names.
        readers: how many references read each tensor.
        copies: the copies of a variable in other layouts, by the permutation of its axes.
        laid: the variables of tensors that were copied into the shared layout of several readers.
        sizes: the sizes of the axes in the current line.
        written: the order in which the current line declares its axes.
        asked: the share of the readers of its result that copy it into that order.
    """

    lines: Lines
    values: Mapping[str, int]
    target: Target
    choose: Choose
    product: Callable[[JointGraph, Mapping[str, int]], Plan] | None = None
    steps: list[Step | CallStep] = field(default_factory=list)
    copies: dict[str, dict[tuple[int, ...], str]] = field(default_factory=lambda: defaultdict(dict))
    laid: dict[str, str] = field(default_factory=dict)
    sizes: Mapping[str, Any] = field(default_factory=dict)
    written: Layout = ()
    asked: float = 1.0

    def __post_init__(self) -> None:
        lines = self.lines
        self.open = functools.cache(lambda size: evaluate(size, lines.bound))
        self.known = functools.cache(functools.partial(_positions, {**self.values, **lines.bound}))
        self.told_sizes = self.target.told_sizes(lines.leaves, lines.bound)
        self.invariant = lines.of_kind("constant")
        self.changing = set(self.target.changing)
        self.named = lines.dims.keys()
        self.taken = {*self.named}
        self.read_by_name = {leaf.name for call in lines.calls for leaf in call.leaves()}
        self.numbered = (f"t{number}" for number in itertools.count(1))
        self.readers = lines.readers
        self.stored = {
            leaf.name: as_declared(leaf.name, leaf.dims, lines.elements[leaf.name]) for leaf in lines.leaves
        }
        self.common: Mapping[str, SharedLayout] = shared_layouts(lines, self._count_in)

    @abstractmethod
    def lower(self, expression: Expression, wanted: Layout | None) -> Value:
        """The value of an expression; `wanted` is the preferred layout."""

    @property
    def profile(self) -> DeviceProfile:
        """The constants of the device."""
        return self.target.profile

    @functools.cached_property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.target.itemsize

    def name(self) -> str:
        """The name of a new variable."""
        return next(name for name in self.numbered if name not in self.taken)

    def count(self, sizes: Mapping[str, Any], axes: Iterable[str]) -> int:
        """The number of positions along some axes, at the planned sizes."""
        return int(product(self.known(sizes[axis]) for axis in axes))

    def _count_in(self, line: Line, axes: Iterable[str]) -> int:
        return self.count(line.sizes, axes)


def _positions(values: Mapping[str, Any], size: Any) -> int:
    """The value of a size as an integer. Raises an error if it is unknown."""
    value = evaluate(size, values)
    if isinstance(value, Fraction):  # an assumed size need not divide evenly: 64 / 5
        return max(1, round(float(value)))
    if not isinstance(value, int):
        names = ", ".join(size_names(value))
        raise ShapeError(f"no tensor has the axis {names}, so its size is unknown", fix=f"give {names}=")
    return value
