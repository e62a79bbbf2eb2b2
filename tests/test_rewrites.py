"""Rewrites: that each keeps every value, and that each is made where it pays."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.graph.elements import holding, of_dtype, of_tensors
from tensornet.graph.rewriting.distributing import distribute
from tensornet.graph.rewriting.fusing import fuse
from tensornet.graph.rewriting.pruning import prune
from tensornet.graph.rewriting.sharing import share
from tensornet.graph.rewriting.simplifying import simplify
from tensornet.planning.device import default_profile
from tensornet.planning.plans import Step

from . import reference
from .strategies import Block, blocks

CPU = default_profile("cpu")


# ---------------------------------------------------------------------------- every rewrite

_ASKED = itertools.count()
REWRITES = {"prune": prune, "share": share, "fuse": fuse, "simplify": simplify,
            "distribute": lambda graph: distribute(graph, lambda part: next(_ASKED))}  # fmt: skip
"""Each rewrite; to `distribute` what it asks about first, the changed form, is always the cheaper."""


@given(blocks(), st.sampled_from(sorted(REWRITES)))
def test_rewrites_keep_the_value(case: Block, name: str) -> None:
    graph = case.graph()
    changed = REWRITES[name](graph)
    inputs = dict(zip((leaf.name for leaf in graph.inputs), case.arrays(0), strict=True))
    arrays = {**case.parameters(0), **inputs}
    sizes = dict.fromkeys(graph.open_sizes, 2)
    for output, expected in reference.run(graph, arrays, sizes).items():
        np.testing.assert_allclose(
            reference.run(changed, arrays, sizes)[output], expected, rtol=1e-9, atol=1e-9
        )


def test_rewrites_print_as_mathematics() -> None:
    graph = tn.layer(
        "h[b,p] = x[b,i]*U[p,i]\ny[b,q] = h*V[q,p]\nunused[b] = x[b,i]\nz[b] = exp(y[b,q])*w[q] + exp(y[b,r])*v[r]",
        inputs="x", outputs="z unused",
    )  # fmt: skip
    graph = replace(graph, outputs=("z",))
    assert [str(equation) for equation in simplify(graph).equations] == [
        "y[b,q] = x[b,i] * U[p,i] * V[q,p]",
        "shared[b,q] = exp(y[b,q])",
        "z[b] = shared[b,q] * w[q] + shared[b,r] * v[r]",
    ]


def test_an_axis_sized_by_its_name_alone_is_not_renamed() -> None:
    graph = tn.layer("z[j] = x[(d,h),j]\ny[h] = z[j] * w[j] * v[h]", inputs="x[i,j]", d=2, h=3, i=6, j=4)
    arrays = {
        name: np.random.default_rng(0).standard_normal(s) for name, s in [("x", (6, 4)), ("w", 4), ("v", 3)]
    }
    np.testing.assert_allclose(reference.run(simplify(graph), arrays)["y"], reference.run(graph, arrays)["y"])


@given(blocks())
def test_what_tensors_hold_is_what_their_steps_make(case: Block) -> None:
    """Told of the equations alone, before anything is planned."""
    seen = {name: of_dtype(dtype, "float64") for name, dtype in case.dtypes}
    graph = holding(case.graph(), seen)
    told = of_tensors(graph)
    for step in tn.plan(graph, profile=CPU).steps:
        if isinstance(step, Step) and step.equation.name in told:
            assert told[step.equation.name] is step.element, str(step.equation)


# ---------------------------------------------------------------------------- sums multiplied out


@pytest.mark.parametrize("text", [
    "y6[r] = 2 * concat[r](x[r], 2 * x[r]) + 1\ny7 = 0.5 * y6[r] / 3",
    "y6[r] = pad(x[r], r=(1,2)) + 1\ny7 = 3 * y6[r]",
    "h[b,p] = x[b]*U[p] + 1\ny[b] = h[b,q]",
])  # fmt: skip
def test_a_constant_is_counted_by_the_size_of_an_axis_that_is_made_anew(text: str) -> None:
    """Multiplying a sum out leaves a term without the summed axis, which then counts by its size."""
    graph = tn.layer(text, inputs="x")
    x, parameters = np.array([1.0, 2.0, 4.0]), {"U": np.array([2.0, 3.0])}
    given = {leaf.name: parameters[leaf.name] for leaf in graph.parameters}
    expected = reference.run(graph, {"x": x, **given}, dict.fromkeys(graph.open_sizes, 3))
    (name,) = graph.outputs
    np.testing.assert_allclose(tn.compile(graph)(given, x), expected[name], rtol=1e-12)


def test_absorption_of_the_value_projection() -> None:
    """Projecting after the average over 50,176 inputs is far cheaper than before it."""
    graph = tn.layer(
        "v[b,m,c] = x[b,m,i] * V[c,i]\ny[b,n,c] = a[b,n,m] * v[b,m,c]",
        inputs="x a",
        m=50_176,
        n=512,
        i=261,
        c=1024,
    )
    found = tn.plan(graph, profile=CPU, b=1)
    assert found.flops == 2 * 512 * (50_176 * 261 + 261 * 1024)
    before = next(row for row in found.alternatives if row.name == "as written")
    assert before.flops == 2 * 50_176 * 1024 * (261 + 512)


def test_bias_is_multiplied_out_only_where_it_pays() -> None:
    text = "h[b,r] = x[b,i]*A[r,i] + u[r]\ny[b,o] = h[b,r]*B[o,r]"
    wide = tn.layer(text, inputs="x", i=16, r=512, o=16)
    assert tn.plan(wide, profile=CPU, b=100_000).flops < 2 * 100_000 * 16 * 512
    narrow = tn.layer(text, inputs="x", i=512, r=4, o=512)
    assert tn.plan(narrow, profile=CPU, b=1000).flops == 2 * 1000 * 4 * (512 + 512)


def test_sums_are_multiplied_out_within_sums_too() -> None:
    """The value's bias does not keep its projection before the average, whether the output has one or not."""
    flops = {
        bias: tn.plan(
            tn.models.attention(1024, 1, keys=261, out_bias=bias), profile=CPU, b=1, i=512, j=50_176
        ).flops
        for bias in (False, True)
    }
    assert flops[False] == flops[True] < 30e9


def test_cross_attention_costs_in_proportion_to_its_inputs() -> None:
    graph = tn.models.attention(1024, 1, keys=261)
    flops = [tn.plan(graph, profile=CPU, b=1, i=512, j=n * 25_088).flops for n in (1, 2, 3)]
    assert flops[2] - flops[1] == flops[1] - flops[0]
    assert flops[0] < 0.6 * flops[1]
