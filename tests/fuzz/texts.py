"""Texts of the language, mutated and grown: read, printed, read back; `differential.survey` runs programs."""

from __future__ import annotations

import re
from typing import Any

import tensornet as tn
from tensornet import models

from ..programs import recorded, records
from . import SilentChangeError, Trial

_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
_NUMERALS = "0 1 -1 2 0.5 1e-30 1e999 10**400 10**30 1j 0x1f 1_0 True 3."
_VOCABULARY = """
b i j h d x y W t ... (h,d) index softmax sum mean max where concat onehot pad roll gelu normalize
recur logsumexp dropout floor sqrt input parameter constant output lambda import None __class__
dtype self torch é ² [ ] ( ) , : ; = == < + - * / ** & | ~ " # .
"""
_AXES = "bijkpqhdnce"
_CALLS = """
gelu({}); ({}) ** 2; sum[i]({}); softmax[j]({}); mean[b]({}); max[i]({}); -({}); {} / 3;
where({} > 0, 1, 0); pad({}, i=(1, -1)); roll({}, i=2); concat[i]({}, {}); {} + x[b,i];
{} * W[i,j]; onehot[p]({}); floor({} / 7); exp({}) / sum[j](exp({})); dropout({}, 0.5);
dropped({} > 0, x[b,i], 0.5); normalize[i]({}, eps=0); recur[i]({}, x[b,i], start=1)
"""
_NUMBERS, _WORDS = _NUMERALS.split(), [*_VOCABULARY.split(), "\n"]
_WRAPPERS = [each.strip() for each in _CALLS.split(";") if each.strip()]


def _corpus() -> tuple[tuple[str, str], ...]:
    """Blocks to start from, with their inputs: the written programs, and layers of the models."""
    graphs = [
        models.tcl((4, 3), (2, 5)),
        models.trl((4, 3), 5, rank=(2, 2, 3)),
        *(models.linear((3, 4), (4, 3), factorization=kind, rank=2) for kind in ("tucker", "cp", "tt")),
        models.attention(8, 2),
        models.window_attention(4, 1, 2, grid=(4, 4), shift=1),
    ]
    cases = map(recorded, records("equations.txt"))
    return (*((case.text, " ".join(case.inputs)) for case in cases), *((str(graph), "") for graph in graphs))


CORPUS = _corpus()


def attempt(trial: Trial) -> None:
    """Mutates or grows a block and reads it; what is read must print as itself."""
    random = trial.random
    text, inputs = random.choice(CORPUS)
    for _ in range(random.choice((1, 1, 2, 3, 6))):
        text = random.choice((_mutated, _mutated, _mutated, _grown, _spliced))(text, trial)
    if trial.chance(0.1):
        inputs = _mutated(inputs, trial)
    sizes = {axis: random.choice((1, 2, 3, 4)) for axis in _AXES if re.search(rf"\b{axis}\b", text)}
    given = {axis: size for axis, size in sizes.items() if trial.chance(0.5)}
    if trial.chance(0.05):
        given[random.choice(_AXES)] = random.choice((0, -1, 2.5, "4*D", "D+1", "4; j=3", True, None, 2**70))
    trial.note(text)
    trial.note(f"inputs={inputs!r} sizes={given!r}")
    graph = tn.layer(text, inputs=inputs, **given)
    if tn.layer(str(graph), constants=_values(graph)) != graph:
        raise SilentChangeError(f"it prints as\n{graph}\nwhich reads as another graph")
    if trial.chance(0.2) and tn.Graph.from_json(graph.to_json()) != graph:
        raise SilentChangeError("it is another graph after JSON")


def _values(graph: tn.Graph) -> dict[str, Any]:
    return {leaf.name: leaf.value.array() for leaf in graph.constants if leaf.value is not None}


# ---------------------------------------------------------------------------- other texts


def _mutated(text: str, trial: Trial) -> str:
    """The text with one token gone, doubled, swapped or another."""
    random = trial.random
    tokens = _TOKEN.findall(text) or [""]
    at, other = random.randrange(len(tokens)), random.randrange(len(tokens))
    match random.randrange(6):
        case 0:
            del tokens[at]
        case 1:
            tokens.insert(at, tokens[other])
        case 2:
            tokens[at], tokens[other] = tokens[other], tokens[at]
        case 3:
            tokens[at] = random.choice(_NUMBERS)
        case 4:
            tokens[at] = random.choice(_WORDS)
        case _:
            names = [place for place, token in enumerate(tokens) if token.isidentifier()]
            if names:
                tokens[random.choice(names)] = random.choice(_AXES)
    return "".join(tokens)


def _grown(text: str, trial: Trial) -> str:
    """The text with the right side of one line inside another function."""
    lines = text.splitlines() or [""]
    at = trial.random.randrange(len(lines))
    left, equals, right = lines[at].partition(" = ")
    wrapper = trial.random.choice(_WRAPPERS)
    lines[at] = f"{left}{equals}{wrapper.replace('{}', right)}"
    return "\n".join(lines)


def _spliced(text: str, trial: Trial) -> str:
    """The text with a line of another block somewhere in it."""
    lines = text.splitlines()
    other = trial.random.choice(CORPUS)[0].splitlines()
    lines.insert(trial.random.randint(0, len(lines)), trial.random.choice(other))
    return "\n".join(lines)
