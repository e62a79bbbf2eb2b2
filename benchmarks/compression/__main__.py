"""Compressed networks of other people beside what people do instead: `python -m benchmarks.compression`."""

from __future__ import annotations

import argparse
import functools
import statistics
import time
import warnings
from collections.abc import Sequence
from typing import Any

import torch

import tensornet as tn

from .networks import Trained, convolutional, recurrent
from .peers import NEAR, PEERS

SIZES = (4, 8, 16, 24)
"""The parts of the bytes that are left: a fourth, …"""


def ours(
    network: torch.nn.Module, batches: Sequence[Any], share: float, activations: str | None = None
) -> list[Any]:
    """This library, with the same batches."""
    found = tn.compress(network, bytes=share, calibrate=batches, activations=activations)
    return [(found.model.eval(), found.allocation.after / found.allocation.before)]


def _timed(networks: Sequence[torch.nn.Module], call: Any) -> list[float]:
    """The median processor time of a call, in turns."""
    times: list[list[float]] = [[] for _ in networks]
    with torch.no_grad():
        for _ in range(15):
            for network, found in zip(networks, times, strict=True):
                start = time.process_time()
                for _ in range(3):
                    network(*call)
                found.append(time.process_time() - start)
    return [statistics.median(each[3:]) for each in times]


def _row(name: str, errors: Sequence[float], share: float, spent: float, speeds: str = "") -> None:
    error, spread = statistics.median(errors), max(errors) - min(errors)
    print(f"  {name:36}{share:7.1%}{error:9.2%}{spread:8.2%}{spent:8.1f} s  {speeds}", flush=True)


def compare(
    name: str,
    seeds: int,
    examples: int,
    sizes: Sequence[int],
    peers: bool,
    steps: int,
    activations: str | None,
) -> None:
    """Prints a table of one network: the share of bytes, errors, their spread over seeds, and the time it took."""

    def make(seed: int, unrolled: bool) -> Trained:
        return recurrent(examples, seed, unrolled) if name == "recurrent" else convolutional(examples, seed)

    whole, loops = ([make(seed, unrolled) for seed in range(seeds)] for unrolled in (False, True))
    dense = whole[0]
    print(f"{name}: dense {dense.error(dense.network):.2%} errors of {examples} examples")
    methods = {"tensornet": functools.partial(ours, activations=activations), **(PEERS if peers else {})}
    for size in sizes:
        print(f" 1/{size} of the bytes{'':24}bytes    errors  spread      made  of the dense time at 1, 16")
        for method, smaller in methods.items():
            trained = whole if method == "tensornet" else loops
            start = time.process_time()
            made = [smaller(each.network, each.batches, 1 / size) for each in trained]
            spent = (time.process_time() - start) / seeds
            found = [
                min(
                    (
                        (each.error(network), share, network)
                        for network, share in some
                        if share <= NEAR / size
                    ),
                    default=None,
                    key=lambda one: one[0],
                )
                for each, some in zip(trained, made, strict=True)
            ]
            best = [each for each in found if each is not None]
            if len(best) < seeds:
                print(f"  {method:36}is larger")
                continue
            speeds = _speeds(best[0][2], dense) if method == "tensornet" else ""
            _row(method, [each[0] for each in best], max(each[1] for each in best), spent, speeds)
            if steps and method == "tensornet":  # weights of the others are dense, and would not stay small
                start = time.process_time()
                for each, (_, _, network) in zip(trained, best, strict=True):
                    tn.distill(network, each.network, each.batches, steps=steps)
                spent = (time.process_time() - start) / seeds
                errors = [each.error(one[2]) for each, one in zip(trained, best, strict=True)]
                _row("  distilled", errors, max(each[1] for each in best), spent)


def _speeds(network: torch.nn.Module, dense: Trained) -> str:
    """The times of calls, as shares of those of the dense network."""
    pairs = (_timed([network, dense.network], call) for call in dense.calls.values())
    return ", ".join(f"{a / b:.2f}" for a, b in pairs)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=("recurrent", "convolutional"), action="append")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--examples", type=int, default=500)
    parser.add_argument("--size", type=int, action="append", help="4, 8, 16, 24 if none is given")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--distill", type=int, default=0, help="steps of training after each of ours")
    parser.add_argument("--activations", choices=("int8",), help="what ours may round them to")
    parser.add_argument("--alone", action="store_true", help="without the others")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(given.threads)
    for name in given.network or ("recurrent", "convolutional"):
        seeds = 1 if given.quick else given.seeds
        sizes, peers = given.size or SIZES, not given.alone
        compare(name, seeds, given.examples, sizes, peers, given.distill, given.activations)


if __name__ == "__main__":
    main()
