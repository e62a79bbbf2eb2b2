"""The pass pipeline: the passes that a program goes through before it is lowered, in order.

The way from text to result, with one file for each arrow:

    text      →  graph      frontend/layers.py           equations as a value, sizes solved
    graph     →  graph      autodiff/vjp.py              forward and backward pass, where gradients are required
    graph     →  graph      planning/planner.py          outlining, recurrences to scans (scan/)
    graph     →  program    frontend/elaborate_ir.py     the core form: nodes with numbered axes (`ir/node.py`)
    program   →  program    this file                    the passes below
    program   →  lines      lowering/lines.py            its equations, each axis with a size
    lines     →  steps      lowering/lower.py            one operation each; contraction/order_search.py orders products
    steps     →  plan       planning/planner.py          constant folding, liveness, slicing to a memory limit
    plan      →  source     codegen/function.py          a line of Python for each step
    source    →  function   codegen/loading.py           called by runtime/executable.py

A program holds only what an output reaches, and equal nodes are one object. So dead code and common subexpressions need
no pass here. A call of a block is a node, which passes leave as it is. A pass that does not always pay compares the
cost of a part before and after. The part is lowered, and the expected seconds of its steps are added up
(`planner._rewritten`). `tn.plan(..., trace=True)` prints the equations after each pass that changed them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from ..frontend.elaborate_ir import function_of
from ..graph.graph import Graph
from ..ir.rewriting import Cost, Program
from ..ops.table import Function
from .algebraic_simplification import distribute, drop_known_totals
from .convolution import select_convolutions, select_pooling
from .expansion import expand
from .fusion import fuse_contractions
from .grouped_gemm import select_grouped_gemm
from .kernel_selection import select_kernels
from .one_hot_elimination import eliminate_one_hots
from .pushdown import push_gathers_down, push_positions_down, push_reductions_down

__all__ = [
    "PIPELINE",
    "SIMPLIFICATION",
    "PassContext",
    "Pass",
    "is_traced",
    "noted",
    "optimize",
    "program_of",
    "simplify",
    "traced",
]


@dataclass(frozen=True)
class PassContext:
    """The context of the passes while a graph is planned.

    Attributes:
        cost: the expected seconds of a part of the graph.
        supported: the optional operations that the backend has.
        kernels: the kernels that compute several equations.
        values: every open size.
        sums: whether the working element type can hold long sums.
    """

    cost: Cost
    supported: Collection[str]
    kernels: Sequence[Function]
    values: Mapping[str, int]
    sums: bool

    def settled_cost(self, part: Program) -> float:
        """The expected seconds of a part after simplification and algebra, which follow the first kernel selection.

        Kernels are selected again if the products have changed.
        """
        simple = _through(SIMPLIFICATION, part, self)
        settled = _through(ALGEBRA, simple, self)
        if settled is not simple:
            settled = select_kernels(settled, self.cost, self.kernels, self.values)
        return self.cost(settled)


class Pass(NamedTuple):
    """A pass over a program. Without work it returns the same program.

    Attributes:
        name: the field's word for it.
        rewrite: the pass itself.
        needs: what a program must have for it to find work, at least one of `Program.features`; nothing if empty.
    """

    name: str
    rewrite: Callable[[Program, PassContext], Program]
    needs: tuple[str, ...] = ()

    def run(self, program: Program, context: PassContext) -> Program:
        """The program after the pass, which is not entered if there is nothing to do."""
        idle = self.needs and program.features.isdisjoint(self.needs)
        return program if idle else self.rewrite(program, context)


def program_of(graph: Graph) -> Program:
    """The core form of a graph without recurrences."""
    return Program(*function_of(graph))


# ---------------------------------------------------------------------------- the passes

SIMPLIFICATION = (
    Pass("gather pushdown at one position", lambda program, _: push_positions_down(program), ("position",)),
    Pass("contraction fusion", lambda program, _: fuse_contractions(program), ("products", "copy")),
)
"""The passes that always pay."""

ALGEBRA = (
    Pass("distribution", lambda program, c: distribute(program, c.cost), ("add",)),
    Pass("known totals", lambda program, _: drop_known_totals(program), ("add",)),
    *SIMPLIFICATION,
)

KERNELS = Pass(
    "kernel selection", lambda program, c: select_kernels(program, c.settled_cost, c.kernels, c.values)
)
"""Before algebra, which takes some regions apart, and after it where it changed something."""

PIPELINE = (
    Pass("expansion", lambda program, c: expand(program, c.supported), ("function",)),
    SIMPLIFICATION[0],
    Pass("gather pushdown", lambda program, c: push_gathers_down(program, c.cost), ("position",)),
    Pass(
        "reduction pushdown", lambda program, c: push_reductions_down(program, c.cost, c.sums), ("function",)
    ),
    Pass("grouped GEMM", lambda program, c: select_grouped_gemm(program, c.cost, c.supported), ("position",)),
    Pass(
        "kernel selection of convolutions",
        lambda program, c: select_convolutions(program, c.cost, c.supported),
        ("position", "function"),
    ),
    Pass(
        "kernel selection of pooling",
        lambda program, c: select_pooling(program, c.cost, c.supported),
        ("function",),
    ),
    Pass(
        "one-hot elimination",
        lambda program, c: eliminate_one_hots(program, c.cost, c.supported),
        ("position", "function"),
    ),
    KERNELS,
    *SIMPLIFICATION,
    *ALGEBRA,
    KERNELS,
)
"""All passes, in order."""


def optimize(graph: Graph, context: PassContext) -> Program:
    """A graph after all passes: the form that takes least time at given sizes on a given device."""
    return _through(PIPELINE, program_of(graph), context, noted)


def simplify(graph: Graph) -> Program:
    """A graph after the passes that always pay."""
    return _through(SIMPLIFICATION, program_of(graph), _NOTHING)


def _through(
    passes: Iterable[Pass],
    program: Program,
    context: PassContext,
    note: Callable[[str, Program, Program], Program] = lambda name, before, after: after,
) -> Program:
    """The program after some passes. None sees its own result again if nothing has changed that since."""
    made = dict[Pass, Program]()
    for each in passes:
        if made.get(each) is not program:
            made[each] = program = note(each.name, program, each.run(program, context))
    return program


_NOTHING = PassContext(lambda _: 0.0, (), (), {}, True)

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
        write("\n".join([f"# {name}", *shown.lines(), ""]))
    return after
