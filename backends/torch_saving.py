"""What `save_pretrained` of a compressed network of transformers does: `from_pretrained` cannot make its factors."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch

from tensornet.compression.allocating import Allocation
from tensornet.compression.compressed import PRETRAINED, Compressed
from tensornet.errors import EquationError

__all__ = ["saves_itself"]

WEIGHTS = ("model*.safetensors*", "pytorch_model*.bin*")
"""The files that `from_pretrained` reads."""


def saves_itself(network: torch.nn.Module, allocation: Allocation) -> None:
    """Has `save_pretrained` write a file that `tensornet.load_compressed` reads, and `from_pretrained` does not find.

    That of a part of a network refuses.
    """
    for path, each in network.named_modules():
        if callable(getattr(type(each), "save_pretrained", None)):
            holder: Any = each
            holder.save_pretrained = functools.partial(_save, each, None if path else allocation)


def _save(
    network: Any,
    allocation: Allocation | None,
    save_directory: str | Path,
    is_main_process: bool = True,
    push_to_hub: bool = False,
    **_: Any,
) -> None:
    """Writes the configuration as transformers does, and the weights as `Compressed.save` does.

    Raises:
        EquationError: the network is a part of a compressed one; the folder has weights of another model.
    """
    folder = Path(save_directory)
    if allocation is None or push_to_hub:
        what = "is pushed to a hub" if push_to_hub else "is a part of another"
        raise EquationError(
            f"a compressed {type(network).__name__} that {what} cannot be saved so",
            fix='write the whole: found.save("small.safetensors") of what tensornet.compress returned',
        )
    others = [each.name for pattern in WEIGHTS for each in folder.glob(pattern)]
    if others:
        raise EquationError(
            f"{folder} has the weights of another model, {others[0]}, which from_pretrained would read",
            fix="give a new folder",
        )
    if is_main_process:
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("config", "generation_config"):
            if getattr(network, name, None) is not None:
                getattr(network, name).save_pretrained(folder)
        (folder / PRETRAINED).unlink(missing_ok=True)
        Compressed(network, None, allocation).save(folder / PRETRAINED)
