"""Tensor algebra for deep learning: layers as equations, planned for the device, run anywhere."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .composition import Tensor, model
from .elaboration import layer
from .errors import (
    BackendError,
    DtypeError,
    EquationError,
    ShapeError,
    TensornetError,
    TensornetWarning,
)
from .formula import parameter_count, parameter_formula, parameter_table
from .functions import register
from .graph import Graph

if TYPE_CHECKING:
    from . import models
    from .eager import einsum
    from .executable import Executable, compile, module, to_backend
    from .initialise import init
    from .planner import flop_count, flop_formula, plan
    from .schedule import Plan, Step

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "DtypeError",
    "EquationError",
    "Executable",
    "Graph",
    "Plan",
    "ShapeError",
    "Step",
    "Tensor",
    "TensornetError",
    "TensornetWarning",
    "compile",
    "einsum",
    "flop_count",
    "flop_formula",
    "init",
    "layer",
    "model",
    "models",
    "module",
    "parameter_count",
    "parameter_formula",
    "parameter_table",
    "plan",
    "register",
    "to_backend",
]

_WHEN_USED = {
    "models": "models",
    "einsum": "eager",
    "Executable": "executable",
    "compile": "executable",
    "module": "executable",
    "to_backend": "executable",
    "init": "initialise",
    "flop_count": "planner",
    "flop_formula": "planner",
    "plan": "planner",
    "Plan": "schedule",
    "Step": "schedule",
}


def __getattr__(name: str) -> Any:
    """Loads the planner, and what runs on arrays, when first used."""
    if name not in _WHEN_USED:
        raise AttributeError(f"module 'tensornet' has no attribute '{name}'")
    found = importlib.import_module(f".{_WHEN_USED[name]}", __name__)
    value = found if name == "models" else getattr(found, name)
    globals()[name] = value
    return value
