"""Class swaps: a module gets another class in place.

Each new class is created once. Its instances can be copied and pickled: loading a pickle creates the class again.
Callers swap classes only in a copy of the given network.
"""

from __future__ import annotations

import copy
import functools
from typing import Any, Protocol

import torch

from tensornet.errors import EquationError

__all__ = ["become", "copied", "leave"]


def copied(network: torch.nn.Module) -> torch.nn.Module:
    """A copy of a network. Stored tensors that were computed from parameters, as by pruning, are copied detached.

    Raises:
        EquationError: a lazy parameter is not initialized yet, or a parameter is sparse or nested.
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
    """A mixin: the methods that layers gain in addition to those of their class."""

    @staticmethod
    def members(name: str) -> dict[str, Any]:
        """Further members of the new class, for a parameter of this name."""


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
    """Adds a mixin to the class of a module. `name` is the parameter that the mixin's members are for, if any."""
    base: Any = type(module)
    module.__class__ = _class_of(besides, base, name)


def leave(module: Any) -> None:
    """Gives a module the class that it had before `become`."""
    _, module.__class__, _ = type(module)._made_of
