"""Element type inference of leaves and numbers; `ir.node` infers the types of nodes, from the operation alone.

Truth values and integers stay exact. Reals computed from them, and constants, are wide. All become numbers of the
working type where they meet such numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from ..errors import DtypeError
from ..language.equation import Equation
from ..language.expression import Call, Contraction, Expression, Literal, Ref, Size, scalar_value
from ..ops.structure import ONEHOT
from ..ops.table import FUNCTIONS, Element
from .graph import Apply, Graph
from .leaves import Leaf


def of_number(number: Expression) -> Element:
    """The element type of a number: whole, real, or complex (and then of the working type)."""
    value = scalar_value(number)
    if value is not None:
        return Element.of(value)
    return Element.WHOLE if all(map(_keeps_whole, number.subexpressions)) else Element.WIDE


def _keeps_whole(part: Expression) -> bool:
    match part:
        case Literal(value):
            return isinstance(value, int)
        case Size() | Contraction():
            return True
        case Call(function):
            return FUNCTIONS[function].yields == "same"
        case _:
            return False


def of_dtype(dtype: str, working: str) -> Element:
    """The `Element` of an array of this dtype, for a given working dtype."""
    if dtype == "bool":
        return Element.TRUTH
    if "int" in dtype:
        return Element.WHOLE if dtype == "int64" else Element.SHORT
    real_beside_complex = "complex" in working and "complex" not in dtype
    return Element.WIDE if real_beside_complex else Element.NUMBER


def bytes_of(element: Element, itemsize: int) -> int:
    """Bytes of one element, given the item size of the working type."""
    match element:
        case Element.TRUTH:
            return 1
        case Element.SHORT | Element.WHOLE:
            return 8
        case Element.WIDE:
            return max(4, itemsize)
    return itemsize


def of_leaf(leaf: Leaf, indexes: bool = False) -> Element:
    """The element type of a leaf: that of an array seen for it, else of its constant, else by its use."""
    if leaf.holds is not None:
        return leaf.holds
    if leaf.value is not None:
        dtype = leaf.value.array().dtype
        return Element.WIDE if dtype.kind == "f" else of_dtype(str(dtype), "")
    return Element.WHOLE if indexes else Element.NUMBER


def of_leaves(graph: Graph) -> dict[str, Element]:
    """The element type of each leaf. A leaf that indexes a tensor, or flows into an index, holds positions."""
    found = _positions(graph, frozenset())
    return {leaf.name: of_leaf(leaf, leaf.name in found) for leaf in graph.leaves}


@functools.lru_cache(maxsize=1024)
def _positions(graph: Graph, outputs: frozenset[str]) -> frozenset[str]:
    """The tensors of a graph that index others, or flow into an index or into one of the given outputs."""
    found = {*outputs}
    found.update(ref.name for equation in graph.own for part in equation.parts for ref in _telling(part))
    for item in reversed(graph.body):
        if isinstance(item, Apply):
            inside = _positions(item.graph, frozenset(output for output, name in item.made if name in found))
            found.update(name for leaf, name in item.names().items() if leaf in inside)
        elif item.name in found:
            found.update(ref.name for ref in read_in(item.right))
    return frozenset(found)


def _telling(part: Expression) -> Iterator[Ref]:
    """The tensors that hold positions because a part of an equation uses them in brackets or in `onehot`."""
    match part:
        case Ref():
            yield from (ref for entry in part.parts for ref in read_in(entry))
        case Call(ONEHOT.name, (told,)):
            yield from read_in(told)


def read_in(entry: Expression) -> Iterator[Ref]:
    """The tensors whose elements reach the positions in an entry; not those in which `argmax` finds positions."""
    if isinstance(entry, Ref):
        yield entry
    elif not finds_positions(entry):
        for part in entry.parts:
            yield from read_in(part)


def finds_positions(entry: Expression) -> bool:
    """Whether the entry is a call that yields positions, whatever its operands are: `argmax`, or `int64` of reals."""
    if not isinstance(entry, Call):
        return False
    row = FUNCTIONS[entry.function]
    return row.yields == "position" or row.converts is Element.WHOLE


def holding(graph: Graph, seen: Mapping[str, Element]) -> Graph:
    """The graph with the element types that were seen for its leaves."""
    return _holding(graph, tuple(seen.get(leaf.name, leaf.holds) for leaf in graph.leaves))


@functools.lru_cache(maxsize=1024)
def _holding(graph: Graph, held: tuple[Element | None, ...]) -> Graph:
    """The graph with these element types of its leaves. Cached: a block is often called with the same types."""
    leaves = tuple(replace(leaf, holds=each) for leaf, each in zip(graph.leaves, held, strict=True))
    return graph if leaves == graph.leaves else replace(graph, leaves=leaves)


# ---------------------------------------------------------------------------- complex numbers


def writes_complex(graph: Graph) -> bool:
    """Whether a graph contains a complex literal."""
    return any(_writes_complex(equation) for part in graph.parts for equation in part.own)


def _writes_complex(equation: Equation) -> bool:
    return any(isinstance(part, Literal) and isinstance(part.value, complex) for part in equation.parts)


def check_complex(equations: Iterable[Equation], complex_names: Iterable[str]) -> None:
    """Raises an error if a complex tensor or literal meets a function of real numbers.

    Args:
        equations: steps, each of one function.
        complex_names: the given tensors that hold complex numbers.

    Raises:
        DtypeError: a function of real numbers is applied to complex ones.
    """
    found = set(complex_names)
    for equation in equations:
        operands = [f"'{ref.name}' is complex" for ref in equation.references if ref.name in found]
        operands += ["a number here is complex"] if _writes_complex(equation) else []
        called = [FUNCTIONS[part.function] for part in equation.called]
        refusing = [function.name for function in called if function.complex == "refused"]
        if operands and refusing:
            raise DtypeError(
                f"{min(refusing)} takes real numbers only, and {operands[0]}",
                fix="take abs(…) first, or give real arrays",
            )
        if operands and not any(function.complex == "measured" for function in called):
            found.add(equation.name)
