"""The Perceiver: N learned latents read M inputs by cross-attention, then attend to one another.

    queries from the latents (N × D), keys and values from the inputs (M × C): O(M·N·D), not quadratic in M
    L layers of self-attention among the latents: O(L·N²·D), independent of M

Jaegle et al. (2021), "Perceiver"; with output queries, Jaegle et al. (2022), "Perceiver IO".
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensornet.api as tn
from tensornet.graph.shape_inference import dim_size
from tensornet.sizes import evaluate, symbol

from .attention import attention, attention_in_two
from .blocks import embedding, encoder_layer, feed_forward, norm, projection, taken
from .checked import Size, chosen, count, divided, pair, positive, sized_model, when, with_presets
from .convolution import convolutional_stem
from .positions import fourier_features, learned_positions

_TOWER = {"latents": 512, "dim": 1024, "depth": 6, "repeats": 8, "heads": 8, "cross_heads": 1}

PRESETS: dict[str, dict[str, Any]] = {
    "perceiver_imagenet": {**_TOWER, "cross_attends": 8, "share_cross": "rest"},
    "perceiver_imagenet_shared": {**_TOWER, "cross_attends": 8, "share_cross": "all"},
    "perceiver_io_imagenet": {**_TOWER, "cross_attends": 1, "head": "query"},
    "perceiver_io_imagenet_conv": {
        **_TOWER,
        "cross_attends": 1,
        "head": "query",
        "stem": 64,
        "resolution": (56, 56),
    },
    "perceiver_io_imagenet_learned": {**_TOWER, "cross_attends": 1, "head": "query", "positions": "learned"},
}
"""The ImageNet models of both papers: 224 × 224 pixels, 64 Fourier bands or learned positions."""

LATENTS = """
    latents[n,d]: parameter(std=0.02)
    z[b,n,d] = repeat[b](latents[n,d])
"""
"""The latents, repeated for every element b of the batch."""

QUERIES = """
    queries[o,e]: parameter(std=0.02)
    q[b,o,e] = repeat[b](queries[o,e])
"""

MEAN = "y[b,d] = mean[n](z[b,n,d])"
LOGITS = "y[b,o,v] = x[b,o,c] * E[v,c]"
BIASED = "y[b,o,v] = x[b,o,v] + bias[v]"
"""Logits of tokens, by the embedding matrix of the inputs, and their bias."""

BYTES = {
    "array": "y[b,m,c] = x[b,m,c]",
    "grid": "y[b,({modes}),c] = x[b,c,{modes}]",
    "learned": """
        P[m,e]: parameter(std=0.02)
        pixel[b,({modes}),f] = x[b,c,{modes}] * W[f,c] + bias[f]
        place[m,g] = P[m,e] * V[g,e] + shift[g]
        y[b,m,h] = concat[h](pixel[b,m,h], place[m,h])
    """,
}
"""The byte array y (M × C): the input itself, a flattened grid, or a grid concatenated with learned positions.

In the last, pixels and positions are both projected.
"""

POSITIONS = ("fourier", "learned", "given", None)
SHARING = ("all", "rest", "none")
HEADS = ("mean", "query", "given", None)


@with_presets(PRESETS)
def perceiver(
    shape: int | Sequence[int] | None = (224, 224),
    channels: Size = 3,
    latents: Size = 512,
    dim: Size = 1024,
    depth: int = 6,
    heads: Size = 8,
    classes: Size | None = 1000,
    *,
    repeats: int = 8,
    cross_attends: int = 8,
    cross_heads: Size = 1,
    share_cross: str = "rest",
    share_latent: str = "all",
    cross_width: str | Size = "inputs",
    vocabulary: Size | None = None,
    positions: str | None = "fourier",
    bands: int = 64,
    resolution: Sequence[float] | None = None,
    position_dim: int = 256,
    stem: Size | None = None,
    mask: bool = False,
    head: str | None = "mean",
    outputs: Size | None = None,
    query_dim: Size | None = None,
    query_residual: bool = True,
    tied: bool = False,
    decoder_heads: Size = 1,
    decoder_width: str | Size | None = None,
    decoder_values: Size | None = None,
    widening: int = 1,
    cross_widening: int = 1,
    decoder_widening: int = 1,
    activation: str = "gelu",
    eps: float = 1e-5,
) -> tn.Graph:
    """A Perceiver: a cross-attend to the inputs, L layers of self-attention among the latents, repeated.

    Inputs: x[b, C, I1, …, IN] with a shape, x[b, M, C] without one, or tokens x[b, M] with a vocabulary; then
    p[b, M, n] if positions are "given", keep[b, M] with `mask`, q[b, O, Q] if the head is "given". Output:
    logits[b, K], [b, O, K] with O outputs, [b, O, V] of tokens if `tied`; latents z[b, N, D] without a head.

    Args:
        shape: I1 … IN, or M alone; None for an unordered set of M inputs. For tokens it is the largest M.
        channels: C; for tokens it is the width of their embedding.
        latents: N.
        dim: D, the width of the latents.
        depth: L, the number of layers of the latent Transformer.
        heads: the number of heads in the latent Transformer.
        classes: K; without it the head's output is not projected.
        repeats: the number of runs of the latent Transformer.
        cross_attends: the number of runs, from the first, that begin with a cross-attend.
        cross_heads: the number of heads in the cross-attends.
        share_cross: "all" cross-attends share parameters, the "rest" after the first, or "none".
        share_latent: the same for the runs of the latent Transformer.
        cross_width: the width of queries, keys and values in the cross-attends: that of the "inputs",
            that of the "queries", or a number.
        vocabulary: V, for inputs that are tokens: x = E[t] + P[m], V·C parameters, and M·C if
            positions are "learned"; they may also be None.
        positions: "fourier"; "learned", with M·position_dim parameters; "given", Fourier features of
            positions that the caller passes; or None.
        bands, resolution: as in `fourier_features`.
        position_dim: the width of learned positions, and of the projections of pixels and positions.
        stem: T, the output channels of a `convolutional_stem` that an image goes through first; no stem if
            not given.
        mask: whether `keep` is an input, nonzero at inputs that are not padding.
        head: the "mean" of the latents; trained "query" vectors (Perceiver IO); "given" ones; or None.
        outputs: O, the number of trained queries; if not given there is one, without an axis.
        query_dim: Q, the width of queries; D if not given.
        query_residual: whether the decoder adds the queries to the result of their attention.
        tied: whether outputs are logits of tokens instead of classes, by the embedding of the inputs,
            y·Eᵀ + b: V parameters more, and Q = C.
        decoder_heads: the number of heads in the cross-attention of the decoder.
        decoder_width: the width of its queries and keys: "inputs" (the latents, D), "queries" (Q) or a number;
            the choice of `cross_width` if not given.
        decoder_values: the width of its values; that of its keys if not given.
        widening: hidden width over width in the MLPs of the latent Transformer.
        cross_widening: the same in the MLPs of the cross-attends.
        decoder_widening: w, the same in the MLP of the decoder, which has 2·w·Q² + w·Q + Q parameters.
        activation: the activation of the MLPs.
        eps: ε of the norms.

    Raises:
        ShapeError: a choice is unknown, or a number of heads does not divide a width.

    Source: Jaegle et al. (2021), §3.1–3.2; Jaegle et al. (2022), §3.

    Example:
        >>> tn.parameter_count(perceiver()), tn.parameter_count(perceiver(share_cross="all"))
        (44912254, 42135859)
    """
    chosen(share_cross, SHARING, "share_cross")
    chosen(share_latent, SHARING, "share_latent")
    divided(dim, heads, "dim", "heads")
    for number, what in ((depth, "depth"), (repeats, "repeats"), (cross_attends, "cross_attends")):
        count(number, what)
    _check_head(head, outputs)
    if tied:
        _check_tied(head, vocabulary, query_dim, channels)
    modes = _modes(shape, positions, stem, vocabulary)
    layers, wide = _reading(modes, positions, resolution, bands == 1, stem, vocabulary)
    width = _width(cross_width, {"inputs": wide, "queries": "D"}, "cross_width")
    _check_width(width, cross_heads, {"C": channels, "T": stem, "D": dim, "B": bands, "E": position_dim})
    across = cross_width if decoder_width is None else decoder_width
    decoding = {"qk": _width(across, {"inputs": "D", "queries": "Q"}, "decoder_width"), "v": decoder_values}

    def mlp(width: str, times: int) -> tn.Graph:
        return feed_forward(width, f"{times}*{width}", activation=activation)

    ln, seen = norm("D", eps), "padding" if mask else None
    latent = encoder_layer(attention("D", "h"), mlp("D", widening), ln)
    runs = Counter(_which(share_cross, run) for run in range(min(repeats, cross_attends)))
    crossing = _Crossing(wide, width, seen, mlp("D", cross_widening), ln, norm(wide, eps), runs)

    def forward(x: tn.Tensor, *rest: tn.Tensor) -> Any:
        given = dict(zip(more, rest, strict=True))
        for scope, layer in layers.items():
            x = layer(x, *([given["p"]] if scope == "inputs" and positions == "given" else []), scope=scope)
        cross_attend = crossing.to(x, *([given["keep"]] if mask else []))
        z = tn.layer(LATENTS, inputs="x[b,m,c]", n="N", d="D")(x)
        for run in range(repeats):
            if run < cross_attends:
                z = cross_attend(z, _which(share_cross, run))
            for number in range(depth):
                z = latent(z, scope=f"latent.{_which(share_latent, run)}.{number}")
        if head is None:
            return z
        if head == "mean":
            return _output(tn.layer(MEAN, inputs="z")(z), "D", classes, tied)
        attend = attention("Q", "S", keys="D", **decoding)
        asked = encoder_layer(attend, mlp("Q", decoder_widening), norm("Q", eps), added=query_residual)
        y = _decode(z, given.get("q"), outputs, _reader(asked, ln))
        return _output(y, "Q", classes, tied)

    indices = [f"I{number}" for number in range(1, len(modes) + 1)]
    more = when(positions == "given", p=f"p[b,M,n:{len(resolution or ())}]")
    more |= when(mask, keep="keep[b,M]") | when(head == "given", q="q[b,O,Q]")
    sizes = {
        **{"C": channels, "N": latents, "D": dim, **dict(zip(indices, modes, strict=True))},
        **when(stem is not None, T=stem),
        **when(positions == "learned" and vocabulary is None, E=position_dim),
        **when(positions in ("fourier", "given") and bands != 1, B=bands),
        **when(depth and repeats, h=heads),
        **when(cross_attends and repeats, G=cross_heads),
        **when(outputs is not None, O=outputs),
        **when(
            head in ("query", "given"),
            S=decoder_heads,
            Q=channels if tied else dim if query_dim is None else query_dim,
        ),
        **when(head and classes is not None and not tied, K=classes),
        **when(vocabulary is not None, V=vocabulary),
    }
    first = f"x[b,{','.join(['C', *indices])}]" if modes else "x[b,M,C]"
    first = first if vocabulary is None else "x[b,M]"
    return sized_model(forward, [first, *more.values()], sizes)


def _check_head(head: str | None, outputs: Size | None) -> None:
    """Raises an error if the head is unknown, or `outputs` is given without trained queries."""
    chosen(head, HEADS, "head")
    if outputs is not None and head != "query":
        raise tn.ShapeError(f"outputs={outputs} with head={head!r}", fix="give head='query', or no outputs")


def _check_tied(head: str | None, vocabulary: Size | None, query_dim: Size | None, channels: Size) -> None:
    """Raises an error if outputs cannot be multiplied by the embedding of the inputs."""
    if vocabulary is None or head not in ("query", "given") or query_dim not in (None, channels):
        raise tn.ShapeError(
            f"tied=True with vocabulary={vocabulary!r}, head={head!r}, query_dim={query_dim!r}",
            fix="give a vocabulary, queries, and no query_dim: they are as wide as the channels",
        )


def _modes(
    shape: int | Sequence[int] | None, positions: str | None, stem: Size | None, vocabulary: Size | None
) -> tuple[int, ...]:
    """The sizes I1 … IN; for tokens the number of learned positions, if they have any."""
    modes = (shape,) if isinstance(shape, int) else tuple(shape or ())
    if not all(positive(size) for size in modes):
        raise tn.ShapeError(
            f"shape={shape!r}", fix="give positive integers; M may be open where there is no shape"
        )
    if vocabulary is None:
        return modes
    chosen(positions, ("learned", None), "positions of tokens")
    if stem is not None or len(modes) > 1 or (positions and not modes):
        raise tn.ShapeError(
            f"shape={modes} and stem={stem!r} with a vocabulary",
            fix="give one number, the greatest number of tokens, and no stem",
        )
    return modes if positions else ()


def _reading(
    modes: tuple[int, ...],
    positions: str | None,
    resolution: Sequence[float] | None,
    single: bool,
    stem: Size | None,
    vocabulary: Size | None,
) -> tuple[dict[str, tn.Graph], Any]:
    """The layers that compute the byte array from the inputs of the model, by scope, and its width."""
    if vocabulary is not None:
        placed = {"inputs": learned_positions("I1", "C")} if positions else {}
        return {"embedding": embedding("V", "C"), **placed}, "C"
    layers = {}
    if stem is not None:
        layers["stem"] = cut = convolutional_stem(*pair(modes, "shape"), "C", "T")  # type: ignore[arg-type]
        modes = tuple(evaluate(dim_size(dim), cut.bound) for dim in cut.dims["y"][2:])
    array = _byte_array(modes, positions, resolution, "C" if stem is None else "T", single=single)
    return {**layers, "inputs": array}, evaluate(dim_size(array.dims[array.outputs[0]][2]), array.bound)


def _byte_array(
    modes: tuple[int, ...],
    positions: str | None,
    resolution: Sequence[float] | None,
    channels: str,
    *,
    single: bool,
) -> tn.Graph:
    """The layer that computes the byte array y[b, M, C′] from the inputs of the model."""
    chosen(positions, POSITIONS, "positions")
    if positions == "given" or (positions == "fourier" and modes):
        grid = None if positions == "given" else modes
        return fourier_features(grid, channels, bands=1 if single else "B", resolution=resolution)
    if positions is not None and not modes:
        raise tn.ShapeError(
            f"positions={positions!r} needs a shape", fix="give shape=, or positions='given' or None"
        )
    indices = {f"i{number}": size for number, size in enumerate(modes, 1)}
    text = BYTES["learned" if positions else "grid" if modes else "array"].format(modes=",".join(indices))
    x = f"x[b,c,{','.join(indices)}]" if modes else "x[b,m,c]"
    sizes: dict[str, Any] = {"c": channels, **indices}
    sizes |= {"e": "E", "f": "E", "g": "E"} if positions else {}
    return tn.layer(text, inputs=x, **sizes)


def _which(share: str, run: int) -> int:
    """The index of the set of parameters that a run uses."""
    return {"all": 0, "rest": min(run, 1), "none": run}[share]


@dataclass(frozen=True)
class _Crossing:
    """The cross-attention by which latents read the inputs.

    Attributes:
        wide: the width of the inputs.
        width: the width of queries, keys and values.
        mask: as in `attention`.
        mlp, normed, normed_inputs: the MLP, the norm of the latents and the norm of the inputs.
        runs: the number of cross-attends that use each set of parameters.
    """

    wide: Any
    width: Any
    mask: str | None
    mlp: tn.Graph
    normed: tn.Graph
    normed_inputs: tn.Graph
    runs: Counter[int]

    def to(self, x: tn.Tensor, *seen: tn.Tensor) -> Callable[[Any, int], Any]:
        """A function that cross-attends to inputs x, given the latents and the index of a set of parameters.

        Cross-attends that share parameters also share keys and values, which are computed once. A single one
        computes them itself, so that the planner may avoid computing a key for each input.
        """
        settings: dict[str, Any] = {"keys": self.wide, "qk": self.width, "mask": self.mask}
        alone = encoder_layer(attention("D", "G", **settings), self.mlp, self.normed)
        alone = _reader(alone, self.normed_inputs)
        keys, of_keys = attention_in_two("D", "G", **settings)
        shared = encoder_layer(of_keys, self.mlp, self.normed)

        @functools.cache
        def read(scope: str) -> Any:
            return keys(self.normed_inputs(x, scope=f"{scope}.norm_inputs"), scope=f"{scope}.attention")

        def cross_attend(z: tn.Tensor, which: int) -> Any:
            scope = f"cross.{which}"
            if self.runs[which] == 1:
                return alone(z, x, *seen, scope=scope)
            return shared(z, *read(scope), *seen, scope=scope)

        return cross_attend


def _width(width: Any, names: dict[str, Any], what: str) -> Any:
    """A width that is given as a number or as a key of `names`."""
    if not isinstance(width, str):
        return width
    chosen(width, tuple(names), what)
    return names[width]


def _check_width(width: Any, heads: Size, known: dict[str, Any]) -> None:
    """Raises an error if the heads do not divide the width of the cross-attention and both are known."""
    ints = {name: size for name, size in known.items() if isinstance(size, int)}
    width = evaluate(symbol(width) if isinstance(width, str) else width, ints)
    divided(width, heads, "width of the cross-attention", "cross_heads")


def _reader(layer: tn.Graph, normed: tn.Graph) -> tn.Graph:
    """A layer whose second input, the one that is read, is first normed by `norm_inputs`."""

    def forward(x: tn.Tensor, read: tn.Tensor, *others: tn.Tensor) -> Any:
        return layer(x, normed(read, scope="norm_inputs"), *others)

    return tn.model(forward, inputs=taken(layer))


def _decode(z: tn.Tensor, queries: tn.Tensor | None, outputs: Size | None, layer: tn.Graph) -> Any:
    """Decodes the latents by output queries (Perceiver IO, §3.2)."""
    trained = tn.layer(QUERIES, inputs="z[b,n,d]", o=1 if outputs is None else "O", e="Q")
    q = trained(z, scope="decoder") if queries is None else queries
    y = layer(q, z, scope="decoder")
    return tn.layer("y[b,e] = x[b,0,e]", inputs="x")(y) if queries is None and outputs is None else y


def _output(y: tn.Tensor, width: str, classes: Size | None, tied: bool) -> Any:
    """Logits of tokens if `tied`, of classes if there are any, otherwise `y` itself."""
    if tied:
        y = tn.layer(LOGITS, inputs="x", v="V", c="C")(y, scope="embedding")
        return tn.layer(BIASED, inputs="x")(y, scope="head")
    return y if classes is None else projection(width, "K", start=0.02)(y, scope="head")
