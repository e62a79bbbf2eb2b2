"""Converters of recurrent layers from torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensornet.api as tn

from ..recurrent import LETTERS, gru, lstm, rnn
from .names import Converter, Made, Names, known_class, refuse

__all__ = ["TORCH_RECURRENT"]

_MAKERS: dict[str, Callable[..., tn.Graph]] = {"RNN": rnn, "LSTM": lstm, "GRU": gru}


def _recurrent(module: Any, changes: dict[str, Any]) -> tuple[tn.Graph, Names]:
    kind = known_class(module, _MAKERS)
    refuse(getattr(module, "proj_size", 0) > 0, "proj_size")
    refuse(module.dropout > 0 and module.num_layers > 1, "dropout between layers")
    settings: dict[str, Any] = {
        "layers": module.num_layers,
        "bidirectional": module.bidirectional,
        "bias": module.bias,
    }
    if kind == "RNN":
        settings["nonlinearity"] = module.nonlinearity
    graph = _MAKERS[kind](module.input_size, module.hidden_size, **{**settings, **changes})
    return graph, dict(_names(module, kind))


def _names(module: Any, kind: str) -> Iterator[tuple[str, Made]]:
    """The source of each of our weights: one gate of a stack in torch. The two biases of a gate are added to one.

    The candidate gate n of a GRU keeps both biases.
    """
    letters = LETTERS[kind.lower()]
    ways = {"onward": "", "backward": "_reverse"}
    for way, suffix in list(ways.items())[: 1 + module.bidirectional]:
        ours, theirs = f"layers.#.{way}", f"l#{suffix}"
        for gate, letter in enumerate(letters):

            def part(*stacks: Any, gate: int = gate) -> Any:
                return sum(stack.chunk(len(letters))[gate] for stack in stacks)

            yield f"{ours}.W{letter}", Made((f"weight_ih_{theirs}",), part)
            yield f"{ours}.U{letter}", Made((f"weight_hh_{theirs}",), part)
            apart = (kind, letter) == ("GRU", "n")
            biases = (f"bias_ih_{theirs}", f"bias_hh_{theirs}")
            yield f"{ours}.b{letter}", Made(biases[:1] if apart else biases, part)
            if apart:
                yield f"{ours}.un", Made(biases[1:], part)


TORCH_RECURRENT: dict[str, Converter] = dict.fromkeys(_MAKERS, _recurrent)
