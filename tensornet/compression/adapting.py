"""Adapters: a weight as it was, and a few factors added to it, which alone are trained.

W = W₀ + s·Σ ∏ factors, where W₀ stays as it is: with two factors LoRA (Hu et al., 2021), with a Kronecker product
LoKr (Yeh et al., 2023), with any other form of the table alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import EquationError, ShapeError
from ..graph.graph import Graph
from ..graph.substitution import replaced, substitute
from ..graph.weights import Modes
from ..protocol import backend_of, load_backend
from ..ranks import Rank
from ..running.executable import compile
from .compressed import check_module

__all__ = ["adapt", "load_peft", "merge", "save_peft"]


def adapt(
    network: Any,
    weights: str | Sequence[str],
    /,
    *,
    method: str = "low_rank",
    rank: Rank = 8,
    alpha: float | None = None,
    modes: Modes | None = None,
    seed: int | None = None,
) -> Any:
    """Adds factors to weights: W = W₀ + (alpha/rank)·Σ ∏ factors, zero to start with.

    Args:
        network: a graph, or a `torch.nn.Module`, of whose linear layers the copy that comes back has adapters and of
            which nothing else is trained.
        weights: patterns of their names; `*` stands for anything.
        method: a form of the table of `tensornet.substitute`.
        rank: its rank, as for `tensornet.substitute`.
        alpha: what is added is times alpha/rank; times 1 if not given.
        modes: into what parts dimensions are split, as for `tensornet.substitute`.
        seed: of the values that factors of a module start with; those of a graph are drawn by `tensornet.init`.

    Returns:
        A graph whose parameters are `W.base` and the factors, as `tensornet.substitute` makes it (`tensornet.fit`
        gives it the parameters that the network had); or a module.

    Raises:
        EquationError: a pattern fits nothing that can have an adapter.
        ShapeError: a weight has no such form, or alpha comes without a rank that is one integer.

    Example:
        >>> import tensornet as tn
        >>> layer = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=64, o=64)
        >>> print(adapt(layer, "W", rank=4, alpha=8).equations[0])
        W[o,i] = W.base[o,i] + 2.0 * W.U[o,r] * W.V[r,i]
    """
    scale = 1.0
    if alpha is not None:
        if isinstance(rank, bool) or not isinstance(rank, int):
            raise ShapeError(f"alpha={alpha} is for a rank that is one integer", fix=f"not rank={rank!r}")
        scale = alpha / rank
    if isinstance(network, Graph):
        patterns = (weights,) if isinstance(weights, str) else tuple(weights)
        form = f"+{scale}*{method}" if scale != 1 else f"+{method}"
        return substitute(network, dict.fromkeys(patterns, (form, rank)), modes=modes)
    check_module(network)
    torch: Any = load_backend("torch")
    return torch.adapted(network, weights, method=method, rank=rank, scale=scale, modes=modes, seed=seed)


def merge(network: Any, adapted: Graph | None = None, params: Mapping[str, Any] | None = None, /) -> Any:
    """Computes the weights that equations stand for: the network is again what it was, with other values.

    Args:
        network: the graph as it was before something was put in the place of its weights, or a module with adapters.
        adapted: the graph after that.
        params: its parameters.

    Returns:
        The parameters of the graph as it was; or a copy of the module without adapters.

    Raises:
        EquationError: of a graph not all three are given, or no weight is computed; the module has no adapters.

    Example:
        >>> import numpy as np, tensornet as tn
        >>> layer = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x")
        >>> low = tn.layer("W[o,i] = A[o,r] * B[r,i]\\ny[b,o] = x[b,i] * W[o,i]", inputs="x")
        >>> merge(layer, low, {"A": np.ones((2, 1)), "B": np.array([[1.0, 2.0]])})["W"].tolist()
        [[1.0, 2.0], [1.0, 2.0]]
    """
    if not isinstance(network, Graph):
        check_module(network)
        torch: Any = load_backend("torch")
        return torch.merged(network)
    if adapted is None or params is None:
        raise EquationError("of a graph all is to be given", fix="merge(graph, adapted, params)")
    found = replaced(network, adapted)
    if not found:
        fix = "give the graph as it was before, and then what tensornet.substitute made of it"
        raise EquationError("no weight of the one graph is computed in the other", fix=fix)
    made = dict(params)
    for each in found:
        names = [leaf.name for leaf in each.program.parameters]
        run = compile(each.program, backend=backend_of(params[names[0]]))
        made[each.path] = run({name: params[name] for name in names})
    return {leaf.name: made[leaf.name] for leaf in network.parameters}


def load_peft(module: Any, folder: str | Path, /) -> Any:
    """A copy of a `torch.nn.Module` with the LoRA adapters that peft wrote to a folder.

    Args:
        module: the network that was adapted.
        folder: with `adapter_config.json` and `adapter_model.safetensors`.

    Raises:
        EquationError: it holds no such adapters, or those of another network.

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
    torch: Any = load_backend("torch")
    return torch.load_peft(module, Path(folder))


def save_peft(module: Any, folder: str | Path, /) -> Path:
    """Writes the adapters of a module as peft does, for peft to read.

    Args:
        module: with adapters of low rank.
        folder: a new one.

    Raises:
        EquationError: the module has no adapters, or others than of low rank; the folder is there already.

    Example:
        >>> import tempfile, torch, tensornet as tn
        >>> adapted = tn.adapt(torch.nn.Sequential(torch.nn.Linear(8, 8)), "0.weight", rank=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_peft(adapted, f"{folder}/lora").name
        'lora'
    """
    torch: Any = load_backend("torch")
    found: Path = torch.save_peft(module, Path(folder))
    return found
