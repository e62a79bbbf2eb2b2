"""Modules of torch: blocks as users treat them, and training."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import pickle
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.utils import parametrizations, parametrize, prune

import tensornet as tn
from tensornet.errors import TensornetError
from tensornet.study import configuration as subject
from tensornet.study import jobs as study_jobs
from tensornet.study import run as study_run
from tensornet.study import training
from tensornet.study.results import RunFile, Trained, read_tensors
from tensornet.study.task import OPTIMIZERS, Examples, Recipe, Task
from tensornet.study.training import Hardware, TrainingRun, train

from .conftest import forked, needs
from .differential import by_numpy
from .networks import Calling, replica_of
from .studies import study
from .test_calls import ATTENTION

# ---------------------------------------------------------------------------- Blocks as modules


DEPTH = 3


def encoder(dropout: float = 0.0) -> tn.Graph:
    """An encoder of blocks of two layers each, between an embedding and a head."""
    attention = tn.layer(ATTENTION, inputs="x", h=2, d=4, c="D")
    line = "y[b,i,c] = x[b,i,c] + gelu(x[b,i,e] * W[f,e] + u[f]) * Z[c,f]"
    mlp = tn.layer(line, inputs="x", f="2*D", c="D")
    noise = tn.layer(f"y[...] = dropout(x[...], {dropout})", inputs="x")

    def layer(x: Any) -> Any:
        x = mlp(attention(x, scope="attention"), scope="mlp")
        return noise(x) if dropout else x

    block = tn.model(layer, inputs="x[b,i,D]")
    embed = tn.layer("y[b,i,c] = x[b,i,e] * E[c,e]", inputs="x", c="D")
    head = tn.layer("y[b,k] = mean[i](x[b,i,c]) * W[k,c]", inputs="x", k=5)

    def forward(x: Any) -> Any:
        x = embed(x, scope="embed")
        for number in range(DEPTH):
            x = block(x, scope=f"blocks.{number}")
        return head(x, scope="head")

    return tn.model(forward, inputs="x[b,i,e]", e=6, D=8, i=7)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(8, 7, 6, generator=generator), torch.randint(0, 5, (8,), generator=generator)


def stepped(module: torch.nn.Module, x: torch.Tensor, target: torch.Tensor) -> None:
    """One step of stochastic gradient descent."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    torch.nn.functional.cross_entropy(module(x), target).backward()
    optimizer.step()


def computed(block: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What a block gives, by the reference, from the parameters that it has now."""
    arrays = {name: each.detach().numpy() for name, each in block.named_parameters()}
    (given,), (result,) = block.graph.inputs, block.graph.outputs
    found = by_numpy(block.graph, {**arrays, given.name: x.detach().numpy()})
    return torch.from_numpy(found[result]).float()


def test_modules_mirror_the_calls_and_hold_the_parameters_by_name() -> None:
    graph = encoder()
    module = tn.module(graph, seed=0)
    assert isinstance(module.blocks, torch.nn.ModuleList)
    assert len(module.blocks) == DEPTH
    assert list(module.state_dict()) == [leaf.name for leaf in graph.parameters]
    assert "blocks.1.mlp.y = " in repr(module)
    assert [name for name, _ in module.named_children()] == ["embed", "blocks", "head"]
    assert sorted(name for name, _ in module.blocks[1].named_parameters()) == [
        "attention.K", "attention.Q", "mlp.W", "mlp.Z", "mlp.u",
    ]  # fmt: skip
    x, _ = data()
    expected = tn.compile(graph, backend="torch")(dict(module.named_parameters()), x)
    assert torch.allclose(module(x), expected, atol=1e-6)


def test_a_block_runs_alone_and_may_be_replaced() -> None:
    module, (x, _) = tn.module(encoder(), seed=0), data()
    y = module.embed(x)
    for block in module.blocks:
        y = block.mlp(block.attention(y))
    assert torch.allclose(module.head(y), module(x), atol=1e-6)
    assert torch.allclose(
        module.blocks[0](module.embed(x)), computed(module.blocks[0], module.embed(x)), atol=1e-5
    )
    module.blocks[1] = torch.nn.Identity()
    y = module.blocks[2](module.blocks[0](module.embed(x)))
    assert torch.allclose(module(x), module.head(y), atol=1e-6)


def test_hooks_fire_on_blocks_at_any_depth() -> None:
    module, (x, _) = tn.module(encoder(), seed=0), data()
    plain, seen = module(x), []
    hooks = [
        module.blocks[1].register_forward_hook(lambda _, given, found: seen.append((given[0], found))),
        module.blocks[1].mlp.register_forward_hook(lambda _, given, found: seen.append((given[0], found))),
        module.embed.register_forward_pre_hook(lambda _, given: seen.append(given)),
    ]
    assert torch.allclose(module(x), plain, atol=1e-6)
    (given,), (inner, result), (whole, last) = seen
    assert given is x
    assert torch.allclose(module.blocks[1].attention(whole), inner, atol=1e-6)
    assert result is last
    for hook in hooks:
        hook.remove()
    module(x)
    assert len(seen) == 3
    module.blocks[2].attention.register_forward_hook(lambda _, given, found: 0 * found)
    assert not torch.allclose(module(x), plain, atol=1e-3)


@pytest.mark.parametrize("how", ["wrapped", "called"])
def test_checkpointed_blocks_have_the_same_gradients(how: str) -> None:
    module, (x, target) = tn.module(encoder(), seed=0), data()
    other = copy.deepcopy(module)
    stepped(module, x, target)
    if how == "wrapped":
        for number in range(DEPTH):
            other.blocks[number] = checkpoint_wrapper(other.blocks[number])
        stepped(other, x, target)
    else:
        y = other.embed(x)
        for block in other.blocks:
            y = torch.utils.checkpoint.checkpoint(block, y, use_reentrant=False)
        torch.nn.functional.cross_entropy(other.head(y), target).backward()
        torch.optim.SGD(other.parameters(), lr=0.1).step()
    for one, two in zip(module.parameters(), other.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-6)


def test_copies_and_pickles_are_apart() -> None:
    module, (x, target) = tn.module(encoder(), seed=0), data()
    expected = module(x)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(x), expected)
        stepped(other, x, target)
        assert torch.equal(module(x), expected)
        assert other.blocks[0] is not module.blocks[0]
        given = module.embed(x)
        assert torch.allclose(other.blocks[0](given), computed(other.blocks[0], given), atol=1e-5)
        assert not torch.allclose(other.blocks[0](given), module.blocks[0](given), atol=1e-5)


def test_compiled_and_exported_whole() -> None:
    module, (x, target) = tn.module(encoder(), seed=0), data()
    expected = module(x)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(x), expected, atol=1e-6)
    fresh = tn.module(encoder(), seed=0)
    assert torch.allclose(torch.compile(fresh, fullgraph=True, backend="aot_eager")(x), expected, atol=1e-6)
    batch = torch.export.Dim("batch", min=2)
    exported = torch.export.export(fresh, (x,), dynamic_shapes=({0: batch},))
    assert torch.allclose(exported.module()(torch.cat([x, x])), torch.cat([expected, expected]), atol=1e-6)
    stepped(compiled, x, target)
    assert not torch.allclose(module(x), expected, atol=1e-6)


def test_dropout_inside_a_block_goes_by_the_mode_of_its_module() -> None:
    module, (x, _) = tn.module(encoder(dropout=0.5), seed=0), data()
    module.eval()
    assert torch.equal(module(x), module(x))
    module.train()
    assert not torch.allclose(module(x), module(x))
    for block in module.blocks:
        block.eval()
    assert torch.equal(module(x), module(x))


def test_one_scope_called_twice_is_one_module() -> None:
    dense = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", o=4)
    graph = tn.model(lambda x: dense(dense(x, scope="same"), scope="same"), inputs="x[b,i]", i=4)
    module, calls = tn.module(graph, seed=0), []
    module.same.register_forward_hook(lambda *_: calls.append(1))
    x = torch.ones(2, 4)
    assert torch.allclose(module(x), x @ module.same.W.T @ module.same.W.T, atol=1e-6)
    assert len(calls) == 2


def test_what_stands_in_a_place_is_what_is_computed_with() -> None:
    module, other, (x, _) = tn.module(encoder(), seed=0), tn.module(encoder(), seed=1), data()
    module(x)
    module.head, module.blocks = other.head, other.blocks
    y = module.embed(x)
    for block in other.blocks:
        y = block(y)
    torch.testing.assert_close(module(x), other.head(y))
    module.blocks[0].mlp = other.blocks[2].mlp
    graph = tn.layer("y[b,k] = max[i](x[b,i,c]) * W[k,c]", inputs="x", k=5, c=8)
    module.head = tn.module(graph, seed=2)  # with the same names as the head, and another meaning
    first = other.blocks[2].mlp(other.blocks[0].attention(module.embed(x)))
    expected = module.head(other.blocks[2](other.blocks[1](first)))
    torch.testing.assert_close(module(x), expected)
    assert not torch.allclose(module(x), other.head(y))


def test_what_replaces_a_block_is_not_filled_with_its_tensors() -> None:
    scale = tn.layer("y[b,c] = x[b,d] * W[c,d] * T[c]", inputs="x", c=3, constants={"T": [1.0, 2.0, 3.0]})
    module = tn.module(tn.model(lambda x: scale(scale(x, scope="a"), scope="b"), inputs="x[b,c]", c=3))
    module.b = torch.nn.Linear(3, 3)
    module.double().reset_parameters(0)
    assert sorted(module.state_dict()) == ["a.W", "b.bias", "b.weight"]
    assert module(torch.ones(2, 3, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize("path", ["blocks.1.mlp", "head"])
@pytest.mark.parametrize("how", ["parametrized", "pruned", "normalised"])
def test_a_parameter_may_be_made_of_others(path: str, how: str) -> None:
    module, (x, _) = tn.module(encoder(), seed=0), data()
    values = {name: each.detach().clone() for name, each in module.named_parameters()}
    owner = module.get_submodule(path)
    if how == "parametrized":
        parametrize.register_parametrization(owner, "W", Calling(lambda _, weight: 2 * weight))
    elif how == "pruned":
        prune.l1_unstructured(owner, "W", amount=0.5)
    else:
        parametrizations.weight_norm(owner, "W")
        owner.parametrizations.W.original0.data.mul_(3)
    values[f"{path}.W"] = owner.W.detach()
    expected = tn.compile(module.graph, backend="torch")(values, x)
    torch.testing.assert_close(module(x), expected)
    module(x).sum().backward()
    assert all(each.grad is not None for each in owner.parameters())


def test_a_replica_computes_with_its_own_parameters() -> None:
    module, (x, _) = tn.module(encoder(), seed=0), data()
    module(x)
    doubled = {name: 2 * each for name, each in module.named_parameters()}
    expected = tn.compile(module.graph, backend="torch")(doubled, x)
    torch.testing.assert_close(replica_of(module, 2)(x), expected)


def test_a_module_of_a_recurrence_along_two_axes() -> None:
    text = "R[i,-1] = 9\nR[-1,j] = 9\nR[i,j] = d[i,j] + tanh(minimum(R[i-1,j], R[i,j-1]))"
    layer, d = tn.layer(text, inputs="d"), torch.rand(3, 4, dtype=torch.float64)
    assert torch.equal(tn.module(layer)(d), tn.compile(layer, backend="torch")({}, d))


# ---------------------------------------------------------------------------- Training


needs("safetensors")

CLASSES, SIDE = 3, 6

RECIPE = Recipe(epochs=3, batch=8, learning_rate=0.01, weight_decay=0.05, smoothing=0.1)
FULL = replace(RECIPE, clip=0.5, shift=1.0, rotate=20.0, zoom=0.1, flip=True)


def examples(count: int = 20) -> Examples:
    """Images whose brightest row tells the class; the last mini-batch of an epoch is not full."""
    draw = torch.Generator().manual_seed(0)

    def part(number: int) -> tuple[Any, Any]:
        labels = torch.arange(number) % CLASSES
        images = torch.randint(0, 120, (number, 1, SIDE, SIDE), generator=draw)
        images[torch.arange(number), 0, 1 + 2 * labels] += 120
        return (images.to(torch.uint8),), labels

    train_inputs, train_labels = part(count)
    test_inputs, test_labels = part(9)
    standard = tn.layer("y[...] = x[...] / 128 - 1", inputs="x")
    return Examples(train_inputs, train_labels, test_inputs, test_labels, "rows", {}, standard)


def classifier(dropout: bool = True) -> tn.Graph:
    hidden = "dropout(gelu(x[b,0,i,j] * U[p,i] * V[q,j] + a[p,q]), 0.3)"
    text = f"""
    h[b,p,q] = {hidden if dropout else hidden[8:-6]}
    y[b,o] = h[b,p,q] * W[o,p,q] + e[o]
    """
    return tn.layer(text, inputs="x[b,c,i,j]", c=1, i=SIDE, j=SIDE, p=5, q=4, o=CLASSES)


def trained(recipe: Recipe = FULL, **changes: Any) -> Trained:
    graph, options = classifier(recipe is FULL), ("checkpoint", "every", "progress")
    run = {name: each for name, each in changes.items() if name not in options}
    how = {name: each for name, each in changes.items() if name in options}
    return train(
        TrainingRun("rows", "rows", "", graph, examples(), **{"recipe": recipe, "seed": 1, **run}), **how
    )


def same(one: Trained, other: Trained) -> bool:
    """Equal to the bit."""
    return one.result == other.result and all(
        torch.equal(one.parameters[n], other.parameters[n]) for n in one.parameters
    )


class Stopped(Exception):  # noqa: N818
    """As if the process had been killed."""


class StopAfter:
    """Stops a run after so many steps."""

    def __init__(self, steps: int) -> None:
        self.left, self.began_at = steps, -1

    def __call__(self, step: int, steps: int, top1: float | None) -> None:
        if self.began_at < 0:
            self.began_at = step
        self.left -= 1
        if self.left < 0:
            raise Stopped


def went_on(whole: Trained, *recipe: Recipe, **changes: Any) -> int:
    """After which step a run goes on, which ends in the numbers of a whole one."""
    progress = StopAfter(1000)
    assert same(trained(*recipe, progress=progress, **changes), whole)
    return progress.began_at


def store(folder: Path, said: list[str] | None = None) -> RunFile:
    return RunFile(folder / "rows.checkpoint", "abc", (said if said is not None else []).append)


# ---- the recipe


def test_the_learning_rate_rises_and_falls() -> None:
    recipe = Recipe()
    rates = [recipe.rate(step, 100) for step in range(100)]
    assert max(rates) == rates[4] == recipe.learning_rate
    assert rates[:5] == sorted(rates[:5])
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert 0 < rates[-1] < 0.001 * recipe.learning_rate


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_optimizer_takes_its_own_step(name: str) -> None:
    """Against the formulas: one step from the gradient g at w, with decay d and rate r."""
    recipe = replace(Recipe(), learning_rate=0.1, weight_decay=0.2, optimizer=name)
    w = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    rule = recipe.update_rule([w])
    w.grad = torch.tensor([0.5], dtype=torch.float64)
    rule.step()
    expected = {
        "sgd": 2.0 - 0.1 * 1.9 * (0.5 + 0.2 * 2.0),  # Nesterov: g + 0.9·g at the first step
        "adam": 2.0 - 0.1,  # the first step of Adam has the size of the rate
        "adamw": 2.0 - 0.1 * 0.2 * 2.0 - 0.1,
    }
    assert float(w.detach()) == pytest.approx(expected[name], rel=1e-6)


def test_a_recipe_for_another_optimizer() -> None:
    recipe = Recipe(learning_rate=0.01, weight_decay=0.1)
    assert recipe.optimized_by("adam") == replace(recipe, optimizer="adam", weight_decay=0.0)
    assert recipe.optimized_by("adamw") == recipe
    assert recipe.optimized_by("sgd").optimizer == "sgd"


def test_changes_keep_their_kind() -> None:
    changed = Recipe().changed({"batch": 16.0, "clip": 1})
    assert (changed.batch, changed.clip) == (16, 1.0)
    assert type(changed.batch) is int
    assert type(changed.clip) is float


# ---- training


def test_it_learns_and_counts() -> None:
    result = trained(replace(RECIPE, epochs=25)).result
    assert result.test_top1 == result.train_top1 == 100.0
    assert result.test_top5 == result.train_top5 == 100.0  # of three classes the first five are all
    assert result.history[-1].train_loss < result.history[0].train_loss
    assert result.parameters == result.counted == 5 * 6 + 4 * 6 + 5 * 4 + 3 * 5 * 4 + 3
    assert result.flops == tn.flop_count(classifier(False), naive=False, b=8) / 8


def test_the_loss_is_the_mean_over_examples() -> None:
    """With a learning rate of 0 every mini-batch has the same parameters."""
    frozen = trained(replace(RECIPE, epochs=1, learning_rate=0.0))
    module = tn.module(classifier(False), seed=1)
    data = examples()
    with torch.no_grad():
        logits = module(data.train_inputs[0] / 128 - 1)
    loss = torch.nn.functional.cross_entropy(logits, data.train_labels, label_smoothing=0.1)
    assert frozen.result.history[0].train_loss == pytest.approx(float(loss), rel=1e-5)
    right = (logits.argmax(1) == data.train_labels).float().mean()
    assert frozen.result.history[0].train_top1 == pytest.approx(100 * float(right))
    assert frozen.result.train_top1 == pytest.approx(100 * float(right))


def test_the_same_seed_gives_the_same_numbers() -> None:
    first = trained()
    torch.manual_seed(99)
    assert same(trained(), first)
    assert not same(trained(seed=2), first)
    assert not same(trained(recipe=replace(FULL, shift=0.0)), first)


def test_torch_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORNET_CALIBRATE", "1")
    before = (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled())
    state = torch.get_rng_state()
    trained(hardware=Hardware(threads=before[0] + 1))
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == before
    assert torch.equal(torch.get_rng_state(), state)
    assert os.environ["TENSORNET_CALIBRATE"] == "1"
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


def test_a_loss_that_is_no_number_is_told() -> None:
    with pytest.raises(TensornetError, match=r"the loss of rows is (nan|inf) in epoch \d\nfix: lower"):
        trained(replace(RECIPE, optimizer="sgd", learning_rate=1e12))


def test_gradients_are_limited() -> None:
    """One step of SGD is as long as its rate times the limit, times 1.9 for Nesterov's momentum."""
    plain = {"optimizer": "sgd", "learning_rate": 0.1, "weight_decay": 0.0, "warmup": 0.0}
    recipe = replace(RECIPE, epochs=1, batch=20, clip=0.01, **plain)
    start = tn.module(classifier(False), seed=1).state_dict()
    moved = trained(recipe).parameters
    length = sum(float(((moved[name] - start[name]) ** 2).sum()) for name in moved) ** 0.5
    assert length == pytest.approx(0.1 * 0.01 * 1.9, rel=1e-3)


# ---- precision and devices


def test_bfloat16_is_near_float32() -> None:
    exact, rounded = trained(RECIPE), trained(RECIPE, hardware=Hardware(precision="bfloat16"))
    assert all(each.dtype == torch.float32 for each in rounded.parameters.values())
    one, other = exact.result.history[-1].train_loss, rounded.result.history[-1].train_loss
    assert one != other
    assert one == pytest.approx(other, rel=0.05)


def test_what_the_hardware_is() -> None:
    chosen = Hardware.chosen("cpu", 1)
    assert chosen == Hardware("cpu", 1, "float32")
    assert Hardware.chosen("cpu").threads == torch.get_num_threads()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training_on_a_gpu(precision: str) -> None:
    on_gpu = trained(RECIPE, hardware=Hardware("cuda:0", 1, precision))
    on_cpu = trained(RECIPE)
    losses = [each.result.history[-1].train_loss for each in (on_gpu, on_cpu)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3 if precision == "float32" else 0.05)


# ---- going on where it was


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 8])
def test_a_stopped_run_ends_in_the_same_numbers(tmp_path: Path, optimizer: str, steps: int) -> None:
    """With dropout, augmentation and a limit of gradients; within an epoch and between two."""
    recipe = replace(FULL, optimizer=optimizer)
    whole = trained(recipe)
    stop = StopAfter(steps)
    with pytest.raises(Stopped):
        trained(recipe, checkpoint=store(tmp_path), every=0.0, progress=stop)
    assert went_on(whole, recipe, checkpoint=store(tmp_path)) == steps


def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = store(tmp_path)
    kept.save({"w": torch.ones(2)}, {"step": "2"})

    def killed(half: Path, path: Path) -> None:
        raise Stopped

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(Stopped):
        kept.save({"w": torch.zeros(2)}, {"step": "3"})
    assert kept.load(lambda tensors, texts: (tensors["w"].tolist(), texts["step"])) == ([1.0, 1.0], "2")


# ---- processes


@dataclass(frozen=True)
class Row:
    about: str


TASK = Task(
    "rows", "Rows", "image", {"rows": Row("with dropout and augmentation")}, replace(FULL, epochs=40, batch=2),
    lambda seed: examples(), lambda row, examples: classifier(),
)  # fmt: skip


def study_of_rows(folder: Path, every: float = training.CHECKPOINT_SECONDS) -> str:
    """A run of 400 steps, and what it says."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(subject.TASKS, "rows", lambda data: TASK)
        patched.setattr(study_jobs, "train", functools.partial(train, every=every))
        patched.setattr(study_run, "write_outputs", lambda *arguments: None)
        return study(folder, task="rows", threads=1)[1]


def result_of(folder: Path) -> Any:
    (path,) = (folder / "runs").glob("*.safetensors")
    return read_tensors(path)[1]["result"]


def newest(folder: Path) -> int:
    """When the newest checkpoint was written; 0 if there is none."""
    found = [0]
    for path in (folder / "runs").glob("*.checkpoint"):
        with contextlib.suppress(FileNotFoundError):  # it is being replaced
            found.append(path.stat().st_mtime_ns)
    return max(found)


def test_kill_9_at_any_moment_ends_in_the_same_numbers(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    study_of_rows(tmp_path / "whole")
    folder = tmp_path / "killed"
    processes = forked("tests.test_training", "matplotlib", "sklearn.datasets", "sympy", "torch._dynamo")
    for wait in (0.0, 0.02, 0.1):
        process = processes.Process(target=study_of_rows, args=(folder, 0.0))
        before = newest(folder)
        process.start()
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.is_alive() and newest(folder) <= before:
            time.sleep(0.001)
        time.sleep(wait)
        assert process.is_alive(), "the run ended before it could be killed"
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    assert "rows: goes on after step" in study_of_rows(folder)
    assert result_of(folder) == result_of(tmp_path / "whole")
    weights = [read_tensors(path)[0] for path in tmp_path.glob("*/runs/*.safetensors")]
    assert len(weights) == 2
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert sorted(path.suffix for path in (folder / "runs").iterdir()) == [".safetensors"]
