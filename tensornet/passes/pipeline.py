"""The pass pipeline: what is done to a graph before it is lowered, in order.

A pass takes a graph without calls and gives one that computes the same. It is not entered where no equation has what
it looks for. `tn.plan(..., trace=True)` prints the equations after each pass that changed them. Before these passes
`planning.planner` outlines blocks and makes scans of recurrences; after them it lowers, and folds constants.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeAlias

from ..graph.graph import Graph
from ..language.affine import is_window
from ..language.equation import Equation
from ..language.expression import Call, Ref, is_told
from ..ops.pointwise import WHERE
from ..ops.table import FUNCTIONS, Function
from .algebraic_simplification import drop_known_totals, drop_tautologies
from .common_subexpressions import eliminate_common_subexpressions
from .convolution import select_convolutions, select_pooling
from .dead_code import eliminate_dead_code
from .distribute import distribute
from .expansion import expand, is_made_of_others
from .fuse import fuse_contractions
from .gather_pushdown import push_gathers_down, push_positions_down
from .grouped_gemm import select_grouped_gemm
from .horizontal_fusion import fuse_horizontally
from .kernel_selection import select_kernels
from .one_hot_elimination import eliminate_one_hots
from .reduction_pushdown import push_reductions_down
from .rewriter import Cost

__all__ = [
    "PIPELINE",
    "SIMPLIFICATION",
    "Context",
    "Pass",
    "is_traced",
    "noted",
    "optimize",
    "simplify",
    "traced",
]


@dataclass(frozen=True)
class Context:
    """What passes ask while a graph is planned.

    Attributes:
        cost: the expected seconds of a part of the graph.
        supported: the operations that the backend has, of those that it need not have.
        kernels: the kernels that compute several equations.
        values: every open size.
        sums: whether numbers of the working type hold long sums.
    """

    cost: Cost
    supported: Collection[str]
    kernels: Sequence[Function]
    values: Mapping[str, int]
    sums: bool

    def settled_cost(self, part: Graph) -> float:
        """The expected seconds of a part after the passes that follow the first kernel selection."""
        return self.cost(_through(ALGEBRA, part, self))


Run: TypeAlias = "Callable[[Graph, Context], Graph]"
Needs: TypeAlias = "Callable[[object], bool]"
"""Whether a part of an equation is one that a pass looks for."""


@dataclass(frozen=True)
class Pass:
    """A pass over the equations of a graph.

    Attributes:
        name: the field's word for it.
        run: the pass itself.
        needs: one part of one equation must be such, or the pass is not entered; none need be if not given.
        always: whether it always pays; else it asks the cost of each change.
    """

    name: str
    run: Run
    needs: Needs | None = None
    always: bool = False

    def finds_work(self, graph: Graph) -> bool:
        """Whether the graph has what the pass looks for."""
        return self.needs is None or any(map(self.needs, _parts(graph.own)))


def _parts(equations: Iterable[Equation]) -> Iterator[object]:
    return (part for equation in equations for part in equation.parts)


# ---------------------------------------------------------------------------- what passes look for


def _reads_position(part: object) -> bool:
    """`x[b,0]`."""
    return isinstance(part, Ref) and any(isinstance(entry, int) for entry in part.index)


def _gathers(part: object) -> bool:
    """`x[b,t[n]]`."""
    return isinstance(part, Ref) and any(isinstance(entry, Ref) for entry in part.index)


def _has_windows(part: object) -> bool:
    """`x[b,2*p+u]`."""
    return isinstance(part, Ref) and any(is_told(entry) and is_window(entry) for entry in part.index)


def _is_one_hot(part: object) -> bool:
    """`onehot[v](t[b])`."""
    return isinstance(part, Call) and bool(FUNCTIONS[part.function].selects)


def _averages(part: object) -> bool:
    """`mean[n](x[n])`."""
    return isinstance(part, Call) and FUNCTIONS[part.function].averages


def _windows_or_ones(part: object) -> bool:
    return _has_windows(part) or _is_one_hot(part)


def _calls_to(*names: str) -> Needs:
    """Calls of some functions."""
    return lambda part: isinstance(part, Call) and part.function in names


# ---------------------------------------------------------------------------- the passes

DEAD_CODE = Pass("dead code elimination", lambda graph, _: eliminate_dead_code(graph), always=True)
SUBEXPRESSIONS = Pass(
    "common subexpression elimination", lambda graph, _: eliminate_common_subexpressions(graph), always=True
)
AT_POSITION = Pass(
    "gather pushdown at one position",
    lambda graph, _: push_positions_down(graph),
    _reads_position,
    always=True,
)
FUSION = Pass("contraction fusion", lambda graph, _: fuse_contractions(graph), always=True)

SIMPLIFICATION = (DEAD_CODE, AT_POSITION, SUBEXPRESSIONS, FUSION, DEAD_CODE)
"""The passes that always pay."""

ALGEBRA = (
    *SIMPLIFICATION,
    Pass("distribution", lambda graph, c: distribute(graph, c.cost), _calls_to("add")),
    Pass("known totals", lambda graph, _: drop_known_totals(graph), _calls_to("add"), always=True),
    *SIMPLIFICATION,
)

PIPELINE = (
    Pass("expansion", lambda graph, c: expand(graph, c.supported), is_made_of_others, always=True),
    DEAD_CODE,
    SUBEXPRESSIONS,
    AT_POSITION,
    Pass("gather pushdown", lambda graph, c: push_gathers_down(graph, c.cost), _gathers),
    Pass("reduction pushdown", lambda graph, c: push_reductions_down(graph, c.cost, c.sums), _averages),
    Pass("grouped GEMM", lambda graph, c: select_grouped_gemm(graph, c.cost, c.supported), _gathers),
    Pass(
        "kernel selection of convolutions",
        lambda graph, c: select_convolutions(graph, c.cost, c.supported, simplify),
        _windows_or_ones,
    ),
    Pass(
        "kernel selection of pooling",
        lambda graph, c: select_pooling(graph, c.cost, c.supported),
        _has_windows,
    ),
    Pass("one-hot elimination", lambda graph, c: eliminate_one_hots(graph, c.cost, c.supported), _is_one_hot),
    Pass(
        "kernel selection before algebra",
        lambda graph, c: select_kernels(graph, c.settled_cost, c.kernels, c.values),
    ),
    *ALGEBRA,
    Pass("kernel selection", lambda graph, c: select_kernels(graph, c.cost, c.kernels, c.values)),
    Pass("tautologies", lambda graph, _: drop_tautologies(graph), _calls_to(WHERE.name), always=True),
    Pass("horizontal fusion", lambda graph, c: fuse_horizontally(graph, c.cost)),
    *SIMPLIFICATION,
)
"""All passes, in order."""


def optimize(graph: Graph, context: Context) -> Graph:
    """The graph after all passes: the form that takes least time at some sizes on some device."""
    for each in PIPELINE:
        if each.finds_work(graph):
            graph = noted(each.name, graph, each.run(graph, context))
    return graph


def simplify(graph: Graph) -> Graph:
    """The graph after the passes that always pay."""
    return _through(SIMPLIFICATION, graph, _NOTHING)


def _through(passes: Iterable[Pass], graph: Graph, context: Context) -> Graph:
    for each in passes:
        if each.finds_work(graph):
            graph = each.run(graph, context)
    return graph


_NOTHING = Context(lambda _: 0.0, (), (), {}, True)

# ---------------------------------------------------------------------------- the trace

_TRACE: ContextVar[Callable[[str], object] | None] = ContextVar("trace", default=None)


@contextlib.contextmanager
def traced(write: Callable[[str], object] | None) -> Iterator[None]:
    """Writes the equations of each graph that is planned inside, and those after each pass that changes them."""
    token = _TRACE.set(write)
    try:
        yield
    finally:
        _TRACE.reset(token)


def is_traced() -> bool:
    """Whether passes are to be shown."""
    return _TRACE.get() is not None


def noted(name: str, before: Graph | None, after: Graph) -> Graph:
    """The graph after a pass, which the trace shows where it is another than before."""
    write = _TRACE.get()
    if write is not None and after != before:
        write("\n".join([f"# {name}", *after.lines(), ""]))
    return after
