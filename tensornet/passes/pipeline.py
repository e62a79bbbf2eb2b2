"""The pass pipeline: rewrites that always pay, in order."""

from __future__ import annotations

from ..graph.graph import Graph
from .common_subexpressions import share
from .dead_code import prune
from .fuse import fuse
from .gather_pushdown import narrow

__all__ = ["simplify"]


def simplify(graph: Graph) -> Graph:
    """Every rewrite that always pays: prune, narrow, share, fuse."""
    return prune(fuse(share(narrow(prune(graph)))))
