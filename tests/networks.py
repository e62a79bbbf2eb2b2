"""Networks of torch that several tests need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn


class Calling(nn.Module):
    """Modules by their names, and what a call does with them."""

    def __init__(self, call: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.call = call
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *args: Any, **options: Any) -> Any:
        return self.call(self, *args, **options)


def turned(outs: int, ins: int) -> nn.Module:
    """The linear layer of transformers whose weight is transposed."""
    return pytest.importorskip("transformers.pytorch_utils").Conv1D(outs, ins)


def replica_of(network: nn.Module, times: float = 1) -> Any:
    """A copy as those of `torch.nn.parallel.replicate`, which needs devices: its parameters are mere attributes."""
    parts: dict[Any, Any] = {each: each._replicate_for_data_parallel() for each in network.modules()}
    for part, replica in parts.items():
        replica._former_parameters = {
            name: each * times for name, each in part._parameters.items() if each is not None
        }
        for name, child in part._modules.items():
            setattr(replica, name, parts[child])
        for name, each in replica._former_parameters.items():
            setattr(replica, name, each)
    return parts[network]
