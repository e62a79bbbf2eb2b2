"""Recurrences drawn at random: a text, arrays, and the same loops written for torch, whose autograd tells gradients."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

FUNCTIONS = {"tanh": torch.tanh, "sigmoid": torch.sigmoid, "sin": torch.sin}
BATCH, GIVEN, MADE = 2, 3, 3


@dataclass(frozen=True)
class Case:
    """A recurrence.

    Attributes:
        text: its equations, of which `loss` is the result.
        inputs: how they are declared.
        length: positions along `t`.
        arrays: what goes in, by name.
    """

    text: str
    inputs: str
    length: int
    arrays: Mapping[str, Any]
    lines: tuple[Any, ...]

    def gradients(self) -> tuple[float, dict[str, Any]]:
        """The loss and the gradients of all that goes in, by loops and autograd in float64."""
        leaves = {name: torch.tensor(each, requires_grad=True) for name, each in self.arrays.items()}
        loss = _looped(self, leaves)
        found = torch.autograd.grad(loss, [*leaves.values()], allow_unused=True)
        zeros = [
            torch.zeros_like(each) if g is None else g for g, each in zip(found, leaves.values(), strict=True)
        ]
        return float(loss.detach()), {name: each.numpy() for name, each in zip(leaves, zeros, strict=True)}


@dataclass(frozen=True)
class _Term:
    """`weight · tensor at a position so far away`, the axes of which are `channels`, or element by element."""

    tensor: str
    away: int
    weight: str | None
    gate: str | None = None

    def text(self, at: str, last: bool) -> str:
        position = f"t{self.away:+d}" if self.away else "t"
        axis = ("i" if self.tensor == "x" else "p") if self.weight else "o"
        index = f"{position},b,{axis}" if last else f"b,{position},{axis}"
        found = f"{self.tensor}[{index}]"
        found += f" * {self.weight}[o,{axis}]" if self.weight else ""
        return found + (f" * sigmoid({self.gate}[o])" if self.gate else "")


@dataclass(frozen=True)
class _Line:
    name: str
    function: str | None
    terms: tuple[_Term, ...]
    bias: str | None
    start: str | None


def drawn(seed: int) -> Case:
    """The case of a seed."""
    draw = random.Random(seed)
    values = np.random.default_rng(seed)
    length, back, first = draw.choice((1, 2, 5, 7, 8, 9)), draw.random() < 0.3, draw.random() < 0.3
    step = 1 if back else -1
    names = ["h", "c", "s"][: draw.choice((1, 1, 2, 2, 3))]
    arrays: dict[str, Any] = {
        "x": values.standard_normal((length, BATCH, GIVEN) if first else (BATCH, length, GIVEN))
    }

    def weight(columns: int) -> str:
        name = f"W{len(arrays)}"
        arrays[name] = values.standard_normal((MADE, columns)) / 2
        return name

    def vector() -> str:
        name = f"v{len(arrays)}"
        arrays[name] = values.standard_normal(MADE)
        return name

    lines = list[_Line]()
    if draw.random() < 0.4:
        lines.append(_Line("z", draw.choice((None, "tanh")), (_Term("x", 0, weight(GIVEN)),), None, None))
    for n, name in enumerate(names):
        terms = [
            _Term(
                name,
                step * draw.choice((1, 1, 1, 2)),
                weight(MADE) if draw.random() < 0.6 else None,
                vector() if draw.random() < 0.4 else None,
            )
        ]
        source = (
            draw.choice(("x", "z"))
            if n and lines[0].name == "z"
            else lines[0].name
            if lines and not n
            else "x"
        )
        terms.append(_Term(source, 0, weight(GIVEN if source == "x" else MADE)))
        for other in names:
            if other != name and draw.random() < 0.5:
                here = names.index(other) < n and draw.random() < 0.5
                terms.append(_Term(other, 0 if here else step, weight(MADE) if draw.random() < 0.5 else None))
        if n and not any(each.tensor in names[:n] for each in terms):
            terms.append(_Term(names[n - 1], 0, None))
        lines.append(
            _Line(
                name,
                draw.choice(("tanh", "sigmoid", "sin", None)),
                tuple(terms),
                vector() if draw.random() < 0.5 else None,
                None,
            )
        )
    for n, line in enumerate(lines):  # starts, of those that are read one position away and no further
        away = {each.away for other in lines for each in other.terms if each.tensor == line.name}
        if line.name != "z" and away <= {0, step} and step in away and draw.random() < 0.5:
            start = f"{line.name}0"
            arrays[start] = values.standard_normal((BATCH, MADE))
            lines[n] = _Line(line.name, line.function, line.terms, line.bias, start)
    text = list[str]()
    index = "t,b,o" if first else "b,t,o"
    for line in lines:
        inner = " + ".join(
            [each.text(line.name, first) for each in line.terms] + ([f"{line.bias}[o]"] if line.bias else [])
        )
        text.append(
            f"{line.name}[{index}] = {line.function}({inner})"
            if line.function
            else f"{line.name}[{index}] = 0.3 * ({inner})"
        )
        if line.start:
            place = f"{step:+d},b,o" if first else f"b,{step:+d},o"
            text.append(f"{line.name}[{place}] = {line.start}[b,o]")
    terms = list[str]()
    read = [name for name in names if draw.random() < 0.4]
    for name in read:
        arrays[f"R{name}"] = values.standard_normal((length, BATCH, MADE) if first else (BATCH, length, MADE))
        terms.append(f"sum[b,t,o]({name}[{index}] * R{name}[{index}])")
    last = draw.choice(names) if names[-1] in read else names[-1]
    end = 0 if back else -1
    if draw.random() < 0.5 or names[-1] not in read:
        place = f"{end},b,o" if first else f"b,{end},o"
        terms.append(f"sum[b,o]({last}[{place}] ** 2)")
    else:
        last = ""
    text.append(f"loss = {' + '.join(terms)}")
    inputs = "x[t,b,i]" if first else "x[b,t,i]"
    inputs = ", ".join(
        [
            inputs,
            *(f"{line.start}[b,o]" for line in lines if line.start),
            *(f"R{name}[{index}]" for name in read),
        ]
    )
    return Case("\n".join(text), inputs, length, arrays, (tuple(lines), first, back, tuple(read), last))


def _looped(case: Case, leaves: Mapping[str, Any]) -> Any:
    """The loss, position by position."""
    lines, first, back, read, last = case.lines
    x = leaves["x"] if first else leaves["x"].transpose(0, 1)
    made: dict[tuple[str, int], Any] = {("x", t): x[t] for t in range(case.length)}
    outside = case.length if back else -1
    for line in lines:
        if line.start:
            made[line.name, outside] = leaves[line.start]
    zeros = {"x": torch.zeros(BATCH, GIVEN, dtype=torch.float64)}

    def at(name: str, t: int) -> Any:
        return made.get((name, t), zeros.get(name, torch.zeros(BATCH, MADE, dtype=torch.float64)))

    order = [*range(case.length)][:: -1 if back else 1]
    for own in ([lines[0]], lines[1:]) if lines[0].name == "z" else (lines,):
        for t in order:
            for line in own:
                total: Any = leaves[line.bias] if line.bias else 0
                for term in line.terms:
                    value = at(term.tensor, t + term.away)
                    value = value @ leaves[term.weight].T if term.weight else value
                    total = total + (value * torch.sigmoid(leaves[term.gate]) if term.gate else value)
                made[line.name, t] = FUNCTIONS[line.function](total) if line.function else 0.3 * total
    loss: Any = 0
    for name in read:
        whole = torch.stack([made[name, t] for t in range(case.length)], 0 if first else 1)
        loss = loss + (whole * leaves[f"R{name}"]).sum()
    if last:
        loss = loss + (made[last, 0 if back else case.length - 1] ** 2).sum()
    return loss
