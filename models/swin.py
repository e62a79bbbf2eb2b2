"""The Swin Transformer: attention within windows, shifted from layer to layer (Liu et al. 2021).

    ẑˡ   = W-MSA(LN(zˡ⁻¹)) + zˡ⁻¹,    zˡ   = MLP(LN(ẑˡ)) + ẑˡ
    ẑˡ⁺¹ = SW-MSA(LN(zˡ)) + zˡ,       zˡ⁺¹ = MLP(LN(ẑˡ⁺¹)) + ẑˡ⁺¹             (eq. 3)
    Attention(Q, K, V) = softmax(Q·Kᵀ/√d + B)·V,  B by relative position       (eq. 4)
    merging: the 2 × 2 neighbours, 4·C channels, to 2·C                        (thesis 2.10.19)

The image stays a grid x[b, y, x, c]; a window splits its axes y and x as composites.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import tensornet.api as tn
from tensornet.errors import ShapeError

from .attention import HIDDEN, WEIGHTS
from .blocks import feed_forward, norm, projection, residual
from .checked import (
    Size,
    checked,
    chosen,
    count,
    divided,
    pair,
    positive,
    real,
    sized_layer,
    sized_model,
    when,
    with_presets,
)

PRESETS: dict[str, dict[str, Any]] = {
    "swin_t": {"dim": 96, "depths": (2, 2, 6, 2), "heads": (3, 6, 12, 24)},
    "swin_s": {"dim": 96, "depths": (2, 2, 18, 2), "heads": (3, 6, 12, 24)},
    "swin_b": {"dim": 128, "depths": (2, 2, 18, 2), "heads": (4, 8, 16, 32)},
    "swin_l": {"dim": 192, "depths": (2, 2, 18, 2), "heads": (6, 12, 24, 48)},
}
"""Liu et al. (2021), §3.3, with windows of 7 × 7 and patches of 4 × 4."""

Pair = tuple[int, int]
"""Two numbers: one down (along y) and one across (along x)."""

NARROW = ("square", "axes", "padded", "shifted")
PADDING = ("before", "after")

PATCHES = "z[b,m,n,d] = x[b,c,(m,u),(n,v)] * E[d,c,u,v] + bias[d]"

WINDOWS = """
    B[t,h]: parameter(std=0.02)
    q[b,m,n,h,i,p,d] = x[b,(m,i),(n,p),c] * Wq[(h,d),c] + bq[(h,d)]
    k[b,m,n,h,j,r,d] = x[b,(m,j),(n,r),e] * Wk[(h,d),e] + bk[(h,d)]
    v[b,m,n,h,j,r,f] = x[b,(m,j),(n,r),g] * Wv[(h,f),g] + bv[(h,f)]
    {at}
    s[b,m,n,h,i,p,j,r] = q[b,m,n,h,i,p,d] * k[b,m,n,h,j,r,d] / sqrt(d) + B[at[i,p,j,r],h]
    {bands}
    a[b,m,n,h,i,p,j,r] = {weights}
    y[b,(m,i),(n,p),o] = a[b,m,n,h,i,p,j,r] * v[b,m,n,h,j,r,f] * Wo[o,(h,f)] + bo[o]
"""
"""Eq. 4 in the windows (m,n): queries at (i,p), keys at (j,r)."""

BANDS = """
    row[m,i]   = {u} * index(m) + index(i)
    side[n,p]  = {w} * index(n) + index(p)
    band[m,i]  = where(row[m,i] < {below}, 0, where(row[m,i] < {cut}, 1, 2))
    strip[n,p] = where(side[n,p] < {beside}, 0, where(side[n,p] < {across}, 1, 2))
"""
"""The numbers of the parts of windows that a shift put together: `band` by rows, `strip` by columns."""

AT = "at[i,p,j,r] = (index(i) - index(j) + {down}) * {row} + index(p) - index(r) + {across}"
"""The row of the bias table B for queries at (i,p) and keys at (j,r): one for each relative position."""

NEIGHBOURS = "(band[m,i] == band[m,j]) & (strip[n,p] == strip[n,r])"

GROWN = "z[b,y,x,c] = pad(g[b,y,x,c], y=(0,{below}), x=(0,{beside}))"
SHIFTED = "z[b,y,x,c] = roll(g[b,y,x,c], y={down}, x={across})"
CUT = "row[m] = index(m)\ncolumn[n] = index(n)\nz[b,m,n,c] = g[b,row[m],column[n],c]"
MERGED = "z[b,m,n,(v,u,c)] = x[b,(m,u),(n,v),c]"
IMAGE = "z[b,c,y,x] = pad(g[b,c,y,x], y=(0,{below}), x=(0,{beside}))"
SKIPPED = "kept[b] = dropout(repeat[b](1), {rate})\nz[b,m,n,c] = x[b,m,n,c] + kept[b] * y[b,m,n,c]"
MEAN = "y[b,c] = mean[m,n](x[b,m,n,c])"


@checked
def window_attention(
    dim: Size,
    heads: Size,
    window: int | Pair,
    *,
    grid: Pair | None = None,
    shift: int | Pair = 0,
    weights: str = "soft",
    bias: bool = True,
    projected: bool = True,
) -> tn.Graph:
    """Multi-head attention within windows of u × w, with a bias for each relative position.

    Input and output: x[b, m·u, n·w, c], a grid of whole windows. Parameters: 4·D² + 4·D, and
    (2u − 1)·(2w − 1)·h for B.

    Args:
        dim: D.
        heads: h; they divide D.
        window: u and w, or one number for both.
        grid: height and width of the grid; needed with a shift.
        shift: the shift of the grid, down and across or one number for both. Positions that were not neighbours
            before the shift do not see one another.
        weights: "soft", "signed" (thesis eq. 3.0.15) or "hard".
        bias: whether queries, keys and values have biases.
        projected: whether the heads are joined by Wo; otherwise they are concatenated.

    Raises:
        ShapeError: the heads do not divide the width, or the window does not divide the grid.

    Source: Liu et al. (2021), eq. 4 and §3.2.

    Example:
        >>> tn.parameter_count(window_attention(96, 3, 7))
        37755
    """
    each = divided(dim, heads, "dim", "heads")
    bands, weighted = window_weights(weights, "s[b,m,n,h,i,p,j,r]", window, grid, shift)
    text = WINDOWS.format(at=rows_of_positions(window), bands=bands, weights=weighted)
    if not bias:
        for added in ("bq[(h,d)]", "bk[(h,d)]", "bv[(h,f)]"):
            text = text.replace(f" + {added}", "")
    if not projected:
        text = text.replace("(n,p),o]", "(n,p),(h,f)]").replace(" * Wo[o,(h,f)] + bo[o]", "")
    fixed = window_sizes(window) | {"c": dim, "e": dim, "g": dim, "h": heads, "d": each, "f": each}
    fixed |= when(projected, o=dim)
    return sized_layer(text, "x", fixed)


def window_sizes(window: int | Pair, *, placed: bool = True) -> dict[str, Size]:
    """The sizes of the axes of a window, and with `placed` that of its table of relative positions."""
    u, w = sides_of(window)
    sizes: dict[str, Size] = {"i": u, "j": u, "p": w, "r": w}
    return sizes | when(placed, t=(2 * u - 1) * (2 * w - 1))


def sides_of(window: int | Pair) -> Pair:
    """Height and width of a window."""
    return pair(window, "window")  # type: ignore[return-value]


def rows_of_positions(window: int | Pair) -> str:
    """The equation that computes the row of the bias table for each query and key."""
    u, w = sides_of(window)
    return AT.format(down=u - 1, across=w - 1, row=2 * w - 1)


def window_weights(
    weights: str, score: str, window: int | Pair, grid: Pair | None, shift: int | Pair
) -> tuple[str, str]:
    """The equations that number the parts a shift put together, and the expression of the weights."""
    chosen(weights, tuple(WEIGHTS), "weights")
    shown, bands = f"abs({score})" if weights == "signed" else score, ""
    down, across = (shift, shift) if isinstance(shift, int) else shift
    if down or across:
        if grid is None:
            raise ShapeError(f"shift={shift} is given without a grid", fix="give grid=(height, width)")
        (height, width), (u, w) = grid, sides_of(window)
        divided(height, u, "grid", "window")
        divided(width, w, "grid", "window")
        last = {"below": height - u, "cut": height - down, "beside": width - w, "across": width - across}
        bands = indented(BANDS.format(u=u, w=w, **last))
        shown = f"where({NEIGHBOURS}, {shown}, {HIDDEN})"
    return bands, WEIGHTS[weights].replace("[j]", "[j,r]").replace("s[b,h,i,j]", score).format(s=shown)


def indented(lines: str) -> str:
    """Equations indented to be part of a larger block."""
    return "\n    ".join(line.strip() for line in lines.strip().splitlines())


@with_presets(PRESETS)
def swin(
    image: int | tuple[int, int] = 224,
    patch: int = 4,
    dim: Size = 96,
    depths: Sequence[int] = (2, 2, 6, 2),
    heads: Sequence[Size] = (3, 6, 12, 24),
    classes: Size | None = 1000,
    *,
    window: int = 7,
    narrow: str = "square",
    padding: str = "before",
    ratio: float = 4,
    channels: Size = 3,
    tokens: bool = False,
    maps: Sequence[int] = (),
    weights: str = "soft",
    activation: str = "gelu",
    qkv_bias: bool = True,
    eps: float = 1e-5,
    patch_eps: float | None = None,
    dropout: float = 0.0,
    stochastic_depth: float = 0.0,
) -> tn.Graph:
    """A Swin Transformer over images of any size.

    Input: x[b, C, H, W]. Output: logits[b, K]. Zeros pad images to whole patches, grids to whole windows, and
    grids to even sides before merging. A grid of height H and width W is cut into windows of u × v. Every second
    layer shifts it by s down and t across. These follow from `window`, w:

    | narrow | u, v | s, t |
    |---|---|---|
    | "square" | min(w, H, W), both | ⌊w/2⌋, both; 0, both, if min(H, W) ≤ w |
    | "axes" | min(w, H), min(w, W) | ⌊w/2⌋ each; 0 down if H ≤ w, 0 across if W ≤ w |
    | "padded" | w, both | as with "axes" |
    | "shifted" | w, both | ⌊w/2⌋, both |

    Args:
        image: H and W, or one number for both.
        patch: P, the side of a patch.
        dim: D, the width of the first stage; each merging doubles it.
        depths: the number of layers of each stage.
        heads: the number of heads of each stage.
        classes: K; without it the output is the mean of the last grid, [b, 8·D] with four stages.
        window: w, the side of a window, in patches.
        narrow: the treatment of axes that are no longer than a window, by the table: "square" windows that are
            not shifted (the authors and `transformers`), "axes" that are treated one by one (timm), axes
            "padded" to a window (torchvision), or padded and still "shifted" (the backbone of `transformers`).
            It affects the number of parameters: each layer has (2u − 1)·(2v − 1)·h for its positions.
        padding: whether grids are padded "before" they are shifted (transformers, torchvision) or
            "after", and cut before they are shifted back (timm). With "after" the seam is counted from the
            edge of the padding: if there is padding, tokens of opposite ends of the grid see one another.
        ratio: the hidden width of the MLPs over their width.
        channels: C.
        tokens: whether the output is the last grid as tokens [b, m·n, 8·D] (with four stages).
        maps: stages s, from 1, whose grids [b, 2ˢ⁻¹·D, m, n] are the outputs instead, each after a norm.
        weights: "soft", "signed" or "hard".
        activation: the activation of the MLPs.
        qkv_bias: whether queries, keys and values have biases.
        eps: ε of the norms.
        patch_eps: ε of the norms after the patches, before merging and of maps; `eps` if not given. (`transformers`
            uses 1e-5 there, for any `layer_norm_eps`.)
        dropout: the share of values dropped in the MLPs in training.
        stochastic_depth: the share of examples for which a sublayer of the last layer is skipped in training.
            The share rises linearly from 0 at the first layer.

    Raises:
        ShapeError: heads do not divide widths, or `depths` and `heads` have different numbers of stages.

    Source: Liu et al. (2021), "Swin Transformer"; thesis chapter 2.10.

    Example:
        >>> tn.parameter_count(swin()), tn.parameter_count(swin(classes=10))
        (28288354, 27527044)
    """
    height, width = (image, image) if isinstance(image, int) else tuple(image)
    if not all(positive(size) for size in (height, width, patch, window)):
        raise ShapeError(f"image={image!r}, patch={patch!r}, window={window!r}", fix="give positive integers")
    if len(depths) != len(heads) or not depths:
        raise ShapeError(
            f"depths={tuple(depths)} and heads={tuple(heads)}", fix="give one of each for a stage"
        )
    for number, each in enumerate(heads):
        count(depths[number], "depths")
        if isinstance(dim, int):
            divided(dim * 2**number, each, f"dim of stage {number + 1}", "heads")
    for number in maps:
        if not 1 <= number <= len(depths):
            raise ShapeError(f"maps={tuple(maps)}", fix=f"give numbers of stages, from 1 to {len(depths)}")
    share = Fraction(real(ratio, "ratio", 0)).limit_denominator(1000)
    rate = real(stochastic_depth, "stochastic_depth", 0, 1)
    outer = eps if patch_eps is None else real(patch_eps, "patch_eps", 0)

    def wide(stage: int) -> str:
        return f"{2**stage}*D"

    parts = Parts(
        wide=wide,
        norm=lambda stage: norm(wide(stage), eps),
        attend=lambda stage, grid, side, shift: window_attention(
            wide(stage), f"h{stage}", side, grid=grid, shift=shift, weights=weights, bias=qkv_bias
        ),
        mlp=lambda stage: feed_forward(
            wide(stage), f"{share * 2**stage}*D", activation=activation, dropout=dropout
        ),
        merge=lambda stage: projection(f"{4 * 2**stage}*D", wide(stage + 1), bias=False),
        merge_norm=lambda stage: norm(f"{4 * 2**stage}*D", outer),
    )
    last, windows = len(depths) - 1, Windows(window, narrow, padding)
    grid = (-(-height // patch), -(-width // patch))

    def forward(x: tn.Tensor) -> Any:
        x = padded(x, IMAGE, grid[0] * patch - height, grid[1] * patch - width)
        x = tn.layer(PATCHES, inputs="x", d="D", u="P", v="P")(x, scope="patches")
        x = norm("D", outer)(x, scope="patches.norm")
        grids = stages(x, grid, depths, windows, parts, rate)
        if maps:
            return tuple(_map(grids[number - 1], norm(wide(number - 1), outer), number) for number in maps)
        x = grids[-1]
        x = norm(wide(last), eps)(x, scope="norm")
        if tokens:
            return tn.layer("y[b,(m,n),c] = x[b,m,n,c]", inputs="x")(x)
        y = tn.layer(MEAN, inputs="x")(x)
        return y if classes is None else projection(wide(last), "K", start=0.02)(y, scope="head")

    sizes: dict[str, Any] = {"C": channels, "H": height, "W": width, "P": patch, "D": dim}
    sizes |= {f"h{number}": each for number, each in enumerate(heads) if depths[number]}
    sizes |= when(classes is not None and not tokens and not maps, K=classes)
    return sized_model(forward, "x[b,C,H,W]", sizes)


@dataclass(frozen=True)
class Windows:
    """The choices by which a grid is cut into windows, as in `swin`; `side` is `window`."""

    side: int
    narrow: str
    padding: str

    def __post_init__(self) -> None:
        chosen(self.narrow, NARROW, "narrow")
        chosen(self.padding, PADDING, "padding")

    def sides(self, grid: Pair) -> Pair:
        """Height and width of the windows that a grid is cut into."""
        match self.narrow:
            case "square":
                return (min(self.side, *grid),) * 2
            case "axes":
                return min(self.side, grid[0]), min(self.side, grid[1])
            case _:
                return self.side, self.side

    def shift(self, grid: Pair) -> Pair:
        """The shift of a grid, down and across, in a layer that shifts."""
        if self.narrow == "shifted":
            return self.side // 2, self.side // 2
        lengths = (min(grid),) * 2 if self.narrow == "square" else grid
        down, across = (self.side // 2 if length > self.side else 0 for length in lengths)
        return down, across


@dataclass(frozen=True)
class Parts:
    """The layers of a hierarchical model, each a function of the stage; channels are one axis or a composite.

    `attend` takes the stage, the size of the grid of whole windows, the sides of a window and the shift.
    """

    wide: Callable[[int], str]
    norm: Callable[[int], tn.Graph]
    attend: Callable[[int, Pair, Pair, Pair], tn.Graph]
    mlp: Callable[[int], tn.Graph]
    merge: Callable[[int], tn.Graph]
    merge_norm: Callable[[int], tn.Graph]

    def grid(self, stage: int) -> str:
        """The declaration of the grid as the input of a layer."""
        return f"x[b,y,z,c:{self.wide(stage)}]"


def _map(x: tn.Tensor, normed: tn.Graph, number: int) -> Any:
    return tn.layer("y[b,c,m,n] = x[b,m,n,c]", inputs="x")(normed(x, scope=f"maps.{number}"))


def stages(
    x: tn.Tensor, grid: Pair, depths: Sequence[int], windows: Windows, parts: Parts, rate: float
) -> list[Any]:
    """The grids x[b, y, x, c] after each stage. Every second layer shifts; merging comes between stages."""
    number, total, found = 0, sum(depths), []
    layer = functools.cache(functools.partial(_layer, windows=windows, parts=parts))
    for stage, layers in enumerate(depths):
        for place in range(layers):
            dropped = rate * number / max(total - 1, 1)
            number += 1
            x = layer(stage, grid, place % 2 == 1, dropped)(x, scope=f"stages.{stage}.blocks.{place}")
        found.append(x)
        if stage + 1 < len(depths):
            x = _merging(stage, grid, parts)(x, scope=f"stages.{stage}.merge")
            grid = (-(-grid[0] // 2), -(-grid[1] // 2))
    return found


def _layer(stage: int, grid: Pair, shifted: bool, dropped: float, windows: Windows, parts: Parts) -> tn.Graph:
    """A layer of eq. 3: attention in windows of the padded, shifted grid, then the MLP, each added to its input."""
    sides, shift = windows.sides(grid), windows.shift(grid) if shifted else (0, 0)
    below, beside = -grid[0] % sides[0], -grid[1] % sides[1]
    whole, first = (grid[0] + below, grid[1] + beside), windows.padding == "before"
    normed, attend, mlp = parts.norm(stage), parts.attend(stage, whole, sides, shift), parts.mlp(stage)

    def cut(h: tn.Tensor) -> Any:
        return tn.layer(CUT, inputs="g[b,y,x,c]", m=grid[0], n=grid[1])(h) if whole != grid else h

    def forward(x: tn.Tensor) -> Any:
        h = normed(x, scope="norm1")
        h = padded(h, GROWN, below, beside) if first else h
        h = _rolled(h, -shift[0], -shift[1])
        h = h if first else padded(h, GROWN, below, beside)
        h = attend(h, scope="attention")
        h = cut(_rolled(h, *shift)) if first else _rolled(cut(h), *shift)
        x = _added(x, h, dropped)
        return _added(x, mlp(normed(x, scope="norm2"), scope="mlp"), dropped)

    return tn.model(forward, inputs=parts.grid(stage))


def _merging(stage: int, grid: Pair, parts: Parts) -> tn.Graph:
    """Merging: concatenates 2 × 2 neighbours of the grid, norms and projects them.

    Thesis eq. 2.10.19 has a bias and no norm; this is the layer of the authors' code, where the lower neighbour comes
    before the one to the right.
    """

    def forward(x: tn.Tensor) -> Any:
        x = padded(x, GROWN, grid[0] % 2, grid[1] % 2)
        x = tn.layer(MERGED, inputs="x", u=2, v=2)(x)
        return parts.merge(stage)(parts.merge_norm(stage)(x, scope="norm"))

    return tn.model(forward, inputs=parts.grid(stage))


def padded(x: tn.Tensor, line: str, below: int, beside: int) -> Any:
    """A grid or an image with rows of zeros added below, and columns of zeros on the right."""
    if not below and not beside:
        return x
    return tn.layer(line.format(below=below, beside=beside), inputs="g")(x)


def _rolled(x: tn.Tensor, down: int, across: int) -> Any:
    return tn.layer(SHIFTED.format(down=down, across=across), inputs="g")(x) if down or across else x


def _added(x: tn.Tensor, y: tn.Tensor, dropped: float) -> Any:
    """x + y; stochastic depth omits y for a share of the examples in training (Huang et al. 2016)."""
    if not dropped:
        return residual()(x, y)
    return tn.layer(SKIPPED.format(rate=repr(dropped)), inputs="x y")(x, y)
