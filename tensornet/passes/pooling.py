"""Kernel selection of pooling: `max[u](x[b,2*p+u])`."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace

from ..language.affine import affine, is_window
from ..language.equation import Equation
from ..language.expression import Call, Expression, Ref, axes_of_index, is_told
from ..ops.convolution import DIMENSIONS
from ..ops.table import FUNCTIONS
from .rewriter import Change, Draft, by_kernels, replaced

__all__ = ["pool"]


@by_kernels
def pool(draft: Draft, reader: Equation, spelled: Container[str]) -> Iterator[Change]:
    """Reduces windows without laying them out, where that pays."""
    for part in reader.parts:
        match part:
            case Call(function, (Ref() as operand,), axes) if FUNCTIONS[function].pools in spelled:
                if _is_pool(operand, axes) and draft.is_number(part):
                    made: Expression = replace(part, function=FUNCTIONS[function].pools)
                    yield Change((replace(reader, right=replaced(reader.right, part, made)),), (reader,))


def _is_pool(operand: Ref, axes: tuple[str, ...]) -> bool:
    """Whether a tensor is read in windows, of all of whose elements something is made."""
    windows = [affine(entry) for entry in operand.index if is_told(entry) and is_window(entry)]
    plain = [entry for entry in operand.index if isinstance(entry, str | tuple)]
    named = [axis for window in windows if window is not None for axis in window.axes]
    inner = [window.axes[1] for window in windows if window is not None and len(window.axes) == 2]
    whole = len(plain) + len(windows) == len(operand.index) and len(named) == 2 * len(inner) == 2 * len(
        windows
    )
    apart = len({*named, *axes_of_index(tuple(plain))}) == len(named) + sum(
        len(axes_of_index((entry,))) for entry in plain
    )
    return whole and apart and 0 < len(inner) <= DIMENSIONS and sorted(inner) == sorted(axes)
