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
from .bert import PRESETS as BERTS
from .bert import bert
from .blocks import gated_feed_forward, rms_norm
from .classifier import transformer_classifier
from .clip import TEXT_PRESETS as CLIP_TEXTS
from .clip import VISION_PRESETS as CLIP_VISIONS
from .clip import clip_text, clip_vision
from .convert import from_torch, from_transformers
from .convolution import convolution, convolutional_stem, residual_block
from .deit import PRESETS as DEITS
from .deit import deit
from .gpt2 import PRESETS as GPT2S
from .gpt2 import gpt2
from .linear import linear
from .llama import PRESETS as LLAMAS
from .llama import llama
from .losses import cross_entropy, permutation_loss
from .mixture import mixture_of_experts
from .multilinear import mode_dot, multi_mode_dot, tucker_to_tensor
from .perceiver import PRESETS as PERCEIVERS
from .perceiver import perceiver
from .positions import fourier_features, rotary_embedding
from .recurrent import gru, lstm, rnn
from .resize import resize_positions
from .sequences import linear_attention, matrix_product, state_space
from .swin import PRESETS as SWINS
from .swin import swin, window_attention
from .tcl import tcl
from .tensor_swin import PRESETS as TENSOR_SWINS
from .tensor_swin import tensor_swin, tensor_window_attention
from .transformer import PRESETS as TRANSFORMERS
from .transformer import transformer
from .trl import trl
from .vit import PRESETS as VITS
from .vit import vit
from .xlnet import PRESETS as XLNETS
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

_PRESETS: tuple[tuple[Callable[..., Graph], dict[str, dict[str, Any]]], ...] = (
    (bert, BERTS),
    (clip_text, CLIP_TEXTS),
    (clip_vision, CLIP_VISIONS),
    (deit, DEITS),
    (gpt2, GPT2S),
    (llama, LLAMAS),
    (perceiver, PERCEIVERS),
    (swin, SWINS),
    (tensor_swin, TENSOR_SWINS),
    (transformer, TRANSFORMERS),
    (vit, VITS),
    (xlnet, XLNETS),
)

_MAKERS: dict[str, Callable[..., Graph]] = {
    **{name: globals()[name] for name in __all__ if hasattr(globals().get(name), "checked")},
    **{
        name: functools.partial(each, **preset)
        for each, presets in _PRESETS
        for name, preset in presets.items()
    },
}


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
