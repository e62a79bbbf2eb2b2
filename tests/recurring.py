"""Hypothesis strategy: random recurrences, each with a plain NumPy loop over positions that computes the same.

A line is written together with the function of one position that it stands for, so that the loop shares nothing
with the library, not even what it has read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

import tensornet as tn

__all__ = ["Recurrences", "recurrences"]

Array = np.ndarray[Any, Any]
Read = Callable[[str, int], Array]
"""What a state is, `[b,o]`, so many positions before the one that is being made."""

CURVES: dict[str, Callable[[Array], Array]] = {
    "tanh({})": np.tanh,
    "sigmoid({})": lambda a: 1 / (1 + np.exp(-a)),
    "relu({})": lambda a: np.maximum(a, 0),
    "0.5 * ({})": lambda a: 0.5 * a,
}

NAMES = ("u", "v", "w")


@dataclass
class Recurrences:
    """Lines that go round along `t`, what they are given, and the loop.

    Attributes:
        lines: the equations and starts.
        sizes: those of `b`, `t`, `i` and `o`.
        back: whether they go from the last position to the first.
        arrays: the leaves by name; of these `x` is the input.
        makes: of each state, what is at a position of it: of `x` there and of what is read of states.
        starts: of a state and how far outside, what is there.
        orders: the dimensions of each state.
    """

    sizes: dict[str, int]
    back: bool
    lines: list[str] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)
    makes: dict[str, Callable[[Array, Read], Array]] = field(default_factory=dict)
    starts: dict[tuple[str, int], Array] = field(default_factory=dict)
    orders: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The program."""
        return "\n".join(self.lines)

    @property
    def called(self) -> str:
        """The program as a block of one position, called along `t`."""
        reads: dict[str, str] = {"x[b,t,i]": "x[b,i]"}

        def inside(match: re.Match[str]) -> str:
            name, entries = match[1], match[2].split(",")
            at = next(n for n, entry in enumerate(entries) if entry.startswith("t"))
            here = entries.pop(at)
            if here != "t":
                name += f"_{here[-1]}"
                outside = self.orders[match[1]].replace("t", "").replace("", ",")[1:-1]
                whole = ",".join(here if axis == "t" else axis for axis in self.orders[match[1]])
                reads[f"{match[1]}[{whole}]"] = f"{name}[{outside}]"
            return f"{name}[{','.join(entries)}]"

        count = len(self.makes)
        body = [re.sub(r"\b([xuvw])\[([^\]]*)\]", inside, line) for line in self.lines[:count]]
        declared = [f"{each}: input" for each in reads.values()] + [f"{name}: output" for name in self.makes]
        names = ", ".join(each.split("[")[0] for each in reads.values())
        results = ", ".join(f"{name}[{','.join(self.orders[name])}]" for name in self.makes)
        call = f"{results} = cell({', '.join(reads)})"
        lines = (f"    {line}" for line in [*declared, *body])
        return "\n".join([f"def cell({names}):", *lines, *self.lines[count:], call])

    def graph(self, called: bool = False) -> tn.Graph:
        """The program as a graph, its states the outputs; written as a block if so asked."""
        leaves = [name for name in self.arrays if f"{name}[" in self.text and name == name.lower()]
        sizes = {axis: self.sizes[axis] for axis in "io" if f"{axis}]" in self.text}
        return tn.layer(self.called if called else self.text, inputs=leaves, outputs=[*self.makes], **sizes)

    def expected(self) -> dict[str, Array]:
        """What the states are, position by position."""
        made: dict[str, dict[int, Array]] = {name: {} for name in self.makes}
        positions = range(self.sizes["t"])
        nothing = np.zeros((self.sizes["b"], self.sizes["o"]))
        for n in positions:
            at = positions[-1 - n] if self.back else n

            def read(name: str, far: int, n: int = n) -> Array:
                outside = self.starts.get((name, far - n), nothing)
                return made[name][n - far] if far <= n else outside

            for name, make in self.makes.items():
                made[name][n] = make(self.arrays["x"][:, at], read)
        found = {name: np.stack([each[n] for n in positions], 1) for name, each in made.items()}
        found = {name: each[:, ::-1] if self.back else each for name, each in found.items()}
        return {name: np.einsum(f"bto->{self.orders[name]}", each) for name, each in found.items()}


class _Writer:
    """Draws lines one after another."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self.draw = draw
        sizes = {axis: draw(st.integers(1, most)) for axis, most in (("b", 3), ("t", 6), ("i", 3), ("o", 3))}
        self.made = Recurrences(sizes, draw(st.booleans()))
        self.random = np.random.default_rng(draw(st.integers(0, 2**20)))
        self.array("x", "bti")
        self.far = dict.fromkeys(NAMES, 0)

    def array(self, name: str, axes: str) -> Array:
        shape = [self.made.sizes[axis] for axis in axes]
        return self.made.arrays.setdefault(name, self.random.uniform(-1, 1, shape))

    def leaf(self, letter: str, axes: str) -> tuple[str, Array]:
        """A new parameter."""
        name = f"{letter}{len(self.made.arrays)}"
        return name, self.array(name, axes)

    def written(self, name: str, position: str, channel: str = "o") -> str:
        """A state at a position."""
        entries = {"b": "b", "t": position, "o": channel}
        return f"{name}[{','.join(entries[axis] for axis in self.made.orders[name])}]"

    def before(self, name: str, far: int, channel: str = "o") -> str:
        """A state so many positions before."""
        self.far[name] = max(self.far[name], far)
        return self.written(name, f"t{far if self.made.back else -far:+d}", channel)

    # ---- terms

    def term(self, kind: str, state: str, far: int) -> tuple[str, Callable[[Array, Read], Array]]:
        """A term, and what it is at a position."""
        match kind:
            case "input":
                name, w = self.leaf("W", "oi")
                return f"x[b,t,i] * {name}[o,i]", lambda x, read: x @ w.T
            case "bias":
                name, a = self.leaf("B", "o")
                return f"{name}[o]", lambda x, read: np.broadcast_to(a, read(state, 10**6).shape)
            case "each":
                name, g = self.leaf("G", "o")
                return f"{name}[o] * {self.before(state, far)}", lambda x, read: g * read(state, far)
            case "product":
                name, m = self.leaf("U", "oo")
                return f"{self.before(state, far, 'p')} * {name}[o,p]", lambda x, read: read(state, far) @ m.T
        name, w = self.leaf("W", "oi")
        gate = f"sigmoid(x[b,t,i] * {name}[o,i])"
        return (
            f"{gate} * {self.before(state, far)}",
            lambda x, read: read(state, far) / (1 + np.exp(-(x @ w.T))),
        )

    def here(self, state: str) -> tuple[str, Callable[[Array, Read], Array]]:
        """A state above, at the same position."""
        return f"0.5 * {self.written(state, 't')}", lambda x, read: 0.5 * read(state, 0)

    def line(self, name: str, states: tuple[str, ...]) -> None:
        """A state, of itself before and of others."""
        one_of = st.sampled_from
        curve = self.draw(one_of(sorted(CURVES)))
        far = st.sampled_from([1, 1, 1, 2])
        terms = [self.term(self.draw(one_of(["each", "product", "gate"])), name, 1)]
        if not self.made.makes:  # which tells how many positions there are
            terms.append(self.term("input", name, 1))
        for _ in range(self.draw(st.integers(0, 3))):
            kind = self.draw(one_of(["input", "input", "bias", "each", "product", "gate"]))
            terms.append(self.term(kind, self.draw(one_of(states)), self.draw(far)))
        above = [each for each in states if each in self.made.makes]
        if above and self.draw(st.booleans()):
            terms.append(self.here(self.draw(one_of(above))))
        terms = self.draw(st.permutations(terms))
        function = CURVES[curve]
        right = curve.format(" + ".join(text for text, _ in terms))
        self.made.lines.append(f"{self.written(name, 't')} = {right}")
        self.made.makes[name] = lambda x, read: function(sum(make(x, read) for _, make in terms))  # type: ignore[arg-type]

    def start(self, name: str) -> None:
        """What a state is before its first position, if it is told."""
        for far in range(1, self.far[name] + 1):
            kind = self.draw(st.sampled_from(["nothing", "number", "tensor"]))
            if kind == "nothing":
                continue
            shape = self.made.sizes["b"], self.made.sizes["o"]
            text, value = "0.5", np.full(shape, 0.5)
            if kind == "tensor":
                text = f"s_{name}{far}"
                value = self.array(text, "bo")
                text += "[b,o]"
            self.made.starts[name, far] = value
            position = f"{far if self.made.back else -far:+d}"
            self.made.lines.append(f"{self.written(name, position)} = {text}")

    def program(self) -> Recurrences:
        """All of it."""
        states = NAMES[: self.draw(st.integers(1, len(NAMES)))]
        for name in states:
            self.made.orders[name] = "".join(self.draw(st.permutations("bto")))
        for name in states:
            self.line(name, states)
        for name in states:
            self.start(name)
        return self.made


@st.composite
def recurrences(draw: Callable[[Any], Any]) -> Recurrences:
    """Random recurrences of one to three states, either way, each read at its position, before it, or both."""
    return _Writer(draw).program()
