"""Model building: a Python function that calls layers on symbolic tensors is traced to a graph."""

from __future__ import annotations

import inspect
import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import EquationError, check_arguments, checked_call
from ..graph.graph import Graph
from ..graph.leaves import called_last, scoped
from ..graph.shape_inference import Axis, Dim, dim_size, size_names_of
from ..language.equation import Calling
from ..language.expression import ELLIPSIS, Taken
from ..language.parser import read_sizes
from ..passes.dead_code import eliminate_dead_code
from ..sizes import evaluate, is_name, symbol
from .context import Known, Names, Text
from .instantiate import written_out
from .layers import add_call, gathered, layer

_SCOPE = re.compile(r"[^\W\d]\w*(\.\w+)*")


def _operator(form: str) -> Callable[[Any, Any], Any]:
    """An operator of a tensor with a number, or with a tensor of the same dimensions, as a residual branch needs it."""
    return lambda tensor, other: tensor._with(form, other)


@dataclass(frozen=True)
class Tensor:
    """A symbolic tensor of a model under construction: its name and its trace."""

    name: str
    trace: Trace = field(compare=False, repr=False)
    __array_ufunc__ = None  # arrays of NumPy leave arithmetic with a tensor to it

    @property
    def dims(self) -> tuple[Dim, ...]:
        """Its dimensions, with all solutions of sizes substituted."""
        return self.trace.text.unifier.dims(self.trace.text.known[self.name].dims or ())

    @property
    def shape(self) -> tuple[Any, ...]:
        """The size of each dimension, an integer or symbolic where open."""
        bound = self.trace.text.unifier.bound
        return tuple(evaluate(dim_size(dim), bound) for dim in self.dims)

    def receive(self, graph: Graph, tensors: tuple[Any, ...], scope: str) -> Tensor | tuple[Tensor, ...]:
        """Adds a call of `graph` to the model; `Graph.__call__` calls this."""
        for each in tensors:
            if not isinstance(each, Tensor):
                raise EquationError(
                    f"a graph is called on the tensors of a model, not on {type(each).__name__}",
                    fix="to run it on arrays: tensornet.compile(graph, backend=...)(parameters, x)",
                )
        if not isinstance(scope, str) or (scope and not _is_scope(scope)):
            raise EquationError(
                f"the scope {scope!r} is not a dotted name", fix='use names such as "blocks.0.mlp"'
            )
        if any(each.trace is not self.trace for each in tensors):
            raise EquationError("these tensors belong to different models", fix="build them in one function")
        results: tuple[Tensor, ...] = self.trace.call(graph, tensors, scope)
        return results[0] if len(results) == 1 else results

    __add__, __radd__ = _operator("{} + {}"), _operator("{1} + {0}")
    __sub__, __rsub__ = _operator("{} - {}"), _operator("{1} - {0}")
    __mul__, __rmul__ = _operator("{} * {}"), _operator("{1} * {0}")

    def _with(self, form: str, other: Any) -> Any:
        """Calls a layer of one elementwise operation."""
        if isinstance(other, Tensor):
            return layer(f"y[...] = {form.format('a[...]', 'b[...]')}", inputs="a b")(self, other)
        if not isinstance(other, numbers.Real) or isinstance(other, bool):
            return NotImplemented
        if math.isnan(other):
            raise EquationError("nan is no number of the language", fix="make it an input or a constant")
        shown = repr(int(other) if isinstance(other, numbers.Integral) else float(other))
        return layer(f"y[...] = {form.format('a[...]', shown)}", inputs="a")(self)


@check_arguments
def model(function: Callable[..., Any], *, inputs: str | Sequence[str], **sizes: Any) -> Graph:
    """Runs `function` on symbolic tensors and returns the graph of its calls.

    Layers (graphs) are called on the tensors, `layer(x, scope="first")`; the scope prefixes the
    names of the parameters, and a scope used twice shares them. Tensors of the same dimensions, and numbers, can be
    added, subtracted and multiplied: `x + layer(x, scope="first")` is a residual branch.

    Args:
        function: takes one symbolic tensor for each input, and returns one or a tuple of them.
        inputs: the inputs with their axes, as in `"x[b,n,c]"`.
        **sizes: the sizes of axes of the inputs, and those that layers leave open: a positive integer,
            a sympy expression or a text such as `"4*D"`; a size that is left out is open.

    Raises:
        EquationError: the function returns anything but tensors of this model.
        ShapeError: a layer is called on a tensor it does not fit.

    Example:
        >>> import tensornet as tn
        >>> dense = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", o=8)
        >>> twice = tn.model(lambda x: dense(dense(x, scope="a"), scope="b"), inputs="x[b,i]", i=8)
        >>> [leaf.name for leaf in twice.parameters], tn.parameter_count(twice)
        (['a.W', 'b.W'], 128)
    """
    trace = Trace(read_sizes(sizes), inputs)
    tensors = [Tensor(name, trace) for name in trace.text.known]
    try:
        inspect.signature(checked_call(function, "function", "symbolic tensors")).bind(*tensors)
    except TypeError as error:
        message = f"the function does not take the inputs {', '.join(trace.text.known) or 'none'}: {error}"
        raise EquationError(message, fix="give it one argument for each name in inputs=") from None
    results = function(*tensors)
    outputs = results if isinstance(results, tuple) else (results,)
    for each in outputs:
        if not isinstance(each, Tensor) or each.trace is not trace:
            raise EquationError(
                f"the model returns {each!r}, not one of its tensors", fix="return what its layers returned"
            )
    return trace.graph(tuple(each.name for each in outputs))


def _is_scope(text: str) -> bool:
    """Whether a name with this prefix can be printed and parsed again."""
    return bool(_SCOPE.fullmatch(text)) and is_name(text.replace(".", "_") + "_")


class Trace:
    """A model under construction: a text whose lines are its calls. It is not used after `model` returns."""

    def __init__(self, given: Mapping[str, Any] = {}, inputs: Names = ()) -> None:
        self.text, self.spoken = Text((), inputs, given=given), set[str]()
        for name, entry in self.text.known.items():
            if entry.dims is None:
                raise EquationError(f"the input '{name}' needs its axes", fix=f'write inputs="{name}[b,i]"')

    def input(self, name: str, dims: tuple[Dim, ...] | None = None) -> Tensor:
        """Adds an input of the model; it gets the axes of the first block that reads it if it has none."""
        self.text.known[name] = Known("input", dims)
        return Tensor(name, self)

    def call(self, graph: Graph, tensors: Sequence[Tensor], scope: str) -> tuple[Tensor, ...]:
        """Adds a call of a graph."""
        own = (scoped(scope, leaf.name) for leaf in graph.leaves if leaf.kind != "input")
        taken = Taken((*self.text.known, *own, *self.spoken))
        results = tuple(taken.fresh(scoped(scope, output)) for output in graph.outputs)
        add_call(self.text, graph, Calling(results, "", tuple(each.name for each in tensors), scope))
        return tuple(Tensor(name, self) for name in results)

    def graph(self, outputs: tuple[str, ...]) -> Graph:
        """The finished graph, without calls whose results are not used."""
        whole = eliminate_dead_code(gathered(self.text, outputs))
        declared = {name for call in whole.calls for name in call.held}
        ordered = called_last((leaf for leaf in whole.leaves if leaf.name not in declared), whole.calls)
        known = {leaf.name: leaf for leaf in whole.leaves}
        return replace(whole, leaves=tuple(known[leaf.name] for leaf in ordered))


# ---------------------------------------------------------------------------- losses


def with_loss(graph: Graph, loss: Graph | str | None) -> Graph:
    """The graph with a scalar loss as its only result.

    Args:
        graph: a layer or a model.
        loss: a graph that takes the results of `graph` and further inputs, which then follow those of `graph`;
            or the name of a scalar that `graph` computes; or None if the loss is its only result.

    Raises:
        EquationError: the loss is not a scalar, or takes fewer inputs than there are results.
        ShapeError: the loss does not fit the results.
    """
    if loss is not None and not isinstance(loss, Graph | str):
        fix = "write it as equations: tensornet.layer(…)"
        raise EquationError(f"a loss is a graph, or the name of a number, not {loss!r}", fix=fix)
    if isinstance(loss, str):
        graph = graph.select(loss)
    found = _ending_in(graph, loss) if isinstance(loss, Graph) else graph
    if len(found.outputs) != 1 or found.named[found.outputs[0]]:
        known = ", ".join(f"{name} with {len(found.named[name])} axes" for name in found.outputs)
        fix = "give loss= a graph with one number as its result, or the name of one"
        raise EquationError(f"the loss must be a single number, and the results are {known}", fix=fix)
    return found


def _ending_in(graph: Graph, loss: Graph) -> Graph:
    """A graph followed by a loss, which takes its results and then inputs of its own."""
    results = len(graph.outputs)
    if len(loss.inputs) < results:
        told = ", ".join(leaf.name for leaf in loss.inputs) or "none"
        raise EquationError(
            f"the loss takes {len(loss.inputs)} input(s) ({told}), and there are {results} result(s)",
            fix=f"give it an input for each result, or select some of {', '.join(graph.outputs)}: graph.select(…)",
        )

    lead = _leading(graph, loss)
    inputs = {leaf.name: written_out(leaf.dims, lead) for leaf in graph.inputs}
    spoken = size_names_of(dim for dims in inputs.values() for dim in dims)
    trace = Trace({name: size for name, size in graph.sizes if name in spoken})
    tensors = [trace.input(name, dims) for name, dims in inputs.items()]
    taken = Taken((*graph.named, *_sizes_in(graph)))
    further = [trace.input(taken.fresh(leaf.name)) for leaf in loss.inputs[results:]]
    given = trace.call(graph, tensors, "")
    trace.spoken.update(_sizes_in(graph))
    scope = "loss" if loss.parameters or loss.constants else ""
    found = trace.call(loss, (*given, *further), scope)
    return trace.graph(tuple(each.name for each in found))


def _sizes_in(graph: Graph) -> set[str]:
    """The names of sizes in a graph and its blocks, which tensors beside them may not have."""
    return {name for part in graph.parts for name in (*part.open_sizes, *part.bound)}


def _leading(graph: Graph, loss: Graph) -> tuple[Axis, ...]:
    """The axes that `...` stands for in the graph, given how the loss reads its first result."""
    dims = graph.named[graph.outputs[0]]
    if not any(dim[0].name == ELLIPSIS for dim in dims if dim):
        return ()
    axes = [dim[0].name for dim in loss.inputs[0].dims]
    return tuple(Axis(name, symbol(name)) for name in axes[: len(axes) - len(dims) + 1])
