"""The check of every layer of the gallery: what the equations say against plain torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import tensornet as tn

__all__ = ["check"]

TOLERANCE = 1e-9
"""The largest difference, as a share of the largest value, in float64."""


def check(
    layer: tn.Graph, by_hand: Callable[..., Any], given: dict[str, Any] | None = None, **inputs: Any
) -> None:
    """Asserts that a layer computes what plain torch computes, on NumPy and on torch, in float64.

    Args:
        layer: the layer.
        by_hand: the same in plain torch. It takes the inputs and the parameters by their names.
        given: parameters that must not be random, by name.
        inputs: each input by name: its shape, for random numbers, or an array.
    """
    random = np.random.default_rng(0)
    arrays = {
        name: random.standard_normal(each) if isinstance(each, tuple) else np.asarray(each)
        for name, each in inputs.items()
    }
    params = tn.init(layer, seed=0, init=dict.fromkeys((leaf.name for leaf in layer.parameters), 0.5))
    params = {name: np.asarray(each, "float64") for name, each in params.items()}
    params |= {name: np.asarray(each) for name, each in (given or {}).items()}
    tensors = {name: torch.from_numpy(each) for name, each in {**arrays, **params}.items()}
    wanted = by_hand(**tensors)
    for backend in ("numpy", "torch"):
        convert = torch.from_numpy if backend == "torch" else np.asarray
        f = tn.compile(layer, backend=backend)
        found = f(
            {name: convert(each) for name, each in params.items()},
            *(convert(arrays[leaf.name]) for leaf in layer.inputs),
        )
        pairs = zip(*((each if isinstance(each, tuple) else (each,)) for each in (found, wanted)), strict=True)
        for ours, theirs in pairs:
            ours, theirs = torch.as_tensor(ours), torch.as_tensor(theirs)
            assert ours.shape == theirs.shape, (backend, ours.shape, theirs.shape)
            apart = (ours - theirs).abs().max() / theirs.abs().max()
            assert apart <= TOLERANCE, (backend, float(apart))
