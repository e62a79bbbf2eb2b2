"""Kernel selection: regions of equations that one backend kernel computes.

A kernel says in the equation language what it computes, as a pattern that many programs fit: scaled dot-product
attention in `ops/attention.py`, a user's own by `tn.register(…, computes=…)`. Both are compared in their canonical
forms; what no kernel takes stays as it was written.
"""

from __future__ import annotations

import cmath
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ..graph.element_types import of_expression
from ..graph.graph import Graph
from ..graph.shape_inference import Scope, size_expression
from ..language.canonical import CanonicalForms, canonical_functions, flattened, value_of
from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Literal,
    Ref,
    Size,
    axes_of_index,
    bound_axes,
    contraction,
    flat,
    free_axes,
    fresh,
    is_scalar,
    occurring,
    parts_of,
    product_of,
    references,
    relabel,
    rename,
    sized_by_name,
    subexpressions,
    sum_of,
    transform,
    without,
)
from ..language.patterns import Pattern, groups_of, pattern_of, sized
from ..ops.pointwise import WHERE
from ..ops.record import Element, KernelEquation
from ..ops.table import FUNCTIONS, Function
from ..sizes import evaluate, product
from .rewriter import Draft

__all__ = ["select_kernels"]

Cost: TypeAlias = "Callable[[Graph], float]"

TRIED = ((10007, 10009, 10037, 10039, 10061, 10067), (20011, 20021, 20023, 20029, 20047, 20051))
"""Open sizes at which numbers that speak of them are compared."""

MOST = 256
"""So many ways to deal the factors of a product out to the tensors of a pattern are all looked at."""


def select_kernels(graph: Graph, cost: Cost, kernels: Sequence[Function], values: Mapping[str, int]) -> Graph:
    """The graph with kernels in the place of what they compute, wherever `cost` says that this pays.

    Args:
        graph: the graph.
        cost: the expected seconds of a graph; it is asked about a region and what makes its operands.
        kernels: what it may be covered with.
        values: every open size.
    """
    if not kernels:
        return graph
    draft, functions = Draft(graph), dict[str, frozenset[str]]()
    patterns = [(kernel, each, pattern_of(each)) for kernel in kernels for each in kernel.recognised]
    for equation in graph.own:
        functions[equation.name] = _functions(equation.parts, functions)
        possible = [each for each in patterns if each[-1].functions <= functions[equation.name]]
        covered = functools.partial(_covered, draft, equation.name, cost, possible, values, functions)
        while possible and equation.name in draft and covered():
            pass
    return draft.finished()


_Kernel: TypeAlias = "tuple[Function, KernelEquation, Pattern]"


_Behind: TypeAlias = "Mapping[str, frozenset[str]]"
"""The functions in the canonical forms of what tensors hang on, by their names."""


def _functions(parts: Iterable[Expression], behind: _Behind) -> frozenset[str]:
    """The functions in the canonical form of an expression, told by its parts, and of all that it hangs on."""
    parts = tuple(parts)
    own = canonical_functions({part.function for part in parts if isinstance(part, Call)})
    return own.union(
        *(behind.get(name, ()) for name in {each.name for each in parts if isinstance(each, Ref)})
    )


def _covered(
    draft: Draft,
    name: str,
    cost: Cost,
    kernels: Sequence[_Kernel],
    values: Mapping[str, int],
    behind: _Behind,
) -> bool:
    """Puts the first kernel that pays into an equation; whether there is one."""
    for found in _covers(draft, draft[name], kernels, values, behind):
        before, after = _beside(draft, found)
        if cost(draft.part(after, (name,))) < cost(draft.part(before, (name,))):
            draft.put(found.equation)
            return True
    return False


@dataclass(frozen=True)
class _Cover:
    """An equation with a kernel in it, in the place of some equations, itself the last of them."""

    equation: Equation
    region: tuple[Equation, ...]


def _covers(
    draft: Draft,
    equation: Equation,
    kernels: Sequence[_Kernel],
    values: Mapping[str, int],
    behind: _Behind,
) -> Iterator[_Cover]:
    """The best way to put each kernel into an equation."""
    search = _Search(draft, equation, values)
    parts = (part for part in equation.parts if isinstance(part, Contraction | Call))
    real = (part for part in parts if not is_scalar(part) and search.is_real(part))
    heads = [(part, _functions(subexpressions(part), behind)) for part in real]
    for (kernel, meaning, pattern), (head, functions) in itertools.product(kernels, heads):
        if not pattern.functions <= functions or (kernel.fused and _is_called(kernel, head)):
            continue
        ways = (
            found
            for found in search.whole(pattern, search.form(head))
            if not search.is_rounded(found, pattern, kernel)
            and meaning.holds(found.numbers)
            and search.is_sized(found)
        )
        found = min(ways, key=search.elements, default=None)
        if found is not None:
            right = _put(equation.right, head, search.call(kernel, meaning, pattern, found))
            yield _Cover(replace(equation, right=right), (*search.region(found), equation))


def _is_called(kernel: Function, head: Expression) -> bool:
    """Whether a kernel is written there as what it is."""
    return any(isinstance(part, Call) and part.function == kernel.name for part in subexpressions(head))


def _beside(draft: Draft, found: _Cover) -> tuple[tuple[Equation, ...], tuple[Equation, ...]]:
    """The region as it is and covered, both with the equations that make its operands and serve it alone.

    Covered, an equation remains whose result is read beside the kernel.
    """
    inside = {equation.name for equation in found.region}
    made: dict[str, Equation] = {}
    for equation in found.region:
        for ref in equation.references:
            if ref.name in draft and ref.name not in inside:
                reader = draft.only_reader(ref.name)
                if reader is not None and reader.name in inside:
                    made[ref.name] = draft[ref.name]
    left, read = list[Equation](), {ref.name for ref in found.equation.references}
    for equation in reversed(found.region):
        if equation.name in read and equation.name != found.equation.name:
            left.insert(0, equation)
            read.update(ref.name for ref in equation.references)
    return (*made.values(), *found.region), (*made.values(), *left, found.equation)


def _put(expression: Expression, head: Expression, instead: Expression) -> Expression:
    if expression is head:
        return instead
    return transform(expression, lambda part: _put(part, head, instead))


# ---------------------------------------------------------------------------- search


@dataclass(frozen=True)
class _Found:
    """How far a pattern is found.

    Attributes:
        bound: the expression for each name in the pattern, tensors and numbers.
        runs: axes of the pattern that a sum or a function runs over, each with those of the program.
        looked: the equations that were looked through.
        beside: the factors that stand beside the kernel in its product, and the sums that remain.
        inside, bounded: the axes of the program that the sums around bind, and those that any sum does.
        outside: the names that some of these have outside of their sums.
        counts: numbers of the pattern that speak of sizes of axes, with those of the program.
        groups: the axes of the program for each of the pattern, once these are known.
    """

    bound: Mapping[str, Expression] = field(default_factory=dict)
    runs: tuple[tuple[tuple[str, ...], frozenset[str]], ...] = ()
    looked: tuple[str, ...] = ()
    beside: tuple[tuple[Expression, ...], frozenset[str]] = ((), frozenset())
    inside: frozenset[str] = frozenset()
    bounded: frozenset[str] = frozenset()
    outside: Mapping[str, str] = field(default_factory=dict)
    counts: tuple[tuple[Expression, Expression], ...] = ()
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def binding(self, name: str, expression: Expression) -> _Found | None:
        """With a name of the pattern bound; nothing where it is something else already.

        A tensor under the axes of a sum is the same as outside of it, under other names.
        """
        known = self.bound.get(name, expression)
        if known == expression:
            return replace(self, bound={**self.bound, name: expression})
        pairs = zip(free_axes(known), free_axes(expression), strict=False)
        moved = {one: other for one, other in pairs if one != other}
        if self.inside.isdisjoint(moved.values()):
            inner, outer = known, expression
        else:
            inner, outer, moved = expression, known, {other: one for one, other in moved.items()}
        agree = all(self.outside.get(axis, new) == new for axis, new in moved.items())
        if not agree or not self.bounded.issuperset(moved) or rename(inner, moved) != outer:
            return None
        return replace(self, bound={**self.bound, name: outer}, outside={**self.outside, **moved})

    def within(self, axes: Iterable[str]) -> _Found:
        """Inside of a sum over some axes."""
        return replace(self, inside=self.inside.union(axes), bounded=self.bounded.union(axes))

    def outer(self, axis: str) -> str:
        """What an axis is called outside of the sums that bind it."""
        for _ in self.outside:
            axis = self.outside.get(axis, axis)
        return axis

    @property
    def numbers(self) -> dict[str, int | float | complex | None]:
        """The values of the numbers; nothing for one that speaks of an open size."""
        return {name: value_of(each) for name, each in self.bound.items() if is_scalar(each)}

    def running(self, pattern: tuple[str, ...], axes: frozenset[str]) -> _Found:
        return replace(self, runs=(*self.runs, (pattern, axes)))


class _Search:
    """Looks for patterns in one equation, through what is computed for it alone."""

    pattern: Pattern

    def __init__(self, draft: Draft, equation: Equation, values: Mapping[str, int]) -> None:
        self.draft, self.graph, self.equation = draft, draft.graph, equation
        self.values = {**values, **self.graph.bound}
        self.forms = CanonicalForms(self._count)
        self.places = {each.name: n for n, each in enumerate(self.graph.own)}
        self.seen: dict[tuple[Ref, bool], Expression | None] = {}
        self.serving: dict[str, bool] = {}
        self.form = functools.cache(self._form)
        self.taken = {*occurring(equation.right), *axes_of_index(equation.left)}

    def _form(self, head: Expression) -> Expression:
        """The canonical form of a part of the equation."""
        around = self.draft.scope(Contraction(tuple(parts_of(self.equation.right))))
        return self.forms.of(self._sized(head, around))

    def whole(self, pattern: Pattern, part: Expression) -> Iterator[_Found]:
        """Every way in which a pattern is an expression, or, a product, some factors of one."""
        self.pattern, written, start = pattern, pattern.expression, _Found()
        if isinstance(written, Contraction) and isinstance(part, Contraction):
            ways = self._product(written, part, start, outermost=True)
        else:
            ways = self._match(written, part, start)
        settled = map(self._settled, ways)
        return (found for found in settled if found is not None)

    # ---- the pattern, part by part

    def _match(self, pattern: Expression, part: Expression, found: _Found) -> Iterator[_Found]:
        match pattern:
            case Ref(name, index):
                fits = not is_scalar(part) if index else value_of(part) is not None
                bound = found.binding(name, part) if fits else None
                yield from () if bound is None else (bound,)
                return
            case _ if is_scalar(pattern):
                if value_of(part) == value_of(pattern):
                    yield found
                return
        part, found = self._look(part, found)
        part, found = self._moved_in(part, pattern, found)
        match pattern, part:
            case Contraction(), _:
                product = part if isinstance(part, Contraction) else Contraction((part,), ())
                yield from self._product(pattern, product, found)
            case Call("add"), Call("add"):
                yield from self._sum(pattern, part, found)
            case Call(function, arguments), Call() if (
                part.function == function
                and len(part.arguments) == len(arguments)
                and part.options == pattern.options
            ):
                around = found.inside
                found = found.running(pattern.axes, frozenset(part.axes)) if pattern.axes else found
                ways = self._all(
                    tuple(zip(arguments, part.arguments, strict=True)), found.within(bound_axes(part))
                )
                yield from (replace(each, inside=around) for each in ways)

    def _moved_in(self, part: Expression, pattern: Expression, found: _Found) -> tuple[Expression, _Found]:
        """A number times a sum or a choice, where the pattern has one of these, as one of such products."""
        match pattern, part:
            case Call(function), Contraction(factors, ()) if function in ("add", WHERE.name):
                numbers = [each for each in factors if is_scalar(each)]
                others = [each for each in factors if not is_scalar(each)]
                if len(others) == 1:
                    inside, seen = self._look(others[0], found)
                    if isinstance(inside, Call) and inside.function == function:
                        return _times(numbers, inside), seen
        return part, found

    def _all(self, pairs: Sequence[tuple[Expression, Expression]], found: _Found) -> Iterator[_Found]:
        """Every way in which each pattern is the part beside it."""
        if not pairs:
            yield found
            return
        for each in self._match(*pairs[0], found):
            yield from self._all(pairs[1:], each)

    def _sum(self, pattern: Call, part: Call, found: _Found) -> Iterator[_Found]:
        """Terms in any order; a tensor of the pattern may be the sum of several, and a number of all numbers."""
        named = [term for term in pattern.arguments if isinstance(term, Ref)]
        whole = [term for term in pattern.arguments if not isinstance(term, Ref)]
        tensors, numbers = ([term for term in named if bool(term.index) is of] for of in (True, False))
        scalars = [term for term in part.arguments if is_scalar(term)] if numbers else []
        terms = [term for term in part.arguments if not (numbers and is_scalar(term))]
        if numbers and not scalars:
            return
        for chosen in itertools.permutations(range(len(terms)), len(whole)):
            left = [term for n, term in enumerate(terms) if n not in chosen]
            pairs: list[tuple[Expression, Expression]] = [
                *zip(whole, (terms[n] for n in chosen), strict=True)
            ]
            pairs += [(number, sum_of(scalars)) for number in numbers]
            for seen in self._all(pairs, found):
                for groups in _dealt(left, range(len(tensors)), range(len(tensors))):
                    yield from self._all([*zip(tensors, map(sum_of, groups), strict=True)], seen)

    def _product(
        self, pattern: Contraction, part: Contraction, found: _Found, outermost: bool = False
    ) -> Iterator[_Found]:
        """Factors in any order; a tensor of the pattern may be the product of several."""
        named = [factor for factor in pattern.factors if isinstance(factor, Ref)]
        numbers = [factor for factor in named if not factor.index]
        tensors: list[Expression] = [factor for factor in named if factor.index]
        told = [factor for factor in pattern.factors if is_scalar(factor)]
        whole = [factor for factor in pattern.factors if not isinstance(factor, Ref) and factor not in told]
        part, found = self._spread(part, found, len(tensors) + len(whole), bool(pattern.summed))
        scalars = [factor for factor in part.factors if is_scalar(factor)]
        factors = [factor for factor in part.factors if not is_scalar(factor)]
        if numbers:
            scope = self.draft.scope(replace(part, summed=()))
            value = _together([self._sized(each, scope) for each in scalars])
            bound = found.binding(numbers[0].name, _over(value, told))
            if bound is None:
                return
            found = bound
        elif any(_speaks_of_sizes(each) for each in told):
            found = replace(found, counts=(*found.counts, (_together(told), _together(scalars))))
        elif (told or not outermost) and value_of(_together(scalars)) != value_of(_together(told)):
            return
        around, found = found.inside, found if outermost else found.within(part.summed)
        places = [*range(len(tensors)), *([-1] if outermost else [])]
        for chosen in itertools.permutations(range(len(factors)), len(whole)):
            left = [factor for n, factor in enumerate(factors) if n not in chosen]
            taken = [factors[n] for n in chosen]
            for seen in self._all([*zip(whole, taken, strict=True)], found):
                for groups in _dealt(left, places, range(len(tensors))):
                    ways = self._shared(pattern, part, tensors, [*groups, taken], seen, outermost)
                    yield from (replace(each, inside=around) for each in ways)

    def _shared(
        self,
        pattern: Contraction,
        part: Contraction,
        tensors: Sequence[Expression],
        held: list[list[Expression]],
        found: _Found,
        outermost: bool,
    ) -> Iterator[_Found]:
        """A product whose factors are dealt out: to each tensor some, and the others beside and to functions."""
        own = [
            frozenset() if _sums_alone(pattern, each) else self._alone(part.summed, held, n)
            for n, each in enumerate(tensors)
        ]
        remaining = frozenset(part.summed) - frozenset().union(*own)
        if outermost:
            numbers = [each for each in part.factors if is_scalar(each)] if self.pattern.keeps_numbers else []
            found = replace(found, beside=((*numbers, *held[len(tensors)]), remaining))
        else:
            found = found.running(pattern.summed, remaining)
        products = (
            contraction(tuple(group), tuple(sorted(sums)), part.place)
            for group, sums in zip(held, own, strict=False)
        )
        yield from self._all([*zip(tensors, products, strict=False)], found)

    def _spread(
        self, part: Contraction, found: _Found, wanted: int, sums: bool
    ) -> tuple[Contraction, _Found]:
        """The product with the factors of products that it has for factors, if it has fewer than are wanted, or no
        sum where one is."""
        for factor in part.factors:
            many = sum(not is_scalar(each) for each in part.factors) >= wanted
            if many and (part.summed or not sums):
                break
            behind, seen = (factor, found) if isinstance(factor, Contraction) else self._look(factor, found)
            others = Contraction(without(part.factors, (factor,)), part.summed)
            if isinstance(behind, Contraction) and not set(behind.summed) & occurring(others):
                factors = (behind if each is factor else each for each in part.factors)
                whole = Contraction(tuple(factors), part.summed, part.place)
                part, found = Contraction(*flattened(whole), part.place), seen
        return part, found

    def _alone(self, summed: Sequence[str], held: list[list[Expression]], at: int) -> frozenset[str]:
        """The sums over axes that only the factors in one place have."""
        others = {
            axis for n, group in enumerate(held) if n != at for each in group for axis in free_axes(each)
        }
        own = {axis for each in held[at] for axis in free_axes(each)}
        return frozenset(axis for axis in summed if axis in own - others)

    def _sized(self, part: Expression, scope: Scope) -> Expression:
        """An expression with the sizes put in that it speaks of.

        Args:
            part: the expression.
            scope: the sizes of axes around it.
        """
        if isinstance(part, Size):
            return size_expression(evaluate(scope[part.axis], self.graph.bound))
        if not any(isinstance(each, Size) for each in subexpressions(part)):
            return part
        if not is_scalar(part):
            own = self.draft.scope(Contraction(tuple(parts_of(part)))).sizes
            scope = Scope({**scope.sizes, **own}, scope.assumed, scope.fitting)
        return transform(part, lambda each: self._sized(each, scope))

    def _count(self, call: Call) -> Expression:
        """The number of positions that a call runs over."""
        scope = self.draft.scope(Contraction(call.arguments))
        return size_expression(product(evaluate(scope[axis], self.graph.bound) for axis in call.axes))

    # ---- through names

    def _look(self, part: Expression, found: _Found) -> tuple[Expression, _Found]:
        """What a name stands for, if it is computed for this alone; under the axis names of the reference."""
        if not isinstance(part, Ref):
            return part, found
        key = part, self.pattern.repeats
        if key not in self.seen:
            self.seen[key] = self._seen(part)
        behind = self.seen[key]
        if behind is None:
            return part, found
        return self._look(behind, replace(found, looked=(part.name, *found.looked)))

    def _is_looked_through(self, ref: Ref) -> bool:
        if self.pattern.repeats:
            return self._serves(ref.name)
        return ref.name in self.draft and self.draft.only_reader(ref.name) is not None

    def _serves(self, name: str) -> bool:
        """Whether what a name stands for is computed for this equation alone, however often it is read."""
        if name not in self.serving:
            here = self.places[self.equation.name]
            made = name in self.draft and name not in self.graph.outputs
            self.serving[name] = made and all(
                each.name == self.equation.name or (self.places[each.name] < here and self._serves(each.name))
                for each in self.draft.readers(name)
            )
        return self.serving[name]

    def _seen(self, ref: Ref) -> Expression | None:
        if not self._is_looked_through(ref):
            return None
        producer, names = self.draft[ref.name], dict[str, str]()
        for made, read in zip(producer.left, ref.index, strict=True):
            match made, read:
                case str(), str():
                    names[made] = read
                case tuple(), tuple() if len(made) == len(read):
                    names.update(zip(made, read, strict=True))
                case _:
                    return None
        right = self._sized(producer.right, self.draft.scope(Contraction(tuple(parts_of(producer.right)))))
        apart = {axis: "" for axis in occurring(right) - set(free_axes(right)) if axis in self.taken}
        for axis in sorted(apart):
            apart[axis] = fresh(axis, self.taken | occurring(right) | set(self.graph.bound))
            self.taken.add(apart[axis])
        changed = {old for old, new in {**names, **apart}.items() if old != new}
        sizes = {part.axis for part in subexpressions(right) if isinstance(part, Size)}
        if len(set(names.values())) < len(names) or changed & (sized_by_name(right) | sizes):
            return None
        self.taken |= occurring(right) | set(names.values())
        return self.forms.of(rename(relabel(right, apart) if apart else right, names))

    # ---- what was found

    def _settled(self, found: _Found) -> _Found | None:
        """With the axes of the program for each of the pattern; nothing if they do not agree."""
        pattern = self.pattern
        names = {axis: found.outer(axis) for axis in found.outside}
        bound = {name: rename(self.forms.written(each), names) for name, each in found.bound.items()}
        runs = [(run, frozenset(map(found.outer, told))) for run, told in found.runs]
        axes = {name: free_axes(each) for name, each in bound.items()}
        places = {run[0]: each for run, each in runs if run and run[0] in pattern.placed}
        groups = groups_of(pattern, axes, places)
        if groups is None:
            return None
        for run, told in runs:
            if bool(run) is not bool(told) or told != {axis for each in run for axis in groups[each]}:
                return None
        if isinstance(pattern.expression, Contraction) and pattern.expression.summed:
            beside = {axis for each in found.beside[0] for axis in free_axes(each)}
            summed = {axis for each in pattern.expression.summed for axis in groups[each]}
            if not summed or not summed <= found.beside[1] - beside:
                return None
        sizes = self._sizes_of(bound, groups)
        if not all(_are_equal(_put_in(one, sizes), other) for one, other in found.counts):
            return None
        bound = {name: _put_in(each, sizes) if is_scalar(each) else each for name, each in bound.items()}
        factors = tuple(map(self.forms.written, found.beside[0]))
        return replace(found, bound=bound, groups=groups, beside=(factors, found.beside[1]))

    def _sizes_of(
        self, bound: Mapping[str, Expression], groups: Mapping[str, tuple[str, ...]]
    ) -> dict[str, Expression]:
        """The sizes of the axes of the pattern."""
        scope = self.draft.scope(Contraction(tuple(each for each in bound.values() if not is_scalar(each))))
        sizes = {
            axis: [evaluate(scope[each], self.graph.bound) for each in own] for axis, own in groups.items()
        }
        return {sized(axis): size_expression(product(each)) for axis, each in sizes.items()}

    def is_real(self, part: Expression) -> bool:
        """Whether a part holds real numbers, of the working type or made of constants, as a frozen model's are."""
        return of_expression(part, self.draft.elements) >= Element.WIDE

    def is_rounded(self, found: _Found, pattern: Pattern, kernel: Function) -> bool:
        """Whether a tensor holds what the kernel would round: one that lays its operands out takes them as they are
        but for integers, any other takes numbers of the working type."""
        elements = (
            of_expression(each, self.draft.elements)
            for name, each in found.bound.items()
            if not is_scalar(each) and name not in pattern.partial
        )
        return any(each.is_position if kernel.lowered else each.is_exact for each in elements)

    def is_sized(self, found: _Found) -> bool:
        """Whether sizes are known, and each operand tells those that its dimensions are taken apart into: a kernel
        takes them one by one."""
        operands = tuple(found.bound.values())
        together = self.draft.scope(Contraction(operands))
        sizes = (evaluate(together[axis], self.values) for each in operands for axis in free_axes(each))
        return all(isinstance(size, int) for size in sizes) and all(map(self.draft.is_sized, operands))

    def elements(self, found: _Found) -> tuple[float, int]:
        """The elements of the operands, and their factors: of several ways to cut a product, that of the least."""
        operands = tuple(found.bound.values())
        scope = self.draft.scope(Contraction(operands))  # what one speaks of, another may tell the size of
        sizes = ([evaluate(scope[axis], self.values) for axis in free_axes(each)] for each in operands)
        elements = sum(float(product(each)) for each in sizes)
        return elements, sum(len(list(references(each))) for each in operands)

    def region(self, found: _Found) -> Iterator[Equation]:
        """The equations that were looked through, in the order of the program."""
        looked = set(found.looked)
        return (self.draft[each.name] for each in self.graph.own if each.name in looked)

    def call(self, kernel: Function, meaning: KernelEquation, pattern: Pattern, found: _Found) -> Expression:
        """The call of a kernel, among the factors that stand beside it."""
        operands = tuple(_bound(each, found.bound, found.groups) for each in pattern.operands)
        told = dict(kernel.options)
        options = tuple((name, (each,)) for name, each in found.bound.items() if name in told)
        options += tuple((name, (Literal(value),)) for name, value in meaning.options)
        axes = tuple(axis for each in pattern.axes for axis in found.groups[each])
        made = Call(kernel.name, operands, axes, options)
        beside, remaining = found.beside
        gone = set(axes).difference(free_axes(made))
        return contraction((made, *beside), tuple(sorted(remaining - gone)), None)


def _bound(
    expression: Expression, bound: Mapping[str, Expression], groups: Mapping[str, tuple[str, ...]]
) -> Expression:
    """An expression of a pattern with what its names and axes stand for; over no axis a function is left out."""
    if isinstance(expression, Ref):
        return bound[expression.name]
    changed = transform(expression, lambda part: _bound(part, bound, groups))
    if isinstance(changed, Call) and changed.axes:
        made = FUNCTIONS[changed.function].makes(changed.axes)
        present = {
            *free_axes(Contraction(changed.arguments)),
            *(axis for each in made for axis in groups[each]),
        }
        axes = tuple(axis for each in changed.axes for axis in groups[each] if axis in present)
        return replace(changed, axes=axes) if axes else changed.arguments[0]
    return flat(changed)


def _together(numbers: list[Expression]) -> Expression:
    """The product of some numbers, 1 if there are none."""
    return product_of(numbers or [Literal(1)])


def _times(numbers: Sequence[Expression], call: Call) -> Call:
    """Some numbers times a sum, or a choice, as one of products."""
    first = FUNCTIONS[call.function].conditions
    products = (product_of([*numbers, each]) for each in call.arguments[first:])
    return replace(call, arguments=(*call.arguments[:first], *products))


def _sums_alone(product: Contraction, factor: Expression) -> bool:
    """Whether a product sums over an axis that one of its factors alone has."""
    others = {axis for each in without(product.factors, (factor,)) for axis in free_axes(each)}
    return not others.issuperset({*free_axes(factor)}.intersection(product.summed))


def _over(number: Expression, others: list[Expression]) -> Expression:
    """A number divided by the product of some others."""
    return product_of([number, Call("reciprocal", (_together(others),))]) if others else number


def _speaks_of_sizes(number: Expression) -> bool:
    return any(isinstance(part, Size) for part in subexpressions(number))


def _put_in(number: Expression, sizes: Mapping[str, Expression]) -> Expression:
    """A number with the sizes of the axes of a pattern."""
    if isinstance(number, Size):
        return sizes.get(number.axis, number)
    return transform(number, lambda part: _put_in(part, sizes))


def _are_equal(one: Expression, other: Expression) -> bool:
    """Whether two numbers are equal whatever the open sizes are: they are at some that have little in common."""
    names = dict.fromkeys(
        part.axis for each in (one, other) for part in subexpressions(each) if isinstance(part, Size)
    )
    for primes in TRIED:
        sizes = dict(zip(names, primes, strict=False))
        a, b = value_of(one, sizes), value_of(other, sizes)
        if a is None or b is None or not cmath.isclose(a, b):
            return False
    return True


def _dealt(
    parts: Sequence[Expression], places: Sequence[int], wanted: Sequence[int]
) -> Iterator[list[list[Expression]]]:
    """Every way to deal parts out to places, so that those that are wanted get some; of many, those that keep
    together what stands side by side."""
    many = len(places) ** len(parts) > MOST
    for assigned in _runs(len(parts), places) if many else itertools.product(places, repeat=len(parts)):
        if set(wanted) <= set(assigned):
            yield [[part for part, to in zip(parts, assigned, strict=True) if to == n] for n in places]


def _runs(count: int, places: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The places of some parts where each place gets a run of them, in any order, or none."""
    for order in itertools.permutations(places):
        for cuts in itertools.combinations_with_replacement(range(count + 1), len(places) - 1):
            lengths = (stop - start for start, stop in itertools.pairwise((0, *cuts, count)))
            yield tuple(place for place, length in zip(order, lengths, strict=True) for _ in range(length))
