"""Loading of generated source: functions, and the constants that they take."""

from __future__ import annotations

import inspect
import itertools
import linecache
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ..dtypes import real_type
from ..graph.element_types import of_leaf, of_leaves
from ..graph.leaves import Leaf
from ..ops.table import FUNCTIONS, Element
from ..planning.plans import Plan
from ..protocol import Backend
from ..sizes import evaluate
from ..threads import apart
from .names import FUNCTION_NAME, TABLES_NAME

_numbers = itertools.count(1)


def define(source: str, title: str, name: str, names: Mapping[str, Any]) -> Any:
    """The object that generated source defines under a name. Tracebacks show the source while the object lives."""
    filename = f"<tensornet {title}>"
    known = dict(names)
    exec(compile(source, filename, "exec"), known)
    found = known[name]
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    weakref.finalize(found, linecache.cache.pop, filename, None).atexit = False
    return found


def function_of(found: Plan, backend: Backend, **services: Any) -> Callable[..., Any]:
    """The generated function of a plan; its source shows in tracebacks and debuggers.

    Args:
        found: the plan.
        backend: the backend whose names it uses.
        **services: replacements for some of these names.
    """
    names: dict[str, Any] = {**backend.namespace(), **services}
    names["functions"] = {
        row.name: dict(row.implementations)[backend.name]
        for row in FUNCTIONS.values()
        if backend.name in dict(row.implementations)
    }
    function: Callable[..., Any] = define(found.code, f"plan {next(_numbers)}", FUNCTION_NAME, names)
    return function


def arguments(plan: Plan) -> Iterator[tuple[Leaf, tuple[int, ...], str]]:
    """The leaves that the function of a plan takes, with their shapes at the planned sizes and element types."""
    known, elements = {**plan.graph.bound, **dict(plan.sizes)}, of_leaves(plan.graph)
    wide = "float64" if real_type(plan.dtype) == "float64" else "float32"
    dtypes = {Element.TRUTH: "bool", Element.WIDE: wide, Element.NUMBER: plan.dtype}
    for leaf in plan.leaves:
        element = elements[leaf.name] if leaf.name in elements else of_leaf(leaf)
        yield leaf, tuple(int(evaluate(size, known)) for size in leaf.shape), dtypes.get(element, "int64")


def drawn(
    taken: Iterable[tuple[Leaf, tuple[int, ...], str]], backend: Backend, device: str, seed: int = 0
) -> dict[str, Any]:
    """Random arguments for a function, by name; positions and truth values are all 0.

    Args:
        taken: the leaves, shapes and element types, as `arguments` gives them.
        backend, device: where the arrays are.
        seed: the same seed gives the same numbers.
    """
    import numpy

    draw = numpy.random.default_rng(seed)
    found = {}
    for leaf, shape, dtype in taken:
        is_real = dtype not in ("bool", "int64")
        value = draw.standard_normal(shape) if is_real else numpy.zeros(shape, dtype)
        found[leaf.name] = backend.asarray(value, dtype, device)
    return found


class Place(NamedTuple):
    """The device and the element type of tables, and the values of the sizes that they depend on."""

    device: str
    dtype: str
    sizes: tuple[int, ...]


class Tables(list[Any]):
    """The arrays that are computed once, and that a function takes besides the arguments of a call."""


NO_TABLES = Tables()


class LoadedProgram:
    """A plan with its function, and the tables that all its users share.

    Attributes:
        plan: the plan.
        function: the function of inputs, parameters, constants and tables.
        as_one: the same function, compiled as a whole where the library does so.
    """

    def __init__(self, plan: Plan, backend: Backend) -> None:
        self.plan, self.function, self._backend = plan, function_of(plan, backend), backend
        self.as_one = backend.as_one(self.function)
        self._common: weakref.WeakValueDictionary[Place, Tables] = weakref.WeakValueDictionary()

    def tables(self, place: Place, source: Callable[[Leaf], Any]) -> Tables:
        """The tables of a place. They are shared among users, unless they are computed from constants.

        Args:
            place: the place.
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
        made = inspect.unwrap(self.function).__globals__[TABLES_NAME](like, *sources, *place.sizes)
        self._backend.synchronize(place.device, *made)
        return Tables(made)

    def bound(self, place: Place) -> Callable[..., Any]:
        """The function of inputs and parameters alone, with its constants and tables at a place."""

        def source(leaf: Leaf) -> Any:
            return constant_array(leaf, self._backend, place.dtype, place.device)

        more = [*map(source, self.plan.constants), *self.tables(place, source)]
        return lambda *given: self.function(*given, *more)


def constant_array(leaf: Leaf, backend: Backend, dtype: str, device: str | None) -> Any:
    """The array of a constant; a floating one in float32, or in float64 if the working type has that precision."""
    assert leaf.value is not None
    array = leaf.value.array()
    wide = "float64" if real_type(dtype) == "float64" else "float32"
    return backend.asarray(array.copy(), wide if array.dtype.kind == "f" else None, device)
