"""Factorized linear layers, 1024 → 1024: tensornet, tensorly-torch's, torch.einsum, and the dense layer.

    python -m benchmarks.linear

The dense layer has the weight that the factors make, multiplied out beforehand. tensorly-torch has Tucker, CP
and block-TT.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from string import ascii_letters
from typing import Any

import torch

import tensornet as tn

from .report import run
from .suite import MEASURES, OURS, Case, Contestant, Place, Suite, on_cupy, ours

__all__ = ["SUITE"]

MODES = (8, 8, 16)


def layer(
    factorization: str, share: float, batch: int, modes: tuple[int, ...], place: Place
) -> dict[str, Contestant]:
    """A factorized layer with so large a share of the dense one's parameters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where no rank comes near the share
        graph = tn.models.linear(modes, modes, factorization=factorization, rank=share)
    x = place.drawn(batch, torch.Size(modes).numel())
    mine = ours(graph, None, (x,), place)
    module = mine.function
    assert isinstance(module, torch.nn.Module)
    parameters = dict(module.named_parameters())
    bias = parameters["bias"]
    bias.data = place.drawn(*bias.shape, seed=1)
    factors = [parameters[leaf.name] for leaf in graph.parameters if leaf.name != "bias"]
    equation = _equation(graph, len(modes))

    def einsum(x: torch.Tensor, factors: list[torch.Tensor] = factors) -> torch.Tensor:
        y = torch.einsum(equation, x.view(-1, *modes), *factors)
        return y.reshape(len(x), -1)

    with torch.no_grad():
        ones = torch.eye(x.shape[1], device=x.device, dtype=torch.float64)
        dense = einsum(ones, [each.double() for each in factors]).T.to(place.dtype).contiguous()
    dense.requires_grad_()
    peers = {
        "torch.einsum": Contestant(lambda x: einsum(x) + bias, (x,), (*factors, bias)),
        "dense": Contestant(lambda x: torch.nn.functional.linear(x, dense, bias), (x,), (dense, bias)),
    }
    if factorization in THEIRS:
        theirs = _tltorch(factorization, modes, parameters, factors, place)
        peers = {"tltorch": Contestant(theirs, (x,), tuple(theirs.parameters())), **peers}
    return {OURS: mine, **on_cupy(graph, parameters, (x,), place), **peers}


def _equation(graph: tn.Graph, order: int) -> str:
    """The contraction of such a layer in letters, the batch first."""
    factors = [
        [axis.name for dim in leaf.dims for axis in dim] for leaf in graph.parameters if leaf.name != "bias"
    ]
    numbers = range(1, order + 1)
    x, y = (["b", *(f"{letter}{number}" for number in numbers)] for letter in "io")
    named = dict.fromkeys(axis for term in (x, *factors, y) for axis in term)
    letters = dict(zip(named, ascii_letters, strict=False))
    *terms, result = ("".join(letters[axis] for axis in term) for term in (x, *factors, y))
    return f"{','.join(terms)}->{result}"


# ---------------------------------------------------------------------------- tensorly-torch


def _tucker(weight: Any, factors: list[torch.Tensor]) -> list[tuple[Any, torch.Tensor]]:
    return list(zip([weight.core, *weight.factors], factors, strict=True))


def _cp(weight: Any, factors: list[torch.Tensor]) -> list[tuple[Any, torch.Tensor]]:
    return [(weight.weights, torch.ones_like(weight.weights)), *zip(weight.factors, factors, strict=True)]


def _blocktt(weight: Any, factors: list[torch.Tensor]) -> list[tuple[Any, torch.Tensor]]:
    return list(zip(weight.factors, factors, strict=True))


THEIRS: dict[str, tuple[Callable[..., Any], Callable[[Mapping[str, torch.Tensor], int], Any]]] = {
    "tucker": (_tucker, lambda p, order: tuple(p["G"].shape)),
    "cp": (_cp, lambda p, order: p["A1"].shape[1]),
    "blocktt": (_blocktt, lambda p, order: (1, *(p[f"G{n}"].shape[-1] for n in range(1, order)), 1)),
}
"""Factorization → theirs and ours in pairs; the ranks, as they are given there."""


def _tltorch(
    factorization: str,
    modes: tuple[int, ...],
    parameters: Mapping[str, torch.Tensor],
    factors: list[torch.Tensor],
    place: Place,
) -> torch.nn.Module:
    """Their layer, with our factors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tensorly-torch warns of its own spelling when imported
        import tltorch

        pairs, rank = THEIRS[factorization]
        module = tltorch.FactorizedLinear(
            modes, modes, factorization=factorization, rank=rank(parameters, len(modes))
        ).to(place.device, place.dtype)
    with torch.no_grad():
        module.bias.copy_(parameters["bias"])
        for target, source in pairs(module.weight, factors):
            target.copy_(source.reshape(target.shape))
    assert isinstance(module, torch.nn.Module)
    return module


def _case(factorization: str, share: float, batch: int, modes: tuple[int, ...] = MODES) -> Case:
    name = f"{factorization}, {share:.0%}, batch {batch:,}"
    return Case(name, partial(layer, factorization, share, batch, modes), MEASURES)


KINDS = ("tucker", "cp", "tt", "blocktt", "kronecker")


def _cases(batches: tuple[int, ...]) -> tuple[Case, ...]:
    return tuple(_case(kind, share, batch) for batch in batches for share in (0.05, 0.2) for kind in KINDS)


SUITE = Suite(
    "linear",
    f"factorized linear layers, {' × '.join(map(str, MODES))} to as many, forward and both ways",
    {
        "usual": _cases((64, 2048)),
        "tiny": tuple(_case(kind, 0.5, 3, (2, 3, 4)) for kind in KINDS),
        "large": _cases((64, 65_536)),
    },
)

if __name__ == "__main__":
    run(SUITE)
