"""Liveness: how long each tensor is needed, and the resulting peak memory."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..graph.element_types import bytes_of, of_leaf
from ..graph.leaves import Leaf
from ..language.affine import is_cut
from ..language.expression import Call, Contraction, Expression, Literal, Ref, divisor_of, is_computed_index
from ..ops.table import FUNCTIONS, Element
from ..sizes import evaluate, product
from .plans import AnyStep, Step


def with_frees(steps: Sequence[AnyStep], results: Iterable[str]) -> tuple[AnyStep, ...]:
    """The steps, each with the intermediates that are not needed after it.

    Args:
        steps: the steps.
        results: the tensors that are needed after all of them.
    """
    last: dict[str, int] = {}
    for number, step in enumerate(steps):
        last.update(dict.fromkeys(step.reads, number))
    frees: list[list[str]] = [[] for _ in steps]
    for name in {name for step in steps for name in step.defines}.difference(results):
        if name in last:
            frees[last[name]].append(name)
    return tuple(replace(step, frees=tuple(sorted(names))) for step, names in zip(steps, frees, strict=True))


# ---------------------------------------------------------------------------- besides operands and results


def _temporary_bytes(step: Step, values: Mapping[str, Any], itemsize: int) -> int:
    """The bytes that a step takes while it runs, besides its operands and its result.

    These are copies of operands that no view brings into the order in which they are read, values of subexpressions,
    and the workspace of a function.

    Args:
        step: the step.
        values: the value of every named size.
        itemsize: bytes of a number.
    """
    sizes = {axis.name: int(evaluate(axis.size, values)) for axis in step.axes}
    size = bytes_of(step.element, itemsize)

    def held(axes: Iterable[str]) -> int:
        return math.prod(sizes[axis] for axis in axes) * size

    way = step.arrangement
    if way is not None and way.kind != "multiply":
        copied = (held(ref.free_axes) for ref, _ in step.copied)
        beside = held((*way.batch, *way.rows, *way.summed)) if way.kind in ("dot", "sum") else 0
        beside += held((*way.added, *way.rows, *way.columns)) if way.added else 0
        return sum(copied) + beside
    match step.equation.right:
        case Call(function) as call if (works_in := FUNCTIONS[function].works_in) is not None:
            return sum(map(held, works_in(call, step.equation.kept)))
        case Call(function) if FUNCTIONS[function].tile:
            return min(FUNCTIONS[function].tile, math.prod(sizes.values())) * size
        case Call() as call if (times := _results_worked_in(call)) is not None:
            return int(times * held(step.equation.kept))
        case Contraction(_, ()) | Call() as expression:
            if all(FUNCTIONS[each.function].axes == "none" for each in expression.calls):
                most, own = _parts(expression, held)
                return most - own
    return 0


def _results_worked_in(call: Call) -> float | None:
    """The workspace of a function along axes, as a multiple of the bytes of its result. None for other functions."""
    function = FUNCTIONS[call.function]
    match call:
        case Call(_, (Ref() as ref, *_), axes) if function.axes == "kept":
            inner = set(ref.free_axes[-len(axes) :]) == set(axes)
            return function.workspace[0 if inner else 1]
        case Call() if function.axes == "moved":
            first, further = function.workspace
            return first + further * (len(call.option_axes) - 1)
    return None


def _parts(expression: Expression, held: Callable[[Iterable[str]], int]) -> tuple[int, int]:
    """The peak bytes while an expression is computed, and the bytes of its value. Operands are not counted."""
    match expression:
        case Ref():
            return 0, 0
        case Contraction(parts):
            chain = True
        case Call(function, parts):
            chain = bool(FUNCTIONS[function].infix)
        case _:
            return 0, 0
    most = alive = own = 0
    axes: dict[str, None] = {}
    for number, part in enumerate(parts):
        match part:
            case Contraction((Literal(-1), subtracted), ()) if number and chain:
                part = subtracted
        within, value = _parts(divisor_of(part) or part, held)
        most, alive = max(most, alive + within), alive + value
        axes |= dict.fromkeys(part.free_axes)
        if number + 1 == len(parts) or (chain and number):  # a + b + c is (a + b) + c
            own = held(axes) if axes else 0
            most, alive = max(most, alive + own), own
    return most, own


def is_view(step: Step) -> bool:
    """Whether the result of a step is only a view of what it reads. A change of the order of axes is a copy."""
    right = step.equation.right
    if isinstance(right, Call):
        return FUNCTIONS[right.function].is_look(right)
    if not isinstance(right, Ref):
        return False
    whole = not any(isinstance(entry, int) or is_computed_index(entry) for entry in right.index)
    return (whole or is_cut(right)) and right.free_axes == step.equation.kept


# ---------------------------------------------------------------------------- together

FEW_BYTES = 2**15
"""The most bytes that wait to be freed: those of a cache of the first level."""


@dataclass(frozen=True)
class Liveness:
    """Steps at given sizes, and the bytes that are alive at each of them.

    Attributes:
        leaves: the leaves that the steps read, tables included.
        steps: the steps.
        values: the value of every named size.
        itemsize: bytes of a number.
    """

    leaves: tuple[Leaf, ...]
    steps: Sequence[AnyStep]
    values: Mapping[str, Any]
    itemsize: int

    @functools.cached_property
    def used(self) -> list[int]:
        """The bytes of all tensors alive before the first step and at each step, with the temporaries of the step."""
        return [used for used, _ in self._in_use]

    @property
    def peak(self) -> int:
        """The bytes alive at the worst step."""
        return max(self.used)

    def with_fewer_frees(self) -> tuple[AnyStep, ...]:
        """The steps with fewer frees: of few bytes, tensors are freed with later ones, where that does not raise the
        peak memory, and at the end. Others are freed at once: the next result is written where they were, in the cache.
        """
        (_, *rest) = self._in_use
        most = max((used for used, _ in rest), default=0)
        views = [step for step in self.steps if not self._views.isdisjoint(step.defines)]
        looks = {name for step in views for name in (*step.reads, *step.defines)}
        # a library may copy instead of making a view
        frees = [tuple(name for name in step.frees if name in looks) for step in self.steps]
        waiting, held, last = list[str](), 0, 0
        for number, (used, freed) in enumerate(rest):
            if waiting and (held > FEW_BYTES or used + held > most):
                frees[last], waiting, held = tuple(sorted((*frees[last], *waiting))), [], 0
            later = [name for name in self.steps[number].frees if name not in looks]
            if later:
                waiting, held, last = [*waiting, *later], held + freed, number
        return tuple(replace(step, frees=names) for step, names in zip(self.steps, frees, strict=True))

    @functools.cached_property
    def _views(self) -> set[str]:
        """The results that are views of other tensors."""
        return {step.equation.name for step in self.steps if isinstance(step, Step) and is_view(step)}

    @functools.cached_property
    def _in_use(self) -> list[tuple[int, int]]:
        """The bytes in use before the first step and at each step, each with the bytes freed after it."""
        alive = sum(map(self._given, self.leaves))
        found = [(alive, 0)]
        held, base, looks = dict[str, int](), dict[str, str](), Counter[str]()
        for step in self.steps:
            held.update(self._made(step))
            if not self._views.isdisjoint(step.defines):
                base[step.defines[0]] = base.get(step.reads[0], step.reads[0])
            looks.update(base.get(name, name) for name in step.defines)
            alive += sum(held[name] for name in step.defines)
            freed = 0
            for name in (base.get(each, each) for each in step.frees):
                looks[name] -= 1
                freed += held.get(name, 0) if not looks[name] else 0
            found.append((alive + self._beside(step), freed))
            alive -= freed
        return found

    @functools.cached_property
    def _bytes(self) -> Callable[[tuple[Any, ...], Element], int]:
        """The bytes of a tensor of a shape."""

        @functools.cache
        def found(shape: tuple[Any, ...], element: Element) -> int:
            count = int(product(evaluate(size, self.values) for size in shape))
            return count * bytes_of(element, self.itemsize)

        return found

    def _given(self, leaf: Leaf, own: Mapping[str, int] | None = None) -> int:
        """The bytes of a leaf. `own` gives the sizes where the leaf has names of its own for them."""
        shape = leaf.shape if own is None else tuple(evaluate(size, own) for size in leaf.shape)
        return self._bytes(shape, of_leaf(leaf))

    def _made(self, step: AnyStep) -> Iterator[tuple[str, int]]:
        """The bytes of each result of a step. Zero where the result shares the memory of another tensor."""
        if self._views.isdisjoint(step.defines):
            yield from zip(step.defines, map(self._bytes, step.shapes, step.elements), strict=True)
        else:
            yield step.defines[0], 0

    def _beside(self, step: AnyStep) -> int:
        """The bytes that a step takes while it runs, besides its operands and its results."""
        if isinstance(step, Step):
            return _temporary_bytes(step, self.values, self.itemsize)
        own = dict(step.plan.sizes) if step.plan.backward is not None else None  # by the plan's own names
        inside = step.plan.peak_memory - sum(self._given(leaf, own) for leaf in step.plan.leaves)
        whole = 0 if step.slicing or step.along else sum(size for _, size in self._made(step))
        return max(0, inside - whole)  # a piece exists next to the whole that it is written into
