"""Layers and models as equations, independent of any backend.

`create(name, **settings)` builds one by its name; `names()` lists the names.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from enum import Enum
from typing import Any

from tensornet.errors import EquationError, near
from tensornet.graph.graph import Graph
from tensornet.token_orders import FactorizationOrder, factorize, see_before
from tensornet.weights.factorizations import tensorize

from .attention import attention, dot_product_attention
from .bert import bert
from .blocks import gated_feed_forward, mixture_of_experts, rms_norm
from .causal import gpt2, llama
from .clip import clip_text, clip_vision
from .convert import from_torch, from_transformers
from .convolution import convolution, convolutional_stem, residual_block
from .losses import cross_entropy, permutation_loss
from .multilinear import linear, mode_dot, multi_mode_dot, tcl, trl, tucker_to_tensor
from .perceiver import perceiver
from .positions import fourier_features, resize_positions, rotary_embedding
from .recurrent import gru, linear_attention, lstm, matrix_product, rnn, state_space
from .swin import swin, window_attention
from .tensor_swin import tensor_swin, tensor_window_attention
from .transformer import transformer, transformer_classifier
from .vit import deit, vit
from .xlnet import xlnet

__all__ = [
    "REQUIRED",
    "attention",
    "bert",
    "clip_text",
    "clip_vision",
    "FactorizationOrder",
    "convolution",
    "convolutional_stem",
    "create",
    "cross_entropy",
    "deit",
    "dot_product_attention",
    "gated_feed_forward",
    "gpt2",
    "gru",
    "lstm",
    "rnn",
    "linear",
    "linear_attention",
    "matrix_product",
    "state_space",
    "llama",
    "mixture_of_experts",
    "mode_dot",
    "multi_mode_dot",
    "factorize",
    "fourier_features",
    "from_torch",
    "from_transformers",
    "names",
    "perceiver",
    "permutation_loss",
    "residual_block",
    "resize_positions",
    "rms_norm",
    "rotary_embedding",
    "see_before",
    "settings",
    "swin",
    "tcl",
    "tensor_swin",
    "tensor_window_attention",
    "tensorize",
    "transformer",
    "transformer_classifier",
    "trl",
    "tucker_to_tensor",
    "vit",
    "window_attention",
    "xlnet",
]

_MAKERS: dict[str, Callable[..., Graph]] = {
    name: each for name, each in globals().items() if hasattr(each, "presets")
}
for _make in tuple(_MAKERS.values()):
    for _name, _settings in _make.presets.items():  # type: ignore[attr-defined]
        _MAKERS[_name] = functools.partial(_make, **_settings)


def names() -> tuple[str, ...]:
    """The names that `create` accepts."""
    return tuple(sorted(_MAKERS))


def create(name: str, /, **changes: Any) -> Graph:
    """Builds the layer or model with the given name.

    Args:
        name: one of `names()`.
        **changes: the settings; see `settings(name)`.

    Raises:
        EquationError: no layer or model has that name.
        ShapeError: a setting is unknown, missing, of another type, or does not fit.

    Example:
        >>> import tensornet as tn
        >>> tn.parameter_count(create("tcl", sizes=(4, 4), ranks=2))
        16
    """
    return _maker(name)(**changes)


class Required(Enum):
    """The type of `REQUIRED`, which replaces the default of a setting that has none."""

    REQUIRED = "required"

    def __repr__(self) -> str:
        return self.value


REQUIRED = Required.REQUIRED
"""Marks a setting that must always be given; see `settings`."""


def settings(name: str) -> dict[str, Any]:
    """The settings of a layer or model and their defaults; `REQUIRED` for a setting without a default.

    Raises:
        EquationError: no layer or model has that name.

    Example:
        >>> settings("mode_dot")["mode"]
        required
    """
    known = inspect.signature(_maker(name)).parameters.values()
    return {each.name: REQUIRED if each.default is each.empty else each.default for each in known}


def __dir__() -> list[str]:
    """The public names."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def _maker(name: str) -> Callable[..., Graph]:
    if name not in names():
        fix = f"{near(str(name), _MAKERS)}there are {', '.join(names())}"
        raise EquationError(f"there is no layer or model '{name}'", fix=fix)
    return _MAKERS[name]
