"""Vector-Jacobian products (vjp): a graph's forward pass and its backward pass as graphs.

Each equation is taken apart until it applies one function, or multiplies two tensors, so that what the
derivatives of several factors have in common is a tensor with a name, and computed once: a product of N
factors takes O(N) products back. Then, from the last to the first, what a tensor gets from those that read
it (`x.grad`) goes on to what it was made of, as the record of its function says:

    y[b,o] = x[b,i] * W[o,i]    →    W.grad[o,i] = y.grad[b,o] * x[b,i]

Equations are split in `a_normal_form.py`; the cotangent of each operand comes from `vjp_rules.py`; `cotangents.py`
adds them up. A call of a block becomes two (`call_vjp.py`); states of recurrences are read before they are made
(`state_vjp.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ..frontend.instantiate import of_tensors_named
from ..graph.algebra import ONE, ZERO, as_numbers, folded
from ..graph.element_types import of_body
from ..graph.graph import Apply, Graph, reads
from ..graph.leaves import Leaf
from ..graph.shape_inference import Axis, dim_size
from ..language.equation import Equation
from ..language.expression import Ref, is_scalar
from ..ops.table import Element
from ..passes.common_subexpressions import is_random
from ..scan.lowering import with_states
from .a_normal_form import take_apart
from .activity import active
from .call_vjp import Called, asked, backward_call, forward_call
from .cotangents import give, gradient_of, whole
from .joint import Directions, tidy
from .state_vjp import backward_state, foresee
from .vjp_context import GRADIENT, Pairs, Ways, beside
from .vjp_rules import handed_back

__all__ = ["differentiated", "made_again"]


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
    return _directions(Ways(with_states(graph), of, wrt, pairs, alone, again))


def made_again(graph: Graph, wrt: Iterable[str]) -> tuple[str, ...]:
    """The calls that can be made again on the way back, by their first results, in order: none that draws numbers."""
    changing = active(graph, wrt)
    return tuple(
        call.results[0]
        for call in graph.calls
        if changing.intersection(call.results)
        and not any(is_random(equation.right) for part in call.graph.parts() for equation in part.own)
    )


def _directions(ways: Ways) -> Directions:
    """The way forward, item by item, and then the way back from the last one."""
    calls = dict[Apply, Called]()
    for item in ways.graph.body:
        _forward(ways, item, calls)
    forward, ways.body = ways.body, []
    ways.uses.update(name for item in forward for name, _ in reads(item))
    seeds = list(_seeds(ways))
    foresee(ways, forward)
    for item in reversed(forward):
        _backward(ways, item, calls)
    names = dict(zip(_results(ways, forward), ways.results.values(), strict=True))
    ways.body = [of_tensors_named(item, names) for item in ways.body]
    return _parted(ways, forward, seeds, tuple(ways.results.values()))


def _forward(ways: Ways, item: Equation | Apply, calls: dict[Apply, Called]) -> None:
    """An item of the graph, taken apart if gradients go through it."""
    if not any(name in ways.active and name in ways.needed for name in item.defines):
        ways.body.append(item)
    elif isinstance(item, Apply):
        of, wrt = asked(ways, item)
        made, called = forward_call(ways, item, differentiated(item.graph, of, wrt, ways.pairs), wrt)
        calls[made] = called
        ways.body.append(made)
    else:
        take_apart(ways, item)


def _backward(ways: Ways, item: Equation | Apply, calls: Mapping[Apply, Called]) -> None:
    """Hands the gradient of what an item defines on to what that was made of."""
    if isinstance(item, Apply):
        if item in calls and any(ways.terms[name] for name in item.results):
            backward_call(ways, item, calls[item])
    elif item.name in ways.states:
        backward_state(ways, item)
    elif ways.terms[item.name]:
        gradient, scope = gradient_of(ways, item), ways.scope(item.right)
        for ref, term in handed_back(ways, item, gradient):
            term = folded(term)
            if term != ZERO:
                give(ways, ref, term, beside(scope, ways.scope(ref)))


def _seeds(ways: Ways) -> Iterator[tuple[str, Leaf]]:
    """The gradients of the results that come from outside."""
    for name in ways.of:
        if name not in ways.seeds:
            ways.terms[name].append(ONE)
            continue
        pairs = zip(ways.axes(name), ways.dims[name], strict=True)
        dims = ways.resolved(tuple((Axis(axis, dim_size(dim)),) for axis, dim in pairs))
        leaf = Leaf(ways.seeds[name], "input", dims)
        ways.dims[leaf.name], ways.elements[leaf.name] = leaf.dims, Element.NUMBER
        ways.terms[name].append(Ref(leaf.name, ways.axes(name)))
        ways.uses[name] += 1
        yield name, leaf


def _results(ways: Ways, forward: list[Equation | Apply]) -> Iterator[str]:
    """The gradient of each leaf, made here and for this leaf alone, of numbers of the working type."""
    alike = {name for name in ways.wrt if all(map(is_scalar, ways.terms[name]))}
    found = {name: whole(ways, name) for name in ways.wrt}
    made = {each for item in ways.body for each in item.defines}
    holding = of_body((*forward, *ways.body), _certain(ways))
    for name, gradient in found.items():
        is_its_own = gradient in made and gradient.startswith(GRADIENT.format(name))
        if is_its_own and (name in alike or holding[gradient] is Element.NUMBER):
            yield gradient
            continue
        axes, result = ways.axes(name), ways.fresh(GRADIENT.format(name))
        ways.put(result, axes, as_numbers(Ref(gradient, axes)), ways.axis_sizes(name))
        yield result


def _certain(ways: Ways) -> dict[str, Element]:
    """What the leaves hold whatever is given: an input that nothing is known of may hold integers."""
    known = dict.fromkeys(ways.seeds.values(), Element.NUMBER)
    for leaf in ways.graph.leaves:
        may_be_whole = leaf.kind == "input" and leaf.name not in ways.wrt
        known[leaf.name] = Element.SHORT if may_be_whole else ways.elements[leaf.name]
    return known


def _parted(
    ways: Ways, forward: list[Equation | Apply], seeds: list[tuple[str, Leaf]], outputs: tuple[str, ...]
) -> Directions:
    """What the way back reads of the way forward is a result of the one, and an input of the other."""
    made = {name for item in forward for name in item.defines}
    body = (*_made_anew(ways.graph, forward, ways.body), *ways.body)
    there = {name for item in body for name in item.defines}
    read = dict.fromkeys(name for item in body for name, _ in reads(item) if name not in there)
    kept = tuple(name for name in read if name in made)
    sizes = tuple(ways.bound.items())
    results = tuple(dict.fromkeys((*ways.graph.outputs, *kept)))
    given = [leaf for leaf in ways.graph.leaves if leaf.name in read]
    leaves = (
        *(leaf for leaf in given if leaf.kind == "input"),
        *(Leaf(name, "input", ways.resolved(ways.dims[name])) for name in kept),
        *(leaf for _, leaf in seeds),
        *(leaf for leaf in given if leaf.kind != "input"),
    )
    return Directions(
        tidy(replace(ways.graph, body=tuple(forward), outputs=results, sizes=sizes)),
        tidy(Graph(leaves, body, outputs, sizes)),
        kept,
        tuple((name, leaf.name) for name, leaf in seeds),
    )


def _made_anew(
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
