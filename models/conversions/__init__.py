"""Converters of models, one file for each family: settings from a configuration, and the names of parameters."""

from __future__ import annotations

import re

from .altered import check_unaltered
from .bert import BERTS
from .clip import CLIPS
from .gpt2 import GPT2S
from .llama import LLAMAS
from .marian import MARIANS
from .names import Converter, Made, Names, known_base, resolved
from .perceiver import PERCEIVERS
from .swin import SWINS
from .torch_attention import TORCH_TRANSFORMERS
from .torch_recurrent import TORCH_RECURRENT
from .torch_sequences import TORCH_LAYERS
from .vit import VITS
from .xlnet import XLNETS

__all__ = [
    "TORCH",
    "TRANSFORMERS",
    "UNREAD",
    "Converter",
    "Made",
    "Names",
    "check_unaltered",
    "known_base",
    "resolved",
]

TRANSFORMERS: dict[str, Converter] = {
    **VITS,
    **CLIPS,
    **SWINS,
    **PERCEIVERS,
    **BERTS,
    **XLNETS,
    **GPT2S,
    **LLAMAS,
    **MARIANS,
}
"""Converters by the class of `transformers`."""

TORCH: dict[str, Converter] = {**TORCH_LAYERS, **TORCH_TRANSFORMERS, **TORCH_RECURRENT, **MARIANS}
"""Converters by the class of torch."""

UNREAD = re.compile(
    r"pooler\.|mask_token$|mask_emb$|seg_embed$|r_s_bias$|(embed_positions|shared)\.weight$|^swin\.layernorm\."
    r"|^post_layernorm\."
)
"""Parameters that only optional outputs depend on, and tables that we compute."""
