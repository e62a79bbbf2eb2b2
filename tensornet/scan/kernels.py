"""Kernel selection of recurrences by linear forms: the parallel form, an associative scan, or a recurrent cell (LSTM,
GRU, plain RNN).

A linear form is what a state adds to a node, as a sum of products of tensors along axes that all of them share.

    z[b,t,o] = x[b,t,i] * W[o,i] + h_1[b,t,p] * U[o,p] + v[o]       x W + v, and h_1 · U summed over p

Sums, products and copies that depend on a state are opened, also where they are read at a position. What does not
depend on one stays a tensor. Of a recurrence of single elements

    h[b,t,n] = a[b,t,n] * previous[t](h[b,t,n]) + u[b,t,n]

the state before each position is `recur[t](a, u)`, or a running sum where `a` is 1: a logarithmic number of rounds in
the place of a loop. All other tensors follow from it. Infinite values may become NaN, because products of several `a`
replace the single steps.

A recurrent cell is found however it is written:

    h_1[t,b,o] = lstm_along(x[b,t,i], W[n,i], U[n,p], h0[b,o], c0[b,o], b[n])

The equations of a cell (`ops/rnn.py`) are matched with the next values of the states, as those of any kernel are. What
they leave open are the arguments of the gates: each is a sum of one product with an input, one product with the result
before, and biases. The weights of the gates may be any tensors; they are stacked into matrices.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from ..graph.graph import Graph
from ..ir.node import (
    Affine,
    Axis,
    Entries,
    Node,
    Operand,
    Size,
    along,
    axes_in,
    axes_of,
    cast,
    concatenated,
    fills,
    index,
    moved_in,
    node,
    number,
    over_others,
    plain_reads,
    row_major,
    substitute,
)
from ..ir.positions import apart, applied, counted, read_at
from ..language.expression import Ref
from ..language.patterns import pattern_of
from ..ops.along_axes import CUMSUM, RECUR
from ..ops.pointwise import EQUAL, LESS_EQUAL, WHERE
from ..ops.record import KernelEquation
from ..ops.rnn import CELLS, Cell
from ..ops.table import CONVERSIONS, Element, Function
from ..passes.kernel_selection import operands_matched
from ..sizes import evaluate
from .lowering import Component

Opens: TypeAlias = "Callable[[Operand], bool]"
"""Whether an operand is opened."""


class NotLinear(Exception):  # noqa: N818
    """A node is no sum of products along shared axes."""


class Product(NamedTuple):
    """A product of operands, and the axes that it sums."""

    factors: tuple[Operand, ...]
    summed: frozenset[Axis] = frozenset()


class LinearForms:
    """The linear forms of nodes over the states of a component.

    Attributes:
        component: the component.
        sizes: the sizes of all axes.
        fixed: the positions of axes along which nodes are read at one position.
    """

    def __init__(self, component: Component, sizes: Mapping[Axis, Size]) -> None:
        self.component, self.sizes = component, dict(sizes)
        self.bound = component.components.graph.bound
        self.fixed = dict[Axis, Affine]()
        self.opened = dict[Operand, tuple[list[Operand], frozenset[Axis]]]()

    def recurs(self, part: Operand) -> bool:
        """Whether an operand depends on a state."""
        return self._depends(part.node)

    def _depends(self, each: Node) -> bool:
        known = each in self.component.components.rank
        return each in self.component.labels or (not known and any(map(self._depends, each.children)))

    def terms(self, part: Operand, opens: Opens | None = None) -> list[Product]:
        """The products whose sum an operand is.

        Args:
            part: the operand.
            opens: which operands are opened; those that depend on a state by default.
        """
        opens, each = opens or self.recurs, part.node
        recurs, is_copy = self.recurs(part), part.node.op in ("add", "copy")
        if not opens(part) or "fill" in each.attributes or each.over:
            return [Product((part,))]
        if is_copy or (recurs and each.op == CONVERSIONS[Element.NUMBER]):
            operands, summed = self._inside(part)
            if summed:
                raise NotLinear
            moving = [other for other in operands if self.recurs(other)]
            others = [other for other in operands if other not in moving]
            if moving and len(others) > 1:
                operands = [*moving, applied("add", others, self.sizes)]
            return [term for other in operands for term in self.terms(other, opens)]
        if each.op == "contract":
            operands, summed = self._inside(part)
            sums = (
                self.terms(other, opens) if self.recurs(other) else [Product((other,))] for other in operands
            )
            return [self._multiplied(way, summed) for way in itertools.product(*sums)]
        return [Product((part,))]

    def _multiplied(self, terms: Sequence[Product], summed: frozenset[Axis]) -> Product:
        """The product of some products, summed over more axes."""
        factors = tuple(factor for term in terms for factor in term.factors)
        summed = summed.union(*(term.summed for term in terms))
        if not summed.issubset(axes_in(factors)):
            raise NotLinear
        return Product(factors, summed)

    def node(self, parts: Sequence[Operand], left: Entries, op: str = "contract") -> Node:
        """A product or a sum of some parts; a copy of a single part.

        Products are computed at all positions of the axes that are read at one: the gates of a cell share them.
        """
        fixed = [axis for axis in axes_in(parts) if axis in self.fixed]
        if len(parts) == 1 and {*axes_in(parts)} <= {*axes_of(left), *fixed}:
            return node("copy", self.sizes, [read_at(parts[0], self.fixed, self.sizes)], left)
        made = node(op, self.sizes, parts, (*map(along, fixed), *left))
        rest = plain_reads(len(left))
        reads = (*(self.fixed[axis] for axis in fixed), *rest)
        return node("copy", made.shape[len(fixed) :], [Operand(made, reads)], rest)

    def operand(self, term: Product) -> Operand:
        """A product as one operand."""
        axes = axes_in(term.factors)
        left = tuple(along(axis) for axis in axes if axis not in {*term.summed, *self.fixed})
        is_one = len(term.factors) == 1 and len(left) == len(axes)
        return term.factors[0] if is_one else Operand(self.node(term.factors, left), left)

    def _inside(self, part: Operand) -> tuple[list[Operand], frozenset[Axis]]:
        """The operands of an operand, and the axes that it sums."""
        if part not in self.opened:
            each, table = part.node, dict[Axis, Affine]()
            for axes, entry in zip(each.dims, part.reads, strict=True):
                table |= self._table(each, axes, entry)
            summed = {
                axis: ("s", len(self.opened), axis) for axis in range(len(each.sizes)) if axis not in table
            }
            self.sizes |= {new: each.sizes[axis] for axis, new in summed.items()}
            table |= {axis: along(new) for axis, new in summed.items()}
            operands = [Operand(child, substitute(entries, table)) for child, entries in each.operands]
            self.opened[part] = operands, frozenset(summed.values())
        return self.opened[part]

    def _table(self, each: Node, axes: tuple[int, ...] | None, entry: Any) -> dict[Axis, Affine]:
        """The position along each axis of a dimension, given the position in the dimension."""
        if axes is None or not isinstance(entry, Affine):
            raise NotLinear
        if len(axes) == 1:
            return {axes[0]: entry if entry.terms else self._at(each, axes[0], entry.offset)}
        steps = row_major(axes, each.sizes).steps
        found, offset, terms = dict[Axis, Affine](), evaluate(entry.offset, self.bound), dict(entry.terms)
        for axis, step in zip(axes, steps, strict=True):
            alike = [a for a, by in terms.items() if by == step and self.sizes[a] == each.sizes[axis]]
            if alike:
                found[axis] = along(alike[0])
                del terms[alike[0]]
            elif isinstance(offset, int) and isinstance(by := evaluate(step, self.bound), int):
                found[axis], offset = self._at(each, axis, offset // by), offset % by
        if terms or offset != 0 or len(found) < len(axes):
            raise NotLinear
        return found

    def _at(self, each: Node, axis: int, position: Size) -> Affine:
        """An axis of its own for a position along an axis."""
        found = ("at", each, axis, position)
        self.fixed[found], self.sizes[found] = Affine((), position), each.sizes[axis]
        return along(found)


# ---------------------------------------------------------------------------- parallel form


Seconds: TypeAlias = "Callable[[Graph], float]"
"""The expected seconds of a graph."""


def select_parallel_form(component: Component, seconds: Seconds) -> dict[Node, Node]:
    """A linear recurrence that products read, or one position, as a product with a triangular matrix
    (Katharopoulos et al. 2020).

        S[t,m,d] = a[t] * S[t-1,m,d] + k[t,m] * v[t,d],   y[t,d] = q[t,m] * S[t,m,d]
        y[t,d] = q[t,m] * L[t,s] * k[s,m] * v[s,d],   L[t,s] = a[s+1] * … * a[t] for s <= t

    The order of the products is free then, and S need not be held.

    Args:
        component: the nodes that recur.
        seconds: the expected seconds of a graph, with loops in the place of recurrences.
    """
    linear = _linear_state(component, lambda *_: True)
    ((each, state), *_), components = component.states.items(), component.components
    readers, others = component.outside(state.behind), component.nodes - {state.behind}
    held = state.behind in components.results or any(map(component.is_read, others | {each}))
    less = all(_lessens(reader, state.behind, component.labels[state.behind]) for reader in readers)
    if linear is None or state.starts or held or not less:
        return {}
    read = (child for each in (*readers, *(part.node for part in linear)) for child in each.children)
    given = [child for child in read if child is not state.behind and not child.is_scalar]

    def price(new: Mapping[Node, Node], states: Sequence[Node] = ()) -> float:
        parts = (over_others(reader, new) for reader in readers)
        return sum(seconds(components.part("y", part, given, states)) for part in parts)

    scanned = over_others(state.behind, {each: _without_component(component, *linear)})
    made = {state.behind: _triangular(component, *linear)}
    return made if price(made) < min(price({}, [each]), price({state.behind: scanned})) else {}


def _lessens(reader: Node, state: Node, at: int) -> bool:
    """Whether a node reads a state at one position, or multiplies it and sums one of its axes, wherever it reads it."""
    kept = {*axes_of(reader.result)} if reader.op == "contract" else {*range(len(reader.sizes))}
    reads = [operand.reads for operand in reader.operands if operand.node is state]
    return all(not each[at].axes or {*axes_of(each)} - kept for each in reads)


def _triangular(component: Component, factor: Operand, rest: Operand) -> Node:
    """A state at all positions, each with what it adds itself: the product of a triangular matrix and the rest."""
    ((each, state),) = component.states.items()
    at, sizes = state.at, {**dict[Axis, Size](enumerate(each.shape)), "s": component.length}
    here, there = (Operand(index(component.length), (along(axis),)) for axis in (at, "s"))
    matrix = applied(LESS_EQUAL.name, (here, there) if state.back else (there, here), sizes)
    if factor != ONE:
        equal = applied(EQUAL.name, (here, there), sizes)
        diagonal = Operand(cast(equal.node, each.element), equal.reads)
        options = (("start", ZERO.node), ("back", number(int(state.back))))
        factor = factor if factor.node.is_scalar else apart(factor, sizes)
        left = tuple(map(along, dict.fromkeys((*axes_in([factor]), at, "s"))))
        before = Operand(node(RECUR.name, sizes, [factor, diagonal], left, None, (at,), options), left)
        matrix = applied("add", [applied("contract", [factor, before], sizes), diagonal], sizes)
    moved = Operand(rest.node, substitute(rest.reads, {at: along("s")}))
    return node("contract", sizes, [matrix, moved], each.plain)


# ---------------------------------------------------------------------------- associative scan


Pays: TypeAlias = "Callable[[Any, Sequence[Any]], bool]"
"""Whether it is quicker than a loop, given the number of positions along the axis and the sizes of other dimensions."""

ONE, ZERO = Operand(number(1)), Operand(number(0))


def select_associative_scan(component: Component, pays: Pays) -> dict[Node, Node]:
    """The state of a recurrence without a loop; nothing unless it is the only one, and linear in each element.

    Args:
        component: the nodes that recur.
        pays: whether an associative scan is quicker than a loop.
    """
    linear = _linear_state(component, pays)
    return {} if linear is None else {next(iter(component.states)): _without_component(component, *linear)}


def _linear_state(component: Component, pays: Pays) -> tuple[Operand, Operand] | None:
    """The factor and the rest of the next state, `factor * state + rest`, read along its dimensions.

    None if it is not linear in each element, or if a loop is quicker.
    """
    (each, state), *others = component.states.items()
    at, shape = component.labels[each], component.components.opened(each.shape)
    if others or each.element < Element.WIDE or not pays(shape[at], shape[:at] + shape[at + 1 :]):
        return None
    own = each.plain
    forms, found = LinearForms(component, dict(enumerate(each.shape))), (list[Operand](), list[Operand]())
    try:
        terms = forms.terms(Operand(state.behind, own))
    except NotLinear:
        return None
    for term in terms:
        states = [factor for factor in term.factors if forms.recurs(factor)]
        if states and (states != [Operand(each, own)] or term.summed):
            return None
        factors = tuple(factor for factor in term.factors if factor not in (*states, ONE))
        found[not states].append(forms.operand(Product(factors, term.summed)) if factors else ONE)
    factor, rest = (_added(part, forms.sizes) for part in found)
    told = {*axes_in([factor, rest])} | ({*range(len(shape))} if state.starts else set())
    return (
        (factor, rest) if told.issuperset(range(len(shape))) else None
    )  # else no operand gives a dimension's size


def _added(terms: Sequence[Operand], sizes: Mapping[Axis, Size]) -> Operand:
    """The sum of some operands; 0 for none."""
    return applied("add", terms, sizes) if len(terms) > 1 else next(iter(terms), ZERO)


def _without_component(component: Component, factor: Operand, rest: Operand) -> Node:
    """A state at all positions, computed from its factor and its rest without a loop."""
    ((each, state),) = component.states.items()
    at, sizes = state.at, dict[Axis, Size](enumerate(each.shape))
    own, back = each.plain, ("back", number(int(state.back)))
    start = Operand(state.begin, own[:at] + own[at + 1 :]) if state.fill is None else Operand(state.fill)
    factor, rest = (each if each.node.op == "number" else apart(each, sizes) for each in (factor, rest))

    def over(function: Function, operands: Sequence[Operand], *options: tuple[str, Node]) -> Operand:
        return Operand(node(function.name, sizes, operands, own, None, (at,), (*options, back)), own)

    def added(*terms: Operand) -> Node:
        return node("add", sizes, terms, own)

    if factor == ONE and rest != ZERO:
        running = over(CUMSUM, [rest]).node
        moved = replace(state, behind=running, fill=ZERO.node).whole
        return added(Operand(moved, own), start) if state.starts else moved
    if state.fill is not None and at in axes_in([factor, rest]):
        return over(RECUR, [factor, rest], ("start", state.fill)).node
    end = evaluate(component.length, component.components.graph.bound) - 1 if state.back else 0
    first = applied(EQUAL.name, [Operand(index(component.length), (along(at),)), counted(end)], sizes)
    begun = applied("contract", [each for each in (factor, start) if each != ONE], sizes)
    begun = applied(WHERE.name, [first, begun, ZERO], sizes)
    total = begun if rest == ZERO else applied("add", [rest, begun], sizes)
    recurring = over(RECUR, [factor, total], ("start", ZERO.node))
    return added(recurring, applied(WHERE.name, [first, start, ZERO], sizes))


def select_rnn_kernel(component: Component, seconds: Seconds, supported: Container[str]) -> dict[Node, Node]:
    """The result of a recurrent cell, computed by a kernel; nothing if a component matches none.

    Args:
        component: the nodes that recur.
        seconds: the expected seconds of a graph: that of the recurrence, or of a kernel, with the nodes it alone needs.
        supported: the names of the available kernels.
    """
    read = [each for each in component.nodes if component.is_read(each)]
    if len(read) != 1 or None in read[0].dims or component.states.keys() != component.outer.keys():
        return {}
    (result,) = read
    for cell in CELLS:
        if cell.kernel.name in supported and len(cell.equations) == len(component.outer):
            with contextlib.suppress(NotLinear):
                made, given = _Reading(component, cell, result).kernel()
                return {result: made} if _pays(component, result, made, given, seconds) else {}
    return {}


def _pays(component: Component, result: Node, made: Node, given: Sequence[Node], seconds: Seconds) -> bool:
    """Whether a kernel is quicker than the recurrence that it replaces, each with the nodes it alone needs."""
    components, name = component.components, component.components.names.get(result, "h")
    kernel, loop = (
        components.part(name, made, given),
        components.part(name, result, given, component.states),
    )
    return seconds(kernel) < seconds(loop)


@dataclass(frozen=True)
class _Gate:
    """The argument of a gate: `weight · given + state_weight · state + bias`, each if it has such a term.

    Attributes:
        given: the input: the axes around a cell, and then those of its channels.
        weight, state_weight: the matrices that multiply the input and the result before.
        bias: the vector that is added.
    """

    given: Node | None
    weight: Node | None
    state_weight: Node | None
    bias: Node | None


class _Reading:
    """Matches a component with a cell.

    Attributes:
        states: the states, that of the result last.
        left: the positions of the result, in axes that all parts share.
        label: the axis of the recurrence.
        given: the nodes that the input is computed from.
        made: the axes of the result's channels.
    """

    def __init__(self, component: Component, cell: Cell, result: Node) -> None:
        self.component, self.cell, self.result = component, cell, result
        self.states = sorted(component.outer, key=lambda each: component.outer[each].behind is result)
        table = {axis: along(("f", axis)) for axis in axes_of(result.result)}
        self.forms = LinearForms(component, {("f", axis): result.sizes[axis] for axis in table})
        self.left = substitute(result.result, table)
        self.label = ("f", component.axes[result])
        self.given, self.made = dict[Node, None](), tuple[Axis, ...]()

    # ---- matching the equations

    def _arguments(self) -> Iterator[Operand]:
        """The arguments of the gates, where the states are those of the equations."""
        behind = [self.component.outer[each].behind for each in self.states]
        names = [equation.text.partition("[")[0] for equation in self.cell.equations]
        known = {f"{name}_1": each for name, each in zip(names, self.states, strict=True)}
        known |= dict(zip(names, behind, strict=True))
        if behind[-1] is not self.result:
            raise NotLinear
        for equation, head in zip(self.cell.equations, behind, strict=True):
            yield from self._matched(equation, head, known)

    def _matched(self, equation: KernelEquation, head: Node, known: Mapping[str, Node]) -> list[Operand]:
        """The operands of an equation other than states."""
        written = [each.name if isinstance(each, Ref) else "" for each in pattern_of(equation).operands]
        inside = self.component.nodes.difference(known.values())
        for nodes in operands_matched(self.component.components.program, head, equation, inside):
            found = [*zip(written, (Operand(each, self.left) for each in nodes), strict=True)]
            if all(self._is(each, known[name]) for name, each in found if name in known):
                return [each for name, each in found if name not in known]
        raise NotLinear

    def _is(self, part: Operand, each: Node) -> bool:
        """Whether an operand is a copy of a node along the axes of the result."""
        one, other = (
            self.forms.terms(each, lambda part: part.node.op == "copy")
            for each in (part, Operand(each, self.left))
        )
        return one == other

    # ---- gates

    def _gates(self, arguments: Sequence[Operand]) -> list[_Gate]:
        """The arguments of the gates as products with matrices. Channels are the dimensions that these sum."""
        sums = [self.forms.terms(each, self._opens) for each in arguments]
        factors = (each for terms in sums for term in terms for each in term.factors)
        reads = (each.reads for each in factors if each.node is self.states[-1])
        pairs = ([*zip(self.left, entries, strict=True)] for entries in reads)
        channels = {tuple(mine for mine, theirs in each if mine != theirs) for each in pairs}
        if len(channels) != 1:
            raise NotLinear
        self.made = tuple(axes_of(channels.pop()))
        return [*map(self._gate, sums)]

    def _opens(self, part: Operand) -> bool:
        """Whether an operand may hold several terms: it recurs, or is computed for all positions before the loop."""
        return self.forms.recurs(part) or self.label in part.axes

    def _gate(self, terms: Sequence[Product]) -> _Gate:
        """A gate: at most one product with the result before, products with inputs, and biases."""
        hanging = [each for each in terms if any(map(self.forms.recurs, each.factors))]
        others = [each for each in terms if each not in hanging]
        moving = [each for each in others if not axes_in(each.factors).keys().isdisjoint(self._around)]
        biases = [self.forms.operand(each) for each in others if each not in moving]
        inputs, products = ([*map(self._product, each)] for each in (moving, hanging))
        states = [factor.node for factors, *_ in products for factor in factors]
        if states not in ([], self.states[-1:]) or not {*axes_in(biases)} <= {*self.made}:
            raise NotLinear
        self.given |= dict.fromkeys(
            each.node for factors, *_ in inputs for each in factors if each.node.shape
        )
        return _Gate(
            concatenated([each for _, each, _ in inputs], len(self._around)) if inputs else None,
            concatenated([matrix for *_, matrix in inputs], 1) if inputs else None,
            products[0][-1] if products else None,
            self.forms.node(biases, (row_major(self.made, self.forms.sizes),), "add") if biases else None,
        )

    def _product(self, term: Product) -> tuple[list[Operand], Node, Node]:
        """The factors of a product that are no weights, their product, its channels last, and the weights' matrix."""
        around, (factors, summed) = {*self._around}, term
        given = [each for each in factors if not around.isdisjoint(each.axes)]
        weights = [each for each in factors if each not in given]
        if not all(self._is_read_whole(each) for each in given if self.forms.recurs(each)):
            raise NotLinear
        read = tuple(axis for axis in axes_in(given) if axis in {*axes_in(weights)} & summed)
        axes = {*axes_in(weights)} - self.forms.fixed.keys()
        if not axes.issuperset(self.made) or not axes <= {*self.made} | summed:
            raise NotLinear
        alone = frozenset[Axis]() if any(map(self.forms.recurs, given)) else summed
        if not read or {*axes_in(given)} - alone - {*read} != around:
            raise NotLinear
        made, channels = (row_major(each, self.forms.sizes) for each in (self.made, read))
        whole = self.forms.node(given, (*map(along, self._around), channels))
        return given, whole, self.forms.node(weights, (made, channels))

    def _is_read_whole(self, part: Operand) -> bool:
        """Whether a tensor is read along whole dimensions, each element once and in order: the kernel reads it so."""
        axes, same = [*part.axes], self.component.components.program.same
        pairs = zip(part.reads, part.node.shape, strict=True)
        return len({*axes}) == len(axes) and all(
            fills(entry, self.forms.sizes, length, same) for entry, length in pairs
        )

    @property
    def _around(self) -> list[Axis]:
        """The axes of the result that are no channels."""
        return [axis for axis in axes_of(self.left) if axis not in self.made]

    # ---- the kernel

    def kernel(self) -> tuple[Node, list[Node]]:
        """The result as the kernel computes it, and the nodes that its input and its starts are computed from."""
        gates, count = self._gates([*self._arguments()]), self.cell.gates
        taking, reading = (
            [each for each in gates if each.weight],
            [each for each in gates if each.state_weight],
        )
        (given, *others) = {each.given for each in taking} or [None]
        if given is None or others or taking != gates[:count] or reading != [*gates[: count - 1], gates[-1]]:
            raise NotLinear
        weights = [each.weight for each in taking if each.weight]
        state_weights = [each.state_weight for each in reading if each.state_weight]
        starts = [self.component.states[each].begin for each in reversed(self.states)]
        vectors = [[each.bias for each in taking]]
        inner = [None if each.weight else each.bias for each in reading]
        vectors += [inner] if any(inner) else []
        pairs = ([*zip(each, weights, strict=True)] for each in vectors if any(vectors[-1]) or any(each))
        biases = [[bias or _zeros(weight.shape[0]) for bias, weight in each] for each in pairs]
        made = self._called(
            given, [*map(self._stacked, (weights, state_weights))], starts, [*map(self._stacked, biases)]
        )
        return made, [*self.given, *starts]

    def _stacked(self, parts: Sequence[Node]) -> Node:
        """Matrices or vectors of the gates, one after another."""
        return concatenated(parts, 0, self.component.components.program.same)

    def _called(
        self, given: Node, weights: Sequence[Node], starts: Sequence[Node], biases: Sequence[Node]
    ) -> Node:
        """The result of the cell, computed by its kernel."""
        at, (rows, read), columns = self.component.labels[self.result], weights[0].shape, weights[1].shape[1]
        sizes = self.forms.sizes | {"rows": rows, "read": read, "columns": columns}
        first = self.left[:at] + self.left[at + 1 :]
        operands = [
            Operand(given, tuple(map(along, (*self._around, "read")))),
            Operand(weights[0], (along("rows"), along("read"))),
            Operand(weights[1], (along("rows"), along("columns"))),
            *(Operand(each, first) for each in starts),
            *(Operand(each, (along("rows"),)) for each in biases),
        ]
        back = (("back", number(1)),) if self.component.state.back else ()
        over = ("read", "rows", "columns")
        made = node(self.cell.kernel.name, sizes, operands, (self.left[at], *first), None, over, back)
        return moved_in(made, at)


def _zeros(length: Size) -> Node:
    return node("copy", {0: length}, [Operand(number(0))], (along(0),))
