"""Adapters: nothing changes before they are trained, they alone are, and merged the network is what it was."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import tensornet as tn
from tensornet import models

FORMS = ("low_rank", "kronecker", "tt", "tucker", "blocktt")
GRAPH = models.vit(16, 4, 32, 2, 4, 64, 10)
PICTURES = np.random.default_rng(0).standard_normal((2, 3, 16, 16))


def random_parameters(graph: tn.Graph) -> dict[str, Any]:
    draw = np.random.default_rng(1)
    return {
        name: 0.3 * draw.standard_normal(array.shape)
        for name, array in tn.init(graph, seed=0, dtype="float64").items()
    }


@pytest.mark.parametrize("method", FORMS)
def test_a_graph_with_adapters_starts_as_it_was_and_merges(method: str) -> None:
    adapted = tn.adapt(GRAPH, ["*.Wq", "*.Wv"], method=method, rank=2, alpha=4)
    values = random_parameters(GRAPH)
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


class Net(nn.Module):
    """Two linear layers around a nonlinearity."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(12, 16), nn.Linear(16, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.two(torch.tanh(self.one(x)))
        return found


def net() -> tuple[Net, torch.Tensor]:
    torch.manual_seed(0)
    return Net().double(), torch.randn(5, 12, dtype=torch.float64)


def moved(module: Any) -> Any:
    """The module with adapters that do something."""
    torch.manual_seed(1)
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
    optimizer = torch.optim.SGD([each for each in small.parameters() if each.requires_grad], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (small(x) - 1).pow(2).mean().backward()
        optimizer.step()
    assert torch.equal(small.one.weight, network.one.weight)
    assert not torch.allclose(small(x), network(x))
    merged: Any = tn.merge(small)
    assert type(merged.one) is nn.Linear
    assert set(merged.state_dict()) == set(network.state_dict())
    torch.testing.assert_close(merged(x), small(x), rtol=1e-6, atol=1e-9)
    assert all(each.requires_grad for each in merged.parameters())


def test_layers_with_adapters_are_copied_and_compiled() -> None:
    network, x = net()
    small = moved(tn.adapt(network, "two.weight", rank=3, alpha=6, seed=0))
    y = small(x)
    torch.testing.assert_close(copy.deepcopy(small)(x), y)
    torch.testing.assert_close(pickle.loads(pickle.dumps(small))(x), y)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(small, fullgraph=True, backend="eager")(x), y)
    u, v = (small.two.adapter.get_parameter(name) for name in "UV")
    expected = network.two(h := torch.tanh(network.one(x))) + 2 * h @ (u @ v).T
    torch.testing.assert_close(y, expected)
    assert isinstance(small.two, nn.Linear)


def test_what_cannot_have_an_adapter_is_refused() -> None:
    network, _ = net()
    with pytest.raises(tn.EquationError, match="'three"):
        tn.adapt(network, "three.*")
    small = tn.adapt(network, "*", rank=2)
    with pytest.raises(tn.EquationError, match="has an adapter already"):
        tn.adapt(small, "one.weight", rank=2)
    with pytest.raises(tn.EquationError, match="has no adapters"):
        tn.merge(network)
    with pytest.raises(tn.ShapeError, match="alpha=4"):
        tn.adapt(network, "*", rank=0.5, alpha=4)
    with pytest.raises(tn.EquationError, match="all is to be given"):
        tn.merge(GRAPH)
    with pytest.raises(tn.EquationError, match="no weight"):
        tn.merge(GRAPH, GRAPH, random_parameters(GRAPH))


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
        expected.get_submodule(name).weight.data += scale * b @ a  # type: ignore[operator]
    torch.testing.assert_close(small(x), expected(x))
    again = tn.load_peft(network, tn.save_peft(small, tmp_path / "again"))
    torch.testing.assert_close(again(x), expected(x))
    with pytest.raises(tn.EquationError, match="is there already"):
        tn.save_peft(small, tmp_path / "again")
    with pytest.raises(tn.EquationError, match="holds no adapters of peft"):
        tn.load_peft(network, tmp_path)
    with pytest.raises(tn.EquationError, match="no linear layer here"):
        tn.load_peft(nn.Sequential(nn.Linear(12, 16)), folder)
    with pytest.raises(tn.EquationError, match="not of low rank"):
        tn.save_peft(tn.adapt(network, "*", method="tt", rank=2), tmp_path / "tt")


@pytest.mark.filterwarnings("ignore")  # of transformers
def test_every_projection_of_a_vit() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32
    )
    torch.manual_seed(0)
    network, x = transformers.ViTModel(config).eval(), torch.randn(2, 3, 32, 32)
    small = tn.adapt(network, ["*attention*.weight"], rank=2, alpha=4, seed=0)
    adapters = [name for name, _ in small.named_modules() if name.endswith(".adapter")]
    assert len(adapters) == 8
    with torch.no_grad():
        torch.testing.assert_close(small(x)[0], network(x)[0])
        y = moved(small)(x)[0]
        torch.testing.assert_close(tn.merge(small)(x)[0], y, rtol=1e-5, atol=1e-6)
