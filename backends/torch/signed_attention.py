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

from tensornet.ops.attention import SCORES

from .products import is_differentiated, is_traced, is_unseen, with_vjp

__all__ = ["signed_attention"]

Tensor: TypeAlias = torch.Tensor
Parts: TypeAlias = tuple[Any, ...]

TILE = SCORES
"""The number of scores in a tile on a CPU: two tiles and the operands stay in the cache of a core."""

LARGER = 2**26
"""The same on other devices, where tiles only bound the memory in use: they take 2 to 3 times as long there."""

WHOLE = 2**30
"""Up to so many scores other devices compute them whole, in ordinary operations."""

SAVED = 4
"""Up to so many times the size of the operands, weights of the working type are saved for the backward pass."""

LOG2_E = math.log2(math.e)
"""`exp` is faster than `exp2`, but takes 50 times as long where its result is 0."""

HIGHEST = 40.0
"""Up to such |s| no maximum has to be subtracted. Where `exp` overflows, it takes 60 times as long."""

HIDDEN = -3000.0
"""|s| of a hidden score. Its exponential is 0, and never a subnormal number, which takes long."""


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
    scores = q.shape[:-1].numel() * k.shape[-2]
    is_whole = q.device.type != "cpu" and scores <= WHOLE
    in_tiles = not (is_whole or is_traced() or torch.is_autocast_enabled(q.device.type))
    if in_tiles and all(each.numel() for each in (q, k, v)):
        given = (q, k, v, *more)
        is_small = scores <= SAVED * (q.numel() + k.numel() + v.numel()) and q.dtype == _working(v.dtype)
        saves = is_small and is_differentiated(*given)
        result: Tensor = _in_tiles(float(scale), biased, causal, len(more), saves)(*given)
        return result
    return _Signed(scale, biased, causal).plain(q, k, v, *more)


@functools.lru_cache(maxsize=64)
def _in_tiles(scale: float, biased: bool, causal: bool, more: int, saves: bool) -> Callable[..., Any]:
    """Signed attention in tiles, as a function of tensors only, with a backward pass of its own."""
    tiles = _Signed(scale, biased, causal, saves)
    reads, gives = tuple(range(3 + more + 2 * saves)), tuple(range(3 + biased))
    return with_vjp(tiles.forward, tiles.backward, reads, gives, tiles.plain, asks=True)


@dataclass(frozen=True)
class _Tiles:
    """Tiles that cover each score once: all rows of some matrices, or some rows of one matrix.

    Attributes:
        sizes: of batch, heads, queries and keys.
        lengths: of a tile along batch, heads and queries.
        causal: whether a tile has only the keys that its rows see.
    """

    sizes: tuple[int, ...]
    lengths: tuple[int, ...]
    causal: bool

    @functools.cached_property
    def places(self) -> list[tuple[tuple[int, ...], int]]:
        """The shape of each tile's scores, [batch, heads, queries, keys], and its first query."""
        *cut, keys = self.sizes
        parts = (
            [(start, min(size, start + length)) for start in range(0, size, length)]
            for size, length in zip(cut, self.lengths, strict=True)
        )
        return [
            ((*(stop - start for start, stop in at), min(keys, at[2][1]) if self.causal else keys), at[2][0])
            for at in itertools.product(*parts)
        ]

    def of(self, array: Tensor | None, keys: int = -1) -> Sequence[Any]:
        """The tiles' parts of a tensor [batch, heads, ...], or None for each. Dimensions of size 1 stay whole.

        Args:
            keys: its axis of keys, if it has one.
        """
        if array is None:
            return [None] * len(self.places)
        parts: list[Tensor] = [array]
        for axis, length in enumerate(self.lengths):
            if length < self.sizes[axis]:
                whole, count = axis == keys or array.shape[axis] == 1, -(-self.sizes[axis] // length)
                cut = ([each] * count if whole else torch.split(each, length, axis) for each in parts)
                parts = [*itertools.chain.from_iterable(cut)]
        if self.causal and keys >= 0 and array.shape[keys] > 1:
            return [
                part.narrow(keys, 0, shape[3]) for part, (shape, _) in zip(parts, self.places, strict=True)
            ]
        return parts

    def matrices(self, array: Tensor, keys: int = -1) -> Iterator[Tensor]:
        """The same as [matrices, rows, columns], each made where it is asked for."""
        if self.lengths[1:] == self.sizes[1:3] and not self.causal and array.is_contiguous():
            return iter(torch.split(array.flatten(0, 1), self.lengths[0] * self.sizes[1]))
        return (part.flatten(0, 1) for part in self.of(array, keys))

    def within(self, dims: int, like: Tensor, saved: Tensor | None = None) -> list[Tensor]:
        """Where each tile's scores are, or with three dimensions a number per row: all at one place, or all saved."""
        shapes = [(math.prod(shape[:2]), *shape[2:dims], *[1] * (4 - dims)) for shape, _ in self.places]
        counts = [*map(math.prod, shapes)]
        if saved is not None:
            parts = torch.split(saved.narrow(0, 0, sum(counts)), counts)
            return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
        room = like.new_empty(max(counts), dtype=_working(like.dtype))
        views = {shape: room.narrow(0, 0, math.prod(shape)).view(shape) for shape in {*shapes}}
        return [views[shape] for shape in shapes]


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
        for cap in self._caps(scores, self._named(more)[1], 0):
            shown = torch.minimum(shown, cap)
        return (scores.sign() * shown.softmax(-1)) @ v

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> Any:
        """The result, tile by tile, and the weights and their scales if they are saved."""
        (b, h, i, _), f = q.shape, v.shape[-1]
        turned = q.stride(1) < q.stride(2)  # the result lies as the queries do
        result = v.new_empty((b, i, h, f)).transpose(1, 2) if turned else v.new_empty((b, h, i, f))
        tiles = self._tiles(q, k, v)
        saved = [q.new_empty(math.prod(tiles.sizes[:dims])) for dims in (4, 3)] if self.saves else []
        weighed = self._weighed(tiles, (q, k, v), *self._named(more), saved)
        parts = zip(weighed, tiles.matrices(v, keys=2), tiles.of(result), strict=True)
        for (weights, scales), values, part in parts:
            given = weights.to(v.dtype), values
            if part.is_contiguous():
                torch.bmm(*given, out=part.flatten(0, 1)).mul_(scales)
            else:
                part.copy_(torch.bmm(*given).mul_(scales).view(part.shape))
        return result, *saved

    def _weighed(
        self, tiles: _Tiles, operands: Parts, bias: Any, seen: Any, saved: Sequence[Tensor]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The weights of each tile with their signs, and the scale of each row, 1 / Σ: a product takes half as long as
        a quotient.

        Both are written into `saved`, if it is not empty, else where those of the next tile will be. A maximum is
        subtracted only where scores of a tile are large.
        """
        q, k, v = operands
        rooms = (None, *(saved or (None, None)))
        places = (tiles.within(*each) for each in zip((4, 4, 3), (q, q, q), rooms, strict=True))
        given = (tiles.matrices(q), tiles.matrices(k, 2), tiles.of(bias, 3), tiles.of(seen, 3))
        waits = q.device.type != "cpu" or is_unseen(q)  # whoever looks at the scores of other devices
        for (shape, first), shown, scores, totals, rows, columns, more, mask in zip(
            tiles.places, *places, *given, strict=True
        ):
            _product(scores, rows, columns.mT, self.scale)
            if more is not None:
                scores.view(shape).add_(more)
            whole, caps = shown.view(shape), [*self._caps(scores, mask, first)]
            torch.abs(scores, out=shown)
            for cap in caps:
                torch.minimum(whole, cap, out=whole)
            subtracts = waits or not shown.amax().item() <= HIGHEST  # which no NaN is
            if subtracts:
                shown.sub_(shown.amax(-1, keepdim=True))
            exponentials = shown.mul_(LOG2_E).exp2_() if caps or subtracts else shown.exp_()
            torch.sum(exponentials, -1, keepdim=True, out=totals)
            if v.dtype != shown.dtype:  # half precision has no place for large weights
                shown.mul_(totals.reciprocal_())
                totals.fill_(1)
            yield scores.sign_().mul_(shown), totals.reciprocal_()

    def backward(self, q: Tensor, k: Tensor, v: Tensor, *more: Tensor, wanted: Sequence[bool]) -> Any:
        """The wanted gradients of q, k, v and the bias. With g the gradient of y, and w the weights with their signs:

        v̄ = wᵀ g,  s̄ = |w|·r − w·Σ_j w·r,  r = g vᵀ.
        """
        masks, (*saved, gradient) = more[: -1 - 2 * self.saves], more[-1 - 2 * self.saves :]
        bias, seen = self._named(masks)
        given = (q, k, v, *masks[: self.biased])
        found = [
            torch.empty_like(each, dtype=_working(each.dtype)) if asked else None
            for each, asked in zip(given, wanted, strict=True)
        ]
        of_q, of_k, of_v, of_bias = (*found, None)[:4]
        for each in (of_k, of_v, of_bias) if self.causal else (of_bias,):  # tiles add to these
            if each is not None:
                each.zero_()
        tiles = self._tiles(q, k, v)
        weighed: Iterator[Any] = (
            zip(tiles.within(4, q, saved[0]), tiles.within(3, q, saved[1]), strict=True)
            if saved
            else self._weighed(tiles, (q, k, v), bias, seen, ())
        )
        operands = zip(tiles.matrices(q), tiles.matrices(k, 2), tiles.matrices(v, 2), strict=True)
        results = zip(tiles.of(of_q), tiles.of(of_k, 2), tiles.of(of_v, 2), tiles.of(of_bias, 3), strict=True)
        rooms = zip(tiles.within(4, q), tiles.within(4, q), strict=True)
        parts = (tiles.of(gradient), tiles.of(seen, 3), weighed, rooms, operands, results)
        for (_, first), coming, mask, pair, room, *others in zip(tiles.places, *parts, strict=True):
            coming = coming * pair[1].view(*coming.shape[:3], 1).to(coming.dtype)
            self._tile_backward(first, coming, mask, (*pair, *room), *others)
        return tuple(
            None if each is None else each.to(like.dtype) for each, like in zip(found, given, strict=True)
        )

    def _tile_backward(
        self, first: int, coming: Tensor, seen: Any, scores: Parts, operands: Parts, found: Parts
    ) -> None:
        """Writes a tile's terms of the gradients of q, k, v and the bias, or adds them where other tiles have some.

        Args:
            scores: the weights, their scales, and two rooms for as many numbers as weights.
            found: where the gradients go, None for those that are not wanted.
        """
        (weights, scales, pulled, beside), (q, k, v), (of_q, of_k, of_v, of_bias) = scores, operands, found
        adds = self.causal or first > 0
        if any(each is not None for each in (of_q, of_k, of_bias)):
            pulls = coming
            if seen is not None:  # the scores of a row that sees nothing have no gradient
                pulls = pulls * seen.sum(-1, keepdim=True, dtype=coming.dtype).clamp_(max=1)
            _product(pulled, pulls.flatten(0, 1), v.mT, 1.0)
            mean = torch.mul(pulled, weights, out=beside).sum(-1, keepdim=True).mul_(scales)
            pulled.mul_(torch.abs(weights, out=beside)).addcmul_(weights, mean, value=-1)
            if of_bias is not None:
                of_bias += pulled.view(*coming.shape[:3], -1).sum_to_size(of_bias.shape)
            pulled = pulled.to(q.dtype)
            if of_q is not None:
                _product(of_q, pulled, k, self.scale)
            if of_k is not None:
                _product(of_k, pulled.mT, q, self.scale, adds)
        if of_v is not None:
            _product(of_v, weights.to(v.dtype).mT, coming.flatten(0, 1), 1.0, adds)

    def _named(self, more: Sequence[Tensor]) -> tuple[Tensor | None, Tensor | None]:
        """The bias and the mask, where there is one."""
        bias, seen = more[: self.biased], more[self.biased :]
        return bias[0] if bias else None, seen[0] if seen else None

    def _caps(self, scores: Tensor, seen: Tensor | None, first: int) -> Iterator[Tensor]:
        """The highest |s| by masks, below all others where a key is hidden: a minimum is the fastest way to hide.

        A query that sees no key has all caps at 0.

        Args:
            scores: [..., queries, keys].
            seen: the mask, if there is one.
            first: the position of the first query.
        """
        if self.causal:
            yield scores.new_full(scores.shape[-2:], math.inf).tril(first) + HIDDEN
        if seen is not None:
            mask = seen.to(scores.dtype)  # arithmetic is much faster than `where`
            yield mask / (1 - mask) + mask.sum(-1, keepdim=True).clamp(max=1) * HIDDEN

    def _tiles(self, q: Tensor, k: Tensor, v: Tensor) -> _Tiles:
        """Tiles of whole matrices, or of rows of a matrix that is too large for one. Fake tensors get a single tile,
        since only shapes matter."""
        sizes = _, heads, queries, keys = *q.shape[:3], k.shape[-2]
        most = TILE if q.device.type == "cpu" else LARGER
        most = math.prod(sizes) if is_fake(q) else most
        rows = -(-queries // max(1, -(-queries * keys // most)))
        matrices = max(1, most // (rows * keys)) if rows >= queries else 1
        lengths = max(1, matrices // heads), min(matrices, heads), rows
        return _Tiles(sizes, lengths, self.causal)


def _product(into: Tensor, a: Tensor, b: Tensor, scale: float, adds: bool = False) -> None:
    """Writes scale · a b into a part of a tensor, or adds it there."""
    if into.dtype == a.dtype and into.is_contiguous():
        into = into.view(a.shape[0], a.shape[1], -1)
        torch.baddbmm(into, a, b, beta=float(adds), alpha=scale, out=into)
        return
    made = (a @ b).view(into.shape)
    if adds:
        into.add_(made, alpha=scale)
    else:
        torch.mul(made.to(into.dtype), scale, out=into)


def _working(dtype: torch.dtype) -> torch.dtype:
    """The working type of scores: at least float32."""
    return torch.promote_types(dtype, torch.float32)
