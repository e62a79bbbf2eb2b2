"""The planner: that it finds what an exhaustive count finds, and that plans say the truth."""

from __future__ import annotations

import gc
import itertools
import json
import math
import pickle
import random
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from benchmarks.model import trees
from tensornet.codegen import program
from tensornet.contraction.order_search import Search, Tree, _programmed, left_to_right
from tensornet.contraction.pairs import Pricing, Problem, Strategy, flatten
from tensornet.device.calibration import bounded, load_profile, save_profile
from tensornet.device.cost_model import COLUMNS, DeviceProfile, default_profile
from tensornet.files import Store
from tensornet.graph.element_types import holding
from tensornet.lowering import pointwise
from tensornet.ops.table import Element
from tensornet.planning import planner

from .conftest import fresh, sampled
from .damage import BYTES, DOCUMENTS
from .differential import BACKENDS
from .programs import Titled, titled

CPU = default_profile("cpu")


def ways_of(
    pricing: Pricing,
    a: Any,
    b: Any,
    kept: Any,
    wanted: Any = None,
    readers: Any = (),
    bound: float = math.inf,
) -> list[Strategy]:
    """The ways to contract two tensors within a bound, one for each layout of the result, each in seconds."""
    limits = (pricing.bounds(frozenset(a), frozenset(b), kept)[1], bound)
    found = pricing.priced(a, b, kept, wanted, readers, limits).values()
    return [Strategy(*fields, seconds) for seconds, fields in found]


MEASURED = replace(
    CPU, bandwidth=2e10, near_bandwidth=4e10, held_bandwidth=8e10, turned=1e-11,
    product=2e-6, cores=1.9, grain=131072.0,
    widths=(
        (3, 45, 49, 40, 50, 47, 60, 26, 37, 17, 28, 28, 38, 32, 42, 48, 56, 64),
        (3, 5, 7, 10, 17, 19, 27, 27, 37, 17, 28, 28, 39, 32, 40, 48, 56, 64),
        (3, 58, 81, 38, 94, 79, 135, 27, 38, 18, 28, 28, 39, 32, 41, 48, 56, 64),
    ),
    starts=(
        (73, 72, 90, 177, 220, 75, 150, 85, 116, 60, 133, 100, 174, 129, 176, 209, 264, 299),
        (64, 398, 558, 381, 606, 548, 777, 104, 141, 82, 159, 129, 202, 160, 217, 248, 307, 328),
        (45, 107, 149, 186, 155, 182, 160, 121, 157, 93, 171, 143, 214, 176, 224, 262, 318, 349),
    ),
)  # fmt: skip
"""A processor whose memory is slower than its caches, and that takes few columns for many."""


@st.composite
def problems(draw: Any, most: int = 4) -> Problem:
    letters = "abcdef"
    sizes = {letter: draw(st.sampled_from([1, 2, 8, 64, 1000])) for letter in letters}
    axes = st.lists(st.sampled_from(letters), min_size=1, max_size=3, unique=True).map(tuple)
    layouts = draw(st.lists(axes, min_size=2, max_size=most))
    everything = sorted(set(itertools.chain(*layouts)))
    kept = frozenset(draw(st.sets(st.sampled_from(everything))))
    alone = {a for layout in layouts for a in layout if sum(a in other for other in layouts) == 1}
    profile = draw(st.sampled_from([CPU, MEASURED]))
    return Problem(tuple(layouts), kept | frozenset(alone), None, sizes, profile, 4)


@given(problems())
def test_no_order_is_faster_than_the_one_found(problem: Problem) -> None:
    count = len(problem.layouts)
    bound, _ = Search(problem).along(left_to_right(count))
    best = min(bound, Search(problem).exhaustive(bound)[0])
    assert best == Search(problem).exhaustive()[0]
    for tree in trees(tuple(range(count)), count):
        assert best <= Search(problem).along(tree)[0] * (1 + 1e-9)


@st.composite
def pairs(draw: Any) -> Problem:
    """Two tensors with axes of every kind."""
    shared, summed, rows, columns = kinds = ("b", "s", "mi", "nj")
    sizes = {letter: draw(st.sampled_from([1, 3, 8, 64, 1000])) for letter in "".join(kinds)}
    layouts = tuple(tuple(draw(st.permutations(shared + summed + own))) for own in (rows, columns))
    kept = frozenset(shared * draw(st.booleans()) + rows + columns)
    profile = draw(st.sampled_from([CPU, MEASURED]))
    return Problem(layouts, kept, None, sizes, profile, 4)


@given(pairs())
def test_bounds_leave_out_nothing_that_keeps_to_them(problem: Problem) -> None:
    """No way to contract a pair is faster than is said, and the fastest is found where nothing slower is looked at."""
    (a, b), pricing = problem.layouts, problem.pricing
    least = min(way.seconds for way in ways_of(pricing, a, b, problem.kept))
    assert pricing.bounds(frozenset(a), frozenset(b), problem.kept)[0] <= least * (1 + 1e-9)
    bounded = ways_of(pricing, a, b, problem.kept, bound=least * (1 + 1e-9))
    assert min((way.seconds for way in bounded), default=math.inf) == least


@given(problems(5))
def test_dynamic_programming_finds_the_tree_of_least_estimate(problem: Problem) -> None:
    search, count = Search(problem), len(problem.layouts)
    found = _programmed(search)
    least = min(search.total(tree, search.estimate) for tree in trees(tuple(range(count)), count))
    assert search.total(found, search.estimate) <= least * (1 + 1e-9)


def _inside(search: Search, tree: Tree, count: int) -> tuple[int, float]:
    """How many pairs of a tree have no summed axis in common, and what is estimated of the others."""
    subsets, outer, seconds = [1 << number for number in range(count)], 0, 0.0
    for one, other in tree:
        a, b = subsets[one], subsets[other]
        if search.axes_of(a) & search.axes_of(b) <= search.problem.kept:
            outer += 1
        else:
            seconds += search.estimate(a, b)
        subsets.append(a | b)
    return outer, seconds


@given(problems(5))
def test_among_many_operands_each_piece_is_ordered_best(problem: Problem) -> None:
    """Without outer products but those that join pieces."""
    search, count = Search(problem), len(problem.layouts)
    fewest, least = min(_inside(search, tree, count) for tree in trees(tuple(range(count)), count))
    with mock.patch("tensornet.contraction.order_search.OUTER", 0):
        found = _programmed(search)
    outer, seconds = _inside(search, found, count)
    assert outer == fewest
    assert seconds <= least * (1 + 1e-9)


@pytest.mark.parametrize(("kept", "groups"), [("bmn", (4, 3, 5, 2)), ("bmkn", None)])
def test_an_estimate_is_the_time_of_the_product_wherever_its_tensors_lie(kept: str, groups: Any) -> None:
    sizes = {"b": 4, "m": 5, "n": 3, "k": 2}
    search = Search(Problem((("m", "b", "k"), tuple("knb")), frozenset(kept), None, sizes, CPU, 4))
    moved, written = 4 * (40 + 24 + 120), 4 * 120
    expected = CPU.matmul(*groups, 4) if groups else CPU.pointwise(moved, written)
    assert search.estimate(1, 2) == pytest.approx(expected)


def tcl(batch: int, sizes: tuple[int, ...], ranks: tuple[int, ...]) -> tn.Plan:
    return tn.plan(tn.models.tcl(sizes, ranks), profile=CPU, lead=batch)


def test_the_right_order_depends_on_the_sizes() -> None:
    """Weights come first where that is fast, although it takes more FLOPs."""
    found = tcl(100_352, (4, 4, 6), (4, 4, 6))
    assert str(found.steps[-1].equation) == "y[...,(r1,r2,r3)] = x[...,i1,i2,i3] * t2[r1,r2,r3,i1,i2,i3]"
    rows = {row.name: row for row in found.alternatives}
    assert rows["fewest FLOPs"].flops < found.flops
    assert rows["fewest FLOPs"].seconds > found.seconds
    large = tcl(6_272, (8, 8, 6), (8, 16, 12))
    assert not any("x[" in str(step.equation) and "r1,r2,r3" in str(step.equation) for step in large.steps)


def test_plan_prints_and_counts() -> None:
    graph = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=4, o=2)
    found = tn.plan(graph, profile=CPU, b=10)
    assert str(found).splitlines()[:2] == [
        "plan for numpy on cpu, float32, at b=10",
        "  1  y[b,o] = x[b,i] * W[o,i]      160 FLOP      272 B    2.62 µs",
    ]
    assert (found.flops, found.bytes, found.peak_memory) == (160, 4 * (40 + 8 + 20), 4 * (40 + 8 + 20))
    assert tn.plan(graph, b=10, memory_limit=272).peak_memory == 272
    assert found.flop_formula == sympy.sympify("2*b*i*o")
    document = json.loads(found.to_json())
    assert document["steps"][0]["equation"]["text"] == "y[b,o] = x[b,i] * W[o,i]"
    assert document["flops"] == 160


def test_alternatives_are_planned_when_they_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = tn.layer("y[b,p,q] = x[b,i,j] * U[p,i] * V[q,j]", inputs="x", i=4, j=5, p=2, q=3)
    asked = list[str]()
    find = planner._alternatives
    monkeypatch.setattr(planner, "_alternatives", lambda *given: asked.append("") or find(*given))
    found, other, sent = tn.plan(graph, b=8), tn.plan(graph, b=8), tn.plan(graph, b=8)
    assert not asked
    assert [row.name for row in found.alternatives] == ["as written", "fewest FLOPs"]
    assert found.alternatives[0] in found.alternatives
    assert len(asked) == 1
    assert found == other
    assert hash(found.alternatives) == hash(other.alternatives)
    for again in (tn.Plan.from_json(sent.to_json()), pickle.loads(pickle.dumps(sent))):
        assert again == found
        assert type(again.alternatives) is tuple
        assert str(again) == str(found)
    assert tn.plan(graph, b=8, compare=False).alternatives == ()


def test_the_collector_of_garbage_waits_while_a_plan_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, schedule = list[bool](), program.schedule
    monkeypatch.setattr(program, "schedule", lambda *given: seen.append(gc.isenabled()) or schedule(*given))
    graph = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=3, o=4)
    tn.plan(graph, b=4)
    assert (seen, gc.isenabled()) == ([False], True)
    with pytest.raises(tn.ShapeError, match="not open"):
        tn.plan(graph, nobody=4)
    assert gc.isenabled()


def test_a_size_may_be_given_under_each_name_that_has_it() -> None:
    graph = tn.layer("s[b,i,j] = x[b,i,d] * x[b,j,d]", inputs="x", d=3)
    assert tn.plan(graph, b=2, i=4, j=4, d=3) == tn.plan(graph, b=2, i=4)


def test_formulas() -> None:
    graph = tn.layer("y[b,p,q] = x[b,i,j] * U[p,i] * V[q,j]", inputs="x", i=4, j=6, p=2, q=3)
    assert str(tn.flop_formula(graph, naive=True)) == "2*b*i*j*p*q"
    assert tn.flop_count(graph, naive=True) == sympy.sympify("288*b")
    assert tn.flop_count(graph, naive=True, b=5) == 1440
    assert tn.flop_count(graph, b=10**5) == 2 * (4 * 6 * 2 * 3) * (10**5 + 1)
    assert str(tn.flop_formula(graph, b=10**5)) == "2*b*i*j*p*q + 2*i*j*p*q"


def test_code_is_readable_and_the_same_every_time() -> None:
    graph = tn.layer(
        "y[b,p,q,r] = x[b,i,j,k] * U[p,i] * V[q,j] * W[r,k]", inputs="x", i=4, j=4, k=3, p=4, q=4, r=6
    )
    code = tn.plan(graph, backend="torch", profile=CPU, b=100_352).code
    assert code == tn.plan(graph, backend="torch", profile=CPU, b=100_352).code
    assert code.splitlines() == [
        "def forward(x, U, V, W):",
        '    """y[b,p,q,r] = x[b,i,j,k] * U[p,i] * V[q,j] * W[r,k]"""',
        "    b = x.shape[0]",
        "    t1 = V.reshape(4, 1, 4, 1) * W.reshape(6, 1, 3)  # t1[q,r,j,k] = V[q,j] * W[r,k]",
        "    t2 = U.reshape(4, 1, 1, 4, 1, 1) * t1.reshape(4, 6, 1, 4, 3)"
        "  # t2[p,q,r,i,j,k] = U[p,i] * t1[q,r,j,k]",
        "    del t1",
        "    y = large_linear(x.reshape(b, 48), t2.reshape(96, 48))"
        "  # y[b,(p,q,r)] = x[b,i,j,k] * t2[p,q,r,i,j,k]",
        "    return y.reshape(b, 4, 4, 6)",
    ]


# ---- constants of a device on disk

DEVICE = replace(CPU, key="a device")
FIELDS = [field.name for field in fields(DeviceProfile) if field.name != "key"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TENSORNET_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("profile", [DEVICE, CPU, default_profile("cuda:0")], ids=lambda each: each.key)
def test_constants_are_kept_and_of_a_damaged_file_nothing_is_believed(
    profile: DeviceProfile, cache: Path
) -> None:
    path = save_profile(profile)
    assert path is not None
    assert load_profile(profile.key) == profile
    draw, whole = random.Random(0), path.read_bytes()
    for way in (*BYTES.values(), *DOCUMENTS.values()):
        for _ in range(20):
            path.write_bytes(way(whole, draw))
            assert load_profile(profile.key) in (None, profile)


MAY_BE_ZERO = "small turned unrest product grain scored"
SMALL = (5e-324, 1e300, 0.0, -1.0)
NEVER = dict.fromkeys(MAY_BE_ZERO.split(), (-1.0, 1e300)) | {"spread": (5e-324, 1e300, 0.0, -1.0, 0.5)}
"""What these constants cannot be; 0 and what is next to it are good values of all but the last."""


TABLE = ((1e4,) * len(COLUMNS),) * 3
WHOLE = bounded(replace(DEVICE, widths=TABLE, starts=TABLE))
LATER = ("widths", "starts", "cores")
"""Constants that earlier versions did not measure."""


def test_what_no_device_has_is_measured_again(cache: Path) -> None:
    """Nor is a constant believed that is missing, or of another shape."""
    wrong = [(name, value) for name in FIELDS for value in (*NEVER.get(name, SMALL), math.nan, math.inf)]
    wrong += [("widths", ()), ("starts", ()), ("cores", True)]
    written = [{**asdict(WHOLE), name: value} for name, value in wrong]
    written += [{key: each for key, each in asdict(WHOLE).items() if key != name} for name in LATER]
    for each in written:
        assert Store(cache, "device").write("a device", each) is not None
        assert load_profile("a device") is None, each
    assert save_profile(WHOLE) is not None
    assert load_profile("a device") == WHOLE


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("value", [-1.0, 1e300])
def test_what_is_measured_is_cut_off_where_no_device_has_it(value: float) -> None:
    table = ((value,) * len(COLUMNS),) * 3
    wild: dict[str, Any] = {**dict.fromkeys(FIELDS, value), "widths": table, "starts": table}
    found = bounded(DeviceProfile(key="a device", **wild))
    assert save_profile(found) is not None
    assert load_profile("a device") == found
    assert bounded(CPU) == CPU


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
def test_where_nothing_can_be_written_nothing_is_left_behind(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        assert save_profile(DEVICE) is None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(cache.iterdir()) == []
    (cache / "file").touch()
    for place in (str(cache / "file"), "/proc/nowhere"):
        monkeypatch.setenv("TENSORNET_CACHE", place)
        assert save_profile(DEVICE) is None


# ---- steps


@st.composite
def factors(draw: Any) -> tuple[dict[str, int], tuple[str, ...], tuple[str, ...]]:
    """Two tensors of some axes, each in any order."""
    sizes = {axis: draw(st.integers(2, 3)) for axis in "abcde"}
    axes = st.lists(st.sampled_from("abcde"), min_size=1, max_size=5, unique=True).map(tuple)
    return sizes, draw(axes), draw(axes)


@given(factors(), st.integers(0, 2))
def test_an_elementwise_product_lies_as_planned(
    case: tuple[dict[str, int], tuple[str, ...], tuple[str, ...]], reader: int
) -> None:
    """In torch and in NumPy, which choose an order by themselves."""
    sizes, one, other = case
    kept = frozenset((*one, *other))
    readers = (kept - set(one), frozenset(one[:1]), frozenset(other[:2]))[reader]
    for way in ways_of(Problem((), kept, None, sizes, CPU, 4).pricing, one, other, kept, None, [readers]):
        first, second = (other, one) if way.swapped else (one, other)
        result = flatten(way.result)

        def seen(layout: tuple[str, ...], result: tuple[str, ...] = result) -> np.ndarray:
            array = np.ones([sizes[axis] for axis in layout])
            array = array.transpose([layout.index(axis) for axis in result if axis in layout])
            return array[tuple(slice(None) if axis in layout else None for axis in result)]

        a, b = seen(first), seen(second)
        assert (a * b).flags.c_contiguous
        assert (torch.from_numpy(a) * torch.from_numpy(b)).is_contiguous()


@pytest.mark.parametrize(
    "line", ["relu(x[b,i,t]*W[o,i] + c[o])", "softmax[t](x[b,i,t]*W[o,i] + c[o])", "x[b,i,t]*W[b,o,i] + c[o]"]
)
def test_no_bias_asks_for_an_order_that_spares_no_step(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = tn.layer(f"h[b,o,t] = {line}\ny[b,p,t] = h[b,o,t]*V[p,o]", inputs="x", i=8, o=8, p=8)
    found = tn.plan(graph, b=1, t=1024, backend="torch")
    monkeypatch.setattr(pointwise, "_order_with_bias", lambda *given: None)
    assert found.steps == tn.plan(graph, b=1, t=1024, backend="torch").steps


PLANNED = titled("planned.txt")


def planned(case: Titled, graph: tn.Graph, backend: str) -> tn.Plan:
    """A plan at the sizes of a record, and within half its memory if that says so."""
    library, sizes = BACKENDS.get(backend, lambda: backend)(), case.numbers("at")
    plan = tn.plan(graph, backend=library, profile=CPU, **sizes)
    if "halved" in case.said:
        plan = tn.plan(graph, backend=library, profile=CPU, memory_limit=plan.peak_memory // 2, **sizes)
    return plan


@pytest.mark.parametrize("name", PLANNED)
def test_what_is_planned(name: str) -> None:
    """FLOPs, bytes, steps, and what the code has, of programs whose values are those of the written ones.

    What `holds` is Python of the plan and its sizes, in whose code and steps a line ends with '|'.
    """
    case, said = PLANNED[name], PLANNED[name].said

    def parts(word: str) -> list[str]:
        return said[word].split(" | ") if word in said else []

    graph = holding(case.graph(), dict.fromkeys(said.get("whole", "").split(), Element.WHOLE))
    for backend in said.get("on", "numpy").split():
        plan = planned(case, graph, backend)
        code = "".join(plan.code.split('"""')[::2])
        assert plan.flops == sympy.sympify(said.get("flops", plan.flops))
        assert (
            sympy.sympify(said.get("flops above", -1))
            < plan.flops
            < sympy.sympify(said.get("flops below", "oo"))
        )
        assert plan.peak_memory == sympy.sympify(said.get("bytes", plan.peak_memory))
        assert plan.peak_memory < sympy.sympify(said.get("bytes below", "oo"))
        assert all(each in code for each in parts("has"))
        assert all(code.count(each) == 1 for each in parts("once"))
        assert not [each for each in parts("lacks") if each in code]
        assert parts("steps") == [str(step.equation) for step in plan.steps if "steps" in said]
        assert [row.flops for row in plan.alternatives if row.name in said] == [
            sympy.sympify(each) for each in parts("as written")
        ]
        steps = "|".join(str(step.equation) for step in plan.steps if hasattr(step, "equation"))
        known = {**dict(plan.sizes), **graph.bound, "plan": plan, "flops": plan.flops, "steps": steps}
        known |= {"memory": plan.peak_memory, "code": plan.code.replace("\n", "|")}
        if "beside" in said:
            known["other"] = planned(case, tn.layer(said["beside"], inputs=said["inputs"]), backend)
        assert not [claim for claim in said.get("holds", "True").split("; ") if not eval(claim, known)]
        assert tn.Plan.from_json(plan.to_json()) == plan


# ---- the same plan in every process


MANY = """
import random
import tensornet as tn
attention = tn.models.tensor_window_attention((4, 4, 6), (2, 2, 3), 4)
print(tn.plan(attention, b=3, m=2, n=2, backend="numpy").code)
random.seed(5)
before = random.getstate()
factors = " * ".join(f"U{n}[{chr(97 + n)},{chr(98 + n)}]" for n in range(18))
print(tn.plan(tn.layer(f"y[a,s] = {factors}", inputs="U0", **{chr(97 + n): 2 + n % 4 for n in range(19)})).code)
assert random.getstate() == before  # what opt_einsum draws is not taken from the caller
"""


def test_a_plan_is_the_same_in_every_process() -> None:
    """Also above six operands, where opt_einsum searches: sets of letters are walked by chance, sets of numbers not."""
    assert len({fresh(MANY, PYTHONHASHSEED=seed) for seed in "012"}) == 1


# ---------------------------------------------------------------------------- many lines


LINES = ("y{2}[b,o] = tanh(y{1}[b,i] * W{2}[o,i])", "y{2}[b,o] = y{1}[b,i] * W{2}[o,i]")


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("line", sampled(LINES, LINES[:1]))
def test_twice_as_many_lines_take_twice_the_work(line: str, known: bool) -> None:
    """Work is counted in calls of functions of the library."""

    def work(lines: int) -> int:
        text = "\n".join(line.format("", n, n + 1) for n in range(lines))
        calls = 0

        def count(frame: Any, event: str, _: Any) -> None:
            nonlocal calls
            calls += event == "call" and "tensornet" in frame.f_code.co_filename

        sys.setprofile(count)
        try:
            graph = tn.layer(text, inputs="y0[b,i]", i=8, o=8)
            if known:
                graph = tn.freeze(graph, tn.init(graph, seed=0, backend="numpy"), "*")
            tn.plan(graph, backend="numpy", b=4)
        finally:
            sys.setprofile(None)
        return calls

    work(100)  # imports, and what is kept between plans
    assert work(400) < 2.3 * work(200)
