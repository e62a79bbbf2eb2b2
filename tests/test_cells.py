"""Cells of recurrent layers as kernels, and with rounded weights."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd

import tensornet as tn
from tensornet.backends.torch.networks import rounded, running

from .conftest import covered
from .differential import by_numpy, computed, drawn
from .networks import turned
from .programs import titled

# ---------------------------------------------------------------------------- Recurrences that are LSTMs, GRUs and plain layers, however written, are computed


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
    return function(held, *(given[leaf.name] for leaf in graph.inputs))


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


# ---------------------------------------------------------------------------- Rounded weights times rounded activations


needs_kernels = pytest.mark.skipif(
    torch.backends.quantized.engine not in rounded.ENGINES, reason="torch has no such kernels here"
)


@pytest.fixture(autouse=True)
def _integers_are_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "FASTEST", {})
    monkeypatch.setattr(running, "clocked", lambda ways: [-n for n, _ in enumerate(ways)])


def both(network: nn.Module, method: str = "int8", budget: float = 0.3) -> tuple[Any, Any]:
    """A network that may round activations, and the same that may not."""
    found = (tn.compress(network, bytes=budget, method=method, activations=each) for each in ("int8", None))
    integers, floats = (each.model.eval() for each in found)
    return integers, floats


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(512, 256)


ROWS = torch.randn(64, 512, generator=torch.Generator().manual_seed(1))


def far(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@needs_kernels
@pytest.mark.parametrize("scale", [1.0, -1.0])
def test_a_linear_layer_is_as_near_as_its_rounded_input(scale: float) -> None:
    """The step of an input is its range over 127; each element is off by one step at most."""
    integers, floats = both(linear())
    step = (ROWS.max() - ROWS.min()) / 127
    with torch.no_grad():
        for model in (integers, floats):
            model.weight_factors.W.scale[7] *= scale
        off = (integers(ROWS) - floats(ROWS)).abs()
        assert not torch.equal(integers(ROWS), floats(ROWS))
        assert (off <= step * floats.weight.abs().sum(1) + 1e-5).all()
        assert torch.equal(integers(ROWS.reshape(4, 16, 512)).reshape(64, 256), integers(ROWS))


@needs_kernels
@pytest.mark.parametrize(
    ("method", "make", "size"),
    covered(
        ["int8", "int4/64", "low_rank:int8"],
        [lambda: nn.Linear(512, 1024), lambda: turned(1024, 512)],
        [1.0, 0.01],
    ),
)
def test_scales_of_any_kind(size: float, make: Callable[[], nn.Module], method: str) -> None:
    layer = make()
    for each in layer.parameters():
        each.data.mul_(size)
    integers, floats = both(layer, method, 0.26)
    x = ROWS.repeat(4, 1)
    with torch.no_grad():
        assert 1e-4 < far(integers(x), floats(x)) < 0.07


@needs_kernels
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("int8", {}),
        ("int8", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
        ("int4/64", {"bias": False}),
        ("low_rank:int8", {}),
    ],
)
@pytest.mark.parametrize("name", ["GRU", "LSTM"])
def test_recurrences(name: str, options: dict[str, Any], method: str) -> None:
    integers, floats = both(getattr(nn, name)(64, 192, **options), method, 0.27)
    x, h = torch.randn(6, 6, 64), torch.randn(len(integers.suffixes), 6, 192)
    for start in (None, (h, h / 2) if name == "LSTM" else h):
        with torch.no_grad():
            (y, last), (wanted, end) = integers(x, start), floats(x, start)
        pairs = zip(last, end, strict=True) if name == "LSTM" else [(last, end)]
        for one, other in [(y, wanted), *pairs]:
            assert one.shape == other.shape
            assert 1e-4 < far(one, other) < 0.1


def test_plain_recurrences_compute_with_floats() -> None:
    integers, floats = both(nn.RNN(256, 512))
    x = torch.randn(8, 8, 256)
    with torch.no_grad():
        assert torch.equal(integers(x)[0], floats(x)[0])


def with_gradients(model: Any) -> torch.Tensor:
    with torch.enable_grad():
        found: torch.Tensor = model(ROWS)
        found.sum().backward()
    return found.detach()


def loose(model: Any) -> torch.Tensor:
    """As during distillation."""
    model.weight_factors.W.loosen()
    model.weight_factors.W.free.mul_(0.5)
    return model(ROWS)  # type: ignore[no-any-return]


ELSEWHERE: dict[str, Callable[[Any], torch.Tensor]] = {
    "gradients": with_gradients,
    "training": lambda model: model.train()(ROWS),
    "few rows": lambda model: model(ROWS[:2]),
    "one row": lambda model: model(ROWS[0]),
    "no rows": lambda model: model(ROWS[:0]),
    "other types": lambda model: model.double()(ROWS.double()),
    "codes that are trained": loose,
    "autocast": lambda model: torch.autocast("cpu", torch.bfloat16)(model)(ROWS),
    "vmap": lambda model: torch.vmap(model)(ROWS.reshape(2, 32, 512)),
    "export": lambda model: torch.export.export(model, (ROWS,)).module()(ROWS),
    "no numbers": lambda model: model(torch.where(ROWS > 3, torch.nan, ROWS)),
    "infinity": lambda model: model(torch.where(ROWS > 3, torch.inf, ROWS)),
    "small numbers": lambda model: model(1e-4 * ROWS),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_elsewhere_floats_are_computed_with(name: str) -> None:
    integers, floats = both(linear())
    with torch.no_grad():
        integers(ROWS)  # packs
        found, wanted = map(ELSEWHERE[name], (integers, floats))
    assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_rows_of_another_size_are_refused_as_by_floats() -> None:
    with torch.no_grad(), pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        both(linear())[0](ROWS[:, 1:])


@pytest.mark.parametrize(("name", "value"), [("ENGINES", ()), ("NEEDED", ("what_torch_dropped",))])
def test_without_kernels_too(name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounded, name, value)
    x = torch.randn(6, 6, 256)
    for network, given in ((linear(), ROWS), (nn.GRU(256, 256), x)):
        integers, floats = both(network)
        with torch.no_grad():
            pairs = zip(integers(given), floats(given), strict=True)
            assert all(torch.equal(*pair) for pair in pairs)


def test_recurrences_of_gradients_and_hooks_compute_with_floats() -> None:
    integers, floats = both(nn.GRU(256, 256))
    x = torch.randn(6, 6, 256)
    assert torch.equal(integers(x)[0], floats(x)[0])
    seen = list[Any]()
    with torch.no_grad():
        for model in (integers, floats):
            model.base.register_forward_hook(lambda *_: seen.append(None))
        assert torch.equal(integers(x)[0], floats(x)[0])
    assert len(seen) == 2


@needs_kernels
def test_networks_are_saved_copied_and_run_in_threads(tmp_path: Path) -> None:
    network = nn.Sequential(linear(), nn.Tanh(), nn.GRU(256, 256))
    x = ROWS.reshape(8, 8, 512)
    small = tn.compress(network, bytes=0.3, method="int8", activations="int8")
    plain = tn.compress(network, bytes=0.3, method="int8")
    model = small.model.eval()
    with torch.no_grad():
        y = model(x)[0]
        assert not torch.equal(y, plain.model.eval()(x)[0])
        states = [each.model.state_dict() for each in (small, plain)]
        assert states[0].keys() == states[1].keys()
        assert all(torch.equal(each, states[1][name]) for name, each in states[0].items())
        again = tn.load_compressed(small.save(tmp_path / "small.safetensors"), network)
        assert again.activations == small.activations == "int8"
        assert tn.load_compressed(plain.save(tmp_path / "plain.safetensors"), network).activations is None
        for other in (again.model.eval(), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(other(x)[0], y)
        fresh = torch.no_grad()(copy.deepcopy(model).forward)
        with ThreadPoolExecutor(4) as together:
            assert all(torch.equal(each[0], y) for each in together.map(fresh, [x] * 4))


@needs_kernels
@pytest.mark.parametrize("name", ["linear", "GRU"])
def test_calls_read_what_training_changed(name: str) -> None:
    network, x = (linear(), ROWS) if name == "linear" else (nn.GRU(256, 256), torch.randn(8, 8, 256))
    integers, floats = both(network)

    def check() -> None:
        with torch.no_grad():
            found, wanted = (each(x) if name == "linear" else each(x)[0] for each in (integers, floats))
        assert 1e-4 < far(found, wanted) < 0.05

    check()
    for model in (integers, floats):
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)  # which raises no versions
        made = model(x) if name == "linear" else model(x)[0]
        made.square().sum().backward()
        optimizer.step()
        model.eval()
    check()
    tn.distill(integers, network, list(x.split(2)), steps=4)
    floats.load_state_dict(integers.state_dict())
    check()


@needs_kernels
def test_the_loss_is_that_of_rounded_activations() -> None:
    batches = list(torch.cat([ROWS, -ROWS]).reshape(4, 32, 512))
    losses = []
    for activations in ("int8", None):
        small = tn.compress(linear(), bytes=0.3, calibrate=batches, activations=activations)
        with torch.no_grad():
            y, found = linear()(batches[3]), small.model.eval()(batches[3])
        assert small.loss == pytest.approx(far(found, y) ** 2, rel=1e-4)
        losses.append(small.loss or 0.0)
    assert losses[0] > 1.5 * losses[1]
