"""Initial values: the variance of the output equals that of the input, on layers and random products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.initialise import starts


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


@given(products())
def test_variance_is_kept_by_random_products(case: tuple[str, dict[str, int]]) -> None:
    text, sizes = case
    graph = tn.layer(text, inputs="x", **sizes)
    moments = []
    for seed in range(12):
        x = np.random.default_rng(seed).standard_normal([400, *(graph.bound[a] for a in axes_of_x(graph))])
        y = tn.compile(graph)(tn.init(graph, seed=seed, dtype="float64"), x)
        moments.append(np.mean(y**2))
    assert 0.3 < np.mean(moments) < 3.0


def axes_of_x(graph: tn.Graph) -> list[str]:
    return [dim[0].name for dim in graph.inputs[0].dims[1:]]


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
    shape = [
        int(dim[0].size.subs(dict(graph.bound))) if len(dim) == 1 else 64 for dim in graph.inputs[0].dims[1:]
    ]
    moments = []
    for seed in range(8):
        x = np.random.default_rng(seed).standard_normal([256, *shape])
        moments.append(np.mean(tn.compile(graph)(tn.init(graph, seed=seed, dtype="float64"), x) ** 2))
    assert 0.6 < np.sqrt(np.mean(moments)) < 1.6


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
