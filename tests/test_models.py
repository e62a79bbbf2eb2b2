"""Every model on every backend, as text, compiled, trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet import models
from tensornet.protocol import backend_of, load_backend

from .conftest import sampled

Array = Any


def words(rng: np.random.Generator, *shape: int, most: int = 11) -> Array:
    return rng.integers(0, most, shape)


MODELS: dict[str, tuple[tn.Graph, Callable[[Any], list[Array]]]] = {
    "vit": (
        models.vit(8, 4, 8, 2, 2, 12, 5, head="mlp"),
        lambda rng: [rng.standard_normal((3, 3, 8, 8))],
    ),
    "perceiver": (
        models.perceiver((4, 3), 2, 5, 8, 2, 2, 4, repeats=2, cross_attends=2, bands=3),
        lambda rng: [rng.standard_normal((3, 2, 4, 3))],
    ),
    "perceiver_io": (
        models.perceiver(
            None, 2, 5, 8, 1, 2, 4, repeats=2, positions="given", resolution=(4, 4), head="query"
        ),
        lambda rng: [rng.standard_normal((3, 7, 2)), rng.uniform(-1, 1, (3, 7, 2))],
    ),
    "transformer": (
        models.transformer(11, 8, 2, 2, 12, padding=True),
        lambda rng: [words(rng, 3, 5), words(rng, 3, 4), rng.random((3, 5)) < 0.8, np.ones((3, 4), bool)],
    ),
    "transformer_classifier": (
        models.transformer_classifier(11, 3, 8, 2, 2, 12),
        lambda rng: [words(rng, 3, 6), np.ones((3, 6), bool)],
    ),
    "bert": (
        models.bert(11, 8, 2, 2, 12, length=7, segments=True, padding=True, head="tokens"),
        lambda rng: [words(rng, 3, 6), np.ones((3, 6), bool), words(rng, 3, 6, most=2)],
    ),
    "clip_text": (models.clip_text(11, 8, 2, 2, 12, 5, length=7), lambda rng: [words(rng, 3, 6)]),
    "clip_vision": (
        models.clip_vision(8, 4, 8, 2, 2, 12, 5),
        lambda rng: [rng.standard_normal((3, 3, 8, 8))],
    ),
    "deit": (models.deit(8, 4, 8, 2, 2, 12, 5), lambda rng: [rng.standard_normal((3, 3, 8, 8))]),
    "gpt2": (models.gpt2(11, 16, 2, 2, 24, length=7), lambda rng: [words(rng, 3, 6)]),
    "llama": (models.llama(11, 16, 2, 4, 24, groups=1), lambda rng: [words(rng, 3, 6)]),
    "llama_stored": (
        models.llama(11, 8, 2, 4, 12, groups=2, scaling=(8, 1, 4, 32), past=True),
        lambda rng: [words(rng, 3, 2), *rng.standard_normal((4, 3, 2, 5, 2))],
    ),
    "swin": (
        models.swin(10, 2, 4, (2, 1), (2, 2), 5, window=2),
        lambda rng: [rng.standard_normal((3, 3, 10, 10))],
    ),
    "tensor_swin": (
        models.tensor_swin(
            8, 2, ((2, 2, 1), (2, 2, 2)), (2, 1), ((2, 1, 1), (1, 2, 2)), 5, window=2, ratios=(2, 1, 1)
        ),
        lambda rng: [rng.standard_normal((3, 3, 8, 8))],
    ),
    "xlnet": (
        models.xlnet(11, 8, 2, 2, 12),
        lambda rng: [
            words(rng, 3, 6),
            words(rng, 3, 2, most=6),
            rng.random((3, 6, 6)) < 0.5,
            words(rng, 3, 6, most=2),
        ],
    ),
    "xlnet_memory": (
        models.xlnet(11, 8, 2, 2, 12, two_streams=False, memory=True, mask="padding", head=None),
        lambda rng: [
            words(rng, 3, 6),
            np.ones((3, 6), bool),
            words(rng, 3, 6, most=2),
            *rng.standard_normal((2, 3, 4, 8)),
        ],
    ),
}


def parameters_of(graph: tn.Graph) -> dict[str, Array]:
    """Random everywhere, so that zeros hide nothing."""
    rng = np.random.default_rng(1)
    return {
        name: 0.5 * rng.standard_normal(array.shape)
        for name, array in tn.init(graph, dtype="float64").items()
    }


def first(y: Any) -> Any:
    return y[0] if isinstance(y, tuple) else y


@pytest.mark.parametrize("backend", ["torch", pytest.param("jax", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MODELS)
def test_others_agree_with_numpy(name: str, backend: str) -> None:
    graph, inputs = MODELS[name]
    given, parameters = inputs(np.random.default_rng(0)), parameters_of(graph)
    expected = first(tn.compile(graph)(parameters, *given))
    library = load_backend(backend)
    arrays = [library.asarray(each) for each in given]
    found = first(tn.compile(graph, backend=backend)(tn.to_backend(parameters, backend), *arrays))
    np.testing.assert_allclose(library.numpy(found), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", MODELS)
def test_the_code_of_cupy_agrees_with_numpy(name: str) -> None:
    """Under array-api-strict, which takes nothing for granted; masks as numbers, as it compares no truths."""
    graph, inputs = MODELS[name]
    given, parameters = inputs(np.random.default_rng(0)), parameters_of(graph)
    expected = first(tn.compile(graph)(parameters, *given))
    strict = backend_of(array_api_strict.asarray(0.0))
    arrays = [array_api_strict.asarray(each + 0) for each in given]
    moved = {name: array_api_strict.asarray(array) for name, array in parameters.items()}
    found = first(tn.compile(graph, backend=strict)(moved, *arrays))
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["torch", "cupy"])
@pytest.mark.parametrize("name", MODELS)
def test_a_gpu_agrees_with_numpy(name: str, backend: str) -> None:
    if backend == "cupy":
        pytest.importorskip("cupy")
    graph, inputs = MODELS[name]
    given, parameters = inputs(np.random.default_rng(0)), parameters_of(graph)
    expected = first(tn.compile(graph)(parameters, *given))
    moved = tn.to_backend(parameters, backend, device="cuda")
    arrays = tn.to_backend({str(n): each for n, each in enumerate(given)}, backend, device="cuda")
    found = first(tn.compile(graph, backend=backend)(moved, *arrays.values()))
    np.testing.assert_allclose(
        np.asarray(found.get() if backend == "cupy" else found.cpu()), expected, rtol=1e-8, atol=1e-10
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_printed_model_reads_back(name: str) -> None:
    graph, _ = MODELS[name]
    constants = {leaf.name: leaf.value.array() for leaf in graph.constants if leaf.value is not None}
    assert tn.layer(str(graph), constants=constants) == graph
    assert tn.Graph.from_json(graph.to_json()) == graph


@pytest.mark.parametrize("name", sampled(MODELS, ["vit"]))
def test_a_model_is_one_graph_to_torch_compile(name: str) -> None:
    """Forward and backward, traced whole; `slow` tests trace all, and compile to machine code."""
    _compiled_step(name, "aot_eager")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", MODELS)
def test_a_model_compiles_to_machine_code(name: str) -> None:
    _compiled_step(name, "inductor")


def _compiled_step(name: str, backend: str) -> None:
    graph, inputs = MODELS[name]
    torch._dynamo.reset()
    given = [torch.tensor(each) for each in inputs(np.random.default_rng(0))]
    given = [each.float() if each.is_floating_point() else each for each in given]
    module = tn.module(graph, seed=0)
    module.load_state_dict({n: torch.tensor(p) for n, p in parameters_of(graph).items()})
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    losses = [first(each(*given)).square().mean() for each in (module, compiled)]
    torch.testing.assert_close(losses[1], losses[0])
    gradients = [torch.autograd.grad(loss, list(module.parameters()), allow_unused=True) for loss in losses]
    for expected, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


LEARNING = [name for name in MODELS if name not in ("xlnet_memory", "llama_stored")]


@pytest.mark.parametrize("name", sampled(LEARNING, ["vit", "transformer", "gpt2"]))
def test_a_model_learns_its_examples(name: str) -> None:
    graph, inputs = MODELS[name]
    torch.manual_seed(0)
    given = [torch.tensor(each) for each in inputs(np.random.default_rng(0))]
    given = [each.float() if each.is_floating_point() else each for each in given]
    module = tn.module(graph, seed=0)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    labels = torch.randint(0, module(*given).shape[-1], module(*given).shape[:-1])
    losses = []
    for _ in range(40):
        logits = module(*given)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.parametrize("name", MODELS)
def test_initial_outputs_are_of_unit_size(name: str) -> None:
    """Neither vanishing nor exploding with the derived initial values."""
    graph, inputs = MODELS[name]
    y = first(tn.compile(graph)(tn.init(graph, seed=3, dtype="float64"), *inputs(np.random.default_rng(0))))
    assert 0.01 < y.std() < 10


def test_names_and_settings() -> None:
    names = models.names()
    for name in (
        "vit",
        "perceiver",
        "transformer",
        "transformer_classifier",
        "xlnet",
        "vit_b_16",
        "xlnet_base",
    ):
        assert name in names
    assert models.settings("vit_l_16")["dim"] == 1024
    assert models.settings("vit_l_16")["classes"] == 1000
    settings = models.settings("linear")
    assert settings["in_sizes"] is models.REQUIRED
    assert str(settings).startswith("{'in_sizes': required, 'out_sizes': required, 'factorization': 'dense'")
    for name in names:
        if any(name.startswith(each) for each in ("vit_", "perceiver_", "xlnet_", "transformer_b")):
            assert models.create(name, depth=1).parameters
