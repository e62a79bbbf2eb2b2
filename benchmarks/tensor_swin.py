"""The tensorized Swin Transformer: tensornet, and by hand with tensorly-torch's layers.

    python -m benchmarks.tensor_swin

Both have the same parameters. Forward, and both ways with the bytes that are kept for backward.
"""

from __future__ import annotations

import math
import warnings
from functools import partial
from typing import Any

import torch
from torch import nn

import tensornet as tn

from .report import run
from .suite import EVERY, OURS, Case, Contestant, Place, Suite, ours

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tltorch

__all__ = ["SUITE"]

Modes = tuple[int, int, int]


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
        rank = [*modes[-1], min(classes, math.prod(modes[-1]))]
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


# ---------------------------------------------------------------------------- cases


def tensor_swin(batch: int, settings: dict[str, Any], place: Place) -> dict[str, Contestant]:
    """Both, on the same parameters."""
    known = {**tn.models.settings("tensor_swin"), **settings}
    x = place.drawn(batch, known["channels"], known["image"], known["image"])
    mine = ours(tn.models.tensor_swin(**settings), None, (x,), place)
    names = ("image", "patch", "channels", "classes", "modes", "depths", "heads", "window")
    theirs = ByHand(**{name: known[name] for name in names}).to(place.device, place.dtype)
    with torch.no_grad():
        for target, source in zip(ordered(theirs), mine.parameters, strict=True):
            target.copy_(source)
    return {OURS: mine, "tltorch": Contestant(theirs, (x,), tuple(theirs.parameters()))}


def _case(name: str, batch: int, preset: str, **settings: Any) -> Case:
    chosen = {**tn.models.settings(preset), **settings}
    return Case(f"{name}, batch {batch}", partial(tensor_swin, batch, chosen), EVERY)


def _cases(scale: int) -> tuple[Case, ...]:
    return (
        _case("28×28, patch 4", 64 * scale, "tensor_swin_28", patch=4),
        _case("28×28, patch 2", 64 * scale, "tensor_swin_28"),
        _case("32×32", 32 * scale, "tensor_swin_32"),
        _case("224×224, widths of Swin-T", 2 * scale, "tensor_swin_t", depths=(2, 2, 2, 2)),
    )


TINY: dict[str, Any] = {"image": 8, "modes": ((2, 2, 1), (2, 2, 2)), "depths": (2, 1), "window": 2}
SUITE = Suite(
    "tensor_swin",
    "the tensorized Swin Transformer, against one by hand with tensorly-torch's layers",
    {
        "usual": _cases(1),
        "tiny": (_case("8×8", 2, "tensor_swin_28", patch=2, heads=((1, 2, 1), (1, 2, 2)), **TINY),),
        "large": _cases(16),
    },
)

if __name__ == "__main__":
    run(SUITE)
