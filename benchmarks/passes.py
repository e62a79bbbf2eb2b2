"""How often a function goes through its data, as time goes: the `passes` of the records.

    python -m benchmarks.passes

Each function along the innermost axis and along the other, on NumPy and PyTorch, of what the caches hold, beside
`x + 1` and `normalize` in the same process. One pass is `x + 1`; what a function takes beyond it is told in
passes of `normalize`, to which its record gives how many it has.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import tensornet as tn
from tensornet.device.timing import timings
from tensornet.ops.table import FUNCTIONS

ROWS, COLUMNS = 512, 768
ADDED = "x + 1"


def contestants(backend: str) -> dict[str, Callable[[], object]]:
    """Every function over axes along both axes of a matrix, and what they are measured by."""
    x = np.random.default_rng(0).uniform(0.5, 1.5, (ROWS, COLUMNS)).astype(np.float32)
    array = torch.tensor(x) if backend == "torch" else x
    texts = {ADDED: "y[b,i] = x[b,i] + 1"}
    for row in FUNCTIONS.values():
        if row.arity[0] > 1 or row.is_kernel or row.axes == "exchanged" or row.trains:
            continue
        if row.kind == "pointwise":
            texts[f"{row.name} i"] = f"y[b,i] = {row.name}(x[b,i])"
        elif row.kind in ("axis", "reduction"):
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
    seconds = {name: each.median for name, each in timings(contestants(backend), 9).items()}
    added = seconds.pop(ADDED)
    computed = (seconds["normalize i"] - added) / (FUNCTIONS["normalize"].passes[0] - 1.0)
    found = {}
    for name, each in seconds.items():
        part = 0.5 if FUNCTIONS[name.split()[0]].kind == "reduction" else 1.0  # of what is moved
        found[name] = 1.0 + max(0.0, each - part * added) / (part * computed)
    return found


def main() -> None:
    """Prints the table; the last columns are the mean of the two libraries, and what the record says."""
    with torch.no_grad():
        found = {backend: passes(backend) for backend in ("numpy", "torch")}
    table = Table("function", "axis", "numpy", "torch", "mean", "record")
    for name in found["numpy"]:
        function, axis = name.split()
        each = [found[backend][name] for backend in found]
        recorded = FUNCTIONS[function].passes[0 if axis == "i" else 1]
        cells = [*(f"{one:.1f}" for one in each), f"{statistics.geometric_mean(each):.1f}", f"{recorded:g}"]
        table.add_row(function, "innermost" if axis == "i" else "other", *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
