"""Tensor algebra for deep learning: layers as equations, planned for the device, run anywhere."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import backends  # noqa: F401 - they offer themselves
from .errors import (
    BackendError,
    DtypeError,
    EquationError,
    ShapeError,
    TensornetError,
    TensornetWarning,
)

if TYPE_CHECKING:
    from . import models
    from .compression.adapting import adapt, load_adapters, load_peft, merge, save_adapters, save_peft
    from .compression.compressed import Compressed, load_compressed
    from .compression.compressing import allocate, compress
    from .emitting.program import plan
    from .fitting.weights import fit
    from .graph.composition import Tensor, model
    from .graph.formula import parameter_count, parameter_formula, parameter_table
    from .graph.freezing import freeze
    from .graph.graph import Graph
    from .graph.layers import layer
    from .graph.picture import draw
    from .graph.substitution import substitute
    from .language.registering import register
    from .planning.collected import FlopTable, flop_table
    from .planning.gradients import gradient, jvp
    from .planning.planner import flop_count, flop_formula
    from .planning.plans import Plan
    from .planning.steps import Step
    from .running.compiling import compile, module, to_backend
    from .running.differentiated import ValueAndGrad, value_and_grad
    from .running.eager import einsum
    from .running.executable import Executable
    from .running.starting import init
    from .sweeping.making import sweep
    from .sweeping.sweeps import Sweep

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "Compressed",
    "DtypeError",
    "EquationError",
    "Executable",
    "FlopTable",
    "Graph",
    "Plan",
    "ShapeError",
    "Step",
    "Sweep",
    "Tensor",
    "TensornetError",
    "TensornetWarning",
    "ValueAndGrad",
    "adapt",
    "allocate",
    "compile",
    "compress",
    "draw",
    "einsum",
    "fit",
    "flop_count",
    "flop_formula",
    "flop_table",
    "freeze",
    "gradient",
    "init",
    "jvp",
    "layer",
    "load_adapters",
    "load_compressed",
    "load_peft",
    "merge",
    "model",
    "models",
    "module",
    "parameter_count",
    "parameter_formula",
    "parameter_table",
    "plan",
    "register",
    "save_adapters",
    "save_peft",
    "substitute",
    "sweep",
    "to_backend",
    "value_and_grad",
]

_ROOMS = ("language", "models")
_WHEN_USED = {
    "compression.adapting": ("adapt", "load_adapters", "load_peft", "merge", "save_adapters", "save_peft"),
    "compression.compressed": ("Compressed", "load_compressed"),
    "compression.compressing": ("allocate", "compress"),
    "emitting.program": ("plan",),
    "fitting.weights": ("fit",),
    "graph.composition": ("Tensor", "model"),
    "graph.formula": ("parameter_count", "parameter_formula", "parameter_table"),
    "graph.freezing": ("freeze",),
    "graph.graph": ("Graph",),
    "running.starting": ("init",),
    "graph.layers": ("layer",),
    "graph.picture": ("draw",),
    "graph.substitution": ("substitute",),
    "language.registering": ("register",),
    "planning.collected": ("FlopTable", "flop_table"),
    "planning.gradients": ("gradient", "jvp"),
    "planning.planner": ("flop_count", "flop_formula"),
    "planning.plans": ("Plan", "Step"),
    "running.compiling": ("compile", "module", "to_backend"),
    "running.differentiated": ("ValueAndGrad", "value_and_grad"),
    "running.eager": ("einsum",),
    "running.executable": ("Executable",),
    "sweeping.making": ("sweep",),
    "sweeping.sweeps": ("Sweep",),
}
"""Where the names stand that are loaded when they are first used: all but what is needed to say so."""

_FILE_OF = {name: file for file, names in _WHEN_USED.items() for name in names}


def __getattr__(name: str) -> Any:
    """Loads what is first used, and no more."""
    if name in _ROOMS:
        return importlib.import_module(f".{name}", __name__)
    if name not in _FILE_OF:
        raise AttributeError(f"module 'tensornet' has no attribute '{name}'")
    value = getattr(importlib.import_module(f".{_FILE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """What is public, loaded or not."""
    return sorted({*__all__, *_ROOMS, "backends", *(name for name in globals() if name.startswith("__"))})
