"""Recurrent layers: RNN, LSTM and GRU, of any depth, in one or both directions, with dense or factorized weights.

    h_t = tanh(W·x_t + U·h_{t-1} + b)

Each gate has its own weights. The plan multiplies a state by all of them at once, and the inputs before the loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensornet.api as tn
from tensornet.errors import ShapeError
from tensornet.weights.factorizations import factored, form_named
from tensornet.weights.ranks import Rank, check_sizes

from .checked import checked
from .dimensions import chosen, composite, count

__all__ = ["gru", "lstm", "rnn"]

GATES: dict[str, dict[str, str]] = {
    "rnn": {"h": "{act}({x} + {h} + {b})"},
    "lstm": {
        "enter": "sigmoid({xi} + {hi} + {bi})",
        "forget": "sigmoid({xf} + {hf} + {bf})",
        "new": "tanh({xg} + {hg} + {bg})",
        "leave": "sigmoid({xo} + {ho} + {bo})",
        "c": "forget * c[b,{before},{o}] + enter * new",
        "h": "leave * tanh(c)",
    },
    "gru": {
        "reset": "sigmoid({xr} + {hr} + {br})",
        "update": "sigmoid({xz} + {hz} + {bz})",
        "new": "tanh({xn} + {bn} + reset * ({hn} + {un}))",
        "h": "(1 - update) * new + update * h[b,{before},{o}]",
    },
}
"""The equations of each kind, by result. `x`, `h` and `b` with the letter of a gate are its three terms."""

LETTERS = {"rnn": ("",), "lstm": tuple("ifgo"), "gru": tuple("rzn")}
"""The letters of the gates, in the order of torch."""


@checked
def rnn(
    in_size: int | Sequence[int],
    hidden_size: int | Sequence[int],
    *,
    layers: int = 1,
    bidirectional: bool = False,
    nonlinearity: str = "tanh",
    bias: bool = True,
    states: bool = False,
    factorization: str = "dense",
    rank: Rank = "same",
) -> tn.Graph:
    """h_t = tanh(W·x_t + U·h_{t-1} + b), from h_{-1} = 0.

    Input: x[b, t, i]. Output: y[b, t, o]; with two directions their outputs are concatenated. With `states` the inputs
    are x, h0[l, b, o], and the outputs y, h[l, b, o]: the first and last state of each layer and direction.

    Args:
        in_size, hidden_size: the widths; for factorized weights, the sizes of the modes that a width is composed of.
        layers: the number of layers; each reads the outputs of the one before.
        bidirectional: whether each layer also runs from the last position to the first.
        nonlinearity: "tanh", "sigmoid" or "relu".
        bias: whether b is added.
        states: whether the first states are inputs and the last ones outputs, to continue a sequence.
        factorization, rank: the form of each weight, as for `linear`.

    Raises:
        ShapeError: sizes, rank or factorization do not fit.

    Source: Elman (1990), "Finding structure in time"; thesis eq. 1.1.1.

    Example:
        >>> tn.parameter_count(rnn(3, 4, layers=2))
        68
    """
    chosen(nonlinearity, ("tanh", "sigmoid", "relu"), "nonlinearity")
    return _stacked(
        "rnn", in_size, hidden_size, layers, bidirectional, bias, states, factorization, rank, nonlinearity
    )


@checked
def lstm(
    in_size: int | Sequence[int],
    hidden_size: int | Sequence[int],
    *,
    layers: int = 1,
    bidirectional: bool = False,
    bias: bool = True,
    states: bool = False,
    factorization: str = "dense",
    rank: Rank = "same",
) -> tn.Graph:
    """i, f, o = σ(W·x_t + U·h_{t-1} + b), g = tanh(…), c_t = f·c_{t-1} + i·g, h_t = o·tanh(c_t).

    Input: x[b, t, i]. Output: y[b, t, o]. With `states` the inputs are x, h0, c0[l, b, o], and the outputs y, h, c.

    Args:
        in_size, hidden_size, layers, bidirectional, bias, states, factorization, rank: as in `rnn`.

    Raises:
        ShapeError: sizes, rank or factorization do not fit.

    Source: Hochreiter and Schmidhuber (1997), "Long short-term memory"; Gers et al. (2000) for f; Yang et al. (2017),
    "Tensor-train recurrent neural networks for video classification", for factorized weights.

    Example:
        >>> tn.parameter_count(lstm(128, 256))
        394240
        >>> tn.parameter_count(lstm((8, 16), (16, 16), factorization="blocktt", rank=4))
        15360
    """
    return _stacked("lstm", in_size, hidden_size, layers, bidirectional, bias, states, factorization, rank)


@checked
def gru(
    in_size: int | Sequence[int],
    hidden_size: int | Sequence[int],
    *,
    layers: int = 1,
    bidirectional: bool = False,
    bias: bool = True,
    states: bool = False,
    factorization: str = "dense",
    rank: Rank = "same",
) -> tn.Graph:
    """r, z = σ(W·x_t + U·h_{t-1} + b), n = tanh(W·x_t + b + r·(U·h_{t-1} + u)), h_t = (1 − z)·n + z·h_{t-1}.

    Input: x[b, t, i]. Output: y[b, t, o]. With `states` the inputs are x, h0[l, b, o], and the outputs y, h.

    Args:
        in_size, hidden_size, layers, bidirectional, bias, states, factorization, rank: as in `rnn`.

    Raises:
        ShapeError: sizes, rank or factorization do not fit.

    Source: Cho et al. (2014), "Learning phrase representations using RNN encoder–decoder".

    Example:
        >>> tn.parameter_count(gru(3, 4))
        100
    """
    return _stacked("gru", in_size, hidden_size, layers, bidirectional, bias, states, factorization, rank)


# ---------------------------------------------------------------------------- layers and directions


def _stacked(
    kind: str,
    in_size: int | Sequence[int],
    hidden_size: int | Sequence[int],
    layers: int,
    bidirectional: bool,
    bias: bool,
    states: bool,
    factorization: str,
    rank: Rank,
    nonlinearity: str = "tanh",
) -> tn.Graph:
    ins, outs = _modes(in_size, "in_size"), _modes(hidden_size, "hidden_size")
    form = form_named(factorization)
    if form != "dense" and len(ins) != len(outs):
        message = f"in_size {ins} has {len(ins)} mode(s), and hidden_size {outs} has {len(outs)}"
        raise ShapeError(message, fix="give as many of each")
    count(layers, "layers", 1)
    ways = ("onward", "backward") if bidirectional else ("onward",)  # torch modules have a forward
    memory = ("h", "c") if kind == "lstm" else ("h",)
    wide = (len(ways) * outs[0], *outs[1:])

    def direction(number: int, way: str) -> tn.Graph:
        sizes = ins if not number else wide
        return _layer(kind, sizes, outs, way == "backward", bias, states, form, rank, nonlinearity)

    def forward(x: tn.Tensor, *starts: tn.Tensor) -> Any:
        lasts: list[tuple[tn.Tensor, ...]] = []
        for number in range(layers):
            found = []
            for way in ways:
                given = [
                    tn.layer(f"s[b,o] = z[{len(lasts)},b,o]", inputs="z[l,b,o]")(each) for each in starts
                ]
                made: Any = direction(number, way)(x, *given, scope=f"layers.{number}.{way}")
                y, *last = made if states else (made,)
                found.append(y)
                lasts.append(tuple(last))
            x = _joined("y[b,t,n] = concat[n]({})", "[b,t,n]", found) if bidirectional else found[0]
        ends = (_joined("z[l,b,o] = concat[l]({})", "[b,o]", each) for each in zip(*lasts, strict=True))
        return (x, *ends) if states else x

    inputs = ["x[b,t,i]", *(f"{name}0[l,b,o]" for name in memory if states)]
    known = {"i": math.prod(ins)} | ({"o": math.prod(outs), "l": layers * len(ways)} if states else {})
    return tn.model(forward, inputs=inputs, **known)


def _modes(size: int | Sequence[int], what: str) -> tuple[int, ...]:
    return check_sizes((size,) if isinstance(size, int) else size, what)


def _joined(line: str, axes: str, parts: Sequence[tn.Tensor]) -> tn.Tensor:
    """The concatenation of tensors by the equation `line`."""
    names = [f"a{number}{axes}" for number in range(len(parts))]
    joined: Callable[..., Any] = tn.layer(line.format(", ".join(names)), inputs=names)
    found: tn.Tensor = joined(*parts)
    return found


# ---------------------------------------------------------------------------- one layer, one direction


def _layer(
    kind: str,
    ins: tuple[int, ...],
    outs: tuple[int, ...],
    back: bool,
    bias: bool,
    states: bool,
    form: str,
    rank: Rank,
    nonlinearity: str,
) -> tn.Graph:
    i, o, p = (
        [f"{letter}{n}" for n in range(1, len(sizes) + 1)]
        for letter, sizes in zip("iop", (ins, outs, outs), strict=True)
    )
    x, out, inner = map(composite, (i, o, p))
    sizes: dict[str, Any] = dict(zip([*i, *o, *p], [*ins, *outs, *outs], strict=True))
    before = "t+1" if back else "t-1"
    words = {"before": before, "o": out, "act": nonlinearity}
    for letter in LETTERS[kind]:
        for part, read, axes, lengths, ranks in (
            ("x", f"x[b,t,{x}]", i, ins, "r"),
            ("h", f"h[b,{before},{inner}]", p, outs, "q"),
        ):
            weight = _weight(
                form, "W" if part == "x" else "U", letter, (o, axes), (outs, lengths), rank, ranks
            )
            sizes |= weight.ranks
            words[f"{part}{letter}"] = f"{read} * {weight}"
        words[f"b{letter}"] = f"b{letter}[{out}]" if bias else "0"
    words["un"] = f"un[{out}]" if bias else "0"
    lines = [
        f"{name}[b,t,{out}] = {line.format(**words).replace(' + 0', '')}"
        for name, line in GATES[kind].items()
    ]
    memory = ("h", "c") if kind == "lstm" else ("h",)
    if states:
        first, last = ("+1", "0") if back else ("-1", "-1")
        lines += [f"{name}[b,{first},{out}] = {name}0[b,{out}]" for name in memory]
        lines += [f"{name}_last[b,{out}] = {name}[b,{last},{out}]" for name in memory]
    inputs = [f"x[b,t,{x}]", *(f"{name}0[b,{out}]" for name in memory if states)]
    outputs = ["h", *(f"{name}_last" for name in memory if states)]
    return tn.layer("\n".join(lines), inputs=inputs, outputs=outputs, **sizes)


def _weight(
    form: str,
    name: str,
    gate: str,
    axes: Sequence[Sequence[str]],
    sizes: Sequence[Sequence[int]],
    rank: Rank,
    ranks: str,
) -> Any:
    """The weight of a gate; its factors are named after the gate."""
    plain = factored(form, axes, sizes, rank)
    factors = {each.name: f"{name}{gate}_{each.name}" for each in plain.factors}
    called = {"W": f"{name}{gate}"} if form == "dense" else factors
    return factored(form, axes, sizes, rank, called | {each: f"{ranks}{each[1:]}" for each in plain.ranks})
