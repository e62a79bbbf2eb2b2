"""The nodes of the backward pass of a graph, from its results to its leaves.

`joint.py` builds graphs from them and from the nodes of the forward pass.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..frontend.elaborate_ir import Expressions
from ..graph.graph import Apply, Graph
from ..graph.leaves import Leaf
from ..graph.recurrences import postorder
from ..graph.shape_inference import Axis, Dim, axes_of_dims, dim_size
from ..ir.naming import told
from ..ir.node import Affine, Node, Operand, Size, at_position, leaf, number, summed_axes
from ..language.equation import Equation
from ..language.expression import Ref, Taken
from ..language.parser import parse_rule
from ..ops.table import CONVERSIONS, FUNCTIONS, Element
from ..scan.cut import Cut, State, cut
from ..sizes import evaluate
from .a_normal_form import Pairs, take_apart
from .activity import active, changes, check_rules
from .cotangents import GRADIENT, Cotangents, cotangents, reached


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
        self.program = take_apart(self.cut.program, self.through, pairs)
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
        placed = [(Axis(axis, evaluate(dim_size(dim), self.bound)),) for axis, dim in (axes[d] for d in dims)]
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
        return [self.nodes[name] for name in call.names().values() if name in self.nodes]

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

    # ---- states

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
            names = itertools.chain((axis,), (f"{axis}_{n}" for n in itertools.count(1)))
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
