"""How long each tensor of a plan is needed, and how many bytes are alive at once."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..graph.graph import Graph
from ..language.expression import axes_of_index
from ..sizes import evaluate, product
from .plans import CallStep, Result, Step

__all__ = ["peak_memory", "with_frees"]


def with_frees(steps: Sequence[Step | CallStep], results: tuple[Result, ...]) -> tuple[Step | CallStep, ...]:
    """Notes after which step each intermediate is needed no more."""
    last: dict[str, int] = {}
    for number, step in enumerate(steps):
        last.update(dict.fromkeys(step.reads, number))
    frees: list[list[str]] = [[] for _ in steps]
    for name in {name for step in steps for name in step.defines} - {each.value.name for each in results}:
        if name in last:
            frees[last[name]].append(name)
    return tuple(replace(step, frees=tuple(sorted(names))) for step, names in zip(steps, frees, strict=True))


def peak_memory(
    graph: Graph, steps: Sequence[Step | CallStep], values: Mapping[str, int], itemsize: int
) -> int:
    """Bytes of all tensors alive at the worst step, leaves included."""
    known = {**values, **graph.bound}

    @functools.cache
    def elements(sizes: tuple[Any, ...]) -> int:
        return int(product(evaluate(size, known) for size in sizes))

    alive = sum(elements(leaf.shape) for leaf in graph.leaves)
    peak, held = alive, dict[str, int]()
    for step in steps:
        if isinstance(step, CallStep):
            given = sum(elements(leaf.shape) for leaf in step.plan.graph.leaves)
            peak = max(peak, alive + step.plan.peak_memory // itemsize - given)
            held.update(zip(step.results, map(elements, step.shapes), strict=True))
        else:
            axes = {axis.name: axis.size for axis in step.axes}
            held[step.equation.name] = elements(
                tuple(axes[axis] for axis in axes_of_index(step.equation.left))
            )
        alive += sum(held[name] for name in step.defines)
        peak = max(peak, alive)
        alive -= sum(held[each] for each in step.frees)
    return peak * itemsize
