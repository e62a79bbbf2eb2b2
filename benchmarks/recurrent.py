"""Recurrent layers: tensornet, the library's own in one call, and a loop of its cells.

    python -m benchmarks.recurrent --threads 1 --clock process

Forward, and both ways with the bytes that are kept for backward.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

import tensornet as tn

from .report import run
from .suite import MEASURES, OURS, Case, Contestant, Place, Suite, on_cupy, ours

__all__ = ["SUITE"]

LAYERS: dict[str, Any] = {"LSTM": torch.nn.LSTM, "GRU": torch.nn.GRU, "RNN": torch.nn.RNN}


def _cells(layer: Any) -> tuple[torch.nn.Module, Any]:
    """A cell of the weights of a layer, and the loop over it."""
    kind = getattr(torch.nn, f"{type(layer).__name__}Cell")
    cell = kind(layer.input_size, layer.hidden_size).to(layer.weight_ih_l0)
    weights = {name.removesuffix("_l0"): each for name, each in layer.state_dict().items()}
    cell.load_state_dict(weights)

    def loop(x: torch.Tensor) -> torch.Tensor:
        state, found = None, []
        for each in x.unbind(1):
            state = cell(each, state)
            found.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(found, 1)

    return cell, loop


def recurrent(
    kind: str, batch: int, steps: int, width: int, hidden: int, place: Place
) -> dict[str, Contestant]:
    """A layer over a sequence, from no state, of the same weights."""
    torch.manual_seed(0)
    layer = LAYERS[kind](width, hidden, batch_first=True).to(place.device, place.dtype)
    x = place.drawn(batch, steps, width).requires_grad_()
    graph, parameters = tn.models.from_torch(layer)
    cell, loop = _cells(layer)
    return {
        OURS: ours(graph, parameters, (x,), place),
        **on_cupy(graph, parameters, (x,), place),
        "torch": Contestant(lambda x: layer(x)[0], (x,), tuple(layer.parameters())),
        "a loop of cells": Contestant(loop, (x,), tuple(cell.parameters())),
    }


def tensorized(batch: int, steps: int, place: Place) -> dict[str, Contestant]:
    """An LSTM whose weights are block tensor trains, and the library's, of the weights that these are."""
    graph = tn.models.lstm((8, 16), (16, 16), factorization="blocktt", rank=4)
    x = place.drawn(batch, steps, 128)
    mine = ours(graph, None, (x,), place)
    assert isinstance(mine.function, torch.nn.Module)
    p = {name.rpartition(".")[2]: each for name, each in mine.function.named_parameters()}

    def dense(letter: str) -> torch.Tensor:
        gates = (torch.einsum("air,rbj->abij", p[f"{letter}{g}_G1"], p[f"{letter}{g}_G2"]) for g in "ifgo")
        return torch.cat([each.flatten(2).flatten(0, 1) for each in gates])

    layer = torch.nn.LSTM(128, 256, batch_first=True).to(place.device, place.dtype)
    biases = torch.cat([p[f"b{gate}"].flatten() for gate in "ifgo"])
    weights = (dense("W"), dense("U"), biases, torch.zeros_like(biases))
    layer.load_state_dict(dict(zip(layer.state_dict(), weights, strict=True)))
    cell, loop = _cells(layer)
    return {
        OURS: mine,
        "torch": Contestant(lambda x: layer(x)[0], (x,), tuple(layer.parameters())),
        "a loop of cells": Contestant(loop, (x,), tuple(cell.parameters())),
    }


def _case(kind: str, batch: int, steps: int, width: int, hidden: int) -> Case:
    name = f"{kind}, {batch} sequences of {steps}, {width}→{hidden}"
    return Case(name, partial(recurrent, kind, batch, steps, width, hidden), MEASURES)


def _tensorized(batch: int, steps: int) -> Case:
    name = f"LSTM of block tensor trains, {batch} sequences of {steps}, 128→256"
    return Case(name, partial(tensorized, batch, steps))


SUITE = Suite(
    "recurrent",
    "recurrent layers, against torch's and loops of its cells",
    {
        "usual": (*(_case(kind, 32, 256, 128, 256) for kind in LAYERS), _tensorized(32, 256)),
        "tiny": (*(_case(kind, 2, 3, 4, 5) for kind in LAYERS), _tensorized(2, 3)),
        "large": tuple(_case(kind, 256, 512, 512, 1024) for kind in LAYERS),
    },
)

if __name__ == "__main__":
    run(SUITE)
