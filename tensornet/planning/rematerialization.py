"""Rematerialisation in the library's own backward pass: the fewest blocks and segments that keep to a memory limit.

Where autograd runs the backward pass, `codegen/rematerialization.py` decides.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable

from ..autodiff.a_normal_form import Pairs
from ..autodiff.joint import JointGraph
from ..autodiff.vjp import rematerializable
from ..graph.graph import Graph
from ..scan.checkpointing import checkpoint_recurrences
from .gradients import joint_graph

__all__ = ["rematerialized_to_fit"]


def rematerialized_to_fit(
    limit: int | None,
    graph: Graph,
    wrt: tuple[str, ...],
    pairs: Pairs,
    peak: Callable[[JointGraph], int],
) -> JointGraph:
    """The joint graph with just enough rematerialisation to keep to a memory limit.

    First the fewest leading calls are rematerialised. If all calls are not enough, recurrences are also cut into the
    fewest segments that keep to the limit. If nothing does, the joint graph with the lowest peak is taken.

    Args:
        limit: the most bytes that may be alive at once, or None.
        graph, wrt, pairs: as in `joint_graph`.
        peak: the peak memory of a joint graph, in bytes.
    """
    found = joint_graph(graph, wrt, pairs=pairs)
    if limit is None or peak(found) <= limit:
        return found
    calls = rematerializable(graph, wrt)

    def rematerialised(count: int) -> JointGraph:
        return joint_graph(graph, wrt, pairs=pairs, recomputed=frozenset(calls[:count]))

    def fits(count: int) -> bool:
        return peak(rematerialised(count)) <= limit

    if calls:
        found = rematerialised(1 + bisect.bisect_left(range(1, len(calls)), True, key=fits))
    if not any(part.recurrences for part in graph.parts()) or (calls and peak(found) <= limit):
        return found
    return _in_segments(limit, graph, wrt, pairs, peak, found)


def _in_segments(
    limit: int,
    graph: Graph,
    wrt: tuple[str, ...],
    pairs: Pairs,
    peak: Callable[[JointGraph], int],
    whole: JointGraph,
) -> JointGraph:
    """The joint graph with recurrences in the fewest segments that keep to a limit, or with the lowest peak."""
    least, found = peak(whole), whole
    for doublings in itertools.count(1):
        parted = checkpoint_recurrences(graph, 2**doublings)
        if parted == checkpoint_recurrences(graph, 2 ** (doublings - 1)):
            return found
        trial = joint_graph(parted, wrt, pairs=pairs, recomputed=frozenset(rematerializable(parted, wrt)))
        taken = peak(trial)
        if taken < least:
            least, found = taken, trial
        elif found is not whole:
            return found
        if taken <= limit:
            return trial
    raise AssertionError
