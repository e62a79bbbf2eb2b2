"""Samplers: initial values drawn by NumPy, for each initializer."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import EquationError, ShapeError, told_in
from ..graph.graph import Graph
from ..graph.leaves import Constant, Leaf
from ..graph.recurrences import is_step
from ..language.expression import Contraction, Expression, Ref, axes_of_index
from ..sizes import evaluate, size_names

NOISE = 0.01
"""The distance of `near_identity` from the identity: the deviation of the noise added to one output."""


@dataclass(frozen=True)
class Fan:
    """The roles of the dimensions of a parameter where it is first read.

    Attributes:
        inner: its inputs: summed dimensions whose axes the data or an earlier factor have.
        apart: dimensions whose axes no data have, except the state of a recurrence. It shares them with other
            weights, or they are outputs.
        count: the number of dimensions.
        beside: dimensions that come in and are not summed. It has a separate matrix for each position along them.
    """

    inner: tuple[int, ...]
    apart: tuple[int, ...]
    count: int
    beside: tuple[int, ...] = ()

    @property
    def outer(self) -> tuple[int, ...]:
        """Its outputs: all other dimensions."""
        return tuple(n for n in range(self.count) if n not in self.inner and n not in self.beside)

    @property
    def pair(self) -> tuple[int, int]:
        """The two dimensions of an identity, `beside` excluded: the only two, or the two that no data have, or else
        the last two."""
        own = [n for n in range(self.count) if n not in self.beside]
        own = own if len(own) > 1 else [*range(self.count)]
        apart = [n for n in self.apart if n in own]
        chosen = apart if len(own) != 2 and len(apart) == 2 else own[-2:]
        return chosen[0], chosen[-1]


@dataclass(frozen=True)
class _Around:
    """The context of a factor in a product: the axes that are summed, those that come in, and those of the data,
    except the state of a recurrence."""

    summed: frozenset[str] = frozenset()
    coming: frozenset[str] = frozenset()
    of_data: frozenset[str] = frozenset()


def fan_of(graph: Graph, leaf: Leaf) -> Fan:
    """The fan of a parameter. One that no equation reads has no inputs."""
    return _fans(graph).get(leaf.name) or Fan((), (), len(leaf.dims))


@functools.lru_cache(maxsize=64)
def _fans(graph: Graph) -> Mapping[str, Fan]:
    """The fan of each parameter that equations read."""
    parameters = frozenset(leaf.name for leaf in graph.parameters)
    found: dict[str, Fan] = {}
    for equation in graph.equations:
        for ref, around in _read(equation.right, (_Around(),), parameters):
            if ref.name in parameters and ref.name not in found:
                axes = [frozenset(axes_of_index((entry,))) for entry in ref.index]
                every = frozenset(ref.free_axes)
                near = next((each for each in around if each.summed & every), _Around())
                summed = [n for n, own in enumerate(axes) if own and own <= near.summed]
                inner = tuple(n for n in summed if axes[n] <= near.coming)
                apart = tuple(n for n, own in enumerate(axes) if own and not own & near.of_data)
                beside = tuple(n for n, own in enumerate(axes) if own and own <= near.coming - near.summed)
                found[ref.name] = Fan(inner, apart, len(axes), beside)
    return found


def _read(
    expression: Expression, around: tuple[_Around, ...], parameters: frozenset[str]
) -> Iterator[tuple[Ref, tuple[_Around, ...]]]:
    """The tensors that an expression reads, each with the products around it, the innermost first."""
    if isinstance(expression, Ref):
        yield expression, around
    if not isinstance(expression, Contraction) or not expression.summed:
        for part in expression.parts:
            yield from _read(part, around, parameters)
        return
    tensors = [(n, ref) for n, factor in enumerate(expression.factors) for ref in factor.references]
    states = {id(ref) for part in expression.subexpressions if is_step(part) for ref in part.references}
    data = [ref for _, ref in tensors if ref.name not in parameters]
    coming = {axis for ref in data for axis in ref.free_axes}
    of_data = {axis for ref in data if id(ref) not in states for axis in ref.free_axes}
    for n, factor in enumerate(expression.factors):
        inside = _Around(frozenset(expression.summed), frozenset(coming), frozenset(of_data))
        yield from _read(factor, (inside, *around), parameters)
        coming.update(axis for m, ref in tensors if m == n for axis in ref.free_axes)


def square_of(kind: str, number: float, shape: tuple[float, ...], fan: Fan) -> float:
    """The mean square of the initial value of a parameter."""
    inputs, outputs = (math.prod(shape[n] for n in dims) for dims in (fan.inner, fan.outer))
    match kind:
        case "value" | "std":
            return number**2
        case "kaiming":
            return number**2 * 2 / inputs
        case "xavier":
            return number**2 * 2 / (inputs + outputs)
        case "orthogonal":
            return number**2 / max(inputs, outputs)
    return number**2 / max(shape[n] for n in fan.pair)


def start_array(graph: Graph, leaf: Leaf, derived: tuple[str, float], seed: int) -> Any:
    """The initial array of a parameter, by its given start or else by the derived one.

    Raises:
        ShapeError: a size of the parameter is open.
        EquationError: the parameter cannot have this start.
    """
    import numpy

    shape = tuple(evaluate(size, graph.bound) for size in leaf.shape)
    if not all(isinstance(size, int) for size in shape):
        names = sorted({name for size in shape for name in size_names(size)})
        fix = f"give {', '.join(f'{n}=' for n in names)}"
        if "." not in leaf.name:
            fix += f"; or list it as an input: inputs='{leaf.name}'"
        raise ShapeError(f"the parameter '{leaf}' has an open size", fix=fix)
    start = derived if leaf.start is None else leaf.start
    if isinstance(start, Constant):
        return start.array()
    fan = fan_of(graph, leaf)
    check_start(leaf.name, start[0], shape, fan)
    return _drawn(numpy.random.default_rng([seed, zlib.crc32(leaf.name.encode())]), *start, shape, fan)


def _drawn(generator: Any, kind: str, number: float, shape: tuple[int, ...], fan: Fan) -> Any:
    """Draws the initial array of a parameter."""
    import numpy

    if kind == "value" or not number:
        return numpy.full(shape, number if kind == "value" else 0.0)
    if kind == "orthogonal":
        return number * _orthogonal(generator, shape, fan)
    if kind in ("identity", "near_identity"):
        array = _identity(shape, fan.pair)
        if kind == "near_identity":
            array += NOISE / math.sqrt(max(shape[n] for n in fan.pair)) * generator.standard_normal(shape)
        return number * array
    square = square_of(kind, number, shape, fan)
    array = generator.standard_normal(shape)
    array *= math.sqrt(square / float((array**2).mean()))  # the exact moment, not only on average
    return array


def _orthogonal(generator: Any, shape: tuple[int, ...], fan: Fan) -> Any:
    """Matrices of outputs by inputs, orthonormal along the smaller side, for each position along `fan.beside`."""
    import numpy

    order = (*fan.beside, *fan.outer, *fan.inner)
    count, rows, columns = (math.prod(shape[n] for n in dims) for dims in (fan.beside, fan.outer, fan.inner))
    matrices = generator.standard_normal((count, rows, columns))
    q, r = numpy.linalg.qr(matrices.swapaxes(1, 2) if rows < columns else matrices)
    q = q * numpy.sign(numpy.diagonal(r, axis1=1, axis2=2))[:, None]  # uniformly distributed (Mezzadri 2007)
    q = q.swapaxes(1, 2) if rows < columns else q
    return q.reshape([shape[n] for n in order]).transpose(numpy.argsort(order))


def _identity(shape: tuple[int, ...], pair: tuple[int, int]) -> Any:
    """Ones where the positions along two dimensions are equal, at all positions along the others."""
    import numpy

    positions = numpy.indices([shape[n] if n in pair else 1 for n in range(len(shape))], sparse=True)
    return numpy.broadcast_to(positions[pair[0]] == positions[pair[1]], shape).astype(float)


@told_in("starts")
def check_start(name: str, kind: str, shape: tuple[Any, ...], fan: Fan) -> None:
    """Raises an error for a kind of start that a parameter cannot have.

    Raises:
        EquationError: the start needs inputs and the parameter has none, or it needs two dimensions.
    """
    if kind in ("kaiming", "xavier", "orthogonal") and not fan.inner:
        fix = "give a standard deviation, 'zeros', 'ones' or an array"
        raise EquationError(f"'{name}' is to start as '{kind}', and none of its axes is summed", fix=fix)
    if kind in ("identity", "near_identity") and len(shape) < 2:
        fix = "give a standard deviation, 'zeros', 'ones' or an array"
        raise EquationError(
            f"'{name}' is to start as the identity, and has {len(shape)} dimension(s)", fix=fix
        )
