"""Layers under what torch does to functions: vmap, derivatives of any order and either mode, compilers; and by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

import tensornet as tn
from tensornet.graph.element_types import holding
from tensornet.models.attention import dot_product_attention
from tensornet.ops.table import Element

from .conftest import sampled
from .test_freeze import PRODUCTS
from .test_rewrites import REWRITES, REWRITTEN
from .test_signed import equations

pytestmark = pytest.mark.filterwarnings(  # PyTorch's own, of forward mode and of its kernel under vmap
    "ignore:.*torch.jit:DeprecationWarning", "ignore:There is a performance drop:UserWarning"
)

Tensor = torch.Tensor
Run = Callable[..., Tensor]
DRAW = torch.Generator().manual_seed(0)


def floats(given: Sequence[Tensor]) -> list[int]:
    return [n for n, each in enumerate(given) if each.is_floating_point()]


def loss(run: Run, *given: Tensor) -> Tensor:
    return run(*given).sin().sum()


def examples(tensor: Tensor) -> Tensor:
    """Two examples."""
    return torch.stack([tensor, tensor.flip(0)])


def mapped(run: Run, *given: Tensor) -> Any:
    return torch.vmap(run)(*map(examples, given))


def mapped_by_one(run: Run, *given: Tensor) -> Any:
    dims = [[0 if n == own else None for n in range(len(given))] for own in range(len(given))]
    return [
        torch.vmap(run, tuple(own))(
            *(each if at is None else examples(each) for each, at in zip(given, own, strict=True))
        )
        for own in dims
    ]


def differentiated(run: Run, *given: Tensor) -> Any:
    return torch.func.grad(partial(loss, run), tuple(floats(given)))(*given)


def differentiated_one_by_one(run: Run, *given: Tensor) -> Any:
    """The gradients of each example."""
    return torch.vmap(torch.func.grad(partial(loss, run), tuple(floats(given))))(*map(examples, given))


def recorded(run: Run, *given: Tensor) -> Any:
    """Gradients, and theirs."""
    leaves = [each.clone().requires_grad_(each.is_floating_point()) for each in given]
    wanted = [leaves[n] for n in floats(given)]
    first = torch.autograd.grad(loss(run, *leaves), wanted, create_graph=True)
    total = sum(each.square().sum() for each in first)
    return first, torch.autograd.grad(total, wanted)  # type: ignore[arg-type]


def forwards(run: Run, *given: Tensor) -> Any:
    own = floats(given)

    def of(*moved: Tensor) -> Tensor:
        every = dict(zip(own, moved, strict=True))
        return run(*(every.get(n, each) for n, each in enumerate(given)))

    chosen = tuple(given[n] for n in own)
    return torch.func.jvp(of, chosen, tuple(each.cos() for each in chosen))


def compiled(run: Run, *given: Tensor) -> Any:
    """Whole, and its gradients."""
    torch._dynamo.reset()
    leaves = [each.clone().requires_grad_(each.is_floating_point()) for each in given]
    value = torch.compile(run, fullgraph=True, backend="aot_eager")(*leaves)
    return value, torch.autograd.grad(value.square().sum(), [leaves[n] for n in floats(given)])


WAYS = (mapped, mapped_by_one, differentiated, differentiated_one_by_one, recorded, forwards, compiled)


# ---------------------------------------------------------------------------- what is tried


def x(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=DRAW, dtype=torch.float64)


def at(low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high, shape, generator=DRAW)


def ones(positions: Tensor, count: int) -> Tensor:
    return (positions[..., None] == torch.arange(count)).double()


def loop(step: Callable[[list[Tensor], int], Tensor], count: int) -> Tensor:
    """The states of a recurrence, each of those before it; positions last."""
    found: list[Tensor] = []
    for t in range(count):
        found.append(step(found, t))
    return torch.stack(found, -1)


def of_two_lines(x: Tensor) -> Tensor:
    """Of which the first position is constant."""
    a, y = [0 * x[:, 0]] * 2, [0 * x[:, 0]]
    for t in range(x.shape[1]):
        a.append(0.5 * y[-1] + x[:, t])
        y.append(torch.tanh(a[-2]) - 0.3 * a[-3])
    return torch.stack(y[1:], 1)


def grouped(kind: str, number: int) -> tn.Graph:
    """Products by groups, whatever they cost, of inputs alone."""
    record = REWRITTEN[f"{kind}, {number}"]
    inputs = [name for name in "txzgW" if f"{name}[" in record.text]
    return REWRITES[kind](holding(record.graph(inputs=inputs), {"t": Element.WHOLE}))


def of_inputs(graph: tn.Graph, equation: str, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """A product of inputs alone, and the same by torch.einsum."""
    leaves = tuple(replace(each, kind="input") for each in graph.leaves)
    shapes = [shape, *(array.shape for array in tn.init(graph).values())]
    return replace(graph, leaves=leaves), "", [x(*each) for each in shapes], partial(torch.einsum, equation)


LARGE = "a large product"
SIGNED = dot_product_attention(weights="signed")
TEXT = "y[b,t,o] = tanh(y[b,t-1,p] * W[o,p] + x[b,t,o])"
P, K = at(0, 5, 7), at(0, 5, 7, 2)
CASES: dict[str, tuple[tn.Graph, str, list[Tensor], Run]] = {
    "rows added up": (
        tn.layer("y[b,v,c] = onehot[v](t[b,s]) * x[b,s,c]", inputs="t x", v=50), "scatter_add",
        [at(-2, 53, 3, 400), x(3, 400, 8)], lambda t, x: torch.einsum("bsv,bsc->bvc", ones(t, 50), x),
    ),
    "rows added up along another axis": (
        tn.layer("y[c,v] = 0\ny[c,t[s]] += x[c,s]", inputs="t x", v=50), "x, 50, 1",
        [at(0, 50, 40), x(8, 40)], lambda t, x: x @ ones(t, 50),
    ),
    "products by groups": (
        grouped("products by groups", 2), "grouped_matmul", [K, x(7, 4), x(5, 6, 4)],
        lambda p, x, W: torch.einsum("nc,nkfc->nkf", x, W[p]),
    ),
    "products by groups, weighed": (
        grouped("products by groups", 3), "grouped_matmul", [K, x(7, 3), x(7, 2), x(5, 3, 4)],
        lambda p, x, g, W: torch.einsum("nk,nc,nkcf->nf", g, x, W[p]),
    ),
    "products by groups, of several rows": (
        grouped("products by groups", 6), "grouped_matmul", [P, x(7, 3, 3), x(5, 4, 3)],
        lambda p, x, W: torch.einsum("ntc,nfc->ntf", x, W[p]),
    ),
    "outer products by groups": (
        grouped("outer products by groups", 2), "grouped_outer", [K, x(7, 2, 4), x(7, 3)],
        lambda p, x, z: torch.einsum("nkv,nkf,nc->vfc", ones(p, 5), x, z),
    ),
    "outer products by groups, weighed": (
        grouped("outer products by groups", 4), "grouped_outer", [P, x(7, 3, 4), x(7, 3, 3), x(7)],
        lambda p, x, z, g: torch.einsum("nv,ntf,ntc,n->cvf", ones(p, 5), x, z, g),
    ),
    "signed attention": (
        SIGNED, "signed_attention", [x(2, 2, 460, 8) for _ in range(3)], lambda *qkv: equations(*qkv, scale=8**-0.5),
    ),
    "a linear recurrence": (
        tn.layer("y[b,t] = recur[t](a[b,t], x[b,t], start=0.5)", inputs="a x"), "recur", [x(20, 9), x(20, 9)],
        lambda a, x: loop(lambda y, t: a[:, t - 1] * y[-1] + x[:, t - 1] if t else 0 * a[:, 0] + 0.5, 9),
    ),
    "a recurrence": (
        tn.layer(TEXT, inputs="x W"), "", [x(2, 5, 4), x(4, 4)],
        lambda x, W: loop(lambda y, t: torch.tanh((y[-1] @ W.T if y else 0) + x[:, t]), 5).mT,
    ),
    "a recurrence of two lines": (
        tn.layer("a[b,t] = 0.5 * y[b,t-1] + x[b,t]\nc[b,t] = tanh(a[b,t-1])\ny[b,t] = c[b,t] - 0.3 * a[b,t-2]", inputs="x"),
        "", [x(2, 5)], of_two_lines,
    ),
    "rows": (tn.layer("y[k,c] = x[n[k],c]", inputs="x n"), "take", [x(5, 2), at(0, 4, 5)], lambda x, n: x[n]),
    "rows at the largest": (
        tn.layer("m[t] = top[k,t](n[k])\ny[t,c] = x[m[t],c]", inputs="x n", t=4), "", [x(5, 2), torch.randperm(5, generator=DRAW)],
        lambda x, n: x[n.topk(4).indices],
    ),
    "a gather": (
        tn.layer("y[b,h,i,j] = x[b,h,i,at[b,i,j]]", inputs="x at"), "gather", [x(2, 4, 3, 64), at(0, 64, 2, 3, 5)],
        lambda x, at: x.gather(3, at[:, None].expand(2, 4, 3, 5)),
    ),
    "equal elements": (
        tn.layer("y[b] = max[i,j](x[i,b,j])", inputs="x"), "", [at(0, 3, 80, 40, 4).double()], lambda x: x.amax((0, 2)),
    ),
    "remainders": (
        tn.layer("y[i] = -1 % w[i] + 0.1 % w[i]", inputs="w"), "",
        [torch.tensor([0.3, 1.3, 2.7], dtype=torch.float64)], lambda w: -0.9 - w * ((-1 / w).floor() + (0.1 / w).floor()),
    ),
    "attention": (
        tn.layer("y[b,h,i,f] = softmax[j](0.3 * q[b,h,i,d] * k[b,h,j,d]) * v[b,h,j,f]", inputs="q k v"),
        "scaled_dot_product_attention", [x(2, 3, 64, 16) for _ in range(3)],
        lambda q, k, v: torch.softmax(0.3 * q @ k.mT, -1) @ v,
    ),
    LARGE: (
        tn.layer("y[b,o] = x[b,i] * W[o,i] + u[o]", inputs="x W u"), "large_", [x(40_000, 4), x(128, 4), x(128)],
        torch.nn.functional.linear,
    ),
    **{name: of_inputs(*each) for name, each in PRODUCTS.items()},
}  # fmt: skip
"""A layer, what its code calls, what it is given, and the same by hand."""


TRIED = [(name, way) for name in CASES for way in WAYS if (name, way) != ("attention", recorded)]
"""Torch's kernel of attention has second derivatives in `torch.func` alone."""


BY_DAY = [
    (name, way)
    for name, way in TRIED
    if (
        way in (mapped, differentiated, forwards)
        if name == LARGE
        else way is not compiled or name in [*CASES][::2]
    )
]


@pytest.mark.parametrize(("name", "way"), sampled(TRIED, BY_DAY))
def test_a_layer_under_what_torch_does_to_functions(name: str, way: Any) -> None:
    graph, called, given, by_hand = CASES[name]
    function, module = tn.compile(graph, backend="torch"), tn.module(graph)
    torch.testing.assert_close(function({}, *given), by_hand(*given))
    assert called in function.last().plan.code
    run = module if way is compiled else lambda *given: function({}, *given)
    leaves = [each.clone().requires_grad_(each.is_floating_point()) for each in given]
    loss(run, *leaves).backward()  # planned both ways
    torch.testing.assert_close(way(run, *given), way(by_hand, *given))
