"""Layers of torch, and several one after another: the same outputs, on torch and on NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tensornet as tn
from tensornet import models

from .conftest import rows

pytestmark = pytest.mark.usefixtures("without_gradients")


def agree(module: nn.Module, x: torch.Tensor, **changes: Any) -> tn.Graph:
    """The graph of a module, once its outputs are seen to be those of the module as it evaluates."""
    module = module.double().eval()
    for each in module.modules():
        if isinstance(each, nn.modules.batchnorm._BatchNorm):
            each.running_mean.normal_()
            each.running_var.uniform_(0.5, 2)
    for parameter in module.parameters():
        parameter.normal_()
    expected = module(x)
    graph, parameters = models.from_torch(module, **changes)
    found = tn.compile(graph, backend="torch")(parameters, x)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    on_numpy = tn.compile(graph)(tn.to_backend(parameters, "numpy"), x.numpy())
    np.testing.assert_allclose(on_numpy, expected.numpy(), rtol=1e-8, atol=1e-8)
    return graph


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


ACTIVATIONS = [
    *(nn.ReLU(), nn.ReLU6(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Mish(), nn.Tanh(), nn.Sigmoid()),
    *(nn.LogSigmoid(), nn.Softsign(), nn.SELU(), nn.ELU(0.5), nn.LeakyReLU(0.2), nn.Hardsigmoid()),
    *(nn.Hardswish(), nn.Softplus(2.0), nn.Identity(), nn.Dropout(0.3)),
]


@pytest.mark.parametrize("module", ACTIVATIONS, ids=lambda each: str(each))
def test_activations(module: nn.Module) -> None:
    agree(module, 3 * numbers(2, 3, 4))


@pytest.mark.parametrize(("layer", "shape"), rows("torch_layers.txt"))
def test_layers(layer: str, shape: str) -> None:
    module: nn.Module = eval(f"nn.{layer}")
    sizes = [int(size) for size in shape.split(",")]
    x = torch.randint(0, 7, sizes) if isinstance(module, nn.Embedding) else numbers(*sizes)
    graph = agree(module, x)
    assert tn.parameter_count(graph) == sum(each.numel() for each in module.parameters())


def test_layers_one_after_another() -> None:
    perceptron = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(8), nn.Linear(8, 3))
    graph = agree(perceptron, numbers(5, 4))
    assert [leaf.name for leaf in graph.parameters] == [
        *("layers.0.W", "layers.0.bias", "layers.3.gain", "layers.3.bias", "layers.4.W", "layers.4.bias")
    ]
    agree(perceptron, numbers(5, 2, 4), inputs="x[b,n,c]")


def test_a_network_of_convolutions() -> None:
    block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
    module = nn.Sequential()
    module.add_module("stem", nn.Conv2d(3, 4, 3, stride=2))
    module.add_module("block", block)
    module.add_module("pool", nn.MaxPool2d(2))
    module.add_module("flat", nn.Flatten())
    module.add_module("head", nn.Linear(4 * 3 * 4, 5))
    module.add_module("weights", nn.Softmax(-1))
    graph = agree(module, numbers(2, 3, 13, 17), inputs="x[b,c:3,i:13,j:17]")
    assert {leaf.name.rpartition(".")[0] for leaf in graph.parameters} == {
        *("stem", "block.layers.0", "block.layers.1", "head")
    }


def test_texts_through_a_transformer() -> None:
    encoder = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    module = nn.Sequential(nn.Embedding(7, 8), nn.TransformerEncoder(encoder, 2), nn.Linear(8, 3))
    agree(module, torch.randint(0, 7, (2, 5)))
