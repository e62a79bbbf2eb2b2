"""Gradients and jvp of graphs, their products split into pairs; rematerialisation in the backward pass."""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..autodiff.a_normal_form import Pairs
from ..autodiff.activity import check_real
from ..autodiff.vjp import JointGraph, differentiated, rematerializable
from ..contraction.order_search import fastest_with_vjp, fewest_flops
from ..contraction.pairs import Choose, Problem
from ..device.cost_model import DeviceProfile, default_profile
from ..dtypes import itemsize
from ..errors import EquationError
from ..graph.element_types import of_leaves
from ..graph.graph import Graph, of_graph, of_tensors_named
from ..graph.leaves import told_by
from ..language.expression import fresh
from ..ops.table import Element
from ..sizes import evaluate
from .planner import NOMINAL

_TWICE = re.compile(r"\.grad\.grad(_\d+)?$")
"""The name of the gradient of a gradient, or of a term of one."""


@of_graph
def gradient(
    graph: Graph, /, *, of: str | Sequence[str] | None = None, wrt: str | Sequence[str] | None = None
) -> Graph:
    """The derivative of a graph, as a graph: it prints, counts FLOPs, is planned and runs like any other.

    Its results are ∂of/∂w for each w of `wrt`, in their order. They are named `w.grad`, with a number appended where
    the graph already has a tensor of that name. Where a result is not a number but a tensor y[b,o], its gradient
    ḡ[b,o] is a further input, named `y.grad`, after the graph's own. The results are then Σ_bo ḡ[b,o] ∂y[b,o]/∂w:
    the product of a vector with the Jacobian. (Reverse accumulation: S. Linnainmaa, 1976; for tensor expressions:
    S. Laue, M. Mitterreiter, J. Giesen, NeurIPS 2018.)

    The derivative of a product is a product, and those of functions are equations of the language. Whatever the
    gradients of several factors share is computed once: a chain of N factors costs O(N). Functions are taken as
    functions of real numbers, and complex numbers raise an error. At a kink of a function, the gradient is between
    its slopes. Dropout draws its mask once for both passes.

    Args:
        graph: a layer or a model.
        of: the results to differentiate, by name; all outputs if not given. Other tensors of the graph may be
            named as in `Graph.select`.
        wrt: the parameters and inputs to differentiate by, as patterns of `fnmatch` for their scoped names. `*`
            matches anything, dots included: `"x encoder.*"`, or a list. All parameters if not given.

    Raises:
        EquationError: a name matches nothing, there is nothing to differentiate by, a leaf holds no real numbers, or
            a function has no derivative.
        DtypeError: the graph holds complex numbers.

    Example:
        >>> import tensornet as tn
        >>> layer = tn.layer("y[b,o] = x[b,i] * W[o,i]\\nloss = sum[b,o](y[b,o] ** 2)", inputs="x", outputs="loss")
        >>> print("\\n".join(tn.gradient(layer).lines()))
        y[b,o] = x[b,i] * W[o,i]
        y.grad[b,o] = 2 * y[b,o]
        W.grad[o,i] = y.grad[b,o] * x[b,i]
    """
    graph = graph if of is None else graph.select(of)
    return joint_graph(graph, leaves_of(graph, wrt)).joined()


@of_graph
def jvp(
    graph: Graph, /, *, of: str | Sequence[str] | None = None, wrt: str | Sequence[str] | None = None
) -> Graph:
    """The product of the Jacobian of a graph with a vector, as a graph.

    The leaves w of `wrt` have tangents ẇ. These are further inputs, named `w.tangent`, after the graph's own. The
    results are ẏ = Σ_w ∂y/∂w·ẇ for each y of `of`, named `y.tangent`. The graph is the derivative of the product of a
    vector with the Jacobian by that vector (J. Townsend, 2017), without everything that does not depend on ẇ.

    Args:
        graph: a layer or a model.
        of: the results, by name; all outputs if not given.
        wrt: the leaves, as in `gradient`.

    Raises:
        EquationError, DtypeError: as in `gradient`.

    Example:
        >>> import tensornet as tn
        >>> layer = tn.layer("y[b,o] = tanh(x[b,i] * W[o,i])", inputs="x")
        >>> print("\\n".join(tn.jvp(layer, wrt="x").lines()))
        y_1[b,o] = x[b,i] * W[o,i]
        y[b,o] = tanh(y_1[b,o])
        y_1.tangent[b,o] = x.tangent[b,i] * W[o,i]
        y.tangent[b,o] = y_1.tangent[b,o] * (1 - y[b,o] ** 2)
    """
    graph = graph if of is None else graph.select(of)
    leaves = leaves_of(graph, wrt)
    once = joint_graph(graph, leaves, alone=False)
    first, seeds = once.joined(), tuple(seed for _, seed in once.seeds)
    twice = joint_graph(first, seeds, alone=False)
    given = dict(twice.seeds)
    tangents = [(given[result], leaf) for leaf, result in zip(leaves, first.outputs, strict=True)]
    tangents += [(found, name) for found, (name, _) in zip(twice.backward.outputs, once.seeds, strict=True)]
    return _of_tangents(twice.joined(), dict(tangents), {*graph.named}, {*seeds})


def _of_tangents(graph: Graph, tangents: Mapping[str, str], before: set[str], unread: set[str]) -> Graph:
    """The graph with its gradients of gradients renamed to tangents, and without unused inputs.

    Args:
        graph: the derivative of a derivative.
        tangents: its inputs and results, each with the tensor that it is the tangent of.
        before: the tensors that keep their names.
        unread: the unused inputs.
    """
    wanted = {name: f"{tensor}.tangent" for name, tensor in tangents.items()}
    for name in graph.named:
        if _TWICE.search(name) and name not in before:
            wanted.setdefault(name, _TWICE.sub(r".tangent\1", name))
    taken, names = {*graph.named}, dict[str, str]()
    for name, tangent in wanted.items():
        names[name] = fresh(tangent, taken)
        taken.add(names[name])
    leaves = (leaf for leaf in graph.leaves if leaf.name not in unread)
    return replace(
        graph,
        leaves=tuple(replace(leaf, name=names.get(leaf.name, leaf.name)) for leaf in leaves),
        body=tuple(of_tensors_named(item, names) for item in graph.body),
        outputs=tuple(names.get(name, name) for name in graph.outputs),
    )


@functools.lru_cache(maxsize=64)
def pairwise_order(
    profile: DeviceProfile, size: int, at: tuple[tuple[str, int], ...] = (), choose: Choose = fastest_with_vjp
) -> Pairs:
    """Splits products into the pairs that are best by some choice. Open sizes without a value count as `NOMINAL`.

    Args:
        profile, size: the device, and bytes of one element.
        at: the names and values of open sizes.
        choose: the choice, by default the pairs that are expected to be fastest.
    """

    def pairs(
        axes: Sequence[tuple[str, ...]], kept: frozenset[str], sizes: Mapping[str, Any]
    ) -> tuple[tuple[int, int], ...]:
        values = {axis: evaluate(length, dict(at)) for axis, length in sizes.items()}
        known = {axis: max(1, value) if isinstance(value, int) else NOMINAL for axis, value in values.items()}
        kept = kept & {axis for each in axes for axis in each}
        order = choose(Problem(tuple(axes), kept, None, known, profile, size))
        return tuple((pair.first, pair.second) for pair in order)

    return pairs


in_pairs = pairwise_order(default_profile("cpu"), 4, choose=fewest_flops)
"""The pairs of the order with the fewest FLOPs."""


def joint_graph(
    graph: Graph,
    wrt: tuple[str, ...],
    alone: bool = True,
    pairs: Pairs | None = None,
    recomputed: frozenset[str] = frozenset(),
) -> JointGraph:
    """The forward pass of a graph, and the backward pass to some leaves.

    Products are split into `pairs`, by default those of fewest FLOPs.

    Raises:
        DtypeError: the graph holds complex numbers.
    """
    check_real(graph)
    return differentiated(graph, results_of(graph), wrt, pairs or in_pairs, alone, recomputed)


# ---------------------------------------------------------------------------- rematerialisation


def rematerialized_to_fit(
    limit: int | None,
    graph: Graph,
    wrt: tuple[str, ...],
    profile: DeviceProfile,
    dtype: str,
    sizes: Mapping[str, int],
    peak: Callable[[JointGraph], int],
) -> JointGraph:
    """The joint graph that is expected to be fastest, with just enough rematerialisation to keep to a memory limit.

    The fewest leading calls are rematerialised. For autograd see `codegen/rematerialization.py`.

    Args:
        limit: the most bytes that may be alive at once, or None.
        graph, wrt: as in `joint_graph`.
        profile, dtype, sizes: the device, the element type, and values of open sizes.
        peak: the peak memory of a joint graph, in bytes.
    """
    pairs = pairwise_order(profile, itemsize(dtype), tuple(sorted(sizes.items())))
    if limit is None:
        return joint_graph(graph, wrt, pairs=pairs)
    calls = rematerializable(graph, wrt)

    def saving(count: int) -> JointGraph:
        return joint_graph(graph, wrt, pairs=pairs, recomputed=frozenset(calls[:count]))

    fits = functools.cache(lambda count: peak(saving(count)) <= limit)
    return saving(0 if fits(0) else 1 + bisect.bisect_left(range(1, len(calls)), True, key=fits))


def results_of(graph: Graph) -> tuple[str, ...]:
    """The outputs of a graph, each once."""
    return tuple(dict.fromkeys(graph.outputs))


def leaves_of(graph: Graph, wrt: str | Sequence[str] | None) -> tuple[str, ...]:
    """The leaves that match the given patterns. All parameters if none are given."""
    elements = of_leaves(graph)
    known = [leaf.name for leaf in graph.leaves if leaf.kind != "constant"]
    if wrt is None and graph.parameters:
        return tuple(leaf.name for leaf in graph.parameters)
    if wrt is None or (isinstance(wrt, Sequence) and not wrt):
        what = "wrt= names no leaf" if wrt is not None else "the graph has no parameters"
        told = ", ".join(known) or "none"
        raise EquationError(
            f"{what} to differentiate with respect to", fix=f"name leaves in wrt=…: there are {told}"
        )
    found = told_by(wrt, known, "input or parameter", "leaves")
    for name in found:
        if elements[name] < Element.WIDE:
            fix = "name leaves that hold real numbers: wrt=…"
            raise EquationError(f"'{name}' holds integers or truth values, which have no gradient", fix=fix)
    return found
