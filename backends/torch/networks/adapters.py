"""Adapters: linear layers with trained low-rank additions, and their files in the format of peft.

A row describes the adapter of a layer: the layer's name, the form as `tensornet.substitute` takes it, the scale s, and
the names of the tensors that are its factors. Layers with a tensor in common share that factor.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch

from tensornet.compression.adapting import save_adapters
from tensornet.compression.levels import WEIGHT, check_rank
from tensornet.errors import EquationError
from tensornet.graph.leaves import told_by
from tensornet.protocol import load_backend
from tensornet.runtime.initial_values import init
from tensornet.sizes import evaluate
from tensornet.weights.equations import Modes, formed, shared_names
from tensornet.weights.factorizations import Rank
from tensornet.weights.substitution import substitute

from .factorized import LINEARS, TURNED, Factorized, Form, Kind, attach, dense, detach, form_of, kind_of
from .saving import check_dense, copied, saves_as_before, saves_itself

Module: TypeAlias = torch.nn.Module
Tensors: TypeAlias = Mapping[str, torch.Tensor]
Row: TypeAlias = Mapping[str, Any]

ANOTHER = "give the network that was adapted"


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
        if kind in LINEARS and weight is not None and weight.is_floating_point():
            found[f"{name}.weight" if name else "weight"] = module, kind
    if not found:
        fix = "give one with linear layers whose weights are parameters, and no factors"
        raise EquationError("the network has no layer that may have an adapter", fix=fix)
    return found


def adapted(
    module: Module,
    weights: Sequence[str],
    *,
    method: str,
    rank: Rank,
    scale: float,
    shared: str | Sequence[str],
    modes: Modes | None,
    seed: int | None,
) -> Module:
    """A copy of a network in which some linear layers have adapters. Only the adapters are trained."""
    check_dense(module)
    layers, common = _layers(module), shared_names(method, shared)
    draw = torch.Generator() if seed is None else torch.Generator().manual_seed(seed)
    if seed is None:
        draw.seed()
    tensors, rows = dict[str, torch.Tensor](), list[Row]()
    for together in _groups(layers, weights):
        layer, kind = layers[together[0]]
        dims = tuple((size,) for size in layer.weight.shape)
        check_rank(together[0], dims, method, rank, modes)
        product = formed(dims, method, rank, modes, common, len(together)).product
        ranks = tuple(product.ranks.values())
        start = substitute(dense(kind, layer.weight.shape), {WEIGHT: (f"+{method}", ranks)}, modes=modes)
        for path in together:
            number = int(torch.randint(2**31, (), generator=draw).item())
            values = init(start, seed=number, backend=load_backend("torch"))
            owners = {f.name: together[0] if f.name in common else path for f in product.factors}
            keys = {factor: f"{owner}.{factor}" for factor, owner in owners.items()}
            tensors = {key: values[f"{WEIGHT}.{factor}"] for factor, key in keys.items()} | tensors
            form = {"method": method, "rank": ranks, "scale": scale, "modes": modes}
            rows.append({"layer": path.rpartition(".")[0], "factors": keys, **form})
    return with_adapters(module, tensors, rows)


def _groups(layers: Mapping[str, tuple[Any, Kind]], weights: Sequence[str]) -> list[list[str]]:
    """The paths that match the patterns, grouped by pattern, kind and shape. The layers of a group share factors."""
    told: dict[str, str] = {}
    for pattern in weights:
        matched = told_by(pattern, list(layers), "weight of a linear layer", "weights")
        told.update(dict.fromkeys(matched, pattern))
    groups: dict[tuple[Any, ...], list[str]] = {}
    for path, pattern in told.items():
        found, kind = layers[path]
        groups.setdefault((pattern, kind, tuple(found.weight.shape)), []).append(path)
    return list(groups.values())


def with_adapters(module: Module, tensors: Tensors, rows: Sequence[Row]) -> Module:
    """A copy of a network with adapters, which alone are trained, and with other trained tensors.

    Args:
        module: a network without adapters.
        tensors: the factors, and under `trained/` and its name the value of each other tensor.
        rows: the description of each adapter.

    Raises:
        EquationError: the network does not match the adapters, or a factor is missing.
    """
    network = copied(module)
    layers = _layers(network)
    factors: dict[str, torch.nn.Parameter] = {}
    for row in rows:
        layer, kind, form = _layer_of(row, layers, tensors)
        weight, keys = layer.weight, row["factors"]
        for key in keys.values():
            factors.setdefault(key, torch.nn.Parameter(tensors[key].to(weight.device, weight.dtype)))
        own = {factor: factors[key] for factor, key in keys.items()}
        attach(layer, kind, form, own, Adapted, "adapter")
        layer.__dict__.update(_row=row, _scale=row["scale"])
    instead = 'tensornet.save_adapters("adapters.safetensors", network), or merge it first'
    saves_itself(network, _write, instead)
    trained = {id(each) for each in factors.values()}
    for parameter in network.parameters():
        parameter.requires_grad_(id(parameter) in trained)
    _put_trained(network, tensors)
    return network


def _layer_of(row: Row, layers: Mapping[str, tuple[Any, Kind]], tensors: Tensors) -> tuple[Any, Kind, Form]:
    """The layer that an adapter belongs to, its kind, and the form of the adapter.

    Raises:
        EquationError: there is no such layer, it has an adapter already, or the factors do not fit it.
    """
    name, keys = row["layer"], row["factors"]
    path = f"{name}.weight" if name else "weight"
    if path not in layers or any(key not in tensors for key in keys.values()):
        fix = f"{ANOTHER}; this one has {', '.join(list(layers)[:4])}, …"
        raise EquationError(f"there is an adapter of '{name}', which is no linear layer here", fix=fix)
    layer, kind = layers[path]
    if isinstance(layer, Adapted):
        raise EquationError("a layer has an adapter already", fix="merge it first: tensornet.merge(module)")
    form = form_of(kind, tuple(layer.weight.shape), row["method"], row["rank"], row["modes"])
    bound, leaves = form.run.bound, form.run.parameters
    shapes = {leaf.name: tuple(evaluate(size, bound) for size in leaf.shape) for leaf in leaves}
    if shapes != {factor: tuple(tensors[key].shape) for factor, key in keys.items()}:
        raise EquationError(f"the adapter of '{name}' is of other shapes than its layer", fix=ANOTHER)
    return layer, kind, form


def _write(network: Module, path: Path) -> Path:
    return save_adapters(path, network)


def merged(module: Module) -> Module:
    """A copy of a network with its adapters added to the weights. All its parameters are trained again.

    A module that shares its weight with an adapted layer keeps the weight as it was. The layer gets one of its own.
    """
    network = copied(module)
    layers = _adapted(network)
    saves_as_before(network)
    holders = Counter(id(weight) for each in network.modules() for weight in each._parameters.values())
    for each in layers.values():
        weight, whole = each._parameters["weight"], each.weight.detach()
        detach(each)
        del each._row, each._scale
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


def _adapted(network: Module) -> dict[str, Any]:
    """The layers with adapters. Raises an error if there are none."""
    found = {name: each for name, each in network.named_modules() if isinstance(each, Adapted)}
    if not found:
        raise EquationError("the module has no adapters", fix="give what tensornet.adapt returned")
    return found


def _trained(network: Module) -> dict[str, torch.nn.Parameter]:
    """The parameters that are trained besides the adapters, such as those of an unfrozen classifier."""
    own = {id(each) for layer in _adapted(network).values() for each in layer.adapter.parameters()}
    named = network.named_parameters()
    return {name: each for name, each in named if each.requires_grad and id(each) not in own}


def _stored(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy of a tensor on the CPU, to be written to a file."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _put_trained(network: Module, tensors: Tensors) -> None:
    """Copies values from a file to parameters and buffers. These parameters are trained again.

    Raises:
        EquationError: the network has no tensor of that name and shape.
    """
    known = {**dict(network.named_buffers()), **dict(network.named_parameters(remove_duplicate=False))}
    for name in [key.removeprefix(TRAINED) for key in tensors if key.startswith(TRAINED)]:
        tensor = tensors[TRAINED + name]
        if name not in known or known[name].shape != tensor.shape:
            found = f"of shape {tuple(known[name].shape)}" if name in known else "none"
            what = f"the file has '{name}' of shape {tuple(tensor.shape)}, and the network has {found}"
            raise EquationError(what, fix=ANOTHER)
        known[name].data.copy_(tensor)
        if isinstance(known[name], torch.nn.Parameter):
            known[name].requires_grad_()


def adapters_of(module: Module) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """The tensors and the rows of a network with adapters, from which `with_adapters` makes it again.

    Raises:
        EquationError: the module has no adapters.
    """
    names: dict[int, str] = {}
    tensors, rows = dict[str, torch.Tensor](), []
    for name, each in _adapted(module).items():
        keys = {}
        for factor, parameter in each.adapter._parameters.items():
            keys[factor] = names.setdefault(id(parameter), f"{name}.{factor}" if name else factor)
            tensors[keys[factor]] = parameter.detach().contiguous().cpu()
        rows.append({**each._row, "layer": name, "factors": keys})
    return tensors | {TRAINED + name: _stored(each) for name, each in _trained(module).items()}, rows


# ---------------------------------------------------------------------------- files of peft


PREFIX = "base_model.model."
"""The prefix that peft adds to the paths of modules."""

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"


def load_peft(module: Module, folder: Path) -> Module:
    """A copy of a network with the adapters in a folder. See `tensornet.load_peft`."""
    config, tensors = _read_peft(folder)
    layers, factors, rows = _layers(module), _taken(module, tensors, config, folder), list[Row]()
    for name in sorted({key.rpartition(".lora_")[0] for key in tensors}):
        is_turned = layers.get(f"{name}.weight", (None, None))[1] == TURNED
        pair = [tensors.get(f"{name}.lora_{letter}.weight") for letter in ("AB" if is_turned else "BA")]
        keys = {factor: f"{name}.{factor}" for factor in "UV"}
        for key, tensor in zip(keys.values(), pair, strict=True):
            if tensor is not None:
                factors[key] = (tensor.mT if is_turned else tensor).contiguous()
        rank = len(factors.get(keys["V"], ())) or 1
        form = {"method": "low_rank", "rank": rank, "scale": _scale(config, name, rank), "modes": None}
        rows.append({"layer": name, "factors": keys, **form})
    return with_adapters(module, factors, rows)


def _read_peft(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The configuration and the tensors in a folder. Raises an error unless they are plain LoRA adapters."""
    from safetensors.torch import load_file

    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        tensors = load_file(folder / TENSORS)
    except (OSError, ValueError) as error:
        fix = f"give a folder with {CONFIG} and {TENSORS}"
        raise EquationError(f"{folder} holds no adapters of peft: {error}", fix=fix) from None
    kind = config.get("peft_type")
    if kind != "LORA" or config.get("use_dora") or config.get("bias", "none") != "none":
        what = f"{folder} holds adapters of kind {kind}, or with more than factors"
        raise EquationError(what, fix="give plain LoRA adapters")
    return config, {key.removeprefix(PREFIX): tensor for key, tensor in tensors.items()}


def _taken(
    module: Module, tensors: dict[str, torch.Tensor], config: Mapping[str, Any], folder: Path
) -> dict[str, torch.Tensor]:
    """Takes the tensors of modules that were trained whole from those of a file, under `trained/`.

    Raises:
        EquationError: one is missing, or another tensor is no factor.
    """
    within = [f".{each}." for each in config.get("modules_to_save") or []]

    def is_whole(name: str) -> bool:
        return any(each in f".{name}" for each in within)

    missing = [name for name, _ in module.named_parameters() if is_whole(name) and name not in tensors]
    if missing:
        what = f"{folder} lacks '{missing[0]}', of a module that {CONFIG} has in modules_to_save"
        raise EquationError(what, fix=f"{ANOTHER}, and the whole folder")
    found = {TRAINED + name: tensors.pop(name) for name in [*tensors] if is_whole(name)}
    odd = [name for name in tensors if not re.fullmatch(r".+\.lora_[AB]\.weight", name)]
    if odd:
        fix = "give plain LoRA adapters, of linear layers and without biases, or name it in modules_to_save"
        raise EquationError(f"{folder} holds '{PREFIX}{odd[0]}', which is no factor of an adapter", fix=fix)
    return found


def _scale(config: Mapping[str, Any], name: str, rank: int) -> float:
    """The factor by which peft scales an adapter."""
    patterns: Mapping[str, float] = config.get("alpha_pattern") or {}
    fitting = (alpha for each, alpha in patterns.items() if re.fullmatch(rf"(.*\.)?({each})", name))
    alpha = next(fitting, config.get("lora_alpha", 8))
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def save_peft(module: Module, folder: Path) -> Path:
    """Writes adapters in the format of peft. See `tensornet.save_peft`."""
    from safetensors.torch import save_file

    layers = _adapted(module)
    if any(each._row["method"] != "low_rank" for each in layers.values()):
        fix = "peft's LoRA is tensornet.adapt(…, method='low_rank')"
        raise EquationError("the module has adapters that are not of low rank", fix=fix)
    if folder.exists():
        raise EquationError(f"{folder} is there already", fix="give a new folder")
    whole = _whole_modules(module)
    states = {path: module.get_submodule(path).state_dict() for path in whole}
    tensors = {f"{path}.{name}": each for path, state in states.items() for name, each in state.items()}
    ranks, alphas = {}, {}
    for name, each in layers.items():
        u, v = each.adapter.U, each.adapter.V
        ins, outs = (u.mT, v.mT) if each._kind == TURNED else (v, u)
        tensors |= {f"{name}.lora_A.weight": ins, f"{name}.lora_B.weight": outs}
        ranks[name], alphas[name] = len(ins), each._scale * len(ins)
    rank, alpha = next(iter(ranks.values())), next(iter(alphas.values()))
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": [*ranks],
        "rank_pattern": {name: each for name, each in ranks.items() if each != rank},
        "alpha_pattern": {name: each for name, each in alphas.items() if each != alpha},
        "bias": "none",
        "modules_to_save": whole or None,
        "lora_dropout": 0.0,
        "fan_in_fan_out": any(each._kind == TURNED for each in layers.values()),
        "inference_mode": True,
    }
    folder.mkdir(parents=True)
    save_file({PREFIX + name: _stored(each) for name, each in tensors.items()}, folder / TENSORS)
    (folder / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    return folder


def _whole_modules(network: Module) -> list[str]:
    """The modules that peft has to store whole, because some of their parameters are trained.

    Raises:
        EquationError: a trained parameter is the network's own, or its module is or contains a layer with an adapter.
    """
    found: list[str] = []
    for name in _trained(network):
        path = name.rpartition(".")[0]
        if not path or any(f"{each}.".startswith(f"{path}.") for each in _adapted(network)):
            raise EquationError(
                f"'{name}' is trained, and peft keeps whole modules without adapters alone",
                fix="write it with tensornet.save_adapters, or freeze it: parameter.requires_grad_(False)",
            )
        found.append(path)
    apart = {each for each in found if not any(each.startswith(f"{other}.") for other in found)}
    return sorted(apart)
