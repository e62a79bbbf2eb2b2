"""Spellings: each kernel is recognised from one pattern, however a program says what it computes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import tensornet as tn

from . import oracle
from .differential import computed, drawn
from .programs import titled

SIZES = {"b": 2, "h": 3, "i": 64, "j": 64, "d": 16, "f": 16, "c": 96, "lead": 5}
EPS = 1e-3


# ---------------------------------------------------------------------------- by hand, in float64


def rms_norm(x: Any, w: Any) -> Any:
    return w * x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS)


def layer_norm(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPS)


def affine_norm(x: Any, w: Any, u: Any) -> Any:
    return layer_norm(x) * w + u


def attention(q: Any, k: Any, v: Any, mask: Any = 0.0) -> Any:
    scores = np.einsum("bhid,bhjd->bhij", q, k) / np.sqrt(q.shape[-1]) + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhij,bhjf->bhif", weights / weights.sum(-1, keepdims=True), v)


def causal_attention(q: Any, k: Any, v: Any) -> Any:
    return attention(q, k, v, np.where(np.tri(q.shape[-2]) > 0, 0.0, -1e30))


# ---------------------------------------------------------------------------- the table

RMS, NORM, ATTENTION = "rms", "normalize", "scaled_dot_product_attention"

WRITTEN = titled("spellings.txt")
SPELLINGS = [name for name, each in WRITTEN.items() if "kernel" in each.said]
OTHERS = [name for name in WRITTEN if name not in SPELLINGS]
"""Nearly the same, and not it."""
BY_HAND = {each.__name__: each for each in (rms_norm, layer_norm, affine_norm, attention, causal_attention)}


@pytest.fixture
def rms(registering: None) -> None:
    """A kernel of the user's own, of one pattern."""

    def kernel(x: Any, w: Any, eps: float) -> Any:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], w.reshape(-1), eps)

    tn.register(RMS, computes="y[b,i] = x[b,i] / sqrt(mean[i](x[b,i] ** 2) + eps) * w[i]", torch=kernel)


def made(name: str) -> tn.Graph:
    inputs = WRITTEN[name].said["inputs"]
    return WRITTEN[name].graph(**{axis: SIZES[axis] for axis in "cd" if f"{axis}]" in inputs})


def kernels(graph: tn.Graph) -> set[str]:
    """The kernels that a plan calls."""
    code = tn.plan(graph, backend="torch", compare=False, **{n: SIZES[n] for n in graph.open_sizes}).code
    return {name for name in (RMS, NORM, ATTENTION) if f"{name}(" in code or f'"{name}"' in code}


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_kernel_is_recognised_in_every_spelling(name: str, request: pytest.FixtureRequest) -> None:
    said = WRITTEN[name].said
    if said["kernel"] == RMS:
        request.getfixturevalue("rms")
    check(made(name), said["kernel"], BY_HAND[said["by"]])


@pytest.mark.usefixtures("rms")
def test_so_is_the_rms_norm_of_the_models() -> None:
    check(tn.models.rms_norm(SIZES["c"], eps=EPS), RMS, rms_norm)


def check(graph: tn.Graph, kernel: str, by_hand: Any) -> None:
    assert kernels(graph) == {kernel}
    given = drawn(graph, **SIZES)
    (found,) = computed(graph, given, "torch").values()
    np.testing.assert_allclose(found, by_hand(*given.values()), rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("rms")
@pytest.mark.parametrize("name", OTHERS)
def test_what_is_nearly_a_kernel_is_none(name: str) -> None:
    graph = made(name)
    given = drawn(graph, **SIZES)
    assert not kernels(graph)
    found, expected = (computed(graph, given, backend)["y"] for backend in ("torch", "numpy"))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("rms")
def test_a_norm_that_is_one_step_with_its_bias_is_not_taken_apart() -> None:
    """In a layer norm there is an RMS norm, of what is left when the mean is taken off."""
    graph = tn.layer("y[b,c] = w[c] * normalize[c](x[b,c]) + u[c]", inputs="x")
    assert len(tn.plan(graph, backend="torch", b=3136, c=96).steps) == 1


# ---------------------------------------------------------------------------- functions that are written out

SHIFTED = "x[b,c] - max[c](x[b,c])"
WRITTEN_OUT = [
    ("y[b,c] = exp(x[b,c]) / sum[c](exp(x[b,c]))", "softmax"),
    (f"y[b,c] = exp({SHIFTED}) / sum[c](exp({SHIFTED}))", "softmax"),
    (f"e[b,c] = exp({SHIFTED})\nz[b] = e[b,c]\ny[c,b] = e[b,c] * (1 / z[b])", "softmax"),
    ("y[b,c] = exp(x[b,c] - logsumexp[c](x[b,c]))", "softmax"),
    ("y[b,c] = x[b,c] - logsumexp[c](x[b,c])", "log_softmax"),
    ("y[b,c] = log(softmax[c](x[b,c]))", "log_softmax"),
    ("y[b] = log(sum[c](exp(x[b,c])))", "logsumexp"),
    (f"y[b] = log(sum[c](exp({SHIFTED}))) + max[c](x[b,c])", "logsumexp"),
]


@pytest.mark.parametrize(("text", "function"), WRITTEN_OUT)
def test_a_function_is_recognised_where_it_is_written_out(text: str, function: str) -> None:
    """It does not overflow then, and its gradients are those of the function."""
    graph = tn.layer(text, inputs="x")
    code = tn.plan(graph, backend="torch", b=3, c=5).code
    assert re.search(rf"\b{function}\(", code)
    assert "torch.exp(" not in code
    x = 1e3 * np.random.default_rng(0).standard_normal((3, 5))
    wanted = torch.tensor(x, requires_grad=True)
    expected = getattr(torch, function)(wanted, -1)
    expected = expected.T if "y[c,b]" in text else expected
    weights = torch.arange(1.0, 1 + expected.numel(), dtype=torch.float64).reshape(expected.shape)
    (expected * weights).sum().backward()
    found = tn.compile(tn.gradient(graph, wrt="x"))({}, x, weights.numpy())
    np.testing.assert_allclose(found, wanted.grad, rtol=1e-9, atol=1e-9)
    found = tn.compile(graph, backend="numpy")({}, x)
    np.testing.assert_allclose(found, expected.detach(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "text",
    [
        "y[b,c] = exp(x[b,c]) / sum[b](exp(2 * x[b,c]))",
        "y[b,c] = exp(x[b,c]) / (1 + sum[c](exp(x[b,c])))",
        "y[b,c] = x[b,c] - logsumexp[c](2 * x[b,c])",
        "y[b,c] = exp(x[b,c]) / logsumexp[c](exp(x[b,c]))",
        "y[b] = log(logsumexp[c](exp(x[b,c])))",
        f"y[b] = logsumexp[c]({SHIFTED}) + sum[c](x[b,c])",
        f"y[b] = logsumexp[c]({SHIFTED}) + logsumexp[c](x[b,c])",
        "e[b,c] = exp(x[b,c] - max[b](x[b,c]))\ny[b,c] = e[b,c] / sum[c](e[b,c])",
        "z[b,c] = exp(x[b,c]) / sum[c](exp(x[b,c]))\ny[b,c] = z[b,c] * exp(x[c,b]) / sum[b](exp(x[b,c]))",
    ],
)
def test_what_is_nearly_softmax_has_its_own_value(text: str) -> None:
    graph = tn.layer(text, inputs="x")
    given = {"x": np.random.default_rng(0).standard_normal((4, 4))}
    np.testing.assert_allclose(
        computed(graph, given, "torch")["y"], oracle.meaning(graph, given, {"b": 4, "c": 4})["y"], rtol=1e-9
    )
