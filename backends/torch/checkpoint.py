"""Rematerialisation: calls for which autograd saves only the arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from ..loops import scan
from .functions import SHARED
from .products import is_traced

__all__ = ["along_recomputed", "recomputed"]


def recomputed(function: Callable[..., Any], *given: torch.Tensor, **options: Any) -> Any:
    """A call as one node of autograd's graph. With dropout, tracing or autocast, torch's own checkpointing is used."""
    draws = "training" in options
    if draws or is_traced() or any(torch.is_autocast_enabled(each.device.type) for each in given[:1]):
        return checkpoint(function, *given, use_reentrant=False, preserve_rng_state=draws, **options)
    return _Again.apply(function, options, *given)  # type: ignore[no-untyped-call]


class _Again(torch.autograd.Function):
    """The call as an autograd function. It avoids the hooks on saved tensors by which torch supports any function."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], options: dict[str, Any], *given: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.function, ctx.options = function, options
        ctx.save_for_backward(*given)
        return function(*given, **options)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        asked = ctx.needs_input_grad[2:]
        twice = torch.is_grad_enabled()  # for double backward
        given = [
            each.view_as(each) if twice else each.detach().requires_grad_(wanted)
            for each, wanted in zip(ctx.saved_tensors, asked, strict=True)
        ]
        with torch.enable_grad():
            found = ctx.function(*given, **ctx.options)
        results = found if isinstance(found, tuple) else (found,)
        pairs = [(y, g) for y, g in zip(results, gradients, strict=True) if g is not None and y.requires_grad]
        wanted = [each for each, is_asked in zip(given, asked, strict=True) if is_asked]
        if not pairs:
            return (None,) * (2 + len(given))
        made = iter(
            torch.autograd.grad(
                [y for y, _ in pairs], wanted, [g for _, g in pairs], create_graph=twice, allow_unused=True
            )
        )
        return (None, None, *(next(made) if is_asked else None for is_asked in asked))


def along_recomputed(
    function: Any,
    cut: Sequence[Any],
    states: Sequence[Any],
    rest: Sequence[Any],
    size: int,
    axes: Sequence[int],
    following: Sequence[int],
    results: int,
    back: bool,
    last: bool,
    segment: int,
    recomputed: Any,
    **options: Any,
) -> Any:
    """A function called along an axis, in segments of `segment` positions. Each segment is one recomputed call."""
    count = len(cut)

    def positions(*given: Any, length: int, **options: Any) -> tuple[Any, ...]:
        called = functools.partial(function, **options) if options else function
        pieces, now, others = given[:count], given[count : count + len(states)], given[count + len(states) :]
        repetition = (length, axes, following, results, back)
        wholes, left = scan(SHARED, called, pieces, now, others, *repetition)
        return (*wholes, *left)

    made, now = list[Any](), states
    for done in range(0, max(size, 1), segment):
        length = min(segment, size - done)
        first = size - done - length if back else done
        pieces = [x.narrow(axis, first, length) for x, axis in zip(cut, axes, strict=True)]
        found = recomputed(positions, *pieces, *now, *rest, length=length, **options)
        made.append(found[:results])
        now = found[results:]
    wholes = [torch.cat(each) for each in zip(*(made[::-1] if back else made), strict=True)]
    wholes.extend(now if last else ())
    return wholes[0] if len(wholes) == 1 else tuple(wholes)
