"""What torch users rely on: autograd, compile, export, state dicts, copies, dtypes."""

from __future__ import annotations

import copy
import pickle
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, reject

import tensornet as tn
from tensornet.backends.torch.products import with_vjp
from tensornet.protocol import load_backend

from .conftest import covered, examples
from .programs import SUMMED_ALONE, Program, programs
from .test_gradients import agree, by_autograd, results, seeds_of

pytestmark = pytest.mark.filterwarnings(SUMMED_ALONE)

TCL = tn.layer("y[b,p,q,r] = x[b,i,j,k] * U[p,i] * V[q,j] * W[r,k]", inputs="x", i=4, j=4, k=3, p=4, q=4, r=6)
ATTENTION = """
q[b,i,h1,h2,h3,d1,d2,d3] = x[b,i,e1,e2,e3] * Q1[(h1,d1),e1] * Q2[(h2,d2),e2] * Q3[(h3,d3),e3]
k[b,j,h1,h2,h3,d1,d2,d3] = x[b,j,e1,e2,e3] * K1[(h1,d1),e1] * K2[(h2,d2),e2] * K3[(h3,d3),e3]
v[b,j,h1,h2,h3,d1,d2,d3] = x[b,j,e1,e2,e3] * V1[(h1,d1),e1] * V2[(h2,d2),e2] * V3[(h3,d3),e3]
s[b,h1,h2,h3,i,j]        = q * k / sqrt(d1*d2*d3)
a[b,h1,h2,h3,i,j]        = sign(s) * softmax[j](abs(s))
y[b,i,(h1,d1),(h2,d2),(h3,d3)] = a * v
"""
SIZES = {"h1": 2, "h2": 1, "h3": 2, "d1": 2, "d2": 3, "d3": 4, "e1": 4, "e2": 3, "e3": 8}


def attention_by_hand(x: torch.Tensor, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    """Thesis eq. 3.0.10–3.0.18, written with torch alone."""
    batch, tokens = x.shape[:2]

    def project(name: str) -> torch.Tensor:
        y = torch.einsum("bixyz,px,qy,rz->bipqr", x, *[weights[f"{name}{n}"] for n in (1, 2, 3)])
        return y.reshape(batch, tokens, 2, 2, 1, 3, 2, 4).permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(-3)

    q, k, v = project("Q"), project("K"), project("V")
    scores = q @ k.transpose(-1, -2) / 24**0.5
    y = (scores.sign() * scores.abs().softmax(-1)) @ v
    return y.unflatten(-1, (2, 3, 4)).permute(0, 4, 1, 5, 2, 6, 3, 7).reshape(batch, tokens, 4, 3, 8)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])
def test_attention_of_the_thesis(dtype: str, tolerance: float) -> None:
    graph = tn.layer(ATTENTION, inputs="x", **SIZES)
    weights = tn.init(graph, seed=1, backend="torch", dtype=dtype)
    x = torch.randn(3, 7, 4, 3, 8, generator=torch.Generator().manual_seed(0), dtype=getattr(torch, dtype))
    expected = attention_by_hand(x, weights)
    assert (tn.compile(graph, backend="torch")(weights, x) - expected).abs().max() < tolerance
    numpy_weights = {name: array.numpy() for name, array in weights.items()}
    found = tn.compile(graph, backend="numpy")(numpy_weights, x.numpy())
    assert np.abs(found - expected.numpy()).max() < tolerance


def test_signed_attention_worked_example() -> None:
    """Q=[1,2,−1], K₁=[1,0,−1], K₂=[−1,1,1]: A=[2,0], softmax [0.88,0.12], signed [0.88,0]."""
    graph = tn.layer(
        "s[j] = q[d] * k[j,d]\na[j] = softmax[j](abs(s))\nsigned[j] = sign(s) * a",
        inputs="q k",
        outputs="s a signed",
    )
    q, k = np.array([1.0, 2, -1]), np.array([[1.0, 0, -1], [-1, 1, 1]])
    scores, soft, signed = tn.compile(graph)({}, q, k)
    np.testing.assert_array_equal(scores, [2, 0])
    np.testing.assert_allclose(soft, [np.e**2 / (np.e**2 + 1), 1 / (np.e**2 + 1)], rtol=1e-12)
    np.testing.assert_allclose(signed, [0.8807970779778823, 0.0], rtol=1e-12)


@examples(12)
@given(programs())
def test_autograd_agrees_with_planned_gradients(case: Program) -> None:
    """The oracle judges the latter; of a random mask each way draws its own."""
    assume("dropout" not in case.text)
    arrays = case.arrays()
    wrt = [name for name, array in arrays.items() if array.dtype.kind == "f"]
    assume(wrt)
    try:
        graph = case.graph()
        seeds = seeds_of(graph, arrays)
        derivative = tn.gradient(graph, wrt=wrt)
    except tn.TensornetError:
        reject()
    everything = {**arrays, **{f"{name}.grad": each for name, each in seeds.items()}}
    with np.errstate(all="ignore"):
        found = results(derivative, "numpy", everything)
    agree(list(found.values()), by_autograd(graph, arrays, wrt, seeds), 1e-7)


def test_layer_gradients() -> None:
    module = tn.module(TCL, seed=0, dtype="float64")
    x = torch.randn(5, 4, 4, 3, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in module.named_parameters()]
    values = [parameter.detach().requires_grad_() for parameter in module.parameters()]

    def call(x: torch.Tensor, *parameters: torch.Tensor) -> Any:
        return torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), (x,))

    assert torch.autograd.gradcheck(call, (x, *values))


def counting() -> tuple[list[int], Any]:
    """A compiler for torch.compile that runs graphs as they are, and counts them."""
    count: list[int] = []

    def compiler(graph: Any, inputs: Any) -> Any:
        count.append(1)
        return graph.forward

    return count, compiler


@pytest.mark.parametrize(
    ("dynamic", "graph"), covered([True, None], [TCL, tn.models.tcl((4, 4, 3), (4, 4, 6))])
)
def test_six_batch_sizes_compile_at_most_twice(graph: tn.Graph, dynamic: bool | None) -> None:
    torch._dynamo.reset()
    module = tn.module(graph, seed=0)
    count, compiler = counting()
    compiled = torch.compile(module, dynamic=dynamic, fullgraph=True, backend=compiler)
    for batch in (32, 64, 100, 7, 1000, 3):
        x = torch.randn(batch, 4, 4, 3)
        torch.testing.assert_close(compiled(x), module(x), atol=1e-5, rtol=1e-5)
    assert len(count) <= 2


@pytest.mark.parametrize(("dynamic", "planned"), [(None, 100), (False, 100), (True, 64)])
def test_a_compiler_gets_a_plan_for_the_sizes_it_compiles_for(dynamic: bool | None, planned: int) -> None:
    torch._dynamo.reset()
    module, x = tn.module(TCL, seed=0), torch.randn(100, 4, 4, 3)
    found = torch.compile(module, dynamic=dynamic, fullgraph=True, backend=counting()[1])(x)
    assert dict(module.plan.sizes) == {"b": planned}
    torch.testing.assert_close(found, module(x))


def test_attention_compiles_whole_and_exports() -> None:
    torch._dynamo.reset()
    module = tn.module(tn.layer(ATTENTION, inputs="x", **SIZES), seed=0)
    count, compiler = counting()
    x = torch.randn(3, 7, 4, 3, 8)
    torch.testing.assert_close(torch.compile(module, fullgraph=True, backend=compiler)(x), module(x))
    assert len(count) == 1
    batch = torch.export.Dim("batch", min=2, max=1024)
    program = torch.export.export(module, (x,), dynamic_shapes={"x": {0: batch}})
    other = torch.randn(11, 7, 4, 3, 8)
    torch.testing.assert_close(program.module()(other), module(other), atol=1e-5, rtol=1e-5)


def test_one_training_step_with_the_default_compiler() -> None:
    torch._dynamo.reset()
    module = tn.module(
        tn.layer("y[b,o] = gelu(x[b,i]*W[h,i] + u[h]) * Z[o,h]", inputs="x", i=8, h=16, o=4), seed=0
    )
    twin = copy.deepcopy(module)
    x = torch.randn(32, 8)
    for each in (torch.compile(module, fullgraph=True, backend="aot_eager"), twin):
        each(x).square().mean().backward()
    for ours, theirs in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def nested() -> tn.Graph:
    layer = tn.models.linear((4,), (4,))
    return tn.model(lambda x: layer(layer(x, scope="blocks.0"), scope="blocks.1"), inputs="x[b,i]", i=4)


def test_names_state_and_copies() -> None:
    module = tn.module(nested(), seed=0)
    assert list(module.state_dict()) == ["blocks.0.W", "blocks.0.bias", "blocks.1.W", "blocks.1.bias"]
    x = torch.randn(3, 4)
    other = tn.module(nested(), seed=1)
    assert not torch.equal(other(x), module(x))
    other.load_state_dict(module.state_dict())
    for twin in (other, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(twin(x), module(x))
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.blocks.get_submodule("0").W.zero_()
    assert not torch.equal(twin(x), module(x))
    assert "blocks.1.y = " in repr(module)


def test_reset_dtype_device_and_seed() -> None:
    module = tn.module(TCL, seed=3)
    first = module.U.clone()
    module.reset_parameters(seed=4)
    assert not torch.equal(first, module.U)
    module.reset_parameters(seed=3)
    assert torch.equal(first, module.U)
    torch.manual_seed(0)
    one = tn.module(TCL)
    torch.manual_seed(0)
    assert torch.equal(one.U, tn.module(TCL).U)
    assert tn.module(TCL, dtype="bfloat16").U.dtype == torch.bfloat16
    assert tn.module(TCL).double()(torch.randn(2, 4, 4, 3).double()).dtype == torch.float64
    with pytest.raises(tn.ShapeError, match=r"the parameter 'W\[o,i\]: parameter' has an open size"):
        tn.module(tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x"))


def test_names_that_torch_keeps_for_itself() -> None:
    with pytest.raises(tn.EquationError, match="'forward' cannot name a parameter of a torch module"):
        tn.module(tn.layer("y[b] = x[b,i] * forward[i]", inputs="x", i=3))
    assert tn.module(tn.layer("y[b] = self[b,i] * W[i]", inputs="self", i=3))(torch.ones(2, 3)).shape == (2,)
    assert tn.module(tn.layer("y[b] = x[b,observed] * W[observed]", inputs="x", observed=3))(
        torch.ones(2, 3)
    ).shape == (2,)


def test_a_linear_layer_comes_out_in_order() -> None:
    module = tn.module(
        tn.layer("y[...,o] = x[...,i] * W[o,i] + u[o]", inputs="x", i=256, o=256), plan_at={"lead": 3200}
    )
    assert module(torch.ones(64, 50, 256)).is_contiguous()


def test_dropout_drops_in_training_only() -> None:
    module = tn.module(tn.layer("y[b,i] = dropout(x[b,i], 0.5) * g[i]", inputs="x", i=1000), seed=0)
    x = torch.ones(4, 1000)
    assert torch.equal(module.eval()(x), x)
    dropped = module.train()(x)
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert 0.4 < float((dropped == 0).float().mean()) < 0.6


def test_constants_follow_the_module() -> None:
    graph = tn.layer("y[b,i] = x[b,i] * c[i]", inputs="x", constants={"c": np.array([1.0, 2.0])})
    module = tn.module(graph).double()
    assert module(torch.ones(1, 2, dtype=torch.float64)).tolist() == [[1.0, 2.0]]
    assert not module.state_dict()
    assert tn.Graph.from_json(graph.to_json()) == graph


@pytest.mark.gpu
def test_module_on_cuda() -> None:
    module = tn.module(TCL, seed=0)
    x = torch.randn(16, 4, 4, 3)
    torch.testing.assert_close(module.cuda()(x.cuda()).cpu(), module.cpu()(x), atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(shutil.which("g++") is None, reason="PyTorch's compiler needs one for C++")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # PyTorch's own
@pytest.mark.parametrize(
    ("batch", "heads", "keys", "values"),
    [
        (4, 1, "b,j,h,d", "j,b,h,f"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                (4, 1, "h,j,b,d", "b,j,h,f"),
                (4, 1, "b,j,h,d", "j,h,b,f"),
                (1, 4, "b,j,h,d", "h,b,j,f"),
                (1, 1, "h,j,b,d", "j,b,h,f"),
            )
        ),
    ],
)
def test_a_compiler_takes_attention_for_what_it_is(batch: int, heads: int, keys: str, values: str) -> None:
    """Of one head or one example, PyTorch's compiler took it to lie as its own would: wrong, or an error."""
    torch._dynamo.reset()
    sizes = {"b": batch, "h": heads, "i": 4, "j": 4, "d": 4, "f": 5}
    operands = ["q[b,i,h,d]", f"k[{keys}]", f"v[{values}]"]
    q, k, v = given = [torch.randn([sizes[axis] for axis in each[2:-1].split(",")]) for each in operands]
    for each in given:
        each.requires_grad_()
    graph = tn.layer("y[b,i,h,f] = softmax[j](0.5 * {} * {}) * {}".format(*operands), inputs=operands)
    found = torch.compile(tn.module(graph), fullgraph=True)(*given)
    of_keys, of_values = keys.replace(",", ""), values.replace(",", "")
    weights = (0.5 * torch.einsum(f"bihd,{of_keys}->bhij", q, k)).softmax(-1)
    expected = torch.einsum(f"bhij,{of_values}->bihf", weights, v)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    down = torch.randn_like(expected)
    for each, other in zip(*(torch.autograd.grad(y, given, down) for y in (found, expected)), strict=True):
        torch.testing.assert_close(each, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_gradients_come_to_the_way_back_as_it_is_planned(order: tuple[int, ...]) -> None:
    """A batched product of small matrices that lie otherwise is copied matrix by matrix."""
    lying: list[bool] = []

    def backward(x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        lying.append(gradient.is_contiguous())
        return 3.0 * gradient

    x = torch.randn(2, 3, 4, requires_grad=True)
    y = with_vjp(lambda x: 3.0 * x, backward, (0,), (0,))(x)
    down = torch.randn([y.shape[n] for n in order]).permute([order.index(n) for n in range(3)])
    (found,) = torch.autograd.grad(y, x, down)
    assert lying == [True]
    torch.testing.assert_close(found, 3.0 * down)


def test_a_call_under_autocast_is_another_on_every_device() -> None:
    class OnMetal:
        device, shape, dtype = torch.device("mps"), (2,), torch.float32
        is_cpu = is_cuda = requires_grad = False

    sign = load_backend("torch").signing()
    before = sign([OnMetal()])
    torch.set_autocast_enabled("mps", True)
    try:
        assert sign([OnMetal()]) != before
    finally:
        torch.set_autocast_enabled("mps", False)
    x = torch.ones(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = sign([x])
    assert len({cast, sign([x]), sign([x.clone().requires_grad_()]), sign([x.double()])}) == 4
