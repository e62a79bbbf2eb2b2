"""Rewrites: that each keeps every value, and that each is made where it pays; their trace."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, reject
from typer.testing import CliRunner

import tensornet as tn
from tensornet.cli import app
from tensornet.device.cost_model import default_profile
from tensornet.frontend.elaborate_ir import of_tensors
from tensornet.graph.element_types import holding
from tensornet.graph.graph import Apply
from tensornet.graph.leaves import Leaf
from tensornet.ir.rewriting import Cost, PassContext
from tensornet.ops.table import Element
from tensornet.passes.dead_code import eliminate_dead_code
from tensornet.passes.pipeline import PIPELINE, SIMPLIFICATION, is_traced, program_of, simplify
from tensornet.planning.plans import Step
from tensornet.protocol import load_backend

from . import oracle
from .conftest import covered, examples, normal, those_of
from .differential import BACKENDS, by_numpy, drawn
from .programs import SUMMED_ALONE, Program, program, programs, titled

pytestmark = pytest.mark.filterwarnings(SUMMED_ALONE)

# ---------------------------------------------------------------------------- Rewrites


CPU = default_profile("cpu")


# ---------------------------------------------------------------------------- every rewrite


def passed(name: str, *supported: str, sums: bool = True) -> Callable[[tn.Graph], tn.Graph]:
    """A pass of that name over graphs, which makes every change that it could make."""
    (chosen,) = {each for each in PIPELINE if each.name == name}

    def run(graph: tn.Graph) -> tn.Graph:
        return chosen.rewrite(program_of(graph), PassContext(eager(), supported, sums=sums)).graph

    return run


def eager() -> Cost:
    """Seconds by which what is asked about second, the changed form, is always the cheaper, for a while."""
    falling = itertools.chain((0.5**n for n in range(40)), itertools.repeat(1.0))
    return lambda part: next(falling)


GROUPED = ("grouped_matmul", "grouped_outer")
REWRITES = {
    "there and back": lambda graph: program_of(graph).graph, "prune": eliminate_dead_code, "simplify": lambda graph: simplify(graph).graph,
    "fuse": passed("contraction fusion"), "narrow": passed("gather pushdown at one position"),
    "distribute": passed("distribution"), "average first": passed("reduction pushdown"),
    "average alone": passed("reduction pushdown", sums=False),
    "gather first": passed("gather pushdown"), "windows last": passed("window pull-up"),
    "select": passed("one-hot elimination"), "scatter": passed("one-hot elimination", "scatter_add"),
    "products by groups": passed("grouped GEMM", *GROUPED),
    "outer products by groups": passed("one-hot elimination", *GROUPED),
}  # fmt: skip
"""Each rewrite; those that go by cost make every change."""


@pytest.mark.parametrize("name", REWRITES)
@examples(10)
@given(programs())
def test_rewrites_keep_the_value(name: str, case: Program) -> None:
    arrays, written = case.arrays(), case.graph().flat
    assume(not written.recurrences)  # which are calls along their axes before they are rewritten
    graph = holding(written, {name: Element.WHOLE for name, leaf in case.leaves.items() if leaf.bound})
    changed = REWRITES[name](graph)
    try:
        expected = oracle.run(case.text, arrays, case.given, graph.outputs)
    except oracle.Untold:
        reject()
    found = by_numpy(changed, arrays)
    for output in graph.outputs:
        np.testing.assert_allclose(found[output], expected[output], rtol=1e-9, atol=1e-9)
    held, before = of_tensors(changed), of_tensors(graph)
    assert {name: held[name] for name in graph.outputs} == {name: before[name] for name in graph.outputs}


REWRITTEN = titled("rewritten.txt")
PRINTED = [title for title, each in REWRITTEN.items() if "\n=\n" in each.text]
"""What comes out is written below; of the others the oracle says it."""


@pytest.mark.parametrize("title", PRINTED)
def test_what_rewrites_make(title: str) -> None:
    record = REWRITTEN[title]
    text, _, printed = record.text.partition("\n=\n")
    graph = replace(record, text=text).graph()
    if "asks" in record.said:
        graph = replace(graph, outputs=(record.said["asks"],))
    assert [str(each) for each in REWRITES[record.said["by"]](graph).equations] == printed.splitlines()


@examples(12)
@given(programs())
def test_what_tensors_hold_is_what_their_steps_make(case: Program) -> None:
    """Told of the equations alone, before anything is planned."""
    graph = holding(case.graph(), {name: Element.WHOLE for name, leaf in case.leaves.items() if leaf.bound})
    told = of_tensors(graph)
    sizes = {axis: case.sizes[axis] for axis in graph.open_sizes if axis in case.sizes}
    for step in tn.plan(graph, profile=CPU, **sizes).steps:
        if isinstance(step, Step) and step.equation.name in told:
            assert told[step.equation.name] is step.element, str(step.equation)


# ---------------------------------------------------------------------------- sums multiplied out


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


# ---------------------------------------------------------------------------- positions


# ---------------------------------------------------------------------------- averages


def test_an_average_of_nothing_and_one_in_half_precision_are_what_they_were() -> None:
    graph = tn.layer("y[b,c] = mean[n](x[b,n] * W[n,c])", inputs="x")
    x, w = torch.zeros(2, 0), torch.zeros(0, 3)
    assert torch.isnan(tn.compile(graph, backend="torch")({"W": w}, x)).all()
    long = np.full((1, 70_000), 1.5, "float16"), np.ones((70_000, 2), "float16")
    np.testing.assert_array_equal(tn.compile(graph)({"W": long[1]}, long[0]), np.full((1, 2), 1.5))


# ---------------------------------------------------------------------------- ones at told positions

SIZES = {"b": 3, "s": 4, "n": 4, "v": 5, "c": 2, "d": 3, "r": 2, "k": 2, "f": 4, "h": 2, "W0": 5, "W1": 5}
LENGTHS = [{}, {"s": 1, "r": 0}, {"b": 1, "c": 1}, {"b": 0, "n": 0}, {"s": 0, "c": 0}, {"f": 0}]
LIBRARIES = [("numpy", "array-api-strict"), ("torch",), ("jax",)]


@pytest.mark.parametrize(
    ("title", "lengths", "kind", "libraries"),
    covered(
        [title for title in REWRITTEN if title not in PRINTED],
        LENGTHS,
        ["int64", "int32", "uint8", "int8"],
        LIBRARIES,
    ),
)
def test_products_with_ones_are_rewritten(
    title: str, lengths: dict[str, int], kind: str, libraries: tuple[str, ...]
) -> None:
    """Positions outside choose nothing, and add to nothing; some are told twice, or none are."""
    by, sizes = REWRITTEN[title].said["by"], {**SIZES, **lengths}
    written = REWRITTEN[title].graph()
    arrays = drawn(written, **sizes)
    low, high = (0, 5) if by == "products by groups" else (-3, 8)
    positions = np.random.default_rng(1).integers(low * (kind != "uint8"), high, arrays["t"].shape)
    arrays["t"] = positions.astype(kind)
    changed = REWRITES[by](holding(written, {"t": Element.WHOLE}))
    assert "onehot" not in str(changed)
    assert REWRITTEN[title].said.get("makes", "") in str(changed)
    assert of_tensors(changed)["y"] is Element.NUMBER
    expected = oracle.meaning(written, arrays, sizes)["y"]
    for backend, each in itertools.product(libraries, (written, changed)):
        if each is written or by != "scatter" or backend != "array-api-strict":
            library = BACKENDS[backend]()
            given = {name: library.asarray(array) for name, array in arrays.items()}
            run = tn.compile(each, backend=library, params=those_of(each, given))
            found = run(*(given[leaf.name] for leaf in each.inputs))
            np.testing.assert_allclose(library.numpy(found), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "float64"])
@pytest.mark.parametrize("rows", [0, 1, 5, 4000])
def test_no_row_is_read_that_is_not_there(dtype: str, rows: int) -> None:
    """A table may be empty, and positions anywhere or no positions at all."""
    graph = tn.layer("y[b,c] = onehot[v](t[b]) * E[v,c]", inputs="t E", c=64)
    t, E = np.array([0, 1, 4, 200]).astype(dtype), normal(rows, 64)
    expected = (t[:, None] == np.arange(rows)) @ E
    np.testing.assert_allclose(tn.compile(graph)({}, t, E), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        *itertools.product(["numpy", "torch", "jax"], ["float16"]),
        *itertools.product(["torch", "jax"], ["bfloat16"]),
        *itertools.product(["numpy", "torch"], ["complex64"]),
    ],
)
def test_long_sums_do_not_stall_in_short_types(backend: str, dtype: str) -> None:
    """5,000 ones are 5,000, though in 16 bits 2,048 + 1, or 256 + 1, is not."""
    library = load_backend(backend)

    def told(text: str) -> tn.Graph:
        return holding(tn.layer(text, inputs="t x", v=100, c=3), {"t": Element.WHOLE})

    t = library.asarray(np.zeros(5000, dtype=np.int64))
    x = library.asarray(np.ones((5000, 3)), dtype=dtype)
    compiled = tn.compile(told("y[v,c] = onehot[v](t[s]) * x[s,c]"), backend=backend)
    counted = tn.compile(told("y[v,c] = sum[s](onehot[v](t[s])) * x[c]"), backend=backend)
    for found in (compiled({}, t, x), counted({}, t, x[0])):
        assert library.dtype(found) == dtype
        expected = np.zeros((100, 3))
        expected[0] = 5000
        np.testing.assert_allclose(np.abs(library.numpy(found)), expected, rtol=2e-3)


@pytest.mark.parametrize("read", ["y[b] = h[e] * w[b]", "y[b] = mean[e](h[e]) * w[b]"])
def test_terms_stay_together_where_one_tells_the_size_of_another(read: str) -> None:
    """The positions are as many as the input has, and no other name says so."""
    graph = tn.layer(f"h[d] = x[d] + tanh(index(d))\n{read}", inputs="x", d=3)
    for rewrite in ("distribute", "average first"):
        changed = REWRITES[rewrite](graph)
        assert changed.open_sizes == graph.open_sizes


# ---------------------------------------------------------------------------- what no rewrite may change

HUGE = 2**40
FIXED = {
    "a mean counts the axes that no factor has": (
        "average first", "h[b,n,m] = x[b,n] * repeat[m](w[n]) * w[n]\ny[b] = mean[n,m](h[b,n,m])", {"m": 4},
        {"x": np.ones((2, 3)), "w": np.full(3, 2.0)}, [4.0, 4.0],
    ),
    "so does a sum": (
        "fuse", "h[n,m] = repeat[m](w[n])\ny[b] = x[b,n] * h[n,m]", {"m": 4},
        {"x": np.ones((2, 3)), "w": np.ones(3)}, [12.0, 12.0],
    ),
    "a sum of integers is exact": (
        "fuse", "h[b] = t[b,i] * u[i]\ny[b] = x[b] * h[b]", {},
        {"t": np.array([[2**53, 1, 1, -(2**53)]]), "u": np.ones(4, int), "x": np.ones(1)}, [2.0],
    ),
    "and is not multiplied out": (
        "distribute", "h[b,k] = t[b,i] * u[i,k] + v[k]\ny[b] = x[k] * h[b,k]", {},
        {"t": np.full((1, 2**13), HUGE), "u": np.ones((2**13, 5), int), "v": np.full(5, 1 - 2**13 * HUGE), "x": np.ones(5)},
        [5.0],
    ),
}  # fmt: skip
"""Rewrites made in any case, of a text and sizes, with what is given and what comes out."""


@pytest.mark.parametrize("title", FIXED)
def test_no_rewrite_changes_a_value(title: str) -> None:
    name, text, sizes, arrays, expected = FIXED[title]
    graph = tn.layer(text, inputs=" ".join(arrays), **sizes)
    graph = holding(graph, {each: Element.WHOLE for each, array in arrays.items() if array.dtype == int})
    found = by_numpy(REWRITES[name](graph), arrays)["y"]
    np.testing.assert_array_equal(found, expected)


def test_what_nothing_is_added_to_stays_where_another_row_is_no_number() -> None:
    text = "y[v,w,c] = 0\ny[t[n],s[n],c] += z[n,c]"
    graph = holding(tn.layer(text, inputs="t s z", v=3, w=4), dict.fromkeys("ts", Element.WHOLE))
    changed = passed("one-hot elimination", "grouped_outer")(graph)
    arrays = {"t": np.array([0, 2]), "s": np.array([1, 3]), "z": np.array([[np.nan], [1.0]])}
    assert np.isnan(by_numpy(changed, arrays)["y"]).sum() == 1


def test_a_call_that_makes_less_is_given_less() -> None:
    """What made an operand of dropped results alone goes too, however deep these are."""
    inner = tn.layer("u[i] = tanh(x[i])\nv[i] = exp(z[i])", inputs="x z", outputs="u v")
    (dim,) = inner.inputs[0].dims

    def around(block: tn.Graph) -> tn.Graph:
        leaves = tuple(Leaf(name, "input", (dim,)) for name in ("x", "z"))
        (first,) = tn.layer("z_1[i] = 2 * z[i]", inputs="z").own
        call = Apply(block, ("x", "z_1"), ("u", "v"), "inner")
        return tn.Graph(leaves, (first, call), ("u", "v"))

    graph = replace(around(around(inner)), outputs=("u",))
    (call,) = eliminate_dead_code(graph).body
    assert (call.operands, [leaf.name for leaf in call.graph.inputs]) == (("x",), ["x"])
    (within,) = call.graph.body
    assert (within.operands, [leaf.name for leaf in within.graph.leaves]) == (("x",), ["x"])


def test_an_operand_that_alone_tells_a_size_stays() -> None:
    block = tn.layer("u[i,k] = repeat[k](tanh(x[i]))\nv[k] = exp(z[k])", inputs="x z", outputs="u v")
    leaves = tuple(replace(leaf, kind="input") for leaf in block.inputs)
    graph = tn.Graph(leaves, (Apply(block, ("x", "z"), ("u", "v"), "inner"),), ("u",))
    (call,) = eliminate_dead_code(graph).calls
    assert call.operands == ("x", "z")


# ---------------------------------------------------------------------------- The pass pipeline


ATTENTION = """
s[b,h,i,j] = q[b,h,i,d] * k[b,h,j,d] / sqrt(d)
p[b,h,i,j] = softmax[j](s)
y[b,i,h,d] = p[b,h,i,j] * v[b,h,j,d]
"""


FREE = {"expansion", "known totals", *(each.name for each in SIMPLIFICATION)}
"""The passes that always pay."""


def graphs(seed: int, count: int) -> Iterator[tn.Graph]:
    """Random graphs as passes get them: without calls and recurrences."""
    for number in range(count):
        try:
            graph = program(seed, number).graph().flat
        except tn.TensornetError:
            continue
        if not graph.recurrences:
            yield graph


def test_a_pass_that_always_pays_asks_no_cost() -> None:
    def cost(part: tn.Graph) -> float:
        raise AssertionError("asked")

    changed = set()
    context = PassContext(cost)
    for written in map(program_of, graphs(8, 120)):
        for each in PIPELINE:
            if each.name in FREE and each.run(written, context).function != written.function:
                changed.add(each.name)
    assert {"gather pushdown at one position", "contraction fusion"} <= changed


def test_the_trace_shows_each_pass_that_changed_the_equations() -> None:
    texts: list[str] = []
    layer = tn.layer(ATTENTION, inputs="q, k, v", b=2, h=2, i=8, j=8, d=4)
    plan = tn.plan(layer, backend="torch", trace=texts.append)
    names = [text.splitlines()[0] for text in texts]
    assert names == ["# as written", "# kernel selection"]
    assert texts[0].splitlines()[1:] == layer.lines()
    assert "scaled_dot_product_attention" in texts[1]
    assert str(plan) == str(tn.plan(layer, backend="torch"))
    assert not is_traced()


def test_the_trace_shows_blocks_however_often_they_are_planned() -> None:
    layer = tn.layer("h[t,c] = tanh(h[t-1,k]*W[c,k] + x[t,c])", inputs="x", t=3, c=4)
    texts: list[str] = []
    for _ in range(2):
        tn.plan(layer, trace=texts.append)
    names = [text.splitlines()[0] for text in texts]
    assert names == 2 * ["# as written", "# scans", "# block"]


def test_an_axis_may_be_called_as_an_argument() -> None:
    layer = tn.layer("y[trace] = 2 * x[trace]", inputs="x")
    assert dict(tn.plan(layer, trace=5).sizes) == {"trace": 5}
    assert dict(tn.plan(tn.layer("y[mesh] = 2 * x[mesh]", inputs="x"), mesh=5).sizes) == {"mesh": 5}


def test_the_command_line_traces_beside_what_machines_read() -> None:
    found = CliRunner().invoke(
        app, ["plan", "y[i] = x[i]*w[j]*v[j] + 0*x[i]", "--inputs", "x", "--trace", "--json"]
    )
    assert found.exit_code == 0
    assert "# as written" in found.stderr
    assert tn.Plan.from_json(found.stdout)
