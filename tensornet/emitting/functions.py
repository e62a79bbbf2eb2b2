"""Source to functions: what generated code defines, and what it is handed besides what a call gives it."""

from __future__ import annotations

import itertools
import linecache
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..dtypes import real_type
from ..graph.leaves import Leaf
from ..operations.functions import FUNCTIONS
from ..planning.plans import Plan
from ..protocol import Backend
from ..threads import apart
from .source import FUNCTION_NAME, TABLES_NAME

__all__ = ["Place", "Program", "Tables", "constant_array", "define"]

_numbers = itertools.count(1)


def define(source: str, title: str, name: str, names: Mapping[str, Any]) -> Any:
    """What source of our own defines under a name; tracebacks show it for as long as it lives."""
    filename = f"<tensornet {title}>"
    known = dict(names)
    exec(compile(source, filename, "exec"), known)
    found = known[name]
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    weakref.finalize(found, linecache.cache.pop, filename, None).atexit = False
    return found


def _function_of(found: Plan, backend: Backend) -> Callable[..., Any]:
    """The generated function of a plan; its source shows in tracebacks and debuggers."""
    names: dict[str, Any] = dict(backend.namespace())
    names["functions"] = {
        row.name: dict(row.implementations)[backend.name]
        for row in FUNCTIONS.values()
        if backend.name in dict(row.implementations)
    }
    function: Callable[..., Any] = define(found.code, f"plan {next(_numbers)}", FUNCTION_NAME, names)
    return function


class Place(NamedTuple):
    """Where tables are, of which element type, and at which of the sizes that they depend on."""

    device: str
    dtype: str
    sizes: tuple[int, ...]


class Tables:
    """What is done once, done: the arrays that a function is handed besides what a call gives it."""

    def __init__(self, arrays: tuple[Any, ...]) -> None:
        self.arrays = arrays


NO_TABLES = Tables(())


class Program:
    """A plan with its function, and the tables that all who run it have in common.

    Attributes:
        plan: the plan.
        function: the function of inputs, parameters, constants and tables.
    """

    def __init__(self, plan: Plan, backend: Backend) -> None:
        self.plan, self.function, self._backend = plan, _function_of(plan, backend), backend
        self._common: weakref.WeakValueDictionary[Place, Tables] = weakref.WeakValueDictionary()

    def tables(self, place: Place, source: Callable[[Leaf], Any]) -> Tables:
        """The tables of a place; made where nobody has them yet.

        Args:
            place: where.
            source: gives the array of a constant.
        """
        if not self.plan.tables:
            return NO_TABLES
        found = self._common.get(place)
        if found is None:
            found = apart(lambda: self._made(place, source))
            if not self.plan.sources:
                self._common[place] = found
        return found

    def _made(self, place: Place, source: Callable[[Leaf], Any]) -> Tables:
        like = self._backend.asarray([], place.dtype, place.device)
        sources = [source(leaf) for leaf in self.plan.sources]
        made = self.function.__globals__[TABLES_NAME](like, *sources, *place.sizes)
        self._backend.synchronize(place.device, *made)
        return Tables(made)


def constant_array(leaf: Leaf, backend: Backend, dtype: str, device: str | None) -> Any:
    """The value of a constant; floating ones in float32, or in float64 where the working type is."""
    assert leaf.value is not None
    array = leaf.value.array()
    wide = "float64" if real_type(dtype) == "float64" else "float32"
    return backend.asarray(array.copy(), wide if array.dtype.kind == "f" else None, device)
