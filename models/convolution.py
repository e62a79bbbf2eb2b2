"""Convolutions, their kernels dense or factorized: a layer, a residual block, and what the Perceiver begins with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import tensornet.api as tn
from tensornet.errors import ShapeError
from tensornet.weights.factorizations import Factor, Factored, factored, form_named
from tensornet.weights.ranks import Rank, choose_ranks

from .checked import checked
from .dimensions import Size, divided, hygienic, positive

__all__ = ["convolution", "convolutional_stem", "residual_block"]

FORMS = ("dense", "separable", "tucker2", "tucker", "cp", "tt", "low_rank", "tr")
"""Those of a kernel, whose dimensions are of one part each."""

SPACE, MADE, INNER = "hwd", "pql", "uvk"
"""The axes of the operand, of the result and of the kernel, in each dimension."""


@dataclass(frozen=True)
class _Dimension:
    """One dimension of a convolution."""

    kernel: int
    stride: int
    padding: int
    dilation: int


@checked
def convolution(
    channels: Size,
    out: Size,
    kernel: int | Sequence[int] = 3,
    *,
    dimensions: int = 2,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    factorization: str = "dense",
    rank: Rank = "same",
    bias: bool = True,
) -> tn.Graph:
    """y[b,o,p,…] = Σ x[b,c,s·p + d·u,…] · F[o,c,u,…] + β[o], over an input with zeros around it.

    Input x[b, C, H, …], output y[b, O, ⌊(H + 2·padding − dilation·(K − 1) − 1)/stride⌋ + 1, …], of one to three
    dimensions, whose sizes stay open.

    | factorization | F[o,c,u,v] = | ranks |
    |---|---|---|
    | dense | itself | |
    | separable | D[c,u,v]·P[o,c], depthwise and 1 × 1 | |
    | tucker2 | Σ V[o,s]·G[s,r,u,v]·U[c,r] | of O, of C |
    | tucker | Σ G[r₁…]·∏ Uₖ[mₖ,rₖ], over all modes | one for each |
    | cp | Σ_r ∏ Uₖ[mₖ,r] | one |
    | tt | a train of cores, outputs first | one less than modes |
    | tr | a ring of cores | one for each |
    | low_rank | Σ_r U[o,r]·V[r,c,u,v] | one |

    The planner finds the order in which factors are applied: of tucker2 a 1 × 1, the core, and a 1 × 1.

    Args:
        channels: C.
        out: O.
        kernel: K, once or for each dimension.
        dimensions: how many there are, where all settings are said once.
        stride: how far the kernel moves, once or for each dimension.
        padding: zeros before and after, once or for each dimension.
        dilation: how far its elements are apart, once or for each dimension.
        groups: into how many both channels are divided, each convolved with its own kernel: F has all outputs, and
            the channels of one group, whose factor the groups share.
        factorization: one of the above, in any case.
        rank: of a factorized kernel: 'same', a fraction of its parameters, an int, or one for each rank.
        bias: whether β is added.

    Raises:
        ShapeError: settings do not fit, or ranks are asked for at a symbolic C or O.

    Source: LeCun et al. (1989); Lebedev et al. (2015) for cp, Kim et al. (2016) for tucker2, Chollet (2017) for
    separable.

    Example:
        >>> layer = convolution(16, 32, stride=2, padding=1, factorization="tucker2", rank=(8, 4), bias=False)
        >>> print(layer.own[-1])
        y[b,o,p,q] = padded[b,c,2*p+u,2*q+v] * V[o,s] * G[s,r,u,v] * U[c,r]
        >>> tn.parameter_count(layer)
        608
    """
    found = _dimensions(kernel, stride, padding, dilation, dimensions)
    kind = form_named(factorization, FORMS)
    space, made = SPACE[: len(found)], MADE[: len(found)]
    sizes: dict[str, Size] = {u: each.kernel for u, each in zip(INNER, found, strict=False)}
    sizes |= {
        "c": divided(channels, groups, "channels", "groups"),
        "o": divided(out, groups, "out", "groups"),
    }
    ins, outs = ("c", "o") if groups == 1 else ("(g,c)", "(g,o)")
    sizes |= {"g": groups} if groups > 1 else {}
    if kind == "separable":
        weight, ranks = f"D[{ins},{','.join(INNER[: len(found)])}] * P[{outs},c]", dict[str, Size]()
    else:
        weight, ranks = _kernel(kind, sizes["c"], out, [each.kernel for each in found], rank)
        weight = re.sub(r"(?<=[\[,])o(?=[,\]])", outs, weight)
    lines, read = [], "x"
    if any(each.padding for each in found):
        amounts = ", ".join(
            f"{h}=({each.padding},{each.padding})" for h, each in zip(space, found, strict=True)
        )
        lines.append(f"padded[b,{ins},{','.join(space)}] = pad(x[b,{ins},{','.join(space)}], {amounts})")
        read = "padded"
    lines.append(f"y[b,{outs},{','.join(made)}] = {read}[b,{ins},{_windows(found)}] * {weight}")
    if bias:
        lines[-1] = lines[-1].replace("y[", "convolved[", 1)
        lines.append(f"y[b,{outs},{','.join(made)}] = convolved + bias[{outs}]")
    inputs = f"x[b,{ins},{','.join(space)}]"
    return hygienic(lambda **given: tn.layer("\n".join(lines), inputs=inputs, **given), sizes | ranks)


def _dimensions(
    kernel: int | Sequence[int],
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
    dimensions: int,
) -> tuple[_Dimension, ...]:
    """The dimensions that settings say, once or for each."""
    settings = {
        "kernel": (kernel, 1),
        "stride": (stride, 1),
        "padding": (padding, 0),
        "dilation": (dilation, 1),
    }
    counts = {len(value) for value, _ in settings.values() if isinstance(value, Sequence)} or {dimensions}
    if len(counts) > 1 or not 1 <= max(counts) <= len(SPACE):
        raise ShapeError(
            f"a convolution of {' and '.join(map(str, sorted(counts)))} dimension(s)", fix="give 1 to 3"
        )
    (count,) = counts
    whole = {}
    for name, (value, least) in settings.items():
        each = tuple(value) if isinstance(value, Sequence) else (value,) * count
        if any(number < least for number in each):
            raise ShapeError(f"{name}={value!r}", fix=f"give integers from {least}")
        whole[name] = each
    return tuple(_Dimension(*each) for each in zip(*whole.values(), strict=True))


def _windows(dimensions: Sequence[_Dimension]) -> str:
    """Where the operand is read: `2*p+u, q+2*v`."""

    def term(step: int, axis: str) -> str:
        return axis if step == 1 else f"{step}*{axis}"

    return ",".join(
        f"{term(each.stride, p)}+{term(each.dilation, u)}"
        for each, p, u in zip(dimensions, MADE, INNER, strict=False)
    )


def _kernel(
    kind: str, channels: Size, out: Size, kernel: Sequence[int], rank: Rank
) -> tuple[str, dict[str, Size]]:
    """The kernel as an expression, and the ranks in it."""
    inner = tuple(INNER[: len(kernel)])
    if kind == "dense":
        return f"F[o,c,{','.join(inner)}]", {}
    if not (isinstance(channels, int) and isinstance(out, int)):
        fix = f"give integers; here channels={channels} and out={out}"
        raise ShapeError(f"the ranks of '{kind}' follow from sizes that are known", fix=fix)
    if kind == "tucker2":
        weight = _tucker2(channels, out, inner, kernel, rank)
    else:
        ranks = {each: each.replace("r", "t") for each in ("r", *(f"r{n}" for n in range(1, 6)))}
        sizes = ((out,), (channels,), *((size,) for size in kernel))
        weight = factored(kind, (("o",), ("c",), *((axis,) for axis in inner)), sizes, rank, ranks)
    return str(weight), dict(weight.ranks)


def _tucker2(channels: int, out: int, inner: tuple[str, ...], kernel: Sequence[int], rank: Rank) -> Factored:
    """The form of Tucker whose modes are the channels alone."""
    count = 1
    for size in kernel:
        count *= size

    def parameters(ranks: tuple[int, ...]) -> int:
        s, r = ranks
        return out * s + s * r * count + channels * r

    s, r = choose_ranks(rank, (out, channels), parameters, dense=out * channels * count)
    factors = Factor("V", ("o", "s")), Factor("G", ("s", "r", *inner)), Factor("U", ("c", "r"))
    return Factored(factors, {"s": s, "r": r})


# ---------------------------------------------------------------------------- a residual block


@checked
def residual_block(
    channels: Size, out: Size, *, stride: int = 1, factorization: str = "dense", rank: Rank = "same"
) -> tn.Graph:
    """y = relu(γ₂ ⊙ (F₂ ∗ relu(γ₁ ⊙ (F₁ ∗ x) + β₁)) + β₂ + x), the block of residual networks.

    Input x[b, C, H, W], output y[b, O, ⌈H/stride⌉, ⌈W/stride⌉]; both kernels are 3 × 3, with zeros around. Where
    channels or sizes change, x goes through a 1 × 1 kernel of the same stride, with γ₃ and β₃. Each γ and β is
    what a batch normalisation comes to once its statistics are fixed.

    Args:
        channels: C.
        out: O.
        stride: of the first convolution.
        factorization: of both 3 × 3 kernels, see `convolution`.
        rank: of factorized kernels, see `convolution`.

    Raises:
        ShapeError: settings do not fit.

    Source: He et al. (2016), "Deep residual learning for image recognition", figure 2.

    Example:
        >>> tn.parameter_count(residual_block(16, 32, stride=2))
        14528
    """

    def around(channels: Size, stride: int) -> tn.Graph:
        return convolution(
            channels, out, stride=stride, padding=1, factorization=factorization, rank=rank, bias=False
        )

    first, second = around(channels, stride), around(out, 1)
    beside = convolution(channels, out, 1, stride=stride, bias=False)
    scaled = tn.layer("y[b,c,h,w] = gain[c] * x[b,c,h,w] + bias[c]", inputs="x")
    curved = tn.layer("y[b,c,h,w] = relu(gain[c] * x[b,c,h,w] + bias[c])", inputs="x")
    added = tn.layer("y[b,c,h,w] = relu(x[b,c,h,w] + z[b,c,h,w])", inputs="x z")

    def forward(x: tn.Tensor) -> tn.Tensor:
        made = curved(first(x, scope="first"), scope="first")
        made = scaled(second(made, scope="second"), scope="second")
        if channels != out or stride != 1:
            x = scaled(beside(x, scope="beside"), scope="beside")
        found: tn.Tensor = added(made, x)
        return found

    return hygienic(lambda **known: tn.model(forward, inputs="x[b,C,H,W]", **known), {"C": channels})


# ---------------------------------------------------------------------------- what the Perceiver begins with

STEM = """
    padded[b,c,i,j] = pad(x[b,c,i,j], i=(3,3), j=(3,3))
    z[b,o,p,q]      = padded[b,c,2*p+u,2*q+v] * {kernel}
    a[b,o,p,q]      = relu(gain[o] * z[b,o,p,q] + bias[o])
    y[b,o,r,s]      = max[k,l](a[b,o,2*r+k,2*s+l])
"""
"""7 × 7 of stride 2, a gain and a bias for each channel, ReLU, the largest of 3 × 3 of stride 2."""

STEM_FORMS = tuple(form for form in FORMS if form not in ("tucker2", "separable"))
"""Those of its kernel."""


@checked
def convolutional_stem(
    height: int,
    width: int,
    channels: Size,
    out: Size,
    *,
    factorization: str = "dense",
    rank: Rank = "same",
) -> tn.Graph:
    """y = max-pool(relu(γ ⊙ (F ∗ x) + β)): a quarter of the height and of the width.

    Input x[b, C, H, W], output y[b, O, ⌊(⌈H/2⌉ − 1)/2⌋, …]; 49·C·O + 2·O parameters. γ and β are
    what a batch normalisation comes to once its statistics are fixed. The kernel F[o,c,u,v] may be a product
    of factors, over its four modes as `linear` has them over those of a weight.

    Args:
        height: H, at least 5.
        width: W, at least 5.
        channels: C.
        out: O.
        factorization: of the kernel: dense, tucker, cp, tt, tr or low_rank, in any case.
        rank: of the factorized kernel: 'same', a fraction of its 49·C·O parameters, an int, or one for each rank.

    Raises:
        ShapeError: the image is too small; factorization or rank does not fit, or is asked for at a symbolic C or O.

    Source: Jaegle et al. (2022), appendix: the convolutional preprocessing of images.

    Example:
        >>> tn.parameter_count(convolutional_stem(224, 224, 3, 64))
        9536
    """
    for size, what in ((height, "height"), (width, "width")):
        if not positive(size) or size < 5:
            raise tn.ShapeError(f"{what}={size!r} is too small for the stem", fix="give at least 5")
    fixed: dict[str, Size] = {"H": height, "W": width, "u": 7, "v": 7, "k": 3, "l": 3}
    given = fixed | {"c": channels, "o": out}
    kernel, ranks = _kernel(form_named(factorization, STEM_FORMS), channels, out, (7, 7), rank)
    text = STEM.format(kernel=kernel)
    return hygienic(lambda **sizes: tn.layer(text, inputs="x[b,c,H,W]", **sizes), given | ranks)
