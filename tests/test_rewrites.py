"""Rewrites: that each keeps every value, and that each is made where it pays; their trace."""

from __future__ import annotations

import itertools
import re
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

from . import oracle
from .conftest import examples
from .differential import by_numpy, computed
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


REWRITES = {
    "there and back": lambda graph: program_of(graph).graph, "prune": eliminate_dead_code, "simplify": lambda graph: simplify(graph).graph,
    "fuse": passed("contraction fusion"), "narrow": passed("gather pushdown at one position"),
    "distribute": passed("distribution"), "average first": passed("reduction pushdown"),
    "gather first": passed("gather pushdown"), "select": passed("one-hot elimination"),
    "scatter": passed("one-hot elimination", "scatter_add"),
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


def test_rewrites_print_as_mathematics() -> None:
    graph = tn.layer(
        "h[b,p] = x[b,i]*U[p,i]\ny[b,q] = h*V[q,p]\nunused[b] = x[b,i]\nz[b] = exp(y[b,q])*w[q] + exp(y[b,r])*v[r]",
        inputs="x", outputs="z unused",
    )  # fmt: skip
    graph = replace(graph, outputs=("z",))
    assert [str(equation) for equation in simplify(graph).graph.equations] == [
        "y[b,q] = x[b,i] * U[p,i] * V[q,p]",
        "z_1[b,q] = exp(y[b,q])",
        "z[b] = z_1[b,q] * w[q] + z_1[b,r] * v[r]",
    ]


def test_what_reads_what_is_alike_is_alike() -> None:
    """`d` says what `c` does only once `u` is `a`, whatever the axes that they keep are called."""
    graph = tn.layer(
        """
        a[b,i] = exp(x[b,i])
        u[n,j] = exp(x[n,j])
        c[b]   = a[b,i] * w[i]
        d[n]   = u[n,i] * w[i]
        e[n]   = u[n,i] * v[i]
        y[b]   = c[b] + 2 * d[b] + e[b]
        """,
        inputs="x",
        b=2,
        i=3,
    )
    shared = program_of(graph).graph
    assert [equation.name for equation in shared.equations] == ["a", "c", "e", "y"]
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(shape) for name, shape in [("x", (2, 3)), ("w", 3), ("v", 3)]}
    np.testing.assert_allclose(by_numpy(shared, arrays)["y"], oracle.meaning(graph, arrays)["y"])


def test_what_occurs_twice_is_computed_once_where_its_own_tensors_tell_its_sizes() -> None:
    """Rounded in two ways, no element would equal the largest; a size that only the place tells keeps parts apart."""
    product = "x[k + t] * u[t] * w[k] * v[k] / sqrt(k)"
    graph = tn.layer(
        f"""
        r[n:3]: parameter
        q[n:4]: parameter
        y[k,t] = where({product} == max[k]({product}), 1, 0)
        z[k,n] = exp(a[k] / sqrt(n)) * r[n]
        s[k,n] = exp(a[k] / sqrt(n)) * q[n]
        """,
        inputs="x",
        outputs="y z s",
    )
    assert [str(each) for each in program_of(graph).graph.equations] == [
        "y_1[k,t] = x[k+t] * u[t] * w[k] * v[k] / sqrt(k)",
        "y[k,t] = where(y_1[k,t] == max[k_1](y_1[k_1,t]), 1, 0)",
        "z[k,n] = exp(a[k] / sqrt(3)) * r[n]",
        "s[k,n] = exp(a[k] / sqrt(4)) * q[n]",
    ]


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


PUSHED = titled("pushdown.txt")
"""What a result may be made of, and the FLOPs where one row of it is computed, or its average is taken first."""


@pytest.mark.parametrize("at", ["0", "-1", "2"])
@pytest.mark.parametrize("name", [name for name in PUSHED if name.startswith("one row of ")])
def test_an_index_moves_in_front_of_what_makes_the_tensor(name: str, at: str) -> None:
    text = PUSHED[name].text
    sizes = {"b": 7, "i": 5, "c": 4, "o": 3, "p": 3} | ({"o": 6} if "h[b,i,p]" in text else {})
    told = {axis: size for axis, size in sizes.items() if f"{axis}" in text}
    graph = tn.layer(f"{text}\nz[b,r] = y[b,{at},r]", inputs="x[b,i,c]", **told)
    assert tn.plan(graph, profile=CPU).flops == int(PUSHED[name].said["flops"])


def test_a_row_that_a_tensor_tells_is_computed_alone_where_that_is_less() -> None:
    text = "h[b,v,d] = gelu(E[b,v,c] * W[d,c])\ny[b,k,d] = h[b,t[b,k],d]"
    graph = tn.layer(text, inputs="t E", b=3, v=4000, c=64, d=32)
    few, many = (tn.plan(graph, profile=CPU, k=k).flops for k in (2, 50_000))
    assert (few, many) == (2 * 3 * 2 * 64 * 32, 2 * 3 * 4000 * 64 * 32)
    with pytest.raises(tn.ShapeError, match="'t' holds the position 4000, where there are 4000"):
        tn.compile(graph)({"W": np.ones((32, 64))}, np.full((3, 2), 4000), np.ones((3, 4000, 64)))


def test_random_numbers_are_drawn_where_they_are_written() -> None:
    """A mask of the whole tensor is not one of a row, nor drawn twice where a product is taken apart."""
    graph = tn.layer("y[b,i] = dropout(x[b,i], 0.5)\nz[b] = y[b,0]", inputs="x", i=4)
    assert REWRITES["narrow"](graph) == graph
    graph = tn.layer("y[b,o] = dropout(x[b,i], 0.5) * (A[o,i] + u[i])", inputs="x", i=4, o=3)
    assert str(REWRITES["distribute"](graph)).count("dropout") == 1


# ---------------------------------------------------------------------------- averages


@pytest.mark.parametrize("name", [name for name in PUSHED if name.startswith("an average of ")])
def test_an_average_is_taken_of_what_has_the_axis(name: str) -> None:
    text, flops = PUSHED[name].text, PUSHED[name].said.get("flops")
    sizes = {axis: size for axis, size in {"c": 40, "o": 30, "p": 30}.items() if axis in text}
    axes = "b,n,c" if "y[b,n,c]" in text else "b,n,o"
    kept = axes.replace(",n", "")
    graph = tn.layer(f"{text}\nz[{kept}] = mean[n](y[{axes}])", inputs="x", n=2000, **sizes)
    assert flops is None or tn.plan(graph, profile=CPU, b=7).flops == int(flops)


def test_averages_over_several_axes_part() -> None:
    graph = tn.layer("z[b] = mean[i,j](x[b,i] * y[b,j])", inputs="x y", i=200, j=300)
    (equation,) = REWRITES["average first"](graph).own
    assert str(equation) == "z[b] = mean[i](x[b,i]) * mean[j](y[b,j])"


@pytest.mark.parametrize(
    ("text", "equation"),
    [
        ("z[b,c] = mean[n](x[b,n] * W[n,c])", "z[b,c] = sum[n](x[b,n] * W[n,c]) / n"),
        (
            "z[b,c] = tanh(mean[n,m](x[b,n] * y[n,m] * W[m,c]))",
            "z[b,c] = tanh(sum[m,n](x[b,n] * y[n,m] * W[m,c]) / n / m)",
        ),
        ("z[b] = mean[n](x[b,n] * sum[k](x[b,k] * y[k,n]))", "z[b] = sum[n](x[b,n] * sum[k](x[b,k] * y[k,n])) / n"),
        ("h[b,n,c] = x[b,n] * W[n,c]\nz[b,c] = mean[n](h)", "z[b,c] = sum[n](x[b,n] * W[n,c]) / n"),
        ("h[b,i,c] = x[b,i] * W[i,c]\nz[n,c] = mean[i](h[n,i,c])", "z[n,c] = sum[i](x[n,i] * W[i,c]) / i"),
    ],
)  # fmt: skip
def test_an_average_of_a_product_whose_factors_share_an_axis_is_a_contraction(
    text: str, equation: str
) -> None:
    graph = tn.layer(text, inputs="x[b,n] y[n,m]" if "y[" in text else "x")
    (found,) = REWRITES["average first"](graph).own
    assert str(found) == equation
    assert program_of(passed("reduction pushdown", sums=False)(graph)).function == program_of(graph).function


def test_such_an_average_takes_as_much_memory_as_the_sum() -> None:
    sizes = {"b": 64, "n": 512, "c": 128}
    averaged, summed = (
        tn.plan(tn.layer(f"y[b,c] = {name}[n](x[b,n] * W[n,c] * v[n])", inputs="x"), **sizes)
        for name in ("mean", "sum")
    )
    assert averaged.flops == summed.flops
    assert averaged.peak_memory == summed.peak_memory


def test_an_average_of_nothing_and_one_in_half_precision_are_what_they_were() -> None:
    graph = tn.layer("y[b,c] = mean[n](x[b,n] * W[n,c])", inputs="x")
    x, w = torch.zeros(2, 0), torch.zeros(0, 3)
    assert torch.isnan(tn.compile(graph, backend="torch")({"W": w}, x)).all()
    long = np.full((1, 70_000), 1.5, "float16"), np.ones((70_000, 2), "float16")
    np.testing.assert_array_equal(tn.compile(graph)({"W": long[1]}, long[0]), np.full((1, 2), 1.5))


# ---------------------------------------------------------------------------- ones at told positions

SIZES = {"b": 3, "n": 4, "v": 5, "c": 2, "d": 3}


ONES = [
    "y[b,c] = onehot[v](t[b]) * x[v,c]",
    "y[n] = sum[b,v](z[b] * onehot[v](t[b,n]) * x[v])",
    "y[b,d] = sum[c,v](abs(x[v,c,d]) * onehot[v](t[b] + 2 - 2))",
    "y[c,d] = sum[v](x[v,c,d] * onehot[v](maximum(t[c,d], -9)) * z[v])",
    "o[b,n,v] = onehot[v](t[b,n])\ny[c] = sum[b,n,v](o[b,n,v] * x[v,c,n] * z[b,c])",
    "y = sum[v,n](onehot[v](t[n]) * x[v,n] * z[v])",
    "y[c] = onehot[v](t) * x[v,c]",
]


@pytest.mark.parametrize("text", ONES)
def test_rows_at_told_positions_are_read(text: str) -> None:
    """Also where the positions are outside, which choose nothing."""
    draw, axes = np.random.default_rng(0), dict(re.findall(r"\b([txz])\[([a-z,]+)\]", text))
    shapes = {name: [SIZES[axis] for axis in own.split(",")] for name, own in axes.items()}
    shapes.setdefault("t", [])
    arrays = {name: draw.integers(-9, 10, shape) / 4 for name, shape in shapes.items()}  # exact in 32 bits
    arrays["t"] = draw.integers(-3, SIZES["v"] + 3, shapes["t"])
    inputs = [name if shapes[name] else f"{name}[()]" for name in arrays]
    graph = holding(tn.layer(text, inputs=inputs), {"t": Element.WHOLE})
    expected = oracle.meaning(graph, arrays)["y"]
    changed = REWRITES["select"](graph)
    assert "onehot" not in str(changed)
    assert of_tensors(changed)["y"] is Element.NUMBER
    for backend in ("numpy", "torch", "jax"):
        np.testing.assert_allclose(computed(changed, arrays, backend)["y"], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "float64"])
@pytest.mark.parametrize("rows", [0, 1, 5, 4000])
def test_no_row_is_read_that_is_not_there(dtype: str, rows: int) -> None:
    """A table may be empty, and positions anywhere or no positions at all."""
    graph = tn.layer("y[b,c] = onehot[v](t[b]) * E[v,c]", inputs="t E", c=64)
    t, E = np.array([0, 1, 4, 200]).astype(dtype), np.random.default_rng(0).standard_normal((rows, 64))
    expected = (t[:, None] == np.arange(rows)) @ E
    np.testing.assert_allclose(tn.compile(graph)({}, t, E), expected, rtol=1e-12)


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
    assert isinstance(call, Apply)
    assert (call.operands, [leaf.name for leaf in call.graph.inputs]) == (("x",), ["x"])
    (within,) = call.graph.body
    assert isinstance(within, Apply)
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
