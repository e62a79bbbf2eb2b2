"""The tensorized Swin Transformer: channels have three modes, and layers contract them (thesis, chapter 3).

    X_emb = X_patch ×₀ V⁽⁰⁾ ×₁ V⁽¹⁾ ×₂ V⁽²⁾                              embedding          (3.0.9)
    Q, K, V = X ×₂ V⁽¹⁾ ×₃ V⁽²⁾ ×₄ V⁽³⁾                                  each its own V     (3.0.10–3.0.12)
    A = Σ_{x,y,z} Q·K / √(d₁d₂d₃), signed: sign(A)·softmax(|A|)          in windows         (3.0.13–3.0.18)
    2·R₁′·R₂′·C′ = 4·R₁·R₂·C                                             merging            (3.0.19)
    X̄ = mean over space,  Y = ⟨X̄, W⟩₃ + b                               head               (3.0.20–3.0.21)

Grid, windows, shifts and residuals are those of Swin (`swin.py`). Each part may be dense instead, so that
settings give every ablation between the two. By default the model has what the thesis has not: tensorized MLPs and an
output projection (its chapter 3 is `tensorized=("patches", "qkv", "merge", "head"), projected=False`), the position
bias of Swin (`position_bias=False`), its norms, and biases in the embedding and the MLPs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tensornet.api as tn
from tensornet.errors import ShapeError
from tensornet.weights.factorizations import Rank

from .blocks import ACTIVATIONS, activated, feed_forward, norm, projection
from .checked import Size, checked, chosen, count, divided, positive, real, sized_layer, when, with_presets
from .multilinear import trl
from .swin import (
    IMAGE,
    MEAN,
    PATCHES,
    Pair,
    Parts,
    Windows,
    indented,
    padded,
    rows_of_positions,
    stages,
    window_attention,
    window_sizes,
    window_weights,
)

Modes = tuple[int, int, int]
Sizes = tuple[Size, Size, Size]
"""The sizes of the three channel modes: numbers, or names that formulas keep."""

PARTS = ("patches", "qkv", "output", "mlp", "merge", "head")
"""The parts that can be tensorized."""

PRESETS: dict[str, dict[str, Any]] = {
    "tensor_swin_t": {},
    "tensor_swin_28": {
        "image": 28,
        "patch": 2,
        "channels": 1,
        "classes": 10,
        "modes": ((4, 4, 4), (4, 4, 8)),
        "depths": (2, 2),
        "heads": ((2, 2, 1), (2, 2, 2)),
    },
    "tensor_swin_32": {
        "image": 32,
        "patch": 2,
        "classes": 10,
        "modes": ((4, 4, 4), (4, 4, 8), (4, 8, 8)),
        "depths": (2, 2, 2),
        "heads": ((2, 2, 1), (2, 2, 2), (2, 2, 4)),
        "window": 4,
    },
}
"""A model with the widths, depths and heads of Swin-T, and small ones for images of 28 × 28 and 32 × 32."""

EMBEDDING = """
    z[b,m,n,(d1,d2,d3)] = x[b,c,(m,u),(n,v)] * V0[d1,u] * V1[d2,v] * V2[d3,c] + bias[(d1,d2,d3)]
"""
"""Eq. 3.0.9: the modes of a patch are its rows, its columns and its channels."""

ATTENTION = """
    {bias}
    q[b,m,n,h1,h2,h3,i,p,d1,d2,d3] = x[b,(m,i),(n,p),(e1,e2,e3)] * Q1[(h1,d1),e1] * Q2[(h2,d2),e2] * Q3[(h3,d3),e3]
    k[b,m,n,h1,h2,h3,j,r,d1,d2,d3] = x[b,(m,j),(n,r),(e1,e2,e3)] * K1[(h1,d1),e1] * K2[(h2,d2),e2] * K3[(h3,d3),e3]
    v[b,m,n,h1,h2,h3,j,r,d1,d2,d3] = x[b,(m,j),(n,r),(e1,e2,e3)] * V1[(h1,d1),e1] * V2[(h2,d2),e2] * V3[(h3,d3),e3]
    s[b,m,n,h1,h2,h3,i,p,j,r]      = q * k / sqrt(d1*d2*d3){placed}
    {bands}
    a[b,m,n,h1,h2,h3,i,p,j,r]      = {weights}
    y[b,(m,i),(n,p),(h1,d1,h2,d2,h3,d3)] = a * v
"""
"""Eq. 3.0.10–3.0.18 in the windows (m,n): queries at (i,p), keys at (j,r), heads along three modes."""

PLACES = "B[t,h1,h2,h3]: parameter(std=0.02)\n{at}"
"""The bias of Swin for relative positions."""

CONTRACTION = "z[...,(o1,o2,o3)] = x[...,(e1,e2,e3)] * U1[o1,e1] * U2[o2,e2] * U3[o3,e3]"
"""A tensor contraction layer over channels: one axis composed of three modes (eq. 3.0.2)."""


@checked
def tensor_window_attention(
    modes: Sizes,
    heads: Sizes,
    window: int | Pair,
    *,
    grid: Pair | None = None,
    shift: int | Pair = 0,
    weights: str = "signed",
    position_bias: bool = True,
) -> tn.Graph:
    """Attention in windows of u × w, with heads along three modes: Dₖ = hₖ·dₖ for each mode.

    Input: x[b, m·u, n·w, D1·D2·D3]. Output: the same shape, before the output projection.
    Parameters: 3·(D1² + D2² + D3²), and (2u − 1)·(2w − 1)·h1·h2·h3 for the position bias.

    Args:
        modes: D1, D2, D3.
        heads: h1, h2, h3; each divides its mode.
        window: u and w, or one number for both.
        grid: height and width of the grid; needed with a shift.
        shift: the shift of the grid, down and across or one number for both.
        weights: "signed" (3.0.15), "soft" or "hard".
        position_bias: whether scores have a bias for each relative position, as in Swin.

    Raises:
        ShapeError: heads do not divide modes, or the window does not divide the grid.

    Source: thesis eq. 3.0.10–3.0.18.

    Example:
        >>> tn.parameter_formula(tensor_window_attention((4, 4, 6), (1, 1, 3), 7, position_bias=False))
        3*d1*e1*h1 + 3*d2*e2*h2 + 3*d3*e3*h3
    """
    bands, weighted = window_weights(weights, "s[b,m,n,h1,h2,h3,i,p,j,r]", window, grid, shift)
    sizes = window_sizes(window, placed=position_bias)
    for number, (mode, parts) in enumerate(zip(modes, heads, strict=True), 1):
        sizes |= {
            f"e{number}": mode,
            f"h{number}": parts,
            f"d{number}": divided(mode, parts, f"mode {number}", "heads"),
        }
    text = ATTENTION.format(
        bias=indented(PLACES.format(at=rows_of_positions(window))) if position_bias else "",
        placed=" + B[at[i,p,j,r],h1,h2,h3]" if position_bias else "",
        bands=bands,
        weights=weighted,
    )
    return sized_layer(text, "x", sizes)


def contraction(
    old: Sizes, new: Sizes, *, bias: bool = True, activation: str | None = None, dropout: float = 0.0
) -> tn.Graph:
    """z = f(x ×₁ U₁ ×₂ U₂ ×₃ U₃ + b) over channels c = (e1, e2, e3). Parameters: Σ Oₖ·Eₖ, and ∏ Oₖ for b."""
    left, right = CONTRACTION.split(" = ")
    right = f"{right} + bias[(o1,o2,o3)]" if bias else right
    right = activated(activation, right) if activation else right
    right = f"dropout({right}, {dropout!r})" if dropout else right
    sizes: dict[str, Any] = {f"e{n}": size for n, size in enumerate(old, 1)} | {
        f"o{n}": size for n, size in enumerate(new, 1)
    }
    return sized_layer(f"{left} = {right}", "x", sizes)


@with_presets(PRESETS)
def tensor_swin(
    image: int | tuple[int, int] = 224,
    patch: int = 4,
    modes: Sequence[Modes] = ((4, 4, 6), (4, 8, 6), (8, 8, 6), (8, 8, 12)),
    depths: Sequence[int] = (2, 2, 6, 2),
    heads: Sequence[Modes] = ((1, 1, 3), (1, 2, 3), (2, 2, 3), (2, 2, 6)),
    classes: int = 1000,
    *,
    tensorized: Sequence[str] | str = PARTS,
    window: int = 7,
    narrow: str = "square",
    padding: str = "before",
    ratios: Modes = (2, 2, 1),
    channels: int = 3,
    head_rank: Rank = "same",
    weights: str = "signed",
    position_bias: bool = True,
    projected: bool = True,
    activation: str = "gelu",
    eps: float = 1e-5,
    dropout: float = 0.0,
    stochastic_depth: float = 0.0,
) -> tn.Graph:
    """A Swin Transformer whose parts are tensor contraction and regression layers.

    Input: x[b, C, H, W]. Output: logits[b, K].

    Args:
        image: H and W, or one number for both.
        patch: P, the side of a patch.
        modes: D1, D2, D3 of each stage; their product doubles from stage to stage (3.0.19).
        depths: the number of layers of each stage.
        heads: h1, h2, h3 of each stage.
        classes: K.
        tensorized: the tensorized parts, of "patches", "qkv", "output", "mlp", "merge", "head". The
            others are dense; with none tensorized the model is `swin`.
        window: w, the side of a window, in patches.
        narrow, padding: as in `swin`.
        ratios: the factor by which the MLP widens each mode.
        channels: C.
        head_rank: the rank of the Tucker regression layer of the head. "same" is full rank, which has more parameters
            than a dense head; 1.0 is about as many.
        weights: "signed", "soft" or "hard".
        position_bias: whether scores have the position bias of Swin; those of dense attention always have.
        projected: whether attention has an output projection, "output".
        activation: the activation of the MLPs.
        eps: ε of the norms.
        dropout: the share of hidden values of the MLPs dropped in training.
        stochastic_depth: as in `swin`.

    Raises:
        ShapeError: numbers of stages differ, 3.0.19 does not hold, or heads do not divide modes.

    Source: thesis chapter 3, eq. 3.0.9–3.0.21.

    Example:
        >>> tn.parameter_count(tensor_swin(classes=10)) <= 1_368_626
        True
    """
    height, width = (image, image) if isinstance(image, int) else tuple(image)
    parts = (tensorized,) if isinstance(tensorized, str) else tuple(tensorized)
    _check(modes, depths, heads, parts, (height, width, patch, window))
    grid = (-(-height // patch), -(-width // patch))

    chosen(activation, ACTIVATIONS, "activation")
    dropout = real(dropout, "dropout", 0, 1)
    layers = _Layers(parts, ratios, weights, position_bias, projected, activation, eps, dropout)
    last, windows = len(modes) - 1, Windows(window, narrow, padding)
    dropped = real(stochastic_depth, "stochastic_depth", 0, 1)

    def forward(x: tn.Tensor) -> Any:
        x = padded(x, IMAGE, grid[0] * patch - height, grid[1] * patch - width)
        if "patches" in parts:
            cut = tn.layer(EMBEDDING, inputs="x", u="P", v="P", d1="A0", d2="B0", d3="C0")
        else:
            cut = tn.layer(PATCHES, inputs="x", u="P", v="P", d=layers.wide(0))
        x = cut(x, scope="patches")
        x = layers.norm(0)(x, scope="patches.norm")
        x = stages(x, grid, depths, windows, layers.together(), dropped)[-1]
        x = layers.norm(last)(x, scope="norm")
        y = tn.layer(MEAN, inputs="x")(x)  # eq. 3.0.20
        if "head" not in parts:
            return projection(layers.wide(last), "K", start=0.02)(y, scope="head")
        split: dict[str, Any] = {f"i{number}": size for number, size in enumerate(modes[last], 1)}
        y = tn.layer("y[b,i1,i2,i3] = x[b,(i1,i2,i3)]", inputs="x", **split)(y)
        return trl(modes[last], classes, rank=head_rank)(y, scope="head")  # eq. 3.0.21

    sizes: dict[str, Any] = {"C": channels, "H": height, "W": width, "P": patch}
    sizes |= when("head" not in parts, K=classes)
    for stage, numbers in enumerate(modes):
        sizes |= zip(layers.named(stage), numbers, strict=True)
    for stage, numbers in enumerate(heads):
        sizes |= zip(layers.parted(stage), numbers, strict=True) if depths[stage] else {}
    return tn.model(forward, inputs="x[b,C,H,W]", **sizes)


@dataclass(frozen=True)
class _Layers:
    """The layers of each stage; some parts are tensorized and the others dense.

    Attributes:
        parts, ratios, weights, position_bias, projected, activation, eps, dropout: as in `tensor_swin`.
    """

    parts: tuple[str, ...]
    ratios: Modes
    weights: str
    position_bias: bool
    projected: bool
    activation: str
    eps: float
    dropout: float

    def together(self) -> Parts:
        """The parts for `stages`. Equal layers share one graph."""
        attend, mlp = functools.cache(self.attend), functools.cache(self.mlp)
        return Parts(self.wide, self.norm, attend, mlp, self.merge, self.merge_norm)

    def named(self, stage: int) -> tuple[str, str, str]:
        """The names of the modes of a stage."""
        return f"A{stage}", f"B{stage}", f"C{stage}"

    def parted(self, stage: int) -> tuple[str, str, str]:
        """The names of the numbers of heads of a stage along each mode."""
        return f"a{stage}", f"b{stage}", f"c{stage}"

    def wide(self, stage: int) -> str:
        """The width of a stage, as a product of modes."""
        return "*".join(self.named(stage))

    def many(self, stage: int) -> str:
        """The number of heads of a stage, as a product."""
        return "*".join(self.parted(stage))

    def norm(self, stage: int) -> tn.Graph:
        """The norm of a stage."""
        return norm(self.wide(stage), self.eps)

    def merge_norm(self, stage: int) -> tn.Graph:
        """The norm of four merged patches."""
        return norm(f"4*{self.wide(stage)}", self.eps)

    def attend(self, stage: int, whole: Pair, side: Pair, shift: Pair) -> tn.Graph:
        """Window attention of a stage, with its output projection if there is one."""
        how: dict[str, Any] = {"grid": whole, "shift": shift, "weights": self.weights}
        apart = not self.projected or "output" in self.parts
        if "qkv" in self.parts:
            modes, heads = self.named(stage), self.parted(stage)
            core = tensor_window_attention(modes, heads, side, position_bias=self.position_bias, **how)
        else:
            core = window_attention(self.wide(stage), self.many(stage), side, projected=not apart, **how)
        if not self.projected or ("qkv" not in self.parts and not apart):
            return core
        if apart:
            out = contraction(self.named(stage), self.named(stage))
        else:
            out = projection(self.wide(stage), self.wide(stage))
        return chain(core, out, second="output")

    def mlp(self, stage: int) -> tn.Graph:
        """The MLP of a stage. A tensorized one widens each mode, a dense one all channels at once."""
        modes_of = self.named(stage)
        curve: dict[str, Any] = {"activation": self.activation, "dropout": self.dropout}
        hidden: Sizes = tuple(f"{r}*{d}" for r, d in zip(self.ratios, modes_of, strict=True))  # type: ignore[assignment]
        if "mlp" not in self.parts:
            wide = self.wide(stage)
            return feed_forward(wide, f"{prod(self.ratios)}*{wide}", **curve)
        first = contraction(modes_of, hidden, **curve)
        return chain(first, contraction(hidden, modes_of), first="first", second="second")

    def merge(self, stage: int) -> tn.Graph:
        """The layer that maps the channels of four merged patches to those of the next stage."""
        if "merge" not in self.parts:
            return projection(f"4*{self.wide(stage)}", self.wide(stage + 1), bias=False)
        r1, r2, c = self.named(stage)
        layer = tn.layer("z[...,(r1,r2,f,c)] = x[...,(f,r1,r2,c)]", inputs="x", f=4, r1=r1, r2=r2, c=c)
        return chain(layer, contraction((r1, r2, f"4*{c}"), self.named(stage + 1), bias=False))


def chain(one: tn.Graph, two: tn.Graph, *, first: str = "", second: str = "") -> tn.Graph:
    """The composition of two layers over x[b, y, z, c]: `one`, then `two`."""

    def both(x: tn.Tensor) -> Any:
        return two(one(x, scope=first), scope=second)

    return tn.model(both, inputs="x[b,y,z,c]")


def _check(
    modes: Sequence[Modes], depths: Sequence[int], heads: Sequence[Modes], parts: Sequence[str], sizes: Any
) -> None:
    """Raises an error if the stages do not fit one another."""
    for part in parts:
        chosen(part, PARTS, "tensorized")
    if not all(positive(size) for size in sizes):
        raise ShapeError(f"image, patch, window = {sizes}", fix="give positive integers")
    if not modes or not len(modes) == len(depths) == len(heads):
        raise ShapeError(
            f"{len(modes)} stage(s) of modes, {len(depths)} of depths, {len(heads)} of heads",
            fix="give one of each for a stage",
        )
    for stage, (each, own) in enumerate(zip(modes, heads, strict=True), 1):
        if len(each) != 3 or len(own) != 3 or not all(positive(size) for size in (*each, *own)):
            raise ShapeError(f"stage {stage} has modes {each} and heads {own}", fix="give three of each")
        count(depths[stage - 1], "depths")
        for number, (mode, parts_of) in enumerate(zip(each, own, strict=True), 1):
            divided(mode, parts_of, f"mode {number} of stage {stage}", "heads")
    for stage, (before, after) in enumerate(itertools.pairwise(modes), 1):
        if 2 * prod(after) != 4 * prod(before):
            raise ShapeError(
                f"merging after stage {stage}: 2·R₁′·R₂′·C′ = {2 * prod(after)} for {after},"
                f" and 4·R₁·R₂·C = {4 * prod(before)} for {before} (eq. 3.0.19)",
                fix=f"choose modes of stage {stage + 1} whose product is {2 * prod(before)}",
            )
