"""Writes `integers.md`: layers rounded to int8, with activations of floats and of int8, beside dense ones.

python docs/results/compression/integers.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import tensornet as tn

HERE = Path(__file__).parent
LAYERS: Mapping[str, Any] = {
    **{
        f"Linear {i} to {o}": torch.nn.Linear(i, o)
        for i, o in ((512, 512), (768, 768), (768, 3072), (3072, 768))
    },
    **{f"GRU of {size}": torch.nn.GRU(size, size, batch_first=True) for size in (256, 512, 1024)},
    **{f"LSTM of {size}": torch.nn.LSTM(size, size, batch_first=True) for size in (256, 512)},
}
BATCHES, POSITIONS = (1, 16, 128), 12
SECONDS, MOST = 1.5, 100
"""How long a dense layer is measured about, and the most turns."""


def main() -> None:
    """Each layer at each batch, and the page."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    lines = [
        "# Rounded layers by integer kernels",
        "",
        "The time of a call of a layer whose weights have 8 bits, in units of that of the dense one, without",
        "gradients, on one thread: with activations of floats, and with `activations='int8'`. Recurrences read",
        f"{POSITIONS} positions. Processor time, in turns: medians of the ratios, quartiles in brackets. The last",
        "column is how far results of the two are apart, in units of their norm, for normal random inputs.",
        "`python docs/results/compression/integers.py` writes this page.",
        "",
        "| layer | batch | dense (µs) | floats | int8 | apart |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, layer in LAYERS.items():
        layer.eval()
        ways = [layer, *(_rounded(layer, each) for each in (None, "int8"))]
        for batch in BATCHES:
            shape = (batch, POSITIONS) if isinstance(layer, torch.nn.RNNBase) else (batch,)
            x = torch.randn(*shape, layer.in_features if len(shape) < 2 else layer.input_size)
            lines.append(f"| {name} | {batch} | {_row(ways, x)} |")
    (HERE / "integers.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _rounded(layer: torch.nn.Module, activations: str | None) -> torch.nn.Module:
    found: torch.nn.Module = tn.compress(layer, bytes=0.3, method="int8", activations=activations).model
    return found.eval()


def _row(ways: Sequence[torch.nn.Module], x: torch.Tensor) -> str:
    """The cells of a row."""
    times: list[list[float]] = [[] for _ in ways]
    with torch.no_grad():
        floats, integers = (made[0] if isinstance(made := each(x), tuple) else made for each in ways[1:])
        began = time.process_time()
        ways[0](x)
        turns = max(11, min(MOST, int(SECONDS / (time.process_time() - began))))
        for _ in range(turns):
            for each, found in zip(ways, times, strict=True):
                each(x)
                began = time.process_time()
                each(x)
                found.append(time.process_time() - began)
    apart = float((integers - floats).norm() / floats.norm())
    ratios = [[a / b for a, b in zip(each, times[0], strict=True)] for each in times[1:]]
    shown = (f"{middle:.2f} ({low:.2f} to {high:.2f})" for low, middle, high in map(_quartiles, ratios))
    return f"{1e6 * statistics.median(times[0]):,.0f} | {' | '.join(shown)} | {apart:.3f}"


def _quartiles(found: Sequence[float]) -> list[float]:
    return statistics.quantiles(found, n=4)


if __name__ == "__main__":
    main()
