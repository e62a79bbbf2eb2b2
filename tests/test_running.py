"""What runs and remembers: every call looks, parameters have names, and all of it goes to other processes."""

from __future__ import annotations

import gc
import itertools
import linecache
import math
import pickle
import random
import threading
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy
import torch

import tensornet as tn
from tensornet.backends import cupy
from tensornet.codegen.context import identifier, remark
from tensornet.graph.graph import Graph
from tensornet.protocol import backend_of
from tensornet.runtime import executable

from .conftest import fresh, stacked

DENSE = tn.layer("y[b,o] = x[b,i] * W[o,i] + u[o]", inputs="x", i=3, o=2)
W, U = np.arange(6.0).reshape(2, 3), np.array([1.0, -1.0])
X = np.array([[1.0, 2.0, 3.0], [0.0, -1.0, 1.0]])
Y = X @ W.T + U


def on(backend: str, *arrays: np.ndarray) -> list[Any]:
    return [tn.to_backend({"a": array}, backend)["a"] for array in arrays]


# ---- every call looks at its arrays


def test_a_lone_number_on_the_processor_goes_with_any_device() -> None:
    """After calls on another."""
    f = tn.compile(tn.layer("y[i] = beta * x[i]", inputs="x[i] beta[()]"), backend="torch")
    f({}, torch.ones(3), torch.tensor(2.0))
    assert f({}, torch.ones(3, device="meta"), torch.tensor(2.0)).device.type == "meta"


def test_arrays_of_another_element_type_have_constants_of_that_type() -> None:
    graph = tn.layer("y[i] = c[i] * x[i]", inputs="x", constants={"c": np.array([0.1, 0.2])})
    f = tn.compile(graph)
    for dtype in (np.float32, np.float64, np.float32):
        found = f({}, np.ones(2, dtype))
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, np.array([0.1, 0.2], dtype))


def test_devices_of_cupy_need_no_hash() -> None:
    class Device:
        id = 0
        __hash__ = None  # type: ignore[assignment]

    class Array:
        shape, dtype, device = (2, 3), np.dtype("float32"), Device()

    assert len({cupy.backend.call_cache(8).signature([Array()]) for _ in range(2)}) == 1


def test_a_function_that_ran_is_compiled_whole() -> None:
    f = tn.compile(DENSE, backend="torch", params={"W": W, "u": U})
    f(torch.tensor(X))
    compiled = torch.compile(lambda x: f(x), fullgraph=True, backend="eager")
    np.testing.assert_array_equal(compiled(torch.tensor(X)).numpy(), Y)


# ---- parameters by name


def test_a_function_that_did_not_run_says_how_it_is_compiled_whole() -> None:
    f = tn.compile(tn.layer("y[i] = 3 * x[i]", inputs="x"), backend="torch")
    x = torch.ones(7)
    with pytest.raises(Exception, match=r"first call with such arrays\. fix: call it once with such arrays"):
        torch.compile(lambda x: f({}, x), fullgraph=True, backend="eager")(x)
    f({}, x)
    assert torch.equal(torch.compile(lambda x: f({}, x), fullgraph=True, backend="eager")(x), 3 * x)


def test_parameters_in_any_mapping_which_are_trained_as_they_are() -> None:
    held = torch.nn.ParameterDict({"W": torch.tensor(W), "u": torch.tensor(U)})
    x = torch.tensor(X)
    for found in (
        tn.compile(DENSE, backend="torch")(held, x),
        tn.compile(DENSE, backend="torch", params=held)(x),
    ):  # type: ignore[arg-type]
        np.testing.assert_array_equal(found.detach().numpy(), Y)
        (gradient,) = torch.autograd.grad(found.sum(), held["W"])
        np.testing.assert_array_equal(gradient.numpy(), np.tile(X.sum(0), (2, 1)))


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_function_that_holds_its_parameters(backend: str) -> None:
    f = tn.compile(DENSE, backend=backend, params={"u": torch.tensor(U), "W": W})
    (x,) = on(backend, X)
    for held in (f, pickle.loads(pickle.dumps(f))):
        np.testing.assert_array_equal(np.asarray(held(x)), Y)
    low = tn.compile(DENSE, backend=backend, params={"W": W, "u": U}, dtype="float32")
    assert "float32" in str(low(*on(backend, X.astype("float32"))).dtype)


def test_a_module_starts_from_given_parameters() -> None:
    w = torch.tensor(W)
    module = tn.module(DENSE, params={"W": w, "u": U})
    np.testing.assert_array_equal(module(torch.tensor(X)).detach().numpy(), Y)
    assert module.W.dtype == torch.float64
    with torch.no_grad():
        module.W.zero_()
    np.testing.assert_array_equal(w.numpy(), W)
    module.reset_parameters(seed=1)
    assert module.W.abs().sum() > 0
    short = tn.module(DENSE, params={"W": w, "u": U}, dtype="bfloat16", device="meta")
    assert (short.W.dtype, short.W.device.type) == (torch.bfloat16, "meta")
    assert tn.module(DENSE, params={"W": w, "u": U}, device="meta").W.device.type == "meta"


# ---- sizes


def test_sizes_bind_in_functions_and_modules() -> None:
    assert tn.module(DENSE, b=5)(torch.ones(5, 3)).shape == (5, 2)
    module = tn.module(DENSE, plan_at={"b": 4096})
    assert dict(module.plan.sizes) == {"b": 4096}
    assert module(torch.ones(5, 3)).shape == (5, 2)


@pytest.mark.parametrize("value", [4, np.int64(4), np.uint8(4), sympy.Integer(4), np.array(4)], ids=repr)
def test_any_whole_number_is_a_size(value: Any) -> None:
    text = "y[b,o] = x[b,i] * W[o,i] + u[o]"
    assert tn.layer(text, inputs="x", i=3, o=2, b=value) == DENSE.bind(b=value) == DENSE.bind(b=4)
    assert tn.model(lambda x: DENSE(x), inputs="x[b,i]", b=value).bound["b"] == 4
    assert tn.compile(DENSE, b=value)({"W": W, "u": U}, np.ones((4, 3))).shape == (4, 2)
    assert dict(tn.module(DENSE, plan_at={"b": value}).plan.sizes) == {"b": 4}
    assert tn.plan(DENSE, b=value).sizes == (("b", 4),)
    assert tn.flop_count(DENSE, b=value) == 2 * 4 * 3 * 2


SETTINGS = (
    "backend device dtype profile memory_limit compare outputs params seed plan_at tune sizes graph training"
)


@pytest.mark.parametrize("axis", SETTINGS.split())
def test_an_axis_with_the_name_of_a_setting(axis: str) -> None:
    graph = tn.layer(f"y[{axis},o] = x[{axis},i] * W[o,i]", inputs="x")
    np.testing.assert_array_equal(tn.compile(graph)({"W": W}, X), X @ W.T)
    assert tn.module(graph, params={"W": W})(torch.tensor(X)).shape == (2, 2)
    if axis in ("graph", "training", "sizes"):  # which are no settings where sizes are given
        np.testing.assert_array_equal(tn.compile(graph, **{axis: 2})({"W": W}, X), X @ W.T)
        assert tn.plan(graph, **{axis: 2}).sizes != tn.plan(graph).sizes


# ---- results


MLP = """
h[b,f] = gelu(x[b,i] * W[f,i])
y[b,o] = h * V[o,f]
"""


def deep() -> Graph:
    block = tn.layer(MLP, inputs="x", i=3, f=4, o=3)
    return stacked(*((block, f"blocks.{n}") for n in range(3)), inputs="x[b,i]", i=3)


def by_hand(params: dict[str, np.ndarray], x: np.ndarray) -> dict[str, np.ndarray]:
    found = {}
    for n in range(3):
        before = torch.tensor(x @ params[f"blocks.{n}.W"].T)
        found[f"blocks.{n}.h"] = torch.nn.functional.gelu(before).numpy()
        found[f"blocks.{n}.y"] = x = found[f"blocks.{n}.h"] @ params[f"blocks.{n}.V"].T
    return found


def test_the_results_to_compute_are_chosen() -> None:
    graph = deep()
    params = tn.init(graph, init={"*": 0.5}, seed=0, dtype="float64")
    expected = by_hand(params, X)
    names = ["blocks.2.y", "blocks.0.h", "blocks.1.h", "blocks.2.h"]
    f = tn.compile(graph, outputs="blocks.2.y blocks.*.h")
    assert f.graph.outputs == tuple(names)
    assert f.graph.inputs == graph.inputs
    assert f.graph.parameters == graph.parameters
    module = tn.module(graph, params=params, outputs=["blocks.2.y", "blocks.*.h"])
    for results in (f(params, X), module(torch.tensor(X))):
        for name, result in zip(names, results, strict=True):
            np.testing.assert_allclose(torch.as_tensor(result).detach(), expected[name], rtol=1e-12)
    one = tn.compile(graph, params=params, outputs="blocks.1.y")(X)
    np.testing.assert_allclose(one, expected["blocks.1.y"], rtol=1e-12)
    assert [result.name for result in tn.plan(graph, outputs="blocks.*.y").results] == [
        f"blocks.{n}.y" for n in range(3)
    ]


# ---- element types that a library does not have


def test_bfloat16_becomes_float32_where_there_is_none() -> None:
    value = torch.tensor([1.0, 3.140625, -1e30]).bfloat16()
    found = tn.to_backend({"W": value.requires_grad_()}, "numpy")["W"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, value.detach().float().numpy())
    assert tn.to_backend({"W": value}, "numpy", dtype="float64")["W"].dtype == np.float64
    assert tn.to_backend({"W": value}, "torch")["W"].dtype == torch.bfloat16
    assert tn.to_backend({"W": torch.ones(2, dtype=torch.float16)}, "numpy")["W"].dtype == np.float16
    assert tn.to_backend({"W": torch.ones(2, dtype=torch.bool)}, "numpy")["W"].dtype == np.bool_
    assert backend_of(value).numpy(value).dtype == np.float32


# ---- names in generated code


@pytest.mark.parametrize("text", ["y[b,o] = x[b,i] * W[o,i]", "z[...,(h,d)] = x² − ∑ a·b", "blocks.0.y[b]"])
def test_mathematics_is_a_remark(text: str) -> None:
    assert remark(text) == text


def test_names_that_python_takes_for_one() -> None:
    taken: set[str] = set()
    assert len({identifier(name, taken) for name in ("fi", "ﬁ", "x", "𝑥", "a.b", "a_b", "if", "0.a")}) == 8


# ---- in other processes

tn.register("spawned", numpy=np.cbrt, torch=torch.tanh)
tn.register("left", numpy=lambda a: a + 1, torch=lambda a: a + 1)


WORKER = """
import pickle, sys
import tensornet as tn, numpy as np
for data in pickle.load(sys.stdin.buffer):
    try:
        made, arguments = pickle.loads(data)
        found = (tn.compile(made) if isinstance(made, tn.Graph) else made)(*arguments)
    except tn.BackendError as error:
        found = str(error)
    print(repr(getattr(found, "tolist", lambda: found)()))
"""


def test_all_goes_to_a_fresh_process() -> None:
    graph = tn.layer("y[i] = spawned(x[i] * g[i])", inputs="x")
    x, params = np.array([8.0, 27.0]), {"g": np.array([1.0, 8.0])}
    f = tn.compile(graph)
    expected = f(params, x).tolist()
    lost = tn.compile(tn.layer("y[i] = left(x[i])", inputs="x"))
    np.testing.assert_array_equal(lost({}, x), x + 1)
    module = tn.module(tn.layer("y[i] = spawned(x[i] * g[i])", inputs="x"), params=params)
    sent: list[Any] = [
        (f, (params, x)),
        (tn.compile(graph, params=params), (x,)),
        (graph, (params, x)),
        (module, (torch.tensor(x),)),
        (lost, ({}, x)),
    ]
    lines = fresh(WORKER, sent=[pickle.dumps(each) for each in sent]).splitlines()
    for line in lines[:3]:
        np.testing.assert_allclose(eval(line), expected)
    np.testing.assert_allclose(eval(lines[3]), np.tanh(params["g"] * x))
    assert "'left' was registered in another process" in lines[4]
    assert "tensornet.register('left'" in lines[4]


def test_hashes_are_made_anew_in_another_process() -> None:
    made = """
import pickle, sys
import tensornet as tn
graph = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=3, o=2)
own = [graph, tn.plan(graph, b=4), *graph.body, *graph.leaves]
"""
    told = """
for mine, theirs in zip(own, pickle.loads(sys.stdin.buffer.read()), strict=True):
    print(mine == theirs and hash(mine) == hash(theirs))
"""
    here: dict[str, Any] = {}
    exec(made, here)
    assert len({*here["own"]}) == len(here["own"])  # each hash is kept beside its value
    assert fresh(made + told, sent=here["own"]).split() == ["True"] * len(here["own"])


@pytest.mark.parametrize("backend", ["numpy", "torch", "array_api_strict"])
def test_a_function_is_pickled_after_it_ran(backend: str) -> None:
    library = pytest.importorskip(backend)
    chosen: Any = backend_of(library.asarray(U)) if backend == "array_api_strict" else backend
    w, u, x = (library.asarray(array) for array in (W, U, X))
    f = tn.compile(DENSE, backend=chosen, memory_limit=10**6)
    first = np.asarray(f({"W": w, "u": u}, x))
    twin = pickle.loads(pickle.dumps(f))
    np.testing.assert_array_equal(np.asarray(twin({"W": w, "u": u}, x)), first)
    assert twin.graph == f.graph
    with pytest.raises(tn.BackendError, match="memory_limit is 1,000,000"):
        twin({"W": w, "u": u}, library.ones((10**5, 3), dtype=library.float64))


# ---- what is remembered


def entries() -> int:
    return sum(name.startswith("<tensornet") for name in linecache.cache)


def test_sources_leave_with_their_functions() -> None:
    """So many functions are remembered for all who ask for the same; what is forgotten leaves nothing."""
    executable._made.cache_clear()
    assert executable._made.cache_info().maxsize == executable.PLANS
    gc.collect()
    before = entries()
    made = [tn.compile(DENSE, b=b) for b in range(1, 9)]
    for b, f in enumerate(made, 1):
        f({"W": W, "u": U}, np.ones((b, 3)))
    assert entries() == before + 8
    del made, f
    executable._made.cache_clear()
    gc.collect()
    assert entries() <= before  # others' may have gone meanwhile


def test_a_traceback_shows_the_generated_line() -> None:
    f = tn.compile(tn.layer("y[i,c] = E[t[i],c]", inputs="t"))
    with pytest.raises(tn.ShapeError, match="holds the position 7") as caught:
        f({"E": W}, np.array([7]))
    assert "within(t" in "".join(traceback.format_exception(caught.value))


def test_a_function_remembers_so_many_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executable, "SHAPES", 8)
    monkeypatch.setattr(executable, "PLANS", 3)
    f = tn.compile(DENSE)
    for b in [*range(1, 40), 3, 1000, 1, 10**5, 7]:
        np.testing.assert_array_equal(f({"W": W, "u": U}, np.ones((b, 3))), np.tile(W.sum(1) + U, (b, 1)))
        assert len(f.calls._known) <= 8
        assert len(f._by_size) <= 3
        assert abs(math.log2(dict(f.plan.sizes)["b"]) - math.log2(b)) < 20


# ---- threads


def test_planning_in_a_thread_draws_nothing_from_the_caller() -> None:
    letters = "abcdefghijklmnopqrstu"
    factors = " * ".join(f"U{n}[{a},{b}]" for n, (a, b) in enumerate(itertools.pairwise(letters)))
    graph = tn.layer(
        f"y[a,u] = {factors}", inputs="U0", **{axis: 2 + n % 4 for n, axis in enumerate(letters)}
    )
    thread = threading.Thread(target=tn.plan, args=(graph,))
    mine = random.Random(3)
    random.seed(3)
    thread.start()
    while thread.is_alive():
        assert random.random() == mine.random()
    thread.join()


# ---------------------------------------------------------------------------- plans are made once


def test_equal_graphs_share_a_function() -> None:
    """A second module of a graph, and a batch of about the same size, plan nothing."""
    text = "y[b,o] = gelu(x[b,i] * W[o,i]) * Z[o]"
    first, second = (tn.compile(tn.layer(text, inputs="x", i=3, o=4)) for _ in range(2))
    given = {"W": np.ones((4, 3)), "Z": np.ones(4)}
    arrays = [np.ones((64, 3)), given["W"], given["Z"]]
    program = first.ready(arrays).program
    assert second.ready(arrays).program is program
    assert first.ready([np.ones((65, 3)), *arrays[1:]]).program is program
    assert first.ready([np.ones((6400, 3)), *arrays[1:]]).program is not program
    assert first.plan is second.plan or first.plan.sizes != second.plan.sizes


def test_a_function_registered_anew_is_not_the_old_one() -> None:
    tn.register("twice", numpy=lambda a: a * 2)
    graph = tn.layer("y[i] = twice(x[i])", inputs="x")
    assert tn.compile(graph)({}, np.ones(2)).tolist() == [2, 2]
    tn.register("twice", numpy=lambda a: a * 3)
    assert tn.compile(graph)({}, np.ones(2)).tolist() == [3, 3]


def test_an_array_in_a_file_is_an_array(tmp_path: Path) -> None:
    x = np.memmap(tmp_path / "x", dtype="float64", mode="w+", shape=(2, 3))
    x[:] = 2.0
    f = tn.compile(tn.layer("y[b] = x[b,i] * W[i]", inputs="x"))
    np.testing.assert_array_equal(f({"W": np.ones(3)}, x), [6.0, 6.0])


def test_a_registered_function_need_not_hash() -> None:
    class Scale:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, a: Any) -> Any:
            return 4 * a

    tn.register("scaled", numpy=Scale())
    assert tn.compile(tn.layer("y[i] = scaled(x[i])", inputs="x"))({}, np.ones(2)).tolist() == [4, 4]
