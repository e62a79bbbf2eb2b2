"""The Transformer: an encoder, a decoder, both, or one decoding step.

    Attention(Q, K, V) = softmax(Q·Kᵀ/√d_k)·V                        (thesis 2.3.3; `attention.py`)
    y = LayerNorm(x + SubLayer(x))                                   (section 2.4.1), or before SubLayer, `pre`
    PE(pos, 2i) = sin(pos/10000^{2i/d}), PE(pos, 2i+1) = cos(…)      (2.3.1–2.3.2)
    the decoder is causal: M[i,j] = −∞ for j > i                     (2.7)

Vaswani et al. (2017), "Attention is all you need".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensornet.api as tn
from tensornet.errors import ShapeError

from .attention import attention
from .blocks import (
    LOGITS,
    SHIFTED,
    dropped,
    embedding,
    encoder_layer,
    feed_forward,
    looking,
    norm,
    projection,
    sublayer,
    taken,
)
from .causal import masks
from .checked import Size, checked, chosen, count, divided, real, sized_model, when, with_presets
from .positions import learned_positions, sinusoidal_positions

PRESETS: dict[str, dict[str, Any]] = {
    "transformer_base": {"vocabulary": 37000, "dim": 512, "depth": 6, "heads": 8, "hidden": 2048},
    "transformer_big": {"vocabulary": 37000, "dim": 1024, "depth": 6, "heads": 16, "hidden": 4096},
}
"""Vaswani et al. (2017), table 3."""


PARTS = ("both", "encoder", "decoder", "step")
POSITIONS = ("sinusoidal", "sines_first", "learned", None)


@dataclass(frozen=True)
class Stack:
    """The settings that encoder and decoder share, with methods that apply their layers to symbolic tensors."""

    pre: bool
    last_norms: bool
    positions: str | None
    scale: bool
    activation: str
    bias: bool
    out_bias: bool
    eps: float
    dropout: float
    mlp_bias: bool = True
    norm_bias: bool = True
    embedding_norm: bool = False

    def attention(self, **changes: Any) -> tn.Graph:
        return attention("D", "h", bias=self.bias, out_bias=self.out_bias, dropout=self.dropout, **changes)

    def encoder_layer(self, attend: tn.Graph) -> tn.Graph:
        """An encoder layer with the given attention."""
        mlp = feed_forward("D", "F", activation=self.activation, dropout=self.dropout, bias=self.mlp_bias)
        return encoder_layer(attend, mlp, self.norm, pre=self.pre, dropout=self.dropout)

    def decoder_layer(self, back: tn.Graph, across: tn.Graph) -> tn.Graph:
        """A decoder layer: self-attention `back`, then cross-attention `across` to the memory.

        The inputs are those of `back`, then memory[b, m, D] and the mask of `across`. If `back` continues from
        stored keys and values, all of them follow the output.
        """
        own, layer = len(back.inputs), self.encoder_layer(across)

        def forward(*tensors: tn.Tensor) -> Any:
            grown: list[tn.Tensor] = []
            look_back = looking(back, tensors[1:own], grown)
            y = sublayer(tensors[0], look_back, self.norm, pre=self.pre, scope="norm0", dropout=self.dropout)
            return (layer(y, *tensors[own:], scope="across"), *grown)

        memory = ["memory[b,m,c:D]", "memory_keep[b,m]"][: len(across.inputs) - 1]
        return tn.model(forward, inputs=[*taken(back), *memory])

    @property
    def norm(self) -> tn.Graph:
        return norm("D", self.eps, bias=self.norm_bias)

    def last(self, x: tn.Tensor, scope: str) -> Any:
        return self.norm(x, scope=scope) if self.last_norms else x

    def embed(self, tokens: tn.Tensor, vocabulary: str, scope: str, side: str, past: bool = False) -> Any:
        x = embedding(vocabulary, "D", scale=self.scale)(tokens, scope=scope)
        if self.positions == "learned":
            x = learned_positions("L", "D", past=past)(x, scope=f"{side}_positions")
        elif self.positions is not None:
            placed = sinusoidal_positions("D", interleaved=self.positions == "sinusoidal", past=past)
            x = placed(x, scope=f"{side}_positions")
        x = self.norm(x, scope=f"{scope}.norm") if self.embedding_norm else x
        return dropped(x, self.dropout)

    def encode(self, x: tn.Tensor, keep: list[tn.Tensor], depth: int, causal: bool = False) -> Any:
        layer = self.encoder_layer(self.attention(mask=masks(keep, causal)))
        for number in range(depth):
            x = layer(x, *keep, scope=f"encoder.{number}")
        return self.last(x, "encoder.norm")

    def decode(
        self,
        y: tn.Tensor,
        memory: tn.Tensor,
        keep: list[tn.Tensor],
        own_keep: list[tn.Tensor],
        stored: list[tuple[tn.Tensor, tn.Tensor]],
        depth: int,
        causal: bool = True,
    ) -> Any:
        """The output of the decoder; with stored keys and values also all of them so far."""
        back = self.attention(mask=masks(own_keep, causal), past=bool(stored))
        across = self.attention(keys="D", mask=masks(keep, causal=False))
        layer, grown = self.decoder_layer(back, across), list[tn.Tensor]()
        for number in range(depth):
            past = stored[number] if stored else ()
            found = layer(y, *own_keep, *past, memory, *keep, scope=f"decoder.{number}")
            y, *more = found if stored else (found,)
            grown += more
        return self.last(y, "decoder.norm"), *grown


@with_presets(PRESETS)
def transformer(
    vocabulary: Size | None = None,
    dim: Size = 512,
    depth: int = 6,
    heads: Size = 8,
    hidden: Size = 2048,
    *,
    target_vocabulary: Size | None = None,
    decoder_depth: int | None = None,
    part: str = "both",
    pre: bool = False,
    last_norms: bool | None = None,
    positions: str | None = "sinusoidal",
    length: Size = 512,
    padding: bool = False,
    causal: bool | None = None,
    logits: bool = True,
    tied: bool = True,
    logits_bias: bool = False,
    scale: bool = True,
    activation: str = "relu",
    bias: bool = True,
    out_bias: bool | None = None,
    mlp_bias: bool = True,
    norm_bias: bool = True,
    eps: float = 1e-5,
    dropout: float = 0.0,
) -> tn.Graph:
    """A Transformer over tokens, or over vectors if there is no vocabulary.

    | part | inputs | outputs |
    |---|---|---|
    | both | source[b, m], target[b, n] | logits[b, n, V] |
    | encoder | source[b, m] | memory[b, m, D] |
    | decoder | target[b, n], memory[b, m, D] | logits[b, n, V] |
    | step | target[b, n], memory[b, m, D], stored keys and values | logits, all keys and values |

    Without a vocabulary, source and target are vectors [b, n, D], no positions are added, and the output is
    vectors. With `padding`, source_keep[b, m] follows source, target and memory; in "both" and "decoder"
    target_keep[b, n] comes next. Both are nonzero at tokens that are not padding. The stored keys and values
    keys0, values0, keys1, … have the shape [b, h, past, D/h] and are empty at first.

    Args:
        vocabulary: V of the source, and of the target if `target_vocabulary` is not given.
        dim: D.
        depth: the number of encoder layers, and of decoder layers if `decoder_depth` is not given.
        heads: h, which divides D.
        hidden: the hidden width of the feed-forward networks.
        target_vocabulary: V of the target, which then has its own embedding.
        decoder_depth: the number of decoder layers.
        part: "both", "encoder", "decoder" or "step"; they share the names of parameters.
        pre: whether norms come before the sublayers instead of after the sums.
        last_norms: whether encoder and decoder end with a norm; the value of `pre` if not given.
        positions: "sinusoidal"; "sines_first", all sines before all cosines; "learned"; or None.
        length: the number of learned positions.
        padding: whether `source_keep` and `target_keep` are inputs.
        causal: whether self-attention is causal, in the decoder or in an "encoder" alone; if not given,
            only in the decoder.
        logits: whether the output is logits, if there is a vocabulary, instead of vectors.
        tied: whether the output matrix is the target's embedding.
        logits_bias: whether logits have a bias.
        scale: whether embeddings are multiplied by √D.
        activation: the activation of the feed-forward networks.
        bias: whether queries, keys and values have biases.
        out_bias: whether the output projection of the attention has a bias; as `bias` if not given.
        mlp_bias: whether the feed-forward networks have biases.
        norm_bias: whether the norms have biases.
        eps: ε of the norms.
        dropout: the share dropped in training, of embeddings, attention weights, sublayer outputs and hidden values.

    Raises:
        ShapeError: the heads do not divide D, or a choice is unknown.

    Source: Vaswani et al. (2017); thesis chapter 2.3–2.7.

    Example:
        >>> tn.parameter_count(transformer(1000, 64, 2, 4, 128, bias=False))
        229888
    """
    chosen(part, PARTS, "part")
    chosen(positions, POSITIONS, "positions")
    divided(dim, heads, "dim", "heads")
    count(depth, "depth")
    count(depth if decoder_depth is None else decoder_depth, "decoder_depth")
    dropout = real(dropout, "dropout", 0, 1)
    words, own = vocabulary is not None, target_vocabulary is not None
    if own and not words:
        raise ShapeError("target_vocabulary= is given without vocabulary=", fix="give both, or neither")
    causal = part != "encoder" if causal is None else causal
    if part == "step" and not causal:
        raise ShapeError("causal=False with part='step', which sees no later token", fix="leave out causal=")
    logits = logits and words
    if logits_bias and not logits:
        raise ShapeError("logits_bias=True, and there are no logits", fix="give vocabulary= and logits=True")
    last_norms, out_bias = pre if last_norms is None else last_norms, bias if out_bias is None else out_bias
    stack = Stack(
        *(pre, last_norms, positions, scale, activation, bias, out_bias, eps, dropout),
        mlp_bias=mlp_bias,
        norm_bias=norm_bias,
    )
    layers, step = depth if decoder_depth is None else decoder_depth, part == "step"
    source = ("V", "source" if own else "shared")
    target = ("W", "target") if own else ("V", "shared")

    def forward(given: dict[str, tn.Tensor]) -> Any:
        keep = [given["source_keep"]] if padding else []
        memory = given.get("memory")
        if memory is None:
            x = stack.embed(given["source"], *source, "source") if words else given["source"]
            memory = stack.encode(x, keep, depth, causal and part == "encoder")
        if part == "encoder":
            return memory
        y = stack.embed(given["target"], *target, "target", past=step) if words else given["target"]
        own_keep = [given["target_keep"]] if "target_keep" in given else []
        stored = [(given[f"keys{n}"], given[f"values{n}"]) for n in range(layers)] if step else []
        y, *grown = stack.decode(y, memory, keep, own_keep, stored, layers, causal)
        if logits:
            y = tn.layer(LOGITS, inputs="h", v=target[0], c="D")(y, scope=target[1] if tied else "head")
        if logits_bias:
            y = tn.layer(SHIFTED, inputs="x")(y, scope="head")
        return (y, *grown) if step else y

    inputs = _inputs(part, words, padding, layers)
    used = (depth if part in ("both", "encoder") else 0) + (layers if part != "encoder" else 0)
    sizes: dict[str, Any] = {"D": dim, **when(used, h=heads, F=hidden)}
    if words:
        sizes |= when(not own or part in ("both", "encoder"), V=vocabulary)
        sizes |= when(own and part != "encoder", W=target_vocabulary) | when(positions == "learned", L=length)
    return sized_model(forward, inputs, sizes)


def _inputs(part: str, words: bool, padding: bool, layers: int) -> dict[str, str]:
    """The declarations of the inputs by name, in the order of the call."""
    width = "" if words else ",D"
    shapes = {"source": f"[b,m{width}]", "target": f"[b,n{width}]", "memory": "[b,m,D]"}
    shapes |= {"source_keep": "[b,m]", "target_keep": "[b,n]"}
    names = {
        "both": ["source", "target"],
        "encoder": ["source"],
        "decoder": ["target", "memory"],
        "step": ["target", "memory"],
    }[part]
    if padding:
        names = [*names, "source_keep", *(["target_keep"] if part in ("both", "decoder") else [])]
    found = {name: name + shapes[name] for name in names}
    if part == "step":
        stored = [f"{what}{number}" for number in range(layers) for what in ("keys", "values")]
        found |= {name: f"{name}[b,h,past,d:D/h]" for name in stored}
    return found


# ---------------------------------------------------------------------------- a classifier of texts
# Attention lecture, `TransformerClassifier`.


POOLS = {
    "max": ("y[b,k] = max[n]({x})", "where(keep[b,n] != 0, x[b,n,k], -1e30)"),
    "mean": ("y[b,k] = mean[n](x[b,n,k])", ""),
    "first": ("y[b,k] = x[b,0,k]", ""),
}
MASKED_MEAN = """
    there[b,n] = where(keep[b,n] != 0, 1, 0)
    y[b,k] = x[b,n,k] * there[b,n] / maximum(sum[n](there[b,n]), 1)
"""


@checked
def transformer_classifier(
    vocabulary: Size = 30000,
    classes: Size = 2,
    dim: Size = 128,
    depth: int = 2,
    heads: Size = 4,
    hidden: Size = 256,
    *,
    pool: str = "max",
    padding: bool = True,
    pre: bool = False,
    positions: str | None = "sinusoidal",
    length: Size = 512,
    scale: bool = True,
    embedding_norm: bool = False,
    activation: str = "relu",
    bias: bool = False,
    out_bias: bool = True,
    eps: float = 1e-6,
    dropout: float = 0.0,
) -> tn.Graph:
    """A Transformer encoder that classifies texts.

    Inputs: t[b, n] of tokens; with `padding` keep[b, n], nonzero at tokens that are not padding.
    Output: logits[b, K].

    Args:
        vocabulary: the number of tokens.
        classes: K.
        dim, depth, heads, hidden, pre, positions, length, scale: as in `transformer`.
        activation, bias, out_bias, eps, dropout: as in `transformer`.
        embedding_norm: whether a norm follows the embedding and its positions.
        pool: which logits of the positions are the result: their "max", their "mean", or the "first". A text that is
            all padding has a "max" of −1e30.
        padding: whether `keep` is an input.

    Raises:
        ShapeError: the heads do not divide the width, or a choice is unknown.

    Source: attention lecture, `TransformerClassifier`.

    Example:
        >>> lecture = transformer_classifier(50002, 2, 32, 1, 2, 128, dropout=0.1)  # its configuration
        >>> tn.parameter_count(lecture) - 50002 * 32
        12674
    """
    chosen(pool, tuple(POOLS), "pool")
    chosen(positions, POSITIONS, "positions")
    divided(dim, heads, "dim", "heads")
    count(depth, "depth")
    stack = Stack(
        *(pre, pre, positions, scale, activation, bias, out_bias, eps, dropout),
        embedding_norm=embedding_norm,
    )
    line, masked = POOLS[pool]
    if pool == "mean" and padding:
        line = MASKED_MEAN
    line = line.format(x=masked if padding else "x[b,n,k]")
    used = padding and pool != "first"

    def forward(t: tn.Tensor, *keep: tn.Tensor) -> Any:
        x = stack.embed(t, "V", "embedding", "source")
        x = stack.encode(x, list(keep), depth)
        x = projection("D", "K")(x, scope="head")
        pooled = tn.layer(line, inputs=["x[b,n,k]", *(["keep[b,n]"] if used else [])])
        return pooled(x, *(keep if used else ()))

    sizes = {"V": vocabulary, "K": classes, "D": dim}
    sizes |= when(depth, h=heads, F=hidden) | when(positions == "learned", L=length)
    inputs = ["t[b,n]", *(["keep[b,n]"] if padding else [])]
    return sized_model(forward, inputs, sizes)
