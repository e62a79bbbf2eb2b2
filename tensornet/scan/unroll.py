"""Unrolling along an axis: a block's equations with the axis as one more dimension.

z[b,o] = tanh(x[b,i] * W[o,i] + h[b,p] * U[o,p])          in the block
h[b,t,o] = tanh(x[b,t,i] * W[o,i] + h.before[b,t,p] * U[o,p])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from ..graph.leaves import scoped
from ..language.equation import Calling, Equation, renamed_axes
from ..language.expression import (
    Call,
    Expression,
    Index,
    Ref,
    axes_of_index,
    fresh,
    occurring,
    references,
    transform,
)
from ..ops.structure import REPEAT

Left = tuple[str | tuple[str, ...], ...]


@dataclass
class Repeated:
    """A block along an axis, while it is unrolled.

    Attributes:
        axis: the name of the axis.
        names: the caller's names of the block's tensors.
        varying: the block's tensors that have the axis, and its dimension.
    """

    axis: str
    names: dict[str, str]
    varying: dict[str, int]
    taken: set[str] = field(default_factory=set)

    def equations(
        self, line: Calling, block: Iterable[Equation], outputs: Iterable[str]
    ) -> Iterator[Equation]:
        """The equations of the caller.

        Args:
            line: the call.
            block: the equations of the block.
            outputs: the names of its results.
        """
        results = dict(zip(outputs, line.lefts, strict=True))
        for equation in block:
            result = results.pop(equation.name, None)
            yield self._equation(equation, result, line)
        for name, result in results.items():  # passed through
            yield replace(result, right=self._read(Ref(name, self._without(result.left))))

    def _without(self, left: Left) -> Left:
        at = left.index(self.axis)
        return left[:at] + left[at + 1 :]

    def _equation(self, equation: Equation, result: Equation | None, line: Calling) -> Equation:
        """One equation, under the axes of the result if it defines one."""
        left = equation.left if result is None else self._without(result.left)
        equation = _under(equation, left, self.axis)
        name = fresh(scoped(line.scope, equation.name), self.taken) if result is None else result.name
        right, varies = self._read(equation.right), self._varies(equation.right)
        self.names[equation.name] = name
        self.taken.add(name)
        if not varies and result is None:
            return replace(equation, name=name, right=right)
        at = min(1, len(equation.left)) if result is None else result.left.index(self.axis)
        self.varying[equation.name] = at
        left = (*equation.left[:at], self.axis, *equation.left[at:])
        return replace(equation, name=name, left=left, right=right if varies else self._repeated(right))

    def _repeated(self, right: Expression) -> Expression:
        return Call(REPEAT.name, (right,), (self.axis,))

    def _varies(self, right: Expression) -> bool:
        return any(ref.name in self.varying for ref in references(right))

    def _read(self, part: Expression) -> Expression:
        """An expression of the block over the caller's tensors, which have the axis."""
        part = transform(part, self._read)
        if not isinstance(part, Ref):
            return part
        index: tuple[Index, ...] = part.index
        if part.name in self.varying:
            at = self.varying[part.name]
            index = (*index[:at], self.axis, *index[at:])
        return replace(part, name=self.names.get(part.name, part.name), index=index)


def _under(equation: Equation, left: Left, axis: str) -> Equation:
    """The equation with other axes on its left. Its own axes of these names, or of another name, are renamed."""
    pairs = zip(axes_of_index(equation.left), axes_of_index(left), strict=True)
    names = {ours: theirs for ours, theirs in pairs if ours != theirs}
    inside = {*occurring(equation.right), *axes_of_index(equation.left)}
    taken = {*inside, *axes_of_index(left), axis}
    for each in sorted(inside.intersection((*names.values(), axis)) - names.keys()):
        names[each] = fresh(each, taken)
        taken.add(names[each])
    return renamed_axes(equation, names)
