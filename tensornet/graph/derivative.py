"""The derivative of a graph as graphs: the way forward, and the way back from its results to its leaves.

Each equation is taken apart until it applies one function, or multiplies two tensors, so that what the
derivatives of several factors have in common is a tensor with a name, and computed once: a product of N
factors takes O(N) products back. Then, from the last to the first, what a tensor gets from those that read
it (`x.grad`) goes on to what it was made of, as the record of its function says:

    y[b,o] = x[b,i] * W[o,i]    →    W.grad[o,i] = y.grad[b,o] * x[b,i]

A gradient that is the same all along an axis goes without that axis for as long as it can. A call of a block
becomes two: of the block's way forward, which also returns what the way back reads, and of its way back.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ..errors import EquationError
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Index,
    Literal,
    Ref,
    Size,
    axes_of_index,
    contraction,
    flat,
    free_axes,
    fresh,
    is_scalar,
    occurring,
    option_axes,
    product_of,
    remade_axes,
    sized_by_name,
    sum_of,
    transform,
)
from ..language.reading import parse_rule
from ..operations.functions import CONVERSIONS, FUNCTIONS, Element
from ..operations.pointwise import EQUAL, WHERE
from ..operations.record import OPERANDS
from ..operations.steps import PREVIOUS
from ..operations.structure import INDEX, ONEHOT, PAD
from ..sizes import evaluate, size_names
from .apply import Apply, called_last, scoped, told_apart
from .arithmetic import ONE, ZERO, as_numbers, folded, multiplied, spread, summed_over, without_ones
from .differentiable import active, active_inside, changes
from .elements import of_body, of_tensors
from .graph import Graph, reads
from .instances import of_tensors_named
from .leaves import Leaf
from .looping import with_states
from .recurrences import is_step
from .rewriting.pruning import prune
from .rewriting.sharing import is_random
from .shape import Axis, Dim, Scope, dim_size
from .through_windows import early, moved
from .ways_back import WayBack, with_firsts
from .writing import Written

__all__ = ["GRADIENT", "Directions", "Pairs", "differentiated", "made_again"]

Pairs: TypeAlias = (
    "Callable[[Sequence[tuple[str, ...]], frozenset[str], Mapping[str, Any]], Iterable[tuple[int, int]]]"
)
"""Which factors to multiply, told of their axes, the axes that are kept, and sizes: two by two, products numbered
on."""

GRADIENT = "{}.grad"
"""What the gradient of a tensor is called."""


@dataclass(frozen=True)
class Directions:
    """A graph both ways.

    Attributes:
        forward: what the graph computes, and after it what the way back reads of that.
        backward: of the leaves and those, and of gradients of the results, the gradients of the leaves.
        kept: the results of `forward` that the way back reads.
        seeds: the results that have a gradient from outside, and the inputs of `backward` that these are.
    """

    forward: Graph
    backward: Graph
    kept: tuple[str, ...]
    seeds: tuple[tuple[str, str], ...]

    def joined(self, outputs: Sequence[str] = ()) -> Graph:
        """Both as one graph, whose results are some of the forward ones and the gradients."""
        leaves = {leaf.name: leaf for leaf in (*self.forward.leaves, *self.backward.leaves)}
        inputs = [leaf for leaf in leaves.values() if leaf.kind == "input" and leaf.name not in self.kept]
        others = [leaf for leaf in leaves.values() if leaf.kind != "input"]
        made = {name for item in self.forward.body for name in item.defines}
        again = [item for item in self.backward.body if not made.intersection(item.defines)]
        body = (*self.forward.body, *again)
        sizes = tuple({**self.forward.bound, **self.backward.bound}.items())
        found = _tidy(prune(Graph((*inputs, *others), body, (*outputs, *self.backward.outputs), sizes)))
        own = told_apart(found.leaves, found.calls)
        return replace(found, leaves=called_last(own, found.calls))


@functools.lru_cache(maxsize=512)
def differentiated(
    graph: Graph,
    of: tuple[str, ...],
    wrt: tuple[str, ...],
    pairs: Pairs,
    alone: bool = False,
    again: frozenset[str] = frozenset(),
) -> Directions:
    """A graph both ways.

    Args:
        graph: the graph.
        of: the results that have gradients.
        wrt: the leaves whose gradients are asked for.
        pairs: orders products of more than two factors.
        alone: whether nothing is around the graph, so that the gradient of a result without axes is 1.
        again: of `made_again`, the calls of which nothing is kept, by their first results.

    Raises:
        EquationError: a function on the way has no derivative.
    """
    return _Differentiation(graph, of, wrt, pairs, alone, again).directions()


def made_again(graph: Graph, wrt: Iterable[str]) -> tuple[str, ...]:
    """The calls that can be made again on the way back, by their first results, in order: none that draws numbers."""
    changing = active(graph, wrt)
    return tuple(
        call.results[0]
        for call in graph.calls
        if changing.intersection(call.results)
        and not any(is_random(equation.right) for part in call.graph.parts() for equation in part.own)
    )


# ---------------------------------------------------------------------------- both ways


class _Differentiation(Written):
    """The way forward, equation by equation, and then the way back from the last one."""

    def __init__(
        self,
        graph: Graph,
        of: tuple[str, ...],
        wrt: tuple[str, ...],
        pairs: Pairs,
        alone: bool,
        again: frozenset[str],
    ) -> None:
        graph = with_states(graph)
        super().__init__(graph)
        self.of, self.wrt, self.pairs, self.alone, self.again = of, wrt, pairs, alone, again
        self.active = active(graph, wrt)
        self.needed = replace(graph, outputs=of).needed() if of else frozenset[str]()
        self.calls: dict[Apply, _Called] = {}
        self.terms = defaultdict[str, list[Expression]](list)
        self.uses = Counter[str]()
        self.states: dict[str, str] = {}  # that recurrences go round through, and their gradients
        self.order: tuple[str, ...] = ()  # of the axes of what is taken apart
        seeded = [name for name in of if not (alone and not self.dims[name])]
        self.seeds = {name: self.fresh(GRADIENT.format(name)) for name in seeded}
        self.results = {name: self.fresh(GRADIENT.format(name)) for name in wrt}

    def directions(self) -> Directions:
        """The two graphs."""
        for item in self.graph.body:
            self._forward(item)
        forward, self.body = self.body, []
        self.uses.update(name for item in forward for name, _ in reads(item))
        seeds = list(self._seeds())
        self._foresee(forward)
        for item in reversed(forward):
            self._backward(item)
        names = dict(zip(self._results(forward), self.results.values(), strict=True))
        self.body = [of_tensors_named(item, names) for item in self.body]
        return self._parted(forward, seeds, tuple(self.results.values()))

    def _parted(
        self, forward: list[Equation | Apply], seeds: list[tuple[str, Leaf]], outputs: tuple[str, ...]
    ) -> Directions:
        """What the way back reads of the way forward is a result of the one, and an input of the other."""
        made = {name for item in forward for name in item.defines}
        body = (*_again(self.graph, forward, self.body), *self.body)
        there = {name for item in body for name in item.defines}
        read = dict.fromkeys(name for item in body for name, _ in reads(item) if name not in there)
        kept = tuple(name for name in read if name in made)
        sizes = tuple(self.bound.items())
        results = tuple(dict.fromkeys((*self.graph.outputs, *kept)))
        given = [leaf for leaf in self.graph.leaves if leaf.name in read]
        leaves = (
            *(leaf for leaf in given if leaf.kind == "input"),
            *(Leaf(name, "input", self._resolved(self.dims[name])) for name in kept),
            *(leaf for _, leaf in seeds),
            *(leaf for leaf in given if leaf.kind != "input"),
        )
        return Directions(
            _tidy(replace(self.graph, body=tuple(forward), outputs=results, sizes=sizes)),
            _tidy(Graph(leaves, body, outputs, sizes)),
            kept,
            tuple((name, leaf.name) for name, leaf in seeds),
        )

    def _resolved(self, dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Dimensions as whoever calls the graph knows them: without names of sizes that are its own."""
        return tuple(tuple(Axis(axis.name, evaluate(axis.size, self.bound)) for axis in dim) for dim in dims)

    # ---- forward

    def _forward(self, item: Equation | Apply) -> None:
        """An item of the graph, taken apart if gradients go through it."""
        if not any(name in self.active and name in self.needed for name in item.defines):
            self.body.append(item)
        elif isinstance(item, Apply):
            self._forward_call(item)
        else:
            self._take_apart(item)

    def _take_apart(self, equation: Equation) -> None:
        """One function, or one product of two tensors, an equation."""
        scope, self.order = self.graph.scope(equation), axes_of_index(equation.left)
        right = self._one(self._sized(equation.right, scope), scope, equation.name)
        if (
            isinstance(right, Call)
            and remade_axes(right)
            and not all(isinstance(e, str) for e in equation.left)
        ):
            right = self._tensor(right, scope, self.numbered(equation.name))
        if right == equation.right:
            self.body.append(equation)
        else:
            self.put(equation.name, equation.left, right, scope)

    def _sized(self, expression: Expression, scope: Scope) -> Expression:
        """The expression, in which the sizes of its axes are those of names at large."""
        if isinstance(expression, Size):
            return self.extent(scope[expression.axis])
        found = flat(transform(expression, lambda part: self._sized(part, scope)))
        if isinstance(found, Contraction) and found != expression:
            return contraction(without_ones(found.factors), found.summed, found.place)
        return found

    def _one(self, expression: Expression, scope: Scope, stem: str) -> Expression:
        """The expression with a tensor in the place of each operand that gets a gradient."""
        match expression:
            case Call(function, (operand, *_)) if FUNCTIONS[function].random:
                return self._masked(expression, self._operand(operand, scope, stem), scope, stem)
            case Call(function, _, (first, *rest)) if rest and FUNCTIONS[function].one_by_one:
                before = replace(expression, axes=(first,))
                return self._one(replace(expression, arguments=(before,), axes=tuple(rest)), scope, stem)
            case Call(_, arguments):
                operands = tuple(self._operand(each, scope, stem) for each in arguments)
                return replace(expression, arguments=operands)
            case Contraction(factors, summed):
                numbers = [each for each in factors if is_scalar(each)]
                others = [self._operand(each, scope, stem) for each in factors if not is_scalar(each)]
                if len(others) > 2:
                    others = self._before_windows(others, frozenset(free_axes(expression)), scope, stem)
                if len(others) > 2:
                    others = self._in_pairs(others, frozenset(free_axes(expression)), scope, stem)
                inside = {axis for each in others for axis in free_axes(each)}
                return contraction((*numbers, *others), tuple(inside & set(summed)), expression.place)
        return expression

    def _operand(self, expression: Expression, scope: Scope, stem: str) -> Expression:
        """A tensor that holds the value of an expression, or the expression where no gradient goes there."""
        if isinstance(expression, Ref) or not changes(expression, self.active):
            return expression
        if isinstance(expression, Call) and remade_axes(expression):
            scope = _beside(scope, self.scope(expression))
        return self._tensor(self._one(expression, scope, stem), scope, self.numbered(stem))

    def _tensor(self, expression: Expression, scope: Scope, name: str, last: Iterable[str] = ()) -> Ref:
        """A tensor of the value of an expression: first the axes of the equation, last those along which windows
        move, as convolutions take it."""
        axes = free_axes(expression)
        moving = {*last, *moved(expression)}
        ordered = (*(each for each in self.order if each in axes), *axes)
        left = tuple(dict.fromkeys(sorted(ordered, key=moving.__contains__)))
        self.put(name, left, expression, scope)
        if changes(expression, self.active):
            self.active.add(name)
            self.needed |= {name}
        return Ref(name, left)

    def _before_windows(
        self, factors: list[Expression], kept: frozenset[str], scope: Scope, stem: str
    ) -> list[Expression]:
        """The factors, those that have nothing to do with windows multiplied before these open, where that is less."""
        while len(factors) > 2:
            sizes = {axis: evaluate(scope[axis], self.bound) for each in factors for axis in free_axes(each)}
            found = early(factors, kept, sizes, self.dims)
            if found is None:
                break
            factors = [each for each in factors if each is not found.replaced and each is not found.partner]
            outside = kept.union(found.windows, *(free_axes(each) for each in factors))
            padded = self._padded(found.opened, found.windows)
            pair = (found.opened if padded is None else padded.arguments[0], found.partner)
            inside = {axis for each in pair for axis in free_axes(each)}
            made: Expression = contraction(pair, tuple(inside - outside), None)
            if padded is not None:
                made = self._tensor(made, scope, self.numbered(stem), found.windows)
                made = replace(padded, arguments=(made,))
            around = _beside(scope, Scope(dict(found.sizes)))
            factors = [found.read(self._tensor(made, around, self.numbered(stem), found.windows)), *factors]
        return factors

    def _padded(self, ref: Ref, axes: Container[Index]) -> Call | None:
        """Zeros around a tensor along some axes, in the place of what holds them for one product alone; nothing if
        there are none."""
        made = next(
            (each for each in self.body if isinstance(each, Equation) and each.name == ref.name), None
        )
        readers = sum(name == ref.name for item in self.graph.body for name, _ in reads(item))
        if made is None or readers != 1 or ref.name in self.graph.outputs:
            return None
        match made.right:
            case Call(PAD.name, (Ref() as plain,), (), options) as call if plain.index == made.left:
                names = {str(mine): axis for mine, axis in zip(plain.index, ref.index, strict=True)}
                if all(names.get(axis) in axes for axis, _ in options):  # which no value but 0 is
                    self.body.remove(made)
                    told = tuple((str(names[axis]), amounts) for axis, amounts in options)
                    return replace(call, arguments=(replace(plain, index=ref.index),), options=told)
        return None

    def _in_pairs(
        self, factors: list[Expression], kept: frozenset[str], scope: Scope, stem: str
    ) -> list[Expression]:
        """Two factors, products of all: an axis is summed as soon as nothing else has it."""
        axes = [free_axes(each) for each in factors]
        sizes = {axis: evaluate(scope[axis], self.bound) for each in axes for axis in each}
        waiting = dict(enumerate(factors))
        for number, (one, other) in enumerate(self.pairs(axes, kept, sizes), len(factors)):
            if len(waiting) == 2:
                break
            pair = (waiting.pop(one), waiting.pop(other))
            outside = kept.union(*(free_axes(each) for each in waiting.values()))
            inside = {axis for each in pair for axis in free_axes(each)}
            product = contraction(pair, tuple(inside - outside), None)
            waiting[number] = self._tensor(product, scope, self.numbered(stem))
        return list(waiting.values())

    def _masked(self, call: Call, operand: Expression, scope: Scope, stem: str) -> Expression:
        """What is drawn, a tensor of its own of truth values: the same mask on both ways."""
        ones = spread(as_numbers(ONE), free_axes(operand))
        numbers = replace(call, arguments=(ones, *call.arguments[1:]))
        drawn = Call(CONVERSIONS[Element.TRUTH], (numbers, ZERO))
        mask = self._tensor(drawn, scope, self.fresh(f"{stem}_mask"))
        return Call(FUNCTIONS[call.function].drawn, (mask, operand, *call.arguments[1:]))

    def _forward_call(self, call: Apply) -> None:
        """A call of the block's way forward; of the block itself, if nothing is to be kept of it."""
        if call.along is not None:
            self._forward_along(call)
            return
        block, inner = call.graph, call.names()
        wrt = tuple(
            leaf.name for leaf in block.leaves if leaf.kind != "constant" and inner[leaf.name] in self.active
        )
        pairs = tuple(zip(block.outputs, call.results, strict=True))
        of = tuple(output for output, name in pairs if name in self.active and name in self.needed)
        found = differentiated(block, of, wrt, self.pairs)
        inner.update(pairs)
        if call.results[0] in self.again:
            call = replace(call, apart=True)
            self.calls[call] = _Called(found, wrt, inner)
            self.body.append(call)
            return
        made = self._called(call, found.forward, inner)
        self.calls[made] = _Called(found, wrt, inner)
        self.body.append(made)

    def _called(self, call: Apply, graph: Graph, inner: dict[str, str]) -> Apply:
        """A call of another graph in the place of one; the results that have no name get one."""
        for name in graph.outputs:
            if name not in inner:
                inner[name] = self.fresh(scoped(call.scope, name))
        made = replace(call, graph=graph, results=tuple(inner[name] for name in graph.outputs))
        inside = of_tensors(graph)
        for (name, dims), output in zip(made.returned(self.bound), graph.outputs, strict=True):
            self.dims[name], self.elements[name] = dims, inside[output]
        return made

    # ---- backward

    def _foresee(self, forward: Sequence[Equation | Apply]) -> None:
        """The gradients of states, which recurrences read on the way back before they are made.

        What a state is made of stands below it; of the gradient of the one it gets that of the other, moved on.
        """
        done = {leaf.name for leaf in self.graph.leaves}
        for item in forward:
            done.update(item.defines)
            match item:
                case Equation(name, left, Call(function, (Ref(behind), *_), (axis,)) as step) if is_step(
                    step
                ):
                    if behind in done or name not in self.active or name not in self.needed:
                        continue
                    self.states[name] = gradient = self.fresh(GRADIENT.format(name))
                    axes = self._axes(behind)
                    sizes = [
                        Axis(each, dim_size(dim)) for each, dim in zip(axes, self.dims[behind], strict=True)
                    ]
                    self.dims[gradient] = self._resolved(tuple((each,) for each in sizes))
                    self.elements[gradient] = Element.NUMBER
                    other = parse_rule(
                        FUNCTIONS[function].gradient(0), {"g": Ref(gradient, axes)}, (axes[left.index(axis)],)
                    )
                    self.uses[behind] += 1
                    part = self._part(behind)
                    self.put(part, axes, other, self._sizes(behind))
                    self.terms[behind].append(Ref(part, axes))

    def _backward_state(self, state: Equation) -> None:
        """The gradient of a state under the name it is read by, and what the start gets of it."""
        assert isinstance(state.right, Call)
        name, axes = self.states[state.name], self._axes(state.name)
        total = self._total(state.name) if self.terms[state.name] else ZERO
        whole = spread(as_numbers(total) if is_scalar(total) else total, axes)
        self.put(name, axes, whole, self._sizes(state.name))
        (axis,) = state.right.axes
        first = 0 if state.right.function == PREVIOUS.name else -1
        for start in state.right.arguments[1:]:
            if isinstance(start, Ref) and start.name in self.active:
                index = tuple(first if entry == axis else entry for entry in state.left)
                self._give(start, self._alone(Ref(name, index), start), self.scope(state.right))

    def _alone(self, term: Expression, operand: Ref) -> Expression:
        """A gradient, summed over the axes that an operand has not."""
        own = free_axes(operand)
        return summed_over(term, [axis for axis in free_axes(term) if axis not in own])

    def _seeds(self) -> Iterator[tuple[str, Leaf]]:
        """The gradients of the results that come from outside."""
        for name in self.of:
            if name not in self.seeds:
                self.terms[name].append(ONE)
                continue
            pairs = zip(self._axes(name), self.dims[name], strict=True)
            dims = self._resolved(tuple((Axis(axis, dim_size(dim)),) for axis, dim in pairs))
            leaf = Leaf(self.seeds[name], "input", dims)
            self.dims[leaf.name], self.elements[leaf.name] = leaf.dims, Element.NUMBER
            self.terms[name].append(Ref(leaf.name, self._axes(name)))
            self.uses[name] += 1
            yield name, leaf

    def _axes(self, name: str) -> tuple[str, ...]:
        """An axis for each dimension of a tensor, under which its gradient is added up."""
        found: list[str] = []
        for dim in self.dims[name]:
            found.append(fresh("_".join(axis.name for axis in dim), set(found)))
        return tuple(found)

    def _sizes(self, name: str) -> Scope:
        """The sizes of these axes."""
        return Scope(dict(zip(self._axes(name), map(dim_size, self.dims[name]), strict=True)))

    def _backward(self, item: Equation | Apply) -> None:
        """Hands the gradient of what an item defines on to what that was made of."""
        if isinstance(item, Apply):
            if item in self.calls and any(self.terms[name] for name in item.results):
                self._backward_call(item, self.calls[item])
            return
        if item.name in self.states:
            self._backward_state(item)
            return
        if not self.terms[item.name]:
            return
        gradient, scope = self._gradient(item), self.scope(item.right)
        for ref, term in self._terms(item, gradient):
            term = folded(term)
            if term != ZERO:
                self._give(ref, term, _beside(scope, self.scope(ref)))

    def _total(self, name: str) -> Expression:
        """The gradient of a tensor: a number or a tensor, which lacks axes along which it is all alike."""
        terms = self.terms.pop(name)
        if len(terms) == 1:
            return terms[0]
        total = sum_of(terms)
        made, axes = self.fresh(GRADIENT.format(name)), self._axes(name)
        left = tuple(axis for axis in axes if axis in free_axes(total))
        self.put(made, left, total, self._sizes(name))
        return Ref(made, left)

    def _gradient(self, equation: Equation) -> Expression:
        """The gradient of what an equation defines, under the axes that it has there."""
        total = self._total(equation.name)
        if not isinstance(total, Ref):
            return total
        entries = dict(zip(self._axes(equation.name), equation.left, strict=True))
        return replace(total, index=tuple(entries[str(axis)] for axis in total.index))

    def _terms(self, equation: Equation, gradient: Expression) -> Iterator[tuple[Ref, Expression]]:
        """What each tensor on the right gets."""
        match equation.right:
            case Ref() as ref if ref.name in self.active:
                yield ref, gradient
            case Contraction(factors):
                for n, operand in enumerate(factors):
                    if isinstance(operand, Ref) and operand.name in self.active:
                        product = multiplied((gradient, *factors[:n], *factors[n + 1 :]))
                        yield operand, self._summed(product, operand, (), Scope())
            case Call(_, arguments) as call:
                made = call.axes if FUNCTIONS[call.function].axes in ("made", "joined") else ()
                around = tuple(each for each in axes_of_index(equation.left) if each not in made)
                y, scope = Ref(equation.name, equation.left), self.scope(call)
                for n, operand in enumerate(arguments):
                    if isinstance(operand, Ref) and operand.name in self.active:
                        term = self._of_call(call, n, gradient, y)
                        is_kept = FUNCTIONS[call.function].axes == "kept"
                        own = set(call.axes).difference(free_axes(operand)) if is_kept else set()
                        over = tuple(each for each in around if each not in own)
                        yield operand, self._summed(term, operand, over, scope)

    def _summed(self, term: Expression, operand: Ref, around: tuple[str, ...], scope: Scope) -> Expression:
        """A gradient as the operand gets it: summed over the axes that this has not.

        Args:
            term: the gradient, before.
            operand: the operand.
            around: all axes at hand; the gradient is alike along those that it lacks.
            scope: their sizes.
        """
        here, own = free_axes(term), free_axes(operand)
        alike = [axis for axis in dict.fromkeys(around) if axis not in (*here, *own)]
        factors = multiplied([*(self.extent(scope[axis]) for axis in alike), term])
        return summed_over(factors, [axis for axis in here if axis not in own])

    def _of_call(self, call: Call, operand: int, gradient: Expression, y: Ref) -> Expression:
        """What an operand of a function gets, as the record of the function says."""
        function, argument = FUNCTIONS[call.function], call.arguments[operand]
        if not function.derivative:
            fix = f"register it with one: tn.register('{function.name}', derivative=…, …)"
            raise EquationError(f"'{function.name}' has no derivative", call.place, fix)
        if function.axes in ("kept", "made"):
            gradient = spread(gradient, call.axes)
        meaning: dict[str, Expression] = dict(zip(OPERANDS, call.arguments, strict=False))
        numbers = dict(function.options)
        meaning.update({name: Literal(value) for name, value in numbers.items()})
        meaning.update({name: values[0] for name, values in call.options if name in numbers})
        scope = self.scope(call if function.axes == "kept" else argument)
        count = product_of([ONE, *(self.extent(scope[axis]) for axis in call.axes)])
        text = function.gradient(operand)
        match function.axes:
            case "joined" if call.axes[0] not in free_axes(gradient):
                return gradient
            case "joined":
                meaning.update(self._around(call, operand))
            case "moved":
                return self._moved_back(call, text, meaning, gradient)
        return parse_rule(text, {**meaning, "y": y, "n": count, "g": gradient}, call.axes)

    def _moved_back(
        self, call: Call, text: str, meaning: Mapping[str, Expression], gradient: Expression
    ) -> Expression:
        """What the operand of a function gets that moves elements, axis by axis."""
        function = FUNCTIONS[call.function]
        moved = {axis: values for axis, values in call.options if axis in option_axes(call)}
        if function.resized is not None and not moved.keys() <= set(free_axes(gradient)):
            name = self.numbered(GRADIENT.format(call.function))
            gradient = self._tensor(spread(gradient, moved), self.scope(call), name)
        for axis in sorted(moved.keys() & set(free_axes(gradient))):
            amounts = dict(zip(function.amounts, moved[axis], strict=True))
            gradient = parse_rule(text, {**meaning, **amounts, "g": gradient}, (axis,))
        return gradient

    def _around(self, call: Call, operand: int) -> dict[str, Expression]:
        """How many positions are before an operand, and after it, along the axis on which they follow one another."""
        (axis,) = call.axes
        extents = [
            self.extent(self.scope(each)[axis]) if axis in free_axes(each) else ONE for each in call.arguments
        ]
        return {
            "before": sum_of([ZERO, *extents[:operand]]),
            "after": sum_of([ZERO, *extents[operand + 1 :]]),
        }

    def _give(self, ref: Ref, term: Expression, sizes: Scope) -> None:
        """Adds to the gradient of a tensor what a reader hands on.

        Args:
            ref: the tensor, as it is read.
            term: what it gets, under the axes of the reader.
            sizes: the sizes of these.
        """
        entries: list[str | tuple[str, ...]] = []
        taken = {*occurring(ref), *occurring(term)}
        for entry, axis, dim in zip(ref.index, self._axes(ref.name), self.dims[ref.name], strict=True):
            parts = _parts(entry)
            if not parts or any(part in _parts(known) for known in entries for part in parts):
                parts = (fresh(axis, taken),)
                taken.update(parts)
                term = self._placed(entry, parts[0], term, dim, sizes)
                sizes = _beside(sizes, Scope({parts[0]: dim_size(dim)}))
            entries.append(parts[0] if len(parts) == 1 else parts)
        left: list[str | tuple[str, ...]] = []
        axes: list[str] = []
        for known, axis in zip(entries, self._axes(ref.name), strict=True):
            if set(_parts(known)) & set(free_axes(term)):
                term = spread(term, _parts(known))
                left.append(known)
                axes.append(axis)
        kept = {part for entry in left for part in _parts(entry)}
        term = folded(summed_over(term, [axis for axis in free_axes(term) if axis not in kept]))
        if is_scalar(term):
            self.terms[ref.name].append(term)
            return
        names = dict(zip(left, axes, strict=True))
        if (
            not isinstance(term, Ref)
            or len(set(term.index)) < len(names)
            or not names.keys() >= {*term.index}
        ):
            name = self._part(ref.name)
            self.put(name, tuple(left), term, sizes)
            term = Ref(name, tuple(left))
        self.terms[ref.name].append(replace(term, index=tuple(names[each] for each in term.index)))  # type: ignore[index]

    def _part(self, name: str) -> str:
        """What is called what a tensor gets from one of its readers: numbered where it has several."""
        stem = GRADIENT.format(name)
        return self.fresh(stem) if self.uses[name] == 1 else self.numbered(stem)

    def _placed(self, entry: Index, axis: str, term: Expression, dim: Dim, sizes: Scope) -> Expression:
        """A gradient where its tensor was read: at a position, at positions that a tensor tells, on a diagonal."""
        match entry:
            case Ref() | Contraction() | Call():
                return multiplied([Call(ONEHOT.name, (entry,), (axis,)), spread(term, free_axes(entry))])
            case int():
                at: Expression = (
                    Literal(entry) if entry >= 0 else sum_of([self.extent(dim_size(dim)), Literal(entry)])
                )
            case _:
                at = Call(INDEX.name, (), (_parts(entry)[0],))
                for part in _parts(entry)[1:]:
                    at = sum_of([multiplied([at, self.extent(sizes[part])]), Call(INDEX.name, (), (part,))])
        here = Call(EQUAL.name, (Call(INDEX.name, (), (axis,)), at))
        return Call(WHERE.name, (here, spread(term, _parts(entry)), ZERO))

    def _forward_along(self, call: Apply) -> None:
        """Calls along an axis, of which nothing is kept but what each of them goes on from."""
        inside = active_inside(call, self.active)
        wrt = tuple(leaf.name for leaf in call.graph.inputs if leaf.name in inside)
        of = tuple(output for output in call.graph.outputs if output in inside)
        found = differentiated(call.graph, of, wrt, self.pairs)
        made = with_firsts(call, self.fresh)
        inside_elements = of_tensors(made.graph)
        for (output, _), (name, dims) in zip(made.made, made.returned(self.bound), strict=True):
            self.dims[name], self.elements[name] = dims, inside_elements[output]
        self.calls[made] = _Called(found, wrt, made.names())
        self.body.append(made)

    def _backward_along(self, call: Apply, called: _Called) -> None:
        """The calls made again from the last to the first, each with its way back."""
        back = WayBack.of(call, called.directions, called.wrt)
        cut = [self._whole(name) for name in back.gradients]
        carried = [self._whole(name) for name in back.lasts]
        totals = [self._zeros(call.names()[leaf]) for leaf in back.totals]
        names = dict(zip(called.wrt, map(called.names.get, called.wrt), strict=True))
        results = {leaf: self._part(str(names[leaf])) for leaf in back.results}
        made = back.call(call, cut, carried, totals, tuple(results.values()))
        self.body.append(made)
        for name, dims in made.returned(self.bound):
            self.dims[name], self.elements[name] = dims, Element.NUMBER
        for leaf, result in results.items():
            tensor = str(names[leaf])
            if tensor in self.active:
                axes = self._axes(tensor)
                at = back.cuts.get(leaf, 0)
                self.terms[tensor].append(
                    Ref(result, (axes[at], *axes[:at], *axes[at + 1 :]) if axes else ())
                )

    def _zeros(self, name: str) -> str:
        """A tensor of zeros, as large as another."""
        made, axes = self.fresh(f"{name}.none"), self._axes(name)
        self.put(made, axes, spread(as_numbers(ZERO), axes), self._sizes(name))
        return made

    def _backward_call(self, call: Apply, called: _Called) -> None:
        """A call of the block's way back, and what it gives to what the block was given."""
        if call.along is not None:
            self._backward_along(call, called)
            return
        found, inner = called.directions, dict(called.names)
        if call.results[0] in self.again and found.kept:
            inner = {name: tensor for name, tensor in inner.items() if name not in found.kept}
            self.body.append(self._called(call, replace(found.forward, outputs=found.kept), inner))
        for output, seed in found.seeds:
            inner[seed] = self._whole(called.names[output])
        wrt = [inner[name] for name in called.wrt]
        results = tuple(map(self._part, wrt))
        operands = tuple(inner[leaf.name] for leaf in found.backward.inputs)
        made = Apply(found.backward, operands, results, call.scope)
        self.body.append(made)
        for (result, dims), name in zip(made.returned(self.bound), wrt, strict=True):
            self.dims[result], self.elements[result] = dims, Element.NUMBER
            self.terms[name].append(Ref(result, self._axes(name)))

    def _whole(self, name: str) -> str:
        """The tensor that is the gradient of another, with all axes; zeros where that has none."""
        total = self._total(name) if self.terms[name] else ZERO
        axes = self._axes(name)
        if isinstance(total, Ref) and total.index == axes:
            return total.name
        made = self.fresh(GRADIENT.format(name))
        self.put(
            made, axes, spread(as_numbers(total) if is_scalar(total) else total, axes), self._sizes(name)
        )
        return made

    def _results(self, forward: list[Equation | Apply]) -> Iterator[str]:
        """The gradient of each leaf, made here and for this leaf alone, of numbers of the working type."""
        alike = {name for name in self.wrt if all(map(is_scalar, self.terms[name]))}
        found = {name: self._whole(name) for name in self.wrt}
        made = {each for item in self.body for each in item.defines}
        holding = of_body((*forward, *self.body), self._certain())
        for name, gradient in found.items():
            is_its_own = gradient in made and gradient.startswith(GRADIENT.format(name))
            if is_its_own and (name in alike or holding[gradient] is Element.NUMBER):
                yield gradient
                continue
            axes, result = self._axes(name), self.fresh(GRADIENT.format(name))
            self.put(result, axes, as_numbers(Ref(gradient, axes)), self._sizes(name))
            yield result

    def _certain(self) -> dict[str, Element]:
        """What the leaves hold whatever is given: an input that nothing is known of may hold integers."""
        known = dict.fromkeys(self.seeds.values(), Element.NUMBER)
        for leaf in self.graph.leaves:
            may_be_whole = leaf.kind == "input" and leaf.name not in self.wrt
            known[leaf.name] = Element.SHORT if may_be_whole else self.elements[leaf.name]
        return known


def _tidy(graph: Graph) -> Graph:
    """The graph without sizes that nothing in it speaks of, and formulas of axes whose size tensors tell."""
    alone = {name for equation in graph.own for name in sized_by_name(equation.right)}
    formulas = {name: size for name, size in graph.sizes if not isinstance(size, int) and name in alone}
    used = {*alone, *(name for size in formulas.values() for name in size_names(size))}
    for leaf in graph.leaves:
        used.update(name for dim in leaf.dims for axis in dim for name in size_names(axis.size))
    for equation in graph.own:
        used.update(name for part in equation.parts if not isinstance(part, Ref) for name in occurring(part))
    for call in graph.calls:
        used.update(call.graph.bound)
    sizes = (
        (name, size)
        for name, size in graph.sizes
        if name in formulas or (isinstance(size, int) and name in used)
    )
    return replace(graph, sizes=tuple(sizes))


@dataclass(frozen=True)
class _Called:
    """A call on both ways: the block's, the leaves that get gradients, what the caller calls its tensors."""

    directions: Directions
    wrt: tuple[str, ...]
    names: Mapping[str, str]


def _again(
    graph: Graph, forward: Sequence[Equation | Apply], body: Sequence[Equation | Apply]
) -> list[Equation | Apply]:
    """What the way back reads of what hangs on no input and no parameter: it is made there anew, once for all calls."""
    constants = {leaf.name for leaf in graph.constants}
    still: dict[str, Equation | Apply] = {}
    for item in forward:
        is_still = all(name in still or name in constants for name, _ in reads(item))
        if is_still and isinstance(item, Equation) and not is_random(item.right):
            still[item.name] = item
    wanted = {name for item in body for name, _ in reads(item)}
    for name, item in reversed(still.items()):
        if name in wanted:
            wanted.update(name for name, _ in reads(item))
    return [item for name, item in still.items() if name in wanted]


def _beside(scope: Scope, nearer: Scope) -> Scope:
    """The sizes of two scopes; where both tell one, that of the nearer."""
    return Scope(
        {**scope.sizes, **nearer.sizes},
        {**scope.assumed, **nearer.assumed},
        inner={**scope.inner, **nearer.inner},
    )


def _parts(entry: Index) -> tuple[str, ...]:
    """The axes that an entry of brackets names."""
    if isinstance(entry, str):
        return (entry,)
    return entry if isinstance(entry, tuple) else ()
