"""Arrays brought into forms: held against NumPy's singular values, tensorly's decompositions, and brute force."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorly
from hypothesis import given
from hypothesis import strategies as st
from tensorly.decomposition import parafac, tensor_train, tucker

import tensornet as tn
from tensornet.fitting.approximating import approximate
from tensornet.fitting.least_squares import Settings
from tensornet.fitting.metrics import Metric
from tensornet.sizes import evaluate

from .conftest import examples, normal, stacked
from .differential import by_numpy
from .programs import records

Sizes = dict[str, int]

FORMS = dict(record[2:].split("\n", 1) for record in records("forms.txt"))
"""The equations of a weight, by the names of their forms."""
MODES, RANKS = "abcd", "pqrstxy"


def graph_of(text: str, sizes: Sizes) -> tn.Graph:
    used = {axis for axes in re.findall(r"\[(.*?)\]", text) for axis in re.findall(r"\w", axes)}
    return tn.layer(text, outputs="W", **{axis: size for axis, size in sizes.items() if axis in used})


def weight_of(graph: tn.Graph, factors: Any) -> Any:
    """The weight that the factors make, of the shape that its brackets say."""
    return by_numpy(graph, factors)["W"]


def random_factors(graph: tn.Graph, generator: np.random.Generator) -> dict[str, Any]:
    known = graph.bound
    shapes = {leaf.name: [evaluate(size, known) for size in leaf.shape] for leaf in graph.parameters}
    return {name: generator.standard_normal(shape) for name, shape in shapes.items()}


sizes_of_forms = st.fixed_dictionaries(
    {axis: st.integers(2, 5) for axis in MODES} | {axis: st.integers(1, 2) for axis in RANKS}
)


@pytest.mark.parametrize("name", FORMS)
@examples(8)
@given(sizes=sizes_of_forms, seed=st.integers(0, 2**20))
def test_what_is_of_the_form_comes_back(name: str, sizes: Sizes, seed: int) -> None:
    graph = graph_of(FORMS[name], sizes)
    weight = weight_of(graph, random_factors(graph, np.random.default_rng(seed)))
    found = approximate(graph, weight, settings=Settings(restarts=8, seed=seed))
    off = relative(weight, weight_of(graph, found.factors))
    assert off < 1e-6
    assert found.misfit.weight == pytest.approx(off, abs=1e-9)


@pytest.mark.parametrize("name", FORMS)
def test_the_error_is_that_of_the_factors(name: str) -> None:
    sizes = {"a": 3, "b": 4, "c": 3, "d": 2} | dict.fromkeys(RANKS, 2)
    graph, generator = graph_of(FORMS[name], sizes), np.random.default_rng(0)
    weight = generator.standard_normal(weight_of(graph, random_factors(graph, generator)).shape)
    found = approximate(graph, weight, settings=Settings(iterations=5))
    assert found.misfit.weight == pytest.approx(relative(weight, weight_of(graph, found.factors)), abs=1e-9)
    assert found.misfit.weight < 1 + 1e-9


@pytest.mark.parametrize(
    "name", ["low rank of tensors", "sum of Kronecker", "train", "Tucker", "CP of four", "ring"]
)
def test_full_rank_reproduces_anything(name: str) -> None:
    sizes = {"a": 3, "b": 2, "c": 2, "d": 3} | {"p": 3, "q": 2, "r": 12, "s": 6, "t": 6}
    sizes |= {"Tucker": {"r": 2, "s": 3}, "ring": dict.fromkeys("rst", 3)}.get(name, {})
    graph, generator = graph_of(FORMS[name], sizes), np.random.default_rng(0)
    weight = generator.standard_normal(weight_of(graph, random_factors(graph, generator)).shape)
    assert approximate(graph, weight, settings=Settings(restarts=3)).misfit.weight < 1e-5


# ---------------------------------------------------------------------------- against references


SPECTRA: list[tuple[str, Sizes, tuple[int, ...], Callable[[Any], Any]]] = [
    ("W[o,i] = A[o,r] * B[r,i]", {"r": 7}, (30, 50), lambda weight: weight),
    ("W[h,o,i] = A[o,h,r] * B[r,i,h]", {"r": 2}, (4, 6, 5), lambda weight: weight),
    (
        "W[(a,b),(c,d)] = P[r,a,c] * Q[r,b,d]",
        {"a": 3, "b": 4, "c": 4, "d": 5, "r": 3},
        (12, 20),
        lambda weight: weight.reshape(3, 4, 4, 5).transpose(0, 2, 1, 3).reshape(12, 20),
    ),
]
"""Low rank, of Eckart and Young; for each place of a batch; sums of Kronecker products, of Van Loan and Pitsianis."""


@pytest.mark.parametrize(("text", "sizes", "shape", "matrix"), SPECTRA)
def test_what_is_lost_are_the_singular_values_beyond_the_rank(
    text: str, sizes: Sizes, shape: tuple[int, ...], matrix: Callable[[Any], Any]
) -> None:
    weight = normal(*shape)
    values = np.linalg.svd(matrix(weight), compute_uv=False)
    lost = np.linalg.norm(values[..., sizes["r"] :]) / np.linalg.norm(values)
    assert approximate(tn.layer(text, **sizes), weight).misfit.weight == pytest.approx(lost, rel=1e-9)


def noisy(shape: tuple[int, ...], generator: np.random.Generator) -> Any:
    """Some products, each smaller than the one before, and noise."""
    total = 0.2 * generator.standard_normal(shape)
    for number in range(6):
        part = np.ones(())
        for size in shape:
            part = np.multiply.outer(part, generator.standard_normal(size))
        total = total + part / (1 + number)
    return total


THEIRS: dict[str, tuple[Callable[[Any], Any], Sizes]] = {
    "train": (
        lambda weight: tensorly.tt_to_tensor(tensor_train(weight, [1, 4, 5, 4, 1])),
        {"r": 4, "s": 5, "t": 4},
    ),
    "Tucker": (
        lambda weight: tensorly.tucker_to_tensor(tucker(weight, [3, 2, 2, 3], tol=1e-10)),
        {"p": 3, "q": 2, "r": 2, "s": 3},
    ),
    "W[a,b,c,d] = P[a,r] * Q[b,r] * R[c,r] * S[d,r]": (
        lambda weight: tensorly.cp_to_tensor(parafac(weight, 3, tol=1e-10, n_iter_max=200)),
        {"r": 3},
    ),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("form", THEIRS)
def test_decompositions_are_no_worse_than_those_of_tensorly(form: str, seed: int) -> None:
    weight = noisy((6, 5, 4, 6), np.random.default_rng(seed))
    made, ranks = THEIRS[form]
    graph = tn.layer(FORMS.get(form, form), a=6, b=5, c=4, d=6, **ranks)
    assert approximate(graph, weight).misfit.weight <= 1.001 * relative(weight, made(tensorly.tensor(weight)))


def relative(weight: Any, other: Any) -> float:
    return float(np.linalg.norm(weight - np.asarray(other)) / np.linalg.norm(weight))


def test_linear_regression_of_one_factor() -> None:
    generator = np.random.default_rng(0)
    known, weight = generator.standard_normal((8, 3)), generator.standard_normal((8, 5))
    found = approximate(tn.layer("W[o,i] = A[o,r] * B[r,i]"), weight, known={"A": known})
    np.testing.assert_allclose(found.factors["B"], np.linalg.lstsq(known, weight, rcond=None)[0])


def test_what_is_no_sum_of_products_loses_as_little() -> None:
    weight = normal(9, 7)
    found = approximate(tn.layer("W[o,i] = roll(A[o,r] * B[r,i], o=1)", r=4), weight)
    squares = np.linalg.svd(weight, compute_uv=False) ** 2
    assert found.misfit.weight == pytest.approx(np.sqrt(squares[4:].sum() / squares.sum()), rel=1e-4)


# ---------------------------------------------------------------------------- what is known, what is moved


def test_constants_and_known_terms_are_taken_off() -> None:
    generator = np.random.default_rng(0)
    base, a, b = (generator.standard_normal(shape) for shape in ((6, 5), (6, 2), (2, 5)))
    graph = tn.layer("W[o,i] = C[o,i] / 2 + A[o,r] * B[r,i]", constants={"C": base}, r=2)
    found = approximate(graph, base / 2 + a @ b)
    assert {*found.factors} == {"A", "B"}
    np.testing.assert_allclose(found.factors["A"] @ found.factors["B"], a @ b, atol=1e-9)


def test_a_mask_is_part_of_the_product() -> None:
    generator = np.random.default_rng(0)
    mask = (generator.random((9, 8)) < 0.7).astype(float)
    weight = mask * np.outer(generator.standard_normal(9), generator.standard_normal(8))
    graph = tn.layer("W[o,i] = M[o,i] * A[o,r] * B[r,i]", constants={"M": mask}, r=1)
    assert approximate(graph, weight, settings=Settings(restarts=3)).misfit.weight < 1e-6


@pytest.mark.parametrize(
    "text",
    [
        "U[p,c] = A[p,r] * B[r,c]\nV[q,c] = D[q,r] * E[r,c]\nW[n,c] = concat[n](U[n,c], V[n,c])",
        "W[p,c] = A[p,r] * B[r,c] + roll(D[p,r] * E[r,c], p=1)",
        "W[p,c] = A[p,r] * B[r,c] + A[p,r] * E[r] * F[c]",
        "W[p,c] = tanh(A[p,r] * B[r,c])",
    ],
)
def test_what_is_no_sum_of_products_of_its_own_is_fitted_too(text: str) -> None:
    graph = graph_of(text, {"p": 5, "q": 4, "c": 6, "r": 1})
    weight = tn.compile(graph)(tn.init(graph, dtype="float64"))
    found = approximate(graph, weight, settings=Settings(restarts=5))
    made = tn.compile(graph)(dict(found.factors))
    np.testing.assert_allclose(made, weight, atol=1e-5 * np.abs(weight).max())


def test_ranks_beyond_the_weight_can_be_trained() -> None:
    weight = normal(3, 4)
    found = approximate(tn.layer("W[o,i] = A[o,r] * B[r,i]", r=6), weight)
    assert found.misfit.weight < 1e-12
    alive = np.linalg.norm(found.factors["A"], axis=0) + np.linalg.norm(found.factors["B"], axis=1)
    assert (alive > 0).all()


def test_factors_are_equally_large_along_every_bond() -> None:
    found = approximate(tn.layer("W[o,i] = A[o,r] * B[r,i]", r=3), normal(6, 9))
    a, b = np.linalg.norm(found.factors["A"], axis=0), np.linalg.norm(found.factors["B"], axis=1)
    np.testing.assert_allclose(a, b)


# ---------------------------------------------------------------------------- weighed


def moments_of(x: Any) -> Any:
    return x.T @ x


def test_the_weighed_optimum_is_that_of_the_whitened_weight() -> None:
    generator = np.random.default_rng(0)
    weight, x = generator.standard_normal((7, 6)), generator.standard_normal((90, 6)) * np.arange(1, 7)
    values = np.linalg.svd(weight @ np.linalg.cholesky(moments_of(x)), compute_uv=False)
    metric = Metric((1,), moments_of(x), damping=0.0)
    found = approximate(tn.layer("W[o,i] = A[o,r] * B[r,i]", r=2), weight, metric=metric)
    assert found.misfit.output == pytest.approx(np.linalg.norm(values[2:]) / np.linalg.norm(values), rel=1e-9)
    off = x @ (weight - found.factors["A"] @ found.factors["B"]).T
    assert found.misfit.output == pytest.approx(np.linalg.norm(off) / np.linalg.norm(x @ weight.T), rel=1e-9)


@pytest.mark.parametrize("name", ["low rank of tensors", "train", "CP of four", "sum of products"])
def test_weighing_lowers_the_error_of_the_output(name: str) -> None:
    text = FORMS[name].replace("W[a,b,c,d]", "W[(a,b),(c,d)]")
    sizes = {"a": 3, "b": 4, "c": 3, "d": 4} | dict.fromkeys("pqrst", 2)
    generator = np.random.default_rng(1)
    weight = generator.standard_normal((12, 12))
    x = generator.standard_normal((400, 12)) * 0.5 ** np.arange(12) @ generator.standard_normal((12, 12))
    metric = Metric((1,), moments_of(x))
    graph = graph_of(text, sizes)
    plain, weighed = approximate(graph, weight), approximate(graph, weight, metric=metric)

    def output(factors: Any) -> float:
        return relative(x @ weight.T, x @ weight_of(graph, factors).T)

    assert weighed.misfit.output == pytest.approx(output(weighed.factors), rel=1e-6)
    assert output(weighed.factors) < 0.95 * output(plain.factors)


# ---------------------------------------------------------------------------- graphs


DENSE = "q[b,n,h,e] = x[b,n,c] * Q[h,e,c] + u[h,e]\ny[b,n,o] = gelu(q[b,n,h,e] * V[h,e,o])"
LOW = "Q[h,e,c] = A[h,r] * B[e,r] * C[c,r]\nV[h,e,o] = P[h,e,s] * R[h,s,o]\n"


def heads() -> tuple[tn.Graph, tn.Graph, dict[str, Any], Any]:
    sizes = {"h": 3, "e": 4, "c": 8, "o": 6}
    dense = tn.layer(DENSE, inputs="x", **sizes)
    low = tn.layer(LOW + DENSE, inputs="x", r=5, s=2, **sizes)
    x = normal(20, 10, 8) * 0.6 ** np.arange(8)
    return dense, low, tn.init(dense, dtype="float64"), x


def test_the_weights_of_a_graph_become_factors() -> None:
    dense, low, params, x = heads()
    found, lost = tn.fit(dense, params, low)
    assert [*found] == [leaf.name for leaf in low.parameters]
    assert found["u"] is params["u"]
    made = np.einsum("hr,er,cr->hec", found["A"], found["B"], found["C"])
    assert lost["Q"].weight == pytest.approx(relative(params["Q"], made), rel=1e-9)
    assert lost["Q"].output is None
    assert tn.compile(low)(found, x).shape == (20, 10, 6)


@pytest.mark.parametrize("split", [False, True])
def test_the_weights_of_a_graph_are_weighed_by_what_meets_them(split: bool) -> None:
    dense, low, params, x = heads()
    inputs = [(x[:7],), x[7:]] if split else x
    found, lost = tn.fit(dense, params, low, inputs=inputs)
    made = np.einsum("hr,er,cr->hec", found["A"], found["B"], found["C"])
    ours, whole = (np.einsum("bnc,hec->bnhe", x, w) for w in (params["Q"] - made, params["Q"]))
    assert lost["Q"].output == pytest.approx(np.linalg.norm(ours) / np.linalg.norm(whole), rel=1e-6)
    q = np.einsum("bnc,hec->bnhe", x, params["Q"]) + params["u"]
    value = np.einsum("hes,hso->heo", found["P"], found["R"])
    # every head is multiplied by its own queries: what the moments sum over is each head's part of the output
    off, all_of = (np.einsum("bnhe,heo->bnho", q, w) for w in (params["V"] - value, params["V"]))
    assert lost["V"].output == pytest.approx(
        np.linalg.norm(off.sum(2)) / np.linalg.norm(all_of.sum(2)), rel=1e-6
    )
    plain, _ = tn.fit(dense, params, low)
    y = tn.compile(dense)(params, x)
    assert relative(y, tn.compile(low)(found, x)) < relative(y, tn.compile(low)(plain, x))


def test_weights_in_blocks_that_are_called_again() -> None:
    dense = tn.layer("y[b,o] = gelu(x[b,i] * W[o,i])", inputs="x", i=6, o=6)
    low = tn.layer("W[o,i] = A[o,r] * B[r,i]\ny[b,o] = gelu(x[b,i] * W[o,i])", inputs="x", i=6, o=6, r=2)

    before, after = (
        stacked((each, "blocks.0"), (each, "blocks.1"), inputs="x[b,i]", i=6) for each in (dense, low)
    )
    params = tn.init(before, dtype="float64")
    x = normal(50, 6)
    _, lost = tn.fit(before, params, after, inputs=x)
    assert [*lost] == ["blocks.0.W", "blocks.1.W"]
    h = tn.compile(dense)({"W": params["blocks.0.W"]}, x)
    second = params["blocks.1.W"]
    values = np.linalg.svd(second @ np.linalg.cholesky(moments_of(h)), compute_uv=False)
    assert lost["blocks.1.W"].output == pytest.approx(
        np.linalg.norm(values[2:]) / np.linalg.norm(values), rel=1e-3
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_torch_weights_give_torch_factors(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    dense = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x")
    low = tn.layer("W[o,i] = A[o,r] * B[r,i]\ny[b,o] = x[b,i] * W[o,i]", inputs="x", r=4)
    weight = torch.nn.Parameter(torch.eye(4, dtype=getattr(torch, dtype)))
    x = torch.ones(3, 4, dtype=getattr(torch, dtype)).cumsum(1)
    for inputs in (None, x):
        found, lost = tn.fit(dense, {"W": weight}, low, inputs=inputs)
        assert isinstance(found["A"], torch.Tensor)
        assert found["A"].dtype == weight.dtype
        made = (found["A"].double() @ found["B"].double()).numpy()
        np.testing.assert_allclose(made, np.eye(4), atol=1e-2 if dtype == "bfloat16" else 1e-5)
        assert lost["W"].weight < 1e-5


def test_a_fit_tells_how_far_it_is_and_comes_back_the_same() -> None:
    dense, low, params, _ = heads()
    told: list[tuple[str, int, int, float]] = []
    options = {"iterations": 4, "restarts": 2, "seed": 3}
    first, _ = tn.fit(dense, params, low, progress=lambda *each: told.append(each), **options)
    again, _ = tn.fit(dense, params, low, **options)
    assert {path for path, *_ in told} == {"Q", "V"}
    assert {start for path, start, *_ in told if path == "Q"} == {0, 1}
    assert max(number for *_, number, _ in told) <= 3
    assert all(np.array_equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize("kind", ["low_rank", "tucker", "tt", "blocktt", "kronecker", "btt"])
def test_substituted_weights_of_full_rank_compute_the_same(kind: str) -> None:
    dense = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=12, o=8)
    params = tn.init(dense, dtype="float64")
    low = tn.substitute(dense, {"W": kind})
    found, lost = tn.fit(dense, params, low)
    assert lost["W"].weight < 1e-5
    x = normal(5, 12)
    np.testing.assert_allclose(tn.compile(low)(found, x), x @ params["W"].T, atol=1e-5)


def test_a_weight_that_is_added_to_stays_as_it_was() -> None:
    dense = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=12, o=8)
    params = tn.init(dense)
    found, lost = tn.fit(dense, params, tn.substitute(dense, {"W": "W = W + A[o,r] * B[r,i]"}, r=2))
    assert found["W.base"] is params["W"]
    assert lost["W"].weight == 0
    assert np.abs(found["W.A"]).max() > 0
    assert not found["W.B"].any()


def test_a_table_that_is_looked_up_is_not_weighed() -> None:
    dense = tn.layer("h[b,n,c] = E[t[b,n],c]\ny[b,n,v] = h[b,n,c] * E[v,c]", inputs="t", v=6, c=4)
    low = tn.substitute(dense, {"E": "E[v,c] = A[v,r] * B[r,c]"}, r=2)
    _, lost = tn.fit(dense, tn.init(dense), low, inputs=np.arange(6).reshape(2, 3))
    assert lost["E"].output is None


# ---------------------------------------------------------------------------- factors of several weights

LAYERS = tn.layer(
    "h[b,k] = x[b,i] * A[k,i]\ng[b,k] = h[b,j] * B[k,j]\ny[b,k] = g[b,j] * C[k,j]",
    inputs="x", i=9, j=9, k=9,
)  # fmt: skip


@pytest.mark.parametrize("form", ["fact_tt", "fact_tk"])
def test_weights_that_share_factors_are_fitted_as_their_stack(form: str) -> None:
    """Against Tucker decompositions of the stack by tensorly; what is of the form comes back."""
    draw = np.random.default_rng(0)
    stack = noisy((3, 9, 9), draw)
    rank = 4 if form == "fact_tt" else (4, 4, 2)
    made = tn.substitute(LAYERS, {"*": (form, rank)})
    dense = dict(zip("ABC", stack, strict=True))
    params, lost = tn.fit(LAYERS, dense, made, tolerance=1e-10)
    again = tn.merge(LAYERS, made, params)
    for name, array in dense.items():
        assert lost[name].weight == pytest.approx(relative(array, again[name]), abs=1e-9)
    theirs = tensorly.tucker_to_tensor(
        tucker(tensorly.tensor(stack), [3 if form == "fact_tt" else 2, 4, 4], tol=1e-12)
    )
    assert relative(stack, np.stack([again[name] for name in "ABC"])) <= 1.001 * relative(stack, theirs)
    exact = tn.merge(LAYERS, made, {name: draw.standard_normal(each.shape) for name, each in params.items()})
    assert max(each.weight for each in tn.fit(LAYERS, exact, made)[1].values()) < 1e-6


def test_a_stack_takes_constants_and_known_terms_along() -> None:
    draw = np.random.default_rng(0)
    mask = draw.integers(0, 2, (9, 9)).astype("float64")
    text = "W[o,i] = mask[o,i] * (P[o,r] * S[r,s] * Q[s,i])"
    made = tn.substitute(LAYERS, {"*": text}, r=2, s=2, shared="P Q", constants={"mask": mask})
    exact = tn.merge(
        LAYERS, made, {name: draw.standard_normal(each.shape) for name, each in tn.init(made, seed=0).items()}
    )
    params, lost = tn.fit(LAYERS, exact, made, iterations=30)
    again = tn.merge(LAYERS, made, params)
    for name, array in exact.items():
        assert lost[name].weight == pytest.approx(relative(array, again[name]), abs=1e-9)
        assert lost[name].weight < 0.7
        assert not again[name][mask == 0].any()
    assert {params[name].dtype for name in params} == {np.dtype("float64")}
    added = tn.adapt(LAYERS, "*", method="fact_tt", rank=2)
    params, lost = tn.fit(LAYERS, exact, added)
    assert max(each.weight for each in lost.values()) == 0.0
    np.testing.assert_array_equal(params["B.base"], exact["B"])
    x = draw.standard_normal((40, 9)) * np.arange(1, 10)
    weighed, output = tn.fit(LAYERS, exact, made, inputs=x, iterations=30)
    assert not tn.merge(LAYERS, made, weighed)["B"][mask == 0].any()
    assert sum(outputs_of(exact, tn.merge(LAYERS, made, weighed), x)) < sum(outputs_of(exact, again, x))
    assert all(each.output is not None for each in output.values())


def outputs_of(dense: Any, made: Any, x: Any) -> list[float]:
    """E‖(W − Ŵ)·x‖² of the weights of `LAYERS`, each over what it meets."""
    found = []
    for name in "ABC":
        found.append(float(np.linalg.norm(x @ (dense[name] - made[name]).T) ** 2))
        x = x @ dense[name].T
    return found


@pytest.mark.parametrize("form", ["fact_tt", "fact_tk", "W[o,i] = U[o,r] * V[r,i]"])
def test_weights_that_share_factors_are_weighed_each_by_what_it_meets(form: str) -> None:
    """Against the gradient: of the sum of the errors of outputs there is none where it is least."""
    draw = np.random.default_rng(3)
    dense = dict(zip("ABC", draw.standard_normal((3, 9, 9)), strict=True))
    x = draw.standard_normal((200, 9)) @ np.diag(0.6 ** np.arange(9)) @ draw.standard_normal((9, 9))
    made = tn.substitute(LAYERS, {"*": form}, rank=3, shared="U", **({"r": 3} if "=" in form else {}))
    plain, _ = tn.fit(LAYERS, dense, made, tolerance=1e-10)
    found, lost = tn.fit(LAYERS, dense, made, inputs=x, tolerance=1e-12, iterations=2000, damping=0.0)

    def error(params: Any) -> float:
        return sum(outputs_of(dense, tn.merge(LAYERS, made, params), x))

    assert error(found) < 0.95 * error(plain)
    for name, each in found.items():
        step = 1e-4 * np.linalg.norm(each) * draw.standard_normal(each.shape) / np.sqrt(each.size)
        slope = (error({**found, name: each + step}) - error({**found, name: each - step})) / error(found)
        assert abs(slope) < 1e-6, name
    again = tn.merge(LAYERS, made, found)
    met = x
    for name in "ABC":
        off = np.linalg.norm(met @ (dense[name] - again[name]).T) / np.linalg.norm(met @ dense[name].T)
        assert lost[name].output == pytest.approx(off, rel=1e-6)
        met = met @ dense[name].T


def test_weights_of_other_equations_share_factors() -> None:
    """Multiplied along other dimensions too: what is of the form comes back, also where inputs weigh."""
    text = "h[b,o] = x[b,i] * W[o,i]\ny[b,p] = h[b,o] * V[o,p]"
    dense = tn.layer(text, inputs="x", i=6, o=6, p=6)
    tied = tn.layer(
        f"W[o,i] = A[o,r] * B[r,i]\nV[o,p] = D[p,r] * A[o,r]\n{text}", inputs="x", i=6, o=6, p=6, r=2
    )
    draw = np.random.default_rng(0)
    exact = {name: draw.standard_normal(each.shape) for name, each in tn.init(tied, seed=0).items()}
    for inputs in (None, draw.standard_normal((40, 6))):
        _, lost = tn.fit(dense, tn.merge(dense, tied, exact), tied, inputs=inputs, restarts=3)
        assert max(each.weight for each in lost.values()) < 1e-6


def test_small_contractions_are_not_searched_for_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a search for each rank of each form takes longer than all rounds."""
    from tensornet.fitting import forms

    rng, searched = np.random.default_rng(0), list[str]()
    monkeypatch.setattr(forms, "einsum", lambda *given: searched.append(given[0]) or tn.einsum(*given))
    for scale, count in ((1, 0), (40, 1)):
        a, b, c = (rng.standard_normal([scale * n for n in shape]) for shape in ((3, 4, 2), (4, 2), (2, 2)))
        named = [(a, tuple("abc")), (b, tuple("br")), (c, tuple("cr"))]
        found = forms.contract(named, ("r", "a"))
        assert len(searched) == count
        np.testing.assert_allclose(
            found, np.einsum("abc,br,cr->ra", a, b, c, optimize=True), rtol=1e-9, atol=1e-9
        )


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1e20])
def test_sums_are_fitted_alike_at_any_scale(scale: float) -> None:
    weight = normal(6, 8)
    graph = tn.layer("W[a,b] = A[a,r]*B[r,b] + C[a]*D[b]", a=6, b=8, r=2)
    one, other = (approximate(graph, each).misfit.weight for each in (weight, scale * weight))
    assert one == pytest.approx(other)


@pytest.mark.parametrize("inputs", [None, "x"])
@pytest.mark.parametrize(
    ("form", "same"),
    [
        ("s * A[a,r] * B[r,b]", "A[a,r] * B[r,b]"),
        ("s * A[a,r] * G[r] * t * B[r,b]", "A[a,r] * B[r,b]"),
        ("s * A[a,b]", "A[a,b]"),
        ("s * W[a,b]", "A[a,b]"),
        ("repeat[a](repeat[b](s))", None),
    ],
)
def test_a_number_is_a_factor(form: str, same: str | None, inputs: str | None) -> None:
    rng = np.random.default_rng(0)
    dense, w = tn.layer("y[n,o] = x[n,i] * W[o,i]", inputs="x", i=6, o=4), rng.standard_normal((4, 6))
    data = None if inputs is None else rng.standard_normal((50, 6))

    def fitted(form: str) -> tuple[Any, Any]:
        sizes = {"r": 2} if "r]" in form else {}
        low = tn.substitute(dense, {"W": f"W[a,b] = {form}"}, **sizes)
        return tn.fit(dense, {"W": w}, low, inputs=data)

    params, lost = fitted(form)
    assert params["W.s"].shape == ()
    if same is not None:
        expected = fitted(same)[1]["W"]
        np.testing.assert_allclose(lost["W"].weight, expected.weight, rtol=1e-4, atol=1e-9)
    elif data is None:
        np.testing.assert_allclose(params["W.s"], w.mean())
    else:
        sums = data.sum(1)
        np.testing.assert_allclose(params["W.s"], (data @ w.T).mean(1) @ sums / (sums @ sums), rtol=1e-3)
