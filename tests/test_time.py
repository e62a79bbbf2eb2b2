"""The model of time: what is measured, how sure it is, and that plans follow from it. No test asserts seconds."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet.contraction.order_search import Search, fastest
from tensornet.contraction.pairs import EXPANDED, Layout, Pricing, Problem, flatten
from tensornet.device.calibration import _Probe, _profile_of, load_profile, measure, profile_of, save_profile
from tensornet.device.cost_model import (
    COLUMNS,
    STORED,
    DeviceProfile,
    MemoryAccess,
    default_profile,
    memory_access,
)
from tensornet.protocol import load_backend

from .conftest import sampled
from .test_planner import ways_of

CPU = default_profile("cpu")

# ---------------------------------------------------------------------------- measuring


@pytest.mark.parametrize("backend", sampled(["numpy", "torch", "jax"], ["numpy"]))
def test_measured_constants_are_believed(
    backend: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORNET_CACHE", str(tmp_path))
    profile = measure(load_backend(backend), "cpu", rounds=1)
    assert 1e8 < profile.flops < 1e14
    assert 1e7 < profile.bandwidth < 1e13
    assert save_profile(profile) is not None
    assert load_profile(profile.key) == profile
    assert profile_of(load_backend(backend), "cpu") == CPU  # TENSORNET_CALIBRATE=0


def test_each_element_type_has_constants_of_its_own() -> None:
    torch = load_backend("torch")
    one, other = (measure(torch, "cpu", dtype, rounds=1) for dtype in ("float32", "float64"))
    assert one.key != other.key
    graph = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=512, o=512)
    seconds = {d: tn.plan(graph, dtype=d, backend="torch", b=512).seconds for d in ("float64", "bfloat16")}
    assert seconds["float64"] > 2 * seconds["bfloat16"]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[..., DeviceProfile]:
    """The constants of a device whose probes take what is told: of products or not, and of their shapes."""

    def measured(told: Callable[..., float], backend: str = "numpy") -> DeviceProfile:
        def seconds(probe: Any, source: str, *shapes: tuple[int, ...], repeats: int = 6) -> float:
            found = float(told(source == probe.backend.templates["matmul"], *shapes))
            probe.rounds[source, shapes] = [found]
            return found

        monkeypatch.setattr("tensornet.device.calibration._Probe.seconds", seconds)
        return measure(load_backend(backend), "cpu", rounds=1)

    return measured


@pytest.mark.parametrize("busy", [1, 1000])
def test_constants_are_those_of_a_device_that_keeps_to_them(busy: int, measured: Any) -> None:
    """And where others used the memory, the rate of products is at most twice what they show."""
    launch, flops, bandwidth = 2e-6, 3e11, 2e10

    def seconds(is_product: bool, *shapes: tuple[int, ...]) -> float:
        if is_product:
            (*batch, m, k), (*_, n) = shapes
            moved, work, held = math.prod(batch) * (m * k + k * n + m * n), math.prod((*batch, m, k, n)), 1
        else:
            moved, work, held = 2 * math.prod(map(max, zip(*shapes, strict=True))), 0, busy
        return launch + math.hypot(4 * moved * held / bandwidth, 2 * work / flops)

    found = measured(seconds)
    assert found.bandwidth == pytest.approx(bandwidth / busy, rel=0.01)
    assert flops * 0.99 < found.flops < flops * (1.01 if busy == 1 else 2.0)
    assert found.launch == pytest.approx(launch + 4 * 2 * 8 * busy / bandwidth, rel=0.01)


def test_what_cores_share_is_measured(measured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a device whose small steps take three times their share, and whose products begin late."""
    rate, begins, loop = 2e10, 3e-6, 2e-9

    def seconds(is_product: bool, *shapes: tuple[int, ...]) -> float:
        if is_product:
            (*batch, m, k), (*_, n) = shapes
            moved, work = 4 * math.prod(batch) * (m * k + k * n + m * n), 2 * math.prod((*batch, m, k, n))
            return 1e-6 + math.hypot(moved / rate, work / 3e11) + (begins if min(m, n) > 1 else 0.0)
        made = tuple(map(max, zip(*shapes, strict=True)))
        runs = math.prod(made[:-1]) if len(shapes) == 2 and len(made) == 3 else 0
        through = 4 * (math.prod(made) + sum(map(math.prod, shapes))) / rate + loop * runs
        return 1e-6 + through * (3.0 if 100 < math.prod(made) < 32_768 else 1.0)

    monkeypatch.setattr("tensornet.device.calibration.os.cpu_count", lambda: 16)
    found = measured(seconds)
    assert found.cores == pytest.approx(3.0, rel=0.2)
    assert found.product == pytest.approx(begins, rel=0.2)
    assert found.grain == 4 * 32_768


class Restless:
    """A backend whose operations take another time at each look."""

    def __init__(self, backend: Any, clock: list[float]) -> None:
        self.backend, self.clock, self.draw = backend, clock, random.Random(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def synchronize(self, device: str, *made: Any) -> None:
        self.clock[0] += self.draw.uniform(0.5, 2.0) ** 4


def test_the_built_in_constants_stand_in_for_those_of_a_loaded_device(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However far its times lie apart, it is measured once: the next process finds that, and says so."""
    monkeypatch.setenv("TENSORNET_CACHE", str(tmp_path))
    monkeypatch.setenv("TENSORNET_CALIBRATE", "1")
    clock = [0.0]
    monkeypatch.setattr("tensornet.device.calibration.time.perf_counter", lambda: clock[0])
    loaded: Any = Restless(load_backend("numpy"), clock)
    profile = profile_of(loaded, "cpu")
    assert not profile.is_steady
    assert CPU.is_steady
    assert replace(profile, key=CPU.key, unrest=CPU.unrest) == CPU
    kept = load_profile(profile.key)
    assert kept.unrest == profile.unrest
    _profile_of.cache_clear()
    assert profile_of(loaded, "cpu") == profile


def test_one_thread_is_measured_by_its_own_time_whatever_other_programs_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0, 0.0]
    monkeypatch.setattr("tensornet.device.calibration.time.perf_counter", lambda: sum(clock))
    monkeypatch.setattr("tensornet.device.calibration.time.process_time", lambda: clock[0])

    def work(x: object) -> None:
        clock[:] = clock[0] + 1e-3, clock[1] + 1.0

    for is_single, expected in ((True, 1e-3), (False, 1.001)):
        probe = _Probe(load_backend("numpy"), "cpu", "float32", is_single)
        monkeypatch.setitem(probe.names, "work", work)
        assert probe.seconds("work({0})", (8,)) == pytest.approx(expected)


def test_a_round_repeats_no_probe_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("tensornet.device.calibration.time.perf_counter", lambda: clock[0])
    calls = []

    def ran(seconds: float) -> int:
        calls.clear()
        probe = _Probe(load_backend("numpy"), "cpu", "float32")
        monkeypatch.setitem(
            probe.names, "work", lambda x: (calls.append(x), clock.append(clock.pop() + seconds))
        )
        assert probe.seconds("work({0})", (8,)) == pytest.approx(seconds)
        return len(calls)

    assert [ran(seconds) for seconds in (1e-3, 4e-3, 1.0)] == [7, 4, 2]


@pytest.mark.parametrize(
    ("seconds", "told", "rounds"),
    [(0.0, True, 4), (1.5, True, 2), (5.0, True, 1), (0.0, False, 4), (5.0, False, 2)],
)
def test_a_first_call_waits_for_no_further_round_when_those_before_took_long(
    seconds: float, told: bool, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, seen = [0.0], []

    def constants(probe: Any) -> None:
        clock[0] += seconds
        seen.append(probe)
        probe.found = CPU
        probe.rounds["a"] = [1.0]

    monkeypatch.setattr("tensornet.device.calibration._constants", constants)
    monkeypatch.setattr("tensornet.device.calibration._others", lambda probe: iter([(1.0, 1.0)]))
    monkeypatch.setattr("tensornet.device.calibration.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("tensornet.device.calibration.tells_of_others", lambda: told)
    measure(load_backend("numpy"), "cpu")
    assert len(seen) == rounds
    measure(load_backend("numpy"), "cpu", patience=math.inf)
    assert len(seen) == rounds + 4


def test_a_library_without_views_is_asked_for_few_products(measured: Any) -> None:
    """Which it compiles one by one; what lies between is told by those beside."""
    asked, found = dict[str, set[Any]](), dict[str, DeviceProfile]()
    for name in ("numpy", "jax"):
        probes = asked[name] = set()

        def seconds(*probe: Any, probes: set[Any] = probes) -> float:
            probes.add(probe)
            return 1e-6 + 1e-9 * sum(map(math.prod, probe[1:]))

        found[name] = measured(seconds, name)
    assert len(asked["jax"]) < 65 < 2 * len(asked["jax"]) < len(asked["numpy"])
    widths = found["jax"].widths
    assert widths[0] == widths[1] == widths[2]
    assert len(widths[0]) == len(found["numpy"].widths[0])
    assert widths[0][2] == pytest.approx((widths[0][1] + widths[0][3]) / 2)


# ---------------------------------------------------------------------------- products

EXTENT = st.integers(1, 10**3)


@given(st.integers(1, 10**6), EXTENT, EXTENT, EXTENT)
def test_time_grows_with_every_size(batch: int, m: int, n: int, k: int) -> None:
    """But where small matrices are too large for the plain loop, which takes longer than what large ones go by."""
    for small in (0.0, math.inf):
        profile = replace(CPU, small=small)
        one = profile.matmul(batch, m, n, k, 4)
        assert one > profile.launch
        for larger in (
            (batch + 1, m, n, k),
            (batch, m + 1, n, k),
            (batch, m, n + 1, k),
            (batch, m, n, k + 1),
        ):
            assert one <= profile.matmul(*larger, 4) * (1 + 1e-9)
        assert one <= profile.matmul(batch, m, n, k, 8)


@given(st.integers(1, 10**6), EXTENT, EXTENT, EXTENT)
def test_no_product_is_faster_than_its_arithmetic_or_its_memory(batch: int, m: int, n: int, k: int) -> None:
    profile = replace(CPU, small=0.0)
    seconds = profile.matmul(batch, m, n, k, 4)
    assert seconds >= 2.0 * batch * m * n * k / profile.flops
    assert seconds >= profile.stream(4.0 * batch * (m * k + k * n + m * n))


@given(st.integers(10, 10**5), *[st.integers(1, 64)] * 3)
def test_a_matrix_of_a_batch_costs_less_than_a_product_of_its_own(batch: int, m: int, n: int, k: int) -> None:
    """That is what batches are for. The first touch of a large result comes on top."""
    for usual in (CPU, default_profile("cuda:0")):
        profile = replace(usual, small=0.0, fresh_bytes=math.inf)
        assert profile.matmul(batch, m, n, k, 4) <= batch * profile.matmul(1, m, n, k, 4)


# ---------------------------------------------------------------------------- memory


@st.composite
def walks(draw: Any) -> tuple[Layout, list[Layout], dict[str, int]]:
    letters = draw(st.permutations("abcd"))[: draw(st.integers(1, 4))]
    sizes = {letter: draw(st.sampled_from([1, 2, 3, 5])) for letter in letters}
    operands = [
        tuple(draw(st.permutations(letters))[: draw(st.integers(1, len(letters)))])
        for _ in range(draw(st.integers(1, 2)))
    ]
    return tuple(letters), operands, sizes


def addresses(order: Layout, operand: Layout, sizes: Mapping[str, int]) -> Iterator[int]:
    """Where the elements of an operand lie, in the order in which a loop over the result comes to them."""
    for position in itertools.product(*(range(sizes[axis]) for axis in order)):
        at = dict(zip(order, position, strict=True))
        place = 0
        for axis in operand:
            place = place * sizes[axis] + at[axis]
        yield place


@given(walks())
def test_a_walk_counts_what_a_loop_over_the_elements_does(
    case: tuple[Layout, list[Layout], dict[str, int]],
) -> None:
    order, operands, sizes = case
    found = memory_access(order, operands, sizes, 4)
    elements = math.prod(sizes[axis] for axis in order)
    paths = [list(addresses(order, operand, sizes)) for operand in operands]
    assert found.written == 4 * elements
    assert found.moved == 4 * (elements + sum(len(set(path)) for path in paths))
    steps = [{b - a for a, b in itertools.pairwise(path)} for path in paths]
    if all(each <= {0} or each <= {1} for each in steps):
        assert (found.runs, found.scattered, found.lost, found.fetched) == (1, 0, 0, 0)
    inner = round(elements / found.runs)
    scattered = 0
    for path in paths:  # along an innermost loop an operand goes on by the same step
        within = {b - a for n, (a, b) in enumerate(itertools.pairwise(path), 1) if n % inner}
        assert len(within) <= 1
        scattered += elements if within and max(within) > 1 else 0
    assert found.scattered == scattered


def walk(order: str, operands: str, **sizes: int) -> MemoryAccess:
    """What a loop over axes in an order does to operands that lie so."""
    return memory_access(tuple(order), [tuple(each) for each in operands.split()], sizes, 4)


def pricing(**sizes: int) -> Pricing:
    return Problem((), frozenset(), None, sizes, CPU, 4).pricing


def test_a_copy_costs_its_memory_and_more_the_shorter_its_runs() -> None:
    seconds = []
    for run in (1000, 100, 10, 1):
        each = pricing(a=100, b=10_000 // run, c=run)
        copied = each.transpose_seconds(("a", "b", "c"), ("b", "a", "c"))
        assert copied > 2 * CPU.stream(4 * 10**6)
        seconds.append(copied)
    assert seconds == sorted(seconds)
    assert seconds[-1] > 2 * seconds[0]


@pytest.mark.parametrize("rows", [16, 64, 1024])
def test_lines_at_even_steps_are_lost_from_a_cache(rows: int) -> None:
    """A cache of 8 ways has one set for all lines that lie pages apart; at odd numbers of lines it has them all."""

    def again(columns: int) -> MemoryAccess:
        return walk("acb", "abc", a=2, b=rows, c=columns)

    even, odd = again(1024), again(1040)
    assert odd.lost == odd.fetched == 0
    assert even.lost > 0
    assert (even.fetched > 0) == (rows > 256)
    seconds = [CPU.access_seconds(each) / each.written for each in (odd, even)]
    assert seconds[0] < seconds[1] < 20 * seconds[0]


@pytest.mark.parametrize(
    ("order", "operands", "sizes", "expected"),
    [  # 64 lines three pages apart share a place of the first cache, whatever other two lie between
        ("dbca", "adcb", (64, 96, 2, 16), 64 * 16 * 2 * 96),
        ("dbca", "adcb", (64, 96, 2, 17), 0),
        ("acb", "abc", (2, 8, 1024), 0),
        ("bkn", "kbn", {"b": 1536, "k": 200, "n": 2}, 1536 * 200),
    ],
)
def test_lines_that_are_lost(order: str, operands: str, sizes: Any, expected: int) -> None:
    sizes = sizes if isinstance(sizes, dict) else dict(zip("abcd", sizes, strict=False))
    assert walk(order, operands, **sizes).lost == expected


def test_a_shallow_product_is_slower_than_its_share() -> None:
    """Its results are stored as those of a deep one are."""
    deep, shallow = (CPU.matmul(1, 4000, 64, k, 4) - CPU.launch for k in (64, 4))
    assert shallow > deep * (4 + STORED) / (64 + STORED) * (1 - 1e-9) > deep * 4 / 64


def test_matrices_in_pieces_take_as_long_as_the_lines_that_are_lost_between_them() -> None:
    """Pieces of a few elements, pages apart, that others of the batch lie between."""
    sizes = {"b": 1536, "k": 200, "n": 2}
    each = pricing(**sizes)
    beside, apart = (
        each.matrices(layout, ("b",), ("k",), ("n",))[0] for layout in (("b", "k", "n"), ("k", "b", "n"))
    )
    assert apart.seconds - beside.seconds >= CPU.near_line * 1536 * 200


def test_a_small_matrix_of_many_is_multiplied_quickly_along_what_is_summed() -> None:
    profile = replace(CPU, along=CPU.plain / 3)
    across, along, crossed = (
        profile.matmul(1000, 4, 4, 8, 4, turned, crossed) - profile.launch - 2 * profile.view
        for turned, crossed in ((False, False), (True, False), (True, True))
    )
    assert across == pytest.approx(3 * along)
    assert across == pytest.approx(crossed)


def test_a_small_step_takes_one_core_as_long_as_all_take_for_so_many() -> None:
    alone, shared = (replace(CPU, grain=grain, cores=3.0) for grain in (2.0**20, 0.0))

    def seconds(profile: DeviceProfile, rows: int, order: str = "ab") -> float:
        sizes = {"a": rows, "b": 12}
        return profile.access_seconds(memory_access(list(order), ["ab", "a"], sizes, 4)) - profile.launch

    for order in ("ab", "ba"):
        assert seconds(alone, 20_000, order) == pytest.approx(3 * seconds(shared, 20_000, order))
        assert seconds(alone, 30_000, order) == seconds(shared, 30_000, order)


@pytest.mark.parametrize(
    ("constants", "sizes", "seconds"),
    [  # cores agree on the parts of a product of matrices
        ({"product": 1e-3}, (4, 4, 4), CPU.matmul(1, 4, 4, 4, 4) + 1e-3),
        ({"product": 1e-3}, (1, 4, 4), CPU.matmul(1, 1, 4, 4, 4)),
    ],
)
def test_what_many_cores_make_of_products(
    constants: dict[str, float], sizes: tuple[int, int, int], seconds: float
) -> None:
    assert replace(CPU, **constants).matmul(1, *sizes, 4) == pytest.approx(seconds)  # type: ignore[arg-type]


def test_few_columns_take_what_was_measured_of_them_as_their_matrices_lie() -> None:
    tables = [tuple(float(factor * width) for width in COLUMNS) for factor in (4, 1, 8)]
    starts = [tuple(float(factor) for _ in COLUMNS) for factor in (0, 50, 0)]
    profile = replace(CPU, widths=tuple(tables), starts=tuple(starts), turned=0.0)
    assert profile.row(3, 10) == 4 * 3 * 10
    assert profile.row(3, 10, 1) == 3 * 10 + 50
    assert profile.row(7, 10) == pytest.approx(4 * 7 * 10)  # between 6 and 8
    assert profile.row(100, 10) == 4 * 64 * 10 + 48 * (10 + STORED)
    seconds = [
        profile.matmul(1, 10**4, 6, 64, 4, *lies) for lies in ((False, False), (True, False), (True, True))
    ]
    assert seconds[1] < seconds[0] < seconds[2]


def test_no_weight_is_repeated_along_a_large_batch() -> None:
    for batch in (4, 10**5):
        each = pricing(b=batch, i=16, j=16, p=16)
        ways = ways_of(each, tuple("bij"), tuple("pi"), frozenset("bjp"))
        expanded = [way for way in ways if way.batch == ("b",)]
        assert bool(expanded) == (4 * batch * 16 * 16 <= EXPANDED)


def test_where_no_library_differentiates_any_weight_may_be_repeated() -> None:
    sizes = {"b": 10**5, "i": 16, "j": 16, "p": 16}
    problem = Problem((tuple("bij"), tuple("pi")), frozenset("bjp"), tuple("bpj"), sizes, CPU, 4)
    free = replace(problem, expanded=math.inf)
    ways = ways_of(free.pricing, tuple("bij"), tuple("pi"), frozenset("bjp"))
    assert any(way.batch == ("b",) for way in ways)
    assert fastest(problem)[0].way.batch == ()
    assert fastest(free)[0].way.batch == ("b",)


@pytest.mark.parametrize(
    ("sizes", "good", "bad", "kept", "most"),
    [  # where a group of axes lies in one piece, and where another axis stands between; a second matrix transposed
        ({"a": 64, "b": 64, "c": 64, "d": 64}, ("abc", "cd"), ("acb", "cd"), "abd", math.inf),
        ({"i": 12, "k": 12, "n": 10**5}, ("ik", "kn"), ("ik", "nk"), "in", 3.0),
    ],
)
def test_a_product_of_tensors_that_lie_well_is_faster(
    sizes: dict[str, int], good: Any, bad: Any, kept: str, most: float
) -> None:
    wanted = tuple(kept) if most < math.inf else None
    well, badly = (
        min(way.seconds for way in ways_of(pricing(**sizes), *map(tuple, each), frozenset(kept), wanted))
        for each in (good, bad)
    )
    assert well < badly < most * well


# ---------------------------------------------------------------------------- search


def everyway(problem: Problem) -> float:
    """Seconds of the fastest order, by trying every way of every tree; nothing is left out."""
    search, pricing = Search(problem), problem.pricing

    def made(subset: int) -> dict[Layout, float]:
        if subset.bit_count() == 1:
            return {problem.layouts[subset.bit_length() - 1]: 0.0}
        found: dict[Layout, float] = {}
        half = (subset - 1) & subset
        while half:
            if half & (subset & -subset):
                for (a, before), (b, other) in itertools.product(
                    made(half).items(), made(subset ^ half).items()
                ):
                    kept = {x for x in (*a, *b) if x in problem.kept or search.holders[x] & ~subset}
                    for order in ((a, b), (b, a)):
                        readers = _readers(problem, subset, kept)
                        for way in ways_of(pricing, *order, frozenset(kept), None, readers):
                            layout = flatten(way.result)
                            seconds = before + other + way.seconds
                            found[layout] = min(seconds, found.get(layout, math.inf))
            half = (half - 1) & subset
        return found

    return min(made(search.everything).values())


def _readers(problem: Problem, subset: int, kept: set[str]) -> list[frozenset[str]]:
    others = (layout for n, layout in enumerate(problem.layouts) if not subset >> n & 1)
    return [frozenset(layout) & frozenset(kept) for layout in others]


def drawn(seed: int) -> Problem:
    draw = random.Random(seed)
    sizes = {letter: draw.choice((2, 4, 16, 64, 200)) for letter in "abcdef"}
    layouts = tuple(tuple(draw.sample("abcdef", draw.randint(2, 4))) for _ in range(4))
    flat = list(itertools.chain(*layouts))
    kept = {axis for axis in flat if flat.count(axis) == 1 or draw.random() < 0.4}
    return Problem(layouts, frozenset(kept), None, sizes, CPU, 4)


@pytest.mark.parametrize("seed", [24, 86, 116, 70, 9, 73, 54, 37])
def test_nothing_is_lost_by_following_few_forms(seed: int) -> None:
    problem = drawn(seed)
    found, order = Search(problem).exhaustive()
    assert found == pytest.approx(sum(pair.way.seconds for pair in order))
    assert found <= everyway(problem) * 1.05


# ---------------------------------------------------------------------------- how sure


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "four of five within ×/÷ 1.7, as is assumed of the built-in constants"),
        ({"key": "here", "spread": 1.42}, "four of five within ×/÷ 1.4, by constants measured on the device"),
        (
            {"key": "here", "spread": 3.0, "unrest": 0.9},
            "four of five within ×/÷ 3, as is assumed of the built-in constants: the device was busy, see `tensornet calibrate`",
        ),
    ],
)
def test_a_plan_says_how_sure_its_times_are(changes: dict[str, Any], words: str) -> None:
    profile = replace(CPU, **changes)
    plan = tn.plan(tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=8, o=8), profile=profile, b=64)
    (line,) = (line for line in str(plan).splitlines() if "×/÷" in line)
    assert line.strip() == f"expected times: {words}"
    document = json.loads(plan.to_json())
    assert document["certainty"]["spread"] == profile.spread
    assert tn.Plan.from_json(plan.to_json()) == plan
