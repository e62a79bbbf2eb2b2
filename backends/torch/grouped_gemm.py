"""Grouped GEMM for torch, differentiable.

If values cannot be read (during tracing, under `vmap` and in a CUDA graph), each row is multiplied by all matrices.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

__all__ = ["grouped_matmul", "grouped_outer"]


def grouped_matmul(x: Any, positions: Any, matrices: Any) -> Any:
    """y[n,m,r,f] = Σ_c x[n,r,c]·W[p[n,m],f,c], with one product for all rows of a matrix."""
    count, alone = positions.shape
    if _unseen(positions, x, matrices):
        each = torch.einsum("nrc,vfc->nvrf", x, matrices)
        return each[torch.arange(count, device=x.device)[:, None], positions]
    order, lengths = _groups(positions, len(matrices))
    recorded = torch.is_grad_enabled() and (x.requires_grad or matrices.requires_grad)
    made = (_joined if recorded else _written)(x, order, _whose(order, alone), lengths[1:-1], matrices)
    return made.reshape(count, alone, x.shape[1], matrices.shape[1])


def _joined(x: Any, order: Any, rows: Any, lengths: list[int], matrices: Any) -> Any:
    """The products of all groups, moved to their rows at the end, which is one step for autograd."""
    pairs = zip(x.index_select(0, rows).split(lengths), matrices.unbind(0), strict=True)
    parts = [torch.matmul(each, matrix.T) for each, matrix in pairs if len(each)]
    made = torch.cat(parts) if parts else x.new_empty((len(order), x.shape[1], matrices.shape[1]))
    return torch.empty_like(made).index_copy_(0, order, made)


def _written(x: Any, order: Any, rows: Any, lengths: list[int], matrices: Any) -> Any:
    """The product of each group, each written to its rows at once, while it is in the cache."""
    shape, made = (len(order), x.shape[1], matrices.shape[1]), None
    for at, whose, matrix in zip(order.split(lengths), rows.split(lengths), matrices, strict=True):
        if len(at):
            part = torch.matmul(x.index_select(0, whose), matrix.T)
            made = part.new_empty(shape) if made is None else made
            made.index_copy_(0, at, part)
    return x.new_empty(shape) if made is None else made


def grouped_outer(positions: Any, a: Any, b: Any, size: int) -> Any:
    """y[v,a,b] = Σ a[n,m,r,a]·b[n,m,r,b] over the rows where p[n,m] is v. Positions out of range are ignored."""
    if _unseen(positions, a, b):
        ones = positions[..., None] == torch.arange(size, device=positions.device)
        return torch.einsum("nmv,nmra,nmrb->vab", ones.to(a.dtype), a, b)
    order, lengths = _groups(positions, size)
    one, other = (_rows(each, order, positions.shape[1]).split(lengths)[1:-1] for each in (a, b))
    return torch.stack(
        [left.flatten(0, 1).T @ right.flatten(0, 1) for left, right in zip(one, other, strict=True)]
    )


def _groups(positions: Any, size: int) -> tuple[Any, list[int]]:
    """Rows sorted by position, and the number of rows below the first position, at each one, and above the last."""
    told, order = positions.reshape(-1).sort(stable=True)
    bounds = torch.searchsorted(told, torch.arange(size + 1, dtype=told.dtype, device=told.device)).tolist()
    ends = [0, *bounds, len(order)]
    return order, [stop - start for start, stop in itertools.pairwise(ends)]


def _whose(order: Any, alone: int) -> Any:
    """The row of each entry, if each row has this many positions."""
    return order if alone == 1 else order // alone


def _rows(x: Any, order: Any, alone: int) -> Any:
    """The rows of an operand, in the given order."""
    flat = x.flatten(0, 1)
    return flat.index_select(0, order if x.shape[1] == alone else _whose(order, alone))


def _unseen(*tensors: Any) -> bool:
    """Whether the values of the tensors cannot be read."""
    fake = any(isinstance(each, torch._subclasses.fake_tensor.FakeTensor) for each in tensors)
    captured = any(each.is_cuda for each in tensors) and torch.cuda.is_current_stream_capturing()
    return torch.compiler.is_compiling() or fake or captured or any(map(_is_mapped, tensors))


def _is_mapped(tensor: Any) -> bool:
    """Whether `vmap` maps a tensor."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return True
        tensor = functorch.get_unwrapped(tensor)
    return False
