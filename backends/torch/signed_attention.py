"""Signed attention, y = (sign(s) · softmax(|s|)) · v, in cache-sized tiles on a CPU.

In tiles, the forward pass saves the operands, the result and one number for each query. The backward pass computes
the scores again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch._subclasses.fake_tensor import is_fake

from .products import is_traced, with_vjp

__all__ = ["signed_attention"]

Tensor: TypeAlias = torch.Tensor

TILE = 2**17
"""The number of scores in a tile on a CPU: two such tiles of float32 stay in the cache of a core."""

LARGER = 2**26
"""The same on other devices, where tiles only bound the memory in use: they take 2 to 3 times as long there."""

WHOLE = 2**30
"""Up to so many scores other devices compute them whole, in ordinary operations."""

LOG2E = 1 / math.log(2)
"""Weights are powers of 2 of the scores times this, because `exp` is slow where its result underflows."""

HIDDEN = -160.0
"""|s| of a hidden score. Visible scores have at least 0, so the weight of a hidden one vanishes next to them, and
log₂ Σ 2^|s| shows whether a row has no visible score. For float32, in which shorter types are computed too."""

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
    sees = len(more) > biased
    assert not (causal and sees), "what a query sees is told twice"
    in_parts = not (_are_whole(q, k) or is_traced() or torch.is_autocast_enabled(q.device.type))
    if in_parts and all(each.numel() for each in (q, k, v)):
        result: Tensor = _in_parts(float(scale), biased, sees, causal)(q, k, v, *more)
        return result
    return _Signed(scale, biased, sees, causal).plain(q, k, v, *more)


def _are_whole(q: Tensor, k: Tensor) -> bool:
    """Whether another device than a CPU can hold a few tensors of the size of the scores."""
    return q.device.type != "cpu" and q.shape[:-1].numel() * k.shape[-2] <= WHOLE


@functools.lru_cache(maxsize=64)
def _in_parts(scale: float, biased: bool, sees: bool, causal: bool) -> Callable[..., Any]:
    """Signed attention in tiles, as a function of tensors only, with a backward pass of its own."""
    tiles = _Signed(scale, biased, sees, causal)
    given = 3 + biased + sees
    reads, gives = tuple(range(given + 2)), tuple(range(3 + biased))
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
    """Signed attention. `sees` says whether there is a mask; the others are arguments of `signed_attention`."""

    scale: float
    biased: bool
    sees: bool
    causal: bool

    # ---- on whole tensors

    def plain(self, q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> Tensor:
        """The result by operations on whole tensors. The weights are NaN where a score is, whatever its sign."""
        scores = (self.scale * q) @ k.mT
        scores = scores + more[0] if self.biased else scores
        shown = scores.abs()
        if self.causal:
            shown = torch.minimum(shown, _cap(_past(scores), shown.dtype))
        if self.sees:
            shown = torch.minimum(shown, _cap(more[-1], shown.dtype))
        return (scores.sign() * shown.softmax(-1)) @ v

    # ---- in tiles

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The result, log₂ Σ_j 2^|s_ij| in the working type, and the result again, to be saved."""
        b, h, i, _ = q.shape
        result = v.new_empty((b, i, h, v.shape[-1])).transpose(1, 2)
        totals = q.new_empty((b, h, i, 1), dtype=_working(q.dtype))
        masks = self._masks(q, k, more)
        for tile in self._tiles(q, k):
            self._tile_forward(tile, q, k, v, masks, result, totals)
        return result, totals, result

    def _tile_forward(
        self,
        tile: _Tile,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        masks: Sequence[Tensor],
        result: Tensor,
        totals: Tensor,
    ) -> None:
        """Writes a tile's part of the result and of the logarithms. Its temporary tensors are freed on return."""
        scores, (told, parts) = self._scores(tile, q, k), self._told(tile, masks)
        weights, total, logarithm = _weighed(scores, *parts, **told)
        torch.div(weights @ tile.of(v, "keys"), total, out=tile.of(result, "queries"))
        tile.of(totals, "queries").copy_(logarithm)

    def backward(
        self, q: Tensor, k: Tensor, v: Tensor, *more: Tensor, wanted: Sequence[bool]
    ) -> tuple[Tensor | None, ...]:
        """The wanted gradients of q, k, v and the bias. With g the gradient of y, and p the weights without their
        signs:

        v̄ = (sign(s)·p)ᵀ g,  s̄ = sign(s)·p·(sign(s)·(g vᵀ) − Σ_f g y).
        """
        *given, totals, result, gradient = q, k, v, *more
        masks, given = self._masks(q, k, given[3:]), given[: 3 + self.biased]
        found = [
            torch.empty_like(each, dtype=_working(each.dtype)) if asked else None
            for each, asked in zip(given, wanted, strict=True)
        ]
        _, of_k, of_v, *of_bias = found
        for each in (of_k, of_v, *of_bias) if self.causal else of_bias:
            if each is not None:
                each.zero_()
        for tile in self._tiles(q, k):
            self._tile_backward(tile, (q, k, v), masks, (gradient, totals, result), found)
        return tuple(
            None if each is None else each.to(like.dtype) for each, like in zip(found, given, strict=True)
        )

    def _tile_backward(
        self,
        tile: _Tile,
        operands: tuple[Tensor, Tensor, Tensor],
        masks: Sequence[Tensor],
        saved: tuple[Tensor, Tensor, Tensor],
        found: Sequence[Tensor | None],
    ) -> None:
        """Adds a tile's terms to the gradients. Its temporary tensors are freed on return.

        Args:
            tile: the tile.
            operands: q, k and v.
            masks: the bias and the mask, if there are any.
            saved: the gradient of the result, the logarithms, and the result.
            found: the gradients of q, k, v and the bias. None for those that are not wanted.
        """
        (q, k, v), (of_q, of_k, of_v, *of_bias) = operands, found
        coming, total, result = (tile.of(each, "queries") for each in saved)
        scores, (told, parts) = self._scores(tile, q, k), self._told(tile, masks)
        if all(each is None for each in (of_q, of_k, *of_bias)):
            weights = _weights(scores, total, *parts, **told)
        else:
            means = (coming * result).sum(-1, keepdim=True, dtype=total.dtype)
            reached = coming @ tile.of(v, "keys").mT
            weights, reached = _differentiated(scores, reached, means, total, *parts, **told)
            for each in of_bias:
                if each is not None:
                    part = tile.of(each, "queries", "keys")
                    part += reached.sum_to_size(part.shape)
            turned = reached.to(q.dtype)
            if of_q is not None:
                _write(tile.of(of_q, "queries"), turned, tile.of(k, "keys"), self.scale)
            if of_k is not None:
                adds = tile.queries.start > 0
                _write(tile.of(of_k, "keys"), turned.mT, tile.of(q, "queries"), self.scale, adds)
        if of_v is not None:
            _write(tile.of(of_v, "keys"), weights.to(v.dtype).mT, coming, adds=tile.queries.start > 0)

    def _scores(self, tile: _Tile, q: Tensor, k: Tensor) -> Tensor:
        """The products of queries and keys of a tile, times the scale and log₂ e."""
        rows, columns = tile.of(q, "queries"), tile.of(k, "keys").mT
        shape = *rows.shape[:-1], columns.shape[-1]
        scores = rows.new_empty(shape)
        _write(scores, rows, columns, self.scale * LOG2E)
        return scores

    def _told(self, tile: _Tile, masks: Sequence[Tensor]) -> tuple[dict[str, Any], list[Tensor]]:
        """The options of the functions of scores, and a tile's part of the bias and of the mask."""
        late = tile.queries.start if self.causal else -1
        return {"biased": self.biased, "late": late}, [tile.of(each, "queries", "keys") for each in masks]

    def _masks(self, q: Tensor, k: Tensor, more: Sequence[Tensor]) -> list[Tensor]:
        """The bias and the mask. A mask of at most half the scores becomes a cap on |s| here, others in each tile."""
        masks = list(more)
        if self.sees and 2 * masks[-1].numel() <= q.shape[:-1].numel() * k.shape[-2]:
            masks[-1] = _cap(masks[-1], _working(q.dtype))
        return masks

    def _tiles(self, q: Tensor, k: Tensor) -> Iterator[_Tile]:
        """Tiles that cover each score once. A matrix too large for one tile is split into blocks of rows. Fake tensors
        get a single tile, since only shapes matter."""
        (batch, heads, queries, _), keys = q.shape, k.shape[-2]
        most = TILE if q.device.type == "cpu" else LARGER
        most = batch * heads * queries * keys if is_fake(q) else most
        rows = -(-queries // max(1, -(-queries * keys // most)))
        beside = max(1, most // max(1, rows * keys)) if rows >= queries else 1
        for entries in _cut(batch, max(1, beside // max(1, heads))):
            for some in _cut(heads, min(beside, max(1, heads))):
                for at in _cut(queries, rows):
                    yield _Tile(entries, some, at, slice(0, min(keys, at.stop) if self.causal else keys))


# ---------------------------------------------------------------------------- the scores of a tile


def _capped(scores: Tensor, masks: Sequence[Tensor], biased: bool, late: int) -> tuple[Tensor, Tensor]:
    """The scores with their bias, and |s| with hidden scores capped. The scores are already times log₂ e.

    Args:
        scores: overwritten if their type is the working type.
        masks: the bias and the mask, if there are any.
        biased: whether the first of them is a bias.
        late: the first key that some query of the tile does not see. -1 if the attention is not causal.
    """
    scores = scores.to(_working(scores.dtype))
    if biased:
        scores.add_(masks[0], alpha=LOG2E)
    shown = scores.abs()
    if late >= 0:
        after = shown[..., late:]
        torch.minimum(after, _cap(_past(after), after.dtype), out=after)
    for each in masks[biased:]:
        caps = _cap(each, shown.dtype) if each.dtype == torch.bool else each
        torch.minimum(shown, caps, out=shown)
    return scores, shown


def _weighed(scores: Tensor, *masks: Tensor, biased: bool, late: int) -> tuple[Tensor, Tensor, Tensor]:
    """w = sign(s)·2^(|s| − max |s|) in the type of the scores, Σ|w|, and log₂ Σ 2^|s|."""
    kind = scores.dtype
    scores, shown = _capped(scores, masks, biased, late)
    most = shown.amax(-1, keepdim=True)
    total = shown.sub_(most).exp2_().sum(-1, keepdim=True)
    return shown.mul_(scores.sign_()).to(kind), total, total.log2().add_(most)


def _weights(scores: Tensor, total: Tensor, *masks: Tensor, biased: bool, late: int) -> Tensor:
    """sign(s)·p, where log₂ Σ 2^|s| is given."""
    scores, shown = _capped(scores, masks, biased, late)
    return shown.sub_(total).exp2_().mul_(scores.sign_())


def _differentiated(
    scores: Tensor, reached: Tensor, means: Tensor, total: Tensor, *masks: Tensor, biased: bool, late: int
) -> tuple[Tensor, Tensor]:
    """sign(s)·p, and the gradient of s from g vᵀ and Σ_f g y."""
    scores, shown = _capped(scores, masks, biased, late)
    signs, weights = scores.sign_(), shown.sub_(total).exp2_()
    weights.mul_(signs)
    found = torch.addcmul(-means, signs, reached.to(signs.dtype), out=signs).mul_(weights)
    if len(masks) > biased:  # if a query sees nothing, its weights do not depend on the scores
        found.mul_(total > 0.5 * _low(total.dtype))
    return weights, found


def _write(part: Tensor, a: Tensor, b: Tensor, scale: float = 1.0, adds: bool = False) -> None:
    """Writes scale · a b, or adds it to what is there."""
    if part.dtype == a.dtype and part.is_contiguous():
        rows = part.view(-1, *part.shape[2:])
        torch.baddbmm(rows, a.flatten(0, 1), b.flatten(0, 1), beta=int(adds), alpha=scale, out=rows)
        return
    made = (a @ b).mul_(scale)
    if adds:
        part += made
    else:
        part.copy_(made)


def _cut(size: int, length: int) -> Iterator[slice]:
    return (slice(start, min(size, start + length)) for start in range(0, size, max(1, length)))


def _working(dtype: torch.dtype) -> torch.dtype:
    """The working type of scores: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def _past(scores: Tensor) -> Tensor:
    """The causal mask: keys at a query's own position or before. Queries and keys start at the same position."""
    queries, keys = (torch.arange(size, device=scores.device) for size in scores.shape[-2:])
    return queries[:, None] >= keys


def _cap(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """The upper bound of |s|: infinite where a key is seen. Taking a minimum is the fastest way to hide scores."""
    return torch.where(seen, math.inf, _low(dtype)).to(dtype)


def _low(dtype: torch.dtype) -> float:
    """|s| of a hidden score."""
    return HIDDEN_IN_DOUBLE if dtype == torch.float64 else HIDDEN
