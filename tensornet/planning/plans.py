"""What a plan is: steps, each an equation over at most a pair of tensors, with their costs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from ..graph.graph import Graph
from ..graph.shape import Axis
from ..language.equation import Equation
from ..language.expression import Ref
from ..operations.functions import Element
from .arrangement import Arrangement

__all__ = ["Alternative", "Plan", "Result", "Step", "human"]


@dataclass(frozen=True)
class Step:
    """One operation of a plan.

    Attributes:
        equation: what it computes; the left side is the order in memory.
        axes: the axes in it, with their sizes, integers or in open sizes.
        flops: FLOPs of a contraction of two tensors, 0 for anything else.
        flop_formula: the same in the names of the axes.
        bytes: bytes read and written.
        seconds: expected time.
        element: what the elements of the result are.
        frees: tensors that are not needed after it.
        arrangement: how a pair is contracted, as a matrix product or otherwise.
    """

    equation: Equation
    axes: tuple[Axis, ...]
    flops: int
    flop_formula: Any
    bytes: int
    seconds: float
    element: Element = Element.NUMBER
    frees: tuple[str, ...] = ()
    arrangement: Arrangement | None = None


@dataclass(frozen=True)
class Result:
    """Where an output of the graph is found when the steps are done."""

    name: str
    value: Ref
    left: tuple[str | tuple[str, ...], ...]
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class Alternative:
    """Another order for the same graph, for comparison."""

    name: str
    flops: int
    bytes: int
    seconds: float
    peak_memory: int


@dataclass(frozen=True)
class Plan:
    """The order in which a graph is computed on a device, as data.

    Attributes:
        graph: what is computed, as the user wrote it.
        backend, device, dtype: what it was planned for.
        sizes: the sizes it was planned at, name and value.
        assumed: the names among them that nobody gave a value.
        steps: the operations, in order.
        results: where the outputs are.
        peak_memory: bytes of the tensors alive at the worst step, inputs and parameters included.
        alternatives: other orders ("as written", "fewest FLOPs"), for comparison.
        code: the source of the Python function that runs.
    """

    graph: Graph
    backend: str
    device: str
    dtype: str
    sizes: tuple[tuple[str, int], ...]
    steps: tuple[Step, ...]
    results: tuple[Result, ...]
    peak_memory: int
    assumed: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    code: str = field(default="", repr=False)

    @property
    def flops(self) -> int:
        """FLOPs of the contractions: 2 × the product of all axes of each pairwise step."""
        return sum(step.flops for step in self.steps)

    @property
    def flop_formula(self) -> Any:
        """The same as a sympy expression in the names of the axes."""
        import sympy

        return sum((step.flop_formula for step in self.steps), sympy.Integer(0))

    @property
    def bytes(self) -> int:
        """Bytes read and written by the steps."""
        return sum(step.bytes for step in self.steps)

    @property
    def seconds(self) -> float:
        """Expected time on the device."""
        return sum(step.seconds for step in self.steps)

    def __str__(self) -> str:
        lines = [f"plan for {self.backend} on {self.device}, {self.dtype}{self._shown_sizes()}"]
        shown = [str(step.equation) for step in self.steps]
        width = min(76, max((len(text) for text in shown), default=0))
        for number, (text, step) in enumerate(zip(shown, self.steps, strict=True), 1):
            cost = (
                f"{human(step.flops, 'FLOP'):>12}  {human(step.bytes, 'B'):>9}  {human(step.seconds, 's'):>9}"
            )
            lines.append(f"{number:3}  {text:<{width}}  {cost}")
        rows = [
            Alternative("this plan", self.flops, self.bytes, self.seconds, self.peak_memory),
            *self.alternatives,
        ]
        for row in rows:
            ratio = (
                ""
                if row.name == "this plan" or not self.seconds
                else f"  ({row.seconds / self.seconds:.2f}× the time)"
            )
            lines.append(
                f"     {row.name + ':':<15} {human(row.flops, 'FLOP')}, {human(row.bytes, 'B')} moved,"
                f" peak {human(row.peak_memory, 'B')}, expected {human(row.seconds, 's')}{ratio}"
            )
        return "\n".join(lines)

    def _shown_sizes(self) -> str:
        given = [f"{name}={value:,}" for name, value in self.sizes if name not in self.assumed]
        assumed = [f"{name}={value:,}" for name, value in self.sizes if name in self.assumed]
        text = f", at {', '.join(given)}" if given else ""
        return text + (f", assuming {', '.join(assumed)}" if assumed else "")

    def to_json(self) -> str:
        """The plan as JSON: what it is for, the steps as equations with their costs, the code."""
        document = {
            "format": "tensornet.plan",
            "version": 1,
            "backend": self.backend,
            "device": self.device,
            "dtype": self.dtype,
            "sizes": dict(self.sizes),
            "assumed": list(self.assumed),
            "graph": json.loads(self.graph.to_json()),
            "steps": [
                {
                    "equation": str(step.equation),
                    "axes": {axis.name: str(axis.size) for axis in step.axes},
                    "flops": step.flops,
                    "flop_formula": str(step.flop_formula),
                    "bytes": step.bytes,
                    "seconds": step.seconds,
                    "frees": list(step.frees),
                }
                for step in self.steps
            ],
            "flops": self.flops,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "peak_memory": self.peak_memory,
            "alternatives": [asdict(each) for each in self.alternatives],
            "code": self.code,
        }
        return json.dumps(document, indent=1)


def human(amount: float, unit: str) -> str:
    """An amount with three digits and a prefix: `1.84 GFLOP`, `38.5 MB`, `44 ms`."""
    if amount == 0:
        return f"0 {unit}"
    prefixes = [
        (1e12, "T"),
        (1e9, "G"),
        (1e6, "M"),
        (1e3, "k"),
        (1, ""),
        (1e-3, "m"),
        (1e-6, "µ"),
        (1e-9, "n"),
    ]
    for scale, prefix in prefixes:
        if amount >= scale:
            return f"{amount / scale:.3g} {prefix}{unit}"
    return f"{amount:.3g} {unit}"
