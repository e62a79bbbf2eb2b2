"""Steps of plans as values of JSON, exactly: what is read back is equal, and checked where it could not be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..documents import Part
from ..graph.encoding import read_axes, read_element, write_axes
from ..graph.leaves import Leaf
from ..language.encoding import (
    read_equation,
    read_left,
    read_ref,
    read_size,
    write_equation,
    write_index,
    write_ref,
    write_size,
)
from .arrangement import Arrangement
from .steps import CallStep, Repetition, Result, Slicing, Step, Table

if TYPE_CHECKING:
    from .plans import Plan

__all__ = ["read_result", "read_step", "read_table", "write_result", "write_step", "write_table"]


def write_step(step: Step | CallStep, numbers: Mapping[Plan, int]) -> dict[str, Any]:
    """A step as a value of JSON, the blocks that are called by their numbers."""
    return _write_call(step, numbers) if isinstance(step, CallStep) else _write_pair(step)


def write_table(table: Table) -> dict[str, Any]:
    """A table as a value of JSON."""
    assert table.leaf.holds is not None
    return {
        "name": table.leaf.name,
        "dims": [write_axes(dim) for dim in table.leaf.dims],
        "element": table.leaf.holds.name,
        "made": table.made,
        "below": None if table.below is None else write_size(table.below),
    }


def read_table(part: Part) -> Table:
    """What `write_table` gave."""
    dims = tuple(read_axes(dim) for dim in part["dims"])
    leaf = Leaf(part["name"].name(), "constant", dims, holds=read_element(part["element"]))
    below = part["below"]
    return Table(leaf, part["made"].name(), None if below.is_none else read_size(below))


def _write_pair(step: Step) -> dict[str, Any]:
    return {
        **write_equation(step.equation),
        "axes": write_axes(step.axes),
        "flops": step.flops,
        "flop_formula": write_size(step.flop_formula),
        "bytes": step.bytes,
        "seconds": step.seconds,
        "element": step.element.name,
        "frees": list(step.frees),
        "arrangement": step.arrangement and asdict(step.arrangement),
        "into": step.into,
    }


def _write_call(step: CallStep, numbers: Mapping[Plan, int]) -> dict[str, Any]:
    return {
        "function": numbers[step.plan],
        "scope": step.scope,
        "operands": list(step.operands),
        "results": list(step.results),
        "shapes": [[write_size(size) for size in shape] for shape in step.shapes],
        "frees": list(step.frees),
        "tables": list(step.tables),
        "slicing": step.slicing and asdict(step.slicing),
        "again": step.again,
        "along": step.along and _write_repetition(step.along),
    }


def _write_repetition(along: Repetition) -> dict[str, Any]:
    return {**asdict(along), "axis": write_axes((along.axis,))}


def _read_repetition(part: Part) -> Repetition:
    (axis,) = read_axes(part["axis"])
    cuts, states = (tuple(each.whole() for each in part[name]) for name in ("cuts", "states"))
    segment = None if part["segment"].is_none else part["segment"].whole()
    return Repetition(
        axis, part["count"].whole(), cuts, states, part["back"].truth(), part["last"].truth(), segment
    )


def _read_call(part: Part, blocks: Sequence[Plan]) -> CallStep:
    call = CallStep(
        part["function"].among(blocks),
        part["scope"].scope(),
        part["operands"].names(),
        part["results"].names(),
        tuple(tuple(read_size(size) for size in shape) for shape in part["shapes"]),
        part["frees"].names(),
        part["tables"].names(),
        None if part["slicing"].is_none else _read_slicing(part["slicing"]),
        part["again"].truth(),
        None if part["along"].is_none else _read_repetition(part["along"]),
    )
    block = call.plan
    made = 1 if block.backward is not None else len(block.results)  # besides is what its way back is given
    taken = len(call.results) if call.along is not None else made
    if call.along is not None:
        _check_repetition(call, call.along, part)
    if len(call.operands) != len(block.graph.inputs) or len(call.results) != taken:
        raise part.fail(
            "gives a block another number of tensors than it takes, or takes another than it gives"
        )
    if len(call.shapes) != len(call.results):
        raise part.fail("has not a shape for each result")
    if len(call.tables) not in (0, len(block.tables)):
        raise part.fail("has not a name for each table of its block")
    return call


def _check_repetition(call: CallStep, along: Repetition, part: Part) -> None:
    """Refuses a repetition that hands on what is not there."""
    given, made = len(along.cuts) + len(along.states), len(call.plan.results)
    wrong = not 0 <= along.joined(len(call.results)) <= made or any(at >= made for at in along.states)
    if wrong or given > len(call.operands):
        raise part.fail("is repeated with states that it does not make")
    if along.segment is not None and along.segment < 1:
        raise part.fail("is made again no position at a time")


def _read_slicing(part: Part) -> Slicing:
    return Slicing(
        part["size"].name(),
        part["piece"].name(),
        part["length"].whole(),
        part["count"].whole(),
        tuple(None if each.is_none else each.whole() for each in part["operands"]),
        tuple(each.whole() for each in part["results"]),
    )


def read_step(part: Part, blocks: Sequence[Plan]) -> Step | CallStep:
    """What `write_step` gave."""
    if part.get("function") is not None:
        return _read_call(part, blocks)
    arrangement = part["arrangement"]
    return Step(
        read_equation(part),
        read_axes(part["axes"]),
        part["flops"].whole(),
        read_size(part["flop_formula"]),
        part["bytes"].whole(),
        part["seconds"].real(),
        read_element(part["element"]),
        part["frees"].names(),
        None if arrangement.is_none else _read_arrangement(arrangement),
        part["into"].text(),
    )


def _read_arrangement(part: Part) -> Arrangement:
    return Arrangement(
        part["kind"].one_of("matmul", "linear", "dot", "multiply"),
        part["swapped"].truth(),
        part["batch"].names(),
        part["rows"].names(),
        part["columns"].names(),
        part["summed"].names(),
        tuple(group.names() for group in part["result"]),
        part["seconds"].real(),
        part["packed"].truth(),
    )


def write_result(result: Result) -> dict[str, Any]:
    """A result as a value of JSON."""
    return {
        "name": result.name,
        "value": write_ref(result.value),
        "left": write_index(result.left),
        "axes": write_axes(result.axes),
        "element": result.element.name,
    }


def read_result(part: Part) -> Result:
    """What `write_result` gave."""
    left, axes = read_left(part["left"]), read_axes(part["axes"])
    return Result(part["name"].name(), read_ref(part["value"]), left, axes, read_element(part["element"]))
