"""What is said where a budget or a batch cannot be."""

from __future__ import annotations

import pytest
import torch

import tensornet as tn


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))


def test_a_batch_is_what_the_network_takes() -> None:
    """Loaders give labels too, which no network takes."""
    batches = [(torch.randn(16, 64), torch.zeros(16))]
    with pytest.raises(
        tn.ShapeError, match=r"no call of Sequential: too many (?s:.*)leave labels out, as in"
    ):
        tn.compress(network(), parameters=0.5, calibrate=batches)
    assert tn.compress(network(), parameters=0.5, calibrate=[x for x, _ in batches]).model is not None
