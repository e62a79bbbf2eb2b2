"""Weights in the place of which equations stand: values, counts, shapes, starts, blocks, ties, errors.

The reference is the dense graph, given what numpy.einsum makes of the factors in float64.
"""

from __future__ import annotations

import itertools
import math
import re
import string
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.weights.factorizations import FACTORIZATIONS, factored, tensorize
from tensornet.weights.substitution import replaced

from .conftest import examples, normal, sampled, those_of

Arrays = dict[str, np.ndarray]

LAYER = tn.layer("y[n,o] = x[n,i] * W[o,i] + b[o]", inputs="x", i=12, o=8)
BTT = "W[(a,b),(c,d)] = P[a,c,r] * Q[r,b,d]"


def drawn(graph: tn.Graph, seed: int = 0) -> Arrays:
    """Arrays of no special value: some parameters start at zero."""
    generator = np.random.default_rng(seed)
    return {
        name: array + 0.1 * generator.standard_normal(array.shape)
        for name, array in tn.init(graph, seed=seed, dtype="float64").items()
    }


def product(text: str, factors: Mapping[str, np.ndarray]) -> np.ndarray:
    """What numpy.einsum makes of an equation `W[(a,b),c] = P[a,r] * Q[r,b,c]`, whatever its axes are called."""
    left, right = text.split(" = ")
    inside, tensors = left[left.index("[") + 1 : -1], re.findall(r"([\w.]+)\[([^]]*)\]", right)
    names = dict.fromkeys(re.findall(r"\w+", ",".join(axes for _, axes in tensors)))
    letters = dict(zip(names, string.ascii_letters, strict=False))

    def compact(axes: str) -> str:
        return "".join(letters[name] for name in re.findall(r"\w+", axes))

    read = ",".join(compact(axes) for _, axes in tensors)
    whole = np.einsum(f"{read}->{compact(inside)}", *(factors[name] for name, _ in tensors))
    sizes = iter(whole.shape)
    groups = re.findall(r"\([^)]*\)|\w+", inside)
    return whole.reshape([math.prod(itertools.islice(sizes, each.count(",") + 1)) for each in groups])


def dense(graph: tn.Graph, substituted: tn.Graph, params: Arrays) -> Arrays:
    """The parameters of the graph as it was: each weight multiplied out by numpy."""
    found = {leaf.name: params[leaf.name] for leaf in graph.parameters if leaf.name in params}
    for each in replaced(graph, substituted):
        (equation,) = each.program.equations
        found[each.path] = product(str(equation), params)
    return found


def check(graph: tn.Graph, substituted: tn.Graph, *inputs: np.ndarray) -> None:
    """Equal values at arbitrary factors; and the graph reads back from its text."""
    params = drawn(substituted)
    expected = tn.compile(graph)(dense(graph, substituted, params), *inputs)
    np.testing.assert_allclose(tn.compile(substituted)(params, *inputs), expected, rtol=1e-9, atol=1e-9)
    assert tn.Graph.from_json(substituted.to_json()) == substituted


X, IMAGES = normal(3, 12), normal(2, 3, 32, 32)


def as_if(substituted: tn.Graph, weight: Callable[[Arrays], np.ndarray]) -> Arrays:
    """A layer in the place of whose weight stands one that its factors make; and the factors."""
    params = drawn(substituted)
    expected = X @ weight(params).T + params["b"]
    np.testing.assert_allclose(tn.compile(substituted)(params, X), expected, rtol=1e-12)
    return params


@pytest.fixture(scope="module")
def vit() -> tn.Graph:
    return tn.models.vit(32, 8, 32, 3, 4, 48, 10)


# ---------------------------------------------------------------------------- values


KINDS = [name for name in FACTORIZATIONS if name != "dense"]
TEXTS = [
    "W[(a,b),(c,d)] = P[a,c,r] * Q[r,b,d]",
    "W[(a,b),(c,d)] = G[r] * U[a,r] * V[b,r] * X[c,r] * Y[d,r]",
    "W[(b,a),(c,d)] = P[a,r] * Q[r,b,c,s] * R[s,d]",
    "W[(a,b),(d,c)] = P[a,b,r] * Q[r,c,d]",
]


@examples(80)
@given(st.sampled_from([*KINDS, *TEXTS]), st.tuples(*[st.integers(1, 4)] * 4), st.integers(1, 3))
def test_a_layer_computes_what_the_product_of_the_factors_would(
    form: str, sizes: tuple[int, int, int, int], rank: int
) -> None:
    """Of the forms of the table and of texts; and it has as many parameters as its factors say."""
    a, b, c, d = sizes
    graph = tn.layer("y[n,o] = tanh(x[n,i] * W[o,i] + u[o])", inputs="x", o=a * b, i=c * d)
    if form in TEXTS:
        known = {"a": a, "b": b, "c": c, "d": d, "r": rank, "s": 2}
        given = {name: known[name] for name in ("acrs" if ",s]" in form else "acr")}
        substituted = tn.substitute(graph, {"W": form}, **given)
        factors = re.findall(r"\[([^]]*)\]", form.split(" = ")[1])
        count = sum(math.prod(known[axis] for axis in axes.split(",")) for axes in factors)
    else:
        substituted = tn.substitute(graph, {"W": form.upper()}, rank=rank, modes=((a, b), (c, d)))
        count = {
            "tucker": rank**4 + rank * (a + b + c + d),
            "cp": rank * (a + b + c + d),
            "tt": rank * a + rank**2 * (b + c) + rank * d,
            "tr": rank**2 * (a + b + c + d),
            "blocktt": rank * (a * c + b * d),
            "kronecker": rank * (a * c + b * d),
            "low_rank": rank * (a * b + c * d),
            "btt": rank * b * c * (a + d),
            "monarch": b * c * (a + d),
        }[form]
    assert tn.parameter_count(substituted) == count + a * b
    check(graph, substituted, normal(3, c * d))


@pytest.mark.parametrize(
    "kind",
    sampled(["tucker", "cp", "tt", "tr", "kronecker", "blocktt", "low_rank"], ["tucker", "tr", "blocktt"]),
)
def test_a_tensor_of_any_order(kind: str) -> None:
    graph = tn.layer("y[n,o] = x[n,c,u,v] * F[o,c,u,v]", inputs="x", o=6, c=4, u=3, v=3)
    x = normal(2, 4, 3, 3)
    check(graph, tn.substitute(graph, {"F": kind}, rank=2), x)
    check(graph, tn.substitute(graph, {"F": kind}, rank=2, modes=2), x)


def test_a_fraction_of_the_parameters() -> None:
    graph = tn.layer("y[n,o] = x[n,i] * W[o,i]", inputs="x", i=256, o=256)
    for kind in ("low_rank", "cp", "tt", "tr", "blocktt", "kronecker", "btt"):
        share = tn.parameter_count(tn.substitute(graph, {"W": kind}, rank=0.25)) / 256**2
        assert abs(share - 0.25) <= 0.025, kind


def test_several_lines_and_every_function_of_the_language() -> None:
    text = """
        A[o,r] = P[o,s] * Q[s,r]
        W[o,i] = tanh(A[o,r] * B[r,i]) + 0.5 * A[o,r] * abs(C[i,r])
    """

    def weight(p: Arrays) -> np.ndarray:
        a = p["W.P"] @ p["W.Q"]
        return np.tanh(a @ p["W.B"]) + 0.5 * a @ np.abs(p["W.C"]).T

    substituted = tn.substitute(LAYER, {"W": text}, r=2, s=3)
    assert [leaf.name for leaf in substituted.parameters] == ["W.P", "W.Q", "W.B", "W.C", "b"]
    params = as_if(substituted, weight)
    (replacement,) = replaced(LAYER, substituted)
    inside = {leaf.name: params[leaf.name] for leaf in replacement.program.parameters}
    np.testing.assert_allclose(tn.compile(replacement.program)(inside), weight(params), rtol=1e-12)


def test_a_block_within_a_text() -> None:
    text = """
        def low(a):
            a[k,r]: input
            y[k,i] = a[k,r] * B[r,i]
        A[k,r]: parameter
        W = low(A, scope="inner")
    """
    substituted = tn.substitute(LAYER, {"W": text}, r=2)
    assert {leaf.name for leaf in substituted.parameters} == {"W.A", "W.inner.B", "b"}
    as_if(substituted, lambda p: p["W.A"] @ p["W.inner.B"])


# ---------------------------------------------------------------------------- sizes and names


def test_sizes_follow_from_the_weight_and_formulas_from_the_sizes() -> None:
    a, r, width = sympy.symbols("a r D")
    graph = tn.layer("y[n,f] = x[n,d] * W[f,d]", inputs="x", d=width, f=4 * width)
    substituted = tn.substitute(graph, {"W": "W[(a,b),d] = P[a,d,r] * Q[r,b]"}, a=4, r="r")
    assert sympy.expand(tn.parameter_formula(substituted) - (a * width * r + r * width)) == 0
    assert tn.parameter_count(substituted, D=16, r=2) == 4 * 16 * 2 + 2 * 16
    low = tn.substitute(graph, {"W": "W[f,d] = P[f,r] * Q[r,d]"}, r="D/8")
    assert sympy.expand(tn.parameter_formula(low) - 5 * width**2 / 8) == 0
    still_open = tn.layer("y[n,o] = x[n,i] * W[o,i]", inputs="x")
    low = tn.substitute(still_open, {"W": "W[o,i] = A[o,r] * B[r,i]"}, r=2)
    assert tn.parameter_count(low, o=4, i=5) == 18
    bound = tn.layer("y[n,o] = x[n,i] * W[o,i]", inputs="x", i=64, o=64)
    i, o = sympy.symbols("i o")
    low = tn.substitute(bound, {"W": "W[p,q] = P[p,r] * Q[r,q]"}, r=4)
    assert sympy.expand(tn.parameter_formula(low) - (o * r + i * r)) == 0


def test_size_names_that_the_model_has_give_way() -> None:
    graph = tn.layer("y[b,o] = x[b,r] * W[o,r]", inputs="x", r=12, o=8)
    substituted = tn.substitute(graph, {"W": "W[(a,b),i] = P[a,r] * Q[r,b,i]"}, a=2, r=3)
    assert [tuple(leaf.shape) for leaf in substituted.parameters] != []
    shapes = {name: array.shape for name, array in tn.init(substituted).items()}
    assert shapes == {"W.P": (2, 3), "W.Q": (3, 4, 12)}
    check(graph, substituted, normal(5, 12))


def test_axes_that_a_weight_is_made_of_are_kept(vit: tn.Graph) -> None:
    substituted = tn.substitute(vit, {"blocks.0.attention.Wq": "tt"}, rank=2)
    (each,) = replaced(vit, substituted)
    shapes = {name: array.shape for name, array in tn.init(each.program).items()}
    assert [shape[0 if name.endswith("1") else 1] for name, shape in shapes.items()][:2] == [4, 8]  # h, d
    named = tn.substitute(vit, {"blocks.0.attention.Wq": "W[(h,d),e] = A[h,r] * B[r,d,e]"}, r=2)
    assert tn.init(named)["blocks.0.attention.Wq.A"].shape == (4, 2)
    check(vit, substituted, IMAGES)
    check(vit, named, IMAGES)


def test_new_names_never_clash() -> None:
    once = tn.layer("z[n,o] = x[n,i] * A[o,i]", inputs="x")
    graph = tn.model(
        lambda x: tn.layer("y[n,o] = x[n,i] * W[o,i]", inputs="x", o=6)(once(x, scope="W")),
        inputs="x[n,i]",
        i=4,
        o=4,
    )
    assert {leaf.name for leaf in graph.parameters} == {"W", "W.A"}
    substituted = tn.substitute(graph, {"W": "W[o,i] = A[o,r] * B[r,i]"}, r=2)
    assert {leaf.name for leaf in substituted.parameters} == {"W.A", "W.A_1", "W.B"}
    check(graph, substituted, normal(3, 4))


# ---------------------------------------------------------------------------- starts


@pytest.mark.parametrize("start", [None, 0.02, "zeros"])
@pytest.mark.parametrize("kind", [*KINDS, BTT])
def test_a_weight_keeps_its_deviation(kind: str, start: Any) -> None:
    """Over many draws; one draw of a product of small factors is off by more."""
    init = {} if start is None else {"W": start}
    graph = tn.layer("y[n,o] = x[n,i] * W[o,i]", inputs="x", i=64, o=64, init=init)
    given = {"a": 8, "c": 8, "r": 8} if kind is BTT else {"rank": 8}
    substituted = tn.substitute(graph, {"W": kind}, **given)
    (each,) = replaced(graph, substituted)
    program = tn.compile(each.program)
    names = [leaf.name for leaf in each.program.parameters]
    squares = []
    for seed in range(40):
        params = tn.init(substituted, seed=seed, dtype="float64")
        squares.append((program({name: params[name] for name in names}) ** 2).mean())
    wanted = {None: 1 / 8, 0.02: 0.02, "zeros": 0.0}[start]
    assert math.sqrt(np.mean(squares)) == pytest.approx(wanted, rel=0.15)
    if start == "zeros":  # all but one factor are alive, so that it learns
        assert sum(not params[name].any() for name in names) == 1


def test_an_array_gives_its_deviation() -> None:
    array = np.random.default_rng(0).normal(0, 3, (64, 64))
    graph = tn.layer("y[n,o] = x[n,i] * W[o,i]", inputs="x", i=64, o=64, init={"W": array})
    substituted = tn.substitute(graph, {"W": "low_rank"}, rank=16)
    params = tn.init(substituted, dtype="float64")
    assert (params["W.U"] @ params["W.V"]).std() == pytest.approx(3, rel=0.1)


@pytest.mark.parametrize("init", [{}, {"W": 0.5}])
def test_what_is_added_to_a_weight_starts_at_zero(init: dict[str, Any]) -> None:
    graph = tn.layer("y[n,o] = x[n,i] * W[o,i]", inputs="x", i=64, o=64, init=init)
    substituted = tn.substitute(graph, {"W": "W = W[o,i] + A[o,r] * B[r,i]"}, r=4)
    params, before = tn.init(substituted), tn.init(graph)
    assert params["W.base"].std() == pytest.approx(before["W"].std(), rel=0.02)
    assert params["W.A"].std() > 0.01
    assert not params["W.B"].any()
    (each,) = replaced(graph, substituted)
    assert each.kept == "W.base"


def test_a_start_that_is_said_holds() -> None:
    text = "W[o,i] = A[o,r] * B[r,i]"
    substituted = tn.substitute(LAYER, {"W": text}, r=2, init={"A": "ones", "B": 0.25})
    params = tn.init(substituted, dtype="float64")
    assert (params["W.A"] == 1).all()
    assert math.sqrt((params["W.B"] ** 2).mean()) == pytest.approx(0.25)


# ---------------------------------------------------------------------------- what was there, and what else is


@pytest.mark.parametrize(
    "text", ["W = W[o,i] + A[o,r] * B[r,i]", "V[o,i] = V + A[o,r] * B[r,i]", "W = W + A[o,r] * B[r,i]"]
)
def test_a_weight_reads_itself(text: str) -> None:
    substituted = tn.substitute(LAYER, {"W": text}, r=2)
    assert [leaf.name for leaf in substituted.parameters] == ["W.base", "W.A", "W.B", "b"]
    params = as_if(substituted, lambda p: p["W.base"] + p["W.A"] @ p["W.B"])
    frozen = tn.freeze(substituted, params, names="*.base")
    expected = tn.compile(substituted)(params, X)
    np.testing.assert_allclose(tn.compile(frozen)(those_of(frozen, params), X), expected, rtol=1e-12)


def test_other_leaves_and_new_constants_are_read() -> None:
    mask = np.random.default_rng(1).integers(0, 2, (8, 12)).astype("float64")
    text = "W[o,i] = mask[o,i] * A[o,r] * B[r,i] * b[o]"
    substituted = tn.substitute(LAYER, {"W": text}, r=2, inputs="b", constants={"mask": mask})
    assert [leaf.name for leaf in substituted.parameters] == ["W.A", "W.B", "b"]
    assert [leaf.name for leaf in substituted.constants] == ["W.mask"]
    as_if(substituted, lambda p: mask * (p["W.A"] @ p["W.B"]) * p["b"][:, None])


def test_a_leaf_of_another_block_is_handed_to_it(vit: tn.Graph) -> None:
    text = "W[o,i] = S[o,j] * T[j,k] * head.W[k,i]"
    substituted = tn.substitute(vit, {"blocks.*.mlp.W1": text}, inputs="head.W", j=5)
    assert len(list(substituted.parts)) == len(list(vit.parts))  # the blocks are still one
    check(vit, substituted, IMAGES)
    near = tn.substitute(vit, {"*.Wk": "W[o,i] = S[o,j] * Wq[j,i]"}, inputs="Wq")
    check(vit, near, IMAGES)
    assert tn.parameter_count(near) == tn.parameter_count(vit)  # S is as large as Wk was


# ---------------------------------------------------------------------------- blocks and ties


def test_weights_share_factors_that_are_told(vit: tn.Graph) -> None:
    text = "W[o,i] = A[o,r] * g[r] * B[r,i]"
    substituted = tn.substitute(vit, {"*.Wq": text, "*.W1": text}, r=3, shared="A, B")
    names = {leaf.name for leaf in substituted.parameters} - {leaf.name for leaf in vit.parameters}
    expected = {f"blocks.{n}.{each}.g" for n in range(3) for each in ("attention.Wq", "mlp.W1")}
    expected |= {f"blocks.{each}.{factor}" for each in ("attention.Wq", "mlp.W1") for factor in "AB"}
    assert names == expected
    assert len({call.graph for call in substituted.calls}) == len({call.graph for call in vit.calls})
    assert tn.Graph.from_json(substituted.to_json()) == substituted
    check(vit, substituted, IMAGES)
    formula = tn.parameter_formula(tn.substitute(vit, {"*.Wq": text}, r="r", shared="A B"))
    whole = tn.parameter_formula(tn.substitute(vit, {"*.Wq": text}, r="r"))
    rank, width = sympy.Symbol("r"), sympy.Symbol("D")
    assert sympy.simplify(sympy.sympify(str(whole - formula)) - 4 * rank * width) == 0


def test_shared_factors_start_so_that_every_weight_keeps_its_deviation() -> None:
    text = "h[b,k] = x[b,i] * V[k,i]\ny[b,o] = h[b,k] * W[o,k]"
    graph = tn.layer(text, inputs="x", i=64, k=64, o=64, init={"V": 0.5, "W": 0.1})
    made = tn.substitute(graph, {"*": ("fact_tt", 16)})
    values = tn.merge(graph, made, tn.init(made, seed=0, dtype="float64"))
    assert values["V"].std() == pytest.approx(0.5, rel=0.25)
    assert values["W"].std() == pytest.approx(0.1, rel=0.25)


def test_calls_of_other_weights_become_blocks_of_their_own(vit: tn.Graph) -> None:
    weights = {"*.W1": "tt", "blocks.1.*.W1": "W[o,i] = A[o,r] * B[r,i]", "blocks.2.*.W2": "kronecker"}
    substituted = tn.substitute(vit, weights, rank=2, r=3)
    blocks = [call.graph for call in substituted.calls if call.scope.startswith("blocks")]
    assert len(set(blocks)) == 3
    names = [leaf.name for leaf in substituted.parameters]
    assert {"blocks.0.mlp.W1.G4", "blocks.1.mlp.W1.A", "blocks.2.mlp.W2.A2"} <= set(names)
    check(vit, substituted, IMAGES)


def test_what_came_out_is_substituted_again(vit: tn.Graph) -> None:
    once = tn.substitute(vit, {"*.W1": "low_rank"}, rank=4)
    twice = tn.substitute(once, {"*.W1.U": "low_rank", "*.W2": "kronecker"}, rank=2)
    assert {leaf.name for leaf in twice.parameters} >= {"blocks.0.mlp.W1.U.V", "blocks.0.mlp.W1.V"}
    assert [each.path for each in replaced(vit, twice)][:2] == ["blocks.0.mlp.W1", "blocks.0.mlp.W2"]
    check(once, twice, IMAGES)


@pytest.mark.parametrize("text", ["low_rank", "E[(a,b),(c,d)] = P[a,c,r] * Q[r,b,d]"])
def test_a_tied_weight_is_replaced_once(text: str) -> None:
    """The embedding of source, target and logits: three calls, of two blocks."""
    graph = tn.models.transformer(20, 16, 1, 2, 24)
    given = {"rank": 4} if text == "low_rank" else {"a": 5, "c": 4, "r": 2}
    substituted = tn.substitute(graph, {"shared.E": text}, **given)
    tied = [leaf.name for leaf in substituted.leaves if leaf.name.startswith("shared")]
    assert len(tied) == 2
    (each,) = replaced(graph, substituted)
    assert each.path == "shared.E"
    tokens = np.random.default_rng(0).integers(0, 20, (2, 2, 5))
    check(graph, substituted, tokens[0], tokens[1])


def test_the_plan_goes_through_the_factors() -> None:
    graph = tn.layer("y[n,o] = x[n,i] * W[o,i]", inputs="x", i=1024, o=1024)
    plan = tn.plan(tn.substitute(graph, {"W": "low_rank"}, rank=16), n=64)
    assert plan.flops == 2 * 64 * 16 * 2048


# ---------------------------------------------------------------------------- the table


def test_a_form_is_one_equation() -> None:
    parts = (("o1", "o2"), ("i1", "i2"))
    shown = {name: str(factored(name, parts, ((4, 6), (3, 5)), 2)) for name in FACTORIZATIONS}
    assert shown == {
        "dense": "W[o1,o2,i1,i2]",
        "tucker": "G[r1,r2,r3,r4] * U1[o1,r1] * U2[o2,r2] * U3[i1,r3] * U4[i2,r4]",
        "cp": "U1[o1,r] * U2[o2,r] * U3[i1,r] * U4[i2,r]",
        "tt": "G1[o1,r1] * G2[r1,o2,r2] * G3[r2,i1,r3] * G4[r3,i2]",
        "blocktt": "G1[o1,i1,r1] * G2[r1,o2,i2]",
        "kronecker": "A1[r,o1,i1] * A2[r,o2,i2]",
        "low_rank": "U[o1,o2,r] * V[r,i1,i2]",
        "tr": "G1[r1,o1,r2] * G2[r2,o2,r3] * G3[r3,i1,r4] * G4[r4,i2,r1]",
        "btt": "L[o1,o2,i1,r] * R[o2,i1,r,i2]",
        "monarch": "L[o1,o2,i1] * R[o2,i1,i2]",
    }


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("kind", "ins", "outs"),
    [
        *((kind, (4, 6), (3, 5)) for kind in KINDS),
        *(
            (kind, ins, outs)
            for kind in KINDS
            if kind not in ("btt", "monarch")  # which are of two modes
            for ins, outs in (((4,), (3,)), ((2, 3, 2), (3, 1, 2)))
        ),
    ],
)
def test_layers_have_the_forms_of_the_table(
    kind: str, ins: tuple[int, ...], outs: tuple[int, ...], bias: bool
) -> None:
    layer = tn.models.linear(ins, outs, factorization=kind, rank=2, bias=bias)
    i, o = math.prod(ins), math.prod(outs)
    dense = tn.layer("y[...,o] = x[...,i] * W[o,i]", inputs="x", i=i, o=o)
    substituted = tn.substitute(dense, {"W": kind}, rank=2, modes=(outs, ins))
    assert tn.parameter_count(layer) == tn.parameter_count(substituted) + bias * o
    params = drawn(layer)
    x = normal(2, 3, i)
    factors = [array for name, array in params.items() if name != "bias"]
    letters = {"tucker": "GAB", "cp": "AB", "low_rank": "UV", "kronecker": "A"}.get(kind, "GLR")
    assert {name[0] for name in params if name != "bias"} <= {*letters}
    moved = dict(zip((leaf.name for leaf in substituted.parameters), factors, strict=True))
    expected = tn.compile(substituted)(moved, x) + (params["bias"].reshape(-1) if bias else 0)
    np.testing.assert_allclose(tn.compile(layer)(params, x), expected, rtol=1e-10, atol=1e-12 * bias)


@pytest.mark.parametrize(
    "kind", sampled(["dense", "tucker", "cp", "tt", "tr", "low_rank"], ["dense", "tucker", "tt"])
)
def test_a_stem_has_a_kernel_of_factors(kind: str) -> None:
    stem = tn.models.convolutional_stem(20, 20, 3, 8, factorization=kind, rank=2)
    (line,) = (str(each) for each in stem.equations if each.name == "z")
    kernel = "F[o,c,u,v] = " + line.split("] * ", 1)[1]
    params = drawn(stem)
    plain = tn.models.convolutional_stem(20, 20, 3, 8)
    whole = {"gain": params["gain"], "bias": params["bias"], "F": product(kernel, params)}
    x = normal(1, 3, 20, 20)
    np.testing.assert_allclose(
        tn.compile(stem)(params, x), tn.compile(plain)(whole, x), rtol=1e-9, atol=1e-12
    )


@given(st.integers(1, 5000), st.integers(1, 6))
def test_parts_of_a_size(size: int, modes: int) -> None:
    parts = tensorize(size, modes)
    assert math.prod(parts) == size
    assert len(parts) == modes
    assert list(parts) == sorted(parts)
    if modes == 2:  # the divisor nearest to the root
        assert parts[0] == max(n for n in range(1, math.isqrt(size) + 1) if size % n == 0)


def test_parts_of_common_sizes() -> None:
    assert tn.models.tensorize(768, 3) == (8, 8, 12)
    assert tn.models.tensorize(3072, 3) == (12, 16, 16)
    assert tn.models.tensorize(2**40, 12) == (8,) * 8 + (16,) * 4


# ---------------------------------------------------------------------------- several weights


def test_a_weight_is_replaced_after_another_that_reads_it() -> None:
    first = tn.substitute(LAYER, {"b": "v[o] = W[o,i] * c[i]"}, inputs="W")
    second = tn.substitute(first, {"W": "W[o,i] = A[o,r] * B[r,i]"}, r=2)
    assert [leaf.name for leaf in second.parameters] == ["W.A", "W.B", "b.c"]
    params = drawn(second)
    weight = params["W.A"] @ params["W.B"]
    expected = X @ weight.T + weight @ params["b.c"]
    np.testing.assert_allclose(tn.compile(second)(params, X), expected, rtol=1e-12)


def test_weights_of_one_shape_share_factors_whatever_their_sizes_are_called() -> None:
    graph = tn.layer("h[b,k] = x[b,i] * A[k,i]\ny[b,o] = h[b,k] * B[o,k]", inputs="x", i=6, k=6, o=6)
    made = tn.substitute(graph, {"*": "fact_tt"}, rank=2)
    assert [leaf.name for leaf in made.parameters] == ["A.S", "B.S", "U", "V"]
    assert tn.parameter_count(made) == 2 * 2 * 2 + 2 * 6 * 2


GATES = {
    "kept apart": "z[t,b,k,o] = x[t,b,i]*W[(k,o),i] + h[t-1,b,j]*R[(k,o),j]\n"
    "c[t,b,o] = sigmoid(z[t,b,1,o])*c[t-1,b,o] + sigmoid(z[t,b,0,o])*tanh(z[t,b,2,o])\n"
    "h[t,b,o] = sigmoid(z[t,b,3,o])*tanh(c[t,b,o])",
    "one by one": "p[t,b,o] = x[t,b,i]*W[(0,o),i] + h[t-1,b,j]*R[(0,o),j]\n"
    "q[t,b,o] = x[t,b,i]*W[(1,o),i] + h[t-1,b,j]*R[(1,o),j]\n"
    "h[t,b,o] = tanh(p)*sigmoid(q)",
}


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("gates", GATES)
def test_weights_stacked_by_gate_become_factors(gates: str, backend: str) -> None:
    """The parts of a dimension are as long as what is read of it says, though the factors have it as one."""
    declared = "W[(k,o),i]: parameter\nR[(k,o),j]: parameter\n"
    dense = tn.layer(declared + GATES[gates], inputs="x", k=4, o=5, i=6, j=5)
    low = tn.substitute(dense, {"W": "low_rank", "R": "low_rank"}, rank=2)
    x, factors = normal(3, 2, 6), drawn(low)
    weights = {name: factors[f"{name}.U"] @ factors[f"{name}.V"] for name in "WR"}
    expected = tn.compile(dense)(weights, x)
    found = tn.compile(low, backend=backend)(
        tn.to_backend(factors, backend), tn.to_backend({"x": x}, backend)["x"]
    )
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_full_rank_is_any_weight(kind: str) -> None:
    """'same' has room for every weight: as many parameters as the dense one at least, but in Monarch's form."""
    substituted = tn.substitute(LAYER, {"W": kind})
    count = tn.parameter_count(substituted) - 8
    assert count >= 96 or kind in ("monarch", "btt", "kronecker", "blocktt", "cp")
