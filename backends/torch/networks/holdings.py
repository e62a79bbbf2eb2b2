"""The weights of a torch network that may become factors, the layers that hold them, and their second moments.

These are the moments of what weights are multiplied by, and of the gradients of what they make.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch

from tensornet.compression.compressing import included
from tensornet.compression.levels import Candidate, alone
from tensornet.errors import EquationError
from tensornet.fitting.approximating import numbers
from tensornet.fitting.metrics import DAMPING, Metric

from .adapters import Adapted
from .factorized import CONVOLUTION, EMBEDDING, Kind, kinds_of

Sides: TypeAlias = dict[tuple[int, ...], torch.Tensor]
"""Some dimensions of a weight to a matrix of second moments along them."""

ROWS = 4096
"""The most rows of one call that count for second moments; of more, some at equal distances."""

WIDE, MOST = 1152, 4096
"""The most columns of a kernel with second moments together; of more, channels and places have theirs; most at all."""

OUTPUT_DAMPING = 2e-3
"""The damping where second moments of gradients weigh weights, which few directions dominate."""


def _metric(sides: Sides, shape: tuple[int, ...], damping: float) -> Metric | None:
    """The metric with these sides, scaled in place. All after the first are of trace 1, as is what dimensions without
    moments count.
    """
    missing = math.prod(size for n, size in enumerate(shape) if not any(n in dims for dims in sides))
    found: Metric | None = None
    for number, (dims, each) in reversed([*enumerate(sides.items())]):
        matrix = each.cpu().numpy()
        matrix /= (float(matrix.trace()) or 1.0) if number else missing
        found = Metric(dims, matrix, damping, other=found)
    return found


def _add(sums: Sides, more: Mapping[tuple[int, ...], torch.Tensor], count: float) -> None:
    for dims, each in more.items():
        if dims not in sums:
            sums[dims] = torch.zeros_like(each, dtype=torch.float64)
        sums[dims].add_(each, alpha=count)


def _second(
    rows: torch.Tensor, dims: tuple[int, ...], shape: tuple[int, ...], weights: torch.Tensor | None
) -> Sides:
    """Second moments of rows along some dimensions of a weight; of too many columns channels and places apart.

    Args:
        rows: a row for each position; with `weights`, the number of the one column that is 1, and each counts so much.
        dims, shape: those dimensions, and the shape of the weight.
        weights: how much each position counts.
    """
    sizes = [shape[n] for n in dims]
    count = math.prod(sizes)
    if weights is not None:
        found = torch.bincount(rows[:, 0].long(), weights.double(), minlength=count)
        return {dims: torch.diag(found)} if count <= MOST else {}
    if count <= (MOST if len(dims) == 1 else WIDE):
        return {dims: rows.mT @ rows}
    if len(dims) == 1:
        return {}
    array = rows.reshape(len(rows), sizes[0], -1)
    by_channel, by_place = array.mT.reshape(-1, sizes[0]), array.reshape(-1, array.shape[-1])
    return _second(by_channel, dims[:1], shape, None) | _second(by_place, dims[1:], shape, None)


def _rows(x: torch.Tensor, kept: torch.Tensor | None, ends: int = 1) -> tuple[torch.Tensor, int]:
    """Rows of a tensor, and how many each stands for. Only these are copied: patches overlap, and all take much memory.

    Args:
        x: the tensor; the last `ends` dimensions are a row.
        kept: a mask of the first dimensions: which rows count.
    """
    found = x[None] if kept is None else x[kept][None]
    before = found.shape[: found.ndim - ends]
    step = math.ceil(math.prod(before) / ROWS) or 1
    places = torch.arange(0, math.prod(before), step, device=x.device)
    rows = found[torch.unravel_index(places, before)].flatten(1)
    return rows.to(torch.float64 if x.dtype == torch.float64 else torch.float32), step


def _channels_last(module: Any, x: torch.Tensor) -> torch.Tensor:
    """Images, or one image, with their channels last."""
    return x.movedim(-1 - len(module.kernel_size), -1)


def _patches(module: Any, x: torch.Tensor) -> torch.Tensor:
    """What the kernel of a convolution is multiplied by at each place, in the last dimensions of a view."""
    ends, places = module._reversed_padding_repeated_twice, len(module.kernel_size)
    x = x if x.ndim > 1 + places else x[None]
    x = torch.nn.functional.pad(x, ends, mode=module.padding_mode.replace("zeros", "constant"))
    for n, (size, stride, apart) in enumerate(
        zip(module.kernel_size, module.stride, module.dilation, strict=True)
    ):
        x = x.unfold(2 + n, apart * (size - 1) + 1, stride)[..., ::apart]
    return x.movedim(1, 1 + places)


Patterns: TypeAlias = str | Sequence[str]


@dataclass(eq=False)
class Holding:
    """A weight, the layers that hold it, and sums over their calls.

    Attributes:
        path: its first name.
        weight: the parameter.
        holders: the layers, with their kinds. Several if the weight is tied.
        rows: the number of rows of the result in the largest call.
        inputs: Σ x·xᵀ, x what the weight is multiplied by.
        both: Σ ‖g‖²·x·xᵀ and Σ ‖x‖²·g·gᵀ, g the gradient of the network's output by the result.
        total: Σ ‖x‖²·‖g‖², the trace of each of `both`.
        has_inputs: whether `inputs` are added up.
        stays: why it stays dense, if it has to.
    """

    path: str
    weight: torch.nn.Parameter
    holders: list[tuple[Any, Kind]]
    rows: int = 0
    inputs: Sides = field(default_factory=dict)
    both: Sides = field(default_factory=dict)
    total: float = 0.0
    has_inputs: bool = True
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

    def columns(self, kind: Kind) -> tuple[int, ...]:
        """The dimensions of the weight along which layers of a kind sum, or of an embedding are looked up."""
        if kind == CONVOLUTION:
            return tuple(range(1, len(self.shape)))
        return (0,) if kind == EMBEDDING else kind.columns

    def clear(self) -> None:
        """Forgets all calls."""
        self.rows, self.inputs, self.both, self.total = 0, {}, {}, 0.0

    def see(
        self, module: Any, kind: Kind, x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor | None
    ) -> None:
        """Adds what one call reads and makes, and the gradient of that when it comes.

        Args:
            module, kind: the layer.
            x, y: its operand and its result.
            mask: which rows count.
        """
        is_kernel, shape, columns = kind == CONVOLUTION, self.shape, self.columns(kind)
        self.rows = max(self.rows, y.numel() // (shape[0] if is_kernel else y.shape[-1]))
        if self.groups > 1:
            return
        outs = tuple(n for n in range(len(shape)) if n not in columns)
        rows, count, kept = self.operands(module, kind, x, y, mask)
        ones = rows.new_ones(len(rows)) if kind == EMBEDDING else None
        if self.has_inputs:
            _add(self.inputs, _second(rows, columns, shape, ones), count)

        def back(gradient: torch.Tensor) -> None:
            g, times = _rows(_channels_last(module, gradient) if is_kernel else gradient, kept)
            ours = g.pow(2).sum(1)
            theirs = rows.pow(2).sum(1) if ones is None else ones
            read, weights = (rows * ours[:, None].sqrt(), None) if ones is None else (rows, ours)
            _add(self.both, _second(read, columns, shape, weights), times)
            _add(self.both, _second(g * theirs[:, None].sqrt(), outs, shape, None), times)
            self.total += times * float((ours * theirs).double().sum())

        if y.requires_grad:
            y.register_hook(back)  # type: ignore[no-untyped-call]

    def operands(
        self, module: Any, kind: Kind, x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, int, torch.Tensor | None]:
        """Rows of what one call, as for `see`, multiplies by; how many each stands for; which of all count."""
        is_kernel = kind == CONVOLUTION
        is_masked = mask is not None and not is_kernel and x.shape[: mask.ndim] == mask.shape
        kept = mask.bool() if mask is not None and is_masked else None
        x = x.detach()
        x = _patches(module, x) if is_kernel else x[..., None] if kind == EMBEDDING else x
        rows, count = _rows(x, kept, len(self.columns(kind)) if is_kernel else 1)
        return rows, count, kept

    def weighed(self, candidate: Candidate, by_output: bool) -> Candidate:
        """The candidate weighed by inputs alone or by both; as it is if there were no calls."""
        if not by_output:
            metric = _metric(self.inputs, candidate.shape, DAMPING)
            return candidate if metric is None else replace(candidate, metric=metric)
        metric = _metric(self.both, candidate.shape, OUTPUT_DAMPING) if self.total else None
        if metric is None:
            return candidate
        scale = metric.norm(numbers(candidate.array, candidate.path)) ** 2
        return replace(candidate, metric=metric, scale=scale)

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
        if isinstance(module, torch.jit.ScriptModule):
            fix = "give the module as it was before it was scripted"
        raise EquationError(f"the network has no weight that may become factors{told}", fix=fix)
    wanted = included(known, include, exclude, "weight that may become factors", "weights")
    return [each for each in whole if each.path in wanted]


def finite(holdings: Sequence[Holding]) -> list[Holding]:
    """The weights, without other matrices that are not finite, such as masks."""
    return [each for each in holdings if not each.kind.is_whole or bool(each.weight.isfinite().all())]
