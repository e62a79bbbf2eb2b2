"""Products, and gradients of tables, that are so large that memory for them is new at each call."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import tensornet as tn
from tensornet.backends.torch import kernels
from tensornet.backends.torch.kernels import room

LAYER = "y[b,o] = x[b,i] * W[o,i] + u[o]"
PRODUCT = "y[b,n,o] = x[b,n,i] * z[b,o,i]"
ROWS = 70_000


def given(seed: int = 0) -> tuple[tn.Graph, dict[str, torch.Tensor], torch.Tensor]:
    graph = tn.layer(LAYER, inputs="x", i=4, o=128)
    draw = torch.Generator().manual_seed(seed)
    params = {"W": torch.randn(128, 4, generator=draw), "u": torch.randn(128, generator=draw)}
    return graph, params, torch.randn(ROWS, 4, generator=draw)


@pytest.mark.parametrize("text", [LAYER, "y[b,o] = x[b,i] * W[o,i]"])
def test_a_large_result_is_the_same(text: str) -> None:
    _, params, x = given()
    graph = tn.layer(text, inputs="x", i=4, o=128)
    params = {leaf.name: params[leaf.name] for leaf in graph.parameters}
    plan = tn.plan(graph, b=ROWS, backend="torch")
    assert "large_" in plan.code
    expected = torch.nn.functional.linear(x, params["W"], params.get("u"))
    y = tn.compile(graph, backend="torch")(params, x)
    torch.testing.assert_close(y, expected)
    assert "large_" not in tn.plan(graph, b=64, backend="torch").code


def test_so_is_one_of_many_matrices() -> None:
    graph = tn.layer(PRODUCT, inputs=("x", "z"))
    x, z = torch.randn(8, 1100, 3), torch.randn(8, 1100, 3)
    assert "large_matmul" in tn.plan(graph, b=8, n=1100, o=1100, i=3, backend="torch").code
    torch.testing.assert_close(tn.compile(graph, backend="torch")({}, x, z), x @ z.mT)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_autograd_vmap_forward_mode_and_a_compiler_see_the_product_itself() -> None:
    graph, params, x = given()
    forward = tn.compile(graph, backend="torch")
    forward(params, x)  # planned for a large result

    def total(weight: torch.Tensor) -> torch.Tensor:
        return forward({**params, "W": weight}, x).sum()

    expected = x.sum(0).expand(128, 4)
    leaf = params["W"].clone().requires_grad_()
    total(leaf).backward()
    torch.testing.assert_close(leaf.grad, expected, rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(torch.func.grad(total)(params["W"]), expected, rtol=1e-3, atol=1e-2)
    mapped = torch.func.vmap(lambda x: forward(params, x))(x.reshape(2, ROWS // 2, 4))
    torch.testing.assert_close(mapped.reshape(ROWS, 128), forward(params, x))
    _, moved = torch.func.jvp(total, (params["W"],), (torch.ones(128, 4),))
    torch.testing.assert_close(moved, expected.sum(), rtol=1e-3, atol=1.0)
    compiled = torch.compile(forward, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(params, x), forward(params, x))


def test_autocast_and_another_type_are_heeded() -> None:
    graph, params, x = given()
    forward = tn.compile(graph, backend="torch")
    forward(params, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert forward(params, x).dtype is torch.bfloat16


def test_a_result_is_a_tensor_of_its_own() -> None:
    graph, params, x = given()
    forward = tn.compile(graph, backend="torch")
    first = forward(params, x)
    kept = first.clone()
    forward(params, 2 * x)
    assert torch.equal(first, kept)


def test_memory_of_a_result_is_used_again_when_nothing_holds_it() -> None:
    graph, params, x = given()
    forward = tn.compile(graph, backend="torch")
    first = forward(params, x)
    place, expected = first.data_ptr(), first.clone()
    part, array = first[:2], first[2:4].numpy()
    del first
    second = forward(params, 2 * x)
    assert second.data_ptr() != place
    assert torch.equal(part, expected[:2])
    assert (array == expected[2:4].numpy()).all()
    del part, array
    third = forward(params, x)
    assert third.data_ptr() == place
    assert torch.equal(third, expected)
    assert third.data_ptr() % 64 == 0


def test_zeros_in_memory_that_was_written_to_are_zeros() -> None:
    table = torch.randn(17_000, 1_000, requires_grad=True)
    forward, at = (
        tn.compile(tn.layer("y[n,c] = E[t[n],c]", inputs="t"), backend="torch"),
        torch.tensor([3, 5]),
    )
    places = set()
    for rows in (at, at + 7):
        forward({"E": table}, rows).sum().backward()
        assert table.grad is not None
        assert table.grad.sum() == 2_000
        table.grad.fill_(math.nan)
        places.add(table.grad.data_ptr())
        table.grad = None
    assert len(places) == 1


def test_little_freed_memory_is_kept() -> None:
    like = torch.zeros(1)
    for more in range(40):
        room((9 * 2**20 + more,), like)
    kept = sum(size * len(each) for size, each in kernels._FREED.items())
    assert 0 < kept <= kernels.KEPT


def test_several_threads_get_memory_of_their_own() -> None:
    def filled(number: int) -> bool:
        made = room((9 * 2**20,), torch.zeros(1)).fill_(number)
        return bool((made == number).all())

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(filled, range(24)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_gradient_of_a_large_table_has_rows_where_it_was_read(dtype: str) -> None:
    kind = getattr(torch, dtype)
    table = torch.randn(17_000, 1_000).to(kind).requires_grad_()
    at = torch.tensor([[16_999, 0, 5], [5, 5, 1]])
    y = tn.compile(tn.layer("y[b,n,c] = E[t[b,n],c]", inputs="t"), backend="torch")({"E": table}, at)
    assert y.grad_fn is not None
    assert "Take" in y.grad_fn.next_functions[0][0].name()
    given = torch.randn(y.shape, dtype=kind, requires_grad=True)
    (found,) = torch.autograd.grad(y, table, given, create_graph=True)
    expected = torch.zeros(table.shape, dtype=kind).index_add_(
        0, at.flatten(), given.detach().reshape(6, 1_000)
    )
    assert torch.equal(found, expected)
    (twice,) = torch.autograd.grad(found, given, torch.ones_like(found))
    assert torch.equal(twice, torch.ones_like(given))
