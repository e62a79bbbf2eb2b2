"""Names of axes that tell sizes: as in a graph, where a name that tells a size is that size throughout.

An axis is called as a dimension that it runs along and that is as long. Where there is none, its name tells its size.
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
    """The names of axes.

    Attributes:
        known: those that tell a size by themselves in a graph.
        made: those that do so in any graph, and were made for it.
        axes: all others, in any graph.
    """

    known: dict[str, Size]
    made: dict[str, Size] = field(default_factory=dict)
    axes: dict[str, Size] = field(default_factory=dict)

    def name(self, size: Size, stem: str, used: Container[str], taken: Container[str]) -> str:
        """A name that tells a size, which a line does not use yet, and which no tensor has if it is a new one."""
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
        """Whether an axis of a size may have a name, as far as names tell sizes."""
        return all(same(each.get(name, size), size) for each in (self.known, self.made))


class GraphNaming(Naming, Protocol):
    """What calls the parts of a graph by names: `naming`."""

    bound: dict[str, Any]
    sizes: Sizes
    values: dict[str, int]
    reserved: set[str]
    written: Written


class SizeNames:
    """The names of the axes of one equation; see `equations.AxisNames`.

    Attributes:
        used: those so far.
    """

    def __init__(self, naming: GraphNaming) -> None:
        self.naming, self.used = naming, set[str]()

    def sized(self, size: Size, stem: str = "", in_window: bool = False) -> str:
        """A name that tells a size; in a window one that has a value, or it would be as long as fits."""
        taken, used = self.naming.reserved, self.used
        if in_window and name_of(size) not in self.naming.bound:
            used = used | {str(name_of(size))}
        return self._taken(self.naming.sizes.name(size, stem or name_of(size) or "n", used, taken))

    def _taken(self, name: str) -> str:
        """A name that the line uses from here on; the graph says the size that it tells."""
        self.used.add(name)
        told = self.naming.sizes.known.get(name, self.naming.sizes.made.get(name))
        if told is not None and name_of(told) != name:
            self.naming.bound.setdefault(name, told)
        return name

    def named(self, each: Node, axis: int) -> str:
        """A name for an axis: its own, or that of a dimension that tells its size, or one that does by itself."""
        called = self.naming.written.called.get((each, axis))
        own = () if called is None else (called,)
        found, size = [*hints(self.naming, each, axis)], size_of(each, axis)
        if not found and own != (ELLIPSIS,):
            return self.sized(size, called or "", is_in_window(each, axis))
        stems = (*own, *found)
        names = itertools.chain(stems, (f"{stems[0]}_{n}" for n in itertools.count(1)))
        spoken = spoken_by(each)  # inside of which the name of the axis tells another size
        unused = (name for name in names if name not in self.used and name not in spoken)
        name = next(each for each in unused if self.naming.sizes.fits(each, size, self.naming.same))
        self.naming.sizes.axes[name] = size
        return self._taken(name)

    def spoken(self, size: Size, alike: Iterable[str] = ()) -> Expression:
        """A size as that of an axis; one that is called as a tensor is goes by its value."""
        for axis in alike:
            return expression.Size(axis)
        clashing = {*size_names(size)} & self.naming.reserved & self.naming.values.keys()
        return size_expression(put_in(size, {name: self.naming.values[name] for name in clashing}))

    def in_order(self, each: Node, entry: Affine, length: Size) -> Affine:
        """A window, first an axis that is as long as fits, if one may have another size there."""
        fits = (
            term
            for term in entry.terms
            if self.naming.same(_fit(each, entry, term[0], length), each.sizes[term[0]])
        )
        first = next(fits, None)
        assert first is not None, f"a window that does not reach from end to end: {each}"
        return Affine((first, *(term for term in entry.terms if term is not first)), entry.offset)


def spoken_by(each: Node) -> set[str]:
    """The names of sizes in how many positions a crop or a padding puts before and after."""
    amounts = amounts_of(each) if "fill" in each.attributes else ()
    return {name for _, *both in amounts for size in both for name in size_names(size)}


def _fit(each: Node, entry: Affine, axis: Any, length: Size) -> Size:
    """How long an axis of a window may be: as far as it reaches beside the others."""
    step = dict(entry.terms)[axis]
    others = [((each.sizes[a] - 1) * by, _is_negative(by)) for a, by in entry.terms if a != axis]
    if _is_negative(step):
        return floored(entry.offset + sum(far for far, back in others if back), -step) + 1
    return floored(length - 1 - entry.offset - sum(far for far, back in others if not back), step) + 1


def _is_negative(step: Size) -> bool:
    return step != 0 and is_never_negative(-step)
