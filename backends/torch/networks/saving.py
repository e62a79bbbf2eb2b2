"""Copies of networks, and saving of compressed ones in place of `save_pretrained`.

`from_pretrained` creates neither factors nor adapters: it would draw them at random or drop them. The files have
another name, so that it finds none.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import torch

from tensornet.compression.compressed import PRETRAINED
from tensornet.errors import EquationError

METHOD = "save_pretrained"

Writing: TypeAlias = "Callable[[torch.nn.Module, Path], Path]"
"""A function that writes a network to a file."""


def check_dense(network: torch.nn.Module) -> None:
    """Raises an error unless all parameters are dense arrays.

    Raises:
        EquationError: a lazy parameter is not initialized yet, or a parameter is sparse or nested.
    """
    for name, each in network.named_parameters():
        if isinstance(each, torch.nn.UninitializedParameter):
            raise EquationError(f"'{name}' is not made yet", fix="run the network once on an input first")
        if each.is_nested or each.layout is not torch.strided:
            kind, dense = ("nested", "to_padded_tensor(0)") if each.is_nested else (each.layout, "to_dense()")
            raise EquationError(
                f"'{name}' is {kind}, and not a dense array",
                fix=f"make it dense first: torch.nn.Parameter(parameter.{dense})",
            )


def copied(network: torch.nn.Module) -> torch.nn.Module:
    """A copy of a network. Stored tensors that were computed from parameters, as by pruning, are copied detached.

    Raises:
        EquationError: a parameter is no dense array.
    """
    check_dense(network)
    held = (value for each in network.modules() for value in vars(each).values())
    computed = [value for value in held if isinstance(value, torch.Tensor) and not value.is_leaf]
    return copy.deepcopy(network, {id(value): value.detach().clone() for value in computed})


def saves_itself(network: torch.nn.Module, write: Writing, instead: str) -> None:
    """Makes `save_pretrained` write a file of this library, which `from_pretrained` does not find.

    `save_pretrained` of a part of the network raises an error.

    Args:
        network: the network.
        write: writes the file.
        instead: the advice in errors on how to save the network.
    """
    for path, each in network.named_modules():
        if callable(getattr(type(each), METHOD, None)):
            before = each.__dict__.get(METHOD)
            each.__dict__[METHOD] = functools.partial(
                _save, each, before=before, write=None if path else write, instead=instead
            )


def saves_as_before(network: torch.nn.Module) -> None:
    """Undoes `saves_itself`: `save_pretrained` works as before."""
    for each in network.modules():
        if (now := each.__dict__.pop(METHOD, None)) is not None and now.keywords["before"] is not None:
            each.__dict__[METHOD] = now.keywords["before"]


def _save(
    network: Any,
    save_directory: str | Path,
    is_main_process: bool = True,
    push_to_hub: bool = False,
    *,
    write: Writing | None,
    instead: str,
    **_: Any,
) -> None:
    """Writes the configuration as transformers does, and the weights as `write` does.

    Raises:
        EquationError: the network is a part of a changed one, it is to be pushed to a hub, or the folder has weights of
            another model.
    """
    folder = Path(save_directory)
    if write is None or push_to_hub:
        what = "is pushed to a hub" if push_to_hub else "is a part of another"
        raise EquationError(
            f"a changed {type(network).__name__} that {what} cannot be saved so",
            fix=f"write the whole: {instead}",
        )
    if others := [*folder.glob("model*.safetensors*"), *folder.glob("pytorch_model*.bin*")]:
        raise EquationError(
            f"{folder} has the weights of another model, {others[0].name}, which from_pretrained would read",
            fix="give a new folder",
        )
    if is_main_process:
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("config", "generation_config"):
            if getattr(network, name, None) is not None:
                getattr(network, name).save_pretrained(folder)
        (folder / PRETRAINED).unlink(missing_ok=True)
        write(network, folder / PRETRAINED)
