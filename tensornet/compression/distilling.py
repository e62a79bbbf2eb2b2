"""Distillation: a compressed network is trained to answer what the one that it was made of answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import check_arguments, checked_call, checked_number, names_in
from .compressed import Compressed, networks


@check_arguments
def distill(
    student: Any,
    teacher: Any,
    batches: Any,
    /,
    *,
    steps: int = 200,
    rate: float = 3e-4,
    hidden: str | Sequence[str] = (),
    progress: Callable[[int, int, float], None] | None = None,
) -> float:
    """Trains a smaller network, in place, to answer what another answers: it minimises Σ ‖y − ŷ‖² / ‖y‖².

    All parameters that require gradients are trained, by Adam. Codes of rounded factors are trained too: they are real
    numbers meanwhile, and rounded in each call. Both networks run in evaluation mode. A fourth of the batches is held
    out. What did best on these is kept, which may be what the student was before.

    Args:
        student: a `torch.nn.Module`, or what `tensornet.compress` or `tensornet.adapt` returned.
        teacher: the network that it was made of.
        batches: as for `calibrate=` of `tensornet.compress`.
        steps: of training, each on one batch.
        rate: the learning rate at the start, in units of the size of each parameter; it falls to 0 along a cosine.
        hidden: the names of modules, the same in both networks, whose results are compared too.
        progress: called ten times, with the step, `steps`, and the loss on the held batches.

    Returns:
        The loss on the held batches, the mean of Σ ‖y − ŷ‖² / ‖y‖².

    Raises:
        EquationError: there are no batches, no parameter to train, no module of such a name, or no real results.
        ShapeError: the networks answer in different shapes, or `steps` or `rate` is not positive.
        DtypeError: what they answer is not finite.

    Example:
        >>> import torch, tensornet as tn
        >>> network = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8))
        >>> batches = list(torch.randn(8, 64, 32))
        >>> small = tn.compress(network, bytes=0.1, calibrate=batches)
        >>> distill(small, network, batches, steps=50) <= small.loss * 1.01
        True
    """
    student = student.model if isinstance(student, Compressed) else student
    torch = networks(student, teacher)
    checked_number(steps, "steps", 1, whole=True)
    checked_number(rate, "rate", None)
    names = names_in(hidden, "hidden modules")
    checked_call(progress, "progress", "a step, all steps, and the loss")
    found: float = torch.distilled(student, teacher, batches, steps, rate, names, progress)
    return found
