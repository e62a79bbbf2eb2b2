"""Finding the order that is fastest on a device: opt_einsum's search under the time model.

plan(graph) = rewrite, choose a tree of pairs for every contraction, lower, generate
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import opt_einsum
from opt_einsum.paths import PathOptimizer

from .calibration import profile_of
from .codegen import generate
from .device import DeviceProfile, default_profile, element_type, itemsize
from .errors import BackendError, ShapeError
from .formula import naive_flop_formula
from .graph import Graph
from .lowering import lower, peak_memory
from .protocol import Backend, load_backend
from .rewrite import distribute, simplify
from .schedule import Alternative, Plan
from .search import Choose, Order, Problem, Search, Tree, left_to_right, path_of, tree_of
from .sizes import evaluate

__all__ = ["flop_count", "flop_formula", "plan"]

NOMINAL = 64
"""The size assumed for an open axis when none is given."""

EXHAUSTIVE = 6
"""Up to so many operands every order is considered, whatever comes out on the way."""


# ---------------------------------------------------------------------------- search


class FastestOrder(PathOptimizer):  # type: ignore[misc]
    """opt_einsum's interface to the exhaustive search under the time model, for few operands.

    Of each subset of the operands the fastest way is kept for every order in memory in which the
    result may come out, so the cost of permutations between steps is counted, and outer products
    are candidates like any other.

    Args:
        profile: the device.
        itemsize: bytes of one element.
    """

    def __init__(self, profile: DeviceProfile, itemsize: int = 4) -> None:
        self.profile, self.itemsize = profile, itemsize

    def __call__(
        self,
        inputs: Sequence[Any],
        output: Any,
        size_dict: Mapping[str, int],
        memory_limit: int | None = None,
    ) -> list[tuple[int, ...]]:
        """A path in opt_einsum's form; axes lie in memory in sorted order."""
        layouts = tuple(tuple(sorted(each)) for each in inputs)
        problem = Problem(layouts, frozenset(output), None, dict(size_dict), self.profile, self.itemsize)
        return path_of(Search(problem).exhaustive()[1], len(inputs))


def _local_time(problem: Problem) -> Callable[..., None]:
    """The time model as a cost function for opt_einsum's dynamic programming.

    Orders in memory are left out: axes count only by the group of the matrix product they form.
    """
    numbers = _numbered(problem)
    sizes = [problem.sizes[name] for name in numbers]

    def count(axes: frozenset[int]) -> int:
        return functools.reduce(lambda total, axis: total * sizes[axis], axes, 1)

    def compare(
        cost1: float,
        cost2: float,
        union: frozenset[int],
        size_dict: Sequence[int],
        cost_cap: float,
        s1: int,
        s2: int,
        xn: dict[int, Any],
        g: int,
        all_tensors: int,
        inputs: Sequence[frozenset[int]],
        cut: frozenset[int],
        memory_limit: int | None,
        contract1: Any,
        contract2: Any,
    ) -> None:
        subset = s1 | s2
        rest = [inputs[n] for n in range(len(inputs)) if g & (all_tensors ^ subset) >> n & 1]
        legs = frozenset(axis for axis in union if axis not in cut or any(axis in other for other in rest))
        a, b = legs_of[s1], legs_of[s2]
        summed = union - legs
        batch, rows, columns = a & b & legs, (a - b) & legs, (b - a) & legs
        if summed:
            seconds = problem.profile.matmul(
                count(batch), count(rows), count(columns), count(summed), problem.itemsize
            )
        else:
            moved = problem.itemsize * (count(a) + count(b) + count(legs))
            seconds = problem.profile.pointwise(moved, problem.itemsize * count(legs))
        cost = cost1 + cost2 + seconds
        if cost <= cost_cap and (subset not in xn or cost < xn[subset][1]):
            legs_of[subset] = legs
            xn[subset] = (legs, cost, (contract1, contract2))

    legs_of = {
        1 << n: frozenset(numbers[axis] for axis in layout) for n, layout in enumerate(problem.layouts)
    }
    return compare


def fastest(problem: Problem) -> Order:
    """The order expected to be fastest: exhaustive for few operands, the best of several searches for more."""
    count, search = len(problem.layouts), Search(problem)
    if count <= EXHAUSTIVE:
        return search.exhaustive()[1]
    optimizers: list[Any] = ["greedy", "auto-hq", opt_einsum.DynamicProgramming("flops")]
    optimizers.append(
        opt_einsum.DynamicProgramming(_local_time(problem), cost_cap=False, search_outer=count <= 10)
    )
    ranked = [search.along(_search(problem, optimizer)) for optimizer in optimizers]
    return min(ranked, key=lambda each: each[0])[1]


def fewest_flops(problem: Problem) -> Order:
    """The order with the fewest FLOPs, as opt_einsum finds it."""
    search = opt_einsum.DynamicProgramming("flops", search_outer=len(problem.layouts) <= 8)
    return Search(problem).along(_search(problem, search))[1]


def as_written(problem: Problem) -> Order:
    """From left to right."""
    return Search(problem).along(left_to_right(len(problem.layouts)))[1]


def _search(problem: Problem, optimizer: Any) -> Tree:
    """Asks opt_einsum for a path.

    Axes go under their numbers, in the order of `_numbered`: sets of numbers are walked in the same
    order in every process, sets of letters are not, and equal costs would then be decided by chance.
    """
    numbers = _numbered(problem)
    inputs = [tuple(numbers[axis] for axis in layout) for layout in problem.layouts]
    output = tuple(numbers[axis] for axis in numbers if axis in problem.kept)
    sizes = {numbers[axis]: problem.sizes[axis] for axis in numbers}
    if isinstance(optimizer, str):
        optimizer = opt_einsum.paths.get_path_fn(optimizer)
    drawn = random.getstate()  # its random searches seed the generator that is everybody's
    try:
        return tree_of(optimizer(inputs, output, sizes, None), len(inputs))
    except RuntimeError:
        return left_to_right(len(inputs))
    finally:
        random.setstate(drawn)


def _numbered(problem: Problem) -> dict[str, int]:
    """The axes by number, as opt_einsum's dynamic programming numbers them: as they come, operand by operand."""
    names = dict.fromkeys(itertools.chain(*problem.layouts))
    return {axis: number for number, axis in enumerate(names)}


# ---------------------------------------------------------------------------- planning


def plan(
    graph: Graph,
    *,
    backend: str | Backend = "numpy",
    device: str | None = None,
    dtype: str = "float32",
    profile: DeviceProfile | None = None,
    memory_limit: int | None = None,
    compare: bool = True,
    **sizes: int,
) -> Plan:
    """Finds the fastest order to compute a graph on a device.

    Args:
        graph: a layer or a model.
        backend: "numpy", "torch" or "cupy".
        device: where it will run, as the backend names it; the backend's default if not given.
        dtype: the element type, "float32" and so on; it decides the bytes moved.
        profile: the device constants; those measured on this machine if not given.
        memory_limit: bytes that may be alive at once, inputs and parameters included.
        compare: whether to price the order as written and the one of fewest FLOPs as well.
        **sizes: values for open sizes to plan at; one not given is assumed to be 64, and the plan
            says so. The code works for others.

    Raises:
        ShapeError: a size is given that is not open.
        BackendError: there is no such backend, it has no such device, or the plan needs more than
            `memory_limit`.

    Example:
        >>> import tensornet as tn
        >>> layer = tn.layer("y[b,p,q] = x[b,i,j] * U[p,i] * V[q,j]", inputs="x", i=4, j=4, p=2, q=2)
        >>> tn.plan(layer, b=10_000).steps[0].equation.name
        't1'
    """
    chosen = load_backend(backend)
    device, dtype = chosen.device() if device is None else device, element_type(dtype)
    chosen.check_device(device)
    profile = profile or profile_of(chosen, device)
    found = _schedule(graph, chosen.name, device, dtype, profile, memory_limit, compare, sizes)
    return replace(found, code=generate(found, chosen))


def _schedule(
    graph: Graph,
    backend: str,
    device: str,
    dtype: str,
    profile: DeviceProfile,
    memory_limit: int | None,
    compare: bool,
    sizes: Mapping[str, int],
) -> Plan:
    """The plan, its code not yet written."""
    _check_sizes(graph, sizes)
    values = {name: int(sizes.get(name, NOMINAL)) for name in graph.open_sizes}
    size = itemsize(dtype)
    rewritten = rewrite(graph, values, profile, size)
    steps, results = lower(rewritten, values, profile, size, fastest)
    peak = peak_memory(rewritten, steps, values, size)
    if memory_limit is not None and peak > memory_limit:
        raise BackendError(
            f"the plan needs {peak:,} bytes at once, and memory_limit is {memory_limit:,}",
            fix=f"allow {peak:,} bytes, or plan for smaller sizes ({', '.join(values) or 'all are fixed'})",
        )
    alternatives = _alternatives(graph, values, profile, size) if compare else ()
    at = tuple(sorted(values.items()))
    assumed = tuple(name for name, _ in at if name not in sizes)
    return Plan(graph, backend, device, dtype, at, steps, results, peak, assumed, alternatives)


def _check_sizes(graph: Graph, sizes: Mapping[str, int]) -> None:
    for name, value in sizes.items():
        if graph.bound.get(name, value) != value or (
            name not in graph.open_sizes and name not in graph.bound
        ):
            known = f"it is {graph.bound[name]}" if name in graph.bound else "there is no such axis"
            raise ShapeError(
                f"a size is given for '{name}', which is not open: {known}",
                fix=f"open sizes: {', '.join(graph.open_sizes) or 'none'}",
            )
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ShapeError(f"the size of '{name}' is {value!r}", fix="give a positive integer")


def rewrite(graph: Graph, values: Mapping[str, int], profile: DeviceProfile, size: int) -> Graph:
    """Every rewrite that pays at these sizes."""

    def cost(part: Graph) -> float:
        steps, _ = lower(part, values, profile, size, fastest)
        return sum(step.seconds for step in steps)

    return simplify(distribute(simplify(graph), cost))


def _alternatives(
    graph: Graph, values: Mapping[str, int], profile: DeviceProfile, size: int
) -> tuple[Alternative, ...]:
    rows: list[Alternative] = []
    options: list[tuple[str, Graph, Choose]] = [
        ("as written", graph, as_written),
        ("fewest FLOPs", simplify(graph), fewest_flops),
    ]
    for name, candidate, choose in options:
        steps, _ = lower(candidate, values, profile, size, choose)
        rows.append(
            Alternative(
                name,
                sum(step.flops for step in steps),
                sum(step.bytes for step in steps),
                sum(step.seconds for step in steps),
                peak_memory(candidate, steps, values, size),
            )
        )
    return tuple(rows)


# ---------------------------------------------------------------------------- FLOPs


def flop_formula(graph: Graph, *, naive: bool = False, **sizes: Any) -> Any:
    """The FLOPs of the contractions, as a formula in the names of the axes.

    Each pairwise step of the plan counts 2 × the product of all its axes (a multiplication and an
    addition); with `naive=True` each contraction as written counts 2 × the product of all of its
    axes at once. Pointwise functions, softmax and the like, and sums over a lone tensor are not
    counted.

    Args:
        graph: a layer or a model.
        naive: count the terms as written instead of a plan's steps.
        **sizes: values of open sizes at which to plan; they decide the order, not the symbols.

    Example:
        >>> import tensornet as tn
        >>> tn.flop_formula(tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x"))
        2*b*i*o
    """
    import sympy

    if naive:
        return naive_flop_formula(graph)
    found = _schedule(graph, "numpy", "cpu", "float32", default_profile("cpu"), None, False, sizes)
    return sympy.expand(found.flop_formula)


def flop_count(graph: Graph, *, naive: bool = False, **sizes: int) -> Any:
    """The FLOPs of the contractions: an `int`, or a formula in the sizes still open.

    Args:
        graph: a layer or a model.
        naive: count the terms as written instead of a plan's steps.
        **sizes: values for open sizes.

    Example:
        >>> import tensornet as tn
        >>> tn.flop_count(tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=4, o=2), b=10)
        160
    """
    _check_sizes(graph, sizes)
    return evaluate(flop_formula(graph, naive=naive, **sizes), {**graph.bound, **sizes})
