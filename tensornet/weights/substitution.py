"""Substitution: a parameter becomes an expression in new parameters.

W[(a,b),(c,d)] = P[a,c,r] · Q[r,b,d]

The weight stays as a computed tensor, with its name and in its scope. The new parameters are named after it,
`W.P` and `W.Q`. Freezing makes parameters constants with given values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..errors import EquationError, ShapeError, by_name
from ..graph.argument_shapes import sizes_from_shapes
from ..graph.graph import Apply, Graph, inlined, of_graph
from ..graph.leaves import Constant, Leaf, told_by
from ..graph.shape_inference import Axis, Dim
from ..language.equation import Equation, spoken_sizes
from ..language.expression import fresh, sized_by_name
from ..passes.dead_code import eliminate_dead_code
from ..sizes import evaluate, size_names
from .equations import KEPT, Form, Modes, Weight, Weights
from .factorizations import Rank


@of_graph
def substitute(
    graph: Graph,
    weights: str | Mapping[str, Form],
    form: Form | None = None,
    *,
    inputs: str | Sequence[str] = (),
    constants: Mapping[str, Any] | None = None,
    init: Mapping[str, Any] | None = None,
    shared: str | Sequence[str] = (),
    rank: Rank = "same",
    modes: Modes | None = None,
    **sizes: Any,
) -> Graph:
    """Replaces parameters by equations: W[(a,b),(c,d)] = Σ_r P[a,c,r]·Q[r,b,d].

    A pattern selects the weights. Their new form is given by equations, whose last line defines the weight, or by
    the name of a factorization. The weight stays as a computed tensor, with its name and in its scope. The new
    parameters are named after it, `blocks.0.mlp.W1.P`. The equations that read the weight do not change. The planner
    applies the factors one by one or multiplies them together first, whichever is faster. Calls of one block still
    share that block if their weights have the same form.

    | factorization | W = | parameters, rank R |
    |---|---|---|
    | low_rank | Σ_r U[o,r]·V[r,i] | R·(O + I) |
    | tucker | Σ G[r₁…]·∏ Uₖ[mₖ,rₖ] | ∏ Rₖ + Σ MₖRₖ |
    | cp | Σ_r ∏ Uₖ[mₖ,r] | R·Σ Mₖ |
    | tt | Σ ∏ Gₖ[rₖ₋₁,mₖ,rₖ] | Σ Rₖ₋₁MₖRₖ |
    | tr | Σ ∏ Gₖ[rₖ,mₖ,rₖ₊₁], the last rank is the first | Σ RₖMₖRₖ₊₁ |
    | blocktt | Σ ∏ Gₖ[rₖ₋₁,oₖ,iₖ,rₖ] | Σ Rₖ₋₁OₖIₖRₖ |
    | kronecker | Σ_r ∏ Aₖ[r,oₖ,iₖ] | R·Σ OₖIₖ |
    | btt | Σ_r L[o₁,o₂,i₁,r]·R[o₂,i₁,r,i₂] | R·O₂I₁·(O₁ + I₂) |
    | monarch | L[o₁,o₂,i₁]·R[o₂,i₁,i₂] | O₂I₁·(O₁ + I₂) |
    | fact_tt | Σ U[o,r₁]·S[r₁,r₂]·V[r₂,i], U and V shared | R·(O + I) + R² for each weight |
    | fact_tk | Σ U[o,r₁]·C[r₁,r₂,r₃]·P[r₃]·V[r₂,i], U, C and V shared | R·(O + I) + R³ + R for each weight |

    Here o is the first dimension, i all others, and mₖ the parts of all dimensions one after another. `modes` or
    `models.tensorize` determines the parts of each dimension. A shared factor is one parameter of all weights that
    one pattern selects and that have the same shape: the stack of these weights is one tensor, with the layers as an
    axis. The factor is named after the common words of their names, `blocks.mlp.W1.U`.

    Args:
        graph: a layer or a model.
        weights: name to equations or to the name of a factorization; or one name, and `form`. "+low_rank" keeps the
            original weight and adds a factorization to it, which starts at zero. The names are scoped names of
            parameters, or patterns of `fnmatch`, where `*` matches anything, including dots. A later pattern overrides
            an earlier one. In the equations, a name that no line defines is a new parameter of this weight. The
            weight's own name is the original weight, which stays as the parameter `W.base`; terms added to it start at
            zero. A left side without axes, `W = …`, has the axes that its line reads the original weight with, or else
            its declared axes.
        form: the equations or the factorization, if `weights` is one name or pattern.
        inputs: other parameters and constants of the graph that the equations read. They are looked up in the scope
            of the weight and then in the enclosing scopes. They do not become new parameters.
        constants: arrays with fixed values that the equations read, by name.
        shared: names of new parameters that weights of one pattern and shape share, besides those that the
            factorization always shares.
        init: how new parameters start, as in `layer`. By default, a weight with a given start keeps its deviation.
            Without one, the equations of the model determine how the factors start.
        rank: the rank of factorizations that have none of their own, as in ("tt", 4): 'same' for full rank, a float
            for a fraction of the weight's parameters, an int, or one for each rank.
        modes: for factorizations, the number of parts of each dimension: one number for all, or for each dimension a
            number or the sizes of its parts, as ((8, 8, 12), (12, 16, 16)). By default two for a matrix or a vector
            and for forms with paired parts, else one. A dimension that has as many axes, as (h,d), keeps them.
        **sizes: sizes of axes of the equations: a positive integer, or an expression in the sizes of the model. Sizes
            that follow from the shape of the weight may be left out.

    Raises:
        EquationError: a pattern matches no parameter, or an equation is not in the language.
        ShapeError: sizes disagree or are missing, or a weight has no such form.

    Warns:
        TensornetWarning: no ranks come within 10 % of the fraction, or the nearest ones need more than dense.

    Source: Novikov et al. (2015), "Tensorizing neural networks"; Hu et al. (2021), "LoRA", for W + A·B; Jie and
    Deng (2023), "FacT", and Bershatsky et al. (2024), "LoTR", for shared factors.

    Example:
        >>> import tensornet as tn
        >>> layer = tn.layer("y[n,o] = x[n,i] * W[o,i]", inputs="x", i=64, o=64)
        >>> low = substitute(layer, {"W": "W[(a,b),(c,d)] = P[a,c,r] * Q[r,b,d]"}, a=8, c=8, r=2)
        >>> low == substitute(layer, "W", "W[(a,b),(c,d)] = P[a,c,r] * Q[r,b,d]", a=8, c=8, r=2)
        True
        >>> print(low.equations[0], *low.parameters, tn.parameter_count(low), sep="\\n")
        W[(a,b),(c,d)] = W.P[a,c,r] * W.Q[r,b,d]
        W.P[a,c,r]: parameter
        W.Q[r,b,d]: parameter
        256
        >>> tuned = substitute(layer, {"W": "W = W + A[o,r] * B[r,i]"}, r=4)
        >>> [leaf.name for leaf in tuned.parameters]
        ['W.base', 'W.A', 'W.B']
        >>> tn.parameter_count(substitute(layer, {"W": "tt"}, rank=0.25))
        1024
    """
    values = by_name(constants, "the constants", '{"c": array}')
    starts = by_name(init, "the starts in init", '{"P": 0.02}')
    made = Weights(graph, inputs, values, starts, shared, rank, modes, sizes)
    told = _told(graph, weights if form is None else {f"{weights}": form})
    groups: dict[tuple[str, Any], tuple[str, ...]] = {}
    for leaf, _, group in told:
        groups[group] = (*groups.get(group, ()), leaf.name)
    found = {leaf.name: made.weight(leaf, text, groups[group]) for leaf, text, group in told}
    made.check_given()
    _check_reads(found)
    bound, common = made.known.bound, tuple(made.common.values())
    if common:
        sizes = {**_sizes_in(common, (), bound), **graph.bound}
        graph = replace(graph, leaves=(*graph.leaves, *common), sizes=tuple(sizes.items()))
    return _Placing(bound).of(graph, found)


class _Told(NamedTuple):
    """A weight that a pattern selects, its new form, and the pattern and the shape of those it shares factors with."""

    leaf: Leaf
    text: Form
    group: tuple[str, Any]


def _told(graph: Graph, weights: str | Mapping[str, Form]) -> list[_Told]:
    """The weights that patterns select, each with the form from the last matching pattern."""
    if not isinstance(weights, Mapping):
        fix = 'write {"*.W1": "low_rank"}'
        raise EquationError(f"weights are told by names and equations, not {type(weights).__name__}", fix=fix)
    known = {leaf.name: leaf for leaf in graph.parameters}
    found: dict[str, _Told] = {}
    for pattern, text in weights.items():
        for path in told_by(pattern, tuple(known), "parameter of this graph", "parameters"):
            shape = tuple(evaluate(size, graph.bound) for size in known[path].shape)  # names may differ
            found[path] = _Told(known[path], text, (pattern, shape))
    return [found[path] for path in known if path in found]


def _check_reads(found: Mapping[str, Weight]) -> None:
    """Raises an error for equations that read a weight that is replaced in the same call."""
    for path, weight in found.items():
        for name in weight.operands:
            if name in found:
                fix = "replace one, and then the other in what comes out"
                raise EquationError(f"'{path}' reads '{name}', which is replaced too", fix=fix)


class _Placing:
    """Inserts weights before their first readers, in the graph and in the blocks that it calls."""

    def __init__(self, bound: Mapping[str, Any]) -> None:
        self.bound = bound
        self.made: dict[tuple[Graph, tuple[tuple[str, Weight], ...]], Graph] = {}

    def of(self, graph: Graph, weights: Mapping[str, Weight]) -> Graph:
        """The graph with weights instead of leaves. The keys are the names of these leaves in the graph."""
        if not weights:
            return graph
        key = graph, tuple(sorted(weights.items(), key=lambda each: each[0]))
        if key not in self.made:
            self.made[key] = self._of(graph, weights)
        return self.made[key]

    def _of(self, graph: Graph, weights: Mapping[str, Weight]) -> Graph:
        computed = {
            name: Apply(weight.program, weight.operands, (name,), name) for name, weight in weights.items()
        }
        told = {leaf.name for call in graph.calls for leaf in call.leaves()}
        waiting = dict(computed)
        body: list[Equation | Apply] = []
        for item in graph.body:
            body += [waiting.pop(name) for name in item.operands if name in waiting]
            body.append(self._call(graph, item, weights) if isinstance(item, Apply) else item)
        body += [call for name, call in waiting.items() if name in graph.outputs or name not in told]
        leaves: list[Leaf] = []
        for leaf in graph.leaves:
            leaves += computed[leaf.name].leaves() if leaf.name in computed else [leaf]
        known = {**self.bound, **graph.bound}
        sizes = tuple(_sizes_in(leaves, body, known).items())
        programs = {id(weight.program) for weight in weights.values()}
        made = Graph(tuple(leaves), tuple(body), graph.outputs, sizes)
        found = inlined(made, lambda call: id(call.graph) in programs)
        known |= found.bound
        return replace(found, sizes=tuple(_sizes_in(found.leaves, found.body, known).items()))

    def _call(self, graph: Graph, call: Apply, weights: Mapping[str, Weight]) -> Apply:
        """A call whose block has weights inserted. Tensors that they read from outside become operands of the call."""
        own = {call.scoped(leaf.name): leaf.name for leaf in call.graph.leaves if leaf.kind != "input"}
        inside = {own[name]: weight for name, weight in weights.items() if name in own}
        if not inside:
            return call
        known, taken, handed = dict(own), set(call.graph.named), list[Leaf]()
        for name in dict.fromkeys(name for weight in inside.values() for name in weight.operands):
            if name not in known:
                known[name] = fresh(name.rpartition(".")[2], taken)
                taken.add(known[name])
                handed.append(Leaf(known[name], "input", self._dims(graph.named[name])))
        # inputs stand first, as they do in the head of a block
        leaves = sorted((*call.graph.leaves, *handed), key=lambda leaf: leaf.kind != "input")
        block = replace(call.graph, leaves=tuple(leaves))
        moved = {
            name: replace(weight, operands=tuple(known[each] for each in weight.operands))
            for name, weight in inside.items()
        }
        more = tuple(name for name in known if name not in own)
        return replace(call, graph=self.of(block, moved), operands=(*call.operands, *more))

    def _dims(self, dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Dimensions with known sizes as integers: a block may use the same names for other sizes."""
        return tuple(tuple(Axis(axis.name, evaluate(axis.size, self.bound)) for axis in dim) for dim in dims)


@dataclass(frozen=True)
class Replacement:
    """The replacement of a weight.

    Attributes:
        path: the name of the weight, which is also the name of the computed tensor.
        leaf: the original weight.
        program: the equations that compute it. Its leaves are those of the whole graph, by their full names,
            and its one output is the weight.
    """

    path: str
    leaf: Leaf
    program: Graph

    @property
    def kept(self) -> str | None:
        """The leaf of the program that holds the original weight, if the equations read it: `W.base`."""
        name = f"{self.path}.{KEPT}"
        return name if any(leaf.name == name for leaf in self.program.leaves) else None


def replaced(graph: Graph, substituted: Graph) -> tuple[Replacement, ...]:
    """The parameters of a graph that another graph computes, with the equations that compute them there.

    Args:
        graph: a layer or a model.
        substituted: the same graph with equations instead of some parameters; see `substitute`.

    Example:
        >>> import tensornet as tn
        >>> dense = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x")
        >>> low = tn.layer("W[o,i] = A[o,r] * B[r,i]\\ny[b,o] = x[b,i] * W[o,i]", inputs="x")
        >>> (found,) = replaced(dense, low)
        >>> print(found.path, [leaf.name for leaf in found.program.parameters], found.program.equations[0])
        W ['A', 'B'] W[o,i] = A[o,r] * B[r,i]

    Raises:
        EquationError: there are none.
    """
    known = {leaf.name for leaf in substituted.leaves}
    computed = {equation.name for equation in substituted.equations}
    gone = [leaf for leaf in graph.parameters if leaf.name not in known and leaf.name in computed]
    if not gone:
        fix = "give the graph as it was before, and then what tensornet.substitute made of it"
        raise EquationError("no parameter of the one graph is computed in the other", fix=fix)
    return tuple(Replacement(leaf.name, leaf, computing(substituted.flat, leaf.name)) for leaf in gone)


def computing(flat: Graph, *names: str) -> Graph:
    """The part of a graph without calls that computes some of its tensors."""
    pruned = eliminate_dead_code(replace(flat, outputs=names))
    needed = pruned.needed()
    leaves = tuple(leaf for leaf in pruned.leaves if leaf.name in needed)
    return replace(pruned, leaves=leaves, sizes=tuple(_sizes_in(leaves, pruned.own, flat.bound).items()))


def _sizes_in(
    leaves: Iterable[Leaf], body: Iterable[Equation | Apply], known: Mapping[str, Any]
) -> dict[str, Any]:
    """The known sizes that leaves and body mention, with those in their formulas: a text has no others."""
    names = {name for leaf in leaves for dim in leaf.dims for axis in dim for name in size_names(axis.size)}
    for item in body:
        if isinstance(item, Apply):
            names.update(item.graph.bound)
        else:  # and sizes of axes that no tensor gives
            names.update(spoken_sizes(item), sized_by_name(item.right))
    while more := {each for name in names if name in known for each in size_names(known[name])} - names:
        names |= more
    return {name: size for name, size in known.items() if name in names}


@of_graph
def freeze(graph: Graph, params: Mapping[str, Any], names: str | Sequence[str] = "*") -> Graph:
    """Turns parameters into constants with the values in `params`. The others stay parameters.

    Tensors that depend on constants alone are computed once, on the device of the graph. So the factors of a frozen
    weight are multiplied together, in part or in full, if that makes a call faster. For example, y = x·A·B becomes
    y = x·W with W = A·B, or stays as it is, whichever is faster at the batch size of the call.

    Args:
        graph: a layer or a model.
        params: name to array of any library. Parameters that are not frozen may be included.
        names: the scoped names of the parameters to freeze, as `"encoder.* head.W"` or a list. They are
            patterns of `fnmatch`: `*` matches anything, including dots. All parameters by default.

    Raises:
        EquationError: a name or a pattern matches no parameter.
        ShapeError: an array is missing, or its shape does not match the graph.
        DtypeError: an array is not numeric.

    Example:
        >>> import numpy as np, tensornet as tn
        >>> layer = tn.layer("y[b,o] = x[b,i] * A[i,r] * B[r,o] + u[o]", inputs="x")
        >>> frozen = tn.freeze(layer, {"A": np.ones((3, 1)), "B": np.ones((1, 2))}, names="A B")
        >>> [leaf.name for leaf in frozen.parameters], [leaf.name for leaf in frozen.constants]
        (['u'], ['A', 'B'])
    """
    known = [leaf.name for leaf in graph.parameters]
    params = by_name(params, "the parameters", '{"W": array}')
    chosen = told_by(names, known, "parameter of this graph", "parameters")
    missing = [name for name in chosen if name not in params]
    if missing:
        raise ShapeError(
            f"the parameter '{missing[0]}' is missing",
            fix=f"give it in params, or freeze {_others(known, missing)}",
        )
    values = {name: Constant.of(params[name], f"the parameter '{name}'") for name in chosen}
    leaves = [leaf for leaf in graph.parameters if leaf.name in values]
    sizes = sizes_from_shapes(graph, leaves, [values[leaf.name].shape for leaf in leaves])
    return _holding(graph.bind(**sizes) if sizes else graph, values)


def unfrozen(graph: Graph, names: Sequence[str]) -> Graph:
    """The graph with some constants as parameters again."""
    return _holding(graph, dict.fromkeys(names)) if names else graph


def _others(known: Sequence[str], missing: Sequence[str]) -> str:
    rest = [name for name in known if name not in missing]
    return f"names='{' '.join(rest[:6])}'" if rest else "others"


def _holding(graph: Graph, values: Mapping[str, Constant | None]) -> Graph:
    """The graph, and the blocks that it calls, with constants instead of parameters; without values the reverse."""
    leaves = tuple(
        replace(
            leaf, kind="constant" if values[leaf.name] else "parameter", start=None, value=values[leaf.name]
        )
        if leaf.kind != "input" and leaf.name in values
        else leaf
        for leaf in graph.leaves
    )
    body = tuple(item if isinstance(item, Equation) else _call(item, values) for item in graph.body)
    return graph if leaves == graph.leaves else replace(graph, leaves=leaves, body=body)


def _call(call: Apply, values: Mapping[str, Constant | None]) -> Apply:
    names = {leaf.name: call.scoped(leaf.name) for leaf in call.graph.leaves if leaf.kind != "input"}
    own = {name: values[outer] for name, outer in names.items() if outer in values}
    return replace(call, graph=_holding(call.graph, own))
