"""Rounded weights times rounded activations: near the floats, by the bound of rounding, and floats elsewhere."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tensornet as tn
from tensornet.backends.torch.networks import rounded, running

from .conftest import covered

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


def turned() -> nn.Module:
    """The layer of transformers whose weight is transposed."""
    kind = pytest.importorskip("transformers.pytorch_utils").Conv1D
    torch.manual_seed(0)
    layer: nn.Module = kind(1024, 512)
    return layer


@needs_kernels
@pytest.mark.parametrize(
    ("method", "make", "size"),
    covered(["int8", "int4/64", "low_rank:int8"], [lambda: nn.Linear(512, 1024), turned], [1.0, 0.01]),
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
    torch.manual_seed(0)
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
    torch.manual_seed(0)
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
        found, fresh = list[torch.Tensor](), copy.deepcopy(model)

        def call() -> None:
            with torch.no_grad():
                found.append(fresh(x)[0])

        threads = [threading.Thread(target=call) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert len(found) == 4
        assert all(torch.equal(each, y) for each in found)


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
