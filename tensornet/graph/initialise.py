"""Initial values derived from the equations, so that every product keeps the variance.

A product of independent factors with mean squares m₁, m₂, …, summed over axes of total size S, has
the mean square S·m₁·m₂·…; the parameters in it share what makes this 1 (`moments.py` estimates it for
any expression). What is asked of an expression is handed down to its parts:

    product            shared by its weights, each charged for the summed axes that it has
                       (Glorot and Bengio 2010; He et al. 2015)
    sum of weights     shared by the terms
    sum with data      a weight beside it is a bias, and starts at zero; of a product of weights the
    or a frozen value  last does, so that the others learn (Hu et al. 2021, LoRA)
    function           its parameters start on the scale that brings it nearest
    factor that only   one           gain[c] * normalize[c](x)
    scales
    product of data    by those of them that weights scale      silu(x * W) * (x * V)
    alone              1             a table, a token

A weight made by lines of their own, `V = A * B`, is looked through, and starts as the product that
reads it asks. Of what no start can bring within a factor of 2 a warning says so.

Where factors hang together, few terms are summed, or a start falls short, moments do not tell what is typical:
there the tensor itself is looked at, if a function is given that runs the graph (LSUV, Mishkin and Matas 2015), and
what is seen takes the place of what was foreseen. A state of gates is as large as these let it be: that of an LSTM
a seventh, as at torch's start, and below a half at any.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..errors import EquationError, TensornetWarning
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Ref,
    axes_of_index,
    free_axes,
    is_scalar,
    references,
    show,
    subexpressions,
)
from ..operations.functions import FUNCTIONS
from ..operations.moments import STANDARD, Moments
from ..sizes import evaluate
from .chains import Link, links_of
from .graph import Graph
from .mapping import function_of_one
from .moments import Estimator
from .recurrences import Recurrence, is_step
from .shape import Scope, index_of

__all__ = ["Derived", "Sampled", "Seen", "derived", "starts_of_weight"]

FAR = 3.6
"""A mean square this many times too large or too small, a deviation nearly twice, is worth a word."""

EXTREME = 100.0
"""The same of losses, scores and averages, which have no scale to keep."""

PASSED = 2.5
"""So many terms may be added up, one after another, before what comes out is held against their number."""

UNPREDICTABLE = math.log(10.0)
"""So is a product of which the logarithm of the deviation is only known this well."""

OFTEN_OFF = math.log(2.0) / 0.6745
"""Where it is known this well, half of the starts are off by a factor of 2: what can starts near the identity."""

LOOSE = math.log(1.5)
"""Where what is typical lies this far behind the mean square, it is looked at."""

TRIES = 4
"""So often a line is measured and aimed again."""

ROUNDS, SETTLED = 32, 0.01
"""So often the moments of a recurrence are gone round, until they change by no more than this share."""


@dataclass(frozen=True)
class Derived:
    """How parameters start, and what is to be said of it.

    Attributes:
        starts: `("std", s)` or `("value", v)` of each parameter that equations say something of.
        doubts: of which products no start is right.
    """

    starts: Mapping[str, tuple[str, float]]
    doubts: tuple[TensornetWarning, ...]


@dataclass(frozen=True)
class Seen:
    """A tensor as it comes out of several starts.

    Attributes:
        mean: of all elements.
        squares: the mean square of each start.
    """

    mean: float
    squares: tuple[float, ...]

    @property
    def moments(self) -> Moments:
        """Those of the typical start."""
        return Moments(self.mean, max(statistics.median(self.squares), self.mean**2))

    def against(self, square: float) -> Seen:
        """The same, were the deviation that it is held against the root of this one, if that is more than 1."""
        if square <= 1:
            return self
        return Seen(self.mean / math.sqrt(square), tuple(each / square for each in self.squares))

    @property
    def is_alive(self) -> bool:
        """Whether more than half of the starts have a deviation within a factor of 2, nearly, of 1."""
        return self.share(FAR) > 0.55

    @property
    def is_plain(self) -> bool:
        """Whether nearly all are, or nearly none, so that few starts tell."""
        return not 0.1 < self.share(2.5) < 0.9

    @property
    def is_clear(self) -> bool:
        """Whether so many are, or so few, that more starts would hardly say otherwise."""
        return not 0.35 < self.share(FAR) < 0.75

    def share(self, most: float) -> float:
        """Of how many starts the mean square is within a factor of 1."""
        return sum(1 / most <= square <= most for square in self.squares) / len(self.squares)


Sampled: TypeAlias = Callable[[str, Mapping[str, tuple[str, float]]], "Seen | None"]
"""A tensor as it comes out, where parameters start so; nothing where that takes too long."""


def starts_of_weight(program: Graph, square: float) -> dict[str, tuple[str, float]]:
    """How the parameters of a weight start, whose mean square is to be this.

    Args:
        program: what the weight is made of; its one output is the weight.
        square: the mean square; if it is zero, all but one factor of a product are alive.
    """
    graph = program.flat
    deriver = _Deriver(graph)
    for equation in graph.equations:
        deriver.read.add(equation.name)  # by the model, which is not at hand
        deriver.equation(equation)
    (weight,) = graph.outputs
    index = index_of(graph.named[weight])
    read = Ref(weight, index)
    deriver.line = Equation(weight, index, read)
    if square:
        deriver.aim(read, square, deriver.known.scope(read))
    else:
        deriver.vanish(read, 1.0, deriver.known.scope(read))
    return deriver.found


def derived(graph: Graph, sampled: Sampled | None = None) -> Derived:
    """How the parameters start that equations say something of, the same for every seed.

    Args:
        graph: a layer or a model.
        sampled: gives the moments of a tensor by the starts that are chosen before it, measured, or nothing
            where it cannot. It is asked where independence is too much to suppose.

    Raises:
        EquationError: weights are made of weights too many times.
    """
    graph = graph.flat
    deriver = _Deriver(graph, sampled)
    try:
        for equation in graph.equations:
            deriver.equation(equation)
            for each in graph.recurrences:
                if equation.name == each.equations[-1].name:
                    deriver.settle(each.equations)
                    deriver.check_repeated(each)
    except RecursionError:
        place, fix = deriver.line.place, "write the product in fewer lines"
        raise EquationError("weights are made of weights too many times", place, fix) from None
    return Derived(deriver.found, tuple(deriver.doubts))


class _Deriver:
    """Walks the equations in order with the moments of every tensor at hand."""

    def __init__(self, graph: Graph, sampled: Sampled | None = None) -> None:
        self.graph, self.sampled = graph, sampled
        self.recurs = {equation.name for each in graph.recurrences for equation in each.equations}
        self.unsure = set[str]()
        self.averages = set[str]()
        self.coming = {leaf.name: list(range(len(leaf.dims))) for leaf in graph.inputs}
        self.decays: dict[str, float] = {}
        self.known = Estimator(graph)
        self.found: dict[str, tuple[str, float]] = {}
        self.line: Equation
        self.doubts: list[TensornetWarning] = []
        self.parameters = {leaf.name for leaf in graph.parameters}
        self.inputs = {leaf.name for leaf in graph.inputs}
        self.given = {leaf.name for leaf in graph.leaves if leaf.start or leaf.kind == "constant"}
        self.leaves: dict[str, frozenset[str]] = {
            name: frozenset((name,)) for name in self.parameters | self.given
        }
        self.links: dict[str, Link] = {}
        self.read = {ref.name for equation in graph.equations for ref in equation.references}

    def equation(self, equation: Equation) -> None:
        """Chooses what an equation is the first to read; a weight waits for who reads it."""
        self.line, right = equation, equation.right
        if equation.name in self.read and self.is_weight(right) and self.below(right) & self.parameters:
            self.known.definitions[equation.name] = equation
            self.leaves[equation.name] = self.below(right)
            return
        doubts, free, elastic = len(self.doubts), self.free(right), self.is_elastic(right)
        self.aim(right, 1.0, self.known.scope(right))
        found = self.known.of(right)
        if self.sampled is not None:
            self.follow(equation, found, free)
        if self.is_unsure(equation) and (seen := self.seen(equation, free if elastic else [])) is not None:
            found = seen.moments
            self.judge(equation, seen, doubts, free)
        self.known.tensors[equation.name] = found if math.isfinite(found.square) else STANDARD

    # ---- what comes out, where independence is too much to suppose

    def follow(self, equation: Equation, found: Moments, chosen: Sequence[str]) -> None:
        """Notes how loosely a tensor is known, of itself and by what it is made of."""
        name, read, parts = (
            equation.name,
            {ref.name for ref in equation.references},
            [*subexpressions(equation.right)],
        )
        self.decays[name] = self.decays.get(name, 0.0) + max(
            (self.decays.get(one, 0.0) for one in read), default=0.0
        )
        is_off = name in self.graph.outputs and not 1 / 2 <= found.square <= 2
        if is_off or any(
            isinstance(part, Contraction) and self.hangs_together(part, chosen) for part in parts
        ):
            self.unsure.add(name)
        coming = {
            axis
            for ref in equation.references
            for n in self.coming.get(ref.name, ())
            for axis in axes_of_index(ref.index[n : n + 1])
        }
        self.coming[name] = [
            n for n, entry in enumerate(equation.left) if coming.intersection(axes_of_index((entry,)))
        ]
        shares = [part for part in parts if isinstance(part, Call) and FUNCTIONS[part.function].sums_to_one]
        if (
            any(coming.intersection(share.axes) for share in shares)
            or read & self.averages
            or name in self.recurs
        ):
            self.averages.add(name)
        elif shares and name in self.read:
            self.unsure.add(name)

    def hangs_together(self, term: Contraction, chosen: Sequence[str]) -> bool:
        """Whether a product multiplies what is computed of the same data, other than by a norm."""
        data = [
            factor
            for factor in self.known.apart_from_norms(term.factors)
            if not is_scalar(factor) and not self.is_weight(factor)
        ]
        computes = any(not isinstance(factor, Ref) for factor in data)
        return len(data) > 1 and (computes or bool(self.below(term).intersection(chosen)))

    def is_unsure(self, equation: Equation) -> bool:
        """Whether a tensor is to be looked at: what comes out is, if anything on the way is doubtful.

        Where positions are averaged it is not: how alike they are is the data's affair, and noise is not alike.
        """
        name = equation.name
        if self.sampled is None or name in self.averages:
            return False
        loose = self.decays[name] > LOOSE
        return loose or name in self.unsure or bool(self.unsure and name in self.graph.outputs)

    def seen(self, equation: Equation, free: Sequence[str]) -> Seen | None:
        """A tensor as it comes out, its parameters chosen again until that is typically on its scale."""
        assert self.sampled is not None
        name, decay, target = equation.name, self.decays[equation.name], 1.0
        enough = math.log(2.0 if name in self.unsure else FAR)
        for _ in range(TRIES):
            seen = self.sampled(name, self.found)
            if seen is None or not free or not 0 < (square := seen.moments.square) < math.inf:
                break
            if abs(math.log(square)) <= enough:
                break
            target /= square
            for parameter in free:
                for chosen in (self.found, self.links, self.known.tensors):
                    chosen.pop(parameter, None)
            self.known.lines.clear()
            self.known.assumed.clear()
            self.aim(equation.right, target, self.known.scope(equation.right))
        self.decays[name] = decay
        return seen

    def judge(self, equation: Equation, seen: Seen, since: int, chosen: Sequence[str]) -> None:
        """What is seen stands for what was foreseen of it; and what is alive in the end was so on the way.

        A number without axes is a loss or a score, and averages of noise are small: a word is said of what is extreme.
        """
        if seen.is_alive and self.graph.outputs == (equation.name,):
            self.doubts.clear()
        right, seen = equation.right, seen.against(self.carried(equation.right, chosen))
        square = seen.moments.square
        del self.doubts[since:]
        of_function = isinstance(right, Call) and right.function != "add"
        if seen.is_alive or not square or not chosen or of_function or self.below(right) & self.given:
            return
        has_scale = bool(equation.left) and not (square < 1 and self.shared_out(right))
        if not has_scale and 1 / EXTREME <= square <= EXTREME:
            return
        if 1 / FAR <= square <= FAR:
            self.doubt(right, "starts far too large or too small more often than not")
        else:
            self.doubt(right, f"starts at {math.sqrt(square):.2g} times the deviation of what goes in")

    def carried(self, right: Expression, chosen: Sequence[str]) -> float:
        """The mean square of what a sum passes on and of something beside that is on its scale, in units of `PASSED`: a
        stack of such sums grows by one from each to the next."""
        terms = right.arguments if isinstance(right, Call) and right.function == "add" else ()
        passed = [term for term in terms if not self.below(term).intersection(chosen)]
        return (max((self.known.of(term).square for term in passed), default=1.0) + 1.0) / PASSED

    def shared_out(self, right: Expression) -> bool:
        """Whether weights that sum to one take averages."""
        calls = (part for part in subexpressions(right) if isinstance(part, Call))
        return any(FUNCTIONS[call.function].sums_to_one for call in calls)

    def settle(self, equations: Sequence[Equation]) -> None:
        """Goes round a recurrence, whose weights are chosen, until the moments stay; who reads it learns of these.

        What grows from step to step, as a running sum does, keeps those of its first step.
        """
        first = {equation.name: self.known.tensors[equation.name] for equation in equations}
        for _ in range(ROUNDS):
            before = {name: self.known.tensors[name].square for name in first}
            for equation in equations:
                self.known.tensors[equation.name] = self.known.of(equation.right)
            after = {name: self.known.tensors[name].square for name in first}
            if all(math.isclose(before[name], after[name], rel_tol=SETTLED) for name in first):
                return
        self.known.tensors.update(first)

    # ---- what an expression is made of

    def is_weight(self, expression: Expression) -> bool:
        """Whether nothing but parameters and constants goes into the value, and no axis of the data."""
        calls = (part for part in subexpressions(expression) if isinstance(part, Call))
        if any(FUNCTIONS[call.function].of_axis_alone for call in calls):
            return False
        names = [ref.name for ref in references(expression)]
        return bool(names) and all(name in self.leaves for name in names)

    def below(self, expression: Expression) -> frozenset[str]:
        """The parameters and constants that go into an expression, by way of weights too."""
        return frozenset().union(*(self.leaves.get(ref.name, ()) for ref in references(expression)))

    def free(self, expression: Expression) -> list[str]:
        """The parameters in it whose start is still to be chosen."""
        return sorted(name for name in self.below(expression) if name not in self.known.tensors)

    def is_elastic(self, expression: Expression) -> bool:
        """Whether its mean square can be made anything."""
        match expression:
            case Ref(name) if name in self.known.definitions:
                return self.is_elastic(self.known.definitions[name].right)
            case Ref(name):
                return name not in self.known.tensors
            case Contraction(factors):
                return any(self.is_elastic(factor) for factor in factors if not is_scalar(factor))
            case Call("add", terms):
                return all(self.is_elastic(term) for term in terms)
            case Call(function, arguments) if FUNCTIONS[function].kind == "structure":
                return all(self.is_elastic(argument) for argument in arguments)
        return False

    # ---- choosing

    def start(self, name: str, kind: str, number: float) -> None:
        """Settles a parameter."""
        moments = self.known.of_start(name, (kind, number))
        self.found[name] = (kind, number)
        if self.known.tensors.get(name) == moments:
            return
        self.known.tensors[name] = moments
        for line in [line for line in self.known.lines if name in self.leaves[line]]:
            del self.known.lines[line]

    def aim(self, expression: Expression, target: float, scope: Scope) -> None:
        """Chooses the parameters of an expression so that its mean square is the target."""
        if not self.free(expression):
            return
        expression, scope = self.behind(expression, scope)
        match expression:
            case Ref(name) if name in self.parameters:
                self.start(name, "std", math.sqrt(target))
            case Contraction():
                self.product(expression, target, self.known.scope(expression, scope))
            case Call("add", terms):
                self.sum(expression, terms, target, scope)
            case Call():
                self.call(expression, target, scope)

    def behind(self, expression: Expression, scope: Scope) -> tuple[Expression, Scope]:
        """What a weight with a line of its own is, and the sizes there."""
        while isinstance(expression, Ref) and expression.name in self.known.definitions:
            expression = self.known.definitions[expression.name].right
            scope = self.known.scope(expression)
        return expression, scope

    def sum(self, whole: Call, terms: tuple[Expression, ...], target: float, scope: Scope) -> None:
        """Beside data or a frozen value a weight is a bias; else the terms share the target."""
        free = [term for term in terms if self.free(term)]
        data = [term for term in free if not self.is_weight(term)]
        if data or len(free) < len(terms):
            for term in free:
                if term not in data:
                    self.vanish(term, target, scope)
            for term in data:
                self.aim(term, target / len(data), scope)
            return
        new = self.free(whole)
        spread = [term for term in terms if self.is_spread(term, terms)]
        for term in terms:
            if term in spread:
                self.vanish(term, target, scope)
            else:
                self.aim(term, target / (len(terms) - len(spread)), scope)
        self.rescale(new, whole, target, scope)

    def is_outermost(self, term: Expression) -> bool:
        """Whether a product is no part of a weight that another reads."""
        return term is self.line.right or not self.is_weight(term)

    def is_spread(self, term: Expression, terms: Iterable[Expression]) -> bool:
        """Whether a parameter is the same along an axis of a term beside it: a bias of a weight."""
        own = set(free_axes(term))
        return isinstance(term, Ref) and any(own < set(free_axes(other)) for other in terms)

    def product(self, term: Contraction, target: float, scope: Scope) -> None:
        """Shares the target among the weights of a product, those first that can give least."""
        factors = [factor for factor in term.factors if not is_scalar(factor)]
        data = [factor for factor in factors if not self.is_weight(factor)]
        linear = [name for factor in data if self.is_elastic(factor) for name in self.free(factor)]
        for factor in data:
            if not isinstance(factor, Ref):  # a table read at positions is a weight
                self.aim(factor, 1.0, scope)
        weights = [factor for factor in factors if self.free(factor)]
        gains = [weight for weight in weights if self.only_scales(weight, factors, term.summed)]
        rest = [weight for weight in weights if weight not in gains]
        if term.summed and not rest:
            gains, rest = [], weights
        if not rest:
            self.rescale(linear, term, target, scope)
            missing = self.missing(term, gains, target, scope)
            for gain in gains:
                self.gain(gain, 1.0 if 1 / FAR <= missing <= FAR else missing, scope)
            return
        new = self.free(Contraction(tuple(rest)))
        if self.is_outermost(term):
            if self.is_long(term, scope, OFTEN_OFF):
                self.link(term, scope)
                rest = [weight for weight in rest if self.free(weight)]
            decay, _ = self.spread(term, scope)
            self.decays[self.line.name] = self.decays.get(self.line.name, 0.0) + decay
            target *= math.exp(
                max(0.0, decay - math.log(FAR))
            )  # what is typical falls behind the mean square
        rigid = [weight for weight in rest if not self.is_elastic(weight)]
        waiting = [*rigid, *(weight for weight in rest if weight not in rigid)]
        for weight in rigid:
            self.aim(weight, self.shares(term, waiting, gains, target, scope)[weight], scope)
            waiting.remove(weight)
        for weight, share in self.shares(term, waiting, gains, target, scope).items():
            self.aim(weight, share, scope)
        for gain in gains:
            missing = self.missing(term, gains, target, scope)
            self.gain(gain, 1.0 if waiting or 1 / FAR <= missing <= FAR else missing, scope)
        self.rescale(new, term, target, scope)
        if self.is_outermost(term):
            self.check(term, target, scope)

    def missing(self, term: Contraction, gains: Iterable[Expression], target: float, scope: Scope) -> float:
        """By how much a product falls short with gains of 1; what is 0, as a norm of one element is, stays 0."""
        reached = self.reached(term, dict.fromkeys(gains, 1.0), scope)
        return target / reached if reached else 1.0

    def is_long(self, term: Contraction, scope: Scope, most: float = UNPREDICTABLE) -> bool:
        """Whether nobody can foretell the scale of a product of random weights."""
        return math.sqrt(self.spread(term, scope)[1]) / 2 > most

    def link(self, term: Contraction, scope: Scope) -> None:
        """Starts the links of a long chain near the identity."""
        data = {
            factor: self.known.of(factor, scope)
            for factor in term.factors
            if not self.is_weight(factor) and not is_scalar(factor)
        }
        sizes = self.known.scope(term, scope)
        for each in links_of(
            term,
            lambda part: self.behind(part, scope)[0],
            lambda axis: self.known.count(sizes, axis),
            data,
            frozenset(self.free(term)),
        ):
            self.links[each.name] = each
            self.start(each.name, "near_identity", each.scale)
            positions = math.prod(self.known.count(sizes, axis) for axis in each.beside)
            self.known.tensors[each.name] = self.known.tensors[each.name].times(math.sqrt(positions))
        beside = {axis for each in self.links.values() for axis in each.beside}
        features = [factor for factor in data if beside.intersection(free_axes(factor))]
        names = {ref.name for factor in features for ref in references(factor)}
        for (
            factor,
            moments,
        ) in data.items():  # as if features were what they are in the mean, which is passed on
            if names.intersection(ref.name for ref in references(factor)):
                self.known.assumed[factor] = Moments(0.0, moments.mean**2)

    def only_scales(self, weight: Expression, factors: list[Expression], summed: tuple[str, ...]) -> bool:
        """Whether a parameter, or a function of one, is spread over others and not summed."""
        one, own = function_of_one(weight), set(free_axes(weight))
        if one is None or one.name not in self.parameters or own & set(summed):
            return False
        data = {axis for factor in factors if not self.is_weight(factor) for axis in free_axes(factor)}
        larger = [set(free_axes(factor)) for factor in factors if self.is_weight(factor)]
        return own <= data or any(own < axes for axes in larger)

    def shares(
        self,
        term: Contraction,
        waiting: list[Expression],
        gains: list[Expression],
        target: float,
        scope: Scope,
    ) -> dict[Expression, float]:
        """What each weight is to give: summed axes are charged to those that have them, the rest to all."""
        if not waiting:
            return {}
        charges = dict.fromkeys(waiting, 1.0)
        for axis in term.summed:
            holders = [weight for weight in charges if axis in free_axes(weight)]
            for weight in holders:
                charges[weight] *= self.known.count(scope, axis) ** (-1.0 / len(holders))
        given = self.reached(term, dict.fromkeys(gains, 1.0) | charges, scope)
        given = given if math.isfinite(given) and given > 0 else math.prod(charges.values())
        each = (target / given) ** (1.0 / len(waiting))
        return {weight: charge * each for weight, charge in charges.items()}

    def reached(self, term: Contraction, squares: Mapping[Expression, float], scope: Scope) -> float:
        """The mean square of a product, were these the mean squares of some factors."""
        self.known.trial = {factor: Moments(0.0, square) for factor, square in squares.items()}
        found = self.known.of(term, scope).square
        self.known.trial = {}
        return found

    def gain(self, expression: Expression, target: float, scope: Scope) -> None:
        """A factor that only scales starts at a constant: one, or where its function comes nearest to it."""
        one = function_of_one(expression)
        assert one is not None
        if one == expression:
            self.start(one.name, "value", math.sqrt(target))
            return

        def off(value: float) -> float:
            self.start(one.name, "value", value)
            reached = self.known.of(expression, scope).square
            return abs(math.log(reached / target)) if 0 < reached < math.inf else math.inf

        values = sorted((n / 20 for n in range(-40, 41)), key=lambda value: (abs(value), -value))
        errors = {value: off(value) for value in values}
        enough = math.log(FAR) if errors[0.0] <= math.log(FAR) else max(math.log(2.0), min(errors.values()))
        self.start(one.name, "value", next(value for value in values if errors[value] <= enough))

    def vanish(self, expression: Expression, target: float, scope: Scope) -> None:
        """A weight starts at zero, all but one of its factors alive, on the scale of the target."""
        expression, scope = self.behind(expression, scope)
        match expression:
            case Ref(name):
                if name not in self.known.tensors:
                    self.start(name, "value", 0.0)
            case Contraction(factors) if self.free(expression):
                self.vanish_product(expression, [f for f in factors if self.free(f)], target, scope)
            case Call(_, arguments):
                for argument in arguments:
                    if self.free(argument):
                        self.vanish(argument, target, scope)

    def vanish_product(
        self, term: Contraction, weights: list[Expression], target: float, scope: Scope
    ) -> None:
        """The last of the weights starts at zero, unless what is settled makes the product zero already."""
        is_zero = self.reached(term, dict.fromkeys(weights, 1.0), scope) == 0
        last = weights[-1]
        others = [factor for factor in term.factors if factor is not last and not is_scalar(factor)]
        own = set(self.free(last)).difference(*(self.free(factor) for factor in others))
        self.aim(term, target, scope)
        if is_zero or not own:
            return
        for name in own:
            del self.known.tensors[name]
        self.vanish(last, 1.0, scope)

    def call(self, call: Call, target: float, scope: Scope) -> None:
        """Arguments beside data start at zero or one; weights on the scale that the function asks for."""
        function = FUNCTIONS[call.function]
        if not self.is_weight(call):
            for argument in call.arguments:
                if function.kind == "pointwise" and self.is_weight(argument):
                    self.vanish(argument, 1.0, scope)
                self.aim(argument, 1.0, scope)
            return
        carries = function.kind == "structure" or function.carries
        new = self.free(call)
        for argument in call.arguments:
            self.aim(argument, target if carries else 1.0, self.known.scope(argument, scope))
        if not carries:
            self.rescale(new, call, target, scope, most=2.0)

    # ---- joint corrections

    def rescale(
        self, names: list[str], whole: Expression, target: float, scope: Scope, most: float = math.exp(12)
    ) -> None:
        """Multiplies deviations by one factor, that nearest to 1 which brings the whole to the target."""
        stds = {name: self.found[name][1] for name in names if self.found[name][0] == "std"}

        def off(step: float) -> float:
            for name, number in stds.items():
                self.start(name, "std", number * math.exp(step))
            reached = self.known.of(whole, scope).square
            return math.log(reached / target) if 0 < reached < math.inf else math.inf

        if not stds or not target or abs(error := off(0.0)) < 0.02:
            return
        slope = (off(0.25) - error) / 0.25
        crossing = -error / slope if slope and math.isfinite(slope) else math.inf
        if -12 <= crossing <= math.log(most) and abs(off(crossing)) < 0.02:
            return  # as of a product
        steps = [0.25 * n for n in range(-48, 49) if 0.25 * n <= math.log(most)]
        error_at = functools.cache(off)
        for low, high in sorted(itertools.pairwise(steps), key=lambda each: abs(each[0] + each[1])):
            a, b = error_at(low), error_at(high)
            if a * b <= 0 and math.isfinite(a) and math.isfinite(b):
                off(_bisected(off, low, high))
                return
        enough = min(abs(error_at(step)) for step in steps) + 0.1
        off(min((step for step in steps if abs(error_at(step)) <= enough), key=abs, default=0.0))

    def spread(self, term: Expression, scope: Scope) -> tuple[float, float]:
        """By how much the logarithm of a product's square lies below that of its mean, and its variance.

        A χ² of S degrees of freedom has a logarithm of log S − 1/S − 1/(3S²) at its mean, nearly.
        """
        term, scope = self.behind(term, scope)
        if isinstance(term, Ref) and term.name in self.links:
            return 0.0, 0.0
        if isinstance(term, Ref) and term.name in self.parameters:
            size = math.prod(self.known.count(scope, axis) for axis in free_axes(term))
            return (-_decay(size), 0.0)
        if not isinstance(term, Contraction):
            return 0.0, 0.0
        scope = self.known.scope(term, scope)
        links = [
            self.links[ref.name] for ref in term.factors if isinstance(ref, Ref) and ref.name in self.links
        ]
        places, left = [], set(term.summed)
        for link in links:  # which makes its ends one axis
            left -= {next((axis for axis in link.ends if axis in left), ""), *link.beside}
        for factor in term.factors:
            if not self.is_weight(factor):  # the axes of one tensor of data are one vector
                places.append(left & set(free_axes(factor)))
                left -= places[-1]
        places += [{axis} for axis in left]
        sizes = [math.prod(self.known.count(scope, axis) for axis in place) for place in places]
        sizes = [size for size in sizes if size > 1]
        parts = [self.spread(factor, scope) for factor in term.factors]
        decay = sum(map(_decay, sizes)) + sum(part[0] for part in parts)
        return decay, sum(2 / size + 2 / size**2 for size in sizes) + sum(part[1] for part in parts)

    def check(self, term: Contraction, target: float, scope: Scope) -> None:
        """Says so where no start brings a product near its target, or none can be foretold."""
        reached = self.known.of(term, scope).square
        decay, variance = self.spread(term, scope)
        if not 1 / 2 <= reached / target <= 2:
            self.unsure.add(self.line.name)
        if not 1 / (1.01 * FAR) <= reached / target <= 1.01 * FAR:
            if not self.is_meant(term, scope):
                times = f"{math.sqrt(reached / target):.2g}" if math.isfinite(reached) else "unforeseeable"
                self.doubt(term, f"starts at {times} times the deviation of what goes in")
        elif decay > math.log(FAR) and self.is_long(term, scope):
            off = math.exp(math.sqrt(variance) / 2)
            self.doubt(term, f"is a product so long that it may start {off:.2g} times too large or small")
        elif self.adds_up(term, scope):
            self.doubt(
                term, "adds data up by weights of one sign: how large that is, they tell by what they share"
            )

    def check_repeated(self, recurrence: Recurrence) -> None:
        """Says so where random matrices are multiplied position by position, with nothing added on the way."""
        for equation in recurrence.equations:
            self.line, term, axis = equation, equation.right, recurrence.labels[equation.name]
            if not isinstance(term, Contraction) or not any(map(is_step, term.factors)):
                continue
            scope = self.known.scope(term)
            varies = any(axis in free_axes(factor) for factor in term.factors if not is_step(factor))
            drawn = [
                factor
                for factor in term.factors
                if isinstance(factor, Ref) and self.found.get(factor.name, ("",))[0] == "std"
            ]
            kept = {*axes_of_index(equation.left)}.difference(
                each for factor in term.factors if factor not in drawn for each in free_axes(factor)
            )
            length = evaluate(scope[axis], self.graph.bound)
            if not (varies and drawn and kept - {axis} and isinstance(length, int)):
                continue
            decay = length * _decay(math.prod(self.known.count(scope, each) for each in kept - {axis})) / 2
            if decay > math.log(FAR):
                off = f"exp(-{decay:.0f}) = {math.exp(-decay):.0e}"
                self.doubt(
                    term, f"is multiplied {length} times over: it may end at {off} times its deviation"
                )

    def adds_up(self, term: Contraction, scope: Scope) -> bool:
        """Whether what is computed of data is summed by weights that are nearly the same: it hangs together."""
        computed = {
            axis
            for factor in term.factors
            if not self.is_weight(factor) and not (isinstance(factor, Ref) and factor.name in self.inputs)
            for axis in free_axes(factor)
        }
        for factor in term.factors:
            if self.is_weight(factor) and self.below(factor) - self.given and not is_scalar(factor):
                found = self.known.of(factor, scope)
                if found.mean**2 > found.square / 2 and computed & set(term.summed) & set(free_axes(factor)):
                    return True
        return False

    def is_meant(self, term: Contraction, scope: Scope) -> bool:
        """Whether a product is off by what the user gave, or by data that are zero."""
        data = [factor for factor in term.factors if not self.is_weight(factor) and not is_scalar(factor)]
        return bool(self.below(term) & self.given) or any(not self.known.of(f, scope).square for f in data)

    def doubt(self, term: Expression, what: str) -> None:
        names = sorted(self.below(term) - self.given)
        self.unsure.add(self.line.name)
        fix = f"scale it by a number, normalize within it, or say how {', '.join(names)} start, by init="
        place = term.place or self.line.place
        self.doubts.append(TensornetWarning(f"in '{self.line.name}', {show(term)} {what}", place, fix))


def _decay(size: float) -> float:
    return 1 / size + 1 / (3 * size**2) if size > 1 else 0.0


def _bisected(function: Callable[[float], float], low: float, high: float) -> float:
    """Where the function crosses zero."""
    sign = math.copysign(1.0, function(low))
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) * sign > 0 else (low, middle)
    return (low + high) / 2
