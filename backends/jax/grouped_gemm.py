"""Grouped GEMM for JAX, where no shape may depend on values.

The rows of each matrix fill blocks of one length, the last of them partly. Each block is multiplied by its matrix.
N rows and E matrices give at most N/length + E blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

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
    if not (positions.size and size):
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
