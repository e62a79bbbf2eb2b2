"""What torch users rely on: autograd, compile, export, state dicts, copies, dtypes."""

from __future__ import annotations

import copy
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given, reject
from torch.autograd import forward_ad

import tensornet as tn
from tensornet.backends.torch import call_cache
from tensornet.backends.torch.kernels import scaled_dot_product_attention
from tensornet.backends.torch.products import with_vjp
from tensornet.protocol import load_backend

from .conftest import covered, examples, sampled, saved_for_backward
from .differential import by_numpy
from .programs import SUMMED_ALONE, Program, programs
from .test_gradients import agree, by_autograd, seeds_of

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
    agree([*by_numpy(derivative, everything).values()], by_autograd(graph, arrays, wrt, seeds), 1e-7)


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


def test_windows_along_open_positions_are_exported_with_them_open() -> None:
    module = tn.module(tn.layer("y[b,p,c] = logsumexp[u](x[b,p+u,c])", inputs="x", u=5))
    sizes = {1: torch.export.Dim("t", min=9, max=1000), 2: torch.export.Dim("c", min=2, max=1000)}
    program = torch.export.export(module, (torch.randn(2, 20, 3),), dynamic_shapes=(sizes,))
    x = torch.randn(2, 31, 7)
    torch.testing.assert_close(program.module()(x), module(x))


def test_a_norm_along_an_open_batch_is_exported_with_it_open() -> None:
    """Which way is faster for so many elements is asked of calls alone."""
    module = tn.module(tn.layer("y[c] = norm[b](x[b,c])", inputs="x"))
    batch = torch.export.Dim("b", min=2, max=1000)
    program = torch.export.export(module, (torch.randn(300, 40),), dynamic_shapes=({0: batch},))
    x = torch.randn(7, 40)
    torch.testing.assert_close(program.module()(x), module(x))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("graph", "shape"),
    [
        (tn.layer("h[b,t,d] = tanh(h[b,t-1,k] * W[d,k] + x[b,t,d])", inputs="x", d=4), (2, 5, 4)),
        (tn.models.vit(16, 4, 32, 2, 2, 64, 10), (2, 3, 16, 16)),
        (tn.models.lstm(6, 5), (2, 7, 6)),
        (tn.models.gpt2(50, 16, 2, 2, length=16), (2, 8)),
        (tn.models.convolution(3, 8, (3, 3), padding=1), (2, 3, 8, 8)),
    ],
)
def test_onnx_computes_the_same(graph: tn.Graph, shape: tuple[int, ...], tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    module = tn.module(graph, seed=0).eval()
    x = torch.randint(0, 50, shape) if graph.inputs[0].name == "t" else torch.randn(shape)
    torch.onnx.export(module, (x,), dynamo=True, verbose=False).save(tmp_path / "it.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "it.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.tensor(found), module(x).detach(), atol=1e-5, rtol=1e-5)


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


@pytest.mark.parametrize("seed", [None, 3])
def test_defaults_of_torch_hold_for_new_parameters(seed: int | None) -> None:
    with torch.device("meta"):
        assert tn.module(TCL, seed=seed).U.is_meta
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        assert tn.module(TCL, seed=seed)(torch.randn(2, 4, 4, 3)).dtype == torch.float64
    finally:
        torch.set_default_dtype(before)


def test_a_module_computes_what_no_input_changes_with_its_own_loops_and_blocks() -> None:
    """The function of the tables calls them, beside that of the module."""
    text = """
    x[i]: input
    def wave(z):
        z[i]: input
        y[i] = 2 * cos(z[i])
    F[-1] = 1
    F[i] = F[i-1] + F[i-2]
    c[i] = index(i) + 0.5
    w = wave(c, scope='one')
    y[i] = F[i] * x[i] + w[i]
    """
    module, x = tn.module(tn.layer(text, i=6), dtype="float64"), torch.rand(6, dtype=torch.float64)
    expected = torch.tensor([1, 2, 3, 5, 8, 13]) * x + 2 * torch.cos(torch.arange(6) + 0.5)
    torch.testing.assert_close(module(x), expected)
    torch.testing.assert_close(torch.export.export(module, (x,)).module()(x), expected)


@pytest.mark.parametrize(
    ("text", "name"), [("y[b] = self[b,i] * W[i]", "self"), ("y[b] = x[b,observed] * W[observed]", "x")]
)
def test_names_that_torch_uses_elsewhere(text: str, name: str) -> None:
    sizes = {axis: 3 for axis in ("i", "observed") if f",{axis}]" in text}
    assert tn.module(tn.layer(text, inputs=name, **sizes))(torch.ones(2, 3)).shape == (2,)


def test_a_linear_layer_comes_out_in_order() -> None:
    module = tn.module(
        tn.layer("y[...,o] = x[...,i] * W[o,i] + u[o]", inputs="x", i=256, o=256), plan_at={"lead": 3200}
    )
    assert module(torch.ones(64, 50, 256)).is_contiguous()


@pytest.mark.gpu
def test_module_on_cuda() -> None:
    module = tn.module(TCL, seed=0)
    x = torch.randn(16, 4, 4, 3)
    torch.testing.assert_close(module.cuda()(x.cuda()).cpu(), module.cpu()(x), atol=1e-5, rtol=1e-5)


LYING = [
    (4, 1, "b,j,h,d", "j,b,h,f"), (4, 1, "h,j,b,d", "b,j,h,f"), (4, 1, "b,j,h,d", "j,h,b,f"),
    (1, 4, "b,j,h,d", "h,b,j,f"), (1, 1, "h,j,b,d", "j,b,h,f"),
]  # fmt: skip


@pytest.mark.skipif(shutil.which("g++") is None, reason="PyTorch's compiler needs one for C++")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # PyTorch's own
@pytest.mark.parametrize(("batch", "heads", "keys", "values"), sampled(LYING, LYING[:1]))
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
    ways = (torch.autograd.grad(y, given, down) for y in (found, expected))
    torch.testing.assert_close(*ways, rtol=1e-4, atol=1e-5)


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

    sign = load_backend("torch").call_cache(8).signature
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


def _within(context: Any, module: Any, x: torch.Tensor) -> torch.Tensor:
    with context:
        return module(x)


def _tangent(module: Any, x: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(module(forward_ad.make_dual(x, x))).tangent


UNUSUAL: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "double": lambda module, x: copy.deepcopy(module).double()(x.double()),
    "fewer rows": lambda module, x: module(x[:3]),
    "transposed": lambda module, x: module(x.T.contiguous().T),
    "gradient": lambda module, x: torch.autograd.grad(module(x.clone().requires_grad_()).sum(), module.W)[0],
    "no gradients": lambda module, x: _within(torch.no_grad(), module, x),
    "inference": lambda module, x: _within(torch.inference_mode(), module, x),
    "autocast": lambda module, x: _within(torch.autocast("cpu", dtype=torch.bfloat16), module, x),
    "frozen": lambda module, x: module.requires_grad_(False)(x),
    "trained again": lambda module, x: torch.autograd.grad(module.requires_grad_(True)(x).sum(), module.V)[0],
    "mapped": lambda module, x: torch.func.vmap(module)(x[:, None]),
    "slope": lambda module, x: torch.func.grad(lambda x: module(x).sum())(x),
    "jvp": lambda module, x: torch.func.jvp(module, (x,), (x,))[1],
    "tangent": _tangent,
    "other parameters": lambda module, x: torch.func.functional_call(
        module, {name: 2 * each for name, each in module.named_parameters()}, (x,)
    ),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of forward mode, PyTorch's own
@pytest.mark.parametrize("compiled", [False, True])
def test_a_call_unlike_the_last_is_seen(compiled: bool) -> None:
    """A call like the last is found by a guard, without a signature; any other is not taken for it."""

    class ByHand(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_parameter("W", torch.nn.Parameter(torch.randn(4, 6)))
            self.register_parameter("V", torch.nn.Parameter(torch.randn(5, 4)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.linear(torch.nn.functional.linear(x, self.W).relu(), self.V)

    class Compiled(ByHand):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function({"W": self.W, "V": self.V}, x)

    graph = tn.layer("y[...,o] = relu(x[...,i] * W[h,i]) * V[o,h]", inputs="x[...,i]", i=6, h=4, o=5)
    function, hand, x = tn.compile(graph, backend="torch"), ByHand(), torch.randn(7, 6)
    module: Any = Compiled() if compiled else tn.module(graph)
    module.load_state_dict(hand.state_dict())
    for name, call in UNUSUAL.items():
        for _ in range(3):
            module(x)
        calls = function.calls if compiled else next(iter(module._arranged.values())).calls
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(calls, "signature", None)
            torch.testing.assert_close(module(x), hand(x), msg=name)
        found, expected = call(module, x), call(hand, x)
        assert found.dtype == expected.dtype, name
        rough = (
            {"rtol": 0.05, "atol": 0.05} if found.dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
        )
        torch.testing.assert_close(found, expected, **rough, msg=name)
    module.W.data = module.W.data[:, :1]
    with pytest.raises(tn.ShapeError, match="'W'"):
        module(x)


def test_a_call_with_something_else_than_tensors_of_the_last_is_refused() -> None:
    """PyTorch's guards raise an error at another number of tensors, and end the process at a nested one."""
    graph = tn.layer("y[b,p] = relu(x[b,i] * W[o,i]) * V[p,o]", inputs="x", i=3, o=4, p=2)
    module, x = tn.module(graph), torch.randn(5, 3)
    for _ in range(3):
        module(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first one of a process is a prototype
        nested = torch.nested.nested_tensor([torch.ones(3), torch.ones(3)])
    for wrong in (nested, 3.0, None):
        with pytest.raises(tn.BackendError, match="'x' is a"):
            module(wrong)
    for several in ((), (x, x)):
        with pytest.raises(tn.ShapeError, match="'W'"):
            module.run(*several)
    torch.testing.assert_close(module(x), (x @ module.W.T).relu() @ module.V.T)


def test_gradients_that_are_inputs_do_not_record() -> None:
    """Without gradients, tensors that require them are taken for others, and w's gradient is x itself."""
    f = tn.value_and_grad(tn.layer("y = x[i] * w[i]", inputs="x"), loss="y", backend="torch")
    x, w = torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(3):
            f({"w": w}, x)
        value, gradients = f({"w": w.clone().requires_grad_()}, x.clone().requires_grad_())
    assert not value.requires_grad
    assert not gradients["w"].requires_grad
    torch.testing.assert_close(gradients["w"], x)


def test_a_gather_keeps_its_positions_alone_and_has_derivatives_of_any_order() -> None:
    """`torch.gather` keeps what it reads, for the sake of its shape."""
    graph = tn.layer("y[b,h,i,j] = x[b,h,i,at[b,i,j]]", inputs="x at")
    module, at = tn.module(graph), torch.randint(0, 64, (2, 3, 5))
    x = torch.randn(2, 4, 3, 64, dtype=torch.float64, requires_grad=True)
    with saved_for_backward() as kept:
        y = module(x, at)
    assert max(kept.values(), default=0) < x.nbytes / 4
    torch.testing.assert_close(y, x.gather(3, at[:, None].expand(2, 4, 3, 5)))
    assert torch.autograd.gradcheck(lambda x: module(x, at), x)
    assert torch.autograd.gradgradcheck(lambda x: module(x, at), x)


def test_calls_are_found_without_the_guards_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not public."""
    monkeypatch.setattr(call_cache, "GUARDS", None)
    module = tn.module(tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=3, o=2))
    for count in (2, 2, 2, 5, 2):
        x = torch.randn(count, 3)
        torch.testing.assert_close(module(x), x @ module.W.T)


@pytest.mark.parametrize(
    "text",
    ["y[b,t] = x[b,:3] * 2", "def f(z):\n    z[b,c,t]: input\n    y[b,t] = sum[c](z[b,c,-3:-1])\ny = f(x)"],
)
def test_a_slice_longer_than_its_axis_is_refused_where_a_compiler_leaves_sizes_open(text: str) -> None:
    graph = tn.layer(text, inputs="x[b,c,t]" if "def" in text else "x[b,t]")
    module, shape = tn.module(graph), (2, 4) if "def" in text else (2,)
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="eager")
    for length in (6, 7, 3):
        assert torch.equal(compiled(x := torch.randn(*shape, length)), module(x))
    with pytest.raises(Exception, match="a slice needs 3 positions"):
        compiled(torch.randn(*shape, 2))
    static = torch.compile(module, backend="eager", dynamic=False)
    for call in (module, static, lambda x: torch.export.export(module, (x,))):
        with pytest.raises(Exception, match=r"a slice reaches over 3 positions along 't' of '[xz]', and"):
            call(torch.randn(*shape, 2))
    dims = tuple(torch.export.Dim.AUTO for _ in (*shape, 0))
    exported = torch.export.export(module, (torch.randn(*shape, 6),), dynamic_shapes=(dims,)).module()
    assert torch.equal(exported(x := torch.randn(*shape, 4)), module(x))
    with pytest.raises(Exception, match="3"):
        exported(torch.randn(*shape, 2))


@pytest.mark.parametrize(
    ("channels", "mask"), [(6, (1, 3, 9, 9)), (8, None), (8, (2, 1, 1, 9))], ids=["learned", "long", "both"]
)
def test_attention_without_a_kernel_of_torch_has_the_derivatives_of_its_operations(
    channels: int, mask: tuple[int, ...] | None
) -> None:
    shapes = [(2, 3, 9, 6), (2, 3, 9, 6), (2, 3, 9, channels), *([] if mask is None else [mask])]
    tensors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]

    def ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *mask: torch.Tensor) -> torch.Tensor:
        more = {"attn_mask": mask[0]} if mask else {}
        return scaled_dot_product_attention(q, k, v, scale=0.3, **more)  # type: ignore[no-any-return]

    y = ours(*tensors)
    expected = torch.nn.functional.scaled_dot_product_attention(*tensors, scale=0.3)
    torch.testing.assert_close(y, expected)
    assert "Unsafe" in type(y.grad_fn).__name__ if mask else "Product" in type(y.grad_fn).__name__
    gradient = torch.randn_like(y)
    whole = torch.autograd.grad(expected, tensors, gradient, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(y, tensors, gradient, retain_graph=True), whole)
    for each, found in zip(tensors, whole, strict=True):
        others = [other if other is each else other.detach() for other in tensors]
        torch.testing.assert_close(torch.autograd.grad(ours(*others), each, gradient)[0], found)
    assert torch.autograd.gradgradcheck(ours, tensors, fast_mode=True)
