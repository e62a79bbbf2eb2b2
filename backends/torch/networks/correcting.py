"""Weights fitted again, one after another, to what the compressed network before them makes.

    W' = W + E[(y − W·x̂)·x̂ᵀ]·E[x̂·x̂ᵀ]⁻¹,    y = W·x

Here x is what W multiplies in the dense network, x̂ in the compressed one, both without their means. W' minimises
E‖y − W'·x̂‖² (Y. Li et al., 2025, "GPTAQ"), and the bias takes up the mean of what is left (M. Nagel et al., 2019).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from tensornet.compression.compressed import Compressed
from tensornet.compression.levels import Candidate
from tensornet.fitting.approximating import numbers
from tensornet.fitting.metrics import Metric
from tensornet.weights.equations import CODES, SCALE

from .factorized import CONVOLUTION, LINEARS
from .holdings import MOST, OUTPUT_DAMPING, Holding
from .saving import copied

Module = torch.nn.Module

FITTED = (*LINEARS, CONVOLUTION)
"""The kinds of layers whose weights are fitted again."""

MEASURED = 16
"""The most weights that are, and whose loss in the output is measured: those that are to lose most."""

DAMPING, LEAST = 0.05, 1e-5
"""Added to E[x̂·x̂ᵀ], in units of its mean diagonal without the means of x̂, and with them, which have rounding errors."""


def corrected(
    network: Module,
    holdings: Sequence[Holding],
    batches: Sequence[Any],
    see: Any,
    made: Compressed,
    weights: Sequence[Candidate],
) -> Compressed:
    """A compressed network with factors and biases that make up for the errors of the layers before.

    Args:
        network: the dense network.
        holdings, weights: its weights.
        batches: what both networks run on, one after another: products of all batches take much memory.
        see: runs a network on batches, and calls a function with each product by some weights, as `Holding.see`.
        made: the compressed network.
    """
    model, allocation, misfits = copied(made.model), made.allocation, {**made.misfits}
    losses = {row.path: row.level.loss for row in allocation.rows if row.level.method}
    most = sorted(losses, key=losses.__getitem__)[-MEASURED:]
    for holding, weight in zip(holdings, weights, strict=True):
        is_alone = holding.groups * len(holding.holders) == 1
        if holding.path not in most or holding.kind not in FITTED or not is_alone:
            continue
        runs, sums = [copied(each) for each in (network, model)], list[Any]()  # calls may write to them
        own = [replace(holding, holders=[(_layer(each, holding), holding.kind)]) for each in runs]
        for batch in batches:
            wanted = list[Any]()
            see([batch], runs[0], own[:1], lambda *call, found=wanted: found.append(_product(*call)[1]))
            see([batch], runs[1], own[1:], functools.partial(_add, sums, iter(wanted)))
        if sums and all(math.isfinite(each.sum()) for each in sums[1:]):
            layer, form = _layer(model, holding), allocation.weights[weight.path]
            _correct(holding, weight, layer, sums, lambda one, form=form: one.fitted(*form, allocation.modes))
            array = numbers(layer.weight.detach().cpu(), weight.path)
            misfits[weight.path] = weight.target.misfit(array)
    return replace(made, model=model, misfits=misfits)


def _layer(network: Module, holding: Holding) -> Any:
    """The layer of a network that holds a weight."""
    return network.get_submodule(holding.path.rpartition(".")[0])


def _matrix(holding: Holding, weight: torch.Tensor) -> torch.Tensor:
    """A weight as a matrix, results by operands; and such a matrix as the weight if that has two dimensions."""
    return weight.mT if holding.columns(holding.kind) == (0,) else weight.flatten(1)


def _product(holding: Holding, *call: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows that a call multiplies, and their products with the dense weight."""
    rows, *_ = holding.operands(*call)
    return rows, rows @ _matrix(holding, holding.weight.detach()).mT.to(rows)


def _add(sums: list[Any], wanted: Iterator[torch.Tensor], holding: Holding, *call: Any) -> None:
    """Adds the moments of a call, unless the dense network made none of as many rows, as where rows choose experts."""
    rows, product = _product(holding, *call)
    before = next(wanted, product[:0])
    if len(rows) and before.shape == product.shape:
        found = _moments(rows, before - product)
        sums[:] = [a + b for a, b in zip(sums, found, strict=True)] if sums else found


def _moments(rows: torch.Tensor, missing: torch.Tensor) -> list[Any]:
    """The number of rows x̂; the sums of x̂ and of e = y − W·x̂; of x̂·x̂ᵀ and e·x̂ᵀ, if they take little memory.

    The mean is taken out before the products, as it is of their sums later: else only rounding errors may be left.
    """
    mean, total = rows.mean(0), missing.sum(0).double()
    some = slice(None) if len(mean) <= MOST else slice(0)
    away, middle = (rows - mean)[:, some], mean.double()
    squares = len(rows) * torch.outer(middle[some], middle[some]) + away.mT @ away
    return [
        len(rows),
        len(rows) * middle,
        total,
        squares,
        torch.outer(total, middle[some]) + missing.mT @ away,
    ]


def _correct(
    holding: Holding, weight: Candidate, layer: Any, sums: Sequence[Any], fit: Callable[..., Any]
) -> None:
    """Fits the factors of a layer to sums over its calls, and corrects its bias."""
    inputs, missing, squares, products = (each / sums[0] for each in sums[1:])
    matrix, bias = _matrix(holding, holding.weight.detach()).double(), layer.bias
    if len(squares):
        eye, mean = torch.eye(len(squares)).to(squares), float(squares.diagonal().mean()) or 1.0
        if bias is not None:
            squares -= torch.outer(inputs, inputs)
            products -= torch.outer(missing, inputs)
        squares += LEAST * mean * eye
        damped = squares + DAMPING * squares.diagonal().mean() * eye
        better = _matrix(holding, matrix + torch.linalg.solve(damped, products, left=False))
        columns = holding.columns(holding.kind)
        sides = weight.metric.sides[-1:] if weight.metric else ()
        other = next((side for side in sides if not {*side.dims} & {*columns}), None)
        metric = Metric(columns, squares.cpu().numpy(), OUTPUT_DAMPING, other)
        array = better.reshape(holding.shape).to(weight.array)
        found = fit(replace(weight, array=array, metric=metric)).factors
        names = {name: name.replace(CODES, ".codes").replace(SCALE, ".scale") for name in found}
        layer._modules[layer._place].load_state_dict({names[name]: each for name, each in found.items()})
    if bias is not None:
        lost = matrix - _matrix(holding, layer.weight.detach()).double()
        with torch.no_grad():
            bias.add_((missing + lost @ inputs).to(bias))
