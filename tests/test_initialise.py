"""Initial values: the variance of the output equals that of the input, on layers and random products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.runtime.initial_values import starts
from tensornet.sizes import evaluate

from .conftest import examples
from .programs import SUMMED_ALONE
from .test_starts import deviations

pytestmark = pytest.mark.filterwarnings(SUMMED_ALONE)


@st.composite
def products(draw: Any) -> tuple[str, dict[str, int]]:
    """`y[b,…] = x[b,…] * P0[…] * …`, every parameter sharing an axis with what stands before it."""
    axes = "ijklmn"
    sizes = {axis: draw(st.sampled_from([4, 6, 8])) for axis in axes}
    data = draw(st.lists(st.sampled_from(axes), min_size=1, max_size=3, unique=True))
    seen, terms = list(data), [f"x[b,{','.join(data)}]"]
    for number in range(draw(st.integers(1, 3))):
        shared = draw(st.sampled_from(seen))
        fresh = draw(
            st.lists(st.sampled_from([a for a in axes if a not in seen] or [shared]), max_size=2, unique=True)
        )
        own = list(dict.fromkeys([shared, *fresh]))
        terms.append(f"P{number}[{','.join(own)}]")
        seen += [axis for axis in own if axis not in seen]
    kept = [axis for axis in seen if draw(st.booleans())]
    left = ",".join(["b", *kept])
    return f"y[{left}] = {' * '.join(terms)}", {axis: sizes[axis] for axis in seen}


def mean_square(graph: tn.Graph, shape: Sequence[int], draws: int, rows: int) -> float:
    """Of the results of standard normal numbers, over some starts."""
    return float(np.mean(deviations(graph, tuple(shape), range(draws), rows) ** 2))


@given(products())
def test_summed_size_and_variances_balance(case: tuple[str, dict[str, int]]) -> None:
    """S · ∏ variances = 1, with S the product of the summed axes."""
    text, sizes = case
    graph = tn.layer(text, inputs="x", **sizes)
    found = starts(graph)
    if any(kind == "value" for kind, _ in found.values()):
        return
    summed = np.prod([sizes[axis] for axis in sizes if f",{axis}" not in text.split("]")[0]])
    assert summed * np.prod([std**2 for _, std in found.values()]) == pytest.approx(1.0)


LAYERS = [
    tn.models.tcl((6, 7, 8), (5, 6, 7)),
    *[tn.models.trl((6, 7, 8), 20, rank=0.2, factorization=kind) for kind in ("tucker", "cp", "tt")],
    *[
        tn.models.linear((8, 8), (8, 8), factorization=kind, rank=0.3)
        for kind in ("dense", "tucker", "cp", "tt", "blocktt", "kronecker")
    ],
]


@pytest.mark.parametrize("graph", LAYERS, ids=lambda graph: str(graph.equations[0])[:60])
def test_layers_keep_the_standard_deviation(graph: tn.Graph) -> None:
    shape = [evaluate(dim[0].size, graph.bound) if len(dim) == 1 else 64 for dim in graph.inputs[0].dims[1:]]
    assert 0.6 < np.sqrt(mean_square(graph, shape, 8, 256)) < 1.6


def test_every_role_has_its_start() -> None:
    graph = tn.layer(
        """
        e[b,n,c] = E[t[b,n],c]
        z[b,n,c] = concat[n](cls[1,c], e[b,n,c]) + pos[n,c]
        h[b,n,c] = gain[c] * normalize[c](z) + shift[c]
        y[b,n,f] = gelu(h[b,n,c] * W[f,c] + u[f]) * alpha
        """,
        inputs="t", E0=50, n=7, c=16, f=400,
    )  # fmt: skip
    found = starts(graph)
    assert found["E"] == ("std", 1.0)
    assert found["cls"] == ("std", 1.0)
    assert found["W"] == ("std", 0.25)
    assert {name: found[name] for name in ("pos", "gain", "shift", "u", "alpha")} == {
        "pos": ("value", 0.0), "gain": ("value", 1.0), "shift": ("value", 0.0), "u": ("value", 0.0),
        "alpha": ("value", 1.0),
    }  # fmt: skip


def test_a_function_between_is_made_up_for() -> None:
    graph = tn.layer("y[b,o] = relu(x[b,i] * W[h,i]) * Z[o,h]", inputs="x", i=64, h=512, o=64)
    assert starts(graph)["Z"][1] == pytest.approx(np.sqrt(2 / 512), rel=0.05)  # He et al. (2015)


def test_starts_can_be_said() -> None:
    graph = tn.layer(
        "y[b,o] = x[b,i] * W[o,i] + u[o]", inputs="x", i=500, o=40, init={"W": 0.02, "u": "ones"}
    )
    arrays = tn.init(graph)
    assert arrays["W"].std() == pytest.approx(0.02, rel=0.02)
    assert (arrays["u"] == 1).all()
    assert tn.layer(str(graph)) == graph
    with pytest.raises(
        tn.EquationError, match="init names 'V', which is no parameter\nfix: the parameters are W"
    ):
        tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", init={"V": 1.0})


def test_one_seed_one_start_whatever_else_is_in_the_graph() -> None:
    one = tn.init(tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=4, o=2), seed=5)
    two = tn.init(tn.layer("y[b,o] = x[b,i] * W[o,i] + u[o]", inputs="x", i=4, o=2), seed=5, backend="torch")
    assert np.array_equal(one["W"], two["W"].numpy())
    assert not np.array_equal(
        one["W"], tn.init(tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=4, o=2), seed=6)["W"]
    )


# ---------------------------------------------------------------------------- weights made of weights


FROZEN = np.random.default_rng(0).standard_normal((16, 32)) / np.sqrt(32)
SIZES = {"i": 32, "o": 16}


@pytest.mark.parametrize(
    "text",
    [
        "V[o,i] = A[o,r] * B[r,i] + C[o,s] * D[s,i]\ny[b,o] = x[b,i] * V[o,i]",
        "y[b,o] = x[b,i] * (W[o,i] + S[o,i])",
        "V[o,i] = g[o] * W[o,i] / sqrt(sum[i](W[o,i] * W[o,i]))\ny[b,o] = x[b,i] * V[o,i]",
        "y[b,o] = x[b,i] * tanh(V[o,i])",
        "y[b,o] = x[b,i] * softplus(V[o,i]) * g[o]",
        "y[b,o] = x[b,i] * exp(V[o,i]) * Z[o,i]",
        "y[b,o] = x[b,i] * normalize[i](V[o,i]) * g[o]",
        "y[b,o] = x[b,i] * A[r,i] * A[r,j] * B[o,j]",
        "y[b,i] = x[b,i] * tanh(g[i])",
        "y[b,i] = alpha * x[b,i] * exp(g[i])",
    ],
)
def test_every_parameter_learns_and_the_deviation_holds(text: str) -> None:
    torch = pytest.importorskip("torch")
    graph = tn.layer(
        text,
        inputs="x",
        **{k: n for k, n in {**SIZES, "r": 4, "s": 2}.items() if f"{k}]" in text or f"{k}," in text},
    )
    module, x = tn.module(graph, seed=0), torch.randn(512, 32, generator=torch.Generator().manual_seed(0))
    y = module(x)
    (y * torch.randn(y.shape, generator=torch.Generator().manual_seed(1))).sum().backward()
    assert all(float(each.grad.abs().max()) > 0 for each in module.parameters())
    assert 0.5 < float(y.detach().std()) < 2


@pytest.mark.parametrize(
    ("settings", "dead"),
    [
        ({"constants": {"W": FROZEN}}, "B"),
        ({"init": {"W": FROZEN}}, "B"),
        ({"init": {"W": FROZEN, "A": "zeros"}}, "A"),
        ({"init": {"W": FROZEN, "B": "zeros"}}, "B"),
    ],
)
def test_a_sum_with_a_frozen_weight_starts_at_it_and_learns(settings: dict[str, Any], dead: str) -> None:
    """Hu et al. (2021), LoRA."""
    text = "V[o,i] = W[o,i] + A[o,r] * B[r,i]\ny[b,o] = x[b,i] * V[o,i]"
    graph = tn.layer(text, inputs="x", r=4, **settings)
    arrays = tn.init(graph, dtype="float64")
    assert {name for name in ("A", "B") if not arrays[name].any()} == {dead}
    x = np.random.default_rng(1).standard_normal((5, 32))
    np.testing.assert_allclose(tn.compile(graph)(arrays, x), x @ FROZEN.T, rtol=1e-12)


def test_lines_of_weights_may_be_many() -> None:
    lines = ["V1[i,r1] = A0[i,r0] * A1[r0,r1]"]
    lines += [f"V{n}[i,r{n}] = V{n - 1}[i,r{n - 1}] * A{n}[r{n - 1},r{n}]" for n in range(2, 64)]
    graph = tn.layer(
        "\n".join([*lines, "y[b,r63] = x[b,i] * V63[i,r63]"]),
        inputs="x",
        i=8,
        **{f"r{n}": 16 for n in range(64)},
    )
    y = np.random.default_rng(0).standard_normal((64, 8))
    for array in tn.init(graph, dtype="float64").values():
        y = y @ array
    assert 0.03 < y.std() < 30


def test_what_no_start_can_do_is_said_with_the_line() -> None:
    graph = tn.layer("y[b,o] = x[b,i] * softplus(V[o,i])", inputs="x", i=64, o=4)
    with pytest.warns(
        tn.TensornetWarning, match=r"in 'y', .*softplus.* starts at [56]\.\d times (.|\n)*line 1: y\[b,o\]"
    ):
        tn.init(graph)


# ---------------------------------------------------------------------------- starts given as arrays


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int8, bool])
def test_a_parameter_starts_at_an_array(kind: type[Any]) -> None:
    value = (np.arange(6).reshape(2, 3) % 2).astype(kind)
    graph = tn.layer("y[b,o] = x[b,i] * W[o,i] + u[o]", inputs="x", init={"W": value})
    assert graph.bound == {"i": 3, "o": 2}
    for each in (graph, tn.Graph.from_json(graph.to_json()), tn.layer(str(graph), init={"W": value})):
        assert each == graph
        assert np.array_equal(tn.init(each)["W"], value.astype("float32"))
    inner = tn.model(lambda x: graph(x, scope="a"), inputs="x[b,i]")
    assert np.array_equal(tn.init(inner)["a.W"], value)
    x = np.ones((1, 3))
    np.testing.assert_allclose(tn.compile(graph)(tn.init(graph, dtype="float64"), x)[0], value.sum(1))


def test_a_parameter_starts_at_a_tensor_of_torch() -> None:
    torch = pytest.importorskip("torch")
    weight = torch.nn.Linear(3, 2).weight
    for value in (weight, weight.detach().bfloat16()):
        module = tn.module(tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", init={"W": value}))
        assert torch.equal(module.W.detach(), value.detach().float())


def test_complex_starts_stay_complex() -> None:
    graph = tn.layer("y[i] = x[i] * W[i]", inputs="x", init={"W": np.array([1 + 2j, 3j])})
    assert tn.init(graph, dtype="complex64")["W"].tolist() == [1 + 2j, 3j]
    with pytest.raises(tn.DtypeError, match=r"'W' starts at complex numbers(?s:.*)complex64"):
        tn.init(graph)


@given(products())
@examples(34)  # 20 by day
def test_variance_is_kept_by_random_products(case: tuple[str, dict[str, int]]) -> None:
    text, sizes = case
    graph = tn.layer(text, inputs="x", **sizes)
    shape = [graph.bound[dim[0].name] for dim in graph.inputs[0].dims[1:]]
    assert 0.3 < mean_square(graph, shape, 12, 400) < 3.0
