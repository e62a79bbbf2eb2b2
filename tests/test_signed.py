"""Signed attention in tiles: the equations say what it is, and what is kept for backward is small."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import tensornet as tn
from tensornet.backends.torch import signed_attention as torch_signed
from tensornet.backends.torch.signed_attention import signed_attention
from tensornet.device.cost_model import default_profile
from tensornet.models.attention import dot_product_attention
from tensornet.models.tensor_swin import tensor_window_attention

from .conftest import covered, normal, saved_for_backward
from .programs import titled

KERNEL = "signed_attention("

MANY = {"b": 2, "h": 8, "i": 512, "j": 512, "d": 32, "f": 32}
"""Sizes at which scores are more than a cache holds."""

MASKS: dict[str, Any] = {
    "all": None,
    "causal": "causal",
    "padding": "padding",
    "any": "any",
    "causal and padding": ("causal", "padding"),
}

FORMS = titled("signed.txt")


def code(graph: tn.Graph, backend: str = "torch", **sizes: int) -> str:
    given = {**MANY, **sizes}
    return tn.plan(graph, backend=backend, **{name: given[name] for name in graph.open_sizes}).code


# ---------------------------------------------------------------------------- where it runs


@pytest.mark.parametrize("mask", MASKS)
def test_signed_attention_runs_in_tiles_where_scores_are_many(mask: str) -> None:
    graph = dot_product_attention(weights="signed", mask=MASKS[mask])
    assert KERNEL in code(graph)
    assert KERNEL not in code(graph, "numpy")
    assert KERNEL not in code(graph, h=2, i=49, j=49)
    plan = tn.plan(graph, backend="torch", **{name: MANY[name] for name in graph.open_sizes})
    assert tn.Plan.from_json(plan.to_json()) == plan


def test_a_projection_of_its_heads_reads_them_where_they_lie() -> None:
    """The heads and their channels are axes of the projection's factors: the result is not copied to an order of
    heads within channels."""
    graph = tn.layer(
        """
        s[b,g,h,i,j] = q[b,i,g,h,c,d] * k[b,j,g,h,c,d]
        a[b,g,h,i,j] = sign(s) * softmax[j](abs(s))
        y[b,i,(g,c,h,d)] = a * v[b,j,g,h,c,d]
        z[b,i,o,p] = y[b,i,(e,f)] * U[o,e] * V[p,f]
        """,
        inputs="q k v",
        g=2,
        h=3,
        c=4,
        d=2,
        e=8,
        f=6,
        o=5,
        p=7,
    )
    body = tn.plan(graph, b=8, i=512, j=512, backend="torch").code.rpartition('"""')[-1]
    assert KERNEL in body
    assert "(g,c,h,d)" not in body
    params, shape = tn.init(graph, seed=0, dtype="float64"), (2, 9, 2, 3, 4, 2)
    given = [normal(*shape, seed=n) for n in range(3)]
    expected = tn.compile(graph, backend="numpy")(params, *given)
    made = tn.compile(graph, backend="torch")(tn.to_backend(params, "torch"), *map(torch.from_numpy, given))
    assert np.allclose(made.numpy(), expected)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gpu_computes_its_scores_whole(mask: str, dtype: str) -> None:
    """On an H200 that takes 0.9 of the time of the operations one by one, and tiles two to three times as long."""
    profile = replace(default_profile("cuda:0", dtype), launch=11e-6, scored=5e-12)
    graph = dot_product_attention(weights="signed", mask=MASKS[mask])
    plan = tn.plan(
        graph, backend="torch", device="cuda:0", dtype=dtype, profile=profile, compare=False, **MANY
    )
    assert KERNEL in plan.code


@pytest.mark.parametrize("form", FORMS)
def test_signed_attention_is_found_however_it_is_written_and_nothing_else(form: str) -> None:
    assert (KERNEL in code(FORMS[form].graph())) != form.startswith("no kernel")


@pytest.mark.parametrize(("placed", "shift"), covered([True, False], [0, 3]))
def test_windows_of_a_tensor_swin_run_in_tiles_only_where_there_are_many(placed: bool, shift: int) -> None:
    graph = tensor_window_attention(
        (4, 4, 6), (1, 1, 3), 7, position_bias=placed, grid=(56, 56) if shift else None, shift=shift
    )
    sizes = {name: 8 for name in graph.open_sizes if name != "b"}
    few, many = (tn.plan(graph, backend="torch", **sizes, b=b, memory_limit="1TB").code for b in (1, 32))
    assert KERNEL not in few
    assert KERNEL in many
    tiled = tn.plan(graph, backend="torch", **sizes, b=32)  # few windows at a time are faster without it
    assert "in 32 pieces of 1 along b" in str(tiled)


# ---------------------------------------------------------------------------- what it computes


def equations(q: Any, k: Any, v: Any, bias: Any = 0.0, see: Any = True, *, scale: float) -> Any:
    """By whole tensors, from the definition."""
    s = scale * q @ k.mT + bias
    shown = torch.where(torch.as_tensor(see), s.abs(), -1e30)
    return (s.sign() * shown.softmax(-1)) @ v


def seen_before(queries: int, keys: int) -> Any:
    """Which keys a query sees that sees none behind it."""
    return torch.arange(queries)[:, None] >= torch.arange(keys)


@pytest.mark.parametrize("mask", MASKS)
def test_it_computes_what_the_equations_say_where_it_is_planned(mask: str) -> None:
    """In several tiles, the last of which is shorter."""
    graph = dot_product_attention(weights="signed", beta=0.4, mask=MASKS[mask])
    q, k, v = (torch.randn(2, 3, length, 4, dtype=torch.float64) for length in (530, 520, 520))
    keep, see = torch.rand(2, 520) < 0.7, torch.rand(2, 530, 520) < 0.7
    see[:, 7] = False
    given = {"any": [see], "padding": [keep], "causal and padding": [keep]}.get(mask, [])
    shown = seen_before(530, 520) if "causal" in mask else torch.ones(530, 520, dtype=torch.bool)
    shown = shown & keep[:, None, None] if "padding" in mask else shown
    shown = shown & see[:, None] if mask == "any" else shown
    f = tn.compile(graph, backend="torch")
    found = f({}, q, k, v, *given)
    assert KERNEL in f.last().plan.code
    torch.testing.assert_close(found, equations(q, k, v, see=shown, scale=0.4), rtol=1e-9, atol=1e-12)


@pytest.fixture(params=[(1, 4), (40, 0), (10**6, 4)])
def tile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Tiles of a row, of some, and of all matrices; weights that are saved, and others that are computed again."""
    size, saved = request.param
    monkeypatch.setattr(torch_signed, "TILE", size)
    monkeypatch.setattr(torch_signed, "SAVED", saved)
    return int(size)


@pytest.mark.usefixtures("tile")
def test_a_score_of_zero_weighs_nothing_and_gets_no_gradient() -> None:
    q, k, v = (torch.randn(2, 3, *shape, dtype=torch.float64) for shape in ((7, 4), (5, 4), (5, 6)))
    q[:, :, 2], k[:, :, 1] = 0, 0
    tensors = [each.requires_grad_() for each in (q, k, v)]
    found = signed_attention(*tensors, scale=0.7)
    expected = equations(q, k, v, scale=0.7)
    torch.testing.assert_close(found, expected)
    coming = torch.randn_like(expected)
    torch.testing.assert_close(*(torch.autograd.grad(y, tensors, coming) for y in (found, expected)))
    assert not found[:, :, 2].any()


@pytest.mark.parametrize("saved", [0, 4])
@pytest.mark.parametrize(
    ("asked", "products"), [("qkvB", 4), ("kv", 3), ("qk", 3), ("q", 2), ("k", 2), ("v", 1), ("B", 1)]
)
def test_gradients_that_nobody_asks_for_are_not_computed(
    asked: str, products: int, saved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of scores, q, k and v are a product each. Scores are another one where the weights are not saved."""
    monkeypatch.setattr(torch_signed, "SAVED", saved)
    of = {name: torch.randn(2, 3, 8, 8, requires_grad=name in asked) for name in "qkvB"}
    y = signed_attention(*of.values(), scale=0.7, biased=True)
    counted = FlopCounterMode(display=False)
    with counted:
        y.sum().backward()
    assert counted.get_total_flops() == (products + (not saved)) * 2 * (2 * 3) * 8**3
    assert {name for name, each in of.items() if each.grad is not None} == set(asked)


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 2, 0, 4)])
def test_of_nothing_it_makes_nothing(shape: tuple[int, ...]) -> None:
    q, k = torch.randn(2, 2, 3, 4, requires_grad=True), torch.randn(shape, requires_grad=True)
    q = q[: shape[0]] if not shape[0] else q
    found = signed_attention(q, k, k, scale=1.0)
    assert found.shape == q.shape
    assert not found.any()


# ---------------------------------------------------------------------------- what is kept, and transforms


def test_scores_are_not_kept_for_backward() -> None:
    q, k, v = (torch.randn(2, 8, 1024, 64, requires_grad=True) for _ in range(3))
    f = tn.compile(dot_product_attention(weights="signed"), backend="torch")
    with saved_for_backward() as kept:
        y = f({}, q, k, v)
    operands = {each.untyped_storage().data_ptr() for each in (q, k, v)}
    assert sum(size for place, size in kept.items() if place not in operands) <= 5 * 2**20
    assert sum(kept.values()) <= 20 * 2**20
    y.sum().backward()
    assert all(each.grad is not None for each in (q, k, v))


def test_under_autocast_products_are_of_the_shorter_type() -> None:
    q, k, v = (torch.randn(2, 2, 30, 8, requires_grad=True) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        found = signed_attention(q, k, v, scale=0.3)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), signed_attention(q, k, v, scale=0.3), rtol=0.1, atol=0.1)


# ---------------------------------------------------------------------------- shapes, types and strides


SIZES: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None, tuple[int, ...] | None, bool]] = {
    "plain": ((2, 2, 70, 45, 20, 12), None, None, False),
    "causal": ((1, 2, 70, 45, 16, 12), None, None, True),
    "causal, keys that none sees": ((1, 2, 45, 140, 8, 33), None, None, True),
    "biased": ((2, 2, 33, 66, 16, 16), (1, 2, 33, 66), None, False),
    "biased by query": ((2, 2, 17, 70, 5, 40), (2, 1, 17, 1), None, False),
    "biased by key, causal": ((1, 3, 65, 65, 7, 3), (1, 1, 1, 65), None, True),
    "hidden": ((2, 2, 45, 70, 16, 12), None, (2, 1, 45, 70), False),
    "hidden by head": ((1, 3, 40, 33, 16, 12), None, (1, 3, 40, 1), False),
    "biased, hidden": ((2, 2, 45, 70, 40, 20), (2, 2, 45, 70), (1, 1, 45, 70), False),
    "one key": ((2, 2, 7, 1, 3, 5), (2, 1, 1, 1), (1, 1, 7, 1), False),
    "one of all": ((1, 1, 1, 1, 1, 1), None, None, True),
    "long heads": ((1, 1, 40, 90, 100, 128), None, None, False),
}
"""Batch, heads, queries, keys, and the lengths of keys and of values; shapes of a bias and of what is seen; causal."""


TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 8e-3, torch.bfloat16: 3e-2}
"""Of the largest number beside: sums of float32, and what scores and weights rounded to shorter types differ by."""


def drawn(case: str, dtype: Any, laid: str = "whole") -> tuple[dict[str, Any], list[Any], dict[str, Any]]:
    """Operands that get gradients, and those that get none; two queries see no key. The settings."""
    torch.manual_seed(0)
    (b, h, i, j, d, f), bias, see, causal = SIZES[case]
    shapes = {"q": (b, h, i, d), "k": (b, h, j, d), "v": (b, h, j, f), **({"B": bias} if bias else {})}
    of = {name: placed(torch.randn(shape).to(dtype), laid) for name, shape in shapes.items()}
    seen = [torch.rand(see) < 0.6] if see else []
    for each in seen:
        each[..., :2, :] = False
    return of, seen, {"scale": 0.4, "biased": bool(bias), "causal": causal}


def agrees(case: str, dtype: Any, laid: str = "whole", asked: str = "qkvB") -> None:
    """Tiles give what float64 gives by whole tensors: values, and gradients of what is asked for."""
    of, seen, settings = drawn(case, dtype, laid)
    exact = {name: each.detach().double() for name, each in of.items()}
    for name in asked:
        for tensors in (of, exact) if name in of else ():
            tensors[name].requires_grad_()
    found = signed_attention(*of.values(), *seen, **settings)
    queries, keys = of["q"].shape[2], of["k"].shape[2]
    shown = seen[0] if seen else torch.ones(queries, keys, dtype=torch.bool)
    shown = shown & seen_before(queries, keys) if settings["causal"] else shown
    expected = equations(*exact.values(), see=shown, scale=0.4)
    assert found.dtype == dtype
    with torch.no_grad():
        torch.testing.assert_close(signed_attention(*of.values(), *seen, **settings), found)
    coming = torch.randn(1 if laid == "spread" else found.shape[-1]).to(dtype).expand_as(found)
    wanted = [name for name in of if name in asked]
    slopes = torch.autograd.grad(found, [of[name] for name in wanted], coming)
    exactly = torch.autograd.grad(expected, [exact[name] for name in wanted], coming.double())
    for one, other in zip((found, *slopes), (expected, *exactly), strict=True):
        most = float(other.detach().abs().max())
        torch.testing.assert_close(one.double(), other, rtol=0, atol=TOLERANCE[dtype] * max(1.0, most))


@pytest.mark.usefixtures("tile")
@pytest.mark.parametrize("case", [*SIZES][:9])
def test_gradients_of_tiles_have_gradients(case: str) -> None:
    of, seen, settings = drawn(case, torch.float64)
    tensors = [each.requires_grad_() for each in of.values()]

    def run(*given: Any) -> Any:
        return signed_attention(*given, *seen, **settings)

    assert torch.autograd.gradgradcheck(run, tuple(tensors), fast_mode=True)


def placed(tensor: Any, laid: str) -> Any:
    """The same numbers: as they are, heads after tokens as projections give them, or in steps of two."""
    if laid == "by tokens":
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    if laid == "turned":
        return tensor.mT.contiguous().mT
    return torch.stack((tensor, tensor), -1)[..., 0] if laid == "spread" else tensor


SHORTER = itertools.product(["plain", "causal", "biased, hidden", "one key"], [torch.bfloat16, torch.float16])
ASKED = zip(SIZES, itertools.cycle(["q", "kB", "v", "qk", "kvB"]))


@pytest.mark.usefixtures("tile")
@pytest.mark.parametrize(
    ("case", "dtype", "laid", "asked"),
    [
        *((case, torch.float32, "whole", "qkvB") for case in SIZES),
        *((case, dtype, "whole", "qkvB") for case, dtype in SHORTER),
        *(("biased, hidden", torch.float32, laid, "qkvB") for laid in ("by tokens", "turned", "spread")),
        *(
            ("biased, hidden", torch.float64, "whole", asked)
            for asked in ("q", "k", "v", "B", "qk", "kv", "vB")
        ),
        *((case, torch.float64, "whole", asked) for case, asked in ASKED),
    ],
)
def test_tiles_agree_with_double(case: str, dtype: Any, laid: str, asked: str) -> None:
    """Of every shape and type, wherever operands lie, values and the gradients that are asked for."""
    agrees(case, dtype, laid, asked)


@pytest.mark.parametrize("turned", [False, True])
def test_the_result_lies_as_the_queries_do(turned: bool) -> None:
    q, k, v = (torch.randn(2, 3, size, 4, dtype=torch.float64) for size in (7, 5, 5))
    q = q.transpose(1, 2).contiguous().transpose(1, 2) if turned else q
    found = signed_attention(q, k, v, scale=0.7)
    assert (found.stride(1) < found.stride(2)) is turned
    torch.testing.assert_close(found, equations(q, k, v, scale=0.7))
