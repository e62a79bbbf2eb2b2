"""What a call costs where there is little to compute: tensornet, and what plans at each call.

    python -m benchmarks.calls

`tn.einsum` of small operands against `opt_einsum.contract` and `torch.einsum`, all given the text each time.
"""

from __future__ import annotations

import random
from functools import partial

import opt_einsum
import torch

import tensornet as tn

from .report import run
from .suite import OURS, Case, Contestant, Place, Suite

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


CASES = tuple(Case(equation, partial(eager, equation)) for equation in EQUATIONS)
SUITE = Suite(
    "calls",
    "einsum of small operands, planned or looked up at each call",
    {"usual": CASES, "tiny": CASES, "large": CASES},
)

if __name__ == "__main__":
    run(SUITE)
