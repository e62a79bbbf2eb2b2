"""A training step of the tensorized Swin Transformer: tensornet, and by hand with tensorly-torch's layers.

    python -m benchmarks.tensor_swin

Both have the same parameters and give the same logits, which is checked before anything is timed.
Times: one process, interleaved runs, medians. Memory: each in a process of its own, the largest
resident size over that before the model was made.
"""

from __future__ import annotations

import json
import multiprocessing
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import nn

import tensornet as tn

from .timing import geometric_mean, interleaved

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tltorch

Modes = tuple[int, int, int]

CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "28×28, patch 4": (64, {**tn.models.settings("tensor_swin_28"), "patch": 4}),
    "28×28, patch 2": (64, {**tn.models.settings("tensor_swin_28")}),
    "32×32": (32, {**tn.models.settings("tensor_swin_32")}),
    "224×224, widths of Swin-T": (2, {**tn.models.settings("tensor_swin_t"), "depths": (2, 2, 2, 2)}),
}
"""Name → batch, settings of `models.tensor_swin`."""


# ---------------------------------------------------------------------------- the model by hand


class Contraction(nn.Module):
    """tltorch's TCL over channels that are three modes in one axis; its own bias raises, so it is added."""

    def __init__(self, old: Modes, new: Modes, bias: bool = True) -> None:
        super().__init__()
        self.old, self.tcl = old, tltorch.TCL(old, new, bias=False)
        self.bias = nn.Parameter(torch.zeros(new[0] * new[1] * new[2])) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lead = x.shape[:-1]
        y = self.tcl(x.reshape(-1, *self.old)).reshape(*lead, -1)
        return y if self.bias is None else y + self.bias


class Attention(nn.Module):
    """Signed attention in windows of a grid, shifted or not; mask and places are made once."""

    def __init__(self, modes: Modes, heads: Modes, window: int, grid: tuple[int, int], shift: int) -> None:
        super().__init__()
        self.modes, self.heads, self.window, self.shift = modes, heads, window, shift
        self.each: Modes = tuple(d // h for d, h in zip(modes, heads, strict=True))  # type: ignore[assignment]
        self.q, self.k, self.v = (Contraction(modes, modes, bias=False) for _ in range(3))
        self.output = Contraction(modes, modes)
        self.B = nn.Parameter(torch.zeros((2 * window - 1) ** 2, *heads))
        y, x = torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")
        y, x = y.flatten(), x.flatten()
        places = (y[:, None] - y + window - 1) * (2 * window - 1) + x[:, None] - x + window - 1
        self.register_buffer("places", places, persistent=False)
        self.register_buffer("mask", self._mask(grid) if shift else None, persistent=False)

    def _mask(self, grid: tuple[int, int]) -> torch.Tensor:
        part = torch.zeros(1, *grid, 1)
        cuts = (slice(0, -self.window), slice(-self.window, -self.shift), slice(-self.shift, None))
        for number, (rows, columns) in enumerate((r, c) for r in cuts for c in cuts):
            part[:, rows, columns] = number
        part = self._windows(part).squeeze(-1)
        return part[:, :, None] != part[:, None, :]

    def _windows(self, x: torch.Tensor) -> torch.Tensor:
        b, height, width, c = x.shape
        w = self.window
        return x.view(b, height // w, w, width // w, w, c).transpose(2, 3).reshape(-1, w * w, c)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        """(n, t, h1 d1 h2 d2 h3 d3) → (n, h, t, d)."""
        n, t, _ = x.shape
        (h1, h2, h3), (d1, d2, d3) = self.heads, self.each
        x = x.view(n, t, h1, d1, h2, d2, h3, d3).permute(0, 2, 4, 6, 1, 3, 5, 7)
        return x.reshape(n, h1 * h2 * h3, t, d1 * d2 * d3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, height, width, c = x.shape
        if self.shift:
            x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        inside = self._windows(x)
        n, t, _ = inside.shape
        q, k, v = (self._split(layer(inside)) for layer in (self.q, self.k, self.v))
        (h1, h2, h3), (d1, d2, d3) = self.heads, self.each
        bias = self.B[self.places].permute(2, 3, 4, 0, 1).reshape(-1, t, t)
        s = (q * (d1 * d2 * d3) ** -0.5) @ k.transpose(-2, -1) + bias
        shown = s.abs()
        if self.mask is not None:
            shown = shown.view(b, -1, *shown.shape[1:]).masked_fill(self.mask[:, None], float("-inf"))
            shown = shown.view(n, -1, t, t)
        y = (s.sign() * shown.softmax(-1)) @ v
        y = y.view(n, h1, h2, h3, t, d1, d2, d3).permute(0, 4, 1, 5, 2, 6, 3, 7).reshape(n, t, c)
        w = self.window
        y = self.output(y).view(b, height // w, width // w, w, w, c).transpose(2, 3)
        y = y.reshape(b, height, width, c)
        return torch.roll(y, (self.shift, self.shift), (1, 2)) if self.shift else y


class Block(nn.Module):
    """Attention and MLP, each added to its input."""

    def __init__(self, modes: Modes, heads: Modes, window: int, grid: tuple[int, int], shifted: bool) -> None:
        super().__init__()
        width = modes[0] * modes[1] * modes[2]
        side = min(window, *grid)
        shift = window // 2 if shifted and min(grid) > window else 0
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.grid, self.below, self.beside = grid, -grid[0] % side, -grid[1] % side
        whole = (grid[0] + self.below, grid[1] + self.beside)
        self.attention = Attention(modes, heads, side, whole, shift)
        hidden = (2 * modes[0], 2 * modes[1], modes[2])
        self.first, self.second = Contraction(modes, hidden), Contraction(hidden, modes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = nn.functional.pad(self.norm1(x), (0, 0, 0, self.beside, 0, self.below))
        x = x + self.attention(h)[:, : self.grid[0], : self.grid[1]]
        return x + self.second(nn.functional.gelu(self.first(self.norm2(x))))


class Merging(nn.Module):
    """The four neighbours, 4·C in the last mode, contracted."""

    def __init__(self, old: Modes, new: Modes) -> None:
        super().__init__()
        self.old = old
        self.norm = nn.LayerNorm(4 * old[0] * old[1] * old[2])
        self.contraction = Contraction((old[0], old[1], 4 * old[2]), new, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        corners = [x[:, v::2, u::2] for u in (0, 1) for v in (0, 1)]
        x = self.norm(torch.cat(corners, -1))
        x = x.view(*x.shape[:3], 4, self.old[0], self.old[1], self.old[2]).permute(0, 1, 2, 4, 5, 3, 6)
        return self.contraction(x.reshape(*x.shape[:3], -1))


class ByHand(nn.Module):
    """The tensorized Swin Transformer as one would write it with tensorly-torch."""

    def __init__(
        self,
        image: int,
        patch: int,
        channels: int,
        classes: int,
        modes: tuple[Modes, ...],
        depths: tuple[int, ...],
        heads: tuple[Modes, ...],
        window: int,
    ) -> None:
        super().__init__()
        self.patch = patch
        self.patches = Contraction((patch, patch, channels), modes[0])
        self.patches_norm = nn.LayerNorm(modes[0][0] * modes[0][1] * modes[0][2])
        grid, layers = -(-image // patch), []
        for stage, depth in enumerate(depths):
            for place in range(depth):
                layers.append(Block(modes[stage], heads[stage], window, (grid, grid), place % 2 == 1))
            if stage + 1 < len(depths):
                layers.append(Merging(modes[stage], modes[stage + 1]))
                grid = -(-grid // 2)
        self.layers = nn.Sequential(*layers)
        self.last = modes[-1]
        self.norm = nn.LayerNorm(modes[-1][0] * modes[-1][1] * modes[-1][2])
        rank = [*modes[-1], classes]
        self.head = tltorch.TRL(modes[-1], (classes,), bias=True, factorization="tucker", rank=rank)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, c, height, width = x.shape
        p = self.patch
        x = x.view(b, c, height // p, p, width // p, p).permute(0, 2, 4, 3, 5, 1)
        x = self.patches_norm(self.patches(x.reshape(b, height // p, width // p, -1)))
        x = self.norm(self.layers(x)).mean((1, 2))
        return self.head(x.view(b, *self.last))


def ordered(module: ByHand) -> list[nn.Parameter]:
    """The parameters in the order in which tensornet has them."""

    def of(part: nn.Module) -> list[nn.Parameter]:
        if isinstance(part, Contraction):
            return [*part.tcl.parameters(), *([] if part.bias is None else [part.bias])]
        if isinstance(part, nn.LayerNorm):
            return [part.weight, part.bias]
        if isinstance(part, Attention):
            inner = [each for layer in (part.q, part.k, part.v, part.output) for each in of(layer)]
            return [part.B, *inner]
        if isinstance(part, Block):
            parts: tuple[nn.Module, ...] = (part.norm1, part.attention, part.norm2, part.first, part.second)
            return [each for inner in parts for each in of(inner)]
        assert isinstance(part, Merging)
        return [*of(part.contraction), *of(part.norm)]

    parts = (module.patches, module.patches_norm, *module.layers, module.norm)
    weight = module.head.weight
    head = [weight.core, *weight.factors, module.head.bias]
    return [each for part in parts for each in of(part)] + head


# ---------------------------------------------------------------------------- measuring


def models(batch: int, settings: dict[str, Any]) -> dict[str, Callable[[], nn.Module]]:
    """How each is made."""
    graph = tn.models.tensor_swin(**settings)
    names = ("image", "patch", "channels", "classes", "modes", "depths", "heads", "window")
    defaults = tn.models.settings("tensor_swin")
    return {
        "tensornet": lambda: tn.module(graph, seed=0, plan_at={"b": batch}),
        "tltorch": lambda: ByHand(**{name: settings.get(name, defaults[name]) for name in names}),
    }


def examples(batch: int, settings: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Random images and labels."""
    draw = torch.Generator().manual_seed(0)
    shape = (batch, settings["channels"], settings["image"], settings["image"])
    return torch.randn(shape, generator=draw), torch.randint(settings["classes"], (batch,), generator=draw)


def step(module: nn.Module, x: torch.Tensor, labels: torch.Tensor) -> Callable[[], object]:
    """Forward, backward, update."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)

    def run() -> object:
        loss = nn.functional.cross_entropy(module(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return run


def seconds(batch: int, settings: dict[str, Any], rounds: int) -> dict[str, float]:
    """Median seconds of a training step of each."""
    x, labels = examples(batch, settings)
    made = {name: make() for name, make in models(batch, settings).items()}
    ours, theirs = made["tensornet"], made["tltorch"]
    assert isinstance(theirs, ByHand)
    with torch.no_grad():
        for target, (name, source) in zip(ordered(theirs), ours.named_parameters(), strict=True):
            assert target.shape == source.shape, name
            target.copy_(source)
        # in float64, for where a score is nearly 0 its sign is a matter of rounding
        assert torch.allclose(ours.double()(x.double()), theirs.double()(x.double()), atol=1e-8)
    ours.float()
    theirs.float()
    return interleaved({name: step(module, x, labels) for name, module in made.items()}, rounds=rounds)


def peak(name: str, batch: int, settings: dict[str, Any], threads: int) -> int:
    """Bytes that this process has grown by after three training steps."""
    torch.set_num_threads(threads)
    x, labels = examples(batch, settings)
    nn.functional.cross_entropy(
        nn.Linear(8, 8)(torch.randn(4, 8)), torch.zeros(4, dtype=torch.long)
    ).backward()
    run = step(models(batch, settings)[name](), x, labels)
    before = _largest()
    for _ in range(3):
        run()
    return _largest() - before


def _largest() -> int:
    """The largest resident size so far, in bytes; Linux says it of the process itself, not of its parent's."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def alone(name: str, batch: int, settings: dict[str, Any], threads: int) -> int:
    """`peak` in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(peak, (name, batch, settings, threads))


def main(
    rounds: Annotated[int, typer.Option(help="How often each takes its turn.", min=1)] = 11,
    threads: Annotated[int, typer.Option(help="Threads of the processor.", min=1)] = torch.get_num_threads(),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON in the place of a table.")] = False,
) -> None:
    """A training step of the tensorized Swin Transformer, beside one by hand with tensorly-torch's layers."""
    torch.set_num_threads(threads)
    rows = []
    for case, (batch, settings) in CASES.items():
        row: dict[str, Any] = {"case": case, "batch": batch, "seconds": seconds(batch, settings, rounds)}
        row["bytes"] = {name: alone(name, batch, settings, threads) for name in ("tensornet", "tltorch")}
        rows.append(row)
    if as_json:
        print(json.dumps(rows, indent=1))
    else:
        _show(rows)


def _show(rows: list[dict[str, Any]]) -> None:
    """Prints the table."""
    table = Table(
        title=f"tensor_swin, one training step, {torch.get_num_threads()} threads, torch {torch.__version__}",
        title_justify="left",
    )
    table.add_column("case, batch")
    for heading in ("tensornet ms", "tltorch ms", "× faster", "tensornet MB", "tltorch MB", "× less"):
        table.add_column(heading, justify="right")
    faster, less = [], []
    for row in rows:
        times, sizes = row["seconds"], row["bytes"]
        faster.append(times["tltorch"] / times["tensornet"])
        less.append(sizes["tltorch"] / sizes["tensornet"])
        table.add_row(
            f"{row['case']}, {row['batch']}",
            *(f"{1e3 * each:.1f}" for each in times.values()),
            f"{faster[-1]:.2f}",
            *(f"{each / 1e6:.0f}" for each in sizes.values()),
            f"{less[-1]:.2f}",
        )
    Console(width=110).print(table)
    print(f"geometric means: {geometric_mean(faster):.2f}× faster, {geometric_mean(less):.2f}× less memory")


if __name__ == "__main__":
    typer.run(main)
