"""The suites at sizes that take no time: contestants agree, tables and JSON hold what was measured."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import tensornet as tn

pytest.importorskip("tltorch")
pytest.importorskip("transformers")

import benchmarks
from benchmarks import (
    attention,
    calls,
    contractions,
    convolution,
    fitting,
    linear,
    mixture,
    model,
    models,
    pairwise,
    recurrent,
    report,
    tensor_swin,
)
from benchmarks.fitting import measured as measured_fit
from benchmarks.suite import EVERY, MEASURES, OURS, Case, Contestant, Place, Suite, foreign, measured, ours
from benchmarks.work import counted
from tensornet.contraction.order_search import fastest
from tensornet.device.cost_model import default_profile
from tensornet.device.timing import Clock, timings

from .conftest import rows, sampled

PARTS = (calls, linear, attention, mixture, recurrent, convolution, models, pairwise, tensor_swin)
SUITES = [contractions.TCL, contractions.CONTRACTIONS, *(each.SUITE for each in PARTS)]
TINY = {f"{each.name}: {case.name}": case for each in SUITES for case in each.cases["tiny"]}
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)


def rows_of(case: Case, place: Place, mode: str = "eager") -> None:
    """Measures a case, and looks at its rows."""
    found = list(measured(case, place, EVERY, mode, rounds=1, work=True))
    assert [row.failed for row in found] == [""] * len(found)
    assert [row.measure for row in found] == list(case.measures if mode != "graphs" else ["forward"])
    for row in found:
        assert len(row.seconds) > 1 or (mode, case.name) == (
            "graphs",
            "Perceiver",
        )  # theirs copies from the host
        assert next(iter(row.seconds)) == OURS
        assert row.ratios().keys() == row.seconds.keys() - {OURS}
        assert row.kept.keys() == (row.seconds.keys() if row.measure == "backward" else set())


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", sampled(TINY, [*TINY][::2]))
def test_contestants_agree(name: str, dtype: torch.dtype) -> None:
    rows_of(TINY[name], Place(dtype=dtype))


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_contestants_agree_where_torch_compiles_them(name: str) -> None:
    rows_of(TINY[name], Place(), "compile")


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["eager", "graphs", "compile"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", TINY)
def test_contestants_agree_on_a_gpu(name: str, dtype: torch.dtype, mode: str) -> None:
    rows_of(TINY[name], Place("cuda:0", dtype), mode)


def test_another_library_takes_part() -> None:
    """As CuPy does on a GPU; it is neither compiled nor differentiated."""

    def build(place: Place) -> dict[str, Contestant]:
        x = place.drawn(3, 4).requires_grad_()
        graph = tn.models.linear((4,), (2,))
        mine = ours(graph, None, (x,), place)
        named = dict(zip((leaf.name for leaf in graph.parameters), mine.parameters, strict=True))
        return {OURS: mine, "again": mine, "NumPy": foreign("numpy", graph, named, (x,))}

    case = Case("linear", build, MEASURES)
    forward, backward = measured(case, Place(), MEASURES, "eager", 1, work=True)
    assert (forward.failed, backward.failed) == ("", "")
    assert list(forward.seconds) == [OURS, "again", "NumPy"]
    assert list(backward.seconds) == list(backward.kept) == [OURS, "again"]
    assert list(forward.work) == [OURS, "again"]


# ---------------------------------------------------------------------------- the command


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def called(*arguments: str, suite: Suite = attention.SUITE) -> Any:
    return CliRunner().invoke(report.app(suite), ["--size", "tiny", "--rounds", "1", *arguments])


def test_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    found = called("--json", "--save", "--only", "CAUSAL", "--only", "cross")
    assert found.exit_code == 0
    (document,) = json.loads(found.stdout)
    (file,) = (tmp_path / "results").iterdir()
    assert json.loads(file.read_text(encoding="utf-8")) == document
    cases = [(row["case"], row["measure"]) for row in document["rows"]]
    _, causal, *_, crossed = (case.name for case in attention.SUITE.cases["tiny"])
    assert cases == [(causal, "forward"), (causal, "backward"), (crossed, "forward")]
    assert document["suite"] == "attention"
    told, own = (version.partition("+")[0] for version in (document["versions"]["torch"], torch.__version__))
    assert told == own  # a wheel may leave out for which CUDA it was built
    for row in document["rows"]:
        for timing in row["seconds"].values():
            assert 0 < timing["low"] <= timing["median"] <= timing["high"]


def test_table() -> None:
    found = called("--measure", "forward", "--work")
    assert found.exit_code == 0
    assert "× sdpa" in found.stdout
    assert "backward" not in found.stdout
    assert "against the best of these" in found.stdout
    assert "GFLOP/s in" not in found.stdout or "a large copy" in found.stdout


def beside(other: Any) -> Any:
    """What builds a sine, and something else as the other contestant."""

    def build(place: Place) -> dict[str, Contestant]:
        x = place.drawn(3)
        return {OURS: Contestant(torch.sin, (x,)), "other": Contestant(other, (x,))}

    return build


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (torch.cos, "tensornet and other differ by"),
        (lambda x: torch.sin(x)[:1], "tensornet gives (3,), other (1,)"),
        (lambda x: x / 0 - x / 0, "tensornet and other differ by nan"),
    ],
)
def test_what_disagrees_is_not_timed(other: Any, told: str) -> None:
    cases = (Case("bad", beside(other)), Case("good", beside(torch.sin)))
    suite = Suite("suite", "title", {"tiny": cases})
    found = called(suite=suite)
    assert found.exit_code == 1
    assert f"bad, forward, eager: DisagreementError: {told}" in found.stdout
    (document,) = json.loads(called("--json", suite=suite).stdout)
    assert [bool(row["failed"]) for row in document["rows"]] == [True, False]
    assert document["rows"][0]["seconds"] == {}


def test_derivatives_that_disagree_are_not_timed() -> None:
    def build(place: Place) -> dict[str, Contestant]:
        x = place.drawn(3).requires_grad_()
        return {OURS: Contestant(torch.square, (x,)), "other": Contestant(lambda x: x * x.detach(), (x,))}

    case = Case("square", build, MEASURES)
    forward, backward = measured(case, Place(), MEASURES, "eager", 1)
    assert not forward.failed
    assert "differ by 1.0e+00" in backward.failed


@pytest.mark.parametrize(("arguments", "told"), rows("wrong_options.txt"))
def test_wrong_options(arguments: str, told: str) -> None:
    found = called(*arguments.split())
    assert found.exit_code == 2
    assert told in " ".join(found.stderr.replace("│", " ").split())


# ---------------------------------------------------------------------------- what is counted


def test_work_is_counted() -> None:
    a, b = torch.zeros(8, 16), torch.zeros(16, 4)
    found = counted(lambda: (a @ b).T)
    assert (found.calls, found.views, found.flops) == (1, 1, 2 * 8 * 16 * 4)
    assert found.moved == 4 * (8 * 16 + 16 * 4 + 8 * 4)
    broadcast = counted(lambda: torch.zeros(5).expand(7, 5) + 1)
    assert broadcast.moved == 4 * (5 + 5 + 7 * 5)  # zeros written, read, and the sum written
    q = torch.zeros(2, 3, 5, 8)
    attended = counted(lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q))
    assert attended.flops == 2 * (2 * 2 * 3 * 5 * 5 * 8)


def test_kept_bytes_are_counted_once_and_without_parameters() -> None:
    x, W = torch.zeros(6, 8, requires_grad=True), torch.zeros(8, 8, requires_grad=True)

    def run(x: torch.Tensor) -> torch.Tensor:
        y = x @ W  # keeps x
        return torch.exp(y) + (x @ W).sum()  # keeps the exponential, and x again

    assert Contestant(run, (x,), (W,)).kept() == 4 * (6 * 8 + 6 * 8)


def test_contestants_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensornet.device.timing.SHORTEST", 0.0)  # so that no run is repeated within a sample
    order: list[str] = []
    waits: list[int] = []
    names = ("a", "b", "c")
    runs = {name: partial(order.append, name) for name in names}
    found = timings(runs, 3, 1, Clock(wait=lambda *_: waits.append(len(order))))
    assert list(found) == list(names)
    assert "".join(order) == "abc" + "abc" + "bca" + "cab"
    assert waits == [each for number in range(len(order)) for each in (number, number + 1)]


def test_a_short_run_is_repeated_within_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))  # at each look a second later
    monkeypatch.setattr("tensornet.device.timing.SHORTEST", 3.0)
    ran: list[None] = []
    found = timings({"a": lambda: ran.append(None)}, 2, 1, Clock(lambda: next(clock)))
    assert len(ran) == 1 + 2 * 3
    assert found["a"].median == pytest.approx(1 / 3)  # a sample takes a second, and has three runs


@pytest.mark.parametrize("case", fitting.CASES["tiny"], ids=lambda case: case.kind)
def test_fits_are_no_worse_than_those_of_tensorly(case: fitting.Case) -> None:
    pytest.importorskip("tensorly")
    found = measured_fit(case, 1)
    assert found["tensornet"][0] <= 1.001 * found["tensorly"][0]


@pytest.mark.parametrize("name", [each.name for each in pkgutil.iter_modules(benchmarks.__path__)])
def test_a_benchmark_finds_all_that_it_imports(name: str) -> None:
    if name != "__main__":
        importlib.import_module(f"benchmarks.{name}")


def test_the_benchmark_of_the_cost_model_compiles_a_contraction() -> None:
    graph = tn.layer("y[b,o] = x[b,i] * w[i,r] * v[r,o]", inputs="x w v", b=4, i=3, r=2, o=5)
    run, source, seconds = model.compiled(graph, fastest, default_profile("cpu"))
    x, w, v = (torch.ones(shape) for shape in ((4, 3), (3, 2), (2, 5)))
    assert "matmul" in source
    assert seconds > 0
    torch.testing.assert_close(run(x, w, v), torch.full((4, 5), 6.0))
