"""The pass pipeline: the passes that a program goes through before it is lowered, in order.

The way from text to result, with one file for each arrow:

    text      →  graph      frontend/layers.py           equations as a value, sizes solved
    graph     →  graph      autodiff/vjp.py              forward and backward pass, where gradients are required
    graph     →  graph      planning/planner.py          outlining, recurrences to scans (scan/)
    graph     →  program    frontend/elaborate_ir.py     the core form: nodes with numbered axes (`ir/node.py`)
    program   →  program    this file                    the passes below
    program   →  lines      lowering/context.py          its equations, each axis with a size
    lines     →  steps      lowering/lower.py            one operation each; contraction/order_search.py orders products
    steps     →  plan       planning/planner.py          constant folding, liveness, slicing to a memory limit
    plan      →  source     codegen/function.py          a line of Python for each step
    source    →  function   codegen/function.py          called by runtime/executable.py

A program holds only what an output reaches, and equal nodes are one object. So dead code and common subexpressions need
no pass here; `dead_code.py` is for graphs. A call of a block is a node, which passes leave as it is. A pass that does
not always pay compares the cost of a part before and after. The part is lowered, and the expected seconds of its steps
are added up (`planner._rewritten`). `tn.plan(..., trace=True)` prints the equations after each pass that changed them.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import NamedTuple, TypeVar

from ..frontend.elaborate_ir import function_of
from ..graph.graph import Graph
from ..ir.node import Node
from ..ir.rewriting import Change, PassContext, Program, improved
from .algebraic_simplification import expand, fused, multiplied_out, without_totals
from .convolution import pools, select_convolutions
from .gather_scatter import grouped_gemms, without_ones
from .idioms import IDIOMS, recognised
from .kernel_selection import select_kernels
from .pushdown import averages_first, gathers_first, push_positions_down, windows_last


class Pass(NamedTuple):
    """A pass over a program. Without work it returns the same program.

    Attributes:
        name: the field's word for it.
        rewrite: the pass itself.
        needs: what a program must have for it to find work, at least one of `Program.features`; nothing if empty.
        after: names of passes. Unless empty, it runs only if one of these has changed the program.
    """

    name: str
    rewrite: Callable[[Program, PassContext], Program]
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def run(self, program: Program, context: PassContext) -> Program:
        """The program after the pass, which is not entered if there is nothing to do."""
        idle = self.needs and program.features.isdisjoint(self.needs)
        return program if idle else self.rewrite(program, context)


def program_of(graph: Graph) -> Program:
    """The core form of a graph without recurrences."""
    return Program(*function_of(graph))


# ---------------------------------------------------------------------------- the passes


def _where_it_pays(
    name: str,
    changes: Callable[[PassContext, Program, Node], Iterable[Change]],
    *needs: str,
    outputs_first: bool = False,
) -> Pass:
    """The pass that makes those changes of nodes that save time."""

    def rewrite(program: Program, context: PassContext) -> Program:
        nodes = program.nodes[::-1] if outputs_first else program.nodes
        return improved(program, nodes, functools.partial(changes, context), context.cost)

    return Pass(name, rewrite, needs)


def _kernels(program: Program, context: PassContext) -> Program:
    """Selects kernels. The cost is that of a part after simplification and algebra, which follow."""

    def settled_cost(part: Program, limit: float = math.inf) -> float:
        return context.cost(_through(SETTLED, part, context), limit)

    return select_kernels(program, settled_cost, context)


SIMPLIFICATION = (
    Pass("gather pushdown at one position", lambda program, _: push_positions_down(program), ("position",)),
    Pass("contraction fusion", lambda program, _: program.rewritten(fused), ("products", "copy")),
)
"""The passes that always pay."""

ALGEBRA = (
    _where_it_pays("distribution", multiplied_out, "add"),
    Pass("known totals", lambda program, _: program.rewritten(without_totals), ("add",)),
)
"""After these, more can be simplified, and kernels may cover other regions."""

KERNELS = Pass("kernel selection", _kernels)
"""Before algebra, which takes some regions apart, and after it where it changed something."""

ALTERED = tuple(each.name for each in ALGEBRA)

SETTLED = (
    *SIMPLIFICATION,
    *ALGEBRA,
    *SIMPLIFICATION,
    Pass(KERNELS.name, lambda program, c: select_kernels(program, c.cost, c), after=ALTERED),
)
"""The passes of a part before it is priced."""

PIPELINE = (
    Pass("idiom recognition", lambda program, c: recognised(program) if c.real else program, IDIOMS),
    Pass(
        "expansion",
        lambda program, c: program.rewritten(lambda each, _: expand(each, c.supported)),
        ("function",),
    ),
    SIMPLIFICATION[0],
    _where_it_pays("gather pushdown", gathers_first, "position", outputs_first=True),
    _where_it_pays("window pull-up", windows_last, "position", outputs_first=True),
    _where_it_pays("reduction pushdown", averages_first, "function", outputs_first=True),
    _where_it_pays("grouped GEMM", grouped_gemms, "position"),
    Pass("kernel selection of convolutions", select_convolutions, ("position", "function")),
    _where_it_pays("kernel selection of pooling", pools, "function"),
    _where_it_pays("one-hot elimination", without_ones, "position", "function"),
    KERNELS,
    *SIMPLIFICATION,
    *ALGEBRA,
    *SIMPLIFICATION,
    KERNELS._replace(after=ALTERED),
)
"""All passes, in order."""


def optimize(graph: Graph, context: PassContext) -> Program:
    """A graph after all passes: the form that takes least time at given sizes on a given device."""
    return _through(PIPELINE, program_of(graph), context, noted)


def simplify(graph: Graph) -> Program:
    """A graph after the passes that always pay."""
    return _through(SIMPLIFICATION, program_of(graph), PassContext(lambda _: 0.0))


def _through(
    passes: Iterable[Pass],
    program: Program,
    context: PassContext,
    note: Callable[[str, Program, Program], Program] = lambda name, before, after: after,
) -> Program:
    """The program after some passes. None sees its own result again if nothing has changed that since."""
    made, changed = dict[Pass, Program](), set[str]()
    for each in passes:
        if made.get(each) is program or (each.after and changed.isdisjoint(each.after)):
            continue
        before, program = program, each.run(program, context)
        made[each] = program = note(each.name, before, program)
        if program is not before:
            changed.add(each.name)
    return program


# ---------------------------------------------------------------------------- the trace

Traced = TypeVar("Traced", Graph, Program)

_TRACE: ContextVar[Callable[[str], object] | None] = ContextVar("trace", default=None)


@contextlib.contextmanager
def traced(write: Callable[[str], object] | None) -> Iterator[None]:
    """Writes the equations of each graph that is planned inside, and again after each pass that changes them."""
    token = _TRACE.set(write)
    try:
        yield
    finally:
        _TRACE.reset(token)


def is_traced() -> bool:
    """Whether passes are traced."""
    return _TRACE.get() is not None


def noted(name: str, before: Traced | None, after: Traced) -> Traced:
    """A graph or a program after a pass; the trace shows its equations if the pass changed them."""
    write = _TRACE.get()
    if write is not None and after != before:
        shown: Graph = after.graph if isinstance(after, Program) else after
        write("\n".join([f"# {name}", *shown.body_lines(), ""]))
    return after
