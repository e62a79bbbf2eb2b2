"""Slicing and tiling: parts of a graph computed in pieces along an axis, to fit a memory limit, or the cache.

A part can be cut along an axis if each position is computed independently. Nothing in the part may sum over the
axis, run a function along it, look it up, or use its positions or its size. Where no cut suffices, positions and second
reads of a tensor become tensors of their own:

    a[i,j] = softmax[j](where(index(i) >= index(j), x[i,c] * x[j,c], -inf))      no cut along i
    a[i,j] = softmax[j](where(at[i] >= at[j], x_1[i,c] * x_2[j,c], -inf))        cuts at[i] and x_1
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ..graph.graph import Apply, Graph
from ..graph.leaves import Leaf
from ..graph.shape_inference import Dim, index_of
from ..language.equation import Equation
from ..language.expression import Call, Contraction, Expression, Ref, Size, Taken, axes_through, fresh
from ..ops.record import axes_in, names_in
from ..ops.structure import INDEX
from ..sizes import name_of, symbol
from .plans import Slicing

Place = tuple[int, int]
"""A dimension of a tensor, and an axis among those that the dimension is composed of."""


@dataclass(frozen=True)
class Part:
    """Equations that are computed piece by piece along an axis.

    Attributes:
        graph: the whole graph, with a call in place of the equations.
        call: that call.
        slicing: along which axis and dimensions; the length and the number of pieces are 0 until they are chosen.
    """

    graph: Graph
    call: Apply
    slicing: Slicing


def cuttable(graph: Graph, wanted: frozenset[str], apart: frozenset[Apply]) -> Iterator[Part]:
    """The parts of a graph that can be cut, each as large as possible, the largest first.

    Args:
        graph: the graph.
        wanted: tensors. A part is useful only if it computes one of them.
        apart: calls that cannot be in a part: those of blocks that run on their own, and those already cut.
    """
    cuts = [_cut(graph, size, frozenset({(name, at)}), apart) for name, at, size in _starts(graph)]
    taken = list[tuple[str, frozenset[str]]]()
    for cut in sorted(cuts, key=lambda cut: -len(cut.inside)):
        if wanted.isdisjoint(cut.made) or any(cut.size == size and cut.made <= made for size, made in taken):
            continue
        part = cut.part()
        if part is not None:
            taken.append((cut.size, cut.made))
            yield part


def separated(graph: Graph, apart: frozenset[Apply] = frozenset()) -> Graph:
    """The graph with a tensor for the positions along an axis, and for each way in which an equation reads a tensor.

    Args:
        graph: the graph.
        apart: calls that stay as they are.
    """
    if graph.reads_below:
        return graph
    body, taken = list[Equation | Apply](), Taken({*graph.named, *graph.bound, *graph.open_sizes})
    for item in graph.body:
        if isinstance(item, Apply):
            stays = item in apart or item.along is not None
            body.append(item if stays else replace(item, graph=separated(item.graph)))
        else:
            body += _separated(graph, item, taken)
    return graph if tuple(body) == graph.body else replace(graph, body=tuple(body))


def _separated(graph: Graph, equation: Equation, taken: Taken) -> Iterator[Equation]:
    """The equations of the new tensors that an equation reads, and the equation itself."""
    scope, parts = graph.scope(equation), [part for part in equation.parts if not _is_index(part)]
    plain = {axis for axis in equation.kept if not any(_binds(part, axis) for part in parts)}
    ways = Counter(name for name, _ in {(ref.name, ref.index) for ref in equation.references})
    made = list[Equation]()

    def visit(part: Expression) -> Expression:
        match part:
            case Call(INDEX.name, (), (axis,)) if (
                axis in plain and (size := name_of(scope[axis])) is not None
            ):
                made.append(Equation(taken.fresh("at"), (size,), Call(INDEX.name, (), (size,))))
                return Ref(made[-1].name, (axis,))
            case Ref(name) if ways[name] > 1:
                own = Taken()
                dims = (
                    tuple(replace(axis, name=own.fresh(axis.name)) for axis in dim)
                    for dim in graph.named[name]
                )
                left = index_of(tuple(dims))
                made.append(Equation(taken.numbered(name), left, Ref(name, left)))
                return replace(part, name=made[-1].name)
        return part

    right = equation.right.rewrite(visit)
    yield from made
    yield replace(equation, right=right)


def _is_index(part: Expression) -> bool:
    """Whether a part of an expression is the positions along an axis."""
    return isinstance(part, Call) and part.function == INDEX.name


def _starts(graph: Graph) -> Iterator[tuple[str, int, str]]:
    """The tensors where a cut may start, each with a dimension and the name of its size."""
    held = {leaf.name for leaf in graph.leaves if leaf.kind != "input"}
    for name, dims in graph.named.items():
        for at, dim in enumerate(() if name in held else dims):
            if len(dim) == 1 and (size := name_of(dim[0].size)) is not None:
                yield name, at, size


@functools.lru_cache(maxsize=4096)  # a block is called many times
def _cut(
    graph: Graph, size: str, start: frozenset[tuple[str, int]], apart: frozenset[Apply] = frozenset()
) -> _Cut:
    return _Cut(graph, size, dict(start), apart)


@dataclass
class _Cut:
    """The equations that can be cut along an axis, starting from a given tensor.

    Attributes:
        graph: the whole graph.
        size: the name of the size of the axis.
        cut: the tensors from outside that are cut, each with the dimension.
        apart: calls that cannot be cut here.
        along: the place of the axis in each tensor computed inside.
        whole: the tensors from outside that are read as a whole.
        again: results of blocks that do not depend on the axis, and are computed again for each piece.
        after: the tensors computed from results by equations that cannot be cut.
        inside: the equations and calls that are cut.
        blocks: the cut inside each of those calls.
    """

    graph: Graph
    size: str
    cut: dict[str, int]
    apart: frozenset[Apply] = frozenset()
    along: dict[str, Place] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)
    again: set[str] = field(default_factory=set)
    after: set[str] = field(default_factory=set)
    inside: list[Equation | Apply] = field(default_factory=list)
    blocks: dict[Apply, _Cut] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for item, read in _reading(self.graph):
            if not any(name in self.cut or name in self.along or name in self.after for name in read):
                continue
            taken = self._take_call if isinstance(item, Apply) else self._take
            if not self.after.isdisjoint(read) or not taken(item):  # type: ignore[arg-type]
                self.after.update(item.defines)

    @functools.cached_property
    def made(self) -> frozenset[str]:
        """The tensors that the cut equations and calls compute."""
        return frozenset(name for item in self.inside for name in item.defines)

    def _take_call(self, call: Apply) -> bool:
        """Adds a call to the part if its whole block can be cut. Whether it was added."""
        if call in self.apart or call.along is not None:
            return False
        names = call.names()
        places = {
            leaf: self._place(name) for leaf, name in names.items() if name in self.cut or name in self.along
        }
        if None in places.values():
            return False
        start = frozenset((leaf, at) for leaf, at in places.items() if at is not None)
        inside = _cut(call.graph, self.size, start)
        if not inside.cut.keys() <= names.keys():  # another operand must be cut, too
            inside = _cut(call.graph, self.size, start.union(self._alike(call, places)))
        if inside.after or not inside.cut.keys() <= names.keys():  # a block can cut only its leaves
            return False
        more = {names[leaf]: at for leaf, at in inside.cut.items() if leaf not in places}
        whole = {names[leaf] for leaf in inside.whole if leaf in names}
        outputs = dict(zip(call.results, call.graph.outputs, strict=True))
        if inside.cut.keys() & set(outputs.values()) or whole & (self.cut.keys() | self.along.keys()):
            return False
        if (self.whole | whole | self.again) & more.keys():
            return False
        self.whole |= whole
        self.cut |= more
        self.along |= {name: inside.along[each] for name, each in outputs.items() if each in inside.along}
        self.again |= outputs.keys() - self.along.keys()
        self.inside.append(call)
        self.blocks[call] = inside
        return True

    def _alike(self, call: Apply, places: Mapping[str, object]) -> Iterator[tuple[str, int]]:
        """The other operands of a call with exactly one dimension of the size, each with that dimension."""
        for leaf, name in zip(call.graph.inputs, call.operands, strict=True):
            at = [n for n, dim in enumerate(leaf.dims) if len(dim) == 1 and dim[0].size == symbol(self.size)]
            if len(at) == 1 and leaf.name not in places and name not in self.whole:
                yield leaf.name, at[0]

    def _place(self, name: str) -> int | None:
        """The dimension along which a tensor is cut. None if the dimension has other axes as well."""
        at = self.along[name][0] if name in self.along else self.cut[name]
        return at if len(self.graph.named[name][at]) == 1 else None

    def _take(self, equation: Equation) -> bool:
        """Adds an equation to the part if its positions along the axis are independent. Whether it was added."""
        refs = list(equation.references)
        labels = {self._label(ref) for ref in refs if ref.name in self.cut or ref.name in self.along}
        if len(labels) != 1 or None in labels:
            return False
        (label,) = labels
        assert label is not None
        flat = equation.kept
        if flat.count(label) != 1 or any(_binds(part, label) for part in equation.parts):
            return False
        others = [ref for ref in refs if ref.name not in self.cut and ref.name not in self.along]
        whole = {ref.name for ref in others if label not in _own(ref)}
        placed = {(ref.name, self._dimension(ref, label)) for ref in others if label in _own(ref)}
        more = {name: at for name, at in placed if at is not None}
        if len(more) < len(placed) or (self.whole | whole | self.again) & more.keys():  # read in two ways
            return False
        self.whole |= whole
        self.cut |= more
        entries = [*map(names_in, equation.left)]
        at = next(n for n, entry in enumerate(entries) if label in entry)
        self.along[equation.name] = (at, entries[at].index(label))
        self.inside.append(equation)
        return True

    def _label(self, ref: Ref) -> str | None:
        """The name of the axis in a reference. None if the reference does not read the axis as such, exactly once."""
        at, component = self.along.get(ref.name, (self.cut.get(ref.name, 0), 0))
        entry, dim = ref.index[at], self.graph.named[ref.name][at]
        if isinstance(entry, str) and len(dim) == 1:
            found: str | None = entry
        elif isinstance(entry, tuple) and len(entry) == len(dim) > 1:
            found = entry[component]
        else:
            found = None
        return found if _own(ref).count(found or "") == 1 else None

    def _dimension(self, ref: Ref, label: str) -> int | None:
        """The dimension along which another tensor can be cut as well. None if there is none."""
        if ref.index.count(label) != 1 or _own(ref).count(label) != 1:
            return None
        at = ref.index.index(label)
        return at if len(self.graph.named[ref.name][at]) == 1 else None

    def part(self) -> Part | None:
        """The graph with a call in place of the equations. None if the pieces of a result cannot be concatenated."""
        graph, made = self.graph, self.made
        read = {name for item, names in _reading(graph) if made.isdisjoint(item.defines) for name in names}
        read |= set(graph.outputs)
        results = tuple(name for item in self.inside for name in item.defines if name in read)
        if any(name in self.again or len(graph.named[name][self.along[name][0]]) != 1 for name in results):
            return None
        size = fresh("piece", {*graph.bound, *graph.open_sizes})
        operands, leaves = self._leaves(size)
        body = tuple(self._in_pieces(item, size) for item in self.inside)
        call = Apply(Graph(leaves, body, results, graph.sizes), operands, results, "")
        known = (*graph.sizes, (size, symbol(self.size)))
        before = [
            item for item in graph.body if not made & set(item.defines) and not self.after & set(item.defines)
        ]
        after = [item for item in graph.body if self.after & set(item.defines)]
        return Part(
            replace(graph, body=(*before, call, *after), sizes=known),
            call,
            Slicing(
                self.size,
                size,
                0,
                0,
                tuple(self.cut.get(name) for name in operands),
                tuple(self.along[name][0] for name in results),
            ),
        )

    def _leaves(self, size: str) -> tuple[tuple[str, ...], tuple[Leaf, ...]]:
        """The operands of the call, and the leaves of its graph: pieces of these, parameters and constants."""
        used = dict.fromkeys(
            name
            for item, names in _reading(self.graph)
            if not self.made.isdisjoint(item.defines)
            for name in names
            if name not in self.made
        )
        leaves = (leaf for leaf in self.graph.leaves if leaf.kind != "input" and leaf.name not in self.cut)
        held = {leaf.name: leaf for leaf in leaves if leaf.name in used}
        operands = tuple(name for name in used if name not in held)
        return operands, (
            *(Leaf(name, "input", self._pieces(name, size)) for name in operands),
            *held.values(),
        )

    def _in_pieces(self, item: Equation | Apply, size: str) -> Equation | Apply:
        """A call that is cut, with the sizes of a piece in its block; any other item as it is."""
        if not isinstance(item, Apply) or item not in self.blocks:
            return item
        inside = self.blocks[item]
        leaves = tuple(replace(leaf, dims=inside._pieces(leaf.name, size)) for leaf in item.graph.leaves)
        body = tuple(inside._in_pieces(each, size) for each in item.graph.body)
        return replace(item, graph=replace(item.graph, leaves=leaves, body=body))

    def _pieces(self, name: str, size: str) -> tuple[Dim, ...]:
        """The dimensions of a piece of a tensor, or of the whole tensor if it is not cut."""
        dims = list(self.graph.named[name])
        if name in self.cut:
            (axis,) = dims[self.cut[name]]
            dims[self.cut[name]] = (replace(axis, size=symbol(size)),)
        return tuple(dims)


@functools.lru_cache(maxsize=1024)
def _reading(graph: Graph) -> tuple[tuple[Equation | Apply, tuple[str, ...]], ...]:
    """Each equation and call of a graph, with the tensors that it reads."""
    return tuple((item, tuple(dict.fromkeys(item.reads))) for item in graph.body)


def _own(ref: Ref) -> list[str]:
    """The axes that a reference reads a tensor with, without those of tensors in its index."""
    return axes_in(entry for entry in ref.index if isinstance(entry, str | tuple))


def _binds(part: object, label: str) -> bool:
    """Whether a part of an expression combines positions along an axis, or uses its size."""
    match part:
        case Contraction(_, summed):
            return label in summed
        case Size(axis):
            return axis == label
        case Call():
            return label in axes_through(part)
    return False
