"""The graphs of a sweep: given by name, or built, one for each combination of settings."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from ..errors import TensornetError, TensornetWarning, by_name
from ..graph.graph import Graph
from .sweeps import Row, plain

__all__ = ["BASELINE", "Candidate", "candidates"]

BASELINE = "baseline"
"""The name of a baseline that is given as a graph."""

Candidate: TypeAlias = tuple[Row, Graph | None]
"""A row without costs and its graph, or the reason why there is none."""


def candidates(
    graphs: Mapping[str, Graph] | Callable[..., Graph],
    over: Mapping[str, list[Any]] | None,
    baseline: str | Graph | None,
) -> list[Candidate]:
    """The graphs, in order. A baseline that is given as a graph comes first.

    Raises:
        TensornetError: there are no graphs or no choices, two graphs have the same name, the baseline is unknown, or
            every combination is refused.
    """
    found = _given(graphs, over) if isinstance(graphs, Mapping) else _built(graphs, over)
    if isinstance(baseline, Graph):
        found = [(Row(BASELINE), baseline), *found]
    if not found:
        raise TensornetError("there is nothing to sweep over", fix='give graphs by name: {"dense": graph}')
    names = [row.name for row, _ in found]
    for name in names:
        if names.count(name) > 1:
            raise TensornetError(f"two graphs are called '{name}'", fix="give each choice and name once")
    if not isinstance(baseline, Graph | None) and baseline not in names:
        raise TensornetError(f"there is no baseline '{baseline}'", fix=f"choose of {', '.join(names)}")
    return found


def _given(graphs: Mapping[str, Graph], over: Mapping[str, list[Any]] | None) -> list[Candidate]:
    if over is not None:
        fix = "give what builds a graph, tn.sweep(tn.models.linear, over=…), or leave `over` out"
        raise TensornetError("graphs are given by name, and settings to build them with", fix=fix)
    for name, graph in graphs.items():
        if not isinstance(name, str) or not isinstance(graph, Graph):
            told = f"{name!r}: {type(graph).__name__} is no name with a graph"
            raise TensornetError(told, fix='give graphs by name: {"dense": graph}')
    return [(Row(name), graph) for name, graph in graphs.items()]


def _built(build: Callable[..., Graph], over: Mapping[str, list[Any]] | None) -> list[Candidate]:
    if isinstance(build, Graph) or not callable(build):
        fix = 'give graphs by name, {"dense": graph}, or a function that builds one'
        raise TensornetError(f"a {type(build).__name__} is nothing to sweep over", fix=fix)
    over = by_name(over, "the settings of over", '{"rank": [4, 8]}')
    if not over:
        fix = 'say what to choose from, by setting: over={"rank": [4, 8]}'
        raise TensornetError("there are no settings to build graphs with", fix=fix)
    for setting, choices in over.items():
        if not isinstance(choices, list):  # a tuple may be one choice, such as a rank for each mode
            told = f"over['{setting}'] is a {type(choices).__name__}, not a list of choices"
            fix = f"to choose from several, give a list; {choices!r} alone is [{choices!r}]"
            raise TensornetError(told, fix=fix)
    found, refused = list[Candidate](), list[TensornetError]()
    for values in itertools.product(*over.values()):
        settings = dict(zip(over, values, strict=True))
        # words appear without their setting, as in `cp, rank=0.1`
        words = (value if isinstance(value, str) else f"{key}={value}" for key, value in settings.items())
        row = Row(", ".join(words), tuple((key, plain(value)) for key, value in settings.items()))
        try:
            graph, note = _noting(build, settings)
        except TensornetError as error:
            found.append((replace(row, refused=error.message), None))
            refused.append(error)
            continue
        if not isinstance(graph, Graph):
            told = f"what builds graphs returned a {type(graph).__name__}"
            raise TensornetError(told, fix="return a graph, as tn.layer does")
        found.append((replace(row, note=note), graph))
    if refused and len(refused) == len(found):
        raise refused[0]
    return found


def _noting(build: Callable[..., Graph], settings: Mapping[str, Any]) -> tuple[Graph, str]:
    """The graph that is built, and the warnings of the library. Other warnings are issued again."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        graph = build(**settings)
    own = [each for each in heard if issubclass(each.category, TensornetWarning)]
    for each in heard:
        if each not in own:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    return graph, "; ".join(dict.fromkeys(str(each.message).split("\n")[0] for each in own))
