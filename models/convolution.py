"""A convolution as a gather and a contraction: what the Perceiver puts before its inputs."""

from __future__ import annotations

import tensornet as tn
from tensornet.factorizations import factored, form_named
from tensornet.ranks import Rank

from .checked import checked
from .dimensions import Size, hygienic, positive

__all__ = ["convolutional_stem"]

STEM = """
    padded[b,c,i,j] = pad(x[b,c,i,j], i=(3,3), j=(3,3))
    row[p,u]      = 2 * index(p) + index(u)
    column[q,v]   = 2 * index(q) + index(v)
    z[b,o,p,q]    = padded[b,c,row[p,u],column[q,v]] * {kernel}
    a[b,o,p,q]    = relu(gain[o] * z[b,o,p,q] + bias[o])
    below[r,k]    = 2 * index(r) + index(k)
    beside[s,l]   = 2 * index(s) + index(l)
    y[b,o,r,s]    = max[k,l](a[b,o,below[r,k],beside[s,l]])
"""
"""7 × 7 of stride 2, a gain and a bias for each channel, ReLU, the largest of 3 × 3 of stride 2."""

FORMS = ("dense", "tucker", "cp", "tt", "low_rank", "tr")
"""Those of a kernel, whose dimensions are of one part each."""


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
    halves = [(size + 1) // 2 for size in (height, width)]
    quarters = [(size - 1) // 2 for size in halves]
    fixed = {"H": height, "W": width, "p": halves[0], "q": halves[1], "r": quarters[0], "s": quarters[1]}
    fixed |= {"u": 7, "v": 7, "k": 3, "l": 3}
    given: dict[str, Size] = {**fixed, "c": channels, "o": out}
    kernel, ranks = _kernel(form_named(factorization, FORMS), channels, out, rank)
    text = STEM.format(kernel=kernel)
    return hygienic(lambda **sizes: tn.layer(text, inputs="x[b,c,H,W]", **sizes), given | ranks)


def _kernel(kind: str, channels: Size, out: Size, rank: Rank) -> tuple[str, dict[str, Size]]:
    """The kernel as an expression, and the ranks in it."""
    if kind == "dense":
        return "F[o,c,u,v]", {}
    if not (isinstance(channels, int) and isinstance(out, int)):
        fix = f"give integers; here channels={channels} and out={out}"
        raise tn.ShapeError(f"the ranks of '{kind}' follow from sizes that are known", fix=fix)
    ranks = {each: each.replace("r", "t") for each in ("r", *(f"r{n}" for n in range(1, 5)))}
    weight = factored(kind, ("o", "c", "u", "v"), ((out,), (channels,), (7,), (7,)), rank, ranks)
    return str(weight), dict(weight.ranks)
