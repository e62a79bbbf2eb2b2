"""Names of axes that determine sizes: in a graph, such a name has one size throughout.

An axis is named after a dimension of its size that it runs along. If there is none, its name determines its size.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..graph.shape_inference import size_expression
from ..language import expression
from ..language.expression import ELLIPSIS, Expression
from ..sizes import floored, is_never_negative, name_of, put_in, size_names
from .equations import Naming, amounts_of, hints, is_in_window, size_of
from .names import Written
from .node import Affine, Node, Size

__all__ = ["SizeNames", "Sizes", "spoken_by"]


@dataclass(frozen=True)
class Sizes:
    """The names of axes, with their sizes.

    Attributes:
        known: the names that determine a size by themselves in a graph.
        made: the new names that were chosen to determine a size, in any graph.
        axes: all other names, in any graph.
    """

    known: dict[str, Size]
    made: dict[str, Size] = field(default_factory=dict)
    axes: dict[str, Size] = field(default_factory=dict)

    def name(self, size: Size, stem: str, used: Container[str], taken: Container[str]) -> str:
        """A name that determines a size and that the line does not use yet; a new name is not a tensor's."""
        found = {**self.made, **self.known}
        alike = [name for name, each in found.items() if each == size and name not in used]
        if alike:
            return min(alike, key=lambda name: (name != stem, name != name_of(size)))
        names = itertools.chain((stem,), (f"{stem}_{n}" for n in itertools.count(1)))
        free = (each for each in names if each not in found and each not in used and each not in taken)
        name = next(each for each in free if self.axes.get(each, size) == size)
        self.made[name] = size
        return name

    def fits(self, name: str, size: Size, same: Callable[[Size, Size], bool]) -> bool:
        """Whether an axis of this size may have a name: the name determines no other size."""
        return all(same(each.get(name, size), size) for each in (self.known, self.made))


class GraphNaming(Naming, Protocol):
    """The names of the parts of a graph; see `naming`."""

    bound: dict[str, Any]
    sizes: Sizes
    values: dict[str, int]
    reserved: set[str]
    written: Written


class SizeNames:
    """The names of the axes of one equation; see `equations.AxisNames`.

    Attributes:
        used: the names used so far.
    """

    def __init__(self, naming: GraphNaming) -> None:
        self.naming, self.used = naming, set[str]()

    def sized(self, size: Size, stem: str = "", in_window: bool = False) -> str:
        """A name that determines a size; in a window it needs a value, or the axis would be as long as fits."""
        taken, used = self.naming.reserved, self.used
        if in_window and name_of(size) not in self.naming.bound:
            used = used | {str(name_of(size))}
        return self._taken(self.naming.sizes.name(size, stem or name_of(size) or "n", used, taken))

    def _taken(self, name: str) -> str:
        """Marks a name as used by the line; the graph records the size that it determines."""
        self.used.add(name)
        told = self.naming.sizes.known.get(name, self.naming.sizes.made.get(name))
        if told is not None and name_of(told) != name:
            self.naming.bound.setdefault(name, told)
        return name

    def named(self, each: Node, axis: int) -> str:
        """A name for an axis: its own, that of a dimension of its size, or one that determines the size itself."""
        called = self.naming.written.called.get((each, axis))
        own = () if called is None else (called,)
        found, size = [*hints(self.naming, each, axis)], size_of(each, axis)
        if not found and own != (ELLIPSIS,):
            return self.sized(size, called or "", is_in_window(each, axis))
        stems = (*own, *found)
        names = itertools.chain(stems, (f"{stems[0]}_{n}" for n in itertools.count(1)))
        spoken = spoken_by(each)  # inside these, the name of the axis has another size
        unused = (name for name in names if name not in self.used and name not in spoken)
        name = next(each for each in unused if self.naming.sizes.fits(each, size, self.naming.same))
        self.naming.sizes.axes[name] = size
        return self._taken(name)

    def spoken(self, size: Size, alike: Iterable[str] = ()) -> Expression:
        """A size as the size of an axis, or as a formula; a name that is also a tensor's is replaced by its value."""
        for axis in alike:
            return expression.Size(axis)
        clashing = {*size_names(size)} & self.naming.reserved & self.naming.values.keys()
        return size_expression(put_in(size, {name: self.naming.values[name] for name in clashing}))

    def in_order(self, each: Node, entry: Affine, length: Size) -> Affine:
        """A window, reordered to start with an axis that is exactly as long as fits next to the others."""
        fits = (
            term
            for term in entry.terms
            if self.naming.same(_fit(each, entry, term[0], length), each.sizes[term[0]])
        )
        first = next(fits, None)
        assert first is not None, f"a window that does not reach from end to end: {each}"
        return Affine((first, *(term for term in entry.terms if term is not first)), entry.offset)


def spoken_by(each: Node) -> set[str]:
    """The names of sizes in the amounts that a crop or a padding adds before and after."""
    amounts = amounts_of(each) if "fill" in each.attributes else ()
    return {name for _, *both in amounts for size in both for name in size_names(size)}


def _fit(each: Node, entry: Affine, axis: Any, length: Size) -> Size:
    """The largest size of an axis in a window, given the reach of the other axes."""
    step = dict(entry.terms)[axis]
    others = [((each.sizes[a] - 1) * by, _is_negative(by)) for a, by in entry.terms if a != axis]
    if _is_negative(step):
        return floored(entry.offset + sum(far for far, back in others if back), -step) + 1
    return floored(length - 1 - entry.offset - sum(far for far, back in others if not back), step) + 1


def _is_negative(step: Size) -> bool:
    return step != 0 and is_never_negative(-step)
