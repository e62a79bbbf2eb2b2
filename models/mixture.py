"""Mixtures of experts: of many feed-forward layers each token goes through the few that a router chooses."""

from __future__ import annotations

import tensornet.api as tn
from tensornet.errors import ShapeError

from .blocks import ACTIVATIONS
from .checked import checked
from .dimensions import Size, chosen, hygienic

__all__ = ["mixture_of_experts"]

ROUTED = """
    s[...,e] = x[...,c] * R[e,c]
    p[...,k] = top[e,k](s[...,e])
    w[...,k] = softmax[k](s[...,p[...,k]])
"""
"""The scores of the experts for each token, which k of them it goes through, and how much each of these counts."""

EXPERTS = """
    W1[e,f,c]: parameter
    W2[e,o,f]: parameter
    h[...,k,f] = {activation}(x[...,c] * W1[p[...,k],f,c]){gate}
    y[...,o] = w[...,k] * h[...,k,f] * W2[p[...,k],o,f]
"""
GATE = " * sum[c](x[...,c] * W3[p[...,k],f,c])"

BALANCE = """
    share[e] = sum[...,k](onehot[e](p[...,k]))
    balance = e * share[e] / sum[e](share[e]) * mean[...](softmax[e](s[...,e]))
"""
"""E·Σ_e f_e·P_e: the share of choices that fall on each expert, times the share that the router would give it."""


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

    Input x[..., c], output y[..., o]; experts·(2·dim·hidden + dim) parameters, and experts·dim·hidden more if gated.
    A plan multiplies the tokens of each expert together, each token with all of them, or with matrices gathered for
    it, as it expects to be fastest.

    Args:
        dim: the width of x and y.
        hidden: the width between, of each expert.
        experts: how many there are.
        active: how many each token goes through.
        activation: f: "gelu", "gelu_tanh", "relu", "silu" or "tanh".
        gated: whether f(W₁·x) is multiplied by W₃·x.
        balance: whether the loss E·Σ_e f_e·P_e is a second output, `balance`: 1 where all experts are chosen alike.

    Raises:
        ShapeError: there is no such activation, or more experts are active than there are.

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
    text = ROUTED + declared + EXPERTS.format(activation=activation, gate=gate) + (BALANCE if balance else "")
    sizes = {"c": dim, "f": hidden, "e": experts, "k": active, "o": dim}
    outputs = "y balance" if balance else "y"
    return hygienic(lambda **sizes: tn.layer(text, inputs="x", outputs=outputs, **sizes), sizes)
