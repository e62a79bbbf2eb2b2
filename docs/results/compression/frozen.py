"""Writes `frozen.md`: a ViT compressed to a fifth and frozen, beside the dense one, at several batches.

TENSORNET_CALIBRATE=0 python docs/results/compression/frozen.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

import tensornet as tn

HERE = Path(__file__).parent
BUDGET = 0.2
FORMS = ("low_rank", "tt", "blocktt", "kronecker")
ROUNDS = {1: 15, 8: 7, 64: 5}
"""Batch → turns of each; the first two do not count."""

WARM = 2
SIDE = 112


def main() -> None:
    """Every form, at every batch, and the page."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=384,
        num_hidden_layers=12,
        num_attention_heads=6,
        intermediate_size=1536,
        num_labels=1000,
        image_size=SIDE,
    )
    network = transformers.ViTForImageClassification(config).eval()
    graph, params = tn.models.from_transformers(network)
    runs = {"dense": _frozen(graph, params), "dense (transformers)": lambda x: network(x).logits}
    counts = {name: tn.parameter_count(graph) for name in runs}
    for form in FORMS:
        small = tn.compress(graph, params, parameters=BUDGET, method=form)
        runs[form], counts[form] = _frozen(small.model, small.params), tn.parameter_count(small.model)
    seconds = {batch: _measured(runs, batch, rounds) for batch, rounds in ROUNDS.items()}
    heads = " | ".join(f"batch {batch} (ms) | of dense" for batch in ROUNDS)
    lines = [
        "# A compressed ViT, frozen",
        "",
        f"A ViT of transformers, 12 blocks of 384, images of {SIDE}×{SIDE} pixels, random weights, compressed to",
        f"{BUDGET:.0%} of its parameters in one form each, and frozen (`tensornet.freeze`); dense frozen likewise, and",
        "as transformers runs it. PyTorch on one thread, float32; processor time of a call, the contestants in turns,",
        "the median; plans by built-in constants.",
        "Of a matrix in two parts a block tensor train and a sum of Kronecker products are one form, in another order.",
        "`TENSORNET_CALIBRATE=0 python docs/results/compression/frozen.py` writes this page.",
        "",
        f"| form | parameters | {heads} |",
        f"|---|--:|{'--:|' * 2 * len(ROUNDS)}",
    ]
    for name in runs:
        cells = (f"{1e3 * each[name]:.1f} | {each[name] / each['dense']:.2f}" for each in seconds.values())
        lines.append(f"| {name} | {counts[name]:,} | {' | '.join(cells)} |")
    (HERE / "frozen.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _frozen(graph: tn.Graph, params: Any) -> Callable[[Any], Any]:
    run = tn.compile(tn.freeze(graph, params), backend="torch")
    return lambda x: run({}, x)


def _measured(runs: dict[str, Callable[[Any], Any]], batch: int, rounds: int) -> dict[str, float]:
    """Seconds of the processor for each, in turns."""
    x = torch.randn(batch, 3, SIDE, SIDE)
    found: dict[str, list[float]] = {name: [] for name in runs}
    with torch.no_grad():
        for _ in range(rounds):
            for name, run in runs.items():
                began = time.process_time()
                run(x)
                found[name].append(time.process_time() - began)
    return {name: statistics.median(each[WARM:]) for name, each in found.items()}


if __name__ == "__main__":
    main()
