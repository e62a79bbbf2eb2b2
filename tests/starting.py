"""Random layers of products, sums and norms, as text: what initial values are tried on."""

from __future__ import annotations

import functools
import random
import re
from dataclasses import dataclass, field

Axes = tuple[str, ...]

CURVES = ("tanh", "gelu", "relu", "silu", "sigmoid", "softplus", "sin")
"""What is put around a product."""

OF_WEIGHTS = ("tanh", "softplus", "exp", "sigmoid", "square")
"""What is put around a weight."""


NORMS = (
    "normalize[{o}]({x})",
    "({x} - mean[{o}]({x})) / sqrt(var[{o}]({x}) + 1e-5)",
    "({x} - mean[{o}]({x})) * rsqrt(mean[{o}](({x} - mean[{o}]({x})) ** 2) + 1e-5)",
    "{x} / sqrt(mean[{o}]({x} * {x}) + 1e-6)",
    "{x} * rsqrt(mean[{o}](square({x})) + 1e-6)",
)
"""Norms as papers print them, of a tensor over an axis."""


@dataclass
class Layers:
    """Writes a layer of a few lines, each of which reads one of those before it; `x` comes in, `y` goes out."""

    seed: int
    lines: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    tensors: list[tuple[str, Axes]] = field(default_factory=list)
    parameters: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.inputs = self.axes(self.random.choice([1, 1, 2]))
        self.tensors.append(("x", self.inputs))
        for _ in range(self.random.choice([0, 1, 1, 2, 3])):
            self.line(f"h{len(self.lines)}")
        self.line("y")

    @property
    def text(self) -> str:
        """The lines that `y` comes of."""
        kept, read = list[str](), {"y"}
        for line in reversed(self.lines):
            left, right = line.split(" = ", 1)
            if left.split("[")[0] in read:
                kept.append(line)
                read.update(re.findall(r"\b[hv]\d+\b", right))
        return "\n".join(reversed(kept))

    def known(self) -> dict[str, int]:
        """The sizes of the axes that the text names."""
        names = set(re.findall(r"\ba\d+_?(?!\w)", self.text))
        return {axis: self.sizes[axis.rstrip("_")] for axis in names}

    # ---- names

    def axes(self, count: int) -> Axes:
        found = tuple(f"a{len(self.sizes) + n}" for n in range(count))
        self.sizes.update({axis: self.random.choice([2, 3, 4, 8, 16, 32]) for axis in found})
        return found

    def parameter(self, axes: Axes) -> str:
        self.parameters += 1
        return f"P{self.parameters}[{','.join(axes)}]" if axes else f"P{self.parameters}"

    def read(self, name: str, axes: Axes) -> str:
        return f"{name}[{','.join(('b', *axes))}]"

    # ---- lines

    def line(self, name: str) -> None:
        kinds = [self.product, self.product, self.curve, self.norm, self.norm, self.residual, self.gated]
        text, axes = self.random.choice(kinds)(*self.random.choice(self.tensors[-2:]))
        self.lines.append(f"{self.read(name, axes)} = {text}")
        self.tensors.append((name, axes))

    def weight(self, axes: Axes, depth: int = 3) -> str:
        """A weight, or what is made of weights, here or in a line of its own."""
        kind = self.random.randrange(18) if depth else 18
        if kind > 5 or (kind in (2, 3) and not axes):
            return self.parameter(axes)
        one, other = (functools.partial(self.weight, depth=depth - 1) for _ in range(2))
        if kind == 0:
            text = f"{self.random.choice(OF_WEIGHTS)}({one(axes)})"
        elif kind == 1:
            text = f"({one(axes)} + {other(axes)})"
        elif kind == 2:
            weight = self.parameter(axes)
            text = f"({weight} / sqrt(sum[{self.random.choice(axes)}]({weight} * {weight})))"
        elif kind == 3:
            rank, cut = self.axes(1), self.random.randint(0, len(axes))
            text = f"sum[{rank[0]}]({one((*axes[:cut], *rank))} * {other((*rank, *axes[cut:]))})"
        elif kind == 4:
            text = f"({self.random.choice(('2', '0.1', '30'))} * {one(axes)})"
        else:
            text = f"({one(axes)} * {other(axes)})"
        if self.random.random() < 0.7:
            return text
        name = f"v{len(self.lines)}[{','.join(axes) or '()'}]"
        self.lines.append(f"{name} = {text}")
        return name if axes else name.removesuffix("[()]")

    def product(self, name: str, axes: Axes) -> tuple[str, Axes]:
        """A linear map whose weight is one tensor, a pair, a chain or a sum of outer products."""
        made = self.axes(self.random.choice([1, 1, 2]))
        summed, form = [*axes], self.random.randrange(4)
        if form == 0:
            rank = self.axes(1)
            factors = [self.weight((axis, *rank)) for axis in (*axes, *made)]
            summed += rank
        elif form == 1:
            inner = self.axes(1)
            factors = [self.weight((*axes, *inner)), self.weight((*inner, *made))]
            summed += inner
        elif form == 2:
            every = (*axes, *made)
            ranks = self.axes(len(every) - 1)
            links = [ranks[:1], *(ranks[n : n + 2] for n in range(len(ranks) - 1)), ranks[-1:]]
            factors = [self.weight((axis, *link)) for axis, link in zip(every, links, strict=True)]
            summed += ranks
        else:
            factors = [self.weight((*axes, *made))]
        text = f"sum[{','.join(summed)}]({' * '.join([self.read(name, axes), *factors])})"
        if self.random.random() < 0.3:
            text += f" + {self.parameter(made)}"
        return text, made

    def curve(self, name: str, axes: Axes) -> tuple[str, Axes]:
        """A product within a function, and another behind it."""
        text, made = self.product(name, axes)
        out = self.axes(1)
        inner = f"{self.random.choice(CURVES)}({text})"
        return f"sum[{','.join(made)}]({inner} * {self.weight((*made, *out))})", out

    def norm(self, name: str, axes: Axes) -> tuple[str, Axes]:
        """A norm as papers print it."""
        over, read = self.random.choice(axes), self.read(name, axes)
        self.sizes[over] = max(self.sizes[over], 4)
        text, form = self.random.choice(NORMS), self.random.randrange(4)
        text = ("{x} / sqrt(sum[{o}]({x} * {x}) + 1e-6)" if form == 3 else text).format(x=read, o=over)
        if form:
            text += f" * {self.parameter((over,))}"
        if form == 2:
            text += f" + {self.parameter((over,))}"
        return text, axes

    def residual(self, name: str, axes: Axes) -> tuple[str, Axes]:
        """A tensor and a product of it."""
        read, inner = self.read(name, axes), self.axes(1)
        hidden = tuple(f"{axis}_" for axis in axes)
        text = (
            f"sum[{','.join((*hidden, *inner))}]"
            f"({self.read(name, hidden)} * {self.weight((*hidden, *inner))} * {self.weight((*inner, *axes))})"
        )
        return f"{read} + {text}", axes

    def gated(self, name: str, axes: Axes) -> tuple[str, Axes]:
        """Two products, one within a function, one beside."""
        one, made = self.product(name, axes)
        two = f"sum[{','.join(axes)}]({self.read(name, axes)} * {self.weight((*axes, *made))})"
        return f"{self.random.choice(CURVES)}({one}) * ({two})", made
