"""Functions of PyTorch for generated code."""

from __future__ import annotations

import functools
import math
from typing import Any

import array_api_compat.torch as xp
import torch
from torch.nn import functional

from tensornet.errors import ShapeError, check_inside, no_positions

from .. import loops
from .. import positions as shared
from ..array_functions import Functions, in_turn, namespace_of
from ..windows import reach
from .kernels import is_large, room
from .products import changing, is_differentiated, is_eager, is_recorded, is_traced, is_unseen, with_vjp


class _TorchFunctions(Functions):
    """What torch does in another way than other libraries whose arrays can be written into."""

    def device(self, x: Any) -> Any:
        return x.device

    def unbind(self, x: Any, axis: int) -> Any:
        return torch.unbind(x, axis)

    def empty(self, like: Any, shape: tuple[int, ...]) -> Any:
        return like.new_empty(shape)  # under vmap, one for each example

    def positions_apart(self, x: Any) -> Any:
        return x.movedim(-1, 0).contiguous().movedim(0, -1) if x.stride(-1) == 1 else x

    def widen(self, x: Any, dtype: Any) -> Any:
        return x if x.is_complex() else x.to(self.wide(dtype))

    def next_state(self, a: Any, y: Any, b: Any, room: Any) -> None:
        torch.addcmul(b, a, y, out=room)

    def is_recorded(self) -> bool:
        """Whether a compiler or `torch.jit.trace` records the operations, which may then run at other sizes."""
        return is_recorded()

    def joins(self, x: Any) -> bool:
        """Whether a part is recorded. To autograd, each write into a whole tensor would cost a copy of its gradient.

        Under `vmap`, a first part of constants has no room for an example of each that follows.
        """
        return is_traced() or bool(x.requires_grad)

    def overwrites(self, *arrays: Any) -> bool:
        return not (is_traced() or is_differentiated(*arrays))

    def remainder(self, a: Any, b: Any) -> Any:
        if not isinstance(a, torch.Tensor):  # torch does not differentiate a number % a tensor
            a = a * b.new_ones(())  # of the type of both; compilers do not ask which that is
        return shared.remainder(self, a, b)

    def grouped_matmul(self, x: Any, positions: Any, matrices: Any) -> Any:
        """Grouped GEMM. If values cannot be read, each row is multiplied by all matrices."""
        if not is_unseen(positions, x, matrices):
            return shared.grouped_matmul(self, x, positions, matrices)
        each = torch.einsum("nrc,vfc->nvrf", x, matrices)
        return each[torch.arange(len(positions), device=x.device)[:, None], positions]

    def grouped_outer(self, positions: Any, a: Any, b: Any, size: int) -> Any:
        if not is_unseen(positions, a, b):
            return shared.grouped_outer(self, positions, a, b, size)
        ones = positions[..., None] == torch.arange(size, device=positions.device)
        return torch.einsum("nmv,nmra,nmrb->vab", ones.to(a.dtype), a, b)


SHARED = _TorchFunctions(xp)
"""The functions that torch has in common with other libraries."""


def silu(x: Any) -> Any:
    """x·sigmoid(x). Torch's own has no derivative for complex numbers."""
    return x * torch.sigmoid(x) if x.is_complex() else functional.silu(x)


def dropout(x: Any, rate: Any, training: bool) -> Any:
    """Dropout. Torch draws no mask in a complex type."""
    if not 0 <= rate <= 1:
        raise ShapeError(f"a rate of dropout is {float(rate)}", fix="give a probability, from 0 to 1")
    if training and x.is_complex():
        return x * functional.dropout(torch.ones_like(x.real), rate, training)
    return functional.dropout(x, rate, training)


def sign(x: Any) -> Any:
    """−1, 0 or 1, and NaN for NaN, where `torch.sign` gives 0.

    Numbers are multiplied until all but 0 are past ±1, and cut there. A mask takes longer.
    """
    if not x.is_floating_point():
        return torch.sign(x)
    if is_differentiated(x):
        return _Sign.apply(x)  # type: ignore[no-untyped-call]
    if x.requires_grad:
        return torch.sign(x).masked_fill_(x != x, math.nan)
    half_way = 2.0 ** {torch.float64: 540, torch.float16: 13}.get(
        x.dtype, 75
    )  # two multiplications by it take the smallest number past 1
    return functional.hardtanh_(x.detach().mul(half_way).mul_(half_way))


class _Sign(torch.autograd.Function):
    """The sign as one node of autograd's graph. Its gradient is a single 0, expanded: torch's is a tensor of zeros."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        return sign(x.detach())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient.new_zeros(()).expand_as(gradient)


def floor_divide(a: Any, b: Any) -> Any:
    """⌊a / b⌋, of reals with the gradient 0, which `//` has not."""
    if any(isinstance(each, torch.Tensor) and each.is_floating_point() for each in (a, b)):
        return torch.div(torch.as_tensor(a), b, rounding_mode="floor")
    return shared.floor_divide(SHARED, a, b)


def within(index: Any, size: int, name: str) -> Any:
    """Positions as int64, checked to be integers from 0 to `size` − 1.

    On an accelerator, during tracing and under `vmap`, their values cannot be checked. An invalid position becomes one
    that no dimension has, so that a gather fails there instead of reading a neighbour.
    """
    if index.dtype is not torch.int64:
        if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
            raise no_positions(name, str(index.dtype))
        index = index.to(torch.int64)
    if not _is_checked(index):
        return torch.where((index >= 0) & (index < size), index, 2**40)
    if index.numel():
        low, high = torch.aminmax(index)
        check_inside(name, int(low), int(high), size)
    return index


def _is_checked(index: Any) -> bool:
    """Whether the values of positions can be checked."""
    return index.is_cpu and (is_eager(index) or not is_unseen(index))


def take(x: Any, index: Any, axis: int) -> Any:
    """The elements at positions along an axis: by rows, or one by one if the axis is the last of several."""
    if axis + 1 == x.ndim > 1:
        return gather(x, index.expand(*x.shape[:-1], index.shape[0]), axis)
    if changing((x,)) and is_large(x.shape, x):
        return _Take.apply(x, index, axis)  # type: ignore[no-untyped-call]
    return torch.index_select(x, axis, index)


class _Take(torch.autograd.Function):
    """Rows of a large table, or elements one by one. Only the positions are saved: `torch.gather` saves what it reads,
    for the sake of its shape. The gradient is written at the positions and nowhere else."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, index: torch.Tensor, axis: int) -> torch.Tensor:
        ctx.save_for_backward(index)
        ctx.axis, ctx.shape = axis, x.shape
        return (torch.gather if index.ndim == x.ndim else torch.index_select)(x, axis, index)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (index,), made = ctx.saved_tensors, zeros(gradient, ctx.shape)
        add = made.scatter_add_ if index.ndim == made.ndim else made.index_add_
        return add(ctx.axis, index, gradient), None, None


def zeros(like: Any, shape: tuple[int, ...]) -> Any:
    """Zeros like a tensor. Many on a CPU are in memory that was freed, or is new: then the system has cleared it."""
    return room(shape, like, zero=True) if is_large(shape, like) else like.new_zeros(shape)


def gather(x: Any, index: Any, axis: int) -> Any:
    """y[…,j,…] = x[…,index[…,j,…],…]. For the backward pass, only the positions are saved."""
    index = index.long()
    return _Take.apply(x, index, axis) if changing((x,)) else torch.gather(x, axis, index)  # type: ignore[no-untyped-call]


def logsumexp(x: Any, axes: tuple[int, ...]) -> Any:
    """log Σ eˣ. Where all of x is −∞ the gradient is 0; that of `torch.logsumexp` is NaN, so that it is used where
    all results are finite, and x is small enough that a call of Python takes longer than memory."""
    if not changing((x,)):
        return torch.logsumexp(x, axes)
    if is_eager(x) and x.numel() < LARGE and x.device.type == "cpu":
        y = torch.logsumexp(x, axes)
        if math.isfinite(y.detach().sum()):
            return y
    return _LogSumExp.apply(x, axes)  # type: ignore[no-untyped-call]


LARGE = 2**17
"""Elements from which a gradient by operations in place is faster."""


class _LogSumExp(torch.autograd.Function):
    """The function whose gradient is g · exp(x − y), with 0 for an infinite y."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
        y = torch.logsumexp(x, axes)
        ctx.save_for_backward(x, y)
        ctx.shape = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, y = ctx.saved_tensors
        y = y.masked_fill(y.isinf(), 0.0)
        share, gradient = torch.exp_(x - y.reshape(ctx.shape)), gradient.reshape(ctx.shape)
        return share * gradient if torch.is_grad_enabled() else share.mul_(gradient), None


def argsort(x: Any, axis: int) -> Any:
    """The stable order along an axis. Torch sorts rows that lie apart in memory two or three times as slowly."""
    if axis + 1 == x.ndim or is_recorded():
        return torch.argsort(x, dim=axis, stable=True)
    return torch.argsort(x.movedim(axis, -1).contiguous(), dim=-1, stable=True).movedim(-1, axis)


def top(x: Any, axis: int, size: int) -> Any:
    """The positions of the largest elements. All are put in order only in rows where two of the largest or the next
    one are equal."""
    if size >= x.shape[axis] or not (is_eager(x) and x.is_cpu and x.is_floating_point()):
        return shared.top(SHARED, x, axis, size)
    rows = x.detach().movedim(axis, -1)
    values, found = torch.topk(rows, size + 1)
    tied = ~(values[..., :-1] > values[..., 1:]).all(-1)
    found = found[..., :-1]
    if tied.any():
        found[tied] = shared.top(SHARED, rows[tied], 1, size)
    return found.movedim(-1, axis)


def clip(x: Any, low: Any, high: Any) -> Any:
    """min(max(x, low), high). Between numbers the gradient is 1 at both bounds, as in the language."""
    if isinstance(low, torch.Tensor) or isinstance(high, torch.Tensor) or not x.is_floating_point():
        return binary(torch.minimum, binary(torch.maximum, x, low), high)
    return torch.clamp(x, low, high)


def norm(x: Any, axes: tuple[int, ...]) -> Any:
    """√Σ x². Torch takes up to ten times as long along other axes than the last, where it adds number by number."""
    if x.ndim - 1 in axes or x.dtype != torch.float32 or not is_eager(x) or x.numel() < SHORT:
        return torch.linalg.vector_norm(x, dim=axes)
    return _norm(axes)(x)


def extreme(largest: bool, x: Any, axes: tuple[int, ...]) -> Any:
    """The largest or smallest element. Torch takes up to thirty times as long over axes that lie apart if there are
    few positions along the innermost."""
    function = torch.amax if largest else torch.amin
    if is_recorded() or x.numel() < SHORT or not is_eager(x):
        return function(x, axes)
    return _extreme(largest, axes)(x) if changing((x,)) else in_turn(function, x, axes)


@functools.cache
def _extreme(largest: bool, axes: tuple[int, ...]) -> Any:
    """The function as one node of autograd's graph: equal elements share the gradient."""
    function = torch.amax if largest else torch.amin

    def forward(x: Any) -> Any:
        return (in_turn(function, x, axes),) * 2

    def backward(x: Any, y: Any, gradient: Any) -> Any:
        kept = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
        equal = (x == y.reshape(kept)).to(x.dtype)
        return equal.mul_((gradient / in_turn(torch.sum, equal, axes)).reshape(kept))

    return with_vjp(forward, backward, (0, 1), (0,), lambda x: function(x, axes))


SHORT = 1 << 13
"""So many elements take torch no longer than a node of autograd's graph in Python."""


@functools.cache
def _norm(axes: tuple[int, ...]) -> Any:
    """The norm as one node of autograd's graph, added up in double precision as torch does; its gradient is 0 at 0."""

    def forward(x: Any) -> Any:
        return (x.double().square_().sum(axes).sqrt_().float(),) * 2

    def backward(x: Any, y: Any, gradient: Any) -> Any:
        share = (gradient / y).masked_fill_(y == 0, 0.0)
        return x * share.reshape([1 if axis in axes else size for axis, size in enumerate(x.shape)])

    return with_vjp(forward, backward, (0, 1), (0,), lambda x: torch.linalg.vector_norm(x, dim=axes))


def recur(a: Any, b: Any, start: float, back: float) -> Any:
    """y[…,j] = a[…,j-1]·y[…,j-1] + b[…,j-1], whose gradient is such a recurrence too."""
    given = [each for each in (a, b) if isinstance(each, torch.Tensor)]
    is_short = max(each.shape[-1] for each in given) < 2  # nothing goes on from the start
    if is_short or not changing(given) or not is_eager(*given) or given[0].itemsize < 4:
        return loops.recur(SHARED, a, b, start, back)
    pair = (each if isinstance(each, torch.Tensor) else given[0].new_tensor(each) for each in (a, b))
    return _recurrence(start, back)(*xp.broadcast_arrays(*pair))


@functools.cache
def _recurrence(start: float, back: float) -> Any:
    """The recurrence as one node of autograd's graph."""

    def plain(a: Any, b: Any) -> Any:
        return loops.recur(SHARED, a, b, start, back)

    def forward(a: Any, b: Any) -> Any:
        return (plain(a, b),) * 2

    def backward(a: Any, y: Any, gradient: Any, wanted: Any) -> Any:
        coming = loops.recur(SHARED, a, gradient, 0.0, not back)
        return coming * y if wanted[0] else None, coming

    return with_vjp(forward, backward, (0, 2), (0, 1), plain, asks=True)


def windows(x: Any, axis: int, first: int, by: int, apart: int, outer: int, inner: int) -> Any:
    """y[…,p,u,…] = x[…,first + by·p + apart·u,…], as a view."""
    if not outer * inner:
        return x.narrow(axis, 0, 0).reshape(*x.shape[:axis], outer, inner, *x.shape[axis + 1 :])
    if not changing((x,)):  # a compiler is asked for no sizes
        return _windows(x, axis, first, by, apart, outer, inner)
    by_slices = (
        min(outer, inner) <= 4 or math.prod(x.shape[axis + 1 :]) >= 16
    )  # else torch's gradient is faster
    view = _Windows.apply if by_slices else _windows
    return view(x, axis, first, by, apart, outer, inner)


def _windows(x: Any, axis: int, first: int, by: int, apart: int, outer: int, inner: int) -> Any:
    last = first + reach(by, apart, outer, inner)
    x = x if (first, last) == (0, x.shape[axis]) else x.narrow(axis, first, last - first)
    seen = x.unfold(axis, reach(by, apart, 1, inner), by)
    return (seen if apart == 1 else seen[..., ::apart]).movedim(-1, axis + 1)


class _Windows(torch.autograd.Function):
    """Windows whose gradient is added up slice by slice: torch's takes four times as long, or forty if `apart` is."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *places: int) -> Any:
        ctx.shape, ctx.places = x.shape, places
        return _windows(x, *places)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        axis, first, by, apart, outer, inner = ctx.places
        made = zeros(gradient, ctx.shape)
        if outer < inner:  # the fewer of both are added one by one
            by, apart, outer, inner = apart, by, inner, outer
            gradient = gradient.transpose(axis, axis + 1)
        for start in range(first, first + apart * inner, apart):
            places = slice(start, start + by * (outer - 1) + 1, by)
            made[(slice(None),) * axis + (places,)].add_(gradient.select(axis + 1, (start - first) // apart))
        return made, *(None for _ in ctx.places)


def spaced(x: Any, axis: int, first: int, by: int, size: int) -> Any:
    """y[…,first + by·p,…] = x[…,p,…], and 0 elsewhere along an axis of this size."""
    end, count = first + by * x.shape[axis], max(0, -((first - size) // by))
    zeros = x.new_zeros((*x.shape[:axis], size, *x.shape[axis + 1 :]))
    x = x.narrow(axis, 0, min(x.shape[axis], count))
    return torch.slice_scatter(zeros, x, axis, first, min(end, size), by)


def whole_matmul(a: Any, b: Any) -> Any:
    """The matrix product of integers. CUDA has none, so doubles are used there, which are exact below 2⁵³."""
    if a.device.type == "cpu":
        return torch.matmul(a, b)
    return torch.matmul(a.to(torch.float64), b.to(torch.float64)).to(torch.int64)


def number(value: Any, dtype: Any, like: Any) -> Any:
    """A number as a tensor, on the device of another tensor."""
    # filled on the device: a copy from the host would wait for the device, and cannot be part of a CUDA graph
    return torch.full((), value, dtype=dtype, device=None if like is None else like.device)


def roll(x: Any, shifts: tuple[int, ...], axes: tuple[int, ...]) -> Any:
    """Elements rolled along axes. Under a compiler, slices are concatenated instead, because it does not know the
    layout of the gradient of `torch.roll`."""
    if not torch.compiler.is_compiling():
        return torch.roll(x, shifts, axes)
    for shift, axis in zip(shifts, axes, strict=True):
        size = x.shape[axis]
        at = -shift % size
        x = torch.cat([x.narrow(axis, at, size - at), x.narrow(axis, 0, at)], axis)
    return x


def where(condition: Any, a: Any, b: Any) -> Any:
    """a where the condition holds, else b. A condition of one element, such as that of a position, is looked at: where
    it does not choose a number, nothing is copied."""
    are_tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    if not (condition.ndim or are_tensors) and condition.is_cpu and is_eager(condition):
        one, other = (a, b) if condition else (b, a)
        if isinstance(one, torch.Tensor) and torch.result_type(one, other) == one.dtype:
            return one
    return torch.where(condition, a, b)


def binary(function: Any, a: Any, b: Any) -> Any:
    """An elementwise function of two tensors. One may be a number, which gets the element type of the other."""
    if not isinstance(a, torch.Tensor):
        a = torch.full((), a, dtype=b.dtype, device=b.device)
    if not isinstance(b, torch.Tensor):
        b = torch.full((), b, dtype=a.dtype, device=a.device)
    return function(a, b)


def _summed(rows: Any, x: Any, count: int) -> Any:
    like = x
    if is_unseen(rows, x):  # under vmap, a tensor written in place needs the batch of both
        like = (rows[:1] + x.reshape(-1)[:1]).to(x.dtype)
    return zeros(like, (count, *x.shape[1:])).index_add_(0, rows, x)


def _counted(rows: Any, count: int) -> Any:
    if _is_checked(rows):
        return torch.bincount(rows, minlength=count)
    return rows.new_zeros(count).scatter_add_(0, rows, torch.ones_like(rows))


_SCATTERS = shared.scatters(xp, torch.int64, _summed, _is_checked, _counted)


def scatter_add(positions: Any, x: Any, size: int, axis: int = 0, inside: bool = False) -> Any:
    """y[c,v,d] = Σ_s x[c,s,d], where positions[s] is v: without a copy of rows that lie along another axis."""
    is_plain = inside and positions.ndim == 1 and is_eager(x) and x.itemsize >= 4 and _is_checked(positions)
    if not is_plain or x.shape[axis] != len(positions):
        return _SCATTERS["scatter_add"](positions, x, size, axis, inside)
    return zeros(x, (*x.shape[:axis], size, *x.shape[axis + 1 :])).index_add_(axis, positions, x)


_OWN = (
    *(argsort, binary, clip, dropout, extreme, floor_divide, gather, logsumexp, norm, number),
    *(recur, roll, scatter_add, sign, silu, spaced, take, top, where, whole_matmul, windows, within),
)

FUNCTIONS = {
    **namespace_of(SHARED),
    **_SCATTERS,
    **{each.__name__: each for each in _OWN},
}
"""What generated code may use, by name."""
