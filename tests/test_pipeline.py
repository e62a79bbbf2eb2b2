"""The pass pipeline: passes that always pay, and the trace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

import tensornet as tn
from tensornet.cli import app
from tensornet.ir.rewriting import PassContext
from tensornet.passes.pipeline import PIPELINE, SIMPLIFICATION, is_traced, program_of

from .programs import SUMMED_ALONE, program

pytestmark = pytest.mark.filterwarnings(SUMMED_ALONE)

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
