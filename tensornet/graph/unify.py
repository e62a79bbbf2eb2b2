"""Unification of sizes: two places give the size of one axis, and open sizes follow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

from ..errors import ShapeError
from ..language.equation import Equation, renamed_axes, sizes_in_brackets, spoken_sizes
from ..language.expression import Call, Expression, Ref, Size, Taken, flat
from ..sizes import are_equal, evaluate, name_of, put_in, size_names, solve_size, symbol
from .shape_inference import Dim, disagreement, resized, size_expression


class Unifier:
    """Open sizes, their solutions, and the integers that some of them are bound to.

    Args:
        sizes: given sizes. Integers stay symbols in formulas; a formula replaces its axis everywhere.

    Attributes:
        declared: the names in sizes of declared tensors. These stay; others give way.
        is_weight: whether a name is a parameter that is as long as where it is read first.
    """

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        self.bound: dict[str, int] = {name: size for name, size in sizes.items() if isinstance(size, int)}
        given = {name: size for name, size in sizes.items() if name not in self.bound}
        self.declared: set[str] = set()
        self.is_weight: Callable[[str], bool] = lambda name: False
        self.rigid = {name for size in given.values() for name in size_names(size)}
        self.solution: dict[str, Any] = {name: size for name, size in given.items() if size != symbol(name)}

    def check_circles(self) -> None:
        """Raises an error if given formulas depend on each other in a cycle."""
        try:
            TopologicalSorter({name: size_names(size) for name, size in self.solution.items()}).prepare()
        except CycleError as error:
            name = error.args[1][0]
            raise ShapeError(
                f"the size of '{name}' is given as {self.solution[name]}, which depends on '{name}' itself",
                fix="use names in the formula that no axis of the layer has",
            ) from None

    def resolve(self, size: Any) -> Any:
        """The size with all solutions substituted."""
        if not self.solution or isinstance(size, int):
            return size
        for _ in range(len(self.solution) + 1):
            if not any(name in self.solution for name in size_names(size)):
                return size
            size = put_in(size, self.solution)
        raise ShapeError(f"the size {size} is defined by itself", fix="give one of the sizes a value")

    def same(self, one: Any, other: Any) -> bool:
        """Whether two sizes are equal as far as is known."""
        return are_equal(self.resolve(one), self.resolve(other), self.bound)

    def unify(self, a: Any, b: Any, axis: str, ref: Ref | Call | None) -> Any:
        """Makes two sizes equal by solving for an open one; raises an error if they cannot be equal."""
        a, b = self.resolve(a), self.resolve(b)
        if a == b:
            return a
        for size, other in sorted(
            ((b, a), (a, b)), key=lambda pair: not self.declared.isdisjoint(size_names(pair[0]))
        ):
            name = name_of(size)
            if name is None or name in self.bound or name in self.rigid:
                continue  # it may not be solved for: it has a value, or a given formula uses it
            if isinstance(other, int):
                self.bound[name] = other
                return size
            if name not in size_names(other):
                self.solution[name] = other
                return other
        if are_equal(a, b, self.bound):
            return b if isinstance(a, int) else a  # the symbolic one, as for an open size
        solved = solve_size(evaluate(a - b, self.bound), 0)
        if solved is None or solved[0] in self.rigid or solved[1] < 1:
            is_weight = isinstance(ref, Ref) and ref.place is not None and self.is_weight(ref.name)
            raise disagreement(a, b, axis, ref, self.bound, is_weight)
        self.bound[solved[0]] = solved[1]
        return a

    def solved(self) -> dict[str, Any]:
        """The sizes that have another value than themselves, with all solutions substituted."""
        found = {name: self.resolve(symbol(name)) for name in self.solution}
        return {name: size for name, size in found.items() if size != symbol(name)}

    def dims(self, dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """The dimensions with all solutions substituted."""
        return resized(dims, self.resolve)


def with_sizes(
    equation: Equation,
    values: Mapping[str, Any],
    sizes: Mapping[str, Any] | None = None,
    known: Iterable[str] = (),
) -> Equation:
    """An equation with values put in for sizes of the graph; its own axes of the same names are renamed.

    Args:
        equation: the equation.
        values: the values of sizes, which stand for themselves no more.
        sizes: the sizes of its axes, where they are known. An axis keeps its name if its size is the incoming size of
            that name, unless brackets mention that size.
        known: further names of sizes, which no axis of a window may get.
    """
    put = {name: values[name] for name in spoken_sizes(equation) if name in values}
    if not put:
        return equation
    arriving = {free for size in put.values() for free in size_names(size)}
    read = {free for name in sizes_in_brackets(equation) for free in size_names(put.get(name, symbol(name)))}
    same = {axis for axis, size in (sizes or {}).items() if put_in(size, values) == symbol(axis)} - read
    fresh = Taken((*equation.axes, *arriving, *put, *known, *equation.right.occurring)).fresh
    names = {axis: fresh(axis) for axis in sorted((equation.axes & arriving) - same)}
    moved = renamed_axes(equation, names)

    def change(part: Expression) -> Expression:
        if isinstance(part, Size) and part.axis in put:
            return size_expression(put[part.axis])
        return flat(part.transform(change))

    return replace(moved, right=change(moved.right))
