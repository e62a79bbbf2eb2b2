"""Kernels: that equations which compute attention run as it, however they are written, and give the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet.device.cost_model import default_profile
from tensornet.passes import kernel_selection
from tensornet.passes.pipeline import program_of
from tensornet.planning.plans import Step

from . import oracle
from .conftest import normal, table
from .differential import by_numpy, computed, drawn
from .programs import records, titled

# ---------------------------------------------------------------------------- Kernels


KERNEL = "scaled_dot_product_attention"

RECORDS = (record[2:].partition("\n") for record in records("attention.txt"))
FORMS = {head.rpartition(": ")[0]: (text, head.rpartition(": ")[2]) for head, _, text in RECORDS}
"""Attention in equations, and what they are given."""

SIZES = {"b": 2, "h": 3, "i": 64, "j": 64, "d": 16, "f": 16, "u": 2, "w": 2, "m": 2, "n": 3, "p": 1, "g": 2,
         "c": 6, "e": 5, "o": 6}  # fmt: skip
"""At these a kernel pays: there are as many entries of a value as of a key."""

FUSED = [name for name in FORMS if not name.startswith("no kernel") and name != "hidden mildly"]


def layer(form: str) -> tn.Graph:
    text, inputs = FORMS[form]
    return tn.layer(text, inputs=inputs, **({"h": 3, "d": 4, "f": 4} if "(h" in text else {}))


def by_torch(
    graph: tn.Graph, given: dict[str, Any], values: Any, slopes: Any, again: bool = False
) -> tuple[tn.Plan, list[torch.Tensor]]:
    """The plan on torch, whose values and gradients are those of the equations up to these errors; and what may be
    differentiated again: what came from outside, what was given, and the squares of the gradients."""
    run = tn.compile(graph, backend="torch")
    tensors = {name: torch.tensor(array, requires_grad=True) for name, array in given.items()}
    held = {leaf.name: tensors[leaf.name] for leaf in graph.parameters}
    found = run(held, *(tensors[leaf.name] for leaf in graph.inputs))
    (expected,) = by_numpy(graph, given).values()
    np.testing.assert_allclose(found.detach().numpy(), expected, *values)
    seed = normal(*expected.shape, seed=1)
    coming = torch.tensor(seed, requires_grad=True)
    gradients = torch.autograd.grad(
        found, [*tensors.values()], coming, create_graph=again, materialize_grads=True, allow_unused=True
    )
    exact = by_numpy(tn.gradient(graph, wrt=[*given]), {**given, f"{graph.outputs[0]}.grad": seed})
    for name, gradient in zip(given, gradients, strict=True):
        np.testing.assert_allclose(gradient.detach().numpy(), exact[f"{name}.grad"], *slopes)
    return run.plan, [coming, *tensors.values(), sum(each.square().sum() for each in gradients)]


@pytest.mark.parametrize("form", FORMS)
def test_attention_in_any_form_runs_as_a_kernel_and_is_what_its_equations_say(form: str) -> None:
    """Wherever equations compute it, values and gradients are those of the equations."""
    graph = layer(form)
    sizes = SIZES if form != "one query" else {**SIZES, "j": 256}  # of few keys, both ways take as long
    plan, _ = by_torch(graph, drawn(graph, **{**sizes, **graph.bound}), (1e-7, 1e-12), (1e-9, 1e-10))
    assert (KERNEL in plan.code) == (form in FUSED)
    assert ("is_causal=True" in plan.code) == form.startswith("causal")
    assert tn.Plan.from_json(plan.to_json()) == plan
    assert KERNEL not in tn.plan(graph, backend="numpy", **dict(plan.sizes)).code


WRITTEN_OUT = titled("kernels.txt")
"""What is written out and has a kernel or a function, with what it is of; and what nearly has one."""


def those_of(*kinds: str) -> list[str]:
    return [name for name, each in WRITTEN_OUT.items() if each.said["of"] in kinds]


@pytest.mark.parametrize("form", those_of("distances"))
def test_distances_of_pairs_run_as_a_kernel_and_are_what_their_equations_say(form: str) -> None:
    """Values, gradients and their gradients, also far from 0 and where two rows are the same."""
    graph = WRITTEN_OUT[form].graph()
    sizes = {
        name: size
        for name, size in (("b", 2), ("i", 40), ("j", 30), ("c", 16), ("d", 3))
        if name in graph.open_sizes
    }
    given = {name: each + 100 for name, each in drawn(graph, **sizes).items()}
    plan, (*leaves, squares) = by_torch(graph, given, (1e-12, 1e-12), (1e-9, 1e-9), again=True)
    assert "pairwise_distance" in plan.code
    assert "pairwise_distance" not in tn.plan(graph, backend="numpy", **sizes).code
    if "norm" in form:  # its second derivative is infinite where two rows are the same
        return
    assert all(each.isfinite().all() for each in torch.autograd.grad(squares, leaves))


@pytest.mark.parametrize("form", ["squares", "norms"])
@pytest.mark.parametrize("case", ["near pairs", "padding"])
def test_gradients_of_distances_are_of_the_differences_where_rows_are_large(form: str, case: str) -> None:
    """In single precision, also where nearest rows differ little, and where some rows are padding."""
    z = 10 * torch.rand(1, 30, 3)
    x = z + 1e-4 * torch.randn(1, 30, 3)
    weights = torch.eye(30)
    if case == "padding":
        z[:, 5], weights = 1e12, torch.ones(30, 30).index_fill(1, torch.tensor(5), 0.0)
    x, exact = x.requires_grad_(), x.double().requires_grad_()
    run = tn.compile(WRITTEN_OUT[form].graph(), backend="torch")
    (found,) = torch.autograd.grad((run({}, x, z) * weights).sum(), x)
    assert "pairwise_distance" in run.plan.code
    squares = (exact[:, :, None] - z.double()[:, None]).square().sum(-1)
    distances = squares if form == "squares" else squares.sqrt()
    (expected,) = torch.autograd.grad((distances * weights).sum(), exact)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("sizes", [(4, 3, 6, 5), (1, 3, 1, 1), (2, 0, 6, 5)])
@pytest.mark.parametrize("form", those_of("batches"))
def test_batch_norm_runs_as_a_kernel_and_is_what_its_equations_say(form: str, sizes: tuple[int, ...]) -> None:
    graph = WRITTEN_OUT[form].graph()
    lengths = zip("bchwt", (*sizes, 5), strict=True)
    given = drawn(graph, **{name: size for name, size in lengths if name in graph.open_sizes})
    plan, _ = by_torch(graph, given, (1e-9, 1e-9), (1e-8, 1e-8))
    assert ("batch_norm" in plan.code) or 0 in sizes


def test_batch_norm_is_looked_for_where_something_runs_along_a_first_axis() -> None:
    for text, is_there in (
        (WRITTEN_OUT["a batch norm by hand"].text, True),
        ("y[b,c] = normalize[c](x[b,c]) * g[c] + u[c]", False),
    ):
        assert ("outermost" in program_of(tn.layer(text, inputs="x")).features) is is_there


def test_dropout_inside_the_kernel_drops_and_keeps_the_mean() -> None:
    graph = tn.layer(
        "y[b,i,f] = dropout(softmax[j](q[b,i,d] * k[b,j,d]), 0.25) * v[b,j,f]",
        inputs="q[b,i,d] k[b,j,d] v[b,j,f]",
    )
    assert f"{KERNEL}(" in tn.plan(graph, backend="torch", b=64, i=256, j=256, d=32, f=32).code
    torch.manual_seed(0)
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
    found = tn.compile(graph, backend="torch")({}, q, k, v.requires_grad_(), see)
    torch.testing.assert_close(found[:, 3], v.mean(1))
    (gradient,) = torch.autograd.grad(found[:, 3].sum(), v)
    torch.testing.assert_close(gradient, torch.full_like(v, 1 / 256))


@pytest.mark.parametrize(("dtype", "rounding"), [("float32", 1e-5), ("float64", 1e-12), ("bfloat16", 0.03)])
def test_a_row_that_sees_nothing_is_nan_where_scores_become_infinite(dtype: str, rounding: float) -> None:
    graph = tn.layer(
        "y[b,i,f] = softmax[j](where(see[i,j] != 0, q[b,i,d] * k[b,j,d], -inf)) * v[b,j,f]",
        inputs="q[b,i,d] k[b,j,d] v[b,j,f] see[i,j]",
    )
    assert KERNEL in tn.plan(graph, backend="torch", dtype=dtype, b=8, i=256, j=256, d=32, f=32).code
    q, k, v = torch.randn(3, 8, 256, 32, dtype=getattr(torch, dtype))
    see = (torch.rand(256, 256) > 0.5).to(q.dtype)
    see[3] = 0
    found = tn.compile(graph, backend="torch")({}, q, k, v, see)
    scores = torch.where(see != 0, q.double() @ k.double().transpose(1, 2), -torch.inf)
    expected = scores.softmax(-1) @ v.double()
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=rounding, equal_nan=True)
    assert found[:, 3].isnan().all()
    assert not found[:, 4].isnan().any()


# ---------------------------------------------------------------------------- of the user's own


@pytest.fixture
def gated(registering: None) -> list[Any]:
    """A kernel `scale · x·w · sigmoid(g)`, and what it was called with."""
    calls: list[Any] = []

    def kernel(x: Any, w: Any, g: Any, *, scale: float) -> Any:
        calls.append(([tuple(each.shape) for each in (x, w, g)], scale))
        return scale * (x @ w.T) * torch.sigmoid(g)

    tn.register("gated", computes="y[b,o] = scale * x[b,i] * w[o,i] * sigmoid(g[b,o])", torch=kernel)
    return calls


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


OWN = titled("own_kernels.txt")


@pytest.mark.usefixtures("registering")
@pytest.mark.parametrize("name", OWN)
def test_a_kernel_runs_where_a_program_says_just_what_it_computes(name: str) -> None:
    """What it gives here is told from what the program says, and so is that it does not run at all."""
    said, called = OWN[name].said, list[Any]()
    computes = said["computes"]

    def kernel(*tensors: Any, **numbers: float) -> Any:
        called.append(numbers)
        wanted = tn.layer(computes.replace("+ e", "+ 3").replace("e *", "0.5 *"), inputs=said["inputs"])
        given = {leaf.name: each.numpy() for leaf, each in zip(wanted.inputs, tensors, strict=True)}
        return torch.as_tensor(by_numpy(wanted, given)["y"])

    graph = OWN[name].graph()
    given = drawn(graph, b=3, i=5, o=4)
    tn.register("wanted", computes=computes, torch=kernel)
    found = computed(graph, given, "torch")["y"]
    assert bool(called) == (said["runs"] == "yes")
    np.testing.assert_allclose(found, by_numpy(graph, given)["y"], rtol=1e-12)


def test_integers_stay_exact() -> None:
    graph = tn.layer("y[b,i,f] = softmax[j](q[b,i,d] * k[b,j,d] / 256) * v[b,j,f]", inputs="q k v")
    q, k = (torch.randint(-400, 400, (2, 64, 16)) for _ in range(2))
    v = torch.randn(2, 64, 8).bfloat16()
    found = tn.compile(graph, backend="torch")({}, q, k, v)
    given = {"q": q.numpy(), "k": k.numpy(), "v": v.double().numpy()}
    expected = by_numpy(graph, given)["y"]
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=0.02, atol=0.02)


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


@pytest.mark.parametrize("case", table("attention_on_a_gpu.txt"), ids=" ".join)
def test_a_gpu_is_given_the_kernel_where_it_is_the_quicker(case: list[str]) -> None:
    dtype, (shared, queries, keys, channels), (kernel, plain) = (
        case[0],
        map(int, case[1:5]),
        map(float, case[5:]),
    )
    flops, scored = {"bfloat16": (8.6e14, 5.3e-13), "float32": (5.1e13, 6e-12)}[dtype]
    profile = replace(
        default_profile("cuda:0", dtype),
        flops=flops,
        scored=scored,
        launch=11e-6,
        **dict.fromkeys(("bandwidth", "near_bandwidth", "held_bandwidth"), 4.2e12),
    )
    sizes = {"b": shared, "h": 1, "i": queries, "j": keys, "d": channels, "f": channels}
    plan = tn.plan(
        layer("in one"),
        backend="torch",
        device="cuda:0",
        dtype=dtype,
        profile=profile,
        compare=False,
        **sizes,
    )
    assert (KERNEL in plan.code) is (kernel < plain)


@pytest.mark.parametrize(("rank", "is_repeated"), [(64, True), (1024, False)])
def test_a_small_factor_is_repeated_along_a_batch_in_the_place_of_a_copy(
    rank: int, is_repeated: bool
) -> None:
    """A copy of the images into rows takes as long as the product there."""
    graph = tn.layer("y[b,r,h,w] = x[b,c,h,w] * U[c,r]", inputs="x")
    sizes = {"b": 64, "c": 256, "h": 28, "w": 28, "r": rank}
    profile = default_profile("cuda:0")
    plan = tn.plan(graph, backend="torch", device="cuda:0", profile=profile, compare=False, **sizes)
    product = next(each for each in plan.steps if isinstance(each, Step) and each.arrangement)
    assert ("b" in product.arrangement.batch) is is_repeated


@pytest.mark.usefixtures("registering")
def test_a_kernel_may_speak_of_positions_along_an_axis_that_its_tensors_tell_apart() -> None:
    def kernel(w: Any, x: Any, scale: float) -> Any:
        return scale * w[:, None] * x * np.exp(np.arange(x.shape[1]))

    tn.register("decayed", computes="y[b,i] = scale * w[b] * x[b,i] * exp(index(i))", numpy=kernel)
    graph = tn.layer("y[c,b,i] = 3 * x[b,i,c] * w[b,c] * exp(index(i))", inputs="x w")
    assert '"decayed"' in tn.plan(graph, backend="numpy", b=4, i=5, c=2).code
    given = drawn(graph, b=4, i=5, c=2)
    expected = np.einsum("bic,bc,i->cbi", 3 * given["x"], given["w"], np.exp(np.arange(5)))
    np.testing.assert_allclose(by_numpy(graph, given)["y"], expected)


# ---------------------------------------------------------------------------- Spellings


LENGTHS = {"b": 2, "h": 3, "i": 64, "j": 64, "d": 16, "f": 16, "c": 96, "lead": 5}
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
    return WRITTEN[name].graph(**{axis: LENGTHS[axis] for axis in "cd" if f"{axis}]" in inputs})


def kernels(graph: tn.Graph) -> set[str]:
    """The kernels that a plan calls."""
    code = tn.plan(graph, backend="torch", compare=False, **{n: LENGTHS[n] for n in graph.open_sizes}).code
    return {name for name in (RMS, NORM, ATTENTION) if f"{name}(" in code or f'"{name}"' in code}


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_kernel_is_recognised_in_every_spelling(name: str, request: pytest.FixtureRequest) -> None:
    said = WRITTEN[name].said
    if said["kernel"] == RMS:
        request.getfixturevalue("rms")
    check(made(name), said["kernel"], BY_HAND[said["by"]])


@pytest.mark.usefixtures("rms")
def test_so_is_the_rms_norm_of_the_models() -> None:
    check(tn.models.rms_norm(LENGTHS["c"], eps=EPS), RMS, rms_norm)


def check(graph: tn.Graph, kernel: str, by_hand: Any) -> None:
    assert kernels(graph) == {kernel}
    given = drawn(graph, **LENGTHS)
    (found,) = computed(graph, given, "torch").values()
    np.testing.assert_allclose(found, by_hand(*given.values()), rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("rms")
@pytest.mark.parametrize("name", OTHERS)
def test_what_is_nearly_a_kernel_is_none(name: str) -> None:
    graph = made(name)
    given = drawn(graph, **LENGTHS)
    assert not kernels(graph)
    found, expected = (computed(graph, given, backend)["y"] for backend in ("torch", "numpy"))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
