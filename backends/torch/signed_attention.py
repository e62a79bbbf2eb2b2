"""Signed attention, y = (sign(s) · softmax(|s|)) · v, in cache-sized tiles on a CPU.

In tiles, the operands are saved, and the weights with their signs if these are not much larger. Otherwise the backward
pass computes the weights of each tile again.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch._subclasses.fake_tensor import is_fake

from .products import is_differentiated, is_traced, with_vjp

__all__ = ["signed_attention"]

Tensor: TypeAlias = torch.Tensor

TILE = 2**18
"""The number of scores in a tile on a CPU. Half as many take 1.1 times as long: each tile has about 60 calls."""

LARGER = 2**26
"""The same on other devices, where tiles only bound the memory in use: they take 2 to 3 times as long there."""

WHOLE = 2**30
"""Up to so many scores other devices compute them whole, in ordinary operations."""

SAVED = 4
"""Up to so many times the size of the operands, the weights are saved for the backward pass."""

HIDDEN = -160.0
"""|s| of a hidden score. Visible scores have at least 0, so the weight of a hidden one vanishes next to them."""

HIDDEN_IN_DOUBLE = -1200.0
"""The same in float64."""


def signed_attention(
    q: Tensor, k: Tensor, v: Tensor, *more: Tensor, scale: float, biased: bool = False, causal: bool = False
) -> Tensor:
    """y[b,h,i,f] = sign(s[b,h,i,j]) * softmax[j](|s[b,h,i,j]|) * v[b,h,j,f], where s = scale * q·k + bias.

    Args:
        q, k, v: [b,h,i,d], [b,h,j,d] and [b,h,j,f].
        more: the bias, if there is one, then the mask of the keys that each query sees, if not all. Both have four
            dimensions, each of full size or 1. A query that sees no key weighs all keys by 1/n, with the signs of its
            scores.
        scale: of the products of queries and keys.
        biased: whether there is a bias.
        causal: whether a query sees only the keys at its own position and before. Then `more` has no mask.
    """
    assert not (causal and len(more) > biased), "a causal call has no mask of its own"
    is_whole = q.device.type != "cpu" and q.shape[:-1].numel() * k.shape[-2] <= WHOLE
    in_tiles = not (is_whole or is_traced() or torch.is_autocast_enabled(q.device.type))
    if in_tiles and all(each.numel() for each in (q, k, v)):
        given = (q, k, v, *more)
        saves = is_differentiated(*given) and _saves(q, k, v)
        result: Tensor = _in_tiles(float(scale), biased, causal, len(more), saves)(*given)
        return result
    return _Signed(scale, biased, causal).plain(q, k, v, *more)


def _saves(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the weights are saved: where they are of the working type, and not much larger than the operands."""
    scores = q.shape[:-1].numel() * k.shape[-2]
    return q.dtype == _working(v.dtype) and scores <= SAVED * (q.numel() + k.numel() + v.numel())


@functools.lru_cache(maxsize=64)
def _in_tiles(scale: float, biased: bool, causal: bool, more: int, saves: bool) -> Callable[..., Any]:
    """Signed attention in tiles, as a function of tensors only, with a backward pass of its own."""
    tiles = _Signed(scale, biased, causal, saves)
    reads, gives = tuple(range(3 + more + saves)), tuple(range(3 + biased))
    return with_vjp(tiles.forward, tiles.backward, reads, gives, tiles.plain, asks=True)


@dataclass(frozen=True)
class _Tile:
    """A tile of scores: all rows of some matrices, or some rows of one matrix, and the keys that these rows see."""

    batch: slice
    heads: slice
    queries: slice
    keys: slice

    def of(self, array: Tensor, rows: str, columns: str = "") -> Tensor:
        """The tile's part of a tensor [batch, heads, rows, columns]. Dimensions of size 1 stay whole."""
        whole = slice(None)
        places = (self.batch, self.heads, getattr(self, rows), getattr(self, columns) if columns else whole)
        return array[tuple(whole if size == 1 else at for size, at in zip(array.shape, places, strict=True))]


@dataclass(frozen=True)
class _Signed:
    """Signed attention.

    Attributes:
        scale, biased, causal: as in `signed_attention`.
        saves: whether the forward pass also returns the weights, which the backward pass then reads.
    """

    scale: float
    biased: bool
    causal: bool
    saves: bool = False

    def plain(self, q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> Tensor:
        """The result by operations on whole tensors. The weights are NaN where a score is, whatever its sign."""
        signs, shown = self._scores(q, k, more, 0, v.dtype)
        return (signs * shown.softmax(-1)) @ v

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> Any:
        """The result, tile by tile, and the weights if they are saved."""
        (b, h, i, _), f = q.shape, v.shape[-1]
        result = v.new_empty((b, i, h, f)).transpose(1, 2)
        saved = q.new_empty((b, h, i, k.shape[-2])) if self.saves else None
        for tile in self._tiles(q, k):
            part = None if saved is None else tile.of(saved, "queries", "keys")
            weights = self._weights(tile, q, k, more, part)
            tile.of(result, "queries").copy_(weights.to(v.dtype) @ tile.of(v, "keys"))
            del weights  # before the next tile is begun
        return result if saved is None else (result, saved)

    def _weights(
        self, tile: _Tile, q: Tensor, k: Tensor, more: Sequence[Tensor], out: Tensor | None = None
    ) -> Tensor:
        """The weights of a tile with their signs, written into a given tensor if there is one."""
        parts = [tile.of(each, "queries", "keys") for each in more]
        rows, columns = tile.of(q, "queries"), tile.of(k, "keys")
        signs, shown = self._scores(rows, columns, parts, tile.queries.start, _working(q.dtype))
        return torch.mul(shown.softmax(-1), signs, out=signs if out is None else out)

    def backward(self, q: Tensor, k: Tensor, v: Tensor, *more: Tensor, wanted: Sequence[bool]) -> Any:
        """The wanted gradients of q, k, v and the bias. With g the gradient of y, and w the weights with their signs:

        v̄ = wᵀ g,  s̄ = |w|·r − w·Σ_j w·r,  r = g vᵀ.
        """
        *more, gradient = more  # type: ignore[assignment]
        saved = more.pop() if self.saves else None  # type: ignore[attr-defined]
        given = (q, k, v, *more[: self.biased])
        found = [
            torch.zeros_like(each, dtype=_working(each.dtype)) if asked else None
            for each, asked in zip(given, wanted, strict=True)
        ]
        for tile in self._tiles(q, k):
            known = None if saved is None else tile.of(saved, "queries", "keys")
            weights = self._weights(tile, q, k, more) if known is None else known
            self._tile_backward(tile, (q, k, v), more, gradient, weights, found)
        return tuple(
            None if each is None else each.to(like.dtype) for each, like in zip(found, given, strict=True)
        )

    def _tile_backward(
        self,
        tile: _Tile,
        operands: tuple[Tensor, Tensor, Tensor],
        more: Sequence[Tensor],
        gradient: Tensor,
        weights: Tensor,
        found: Sequence[Tensor | None],
    ) -> None:
        """Adds a tile's terms to the gradients of q, k, v and the bias; None for those that are not wanted."""
        (q, k, v), (of_q, of_k, of_v, *of_bias) = operands, found
        coming = tile.of(gradient, "queries")
        if of_q is not None or of_k is not None or any(each is not None for each in of_bias):
            pulled = (coming @ tile.of(v, "keys").mT).to(weights.dtype)
            total = (pulled * weights).sum(-1, keepdim=True)
            pulled.mul_(weights.abs()).addcmul_(weights, total, value=-1)
            for mask in more[self.biased :]:  # the scores of a row that sees nothing have no gradient
                pulled.mul_(tile.of(mask, "queries", "keys").any(-1, keepdim=True))
            for each in of_bias:
                if each is not None:
                    part = tile.of(each, "queries", "keys")
                    part += pulled.sum_to_size(part.shape)
            scaled = pulled.mul_(self.scale).to(q.dtype)
            if of_q is not None:
                tile.of(of_q, "queries").copy_(scaled @ tile.of(k, "keys"))
            if of_k is not None:
                tile.of(of_k, "keys").add_(scaled.mT @ tile.of(q, "queries"))
        if of_v is not None:
            tile.of(of_v, "keys").add_(weights.to(v.dtype).mT @ coming)

    def _scores(
        self, q: Tensor, k: Tensor, more: Sequence[Tensor], first: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """The signs of the scores, and |s| with a cap where a key is hidden: a minimum is the fastest way to hide.

        Args:
            q, k: the queries and the keys.
            more: the bias and the mask, if there are any.
            first: the position of the first query.
            dtype: the element type of the scores.
        """
        is_wide = dtype == q.dtype  # else the product with the scale would be rounded
        scores = (self.scale * q) @ k.mT if is_wide else (q @ k.mT).to(dtype).mul_(self.scale)
        scores = scores + more[0] if self.biased else scores
        shown, masks = scores.abs(), list(more[self.biased :])
        if self.causal:
            queries, keys = (torch.arange(size, device=q.device) for size in scores.shape[-2:])
            masks.append(first + queries[:, None] >= keys)
        low = HIDDEN_IN_DOUBLE if shown.dtype == torch.float64 else HIDDEN
        for each in masks:
            shown = torch.minimum(shown, torch.where(each, math.inf, low).to(shown.dtype))
        return scores.sign(), shown

    def _tiles(self, q: Tensor, k: Tensor) -> Iterator[_Tile]:
        """Tiles that cover each score once. A matrix too large for one tile is split into blocks of rows. Fake tensors
        get a single tile, since only shapes matter."""
        (batch, heads, queries, _), keys = q.shape, k.shape[-2]
        most = TILE if q.device.type == "cpu" else LARGER
        most = batch * heads * queries * keys if is_fake(q) else most
        rows = -(-queries // max(1, -(-queries * keys // most)))
        matrices = max(1, most // max(1, rows * keys)) if rows >= queries else 1
        lengths = (max(1, matrices // heads), min(matrices, heads), rows)
        for entries, some, at in itertools.product(*map(_cut, (batch, heads, queries), lengths)):
            yield _Tile(entries, some, at, slice(0, min(keys, at.stop) if self.causal else keys))


def _cut(size: int, length: int) -> list[slice]:
    return [slice(start, min(size, start + length)) for start in range(0, size, max(1, length))]


def _working(dtype: torch.dtype) -> torch.dtype:
    """The working type of scores: at least float32."""
    return torch.promote_types(dtype, torch.float32)
