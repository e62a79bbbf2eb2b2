"""What a suite is, and how one is measured: cases as data, contestants that must agree, rows of what was found."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

import tensornet as tn
from tensornet.device.timing import Clock, Timing, timings

from .work import Work, counted

__all__ = [
    "CLOSE",
    "EVERY",
    "MEASURES",
    "MODES",
    "OURS",
    "SIZES",
    "Case",
    "Contestant",
    "Place",
    "Row",
    "Suite",
    "foreign",
    "measured",
    "on_cupy",
    "ours",
]

OURS = "tensornet"
MEASURES = ("forward", "backward")
EVERY = (*MEASURES, "step")
SIZES = ("usual", "tiny", "large")

CLOSE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.06, torch.float16: 0.02}
"""How far two contestants may be apart, as a share of the largest element; positions of transformers are of
float32 in every type."""


class DisagreementError(Exception):
    """Two contestants compute different things, so that their times say nothing."""


@dataclass(frozen=True)
class Place:
    """Where a suite runs, in which type, and how its time is read.

    Attributes:
        device: as torch names it.
        dtype: of weights, inputs and results.
        alone: whether only time that this process had the processor counts, where others use it too.
    """

    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    alone: bool = False

    @property
    def cuda(self) -> bool:
        """Whether this is a GPU, where a call returns before its work is done."""
        return torch.device(self.device).type == "cuda"

    @property
    def type_name(self) -> str:
        """The type as it is written."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def clock(self) -> Clock:
        """How time is read here."""
        if self.cuda:
            return Clock(wait=lambda *_: torch.cuda.synchronize(self.device))
        return Clock(time.process_time) if self.alone else Clock()

    def drawn(self, *shape: int, seed: int = 0, std: float = 1.0) -> torch.Tensor:
        """Random numbers, the same on every device."""
        draw = torch.Generator().manual_seed(seed)
        return (std * torch.randn(shape, generator=draw)).to(self.device, self.dtype)


@dataclass(frozen=True)
class Contestant:
    """A function of tensors to one tensor, with what it is called on and the parameters that it holds.

    Attributes:
        function: of the inputs alone.
        inputs: those that ask for a gradient get one in `backward`.
        parameters: what gets a gradient besides, and is not counted as kept.
        foreign: whether another library than torch runs it, which compiles, captures and counts nothing.
    """

    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    parameters: tuple[torch.Tensor, ...] = ()
    foreign: bool = False

    def forward(self) -> Any:
        """Its value, without a graph of derivatives."""
        with torch.no_grad():
            return self.function(*self.inputs)

    def backward(self, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Forward, then the derivatives by the inputs that ask for one and by the parameters.

        Args:
            gradient: that of the result, which comes from the layers behind.
        """
        y = self.function(*self.inputs)
        by = [each for each in (*self.inputs, *self.parameters) if each.requires_grad]
        return torch.autograd.grad(y, by, gradient, allow_unused=True)

    def step(self, gradient: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
        """A step of training: both ways, the optimizer, and the gradients are dropped."""
        self.function(*self.inputs).backward(gradient)
        optimizer.step()
        optimizer.zero_grad()

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
        del y  # which holds what is kept alive until here, so that no place is taken twice
        return sum(size for at, size in found.items() if at not in own)


@dataclass(frozen=True)
class Case:
    """A line of a suite.

    Attributes:
        name: what it is, in words and sizes.
        build: makes the contestants, ours first, each on the same numbers.
        measures: what is timed: "forward", "backward", which is both ways, and "step", both ways and AdamW.
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
        cases: by size, of `SIZES`: what `make bench` measures on a processor, the same at sizes that take no
            time, to see that all run and agree, and at sizes that keep a GPU busy.
    """

    name: str
    title: str
    cases: Mapping[str, tuple[Case, ...]]


@dataclass(frozen=True)
class Row:
    """What was found of a case.

    Attributes:
        case: its name.
        measure: "forward", "backward" or "step".
        mode: how it was run, a name of `MODES`.
        seconds: by contestant.
        kept: bytes from forward to backward, by contestant, where backward was measured.
        work: what each contestant asks of torch; not known of what torch.compile makes of it.
        failed: why nothing else is here.
    """

    case: str
    measure: str
    mode: str
    seconds: Mapping[str, Timing] = field(default_factory=dict)
    kept: Mapping[str, int] = field(default_factory=dict)
    work: Mapping[str, Work] = field(default_factory=dict)
    failed: str = ""

    def ratios(self) -> dict[str, float]:
        """How many times as long as ours each of the others takes."""
        return {
            name: each.median / self.seconds[OURS].median
            for name, each in self.seconds.items()
            if name != OURS
        }


def ours(
    graph: tn.Graph, parameters: Mapping[str, Any] | None, inputs: tuple[Any, ...], place: Place
) -> Contestant:
    """A graph as a module with these parameters, or with drawn ones."""
    module = tn.module(graph, seed=0, params=parameters, device=place.device, dtype=place.type_name)
    return Contestant(module, inputs, tuple(module.parameters()))


def on_cupy(
    graph: tn.Graph, parameters: Mapping[str, torch.Tensor], inputs: tuple[torch.Tensor, ...], place: Place
) -> dict[str, Contestant]:
    """The graph on CuPy, where it is installed and has the type."""
    if not place.cuda or place.dtype == torch.bfloat16 or importlib.util.find_spec("cupy") is None:
        return {}
    return {f"{OURS}, CuPy": foreign("cupy", graph, parameters, inputs)}


def foreign(
    backend: str, graph: tn.Graph, parameters: Mapping[str, torch.Tensor], inputs: tuple[torch.Tensor, ...]
) -> Contestant:
    """The graph on another library than torch; what is given crosses over once, the result at each call."""
    held = tn.to_backend({name: each.detach() for name, each in parameters.items()}, backend)
    given = tn.to_backend({str(at): each.detach() for at, each in enumerate(inputs)}, backend)
    run, arguments = tn.compile(graph, backend=backend, params=held), tuple(given.values())
    return Contestant(lambda *_: from_dlpack(run(*arguments)), inputs, foreign=True)


# ---------------------------------------------------------------------------- ways of running


def _compiled(contestant: Contestant) -> Contestant:
    return replace(contestant, function=torch.compile(contestant.function))


def _captured(contestant: Contestant) -> Contestant:
    """Forward as a CUDA graph: what was launched once is launched again as a whole."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # where a first call plans and sets libraries up
        for _ in range(3):
            contestant.forward()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = contestant.forward()

    def replay(*_: Any) -> Any:
        graph.replay()
        return y

    return replace(contestant, function=replay)


MODES: dict[str, Callable[[Contestant], Contestant]] = {
    "eager": lambda contestant: contestant,
    "graphs": _captured,
    "compile": _compiled,
}
"""How a contestant is run: call by call, as a CUDA graph (forward alone), under `torch.compile`."""


# ---------------------------------------------------------------------------- measuring


def measured(
    case: Case, place: Place, measures: tuple[str, ...], mode: str, rounds: int, work: bool = False
) -> Iterator[Row]:
    """The rows of a case: of each of these measures that it has, or one that says why there is none."""
    if mode == "compile":
        torch._dynamo.reset()  # else what was compiled of other cases counts against the limit of this one
    asked = [measure for measure in case.measures if measure in measures]
    asked = [measure for measure in asked if mode != "graphs" or measure == "forward"]
    measure = "forward"
    if place.cuda and torch.get_float32_matmul_precision() == "highest":
        torch.backends.cudnn.allow_tf32 = False  # else convolutions alone are computed to fewer digits
    try:
        plain = case.build(place)
        running = _running(plain, mode)
        _check_values({name: each.forward() for name, each in running.items()}, place)
        for measure in asked:
            yield _row(case.name, measure, mode, plain, running, place, rounds, work)
    except Exception as error:  # of one of many libraries; the other cases are measured all the same
        yield Row(case.name, measure, mode, failed=f"{type(error).__name__}: {str(error).strip()}")


def _running(plain: Mapping[str, Contestant], mode: str) -> dict[str, Contestant]:
    """The contestants as they are run in a mode; without those of others that cannot be part of a CUDA graph, for
    they copy from the host."""
    running = {}
    for name, each in plain.items():
        if mode == "eager" or not each.foreign:
            try:
                running[name] = MODES[mode](each)
            except RuntimeError:
                if mode != "graphs" or name == OURS:
                    raise
    return running


def _row(
    case: str,
    measure: str,
    mode: str,
    plain: Mapping[str, Contestant],
    running: Mapping[str, Contestant],
    place: Place,
    rounds: int,
    work: bool,
) -> Row:
    kept = {}
    given: tuple[torch.Tensor, ...] = ()
    if measure != "forward":
        running = {name: each for name, each in running.items() if not each.foreign}
        result = next(iter(running.values())).forward()
        given = (torch.ones(result.shape, dtype=result.dtype, device=result.device),)  # in nobody's own order
        _check_derivatives(running, given[0], place)
        if measure == "backward":
            kept = {name: each.kept() for name, each in running.items()}
    found = timings(_runs(running, measure, given), rounds, clock=place.clock)
    counting = plain if work and mode != "compile" else {}
    native = {name: each for name, each in counting.items() if not each.foreign}
    done = {name: counted(run) for name, run in _runs(native, measure, given).items()}
    return Row(case, measure, mode, found, kept, done)


def _runs(
    contestants: Mapping[str, Contestant], measure: str, given: tuple[torch.Tensor, ...]
) -> dict[str, Callable[[], Any]]:
    """What is timed. A step is one of AdamW at a rate of 0, which leaves the parameters as they are."""
    runs = {}
    for name, each in contestants.items():
        more = (torch.optim.AdamW(each.parameters, lr=0.0, fused=True),) if measure == "step" else ()
        runs[name] = partial(getattr(each, measure), *given, *more)
    return runs


def _check_derivatives(contestants: Mapping[str, Contestant], gradient: torch.Tensor, place: Place) -> None:
    """Compares the derivatives by the inputs, which all contestants have alike."""
    found = {name: each.backward(gradient) for name, each in contestants.items()}
    asked = next(iter(contestants.values())).inputs
    for number in range(sum(each.requires_grad for each in asked)):
        _check_values({name: each[number] for name, each in found.items()}, place)


def _check_values(values: Mapping[str, Any], place: Place) -> None:
    """Compares what the contestants give.

    Raises:
        DisagreementError: two are not the same.
    """
    (first, mine), *others = values.items()
    for name, value in others:
        if mine.shape != value.shape:
            raise DisagreementError(f"{first} gives {tuple(mine.shape)}, {name} {tuple(value.shape)}")
        expected = value.double()
        far = float((mine.double() - expected).abs().max() / expected.abs().max())
        if not far <= CLOSE[place.dtype]:
            raise DisagreementError(f"{first} and {name} differ by {far:.1e} of the largest element")
