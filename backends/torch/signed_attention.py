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

from .products import is_differentiated, is_traced, is_unseen, with_vjp

__all__ = ["signed_attention"]

Tensor: TypeAlias = torch.Tensor

TILE = 2**18
"""The number of scores in a tile on a CPU. Twice as many take 0.96 of the time, and twice the memory."""

LARGER = 2**26
"""The same on other devices, where tiles only bound the memory in use: they take 2 to 3 times as long there."""

WHOLE = 2**30
"""Up to so many scores other devices compute them whole, in ordinary operations."""

SAVED = 4
"""Up to so many times the size of the operands, the weights are saved for the backward pass."""

LOG2_E = math.log2(math.e)
"""Scores in tiles have base 2: `exp2` takes half as long as `exp`."""

HIGHEST = 43.0
"""Up to such scores in base 2, exponentials need no maximum subtracted, since no visible score is below 0."""

HIDDEN = -3000.0
"""|s| of a hidden score. Its exponential is 0, and never a subnormal number, which `exp2` computes slowly."""


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
    reads, gives = tuple(range(3 + more + 2 * saves)), tuple(range(3 + biased))
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
        places = (self.batch, self.heads, getattr(self, rows), *([getattr(self, columns)] if columns else ()))
        for axis, at in enumerate(places):
            if at.stop - at.start < array.shape[axis]:
                array = array.narrow(axis, at.start, at.stop - at.start)
        return array

    def matrices(self, array: Tensor, rows: str, columns: str = "") -> Tensor:
        """The tile's part of a tensor [batch, heads, rows, columns] as [matrices, rows, columns]."""
        return self.of(array, rows, columns).flatten(0, 1)


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
        is_wide = v.dtype == q.dtype  # else the product with the scale would be rounded
        scores = (self.scale * q) @ k.mT if is_wide else (q @ k.mT).to(v.dtype).mul_(self.scale)
        scores = scores + more[0] if self.biased else scores
        shown = scores.abs()
        for cap in self._caps(scores, more[self.biased :], 0):
            shown = torch.minimum(shown, cap)
        return (scores.sign() * shown.softmax(-1)) @ v

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> Any:
        """The result, tile by tile, and the weights and their totals if they are saved."""
        (b, h, i, _), f = q.shape, v.shape[-1]
        turned = q.stride(1) < q.stride(2)  # the result lies as the queries do
        result = v.new_empty((b, i, h, f)).transpose(1, 2) if turned else v.new_empty((b, h, i, f))
        saved = [q.new_empty((b, h, i, size)) for size in (k.shape[-2], 1)] if self.saves else []
        tiles = [*self._tiles(q, k)]
        rooms = _rooms(tiles, q, 1 if saved else 2)
        for tile in tiles:
            weights, totals = self._weights(tile, q, k, v.dtype, more, saved, rooms)
            part = tile.of(result, "queries")
            given = weights.flatten(0, 1).to(v.dtype), tile.matrices(v, "keys")
            if turned:
                torch.div((given[0] @ given[1]).view(part.shape), totals, out=part)
            else:
                torch.bmm(*given, out=part.flatten(0, 1))
                part.div_(totals)
        return result, *saved

    def _weights(
        self,
        tile: _Tile,
        q: Tensor,
        k: Tensor,
        dtype: torch.dtype,
        more: Sequence[Tensor],
        saved: Sequence[Tensor],
        rooms: Sequence[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """The weights of a tile with their signs, and the totals that they have to be divided by.

        Both are written into `saved`, if it is not empty, else into `rooms`, which the next tile needs. Exponentials
        are as fast as they get: in base 2, and without subtraction of a maximum where none is large.
        """
        working, scale = _working(q.dtype), self.scale * LOG2_E
        rows, columns = tile.of(q, "queries"), tile.of(k, "keys")
        parts = [tile.of(each, "queries", "keys") for each in more]
        shape = (*rows.shape[:-1], columns.shape[-2])
        shown, *free = [each.narrow(0, 0, math.prod(shape)).view(shape) for each in rooms]
        scores = tile.of(saved[0], "queries", "keys") if saved else free[0]
        _product(scores.flatten(0, 1), rows.flatten(0, 1), columns.flatten(0, 1).mT, scale, add=False)
        for bias in parts[: self.biased]:
            scores.add_(bias, alpha=LOG2_E)
        torch.abs(scores, out=shown)
        for cap in self._caps(shown, parts[self.biased :], tile.queries.start):
            torch.minimum(shown, cap, out=shown)
        is_asked = shown.device.type == "cpu" and not is_unseen(shown)  # other devices would have to wait
        if not is_asked or not shown.max().item() <= HIGHEST:
            shown.sub_(shown.amax(-1, keepdim=True))
        totals = shown.exp2_().sum(-1, keepdim=True)
        if dtype != working:  # half precision has no place for large weights
            shown, totals = shown.div_(totals), torch.ones_like(totals)
        for place in saved[1:]:
            tile.of(place, "queries").copy_(totals)
        return scores.sign_().mul_(shown), totals

    def backward(self, q: Tensor, k: Tensor, v: Tensor, *more: Tensor, wanted: Sequence[bool]) -> Any:
        """The wanted gradients of q, k, v and the bias. With g the gradient of y, and w the weights with their signs:

        v̄ = wᵀ g,  s̄ = |w|·r − w·Σ_j w·r,  r = g vᵀ.
        """
        masks, (*saved, gradient) = more[: -1 - 2 * self.saves], more[-1 - 2 * self.saves :]
        given = (q, k, v, *masks[: self.biased])
        found = [
            torch.zeros_like(each, dtype=_working(each.dtype), memory_format=torch.contiguous_format)
            if asked
            else None
            for each, asked in zip(given, wanted, strict=True)
        ]
        tiles = [*self._tiles(q, k)]
        rooms = [] if saved else _rooms(tiles, q, 2)
        for tile in tiles:
            if saved:
                weights, totals = tile.of(saved[0], "queries", "keys"), tile.of(saved[1], "queries")
            else:
                weights, totals = self._weights(tile, q, k, v.dtype, masks, (), rooms)
            coming = tile.of(gradient, "queries") / totals.to(gradient.dtype)
            self._tile_backward(tile, (q, k, v), masks, coming, totals, weights, found)
        return tuple(
            None if each is None else each.to(like.dtype) for each, like in zip(found, given, strict=True)
        )

    def _tile_backward(
        self,
        tile: _Tile,
        operands: tuple[Tensor, Tensor, Tensor],
        more: Sequence[Tensor],
        coming: Tensor,
        totals: Tensor,
        weights: Tensor,
        found: Sequence[Tensor | None],
    ) -> None:
        """Adds a tile's terms to the gradients of q, k, v and the bias; None for those that are not wanted."""
        (q, k, v), (of_q, of_k, of_v, *of_bias) = operands, found
        if of_q is not None or of_k is not None or any(each is not None for each in of_bias):
            pulls = coming
            for mask in more[self.biased :]:  # the scores of a row that sees nothing have no gradient
                sees = tile.of(mask, "queries", "keys").sum(-1, keepdim=True, dtype=coming.dtype)
                pulls = pulls * sees.clamp_(max=1)
            pulled = (pulls.flatten(0, 1) @ tile.matrices(v, "keys").mT).view(weights.shape).to(totals.dtype)
            mean = (pulled * weights).sum(-1, keepdim=True).div_(totals)
            pulled.mul_(weights.abs()).addcmul_(weights, mean, value=-1)
            for each in of_bias:
                if each is not None:
                    part = tile.of(each, "queries", "keys")
                    part += pulled.sum_to_size(part.shape)
            pulled = pulled.flatten(0, 1).to(q.dtype)
            if of_q is not None:
                _product(tile.matrices(of_q, "queries"), pulled, tile.matrices(k, "keys"), self.scale)
            if of_k is not None:
                _product(tile.matrices(of_k, "keys"), pulled.mT, tile.matrices(q, "queries"), self.scale)
        if of_v is not None:
            _product(
                tile.matrices(of_v, "keys"), weights.flatten(0, 1).to(v.dtype).mT, coming.flatten(0, 1), 1.0
            )

    def _caps(self, scores: Tensor, masks: Sequence[Tensor], first: int) -> Iterator[Tensor]:
        """The highest |s| by masks, below all others where a key is hidden: a minimum is the fastest way to hide.

        A query that sees no key has all caps at 0.

        Args:
            scores: [..., queries, keys].
            masks: a mask, or none.
            first: the position of the first query.
        """
        if self.causal:
            yield torch.full_like(scores[0, 0], math.inf).tril(first) + HIDDEN
        for mask in masks:
            seen = mask.to(scores.dtype)  # arithmetic is much faster than `where`
            yield seen / (1 - seen) + seen.sum(-1, keepdim=True).clamp(max=1) * HIDDEN

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


def _rooms(tiles: Sequence[_Tile], q: Tensor, count: int) -> list[Tensor]:
    """Room for the scores of one tile, several times: memory that stays in the cache from tile to tile."""

    def scores(tile: _Tile) -> int:
        places = (tile.batch, tile.heads, tile.queries, tile.keys)
        return math.prod(each.stop - each.start for each in places)

    most = max(map(scores, tiles))
    return [q.new_empty(most, dtype=_working(q.dtype)) for _ in range(count)]


def _cut(size: int, length: int) -> list[slice]:
    return [slice(start, min(size, start + length)) for start in range(0, size, max(1, length))]


def _product(into: Tensor, a: Tensor, b: Tensor, scale: float, add: bool = True) -> None:
    """Writes scale · a b into a contiguous part of a tensor, or adds it there."""
    if into.dtype == a.dtype:
        torch.baddbmm(into, a, b, beta=float(add), alpha=scale, out=into)
    elif add:
        into.add_(a @ b, alpha=scale)
    else:
        into.copy_(a @ b).mul_(scale)


def _working(dtype: torch.dtype) -> torch.dtype:
    """The working type of scores: at least float32."""
    return torch.promote_types(dtype, torch.float32)
