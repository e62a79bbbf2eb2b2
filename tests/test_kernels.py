"""Kernels: that equations which compute attention run as it, however they are written, and give the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tensornet as tn
from tensornet.device.model import default_profile
from tensornet.ops.table import FUNCTIONS
from tensornet.passes import kernel_selection
from tensornet.planning.steps import Step
from tensornet.sizes import evaluate

from . import oracle
from .differential import by_numpy

torch = pytest.importorskip("torch")

KERNEL = "scaled_dot_product_attention"

QKV = "q[b,h,i,d] k[b,h,j,d] v[b,h,j,f]"

FORMS: dict[str, tuple[str, str]] = {
    "in three equations": (
        "s[b,h,i,j] = q[b,h,i,d] * k[b,h,j,d] / sqrt(d)\na[b,h,i,j] = softmax[j](s)\n"
        "y[b,h,i,f] = a[b,h,i,j] * v[b,h,j,f]",
        QKV,
    ),
    "in one": ("y[b,h,i,f] = softmax[j](0.3 * q[b,h,i,d] * k[b,h,j,d]) * v[b,h,j,f]", QKV),
    "one letter for two axes": (
        "s[b,h,i,j] = q[b,h,i,d] * k[b,h,j,d]\na[b,h,i,j] = softmax[j](s)\n"
        "y[b,h,i,d] = a[b,h,i,j] * v[b,h,j,d]",
        "q[b,h,i,d] k[b,h,j,d] v[b,h,j,d]",
    ),
    "values first": (
        "s[h,j,i,b] = k[b,h,j,d] * q[b,h,i,d]\ny[h,i,b,f] = v[b,h,j,f] * softmax[j](s[h,j,i,b])",
        QKV,
    ),
    "one head": ("y[b,i,f] = softmax[j](q[b,i,d] * k[b,j,d]) * v[b,j,f]", "q[b,i,d] k[b,j,d] v[b,j,f]"),
    "no batch": ("y[i,f] = softmax[j](q[i,d] * k[j,d]) * v[j,f]", "q[i,d] k[j,d] v[j,f]"),
    "one query": ("y[b,f] = softmax[j](q[b,d] * k[b,j,d]) * v[b,j,f]", "q[b,d] k[b,j,d] v[b,j,f]"),
    "windows": (
        "y[b,u,w,h,i,f] = softmax[j](q[b,u,w,i,h,d] * k[b,u,w,j,h,d]) * v[b,u,w,j,h,f]",
        "q[b,u,w,i,h,d] k[b,u,w,j,h,d] v[b,u,w,j,h,f]",
    ),
    "two axes of queries and keys": (
        "y[b,i,m,f] = softmax[j,n](q[b,i,m,d] * k[b,j,n,d]) * v[b,j,n,f]",
        "q[b,i,m,d] k[b,j,n,d] v[b,j,n,f]",
    ),
    "heads of three axes": (
        "y[b,i,h,m,f] = softmax[j](q[b,i,h,m,d,p] * k[b,j,h,m,d,p]) * v[b,j,h,m,f]",
        "q[b,i,h,m,d,p] k[b,j,h,m,d,p] v[b,j,h,m,f]",
    ),
    "heads in groups": (
        "y[b,g,h,i,f] = softmax[j](q[b,g,h,i,d] * k[b,g,j,d]) * v[b,g,j,f]",
        "q[b,g,h,i,d] k[b,g,j,d] v[b,g,j,f]",
    ),
    "causal": (
        "y[b,h,i,f] = softmax[j](where(index(i) >= index(j), q[b,h,i,d] * k[b,h,j,d], -1e30)) * v[b,h,j,f]",
        QKV,
    ),
    "causal in groups": (
        "y[b,g,h,i,f] = softmax[j](where(index(i) >= index(j), q[b,g,h,i,d] * k[b,g,j,d], -1e30)) * v[b,g,j,f]",
        "q[b,g,h,i,d] k[b,g,j,d] v[b,g,j,f]",
    ),
    "hidden keys": (
        "y[b,h,i,f] = softmax[j](where(m[b,j] > 0, q[b,h,i,d] * k[b,h,j,d], -1e30)) * v[b,h,j,f]",
        f"{QKV} m[b,j]",
    ),
    "hidden pairs": (
        "y[b,h,i,f] = softmax[j](where((m[b,i,j] > 0) & (index(i) >= index(j)), "
        "q[b,h,i,d] * k[b,h,j,d], -1e30)) * v[b,h,j,f]",
        f"{QKV} m[b,i,j]",
    ),
    "hidden mildly": (
        "y[b,h,i,f] = softmax[j](where(m[b,j] > 0, q[b,h,i,d] * k[b,h,j,d], -2)) * v[b,h,j,f]",
        f"{QKV} m[b,j]",
    ),
    "something added": (
        "y[b,h,i,f] = softmax[j](q[b,h,i,d] * k[b,h,j,d] / 2 + m[h,i,j] - 3 * n[b,j]) * v[b,h,j,f]",
        f"{QKV} m[h,i,j] n[b,j]",
    ),
    "something added, by window": (
        "y[b,w,h,i,f] = softmax[j](q[b,w,h,i,d] * k[b,w,h,j,d] + m[w,i,j] + n[h,i,j]) * v[b,w,h,j,f]",
        "q[b,w,h,i,d] k[b,w,h,j,d] v[b,w,h,j,f] m[w,i,j] n[h,i,j]",
    ),
    "with projections": (
        "q[b,h,i,d] = x[b,i,c] * A[(h,d),c]\nk[b,h,j,d] = z[b,j,e] * B[(h,d),e]\n"
        "v[b,h,j,f] = z[b,j,e] * C[(h,f),e]\ns[b,h,i,j] = q * k[b,h,j,d] / sqrt(d)\n"
        "y[b,i,o] = softmax[j](s) * v[b,h,j,f] * D[o,(h,f)] + u[o]",
        "x[b,i,c] z[b,j,e] A[m,c] B[m,e] C[n,e] D[o,n] u[o]",
    ),
    "one tensor": (
        "s[b,i,j] = x[b,i,d] * x[b,j,d]\ny[b,i,f] = softmax[j](where((m > 0) & (index(i) >= index(j)), s, -1e30)) "
        "* x[b,j,f]",
        "x[b,i,d] m[()]",
    ),
    "twice in one": (
        "y[b,i,f] = softmax[j](q[b,i,d] * k[b,j,d]) * v[b,j,f] + softmax[j](q[b,i,d] * v[b,j,d]) * k[b,j,f] "
        "+ softmax[j](k[b,i,d] * q[b,j,d]) * v[b,j,f]",
        "q[b,i,d] k[b,j,d] v[b,j,f]",
    ),
    "summed over queries": (
        "y[b,f] = softmax[j](q[b,i,d] * k[b,j,d]) * v[b,j,f] * w[i]",
        "q[b,i,d] k[b,j,d] v[b,j,f] w[i]",
    ),
    "no kernel: keys kept": (
        "y[b,i,j,f] = softmax[j](q[b,i,d] * k[b,j,d]) * v[b,j,f]",
        "q[b,i,d] k[b,j,d] v[b,j,f]",
    ),
    "no kernel: another axis": (
        "y[b,i,f] = softmax[i](q[b,i,d] * k[b,j,d]) * v[b,j,f]",
        "q[b,i,d] k[b,j,d] v[b,j,f]",
    ),
    "no kernel: weights read twice": (
        "a[b,i,j] = softmax[j](q[b,i,d] * k[b,j,d])\ny[b,i,f] = a[b,i,j] * v[b,j,f]\nz[b,i] = a[b,i,j] * a[b,i,j]"
        "\nt[b,i,f] = y[b,i,f] + z[b,i]",
        "q[b,i,d] k[b,j,d] v[b,j,f]",
    ),
}

SIZES = {"b": 2, "h": 3, "i": 5, "j": 7, "d": 4, "f": 4, "u": 2, "w": 2, "m": 2, "n": 3, "p": 2, "g": 2,
         "c": 6, "e": 5, "o": 6}  # fmt: skip

FUSED = [name for name in FORMS if not name.startswith("no kernel") and name != "hidden mildly"]


def layer(form: str) -> tn.Graph:
    text, inputs = FORMS[form]
    return tn.layer(text, inputs=inputs, **({"h": 3, "d": 4, "f": 4} if "(h" in text else {}))


def arrays(graph: tn.Graph) -> dict[str, np.ndarray[Any, Any]]:
    draw = np.random.default_rng(0)
    known = {**SIZES, **graph.bound}
    return {
        leaf.name: draw.normal(size=[evaluate(size, known) for size in leaf.shape]) for leaf in graph.leaves
    }


@pytest.mark.parametrize("form", FORMS)
def test_attention_in_any_form_is_what_its_equations_say(form: str) -> None:
    graph = layer(form)
    given = arrays(graph)
    expected = by_numpy(graph, given)
    tensors = {name: torch.tensor(array, requires_grad=True) for name, array in given.items()}
    inputs = [tensors[leaf.name] for leaf in graph.inputs]
    found = tn.compile(graph, backend="torch")(
        {leaf.name: tensors[leaf.name] for leaf in graph.parameters}, *inputs
    )
    for name, each in zip(graph.outputs, found if isinstance(found, tuple) else (found,), strict=True):
        np.testing.assert_allclose(each.detach().numpy(), expected[name], atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_attention_runs_as_a_kernel_wherever_equations_compute_it(form: str) -> None:
    """At sizes at which it pays: as many entries of a value as of a key."""
    graph = layer(form)
    sizes = {**SIZES, "i": 256, "j": 256, "d": 32, "p": 1, "f": 32}
    plan = tn.plan(graph, backend="torch", **{name: sizes[name] for name in graph.open_sizes})
    assert (KERNEL in plan.code) == (form in FUSED)
    assert tn.Plan.from_json(plan.to_json()) == plan
    assert KERNEL not in tn.plan(graph, backend="numpy", **{n: sizes[n] for n in graph.open_sizes}).code


@pytest.mark.parametrize("form", FUSED)
def test_gradients_flow_through_the_kernel(form: str) -> None:
    graph = layer(form)
    given = {name: torch.tensor(array, requires_grad=True) for name, array in arrays(graph).items()}
    function = tn.compile(graph, backend="torch")

    def run(*tensors: Any) -> Any:
        named = dict(zip(given, tensors, strict=True))
        return function(
            {leaf.name: named[leaf.name] for leaf in graph.parameters},
            *(named[leaf.name] for leaf in graph.inputs),
        )

    assert torch.autograd.gradcheck(run, tuple(given.values()), fast_mode=True)


def test_dropout_inside_the_kernel_drops_and_keeps_the_mean() -> None:
    graph = tn.layer(
        "y[b,i,f] = dropout(softmax[j](q[b,i,d] * k[b,j,d]), 0.25) * v[b,j,f]",
        inputs="q[b,i,d] k[b,j,d] v[b,j,f]",
    )
    assert f"{KERNEL}(" in tn.plan(graph, backend="torch", b=64, i=256, j=256, d=32, f=32).code
    q, k, v = (torch.randn(64, 256, 32) for _ in range(3))
    function = tn.compile(graph, backend="torch")
    plain = function({}, q, k, v)
    torch.manual_seed(0)
    dropped = function({}, q, k, torch.ones_like(v), training=True)
    torch.testing.assert_close(plain, function({}, q, k, v))
    assert 0.01 < dropped.std() < 0.5
    assert abs(float(dropped.mean()) - 1) < 0.01


def test_a_row_that_sees_nothing_sees_all_alike() -> None:
    graph = tn.layer(
        "y[b,i,f] = softmax[j](where(see[b,i,j] != 0, q[b,i,d] * k[b,j,d], -1e30)) * v[b,j,f]",
        inputs="q[b,i,d] k[b,j,d] v[b,j,f] see[b,i,j]",
    )
    assert KERNEL in tn.plan(graph, backend="torch", b=8, i=256, j=256, d=32, f=32).code
    q, k, v = (torch.randn(8, 256, 32) for _ in range(3))
    see = torch.ones(8, 256, 256)
    see[:, 3] = 0
    found = tn.compile(graph, backend="torch")({}, q, k, v, see)
    torch.testing.assert_close(found[:, 3], v.mean(1))


def test_attention_in_windows_brings_its_tensor_into_order_once() -> None:
    graph = tn.layer(
        """
        q[b,m,n,h,i,p,d] = x[b,(m,i),(n,p),c] * Wq[(h,d),c] + bq[(h,d)]
        k[b,m,n,h,j,r,d] = x[b,(m,j),(n,r),c] * Wk[(h,d),c]
        v[b,m,n,h,j,r,f] = x[b,(m,j),(n,r),c] * Wv[(h,f),c]
        y[b,(m,i),(n,p),(h,f)] = softmax[j,r](q[b,m,n,h,i,p,d] * k[b,m,n,h,j,r,d]) * v[b,m,n,h,j,r,f]
        """,
        inputs="x", h=3, d=32, f=32, c=96, m=4, n=5, i=7, j=7, p=7, r=7,
    )  # fmt: skip
    code = tn.plan(graph, backend="torch", b=2).code
    assert KERNEL in code
    assert code.count(".contiguous()") == 1
    parameters, x = tn.init(graph, dtype="float64"), np.random.default_rng(0).standard_normal((2, 28, 35, 96))
    found = tn.compile(graph, backend="torch")(tn.to_backend(parameters, "torch"), torch.from_numpy(x))
    (expected,) = by_numpy(graph, {**parameters, "x": x}).values()
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------------------- of the user's own


@pytest.fixture
def gated() -> Iterator[list[Any]]:
    """A kernel `scale · x·w · sigmoid(g)`, and what it was called with."""
    calls: list[Any] = []

    def kernel(x: Any, w: Any, g: Any, *, scale: float) -> Any:
        calls.append(([tuple(each.shape) for each in (x, w, g)], scale))
        return scale * (x @ w.T) * torch.sigmoid(g)

    tn.register("gated", computes="y[b,o] = scale * x[b,i] * w[o,i] * sigmoid(g[b,o])", torch=kernel)
    yield calls
    del FUNCTIONS["gated"]


def test_a_kernel_of_the_users_own_runs_wherever_equations_say_what_it_computes(gated: list[Any]) -> None:
    graph = tn.layer(
        "h[n,t,(p,q)] = x[n,t,c] * W[(p,q),c] * 2\ny[n,t,p,q] = sigmoid(z[t,n,p,q]) * h[n,t,(p,q)]",
        inputs="x[n,t,c] z[t,n,p,q]",
        p=2,
        q=3,
        c=4,
    )
    parameters = tn.init(graph, seed=0, backend="torch")
    x, z = torch.randn(5, 3, 4), torch.randn(3, 5, 2, 3)
    found = tn.compile(graph, backend="torch")(parameters, x, z)
    assert gated == [([(15, 4), (6, 4), (15, 6)], 2)]
    expected = oracle.meaning(
        graph, {"x": x.numpy(), "z": z.numpy(), "W": parameters["W"].numpy()}, {"n": 5, "t": 3}
    )
    np.testing.assert_allclose(found.numpy(), expected["y"], rtol=1e-5, atol=1e-6)


def test_no_axis_of_a_kernel_need_stand_for_any(gated: list[Any]) -> None:
    graph = tn.layer("y[o] = sigmoid(g[o]) * sum[i](x[i] * w[o,i])", inputs="x[i] w[o,i] g[o]")
    x, w, g = torch.randn(4), torch.randn(3, 4), torch.randn(3)
    found = tn.compile(graph, backend="torch")({}, x, w, g)
    assert gated == [([(1, 4), (3, 4), (1, 3)], 1)]
    torch.testing.assert_close(found, w @ x * torch.sigmoid(g))


def test_what_it_does_not_compute_runs_without(gated: list[Any]) -> None:
    graph = tn.layer("y[b,o] = x[b,i] * w[o,i] * tanh(g[b,o])", inputs="x[b,i] w[o,i] g[b,o]")
    tn.compile(graph, backend="torch")({}, torch.randn(2, 4), torch.randn(3, 4), torch.randn(2, 3))
    assert not gated


@pytest.mark.parametrize("text", ["y[b] = ", "softmax[j](x)", 3])
def test_a_kernel_that_computes_no_equation_is_refused(text: Any) -> None:
    with pytest.raises(tn.EquationError, match="computes"):
        tn.register("wrong", computes=text, torch=torch.sin)
    assert "wrong" not in FUNCTIONS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("y[b] = x[b]\nz[b] = y[b]", "not one equation"),
        ("y[b,o] = foo(x[b,i]) * w[o,i]", "'foo' is not a function"),
        ("y[b,i] = tanh(x[b,i])", "nothing tells them apart"),
        ("y[c] = E[0,c] * w[c]", "axes alone, each once"),
        ("y[b,c] = E[t[b],c]", "axes alone, each once"),
        ("y[b,o] = x[b,(h,d)] * w[o,h]", "axes alone, each once"),
        ("y[b,o] = s * t * x[b,i] * w[o,i]", "holds one number"),
        ("y[b,o] = x[b,i] * w[o,i] / s", "holds one number"),
        ("y[b,o] = x[b,i] * w[o,i] + s + t", "two numbers of a sum"),
        ("y[b,o] = x[b,i] * w[o,i] + i", "the size of 'i'"),
        ("y[b,o] = dropout(x[b,i] * w[o,i], rate)", "something else each time"),
        ("y[b,o] = roll(x[b,i], i=1) * w[o,i]", "is of one axis"),
    ],
)
def test_a_kernel_that_cannot_be_looked_for_is_refused_at_once(text: str, message: str) -> None:
    with pytest.raises(tn.EquationError, match=message):
        tn.register("wrong", computes=text, torch=torch.sin)
    assert "wrong" not in FUNCTIONS


@pytest.mark.parametrize(
    ("computes", "text", "inputs", "runs"),
    [
        ("y[b,o] = 2 * x[b,i] * w[o,i]", "y[b,o] = x[b,i] * 2 * w[o,i]", "x[b,i] w[o,i]", True),
        ("y[b,o] = 2 * x[b,i] * w[o,i]", "y[b,o] = 3 * x[b,i] * w[o,i]", "x[b,i] w[o,i]", False),
        ("y[b,o] = x[b,i] * w[o,i] + e", "y[b,o] = 1 + x[b,i] * w[o,i] + 2", "x[b,i] w[o,i]", True),
        ("y[b,o] = x[b,i] * w[o,i] + e", "y[b,o] = x[b,i] * w[o,i] + i", "x[b,i] w[o,i]", False),
        ("y[b,o] = exp(e * x[b,i]) * sin(e * w[o,i])",
         "y[b,o] = exp(x[b,i] / 2) * sin(w[o,i] / 2)", "x[b,i] w[o,i]", True),
        ("y[b,o] = exp(e * x[b,i]) * sin(e * w[o,i])",
         "y[b,o] = exp(x[b,i] / 2) * sin(w[o,i] / 3)", "x[b,i] w[o,i]", False),
        ("y[b,i] = tanh(x[b,i] + u[i]) + sin(u[i])",
         "y[b,i] = sin(u[i]) + tanh(u[i] + x[b,i])", "x[b,i] u[i]", True),
        ("y[b,o] = x[b,i] * w[o,i] * sin(g[b,o])",
         "y[b,o] = x[b,i] * w[o,i] * sin(g[b])", "x[b,i] w[o,i] g[b]", False),
        ("y[b,o] = x[b,i] * w[o,i] * sin(g[b,o])",
         "y[b,o] = x[b,i] * w[o,i] * sin(g[b,o,i])", "x[b,i] w[o,i] g[b,o,i]", False),
    ],
)  # fmt: skip
def test_a_kernel_runs_where_a_program_says_just_what_it_computes(
    computes: str, text: str, inputs: str, runs: bool
) -> None:
    """What it gives here is told from what the program says, and so is that it does not run at all."""
    called: list[Any] = []

    def kernel(*tensors: Any, **numbers: float) -> Any:
        called.append(numbers)
        wanted = tn.layer(computes.replace("+ e", "+ 3").replace("e *", "0.5 *"), inputs=inputs)
        given = {leaf.name: each.numpy() for leaf, each in zip(wanted.inputs, tensors, strict=True)}
        return torch.as_tensor(by_numpy(wanted, given)["y"])

    graph = tn.layer(text, inputs=inputs)
    shape = {"b": 3, "i": 5, "o": 4}
    draw = np.random.default_rng(0)
    given = {leaf.name: draw.normal(size=[shape[str(size)] for size in leaf.shape]) for leaf in graph.leaves}
    tn.register("wanted", computes=computes, torch=kernel)
    try:
        found = tn.compile(graph, backend="torch")({}, *map(torch.tensor, given.values()))
    finally:
        del FUNCTIONS["wanted"]
    assert bool(called) == runs
    np.testing.assert_allclose(found.numpy(), by_numpy(graph, given)["y"], rtol=1e-12)


def test_integers_stay_exact() -> None:
    graph = tn.layer("y[b,i,f] = softmax[j](q[b,i,d] * k[b,j,d] / 256) * v[b,j,f]", inputs="q k v")
    q, k = (torch.randint(-400, 400, (2, 64, 16)) for _ in range(2))
    v = torch.randn(2, 64, 8).bfloat16()
    found = tn.compile(graph, backend="torch")({}, q, k, v)
    given = {"q": q.numpy(), "k": k.numpy(), "v": v.double().numpy()}
    expected = by_numpy(graph, given)["y"]
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=0.02, atol=0.02)


def test_what_is_added_to_scores_has_their_axes_alone() -> None:
    """A weight of its own for each channel of the value is no attention."""
    graph = tn.layer(
        "s[b,i,j] = q[b,i,d] * k[b,j,d]\ny[b,i,f] = softmax[j](s + m[j,f]) * v[b,j,f]",
        inputs="q[b,i,d] k[b,j,d] v[b,j,f] m[j,f]",
    )
    sizes = {"b": 2, "i": 64, "j": 64, "d": 16, "f": 16}
    draw = np.random.default_rng(0)
    given = {leaf.name: draw.normal(size=[sizes[str(size)] for size in leaf.shape]) for leaf in graph.leaves}
    found = tn.compile(graph, backend="torch")({}, *map(torch.tensor, given.values()))
    np.testing.assert_allclose(found.numpy(), by_numpy(graph, given)["y"], atol=1e-12)


def test_of_long_products_few_ways_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 14 factors there are 16,384 ways to be a query and a key."""
    looked: list[Any] = []
    dealt = kernel_selection._dealt
    monkeypatch.setattr(
        kernel_selection, "_dealt", lambda *given: (looked.append(each) or each for each in dealt(*given))
    )
    chain = " * ".join(f"a{n}[z{n},z{n + 1}]" for n in range(14))
    inputs = " ".join([*(f"a{n}[z{n},z{n + 1}]" for n in range(14)), "v[z14,f]"])
    graph = tn.layer(f"s[z0,z14] = {chain}\ny[z0,f] = softmax[z14](s) * v[z14,f]", inputs=inputs)
    assert KERNEL in tn.plan(graph, backend="torch", compare=False, z0=512, z14=512).code
    assert 0 < len(looked) < 1000


# ---------------------------------------------------------------------------- what it takes


@pytest.mark.parametrize(
    ("queries", "keys", "part"),
    [(2048, 2048, 0.64), (512, 512, 1.0), (1024, 2048, 0.39), (2048, 512, 1.0), (4096, 4096, 0.56)],
)
def test_causal_attention_is_priced_by_the_tiles_that_are_computed(
    queries: int, keys: int, part: float
) -> None:
    """The parts are those of the time without a mask that torch was measured to take on a processor."""
    seconds = []
    for form in ("in one", "causal"):
        sizes = {"b": 2, "h": 8, "i": queries, "j": keys, "d": 64, "f": 64}
        plan = tn.plan(layer(form), backend="torch", profile=default_profile("cpu"), compare=False, **sizes)
        (step,) = (each for each in plan.steps if isinstance(each, Step) and KERNEL in str(each.equation))
        seconds.append(step.seconds)
    assert seconds[1] / seconds[0] == pytest.approx(part, rel=0.06)
