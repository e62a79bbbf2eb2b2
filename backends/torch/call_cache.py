"""Call cache: what is prepared for the tensors of a call. The last call of each grad mode is found by a guard."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import torch
from torch._C._dynamo import guards
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from tensornet.protocol import CallCache, load_backend

from .products import is_traced

backend = load_backend("torch")

Guard: TypeAlias = Callable[..., bool]

GUARDS: Any = getattr(guards, "TensorGuards", None)
"""The guards of torch, which are not public: without them, each call asks for its signature."""


class GuardedCache(CallCache):
    """A call cache that compares with the last call first, by one of the guards of `torch.compile`.

    A guard holds class, shape, element type and device of each tensor, whether it requires a gradient, and the
    dispatch keys, which tell autocast, tracing and the transforms of `torch.func`. It takes a third of the time of a
    signature. A guard is made when a signature comes for the second time.
    """

    def __init__(self, most: int, signature: Callable[[Sequence[Any]], Hashable]) -> None:
        super().__init__(most, signature)
        self._guards: dict[Hashable, Guard] = {}
        self._last: list[tuple[Guard, Any]] = [(_never, None)] * 2  # without gradients, and with them

    def last(self, arrays: Sequence[Any]) -> Any:
        """What was prepared for arrays that are like those of the last call in this grad mode, or None."""
        fits, found = self._last[torch.is_grad_enabled()]
        try:
            if True in [each.is_nested for each in arrays]:  # at which a guard ends the process
                return None
            return found if fits(*arrays) and forward_ad._current_level < 0 else None
        except (AttributeError, TypeError):  # one is no tensor, or there are more or fewer
            return None

    def get(self, arrays: Sequence[Any]) -> Any:
        if is_dynamo_compiling():  # which does not trace guards, and no planning
            found = super().get(arrays)
            if found is None:
                torch._dynamo.graph_break(  # it reads a literal only
                    msg="torch.compile traces no planning, and this is the first call with such arrays. fix: call it"
                    " once with such arrays before, or compile what tensornet.module(graph) returns"
                )
            return found
        return self.last(arrays) or self.find(arrays)

    def find(self, arrays: Sequence[Any]) -> Any:
        """What was prepared for arrays that are not like those of the last call, or None."""
        kind = self.signature(arrays)
        found = self._known.get(kind)
        if found is not None:
            grad, fits = torch.is_grad_enabled(), self._guards.get(kind)
            is_stale = fits is self._last[grad][0]  # a guard compares dispatch keys too, a signature does not
            if fits is None or is_stale:
                if len(self._guards) >= self._most:
                    self._guards.clear()
                fits = self._guards[kind] = _guard(arrays)
            self._last[grad] = fits, found
        return found


def _never(*arrays: Any) -> bool:
    """A guard for tensors that cannot have one."""
    return False


def _guard(arrays: Sequence[Any]) -> Guard:
    """Whether tensors are like these, in any memory layout; never if one of them is given twice."""
    if GUARDS is None or len({id(each) for each in arrays}) < len(arrays):
        return _never
    sizes: list[Any] = [list(each.shape) for each in arrays]
    strides: list[Any] = [[None] * each.ndim for each in arrays]
    check: Guard = GUARDS(*arrays, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    return check


def signature(arrays: Sequence[Any]) -> tuple[Hashable, ...]:
    """The signature of a call: autocast, whether only autograd differentiates, and all that counts of each tensor."""
    casts = bool(arrays) and backend.autocasts(arrays[0])
    leads = [x.requires_grad for x in arrays] if torch.is_grad_enabled() else []
    learns = True in leads and not is_traced()
    return (casts, learns, *leads, *[(type(x), x.shape, x.dtype, x.device) for x in arrays])
