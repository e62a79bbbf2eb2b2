"""Code generation of gathers, diagonals and integer indices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..graph.leaves import Leaf
from ..language.affine import reached
from ..language.expression import Index, Ref, axes_of_index, free_axes, is_told
from ..planning.plans import Plan
from ..protocol import Backend
from ..sizes import are_equal, product
from .expressions import Speller, tuple_source

__all__ = ["Gathering"]


class Gathering(Speller):
    """Spells what a step reads at positions, and looks at these unless a table of them has been looked at."""

    def __init__(self, plan: Plan, backend: Backend, leaves: Sequence[Leaf], taken: Iterable[str]) -> None:
        super().__init__(plan, backend, leaves, taken)
        self.looked_at = {table.leaf.name for table in plan.tables if table.below is not None}

    def special(self, ref: Ref, left: tuple[Any, ...]) -> str:
        """Integer indices, gathers and diagonals, one after another on one dimension for each entry."""
        text, entries, sizes = self._cut(self.names[ref.name], ref.index, self.shapes[ref.name])
        flat: list[Index] = []
        atoms: list[Any] = []
        for entry, size in zip(entries, sizes, strict=True):
            parts: list[Index] = list(entry) if isinstance(entry, tuple) else [entry]
            flat += parts
            atoms += (
                [self.sizes[part] for part in parts if isinstance(part, str)]
                if isinstance(entry, tuple)
                else [size]
            )
        if len(flat) != len(entries):
            text = self.op("reshape", text, shape=self.shape(atoms))
        return self._gathered(text, flat, atoms, axes_of_index(left))

    def _cut(
        self, text: str, index: Sequence[Index], sizes: Sequence[Any]
    ) -> tuple[str, list[Index], list[Any]]:
        """What is read at one position of a dimension, or at even distances; the entries and sizes of the others."""
        cuts = [self._cut_along(entry, size) for entry, size in zip(index, sizes, strict=True)]
        if any(cut != ":" for cut in cuts):
            text = f"{text}[{', '.join(cuts)}]"
        found: list[Index] = []
        left: list[Any] = []
        for entry, size in zip(index, sizes, strict=True):
            if isinstance(entry, int):
                continue
            if not is_told(entry) or isinstance(entry, Ref):
                found, left = [*found, entry], [*left, size]
                continue
            (outer, by), (inner, apart), first = reached(entry)
            axes = [outer, inner] if inner else [outer]
            if inner:
                counts = {"outer": self.extent([outer]), "inner": self.extent([inner])}
                places = {"by": str(by), "apart": str(apart), "first": str(first)}
                text = self.op("windows", text, axis=str(len(found)), **places, **counts)
            found, left = [*found, *axes], [*left, *(self.sizes[axis] for axis in axes)]
        return text, found, left

    def _cut_along(self, entry: Index, size: Any) -> str:
        """A dimension between brackets."""
        if isinstance(entry, int):
            return str(entry)
        if not is_told(entry) or isinstance(entry, Ref) or len(free_axes(entry)) > 1:
            return ":"
        (axis, by), _, first = reached(entry)
        room, count = size - first, self.sizes[axis]
        fits = room if by == 1 else (room + by - 1) // by
        stop = "" if are_equal(count, fits, {}) else self.size(first + by * count)
        return f"{first or ''}:{stop}" + (f":{by}" if by > 1 else "")

    def _gathered(self, text: str, entries: list[Index], sizes: list[Any], left: tuple[str, ...]) -> str:
        """Takes along the dimensions that an index tensor or a repeated axis picks from."""
        gathers = [entry for entry in entries if isinstance(entry, Ref)]
        inside = {axis for each in gathers for axis in axes_of_index(each.index)}
        names = [entry for entry in entries if isinstance(entry, str)]
        picked = [
            n
            for n, entry in enumerate(entries)
            if isinstance(entry, Ref) or entry in inside or names.count(str(entry)) > 1
        ]
        if not picked:
            return self._to_order(text, tuple(map(str, entries)), left)
        first, count = picked[0], len(picked)
        if picked[-1] - first >= count:  # apart from each other
            order = [*picked, *(n for n in range(len(entries)) if n not in picked)]
            text = self.op("permute", text, axes=tuple_source([str(n) for n in order]))
            entries, sizes, first = [entries[n] for n in order], [sizes[n] for n in order], 0
        before, others, after = entries[:first], entries[first : first + count], entries[first + count :]
        taken = inside | {str(entry) for entry in others if isinstance(entry, str)}
        axes = tuple(axis for axis in left if axis in taken)
        flat = self._flat_index(others, sizes[first : first + count], axes)
        around = sizes[:first], sizes[first + count :]
        if count > 1:
            total = product(sizes[first : first + count])
            text = self.op("reshape", text, shape=self.shape([*around[0], total, *around[1]]))
        text = self.op("take", text, self.op("reshape", flat, shape="(-1,)"), axis=str(first))
        if len(axes) != 1:
            own = [self.sizes[axis] for axis in axes]
            text = self.op("reshape", text, shape=self.shape([*around[0], *own, *around[1]]))
        return self._to_order(text, (*map(str, before), *axes, *map(str, after)), left)

    def _flat_index(self, entries: list[Index], sizes: list[Any], axes: tuple[str, ...]) -> str:
        """Row-major positions in the picked dimensions, over `axes`."""
        terms: list[str] = []
        for n, entry in enumerate(entries):
            stride = product(sizes[n + 1 :])
            if isinstance(entry, Ref):
                term = self.aligned(entry, axes)
                term = self.below(term, entry.name, sizes[n], product(sizes[: n + 1]))
            else:
                ones = [self.size(sizes[n])] + ["1"] * (len(axes) - axes.index(str(entry)) - 1)
                term = self.positions(sizes[n])
                term = self.op("reshape", term, shape=tuple_source(ones)) if len(ones) > 1 else term
            terms.append(term if stride == 1 else f"{term} * ({self.size(stride)})")
        text = " + ".join(terms)
        if len(terms) == 1 and isinstance(entries[0], Ref) and axes_of_index(entries[0].index) == axes:
            return text
        shape = self.shape([self.sizes[axis] for axis in axes])
        return self.op("broadcast", f"({text})", shape=shape)

    def looked(self, text: str, name: str, axis: str) -> str:
        """Positions along an axis, looked at."""
        return self.below(text, name, self.sizes[axis], self.sizes[axis])

    def below(self, text: str, name: str, size: Any, past: Any) -> str:
        """Positions that are looked at, unless a table of them has been: whether they lie below a size.

        `past` of them, times the positions that each stands for, lie beyond all that is read: where a library
        cannot look, it puts that in the place of a wrong one.
        """
        if name in self.looked_at:
            return text
        details = {"past": self.size(past)} if self.asks("within", "past") else {}
        return self.op("within", text, size=self.size(size), name=repr(name), **details)

    def _to_order(self, text: str, have: tuple[str, ...], want: tuple[str, ...]) -> str:
        if have == want:
            return text
        return self.op("permute", text, axes=tuple_source([str(have.index(axis)) for axis in want]))
