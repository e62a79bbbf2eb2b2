"""FLOP tables: the FLOPs of each block, and how often it is called."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from ..device.model import default_profile
from ..display import amount, table
from ..graph.graph import Graph, of_graph
from ..sizes import as_formula, evaluate, to_sympy, total
from .planner import schedule
from .plans import CallStep, Plan

__all__ = ["FlopPart", "FlopTable", "flop_table"]


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

    def _rows(self) -> list[tuple[str, str, str, str]]:
        rows = [
            (part.name or "itself", f"{part.times} ×", str(part.formula), _shown(part.flops))
            for part in self.parts
        ]
        return [*rows, ("total", "", "", _shown(self.flops))]

    def __str__(self) -> str:
        rows = self._rows()
        widths = [max(len(row[n]) for row in rows) for n in range(3)]
        return "\n".join(
            f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:<{widths[2]}}  {row[3]}".rstrip()
            for row in rows
        )

    def _repr_html_(self) -> str:
        import sympy

        rows = [
            (part.name or "itself", str(part.times), f"${sympy.latex(part.formula)}$", _shown(part.flops))
            for part in self.parts
        ]
        return table(
            ("block", "calls", "FLOPs of one", "of all"), [*rows, ("total", "", "", _shown(self.flops))]
        )

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

    plan = schedule(graph, "numpy", "cpu", "float32", default_profile("cpu"), None, False, sizes)
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
