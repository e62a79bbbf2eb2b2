"""The weights of a torch network that may become factors, and the layers that hold them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from tensornet.compression.compressing import included
from tensornet.compression.levels import Candidate, alone
from tensornet.errors import EquationError

from .adapters import Adapted
from .factorized import CONVOLUTION, Kind, kinds_of
from .moments import Moments

Patterns: TypeAlias = str | Sequence[str]


@dataclass(eq=False)
class Holding:
    """A weight, and the layers that hold it.

    Attributes:
        path: its first name.
        weight: the parameter.
        holders: the layers, with their kinds. Several if the weight is tied.
        rows: the number of rows of the result in the largest call.
        moments: of what it is multiplied by, and of gradients.
        stays: why it stays dense, if it has to.
    """

    path: str
    weight: torch.nn.Parameter
    holders: list[tuple[Any, Kind]]
    rows: int = 0
    moments: Moments = field(default_factory=Moments)
    stays: str = ""

    @property
    def kind(self) -> Kind:
        """The kind of the first layer."""
        return self.holders[0][1]

    @property
    def groups(self) -> int:
        """The number of groups of a convolution, else 1."""
        return self.holders[0][0].groups if self.kind == CONVOLUTION else 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight."""
        return tuple(self.weight.shape)

    @property
    def dims(self) -> tuple[tuple[int, ...], ...]:
        """The dimensions of the weight, each with one axis."""
        return tuple((size,) for size in self.shape)

    def see(
        self, module: Any, kind: Kind, x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor | None
    ) -> None:
        """Adds the operand x and the result y of one call to the statistics, and the gradient of y when it comes."""
        self.rows = max(self.rows, y.numel() // (self.shape[0] if kind == CONVOLUTION else y.shape[-1]))
        if self.groups == 1:
            is_masked = mask is not None and kind != CONVOLUTION and x.shape[: mask.ndim] == mask.shape
            self.moments.see(module, kind, x, y, mask.bool() if mask is not None and is_masked else None)

    def candidate(self) -> Candidate:
        """The weight as a candidate for factors under a budget."""
        kind, count = self.kind, len(self.shape)
        columns = tuple(range(1, count)) if kind == CONVOLUTION else kind.columns
        lone = alone(self.dims, columns, groups=self.groups)
        weight, rows = self.weight.detach().cpu(), max(1, self.rows)
        return Candidate(self.path, self.dims, lone, weight, rows, stays=self.stays)


def holdings_of(module: torch.nn.Module, include: Patterns, exclude: Patterns) -> list[Holding]:
    """The weights of a network that may become factors, each once."""
    found: dict[int, Holding] = {}
    pairs = ((name, each, kind) for name, each in module.named_modules() for kind in kinds_of(each))
    for name, each, kind in pairs:
        weight = each._parameters.get(kind.parameter)
        if weight is None or not weight.is_floating_point() or not weight.numel():
            continue
        path = f"{name}.{kind.parameter}" if name else kind.parameter
        if isinstance(each, Adapted):
            raise EquationError(f"'{path}' has an adapter", fix="merge it first: tensornet.merge(module)")
        if id(weight) in found:
            found[id(weight)].holders.append((each, kind))
        else:
            found[id(weight)] = Holding(path, weight, [(each, kind)])
    elsewhere = Counter(id(weight) for each in module.modules() for weight in each._parameters.values())
    whole = [each for key, each in found.items() if elsewhere[key] == len(each.holders)]
    known = [each.path for each in whole]
    if not known:
        owners = ((each, held) for each in module.modules() for held in each._parameters.values())
        others = sorted({type(each).__name__ for each, held in owners if held is not None and held.ndim > 1})
        told = f", only those of {', '.join(others)}" if others else ""
        fix = "give one with linear layers, convolutions or embeddings"
        raise EquationError(f"the network has no weight that may become factors{told}", fix=fix)
    wanted = included(known, include, exclude, "weight that may become factors", "weights")
    return [each for each in whole if each.path in wanted]


def finite(holdings: Sequence[Holding]) -> list[Holding]:
    """The weights, without other matrices that are not finite, such as masks."""
    return [each for each in holdings if not each.kind.is_whole or bool(each.weight.isfinite().all())]
