"""Convolutions as equations, against those of PyTorch: results, gradients, and the order of factorized kernels."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet.backends.array_functions import in_turn
from tensornet.backends.torch.functions import windows
from tensornet.language.expression import show

from .conftest import covered, normal

FACTORIZED = {
    "U[c,r] * G[s,r,u,v] * V[o,s]": {"r": 4, "s": 5},
    "A[o,r] * B[c,r] * C[u,r] * D[v,r]": {"r": 4},
    "A[c,r] * B[r,u,s] * C[s,v,t] * D[t,o]": {"r": 4, "s": 4, "t": 4},
}
AROUND = "z[b,c,h,w] = pad(x[b,c,h,w], h=(1,1), w=(1,1))\n"


@pytest.mark.parametrize(("kernel", "backend"), covered(FACTORIZED, ["jax", "torch"]))
def test_a_factorized_kernel_is_never_built_where_that_pays(kernel: str, backend: str) -> None:
    """1 × 1, what is left of the kernel, 1 × 1; and the zeros are put around in the convolution alone."""
    text = f"{AROUND}y[b,o,p,q] = z[b,c,p+u,q+v] * {kernel}"
    graph = tn.layer(text, inputs="x[b,c,h,w]", c=32, o=32, u=3, v=3, **FACTORIZED[kernel])
    parameters = tn.init(graph, seed=0, dtype="float64")
    x = normal(2, 32, 12, 11)
    whole = tn.layer(f"K[o,c,u,v] = {kernel}", c=32, o=32, u=3, v=3, **FACTORIZED[kernel])
    dense = tn.compile(whole)(parameters)
    expected = torch.nn.functional.conv2d(torch.tensor(x), torch.tensor(np.asarray(dense)), padding=1)
    given = tn.to_backend({**parameters, "x": x}, backend)
    found = tn.compile(graph, backend=backend)(given, given.pop("x"))
    np.testing.assert_allclose(np.asarray(found), expected.numpy(), atol=1e-12)
    plan = tn.plan(graph, backend=backend, b=8, h=56, w=56)
    assert sum("convolution" in str(step.equation) for step in plan.steps) in (1, 2)
    assert not any("pad(" in str(step.equation) for step in plan.steps)
    assert plan.flops < 0.2 * 2 * 8 * 56 * 56 * 32 * 32 * 9


def test_sizes_are_formulas() -> None:
    graph = tn.layer("y[b,o,p] = x[b,c,2*p+u] * K[o,c,u]", inputs="x[b,c,n]")
    assert str(tn.parameter_formula(graph)) == "c*o*u"
    assert [str(dim[0].size) for dim in graph.named["y"]] == ["b", "o", "floor(n/2 - u/2) + 1"]


# ---------------------------------------------------------------------------- pools

POOLS = [
    ("max[u,v](x[b,c,2*p+u,2*q+v])", lambda x: torch.nn.functional.max_pool2d(x, 3, 2)),
    ("mean[u,v](x[b,c,2*p+u,q+v])", lambda x: torch.nn.functional.avg_pool2d(x, 3, (2, 1))),
    ("max[u,v](abs(x[b,c,p+u,q+v]))", lambda x: torch.nn.functional.max_pool2d(x.abs(), 3, 1)),
    ("mean[u,v](x[b,c,p+u,q+v] * x[b,c,p+u,q+v])", lambda x: torch.nn.functional.avg_pool2d(x**2, 3, 1)),
    (
        "max[u,v](x[b,c,p+2*u,3*q+v+1])",
        lambda x: torch.nn.functional.max_pool2d(x[..., 1:], 3, (1, 3), 0, (2, 1)),
    ),
    (
        "mean[u,v](x[b,c,p+2*u,3*q+v+1])",
        lambda x: x[..., 1:].unfold(2, 5, 1)[..., ::2].unfold(3, 3, 3).mean((-1, -2)),
    ),
]


@pytest.mark.parametrize(("text", "expected"), POOLS, ids=[text for text, _ in POOLS])
@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_pools_are_those_of_pytorch(backend: str, text: str, expected: Any) -> None:
    graph = tn.layer(f"y[b,c,p,q] = {text}", inputs="x", u=3, v=3)
    x = normal(2, 3, 11, 12)
    given = torch.tensor(x, requires_grad=True)
    made = expected(given)
    (made**2).sum().backward()
    found = tn.compile(graph, backend=backend)({}, tn.to_backend({"x": x}, backend)["x"])
    np.testing.assert_allclose(np.asarray(found), made.detach().numpy(), rtol=1e-5, atol=1e-6)
    assert "pool" in tn.plan(graph, backend=backend, b=2, c=3, x2=11, x3=12).code
    if backend == "numpy":
        loss = tn.layer(f"y[b,c,p,q] = {text}\nl = y[b,c,p,q] * y[b,c,p,q]", inputs="x", u=3, v=3)
        gradient = tn.compile(tn.gradient(loss, of="l", wrt="x"))({}, x)
        np.testing.assert_allclose(gradient, given.grad.numpy(), atol=1e-10)


NOTHING = [
    *(f"y[b,c,p] = {name}[u](x[b,c,2*p+u])" for name in ("max", "mean")),
    *(f"y[b,c,p,q] = {name}[u,v](x[b,c,2*p+u,q+v])" for name in ("max", "mean")),
    *(f"y[b,c,p,q,r] = {name}[u,v,w](x[b,c,2*p+u,q+v,r+w])" for name in ("max", "mean")),
    "y[b,o,p] = x[b,c,2*p+u] * F[o,c,u]",
    "y[b,o,p,q] = x[b,c,2*p+u,q+v] * F[o,c,u,v]",
]


@pytest.mark.parametrize("text", NOTHING)
@pytest.mark.parametrize("shape", [(0, 3), (2, 0)], ids=["no batch", "no channels"])
def test_windows_of_an_empty_batch_have_gradients(text: str, shape: tuple[int, int]) -> None:
    """The kernels of torch refuse a pool of no channels, and zeros that stand for a convolution had no gradients."""
    windows = text.count("+")
    sizes = {axis: 2 for axis in "ouvw" if re.search(rf"\b{axis}\b", text)}
    graph = tn.layer(text, inputs="x[b,c," + ",".join("hij"[:windows]) + "]", **sizes)
    x = torch.zeros(*shape, *[6] * windows, requires_grad=True)
    weight = {"F": torch.ones(2, shape[1], *[2] * windows, requires_grad=True)} if "F" in text else {}
    y = tn.compile(graph, backend="torch")(weight, x)
    assert tuple(y.shape) == (shape[0], 2 if weight else shape[1], 3, *[5] * (windows - 1))
    y.sum().backward()
    for each in (x, *weight.values()):
        np.testing.assert_array_equal(each.grad, torch.zeros(each.shape))


# ---------------------------------------------------------------------------- ready-made


RANKS = {"low_rank": 2, "separable": 0.5, "tucker2": 0.5, "tucker": 0.5, "cp": 0.5, "tt": 0.5, "tr": 0.5}
READY: list[dict[str, Any]] = [
    {"kernel": (3, 5), "stride": 2, "padding": (1, 2)},
    {"dimensions": 1, "kernel": 4, "dilation": 2},
    {"dimensions": 3, "groups": 2, "bias": False},
    {"dimensions": 3, "factorization": "tucker2", "rank": (3, 2), "padding": 1},
    {"dimensions": 3, "factorization": "cp", "rank": 3, "stride": 2},
    *(
        {"factorization": name, "rank": RANKS[name], "groups": groups, "padding": 1, "stride": 2}
        for name, groups in itertools.product(RANKS, [1, 2])
    ),
]


@pytest.mark.parametrize("options", READY, ids=str)
def test_the_ready_made_convolution(options: dict[str, Any]) -> None:
    """Of any dimensions; groups have factorized kernels of their own."""
    graph = tn.models.convolution(4, 6, **options)
    parameters = tn.init(graph, seed=0, dtype="float64")
    count = len(graph.inputs[0].dims) - 2
    x = normal(2, 4, *(11, 9, 8)[:count])
    if "F" in parameters:
        weight = parameters["F"]
    elif options["factorization"] == "separable" and options["groups"] > 1:
        D, P = parameters["D"].reshape(2, 2, 3, 3), parameters["P"].reshape(2, 3, 2)
        weight = np.einsum("gcuv,goc->gocuv", D, P).reshape(6, 2, 3, 3)
    else:
        weight = kernel_of(graph, parameters)
    bias = torch.tensor(parameters["bias"]) if "bias" in parameters else None
    plain = {name: options[name] for name in ("stride", "padding", "dilation", "groups") if name in options}
    convolve = getattr(torch.nn.functional, f"conv{count}d")
    expected = convolve(torch.tensor(x), torch.tensor(weight), bias, **plain)
    np.testing.assert_allclose(tn.compile(graph)(parameters, x), expected.numpy(), atol=1e-12)


def kernel_of(graph: tn.Graph, parameters: Any) -> Any:
    """The kernel, written out: all outputs, of the channels of one group."""
    factors = next(each for each in graph.own if {"p", "u"} <= {*each.axes}).right.factors[1:]
    space = [axis for axis in "uvk" if any(axis in show(each) for each in factors)]
    kept = "(g,o)" if "g" in graph.bound else "o"
    whole = tn.layer(f"K[{kept},c,{','.join(space)}] = {' * '.join(map(show, factors))}", **graph.bound)
    return np.asarray(tn.compile(whole)({leaf.name: parameters[leaf.name] for leaf in whole.parameters}))


@pytest.mark.parametrize("stride", [1, 2])
def test_the_residual_block(stride: int) -> None:
    graph = tn.models.residual_block(4, 4 * stride, stride=stride)
    rng = np.random.default_rng(0)
    parameters = {name: rng.normal(size=each.shape) for name, each in tn.init(graph).items()}
    x = rng.normal(size=(2, 4, 9, 7))

    def normed(y: Any, name: str) -> Any:
        gain, bias = (torch.tensor(parameters[f"{name}.{each}"])[:, None, None] for each in ("gain", "bias"))
        return gain * y + bias

    def convolved(y: Any, name: str, **options: Any) -> Any:
        return normed(torch.nn.functional.conv2d(y, torch.tensor(parameters[f"{name}.F"]), **options), name)

    start = torch.tensor(x)
    made = torch.relu(convolved(start, "first", stride=stride, padding=1))
    made = convolved(made, "second", padding=1)
    beside = start if stride == 1 else convolved(start, "beside", stride=stride)
    expected = torch.relu(made + beside)
    np.testing.assert_allclose(tn.compile(graph)(parameters, x), expected.numpy(), atol=1e-10)


@pytest.mark.parametrize(("stride", "factorization"), covered([1, 2], ["tucker2", "cp", "tt", "separable"]))
def test_the_way_back_of_a_factorized_kernel_goes_through_its_factors(
    factorization: str, stride: int
) -> None:
    """Neither windows nor the dense kernel are made: fewer FLOPs than of a dense kernel's backward pass."""
    options: dict[str, Any] = {"padding": 1, "stride": stride, "bias": False}
    rank: Any = {"tucker2": (4, 4), "cp": 8, "tt": (4, 6, 3)}.get(factorization, 0.2)
    graph = tn.models.convolution(16, 16, factorization=factorization, rank=rank, **options)
    names = ["x", *(leaf.name for leaf in graph.parameters)]
    back = tn.gradient(graph, wrt=names)
    dense = tn.gradient(tn.models.convolution(16, 16, **options), wrt=["x", "F"])
    sizes = {"b": 2, "h": 24, "w": 20}
    ours, theirs = (tn.plan(each, backend="torch", compare=False, **sizes).flops for each in (back, dense))
    assert ours < 0.8 * theirs
    rng = np.random.default_rng(0)
    p, x = tn.init(graph, seed=0, dtype="float64"), rng.normal(size=(2, 16, 12, 10))
    seed = rng.normal(size=tn.compile(graph)(p, x).shape)
    leaves = [torch.tensor(each, requires_grad=True) for each in (x, *p.values())]
    y = tn.compile(graph, backend="torch")(dict(zip(p, leaves[1:], strict=True)), leaves[0])
    expected = torch.autograd.grad((y * torch.tensor(seed)).sum(), leaves)
    for found, one in zip(tn.compile(back)(p, x, seed), expected, strict=True):
        np.testing.assert_allclose(found, one.numpy(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("stride", "factorization"), covered([1, 2], ["tucker2", "cp", "tt", "separable"]))
def test_the_way_back_of_a_factorized_kernel_is_made_of_convolutions(factorization: str, stride: int) -> None:
    """Its result, its operand and its kernel, each from the other two, where no windows lie side by side and nothing
    large is brought into another order."""
    rank: Any = {"tucker2": (32, 32), "cp": 32, "tt": (16, 16, 3)}.get(factorization, 1)
    options: dict[str, Any] = {"stride": stride, "factorization": factorization, "rank": rank}
    graph = tn.models.convolution(64, 64, padding=1, bias=False, **options)
    back = tn.gradient(graph, wrt=["x", *(leaf.name for leaf in graph.parameters)])
    plan = tn.plan(back, backend="torch", compare=False, b=8, h=28, w=28)
    assert len(re.findall(r"= convolution(?:_x|_k)?\(", plan.code)) == 3
    assert "index_select" not in plan.code
    copied = [line.partition("#")[2] for line in plan.code.splitlines() if "contiguous()" in line]
    assert not [each for each in copied if "[b," in each]


def test_convolutions_whose_windows_are_alike_have_ways_back_of_their_own() -> None:
    graph = tn.models.residual_block(8, 8)
    back = tn.gradient(graph, wrt=["x", *(leaf.name for leaf in graph.parameters)])
    plan = tn.plan(back, backend="torch", compare=False, b=2, H=16, W=16)
    assert len(re.findall(r"= convolution_x\(", plan.code)) == 2


# ---------------------------------------------------------------------------- windows as views of memory


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


@pytest.mark.parametrize(
    ("shape", "axis", "places"),
    [
        ((2, 9, 16), 1, (0, 1, 4, 5, 2)),
        ((2, 9, 3), 1, (1, 2, 1, 2, 5)),
        ((3, 20), 1, (2, 1, 3, 3, 6)),
        ((3, 20), 1, (0, 1, 1, 12, 9)),
    ],
)
def test_gradients_of_windows_are_those_of_gathers(
    shape: tuple[int, ...], axis: int, places: tuple[int, ...]
) -> None:
    first, by, apart, outer, inner = places
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    at = first + by * torch.arange(outer)[:, None] + apart * torch.arange(inner)
    gathered = x.index_select(axis, at.flatten()).unflatten(axis, (outer, inner))
    found = windows(x, axis, *places)
    assert torch.equal(found, gathered)
    weight = torch.randn_like(found)
    first_order = [torch.autograd.grad((each * weight).sum(), x)[0] for each in (found, gathered)]
    torch.testing.assert_close(*first_order)
    assert torch.autograd.gradgradcheck(lambda x: windows(x, axis, *places).square(), x)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_bias_of_channels_is_part_of_the_convolution(stride: int) -> None:
    graph = tn.layer(
        f"y[b,o,p,q] = relu(u[o] + x[b,c,{stride}*p+i,{stride}*q+j] * K[o,c,i,j])", inputs="x[b,c,h,w]"
    )
    sizes = {"b": 4, "c": 16, "h": 20, "w": 20, "o": 16, "i": 3, "j": 3}
    plan = tn.plan(graph, backend="torch", **sizes)
    assert "convolution_bias(x, K, u, " in plan.code
    assert len(plan.steps) == 2
    x, kernel, bias = (
        torch.randn(shape, requires_grad=True) for shape in [(4, 16, 20, 20), (16, 16, 3, 3), (16,)]
    )
    found = tn.compile(graph, backend="torch")({"K": kernel, "u": bias}, x)
    expected = torch.relu(torch.conv2d(x, kernel, bias, stride))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    gradients = [torch.autograd.grad(each.square().sum(), (x, kernel, bias)) for each in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(
        tn.compile(graph, backend="torch")({"K": kernel, "u": bias}, x[:0]), expected[:0]
    )


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("name", ["max", "min", "mean", "sum"])
def test_a_reduction_over_few_innermost_positions_comes_last(name: str, backend: str) -> None:
    graph = tn.layer(f"y[b,h,w] = {name}[i,j](x[b,(h,i),(w,j)])", inputs="x", i=2, j=2)
    x = np.random.default_rng(0).integers(-2, 3, (4, 32, 64)).astype(float)
    expected = getattr(np, name)(x.reshape(4, 16, 2, 32, 2), axis=(2, 4))
    found = tn.compile(graph, backend=backend)({}, tn.to_backend({"x": x}, backend)["x"])
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-6)
    plan = tn.plan(graph, backend=backend, b=4, h=16, w=32)
    if name in (
        "max",
        "min",
    ):  # by the library's function: under a compiler, equal elements share the gradient
        assert f"extreme({name == 'max'}, " in plan.code if backend == "torch" else "in_turn(" in plan.code
        orders: list[tuple[int, ...]] = []
        in_turn(lambda x, axes: orders.append(axes) or x.max(axes), x.reshape(4, 16, 2, 32, 2), (2, 4))
        assert orders == [(2,), (3,)]
    elif name != "mean" or backend == "numpy":
        assert len(plan.steps) == 2
    if backend == "torch":  # equal elements share the gradient evenly
        given = torch.tensor(x.repeat(16, 0), requires_grad=True)
        parts = given.reshape(64, 16, 2, 32, 2)
        with_ties = {"max": torch.amax, "min": torch.amin}.get(name, getattr(torch, name))(parts, (2, 4))
        made = tn.compile(graph, backend="torch")({}, given)
        weight = torch.randn_like(made)
        pair = [torch.autograd.grad((each * weight).sum(), given)[0] for each in (made, with_ties)]
        torch.testing.assert_close(*pair)
