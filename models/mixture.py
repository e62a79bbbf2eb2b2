"""Mixtures of experts: a router sends each token through a few of many feed-forward layers."""

from __future__ import annotations

import tensornet.api as tn
from tensornet.errors import ShapeError

from .blocks import ACTIVATIONS, activated
from .checked import checked
from .dimensions import Size, chosen, sized_layer

__all__ = ["mixture_of_experts"]

ROUTED = """
    s[...,e] = x[...,c] * R[e,c]
    p[...,k] = top[e,k](s[...,e])
    w[...,k] = softmax[k](s[...,p[...,k]])
"""
"""The scores of the experts for each token, the k chosen experts, and their weights."""

EXPERTS = """
    W1[e,f,c]: parameter
    W2[e,o,f]: parameter
    h[...,k,f] = {activated}{gate}
    y[...,o] = w[...,k] * h[...,k,f] * W2[p[...,k],o,f]
"""
GATE = " * sum[c](x[...,c] * W3[p[...,k],f,c])"

BALANCE = """
    share[e] = sum[...,k](onehot[e](p[...,k]))
    balance = e * share[e] / sum[e](share[e]) * mean[...](softmax[e](s[...,e]))
"""
"""E·Σ_e f_e·P_e: f_e is the share of choices of expert e, P_e its mean probability under the router."""


@checked
def mixture_of_experts(
    dim: Size,
    hidden: Size,
    experts: Size = 8,
    active: Size = 2,
    *,
    activation: str = "gelu",
    gated: bool = False,
    balance: bool = False,
) -> tn.Graph:
    """y = Σ_k w_k·W₂[p_k]·f(W₁[p_k]·x), where p are the experts with the largest scores R·x, w their softmax.

    Input: x[..., c]. Output: y[..., o]. Parameters: experts·(2·dim·hidden + dim), and experts·dim·hidden more if gated.
    The plan takes the way that it expects to be fastest: grouping the tokens by expert, multiplying each token with
    all experts, or gathering the matrices of each token.

    Args:
        dim: the width of x and y.
        hidden: the width of the hidden layer of each expert.
        experts: the number of experts.
        active: the number of experts that each token goes through.
        activation: f, as in `feed_forward`.
        gated: whether f(W₁·x) is multiplied by W₃·x.
        balance: whether the loss E·Σ_e f_e·P_e is the second output, `balance`. It is 1 if all experts are chosen
            equally often.

    Raises:
        ShapeError: the activation is unknown, or `active` exceeds `experts`.

    Source: Shazeer et al. (2017), "Outrageously large neural networks", eq. 1–5, without noise; Fedus et al. (2022),
    "Switch Transformers", eq. 4–6, for the loss; Jiang et al. (2024), "Mixtral of experts", for the weights.

    Example:
        >>> print(mixture_of_experts("D", "H", 16).equations[1])
        p[...,k] = top[e,k](s[...,e])
        >>> tn.parameter_formula(mixture_of_experts("D", "H", "E"))
        2*D*E*H + D*E
    """
    chosen(activation, ACTIVATIONS, "activation")
    if isinstance(experts, int) and isinstance(active, int) and active > experts:
        raise ShapeError(f"{active} experts are active of {experts}", fix=f"choose active={experts} or less")
    gate, declared = (GATE, "    W3[e,f,c]: parameter\n") if gated else ("", "")
    inner = activated(activation, "x[...,c] * W1[p[...,k],f,c]")
    text = ROUTED + declared + EXPERTS.format(activated=inner, gate=gate) + (BALANCE if balance else "")
    sizes = {"c": dim, "f": hidden, "e": experts, "k": active, "o": dim}
    outputs = "y balance" if balance else "y"
    return sized_layer(text, "x", sizes, outputs=outputs)
