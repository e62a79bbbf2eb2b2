"""Horizontal fusion: products of one tensor with several weights as one product.

Biases go along. What stands one after another in `AB` is put together once; weights that may change at each call
would have to be put together at each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from ..graph.graph import Graph
from ..language.equation import Equation
from ..language.expression import Call, Contraction, Expression, Literal, Ref, axes_of_index, fresh, sum_of
from ..ops.structure import CONCAT, PAD
from ..sizes import evaluate, product, symbol
from .rewriter import Change, Cost, Draft

__all__ = ["fuse_horizontally"]


def fuse_horizontally(graph: Graph, cost: Cost) -> Graph:
    """Multiplies a tensor by several constants at once, where `cost` says that pays."""
    draft = Draft(graph)
    constants = {leaf.name for leaf in graph.constants}
    groups: dict[tuple[object, ...], list[_Product]] = defaultdict(list)
    for equation in graph.own:
        found = _product(draft, equation, constants)
        if found is not None:
            groups[found.fits].append(found)
    for products in groups.values():
        if len(products) > 1:
            change = _joined(draft, products)
            before, after = (
                cost(_with_readers(draft, change, each)) for each in (change.replaced, change.made)
            )
            if after < before:
                draft.take(change)
    return draft.finished()


def _with_readers(draft: Draft, change: Change, equations: tuple[Equation, ...]) -> Graph:
    """Some equations and what reads the results of a change, which decides how these had best lie."""
    made = change.asked
    reading = {reader.name for name in made for reader in draft.readers(name)}.difference(made)
    readers = tuple(draft[each.name] for each in draft.graph.own if each.name in reading)
    last = [name for name in made if name in draft.graph.outputs or not draft.readers(name)]
    return draft.part((*equations, *readers), (*last, *(each.name for each in readers)))


@dataclass(frozen=True)
class _Product:
    """An equation that says a tensor times a factor, and a bias or none.

    Attributes:
        equation: the equation.
        operand, factor, bias: what it reads.
        summed: the axes summed over, in the order of the operand.
        columns: the other axes of the factor, in its order.
        length: their positions.
    """

    equation: Equation
    operand: Ref
    factor: Ref
    bias: Ref | None
    summed: tuple[str, ...]
    columns: tuple[str, ...]
    length: int

    @property
    def fits(self) -> tuple[object, ...]:
        """What products have alike that can be one."""
        places = tuple(self.operand.index.index(axis) for axis in self.summed)
        return self.operand.name, places, self.bias is None

    @property
    def kept(self) -> tuple[str, ...]:
        """The axes of the operand that stay."""
        return tuple(axis for axis in axes_of_index(self.operand.index) if axis not in self.summed)


def _product(draft: Draft, equation: Equation, constants: Collection[str]) -> _Product | None:
    """The product that an equation says, if it is one with a constant."""
    match equation.right:
        case Contraction((Ref() as one, Ref() as two), summed):
            bias = None
        case Call("add", (Contraction((Ref() as one, Ref() as two), summed), Ref() as bias)):
            pass
        case Call("add", (Ref() as bias, Contraction((Ref() as one, Ref() as two), summed))):
            pass
        case _:
            return None
    operand, factor = (two, one) if one.name in constants else (one, two)
    at_hand = [each for each in (factor, bias) if each is not None]
    if operand.name in constants or not all(each.name in constants and _is_plain(each) for each in at_hand):
        return None
    if not _is_plain(operand) or not all(isinstance(entry, str) for entry in operand.index):
        return None
    given, own = axes_of_index(operand.index), axes_of_index(factor.index)
    columns = tuple(axis for axis in own if axis not in summed)
    if not columns or set(given) & set(own) != set(summed) or set(given) & set(columns):
        return None
    if bias is not None and set(axes_of_index(bias.index)) != set(columns):
        return None
    inside, bound = draft.scope(equation.right), draft.graph.bound
    sizes = [evaluate(inside[axis], bound) for axis in columns]
    by_name = [evaluate(symbol(axis), bound) for axis in columns]
    if not all(isinstance(size, int) and size for size in sizes) or (len(sizes) > 1 and sizes != by_name):
        return None
    if not all(draft.stands_alone(each, inside) for each in at_hand):
        return None
    ordered = tuple(axis for axis in given if axis in summed)
    return _Product(equation, operand, factor, bias, ordered, columns, int(product(sizes)))


def _is_plain(ref: Ref) -> bool:
    """Whether a tensor is read under axis names alone, each once."""
    names = [name for entry in ref.index for name in ((entry,) if not isinstance(entry, tuple) else entry)]
    return all(isinstance(name, str) for name in names) and len(set(names)) == len(names)


def _joined(draft: Draft, products: Sequence[_Product]) -> Change:
    """One product in the place of several, each of which becomes a part of it."""
    first = products[0]
    names = [each.equation.name for each in products]
    name = draft.fresh("_".join([names[0], *(each.rpartition(".")[2] for each in names[1:])]))
    taken = {name, *axes_of_index(first.operand.index)}
    axis = fresh("n", {*taken, *draft.dims, *draft.graph.bound, *draft.graph.open_sizes})
    made: list[Equation] = []

    def put_together(stem: str, parts: Sequence[tuple[_Product, Ref]], summed: tuple[str, ...]) -> Ref:
        """Factors or biases one after another, each with its columns as one axis."""
        arguments: list[Expression] = []
        for each, ref in parts:
            inner = each.summed if summed else ()
            left = (_entry(each.columns), *inner)
            if ref.index != left:
                made.append(Equation(draft.fresh(f"{ref.name}_flat", taken), left, ref))
                ref = Ref(made[-1].name, left)
                taken.add(ref.name)
            arguments.append(Ref(ref.name, (axis, *summed)))
        whole = Call(CONCAT.name, tuple(arguments), (axis,))
        made.append(Equation(draft.fresh(f"{name}_{stem}", taken), (axis, *summed), whole))
        taken.add(made[-1].name)
        return Ref(made[-1].name, (axis, *summed))

    factor = put_together("factor", [(each, each.factor) for each in products], first.summed)
    terms: list[Expression] = [Contraction((first.operand, factor), tuple(sorted(first.summed)))]
    biases = [(each, each.bias) for each in products if each.bias is not None]
    if biases:
        terms.append(put_together("bias", biases, ()))
    whole = Equation(name, (*first.kept, axis), sum_of(terms), first.equation.place)
    parts = tuple(_parts(draft, products, whole, axis, taken))
    return Change((*made, whole, *parts), tuple(each.equation for each in products))


def _parts(
    draft: Draft, products: Sequence[_Product], whole: Equation, axis: str, taken: set[str]
) -> Iterator[Equation]:
    """What each of the products is of the whole."""
    total, start = sum(each.length for each in products), 0
    for each in products:
        amounts = (Literal(-start), Literal(start + each.length - total))
        cut = Call(PAD.name, (Ref(whole.name, whole.left),), (), ((axis, amounts),))
        part = Equation(draft.fresh(f"{each.equation.name}_part", taken), whole.left, cut)
        taken.add(part.name)
        yield part
        yield replace(each.equation, right=Ref(part.name, (*each.kept, _entry(each.columns))))
        start += each.length


def _entry(axes: tuple[str, ...]) -> str | tuple[str, ...]:
    return axes[0] if len(axes) == 1 else axes
