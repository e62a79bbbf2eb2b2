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
from .graph.composition import Tensor, model
from .graph.formula import parameter_count, parameter_formula, parameter_table
from .graph.graph import Graph
from .graph.layers import layer
from .language.registering import register

if TYPE_CHECKING:
    from . import models
    from .compression.adapting import adapt, load_peft, merge, save_peft
    from .compression.compressed import Compressed, load_compressed
    from .compression.compressing import allocate, compress
    from .emitting.program import plan
    from .fitting.weights import fit
    from .graph.freezing import freeze
    from .graph.initialise import init
    from .graph.picture import draw
    from .graph.substitution import substitute
    from .planning.collected import FlopTable, flop_table
    from .planning.gradients import gradient, jvp
    from .planning.planner import flop_count, flop_formula
    from .planning.plans import Plan, Step
    from .running.differentiated import ValueAndGrad, value_and_grad
    from .running.eager import einsum
    from .running.executable import Executable, compile, module, to_backend
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
    "save_peft",
    "substitute",
    "sweep",
    "to_backend",
    "value_and_grad",
]

_WHEN_USED = {
    "adapt": "compression.adapting",
    "load_peft": "compression.adapting",
    "merge": "compression.adapting",
    "save_peft": "compression.adapting",
    "allocate": "compression.compressing",
    "compress": "compression.compressing",
    "Compressed": "compression.compressed",
    "load_compressed": "compression.compressed",
    "models": "models",
    "ValueAndGrad": "running.differentiated",
    "einsum": "running.eager",
    "value_and_grad": "running.differentiated",
    "Executable": "running.executable",
    "compile": "running.executable",
    "module": "running.executable",
    "to_backend": "running.executable",
    "fit": "fitting.weights",
    "freeze": "graph.freezing",
    "gradient": "planning.gradients",
    "jvp": "planning.gradients",
    "draw": "graph.picture",
    "init": "graph.initialise",
    "substitute": "graph.substitution",
    "FlopTable": "planning.collected",
    "flop_table": "planning.collected",
    "flop_count": "planning.planner",
    "flop_formula": "planning.planner",
    "plan": "emitting.program",
    "Plan": "planning.plans",
    "Step": "planning.plans",
    "sweep": "sweeping.making",
    "Sweep": "sweeping.sweeps",
}


def __getattr__(name: str) -> Any:
    """Loads the planner, and what runs on arrays, when first used."""
    if name not in _WHEN_USED:
        raise AttributeError(f"module 'tensornet' has no attribute '{name}'")
    found = importlib.import_module(f".{_WHEN_USED[name]}", __name__)
    value = found if name == "models" else getattr(found, name)
    globals()[name] = value
    return value
