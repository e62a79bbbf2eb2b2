"""The backend protocol: the methods of a backend, and the registries of backends and of document readers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from .errors import BackendError, near


class Argument(NamedTuple):
    """An array argument of a function: its shape, its element type, and whether it gets a gradient."""

    shape: tuple[int, ...]
    dtype: str
    changes: bool


@dataclass(frozen=True)
class Kept:
    """The memory kept from the forward pass of a function to its backward pass, besides its arguments.

    Attributes:
        sizes: the bytes of each piece of memory, by its number.
        around: the pieces that are kept outside of calls.
        calls: for each call that can be recomputed, the pieces that it keeps and the pieces of its operands.
    """

    sizes: Mapping[int, int]
    around: frozenset[int]
    calls: tuple[tuple[frozenset[int], frozenset[int]], ...]


def signature_of(arrays: Sequence[Any]) -> tuple[Hashable, ...]:
    """The signature of a call: class, shape, element type and device of each array."""
    return tuple(
        [(type(array), array.shape, array.dtype, getattr(array, "device", None)) for array in arrays]
    )


class CallCache:
    """Call cache: what was prepared for the arrays of a call, by their signature. Copies are empty.

    Args:
        most: the number of signatures that are remembered before all are forgotten.
        signature: gives the signature of a call, with everything that a backend's choices depend on. It raises an
            AttributeError if one is no array.
    """

    def __init__(self, most: int, signature: Callable[[Sequence[Any]], Hashable] = signature_of) -> None:
        self.signature, self._most = signature, most
        self._known: dict[Hashable, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._most, self.signature)

    def get(self, arrays: Sequence[Any]) -> Any:
        """What was prepared for arrays of this signature, or None."""
        return self._known.get(self.signature(arrays))

    def put(self, arrays: Sequence[Any], found: Any) -> None:
        """Remembers what was prepared for arrays of this signature."""
        if len(self._known) >= self._most:
            self._known.clear()
        self._known[self.signature(arrays)] = found


@runtime_checkable
class Backend(Protocol):
    """An array library: how its operations are spelled in generated code, and a few services.

    `templates` maps an operation to source text with the operands in braces, for instance
    `"softmax": "torch.softmax({0}, {axis})"`; the names in it come from `namespace()`. The record
    of the operation defines what else may be in braces (`tensornet.ops.record`).
    """

    @property
    def name(self) -> str:
        """The name of the backend for users."""

    @property
    def templates(self) -> Mapping[str, str]:
        """The source text of each operation."""

    def call_cache(self, most: int) -> CallCache:
        """A new cache by class, shape, element type and device of each array, and by the state that `autocasts` and
        `changing` depend on."""

    def __hash__(self) -> int: ...

    def namespace(self) -> Mapping[str, Any]:
        """The names that generated code may use. Imports the library."""

    def device(self, array: Any = None) -> str:
        """The device of an array, or the default one, as text: `cpu`, `cuda:0`."""

    def check_device(self, device: str) -> None:
        """Raises a BackendError if the library has no device of that name on any machine."""

    def version(self, device: str) -> str:
        """Library, version and hardware: the key under which measurements are kept.

        Raises a BackendError if this machine does not have the device.
        """

    def asarray(self, array: Any, dtype: str | None = None, device: str | None = None) -> Any:
        """An array of this library from anything NumPy reads (or another library's, by DLPack)."""

    def numpy(self, array: Any) -> Any:
        """A NumPy copy of an array."""

    def dtype(self, array: Any) -> str:
        """The name of the element type: `float32`."""

    def autocasts(self, array: Any) -> bool:
        """Whether the library currently converts element types itself, as torch does under autocast."""

    def changing(self, arrays: Sequence[Any]) -> tuple[int, ...]:
        """The indices of the arrays that need gradients, if the library can use the planned gradients."""

    def kept(
        self, make: Callable[[Callable[..., Any]], Callable[..., Any]], given: Sequence[Argument], device: str
    ) -> Kept | None:
        """The memory that the library's autograd would keep for a function, found without computing it.

        Args:
            make: builds the function from a caller, which gets each function that is called, and its operands.
            given: the arguments of the function.
            device: the device of the arguments.

        Returns:
            None if the library keeps nothing, or if it cannot find out.
        """

    def as_one(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, of arrays and of whether to train, compiled as a whole if the library supports that."""

    def synchronize(self, device: str, *made: Any) -> None:
        """Waits for the device to finish. A library without devices waits for the results in `made` only."""


_offered: dict[str, Callable[[], Backend]] = {}
_of_namespace: list[Callable[[Any], Backend]] = []
_readers: dict[str, Callable[[str], Any]] = {}


def offer(name: str, load: Callable[[], Backend]) -> None:
    """Registers a backend. Arrays of the library of that name belong to it.

    Args:
        name: its name for users, which is the name of the library.
        load: returns the backend. It is called each time that the backend is needed.
    """
    _offered[name] = load


def offer_any(load: Callable[[Any], Backend]) -> None:
    """Registers the function that builds a backend from a namespace of the Python array API standard."""
    _of_namespace[:] = [load]


def offer_reader(document: str, read: Callable[[str], Any]) -> None:
    """Registers the reader of a kind of document, for values whose text is parsed by a higher layer.

    Args:
        document: the kind, as named in the document.
        read: returns the value of a text.
    """
    _readers[document] = read


def reader_of(document: str) -> Callable[[str], Any]:
    """The reader of a kind of document."""
    return _readers[document]


def is_offered(name: str) -> bool:
    """Whether a backend of that name is registered."""
    return name in _offered


def load_backend(name: str | Backend) -> Backend:
    """The backend of that name. Its library is imported when code first runs on it.

    Raises:
        BackendError: there is no backend of that name, or its library is not installed.
    """
    if isinstance(name, str) and name in _offered:  # first: an instance check of a protocol is slow
        return _offered[name]()
    if isinstance(name, Backend):
        return name
    hint = near(name, _offered) if isinstance(name, str) else ""
    raise BackendError(f"there is no backend '{name}'", fix=f"{hint}choose one of {', '.join(_offered)}")


@functools.lru_cache(maxsize=256)
def _libraries_of(kind: type) -> frozenset[str]:
    """The libraries that define a type of arrays and its bases."""
    bases = kind.__mro__ if hasattr(kind, "shape") else ()  # a module of torch is no array
    return frozenset(base.__module__.partition(".")[0] for base in bases)


def backend_of(array: Any) -> Backend:
    """The backend that an array belongs to.

    Raises:
        BackendError: the array belongs to no known library.
    """
    libraries = _libraries_of(type(array))  # type: ignore[arg-type]
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
