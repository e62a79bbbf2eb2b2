"""Weights that share factors as one stacked weight, with an axis that numbers the weights.

W_l[o,i] = Σ U[o,r]·S_l[r,s]·V[s,i]   →   W[l,o,i] = Σ U[o,r]·S[l,r,s]·V[s,i]

Factors that belong to one weight get the new axis; shared factors do not. The stack has a form like any weight, and
is fitted as one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import EquationError
from ..graph.graph import Graph, of_tensors_named
from ..graph.leaves import Constant, Leaf
from ..graph.shape_inference import Axis
from ..language.equation import Equation
from ..language.expression import Expression, Ref, fresh, references, transform
from ..sizes import evaluate
from ..weights.substitution import Replacement

__all__ = ["Stack", "sharing", "stack_of"]


def sharing(found: Sequence[Replacement], before: Collection[str]) -> list[tuple[Replacement, ...]]:
    """The weights in groups: those connected by shared factors are in one group.

    Args:
        found: the weights, and what replaces each.
        before: the parameters of the original graph. They keep their values, and do not connect weights.
    """
    groups: list[tuple[set[str], list[Replacement]]] = []
    for each in found:
        names = {leaf.name for leaf in each.program.parameters} - set(before)
        joined = [group for group in groups if group[0] & names]
        groups = [group for group in groups if not group[0] & names]
        whole = [*(one for _, ones in joined for one in ones), each]
        groups.append((names.union(*(group[0] for group in joined)), whole))
    return [tuple(ones) for _, ones in groups]


@dataclass(frozen=True)
class Stack:
    """Weights that share factors, as one weight.

    Attributes:
        program: the graph that computes the stack; its leaves are named as for the first weight.
        names: for each weight, the leaf of the program to the name of that leaf in the weight's own program.
        own: the leaves of the program that are not shared.
    """

    program: Graph
    names: tuple[Mapping[str, str], ...]
    own: frozenset[str]

    def gathered(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """The arrays of the program's leaves, stacked from those of the weights. Leaves without arrays are left out."""
        first = self.names[0]
        return {
            name: np.stack([arrays[names[name]] for names in self.names])
            if name in self.own
            else arrays[name]
            for name in first
            if all(names[name] in arrays for names in self.names)
        }

    def spread(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """The arrays of the weights' leaves, taken from those of the program's leaves."""
        return {
            names[name]: array[number] if name in self.own else array
            for name, array in arrays.items()
            for number, names in enumerate(self.names)
        }


def stack_of(group: Sequence[Replacement]) -> Stack:
    """The stack of weights that share factors.

    Raises:
        EquationError: the weights have different equations.
    """
    programs = [each.program for each in group]
    uses = Counter(leaf.name for program in programs for leaf in program.leaves)
    shared = {name for name, count in uses.items() if count == len(group)}
    names = tuple(_named_as(programs[0], program, shared) for program in programs)
    first = {name for name in names[0] if name not in shared}
    if any(found != _shown(programs[0], names[0]) for found in map(_shown, programs, names)):
        several = next(name for name, count in uses.items() if count > 1)
        paths = " and ".join(f"'{each.path}'" for each in group[:2])
        fix = "give weights that share factors one equation, or train them"
        raise EquationError(
            f"'{several}' is a factor of several weights, of which {paths} are of other equations", fix=fix
        )
    leaves = {leaf.name for leaf in programs[0].leaves}
    return Stack(
        _stacked(programs, names, frozenset(first)),
        tuple({ours: theirs for ours, theirs in each.items() if ours in leaves} for each in names),
        frozenset(first & leaves),
    )


def _tensors(program: Graph) -> list[str]:
    """The tensors of a program, in order."""
    return [*(leaf.name for leaf in program.leaves), *(line.name for line in program.own)]


def _named_as(first: Graph, program: Graph, shared: Collection[str]) -> dict[str, str]:
    """The tensors of the first program to their counterparts in another."""
    ours, theirs = ([name for name in _tensors(each) if name not in shared] for each in (first, program))
    return {**dict(zip(ours, theirs, strict=False)), **{name: name for name in shared}}


def _shown(program: Graph, names: Mapping[str, str]) -> list[str]:
    """The program as text, with the names of the first program."""
    first = {theirs: ours for ours, theirs in names.items()}
    leaves = (replace(leaf, name=first.get(leaf.name, leaf.name), start=None) for leaf in program.leaves)
    values = ((leaf, [evaluate(size, program.bound) for size in leaf.shape]) for leaf in leaves)
    shapes = sorted(f"{leaf.name} {leaf.kind} {shape}" for leaf, shape in values)
    return [*shapes, *(str(of_tensors_named(line, first)) for line in program.own)]


def _stacked(programs: Sequence[Graph], names: Sequence[Mapping[str, str]], own: frozenset[str]) -> Graph:
    """The first program with a new axis for the leaves that are not shared, and for all that depends on them."""
    first = programs[0]
    taken = {axis for line in first.own for axis in line.axes} | set(first.bound) | set(first.named)
    axis = fresh("l", taken)
    values = [{leaf.name: leaf.value for leaf in program.constants} for program in programs]

    def leaf_of(leaf: Leaf) -> Leaf:
        if leaf.name not in own:
            return leaf
        value = leaf.value
        if value is not None:
            given = [each[named[leaf.name]] for each, named in zip(values, names, strict=True)]
            arrays = [each.array() for each in given if each is not None]
            value = Constant.of(np.stack(arrays), f"the constant '{leaf.name}'")
        return replace(leaf, dims=((Axis(axis, len(programs)),), *leaf.dims), start=None, value=value)

    grown = set(own & {leaf.name for leaf in first.leaves})
    lines: list[Equation] = []
    for line in first.own:
        if any(ref.name in grown for ref in references(line.right)):
            grown.add(line.name)
            line = replace(line, left=(axis, *line.left), right=_grown(line.right, grown, axis))
        lines.append(line)
    return replace(first, leaves=tuple(map(leaf_of, first.leaves)), body=tuple(lines))


def _grown(expression: Expression, names: Collection[str], axis: str) -> Expression:
    """The expression with a new leading axis for each reference to some tensors."""
    found = transform(expression, lambda part: _grown(part, names, axis))
    if isinstance(found, Ref) and found.name in names:
        return replace(found, index=(axis, *found.index))
    return found
