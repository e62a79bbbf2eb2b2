"""Lowering of windows: padded tensors read as they lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..graph.shape_inference import Scope
from ..language.affine import reached
from ..language.expression import Call, Expression, Literal, Ref, is_told, scalar_value, sum_of
from ..ops.structure import ONEHOT, PAD
from ..ops.table import FUNCTIONS
from ..planning.steps import Step
from .steps import Making
from .values import Value

__all__ = ["Opening"]


@dataclass(frozen=True)
class _Padded:
    """The step that puts zeros around a tensor, the tensor as it is read there, and how many before it, by axis."""

    step: Step
    ref: Ref
    before: Mapping[str, int]


class Opening(Making):
    """Reads tensors in windows, for kernels that take these."""

    def in_windows(self, ref: Ref, scope: Scope, *, bare: bool) -> tuple[Value, tuple[Call, ...]]:
        """A tensor that is read in windows, with an axis for each, and ones where windows are.

        Args:
            ref: the tensor, as it is read.
            scope: the sizes of the axes.
            bare: whether zeros around it that nothing else reads are left out; positions before the first one
                have no one then.
        """
        index: list[Any] = []
        windows: dict[str, Expression] = {}
        for entry in ref.index:
            if is_told(entry):
                (outer, _), (inner, _), _ = reached(entry)
                index.append(f"{outer}_{inner or 'at'}")
                windows[index[-1]] = entry
            else:
                index.append(entry)
        value = self.lower(replace(ref, index=tuple(index)), scope, None)
        padded = self._padded(ref.name, value.ref) if bare else None
        before: dict[str, int] = {}
        if padded is not None:
            names = dict(zip(padded.step.equation.left, value.ref.index, strict=True))
            found = {str(names[axis]): count for axis, count in padded.before.items()}
            if found.keys() <= windows.keys():
                before = found
                value = self._without(padded, value, names)
                self._read_once_less(ref.name, padded.step)
        ones = (
            Call(
                ONEHOT.name,
                (sum_of([entry, Literal(-before[axis])]) if before.get(axis) else entry,),
                (axis,),
            )
            for axis, entry in windows.items()
        )
        return value, tuple(ones)

    def _padded(self, name: str, ref: Ref) -> _Padded | None:
        """The step that puts zeros around a tensor; nothing if there is none."""
        if name in self.graph.outputs:
            return None
        if any(name in call.operands for call in self.graph.calls):
            return None
        step = next((each for each in reversed(self.steps) if ref.name in each.defines), None)
        if not isinstance(step, Step) or len(step.equation.left) != len(ref.index):
            return None
        match step.equation.right:
            case Call(PAD.name, (Ref() as operand,), (), options) if operand.index == step.equation.left:
                told = dict(options)
                fill = told.pop("value", (Literal(dict(FUNCTIONS[PAD.name].options)["value"]),))
                amounts = {axis: tuple(map(scalar_value, values)) for axis, values in told.items()}
                whole = all(isinstance(each, int) and each >= 0 for pair in amounts.values() for each in pair)
                if scalar_value(fill[0]) == 0 and whole:
                    return _Padded(step, operand, {axis: pair[0] for axis, pair in amounts.items()})  # type: ignore[misc]
        return None

    def _without(self, padded: _Padded, value: Value, names: Mapping[Any, Any]) -> Value:
        """The tensor without zeros."""
        known = {axis.name: axis.size for axis in padded.step.axes}
        told = dict(value.sizes)
        told.update({str(names[axis]): self._inside(padded, axis, known) for axis in padded.before})
        return replace(value, ref=replace(padded.ref, index=value.ref.index), sizes=told)

    def _read_once_less(self, name: str, step: Step) -> None:
        """The step that puts zeros around a tensor goes with the last that would read these."""
        self.readers[name] -= 1
        if not self.readers[name]:
            self.steps.remove(step)

    def _inside(self, padded: _Padded, axis: str, known: Mapping[str, Any]) -> Any:
        """The size of an axis without zeros."""
        assert isinstance(padded.step.equation.right, Call)
        amounts = dict(padded.step.equation.right.options)[axis]
        return known[axis] - sum(scalar_value(each) for each in amounts)  # type: ignore[misc]
