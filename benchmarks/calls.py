"""What a call costs where there is little to compute: tensornet, and what plans at each call.

    python -m benchmarks.calls

`tn.einsum` of small operands against `opt_einsum.contract` and `torch.einsum`, all given the text each time; and
`tn.module` of small layers against a module that calls PyTorch's functions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import opt_einsum
import torch

import tensornet as tn

from .report import run
from .suite import MEASURES, OURS, Case, Contestant, Place, Suite, ours

__all__ = ["SUITE"]

EQUATIONS = (
    "bi,oi->bo",
    "bij,bjk->bik",
    "bhid,bhjd->bhij",
    "bij,pi,qj->bpq",
    "bijk,pi,qj,rk->bpqr",
    "ar,br,cr,dr->abcd",
    "bi,ir,jr,jo->bo",
    "abc,cde,efg,gha->bdfh",
)
"""A matrix product, batched ones, contraction layers, a CP tensor, low-rank weights, a ring."""


def eager(equation: str, place: Place) -> dict[str, Contestant]:
    """Operands with axes of two to eight."""
    draw = random.Random(equation)
    terms = equation.partition("->")[0].split(",")
    sizes = {axis: draw.randint(2, 8) for axis in dict.fromkeys("".join(terms))}
    operands = tuple(
        place.drawn(*(sizes[axis] for axis in term), seed=number) for number, term in enumerate(terms)
    )
    contract = {OURS: tn.einsum, "opt_einsum": opt_einsum.contract, "torch.einsum": torch.einsum}
    return {name: Contestant(partial(each, equation), operands) for name, each in contract.items()}


class ByHand(torch.nn.Module):
    """A module of parameters and a function of them."""

    def __init__(self, function: Callable[..., torch.Tensor], parameters: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        for name, each in parameters.items():
            self.register_parameter(name, torch.nn.Parameter(each.detach().clone()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, **self._parameters)


MODULES: dict[str, tuple[str, Callable[..., torch.Tensor]]] = {
    "a gain": ("y[b,i] = x[b,i] * g[i]", lambda x, g: x * g),
    "a layer": (
        "y[b,o] = relu(x[b,i] * W[o,i] + c[o])",
        lambda x, W, c: torch.relu(torch.nn.functional.linear(x, W, c)),
    ),
    "two layers": (
        "h[b,o] = relu(x[b,i] * W[o,i] + c[o])\ny[b,i] = h[b,o] * V[i,o]",
        lambda x, W, c, V: torch.nn.functional.linear(torch.relu(torch.nn.functional.linear(x, W, c)), V),
    ),
}
"""Layers of 4 × 16 numbers and 8 outputs, which take a few microseconds."""

DEPTH = 12
"""Blocks of the deepest module."""


def module(name: str, place: Place) -> dict[str, Contestant]:
    """A small layer as a module."""
    text, function = MODULES[name]
    x = place.drawn(4, 16)
    graph = tn.layer(text, inputs="x", i=16, **({"o": 8} if "o" in text else {}))
    mine = ours(graph, None, (x,), place)
    assert isinstance(mine.function, torch.nn.Module)
    hand = ByHand(function, dict(mine.function.named_parameters()))
    return {OURS: mine, "by hand": Contestant(hand, (x,), tuple(hand.parameters()))}


def blocks(place: Place) -> dict[str, Contestant]:
    """Twelve layers of equal sizes, one after another, each a block."""
    text, function = MODULES["a layer"]
    block = tn.layer(text, inputs="x", i=16, o=16)

    def forward(x: Any) -> Any:
        for number in range(DEPTH):
            x = block(x, scope=f"blocks.{number}")
        return x

    x = place.drawn(4, 16)
    mine = ours(tn.model(forward, inputs="x[b,i]", i=16), None, (x,), place)
    assert isinstance(mine.function, torch.nn.Module)
    parts = (mine.function.get_submodule(f"blocks.{number}") for number in range(DEPTH))
    hand = torch.nn.Sequential(*(ByHand(function, dict(each.named_parameters())) for each in parts))
    return {OURS: mine, "by hand": Contestant(hand, (x,), tuple(hand.parameters()))}


CASES = (
    *(Case(equation, partial(eager, equation)) for equation in EQUATIONS),
    *(Case(f"module of {name}", partial(module, name), MEASURES) for name in MODULES),
    Case("module of twelve blocks", blocks, MEASURES),
)
SUITE = Suite(
    "calls",
    "einsum of small operands, planned or looked up at each call, and small modules",
    {"usual": CASES, "tiny": CASES, "large": CASES},
)

if __name__ == "__main__":
    run(SUITE)
