"""Distillation: a smaller network is trained to answer what the one it was made of answers."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from tensornet.compression.compressing import held_out
from tensornet.errors import DtypeError, EquationError, ShapeError
from tensornet.files import whole
from tensornet.fitting.metrics import no_batches

from .rounded import Rounded
from .running import batches_in, evaluating, results

FREER, LEAST = 5.0, 1e-3
"""How much faster codes are trained: small changes round to none. And the least size of a parameter."""

DAMAGED = pickle.UnpicklingError, RuntimeError, EOFError, OSError
"""What torch raises for a file that it did not write whole."""

CHECKED = 10
"""How often the loss on held batches is looked at."""


def distilled(
    student: torch.nn.Module,
    teacher: torch.nn.Module,
    batches: Any,
    steps: int,
    rate: float,
    hidden: Sequence[str],
    progress: Callable[[int, int, float], None] | None,
    resume: Path | None,
) -> float:
    """Trains a network in place; see `tensornet.distill`."""
    given, held = held_out(batches_in(batches))
    if not given:
        raise no_batches()
    pair = (_Watched(student, hidden), _Watched(teacher, hidden))
    with evaluating(student), evaluating(teacher), _loose(student) as parameters:
        if not parameters:
            raise EquationError(
                "the student has no parameter to train", fix="unfreeze some: requires_grad_()"
            )
        state = _State(parameters, torch.optim.Adam(_groups(student, parameters, rate)), steps)
        if resume is not None and resume.exists():
            state.read(resume)
        every = max(1, steps // CHECKED)
        for step in range(state.step, steps + 1):
            if step % every == 0 or step == steps:
                with torch.no_grad():
                    lost = sum(float(_loss(*pair, batch)) for batch in held) / len(held)
                state.see(step, lost)
                if progress is not None:
                    progress(step, steps, lost)
                if resume is not None:
                    state.write(resume)
            if step < steps:
                state.optimizer.zero_grad()
                _loss(*pair, given[step % len(given)]).backward()  # type: ignore[no-untyped-call]
                state.optimizer.step()
                state.schedule.step()
        _put(parameters, state.kept)
    return state.best


class _State:
    """The state of a training: the step, the parameters that did best, and their loss."""

    def __init__(
        self, parameters: Sequence[torch.Tensor], optimizer: torch.optim.Optimizer, steps: int
    ) -> None:
        self.parameters, self.optimizer = parameters, optimizer
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        self.step, self.best, self.kept = 0, math.inf, _copies(parameters)

    def see(self, step: int, lost: float) -> None:
        """Keeps the parameters if they do best. Raises an error if no loss was finite so far."""
        self.step = step
        if lost < self.best:
            self.best, self.kept = lost, _copies(self.parameters)
        if self.best == math.inf:
            fix = "give batches to which both networks answer finite numbers"
            raise DtypeError("what student and teacher answer is not finite", fix=fix)

    def write(self, path: Path) -> None:
        """Writes all to a file."""
        states = {"optimizer": self.optimizer.state_dict(), "schedule": self.schedule.state_dict()}
        now = _copies(self.parameters)
        with whole(path) as half:
            torch.save({"step": self.step, "best": self.best, "kept": self.kept, "now": now, **states}, half)

    def read(self, path: Path) -> None:
        """Reads what `write` wrote.

        Raises:
            EquationError: the file holds no such state, or that of another network.
        """
        try:
            found = torch.load(path, weights_only=True)
            shapes = [[each.shape for each in found[name]] for name in ("kept", "now")]
            self.optimizer.load_state_dict(found["optimizer"])
            self.schedule.load_state_dict(found["schedule"])
        except (*DAMAGED, KeyError, TypeError, AttributeError, ValueError):
            shapes = []
        if shapes != 2 * [[each.shape for each in self.parameters]]:
            fix = "name another file, or remove it to begin again"
            raise EquationError(f"{path} holds no state of a distillation of this student", fix=fix)
        self.step, self.best, self.kept = found["step"], found["best"], found["kept"]
        _put(self.parameters, found["now"])


def _copies(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [each.detach().clone() for each in tensors]


def _groups(
    student: torch.nn.Module, parameters: Sequence[torch.Tensor], rate: float
) -> list[dict[str, Any]]:
    """The learning rate of each parameter: in units of its root mean square, that of codes `FREER` times as large."""
    free = {id(each.free) for each in student.modules() if isinstance(each, Rounded)}
    found = []
    for each in parameters:
        size = max(float(each.detach().pow(2).mean().sqrt()), LEAST)
        found.append({"params": [each], "lr": rate * size * (FREER if id(each) in free else 1)})
    return found


def _put(parameters: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for each, value in zip(parameters, values, strict=True):
            each.copy_(value)


class _Watched:
    """A network, and the hidden results that are compared: those of some of its modules."""

    def __init__(self, network: torch.nn.Module, hidden: Sequence[str]) -> None:
        known = dict(network.named_modules())
        for name in hidden:
            if name not in known:
                told = f"there is no module '{name}' in {type(network).__name__}"
                raise EquationError(told, fix="name one of named_modules()")
        self.network, self.modules = network, [known[name] for name in hidden]

    def __call__(self, batch: Any) -> list[torch.Tensor]:
        """The results for a batch, those of the modules first."""
        seen: list[Any] = []
        hooks = [each.register_forward_hook(lambda _, __, made: seen.append(made)) for each in self.modules]
        try:
            found = results(self.network, batch)
        finally:
            for hook in hooks:
                hook.remove()
        return [each[0] if isinstance(each, tuple) else each for each in seen] + found


def _loss(student: _Watched, teacher: _Watched, batch: Any) -> torch.Tensor:
    """Σ ‖y − ŷ‖² / ‖y‖² over the results."""
    with torch.no_grad():
        wanted = teacher(batch)
    found = student(batch)
    if [each.shape for each in wanted] != [each.shape for each in found]:
        fix = "give what tensornet.compress made of the teacher"
        raise ShapeError("student and teacher answer in different shapes", fix=fix)
    if not found:
        fix = "give a network that returns tensors of real numbers, such as logits"
        raise EquationError("the networks answer no real numbers", fix=fix)
    total = found[0].new_zeros(())
    for ours, theirs in zip(found, wanted, strict=True):
        finite = ~torch.isinf(theirs)
        gap, norm = (ours - theirs)[finite], theirs[finite]
        total = total + gap.pow(2).sum() / norm.pow(2).sum().clamp(min=1e-30)
    return total


@contextmanager
def _loose(network: torch.nn.Module) -> Iterator[list[torch.nn.Parameter]]:
    """The parameters that are trained. Codes are real numbers for the block, and rounded in each call."""
    rounded = [each for each in network.modules() if isinstance(each, Rounded)]
    for each in rounded:
        each.loosen()
    try:
        yield [each for each in network.parameters() if each.requires_grad]
    finally:
        for each in rounded:
            each.tighten()
