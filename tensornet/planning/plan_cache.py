"""Plan cache: plans on disk for other processes, where `TENSORNET_CACHE` names a folder.

Kept are the steps, and not the code: that is written anew from them, so that nothing which comes
from a file is run. A plan is found again under all that it depends on, the library's own source included.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..codec import Text, document, read, write
from ..device.model import DeviceProfile
from ..documents import Part
from ..errors import TensornetError
from ..graph.graph import Graph
from ..json_store import Store, chosen_folder
from ..language.expression import Call
from ..ops.table import FUNCTIONS
from .plans import Plan

__all__ = ["Occasion"]

MOST = 400
"""How many plans are kept; those used longest ago go."""

_FOLDERS = (
    *("", "language", "ops", "graph", "frontend", "passes", "scan", "weights", "autodiff"),
    *("device", "contraction", "lowering", "planning", "backends", "backends/jax", "backends/torch"),
)
"""Where the source is that decides what a plan is, and what its steps mean."""

_SEARCHES = ("opt_einsum", "cotengra")
"""Whose searches are asked for orders."""

_LOADED = time.time()


@document()
@dataclass(frozen=True)
class Occasion:
    """What a plan is made for; plans of equal ones serve each other's turn.

    Attributes:
        graph, backend, device, dtype, memory_limit, profile: as for `tensornet.plan`.
        around: scopes of blocks that run by themselves; nothing where none do.
        lengths: about how long the open sizes are, in powers of two.
        closed: whether what depends on open sizes is made anew at each call.
        tune: how the plan is chosen, if not by what it is expected to take.
        changing: the leaves that get gradients, where products are planned both ways.
    """

    graph: Graph
    backend: Text
    device: Text
    dtype: Text
    memory_limit: int | None
    lengths: tuple[tuple[str, int], ...]
    profile: DeviceProfile
    around: frozenset[str] | None = None
    closed: bool = False
    tune: str | None = None
    changing: frozenset[str] = frozenset()

    def recall(self) -> Plan | None:
        """The plan that was kept, its code not yet written; nothing if none is there that can be believed."""
        store = _store()
        found = None if store is None else store.read(self._key)
        if found is None:
            return None
        try:
            return read(Plan, Part(found, "plan"), graph=self.graph)
        except TensornetError:
            return None

    def keep(self, plan: Plan) -> Path | None:
        """Keeps the plan for whoever asks for the same; returns where, or nothing if it is not kept."""
        store = _store()
        if store is None:
            return None
        content = write(replace(plan, code=""), given=("graph",))  # the key tells it, and whoever asks has it
        return store.write(self._key, content)

    @functools.cached_property
    def _key(self) -> str:
        """A digest of all that decides the plan; what constants hold does not, only of what kind it is."""
        occasion = write(self, without=("Constant.data",))
        parts = [occasion, _registered(self.graph), _library()]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _store() -> Store | None:
    """Where plans are kept, if they are."""
    folder = chosen_folder()
    return Store(folder, "plan", MOST) if folder is not None and _library() else None


def _registered(graph: Graph) -> list[Any]:
    """The functions of the user's own that a graph calls, and the kernels that it may be covered with."""
    called = {part.function for part in graph.expressions() if isinstance(part, Call)}
    own = [row for row in FUNCTIONS.values() if row.implementations and (row.computes or row.name in called)]
    rows = sorted(own, key=lambda row: row.name)
    return [
        (
            row.name,
            row.kind,
            row.arity,
            [each.text for each in row.computes],
            [each for each, _ in row.implementations],
        )
        for row in rows
    ]


@functools.cache
def _library() -> str:
    """A digest of what makes plans, the library's source foremost: a plan made by another is none of ours.

    Nothing where the source is not at hand, or was changed since it was loaded.
    """
    digest, home = hashlib.sha256(), Path(__file__).parent.parent
    files = [path for folder in _FOLDERS for path in sorted((home / folder).glob("*.py")) if path.is_file()]
    if not files or max(path.stat().st_mtime for path in files) > _LOADED:
        return ""
    for path in files:
        digest.update(f"{path.relative_to(home)}\n".encode() + path.read_bytes())
    for name in _SEARCHES:
        digest.update(f"{name} {_version(name)}\n".encode())
    return digest.hexdigest()


def _version(name: str) -> str:
    """The version of another library, as it is installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
