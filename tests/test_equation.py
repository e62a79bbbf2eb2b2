"""The equation language: the grammar row by row, the Einstein rule, errors as users read them, garbage."""

from __future__ import annotations

import functools
import tracemalloc
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.display import in_bytes
from tensornet.language.equation import Equation, einstein
from tensornet.language.expression import Contraction, Expression, show
from tensornet.language.parser import parse_block, read_size
from tensornet.sizes import solve_size

from .conftest import examples, rows, within
from .programs import SUMMED_ALONE

pytestmark = pytest.mark.filterwarnings(SUMMED_ALONE)

# ---------------------------------------------------------------------------- The equation language


def read(text: str) -> Equation:
    """The one equation of a text, as parsed."""
    (equation,) = parse_block(text)
    assert isinstance(equation, Equation)
    return equation


# ---------------------------------------------------------------------------- the grammar


DATA = Path(__file__).parent / "data"


GRAMMAR = rows("grammar.txt")
GRAMMAR += [
    ("  y[b] = x[b]  # as in the paper", "y[b] = x[b]"),
    ("y[b] = (x[b] +\n  u[b])", "y[b] = x[b] + u[b]"),
    ("# it's \"the\" \\d layer of 1if\ny[b] = x[b]  # don't 'a.b'\r\n", "y[b] = x[b]"),
]


@pytest.mark.parametrize(("text", "printed"), GRAMMAR)
def test_a_row_of_the_grammar_prints_in_its_canonical_form_which_means_the_same(
    text: str, printed: str
) -> None:
    assert str(read(text)) == str(read(printed)) == printed
    assert read(printed) == read(str(read(printed)))


TENSORS = "q x[b,i] E[t[b,i],c] Q[(h,d),e] z[b,0] z[-1,c] w[...,i] blocks.0.W[i,j] x[(h,),i]"
OPERATORS = ("+", "-", "*", "/", "**", "<", "<=", ">", ">=", "==", "!=", "&", "|")


def expression_texts(depth: int = 4) -> st.SearchStrategy[str]:
    """Right sides in the grammar, with every operator and number; what they mean is not looked at."""
    numbers = st.one_of(
        st.integers(0, 10**20).map(str),
        st.floats(0, 1e300, allow_nan=False).map(repr),
        st.sampled_from(["inf", "pi", "1e999", "2j", "0.5j", "1_000", "0x1f"]),
    )
    tensors = st.sampled_from(TENSORS.split())

    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        pairs = st.tuples(inner, st.sampled_from(OPERATORS), inner)
        calls = [
            "gelu({})",
            "softmax[j](x[b,j] * ({}))",
            "sum[i](x[b,i] * ({}))",
            "roll({}, i=-1)",
            "abs(-({}))",
        ]
        return st.one_of(
            pairs.map(lambda each: f"({each[0]}) {each[1]} ({each[2]})"),
            st.tuples(st.sampled_from("-+~"), inner).map(lambda each: f"{each[0]}({each[1]})"),
            st.tuples(st.sampled_from(calls), inner).map(lambda each: each[0].format(each[1])),
            st.tuples(inner, inner).map(lambda each: f"maximum({each[0]}, {each[1]})"),
            st.tuples(inner, inner).map(lambda each: f"where(index(i) >= index(j), {each[0]}, {each[1]})"),
            inner.map(lambda each: f"pad({each}, i=(1,2), value=0.5)"),
        )

    return st.recursive(st.one_of(numbers, tensors), larger, max_leaves=2**depth)


@given(expression_texts())
@example("-(2)").via("a negative number is not a negated one")
@example("-(-(2))")
@example("0.5j")
@example("(2) - (-(3))")
@example("(1) / ((1) / (q))")
@example("((q) ** (2)) ** (3)")
@example("(-(q)) * (-(q))")
@example("-((1) * (q))")
@example("~(~(q))")
def test_printing_an_expression_and_reading_it_again_changes_nothing(text: str) -> None:
    expression = read(f"y[b] = {text}").right
    assert read(f"y[b] = {show(expression)}").right == expression


# ---------------------------------------------------------------------------- the Einstein rule


def sums(expression: Expression) -> dict[str, tuple[str, ...]]:
    """What each sum runs over, under the printed product it is a sum of."""
    return {
        " * ".join(show(factor) for factor in part.factors): part.summed
        for part in expression.subexpressions
        if isinstance(part, Contraction) and part.summed
    }


@pytest.mark.parametrize(("text", "expected"), rows("sums.txt"))
def test_einstein_rule_sums_where_the_text_implies_and_leaves_what_is_written_out(
    text: str, expected: str
) -> None:
    once = einstein(read(text))
    found = {f"{','.join(axes)} over {product}" for product, axes in sums(once.right).items()}
    assert found == {*filter(None, expected.split("; "))}
    assert einstein(once) == once


# ---------------------------------------------------------------------------- errors as they are read


def test_an_error_survives_pickling() -> None:
    import pickle

    with pytest.raises(tn.EquationError, match="'geluu' is not a function") as caught:
        tn.layer("y[b] = geluu(x[b])", inputs="x")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), type(copy), copy.place) == (str(caught.value), tn.EquationError, caught.value.place)


# ---------------------------------------------------------------------------- garbage

HARD = [
    "",
    " ",
    "y[b] = x[b] * " + "9" * 5000,
    "y[b] = x[b," + "9" * 4000 + "]",
    "b: " + "9" * 4000 + "\ny[b] = x[b]",
    "y[b] = " + "(" * 150 + "x[b]" + ")" * 150,
    "y[b] = " + "(" * 20000 + "x[b]" + ")" * 20000,
    "y[b] = " + "gelu(" * 90 + "x[b]" + ")" * 90,
    "y[b] = " + "-" * 5000 + "x[b]",
    "y[b] = " + "+".join(["x[b]"] * 2000),
    "y[b] = " + "**".join(["x[b]"] * 500),
    "y[b] = " + "x[" * 80 + "b" + "]" * 80,
    "y[" + ",".join(f"a{n}" for n in range(300)) + "] = x[" + ",".join(f"a{n}" for n in range(300)) + "]",
]
HARD += [line.encode().decode("unicode_escape") for line in (DATA / "hard.txt").read_text().splitlines()]


def check_layer(text: str) -> None:
    """Either a graph that prints and hashes, or an error of our own; soon."""
    with within(5):
        try:
            graph = tn.layer(text, inputs="x")
        except tn.TensornetError:
            return
        assert tn.layer(str(graph)) == graph


def check_einsum(text: str, *arrays: Any) -> None:
    with within(5), np.errstate(all="ignore"):
        try:
            result = tn.einsum(text, *arrays)
        except tn.TensornetError:
            return
        assert isinstance(result, np.ndarray | np.generic)


@pytest.mark.parametrize("text", HARD, ids=range(len(HARD)))
def test_hard_text_is_a_layer_and_an_einsum_or_an_error_of_ours(text: str) -> None:
    check_layer(text)
    check_einsum(text, np.ones(2))


@examples(20)
@given(st.text(max_size=60))
def test_any_text_is_a_layer_or_an_error_of_ours(text: str) -> None:
    check_layer(text)
    check_layer(f"y[b] = x[b] * {text}")


@given(st.text(alphabet="abij ,.->()[]x0\x00é", max_size=25))
@example("->")
@example("a->")
@example("(a b) -> (a) b")
@example("... a, ... b -> ...")
def test_any_text_is_an_einsum_or_an_error_of_ours(text: str) -> None:
    check_einsum(text, np.ones((2, 2)))
    check_einsum(text, np.ones((2, 3)), np.ones(3))


def test_einsum_of_nothing_is_an_error_of_python() -> None:
    with pytest.raises(TypeError, match="missing"):
        tn.einsum()  # type: ignore[call-arg]


# ---------------------------------------------------------------------------- Bad input of every kind


D = sympy.Symbol("D")
DENSE = "y[b,p] = x[b,i] * W[p,i]"


def dense(**options: Any) -> tn.Graph:
    return tn.layer(DENSE, inputs="x", **options)


# ---------------------------------------------------------------------------- one text, two readings


def test_a_size_that_a_window_tells_reads_back() -> None:
    text = "z[b,h] = pad(x[b,h], h=(1, 1))\ny[b,p] = max[u](z[b,p+u])\ny[a,e[a,n]] += x[n,a]\nh: 3"
    graph = tn.layer(text, inputs="x")
    assert tn.layer(str(graph)) == graph


def test_a_tensor_with_an_end_alone_is_read_along_a_diagonal() -> None:
    """`h` has no line of its own, and stands for nothing before its first position."""
    graph = tn.layer("y[t] = h[t,t-1]\nh[j,+1] = x[j]\nz[a,t] = h[a,t+1]", inputs="x h", outputs="y z")
    h = np.arange(9.0).reshape(3, 3)
    y, z = tn.compile(graph, backend="numpy", dtype="float64")({}, np.full(3, 9.0), h)
    assert y.tolist() == [0, h[1, 0], h[2, 1]]
    np.testing.assert_array_equal(z, [[1, 2, 9], [4, 5, 9], [7, 8, 9]])
    assert tn.layer(str(graph)) == graph


# ---------------------------------------------------------------------------- what is no graph


def test_a_graph_may_be_given_by_its_name_or_be_called_as_an_axis() -> None:
    graph = tn.layer("y[graph] = x[graph] * W[graph]", inputs="x")
    assert tn.init(graph=graph.bind(graph=3))["W"].shape == (3,)
    assert tn.flop_count(graph, graph=3) == 2 * 3


# ---------------------------------------------------------------------------- lines that nobody reads


def test_json_of_a_graph_with_lines_that_nobody_reads_is_read() -> None:
    graph = tn.layer("y[b] = x[b]\nz[b] = 2 * y", inputs="x", outputs="y z")
    graph = tn.Graph(graph.leaves, graph.equations, ("y",), graph.sizes)
    assert tn.Graph.from_json(graph.to_json()) == graph


# ---------------------------------------------------------------------------- sizes


@pytest.mark.parametrize("scope", ["blocks.0.mlp", "λ", "if", "a.if", "softmax", "_a"])
def test_the_names_of_a_scope_read_back(scope: str) -> None:
    layer = dense(p=3)
    graph = tn.model(lambda x: layer(x, scope=scope), inputs="x[b,i]", i=2)
    assert tn.layer(str(graph)) == graph
    assert tn.compile(graph)({f"{scope}.W": np.ones((3, 2))}, np.ones((1, 2))).tolist() == [[2, 2, 2]]


FORMULAS = sympy.sympify(
    "[D, 2*D + 1, D/2 + Rational(1, 2), D**2, 1/D, floor(D/2), ceiling(D/3)*2, "
    "Max(3, D), Min(3, D) + Max(D/2, Symbol('E'), 1), (D + 1)**15, D**(-3)*6**3]",
    locals={"D": D},
)


@pytest.mark.parametrize("size", FORMULAS, ids=str)
@pytest.mark.parametrize(
    "text",
    [
        "y[b,i] = x[b,i] / sqrt(i)",
        "y[b] = x[b] / sqrt(i)",  # the size is nothing but a number in the text
        "y[b] = x[b,i] * u[i]\nz[b] = y / i",
        "y[b,j,k] = x[b,(j,k)] * i",
        "y[b] = roll(x[b], b=i)",
    ],
)
def test_a_graph_with_a_formula_for_a_size_reads_back(text: str, size: Any) -> None:
    graph = tn.layer(text, inputs="x", i=size)
    again = tn.Graph.from_json(graph.to_json())
    assert again == graph == tn.layer(str(graph))
    assert not again.parameters or text.endswith("y / i")
    assert again.open_sizes == graph.open_sizes
    at = next(value for value in (6, 7, 1) if size.subs({"D": value, "E": 2}).is_Integer)
    bound = graph.bind(**{name: at if name == "D" else 2 for name in graph.open_sizes})
    assert tn.Graph.from_json(bound.to_json()) == bound == tn.layer(str(bound))


@pytest.mark.parametrize(("text", "value"), rows("solved.txt"))
def test_a_size_is_solved_where_just_one_value_fits(text: str, value: str) -> None:
    size, observed = map(sympy.sympify, text.split(" = "))
    assert solve_size(read_size(size, "n"), int(observed)) == (("D", int(value)) if value else None)


def test_a_composite_of_a_high_power() -> None:
    graph = tn.layer("y[b,i,j] = x[b,(i,j)]", inputs="x", i=(D + 1) ** 15, j=2)
    assert tn.compile(graph.bind(D=1))({}, np.ones((1, 2 * 2**15))).shape == (1, 2**15, 2)


# ---------------------------------------------------------------------------- what layer reads must run


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize(("right", "expected"), rows("whole.txt"))
def test_whole_numbers_that_come_to_more_than_64_bits_are_floating(
    right: str, expected: str, backend: str
) -> None:
    graph = tn.layer(f"y[i] = {right}\nz[i] = 2 * n[i]", inputs="n[i]", outputs=["y", "z"], i=2)
    assert tn.layer(str(graph)) == graph
    n = tn.to_backend({"n": np.array([1, 2])}, backend)["n"]
    found, _ = tn.compile(graph, backend=backend, dtype="float64")({}, n)
    np.testing.assert_allclose(np.asarray(found), [*map(float, expected.split())], rtol=1e-6)


# ---------------------------------------------------------------------------- messages


def test_the_line_that_sizes_a_table_is_the_one_that_the_error_gives() -> None:
    graph = tn.layer("B[n,h]: parameter\ny[t,h] = B[x[t],h]", inputs="x", n=4, h=2)
    assert graph.parameters[0].shape == (sympy.Symbol("n"), sympy.Symbol("h"))


# ---------------------------------------------------------------------------- constants and functions


@pytest.mark.parametrize(
    "value",
    [torch.full((2,), 0.5, requires_grad=True), torch.full((2,), 0.5, dtype=torch.bfloat16), [0.5, 0.5]],
    ids=["a parameter", "bfloat16", "a list"],
)
def test_a_constant_may_be_of_any_library(value: Any) -> None:
    graph = tn.layer("y[i] = x[i] * c[i]", inputs="x", constants={"c": value})
    np.testing.assert_array_equal(tn.compile(graph)({}, np.array([1.0, 2.0])), [0.5, 1.0])


# ---------------------------------------------------------------------------- warnings belong to everybody


PIECES = """1 0x1f 2. .5 1e5 1_0 0b1 1j and else for if in is not or x y[b] = + * ( ) ' # \\"""


@given(st.lists(st.sampled_from([*PIECES.split(), '"', "\n", " ", "\\d", "f'", "a.1", "é"]), max_size=12))
def test_reading_a_text_warns_of_nothing(pieces: list[str]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for text in ("".join(pieces), "y[b] = " + "".join(pieces)):
            try:
                tn.layer(text, inputs="x")
            except tn.TensornetError:
                continue
    assert not caught


def test_reading_in_threads_leaves_the_filters_of_warnings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(warnings.filters)
    monkeypatch.setattr(warnings, "simplefilter", lambda *_, **__: pytest.fail("a filter is set"))

    def read(_: int) -> bool:
        dense()
        return list(warnings.filters) == before

    with ThreadPoolExecutor(16) as together:
        assert all(together.map(read, range(320)))
    assert warnings.filters == before


# ---------------------------------------------------------------------------- numbers that nobody can compute


def test_an_array_is_divided_by_a_size_that_is_nothing() -> None:
    run = tn.compile(tn.layer("y[b] = x[b,i] / i", inputs="x"))
    with np.errstate(invalid="ignore"):
        assert np.isnan(run({}, np.ones((2, 0)))).all()


# ---------------------------------------------------------------------------- what calls are given

WRONG: list[Any] = [None, "word", 5, -1, 1.5, True, [], {}, range, "1GB"]


def calls(graph: tn.Graph, wrong: Any) -> dict[str, Callable[[], Any]]:
    """Calls with something else in the place of one thing that they take."""
    x, W = np.ones((4, 3)), np.ones((2, 3))
    layer = functools.partial(tn.layer, "y[b] = x[b] * w[b]", inputs="x")
    return {
        "a parameter": lambda: tn.compile(graph)({"W": wrong}, x),
        "a tensor": lambda: tn.compile(graph, backend="torch")({"W": wrong}, torch.ones(4, 3)),
        "an input": lambda: tn.compile(graph)({"W": W}, wrong),
        "parameters": lambda: tn.compile(graph)(wrong, x),
        "held": lambda: tn.compile(graph, params={"W": wrong})(x),
        "moved": lambda: [tn.to_backend({"W": wrong}, each) for each in ("torch", "jax")],
        "plan_at": lambda: tn.module(graph, plan_at=wrong),
        "seed": lambda: tn.module(graph, seed=wrong),
        "device": lambda: [
            tn.compile(graph, backend=each, device=wrong) for each in ("numpy", "torch", "jax")
        ],
        "dtype": lambda: tn.compile(graph, dtype=wrong),
        "backend": lambda: tn.compile(graph, backend=wrong),
        "limit": lambda: tn.compile(graph, memory_limit=wrong)({"W": W}, x),
        "limit of a plan": lambda: tn.plan(graph, memory_limit=wrong),
        "limit of einsum": lambda: tn.einsum("bi,oi->bo", x, W, memory_limit=wrong),
        "limit of a module": lambda: tn.module(graph, memory_limit=wrong),
        "profile": lambda: tn.plan(graph, profile=wrong),
        "constants": lambda: layer(constants=wrong),
        "init": lambda: layer(init=wrong),
        "frozen": lambda: tn.freeze(graph, wrong),
        "depth": lambda: tn.parameter_table(graph, wrong),
        "drawn": lambda: wrong == "word" or tn.draw(graph, wrong),
        "read": lambda: tn.load_compressed(wrong),
        "modes": lambda: tn.substitute(graph, {"W": "tt"}, modes=wrong),
        "over": lambda: tn.sweep(tn.models.linear, over=wrong),
    }


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_what_a_call_cannot_take_is_an_error_of_ours(wrong: Any) -> None:
    graph = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=3, o=2)
    told = dict[str, str]()
    for name, call in calls(graph, wrong).items():
        try:
            call()
        except tn.TensornetError as error:
            told[name] = str(error)
    assert {name for name, text in told.items() if "fix:" not in text} == set()


def test_a_device_that_is_not_here_is_told() -> None:
    for call in (lambda: tn.module(dense(i=3, p=2), device="cuda:77"),
                 lambda: tn.to_backend({"W": torch.ones(2)}, "torch", device="cuda:77")):  # fmt: skip
        with pytest.raises(tn.BackendError, match="there is no device 'cuda:77'"):
            call()


@pytest.mark.filterwarnings("ignore")  # torch's own, of quantized tensors
def test_sparse_and_quantized_weights_are_written_out() -> None:
    W = torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, 0.0]])
    forms = [W.to_sparse(), W.to_sparse_csr(), torch.quantize_per_tensor(W, 0.5, 0, torch.qint8)]
    for each in [*forms, W.tolist()]:
        for backend in ("numpy", "torch", "jax"):
            found = tn.to_backend(tn.to_backend({"W": each}, backend), "numpy")["W"]
            np.testing.assert_array_equal(found, W.numpy())


def test_a_limit_of_memory_has_units() -> None:
    limits = [1_200_000, "1.2MB", "1200 kB", "1.2e6", 1.2e6, "1171.875 KiB", np.int64(1_200_000)]
    assert {in_bytes(limit) for limit in limits} == {1_200_000}


@pytest.mark.parametrize("size", [0, 1, 10**9])
def test_planning_allocates_nothing(size: int) -> None:
    """Tables of a thousand million positions are none that a plan makes."""
    graph = tn.layer("y[b,i] = softmax[i](x[b,i] * index(i)) * W[i]\nz[b] = y[b,i]", inputs="x")
    at = {"b": 10**9, "i": size} if size else {"b": 10**9, "i": 1}
    tracemalloc.start()
    try:
        assert tn.plan(graph, **at).peak_memory >= size
        assert tracemalloc.get_traced_memory()[1] < 1e8
    finally:
        tracemalloc.stop()
    if not size:
        assert tn.compile(graph)({"W": np.ones(0)}, np.ones((3, 0))).tolist() == [0, 0, 0]
