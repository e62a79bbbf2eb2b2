"""Instantiation of blocks: in the sizes of their callers, and unrolling along an axis.

The sizes of its inputs and of its operands are unified first. Unrolling gives a block's equations with the axis as one
more dimension:

    z[b,o] = tanh(x[b,i] * W[o,i] + h[b,p] * U[o,p])          in the block
    h[b,t,o] = tanh(x[b,t,i] * W[o,i] + h.before[b,t,p] * U[o,p])
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import ShapeError
from ..graph.graph import Apply, Graph, of_tensors_named, own_windows
from ..graph.leaves import Leaf, scoped
from ..graph.shape_inference import Axis, Dim, dim_size, resized
from ..graph.unify import Unifier, with_sizes
from ..language.desugaring import expand_ellipsis, expand_index
from ..language.equation import Calling, Equation, renamed_axes, sizes_in_brackets, spoken_sizes
from ..language.expression import (
    ELLIPSIS,
    Call,
    Expression,
    Index,
    Ref,
    Taken,
    axes_of_index,
    fresh,
    numbered,
    sized_by_name,
)
from ..language.parser import read_sizes
from ..ops.structure import REPEAT
from ..sizes import evaluate, invert_size, name_of, product, put_in, size_names, symbol


def instance(
    graph: Graph,
    sizes: Mapping[str, Any],
    values: Mapping[str, Any] = {},
    lead: tuple[Axis, ...] | None = None,
) -> Graph:
    """The graph in the sizes of its caller.

    Args:
        graph: the graph.
        sizes: for every size name of the graph, its value in the names of the caller.
        values: the values of the caller's names, where they have one.
        lead: the axes that `...` stands for.
    """
    return _instance(graph, tuple(sorted(sizes.items())), tuple(sorted(values.items())), lead)


Sizes = tuple[tuple[str, Any], ...]
"""Names of sizes, and their values: integers, or expressions in other names."""


def _new_axes(graph: Graph, given: Sizes, values: Sizes) -> tuple[dict[str, str], dict[str, Any], Taken]:
    """New names for axes that have the name of a size of the caller, those of windows for each line, and all names."""
    sizes = dict(given)
    arriving = {name for size in sizes.values() for name in size_names(size)}
    taken = Taken(arriving.union(*(equation.axes for equation in graph.own)))
    clashing = (name for name in sorted(graph.by_name & arriving) if sizes[name] != symbol(name))
    axes = {name: taken.fresh(name) for name in clashing}
    named = {*dict(values), *(name for key, size in given for name in size_names(size) if name != key)}
    named.update(key for key, size in given if size != symbol(key))
    fresh = Taken(
        (*dict(values), *arriving, *axes.values(), *(axis for each in graph.own for axis in each.axes))
    )
    windows = {each.name: own_windows(graph, each, named, fresh) for each in graph.own}
    return axes, windows, taken


@functools.lru_cache(maxsize=1024)
def _instance(graph: Graph, given: Sizes, values: Sizes, lead: tuple[Axis, ...] | None) -> Graph:
    sizes = dict(given)
    axes, windows, taken = _new_axes(graph, given, values)
    put = {axes.get(name, name): size for name, size in sizes.items() if size != symbol(name)}
    body = tuple(
        _call(graph, item, sizes, values)
        if isinstance(item, Apply)
        else with_sizes(
            _with_lead(renamed_axes(item, axes | windows.get(item.name, {})), lead), put, known=dict(values)
        )
        for item in graph.body
    )
    spoken = {name for item in body if isinstance(item, Equation) for name in sizes_in_brackets(item)}
    other = {name: taken.fresh(name) for name in sorted(spoken)}

    def moved(dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """The dimensions in sizes of the caller; no axis of another size has the name of one in brackets."""
        sized = written_out(resized(dims, lambda size: put_in(size, sizes)), lead)
        return tuple(tuple(_named_apart(axis, other) for axis in dim) for dim in sized)

    own = {axes.get(name, name) for name in graph.by_name}.difference(
        axes.get(name, name) for own in windows.values() for name in own
    )
    own.update(*(sized_by_name(item.right) for item in body if isinstance(item, Equation)))
    known = {name: put[name] for name in own if name in put}
    names = _tensors_giving_way(graph, body)
    return replace(
        graph,
        leaves=tuple(
            replace(leaf, name=names.get(leaf.name, leaf.name), dims=moved(leaf.dims))
            for leaf in graph.leaves
        ),
        body=tuple(of_tensors_named(item, names) for item in body) if names else body,
        outputs=tuple(names.get(name, name) for name in graph.outputs),
        sizes=tuple((dict(values) | known).items()),
    )


def _named_apart(axis: Axis, names: Mapping[str, str]) -> Axis:
    """The axis, by another name if its own is among some and stands for another size."""
    is_spoken = axis.name in names and axis.size != symbol(axis.name)
    return replace(axis, name=names[axis.name]) if is_spoken else axis


def names_of_sizes(graph: Graph) -> set[str]:
    """Every size name that the graph uses."""
    return {*graph.bound, *graph.open_sizes}.union(*(sized_by_name(each.right) for each in graph.own))


def written_out(dims: tuple[Dim, ...], lead: tuple[Axis, ...] | None) -> tuple[Dim, ...]:
    """Dimensions, with `...` replaced by one dimension for each axis that it stands for."""
    found: list[Dim] = []
    for dim in dims:
        leading = lead is not None and dim[:1] and dim[0].name == ELLIPSIS
        found.extend(((axis,) for axis in lead or ()) if leading else (dim,))
    return tuple(found)


def _with_lead(equation: Equation, lead: tuple[Axis, ...] | None) -> Equation:
    """An equation with names for the axes that `...` stands for."""
    if lead is None:
        return equation
    names = tuple(map(Taken(equation.axes).fresh, (axis.name for axis in lead)))
    left, right = expand_index(equation.left, names), expand_ellipsis(equation.right, names)
    return replace(equation, left=left, right=right)


def _call(graph: Graph, call: Apply, sizes: Mapping[str, Any], values: Sizes) -> Apply:
    """A call in a graph; its block uses size names of the graph, and some of its own."""
    inner: dict[str, Any] = {}
    for name in names_of_sizes(call.graph):
        known = call.graph.bound.get(name, symbol(name))
        is_same = graph.bound.get(name, symbol(name)) == known
        inner[name] = put_in(symbol(name) if is_same else known, sizes)
    return replace(call, graph=instance(call.graph, inner, dict(values)))


def _tensors_giving_way(graph: Graph, body: Sequence[Equation | Apply]) -> dict[str, str]:
    """New names for tensors whose name is now also a size that equations mention.

    Parameters and constants keep their names, by which the caller knows them.
    """
    spoken = {name for item in body if isinstance(item, Equation) for name in spoken_sizes(item)}
    kept = {leaf.name for leaf in graph.leaves if leaf.kind != "input"}
    taken = Taken((*graph.named, *spoken))
    return {name: taken.fresh(name) for name in sorted((spoken & set(graph.named)) - kept)}


# ---------------------------------------------------------------------------- symbols of a caller

_MARK = "ʹ"  # a letter in Python, which nobody types


def hygienic(make: Callable[..., Graph], sizes: Mapping[str, Any]) -> Graph:
    """Runs `make(**sizes)`; a symbol in a size is the caller's, even if the graph has an axis of that name.

    Args:
        make: builds a graph from sizes, as `tensornet.layer` and `tensornet.model` do.
        sizes: axis name to an integer, a sympy expression or a text.

    Example:
        >>> import tensornet as tn
        >>> text = "y[b,o] = x[b,i] * W[o,i]"
        >>> graph = hygienic(lambda **sizes: tn.layer(text, inputs="x", **sizes), {"i": "o", "o": 4})
        >>> print(graph.parameters[0], "with", tn.parameter_formula(graph))
        W[o:o_1,i:o]: parameter with o*o_1
    """
    given = read_sizes(sizes)
    same = {name for name, size in given.items() if size == symbol(name)}
    outer = sorted({name for size in given.values() for name in size_names(size)} - same)
    if not outer:
        return make(**given)
    marked = {name: symbol(name + _MARK) for name in outer}
    graph = make(**{name: put_in(size, marked) for name, size in given.items()})
    names = names_of_sizes(graph)
    taken = Taken({*outer, *names}.union(*(equation.axes for equation in graph.own)))
    moved = {name + _MARK: symbol(name) for name in outer}
    moved |= {name: symbol(taken.fresh(name)) for name in outer if name in names}
    values = {name: size for name, size in graph.bound.items() if isinstance(size, int)}
    formulas = {name: size for name, size in graph.bound.items() if name not in values}
    found = {name: put_in(formulas.get(name, symbol(name)), moved) for name in names}
    known = {str(found[name]): value for name, value in values.items()}
    return instance(graph, found, known)


# ---------------------------------------------------------------------------- calls


class Private(Unifier):
    """A graph's own sizes under private names, kept apart from its caller's until they are solved or adopted."""

    def __init__(self, graph: Graph) -> None:
        self.axes, names = _axis_names(graph), names_of_sizes(graph)
        self.private = {name: symbol(f"{name}@") for name in names}
        super().__init__({f"{name}@": size for name, size in graph.sizes if isinstance(size, int)})
        self.solution = {f"{name}@": symbol(name) for name in names - set(graph.bound) - self.axes}
        for name, size in graph.sizes:
            if not isinstance(size, int):
                self.solution[f"{name}@"] = self.moved(size)

    def moved(self, size: Any) -> Any:
        """A size of the graph in private names; those that are solved are replaced by their values."""
        return self.resolve(put_in(size, self.private))

    def dims(self, dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """The dimensions in the sizes of the model."""
        return resized(dims, self.moved)

    def value(self, size: Any) -> Any:
        """A size in private names, as an integer where everything in it is known."""
        return evaluate(self.resolve(size), self.bound)

    def waits(self, own: Any) -> bool:
        """Whether a size contains names that are neither solved nor adopted."""
        return any(name.endswith("@") for name in size_names(own))

    def solve(self, own: Any, size: Any) -> bool:
        """Solves `own = size` for the only private name in it; returns whether that is possible."""
        names = [name for name in size_names(own) if name.endswith("@")]
        found = invert_size(own, names[0], size) if len(names) == 1 else None
        if found is None:  # there are several, or a rounding or a power cannot be inverted
            return False
        if not size_names(found) and not (isinstance(found, int) and found > 0):
            raise ShapeError("no size fits")
        self.solution[names[0]] = found
        return True

    def adopt(self, outer: Unifier, opened: set[str]) -> None:
        """Gives each size that is still private its own name in the model, or a new one if that is taken."""
        for name in sorted(name for name in self.private if f"{name}@" not in self.solution):
            chosen, value = name, self.bound.get(f"{name}@")
            if value is not None:
                names = itertools.chain((name,), (each for each in numbered(name) if each not in self.axes))
                chosen = next(each for each in names if _fits(each, value, outer, opened))
                outer.bound[chosen] = value
            self.solution[f"{name}@"] = symbol(chosen)


def _fits(name: str, value: int, outer: Unifier, opened: set[str]) -> bool:
    """Whether the model has no size of this name, or one of this value."""
    if name in outer.bound or name in outer.solution:
        return bool(evaluate(outer.resolve(symbol(name)), outer.bound) == value)
    return name not in opened


def _axis_names(graph: Graph) -> set[str]:
    """The names of axes in a graph. An open size with any other name came in a formula, and
    belongs to the model."""
    names = {axis.name for dims in graph.named.values() for dim in dims for axis in dim} | {"lead"}
    for equation in graph.own:
        names.update(equation.axes, *(part.axes for part in equation.called))
    return names


Operand = tuple[str, tuple[Dim, ...] | None]
"""An operand of a call: its name and its dimensions, or None where they are those of the input."""


class Matched(Private):
    """A call whose open sizes may still be solved by later calls and equations.

    Attributes:
        graph: the called graph, in its own sizes.
        outer: the sizes of the caller; the call may solve some of them.
        lead: the axes that `...` stands for in the call.
        operands: the names of the operands.
        scope: the prefix of the names of its parameters.
        results: the caller's names of its outputs.
        place: where the call is written, if it is.
    """

    def __init__(
        self,
        graph: Graph,
        operands: Sequence[Operand],
        line: Calling,
        outer: Unifier,
        opened: set[str],
        returned: Sequence[tuple[Dim, ...]] = (),
    ) -> None:
        """Matches a graph with its operands.

        Args:
            graph: the called graph.
            operands: one tensor for each input.
            line: the call.
            outer: the sizes of the caller.
            opened: the caller's size names that are in use and have no value.
            returned: the dimensions of the results, where they are known before.

        Raises:
            ShapeError: a tensor does not fit.
        """
        super().__init__(graph)
        self.graph, self.outer, self.place, self.scope = graph, outer, line.place, line.scope
        self.operands, self.results = line.operands, line.results
        self.lead: tuple[Axis, ...] | None = None
        waiting = [each for each in self._pairs(operands) if not self._is_unified(*each)]
        for name, dims in zip(graph.outputs, returned, strict=False):
            for ours, theirs in zip(self.dims(graph.named[name]), dims, strict=False):
                if self.waits(own := self.value(dim_size(ours))):
                    self.solve(own, dim_size(theirs))
        self.adopt(outer, opened)
        for each in waiting:
            self._is_unified(*each)

    def leaves(self) -> Iterator[Leaf]:
        """Its parameters and constants, in the caller's names and sizes."""
        for leaf in self.graph.leaves:
            if leaf.kind != "input":
                yield replace(leaf, name=scoped(self.scope, leaf.name), dims=self.dims(leaf.dims))

    def taken(self) -> Iterator[tuple[str, tuple[Dim, ...]]]:
        """Each operand, with the dimensions of the input in the caller's sizes."""
        for name, leaf in zip(self.operands, self.graph.inputs, strict=True):
            yield name, written_out(self.dims(leaf.dims), self.lead)

    def returned(self, bound: Mapping[str, Any] = {}) -> Iterator[tuple[str, tuple[Dim, ...]]]:
        """Each output, with its dimensions in the caller's sizes; see `Apply.returned`."""
        for output in self.graph.outputs:
            yield output, written_out(self.dims(self.graph.named[output]), self.lead)

    def applied(self) -> Apply:
        """The finished call, with its block in the sizes of the caller."""
        sizes = {name: self.outer.resolve(self.moved(symbol(name))) for name in self.private}
        lead = None if self.lead is None else self.outer.dims((self.lead,))[0]
        block = instance(self.graph, sizes, self.outer.bound, lead)
        return Apply(block, self.operands, self.results, self.scope)

    def _pairs(self, operands: Sequence[Operand]) -> Iterator[tuple[Leaf, str, Dim, Dim]]:
        """The dimensions of each input and of its operand, without those that `...` stands for."""
        for leaf, (name, given) in zip(self.graph.inputs, operands, strict=True):
            if given is None:
                continue
            wanted = self.dims(leaf.dims)
            at = next((n for n, dim in enumerate(wanted) if dim and dim[0].name == ELLIPSIS), None)
            count = len(given) - len(wanted)
            if at is not None and count >= -1:
                self._leading(leaf, given[at : at + count + 1])
                wanted, given = wanted[:at] + wanted[at + 1 :], given[:at] + given[at + count + 1 :]
            if len(wanted) != len(given):
                raise self._wrong_rank(leaf, name, given)
            yield from ((leaf, name, ours, theirs) for ours, theirs in zip(wanted, given, strict=True))

    def _leading(self, leaf: Leaf, dims: tuple[Dim, ...]) -> None:
        """Unifies the axes that `...` stands for in an input with those in the inputs before."""
        found = tuple(Axis("_".join(axis.name for axis in dim), dim_size(dim)) for dim in dims)
        self.lead = found if self.lead is None else self.lead
        try:
            for ours, theirs in zip(self.lead, found, strict=True):
                self.outer.unify(ours.size, theirs.size, ours.name, None)
        except ValueError:  # a ShapeError is one, and so is a difference in number
            raise ShapeError(
                f"'...' stands for {_named(self.lead)} and for {_named(found)} in '{leaf.name}'", self.place
            ) from None
        self.solution["lead@"] = product(axis.size for axis in self.lead)

    def _is_unified(self, leaf: Leaf, name: str, ours: Dim, theirs: Dim) -> bool:
        """Unifies one dimension of a layer's input and of a tensor; solves for an open size.

        Returns False if the layer's size is open and cannot be solved yet, as with several unknowns.
        """
        own, size, axes = self.value(dim_size(ours)), dim_size(theirs), "_".join(axis.name for axis in ours)
        try:
            if self.waits(own):
                return self.solve(own, size)
            self.outer.unify(size, own, axes, None)
        except ShapeError:
            raise self._disagreement(leaf, name, axes, own, size) from None
        bare = name_of(dim_size(ours))
        if bare in self.bound:  # formulas chain by the model's name
            self.solution.setdefault(bare, size)
        return True

    def _disagreement(self, leaf: Leaf, name: str, axes: str, own: Any, size: Any) -> ShapeError:
        """The error for a dimension of a layer's input that has another size in a tensor."""
        bound = self.outer.bound
        other, shown = evaluate(self.outer.resolve(size), bound), _public(own)
        value = _public(evaluate(own, bound))
        told = shown if value == shown else f"{shown} = {value}"
        message = (
            f"sizes disagree: axis '{axes}' of the layer's input '{leaf.name}' is {told},"
            f" and '{name}' has {other} there"
        )
        fix = f"build the layer with {axes}={other}, or pass a tensor of size {value}"
        left = [] if isinstance(own, int) else [_public(each) for each in size_names(evaluate(own, bound))]
        if left:
            message += f", which leaves {', '.join(left)} unknown"
            fix = (
                f"give the layer {', '.join(f'{each}=…' for each in left)}, or give that"
                " dimension an axis and a size of its own, as in W[n]: parameter and n: 6"
            )
        return ShapeError(message, self.place, fix)

    def _wrong_rank(self, leaf: Leaf, name: str, dims: tuple[Dim, ...]) -> ShapeError:
        return ShapeError(
            f"the layer's input is '{leaf}' and '{name}' has {len(dims)} dimension(s)",
            self.place,
            "pass a tensor with as many dimensions",
        )


def _public(size: Any) -> str:
    return str(size).replace("@", "")


def _named(axes: tuple[Axis, ...]) -> str:
    return "(" + ", ".join(f"{axis.name}={axis.size}" for axis in axes) + ")"


# ---------------------------------------------------------------------------- unrolling


Left = tuple[str | tuple[str, ...], ...]


@dataclass
class Repeated:
    """A block along an axis, while it is unrolled.

    Attributes:
        axis: the name of the axis.
        names: the caller's names of the block's tensors.
        varying: the block's tensors that have the axis, and its dimension.
    """

    axis: str
    names: dict[str, str]
    varying: dict[str, int]
    taken: set[str] = field(default_factory=set)

    def equations(
        self, line: Calling, block: Iterable[Equation], outputs: Iterable[str]
    ) -> Iterator[Equation]:
        """The equations of the caller.

        Args:
            line: the call.
            block: the equations of the block.
            outputs: the names of its results.
        """
        results = dict(zip(outputs, line.lefts, strict=True))
        for equation in block:
            result = results.pop(equation.name, None)
            yield self._equation(equation, result, line)
        for name, result in results.items():  # passed through
            yield replace(result, right=self._read(Ref(name, self._without(result.left))))

    def _without(self, left: Left) -> Left:
        at = left.index(self.axis)
        return left[:at] + left[at + 1 :]

    def _equation(self, equation: Equation, result: Equation | None, line: Calling) -> Equation:
        """One equation, under the axes of the result if it defines one."""
        left = equation.left if result is None else self._without(result.left)
        equation = _under(equation, left, self.axis)
        name = fresh(scoped(line.scope, equation.name), self.taken) if result is None else result.name
        right, varies = self._read(equation.right), self._varies(equation.right)
        self.names[equation.name] = name
        self.taken.add(name)
        if not varies and result is None:
            return replace(equation, name=name, right=right)
        at = min(1, len(equation.left)) if result is None else result.left.index(self.axis)
        self.varying[equation.name] = at
        left = (*equation.left[:at], self.axis, *equation.left[at:])
        return replace(equation, name=name, left=left, right=right if varies else self._repeated(right))

    def _repeated(self, right: Expression) -> Expression:
        return Call(REPEAT.name, (right,), (self.axis,))

    def _varies(self, right: Expression) -> bool:
        return any(ref.name in self.varying for ref in right.references)

    def _read(self, part: Expression) -> Expression:
        """An expression of the block over the caller's tensors, which have the axis."""
        part = part.transform(self._read)
        if not isinstance(part, Ref):
            return part
        index: tuple[Index, ...] = part.index
        if part.name in self.varying:
            at = self.varying[part.name]
            index = (*index[:at], self.axis, *index[at:])
        return replace(part, name=self.names.get(part.name, part.name), index=index)


def _under(equation: Equation, left: Left, axis: str) -> Equation:
    """The equation with other axes on its left. Its own axes of these names, or of another name, are renamed."""
    pairs = zip(equation.kept, axes_of_index(left), strict=True)
    names = {ours: theirs for ours, theirs in pairs if ours != theirs}
    inside = {*equation.right.occurring, *equation.kept}
    taken = {*inside, *axes_of_index(left), axis}
    for each in sorted(inside.intersection((*names.values(), axis)) - names.keys()):
        names[each] = fresh(each, taken)
        taken.add(names[each])
    return renamed_axes(equation, names)
