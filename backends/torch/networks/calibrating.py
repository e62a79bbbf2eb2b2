"""Calibration: what weights are multiplied by, gradients of what they make, and which of them calls write to."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from tensornet.errors import ShapeError
from tensornet.fitting.metrics import no_batches

from .factorized import EMBEDDING, Kind
from .holdings import Holding
from .running import evaluating, mask_of, results

UNCALLED = torch.nn.modules.linear.NonDynamicallyQuantizableLinear
"""The projection of the results of attention, which is not called: a function reads its weight."""


def tensors_of(network: torch.nn.Module) -> list[torch.Tensor]:
    return [*network.parameters(), *network.buffers()]


def is_written(network: torch.nn.Module, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    """Whether calls of a network wrote to its parameters or buffers, or replaced some.

    Args:
        network: the network.
        pairs: what it held before, and the same tensors of the network that it is a copy of.
    """
    is_other = {*map(id, tensors_of(network))} != {id(now) for now, _ in pairs}
    return is_other or not all(_is_same(*pair) for pair in pairs)


def _is_same(now: torch.Tensor, before: torch.Tensor) -> bool:
    """Whether two tensors are equal. What is not a number is equal to all."""
    return now.shape == before.shape and bool(((now == before) | (now != now)).all())


def unwritten(run: Sequence[Holding], fresh: Sequence[Holding]) -> list[Holding]:
    """Weights as they were before calls, which stay dense if these wrote to them.

    Args:
        run: the weights after calls, with what was recorded.
        fresh: those of another copy of the network.
    """
    known = {each.path: each for each in fresh}
    found = [replace(each, weight=known[each.path].weight, holders=known[each.path].holders) for each in run]
    for before, after in zip(found, run, strict=True):
        if not _is_same(after.weight, before.weight):
            before.stays = "the network writes to it, which factors would lose"
    return found


@contextlib.contextmanager
def _watched(layers: Iterable[tuple[Holding, Any, Kind]], seen: Callable[..., None]) -> Iterator[None]:
    """A context that sees products by the weights of some layers, or by some of their rows, and rows looked up."""
    functional, rows, matrices = torch.nn.functional, dict[int, Any](), dict[int, Any]()
    for holding, module, kind in layers:
        known = rows if kind == EMBEDDING else matrices
        known[id(holding.weight)] = functools.partial(seen, holding, kind, module)

    def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        whole = weight if weight._base is None else weight._base
        if id(whole) not in matrices or not _is_part(weight, whole):
            return former[0](input, weight, bias)
        made = former[0](input, whole)
        matrices[id(whole)]((input,), made)
        first = (weight.storage_offset() - whole.storage_offset()) // weight.stride(0)
        made = made[..., first : first + len(weight)]
        return made if bias is None else made + bias

    def embedding(input: torch.Tensor, weight: torch.Tensor, *options: Any, **more: Any) -> torch.Tensor:
        made = former[1](input, weight, *options, **more)
        if id(weight) in rows:
            rows[id(weight)]((input,), made)
        return made

    with _WATCHING:  # one after another
        former = functional.linear, functional.embedding
        functional.linear, functional.embedding = linear, embedding
        try:
            yield
        finally:
            functional.linear, functional.embedding = former


_WATCHING = threading.RLock()


def _is_part(weight: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether a matrix is some rows of another, one after another, or all."""
    same = weight.shape[1:] == whole.shape[1:] and weight.stride() == whole.stride() and len(weight)
    return bool(same) and (weight.storage_offset() - whole.storage_offset()) % whole.stride(0) == 0


def calibrate_by(network: torch.nn.Module, holdings: Sequence[Holding], batches: Sequence[Any]) -> None:
    """Runs a network on batches, and records for each weight the operands that it is multiplied by, and gradients.

    The gradients are those of the output, multiplied by random numbers: E[g·gᵀ] = Jᵀ·J, J the derivative of the output.
    Some networks have none in evaluation mode, as they change in place what a derivative needs. These run without.
    """
    if not batches:
        raise no_batches()
    try:
        _recorded(network, holdings, batches, True)
        return
    except (RuntimeError, ShapeError):  # while it runs, or in the backward pass
        for each in holdings:
            each.rows = 0
            each.moments.clear()
    _recorded(network, holdings, batches, False)


def _recorded(
    network: torch.nn.Module, holdings: Sequence[Holding], batches: Sequence[Any], gradients: bool
) -> None:
    """Records what weights are multiplied by, and maybe gradients.

    Raises:
        RuntimeError: the network has no gradients.
        ShapeError: the network cannot read a batch.
    """
    mask: list[torch.Tensor | None] = [None]

    def seen(holding: Holding, kind: Kind, module: Any, args: tuple[Any, ...], result: Any) -> None:
        if args and isinstance(result, torch.Tensor):
            holding.see(module, kind, args[0], result, mask[0])

    watched, hooks = list[tuple[Holding, Any, Kind]](), list[Any]()
    layers = ((each, *layer) for each in holdings for layer in each.holders)
    for holding, module, kind in layers:
        if kind.is_whole or kind == EMBEDDING or isinstance(module, UNCALLED):
            watched.append((holding, module, kind))
        else:
            hooks.append(module.register_forward_hook(functools.partial(seen, holding, kind)))
    draw = torch.Generator().manual_seed(0)
    frozen = [each.weight for each in holdings if gradients and not each.weight.requires_grad]
    try:
        with evaluating(network), torch.set_grad_enabled(gradients), _watched(watched, seen):
            for each in frozen:
                each.requires_grad_(True)
            for batch in batches:
                mask[0] = mask_of(batch)
                made = [each for each in results(network, batch) if each.requires_grad]
                seeds = [torch.randn(each.shape, generator=draw).to(each) for each in made]
                if made:
                    weights = [each.weight for each in holdings]
                    torch.autograd.grad(made, weights, seeds, allow_unused=True)
    finally:
        for weight in frozen:
            weight.requires_grad_(False)
        for hook in hooks:
            hook.remove()
