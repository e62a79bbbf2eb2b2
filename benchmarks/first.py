"""What a first result costs in a new process, while others are busy: seconds of a processor, import included.

    python -m benchmarks.first

The first process measures the device and plans, the later ones find both in a folder of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Annotated

import typer

LAYER = "tn.layer('y[b,o] = x[b,i]*W[o,i] + u[o]', inputs='x', i=32, o=16)"
WORK: Mapping[str, str] = {
    "numpy": f"""
import numpy, tensornet as tn
graph = {LAYER}
tn.compile(graph, backend="numpy")(tn.init(graph, seed=0), numpy.ones((8, 32), "float32"))
""",
    "torch": f"""
import torch, tensornet as tn
tn.module({LAYER})(torch.ones(8, 32))
""",
    "jax": f"""
import jax.numpy, tensornet as tn
graph = {LAYER}
tn.compile(graph, backend="jax")(tn.init(graph, seed=0, backend="jax"), jax.numpy.ones((8, 32)))
""",
}
"""The first result of each library."""


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes at work meanwhile."""
    with ExitStack() as running:
        for _ in range(count):
            process = running.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            running.callback(process.kill)
        yield


def seconds(code: str, folder: str) -> tuple[float, float]:
    """Those of a processor, and those of the clock, that a process takes whose constants and plans are in a folder."""
    import resource  # there is none on Windows

    environment = {**os.environ, "TENSORNET_CACHE": folder, "TENSORNET_CALIBRATE": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    clock, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, clock


def main(
    others: Annotated[int, typer.Option(help="How many processes are busy meanwhile.")] = 2,
    processes: Annotated[int, typer.Option(help="How many follow one another.")] = 3,
) -> None:
    """Say what a first result costs with each library."""
    for name, code in WORK.items():
        with tempfile.TemporaryDirectory() as folder, busy(others):
            for number in range(processes):
                processor, clock = seconds(code, folder)
                print(
                    f"{name}, process {number + 1}: {processor:.2f} s of a processor, {clock:.2f} s",
                    flush=True,
                )


if __name__ == "__main__":
    typer.run(main)
