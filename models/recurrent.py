"""Recurrent layers: RNN, LSTM and GRU, of any depth and direction, dense or factorized; and linear recurrences.

    h_t = tanh(W·x_t + U·h_{t-1} + b)

Each gate has its own weights. The plan multiplies a state by all of them at once, and the inputs before the loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensornet.api as tn
from tensornet.errors import ShapeError
from tensornet.weights.factorizations import Factored, Rank, check_sizes, factored, form_named

from .checked import Size, checked, chosen, composite, count, divided, sized_layer

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
    sizes = (in_size, hidden_size)
    return _Stack(
        "rnn", *sizes, layers, bidirectional, bias, states, factorization, rank, nonlinearity
    ).graph()


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
    sizes = (in_size, hidden_size)
    return _Stack("lstm", *sizes, layers, bidirectional, bias, states, factorization, rank).graph()


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
    sizes = (in_size, hidden_size)
    return _Stack("gru", *sizes, layers, bidirectional, bias, states, factorization, rank).graph()


# ---------------------------------------------------------------------------- layers and directions


@dataclass(frozen=True)
class _Stack:
    """The layers of a recurrent network.

    Attributes:
        kind: one of `GATES`.
        in_size, hidden_size, layers, bidirectional, bias, states, factorization, rank, nonlinearity: as in `rnn`.
    """

    kind: str
    in_size: int | Sequence[int]
    hidden_size: int | Sequence[int]
    layers: int
    bidirectional: bool
    bias: bool
    states: bool
    factorization: str
    rank: Rank
    nonlinearity: str = "tanh"

    @property
    def memory(self) -> tuple[str, ...]:
        """The names of the states."""
        return ("h", "c") if self.kind == "lstm" else ("h",)

    def graph(self) -> tn.Graph:
        """All layers, in one or both directions."""
        ins, outs = (
            check_sizes((size,) if isinstance(size, int) else size, what)
            for size, what in ((self.in_size, "in_size"), (self.hidden_size, "hidden_size"))
        )
        if form_named(self.factorization) != "dense" and len(ins) != len(outs):
            message = f"in_size {ins} has {len(ins)} mode(s), and hidden_size {outs} has {len(outs)}"
            raise ShapeError(message, fix="give as many of each")
        count(self.layers, "layers", 1)
        ways = ("onward", "backward") if self.bidirectional else ("onward",)  # torch modules have a forward
        wide = (len(ways) * outs[0], *outs[1:])

        def forward(x: tn.Tensor, *starts: tn.Tensor) -> Any:
            lasts: list[tuple[tn.Tensor, ...]] = []
            for number in range(self.layers):
                found = []
                for way in ways:
                    pick = tn.layer(f"s[b,o] = z[{len(lasts)},b,o]", inputs="z[l,b,o]")
                    layer = self.layer(wide if number else ins, outs, way == "backward")
                    made: Any = layer(x, *map(pick, starts), scope=f"layers.{number}.{way}")
                    y, *last = made if self.states else (made,)
                    found.append(y)
                    lasts.append(tuple(last))
                x = _joined("y[b,t,n] = concat[n]({})", "[b,t,n]", found) if len(ways) > 1 else found[0]
            ends = (_joined("z[l,b,o] = concat[l]({})", "[b,o]", each) for each in zip(*lasts, strict=True))
            return (x, *ends) if self.states else x

        inputs = ["x[b,t,i]", *(f"{name}0[l,b,o]" for name in self.memory if self.states)]
        known = {"i": math.prod(ins)}
        known |= {"o": math.prod(outs), "l": self.layers * len(ways)} if self.states else {}
        return tn.model(forward, inputs=inputs, **known)

    def layer(self, ins: tuple[int, ...], outs: tuple[int, ...], back: bool) -> tn.Graph:
        """One layer in one direction."""
        i, o, p = (
            [f"{letter}{n}" for n in range(1, len(sizes) + 1)]
            for letter, sizes in zip("iop", (ins, outs, outs), strict=True)
        )
        x, out, inner = map(composite, (i, o, p))
        sizes: dict[str, Any] = dict(zip([*i, *o, *p], [*ins, *outs, *outs], strict=True))
        before = "t+1" if back else "t-1"
        words = {"before": before, "o": out, "act": self.nonlinearity}
        for letter in LETTERS[self.kind]:
            for part, read, name, axes, lengths, ranks in (
                ("x", f"x[b,t,{x}]", f"W{letter}", i, ins, "r"),
                ("h", f"h[b,{before},{inner}]", f"U{letter}", p, outs, "q"),
            ):
                weight = self.weight(name, (o, axes), (outs, lengths), ranks)
                sizes |= weight.ranks
                words[f"{part}{letter}"] = f"{read} * {weight}"
            words[f"b{letter}"] = f"b{letter}[{out}]" if self.bias else "0"
        words["un"] = f"un[{out}]" if self.bias else "0"
        lines = [
            f"{name}[b,t,{out}] = {line.format(**words).replace(' + 0', '')}"
            for name, line in GATES[self.kind].items()
        ]
        inputs, outputs = [f"x[b,t,{x}]"], ["h"]
        first, last = ("+1", "0") if back else ("-1", "-1")
        for name in self.memory if self.states else ():
            lines += [f"{name}[b,{first},{out}] = {name}0[b,{out}]"]
            lines += [f"{name}_last[b,{out}] = {name}[b,{last},{out}]"]
            inputs.append(f"{name}0[b,{out}]")
            outputs.append(f"{name}_last")
        return tn.layer("\n".join(lines), inputs=inputs, outputs=outputs, **sizes)

    def weight(
        self, name: str, axes: Sequence[Sequence[str]], sizes: Sequence[Sequence[int]], ranks: str
    ) -> Factored:
        """The weight of a gate; its factors are named after it."""
        form = form_named(self.factorization)
        plain = factored(form, axes, sizes, self.rank)
        factors = {each.name: name if form == "dense" else f"{name}_{each.name}" for each in plain.factors}
        called = factors | {each: f"{ranks}{each[1:]}" for each in plain.ranks}
        return factored(form, axes, sizes, self.rank, called)


def _joined(line: str, axes: str, parts: Sequence[tn.Tensor]) -> Any:
    """The concatenation of tensors by the equation `line`."""
    names = [f"a{number}{axes}" for number in range(len(parts))]
    return tn.layer(line.format(", ".join(names)), inputs=names)(*parts)


# ---------------------------------------------------------------------------- linear recurrences


FEATURES = {
    "cosine": "where(index(p) == 0, cos(pi / 2 * x[b,t]), sin(pi / 2 * x[b,t]))",
    "share": "where(index(p) == 0, 1 - x[b,t], x[b,t])",
}
"""The two features p of a number from 0 to 1, for a matrix product."""


@checked
def state_space(dim: Size, states: Size = 16) -> tn.Graph:
    """h_t = a·h_{t-1} + (1 − a)·B·x_t, y_t = Σ C·h_t + D·x_t, channel by channel, with a = exp(−exp(step + rate)).

    Input: x[b, t, c]. Output: y[b, t, c]. Each channel has its own states, and each state its own decay rate.

    Args:
        dim: the number of channels.
        states: the number of states of each channel.

    Source: Gu et al. (2022), "On the parameterization and initialization of diagonal state space models", with
    real rates.

    Example:
        >>> tn.parameter_count(state_space(8, 4))
        112
    """
    text = """
        step[c]: parameter(value=-3)
        decay[c,n] = exp(-exp(step[c] + rate[c,n]))
        h[b,t,c,n] = decay[c,n] * h[b,t-1,c,n] + (1 - decay[c,n]) * B[c,n] * x[b,t,c]
        y[b,t,c] = h[b,t,c,n] * C[c,n] + D[c] * x[b,t,c]
    """
    sizes = {"c": dim, "n": states}
    return sized_layer(text, "x[b,t,c]", sizes)


@checked
def linear_attention(dim: Size, heads: Size = 1, *, bias: bool = False) -> tn.Graph:
    """y_t = φ(q_t)·S_t / (φ(q_t)·n_t), S_t = S_{t-1} + φ(k_t)⊗v_t, n_t = n_{t-1} + φ(k_t), with φ = elu + 1.

    Input: x[b, t, D]. Output: y[b, t, D]. Causal attention whose state does not grow with the length. q, k and v are
    projections of x, and the heads are joined by an output projection.

    Args:
        dim: the width D.
        heads: the number of heads, which divides the width.
        bias: whether the projections have biases.

    Raises:
        ShapeError: the heads do not divide the width.

    Source: Katharopoulos et al. (2020), "Transformers are RNNs", eq. 16 to 20.

    Example:
        >>> tn.parameter_count(linear_attention(16, 4))
        1024
    """
    lines = [
        f"{name}[b,t,h,d] = x[b,t,c] * W{name}[(h,d),c]" + (f" + b{name}[(h,d)]" if bias else "")
        for name in "qkv"
    ]
    text = "\n".join(
        [
            *lines,
            "f[b,t,h,d] = elu(q[b,t,h,d]) + 1",
            "g[b,t,h,d] = elu(k[b,t,h,d]) + 1",
            "S[b,t,h,d,e] = S[b,t-1,h,d,e] + g[b,t,h,d] * v[b,t,h,e]",
            "m[b,t,h,d] = m[b,t-1,h,d] + g[b,t,h,d]",
            "o[b,t,h,e] = f[b,t,h,d] * S[b,t,h,d,e] / sum[d](f[b,t,h,d] * m[b,t,h,d])",
            "y[b,t,a] = o[b,t,h,e] * Wo[a,(h,e)]" + (" + bo[a]" if bias else ""),
        ]
    )
    width = divided(dim, heads, "dim", "heads")
    sizes = {"c": dim, "a": dim, "h": heads, "d": width, "e": width}
    return sized_layer(text, "x[b,t,c]", sizes)


@checked
def matrix_product(length: int, classes: Size, *, bond: Size = 16, features: str = "cosine") -> tn.Graph:
    """v_t = v_{t-1} + v_{t-1}·(Σ_p A_t[p]·φ_p(x_t)), y = W·v_T: one matrix for each position, linear in φ(x_t).

    Input: x[b, t] of numbers from 0 to 1. Output: y[b, K]. The layer is a tensor train over the features of all
    positions. Its cores are initialized near the identity.

    Args:
        length: the number of positions, such as the pixels of an image.
        classes: K.
        bond: the size of the state, the rank of the train.
        features: φ, two features of a number: "cosine", cos(πx/2) and sin(πx/2), or "share", 1 − x and x.

    Raises:
        ShapeError: a choice is unknown.

    Source: Stoudenmire and Schwab (2016), "Supervised learning with tensor networks".

    Example:
        >>> tn.parameter_count(matrix_product(784, 10, bond=4))
        25132
    """
    count(length, "length", 1)
    chosen(features, tuple(FEATURES), "features")
    text = f"""
        A[t,r,p,s]: parameter(std={(length**-0.5) / 4:.6g})
        start[r]: parameter(value=1)
        f[b,t,p] = {FEATURES[features]}
        v[b,-1,r] = start[r]
        v[b,t,s] = v[b,t-1,s] + v[b,t-1,r] * A[t,r,p,s] * f[b,t,p]
        y[b,k] = v[b,-1,r] * W[k,r]
    """
    sizes = {"t": length, "k": classes, "r": bond, "p": 2}
    return sized_layer(text, "x[b,t]", sizes)
