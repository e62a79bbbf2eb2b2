"""The model of time against the clock: how far off it is, and whether the order that it chooses is the fastest.

    python -m benchmarks.model

Random contractions of three to five operands are computed along every tree of pairs; of those that take
part, the fastest measured is held against the one that is chosen. Then every step of small presets that
contracts a pair is timed alone. Expected and measured time are compared by their quotient and by the rank
correlation. The constants are measured first; `--built-in` takes those of the library.
"""

from __future__ import annotations

import itertools
import math
import random
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

import tensornet as tn
from tensornet.codegen.context import TABLES_NAME
from tensornet.codegen.function import generate
from tensornet.contraction.order_search import Search, Tree, fastest
from tensornet.contraction.pairs import Choose, Layout, Order, Problem
from tensornet.device.calibration import measure
from tensornet.device.cost_model import DeviceProfile, default_profile, keep_freed
from tensornet.device.timing import Clock
from tensornet.lowering.lower import lower
from tensornet.passes.pipeline import program_of
from tensornet.planning.plans import Plan, Step
from tensornet.planning.target import Target
from tensornet.protocol import load_backend
from tensornet.sizes import evaluate

SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 200, 256)
ELEMENTS = (1e4, 4e6)
"""The least and the most that the largest of the operands and the result has."""

FLOPS = 4e9
"""The most that the order of fewest FLOPs takes."""

HOPELESS = 6.0
"""A tree that is expected to take so many times as long as the best is not run."""

PRESETS = ("vit_b_16", "swin_t", "tensor_swin_t")
"""The models whose steps are timed, with one example a batch."""

TORCH = load_backend("torch")
NAMES = dict(TORCH.namespace())


@dataclass(frozen=True)
class Drawn:
    """A contraction of random operands."""

    layouts: tuple[Layout, ...]
    kept: Layout
    sizes: Mapping[str, int]

    def graph(self) -> tn.Graph:
        names = [f"x{number}" for number in range(len(self.layouts))]
        terms = [f"{name}[{','.join(each)}]" for name, each in zip(names, self.layouts, strict=True)]
        return tn.layer(f"y[{','.join(self.kept)}] = {' * '.join(terms)}", inputs=names, **dict(self.sizes))

    def count(self, axes: Sequence[str]) -> int:
        return torch.Size([self.sizes[axis] for axis in axes]).numel()


@dataclass(frozen=True)
class Compared:
    """Expected and measured seconds, and by how much a faster one was missed."""

    expected: float
    measured: float
    loss: float = 1.0


def drawn(seed: int) -> Iterator[Drawn]:
    """Random contractions without end: axes in one operand or several, kept or summed, the result in any order."""
    import opt_einsum

    draw = random.Random(seed)
    while True:
        count = draw.randint(3, 5)
        letters = "abcdefgh"[: draw.randint(3, count + 3)]
        layouts = tuple(
            tuple(draw.sample(letters, draw.randint(1, min(4, len(letters))))) for _ in range(count)
        )
        flat = list(itertools.chain(*layouts))
        kept = [axis for axis in sorted(set(flat)) if flat.count(axis) == 1 or draw.random() < 0.4]
        draw.shuffle(kept)
        each = Drawn(layouts, tuple(kept), {axis: draw.choice(SIZES) for axis in sorted(set(flat))})
        largest = max(map(each.count, (*layouts, kept)))
        if not kept or len(set(flat)) == len(flat) or not ELEMENTS[0] <= largest <= ELEMENTS[1]:
            continue
        equation = f"{','.join(map(''.join, layouts))}->{''.join(kept)}"
        shapes = [[each.sizes[axis] for axis in layout] for layout in layouts]
        _, path = opt_einsum.contract_path(equation, *shapes, shapes=True, optimize="optimal")
        if path.opt_cost <= FLOPS:
            yield each


def trees(present: tuple[int, ...], made: int) -> Iterator[Tree]:
    """Every way to contract tensors in pairs, the next result under the number `made`."""
    if len(present) == 1:
        yield ()
    for one, other in itertools.combinations(present, 2):
        rest = (*(each for each in present if each not in (one, other)), made)
        for tree in trees(rest, made + 1):
            yield ((one, other), *tree)


def compiled(
    graph: tn.Graph, choose: Choose, profile: DeviceProfile
) -> tuple[Callable[..., Any], str, float]:
    """The function of a graph whose contraction is ordered so, its source, and the seconds expected of it."""
    expected: list[float] = []

    def noted(problem: Problem) -> Order:
        order = choose(problem)
        expected.append(sum(pair.way.seconds for pair in order))
        return order

    target = Target("torch", "cpu", "float32", profile, frozenset(TORCH.templates))
    steps, results = lower(program_of(graph), {}, target, noted)
    source = generate(Plan(graph, "torch", "cpu", "float32", (), steps, results, 0), TORCH)
    names = dict(NAMES)
    exec(source, names)
    return names["forward"], source, sum(expected)


def contraction(each: Drawn, profile: DeviceProfile, clock: Clock) -> Compared:
    """The order chosen for a contraction against the fastest of its trees; results lie as each leaves them."""
    graph, count = each.graph(), len(each.layouts)
    operands = [torch.randn([each.sizes[axis] for axis in layout]) for layout in each.layouts]
    ways = [compiled(graph, fastest, profile)]
    for tree in trees(tuple(range(count)), count):
        ways.append(compiled(graph, lambda problem, tree=tree: Search(problem).along(tree)[1], profile))
    found = {source: (function, seconds) for function, source, seconds in reversed(ways)}
    least = min(seconds for _, seconds in found.values())
    runs = {
        source: partial(function, *operands)
        for source, (function, seconds) in found.items()
        if seconds <= HOPELESS * least or source == ways[0][1]
    }
    once = {source: min(clock.sample(run, 1) for _ in range(2)) for source, run in runs.items()}
    best = sorted(once, key=once.__getitem__)[:4]
    seconds = medians({source: runs[source] for source in {*best, ways[0][1]}}, clock)
    chosen = seconds[ways[0][1]]
    return Compared(ways[0][2], chosen, chosen / min(seconds.values()))


def medians(runs: Mapping[str, Callable[[], object]], clock: Clock) -> dict[str, float]:
    """Seconds of each, taking turns for about a tenth of a second."""
    once = sum(clock.sample(run, 1) for run in runs.values())
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(max(7, min(60, round(0.1 / once)))):
        for name, run in runs.items():
            times[name].append(clock.sample(run, 1))
    return {name: statistics.median(each) for name, each in times.items()}


# ---------------------------------------------------------------------------- the steps of a model


def steps(name: str, profile: DeviceProfile, clock: Clock, rounds: int = 5) -> Iterator[Compared]:
    """Every line of the code of a preset, where it stands, at one example a batch."""
    graph = tn.models.create(name)
    plan = tn.plan(
        graph, backend="torch", profile=profile, compare=False, **dict.fromkeys(graph.open_sizes, 1)
    )
    expected = {
        (function, step.shown(plan.functions)): step.seconds
        for part, function in {**plan.functions, plan: "forward"}.items()
        for step in part.steps
        if isinstance(step, Step)
    }
    marks: list[tuple[tuple[str, ...], float]] = []
    names = {**NAMES, "mark": lambda *line: marks.append((line, clock.now()))}
    exec("\n".join(_marked(plan.code)), names)
    drawn = dict(tn.module(graph, seed=0).named_parameters())  # other weights let numbers run out of range
    given = [
        drawn[leaf.name].detach() if leaf.name in drawn else torch.randn([*map(int, _shape(leaf, graph))])
        for leaf in _leaves(graph)
    ]
    if TABLES_NAME in names:  # of no constants, and of one example a batch
        made = names[TABLES_NAME]
        given += made(torch.empty(0), *[1] * (made.__code__.co_argcount - 1))
    times: dict[tuple[str, ...], list[float]] = {}
    with torch.no_grad():
        for _ in range(rounds):
            marks.clear()
            names["forward"](*given)
            for (_, before), (line, after) in itertools.pairwise(marks):
                times.setdefault(line, []).append(after - before)
    for line, seconds in times.items():
        equations = [(line[0], each) for each in line[1:]] if line else []
        if equations and all(each in expected for each in equations):
            yield Compared(sum(expected[each] for each in equations), statistics.median(seconds))


def _marked(code: str) -> Iterator[str]:
    """Code that notes the time after every line that computes something, and where such lines begin."""
    function = ""
    for line in code.splitlines():
        found = re.match(r"def (\w+)", line)
        function = found[1] if found else function
        text, hash_, remark = line.partition("  # ")
        if hash_:
            indent = text[: len(text) - len(text.lstrip())]
            yield f"{indent}mark()"
            yield text
            yield f"{indent}mark({', '.join(map(repr, (function, *remark.split('; '))))})"
        else:
            yield line


def _leaves(graph: tn.Graph) -> Iterator[Any]:
    yield from (*graph.inputs, *graph.parameters, *graph.constants)


def _shape(leaf: Any, graph: tn.Graph) -> Iterator[Any]:
    """The sizes of a leaf at one example a batch."""
    for size in leaf.shape:
        yield evaluate(size, {**graph.bound, **dict.fromkeys(graph.open_sizes, 1)})


# ---------------------------------------------------------------------------- the command


def shown(rows: Mapping[str, Sequence[Compared]]) -> Table:
    """Expected against measured, a line for each kind of work."""
    table = Table(title=f"the model of time, torch {torch.__version__}, {torch.get_num_threads()} threads")
    for heading in ("work", "cases", "measured / expected", "10 to 90 %", "in 0.6–1.7", "rank"):
        table.add_column(heading, justify="left" if heading == "work" else "right")
    for name, found in rows.items():
        ratios = sorted(each.measured / each.expected for each in found)
        low, high = (ratios[round(part * (len(ratios) - 1))] for part in (0.1, 0.9))
        close = sum(0.6 <= ratio <= 1.7 for ratio in ratios) / len(ratios)
        order = rank([each.expected for each in found], [each.measured for each in found])
        middle = f"{statistics.median(ratios):.2f}"
        table.add_row(
            name, f"{len(found)}", middle, f"{low:.2f} to {high:.2f}", f"{100 * close:.0f} %", f"{order:.3f}"
        )
    return table


def rank(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's rank correlation."""
    places = ([sorted(each).index(value) for value in each] for each in (one, other))
    return statistics.correlation(*places)


def main(
    count: Annotated[int, typer.Option(help="Random contractions.")] = 200,
    threads: Annotated[int, typer.Option(help="Threads of the processor.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
    built_in: Annotated[bool, typer.Option("--built-in", help="The constants of the library.")] = False,
    clock: Annotated[str, typer.Option(help="wall, or process: where others use the machine too.")] = "wall",
) -> None:
    """Expected against measured time, of random contractions and of the steps of small presets."""
    torch.set_num_threads(threads)
    keep_freed()
    profile = default_profile("cpu") if built_in else measure(TORCH, "cpu", patience=math.inf)
    read = Clock(now=time.process_time if clock == "process" else time.perf_counter)
    found = [contraction(each, profile, read) for each in itertools.islice(drawn(seed), count)]
    rows = {"contractions of 3 to 5 operands": found}
    rows |= {f"steps of {name}": list(steps(name, profile, read)) for name in PRESETS}
    console = Console(width=110)
    console.print(shown(rows))
    losses = sorted(each.loss for each in found)
    close = sum(loss <= 1.15 for loss in losses) / len(losses)
    console.print(
        f"the chosen order is within 15 % of the fastest tree in {100 * close:.1f} %, at most {losses[-1]:.2f}×"
    )
    if not profile.is_steady:
        console.print("the constants were measured while the device had other work")


if __name__ == "__main__":
    typer.run(main)
