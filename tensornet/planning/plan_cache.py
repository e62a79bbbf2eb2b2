"""Plan cache: plans on disk for other processes, where `TENSORNET_CACHE` names a folder.

The cache holds the steps but not the code. The code is generated again from the steps, so that nothing from a file is
run. The key of a plan covers everything that it depends on, including the library's own source.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..codec import Part, Text, document, read, write
from ..device.cost_model import DeviceProfile
from ..errors import TensornetError
from ..files import Store, chosen_folder
from ..graph.graph import Graph
from ..ops.table import FUNCTIONS
from .plans import Plan

MOST = 400
"""The most plans that are kept. The least recently used ones are dropped."""

_FOLDERS = (
    *("", "language", "ops", "graph", "frontend", "passes", "scan", "weights", "autodiff"),
    *("device", "contraction", "lowering", "planning", "backends", "backends/jax", "backends/torch"),
)
"""The folders with the source that decides what a plan is and what its steps mean."""

_LOADED = time.time()


@document()
@dataclass(frozen=True)
class Occasion:
    """Everything that a plan depends on. Equal occasions share a plan.

    Attributes:
        graph, backend, device, dtype, memory_limit, profile: as for `tensornet.plan`.
        around: scopes of blocks that run on their own. None if no block does.
        lengths: the open sizes, roughly, in powers of two.
        closed: whether tensors that depend on open sizes are computed again at each call.
        tune: how the plan is chosen, if not by its expected time.
        changing: the leaves that get gradients, where products are planned forward and backward.
        hints: the sizes that were seen first, at which it is planned. Others of these lengths share the plan.
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
    hints: Mapping[str, int] = field(default_factory=dict, compare=False)

    def recall(self) -> Plan | None:
        """The cached plan, its code not yet generated. None if there is no valid one."""
        store = _store()
        found = None if store is None else store.read(self._key)
        if found is None:
            return None
        try:
            return read(Plan, Part(found, "plan"), graph=self.graph)
        except TensornetError:
            return None

    def keep(self, plan: Plan) -> Path | None:
        """Stores the plan for later look-ups. The path of the file, or None if it is not stored."""
        store = _store()
        if store is None:
            return None
        content = write(replace(plan, code=""), given=("graph",))  # it is in the key, and the reader has it
        return store.write(self._key, content)

    @functools.cached_property
    def _key(self) -> str:
        """A digest of all that decides the plan. Of constants it covers the kind but not the values."""
        occasion = write(self, without=("Constant.data",))
        parts = [occasion, _registered(self.graph), _library()]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _store() -> Store | None:
    """The store of plans. None if plans are not kept."""
    folder = chosen_folder()
    return Store(folder, "plan", MOST) if folder is not None and _library() else None


def _registered(graph: Graph) -> list[Any]:
    """The user's own functions that a graph calls, and the user's kernels that may be selected for it."""
    called = {call.function for call in graph.called()}
    own = [row for row in FUNCTIONS.values() if row.implementations and (row.computes or row.name in called)]
    return [
        (
            row.name,
            row.kind,
            row.arity,
            [each.text for each in row.computes],
            [each for each, _ in row.implementations],
        )
        for row in sorted(own, key=lambda row: row.name)
    ]


@functools.cache
def _library() -> str:
    """A digest of the library's source, and of the version of opt_einsum, which proposes contraction orders. Only plans
    with the same digest are used.

    Empty if the source is not available, or changed since it was loaded.
    """
    digest, home = hashlib.sha256(), Path(__file__).parent.parent
    files = [path for folder in _FOLDERS for path in sorted((home / folder).glob("*.py")) if path.is_file()]
    if not files or max(path.stat().st_mtime for path in files) > _LOADED:
        return ""
    for path in files:
        digest.update(f"{path.relative_to(home)}\n".encode() + path.read_bytes())
    digest.update(importlib.metadata.version("opt_einsum").encode())
    return digest.hexdigest()
