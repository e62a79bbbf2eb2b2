"""Products of large matrices by the kernel that lays both out anew, against the library's usual one in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import tensornet as tn
from tensornet.device.cost_model import default_profile
from tensornet.planning.plans import Plan

torch = pytest.importorskip("torch")
if not torch.backends.mkldnn.is_available():
    pytest.skip("this PyTorch has no oneDNN", allow_module_level=True)

from tensornet.backends.torch.matrix_products import packed_linear, packed_matmul  # noqa: E402

from .conftest import sampled  # noqa: E402

QUICK = replace(default_profile("cpu"), packed_flops=1e13, packed_launch=0.0)
THEN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "": lambda y: y,
    "relu": torch.nn.functional.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda y: torch.nn.functional.gelu(y, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


MATRICES = {
    "as it lies": lambda rows, columns: drawn(rows, columns),
    "transposed": lambda rows, columns: drawn(columns, rows).T,
    "every second": lambda rows, columns: drawn(2 * rows, 3 * columns)[::2, ::3],
    "one row": lambda rows, columns: drawn(1, columns).expand(rows, columns),
    "one column": lambda rows, columns: drawn(rows, 1).expand(rows, columns),
}
BIASES = {
    "none": lambda size: None,
    "as it lies": lambda size: drawn(size),
    "every second": lambda size: drawn(2 * size)[::2],
    "one number": lambda size: drawn(1).expand(size),
}


SHAPES = [(7, 5), (2, 3, 5), (5,), (0, 5), (4, 0)]
PAIRWISE = [
    (SHAPES[(n + m) % len(SHAPES)], weight, bias)
    for n, weight in enumerate(MATRICES)
    for m, bias in enumerate(BIASES)
]


@pytest.mark.parametrize(("shape", "weight", "bias"), PAIRWISE)
def test_however_the_tensors_lie(shape: tuple[int, ...], weight: str, bias: str) -> None:
    x, w, u = drawn(*shape), MATRICES[weight](6, shape[-1]), BIASES[bias](6)
    expected = torch.nn.functional.linear(x.double(), w.double(), None if u is None else u.double())
    torch.testing.assert_close(packed_linear(x, w, u).double(), expected, rtol=1e-5, atol=1e-5)
    if u is None and len(shape) == 2:
        torch.testing.assert_close(packed_matmul(x, w.T).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("then", THEN)
@pytest.mark.parametrize("has_bias", [False, True])
def test_gradients_and_theirs(then: str, has_bias: bool) -> None:
    tensors = [drawn(3, 4, 9), drawn(8, 9), *([drawn(8)] if has_bias else [])]

    def both(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
        given = [each.to(dtype).requires_grad_() for each in tensors]
        first = torch.autograd.grad((function(*given) ** 2).sum(), given, create_graph=True)
        return [*first, *torch.autograd.grad(sum((each**2).sum() for each in first), given)]

    found = both(lambda *given: packed_linear(*given, then=then), torch.float32)
    expected = both(lambda *given: THEN[then](torch.nn.functional.linear(*given)), torch.float64)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-3)


def test_gradients_that_nobody_wants_are_not_computed() -> None:
    x, w, u = drawn(4, 9), drawn(8, 9).requires_grad_(), drawn(8)
    packed_linear(x, w, u).sum().backward()
    assert x.grad is None
    torch.testing.assert_close(w.grad, x.sum(0).expand(8, 9))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # PyTorch's own way to differentiate forward
@pytest.mark.parametrize("transform", ["vmap", "jacrev", "jvp", "compile", "autocast", "float64"])
def test_what_looks_on_gets_the_usual_product(transform: str) -> None:
    x, w, u = drawn(4, 9), drawn(8, 9), drawn(8)
    usual = torch.nn.functional.linear

    def seen(function: Callable[..., torch.Tensor]) -> torch.Tensor:
        match transform:
            case "vmap":
                return torch.vmap(function, in_dims=(0, None, None))(x, w, u)
            case "jacrev":
                return torch.func.jacrev(function)(x, w, u)
            case "jvp":
                return torch.func.jvp(lambda x: function(x, w, u), (x,), (x + 1,))[1]
            case "compile":
                return torch.compile(function, backend="eager", fullgraph=True)(x, w, u)
            case "autocast":
                with torch.autocast("cpu", torch.bfloat16):
                    return function(x, w, u)
        return function(x.double(), w.double(), u.double())

    found, expected = seen(packed_linear), seen(usual)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("inside", sampled(["nothing", "vmap", "grad", "no gradients"], ["nothing"]))
def test_compilers_get_an_operation(inside: str) -> None:
    x, w, u = drawn(3, 4, 9).requires_grad_(), drawn(8, 9).requires_grad_(), drawn(8).requires_grad_()
    usual = torch.nn.functional.linear

    def seen(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        match inside:
            case "vmap":
                return torch.vmap(function, in_dims=(0, None, None))
            case "grad":
                return torch.func.grad(lambda x, w, u: (function(x, w, u) ** 2).sum())
        return function

    compiled = torch.compile(
        seen(lambda x, w, u: packed_linear(x, w, u, "gelu")), backend="aot_eager", fullgraph=True
    )
    taken = torch._dynamo.explain(seen(lambda x, w, u: packed_linear(x, w, u)))(x, w, u).ops_per_graph
    assert (torch.ops.tensornet.packed_linear.default in taken[0]) is (inside in ("nothing", "no gradients"))
    expected = seen(lambda x, w, u: torch.nn.functional.gelu(usual(x, w, u)))
    with torch.set_grad_enabled(inside != "no gradients"):
        for given in (x, x[:2], x.transpose(0, 1)):  # other sizes, and another order in memory
            given = given.detach().requires_grad_()
            torch.testing.assert_close(compiled(given, w, u), expected(given, w, u), rtol=1e-5, atol=1e-5)
    if inside == "nothing":
        found = torch.autograd.grad((compiled(x, w, u) ** 2).sum(), (x, w, u))
        for one, other in zip(
            found, torch.autograd.grad((expected(x, w, u) ** 2).sum(), (x, w, u)), strict=True
        ):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def planned(text: str, profile: object = QUICK, **sizes: int) -> Plan:
    return tn.plan(tn.layer(text, inputs="x"), backend="torch", profile=profile, **sizes)


def test_it_is_taken_where_it_is_quicker() -> None:
    text, sizes = "y[b,o] = gelu(x[b,i] * W[o,i] + u[o])", {"b": 512, "i": 256, "o": 256}
    plan = planned(text, **sizes)
    assert 'packed_linear(x, W, u, then="gelu")' in plan.code
    assert len(plan.steps) == 1
    assert "packed" not in planned(text, default_profile("cpu"), **sizes).code
    assert "packed" not in planned(text, replace(QUICK, packed_launch=1.0), **sizes).code
    slow = dict.fromkeys(("bandwidth", "near_bandwidth", "held_bandwidth"), 1e7)  # both are read and written
    assert "packed" not in planned(text, replace(QUICK, **slow), **sizes).code


def test_a_function_of_what_others_read_stands_alone() -> None:
    code = planned("z[b,o] = x[b,i] * W[o,i]\ny[b,o] = gelu(z) + z", b=512, i=256, o=256).code
    assert "then=" not in code
    assert "packed_linear(x, W)" in code


def test_of_a_weight_that_lies_the_other_way() -> None:
    graph = tn.layer("y[b,o] = x[b,i] * W[i,o]", inputs="x", i=256, o=256)
    plan = tn.plan(graph, backend="torch", profile=QUICK, b=512)
    assert "packed_matmul(x, W)" in plan.code


def test_no_order_is_thought_to_take_longer_than_one_that_it_bounds() -> None:
    for m, n, k in np.random.default_rng(0).integers(1, 400, (200, 3)):
        bound = QUICK.at_least(float(m * n * k), 4.0 * (m * k + k * n + m * n))
        assert bound <= QUICK.matmul(1, m, n, k, 4) * (1 + 1e-9)
