"""Model building: a Python function that calls layers on symbolic tensors is traced to a graph."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import EquationError, ShapeError, near
from ..graph.call import called_last, scoped
from ..graph.graph import Graph, inlined
from ..graph.leaves import Leaf
from ..graph.shape_inference import Axis, Dim, dim_size, resized, size_names_of
from ..graph.unify import Unifier
from ..language.equation import Declaration
from ..language.expression import ELLIPSIS, Taken, fresh
from ..language.parser import parse_names, read_sizes
from ..passes.dead_code import eliminate_dead_code
from ..sizes import evaluate, is_name, name_of, put_in, size_names, symbol
from .call_sizes import Matched, matched
from .context import dims_declared
from .instantiate import written_out
from .layers import layer

__all__ = ["Tensor", "Trace", "model", "with_loss"]

_SCOPE = re.compile(r"[^\W\d]\w*(\.\w+)*")


@dataclass(frozen=True)
class Tensor:
    """A symbolic tensor of a model under construction: its name, its dimensions, and its trace."""

    name: str
    dims: tuple[Dim, ...]
    trace: Trace = field(compare=False, repr=False)
    __array_ufunc__ = None  # arrays of NumPy leave arithmetic with a tensor to it

    @property
    def shape(self) -> tuple[Any, ...]:
        """The size of each dimension, an integer or symbolic where open."""
        return tuple(evaluate(dim_size(dim), self.trace.bound) for dim in self.dims)

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

    def __add__(self, other: Any) -> Any:
        """The sum with a tensor of the same dimensions or a number, as a residual branch needs it."""
        return self._with("{} + {}", other)

    def __sub__(self, other: Any) -> Any:
        return self._with("{} - {}", other)

    def __mul__(self, other: Any) -> Any:
        return self._with("{} * {}", other)

    def __radd__(self, other: Any) -> Any:
        return self._with("{1} + {0}", other)

    def __rsub__(self, other: Any) -> Any:
        return self._with("{1} - {0}", other)

    def __rmul__(self, other: Any) -> Any:
        return self._with("{1} * {0}", other)

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
    given = read_sizes(sizes)
    trace = Trace(given)
    tensors = [trace.input(each) for each in parse_names(inputs, "input")]
    results = function(*tensors)
    outputs = results if isinstance(results, tuple) else (results,)
    for each in outputs:
        if not isinstance(each, Tensor) or each.trace is not trace:
            raise EquationError(
                f"the model returns {each!r}, not one of its tensors", fix="return what its layers returned"
            )
    trace.check_given()
    return trace.graph(tuple(each.name for each in outputs))


def _is_scope(text: str) -> bool:
    """Whether a name with this prefix can be printed and parsed again."""
    return bool(_SCOPE.fullmatch(text)) and is_name(text.replace(".", "_") + "_")


class Trace:
    """The graph under construction. It is mutable, and not used after `model` returns."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.unifier = Unifier.of(given)
        self.bound = self.unifier.bound
        self.given = given
        self.spoken: set[str] = set()  # the size names that inputs and layers use
        self.leaves: dict[str, Leaf] = {}
        self.calls: list[Matched] = []
        self.dims: dict[str, tuple[Dim, ...]] = {}
        self.opened: set[str] = set()  # the names that sizes of dimensions contain

    def input(self, declared: Declaration) -> Tensor:
        """Adds an input of the model."""
        if declared.dims is None:
            raise EquationError(
                f"the input '{declared.name}' needs its axes", fix=f'write inputs="{declared.name}[b,i]"'
            )
        if declared.name in self.leaves:
            raise EquationError(f"the input '{declared.name}' is named twice", fix="give each input one name")
        dims = dims_declared(declared)
        self.spoken.update(size_names_of(dims), (axis.name for dim in dims for axis in dim))
        return self.leaf(Leaf(declared.name, "input", self.unifier.dims(dims)))

    def check_given(self) -> None:
        """Raises an error for a given size that nothing in the model uses."""
        for size in self.unifier.solution.values():
            self.spoken.update(size_names(size))
        for name in self.given:
            if name not in self.spoken:
                raise ShapeError(
                    f"a size is given for '{name}', which no input and no layer of the model uses",
                    fix=f"{near(name, self.spoken)}the sizes are"
                    f" {', '.join(sorted(self.spoken - {'lead'})) or 'none'}",
                )

    def leaf(self, leaf: Leaf) -> Tensor:
        """Adds a leaf, or shares an existing one of the same name."""
        known = self.leaves.get(leaf.name)
        if known is not None:
            sizes = [tuple(evaluate(size, self.bound) for size in each.shape) for each in (known, leaf)]
            if known.start is None and leaf.start is not None:
                self.leaves[leaf.name] = known = replace(known, start=leaf.start)
            if leaf.start not in (None, known.start):
                raise EquationError(
                    f"'{leaf.name}' is shared by two calls that initialize it differently",
                    fix="give both the same init=, or different scopes",
                )
            if known.kind != leaf.kind or sizes[0] != sizes[1] or known.value != leaf.value:
                raise ShapeError(
                    f"'{leaf.name}' is shared by two calls that disagree: {sizes[0]} and {sizes[1]}",
                    fix="give the calls different scopes",
                )
        else:
            if leaf.name in self.dims:
                raise EquationError(f"'{leaf.name}' names a result already", fix="use another scope")
            self.leaves[leaf.name] = leaf
            self._keep(leaf.name, leaf.dims)
        return Tensor(leaf.name, self.leaves[leaf.name].dims, self)

    def _keep(self, name: str, dims: tuple[Dim, ...]) -> None:
        self.dims[name] = dims
        self.opened.update(size_names_of(dims))

    def open_names(self) -> set[str]:
        """The names of the sizes in use that have no value."""
        return self.opened - set(self.bound)

    def graph(self, outputs: tuple[str, ...]) -> Graph:
        """The finished graph; calls without a scope are inlined, the others stay calls.

        Calls whose results are not used are removed.
        """
        leaves = tuple(replace(leaf, dims=self.unifier.dims(leaf.dims)) for leaf in self.leaves.values())
        calls = tuple(pending.applied(self.unifier) for pending in self.calls)
        names = size_names_of(dim for leaf in leaves for dim in leaf.dims)
        names.update(
            name for call in calls for name, size in call.graph.sizes if self.bound.get(name) == size
        )
        sizes = tuple((name, self.bound[name]) for name in names if name in self.bound)
        whole = eliminate_dead_code(
            inlined(Graph(leaves, calls, outputs, sizes), lambda call: not call.scope)
        )
        told = {leaf.name for call in whole.calls for leaf in call.leaves()}
        ordered = called_last((leaf for leaf in leaves if leaf.name not in told), whole.calls)
        known = {leaf.name: leaf for leaf in leaves}
        return replace(whole, leaves=tuple(known[leaf.name] for leaf in ordered))

    # ---- calling a graph

    def call(self, graph: Graph, tensors: tuple[Tensor, ...], scope: str) -> tuple[Tensor, ...]:
        """Records a call of `graph`, and matches its sizes with the model's."""
        operands = [(each.name, each.dims) for each in tensors]
        call = matched(graph, operands, scope, self.unifier, self.open_names())
        self.spoken.update(call.size_names())
        for leaf in call.leaves():
            self.leaf(leaf)
        for output, dims in call.returned():
            call.results += (fresh(scoped(scope, output), set(self.dims)),)
            self._keep(call.results[-1], dims)
        self.calls.append(call)
        return tuple(Tensor(name, self.dims[name], self) for name in call.results)


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
    count, results = len(graph.inputs), len(graph.outputs)
    if len(loss.inputs) < results:
        told = ", ".join(leaf.name for leaf in loss.inputs) or "none"
        raise EquationError(
            f"the loss takes {len(loss.inputs)} input(s) ({told}), and there are {results} result(s)",
            fix=f"give it an input for each result, or select some of {', '.join(graph.outputs)}: graph.select(…)",
        )

    lead = _leading(graph, loss)
    sizes = _sizes_of(graph, loss, lead)
    inputs = [replace(leaf, dims=written_out(leaf.dims, lead)) for leaf in graph.inputs]
    taken = Taken(leaf.name for leaf in inputs)
    for leaf in loss.inputs[results:]:
        dims = resized(leaf.dims, lambda size: put_in(size, sizes))
        inputs.append(replace(leaf, name=taken.fresh(leaf.name), dims=dims))
    spoken = size_names_of(dim for leaf in inputs for dim in leaf.dims)
    known = {name: size for name, size in graph.sizes if name in spoken}
    trace = Trace(known)
    tensors = tuple(trace.leaf(Leaf(leaf.name, "input", trace.unifier.dims(leaf.dims))) for leaf in inputs)
    given = trace.call(graph, tensors[:count], "")
    scope = "loss" if loss.parameters or loss.constants else ""
    found = trace.call(loss, (*given, *tensors[count:]), scope)
    return trace.graph(tuple(each.name for each in found))


def _leading(graph: Graph, loss: Graph) -> tuple[Axis, ...]:
    """The axes that `...` stands for in the graph, given how the loss reads its first result."""
    dims = graph.named[graph.outputs[0]]
    if not any(dim[0].name == ELLIPSIS for dim in dims if dim):
        return ()
    axes = [dim[0].name for dim in loss.inputs[0].dims]
    return tuple(Axis(name, symbol(name)) for name in axes[: len(axes) - len(dims) + 1])


def _sizes_of(graph: Graph, loss: Graph, lead: tuple[Axis, ...]) -> dict[str, Any]:
    """The open sizes of the loss, in terms of those of the graph."""
    found: dict[str, Any] = {}
    for name, leaf in zip(graph.outputs, loss.inputs, strict=False):
        for dim, own in zip(written_out(graph.named[name], lead), leaf.dims, strict=False):
            size = dim_size(own)
            if (mine := name_of(size)) is not None:
                found.setdefault(mine, dim_size(dim))
    return found
