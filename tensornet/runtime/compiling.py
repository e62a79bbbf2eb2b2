"""Compilation of graphs to functions and modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..codegen.program import check_undivided
from ..display import Memory, in_bytes
from ..dtypes import element_type, itemsize
from ..errors import BackendError, DtypeError, TensornetError, check_arguments
from ..frontend.layers import layer
from ..graph.argument_shapes import sizes_from_shapes
from ..graph.graph import Graph, of_graph
from ..ops.record import Example
from ..protocol import Backend, backend_of, load_backend
from .executable import Executable, wrong_names

if TYPE_CHECKING:
    from ..sharding.sharded import Shard

DIGITS = 4
"""Digits shown after the decimal point."""


def fitting(
    graph: Graph, params: Mapping[str, Any], backend: Backend, dtype: str | None, device: str | None
) -> dict[str, Any]:
    """The parameters of a graph as arrays of a backend, in order.

    Raises:
        ShapeError: one is missing or unknown, or has another shape than in the graph.
    """
    names = [leaf.name for leaf in graph.parameters]
    if not hasattr(params, "keys") or set(params.keys()) != set(names):
        raise wrong_names(graph, params)
    arrays = to_backend({name: params[name] for name in names}, backend, dtype=dtype, device=device)
    sizes_from_shapes(graph, graph.parameters, [tuple(array.shape) for array in arrays.values()])
    return arrays


@of_graph
def compile(
    graph: Graph,
    /,
    *,
    backend: str | Backend = "numpy",
    device: str | None = None,
    dtype: str | None = None,
    memory_limit: Memory | None = None,
    params: Mapping[str, Any] | None = None,
    outputs: str | Sequence[str] | None = None,
    tune: str | None = None,
    backward: str = "planned",
    jit: bool = True,
    mesh: Any = None,
    shard: Shard = "auto",
    links: Mapping[str, tuple[float, float]] | None = None,
    **sizes: int,
) -> Executable:
    """Compiles a graph to a function, called as `f(parameters, *inputs)`.

    With `params` the function holds the parameters, and is called as `f(*inputs)`. Results may have any memory
    layout, like those of the libraries' `einsum`: on torch, `reshape` accepts them where `view` does not. A result that
    only moves elements of an argument, `y[b] = x[b,0]`, may share its memory; no result shares that of a constant.

    Args:
        graph: a layer or a model.
        backend: "numpy", "torch", "cupy" or "jax"; the arrays must be of that library.
        device: the device to plan for; that of the arrays if not given.
        dtype: the element type to plan for; that of the arrays if not given.
        memory_limit: bytes that may be alive at once, or a text such as "512 MiB" or "1GB". Tensors that need more
            are computed piece by piece, along an axis that allows it. On torch with gradients, it limits the bytes
            saved for the backward pass: beyond it, cheap results, calls of blocks and segments of recurrences are
            computed again there. A graph without these is computed piece by piece all the same, and its saved bytes
            come on top.
        params: name to array of any library, moved to the backend, and to `dtype` and `device` if given.
        outputs: what to compute instead of the graph's own outputs; see `Graph.select`. Several come
            as a tuple.
        tune: "measure" to time the few best candidates on the device when arrays of new sizes come, and to run
            the fastest; its choice is stored with the plans.
        backward: on torch, "planned" to plan products of three factors and more together with their gradients,
            unless they are expected to take less than 50 µs. Autograd then computes these as planned, unless a
            transform or compiler is active or the plan is tuned.
            "autograd" to leave all gradients to autograd.
        jit: on JAX, whether calls outside of its transforms are compiled as a whole, by `jax.jit`, once for each
            kind of arrays; otherwise operations run one after another.
        mesh: on JAX, a `jax.sharding.Mesh`, among whose devices the work is divided. The function then takes arrays
            of any sharding, and is compiled as a whole.
        shard, links: what is divided along which axis of the mesh, as for `tensornet.plan`.
        **sizes: values for open sizes, the only ones accepted then; a size left out is read from the arrays at
            each call.

    Raises:
        BackendError: there is no such backend.
        ShapeError: a size is given that is not open, or `params` do not fit.
        EquationError: `outputs` names what the graph does not compute.

    Example:
        >>> import numpy as np, tensornet as tn
        >>> f = tn.compile(tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x"), backend="numpy")
        >>> f({"W": np.eye(2)}, np.array([[1.0, 2.0]]))
        array([[1., 2.]])
    """
    chosen, dtype = checked_place(backend, dtype, device)
    graph = _asked_for(graph, outputs, sizes)
    held = None if params is None else fitting(graph, params, chosen, dtype, device)
    options: dict[str, Any] = {
        "dtype": dtype,
        "memory_limit": in_bytes(memory_limit),
        "params": held,
        "backward": backward,
    }
    if mesh is None:
        check_undivided(shard, links)
        return Executable(graph, chosen, device=device, tune=tune, jit=jit, **options)
    made = getattr(chosen, "sharded", None)
    if made is None:
        fix = "tensornet.module(graph, mesh=…, shard=…) on torch, or backend='jax'"
        raise BackendError(f"functions of {chosen.name} run on one device", fix=fix)
    for name, value in (("device", device), ("tune", tune)):
        if value is not None:
            what = f"{name}={value!r} is for one device, and mesh= has several"
            raise BackendError(what, fix="leave it out")
    found: Executable = made(graph, mesh=mesh, shard=shard, links=links, **options)
    return found


def checked_place(
    backend: str | Backend, dtype: str | None, device: str | None
) -> tuple[Backend, str | None]:
    """The backend, loaded, and the name of the element type. Raises an error if it lacks the device."""
    chosen = load_backend(backend)
    chosen.namespace()
    if device is not None:
        chosen.check_device(device)
    return chosen, None if dtype is None else element_type(dtype)


def _asked_for(graph: Graph, outputs: str | Sequence[str] | None, sizes: Mapping[str, int]) -> Graph:
    """The graph with the outputs and the sizes that a caller gives."""
    graph = graph if outputs is None else graph.select(outputs)
    return graph.bind(**sizes) if sizes else graph


@of_graph
def module(
    graph: Graph,
    /,
    *,
    seed: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    memory_limit: Memory | None = None,
    params: Mapping[str, Any] | None = None,
    outputs: str | Sequence[str] | None = None,
    plan_at: Mapping[str, int] | None = None,
    tune: str | None = None,
    backward: str = "planned",
    mesh: Any = None,
    shard: Shard = "auto",
    links: Mapping[str, tuple[float, float]] | None = None,
    **sizes: int,
) -> Any:
    """Builds a `torch.nn.Module` from a graph; its parameters have the names of the graph's.

    Args:
        graph: a layer or a model whose parameters have known sizes.
        seed: the seed of the initial values; they come from torch's generator if not given.
        device: the device of the parameters.
        dtype: the element type of the parameters; that of `params`, else float32, if not given.
        memory_limit: bytes, or a text, that may be alive at once, or saved for gradients, as for
            `tensornet.compile`.
        params: name to array of any library, to start from copies of these.
        outputs: what to compute instead of the graph's own outputs; see `Graph.select`. Several come
            as a tuple.
        plan_at: values of open sizes to plan at, as `{"b": 3200}`. The module takes any sizes, and plans again
            for sizes far away; compiled by `torch.compile` it keeps the order planned for these.
        tune: "measure" to time the few best candidates on the device when arrays of new sizes come, and to run
            the fastest; its choice is stored with the plans.
        backward: "planned" or "autograd", as for `tensornet.compile`.
        mesh: a `DeviceMesh` of torch with names for its axes. The module then divides its work among the devices, and
            its parameters are `DTensor`s. Each process passes the same inputs, or `DTensor`s, and gets a `DTensor`.
        shard, links: what is divided along which axis of the mesh, as for `tensornet.plan`.
        **sizes: values for open sizes, the only ones accepted then, as for `tensornet.compile`.

    Raises:
        BackendError: PyTorch is missing.
        ShapeError: the size of a parameter is open, a size is given that is not open, or `params` do not fit.
        DtypeError: `params` hold integers, which cannot be trained.
        EquationError: `outputs` names what the graph does not compute.

    Example:
        >>> import torch, tensornet as tn
        >>> layer = tn.module(tn.layer("y[...,o] = x[...,i] * W[o,i] + u[o]", inputs="x", i=4, o=2), seed=0)
        >>> layer(torch.ones(3, 5, 4)).shape
        torch.Size([3, 5, 2])
    """
    torch: Any = load_backend("torch")  # the one backend with modules of its own
    torch.namespace()
    divided = {} if mesh is None else {"mesh": mesh, "shard": shard, "links": links}
    if mesh is None:
        check_undivided(shard, links)
    return torch.module(
        _asked_for(graph, outputs, sizes),
        **divided,
        seed=seed,
        device=device,
        dtype=dtype,
        memory_limit=memory_limit,
        params=params,
        plan_at=plan_at,
        tune=tune,
        backward=backward,
    )


@check_arguments
def to_backend(
    arrays: Mapping[str, Any], backend: str | Backend, *, dtype: str | None = None, device: str | None = None
) -> dict[str, Any]:
    """Moves named arrays to another library; between torch and CuPy on one GPU without a copy.

    Args:
        arrays: name to array of any library.
        backend: "numpy", "torch", "cupy" or "jax".
        dtype: the element type to convert to. If not given, types are kept, unless the library lacks them:
            bfloat16 becomes float32 on NumPy and CuPy.
        device: the device to move them to.

    Raises:
        BackendError: there is no such backend, device or element type.
        DtypeError: the arrays have no names, one does not hold numbers, or one holds numbers that overflow `dtype`.

    Example:
        >>> import numpy as np, tensornet as tn
        >>> tn.to_backend({"W": np.zeros(2)}, "torch")["W"].dtype
        torch.float64
    """
    chosen = load_backend(backend)
    if not isinstance(arrays, Mapping):
        fix = 'give a dictionary, {"W": array}'
        raise DtypeError(
            f"the arrays are a {type(arrays).__name__}, not a dictionary of arrays by name", fix=fix
        )
    if device is not None:
        chosen.check_device(str(device))
    kind = None if dtype is None else element_type(dtype, exact=True)
    return {name: _moved(name, array, chosen, kind, device) for name, array in arrays.items()}


def _moved(name: str, array: Any, backend: Backend, dtype: str | None, device: str | None) -> Any:
    """An array, or a value that can become one, moved to a backend.

    Raises:
        DtypeError: it is no array of numbers, or holds one that overflows the element type.
    """
    import numpy

    try:
        with numpy.errstate(over="ignore"):
            made = backend.asarray(array, dtype, device)
            lost = _overflows(array, dtype)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        if isinstance(error, TensornetError):
            raise
        what = f"'{name}' is a {type(array).__name__} that {backend.name} cannot convert to numbers: {error}"
        raise DtypeError(what, fix="give numbers, as numpy.asarray(…)") from None
    if lost:
        what = f"'{name}' holds numbers that overflow {dtype}"
        raise DtypeError(what, fix="choose a wider dtype, or scale them down")
    return made


def _overflows(array: Any, dtype: str | None) -> bool:
    """Whether finite numbers are infinite in a shorter type; bfloat16 has about the range of float32."""
    given = str(getattr(array, "dtype", "")).removeprefix("torch.")
    has_values = str(getattr(array, "device", "")) != "meta"
    if not has_values or dtype not in ("float16", "bfloat16", "float32"):
        return False
    if dtype != "float16" and itemsize(given) <= itemsize(dtype):
        return False
    held = backend_of(array).numpy(array)
    found = held.astype("float32" if dtype == "bfloat16" else dtype)
    return bool((abs(found) == float("inf")).sum() > (abs(held) == float("inf")).sum())


def result_of(example: Example) -> str:
    """The result of an example on NumPy, as Python prints it: nested lists of rounded numbers."""
    import numpy

    sizes: dict[str, Any] = {name: value for name, value in example.given if isinstance(value, int)}
    arrays: dict[str, Any] = {name: numpy.array(value) for name, value in example.given if name not in sizes}
    graph = layer(example.equation, inputs=list(arrays), **sizes)
    found = numpy.asarray(compile(graph)({}, *arrays.values()))
    return str((found.round(DIGITS) if found.dtype == float else found).tolist())
