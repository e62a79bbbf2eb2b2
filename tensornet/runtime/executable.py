"""The executable: plans when it first sees sizes, then calls the generated function."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from ..codegen.function import arguments_around, has_dropout
from ..codegen.loading import LoadedProgram, Place, Tables, constant_array
from ..codegen.program import planned, written
from ..codegen.rematerialization import can_rematerialize
from ..codegen.tuning import check_tuning
from ..device.calibration import profile_of
from ..device.cost_model import DeviceProfile
from ..device.heap import keep_freed
from ..display import Memory, in_bytes
from ..errors import BackendError, ShapeError
from ..graph.argument_shapes import sizes_from_shapes
from ..graph.element_types import holding, of_dtype
from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..ops.table import FUNCTIONS, Element
from ..planning.plan_cache import Occasion
from ..planning.planner import whole_sizes
from ..planning.plans import Plan
from ..protocol import Backend, backend_of, is_offered, load_backend
from .arguments import check_backward, check_choices, check_dtypes, wrong_names

__all__ = ["PLANS", "SHAPES", "Executable", "Ready", "about_as_long"]

SHAPES, PLANS = 4096, 256
"""The number of kinds of arguments, and of plans, that are remembered before all are forgotten."""

_SETTINGS = (
    *("device", "dtype", "memory_limit", "params", "plan_at", "around", "tune", "backward", "jit"),
    "profile",
)
"""The arguments of an executable that are kept as they are given."""

LENGTHS = 8
"""The number of sizes at which tables are kept; the least recently used are dropped."""


class Ready(NamedTuple):
    """The program for arrays of one kind.

    Attributes:
        function: its function, or the same compiled as a whole.
        more: whether the function takes anything besides these arrays.
        constants: what it takes of the constants.
        tables: its tables; None if they depend on open sizes: the last few of these are kept elsewhere.
    """

    function: Callable[..., Any]
    more: bool
    program: LoadedProgram
    place: Place
    constants: tuple[Any, ...]
    tables: Tables | None


@functools.lru_cache(maxsize=PLANS)
def _made(occasion: Occasion, backend: Backend, functions: tuple[tuple[str, int], ...]) -> LoadedProgram:
    """The plan and its function, built once for all modules and compiled functions with the same request.

    A plan that another process stored is used unchanged, and its code is generated again.
    """
    found = occasion.recall()
    if found is not None:
        return LoadedProgram(written(found, backend, occasion.around), backend)
    found = planned(
        occasion.graph,
        occasion.hints,
        backend,
        occasion.device,
        occasion.dtype,
        occasion.profile,
        occasion.memory_limit,
        around=occasion.around,
        closed=occasion.closed,
        tune=occasion.tune,
        changing=occasion.changing,
    )
    occasion.keep(found)
    return LoadedProgram(found, backend)


def _registered(backend: str) -> Iterator[tuple[str, int]]:
    """The user's own functions on a backend at present, by identity.

    A callable need not be hashable. A program keeps its functions alive, so no other takes the same identity.
    """
    for row in FUNCTIONS.values():
        for name, function in row.implementations:
            if name == backend:
                yield row.name, id(function)


def about_as_long(sizes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Sizes rounded to powers of two: those that round to the same share a plan."""
    return tuple((name, round(math.log2(max(1, size)))) for name, size in sorted(sizes.items()))


class Executable:
    """A graph on a backend, called as `f(parameters, *inputs)`; created by `tensornet.compile`.

    An executable that holds its parameters is called as `f(*inputs)`. The first call plans at the
    sizes it sees. A call at sizes within a factor of about two runs the same function. A call at
    other sizes plans again, so that a plan for a large batch does not serve a small one. Every call
    looks at its arguments: arrays of a new kind, by shape, element type, library and device, are
    checked. An executable can be pickled; after loading, it plans again.
    """

    def __init__(
        self,
        graph: Graph,
        backend: str | Backend,
        *,
        device: str | None = None,
        dtype: str | None = None,
        memory_limit: Memory | None = None,
        params: Mapping[str, Any] | None = None,
        plan_at: Mapping[str, int] | None = None,
        around: frozenset[str] | None = None,
        tune: str | None = None,
        backward: str = "planned",
        jit: bool = False,
        profile: DeviceProfile | None = None,
    ) -> None:
        check_tuning(tune)
        check_backward(backward)
        keep_freed()
        self._tune, self._backward, self._jit, self._profile = tune, backward, jit, profile
        self.graph, self.backend, self._around = graph, load_backend(backend), around
        self.leaves = [*graph.inputs, *graph.parameters, *graph.constants]
        self.scopes: tuple[str, ...] = ()
        if around is not None:
            taken, self.scopes = arguments_around(graph, around)
            self.leaves = [leaf for leaf in self.leaves if leaf.name in taken]
        self._device, self._dtype, self._memory_limit = device, dtype, in_bytes(memory_limit)
        self._plan_at = whole_sizes(graph, {} if plan_at is None else plan_at)
        self._inputs = [leaf.name for leaf in graph.inputs]
        self._parameters = [leaf.name for leaf in graph.parameters]
        self._params = params
        self._held = None if params is None else [params[name] for name in self._parameters]
        self.calls = self.backend.call_cache(SHAPES)
        self._by_size: dict[Any, LoadedProgram] = {}
        self._constants: dict[tuple[str, str, str], Any] = {}
        self._tables: dict[tuple[LoadedProgram, Place], Tables] = {}
        self._last: tuple[LoadedProgram, Mapping[str, int]] | None = None
        self.takes_training = has_dropout(graph)

    def __repr__(self) -> str:
        return f"<Executable of {self.graph!r} on {self.backend.name}>"

    def __getstate__(self) -> dict[str, Any]:
        """The arguments of the constructor; the plans and their functions are built again."""
        name = self.backend.name
        settings = {each: getattr(self, f"_{each}") for each in _SETTINGS}
        return {"graph": self.graph, "backend": name if is_offered(name) else self.backend, **settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Executable.__init__(self, **state)

    @property
    def plan(self) -> Plan:
        """The last plan, or one for any sizes if there is none yet."""
        return self.last().plan

    def last(
        self,
        device: str | None = None,
        dtype: str | None = None,
        closed: bool = False,
        shapes: Sequence[tuple[int, ...]] | None = None,
    ) -> LoadedProgram:
        """The last plan and its function; if there is none yet, one for any sizes on this device, in this type.

        Args:
            device, dtype: the device and the element type of the arrays.
            closed: whether tensors that depend on open sizes are computed again at each call.
            shapes: the shapes of the inputs, to get the plan for them instead of the last one.
        """
        device, dtype = device or self._device or self.backend.device(), dtype or self._dtype or "float32"
        if shapes is not None:
            sizes: Mapping[str, int] = sizes_from_shapes(self.graph, self.graph.inputs, shapes)
            self.planned(sizes, device, dtype)
        program, sizes = self._last or (self.planned(self._plan_at, device, dtype), self._plan_at)
        if closed and (program.plan.sizes_once or program.plan.goes_back):
            seen = {leaf.name: leaf.holds for leaf in program.plan.graph.leaves if leaf.holds is not None}
            program = self.planned(sizes, device, dtype, seen, closed=True)
        return program

    def __call__(self, *arguments: Any, training: bool = False) -> Any:
        """Runs the graph.

        Args:
            *arguments: the parameters, name to array as `tensornet.init` returns them, unless they
                are held; then the inputs, in order.
            training: whether dropout is active.

        Raises:
            ShapeError: an array has the wrong shape, one is missing, or there is one too many.
            DtypeError: the arrays have two floating types.
            BackendError: an array belongs to another library or device.
        """
        return self.run(self.arrays(*arguments), training)

    def arrays(self, *arguments: Any) -> list[Any]:
        """The inputs and parameters of a call, in order."""
        held = self._held
        inputs = arguments[1:] if held is None else arguments
        if len(arguments) != len(self._inputs) + (held is None):
            raise self._wrong_count(len(inputs))
        return [*inputs, *(self._values(arguments[0]) if held is None else held)]

    def _wrong_count(self, count: int) -> ShapeError:
        names = ", ".join(self._inputs)
        called = ", ".join([*(["parameters"] if self._held is None else []), *self._inputs])
        return ShapeError(
            f"the function takes {len(self._inputs)} input(s) ({names}), not {count}",
            fix=f"call f({called})",
        )

    def _values(self, parameters: Mapping[str, Any]) -> list[Any]:
        """The parameters in order."""
        if hasattr(parameters, "keys") and len(parameters) == len(self._parameters):
            try:
                return [parameters[name] for name in self._parameters]
            except KeyError:
                pass
        raise wrong_names(self.graph, parameters)

    def run(self, arrays: Sequence[Any], training: bool = False) -> Any:
        """Runs the graph on inputs and parameters, in order."""
        return self.call(self.ready(arrays), arrays, training)

    def call(self, ready: Ready, arrays: Sequence[Any], training: bool = False) -> Any:
        """Runs the program for arrays of one kind on such arrays."""
        if ready.more:
            tables = ready.tables or self.tables(ready.program, ready.place)
            arrays = [*arrays, *ready.constants, *tables.arrays]
        if self.takes_training:
            return ready.function(*arrays, training=training)
        return ready.function(*arrays)

    def ready(self, arrays: Sequence[Any]) -> Ready:
        """The program for arrays of this kind, with the constants and tables on their device."""
        try:
            found: Ready | None = self.calls.get(arrays)
        except (AttributeError, RuntimeError):  # a nested tensor raises the latter
            raise self.not_arrays(arrays) from None
        if found is None:
            found = self._prepare(arrays)
            self.calls.put(arrays, found)
        return found

    def planned(
        self,
        sizes: Mapping[str, int],
        device: str,
        dtype: str,
        seen: Mapping[str, Element] = MappingProxyType({}),
        closed: bool = False,
        changing: frozenset[str] = frozenset(),
    ) -> LoadedProgram:
        """The program planned for about these sizes, and for leaves with elements of the seen kinds."""
        hints = {name: max(1, size) for name, size in sorted(sizes.items())}
        lengths = about_as_long(hints)
        about = device, dtype, tuple(seen.values()), lengths, closed, changing
        found = self._by_size.get(about)
        if found is None:
            occasion = Occasion(
                holding(self.graph, seen),
                self.backend.name,
                device,
                dtype,
                self._memory_limit,
                lengths,
                self._profile or profile_of(self.backend, device, dtype),
                self._around,
                closed,
                self._tune,
                changing,
                MappingProxyType(hints),
            )
            if len(self._by_size) >= PLANS:
                self._by_size.clear()
            functions = tuple(_registered(self.backend.name))
            found = self._by_size[about] = _made(occasion, self.backend, functions)
        if not closed:
            self._last = found, sizes
        return found

    def tables(self, program: LoadedProgram, place: Place) -> Tables:
        """The tables of a program; those of the last used sizes are kept."""
        found = self._tables.pop((program, place), None)
        if found is None:
            found = program.tables(place, lambda leaf: self._constant(leaf, place))
            while len(self._tables) >= LENGTHS:
                del self._tables[next(iter(self._tables))]
        self._tables[program, place] = found
        return found

    def _constant(self, leaf: Leaf, place: Place) -> Any:
        """The array of a constant; the existing one if it is also read at each call."""
        found = self._constants.get((leaf.name, place.device, place.dtype))
        return constant_array(leaf, self.backend, place.dtype, place.device) if found is None else found

    def _constants_on(self, program: LoadedProgram, place: Place) -> tuple[Any, ...]:
        """The constants that a program reads at each call, which stay on their device."""
        found = {
            (leaf.name, place.device, place.dtype): self._constant(leaf, place)
            for leaf in program.plan.constants
        }
        self._constants.update(found)
        return tuple(found.values())

    def _prepare(self, arrays: Sequence[Any]) -> Ready:
        """Checks arrays of a new kind and finds the program for them."""
        self._check_library(arrays)
        self._check_device(arrays)
        sizes = self.sizes(arrays)
        self.graph.check_at(sizes)
        if 0 in sizes.values():
            check_choices(self.graph, sizes)
        dtypes = {
            leaf.name: self.backend.dtype(array) for leaf, array in zip(self.leaves, arrays, strict=False)
        }
        autocasts = bool(arrays) and self.backend.autocasts(arrays[0])
        if not autocasts:
            check_dtypes(dtypes, self.backend)
        working = self._working_dtype([*dtypes.values()])
        device = self.backend.device(arrays[0]) if arrays else self.backend.device()
        seen = {name: of_dtype(dtype, working) for name, dtype in dtypes.items()}
        changing = frozenset[str]() if autocasts else self._changing(arrays)
        asked = sizes, self._device or device, self._dtype or working, seen
        program = self.planned(*asked, changing=changing)
        if not set(program.plan.sizes_once) <= set(sizes):  # no array gives one of them
            program = self.planned(*asked, closed=True, changing=changing)
        place = Place(device, working, tuple(sizes[name] for name in program.plan.sizes_once))
        return self._ready_at(program, place)

    def _ready_at(self, program: LoadedProgram, place: Place) -> Ready:
        """A program with its constants and tables at a place."""
        constants = self._constants_on(program, place)
        tables = None if place.sizes else self.tables(program, place)
        more = bool(constants or tables is None or tables.arrays or self.scopes)
        return Ready(
            program.as_one if self._jit else program.function, more, program, place, constants, tables
        )

    def _changing(self, arrays: Sequence[Any]) -> frozenset[str]:
        """The leaves with planned gradients.

        None of them if plans are tuned, or limited in memory without blocks that can be computed again.
        """
        bounded = self._memory_limit is not None and not can_rematerialize(self.graph)
        asked = self._backward == "planned" and self._tune is None and not bounded
        return frozenset(self.leaves[n].name for n in (self.backend.changing(arrays) if asked else ()))

    def _working_dtype(self, dtypes: list[str]) -> str:
        """The floating type of arrays, or of the parameters if they differ; a complex type takes precedence."""
        ranked = dtypes[len(self._inputs) :] + dtypes[: len(self._inputs)]
        found = [dtype for kind in ("complex", "float") for dtype in ranked if kind in dtype]
        return found[0] if found else self._dtype or "float32"

    def not_arrays(self, arrays: Sequence[Any]) -> BackendError:
        """The error that an argument has no shape, or belongs to another library."""
        given = list(zip(self.leaves, arrays, strict=False))
        wrong = next(((leaf.name, array) for leaf, array in given if not _has_shape(array)), None)
        if wrong is None:
            self._check_library(arrays)
            raise AssertionError(f"arrays of {self.backend.name} that are none")
        return BackendError(
            f"'{wrong[0]}' is a {type(wrong[1]).__name__}, not an array of {self.backend.name}",
            fix="pass arrays",
        )

    def _check_library(self, arrays: Sequence[Any]) -> None:
        for leaf, array in zip(self.leaves, arrays, strict=False):
            found = backend_of(array)
            if found.name != self.backend.name:
                raise BackendError(
                    f"'{leaf.name}' is an array of {found.name}, and the graph is compiled for {self.backend.name}",
                    fix=f"tensornet.to_backend(arrays, '{self.backend.name}'), or compile for {found.name}",
                )
            if (
                found.name == "numpy" and getattr(array, "__array_priority__", 0) > 0
            ):  # a matrix, a masked array
                raise BackendError(
                    f"'{leaf.name}' is a {type(array).__name__}, with an arithmetic of its own",
                    fix="pass numpy.asarray(…) of it",
                )

    def _check_device(self, arrays: Sequence[Any]) -> None:
        """Raises an error for arrays on two devices; a scalar on the processor goes with any."""
        places = [
            (leaf.name, device)
            for leaf, array in zip(self.leaves, arrays, strict=False)
            if (device := self.backend.device(array)) != "cpu" or array.ndim
        ]
        for name, device in places:
            if device != places[0][1]:
                raise BackendError(
                    f"'{name}' is on {device}, and '{places[0][0]}' on {places[0][1]}",
                    fix=f"tensornet.to_backend(arrays, '{self.backend.name}', device=…) moves arrays",
                )

    def sizes(self, arrays: Sequence[Any]) -> dict[str, int]:
        """The open sizes that follow from the shapes; checks every dimension as well."""
        return sizes_from_shapes(self.graph, self.leaves, [tuple(array.shape) for array in arrays])


def _has_shape(array: Any) -> bool:
    try:
        return hasattr(array, "shape")
    except RuntimeError:  # from a nested tensor
        return False
