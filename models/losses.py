"""Losses as equations: cross-entropy with label smoothing, and the permutation language modeling loss."""

from __future__ import annotations

import tensornet.api as tn
from tensornet.errors import ShapeError

from .checked import checked

NEGATIVE_LOG_LIKELIHOOD = """
    logp[{axes},v] = log_softmax[v](logits[{axes},v])
    {label}
    nll[{axes}]    = {terms}
    {counted}
"""

LABELS = {
    "all": ("at[{axes}] = t[{axes}]", "loss = mean[{axes}](nll[{axes}])"),
    "some": (
        "at[{axes}] = where(t[{axes}] == {ignore}, 0, t[{axes}])",
        "there[{axes}] = where(t[{axes}] == {ignore}, 0, 1)\n"
        "    loss = sum[{axes}](where(t[{axes}] == {ignore}, 0, nll[{axes}])) / maximum(sum[{axes}](there[{axes}]), 1)",
    ),
    "permutation": ("at[b,p] = t[b,z[b,p]]", "loss = mean[b,p](nll[b,p])"),
}


@checked
def cross_entropy(*, tokens: bool = False, smoothing: float = 0.0, ignore: int | None = None) -> tn.Graph:
    """The mean over examples of −Σ_v q(v)·log p(v), with q = (1 − ε)·onehot(t) + ε/V.

    Inputs: logits[b, v] and t[b] of integers, or with `tokens` logits[b, n, v] and t[b, n]. Output: a
    scalar. No parameters.

    Args:
        tokens: whether there is a label for each of n positions.
        smoothing: ε.
        ignore: a label whose examples are left out of the mean; none if not given.

    Raises:
        ShapeError: ε is not between 0 and 1.

    Source: Szegedy et al. (2016), §7, for label smoothing; Vaswani et al. (2017), §5.4.

    Example:
        >>> import numpy as np
        >>> loss = tn.compile(cross_entropy())
        >>> round(float(loss({}, np.zeros((2, 4)), np.array([1, 3]))), 4)
        1.3863
    """
    kind, axes = "all" if ignore is None else "some", "b,n" if tokens else "b"
    return _loss(kind, axes, smoothing, [f"logits[{axes},v]", f"t[{axes}]"], ignore)


@checked
def permutation_loss(*, smoothing: float = 0.0) -> tn.Graph:
    """The mean over predicted positions of −log p(x_{z_t} | x_{z<t}); eq. 5 is the sum, negated.

    Inputs: logits[b, p, v] at the predicted positions, t[b, n] of all tokens, and z[b, p], the positions
    as integers. Output: a scalar. No parameters.

    Args:
        smoothing: ε of label smoothing.

    Raises:
        ShapeError: ε is not between 0 and 1.

    Source: Yang et al. (2019), eq. 5.

    Example:
        >>> print(permutation_loss().equations[1])
        at[b,p] = t[b,z[b,p]]
    """
    return _loss("permutation", "b,p", smoothing, ["logits[b,p,v]", "t[b,n]", "z[b,p]"], None)


def _loss(kind: str, axes: str, smoothing: float, inputs: list[str], ignore: int | None) -> tn.Graph:
    if not 0 <= smoothing <= 1:
        raise ShapeError(f"smoothing={smoothing!r}", fix="give a share from 0 to 1")
    smoothing = float(smoothing)
    label, counted = (text.format(axes=axes, ignore=ignore) for text in LABELS[kind])
    kept, smoothed = 1.0 - float(smoothing), float(smoothing)
    terms = [f"-{kept!r} * logp[{axes},at[{axes}]]"] if kept else []
    terms += [f"-{smoothed!r} * mean[v](logp[{axes},v])"] if smoothed else []
    text = NEGATIVE_LOG_LIKELIHOOD.format(axes=axes, label=label, counted=counted, terms=" + ".join(terms))
    return tn.layer(text, inputs=inputs)
