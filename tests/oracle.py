"""What a program of the language means, element by element, in plain Python.

This is the reference page read literally. It shares no code with the library: the text is read by `ast`, and an
element of a tensor is the right side of its line at those positions, computed when it is asked for and kept.
So a recurrence needs no order of its own, and neither does anything else.

What is read, one statement a line:

    name[left] = expression             an equation; left holds axes, (axes, …) and `...`
    name[left] += expression            an addition; left may hold positions, as in y[t[n]]
    name[b, -1] = expression            a start, of what is read at t-1; +1 of what is read at t+1, -2, +2
    name[axes]: input | parameter(…)    the axes of a tensor, `i:3` one of a size; constant, output too
    axis: size                          the size of an axis
    def name(x, …): …                   a block, and `y, … = name(x, …, scope='s')`, a call of it

An entry in brackets is an axis, an integer, a composite `(…, …)` of entries, a slice, `...`, a tensor of positions,
or an expression of positions, in which an axis of the line is where it is, and any other name is a size.

- The Einstein rule: `place` says which product sums an axis. Each term of a sum is looked at by itself; in a
  product an axis that is not kept is summed if two factors have it, or if one has it that is a tensor as it stands
  and no function is around it. Otherwise it belongs to the factor.
- The sizes of a line: first what slices, `pad` and `concat` make, then what is given, then what tensors have that are
  read, and last the longest windows that fit.

`Refused` is raised of what the language refuses, `Untold` of what it leaves open.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Refused", "Untold", "run"]

Index = tuple[int, ...]
Sizes = dict[str, int]
_SELU = 1.0507009873554805, 1.6732632423543772


class Refused(Exception):  # noqa: N818 - no fault
    """The language does not take this."""


class Untold(Exception):  # noqa: N818 - no fault
    """The reference does not say what this is."""


# ---------------------------------------------------------------------------- functions of elements


def _real(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of numbers as IEEE has it: infinite or no number where Python would raise."""
    return lambda *values: float(function(*map(np.float64, values)))


def _sigmoid(a: Any) -> Any:
    return 1 / (1 + np.exp(-a)) if a >= 0 else np.exp(a) / (1 + np.exp(a)) if a == a else a


def _softplus(a: Any) -> Any:
    return np.logaddexp(0.0, a)


def _elu(a: Any, alpha: Any = 1.0) -> Any:
    return a if a > 0 else alpha * np.expm1(a)


def _erf(a: Any) -> Any:
    return math.erf(a) if a == a else a


def _floor_divide(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        if b == 0:
            raise Untold("an integer divided by zero")
        return a // b
    return float(np.floor_divide(np.float64(a), np.float64(b)))


def _power(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int) and 0 <= b < 16:
        return a**b
    return float(np.power(np.float64(a), np.float64(b)))


def _largest(a: Any, b: Any) -> Any:
    return a if a != a or a >= b else b


def _smallest(a: Any, b: Any) -> Any:
    return a if a != a or a <= b else b


def _rounded(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda a: int(a) if isinstance(a, int) else float(function(np.float64(a)))


def _sign(a: Any) -> Any:
    return (a > 0) - (a < 0) if isinstance(a, int) else float(np.sign(a))


def _divide(a: Any, b: Any) -> float:
    return float(np.float64(a) / np.float64(b))


POINTWISE: dict[str, Callable[..., Any]] = {
    "exp": _real(np.exp), "expm1": _real(np.expm1), "log": _real(np.log), "log1p": _real(np.log1p),
    "sqrt": _real(np.sqrt), "rsqrt": lambda a: _divide(1, np.sqrt(np.float64(a))), "square": lambda a: a * a,
    "reciprocal": lambda a: _divide(1, a), "abs": abs, "sign": _sign, "floor": _rounded(np.floor),
    "ceil": _rounded(np.ceil), "round": _rounded(np.round), "sin": _real(np.sin), "cos": _real(np.cos),
    "tanh": _real(np.tanh), "erf": _real(_erf), "sigmoid": _real(_sigmoid),
    "relu": lambda a: _largest(a, 0), "gelu": _real(lambda a: a * (0.5 + 0.5 * _erf(a * math.sqrt(0.5)))),
    "gelu_tanh": _real(lambda a: a * _sigmoid(2 * math.sqrt(2 / math.pi) * (a + 0.044715 * a**3))),
    "silu": _real(lambda a: a * _sigmoid(a)), "softplus": _real(_softplus),
    "log_sigmoid": _real(lambda a: -_softplus(-a)), "elu": _real(_elu),
    "leaky_relu": lambda a, slope=0.01: a if a > 0 else slope * a,
    "selu": _real(lambda a: _SELU[0] * _elu(a, _SELU[1])), "mish": _real(lambda a: a * np.tanh(_softplus(a))),
    "softsign": _real(lambda a: a / (1 + abs(a))), "hardsigmoid": _real(lambda a: np.clip(a / 6 + 0.5, 0, 1)),
    "hardswish": _real(lambda a: a * np.clip(a / 6 + 0.5, 0, 1)), "maximum": _largest, "minimum": _smallest,
    "clip": lambda a, low, high: _smallest(_largest(a, low), high), "where": lambda c, a, b: a if c else b,
    "int64": int, "cast": float, "widen": float, "dropout": lambda a, rate: a,
    "add": lambda *values: sum(values),
}  # fmt: skip

OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b, ast.Div: _divide,
    ast.FloorDiv: _floor_divide, ast.Mod: lambda a, b: a - b * _floor_divide(a, b), ast.Pow: _power,
    ast.BitAnd: lambda a, b: bool(a) and bool(b), ast.BitOr: lambda a, b: bool(a) or bool(b),
    ast.Eq: lambda a, b: a == b, ast.NotEq: lambda a, b: a != b, ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b, ast.Gt: lambda a, b: a > b, ast.GtE: lambda a, b: a >= b,
    ast.USub: lambda a: -a, ast.UAdd: lambda a: a, ast.Invert: lambda a: not a,
}  # fmt: skip


# ---------------------------------------------------------------------------- functions over axes


def _mean(values: Sequence[Any]) -> float:
    return _divide(sum(values), len(values))


def _var(values: Sequence[Any]) -> float:
    mean = _mean(values)
    return _mean([(each - mean) * (each - mean) for each in values])


def _extreme(pick: Callable[[Any, Any], Any]) -> Callable[[Sequence[Any]], Any]:
    def found(values: Sequence[Any]) -> Any:
        if not values:
            raise Refused("no element is the largest of none")
        result = values[0]
        for each in values[1:]:
            result = pick(each, result) if result == result else result
        return result

    return found


def _ordered(values: Sequence[Any], descending: bool = False) -> list[int]:
    if any(each != each for each in values):
        raise Untold("where an element that is no number comes in an order")
    return sorted(range(len(values)), key=lambda n: -values[n] if descending else values[n])


def _first(values: Sequence[Any], descending: bool) -> int:
    if not values:
        raise Refused("there is no first of none")
    return _ordered(values, descending)[0]


def _logsumexp(values: Sequence[Any]) -> float:
    return float(np.logaddexp.reduce(np.array(values, float))) if values else -math.inf


def _recur(a: Sequence[Any], b: Sequence[Any], start: Any = 0, back: int = 0) -> list[Any]:
    if back:
        return _recur(a[::-1], b[::-1], start)[::-1]
    found = [start]
    for one, two in zip(a, b, strict=True):
        found.append(one * found[-1] + two)
    return found[: len(a)]


def _running(step: Callable[[Any, Any], Any]) -> Callable[..., list[Any]]:
    def found(values: Sequence[Any], back: int = 0) -> list[Any]:
        return found(values[::-1])[::-1] if back else list(itertools.accumulate(values, step))

    return found


def _normalize(values: Sequence[Any], eps: float = 1e-5) -> list[Any]:
    mean, root = _mean(values), float(np.sqrt(np.float64(_var(values) + eps)))
    return [_divide(each - mean, root) for each in values]


REDUCE: dict[str, Callable[[Sequence[Any]], Any]] = {
    "sum": sum, "mean": _mean, "var": _var, "std": lambda values: math.sqrt(_var(values)),
    "norm": lambda values: float(np.sqrt(np.float64(sum(each * each for each in values)))),
    "max": _extreme(_largest), "min": _extreme(_smallest), "prod": math.prod, "logsumexp": _logsumexp,
    "argmax": lambda values: _first(values, True), "argmin": lambda values: _first(values, False),
}  # fmt: skip
"""Of the elements along the axes, one."""

ALONG: dict[str, Callable[..., Sequence[Any]]] = {
    "softmax": lambda values: [float(np.exp(each - _logsumexp(values))) for each in values],
    "log_softmax": lambda values: [each - _logsumexp(values) for each in values],
    "hardmax": lambda values: [float(n == _first(values, True)) for n in range(len(values))],
    "normalize": _normalize, "cumsum": _running(lambda a, b: a + b), "cumprod": _running(lambda a, b: a * b),
    "argsort": _ordered, "top": lambda values: _ordered(values, True), "recur": _recur,
}  # fmt: skip
"""Of the elements along the axes, as many."""


# ---------------------------------------------------------------------------- tensors and programs


@dataclass
class Tensor:
    """Its sizes, the entries of its bare name, and an element by its index."""

    axes: list[ast.expr]
    shape: Index | None = None
    at: Callable[[Index], Any] = field(default=lambda index: 0)
    recurs: int | None = None
    """The dimension along which it reads itself."""


def run(
    text: str, arrays: Mapping[str, Any], sizes: Mapping[str, int], outputs: Sequence[str]
) -> dict[str, np.ndarray]:
    """The outputs of a program, by name."""
    with np.errstate(all="ignore"):
        program = Program(ast.parse(text).body, arrays, sizes, {})
        return {name: _array(program.tensors[name]) for name in outputs}


def _array(tensor: Tensor) -> np.ndarray:
    shape = tensor.shape or ()
    elements = [tensor.at(index) for index in itertools.product(*map(range, shape))]
    if any(isinstance(each, int) and abs(each) >= 2**63 for each in elements):
        raise Untold("integers of more than 64 bits")
    return np.array(elements).reshape(shape) if elements else np.zeros(shape)


def _of_array(axes: list[ast.expr], array: Any) -> Tensor:
    found = np.asarray(array)
    return Tensor(axes, found.shape, lambda index: found[index].item())


def _entries(node: ast.expr) -> list[ast.expr]:
    """What stands in the brackets of a subscript."""
    inner = node.slice if isinstance(node, ast.Subscript) else ast.Tuple([])
    if not isinstance(inner, ast.Tuple):
        return [inner]
    return [inner] if _alone(inner) else inner.elts


def _alone(inner: ast.Tuple) -> bool:
    """Whether the brackets hold one composite, which has brackets of its own."""
    first, last = inner.elts[:1], inner.elts[-1:]
    begins = first and inner.col_offset < first[0].col_offset
    return bool(begins and (inner.end_col_offset or 0) > (last[0].end_col_offset or 0))


class Program:
    """A text with its tensors; of a block, one call of it."""

    def __init__(
        self,
        body: Sequence[ast.stmt],
        arrays: Mapping[str, Any],
        given: Mapping[str, int],
        blocks: Mapping[str, ast.FunctionDef],
        passed: Mapping[str, Tensor] | None = None,
        scope: str = "",
    ) -> None:
        self.arrays, self.given, self.blocks, self.scope = arrays, dict(given), dict(blocks), scope
        self.tensors: dict[str, Tensor] = dict(passed or {})
        self.outputs: list[str] = []
        self.steps: list[Line | Made] = []
        self.lines: dict[str, Line] = {}
        self.later: list[ast.Assign | ast.AugAssign] = []
        declared: dict[str, list[ast.expr]] = {}
        for statement in body:
            self.declare(statement, declared)
        for name in (
            {**declared, **self.tensors} if passed else ()
        ):  # axes of its own are as long as what is given
            for entry in declared.get(name, self.tensors[name].axes if name in self.tensors else []):
                for axis in _names(entry):
                    self.given.pop(axis, None)
        for statement in body:
            self.read(statement, declared)
        for statement in body:
            self.define(statement)
        for later in self.later:
            self.complete(later)
        self.find_recurrences()
        while self.steps:
            left = [step for step in self.steps if not step.settle()]
            if len(left) == len(self.steps):
                raise Refused("sizes that nothing tells, in " + " and ".join(map(str, left)))
            self.steps = left

    def declare(self, node: ast.stmt, declared: dict[str, list[ast.expr]]) -> None:
        """The axes that a declaration gives a tensor, a size, or a block."""
        if isinstance(node, ast.FunctionDef):
            self.blocks[node.name] = node
        if not isinstance(node, ast.AnnAssign):
            return
        kind = node.annotation.func if isinstance(node.annotation, ast.Call) else node.annotation
        if not (isinstance(kind, ast.Name) and kind.id in ("input", "parameter", "constant", "output")):
            assert isinstance(node.target, ast.Name)
            self.given[node.target.id] = self.number(node.annotation)
            return
        tensor = node.target.value if isinstance(node.target, ast.Subscript) else node.target
        assert isinstance(tensor, ast.Name)
        if kind.id == "output":
            self.outputs.append(tensor.id)
            return
        entries = _entries(node.target)
        for entry in entries:
            if isinstance(entry, ast.Slice):
                assert isinstance(entry.lower, ast.Name) and entry.upper is not None
                self.given[entry.lower.id] = self.number(entry.upper)
        declared[tensor.id] = [each.lower if isinstance(each, ast.Slice) else each for each in entries]  # type: ignore[misc]

    def number(self, node: ast.expr) -> int:
        """A size as it is written."""
        match node:
            case ast.Constant(value=int(value)):
                return value
            case ast.Name(id=name) if name in self.given:
                return self.given[name]
            case ast.BinOp(left=one, op=op, right=two):
                return int(OPERATORS[type(op)](self.number(one), self.number(two)))
        raise Refused(f"no size: {ast.unparse(node)}")

    def read(self, statement: ast.stmt, declared: Mapping[str, list[ast.expr]]) -> None:
        """Makes tensors of the arrays that the statement is the first to read."""
        if isinstance(statement, ast.FunctionDef):
            return
        reads = {
            node.value.id: _entries(node)
            for node in reversed([*ast.walk(statement)])
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)
        }
        for node in ast.walk(statement):
            if not isinstance(node, ast.Name):
                continue
            if node.id in self.tensors:
                self.tensors[node.id].axes = declared.get(node.id, self.tensors[node.id].axes)
            elif self.scope + node.id in self.arrays:
                axes = declared.get(node.id, reads.get(node.id, []))
                self.tensors[node.id] = _of_array(axes, self.arrays[self.scope + node.id])

    def define(self, statement: ast.stmt) -> None:
        """Adds what a statement computes."""
        match statement:
            case ast.Assign(targets=[target], value=ast.Call(func=ast.Name(id=name)) as call) if (
                name in self.blocks
            ):
                results = target.elts if isinstance(target, ast.Tuple) else [target]
                self.steps.append(Made(self, [_name(each) for each in results], call))
            case ast.Assign(targets=[target], value=right) if not _start(target):
                self.lines[_name(target)] = line = Line(self, target, right)
                self.tensors[_name(target)] = line.tensor
                self.steps.append(line)
            case ast.Assign() | ast.AugAssign():
                self.later.append(statement)
        if isinstance(statement, ast.Assign | ast.AugAssign):
            self.last = statement

    def complete(self, statement: ast.Assign | ast.AugAssign) -> None:
        """Adds a start or an addition to its equation."""
        target = statement.target if isinstance(statement, ast.AugAssign) else statement.targets[0]
        line, more = self.lines[_name(target)], Line(self, target, statement.value)
        if start := _start(target):
            line.tensor.recurs, position = start
            line.starts[position] = more
        else:
            line.added.append(more)

    def find_recurrences(self) -> None:
        """Which tensors read themselves, directly or by others, and along which dimension."""
        reads = {name: {*_names(line.right)} for name, line in self.lines.items()}
        reach = {name: _reached(name, reads) for name in reads}
        for name, line in self.lines.items():
            for node in _walk(line.right):
                if isinstance(node, ast.Subscript) and _name(node) in reads and name in reach[_name(node)]:
                    for dimension, entry in enumerate(_entries(node)):
                        if _step(entry) and _name(node) in reach[name]:
                            self.lines[_name(node)].tensor.recurs = dimension


def _reached(name: str, reads: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    todo = [name]
    while todo:
        more = reads.get(todo.pop(), set()) - found
        found |= more
        todo += more
    return found


def _name(node: ast.expr) -> str:
    inner = node.value if isinstance(node, ast.Subscript) else node
    return inner.id if isinstance(inner, ast.Name) else ""


def _children(node: ast.AST) -> Iterator[ast.expr]:
    """What stands in an expression, but for the names that brackets follow, and for slices, which are sizes."""
    match node:
        case ast.Subscript(slice=inner):
            yield inner
        case ast.Call(args=args, keywords=keywords):
            yield from [*args, *(each.value for each in keywords)]
        case ast.Slice():
            return
        case _:
            yield from (each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr))


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """All expressions in one, itself included."""
    yield node
    for each in _children(node):
        yield from _walk(each)


def _names(node: ast.AST) -> Iterator[str]:
    return (each.id for each in ast.walk(node) if isinstance(each, ast.Name))


def _integer(node: ast.expr | None) -> int | None:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as op, operand=ast.Constant(value=int(value))):
            return -value if isinstance(op, ast.USub) else value
    return None


def _start(target: ast.expr) -> tuple[int, int] | None:
    """The dimension and the position of a start, as it is written."""
    for dimension, entry in enumerate(_entries(target)):
        if isinstance(entry, ast.UnaryOp):
            return dimension, _integer(entry) or 0
    return None


def _step(entry: ast.expr) -> bool:
    """Whether it is an axis and so many positions on."""
    match entry:
        case ast.BinOp(left=ast.Name(), op=ast.Add() | ast.Sub(), right=ast.Constant()):
            return True
    return False


@dataclass
class Made:
    """A call of a block."""

    program: Program
    results: list[str]
    call: ast.Call

    def __str__(self) -> str:
        return ast.unparse(self.call)

    def settle(self) -> bool:
        """Makes the results once the operands have sizes."""
        program = self.program
        operands = [program.tensors.get(_name(each)) for each in self.call.args]
        if any(each is None or each.shape is None for each in operands):
            return False
        block = program.blocks[_name(self.call.func)]
        scopes = [each.value.value for each in self.call.keywords if isinstance(each.value, ast.Constant)]
        scope = f"{program.scope}{scopes[0]}." if scopes else program.scope
        names = [each.arg for each in block.args.args]
        passed = {
            name: Tensor(each.axes, each.shape, each.at)
            for name, each in zip(names, operands, strict=True)
            if each
        }
        inner = Program(block.body, program.arrays, program.given, program.blocks, passed, scope)
        last = inner.last.targets[0] if isinstance(inner.last, ast.Assign) else inner.last.target
        outputs = inner.outputs or [
            _name(each) for each in (last.elts if isinstance(last, ast.Tuple) else [last])
        ]
        for result, name in zip(self.results, outputs, strict=True):
            program.tensors[result] = inner.tensors[name]
        return True


class Line:
    """An equation: the sizes of its axes, where it sums, and its value at positions of its axes."""

    def __init__(self, program: Program, target: ast.expr, right: ast.expr) -> None:
        self.program, self.target, self.right = program, target, right
        self.tensor = Tensor(_entries(target), at=self.element)
        self.starts: dict[int, Line] = {}
        self.added: list[Line] = []
        self.sizes: Sizes = {}
        self.inner: dict[int, Sizes] = {}
        self.summed: dict[int, tuple[str, ...]] = {}
        self.free_of: dict[int, frozenset[str]] = {}
        self.kept: dict[Any, Any] = {}
        self.leading = 0

    def __str__(self) -> str:
        return f"{ast.unparse(self.target)} = {ast.unparse(self.right)}"

    # ---- axes

    def entries(self, node: ast.expr) -> list[ast.expr]:
        """What a tensor is read with: what is written, or the axes of its bare name; `...` as so many axes."""
        tensor = self.program.tensors.get(_name(node))
        listed = _entries(node) if isinstance(node, ast.Subscript) or tensor is None else tensor.axes
        return [
            each
            for entry in listed
            for each in (
                [ast.Name(f"...{n}") for n in range(self.leading)]
                if isinstance(entry, ast.Constant) and entry.value is ...
                else [entry]
            )
        ]

    def find_axes(self) -> set[str]:
        """Every name of the line that is an axis."""
        found: set[str] = set()
        for node in [*_walk(self.target), *_walk(self.right)]:
            if (isinstance(node, ast.Subscript) and _name(node) in self.program.tensors) or self.is_bare(
                node
            ):
                for entry in self.entries(node):  # type: ignore[arg-type]
                    for part in entry.elts if isinstance(entry, ast.Tuple) else [entry]:
                        if isinstance(part, ast.Name) and part.id not in self.program.tensors:
                            found.add(part.id)
            elif isinstance(node, ast.Call):
                found.update(_axes(node))
        for entry in self.entries(self.target):
            found.update(name for name in _names(entry) if name not in self.program.tensors)
        return found

    def is_bare(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id in self.program.tensors

    def sliced(self, node: ast.expr) -> Iterator[tuple[ast.Slice, str, int]]:
        """The slices of a read: the axis is that of the bare name."""
        tensor = self.program.tensors[_name(node)]
        for entry, axis, size in zip(self.entries(node), self.bare(tensor), tensor.shape or (), strict=False):
            if isinstance(entry, ast.Slice):
                if not isinstance(axis, ast.Name):
                    raise Refused(f"the axis of a slice that nothing tells, in {ast.unparse(node)}")
                yield entry, axis.id, size

    def bare(self, tensor: Tensor) -> list[ast.expr]:
        held = len(tensor.shape or ()) - len(tensor.axes) + 1
        return [
            each
            for entry in tensor.axes
            for each in (
                [ast.Name(f"...{n}") for n in range(held)]
                if isinstance(entry, ast.Constant) and entry.value is ...
                else [entry]
            )
        ]

    def free(self, node: ast.AST) -> frozenset[str]:
        """The axes that the value of an expression has."""
        if id(node) not in self.free_of:
            self.free_of[id(node)] = frozenset(self.find_free(node))
        return self.free_of[id(node)]

    def find_free(self, node: ast.AST) -> set[str]:
        if self.is_bare(node) or isinstance(node, ast.Subscript):
            found = {axis for entry in self.entries(node) for axis in self.in_entry(entry)}  # type: ignore[arg-type]
            return found | {axis for _, axis, _ in self.sliced(node)}  # type: ignore[arg-type]
        if isinstance(node, ast.Name):
            return set()
        if isinstance(node, ast.Call):
            function, axes = _name(node.func), _axes(node)
            if function == "index":
                return set(axes)
            found = {axis for each in node.args for axis in self.free(each)}
            if function == "top":
                return found - {axes[0]} | {axes[1]}
            return found - set(axes) if function in REDUCE else found | set(axes)
        return {axis for each in _children(node) for axis in self.free(each)}

    def in_entry(self, entry: ast.expr) -> set[str]:
        """The axes in an entry: in one, a name stands for where it is."""
        match entry:
            case ast.Name(id=name) if not self.is_bare(entry):
                return {name} & (self.axes | {name for name in [name] if name.startswith("...")})
            case ast.Name() | ast.Subscript() | ast.Call():
                return set(self.free(entry))
        return {
            axis for each in _children(entry) if isinstance(each, ast.expr) for axis in self.in_entry(each)
        }

    # ---- sizes

    def settle(self) -> bool:
        """Finds the sizes of the line; False where those of a tensor are still missing."""
        reads = [
            node
            for node in _walk(self.right)
            if self.is_bare(node) or (isinstance(node, ast.Subscript) and _name(node) in self.program.tensors)
        ]
        tensors = [self.program.tensors[_name(node)] for node in reads]  # type: ignore[arg-type]
        if any(
            tensor.shape is None and tensor.recurs is None and tensor is not self.tensor for tensor in tensors
        ):
            waiting = [t for t in tensors if t.shape is None and t.recurs is None]
            if not all(self.is_below(tensor) for tensor in waiting):
                return False
        for node, tensor in zip(reads, tensors, strict=True):
            listed = _entries(node) if isinstance(node, ast.Subscript) else tensor.axes
            if any(isinstance(each, ast.Constant) and each.value is ... for each in listed):
                self.leading = len(tensor.shape or ()) - len(listed) + 1
        self.free_of.clear()
        self.axes = self.find_axes()
        self.sizes = self.found(self.right, {})
        for line in (*self.added, *self.starts.values()):  # which may say how long it is where it does not itself
            line.axes = line.find_axes()
            found = line.found(line.right, {})
            for entry, other in zip(self.entries(self.target), line.entries(line.target), strict=True):
                if isinstance(entry, ast.Name) and isinstance(other, ast.Name) and other.id in found:
                    self.sizes[entry.id] = found[other.id]
        sizes = [self.size_of(entry, None, self.sizes) for entry in self.entries(self.target)]
        if self.tensor.shape is not None or None in sizes or not self.free(self.right) <= {*self.sizes}:
            return False
        self.tensor.shape = tuple(sizes)  # type: ignore[arg-type]
        self.place(self.right, frozenset(self.in_left()), True)
        for position, line in self.starts.items():
            line.settle_at(self.tensor, position)
        for line in self.added:
            line.settle_at(self.tensor, None)
        return True

    def is_below(self, tensor: Tensor) -> bool:
        """Whether a tensor is one that waits for this line."""
        name = _name(self.target)
        reads = {key: {*_names(line.right)} for key, line in self.program.lines.items()}
        return any(
            line.tensor is tensor and name in _reached(key, reads) for key, line in self.program.lines.items()
        )

    def in_left(self) -> set[str]:
        return {axis for entry in self.entries(self.target) for axis in self.in_entry(entry)}

    def settle_at(self, tensor: Tensor, position: int | None) -> None:
        """The sizes of a start or of an addition, which is of a tensor whose sizes are known."""
        self.axes = self.find_axes()
        known: Sizes = {}
        for entry, size in zip(self.entries(self.target), tensor.shape or (), strict=True):
            self.learn(entry, size, known, None)
        self.sizes = self.found(self.right, known)
        for node in _walk(self.target):
            if isinstance(node, ast.Subscript) and _name(node) != _name(self.target):
                self.learn_read(node, self.sizes)
        self.place(self.right, frozenset(self.in_left()), True)

    def found(self, root: ast.expr, known: Sizes) -> Sizes:
        """The sizes in an expression: what slices, pad and concat make, what is given, what tensors have, what fits."""
        sizes = dict(known)
        nodes = [*self.reached(root)]
        reads = [
            node
            for node in nodes
            if self.is_bare(node) or (isinstance(node, ast.Subscript) and _name(node) in self.program.tensors)
        ]
        for node in nodes:
            if isinstance(node, ast.Call) and _name(node.func) in ("pad", "concat", "stack"):
                self.learn_moved(node, sizes)
        for read in reads:
            for entry, axis, size in self.sliced(read):
                self.agree(sizes, axis, len(range(size)[self.as_slice(entry, sizes)]))
        for axis in self.axes & {*self.program.given} - {*sizes}:
            sizes[axis] = self.program.given[axis]
        before = -1
        while before != len(sizes):
            before = len(sizes)
            for read in reads:
                self.learn_read(read, sizes)
            if before == len(sizes):
                self.fit(reads, sizes)
        return sizes

    def reached(self, root: ast.AST) -> Iterator[ast.expr]:
        """The nodes of an expression, but those inside of `pad` and `concat`, whose axes have sizes of their own."""
        if isinstance(root, ast.expr):
            yield root
        if isinstance(root, ast.Call) and _name(root.func) in ("pad", "concat"):
            return
        for each in _children(root):
            yield from self.reached(each)

    def as_slice(self, entry: ast.Slice, sizes: Sizes) -> slice:
        parts = (entry.lower, entry.upper, entry.step)
        return slice(
            *(
                None if each is None else int(self.value(each, {}, {**self.program.given, **sizes}))
                for each in parts
            )
        )

    def learn_moved(self, node: ast.Call, sizes: Sizes) -> None:
        """The sizes of what `pad` and `concat` make, from inside of them."""
        amounts = {each.arg: each.value for each in node.keywords if each.arg != "value"}
        function, moved = _name(node.func), _axes(node) or [*amounts]
        total = 0
        for operand in node.args:
            if function == "stack":
                total += 1
                continue
            inner = self.inner[id(operand)] = self.found(operand, {})
            for axis in inner:
                if axis not in moved:
                    self.agree(sizes, axis, inner[axis])
            total += inner.get(moved[0], 1) if moved[0] in self.free(operand) else 1
        if function == "pad":
            inner = self.inner[id(node.args[0])]
            for axis, amount in amounts.items():
                self.agree(sizes, str(axis), max(0, inner[str(axis)] + sum(self.pair(amount))))
        else:
            self.agree(sizes, moved[0], total)

    def pair(self, amount: ast.expr) -> tuple[int, int]:
        """Before and after."""
        assert isinstance(amount, ast.Tuple)
        before, after = (self.value(each, {}, self.program.given) for each in amount.elts)
        return int(before), int(after)

    def agree(self, sizes: Sizes, axis: str, size: int) -> None:
        if sizes.setdefault(axis, size) != size:
            raise Refused(f"{axis} is {sizes[axis]} and {size} in {self}")

    def learn_read(self, node: ast.expr, sizes: Sizes) -> None:
        tensor = self.program.tensors[_name(node)]
        if tensor.shape is None:
            return
        entries = self.entries(node)
        if len(entries) != len(tensor.shape):
            raise Refused(f"{ast.unparse(node)} has {len(tensor.shape)} dimensions")
        for dimension, (entry, size) in enumerate(zip(entries, tensor.shape, strict=True)):
            self.learn(entry, size, sizes, tensor if tensor.recurs == dimension else None)

    def learn(self, entry: ast.expr, size: int, sizes: Sizes, recurrent: Tensor | None) -> None:
        """What the size of a dimension says of the axes in its entry."""
        match entry:
            case ast.Name(id=axis) if not self.is_bare(entry):
                self.agree(sizes, axis, size)
            case ast.BinOp(left=ast.Name(id=axis)) if recurrent and _step(entry):
                self.agree(sizes, axis, size)
            case ast.Tuple(elts=parts):
                known = [self.size_of(each, None, sizes) for each in parts]
                rest = math.prod(each for each in known if each is not None)
                open_ = [each for each, found in zip(parts, known, strict=True) if found is None]
                if (not open_ and rest != size) or (open_ and (rest == 0 or size % rest)):
                    raise Refused(f"{ast.unparse(entry)} has {size} positions in {self}")
                if len(open_) == 1 and isinstance(open_[0], ast.Name) and not self.is_bare(open_[0]):
                    sizes[open_[0].id] = size // rest

    def size_of(self, entry: ast.expr, rest: int | None, sizes: Mapping[str, int]) -> int | None:
        """How many positions an entry has, if that is known; of one that is no axis, the rest."""
        match entry:
            case ast.Name(id=axis) if not self.is_bare(entry):
                return sizes.get(axis)
            case ast.Tuple(elts=parts):
                known = [self.size_of(each, None, sizes) for each in parts]
                return None if None in known else math.prod(known)  # type: ignore[arg-type]
        return rest

    def fit(self, reads: Sequence[ast.expr], sizes: Sizes) -> None:
        """The one axis of an expression of positions that has no size is as long as fits."""
        for node in reads:
            tensor = self.program.tensors[_name(node)]
            for entry, size in zip(self.entries(node), tensor.shape or (), strict=False):
                if isinstance(entry, ast.BinOp) and not any(
                    isinstance(each, ast.Call | ast.Subscript) for each in _walk(entry)
                ):
                    axes = self.in_entry(entry)
                    missing = [axis for axis in axes if axis not in sizes]
                    if len(missing) == 1:
                        sizes[missing[0]] = self.longest(entry, missing[0], size, axes, sizes)
                        return

    def longest(self, entry: ast.expr, axis: str, size: int, axes: set[str], sizes: Sizes) -> int:
        others = [
            dict(zip(axes - {axis}, at, strict=True))
            for at in itertools.product(*(range(sizes[a]) for a in axes - {axis}))
        ]
        for count in range(size + 8):
            if not all(0 <= self.place_of(entry, {**at, axis: count}, sizes) < size for at in others):
                return count
        raise Refused(f"any number of positions fits {ast.unparse(entry)}")

    # ---- sums

    def place(self, node: ast.expr, kept: frozenset[str], direct: bool) -> None:
        """Says which axes are summed at a node: those that it has and that nothing outside of it keeps."""
        lost = self.free(node) - kept
        match node:
            case ast.BinOp(op=ast.Add() | ast.Sub()):
                self.place(node.left, kept, direct)
                self.place(node.right, kept, direct)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
                self.place(node.operand, kept, direct)
            case ast.BinOp(op=ast.Mult() | ast.Div()):
                factors = [*_factors(node)]
                here = frozenset(
                    axis
                    for axis in lost
                    if len(having := [each for each in factors if axis in self.free(each)]) > 1
                    or (direct and self.is_tensor(having[0]))
                )
                self.summed[id(node)] = tuple(sorted(here))
                for factor in factors:
                    self.place(factor, kept | here, direct)
            case ast.Call():
                axes = frozenset(_axes(node)) | {
                    str(each.arg) for each in node.keywords if _name(node.func) in ("pad", "roll")
                }
                for each in node.args if _name(node.func) != "index" else ():
                    self.place(each, kept | axes, False)
            case ast.BinOp() | ast.UnaryOp() | ast.Compare():
                for each in _children(node):
                    if isinstance(each, ast.expr):
                        self.place(each, kept, False)
            case _ if lost and self.is_tensor(node):
                if not direct:
                    raise Refused(f"no product sums {sorted(lost)} of {ast.unparse(node)}")
                self.summed[id(node)] = tuple(sorted(lost))

    def is_tensor(self, node: ast.AST) -> bool:
        if isinstance(node, ast.UnaryOp):
            return self.is_tensor(node.operand)
        return isinstance(node, ast.Subscript) or self.is_bare(node)

    # ---- values

    def element(self, index: Index) -> Any:
        """The element of the tensor of this line; outside of it, where it recurs, what it starts with."""
        if index in self.kept:
            if self.kept[index] is None:
                raise Refused(f"{self} reads itself where it is")
            return self.kept[index]
        self.kept[index] = None
        shape, along = self.tensor.shape or (), self.tensor.recurs
        if along is not None and not 0 <= index[along] < shape[along]:
            position = index[along] if index[along] < 0 else index[along] - shape[along] + 1
            start = self.starts.get(position)
            found = start.value(start.right, start.where(index, along), start.sizes) if start else 0
        else:
            found = self.value(self.right, self.where(index, None), self.sizes)
            found = sum((line.scattered.get(index, 0) for line in self.added), found)
        self.kept[index] = found
        return found

    def where(self, index: Index, along: int | None) -> dict[str, int]:
        """The positions of the axes on the left, from those of the dimensions."""
        at: dict[str, int] = {}
        for dimension, (entry, position) in enumerate(zip(self.entries(self.target), index, strict=True)):
            parts = entry.elts if isinstance(entry, ast.Tuple) else [entry]
            for part in reversed(parts) if dimension != along else ():
                assert isinstance(part, ast.Name)
                position, at[part.id] = divmod(position, max(1, self.sizes[part.id]))
        return at

    @property
    def scattered(self) -> dict[Index, Any]:
        """What an addition adds, by index."""
        if "scattered" not in self.kept:
            found: dict[Index, Any] = {}
            shape = self.program.tensors[_name(self.target)].shape or ()
            for at in self.all(
                self.in_left() | {axis for axis in self.free(self.right) & self.in_left()}, {}
            ):
                index = tuple(
                    self.place_of(entry, at, self.sizes, size)
                    for entry, size in zip(self.entries(self.target), shape, strict=True)
                )
                if any(not 0 <= position < size for position, size in zip(index, shape, strict=True)):
                    raise Refused(f"position {index} of {shape} in {ast.unparse(self.target)}")
                found[index] = found.get(index, 0) + self.value(self.right, at, self.sizes)
            self.kept["scattered"] = found
        return self.kept["scattered"]  # type: ignore[no-any-return]

    def all(
        self, axes: Sequence[str] | set[str], at: Mapping[str, int], sizes: Sizes | None = None
    ) -> Iterator[dict[str, int]]:
        """All positions of some axes, with those of others."""
        names = [*axes]
        for positions in itertools.product(*(range((sizes or self.sizes)[axis]) for axis in names)):
            yield {**at, **dict(zip(names, positions, strict=True))}

    def value(self, node: ast.expr, at: Mapping[str, int], sizes: Sizes) -> Any:
        """What an expression is at positions of its axes."""
        summed = self.summed.get(id(node))
        if not summed and not isinstance(node, ast.Call):
            return self.computed(node, at, sizes)
        key = (
            id(node),
            id(sizes),
            *(at.get(axis) for axis in sorted(self.free(node)) if axis not in (summed or ())),
        )
        if key not in self.kept:
            self.kept[key] = (
                sum(self.computed(node, each, sizes) for each in self.all(summed, at, sizes))
                if summed
                else self.computed(node, at, sizes)
            )
        return self.kept[key]

    def computed(self, node: ast.expr, at: Mapping[str, int], sizes: Sizes) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name) if not self.is_bare(node):
                constants = {"pi": math.pi, "inf": math.inf}
                known = sizes.get(name, self.program.given.get(name))
                return constants[name] if name in constants and known is None else known
            case ast.Name() | ast.Subscript():
                return self.read(node, at, sizes)
            case ast.UnaryOp(op=op, operand=operand):
                return OPERATORS[type(op)](self.value(operand, at, sizes))
            case ast.BinOp(left=left, op=op, right=right):
                return OPERATORS[type(op)](self.value(left, at, sizes), self.value(right, at, sizes))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return OPERATORS[type(op)](self.value(left, at, sizes), self.value(right, at, sizes))
            case ast.Call():
                return self.called(node, at, sizes)
        raise Refused(f"no expression: {ast.unparse(node)}")

    def read(self, node: ast.expr, at: Mapping[str, int], sizes: Sizes) -> Any:
        tensor = self.program.tensors[_name(node)]
        shape = tensor.shape or ()
        slices = {id(entry): axis for entry, axis, _ in self.sliced(node)}
        index: list[int] = []
        for dimension, (entry, size) in enumerate(zip(self.entries(node), shape, strict=True)):
            if isinstance(entry, ast.Slice):
                position = range(size)[self.as_slice(entry, sizes)][at[slices[id(entry)]]]
            else:
                position = self.place_of(entry, at, sizes, size)
            if not 0 <= position < size and not (tensor.recurs == dimension and _step(entry)):
                raise Refused(f"position {position} of {size} in {ast.unparse(node)}")
            index.append(position)
        return tensor.at(tuple(index))

    def place_of(self, entry: ast.expr, at: Mapping[str, int], sizes: Sizes, size: int = 0) -> int:
        """The position that an entry tells, in a dimension of so many."""
        literal = _integer(entry)
        if literal is not None:
            return literal + size if literal < 0 else literal
        match entry:
            case ast.Name(id=axis) if not self.is_bare(entry):
                return at[axis] if axis in at else int(self.computed(entry, at, sizes))
            case ast.Tuple(elts=parts):
                known = [self.size_of(each, None, sizes) for each in parts]
                rest = size // max(1, math.prod(each for each in known if each is not None))
                position = 0
                for part, each in zip(parts, known, strict=True):
                    own = rest if each is None else each
                    found = self.place_of(part, at, sizes, own)
                    if not 0 <= found < own:
                        raise Refused(f"position {found} of {own} in {ast.unparse(entry)}")
                    position = position * own + found
                return position
            case ast.BinOp(left=left, op=op, right=right):
                return int(
                    OPERATORS[type(op)](self.place_of(left, at, sizes), self.place_of(right, at, sizes))
                )
            case ast.UnaryOp(op=op, operand=operand):
                return int(OPERATORS[type(op)](self.place_of(operand, at, sizes)))
        return int(self.value(entry, at, sizes))

    def called(self, node: ast.Call, at: Mapping[str, int], sizes: Sizes) -> Any:
        """A function of elements, over axes, or of positions."""
        function, axes, args = _name(node.func), _axes(node), node.args
        options = {str(each.arg): each.value for each in node.keywords}
        if function == "index":
            return at[axes[0]]
        if function == "repeat":
            return self.value(args[0], at, sizes)
        if function == "onehot":
            return float(self.value(args[0], at, sizes) == at[axes[0]])
        if function in ("previous", "following"):
            position = at[axes[0]] + (-1 if function == "previous" else 1)
            if 0 <= position < sizes[axes[0]]:
                return self.value(args[0], {**at, axes[0]: position}, sizes)
            return self.value(args[1], at, sizes) if len(args) > 1 else 0
        if function == "roll":
            shifted = {
                i: (at[i] - int(self.value(each, {}, sizes))) % max(1, sizes[i])
                for i, each in options.items()
            }
            return self.value(args[0], {**at, **shifted}, sizes)
        if function == "pad":
            filled = self.value(options.pop("value"), at, sizes) if "value" in options else 0
            inner = self.inner[id(args[0])]
            moved = {i: at[i] - self.pair(each)[0] for i, each in options.items()}
            inside = all(0 <= position < inner[i] for i, position in moved.items())
            return self.value(args[0], {**at, **moved}, inner) if inside else filled
        if function in ("concat", "stack"):
            position = at[axes[0]]
            for operand in args:
                inner = self.inner.get(id(operand), sizes)
                size = inner[axes[0]] if function == "concat" and axes[0] in self.free(operand) else 1
                if position < size:
                    return self.value(operand, {**at, axes[0]: position}, inner)
                position -= size
        named = {name: self.value(each, at, sizes) for name, each in options.items()}
        if function in POINTWISE:
            return POINTWISE[function](*(self.value(each, at, sizes) for each in args), **named)
        over = axes[:1] if function == "top" else axes
        tables = [[self.value(each, where, sizes) for where in self.all(over, at, sizes)] for each in args]
        if function in REDUCE:
            return REDUCE[function](tables[0])
        key = id(node), "along", id(sizes), *(at.get(axis) for axis in sorted(self.free(node) - {*axes}))
        if key not in self.kept:
            self.kept[key] = ALONG[function](*tables, **named)
        if function == "top":
            if sizes[axes[1]] > len(tables[0]):
                raise Refused("fewer elements than positions asked for")
            return self.kept[key][at[axes[1]]]
        number = 0
        for axis in axes:
            number = number * sizes[axis] + at[axis]
        return self.kept[key][number]


def _axes(node: ast.Call) -> list[str]:
    """The axes that a function runs over or makes."""
    if _name(node.func) == "index" and isinstance(node.args[0], ast.Name):
        return [node.args[0].id]
    return (
        [name for each in _entries(node.func) for name in _names(each)]
        if isinstance(node.func, ast.Subscript)
        else []
    )


def _factors(node: ast.expr) -> Iterator[ast.expr]:
    """The factors of a chain of `*` and `/`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        yield from _factors(node.left)
        yield node.right
    else:
        yield node
