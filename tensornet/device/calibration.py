"""Calibration: the constants of a device, measured once for each machine and element type.

Each constant comes from a probe: an operation whose time depends on that constant alone once earlier ones are known.
The rounds are spread over time and the least time of each probe counts, so that a passing load does not become
a constant. The difference between rounds shows how much load there was. Other operations, timed in the last round,
are compared with the times that the constants predict. Constants are stored for later processes. If the rounds
disagree, since the device had other work, the built-in constants stand in until it is quiet.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from ..dtypes import itemsize, real_type
from ..errors import BackendError
from ..files import Store, cache_folder
from ..ops.along_axes import NORMALIZE
from ..protocol import Backend, is_offered
from ..threads import apart, is_busy, others_at_work, tells_of_others
from .cost_model import (
    COLUMNS,
    GRAIN,
    IN_CACHE,
    MAPPED,
    NEAR,
    DeviceProfile,
    MemoryAccess,
    default_profile,
    keep_freed,
    memory_access,
)

PATIENCE = 2.0
"""Seconds of calibration after which no further round begins."""

ENOUGH = 0.01
"""Total seconds of a probe's runs after which a round stops repeating it."""

SINGLE = " x1 "
"""How the version of a library ends that works in one thread. Its processor time is measured: with a load of 15 on two
processors, constants of wall time predicted other operations within a factor of 800, and these within 1.3."""

TELLING = 1.0
"""Seconds of calibration from which it is reported to the user."""

LOOPED = 400
"""Multiply-adds below which torch multiplies the matrices of a batch in a plain loop on the processor."""

PLAUSIBLE = 16.0
"""A measured constant is clipped if it differs from the usual one by more than this factor."""

PIECES = "launch", "view", "batch", "plain", "along", "run", "scattered", "near_line", "line"
"""Constants of a call and of small pieces."""

SHALLOW, DEEP = 4, 64
"""Positions summed in the products that measure the time of a row of the result."""

UNKNOWN: Mapping[str, Any] = {
    **dict.fromkeys(("widths", "starts"), ()),
    **dict.fromkeys(("product", "batch", "small", "run", "scattered", "near_line", "line", "grain"), 0.0),
    **dict.fromkeys(("fresh_bytes", "fresh_bandwidth", "fresh_product"), 1e18),
    "cores": 1.0,
}
"""Constants that cost nothing until they are found."""

FAR, NEARER = ((1, 2048, 1024), (0, 2, 1)), ((8, 64, 1024), (0, 2, 1))
"""Copies that lose lines from both caches, and that lose them from L1 alone."""


def profile_of(backend: Backend, device: str, dtype: str = "float32") -> DeviceProfile:
    """The constants of a device: measured before, or measured now and stored.

    If the device had other work meanwhile, the built-in constants stand in, and once a day, if the machine is quiet, it
    is measured again. The built-in constants are used with `TENSORNET_CALIBRATE=0` in the environment, or if the
    library or the device is missing.
    """
    if os.environ.get("TENSORNET_CALIBRATE", "1") == "0" or not is_offered(backend.name):
        return default_profile(device, dtype)
    return _profile_of(backend, device, dtype)


@functools.cache
def _profile_of(backend: Backend, device: str, dtype: str) -> DeviceProfile:
    try:
        known = load_profile(_key(backend, device, dtype))
    except BackendError:
        return default_profile(device, dtype)
    if known is None or (is_due(known) and not is_busy()):
        measured = _measured(backend, device, dtype)
        known = measured if known is None else min(known, measured, key=lambda profile: profile.unrest)
        save_profile(known)
    if known.is_steady:
        return known
    return replace(
        default_profile(device, dtype), key=known.key, unrest=known.unrest
    )  # measured ones are chance


def _measured(backend: Backend, device: str, dtype: str) -> DeviceProfile:
    """The constants, measured now; a slow measurement is reported to the user."""
    start = time.monotonic()
    found = apart(lambda: measure(backend, device, dtype))
    seconds = time.monotonic() - start
    busy = "the device had other work: built-in constants are used, see `tensornet calibrate`"
    with contextlib.suppress(AttributeError, ValueError):  # standard error may be None, or closed
        if seconds > TELLING and sys.stderr.isatty():
            took = f"measured {device} for {dtype} in {seconds:.1f} s (TENSORNET_CALIBRATE=0: no)"
            print(f"tensornet: {took}; {'kept' if found.is_steady else busy}", file=sys.stderr, flush=True)
    return found


def _key(backend: Backend, device: str, dtype: str) -> str:
    return f"{backend.version(device)}, {dtype}"


def measure(
    backend: Backend, device: str, dtype: str = "float32", rounds: int = 4, patience: float = PATIENCE
) -> DeviceProfile:
    """The constants of a device, from the times of a few operations; takes some seconds.

    Args:
        backend: the library.
        device: the device, as the library names it.
        dtype: the element type.
        rounds: how often each operation is timed; the least time counts.
        patience: seconds after which no further round begins, if there are enough to detect other work.

    Raises:
        BackendError: the library or the device is missing.
    """
    backend.check_device(device)
    key = _key(backend, device, dtype)  # raises if it is missing, before anything is timed
    is_single = device.startswith("cpu") and f"{key.rpartition(',')[0]} ".endswith(SINGLE)
    probe = _Probe(backend, device, dtype, is_single)
    others, usual = others_at_work(), default_profile(device, dtype)
    start = time.monotonic()
    least = (
        1 if probe.on_cpu and not is_single and tells_of_others() else 2
    )  # else two rounds must show unrest
    for number in range(rounds):
        if number >= least and time.monotonic() - start > patience:
            break
        probe.found = replace(usual, **UNKNOWN)
        _constants(probe)
        probe.learn(**_near(probe.found, usual))
        ratios = [measured / expected for measured, expected in _others(probe)]
    away = sorted(abs(math.log(ratio)) for ratio in ratios)
    spread = math.exp(away[math.ceil(0.8 * len(away)) - 1])
    unrest = max(probe.unrest(), others() if probe.on_cpu and not is_single else 0.0)
    return bounded(replace(probe.found, key=key, spread=round(spread, 2), unrest=round(unrest, 2)))


def _near(found: DeviceProfile, usual: DeviceProfile) -> dict[str, Any]:
    """The constants of `PIECES`, each clipped near the usual one."""
    return {
        name: min(middle * PLAUSIBLE, max(middle / PLAUSIBLE, getattr(found, name)))
        for name in PIECES
        for middle in [getattr(usual, name)]
    }


# ---------------------------------------------------------------------------- constants


def _constants(probe: _Probe) -> None:
    """Finds the constants that follow from the least times so far, each with those before it."""
    size, large = probe.itemsize, 768 if probe.on_cpu else 4096
    probe.learn(launch=probe.seconds("{0} + {0}", (8,), repeats=100))
    reshaped = probe.backend.templates["reshape"].format("{0}", shape=(4, 16))
    probe.learn(view=probe.seconds(reshaped, (8, 8), repeats=100))
    probe.learn(**_bandwidths(probe))
    if probe.on_cpu and probe.is_real:  # norms take real numbers only
        probe.learn(pass_bandwidth=_pass(probe))
    seconds = probe.matmul((large, large), (large, large)) - probe.found.launch
    moved = min(probe.found.stream(3.0 * size * large**2), 0.8 * seconds)  # mostly arithmetic at this size
    probe.learn(flops=2.0 * large**3 / math.sqrt(seconds**2 - moved**2))
    if probe.on_cpu:
        _products(probe)
    many = probe.matmul((4096, 8, 8), (4096, 8, 8)) - probe.found.matmul(4096, 8, 8, 8, size)
    probe.learn(batch=max(1e-12, many / 4096))
    probe.learn(**_loop(probe))
    probe.learn(scored=_scored(probe))
    _walks(probe)
    probe.learn(**_fresh(probe))


def _bandwidths(probe: _Probe) -> dict[str, float]:
    """The rates of reading and writing in near caches, the last cache and memory."""
    size, elements = probe.itemsize, 2**19 if probe.on_cpu else 2**26
    near = away = held = 2.0 * size * elements / probe.beyond("{0} + 1", (elements,))
    if probe.on_cpu:
        few, most = IN_CACHE // (4 * size), 3 * NEAR // (2 * size)
        held = 2.0 * size * few / probe.beyond("{0} * {0}", (few,))
        away = 2.0 * size * most / probe.beyond("{0} + 1", (most,), repeats=2)  # touches no page first
    return {
        "bandwidth": min(away, near),
        "near_bandwidth": near,
        "held_bandwidth": max(held, near),
    }


def _pass(probe: _Probe) -> float:
    """The bytes per second of a pass of a function of several passes, measured with `NORMALIZE`."""
    rows, columns = 512, 256
    moved = 2.0 * probe.itemsize * rows * columns
    seconds = probe.seconds(f"{NORMALIZE.name}({{0}}, 1, 1e-05)", (rows, columns))
    beyond = max(seconds - probe.found.pointwise(moved, 0.0), 1e-9)
    return (NORMALIZE.passes[0] - 1.0) * moved / max(beyond, 0.1 * probe.found.stream(moved))


def _products(probe: _Probe) -> None:
    """Finds the constants of matrix products on a processor, other than their arithmetic."""
    probe.learn(**_few(probe))
    probe.learn(turned=_turned(probe))
    n = 32
    small = probe.matmul((n, n), (n, n)) - probe.found.matmul(1, n, n, n, probe.itemsize)
    probe.learn(product=max(0.0, small))


def _few(probe: _Probe) -> dict[str, tuple[tuple[float, ...], ...]]:
    """The times of rows of a large product with few columns, for each layout of its matrices.

    A library without a template for contiguous copies chooses layouts itself, so one layout is measured for all. It
    compiles each product for its shapes, so only every other entry of `COLUMNS` is measured.
    """
    layouts, columns = ((False, False), (False, True), (True, True)), list(COLUMNS)
    if probe.backend.templates["contiguous"] == "{0}":
        layouts, columns = (layouts[0],) * 3, [COLUMNS[0], *COLUMNS[1::2]]
    tables = {lies: _rows(probe, columns, *lies) for lies in layouts}
    widths, starts = zip(*map(tables.__getitem__, layouts), strict=True)
    return {"widths": widths, "starts": starts}


def _rows(probe: _Probe, columns: Sequence[int], crossed: bool, turned: bool) -> list[tuple[float, ...]]:
    """The widths and the starts for one layout at all `COLUMNS`, interpolated from some of them.

    The cost of each summed position is at least the number of columns; the rest is the same at any depth.
    """
    import numpy

    m = 4000
    adds = probe.found.flops / (2.0 * m)
    lines = list[tuple[float, float]]()
    shallow, deep = (
        [adds * probe.arithmetic(m, n, k, turned=turned, crossed=crossed) for n in columns]
        for k in (SHALLOW, DEEP)
    )
    for few, many, n in zip(shallow, deep, columns, strict=True):
        width = max(float(n), (many - few) / (DEEP - SHALLOW))
        lines.append((width, max(0.0, few - SHALLOW * width)))
    return [tuple(numpy.interp(COLUMNS, columns, each).tolist()) for each in zip(*lines, strict=True)]


def _turned(probe: _Probe) -> float:
    """Additional seconds for an element of the second matrix if it is transposed."""
    m, n, k = 16, 4000, DEEP
    straight, turned = (probe.arithmetic(m, n, k, turned=each) for each in (False, True))
    return max(0.0, (turned - straight) / (n * k))


def _loop(probe: _Probe) -> dict[str, float]:
    """The multiply-adds below which the matrices of a batch go through a plain loop, and its speed."""
    seconds = probe.matmul((2048, 7, 8), (2048, 8, 7))
    if seconds < 1.5 * probe.matmul((2048, 7, 8), (2048, 8, 8)):
        return {}
    along = min(seconds, probe.matmul((2048, 7, 8), (2048, 8, 7), turned=True))
    fixed, unit = (
        replace(probe.found, small=float(LOOPED), plain=plain).matmul(2048, 7, 7, 8, probe.itemsize)
        for plain in (0.0, 1.0)
    )
    return {"small": float(LOOPED), "plain": (seconds - fixed) / unit, "along": (along - fixed) / unit}


def _scored(probe: _Probe) -> float:
    """Seconds for a score of attention besides the products, on a device that keeps it on the chip."""
    template = probe.backend.templates.get("scaled_dot_product_attention")
    if not probe.found.scored or template is None or not probe.is_real:
        return probe.found.scored
    heads, tokens, depth = 128, 1024, 64
    shape, scores = (8, heads // 8, tokens, depth), float(heads * tokens**2)
    seconds = probe.beyond(template.format("{0}", "{1}", "{2}", more=""), shape, shape, shape)
    products = min(4.0 * scores * depth / probe.found.flops, 0.9 * seconds)
    return math.sqrt(seconds**2 - products**2) / scores


def _walks(probe: _Probe) -> None:
    """Finds the constants of walks through memory in another order than the layout: loops, lost lines, jumps."""
    loops = memory_access("abc", ("ab", "ac"), {"a": 512, "b": 128, "c": 4}, probe.itemsize)
    seconds = probe.seconds("{0} * {1}", (512, 128, 1), (512, 1, 4)) - probe.found.access_seconds(loops)
    probe.learn(run=max(1e-13, seconds / loops.runs))
    probe.learn(cores=_cores(probe) if probe.on_cpu else 1.0, grain=float(GRAIN * probe.itemsize))
    probe.learn(scattered=max(1e-14, probe.copied((64, 96, 96), (0, 2, 1), "scattered")))
    probe.learn(near_line=max(1e-14, probe.copied(*NEARER, "lost")))
    probe.learn(line=max(1e-14, probe.copied(*FAR, "fetched")))


def _cores(probe: _Probe) -> float:
    """How many times as long a small step takes as the constants of large steps predict."""
    loops = memory_access("abc", ("ab", "ac"), {"a": 48, "b": 128, "c": 4}, probe.itemsize)
    seconds = probe.beyond("{0} * {1}", (48, 128, 1), (48, 1, 4))
    alone = probe.found.access_seconds(loops) - probe.found.launch
    return max(1.0, min(os.cpu_count() or 1, seconds / alone))


def _fresh(probe: _Probe) -> dict[str, float]:
    """The threshold and the bandwidths of first touch, if it costs anything."""
    found, size = probe.found, 5 * MAPPED // 4
    moved = found.stream(2.0 * size)
    excess = probe.seconds("{0} + 1", (size // probe.itemsize,), repeats=2) - moved
    if excess < moved / 2.0:
        return {}
    m, n, k = size // probe.itemsize // 1024, 1024, 8
    template = probe.backend.templates.get("large_matmul", probe.backend.templates["matmul"])
    product = probe.seconds(template, (m, k), (k, n), repeats=2) - found.matmul(1, m, n, k, probe.itemsize)
    written = size / max(product, excess / PLAUSIBLE)
    return {"fresh_bytes": float(MAPPED), "fresh_bandwidth": size / excess, "fresh_product": written}


# ---------------------------------------------------------------------------- probes


def _others(probe: _Probe) -> Iterator[tuple[float, float]]:
    """Measured and expected seconds of operations from which no constant was derived."""
    size, found = probe.itemsize, probe.found
    for m, n, k in (
        (2000, 64, 64),
        (64, 64, 2000),
        (300, 300, 300),
        (20_000, 8, 24),
        (400, 400, 8),
        (32, 32, 32),
    ):
        yield probe.matmul((m, k), (k, n)), found.matmul(1, m, n, k, size)
    for batch, m, n, k in ((300, 32, 32, 32), (1000, 16, 40, 12), (3000, 4, 4, 4), (50, 100, 20, 60)):
        yield probe.matmul((batch, m, k), (batch, k, n)), found.matmul(batch, m, n, k, size)
    for shape, axes in (((40, 60, 80), (1, 0, 2)), ((300, 400), (1, 0)), ((30, 50, 6, 20), (2, 0, 3, 1))):
        yield probe.permuted(shape, axes), found.access_seconds(_copy(shape, axes, size)) + found.view
    for a, b in (((200, 1000), (200, 1)), ((3000, 12), (1, 12)), ((60, 1, 50), (60, 40, 1))):
        sizes = {name: max(pair) for name, *pair in zip("abc", a, b, strict=False)}
        layouts = [[name for name, n in zip("abc", shape, strict=False) if n > 1] for shape in (a, b)]
        yield (
            probe.seconds("{0} * {1}", a, b),
            found.access_seconds(memory_access(list(sizes), layouts, sizes, size)),
        )


def _copy(shape: Sequence[int], axes: Sequence[int], itemsize: int) -> MemoryAccess:
    """The memory traffic to copy a tensor into another order of its axes."""
    names = "abcdef"[: len(shape)]
    return memory_access([names[n] for n in axes], [names], dict(zip(names, shape, strict=True)), itemsize)


class _Probe:
    """Times operations of one backend, spelled as in generated code, and knows the constants found so far."""

    def __init__(self, backend: Backend, device: str, dtype: str, is_single: bool = False) -> None:
        self.backend, self.device, self.dtype = backend, device, dtype
        self.is_single = is_single  # whether only one thread works, and only its processor time counts
        self.on_cpu, self.is_real = device.startswith("cpu"), dtype == real_type(dtype)
        self.found = default_profile(device, dtype)
        self.itemsize = itemsize(dtype)
        self.names = dict(backend.namespace())
        self.rounds: dict[tuple[object, ...], list[float]] = {}
        keep_freed()

    def learn(self, **constants: Any) -> None:
        """Adds constants to those found so far."""
        self.found = replace(self.found, **constants)

    def unrest(self) -> float:
        """The median over all probes of the share by which their median round exceeds their least one."""
        from statistics import median

        return median(median(each) / min(each) - 1.0 for each in self.rounds.values())

    def matmul(self, *shapes: tuple[int, ...], turned: bool = False, crossed: bool = False) -> float:
        """Seconds of a product of matrices, of which the second or the first may be transposed."""
        lying, places = list[tuple[int, ...]](), list[str]()
        for number, (shape, lies) in enumerate(zip(shapes, (crossed, turned), strict=True)):
            axes = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
            place = f"{{{number}}}"
            lying.append(tuple(shape[axis] for axis in axes) if lies else shape)
            places.append(self.backend.templates["permute"].format(place, axes=axes) if lies else place)
        return self.seconds(self.backend.templates["matmul"].format(*places), *lying)

    def permuted(self, shape: tuple[int, ...], axes: tuple[int, ...]) -> float:
        permuted = self.backend.templates["permute"].format("{0}", axes=axes)
        return self.seconds(self.backend.templates["contiguous"].format(permuted), shape)

    def copied(self, shape: tuple[int, ...], axes: tuple[int, ...], counted: str) -> float:
        """Seconds for each event of one count of `MemoryAccess` that explain the rest of a copy's time."""
        path = _copy(shape, axes, self.itemsize)
        left = self.permuted(shape, axes) - self.found.view - self.found.access_seconds(path)
        return left / float(getattr(path, counted))

    def beyond(self, source: str, *shapes: tuple[int, ...], repeats: int = 6) -> float:
        """Seconds beyond those of a call."""
        return max(self.seconds(source, *shapes, repeats=repeats) - self.found.launch, 1e-9)

    def arithmetic(self, m: int, n: int, k: int, *, turned: bool = False, crossed: bool = False) -> float:
        """Seconds of a product's arithmetic, most of which overlaps with moving memory."""
        seconds = max(0.0, self.matmul((m, k), (k, n), turned=turned, crossed=crossed) - self.found.launch)
        moved = self.found.stream(float(self.itemsize) * (m * k + k * n + m * n))
        return math.sqrt(max(0.0, seconds**2 - moved**2))

    def seconds(self, source: str, *shapes: tuple[int, ...], repeats: int = 6) -> float:
        """The least time of all rounds so far; a round takes its quickest run, without the first one."""
        arrays = [self._array(shape) for shape in shapes]
        names = [f"a{n}" for n in range(len(arrays))]
        run: Callable[..., Any] = eval(f"lambda {', '.join(names)}: {source.format(*names)}", self.names)
        rounds = self.rounds.setdefault((source, shapes), [])
        rounds.append(min(self._runs(run, arrays, repeats)))
        return min(rounds)

    def _runs(self, run: Callable[..., Any], arrays: Sequence[Any], repeats: int) -> Iterator[float]:
        spent, now = 0.0, time.process_time if self.is_single else time.perf_counter
        for number in range(repeats + 1):
            self.backend.synchronize(self.device)
            start = now()
            self.backend.synchronize(self.device, run(*arrays))
            seconds = now() - start
            if number:
                yield seconds
                spent += seconds
            if spent > ENOUGH:
                return

    def _array(self, shape: tuple[int, ...]) -> Any:
        import numpy

        ones = numpy.ones(shape, dtype=numpy.float32)
        return self.backend.asarray(ones, dtype=self.dtype, device=self.device)


# ---------------------------------------------------------------------------- profile cache


DAY = 86_400.0
"""Seconds after which provisional constants may be measured again."""

PROVISIONAL = "provisional"
"""The key that marks constants measured while the device had other work; its value is when they were stored."""

WIDEST, LATEST = 1e4, 1e6
"""The largest plausible widths and starts of rows."""

RANGES = {each.name: each.metadata["range"] for each in fields(DeviceProfile) if each.metadata}
"""The least and the largest plausible value of each constant, for slow and for future devices."""


def bounded(profile: DeviceProfile) -> DeviceProfile:
    """The constants, each clipped to its plausible range, so that `load_profile` accepts them."""
    constants: dict[str, Any] = {
        name: _clipped(getattr(profile, name), *limits) for name, limits in RANGES.items()
    }
    widths = tuple(
        tuple(_clipped(each, least, WIDEST) for each, least in zip(table, COLUMNS, strict=True))
        for table in profile.widths
    )
    starts = tuple(tuple(_clipped(each, 0.0, LATEST) for each in table) for table in profile.starts)
    return replace(profile, **constants, widths=widths, starts=starts)


def _clipped(value: float, least: float, most: float) -> float:
    return min(most, max(least, value))


def load_profile(key: str) -> DeviceProfile | None:
    """The constants stored under `key`; None if they are missing, of another version, or implausible."""
    try:
        found = {name: value for name, value in _store().read(key).items() if name != PROVISIONAL}
        tables = {name: tuple(map(tuple, found[name])) for name in ("widths", "starts")}
        profile = DeviceProfile(**{**found, **tables})
        is_whole = profile.key == key and found.keys() == asdict(profile).keys()
        shapes = [[len(table) for table in tables[name]] for name in ("widths", "starts")]
        is_whole = is_whole and shapes in ([[], []], [[len(COLUMNS)] * 3] * 2)
        is_whole = is_whole and not any(isinstance(each, bool) for each in found.values())
        return profile if is_whole and bounded(profile) == profile else None
    except (AttributeError, TypeError, KeyError, ValueError):
        return None


def save_profile(profile: DeviceProfile) -> Path | None:
    """Stores the constants, with the time if they are provisional.

    Returns the path, or None if the folder cannot be written.
    """
    mark = {} if profile.is_steady else {PROVISIONAL: time.time()}
    return _store().write(profile.key, {**asdict(profile), **mark})


def is_due(profile: DeviceProfile) -> bool:
    """Whether the stored constants are provisional, and have been for a day."""
    if profile.is_steady:
        return False
    since = (_store().read(profile.key) or {}).get(PROVISIONAL)
    return not isinstance(since, int | float) or abs(time.time() - since) > DAY


def _store() -> Store:
    return Store(cache_folder(), "device")
