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
from ..graph.shape_inference import Axis, beside, dim_size
from ..language.equation import Equation
from ..language.expression import Ref, is_random, is_scalar
from ..ops.table import Element
from ..scan.lowering import with_states
from .a_normal_form import take_apart
from .activity import active
from .call_vjp import Called, asked, backward_call, forward_call
from .cotangents import give, gradient_of, whole
from .joint import JointGraph, tidy
from .state_vjp import backward_state, foresee
from .vjp_context import GRADIENT, Pairs, VjpContext
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
) -> JointGraph:
    """The joint graph of a graph: its forward and its backward pass.

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
    return _joint_graph(VjpContext(with_states(graph), of, wrt, pairs, alone, again))


def made_again(graph: Graph, wrt: Iterable[str]) -> tuple[str, ...]:
    """The calls that can be rematerialised, by their first results, in order: none that draws random numbers."""
    changing = active(graph, wrt)
    return tuple(
        call.results[0]
        for call in graph.calls
        if changing.intersection(call.results)
        and not any(is_random(equation.right) for part in call.graph.parts() for equation in part.own)
    )


def _joint_graph(context: VjpContext) -> JointGraph:
    """The forward pass, item by item, and then the backward pass from the last one."""
    calls = dict[Apply, Called]()
    for item in context.graph.body:
        _forward(context, item, calls)
    forward, context.body = context.body, []
    context.uses.update(name for item in forward for name, _ in reads(item))
    seeds = list(_seeds(context))
    foresee(context, forward)
    for item in reversed(forward):
        _backward(context, item, calls)
    names = dict(zip(_results(context, forward), context.results.values(), strict=True))
    context.body = [of_tensors_named(item, names) for item in context.body]
    return _parted(context, forward, seeds, tuple(context.results.values()))


def _forward(context: VjpContext, item: Equation | Apply, calls: dict[Apply, Called]) -> None:
    """An item of the graph, taken apart if gradients go through it."""
    if not any(name in context.active and name in context.needed for name in item.defines):
        context.body.append(item)
    elif isinstance(item, Apply):
        of, wrt = asked(context, item)
        made, called = forward_call(context, item, differentiated(item.graph, of, wrt, context.pairs), wrt)
        calls[made] = called
        context.body.append(made)
    else:
        take_apart(context, item)


def _backward(context: VjpContext, item: Equation | Apply, calls: Mapping[Apply, Called]) -> None:
    """Hands the gradient of what an item defines on to what that was made of."""
    if isinstance(item, Apply):
        if item in calls and any(context.terms[name] for name in item.results):
            backward_call(context, item, calls[item])
    elif item.name in context.states:
        backward_state(context, item)
    elif context.terms[item.name]:
        gradient, scope = gradient_of(context, item), context.scope(item.right)
        for ref, term in handed_back(context, item, gradient):
            term = folded(term)
            if term != ZERO:
                give(context, ref, term, beside(scope, context.scope(ref)))


def _seeds(context: VjpContext) -> Iterator[tuple[str, Leaf]]:
    """The gradients of the results that come from outside."""
    for name in context.of:
        if name not in context.seeds:
            context.terms[name].append(ONE)
            continue
        pairs = zip(context.axes(name), context.dims[name], strict=True)
        dims = context.resolved(tuple((Axis(axis, dim_size(dim)),) for axis, dim in pairs))
        leaf = Leaf(context.seeds[name], "input", dims)
        context.dims[leaf.name], context.elements[leaf.name] = leaf.dims, Element.NUMBER
        context.terms[name].append(Ref(leaf.name, context.axes(name)))
        context.uses[name] += 1
        yield name, leaf


def _results(context: VjpContext, forward: list[Equation | Apply]) -> Iterator[str]:
    """The gradient of each leaf, made here and for this leaf alone, of numbers of the working type."""
    alike = {name for name in context.wrt if all(map(is_scalar, context.terms[name]))}
    found = {name: whole(context, name) for name in context.wrt}
    made = {each for item in context.body for each in item.defines}
    holding = of_body((*forward, *context.body), _certain(context))
    for name, gradient in found.items():
        is_its_own = gradient in made and gradient.startswith(GRADIENT.format(name))
        if is_its_own and (name in alike or holding[gradient] is Element.NUMBER):
            yield gradient
            continue
        axes, result = context.axes(name), context.fresh(GRADIENT.format(name))
        context.put(result, axes, as_numbers(Ref(gradient, axes)), context.axis_sizes(name))
        yield result


def _certain(context: VjpContext) -> dict[str, Element]:
    """What the leaves hold whatever is given: an input that nothing is known of may hold integers."""
    known = dict.fromkeys(context.seeds.values(), Element.NUMBER)
    for leaf in context.graph.leaves:
        may_be_whole = leaf.kind == "input" and leaf.name not in context.wrt
        known[leaf.name] = Element.SHORT if may_be_whole else context.elements[leaf.name]
    return known


def _parted(
    context: VjpContext,
    forward: list[Equation | Apply],
    seeds: list[tuple[str, Leaf]],
    outputs: tuple[str, ...],
) -> JointGraph:
    """What the backward pass reads of the forward pass is a result of the one, and an input of the other."""
    made = {name for item in forward for name in item.defines}
    body = (*_made_anew(context.graph, forward, context.body), *context.body)
    there = {name for item in body for name in item.defines}
    read = dict.fromkeys(name for item in body for name, _ in reads(item) if name not in there)
    kept = tuple(name for name in read if name in made)
    sizes = tuple(context.bound.items())
    results = tuple(dict.fromkeys((*context.graph.outputs, *kept)))
    given = [leaf for leaf in context.graph.leaves if leaf.name in read]
    leaves = (
        *(leaf for leaf in given if leaf.kind == "input"),
        *(Leaf(name, "input", context.resolved(context.dims[name])) for name in kept),
        *(leaf for _, leaf in seeds),
        *(leaf for leaf in given if leaf.kind != "input"),
    )
    return JointGraph(
        tidy(replace(context.graph, body=tuple(forward), outputs=results, sizes=sizes)),
        tidy(Graph(leaves, body, outputs, sizes)),
        kept,
        tuple((name, leaf.name) for name, leaf in seeds),
    )


def _made_anew(
    graph: Graph, forward: Sequence[Equation | Apply], body: Sequence[Equation | Apply]
) -> list[Equation | Apply]:
    """What the backward pass reads of what no input and no parameter changes: it is computed there anew, once."""
    constants = {leaf.name for leaf in graph.constants}
    invariant: dict[str, Equation | Apply] = {}
    for item in forward:
        is_invariant = all(name in invariant or name in constants for name, _ in reads(item))
        if is_invariant and isinstance(item, Equation) and not is_random(item.right):
            invariant[item.name] = item
    wanted = {name for item in body for name, _ in reads(item)}
    for name, item in reversed(invariant.items()):
        if name in wanted:
            wanted.update(name for name, _ in reads(item))
    return [item for name, item in invariant.items() if name in wanted]
