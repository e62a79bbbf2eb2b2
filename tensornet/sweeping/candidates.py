"""The graphs of a sweep: given by name, or built, one for each combination of settings."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import TensornetError, TensornetWarning, by_name
from ..graph.graph import Graph

__all__ = ["BASELINE", "Candidate", "candidates"]

BASELINE = "baseline"
"""The name of a baseline that is given as a graph."""


@dataclass(frozen=True)
class Candidate:
    """A graph of a sweep, or the reason why there is none.

    Attributes:
        name: the name of the graph.
        settings: the choices that it was built with.
        graph: the graph, if there is one.
        refused: the reason why there is none.
        note: the warnings of its builder.
    """

    name: str
    settings: tuple[tuple[str, Any], ...] = ()
    graph: Graph | None = None
    refused: str = ""
    note: str = ""


def candidates(
    graphs: Mapping[str, Graph] | Callable[..., Graph],
    over: Mapping[str, list[Any]] | None,
    baseline: str | Graph | None,
) -> tuple[Candidate, ...]:
    """The graphs, in order. A baseline that is given as a graph comes first.

    Raises:
        TensornetError: there are no graphs or no choices, two graphs have the same name, the baseline is unknown, or
            every combination is refused.
    """
    found = _given(graphs, over) if isinstance(graphs, Mapping) else _built(graphs, over)
    if isinstance(baseline, Graph):
        found = (Candidate(BASELINE, graph=baseline), *found)
    if not found:
        raise TensornetError("there is nothing to sweep over", fix='give graphs by name: {"dense": graph}')
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise TensornetError(f"two graphs are called '{name}'", fix="give each choice and name once")
    if not isinstance(baseline, Graph | None) and baseline not in names:
        raise TensornetError(f"there is no baseline '{baseline}'", fix=f"choose of {', '.join(names)}")
    return found


def _given(graphs: Mapping[str, Graph], over: Mapping[str, list[Any]] | None) -> tuple[Candidate, ...]:
    if over is not None:
        fix = "give what builds a graph, tn.sweep(tn.models.linear, over=…), or leave `over` out"
        raise TensornetError("graphs are given by name, and settings to build them with", fix=fix)
    for name, graph in graphs.items():
        if not isinstance(name, str) or not isinstance(graph, Graph):
            told = f"{name!r}: {type(graph).__name__} is no name with a graph"
            raise TensornetError(told, fix='give graphs by name: {"dense": graph}')
    return tuple(Candidate(name, graph=graph) for name, graph in graphs.items())


def _built(build: Callable[..., Graph], over: Mapping[str, list[Any]] | None) -> tuple[Candidate, ...]:
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
    found: list[Candidate] = []
    refused: TensornetError | None = None
    for values in itertools.product(*over.values()):
        settings = tuple(zip(over, values, strict=True))
        # words appear without their setting, as in `cp, rank=0.1`
        name = ", ".join(value if isinstance(value, str) else f"{key}={value}" for key, value in settings)
        try:
            graph, note = _noting(build, dict(settings))
        except TensornetError as error:
            found.append(Candidate(name, settings, refused=error.message))
            refused = refused or error
            continue
        if not isinstance(graph, Graph):
            told = f"what builds graphs returned a {type(graph).__name__}"
            raise TensornetError(told, fix="return a graph, as tn.layer does")
        found.append(Candidate(name, settings, graph, note=note))
    if refused is not None and all(each.graph is None for each in found):
        raise refused
    return tuple(found)


def _noting(build: Callable[..., Graph], settings: Mapping[str, Any]) -> tuple[Graph, str]:
    """The graph that is built, and the warnings of the library. Other warnings are issued again."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        graph = build(**settings)
    notes = dict[str, None]()
    for each in heard:
        if issubclass(each.category, TensornetWarning):
            notes[str(each.message).split("\n")[0]] = None
        else:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    return graph, "; ".join(notes)
