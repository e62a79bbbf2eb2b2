"""Adapters: linear layers with trained low-rank additions, and their files in the format of peft."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from tensornet.compression.adapting import check_rank, save_adapters
from tensornet.compression.levels import WEIGHT
from tensornet.errors import EquationError
from tensornet.graph.leaves import told_by
from tensornet.protocol import load_backend
from tensornet.runtime.initial_values import init
from tensornet.sizes import evaluate
from tensornet.weights.equations import Modes, formed, shared_names
from tensornet.weights.ranks import Rank
from tensornet.weights.substitution import substitute

from .factorized import LINEAR, TURNED, Factorized, Form, Kind, attach, dense, detach, form_of, kind_of
from .saving import copied, saves_as_before, saves_itself

__all__ = ["Adapted", "adapted", "adapters_of", "load_peft", "merged", "save_peft", "with_adapters"]

Module: TypeAlias = torch.nn.Module

PREFIX = "base_model.model."
"""The prefix that peft adds to the paths of modules."""

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"


class Adapted(Factorized):
    """A mixin for a linear layer with an adapter: it adds the product of the input and the factors to the result,
    y = x·W₀ᵀ + b + s·x·(∏ factors)ᵀ.

    The attribute `weight` is W₀ + s·∏ factors; attention and the fast paths of torch read it. The parameter of that
    name is still W₀.
    """


def _layers(network: Module) -> dict[str, tuple[Any, Kind]]:
    """The layers that can have an adapter, by the names of their weights.

    Raises:
        EquationError: the network has no such layer.
    """
    found = {}
    for name, module in network.named_modules():
        kind, weight = kind_of(module), module._parameters.get("weight")
        if kind in (LINEAR, TURNED) and weight is not None and weight.is_floating_point():
            found[f"{name}.weight" if name else "weight"] = module, kind
    if not found:
        fix = "give one with linear layers whose weights are parameters, and no factors"
        raise EquationError("the network has no layer that may have an adapter", fix=fix)
    return found


@dataclass(frozen=True)
class _Form:
    """The form of an adapter: s·Σ ∏ factors.

    Attributes:
        method, rank, modes: as `tensornet.substitute` takes them.
        scale: s.
    """

    method: str
    rank: Rank
    scale: float = 1.0
    modes: Modes | None = None

    def of(self, kind: Kind, shape: tuple[int, ...]) -> Form:
        """The graphs of the factors, without s."""
        return form_of(kind, shape, self.method, self.rank, self.modes)

    def starts(self, kind: Kind, shape: tuple[int, ...], seed: int) -> dict[str, torch.Tensor]:
        """Initial values of the factors: their product is 0."""
        added = {WEIGHT: (f"+{self.method}", self.rank)}
        whole = substitute(dense(kind, shape), added, modes=self.modes)
        values = init(whole, seed=seed, backend=load_backend("torch"))
        return {name.removeprefix(f"{WEIGHT}."): array for name, array in values.items()}


def adapted(
    module: Module,
    weights: str | Sequence[str],
    *,
    method: str,
    rank: Rank,
    scale: float,
    shared: str | Sequence[str],
    modes: Modes | None,
    seed: int | None,
) -> Module:
    """A copy of a network in which some linear layers have adapters. Only the adapters are trained."""
    network = copied(module)
    layers = _layers(network)
    draw = torch.Generator() if seed is None else torch.Generator().manual_seed(seed)
    if seed is None:
        draw.seed()
    common = shared_names(method, shared)
    for together in _groups(layers, weights):
        shape = tuple(layers[together[0]][0].weight.shape)
        dims = [(size,) for size in shape]
        check_rank(together[0], dims, method, rank, modes)
        first = formed(dims, method, rank, modes, common, len(together)).product
        form = _Form(method, tuple(first.ranks.values()), scale, modes)
        had: dict[str, torch.nn.Parameter] = {}
        for found, kind in map(layers.__getitem__, together):
            number = int(torch.randint(2**31, (), generator=draw).item())
            made, starts = form.of(kind, shape), form.starts(kind, shape, number)
            own = {leaf.name: starts[leaf.name] for leaf in made.run.parameters}
            _put(found, kind, form, made, own | had)
            had = {name: each for name, each in found.adapter._parameters.items() if name in common}
    _made_whole(network)
    return network


def _groups(layers: Mapping[str, tuple[Any, Kind]], weights: str | Sequence[str]) -> list[list[str]]:
    """The paths that match the patterns, grouped by pattern, kind and shape. The layers of a group share factors."""
    told: dict[str, str] = {}
    for pattern in (weights,) if isinstance(weights, str) else weights:
        matched = told_by(pattern, list(layers), "weight of a linear layer", "weights")
        told.update(dict.fromkeys(matched, pattern))
    groups: dict[tuple[Any, ...], list[str]] = {}
    for path, pattern in told.items():
        found, kind = layers[path]
        groups.setdefault((pattern, kind, tuple(found.weight.shape)), []).append(path)
    return list(groups.values())


def _put(found: Any, kind: Kind, form: _Form, made: Form, factors: Mapping[str, torch.Tensor]) -> None:
    """Gives a layer its adapter. A factor that already is a parameter is shared with its other layers."""
    if isinstance(found, Adapted):
        raise EquationError("a layer has an adapter already", fix="merge it first: tensornet.merge(module)")
    like, parameter = found.weight, torch.nn.Parameter
    own = {
        name: each if isinstance(each, parameter) else parameter(each.to(like.device, like.dtype))
        for name, each in factors.items()
    }
    attach(found, kind, made, own, Adapted, "adapter")
    found.__dict__.update(_form=form, _scale=form.scale)


def _made_whole(network: Module) -> None:
    """Freezes all parameters except those of adapters. `save_pretrained` of the network then writes the adapters."""
    saves_itself(
        network, _write, 'tensornet.save_adapters("adapters.safetensors", network), or merge it first'
    )
    own = _factors(network)
    for each in network.parameters():
        each.requires_grad_(id(each) in own)


def _write(network: Module, path: Path) -> Path:
    return save_adapters(path, network)


def _with_adapters(network: Module) -> dict[str, Any]:
    return {name: each for name, each in network.named_modules() if isinstance(each, Adapted)}


def _factors(network: Module) -> set[int]:
    """The identities of the factors of all adapters."""
    return {id(each) for layer in _with_adapters(network).values() for each in layer.adapter.parameters()}


def merged(module: Module) -> Module:
    """A copy of a network with its adapters added to the weights. All its parameters are trained again.

    A module that shares its weight with an adapted layer keeps the weight as it was. The layer gets one of its own.
    """
    network = copied(module)
    layers = _with_adapters(network)
    if not layers:
        raise EquationError("the module has no adapters", fix="give what tensornet.adapt returned")
    saves_as_before(network)
    holders = Counter(id(weight) for each in network.modules() for weight in each._parameters.values())
    for each in layers.values():
        weight, whole = each._parameters["weight"], each.weight.detach()
        detach(each)
        del each._form, each._scale
        if holders[id(weight)] > 1:
            each.weight = torch.nn.Parameter(whole)
        else:
            weight.data.copy_(whole)
    for parameter in network.parameters():
        parameter.requires_grad_(parameter.is_floating_point() or parameter.is_complex())
    return network


# ---------------------------------------------------------------------------- files


TRAINED = "trained/"
"""The prefix of the names of tensors that are not factors, in the files of this library."""


def _trained(network: Module) -> dict[str, torch.nn.Parameter]:
    """The parameters that are trained besides the adapters, such as those of an unfrozen classifier."""
    own = _factors(network)
    named = network.named_parameters()
    return {name: each for name, each in named if each.requires_grad and id(each) not in own}


def _stored(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy of a tensor on the CPU, to be written to a file."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _put_trained(network: Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copies values from a file to parameters and buffers. These parameters are trained again.

    Raises:
        EquationError: the network has no tensor of that name and shape.
    """
    known = {**dict(network.named_buffers()), **dict(network.named_parameters(remove_duplicate=False))}
    for name, tensor in tensors.items():
        if name not in known or known[name].shape != tensor.shape:
            found = f"of shape {tuple(known[name].shape)}" if name in known else "none"
            raise EquationError(
                f"the file has '{name}' of shape {tuple(tensor.shape)}, and the network has {found}",
                fix="give the network that was adapted",
            )
        known[name].data.copy_(tensor)
        if isinstance(known[name], torch.nn.Parameter):
            known[name].requires_grad_()


def adapters_of(module: Module) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """The factors of the adapters, each once. Also, for each layer, its form and the names of its factors, for JSON.

    The tensors include other trained parameters, named `trained/` and their name.

    Raises:
        EquationError: the module has no adapters.
    """
    layers = _with_adapters(module)
    if not layers:
        raise EquationError("the module has no adapters", fix="give what tensornet.adapt returned")
    names: dict[int, str] = {}
    tensors, rows = {}, []
    for name, each in layers.items():
        keys = {}
        for factor, parameter in each.adapter._parameters.items():
            keys[factor] = names.setdefault(id(parameter), f"{name}.{factor}" if name else factor)
            tensors[keys[factor]] = parameter.detach().contiguous().cpu()
        rows.append({"layer": name, "factors": keys, **asdict(each._form)})
    tensors |= {f"{TRAINED}{name}": _stored(each) for name, each in _trained(module).items()}
    return tensors, rows


def with_adapters(
    module: Module, tensors: Mapping[str, torch.Tensor], rows: Sequence[Mapping[str, Any]]
) -> Module:
    """A copy of a network with the adapters that `adapters_of` returned.

    Raises:
        EquationError: the network does not match the adapters, or a factor is missing.
    """
    trained = {key.removeprefix(TRAINED): each for key, each in tensors.items() if key.startswith(TRAINED)}
    return _read(copied(module), tensors, rows, trained, "there is")


def _read(
    network: Module,
    tensors: Mapping[str, torch.Tensor],
    rows: Sequence[Mapping[str, Any]],
    trained: Mapping[str, torch.Tensor],
    where: str,
) -> Module:
    """A network with adapters from a file, in place.

    Args:
        network: without adapters.
        tensors, rows: as `adapters_of` returns them.
        trained: the values of other trained tensors.
        where: how an error about a layer that is missing begins.
    """
    layers = _layers(network)
    parameters: dict[str, torch.nn.Parameter] = {}
    for row in rows:
        name, keys = row["layer"], row["factors"]
        path = f"{name}.weight" if name else "weight"
        if path not in layers or any(key not in tensors for key in keys.values()):
            fix = f"give the network that was adapted; this one has {', '.join(list(layers)[:4])}, …"
            raise EquationError(f"{where} an adapter of '{name}', which is no linear layer here", fix=fix)
        found, kind = layers[path]
        form = _Form(row["method"], row["rank"], row["scale"], row["modes"])
        made = form.of(kind, tuple(found.weight.shape))
        bound = made.run.bound
        shapes = {
            each.name: tuple(evaluate(size, bound) for size in each.shape) for each in made.run.parameters
        }
        if shapes != {factor: tuple(tensors[key].shape) for factor, key in keys.items()}:
            fix = "give the network that was adapted"
            raise EquationError(f"the adapter of '{name}' is of other shapes than its layer", fix=fix)
        _put(found, kind, form, made, {each: parameters.get(key, tensors[key]) for each, key in keys.items()})
        parameters |= {key: found.adapter.get_parameter(each) for each, key in keys.items()}
    _made_whole(network)
    _put_trained(network, trained)
    return network


# ---------------------------------------------------------------------------- files of peft


def load_peft(module: Module, folder: Path) -> Module:
    """A copy of a network with the adapters in a folder. See `tensornet.load_peft`."""
    config, tensors = _read_peft(folder)
    network = copied(module)
    layers, whole = _layers(network), config.get("modules_to_save") or []
    trained = _taken(tensors, whole)
    _check_all_there(network, trained, whole, folder)
    odd = [key for key in tensors if not re.fullmatch(re.escape(PREFIX) + r".+\.lora_[AB]\.weight", key)]
    if odd:
        fix = "give plain LoRA adapters, of linear layers and without biases, or name it in modules_to_save"
        raise EquationError(f"{folder} holds '{odd[0]}', which is no factor of an adapter", fix=fix)
    factors: dict[str, torch.Tensor] = {}
    rows = []
    for name in sorted({key.removeprefix(PREFIX).rpartition(".lora_")[0] for key in tensors}):
        is_turned = layers.get(f"{name}.weight", (None, LINEAR))[1] == TURNED
        keys = {factor: f"{name}.{factor}" for factor in "UV"}
        for key, letter in zip(keys.values(), "AB" if is_turned else "BA", strict=True):
            tensor = tensors.get(f"{PREFIX}{name}.lora_{letter}.weight")
            if tensor is not None:
                factors[key] = (tensor.mT if is_turned else tensor).contiguous()
        rank = len(factors.get(keys["V"], ())) or 1
        form = _Form("low_rank", rank, _scale(config, name, rank))
        rows.append({"layer": name, "factors": keys, **asdict(form)})
    return _read(network, factors, rows, trained, f"{folder} has")


def _read_peft(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The configuration and the tensors in a folder. Raises an error unless they are plain LoRA adapters."""
    from safetensors.torch import load_file

    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        tensors = load_file(folder / TENSORS)
    except (OSError, ValueError) as error:
        fix = f"give a folder with {CONFIG} and {TENSORS}"
        raise EquationError(f"{folder} holds no adapters of peft: {error}", fix=fix) from None
    if config.get("peft_type") != "LORA" or config.get("use_dora") or config.get("bias", "none") != "none":
        kind = config.get("peft_type")
        raise EquationError(
            f"{folder} holds adapters of kind {kind}, or with more than factors",
            fix="give plain LoRA adapters",
        )
    return config, tensors


def _taken(tensors: dict[str, torch.Tensor], modules: Sequence[str]) -> dict[str, torch.Tensor]:
    """Removes the tensors of fully trained modules from those of a file, and returns them by their network names."""
    within = [f".{each}." for each in modules]
    names = [key.removeprefix(PREFIX) for key in tensors if key.startswith(PREFIX)]
    found = [each for each in names if any(module in f".{each}" for module in within)]
    return {name: tensors.pop(PREFIX + name) for name in found}


def _check_all_there(
    network: Module, trained: Mapping[str, torch.Tensor], modules: Sequence[str], folder: Path
) -> None:
    """Raises an error if the file lacks a parameter of a module that its configuration declares as fully trained."""
    for name, _ in network.named_parameters():
        if any(f".{each}." in f".{name}" for each in modules) and name not in trained:
            raise EquationError(
                f"{folder} lacks '{name}', of a module that {CONFIG} has in modules_to_save",
                fix="give the network that was adapted, and the whole folder",
            )


def _scale(config: Mapping[str, Any], name: str, rank: int) -> float:
    """The factor by which peft scales an adapter."""
    alpha = config.get("lora_alpha", 8)
    patterns: Mapping[str, float] = config.get("alpha_pattern") or {}
    fitting = (each for each in patterns if re.fullmatch(rf"(.*\.)?({each})", name))
    alpha = patterns[first] if (first := next(fitting, None)) is not None else alpha
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def save_peft(module: Module, folder: Path) -> Path:
    """Writes adapters in the format of peft. See `tensornet.save_peft`."""
    from safetensors.torch import save_file

    layers = _with_adapters(module)
    if not layers or any(each._form.method != "low_rank" for each in layers.values()):
        what = "adapters that are not of low rank" if layers else "no adapters"
        raise EquationError(
            f"the module has {what}", fix="peft's LoRA is tensornet.adapt(…, method='low_rank')"
        )
    if folder.exists():
        raise EquationError(f"{folder} is there already", fix="give a new folder")
    whole = _whole_modules(module)
    tensors = {
        f"{PREFIX}{path}.{name}": _stored(each)
        for path in whole
        for name, each in module.get_submodule(path).state_dict().items()
    }
    ranks, alphas = {}, {}
    for name, each in layers.items():
        kind, form = each._kind, each._form
        u, v = (each.adapter.get_parameter(factor).detach() for factor in "UV")
        ins, outs = (u.mT, v.mT) if kind == TURNED else (v, u)
        tensors[f"{PREFIX}{name}.lora_A.weight"] = ins.contiguous().cpu()
        tensors[f"{PREFIX}{name}.lora_B.weight"] = outs.contiguous().cpu()
        ranks[name], alphas[name] = len(ins), form.scale * len(ins)
    turned = any(each._kind == TURNED for each in layers.values())
    config = _peft_config(ranks, alphas, whole, turned)
    folder.mkdir(parents=True)
    save_file(tensors, folder / TENSORS)
    (folder / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    return folder


def _peft_config(
    ranks: Mapping[str, int], alphas: Mapping[str, float], whole: Sequence[str], turned: bool
) -> dict[str, Any]:
    """The configuration that peft writes next to the tensors of adapters.

    Args:
        ranks, alphas: of each adapted layer. The first layer's are the defaults; layers that differ are listed.
        whole: the modules that were fully trained.
        turned: whether weights are laid out transposed.
    """
    first = next(iter(ranks))
    return {
        "peft_type": "LORA",
        "r": ranks[first],
        "lora_alpha": alphas[first],
        "target_modules": list(ranks),
        "rank_pattern": {name: rank for name, rank in ranks.items() if rank != ranks[first]},
        "alpha_pattern": {name: alpha for name, alpha in alphas.items() if alpha != alphas[first]},
        "bias": "none",
        "modules_to_save": list(whole) or None,
        "lora_dropout": 0.0,
        "fan_in_fan_out": turned,
        "inference_mode": True,
    }


def _whole_modules(network: Module) -> list[str]:
    """The modules that peft has to store whole, because some of their parameters are trained.

    Raises:
        EquationError: a trained parameter is the network's own, or its module is or contains a layer with an adapter.
    """
    adapted = list(_with_adapters(network))
    found: list[str] = []
    for name in _trained(network):
        path = name.rpartition(".")[0]
        if not path or any(f"{each}.".startswith(f"{path}.") for each in adapted):
            raise EquationError(
                f"'{name}' is trained, and peft keeps whole modules without adapters alone",
                fix="write it with tensornet.save_adapters, or freeze it: parameter.requires_grad_(False)",
            )
        found.append(path)
    apart = {each for each in found if not any(each.startswith(f"{other}.") for other in found)}
    return sorted(apart)
