"""Compressed networks: torch networks with factorized weights, all under one budget.

Calibration finds what weights are multiplied by, gradients of what they make, and which of them calls write to.
"""

from __future__ import annotations

import contextlib
import functools
import math
import statistics
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from tensornet.compression.allocating import Allocation, Allotted, Curve, Options, Whole
from tensornet.compression.compressed import INT8, Compressed
from tensornet.compression.compressing import Factors, Trial, best, held_out, lost_by
from tensornet.compression.levels import BYTES, Candidate, cost_of
from tensornet.errors import EquationError, ShapeError
from tensornet.fitting.metrics import no_batches
from tensornet.protocol import load_backend
from tensornet.weights.equations import CODES, Modes, formed, rounding_of
from tensornet.weights.factorizations import Rank

from .correcting import MEASURED, corrected
from .factorized import CONVOLUTION, EMBEDDING, LINEARS, UNCALLED, Kind, factorize, form_of, splits_output
from .holdings import Holding, finite, holdings_of
from .recurrent import closed, opened
from .rounded import Integers, of_factors
from .running import batches_in, evaluating, mask_of, results
from .saving import copied, saves_itself

Module: TypeAlias = torch.nn.Module


def _made(module: Module, allocation: Allocation, factors: Factors, activations: str | None) -> Compressed:
    """A copy of a network with factors in the place of weights.

    Raises:
        EquationError: the network lacks the weights of the allocation.
    """
    network, rows = opened(copied(module)), {row.path: row for row in allocation.rows if row.level.method}
    for each in holdings_of(network, list(rows), ()) if rows else ():
        row = rows[each.path]
        if each.shape != row.shape:
            what = f"'{each.path}' has shape {each.shape}, not {row.shape}"
            raise EquationError(what, fix="give a module of the structure that was compressed")
        _put(each, *allocation.weights[each.path], allocation.modes, factors[each.path], activations)
    network = closed(network)
    if rows:
        saves_itself(network, functools.partial(_write, allocation, activations), INSTEAD)
    return Compressed(network, None, allocation, activations=activations)


def _results(module: Module, batches: Sequence[Any]) -> Iterator[tuple[torch.Tensor, ...]]:
    """The results of a copy, as calls may write to a network, for each batch."""
    network = copied(module).eval()
    for batch in batches:
        with torch.no_grad():
            made = tuple(results(network, batch))
        yield made


def _measured(
    network: Module, held: Sequence[Any], curves: Sequence[Curve], made: Compressed
) -> Sequence[Curve]:
    """The levels of weights at what the output loses on held batches where one alone is what was made of it.

    The moments of both sides take the places of a convolution, or the positions of a recurrence, as independent.
    Of many weights those are measured that are to lose most. The mean of these stands for others.
    """
    whole, found, rows = copied(network), dict[str, float](), made.allocation.rows
    wanted = [*_results(network, held)]
    changed = [row for row in rows if row.level.method is not None]
    for row in sorted(changed, key=lambda row: -row.level.loss)[:MEASURED]:
        weight = _read(whole, row.path)
        former = weight.detach().clone()
        with torch.no_grad():
            weight.copy_(_read(made.model, row.path))
            lost = lost_by(zip(wanted, _results(whole, held), strict=True))
            weight.copy_(former)
        if lost and row.level.loss and math.isfinite(lost):
            found[row.path] = lost / row.level.loss
    usual = statistics.geometric_mean([*found.values()] or [1.0])
    return [
        tuple(replace(each, loss=each.loss * found.get(row.path, usual)) for each in curve)
        for row, curve in zip(rows, curves, strict=True)
    ]


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
    holdings = finite(holdings_of(network, options.include, options.exclude))
    batches, held = list[Any](), list[Any]()
    if calibrate is not None:
        batches, held = held_out(batches_in(calibrate))
        for each in holdings:
            each.has_inputs = kind != BYTES
        calibrate_by(network, holdings, batches)
        network = opened(copied(module))  # calls may have written to the other one
        fresh = finite(holdings_of(network, options.include, options.exclude))
        for each, own in zip(holdings, fresh, strict=True):
            if not torch.equal(*(one.weight.nan_to_num() for one in (each, own))):
                each.stays = "the network writes to it, which factors would lose"
            each.weight, each.holders = own.weight, own.holders
    if kind in ("flops", "seconds"):
        holdings = _cheaper(holdings, options, calibrate)
    ways = _weighed(holdings, kind, calibrate is not None)
    weights = [*network.parameters()]
    count = sum(each.numel() for each in weights)
    total = sum(each.numel() * each.element_size() for each in weights) if kind == BYTES else count
    cost = cost_of(kind, load_backend("torch"), device, options.modes)
    whole = None if kind in ("flops", "seconds") else total
    has_moments = kind == BYTES and any(each.total for each in holdings)
    trial = Trial(
        lambda allocation, factors: _made(network, allocation, factors, options.activations),
        lambda small: lost_by(zip(*(_results(each, held) for each in (network, small.model)), strict=True)),
        functools.partial(_measured, network, held) if has_moments else None,
        functools.partial(corrected, network, holdings, batches, _recorded),
    )
    return best(ways, options, Whole(cost, whole, count), trial)


def _weighed(holdings: Sequence[Holding], kind: str, is_calibrated: bool) -> Iterator[Sequence[Candidate]]:
    """The ways to weigh the errors of weights that are tried under a budget: by inputs, by gradients too, plain."""
    plain = [each.candidate() for each in holdings]
    pairs = [*zip(holdings, plain, strict=True)] if is_calibrated else []
    if pairs and kind != BYTES:
        yield [each.weighed(one, False) for each, one in pairs]
    if pairs and kind != "error":
        by_output = [each.weighed(one, True) for each, one in pairs]
        most = max((each.scale for each in by_output if each.metric), default=1.0)
        yield [each if each.metric else replace(each, scale=most) for each in by_output]
    if not pairs or kind != "error":
        yield plain


def _check_values(network: Module) -> None:
    """Raises an error if a parameter has no values."""
    for name, weight in network.named_parameters():
        if weight.is_meta:
            raise EquationError(
                f"'{name}' has no values: it is on the device 'meta'", fix="load its values first"
            )


def _cheaper(holdings: Sequence[Holding], options: Options, calibrate: Any) -> list[Holding]:
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


def restored(module: Module, allocation: Allocation, activations: str | None, path: str) -> Compressed:
    """A copy of a network with factors where an allocation has them, and all values from a safetensors file.

    Raises:
        EquationError: the network lacks the weights of the allocation, or its tensors differ from those of the file.
    """
    from safetensors.torch import load_model

    zeros = {row.path: _zeros(row, allocation.modes) for row in allocation.rows if row.level.method}
    made = _made(module, allocation, zeros, activations)
    try:
        load_model(made.model, path)
    except RuntimeError as error:
        fix = "give a module of the structure that was compressed"
        raise EquationError(f"the module is not that of {path}: {error}", fix=fix) from None
    return made


def _zeros(row: Allotted, modes: Modes | None) -> dict[str, torch.Tensor]:
    """The factors of a weight, all 0."""
    form = formed(tuple((size,) for size in row.shape), str(row.level.method), row.level.rank, modes)
    types = {True: torch.int8, False: torch.float32}
    pairs = zip(form.product.factors, form.shapes, strict=True)
    return {each.name: torch.zeros(shape, dtype=types[each.name.endswith(CODES)]) for each, shape in pairs}


INSTEAD = 'found.save("small.safetensors") of what tensornet.compress returned'


def _write(allocation: Allocation, activations: str | None, network: Module, path: Path) -> Path:
    return Compressed(network, None, allocation, activations=activations).save(path)


def _put(
    holding: Holding,
    method: str,
    rank: Rank,
    modes: Modes | None,
    factors: Mapping[str, torch.Tensor],
    activations: str | None,
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
        if activations == INT8 and kind in LINEARS and rounding_of(method)[1]:
            codes = [array for name, array in factors.items() if name.endswith(CODES)]
            columns = holding.shape[kind.columns[0]]
            module.__dict__["_integers"] = Integers(min(each.numel() for each in codes), columns)


# ---------------------------------------------------------------------------- calibration


@contextlib.contextmanager
def _watched(layers: Iterable[tuple[Holding, Any, Kind]], seen: Callable[..., None]) -> Iterator[None]:
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


def calibrate_by(network: torch.nn.Module, holdings: Sequence[Holding], batches: Sequence[Any]) -> None:
    """Runs a network on batches, and records for each weight the operands that it is multiplied by, and gradients.

    The gradients are those of the output, multiplied by random numbers: E[g·gᵀ] = Jᵀ·J, J the derivative of the output.
    Some networks have none in evaluation mode, as they change in place what a derivative needs. These run without.
    """
    if not batches:
        raise no_batches()
    try:
        _recorded(batches, network, holdings, gradients=True)
    except (RuntimeError, ShapeError):  # while it runs, or in the backward pass
        for each in holdings:
            each.clear()
        _recorded(batches, network, holdings)


def _recorded(
    batches: Sequence[Any],
    network: torch.nn.Module,
    holdings: Sequence[Holding],
    see: Callable[..., None] = Holding.see,
    gradients: bool = False,
) -> None:
    """Records what weights are multiplied by, and maybe gradients.

    Raises:
        RuntimeError: the network has no gradients.
        ShapeError: the network cannot read a batch.
    """
    mask: list[torch.Tensor | None] = [None]

    def seen(holding: Holding, kind: Kind, module: Any, args: tuple[Any, ...], result: Any) -> None:
        if args and isinstance(result, torch.Tensor):
            see(holding, module, kind, args[0], result, mask[0])

    draw = torch.Generator().manual_seed(0)
    frozen = [each.weight for each in holdings if gradients and not each.weight.requires_grad]
    try:
        with evaluating(network), torch.set_grad_enabled(gradients), _calls_seen(holdings, seen):
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


@contextlib.contextmanager
def _calls_seen(holdings: Sequence[Holding], seen: Callable[..., None]) -> Iterator[None]:
    """Calls a function at each call of the layers that hold weights, for the block."""
    watched, hooks = list[tuple[Holding, Any, Kind]](), list[Any]()
    for holding, module, kind in ((each, *layer) for each in holdings for layer in each.holders):
        if kind.is_whole or kind == EMBEDDING or isinstance(module, UNCALLED):
            watched.append((holding, module, kind))
        else:
            hooks.append(module.register_forward_hook(functools.partial(seen, holding, kind)))
    try:
        with _watched(watched, seen):
            yield
    finally:
        for hook in hooks:
            hook.remove()
