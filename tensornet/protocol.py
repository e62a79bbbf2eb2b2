"""The backend protocol: what the library asks of a backend, and the registries that find one, or a reader, by name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from .errors import BackendError, near

__all__ = [
    "Argument",
    "Backend",
    "Kept",
    "backend_of",
    "is_offered",
    "load_backend",
    "offer",
    "offer_any",
    "offer_reader",
    "reader_of",
    "signature_of",
]


class Argument(NamedTuple):
    """An array that a function is to be given: its shape, its element type, and whether it gets a gradient."""

    shape: tuple[int, ...]
    dtype: str
    changes: bool


@dataclass(frozen=True)
class Kept:
    """What is kept from the forward pass of a function to its backward pass, besides what the function is given.

    Attributes:
        sizes: the pieces of memory, by number, and their bytes.
        around: those that are kept outside of calls.
        calls: those that are kept in each call that can be recomputed, and those that the call is given.
    """

    sizes: Mapping[int, int]
    around: frozenset[int]
    calls: tuple[tuple[frozenset[int], frozenset[int]], ...]


def signature_of(arrays: Sequence[Any]) -> tuple[Hashable, ...]:
    """The signature of a call: class, shape, element type and device of each array."""
    return tuple([(type(array), array.shape, array.dtype, array.device) for array in arrays])


@runtime_checkable
class Backend(Protocol):
    """An array library: how its operations are spelled in generated code, and a few services.

    `templates` maps an operation to source text with the operands in braces, for instance
    `"softmax": "torch.softmax({0}, {axis})"`; the names it uses come from `namespace()`, and the record
    of the operation says what else may stand in braces (`tensornet.ops.record`).
    """

    @property
    def name(self) -> str:
        """What users call it."""

    @property
    def templates(self) -> Mapping[str, str]:
        """Operation to source text."""

    def signing(self) -> Callable[[Sequence[Any]], Hashable]:
        """What gives the signature of a call: class, shape, element type and device of each array, and what `autocasts`
        and `changing` depend on. It raises an AttributeError where one is no array."""

    def __hash__(self) -> int: ...

    def namespace(self) -> Mapping[str, Any]:
        """The names generated code may use; imports the library."""

    def device(self, array: Any = None) -> str:
        """The device of an array, or the default one, as text: `cpu`, `cuda:0`."""

    def check_device(self, device: str) -> None:
        """Raises a BackendError if the library has no device of that name on any machine."""

    def version(self, device: str) -> str:
        """Library, version and hardware: the key under which measurements are kept.

        Raises a BackendError if the device is not here.
        """

    def asarray(self, array: Any, dtype: str | None = None, device: str | None = None) -> Any:
        """An array of this library from anything NumPy reads (or another library's, by DLPack)."""

    def numpy(self, array: Any) -> Any:
        """A NumPy copy of an array."""

    def dtype(self, array: Any) -> str:
        """The name of the element type: `float32`."""

    def autocasts(self, array: Any) -> bool:
        """Whether the library brings element types together itself just now, as torch does under autocast."""

    def changing(self, arrays: Sequence[Any]) -> tuple[int, ...]:
        """Which of some arrays the library will want gradients of, and take them as they are planned."""

    def kept(
        self,
        make: Callable[[Callable[..., Any]], Callable[..., Any]],
        given: Sequence[Argument],
        device: str,
    ) -> Kept | None:
        """What the library's autograd would keep of a function, told without computing it.

        Args:
            make: gives the function, of what makes its calls: that is given what is called, and with what.
            given: the arrays that the function is to be given.
            device: where they would be.

        Returns:
            Nothing where the library keeps nothing, or cannot tell.
        """

    def as_one(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of arrays, and of whether to train, compiled as a whole where the library does so; or itself."""

    def synchronize(self, device: str, *made: Any) -> None:
        """Waits for the device to finish; for no more than what was made there, where a library knows no device."""


_offered: dict[str, Callable[[], Backend]] = {}
_of_namespace: list[Callable[[Any], Backend]] = []
_readers: dict[str, Callable[[str], Any]] = {}


def offer(name: str, load: Callable[[], Backend]) -> None:
    """Makes a backend known; the arrays of the library of that name are its own.

    Args:
        name: what users call it, which is the name of the library.
        load: gives the backend when it is first asked for.
    """
    _offered[name] = load


def offer_any(load: Callable[[Any], Backend]) -> None:
    """Makes known how a backend is made of any namespace of the Python array API standard."""
    _of_namespace[:] = [load]


def offer_reader(document: str, read: Callable[[str], Any]) -> None:
    """Makes known what reads a kind of document, for values whose texts a floor above them reads.

    Args:
        document: the kind, as the document says it.
        read: gives the value.
    """
    _readers[document] = read


def reader_of(document: str) -> Callable[[str], Any]:
    """What reads a kind of document."""
    return _readers[document]


def is_offered(name: str) -> bool:
    """Whether there is a backend of that name."""
    return name in _offered


def load_backend(name: str | Backend) -> Backend:
    """The backend of that name; its library is imported when code first runs on it.

    Raises:
        BackendError: there is none of that name, or its library is not installed.
    """
    if isinstance(name, str) and name in _offered:  # first: to ask whether something is a backend takes long
        return _offered[name]()
    if isinstance(name, Backend):
        return name
    hint = near(name, _offered) if isinstance(name, str) else ""
    raise BackendError(f"there is no backend '{name}'", fix=f"{hint}choose one of {', '.join(_offered)}")


@functools.lru_cache(maxsize=256)
def _libraries_of(kind: type) -> frozenset[str]:
    """The libraries that a type and its bases are of."""
    return frozenset(base.__module__.partition(".")[0] for base in kind.__mro__)


def backend_of(array: Any) -> Backend:
    """The backend an array belongs to.

    Raises:
        BackendError: the array is of no library known here.
    """
    libraries = _libraries_of(type(array))
    for name in _offered:
        if name in libraries:
            return _offered[name]()
    if isinstance(array, int | float | complex | list | tuple):
        return load_backend("numpy")
    if hasattr(array, "__array_namespace__"):
        (of,) = _of_namespace
        return of(array.__array_namespace__())
    raise BackendError(
        f"{type(array).__name__} is not an array of a known library",
        fix=f"pass arrays of {', '.join(_offered)}",
    )
