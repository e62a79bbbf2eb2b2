"""Value and gradients of a loss, on any backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..autodiff.vjp import JointGraph
from ..codegen.function import LoadedProgram
from ..codegen.program import planned
from ..device.cost_model import DeviceProfile
from ..display import Memory, in_bytes
from ..dtypes import element_type
from ..errors import DtypeError
from ..frontend.composition import with_loss
from ..graph.graph import Graph, of_graph
from ..planning.gradients import joint_graph, leaves_of, rematerialized_to_fit
from ..protocol import Backend
from .compiling import checked_place
from .executable import Executable, Ready


@dataclass(eq=False, repr=False)
class ValueAndGrad(Executable):
    """A loss with its gradients, called as `f(parameters, *inputs)`; created by `tensornet.value_and_grad`.

    Attributes:
        graph: the graph of the last plan, of the loss and then the gradients.
        wrt: the leaves whose gradients are computed, in order.
        backend: the library whose arrays it takes.
    """

    wrt: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._whole, self.graph = self.graph, joint_graph(self.graph, self.wrt).joined(self.graph.outputs)
        super().__post_init__()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "graph": self._whole}

    def __repr__(self) -> str:
        named = ", ".join(self.wrt[:6])
        return f"<ValueAndGrad of {self._whole.outputs[0]} by {named}, on {self.backend.name}>"

    def program_graph(
        self, sizes: Mapping[str, int], device: str, dtype: str, profile: DeviceProfile
    ) -> Graph:
        """Both passes, as they are expected to be fastest at these sizes within the memory limit."""

        def peak(joint: JointGraph) -> int:
            graph = joint.joined(self._whole.outputs)
            at = {name: max(1, sizes[name]) for name in graph.open_sizes if name in sizes}
            return planned(graph, at, self.backend, device, dtype, profile).peak_memory

        if not sizes:
            return self._at_any_sizes
        of = self._whole, self.wrt, profile, element_type(dtype)
        return rematerialized_to_fit(self.memory_limit, *of, sizes, peak).joined(self._whole.outputs)

    def planned(self, *asked: Any, **options: Any) -> LoadedProgram:
        """The program planned for some sizes. The graph is that of the last plan."""
        found = super().planned(*asked, **options)
        self.graph = found.plan.graph
        return found

    def __call__(self, *arguments: Any, training: bool = True, **named: Any) -> tuple[Any, dict[str, Any]]:
        """Computes the loss and the gradients.

        Args:
            *arguments: the parameters, name to array as `tensornet.init` returns them; then the inputs, in order:
                those of the graph, then those of the loss.
            training: whether dropout is active.

        Returns:
            The loss, and name to gradient.

        Raises:
            ShapeError, DtypeError, BackendError: as an `Executable` does.
        """
        arrays = [*map(_detached, self.arrays(*arguments, **named))]
        value, *gradients = self.run(arrays, training)
        return value, dict(zip(self.wrt, gradients, strict=True))

    def _prepare(self, arrays: Sequence[Any]) -> Ready:
        """Checks also that there are no gradients by integers or truth values, and no complex numbers."""
        for leaf, array in zip(self.leaves, arrays, strict=False):
            dtype = str(getattr(array, "dtype", ""))
            if "complex" in dtype or (leaf.name in self.wrt and ("int" in dtype or "bool" in dtype)):
                what = "gradients need real numbers" if "complex" in dtype else "has no gradient"
                fix = f"convert '{leaf.name}' to a floating type, or leave it out of wrt=…"
                raise DtypeError(f"'{leaf.name}' is {dtype.removeprefix('torch.')}, and {what}", fix=fix)
        return super()._prepare(arrays)


def _detached(array: Any) -> Any:
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
            recomputed in the backward pass, and only their operands are saved. Blocks with dropout are not
            recomputed. Recurrences are kept whole; `tensornet.module` recomputes them in segments.

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
    chosen, dtype = checked_place(backend, dtype, device)
    options: dict[str, Any] = {"device": device, "dtype": dtype, "memory_limit": in_bytes(memory_limit)}
    return ValueAndGrad(whole, chosen, wrt=leaves, tune=tune, jit=jit, **options)
