"""Class swaps: a module becomes of another class in its place.

Each such class is made once, and what is of it can be copied and pickled: it is made again where it is read.
What is changed so is a copy of the network that was given.
"""

from __future__ import annotations

import copy
import functools
from typing import Any, Protocol

import torch

from tensornet.errors import EquationError

__all__ = ["become", "copied", "leave"]


def copied(network: torch.nn.Module) -> torch.nn.Module:
    """A copy of a network; tensors that it computes of its parameters and keeps, as pruning does, are copied too.

    Raises:
        EquationError: a parameter is not made before the first call; or it is sparse or nested.
    """
    for name, each in network.named_parameters():
        if isinstance(each, torch.nn.UninitializedParameter):
            raise EquationError(f"'{name}' is not made yet", fix="run the network once on an input first")
        if each.is_nested or each.layout is not torch.strided:
            kind, dense = ("nested", "to_padded_tensor(0)") if each.is_nested else (each.layout, "to_dense()")
            raise EquationError(
                f"'{name}' is {kind}, and not a dense array",
                fix=f"make it dense first: torch.nn.Parameter(parameter.{dense})",
            )
    held = (value for each in network.modules() for value in vars(each).values())
    computed = [value for value in held if isinstance(value, torch.Tensor) and not value.is_leaf]
    return copy.deepcopy(network, {id(value): value.detach().clone() for value in computed})


class Besides(Protocol):
    """What layers of a class do besides what they did."""

    @staticmethod
    def members(name: str) -> dict[str, Any]:
        """What the class has of a name."""


@functools.lru_cache(maxsize=256)
def _class_of(besides: Any, base: type, name: str) -> type:
    own = {"__module__": besides.__module__, "__reduce__": _reduced, "_made_of": (besides, base, name)}
    return type(f"{besides.__name__}{base.__name__}", (besides, base), {**own, **besides.members(name)})


def _reduced(module: Any) -> tuple[Any, ...]:
    return _bare, type(module)._made_of, dict(module.__dict__)


def _bare(besides: Any, base: type, name: str) -> Any:
    made: Any = _class_of(besides, base, name)
    return made.__new__(made)


def become(module: Any, besides: type[Besides], name: str = "") -> None:
    """Makes a module one that does something besides; `name` is what its class has a member for, if it has."""
    base: Any = type(module)
    module.__class__ = _class_of(besides, base, name)


def leave(module: Any) -> None:
    """Makes it again what it was before it became that."""
    _, module.__class__, _ = type(module)._made_of
