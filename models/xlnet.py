"""XLNet: two streams of attention with one set of parameters (Yang et al. 2019, §2.3).

    p(X_{z_t} = x | x_{z<t}) ∝ exp(e(x)ᵀ·g(x_{z<t}, z_t))                                        (4)
    g_{z_t}⁽ᵐ⁾ ← Attention(Q = g_{z_t}⁽ᵐ⁻¹⁾, KV = h_{z<t}⁽ᵐ⁻¹⁾; θ)        query stream,   g⁽⁰⁾ = w
    h_{z_t}⁽ᵐ⁾ ← Attention(Q = h_{z_t}⁽ᵐ⁻¹⁾, KV = h_{z≤t}⁽ᵐ⁻¹⁾; θ)        content stream, h⁽⁰⁾ = e(x)
    max E_z Σ_{t>c} log p(x_{z_t} | x_{z<t})                              partial prediction      (5)

The factorization order z is given as the input `see`: see[i,j] ≠ 0 if j comes before i in z. Only the
predicted positions have a query stream. Relative positions and memory are those of Transformer-XL
(Dai et al. 2019, §3.2 and 3.3); segments are relative too (§2.5).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import tensornet.api as tn
from tensornet.errors import ShapeError

from .attention import HIDDEN, masks_of
from .blocks import SHIFTED, embedding, encoder_layer, feed_forward, norm, projection
from .checked import (
    Size,
    chosen,
    count,
    encoder_sizes,
    halved,
    sized_model,
    when,
    with_presets,
)

PRESETS: dict[str, dict[str, Any]] = {
    "xlnet_base": {"vocabulary": 32000, "dim": 768, "depth": 12, "heads": 12, "hidden": 3072},
    "xlnet_large": {"vocabulary": 32000, "dim": 1024, "depth": 24, "heads": 16, "hidden": 4096},
}
"""Yang et al. (2019), appendix A.4."""

QUERY = "g[b,p,c] = repeat[b](repeat[p](w[c]))"
"""g⁽⁰⁾ = w, one vector for all predicted positions."""

PLACES = "z[b,i] = index(i) + 0 * t[b,i]"
"""The positions of the content stream: all of them."""

DISTANCES = """
    angle[{f}r,k] = widen({distance}) / 10000 ** (2 * widen(index(k)) / c)
    R[{f}r,(s,k)] = cast(where(index(s) == 0, sin(angle[{f}r,k]), cos(angle[{f}r,k])))
"""
"""R[r]: the sinusoid of the distance klen − r, from klen down to 1 − n; of the negated distance at f = 1."""

AT = "at[b,i,j] = n - z[b,i] + index(j)"
"""The row of R for the distance from position z[b,i] of the text to key j of memory and text together."""

SEEN = "seen[b,i,m] = where({conditions}, 1, 0)"
ALIKE = "alike[b,i,m] = where(segment[b,z[b,i]] == segment[b,m], 1, 0)"
"""The tokens that a position may see, and the tokens of its segment, among the n tokens."""

MEMORY_SEEN = "old[b,i,p] = repeat[p](1 + 0 * z[b,i])"
MEMORY_ALIKE = "old[b,i,p] = repeat[p](where(segment[b,z[b,i]] == 0, 1, 0))"
JOIN = "y[b,i,j] = concat[j](old[b,i,j], new[b,i,j])"
"""The memory comes before the tokens. All of it is seen, and it belongs to segment 0."""

CONTEXT = "y[b,j,c] = concat[j](m[b,j,c], h[b,j,c])"

KEYS = """
    k[b,h,j,d] = x[b,j,e] * Wk[e,h,d]
    v[b,h,j,d] = x[b,j,e] * Wv[e,h,d]
    kr[{f}h,r,d] = R[{f}r,e] * Wr[e,h,d]
"""
"""Keys and values of memory and content, and keys of distances. Both streams share them."""

STREAM = """
    q[b,h,i,d]       = x[b,i,e] * Wq[e,h,d]
    content[b,h,i,j] = (q[b,h,i,d] + content_bias[h,d]) * k[b,h,j,d]
    {way}
    far[b,h,i,r]     = (q[b,h,i,d] + position_bias[h,d]) * {kr}
    {near}
    s[b,h,i,j]       = (content[b,h,i,j] + far[b,h,i,at[b,i,j]]{segment}) / sqrt(d)
    a[b,h,i,j]       = {weights}
    y[b,i,e]         = a[b,h,i,j] * v[b,h,j,d] * Wo[e,h,d]
"""
"""Attention of one stream: g with keys z<t, or h with keys z≤t."""

NEAR = "near[b,h,i,s] = (q[b,h,i,d] + segment_bias[h,d]) * segments[s,h,d]"
SEGMENT = " + where(alike[b,i,j] != 0, near[b,h,i,0], near[b,h,i,1])"
"""Relative segments: one score if i and j belong to the same segment, another if not."""

WAY = "way[b,h,r,d] = where(2 * index(b) + 1 < b, kr[0,h,r,d], kr[1,h,r,d])"
"""The first ⌊b/2⌋ texts of a batch are read forwards, the others backwards."""

MASKS = {
    "permutation": ("see[b,n,m:n]", "(see[b,z[b,i],m] != 0)"),
    "padding": ("keep[b,n]", "(keep[b,m] != 0 * z[b,i])"),
}
HEADS = ("tokens", "classes", None)

SUMMARY = "y[b,f] = tanh(x[b,-1,c] * W[f,c] + bias[f])"
"""The summary vector, which a text is classified by: a projection of its last token."""


STREAMS = {"content": "n", "query": "p"}
"""The axis of positions of each stream."""


@dataclass(frozen=True)
class _Streams:
    """The settings that the streams of all layers share, with methods that build a layer."""

    masks: tuple[str, ...]
    causal: bool
    segments: bool
    memory: bool
    clamp_len: int | None
    bi_data: bool
    empty: str
    activation: str
    eps: float
    dropout: float

    @property
    def masked(self) -> bool:
        return bool(self.masks) or self.causal

    @property
    def klen(self) -> str:
        """The number of keys."""
        return "(n + past)" if self.memory else "n"

    @property
    def known(self) -> dict[str, Any]:
        """The sizes of the model that equations name although none of their inputs has such an axis."""
        return {"n": "n", **when(self.memory, past="past")}

    @property
    def ways(self) -> tuple[str, dict[str, int]]:
        """The text of the axis f of reading directions, with its comma, and its size; empty without `bi_data`."""
        return ("f,", {"f": 2}) if self.bi_data else ("", {})

    def distances(self, t: tn.Tensor) -> Any:
        distance, (f, two) = f"{self.klen} - index(r)", self.ways
        if self.clamp_len is not None:
            distance = f"maximum(minimum({distance}, {self.clamp_len}), -{self.clamp_len})"
        if self.bi_data:
            distance = f"(1 - 2 * index(f)) * ({distance})"
        text = DISTANCES.format(f=f, distance=distance)
        sizes: dict[str, Any] = {**self.known, "r": f"n + {self.klen}", "k": "D/2", "s": 2, "c": "D", **two}
        return tn.layer(text, inputs="t[b,m]", outputs="R", **sizes)(t)

    def setting(self, z: tn.Tensor, given: dict[str, tn.Tensor], *, content: bool) -> list[tn.Tensor]:
        """For a stream at positions z: the rows of R, then the mask `seen`, then `alike`, the keys of its segment."""
        found = [tn.layer(AT, inputs="z[b,i]", j=self.klen, **self.known)(z)]
        if self.masked:
            before = [f"(z[b,i] {'>=' if content else '>'} index(m))"] if self.causal else []
            shown = " & ".join([*(MASKS[each][1] for each in self.masks), *before])
            shown = f"({shown}) | (z[b,i] == index(m))" if content else shown
            inputs = ["z[b,i]", *(MASKS[each][0] for each in self.masks)]
            seen = tn.layer(SEEN.format(conditions=shown), inputs=inputs, m="n")
            new = seen(z, *(given[MASKS[each][0].split("[")[0]] for each in self.masks))
            found.append(self._join(tn.layer(MEMORY_SEEN, inputs="z", p="past"), new, z))
        if self.segments:
            ids = given["segment"]
            new = tn.layer(ALIKE, inputs="z[b,i] segment[b,m]")(z, ids)
            found.append(self._join(tn.layer(MEMORY_ALIKE, inputs="z segment", p="past"), new, z, ids))
        return found

    def _join(self, memory: tn.Graph, new: tn.Tensor, *read: tn.Tensor) -> Any:
        return tn.layer(JOIN, inputs="old[b,i,p] new[b,i,m]")(memory(*read), new) if self.memory else new

    def layer(self, *streams: str) -> tn.Graph:
        """One layer of the content stream, the query stream or both.

        The inputs are x[b, n, D], from which keys and values are computed, memory[b, past, D] if there is memory,
        the table R of distances, and for each stream the stream itself and the results of `setting` for it.
        """
        f, two = self.ways
        sizes: dict[str, Any] = {"h": "h", "e": "D", "d": "D/h", **two}
        keys = tn.layer(KEYS.format(f=f), inputs=f"x[b,j,e] R[{f}r,e]", outputs="k v kr", **sizes)
        sees_some = {"content": self.masked, "query": self.empty == "all"}
        layers = {name: self._stream(sees_some[name]) for name in streams}
        inputs = {"x": "x[b,n,c:D]"} | ({"memory": "memory[b,past,c:D]"} if self.memory else {})
        inputs |= {"R": f"R[{f}r:n + {self.klen},c:D]"}
        for name in streams:
            inputs |= {name: f"{name}[b,{STREAMS[name]},c:D]"}
            inputs |= {each: f"{each}[b,{STREAMS[name]},j:{self.klen}]" for each in self._settings(name)}

        def forward(*tensors: tn.Tensor) -> Any:
            given = dict(zip(inputs, tensors, strict=True))
            x = given["x"]
            x = tn.layer(CONTEXT, inputs="m[b,p,c] h[b,n,c]")(given["memory"], x) if self.memory else x
            made = keys(x, given["R"], scope="attention")
            return tuple(
                layer(given[name], *made, *(given[each] for each in self._settings(name)))
                for name, layer in layers.items()
            )

        return tn.model(forward, inputs=list(inputs.values()))

    def _settings(self, stream: str) -> list[str]:
        """The names of the results of `setting` in a layer."""
        names = ["at", *(["seen"] if self.masked else []), *(["alike"] if self.segments else [])]
        return [f"{stream}_{name}" for name in names]

    def _stream(self, sees_some: bool) -> tn.Graph:
        """A layer of one stream, given its keys and values; `sees_some`: whether each position sees a key."""
        score = "where(seen[b,i,j] != 0, s[b,h,i,j], " + f"{HIDDEN})" if self.masked else "s[b,h,i,j]"
        weights = (
            f"dropout(softmax[j]({score}), {self.dropout!r})" if self.dropout else f"softmax[j]({score})"
        )
        weights += "" if sees_some or not self.masked else " * seen[b,i,j]"
        near, segment = (NEAR, SEGMENT) if self.segments else ("", "")
        f, two = self.ways
        inputs = ["x[b,i,e]", "k[b,h,j,d]", "v[b,h,j,d]", f"kr[{f}h,r,d]", "at[b,i,j]"]
        inputs += (["seen[b,i,j]"] if self.masked else []) + (["alike[b,i,j]"] if self.segments else [])
        sizes: dict[str, Any] = {"h": "h", "d": "D/h", "e": "D", **two, **({"s": 2} if self.segments else {})}
        way, kr = (WAY, "way[b,h,r,d]") if self.bi_data else ("", "kr[h,r,d]")
        text = STREAM.format(way=way, kr=kr, near=near, segment=segment, weights=weights)
        mlp = feed_forward("D", "F", activation=self.activation, dropout=self.dropout)
        attend = tn.layer(text, inputs=inputs, **sizes)
        return encoder_layer(attend, mlp, norm("D", self.eps), pre=False, dropout=self.dropout)


@with_presets(PRESETS)
def xlnet(
    vocabulary: Size = 32000,
    dim: Size = 768,
    depth: int = 12,
    heads: Size = 12,
    hidden: Size = 3072,
    *,
    two_streams: bool = True,
    mask: tuple[str, ...] | str | None = "permutation",
    causal: bool = False,
    segments: bool = True,
    memory: bool = False,
    clamp_len: int | None = None,
    bi_data: bool = False,
    empty: str = "nothing",
    head: str | None = "tokens",
    classes: Size = 2,
    logits_bias: bool = False,
    activation: str = "gelu",
    eps: float = 1e-12,
    dropout: float = 0.0,
) -> tn.Graph:
    """XLNet, for pre-training with two streams or fine-tuning with the content stream alone.

    Inputs: t[b, n] of tokens; with two streams z[b, p], the positions to predict; with masks see[b, n, m], nonzero
    where position n may see position m (content always sees itself; see[b, i, i] is 0 in an order, else the query
    at i sees the token that it predicts), and keep[b, n], nonzero at tokens that are not padding; with `segments`
    segment[b, n] of integers from 0; with `memory` memory0[b, past, D], memory1, … for every layer. Outputs:
    logits[b, p, V] of the query stream, or [b, n, V] of the content stream alone, or the result of another `head`;
    with `memory` also the inputs h[b, n, D] of every layer, to be appended to the memories for the next call.

    Args:
        vocabulary: V.
        dim: D.
        depth: M, the number of layers.
        heads: the number of heads, which divides D.
        hidden: the hidden width of the feed-forward networks.
        two_streams: whether there is a query stream, which adds the parameter w of width D.
        mask: "permutation" for the input see, "padding" for keep, both or neither. Without "permutation" and `causal`,
            queries see all tokens, the one that they predict too, as in `transformers`.
        causal: whether positions also see none after them, for any factorization order.
        segments: whether there are segments, which add 3·D parameters for each layer.
        memory: whether layers also attend to memories; those belong to segment 0.
        clamp_len: the largest distance that is distinguished: i − j is replaced by
            max(min(i − j, clamp_len), −clamp_len); no limit if not given. From Transformer-XL.
        bi_data: whether texts are read in both directions, as in pre-training. Distances are i − j in the first
            ⌊b/2⌋ texts of a batch, and j − i in the others, whose tokens come in reverse order.
        empty: the keys of a query that may see none, such as the first of an order without memory: "nothing",
            or "all" keys with equal weights, its own included, as in `transformers`.
        head: "tokens" for logits by the embedding (eq. 4), "classes" for a classifier of the last
            token, or None for the stream itself.
        classes: K.
        logits_bias: whether the logits of tokens have a bias; the paper has none.
        activation: the activation of the feed-forward networks.
        eps: ε of the norms.
        dropout: the share dropped in training, of attention weights, hidden values and the results of sublayers.

    Raises:
        ShapeError: the heads do not divide D, or a choice is unknown.

    Source: Yang et al. (2019), "XLNet", §2.3–2.5, eq. 4 and 5.

    Example:
        >>> tn.parameter_count(xlnet())
        116718336
    """
    chosen(head, HEADS, "head")
    chosen(empty, ("nothing", "all"), "empty")
    masks = masks_of(mask, MASKS)
    if head == "classes" and two_streams:
        raise ShapeError("head='classes' reads the content stream", fix="give two_streams=False")
    halved(dim, "dim")
    if clamp_len is not None:
        count(clamp_len, "clamp_len", 1)
    stream = _Streams(masks, causal, segments, memory, clamp_len, bi_data, empty, activation, eps, dropout)

    def forward(given: dict[str, tn.Tensor]) -> Any:
        t, z = given["t"], given.get("z")
        h = embedding("V", "D")(t, scope="embedding")  # h⁽⁰⁾ = e(x)
        places = tn.layer(PLACES, inputs="t[b,i]")(t)
        streams = {"content": h}
        settings = {"content": stream.setting(places, given, content=True)}
        if z is not None:
            streams["query"] = tn.layer(QUERY, inputs="z[b,p]", init={"w": 0.02}, c="D")(z)  # g⁽⁰⁾ = w
            settings["query"] = stream.setting(z, given, content=False)
        distances, inner, layer = stream.distances(t), [], functools.cache(stream.layer)
        for number in range(depth):
            inner.append(streams["content"])
            stored = [given[f"memory{number}"]] if memory else []
            made = tuple(streams) if number + 1 < depth else tuple(streams)[-1:]  # the last h is not read
            own = [each for name in made for each in (streams[name], *settings[name])]
            found = layer(*made)(inner[-1], *stored, distances, *own, scope=f"layers.{number}")
            streams |= zip(made, found if isinstance(found, tuple) else (found,), strict=True)
        y = tuple(streams.values())[-1]
        if head == "tokens":
            y = tn.layer("logits[b,n,v] = x[b,n,c] * E[v,c]", inputs="x", v="V", c="D")(y, scope="embedding")
            if logits_bias:
                y = tn.layer(SHIFTED, inputs="x")(y, scope="head")
        elif head == "classes":
            y = projection("D", "K")(
                tn.layer(SUMMARY, inputs="x", c="D", f="D")(y, scope="summary"), scope="head"
            )
        return (y, *inner) if memory else y

    inputs = {"t": "t[b,n]", **when(two_streams, z="z[b,p]")}
    inputs |= {MASKS[each][0].split("[")[0]: MASKS[each][0] for each in masks}
    inputs |= when(segments, segment="segment[b,n]")
    inputs |= {f"memory{n}": f"memory{n}[b,past,D]" for n in range(depth)} if memory else {}
    sizes = {
        "V": vocabulary,
        **encoder_sizes(dim, depth, heads, hidden),
        **when(head == "classes", K=classes),
    }
    return sized_model(forward, inputs, sizes)
