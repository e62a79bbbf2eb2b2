"""Layers and models as equations; nothing here knows a backend.

`create(name, **settings)` makes one by name, `names()` lists them.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from tensornet.errors import EquationError, ShapeError
from tensornet.graph import Graph

from .linear import linear
from .multilinear import mode_dot, multi_mode_dot, tucker_to_tensor
from .tcl import tcl
from .trl import trl

__all__ = [
    "create",
    "linear",
    "mode_dot",
    "multi_mode_dot",
    "names",
    "settings",
    "tcl",
    "trl",
    "tucker_to_tensor",
]

_MAKERS: dict[str, Callable[..., Graph]] = {
    "linear": linear,
    "mode_dot": mode_dot,
    "multi_mode_dot": multi_mode_dot,
    "tcl": tcl,
    "trl": trl,
    "tucker_to_tensor": tucker_to_tensor,
}


def names() -> tuple[str, ...]:
    """The names that `create` knows."""
    return tuple(sorted(_MAKERS))


def create(name: str, **changes: Any) -> Graph:
    """The layer or model of that name.

    Args:
        name: one of `names()`.
        **changes: its settings; see `settings(name)`.

    Raises:
        EquationError: there is none of that name.
        ShapeError: a setting is unknown, missing or does not fit.

    Example:
        >>> import tensornet as tn
        >>> tn.parameter_count(create("tcl", sizes=(4, 4), ranks=2))
        16
    """
    if name not in _MAKERS:
        near = difflib.get_close_matches(name, _MAKERS, 1)
        fix = f"did you mean '{near[0]}'? " if near else ""
        raise EquationError(
            f"there is no layer or model '{name}'", fix=f"{fix}there are {', '.join(names())}"
        )
    known = settings(name)
    for setting in changes:
        if setting not in known:
            raise ShapeError(f"'{name}' has no setting '{setting}'", fix=f"its settings: {', '.join(known)}")
    missing = [
        each for each, default in known.items() if default is inspect.Parameter.empty and each not in changes
    ]
    if missing:
        raise ShapeError(f"'{name}' needs {', '.join(missing)}", fix=f"its settings: {', '.join(known)}")
    return _MAKERS[name](**changes)


def settings(name: str) -> dict[str, Any]:
    """The settings of a layer or model, with their defaults."""
    return {each.name: each.default for each in inspect.signature(_MAKERS[name]).parameters.values()}
