"""Tensor network diagrams: a product of tensors as nodes that share axes, with the axes of the result as open legs.

The notation of Penrose 1971. Positions have the least stress (Gansner, Koren and North 2005): distances in the picture
are near those in the network. A label is an item of the layout, so that it has a place of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..graph.graph import Graph
from ..graph.shape_inference import Scope
from ..language.equation import Equation
from ..language.expression import Call, Contraction, Expression, Ref, axes_of_index, show_index
from ..sizes import evaluate
from .diagram import Diagram, Edge, Node

__all__ = ["networks_of", "placed"]

STARTS, STEPS = 8, 120
"""The number of starts of the layout, and of the steps from each."""

UNCONNECTED = 4.0
"""The distance of what no link connects."""


def networks_of(graph: Graph) -> tuple[Diagram, ...]:
    """The networks of the terms of a graph's one equation; nothing if it is no product of tensors, or a sum of such."""
    if len(graph.body) != 1 or not isinstance(graph.body[0], Equation):
        return ()
    equation = graph.body[0]
    right = equation.right
    terms = right.arguments if isinstance(right, Call) and right.function == "add" else (right,)
    factors = [tuple(_factors(term)) for term in terms]
    if not all(factors) or max(map(len, factors)) < 2:
        return ()
    return tuple(_network(graph, equation, each) for each in factors)


def _factors(term: Expression) -> Iterator[Ref]:
    """The tensors of a product; nothing if one of its factors is something else, or has an axis twice."""
    factors = term.factors if isinstance(term, Contraction) else (term,)
    for factor in factors:
        axes = _axes(factor) if isinstance(factor, Ref) else None
        if axes is None or len(set(axes)) < len(axes):
            return
    yield from (factor for factor in factors if isinstance(factor, Ref))


def _axes(ref: Ref) -> list[str] | None:
    """The axes of a tensor, the parts of composites each; None if an entry is something else."""
    found = list[str]()
    for entry in ref.index:
        if not isinstance(entry, str | tuple):
            return None
        found += [entry] if isinstance(entry, str) else entry
    return found


def _network(graph: Graph, equation: Equation, factors: Sequence[Ref]) -> Diagram:
    kinds = {leaf.name: leaf.kind for leaf in graph.leaves}
    nodes: dict[str, Node] = {}
    holders: dict[str, list[str]] = {}
    for factor in factors:
        name = factor.name if factor.name not in nodes else f"{factor.name} {len(nodes)}"
        nodes[name] = Node(kinds[factor.name], factor.name)
        for axis in _axes(factor) or ():
            holders.setdefault(axis, []).append(name)
    scope, edges = graph.scope(equation), list[Edge]()
    for axis, names in holders.items():
        label, is_open = _label(graph, scope, axis), axis in axes_of_index(equation.left)
        if len(names) == 2 and not is_open:
            edges.append(Edge(names[0], names[1], label))
            continue
        joined = f"[{axis}]"
        if len(names) == 1:
            nodes[joined] = Node("leg", label if is_open else f"Σ {label}")
        else:
            nodes[joined] = Node("axis", label)
        edges += [Edge(name, joined, "") for name in names]
        if is_open and len(names) > 1:
            nodes[f"{joined} open"] = Node("leg", "")
            edges.append(Edge(joined, f"{joined} open", ""))
    left = f"{equation.name}[{show_index(equation.left)}]" if equation.left else equation.name
    return Diagram(left, nodes, tuple(edges), directed=False)


def _label(graph: Graph, scope: Scope, axis: str) -> str:
    """An axis, with its size if that is a number: `i:4`."""
    size = evaluate(scope[axis], graph.bound)
    return f"{axis}:{size}" if isinstance(size, int) else axis


def placed(items: int, links: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """Positions whose distances are near those in a graph, along its links, by stress majorization.

    Args:
        items: the number of items.
        links: pairs of items.

    Returns:
        The positions found from several starts, those with the least stress first: a row for each item, with the
        longer way across.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import shortest_path

    ones, (rows, columns) = [1.0] * len(links), zip(*links, strict=True)
    distances = shortest_path(csr_array((ones, (rows, columns)), shape=(items, items)), directed=False)
    distances[np.isinf(distances)] = UNCONNECTED
    weights = np.divide(1, distances**2, out=np.zeros_like(distances), where=distances > 0)
    starts = [_scaled(distances), *np.random.default_rng(0).standard_normal((STARTS - 1, items, 2))]
    found = [_majorized(start, distances, weights) for start in starts]
    return [places for _, places in sorted(found, key=lambda each: round(each[0], 6))]


def _scaled(distances: np.ndarray) -> np.ndarray:
    """Positions by classical multidimensional scaling."""
    centring = np.eye(len(distances)) - 1 / len(distances)
    values, vectors = np.linalg.eigh(-0.5 * centring @ distances**2 @ centring)
    found: np.ndarray = vectors[:, :-3:-1] * np.sqrt(np.maximum(values[:-3:-1], 1e-3))
    return found


def _majorized(places: np.ndarray, distances: np.ndarray, weights: np.ndarray) -> tuple[float, np.ndarray]:
    """The stress, and the positions turned so that they spread most across."""
    inverse = np.linalg.pinv(np.diag(weights.sum(1)) - weights)
    for _ in range(STEPS):
        apart = np.linalg.norm(places[:, None] - places[None], axis=-1)
        pulls = -weights * np.divide(distances, apart, out=np.zeros_like(apart), where=apart > 1e-9)
        np.fill_diagonal(pulls, -pulls.sum(1))
        places = inverse @ pulls @ places
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1)
    _, turned = np.linalg.eigh(np.cov(places.T))
    places = places @ turned[:, ::-1]
    return float((weights * (apart - distances) ** 2).sum()), places * np.where(places[0] > 0, -1, 1)
