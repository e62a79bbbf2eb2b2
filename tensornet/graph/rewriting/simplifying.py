"""Rewrites together."""

from __future__ import annotations

from ..graph import Graph
from .fusing import fuse
from .narrowing import narrow
from .pruning import prune
from .sharing import share

__all__ = ["simplify"]


def simplify(graph: Graph) -> Graph:
    """Every rewrite that always pays: prune, narrow, share, fuse."""
    return prune(fuse(share(narrow(prune(graph)))))
