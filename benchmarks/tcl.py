"""Tensor contraction layers, forward: tensornet, tensorly-torch, opt_einsum, torch.einsum.

    python -m benchmarks.tcl

One process, interleaved runs, medians; only the ratios carry from machine to machine.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable

import opt_einsum
import torch
from rich.console import Console
from rich.table import Table

import tensornet as tn

from .timing import geometric_mean, interleaved

SHAPES = [
    (100_352, (4, 4, 6), (4, 4, 6)),
    (25_088, (4, 4, 12), (4, 4, 12)),
    (6_272, (4, 8, 12), (4, 8, 12)),
    (6_272, (8, 8, 6), (8, 16, 12)),
    (1_568, (8, 8, 12), (8, 8, 12)),
    (50_176, (4, 4, 3), (4, 4, 6)),
]
"""Patches, sizes, ranks: stages of a tensorized Swin Transformer on 224×224 images, batch 32."""


def contestants(
    batch: int, sizes: tuple[int, ...], ranks: tuple[int, ...]
) -> dict[str, Callable[[], object]]:
    """One TCL forward by each library, on the same numbers; checks that they agree."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tltorch

        peer = tltorch.TCL(sizes, ranks, bias=False)
    layer = tn.models.tcl(sizes, ranks)
    ours = tn.module(layer, seed=0, plan_at={"lead": batch})
    factors = [parameter.detach() for parameter in ours.parameters()]
    peer_factors = [parameter for name, parameter in peer.named_parameters() if "factor" in name]
    with torch.no_grad():
        for target, source in zip(peer_factors, factors, strict=True):
            target.copy_(source)
    x = torch.randn(batch, *sizes)
    equation = "bijk,pi,qj,rk->bpqr"
    planned = opt_einsum.contract_expression(equation, x.shape, *[f.shape for f in factors])
    runs: dict[str, Callable[[], object]] = {
        "tensornet": lambda: ours(x),
        "tltorch": lambda: peer(x),
        "opt_einsum": lambda: planned(x, *factors),
        "torch.einsum": lambda: torch.einsum(equation, x, *factors),
    }
    expected = torch.einsum(equation, x.double(), *[f.double() for f in factors])
    for name, run in runs.items():
        assert torch.allclose(run().double(), expected, atol=1e-4), name  # type: ignore[attr-defined]
    return runs


def main() -> None:
    """Prints the table, and as JSON with `--json`."""
    rows = []
    with torch.no_grad():
        for batch, sizes, ranks in SHAPES:
            times = interleaved(contestants(batch, sizes, ranks))
            rows.append({"shape": f"{batch:,} × {sizes} → {ranks}", "seconds": times})
    if "--json" in sys.argv:
        print(json.dumps(rows, indent=1))
        return
    table = Table(
        title=f"TCL forward, {torch.get_num_threads()} threads, torch {torch.__version__}: median ms"
    )
    for heading in ("shape", *rows[0]["seconds"], "× tltorch", "× better of tltorch, opt_einsum"):  # type: ignore[misc]
        table.add_column(heading, justify="left" if heading == "shape" else "right")
    speedups, against_best = [], []
    for row in rows:
        times = row["seconds"]
        assert isinstance(times, dict)
        speedups.append(times["tltorch"] / times["tensornet"])
        against_best.append(min(times["tltorch"], times["opt_einsum"]) / times["tensornet"])
        cells = [f"{1e3 * seconds:.2f}" for seconds in times.values()]
        table.add_row(str(row["shape"]), *cells, f"{speedups[-1]:.2f}", f"{against_best[-1]:.2f}")
    Console(width=140).print(table)
    print(
        f"geometric mean against tltorch: {geometric_mean(speedups):.2f}×;"
        f" lowest against the better of tltorch and opt_einsum: {min(against_best):.2f}×"
    )


if __name__ == "__main__":
    main()
