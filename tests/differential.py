"""A program of the language on every backend against the oracle: values, gradients, and what must not matter.

`check` says how a program went, `survey` how many went how, each finding with the least program that shows it.
"""

from __future__ import annotations

import ast
import itertools
import operator
import re
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import array_api_strict
import numpy as np
import torch

import tensornet as tn
from tensornet.backends.array_api import of
from tensornet.codegen.function import LoadedProgram as Loaded
from tensornet.frontend.elaborate_ir import function_of, of_tensors
from tensornet.graph.element_types import of_leaves
from tensornet.graph.graph import Apply
from tensornet.ir.naming import graph_of
from tensornet.ops.table import Element
from tensornet.passes.pipeline import program_of, simplify
from tensornet.protocol import load_backend
from tensornet.scan.lowering import lower_recurrences
from tensornet.sizes import evaluate

from . import oracle
from .conftest import within
from .programs import Program, has, program, unread

BACKENDS: dict[str, Callable[[], Any]] = {
    "numpy": lambda: load_backend("numpy"),
    "torch": lambda: load_backend("torch"),
    "jax": lambda: load_backend("jax"),
    "array-api-strict": lambda: of(array_api_strict),
}
DEVICES = {"torch-cuda": ("torch", "cuda"), "cupy": ("cupy", None)}
"""A backend on a device of its own."""

PATIENCE = 60
STEP = 1e-5
APART = 1e-2
SHRUNK = 20
"""So many findings of a kind are made smaller."""
SMALLER = 200
"""So many programs are tried at most to make one smaller."""

Arrays = Mapping[str, np.ndarray]


class Wrong(Exception):  # noqa: N818 - a finding
    """The library answered, and the oracle says something else."""


class Unsure(Exception):  # noqa: N818 - no finding
    """There is nothing to compare with: a jump is too near, or the oracle does not know."""


# ---------------------------------------------------------------------------- one program


def check(
    case: Program, backend: str = "numpy", done: Counter[str] | None = None, thorough: bool = False
) -> None:
    """Raises `Wrong` where the library disagrees with the oracle, and whatever else the library raises.

    What else must hold is looked at for some programs, by their seeds, and for all if `thorough`.
    """
    done = Counter() if done is None else done
    arrays = case.arrays()
    asked = [*dict.fromkeys([*case.outputs, *case.selected])]
    try:
        expected = oracle.run(case.text, arrays, case.given, asked)
    except oracle.Untold as cause:
        raise Unsure(f"untold: {cause}") from None
    except oracle.Refused as cause:
        _refuses(case, arrays, backend, str(cause))
        return
    graph = case.graph()
    _reads_back(case, graph)
    done["text and JSON"] += 1
    run = _compiled(graph, backend)
    _compare(case, _called(graph, run, arrays, backend), expected, "values", case.outputs)
    done["values"] += 1
    if backend == "numpy" and (thorough or case.seed % 2 == 0):
        _core(case, graph, arrays, expected)
        done["core form"] += 1
    if thorough or case.seed % 4 == 2:
        _plan_reads_back(case, run, arrays, backend)
        done["plan"] += 1
    if backend == "jax" and (thorough or case.seed % 2):
        _compare(case, _called(graph, _traced(run), arrays, backend), expected, "traced", case.outputs)
        done["traced"] += 1
    if case.selected:
        found = _called(graph, _compiled(graph, backend, outputs=case.selected), arrays, backend)
        _compare(case, found, expected, "selected", case.selected)
        done["selected"] += 1
    if case.memory_limit:
        _limited(case, graph, arrays, expected, backend, done)
    if case.frozen:
        frozen = tn.freeze(graph, {name: arrays[name] for name in case.frozen}, list(case.frozen))
        found = _called(frozen, _compiled(frozen, backend), arrays, backend)
        _compare(case, found, expected, "frozen", case.outputs)
        done["frozen"] += 1
    if "b" in case.sizes and has(case.text, "b") and "b" not in case.given and (thorough or case.seed % 2):
        _other_batch(case, graph, run, backend, done)
    if case.gradients and not case.special:
        _gradients(case, graph, arrays, expected, backend, done, thorough)


def _core(case: Program, graph: tn.Graph, arrays: Arrays, expected: Arrays) -> None:
    """The graph that the core form is named as."""
    again = named(graph)
    found = _called(again, tn.compile(again, dtype="float64"), arrays, "numpy")
    _compare(case, found, expected, "named", case.outputs)


def named(graph: tn.Graph) -> tn.Graph:
    """The graph that the core form of a graph is named as.

    Its names, and of what kind its outputs are, must be those of the first.
    """
    flat = graph.flat
    again = lower_recurrences(flat)
    if again is not flat:
        elements = of_tensors(again)
    else:
        function, names = function_of(flat)
        elements = {name: each.element for name, each in zip(graph.outputs, function.outputs, strict=True)}
        again = graph_of(function, names)
    if [leaf.name for leaf in again.leaves] != [leaf.name for leaf in graph.leaves]:
        raise Wrong("named: it has other leaves")
    states, kinds = (
        _made_of_states(graph),
        of_tensors(graph),
    )  # a state that starts with 0 is of no kind by itself
    for name in graph.outputs:
        if name not in states and elements[name] != kinds[name]:
            raise Wrong("core form: an output is of another kind")
    return again


def _made_of_states(graph: tn.Graph) -> set[str]:
    """The tensors of recurrences, and what is made of them."""
    found = {name for group in graph.recurrences for name in group.names}
    for item in graph.body:
        recurs = isinstance(item, Apply) and any(part.recurrences for part in item.graph.parts)
        if recurs or not found.isdisjoint(item.reads):
            found.update(item.defines)
    return found


def by_numpy(graph: tn.Graph, arrays: Arrays) -> dict[str, np.ndarray]:
    """The outputs of a graph on NumPy in float64, by name: for what is too large for the oracle, and has no kernel there."""
    return computed(graph, arrays, "numpy")


def computed(graph: tn.Graph, arrays: Arrays, backend: str, **options: Any) -> dict[str, np.ndarray]:
    """The outputs of a graph on a backend in float64, by name, as arrays of NumPy."""
    wide = {name: _wide(np.asarray(each)) for name, each in arrays.items()}
    run = _compiled(graph, backend, **options)
    return dict(zip(graph.outputs, _called(graph, run, wide, backend), strict=True))


def drawn(graph: tn.Graph, scale: float = 1.0, seed: int = 0, **sizes: int) -> dict[str, np.ndarray]:
    """Normal numbers for the inputs and parameters of a graph, by name, at these sizes of what is open."""
    draw, known = np.random.default_rng(seed), {**graph.bound, **sizes}
    shapes = {
        leaf.name: [int(evaluate(size, known)) for size in leaf.shape]
        for leaf in graph.leaves
        if leaf.value is None
    }
    return {name: scale * draw.standard_normal(shape) for name, shape in shapes.items()}


def drawn_of_kinds(graph: tn.Graph) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Numbers, truth values and the positions 0 and 1 for the leaves of a graph, and the lengths of its open sizes."""
    lengths = dict(zip(graph.open_sizes, itertools.cycle((2, 3, 4)), strict=False))
    draw, found, kinds = np.random.default_rng(0), dict[str, np.ndarray](), of_leaves(graph)
    for each in (each for each in graph.leaves if each.value is None):
        shape = [int(evaluate(evaluate(size, graph.bound), lengths)) for size in each.shape]
        truth, position = kinds[each.name] is Element.TRUTH, kinds[each.name].is_position
        drawn = draw.integers(0, 2, shape) if truth or position else draw.normal(size=shape) * 0.5
        found[each.name] = drawn > 0 if truth else drawn
    return found, lengths


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _library(backend: str) -> Any:
    return load_backend(DEVICES[backend][0]) if backend in DEVICES else BACKENDS[backend]()


def _given(array: np.ndarray, backend: str) -> Any:
    kind = "float64" if array.dtype.kind == "f" else "int64"
    return _library(backend).asarray(array, kind, device=DEVICES.get(backend, ("", None))[1])


def _compiled(graph: tn.Graph, backend: str, **options: Any) -> Any:
    return tn.compile(graph, backend=_library(backend), dtype="float64", **options)


def _traced(run: Any) -> Any:
    import jax

    return jax.jit(run)


def _reads_back(case: Program, graph: tn.Graph) -> None:
    """The text and the JSON are the graph, and its leaves are those of the program."""
    again = tn.layer(str(graph))
    if again != graph or hash(again) != hash(graph) or str(again) != str(graph):
        raise Wrong("text: it reads back as another graph")
    if tn.Graph.from_json(graph.to_json()) != graph:
        raise Wrong("JSON: it reads back as another graph")
    for kind, leaves in (("input", graph.inputs), ("parameter", graph.parameters)):
        if {leaf.name for leaf in leaves} != {
            name for name, leaf in case.leaves.items() if leaf.kind == kind
        }:
            raise Wrong(f"leaves: {', '.join(leaf.name for leaf in leaves)} are other {kind}s")


def _plan_reads_back(case: Program, run: Any, arrays: Arrays, backend: str) -> None:
    """A plan out of JSON is the same, what was seen of the arrays too, and computes what the plan does."""
    again = tn.Plan.from_json(run.plan.to_json())
    told = ([leaf.holds for leaf in plan.graph.leaves] for plan in (again, run.plan))
    if again != run.plan or operator.ne(*told):
        raise Wrong("plan: it reads back as another plan")
    given, library = [_given(np.array(arrays[leaf.name]), backend) for leaf in run.leaves], _library(backend)
    results = []
    with np.errstate(all="ignore"):
        for program in (Loaded(again, library), run.last()):
            tables = program.tables(run.ready(given).place, lambda leaf: arrays[leaf.name])
            found = program.function(*given, *tables)
            found = found if isinstance(found, tuple) else (found,)
            results.append(
                str([library.numpy(each).tolist() for each in found])
            )  # no number is equal to itself
    if "dropout" not in case.text and operator.ne(*results):
        raise Wrong("plan: it computes something else once it is read back")


def _refuses(case: Program, arrays: Arrays, backend: str, cause: str) -> None:
    """What the oracle refuses, the library should refuse as well; positions it may meet on JAX without a word."""
    try:
        graph = case.graph()
        _called(graph, _compiled(graph, backend), arrays, backend)
    except tn.TensornetError:
        raise Unsure("both refuse it") from None
    if backend != "jax":
        raise Wrong(f"accepted: {cause}")


def _called(graph: tn.Graph, run: Any, arrays: Arrays, backend: str) -> list[np.ndarray]:
    """The results, where what is given stays as it is."""
    numpy = _library(backend).numpy
    leaves = (*graph.parameters, *graph.inputs)
    shown = {leaf.name: _given(np.array(arrays[leaf.name]), backend) for leaf in leaves}
    parameters = {leaf.name: shown[leaf.name] for leaf in graph.parameters}
    with np.errstate(all="ignore"):
        found = run(parameters, *(shown[leaf.name] for leaf in graph.inputs))
    for name, each in shown.items():
        if not np.array_equal(numpy(each), arrays[name], equal_nan=arrays[name].dtype.kind == "f"):
            raise Wrong(f"writing: '{name}', which was given, is another afterwards")
    return [np.asarray(numpy(each)) for each in (found if isinstance(found, tuple) else (found,))]


def _limited(
    case: Program, graph: tn.Graph, arrays: Arrays, expected: Arrays, backend: str, done: Counter[str]
) -> None:
    try:
        found = _called(graph, _compiled(graph, backend, memory_limit=case.memory_limit), arrays, backend)
    except tn.TensornetError:
        return  # it takes more than that
    _compare(case, found, expected, "memory_limit", case.outputs)
    done["memory_limit"] += 1


def _other_batch(case: Program, graph: tn.Graph, run: Any, backend: str, done: Counter[str]) -> None:
    changed = case.arrays(b=case.sizes["b"] + 1 + case.seed % 3)
    try:
        expected = oracle.run(case.text, changed, case.given, case.outputs)
    except (oracle.Refused, oracle.Untold):
        return  # what has been written for one batch alone
    _compare(case, _called(graph, run, changed, backend), expected, "batch", case.outputs, changed)
    done["batch"] += 1


def _compare(
    case: Program,
    found: Sequence[np.ndarray],
    expected: Arrays,
    what: str,
    names: Sequence[str],
    arrays: Arrays | None = None,
) -> None:
    for name, one in zip(names, found, strict=True):
        two = expected[name]
        if one.shape != two.shape:
            raise Wrong(f"{what}: '{name}' has the shape {one.shape}, not {two.shape}")
        if not _close(one, two):
            if case.special and 0 in case.sizes.values():
                raise Unsure("no number times a sum over no positions")  # the order of products decides it
            if case.special and np.isnan(one).any() and _multiplies_out(case):
                raise Unsure("a product of a sum may be multiplied out")  # ∞·(a - b) as ∞·a - ∞·b
            if not _steady(case, name, case.arrays() if arrays is None else arrays):
                raise Unsure("a jump is too near")
            raise Wrong(f"{what}: '{name}' is {_shown(one)}, not {_shown(two)}")


def _multiplies_out(case: Program) -> bool:
    """Whether contraction fusion takes a sum of products into a product; it runs on no graph that still recurs."""
    graph = case.graph()
    return not graph.recurrences and len(simplify(graph).graph.body) < len(program_of(graph).graph.body)


def _close(found: np.ndarray, expected: np.ndarray) -> bool:
    """Equal up to rounding; what is not finite in one is not finite in the other."""
    one, two = found.astype(float), expected.astype(float)
    finite = np.isfinite(two)
    scale = max(1.0, float(np.abs(two[finite]).max(initial=0)))
    return bool(
        (np.isfinite(one) == finite).all() and (np.abs(one[finite] - two[finite]) <= 1e-8 * scale).all()
    )


def _steady(case: Program, name: str, arrays: Arrays) -> bool:
    """Whether an output changes little where its inputs do: else rounding may make it jump."""
    draw = np.random.default_rng(1)
    results = []
    for _ in range(3):
        moved = {
            key: each + 1e-11 * draw.standard_normal(each.shape) if each.dtype.kind == "f" else each
            for key, each in arrays.items()
        }
        results.append(oracle.run(case.text, moved, case.given, [name])[name].astype(float))
    with np.errstate(all="ignore"):
        return all(
            np.allclose(results[0], each, rtol=1e-6, atol=1e-7, equal_nan=True) for each in results[1:]
        )


def _shown(array: np.ndarray) -> str:
    return np.array2string(array.ravel()[:4], precision=5)


# ---------------------------------------------------------------------------- gradients


def _gradients(
    case: Program,
    graph: tn.Graph,
    arrays: Arrays,
    expected: Arrays,
    backend: str,
    done: Counter[str],
    thorough: bool,
) -> None:
    """The derivative along one direction, against differences of what the oracle says."""
    draw = np.random.default_rng(case.seed)
    weights = {
        name: draw.uniform(-1, 1, expected[name].shape)
        for name in case.outputs
        if expected[name].dtype.kind == "f"
    }
    wrt = [name for name, array in arrays.items() if array.dtype.kind == "f"]
    if not wrt or not weights:
        return
    direction = {name: draw.uniform(-1, 1, arrays[name].shape) for name in wrt}

    def moved(far: float) -> Arrays:
        return {n: each + far * direction[n] if n in direction else each for n, each in arrays.items()}

    if "dropout" in case.text:
        _dropped(case, graph, moved, weights, direction)
        done["dropped"] += 1
        return

    def loss(far: float) -> float:
        found = oracle.run(case.text, moved(far), case.given, [*weights]) if far else expected
        return float(sum((weights[name] * found[name]).sum() for name in weights))

    slope = _slope(loss, STEP)
    if slope is None:
        return

    def again(apart: float) -> float | None:
        return _slope(loss, STEP / 16, apart)

    if thorough or case.seed % 4 == 1:
        _same_slope("tangents", _forward(graph, arrays, direction, weights, backend), slope, again)
        done["tangents"] += 1
    number = any(expected[name].shape == () for name in weights)  # which is given no gradient from outside
    if (case.seed % 3 == 0 and not number) or "..." in case.text or not graph.inputs:
        made = tn.gradient(graph, of=[*weights], wrt=wrt)
        if case.seed % 2 == 0:
            made = tn.layer(str(made))  # which says every size that counts
        seeds = {f"{name}.grad": weight for name, weight in weights.items()}
        if number:
            return
        gradients = dict(
            zip(wrt, _called(made, _compiled(made, backend), {**arrays, **seeds}, backend), strict=True)
        )
    else:
        step = _step(case, graph, weights, wrt, backend)
        _, gradients = _stepped(step, graph, arrays, weights, backend)
    shapes = [name for name in wrt if gradients[name].shape != arrays[name].shape]
    if shapes:
        raise Wrong(f"gradients: that of '{shapes[0]}' has another shape")
    found = sum(float((gradients[name] * direction[name]).sum()) for name in wrt)
    _same_slope("gradients", found, slope, again)
    done["gradients"] += 1


def _same_slope(what: str, found: float, slope: float, again: Callable[[float], float | None]) -> None:
    apart = abs(found - slope) / max(1, abs(slope))
    if apart > 1e-5:
        closer = again(min(APART, apart))  # at a kink the two sides differ by as much
        if closer is None or abs(closer - slope) > 1e-6 * max(1, abs(slope)):
            raise Unsure("a kink is too near")
        raise Wrong(f"{what}: the slope is {found:.6g}, not {slope:.6g}")


def _forward(graph: tn.Graph, arrays: Arrays, direction: Arrays, weights: Arrays, backend: str) -> float:
    """The derivative along a direction in forward mode, as its text says it."""
    made = tn.layer(str(tn.jvp(graph.select([*weights]), wrt=[*direction])))
    given = {**arrays, **{f"{name}.tangent": each for name, each in direction.items()}}
    found = _called(made, _compiled(made, backend), given, backend)
    return sum(float((each * weight).sum()) for each, weight in zip(found, weights.values(), strict=True))


def _step(case: Program, graph: tn.Graph, weights: Arrays, wrt: Sequence[str], backend: str) -> Any:
    """The weighed sum of all outputs, and its gradients."""
    names = {
        name: ",".join(f"d{n}_{axis}" for axis in range(weights[name].ndim)) for n, name in enumerate(weights)
    }
    terms = [
        f"sum[{axes}]({name}[{axes}] * C_{name}[{axes}])" if axes else f"{name} * C_{name}"
        for name, axes in names.items()
    ]
    wanted = [f"{prefix}{name}[{axes or '()'}]" for prefix in ("", "C_") for name, axes in names.items()]
    loss = tn.layer(f"C_total = {' + '.join(terms)}", inputs=", ".join(wanted))
    graph = graph.select([*weights]) if len(weights) < len(case.outputs) else graph
    return tn.value_and_grad(graph, loss=loss, wrt=wrt, backend=_library(backend), dtype="float64")


def _stepped(
    step: Any, graph: tn.Graph, arrays: Arrays, weights: Arrays, backend: str
) -> tuple[float, dict[str, np.ndarray]]:
    given = {**arrays, **{f"C_{n}": w for n, w in weights.items()}}
    values = {name: _given(array, backend) for name, array in given.items()}
    parameters = {leaf.name: values[leaf.name] for leaf in graph.parameters}
    inputs = [values[leaf.name] for leaf in graph.inputs] + [values[f"C_{name}"] for name in weights]
    with np.errstate(all="ignore"):
        value, gradients = step(parameters, *inputs)
    return float(value), {name: np.asarray(_library(backend).numpy(each)) for name, each in gradients.items()}


def _dropped(
    case: Program, graph: tn.Graph, moved: Callable[[float], Arrays], weights: Arrays, direction: Arrays
) -> None:
    """The gradient of what is dropped at random, against differences of the step itself where it draws the same."""
    step = _step(case, graph, weights, [*direction], "torch")

    def drawn(far: float) -> tuple[float, dict[str, np.ndarray]]:
        torch.manual_seed(case.seed)
        return _stepped(step, graph, moved(far), weights, "torch")

    slope = _slope(lambda far: drawn(far)[0], STEP)
    if slope is not None:
        _, gradients = drawn(0)
        found = sum(float((gradients[name] * each).sum()) for name, each in direction.items())
        _same_slope(
            "dropped", found, slope, lambda apart: _slope(lambda far: drawn(far)[0], STEP / 16, apart)
        )


def _slope(loss: Callable[[float], float], step: float, apart: float = APART) -> float | None:
    """The derivative by differences; nothing where the two sides differ by so much of it, as at a kink."""
    try:
        before, here, after = loss(-step), loss(0), loss(step)
    except (oracle.Refused, oracle.Untold):
        return None
    slope = (after - before) / (2 * step)
    sides = abs((after - here) / step - (here - before) / step)
    return slope if np.isfinite(slope) and abs(here) < 1e6 and sides < apart * max(1, abs(slope)) else None


# ---------------------------------------------------------------------------- smaller programs


def shrunk(case: Program, fails: Callable[[Program], bool]) -> Program:
    """The least program that is found to fail the same way."""
    tried, better = 0, True
    while better:
        better = False
        for smaller in _smaller(case):
            tried += 1
            if tried > SMALLER:
                return case
            if fails(smaller):
                case, better = smaller, True
                break
    return case


def _smaller(case: Program) -> Iterator[Program]:
    """Programs with something less: lines, settings, parts of expressions, sizes."""
    lines = _lines(case.text)
    for number in reversed(range(len(lines))):
        yield from _rewritten(case, [*lines[:number], *lines[number + 1 :]])
    if case.selected or case.frozen:
        yield replace(case, selected=(), frozen=())
    if case.memory_limit:
        yield replace(case, memory_limit=None)
    for number, line in enumerate(lines):
        for less in _parts(line):
            yield from _rewritten(case, [*lines[:number], less, *lines[number + 1 :]])
    plain = re.sub(r"(q\d+):\d+", r"\1", case.text)
    if plain != case.text:
        yield replace(case, text=plain)
    for axis, size in case.sizes.items():
        for shorter in range(1, size):
            given = {**case.given, axis: shorter} if axis in case.given else case.given
            yield replace(case, sizes={**case.sizes, axis: shorter}, given=given)
    for axis in case.given:
        yield replace(case, given={name: size for name, size in case.given.items() if name != axis})


def _lines(text: str) -> list[str]:
    """Lines, and blocks as one."""
    found: list[str] = []
    for line in text.splitlines():
        if line.startswith(" "):
            found[-1] += f"\n{line}"
        else:
            found.append(line)
    return found


def _rewritten(case: Program, lines: Sequence[str]) -> Iterator[Program]:
    """The program of other lines, if these make one."""
    outputs = unread(lines)
    text = "\n".join(lines)
    if outputs and text != case.text:
        leaves = {name: leaf for name, leaf in case.leaves.items() if has(text, name.partition(".")[0])}
        made = [line.split("[")[0].split(" ")[0] for line in lines]
        yield replace(
            case, text=text, outputs=tuple(outputs), leaves=leaves, inputs=tuple(name for name in case.inputs if name in leaves),
            selected=tuple(name for name in case.selected if name in made), frozen=tuple(name for name in case.frozen if name in leaves),
            given={axis: size for axis, size in case.given.items() if has(text, axis)},
        )  # fmt: skip


def _parts(line: str) -> Iterator[str]:
    """The line with an expression on the right replaced by a part of it."""
    if line.startswith("def ") or "=" not in line:
        return
    try:
        statement = ast.parse(line).body[0]
    except SyntaxError:
        return
    right = getattr(statement, "value", None)
    for node in ast.walk(right) if right is not None else ():
        match node:
            case ast.BinOp(left=one, right=two):
                parts = [one, two]
            case ast.Call(args=args):
                parts = args
            case ast.UnaryOp(operand=one) | ast.Compare(left=one):
                parts = [one]
            case _:
                continue
        for part in parts:
            less = line[part.col_offset : part.end_col_offset]
            less = f"({less})" if isinstance(part, ast.BinOp | ast.UnaryOp) else less
            yield line[: node.col_offset] + less + line[node.end_col_offset :]


# ---------------------------------------------------------------------------- many programs


@dataclass
class Survey:
    """How many programs went how.

    Attributes:
        tried: programs.
        right: results that agree, by what they are of.
        refused: by the first words of the error.
        unsure: where there was nothing to compare with.
        findings: by kind, how many, and the least program of the first.
    """

    tried: int = 0
    right: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    unsure: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    shrunk: Counter[str] = field(default_factory=Counter)

    def add(
        self,
        case: Program,
        kind: str,
        backend: str,
        number: str,
        smaller: bool,
        told: Callable[[str], object],
    ) -> None:
        """A finding: what looks the same once it is small counts as one."""
        self.shrunk[kind] += 1
        if smaller and self.shrunk[kind] <= SHRUNK:
            case = shrunk(case, lambda each: outcome(each, backend) == kind)
            kind = f"{kind}: {_shape(case.text)}"
        self.findings[kind] += 1
        if kind not in self.examples:
            self.examples[kind] = _written(case, backend, number)
            told(f"## {kind}\n{self.examples[kind]}\n")

    def head(self) -> str:
        """How many so far."""
        refused = sum(self.refused.values())
        wrong = sum(count for kind, count in self.findings.items() if kind.startswith("wrong"))
        raw = sum(self.findings.values()) - wrong
        head = [
            f"tried {self.tried}, refused {refused} ({refused / max(1, self.tried):.1%}), unsure {sum(self.unsure.values())}",
            f"right {sum(self.right.values())}: {', '.join(f'{what} {count}' for what, count in self.right.most_common())}",
            f"wrong {wrong}, raw errors {raw}",
        ]
        return "\n".join(head)

    def __str__(self) -> str:
        causes = [f"  {count:5d} {cause}" for cause, count in self.refused.most_common()]
        unsure = [f"  {count:5d} {cause}" for cause, count in self.unsure.most_common()]
        found = [
            f"\n## {kind} ({count})\n{self.examples[kind]}" for kind, count in self.findings.most_common()
        ]
        return "\n".join([self.head(), "refused:", *causes, "unsure:", *unsure, *found])


def survey(
    seed: int,
    numbers: Iterable[int],
    every: int = 10,
    smaller: bool = True,
    told: Callable[[str], object] = lambda text: None,
) -> Survey:
    """Programs by their numbers, on NumPy, and each tenth on torch and JAX as well."""
    found = Survey()
    for number in numbers:
        case = program(seed, number)
        if found.tried % 500 == 499 and "jax" in sys.modules:
            sys.modules["jax"].clear_caches()
        found.tried += 1
        backends = ["numpy"] if number % every else ["numpy", "torch", "jax"]
        for backend in backends:
            kind = outcome(case, backend, found.right)
            if kind.startswith("refused"):
                found.refused[kind.removeprefix("refused: ")] += 1
                found.examples.setdefault(kind, _written(case, backend, f"{seed} {number}"))
                break
            if kind.startswith("unsure"):
                found.unsure[kind.removeprefix("unsure: ")] += 1
            elif kind:
                found.add(case, kind, backend, f"{seed} {number}", smaller, told)
                break
        if found.tried % 500 == 0:
            told(found.head())
    return found


def outcome(case: Program, backend: str, done: Counter[str] | None = None) -> str:
    """How a program went, without the names in it: nothing if it went well."""
    try:
        with within(PATIENCE), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check(case, backend, done)
    except Unsure as cause:
        return f"unsure: {cause}"
    except Wrong as cause:
        return f"wrong on {backend}: {str(cause).partition(':')[0]}"
    except tn.TensornetError as cause:
        return f"refused: {_plain(str(cause))}"
    except Exception as cause:
        frames = [
            frame
            for frame in traceback.extract_tb(cause.__traceback__)
            if "site-packages" not in frame.filename
        ]
        own = [frame for frame in frames if "/tests/" not in frame.filename] or frames
        where = f"{own[-1].filename.rpartition('/')[2]}:{own[-1].name}"
        return f"raw on {backend}: {type(cause).__name__} in {where}"
    return ""


def _shape(text: str) -> str:
    """What lines do, whatever the names: for two findings of one cause."""
    lines = [line for line in text.splitlines() if "=" in line]
    return re.sub(r"\b[A-Za-z]\b", "i", re.sub(r"\b[a-zA-Z]\d+\b", "T", " | ".join(lines)))[:150]


def _plain(message: str) -> str:
    """The first words of an error, without names and numbers."""
    line = re.sub(r"'[^']*'", "'…'", message.splitlines()[0])
    return re.sub(r"\d+", "N", re.sub(r"\S*[\[\]]\S*", "…", line))[:70]


def _written(case: Program, backend: str, number: str) -> str:
    """A program as it is kept, with what it takes to make it again."""
    try:
        check(case, backend)
        cause = ""
    except Exception as error:
        cause = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"{case.record()}\n# on {backend}, program {number}; {cause}"
