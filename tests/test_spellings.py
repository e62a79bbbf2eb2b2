"""Spellings: each kernel is recognised from one pattern, however a program says what it computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensornet as tn

from .differential import computed, drawn

torch = pytest.importorskip("torch")

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

X, XW, XWU = "x[b,c]", "x[b,c] w[c]", "x[b,c] w[c] u[c]"
QKV = "q[b,h,i,d] k[b,h,j,d] v[b,h,j,f]"
RMS, NORM, ATTENTION = "rms", "normalize", "scaled_dot_product_attention"

RMS_NORMS = [
    ("y[b,c] = w[c] * x[b,c] / sqrt(mean[c](x[b,c] * x[b,c]) + 0.001)", XW),
    ("y[b,c] = x[b,c] * rsqrt(mean[c](square(x[b,c])) + 0.001) * w[c]", XW),
    ("y[b,c] = x[b,c] * (mean[c](x[b,c] ** 2) + 0.001) ** -0.5 * w[c]", XW),
    ("y[b,c] = x[b,c] * w[c] / (sum[c](x[b,c] ** 2) / c + 0.001) ** 0.5", XW),
    ("m[b] = mean[c](x[b,c] * x[b,c])\ny[b,c] = w[c] * (x[b,c] * rsqrt(m[b] + 0.001))", XW),
    ("s[b] = x[b,e] * x[b,e]\ny[b,c] = x[b,c] * rsqrt(0.001 + s[b] / 96) * w[c]", XW),
    ("n[b,c] = x[b,c] / sqrt(mean[c](square(x[b,c])) + 0.001)\ny[b,c] = n[b,c] * w[c]", XW),
    ("r[b] = 1 / sqrt(mean[e](x[b,e] ** 2) + 0.001)\nn[b,c] = r[b] * w[c] * x[b,c]\ny[b,c] = n", XW),
]  # fmt: skip

LAYER_NORMS = [
    ("m[b] = mean[c](x[b,c])\nv[b] = mean[c](square(x[b,c] - m[b]))\ny[b,c] = (x[b,c] - m[b]) * rsqrt(v[b] + 0.001)",
     X, layer_norm),
    ("y[b,c] = (x[b,c] - mean[c](x[b,c])) / sqrt(var[c](x[b,c]) + 0.001)", X, layer_norm),
    ("z[b,c] = x[b,c] - sum[c](x[b,c]) / c\ny[b,c] = z * (sum[c](z[b,c] * z[b,c]) / c + 0.001) ** -0.5",
     X, layer_norm),
    ("y[b,c] = (x[b,c] - mean[c](x[b,c])) / (std[c](x[b,c]) ** 2 + 0.001) ** 0.5", X, layer_norm),
    ("y[b,c] = normalize[c](x[b,c], eps=0.001) * w[c] + u[c]", XWU, affine_norm),
    ("m[b] = mean[e](x[b,e])\nz[b,c] = x[b,c] - m[b]\nv[b] = mean[e](z[b,e] ** 2)\n"
     "y[b,c] = u[c] + w[c] * z[b,c] * rsqrt(v[b] + 0.001)", XWU, affine_norm),
]  # fmt: skip

ATTENTIONS = [
    ("s[b,h,i,j] = q[b,h,i,d] * k[b,h,j,d] / sqrt(d)\ny[b,h,i,f] = softmax[j](s) * v[b,h,j,f]",
     QKV, attention),
    ("r[b,h,i,d] = q[b,h,i,d] * d ** -0.5\ny[b,h,i,f] = softmax[j](r * k[b,h,j,d]) * v[b,h,j,f]",
     QKV, attention),
    ("y[b,h,i,f] = softmax[j](q[b,h,i,d] * (k[b,h,j,d] / 4) + m[i,j]) * v[b,h,j,f]",
     f"{QKV} m[i,j]", attention),
    ("s[b,h,i,j] = q[b,h,i,d] * k[b,h,j,d]\ny[b,h,i,f] = softmax[j](0.25 * (s + 4 * m[i,j])) * v[b,h,j,f]",
     f"{QKV} m[i,j]", attention),
    ("s[b,h,i,j] = where(index(i) >= index(j), q[b,h,i,d] * k[b,h,j,d], -1e30)\n"
     "y[b,h,i,f] = softmax[j](s / sqrt(d)) * v[b,h,j,f]", QKV, causal_attention),
]  # fmt: skip

OTHERS = [  # nearly the same, and not it
    ("y[b,c] = w[c] * x[b,c] / sqrt(sum[c](x[b,c] * x[b,c]) / 95 + 0.001)", XW),
    ("y[b,c] = w[c] * x[b,c] / sqrt(mean[c]((w[c] * x[b,c]) ** 2) + 0.001)", XW),
    ("y[b,c] = w[c] * x[b,c] / sqrt(mean[b](x[b,c] ** 2) + 0.001)", XW),
    ("y[b,c] = w[c] * x[b,c] * sqrt(mean[c](x[b,c] ** 2) + 0.001)", XW),
    ("m[b] = mean[e](x[b,e])\ny[b,c] = (x[b,c] + m[b]) / sqrt(var[c](x[b,c]) + 0.001)", X),
    ("y[b,c] = (x[b,c] - mean[c](x[b,c])) / sqrt(mean[c](x[b,c] ** 2) + 0.001)", X),
]


@pytest.fixture
def rms(registering: None) -> None:
    """A kernel of the user's own, of one pattern."""

    def kernel(x: Any, w: Any, eps: float) -> Any:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], w.reshape(-1), eps)

    tn.register(RMS, computes="y[b,i] = x[b,i] / sqrt(mean[i](x[b,i] ** 2) + eps) * w[i]", torch=kernel)


def made(text: str, inputs: str) -> tn.Graph:
    return tn.layer(text, inputs=inputs, **{axis: SIZES[axis] for axis in "cd" if f"{axis}]" in inputs})


def kernels(graph: tn.Graph) -> set[str]:
    """The kernels that a plan calls."""
    code = tn.plan(graph, backend="torch", compare=False, **{n: SIZES[n] for n in graph.open_sizes}).code
    return {name for name in (RMS, NORM, ATTENTION) if f"{name}(" in code or f'"{name}"' in code}


SPELLINGS = [
    *((RMS, rms_norm, *row) for row in RMS_NORMS),
    *((NORM, by_hand, *row) for *row, by_hand in LAYER_NORMS),
    *((ATTENTION, by_hand, *row) for *row, by_hand in ATTENTIONS),
]


@pytest.mark.parametrize(("kernel", "by_hand", "text", "inputs"), SPELLINGS)
def test_a_kernel_is_recognised_in_every_spelling(
    kernel: str, by_hand: Any, text: str, inputs: str, request: pytest.FixtureRequest
) -> None:
    if kernel == RMS:
        request.getfixturevalue("rms")
    check(made(text, inputs), kernel, by_hand)


@pytest.mark.usefixtures("rms")
def test_so_is_the_rms_norm_of_the_models() -> None:
    check(tn.models.rms_norm(SIZES["c"], eps=EPS), RMS, rms_norm)


def check(graph: tn.Graph, kernel: str, by_hand: Any) -> None:
    assert kernels(graph) == {kernel}
    given = drawn(graph, **SIZES)
    (found,) = computed(graph, given, "torch").values()
    np.testing.assert_allclose(found, by_hand(*given.values()), rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("rms")
@pytest.mark.parametrize(("text", "inputs"), OTHERS)
def test_what_is_nearly_a_kernel_is_none(text: str, inputs: str) -> None:
    graph = made(text, inputs)
    given = drawn(graph, **SIZES)
    assert not kernels(graph)
    found, expected = (computed(graph, given, backend)["y"] for backend in ("torch", "numpy"))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("rms")
def test_a_norm_that_is_one_step_with_its_bias_is_not_taken_apart() -> None:
    """In a layer norm there is an RMS norm, of what is left when the mean is taken off."""
    graph = tn.layer("y[b,c] = w[c] * normalize[c](x[b,c]) + u[c]", inputs="x")
    assert len(tn.plan(graph, backend="torch", b=3136, c=96).steps) == 1
