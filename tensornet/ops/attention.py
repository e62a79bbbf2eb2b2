"""Attention and other fused kernels: operations that compute several equations at once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from ..syntax import Call, Expression, Ref
from .record import (
    Element,
    Function,
    KernelEquation,
    Left,
    Lowering,
    Value,
    Writer,
    axes_in,
    common,
    extent,
    left_of,
    numeric,
    roles,
    sizes_of,
)
from .structure import REPEAT

Groups = tuple[tuple[str, ...], ...]

HIDDEN = -1e20
"""A score of at most this value has a weight of 0, whatever is added to it."""


HIDDEN_IN_HALF = -6e4
"""The same bound in 16-bit types."""


def _finite(numbers: Mapping[str, Any]) -> bool:
    """Whether adding a score to the hidden value, if there is one, leaves it as it is: -1e30 + s is -1e30."""
    value = numbers.get("hidden", HIDDEN)
    return isinstance(value, int | float) and HIDDEN * 1e15 <= value <= HIDDEN


def _hidden(numbers: Mapping[str, Any]) -> bool:
    """The same, where the kernel takes -inf as well."""
    return _finite(numbers) or numbers["hidden"] == -math.inf


def _equations() -> Iterator[KernelEquation]:
    """Attention with plain scores, with an additive mask, or with some scores hidden; with and without dropout."""
    score, hides = "scale * q[b,i,d] * k[b,j,d]", "where(max[j](see), hidden, 0)"
    blind = "where(max[j](see), q, 0 * hidden)"
    of_scores = (
        KernelEquation(score, ("q", "k", "v")),
        KernelEquation(f"{score} + mask[b,i,j]", ("q", "k", "v", "mask"), ("mask",)),
        KernelEquation(
            f"where(index(i) >= index(j), {score}, hidden)", ("q", "k", "v"), options=(("causal", 1),)
        ),
        # the same for groups of queries that share keys and values
        KernelEquation(
            "where(index(i) >= index(j), scale * q[b,h,i,d] * k[b,j,d], hidden)",
            ("q", "repeat[h](k)", "repeat[h](v)"),
            options=(("causal", 1),),
        ),
        # A query that sees no key weighs all keys equally, whatever it is, and gets no gradient. Its scores are 0: the
        # backward pass computes the weights from sums of scores, and -1e30 would swallow the term of the key count.
        # Where the hidden scores are -inf, its scores are 0 * -inf, which is NaN, as its weights are.
        KernelEquation(
            f"where(see[b,i,j], {score}, hidden)", (blind, "k", "v", f"where(see, 0, {hides})"), ("see",)
        ),
        KernelEquation(
            f"where(see[b,i,j], {score} + mask[b,i,j], hidden)",
            (blind, "k", "v", f"where(see, mask, {hides})"),
            ("see", "mask"),
        ),
    )
    for weights, scores in itertools.product(("{}", "dropout({}, rate)"), of_scores):
        weighted = weights.format(f"softmax[j]({scores.text})")
        queries = "h,i" if "q[b,h,i,d]" in scores.text else "i"
        yield replace(scores, text=f"y[b,{queries},f] = {weighted} * v[b,j,f]", holds=_hidden)


def _signed_equations() -> Iterator[KernelEquation]:
    """Signed attention: with or without a bias of the scores, and with all scores visible or only some."""
    for score, bias in (
        ("sum[d](scale * q[b,i,d] * k[b,j,d])", ()),
        ("(sum[d](scale * q[b,i,d] * k[b,j,d]) + bias[b,i,j])", ("bias",)),
    ):
        operands, options = ("q", "k", "v", *bias), (("biased", 1.0),) if bias else ()
        causal = f"where(index(i) >= index(j), abs({score}), hidden)"
        for text, see, more in (
            (f"abs({score})", (), ()),
            (causal, (), (("causal", 1.0),)),
            (f"where(see[b,i,j], abs({score}), hidden)", ("see",), ()),
        ):
            yield KernelEquation(
                f"y[b,i,f] = softmax[j]({text}) * sign({score}) * v[b,j,f]",
                (*operands, *see),
                (*bias, *see),
                (*options, *more),
                holds=_finite if see else _hidden,
            )


# ---------------------------------------------------------------------------- as steps and as source


class _Axes(NamedTuple):
    """The axes of attention: `shared` by all operands, those of the `queries`, `inner` axes that scores sum over,
    `grouped` axes of queries that share keys and values, those of the `keys`, and the `channels` of a value."""

    shared: tuple[str, ...]
    queries: tuple[str, ...]
    inner: tuple[str, ...]
    grouped: tuple[str, ...]
    keys: tuple[str, ...]
    channels: tuple[str, ...]

    @staticmethod
    def of(layouts: Sequence[Sequence[str]], grouped: Sequence[str] = ()) -> _Axes:
        """Classifies each axis by the operands that have it."""
        return _Axes(*roles("sidg sjd sjf g", (*layouts, grouped)).values())

    def operands(self, heads: int) -> tuple[Groups, Groups, Groups]:
        """The four dimensions of each operand. The last `heads` shared axes are the heads; queries add grouped axes."""
        batch, head = self.split(heads)
        return (
            (batch, (*head, *self.grouped), self.queries, self.inner),
            (batch, head, self.keys, self.inner),
            (batch, head, self.keys, self.channels),
        )

    def split(self, heads: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The shared axes as batch axes and the last `heads` of them."""
        at = len(self.shared) - heads
        return self.shared[:at], self.shared[at:]

    def result(self, heads: int) -> Groups:
        """The four dimensions of the result."""
        batch, head = self.split(heads)
        return batch, self.queries, (*head, *self.grouped), self.channels


def _lowered(lowering: Lowering, call: Call, numbers: int, seconds: Callable[..., float]) -> Value:
    """Lowers attention to a step of four-dimensional operands: batch, heads, positions and channels.

    Masks follow the dimensions of the scores.

    Args:
        numbers: the number of leading operands that are numeric; the others are truth values.
        seconds: the time of the step, from the call and the positions along shared and grouped axes, queries, keys,
            inner axes and channels.
    """
    grouped, arguments = _unrepeated(call)
    three = [lowering.lower(each) for each in arguments[:3]]
    axes = _Axes.of([each.layout for each in three], grouped)
    of_scores = (*axes.shared, *axes.queries, *axes.keys)
    values = [*three, *(lowering.lower(each, of_scores) for each in arguments[3:])]
    truths = [lowering.convert(each, Element.TRUTH) for each in values[numbers:]]
    values = [*numeric(lowering, values[:numbers]), *truths]
    heads = _heads(lowering, axes, values)
    batch, head = axes.split(heads)
    scores = (batch, head, axes.queries, axes.keys)
    groups = [*axes.operands(heads), *[scores] * len(values[3:])]
    values = [lowering.grouped(*each) for each in zip(values, groups, strict=True)]
    right = replace(call, arguments=tuple(each.ref for each in values))
    sizes = sizes_of(values[:3])
    flops = 2 * extent(sizes, (*axes.shared, *axes.grouped, *axes.queries, *axes.keys))
    flops *= extent(sizes, axes.inner) + extent(sizes, axes.channels)
    shared, keys = axes.shared + axes.grouped, axes.keys
    counts = map(lowering.count, (shared, axes.queries, keys, axes.inner, axes.channels))
    time = seconds(lowering, call, *counts)
    return lowering.emit(
        left_of(axes.result(heads)), right, values, values[0].element, seconds=time, flops=flops
    )


def _heads(lowering: Lowering, axes: _Axes, values: Sequence[Value]) -> int:
    """The number of shared axes that are heads: with the fewest copies of operands, and one if there is a choice."""

    def copies(heads: int) -> tuple[int, int]:
        pairs = zip(values, axes.operands(heads), strict=False)
        copied = sum(not lowering.offers(each, groups) for each, groups in pairs)
        spread = sum(
            0 < len(common(group, each.layout)) < len(group)
            for each in values[3:]
            for group in (*axes.split(heads), axes.queries, axes.keys)
        )
        return copied + spread, abs(heads - 1)

    return min(range(len(axes.shared) + 1 if axes.queries else 1), key=copies)


def _unrepeated(call: Call) -> tuple[tuple[str, ...], tuple[Expression, ...]]:
    """The query axes along which keys and values are repeated, and the operands without the repetition."""
    q, k, v, *mask = call.arguments
    match k, v:
        case Call(REPEAT.name, keys, axes), Call(REPEAT.name, values, others) if axes == others:
            return axes, (q, *keys, *values, *mask)
    return (), call.arguments


def _lower(lowering: Lowering, call: Call) -> Value:
    """Lowers attention by the library's kernel."""
    if lowering.itemsize == 2:  # -1e30 would be infinite, and a query that sees no key would have no weights
        hidden = (lowering.raised(each, HIDDEN_IN_HALF) for each in call.arguments[3:])
        call = replace(call, arguments=(*call.arguments[:3], *hidden))
    return _lowered(lowering, call, len(call.arguments), _seconds)


def _seconds(
    lowering: Lowering, call: Call, shared: int, queries: int, keys: int, inner: int, channels: int
) -> float:
    """The time of two products and of the passes through the scores between, or of a kernel without these passes."""
    profile, size = lowering.profile, lowering.itemsize
    seen = _seen(queries, keys, profile.tile) if "causal" in dict(call.options) else keys
    if profile.scored:
        masked = len(call.arguments) > 3
        return float(profile.attention(shared, queries, seen, inner, channels, size, masked))
    seconds = sum(profile.matmul(shared, queries, depth, seen, size) for depth in (inner, channels))
    seconds += profile.pointwise(2.0 * size * shared * queries * seen * (1 if inner == channels else 4), 0.0)
    tiles = shared * -(-queries // TILE) * -(-seen // profile.tile)
    return float(seconds + tiles * profile.pointwise(0.0, 0.0))


TILE = 32
"""Queries per tile of the scores; each tile adds the time of a call."""

SCORES = 5 * 2**15
"""The number of scores that signed attention processes at a time."""

CALLS, MORE_CALLS = 60, 20
"""Calls at the beginning, and for each block of that many scores: operations on it and views of operands."""

PASSES = 8.0
"""Passes through the scores to compute weights, the mean of forward and backward; a mask adds 2."""

PASSES_ON_A_GPU = 4.0
"""The same where they are computed whole, forward: sign, |s|, softmax and the product. H200, PyTorch 2.11."""

NEAR, WHOLE = 0.4, 0.5
"""Time of the passes in tiles relative to passes through whole tensors, if the cache does not hold these, or does."""

AGAIN = 7 / 6
"""Forward and backward have six products of the size of the scores; computing one of them again makes seven."""


def _lower_signed(lowering: Lowering, call: Call) -> Value:
    """Lowers signed attention by the library's kernel."""
    return _lowered(lowering, call, 4 if "biased" in dict(call.options) else 3, _signed_seconds)


def _signed_seconds(
    lowering: Lowering, call: Call, shared: int, queries: int, keys: int, inner: int, channels: int
) -> float:
    """The time of as many passes through the scores as plain steps take.

    The passes stay in the cache; the result has another one.
    """
    profile, size, causal = lowering.profile, lowering.itemsize, "causal" in dict(call.options)
    seen = _seen(queries, keys, max(1, SCORES // keys)) if causal else keys
    scores = shared * queries * seen
    seconds = AGAIN * sum(profile.matmul(shared, queries, depth, seen, size) for depth in (inner, channels))
    beside = 2 * (len(call.arguments) - 3 + causal)
    if profile.scored:
        products = sum(profile.matmul(shared, queries, depth, keys, size) for depth in (inner, channels))
        passes = PASSES_ON_A_GPU + beside
        return float(products + passes * profile.pointwise(2.0 * size * shared * queries * keys, 0.0))
    passes = PASSES + beside
    rate = NEAR if size * shared * queries * keys > profile.cached else WHOLE
    seconds += rate * passes * profile.pointwise(2.0 * size * scores, 0.0)
    seconds += profile.pointwise(2.0 * size * shared * queries * channels, 0.0)
    return float(seconds + (CALLS + MORE_CALLS * -(-scores // SCORES)) * profile.pointwise(0.0, 0.0))


def _seen(queries: int, keys: int, tile: float) -> float:
    """The mean number of keys computed for a query that sees none after itself: libraries skip whole tiles.

    For very many keys that is half of them. On a CPU, in tiles of 512, torch takes 0.64 of the time without a mask at
    2,048 positions, and all of it at 512.
    """
    starts = range(0, keys, max(1, int(tile)))
    computed = sum(min(tile, keys - start) * max(0, queries - start) for start in starts)
    return computed / max(1, queries)


def _repeated(call: Call, left: Sequence[str]) -> Iterator[Sequence[str]]:
    """The axes of masks that have some batch axes but not all: libraries take them expanded to the whole batch."""
    _, k, *_ = layouts = [axes_in(cast("Ref", each).index) for each in call.arguments]
    batch = tuple(itertools.takewhile(lambda axis: axis in k, left))
    for mask in layouts[3:]:
        if 0 < sum(axis in mask for axis in batch) < len(batch):
            yield (*batch, *(axis for axis in mask if axis not in batch))


def _spell(writer: Writer, call: Call, left: Left) -> str:
    """The call with operands as batch, heads, positions, channels, as most libraries require; permutes its result.

    The bias and the visibility mask of signed attention are positional arguments after q, k and v. In causal attention
    one axis holds the positions of the queries, so all their other own axes are grouped.
    """
    settings = writer.options(call)
    q, k, v, *mask = cast("tuple[Ref, ...]", call.arguments)
    layouts, flat = [each.layout for each in (q, k, v)], axes_in(left)
    axes = _Axes.of(layouts)
    if float(settings["causal"]):
        axes = _Axes.of(layouts, common(flat, axes.queries)[1:])
    axes = axes._replace(shared=common(flat, axes.shared))
    heads = len(axes.shared) - next(
        (n for n, axis in enumerate(flat) if axis in axes.queries), len(axes.shared)
    )
    three = [_operand(writer, *each) for each in zip((q, k, v), axes.operands(heads), strict=True)]
    batch, head = axes.split(heads)
    masks = [writer.broadcast(each, (batch, head, axes.queries, axes.keys)) for each in mask]
    scale, chosen = f"scale={settings['scale']}", [name for name in settings if settings[name] not in UNSET]
    if "biased" in settings:
        more = [*masks, scale, *(f"{name}=True" for name in ("biased", "causal") if name in chosen)]
    else:
        flags = {
            f"dropout_p={settings['rate']} if training else 0.0": "rate" in chosen,
            "is_causal=True": "causal" in chosen,
            "enable_gqa=True": axes.grouped,
        }
        more = [*(f"attn_mask={each}" for each in masks), *(text for text in flags if flags[text]), scale]
    text = writer.op(call.function, *three, more=", ".join(more))
    text = writer.op("permute", text, axes="(0, 2, 1, 3)")
    return text if all(axes.result(heads)) else writer.reshaped(text, left)


UNSET = ("0", "0.0")
"""Texts of a rate or a flag that is not given."""


def _operand(writer: Writer, ref: Ref, groups: Groups) -> str:
    """An operand in four dimensions. If their order differs, the last operation swaps heads and positions.

    Attention is mostly written that way. PyTorch 2.13's compiler replaces its products by a kernel that relies on it;
    other orders go wrong there.
    """
    batch, head, positions, channels = groups
    number = {axis: n for n, group in enumerate(groups) for axis in group}
    lying = [n for n, _ in itertools.groupby(ref.layout, number.__getitem__)]
    if sorted(lying) != [0, 1, 2, 3] or lying in ([0, 1, 2, 3], [0, 2, 1, 3]):
        return writer.view(ref, groups, ones=True)
    return writer.op("permute", writer.view(ref, (batch, positions, head, channels)), axes="(0, 2, 1, 3)")


# ---------------------------------------------------------------------------- pairwise distances

PER_PAIR, BYTES = 6, 16
"""A pair of rows takes as long as this many of their elements, and an element as long as a pass over this many bytes
in the caches, in either working type: 0.4 to 0.6 ns."""


def _pairs(call: Call, layouts: Sequence[Sequence[str]]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """The three dimensions of both operands: shared axes, rows, and the axes that are summed."""
    for one, other in itertools.permutations(layouts):
        yield common(layouts[0], layouts[1], but=[call.axes]), common(one, but=[other]), call.axes


def _are_pairs(groups: Mapping[str, Sequence[str]], first: Sequence[str]) -> bool:
    """Whether both have rows. Differences of single rows are needed once: plain sums are as fast, and more exact."""
    return bool(groups["i"] and groups["j"])


def _lower_distance(lowering: Lowering, call: Call) -> Value:
    """Lowers distances to a step whose differences stay in registers."""
    values = numeric(lowering, [lowering.lower(each) for each in call.arguments])
    dims = [*_pairs(call, [each.layout for each in values])]
    values = [lowering.grouped(*each) for each in zip(values, dims, strict=True)]
    (shared, rows, inner), (_, others, _) = dims
    profile, pairs = lowering.profile, lowering.count(shared, rows, others)
    written = lowering.itemsize * pairs
    work = BYTES * pairs * (lowering.count(inner) + PER_PAIR) / profile.pass_bandwidth
    right = replace(call, arguments=tuple(each.ref for each in values))
    seconds = profile.pointwise(written, written) + work
    left = left_of((shared, rows, others))
    return lowering.emit(left, right, values, values[0].element, seconds=seconds)


def _spell_distance(writer: Writer, call: Call, left: Left) -> str:
    """The call with operands as matrices."""
    refs = cast("tuple[Ref, ...]", call.arguments)
    dims = _pairs(call, [each.layout for each in refs])
    given = (writer.view(*each, ones=True) for each in zip(refs, dims, strict=True))
    text = writer.op(call.function, *given, root=str("root" in dict(call.options)))
    return writer.reshaped(text, left)


ROWS = (
    Function(
        "scaled_dot_product_attention",
        "softmax[j](scale · q·k + mask) · v",
        "removed",
        arity=(3, 4),
        options=(("scale", 1.0), ("rate", 0.0), ("causal", 0)),
        yields="real",
        complex="refused",
        computes=tuple(_equations()),
        works_in=_repeated,
        lowered=_lower,
        spelled=_spell,
    ),
    Function(
        "signed_attention",
        "sign(s) · softmax[j](abs(s)) · v, s = scale · q·k + bias",
        "removed",
        arity=(3, 5),
        options=(("scale", 1.0), ("biased", 0.0), ("causal", 0.0)),
        yields="real",
        complex="refused",
        computes=tuple(_signed_equations()),
        tile=5 * SCORES // 2,
        lowered=_lower_signed,
        spelled=_spell,
    ),
    Function(
        "pairwise_distance",
        "Σ (p − q)², or its root",
        "removed",
        arity=(2, 2),
        options=(("root", 0.0),),
        yields="real",
        complex="refused",
        computes=(
            KernelEquation("y[b,i,j] = sum[c]((p[b,i,c] - q[b,j,c]) ** 2)", axes=("c",), fits=_are_pairs),
            KernelEquation(
                "y[b,i,j] = norm[c](p[b,i,c] - q[b,j,c])", (), (), (("root", 1.0),), ("c",), fits=_are_pairs
            ),
        ),
        lowered=_lower_distance,
        spelled=_spell_distance,
    ),
)
