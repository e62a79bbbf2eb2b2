"""Trained networks made smaller: budgets are kept, errors are those that were told, and layers stay what they are."""

from __future__ import annotations

import copy
import itertools
import json
import math
import os
import pickle
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import prune
from typer.testing import CliRunner

import tensornet as tn
from tensornet import models
from tensornet.backends.torch.networks import running
from tensornet.backends.torch.networks.compressed import _watched
from tensornet.backends.torch.networks.factorized import LINEAR, _by_whole
from tensornet.backends.torch.networks.recurrent import opened
from tensornet.backends.torch.networks.rounded import Kept
from tensornet.cli import app
from tensornet.compression.allocating import Allocation, Budget, Options, Whole
from tensornet.compression.comparing import relative_time
from tensornet.compression.compressed import Compressed, read_arrays
from tensornet.compression.compressing import Trial, best
from tensornet.compression.levels import Candidate, alone, bytes_of, levels, parameters_of
from tensornet.errors import DtypeError, EquationError, ShapeError
from tensornet.fitting import rounding
from tensornet.fitting.approximating import approximate
from tensornet.fitting.least_squares import Settings
from tensornet.fitting.metrics import Metric
from tensornet.fitting.rounding import Halves
from tensornet.weights.equations import formed

from .conftest import bert, examples, normal, sampled
from .differential import by_numpy
from .networks import Calling, replica_of, turned

FORMS = ("low_rank", "tucker", "cp", "tt", "blocktt", "kronecker")
DRAW = np.random.default_rng(0)


def decaying(rows: int, columns: int, power: float, seed: int = 0) -> Any:
    """A matrix whose singular values fall as a power of their number."""
    draw = np.random.default_rng(seed)
    left, _ = np.linalg.qr(draw.standard_normal((rows, rows)))
    right, _ = np.linalg.qr(draw.standard_normal((columns, columns)))
    count = min(rows, columns)
    values = np.arange(1, count + 1) ** -power
    return (left[:, :count] * values) @ right[:count]


PAIR = tn.layer("h[b,k] = tanh(x[b,i] * A[k,i])\ny[b,o] = h[b,k] * B[o,k]", inputs="x", i=48, k=64, o=40)
VALUES = {"A": decaying(64, 48, 1.5), "B": decaying(40, 64, 0.3, 1)}
WIDE = (
    tn.layer("h[b,k] = tanh(x[b,i] * A[k,i])\ny[b,o] = h[b,k] * B[o,k]", inputs="x", i=512, k=512, o=512),
    {"A": decaying(512, 512, 1.0), "B": decaying(512, 512, 0.5, 1)},
)
X = normal(100, 48, seed=2)


def errors_of(found: Any) -> dict[str, float]:
    """‖W − Ŵ‖/‖W‖ of each weight, as it is computed in what came out."""
    names = [row.path for row in found.allocation.rows if row.level.method]
    return {
        name: float(np.linalg.norm(VALUES[name] - value_of(found, name, X)) / np.linalg.norm(VALUES[name]))
        for name in names
    }


# ---------------------------------------------------------------------------- graphs


@pytest.mark.parametrize("part", [0.7, 0.4, 0.2, np.float32(0.5), np.int64(3000)])
def test_a_budget_of_parameters_is_kept_and_used(part: float) -> None:
    found = tn.compress(PAIR, VALUES, parameters=part)
    before, after = tn.parameter_count(PAIR), tn.parameter_count(found.model)
    most = part * before if part < 1 else part
    assert most * 0.9 < after <= most
    assert found.allocation.parameters == (before, after)
    for name, error in errors_of(found).items():
        row = next(each for each in found.allocation.rows if each.path == name)
        assert error == pytest.approx(row.level.error, abs=1e-6) == pytest.approx(found.misfits[name].weight)


def test_what_loses_least_is_taken_first() -> None:
    found = tn.compress(PAIR, VALUES, parameters=0.8).allocation
    assert "A" in found.weights
    assert "B" not in found.weights
    assert "dense" in str(found)


@pytest.mark.parametrize("part", [0.5, 0.25])
def test_a_uniform_budget_leaves_each_weight_the_same_part(part: float) -> None:
    """As close as ranks allow; and the budget spent by error loses less."""
    found = tn.compress(PAIR, VALUES, parameters=part, uniform=True)
    assert tn.parameter_count(found.model) <= part * tn.parameter_count(PAIR)
    for row in found.allocation.rows:
        step = sum(row.shape) / (row.shape[0] * row.shape[1])
        assert part - 3 * step < row.level.parameters / row.dense.parameters <= part + step
    errors = [value**2 for value in errors_of(found).values()]
    assert found.allocation.error == pytest.approx(np.sqrt(np.mean(errors)), abs=1e-6)
    assert tn.compress(PAIR, VALUES, parameters=part).allocation.error < found.allocation.error
    bound = tn.compress(PAIR, VALUES, error=found.allocation.error, uniform=True).allocation
    assert bound.error <= found.allocation.error
    assert bound.weights == found.allocation.weights


def test_an_error_is_a_bound() -> None:
    counts = []
    for bound in (0.05, 0.2, 0.4):
        found = tn.compress(PAIR, VALUES, error=bound)
        assert found.allocation.error <= bound
        counts.append(tn.parameter_count(found.model))
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize("kind", ["flops", "seconds"])
def test_what_a_call_costs_is_a_budget(kind: str) -> None:
    graph, values = WIDE
    found = tn.compress(graph, values, **{kind: 0.5}, b=256)
    assert found.allocation.after <= 0.5 * found.allocation.before
    plans = [tn.plan(graph, backend="torch", b=256, compare=False) for graph in (graph, found.model)]
    if kind == "flops":
        assert plans[1].flops <= 0.5 * plans[0].flops
        assert found.allocation.before == plans[0].flops
    assert plans[1].seconds < plans[0].seconds


def value_of(found: Any, name: str, *inputs: Any) -> Any:
    """A tensor of what came out."""
    run = tn.compile(found.model, outputs=name)
    given = inputs[: len(run.graph.inputs)]
    return run({leaf.name: found.params[leaf.name] for leaf in run.graph.parameters}, *given)


@pytest.mark.parametrize("method", ["low_rank", "tucker", "tt", "blocktt", "kronecker", "btt", "monarch"])
@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("shape", [(24, 36), (36, 24), (8, 6, 5)])
def test_levels_lose_what_their_factors_do(method: str, weighed: bool, shape: tuple[int, ...]) -> None:
    """Truncating one decomposition again and again is what decompositions at each rank give."""
    draw = np.random.default_rng(3)
    weight, known = draw.standard_normal(shape), draw.standard_normal((5, shape[1]))
    metric = Metric((1,), known.T @ known + np.eye(shape[1]), 0.0) if weighed else None
    dims = tuple((size,) for size in shape)
    candidate = Candidate("W", dims, alone(dims, (1,)), weight, metric=metric)
    _, *below = levels(candidate, [method], parameters_of)
    assert below or len(shape) == 3
    for level in below:
        form = formed(dims, method, level.rank)
        found = approximate(form.program, weight, settings=Settings(iterations=0), metric=metric)
        (made,) = by_numpy(form.program, found.factors).values()
        moments = np.eye(shape[1]) if metric is None else metric.moments
        flat = (
            np.moveaxis(each, 1, -1).reshape(-1, shape[1]) for each in (weight - made.reshape(shape), weight)
        )
        square, whole = (np.einsum("bi,ij,bj->", each, moments, each) for each in flat)
        assert level.error == pytest.approx(math.sqrt(square / whole), abs=1e-6)


def test_modes_may_come_in_lists() -> None:
    found = tn.compress(PAIR, VALUES, parameters=0.5, method="tt", include="A", modes=[[8, 8], [6, 8]])
    assert found.allocation.modes == ((8, 8), (6, 8))
    assert Allocation.from_json(found.allocation.to_json()) == found.allocation
    assert found.misfits["A"].weight == pytest.approx(
        next(row for row in found.allocation.rows if row.path == "A").level.error, abs=1e-2
    )
    some = tn.compress(PAIR, VALUES, parameters=0.7, method="tt", modes=((8, 8), (6, 8)))
    assert set(some.allocation.weights) == {"A"}  # the modes do not fit the other


def test_a_whole_model_with_blocks() -> None:
    graph = models.vit(16, 4, 32, 3, 4, 64, 10)
    draw = np.random.default_rng(0)
    values = {
        name: 0.2 * draw.standard_normal(array.shape) if array.ndim > 1 else array
        for name, array in tn.init(graph, seed=0, dtype="float64").items()
    }
    found = tn.compress(graph, values, parameters=0.5, exclude=["embed.*", "head.*"])
    assert all(row.path.startswith("blocks") for row in found.allocation.rows)
    assert tn.parameter_count(found.model) <= 0.5 * tn.parameter_count(graph)
    x = draw.standard_normal((2, 3, 16, 16))
    dense = {row.path: value_of(found, row.path, x) for row in found.allocation.rows if row.level.method}
    expected = tn.compile(graph)({**values, **dense}, x)
    np.testing.assert_allclose(tn.compile(found.model)(found.params, x), expected, rtol=1e-9)


# ---------------------------------------------------------------------------- files


def command(*given: Any) -> Any:
    """What the command says, which works."""
    result = CliRunner().invoke(app, ["compress", *map(str, given)])
    assert result.exit_code == 0, result.output
    return result


def test_the_command_writes_another_file(tmp_path: Path) -> None:
    os.umask(umask := os.umask(0))
    first = tn.compress(PAIR, VALUES, error=1e-9).save(tmp_path / "net.safetensors")
    assert first.stat().st_mode & 0o777 == 0o666 & ~umask
    content = first.read_bytes()
    document = json.loads(command(first, "--parameters", 0.5, "--method", "low_rank", "--json").stdout)
    assert Path(document["file"]).name == "net.small.safetensors"
    assert first.read_bytes() == content
    read = tn.load_compressed(document["file"])
    assert tn.parameter_count(read.model) == document["parameters"][1]
    again = CliRunner().invoke(app, ["compress", str(first), "--parameters", "0.5"])
    assert "is there already" in str(again.exception)


def test_the_command_prints_plain_text_of_80_columns(tmp_path: Path) -> None:
    """Piped, as here, and on a terminal: no lines of boxes, no cell in pieces, names whole."""
    long = "encoder.stages.0.blocks.11.attention.query_projection.W"
    text = f"h[b,k] = x[b,i] * {long}[k,i]\ny[b,o] = h[b,k] * z.W[o,k]"
    graph = tn.layer(text, inputs="x", i=1024, k=64, o=64)
    params = {name: np.asarray(each) for name, each in tn.init(graph, seed=0).items()}
    first = tn.compress(graph, params, error=1e-9).save(tmp_path / "net.safetensors")
    result = command(first, "--parameters", 0.4, "--method", "tt")
    lines = result.stdout.split("written: ")[0].splitlines()
    assert max(map(len, lines)) <= 80
    assert not set("".join(lines)) & set("│┃━─┏└\x1b")
    (at,) = (number for number, line in enumerate(lines) if line == long)
    row = lines[at + 1].split()
    assert row[:2] == ["64×1024", "tt"]
    assert row[2].count(",") == 2
    assert lines[at + 2].startswith("    ")
    (head,) = (line for line in lines if line.startswith("weight"))
    assert head.split() == ["weight", "shape", "form", "rank", "parameters", "of", "dense", "error"]


@pytest.mark.filterwarnings("ignore")  # of transformers
def test_the_command_takes_a_folder_of_transformers(tmp_path: Path) -> None:
    network = bert()
    network.save_pretrained(tmp_path / "bert")
    out = tmp_path / "small.safetensors"
    assert "written: " in command(tmp_path / "bert", "--parameters", 0.8, "--out", out).output
    read = tn.load_compressed(out, bert())
    assert (relative_time((network,), {}, read) or 0.0) > 0.0  # by its own example
    assert relative_time((nn.Linear(2, 2),), {}, read) is None
    count = sum(each.numel() for each in read.model.parameters())
    assert count <= 0.8 * sum(each.numel() for each in network.parameters())
    assert read.activations is None
    again = tmp_path / "again.safetensors"
    command(tmp_path / "bert", "--bytes", 0.3, "--method", "int8", "--activations", "int8", "--out", again)
    assert tn.load_compressed(again, bert()).activations == "int8"


# ---------------------------------------------------------------------------- modules


class Words(nn.Module):
    """An embedding tied to the last layer, attention, two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(50, 32, padding_idx=3)
        self.att = nn.MultiheadAttention(32, 4, batch_first=True)
        self.fc, self.fc2 = nn.Linear(32, 64), nn.Linear(64, 32, bias=False)
        self.out = nn.Linear(32, 50, bias=False)
        self.out.weight = self.emb.weight

    def forward(self, k: torch.Tensor) -> torch.Tensor:
        x = self.emb(k)
        x = x + self.att(x, x, x)[0]
        return self.out(self.fc2(torch.relu(self.fc(x))))


class Images(nn.Module):
    """Convolutions of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.same = nn.Conv2d(6, 16, 3, padding="same")
        around = {"padding_mode": "circular", "bias": False}
        self.strided = nn.Conv2d(16, 32, 3, stride=2, padding=1, dilation=2, **around)
        self.grouped = nn.Conv2d(32, 32, 3, groups=4, padding=1, padding_mode="reflect")
        self.line, self.space = nn.Conv1d(32, 24, 5), nn.Conv3d(4, 16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.grouped(torch.relu(self.strided(torch.relu(self.same(x)))))
        x = self.line(x.flatten(2))
        x = x.flatten(1)[:, : 4 * 3 * 4 * 5].reshape(len(x), 4, 3, 4, 5)
        return self.space(x)


def words() -> tuple[Words, torch.Tensor]:
    tokens = torch.randint(0, 50, (2, 7))
    tokens[0, 0] = 3
    return Words().eval(), tokens


def images() -> tuple[Images, torch.Tensor]:
    return Images().eval(), torch.randn(2, 6, 12, 12)


MADE = {"words": words, "images": images}
BY_DAY = {"words": ("low_rank", "tt", "kronecker"), "images": ("tucker", "cp")}
"""By day each form with one network."""


def reread(small: Any, network: nn.Module, folder: Path) -> Any:
    """The compressed module as a file brings it back."""
    return tn.load_compressed(small.save(folder / "small.safetensors"), network).model


def dense_of(network: nn.Module, small: nn.Module) -> nn.Module:
    """The network with weights as those that the small one has, each whole."""
    found = copy.deepcopy(network)
    for name, module in found.named_modules():
        other: Any = small.get_submodule(name)
        for each in ("weight", "in_proj_weight"):
            if module._parameters.get(each) is not None:
                module._parameters[each] = nn.Parameter(getattr(other, each).detach().clone())
    return found


@pytest.mark.parametrize(
    ("name", "method"),
    sampled(itertools.product(MADE, FORMS), [(name, form) for name in MADE for form in BY_DAY[name]]),
)
def test_layers_compute_what_their_weights_say(name: str, method: str) -> None:
    network, x = MADE[name]()
    before = copy.deepcopy(network.state_dict())
    found = tn.compress(network, parameters=0.6, method=method)
    small = found.model
    assert sum(each.numel() for each in small.parameters()) == found.allocation.parameters[1]
    assert found.allocation.parameters[1] <= 0.6 * found.allocation.parameters[0]
    torch.testing.assert_close(small(x), dense_of(network, small)(x), rtol=1e-4, atol=1e-5)
    for key, value in network.state_dict().items():
        assert torch.equal(value, before[key])
    if name == "words":
        assert torch.equal(small.emb(torch.tensor([3])), network.emb(torch.tensor([3])))  # padding stays
    for path, misfit in found.misfits.items():
        module, _, weight = path.rpartition(".")
        one, other = (getattr(each.get_submodule(module), weight).detach() for each in (network, small))
        lost = float((one - other).norm() / one.norm())
        assert lost == pytest.approx(misfit.weight, abs=2e-2 if "emb" in path else 1e-4)


def test_a_budget_of_flops_is_that_of_groups() -> None:
    """Each group makes R channels of its own, and of these its part of the channels: (G·R·C/G·K² + O·R) a place."""
    conv, x = nn.Conv2d(24, 32, 3, groups=4), torch.randn(2, 24, 9, 9)
    found = tn.compress(nn.Sequential(conv), flops=0.6, calibrate=x)
    assert isinstance(found.model[0].weight_factors(), tuple)  # not the kernel itself
    (row,) = found.allocation.rows
    (rank,) = row.level.rank
    assert found.allocation.before == 2 * (2 * 7 * 7) * 32 * 6 * 9
    assert (
        found.allocation.after == 2 * (2 * 7 * 7) * rank * (4 * 6 * 9 + 32) <= 0.6 * found.allocation.before
    )


def test_what_a_layer_was_it_still_is() -> None:
    network, x = words()
    network.fc.register_forward_hook(lambda module, args, y: y + 1)
    network.fc2.weight.requires_grad_(False)
    small: Any = tn.compress(network.double(), parameters=0.4).model
    assert isinstance(small.fc, nn.Linear)
    assert (small.fc.in_features, small.fc.out_features) == (32, 64)
    assert torch.equal(small.fc.bias, network.fc.bias)
    assert len(small.fc._forward_hooks) == 1
    assert not small.training
    assert small.fc.weight.dtype == torch.float64
    assert [each.requires_grad for each in small.fc2.parameters()] == [False, False]
    assert {id(each) for each in small.out.parameters()} == {
        id(each) for each in small.emb.weight_factors.parameters()
    }
    assert "fc.bias" in small.state_dict()
    assert any(name.startswith("fc.weight_factors.") for name in small.state_dict())
    row = small.emb(torch.tensor([3]))
    assert torch.equal(row[0], network.emb.weight[3])
    small.train()(x).sum().backward()
    assert "weight[" in repr(small.fc)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", sampled(MADE, ["words"]))
def test_copies_compilers_and_types(name: str) -> None:
    network, x = MADE[name]()
    small: Any = tn.compress(network, parameters=0.6).model
    y = small(x)
    other = copy.deepcopy(small)
    torch.testing.assert_close(other(x), y)
    torch.testing.assert_close(pickle.loads(pickle.dumps(small))(x), y)
    for each in other.parameters():
        each.data.add_(0.1)
    assert not torch.allclose(other(x), y)
    torch.testing.assert_close(small(x), y)
    other.load_state_dict(small.state_dict())
    torch.testing.assert_close(other(x), y)
    torch._dynamo.reset()
    compiled = torch.compile(small, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), y, rtol=1e-4, atol=1e-5)
    exported = torch.export.export(small, (x,)).module()
    torch.testing.assert_close(exported(x), y, rtol=1e-4, atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert small(x).dtype == network(x).dtype == torch.bfloat16
        torch.testing.assert_close(small(x).float(), y, rtol=0.1, atol=0.1)
    double = small.double()
    assert double(x if name == "words" else x.double()).dtype == torch.float64


@pytest.mark.parametrize(("size", "told"), [(96, False), (512, True)])
def test_a_single_element_written_to_data_is_noticed(size: int, told: bool) -> None:
    """In small factors at once, in large ones after `eval()`, as the guide says."""
    small = tn.compress(nn.Sequential(nn.Linear(size, size)), parameters=0.9).model.eval()
    layer: Any = small[0]
    layer._faster[size.bit_length()] = _by_whole
    x = torch.randn(1, size)
    first, *_ = layer.weight_factors.parameters()
    for value in (100.0, -100.0):
        with torch.no_grad():
            for _ in range(3):
                small(x), layer.weight + 0
            first.data[1, 1] = value
            if told:
                small.eval()
            found, weight = small(x), layer.weight + 0
        expected = copy.deepcopy(small)(x).detach()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(x @ weight.T + layer.bias, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("strict", [True, False])
def test_what_is_exported_without_gradients_runs_at_other_sizes(strict: bool) -> None:
    small = tn.compress(nn.Sequential(nn.Linear(64, 64)), parameters=0.6).model.eval()
    batch = torch.export.Dim("b", min=2, max=1000)
    with torch.no_grad():
        exported = torch.export.export(
            small, (torch.randn(6, 64),), dynamic_shapes=({0: batch},), strict=strict
        )
        x = torch.randn(50, 64)
        torch.testing.assert_close(exported.module()(x), small(x), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
@pytest.mark.parametrize("method", ["low_rank", "tt", "tucker"])
def test_what_is_traced_runs_at_other_sizes(method: str) -> None:
    network = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 16))
    small = tn.compress(network, parameters=0.4, method=method).model
    traced = torch.jit.trace(small, torch.randn(4, 32))
    x = torch.randn(7, 32)
    torch.testing.assert_close(traced(x), small(x))
    traced(x).sum().backward()
    assert all(each.grad is not None for each in traced.parameters())


def test_padding_does_not_count() -> None:
    network = Calling(
        lambda net, x, attention_mask: net.two(torch.tanh(net.one(x))),
        one=nn.Linear(16, 24),
        two=nn.Linear(24, 8),
    )
    x = torch.randn(6, 9, 16)
    mask = (torch.arange(9) < torch.arange(2, 8)[:, None]).long()
    junk = torch.where(mask[..., None].bool(), x, 50 * torch.randn(6, 9, 16))
    made = [
        tn.compress(network, parameters=0.5, calibrate=[{"x": each, "attention_mask": mask}])
        for each in (x, junk)
    ]
    assert made[0].loss == pytest.approx(made[1].loss)
    torch.testing.assert_close(made[0].model.one.weight, made[1].model.one.weight)


@dataclass
class Answer:
    """An answer that is no tensor."""

    y: torch.Tensor


def _changed(y: torch.Tensor) -> torch.Tensor:
    """2·σ(y), in place: the derivative of σ needs what is changed."""
    return torch.sigmoid(y).mul_(2)


MASKED = torch.arange(8) == 0


@pytest.mark.parametrize(
    ("answer", "same"),
    [
        (lambda y: [{"y": y}], lambda y: y),
        (Answer, lambda y: y),
        (lambda y: torch.complex(y, y.exp()), lambda y: torch.cat([y, y.exp()])),
        (lambda y: y.masked_fill(MASKED, -torch.inf), lambda y: y[..., 1:]),
        (_changed, None),
        (lambda y: None, None),
        (lambda y: {}, None),
        (lambda y: y.argmax(-1), None),
        (lambda y: y[y > 0], None),
    ],
    ids=["nested", "dataclass", "complex", "masked", "in_place", "none", "empty", "whole", "other_sizes"],
)
def test_what_a_network_answers(answer: Callable[[torch.Tensor], Any], same: Any) -> None:
    """Real and complex numbers count wherever they are; without them, or gradients, what weights multiply counts."""
    network = Calling(lambda net, x: answer(net.two(net.one(x))), one=nn.Linear(16, 24), two=nn.Linear(24, 8))
    x = torch.randn(20, 16)
    found = tn.compress(network, parameters=0.6, calibrate=x)
    assert all(each.output is not None for each in found.misfits.values())
    small = found.model
    with torch.no_grad():
        if same is not None:
            y, made = same(network.two(network.one(x))), same(small.two(small.one(x)))
            assert found.loss == pytest.approx(float((y - made).square().sum() / y.square().sum()), rel=1e-4)
            return
        for name, rows in (("one", x), ("two", network.one(x))):
            weight = getattr(network, name).weight
            lost = (weight - getattr(small, name).weight) @ rows.mT
            expected = float(lost.norm() / (weight @ rows.mT).norm())
            assert found.misfits[f"{name}.weight"].output == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("is_graph", [False, True])
def test_batches_keep_the_bound_of_an_error(is_graph: bool) -> None:
    """Random weights have no form within the bound, but the inputs are of few directions."""
    x = torch.randn(200, 3) @ torch.randn(3, 32)
    network = nn.Linear(32, 32, bias=False)
    args: tuple[Any, ...] = (network,)
    if is_graph:
        graph = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=32, o=32)
        args = (graph, {"W": network.weight.detach()})
    found = tn.compress(*args, error=0.05, calibrate=x)
    assert found.allocation.error <= 0.05
    assert found.allocation.after <= 3 * 64
    assert found.loss < 0.05**2


def test_graphs_without_weights_have_nothing_to_weigh() -> None:
    graph = tn.layer("y[b] = tanh(x[b])", inputs="x")
    assert tn.compress(graph, {}, error=0.5, calibrate=np.ones(3)).loss is None


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_scripted_networks_are_refused() -> None:
    traced = torch.jit.trace(torch.nn.Linear(64, 64), torch.ones(1, 64))
    with pytest.raises(EquationError, match=r"before it was scripted"):
        tn.compress(traced, parameters=0.5)


@pytest.mark.parametrize("method", ["int6", "low_rank:int6"])
def test_moments_along_dimensions_that_are_apart_do_not_count_for_codes(method: str) -> None:
    draw = np.random.default_rng(0)
    graph = tn.layer("y[b,o,m] = x[b,i,k] * W[o,i,m,k]", inputs="x", o=12, i=6, m=5, k=7)
    weight, x = draw.standard_normal((12, 6, 5, 7)), draw.standard_normal((200, 6, 7))
    found = tn.compress(graph, {"W": weight}, bytes=0.2, method=method, calibrate=[x])
    assert found.loss < 0.01


@pytest.mark.parametrize("wide", [False, True])
def test_one_image_weighs_a_kernel_as_a_batch_of_it(wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if wide:
        monkeypatch.setattr("tensornet.backends.torch.networks.holdings.WIDE", 1)
    network, image = nn.Conv2d(8, 16, 3, padding=1, stride=2), torch.randn(8, 13, 10)
    one, batch = (tn.compress(network, error=0.6, calibrate=[each]).misfits for each in (image, image[None]))
    assert one["weight"].output is not None
    assert one["weight"] == batch["weight"]


def test_weights_count_by_what_the_output_minds() -> None:
    """Hidden units that no output reads may be lost; of three ways to weigh, the best on held batches is taken."""
    network = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 8)).double()
    network[2].weight.data[:, 6:] = 0  # type: ignore[operator]
    batches = list(torch.randn(8, 40, 32, dtype=torch.float64))
    options: dict[str, Any] = {"parameters": 0.6, "include": "0.weight"}
    plain, weighed = (tn.compress(network, **options, calibrate=each) for each in (None, batches))
    with torch.no_grad():
        y, *others = (torch.cat([each(x) for x in batches]) for each in (network, plain.model, weighed.model))
    lost = [float((each - y).norm()) for each in others]
    assert lost[1] < 0.01 * lost[0]
    assert plain.loss is None


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("weighed", [False, True])
def test_rounded_levels_lose_what_their_codes_do(bits: int, weighed: bool) -> None:
    draw = np.random.default_rng(bits)
    weight, x = (
        draw.standard_normal((24, 36)),
        draw.standard_normal((400, 36)) @ draw.standard_normal((36, 36)),
    )
    metric = Metric((1,), x.T @ x, 1e-6) if weighed else None
    candidate = Candidate("W", ((24,), (36,)), alone(((24,), (36,)), (1,)), weight, metric=metric)
    ranks = (
        [f"low_rank:int{bits}"] if bits > 1 else []
    )  # of signs, what is expected is up to a fifth too much
    for level in levels(candidate, (f"int{bits}", *ranks, f"int{bits}/12"), bytes_of)[1:]:
        found = candidate.fitted(level.method, level.rank, None).factors
        scales, codes = [*found.values()][::2], [*found.values()][1::2]
        assert all(np.abs(each).max() <= 2**bits - 1 and each.dtype == np.int8 for each in codes)
        assert level.cost == sum(math.ceil(each.size * bits / 8) for each in codes) + sum(
            each.nbytes for each in scales
        )
        rows = x if weighed else np.eye(36)

        def lost(made: Any, rows: Any = rows, weight: Any = weight) -> Any:
            return np.linalg.norm((weight - made) @ rows.T) / np.linalg.norm(weight @ rows.T)

        if level.rank == "same":
            ends = [1] * (codes[0].ndim - scales[0].ndim)
            made = (codes[0] * scales[0].reshape(*scales[0].shape, *ends)).reshape(24, 36)
            assert lost(made) == pytest.approx(level.error, rel=1e-3, abs=1e-3)
        else:
            (rank,), halves = level.rank, candidate.halves
            u, left = halves.rows.rounded(halves.factors[0], [(bits, None)])[0]
            v, right = halves.columns.rounded(halves.factors[1], [(bits, None)])[0]
            first = lost((left * u)[:rank].T @ (right * v)[:rank])
            assert first == pytest.approx(level.error, rel=0.15, abs=1e-3)
            squares = np.linalg.svd(weight @ rows.T, compute_uv=False) ** 2
            least = math.sqrt(squares[rank:].sum() / squares.sum())  # of all matrices of this rank
            final = lost((codes[0] * scales[0]) @ (codes[1] * scales[1][:, None]))
            assert least <= final <= first * (1 + 1e-9)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("weighed", [False, True])
def test_some_rows_and_ranks_of_a_large_weight_give_its_loss(
    bits: int, weighed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(bits)
    weight = draw.standard_t(4, (512, 192)) * draw.lognormal(0, 0.5, (512, 1))
    x = draw.standard_normal((600, 192)) @ draw.standard_normal((192, 192))
    metric = Metric((1,), x.T @ x, 1e-3) if weighed else None
    exact, some = Halves(weight, metric), Halves(weight, metric)
    lost = exact.dense_loss(((bits, None),))[bits, None], exact.loss((bits,) * 96)
    monkeypatch.setattr("tensornet.fitting.rounding.SAMPLED", 192 * 120)
    assert len(some.told[1]) < 128 < len(exact.told[1])
    assert (some.dense_loss(((bits, None),))[bits, None], some.loss((bits,) * 96)) == pytest.approx(
        lost, rel=0.15
    )


@pytest.mark.parametrize("shape", [(12, 20), (20, 12)])
def test_ranks_of_a_weighed_matrix_are_apart(shape: tuple[int, int]) -> None:
    draw = np.random.default_rng(0)
    weight, rows, columns = (draw.standard_normal(each) for each in (shape, (90, shape[0]), (90, shape[1])))
    metric = Metric((1,), columns.T @ columns, 1e-3, Metric((0,), rows.T @ rows, 1e-3))
    halves = Halves(weight, metric)
    u, v, squares, whole = halves.factors
    np.testing.assert_allclose(u.T @ v, weight, atol=1e-10)
    for side, factor in ((halves.rows, u), (halves.columns, v)):
        np.testing.assert_allclose(side.times(factor, 2) @ factor.T, np.diag(np.sqrt(squares)), atol=1e-8)
    turned = halves.columns.times(halves.rows.times(weight.T, 0).T, 0)
    np.testing.assert_allclose(squares, np.linalg.svd(turned, compute_uv=False) ** 2, rtol=1e-8)
    assert whole == pytest.approx(np.vdot(turned, turned))


def test_a_weight_that_was_decided_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Roots, decompositions and roundings are held for one weight at a time."""
    known, counts = weakref.WeakSet[Halves](), list[int]()

    def made(*given: Any) -> Halves:
        counts.append(len(known))
        found = Halves(*given)
        known.add(found)
        return found

    monkeypatch.setattr("tensornet.compression.levels.Halves", made)
    network = nn.Sequential(*(nn.Linear(32, 32) for _ in range(5)))
    assert tn.compress(network, bytes=0.2, calibrate=list(torch.randn(4, 64, 32))).loss is not None
    assert len(counts) > 10
    assert max(counts) <= 1  # while the next is made, a name may still hold the one before


def test_each_rank_has_its_bits(tmp_path: Path) -> None:
    """Of a steep spectrum, large ranks have more bits, which loses less in as many bytes; files have no gaps."""
    draw = np.random.default_rng(0)
    u, v = (np.linalg.qr(draw.standard_normal((64, 64)))[0] for _ in range(2))
    weight = (u * 0.85 ** np.arange(64)) @ v
    graph = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=64, o=64)
    kinds = ("low_rank:int", *(f"low_rank:int{bits}" for bits in (8, 6, 4, 3, 2)))
    mixed, *even = (tn.compress(graph, {"W": weight}, bytes=0.1, method=kind) for kind in kinds)
    assert mixed.misfits["W"].weight < 0.8 * min(each.misfits["W"].weight for each in even)
    (row,) = mixed.allocation.rows
    counts = row.level.rank
    assert sum(each > 0 for each in counts) > 2
    codes = [leaf.value.array() for leaf in mixed.model.constants if leaf.value is not None]
    for bits, least in zip((8, 6, 4, 3, 2), itertools.accumulate(counts, initial=0), strict=False):
        kept = slice(least, None)
        assert (
            np.abs(codes[0][:, kept]).max(initial=0) <= 2**bits - 1 >= np.abs(codes[1][kept]).max(initial=0)
        )
    path = mixed.save(tmp_path / "small.safetensors")
    assert tn.load_compressed(path).model == mixed.model
    assert path.stat().st_size < mixed.allocation.after + 4000
    network = torch.nn.Linear(64, 64)
    network.weight.data = torch.from_numpy(weight).float()
    small = tn.compress(network, bytes=0.1, method="low_rank:int")
    held = sum(each.numel() * each.element_size() for each in small.model.state_dict().values())
    assert held == small.allocation.after
    assert torch.equal(reread(small, network, tmp_path / "module").weight, small.model.weight)
    for wrong in (8, (1, 2), (0, 0, 0, 0, 0), (1, 2, 3, 4, -1)):
        with pytest.raises(ShapeError, match="does not tell the bits"):
            tn.substitute(graph, {"W": ("low_rank:int", wrong)})


@pytest.mark.parametrize("method", ["int3", "int6", "int8"])
def test_compensated_rounding_loses_less(method: str) -> None:
    draw = np.random.default_rng(0)
    weight, x = (
        draw.standard_normal((32, 64)),
        draw.standard_normal((500, 64)) @ draw.standard_normal((64, 64)),
    )
    graph = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x")  # sizes are those of the arrays
    found = (
        tn.compress(graph, {"W": weight}, bytes=0.9, method=method, calibrate=each) for each in (x, None)
    )
    lost = [np.linalg.norm(x @ weight.T - value_of(each, "y", x)) for each in found]
    assert lost[0] < 0.7 * lost[1]


@pytest.mark.parametrize("bits", [1, 2])
def test_few_bits_have_wider_scales_where_errors_are_moved(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heavy-tailed rows of inputs that are much alike: what is moved to an element is larger than it."""
    draw, lost = np.random.default_rng(0), list[float]()
    weight, x = draw.standard_normal((32, 96)) ** 3, draw.standard_normal((800, 96)).cumsum(1)
    for multiples in (rounding.MULTIPLES, {8: (1.0,)}):
        monkeypatch.setattr(rounding, "MULTIPLES", multiples)
        halves = Halves(weight, Metric((1,), x.T @ x, 1e-4))
        ((scale, codes),) = halves.columns.rounded(halves.matrix, [(bits, None)], descends=True)
        assert {*np.unique(np.abs(codes))} <= {*range(1, 2**bits, 2)}
        lost.append(float(np.linalg.norm(x @ (weight - rounding.scaled(scale, codes)).T)))
    assert lost[0] < 0.9 * lost[1]


def test_signs_are_packed_and_read_back(tmp_path: Path) -> None:
    network, x = nn.Sequential(nn.Linear(64, 48)), torch.randn(3, 64)
    small = tn.compress(network, bytes=0.08, method="int1")
    assert small.allocation.weights == {"0.weight": ("int1", "same")}
    assert torch.equal(reread(small, network, tmp_path)(x), small.model(x))
    signs = small.model[0].weight.sign()
    assert (signs == network[0].weight.sign()).float().mean() > 0.99


@pytest.mark.parametrize("is_graph", [False, True])
def test_bytes_are_a_budget(is_graph: bool, tmp_path: Path) -> None:
    """Codes are integers in files too, which are about as large as the allocation says."""
    network = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 64))
    x = torch.randn(4, 100, 64)
    if is_graph:
        text = "y[b,o] = tanh(x[b,i] * A[k,i] + a[k]) * B[o,k] + c[o]"
        graph = tn.layer(text, inputs="x", i=64, k=256, o=64)
        params = dict(
            zip(("A", "a", "B", "c"), (each.detach().numpy() for each in network.parameters()), strict=True)
        )
        batches = [each.numpy() for each in x]
        small = tn.compress(graph, params, bytes=0.2, calibrate=batches)
        again = tn.load_compressed(small.save(tmp_path / "small.safetensors"))
        assert again.model == small.model
        assert again.allocation == small.allocation
        runs = [tn.compile(each.model, backend="numpy")(each.params, batches[0]) for each in (small, again)]
    else:
        small = tn.compress(network, bytes=0.2, calibrate=[*x])
        again = tn.load_compressed(small.save(tmp_path / "small.safetensors"), network)
        runs = [each.model(x[0]).detach().numpy() for each in (small, again)]
        kinds = {str(each.dtype) for name, each in small.model.state_dict().items() if name.endswith("codes")}
        assert kinds == {"torch.uint8"}
    assert (runs[0] == runs[1]).all()
    assert small.loss < 0.02
    assert small.allocation.after <= 0.2 * small.allocation.before == 0.2 * 4 * (2 * 64 * 256 + 256 + 64)
    assert (tmp_path / "small.safetensors").stat().st_size < small.allocation.after + 6000
    assert "bytes (" in str(small)


def test_packed_codes_that_are_written_into_are_packed_again() -> None:
    model = tn.compress(torch.nn.Linear(64, 64), bytes=0.2).model
    before = model.state_dict()["weight_factors.W.codes"].clone()
    model.state_dict()["weight_factors.W.codes"].zero_()
    assert torch.equal(model.state_dict()["weight_factors.W.codes"], before)
    assert before.any()


def recurrent(kind: type[nn.Module]) -> nn.Module:
    """A recurrence and a linear layer."""
    parts = {"inner": kind(32, 48, batch_first=True), "outer": nn.Linear(48, 24)}
    return Calling(lambda net, x: net.outer(net.inner(x)[0]), **parts)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 24)),
    "attention": lambda: Calling(
        lambda net, x: net.inner(x, x, x)[0], inner=nn.MultiheadAttention(32, 4, batch_first=True)
    ),
    "GRU": lambda: recurrent(nn.GRU),
    "LSTM": lambda: recurrent(nn.LSTM),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("budget", [{"bytes": 0.2}, {"parameters": 0.5}])
@pytest.mark.parametrize("name", NETWORKS)
def test_calls_read_what_optimizers_and_data_write(
    name: str, budget: dict[str, float], training: bool
) -> None:
    model = tn.compress(NETWORKS[name](), **budget).model.train(training)
    x = torch.randn(2, 5, 32)

    def check() -> None:
        with torch.no_grad():
            assert torch.allclose(model(x), copy.deepcopy(model)(x), atol=1e-6)

    check()
    optimizer = torch.optim.AdamW(model.parameters(), 0.1, fused=True)  # which raises no versions
    model(x).sum().backward()
    check()
    optimizer.step()
    check()
    for each in model.parameters():
        each.data.mul_(1.3)
    check()
    for each in model.parameters():
        each.data = each.data * 1.3
    check()


@pytest.mark.parametrize("name", ["linear", "GRU"])
@pytest.mark.parametrize("budget", [{"bytes": 0.2}, {"parameters": 0.5}])
def test_replicas_of_data_parallel_compute_the_same(name: str, budget: dict[str, float]) -> None:
    model, x = tn.compress(NETWORKS[name](), **budget).model.eval(), torch.randn(2, 5, 32)
    found = replica_of(model)(x)
    assert torch.allclose(found, model(x), atol=1e-6)
    found.sum().backward()
    assert all(each.grad is not None for each in model.parameters())
    with torch.no_grad():
        assert torch.allclose(replica_of(model)(x), found, atol=1e-6)


def test_large_factors_are_compared_in_part() -> None:
    kept, large, calls = Kept[int](), torch.zeros(300, 200, dtype=torch.bfloat16), itertools.count()
    assert [kept.read([large], True, lambda: next(calls)) for _ in range(2)] == [0, 0]
    large.data.add_(1)
    assert [kept.read([large], True, lambda: next(calls)) for _ in range(2)] == [1, 1]
    elsewhere = large.to("meta")
    assert [kept.read([elsewhere], True, lambda: next(calls)) for _ in range(2)] == [2, 3]
    assert [kept.read([elsewhere], False, lambda: next(calls)) for _ in range(2)] == [4, 4]


def test_steps_of_fused_optimizers_that_change_few_rows_are_seen() -> None:
    network, k = nn.Embedding(5000, 8), torch.tensor([[4321]])
    model = tn.compress(network, bytes=0.4, method="int8").model.eval()
    with torch.no_grad():
        before = model(k)
    model(k).sum().backward()
    torch.optim.AdamW(model.parameters(), 0.1, fused=True).step()
    with torch.no_grad():
        assert not torch.equal(model(k), before)
        assert torch.equal(model(k), copy.deepcopy(model)(k))


def test_whole_weights_that_calls_read_are_made_once() -> None:
    """From the second read on; those of layers that multiply by factors are not kept when somebody looks at them."""
    attention = tn.compress(NETWORKS["attention"](), parameters=0.5).model.eval().inner
    with torch.no_grad():
        first, second, third = (attention.in_proj_weight for _ in range(3))
        assert second is not first
        assert third is second
        assert torch.equal(first, second)
    assert attention.in_proj_weight is not second
    assert attention.in_proj_weight.requires_grad
    layer = tn.compress(nn.LSTM(24, 32), bytes=0.2).model.eval()
    with torch.no_grad():
        layer(torch.randn(4, 2, 24))
        assert {type(each) for each in layer._flat().weights} == {torch.Tensor}


@pytest.mark.parametrize("fastest", [0, 1])
@pytest.mark.parametrize("make", [lambda: nn.Linear(64, 48), lambda: turned(48, 64)])
@pytest.mark.parametrize("method", ["low_rank", "tt", "low_rank:int8"])
def test_linear_layers_take_the_fastest_way(
    method: str, make: Callable[[], nn.Module], fastest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = list[int]()

    def clocked(ways: Any) -> list[float]:
        measured.append(len(ways))
        return [n != fastest for n, _ in enumerate(ways)]

    monkeypatch.setattr(running, "FASTEST", {})
    monkeypatch.setattr(running, "clocked", clocked)
    budget = {"bytes": 0.2} if "int8" in method else {"parameters": 0.5}
    (layer,) = tn.compress(nn.Sequential(make()), method=method, **budget).model.eval()
    x = torch.randn(2, 3, 64)
    for rows in (x, x[0], x.transpose(0, 1), x[0, 0]):
        wanted = layer(rows).detach()  # with gradients as it is
        with torch.no_grad():
            assert torch.allclose(layer(rows), wanted, atol=1e-5)
            assert torch.allclose(copy.deepcopy(layer)(rows), wanted, atol=1e-5)
    assert measured == [2, 2, 2]  # of six rows, three and one, and equal layers take the same
    assert (layer._wholes["weight"].kept._found is None) == (fastest == 0)
    for each in layer.parameters():
        each.data.mul_(1.5)
    with torch.no_grad():
        assert torch.allclose(layer(x), copy.deepcopy(layer)(x), atol=1e-5)


class Memory(nn.Module):
    """A network that writes to a parameter and a buffer."""

    steps: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.slots, self.ins = nn.Parameter(torch.randn(40, 32)), nn.Linear(32, 32)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        found = torch.softmax(self.ins(x) @ self.slots.mT, -1)
        with torch.no_grad():
            self.slots.mul_(0.9).add_(0.1 * found.mT @ x)
        return found


@pytest.mark.parametrize("budget", [{"bytes": 0.7}, {"parameters": 0.8}])
def test_what_a_network_writes_to_stays_as_it_is(budget: dict[str, float]) -> None:
    network = Memory().eval()
    before = copy.deepcopy(network.state_dict())
    found = tn.compress(network, **budget, calibrate=list(torch.randn(5, 8, 32)))
    row = {each.path: each for each in found.allocation.rows}["slots"]
    assert row.level.method is None
    assert row.reason == "the network writes to it, which factors would lose"
    assert "ins.weight" in found.allocation.weights
    for name in ("slots", "steps"):
        assert torch.equal(found.model.state_dict()[name], before[name])
        assert torch.equal(network.state_dict()[name], before[name])
    blind = tn.compress(network, parameters=0.8, include="slots")
    with pytest.raises(
        EquationError, match="'mul_' writes to a weight that factors make, which would be lost"
    ):
        blind.model(torch.randn(8, 32))


class Scaled(nn.Linear):
    """A layer that writes to its bias in each call, which autograd refuses."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.bias.mul_(1.0)
        return super().forward(x)


def test_a_network_that_runs_without_gradients_alone_is_calibrated_so() -> None:
    network = nn.Sequential(Scaled(64, 64), nn.ReLU(), Scaled(64, 64)).eval()
    x = torch.randn(6, 8, 64)
    with torch.no_grad():
        found = tn.compress(network, parameters=0.5, calibrate=list(x), method="low_rank")
        plain = tn.compress(network, parameters=0.5, method="low_rank")
        lost = [(each.model(x[0]) - network(x[0])).norm() for each in (found, plain)]
    assert lost[0] < lost[1]


def test_weights_of_factors_tell_their_shape_without_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = tn.compress(nn.Linear(64, 48, dtype=torch.bfloat16), parameters=0.5).model
    whole = layer._wholes["weight"][0]
    monkeypatch.setattr(type(whole), "forward", lambda *_: pytest.fail("a product"))
    weight = layer.weight
    assert (weight.shape, weight.dtype, weight.device) == ((48, 64), torch.bfloat16, layer.bias.device)
    assert (weight.ndim, len(weight), weight.numel()) == (2, 48, 48 * 64)
    monkeypatch.undo()
    product = layer.weight_factors.U @ layer.weight_factors.V
    assert torch.allclose(weight.float(), product.reshape(48, 64).float(), atol=1e-2)
    for write in (nn.init.zeros_, lambda each: each.data.zero_(), lambda each: torch.neg(each, out=each)):
        with pytest.raises(EquationError, match=r"exclude= the name of this weight"):
            write(layer.weight)


def test_rounded_factors_are_trained_by_their_scales() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    x = torch.randn(64, 32)
    model = tn.compress(network, bytes=0.3, calibrate=[x]).model
    with torch.no_grad():
        before = model(x)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    model(x).pow(2).mean().backward()
    optimizer.step()
    with torch.no_grad():
        assert not torch.equal(model(x), before)
    exported = torch.export.export(model.requires_grad_(False), (x,))
    assert torch.allclose(exported.module()(x), model(x))
    assert torch.int8 in {each.dtype for each in exported.state_dict.values()}


@pytest.mark.parametrize("name", ["GRU", "LSTM", "RNN"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrent_modules_are_compressed(name: str, bidirectional: bool, tmp_path: Path) -> None:
    """Loops by factors and kernels of whole weights agree, and full rank is the module of torch."""
    network = getattr(nn, name)(24, 32, num_layers=2, batch_first=True, bidirectional=bidirectional)
    x = torch.randn(3, 5, 24)
    small = tn.compress(network, parameters=0.6)
    y, states = small.model(x)
    if name != "LSTM":  # torch's own has no kernel for these sizes in bfloat16
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):  # before anything is measured
            assert torch.allclose(small.model(x)[0].float(), y, atol=0.02)
    with torch.no_grad():
        ways = [way(x, None) for way in (small.model._looped, small.model._stepped, small.model._fused)]
        small.model(x)
        # an LSTM that oneDNN computes takes twice the time with weights by columns
        assert small.model._flat().weights[1].is_contiguous() == (name == "LSTM")
    for found, last in ways:
        assert torch.allclose(found, y, atol=1e-6)
        pairs = zip(last, states, strict=True) if name == "LSTM" else [(last, states)]
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)
    whole = tn.compress(network, error=1e-9).model
    assert torch.allclose(whole(x)[0], network(x)[0], atol=1e-5)
    assert torch.equal(reread(small, network, tmp_path)(x)[0], y)
    copied = pickle.loads(pickle.dumps(copy.deepcopy(small.model)))
    assert torch.equal(copied(x)[0], y)
    packed = nn.utils.rnn.pack_padded_sequence(x, [5, 4, 2], batch_first=True)
    assert torch.allclose(small.model(packed)[0].data[0], y[0, 0], atol=1e-6)


BOTH_WAYS = {"batch_first": True, "bidirectional": True}


@pytest.mark.parametrize(
    ("method", "options"),
    [("low_rank", {}), ("low_rank", BOTH_WAYS), ("int8", {"bias": False}), ("kronecker", BOTH_WAYS)],
)
@pytest.mark.parametrize("name", ["GRU", "LSTM", "RNN", "relu"])
def test_loops_in_place_agree_with_kernels(name: str, method: str, options: dict[str, bool]) -> None:
    kind = {"nonlinearity": "relu"} if name == "relu" else {}
    network = getattr(nn, "RNN" if name == "relu" else name)(24, 32, num_layers=2, **kind, **options)
    budget: dict[str, Any] = {"bytes": 0.35} if method == "int8" else {"parameters": 0.6}
    small = tn.compress(network, method=method, **budget).model
    x, h = torch.randn(3, 5, 24), torch.randn(len(small.suffixes), 3 if "batch_first" in options else 5, 32)
    start = (h, torch.randn_like(h)) if name == "LSTM" else h
    before = copy.deepcopy((x, start))
    with torch.no_grad():
        ways = [small._stepped, *([small._in_numpy] if name in ("GRU", "LSTM") else [])]
        for way in ways:
            torch.testing.assert_close(way(x, start), small._fused(x, start), atol=1e-6, rtol=1e-5)
    assert torch.equal(before[0], x)
    assert all(map(torch.equal, before[1], start))
    y = small(x, start)[0]
    with torch.no_grad():
        small.half().float()  # memory may be that of before, at other values
        assert torch.allclose(small(x, start)[0], y, atol=2e-2)
        assert not torch.equal(small._fused(x, start)[0], y)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("name", ["GRU", "LSTM", "Linear"])
def test_compressed_networks_are_traced_and_transformed(name: str, recorded: bool) -> None:
    small = tn.compress(getattr(nn, name)(24, 32), bytes=0.4).model
    x = torch.randn(3, 5, 24)
    with torch.set_grad_enabled(recorded):
        found = [torch.jit.trace(small, (x,))(x), *([] if recorded else [torch.vmap(small)(x[None])])]
        y = small(x)
    if name == "Linear":
        found, y = [(each,) for each in found], (y,)
    for each in found:
        assert torch.allclose(each[0].reshape(3, 5, 32), y[0], atol=1e-6)


@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("options", [{}, {"batch_first": True, "bidirectional": True, "num_layers": 2}])
@pytest.mark.parametrize("name", ["GRU", "LSTM", "RNN"])
def test_packed_batches_are_looped_over_without_padding(
    name: str, options: dict[str, Any], is_sorted: bool
) -> None:
    network = getattr(nn, name)(24, 16, **options)
    looped: Any = opened(copy.deepcopy(network))
    seen = list[int]()
    for _, hh in looped.pairs():
        hh.register_forward_hook(lambda _, rows, made: seen.append(len(rows[0])))
    lengths, first = [7, 5, 5, 3] if is_sorted else [3, 7, 5, 5], "batch_first" in options
    x = torch.randn(4, 7, 24) if first else torch.randn(7, 4, 24)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), first, enforce_sorted=is_sorted)
    h = torch.randn(len(looped.suffixes), 4, 16)
    for start in (None, (h, 2 * h) if name == "LSTM" else h):
        (y, last), (found, end) = network(packed, start), looped(packed, start)
        pairs = zip(last, end, strict=True) if name == "LSTM" else [(last, end)]
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in [*pairs, (y.data, found.data)])
        assert torch.equal(y.batch_sizes, found.batch_sizes)
    assert sum(seen) == 2 * sum(lengths) * len(looped.suffixes)
    small = tn.compress(
        network, parameters=0.6, calibrate=[packed] * 4
    )  # one argument, not a tuple of several
    assert small.loss is not None


LAYERS = {
    "line": lambda: (nn.ConvTranspose1d(16, 24, 4, stride=2, groups=2), torch.randn(2, 16, 9)),
    "image": lambda: (nn.ConvTranspose2d(16, 24, 3, stride=2, output_padding=1), torch.randn(2, 16, 5, 6)),
    "space": lambda: (nn.ConvTranspose3d(8, 12, 3, padding=1), torch.randn(2, 8, 3, 4, 5)),
    "bag": lambda: (nn.EmbeddingBag(60, 24, mode="sum", padding_idx=3), torch.randint(0, 60, (4, 5))),
    "pairs": lambda: (
        Calling(lambda net, x: net.pairs(x, x), pairs=nn.Bilinear(24, 24, 16)),
        torch.randn(5, 24),
    ),
}


@pytest.mark.parametrize("budget", [{"parameters": 0.6}, {"bytes": 0.3}])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_that_read_the_whole_weight_compute_with_that_of_their_factors(
    name: str, budget: dict[str, float], tmp_path: Path
) -> None:
    network, x = LAYERS[name]()
    small = tn.compress(network, **budget)
    assert len(small.allocation.weights) == 1
    with torch.no_grad():
        assert torch.allclose(small.model(x), dense_of(network, small.model)(x), atol=1e-6)
    small.model(x).square().sum().backward()
    assert all(each.grad is not None for each in small.model.parameters())
    assert torch.equal(reread(small, network, tmp_path)(x), small.model(x))
    with pytest.raises(EquationError, match="which saves no flops"):
        tn.compress(network, flops=0.5, calibrate=[x])


class Experts(nn.Module):
    """Two parameters of a module that has no layers, a layer under a parametrization, and attention of two widths."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(4, 48, 32) / 6)
        self.down = nn.Parameter(torch.randn(4, 32, 48) / 6)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(32, 40))
        self.attention = nn.MultiheadAttention(40, 2, kdim=32, vdim=48, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(torch.einsum("bni,eoi->bneo", x, self.up))
        x = x + torch.einsum("bneo,eio->bni", h, self.down)
        return self.attention(self.normed(x), x, h.mean(2))[0]


def test_any_matrix_among_the_parameters_may_become_factors(tmp_path: Path) -> None:
    network, x = Experts().eval(), torch.randn(2, 5, 32)
    small = tn.compress(network, bytes=0.3, calibrate=[torch.randn(2, 5, 32) for _ in range(4)])
    ends = {"up", "down", "original1", "q_proj_weight", "k_proj_weight", "v_proj_weight", "weight"}
    assert {path.rpartition(".")[2] for path in small.allocation.weights} == ends
    with torch.no_grad():
        y, found = network(x), small.model(x)
        assert (y - found).norm() < 0.1 * y.norm()
        up = small.model.up
    assert up.is_contiguous()
    assert "forward" not in vars(type(small.model))  # it has the parameters of the network's own
    for each in small.model.up_factors.parameters():
        each.data.mul_(2)
    assert torch.allclose(small.model.up, 2 * up)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.isfinite(small.model(x)).all()
    for again in (reread(small, network, tmp_path), copy.deepcopy(small.model)):
        assert torch.equal(again(x), small.model(x))
    assert small.model.float().half().up.dtype == torch.float16


class Rows(nn.Embedding):
    """Rows with padding, multiplied by another parameter, and a mask that no factors can make."""

    def __init__(self) -> None:
        super().__init__(80, 40, padding_idx=3)
        self.more = nn.Parameter(torch.randn(40, 40) / 6)
        self.mask = nn.Parameter(torch.full((40, 40), -torch.inf).triu(1), requires_grad=False)

    def forward(self, k: torch.Tensor) -> torch.Tensor:
        rows = torch.nn.functional.linear(super().forward(k), self.more.t())
        return rows @ torch.softmax(self.mask, -1)


def test_other_parameters_of_a_layer_stay_apart_from_its_weight() -> None:
    network, k = Rows(), torch.randint(0, 80, (16, 9))
    small = tn.compress(network, bytes=0.55, calibrate=[k, k.flip(0), k.flip(1), k])
    assert set(small.allocation.weights) == {"weight", "more"}  # a mask that is not finite stays as it is
    assert small.loss < 1e-3
    assert (small.model.more - network.more).norm() < 0.05 * network.more.norm()
    assert torch.equal(small.model.weight[3], network.weight[3])


class Gated(nn.Linear):
    """A linear layer with another parameter."""

    def __init__(self) -> None:
        super().__init__(40, 40)
        self.gate = nn.Parameter(torch.randn(40, 40) / 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) @ self.gate


def test_a_layer_with_factors_of_another_parameter_is_adapted_and_merged() -> None:
    small = tn.compress(nn.Sequential(Gated()), parameters=0.9, include="0.gate").model
    x = torch.randn(3, 40)
    merged = tn.merge(tn.adapt(small, "0.weight", rank=2))
    assert torch.equal(merged(x), small(x))
    assert "gate_factors" in merged[0]._modules


def test_products_by_other_parts_of_a_weight_are_left_alone() -> None:
    holding = SimpleNamespace(weight=nn.Parameter(torch.randn(8, 8)))
    seen, linear = list[tuple[int, ...]](), torch.nn.functional.linear
    weight, x = holding.weight, torch.randn(3, 8)
    parts = [weight, weight[2:5], weight.t(), weight[::2], weight[:1].expand(4, 8)]
    plain = [linear(x, each) for each in parts]
    with _watched([(holding, None, LINEAR)], lambda *args: seen.append(tuple(args[-1].shape))):
        found = [torch.nn.functional.linear(x, each) for each in parts]
    assert all(map(torch.allclose, found, plain))
    assert seen == [(3, 8), (3, 8)]  # all rows, and some one after another: those of the whole weight
    assert torch.nn.functional.linear is linear


def test_projections_of_attention_are_weighed() -> None:
    """What they multiply lies in few dimensions, so that few ranks are enough for it, and for no other input."""
    layer = nn.TransformerDecoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    network = Calling(lambda net, x, memory: net.layer(x, memory), layer=layer).eval()
    linear = torch.nn.functional.linear
    spans = torch.randn(4, 32), torch.randn(6, 32)
    batches = [tuple(torch.randn(8, 9, len(each)) @ each for each in spans) for _ in range(9)]
    include = ["*attn*"]
    plain = tn.compress(network, parameters=0.7, include=include).model
    small = tn.compress(network, parameters=0.7, include=include, calibrate=batches[:8]).model
    assert torch.nn.functional.linear is linear
    with torch.no_grad():
        y, *found = (each(*batches[8]) for each in (network, plain, small))
    without, weighed = (float((each - y).norm() / y.norm()) for each in found)
    assert weighed < 0.3 * without, (weighed, without)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("name", ["GRU", "LSTM", "RNN"])
def test_inputs_of_any_form_go_through_the_narrow_factor(name: str, batch_first: bool) -> None:
    network = getattr(nn, name)(24, 32, batch_first=batch_first)
    small = tn.compress(network, parameters=0.3).model
    assert small._flat()[1] is not None
    x, lengths = torch.randn(3, 5, 24), torch.tensor([5, 4, 2])
    given = x if batch_first else x.transpose(0, 1)
    packed = nn.utils.rnn.pack_padded_sequence(given, lengths, batch_first=batch_first)
    for recorded in (True, False):
        with torch.set_grad_enabled(recorded):
            alone = [small(each[:length])[0] for each, length in zip(x, lengths, strict=True)]
            whole = small(given)[0]
            found, kept = nn.utils.rnn.pad_packed_sequence(small(packed)[0], batch_first=True)
        whole = whole if batch_first else whole.transpose(0, 1)
        assert torch.equal(kept, lengths)
        for n, (own, length) in enumerate(zip(alone, lengths, strict=True)):
            for each in (whole[n, :length], found[n, :length]):
                assert torch.allclose(each, own, atol=1e-6)
        with torch.set_grad_enabled(recorded), pytest.raises(RuntimeError, match="Expected 24, got 23"):
            small(given[..., 1:])
    small._faster.update(dict.fromkeys(small._faster, 0))  # by the loop, whichever was faster
    with torch.no_grad(), pytest.raises(RuntimeError, match="Expected 24, got 23"):
        small(given[..., 1:])


def test_a_recurrence_draws_its_dropout_once() -> None:
    """Measuring its ways would draw more often, and at the first call alone."""
    network = nn.GRU(24, 32, num_layers=2, dropout=0.5, batch_first=True)
    small = tn.compress(network, parameters=0.6).model.train()
    x, found = torch.randn(3, 5, 24), []
    with torch.no_grad():
        for _ in range(2):
            torch.manual_seed(0)
            found.append(small(x)[0])
    assert torch.equal(*found)


@pytest.mark.parametrize("name", ["GRUCell", "LSTMCell", "RNNCell"])
def test_cells_compute_what_those_of_torch_do(name: str) -> None:
    network, x = nn.Sequential(getattr(nn, name)(24, 32)), torch.randn(3, 24)
    small = tn.compress(network, bytes=0.3, calibrate=[x]).model
    assert small[0].hidden_size == 32
    wanted, found = network(x), small(x)
    for a, b in zip(wanted, found, strict=True) if name == "LSTMCell" else [(wanted, found)]:
        assert (a - b).norm() < 0.1 * a.norm()


def test_recurrent_modules_that_stay_dense_stay_as_they_are() -> None:
    network = nn.Sequential(nn.Linear(64, 64), nn.GRU(64, 8))
    small = tn.compress(network, parameters=0.9, include="0.*").model
    assert type(small[1]) is nn.GRU
    assert torch.equal(small[1](torch.ones(2, 3, 64))[0], network[1](torch.ones(2, 3, 64))[0])


def test_distillation_recovers_what_was_lost(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8))
    batches, told = list(torch.randn(16, 64, 32)), list[tuple[int, int, float]]()
    small = tn.compress(network, bytes=0.1)
    other = copy.deepcopy(small.model)
    place = tmp_path / "state.pt"
    lost = tn.distill(
        small, network, batches, steps=100, rate=1e-2, progress=lambda *each: told.append(each), resume=place
    )
    assert lost < 0.8 * told[0][2]
    assert [each[:2] for each in told[::10]] == [(0, 100), (100, 100)]
    codes = [each for name, each in small.model.named_buffers() if name.endswith("codes")]
    assert codes
    assert all(each.dtype == torch.int8 for each in codes)
    assert tn.distill(other, network, batches, steps=100, rate=1e-2, resume=place) == pytest.approx(
        lost, rel=1e-5
    )
    x = batches[3]
    assert torch.allclose(other(x), small.model(x), atol=1e-5)
    with pytest.raises(EquationError, match="no module 'body'"):
        tn.distill(other, network, batches, hidden="body")


@pytest.mark.parametrize("kind", ["linear", "turned", "convolution", "recurrent"])
def test_factors_and_biases_make_up_for_the_errors_of_layers_before(kind: str) -> None:
    layers: dict[str, Callable[[], nn.Module]] = {
        "linear": lambda: nn.Linear(64, 64),
        "turned": lambda: turned(64, 64),
        "convolution": lambda: nn.Conv1d(64, 64, 2),
        "recurrent": lambda: nn.RNN(64, 64, batch_first=True),
    }

    def chained(net: Any, x: torch.Tensor) -> torch.Tensor:
        for each in net.parts:
            made = each(x)
            x = torch.relu(made if isinstance(made, torch.Tensor) else made[0]) + 0.5
        return x

    network = Calling(chained, parts=nn.ModuleList(layers[kind]() for _ in range(3)))
    shape = (32, 64, 8) if kind == "convolution" else (32, 4, 64)
    batches, others = (list(torch.randn(8, *shape)) for _ in range(2))
    small = tn.compress(network, bytes=0.08, calibrate=batches)
    plain = tn.compress(network, bytes=0.08)
    with torch.no_grad():
        lost = [
            sum(float((network(x) - each.model(x)).square().sum()) for x in others) for each in (small, plain)
        ]
        means = [torch.stack([each(x) for x in batches]).mean() for each in (network, small.model)]
    assert lost[0] < 0.5 * lost[1]
    assert means[1] == pytest.approx(float(means[0]), rel=0.01)


class Odd(nn.Module):
    """Networks in which layers see other rows, equal rows, or none that are finite, once weights are factors."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first, self.words = kind, nn.Linear(64, 64), nn.Embedding(100, 64)
        self.experts, self.head = nn.ModuleList(nn.Linear(64, 64) for _ in range(3)), nn.Linear(64, 100)
        if kind == "tied":
            self.head.weight = self.words.weight
        self.register_buffer("former", self.first.weight.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "tied":
            x = self.words(x)
        y = torch.relu(self.first(x))
        if self.kind == "experts":
            mine = y[:, :3].argmax(-1)
            y = torch.stack([self.experts[n](y[mine == n]).sum(0) for n in range(3)])
        elif self.kind == "not finite" and x[0, 0] > 0:
            y = y / (self.first.weight - self.former).square().sum().lt(0.01)
        return torch.as_tensor(self.head(torch.relu(y)))


@pytest.mark.parametrize(
    ("kind", "batches"),
    [
        ("experts", [torch.randn(20, 64, generator=torch.Generator().manual_seed(n)) for n in range(8)]),
        ("tied", list(torch.arange(100).expand(8, 100))),
        ("equal", [torch.full((300, 64), 100.0)] * 8),
        ("not finite", [torch.full((9, 64), -1.0 if n % 4 == 3 else 1.0) for n in range(8)]),
    ],
)
@pytest.mark.parametrize("budget", [{"bytes": 0.1}, {"parameters": 0.4}], ids=str)
def test_factors_are_fitted_again_where_that_is_possible(
    kind: str, batches: list[torch.Tensor], budget: dict[str, Any]
) -> None:
    network = Odd(kind)
    small = tn.compress(network, calibrate=batches, **budget)
    assert small.loss < 0.7
    assert small.allocation.after <= next(iter(budget.values())) * small.allocation.before


def test_only_the_state_of_this_student_is_resumed(tmp_path: Path) -> None:
    network, other, batches = nn.Linear(32, 64), nn.Linear(32, 16), list(torch.randn(8, 4, 32))
    place = tmp_path / "state.pt"
    tn.distill(copy.deepcopy(network), network, batches, steps=2, resume=place)
    kept, step, student = place.read_bytes(), pickle.dumps({"step": 1}, 2), copy.deepcopy(other)
    for content in (kept, kept[:-100], b"", b"nothing of torch's", step):
        place.write_bytes(content)
        with pytest.raises(EquationError, match="no state of a distillation of this student"):
            tn.distill(student, other, batches, steps=2, resume=place)
    assert place.read_bytes() == step
    assert torch.equal(student.weight, other.weight)


def test_what_distillation_has_no_use_for_is_refused() -> None:
    network, batches = nn.Linear(32, 64), list(torch.randn(8, 4, 32))
    small = tn.compress(network, bytes=0.3)
    before = copy.deepcopy(small.model.state_dict())
    with pytest.raises(DtypeError, match="is not finite"):
        tn.distill(small, network, [torch.full((4, 32), math.nan)] * 4)
    best = Calling(lambda _, x: x.argmax(-1))
    with pytest.raises(EquationError, match="no real numbers"):
        tn.distill(nn.Sequential(small.model, best), nn.Sequential(network, best), batches)
    for rate in (0, -1.0, math.nan, math.inf, True, "fast"):
        with pytest.raises(ShapeError, match="rate is"):
            tn.distill(small, network, batches, rate=rate)  # type: ignore[arg-type]
    after = small.model.state_dict()
    assert all(torch.equal(each, after[name]) for name, each in before.items())
    one = {"input": batches[0]}
    assert tn.distill(small, network, one, steps=2) == pytest.approx(
        tn.distill(small, network, [one], steps=1), rel=0.1
    )


def test_a_tied_weight_of_codes_stands_once_in_a_file(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Embedding(200, 64), nn.Linear(64, 200, bias=False))
    network[1].weight = network[0].weight
    small = tn.compress(network, bytes=0.2)
    held = small.model.state_dict()
    sizes = {each.data_ptr(): each.numel() * each.element_size() for each in held.values()}
    assert sum(sizes.values()) == small.allocation.after
    x = torch.arange(200)
    assert torch.equal(reread(small, network, tmp_path)(x), small.model(x))
    codes = next(name for name in held if name.endswith("codes"))
    rounded = small.model.get_submodule(codes.rpartition(".")[0])
    rounded.codes.neg_()
    assert not torch.equal(small.model.state_dict()[codes], held[codes])


@pytest.mark.parametrize("method", ["auto", "low_rank", "low_rank:int4"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_bytes_are_those_of_the_element_type(method: str, dtype: torch.dtype) -> None:
    small = tn.compress(nn.Linear(64, 64).to(dtype), bytes=0.3, method=method)
    sizes = [each.numel() * each.element_size() for each in small.model.state_dict().values()]
    assert sum(sizes) == small.allocation.after <= 0.3 * small.allocation.before


def test_codes_of_other_bits_are_no_codes_of_these() -> None:
    network = nn.Linear(32, 64)
    models = {bits: tn.compress(network, bytes=0.5, method=f"int{bits}").model for bits in (3, 4, 8)}
    for bits, other in itertools.permutations(models, 2):
        with pytest.raises(RuntimeError, match=r"size mismatch for weight_factors\.W\.codes"):
            models[bits].load_state_dict(models[other].state_dict())


def test_codes_of_any_device_have_a_state() -> None:
    small = tn.compress(nn.Linear(32, 64), bytes=0.3).model
    held = small.state_dict()
    bare = copy.deepcopy(small).to("meta")
    found = bare.state_dict()
    assert {name: (each.shape, each.dtype) for name, each in found.items()} == {
        name: (each.shape, each.dtype) for name, each in held.items()
    }
    bare.load_state_dict(found)
    bare.load_state_dict(held, assign=True)
    assert torch.equal(bare(torch.ones(1, 32)), small(torch.ones(1, 32)))


def test_rounded_networks_are_made_and_run_in_inference_mode() -> None:
    x = torch.randn(3, 5, 32)
    with torch.inference_mode():
        network = nn.Sequential(nn.Linear(32, 32), nn.Tanh())
        small = tn.compress(network, bytes=0.3).model
        whole = tn.compress(nn.GRU(32, 32), bytes=0.3).model
        y, states = small(x), whole(x)[0]
    assert torch.equal(small(x), y)
    assert torch.allclose(whole(x)[0], states, atol=1e-6)
    frozen = tn.compress(nn.Linear(32, 32).requires_grad_(False), bytes=0.3).model
    with torch.inference_mode():
        frozen(x)
    frozen(x.clone().requires_grad_(True)).sum().backward()


@pytest.mark.parametrize("method", ["int8", "low_rank", "tucker"])
@pytest.mark.parametrize(
    "given", [{"stride": (3, 2)}, {"padding": "same", "dilation": (2, 1)}, {"padding": 1}]
)
def test_kernels_along_one_axis_are_turned(given: dict[str, Any], method: str) -> None:
    layer = nn.Conv2d(8, 12, (16, 1), groups=2, **given)
    small = tn.compress(layer, method=method, bytes=0.5).model
    for x in (torch.randn(2, 8, 40, 1), torch.randn(8, 40, 1), torch.randn(2, 8, 40, 3)):
        x.requires_grad_()
        y = nn.functional.conv2d(x, small.weight, small.bias, groups=2, **given)
        found = small(x)
        assert torch.allclose(found, y, atol=1e-5)
        assert torch.allclose(*(torch.autograd.grad(each.sum(), x)[0] for each in (found, y)), atol=1e-5)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_last_states_of_loops_are_not_in_the_result(kind: type[nn.Module]) -> None:
    model, x = tn.compress(kind(24, 32), parameters=0.3).model, torch.randn(5, 1, 24)
    with torch.no_grad():
        for way in (model._stepped, *([] if kind is nn.RNN else [model._in_numpy])):
            y, last = way(x, None)
            kept = y.clone()
            (last[0] if kind is nn.LSTM else last).zero_()
            assert torch.equal(y, kept)


def test_recurrent_modules_check_states_and_run_in_threads() -> None:
    x = torch.randn(3, 4, 32)
    for kind, states in ((nn.GRU, torch.zeros(1, 1, 48)), (nn.LSTM, (torch.zeros(1, 1, 48),) * 2)):
        model = tn.compress(kind(32, 48), bytes=0.2).model
        with torch.no_grad():
            for way in (model._looped, model._stepped, model._fused):
                with pytest.raises(RuntimeError, match="xpected hidden"):
                    way(x, states)
    found = list[Any]()

    def inside(*_: Any) -> None:
        if not found:
            found.append(None)
            found.append(model._fused(x, None)[0])

    with torch.no_grad():
        model.base.register_forward_pre_hook(inside)  # as another thread may, between weights and kernel
        assert torch.equal(model._fused(x, None)[0], found[1])


def test_a_form_alone_is_taken_where_the_output_loses_less_than_with_a_mixture() -> None:
    rows = DRAW.standard_normal((16, 2)) @ DRAW.standard_normal((2, 16 * 9))
    modes = [DRAW.standard_normal((size, 3)) for size in (16, 16, 3, 3)]
    core = np.einsum("abcd,ia,jb,uc,vd", DRAW.standard_normal((3, 3, 3, 3)), *modes)
    dims = ((16,), (16,), (3,), (3,))
    kernels = {"a": rows.reshape(16, 16, 3, 3), "b": core}
    candidates = [Candidate(name, dims, alone(dims, (1, 2, 3)), array) for name, array in kernels.items()]
    options = Options.of(Budget.of(parameters=0.15), "auto", None, None, False, "*", (), None)

    def forms(found: Compressed) -> set[str | None]:
        return {row.level.method for row in found.allocation.rows}

    def chosen(loss: Callable[[Compressed], float | None]) -> set[str | None]:
        trial = Trial(lambda allocation, _: Compressed(None, None, allocation), loss)
        whole = Whole(parameters_of, 2 * core.size, 2 * core.size)
        return forms(best([candidates], options, whole, trial))

    assert len(chosen(lambda _: None)) == 2
    assert chosen(lambda found: float(len(forms(found)))) < {"low_rank", "tucker", "tt"}
    assert len(chosen(lambda found: float(len(forms(found))))) == 1


def test_forms_are_found_for_each_weight() -> None:
    """A kernel of Tucker's form, a Kronecker product and a matrix of low rank, each with a little noise."""
    draw = np.random.default_rng(0)
    ends = [np.linalg.qr(draw.standard_normal((24, 5)))[0] for _ in range(2)]
    kernel = np.einsum("rsuv,or,is->oiuv", draw.standard_normal((5, 5, 3, 3)), *ends)
    kron = np.kron(draw.standard_normal((8, 6)), draw.standard_normal((8, 8)))
    arrays = [kernel, kron, decaying(24, 24, 3.0)]
    network = nn.ModuleList([nn.Conv2d(24, 24, 3), nn.Linear(48, 64), nn.Linear(24, 24)]).double()
    for layer, array in zip(network, arrays, strict=True):
        noise = 1e-3 * array.std() * draw.standard_normal(array.shape)
        layer.weight.data = torch.as_tensor(array + noise)  # type: ignore[union-attr]
    found = tn.compress(network, parameters=0.15, method="auto")
    chosen = {row.path: (row.level.method, row.level.error) for row in found.allocation.rows}
    assert chosen["0.weight"][0] == "tucker"
    products = ("kronecker", "blocktt", "btt", "monarch")  # at rank 1 all of these are Kronecker products
    assert chosen["1.weight"][0] in products
    assert max(error for _, error in chosen.values()) < 0.05
    assert tn.compress(network, error=0.3, max_error=0.01, method="auto").allocation.error < 0.01
    line = nn.Sequential(nn.Flatten(), nn.Linear(72, 10))  # forms with the same cuts share a decomposition
    weighed = tn.compress(
        line, parameters=0.5, method=("blocktt", "kronecker"), calibrate=torch.randn(64, 72)
    )
    assert weighed.misfits["1.weight"].output <= 1.001 * weighed.allocation.error  # rounds follow


@given(st.sampled_from(FORMS), st.integers(2, 24), st.integers(2, 24), st.booleans(), st.floats(0.3, 1.0))
@examples(10)
def test_linear_layers_of_any_shape(method: str, ins: int, outs: int, bias: bool, part: float) -> None:
    torch.manual_seed(ins)
    network = nn.Linear(ins, outs, bias=bias).double()
    try:
        found = tn.compress(network, parameters=part, method=method)
    except tn.ShapeError as error:
        assert "too few" in str(error)  # noqa: PT017 - the smallest of a form is more than that
        return
    x = torch.randn(3, ins, dtype=torch.float64)
    weight = found.model.weight
    assert weight.shape == (outs, ins)
    expected = x @ weight.T + (network.bias if bias else 0)
    torch.testing.assert_close(found.model(x), expected)


@pytest.mark.filterwarnings("ignore")  # of transformers
@pytest.mark.parametrize("kind", ["ViT", "Swin", "Bert", "GPT2", "Llama", "ResNet"])
def test_networks_of_transformers(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 96}
    windows = {"embed_dim": 32, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4, "image_size": 32}
    options: dict[str, Any] = {
        "ViT": {**small, "image_size": 32, "patch_size": 8},
        "Swin": windows,
        "Bert": {**small, "vocab_size": 100},
        "GPT2": {"n_embd": 64, "n_layer": 1, "n_head": 4, "vocab_size": 100},
        "Llama": {**small, "vocab_size": 100, "num_key_value_heads": 2},
        "ResNet": {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]},
    }[kind]
    x = torch.randint(0, 100, (2, 9)) if "vocab_size" in options else torch.randn(2, 3, 32, 32)
    network = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**options))
    network = network.eval()
    found = tn.compress(network, parameters=0.6)
    with torch.no_grad():
        y, expected = (each(x)[0] for each in (found.model, dense_of(network, found.model)))
    torch.testing.assert_close(y, expected, rtol=1e-3, atol=1e-4)
    assert found.allocation.parameters[1] <= 0.6 * found.allocation.parameters[0]
    assert sum("weight_factors" in key for key in found.model.state_dict()) >= 2


@pytest.mark.filterwarnings("ignore")  # of transformers
def test_a_compressed_network_of_transformers_is_saved_and_read(tmp_path: Path) -> None:
    """By `load_compressed`; `from_pretrained`, which would draw the weights that are factors, finds no file."""
    transformers = pytest.importorskip("transformers")
    network = bert("ForSequenceClassification")
    tokens = torch.randint(0, 50, (2, 9))
    small = copy.deepcopy(tn.compress(network, parameters=0.6).model)
    with torch.no_grad():
        for each in small.parameters():
            each.add_(0.1)
    small.save_pretrained(tmp_path / "small", state_dict=small.state_dict())
    small.save_pretrained(tmp_path / "small")
    read = transformers.AutoConfig.from_pretrained(tmp_path / "small")
    again = transformers.BertForSequenceClassification(read).eval()
    again = tn.load_compressed(tmp_path / "small", again).model
    torch.testing.assert_close(again(tokens).logits, small(tokens).logits)
    again.save_pretrained(tmp_path / "again")
    with pytest.raises(OSError, match="no file named"):
        transformers.BertForSequenceClassification.from_pretrained(tmp_path / "small")
    with pytest.raises(tn.EquationError, match=r"part of another(?s:.*)found.save"):
        small.bert.save_pretrained(tmp_path / "part")
    network.save_pretrained(tmp_path / "dense")
    with pytest.raises(tn.EquationError, match=r"has the weights of another model, model.safetensors"):
        small.save_pretrained(tmp_path / "dense")


def test_a_layer_that_stands_at_two_places_is_one() -> None:
    layer = nn.Linear(32, 32)
    small: Any = tn.compress(nn.Sequential(layer, nn.ReLU(), layer), parameters=0.5).model
    assert small[0] is small[2]
    assert sum(each.numel() for each in small.parameters()) <= 0.5 * (32 * 32 + 32)


@pytest.mark.parametrize("method", ["low_rank", "tt", "cp"])
def test_a_weight_of_zeros_is_met(method: str) -> None:
    network = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32)).double()
    network[0].weight.data.zero_()
    assert tn.compress(network, parameters=0.5, method=method).misfits["0.weight"].weight < 1e-40


def test_empty_weights_and_weights_of_hooks_stay_as_they_are() -> None:
    pruned: Any = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32))
    prune.l1_unstructured(pruned[0], "weight", 0.5)
    pruned[1].weight = nn.Parameter(torch.empty(0, 32))
    small: Any = tn.compress(pruned, parameters=0.9).model
    x = torch.randn(3, 32)
    torch.testing.assert_close(small[0](x), pruned[0](x))
    assert small[1].weight.shape == (0, 32)
    assert set(dict(small[2].named_parameters())) == {"weight_factors.U", "weight_factors.V", "bias"}


def test_calibration_leaves_each_part_in_the_mode_that_it_was_in() -> None:
    network = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.Linear(32, 32)).train()
    network[1].eval()
    small: Any = tn.compress(network, parameters=0.5, calibrate=torch.randn(8, 32)).model
    assert [each.training for each in small] == [True, False, True]


def test_the_weight_is_that_of_the_factors_wherever_they_went() -> None:
    x = torch.randn(2, 5, 32)
    network = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True).eval()
    small: Any = tn.compress(network, parameters=0.5).model
    twice = {name: 1.5 * each.detach() for name, each in small.state_dict().items()}
    expected = copy.deepcopy(small)
    expected.load_state_dict(twice)
    torch.testing.assert_close(torch.func.functional_call(small, twice, (x,)), expected(x))
    empty = copy.deepcopy(small).to("meta")
    assert empty.linear1.weight.is_meta
    assert empty.self_attn.in_proj_weight.is_meta
    empty.load_state_dict(twice, assign=True)
    with torch.no_grad():
        torch.testing.assert_close(empty(x), expected(x))


def test_modules_are_saved_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.torch import save_file

    for dtype in (torch.float32, torch.bfloat16):
        network, x = words()
        found = tn.compress(network.to(dtype), parameters=0.5, method="tt")
        torch.manual_seed(5)
        read = tn.load_compressed(found.save(tmp_path / f"{dtype}.safetensors"), Words().to(dtype).eval())
        assert torch.equal(read.model(x), found.model(x))
    tensors = {"a": torch.randn(3, 4).bfloat16(), "b": torch.tensor(2.0).bfloat16(), "c": torch.ones(2)}
    save_file(tensors, tmp_path / "any.safetensors")
    with monkeypatch.context() as alone:
        alone.setitem(sys.modules, "torch", None)  # as where it is not installed
        arrays, _ = read_arrays(tmp_path / "any.safetensors")
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(arrays[name], tensor.float().numpy())
