"""The check of every layer of the gallery: what its equations compute against plain torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import tensornet as tn

__all__ = ["Checked", "check"]

TOLERANCE = 1e-9
"""The largest difference, as a share of the largest value, in float64."""


@dataclass(frozen=True)
class Checked:
    """A layer that computes what plain torch computes. In a page it shows its picture and its formulas."""

    layer: tn.Graph

    def _repr_html_(self) -> str:
        picture = tn.draw(self.layer)._repr_svg_()
        parameters, flops = tn.parameter_formula(self.layer), tn.flop_formula(self.layer)
        formulas = f"parameters: <code>{parameters}</code><br>FLOPs: <code>{flops}</code>"
        return f'<div class="layer">{picture}<p>{formulas}</p></div>'


def check(
    layer: tn.Graph, by_hand: Callable[..., Any], given: dict[str, Any] | None = None, **inputs: Any
) -> Checked:
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
        found = tn.compile(layer, backend=backend)(
            {name: convert(each) for name, each in params.items()},
            *(convert(arrays[leaf.name]) for leaf in layer.inputs),
        )
        for ours, theirs in zip(_outputs(found), _outputs(wanted), strict=True):
            ours = torch.as_tensor(ours)
            assert ours.shape == theirs.shape, f"{backend}: {ours.shape}, by hand {theirs.shape}"
            apart = float((ours - theirs).abs().max() / theirs.abs().max())
            assert apart <= TOLERANCE, f"{backend}: {apart:.1e} of the largest value apart"
    return Checked(layer)


def _outputs(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)
