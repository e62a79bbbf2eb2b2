"""Adapters: a few trained factors, added to a weight that is not trained.

W = W₀ + s·Σ ∏ factors, where W₀ stays fixed. Two factors give LoRA (Hu et al., 2021), a Kronecker product gives LoKr
(Yeh et al., 2023). Factors that layers share give FacT (Jie and Deng, 2023) and LoTR (Bershatsky et al., 2024). All
other forms of the table work in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import EquationError, by_name, check_arguments, checked_number, names_in, path_of
from ..graph.graph import Graph
from ..protocol import backend_of
from ..runtime.compiling import compile, to_backend
from ..runtime.executable import wrong_names
from ..weights.equations import Modes
from ..weights.factorizations import Rank
from ..weights.substitution import replaced, substitute
from .compressed import file_of, networks, read_arrays, write_arrays
from .levels import check_rank, dims_of

ADAPTERS = "tensornet.adapters.1"


@check_arguments
def adapt(
    network: Any,
    weights: str | Sequence[str],
    /,
    *,
    method: str = "low_rank",
    rank: Rank = 8,
    alpha: float | None = None,
    shared: str | Sequence[str] = (),
    modes: Modes | None = None,
    seed: int | None = None,
) -> Any:
    """Adds adapters to weights: W = W₀ + (alpha/rank)·Σ ∏ factors, where the sum is zero at the start.

    Args:
        network: a graph, or a `torch.nn.Module`. For a module, linear layers of a copy get adapters, and nothing else
            in the copy is trained.
        weights: patterns of the names of weights; `*` matches anything.
        method: a form of the table of `tensornet.substitute`. With "fact_tt" and "fact_tk", all weights of one pattern
            and shape share factors.
        rank: the rank of the form, as for `tensornet.substitute`.
        alpha: the added product is scaled by alpha/rank, or by 1 if alpha is not given.
        shared: further factors, by their names in the form, that weights of one pattern and shape share.
        modes: the parts into which dimensions are split, as for `tensornet.substitute`.
        seed: the seed of the initial factors of a module; those of a graph are drawn by `tensornet.init`.

    Returns:
        A graph or a module. The graph has the parameters `W.base` and the factors, as from `tensornet.substitute`;
        `tensornet.fit` transfers the trained parameters to it.

    Raises:
        EquationError: a pattern matches nothing that can have an adapter, or none is given.
        ShapeError: a weight has no such form; the rank makes an adapter far larger than its weight; alpha is not a
            finite number; or alpha is given and the rank is not an integer.

    Example:
        >>> import tensornet as tn
        >>> layer = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=64, o=64)
        >>> print(adapt(layer, "W", rank=4, alpha=8).equations[0])
        W[o,i] = W.base[o,i] + 2.0 * W.U[o,r] * W.V[r,i]
    """
    scale = 1.0
    if alpha is not None:
        fix = "give one integer, to which alpha is set in proportion, or leave alpha out"
        checked_number(rank, "the rank", 1, whole=True, fix=fix)
        scale = checked_number(alpha, "alpha") / rank
    weights, method = names_in(weights, "weights", 1), f"{method}"
    seed = seed if seed is None else checked_number(seed, "seed", whole=True)
    options = {"method": method, "rank": rank, "scale": scale, "shared": shared, "modes": modes, "seed": seed}
    if not isinstance(network, Graph):
        return networks(network).adapted(network, weights, **options)
    form = f"+{scale}*{method}" if scale != 1 else f"+{method}"
    found = substitute(network, dict.fromkeys(weights, (form, rank)), shared=shared, modes=modes)
    for each in replaced(network, found):
        check_rank(each.path, dims_of(each.leaf, network), method, rank, modes)
    return found


@check_arguments
def merge(network: Any, adapted: Graph | None = None, params: Mapping[str, Any] | None = None, /) -> Any:
    """Computes the weights that equations replaced, so that the original network has the new values.

    Args:
        network: the original graph, before its weights were substituted; or a module with adapters.
        adapted: the graph with equations in place of weights.
        params: the parameters of `adapted`.

    Returns:
        The parameters of the original graph; or a copy of the module without adapters. If another module shares the
        weight of an adapted layer, it keeps the old weight, and the layer gets its own.

    Raises:
        EquationError: the network is a graph and `adapted` or `params` is missing; `adapted` computes no weight of
            it; the module has no adapters.
        ShapeError: a parameter of `adapted` is missing.

    Example:
        >>> import numpy as np, tensornet as tn
        >>> layer = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x")
        >>> low = tn.layer("W[o,i] = A[o,r] * B[r,i]\\ny[b,o] = x[b,i] * W[o,i]", inputs="x")
        >>> merge(layer, low, {"A": np.ones((2, 1)), "B": np.array([[1.0, 2.0]])})["W"].tolist()
        [[1.0, 2.0], [1.0, 2.0]]
    """
    if not isinstance(network, Graph):
        return networks(network).merged(network)
    if not isinstance(adapted, Graph) or params is None:
        raise EquationError("of a graph all is to be given", fix="merge(graph, adapted, params)")
    params, found = by_name(params, "the parameters", '{"W.base": array}'), replaced(network, adapted)
    if any(leaf.name not in params for leaf in adapted.parameters):
        raise wrong_names(adapted, params)
    made = dict(params)
    for each in found:
        own = {leaf.name: params[leaf.name] for leaf in each.program.parameters}
        made[each.path] = compile(each.program, backend=backend_of(next(iter(own.values()))))(own)
    return {leaf.name: made[leaf.name] for leaf in network.parameters}


@check_arguments
def save_adapters(path: str | Path, module: Any, /) -> Path:
    """Writes the adapters of a module to a safetensors file, with their description as JSON in its header.

    Of the network itself, only parameters that require gradients are written, such as a classifier that was unfrozen.

    Args:
        path: the file; an existing one is not overwritten.
        module: a module with adapters.

    Raises:
        EquationError: the file exists, or the module has no adapters.

    Example:
        >>> import tempfile, torch, tensornet as tn
        >>> network = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
        >>> adapted = adapt(network, "*", method="fact_tt", rank=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     again = load_adapters(save_adapters(f"{folder}/fact.safetensors", adapted), network)
        >>> sum(each.numel() for each in again.parameters() if each.requires_grad)  # 2·8·2 shared, 2·2 each
        40
    """
    tensors, rows = networks(module).adapters_of(module)
    return write_arrays(path_of(path), tensors, {"format": ADAPTERS, "adapters": json.dumps(rows)})


@check_arguments
def load_adapters(path: str | Path, module: Any, /) -> Any:
    """Reads adapters that `save_adapters` wrote, for the module that was adapted.

    Args:
        path: the file, or the folder that `save_pretrained` of an adapted network of transformers wrote.
        module: the original module, without adapters.

    Returns:
        A copy of the module with adapters.

    Raises:
        EquationError: the file holds no adapters, or those of another network.

    Example:
        >>> import tempfile, torch, tensornet as tn
        >>> network = torch.nn.Sequential(torch.nn.Linear(8, 4))
        >>> adapted = adapt(network, "*", method="low_rank", rank=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     again = load_adapters(save_adapters(f"{folder}/lora.safetensors", adapted), network)
        >>> x = torch.ones(1, 8)
        >>> bool((again(x) == adapted(x)).all())
        True
    """
    torch, (arrays, texts) = networks(module), read_arrays(file_of(path))
    if texts.get("format") != ADAPTERS or "adapters" not in texts:
        fix = "give a file that tensornet.save_adapters wrote"
        raise EquationError(f"{path} holds no adapters of a module", fix=fix)
    return torch.with_adapters(module, to_backend(arrays, "torch"), json.loads(texts["adapters"]))


@check_arguments
def load_peft(module: Any, folder: str | Path, /) -> Any:
    """A copy of a `torch.nn.Module` with the LoRA adapters that peft wrote to a folder.

    Args:
        module: the network that was adapted.
        folder: a folder with `adapter_config.json` and `adapter_model.safetensors`. Modules that were trained as a
            whole (`modules_to_save`) are read too.

    Raises:
        EquationError: the folder holds no such adapters, or those of another network.

    Example:
        >>> import tempfile, torch, tensornet as tn
        >>> network = torch.nn.Sequential(torch.nn.Linear(8, 8))
        >>> adapted = tn.adapt(network, "0.weight", rank=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sorted(each.name for each in tn.save_peft(adapted, f"{folder}/lora").iterdir())
        ...     torch.equal(load_peft(network, f"{folder}/lora")(torch.ones(8)), adapted(torch.ones(8)))
        ['adapter_config.json', 'adapter_model.safetensors']
        True
    """
    return networks(module).load_peft(module, path_of(folder))


@check_arguments
def save_peft(module: Any, folder: str | Path, /) -> Path:
    """Writes the adapters of a module in the format of peft.

    Modules with parameters that require gradients, such as a classifier that was unfrozen, are written as a whole
    and named in `modules_to_save`.

    Args:
        module: a module with adapters of low rank.
        folder: the folder to create.

    Raises:
        EquationError: the module has no adapters, or others than of low rank; the folder exists; or the format of
            peft cannot hold a trained parameter, which is in a layer with an adapter or directly in the network.

    Example:
        >>> import tempfile, torch, tensornet as tn
        >>> adapted = tn.adapt(torch.nn.Sequential(torch.nn.Linear(8, 8)), "0.weight", rank=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_peft(adapted, f"{folder}/lora").name
        'lora'
    """
    found: Path = networks(module).save_peft(module, path_of(folder))
    return found
