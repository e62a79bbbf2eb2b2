"""A matrix product over the pixels of MNIST at 14×14: `python -m benchmarks.matrix_product /path/to/mnist`.

It trains `tensornet.models.matrix_product(196, 10)` on the images, 2×2 pixels averaged, by torch, and says how many
of the 10,000 test images it tells after each epoch.
"""

from __future__ import annotations

import argparse
import gzip
import time
from pathlib import Path
from typing import Any

import numpy as np

import tensornet as tn


def images(folder: Path, part: str) -> tuple[Any, Any]:
    """The images of a part, 196 numbers from 0 to 1 each, and their labels."""
    with gzip.open(folder / f"{part}-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 14, 2, 14, 2)
    with gzip.open(folder / f"{part}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    return (pixels.mean((2, 4)) / 255).reshape(-1, 196).astype(np.float32), labels.astype(np.int64)


def train(folder: Path, bond: int, epochs: int, batch: int, rate: float, seed: int = 0) -> float:
    """Trains, and returns the share of the test images that are told right."""
    import torch

    torch.manual_seed(seed)
    graph = tn.models.matrix_product(196, 10, bond=bond)
    model = tn.module(graph, seed=seed)
    x, y = map(torch.from_numpy, images(folder, "train"))
    test_x, test_y = map(torch.from_numpy, images(folder, "t10k"))
    steps = epochs * (len(x) // batch)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    right = 0.0
    for epoch in range(1, epochs + 1):
        start, losses = time.perf_counter(), []
        for chosen in torch.randperm(len(x))[: steps // epochs * batch].split(batch):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x[chosen]), y[chosen])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        with torch.no_grad():
            told = torch.cat([model(each).argmax(1) for each in test_x.split(1000)])
        right = (told == test_y).double().mean().item()
        taken = time.perf_counter() - start
        print(
            f"epoch {epoch}: loss {np.mean(losses):.4f}, {right:.2%} of the test images, {taken:.0f} s",
            flush=True,
        )
    return right


def main() -> None:
    """Trains as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where train-images-idx3-ubyte.gz and its like are")
    parser.add_argument("--bond", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--rate", type=float, default=2e-3)
    options = parser.parse_args()
    train(options.folder, options.bond, options.epochs, options.batch, options.rate)


if __name__ == "__main__":
    main()
