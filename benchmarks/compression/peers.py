"""What people do instead: rounding by torchao, GPTQ, SVD, Tucker-2 by tensorly, CP by tltorch.

All give a network of the same layers whose weights are what the smaller ones make, and the bytes of these.
"""

from __future__ import annotations

import copy
import functools
import importlib
import itertools
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import tensorly
import torch

__all__ = ["PEERS", "bytes_of"]

Made = tuple[torch.nn.Module, float]
"""A network, and its share of the bytes."""

NEAR = 1.06
"""How much larger than asked a peer may be: rounding to 8 bits with its scales is a little over a quarter."""

GROUPS = (32, 64, 128, 1 << 20)
"""The numbers of elements that share a scale; the largest is a row."""


def _layers(network: torch.nn.Module) -> list[Any]:
    kinds = (torch.nn.Linear, torch.nn.Conv2d, torch.nn.Embedding)
    return [each for each in network.modules() if isinstance(each, kinds)]


def bytes_of(network: torch.nn.Module) -> int:
    """The bytes of the parameters of a dense network of float32."""
    return 4 * sum(each.numel() for each in network.parameters())


def _with(network: torch.nn.Module, found: Sequence[tuple[Any, float]]) -> Made:
    """A copy with other weights, and its share of the bytes: of these weights as told, of all else float32."""
    made = copy.deepcopy(network)
    total = bytes_of(made)
    spent = total - sum(4 * each.weight.numel() for each in _layers(made)) + sum(size for _, size in found)
    for layer, (weight, _) in zip(_layers(made), found, strict=True):
        layer.weight.data = torch.as_tensor(weight, dtype=torch.float32).reshape(layer.weight.shape)
    return made, spent / total


@functools.lru_cache(maxsize=4)
def _moments_of(network: torch.nn.Module, batches: tuple[Any, ...]) -> list[Any]:
    """E[x·xᵀ] of what each layer's matrix is multiplied by; None for embeddings."""
    sums: dict[int, Any] = {}

    def seen(layer: Any, args: Any, _: Any) -> None:
        x = args[0]
        if isinstance(layer, torch.nn.Embedding):
            return
        if isinstance(layer, torch.nn.Conv2d):
            x = torch.nn.functional.unfold(x, layer.kernel_size, stride=layer.stride).mT
        x = x.reshape(-1, x.shape[-1])[:: max(1, x.numel() // x.shape[-1] // 1024)]
        sums[id(layer)] = sums.get(id(layer), 0) + (x.mT @ x).double()

    hooks = [each.register_forward_hook(seen) for each in _layers(network)]
    with torch.no_grad():
        for batch in batches:
            network(*batch)
    for hook in hooks:
        hook.remove()
    return [sums.get(id(each)) for each in _layers(network)]


def _moments(network: torch.nn.Module, batches: Sequence[Any]) -> list[Any]:
    return _moments_of(network, tuple(batches))


# ---------------------------------------------------------------------------- rounding


@functools.cache
def _torchao() -> Any:
    """The primitives of torchao, which is fetched once."""
    folder = Path(platformdirs.user_cache_dir("tensornet")) / "benchmarks" / "torchao"
    if not folder.exists():
        told = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), "torchao"]
        subprocess.run(told, check=True)
    sys.path.append(str(folder))
    return importlib.import_module("torchao.quantization.quant_primitives")


def _group(columns: int, group: int) -> int:
    return max(n for n in range(1, min(group, columns) + 1) if columns % n == 0)


def _size(matrix: Any, bits: int, group: int) -> float:
    return matrix.numel() * bits / 8 + 2 * matrix.numel() / _group(matrix.shape[1], group)


def _rounded(matrix: Any, bits: int, group: int) -> Any:
    """Symmetric rounding by torchao, a scale for each group of a row."""
    ao, block = _torchao(), (1, _group(matrix.shape[1], group))
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    kind = ao.MappingType.SYMMETRIC
    scale, zero = ao.choose_qparams_affine(matrix, kind, block, torch.int8, low, high, eps=1e-9)
    codes = ao.quantize_affine(matrix, block, scale, zero, torch.int8, low, high)
    return ao.dequantize_affine(codes, block, scale, zero, torch.int8, low, high)


def _alike(
    network: torch.nn.Module, share: float, moments: Sequence[Any], made: Callable[[Any, Any, int, int], Any]
) -> list[Made]:
    """Rounded in equal bits, with each number of bits and each group that come near a share."""
    matrices = [each.weight.detach().flatten(1) for each in _layers(network)]
    total, found = bytes_of(network), []
    rest = total - sum(4 * each.numel() for each in matrices)
    for bits, group in itertools.product((8, 4, 3, 2), GROUPS):
        sizes = [_size(each, bits, group) for each in matrices]
        if 0.6 * share <= (rest + sum(sizes)) / total <= NEAR * share:
            weights = [made(each, c, bits, group) for each, c in zip(matrices, moments, strict=True)]
            found.append(_with(network, [*zip(weights, sizes, strict=True)]))
    return found


def rounding(network: torch.nn.Module, batches: Sequence[Any], share: float) -> list[Made]:
    """To the nearest, in equal bits for all weights."""
    nothing = [None for _ in _layers(network)]
    return _alike(network, share, nothing, lambda w, _, bits, group: _rounded(w, bits, group))


@functools.lru_cache(maxsize=32)
def _inverse(moments: Any, columns: int, damping: float) -> Any:
    """The root of the inverse of the damped moments, which all numbers of bits share."""
    eye = torch.eye(columns, dtype=torch.float64)
    h = eye if moments is None else moments
    h = h + damping * h.diagonal().mean() * eye
    return torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(h)), upper=True)


def _gptq(matrix: Any, moments: Any, bits: int, group: int, damping: float = 0.01) -> Any:
    """Column by column, the error of each moved to those after it (E. Frantar et al., 2023)."""
    w, columns = matrix.double().clone(), matrix.shape[1]
    inverse = _inverse(moments, columns, damping)
    width, most = _group(columns, group), 2 ** (bits - 1)
    made = torch.zeros_like(w)
    for n in range(columns):
        if n % width == 0:
            scale = _scales(w[:, n : n + width], bits)
        codes = torch.clamp(torch.round(w[:, n] / scale - 0.5 * (bits < 3)), -most, most - 1) + 0.5 * (
            bits < 3
        )
        made[:, n] = codes * scale
        w[:, n:] -= ((w[:, n] - made[:, n]) / inverse[n, n])[:, None] * inverse[n, n:]
    return made.float()


def _scales(rows: Any, bits: int) -> Any:
    """The scale of each row that loses least, of some below the one that holds the largest element."""
    most, half = 2 ** (bits - 1), 0.5 * (bits < 3)
    largest = rows.abs().amax(1).clamp(min=1e-9) / (most - 1 + half if most > 1 else 0.5)
    found = []
    for part in np.linspace(0.3, 1.0, 15):
        scale = largest * part
        codes = torch.clamp(torch.round(rows / scale[:, None] - half), -most, most - 1) + half
        found.append(((rows - codes * scale[:, None]).pow(2).sum(1), scale))
    losses, scales = (torch.stack(each) for each in zip(*found, strict=True))
    return scales.gather(0, losses.argmin(0)[None])[0]


def gptq(network: torch.nn.Module, batches: Sequence[Any], share: float) -> list[Made]:
    """In equal bits for all weights."""
    return _alike(network, share, _moments(network, batches), _gptq)


def gptq_allotted(network: torch.nn.Module, batches: Sequence[Any], share: float) -> list[Made]:
    """In 1 to 8 bits for each weight, by the error of its result."""
    rows = []
    for layer, moments in zip(_layers(network), _moments(network, batches), strict=True):
        w = layer.weight.detach().flatten(1)
        tries = [
            (_gptq(w, moments, bits, 1 << 20), _size(w, bits, 1 << 20)) for bits in (8, 6, 5, 4, 3, 2, 1)
        ]
        rows.append([(made, size, _lost(w, made, moments)) for made, size in tries])
    return [_allotted(network, rows, share)]


def _lost(w: Any, made: Any, moments: Any) -> float:
    """The relative square of the error of a layer's result."""
    h = torch.eye(w.shape[1], dtype=torch.float64) if moments is None else moments
    gap, w = (w - made).double(), w.double()
    return float(((gap @ h) * gap).sum() / ((w @ h) * w).sum())


def _allotted(network: torch.nn.Module, rows: Sequence[Sequence[Any]], share: float) -> Made:
    """Steps down from the largest, always the one that loses least for the bytes that it saves."""
    at, total = [0] * len(rows), bytes_of(network)
    rest = total - sum(4 * each.weight.numel() for each in _layers(network))
    while rest + sum(row[n][1] for row, n in zip(rows, at, strict=True)) > share * total:
        steps = []
        for k, (row, n) in enumerate(zip(rows, at, strict=True)):
            for m in range(n + 1, len(row)):
                steps.append(((row[m][2] - row[n][2]) / max(row[n][1] - row[m][1], 1e-9), k, m))
        if not steps:
            break
        _, k, m = min(steps)
        at[k] = m
    return _with(network, [row[n][:2] for row, n in zip(rows, at, strict=True)])


# ---------------------------------------------------------------------------- decompositions


def _svd_of(w: Any, moments: Any) -> tuple[Any, Any, Any, Any]:
    """The singular values of a weight times the root of the moments, and the root's inverse."""
    h = torch.eye(w.shape[1], dtype=torch.float64) if moments is None else moments
    h = h + 1e-3 * h.diagonal().mean() * torch.eye(len(h), dtype=torch.float64)
    root = torch.linalg.cholesky(h)
    u, s, v = torch.linalg.svd(w.double() @ root, full_matrices=False)
    return u, s, v, root


def svd(network: torch.nn.Module, batches: Sequence[Any], share: float, bits: int = 32) -> list[Made]:
    """By hand: ranks allocated by the error of results, factors of float32 or rounded to 8 bits."""
    rows = []
    for layer, moments in zip(_layers(network), _moments(network, batches), strict=True):
        w = layer.weight.detach().flatten(1)
        u, s, v, root = _svd_of(w, moments)
        tries = [(w if bits == 32 else _rounded(w, 8, 1 << 20), w.numel() * bits / 8, 0.0)]
        for rank in sorted(
            {max(1, round(len(s) * part)) for part in np.geomspace(0.01, 0.9, 24)}, reverse=True
        ):
            size = rank * (w.shape[0] + w.shape[1]) * bits / 8
            if size < tries[0][1]:
                left, right = (
                    (u[:, :rank] * s[:rank].sqrt()),
                    torch.linalg.solve_triangular(
                        root, s[:rank].sqrt()[:, None] * v[:rank], upper=False, left=False
                    ),
                )
                if bits == 8:
                    left, right = (
                        _rounded(left.float().mT, 8, 1 << 20).mT,
                        _rounded(right.float(), 8, 1 << 20),
                    )
                tries.append(
                    (left.float() @ right.float(), size, float(s[rank:].pow(2).sum() / s.pow(2).sum()))
                )
        rows.append(tries)
    return [_allotted(network, rows, share)]


def _cut(matrix: torch.Tensor, share: float) -> tuple[torch.Tensor, int]:
    """The SVD of a matrix, cut off at a share of its numbers, and its bytes."""
    rank = max(1, int(share * matrix.numel() / sum(matrix.shape)))
    u, s, v, _ = _svd_of(matrix, None)
    return (u[:, :rank] * s[:rank]) @ v[:rank], 4 * rank * sum(matrix.shape)


def tucker(network: torch.nn.Module, batches: Sequence[Any], share: float) -> list[Made]:
    """Tucker-2 of kernels by tensorly, SVD of the rest, at one share of all."""
    from tensorly.decomposition import partial_tucker

    found = []
    for layer in _layers(network):
        w = layer.weight.detach()
        if w.ndim < 4 or w.shape[1] == 1:
            found.append(_cut(w.flatten(1), share))
            continue
        o, i, places = w.shape[0], w.shape[1], w[0, 0].numel()
        ranks = [max(1, round(each)) for each in (o * share**0.5, i * share**0.5)]
        (core, factors), _ = partial_tucker(w.double().numpy(), rank=ranks, modes=[0, 1])
        made = tensorly.tenalg.multi_mode_dot(core, factors, modes=[0, 1])
        found.append((torch.tensor(made), 4 * (ranks[0] * ranks[1] * places + o * ranks[0] + i * ranks[1])))
    return [_with(network, found)]


def cp(network: torch.nn.Module, batches: Sequence[Any], share: float) -> list[Made]:
    """CP of kernels by tltorch, SVD of the rest, at one share of all."""
    import tltorch

    found = []
    for layer in _layers(network):
        w = layer.weight.detach()
        if w.ndim < 4 or w.shape[1] == 1:
            found.append(_cut(w.flatten(1), share))
            continue
        rank = max(1, int(share * w.numel() / sum(w.shape)))
        tensor = tltorch.CPTensor.from_tensor(w.clone(), rank=rank, init="random")
        found.append((tensor.to_tensor().detach(), 4 * rank * sum(w.shape)))
    return [_with(network, found)]


PEERS: Mapping[str, Callable[[torch.nn.Module, Sequence[Any], float], list[Made]]] = {
    "torchao, rounded": rounding,
    "GPTQ": gptq,
    "GPTQ, bits allotted": gptq_allotted,
    "SVD by hand, allotted and weighed": svd,
    "the same in int8": functools.partial(svd, bits=8),
    "Tucker-2 of tensorly": tucker,
    "CP of tltorch": cp,
}
