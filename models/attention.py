"""Attention as one block of equations: soft, hard or signed; self-attention, cross-attention or key–value store.

    a = [soft](arg)max_β(Kᵀq),  h = V·a                       (attention lecture, key–value store)
    Attention(Q, K, V) = softmax(Q·Kᵀ/√d)·V                   (thesis eq. 2.3.3)
    MultiHead(Q, K, V) = [head₁ ⊕ … ⊕ head_h]·W_O             (thesis eq. 2.3.5–2.3.6)

A mask selects the keys that a query may see. If a query may see none, all its keys get the same score: softmax weighs
them equally, and "hard" takes the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tensornet.api as tn
from tensornet.errors import ShapeError

from .checked import Size, checked, chosen, divided, halved, real, sized_layer
from .positions import Rotary

WEIGHTS = {
    "soft": "softmax[j]({s})",
    "hard": "hardmax[j]({s})",
    "signed": "sign(s[b,h,i,j]) * softmax[j]({s})",  # thesis eq. 3.0.15
}

MASKS = {
    "causal": "(index(i){past} >= index(j))",  # thesis chapter 2.7, the matrix M
    "padding": "(keep[b,j] != 0)",
    "any": "(see[b,i,j] != 0)",
}

MASK_INPUTS = {"padding": "keep[b,j]", "any": "see[b,i,j]"}

HIDDEN = "-1e30"
"""The score of a masked key. It is finite, so that a row of masked keys does not become 0/0."""


def masks_of(mask: str | Sequence[str] | None, known: Iterable[str] = MASKS) -> tuple[str, ...]:
    """The names of one or several masks as a tuple; a key is seen if all masks allow it.

    Raises:
        ShapeError: a name is unknown.
    """
    names = () if mask is None else (mask,) if isinstance(mask, str) else tuple(dict.fromkeys(mask))
    for name in names:
        chosen(name, tuple(known), "mask")
    return names


def mask_inputs(mask: str | Sequence[str] | None) -> list[str]:
    """The inputs of the masks."""
    return [MASK_INPUTS[name] for name in masks_of(mask) if name in MASK_INPUTS]


def weight_lines(
    weights: str,
    mask: str | Sequence[str] | None,
    beta: float | None,
    dropout: float,
    past: bool = False,
    heads: str = "h",
) -> list[str]:
    """The equations that compute the weights a from q and k; `heads` are the head axes of the queries."""
    chosen(weights, tuple(WEIGHTS), "weights")
    beta = None if beta is None else real(beta, "beta", 0)
    dropout = real(dropout, "dropout", 0, 1)
    scaled = f"q[b,{heads},i,d] * k[b,h,j,d]"
    scaled = f"{scaled} / sqrt(d)" if beta is None else f"{beta!r} * {scaled}"
    conditions = [MASKS[name].format(past=" + past" if past else "") for name in masks_of(mask)]
    scores = f"s[b,{heads},i,j]"
    score = f"abs({scores})" if weights == "signed" else scores
    if conditions:
        score = f"where({' & '.join(conditions)}, {score}, {HIDDEN})"
    weighted = WEIGHTS[weights].replace("s[b,h,i,j]", scores).format(s=score)
    if dropout:
        weighted = f"dropout({weighted}, {dropout!r})"
    return [f"{scores} = {scaled}", f"a[b,{heads},i,j] = {weighted}"]


@checked
def dot_product_attention(
    *,
    weights: str = "soft",
    beta: float | None = None,
    mask: str | Sequence[str] | None = None,
    dropout: float = 0.0,
) -> tn.Graph:
    """y = V·[soft](arg)max_β(Kᵀ·q) for every query, without projections.

    Inputs: q[b, h, i, d], k[b, h, j, d], v[b, h, j, f], then keep[b, j] for "padding" and see[b, i, j]
    for "any". Output: y[b, h, i, f]. No parameters.

    Args:
        weights: "soft", "hard" (weight 1 for the largest score, the first of equal ones) or "signed"
            (sign(A)·softmax(|A|)).
        beta: the inverse temperature; 1/√d if not given.
        mask: "causal", "padding" (keep is nonzero at keys that are not padding), "any" (see is nonzero
            where query i may see key j), or several of them.
        dropout: the share of weights dropped in training.

    Raises:
        ShapeError: a choice is unknown.

    Source: attention lecture, "key–value store"; thesis eq. 2.3.3 and 3.0.15.

    Example:
        >>> print(dot_product_attention(beta=2.0).equations[0])
        s[b,h,i,j] = 2.0 * q[b,h,i,d] * k[b,h,j,d]
    """
    lines = weight_lines(weights, mask, beta, dropout)
    lines.append("y[b,h,i,f] = a[b,h,i,j] * v[b,h,j,f]")
    inputs = ["q[b,h,i,d]", "k[b,h,j,d]", "v[b,h,j,f]", *mask_inputs(mask)]
    return tn.layer("\n".join(lines), inputs=inputs)


@checked
def attention(
    dim: Size,
    heads: Size = 1,
    *,
    groups: Size | None = None,
    keys: Size | None = None,
    values: Size | None = None,
    qk: Size | None = None,
    v: Size | None = None,
    out: Size | None = None,
    weights: str = "soft",
    beta: float | None = None,
    mask: str | Sequence[str] | None = None,
    rotary: float | None = None,
    scaling: Sequence[float] | None = None,
    neighbours: bool = False,
    bias: bool = True,
    out_bias: bool = True,
    dropout: float = 0.0,
    past: bool = False,
) -> tn.Graph:
    """Multi-head attention with projections: MultiHead(x, z, u) = [head₁ ⊕ … ⊕ head_h]·W_O.

    Inputs: x[b, i, c] alone (self-attention); x and z[b, j, e] if `keys` is given (cross-attention);
    x, z and u[b, j, g] if `values` is given too. Then keep[b, j] for the mask "padding" and see[b, i, j]
    for "any"; with `past` the stored keys[b, h, past, d] and values[b, h, past, f].
    Output: y[b, i, o]; with `past` also the stored and new keys k[b, h, j, d] and values v[b, h, j, f].

    Parameters: Wq (qk·dim), Wk (qk·keys), Wv (v·values), Wo (out·v), and their biases (qk, qk, v, out). With `groups`,
    Wk, Wv, their biases and the stored keys and values have G heads instead of h.

    Args:
        dim: the width of x.
        heads: h; it divides `qk` and `v`.
        groups: G, the number of heads of keys and values; each serves h/G consecutive heads of queries. `heads` if
            not given; 1 is multi-query attention.
        keys: the width of z.
        values: the width of u.
        qk: the width of all queries, and without `groups` of all keys: h times that of a head; `dim` if not given.
        v: h times the width of a value head, and without `groups` the width of all values; `qk` if not given.
        out: the width of y; `dim` if not given.
        weights, beta, mask, dropout: as in `dot_product_attention`.
        rotary: rotate queries and keys by their positions with this base, as `rotary_embedding` does, with its
            `scaling` and `neighbours`. Stored keys are already rotated.
        bias: whether queries, keys and values have biases.
        out_bias: whether the output has one.
        past: whether to continue from stored keys and values, to decode step by step.

    Raises:
        ShapeError: the heads do not divide the widths, or a choice is unknown.

    Source: thesis eq. 2.3.3–2.3.6; Vaswani et al. (2017), §3.2; Ainslie et al. (2023), "GQA", for groups.

    Example:
        >>> tn.parameter_formula(attention("D", "h", bias=False, out_bias=False))
        4*D**2
        >>> tn.parameter_count(attention(512, 8))
        1050624
        >>> tn.parameter_count(attention(512, 8, groups=2, rotary=10000.0, bias=False, out_bias=False))
        655360
    """
    qk = dim if qk is None else qk
    v = qk if v is None else v
    if values is not None and keys is None:
        raise ShapeError("values= is given without keys=", fix="give keys=, the width of their input")
    if rotary is not None and keys is not None:
        raise ShapeError(
            "rotary= is given with keys=", fix="leave one out: only positions of one text compare"
        )
    if rotary is None and (scaling or neighbours):
        raise ShapeError("scaling= or neighbours= is given without rotary=", fix="give rotary=, the base")
    z = "x" if keys is None else "z"
    u = z if values is None else "u"
    grouped = groups is not None and groups != heads
    several = "h,m" if grouped else "h"
    turn = None if rotary is None else Rotary.of(rotary, scaling, neighbours)
    flat, grown = "" if turn is None else "flat_", "new_" if past else ""
    lines = [
        _projected(f"{flat}q", "Wq", "x[b,i,c]", several, "d", bias),
        _projected(f"{flat or grown}k", "Wk", f"{z}[b,j,e]", "h", "d", bias),
        _projected(f"{grown}v", "Wv", f"{u}[b,j,g]", "h", "f", bias),
    ]
    if turn is not None:
        lines += turn.tables("i", past=past)
        lines.append(turn.turned("q", "flat_q", f"b,{several}", "i"))
        lines.append(turn.turned(f"{grown}k", "flat_k", "b,h", "i"))
    if past:
        lines += [
            "k[b,h,j,d] = concat[j](keys[b,h,j,d], new_k[b,h,j,d])",
            "v[b,h,j,f] = concat[j](values[b,h,j,f], new_v[b,h,j,f])",
        ]
    lines += weight_lines(weights, mask, beta, dropout, past, several)
    lines.append(_joined(out_bias, several))
    inputs = ["x[b,i,c]", *(["z[b,j,e]"] if z == "z" else []), *(["u[b,j,g]"] if u == "u" else [])]
    inputs += mask_inputs(mask)
    inputs += ["keys[b,h,past,d]", "values[b,h,past,f]"] if past else []
    widths: dict[str, Size] = {"e": keys if keys is not None else dim}
    widths["g"] = values if values is not None else widths["e"]
    widths |= {"c": dim, "o": dim if out is None else out} | _heads(dim, heads, qk, v)
    if grouped:
        widths |= {"h": groups, "m": divided(heads, groups, "heads", "groups")}
    if turn is not None:
        widths |= {"w": halved(widths["d"], "the width of a head"), "s": 2}
    outputs = ["y", "k", "v"] if past else ["y"]
    return sized_layer("\n".join(lines), inputs, widths, outputs=outputs)


def attention_in_two(
    dim: Size, heads: Size, *, keys: Size, qk: Size, mask: str | Sequence[str] | None = None
) -> tuple[tn.Graph, tn.Graph]:
    """`attention(dim, heads, keys=keys, qk=qk, mask=mask)` as two layers, for keys that are read several times.

    The first computes keys k[b, h, j, d] and values v[b, h, j, f] from z[b, j, e]. The second computes y[b, i, o]
    from x[b, i, c], k, v and the inputs of the mask.
    """
    made = [
        _projected("k", "Wk", "z[b,j,e]", "h", "d", True),
        _projected("v", "Wv", "z[b,j,g]", "h", "f", True),
    ]
    read = [
        _projected("q", "Wq", "x[b,i,c]", "h", "d", True),
        *weight_lines("soft", mask, None, 0.0),
        _joined(True),
    ]
    inputs = ["x[b,i,c]", "k[b,h,j,d]", "v[b,h,j,f]", *mask_inputs(mask)]
    parts = _heads(dim, heads, qk, qk)
    return (
        sized_layer("\n".join(made), "z", {"e": keys, "g": keys, **parts}, outputs="k v"),
        sized_layer("\n".join(read), inputs, {"c": dim, "o": dim, **parts}),
    )


def _projected(name: str, weight: str, source: str, heads: str, width: str, bias: bool) -> str:
    """The equation that projects `source` to queries, keys or values, split into heads."""
    place, channel = source.rstrip("]").split(",")[1:]
    made = f"({heads},{width})"
    added = f" + b{weight[1:]}[{made}]" if bias else ""
    return f"{name}[b,{heads},{place},{width}] = {source} * {weight}[{made},{channel}]{added}"


def _joined(bias: bool, heads: str = "h") -> str:
    """The equation of the output projection, which joins the heads."""
    return f"y[b,i,o] = a[b,{heads},i,j] * v[b,h,j,f] * Wo[o,({heads},f)]" + (" + bo[o]" if bias else "")


def _heads(dim: Size, heads: Size, qk: Size, v: Size) -> dict[str, Size]:
    """The number of heads, and the widths of one head of keys and of values."""
    return {
        "h": heads,
        "d": divided(qk, heads, "dim" if qk is dim else "qk", "heads"),
        "f": divided(v, heads, "v", "heads"),
    }
