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
  read, then the longest windows that fit, and last what a declaration calls a dimension.

`Refused` is raised of what the language refuses, `Untold` of what it leaves open.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import erf, expit
from sympy import sympify

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
    return lambda *values, **options: float(function(*map(np.float64, values), **options))


def _softplus(a: Any) -> Any:
    return np.logaddexp(0.0, a)


def _elu(a: Any, alpha: Any = 1.0) -> Any:
    return a if a > 0 else alpha * np.expm1(a)


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
    "tanh": _real(np.tanh), "erf": _real(erf), "sigmoid": _real(expit),
    "relu": lambda a: _largest(a, 0), "gelu": _real(lambda a: a * (0.5 + 0.5 * erf(a * math.sqrt(0.5)))),
    "gelu_tanh": _real(lambda a: a * expit(2 * math.sqrt(2 / math.pi) * (a + 0.044715 * a**3))),
    "silu": _real(lambda a: a * expit(a)), "softplus": _real(_softplus),
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


def _average_hardmax(values: Sequence[Any]) -> list[float]:
    largest = values[_first(values, True)]
    return [float(each == largest) / values.count(largest) for each in values]


def _logsumexp(values: Sequence[Any]) -> float:
    return float(np.logaddexp.reduce(np.array(values, float))) if values else -math.inf


def _log_softmax(values: Sequence[Any]) -> list[Any]:
    total = _logsumexp(values)
    if not total < math.inf:
        raise Untold("a softmax of what is infinite or no number")
    return [each - total for each in values]


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
    "softmax": lambda values: [float(np.exp(each)) for each in _log_softmax(values)], "log_softmax": _log_softmax,
    "hardmax": lambda values: [float(n == _first(values, True)) for n in range(len(values))],
    "average_hardmax": _average_hardmax,
    "average_hardmin": lambda values: _average_hardmax([-each for each in values]),
    "normalize": _normalize, "cumsum": _running(lambda a, b: a + b), "cumprod": _running(lambda a, b: a * b),
    "argsort": _ordered, "top": lambda values: _ordered(values, True), "recur": _recur,
}  # fmt: skip
"""Of the elements along the axes, as many."""


# ---------------------------------------------------------------------------- what a line is made of


@dataclass
class Tensor:
    """The entries of its bare name, its sizes once they are known, and an element by its index."""

    axes: list[ast.expr]
    shape: Index | None = None
    at: Callable[[Index], Any] = lambda index: 0
    recurs: set[int] = field(default_factory=set)
    """The dimensions along which it reads itself."""


@dataclass(eq=False)
class Number:
    value: Any


@dataclass(eq=False)
class Size:
    """A name that is no axis of the line, or an axis that stands in an expression."""

    name: str


@dataclass(eq=False)
class Place:
    """Where an axis is: its name in brackets, or `index(i)`."""

    axis: str


@dataclass(eq=False)
class Composite:
    parts: list[Node]


@dataclass(eq=False)
class Read:
    tensor: Tensor
    entries: list[Node]
    sliced: Sizes = field(default_factory=dict)
    """How long the axes of its slices are."""


@dataclass(eq=False)
class Op:
    """An operator of Python's."""

    kind: type
    args: list[Node]


@dataclass(eq=False)
class Call:
    """A function, the names in its brackets, and what it is called with."""

    function: str
    axes: list[str]
    args: list[Node]
    options: dict[str, Node]


Node = Number | Size | Place | Composite | Read | Op | Call


def _children(node: Node) -> Sequence[Node]:
    match node:
        case Composite(parts=found) | Read(entries=found) | Op(args=found) | Call(args=found):
            return found
    return ()


def _walk(node: Node) -> Iterator[Node]:
    """The nodes of an expression, but those in `pad` and `concat`, whose axes have sizes of their own."""
    yield node
    if not (isinstance(node, Call) and node.function in ("pad", "concat")):
        for each in _children(node):
            yield from _walk(each)


def _name(node: ast.expr | None) -> str:
    """The name before the brackets."""
    inner = node.value if isinstance(node, ast.Subscript) else node
    return inner.id if isinstance(inner, ast.Name) else ""


def _entries(node: ast.expr) -> list[ast.expr]:
    """What stands in the brackets of a subscript: of `x[(h,d)]` one composite, which `ast` reads like `x[h,d]`."""
    if not isinstance(node, ast.Subscript):
        return []
    inner = node.slice
    if not isinstance(inner, ast.Tuple) or not inner.elts:
        return [] if isinstance(inner, ast.Tuple) else [inner]
    ends = inner.elts[-1].end_col_offset or 0
    alone = inner.col_offset < inner.elts[0].col_offset and (inner.end_col_offset or 0) > ends
    return [inner] if alone else inner.elts


def _parts(node: ast.expr | None) -> list[ast.expr]:
    """The parts of a composite; what is none alone."""
    return node.elts if isinstance(node, ast.Tuple) else [node] if node else []


def _dots(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _start(target: ast.expr) -> tuple[int, int] | None:
    """The dimension and the position of a start: `h[b,-1]`, `h[b,+1]`."""
    for dimension, entry in enumerate(_entries(target)):
        if isinstance(entry, ast.UnaryOp) and isinstance(entry.operand, ast.Constant):
            return dimension, int(ast.literal_eval(entry))
    return None


def _is_step(entry: ast.expr | Node) -> bool:
    """Whether an entry is an axis and so many positions on, as `t-1`."""
    match entry:
        case ast.BinOp(left=ast.Name(), op=ast.Add() | ast.Sub(), right=ast.Constant()):
            return True
        case Op(kind=kind, args=[Place(), Number()]):
            return kind in (ast.Add, ast.Sub)
    return False


# ---------------------------------------------------------------------------- programs


def run(
    text: str, arrays: Mapping[str, Any], sizes: Mapping[str, int], outputs: Sequence[str]
) -> dict[str, np.ndarray]:
    """The outputs of a program, by name."""
    with np.errstate(all="ignore"):
        program = Program(ast.parse(text).body, arrays, sizes)
        return {name: _array(program.tensors[name]) for name in outputs}


def meaning(
    graph: Any, arrays: Mapping[str, Any], sizes: Mapping[str, int] | None = None
) -> dict[str, np.ndarray]:
    """The outputs of a graph by its text; `sizes` are of axes that are open."""
    known = {**(sizes or {})}
    for name, size in graph.bound.items():
        known[name] = size if isinstance(size, int) else int(sympify(size).subs(known))
    constants = {leaf.name: leaf.value.array() for leaf in graph.constants}
    return run(str(graph), {**arrays, **constants}, known, graph.outputs)


def _array(tensor: Tensor) -> np.ndarray:
    shape = tensor.shape or ()
    elements = [tensor.at(index) for index in itertools.product(*map(range, shape))]
    if any(isinstance(each, int) and abs(each) >= 2**63 for each in elements):
        raise Untold("integers of more than 64 bits")
    return np.array(elements).reshape(shape) if elements else np.zeros(shape)


def _of_array(axes: list[ast.expr], array: Any) -> Tensor:
    found = np.asarray(array)
    return Tensor(axes, found.shape, lambda index: found[index].item())


class Program:
    """A text with its tensors; of a block, one call of it."""

    def __init__(
        self, body: Sequence[ast.stmt], arrays: Mapping[str, Any], given: Mapping[str, int], **outer: Any
    ) -> None:
        self.arrays, self.scope = arrays, str(outer.get("scope", ""))
        self.blocks: dict[str, ast.FunctionDef] = dict(outer.get("blocks", {}))
        self.tensors: dict[str, Tensor] = dict(outer.get("passed", {}))
        self.axes = {
            _name(each.target): _entries(each.target) for each in body if isinstance(each, ast.AnnAssign)
        }
        own = {
            n.id
            for name, t in self.tensors.items()
            for e in self.axes.get(name, t.axes)
            for n in ast.walk(e)
            if isinstance(n, ast.Name)
        }
        self.given = {axis: size for axis, size in given.items() if axis not in own}
        self.called: dict[str, int] = {}
        self.outputs: list[str] = []
        self.lines: dict[str, Line] = {}
        self.steps: list[Line | Made] = []
        for statement in body:
            self.declare(statement)
        for statement in body:
            self.find_leaves(statement)
        for statement in body:
            self.define(statement)
        self.find_recurrences()
        while self.steps:
            left = [step for step in self.steps if not step.settle()]
            if len(left) == len(self.steps) and not any(self.tell(step) for step in left):
                raise Refused(f"sizes that nothing tells, in {' and '.join(map(str, left))}")
            self.steps = left
        for line in self.lines.values():
            line.check()

    def tell(self, step: Line | Made) -> bool:
        """Whether the sizes of what reads a tensor along axes alone tell one that its own line does not; if only
        positions of an axis are read, it is taken for as long as they need, whatever it is."""
        before, needed = (dict(step.told) if isinstance(step, Line) else {}), Sizes()
        for line in self.lines.values() if isinstance(step, Line) else ():
            reader = Line(self, line.target, line.source)
            reader.parse()
            sizes = reader.found(reader.right, {})
            for read in _walk(reader.right):
                if isinstance(read, Read) and read.tensor is step.tensor and line is not step:
                    for mine, entry in zip(step.tensor.axes, read.entries, strict=False):
                        if isinstance(entry, Place) and entry.axis in sizes:
                            step.told.setdefault(_name(mine), sizes[entry.axis])
                        if isinstance(entry, Number) and entry.value >= 0:
                            needed[_name(mine)] = max(needed.get(_name(mine), 0), entry.value + 1)
        if isinstance(step, Line) and step.told == before:
            step.told = {**needed, **step.told}
        return isinstance(step, Line) and step.told != before

    def declare(self, node: ast.stmt) -> None:
        """Blocks, sizes, outputs, and the sizes in declarations."""
        if isinstance(node, ast.FunctionDef):
            self.blocks[node.name] = node
        if not isinstance(node, ast.AnnAssign):
            return
        kind = node.annotation.func if isinstance(node.annotation, ast.Call) else node.annotation
        if _name(kind) == "output":
            self.outputs.append(_name(node.target))
        elif _name(kind) not in ("input", "parameter", "constant"):
            self.given[_name(node.target)] = self.number(node.annotation)
        entries = self.axes[_name(node.target)]
        for entry in entries:
            if isinstance(entry, ast.Slice) and entry.upper:
                pairs = zip(_parts(entry.lower), _parts(entry.upper), strict=True)
                self.given.update({_name(axis): self.number(size) for axis, size in pairs})
        self.axes[_name(node.target)] = [
            each.lower if isinstance(each, ast.Slice) and each.lower else each for each in entries
        ]

    def number(self, node: ast.expr) -> int:
        """A size as it is written."""
        match node:
            case ast.Constant(value=int(value)):
                return value
            case ast.Name(id=name) if name in self.given or name in self.called:
                return self.given.get(name, self.called.get(name, 0))
            case ast.BinOp(left=one, op=op, right=two):
                return int(OPERATORS[type(op)](self.number(one), self.number(two)))
        raise Refused(f"no size: {ast.unparse(node)}")

    def find_leaves(self, statement: ast.stmt) -> None:
        """Makes tensors of the arrays that a statement reads: a bare name has the axes of the declaration, or of the first read."""
        nodes = [*ast.walk(statement)] if not isinstance(statement, ast.FunctionDef) else []
        first = {_name(node): _entries(node) for node in reversed(nodes) if isinstance(node, ast.Subscript)}
        for name in [node.id for node in nodes if isinstance(node, ast.Name)]:
            if name in self.tensors:
                self.tensors[name].axes = self.axes.get(name, self.tensors[name].axes)
            elif self.scope + name in self.arrays:
                array = self.arrays[self.scope + name]
                for entry, size in zip(self.axes.get(name, []), array.shape, strict=False):
                    if isinstance(entry, ast.Name) and self.given.get(entry.id, size) != size:
                        raise Refused(f"{name} has {size} positions along '{entry.id}'")
                    if isinstance(entry, ast.Name):
                        self.called.setdefault(entry.id, size)
                self.tensors[name] = _of_array(self.axes.get(name, first.get(name, [])), array)

    def define(self, statement: ast.stmt) -> None:
        """Adds what a statement computes; a start may stand above its equation."""
        match statement:
            case ast.Assign(targets=[target], value=ast.Call(func=ast.Name(id=name)) as call) if (
                name in self.blocks
            ):
                results = target.elts if isinstance(target, ast.Tuple) else [target]
                self.steps.append(Made(self, [_name(each) for each in results], call))
                self.last = [_name(each) for each in results]
            case ast.Assign(targets=[target], value=right) | ast.AugAssign(target=target, value=right):
                line = self.lines.setdefault(_name(target), Line(self))
                self.last = [_name(target)]
                if isinstance(statement, ast.AugAssign):
                    line.added.append(Line(self, target, right))
                elif start := _start(target):
                    line.tensor.recurs.add(start[0])
                    line.starts[start] = Line(self, target, right)
                else:
                    line.target, line.source = target, right
                    line.tensor.axes = _entries(target)
                    self.tensors[_name(target)] = line.tensor
                    self.steps.append(line)

    def find_recurrences(self) -> None:
        """Which tensors read themselves, directly or by others, or stand below what reads them, and along which dimensions:
        those with an axis of the left of what reads them."""
        reads = {
            name: {n.id for n in ast.walk(line.source) if isinstance(n, ast.Name)}
            for name, line in self.lines.items()
        }
        order = [*self.lines]
        for name, line in self.lines.items():
            left = {part.id for part in ast.walk(line.target) if isinstance(part, ast.Name)}
            for node in ast.walk(line.source):
                read = _name(node) if isinstance(node, ast.Subscript) else ""
                is_below = read in order[order.index(name) :]
                if is_below or (read in _reached(name, reads) and name in _reached(read, reads)):
                    self.recur(node, left)
        for line in self.lines.values():
            for node in ast.walk(line.source):
                read = self.tensors.get(_name(node)) if isinstance(node, ast.Subscript) else None
                if read and read.recurs:
                    self.recur(node, {*map(_name, read.axes)})

    def recur(self, read: ast.expr, axes: set[str]) -> None:
        """A read of a state a step away along some of these axes."""
        for dimension, entry in enumerate(_entries(read)):
            if isinstance(entry, ast.BinOp) and _is_step(entry) and _name(entry.left) in axes:
                self.tensors[_name(read)].recurs.add(dimension)


def _reached(name: str, reads: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    todo = [name]
    while todo:
        more = reads.get(todo.pop(), set()) - found
        found |= more
        todo += more
    return found


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
        outer, block = self.program, self.program.blocks[_name(self.call.func)]
        operands = [outer.tensors.get(_name(each)) for each in self.call.args]
        known = [
            Tensor(each.axes, each.shape, each.at) for each in operands if each and each.shape is not None
        ]
        if len(known) < len(operands):
            return False
        passed = dict(zip((each.arg for each in block.args.args), known, strict=True))
        scope = outer.scope + "".join(f"{ast.literal_eval(each.value)}." for each in self.call.keywords)
        inner = Program(
            block.body, outer.arrays, outer.given, blocks=outer.blocks, passed=passed, scope=scope
        )
        made = (inner.tensors[name] for name in inner.outputs or inner.last)
        outer.tensors.update(zip(self.results, made, strict=True))
        return True


class Line:
    """An equation, a start or an addition: the sizes of its axes, where it sums, its value at positions of its axes."""

    def __init__(
        self, program: Program, target: ast.expr | None = None, source: ast.expr | None = None
    ) -> None:
        self.program, self.target, self.source = program, target or ast.Name(""), source or ast.Constant(0)
        self.tensor = Tensor(_entries(self.target), at=self.element)
        self.starts: dict[tuple[int, int], Line] = {}
        self.added: list[Line] = []
        self.told: Sizes = {}
        self.inner: dict[int, Sizes] = {}
        self.summed: dict[int, list[str]] = {}
        self.kept: dict[Any, Any] = {}

    def __str__(self) -> str:
        return f"{ast.unparse(self.target)} = {ast.unparse(self.source)}"

    # ---- reading

    def parse(self) -> None:
        """Reads the text, now that tensors have sizes: `...` is as many axes as it takes."""
        nodes, tensors = [*ast.walk(self.source), *ast.walk(self.target)], self.program.tensors
        read = [node for node in nodes if isinstance(node, ast.Subscript)]
        before = {id(node.value) for node in read}
        bare = [n for n in nodes if isinstance(n, ast.Name) and n.id in tensors and id(n) not in before]
        listed = [(tensors[n.id], tensors[n.id].axes) for n in bare]
        listed += [(tensors[_name(n)], _entries(n)) for n in read if _name(n) in tensors]
        self.leading = max(
            (len(t.shape) - len(e) + 1 for t, e in listed if t.shape is not None and any(map(_dots, e))),
            default=0,
        )
        entries = [entry for each in (*map(_entries, read), *(own for _, own in listed)) for entry in each]
        alone = [part for e in entries for part in (e.elts if isinstance(e, ast.Tuple) else [e])]
        calls = (node for node in nodes if isinstance(node, ast.Call) and _name(node.func) == "index")
        alone += [each for node in calls for each in node.args]
        self.axes = {_name(each) for each in alone if isinstance(each, ast.Name)}
        self.axes |= {
            _name(entry.left)  # a step under the state's own axis
            for tensor, entries in listed
            for mine, entry in zip(tensor.axes, entries, strict=False)
            if tensor.recurs and isinstance(entry, ast.BinOp) and _is_step(entry)
            if _name(mine) == _name(entry.left)
        }
        self.free_of: dict[int, frozenset[str]] = {}
        self.right = self.expression(self.source)
        self.left = [self.entry(each) for each in self.spread(_entries(self.target))]

    def spread(self, entries: list[ast.expr]) -> list[ast.expr]:
        return [
            each
            for entry in entries
            for each in ([ast.Name(f"...{n}") for n in range(self.leading)] if _dots(entry) else [entry])
        ]

    def expression(self, node: ast.expr, inside: bool = False) -> Node:
        """An expression; `inside` of brackets the name of an axis is where it is, outside how long."""
        match node:
            case ast.Constant(value=value):
                return Number(value)
            case ast.Name(id=name) if inside and name in self.axes:
                return Place(name)
            case ast.Name() | ast.Subscript() if _name(node) in self.program.tensors:
                tensor = self.program.tensors[_name(node)]
                entries = self.spread(_entries(node) if isinstance(node, ast.Subscript) else tensor.axes)
                read = Read(tensor, [])
                for each in entries:
                    read.entries.append(
                        self.slice(each, read) if isinstance(each, ast.Slice) else self.entry(each)
                    )
                return read
            case ast.Name(id=name):
                return Number({"pi": math.pi, "inf": math.inf}[name]) if name in ("pi", "inf") else Size(name)
            case ast.UnaryOp(op=op, operand=one):
                return Op(type(op), [self.expression(one, inside)])
            case ast.BinOp(left=one, op=op, right=two):
                return Op(type(op), [self.expression(one, inside), self.expression(two, inside)])
            case ast.Compare(left=one, ops=[order], comparators=[two]):
                return Op(type(order), [self.expression(one, inside), self.expression(two, inside)])
            case ast.Call(func=function, args=args, keywords=keywords):
                if _name(function) == "index":
                    return Place(_name(args[0]))
                options = {str(each.arg): self.expression(each.value) for each in keywords}
                return Call(
                    _name(function),
                    [_name(each) for each in _entries(function)],
                    [self.expression(each, inside) for each in args],
                    options,
                )
            case ast.Tuple(elts=parts):
                return Composite([self.expression(each) for each in parts])
        raise Refused(f"no expression: {ast.unparse(node)}")

    def entry(self, node: ast.expr) -> Node:
        """What stands in brackets for one dimension: a name there is an axis."""
        match node:
            case ast.Name(id=name):
                return Place(name)
            case ast.Tuple(elts=parts):
                return Composite([self.entry(each) for each in parts])
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
                return Number(-value)
        return self.expression(node, inside=True)

    def slice(self, node: ast.Slice, read: Read) -> Node:
        """A slice, along the axis that the bare name has there."""
        dimension, tensor = len(read.entries), read.tensor
        axis = _name(self.spread(tensor.axes)[dimension])
        if tensor.shape is None or not axis:
            raise Refused("the axis of a slice that nothing tells")
        start, stop, step = (
            int(self.value(self.expression(each), {}, self.program.given)) if each else None
            for each in (node.lower, node.upper, node.step)
        )
        taken = range(tensor.shape[dimension])[start:stop:step]
        read.sliced[axis] = len(taken)
        return Op(ast.Add, [Number(taken.start), Op(ast.Mult, [Number(taken.step), Place(axis)])])

    def free(self, node: Node) -> frozenset[str]:
        """The axes that an expression has."""
        if id(node) not in self.free_of:
            found = frozenset(axis for each in _children(node) for axis in self.free(each))
            match node:
                case Place(axis):
                    found = frozenset([axis])
                case Call(function="top", axes=[along, made]):
                    found = found - {along} | {made}
                case Call(function=function, axes=axes):
                    found = found - {*axes} if function in REDUCE else found | {*axes}
            self.free_of[id(node)] = found
        return self.free_of[id(node)]

    def on_left(self) -> frozenset[str]:
        return frozenset(axis for entry in self.left for axis in self.free(entry))

    # ---- sizes

    def settle(self) -> bool:
        """Finds the sizes of the line; False where those of a tensor that it reads are missing."""
        if any(t.shape is None and isinstance(e, ast.Slice) for t, e in self.slices()):
            return False
        self.parse()
        self.sizes = self.found(self.right, self.told)
        for line in (*self.added, *self.starts.values()):  # which may tell what the equation does not
            line.parse()
            found = line.found(line.right, {})
            for one, two in zip(self.left, line.left, strict=True):
                if isinstance(one, Place) and isinstance(two, Place) and two.axis in found:
                    self.sizes.setdefault(one.axis, found[two.axis])
        shape = [self.size_of(entry, self.sizes) for entry in self.left]
        if None in shape or not self.free(self.right) <= {*self.sizes}:
            return False
        self.tensor.shape = tuple(each for each in shape if each is not None)
        for line in (self, *self.added, *self.starts.values()):
            if line is not self:
                line.parse()
                known: Sizes = {}
                for entry, size in zip(line.left, self.tensor.shape, strict=True):
                    line.learn(entry, size, known, None)
                line.sizes = line.found(line.right, known)
                for read in (each for entry in line.left for each in _walk(entry) if isinstance(each, Read)):
                    line.learn_read(read, line.sizes)
            line.place(line.right, line.on_left(), True)
        return True

    def slices(self) -> Iterator[tuple[Tensor, ast.expr]]:
        for node in ast.walk(self.source):
            if isinstance(node, ast.Subscript) and _name(node) in self.program.tensors:
                yield from ((self.program.tensors[_name(node)], entry) for entry in _entries(node))

    def check(self) -> None:
        """Compares the sizes with those of all that is read."""
        for read in _walk(self.right):
            if isinstance(read, Read):
                self.learn_read(read, self.sizes)

    def found(self, root: Node, known: Sizes) -> Sizes:
        """The sizes in an expression: what slices, pad and concat make, what is given, what tensors have, what fits."""
        sizes, nodes = dict(known), [*_walk(root)]
        reads = [node for node in nodes if isinstance(node, Read)]
        for node in nodes:
            if isinstance(node, Call) and node.function in ("pad", "concat", "stack"):
                self.learn_moved(node, sizes)
        for axis, size in (each for read in reads for each in read.sliced.items()):
            self.agree(sizes, axis, size)
        for axis in self.axes & {*self.program.given} - {*sizes}:
            sizes[axis] = self.program.given[axis]
        before = -1
        while before != len(sizes):
            before = len(sizes)
            for read in reads:
                self.learn_read(read, sizes)
            if before == len(sizes):
                self.fit(reads, sizes)
            if before == len(sizes):
                sizes |= {
                    axis: self.program.called[axis] for axis in self.axes & {*self.program.called} - {*sizes}
                }
        return sizes

    def agree(self, sizes: Sizes, axis: str, size: int) -> None:
        if sizes.setdefault(axis, size) != size:
            raise Refused(f"{axis} is {sizes[axis]} and {size} in {self}")

    def learn_moved(self, node: Call, sizes: Sizes) -> None:
        """The sizes of what `pad`, `concat` and `stack` make, from inside of them."""
        moved = node.axes or [axis for axis in node.options if axis not in ("value", "inside")]
        lengths: list[int] = []
        for operand in node.args if node.function != "stack" else ():
            inner = self.inner[id(operand)] = self.found(operand, {})
            if not self.free(operand) <= {*inner}:
                return
            for axis in {*inner} - {*moved}:
                self.agree(sizes, axis, inner[axis])
            lengths.append(inner[moved[0]] if moved[0] in self.free(operand) else 1)
        if node.function == "pad":
            inner = self.inner[id(node.args[0])]
            for axis in moved:
                amounts = self.pair(node.options[axis])
                if "inside" in node.options and max(amounts) > 0:
                    raise Refused(f"a slice of more than there is in {self}")
                self.agree(sizes, axis, max(0, inner[axis] + sum(amounts)))
        else:
            self.agree(sizes, moved[0], sum(lengths) if lengths else len(node.args))

    def pair(self, amount: Node) -> list[int]:
        """What `pad` adds before and after."""
        return [int(self.value(each, {}, self.program.given)) for each in _children(amount)]

    def learn_read(self, read: Read, sizes: Sizes) -> None:
        shape = read.tensor.shape
        if shape is not None and len(read.entries) != len(shape):
            raise Refused(f"a tensor of {len(shape)} dimensions in {self}")
        for dimension, (entry, size) in enumerate(zip(read.entries, shape or (), strict=False)):
            self.learn(entry, size, sizes, self.steps_on(read, dimension))

    def steps_on(self, read: Read, dimension: int) -> bool:
        """Whether a state is read a step away there: under an axis of the left or its own, back, or to a start."""
        if dimension not in read.tensor.recurs:
            return False
        match read.entries[dimension]:
            case Op(kind=kind, args=[Place(axis), Number(by)]) if _is_step(read.entries[dimension]):
                is_back = (by < 0) == (kind is ast.Add)
                starts = (line.starts for line in self.program.lines.values() if line.tensor is read.tensor)
                is_own = axis in self.on_left() or axis == _name(read.tensor.axes[dimension])
                return (
                    is_own or is_back or any(n == dimension and at > 0 for each in starts for n, at in each)
                )
        return True

    def learn(self, entry: Node, size: int, sizes: Sizes, recurs: bool | None) -> None:
        """What the size of a dimension says of the axes in its entry."""
        match entry:
            case Place(axis):
                self.agree(sizes, axis, size)
            case Op(args=[Place(axis), *_]) if recurs and _is_step(entry):
                self.agree(sizes, axis, size)
            case Composite(parts):
                known = [self.size_of(each, sizes) for each in parts]
                rest = math.prod(each for each in known if each is not None)
                missing = [each for each, found in zip(parts, known, strict=True) if found is None]
                if (not missing and rest != size) or (missing and (rest == 0 or size % rest)):
                    raise Refused(f"a composite of {size} positions in {self}")
                if len(missing) == 1 and isinstance(missing[0], Place):
                    sizes[missing[0].axis] = size // rest

    def size_of(self, entry: Node, sizes: Mapping[str, int]) -> int | None:
        """How many positions an axis or a composite has, if that is known."""
        match entry:
            case Place(axis):
                return sizes.get(axis)
            case Composite(parts):
                known = [self.size_of(each, sizes) for each in parts]
                return None if None in known else math.prod(each for each in known if each is not None)
        return None

    def fit(self, reads: Sequence[Read], sizes: Sizes) -> None:
        """The one axis without a size in a sum of positions is as long as fits."""
        for read in reads:
            for entry, size in zip(read.entries, read.tensor.shape or (), strict=False):
                axes = self.free(entry)
                missing = axes - {*sizes}
                kinds = {type(each) if not isinstance(each, Op) else each.kind for each in _walk(entry)}
                if (
                    len(missing) == 1
                    and isinstance(entry, Op)
                    and not kinds & {Read, Call, ast.Mod, ast.FloorDiv}
                ):
                    axis, others = *missing, [*self.all(axes - missing, {}, sizes)]
                    sizes[axis] = 0
                    while all(
                        0 <= self.value(entry, {**at, axis: sizes[axis]}, sizes) < size for at in others
                    ):
                        sizes[axis] += 1
                        if sizes[axis] > 99:
                            raise Refused(f"any number of positions fits in {self}")
                    return

    # ---- sums

    def place(self, node: Node, kept: frozenset[str], direct: bool) -> None:
        """Says which axes are summed at a node: those that it has and that nothing outside of it keeps."""
        lost = self.free(node) - kept
        match node:
            case Op(kind=kind, args=args) if kind in (ast.Add, ast.Sub, ast.USub, ast.UAdd):
                for each in args:
                    self.place(each, kept, direct)
            case Op(kind=kind) if kind in (ast.Mult, ast.Div):
                factors = [*_factors(node)]
                having = {axis: [each for each in factors if axis in self.free(each)] for axis in lost}
                here = [
                    axis for axis, each in having.items() if len(each) > 1 or (direct and _is_tensor(each[0]))
                ]
                self.summed[id(node)] = sorted(here)
                for each in factors:
                    self.place(each, kept | {*here}, direct)
            case Op(args=args) | Call(args=args):
                around = {*node.axes, *node.options} if isinstance(node, Call) else set()
                for each in args:
                    self.place(each, kept | around, False)
            case Read() if lost:
                if not direct:
                    raise Refused(f"no product sums {sorted(lost)} in {self}")
                self.summed[id(node)] = sorted(lost)

    # ---- values

    def element(self, index: Index) -> Any:
        """The element of the tensor of this line; outside of it, where it recurs, what it starts with."""
        if index not in self.kept:
            self.kept[index] = None
            shape = self.tensor.shape or ()
            outside = [n for n in self.tensor.recurs if not 0 <= index[n] < shape[n]]
            if outside:
                n = outside[0]
                start = self.starts.get((n, index[n] if index[n] < 0 else index[n] - shape[n] + 1))
                is_told = start is not None and len(outside) == 1
                found = start.value(start.right, start.where(index), start.sizes) if start and is_told else 0
            else:
                found = self.value(self.right, self.where(index), self.sizes)
                found = sum((line.scattered().get(index, 0) for line in self.added), found)
            self.kept[index] = found
        if self.kept[index] is None:
            raise Refused(f"{self} reads itself where it is")
        return self.kept[index]

    def where(self, index: Index) -> dict[str, int]:
        """The positions of the axes on the left, from those of the dimensions."""
        at: dict[str, int] = {}
        for entry, position in zip(self.left, index, strict=True):
            for part in reversed(entry.parts if isinstance(entry, Composite) else [entry]):
                if isinstance(part, Place):
                    position, at[part.axis] = divmod(position, max(1, self.sizes[part.axis]))
        return at

    def scattered(self) -> dict[Index, Any]:
        """What an addition adds, by index."""
        if "scattered" not in self.kept:
            found: dict[Index, Any] = {}
            shape = self.program.tensors[_name(self.target)].shape or ()
            for at in self.all(self.on_left(), {}, self.sizes):
                index = tuple(
                    self.position(entry, at, self.sizes, size)
                    for entry, size in zip(self.left, shape, strict=True)
                )
                found[index] = found.get(index, 0) + self.value(self.right, at, self.sizes)
            self.kept["scattered"] = found
        return self.kept["scattered"]  # type: ignore[no-any-return]

    def all(
        self, axes: Iterable[str], at: Mapping[str, int], sizes: Mapping[str, int]
    ) -> Iterator[dict[str, int]]:
        """All positions of some axes, with those of others."""
        names = [*axes]
        for positions in itertools.product(*(range(sizes[axis]) for axis in names)):
            yield {**at, **dict(zip(names, positions, strict=True))}

    def value(self, node: Node, at: Mapping[str, int], sizes: Mapping[str, int]) -> Any:
        """What an expression is at positions of its axes."""
        summed = self.summed.get(id(node))
        if not summed and not isinstance(node, Call):
            return self.computed(node, at, sizes)
        key = (
            id(node),
            id(sizes),
            *(at.get(axis) for axis in sorted(self.free(node).difference(summed or ()))),
        )
        if key not in self.kept:
            values = [self.computed(node, each, sizes) for each in self.all(summed or (), at, sizes)]
            self.kept[key] = sum(values) if summed else values[0]
            if summed and self.kept[key] != self.kept[key]:
                self.ordered(node, summed, at, sizes)
        return self.kept[key]

    def ordered(self, node: Node, summed: list[str], at: Mapping[str, int], sizes: Sizes) -> None:
        """Refuses to tell a sum that is no number where it is one with its factors multiplied in another order."""
        factors = [*_powers(node)]
        nested = (self.nested(factors, axes, at, sizes) for axes in itertools.permutations(summed))
        if any(found == found for found in nested):
            raise Untold("a sum of products of what is infinite")

    def nested(
        self, factors: Sequence[tuple[Node, bool]], axes: Sequence[str], at: Mapping[str, int], sizes: Sizes
    ) -> Any:
        """A sum along one axis inside of that along another, each factor outside of the sums whose axes it lacks."""
        inside = [each for each in factors if not self.free(each[0]).isdisjoint(axes)]
        found = 1
        if axes:
            first, *others = axes
            found = sum(self.nested(inside, others, {**at, first: n}, sizes) for n in range(sizes[first]))
        for factor, divides in factors:
            if self.free(factor).isdisjoint(axes):
                value = self.value(factor, at, sizes)
                found = _divide(found, value) if divides else found * value
        return found

    def computed(self, node: Node, at: Mapping[str, int], sizes: Mapping[str, int]) -> Any:
        match node:
            case Place():
                return at[node.axis]
            case Read():
                entries = zip(node.entries, node.tensor.shape or (), strict=True)
                return node.tensor.at(
                    tuple(
                        [
                            self.position(entry, at, sizes, size, self.steps_on(node, n))
                            for n, (entry, size) in enumerate(entries)
                        ]
                    )
                )
            case Op():
                return OPERATORS[node.kind](*[self.value(each, at, sizes) for each in node.args])
            case Number():
                return node.value
            case Size(name):
                return sizes[name] if name in sizes else self.program.number(ast.Name(name))
            case Call():
                return self.called(node, at, sizes)
        raise Refused(f"positions in an expression of {self}")

    def position(
        self, entry: Node, at: Mapping[str, int], sizes: Mapping[str, int], size: int, recurs: bool = False
    ) -> int:
        """The position that an entry tells, in a dimension of so many."""
        if isinstance(entry, Place):
            found = at[entry.axis]
        elif isinstance(entry, Composite):
            known = [self.size_of(each, sizes) for each in entry.parts]
            rest = size // max(1, math.prod(each for each in known if each is not None))
            found = 0
            for part, each in zip(
                entry.parts, (rest if each is None else each for each in known), strict=True
            ):
                found = found * each + self.position(part, at, sizes, each)
        else:
            found = int(self.value(entry, at, sizes))
            found += size if isinstance(entry, Number) and found < 0 else 0
        if not 0 <= found < size and not (recurs and _is_step(entry)):
            raise Refused(f"position {found} of {size} in {self}")
        return found

    def called(self, node: Call, at: Mapping[str, int], sizes: Mapping[str, int]) -> Any:
        """A function of elements, over axes, or of positions."""
        function, axes, args, options = node.function, node.axes, node.args, node.options
        match function:
            case "repeat":
                return self.value(args[0], at, sizes)
            case "onehot":
                return float(self.value(args[0], at, sizes) == at[axes[0]])
            case "previous" | "following":
                there = at[axes[0]] + (-1 if function == "previous" else 1)
                if 0 <= there < sizes[axes[0]]:
                    return self.value(args[0], {**at, axes[0]: there}, sizes)
                return self.value(args[1], at, sizes) if len(args) > 1 else 0
            case "roll":
                moved = {
                    i: (at[i] - int(self.value(each, {}, sizes))) % max(1, sizes[i])
                    for i, each in options.items()
                }
                return self.value(args[0], {**at, **moved}, sizes)
            case "pad":
                inner = self.inner[id(args[0])]
                moved = {
                    i: at[i] - self.pair(each)[0]
                    for i, each in options.items()
                    if i not in ("value", "inside")
                }
                if all(0 <= there < inner[i] for i, there in moved.items()):
                    return self.value(args[0], {**at, **moved}, inner)
                return self.value(options["value"], at, sizes) if "value" in options else 0
            case "stack":
                return self.value(args[at[axes[0]]], at, sizes)
            case "concat":
                there = at[axes[0]]
                for operand in args:
                    inner = self.inner[id(operand)]
                    length = inner[axes[0]] if axes[0] in self.free(operand) else 1
                    if there < length:
                        return self.value(operand, {**at, axes[0]: there}, inner)
                    there -= length
        if any(axis not in sizes for axis in axes) or (
            args and function in ALONG and not {*axes[:1]} <= self.free(args[0]) | self.free(args[-1])
        ):
            raise Refused(f"{function} runs over an axis that its operand has not, in {self}")
        named = {name: self.value(each, at, sizes) for name, each in options.items()}
        if function in POINTWISE:
            return POINTWISE[function](*(self.value(each, at, sizes) for each in args), **named)
        over, made = (axes[:1], axes[1:]) if function == "top" else (axes, axes)
        if function in REDUCE:
            return REDUCE[function]([self.value(args[0], each, sizes) for each in self.all(over, at, sizes)])
        key = (
            id(node),
            "along",
            id(sizes),
            *(at.get(axis) for axis in sorted(self.free(node).difference(axes))),
        )
        if key not in self.kept:
            values = ([self.value(arg, each, sizes) for each in self.all(over, at, sizes)] for arg in args)
            self.kept[key] = ALONG[function](*values, **named)
        number = 0
        for axis in made:
            number = number * sizes[axis] + at[axis]
        if number >= len(self.kept[key]):
            raise Refused("fewer elements than positions asked for")
        return self.kept[key][number]


def _factors(node: Node) -> Iterator[Node]:
    """The factors of a chain of `*` and `/`."""
    return (factor for factor, _ in _powers(node))


def _powers(node: Node) -> Iterator[tuple[Node, bool]]:
    """The factors of a chain of `*` and `/`, each with whether it divides."""
    if isinstance(node, Op) and node.kind in (ast.Mult, ast.Div):
        yield from _powers(node.args[0])
        yield node.args[1], node.kind is ast.Div
    else:
        yield node, False


def _is_tensor(node: Node) -> bool:
    """Whether it is a tensor as it stands, or less it."""
    return isinstance(node, Read) or (
        isinstance(node, Op) and node.kind is ast.USub and _is_tensor(node.args[0])
    )
