"""The equation builder: new equations, each with the sizes of its axes."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..language.equation import Equation, renamed_axes, spoken_sizes
from ..language.expression import (
    ELLIPSIS,
    Call,
    Contraction,
    Expression,
    Ref,
    Size,
    axes_of_index,
    fresh,
    option_axes,
    sized_by_name,
    transform,
)
from ..ops.table import FUNCTIONS, RESERVED
from ..sizes import are_equal, evaluate, symbol
from .element_types import of_expression, of_tensors
from .graph import Apply, Graph
from .shape_inference import Dim, Scope, result_dims, scope_inside, size_expression
from .slices import axes_windowed

__all__ = ["Written"]

_MARK = "@"  # no name contains it


class Written:
    """Equations that are added one after another, each with the given sizes of its axes."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.dims: dict[str, tuple[Dim, ...]] = dict(graph.named)
        self.elements = of_tensors(graph)
        self.body: list[Equation | Apply] = []
        self.bound: dict[str, Any] = dict(graph.bound)
        self.taken = {*graph.named, *FUNCTIONS, *RESERVED}
        self.sizes = {*graph.bound, *graph.open_sizes}
        for equation in graph.own:
            self.sizes.update(sized_by_name(equation.right), spoken_sizes(equation))

    def fresh(self, name: str) -> str:
        """A free name for a tensor: the given one, or the given one with a number."""
        return self._taken_first(itertools.chain((name,), (f"{name}_{n}" for n in itertools.count(1))))

    def numbered(self, stem: str) -> str:
        """A free name for a tensor: the stem, always with a number."""
        return self._taken_first(f"{stem}_{n}" for n in itertools.count(1))

    def _taken_first(self, names: Iterator[str]) -> str:
        """The first free name, which is then taken."""
        found = next(name for name in names if name not in self.taken and name not in self.sizes)
        self.taken.add(found)
        return found

    def scope(self, expression: Expression) -> Scope:
        """The sizes of the axes in an expression, from its tensors. The graph has checked that they agree."""
        return scope_inside(expression, self.dims, self.bound)

    def extent(self, size: Any) -> Expression:
        """A size as an expression."""
        return size_expression(evaluate(size, self.bound))

    def put(self, name: str, left: tuple[Any, ...], right: Expression, sizes: Scope) -> None:
        """Adds an equation whose axes have given sizes. An axis that no tensor sizes gets its size from its name."""
        equation = Equation(name, left, right)
        equation = _renamed(equation, self._told_apart(equation))
        scope, names, present = self.scope(equation.right), dict[str, str](), set(_axes_in(equation))
        told, windowed = {**sizes.inner, **sizes.assumed, **sizes.sizes}, axes_windowed(equation.right)
        for axis in sorted((present & set(told)).difference(scope.sizes, scope.inner)):
            bare = axis in windowed and axis not in self.bound  # in a text, it would be as long as fits
            if bare or not are_equal(scope[axis], told[axis], self.bound):
                names[axis] = self._name_of(axis, told[axis], present, self.bound if bare else self.sizes)
                present.add(names[axis])
        equation = _renamed(equation, {old: new for old, new in names.items() if old != new})
        self.dims[name] = result_dims(equation, self.scope(equation.right))
        self.elements[name] = of_expression(equation.right, self.elements)
        self.body.append(equation)

    def _told_apart(self, equation: Equation) -> dict[str, str]:
        """New names for axes whose name the equation also uses for a size of the graph that differs from theirs."""
        axes, scope = set(_axes_in(equation)), self.scope(equation.right)
        spoken = {part.axis for part in equation.parts if isinstance(part, Size)}
        taken, names = axes | self.sizes, dict[str, str]()
        for axis in sorted(spoken & axes):
            if not are_equal(scope[axis], symbol(axis), self.bound):
                names[axis] = fresh(axis, taken)
                taken.add(names[axis])
        return names

    def _name_of(self, axis: str, size: Any, present: Container[str], telling: Container[str]) -> str:
        """A name for a given size: that of the axis, or a similar one that no other axis of the equation has."""
        stem = "lead" if axis == ELLIPSIS else axis
        for name in itertools.chain((axis,), (f"{stem}_{n}" for n in itertools.count(1))):
            if name in self.sizes:
                usable = name in telling and (name == axis or name not in present)
                if usable and are_equal(symbol(name), size, self.bound):
                    return name
            elif name not in self.taken and (name == axis or name not in present):
                self.sizes.add(name)
                self.bound[name] = evaluate(size, self.bound)
                return name
        raise AssertionError(axis)


def _renamed(equation: Equation, names: Mapping[str, str]) -> Equation:
    """The equation with its axes renamed. The sizes that it mentions are sizes of the graph, and keep their names."""

    def marked(part: Expression) -> Expression:
        return Size(f"{part.axis}{_MARK}") if isinstance(part, Size) else transform(part, marked)

    def unmarked(part: Expression) -> Expression:
        return Size(part.axis.removesuffix(_MARK)) if isinstance(part, Size) else transform(part, unmarked)

    moved = renamed_axes(replace(equation, right=marked(equation.right)), names)
    return replace(moved, right=unmarked(moved.right))


def _axes_in(equation: Equation) -> Iterator[str]:
    """The axes of an equation, without the sizes that it mentions."""
    yield from axes_of_index(equation.left)
    for part in equation.parts:
        match part:
            case Ref(_, index):
                yield from axes_of_index(index)
            case Contraction(_, summed):
                yield from summed
            case Call(_, _, axes):
                yield from (*axes, *option_axes(part))
