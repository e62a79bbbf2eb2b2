"""The device model: expected seconds from a few measured constants.

The model: what a step takes adds up. A product pays for its arithmetic, of whole vectors or of as many columns as
were measured, for storing its result, and for every byte of its matrices once, most of which goes on while it computes;
for each matrix where there are many, and where these lie in pieces for the lines that caches lose between them. A step
that goes through memory element by element pays for the bytes, for each innermost loop or each element that it reads
out of order, and for the lines that caches lose meanwhile; every operation pays for being called. Bytes come at rates
of their own from the first caches, the last of them and memory. Where several cores work, constants are those of all
of them together; small steps and products with a vector stay with one. Constants belong to one element type: a profile
is measured for each.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, replace
from typing import Annotated

from ..codec import Choice, Text, document
from .heap import MAPPED
from .memory_access import LINE, MemoryAccess

__all__ = ["CONSTANTS", "PACKED", "Certainty", "DeviceProfile", "default_profile"]

PACKED = "packed_linear"
"""What a backend has a spelling for whose library has a kernel that lays both matrices of a product out anew."""


def packed_with(function: str) -> str:
    """What a backend has a spelling for where that kernel takes a function of each element of the product as well."""
    return f"{PACKED}_{function}"


IN_CACHE = 2**20
"""Bytes that a step may move for all of them to be thought to lie in the caches of a processor's core."""

NEAR = 2**24
"""The same for the last of the caches."""

LANES = 16
"""Elements that are computed together: a row of a product's result takes the time of whole vectors of them."""

COLUMNS = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)
"""Columns of a product's result for which it is measured how many of a large product take the same time."""

GRAIN = 32_768
"""Elements below which a step is left to one core: what torch shares out has at least so many."""

SHORT = 0.5
"""A row times a column that lies together costs as much as so many innermost loops."""

RESULT = 6.0
"""In a plain loop over small matrices an element of the result costs as much as so many multiplications."""

CHUNK = 8.0
"""Two innermost loops together cost as much to set up as so many innermost ones."""

NARROW = 4
"""Fewer rows than this are multiplied one by one, and go through a second matrix that lies transposed line by line;
where the first one does as well, element by element."""

WIDE = 64
"""Matrices of fewer columns than this, or that are summed over fewer positions, are not worth being laid out anew."""

GAIN = 0.98
"""Matrices are laid out anew where that takes less than this part of the usual time: what is gained must be seen."""

PAGE = 4096
"""Bytes from one line to the next at which all share one place of the first of the caches; at other steps as many
fewer as these have in common with it."""

UNPACKED, AGAIN = 10, 4.0
"""A first matrix that lies transposed is not laid out anew for fewer columns than this: it is gone through this
many times."""

BLOCK, FEW = 8, 3
"""Convolutions work on so many channels together; with fewer than so few they are a plain loop, but for one of each."""

BLOCKS = 264
"""Blocks of queries that a GPU computes at once: two on each multiprocessor of an H200."""

SPLIT = 512
"""Keys that one multiprocessor goes through at least where there are few blocks, in types of 16 bits."""

DEEPEST, EVEN = 256, 8
"""Channels up to which attention in 16 bits stays on the chip, and what their number is a multiple of with a mask."""

FALLBACK, MASKED = 10.0, 2.0
"""How many times as long it takes otherwise, and with a mask: 7 to 27, 1.8 to 2.7 (H200, bfloat16, PyTorch 2.11)."""

STEPS = 9
"""Rows to be added up at told positions take so many small operations besides: to look at these, to make room."""

UNREST = 0.25
"""Where measuring again gives times that differ by more than this part, or others had more than this part of the
processors, the device had other work."""

SPREAD = 1.7
"""What is assumed of the built-in constants: that measured and expected time differ by no more than this."""


BUILT_IN = "default-"
"""How the keys of the built-in constants begin."""

CONSTANTS = {
    "built in": "as is assumed of the built-in constants",
    "measured": "by constants measured on the device",
    "measured while busy": "by constants measured while the device had other work",
}
"""Where constants come from, and what is said of that."""


@document()
@dataclass(frozen=True)
class Certainty:
    """How sure expected times are.

    Attributes:
        spread: four of five lie between 1/spread and spread of what is measured.
        constants: where the constants come from, a key of `CONSTANTS`.
    """

    spread: float
    constants: Annotated[str, Choice(*CONSTANTS)]

    def __str__(self) -> str:
        return f"four of five within ×/÷ {self.spread:.2g}, {CONSTANTS[self.constants]}"


@document()
@dataclass(frozen=True)
class DeviceProfile:
    """The constants of a device for one element type.

    Attributes:
        key: tells device, library, version and element type.
        flops: FLOP/s of a large matrix product.
        bandwidth: bytes/s, read plus written, in order.
        near_bandwidth: the same of what the last of the caches holds.
        held_bandwidth: the same of what those before it hold.
        jump_bandwidth: the same of runs that do not follow one another, from the last of the caches or memory.
        pass_bandwidth: the same of a function that computes, for each pass but one.
        launch: seconds that an operation costs whatever its size.
        view: seconds to look at a tensor in another way, nothing moved.
        batch: seconds that each matrix of a batched product costs.
        small: multiply-adds below which the matrices of a batched product go through a plain loop; 0 if never.
        plain: seconds of a multiply-add there.
        along: the same where both matrices lie along what is summed.
        run: seconds that each innermost loop of a step element by element costs.
        even: the same of loops that go through whole lines of memory.
        scattered: seconds for an element that does not lie beside the one before it.
        blocked: seconds that each row of a matrix costs, where the library turns it in blocks and no lines are lost;
            0 where it goes element by element.
        near_line: seconds to fetch a line that is gone from the first of the caches.
        line: seconds to fetch one that is gone from the second, too.
        fresh_bytes: bytes of a result from which it is touched for the first time.
        fresh_bandwidth: bytes/s at first touch.
        fresh_product: the same of what products write, which may lie in large pages.
        tile: keys that the library's attention computes together, or leaves out where all of them are hidden; on a
            GPU, queries too.
        scored: seconds that a score of attention takes whose kernel keeps it on the chip; 0 where scores go
            through the caches.
        cached: bytes of a tensor from which steps that go through it take twice as long as in parts that stay in
            the cache.
        spread: four of five products measured with the constants took between 1/spread and spread of what they
            say; how sure a plan is.
        turned: seconds that an element of the second of two matrices takes more where that lies transposed.
        packed_flops: FLOP/s of a large product of two matrices by kernels that lay both out anew; 0 if there are none.
        packed_launch: seconds that such a product costs besides, whatever its size.
        product: seconds that a product of matrices costs besides, whatever its size: cores agree on their parts.
        vector_bandwidth: bytes/s of a product of a vector and a matrix.
        cores: how many times as fast steps element by element are that all cores share.
        grain: bytes of a result, or half of what is moved, below which one core does them; as many bytes of
            elements as a plain loop has multiply-adds.
        aliased: seconds that an element of the first of two matrices takes more that lies transposed, its lines
            whole pages apart, so that they share one place of a cache.
        widths: multiply-adds in whose time each of a row of a large product goes on, of as few columns as `COLUMNS`
            says: where its matrices lie as they are read, where the second lies transposed, and where both do;
            empty where whole vectors of `LANES` tell it.
        starts: multiply-adds in whose time such a row begins and ends.
        packing: rows of a product that take the time in which its second matrix is laid out for it.
        stored: multiply-adds that an element of a product's result costs besides its own.
        unrest: the part by which measuring again gave other times, or that others had of the processors,
            whichever is more; 0 of the built-in constants.
    """

    key: Text
    flops: float
    bandwidth: float
    near_bandwidth: float
    held_bandwidth: float
    jump_bandwidth: float
    pass_bandwidth: float
    launch: float
    view: float
    batch: float
    small: float
    plain: float
    along: float
    run: float
    even: float
    scattered: float
    blocked: float
    near_line: float
    line: float
    fresh_bytes: float
    fresh_bandwidth: float
    fresh_product: float
    turned: float
    tile: float = 512.0
    scored: float = 0.0
    cached: float = float(6 * 2**20)
    spread: float = SPREAD
    unrest: float = 0.0
    widths: tuple[tuple[float, ...], ...] = ()
    starts: tuple[tuple[float, ...], ...] = ()
    packing: float = 0.0
    aliased: float = 0.0
    stored: float = 3.0
    packed_flops: float = 0.0
    packed_launch: float = 0.0
    product: float = 0.0
    vector_bandwidth: float = 1e18
    cores: float = 1.0
    grain: float = 0.0

    @property
    def certainty(self) -> Certainty:
        """How sure the times are that these constants say."""
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
        """Seconds of `batch` products (m×k)·(k×n) with elements of `size` bytes, by the kernel that is quicker.

        Args:
            turned: whether the second matrix lies transposed.
            crossed: whether the first one does.
        """
        usual = self._matmul(batch, m, n, k, size, turned, crossed)
        return usual if batch > 1 or crossed else min(usual, self.packed(m, n, k, size))

    def is_packed(self, m: float, n: float, k: float, size: int) -> bool:
        """Whether a product of two matrices is quicker by a kernel that lays both out anew."""
        return self.packed(m, n, k, size) < self._matmul(1.0, m, n, k, size)

    def packed(self, m: float, n: float, k: float, size: int) -> float:
        """Seconds of a product of two matrices by such a kernel; it does not write into large pages."""
        if not self.packed_flops or m < NARROW or min(n, k) < WIDE or size * m * n >= self.fresh_bytes:
            return math.inf
        arithmetic = 2.0 * m * LANES * math.ceil(n / LANES) * (k + self.stored) / self.packed_flops
        fixed = self.launch + self.packed_launch + self.laid_out(m, n, k, size)
        return (fixed + math.hypot(arithmetic, self.stream(size * (m * k + k * n + m * n)))) / GAIN

    def laid_out(self, m: float, n: float, k: float, size: int) -> float:
        """Seconds to lay two matrices out anew."""
        return self.stream(2.0 * size * (m * k + k * n))

    def _matmul(
        self,
        batch: float,
        m: float,
        n: float,
        k: float,
        size: int,
        turned: bool = False,
        crossed: bool = False,
    ) -> float:
        written = size * batch * m * n
        fixed = self.launch + (2.0 * self.view if batch > 1 else 0.0)
        fixed += self.product if min(m, n) > 1 else 0.0
        fixed += written / self.fresh_product if written >= self.fresh_bytes else 0.0
        if batch > 1 and m * n * k < self.small:
            is_along = (turned or n == 1) and not (crossed and m > 1)
            each = self.along if is_along else self.plain
            return fixed + each * self._alone(0.0, size * batch * m * n * k) * batch * m * n * (k + RESULT)
        columns = n if batch == 1 else max(n, 2.0)  # many matrices by vectors are products like others
        lies = turned + (turned and crossed)
        packed = self.packing * n * (k + self.stored) if m > 1 else 0.0
        arithmetic = 2.0 * batch * (m * self.row(columns, k, lies) + packed) / self.flops
        moved = size * batch * (m * k + k * n + m * n)
        each = self.batch * batch if batch > 1 else 0.0
        if crossed and m > 1:
            shared = math.gcd(int(m) * size, PAGE) / PAGE
            each += self.aliased * shared * batch * m * k * (AGAIN if n < UNPACKED else 1.0)
        if turned:
            each += self.turned * batch * n * k
            if m < NARROW:
                each += batch * n * (self.scattered * k if crossed and m > 1 else self.run * m * SHORT)
        seconds = math.hypot(arithmetic, self.stream(moved))
        if batch == 1 and min(m, n) == 1:
            seconds = max(seconds, moved / self.vector_bandwidth)
        return fixed + seconds + each

    def at_least(self, work: float, moved: float) -> float:
        """Seconds that no product of so many multiply-adds and bytes stays below."""
        return self.launch + math.hypot(2.0 * work / max(self.flops, self.packed_flops), self.stream(moved))

    def row(self, columns: float, k: float, lies: int = 0) -> float:
        """Multiply-adds in whose time a row of a product is computed: of whole vectors, or as measured for a few.

        How libraries compute few columns differs: one takes 8 of them as long as 16, another as long as 57.

        Args:
            columns: those of the result.
            k: the positions that are summed.
            lies: which of `widths` tells it.
        """
        if not self.widths:
            return LANES * math.ceil(columns / LANES) * (k + self.stored)
        if columns > COLUMNS[-1]:
            beyond = LANES * math.ceil((columns - COLUMNS[-1]) / LANES)
            return self.row(COLUMNS[-1], k) + beyond * (k + self.stored)
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
        """Seconds of a convolution, as of the product that it is, of whole blocks of channels.

        Args:
            groups: how many there are side by side.
            out: channels of the result, in each.
            positions: those of the result.
            channels: channels of the operand, in each group.
            inner: elements of the kernel for each pair of channels.
            size: bytes of an element.
        """
        if self.small and channels < FEW and channels * out > 1:
            return self.launch + self.plain * groups * out * positions * channels * inner
        if self.small and channels * out > 1:
            out, channels = max(out, BLOCK), max(channels, BLOCK)
        return self.matmul(groups, out, positions, channels * inner, size)

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
        """Seconds of attention that keeps scores on the chip: products, and what is done to each score, side by side.

        A block of queries stays with one multiprocessor, so that few of them leave others idle. In types of 16 bits
        many keys are shared out too, and kernels ask for few channels, with a mask for whole groups of them.

        Args:
            shared: of how many attentions side by side: of a batch, and of heads.
            queries, keys: positions, of keys those that are not left out.
            inner, channels: of a query, and of a value.
            size: bytes of an element.
            masked: whether a mask or something to be added is read for each score.
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
        """Seconds of a step that goes through memory element by element."""
        beyond = self._alone(access.moved, access.written) * self._beyond_bytes(access)
        return self.pointwise(access.moved, access.written) + beyond

    def _beyond_bytes(self, access: MemoryAccess) -> float:
        """Seconds that all cores take for the loops of such a step, and for what it reads out of order."""
        scattered = self.scattered * access.scattered
        if (
            self.blocked
            and access.scattered
            and access.chunks == 1.0
            and access.moved == 2.0 * access.written
        ):
            return scattered + self.blocked * max(access.runs, access.scattered / access.runs)
        loops = self.run * CHUNK * access.chunks
        if access.runs and not access.scattered:
            loops += (self.run if access.written / access.runs % LINE else self.even) * access.runs
        return scattered + self.reached(access) + loops

    def reached(self, access: MemoryAccess) -> float:
        """Seconds that going through memory takes beyond those of its bytes in order, where lines are lost or far."""
        far = _beyond(access.moved, NEAR / 2, 2.0)
        jumps = far * access.jumped * (1.0 / self.jump_bandwidth - 1.0 / self.near_bandwidth)
        return jumps + self.near_line * access.lost + self.line * access.fetched

    def pointwise(self, moved: float, written: float) -> float:
        """Seconds of a step element by element, of tensors that all lie as the result does."""
        return self._alone(moved, written) * self.stream(moved) + self.fresh(written) + self.launch

    def _alone(self, moved: float, written: float = 0.0) -> float:
        """How many times as long as for all cores a step takes, for the one that does it where it is small."""
        return self.cores if max(written, moved / 2.0) < self.grain else 1.0

    def computed(self, moved: float, written: float, passes: float) -> float:
        """The same of a function, which takes the time of so many passes: all but one of them in the caches."""
        return self.pointwise(moved, written) + (passes - 1.0) * moved / self.pass_bandwidth

    def scatter(self, moved: float, written: float, rows: float) -> float:
        """Seconds to add rows up at told positions, `moved` bytes in all, `written` of them as a result."""
        return self.pointwise(moved, written) + STEPS * self.launch + self.run * rows

    def fresh(self, written: float) -> float:
        """Seconds that first touch adds to a result of so many bytes."""
        return written / self.fresh_bandwidth if written >= self.fresh_bytes else 0.0


def _beyond(moved: float, held: float, times: float) -> float:
    """The part of what is moved that a cache does not hold: all of it from so many times on as much as it does."""
    return min(1.0, (1.0 - held / moved) * times / (times - 1.0)) if moved > held else 0.0


_CPU = DeviceProfile(
    key=f"{BUILT_IN}cpu",
    flops=1.7e11,
    bandwidth=2.6e10,
    near_bandwidth=2.6e10,
    held_bandwidth=5.5e10,
    jump_bandwidth=2.0e10,
    pass_bandwidth=3.9e10,
    launch=1.4e-6,
    view=1.2e-6,
    batch=6e-8,
    small=400.0,
    plain=5e-10,
    along=2e-10,
    run=2.1e-9,
    even=2.1e-9,
    scattered=4.4e-10,
    blocked=0.0,
    near_line=2e-9,
    line=4e-9,
    fresh_bytes=float(MAPPED),
    fresh_bandwidth=2.5e9,
    fresh_product=7.0e9,
    turned=2.2e-10,
)
_GPU = DeviceProfile(
    key=f"{BUILT_IN}gpu",
    flops=5.0e13,
    bandwidth=1.5e12,
    near_bandwidth=1.5e12,
    held_bandwidth=1.5e12,
    jump_bandwidth=1.5e12,
    pass_bandwidth=6e12,
    launch=6e-6,
    view=1e-6,
    batch=1e-9,
    small=0.0,
    plain=1e-12,
    along=1e-12,
    run=1e-12,
    even=1e-12,
    scattered=6e-12,
    blocked=0.0,
    near_line=1e-12,
    line=1e-12,
    fresh_bytes=1e18,
    fresh_bandwidth=1e18,
    fresh_product=1e18,
    turned=3e-12,
    tile=128.0,
    scored=6e-12,
    cached=1e18,
)

_RATES = {"cpu": {"bfloat16": 4.0, "float16": 1.3}, "gpu": {"bfloat16": 8.0, "float16": 8.0}}
"""How many times as fast as float32 the built-in constants take products of other types to be; others go by
their bytes."""


SHORTER = 11.0
"""How many times as fast as float32 a GPU weighs scores of types of 16 bits (H200, PyTorch 2.11)."""


def default_profile(device: str, dtype: str = "float32") -> DeviceProfile:
    """Built-in constants: those of a two-core server of which one core works, or of a data-centre GPU."""
    name, usual = ("cpu", _CPU) if device.startswith("cpu") else ("gpu", _GPU)
    if dtype == "float32":
        return usual
    rate = _RATES[name].get(dtype, {"float64": 0.5, "complex64": 0.25, "complex128": 0.125}.get(dtype, 1.0))
    scored = usual.scored / (SHORTER if rate > 1.0 else 1.0)
    return replace(usual, key=f"{usual.key} {dtype}", flops=usual.flops * rate, scored=scored)
