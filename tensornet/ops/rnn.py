"""Recurrent cells as library kernels: LSTM, GRU and the plain RNN, all positions in one call.

    lstm_along(x, W, U, h, c, b), gru_along(x, W, U, h, b, u), tanh_along(x, W, U, h, b)

`W[n,i]` and `U[n,p]` hold the weights of the gates one after another, in the order of PyTorch. `b[n]` is added to
the sum of both products, and `u[n]` to the product of the state alone. Both may be missing. `h` and `c` are the
initial states.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

from ..syntax import Call, Ref
from .record import (
    Element,
    Function,
    KernelEquation,
    Left,
    Lowering,
    Value,
    Writer,
    extent,
    left_of,
    placed_kernel,
    roles,
    sizes_of,
)

Axes = tuple[str, ...]

ALONG = "tbi gi gr bm"
"""The operands `x, W, U, h`: `t` are positions, `b` sequences, `i` and `r` the channels of the input and of a state
where it is read, `g` the rows of the weights, and `m` the channels of a state where it is computed."""


def _dims(call: Call, axes: Mapping[str, Axes]) -> list[list[Axes]]:
    """The dimensions of each operand of a cell."""
    states = 2 if call.function == LSTM_ALONG.name else 1
    words = ["tbi", "gi", "gr", *["bm"] * states, *"g" * (len(call.arguments) - 3 - states)]
    return [[axes[letter] for letter in word] for word in words]


def _through(layouts: Sequence[Axes]) -> Axes:
    """All axes except those of the batch."""
    axes = roles(ALONG, layouts[:4])
    return tuple(itertools.chain(*(axes[letter] for letter in "tigrm")))


def _lower(lowering: Lowering, call: Call) -> Value:
    """Lowers a cell to a step: one product for all positions, one for each, and pointwise work in the cache."""
    values = [lowering.convert(lowering.lower(each), Element.NUMBER) for each in call.arguments]
    axes = roles(ALONG, [each.layout for each in values[:4]])
    values = [lowering.grouped(*each) for each in zip(values, _dims(call, axes), strict=True)]
    along, batch, given, gates, read, made = (lowering.count(axes[letter]) for letter in "tbigrm")
    profile, size, sizes = lowering.profile, lowering.itemsize, sizes_of(values)
    seconds = profile.matmul(1, along * batch, gates, given, size)
    seconds += along * profile.matmul(1, batch, gates, read, size)
    written = size * along * batch * made
    seconds += profile.pointwise(size * along * batch * (gates + made), written)
    positions = extent(sizes, (*axes["t"], *axes["b"], *axes["g"]))
    flops = 2 * positions * (extent(sizes, axes["i"]) + extent(sizes, axes["r"]))
    right = replace(call, arguments=tuple(each.ref for each in values))
    left = left_of(axes[letter] for letter in "tbm")
    return lowering.emit(left, right, values, Element.NUMBER, seconds=seconds, flops=flops)


def _spell(writer: Writer, call: Call, left: Left) -> str:
    """The call with its operands in order, in the dimensions that the kernel requires."""
    refs = cast("tuple[Ref, ...]", call.arguments)
    axes = roles(ALONG, [each.layout for each in refs[:4]])
    texts = [writer.view(*each, ones=True) for each in zip(refs, _dims(call, axes), strict=True)]
    text = writer.op(call.function, ", ".join(texts), **writer.options(call))
    return text if axes["t"] and axes["b"] and axes["m"] else writer.reshaped(text, left)


def _cell(name: str, formula: str, gates: int, states: int) -> Function:
    """The record of a cell with the given numbers of gates and states."""
    return placed_kernel(
        name,
        formula,
        arity=(3 + states, 5 + states),
        options=(("back", 0),),
        complex="refused",
        workspace=(float(gates), float(gates)),
        through=_through,
        lowered=_lower,
        spelled=_spell,
    )


LSTM_ALONG = _cell("lstm_along", "i, f, g, o of x·W + h·U + b; c = f·c + i·g, h = o·tanh(c)", 4, 2)
GRU_ALONG = _cell(
    "gru_along", "r, z of x·W + h·U + b, n = tanh(x·W + b + r·(h·U + u)); h = (1 − z)·n + z·h", 3, 1
)
TANH_ALONG = _cell("tanh_along", "h = tanh(x·W + h·U + b)", 1, 1)
RELU_ALONG = _cell("relu_along", "h = relu(x·W + h·U + b)", 1, 1)


class Cell(NamedTuple):
    """A recurrent cell as a kernel computes it.

    Attributes:
        kernel: the kernel.
        gates: the number of gates, whose weights are stacked.
        equations: the next value of each state at one position, the result last. A previous value is written `h_1`.
            The other operands are linear. The first `gates` of them take the input. All of these but the last, and the
            last operand, take the result before.
    """

    kernel: Function
    gates: int
    equations: tuple[KernelEquation, ...]


def _grus() -> Iterator[Cell]:
    """The GRU: between the state and a new value, in each order and in each way to write what lies between."""
    new, kept = "tanh(x[n] + sigmoid(r[n]) * u[n])", "h_1[n]"
    for one, other, update in ((new, kept, "z[n]"), (kept, new, "-1 * z[n]")):
        for way in (
            "(1 - sigmoid(z[n])) * {0} + sigmoid(z[n]) * {1}",
            "{0} + sigmoid(z[n]) * ({1} - {0})",
            "{0} - sigmoid(z[n]) * {0} + sigmoid(z[n]) * {1}",
        ):
            text = f"h[n] = {way.format(one, other)}"
            yield Cell(GRU_ALONG, 3, (KernelEquation(text, (kept, "r[n]", update, "x[n]", "u[n]")),))


CELLS = (
    Cell(
        LSTM_ALONG,
        4,
        (
            KernelEquation(
                "c[n] = sigmoid(f[n]) * c_1[n] + sigmoid(i[n]) * tanh(g[n])",
                ("c_1[n]", "i[n]", "f[n]", "g[n]"),
            ),
            KernelEquation("h[n] = sigmoid(o[n]) * tanh(c[n])", ("c[n]", "o[n]")),
        ),
    ),
    *_grus(),
    Cell(TANH_ALONG, 1, (KernelEquation("h[n] = tanh(x[n])"),)),
    Cell(RELU_ALONG, 1, (KernelEquation("h[n] = relu(x[n])"),)),
)

ROWS = (LSTM_ALONG, GRU_ALONG, TANH_ALONG, RELU_ALONG)
