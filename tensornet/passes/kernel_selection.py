"""Kernel selection: regions of equations that one backend kernel computes.

A kernel declares in the equation language what it computes, as a pattern that many programs fit. Scaled dot-product
attention is in `ops/attention.py`; a user's own comes by `tn.register(…, computes=…)`. Patterns and programs are
compared in their canonical forms. What no kernel covers stays as it was written.
"""

from __future__ import annotations

import cmath
import functools
import itertools
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from ..frontend.elaborate_ir import Expressions
from ..graph.shape_inference import Scope, size_expression
from ..ir.equations import options_of, scalar_expression
from ..ir.node import Affine, Axis, Node, Operand, along, axes_of, row_major, substitute
from ..ir.rewriting import Change, Cost, PassContext, Program, improved
from ..language.canonical import CanonicalForms, canonical_functions, flattened, value_of
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Literal,
    Ref,
    Size,
    bound_axes,
    contraction,
    flat,
    product_of,
    rename,
    sum_of,
    without,
)
from ..language.patterns import Pattern, groups_of, pattern_of, sized
from ..ops.pointwise import WHERE
from ..ops.record import Element, KernelEquation, left_of
from ..ops.structure import INDEX
from ..ops.table import FUNCTIONS, Function
from ..sizes import evaluate, product

TRIED = ((10007, 10009, 10037, 10039, 10061, 10067), (20011, 20021, 20023, 20029, 20047, 20051))
"""Values of open sizes at which numbers that contain these sizes are compared."""

DEEP = 16
"""The deepest nesting of functions that is brought into canonical form together."""

NEAR = 8
"""The longest chain of nodes that a pattern covers, with all its functions expanded."""

MOST = 256
"""Up to this many ways to distribute the factors of a product over the tensors of a pattern, all are tried."""


def select_kernels(program: Program, cost: Cost, context: PassContext) -> Program:
    """The program with kernels in place of the regions that they compute, where `cost` says that this pays.

    The cost is evaluated for a region and the nodes that compute its operands.
    """
    functions = functools.cache(canonical_functions)
    there = functions(program.features.intersection(FUNCTIONS))
    missing = {name for name, each in FUNCTIONS.items() if not each.expansion} - there
    patterns = [
        (kernel, each, pattern)
        for kernel in context.kernels
        for each in kernel.recognised
        if program.features.issuperset(each.needs) and each.called.isdisjoint(missing)
        if (pattern := pattern_of(each)).functions <= there
    ]
    if not patterns:
        return program

    def changes(present: Program, head: Node) -> Iterator[Change]:
        if head.is_scalar or head.element < Element.WIDE or not _is_open(head):
            return
        called = _called(head)
        possible = [
            each
            for each in patterns  # the kernel's own call does not count as its functions
            if _may_be(each[-1], head) and each[-1].functions <= functions(called - {each[0].name})
        ]
        if possible:
            search = _Search(present, head, context.values)
            covers = (search.covered(*each) for each in possible)
            yield from (each for each in covers if each is not None)

    return improved(program, [*_outermost_first(program)], changes, cost, first=True)


def operands_matched(
    program: Program, head: Node, meaning: KernelEquation, inside: Container[Node]
) -> Iterator[tuple[Node, ...]]:
    """The operands of a kernel in each match of its equation with all of a node, each in the shape of the node.

    Args:
        program: the program.
        head: the node.
        meaning: the equation.
        inside: the nodes that the match may cover, however often they are read.
    """
    if not _is_open(head):
        return
    pattern, search = pattern_of(meaning), _Search(program, head, {})
    search.serving.update((each, each in inside) for each in program.nodes)
    for found in search.whole(pattern, search.form):
        if not any(found.beside):
            operands = (_bound(each, found.bound, found.groups) for each in pattern.operands)
            yield tuple(search.elaborated(each)[0] for each in operands)


def _may_be(pattern: Pattern, head: Node) -> bool:
    """Whether a pattern may match a node: one that is no product, and has no expansion, has to be called."""
    alone = isinstance(pattern.expression, Call) and pattern.expression.function == head.op
    return alone or head.op in ("contract", "copy", "power") or bool(head.function.expansion)


def _called(head: Node) -> frozenset[str]:
    """The functions of a node and of the nodes that it depends on, as far as patterns reach."""
    found, last = {head}, {head}
    for _ in range(NEAR):
        last = {each for node in last for each in node.children if not each.is_scalar} - found
        found |= last
        last = {each for each in last if each.op == INDEX.name or _is_open(each)}
    return frozenset(each.op for each in found).intersection(FUNCTIONS)


def _outermost_first(program: Program) -> Iterator[Node]:
    """The nodes in order, except that those inside of an equation come after their reader."""
    lone = {each for each in program.nodes if program.readers[each] == 1} - program.names.tensors.keys()
    for each in program.nodes:
        waiting = [] if each in lone else [each]
        while waiting:
            yield (last := waiting.pop())
            waiting += [other for other in last.children if other in lone]


# ---------------------------------------------------------------------------- search


class _Found(NamedTuple):
    """A match of a pattern as far as it is found.

    Attributes:
        bound: the expression for each name in the pattern, tensors and numbers.
        runs: the axes of the pattern that each sum or function runs over, with those of the program.
        beside: the factors next to the kernel in its product, and the summed axes that remain.
        inside, bounded: the axes of the program that the enclosing sums bind, and those that any sum binds.
        outside: the names that some of these axes have outside of their sums.
        counts: numbers of the pattern that contain sizes of axes, with those of the program.
        groups: the axes of the program for each axis of the pattern, once these are known.
    """

    bound: Mapping[str, Expression] = MappingProxyType({})
    runs: tuple[tuple[tuple[str, ...], frozenset[str]], ...] = ()
    beside: tuple[tuple[Expression, ...], frozenset[str]] = ((), frozenset())
    inside: frozenset[str] = frozenset()
    bounded: frozenset[str] = frozenset()
    outside: Mapping[str, str] = MappingProxyType({})
    counts: tuple[tuple[Expression, Expression], ...] = ()
    groups: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    def binding(self, name: str, expression: Expression) -> _Found | None:
        """The match with a name of the pattern bound; None if the name is bound to something else.

        A tensor inside of a sum equals the same tensor outside of it, up to the names of axes.
        """
        known = self.bound.get(name, expression)
        if known == expression:
            return self._replace(bound={**self.bound, name: expression})
        pairs = zip(known.free_axes, expression.free_axes, strict=False)
        moved = {one: other for one, other in pairs if one != other}
        if self.inside.isdisjoint(moved.values()):
            inner, outer = known, expression
        else:
            inner, outer, moved = expression, known, {other: one for one, other in moved.items()}
        agree = all(self.outside.get(axis, new) == new for axis, new in moved.items())
        if not agree or not self.bounded.issuperset(moved) or rename(inner, moved) != outer:
            return None
        return self._replace(bound={**self.bound, name: outer}, outside={**self.outside, **moved})

    def within(self, axes: Iterable[str]) -> _Found:
        """The match inside of a sum over some axes."""
        return self._replace(inside=self.inside.union(axes), bounded=self.bounded.union(axes))

    def outer(self, axis: str) -> str:
        """The name of an axis outside of the sums that bind it."""
        for _ in self.outside:
            axis = self.outside.get(axis, axis)
        return axis

    @property
    def numbers(self) -> dict[str, int | float | complex | None]:
        """The values of the numbers; None for a number that contains an open size."""
        return {name: value_of(each) for name, each in self.bound.items() if each.is_scalar}

    def running(self, pattern: tuple[str, ...], axes: frozenset[str]) -> _Found:
        return self._replace(runs=(*self.runs, (pattern, axes)))


class _Search:
    """Looks for patterns in the expression of one node, through nodes that are computed for it alone.

    The axes of the node, and of each node that is looked through, have names of their own. So do tensors.

    Attributes:
        tensors: the operand for each name: a node, read along axes that are numbered in order of occurrence.
        sizes, called: the size of each axis, and its name in the program.
    """

    pattern: Pattern

    def __init__(self, program: Program, head: Node, values: Mapping[str, int]) -> None:
        self.program, self.head = program, head
        self.bound = dict(program.names.sizes)
        self.values = {**values, **self.bound}
        self.tensors = dict[str, Operand]()
        self.names = dict[Operand, str]()
        self.sizes, self.called = dict[str, Any](), dict[str, str]()
        self.forms = CanonicalForms(functools.partial(_count, self.sizes, self.bound))
        self.seen: dict[Ref, Expression | None] = {}
        self.serving: dict[Node, bool] = {}
        self.labels = self._named(head, {})
        self.form = self.forms.of(self._written(head, self.labels))

    def covered(self, kernel: Function, meaning: KernelEquation, pattern: Pattern) -> Change | None:
        """The best way to replace the node by a kernel; None if there is none."""
        if kernel.fused and kernel.name in (self.head.op, *(each.node.op for each in self.head.operands)):
            return None  # it is called here already
        ways = (
            found
            for found in self.whole(pattern, self.form)
            if meaning.holds(found.numbers)
            and meaning.fits(found.groups, _bound(pattern.operands[0], found.bound, found.groups).free_axes)
            and not self.is_rounded(found, pattern, kernel)
        )
        found = min(ways, key=self.elements, default=None)
        return None if found is None else self._change(self.call(kernel, meaning, pattern, found))

    # ---- nodes as expressions, and back

    def _named(self, each: Node, known: Mapping[Axis, Affine]) -> dict[Axis, Affine]:
        """A name for each axis of a node, or the position at which it is read."""
        labels = dict(known)
        called = self.program.names.axes.get(each, ())
        for axis, size in enumerate(each.sizes):
            if axis not in labels:
                name = f"@{len(self.sizes)}"
                labels[axis], self.sizes[name] = along(name), size
                self.called[name] = called[axis] if axis < len(called) else ""
        return labels

    def _written(self, each: Node, labels: Mapping[Axis, Affine], deep: int = DEEP) -> Expression:
        """The expression that a node computes, in terms of tensors and of nodes inside of its equation."""
        reads = (Operand(other.node, substitute(other.reads, labels)) for other in each.operands)
        parts = tuple(self._part(other, deep) for other in reads)
        if each.op == "copy":
            return parts[0]
        over = tuple(axes_of(tuple(labels[axis] for axis in each.over)))
        if each.op == "contract":
            kept = {axis for axes in each.dims for axis in axes or ()}
            summed = axes_of(tuple(at for axis, at in labels.items() if axis not in {*kept, *each.over}))
            counts = tuple(self._spoken(each.sizes[axis]) for axis in each.over)
            return flat(contraction((*parts, *counts), tuple(summed), None))
        return flat(Call(each.op, parts, tuple(dict.fromkeys(over)), options_of(each, self._spoken)))

    def _known(self, size: Any) -> Any:
        return evaluate(size, self.bound)

    def _spoken(self, size: Any) -> Expression:
        return size_expression(self._known(size))

    def _part(self, operand: Operand, deep: int) -> Expression:
        """An operand as an expression: a number, positions, a function of others, or a named tensor."""
        node, reads = operand
        if node.is_scalar:
            return scalar_expression(node, self._spoken)
        if node.op == "index" and reads[0].axis is not None:
            return Call(INDEX.name, (), (reads[0].axis,))
        ref = self._ref(operand)
        is_inside = node.op != "contract" or node not in self.program.names.tensors
        if not deep or not is_inside or self.program.readers[node] > 1 or not _is_open(node):
            return ref
        labels = self._opened(operand)
        if labels is None:
            return ref
        inside = self._written(node, self._named(node, labels), deep - 1)
        self.forms.name(inside, ref)
        return inside

    def _ref(self, operand: Operand) -> Ref:
        """A reference to a tensor, with a name for how it is read."""
        node, reads = operand
        axes = tuple(dict.fromkeys(axes_of(reads)))
        numbered = Operand(node, substitute(reads, {axis: along(n) for n, axis in enumerate(axes)}))
        name = self.names.setdefault(numbered, f"${len(self.names)}")
        self.tensors[name] = numbered
        return Ref(name, axes)

    def _read(self, ref: Ref) -> Operand:
        """The operand that a name stands for, under the axes of a reference."""
        node, reads = self.tensors[ref.name]
        table = {n: along(axis) for n, axis in enumerate(ref.index)}
        return Operand(node, substitute(reads, table))

    def _expressions(self, right: Expression) -> Expressions:
        """Elaborates an expression over the operands that its references stand for."""
        expressions = Expressions(None, 1 + self.program.draws)
        expressions.reads.update((ref, self._read(ref)) for ref in right.references)
        return expressions

    def elaborated(self, right: Expression) -> tuple[Node, Mapping[Node, tuple[str, ...]]]:
        """The node of an expression, written as the head is, and the names of the axes of new nodes."""
        expressions = self._expressions(right)
        names = [tuple(axes_of(tuple(self.labels[axis] for axis in axes or ()))) for axes in self.head.dims]
        made = expressions.value(right, left_of(names), Scope(self.sizes))
        pairs = expressions.axes.items()
        named = {each: tuple(self.called.get(axis, "") for axis in axes) for each, axes in pairs}
        return made, {each: called for each, called in named.items() if all(called)}

    def _change(self, right: Expression) -> Change | None:
        """Puts the node of an expression in place of the head; None if the shape differs."""
        made, known = self.elaborated(right)
        if made.shape != self.head.shape:
            return None
        added = [each.op for each in self.program.reading[self.head]] == [
            "add"
        ]  # the kernel may form one step with it
        return Change(self.head, made, least=0.0, with_readers=added, with_operands=True, axes=known)

    def whole(self, pattern: Pattern, part: Expression) -> Iterator[_Found]:
        """Every match of a pattern with an expression; a product may match only some factors."""
        self.pattern, written, start = pattern, pattern.expression, _Found()
        if isinstance(written, Contraction) and isinstance(part, Contraction):
            ways = self._product(written, part, start, outermost=True)
        else:
            ways = self._match(written, part, start)
        settled = map(self._settled, itertools.islice(ways, MOST))
        return (found for found in settled if found is not None)

    # ---- the pattern, part by part

    def _match(self, pattern: Expression, part: Expression, found: _Found) -> Iterator[_Found]:
        match pattern:
            case Ref(name, index):
                fits = not part.is_scalar if index else value_of(part) is not None
                bound = found.binding(name, part) if fits else None
                yield from () if bound is None else (bound,)
                return
            case _ if pattern.is_scalar:
                if value_of(part) == value_of(pattern):
                    yield found
                return
        yield from self._inside(pattern, part, found)

    def _inside(self, pattern: Expression, part: Expression, found: _Found) -> Iterator[_Found]:
        """Every match of a product, a sum or a call with an expression of the same kind."""
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
                yield from (each._replace(inside=around) for each in ways)

    def _moved_in(self, part: Expression, pattern: Expression, found: _Found) -> tuple[Expression, _Found]:
        """Moves numbers into a sum or a `where` that they multiply, if the pattern has a sum or a `where` there."""
        match pattern, part:
            case Call(function), Contraction(factors, ()) if function in ("add", WHERE.name):
                numbers = [each for each in factors if each.is_scalar]
                others = [each for each in factors if not each.is_scalar]
                if len(others) == 1:
                    inside, seen = self._look(others[0], found)
                    if isinstance(inside, Call) and inside.function == function:
                        return _times(numbers, inside), seen
        return part, found

    def _all(self, pairs: Sequence[tuple[Expression, Expression]], found: _Found) -> Iterator[_Found]:
        """Every match of all patterns with their parts."""
        if not pairs:
            yield found
            return
        for each in self._match(*pairs[0], found):
            yield from self._all(pairs[1:], each)

    def _sum(self, pattern: Call, part: Call, found: _Found) -> Iterator[_Found]:
        """Matches terms in any order. A tensor of the pattern may be a sum of several, a number that of all numbers."""
        named = [term for term in pattern.arguments if isinstance(term, Ref)]
        whole = [term for term in pattern.arguments if not isinstance(term, Ref)]
        tensors, numbers = ([term for term in named if bool(term.index) is of] for of in (True, False))
        scalars = [term for term in part.arguments if term.is_scalar] if numbers else []
        terms = [term for term in part.arguments if not (numbers and term.is_scalar)]
        if numbers and not scalars:
            return
        for chosen in itertools.permutations(range(len(terms)), len(whole)):
            left = [term for n, term in enumerate(terms) if n not in chosen]
            pairs: list[tuple[Expression, Expression]] = [
                *zip(whole, (terms[n] for n in chosen), strict=True)
            ]
            pairs += [(number, sum_of(scalars)) for number in numbers]
            for seen in self._all(pairs, found):
                places = range(len(tensors))
                for groups in _dealt(left, places):
                    yield from self._all([*zip(tensors, map(sum_of, groups), strict=True)], seen)

    def _product(
        self, pattern: Contraction, part: Contraction, found: _Found, outermost: bool = False
    ) -> Iterator[_Found]:
        """Matches factors in any order. A tensor of the pattern may be the product of several."""
        named = [factor for factor in pattern.factors if isinstance(factor, Ref)]
        numbers = [factor for factor in named if not factor.index]
        tensors = [factor for factor in named if factor.index]
        told = [factor for factor in pattern.factors if factor.is_scalar]
        whole = [factor for factor in pattern.factors if not isinstance(factor, Ref) and factor not in told]
        part, found = self._spread(part, found, len(tensors) + len(whole), bool(pattern.summed))
        scalars = [factor for factor in part.factors if factor.is_scalar]
        factors = [factor for factor in part.factors if not factor.is_scalar]
        if numbers:
            bound = found.binding(numbers[0].name, _over(_together(scalars), told))
            if bound is None:
                return
            found = bound
        elif any(each.sizes for each in told):
            found = found._replace(counts=(*found.counts, (_together(told), _together(scalars))))
        elif (told or not outermost) and value_of(_together(scalars)) != value_of(_together(told)):
            return
        around, found = found.inside, found if outermost else found.within(part.summed)
        places = [*range(len(tensors)), *([-1] if outermost else [])]
        for chosen in itertools.permutations(range(len(factors)), len(whole)):
            left = [factor for n, factor in enumerate(factors) if n not in chosen]
            taken = [factors[n] for n in chosen]
            for seen in self._all([*zip(whole, taken, strict=True)], found):
                for groups in _dealt(left, places):
                    ways = self._shared(pattern, part, tensors, [*groups, taken], seen, outermost)
                    yield from (each._replace(inside=around) for each in ways)

    def _shared(
        self,
        pattern: Contraction,
        part: Contraction,
        tensors: Sequence[Ref],
        held: list[list[Expression]],
        found: _Found,
        outermost: bool,
    ) -> Iterator[_Found]:
        """Matches a product whose factors are distributed: some to each tensor, the others to functions or outside."""
        places = defaultdict[str, set[int]](set)
        for n, group in enumerate(held):
            for axis in (axis for each in group for axis in each.free_axes):
                places[axis].add(n)
        own = [
            frozenset[str]()
            if _sums_alone(pattern, each)
            else frozenset(axis for axis in part.summed if places[axis] == {n})
            for n, each in enumerate(tensors)
        ]
        remaining = frozenset(part.summed) - frozenset().union(*own)
        if outermost:
            numbers = [each for each in part.factors if each.is_scalar] if self.pattern.keeps_numbers else []
            found = found._replace(beside=((*numbers, *held[len(tensors)]), remaining))
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
        """The product with nested products flattened, while it has too few factors or lacks a sum that is wanted."""
        for factor in part.factors:
            many = sum(not each.is_scalar for each in part.factors) >= wanted
            if many and (part.summed or not sums):
                break
            behind, seen = (factor, found) if isinstance(factor, Contraction) else self._look(factor, found)
            others = Contraction(without(part.factors, (factor,)), part.summed)
            if isinstance(behind, Contraction) and not set(behind.summed) & others.occurring:
                factors = (behind if each is factor else each for each in part.factors)
                whole = Contraction(tuple(factors), part.summed, part.place)
                part, found = Contraction(*flattened(whole), part.place), seen
        return part, found

    # ---- names that are looked through

    def _look(self, part: Expression, found: _Found) -> tuple[Expression, _Found]:
        """The expression that a name stands for, under the reference's axes, if only this node needs it."""
        if not isinstance(part, Ref):
            return part, found
        if part not in self.seen:
            self.seen[part] = self._seen(part)
        behind = self.seen[part]
        return (part, found) if behind is None else self._look(behind, found)

    def _serves(self, each: Node) -> bool:
        """Whether a node is computed only for the head, however often it is read."""
        if each not in self.serving:
            self.serving[each] = each not in self.program.results and all(
                reader is self.head or self._serves(reader) for reader in self.program.reading[each]
            )
        return self.serving[each]

    def _seen(self, ref: Ref) -> Expression | None:
        operand = self._read(ref)
        if not _is_open(operand.node) or not self._serves(operand.node):
            return None
        labels = self._opened(operand)
        if labels is None:
            return None
        return self.forms.of(self._written(operand.node, self._named(operand.node, labels)))

    def _opened(self, operand: Operand) -> dict[Axis, Affine] | None:
        """The names of a node's axes where it is read, or its positions; None if it is read as it is not written."""
        node, reads = operand
        known = dict[Axis, Affine]()
        for axes, entry in zip(node.dims, reads, strict=True):
            names = [str(axis) for axis in entry.axes]
            if axes is not None and len(axes) == 1 and isinstance(entry, Affine) and not names:
                known[axes[0]] = entry
                continue
            if axes is None or len(names) != len(axes) or entry != row_major(tuple(names), self.sizes):
                return None
            pairs = zip(names, axes, strict=True)
            if not all(self.program.same(self.sizes[name], node.sizes[axis]) for name, axis in pairs):
                return None
            known |= dict(zip(axes, map(along, names), strict=True))
        moving = [at for at in known.values() if at.terms]
        is_over = any(not known[axis].terms for axis in node.over if axis in known)
        return None if is_over or len({*moving}) < len(moving) else known

    # ---- the whole match

    def _settled(self, found: _Found) -> _Found | None:
        """The match with the axes of the program for each axis of the pattern; None if they do not agree."""
        pattern = self.pattern
        names = {axis: found.outer(axis) for axis in found.outside}
        runs = [(run, frozenset([names.get(axis, axis) for axis in told])) for run, told in found.runs]
        axes = {
            name: tuple(dict.fromkeys(names.get(axis, axis) for axis in each.free_axes))
            for name, each in found.bound.items()
        }
        beside = {axis for each in found.beside[0] for axis in each.free_axes}
        form = pattern.expression
        outermost = form.summed if isinstance(form, Contraction) else ()
        every = [(outermost, found.beside[1] - beside), *runs]
        places = {run[0]: each for run, each in every if run and run[0] in pattern.placed}
        groups = groups_of(pattern, axes, places)
        if groups is None:
            return None
        for run, told in runs:
            if bool(run) is not bool(told) or told != {axis for each in run for axis in groups[each]}:
                return None
        if outermost:
            summed = {axis for each in outermost for axis in groups[each]}
            if not summed or not summed <= found.beside[1] - beside:
                return None
        lengths = {
            axis: product(self._known(self.sizes[each]) for each in own) for axis, own in groups.items()
        }
        sizes = {sized(axis): size_expression(length) for axis, length in lengths.items()}
        if not all(_are_equal(_put_in(one, sizes), other) for one, other in found.counts):
            return None
        written = {name: rename(self.forms.written(each), names) for name, each in found.bound.items()}
        bound = {name: _put_in(each, sizes) if each.is_scalar else each for name, each in written.items()}
        factors = tuple(map(self.forms.written, found.beside[0]))
        return found._replace(bound=bound, groups=groups, beside=(factors, found.beside[1]))

    def is_rounded(self, found: _Found, pattern: Pattern, kernel: Function) -> bool:
        """Whether the kernel would round an operand.

        A kernel with a lowering of its own takes all operands as they are, except integers. Any other kernel takes
        numbers of the working element type.
        """
        elements = (
            self._expressions(each).part(each, Scope(self.sizes)).node.element
            for name, each in found.bound.items()
            if not each.is_scalar and name not in pattern.partial
        )
        return any(each.is_position if kernel.lowered else each.is_exact for each in elements)

    def elements(self, found: _Found) -> tuple[float, int]:
        """The elements of the operands at the planned sizes, and their factors; of several matches the least wins."""
        operands = tuple(found.bound.values())
        extents = ([evaluate(self.sizes[axis], self.values) for axis in each.free_axes] for each in operands)
        elements = sum(float(product(each)) for each in extents)
        return elements, sum(len(list(each.references)) for each in operands)

    def call(self, kernel: Function, meaning: KernelEquation, pattern: Pattern, found: _Found) -> Expression:
        """The call of a kernel, times the factors next to it."""
        operands = tuple(_bound(each, found.bound, found.groups) for each in pattern.operands)
        told = dict(kernel.options)
        options = tuple((name, (each,)) for name, each in found.bound.items() if name in told)
        options += tuple((name, (Literal(value),)) for name, value in meaning.options)
        axes = tuple(axis for each in pattern.axes for axis in found.groups[each])
        made = Call(kernel.name, operands, axes, options)
        beside, remaining = found.beside
        gone = set(axes).difference(made.free_axes)
        return contraction((made, *beside), tuple(sorted(remaining - gone)), None)


def _count(sizes: Mapping[str, Any], bound: Mapping[str, Any], call: Call) -> Expression:
    """The number of positions that a call runs over."""
    return size_expression(product(evaluate(sizes[axis], bound) for axis in call.axes))


def _is_open(each: Node) -> bool:
    """Whether a node is a product, a copy, or a function whose axes patterns can express."""
    if each.op in ("contract", "copy"):
        return None not in each.dims and "fill" not in each.attributes
    function = each.function
    return bool(function.name and each.operands) and function.axes in ("none", "kept", "removed")


def _bound(
    expression: Expression, bound: Mapping[str, Expression], groups: Mapping[str, tuple[str, ...]]
) -> Expression:
    """An expression of a pattern with its names and axes replaced. A function over no axis is left out."""
    if isinstance(expression, Ref):
        return bound[expression.name]
    changed = expression.transform(lambda part: _bound(part, bound, groups))
    if isinstance(changed, Call) and changed.axes:
        made = FUNCTIONS[changed.function].makes(changed.axes)
        present = {
            *Contraction(changed.arguments).free_axes,
            *(axis for each in made for axis in groups[each]),
        }
        axes = tuple(axis for each in changed.axes for axis in groups[each] if axis in present)
        return replace(changed, axes=axes) if axes else changed.arguments[0]
    return flat(changed)


def _together(numbers: list[Expression]) -> Expression:
    """The product of some numbers; 1 if there are none."""
    return product_of(numbers or [Literal(1)])


def _times(numbers: Sequence[Expression], call: Call) -> Call:
    """A sum or a `where` with some numbers multiplied into its terms."""
    first = FUNCTIONS[call.function].conditions
    products = (product_of([*numbers, each]) for each in call.arguments[first:])
    return replace(call, arguments=(*call.arguments[:first], *products))


def _sums_alone(product: Contraction, factor: Expression) -> bool:
    """Whether a product sums over an axis that only this factor has."""
    others = {axis for each in without(product.factors, (factor,)) for axis in each.free_axes}
    return not others.issuperset({*factor.free_axes}.intersection(product.summed))


def _over(number: Expression, others: list[Expression]) -> Expression:
    """A number divided by the product of some others."""
    return product_of([number, Call("reciprocal", (_together(others),))]) if others else number


def _put_in(number: Expression, sizes: Mapping[str, Expression]) -> Expression:
    """A number with the sizes of the pattern's axes filled in."""
    if isinstance(number, Size):
        return sizes.get(number.axis, number)
    return number.transform(lambda part: _put_in(part, sizes))


def _are_equal(one: Expression, other: Expression) -> bool:
    """Whether two numbers are equal for all open sizes, judged by their values at a few sets of primes."""
    names = dict.fromkeys(size.axis for size in (*one.sizes, *other.sizes))
    for primes in TRIED:
        sizes = dict(zip(names, primes, strict=False))
        a, b = value_of(one, sizes), value_of(other, sizes)
        if a is None or b is None or not cmath.isclose(a, b):
            return False
    return True


def _dealt(parts: Sequence[Expression], places: Sequence[int]) -> Iterator[list[list[Expression]]]:
    """Every way to distribute parts over places, with at least one part for each tensor.

    If there are too many ways, only those that keep neighbouring parts together.
    """
    wanted, many = {n for n in places if n >= 0}, len(places) ** len(parts) > MOST
    for assigned in _runs(len(parts), places) if many else itertools.product(places, repeat=len(parts)):
        if wanted.issubset(assigned):
            yield [[part for part, to in zip(parts, assigned, strict=True) if to == n] for n in places]


def _runs(count: int, places: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The places of some parts, where each place gets a run of neighbouring parts or none, in any order of places."""
    for sequence in itertools.permutations(places):
        for cuts in itertools.combinations_with_replacement(range(count + 1), len(places) - 1):
            lengths = (stop - start for start, stop in itertools.pairwise((0, *cuts, count)))
            yield tuple(place for place, length in zip(sequence, lengths, strict=True) for _ in range(length))
