"""How often a function over axes moves its data, as time goes: the `passes` of the records.

    python -m benchmarks.passes

Each function along the innermost axis and along the other, on NumPy and PyTorch, beside `x + 1` in the
same process; the time is divided by that of reading the operand and writing the result as `x + 1` does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import tensornet as tn
from tensornet.operations.functions import FUNCTIONS

from .timing import geometric_mean, interleaved

ROWS, COLUMNS = 4096, 768
ADDED = "x + 1"


def contestants(backend: str) -> dict[str, Callable[[], object]]:
    """Every function over axes along both axes of a matrix, and what they are measured by."""
    x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32) / 2 + 1
    array = torch.tensor(x) if backend == "torch" else x
    texts = {ADDED: "y[b,i] = x[b,i] + 1"}
    for row in FUNCTIONS.values():
        if row.kind in ("axis", "reduction") and not row.is_kernel:
            for axis, other in (("i", "b"), ("b", "i")):
                left = "b,i" if row.kind == "axis" else other
                texts[f"{row.name} {axis}"] = f"y[{left}] = {row.name}[{axis}](x[b,i])"
    found: dict[str, Callable[[], object]] = {}
    for name, text in texts.items():
        f = tn.compile(tn.layer(text, inputs="x"), backend=backend)
        found[name] = lambda f=f: f({}, array)  # type: ignore[misc]
    return found


def passes(backend: str) -> dict[str, float]:
    """The passes of each function along each axis."""
    seconds = interleaved(contestants(backend), rounds=9)
    once = seconds.pop(ADDED) / 2  # which reads and writes
    return {
        name: each / once / (2 if FUNCTIONS[name.split()[0]].kind == "axis" else 1)
        for name, each in seconds.items()
    }


def main() -> None:
    """Prints the table; the last columns are the mean of the two libraries, and what the record says."""
    with torch.no_grad():
        found = {backend: passes(backend) for backend in ("numpy", "torch")}
    table = Table("function", "axis", "numpy", "torch", "mean", "record")
    for name in found["numpy"]:
        function, axis = name.split()
        each = [found[backend][name] for backend in found]
        recorded = FUNCTIONS[function].passes[0 if axis == "i" else 1]
        cells = [*(f"{one:.1f}" for one in each), f"{geometric_mean(each):.1f}", f"{recorded:g}"]
        table.add_row(function, "innermost" if axis == "i" else "other", *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
