"""Graph to Graph: the same mathematics in a form that leaves the planner more choice.

Each rewrite is a pure function. The result is a new Graph, so it has been validated again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from ..language.equation import Equation
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Ref,
    Size,
    axes_of_index,
    contraction,
    free_axes,
    fresh,
    is_scalar,
    occurring,
    references,
    rename,
    rename_tensors,
    subexpressions,
    sum_of,
    transform,
)
from ..operations.functions import FUNCTIONS
from ..sizes import evaluate, size_names, symbol
from .apply import Apply
from .graph import Graph
from .leaves import Leaf
from .shape import Scope, scope_of, size_expression

__all__ = ["between_calls", "distribute", "fuse", "prune", "share", "simplify"]


def simplify(graph: Graph) -> Graph:
    """Every rewrite that always pays: prune, share, fuse."""
    return prune(fuse(share(prune(graph))))


def prune(graph: Graph) -> Graph:
    """Drops what no output needs: equations, calls, and results of calls; leaves stay, so that signatures do."""
    needed = graph.needed()
    kept = tuple(_needed_of(item, needed) for item in graph.body if needed.intersection(item.defines))
    return graph if kept == graph.body else replace(graph, body=kept)


def _needed_of(item: Equation | Apply, needed: frozenset[str]) -> Equation | Apply:
    """What an equation or a call defines that is needed."""
    if isinstance(item, Equation) or needed.issuperset(item.results):
        return item
    pairs = zip(item.graph.outputs, item.results, strict=True)
    outputs, results = zip(*(pair for pair in pairs if pair[1] in needed), strict=True)
    return replace(item, graph=prune(replace(item.graph, outputs=outputs)), results=results)


def between_calls(graph: Graph, change: Callable[[Graph], Graph]) -> Graph:
    """A rewrite of the equations of the graph itself; its calls stay as they are."""
    if not graph.calls:
        return change(graph)
    asked = dict.fromkeys((*graph.outputs, *(name for call in graph.calls for name in call.operands)))
    made = {equation.name for equation in graph.own}
    outputs = tuple(name for name in asked if name in made)
    if not outputs:
        return replace(graph, body=graph.calls)
    given = tuple(Leaf(name, "input", graph.named[name]) for call in graph.calls for name in call.results)
    changed = change(Graph((*graph.leaves, *given), graph.own, outputs, graph.sizes))
    return replace(graph, body=tuple(_in_order(changed.own, graph.calls)))


def _in_order(equations: Iterable[Equation], calls: Iterable[Apply]) -> Iterator[Equation | Apply]:
    """Equations and calls, both in their order, each call before what reads its results."""
    waiting = list(calls)
    for equation in equations:
        read = {ref.name for ref in references(equation.right)}
        while any(read.intersection(call.results) for call in waiting):
            yield waiting.pop(0)
        yield equation
    yield from waiting


class Draft:
    """The equations of a graph while some are rewritten: who reads what, kept up at each change.

    A rewrite changes how a tensor is computed, never its dimensions; so those of the graph hold
    throughout, and only an equation that changes has to be looked at again.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._equations: dict[str, Equation] = {}
        self._readers: dict[str, Counter[str]] = defaultdict(Counter)
        for equation in graph.equations:
            self._add(equation)

    def __contains__(self, name: str) -> bool:
        return name in self._equations

    def __getitem__(self, name: str) -> Equation:
        return self._equations[name]

    def only_reader(self, name: str) -> Equation | None:
        """The equation that reads a tensor, if it alone does, once, and no caller wants it."""
        readers = self._readers[name]
        if name in self.graph.outputs or readers.total() != 1:
            return None
        return self._equations[next(iter(readers.elements()))]

    def put(self, equation: Equation) -> None:
        """Another equation in the place of the one of its name; what nothing reads any more goes."""
        former = self._equations[equation.name]
        self._add(equation)
        self._forget(former)

    def part(self, *equations: Equation) -> Graph:
        """Some equations, present or proposed, as a graph by themselves: what they read is given."""
        made = {equation.name for equation in equations}
        read = dict.fromkeys(ref.name for each in equations for ref in references(each.right))
        leaves = tuple(Leaf(name, "input", self.graph.dims[name]) for name in read if name not in made)
        return Graph(leaves, equations, (equations[-1].name,), self.graph.sizes)

    def finished(self) -> Graph:
        """The graph of what stands now, checked again as a whole."""
        equations = tuple(self._equations.values())
        return self.graph if equations == self.graph.equations else replace(self.graph, body=equations)

    def _add(self, equation: Equation) -> None:
        self._equations[equation.name] = equation
        for ref in references(equation.right):
            self._readers[ref.name][equation.name] += 1

    def _forget(self, equation: Equation) -> None:
        for ref in references(equation.right):
            readers = self._readers[ref.name]
            readers[equation.name] -= 1
            if not readers.total() and ref.name in self and ref.name not in self.graph.outputs:
                self._forget(self._equations.pop(ref.name))


# ---------------------------------------------------------------------------- sharing


def share(graph: Graph) -> Graph:
    """Computes once what occurs twice: equal equations merge, equal subexpressions get a name."""
    graph = _merge(graph)
    counts: Counter[Expression] = Counter()
    for equation in graph.equations:
        for part in _shareable(equation.right):
            counts[_canonical(part)[0]] += 1
    repeated = {form for form, count in counts.items() if count > 1}
    if not repeated:
        return graph
    return _merge(_hoist(graph, repeated))


def _shareable(expression: Expression) -> Iterator[Expression]:
    """The parts worth a name: calls and sums over something, not products of whole equations."""
    for part in subexpressions(expression):
        if part is expression or not isinstance(part, Call | Contraction) or is_scalar(part):
            continue
        if not _depends_on_place(part) and not _is_random(part):
            yield part


def _is_random(expression: Expression) -> bool:
    return any(
        isinstance(part, Call) and FUNCTIONS[part.function].random for part in subexpressions(expression)
    )


def _depends_on_place(expression: Expression) -> bool:
    """Whether sizes of the surrounding equation show in the value."""
    return any(
        isinstance(part, Size) or (isinstance(part, Call) and FUNCTIONS[part.function].tells_sizes)
        for part in subexpressions(expression)
    )


def _canonical(expression: Expression) -> tuple[Expression, dict[str, str]]:
    """The expression with its free axes renamed by order, and the renaming."""
    names = {axis: f"#{position}" for position, axis in enumerate(free_axes(expression))}
    return rename(expression, names), names


def _hoist(graph: Graph, repeated: set[Expression]) -> Graph:
    equations: list[Equation] = []
    named: dict[Expression, str] = {}
    taken = set(graph.dims)

    def visit(part: Expression) -> Expression:
        form, names = _canonical(part) if isinstance(part, Call | Contraction) else (part, {})
        if form not in repeated:
            return transform(part, visit)
        if form not in named:
            named[form] = fresh("shared", taken)
            taken.add(named[form])
            equations.append(Equation(named[form], tuple(names), transform(part, visit), part.place))
        return Ref(named[form], tuple(names), part.place)

    for equation in graph.equations:
        right = transform(equation.right, visit)
        equations.append(replace(equation, right=right))
    return replace(graph, body=tuple(equations))


def _merge(graph: Graph) -> Graph:
    """Of equations that say the same, keeps the first."""
    seen: dict[tuple[object, ...], str] = {}
    renamed: dict[str, str] = {}
    kept: list[Equation] = []
    for equation in graph.equations:
        equation = replace(equation, right=rename_tensors(equation.right, renamed))
        form, names = _canonical(equation.right)
        left = tuple(
            names[entry] if isinstance(entry, str) else tuple(names[axis] for axis in entry)
            for entry in equation.left
        )
        key = (left, form)
        random = _is_random(equation.right)
        if (
            key in seen
            and equation.name not in graph.outputs
            and not random
            and not _depends_on_place(equation.right)
        ):
            renamed[equation.name] = seen[key]
        else:
            seen.setdefault(key, equation.name)
            kept.append(equation)
    return replace(graph, body=tuple(kept)) if renamed else graph


# ---------------------------------------------------------------------------- fusion


def fuse(graph: Graph) -> Graph:
    """Puts a contraction that is read once, as a factor, into the contraction that reads it."""
    draft = Draft(graph)
    for name in [equation.name for equation in graph.equations]:
        producer, reader = draft[name], draft.only_reader(name)
        if reader is None or not isinstance(producer.right, Contraction | Ref):
            continue
        merged = inline(graph, reader, producer)
        if merged is not None:
            draft.put(merged)
    return draft.finished()


def inline(graph: Graph, reader: Equation, producer: Equation, *, sums: bool = False) -> Equation | None:
    """The reader with the producer's expression in place of its name, where it stands as a factor.

    Returns nothing where that cannot be written: inside a function, or split another way.
    """
    ref = _factor_named(reader.right, producer.name)
    if ref is None or any(isinstance(entry, int | Ref) for entry in ref.index):
        return None
    names: dict[str, str] = {}
    splits: dict[str, tuple[str, ...]] = {}
    outer = occurring(reader.right) | set(axes_of_index(reader.left))
    taken = outer | occurring(producer.right)
    sized = set(graph.bound)  # a new axis of such a name would have that size
    for made, read in zip(producer.left, ref.index, strict=True):
        match made, read:
            case str(), str():
                names[made] = read
            case str(), tuple():
                splits[made] = read
            case tuple(), tuple() if len(made) == len(read) and _same_parts(
                graph, reader, producer, made, read
            ):
                names.update(zip(made, read, strict=True))
            case tuple(), str():
                parts = []
                for axis in made:
                    parts.append(fresh(axis, taken | sized))
                    taken.add(parts[-1])
                    names[axis] = parts[-1]
                divided = split(reader, read, tuple(parts))
                if divided is None:
                    return None
                reader = divided
            case _:
                return None
    own = outer | (taken - occurring(producer.right))
    body = _moved(producer, names, splits, own, taken | sized, _sized_by_name(graph, producer))
    if body is None:
        return None
    renewed = _factor_named(reader.right, producer.name)
    assert renewed is not None
    return replace(reader, right=_substitute(reader.right, renewed, body, sums))


def _moved(
    producer: Equation,
    names: dict[str, str],
    splits: dict[str, tuple[str, ...]],
    outer: set[str],
    taken: set[str],
    fixed: set[str],
) -> Expression | None:
    """The producer's expression under the reader's axis names; its own sums give way to the reader's."""
    for axis, parts in splits.items():
        divided = split(producer, axis, parts)
        if divided is None:
            return None
        producer = divided
    right = producer.right
    inner = set(right.summed) if isinstance(right, Contraction) else set()
    whole = Contraction(right.factors, (), right.place) if isinstance(right, Contraction) else right
    targets = set(names.values()) | {axis for parts in splits.values() for axis in parts}
    moves = dict(names)
    for axis in sorted(inner):
        moves[axis] = fresh(axis, taken | targets) if axis in outer | targets else axis
        taken.add(moves[axis])
    if len(set(moves.values())) != len(moves):
        return None
    if any(axis in fixed and moves.get(axis, axis) != axis for axis in moves) or fixed & set(splits):
        return None
    renamed = rename(whole, moves)
    if inner and isinstance(renamed, Contraction):
        return Contraction(renamed.factors, tuple(sorted(moves[axis] for axis in inner)), renamed.place)
    return renamed


def _sized_by_name(graph: Graph, equation: Equation) -> set[str]:
    """The axes whose size only their name tells, as `h` in `x[(h,d)]`: they cannot be renamed."""
    right = equation.right
    whole = Contraction(right.factors) if isinstance(right, Contraction) else right
    sizes = scope_of(whole, graph.dims, graph.agree, graph.bound).sizes
    return occurring(whole) - set(sizes)


def _same_parts(
    graph: Graph, reader: Equation, producer: Equation, made: tuple[str, ...], read: tuple[str, ...]
) -> bool:
    outer, inner = graph.scope(reader), graph.scope(producer)
    return all(
        evaluate(outer[r], graph.bound) == evaluate(inner[m], graph.bound)
        for m, r in zip(made, read, strict=True)
    )


def _factor_named(expression: Expression, name: str) -> Ref | None:
    """The reference to `name` that stands as a factor of some contraction."""
    for part in subexpressions(expression):
        if isinstance(part, Contraction):
            for factor in part.factors:
                if isinstance(factor, Ref) and factor.name == name:
                    return factor
    return None


def _substitute(expression: Expression, ref: Ref, body: Expression, sums: bool) -> Expression:
    if isinstance(expression, Contraction) and ref in expression.factors:
        at = expression.factors.index(ref)
        plain = isinstance(body, Contraction) and not sums
        inserted = body.factors if plain and isinstance(body, Contraction) else (body,)
        summed = expression.summed + (body.summed if plain and isinstance(body, Contraction) else ())
        factors = expression.factors[:at] + inserted + expression.factors[at + 1 :]
        return contraction(factors, summed, expression.place)
    return transform(expression, lambda part: _substitute(part, ref, body, sums))


def split(equation: Equation, axis: str, parts: tuple[str, ...]) -> Equation | None:
    """The equation with one axis written as the composite of several, if only brackets name it."""
    right = equation.right
    for part in subexpressions(right):
        match part:
            case Size(name) if name == axis:
                return None
            case Call(_, _, axes, options) if axis in axes or axis in dict(options):
                return None
            case Ref(_, index) if len(axes_of_index(index)) != _length(index):
                return None
    left = tuple(_split_entry(entry, axis, parts) for entry in equation.left)
    return replace(equation, left=left, right=_split(right, axis, parts))


def _length(index: tuple[object, ...]) -> int:
    """How many axis names stand in brackets, repeats and gathers counted so that both differ."""
    return sum(
        len(entry) if isinstance(entry, tuple) else 0 if isinstance(entry, int) else 1 for entry in index
    )


def _split(expression: Expression, axis: str, parts: tuple[str, ...]) -> Expression:
    changed = transform(expression, lambda part: _split(part, axis, parts))
    match changed:
        case Ref(_, index):
            return replace(
                changed,
                index=tuple(
                    entry if isinstance(entry, int | Ref) else _split_entry(entry, axis, parts)
                    for entry in index
                ),
            )
        case Contraction(_, summed) if axis in summed:
            return replace(changed, summed=tuple(sorted({*summed, *parts} - {axis})))
    return changed


def _split_entry(entry: str | tuple[str, ...], axis: str, parts: tuple[str, ...]) -> str | tuple[str, ...]:
    if isinstance(entry, str):
        return parts if entry == axis else entry
    return tuple(name for each in entry for name in (parts if each == axis else (each,)))


# ---------------------------------------------------------------------------- distribution


def distribute(graph: Graph, cost: Callable[[Graph], float]) -> Graph:
    """Multiplies sums out, `(x·A + u)·B` into `x·A·B + u·B`, wherever `cost` says that pays.

    Args:
        graph: the graph.
        cost: the expected seconds of a graph; it is asked about a few equations at a time.
    """
    draft = Draft(graph)
    for name in [equation.name for equation in graph.equations]:
        if name not in draft:
            continue
        for candidate, replaced in _distributions(draft, draft[name]):
            if cost(draft.part(candidate)) < cost(draft.part(*replaced)):
                draft.put(candidate)
                break
    return draft.finished()


def _distributions(draft: Draft, reader: Equation) -> Iterator[tuple[Equation, tuple[Equation, ...]]]:
    """Ways to multiply a sum out in an equation, each with the equations it replaces."""
    if isinstance(reader.right, Contraction) and any(_is_sum(factor) for factor in reader.right.factors):
        changed = multiplied_out(draft.graph, reader)
        if changed is not None:
            yield changed, (reader,)
    for ref in references(reader.right):
        if ref.name not in draft or draft.only_reader(ref.name) is None:
            continue
        producer = draft[ref.name]
        if not _is_sum(producer.right):
            continue
        merged = inline(draft.graph, reader, producer, sums=True)
        if (
            merged is not None
            and isinstance(merged.right, Contraction)
            and any(map(_is_sum, merged.right.factors))
        ):
            changed = multiplied_out(draft.graph, merged)
            if changed is not None:
                yield changed, (producer, reader)


def _is_sum(expression: Expression) -> bool:
    return isinstance(expression, Call) and expression.function == "add"


def multiplied_out(graph: Graph, equation: Equation) -> Equation | None:
    """Takes the first sum among the factors of the right side apart, term by term.

    Returns nothing where a size that a term must count by has the name of another axis there.
    """
    product = equation.right
    assert isinstance(product, Contraction)
    at = next(position for position, factor in enumerate(product.factors) if _is_sum(factor))
    total = product.factors[at]
    assert isinstance(total, Call)
    inside = scope_of(replace(product, summed=()), graph.dims, graph.agree, graph.bound)
    spoken = {name for axis in product.summed for name in size_names(inside[axis])}
    if any(inside[name] != symbol(name) for name in spoken & occurring(product)):
        return None
    terms = [_term(product, at, term, inside) for term in total.arguments]
    return replace(equation, right=sum_of(terms, equation.place))


def _term(product: Contraction, at: int, term: Expression, sizes: Scope) -> Expression:
    """The product with one term in the place of the sum; an axis that it has no more counts by its size."""
    rest = product.factors[:at] + product.factors[at + 1 :]
    clash = (
        set(term.summed) & {a for f in rest for a in occurring(f)} if isinstance(term, Contraction) else set()
    )
    if isinstance(term, Contraction) and not clash and not set(term.summed) & set(product.summed):
        inserted, summed = term.factors, set(product.summed) | set(term.summed)
    else:
        inserted, summed = (term,), set(product.summed)
    factors = product.factors[:at] + inserted + product.factors[at + 1 :]
    present = {axis for factor in factors for axis in free_axes(factor)}
    absent = tuple(size_expression(sizes[axis]) for axis in sorted(summed - present))
    return contraction((*absent, *factors), tuple(summed & present), product.place)
