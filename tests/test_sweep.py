"""Sweeps: what rows say is what the library says of each graph, what runs is what is asked for, tables and files."""

from __future__ import annotations

import functools
import io
import itertools
import json
import math
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

import tensornet as tn
from tensornet.cli import app
from tensornet.device.timing import Timing
from tensornet.sweeping import measuring
from tensornet.sweeping.picture import Point, front, label_points, new_figure
from tensornet.sweeping.sweeps import COLUMNS

from .conftest import normal

LINEAR = functools.partial(tn.models.linear, (4, 6), (6, 4), bias=False)
OVER: dict[str, list[Any]] = {"factorization": ["cp", "tt"], "rank": [2, 3]}
TCL = functools.partial(tn.models.tcl, (4, 4))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Callable[[], Any]]]:
    """What is timed forward, and both ways, by name; no time goes by."""
    seen: list[dict[str, Callable[[], Any]]] = []

    def timings(runs: Mapping[str, Callable[[], Any]], *_: Any, **__: Any) -> dict[str, Timing]:
        seen.append(dict(runs))
        return {name: Timing(2.0 + at, 1.0 + at, 3.0 + at) for at, name in enumerate(runs)}

    monkeypatch.setattr(measuring, "timings", timings)
    return seen


# ---------------------------------------------------------------------------- columns


def test_rows_say_what_the_library_says_of_each_graph() -> None:
    found = tn.sweep(LINEAR, over=OVER, measure=False, training=True, lead=5)
    assert [row.name for row in found] == ["cp, rank=2", "cp, rank=3", "tt, rank=2", "tt, rank=3"]
    for row in found:
        graph = LINEAR(**row.settings)
        assert row.parameters == sum(array.size for array in tn.init(graph).values())
        assert row.parameters == tn.parameter_count(graph)
        assert row.flops == tn.flop_count(graph, lead=5)
        plan = tn.plan(graph, backend="torch", compare=False, lead=5)
        assert (row.bytes, row.expected_seconds) == (plan.bytes, plan.seconds)
        trained = tn.plan(graph, backend="torch", compare=False, training=True, lead=5)
        assert row.kept == sum(size for _, size in trained.kept)
        assert row.expected_training_seconds > plan.seconds
        assert row.seconds is row.training_seconds is row.error is None
    assert found.sizes == (("lead", 5),)
    assert found.rounds == 0


def test_a_dense_layer_counts_as_one_does_by_hand() -> None:
    graph = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=8, o=4)
    row = tn.sweep({"dense": graph}, backend="numpy", measure=False, training=True, b=16)["dense"]
    assert (row.parameters, row.flops, row.bytes) == (32, 2 * 16 * 8 * 4, 4 * (16 * 8 + 32 + 16 * 4))
    assert row.kept == 0  # the backward pass reads nothing but what is given


def test_graphs_take_the_sizes_that_they_have() -> None:
    a = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=4)
    b = tn.layer("y[c,o] = x[c,i] * W[o,i]", inputs="x", i=4, o=3)
    found = tn.sweep({"a": a, "b": b}, measure=False, b=10, o=3)
    assert (found["a"].flops, found["b"].flops) == (2 * 10 * 4 * 3, 2 * 64 * 4 * 3)
    assert dict(found.sizes) == {"b": 10, "o": 3, "c": 64}
    assert found.assumed == ("c",)
    assert "b=10, o=3, c=64 (c assumed)" in found.title


def test_a_way_back_that_there_is_not_is_told() -> None:
    plain = tn.layer("y[b] = x[b,i]", inputs="x", i=4)
    row = tn.sweep({"plain": plain}, measure=False, training=True, b=2)["plain"]
    assert row.expected_training_seconds is row.kept is None
    assert row.note.startswith("no backward pass: the graph has no parameters")


def test_errors_are_those_of_the_hook() -> None:
    def error(graph: tn.Graph) -> float:
        count = tn.parameter_count(graph)
        if count == 24:
            raise tn.ShapeError("too many")
        return math.nan if count == 32 else 1 / count

    found = tn.sweep(TCL, over={"ranks": [1, 2, 3, 4]}, measure=False, error=error)
    assert [row.error for row in found] == [1 / 8, 1 / 16, None, None]
    assert [row.note for row in found] == ["", "", "no error: too many", "no error: it is not a number"]


@pytest.mark.parametrize("rank", [1, 4, 16])
def test_errors_are_those_of_the_best_factors(rank: int) -> None:
    """Against a singular value decomposition."""
    array = normal(16, 20) * np.geomspace(1, 0.01, 20)
    squares = np.linalg.svd(array, compute_uv=False) ** 2
    dense = tn.layer("y[b,o] = tanh(x[b,i] * A[o,i])", inputs="x", i=20, o=16)

    def build(rank: int) -> tn.Graph:
        return tn.substitute(dense, {"A": ("low_rank", rank)})

    def error(graph: tn.Graph) -> float:
        return tn.fit(dense, {"A": array}, graph)[1]["A"].weight

    (row,) = tn.sweep(build, over={"rank": [rank]}, error=error, measure=False)
    assert row.error == pytest.approx(np.sqrt(squares[rank:].sum() / squares.sum()), abs=1e-6)


# ---------------------------------------------------------------------------- what is swept over


def test_what_a_builder_refuses_is_a_row_that_says_why() -> None:
    found = tn.sweep(TCL, over={"ranks": [2, (2, 3), (1, 2, 3)]}, measure=False)
    assert [row.refused for row in found][:2] == ["", ""]
    assert "(1, 2, 3) is not a rank for 2 mode(s)" in found["ranks=(1, 2, 3)"].refused
    assert found["ranks=(1, 2, 3)"].parameters is None
    assert found["ranks=(2, 3)"].settings == {"ranks": (2, 3)}
    assert "ranks=(1, 2, 3) is refused: " in str(found)


def test_what_a_builder_warns_of_is_warned() -> None:
    with pytest.warns(tn.TensornetWarning, match="rank=0.001 asks for"):
        tn.sweep(LINEAR, over={"factorization": ["cp"], "rank": [0.001]}, measure=False)


def test_a_graph_as_baseline_is_a_row_more() -> None:
    dense = tn.models.linear((4, 6), (6, 4), bias=False)
    found = tn.sweep(LINEAR, over=OVER, baseline=dense, measure=False)
    assert found.rows[0].name == found.baseline == "baseline"
    assert found["baseline"].parameters == 24 * 24
    assert found.ratio(found["cp, rank=2"], "parameters") == 2 * 20 / 24**2
    assert tn.sweep(LINEAR, over=OVER, measure=False).baseline == "cp, rank=2"
    assert tn.sweep(LINEAR, over=OVER, measure=False, baseline="tt, rank=2").baseline == "tt, rank=2"


# ---------------------------------------------------------------------------- what runs


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_what_is_timed_is_the_graph_and_its_gradients(
    backend: str, runs: list[dict[str, Callable[[], Any]]]
) -> None:
    x = normal(5, 4, 6, seed=1).astype(np.float32)
    layer = tn.layer("y[b,p,q] = tanh(x[b,i,j] * U[p,i] * V[q,j])", inputs="x", i=4, j=6, p=3, q=2)
    found = tn.sweep({"layer": layer}, backend=backend, training=True, seed=1, b=5)
    forward, both = (each["layer"]() for each in runs)
    parameters = {
        name: torch.tensor(each, dtype=torch.float64) for name, each in tn.init(layer, seed=1).items()
    }
    for each in parameters.values():
        each.requires_grad_()
    y = torch.einsum("bij,pi,qj->bpq", torch.tensor(x).double(), *parameters.values()).tanh()
    expected = torch.autograd.grad(y.sum(), list(parameters.values()))
    np.testing.assert_allclose(np.asarray(forward), y.detach().numpy(), rtol=1e-4, atol=1e-6)
    gradients = both if backend == "torch" else both[1:]
    for gradient, reference in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(np.asarray(gradient), reference.numpy(), rtol=1e-4, atol=1e-5)
    row = found["layer"]
    assert (row.seconds, row.seconds_low, row.seconds_high) == (2.0, 1.0, 3.0)
    assert (row.training_seconds, row.training_seconds_low, row.training_seconds_high) == (2.0, 1.0, 3.0)
    assert found.sizes == (("b", 5),)
    assert found.rounds == 7


def test_dropout_drops_in_training_alone(runs: list[dict[str, Callable[[], Any]]]) -> None:
    layer = tn.layer("y[b,o] = dropout(x[b,i] * W[o,i], 0.5)", inputs="x", i=4, o=30)
    tn.sweep({"layer": layer}, training=True, b=8)
    forward, both = (each["layer"] for each in runs)
    assert (forward() != 0).all()
    assert any((a != b).any() for a, b in zip(both(), both(), strict=True))


def test_positions_are_zeros(runs: list[dict[str, Callable[[], Any]]]) -> None:
    layer = tn.layer("E[v,c]: parameter\ny[b,c] = E[t[b],c]", inputs="t", v=5, c=2)
    tn.sweep({"layer": layer}, seed=2, b=3)
    np.testing.assert_array_equal(runs[0]["layer"](), tn.init(layer, seed=2)["E"][[0, 0, 0]])


def test_what_cannot_run_there_is_told_and_the_others_are_timed() -> None:
    tn.register("only_numpy", numpy=lambda a: a)
    own = tn.layer("y[b,o] = only_numpy(x[b,i] * W[o,i])", inputs="x", i=4, o=3)
    found = tn.sweep({"own": own, "tcl": TCL(ranks=2)}, rounds=1)
    assert found["own"].seconds is None
    assert found["own"].refused or found["own"].note.startswith("not timed: ")
    assert found["tcl"].seconds is not None


def test_times_lie_between_their_quartiles(capfd: pytest.CaptureFixture[str]) -> None:
    found = tn.sweep(LINEAR, over=OVER, rounds=3, training=True, lead=2)
    for row in found:
        for way in ("seconds", "training_seconds"):
            low, median, high = (getattr(row, f"{way}{end}") for end in ("_low", "", "_high"))
            assert 0 < low <= median <= high
    assert "medians of 3 turns, torch" in str(found)
    assert "torch on cpu, float32, at lead=2" in str(found)
    assert capfd.readouterr() == ("", "")  # where there is no terminal


# ---------------------------------------------------------------------------- tables and files


@pytest.fixture(scope="module")
def swept() -> tn.Sweep:
    over = {"factorization": ["cp", "tt"], "rank": [2, (3,), "same"], "bias": [True, False]}
    build = functools.partial(tn.models.linear, (2, 3), (3, 2))
    return tn.sweep(build, over=over, rounds=1, training=True, lead=2, error=lambda graph: 0.5)


def test_json_holds_the_same_numbers(swept: tn.Sweep) -> None:
    assert any(row.refused for row in swept)
    assert pickle.loads(pickle.dumps(swept)) == swept
    document = json.loads(swept.json())
    assert document["rows"][0]["settings"] == {"factorization": "cp", "rank": 2, "bias": True}
    assert document["sizes"] == {"lead": 2}
    assert [{"settings": row.settings, **row.costs} for row in swept] == [
        {
            **row,
            "settings": {name: tuple(v) if isinstance(v, list) else v for name, v in row["settings"].items()},
        }
        for row in document["rows"]
    ]


def test_the_table_in_the_documents_is_of_these_graphs() -> None:
    folder = Path(__file__).parent.parent / "docs" / "results" / "linear"
    for row in json.loads((folder / "linear.json").read_text())["rows"]:
        graph = tn.models.linear((32, 32), (32, 32), bias=False, **row["settings"])
        assert row["parameters"] == tn.parameter_count(graph)
        assert f" {row['parameters']:,} " in (folder / "linear.txt").read_text()


def test_settings_of_any_kind_are_written_as_they_print() -> None:
    def build(rank: Any, parameters: Any) -> tn.Graph:
        return TCL(ranks=rank)

    over = {"rank": [np.int64(2), np.float32(0.5)], "parameters": [torch.float32]}
    found = tn.sweep(build, over=over, measure=False)
    assert found.rows[0].settings == {"rank": 2, "parameters": "torch.float32"}
    assert found.rows[1].settings["rank"] == 0.5
    assert [row["settings"] for row in json.loads(found.json())["rows"]] == [row.settings for row in found]
    assert {"setting parameters", "parameters"} <= {*found.dataframe().columns}


def test_a_frame_holds_the_same_numbers(swept: tn.Sweep) -> None:
    frame = swept.dataframe()
    for row in swept:
        assert row.refused or frame.loc[row.name, "rank"] == row.settings["rank"]
        for column in COLUMNS:
            value = frame.loc[row.name, column]
            assert (None if value is None or np.isnan(value) else value) == row.value(column)


def test_a_sweep_prints_as_a_table(swept: tn.Sweep) -> None:
    text = str(swept)
    for row in swept:
        assert f"\n {row.name} " in text
        assert not row.refused or f"{row.name} is refused: {row.refused}" in text
        assert row.parameters is None or f" {row.parameters:,} " in text
    assert "\n" not in repr(swept)


@pytest.mark.parametrize("width", [60, 100, 200])
def test_a_table_fits_where_it_is_printed(swept: tn.Sweep, width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    console.print(swept)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    rows = [line for line in lines if line.startswith(" cp, rank=2, bias=True")]
    assert (len(rows) == 1) == (width == 200)


def test_a_page_shows_names_as_they_are() -> None:
    graph = TCL(ranks=2)
    found = tn.sweep({"a<b>": graph, "c\x1b[2J": graph}, measure=False)
    assert "a&lt;b&gt;" in found._repr_html_()
    assert "<b>" not in found._repr_html_()
    assert "\x1b" not in str(found)


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("PDF", b"%PDF")])
def test_pictures_are_written(swept: tn.Sweep, tmp_path: Path, suffix: str, magic: bytes) -> None:
    path = tmp_path / f"picture.{suffix}"
    figure = swept.pareto(y="training_seconds", path=path)
    assert path.read_bytes().startswith(magic)
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_xlabel() == "parameters"
    legend = {text.get_text() for text in axes.get_legend().get_texts()}
    assert legend == {"cp", "tt", "best"}


def test_names_label_points_and_a_zero_needs_a_plain_axis() -> None:
    dense = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=8, o=4)
    found = tn.sweep({"dense": dense, "tcl": TCL(ranks=2)}, measure=False, training=True)
    (axes,) = found.pareto(y="kept").axes
    assert {text.get_text() for text in axes.texts} == {"dense", "tcl"}
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "linear")
    swept = tn.sweep(TCL, over={"ranks": [1, 4]}, baseline=dense, measure=False, b=9, lead=9)
    (axes,) = swept.pareto(y="expected_seconds").axes
    assert {text.get_text() for text in axes.texts} == {"baseline", "ranks=1", "ranks=4"}


def test_no_label_of_a_picture_lies_on_another() -> None:
    figure = new_figure((6.0, 4.0), 100)
    axes = figure.subplots()
    points = [(x, y, f"point {x}, {y}") for x in range(4) for y in range(6)]
    axes.plot(*zip(*[(x, y) for x, y, _ in points], strict=True), "o")
    label_points(axes, points, 7.0, every=False)
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) > 20
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1))
def test_no_other_beats_what_is_in_front(places: list[tuple[int, int]]) -> None:
    points = [Point(x, y, "", "") for x, y in places]

    def beaten(point: Point) -> bool:
        return any(o.x <= point.x and o.y <= point.y and (o.x, o.y) != (point.x, point.y) for o in points)

    assert set(front(points)) == {point for point in points if not beaten(point)}


def test_an_unknown_row_is_a_key_error(swept: tn.Sweep) -> None:
    with pytest.raises(KeyError, match="nothing"):
        _ = swept["nothing"]


# ---------------------------------------------------------------------------- the command


def test_the_command_sweeps(tmp_path: Path) -> None:
    picture = tmp_path / "picture.svg"
    arguments = ["sweep", "tcl", "--set", "sizes=4,4", "--over", "ranks=(2,2),3,same", "--size", "lead=7"]
    done = CliRunner().invoke(app, [*arguments, "--no-measure", "--json", "--picture", str(picture)])
    over = {"ranks": [(2, 2), 3, "same"]}
    assert done.stdout.strip() == tn.sweep(TCL, over=over, measure=False, lead=7).json()
    assert picture.stat().st_size > 1000
    shown = CliRunner().invoke(app, [*arguments, "--rounds", "1", "--backend", "numpy"])
    assert "ranks=(2, 2)" in shown.stdout
    assert "medians of 1 turn," in shown.stdout
