"""The public names except the models, which are built from them. Each is loaded when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import BackendError, DtypeError, EquationError, ShapeError, TensornetError, TensornetWarning
from .protocol import offer_reader

if TYPE_CHECKING:
    from .codegen.program import plan
    from .compression.adapting import adapt, load_adapters, load_peft, merge, save_adapters, save_peft
    from .compression.compressed import Compressed, load_compressed
    from .compression.compressing import compress, distill
    from .drawing import draw
    from .fitting.approximating import fit
    from .frontend.composition import Tensor, model
    from .frontend.layers import layer
    from .graph.formulas import parameter_count, parameter_formula, parameter_table
    from .graph.graph import Graph
    from .language.patterns import register
    from .planning.flops import FlopTable, flop_count, flop_formula, flop_table
    from .planning.gradients import gradient, jvp
    from .planning.plans import Plan, Step
    from .runtime.compiling import compile, module, to_backend
    from .runtime.eager import einsum
    from .runtime.executable import Executable
    from .runtime.gradients import ValueAndGrad, value_and_grad
    from .runtime.initial_values import init
    from .sweeping.measuring import sweep
    from .sweeping.sweeps import Sweep
    from .weights.substitution import freeze, substitute

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
    "compile",
    "compress",
    "distill",
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

_WHEN_USED = {
    "compression.adapting": ("adapt", "load_adapters", "load_peft", "merge", "save_adapters", "save_peft"),
    "compression.compressed": ("Compressed", "load_compressed"),
    "compression.compressing": ("compress", "distill"),
    "codegen.program": ("plan",),
    "fitting.approximating": ("fit",),
    "frontend.composition": ("Tensor", "model"),
    "graph.formulas": ("parameter_count", "parameter_formula", "parameter_table"),
    "graph.graph": ("Graph",),
    "runtime.initial_values": ("init",),
    "frontend.layers": ("layer",),
    "language.patterns": ("register",),
    "drawing": ("draw",),
    "weights.substitution": ("freeze", "substitute"),
    "planning.flops": ("FlopTable", "flop_count", "flop_formula", "flop_table"),
    "planning.gradients": ("gradient", "jvp"),
    "planning.plans": ("Plan", "Step"),
    "runtime.compiling": ("compile", "module", "to_backend"),
    "runtime.gradients": ("ValueAndGrad", "value_and_grad"),
    "runtime.eager": ("einsum",),
    "runtime.executable": ("Executable",),
    "sweeping.measuring": ("sweep",),
    "sweeping.sweeps": ("Sweep",),
}
"""The names of each file that are loaded when they are first used: all but the errors and the warning."""

_FILE_OF = {name: file for file, names in _WHEN_USED.items() for name in names}


def __getattr__(name: str) -> Any:
    """Loads a public name when it is first used."""
    if name not in _FILE_OF:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = getattr(importlib.import_module(f".{_FILE_OF[name]}", __package__), name)
    globals()[name] = value
    return value


def _read_graph(text: str) -> Any:
    """Reads a graph from JSON; the front end parses its lines."""
    return importlib.import_module(".frontend.layers", __package__).read_graph(text)


offer_reader("tensornet.graph", _read_graph)
