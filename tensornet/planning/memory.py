"""How long each tensor of a plan is needed, and how many bytes are alive at once."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..graph.elements import of_leaf
from ..graph.leaves import Leaf
from ..language.expression import axes_of_index
from ..operations.functions import Element
from ..sizes import evaluate, product
from .plans import CallStep, Step

__all__ = ["bytes_of", "peak_memory", "with_frees"]


def bytes_of(element: Element, itemsize: int) -> int:
    """Bytes of one element, of a kind, beside numbers of the working type of so many."""
    match element:
        case Element.TRUTH:
            return 1
        case Element.SHORT | Element.WHOLE:
            return 8
        case Element.WIDE:
            return max(4, itemsize)
    return itemsize


def with_frees(steps: Sequence[Step | CallStep], results: Iterable[str]) -> tuple[Step | CallStep, ...]:
    """Notes after which step each intermediate is needed no more.

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


def peak_memory(
    leaves: Iterable[Leaf], steps: Sequence[Step | CallStep], values: Mapping[str, Any], itemsize: int
) -> int:
    """Bytes of all tensors alive at the worst step.

    Args:
        leaves: what is given, tables included.
        steps: the steps that are done with it.
        values: every size that has a name.
        itemsize: bytes of a number.
    """

    @functools.cache
    def bytes_at(sizes: tuple[Any, ...], element: Element) -> int:
        return int(product(evaluate(size, values) for size in sizes)) * bytes_of(element, itemsize)

    def given(leaf: Leaf) -> int:
        return bytes_at(leaf.shape, of_leaf(leaf))

    alive = sum(map(given, leaves))
    peak, held = alive, dict[str, int]()
    for step in steps:
        if isinstance(step, CallStep):
            own = sum(map(given, step.plan.leaves))
            peak = max(peak, alive + step.plan.peak_memory - own)
            elements = (result.element for result in step.plan.results)
            held.update(zip(step.results, map(bytes_at, step.shapes, elements), strict=True))
        else:
            axes = {axis.name: axis.size for axis in step.axes}
            shape = tuple(axes[axis] for axis in axes_of_index(step.equation.left))
            held[step.equation.name] = bytes_at(shape, step.element)
        alive += sum(held[name] for name in step.defines)
        peak = max(peak, alive)
        alive -= sum(held[each] for each in step.frees)
    return peak
