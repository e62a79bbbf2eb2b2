"""Mixtures of experts, and the products they are planned as, against plain torch and numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet import models
from tensornet.graph.element_types import holding
from tensornet.models.blocks import ACTIVATIONS, feed_forward
from tensornet.ops.table import Element
from tensornet.protocol import load_backend

from . import oracle
from .conftest import sampled
from .differential import BACKENDS, by_numpy, computed, drawn
from .test_gradients import agrees_with_differences
from .test_gradients import check as agrees_with_autograd
from .test_rewrites import passed

KERNELS = ("grouped_matmul", "grouped_outer")
GROUPED = passed("grouped GEMM", *KERNELS)
"""Products by groups, whatever they cost."""
ADDED = passed("one-hot elimination", *KERNELS)
"""Sums of outer products by groups."""


def grouped(graph: tn.Graph) -> tn.Graph:
    """The graph, of whose positions `p` it is known that they are such, with kernels in the place of equations."""
    return ADDED(GROUPED(holding(graph, {"p": Element.WHOLE})))


LOOKED_UP = tn.layer("y[n,f] = x[n,c] * W[p[n],f,c]", inputs="x p")
TWICE = tn.layer("y[n,k,f] = x[n,c] * W[p[n,k],f,c]", inputs="x p")


def plainly(x: Any, held: dict[str, Any], active: int, gated: bool) -> tuple[Any, Any]:
    """The mixture of experts and its loss, expert by expert."""
    scores = x @ held["R"].T
    top, positions = scores.topk(active)
    weights = torch.softmax(top, -1)
    y = torch.zeros_like(x)
    for e in range(len(held["R"])):
        for k in range(active):
            rows = positions[..., k] == e
            inner = torch.nn.functional.gelu(x[rows] @ held["W1"][e].T)
            inner = inner * (x[rows] @ held["W3"][e].T) if gated else inner
            y = y.index_put((rows,), (inner @ held["W2"][e].T) * weights[rows][:, k, None], accumulate=True)
    flat = positions.flatten()
    share = torch.nn.functional.one_hot(flat, len(held["R"])).to(x.dtype).mean(0)
    router = torch.softmax(scores, -1).flatten(0, -2).mean(0)
    return y, len(share) * (share * router).sum()


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("tokens", "dim", "hidden", "experts"), [((2, 5), 6, 8, 4), ((2, 128), 64, 128, 16)])
def test_it_is_that_of_plain_torch(
    gated: bool, tokens: tuple[int, ...], dim: int, hidden: int, experts: int
) -> None:
    """Small ones are planned with all experts, larger ones by groups; both ways, on torch and as an equation."""
    graph = models.mixture_of_experts(dim, hidden, experts, 2, gated=gated, balance=True)
    torch.manual_seed(0)
    x = torch.randn(*tokens, dim, dtype=torch.float64, requires_grad=True)
    held = {k: torch.tensor(v, requires_grad=True) for k, v in tn.init(graph, dtype="float64").items()}
    seed = torch.randn_like(x)
    leaves = [x, *held.values()]
    y, balance = plainly(x, held, 2, gated)
    expected = torch.autograd.grad((y * seed).sum() + balance, leaves)
    found, told = tn.compile(graph, backend="torch")(held, x)
    torch.testing.assert_close(found, y, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(told, balance, rtol=1e-6, atol=1e-6)
    gradients = torch.autograd.grad((found * seed).sum() + told, leaves)
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    derivative = tn.gradient(graph, wrt=["x", *held])
    arrays = {name: each.detach().numpy() for name, each in (*held.items(), ("x", x))}
    arrays |= {"y.grad": seed.numpy()}  # that of a number is 1
    written = by_numpy(derivative, arrays).values()
    for one, other in zip(written, expected, strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend(backend: str) -> None:
    graph = models.mixture_of_experts(64, 128, 16, 2)
    arrays = tn.init(graph, dtype="float64")
    x = np.random.default_rng(0).standard_normal((2, 128, 64))
    expected, _ = plainly(torch.tensor(x), {k: torch.tensor(v) for k, v in arrays.items()}, 2, False)
    (found,) = computed(graph, {**arrays, "x": x}, backend).values()
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-12)


def test_the_plan_chooses() -> None:
    graph = models.mixture_of_experts(256, 1024, 16, 2)
    many = tn.plan(graph, backend="torch", lead=2048)
    assert many.code.count("grouped_matmul(") == 2
    dense = 2 * 2048 * 16 * 256 * 1024 * 2
    assert many.flops < dense / 7
    few = tn.plan(models.mixture_of_experts(8, 16, 4, 2), backend="torch", lead=8)
    assert "grouped_matmul" not in few.code


def test_what_is_put_in_order_counts_as_memory() -> None:
    """Rows by matrix, their products, and these where the rows are; beside x, W and p."""
    written = holding(LOOKED_UP, {"p": Element.WHOLE})
    plan = tn.plan(written, backend="torch", n=4096, W0=16, c=64, f=128)
    assert "grouped_matmul" in plan.code
    assert plan.peak_memory == 4 * (2 * 4096 * 64 + 2 * 4096 * 128 + 16 * 64 * 128) + 8 * 4096


def test_it_is_compiled_as_one() -> None:
    graph = models.mixture_of_experts(64, 128, 16, 2)
    assert "grouped_matmul" in tn.plan(graph, backend="torch", lead=256).code
    module = tn.module(graph)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = torch.randn(256, 64, requires_grad=True)
    results = [each(x) for each in (module, compiled)]
    torch.testing.assert_close(results[1], results[0])
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in results]
    torch.testing.assert_close(gradients[1], gradients[0])


# ---------------------------------------------------------------------------- the kernels

PRODUCTS = [
    ("y[n,f] = x[n,c] * W[p[n],f,c]", "n"),
    ("y[n,k,f] = x[n,c] * W[p[n,k],f,c]", "nk"),
    ("y[n,f] = g[n,k] * x[n,c] * W[p[n,k],c,f]", "nk"),
    ("y[n,k,f] = x[n,k,c] * W[p[n,k],f,c]", "nk"),
    ("y[k,f,n] = x[n,c] * W[f,p[n,k],c]", "nk"),
    ("y[n,t,f] = x[n,t,c] * W[p[n],f,c]", "n"),
    ("y[n,t] = x[n,t,c] * W[p[n],c]", "n"),
    ("y[n,f] = x[c] * W[p[n],f,c]", "n"),
    ("y[n,f,h] = x[n,c,d] * W[p[n],f,h,c,d]", "n"),
]
SUMS = [
    ("y[v,f,c] = onehot[v](p[n]) * x[n,f] * z[n,c]", "n"),
    ("y[v,f,c] = onehot[v](p[n,k]) * x[n,k,f] * z[n,c]", "nk"),
    ("y[v,f,c] = onehot[v](p[n,k]) * x[n,f] * z[k,c]", "nk"),
    ("y[c,v,f] = onehot[v](p[n]) * x[n,t,f] * z[n,t,c] * g[n]", "n"),
    ("y[v,f,c] = onehot[v](p[n]) * x[n,f] * z[n,c,t] * g[t]", "n"),
]
SIZES = {"n": 7, "k": 2, "c": 3, "d": 2, "f": 4, "h": 2, "t": 3, "v": 5, "W0": 5, "W1": 5}


def arrays_for(graph: tn.Graph, told: str, low: int, high: int) -> tuple[dict[str, Any], np.ndarray]:
    """Arrays for what an equation reads, and what the oracle says of them."""
    positions = np.random.default_rng(1).integers(low, high, [SIZES[axis] for axis in told])
    arrays = {**drawn(graph, **SIZES), "p": positions}
    return arrays, oracle.meaning(graph, arrays, SIZES)["y"]


KERNEL_CASES = [(*each, jax) for jax in (False, True) for each in (*PRODUCTS, *SUMS)]
COMPILED = [(*each, True) for each in (PRODUCTS[2], SUMS[1])]
"""JAX compiles each."""


@pytest.mark.parametrize(
    ("text", "told", "jax"),
    sampled(KERNEL_CASES, [*COMPILED, *(each for each in KERNEL_CASES if not each[2])]),
)
def test_kernels_on_every_backend(text: str, told: str, jax: bool) -> None:
    outside = "onehot" in text  # what is told outside goes nowhere
    inputs = [name for name in "pxzg" if f"{name}[" in text]
    written = tn.layer(text, inputs=inputs, **({"v": 5} if outside else {}))
    arrays, expected = arrays_for(written, told, -1 if outside else 0, 7 if outside else 4)
    changed = grouped(written)
    assert "grouped_" in str(changed)
    for backend in (name for name in BACKENDS if (name == "jax") is jax):
        np.testing.assert_allclose(computed(changed, arrays, backend)["y"], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(by_numpy(written, arrays)["y"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("text", "told"), [PRODUCTS[2], PRODUCTS[5], SUMS[1], SUMS[3]])
def test_gradients_flow_through_kernels(text: str, told: str) -> None:
    graph = tn.layer(
        text,
        inputs=[name for name in "pxzgW" if f"{name}[" in text],
        **({"v": 5} if "onehot" in text else {}),
    )
    arrays, _ = arrays_for(graph, told, 0, 5)
    changed = grouped(graph)
    assert "grouped_" in str(changed)
    names = [name for name in arrays if name != "p"]
    run = tn.compile(changed, backend="torch")
    p = torch.tensor(arrays["p"])

    def function(*tensors: Any) -> Any:
        return run(
            {}, *(p if leaf.name == "p" else tensors[names.index(leaf.name)] for leaf in changed.inputs)
        ).tanh()

    tensors = [torch.tensor(arrays[name], requires_grad=True) for name in names]
    assert torch.autograd.gradcheck(function, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, tensors, fast_mode=True)
    agrees_with_autograd(graph, arrays, names)
    agrees_with_differences(graph, arrays, names)


def test_kernels_can_be_mapped() -> None:
    run = tn.compile(grouped(TWICE), backend="torch")
    torch.manual_seed(0)
    x, p, W = torch.randn(3, 7, 4), torch.randint(0, 5, (7, 2)), torch.randn(5, 6, 4)
    found = torch.vmap(lambda x: run({"W": W}, x, p))(x)
    torch.testing.assert_close(found, torch.einsum("bnc,nkfc->bnkf", x, W[p]))


@pytest.mark.parametrize("backend", ["numpy", "torch", "array-api-strict"])
def test_wrong_positions_are_refused(backend: str) -> None:
    library = BACKENDS[backend]()
    arrays = map(library.asarray, (np.zeros((3, 4)), np.array([0, 5, 1])))
    run = tn.compile(grouped(LOOKED_UP), backend=library)
    with pytest.raises(tn.ShapeError, match="5"):
        run({"W": library.asarray(np.zeros((5, 6, 4)))}, *arrays)


@pytest.mark.parametrize("shape", [(0, 4, 6), (3, 0, 6), (3, 4, 0)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_empty(backend: str, shape: tuple[int, int, int]) -> None:
    library, (n, c, f) = BACKENDS[backend](), shape
    arrays = map(library.asarray, (np.zeros((n, c)), np.zeros(n, dtype=np.int64)))
    run = tn.compile(grouped(LOOKED_UP), backend=library)
    found = library.numpy(run({"W": library.asarray(np.zeros((5, f, c)))}, *arrays))
    np.testing.assert_array_equal(found, np.zeros((n, f)))


def test_jax_differentiates_and_traces_kernels() -> None:
    jax = pytest.importorskip("jax")
    library = load_backend("jax")
    run = tn.compile(grouped(TWICE), backend="jax")
    rng = np.random.default_rng(0)
    x, p, W = rng.standard_normal((7, 4)), rng.integers(0, 5, (7, 2)), rng.standard_normal((5, 6, 4))
    x, p, W = (library.asarray(each) for each in (x.astype("float32"), p, W.astype("float32")))

    def loss(x: Any, W: Any) -> Any:
        return jax.numpy.tanh(run({"W": W}, x, p)).sum()

    def plain(x: Any, W: Any) -> Any:
        return jax.numpy.tanh(jax.numpy.einsum("nc,nkfc->nkf", x, W[p])).sum()

    expected = jax.grad(plain, (0, 1))(x, W)
    for found in (jax.grad(loss, (0, 1))(x, W), jax.jit(jax.grad(loss, (0, 1)))(x, W)):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_mixture_of_one_is_a_feed_forward_layer(activation: str) -> None:
    one = tn.models.mixture_of_experts(5, 7, 1, active=1, activation=activation)
    plain = feed_forward(5, 7, activation=activation, bias=False)
    params, x = tn.init(one, seed=0, dtype="float64"), np.random.default_rng(0).normal(size=(3, 4, 5))
    same = {name: params[name][0] for name in ("W1", "W2")}
    found, expected = tn.compile(one)(params, x), tn.compile(plain)(same, x)
    np.testing.assert_allclose(found[0] if isinstance(found, tuple) else found, expected, rtol=1e-12)
