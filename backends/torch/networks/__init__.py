"""Torch networks that were built elsewhere: compressed weights, adapters, and the layers that hold them."""

from .adapters import adapted, adapters_of, load_peft, merged, save_peft, with_adapters
from .compressed import compress, restored
from .distilling import distilled
from .running import relative_time

__all__ = [
    "adapted",
    "adapters_of",
    "distilled",
    "load_peft",
    "merged",
    "compress",
    "relative_time",
    "restored",
    "save_peft",
    "with_adapters",
]
