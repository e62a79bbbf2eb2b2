"""The command line in a process of its own: what it prints, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}
    return subprocess.run(
        [sys.executable, "-m", "tensornet", *arguments],
        input=stdin, capture_output=True, text=True, env=environment, timeout=120, check=False,
    )  # fmt: skip


def test_help_reads_well() -> None:
    done = run("--help")
    assert done.returncode == 0
    for word in ("plan", "count", "study", "calibrate", "fewest FLOPs", "handwritten"):
        assert word in done.stdout
    for command in ("plan", "count", "study", "calibrate"):
        assert "--json" in run(command, "--help").stdout


def test_plan_shows_the_plan_beside_the_others() -> None:
    done = run(
        "plan",
        "y[b,p,q] = x[b,i,j] * U[p,i] * V[q,j]",
        "--inputs",
        "x",
        "--size",
        "b=1000,i=8,j=8",
        "--size",
        "p=8,q=8",
        "--code",
    )
    assert done.returncode == 0
    for word in ("this plan:", "as written:", "fewest FLOPs:", "def forward(x, U, V):"):
        assert word in done.stdout


def test_plan_as_json_and_from_standard_input() -> None:
    done = run(
        "plan", "-", "--inputs", "x", "--size", "b=10,i=4,o=2", "--json", stdin="y[b,o] = x[b,i] * W[o,i]\n"
    )
    document = json.loads(done.stdout)
    assert document["flops"] == 160
    assert [row["name"] for row in document["alternatives"]] == ["as written", "fewest FLOPs"]


WRONG = [
    (["y[b,z] = x[b,i]", "--inputs", "x"], "axis 'z' is on the left but nowhere on the right\n  line 1: y[b,z] = x[b,i]\n              ^\nfix: the right side has i"),
    (["h[b,p] = x[b,i]*U[p,i]; y[b] = h[b,i]*v[i]", "--inputs", "x", "--size", "i=3,p=4"], "sizes disagree: axis 'i' is i = 3, but in 'h' it is p = 4\n  line 2: y[b] = h[b,i]*v[i]\n                     ^\nfix: "),
    (["y[b] = x[b,i]*v[i]", "--inputs", "x", "--size", "b=2"], "no size is given for i\n  line 1: y[b] = x[b,i]*v[i]\n                     ^\nfix: --size i=…"),
    (["y[b] = x[b,i", "--inputs", "x"], "syntax error: '[' was never closed\n  line 1: y[b] = x[b,i\n                  ^\nfix: an equation reads"),
    (["y[b] = x[b,i]", "--inputs", "x", "--size", "b"], "'b' is not AXIS=SIZE\nfix: write AXIS=SIZE"),
    (["y[b] = x[b,i]", "--inputs", "x", "--size", "b=2,i=2", "--backend", "jax"], "there is no backend 'jax'\nfix: choose one of numpy, torch, cupy"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"), WRONG, ids=["left", "disagree", "missing", "syntax", "option", "backend"]
)
def test_a_wrong_equation_ends_with_two_and_one_message(arguments: list[str], message: str) -> None:
    done = run("plan", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: {message}")
    assert "Traceback" not in done.stderr


def test_count_prints_formula_number_and_parts() -> None:
    done = run("count", "tcl", "--set", "sizes=4,4,3", "--set", "ranks=4,4,6")
    assert "parameters: i1*r1 + i2*r2 + i3*r3 = 50" in done.stdout
    document = json.loads(
        run(
            "count", "trl", "--set", "sizes=4,4", "--set", "outputs=10", "--set", "rank=2,2,3", "--json"
        ).stdout
    )
    assert document["parameters"] == 68 == sum(part["parameters"] for part in document["parts"])
    assert "tucker_to_tensor" in run("count").stdout
    assert set(json.loads(run("count", "--json").stdout)["tcl"]) == {"sizes", "ranks", "bias"}
    wrong = run("count", "tcl", "--set", "size=3")
    assert (wrong.returncode, wrong.stderr) == (
        2,
        "error: 'tcl' has no setting 'size'\nfix: its settings: sizes, ranks, bias\n",
    )


def test_calibrate_keeps_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORNET_CACHE", str(tmp_path))
    document = json.loads(run("calibrate", "--backend", "numpy", "--json").stdout)
    assert Path(document["path"]).parent == tmp_path
    assert json.loads(Path(document["path"]).read_text())["flops"] == document["flops"]
    assert run("calibrate", "--backend", "cupy").returncode == 2


def test_version() -> None:
    assert run("--version").stdout == "tensornet 0.1.0\n"
