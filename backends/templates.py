"""Templates that several backends share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from tensornet.protocol import Argument, signature_of

__all__ = ["KERNELS", "OWN", "Plain", "functions"]

SAME = (
    *("exp", "expm1", "log", "log1p", "sqrt", "square", "abs", "sign"),
    *("floor", "ceil", "round", "sin", "cos", "tanh"),
)

OWN: Mapping[str, str] = {
    "index": "{positions}",
    "reciprocal": "1 / {0}",
    "max_pool": "max_pool({0}, {windows})",
    "mean_pool": "mean_pool({0}, {windows})",
    "along": "along({0}, {1}, {2}, {3}, {size}, {axes}, {states}, {results}, {back}, {last})",
    "in_pieces": "in_pieces({0}, {size}, {length}, {axes})",
    "widen": "widen({0}, {dtype})",
    "finite": "finite({0}, {1})",
    "floating": "floating({0}, {1})",
    "wide": "wide({dtype})",
    "dropped": "dropped({0}, {1}, {2}, training)",
    "normalize": "normalize({0}, {axis}, {eps})",
    "normalize_affine": "normalize({0}, {axis}, {eps}, {1}, {2})",
    "recur": "recur({0}, {1}, {start}, {back})",
    "top": "top({0}, {axis}, {size})",
    "floor_divide": "floor_divide({0}, {1})",
    "remainder": "remainder({0}, {1})",
}
"""Templates that are the same for every backend: arithmetic, and functions in the backend's namespace."""

KERNELS: Mapping[str, str] = {
    "scatter_add": "scatter_add({0}, {1}, {size})",
    "convolution": "convolution({0}, {1}, {groups}, {windows})",
    "convolution_x": "convolution_x({0}, {1}, {groups}, {windows})",
    "convolution_k": "convolution_k({0}, {1}, {groups}, {windows})",
    "spaced": "spaced({0}, {axis}, {first}, {by}, {size})",
    "windows": "windows({0}, {axis}, {first}, {by}, {apart}, {outer}, {inner})",
}
"""Functions that some backends have in their namespaces; the array API standard does not suffice for them."""


def functions(library: str) -> dict[str, str]:
    """The templates of functions that a library, given by its name in the code, calls by the language's names.

    Example:
        >>> functions("np")["tanh"]
        'np.tanh({0})'
    """
    return {name: f"{library}.{name}({{0}})" for name in SAME}


class Plain:
    """A backend of a library without autograd: arrays have one type, and no intermediates are kept for gradients."""

    def dtype(self, array: Any) -> str:
        return str(array.dtype)

    def signing(self) -> Callable[[Sequence[Any]], Hashable]:
        return signature_of

    def autocasts(self, array: Any) -> bool:
        return False

    def changing(self, arrays: Sequence[Any]) -> tuple[int, ...]:
        return ()

    def kept(self, make: Callable[..., Any], given: Sequence[Argument], device: str) -> None:
        return None

    def as_one(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def synchronize(self, device: str, *made: Any) -> None:
        return None
