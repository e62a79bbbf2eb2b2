"""Networks run on batches of any kind, and their results of any kind."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias, TypeVar

import torch

from tensornet.errors import ShapeError, TensornetError
from tensornet.fitting.metrics import checked_batches

Module: TypeAlias = torch.nn.Module

T = TypeVar("T")

LOOPED = 5
"""How often each way is measured."""

OTHERS = 1 << 20
"""The numbers that fill the caches."""

FASTEST: dict[Any, Any] = {}
"""The fastest ways that were found."""

MARGIN = 1.1
"""What another way than the usual one has to gain."""


@contextmanager
def evaluating(network: Module) -> Iterator[None]:
    """Evaluation mode for the block; afterwards, each part is in the mode that it was in."""
    training = {each: each.training for each in network.modules()}
    network.eval()
    try:
        yield
    finally:
        for each, was in training.items():
            each.training = was


def batches_in(given: Any) -> Iterable[Any]:
    """The batches in what a user gives: several, or one as a tensor, a tuple or a mapping."""
    return [given] if isinstance(given, torch.Tensor | tuple | Mapping) else checked_batches(given)


def mask_of(batch: Any) -> torch.Tensor | None:
    """The mask of a batch of transformers: which positions count."""
    found = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    return found if isinstance(found, torch.Tensor) and found.ndim == 2 else None


def results(network: Module, batch: Any) -> list[torch.Tensor]:
    """The real results of a network for a batch: of transformers the logits, or what comes first. Padding is 0."""
    mask = mask_of(batch)
    real = [
        torch.view_as_real(each) if each.is_complex() else each for each in _tensors(_run(network, batch))
    ]
    real = [each for each in real if each.is_floating_point()]
    if mask is None:
        return real
    gone = ~mask.bool()[..., None]
    return [each.masked_fill(gone, 0) if each.shape[:-1] == mask.shape else each for each in real]


def clocked(ways: Sequence[Callable[[], Any]], count: int = LOOPED) -> list[float]:
    """The least time of some runs of each way, in turns, in seconds; the first does not count.

    Before each run something else fills the caches, as other layers of a network do: Python takes several times as long
    then.
    """
    found, others = [list[float]() for _ in ways], torch.zeros(OTHERS)
    for run, times in [*zip(ways, found, strict=True)] * (1 + count):
        others.add_(1)
        start = time.perf_counter()
        made = run()[0]
        if made.is_cuda:
            torch.cuda.synchronize(made.device)
        times.append(time.perf_counter() - start)
    return [min(each[1:]) for each in found]


def fastest(ways: Sequence[T], run: Callable[[T], Any], alike: Any) -> T:
    """The way that takes the least time, by the clock the first time. What has an equal key takes the same.

    Args:
        ways: the usual one first.
        run: runs a way.
        alike: a key.
    """
    if len(ways) == 1:
        return ways[0]
    key = alike, *ways, torch.get_num_threads()
    if key not in FASTEST:
        first, *rest = clocked([functools.partial(run, each) for each in ways])
        times = [first, *(MARGIN * each for each in rest)]
        FASTEST[key] = ways[times.index(min(times))]
    found: T = FASTEST[key]
    return found


def relative_time(dense: Any, made: Module) -> float | None:
    """The time of a call in units of that of the dense network.

    None for a network that tells no example of what it reads, as those of transformers do.
    """
    batch = getattr(dense, "dummy_inputs", None)
    if not isinstance(batch, Mapping):
        return None
    with evaluating(dense), evaluating(made), torch.no_grad():
        try:
            if getattr(dense, "main_input_name", "") == "pixel_values":
                pixel = torch.zeros(1, dense.config.num_channels, 1, 1)
                batch = {
                    "pixel_values": pixel.expand(-1, -1, *torch.tensor(dense.config.image_size).expand(2))
                }
            batch = {name: each.to(dense.device) for name, each in batch.items()}
            ways = [functools.partial(each, **batch, return_dict=False) for each in (made, dense)]
            after, before = clocked(ways, 3 * LOOPED)
        except Exception:  # the example of transformers is text, whatever a network reads
            return None
    return after / before


def _tensors(found: Any) -> Iterator[torch.Tensor]:
    """The tensors in a result, in containers of any depth."""
    if isinstance(found, torch.Tensor):
        yield found
    elif isinstance(found, Mapping):
        yield from _tensors(found.get("logits", next(iter(found.values()), None)))
    elif isinstance(found, tuple | list):
        for each in found:
            yield from _tensors(each)
    elif is_dataclass(found):
        yield from _tensors([getattr(found, each.name) for each in fields(found)])


def _run(network: Module, batch: Any) -> Any:
    """Runs a network on one batch: its arguments as a tuple or list, as a dict by name, or as a single tensor.

    A tuple with names, such as a packed sequence, is one argument.
    """
    are_several = isinstance(batch, tuple | list) and not hasattr(batch, "_fields")
    args = () if isinstance(batch, Mapping) else batch if are_several else (batch,)
    named = batch if isinstance(batch, Mapping) else {}
    try:
        inspect.signature(network.forward).bind(*args, **named)
    except ValueError:
        pass  # compiled code has no signature
    except TypeError as error:
        raise ShapeError(
            f"a batch of calibrate= is no call of {type(network).__name__}: {error}",
            fix="a batch is a tensor, a tuple of the arguments of forward, or a dict of them by name: leave labels out,"
            " as in calibrate=[x for x, _ in loader]",
        ) from None
    try:
        return network(*args, **named)
    except (AttributeError, IndexError, KeyError, TypeError, RuntimeError) as error:
        if isinstance(error, TensornetError | torch.cuda.OutOfMemoryError):
            raise
        what = f"{type(network).__name__} cannot read a batch of calibrate=: {error}"
        raise ShapeError(what, fix="give batches that the network itself takes") from error
