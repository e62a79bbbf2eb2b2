"""Elaboration: a block of text to the parts of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ..errors import EquationError, told_in
from ..graph.graph import Graph
from ..graph.recurrences import late, read_later
from ..language.equation import Calling, Definition, Equation, Opening, einstein
from ..language.expression import check_numbers, depth
from ..language.parser import parse_block, parse_names, read_sizes
from ..sizes import size_names
from .block_calls import call, call_along
from .context import Known, Names, Text
from .declarations import Parts, gathered
from .leaf_inference import check_undeclared, declare_leaves, doubt_sums, with_extents
from .lines import check_given, check_order, check_positions, check_summed, opened, resolved, whole, with_lead

__all__ = ["Parts", "elaborated"]

DEEPEST = 100
"""The nesting limit of functions and operators in a line: the code that traverses it is recursive."""

Make = Callable[..., Graph]
"""Builds a graph from its parts."""


@told_in("names")
def elaborated(
    equations: str,
    inputs: Names,
    outputs: Names,
    constants: Mapping[str, Any],
    init: Mapping[str, Any],
    sizes: Mapping[str, Any],
    make: Make,
    blocks: Mapping[str, Graph] = MappingProxyType({}),
    printed: bool = False,
) -> Parts:
    """The parts of the graph that a block of text describes; see `tensornet.layer`.

    Args:
        equations, inputs, outputs, constants, init, sizes: those of `tensornet.layer`.
        make: builds a graph from its parts, for the blocks in the text.
        blocks: graphs that the text may call, by name.
        printed: whether the text was printed from a graph, so that doubtful sums are intended.
    """

    def define(
        definition: Definition, constants: Mapping[str, Any], init: Mapping[str, Any], scope: str
    ) -> Graph:
        within = Text(
            definition.statements, definition.inputs, {}, constants, init, {}, define, scope, printed
        )
        return make(*_parts(within, ()))

    given = read_sizes(sizes)
    told = {name for each in parse_names(inputs, "input") for dim in each.dims or () for name, _ in dim}
    told.update(given, *map(size_names, given.values()))
    statements = parse_block(equations, blocks, told)
    text = Text(statements, inputs, given, constants, init, blocks, define, "", printed)
    try:
        return _parts(text, outputs)
    except RecursionError:
        raise EquationError("the equations are nested too deeply", fix="split the line") from None


def _parts(text: Text, outputs: Names) -> Parts:
    """Reads every line, then assembles the parts of the graph."""
    definitions = {line.name: line for line in text.lines}
    calls = [line for line in text.body if isinstance(line, Calling)]
    later = {name for line in calls for name in line.results}
    ahead = definitions | {each.name: each for line in calls for each in line.lefts}
    for name in text.known:
        if name in definitions:
            raise EquationError(
                f"'{name}' is declared as {text.known[name].kind}, and defined here",
                definitions[name].place,
                f"take '{name}' out of the declarations, or define another name",
            )
    waiting = set(read_later(text.lines, text.known))
    for line in text.body:
        if isinstance(line, Calling) and line.along:
            call_along(text, line)
        elif isinstance(line, Calling):
            call(text, line)
        else:
            for name in {ref.name for ref in late(line)} & waiting & ahead.keys():
                text.foresee(ahead[name])
            _read(text, line, {*definitions, *later})
    return gathered(text, outputs)


def _read(text: Text, line: Equation, definitions: set[str]) -> None:
    """Elaborates one equation; its leaves and its result are known from here on."""
    if text.known.get(line.name, Known("")).kind == "result":
        raise EquationError(f"'{line.name}' is defined twice", line.place, "give each result its own name")
    if depth(line.right) > DEEPEST:
        raise EquationError("the equation is nested too deeply", line.place, "split the line")
    line = resolved(text, line)
    check_order(text, line, definitions - text.openings.keys())
    found = opened(text, line) if isinstance(line, Opening) else line
    if found is None:
        return
    line = with_lead(text, found)
    line = replace(line, right=with_extents(text, line.right))
    check_undeclared(text, line)
    declare_leaves(text, line)
    implied = line
    line = einstein(line, text.guessed)
    check_numbers(line.right)
    check_positions(text, line)
    line = whole(text, line)
    scope = text.sizes_around(line.right)
    check_given(text, line)
    check_summed(text, line, scope)
    text.keep(line, scope)
    if not text.printed:
        doubt_sums(implied)
