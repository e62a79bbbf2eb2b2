"""Compressed networks: torch networks with factorized weights, all under one budget."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from tensornet.compression.allocating import Allocation, Budget, allotted, flat
from tensornet.compression.compressed import Compressed
from tensornet.compression.compressing import cost_of, included
from tensornet.compression.levels import Candidate, gathered, multiplied, multiplied_in_groups
from tensornet.errors import EquationError, ShapeError
from tensornet.fitting.activations import no_batches
from tensornet.fitting.approximating import approximate
from tensornet.fitting.metrics import DAMPING, Metric
from tensornet.fitting.weights import Misfit
from tensornet.protocol import load_backend
from tensornet.weights.equations import Modes, formed
from tensornet.weights.ranks import Rank

from .adapters import Adapted
from .factorized import CONVOLUTION, EMBEDDING, PROJECTIONS, Kind, factorize, form_of, kind_of, splits_output
from .saving import copied, saves_itself

__all__ = ["compressed", "restored"]

Module: TypeAlias = torch.nn.Module
Patterns: TypeAlias = str | Sequence[str]


@dataclass(eq=False)
class _Holding:
    """A weight, and the layers that hold it.

    Attributes:
        path: its first name.
        weight: the parameter.
        holders: the layers, with their kinds. Several if the weight is tied.
        moments: the sum of x·xᵀ over the rows x that the weight was multiplied by.
        rows: the number of rows of the result in the largest call.
    """

    path: str
    weight: torch.nn.Parameter
    holders: list[tuple[Any, Kind]]
    moments: torch.Tensor | None = None
    rows: int = 0

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

    def see(self, kind: Kind, x: torch.Tensor, y: torch.Tensor) -> None:
        """Adds the operand x and the result y of one call to the statistics."""
        self.rows = max(self.rows, y.numel() // (y.shape[1] if kind == CONVOLUTION else y.shape[-1]))
        if kind.text and len(self.holders) == 1:
            rows = x.detach().reshape(-1, x.shape[-1]).double()
            found = rows.mT @ rows
            self.moments = found if self.moments is None else self.moments + found

    def candidate(self) -> Candidate:
        """The weight as a candidate for factors under a budget."""
        kind, count = self.kind, len(self.shape)
        columns = tuple(range(1, count)) if kind == CONVOLUTION else kind.columns
        lone = gathered(self.dims) if kind == EMBEDDING else multiplied(self.dims, columns)
        if self.groups > 1:
            lone = multiplied_in_groups(self.shape, self.groups)
        metric = None
        if self.moments is not None:
            metric = Metric(kind.columns, self.moments.cpu().numpy(), DAMPING)
        array = self.weight.detach().cpu()
        return Candidate(self.path, self.dims, lone, array, max(1, self.rows), metric)


def _holdings(module: Module, include: Patterns, exclude: Patterns) -> list[_Holding]:
    """The weights of a network that may become factors, each once."""
    found: dict[int, _Holding] = {}
    for name, each in module.named_modules():
        kind = kind_of(each)
        weight = None if kind is None else each._parameters.get(kind.parameter)
        if kind is None or weight is None or not weight.is_floating_point() or not weight.numel():
            continue
        path = f"{name}.{kind.parameter}" if name else kind.parameter
        if isinstance(each, Adapted):
            raise EquationError(f"'{path}' has an adapter", fix="merge it first: tensornet.merge(module)")
        if id(weight) in found:
            found[id(weight)].holders.append((each, kind))
        else:
            found[id(weight)] = _Holding(path, weight, [(each, kind)])
    elsewhere = Counter(id(weight) for each in module.modules() for weight in each._parameters.values())
    whole = [each for key, each in found.items() if elsewhere[key] == len(each.holders)]
    known = [each.path for each in whole]
    if not known:
        fix = "give one with linear layers, convolutions or embeddings"
        raise EquationError("the network has no weight that may become factors", fix=fix)
    wanted = included(known, include, exclude, "weight that may become factors", "weights")
    return [each for each in whole if each.path in wanted]


def compressed(
    module: Module,
    *,
    parameters: float | None,
    flops: float | None,
    seconds: float | None,
    error: float | None,
    method: str | Sequence[str],
    modes: Modes | None,
    include: Patterns,
    exclude: Patterns,
    uniform: bool,
    calibrate: Any,
    device: str | None,
    progress: Callable[[str, int, int], None] | None,
) -> Compressed:
    """A copy of a network in which some weights are factors. See `tensornet.compress`.

    Raises:
        EquationError: a pattern matches nothing, parameters have no values yet, or there are no batches.
        ShapeError: the budgets are not one, no forms meet it, or a batch does not fit the network.
        DtypeError: a weight, or an operand that it is multiplied by, is not finite.
    """
    budget = Budget.of(parameters=parameters, flops=flops, seconds=seconds, error=error)
    network = copied(module)
    _check_values(network)
    holdings = _holdings(network, include, exclude)
    if calibrate is not None:
        _calibrate(network, holdings, calibrate)
    if budget.kind in ("flops", "seconds"):
        _check_costs(holdings, budget.kind, flat(method), modes, calibrate)
    candidates = [each.candidate() for each in holdings]
    count = sum(each.numel() for each in network.parameters())
    cost = cost_of(budget, load_backend("torch"), device, modes)
    others = count - sum(each.weight.numel() for each in holdings) if cost is None else 0.0
    allocation = allotted(candidates, budget, flat(method), cost, others, count, modes, uniform, progress)
    misfits = _replace(holdings, candidates, allocation, modes)
    if allocation.weights:
        saves_itself(network, functools.partial(_write, allocation), INSTEAD)
    return Compressed(network, None, allocation, misfits)


def _check_values(network: Module) -> None:
    """Raises an error if a parameter has no values."""
    for name, weight in network.named_parameters():
        if weight.is_meta:
            raise EquationError(
                f"'{name}' has no values: it is on the device 'meta'", fix="load its values first"
            )


def _replace(
    holdings: Sequence[_Holding],
    candidates: Sequence[Candidate],
    allocation: Allocation,
    modes: Modes | None,
) -> dict[str, Misfit]:
    """Puts factors in the place of the weights that an allocation names. Returns their approximation errors."""
    misfits = {}
    for each, candidate in zip(holdings, candidates, strict=True):
        told = allocation.weights.get(each.path)
        if told is not None:
            program = formed(each.dims, *told, modes).program
            found = approximate(program, candidate.array, metric=candidate.metric, path=each.path)
            _put(each, *told, modes, found.factors)
            misfits[each.path] = Misfit(found.error, found.output)
    return misfits


def _check_costs(
    holdings: Sequence[_Holding], budget: str, methods: Sequence[str], modes: Modes | None, calibrate: Any
) -> None:
    """Checks that a budget of FLOPs or seconds can be met by multiplying by the factors.

    Raises:
        ShapeError: there are no batches that show the sizes of calls.
        EquationError: several factors hold parts of a convolution's output channels. Then the whole kernel is computed.
    """
    if calibrate is None:
        fix = f"give calibrate=, batches of inputs, or a budget of parameters instead of {budget}"
        raise ShapeError("nothing tells by how many rows weights are multiplied", fix=fix)
    for each in holdings:
        for method in methods:
            if each.kind == CONVOLUTION and splits_output(each.shape, method, modes):
                what = f"'{each.path}' as '{method}' has its output channels in several factors"
                fix = f"give a budget of parameters, or exclude='{each.path}'"
                raise EquationError(f"{what}: the whole kernel is computed, and saves no {budget}", fix=fix)


def restored(module: Module, allocation: Allocation, path: str) -> Module:
    """A copy of a network with factors where an allocation has them, and all values from a safetensors file.

    Raises:
        EquationError: the network lacks the weights of the allocation, or its tensors differ from those of the file.
    """
    from safetensors.torch import load_model

    network, weights = copied(module), allocation.weights
    holdings = {each.path: each for each in _holdings(network, list(weights), ())} if weights else {}
    shapes_of = {row.path: row.shape for row in allocation.rows}
    for name in weights:
        if holdings[name].shape != shapes_of[name]:
            fix = "give a module of the structure that was compressed"
            raise EquationError(f"'{name}' has shape {holdings[name].shape}, not {shapes_of[name]}", fix=fix)
    for name, (method, rank) in weights.items():
        form = formed(holdings[name].dims, method, rank, allocation.modes)
        factors = zip(form.product.factors, form.shapes, strict=True)
        zeros = {factor.name: torch.zeros(shape) for factor, shape in factors}
        _put(holdings[name], method, rank, allocation.modes, zeros)
    try:
        load_model(network, path)
    except RuntimeError as error:
        fix = "give a module of the structure that was compressed"
        raise EquationError(f"the module is not that of {path}: {error}", fix=fix) from None
    if weights:
        saves_itself(network, functools.partial(_write, allocation), INSTEAD)
    return network


INSTEAD = 'found.save("small.safetensors") of what tensornet.compress returned'


def _write(allocation: Allocation, network: Module, path: Path) -> Path:
    return Compressed(network, None, allocation).save(path)


def _put(
    holding: _Holding, method: str, rank: Rank, modes: Modes | None, factors: Mapping[str, torch.Tensor]
) -> None:
    """Puts factors in the place of a weight in all layers that hold it."""
    like = holding.weight
    made = {
        name: torch.nn.Parameter(array.to(like.device, like.dtype), requires_grad=like.requires_grad)
        for name, array in factors.items()
    }
    for module, kind in holding.holders:
        groups = module.groups if kind == CONVOLUTION else 1
        factorize(module, kind, form_of(kind, holding.shape, method, rank, modes, groups), made)


def _calibrate(network: Module, holdings: Sequence[_Holding], batches: Any) -> None:
    """Runs a network on batches, and records for each weight the operands that it is multiplied by."""
    hooks = [
        module.register_forward_hook(functools.partial(_seen, holding, kind))
        for holding in holdings
        for module, kind in holding.holders
        if kind != PROJECTIONS
    ]
    training = {each: each.training for each in network.modules()}
    network.eval()
    count = 0
    try:
        with torch.no_grad():
            for batch in [batches] if isinstance(batches, torch.Tensor | tuple | Mapping) else batches:
                _run(network, batch)
                count += 1
    finally:
        for each, was in training.items():
            each.training = was
        for hook in hooks:
            hook.remove()
    if not count:
        raise no_batches()


def _run(network: Module, batch: Any) -> None:
    """Runs a network on one batch: its arguments as a tuple or list, as a dict by name, or as a single tensor."""
    args = () if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else (batch,)
    named = batch if isinstance(batch, Mapping) else {}
    try:
        inspect.signature(network.forward).bind(*args, **named)
    except ValueError:
        pass  # compiled code has no signature
    except TypeError as error:
        raise ShapeError(
            f"a batch of calibrate= is no call of {type(network).__name__}: {error}",
            fix="a batch is a tensor, a tuple of the arguments of forward, or a dict of them by name: leave labels out,"
            " as in calibrate=[x for x, _ in loader]",
        ) from None
    network(*args, **named)


def _seen(holding: _Holding, kind: Kind, module: Module, args: tuple[Any, ...], result: Any) -> None:
    if args and isinstance(result, torch.Tensor):
        holding.see(kind, args[0], result)
