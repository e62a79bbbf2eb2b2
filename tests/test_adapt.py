"""Adapters: nothing changes before they are trained, they alone are, and merged the network is what it was."""

from __future__ import annotations

import copy
import json
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import tensornet as tn
from tensornet import models

from .conftest import bert, normal, parameters_of
from .networks import Calling, turned

FORMS = ("low_rank", "kronecker", "tt", "tucker", "blocktt")
GRAPH = models.vit(16, 4, 32, 2, 4, 64, 10)
PICTURES = normal(2, 3, 16, 16)


@pytest.mark.parametrize("method", FORMS)
def test_a_graph_with_adapters_starts_as_it_was_and_merges(method: str) -> None:
    adapted = tn.adapt(GRAPH, ["*.Wq", "*.Wv"], method=method, rank=2, alpha=4)
    values = parameters_of(GRAPH)
    started = tn.init(adapted, seed=2, dtype="float64")
    base = {f"{name}.base": array for name, array in values.items() if f"{name}.base" in started}
    given = {**started, **{name: array for name, array in values.items() if name in started}, **base}
    y = tn.compile(GRAPH)(values, PICTURES)
    np.testing.assert_allclose(tn.compile(adapted)(given, PICTURES), y, rtol=1e-12)
    factors = set(started) - set(values) - set(base)
    assert len(base) == 4
    assert any(started[name].any() for name in factors)
    draw = np.random.default_rng(3)
    trained = {
        name: 0.2 * draw.standard_normal(array.shape) if name in factors else array
        for name, array in given.items()
    }
    z = tn.compile(adapted)(trained, PICTURES)
    assert not np.allclose(z, y)
    merged = tn.merge(GRAPH, adapted, trained)
    assert set(merged) == set(values)
    np.testing.assert_allclose(tn.compile(GRAPH)(merged, PICTURES), z, rtol=1e-9)


def net() -> tuple[Any, torch.Tensor]:
    """Two linear layers around a nonlinearity, and an input."""
    parts = {"one": nn.Linear(12, 16), "tanh": nn.Tanh(), "two": nn.Linear(16, 8, bias=False)}
    return nn.Sequential(OrderedDict(parts)).double(), torch.randn(5, 12, dtype=torch.float64)


def stepped(module: Any, x: torch.Tensor, steps: int, rate: float = 0.1) -> None:
    """Trains what asks for it."""
    optimizer = torch.optim.SGD([each for each in module.parameters() if each.requires_grad], lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        (module(x) - 1).pow(2).mean().backward()
        optimizer.step()


def moved(module: Any) -> Any:
    """The module with adapters that do something."""
    for each in module.parameters():
        if each.requires_grad:
            each.data.normal_(std=0.3)
    return module


@pytest.mark.parametrize("method", FORMS)
def test_a_module_with_adapters_trains_these_alone_and_merges(method: str) -> None:
    network, x = net()
    small: Any = tn.adapt(network, "*", method=method, rank=2, seed=0)
    torch.testing.assert_close(small(x), network(x))
    assert {name for name, each in small.named_parameters() if each.requires_grad} == {
        name for name, _ in small.named_parameters() if ".adapter." in name
    }
    stepped(small, x, 3)
    assert torch.equal(small.state_dict()["one.weight"], network.one.weight)
    assert not torch.allclose(small(x), network(x))
    merged: Any = tn.merge(small)
    assert type(merged.one) is nn.Linear
    assert set(merged.state_dict()) == set(network.state_dict())
    torch.testing.assert_close(merged(x), small(x), rtol=1e-6, atol=1e-9)
    assert all(each.requires_grad for each in merged.parameters())


def test_layers_with_adapters_are_copied_and_compiled() -> None:
    network, x = net()
    small = moved(tn.adapt(network, "two.weight", rank=3, alpha=6, seed=np.int64(0)))
    y = small(x)
    torch.testing.assert_close(copy.deepcopy(small)(x), y)
    torch.testing.assert_close(pickle.loads(pickle.dumps(small))(x), y)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(small, fullgraph=True, backend="eager")(x), y)
    u, v = (small.two.adapter.get_parameter(name) for name in "UV")
    expected = network.two(h := torch.tanh(network.one(x))) + 2 * h @ (u @ v).T
    torch.testing.assert_close(y, expected)
    assert isinstance(small.two, nn.Linear)
    assert tn.adapt(network, "one.weight", rank=13).one.adapter.U.shape == (16, 13)  # beyond full rank
    network.register_parameter("count", nn.Parameter(torch.ones(3, dtype=torch.int8), requires_grad=False))
    small = moved(tn.adapt(network, "*", rank=2))
    torch.testing.assert_close(tn.merge(small)(x), small(x))


def configured(folder: Path, **changes: Any) -> Path:
    """The folder of a file of peft, whose configuration says something else."""
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def test_files_of_peft_go_in_and_out(tmp_path: Path) -> None:
    """The format: lora_A[r, in], lora_B[out, r]; what is added is lora_alpha/r · B·A."""
    network, x = net()
    tensors = {
        "base_model.model.one.lora_A.weight": torch.randn(3, 12, dtype=torch.float64),
        "base_model.model.one.lora_B.weight": torch.randn(16, 3, dtype=torch.float64),
        "base_model.model.two.lora_A.weight": torch.randn(2, 16, dtype=torch.float64),
        "base_model.model.two.lora_B.weight": torch.randn(8, 2, dtype=torch.float64),
    }
    config = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "rank_pattern": {"two": 2}, "bias": "none"}
    folder = tmp_path / "lora"
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config))
    small = tn.load_peft(network, folder)
    expected = copy.deepcopy(network)
    for name, scale in (("one", 2.0), ("two", 3.0)):
        a, b = (tensors[f"base_model.model.{name}.lora_{each}.weight"] for each in "AB")
        expected.get_submodule(name).weight.data += scale * b @ a
    torch.testing.assert_close(small(x), expected(x))
    again = tn.load_peft(network, tn.save_peft(small, tmp_path / "again"))
    torch.testing.assert_close(again(x), expected(x))
    patterns = {"lora_alpha": 2, "alpha_pattern": {"on": 2, "t.o": 6, "one": 6}}  # the same factors of scale
    again = tn.load_peft(network, configured(folder, **patterns))
    torch.testing.assert_close(again(x), expected(x))


# ---------------------------------------------------------------------------- factors that layers share

SHARING = {"fact_tt": 3, "fact_tk": (3, 2, 4)}
"""The forms, and their ranks."""
COUNTS = {"fact_tt": (3, 3, 9, 0), "fact_tk": (3, 2, 4, 3 * 2 * 4)}
"""Columns of U, rows of V, what each weight has, and what is in the middle."""


def shared_change(method: str, get: Any, names: list[str]) -> list[Any]:
    """What is added to each of some weights, by NumPy in float64: U·S_l·V, or U·(C·P_l)·V."""
    found = []
    for name in names:
        inner = (
            get(name, "S") if method == "fact_tt" else np.einsum("rst,t->rs", get("", "C"), get(name, "P"))
        )
        found.append(np.einsum("or,rs,si->oi", get("", "U"), inner, get("", "V")))
    return found


@pytest.mark.parametrize("method", SHARING)
def test_layers_of_a_graph_share_factors(method: str) -> None:
    rank = SHARING[method]
    adapted = tn.adapt(GRAPH, ["*.W[qv]"], method=method, rank=rank)
    paths = [f"blocks.{n}.attention.W{each}" for n in range(2) for each in "qv"]
    u, v, inner, core = COUNTS[method]
    assert tn.parameter_count(adapted) - tn.parameter_count(GRAPH) == 32 * (u + v) + core + 4 * inner
    assert tn.Graph.from_json(adapted.to_json()) == adapted
    assert len({call.graph for call in adapted.calls}) == len({call.graph for call in GRAPH.calls})
    values = parameters_of(GRAPH)
    started, _ = tn.fit(GRAPH, values, adapted)
    np.testing.assert_allclose(
        tn.compile(adapted)(started, PICTURES), tn.compile(GRAPH)(values, PICTURES), rtol=1e-12
    )
    drawn = tn.init(adapted, seed=2, dtype="float64")
    factors = [name for name in drawn if name not in values and not name.endswith(".base")]
    assert sorted(name for name in factors if "blocks.attention" in name) == sorted(
        f"blocks.attention.{each}" for each in ("UV" if method == "fact_tt" else "UCV")
    )
    own = {name: array for name, array in drawn.items() if name in factors}
    assert not own["blocks.attention.V"].any()
    assert all(own[name].any() for name in factors if not name.endswith(".V"))
    draw = np.random.default_rng(3)
    trained = started | {name: 0.2 * draw.standard_normal(array.shape) for name, array in own.items()}
    merged = tn.merge(GRAPH, adapted, trained)
    changes = shared_change(
        method, lambda name, factor: trained[f"{name or 'blocks.attention'}.{factor}"], paths
    )
    for path, change in zip(paths, changes, strict=True):
        np.testing.assert_allclose(merged[path], values[path] + change, rtol=1e-12)
    z = tn.compile(adapted)(trained, PICTURES)
    np.testing.assert_allclose(tn.compile(GRAPH)(merged, PICTURES), z, rtol=1e-9)


class Stack(nn.Module):
    """Linear layers of one shape, and one of another."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(3))
        self.last = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.last(x)


@pytest.mark.parametrize("method", SHARING)
def test_layers_of_a_module_share_factors(method: str, tmp_path: Path) -> None:
    network, x = Stack().double(), torch.randn(5, 12, dtype=torch.float64)
    rank: Any = SHARING[method]
    small: Any = tn.adapt(network, "*", method=method, rank=rank, seed=0)
    torch.testing.assert_close(small(x), network(x))
    trained = {name: each for name, each in small.named_parameters() if each.requires_grad}
    u, v, inner, core = COUNTS[method]
    alone = 5 * u + 12 * v + core + inner  # `last` is of another shape
    assert sum(each.numel() for each in trained.values()) == 12 * (u + v) + core + 3 * inner + alone
    assert small.layers[0].adapter.U is small.layers[2].adapter.U
    assert small.layers[0].adapter.U is not small.last.adapter.U
    stepped(small, x, 4)
    y = small(x)
    assert torch.equal(small.state_dict()["layers.1.weight"], network.layers[1].weight)
    copied: Any = copy.deepcopy(small)
    assert copied.layers[0].adapter.V is copied.layers[1].adapter.V
    torch.testing.assert_close(pickle.loads(pickle.dumps(small))(x), y)
    merged: Any = tn.merge(small)
    changes = shared_change(
        method,
        lambda name, factor: small.layers[int(name or 0)].adapter.get_parameter(factor).detach().numpy(),
        ["0", "1", "2"],
    )
    for old, new, change in zip(network.layers, merged.layers, changes, strict=True):
        torch.testing.assert_close(new.weight - old.weight, torch.as_tensor(change))
    torch.testing.assert_close(merged(x), y)
    path = tn.save_adapters(tmp_path / "fact.safetensors", small)
    again: Any = tn.load_adapters(path, network)
    torch.testing.assert_close(again(x), y, rtol=0, atol=0)
    assert again.layers[0].adapter.U is again.layers[1].adapter.U
    assert {name for name, each in again.named_parameters() if each.requires_grad} == set(trained)


def test_any_form_may_have_factors_that_are_shared(tmp_path: Path) -> None:
    """LoTR is a Tucker form over layers whose matrices are shared; ranks of a fraction are one of all weights."""
    network = Stack()
    small: Any = tn.adapt(network, "layers.*", method="tucker", rank=(4, 3), modes=1, shared="U1 U2")
    assert small.layers[0].adapter.U1 is small.layers[1].adapter.U1
    assert small.layers[0].adapter.G is not small.layers[1].adapter.G
    part: Any = tn.adapt(network, "layers.*", method="fact_tt", rank=0.5)
    count = sum(each.numel() for each in part.parameters() if each.requires_grad)
    assert count == pytest.approx(0.5 * 3 * 144, rel=0.1)
    apart: Any = tn.adapt(network, ["layers.0.*", "layers.[12].*"], method="low_rank", rank=2, shared="V")
    assert apart.layers[0].adapter.V is not apart.layers[1].adapter.V
    assert apart.layers[2].adapter.V is apart.layers[1].adapter.V


class Doubling(nn.Linear):
    """A layer that does something of its own with its weight."""

    def forward(self, x: Any) -> Any:
        return nn.functional.linear(x, 2 * self.weight, self.bias)


def test_who_reads_a_weight_with_an_adapter_reads_the_whole_of_it() -> None:
    network = nn.Sequential(
        nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), Doubling(16, 16)
    ).eval()
    network, x = network.double(), torch.randn(2, 5, 16, dtype=torch.float64)
    small: Any = moved(tn.adapt(network, "*", rank=2, alpha=3, seed=0))
    expected = copy.deepcopy(network)
    for name, layer in small.named_modules():
        if hasattr(layer, "adapter"):
            change = 1.5 * layer.adapter.U.detach() @ layer.adapter.V.detach()
            expected.get_parameter(f"{name}.weight").data += change
    with torch.no_grad():  # the fast way of an encoder's layer, which calls none of its parts
        torch.testing.assert_close(small(x), expected(x))
    y = small(x)
    torch.testing.assert_close(y, expected(x))
    torch.testing.assert_close(tn.merge(small)(x), y)
    torch.testing.assert_close(small[0].linear1(input=x), expected[0].linear1(x))
    y.pow(2).sum().backward()
    assert all(each.grad.abs().max() > 0 for each in small.parameters() if each.requires_grad)


def test_a_weight_that_others_have_too_stays_theirs_when_an_adapter_is_merged() -> None:
    network: Any = nn.Sequential(
        nn.Embedding(9, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 9)
    ).double()
    network[3].weight, network[2].weight = network[0].weight, network[1].weight
    small, k = moved(tn.adapt(network, "*", rank=2, seed=0)), torch.arange(9)
    merged: Any = tn.merge(small)
    torch.testing.assert_close(merged(k), small(k))
    assert torch.equal(merged[0].weight, network[0].weight)


def classifying() -> Any:
    """A body that is adapted, and a classifier that is trained whole: its norm has buffers."""
    return Calling(
        lambda net, x: net.classifier["out"](net.classifier["norm"](torch.tanh(net.body(x)))),
        body=nn.Linear(12, 16),
        classifier=nn.ModuleDict({"norm": nn.BatchNorm1d(16), "out": nn.Linear(16, 4)}),
    ).eval()


def test_what_is_trained_besides_adapters_is_kept(tmp_path: Path) -> None:
    network = classifying()
    network.classifier.train()
    small, x = tn.adapt(network, "body.weight", rank=2, seed=0), torch.randn(6, 12)
    small.classifier.requires_grad_(True)
    stepped(small, x, 5, 2.0)
    small.eval()
    network.eval()
    assert float((small(x) - network(x)).detach().abs().max()) > 0.1
    folder = tn.save_peft(small, tmp_path / "lora")
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["modules_to_save"] == ["classifier.norm", "classifier.out"]
    again = tn.load_peft(network, folder)
    torch.testing.assert_close(again(x), small(x), rtol=0, atol=0)
    names = [name for name, each in small.named_parameters() if each.requires_grad]
    assert [name for name, each in again.named_parameters() if each.requires_grad] == names
    network.classifier["norm"].load_state_dict(small.classifier["norm"].state_dict())  # type: ignore[union-attr, operator]
    other = tn.load_adapters(tn.save_adapters(tmp_path / "own.safetensors", small), network)
    torch.testing.assert_close(other(x), small(x), rtol=0, atol=0)
    assert [name for name, each in other.named_parameters() if each.requires_grad] == names


def test_modules_that_peft_keeps_whole_are_read(tmp_path: Path) -> None:
    """Keys as peft writes them: `base_model.model.<module>.<parameter>`; a last part of a path names a module."""
    network, x = classifying(), torch.randn(3, 12)
    values = {name: torch.randn_like(each) for name, each in network.named_parameters() if "out" in name}
    a, b = torch.randn(2, 12), torch.randn(16, 2)
    tensors = {"base_model.model.body.lora_A.weight": a, "base_model.model.body.lora_B.weight": b}
    tensors |= {f"base_model.model.{name}": each for name, each in values.items()}
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "modules_to_save": ["out", "score"]}
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    found = tn.load_peft(network, tmp_path)
    expected = copy.deepcopy(network)
    expected.load_state_dict(values, strict=False)
    expected.body.weight.data += b @ a
    torch.testing.assert_close(found(x), expected(x))
    with pytest.raises(tn.EquationError, match=r"lacks 'classifier.norm.weight'(?s:.*)modules_to_save"):
        tn.load_peft(network, configured(tmp_path, modules_to_save=["classifier"]))
    foreign = r"'base_model.model.classifier.out.(weight|bias)', which is no"
    with pytest.raises(tn.EquationError, match=foreign):
        tn.load_peft(network, configured(tmp_path, modules_to_save=None))
    network.classifier["out"] = nn.Linear(16, 5)
    with pytest.raises(tn.EquationError, match=r"'classifier.out.(weight|bias)' of shape(?s:.*)network has"):
        tn.load_peft(network, configured(tmp_path, modules_to_save=config["modules_to_save"]))


def test_a_trained_parameter_that_peft_has_no_place_for_is_kept_beside_adapters(tmp_path: Path) -> None:
    network, x = net()
    small = moved(tn.adapt(network, "one.weight", rank=2, seed=0))
    small.one.bias.requires_grad_(True)
    moved(small)
    again = tn.load_adapters(tn.save_adapters(tmp_path / "own.safetensors", small), network)
    torch.testing.assert_close(again(x), small(x))


@pytest.mark.filterwarnings("ignore")  # of transformers
def test_an_adapted_network_of_transformers_is_saved_and_read(tmp_path: Path) -> None:
    """By `load_adapters`; `from_pretrained`, which would drop the adapters, finds no file."""
    transformers = pytest.importorskip("transformers")
    network = bert("ForSequenceClassification")
    tokens = torch.randint(0, 50, (2, 9))
    adapted: Any = copy.deepcopy(tn.adapt(network, "*query*", rank=2))
    adapted.classifier.requires_grad_()
    with torch.no_grad():
        for each in adapted.parameters():
            if each.requires_grad:
                each.add_(0.1)
    adapted.save_pretrained(tmp_path / "adapted", state_dict=adapted.state_dict())
    adapted.save_pretrained(tmp_path / "adapted")
    again = tn.load_adapters(tmp_path / "adapted", network)
    torch.testing.assert_close(again(tokens).logits, adapted(tokens).logits)
    again.save_pretrained(tmp_path / "again")
    with pytest.raises(OSError, match="no file named"):
        transformers.BertForSequenceClassification.from_pretrained(tmp_path / "adapted")
    with pytest.raises(tn.EquationError, match=r"part of another(?s:.*)save_adapters"):
        adapted.bert.save_pretrained(tmp_path / "part")
    merged = tn.merge(adapted)
    merged.save_pretrained(tmp_path / "merged")
    read = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "merged").eval()
    torch.testing.assert_close(read(tokens).logits, adapted(tokens).logits)


def test_a_layer_of_transformers_with_an_adapter_is_copied() -> None:
    network, x = tn.adapt(nn.Sequential(turned(32, 16)), "*", rank=2), torch.ones(2, 16)
    for made in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        torch.testing.assert_close(made(x), network(x), rtol=0, atol=0)
