"""What every test shares: no calibration, one thread, a cache of their own, hypothesis profiles, the `gpu` mark."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import itertools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ["TENSORNET_CALIBRATE"] = "0"  # built-in device constants: the same plans on every machine
os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers side by side wait for each other's threads otherwise
os.environ["JAX_ENABLE_X64"] = "1"  # what NumPy computes in float64, JAX does as well
os.environ.pop("TENSORNET_CACHE", None)  # no test finds the plans of another

import hypothesis
import numpy as np
import platformdirs
import pytest

from .by_day import for_the_night

ROOT = Path(__file__).parent.parent

hypothesis.settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    max_examples=24,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)
hypothesis.settings.register_profile(
    "thorough", hypothesis.settings.get_profile("ci"), derandomize=False, max_examples=1000
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update", action="store_true", help="write what is found into the tables of tests/data"
    )
    parser.addoption("--all-day", action="store_true", help="leave out the table of tests/by_day.py")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--update") and hasattr(config, "workerinput"):
        raise pytest.UsageError("--update: processes would write over one another, use -n 0")


@pytest.fixture(autouse=True, scope="session")
def _cache_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is measured in a test is not kept for the user."""
    folder = str(tmp_path_factory.mktemp("cache"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(platformdirs, "user_cache_dir", lambda name: folder)
        yield


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Torch draws the same numbers in each test, whichever ran before."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def users_node() -> float:
    """Products of any size are planned both ways, so that small programs try what large ones do; from which users' are."""
    from tensornet.lowering import contractions

    users, contractions.NODE = contractions.NODE, 0.0
    return users


@contextlib.contextmanager
def products_from(seconds: float) -> Iterator[None]:
    """Products that take as long are planned both ways; plans by another threshold are forgotten before and after."""
    from tensornet.lowering import contractions
    from tensornet.planning import planner
    from tensornet.runtime import executable

    caches = (planner._function, planner._product, executable._made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contractions, "NODE", seconds)
        for each in caches:
            each.cache_clear()
        yield
    for each in caches:
        each.cache_clear()


@pytest.fixture(scope="module")
def users_plans(users_node: float) -> Iterator[None]:
    """The plans of this process are those of a user's, and so of the processes that a test starts."""
    with products_from(users_node):
        yield


def needs(*modules: str) -> None:
    """Skips a file where one of these is not installed; none is imported for that."""
    for each in modules:
        if importlib.util.find_spec(each) is None:
            pytest.skip(f"needs {each}", allow_module_level=True)


def _why_no_gpu() -> str:
    """Why tests marked `gpu` cannot run here; empty where they can."""
    if importlib.util.find_spec("torch") is None:
        return "needs a CUDA device: PyTorch is not installed"
    import torch

    return "" if torch.cuda.is_available() else "needs a CUDA device: torch.cuda.is_available() is False"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in () if config.getoption("--all-day") else list(for_the_night(items)):
        item.add_marker(pytest.mark.slow)
    marked = {id(item) for item in items if item.get_closest_marker("gpu")}
    reason = _why_no_gpu() if marked else ""
    if reason:
        first = {item.nodeid.partition("[")[0]: item for item in reversed(items) if id(item) in marked}
        for item in first.values():
            item.add_marker(pytest.mark.skip(reason=reason))
        kept = set(map(id, first.values()))
        config.hook.pytest_deselected(items=[each for each in items if id(each) in marked - kept])
        items[:] = [each for each in items if id(each) not in marked - kept]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What stands by then stays: the collector of garbage need not walk all libraries again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)


def examples(count: int) -> hypothesis.settings:
    """That share of 40 of the examples of the profile, for a test whose examples are slow."""
    return hypothesis.settings(max_examples=max(2, hypothesis.settings().max_examples * count // 40))


def sampled(cases: Iterable[Any], by_day: Container[Any]) -> list[Any]:
    """Cases of a test, where those that are not tried by day are `slow`."""
    return [
        case if case in by_day else pytest.param(*_tupled(case), marks=pytest.mark.slow) for case in cases
    ]


def covered(*settings: Iterable[Any]) -> list[Any]:
    """Every combination of settings, where by day each value of each setting is in one case or more."""
    lists = [list(each) for each in settings]
    longest = max(map(len, lists))
    by_day = [tuple(each[number % len(each)] for each in lists) for number in range(longest)]
    return sampled(itertools.product(*lists), by_day)


def table(name: str) -> list[list[str]]:
    """The rows of a table in `data`."""
    text = (Path(__file__).parent / "data" / name).read_text(encoding="utf-8")
    return [line.split() for line in text.splitlines() if not line.startswith("#")]


def rows(name: str) -> list[tuple[str, str]]:
    """What is written, and what is said of it, in each line of a file in `data`."""
    lines = (Path(__file__).parent / "data" / name).read_text(encoding="utf-8").splitlines()
    parts = (line.partition(" →") for line in lines if not line.startswith("#"))
    return [(text, told.strip()) for text, arrow, told in parts if arrow]


def fresh(code: str, *arguments: str, sent: Any = None, **environment: str) -> str:
    """What code prints in a new Python process, which may read a pickle from its standard input."""
    known = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, input=pickle.dumps(sent), env=known, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def _tupled(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)


def bert(kind: str = "Model") -> Any:
    """A small BERT of transformers, evaluated."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 50}
    config = transformers.BertConfig(num_hidden_layers=1, num_attention_heads=2, **sizes)
    return getattr(transformers, f"Bert{kind}")(config).eval()


def randomized(model: Any, dtype: Any) -> Any:
    """A network of torch, evaluated, and random everywhere, norms and biases too."""
    import torch

    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3 if parameter.ndim > 1 else 0.5)
    return model.to(dtype).eval()


def stacked(*calls: tuple[Any, str], inputs: str, **sizes: Any) -> Any:
    """Layers, each called under its scope on what the one before gives."""
    import tensornet as tn

    def model(x: Any) -> Any:
        for layer, scope in calls:
            x = layer(x, scope=scope)
        return x

    return tn.model(model, inputs=inputs, **sizes)


def normal(*shape: int, seed: Any = 0) -> np.ndarray:
    """An array of standard normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape)


def those_of(graph: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Of the parameters of a whole model, those that a part of it has."""
    return {leaf.name: parameters[leaf.name] for leaf in graph.parameters}


def parameters_of(graph: Any) -> dict[str, Any]:
    """Random numbers for every parameter, so that zeros hide nothing."""
    import tensornet as tn

    rng, started = np.random.default_rng(1), tn.init(graph, dtype="float64")
    return {name: 0.5 * rng.standard_normal(array.shape) for name, array in started.items()}


@pytest.fixture(scope="module")
def without_pictures() -> Iterator[None]:
    """Studies draw nothing: each picture is an empty one."""
    from tensornet.study import report
    from tensornet.study.pictures import FORMATS, PICTURES

    blank = {f"{name}.{kind}": b"<svg/>" for name in PICTURES for kind in FORMATS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "draw", lambda task, runs, tested: blank)
        yield


@pytest.fixture
def without_gradients() -> Iterator[None]:
    """Torch records none."""
    import torch

    with torch.no_grad():
        yield


@contextlib.contextmanager
def exact_perceiver(dtype: Any) -> Iterator[None]:
    """The Perceiver of transformers has positions and frequencies of a type, and not of float32."""
    import torch
    from transformers.models.perceiver import modeling_perceiver as reference

    def positions(index_dims: Any, output_range: Any = (-1.0, 1.0), device: Any = None) -> Any:
        axes = [torch.linspace(*output_range, steps, dtype=dtype) for steps in index_dims]
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)

    before = torch.get_default_dtype()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "build_linear_positions", positions)
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


@pytest.fixture
def registering() -> Iterator[None]:
    """What is registered meanwhile is forgotten."""
    from tensornet.ops.table import FUNCTIONS

    before = dict(FUNCTIONS)
    yield
    FUNCTIONS.clear()
    FUNCTIONS.update(before)


@contextlib.contextmanager
def saved_for_backward() -> Iterator[dict[int, int]]:
    """The bytes of each storage that autograd of torch saves meanwhile, by where it lies."""
    import torch

    saved: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield saved


def forked(*heavy: str) -> Any:
    """Processes that need not import these again."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*heavy])
    return context


class TookTooLongError(Exception):
    """The library did not answer within the time a person would wait."""


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    """Raises `TookTooLongError` in the block after so many seconds of a processor, where the system has alarms.

    What waits and does nothing has ten times as long: a busy machine is no fault.
    """
    if not hasattr(signal, "SIGPROF"):
        yield
        return

    def ring(number: int, frame: object) -> None:
        raise TookTooLongError(f"no answer within {seconds} s")

    timers = ((signal.ITIMER_PROF, signal.SIGPROF, 1), (signal.ITIMER_REAL, signal.SIGALRM, 10))
    before = [signal.signal(told, ring) for _, told, _ in timers]
    for timer, _, times in timers:
        signal.setitimer(timer, seconds * times)
    try:
        yield
    finally:
        for (timer, told, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(told, handler)
