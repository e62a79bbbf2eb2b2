"""Recurrences that are LSTMs, GRUs and plain layers, however written, are computed by the library that has these."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

import tensornet as tn

from .differential import by_numpy, computed, drawn
from .programs import titled

OPEN = {"a": 2, "b": 3, "t": 5}
SIZES = {"i": 3, "o": 4}

WRITTEN = titled("cells.txt")
CELLS = [name for name, each in WRITTEN.items() if "kernel" in each.said]
OTHERS = [name for name in WRITTEN if name not in CELLS]
LSTM, GRU, PLAIN = (WRITTEN[name].text for name in ("an LSTM", "a GRU", "a plain layer"))


def case(name: str) -> tuple[str, tn.Graph, dict[str, np.ndarray]]:
    """The kernel that is expected, the graph, and numbers for its leaves."""
    graph = WRITTEN[name].graph(outputs="h")
    arrays = drawn(graph, 0.7, **OPEN)
    if "E[x" in WRITTEN[name].text:
        arrays["x"] = np.random.default_rng(0).integers(0, 5, arrays["x"].shape)
    return WRITTEN[name].said["kernel"], graph, arrays


def tensors(arrays: dict[str, np.ndarray], grad: bool = False) -> dict[str, torch.Tensor]:
    made = {name: torch.tensor(array) for name, array in arrays.items()}
    return {name: each.requires_grad_(grad and each.is_floating_point()) for name, each in made.items()}


def called(graph: tn.Graph, given: dict[str, torch.Tensor], **options: Any) -> torch.Tensor:
    held = {leaf.name: given[leaf.name] for leaf in graph.parameters}
    function = tn.compile(graph, backend="torch", **options)
    found: torch.Tensor = function(held, *(given[leaf.name] for leaf in graph.inputs))
    return found


READS = {
    "the last position": "y[b,o] = h[b,-1,o]",
    "another position": "y[b,o] = h[b,2,o]",
    "a channel": "y[b,t] = h[b,t,1]",
    "one of a batch": "y[t,o] = h[0,t,o]",
    "a number": "y = h[0,-1,2]",
    "told positions": "y[n,o] = h[n,at[n],o]",
}
"""What reads less than a kernel computes."""


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("cell", [LSTM, GRU, PLAIN], ids=["LSTM", "GRU", "plain"])
def test_what_is_read_in_part_is_computed_whole(cell: str, read: str) -> None:
    graph = tn.layer(f"{cell}\n{READS[read]}", inputs="x at[n]" if "at[n]" in READS[read] else "x", **SIZES)
    parameters = tn.init(graph, seed=0, dtype="float64")
    values = np.random.default_rng(1)
    given = [values.standard_normal((3, 5, 3)), *([np.array([4, 0, 2])] if "at[n]" in READS[read] else [])]
    layer = tn.compile(graph, backend="torch")
    found = layer(tn.to_backend(parameters, "torch"), *map(torch.as_tensor, given))
    np.testing.assert_allclose(found, tn.compile(graph)(parameters, *given), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", CELLS)
def test_cells_are_recognised_and_right(name: str) -> None:
    kernel, graph, arrays = case(name)
    sizes = {axis: size for axis, size in OPEN.items() if axis in graph.open_sizes}
    code = tn.plan(graph, backend="torch", compare=False, **sizes).code
    assert f" {kernel}(" in code
    expected = by_numpy(graph, arrays)["h"]
    given = tensors(arrays)
    np.testing.assert_allclose(called(graph, given).numpy(), expected, rtol=1e-12, atol=1e-13)
    single = tensors(
        {each: a.astype(np.float32) if a.dtype == np.float64 else a for each, a in arrays.items()}
    )
    np.testing.assert_allclose(called(graph, single).numpy(), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", CELLS)
def test_cells_on_a_gpu(name: str, dtype: str) -> None:
    """Values and gradients by cuDNN."""
    kernel, graph, arrays = case(name)
    sizes = {axis: size for axis, size in OPEN.items() if axis in graph.open_sizes}
    plan = tn.plan(graph, backend="torch", device="cuda:0", dtype=dtype, compare=False, **sizes)
    assert f" {kernel}(" in plan.code
    there = {
        key: each.cuda().to(getattr(torch, dtype)) if each.is_floating_point() else each.cuda()
        for key, each in tensors(arrays).items()
    }
    here = tensors(arrays, grad=True)
    for each in there.values():
        each.requires_grad_(each.is_floating_point())
    asked = [key for key, each in here.items() if each.is_floating_point()]
    found, expected = called(graph, there), called(graph, here)
    close = {"float64": 1e-11, "float32": 2e-3, "bfloat16": 0.1}[
        dtype
    ]  # cuDNN may take TF32, as nn.LSTM does
    np.testing.assert_allclose(found.detach().double().cpu(), expected.detach(), rtol=close, atol=close)
    pairs = zip(
        *(
            torch.autograd.grad(y.sum(), [given[key] for key in asked])
            for y, given in ((found, there), (expected, here))
        ),
        strict=True,
    )
    for one, other in pairs:
        scale = 1.0 + float(other.abs().max())
        np.testing.assert_allclose(one.double().cpu(), other, atol=close * scale)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_cell_is_a_loop(name: str) -> None:
    graph = WRITTEN[name].graph()
    code = tn.plan(graph, backend="torch", compare=False).code
    assert not any(f"{kernel}_along(" in code for kernel in ("lstm", "gru", "tanh", "relu"))
    arrays = drawn(graph, b=2, i=3)
    found, expected = computed(graph, arrays, "torch"), by_numpy(graph, arrays)
    for output in graph.outputs:
        np.testing.assert_allclose(found[output], expected[output], rtol=1e-12, atol=1e-13)


def test_other_libraries_and_devices_take_the_loop() -> None:
    _, graph, _ = case("an LSTM")
    for options in ({"backend": "numpy"}, {"backend": "torch", "dtype": "bfloat16"}):
        plan = tn.plan(graph, b=3, t=5, compare=False, **options)
        assert "step(" in str(plan)
        assert "lstm_along" not in str(plan)


@pytest.mark.parametrize(
    "name", ["an LSTM", "from the end", "a GRU whose gate takes", "a plain layer of relu"]
)
def test_gradients_are_those_of_the_equations(name: str) -> None:
    """Of the backward pass that the equations themselves have, in NumPy."""
    _, graph, arrays = case(name)
    loss = tn.layer("l = sum[b,t,o](sin(h[b,t,o]))", inputs="h[b,t,o]")
    step = tn.value_and_grad(graph, loss=loss, wrt=list(arrays))
    held = {leaf.name: arrays[leaf.name] for leaf in graph.parameters}
    _, expected = step(held, *(arrays[leaf.name] for leaf in graph.inputs))
    given = tensors(arrays, grad=True)
    total = torch.sin(called(graph, given)).sum()
    total.backward(retain_graph=True)
    total.backward()
    for each, tensor in given.items():
        assert tensor.grad is not None
        np.testing.assert_allclose(tensor.grad.numpy() / 2, expected[each], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["an LSTM", "a GRU", "a plain layer"])
def test_derivatives_of_gradients(name: str) -> None:
    _, graph, arrays = case(name)
    given = tensors(arrays, grad=True)
    assert torch.autograd.gradgradcheck(
        lambda x: torch.sin(called(graph, {**given, "x": x})).sum(), given["x"], atol=1e-6
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own scripts
@pytest.mark.parametrize(
    "name", ["an LSTM", "from the end", "a GRU", "a plain layer", "a plain layer of relu"]
)
def test_compilers_see_one_operation(name: str) -> None:
    _, graph, arrays = case(name)
    module = tn.module(graph, seed=0).double()
    given = [tensors(arrays)[leaf.name].requires_grad_() for leaf in graph.inputs]
    seen: list[str] = []

    def listed(module: Any, inputs: Any) -> Any:
        seen.extend(str(node.target) for node in module.graph.nodes)
        return make_boxed_func(module.forward)

    expected = module(*given)
    backend = aot_autograd(fw_compiler=listed, bw_compiler=lambda way, _: make_boxed_func(way.forward))
    compiled = torch.compile(module, fullgraph=True, backend=backend)(*given)
    assert [each for each in seen if "by_library" in each] == ["tensornet.by_library.default"]
    torch.testing.assert_close(compiled, expected, rtol=1e-12, atol=1e-13)
    leaves = [*module.parameters(), *given]
    found, told = (torch.autograd.grad(y.sin().sum(), leaves) for y in (compiled, expected))
    torch.testing.assert_close(found, told, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["an LSTM", "a GRU", "a plain layer", "a plain layer of relu"])
def test_transforms_see_a_loop(name: str) -> None:
    _, graph, arrays = case(name)
    function = tn.compile(graph, backend="torch")
    given = tensors(arrays)
    parameters, x = {leaf.name: given[leaf.name] for leaf in graph.parameters}, given["x"]
    expected = function(parameters, x)
    many = torch.func.vmap(lambda x: function(parameters, x))
    for both in (many, torch.compile(many, fullgraph=True, backend="eager")):
        found = both(torch.stack([x, 2 * x]))
        torch.testing.assert_close(found[0], expected, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(found[1], function(parameters, 2 * x), rtol=1e-12, atol=1e-13)
    program = torch.export.export(tn.module(graph).double(), (x,))
    assert not any("by_library" in str(node.target) for node in program.graph.nodes)


@pytest.mark.parametrize("name", ["an LSTM", "a GRU", "a plain layer"])
def test_no_positions_and_no_batch(name: str) -> None:
    _, graph, arrays = case(name)
    for shape in ((3, 0, 3), (0, 5, 3)):
        given = tensors({**arrays, "x": np.zeros(shape)})
        assert called(graph, given).shape == (*shape[:2], 4)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_a_layer_of_torch_is_itself_again(kind: Any) -> None:
    """With its own weights, taken apart and put together, it computes the same to the bit."""
    module = kind(5, 7, batch_first=True)
    graph, parameters = tn.models.from_torch(module)
    x = torch.randn(3, 6, 5)
    with torch.no_grad():
        torch.testing.assert_close(
            tn.compile(graph, backend="torch")(parameters, x), module(x)[0], rtol=2e-6, atol=1e-6
        )
