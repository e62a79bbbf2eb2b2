"""The executable: checks arguments, plans when it first sees sizes, then calls the generated function."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from types import MappingProxyType
from typing import Any, NamedTuple

from ..codegen.function import LoadedProgram, Place, Tables, arguments_around, constant_array, has_dropout
from ..codegen.program import check_tuning, planned, written
from ..codegen.rematerialization import can_rematerialize
from ..device.calibration import profile_of
from ..device.cost_model import DeviceProfile, keep_freed
from ..dtypes import WORKING, real_type
from ..errors import ArgumentError, BackendError, DtypeError, ShapeError, TensornetError, near
from ..graph.argument_shapes import sizes_from_shapes
from ..graph.element_types import holding, of_dtype
from ..graph.graph import Graph
from ..graph.leaves import Leaf
from ..graph.shape_inference import scope_of
from ..language.equation import locate
from ..ops.table import FUNCTIONS, Element
from ..planning.plan_cache import Occasion
from ..planning.planner import whole_sizes
from ..planning.plans import Plan
from ..protocol import Backend, backend_of, is_offered, load_backend
from ..sizes import evaluate

SHAPES, PLANS = 4096, 256
"""The number of kinds of arguments, and of plans, that are remembered before all are forgotten."""

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
def _made(asked: Occasion, backend: Backend, functions: tuple[tuple[str, int], ...]) -> LoadedProgram:
    """The plan and its function, built once for all modules and compiled functions with the same request.

    A plan that another process stored is used unchanged, and its code is generated again. `functions` are the user's
    own, by identity, since a callable need not be hashable: a program keeps them alive.
    """
    found = asked.recall()
    if found is not None:
        return LoadedProgram(written(found, backend, asked.around), backend)
    names = ("device", "dtype", "profile", "memory_limit", "around", "closed", "tune", "changing")
    found = planned(asked.graph, asked.hints, backend, **{name: getattr(asked, name) for name in names})
    asked.keep(found)
    return LoadedProgram(found, backend)


def about_as_long(sizes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Sizes rounded to powers of two: those that round to the same share a plan."""
    return tuple((name, round(math.log2(max(1, size)))) for name, size in sorted(sizes.items()))


@dataclass(eq=False, repr=False)
class Executable:
    """A graph on a backend, called as `f(parameters, *inputs)`; created by `tensornet.compile`.

    An executable that holds its parameters is called as `f(*inputs)`. The first call plans at the
    sizes it sees. A call at sizes within a factor of about two runs the same function. A call at
    other sizes plans again, so that a plan for a large batch does not serve a small one. Every call
    looks at its arguments: arrays of a new kind, by shape, element type, library and device, are
    checked. An executable can be pickled; after loading, it plans again.
    """

    graph: Graph
    backend: Backend
    _: KW_ONLY
    device: str | None = None
    dtype: str | None = None
    memory_limit: int | None = None
    params: Mapping[str, Any] | None = None
    plan_at: Mapping[str, int] = field(default_factory=dict)
    around: frozenset[str] | None = None
    tune: str | None = None
    backward: str = "planned"
    jit: bool = False
    profile: DeviceProfile | None = None

    def __post_init__(self) -> None:
        check_tuning(self.tune)
        check_backward(self.backward)
        keep_freed()
        self._at_any_sizes = graph = self.graph
        self.plan_at = whole_sizes(graph, self.plan_at)
        self.leaves = [*graph.inputs, *graph.parameters, *graph.constants]
        self.scopes: tuple[str, ...] = ()
        if self.around is not None:
            taken, self.scopes = arguments_around(graph, self.around)
            self.leaves = [leaf for leaf in self.leaves if leaf.name in taken]
        self._inputs = [leaf.name for leaf in graph.inputs]
        self._parameters = [leaf.name for leaf in graph.parameters]
        self._held = None if self.params is None else [self.params[name] for name in self._parameters]
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
        settings = {each.name: getattr(self, each.name) for each in fields(self)}
        return settings | {"backend": name if is_offered(name) else self.backend}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**{**state, "backend": load_backend(state["backend"])})  # type: ignore[misc]

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
        place = device or self.device or self.backend.device(), dtype or self.dtype or "float32"
        if shapes is not None:
            told = sizes_from_shapes(self._at_any_sizes, self._at_any_sizes.inputs, shapes)
            self._at_any_sizes.check_at(told)
            self.planned(told, *place)
        program, sizes = self._last or (self.planned(self.plan_at, *place), self.plan_at)
        if closed and (program.plan.sizes_once or program.plan.goes_back):
            seen = {leaf.name: leaf.holds for leaf in program.plan.graph.leaves if leaf.holds is not None}
            program = self.planned(sizes, *place, seen, closed=True)
        return program

    def __call__(self, *arguments: Any, training: bool = False, **named: Any) -> Any:
        """Runs the graph.

        Args:
            *arguments: the parameters, name to array as `tensornet.init` returns them, unless they
                are held; then the inputs, in order.
            training: whether dropout is active.

        Raises:
            ShapeError: an array has the wrong shape, one is missing, or there is one too many.
            ArgumentError: an input is given by its name.
            DtypeError: the arrays have two floating types.
            BackendError: an array belongs to another library or device.
        """
        return self.run(self.arrays(*arguments, **named), training)

    def arrays(self, *arguments: Any, **named: Any) -> list[Any]:
        """The inputs and parameters of a call, in order."""
        held = self._held
        if named or len(arguments) != len(self._inputs) + (held is None):
            raise wrong_count(self._inputs, len(arguments), held is None, named)
        if held is not None:
            return [*arguments, *held]
        parameters, *inputs = arguments
        if hasattr(parameters, "keys") and len(parameters) == len(self._parameters):
            try:
                return [*inputs, *[parameters[name] for name in self._parameters]]
            except KeyError:
                pass
        raise wrong_names(self.graph, parameters)

    def run(self, arrays: Sequence[Any], training: bool = False) -> Any:
        """Runs the graph on inputs and parameters, in order."""
        ready = self.ready(arrays)
        if ready.more:
            tables = self.tables(ready.program, ready.place) if ready.tables is None else ready.tables
            arrays = [*arrays, *ready.constants, *tables]
        if self.takes_training:
            return ready.function(*arrays, training=training)
        return ready.function(*arrays)

    def ready(self, arrays: Sequence[Any]) -> Ready:
        """The program for arrays of this kind, with the constants and tables on their device."""
        try:
            found: Ready | None = self.calls.get(arrays)
        except (AttributeError, RuntimeError):  # a nested tensor raises the latter
            raise not_an_array(self.leaves, arrays, self.backend) from None
        if found is None:
            found = self._prepare(arrays)
            self.calls.put(arrays, found)
        return found

    def program_graph(
        self, sizes: Mapping[str, int], device: str, dtype: str, profile: DeviceProfile
    ) -> Graph:
        """The graph that is planned for some sizes."""
        return self.graph

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
        about = device, dtype, tuple(seen.values()), about_as_long(sizes), closed, changing
        found = self._by_size.get(about)
        if found is None:
            if len(self._by_size) >= PLANS:
                self._by_size.clear()
            profile = self.profile or profile_of(self.backend, device, dtype)
            graph = self.program_graph(sizes, device, dtype, profile)
            hints = {name: max(1, sizes[name]) for name in graph.open_sizes if name in sizes}
            place = self.backend.name, device, dtype, self.memory_limit, about_as_long(hints), profile
            how = self.around, closed, self.tune, changing
            occasion = Occasion(holding(graph, seen), *place, *how, hints)
            own = ((row.name, *each) for row in FUNCTIONS.values() for each in row.implementations)
            functions = tuple((name, id(each)) for name, on, each in own if on == self.backend.name)
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
        at, read = (place.device, place.dtype), program.plan.constants
        found = {(leaf.name, *at): self._constant(leaf, place) for leaf in read}
        self._constants.update(found)
        return tuple(found.values())

    def _prepare(self, arrays: Sequence[Any]) -> Ready:
        """Checks arrays of a new kind and finds the program for them."""
        backend, names = self.backend, [leaf.name for leaf in self.leaves]
        check_arrays(names, arrays, backend)
        graph = self._at_any_sizes
        sizes = sizes_from_shapes(graph, self.leaves, [tuple(array.shape) for array in arrays])
        graph.check_at(sizes)
        if 0 in sizes.values():
            check_choices(graph, sizes)
        dtypes = {name: backend.dtype(array) for name, array in zip(names, arrays, strict=False)}
        autocasts = bool(arrays) and backend.autocasts(arrays[0])
        if not autocasts:
            check_dtypes(dtypes, backend)
        working = self._working_dtype([*dtypes.values()])
        device = backend.device(arrays[0]) if arrays else backend.device()
        seen = {name: of_dtype(dtype, working) for name, dtype in dtypes.items()}
        changing = frozenset[str]() if autocasts else self._changing(arrays)
        asked = sizes, self.device or device, self.dtype or working, seen
        program = self.planned(*asked, changing=changing)
        if not set(program.plan.sizes_once) <= set(sizes):  # no array gives one of them
            program = self.planned(*asked, closed=True, changing=changing)
        return self._ready_at(
            program, Place(device, working, tuple(sizes[name] for name in program.plan.sizes_once))
        )

    def _ready_at(self, program: LoadedProgram, place: Place) -> Ready:
        """A program with its constants and tables at a place."""
        constants = self._constants_on(program, place)
        tables = None if place.sizes else self.tables(program, place)
        more = bool(constants or tables is None or tables or self.scopes)
        return Ready(
            program.as_one if self.jit else program.function, more, program, place, constants, tables
        )

    def _changing(self, arrays: Sequence[Any]) -> frozenset[str]:
        """The leaves with planned gradients.

        None of them if plans are tuned, or limited in memory without blocks that can be computed again.
        """
        bounded = self.memory_limit is not None and not can_rematerialize(self._at_any_sizes)
        asked = self.backward == "planned" and self.tune is None and not bounded
        return frozenset(self.leaves[n].name for n in (self.backend.changing(arrays) if asked else ()))

    def _working_dtype(self, dtypes: list[str]) -> str:
        """The floating type of arrays, or of the parameters if they differ; a complex type takes precedence."""
        ranked = dtypes[len(self._inputs) :] + dtypes[: len(self._inputs)]
        found = [dtype for kind in ("complex", "float") for dtype in ranked if kind in dtype]
        return found[0] if found else self.dtype or self._dtype_of_constants

    @functools.cached_property
    def _dtype_of_constants(self) -> str:
        """The widest floating type among the constants, as the backend has it: frozen parameters keep theirs."""
        values = (each.value.array() for each in self._at_any_sizes.constants if each.value is not None)
        first = (value.reshape(-1)[:1] for value in values if value.dtype.kind == "f")
        found = {self.backend.dtype(self.backend.asarray(each.copy(), None, self.device)) for each in first}
        return "float64" if "float64" in found else "float32"


# ---------------------------------------------------------------------------- checks of arguments


def check_backward(backward: str) -> None:
    """Raises an error if a way of computing gradients is unknown."""
    if backward not in ("planned", "autograd"):
        raise BackendError(f"there is no backward={backward!r}", fix="use 'planned' or 'autograd'")


def wrong_names(graph: Graph, given: Any) -> ShapeError:
    """The error for parameters that are not those of the graph."""
    known = [leaf.name for leaf in graph.parameters]
    if not hasattr(given, "keys"):
        inputs = "".join(f", {leaf.name}" for leaf in graph.inputs)
        fix = f"call f(parameters{inputs}), or hold them: tensornet.compile(graph, params=…)"
        return ShapeError(
            f"the parameters are a {type(given).__name__}, not a dictionary of arrays by name", fix=fix
        )
    missing = [name for name in known if name not in given]
    unknown = [str(name) for name in given if name not in known]
    parts = []
    for names, what in ((missing, "missing"), (unknown, "unknown")):
        one, quoted = len(names) == 1, _few([f"'{name}'" for name in names])
        parts += (
            [f"the parameter{'' if one else 's'} {quoted} {'is' if one else 'are'} {what}"] if names else []
        )
    hint = near(unknown[0], missing or known) if unknown else ""
    return ShapeError("; ".join(parts), fix=f"{hint}the graph has {_few(known)}")


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:6]) or "no parameters"
    return f"{shown}, … ({len(names)})" if len(names) > 6 else shown


def wrong_count(
    inputs: Sequence[str], count: int, takes_parameters: bool, named: Iterable[str] = ()
) -> TensornetError:
    """The error for a call with another number of arguments than a function takes, or with arguments by name."""
    called = ", ".join([*["parameters"] * takes_parameters, *inputs])
    for name in named:
        return ArgumentError(f"the function takes no argument by name, as {name}=", fix=f"call f({called})")
    message = f"the function takes {len(inputs)} input(s) ({', '.join(inputs)}), not {max(0, count - takes_parameters)}"
    return ShapeError(message, fix=f"call f({called})")


def not_an_array(leaves: Sequence[Leaf], arrays: Sequence[Any], backend: Backend) -> BackendError:
    """The error for an argument that has no shape, or belongs to another library."""
    for leaf, array in zip(leaves, arrays, strict=False):
        with contextlib.suppress(RuntimeError):  # from a nested tensor
            if hasattr(array, "shape"):
                continue
        is_nested = getattr(array, "is_nested", False)
        kind = f"nested {type(array).__name__}" if is_nested else type(array).__name__
        what = f"'{leaf.name}' is a {kind}, not an array of {backend.name}"
        return BackendError(what, fix="pad its parts to one length" if is_nested else "pass arrays")
    check_arrays([leaf.name for leaf in leaves], arrays, backend)
    raise AssertionError(f"arrays of {backend.name} that are none")


def check_arrays(names: Sequence[str], arrays: Sequence[Any], backend: Backend) -> None:
    """Raises an error for arrays of another library, or on two devices; a scalar on the processor goes with any."""
    first = None
    for name, array in zip(names, arrays, strict=False):
        found = backend_of(array)
        if found.name != backend.name:
            raise BackendError(
                f"'{name}' is an array of {found.name}, and the graph is compiled for {backend.name}",
                fix=f"tensornet.to_backend(arrays, '{backend.name}'), or compile for {found.name}",
            )
        if found.name == "numpy" and getattr(array, "__array_priority__", 0) > 0:  # a matrix, a masked array
            what = f"'{name}' is a {type(array).__name__}, with an arithmetic of its own"
            raise BackendError(what, fix="pass numpy.asarray(…) of it")
    for name, array in zip(names, arrays, strict=False):
        device = backend.device(array)
        if device != "cpu" or array.ndim:
            first = first or (name, device)
            if device != first[1]:
                raise BackendError(
                    f"'{name}' is on {device}, and '{first[0]}' on {first[1]}",
                    fix=f"tensornet.to_backend(arrays, '{backend.name}', device=…) moves arrays",
                )


def check_choices(graph: Graph, sizes: Mapping[str, int]) -> None:
    """Raises an error if a function such as the maximum runs over an axis without positions."""
    for part in graph.parts:
        known = {**graph.bound, **sizes, **part.bound}
        found = (each for equation in part.own for each in equation.called)
        for call in (each for each in found if FUNCTIONS[each.function].needs_position):
            scope = scope_of(call.arguments[0], part.named, part.unify, part.bound)
            for axis in FUNCTIONS[call.function].runs_over(call.axes):
                if evaluate(scope[axis], known) == 0:
                    raise ShapeError(
                        f"axis '{axis}' has no positions, and {call.function} takes one of them",
                        locate(call.place, axis),
                        f"pass arrays with at least one position along '{axis}'",
                    )


def check_dtypes(dtypes: Mapping[str, str], backend: Backend) -> None:
    """Raises an error unless all floating types are of one precision; integers and truth values may be mixed in."""
    for name, dtype in dtypes.items():
        if dtype not in WORKING and not dtype.startswith(("int", "uint", "bool")):  # qint8 is quantized
            is_number = dtype.startswith((">", "float", "complex"))  # > is the other order of bytes
            fix = (
                f"convert it to one of {', '.join(WORKING)}" if is_number else "give numbers or truth values"
            )
            raise DtypeError(f"'{name}' holds {dtype}", fix=fix)
    floating = {name: dtype for name, dtype in dtypes.items() if "float" in dtype or "complex" in dtype}
    for (one, first), (other, second) in itertools.pairwise(floating.items()):
        if real_type(first) != real_type(second):
            moved = f", module.to(torch.{first})" if backend.name == "torch" else ""
            raise DtypeError(
                f"'{one}' is {first} and '{other}' is {second}: numbers are all of one floating type",
                fix=f"tensornet.to_backend(params, '{backend.name}', dtype='{first}'){moved}, or convert '{one}'",
            )
