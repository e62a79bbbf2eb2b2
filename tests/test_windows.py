"""What is read at even distances, `x[b,2*p+1]` and `x[b,2*p+3*u]`: another look at the same memory, and its way back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn

from .conftest import examples
from .test_accumulating import BACKENDS


@dataclass(frozen=True)
class Window:
    """A read of `first + by·p + apart·u`, where as many positions p fit as are told."""

    by: int
    apart: int
    first: int
    outer: int
    inner: int
    beyond: int
    before: int
    after: int

    @property
    def text(self) -> str:
        step = f"{self.by}*p" if self.by > 1 else "p"
        inner = f"+{self.apart}*u" if self.inner else ""
        return f"{step}{inner}+{self.first}" if self.first else step + inner

    @property
    def positions(self) -> Any:
        places = self.first + self.by * np.arange(self.outer)
        return places[:, None] + self.apart * np.arange(self.inner) if self.inner else places

    @property
    def shape(self) -> tuple[int, int, int]:
        last = self.first + self.by * (self.outer - 1) + self.apart * (max(1, self.inner) - 1)
        return self.before, last + 1 + min(self.beyond, self.by - 1), self.after


SMALL = st.integers(1, 4)
WINDOWS = st.builds(
    Window, SMALL, SMALL, st.integers(0, 3), SMALL, st.integers(0, 3), st.integers(0, 3), SMALL, SMALL
)


@pytest.mark.parametrize("backend", BACKENDS)
@examples(10)
@given(WINDOWS)
def test_values_and_gradients(backend: str, window: Window) -> None:
    axes = "b,p,u,c" if window.inner else "b,p,c"
    graph = tn.layer(
        f"y[{axes}] = tanh(x[b,{window.text},c])\nloss = sum[{axes}](y ** 3)",
        inputs="x[b,n,c]",
        outputs="y, loss",
        **({"u": window.inner} if window.inner else {}),
    )
    x = np.random.default_rng(0).standard_normal(window.shape)
    library = BACKENDS[backend]()
    there = library.asarray(x)
    expected = np.tanh(np.take(x, window.positions, axis=1))
    found, _ = tn.compile(graph, backend=library)({}, there)
    np.testing.assert_allclose(library.numpy(found), expected, rtol=1e-12)
    step = tn.value_and_grad(graph.select("loss"), wrt="x", backend=library)
    value, gradients = step({}, there)
    np.testing.assert_allclose(float(value), (expected**3).sum(), rtol=1e-12)
    way_back = np.zeros(window.shape).swapaxes(0, 1)
    np.add.at(
        way_back,
        window.positions,
        np.moveaxis(3 * expected**2 * (1 - expected**2), 0, window.positions.ndim),
    )
    np.testing.assert_allclose(library.numpy(gradients["x"]), way_back.swapaxes(0, 1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("read", ["2*p+1", "p+3", "p+2*u"])
def test_nothing_is_looked_up(backend: str, read: str) -> None:
    graph = tn.layer(f"y[b,p] = max[u](exp(x[b,{read}] * w[u]))", inputs="x[b,n]", u=3)
    code = tn.plan(graph, backend=backend, b=64, n=4096).code
    assert "take" not in code
    assert "arange" not in code


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_windows_that_are_given_back_lie_in_memory_of_their_own(backend: str) -> None:
    graph = tn.layer("y[p,u] = x[p+u]", inputs="x", u=3)
    x = tn.to_backend({"x": np.arange(6.0)}, backend)["x"]
    found = tn.compile(graph, backend=backend)({}, x)
    found += 1
    np.testing.assert_array_equal(np.asarray(x), np.arange(6.0))
    np.testing.assert_array_equal(np.asarray(found), np.arange(6.0)[np.arange(4)[:, None] + np.arange(3)] + 1)


@pytest.mark.parametrize("size", [64, 4096])
def test_the_way_back_of_even_distances_multiplies_nothing(size: int) -> None:
    graph = tn.layer("y[b,p] = exp(x[b,2*p+1])", inputs="x[b,n]", n=size)
    plan = tn.plan(tn.gradient(graph, of="y", wrt="x"), b=64)
    assert "spaced" in plan.code
    assert "matmul" not in plan.code


def test_a_strided_convolution_of_open_sizes_has_its_gradients() -> None:
    """How many windows fit is told by the kernel's size, which arrays alone tell."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x, V, down = (rng.standard_normal(shape) for shape in ((2, 3, 6, 7), (4, 3, 3, 3), (2, 4, 3, 4)))
    graph = tn.layer(
        """
        p[n,c,h,w] = pad(x[n,c,h,w], h=(1,1), w=(1,1))
        z[n,o,h,w] = p[n,c,2*h+u,2*w+v] * V[o,c,u,v]
        loss = z[n,o,h,w] * d[n,o,h,w]
        """,
        inputs="x V d",
    )
    _, found = tn.value_and_grad(graph, wrt="x V", backend="numpy")({}, x, V, down)
    given = [torch.tensor(each, requires_grad=True) for each in (x, V)]
    y = torch.nn.functional.conv2d(*given, stride=2, padding=1)
    expected = torch.autograd.grad(y, given, torch.tensor(down))
    for name, each in zip("xV", expected, strict=True):
        np.testing.assert_allclose(found[name], each.numpy(), rtol=1e-10, atol=1e-10)
