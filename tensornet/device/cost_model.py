"""The device model: expected seconds from a few measured constants and from memory access.

The costs of a step add up. A product pays for its arithmetic, in whole vectors or as measured for few columns, and for
storing its result. It pays once for every byte of its matrices, which mostly overlaps with the arithmetic. Many
products also pay for each matrix, and transposed matrices for lost cache lines. A step that walks through memory
element by element pays for its bytes, for each innermost loop or each element read out of order, and for the cache
lines lost meanwhile. Every operation pays for its call. Bytes have their own rates from the first caches, the last
cache and memory. If several cores work, the constants are those of all of them together; small steps and products with
a vector stay on one core. Constants belong to one element type: a profile is measured for each.

An elementwise step, or the copy of a transpose, walks along its result, innermost axis first; `memory_access` counts
bytes and lines, and `DeviceProfile.access_seconds` converts them to seconds. Neighbouring axes that are contiguous in
every tensor are one loop. An operand that is not contiguous is read at strides, and a cache line may be evicted before
its other elements are read.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple

from ..codec import Text, document
from ..display import rounded

IN_CACHE = 2**20
"""Bytes that a step may move while all of them are assumed to be in the caches of a processor's core."""

NEAR = 2**24
"""The same for the last-level cache."""

MAPPED = 32 * 2**20
"""Bytes from which the C library maps each allocation from the system (glibc's largest threshold)."""

SHORT_LOOP = 64
"""The most innermost positions for which a reduction is faster over the other axes first, and then over these."""

LANES = 16
"""Elements of a vector: a row of a product's result takes the time of whole vectors."""

COLUMNS = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)
"""Numbers of columns of a result for which the time of a row is measured, in columns of a large product."""

GRAIN = 32_768
"""Elements below which a step runs on one core: torch splits only steps of at least this many."""

SHORT = 0.5
"""The cost of a row times a contiguous column, in innermost loops."""

RESULT = 6.0
"""The cost of an element of the result in a plain loop over small matrices, in multiplications."""

CHUNK = 8.0
"""The cost of setting up the two innermost loops together, in innermost loops."""

NARROW = 4
"""Fewer rows than this are multiplied one by one. They read a transposed second matrix line by line, or element by
element if the first matrix is transposed too."""

HELD = 1e15
"""More elements than any memory holds: the layout of such a tensor is ignored."""

PAGE = 4096
"""The stride in bytes at which all lines share one set of the L1 cache, which has as many sets as a page has lines."""

STORED = 3.0
"""The cost of storing an element of a product's result, in multiply-adds."""

BLOCK, FEW = 8, 3
"""The channels of a group that convolutions process together, and the fewest that need no plain loop, except for one of
each."""

WRITTEN = 32
"""The cost of an element of a convolution's result, in multiply-adds: four of five convolutions without groups then
take 1/1.7 to 1.7 times the expected time."""

BLOCKS = 264
"""Blocks of queries that a GPU computes at once: two on each multiprocessor of an H200."""

SPLIT = 512
"""The fewest keys that one multiprocessor processes if there are few blocks, in types of 16 bits."""

DEEPEST, EVEN = 256, 8
"""Most channels for which attention in 16 bits stays on the chip, and the factor of their number if there is a mask."""

FALLBACK, MASKED = 10.0, 2.0
"""Slowdown of attention otherwise, and with a mask: 7 to 27, 1.8 to 2.7 (H200, bfloat16, PyTorch 2.11)."""

STEPS = 9
"""Additional small operations to add up rows at given positions: to read the positions, to allocate the result."""

UNREST = 0.25
"""The device had other work if repeated measurements differ by more than this share, or if others used more than this
share of the processors."""

SPREAD = 1.7
"""The assumed spread of the built-in constants: measured and expected time differ by no more than this factor."""


BUILT_IN = "default-"
"""The prefix of the keys of the built-in constants."""

CONSTANTS = {
    "built in": "as is assumed of the built-in constants",
    "measured": "by constants measured on the device",
    "measured while busy": "as is assumed of the built-in constants: the device was busy, see `tensornet calibrate`",
}
"""The origins of constants, and the words that report them."""


@document()
@dataclass(frozen=True)
class Certainty:
    """How reliable expected times are.

    Attributes:
        spread: four of five are between 1/spread and spread times the measured time.
        constants: where the constants come from, a key of `CONSTANTS`.
    """

    spread: float
    constants: Annotated[str, tuple(CONSTANTS)]

    def __str__(self) -> str:
        return f"four of five within ×/÷ {rounded(self.spread, 2)}, {CONSTANTS[self.constants]}"


def _constant(usual: float, least: float, most: float, unit: str = "") -> Any:
    """A constant: its value on the built-in processor, the range of plausible values, and its unit if users see it."""
    return field(default=usual, metadata={"range": (least, most), "unit": unit})


@document()
@dataclass(frozen=True)
class DeviceProfile:
    """The constants of a device for one element type. Their defaults are those of a two-core server.

    Attributes:
        key: names device, library, version and element type.
        flops: FLOP/s of a large matrix product.
        bandwidth: bytes/s, read plus written, in order.
        near_bandwidth: the same from the last-level cache.
        held_bandwidth: the same from the caches before it.
        pass_bandwidth: the same for each pass but one of a function of several passes.
        launch: seconds that an operation costs whatever its size.
        view: seconds to create a view, with nothing moved.
        batch: seconds that each matrix of a batched product costs.
        small: multiply-adds below which the matrices of a batched product go through a plain loop; 0 if never.
        plain: seconds of a multiply-add there.
        along: the same where both matrices are contiguous along the summed axis.
        run: seconds that each innermost loop of an elementwise step costs.
        scattered: seconds for an element that is not next to the one before it.
        near_line: seconds to fetch a line that was evicted from the L1 cache.
        line: seconds to fetch one that was evicted from the L2 cache, too.
        fresh_bytes: bytes of a result from which its memory is touched for the first time.
        fresh_bandwidth: bytes/s at first touch.
        fresh_product: the same for results of products, which may be in large pages.
        tile: keys that the library's attention computes together, or skips where all of them are hidden; on a GPU,
            queries too.
        scored: seconds for a score of attention in a kernel that keeps it on the chip; 0 where scores go through
            the caches.
        cached: bytes of a tensor from which steps over it take twice as long as in parts that stay in the cache.
        spread: four of five operations measured with the constants took between 1/spread and spread times the
            expected time; this shows how reliable a plan is.
        turned: additional seconds for an element of the second of two matrices if it is transposed.
        product: additional seconds that a product of matrices costs whatever its size: cores agree on their parts.
        cores: how many times as fast elementwise steps are if all cores share them.
        grain: bytes of a result, or half of the bytes moved, below which one core runs a step; a plain loop counts
            its multiply-adds as elements.
        widths: cost of each summed position of a row of a large product, in multiply-adds, for each number in
            `COLUMNS`. Its tables are for matrices in reading order, for a transposed second one, and for both
            transposed. Empty if whole vectors of `LANES` give the cost.
        starts: cost of the begin and the end of such a row, in multiply-adds.
        unrest: the share by which repeated measurements differed, or that others had of the processors, whichever
            is more; 0 for the built-in constants.
    """

    key: Text
    flops: float = _constant(1.7e11, 1e7, 1e18, "FLOP/s")
    bandwidth: float = _constant(2.6e10, 1e6, 1e15, "bytes/s")
    near_bandwidth: float = _constant(2.6e10, 1e6, 1e15, "bytes/s")
    held_bandwidth: float = _constant(5.5e10, 1e6, 1e15, "bytes/s")
    pass_bandwidth: float = _constant(3.9e10, 1e6, 1e16, "bytes/s")
    launch: float = _constant(1.4e-6, 1e-9, 1.0, "s")
    view: float = _constant(1.2e-6, 1e-9, 1.0, "s")
    batch: float = _constant(6e-8, 1e-12, 1.0, "s")
    small: float = _constant(400.0, 0.0, 1e5, "multiply-adds")
    plain: float = _constant(5e-10, 1e-14, 0.01, "s")
    along: float = _constant(2e-10, 1e-14, 0.01, "s")
    run: float = _constant(2.1e-9, 1e-14, 0.01, "s")
    scattered: float = _constant(4.4e-10, 1e-15, 0.001, "s")
    near_line: float = _constant(2e-9, 1e-14, 0.01, "s")
    line: float = _constant(4e-9, 1e-14, 0.01, "s")
    fresh_bytes: float = _constant(float(MAPPED), 1.0, 1e18, "bytes")
    fresh_bandwidth: float = _constant(2.5e9, 1e5, 1e18, "bytes/s")
    fresh_product: float = _constant(7.0e9, 1e5, 1e18, "bytes/s")
    turned: float = _constant(2.2e-10, 0.0, 0.001, "s")
    tile: float = _constant(512.0, 1.0, 1e6)
    scored: float = _constant(0.0, 0.0, 1e-6, "s")
    cached: float = _constant(float(6 * 2**20), 1e3, 1e19)
    spread: float = _constant(SPREAD, 1.0, 1e3)
    unrest: float = _constant(0.0, 0.0, 1e3)
    widths: tuple[tuple[float, ...], ...] = ()
    starts: tuple[tuple[float, ...], ...] = ()
    product: float = _constant(0.0, 0.0, 0.1, "s")
    cores: float = _constant(1.0, 1.0, 1e4, "times one")
    grain: float = _constant(0.0, 0.0, 1e9, "bytes")

    @property
    def certainty(self) -> Certainty:
        """How reliable the times from these constants are."""
        if self.key.startswith(BUILT_IN):
            return Certainty(self.spread, "built in")
        return Certainty(self.spread, "measured" if self.is_steady else "measured while busy")

    @property
    def is_steady(self) -> bool:
        """Whether the device had no other work while the constants were measured."""
        return self.unrest <= UNREST

    def matmul(
        self,
        batch: float,
        m: float,
        n: float,
        k: float,
        size: int,
        turned: bool = False,
        crossed: bool = False,
    ) -> float:
        """Seconds of `batch` products (m×k)·(k×n) with elements of `size` bytes.

        Args:
            turned: whether the second matrix is transposed.
            crossed: whether the first one is.
        """
        written = size * batch * m * n
        fixed = self.launch + (2.0 * self.view if batch > 1 else 0.0)
        fixed += self.product if min(m, n) > 1 else 0.0
        fixed += written / self.fresh_product if written >= self.fresh_bytes else 0.0
        if batch > 1 and m * n * k < self.small:
            is_along = (turned or n == 1) and not (crossed and m > 1)
            each = self.along if is_along else self.plain
            alone = self.cores if size * batch * m * n * k < self.grain else 1.0
            return fixed + each * alone * batch * m * n * (k + RESULT)
        columns = n if batch == 1 else max(n, 2.0)  # many matrices by vectors are products like others
        lies = turned + (turned and crossed)
        arithmetic = 2.0 * batch * m * self.row(columns, k, lies) / self.flops
        moved = size * batch * (m * k + k * n + m * n)
        each = self.batch * batch if batch > 1 else 0.0
        each += batch * self._turned(m, n, k, crossed and m > 1) if turned else 0.0
        return fixed + math.hypot(arithmetic, self.stream(moved)) + each

    def _turned(self, m: float, n: float, k: float, crossed: bool) -> float:
        """The further seconds of a product whose second matrix is transposed."""
        seconds = self.turned * n * k
        if m < NARROW:
            seconds += n * (self.scattered * k if crossed else self.run * m * SHORT)
        return seconds

    def at_least(self, batch: float, m: float, n: float, k: float, size: int) -> float:
        """A lower bound of the seconds of such products, in any layouts, whatever axes of them become batch axes."""
        written, rows = size * batch * m * n, m * n
        if not self.widths:  # whole vectors along one of the two
            rows = LANES * min(m * math.ceil(n / LANES), n * math.ceil(m / LANES))
        arithmetic = 2.0 * batch * rows * k / self.flops
        if self.small:
            arithmetic = min(arithmetic, self.along * batch * m * n * k)
        seconds = math.hypot(arithmetic, self.stream(size * batch * (m * k + k * n + m * n)))
        return self.launch + seconds + (written / self.fresh_product if written >= self.fresh_bytes else 0.0)

    def row(self, columns: float, k: float, lies: int = 0) -> float:
        """Cost of a row of a product in multiply-adds: of whole vectors, or as measured for few columns.

        Libraries differ in how they compute few columns: in one, 8 take as long as 16, in another as long as 57.

        Args:
            columns: the columns of the result.
            k: the number of summed positions.
            lies: the index of the layout in `widths`.
        """
        if not self.widths:
            return LANES * math.ceil(columns / LANES) * (k + STORED)
        if columns > COLUMNS[-1]:
            beyond = LANES * math.ceil((columns - COLUMNS[-1]) / LANES)
            return self.row(COLUMNS[-1], k) + beyond * (k + STORED)
        widths, starts = self.widths[lies], self.starts[lies]
        after = bisect.bisect_left(COLUMNS, columns)
        found = widths[after] * k + starts[after]
        if after == 0 or COLUMNS[after] == columns:
            return found
        part = (columns - COLUMNS[after - 1]) / (COLUMNS[after] - COLUMNS[after - 1])
        return (1.0 - part) * (widths[after - 1] * k + starts[after - 1]) + part * found

    def convolution(
        self, groups: float, out: float, positions: float, channels: float, inner: float, size: int
    ) -> float:
        """Seconds of a convolution, computed as a product; in groups with whole blocks of channels.

        Args:
            groups: the number of groups.
            out: channels of the result, in each group.
            positions: positions of the result.
            channels: channels of the operand, in each group.
            inner: elements of the kernel for each pair of channels.
            size: bytes of an element.
        """
        deep = 0
        if self.small and groups == 1:
            out, deep = LANES * math.ceil(out / LANES), WRITTEN
        elif self.small and channels * out > 1:
            if channels < FEW:
                return self.launch + self.plain * groups * out * positions * channels * inner
            out, channels = max(out, BLOCK), max(channels, BLOCK)
        return self.matmul(groups, out, positions, channels * inner + deep, size)

    def attention(
        self,
        shared: float,
        queries: float,
        keys: float,
        inner: float,
        channels: float,
        size: int,
        masked: bool,
    ) -> float:
        """Seconds of attention that keeps scores on the chip: its products overlap with the work on each score.

        A block of queries stays on one multiprocessor, so few blocks leave others idle. In types of 16 bits, many
        keys are split too. Kernels for these require few channels, and with a mask a multiple of `EVEN`.

        Args:
            shared: the number of attentions computed together: batch times heads.
            queries, keys: the number of positions; skipped keys do not count.
            inner, channels: channels of a query, and of a value.
            size: bytes of an element.
            masked: whether a mask or an added bias is read for each score.
        """
        blocks = shared * math.ceil(queries / self.tile)
        scores = blocks * self.tile * keys
        seconds = math.hypot(2.0 * scores * (inner + channels) / self.flops, scores * self.scored)
        parts = max(1.0, keys // SPLIT) if size == 2 else 1.0
        seconds *= max(1.0, BLOCKS / (blocks * parts))
        if size == 2 and (max(inner, channels) > DEEPEST or (masked and (inner % EVEN or channels % EVEN))):
            seconds *= FALLBACK
        elif size == 2 and masked:
            seconds *= MASKED
        return self.launch + seconds + self.stream(size * shared * (queries + keys) * (inner + channels))

    def stream(self, moved: float) -> float:
        """Seconds to move bytes in order, from the caches as far as they hold them."""
        if moved <= IN_CACHE:
            return moved / self.held_bandwidth
        away, far = _beyond(moved, IN_CACHE, 2.0), _beyond(moved, NEAR, 4.0)
        rates = (1.0 - away) / self.held_bandwidth + (away - far) / self.near_bandwidth + far / self.bandwidth
        return moved * rates

    def access_seconds(self, access: MemoryAccess) -> float:
        """Seconds of a step that walks through memory element by element."""
        loops = CHUNK * access.chunks + (0.0 if access.scattered else access.runs)
        beyond = self.scattered * access.scattered + self.reached(access) + self.run * loops
        return self.pointwise(access.moved, access.written, beyond)

    def walk_seconds(
        self,
        result: Sequence[str],
        operands: Sequence[Sequence[str]],
        sizes: Mapping[str, int],
        itemsize: int,
    ) -> float:
        """Seconds to walk through memory in the order of a result, reading operands in their layouts."""
        elements = min(math.prod([sizes[axis] for axis in result]), MOST)
        if elements > HELD:
            return self.pointwise(itemsize * elements, 0.0)
        return self.access_seconds(memory_access(result, operands, sizes, itemsize))

    def reached(self, access: MemoryAccess) -> float:
        """Seconds of a walk through memory beyond those of its bytes in order, if lines are lost."""
        return self.near_line * access.lost + self.line * access.fetched

    def pointwise(self, moved: float, written: float, beyond: float = 0.0) -> float:
        """Seconds of an elementwise step whose tensors all have the layout of the result; `beyond`: those that all
        cores take beside it."""
        seconds = (moved / self.held_bandwidth if moved <= IN_CACHE else self.stream(moved)) + beyond
        if max(written, moved / 2.0) < self.grain:  # one core runs a small step alone
            seconds *= self.cores
        if written >= self.fresh_bytes:
            seconds += written / self.fresh_bandwidth
        return seconds + self.launch

    def computed(self, moved: float, written: float, passes: float) -> float:
        """The same for a function that takes the time of several passes, all but one of them in the caches."""
        return self.pointwise(moved, written) + (passes - 1.0) * moved / self.pass_bandwidth

    def scatter(self, moved: float, written: float, rows: float) -> float:
        """Seconds to add up rows at given positions: `moved` bytes in all, `written` of them for the result."""
        return self.pointwise(moved, written) + STEPS * self.launch + self.run * rows


def _beyond(moved: float, held: float, times: float) -> float:
    """The share of moved bytes that a cache does not hold: all of them from `times` its capacity on."""
    return min(1.0, (1.0 - held / moved) * times / (times - 1.0)) if moved > held else 0.0


_CPU = DeviceProfile(f"{BUILT_IN}cpu")
_ON_GPU: dict[str, Any] = {
    **dict.fromkeys(("bandwidth", "near_bandwidth", "held_bandwidth"), 1.5e12),
    **dict.fromkeys(("plain", "along", "run", "near_line", "line"), 1e-12),
    **dict.fromkeys(("fresh_bytes", "fresh_bandwidth", "fresh_product", "cached"), 1e18),
    **{"flops": 5e13, "pass_bandwidth": 6e12, "launch": 6e-6, "view": 1e-6, "batch": 1e-9, "small": 0.0},
    **{"scattered": 6e-12, "turned": 3e-12, "tile": 128.0, "scored": 6e-12},
}
_GPU = replace(_CPU, key=f"{BUILT_IN}gpu", **_ON_GPU)

_RATES = {"cpu": {"bfloat16": 4.0, "float16": 1.3}, "gpu": {"bfloat16": 8.0, "float16": 8.0}}
"""Speed of products in other types relative to float32, as the built-in constants assume; further types go by their
bytes."""


SHORTER = 11.0
"""How many times as fast as float32 a GPU computes scores in types of 16 bits (H200, PyTorch 2.11)."""


def default_profile(device: str, dtype: str = "float32") -> DeviceProfile:
    """Built-in constants: those of a two-core server with one core at work, or of a data-centre GPU."""
    name, usual = ("cpu", _CPU) if device.startswith("cpu") else ("gpu", _GPU)
    if dtype == "float32":
        return usual
    rate = _RATES[name].get(dtype, {"float64": 0.5, "complex64": 0.25, "complex128": 0.125}.get(dtype, 1.0))
    scored = usual.scored / (SHORTER if rate > 1.0 else 1.0)
    return replace(usual, key=f"{usual.key} {dtype}", flops=usual.flops * rate, scored=scored)


# ---------------------------------------------------------------------------- memory access


MOST = 10**60
"""More elements than any tensor has; four such numbers still multiply to a finite one."""

DIGIT = 1 << 256
"""More than any stride."""

LINE = 64
"""Bytes of a cache line."""

WAYS, LOST_AT = 8, 8.0
"""The associativity of the L1 cache. A line is certainly evicted if this many times the cache's capacity is read
between two reads of it."""

IN_L2, GONE_AT = 256, 16.0
"""The same for the L2 cache, which holds this many lines for each line of a page, wherever pages are mapped."""

STREAMED = 256
"""Bytes between reads from which the processor does not prefetch them."""

PREFETCHED = (1.0, 0.66, 0.15)
"""The relative cost of a line evicted from L1 if reads use 1, 2 or 4 sets; with more sets, none is evicted."""


class MemoryAccess(NamedTuple):
    """The memory traffic of a step.

    Attributes:
        moved: bytes read and written.
        written: bytes written.
        runs: how often the innermost loop runs.
        chunks: how often the two innermost loops together run.
        scattered: elements read that are not next to the one before.
        lost: lines fetched again from the L2 cache, because they were evicted from L1.
        fetched: lines fetched again from beyond L2.
    """

    moved: float
    written: float
    runs: float
    chunks: float
    scattered: float
    lost: float
    fetched: float


def memory_access(
    order: Sequence[str], operands: Sequence[Sequence[str]], sizes: Mapping[str, int], itemsize: int
) -> MemoryAccess:
    """The memory traffic to compute a result in one layout from operands in their own layouts.

    Args:
        order: the axes of the result, in memory order.
        operands: the axes of each operand, in memory order; an operand that lacks an axis is broadcast along it.
        sizes: axis to number of positions.
        itemsize: bytes of one element.
    """
    loops, steps, parts = _loops(order, operands, sizes)
    elements = float(min(math.prod(loops), MOST))
    if not elements:
        return MemoryAccess(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    inner, second, *_ = (*loops, 1, 1)
    moved, scattered, lost, fetched = elements, 0.0, 0.0, 0.0
    for part, path in zip(parts, steps, strict=True):
        moved += part
        scattered += elements if path and path[0] > 1 else 0.0
        if (between := _between(loops, path, itemsize)) is not None:
            again, gone = _lost(between, itemsize)
            lost, fetched = lost + again * elements, fetched + gone * elements
    runs = elements / inner
    chunks = runs / (second or 1)
    return MemoryAccess(itemsize * moved, itemsize * elements, runs, chunks, scattered, lost, fetched)


def _loops(
    order: Sequence[str], operands: Sequence[Sequence[str]], sizes: Mapping[str, int]
) -> tuple[list[int], Sequence[Sequence[int]], list[float]]:
    """The loops of a walk, innermost first: their sizes, the strides of each operand, and its count of elements."""
    strides, parts = dict.fromkeys(order, 0), list[float]()  # each operand's is a digit of one number
    for operand in operands:
        step = unit = DIGIT ** len(parts)
        for axis in reversed(operand):
            strides[axis] += step
            step *= sizes[axis]
        parts.append(float(min(step // unit, MOST)))
    loops, steps, following = list[int](), list[int](), -1
    for axis in reversed(order):
        step, size = strides[axis], sizes[axis]
        if size == 1:
            continue
        if step == following:  # it continues where the last loop ends
            loops[-1] *= size
        else:
            loops.append(size)
            steps.append(step)
        following = step * size
    if len(parts) == 1:
        return loops, [steps], parts
    return loops, [[step // DIGIT**n % DIGIT for step in steps] for n in range(len(parts))], parts


class _Between(NamedTuple):
    """The reuse distance of a cache line: what is read between two reads of it.

    Attributes:
        lines: the number of other lines.
        step: elements from one to the next.
        places: the number of cache sets that they fall into.
        repeated: how often an element is read before the next one is.
    """

    lines: int
    step: int
    places: int
    repeated: int


def _between(loops: Sequence[int], steps: Sequence[int], itemsize: int) -> _Between | None:
    """The reuse distance of a line of an operand; None if it is read in memory order, or line by line.

    Args:
        loops, steps: the size of each loop, and the stride of the operand in elements; innermost first.
        itemsize: bytes of one element.
    """
    piece, at, repeated, count = 1, 0, 1, len(loops)
    while at < count and (steps[at] == piece or not steps[at]):  # contiguous or repeated
        piece, repeated = piece * loops[at] if steps[at] else piece, repeated * loops[at]
        at += 1
    lines, step, common, places, beside = 1, 0, 0, 1, max(piece, LINE // itemsize)
    while at < count and not 0 < steps[at] <= beside:  # there the walk returns next to where it was
        if steps[at]:
            lines, step, common = lines * loops[at], step or steps[at], math.gcd(common, steps[at])
            places *= min(loops[at], _places(steps[at] * itemsize))
        at += 1
    return (
        _Between(min(lines, MOST), step, min(places, _places(common * itemsize)), repeated) if step else None
    )


def _lost(between: _Between, itemsize: int) -> tuple[float, float]:
    """The lines fetched again for an element of the result: from the L2 cache, and from beyond.

    Lines at strides with many factors of two fall into few sets of a cache, others into all of them. Fitted to
    transposed copies at strides of 64 bytes to 256 KiB, on a processor with 8 ways.
    """
    step = between.step * itemsize
    places, turn = between.places, _places(step).bit_length() - 1
    lost = PREFETCHED[turn] if turn < len(PREFETCHED) else 0.0
    near, far = between.lines / (WAYS * places), between.lines / (IN_L2 * places)
    lost *= _share(near, LOST_AT) if near > 1.0 else 0.0
    gone = _share(far, GONE_AT) * min(1.0, step / STREAMED) if far > 1.0 else 0.0
    return lost / between.repeated * min(1.0, step / LINE), gone / between.repeated


@functools.lru_cache(maxsize=1 << 12)
def _places(step: int) -> int:
    """The number of cache sets that lines at this stride fall into."""
    return PAGE // max(math.gcd(step, PAGE), LINE)


def _share(times: float, most: float) -> float:
    """The share of lines that is lost if they exceed a cache's capacity `times` times; all from `most` times on."""
    return float(min(1.0, math.log(times) / math.log(most)) ** 1.5)


# ---------------------------------------------------------------------------- heap


@functools.cache
def keep_freed() -> None:
    """Makes the C library reuse freed memory, up to twice `MAPPED`, instead of returning it to the system.

    glibc maps an allocation from the system if it is larger than any freed before, 128 KiB at first. It returns the
    end of its heap if twice as much is free there (malloc/malloc.c, `mp_.mmap_threshold`). The first touch of new
    pages is slow: a call of a model that allocates and frees tensors of some MB takes up to a third longer. This
    function raises the thresholds: it allocates the largest block that counts and frees it. The pages of that block
    are never touched. Nothing changes in other C libraries, or if the environment sets the thresholds
    (`MALLOC_TRIM_THRESHOLD_`).
    """
    bytearray(MAPPED - 2**16)
