"""Sums written into one of their terms: the same sums, and nothing else is written."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.planning import in_place, planner
from tensornet.planning.plans import CallStep, Plan
from tensornet.runtime import executable

from . import oracle
from .conftest import examples, those_of
from .differential import drawn, outcome
from .programs import SUMMED_ALONE, Program, programs, titled

pytestmark = pytest.mark.filterwarnings(SUMMED_ALONE)

torch = pytest.importorskip("torch")


@contextlib.contextmanager
def of_any_size() -> Iterator[None]:
    """Sums of any size are written so, and no plan that says it is left behind."""
    plans = (executable._made, planner._function, planner._product)
    for each in plans:
        each.cache_clear()
    with patch.object(in_place, "IN_CACHE", 0):
        yield
    for each in plans:
        each.cache_clear()


@pytest.fixture
def everywhere() -> Iterator[None]:
    with of_any_size():
        yield


def written(plan: Plan) -> list[str]:
    """The tensors that sums are written into, in the order of the steps."""
    return [step.into for step in plan.steps if not isinstance(step, CallStep) and step.into]


def residual() -> tuple[Any, dict[str, Any], Any]:
    graph = tn.layer("t[b,i,o] = x[b,i,c] * W[o,c]\ny[b,i,o] = x[b,i,o] + t[b,i,o]", inputs="x[b,i,c]", c=128)
    draw = torch.Generator().manual_seed(0)
    params = {"W": torch.randn(128, 128, generator=draw) / 11}
    return graph, params, torch.randn(64, 32, 128, generator=draw)


# ---------------------------------------------------------------------------- which sums

PROGRAMS = titled("overwriting.txt")


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_written_into(name: str, backend: str, everywhere: None) -> None:
    wanted = PROGRAMS[name].said["written"] == "yes" and backend != "jax"
    graph, sizes = PROGRAMS[name].graph(), {"b": 5, "c": 8, "o": 8, "p": 4, "q": 2}
    f, arrays = tn.compile(graph, backend=backend), drawn(graph, **sizes)
    given = tn.to_backend(arrays, backend)
    found = f(those_of(graph, given), *(given[leaf.name] for leaf in graph.inputs))
    assert bool(written(f.plan)) is wanted
    assert ("added(" in f.plan.code or "subtracted(" in f.plan.code) is wanted
    expected = oracle.meaning(graph, arrays, sizes)
    for output, one in zip(graph.outputs, found if isinstance(found, tuple) else (found,), strict=True):
        np.testing.assert_allclose(np.asarray(one), expected[output], rtol=2e-4, atol=2e-4)


def test_small_sums_are_written_as_ever() -> None:
    graph, _, _ = residual()
    assert not written(tn.plan(graph, backend="torch", b=8, i=32))
    plan = tn.plan(graph, backend="torch", b=64, i=32)
    assert written(plan) == ["t"]
    assert "y = added(" in plan.code
    assert Plan.from_json(plan.to_json()) == plan


def test_a_block_of_a_transformer_is_as_long_as_it_was() -> None:
    code = tn.plan(tn.models.create("vit_s_16"), backend="torch", b=8, compare=False).code
    block = code.split("def ")[1]
    assert block.count("added(F.linear(") == 2
    assert len([line for line in block.split('"""')[2].splitlines() if line.strip()]) <= 12


def test_a_plan_that_writes_into_what_others_need_is_refused() -> None:
    graph, _, _ = residual()
    document = json.loads(tn.plan(graph, backend="torch", b=64, i=32).to_json())
    document["steps"][-1]["into"] = "x"
    with pytest.raises(tn.EquationError, match="step 2 writes into 'x', which others need"):
        Plan.from_json(json.dumps(document))


# ---------------------------------------------------------------------------- nothing else is written


@examples(20)
@given(programs(), st.sampled_from(["numpy", "torch"]))
def test_what_is_given_is_never_written(case: Program, backend: str) -> None:
    with of_any_size():
        assert not outcome(case, backend).startswith(("wrong", "raw"))


# ---------------------------------------------------------------------------- who else looks on


@pytest.mark.parametrize("rows", ["b", "b,i"])
def test_gradients_and_theirs(rows: str, everywhere: None) -> None:
    text = f"t[{rows},o] = x[{rows},c] * W[o,c] + u[o]\ns[{rows},o] = x[{rows},o] + t[{rows},o]\ny[{rows},o] = tanh(s) - s * s"
    graph = tn.layer(text, inputs=f"x[{rows},c]", c=3)
    draw = torch.Generator().manual_seed(1)
    shape = (2, 3) if rows == "b" else (2, 2, 3)
    given = [torch.randn(each, generator=draw, dtype=torch.float64) for each in (shape, (3, 3), (3,))]
    for each in given:
        each.requires_grad_()
    f = tn.compile(graph, backend="torch")

    def run(x: Any, w: Any, u: Any) -> Any:
        return f({"W": w, "u": u}, x)

    run(*given)
    assert written(f.plan)
    assert torch.autograd.gradcheck(run, given)
    assert torch.autograd.gradgradcheck(run, given)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_transforms_forward_mode_and_a_compiler_see_a_sum() -> None:
    graph, params, x = residual()
    f = tn.compile(graph, backend="torch")
    expected = f(params, x)
    assert written(f.plan)

    def total(weight: torch.Tensor) -> torch.Tensor:
        return f({"W": weight}, x).sum()

    slope = x.sum((0, 1)).expand(128, 128)
    torch.testing.assert_close(torch.func.grad(total)(params["W"]), slope, rtol=1e-3, atol=1e-2)
    mapped = torch.func.vmap(lambda x: f(params, x[None]))(x)
    torch.testing.assert_close(mapped[:, 0], expected)
    _, moved = torch.func.jvp(total, (params["W"],), (torch.ones(128, 128),))
    torch.testing.assert_close(moved, slope.sum(), rtol=1e-3, atol=1.0)
    compiled = torch.compile(f, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(params, x), expected)


def test_autocast_adds_in_the_longer_type() -> None:
    graph, params, x = residual()
    f = tn.compile(graph, backend="torch")
    expected = f(params, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = f(params, x)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, expected, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_longer_type_beside_a_product_is_kept(backend: str) -> None:
    own = tn.protocol.load_backend(backend).namespace()
    made, other = (np.ones((2, 3), dtype) for dtype in ("float32", "float64"))
    made, other = (made, other) if backend == "numpy" else (torch.from_numpy(made), torch.from_numpy(other))
    for name, value in (("added", 2.0), ("subtracted", 0.0)):
        found = own[name](made, other)
        assert found.dtype == other.dtype
        assert float(found.sum()) == 6 * value
        assert float(made.sum()) == 6


def test_a_call_takes_the_memory_of_a_sum_less() -> None:
    graph, params, x = residual()
    f = tn.compile(graph, backend="torch")
    f(params, x)
    whole = x.nbytes
    assert f.plan.peak_memory == 2 * whole + params["W"].nbytes
