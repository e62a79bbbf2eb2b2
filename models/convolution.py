"""Convolutions with dense or factorized kernels: a layer, a residual block, and the stem of the Perceiver."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import tensornet.api as tn
from tensornet.errors import ShapeError
from tensornet.weights.factorizations import Factor, Factored, Rank, choose_ranks, factored, form_named

from .checked import Size, checked, divided, positive, sized_layer, sized_model

FORMS = ("dense", "separable", "tucker2", "tucker", "cp", "tt", "low_rank", "tr")
"""The factorizations of a kernel, which do not split its modes into parts."""

SPACE, MADE, INNER = "hwd", "pql", "uvk"
"""The axes of the operand, of the result and of the kernel in each spatial dimension."""


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
    """y[b,o,p,…] = Σ x[b,c,s·p + d·u,…] · F[o,c,u,…] + β[o], over an input padded with zeros.

    Input: x[b, C, H, …] with one to three spatial dimensions, whose sizes stay open. Output: y[b, O, P, …] with
    P = ⌊(H + 2·padding − dilation·(K − 1) − 1)/stride⌋ + 1.

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

    The planner chooses the order in which factors are applied: for tucker2 a 1 × 1, the core, and a 1 × 1.

    Args:
        channels: C.
        out: O.
        kernel: K, one number or one for each dimension.
        dimensions: the number of spatial dimensions, if no setting is a sequence.
        stride: the step of the kernel, one number or one for each dimension.
        padding: the zeros before and after, one number or one for each dimension.
        dilation: the distance of kernel elements, one number or one for each dimension.
        groups: the number of groups of input and output channels; each group has its own kernel. F has all outputs
            and the input channels of one group, whose factor the groups share.
        factorization: one of the table above, in upper or lower case.
        rank: of a factorized kernel: 'same', a fraction of its parameters, an int, or one for each rank.
        bias: whether β is added.

    Raises:
        ShapeError: settings do not fit, or a factorization needs ranks and C or O is symbolic.

    Source: LeCun et al. (1989); Lebedev et al. (2015) for cp, Kim et al. (2016) for tucker2, Chollet (2017) for
    separable.

    Example:
        >>> layer = convolution(16, 32, stride=2, padding=1, factorization="tucker2", rank=(8, 4), bias=False)
        >>> print(layer.own[-1])
        y[b,o,p,q] = padded[b,c,2*p+u,2*q+v] * V[o,s] * G[s,r,u,v] * U[c,r]
        >>> tn.parameter_count(layer)
        608
    """
    kernel, stride, padding, dilation = _dimensions(kernel, stride, padding, dilation, dimensions)
    kind = form_named(factorization, FORMS)
    space, made, inner = (",".join(names[: len(kernel)]) for names in (SPACE, MADE, INNER))
    sizes: dict[str, Size] = dict(zip(INNER, kernel, strict=False))
    sizes |= {
        "c": divided(channels, groups, "channels", "groups"),
        "o": divided(out, groups, "out", "groups"),
    }
    ins, outs = ("c", "o") if groups == 1 else ("(g,c)", "(g,o)")
    sizes |= {"g": groups} if groups > 1 else {}
    if kind == "separable":
        weight, ranks = f"D[{ins},{inner}] * P[{outs},c]", dict[str, Size]()
    else:
        weight, ranks = _kernel(kind, sizes["c"], out, kernel, rank)
        weight = re.sub(r"(?<=[\[,])o(?=[,\]])", outs, weight)
    lines, read = [], "x"
    if any(padding):
        amounts = ", ".join(f"{h}=({by},{by})" for h, by in zip(SPACE, padding, strict=False))
        lines.append(f"padded[b,{ins},{space}] = pad(x[b,{ins},{space}], {amounts})")
        read = "padded"
    places = windows_of(stride, dilation, MADE, INNER)
    lines.append(f"y[b,{outs},{made}] = {read}[b,{ins},{places}] * {weight}")
    if bias:
        lines[-1] = lines[-1].replace("y[", "convolved[", 1)
        lines.append(f"y[b,{outs},{made}] = convolved + bias[{outs}]")
    return sized_layer("\n".join(lines), f"x[b,{ins},{space}]", sizes | ranks)


def _dimensions(
    kernel: int | Sequence[int],
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
    dimensions: int,
) -> list[tuple[int, ...]]:
    """Each setting as one number for each dimension, from one number for all or a sequence."""
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
    whole = list[tuple[int, ...]]()
    for name, (value, least) in settings.items():
        each = tuple(value) if isinstance(value, Sequence) else (value,) * count
        if any(number < least for number in each):
            raise ShapeError(f"{name}={value!r}", fix=f"give integers from {least}")
        whole.append(each)
    return whole


def windows_of(strides: Sequence[int], dilations: Sequence[int], outer: str, inner: str) -> str:
    """The indices at which an operand is read, such as `2*p+u,q+2*v`."""

    def term(step: int, axis: str) -> str:
        return axis if step == 1 else f"{step}*{axis}"

    each = zip(strides, outer, dilations, inner, strict=False)
    return ",".join(f"{term(stride, p)}+{term(apart, u)}" for stride, p, apart, u in each)


def _kernel(
    kind: str, channels: Size, out: Size, kernel: Sequence[int], rank: Rank
) -> tuple[str, dict[str, Size]]:
    """The kernel as an expression, and the sizes of its rank axes."""
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
    """A Tucker decomposition of the channel modes only."""
    count = math.prod(kernel)

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

    Input: x[b, C, H, W]. Output: y[b, O, ⌈H/stride⌉, ⌈W/stride⌉]. Both kernels are 3 × 3 with zero padding. If
    channels or sizes change, x is convolved with a 1 × 1 kernel of the same stride, with γ₃ and β₃. Each γ and β
    represents a batch normalization with fixed statistics.

    Args:
        channels: C.
        out: O.
        stride: the stride of the first convolution.
        factorization: the form of both 3 × 3 kernels, as for `convolution`.
        rank: the rank of factorized kernels, as for `convolution`.

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

    return sized_model(forward, "x[b,C,H,W]", {"C": channels})


# ---------------------------------------------------------------------------- the stem of the Perceiver

STEM = """
    padded[b,c,i,j] = pad(x[b,c,i,j], i=(3,3), j=(3,3))
    z[b,o,p,q]      = padded[b,c,2*p+u,2*q+v] * {kernel}
    a[b,o,p,q]      = relu(gain[o] * z[b,o,p,q] + bias[o])
    y[b,o,r,s]      = max[k,l](a[b,o,2*r+k,2*s+l])
"""
"""A 7 × 7 convolution of stride 2, a gain and a bias for each channel, ReLU, a 3 × 3 max-pool of stride 2."""

STEM_FORMS = tuple(form for form in FORMS if form not in ("tucker2", "separable"))
"""The factorizations of the kernel of the stem."""


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
    """y = max-pool(relu(γ ⊙ (F ∗ x) + β)): reduces height and width to about a quarter.

    Input: x[b, C, H, W]. Output: y[b, O, ⌊(⌈H/2⌉ − 1)/2⌋, …]. Parameters: 49·C·O + 2·O. γ and β represent a batch
    normalization with fixed statistics. The kernel F[o,c,u,v] may be factorized over its four modes, as `linear`
    factorizes a weight.

    Args:
        height: H, at least 5.
        width: W, at least 5.
        channels: C.
        out: O.
        factorization: the form of the kernel: dense, tucker, cp, tt, tr or low_rank, in upper or lower case.
        rank: of a factorized kernel: 'same', a fraction of its 49·C·O parameters, an int, or one for each rank.

    Raises:
        ShapeError: the image is too small, factorization or rank does not fit, or a factorization needs ranks and
            C or O is symbolic.

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
    return sized_layer(text, "x[b,c,H,W]", given | ranks)
