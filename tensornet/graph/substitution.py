"""Weights in the place of which equations stand: a parameter becomes an expression in new parameters.

W[(a,b),(c,d)] = P[a,c,r] · Q[r,b,d]

The weight stays, as a result of that name in the scope that it had; the parameters that it is made of are
called after it, `W.P` and `W.Q`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..language.expression import sized_by_name
from ..sizes import size_names
from .graph import Graph
from .inlining import spoken_sizes
from .leaves import Leaf
from .rewriting.pruning import prune

__all__ = ["Replacement", "replaced"]

KEPT = "base"
"""What a weight that its own equation reads is called under its name: `W.base`."""


@dataclass(frozen=True)
class Replacement:
    """What stands in the place of a weight.

    Attributes:
        path: the weight, by the name that it had, and that what is computed instead has.
        leaf: the weight as it was.
        program: the equations that compute it. Its leaves are those of the whole graph, by their full names,
            and its one output is the weight.
    """

    path: str
    leaf: Leaf
    program: Graph

    @property
    def kept(self) -> str | None:
        """The leaf of the program that is the weight as it was, if the equations read it: `W.base`."""
        name = f"{self.path}.{KEPT}"
        return name if any(leaf.name == name for leaf in self.program.leaves) else None


def replaced(graph: Graph, substituted: Graph) -> tuple[Replacement, ...]:
    """The parameters of a graph that are computed in another, with what computes them there.

    Args:
        graph: a layer or a model.
        substituted: the same with equations in the place of parameters; see `substitute`.

    Example:
        >>> import tensornet as tn
        >>> dense = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x")
        >>> low = tn.layer("W[o,i] = A[o,r] * B[r,i]\\ny[b,o] = x[b,i] * W[o,i]", inputs="x")
        >>> (found,) = replaced(dense, low)
        >>> print(found.path, [leaf.name for leaf in found.program.parameters], found.program.equations[0])
        W ['A', 'B'] W[o,i] = A[o,r] * B[r,i]
    """
    known = {leaf.name for leaf in substituted.leaves}
    computed = {equation.name for equation in substituted.equations}
    gone = [leaf for leaf in graph.parameters if leaf.name not in known and leaf.name in computed]
    return tuple(Replacement(leaf.name, leaf, _computing(substituted.flat, leaf.name)) for leaf in gone)


def _computing(flat: Graph, name: str) -> Graph:
    """What one result of a graph without calls needs."""
    pruned = prune(replace(flat, outputs=(name,)))
    needed = pruned.needed()
    leaves = tuple(leaf for leaf in pruned.leaves if leaf.name in needed)
    names = {size for leaf in leaves for dim in leaf.dims for axis in dim for size in size_names(axis.size)}
    for equation in pruned.own:
        names.update(spoken_sizes(equation), sized_by_name(equation.right))
    while more := {each for name in names for each in size_names(flat.bound.get(name, 0))} - names:
        names |= more
    return replace(pruned, leaves=leaves, sizes=tuple(each for each in flat.sizes if each[0] in names))
