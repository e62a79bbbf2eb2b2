"""Recurrent networks of torch with linear layers in the place of their weights, so that these may become factors.

    r, z, n = σ(x·Wᵣ + h·Uᵣ), σ(x·W_z + h·U_z), tanh(x·Wₙ + r ∘ h·Uₙ),    h' = (1 − z) ∘ n + z ∘ h    (GRU)

A call multiplies factors together and runs the kernel of torch, or loops over positions and multiplies each state by
the factors. Inputs are multiplied by V of a weight U·V before the kernel, which then reads U. Without gradients, it
measures both at each new number of rows, and then takes what was faster. The loop does less arithmetic, and has fewer
operations at each position; the kernel spends no time in Python. Of one or two rows, where small operations take most
of the time, NumPy does those of the loop as a third way. Where activations may be rounded, kernels of integers are
another one.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from ..products import is_recorded, is_traced
from ..rnn import CELLS, IN_NUMPY, IN_PLACE, TYPES, steps
from . import rounded
from .factorized import Factorized, factors_of
from .rounded import Kept, by_columns, tensors_in
from .running import fastest

Module: TypeAlias = torch.nn.Module

FEW = 2
"""The most rows for which loops are tried in NumPy."""

SOME = 32
"""The most positions at which ways are measured."""


class _Loop(NamedTuple):
    """What a layer and direction multiplies by position by position.

    Attributes:
        gates: makes x·W with all biases but `inner`.
        inner: the bias of the elements of h·U that a GRU multiplies by its gate r, or 0.
        multiply: adds h·U to its first argument, and writes that to the last one.
    """

    gates: Callable[[Any], torch.Tensor]
    inner: Any
    multiply: Callable[..., Any]


class _Flat(NamedTuple):
    """What a call of a recurrent module multiplies by.

    Attributes:
        weights: in the order of torch.
        factor: what inputs are multiplied by before the first of them, if there is one.
        loops: of each layer and direction, in calls without gradients.
    """

    weights: list[torch.Tensor]
    factor: torch.Tensor | None
    loops: list[_Loop]


class _Opened(torch.nn.Module):
    """A recurrent module as linear layers `ih…` and `hh…`; all other attributes are those that it had.

    Attributes:
        suffixes: what follows `weight_ih` in the names of the weights of each layer and direction.
    """

    suffixes: tuple[str, ...]

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.suffixes = tuple(
            name.removeprefix("weight_ih") for name in base._parameters if name.startswith("weight_ih")
        )
        for suffix, way in itertools.product(self.suffixes, ("ih", "hh")):
            weight, bias = (base._parameters.get(f"{kind}_{way}{suffix}") for kind in ("weight", "bias"))
            linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
            linear.weight, linear.bias = weight, bias
            self.add_module(f"{way}{suffix}", linear)
        base._parameters.clear()
        self.__dict__["base"] = base
        self.training = base.training

    def __getattr__(self, name: str) -> Any:
        kind, _, way = name.partition("_")
        if kind in ("weight", "bias") and way in self.__dict__["_modules"]:
            return getattr(self._modules[way], kind)
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "base" not in self.__dict__:
                raise
            return getattr(self.__dict__["base"], name)

    def pairs(self) -> Iterator[tuple[Any, Any]]:
        """The linear layers of inputs and of states, of each layer and direction."""
        for suffix in self.suffixes:
            yield self._modules[f"ih{suffix}"], self._modules[f"hh{suffix}"]

    def closed(self) -> Any:
        """The module as it was, if all weights are as they were; else this one."""
        if any(isinstance(each, Factorized) for pair in self.pairs() for each in pair):
            return self
        for suffix, kind, way in itertools.product(self.suffixes, ("weight", "bias"), ("ih", "hh")):
            if (held := getattr(self._modules[f"{way}{suffix}"], kind)) is not None:
                self.base._parameters[f"{kind}_{way}{suffix}"] = held
        if isinstance(self.base, torch.nn.RNNBase):
            self.base._init_flat_weights()
        self.base.training = self.training
        return self.base


class Cell(_Opened):
    """A cell of a recurrent network."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        """The next state, or of an LSTM the next state and cell."""
        (ih, hh), is_lstm = next(self.pairs()), isinstance(self.base, torch.nn.LSTMCell)
        if hx is None:
            zeros = input.new_zeros(*input.shape[:-1], self.base.hidden_size)
            hx = (zeros, zeros) if is_lstm else zeros
        states = hx if is_lstm else (hx,)
        kinds = {torch.nn.LSTMCell: "lstm", torch.nn.GRUCell: "gru"}
        kind = kinds.get(type(self.base)) or f"rnn_{self.base.nonlinearity}"
        made = CELLS[kind](ih(input), hh(states[0]), states)
        return made if is_lstm else made[0]


class Recurrence(_Opened):
    """A GRU, an LSTM or an RNN of torch."""

    def __init__(self, base: Any) -> None:
        super().__init__(base)
        nothing = [None for _ in base._flat_weights_names]
        base.__dict__.update(_flat_weights=nothing, _flat_weight_refs=nothing)
        integers = rounded.Integers(next(self.pairs())[1].weight.numel(), base.input_size)
        self.__dict__.update(_kept=Kept[_Flat](), _faster={}, _integers=integers)

    def forward(self, input: Any, hx: Any = None) -> Any:
        """All states of the last layer, and the last ones of all layers, as the module of torch gives them."""
        is_plain = self._is_plain(input)  # torch refuses other sizes
        is_bare = not (torch.is_grad_enabled() or is_recorded())
        watched = True in [bool(each._forward_hooks) for each in self._modules.values() if each is not None]
        if is_plain and (watched or (is_bare and is_traced())):  # by transforms, which kernels do not know
            return self._looped(input, hx)
        if watched and isinstance(input, torch.nn.utils.rnn.PackedSequence):
            return self._one_by_one(input, hx)
        draws = self.training and self.base.dropout  # which measuring would do more than once
        kept = draws or self.base._forward_hooks or self.base._forward_pre_hooks
        if is_plain and is_bare and not (kept or _is_mixed(input) or not input.numel()):
            return self._measured(input, hx)
        return self._fused(input, hx)

    def _is_plain(self, input: Any) -> bool:
        """Whether an input is a batch of sequences as wide as the module reads."""
        is_batch = isinstance(input, torch.Tensor) and input.ndim == 3
        return is_batch and input.shape[-1] == self.base.input_size

    def _one_by_one(self, input: Any, hx: Any) -> Any:
        """A packed batch, each sequence in a loop of its own, so that layers see no padding."""
        rnn, base, along = torch.nn.utils.rnn, self.base, 1 if self.base.batch_first else 0
        padded, lengths = rnn.pad_packed_sequence(input._replace(sorted_indices=None, unsorted_indices=None))
        hx = None if hx is None else base.permute_hidden(hx, input.sorted_indices)
        starts, found, ends = self._starts(padded.transpose(0, along), hx), list[Any](), list[Any]()
        for n, length in enumerate(lengths):
            start = tuple(each[:, n : n + 1] for each in starts)
            x = padded[:length, n : n + 1].transpose(0, along)
            y, last = self._looped(x, start if len(start) > 1 else start[0])
            found.append(y.flatten(0, 1))
            ends.append(last if isinstance(last, tuple) else (last,))
        whole = tuple(torch.cat(each, 1) for each in zip(*ends, strict=True))
        data = rnn.pack_padded_sequence(rnn.pad_sequence(found), lengths).data
        whole = base.permute_hidden(whole if len(whole) > 1 else whole[0], input.unsorted_indices)
        return input._replace(data=data), whole

    def _measured(self, input: Any, hx: Any) -> Any:
        """The fastest way at about so many rows, by the clock, on the first positions. Equal modules take the same."""
        cells, along = self._integers.cells(self, input, hx), int(self.base.batch_first)
        rows, positions = input.shape[1 - along], input.shape[along]
        some = min(positions, SOME)
        key = (rows - 1).bit_length(), some.bit_length(), bool(cells), input.device, input.dtype
        if (way := self._faster.get(key)) is None:
            first = input.narrow(along, 0, some)
            alike = key, self.base.mode, *(each.shape for each in tensors_in(self))
            ways = self._ways(rows, input, cells)
            way = self._faster[key] = fastest(ways, lambda each: each(self, first, hx, cells), alike)
        return way(self, input, hx, cells)

    def _ways(self, rows: int, input: Any, cells: Any) -> list[Any]:
        """The ways that may be the fastest one."""
        ways: list[Any] = [Recurrence._fused, Recurrence._stepped]
        is_known = self.base.mode.lower() in IN_NUMPY and input.dtype in TYPES["cpu"]
        if is_known and rows <= FEW and input.is_cpu:
            ways.append(Recurrence._in_numpy)
        return [*ways, Recurrence._by_integers] if cells else ways

    def _by_integers(self, input: Any, hx: Any, cells: Any) -> Any:
        """By the kernel of torch that rounds inputs and states."""
        base = self.base
        options = True, base.num_layers, 0.0, False, base.bidirectional, base.batch_first
        y, *last = rounded.KERNELS[base.mode](input, self._starts(input, hx), cells, *options)
        return y, tuple(last) if len(last) > 1 else last[0]

    def _fused(self, input: Any, hx: Any, cells: Any = None) -> Any:
        """By the kernel of torch, with whole weights."""
        base = self.base
        if not self._is_plain(input) or base._forward_hooks or base._forward_pre_hooks:
            return self._by_module(input, hx)
        states, (weights, factor, _) = self._starts(input, hx), self._flat()
        x = input if factor is None else torch.nn.functional.linear(input, factor)
        if base.batch_first:  # positions one after another in memory are read faster
            x = x.transpose(0, 1).contiguous()
        start = states if len(states) > 1 else states[0]
        options = base.bias, base.num_layers, base.dropout, self.training, base.bidirectional, False
        y, *last = getattr(torch, base.mode.lower())(x, start, weights, *options)
        return y.transpose(0, 1) if base.batch_first else y, tuple(last) if len(last) > 1 else last[0]

    def _starts(self, input: Any, hx: Any) -> tuple[Any, ...]:
        """The states before the first position, of all layers: those given, or zeros."""
        base, is_lstm = self.base, self.base.mode == "LSTM"
        if hx is None:
            rows = input.shape[0 if base.batch_first else 1]
            zeros = input.new_zeros(len(self.suffixes), rows, base.hidden_size)
            return (zeros, zeros) if is_lstm else (zeros,)
        states: tuple[Any, ...] = tuple(hx) if is_lstm else (hx,)
        for each in states:
            base.check_hidden_size(each, base.get_expected_hidden_size(input, None))
        return states

    def _by_module(self, input: Any, hx: Any) -> Any:
        """By the module of torch with whole weights. Its copy holds them, as threads may call at once."""
        base, (weights, factor, _) = object.__new__(type(self.base)), self._flat()
        base.__dict__.update(self.base.__dict__, _flat_weights=weights, training=self.training)
        is_packed = isinstance(input, torch.nn.utils.rnn.PackedSequence)
        data = input.data if is_packed else input
        if factor is not None and data.shape[-1] == base.input_size:  # torch refuses other sizes
            data, base.input_size = torch.nn.functional.linear(data, factor), len(factor)
            input = input._replace(data=data) if is_packed else data
        return base(input, hx)

    def _flat(self) -> _Flat:
        """What calls multiply by. Calls without gradients keep it while no factor changes."""
        tensors = tensors_in(self)
        if is_recorded() or _is_mixed(tensors[0]):
            return self._made(False)
        if torch.is_grad_enabled():
            self._kept.clear()
            return self._made(False)
        kept: Kept[_Flat] = self._kept
        return kept.read(tensors, self.training, functools.partial(self._made, True))

    def train(self, mode: bool = True) -> Any:
        """Training mode, or evaluation mode. What was kept is made again."""
        self._kept.clear()
        return super().train(mode)

    def _made(self, is_kept: bool) -> _Flat:
        """What calls multiply by, with `products` and in the fastest layout if it is kept."""
        pair = None if self.base.bidirectional else _factors(next(self.pairs())[0])
        first, *names = self.base._flat_weights_names
        u, v = pair or (getattr(self, first), None)
        weights = [u, *(getattr(self, name) for name in names)]
        if not is_kept:
            return _Flat(weights, v, [])
        turned = [by_columns(each) if each.ndim > 1 else each for each in weights]
        held = dict(zip(self.base._flat_weights_names, turned, strict=True))
        loops = [
            _loop(*pair, held[f"weight_ih{end}"], held[f"weight_hh{end}"])
            for end, pair in zip(self.suffixes, self.pairs(), strict=True)
        ]
        if self.base.mode == "LSTM":  # oneDNN's is faster by rows
            turned = [each.detach().contiguous() for each in weights]
        return _Flat(turned, v, loops)

    def _stepped(self, input: Any, hx: Any, cells: Any = None) -> Any:
        """Position by position, with factors as they are, in place."""
        return self._looped(input, hx, self._flat().loops, functools.partial(_in_place, IN_PLACE))

    def _in_numpy(self, input: Any, hx: Any, cells: Any = None) -> Any:
        """The same with functions of NumPy."""
        with np.errstate(all="ignore"):  # torch does not warn
            return self._looped(input, hx, self._flat().loops, functools.partial(_in_place, IN_NUMPY))

    def _looped(self, input: Any, hx: Any, layers: Any = None, run: Callable[..., Any] | None = None) -> Any:
        """Position by position, with each pair of layers for inputs and states, or with those of this module."""
        base, x, along = self.base, input, 1 if self.base.batch_first else 0
        starts, kind = self._starts(input, hx), base.mode.lower()
        ends, sides = list[Any](), list[Any]()
        for n, layer in enumerate(layers or self.pairs()):
            state = tuple(each[n] for each in starts)
            is_reverse = base.bidirectional and n % 2 == 1
            found, state = (run or _recorded)(kind, layer, x.flip(along) if is_reverse else x, state, along)
            sides.append(found.flip(along) if is_reverse else found)
            ends.append(state)
            if not base.bidirectional or is_reverse:
                x, sides = torch.cat(sides, -1) if len(sides) > 1 else sides[0], []
                if base.dropout and self.training and n + 1 < len(self.suffixes):
                    x = torch.dropout(x, base.dropout, True)
        last = tuple(
            each[0][None] if len(each) == 1 else torch.stack(each) for each in zip(*ends, strict=True)
        )
        return x, last if len(last) > 1 else last[0]


def _recorded(kind: str, pair: Any, x: Any, state: Any, along: int) -> tuple[Any, Any]:
    """The states of a layer and the last one, by operations that autograd records."""
    ih, hh = pair
    states, last = steps(kind, ih(x).unbind(along), hh, state)
    return torch.stack(states, along), last


def _in_place(
    cells: Mapping[str, Callable[..., Any]], kind: str, loop: _Loop, x: Any, state: Any, along: int
) -> tuple[Any, Any]:
    """The same without gradients, by fewer operations: they write over what is no longer read."""
    x = x.transpose(0, along)  # positions that lie one after another are read faster
    count, rows, _ = x.shape
    gates = loop.gates(x.flatten(0, 1)).view(count, rows, -1)
    states = gates.new_empty((count, rows, state[0].shape[-1]))
    last = cells[kind](gates, loop.inner, loop.multiply, state, states)
    return states.transpose(0, along), last


def _is_mixed(tensor: torch.Tensor) -> bool:
    """Whether autocast chooses the types of products, so that no loop writes in place and no weight is kept."""
    return torch.is_autocast_enabled(tensor.device.type)


def _is_product(layer: Any) -> bool:
    """Whether the weight of a layer is made of factors."""
    return isinstance(layer, Factorized) and layer._wholes["weight"].lone is None  # type: ignore[attr-defined]


def _loop(ih: Any, hh: Any, w: torch.Tensor, u: torch.Tensor) -> _Loop:
    """The products of the layers of inputs and of states, whose whole weights are W and U."""
    bias, inner = (u.new_zeros(len(u)) if each.bias is None else each.bias.detach() for each in (ih, hh))
    size = 2 * u.shape[1] if len(u) == 3 * u.shape[1] else len(u)  # of a GRU two of three gates
    bias = torch.cat([bias[:size] + inner[:size], bias[size:]])
    gates = functools.partial(_multiplied(ih, w), bias)
    return _Loop(gates, inner[size:], _multiplied(hh, u))


def _multiplied(layer: Any, whole: torch.Tensor) -> Callable[..., Any]:
    """A function of numbers or None, of rows, and of memory: the layer of the rows, added to the numbers."""
    u: Any
    v: Any
    if (pair := _factors(layer)) is not None:
        u, v = (by_columns(each).t() for each in pair)
    elif _is_product(layer):
        u, v = None, layer._modules[layer._place]
    else:
        u, v = whole.detach().t(), None

    def run(given: Any, rows: Any, out: Any = None) -> Any:
        if v is not None:
            rows = v(rows) if u is None else torch.mm(rows, v)
        if given is None:
            return out.copy_(rows) if u is None else torch.mm(rows, u, out=out)
        return torch.add(given, rows, out=out) if u is None else torch.addmm(given, rows, u, out=out)

    return run


def _factors(layer: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """U and V of a layer of low rank, else None."""
    return factors_of(layer) if getattr(layer, "_is_low_rank", False) else None


WHOLE = torch.nn.GRU, torch.nn.LSTM, torch.nn.RNN
CELL = torch.nn.GRUCell, torch.nn.LSTMCell, torch.nn.RNNCell


def opened(network: Module) -> Module:
    """The network with recurrent modules opened, in place. Those with projections stay as they are."""

    def made(module: Any) -> Any:
        if type(module) in WHOLE and not module.proj_size:
            return Recurrence(module)
        return Cell(module) if type(module) in CELL else module

    return _exchanged(network, made)


def closed(network: Module) -> Module:
    """The network with recurrent modules as they were where no weight became factors, in place."""
    return _exchanged(network, lambda each: each.closed() if isinstance(each, _Opened) else each)


def _exchanged(network: Module, made: Callable[[Any], Any]) -> Module:
    """The network with other modules in the place of some, in place."""
    known = {id(each): made(each) for each in [*network.modules()]}
    for parent in [*network.modules()]:
        for name, each in parent._modules.items():
            if each is not None:
                parent._modules[name] = known[id(each)]
    return known[id(network)]  # type: ignore[no-any-return]
