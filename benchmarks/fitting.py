"""Weights brought into forms, beside tensorly: `python -m benchmarks.fitting`.

A matrix of 768×3072 whose singular values fall as 1/√n, as Tucker and tensor train of six modes; one of products and
noise as CP of four, and a kernel of 128×128×3×3 likewise. Of each the relative error and the processor time of one fit,
on one thread, in turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import tensornet as tn
from tensornet.fitting.approximating import approximate
from tensornet.weights.equations import formed

__all__ = ["CASES", "Case", "measured"]


@dataclass(frozen=True)
class Case:
    """A weight, and the form that it is brought into.

    Attributes:
        shape: of the weight.
        modes: into what its dimensions are split.
        kind: the form: "tucker", "tt" or "cp".
        rank: its ranks.
    """

    shape: tuple[int, ...]
    modes: tuple[tuple[int, ...], ...]
    kind: str
    rank: tuple[int, ...]

    @property
    def name(self) -> str:
        """What it is called in the table."""
        modes = "×".join(str(each) for dim in self.modes for each in dim)
        return f"{self.kind} of {modes}, rank {','.join(map(str, self.rank))}"

    @property
    def tensor(self) -> tuple[int, ...]:
        """The sizes of all modes."""
        return tuple(each for dim in self.modes for each in dim)

    def weight(self) -> Any:
        """An array whose unfolding to the first dimension has singular values 1/√n; for CP a sum of twice as many
        products as are fitted, of norms 1/√n, and half as much noise."""
        draw = np.random.default_rng(0)
        if self.kind == "cp":
            return self._products(draw)
        rows, columns = self.shape[0], int(np.prod(self.shape[1:]))
        left, _ = np.linalg.qr(draw.standard_normal((rows, min(rows, columns))))
        right, _ = np.linalg.qr(draw.standard_normal((columns, min(rows, columns))))
        values = np.arange(1, min(rows, columns) + 1) ** -0.5
        return ((left * values) @ right.T).reshape(self.shape)

    def _products(self, draw: Any) -> Any:
        count = 2 * self.rank[0]
        made = np.arange(1, count + 1)[:, None] ** -0.5 / np.sqrt(np.prod(self.tensor))
        for size in self.tensor:
            made = (made[:, :, None] * draw.standard_normal((count, 1, size))).reshape(count, -1)
        whole = made.sum(axis=0)
        noise = draw.standard_normal(whole.shape)
        noise *= 0.5 * np.linalg.norm(whole) / np.linalg.norm(noise)
        return (whole + noise).reshape(self.shape)

    def ours(self, weight: Any) -> float:
        """Fits by this library; the error."""
        program = formed([(size,) for size in self.shape], self.kind, self.rank, self.modes).program
        return approximate(program, weight).misfit.weight

    def theirs(self, weight: Any) -> float:
        """Fits by tensorly, as it does where nothing is said but ranks, from singular vectors; the error."""
        import tensorly
        from tensorly.decomposition import parafac, tensor_train, tucker

        tensor = weight.reshape(self.tensor)
        with tensorly.backend_context("numpy"):
            if self.kind == "tucker":
                made = tensorly.tucker_to_tensor(tucker(tensor, list(self.rank)))
            elif self.kind == "tt":
                made = tensorly.tt_to_tensor(tensor_train(tensor, [1, *self.rank, 1]))
            else:
                made = tensorly.cp_to_tensor(parafac(tensor, self.rank[0], init="svd"))
        return float(np.linalg.norm(tensor - made) / np.linalg.norm(tensor))


SIX = ((8, 8, 12), (12, 16, 16))

CASES = {
    "usual": (
        Case((768, 3072), SIX, "tucker", (6, 6, 9, 9, 12, 12)),
        Case((768, 3072), SIX, "tt", (8, 48, 96, 96, 16)),
        Case((768, 3072), ((24, 32), (48, 64)), "cp", (24,)),
        Case((128, 128, 3, 3), ((128,), (128,), (3,), (3,)), "cp", (48,)),
    ),
    "tiny": (
        Case((8, 12), ((2, 4), (3, 4)), "tucker", (2, 2, 2, 2)),
        Case((8, 12), ((2, 4), (3, 4)), "tt", (2, 3, 2)),
        Case((8, 12), ((2, 4), (3, 4)), "cp", (2,)),
    ),
}


def measured(case: Case, rounds: int) -> dict[str, tuple[float, float]]:
    """For each library the error, and the median of the seconds of the processor."""
    weight = case.weight()
    libraries: Mapping[str, Callable[[Any], float]] = {"tensornet": case.ours, "tensorly": case.theirs}
    seconds: dict[str, list[float]] = {name: [] for name in libraries}
    errors = {}
    for _ in range(rounds):
        for name, fit in libraries.items():
            begun = time.process_time()
            errors[name] = fit(weight)
            seconds[name].append(time.process_time() - begun)
    return {name: (errors[name], statistics.median(each)) for name, each in seconds.items()}


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=tuple(CASES), default="usual")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print(f"tensornet {tn.__version__}, NumPy {np.__version__}, {os.cpu_count()} cores, one thread\n")
    print("| fit | error | seconds | tensorly's error | tensorly's seconds | time |")
    print("|---|--:|--:|--:|--:|--:|")
    for case in CASES[given.size]:
        found = measured(case, given.rounds)
        (error, seconds), (other, others) = found["tensornet"], found["tensorly"]
        print(
            f"| {case.name} | {error:.4f} | {seconds:.2f} | {other:.4f} | {others:.2f} | {others / seconds:.2f}× |",
            flush=True,
        )


if __name__ == "__main__":
    import warnings

    import threadpoolctl

    warnings.simplefilter("ignore")  # tensorly's, of modes shorter than the rank
    with threadpoolctl.threadpool_limits(1):
        main()
