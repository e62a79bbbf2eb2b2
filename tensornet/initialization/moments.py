"""Moment propagation: mean and mean square of an expression, assuming independent inputs.

A product of normal tensors, summed, has a mean square that is a sum over pairings (Isserlis 1918):
each tensor is paired with its like of the other copy, and an axis counts as often as it is free to run.

    E[(Σᵢ xᵢ·Wᵢ)²] = Σᵢⱼ E[xᵢ·xⱼ]·E[Wᵢ·Wⱼ] = I·E[x²]·E[W²]

Pairings hold for means other than zero and for a tensor that is read twice as well. Functions are
integrated by Gauss–Hermite quadrature over a normal argument, or one whose logarithm is normal
where the function wants it positive.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ..errors import EquationError
from ..graph.algebra import function_of_one, put
from ..graph.graph import Graph
from ..graph.leaves import Constant, Leaf
from ..graph.shape_inference import Scope, scope_inside
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Ref,
    Size,
    axes_of_index,
    free_axes,
    is_scalar,
    references,
    scalar_value,
    show,
    subexpressions,
)
from ..ops.moments import STANDARD, UNKNOWN, Known, Moments
from ..ops.table import FUNCTIONS
from ..sizes import evaluate
from .norms import Norm, norms_in
from .samplers import fan_of, moments_of

__all__ = ["Estimator", "moments_of_start"]

TYPICAL = 64
"""The size assumed for an axis that is open."""

MOST_PAIRINGS = 1000
"""Of more pairings, only those of each tensor with itself are looked at."""


Reading: TypeAlias = tuple[int, tuple[Any, ...]]
"""Where a tensor is read: the copy of the product, and the index there."""

Pair: TypeAlias = tuple[Reading, Reading]


@dataclass(frozen=True)
class _Factor:
    """A factor of a product: equal keys are one tensor, under these indices."""

    key: str
    index: tuple[Any, ...]
    moments: Moments


class Estimator:
    """Estimates the moments of expressions of a graph from those of its tensors.

    Attributes:
        tensors: the moments of every tensor that are known.
        definitions: the lines that make weights of parameters; they are looked through.
        lines: the moments of such weights, as last estimated; who changes a parameter takes them out.
        trial: moments to go by for whole expressions, in their stead.
        assumed: the same, for as long as the estimator is there.
        norms: products by their factors, with the norms among them, which no start changes.
        scopes: the sizes of axes in expressions, which none changes either.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.tensors: dict[str, Moments] = {}
        self.definitions: dict[str, Equation] = {}
        self.lines: dict[str, Moments] = {}
        self.trial: dict[Expression, Moments] = {}
        self.assumed: dict[Expression, Moments] = {}
        self.norms: dict[tuple[Expression, ...], tuple[tuple[Expression, ...], tuple[Norm, ...]]] = {}
        self.scopes: dict[Expression, Scope] = {}
        self.equations = {equation.name: equation for equation in graph.equations}
        self.leaves = {leaf.name: leaf for leaf in graph.leaves}
        for leaf in graph.leaves:
            if (found := _of_leaf(graph, leaf)) is not None:
                self.tensors[leaf.name] = found

    # ---- sizes

    def scope(self, expression: Expression, around: Scope | None = None) -> Scope:
        """The sizes of the axes in an expression, and of those around it."""
        if isinstance(expression, Contraction):
            expression = Contraction(expression.factors)
        found = self.scopes.get(expression)
        if found is None:
            found = self.scopes[expression] = scope_inside(expression, self.graph.dims, self.graph.bound)
        if around is None:
            return found
        return Scope({**around.sizes, **found.sizes}, {**around.assumed, **found.assumed})

    def count(self, scope: Scope, axis: str) -> float:
        """The size of an axis as a number."""
        size = evaluate(scope[axis], self.graph.bound)
        return float(size) if isinstance(size, int) else float(TYPICAL)

    # ---- moments

    def of_start(self, name: str, start: tuple[str, float]) -> Moments:
        """The moments of what a parameter starts at."""
        kind, number = start
        if kind in ("value", "std"):
            return Moments(number if kind == "value" else 0.0, number**2)
        found = moments_of_start(self.graph, replace(self.leaves[name], start=start))
        assert found is not None
        return found

    def of(self, expression: Expression, scope: Scope | None = None) -> Moments:
        """The moments of the elements of an expression."""
        if self.trial and expression in self.trial:
            return self.trial[expression]
        if self.assumed and expression in self.assumed:
            return self.assumed[expression]
        scope = self.scope(expression) if scope is None else scope
        match expression:
            case Ref(name) if name in self.tensors:
                return self.tensors[name]
            case Ref(name) if name in self.definitions:
                return self._of_line(name)
            case Ref():
                return STANDARD
            case _ if is_scalar(expression):
                return self._number(expression, scope)
            case _ if (one := function_of_one(expression)) is not None:
                return self._of_one(expression, one, scope)
            case Contraction():
                return self._product(expression, scope)
            case Call("add", terms):
                return self._sum(terms, scope)
            case Call():
                found = self._call(expression, scope)
                return found if math.isfinite(found.square) or self._weighs(expression) else STANDARD
        raise AssertionError(f"no case for {expression}")

    def _of_line(self, name: str) -> Moments:
        """Those of a weight; the lines before it first, so that a long chain of lines is no deep recursion."""
        if self.trial:
            return self.lines.get(name) or self.of(self.definitions[name].right)
        for line, equation in self.definitions.items():
            if line not in self.lines:
                self.lines[line] = self.of(equation.right)
            if line == name:
                break
        return self.lines[name]

    def _weighs(self, expression: Expression) -> bool:
        """Whether an expression without moments matters: none but parameters go into it."""
        kinds = {
            self.leaves[ref.name].kind if ref.name in self.leaves else None for ref in references(expression)
        }
        return kinds == {"parameter"}

    def _number(self, expression: Expression, scope: Scope) -> Moments:
        value = scalar_value(expression, lambda axis: self.count(scope, axis))
        if value is None or not math.isfinite(abs(value)):
            return Moments(1.0, 1.0)
        value = value.real if not isinstance(value, complex) or value.imag == 0 else abs(value)
        return Moments(float(value), float(value) ** 2)

    def _of_one(self, expression: Expression, one: Ref, scope: Scope) -> Moments:
        sizes = {part.axis for part in subexpressions(expression) if isinstance(part, Size)}
        counts = tuple((axis, self.count(scope, axis)) for axis in sorted(sizes))
        found = _of_form(put(expression, one, _BLANK), counts, self.of(one, scope).rounded())
        return found if math.isfinite(found.square) or self._weighs(expression) else STANDARD

    def _product(self, term: Contraction, scope: Scope) -> Moments:
        scope = self.scope(term, scope)
        number, factors = self._factors(term, scope)
        summed = [term.summed]
        mean = number * self._expectation([factors], summed, scope)
        return Moments(mean, number**2 * self._expectation([factors, factors], summed * 2, scope))

    def _sum(self, terms: tuple[Expression, ...], scope: Scope) -> Moments:
        """Σ E[t] and Σ E[t·t'], terms that read the same tensor being correlated."""
        each = [self.of(term, scope) for term in terms]
        square = sum(one.square for one in each)
        for (a, one), (b, two) in itertools.combinations(zip(terms, each, strict=True), 2):
            square += 2 * self._correlation(a, b, one, two, scope)
        return Moments(sum(one.mean for one in each), square)

    def _correlation(self, a: Expression, b: Expression, one: Moments, two: Moments, scope: Scope) -> float:
        if not {ref.name for ref in references(a)} & {ref.name for ref in references(b)}:
            return one.mean * two.mean
        scope = self.scope(b, self.scope(a, scope))
        (first, left), (second, right) = self._factors(a, scope), self._factors(b, scope)
        summed = [part.summed if isinstance(part, Contraction) else () for part in (a, b)]
        return first * second * self._expectation([left, right], summed, scope)

    # ---- products

    def _factors(self, term: Expression, scope: Scope) -> tuple[float, list[_Factor]]:
        """The number before a product, and its factors: functions of one tensor at one place are one factor."""
        parts = term.factors if isinstance(term, Contraction) else (term,)
        number, places, found = 1.0, dict[Ref, list[Expression]](), list[_Factor]()
        parts, norms = self._norms_in(parts)
        for norm in norms:
            moments = self._norm(norm, scope)
            if moments is not None:
                both = Contraction((*norm.divided, norm.factor))
                found.append(_Factor(show(both), free_axes(both), moments))
                parts = tuple(each for each in parts if all(each is not part for part in both.factors))
        for part in parts:
            one = function_of_one(part)
            if is_scalar(part):
                number *= self._number(part, scope).mean
            elif one is not None and part not in self.trial:
                places.setdefault(one, []).append(part)
            else:
                found.append(_Factor(show(part), free_axes(part), self.of(part, scope)))
        for one, group in places.items():
            whole = group[0] if len(group) == 1 else Contraction(tuple(group))
            key = one.name if whole == one else show(whole)
            found.append(_Factor(key, _positions(one), self.of(whole, scope)))
        return number, found

    def apart_from_norms(self, factors: tuple[Expression, ...]) -> list[Expression]:
        """The factors of a product that are no norm, nor what one divides."""
        factors, norms = self._norms_in(factors)
        within = [part for norm in norms for part in (*norm.divided, norm.factor)]
        return [factor for factor in factors if all(factor is not part for part in within)]

    def _norms_in(self, factors: tuple[Expression, ...]) -> tuple[tuple[Expression, ...], tuple[Norm, ...]]:
        """The factors of a product, and the norms among them: products are looked at for every start tried."""
        if factors not in self.norms:
            self.norms[factors] = factors, tuple(norms_in(factors, self._line))
        return self.norms[factors]

    def _line(self, ref: Ref) -> Expression | None:
        """What a tensor is, if it is read under the axes that it was defined with."""
        equation = self.equations.get(ref.name)
        return equation.right if equation is not None and equation.left == ref.index else None

    def _norm(self, norm: Norm, scope: Scope) -> Moments | None:
        """Those of what is divided by the root of its mean square; nothing where the root is none, or of too little."""
        if any(part in self.trial for part in (norm.square, norm.root, norm.factor)):
            return None
        scope = self.scope(norm.square, scope)
        square = self.of(norm.square, scope).mean
        if not 0 < square < math.inf or not norm.is_root(square):
            return None
        count = math.prod(self.count(scope, axis) for axis in norm.summed)
        divided = norm.divided[0] if len(norm.divided) == 1 else Contraction(norm.divided)
        mean, times = self.of(divided, scope).mean, norm.times(square)
        return Moments(mean * times, square * times**2 / count)

    def _expectation(
        self, copies: Sequence[Sequence[_Factor]], summed: Sequence[tuple[str, ...]], scope: Scope
    ) -> float:
        """E of the product of all copies, each summed over its own axes."""
        groups: dict[str, list[tuple[int, _Factor]]] = {}
        for copy, factors in enumerate(copies):
            for factor in factors:
                groups.setdefault(factor.key, []).append((copy, factor))
        total = 0.0
        choices = [list(_pairings(group, MOST_PAIRINGS)) for group in groups.values()]
        if math.prod(map(len, choices)) > MOST_PAIRINGS:
            choices = [[max(each, key=lambda pairing: pairing.log)] for each in choices]
        for chosen in itertools.product(*choices):
            log = sum(pairing.log for pairing in chosen)
            if log > -math.inf:
                runs = self._runs([pair for each in chosen for pair in each.pairs], summed, scope)
                total += math.prod(pairing.sign for pairing in chosen) * _exp(log + runs)
        return total

    def _runs(self, pairs: list[Pair], summed: Sequence[tuple[str, ...]], scope: Scope) -> float:
        """The logarithm of how often the summed axes run, where pairs make some of them equal."""
        parent: dict[Any, Any] = {}

        def root(node: Any) -> Any:
            while parent.setdefault(node, node) != node:
                node = parent[node]
            return node

        runs = sum(math.log(self.count(scope, axis)) for axes in summed for axis in axes)
        for (one, first), (two, second) in pairs:
            for a, b in zip(first, second, strict=False):
                if isinstance(a, str) and isinstance(b, str):
                    nodes = [(c, x) if x in summed[c] else (-1, x) for c, x in ((one, a), (two, b))]
                    ours, theirs = sorted(map(root, nodes), key=lambda node: node[0], reverse=True)
                    if ours != theirs:
                        runs -= math.log(self.count(scope, ours[1]))
                        parent[ours] = theirs
        return runs

    # ---- functions

    def _call(self, call: Call, scope: Scope) -> Moments:
        found = tuple(self.of(argument, scope) for argument in call.arguments)
        inner = self.scope(call.arguments[0], scope) if call.arguments else scope
        tensors = tuple(n for n, argument in enumerate(call.arguments) if not is_scalar(argument))
        count = math.prod(self.count(inner, axis) for axis in call.axes)
        rule = FUNCTIONS[call.function].moments
        told = None if rule is None else rule(Known(found, tensors, count))
        return self._pointwise(call, found, tensors, scope) if told is None else told

    def _pointwise(
        self, call: Call, found: tuple[Moments, ...], free: tuple[int, ...], scope: Scope
    ) -> Moments:
        function = FUNCTIONS[call.function]
        compute = function.scalar
        if compute is None or function.kind != "pointwise" or len(free) != 1:
            return found[0] if found else STANDARD
        numbers: list[Any] = [moments.mean for moments in found]
        told = {name: self._number(values[0], scope).mean for name, values in call.options}

        def at(value: float) -> Any:
            return compute(*numbers[: free[0]], value, *numbers[free[0] + 1 :], **told)

        return _integrate(at, found[free[0]], positive=function.positive)


# ---------------------------------------------------------------------------- leaves


def moments_of_start(graph: Graph, leaf: Leaf) -> Moments | None:
    """The moments of what a parameter is told to start at, if it is."""
    match leaf.start:
        case Constant() as value:
            return _of_array(value)
        case (kind, number):
            found = (evaluate(size, graph.bound) for size in leaf.shape)
            shape = tuple(float(size) if isinstance(size, int) else float(TYPICAL) for size in found)
            return Moments(*moments_of(kind, number, shape, fan_of(graph, leaf)))
    return None


def _of_leaf(graph: Graph, leaf: Leaf) -> Moments | None:
    """The moments of a leaf, where they are known from the outset."""
    match leaf.kind, leaf.value:
        case "input", _:
            return STANDARD
        case "constant", Constant() as value:
            return _of_array(value)
    return moments_of_start(graph, leaf)


def _of_array(value: Constant) -> Moments:
    """Those of the elements that are no mask: not infinite, nor standing for it."""
    array = value.array()
    if array.dtype.kind not in "fc" or not array.size:
        return STANDARD
    finite = array[abs(array) < 1e6]
    if not finite.size:
        return STANDARD
    return Moments(float(abs(finite.mean())), float((abs(finite) ** 2).mean()))


# ---------------------------------------------------------------------------- pairings


@dataclass(frozen=True)
class _Pairing:
    """A weight, by its logarithm, since a long product leaves the range of a float on the way; and the pairs of
    (copy, index) that are read at one place."""

    log: float
    sign: float
    pairs: tuple[Pair, ...]

    @staticmethod
    def of(powers: Sequence[tuple[float, int]], pairs: tuple[Pair, ...] = ()) -> _Pairing:
        """That of a product of powers."""
        if any(base == 0 and power for base, power in powers):
            return _Pairing(-math.inf, 1.0, ())
        log = sum(power * math.log(abs(base)) for base, power in powers if power)
        return _Pairing(log, math.prod(math.copysign(1.0, base) ** power for base, power in powers), pairs)


def _pairings(group: list[tuple[int, _Factor]], most: int) -> Iterator[_Pairing]:
    """All ways to pair the readings of one tensor, those left over giving their mean."""
    moments = group[0][1].moments
    variance, mean = moments.variance, moments.mean
    half = len(group) // 2
    if math.prod(range(1, len(group), 2)) > most:  # each reading with its like of the other copy
        if group[0][0] == group[-1][0]:
            yield _Pairing.of([(mean, len(group))])
            return
        pairs = tuple(
            ((a[0], a[1].index), (b[0], b[1].index)) for a, b in zip(group[:half], group[half:], strict=False)
        )
        yield _Pairing.of([(moments.square, half)], pairs)
        return
    readings = [(copy, factor.index) for copy, factor in group]
    for singles, matched in _matchings(tuple(range(len(group)))):
        found = tuple((readings[a], readings[b]) for a, b in matched)
        pairing = _Pairing.of([(mean, singles), (variance, len(matched))], found)
        if pairing.log > -math.inf and not any(_apart(a[1], b[1]) for a, b in found):
            yield pairing
    yield _Pairing.of([(0.0, 1)])


def _positions(ref: Ref) -> tuple[str | int, ...]:
    """The axes and numbers in brackets, those of composites and gathers one by one."""
    found: list[str | int] = []
    for entry in ref.index:
        found.extend(axes_of_index((entry,)) if not isinstance(entry, int) else (entry,))
    return tuple(found)


def _apart(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    """Whether two indices never meet: they name different positions."""
    return any(
        isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(first, second, strict=False)
    )


def _matchings(items: tuple[int, ...]) -> Iterator[tuple[int, tuple[tuple[int, int], ...]]]:
    """How many are left alone, and the pairs of the others."""
    if not items:
        yield 0, ()
        return
    first, rest = items[0], items[1:]
    for singles, pairs in _matchings(rest):
        yield singles + 1, pairs
    for n, other in enumerate(rest):
        for singles, pairs in _matchings(rest[:n] + rest[n + 1 :]):
            yield singles, ((first, other), *pairs)


# ---------------------------------------------------------------------------- functions


_BLANK = Size("")
"""Where the one tensor of an expression stood: a number without a name."""


@functools.lru_cache(1024)
def _of_form(form: Expression, counts: tuple[tuple[str, float], ...], moments: Moments) -> Moments:
    """Those of a function of the blank in a form."""
    sizes = dict(counts)
    return _integrate(lambda value: scalar_value(form, {**sizes, _BLANK.axis: value}.get), moments)


@functools.cache
def _points(count: int) -> tuple[tuple[float, float], ...]:
    """Nodes and weights of E[f(z)] for a standard normal z."""
    import numpy

    nodes, weights = numpy.polynomial.hermite_e.hermegauss(count)
    return tuple(zip(nodes.tolist(), (weights / math.sqrt(2 * math.pi)).tolist(), strict=True))


def _integrate(compute: Callable[[float], Any], moments: Moments, positive: bool = False) -> Moments:
    """Those of a function of a normal number; none where the integral does not exist."""
    try:
        (_, coarse), (most, fine) = (_quadrature(compute, moments, positive, count) for count in (24, 41))
    except (ArithmeticError, ValueError, TypeError, EquationError):
        return UNKNOWN
    close = 0.5 < (coarse.square + 1e-300) / (fine.square + 1e-300) < 2
    return fine if (close and fine.square < 1e12) or most <= 1 else UNKNOWN


def _quadrature(
    compute: Callable[[float], Any], moments: Moments, positive: bool, count: int
) -> tuple[float, Moments]:
    """The largest value met, and the moments."""
    deviation, spread = math.sqrt(moments.variance), 0.0
    if positive and moments.mean > 0:
        spread = math.sqrt(math.log(moments.square / moments.mean**2)) if deviation else 0.0
    most = mean = square = 0.0
    for node, weight in _points(count) if deviation else ((0.0, 1.0),):
        value = moments.mean + deviation * node
        if spread:
            value = moments.mean * math.exp(spread * node - spread**2 / 2)
        found = compute(value)
        result = float(abs(found) if isinstance(found, complex) else found)
        most = max(most, abs(result))
        mean, square = mean + weight * result, square + weight * result**2
    return most, Moments(mean, square)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
