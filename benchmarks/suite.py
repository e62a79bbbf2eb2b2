"""What a suite is, and how one is measured: cases as data, contestants that must agree, rows of what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

import tensornet as tn

from .timing import Timing, timings

__all__ = [
    "Case",
    "Contestant",
    "DisagreementError",
    "Place",
    "Row",
    "Suite",
    "measured",
    "ours",
]

OURS = "tensornet"

CLOSE = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 0.06, torch.float16: 0.02}
"""How far two contestants may be apart, as a share of the largest element."""


class DisagreementError(Exception):
    """Two contestants compute different things, so that their times say nothing."""


@dataclass(frozen=True)
class Place:
    """Where a suite runs, and in which type."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    @property
    def cuda(self) -> bool:
        """Whether this is a GPU, where a call returns before its work is done."""
        return torch.device(self.device).type == "cuda"

    def wait(self) -> None:
        """Returns when all that was started here is done."""
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def drawn(self, *shape: int, seed: int = 0, std: float = 1.0) -> torch.Tensor:
        """Random numbers, the same on every device."""
        draw = torch.Generator().manual_seed(seed)
        return (std * torch.randn(shape, generator=draw)).to(self.device, self.dtype)


@dataclass(frozen=True)
class Contestant:
    """A function of tensors to one tensor, with what it is called on and the parameters that it holds."""

    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    parameters: tuple[torch.Tensor, ...] = ()

    def forward(self) -> Any:
        """Its value, without a graph of derivatives."""
        with torch.no_grad():
            return self.function(*self.inputs)

    def backward(self) -> tuple[torch.Tensor, ...]:
        """Forward, then the derivatives by the inputs that ask for one and by the parameters."""
        y = self.function(*self.inputs)
        by = [each for each in (*self.inputs, *self.parameters) if each.requires_grad]
        return torch.autograd.grad(y, by, torch.ones_like(y))

    def kept(self) -> int:
        """Bytes that are kept from forward to backward, the parameters not counted."""
        own = {each.untyped_storage().data_ptr() for each in self.parameters}
        found: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            y = self.function(*self.inputs)
        del y
        return sum(size for at, size in found.items() if at not in own)


@dataclass(frozen=True)
class Case:
    """A line of a suite.

    Attributes:
        name: what it is, in words and sizes.
        build: makes the contestants, ours first, each on the same numbers.
        measures: what is timed: "forward", and "backward", which is both ways.
    """

    name: str
    build: Callable[[Place], Mapping[str, Contestant]]
    measures: tuple[str, ...] = ("forward",)


@dataclass(frozen=True)
class Suite:
    """A table of cases.

    Attributes:
        name: of its module.
        title: what it compares.
        cases: what `make bench` measures.
        tiny: the same at sizes that take no time, to see that all run and agree.
    """

    name: str
    title: str
    cases: tuple[Case, ...]
    tiny: tuple[Case, ...]


@dataclass(frozen=True)
class Row:
    """What was found of a case.

    Attributes:
        case: its name.
        measure: "forward" or "backward".
        mode: how it was run, a name of `MODES`.
        seconds: by contestant.
        kept: bytes from forward to backward, by contestant, where backward was measured.
    """

    case: str
    measure: str
    mode: str
    seconds: Mapping[str, Timing]
    kept: Mapping[str, int] = field(default_factory=dict)

    def ratios(self) -> dict[str, float]:
        """How many times as long as ours each of the others takes."""
        mine = self.seconds[OURS].median
        return {name: each.median / mine for name, each in self.seconds.items() if name != OURS}


def ours(
    graph: tn.Graph, parameters: Mapping[str, Any] | None, inputs: tuple[Any, ...], place: Place
) -> Contestant:
    """A graph as a module with these parameters, or with drawn ones."""
    dtype = str(place.dtype).removeprefix("torch.")
    module = tn.module(graph, seed=0, params=parameters, device=place.device, dtype=dtype)
    return Contestant(module, inputs, tuple(module.parameters()))


# ---------------------------------------------------------------------------- ways of running


def _compiled(contestant: Contestant, place: Place) -> Contestant:
    return Contestant(torch.compile(contestant.function), contestant.inputs, contestant.parameters)


MODES: dict[str, Callable[[Contestant, Place], Contestant]] = {
    "eager": lambda contestant, place: contestant,
    "compile": _compiled,
}
"""How a contestant can be run."""


# ---------------------------------------------------------------------------- measuring


def measured(case: Case, place: Place, measures: tuple[str, ...], mode: str, rounds: int) -> Iterator[Row]:
    """The rows of a case: of each of these measures that it has.

    Raises:
        DisagreementError: the contestants' values are not the same.
    """
    torch._dynamo.reset()
    contestants = {name: MODES[mode](each, place) for name, each in case.build(place).items()}
    _check_agreement(case.name, {name: each.forward() for name, each in contestants.items()}, place)
    for measure in case.measures:
        if measure in measures:
            kept = {}
            if measure == "backward":
                _check_derivatives(case.name, contestants, place)
                kept = {name: each.kept() for name, each in contestants.items()}
            runs = {name: getattr(each, measure) for name, each in contestants.items()}
            yield Row(case.name, measure, mode, timings(runs, rounds, wait=place.wait), kept)


def _check_derivatives(case: str, contestants: Mapping[str, Contestant], place: Place) -> None:
    """Compares the derivatives by the inputs, which all contestants have alike."""
    found = {name: each.backward() for name, each in contestants.items()}
    asked = next(iter(contestants.values())).inputs
    for number in range(sum(each.requires_grad for each in asked)):
        _check_agreement(case, {name: each[number] for name, each in found.items()}, place)


def _check_agreement(case: str, values: Mapping[str, Any], place: Place) -> None:
    (first, mine), *others = values.items()
    for name, value in others:
        expected = value.double()
        far = float((mine.double() - expected).abs().max() / expected.abs().max())
        if not far <= CLOSE[place.dtype]:
            raise DisagreementError(f"{case}: {first} and {name} differ by {far:.1e} of the largest element")
