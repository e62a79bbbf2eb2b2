"""Recurrent cells as library kernels: LSTM, GRU and the plain RNN, all positions in one call.

    lstm_along(x, W, U, h, c, b), gru_along(x, W, U, h, b, u), tanh_along(x, W, U, h, b)

`W[n,i]` and `U[n,p]` hold the weights of the gates one after another, in the order of PyTorch. `b[n]` is added to
the sum of both products, and `u[n]` to the product of the state alone. Both may be missing. `h` and `c` are the
initial states.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

from ..nodes import Call, Ref
from .protocols import Left, Lowering, Value, Writer, common, extent, layout_of, left_of, sizes_of
from .record import Element, Function, KernelEquation, placed_kernel

Axes = tuple[str, ...]


class _Form(NamedTuple):
    """The axes of a call: of the input, the gates, the state that they read and the state that they compute.

    Attributes:
        along, batch: the axis of positions, and the axes of independent sequences.
        given, gates, read, made: the channels of the input, the rows of the weights, and the channels of a state where
            it is read and where it is computed.
    """

    along: Axes
    batch: Axes
    given: Axes
    gates: Axes
    read: Axes
    made: Axes

    @staticmethod
    def of(layouts: Sequence[Axes]) -> _Form:
        """Classifies each axis by the operands that have it."""
        x, w, u, state, *_ = layouts
        return _Form(
            common(x, but=(w, state)),
            common(x, state),
            common(x, w),
            common(w, but=(x,)),
            common(u, but=(w,)),
            common(state, but=(x,)),
        )

    def operands(self, call: Call) -> list[list[Axes]]:
        """The dimensions of each operand."""
        states = 2 if call.function == LSTM_ALONG.name else 1
        first = [[self.along, self.batch, self.given], [self.gates, self.given], [self.gates, self.read]]
        biases = len(call.arguments) - len(first) - states
        return [*first, *[[self.batch, self.made]] * states, *[[self.gates]] * biases]

    @property
    def result(self) -> list[Axes]:
        """The dimensions of the result."""
        return [self.along, self.batch, self.made]


def _through(layouts: Sequence[Axes]) -> Axes:
    """All axes except those of the batch."""
    return tuple(itertools.chain(*_Form.of(layouts)._replace(batch=())))


def _lower(lowering: Lowering, call: Call) -> Value:
    """Lowers a cell to a step: one product for all positions, one for each, and pointwise work in the cache."""
    values = [lowering.convert(lowering.lower(each), Element.NUMBER) for each in call.arguments]
    form = _Form.of([each.layout for each in values])
    values = [lowering.grouped(*each) for each in zip(values, form.operands(call), strict=True)]
    along, batch, given, gates, read, made = map(lowering.count, form)
    profile, size, sizes = lowering.profile, lowering.itemsize, sizes_of(values)
    seconds = profile.matmul(1, along * batch, gates, given, size)
    seconds += along * profile.matmul(1, batch, gates, read, size)
    written = size * along * batch * made
    seconds += profile.pointwise(size * along * batch * (gates + made), written)
    positions = extent(sizes, (*form.along, *form.batch, *form.gates))
    flops = 2 * positions * (extent(sizes, form.given) + extent(sizes, form.read))
    right = replace(call, arguments=tuple(each.ref for each in values))
    return lowering.emit(left_of(form.result), right, values, Element.NUMBER, seconds=seconds, flops=flops)


def _spell(writer: Writer, call: Call, left: Left) -> str:
    """The call with its operands in order, in the dimensions that the kernel requires."""
    refs = cast("tuple[Ref, ...]", call.arguments)
    form = _Form.of([layout_of(each) for each in refs])
    texts = [writer.view(*each, ones=True) for each in zip(refs, form.operands(call), strict=True)]
    text = writer.op(call.function, ", ".join(texts), **writer.options(call))
    return text if all(form.result) else writer.reshaped(text, left)


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
