"""The nodes of the backward pass of a graph, from its results to its leaves, and cotangent accumulation.

`vjp.py` builds graphs from them and from the nodes of the forward pass. The gradient of a tensor is the sum over its
readers. A gradient that is constant along a dimension is kept without that dimension for as long as possible.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ..frontend.elaborate_ir import Expressions, NodeRule
from ..graph.graph import Apply, Graph
from ..graph.leaves import Leaf
from ..graph.recurrences import postorder
from ..graph.shape_inference import Axis as NamedAxis
from ..graph.shape_inference import Dim, axes_of_dims, dim_size
from ..ir.equations import JOINED, options_of, scalar_expression
from ..ir.naming import fitting, is_negative, reach, told
from ..ir.node import (
    Affine,
    Axis,
    Entries,
    Node,
    Operand,
    Size,
    Sizes,
    along,
    at_position,
    axes_of,
    cast,
    fills,
    leaf,
    node,
    number,
    row_major,
    size,
    substitute,
    summed_axes,
)
from ..ir.positions import apart
from ..language.affine import ZERO
from ..language.canonical import folded, spread
from ..language.equation import Equation
from ..language.expression import Expression, Literal, Ref, Taken, numbered
from ..language.parser import parse_rule
from ..ops.record import OPERANDS
from ..ops.table import CONVERSIONS, FUNCTIONS, Element
from ..passes.idioms import recognised
from ..scan.cut import Cut, State, cut
from ..sizes import evaluate, larger, product, smaller
from .a_normal_form import Pairs, take_apart
from .activity import active, changes, check_rules


class Backward:
    """The forward and the backward pass of a graph, while its nodes, calls and states are visited.

    Attributes:
        graph: the graph.
        wrt: the leaves whose gradients are required.
        recomputed: the calls whose residuals are not saved, by their first results.
        active, needed: the names of the tensors that depend on the leaves, and of those that the results depend on.
        seeds, results: the names of the gradients of results and of leaves.
        cut, program: the graph cut at calls and states, and the rest of it in A-normal form.
        nodes, forward: the nodes that have names in the graph, and all nodes of the forward pass.
        through: the nodes that gradients go through.
        calls: the calls of the forward pass.
        names, axes: the names of nodes and of their axes, in both passes.
        sizes: the names that declare sizes there.
        foreseen: the names of the gradients of states, which are read before they are defined.
        told: the sizes that the axes of these are named for.
        asked: the nodes that the backward pass computes for calls and states, by name.
        given: by name, the node and the input for each seed, and for each gradient that calls and states give.
        items: the calls and steps of the backward pass.
    """

    def __init__(
        self,
        graph: Graph,
        of: tuple[str, ...],
        wrt: tuple[str, ...],
        pairs: Pairs,
        alone: bool,
        recomputed: frozenset[str],
    ) -> None:
        self.graph, self.wrt, self.recomputed = graph, wrt, recomputed
        self.bound: dict[str, Any] = dict(graph.bound)
        self.cut: Cut = cut(graph)
        self.taken = Taken(self.cut.taken)
        self.active = active(graph, wrt)
        self.needed = replace(graph, outputs=of).needed() if of else frozenset[str]()
        check_rules((each for each in graph.own if each.name in self.needed), self.active)
        seeded = [name for name in of if not (alone and not graph.named[name])]
        self.seeds = {name: self.taken.fresh(GRADIENT.format(name)) for name in seeded}
        self.results = {name: self.taken.fresh(GRADIENT.format(name)) for name in wrt}
        leaves = self.cut.program.names.leaves
        changing = [each for each in self.cut.states.values() if changes(each.step, self.active)]
        self.through = {self.cut.nodes[leaf.name] for leaf in leaves if leaf.name in self.active}
        self.through |= {each.node for each in changing if each.node.element >= Element.WIDE}
        self.program = take_apart(recognised(self.cut.program), self.through, pairs)
        self.nodes, self.states = self._in_normal_form()
        self.forward = {*self.program.nodes, *self.nodes.values()}
        self.names = self.program.names.tensors | {
            each: leaf.name for each, leaf in self.program.leaves.items()
        }
        self.dims = dict(graph.named)
        for each in self.states:
            self.dims |= {self.names[each.node]: each.dims, self.names[each.behind]: each.dims}
        self._name_all()
        self.sizes = told(self.program.function, self.program.names)
        self.axes = dict[Node, tuple[str, ...]]()
        self.cotangents = self._no_cotangents()
        self.numbers, self.size = itertools.count(len(leaves)), Expressions(graph).size
        self.foreseen, self.told = dict[Node, str](), dict[str, Size]()
        self.calls, self.items = list[Apply](), list[Equation | Apply]()
        self.asked, self.given = dict[str, Node](), dict[str, tuple[Node, Leaf]]()

    def _in_normal_form(self) -> tuple[dict[str, Node], list[State]]:
        """The nodes of tensors, and the states, in the program in A-normal form."""
        new = dict(zip(self.cut.program.function.outputs, self.program.function.outputs, strict=True))
        states = [
            replace(each, behind=new.get(each.behind, each.behind), begin=new.get(each.begin, each.begin))
            for each in self.cut.states.values()
        ]
        return {name: new.get(each, each) for name, each in self.cut.nodes.items()}, states

    def _no_cotangents(self) -> Cotangents:
        """The cotangents before the first reader is visited."""
        groups = ((group, name) for group in self.graph.recurrences for name in group.names)
        along = {self.nodes[name]: group.dimension(name) for group, name in groups if name in self.nodes}
        for each in self.states:
            along[each.node] = along.setdefault(each.behind, each.at)
        uses = Counter(child for each in self.forward for child in each.children)
        return Cotangents(uses, along, self.program.same)

    # ---- names

    def _name_all(self) -> None:
        """Names tensors after their readers: those that gradients go through, and those that are slow to compute."""
        stems = dict[Node, str]()
        for each in reversed(self.program.nodes):
            stem = self.names.get(each) or stems.get(each, "v")
            stems |= {child: stem for child in each.children if child not in stems}
        for each in self.program.nodes:
            if each not in self.names and _is_mask(each):
                self.names[each] = self.taken.fresh(f"{stems[each]}_mask")
            elif each not in self.names and (
                each in self.through or each.function.random or _is_matmul(each)
            ):
                self.names[each] = self.taken.numbered(stems.get(each, "v"))

    def part_of(self, each: Node) -> str:
        """A name for the part of a cotangent that one reader of a tensor contributes: numbered if it has several."""
        stem = GRADIENT.format(self.names[each])
        return self.taken.fresh(stem) if self.cotangents.uses[each] == 1 else self.taken.numbered(stem)

    def _note(self, made: Node, dims: Sequence[int], of: Node, name: Callable[[], str]) -> None:
        """Names a node of the backward pass and its axes; it has some dimensions of the gradient of another node."""
        if made in self.forward or made.is_scalar or made.op == "input":
            return
        if self.names[of] in self.dims and all(axes and len(axes) == 1 for axes in made.dims):
            called = [axis for axis, _ in self._axes(self.names[of])]
            self.axes.setdefault(made, tuple(called[d] for d in dims))
        if made not in self.names:
            self.names[made] = name()

    def gradient_of(self, each: Node) -> None:
        """Sums the gradient of a tensor, and names it."""
        found = self.cotangents.total(each)
        if found is not None:
            self._note(*found, each, lambda: self.taken.fresh(GRADIENT.format(self.names[each])))

    # ---- operands and results of calls and states

    def ask(self, made: Node, stem: str) -> str:
        """The name of a node that the backward pass computes for a call or a state."""
        if made not in self.names:
            self.names[made] = self.taken.fresh(stem)
        if made not in self.forward:
            self.asked.setdefault(self.names[made], made)
        return self.names[made]

    def whole(self, name: str) -> str:
        """The name of the gradient of a tensor, with all axes; of zeros if it has none."""
        each = self.nodes[name]
        self.gradient_of(each)
        return self.ask(self.cotangents.whole(each), GRADIENT.format(name))

    def take(self, result: str, shape: Sequence[Size], tensor: str, dims: tuple[int, ...]) -> None:
        """Adds the result of a call to the gradient of a tensor. `dims` are its dimensions in that tensor."""
        given = leaf("input", [*map(self.size, shape)], Element.NUMBER, n=next(self.numbers))
        axes = [*self._axes(tensor)]
        placed = [
            (NamedAxis(axis, evaluate(dim_size(dim), self.bound)),) for axis, dim in (axes[d] for d in dims)
        ]
        self.given[result] = given, Leaf(result, "input", tuple(placed))
        self.names[given] = result
        self.cotangents.terms[self.nodes[tensor]].append((given, dims))

    # ---- visiting

    def has_gradient(self, names: Iterable[str]) -> bool:
        """Whether any of some tensors has a gradient by now."""
        return any(self.cotangents.terms.get(self.nodes[name]) for name in names)

    def seed(self, name: str) -> None:
        """Sets the gradient of a result: 1, or an input from outside."""
        each = self.nodes[name]
        if name not in self.seeds:
            self.cotangents.terms[each].append((number(1), ()))
            return
        self.take(self.seeds[name], each.shape, name, tuple(range(len(each.shape))))
        self.cotangents.uses[each] += 1

    def _axes(self, name: str) -> Iterator[tuple[str, Dim]]:
        """A name of an axis for each dimension of a tensor, with the dimension."""
        return zip(axes_of_dims(self.dims[name]), self.dims[name], strict=True)

    def given_to(self, call: Apply) -> list[Node]:
        """The nodes that a call is given. Constants of its block may belong to the block only."""
        return [self.nodes[name] for name in call.reads if name in self.nodes]

    def order(self) -> list[Any]:
        """Nodes, calls by their number, and states, each after the items that it depends on."""
        maker: dict[Node, Any] = {
            self.nodes[name]: n for n, call in enumerate(self.graph.calls) for name in call.results
        }
        maker |= {each.node: each for each in self.states}

        def children(item: Any) -> Iterable[Any]:
            if isinstance(item, State):
                return (item.begin,) if item.fill is None else ()
            if isinstance(item, int):
                return self.given_to(self.graph.calls[item])
            return (maker[item],) if item in maker else item.children

        return list(postorder(self.nodes.values(), children))

    def through_node(self, each: Node) -> None:
        """Passes the gradient of a node on to its operands."""
        if each not in self.through or each.op in ("input", "constant"):
            return
        self.gradient_of(each)
        gradient = self.cotangents.read(each)
        if gradient is None:
            return
        for part in cotangents(each, gradient, self.through):
            before = len(self.cotangents.terms[part.node])
            self.cotangents.give(part)
            for term in self.cotangents.terms[part.node][before:]:
                self._note(*term, part.node, lambda: self.part_of(part.node))  # noqa: B023

    # ---- states: the vjp of a scan

    def equation(self, state: State) -> Equation:
        """The equation of a state in the forward pass."""
        begin = self.names[state.begin] if state.fill is None else ""
        return state.written(state.name, state.left, (state.axis,), self.names[state.behind], begin)

    def foresee(self, state: State) -> None:
        """Names the gradient of a state, which is read before it is defined.

        Shifted by the step, the gradient goes to the tensor behind the state.
        """
        behind, name = state.behind, self.names[state.behind]
        self.foreseen[state.node] = gradient = self.taken.fresh(GRADIENT.format(state.name))
        axes = self._axes_of(state)
        self.cotangents.uses[behind] += 1
        part = self.part_of(behind)
        rule = FUNCTIONS[state.step.function].gradient(0)
        right = parse_rule(rule, {"g": Ref(gradient, axes)}, (axes[state.at],))
        self.items.append(Equation(part, axes, right))
        self.take(part, behind.shape, name, tuple(range(len(behind.shape))))

    def _axes_of(self, state: State) -> tuple[str, ...]:
        """Names for the axes of a state's gradient that determine their sizes: no tensor may size these axes."""
        found = dict[str, Size]()
        for axis, length in zip(state.left, state.behind.shape, strict=True):
            names = itertools.chain((axis,), numbered(axis))
            free = (each for each in names if self.sizes.fits(each, length, self.program.same))
            found[next(each for each in free if each not in found)] = length
        new = {name: length for name, length in found.items() if name not in self.sizes.known}
        self.sizes.made.update(new)
        self.told |= new
        return tuple(found)

    def through_state(self, state: State) -> None:
        """Names the gradient of a state as it is read, and adds the start's part of it to the gradient of the start."""
        each, gradient = state.node, self.foreseen.get(state.node)
        if gradient is None:
            return
        made = self.cotangents.whole(each)
        self.asked[gradient] = made
        self.names.setdefault(made, gradient)
        if state.fill is not None or state.begin not in self.through:
            return
        first, step = (made.shape[state.at] - 1, -1) if state.back else (0, 1)
        if not isinstance(evaluate(made.shape[state.at], self.bound), int):  # there may be no position
            read = [*made.plain]
            read[state.at] = Affine(((state, step),), first)
            sizes: dict[Any, Size] = {**dict(enumerate(made.shape)), state: 1}
            made, first = reached(Operand(made, tuple(read)), sizes, self.program.same).node, 0
        begin = at_position(made, state.at, first)
        self.cotangents.terms[state.begin].append((begin, tuple(range(len(begin.shape)))))


def _is_mask(each: Node) -> bool:
    """Whether a node is a mask of what is dropped."""
    return each.op == CONVERSIONS[Element.TRUTH] and each.operands[0].node.function.random


def _is_matmul(each: Node) -> bool:
    """Whether a node multiplies tensors and sums over an axis."""
    factors = sum(1 for operand in each.operands if not operand.node.is_scalar)
    return each.op == "contract" and factors > 1 and bool(summed_axes(each))


# ---------------------------------------------------------------------------- cotangents


GRADIENT = "{}.grad"
"""The name of the gradient of a tensor."""

Term: TypeAlias = "tuple[Node, tuple[int, ...]]"
"""A part of a gradient, and the dimensions of the tensor that it has; a number has none."""


def _is(each: Node, value: int) -> bool:
    return each.op == "number" and each.attributes["value"] == value and each.attributes["value"] is not True


class Cotangents:
    """The gradients of tensors, accumulated while their readers are visited from the last to the first.

    Attributes:
        terms: the parts of each tensor's gradient so far.
        uses: the number of readers of each tensor.
        along: the dimension of the recurrence of each recurrent tensor. It keeps its axis where it is read on a
            diagonal.
        same: whether two sizes are equal.
    """

    def __init__(
        self, uses: Counter[Node], along: Mapping[Node, int], same: Callable[[Size, Size], bool]
    ) -> None:
        self.terms = defaultdict[Node, list[Term]](list)
        self.uses, self.along, self.same = uses, along, same

    def give(self, part: Part) -> None:
        """Adds the contribution of a reader to the gradient of a tensor."""
        if any(_is(factor.node, 0) for factor in part.factors):
            return
        factors = [factor for factor in part.factors if not _is(factor.node, 1)]
        there = {axis for factor in factors for axis in factor.axes}
        whole = {d for d in range(len(part.reads)) if _is_whole(part, d, self.same)}
        dims = [d for d in range(len(part.reads)) if d not in whole or there & _axes(part, d)]
        dims.sort(key=lambda d: d != self.along.get(part.node))
        direct = _direct(part, factors, dims) if whole.issuperset(dims) else None
        self.terms[part.node].append(direct or (_made(part, factors, dims, whole), tuple(dims)))

    def total(self, each: Node) -> Term | None:
        """The gradient of a tensor; None if it has none."""
        terms = self.terms.get(each, [])
        if len(terms) > 1:
            dims = tuple(sorted({d for _, own in terms for d in own}))
            operands = [Operand(term, tuple(map(along, own))) for term, own in terms]
            self.terms[each] = terms = [(node("add", each.shape, operands, tuple(map(along, dims))), dims)]
        return terms[0] if terms else None

    def read(self, each: Node) -> Operand | None:
        """The gradient of a node, read along the axes that the node is written along; None if it has none."""
        total = self.total(each)
        if total is None:
            return None
        term, dims = total
        found = Operand(term, tuple(each.result[d] for d in dims))
        return found if "fill" in each.attributes else reached(found, each.sizes, self.same)

    def whole(self, each: Node) -> Node:
        """The gradient of a tensor with all dimensions; zeros where it has none."""
        term, dims = self.total(each) or (number(0), ())
        if dims == (*range(len(each.shape)),) and not term.is_scalar:
            return term
        return _spread(term, dims, each)


def reached(gradient: Operand, sizes: Sizes, same: Callable[[Size, Size], bool]) -> Operand:
    """A cotangent, cropped or padded with zeros to the windows that it is read in, where they do not fit it."""
    term, entries, lengths = gradient.node, [*gradient.reads], [*gradient.node.shape]
    kept, read, written = [*lengths], [*term.plain], [*term.plain]
    for d, (entry, length) in enumerate(zip(gradient.reads, term.shape, strict=True)):
        if not isinstance(entry, Affine) or not entry.terms or fills(entry, sizes, length, same):
            continue
        low, high = reach(entry, sizes)
        high += (
            max(abs(step) for step in (1, *entry.steps) if isinstance(step, int)) - 1
        )  # an axis may be empty
        if is_negative(low) or fitting(entry, sizes, length, same) is None:
            lengths[d], entries[d] = high + 1 - low, replace(entry, offset=entry.offset - low)
            kept[d] = length + smaller(-low, 0) + smaller(high + 1 - length, 0)
            read[d], written[d] = (Affine(((d, 1),), larger(by, 0)) for by in (low, -low))
    options = (("fill", number(0)),) if lengths != [*term.shape] else ()
    made = node("copy", kept, [Operand(term, tuple(read))], tuple(written), lengths, options=options)
    return Operand(made, tuple(entries))


def _spread(term: Node, dims: Sequence[int], each: Node) -> Node:
    """A tensor that has some dimensions of another, broadcast to all of them."""
    source = cast(term, Element.NUMBER) if term.is_scalar else term
    return node("copy", each.shape, [Operand(source, tuple(map(along, dims)))], each.plain)


def _axes(part: Part, d: int) -> set[Axis]:
    return {*part.reads[d].axes}


def _is_whole(part: Part, d: int, same: Callable[[Size, Size], bool]) -> bool:
    """Whether a dimension is read from end to end, along axes that no other dimension has."""
    entry = part.reads[d]
    others = {*axes_of((*part.reads[:d], *part.reads[d + 1 :]))}
    plain = isinstance(entry, Affine) and fills(entry, part.sizes, part.node.shape[d], same)
    return plain and others.isdisjoint(_axes(part, d))


def _direct(part: Part, factors: Sequence[Operand], dims: Sequence[int]) -> Term | None:
    """The only factor, if it has the dimensions as they are; else None."""
    if len(factors) != 1 or part.alike or factors[0].node.is_scalar:
        return None
    ((term, reads),) = factors
    places = {part.reads[d]: d for d in dims}
    if len(places) < len(dims) or len(reads) != len(dims) or {*reads} != {*places}:
        return None
    return term, tuple(places[entry] for entry in reads)


def _made(part: Part, factors: Sequence[Operand], dims: Sequence[int], whole: Container[int]) -> Node:
    """The product of factors, written where the tensor is read."""
    axes = {
        d: tuple(part.reads[d].axes) for d in dims if d in whole
    }  # the length of the tensor, in sizes of these axes
    result = tuple(row_major(axes[d], part.sizes) if d in axes else part.reads[d] for d in dims)
    lengths = {d: product(part.sizes[axis] for axis in own) for d, own in axes.items()}
    shape = [lengths.get(d, part.node.shape[d]) for d in dims]
    if not any(map(bool, (dims, *(factor.reads for factor in factors)))):
        counts = [Operand(size(part.sizes[axis])) for axis in part.alike]
        numbers = [*factors, *counts] or [Operand(number(1))]
        return numbers[0].node if len(numbers) == 1 else node("contract", {}, numbers)
    return node("contract", part.sizes, factors or [Operand(number(1))], result, shape, part.alike)


# ---------------------------------------------------------------------------- the rules


@dataclass(frozen=True)
class Part:
    """The contribution of one reader to the cotangent of a tensor.

    Attributes:
        node: the tensor.
        reads: where the reader reads it; the contribution is added there.
        factors: the contribution is their product, summed over the axes that the tensor lacks.
        sizes: of the reader's axes.
        alike: the axes along which the product is constant; it is multiplied by their sizes.
    """

    node: Node
    reads: Entries
    factors: tuple[Operand, ...]
    sizes: Mapping[Axis, Size]
    alike: tuple[Axis, ...] = ()


def cotangents(each: Node, gradient: Operand, active: AbstractSet[Node]) -> Iterator[Part]:
    """The cotangents of the operands of a node.

    Args:
        each: the node.
        gradient: its cotangent, read along the axes of the node; it is constant along axes that it lacks.
        active: the tensors that get a cotangent.
    """
    if each.op == "copy" and "fill" in each.attributes:
        yield _of_padded(each, gradient)
        return
    if each.op in JOINED:
        yield from _of_joined(each, gradient, active)
        return
    sizes: dict[Axis, Size] = dict(enumerate(each.sizes))
    for n, operand in enumerate(each.operands):
        if operand.node not in active:
            continue
        if each.op in ("contract", "copy"):
            others = (*each.operands[:n], *each.operands[n + 1 :])
            factors: tuple[Operand, ...] = (gradient, *others)
            around: Sequence[Axis] = range(len(each.sizes))
        else:
            found = _of_function(each, n, gradient)
            if found is None:
                continue
            factors, around = (found,), [*axes_of(each.result)]
        there = {*operand.axes, *(axis for factor in factors for axis in factor.axes)}
        alike = tuple(axis for axis in dict.fromkeys(around) if axis not in there)
        yield Part(operand.node, operand.reads, factors, sizes, alike)


# ---------------------------------------------------------------------------- nodes that move elements


def _of_padded(each: Node, gradient: Operand) -> Part:
    """The cotangent of the operand of a crop or a padding: the other of the two, with 0."""
    (operand,) = each.operands
    whole = [_axis(entry) for entry in each.result]
    lengths, left = dict(zip(whole, each.shape, strict=True)), tuple(map(along, whole))
    read = tuple(along(_axis(entry)) for entry in gradient.reads)
    plain = node("copy", lengths, [Operand(gradient.node, read)], left, each.shape)  # from its first position
    options = (("fill", number(0)),)
    moved = [Operand(plain, each.result)]
    made = node("copy", each.sizes, moved, operand.reads, operand.node.shape, (), options)
    return Part(operand.node, left, (Operand(made, left),), dict(zip(whole, operand.node.shape, strict=True)))


def _of_joined(each: Node, gradient: Operand, active: AbstractSet[Node]) -> Iterator[Part]:
    """The cotangents of concatenated operands: for each, the slice at its place."""
    joined, *own = each.over
    sizes: dict[Axis, Size] = dict(enumerate(each.sizes))
    before: Size = 0
    for operand, axis in zip(each.operands, own, strict=True):
        has = axis in operand.axes
        if operand.node in active:
            factor = gradient
            if has and joined in gradient.axes:
                factor = _piece(gradient, joined, axis, before, sizes)
            elif not has:
                is_inside = joined in gradient.axes and along(joined) not in gradient.reads
                whole = apart(gradient, sizes) if is_inside else gradient
                here = substitute(whole.reads, {joined: Affine((), before)})
                factor = Operand(whole.node, here)
            there = {*operand.axes, *factor.axes, joined}
            alike = tuple(a for a in axes_of(each.result) if a not in there)
            yield Part(operand.node, operand.reads, (factor,), sizes, alike)
        before = before + (sizes[axis] if has else 1)


def _piece(gradient: Operand, joined: Axis, axis: Axis, before: Size, sizes: Mapping[Axis, Size]) -> Operand:
    """The slice of a cotangent at the positions of one of several concatenated operands."""
    plain, left = apart(gradient, sizes)
    axes, lengths = axes_of(left), {**sizes, joined: sizes[axis]}
    read = tuple(Affine(((a, 1),), before if a == joined else 0) for a in axes)
    options = (("fill", number(0)),)
    made = node("copy", lengths, [Operand(plain, read)], left, [lengths[a] for a in axes], (), options)
    return Operand(made, substitute(left, {joined: along(axis)}))


def _axis(entry: Any) -> Axis:
    (axis,) = entry.axes
    return axis


# ---------------------------------------------------------------------------- functions


def _of_function(each: Node, n: int, gradient: Operand) -> Operand | None:
    """The cotangent of an operand of a function, by the rule of the function's record; None if it is 0."""
    row, rule = each.function, NodeRule(each)
    y, g = rule.ref("$y", Operand(each, each.result)), rule.ref("$g", gradient)
    if row.axes == "kept":
        g = spread(g, rule.over)
    pairs = zip(OPERANDS, each.operands, strict=False)
    meaning: dict[str, Expression] = {letter: rule.ref(f"${letter}", operand) for letter, operand in pairs}
    meaning |= {name: Literal(value) for name, value in row.options}
    meaning |= {name: value for name, (value,) in options_of(each) if name in dict(row.options)}
    if row.axes == "moved":
        found = g
        for place, axis in enumerate(rule.over):
            if axis in found.free_axes:
                amounts = {name: scalar_expression(each.attributes[f"{name}{place}"]) for name in row.amounts}
                found = parse_rule(row.gradient(n), {**meaning, **amounts, "g": found}, (axis,))
    else:
        found = parse_rule(row.gradient(n), {**meaning, "y": y, "n": rule.count, "g": g}, rule.over)
    found = folded(found)
    return None if found == ZERO else rule.operand(found)
