"""Signed attention on CUDA in Triton kernels.

One program makes some queries' part of the result, or of the gradient of q; another some keys' part of those of k
and v. What is computed, and what is kept, is as `signed_attention` says. It has not run on a GPU yet: Triton's
interpreter has checked what it computes, Triton 3.2 and 3.9 have compiled it for compute capabilities 8.0 and 9.0,
and its blocks are cut by what the compiler says of registers and memory, not by measurements.
"""

# Triton reads the kernels as they stand, where an argument without a type is a number or the address of a tensor.

from __future__ import annotations

import functools
import math
import subprocess
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import triton
import triton.language as tl

from tensornet.errors import TensornetWarning

__all__ = ["SignedKernels", "covers"]

Tensor: TypeAlias = torch.Tensor

WIDEST = {torch.float16: 256, torch.bfloat16: 256, torch.float32: 128}
"""The element types that there are kernels for, and the longest head of each that blocks leave room for."""

PLAIN = {torch.Tensor, torch.nn.Parameter}
"""Tensors that are memory and nothing besides."""

OLDEST = (8, 0)
"""The first GPUs that multiply all these types, and have the memory beside the registers that blocks need: Ampere."""

LOG2E = tl.constexpr(1 / math.log(2))


# ---- what kernels are put together from


@triton.jit
def _load(base, rows, columns, row_stride, column_stride, row_count, column_count):
    """A block of a matrix, zeros beyond its ends; rows and columns are told apart by their dimensions."""
    at = base + rows.to(tl.int64) * row_stride + columns.to(tl.int64) * column_stride
    return tl.load(at, mask=(rows < row_count) & (columns < column_count), other=0)


@triton.jit
def _store(base, rows, columns, row_stride, column_stride, row_count, column_count, block):
    """Writes a block of a matrix, what of it lies in there."""
    at = base + rows.to(tl.int64) * row_stride + columns.to(tl.int64) * column_stride
    tl.store(at, block.to(base.dtype.element_ty), mask=(rows < row_count) & (columns < column_count))


@triton.jit
def _dot(a, b, PRECISION: tl.constexpr):
    """A product of matrices, summed in float32; the interpreter knows none of bfloat16."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32))
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def _signed(numbers, scores):
    """sign(s) * x."""
    return tl.where(scores > 0, numbers, tl.where(scores < 0, -numbers, 0.0))


@triton.jit
def _scores(
    products,
    i,
    j,
    bias,
    bias_i,
    bias_j,
    sees,
    sees_i,
    sees_j,
    queries,
    keys,
    scale,
    HIDDEN: tl.constexpr,
    BIASED: tl.constexpr,
    SEES: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """Scores times log₂ e, and |s| where they are seen, nothing beyond the last key; of q·k in either order."""
    scores = products * (scale * LOG2E)
    if BIASED:
        scores += _load(bias, i, j, bias_i, bias_j, queries, keys).to(tl.float32) * LOG2E
    shown = tl.abs(scores)
    if CAUSAL:
        shown = tl.where(i >= j, shown, HIDDEN)
    if SEES:
        shown = tl.where(_load(sees, i, j, sees_i, sees_j, queries, keys) != 0, shown, HIDDEN)
    return scores, tl.where(j < keys, shown, -float("inf"))


@triton.jit
def _slopes(scores, weights, reached, means, totals, HIDDEN: tl.constexpr, SEES: tl.constexpr):
    """The gradients of scores; where nothing is seen, weights are the same whatever the scores."""
    found = _signed(weights * (_signed(reached, scores) - means), scores)
    return tl.where(totals > 0.5 * HIDDEN, found, 0.0) if SEES else found


@triton.jit
def _place(count, heads, BLOCK: tl.constexpr):
    """What the program is of: the batch, the head, and the number of the matrix; and where its block begins."""
    blocks = tl.cdiv(count, BLOCK)
    matrix = (tl.program_id(0) // blocks).to(tl.int64)
    return matrix // heads, matrix % heads, matrix, tl.program_id(0) % blocks * BLOCK


# ---- kernels


@triton.jit
def _forward(
    q, q_b, q_h, q_i, q_d,
    k, k_b, k_h, k_j, k_d,
    v, v_b, v_h, v_j, v_f,
    bias, bias_b, bias_h, bias_i, bias_j,
    sees, sees_b, sees_h, sees_i, sees_j,
    y, y_b, y_h, y_i, y_f,
    totals, heads, queries, keys, scale,
    D: tl.constexpr, F: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_F: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, PRECISION: tl.constexpr, HIDDEN: tl.constexpr,
    BIASED: tl.constexpr, SEES: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Some queries' part of the result, and log₂ Σ_j 2^|s_ij| of each."""
    b, h, matrix, first = _place(queries, heads, BLOCK_I)
    q += b * q_b + h * q_h
    k += b * k_b + h * k_h
    v += b * v_b + h * v_h
    y += b * y_b + h * y_h
    if BIASED:
        bias += b * bias_b + h * bias_h
    if SEES:
        sees += b * sees_b + h * sees_h
    i = first + tl.arange(0, BLOCK_I)
    d = tl.arange(0, BLOCK_D)[None, :]
    f = tl.arange(0, BLOCK_F)[None, :]
    own = _load(q, i[:, None], d, q_i, q_d, queries, D)
    made = tl.zeros((BLOCK_I, BLOCK_F), tl.float32)
    most = tl.full((BLOCK_I,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_I,), tl.float32)
    last = tl.minimum(keys, first + BLOCK_I) if CAUSAL else keys
    for start in range(0, last, BLOCK_J):
        j = start + tl.arange(0, BLOCK_J)
        products = _dot(own, tl.trans(_load(k, j[:, None], d, k_j, k_d, keys, D)), PRECISION)
        scores, shown = _scores(
            products, i[:, None], j[None, :], bias, bias_i, bias_j, sees, sees_i, sees_j,
            queries, keys, scale, HIDDEN, BIASED, SEES, CAUSAL,
        )  # fmt: skip
        higher = tl.maximum(most, tl.max(shown, 1))
        weights = tl.exp2(shown - higher[:, None])
        before = tl.exp2(most - higher)
        total = total * before + tl.sum(weights, 1)
        rows = _load(v, j[:, None], f, v_j, v_f, keys, F)
        made = made * before[:, None] + _dot(_signed(weights, scores).to(rows.dtype), rows, PRECISION)
        most = higher
    _store(y, i[:, None], f, y_i, y_f, queries, F, made / total[:, None])
    tl.store(totals + matrix * queries + i, tl.log2(total) + most, mask=i < queries)


@triton.jit
def _means(
    g, g_b, g_h, g_i, g_f,
    y, y_b, y_h, y_i, y_f,
    means, heads, queries,
    F: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    """Σ_f g y, for each query."""
    b, h, matrix, first = _place(queries, heads, BLOCK_I)
    i = first + tl.arange(0, BLOCK_I)
    f = tl.arange(0, BLOCK_F)[None, :]
    at = i[:, None]
    coming = _load(g + b * g_b + h * g_h, at, f, g_i, g_f, queries, F)
    result = _load(y + b * y_b + h * y_h, at, f, y_i, y_f, queries, F)
    tl.store(
        means + matrix * queries + i,
        tl.sum(coming.to(tl.float32) * result.to(tl.float32), 1),
        mask=i < queries,
    )


@triton.jit
def _backward_of_queries(
    q, q_b, q_h, q_i, q_d,
    k, k_b, k_h, k_j, k_d,
    v, v_b, v_h, v_j, v_f,
    bias, bias_b, bias_h, bias_i, bias_j,
    sees, sees_b, sees_h, sees_i, sees_j,
    g, g_b, g_h, g_i, g_f,
    of_q, of_q_b, of_q_h, of_q_i, of_q_d,
    totals, means, heads, queries, keys, scale,
    D: tl.constexpr, F: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_F: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, PRECISION: tl.constexpr, HIDDEN: tl.constexpr,
    BIASED: tl.constexpr, SEES: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Some queries' part of the gradient of q."""
    b, h, matrix, first = _place(queries, heads, BLOCK_I)
    q += b * q_b + h * q_h
    k += b * k_b + h * k_h
    v += b * v_b + h * v_h
    g += b * g_b + h * g_h
    of_q += b * of_q_b + h * of_q_h
    if BIASED:
        bias += b * bias_b + h * bias_h
    if SEES:
        sees += b * sees_b + h * sees_h
    i = first + tl.arange(0, BLOCK_I)
    d = tl.arange(0, BLOCK_D)[None, :]
    f = tl.arange(0, BLOCK_F)[None, :]
    own = _load(q, i[:, None], d, q_i, q_d, queries, D)
    coming = _load(g, i[:, None], f, g_i, g_f, queries, F)
    total = tl.load(totals + matrix * queries + i, mask=i < queries, other=0)[:, None]
    mean = tl.load(means + matrix * queries + i, mask=i < queries, other=0)[:, None]
    made = tl.zeros((BLOCK_I, BLOCK_D), tl.float32)
    last = tl.minimum(keys, first + BLOCK_I) if CAUSAL else keys
    for start in range(0, last, BLOCK_J):
        j = start + tl.arange(0, BLOCK_J)
        theirs = _load(k, j[:, None], d, k_j, k_d, keys, D)
        scores, shown = _scores(
            _dot(own, tl.trans(theirs), PRECISION), i[:, None], j[None, :],
            bias, bias_i, bias_j, sees, sees_i, sees_j,
            queries, keys, scale, HIDDEN, BIASED, SEES, CAUSAL,
        )  # fmt: skip
        reached = _dot(coming, tl.trans(_load(v, j[:, None], f, v_j, v_f, keys, F)), PRECISION)
        slopes = _slopes(scores, tl.exp2(shown - total), reached, mean, total, HIDDEN, SEES)
        made += _dot(slopes.to(theirs.dtype), theirs, PRECISION)
    _store(of_q, i[:, None], d, of_q_i, of_q_d, queries, D, made * scale)


@triton.jit
def _backward_of_keys(
    q, q_b, q_h, q_i, q_d,
    k, k_b, k_h, k_j, k_d,
    v, v_b, v_h, v_j, v_f,
    bias, bias_b, bias_h, bias_i, bias_j,
    sees, sees_b, sees_h, sees_i, sees_j,
    g, g_b, g_h, g_i, g_f,
    of_k, of_k_b, of_k_h, of_k_j, of_k_d,
    of_v, of_v_b, of_v_h, of_v_j, of_v_f,
    totals, means, heads, queries, keys, scale,
    D: tl.constexpr, F: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_F: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, PRECISION: tl.constexpr, HIDDEN: tl.constexpr,
    BIASED: tl.constexpr, SEES: tl.constexpr, CAUSAL: tl.constexpr,
    OF_K: tl.constexpr, OF_V: tl.constexpr,
):  # fmt: skip
    """Some keys' part of the gradients of k and v, or of one of them; scores are turned, a row for each key."""
    b, h, matrix, first = _place(keys, heads, BLOCK_J)
    q += b * q_b + h * q_h
    k += b * k_b + h * k_h
    v += b * v_b + h * v_h
    g += b * g_b + h * g_h
    if BIASED:
        bias += b * bias_b + h * bias_h
    if SEES:
        sees += b * sees_b + h * sees_h
    j = first + tl.arange(0, BLOCK_J)
    d = tl.arange(0, BLOCK_D)[None, :]
    f = tl.arange(0, BLOCK_F)[None, :]
    own = _load(k, j[:, None], d, k_j, k_d, keys, D)
    if OF_K:
        values = _load(v, j[:, None], f, v_j, v_f, keys, F)
        made_of_k = tl.zeros((BLOCK_J, BLOCK_D), tl.float32)
    if OF_V:
        made_of_v = tl.zeros((BLOCK_J, BLOCK_F), tl.float32)
    for start in range(first // BLOCK_I * BLOCK_I if CAUSAL else 0, queries, BLOCK_I):
        i = start + tl.arange(0, BLOCK_I)
        theirs = _load(q, i[:, None], d, q_i, q_d, queries, D)
        coming = _load(g, i[:, None], f, g_i, g_f, queries, F)
        total = tl.load(totals + matrix * queries + i, mask=i < queries, other=0)[None, :]
        scores, shown = _scores(
            _dot(own, tl.trans(theirs), PRECISION), i[None, :], j[:, None],
            bias, bias_i, bias_j, sees, sees_i, sees_j,
            queries, keys, scale, HIDDEN, BIASED, SEES, CAUSAL,
        )  # fmt: skip
        weights = tl.exp2(shown - total)
        if OF_V:
            made_of_v += _dot(_signed(weights, scores).to(coming.dtype), coming, PRECISION)
        if OF_K:
            mean = tl.load(means + matrix * queries + i, mask=i < queries, other=0)[None, :]
            reached = _dot(values, tl.trans(coming), PRECISION)
            slopes = _slopes(scores, weights, reached, mean, total, HIDDEN, SEES)
            made_of_k += _dot(slopes.to(theirs.dtype), theirs, PRECISION)
    if OF_K:
        of_k += b * of_k_b + h * of_k_h
        _store(of_k, j[:, None], d, of_k_j, of_k_d, keys, D, made_of_k * scale)
    if OF_V:
        of_v += b * of_v_b + h * of_v_h
        _store(of_v, j[:, None], f, of_v_j, of_v_f, keys, F, made_of_v)


INTERPRETED = tl.constexpr(not isinstance(_forward, triton.JITFunction))
"""Whether functions are run line by line by NumPy, as the variable TRITON_INTERPRET asks for."""


# ---- what calls them


@dataclass(frozen=True)
class Cut:
    """The blocks of scores of a kernel, by queries and keys, and how it is run."""

    queries: int
    keys: int
    num_warps: int
    num_stages: int


def _cut_of(dtype: torch.dtype, longest: int, way: str, masked: bool) -> Cut:
    """What fits into the registers, and into the 99 KiB beside them that every GPU from Ampere on has."""
    if dtype == torch.float32:
        return Cut(32, 32, 4 if longest <= 64 else 8, 2)
    if longest <= 64:
        if way == "forward":
            return Cut(64, 64, 4, 2) if masked else Cut(128, 64, 4, 3)
        return Cut(32, 64, 4, 2) if masked and way == "keys" else Cut(64, 64, 4, 2)
    if longest <= 128:
        return {"forward": Cut(64, 64, 4, 2), "queries": Cut(64, 32, 4, 2), "keys": Cut(32, 64, 4, 2)}[way]
    return Cut(64, 64, 8, 1) if way == "forward" else Cut(32, 32, 4, 1)


def covers(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether there are kernels for these tensors, all of which have elements.

    There are none while something sees each operation of torch, such as a mode in which tensors have no memory.
    """
    if torch._C._len_torch_dispatch_stack() or not {type(each) for each in (q, k, v)} <= PLAIN:
        return False
    longest = WIDEST.get(q.dtype, 0)
    if not (q.dtype == k.dtype == v.dtype and max(q.shape[-1], v.shape[-1]) <= longest):
        return False
    return bool(INTERPRETED.value) or (q.is_cuda and _runs(q.device))


@functools.cache
def _runs(device: torch.device) -> bool:
    """Whether a device runs them, and whether there is the compiler that Triton wants for what starts a kernel."""
    if torch.version.hip is not None or torch.cuda.get_device_capability(device) < OLDEST:
        return False
    one = torch.ones((1, 1, 1, 1), device=device)
    try:
        _means_of(one, one)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        message = f"signed attention runs without its kernels, for Triton makes none: {error}"
        warnings.warn(TensornetWarning(message, fix="install a compiler of C, such as gcc"), stacklevel=4)
        return False
    return True


@dataclass(frozen=True)
class SignedKernels:
    """Signed attention, as of `signed_attention`; `hidden` is the |s| log₂ e of what is not seen."""

    scale: float
    biased: bool
    sees: bool
    causal: bool
    hidden: float

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The result, log₂ Σ_j 2^|s_ij|, and the result again to be kept."""
        b, h, i, _ = q.shape
        result = v.new_empty((b, i, h, v.shape[-1])).transpose(1, 2)
        totals = q.new_empty((b, h, i, 1), dtype=torch.float32)
        self._run(_forward, "forward", (q, k, v, *more), (result,), (totals,))
        return result, totals, result

    def backward(
        self, q: Tensor, k: Tensor, v: Tensor, *more: Tensor, wanted: Sequence[bool]
    ) -> tuple[Tensor | None, ...]:
        """The gradients of q, k and v, those that are wanted, and none of the bias."""
        *masks, totals, result, gradient = more
        given = (q, k, v, *masks)
        of_q, of_k, of_v = (
            torch.empty_like(each) if asked else None
            for each, asked in zip(given[:3], wanted[:3], strict=True)
        )
        means = totals if of_q is of_k is None else _means_of(gradient, result)
        if of_q is not None:
            self._run(_backward_of_queries, "queries", given, (gradient, of_q), (totals, means))
        if of_k is not None or of_v is not None:
            asked = {"OF_K": of_k is not None, "OF_V": of_v is not None}
            self._run(_backward_of_keys, "keys", given, (gradient, of_k, of_v), (totals, means), **asked)
        return (of_q, of_k, of_v, *[None] * self.biased)

    def _run(
        self,
        kernel: Any,
        way: str,
        given: Sequence[Tensor],
        others: Sequence[Tensor | None],
        rows: Sequence[Tensor],
        **asked: bool,
    ) -> None:
        """Runs a kernel on what is given, on other tensors of four dimensions, and on numbers of queries."""
        q, k, v, *more = given
        (b, h, i, d), j, f = q.shape, k.shape[-2], v.shape[-1]
        bias = more[0].expand(b, h, i, j) if self.biased else None
        sees = more[-1].view(torch.uint8).expand(b, h, i, j) if self.sees else None
        cut = _cut_of(q.dtype, max(d, f), way, self.biased or self.sees)
        block_i, block_j = min(cut.queries, _padded(i)), min(cut.keys, _padded(j))
        blocks = -(-j // block_j) if way == "keys" else -(-i // block_i)
        with torch.cuda.device_of(q):
            kernel[(b * h * blocks,)](
                *_with_strides(q, k, v, bias, sees, *others),
                *rows,
                h,
                i,
                j,
                self.scale,
                D=d,
                F=f,
                BLOCK_D=_padded(d),
                BLOCK_F=_padded(f),
                BLOCK_I=block_i,
                BLOCK_J=block_j,
                PRECISION=_precision(q.dtype),
                HIDDEN=self.hidden,
                BIASED=self.biased,
                SEES=self.sees,
                CAUSAL=self.causal,
                num_warps=cut.num_warps,
                num_stages=cut.num_stages,
                enable_fp_fusion=True,
                **asked,
            )


def _means_of(gradient: Tensor, result: Tensor) -> Tensor:
    """Σ_f g y, for each query."""
    b, h, i, f = gradient.shape
    means = gradient.new_empty((b, h, i, 1), dtype=torch.float32)
    block = min(32, _padded(i))
    with torch.cuda.device_of(gradient):
        _means[(b * h * -(-i // block),)](
            *_with_strides(gradient, result),
            means,
            h,
            i,
            F=f,
            BLOCK_F=_padded(f),
            BLOCK_I=block,
            enable_fp_fusion=True,
        )
    return means


def _with_strides(*tensors: Tensor | None) -> Iterator[Any]:
    """Tensors of four dimensions, each before its strides."""
    for each in tensors:
        yield each
        yield from (0, 0, 0, 0) if each is None else each.stride()


def _padded(size: int) -> int:
    """The side of a block for so many numbers: a power of 2, and what a product of matrices wants at least."""
    return max(16, 1 << (size - 1).bit_length())


def _precision(dtype: torch.dtype) -> str:
    """In what float32 is multiplied, as torch is told to."""
    matmul = torch.backends.cuda.matmul
    if dtype != torch.float32:
        return "ieee"
    told = getattr(matmul, "fp32_precision", None)  # which torch has from 2.9 on
    return "tf32" if (matmul.allow_tf32 if told is None else told == "tf32") else "ieee"
