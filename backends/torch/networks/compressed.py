"""Compressed networks: torch networks with factorized weights, all under one budget."""

from __future__ import annotations

import contextlib
import functools
import math
import statistics
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from tensornet.compression.allocating import Allocation, Options, Whole
from tensornet.compression.compressed import Compressed
from tensornet.compression.compressing import Factors, best, held_out, included, lost_by
from tensornet.compression.levels import Candidate, alone, cost_of
from tensornet.errors import EquationError, ShapeError
from tensornet.fitting.metrics import no_batches
from tensornet.protocol import load_backend
from tensornet.weights.equations import CODES, Modes, formed, rounding_of
from tensornet.weights.ranks import Rank

from .adapters import Adapted
from .factorized import CONVOLUTION, EMBEDDING, Kind, factorize, form_of, kinds_of, splits_output
from .moments import Moments
from .recurrent import closed, opened
from .rounded import of_factors
from .running import batches_in, evaluating, mask_of, results
from .saving import copied, saves_itself

Module: TypeAlias = torch.nn.Module
Patterns: TypeAlias = str | Sequence[str]


UNCALLED = torch.nn.modules.linear.NonDynamicallyQuantizableLinear
"""The projection of the results of attention, which is not called: a function reads its weight."""


@dataclass(eq=False)
class _Holding:
    """A weight, and the layers that hold it.

    Attributes:
        path: its first name.
        weight: the parameter.
        holders: the layers, with their kinds. Several if the weight is tied.
        rows: the number of rows of the result in the largest call.
        moments: of what it is multiplied by, and of gradients.
    """

    path: str
    weight: torch.nn.Parameter
    holders: list[tuple[Any, Kind]]
    rows: int = 0
    moments: Moments = field(default_factory=Moments)

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
        return Candidate(self.path, self.dims, lone, self.weight.detach().cpu(), max(1, self.rows))


def _holdings(module: Module, include: Patterns, exclude: Patterns) -> list[_Holding]:
    """The weights of a network that may become factors, each once."""
    found: dict[int, _Holding] = {}
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
            found[id(weight)] = _Holding(path, weight, [(each, kind)])
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


def _made(module: Module, options: Options, allocation: Allocation, factors: Factors) -> Compressed:
    """A copy of a network with factors in the place of weights."""
    network = copied(module)
    for each in _holdings(network, options.include, options.exclude):
        if each.path in factors:
            _put(each, *allocation.weights[each.path], options.modes, factors[each.path])
    network = closed(network)
    if factors:
        saves_itself(network, functools.partial(_write, allocation), INSTEAD)
    return Compressed(network, None, allocation)


def _loss(module: Module, held: Sequence[Any], made: Compressed) -> float | None:
    """‖y − ŷ‖² / ‖y‖² of the outputs for batches."""
    with evaluating(module), evaluating(made.model), torch.no_grad():
        return lost_by([tuple(results(each, batch)) for each in (module, made.model)] for batch in held)


def _measured(
    network: Module, held: Sequence[Any], candidates: Sequence[Candidate], made: Compressed
) -> Sequence[Candidate]:
    """The weights at what the output loses on held batches where one alone is what was made of it.

    The moments of both sides take the places of a convolution, or the positions of a recurrence, as independent.
    """
    whole, found = copied(network), dict[tuple[str, bool], float]()
    for row in made.allocation.rows if len(made.allocation.weights) > 1 else ():
        if row.level.method is not None:
            weight = _read(whole, row.path)
            former = weight.detach().clone()
            with torch.no_grad():
                weight.copy_(_read(made.model, row.path))
                lost = _loss(network, held, replace(made, model=whole))
                weight.copy_(former)
            if lost and row.level.loss and math.isfinite(lost):
                found[row.path, row.level.rank != "same"] = lost / row.level.loss
    usual = {
        kind: _mean([each for (_, known), each in found.items() if known == kind] or found.values())
        for kind in (False, True)
    }
    times = [{kind: found.get((each.path, kind), usual[kind]) for kind in usual} for each in candidates]
    return [each.scaled(own) for each, own in zip(candidates, times, strict=True)]


def _mean(numbers: Iterable[float]) -> float:
    """The geometric mean, 1 of no numbers."""
    logarithms = [math.log(each) for each in numbers]
    return math.exp(statistics.fmean(logarithms)) if logarithms else 1.0


def _read(module: Module, path: str) -> torch.Tensor:
    """A weight, a parameter or what factors make."""
    owner, _, name = path.rpartition(".")
    found: torch.Tensor = getattr(module.get_submodule(owner), name)
    return found


def compress(module: Module, options: Options, device: str | None, calibrate: Any) -> Compressed:
    """A compressed network, of the best way to weigh its weights. See `tensornet.compress`.

    Raises:
        EquationError: a pattern matches nothing, parameters have no values yet, or there are no batches.
        ShapeError: no batches tell what a call costs, or a batch does not fit the network.
        DtypeError: a weight, or an operand that it is multiplied by, is not finite.
    """
    network, kind = opened(copied(module)), options.budget.kind
    _check_values(network)
    holdings = _holdings(network, options.include, options.exclude)
    holdings = [each for each in holdings if not each.kind.is_whole or bool(each.weight.isfinite().all())]
    batches, held = list[Any](), list[Any]()
    if calibrate is not None:
        batches, held = held_out(batches_in(calibrate))
        _calibrate(network, holdings, batches)
    if kind in ("flops", "seconds"):
        holdings = _cheaper(holdings, options, calibrate)
    plain = [each.candidate() for each in holdings]
    ways: list[Sequence[Candidate]] = [plain]
    if calibrate is not None:
        pairs = [*zip(holdings, plain, strict=True)]
        by_input, by_output = (
            [each.moments.weighed(one, both) for each, one in pairs] for both in (False, True)
        )
        most = max((each.scale for each in by_output if each.metric), default=1.0)
        by_output = [each if each.metric else replace(each, scale=most) for each in by_output]
        of_kind: dict[str, list[Sequence[Candidate]]] = {"error": [by_input], "bytes": [by_output, plain]}
        ways = of_kind.get(kind, [by_input, by_output, plain])
    weights = [*network.parameters()]
    count = sum(each.numel() for each in weights)
    total = sum(each.numel() * each.element_size() for each in weights) if kind == "bytes" else count
    cost = cost_of(kind, load_backend("torch"), device, options.modes)
    whole = None if kind in ("flops", "seconds") else total
    made, loss = functools.partial(_made, network, options), functools.partial(_loss, network, held)
    has_moments = kind == "bytes" and any(each.metric for each in ways[0])
    measured = functools.partial(_measured, network, held) if has_moments else None
    return best(ways, options, Whole(cost, whole, count), made, loss, measured)


def _check_values(network: Module) -> None:
    """Raises an error if a parameter has no values."""
    for name, weight in network.named_parameters():
        if weight.is_meta:
            raise EquationError(
                f"'{name}' has no values: it is on the device 'meta'", fix="load its values first"
            )


def _cheaper(holdings: Sequence[_Holding], options: Options, calibrate: Any) -> list[_Holding]:
    """The weights whose factors save FLOPs or seconds: those that are not multiplied together at each call.

    Raises:
        ShapeError: there are no batches that show the sizes of calls.
        EquationError: there are none; or several factors hold parts of a convolution's output channels. Then the whole
            kernel is computed.
    """
    budget = options.budget.kind
    if calibrate is None:
        fix = f"give calibrate=, batches of inputs, or a budget of parameters instead of {budget}"
        raise ShapeError("nothing tells by how many rows weights are multiplied", fix=fix)
    found = [each for each in holdings if not each.kind.is_whole]
    if not found:
        what = f"these weights are made of factors at each call, which saves no {budget}"
        raise EquationError(what, fix="give a budget of parameters or bytes")
    for each in found:
        for method in options.methods:
            method = rounding_of(method)[0]
            if each.kind == CONVOLUTION and splits_output(each.shape, method, options.modes):
                what = f"'{each.path}' as '{method}' has its output channels in several factors"
                fix = f"give a budget of parameters, or exclude='{each.path}'"
                raise EquationError(f"{what}: the whole kernel is computed, and saves no {budget}", fix=fix)
    return found


def restored(module: Module, allocation: Allocation, path: str) -> Module:
    """A copy of a network with factors where an allocation has them, and all values from a safetensors file.

    Raises:
        EquationError: the network lacks the weights of the allocation, or its tensors differ from those of the file.
    """
    from safetensors.torch import load_model

    network, weights = opened(copied(module)), allocation.weights
    holdings = {each.path: each for each in _holdings(network, list(weights), ())} if weights else {}
    shapes_of = {row.path: row.shape for row in allocation.rows}
    for name in weights:
        if holdings[name].shape != shapes_of[name]:
            fix = "give a module of the structure that was compressed"
            raise EquationError(f"'{name}' has shape {holdings[name].shape}, not {shapes_of[name]}", fix=fix)
    for name, (method, rank) in weights.items():
        form = formed(holdings[name].dims, method, rank, allocation.modes)
        zeros = {
            factor.name: torch.zeros(
                shape, dtype=torch.int8 if factor.name.endswith(CODES) else torch.float32
            )
            for factor, shape in zip(form.product.factors, form.shapes, strict=True)
        }
        _put(holdings[name], method, rank, allocation.modes, zeros)
    network = closed(network)
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
    arrays = {
        name: torch.nn.Parameter(array.to(like.device, like.dtype), requires_grad=like.requires_grad)
        if array.is_floating_point()
        else array.to(like.device)
        for name, array in factors.items()
    }
    made = of_factors(formed(holding.dims, method, rank, modes), arrays, holding.shape)
    for module, kind in holding.holders:
        groups = module.groups if kind == CONVOLUTION else 1
        factorize(module, kind, form_of(kind, holding.shape, method, rank, modes, groups), made)


@contextlib.contextmanager
def _watched(layers: Iterable[tuple[_Holding, Any, Kind]], seen: Callable[..., None]) -> Iterator[None]:
    """A context that sees products by the weights of some layers, or by some of their rows, and rows looked up."""
    functional, rows, matrices = torch.nn.functional, dict[int, Any](), dict[int, Any]()
    for holding, module, kind in layers:
        known = rows if kind == EMBEDDING else matrices
        known[id(holding.weight)] = functools.partial(seen, holding, kind, module)

    def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        whole = weight if weight._base is None else weight._base
        if id(whole) not in matrices or not _is_part(weight, whole):
            return former[0](input, weight, bias)
        made = former[0](input, whole)
        matrices[id(whole)]((input,), made)
        first = (weight.storage_offset() - whole.storage_offset()) // weight.stride(0)
        made = made[..., first : first + len(weight)]
        return made if bias is None else made + bias

    def embedding(input: torch.Tensor, weight: torch.Tensor, *options: Any, **more: Any) -> torch.Tensor:
        made = former[1](input, weight, *options, **more)
        if id(weight) in rows:
            rows[id(weight)]((input,), made)
        return made

    with _WATCHING:  # one after another
        former = functional.linear, functional.embedding
        functional.linear, functional.embedding = linear, embedding
        try:
            yield
        finally:
            functional.linear, functional.embedding = former


_WATCHING = threading.RLock()


def _is_part(weight: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether a matrix is some rows of another, one after another, or all."""
    same = weight.shape[1:] == whole.shape[1:] and weight.stride() == whole.stride() and len(weight)
    return bool(same) and (weight.storage_offset() - whole.storage_offset()) % whole.stride(0) == 0


def _calibrate(network: Module, holdings: Sequence[_Holding], batches: Sequence[Any]) -> None:
    """Runs a network on batches, and records for each weight the operands that it is multiplied by, and gradients.

    The gradients are those of the output, multiplied by random numbers: E[g·gᵀ] = Jᵀ·J, J the derivative of the output.
    Some networks have none in evaluation mode, as they change in place what a derivative needs. These run without.
    """
    if not batches:
        raise no_batches()
    try:
        _recorded(network, holdings, batches, True)
        return
    except RuntimeError:
        for each in holdings:
            each.rows = 0
            each.moments.clear()
    _recorded(network, holdings, batches, False)


def _recorded(network: Module, holdings: Sequence[_Holding], batches: Sequence[Any], gradients: bool) -> None:
    """Records what weights are multiplied by, and maybe gradients.

    Raises:
        RuntimeError: the network raises it, or has no gradients.
    """
    mask: list[torch.Tensor | None] = [None]

    def seen(holding: _Holding, kind: Kind, module: Any, args: tuple[Any, ...], result: Any) -> None:
        if args and isinstance(result, torch.Tensor):
            holding.see(module, kind, args[0], result, mask[0])

    watched, hooks = list[tuple[_Holding, Any, Kind]](), list[Any]()
    layers = ((each, *layer) for each in holdings for layer in each.holders)
    for holding, module, kind in layers:
        if kind.is_whole or kind == EMBEDDING or isinstance(module, UNCALLED):
            watched.append((holding, module, kind))
        else:
            hooks.append(module.register_forward_hook(functools.partial(seen, holding, kind)))
    draw = torch.Generator().manual_seed(0)
    frozen = [each.weight for each in holdings if gradients and not each.weight.requires_grad]
    try:
        with evaluating(network), torch.set_grad_enabled(gradients), _watched(watched, seen):
            for each in frozen:
                each.requires_grad_(True)
            for batch in batches:
                mask[0] = mask_of(batch)
                made = [each for each in results(network, batch) if each.requires_grad]
                seeds = [torch.randn(each.shape, generator=draw).to(each) for each in made]
                if made:
                    weights = [each.weight for each in holdings]
                    torch.autograd.grad(made, weights, seeds, allow_unused=True)
    finally:
        for weight in frozen:
            weight.requires_grad_(False)
        for hook in hooks:
            hook.remove()
