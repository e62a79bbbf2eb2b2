"""A graph that runs: plans when it first sees the sizes, then calls the generated function."""

from __future__ import annotations

import importlib
import itertools
import linecache
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from .codegen import FUNCTION_NAME, has_dropout
from .device import real_type
from .elements import holding, of_dtype, of_leaves
from .errors import BackendError, DtypeError, Place, ShapeError
from .functions import FUNCTIONS, Element
from .graph import Graph, Leaf
from .planner import plan
from .protocol import Backend, load_backend
from .schedule import Plan
from .shape import dim_size
from .sizes import evaluate, solve_size

__all__ = ["Executable", "compile", "module", "to_backend"]

_numbers = itertools.count(1)


def function_of(found: Plan, backend: Backend) -> Callable[..., Any]:
    """The generated function of a plan; its source shows in tracebacks and debuggers."""
    name = f"<tensornet plan {next(_numbers)}>"
    names: dict[str, Any] = dict(backend.namespace())
    names["functions"] = {
        row.name: dict(row.implementations)[backend.name]
        for row in FUNCTIONS.values()
        if backend.name in dict(row.implementations)
    }
    linecache.cache[name] = (len(found.code), None, found.code.splitlines(keepends=True), name)
    exec(_builtin_compile(found.code, name, "exec"), names)  # our own text, made by codegen
    function: Callable[..., Any] = names[FUNCTION_NAME]
    return function


class Executable:
    """A graph on a backend, called as `f(parameters, *inputs)`; made by `tensornet.compile`.

    The first call plans at the sizes it sees. A call at sizes within a factor of two or so runs
    the same function; one far away plans again, so that a plan for a large batch does not serve
    a small one. Shapes are checked when they are seen for the first time.
    """

    def __init__(
        self,
        graph: Graph,
        backend: Backend,
        *,
        device: str | None = None,
        dtype: str | None = None,
        memory_limit: int | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        self.graph, self.backend = graph, backend
        self.leaves = [*graph.inputs, *graph.parameters, *graph.constants]
        self._device, self._dtype, self._memory_limit = device, dtype, memory_limit
        self._hints = dict(sizes or {})
        self._by_shape: dict[Any, Callable[..., Any]] = {}
        self._by_size: dict[Any, tuple[Plan, Callable[..., Any]]] = {}
        self._constants: dict[tuple[str, str], list[Any]] = {}
        self.takes_training = has_dropout(graph)

    def __repr__(self) -> str:
        return f"<Executable of {self.graph!r} on {self.backend.name}>"

    @property
    def plan(self) -> Plan:
        """The plan last made, or the one for the sizes given at `compile`."""
        if not self._by_size:
            self.planned(self._hints, self._device or self.backend.device(), self._dtype or "float32")
        return list(self._by_size.values())[-1][0]

    def __call__(self, parameters: Mapping[str, Any], *inputs: Any, training: bool = False) -> Any:
        """Runs the graph.

        Args:
            parameters: name to array, as `tensornet.init` returns them.
            *inputs: the inputs, in order.
            training: whether dropout drops.

        Raises:
            ShapeError: an array has the wrong shape, or one is missing.
            DtypeError: the arrays are of two floating types.
            BackendError: an array belongs to another library.
        """
        if len(inputs) != len(self.graph.inputs):
            names = ", ".join(leaf.name for leaf in self.graph.inputs)
            raise ShapeError(
                f"the function takes {len(self.graph.inputs)} input(s) ({names}), not {len(inputs)}"
            )
        try:
            arrays = [*inputs, *[parameters[leaf.name] for leaf in self.graph.parameters]]
        except KeyError as error:
            given = ", ".join(parameters) or "none"
            raise ShapeError(f"the parameter {error} is missing", fix=f"given: {given}") from None
        return self.run(arrays, training)

    def run(self, arrays: list[Any], training: bool = False) -> Any:
        """Runs the graph on inputs and parameters, in order."""
        function = self.function(arrays)
        arrays = arrays + self._constants_on(arrays)
        return function(*arrays, training=training) if self.takes_training else function(*arrays)

    def function(self, arrays: list[Any]) -> Callable[..., Any]:
        """The generated function for arrays of these shapes and types, checked when they are new."""
        try:
            key = (self._autocasts(arrays), *[(array.shape, array.dtype) for array in arrays])
        except AttributeError:
            raise self._not_arrays(arrays) from None
        function = self._by_shape.get(key)
        if function is None:
            function = self._by_shape[key] = self._prepare(arrays)
        return function

    def planned(
        self,
        sizes: Mapping[str, int],
        device: str,
        dtype: str,
        seen: Mapping[str, Element] = MappingProxyType({}),
    ) -> Callable[..., Any]:
        """The function planned for about these sizes, and for leaves that were seen to hold this."""
        graph = holding(self.graph, seen)
        bucket = (
            device,
            dtype,
            tuple(of_leaves(graph).values()),
            tuple((name, round(math.log2(max(1, size)))) for name, size in sorted(sizes.items())),
        )
        if bucket not in self._by_size:
            hints: dict[str, Any] = {name: max(1, size) for name, size in sizes.items()}
            found = plan(
                graph,
                backend=self.backend,
                device=device,
                dtype=dtype,
                memory_limit=self._memory_limit,
                compare=False,
                **hints,
            )
            self._by_size[bucket] = (found, function_of(found, self.backend))
        return self._by_size[bucket][1]

    def _prepare(self, arrays: Sequence[Any]) -> Callable[..., Any]:
        """Checks arrays of new shapes and finds the function for them."""
        self._check_library(arrays)
        sizes = self.sizes(arrays)
        dtypes = self._dtypes(arrays)
        if not self._autocasts(arrays):
            _check_dtypes(dtypes, self.backend)
        working = self._working_dtype(arrays)
        device = self._device or (self.backend.device(arrays[0]) if arrays else self.backend.device())
        seen = {name: of_dtype(dtype, working) for name, dtype in dtypes.items()}
        return self.planned(sizes, device, self._dtype or working, seen)

    def _autocasts(self, arrays: Sequence[Any]) -> bool:
        return bool(arrays) and self.backend.autocasts(arrays[0])

    def _dtypes(self, arrays: Sequence[Any]) -> dict[str, str]:
        """The element type of each array given, by name."""
        return {
            leaf.name: self.backend.dtype(array) for leaf, array in zip(self.leaves, arrays, strict=False)
        }

    def _working_dtype(self, arrays: Sequence[Any]) -> str:
        """The one floating type of the arrays; complex beside real is complex."""
        dtypes = list(self._dtypes(arrays).values())
        found = [dtype for kind in ("complex", "float") for dtype in dtypes if kind in dtype]
        return found[0] if found else self._dtype or "float32"

    def _constants_on(self, arrays: Sequence[Any]) -> list[Any]:
        if not self.graph.constants:
            return []
        device = self.backend.device(arrays[0]) if arrays else self.backend.device()
        dtype = self._working_dtype(arrays)
        if (device, dtype) not in self._constants:
            self._constants[device, dtype] = [
                constant_array(leaf, self.backend, dtype, device) for leaf in self.graph.constants
            ]
        return self._constants[device, dtype]

    def _not_arrays(self, arrays: Sequence[Any]) -> BackendError:
        wrong = next(
            (leaf.name, array)
            for leaf, array in zip(self.leaves, arrays, strict=False)
            if not hasattr(array, "shape")
        )
        return BackendError(
            f"'{wrong[0]}' is a {type(wrong[1]).__name__}, not an array of {self.backend.name}",
            fix="pass arrays",
        )

    def _check_library(self, arrays: Sequence[Any]) -> None:
        from .protocol import backend_of

        for leaf, array in zip(self.leaves, arrays, strict=False):
            found = backend_of(array)
            if found.name != self.backend.name:
                raise BackendError(
                    f"'{leaf.name}' is an array of {found.name}, and the graph is compiled for {self.backend.name}",
                    fix=f"tensornet.to_backend(arrays, '{self.backend.name}'), or compile for {found.name}",
                )

    def sizes(self, arrays: Sequence[Any]) -> dict[str, int]:
        """The open sizes that the shapes imply; checks every dimension on the way."""
        return sizes_from_shapes(self.graph, self.leaves, [tuple(array.shape) for array in arrays])


def sizes_from_shapes(
    graph: Graph, leaves: Sequence[Leaf], shapes: Sequence[tuple[int, ...]]
) -> dict[str, int]:
    """The open sizes implied by the shapes of the leaves.

    Raises:
        ShapeError: a shape does not fit the equations, or two of them disagree.
    """
    known: dict[str, int] = {}
    origin: dict[str, str] = {}
    dims: list[tuple[Leaf, int, Any, int]] = []
    lead: dict[str, tuple[tuple[int, ...], str]] = {}
    for leaf, shape in zip(leaves, shapes, strict=False):
        shape = _without_lead(leaf, shape, lead)
        for position, (dim, size) in enumerate(zip(leaf.dims, shape, strict=True)):
            dims.append((leaf, position, dim_size(dim), size))
    for _ in range(len(dims) + 1):
        before = len(known)
        for leaf, _position, formula, size in dims:
            solved = solve_size(evaluate(formula, {**graph.bound, **known}), size)
            if solved is not None and solved[0] not in known:
                known[solved[0]] = solved[1]
                origin[solved[0]] = leaf.name
        if len(known) == before:
            break
    for leaf, position, formula, size in dims:
        expected = evaluate(formula, {**graph.bound, **known})
        if expected != size:
            raise _wrong_size(leaf, position, expected, size, origin)
    return {name: known[name] for name in graph.open_sizes if name in known}


def _without_lead(
    leaf: Leaf, shape: tuple[int, ...], lead: dict[str, tuple[tuple[int, ...], str]]
) -> tuple[int, ...]:
    """The shape with the axes that `...` stands for made one."""
    at = next((n for n, dim in enumerate(leaf.dims) if dim and dim[0].name == "..."), None)
    if at is None:
        if len(shape) != len(leaf.dims):
            raise _wrong_rank(leaf, shape)
        return shape
    after = len(leaf.dims) - at - 1
    if len(shape) < len(leaf.dims) - 1:
        raise _wrong_rank(leaf, shape)
    leading = shape[at : len(shape) - after]
    known = lead.setdefault("...", (leading, leaf.name))
    if known[0] != leading:
        raise ShapeError(f"'...' is {known[0]} in '{known[1]}', and {leading} in '{leaf.name}'")
    return (*shape[:at], math.prod(leading), *shape[len(shape) - after :])


def _wrong_rank(leaf: Leaf, shape: tuple[int, ...]) -> ShapeError:
    text = str(leaf)
    return ShapeError(
        f"'{leaf.name}' has shape {shape}: {len(shape)} dimension(s), where the equations read {len(leaf.dims)}",
        Place(text, 1, 0, len(text.split(":")[0])),
        "pass an array with a dimension for each axis",
    )


def _wrong_size(leaf: Leaf, position: int, expected: Any, size: int, origin: Mapping[str, str]) -> ShapeError:
    names = ",".join(axis.name for axis in leaf.dims[position])
    text = f"{leaf.name}[{', '.join(','.join(axis.name for axis in dim) for dim in leaf.dims)}]"
    column = len(leaf.name) + 1 + sum(len(",".join(a.name for a in dim)) + 2 for dim in leaf.dims[:position])
    why = next((f" (as '{origin[a.name]}' has it)" for a in leaf.dims[position] if a.name in origin), "")
    return ShapeError(
        f"sizes disagree: axis '{names}' of '{leaf.name}' is {size}, and should be {expected}{why}",
        Place(text, 1, column, len(names)),
        f"pass '{leaf.name}' with {expected} positions along dimension {position}",
    )


def _check_dtypes(dtypes: Mapping[str, str], backend: Backend) -> None:
    """All numbers are of one precision; integers and truth values may stand beside them."""
    floating = {name: dtype for name, dtype in dtypes.items() if "float" in dtype or "complex" in dtype}
    for (one, first), (other, second) in itertools.pairwise(floating.items()):
        if real_type(first) != real_type(second):
            raise DtypeError(
                f"'{one}' is {first} and '{other}' is {second}: numbers are all of one floating type",
                fix=f"tensornet.to_backend(params, '{backend.name}', dtype='{first}'), or convert '{one}'",
            )


def constant_array(leaf: Leaf, backend: Backend, dtype: str, device: str | None) -> Any:
    """The value of a constant; floating ones in float32, or in float64 where the working type is."""
    assert leaf.value is not None
    array = leaf.value.array()
    wide = "float64" if real_type(dtype) == "float64" else "float32"
    return backend.asarray(array.copy(), wide if array.dtype.kind == "f" else None, device)


_builtin_compile = compile  # the name is taken below


def compile(
    graph: Graph,
    *,
    backend: str | Backend = "numpy",
    device: str | None = None,
    dtype: str | None = None,
    memory_limit: int | None = None,
    **sizes: int,
) -> Executable:
    """Makes a function of a graph, called as `f(parameters, *inputs)`.

    Args:
        graph: a layer or a model.
        backend: "numpy", "torch" or "cupy"; the arrays must be of that library.
        device: where to plan for; that of the arrays if not given.
        dtype: the element type to plan for; that of the arrays if not given.
        memory_limit: bytes that may be alive at once.
        **sizes: values for open sizes; what is left out is read from the arrays.

    Raises:
        BackendError: there is no such backend.
        ShapeError: a size is given that is not open.

    Example:
        >>> import numpy as np, tensornet as tn
        >>> f = tn.compile(tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x"), backend="numpy")
        >>> f({"W": np.eye(2)}, np.array([[1.0, 2.0]]))
        array([[1., 2.]])
    """
    chosen = load_backend(backend)
    chosen.namespace()
    if sizes:
        graph = graph.bind(**sizes)
    return Executable(graph, chosen, device=device, dtype=dtype, memory_limit=memory_limit)


def module(
    graph: Graph,
    *,
    seed: int | None = None,
    device: str | None = None,
    dtype: str = "float32",
    memory_limit: int | None = None,
    **sizes: int,
) -> Any:
    """Makes a `torch.nn.Module` of a graph; its parameters have the names of the graph's.

    Args:
        graph: a layer or a model whose parameters have known sizes.
        seed: for the initial values; fresh ones from torch's generator if not given.
        device: where the parameters live.
        dtype: the element type of the parameters.
        memory_limit: bytes that may be alive at once.
        **sizes: values of open sizes to plan at. The module takes any, and plans anew for sizes
            far away; compiled by `torch.compile` it keeps the order planned for these.

    Raises:
        BackendError: PyTorch is missing.
        ShapeError: the size of a parameter is open.

    Example:
        >>> import torch, tensornet as tn
        >>> layer = tn.module(tn.layer("y[...,o] = x[...,i] * W[o,i] + u[o]", inputs="x", i=4, o=2), seed=0)
        >>> layer(torch.ones(3, 5, 4)).shape
        torch.Size([3, 5, 2])
    """
    load_backend("torch").namespace()
    make = importlib.import_module("tensornet.backends.torch_module").make
    return make(graph, seed=seed, device=device, dtype=dtype, memory_limit=memory_limit, sizes=sizes)


def to_backend(
    arrays: Mapping[str, Any], backend: str | Backend, *, dtype: str | None = None, device: str | None = None
) -> dict[str, Any]:
    """Moves named arrays to another library; between torch and CuPy on one GPU without a copy.

    Args:
        arrays: name to array of any library.
        backend: "numpy", "torch" or "cupy".
        dtype: the element type to convert to; kept if not given.
        device: where to put them.

    Example:
        >>> import numpy as np, tensornet as tn
        >>> tn.to_backend({"W": np.zeros(2)}, "torch")["W"].dtype
        torch.float64
    """
    chosen = load_backend(backend)
    return {name: chosen.asarray(array, dtype, device) for name, array in arrays.items()}
