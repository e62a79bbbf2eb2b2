"""FLOPs of graphs: formulas, counts, and tables of blocks and how often each is called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..device.cost_model import default_profile
from ..display import amount, columns, table
from ..graph.formulas import naive_flops
from ..graph.graph import Graph, of_graph
from ..sizes import as_formula, evaluate, to_sympy, total
from .planner import schedule, whole_sizes
from .plans import CallStep, Plan
from .target import Target


@of_graph
def flop_formula(graph: Graph, /, *, naive: bool = False, **sizes: Any) -> Any:
    """The FLOPs of the contractions, as a formula in the names of the axes.

    Each pairwise step of the plan counts 2 × the product of the sizes of all its axes (a multiplication and an
    addition). With `naive=True`, each contraction as written counts 2 × the product of all of its
    sizes at once. Pointwise functions, functions along axes such as softmax, and sums over a single tensor are not
    counted. Where a window reads a part of a tensor, how much it leaves out is a number in the formula.

    Args:
        graph: a layer or a model.
        naive: count the terms as written instead of a plan's steps.
        **sizes: values of open sizes at which to plan. They decide the order. The formula stays in symbols.

    Example:
        >>> import tensornet as tn
        >>> tn.flop_formula(tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x"))
        2*b*i*o
    """
    return to_sympy(_flops(graph, naive, sizes))


def _flops(graph: Graph, naive: bool, sizes: Mapping[str, Any]) -> Any:
    """The FLOPs in open sizes."""
    if naive:
        return naive_flops(graph)
    return _planned(graph, sizes).flop_formula


def _planned(graph: Graph, sizes: Mapping[str, Any]) -> Plan:
    """The plan of a graph on a device of constants that are the same everywhere."""
    return schedule(graph, Target("numpy", "cpu", "float32", default_profile("cpu"), frozenset()), sizes)


@of_graph
def flop_count(graph: Graph, /, *, naive: bool = False, **sizes: int) -> Any:
    """The FLOPs of the contractions: an `int`, or a formula in the sizes that are still open.

    Args:
        graph: a layer or a model.
        naive: count the terms as written instead of a plan's steps.
        **sizes: values for open sizes.

    Example:
        >>> import tensornet as tn
        >>> tn.flop_count(tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=4, o=2), b=10)
        160
    """
    given = whole_sizes(graph, sizes)
    return as_formula(evaluate(_flops(graph, naive, sizes), {**graph.bound, **given}))


# ---------------------------------------------------------------------------- by block


@dataclass(frozen=True)
class FlopPart:
    """The FLOPs of one block, without those of the blocks that it calls.

    Attributes:
        name: the name of the block. Empty for the graph itself.
        times: how often it is called in total.
        formula: FLOPs of one call, in the names of the axes, with common factors taken out.
        flops: FLOPs of all calls, a number or a formula in the sizes that are still open.
    """

    name: str
    times: int
    formula: Any
    flops: Any


@dataclass(frozen=True)
class FlopTable:
    """FLOPs by block; prints as a table."""

    parts: tuple[FlopPart, ...]

    @property
    def formula(self) -> Any:
        """The FLOPs of all blocks, as a formula."""
        import sympy

        return sympy.Add(*(part.times * part.formula for part in self.parts), evaluate=False)

    @property
    def flops(self) -> Any:
        """The FLOPs of all blocks, a number or a formula in the sizes that are still open."""
        return sum(part.flops for part in self.parts)

    def _rows(self, times: str, spell: Callable[[Any], str]) -> list[tuple[str, str, str, str]]:
        rows = [
            (part.name or "itself", f"{part.times}{times}", spell(part.formula), _shown(part.flops))
            for part in self.parts
        ]
        return [*rows, ("total", "", "", _shown(self.flops))]

    def __str__(self) -> str:
        return columns(self._rows(" ×", str), "<><<", 2)

    def _repr_html_(self) -> str:
        import sympy

        rows = self._rows("", lambda formula: f"${sympy.latex(formula)}$")
        return table(("block", "calls", "FLOPs of one", "of all"), rows, "lrlr")

    def _repr_latex_(self) -> str:
        import sympy

        return rf"$\displaystyle {sympy.latex(self.formula)}$"


def _shown(flops: Any) -> str:
    return amount(flops, "FLOP") if isinstance(flops, int) else str(flops)


@of_graph
def flop_table(graph: Graph, /, **sizes: Any) -> FlopTable:
    """The FLOPs of the contractions by block, each with the formula of one call. See `flop_formula`.

    Args:
        graph: a layer or a model.
        **sizes: values of open sizes at which to plan. They decide the order. The formulas stay in symbols.

    Example:
        >>> import tensornet as tn
        >>> print(tn.flop_table(tn.layer("y[b,o] = x[b,i] * U[r,i] * V[o,r]", inputs="x", i=8, o=8, r=2)))
        itself  1 ×  2*i*o*(b + r)  128*b + 256
        total                       128*b + 256
    """
    import sympy

    plan = _planned(graph, sizes)
    times = Counter({plan: 1})
    for block in (plan, *reversed(list(plan.functions))):  # callers come before the blocks that they call
        for step in (*block.once, *block.steps):
            if isinstance(step, CallStep):
                times[step.plan] += times[block] * step.times
    parts = [("", plan), *((name, block) for block, name in plan.functions.items())]
    found = [(name, times[block], _own(block)) for name, block in parts]
    working = [each for each in found if each[2] != 0] or found[:1]
    return FlopTable(
        tuple(
            FlopPart(name, n, sympy.factor_terms(to_sympy(own)), as_formula(evaluate(n * own, graph.bound)))
            for name, n, own in working
        )
    )


def _own(plan: Plan) -> Any:
    """The FLOPs of the steps of a plan that are not calls."""
    return total(step.flop_formula for step in plan.steps if not isinstance(step, CallStep))
