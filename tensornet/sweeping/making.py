"""The graphs of a sweep: given by name, or built for each combination of settings."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import TensornetError, TensornetWarning, by_name
from ..graph.graph import Graph
from ..planning.plans import Plan
from .sweeps import Row, plain

__all__ = ["BASELINE", "Candidate", "candidates"]

BASELINE = "baseline"
"""The name of a baseline that is given as a graph."""


@dataclass
class Candidate:
    """A graph of a sweep, and what is found of it.

    Attributes:
        name, chosen: the name of its row, and the settings that it was built with.
        graph: the graph; None if it is refused.
        costs, notes: the costs of its row, and the remarks.
        plan: the plan of the forward pass.
        both: the plan of the forward and the backward pass, if it is required and there is one.
    """

    name: str
    chosen: tuple[tuple[str, Any], ...] = ()
    graph: Any = None
    costs: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    plan: Plan | None = None
    both: Plan | None = None

    @property
    def row(self) -> Row:
        """Its row."""
        return Row(self.name, self.chosen, **self.costs, note="; ".join(self.notes))

    @contextlib.contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Makes a remark of an error in the block: one of the library, or a lack of memory."""
        try:
            yield
        except (TensornetError, MemoryError, RuntimeError) as error:
            if not isinstance(error, TensornetError) and not _is_of_memory(error):
                raise
            reason = getattr(error, "message", None) or str(error).partition("\n")[0]
            self.notes.append(f"{what}: {reason}")


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
        found = [Candidate(BASELINE, graph=baseline), *found]
    if not found:
        raise TensornetError("there is nothing to sweep over", fix='give graphs by name: {"dense": graph}')
    names = [each.name for each in found]
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
    return [Candidate(name, graph=graph) for name, graph in graphs.items()]


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
        made = Candidate(", ".join(words), tuple((key, plain(value)) for key, value in settings.items()))
        found.append(made)
        try:
            made.graph, made.notes = _noting(build, settings)
        except TensornetError as error:
            made.costs["refused"] = error.message
            refused.append(error)
            continue
        if not isinstance(made.graph, Graph):
            told = f"what builds graphs returned a {type(made.graph).__name__}"
            raise TensornetError(told, fix="return a graph, as tn.layer does")
    if refused and len(refused) == len(found):
        raise refused[0]
    return found


def _noting(build: Callable[..., Graph], settings: Mapping[str, Any]) -> tuple[Graph, list[str]]:
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
    return graph, [*notes]


def _is_of_memory(error: Exception) -> bool:
    """Whether an error means too little memory. Each library reports this in its own way."""
    told = str(error).lower()
    return isinstance(error, MemoryError) or "memory" in told or "resource_exhausted" in told
