"""Contractions of three to five operands, and tensor contraction layers: tensornet, and the libraries that order them.

    python -m benchmarks.contractions

The peers: `opt_einsum.contract_expression`, planned beforehand as ours is; `torch.einsum`, which asks opt_einsum
at every call; for contraction layers tensorly-torch's `TCL`.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice

import opt_einsum
import torch

import tensornet as tn

from .report import run
from .suite import MEASURES, OURS, Case, Contestant, Place, Suite, on_cupy, ours

__all__ = ["CONTRACTIONS", "TCL"]

LAYERS = (
    (100_352, (4, 4, 6), (4, 4, 6)),
    (25_088, (4, 4, 12), (4, 4, 12)),
    (6_272, (4, 8, 12), (4, 8, 12)),
    (6_272, (8, 8, 6), (8, 16, 12)),
    (1_568, (8, 8, 12), (8, 8, 12)),
    (50_176, (4, 4, 3), (4, 4, 6)),
)
"""Patches, sizes, ranks: stages of a tensorized Swin Transformer on 224×224 images, batch 32."""

DRAWN = 60
"""How many random contractions are measured."""


def contracted(
    terms: tuple[str, ...], result: str, sizes: Mapping[str, int], place: Place
) -> dict[str, Contestant]:
    """A contraction of drawn operands, all of them inputs."""
    names = [f"x{number}" for number in range(len(terms))]
    factors = [f"{name}[{','.join(term)}]" for name, term in zip(names, terms, strict=True)]
    y = f"y[{','.join(result)}]" if result else "y"
    graph = tn.layer(f"{y} = {' * '.join(factors)}", inputs=factors, **dict(sizes))
    operands = tuple(
        place.drawn(*(sizes[axis] for axis in term), seed=number) for number, term in enumerate(terms)
    )
    equation = f"{','.join(terms)}->{result}"
    return {
        OURS: ours(graph, None, operands, place),
        **on_cupy(graph, {}, operands, place),
        **_by_path(equation, operands),
    }


def tensor_contraction_layer(
    batch: int, sizes: tuple[int, ...], ranks: tuple[int, ...], place: Place
) -> dict[str, Contestant]:
    """A TCL over three modes, on the same factors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tensorly-torch warns of its own spelling when imported
        import tltorch

        peer = tltorch.TCL(sizes, ranks, bias=False).to(place.device, place.dtype)
    graph, x = tn.models.tcl(sizes, ranks), place.drawn(batch, *sizes).requires_grad_()
    mine = ours(graph, None, (x,), place)
    factors = tuple(each.detach().clone().requires_grad_() for each in mine.parameters)
    named = tuple(each for name, each in peer.named_parameters() if "factor" in name)
    with torch.no_grad():
        for target, source in zip(named, factors, strict=True):
            target.copy_(source)
    names = (leaf.name for leaf in graph.parameters)
    return {
        OURS: mine,
        **on_cupy(graph, dict(zip(names, factors, strict=True)), (x,), place),
        **_by_path("bijk,pi,qj,rk->bpqr", (x, *factors)),
        "tltorch": Contestant(peer, (x,), named),
    }


def _by_path(equation: str, operands: tuple[torch.Tensor, ...]) -> dict[str, Contestant]:
    expression = opt_einsum.contract_expression(equation, *(each.shape for each in operands))
    return {
        "opt_einsum": Contestant(expression, operands),
        "torch.einsum": Contestant(partial(torch.einsum, equation), operands),
    }


# ---------------------------------------------------------------------------- random contractions


def drawn(seed: int, operands: tuple[int, ...], work: tuple[float, float], largest: float) -> Iterator[Case]:
    """Random contractions without end.

    An axis is in any number of operands, so that some are shared by all and some are in one alone.

    Args:
        seed: of the draw.
        operands: how many there may be.
        work: the least and the most operations that opt_einsum's order takes.
        largest: elements that an operand or one of its intermediates may have.
    """
    draw = random.Random(seed)
    while True:
        count = draw.choice(operands)
        letters = "abcdefgh"[: draw.randint(4, count + 3)]
        size = {axis: draw.choice((2, 3, 4, 8, 16, 24, 32, 64, 128, 256, 512, 1024)) for axis in letters}
        terms = tuple("".join(draw.sample(letters, draw.randint(1, 4))) for _ in range(count))
        found = sorted(set("".join(terms)))
        sizes = {axis: size[axis] for axis in found}
        result = "".join(draw.sample(found, draw.randint(0, min(4, len(found)))))
        equation, shapes = f"{','.join(terms)}->{result}", [[sizes[axis] for axis in term] for term in terms]
        _, cost = opt_einsum.contract_path(equation, *shapes, shapes=True)
        elements = max(cost.largest_intermediate, *(torch.Size(shape).numel() for shape in shapes))
        if work[0] <= cost.opt_cost <= work[1] and elements <= largest:
            named = " ".join(f"{axis}{sizes[axis]}" for axis in found)
            yield Case(f"{equation}  {named}", partial(contracted, terms, result, sizes))


def _layer(batch: int, sizes: tuple[int, ...], ranks: tuple[int, ...]) -> Case:
    name = f"TCL {batch:,} × {sizes} → {ranks}"
    return Case(name, partial(tensor_contraction_layer, batch, sizes, ranks), MEASURES)


OPERANDS = (3, 4, 5)
TCL = Suite(
    "tcl",
    "tensor contraction layers, forward and both ways",
    {
        "usual": tuple(_layer(*shape) for shape in LAYERS),
        "tiny": (_layer(6, (2, 3, 4), (3, 2, 2)),),
        "large": tuple(_layer(16 * batch, *shape) for batch, *shape in LAYERS),
    },
)
DRAWS: dict[str, tuple[int, int, tuple[float, float], float]] = {
    "usual": (DRAWN, 0, (1e6, 2e9), 4e6),
    "tiny": (6, 1, (1e2, 1e5), 1e4),
    "large": (DRAWN, 2, (1e9, 1e12), 1e8),
}
"""Of each size how many contractions, the seed, the work and the largest tensor."""


class _Drawn(dict[str, tuple[Case, ...]]):
    """The contractions of each size, drawn when they are asked for: the path of each is searched."""

    def __missing__(self, size: str) -> tuple[Case, ...]:
        count, seed, work, largest = DRAWS[size]
        self[size] = tuple(islice(drawn(seed, OPERANDS, work, largest), count))
        return self[size]


CONTRACTIONS = Suite("contractions", "random contractions of 3 to 5 operands, forward", _Drawn())

if __name__ == "__main__":
    run(TCL, CONTRACTIONS)
