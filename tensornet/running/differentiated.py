"""The value of a loss and its gradients, on any backend: a function of parameters and inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import DtypeError
from ..graph.graph import Graph
from ..graph.losses import with_loss
from ..planning.gradients import both_ways, leaves_of
from ..planning.plans import Plan
from ..protocol import Backend
from .executable import Executable, compile

__all__ = ["ValueAndGrad", "value_and_grad"]


class ValueAndGrad:
    """A loss with its gradients, called as `f(parameters, *inputs)`; made by `tensornet.value_and_grad`.

    Attributes:
        graph: what is computed: the loss, then the gradients.
        wrt: the leaves whose gradients these are, in order.
    """

    def __init__(self, executable: Executable, wrt: tuple[str, ...]) -> None:
        self.graph, self.wrt, self._executable = executable.graph, wrt, executable

    def __repr__(self) -> str:
        return (
            f"<ValueAndGrad of {self.graph.outputs[0]} by {', '.join(self.wrt[:6])}, on {self.backend.name}>"
        )

    @property
    def backend(self) -> Backend:
        """Whose arrays it takes."""
        return self._executable.backend

    @property
    def plan(self) -> Plan:
        """The plan last made: both ways in one."""
        return self._executable.plan

    def __call__(
        self, parameters: Mapping[str, Any], *inputs: Any, training: bool = True
    ) -> tuple[Any, dict[str, Any]]:
        """Computes the loss and the gradients.

        Args:
            parameters: name to array, as `tensornet.init` returns them.
            *inputs: the inputs, in order: those of the graph, then those of the loss.
            training: whether dropout drops.

        Returns:
            The loss, and name to gradient.

        Raises:
            ShapeError, DtypeError, BackendError: as an `Executable` does.
        """
        held = (
            {name: _apart(array) for name, array in parameters.items()}
            if hasattr(parameters, "items")
            else parameters
        )
        value, *gradients = self._executable(held, *map(_apart, inputs), training=training)
        self._check_real(parameters, inputs)
        return value, dict(zip(self.wrt, gradients, strict=True))

    def _check_real(self, parameters: Mapping[str, Any], inputs: Sequence[Any]) -> None:
        """Refuses gradients by integers, and by truth values."""
        given = {leaf.name: array for leaf, array in zip(self.graph.inputs, inputs, strict=True)}
        for name in self.wrt:
            dtype = self.backend.dtype(given[name] if name in given else parameters[name])
            if "int" in dtype or "bool" in dtype:
                fix = f"convert '{name}' to a floating type, or leave it out of wrt=…"
                raise DtypeError(f"'{name}' is {dtype}, and nothing has a gradient by it", fix=fix)


def _apart(array: Any) -> Any:
    """The array, of torch without what autograd would record."""
    return array.detach() if getattr(array, "requires_grad", False) else array


def value_and_grad(
    graph: Graph,
    /,
    *,
    loss: Graph | str | None = None,
    wrt: str | Sequence[str] | None = None,
    backend: str | Backend = "numpy",
    device: str | None = None,
    dtype: str | None = None,
    memory_limit: int | None = None,
    tune: str | None = None,
    **sizes: int,
) -> ValueAndGrad:
    """Makes a function of a loss that also gives its gradients: `f(parameters, *inputs) -> (value, gradients)`.

    Both ways are one program of equations, planned together; no autograd is needed, so that a model trains on
    NumPy and on CuPy as on torch.

    Args:
        graph: a layer or a model.
        loss: a graph of the results of `graph` and of further inputs, such as the labels, which then follow the
            inputs of `graph`; or the name of a number that `graph` computes; or nothing where that is its
            only result.
        wrt: the parameters and inputs whose gradients are asked for, as in `tensornet.gradient`; all parameters
            if not given.
        backend, device, dtype, memory_limit, tune, **sizes: as for `tensornet.compile`.

    Raises:
        EquationError: the loss is no number, a name fits nothing, or a function has no derivative.
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
    joined = both_ways(whole, leaves).joined(whole.outputs)
    found = compile(joined, backend=backend, device=device, dtype=dtype, memory_limit=memory_limit, tune=tune)
    return ValueAndGrad(found, leaves)
