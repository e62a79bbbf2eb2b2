"""Serialisation: frozen dataclasses as JSON and back, by their fields and the types of the fields.

    value := {"is": class, field: value, …}    a class marked by `@document`
           | {"shared": 3}                     the fourth entry of the document's table of shared values
           | [value, …] | number | true | false | null | text
    size  := 4 | "2*D + 1"

The value read back equals the value written. Nothing in a document is run: a text must be a name, unless its type says
otherwise: `Text`, `Scope`, or one of several words, as `Annotated[str, ("input", "parameter")]`. Fields that equality
ignores are not written.
"""

from __future__ import annotations

import base64
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, TypeAlias, TypeVar

from .errors import EquationError, TensornetError
from .sizes import read_written, write_size

T = TypeVar("T")
C = TypeVar("C", bound=type)
Check: TypeAlias = "Callable[[T, Part], None]"


Text: TypeAlias = Annotated[str, "text"]
"""Any text, such as code."""

Scope: TypeAlias = Annotated[str, "scope"]
"""A name, or the empty text."""

_FAULTS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True)
class _Kind:
    """How values of a class are written.

    Attributes:
        shared: whether equal values are written once.
        shown: further attributes that are written for human readers. They follow from the fields.
        hints: the types of its fields, computed at the first use.
    """

    cls: Any
    shared: bool
    shown: Mapping[str, Callable[[Any], Any]]

    @functools.cached_property
    def hints(self) -> Mapping[str, Any]:
        """The fields that equality compares, with their types."""
        local = {name: kind.cls for name, kind in _KINDS.items()}
        hints = typing.get_type_hints(self.cls, localns=local, include_extras=True)
        return {each.name: hints[each.name] for each in fields(self.cls) if each.compare}


_KINDS: dict[str, _Kind] = {}
_CHECKS: dict[type, Callable[[Any, Part], None]] = {}


def document(*, shared: bool = False, **shown: Callable[[Any], Any]) -> Callable[[C], C]:
    """Allows values of a frozen dataclass in documents.

    A method `checked(part)` of the class may reject values that the types of its fields allow. So may a check that
    a higher layer adds with `refuses`.

    Args:
        shared: whether equal values are written once, however often they occur.
        **shown: functions of further attributes, written for human readers. Reading checks that they match the value.
    """

    def marked(cls: C) -> C:
        _KINDS[cls.__name__] = _Kind(cls, shared, shown)
        return cls

    return marked


def refuses(cls: type[T]) -> Callable[[Check[T]], Check[T]]:
    """Adds a check for values of a class that are read. It raises an error for an invalid value."""

    def added(check: Check[T]) -> Check[T]:
        _CHECKS[cls] = check
        return check

    return added


def state_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass, for `__getstate__`. What it caches is left out: a hash holds in one process only."""
    return {each.name: getattr(value, each.name) for each in fields(value)}


def hashed_once(cls: C) -> C:
    """Lets values of a frozen dataclass cache their hash."""
    made: Any = cls
    made._hash = functools.cached_property(made.__hash__)
    made._hash.__set_name__(cls, "_hash")
    made.__hash__ = lambda value: value._hash
    made.__getstate__ = made.__dict__.get("__getstate__", state_of)
    return cls


# ---------------------------------------------------------------------------- documents

FIX = "use what to_json wrote"


class Part:
    """A value in a JSON document, which is validated when it is read.

    It knows its path: `Part.of(text, "plan")["steps"]` is `plan.steps`.
    """

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

    def _of(self, kinds: type[T] | tuple[type[T], ...], told: str) -> T:
        """The value, which must be of some kinds. A truth value is no number."""
        value = self.value
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            raise self.fail(f"is a {type(value).__name__} where {told} must be")
        return value

    # ---- values inside it

    def __getitem__(self, name: str) -> Part:
        found = self.get(name)
        if found is None:
            raise self.fail(f"has no '{name}'")
        return found

    def get(self, name: str) -> Part | None:
        """The value of a name in an object, or None."""
        found = self._of(dict, "an object")
        return Part(found[name], f".{name}", self) if name in found else None

    def __iter__(self) -> Iterator[Part]:
        for number, value in enumerate(self._of(list, "a list")):
            yield Part(value, f"[{number}]", self)

    # ---- the value itself

    def text(self) -> str:
        """The value, which must be a text."""
        return self._of(str, "a text")

    def one_of(self, *known: str) -> str:
        """The value, which must be one of these words."""
        if self.value not in known:
            raise self.fail(f"is {self.value!r} where {' or '.join(known)} must be")
        return self.text()

    def whole(self) -> int:
        """The value, which must be a whole number."""
        return self._of(int, "a whole number")

    def real(self) -> float:
        """The value, which must be a number."""
        found = self._of((int, float), "a number")
        if math.isnan(found):
            raise self.fail("is a float where a number must be")
        return found

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


# ---------------------------------------------------------------------------- writing


def write(value: Any, given: Iterable[str] = (), without: Iterable[str] = ()) -> dict[str, Any]:
    """A dataclass as a JSON value.

    Args:
        value: a value of a class that `document` marks.
        given: fields of it that are left out, since the reader has them.
        without: fields that are left out everywhere, as `"Class.field"`.
    """
    writing, given = _Writing(frozenset(without)), frozenset(given)
    written = writing.fields(value, _KINDS[type(value).__name__])
    written = {name: each for name, each in written.items() if name not in given}
    return {**written, "table": writing.table} if writing.table else written


class _Writing:
    """A document that is being written: the fields it omits, and its table of shared values."""

    def __init__(self, omitted: frozenset[str]) -> None:
        self.omitted = omitted
        self.numbers: dict[Any, int] = {}
        self.table: list[Any] = []

    def plain(self, value: Any) -> Any:
        """The value of a field in JSON's own types."""
        match value:
            case None | bool() | str():
                return value
            case Enum():
                return value.name
            case int():
                return int(value)
            case float() if math.isfinite(value):
                return value
            case float() | complex():
                return repr(value)
            case bytes():
                return base64.b64encode(value).decode()
            case Sequence():
                return [self.plain(each) for each in value]
            case frozenset():
                return [self.plain(each) for each in sorted(value)]
        return self.dataclass(value) if is_dataclass(value) else write_size(value)

    def dataclass(self, value: Any) -> dict[str, Any]:
        """A dataclass as its fields, or as its number in the table."""
        kind = _KINDS[type(value).__name__]
        if not kind.shared:
            return self.fields(value, kind)
        if value not in self.numbers:
            written = self.fields(value, kind)  # adds shared values inside it first
            self.numbers[value] = len(self.table)
            self.table.append(written)
        return {"shared": self.numbers[value]}

    def fields(self, value: Any, kind: _Kind) -> dict[str, Any]:
        """The class name of a dataclass, its shown attributes and its fields."""
        name = kind.cls.__name__
        kept = (each for each in kind.hints if f"{name}.{each}" not in self.omitted)
        own = {each: self.plain(getattr(value, each)) for each in kept}
        return {"is": name, **{each: self.plain(of(value)) for each, of in kind.shown.items()}, **own}


# ---------------------------------------------------------------------------- reading


def read(kind: type[T], part: Part, **given: Any) -> T:
    """Reads a value that `write` wrote, and checks it like any new value of the class.

    Args:
        kind: the expected class.
        part: the document.
        **given: fields that are not in the document.

    Raises:
        EquationError: the document holds something else; the message says where.
    """
    shared: list[Any] = []
    table = part.get("table")
    for each in table if table is not None else ():
        name = each["is"].one_of(*_KINDS)
        shared.append(_of_fields(_KINDS[name].cls, each, shared, {}))
    found: T = _of_fields(kind, part, shared, given)
    return found


def read_value(hint: Any, part: Part, shared: Sequence[Any] = ()) -> Any:
    """Reads a value of a type. For a union, the form of the document selects the member."""
    hint = _evaluated(hint) if isinstance(hint, str) else hint
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        if isinstance(options[1], tuple):
            return part.one_of(*options[1])
        return part.scope() if options[1] == "scope" else part.text()
    if origin in (types.UnionType, typing.Union):
        return read_value(_member(options, part), part, shared)
    if origin is Sequence or (origin is tuple and options[1:] == (...,)):
        return tuple([read_value(options[0], each, shared) for each in part])
    if origin is tuple:
        if len(parts := tuple(part)) != len(options):
            raise part.fail(f"has {len(parts)} values where {len(options)} must be")
        return tuple([read_value(one, each, shared) for one, each in zip(options, parts, strict=True)])
    if hint in _PLAIN:
        return _PLAIN[hint](part)
    if issubclass(hint, Enum):
        return hint[part.one_of(*hint.__members__)]
    if isinstance(part.value, dict) and "shared" in part.value:
        found = part["shared"].among(shared)
        if not isinstance(found, hint):
            raise part.fail(f"is a {type(found).__name__} where a {hint.__name__} must be")
        return found
    return _of_fields(hint, part, shared, {})


@functools.cache
def _evaluated(hint: str) -> Any:
    """Evaluates a type quoted inside another one, which Python 3.10 leaves as text: `tuple["Ref | Call", ...]`."""
    names = {name: kind.cls for name, kind in _KINDS.items()}
    return typing.get_type_hints(types.SimpleNamespace(__annotations__={"it": hint}), {}, names, True)["it"]


def _member(options: tuple[Any, ...], part: Part) -> Any:
    """The member of a union that fits the form of a document."""
    value = part.value
    if value is None and type(None) in options:
        return type(None)
    kinds = {getattr(each, "__name__", ""): each for each in options if is_dataclass(each)}
    if isinstance(value, dict) and kinds:
        return next(iter(kinds.values())) if len(kinds) == 1 else kinds[part["is"].one_of(*kinds)]
    wanted = {bool: bool, int: int, float: float, str: str, list: tuple}.get(type(value))
    found = [each for each in options if (typing.get_origin(each) or each) is wanted]
    if not found and isinstance(value, str) and complex in options:
        found = [complex]
    others = [each for each in options if each is not type(None)]
    if not found and len(others) > 1:
        raise part.fail("is no " + " or ".join(sorted(getattr(each, "__name__", "value") for each in others)))
    return (found or others)[0]


def _of_fields(cls: Any, part: Part, shared: Sequence[Any], given: Mapping[str, Any]) -> Any:
    """A dataclass, created from its fields."""
    kind = _KINDS[cls.__name__]
    part["is"].one_of(cls.__name__)
    values = {
        name: given[name] if name in given else read_value(hint, part[name], shared)
        for name, hint in kind.hints.items()
    }
    try:
        made = cls(**values)
        if hasattr(made, "checked"):
            made.checked(part)
        if cls in _CHECKS:
            _CHECKS[cls](made, part)
        wrong = [name for name, of in kind.shown.items() if part[name].value != of(made)]
    except TensornetError:
        raise
    except _FAULTS as error:
        raise part.fail(f"is no {cls.__name__.lower()}: {error!r}") from None
    if wrong:
        raise part[wrong[0]].fail(f"does not follow from the rest: {kind.shown[wrong[0]](made)}")
    return made


def _number(part: Part) -> int | float | complex:
    """A number that JSON cannot express, such as inf and 2j."""
    try:
        return complex(part.text()) if "j" in part.text() else float(part.text())
    except ValueError:
        raise part.fail(f"is {part.value!r} where a number must be") from None


def _bytes(part: Part) -> bytes:
    try:
        return base64.b64decode(part.text(), validate=True)
    except ValueError as error:
        raise part.fail(f"is no data: {error}") from None


# ---------------------------------------------------------------------------- sizes


def read_size(part: Part) -> Any:
    """Reads a size that `write_size` wrote.

    Raises:
        EquationError: the value is no size.
    """
    try:
        return read_written(part.value)
    except ValueError as error:
        raise part.fail(f"is no size: {error}") from None


_PLAIN: dict[Any, Callable[[Part], Any]] = {
    type(None): lambda part: None,
    Any: lambda part: None if part.value is None else read_size(part),
    str: Part.name,
    bool: lambda part: part._of(bool, "true or false"),
    int: Part.whole,
    float: Part.real,
    complex: _number,
    bytes: _bytes,
}
