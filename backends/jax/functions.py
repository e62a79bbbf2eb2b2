"""Functions of JAX for generated code: no array is written into, and no shape depends on values.

Of grouped GEMM, the rows of each matrix fill blocks of one length, the last of them partly. Each block is multiplied by
its matrix. N rows and E matrices give at most N/length + E blocks.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from tensornet.errors import BackendError, ShapeError, check_inside, no_positions

from ..array_functions import Functions, namespace_of
from ..loops import as_tuple, in_pieces
from ..positions import floor_divide, scatters
from ..windows import Windows, convolutions, margins

BLOCKS = 2
"""The number of blocks per matrix on average: with more, blocks would be fuller but read matrices more often."""


@dataclass(frozen=True)
class _Blocks:
    """The assignment of rows to blocks.

    Attributes:
        slots: the index of each row among the rows of all blocks; an index past the last for a row without a matrix.
        matrices: the matrix of each block.
        length: the number of rows in a block.
    """

    slots: Any
    matrices: Any
    length: int

    def filled(self, rows: Any) -> Any:
        """Rows arranged in blocks, with zeros in empty slots."""
        whole = len(self.matrices) * self.length
        put = jnp.zeros((whole, *rows.shape[1:]), rows.dtype).at[self.slots].set(rows, mode="drop")
        return put.reshape(len(self.matrices), self.length, *rows.shape[1:])

    @staticmethod
    def of(positions: Any, size: int) -> _Blocks:
        """The blocks for rows with these positions, from 0 to below `size`."""
        count = positions.size
        length = max(1, -(-count // max(1, BLOCKS * size)))
        told = positions.reshape(-1)
        told = jnp.where((told >= 0) & (told < size), told, size)
        order = jnp.argsort(told, stable=True)
        rows = jnp.bincount(told, length=size + 1)
        blocks = -(-rows // length)
        before, ends = jnp.cumsum(rows) - rows, jnp.cumsum(blocks[:size])
        number = count // length + size
        first = jnp.append(ends - blocks[:size], number) * length
        sorted_ = told[order]
        slots = first[sorted_] + jnp.arange(count) - before[sorted_]
        matrices = jnp.searchsorted(ends, jnp.arange(number), side="right")
        return _Blocks(
            jnp.zeros(count, slots.dtype).at[order].set(slots), jnp.minimum(matrices, size - 1), length
        )


def grouped_matmul(x: Any, positions: Any, matrices: Any) -> Any:
    """y[n,m,r,f] = Σ_c x[n,r,c]·W[p[n,m],f,c], in blocks of the rows of each matrix; NaN at a wrong position."""
    (count, alone), own, out = positions.shape, x.shape[1], matrices.shape[1]
    if not (count * alone and matrices.size):
        return jnp.zeros((count, alone, own, out), x.dtype)
    blocks = _Blocks.of(positions, len(matrices))
    rows = blocks.filled(jnp.repeat(x, alone, axis=0))
    made = jnp.einsum("tnrc,tfc->tnrf", rows, matrices[blocks.matrices]).reshape(-1, own, out)
    return jnp.take(made, blocks.slots, axis=0, mode="fill").reshape(count, alone, own, out)


def grouped_outer(positions: Any, a: Any, b: Any, size: int) -> Any:
    """y[v,a,b] = Σ a[n,m,r,a]·b[n,m,r,b] over the rows where p[n,m] is v; rows at positions outside are dropped."""
    if not (positions.size and size and a.size and b.size):
        return jnp.zeros((size, a.shape[-1], b.shape[-1]), a.dtype)
    blocks = _Blocks.of(positions, size)
    one, other = (
        blocks.filled(
            jnp.broadcast_to(each, (*positions.shape, *each.shape[2:])).reshape(-1, *each.shape[2:])
        )
        for each in (a, b)
    )
    made = jnp.einsum("tnra,tnrb->tab", one, other)
    return jax.ops.segment_sum(made, blocks.matrices, num_segments=size)


def element(name: str) -> Any:
    """The element type of a name; the 32-bit one if 64-bit types are off."""
    return jax.dtypes.canonicalize_dtype(name)


def _is(array: Any, kind: str) -> bool:
    """Whether the elements are of a kind: `integer`, `floating`, `complexfloating` or another NumPy kind."""
    return bool(jnp.issubdtype(array.dtype, getattr(jnp, kind)))


class _JaxFunctions(Functions):
    """What JAX does in another way than libraries whose arrays can be written into."""

    def device(self, x: Any) -> None:
        return None  # a traced array has none

    def joins(self, x: Any) -> bool:
        return True  # arrays cannot be written into

    def average_hardmax(self, x: Any, axis: int, positions: Any, element: Any) -> Any:
        """1/k at each of the k largest elements along an axis.

        XLA may compute `x` twice, for the maximum and for the comparison with it, and round differently. So the
        position of the maximum, from `argmax`, always counts as well.
        """
        y = x.max(axis=axis, keepdims=True)
        first = jnp.argmax(x, axis=axis, keepdims=True) == positions
        largest = (first | (x == y)).astype(element)
        return jnp.where(y == y, largest / largest.sum(axis=axis, keepdims=True), jnp.nan)

    def along(
        self,
        function: Any,
        cut: Any,
        states: Any,
        rest: Any,
        size: int,
        axes: Any,
        following: Any,
        results: int,
        back: bool,
        last: Any = (),
    ) -> Any:
        """The stacked first results of a function at all positions: one loop of XLA, which stacks the last ones too."""

        def step(now: Any, pieces: Any) -> Any:
            found = as_tuple(function(*pieces, *now, *rest))
            return tuple(found[number] for number in following), found[:results]

        moved = tuple(jnp.moveaxis(each, axis, 0) for each, axis in zip(cut, axes, strict=True))
        with unlooked():
            if any(map(_varying, (*moved, *states, *rest))):
                states = _settled(step, states, [each[0] for each in moved])
            _, found = jax.lax.scan(step, tuple(states), moved, length=size, reverse=back)
        return found[0] if len(found) == 1 else found

    def whole(self, x: Any) -> Any:
        """Numbers as integers; NaN and numbers out of range give the least integer, where JAX gives 0 or the
        largest."""
        if not _is(x, "floating"):
            return x.astype(int)
        least = jnp.iinfo(int).min
        inside = jnp.abs(x) < -float(least)
        return jnp.where(inside, x, 0).astype(int) + jnp.where(inside, 0, least)

    def within(self, index: Any, size: int, name: str, past: int = 0) -> Any:
        """Positions, after a check that they are integers from 0 to below `size`.

        Traced positions have no values to check. A wrong one is replaced by `past`, which is beyond all that is read,
        so that the read gives NaN instead of a neighbour.
        """
        if not _is(index, "integer"):
            raise no_positions(name, str(index.dtype))
        if isinstance(index, jax.core.Tracer):
            if not size and index.size:  # JAX itself refuses to read from there
                raise ShapeError(
                    f"'{name}' holds positions, where there are 0", fix="there is nothing to choose from"
                )
            looked(index, size, name)
            index = index.astype(int)
            return jnp.where((index >= 0) & (index < size), index, past)
        if index.size:
            with jax.ensure_compile_time_eval():  # the index has values, even inside a trace
                low, high = int(index.min()), int(index.max())
            check_inside(name, low, high, size)
        return index.astype(int)

    def floor_divide(self, a: Any, b: Any) -> Any:
        """⌊a / b⌋; for floats divided by 0 it is a / b, where JAX before 0.7 gives NaN."""
        quotient = floor_divide(self, a, b)
        if (isinstance(b, int | float) and b) or not _is(quotient, "floating"):
            return quotient
        return jnp.where(b == 0, a / b, quotient)

    def dropout(self, x: Any, rate: float, training: bool) -> Any:
        if not training or not rate:
            return x
        raise BackendError(
            "dropout draws random numbers, and a pure function of JAX has none",
            fix="give the mask as an input, where(keep[b,i], x[b,i] / (1 - rate), 0), or call without training=True",
        )

    def piece(self, x: Any, at: Any, length: int, axis: int) -> Any:
        """The piece of an array that begins at a position; if that is traced, the whole piece must be in the array."""
        if isinstance(at, int):
            return super().piece(x, at, length, axis)
        return jax.lax.dynamic_slice_in_dim(x, at, length, axis)

    def in_pieces(self, function: Any, size: int, length: int, axes: tuple[int, ...]) -> Any:
        """Computes a result in pieces. A trace uses a loop, because XLA would otherwise compute all pieces at once.

        Arrays are immutable, so the pieces are concatenated at the end.
        """
        whole = size // length
        starts = length * jnp.arange(whole)
        if whole < 2 or not isinstance(starts, jax.core.Tracer):
            return in_pieces(self, function, size, length, axes)
        with unlooked(must=True):
            stacked = jax.tree.leaves(jax.lax.map(lambda at: function(at, length), starts))
        parts = [[_merged(one, axis) for one, axis in zip(stacked, axes, strict=True)]]
        if size % length:
            parts.append(jax.tree.leaves(function(whole * length, length)))
        made = tuple(map(jnp.concatenate, zip(*parts, strict=True), axes))
        return made[0] if len(axes) == 1 else made


def _varying(x: Any) -> Any:
    """The axes of a mesh along which the values of an array vary from device to device."""
    return getattr(getattr(jax.typeof(x), "manual_axis_type", None), "varying", frozenset())


def _settled(step: Any, states: Any, pieces: Any) -> Any:
    """The first states of a loop, which vary along all axes of a mesh along which later ones do."""
    while True:
        later, _ = jax.eval_shape(step, states, pieces)
        more = [each.manual_axis_type.varying - _varying(x) for x, each in zip(states, later, strict=True)]
        if not any(more):
            return states
        states = [jax.lax.pcast(x, tuple(axes), to="varying") for x, axes in zip(states, more, strict=True)]


def _merged(pieces: Any, axis: int) -> Any:
    """Stacked pieces of equal length as one array along one of their axes."""
    shape = pieces.shape[1:]
    moved = jnp.moveaxis(pieces, 0, axis)
    return moved.reshape(*shape[:axis], len(pieces) * shape[axis], *shape[axis + 1 :])


def _summed(rows: Any, x: Any, count: int) -> Any:
    return jax.ops.segment_sum(x, rows, num_segments=count)


def _counted(rows: Any, count: int) -> Any:
    return jnp.bincount(rows, length=count)


# ---------------------------------------------------------------------------- windows


SLICES = 32
"""The most slices of an array that are stacked; for more, elements are gathered."""


def windows(x: Any, axis: int, first: int, by: int, apart: int, outer: int, inner: int) -> Any:
    """y[…,p,u,…] = x[…,first + by·p + apart·u,…], by stacking slices if these are few, else by a gather."""
    if not 0 < min(outer, inner) <= SLICES:
        places = first + by * jnp.arange(outer)[:, None] + apart * jnp.arange(inner)
        return jnp.take(x, places, axis=axis)
    (count, length, step, along), at = min(((inner, outer, by, apart), 1), ((outer, inner, apart, by), 0))
    starts = range(first, first + count * along, along)
    parts = [jax.lax.slice_in_dim(x, start, start + (length - 1) * step + 1, step, axis) for start in starts]
    return jnp.stack(parts, axis + at)


def spaced(x: Any, axis: int, first: int, by: int, size: int) -> Any:
    """y[…,first + by·p,…] = x[…,p,…], and 0 elsewhere along an axis of the given size."""
    rest = size - first - max(0, (x.shape[axis] - 1) * by + 1)
    amounts = [(first, rest, by - 1) if n == axis else (0, 0, 0) for n in range(x.ndim)]
    return jax.lax.pad(x, jnp.zeros((), dtype=x.dtype), amounts)


def _zeros(one: Any, other: Any, shape: tuple[int, ...]) -> Any:
    return jnp.zeros(shape, one.dtype)


def _convolution(x: Any, k: Any, groups: int, windows: Windows) -> Any:
    """y[b,go,p] = Σ x[b,gc,first + by·p + apart·u] · k[go,c,u]."""
    by, apart, _, outer = zip(*windows, strict=True)
    amounts = margins(x.shape[2:], windows, outer, k.shape[2:])
    return jax.lax.conv_general_dilated(x, k, by, amounts, rhs_dilation=apart, feature_group_count=groups)


def _transposed(
    function: Callable[[Any, Windows], Any], y: Any, windows: Windows, shape: tuple[int, int]
) -> Any:
    """The vjp of a convolution by one of its operands.

    Args:
        function: the convolution, of that operand and of the windows.
        y: the gradient of its result.
        windows: of the operand.
        shape: of the first two dimensions of the operand.
    """
    sizes, around = (size for *_, size in windows), zip(windows, y.shape[2:], strict=True)
    turned = tuple((by, apart, first, size) for (by, apart, first, _), size in around)
    like = jax.ShapeDtypeStruct((*shape, *sizes), y.dtype)
    return jax.linear_transpose(lambda each: function(each, turned), like)(y)[0]


def _convolution_x(y: Any, k: Any, groups: int, windows: Windows) -> Any:
    """x[b,gc,i] = Σ y[b,go,p] · k[go,c,u] where i is first + by·p + apart·u."""
    shape = y.shape[0], groups * k.shape[1]
    return _transposed(lambda x, around: _convolution(x, k, groups, around), y, windows, shape)


def _convolution_k(x: Any, y: Any, groups: int, windows: Windows) -> Any:
    """k[go,c,u] = Σ x[b,gc,first + by·p + apart·u] · y[b,go,p]."""
    shape = y.shape[1], x.shape[1] // groups
    return _transposed(lambda k, around: _convolution(x, k, groups, around), y, windows, shape)


convolution, convolution_x, convolution_k = convolutions(_convolution, _convolution_x, _convolution_k, _zeros)

NAMESPACE = {
    **namespace_of(_JaxFunctions(jnp, jax.lax.erf, jax.nn.sigmoid)),
    **scatters(jnp, int, _summed, counted=_counted),
    "convolution": convolution,
    "convolution_x": convolution_x,
    "convolution_k": convolution_k,
    "jax": jax,
    "jnp": jnp,
    "element": element,
    "windows": windows,
    "spaced": spaced,
    "grouped_matmul": grouped_matmul,
    "grouped_outer": grouped_outer,
}
"""What generated code may use, by name."""


# ---------------------------------------------------------------------------- compilation by jax.jit


class _Here(threading.local):
    """The state of a trace in this thread.

    Attributes:
        met: the checks of the positions met so far, each of the least and the greatest; None if none are collected.
        must: whether positions must be checked, so that one inside a loop prevents compilation.
    """

    met: list[Callable[[], None]] | None = None
    must: bool = False


_here = _Here()


class _UnseenError(Exception):
    """Raised if positions that must be checked are in a loop, which cannot return them."""


def looked(index: Any, size: int, name: str) -> None:
    """Records traced positions for a check after the call."""

    def check(low: Any, high: Any) -> None:
        check_inside(name, int(low), int(high), size)

    if _here.must:
        raise _UnseenError
    if _here.met is not None and index.size:
        _here.met.append(jax.tree_util.Partial(check, index.min(), index.max()))


@contextlib.contextmanager
def unlooked(must: bool = False) -> Iterator[None]:
    """A context for loops: positions inside are not checked; with `must`, one inside prevents compilation."""
    former = _here.met, _here.must
    _here.met, _here.must = None, must and former[0] is not None
    try:
        yield
    finally:
        _here.met, _here.must = former


def as_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays and of `training`, compiled as a whole.

    Inside another trace the function runs uncompiled, and so does one that calls functions that cannot be traced.
    A traced function has no values to check: it also returns the least and the greatest of the positions that it reads
    at, and these are checked after the call.
    """

    untraced = (_UnseenError, jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError)

    @functools.partial(jax.jit, static_argnames=("training",))
    def traced(*arrays: Any, **options: Any) -> tuple[Any, Any]:
        former, _here.met = _here.met, []
        try:
            return function(*arrays, **options), _here.met
        finally:
            _here.met = former

    plain = False

    @functools.wraps(function)
    def run(*arrays: Any, **options: Any) -> Any:
        nonlocal plain
        if plain or any(isinstance(each, jax.core.Tracer) for each in arrays):
            return function(*arrays, **options)
        try:
            made, met = traced(*arrays, **options)
        except untraced:
            plain = True
            return function(*arrays, **options)
        if met and isinstance(met[0].args[0], jax.core.Tracer):  # the call is inside another trace
            return function(*arrays, **options)
        for check in met:
            check()
        return made

    return run
