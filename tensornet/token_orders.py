"""Factorization orders and their permutation masks (Yang et al. 2019, §2.2–2.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .errors import ShapeError


@dataclass(frozen=True)
class FactorizationOrder:
    """Sampled orders: the inputs of `models.xlnet` besides the tokens, as NumPy arrays.

    Attributes:
        order: z[b, t], the position that comes t-th.
        see: see[b, i, j], true where position j comes before position i.
        targets: z[b, t > c], the last positions of the order, to be predicted.
    """

    order: Any
    see: Any
    targets: Any


def factorize(batch: int, length: int, *, predict: float = 1.0, seed: int = 0) -> FactorizationOrder:
    """Samples an order z for each text, uniformly, and cuts it for partial prediction.

    Args:
        batch: the number of texts.
        length: T, their number of tokens.
        predict: K. The last T/K positions of the order are targets, at least one.
        seed: the same seed gives the same orders.

    Raises:
        ShapeError: K is less than 1 or infinite, or `batch` or `length` is not a positive integer.

    Source: Yang et al. (2019), eq. 3 and 5: |z|/(|z| − c) ≈ K.

    Example:
        >>> found = factorize(2, 6, predict=3)
        >>> found.see.shape, found.targets.shape
        ((2, 6, 6), (2, 2))
    """
    import numpy as np

    whole = all(isinstance(each, int) and each > 0 for each in (batch, length))
    if not whole or not 1 <= predict < float("inf"):
        raise ShapeError(
            f"batch={batch}, length={length}, predict={predict}",
            fix="give integers, and numbers of at least 1",
        )
    order = np.random.default_rng(seed).permuted(np.tile(np.arange(length), (batch, 1)), axis=1)
    cut = length - max(1, round(length / predict))
    return FactorizationOrder(order, see_before(order), order[:, cut:])


def see_before(order: Any) -> Any:
    """see[b, i, j]: whether position j comes before position i in the order z[b, t].

    Example:
        >>> see_before([[2, 0, 1]])[0].astype(int)
        array([[0, 0, 1],
               [1, 0, 1],
               [0, 0, 0]])
    """
    import numpy as np

    order = np.asarray(order)
    if order.ndim != 2 or not (np.sort(order, axis=1) == np.arange(order.shape[1])).all():
        raise ShapeError(
            f"an order of shape {order.shape} does not hold every position once",
            fix="give z[b, t], a permutation of 0 … T−1 in each row",
        )
    rank = np.argsort(order, axis=1)
    return rank[:, None, :] < rank[:, :, None]
