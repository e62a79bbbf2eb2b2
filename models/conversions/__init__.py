"""Converters of models: settings from a configuration, and the names of parameters."""

from __future__ import annotations

import re

from .altered import check_unaltered
from .images import IMAGES
from .names import Converter, Made, Names, known_base, resolved
from .texts import TEXTS
from .torch_modules import MODULES

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

TRANSFORMERS: dict[str, Converter] = {**IMAGES, **TEXTS}
"""Converters by the class of `transformers`."""

TORCH: dict[str, Converter] = {
    **MODULES,
    **{kind: converter for kind, converter in TEXTS.items() if kind.startswith("Marian")},
}
"""Converters by the class of torch."""

UNREAD = re.compile(
    r"pooler\.|mask_token$|mask_emb$|seg_embed$|r_s_bias$|(embed_positions|shared)\.weight$|^swin\.layernorm\."
    r"|^post_layernorm\."
)
"""Parameters that only optional outputs depend on, and tables that we compute."""
