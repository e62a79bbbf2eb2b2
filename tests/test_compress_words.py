"""What is said where a budget or a batch cannot be."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tensornet as tn


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "there is no budget\n"),
        ({"parameters": 0.5, "flops": 0.5}, "there are 2 budgets\n"),
        ({"parameters": 100}, "100 parameters of 8,320 are too few: 128 are of"),
        ({"seconds": 1e-4, "calibrate": [torch.ones(16, 64)]}, "no form is faster than what there is"),
    ],
)
def test_a_budget_that_cannot_be_is_told_in_words(options: dict[str, Any], message: str) -> None:
    with pytest.raises(tn.ShapeError, match=message):
        tn.compress(network(), **options)


def test_a_batch_is_what_the_network_takes() -> None:
    """Loaders give labels too, which no network takes."""
    batches = [(torch.randn(16, 64), torch.zeros(16))]
    with pytest.raises(
        tn.ShapeError, match=r"no call of Sequential: too many (?s:.*)leave labels out, as in"
    ):
        tn.compress(network(), parameters=0.5, calibrate=batches)
    assert tn.compress(network(), parameters=0.5, calibrate=[x for x, _ in batches]).model is not None
