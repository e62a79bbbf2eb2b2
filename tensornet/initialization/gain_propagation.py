"""Gain propagation: the target mean square of an expression, passed down to its parameters.

The table in `initial_values.py` lists the rules. `aim` brings an expression to its target. `vanish` starts it at
zero, but keeps all factors of a product except one nonzero. `rescale` and `_set_gain` search where no formula is known.

`Starts` holds the starts chosen so far, and estimates the mean and mean square of an expression that follow, assuming
independent factors (moment propagation):

    E[(Σᵢ xᵢ·Wᵢ)²] = I·E[x²]·E[W²] + I·(I − 1)·E[x]²·E[W]²

The second term is present if no factor has a mean of zero. Functions are integrated by Gauss–Hermite quadrature over
a normal argument. The measured pass corrects for factors that depend on one another.

Long chains of weights start near the identity. The scale of a long product of random matrices drifts: its logarithm is
a sum of as many random terms. Matrices near the identity keep their input, however many there are. Weights that cannot
be links stay random, so that the product itself is not an identity. A core that also reads a feature,
`A[l,i,r] * f[b,i]`, is the identity for each position of the feature, divided by the mean of the sum of the features.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..display import rounded
from ..errors import EquationError, TensornetWarning
from ..graph.graph import Graph
from ..graph.leaves import Constant, Leaf
from ..graph.shape_inference import Scope, scope_inside
from ..language.canonical import expanded, function_of_one, put, value_of
from ..language.equation import Equation
from ..language.expression import Call, Contraction, Expression, Literal, Ref, Size, scalar_value, show
from ..ops.record import STANDARD, UNKNOWN, Known, Moments
from ..ops.table import FUNCTIONS
from ..sizes import evaluate
from .samplers import fan_of, square_of

TYPICAL = 64
"""The size assumed for an axis that is open."""

NODES = 41
"""The number of quadrature points for a normal variable."""

SPREAD = 2.5
"""The variance of a mean of squares is below this multiple of its squared mean, even for a single square."""


FAR = 3.6
"""A mean square that is off by more than this factor (a deviation by nearly 2) gives a warning."""


class Starts:
    """The starts chosen so far for the parameters of a graph, and the moments of its expressions that follow.

    Attributes:
        graph: the graph, without calls.
        given: the leaves with a given value or start.
        leaves: the parameters and given leaves that each weight is computed from.
        found: the chosen starts.
        doubts: warnings about products that no start suits.
        line: the current equation.
        tensors: the known moments, by tensor.
        definitions: the equations that compute weights from parameters; they are looked through.
        lines: the moments of such weights, as last estimated. A new start of a parameter removes them.
        scopes: the sizes of axes in expressions, which do not depend on starts.
    """

    line: Equation

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.given = frozenset(leaf.name for leaf in graph.leaves if leaf.start or leaf.kind == "constant")
        weights = self.given.union(leaf.name for leaf in graph.parameters)
        self.leaves = {name: frozenset((name,)) for name in weights}
        self.found: dict[str, tuple[str, float]] = {}
        self.doubts: list[TensornetWarning] = []
        moments = ((leaf.name, moments_of_start(graph, leaf)) for leaf in graph.leaves)
        self.tensors = {name: found for name, found in moments if found is not None}
        self.definitions: dict[str, Equation] = {}
        self.lines: dict[str, Moments] = {}
        self.scopes: dict[Expression, Scope] = {}

    # ---- sizes

    def scope(self, expression: Expression, around: Scope | None = None) -> Scope:
        """The sizes of the axes in an expression, and of the axes around it."""
        if isinstance(expression, Contraction):
            expression = Contraction(expression.factors)
        found = self.scopes.get(expression)
        if found is None:
            found = self.scopes[expression] = scope_inside(expression, self.graph.dims, self.graph.bound)
        if around is None:
            return found
        return Scope({**around.sizes, **found.sizes}, {**around.assumed, **found.assumed})

    def counts(self, part: Expression, axes: Iterable[str], around: Scope | None = None) -> dict[str, float]:
        """The sizes of some axes in a part of an equation, as numbers."""
        scope = self.scope(part, around)
        found = {axis: evaluate(scope[axis], self.graph.bound) for axis in axes}
        return {axis: float(size if isinstance(size, int) else TYPICAL) for axis, size in found.items()}

    # ---- moments

    def of(self, expression: Expression, scope: Scope | None = None) -> Moments:
        """The moments of the elements of an expression."""
        scope = self.scope(expression) if scope is None else scope
        match expression:
            case Ref(name):
                return self.tensors.get(name) or (
                    self._of_line(name) if name in self.definitions else STANDARD
                )
            case _ if expression.is_scalar:
                return self._number(expression, scope)
            case _ if (mapped := _mapped(expression)) is not None:
                return self._of_map(expression, mapped, scope)
            case Contraction():
                return self._product(expression, scope)
            case Call("add", terms):
                return _added(self.of(term, scope) for term in terms)
            case Call():
                return self._call(expression, scope)
        raise AssertionError(expression)

    def _of_line(self, name: str) -> Moments:
        """The moments of a computed weight. Earlier lines come first, so that a long chain needs no deep recursion."""
        for line, equation in self.definitions.items():
            if line not in self.lines:
                self.lines[line] = self.of(equation.right)
            if line == name:
                break
        return self.lines[name]

    def _number(self, expression: Expression, scope: Scope) -> Moments:
        value = scalar_value(expression, lambda axis: self.counts(expression, [axis], scope)[axis])
        value = 1.0 if value is None or not math.isfinite(abs(value)) else value
        number = float(abs(value) if value.imag else value.real)
        return Moments(number, number**2)

    def _of_map(self, expression: Expression, argument: Expression, scope: Scope) -> Moments:
        form = put(expression, argument, _BLANK)
        for size in form.sizes:
            if size != _BLANK:
                form = put(form, size, Literal(self.counts(size, [size.axis], scope)[size.axis]))
        return _of_form(form, self.of(argument, scope).rounded())

    def _call(self, call: Call, scope: Scope) -> Moments:
        function = FUNCTIONS[call.function]
        inner = self.scope(call.arguments[0], scope) if call.arguments else scope
        count = math.prod(self.counts(call, call.axes, inner).values())
        if function.moments is None and function.expansion:
            return self.of(expanded(call, Literal(count)), inner)
        found = tuple(self.of(argument, scope) for argument in call.arguments)
        tensors = tuple(n for n, argument in enumerate(call.arguments) if not argument.is_scalar)
        told = None if function.moments is None else function.moments(Known(found, tensors, count))
        mixes = function.kind in ("axis", "reduction") and not function.carries
        return told or (STANDARD if mixes or not found else found[0])

    # ---- products

    def _product(self, term: Contraction, scope: Scope) -> Moments:
        """The moments of a product, by sums of logarithms: a long product may leave the range of a float."""
        scope = self.scope(term, scope)
        factors = [(factor.free_axes, self.of(factor, scope)) for factor in self._grouped(term.factors)]
        logs = {axis: _log(count) for axis, count in self.counts(term, term.summed, scope).items()}
        zero_mean = {axis for axes, moments in factors if not moments.mean for axis in axes}
        apart = {axis: count for axis, count in logs.items() if axis not in zero_mean}
        whole, runs = sum(logs.values()), sum(apart.values())
        sign = math.prod(math.copysign(1.0, moments.mean) for _, moments in factors)
        mean = sign * _exp(whole + sum(_log(abs(moments.mean)) for _, moments in factors))
        square = _exp(whole + sum(_log(moments.square) for _, moments in factors))
        if apart:
            for axes, moments in factors:
                whole += _log(moments.square if apart.keys().isdisjoint(axes) else moments.mean**2)
            square += (1 - _exp(-runs)) * _exp(whole + runs)
        return Moments(mean, square)

    def _grouped(self, factors: Iterable[Expression]) -> list[Expression]:
        """The factors of a product. Functions of one tensor, read at the same index, are one factor."""
        places = dict[Ref | int, list[Expression]]()
        for n, factor in enumerate(factors):
            places.setdefault(function_of_one(factor) or n, []).append(factor)
        return [each[0] if len(each) == 1 else Contraction(tuple(each)) for each in places.values()]

    # ---- the parts of an expression

    def is_weight(self, expression: Expression) -> bool:
        """Whether a value depends on parameters and constants alone, and not on positions along an axis."""
        if any(FUNCTIONS[call.function].of_axis_alone for call in expression.calls):
            return False
        names = [ref.name for ref in expression.references]
        return bool(names) and all(name in self.leaves for name in names)

    def data(self, factors: Iterable[Expression]) -> list[Expression]:
        """The factors that are neither weights nor numbers."""
        return [each for each in factors if not each.is_scalar and not self.is_weight(each)]

    def below(self, expression: Expression) -> frozenset[str]:
        """The parameters and constants that an expression is computed from, directly or through weights."""
        return frozenset().union(*(self.leaves.get(ref.name, ()) for ref in expression.references))

    def free(self, expression: Expression) -> list[str]:
        """The parameters in an expression whose start is not chosen yet."""
        return sorted(name for name in self.below(expression) if name not in self.tensors)

    def linear(self, expression: Expression) -> set[str]:
        """The free parameters that can bring its mean square to any value: in a product, or in all terms of a sum."""
        match self.behind(expression):
            case Ref() as ref:
                return {*self.free(ref)}
            case Contraction(factors):
                return set().union(*map(self.linear, factors))
            case Call(name, arguments) if name == "add" or FUNCTIONS[name].kind == "structure":
                found = [*map(self.linear, arguments)]
                return set().union(*found) if all(found) else set()
        return set()

    def behind(self, expression: Expression) -> Expression:
        """The expression that computes a weight, if one does; else the expression itself."""
        while isinstance(expression, Ref) and expression.name in self.definitions:
            expression = self.definitions[expression.name].right
        return expression

    # ---- choosing

    def define(self, equation: Equation) -> None:
        """Registers a weight that an equation computes. Its reader chooses the starts of its parameters."""
        self.definitions[equation.name] = equation
        self.leaves[equation.name] = self.below(equation.right)

    def start(self, name: str, kind: str, number: float) -> None:
        """Sets the start of a parameter."""
        self.found[name] = (kind, number)
        self.tensors[name] = Moments(number if kind == "value" else 0.0, number**2)
        for line in [line for line in self.lines if name in self.leaves[line]]:
            del self.lines[line]

    def doubt(self, term: Expression, what: str) -> None:
        """Records a warning that no start suits a product."""
        names = sorted(self.below(term) - self.given)
        fix = f"scale it by a number, normalize within it, or say how {', '.join(names)} start, by init="
        place = term.place or self.line.place
        self.doubts.append(TensornetWarning(f"in '{self.line.name}', {show(term)} {what}", place, fix))


def _added(terms: Iterable[Moments]) -> Moments:
    found = [*terms]
    mean = sum(each.mean for each in found)
    return Moments(mean, mean**2 + sum(each.variance for each in found))


# ---------------------------------------------------------------------------- leaves


def moments_of_start(graph: Graph, leaf: Leaf) -> Moments | None:
    """The moments of a leaf that are known from the beginning; None for a parameter without a given start."""
    match leaf.value if leaf.kind == "constant" else leaf.start:
        case Constant() as value:
            return _of_array(value)
        case (kind, number):
            found = (evaluate(size, graph.bound) for size in leaf.shape)
            shape = tuple(float(size) if isinstance(size, int) else float(TYPICAL) for size in found)
            mean = number if kind == "value" else 0.0
            return Moments(mean, square_of(kind, number, shape, fan_of(graph, leaf)))
    return STANDARD if leaf.kind == "input" else None


def _of_array(value: Constant) -> Moments:
    """The moments of the elements that are no mask: neither infinite nor at least 1e6 in absolute value."""
    array = value.array().ravel()
    finite = array[abs(array) < 1e6] if array.dtype.kind in "fc" else array[:0]
    if not finite.size:
        return STANDARD
    return Moments(float(abs(finite.mean())), float((abs(finite) ** 2).mean()))


# ---------------------------------------------------------------------------- functions

_BLANK = Size("")
"""The placeholder for the one tensor of an expression: a number without a name."""


def _mapped(expression: Expression) -> Expression | None:
    """The only operand that an expression maps element by element with functions of numbers, or None."""
    if (one := function_of_one(expression)) is not None:
        return one
    match expression:
        case Call(name, arguments) if FUNCTIONS[name].scalar and FUNCTIONS[name].kind == "pointwise":
            tensors = [argument for argument in arguments if not argument.is_scalar]
            return tensors[0] if len(tensors) == 1 and name != "add" else None
    return None


@functools.lru_cache(1024)
def _of_form(form: Expression, moments: Moments) -> Moments:
    """The moments of a function of the placeholder; `UNKNOWN` if the integral does not exist."""
    levels = _levels(form) and moments.variance < SPREAD * moments.mean**2
    deviation, mean, square = 0.0 if levels else math.sqrt(moments.variance), 0.0, 0.0
    try:
        for node, weight in _points() if deviation else ((0.0, 1.0),):
            found: Any = scalar_value(form, {_BLANK.axis: moments.mean + deviation * node}.get)
            result = float(abs(found) if isinstance(found, complex) else found)
            mean, square = mean + weight * result, square + weight * result**2
    except (ArithmeticError, ValueError, TypeError, EquationError):
        return UNKNOWN
    return Moments(mean, square) if square < 1e12 else UNKNOWN


@functools.cache
def _points() -> tuple[tuple[float, float], ...]:
    """Nodes and weights of E[f(z)] for a standard normal z."""
    import numpy

    nodes, weights = numpy.polynomial.hermite_e.hermegauss(NODES)
    return tuple(zip(nodes.tolist(), (weights / math.sqrt(2 * math.pi)).tolist(), strict=True))


def _levels(form: Expression) -> bool:
    """Whether a function takes positive numbers and compresses them, as a root or its reciprocal does.

    Its argument is then replaced by its mean. In a norm this is exact, since the numerator is large where this is.
    """
    match form:
        case Call("power", (_, exponent)):
            value = value_of(exponent)
            return isinstance(value, int | float) and value < 1
        case Call(name):
            return FUNCTIONS[name].positive
    return False


def _log(value: float) -> float:
    return math.log(value) if value else -math.inf


def _exp(value: float) -> float:
    return math.inf if value > 700 else math.exp(value)


EXACT, CLOSE = 1e-9, 0.02
"""The tolerance for the logarithm of a mean square, and the step of the difference quotient that gives its slope."""

NEAR = 2.1
"""A function of a gain is near its target if its mean square is within this factor."""

STEPS, FARTHEST, WORTH = 8, 2.0, 0.9
"""The most steps, the largest step (a factor of `exp(2)`), and the share to which each step must reduce the error."""


OFTEN_OFF = math.log(2.0) / 0.6745
"""At this deviation of the logarithm of a product, half of the starts are off by a factor of 2. Above it, the links of
a chain start near the identity."""

UNPREDICTABLE = math.log(10.0)
"""The deviation of the logarithm of a product above which there is a warning."""


def aim(starts: Starts, expression: Expression, target: float) -> None:
    """Chooses the starts of the parameters of an expression so that its mean square is the target."""
    if not starts.free(expression):
        return
    match starts.behind(expression):
        case Ref(name) if name in starts.leaves:
            starts.start(name, "std", math.sqrt(target))
        case Contraction() as term:
            _product(starts, term, target)
        case Call("add", terms):
            _sum(starts, terms, target)
        case Call() as call:
            _call(starts, call, target)


def _sum(starts: Starts, terms: tuple[Expression, ...], target: float) -> None:
    """Weights added to data or to a frozen value are biases, as are those with fewer axes. Others share the target."""
    free = [term for term in terms if starts.free(term)]
    drawn = [term for term in free if not starts.is_weight(term)]
    if not drawn and len(free) == len(terms):
        drawn = [term for term in free if not _is_spread(term, terms)]
    for term in drawn:
        aim(starts, term, target / len(drawn))
    for term in free:
        if term not in drawn:
            vanish(starts, term, target)


def _is_spread(term: Expression, terms: Iterable[Expression]) -> bool:
    """Whether a parameter is broadcast along an axis of another term."""
    own = set(term.free_axes)
    return isinstance(term, Ref) and any(own < set(other.free_axes) for other in terms)


def _product(starts: Starts, term: Contraction, target: float) -> None:
    """The weights of a product share the target, or else its data do. Factors that only scale are one if possible."""
    data = starts.data(term.factors)
    names = set[str]().union(*map(starts.linear, data))
    for factor in data:
        if not isinstance(factor, Ref):  # a table read at positions is a weight
            aim(starts, factor, 1.0)
    weights = [factor for factor in term.factors if starts.free(factor)]
    gains = [weight for weight in weights if _only_scales(starts, weight, term)]
    rest = [weight for weight in weights if weight not in gains]
    if term.summed and not rest:
        gains, rest = [], weights
    for gain in gains:
        _set_gain(starts, gain, 1.0)
    is_part = term is not starts.line.right and starts.is_weight(term)  # read by another product
    if rest:
        names = {*starts.free(Contraction(tuple(rest)))}
        target *= 1.0 if is_part else start_chain(starts, term)
        _share_out(starts, term, [weight for weight in rest if starts.free(weight)], target)
    if not is_part:
        rescale(starts, names, term, target)
    for gain in gains:
        reached = starts.of(term).square
        if reached > 0 and not 1 / FAR <= target / reached <= FAR:
            _set_gain(starts, gain, target / reached * starts.of(gain).square)


def _share_out(starts: Starts, term: Contraction, weights: list[Expression], target: float) -> None:
    """Distributes the target over the weights of a product: a summed axis over its holders, the rest over all.

    Logarithms are used, since a long product has many axes.
    """
    scope = starts.scope(term)
    settled = (starts.of(factor, scope).square for factor in term.factors if not starts.free(factor))
    left = math.log(target) - sum(math.log(square) for square in settled if 0 < square < math.inf)
    shares = dict.fromkeys(weights, 0.0)
    for axis, count in starts.counts(term, term.summed).items():
        holders = [weight for weight in weights if axis in weight.free_axes]
        left -= 0.0 if holders else math.log(count)
        for weight in holders:
            shares[weight] -= math.log(count) / len(holders)
    for weight, share in shares.items():
        aim(starts, weight, math.exp(share + left / len(weights)))


def _only_scales(starts: Starts, weight: Expression, term: Contraction) -> bool:
    """Whether a parameter, or a function of one, is broadcast over other factors of a product and not summed."""
    one, own = function_of_one(weight), set(weight.free_axes)
    if one is None or one.name in starts.definitions or own & set(term.summed):
        return False
    data = {axis for factor in starts.data(term.factors) for axis in factor.free_axes}
    return own <= data or any(own < {*each.free_axes} for each in term.factors if starts.is_weight(each))


def vanish(starts: Starts, expression: Expression, target: float) -> None:
    """Starts a weight at zero. All factors of a product but one are nonzero, on the scale of the target: but the last,
    unless a settled factor makes the product zero already."""
    match starts.behind(expression):
        case Ref(name):
            if name not in starts.tensors:
                starts.start(name, "value", 0.0)
        case Contraction() as term if starts.free(term):
            *others, last = [factor for factor in term.factors if starts.free(factor)]
            own = set(starts.free(last)).difference(*map(starts.free, others))
            aim(starts, term, target)
            if starts.of(term).square and own:
                for name in own:
                    del starts.tensors[name]
                vanish(starts, last, 1.0)
        case Call(_, arguments):
            for argument in arguments:
                if starts.free(argument):
                    vanish(starts, argument, target)


def _call(starts: Starts, call: Call, target: float) -> None:
    """Weights next to data start at zero. Other arguments start at scale one, or at the target if it is passed on."""
    function, of_data = FUNCTIONS[call.function], not starts.is_weight(call)
    carries = function.kind == "structure" or function.carries
    for argument in call.arguments:
        if of_data and function.kind == "pointwise" and starts.is_weight(argument):
            vanish(starts, argument, 1.0)
        aim(starts, argument, target if carries else 1.0)


# ---------------------------------------------------------------------------- found by search


def _set_gain(starts: Starts, gain: Expression, target: float) -> None:
    """Starts a factor that only scales at a constant: the root of the target, or a value whose function is near it."""
    one = function_of_one(gain)
    assert one is not None

    def error(value: float) -> float:
        starts.start(one.name, "value", value)
        return max(math.log(NEAR), abs(_off(starts, gain, target)))

    values = [math.sqrt(target)] if one == gain else sorted((n / 20 for n in range(40, -41, -1)), key=abs)
    starts.start(one.name, "value", min(values, key=error))


def rescale(starts: Starts, names: Iterable[str], whole: Expression, target: float) -> None:
    """Multiplies deviations by one factor that brings the expression to the target, or nearer, by Newton's method."""
    drawn = {name: starts.found[name] for name in names if name in starts.found}
    stds = {name: number for name, (kind, number) in drawn.items() if kind == "std"}

    def off(step: float) -> float:
        for name, number in stds.items():
            starts.start(name, "std", number * math.exp(step))
        return _off(starts, whole, target)

    step, error = 0.0, off(0.0)
    for _ in range(STEPS if stds and target else 0):
        move = FARTHEST  # back from an overflow
        if error < math.inf:
            slope = (off(step + CLOSE) - error) / CLOSE if abs(error) > EXACT else 0.0
            move = max(-FARTHEST, min(error / slope, FARTHEST)) if slope and math.isfinite(slope) else 0.0
        found = off(step - move)
        if abs(found) >= WORTH * abs(error) and error < math.inf:
            break
        step, error = step - move, found
    off(step if error < math.inf else 0.0)


def _off(starts: Starts, expression: Expression, target: float) -> float:
    """The logarithm of the ratio of the mean square to its target."""
    reached = starts.of(expression).square
    if not reached:
        return -math.inf
    return math.log(reached / target) if reached < math.inf else math.inf


# ---------------------------------------------------------------------------- near-identity initialisation


def start_chain(starts: Starts, term: Contraction) -> float:
    """Starts the links of a product near the identity if it is long.

    Returns:
        The factor by which the typical square is then below its mean, beyond the tolerable one.
    """
    if _wandering(starts, term)[1] > OFTEN_OFF:
        _start_links(starts, term)
    decay, deviation = _wandering(starts, term)
    if decay > math.log(FAR) and deviation > UNPREDICTABLE:
        off = rounded(math.exp(deviation), 2)
        starts.doubt(term, f"is a product so long that it may start {off} times too large or small")
    return math.exp(max(0.0, decay - math.log(FAR)))


def _products(starts: Starts, product: Expression) -> Iterator[Contraction]:
    """A product and the products among its factors, including those of computed weights."""
    found = starts.behind(product)
    if isinstance(found, Contraction):
        yield found
        for factor in found.factors:
            yield from _products(starts, factor)


def _start_links(starts: Starts, term: Contraction) -> None:
    """Starts the links of a product near the identity, except one if no other parameter is left to choose."""
    free = starts.free(term)
    data = {axis: starts.of(factor) for factor in starts.data(term.factors) for axis in factor.free_axes}
    factors = [(each, product) for product in _products(starts, term) for each in product.factors]
    refs = [(each, product) for each, product in factors if isinstance(each, Ref) and each.name in free]
    times = Counter(ref.name for ref, _ in refs)
    once = [(ref, starts.counts(product, ref.free_axes)) for ref, product in refs if times[ref.name] == 1]
    links = [(ref, counts) for ref, counts in once if _is_link(ref, counts, data)]
    for ref, counts in links if len(links) < len(once) else links[:-1]:
        features = [(count, data[axis]) for axis, count in counts.items() if axis in data]
        size = max(count for axis, count in counts.items() if axis not in data)
        starts.start(ref.name, "near_identity", 1 / math.prod(count * each.mean for count, each in features))
        let_through = 1 / (size * math.prod(count * each.square for count, each in features))
        starts.tensors[ref.name] = Moments(0.0, let_through)  # the mean square that keeps the scale


def _is_link(ref: Ref, counts: Mapping[str, float], data: Mapping[str, Moments]) -> bool:
    """Whether a weight has two axes of equal size, and others only of features whose sum is not near zero."""
    ends = [count for axis, count in counts.items() if axis not in data]
    features = [data[axis] for axis in counts if axis in data]
    adds_up = all(each.mean > 0 and each.mean**2 > 0.1 * each.square for each in features)
    return len(counts) == len(ref.index) and len(ends) == 2 and ends[0] == ends[1] and adds_up


def _wandering(starts: Starts, term: Contraction) -> tuple[float, float]:
    """How far the logarithm of a product's square is below that of its mean, and the deviation of its half.

    Each sum without data, and not along a link, is a χ² with as many degrees of freedom as terms.
    """
    decay = variance = 0.0
    of_data = {axis for factor in starts.data(term.factors) for axis in factor.free_axes}
    for product in _products(starts, term):
        left = [axis for axis in product.summed if axis not in of_data]
        for factor in product.factors:
            if isinstance(factor, Ref) and starts.found.get(factor.name, ("",))[0] == "near_identity":
                through = next((axis for axis in factor.free_axes if axis in left), None)
                left = [axis for axis in left if axis != through]
        sizes = [size for size in starts.counts(product, left).values() if size > 1]
        decay += sum(map(behind_its_mean, sizes))
        variance += sum(2 / size + 2 / size**2 for size in sizes)
    return decay, math.sqrt(variance) / 2


def behind_its_mean(size: float) -> float:
    """How far the mean logarithm of a χ² with `size` degrees of freedom is below the logarithm of its mean."""
    return 1 / size + 1 / (3 * size**2) if size > 1 else 0.0
