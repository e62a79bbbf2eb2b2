"""The vjp of scans: a scan in the other direction.

    y.along, c.last = block(x[s,b,t,i], c0[b,o], W[o,i])    →
    x.grad.along, c0.grad, W.grad = back(x[s,b,t,i], c.firsts[s,b,o], y.grad.along, c.last.grad, 0, W[o,i])

The cotangent of a state is carried from iteration to iteration. That of an operand that all iterations read is
accumulated over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..graph.call import Along
from ..graph.graph import Apply, Graph
from ..graph.leaves import Leaf
from ..language.equation import Equation
from ..language.expression import Expression, Ref, fresh, sum_of
from .joint import JointGraph

__all__ = ["ScanVjp", "saving_carries"]

FIRST = "{}.firsts"
"""The name of the state that each call starts from, stacked over all calls."""


def _axes(leaf: Leaf) -> tuple[str, ...]:
    found: list[str] = []
    for dim in leaf.dims:
        found.append(fresh("_".join(axis.name for axis in dim), {*found}))
    return tuple(found)


def saving_carries(call: Apply, named: Callable[[str], str]) -> Apply:
    """The calls, which also return the state that each starts from.

    Args:
        call: the calls along an axis.
        named: a name for a result.
    """
    assert call.along is not None
    block, joined = call.graph, call.along.joined(len(call.results))
    states = block.inputs[len(call.along.cuts) :][: len(call.along.states)]
    taken = set(block.named)
    firsts = list[Equation]()
    for leaf in states:
        axes, name = _axes(leaf), fresh(FIRST.format(leaf.name), taken)
        taken.add(name)
        firsts.append(Equation(name, axes, Ref(leaf.name, axes)))
    made = tuple(each.name for each in firsts)
    outputs = (*block.outputs[:joined], *made, *block.outputs[joined:])
    along = replace(call.along, states=tuple(n if n < joined else n + len(made) for n in call.along.states))
    return replace(
        call,
        graph=replace(block, body=(*block.body, *firsts), outputs=outputs),
        results=(*call.results[:joined], *map(named, made), *call.results[joined:]),
        along=along,
    )


class _States:
    """The states of a backward pass along an axis, and the next value of each."""

    def __init__(self, block: Graph) -> None:
        self.both, self.body, self.taken = block, list(block.body), {*block.named}
        self.states, self.nexts = list[Leaf](), list[str]()

    def block(self, inputs: Iterable[Leaf], outputs: tuple[str, ...]) -> Graph:
        """The block that is called at each position."""
        others = (leaf for leaf in self.both.leaves if leaf.kind != "input")
        return Graph((*inputs, *others), tuple(self.body), outputs, self.both.sizes)

    def _named(self, stem: str) -> str:
        self.taken.add(found := fresh(stem, self.taken))
        return found

    def on(self, seed: Leaf | None, state: Leaf, gradient: str) -> None:
        """Carries the gradient of a forward state to the input for its cotangent; to an unused one if there is none."""
        if seed is None:
            seed = replace(state, name=self._named(f"{state.name}.none"), holds=None)
        self.states.append(seed)
        self.nexts.append(gradient)

    def added_up(self, whole: Leaf, gradient: str) -> None:
        """Adds the gradient of a tensor that all positions read to the sum of the positions so far."""
        axes, sum_of_all = _axes(whole), self._named(f"{whole.name}.sum")
        total = self._named(f"{whole.name}.total")
        self.states.append(replace(whole, name=sum_of_all, holds=None))
        terms: list[Expression] = [Ref(sum_of_all, axes), Ref(gradient, axes)]
        self.body.append(Equation(total, axes, sum_of(terms)))
        self.nexts.append(total)


@dataclass(frozen=True)
class ScanVjp:
    """The vjp of a scan: the operands and results of the calls of its backward pass.

    Attributes:
        block: the block that they call.
        operand_axes: the dimension of each operand that is sliced by position: operands of the call, the states that
            each iteration started from, and gradients of results.
        gradients: the stacked results of the call whose gradients are sliced so.
        final_carries: the last states of the call, whose gradients they start from.
        accumulated: the leaves that all iterations read, whose gradients are summed.
        stacked_axes: for each leaf that was sliced by position, the dimension.
        results: the leaves of the call whose gradients they return, in order.
        carries: the outputs of the block that are passed on to the next call.
    """

    block: Graph
    operand_axes: tuple[int, ...]
    gradients: tuple[str, ...]
    final_carries: tuple[str, ...]
    accumulated: tuple[str, ...]
    stacked_axes: Mapping[str, int]
    results: tuple[str, ...]
    carries: tuple[int, ...]

    @staticmethod
    def of(call: Apply, joint: JointGraph, wrt: Sequence[str]) -> ScanVjp:
        """The vjp of a call of `saving_carries`, from the forward and backward pass of its block."""
        assert call.along is not None
        both, seeds = joint.joined(), dict(joint.seeds)
        leaves = {leaf.name: leaf for leaf in both.inputs}
        grads = dict(zip(wrt, both.outputs, strict=True))
        own = {leaf.name: leaf for leaf in call.graph.inputs}
        cuts = dict(zip(own, call.along.cuts, strict=False))
        carried = dict(call.carried())
        wholes = [name for name in own if name not in cuts and name not in carried]
        joined = call.along.joined(len(call.results))
        gradients = [pair for pair in list(call.made)[:joined] if pair[0] in seeds]
        lasts = dict(zip(carried, call.results[joined:], strict=True))
        grown = _States(both)
        for leaf, output in carried.items():
            if leaf in grads:
                grown.on(leaves.get(seeds.get(output, "")), own[leaf], grads[leaf])
        totals = tuple(name for name in wholes if name in grads)
        for name in totals:
            grown.added_up(own[name], grads[name])
        given = [leaves[seeds[output]] for output, _ in gradients]
        inputs = [
            *(own[name] for name in (*cuts, *carried)),
            *given,
            *grown.states,
            *(own[name] for name in wholes),
        ]
        stacked = [name for name in cuts if name in grads]
        outputs = (*(grads[name] for name in stacked), *grown.nexts)
        moved = tuple(name for name in carried if name in grads)
        return ScanVjp(
            grown.block(inputs, outputs),
            (*call.along.cuts, *([0] * (len(carried) + len(given)))),
            tuple(result for _, result in gradients),
            tuple(lasts[name] for name in moved),
            totals,
            {name: cuts[name] for name in stacked},
            (*stacked, *moved, *totals),
            tuple(range(len(stacked), len(outputs))),
        )

    def call(
        self,
        call: Apply,
        gradients: Sequence[str],
        lasts: Sequence[str],
        totals: Sequence[str],
        results: tuple[str, ...],
    ) -> Apply:
        """The calls of the backward pass.

        Args:
            call: the calls to differentiate.
            gradients, lasts: the gradients of the results `gradients` and `final_carries` of these calls.
            totals: zeros.
            results: the names of the results.
        """
        assert call.along is not None
        count, states = len(call.along.cuts), len(call.along.states)
        joined = call.along.joined(len(call.results))
        firsts = call.results[joined - states : joined]
        operands = (
            *call.operands[:count],
            *firsts,
            *gradients,
            *lasts,
            *totals,
            *call.operands[count + states :],
        )
        along = Along(call.along.axis, self.operand_axes, self.carries, not call.along.back, last=True)
        return Apply(self.block, operands, results, call.scope, True, along)
