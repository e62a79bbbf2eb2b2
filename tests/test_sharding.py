"""Graphs on several devices: placements, what is sent, processes."""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet.sharding import sharded as made
from tensornet.sharding.mesh import PARTIAL, REPLICATED, VARYING, Mesh, Move, Placement, local_shape, route
from tensornet.sharding.part import Part, part_of
from tensornet.sharding.search import CostTable, eliminated
from tensornet.sharding.sharded import collectives_of

from .conftest import ROOT, forked, fresh
from .pages import run_blocks

# ---------------------------------------------------------------------------- Sharding by axis name


LINKS = {"model": (450e9, 3e-6), "data": (25e9, 1e-5)}

# ---------------------------------------------------------------------------- collectives, simulated

Devices = dict[tuple[int, ...], np.ndarray]


def placed(x: np.ndarray, place: Placement, mesh: Sequence[int]) -> Devices:
    """The part of a tensor on each device."""
    found: Devices = {}
    for at in itertools.product(*map(range, mesh)):
        own = x
        for n, each in enumerate(place):
            if isinstance(each, int):
                own = np.split(own, mesh[n], each)[at[n]]
            elif each == PARTIAL:  # terms that differ, and add up
                weights = [1.0 + k for k in range(mesh[n])]
                own = own * weights[at[n]] / sum(weights)
        found[at] = own
    return found


def moved(parts: Devices, move: Move, mesh: Sequence[int]) -> Devices:
    """What a collective makes of the parts, by what its name means."""
    found: Devices = {}
    for at in parts:
        line = [parts[(*at[: move.axis], k, *at[move.axis + 1 :])] for k in range(mesh[move.axis])]
        mine, here = parts[at], at[move.axis]
        match move.name:
            case "all_reduce":
                found[at] = sum(line)  # type: ignore[assignment]
            case "vary":
                found[at] = mine
            case "all_gather" | "all_gather_invariant":
                found[at] = np.concatenate(line, move.dim)
            case "reduce_scatter":
                found[at] = np.split(sum(line), mesh[move.axis], move.dim)[here]  # type: ignore[arg-type]
            case "shard":
                found[at] = np.split(mine, mesh[move.axis], move.dim)[here]
            case "all_to_all":
                pieces = [np.split(each, mesh[move.axis], move.other)[here] for each in line]
                found[at] = np.concatenate(pieces, move.dim)
    return found


def alike(a: np.ndarray, b: np.ndarray) -> bool:
    """As `numpy.allclose` says of finite numbers."""
    return a.shape == b.shape and bool((abs(a - b) <= 1e-8 + 1e-5 * abs(b)).all())


def test_collectives_lead_from_each_placement_to_each_other() -> None:
    mesh, x = (2, 3, 2), np.random.default_rng(0).random((12, 24))
    places = [REPLICATED, PARTIAL, VARYING, 0, 1]
    at_rest = {place: placed(x, place, mesh) for place in itertools.product(places, repeat=3)}
    wrong, impossible = [], 0
    for given, asked in itertools.product(itertools.product(places, repeat=3), repeat=2):
        moves = route(given, asked)
        if moves is None:
            impossible += 1
            assert any(b != a and (a == VARYING or b == PARTIAL) for a, b in zip(given, asked, strict=True))
            continue
        parts = at_rest[given]
        for move in moves:
            parts = moved(parts, move, mesh)
        expected = at_rest[asked]
        wrong += [(given, asked)] * (not all(alike(parts[at], expected[at]) for at in parts))
    assert not wrong
    assert impossible < 12000


# ---------------------------------------------------------------------------- the search


def test_elimination_finds_the_least_sum() -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        sizes = {n: int(draw.integers(1, 4)) for n in range(6)}
        scopes = [tuple(map(int, draw.choice(6, draw.integers(1, 4), replace=False))) for _ in range(7)]
        tables = [CostTable(scope, draw.random([sizes[n] for n in scope])) for scope in scopes]

        def cost(chosen: Sequence[int]) -> float:
            return sum(float(table.costs[tuple(chosen[n] for n in table.variables)]) for table in tables)  # noqa: B023

        every = list(itertools.product(*(range(sizes[n]) for n in range(6))))
        solved = eliminated(sizes, tables, (2, 5))
        for two, five in itertools.product(range(sizes[2]), range(sizes[5])):
            least = min(cost(chosen) for chosen in every if chosen[2] == two and chosen[5] == five)
            assert math.isclose(solved.table.costs[two, five], least)
            found = solved.choices({2: two, 5: five})
            assert math.isclose(cost([found[n] for n in range(6)]), least)


SMALL = {
    "mlp": (
        "h[b,f] = gelu(x[b,c] * W[f,c])\ny[b,o] = h[b,f] * V[o,f]",
        {"b": 4096, "c": 1024, "f": 4096, "o": 1024},
    ),
    "shared": (
        "p[b,f] = x[b,c] * W[f,c]\nq[b,f] = x[b,c] * V[f,c]\ny[b,f] = p * q",
        {"b": 512, "c": 4096, "f": 4096},
    ),
    "norm": ("n[b,c] = normalize[c](x[b,c])\ny[b,o] = n * W[o,c] + u[o]", {"b": 64, "c": 4096, "o": 8192}),
}


def priced(part: Part, chosen: dict[Any, Any]) -> float:
    """The time of some choices: that of each node, and of each collective once, whoever needs its result."""
    total = sum(
        float(table.costs[chosen[table.variables[0]]]) for table in part.tables if len(table.variables) == 1
    )
    for each, readers in part.readers.items():
        given = part.outs(each)[chosen[each]]
        needs = {places[chosen[reader]] for reader, places in readers}
        total += sum(part.conversion(each, given, need) for need in needs)
    return total


@pytest.mark.parametrize("name", SMALL)
def test_the_search_is_as_good_as_trying_all(name: str) -> None:
    text, sizes = SMALL[name]
    graph = tn.layer(text, inputs="x", **sizes)
    mesh = Mesh.of({"model": 8}, LINKS and {"model": LINKS["model"]})
    leaves = frozenset(leaf.name for leaf in graph.parameters)
    part = part_of(made.in_numbers(graph, {}), mesh, made.Asked(None, ()), leaves, 4)
    tables = [*part.tables, *made._inputs(part)]
    forbidden = {table.variables[0]: table.costs for table in made._inputs(part)}
    free = [each for each in part.choices if not (isinstance(each, tuple) and each[0] == "sent")]

    def every() -> Iterator[float]:
        for chosen in itertools.product(*(range(len(part.choices[each])) for each in free)):
            told = dict(zip(free, chosen, strict=True))
            if not any(math.isinf(costs[told[each]]) for each, costs in forbidden.items()):
                yield priced(part, told)

    used = {each for table in tables for each in table.variables}
    solved = eliminated({each: len(part.choices[each]) for each in used}, tables)
    found = priced(part, solved.choices({}))
    assert found <= 1.01 * min(every())


# ---------------------------------------------------------------------------- plans


def test_a_plan_says_what_is_sent() -> None:
    text = "h[b,f] = gelu(x[b,c] * W[f,c])\ny[b,o] = h[b,f] * V[o,f]"
    layer = tn.layer(text, inputs="x", c=1024, f=4096, o=1024)
    plan = tn.plan(
        layer, mesh={"data": 4, "model": 2}, shard={"b": "data", "f": "model"}, links=LINKS, b=65536
    )
    lines = str(plan).splitlines()
    assert lines[:4] == [
        *("plan for 8 devices, data=4 × model=2, float32", "  x[b:data,c]"),
        *("  W[f:model,c]", "  V[o,f:model]"),
    ]
    found = {(each.name, each.axis, each.backward): each for each in plan.collectives}
    sharp, half = 65536 // 4 * 1024 * 4, 1024 * 2048 * 4
    assert found["all_reduce", "model", False].bytes == sharp
    assert found["all_reduce", "data", True].bytes == 2 * 3 / 4 * half
    assert found["all_reduce", "model", False].seconds == pytest.approx(3e-6 + sharp / 450e9)
    assert plan.memory == 2 * half
    steps = [step for step in plan.local.steps if "all_reduce" in str(step.equation)]
    assert [(step.bytes, step.seconds) for step in steps] == [(sharp, pytest.approx(3e-6 + sharp / 450e9))]


def test_truth_values_are_sent_as_bytes() -> None:
    text = "y[(r,b),c] = all_gather[r](x[b,c] != 0, mesh=0)\nz[(r,b),c] = all_gather[r](x[b,c], mesh=0)"
    graph = tn.layer(text, inputs="x", outputs="y,z", r=2, b=4, c=3)
    found = collectives_of(graph, Mesh.of({"model": 2}), 8, frozenset())
    assert {each.of: each.bytes for each in found} == {"x[b,c] != 0": 12.0, "x[b,c]": 96.0}


def test_options_of_a_plan_are_followed_on_a_mesh_or_refused() -> None:
    layer = tn.layer("h[b,f] = gelu(x[b,c] * W[f,c])\ny[b,o] = h[b,f] * V[o,f]", inputs="x", c=8, f=16, o=8)
    told: dict[str, Any] = {"mesh": {"data": 2, "model": 2}, "shard": {"b": "data", "f": "model"}, "b": 8}
    plan = tn.plan(layer, **told, training=True, compare=False)
    kept = 4 * 8 * 4  # gelu keeps its operand, and the second product its result, each 4 by 8 here
    assert sum(size for _, size in plan.local.kept) in (kept, 2 * kept)
    results = 4 * 8 * 4
    assert plan.training_memory == 4 * plan.memory + results + sum(size for _, size in plan.local.kept)
    assert plan.local.alternatives == ()
    for name, value in {"tune": "measure", "trace": True}.items():
        with pytest.raises(
            tn.BackendError, match=f"{name}={value!r} is for one device, and mesh= has several"
        ):
            tn.plan(layer, **told, **{name: value})


def test_a_limit_of_memory_is_that_of_each_device() -> None:
    layer = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=64, o=64)
    told: dict[str, Any] = {"mesh": {"data": 4}, "shard": {"b": "data"}, "b": 64}
    needed = tn.plan(layer, **told).local.peak_memory
    assert needed < tn.plan(layer, b=64).peak_memory
    assert tn.plan(layer, **told, memory_limit=needed).local.peak_memory == needed
    with pytest.raises(
        tn.BackendError, match=f"needs {needed:,} bytes at once, and memory_limit is {needed - 1:,}"
    ):
        _ = tn.plan(layer, **told, memory_limit=needed - 1).local


def test_the_program_of_each_device_prints_as_equations() -> None:
    """Megatron's f and g: a copy whose gradients are added up, and a sum whose gradient is a copy."""
    layer = tn.layer(
        "h[b,f] = gelu(x[b,c] * W[f,c])\ny[b,o] = h[b,f] * V[o,f]", inputs="x", b=4, c=4, f=8, o=3
    )
    local = made.shard_graph(layer, {"model": 2}, {"f": "model"}, wrt=["x", "W", "V"]).local
    assert local.lines() == [
        "h[b,f] = gelu(vary(x[b,c], mesh=0) * W[f,c])",
        "y[b,o] = h[b,f] * V[o,f]",
        "y.sent[b,o] = all_reduce(y[b,o], mesh=0)",
    ]
    assert tn.Graph.from_json(local.to_json()) == local
    back = tn.gradient(local, wrt=["x", "W"])
    assert any("all_reduce" in line and line.startswith("x.grad") for line in back.lines())
    assert not any("all_reduce" in line for line in back.lines() if line.startswith("W.grad"))


def test_llama_is_divided_as_by_megatron() -> None:
    """Sequence and tensor parallelism: two gathers and two scatters of a layer's tokens forward, as many backward."""
    llama = tn.models.llama(128256, 4096, 32, 32, 14336, groups=8)
    plan = tn.plan(llama, mesh={"data": 8, "model": 8}, links=LINKS, dtype="bfloat16", b=64, n=4096)
    share = 64 // 8 * 4096 * 4096 * 2 * 7 / 8
    times = {
        (kind, backward): sum(
            n
            for each, n in plan.collectives.items()
            if each.axis == "model"
            and each.name.startswith(kind)
            and each.backward is backward
            and each.bytes == share
        )
        for kind, backward in itertools.product(("all_gather", "reduce_scatter"), (False, True))
    }
    assert times == {
        ("all_gather", False): 65, ("reduce_scatter", False): 64, ("all_gather", True): 64, ("reduce_scatter", True): 65,
    }  # fmt: skip
    assert plan.memory < 1.2 * tn.parameter_count(llama) * 2 / 64 * 2


def test_blocks_are_divided_by_pattern() -> None:
    vit = tn.models.vit(16, 4, 32, 2, 4, 64, 10)
    found = made.shard_graph(vit, {"model": 2}, {"blocks.*.mlp": {"f": "model"}}).places
    divided = sorted(name for name, place in found.items() if place != (REPLICATED,))
    assert divided == [f"blocks.{n}.mlp.{name}" for n in range(2) for name in ("W1", "W2", "b1")]


GUIDE = (ROOT / "docs" / "guides" / "sharding.md").read_text(encoding="utf-8").partition("## Train")
"""What needs no device, and what takes several processes."""


def test_the_plan_of_the_guide_prints_as_there() -> None:
    assert run_blocks(GUIDE[0], "sharding.md")[1] == 1


@pytest.mark.slow
def test_the_script_of_the_guide_trains_on_two_processes(tmp_path: Path) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", GUIDE[2], re.S)
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    run(tmp_path, 2, script=tmp_path / "script.py")


def test_shapes_of_parts() -> None:
    assert local_shape((8, 6), (0, 1), (2, 3)) == (4, 2)
    assert local_shape((8, 6), (0, 0), (2, 2)) == (2, 6)


# ---------------------------------------------------------------------------- several processes


def run(folder: Path, count: int, *arguments: str, script: Path | None = None, fails: bool = False) -> str:
    """Runs the worker, or a script, on several processes, one of which may have to fail; what they print."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    command += [str(script)] if script is not None else ["-m", "tests.sharding_worker"]
    done = subprocess.run(
        [*command, *arguments], cwd=ROOT if script is None else folder,
        capture_output=True, text=True, timeout=7200, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TENSORNET_CALIBRATE": "0", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.returncode != 0) == fails, done.stdout[-1000:] + done.stderr[-4000:]
    return done.stdout + (done.stderr if fails else "")


NAMES = (
    *("tensor_train", "llama", "transformer", "vit", "perceiver", "xlnet", "tensor_swin", "mixture", "lstm"),
)


def smoke(rank: int, folder: Path) -> None:
    from tests.sharding_worker import started

    started("smoke", init_method=f"file://{folder}/store", rank=rank, world_size=2)


def test_two_processes_move_what_the_plan_says(tmp_path: Path) -> None:
    start = functools.partial(forked("tests.sharding_worker").Process, target=smoke, daemon=True)
    processes = [start(args=(rank, tmp_path)) for rank in range(2)]
    for each in processes:
        each.start()
    for each in processes:
        each.join(300)
    assert [each.exitcode for each in processes] == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_processes_train_as_one(count: int, tmp_path: Path) -> None:
    found = run(tmp_path, count, "models", *NAMES)
    assert {line.split()[0] for line in found.splitlines() if "gradients" in line} == {*NAMES}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_random_programs_in_random_placements(seed: int, tmp_path: Path) -> None:
    run(tmp_path, 4, "programs", str(seed), "150")


@pytest.mark.slow
def test_models_move_and_hold_what_their_plans_say(tmp_path: Path) -> None:
    found = run(tmp_path, 4, "bytes_of_models", *NAMES)
    shares = re.findall(r"(\w+) .* ([\d.]+) of the memory", found)
    assert {name for name, _ in shares} == {*NAMES}
    assert max(abs(float(share) - 1) for _, share in shares) < 0.1, found


@pytest.mark.slow
def test_a_killed_run_goes_on_with_fewer_processes(tmp_path: Path) -> None:
    """From the last checkpoint, to the losses of a run of one process that nothing stops."""
    parts = str(tmp_path / "parts")
    whole = run(tmp_path, 1, "trained", str(tmp_path / "whole"), "6")
    found = run(tmp_path, 4, "trained", parts, "6", "2", fails=True)
    found += run(tmp_path, 2, "trained", parts, "6", "4", fails=True)
    found += run(tmp_path, 1, "trained", parts, "6")
    losses = [re.findall(r"loss (\d+) (.+)", each) for each in (whole, found)]
    assert [n for n, _ in losses[1]] == [n for n, _ in losses[0]] == [str(n) for n in range(6)]
    expected, mended = ([float(loss) for _, loss in each] for each in losses)
    assert mended == pytest.approx(expected, rel=1e-9)


STUDIED = """
import functools, os, signal, sys
from tensornet.cli import main
from tensornet.study import jobs
from tensornet.study.training import TrainingRun

dies, *command = sys.argv[1:]
advance, jobs.train = TrainingRun.advance, functools.partial(jobs.train, every=0.0)


def advance_or_die(run):
    if str(run.step) == dies and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    advance(run)


TrainingRun.advance, sys.argv = advance_or_die, ["tensornet", *command]
main()
"""


@pytest.mark.slow
def test_a_killed_study_goes_on_with_fewer_processes(tmp_path: Path) -> None:
    """To the losses of a study that nothing stops, in training and in training what is compressed of that."""
    shutil.copy(ROOT / "tests" / "data" / "sharded.toml", tmp_path / "mine.toml")
    (tmp_path / "script.py").write_text(STUDIED, encoding="utf-8")
    divide = ["--shard=b=data", "--shard=h=model", "--shard=f=model"]

    def study(folder: str, dies: str = "", *options: str, **mesh: int) -> str:
        axes = ",".join(f"{name}={size}" for name, size in mesh.items())
        command = [dies, "study", "mine.toml", "--no-measure", f"--out={folder}", *options]
        command += [f"--mesh={axes}", *divide] if mesh else []
        count, script = math.prod(mesh.values()), tmp_path / "script.py"
        return run(tmp_path, count, *command, script=script, fails=bool(dies))

    def losses(document: str) -> list[list[float]]:
        return [[epoch["train_loss"] for epoch in row["history"]] for row in json.loads(document)["results"]]

    study("whole")
    whole = losses((tmp_path / "whole" / "results.json").read_text("utf-8"))
    assert [len(each) for each in whole] == [2, 1]
    study("parts", "5", data=2, model=2)
    study("parts", "14", data=1, model=2)
    assert "vit: goes on after step 14 of 22" in study("parts", data=1, model=1)
    mended = losses(study("parts", "", "--json", data=2, model=1))  # all is kept, and one process prints
    assert mended == [pytest.approx(each, rel=1e-5) for each in whole]


@pytest.mark.slow
def test_fully_shard_and_compile_take_a_module_on_a_mesh(tmp_path: Path) -> None:
    run(tmp_path, 4, "composed")


@pytest.mark.slow
def test_a_wrong_position_on_one_process_ends_all(tmp_path: Path) -> None:
    began = time.monotonic()
    said = run(tmp_path, 2, "strayed", fails=True)
    assert re.search("holds the position 9.*, on process 1 of 2", said)
    assert (
        time.monotonic() - began < 300
    )  # and not at the end of the timeout of a collective, of half an hour


# ---------------------------------------------------------------------------- JAX

ON_JAX = """
import sys
import jax, numpy as np, torch
import tensornet as tn
from tests.sharding_worker import FREE, MODELS, ways

mesh = jax.make_mesh((4, 2), ("data", "model"))
make, given, _ = MODELS[sys.argv[1]]
graph = make()
torch.set_default_dtype(torch.float64)
inputs = [jax.numpy.asarray(one(torch.Generator().manual_seed(n)).numpy()) for n, one in enumerate(given)]
draw = np.random.default_rng(0)  # so that no parameter is 0
params = {k: v + 0.1 * draw.normal(size=v.shape) for k, v in tn.init(graph, seed=0, backend="jax", dtype="float64").items()}
alone = tn.compile(graph, backend="jax")


def outputs(run):
    return lambda params: jax.tree.leaves(run(params, *inputs))


def loss(run):
    return lambda params: sum((y ** 3).sum() for y in outputs(run)(params))


def penalty(run):
    return lambda params: sum((g ** 2).sum() for g in jax.tree.leaves(jax.grad(loss(run))(params)))


worst = 0.0
for how, shard in ways(sys.argv[1]):
    divided = tn.compile(graph, backend="jax", mesh=mesh, shard=shard, links=FREE)
    derivatives = [lambda run: jax.grad(loss(run)), lambda run: jax.grad(penalty(run))]
    for of in (outputs, *derivatives[: 2 if how in sys.argv[2:] else 1]):
        expected, found = (of(run)(params) for run in (alone, divided))
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-9)
            worst = max(worst, float(abs(a - b).max() / (1 + abs(b).max())))
    assert not outputs(divided)(params)[0].sharding.is_fully_replicated or how in ("auto", "model")
    assert "mesh of jax, data=4, model=2" in repr(divided)
    assert divided.plan.steps
print(sys.argv[1], f"{worst:.1e}")
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_eight_devices_of_jax_are_one(name: str) -> None:
    twice = ["mixed"] if name in ("tensor_train", "lstm") else []  # second derivatives too
    fresh(ON_JAX, name, *twice, XLA_FLAGS="--xla_force_host_platform_device_count=8")


# ---------------------------------------------------------------------------- A module over several processes, divided or copied by torch


PAGE = Path(__file__).parents[1] / "docs" / "guides" / "distributed.md"
SCRIPTS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["copied", "divided"])
def test_two_processes_train_as_one(how: str, tmp_path: Path) -> None:
    """`DistributedDataParallel`, and `fully_shard` block by block, with gloo on the CPU."""
    run(tmp_path, 2, "wrapped", how)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=["copied", "divided", "sharded"])
def test_what_the_scripts_of_the_guide_train_is_a_module_of_one_process(script: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    run(tmp_path, 2, script=tmp_path / "script.py")
    module = tn.module(tn.models.vit(16, 4, 32, 2, 2, 64, 10))
    before = module.state_dict()["head.W"].clone()
    module.load_state_dict(torch.load(tmp_path / "trained.pt"))
    assert not torch.equal(module.state_dict()["head.W"], before)
