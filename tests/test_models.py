"""Every model on every backend, as text, compiled, trained."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet import models
from tensornet.protocol import backend_of, load_backend

from .conftest import parameters_of as parameters_of
from .conftest import sampled, table

Array = Any


def drawn(text: str) -> Callable[[np.random.Generator], list[Array]]:
    """What draws inputs, told by their shapes: numbers, words below 11, one of two or six, and what is seen of most."""
    kinds: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
        "": lambda rng, shape: rng.standard_normal(shape),
        "inside": lambda rng, shape: rng.uniform(-1, 1, shape),
        "seen": lambda rng, shape: rng.random(shape) < 0.7,
        "all": lambda rng, shape: np.ones(shape, bool),
        "word": lambda rng, shape: rng.integers(0, 11, shape),
        "six": lambda rng, shape: rng.integers(0, 6, shape),
        "two": lambda rng, shape: rng.integers(0, 2, shape),
    }
    told = [each.rpartition(":") for each in text.split()]
    return lambda rng: [kinds[kind](rng, tuple(map(int, shape.split(",")))) for kind, _, shape in told]


def made(make: Callable[[], tn.Graph], text: str) -> tuple[tn.Graph, Any]:
    """A model, made when a test asks for it, and what draws its inputs."""
    return make(), drawn(text)


STAGES = ((2, 2, 1), (2, 2, 2)), (2, 1), ((2, 1, 1), (1, 2, 2))
IO: dict[str, Any] = {"repeats": 2, "positions": "given", "resolution": (4, 4), "head": "query"}
PAIR = "word:3,5 word:3,4"
REPEATED: dict[str, Any] = {"repeats": 2, "cross_attends": 2, "bands": 3}
STORED: dict[str, Any] = {"groups": 2, "scaling": (8, 1, 4, 32), "past": True, "dropout": 0.1}
TOKENS: dict[str, Any] = {"length": 7, "segments": True, "padding": True, "head": "tokens"}
MEMORY: dict[str, Any] = {"two_streams": False, "memory": True, "mask": "padding", "head": None}
MODELS: dict[str, Callable[[], tuple[tn.Graph, Callable[[np.random.Generator], list[Array]]]]] = {
    name: functools.cache(functools.partial(made, make, text))
    for name, make, text in (
        ("vit", lambda: models.vit(8, 4, 8, 2, 2, 12, 5, head="mlp"), "3,3,8,8"),
        ("perceiver", lambda: models.perceiver((4, 3), 2, 5, 8, 2, 2, 4, **REPEATED), "3,2,4,3"),
        ("perceiver_io", lambda: models.perceiver(None, 2, 5, 8, 1, 2, 4, **IO), "3,7,2 inside:3,7,2"),
        (
            "transformer",
            lambda: models.transformer(11, 8, 2, 2, 12, padding=True),
            f"{PAIR} seen:3,5 all:3,4",
        ),
        (
            "transformer_classifier",
            lambda: models.transformer_classifier(11, 3, 8, 2, 2, 12),
            "word:3,6 all:3,6",
        ),
        ("bert", lambda: models.bert(11, 8, 2, 2, 12, **TOKENS), "word:3,6 all:3,6 two:3,6"),
        ("clip_text", lambda: models.clip_text(11, 8, 2, 2, 12, 5, length=7), "word:3,6"),
        ("clip_vision", lambda: models.clip_vision(8, 4, 8, 2, 2, 12, 5), "3,3,8,8"),
        ("deit", lambda: models.deit(8, 4, 8, 2, 2, 12, 5), "3,3,8,8"),
        ("gpt2", lambda: models.gpt2(11, 16, 2, 2, 24, length=7), "word:3,6"),
        ("llama", lambda: models.llama(11, 16, 2, 4, 24, groups=1), "word:3,6"),
        ("llama_stored", lambda: models.llama(11, 8, 2, 4, 12, **STORED), "word:3,2" + 4 * " 3,2,5,2"),
        ("swin", lambda: models.swin(10, 2, 4, (2, 1), (2, 2), 5, window=2), "3,3,10,10"),
        ("tensor_swin", lambda: models.tensor_swin(8, 2, *STAGES, 5, window=2, ratios=(2, 1, 1)), "3,3,8,8"),
        ("xlnet", lambda: models.xlnet(11, 8, 2, 2, 12), "word:3,6 six:3,2 seen:3,6,6 two:3,6"),
        (
            "xlnet_memory",
            lambda: models.xlnet(11, 8, 2, 2, 12, **MEMORY),
            "word:3,6 all:3,6 two:3,6 3,4,8 3,4,8",
        ),
    )
}


def first(y: Any) -> Any:
    return y[0] if isinstance(y, tuple) else y


def agrees_with_numpy(name: str, library: Any, tolerance: float = 1e-9, **on: str) -> None:
    graph, inputs = MODELS[name]()
    given, parameters = inputs(np.random.default_rng(0)), parameters_of(graph)
    expected = first(tn.compile(graph)(parameters, *given))
    # masks as numbers where no truths are compared
    given = [each + 0 if library.name == "array_api_strict" else each for each in given]
    arrays = [library.asarray(each, **on) for each in given]
    moved = {name: library.asarray(array, **on) for name, array in parameters.items()}
    found = first(tn.compile(graph, backend=library)(moved, *arrays))
    np.testing.assert_allclose(library.numpy(found), expected, rtol=tolerance, atol=tolerance / 100)


@pytest.mark.parametrize("backend", ["torch", pytest.param("jax", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MODELS)
def test_others_agree_with_numpy(name: str, backend: str) -> None:
    agrees_with_numpy(name, load_backend(backend))


@pytest.mark.parametrize("name", MODELS)
def test_the_code_of_cupy_agrees_with_numpy(name: str) -> None:
    """Under array-api-strict, which takes nothing for granted."""
    agrees_with_numpy(name, backend_of(array_api_strict.asarray(0.0)))


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["torch", "cupy"])
@pytest.mark.parametrize("name", MODELS)
def test_a_gpu_agrees_with_numpy(name: str, backend: str) -> None:
    if backend == "cupy":
        pytest.importorskip("cupy")
    agrees_with_numpy(name, load_backend(backend), 1e-8, device="cuda")


@pytest.mark.parametrize("name", MODELS)
def test_a_printed_model_reads_back(name: str) -> None:
    graph, _ = MODELS[name]()
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


def prepared(name: str) -> tuple[torch.nn.Module, list[torch.Tensor]]:
    """The module of a model, and tensors for its inputs."""
    graph, inputs = MODELS[name]()
    given = [torch.tensor(each) for each in inputs(np.random.default_rng(0))]
    given = [each.float() if each.is_floating_point() else each for each in given]
    return tn.module(graph, seed=0), given


def _compiled_step(name: str, backend: str) -> None:
    torch._dynamo.reset()
    module, given = prepared(name)
    module.load_state_dict({n: torch.tensor(p) for n, p in parameters_of(MODELS[name]()[0]).items()})
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    losses = [first(each(*given)).square().mean() for each in (module, compiled)]
    torch.testing.assert_close(losses[1], losses[0])
    gradients = [torch.autograd.grad(loss, list(module.parameters()), allow_unused=True) for loss in losses]
    for expected, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


LEARNING = [name for name in MODELS if name not in ("xlnet_memory", "llama_stored")]


@pytest.mark.parametrize("name", sampled(LEARNING, ["vit", "transformer", "gpt2"]))
def test_a_model_learns_its_examples(name: str) -> None:
    torch.manual_seed(0)
    module, given = prepared(name)
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
    graph, inputs = MODELS[name]()
    y = first(tn.compile(graph)(tn.init(graph, seed=3, dtype="float64"), *inputs(np.random.default_rng(0))))
    assert 0.01 < y.std() < 10


def test_names_and_settings() -> None:
    names = models.names()
    assert {*MODELS, "vit_b_16", "xlnet_base"} - {"perceiver_io", "llama_stored", "xlnet_memory"} <= {*names}
    assert models.settings("vit_l_16")["dim"] == 1024
    assert models.settings("vit_l_16")["classes"] == 1000
    settings = models.settings("linear")
    assert settings["in_sizes"] is models.REQUIRED
    assert str(settings).startswith("{'in_sizes': required, 'out_sizes': required, 'factorization': 'dense'")
    for name in names:
        if any(name.startswith(each) for each in ("vit_", "perceiver_", "xlnet_", "transformer_b")):
            assert models.create(name, depth=1).parameters


@pytest.mark.parametrize(("preset", "number"), [row[:2] for row in table("presets.txt") if row[1] != "-"])
def test_presets_have_the_published_numbers_of_parameters(preset: str, number: str) -> None:
    name, *changes = preset.split(",")
    graph = models.create(name, **dict(each.split("=") for each in changes))
    assert tn.parameter_count(graph) == sum(row[2] for row in tn.parameter_table(graph)) == int(number)
