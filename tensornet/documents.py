"""JSON documents that are validated when read: an invalid value raises an `EquationError` that says where it is."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from .errors import EquationError

__all__ = ["Part"]

T = TypeVar("T")

FIX = "use what to_json wrote"


class Part:
    """A value in a document, and its path: `Part.of(text, "plan")["steps"]` is `plan.steps`."""

    __slots__ = ("_name", "_within", "value")

    def __init__(self, value: Any, name: str, within: Part | None = None) -> None:
        self.value, self._name, self._within = value, name, within

    @staticmethod
    def of(text: str, name: str) -> Part:
        """The whole document; errors call it `name`.

        Raises:
            EquationError: the text is not JSON.
        """
        try:
            return Part(json.loads(text), name)
        except (ValueError, TypeError, RecursionError) as error:
            raise EquationError(f"this is not a {name} in JSON: {error!r}", fix=FIX) from None

    @property
    def where(self) -> str:
        """The path of the value in the document: `plan.steps[3].flops`."""
        return self._name if self._within is None else f"{self._within.where}{self._name}"

    def fail(self, message: str) -> EquationError:
        """The error for a value that is not valid here."""
        return EquationError(f"{self.where} {message}", fix=FIX)

    def _must_be(self, kind: str) -> EquationError:
        return self.fail(f"is a {type(self.value).__name__} where {kind} must be")

    # ---- values inside it

    def __getitem__(self, name: str) -> Part:
        found = self.get(name)
        if found is None:
            raise self.fail(f"has no '{name}'")
        return found

    def get(self, name: str) -> Part | None:
        """The value of a name in an object, or None."""
        if not isinstance(self.value, dict):
            raise self._must_be("an object")
        return Part(self.value[name], f".{name}", self) if name in self.value else None

    def __iter__(self) -> Iterator[Part]:
        if not isinstance(self.value, list):
            raise self._must_be("a list")
        for number, value in enumerate(self.value):
            yield Part(value, f"[{number}]", self)

    def items(self) -> Iterator[tuple[str, Part]]:
        """The names in an object, each with its value."""
        if not isinstance(self.value, dict):
            raise self._must_be("an object")
        for name, value in self.value.items():
            yield name, Part(value, f".{name}", self)

    def pair(self) -> tuple[Part, Part]:
        """The two values of a list of two."""
        found = tuple(self)
        if len(found) != 2:
            raise self.fail(f"has {len(found)} values where two must be")
        return found

    # ---- the value itself

    @property
    def is_none(self) -> bool:
        """Whether the value is null."""
        return self.value is None

    def text(self) -> str:
        """The value, which must be a text."""
        if not isinstance(self.value, str):
            raise self._must_be("a text")
        return self.value

    def one_of(self, *known: str) -> str:
        """The value, which must be one of these words."""
        if self.value not in known:
            raise self.fail(f"is {self.value!r} where {' or '.join(known)} must be")
        return self.text()

    def truth(self) -> bool:
        """The value, which must be true or false."""
        if not isinstance(self.value, bool):
            raise self._must_be("true or false")
        return self.value

    def whole(self) -> int:
        """The value, which must be a whole number."""
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            raise self._must_be("a whole number")
        return self.value

    def real(self) -> float:
        """The value, which must be a number."""
        if not isinstance(self.value, int | float) or isinstance(self.value, bool) or math.isnan(self.value):
            raise self._must_be("a number")
        return self.value

    def name(self) -> str:
        """The value, which must be a name of a tensor or an axis, possibly with dots and numbers, or `...`.

        A name consists of words only, so it is safe in code that is generated from it.
        """
        text = self.text()
        if text != "..." and not all(f"_{word}".isidentifier() for word in text.split(".")):
            raise self.fail(f"is {text!r} where a name must be")
        return text

    def scope(self) -> str:
        """The value, which must be a name or the empty text."""
        return self.name() if self.value != "" else ""

    def among(self, known: Sequence[T]) -> T:
        """The entry of a list at the value, which must be an index into the list."""
        number = self.whole()
        if not 0 <= number < len(known):
            raise self.fail(f"is {number} where a number below {len(known)} must be")
        return known[number]

    def names(self) -> tuple[str, ...]:
        """The value, which must be a list of names."""
        return tuple(each.name() for each in self)
