"""Writes `networks.md`: a ViT and a Swin of transformers, random weights, through `tensornet compress` at four budgets.

python docs/results/compression/networks.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

import tensornet as tn

HERE = Path(__file__).parent
BUDGETS = ("0.5", "0.2", "0.1", "0.05")
IMAGES = 8

NETWORKS: dict[str, tuple[Any, Any]] = {
    "ViT, 12 blocks of 384": (
        transformers.ViTForImageClassification,
        transformers.ViTConfig(
            hidden_size=384,
            num_hidden_layers=12,
            num_attention_heads=6,
            intermediate_size=1536,
            num_labels=1000,
        ),
    ),
    "Swin-T": (transformers.SwinForImageClassification, transformers.SwinConfig(num_labels=1000)),
}
"""Name → class and configuration; images are of 224×224 pixels."""


def main() -> None:
    """Every network at every budget, and the page."""
    parts = [
        "# A ViT and a Swin of transformers, compressed",
        "",
        "Random weights as transformers draws them, low rank, one budget of parameters each, by",
        "`tensornet compress FOLDER --parameters BUDGET`. Random weights have no small singular values to leave out,",
        "so these errors are the worst that there are; of trained ones see [the report](report.md). In all: the root",
        "of the mean of the squares over the weights, and ‖y − ŷ‖ / ‖y‖ of the logits of random images. By weight: the",
        "rank and ‖W − Ŵ‖ / ‖W‖; – stays dense. `python docs/results/compression/networks.py` writes this page.",
    ]
    for name, (kind, config) in NETWORKS.items():
        parts += ["", f"## {name}", "", *_network(kind, config)]
    (HERE / "networks.md").write_text("\n".join(parts) + "\n", encoding="utf-8")


def _network(kind: Any, config: Any) -> list[str]:
    """The tables of one network."""
    torch.manual_seed(0)
    network = kind(config).eval()
    images = torch.randn(IMAGES, 3, 224, 224)
    found: dict[str, dict[str, Any]] = {}
    losses = {}
    with tempfile.TemporaryDirectory() as folder:
        network.save_pretrained(folder)
        for budget in BUDGETS:
            out = Path(folder) / f"{budget}.safetensors"
            command = [sys.executable, "-m", "tensornet", "compress", folder, "--parameters", budget]
            done = subprocess.run(
                [*command, "--out", str(out), "--json"], capture_output=True, text=True, check=True
            )
            found[budget] = json.loads(done.stdout)
            with torch.no_grad():
                y = network(images).logits
                small = tn.load_compressed(out, network).model.eval()(images).logits
            losses[budget] = float((y - small).norm() / y.norm())
    return [*_in_all(found, losses), "", *_by_weight(found)]


def _in_all(found: dict[str, dict[str, Any]], losses: dict[str, float]) -> list[str]:
    lines = ["| budget | parameters | weights' error (%) | logits' error (%) |", "|--:|--:|--:|--:|"]
    for budget, document in found.items():
        before, after = document["parameters"]
        error = f"{100 * document['error']:.1f}"
        lines.append(f"| {budget} | {before:,} → {after:,} | {error} | {100 * losses[budget]:.1f} |")
    return lines


def _by_weight(found: dict[str, dict[str, Any]]) -> list[str]:
    lines = [f"| weight | shape | {' | '.join(found)} |", "|---|---|" + "--:|" * len(found)]
    for rows in zip(*(document["rows"] for document in found.values()), strict=True):
        shape = "×".join(map(str, rows[0]["shape"]))
        cells = (_cell(row["level"]) for row in rows)
        lines.append(f"| `{rows[0]['path']}` | {shape} | {' | '.join(cells)} |")
    return lines


def _cell(level: dict[str, Any]) -> str:
    if level["method"] is None:
        return "–"
    return f"{'×'.join(map(str, level['rank']))}: {100 * level['error']:.1f}"


if __name__ == "__main__":
    main()
