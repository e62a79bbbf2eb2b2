"""What is read at even distances, `x[b,2*p+1]` and `x[b,2*p+3*u]`: another look at the same memory, and its backward pass."""

from __future__ import annotations

import numpy as np
import pytest

import tensornet as tn


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
