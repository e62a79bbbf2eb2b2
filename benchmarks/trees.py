"""Orders to hold a search against: all of them, by the definition."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tensornet.contraction.layout_search import Tree

__all__ = ["trees"]


def trees(present: tuple[int, ...], made: int) -> Iterator[Tree]:
    """Every way to contract tensors in pairs, the next result under the number `made`."""
    if len(present) == 1:
        yield ()
    for one, other in itertools.combinations(present, 2):
        rest = (*(each for each in present if each not in (one, other)), made)
        for tree in trees(rest, made + 1):
            yield ((one, other), *tree)
