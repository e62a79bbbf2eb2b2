"""Value and gradients of a loss, on any backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..autodiff.joint import JointGraph
from ..codegen.program import planned
from ..device.calibration import profile_of
from ..display import Memory, in_bytes
from ..dtypes import element_type
from ..errors import DtypeError
from ..frontend.composition import with_loss
from ..graph.argument_shapes import sizes_from_shapes
from ..graph.graph import Graph, of_graph
from ..planning.gradients import joint_graph, leaves_of, rematerialized_to_fit
from ..planning.plans import Plan
from ..protocol import Backend, load_backend
from .compiling import compile
from .executable import PLANS, SHAPES, Executable, Ready, about_as_long

__all__ = ["ValueAndGrad", "value_and_grad"]


class _Prepared(NamedTuple):
    """What runs for arrays of one kind, and whether autograd records some of these."""

    executable: Executable
    ready: Ready
    is_recorded: bool


class ValueAndGrad:
    """A loss with its gradients, called as `f(parameters, *inputs)`; created by `tensornet.value_and_grad`.

    Attributes:
        wrt: the leaves whose gradients are computed, in order.
        backend: the library whose arrays it takes.
    """

    def __init__(
        self, graph: Graph, wrt: tuple[str, ...], backend: Backend, options: Mapping[str, Any]
    ) -> None:
        self.wrt, self.backend = wrt, backend
        self._whole, self._options = graph, dict(options)
        self._calls = backend.call_cache(SHAPES)
        self._by_size: dict[Any, Executable] = {}
        self._executable = self._at({})

    def __repr__(self) -> str:
        named = ", ".join(self.wrt[:6])
        return f"<ValueAndGrad of {self._whole.outputs[0]} by {named}, on {self.backend.name}>"

    @property
    def graph(self) -> Graph:
        """The graph that ran last, of the loss and then the gradients."""
        return self._executable.graph

    @property
    def plan(self) -> Plan:
        """The last plan, of the forward and the backward pass in one."""
        return self._executable.plan

    def _at(self, sizes: Mapping[str, int], dtype: str = "float32") -> Executable:
        """The function for about these sizes; if any are given, products are split into pairs for them.

        The sizes count exactly where recurrences may run in segments of a fixed length."""
        bounded = self._options["memory_limit"] is not None
        exact = bounded and any(part.recurrences for part in self._whole.parts())
        lengths = (tuple(sorted(sizes.items())) if exact else about_as_long(sizes)), dtype
        found = self._by_size.get(lengths)
        if found is None:
            if len(self._by_size) >= PLANS:
                self._by_size.clear()
            joint = self._joint(sizes, dtype) if sizes else joint_graph(self._whole, self.wrt)
            graph = joint.joined(self._whole.outputs)
            found = self._by_size[lengths] = compile(graph, backend=self.backend, **self._options)
        return found

    def _joint(self, sizes: Mapping[str, int], dtype: str) -> JointGraph:
        """Both passes, as they are expected to be fastest at these sizes within the memory limit."""
        dtype = element_type(self._options["dtype"] or dtype)
        device = self._options["device"] or self.backend.device()
        profile = profile_of(self.backend, device, dtype)

        def peak(joint: JointGraph) -> int:
            graph = joint.joined(self._whole.outputs)
            at = {name: sizes[name] for name in graph.open_sizes}
            return planned(graph, at, self.backend, device, dtype, profile).peak_memory

        limit = self._options["memory_limit"]
        return rematerialized_to_fit(limit, self._whole, self.wrt, profile, dtype, sizes, peak)

    def _prepare(self, arrays: Sequence[Any]) -> _Prepared:
        """The function for inputs and parameters of a new kind, which are checked to have gradients."""
        leaves = [*self._whole.inputs, *self._whole.parameters]
        self._check_real({leaf.name: array for leaf, array in zip(leaves, arrays, strict=True)})
        shapes = [tuple(array.shape) for array in arrays]
        dtype = next((each for each in map(_dtype, arrays) if "float" in each), "float32")
        executable = self._at(sizes_from_shapes(self._whole, leaves, shapes), dtype)
        is_recorded = any(getattr(array, "requires_grad", False) for array in arrays)
        found = _Prepared(executable, executable.ready([*map(_apart, arrays)]), is_recorded)
        self._calls.put(arrays, found)
        return found

    def __call__(
        self, parameters: Mapping[str, Any], *inputs: Any, training: bool = True
    ) -> tuple[Any, dict[str, Any]]:
        """Computes the loss and the gradients.

        Args:
            parameters: name to array, as `tensornet.init` returns them.
            *inputs: the inputs, in order: those of the graph, then those of the loss.
            training: whether dropout is active.

        Returns:
            The loss, and name to gradient.

        Raises:
            ShapeError, DtypeError, BackendError: as an `Executable` does.
        """
        arrays = self._executable.arrays(parameters, *inputs)
        try:
            found: _Prepared | None = self._calls.get(arrays)
        except (AttributeError, RuntimeError):
            self._executable.ready(arrays)  # says which is no array
            raise
        executable, ready, is_recorded = found or self._prepare(arrays)
        self._executable = executable
        results = executable.call(ready, [*map(_apart, arrays)] if is_recorded else arrays, training)
        value, *gradients = map(_apart, results)  # in `torch.no_grad()`, one may be an array that records
        return value, dict(zip(self.wrt, gradients, strict=True))

    def _check_real(self, arrays: Mapping[str, Any]) -> None:
        """Raises an error for gradients by integers or truth values, and for complex numbers."""
        for name, array in arrays.items():
            dtype = _dtype(array)
            if "complex" in dtype or (name in self.wrt and ("int" in dtype or "bool" in dtype)):
                what = "gradients need real numbers" if "complex" in dtype else "has no gradient"
                fix = f"convert '{name}' to a floating type, or leave it out of wrt=…"
                raise DtypeError(f"'{name}' is {dtype}, and {what}", fix=fix)


def _dtype(array: Any) -> str:
    return str(getattr(array, "dtype", "")).removeprefix("torch.")


def _apart(array: Any) -> Any:
    """The array; on torch, detached from autograd."""
    return array.detach() if getattr(array, "requires_grad", False) else array


@of_graph
def value_and_grad(
    graph: Graph,
    /,
    *,
    loss: Graph | str | None = None,
    wrt: str | Sequence[str] | None = None,
    backend: str | Backend = "numpy",
    device: str | None = None,
    dtype: str | None = None,
    memory_limit: Memory | None = None,
    tune: str | None = None,
    jit: bool = True,
    **sizes: int,
) -> ValueAndGrad:
    """Compiles a loss and its gradients to a function, `f(parameters, *inputs) -> (value, gradients)`.

    The forward and the backward pass are one program of equations, planned together. No autograd is needed, so a
    model trains on NumPy and on CuPy as on torch.

    Args:
        graph: a layer or a model.
        loss: a graph of the results of `graph` and of further inputs, such as the labels, which then follow the
            inputs of `graph`; or the name of a scalar that `graph` computes; not needed if that is its only
            result.
        wrt: the parameters and inputs whose gradients are required, as in `tensornet.gradient`; all parameters
            if not given.
        backend, device, dtype, tune, jit, **sizes: as for `tensornet.compile`.
        memory_limit: bytes that may be alive at once, as for `tensornet.plan`. If needed, calls of blocks are
            recomputed in the backward pass, and only their operands are saved. Recurrences are recomputed in
            segments, and the first state of each is saved. Blocks and recurrences with dropout are not recomputed.

    Raises:
        EquationError: the loss is no scalar, a name is unknown, or a function has no derivative.
        ShapeError: the loss does not fit the results.
        BackendError: there is no such backend.

    Example:
        >>> import numpy as np, tensornet as tn
        >>> line = tn.layer("y[b] = w * x[b] + u", inputs="x")
        >>> square = tn.layer("loss = mean[b]((y[b] - t[b]) ** 2)", inputs="y[b], t[b]")
        >>> step = tn.value_and_grad(line, loss=square)
        >>> value, gradients = step({"w": np.array(1.0), "u": np.array(0.0)}, np.array([1.0, 2.0]), np.zeros(2))
        >>> float(value), {name: float(each) for name, each in gradients.items()}
        (2.5, {'w': 5.0, 'u': 3.0})
    """
    whole = with_loss(graph, loss)
    whole = whole.bind(**sizes) if sizes else whole
    leaves = leaves_of(whole, wrt)
    options = {
        "device": device,
        "dtype": dtype,
        "memory_limit": in_bytes(memory_limit),
        "tune": tune,
        "jit": jit,
    }
    return ValueAndGrad(whole, leaves, load_backend(backend), options)
