"""Weights fitted again, one after another, to what the compressed network before them makes.

    W' = W + E[(y − W·x̂)·x̂ᵀ]·E[x̂·x̂ᵀ]⁻¹,    y = W·x

Here x is what W multiplies in the dense network, x̂ in the compressed one, both without their means. W' minimises
E‖y − W'·x̂‖² (Y. Li et al., 2025, "GPTAQ"), and the bias takes up the mean of what is left (M. Nagel et al., 2019).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
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
    network: Module, holdings: Sequence[Holding], see: Any, made: Compressed, weights: Sequence[Candidate]
) -> Compressed:
    """A compressed network with factors and biases that make up for the errors of the layers before.

    Args:
        network: the dense network.
        holdings, weights: its weights.
        see: runs a network on batches, and calls a function with each product by some weights, as `Holding.see`.
        made: the compressed network.
    """
    model, allocation, misfits = copied(made.model), made.allocation, {**made.misfits}
    chosen = allocation.weights
    losses = {row.path: row.level.loss for row in allocation.rows if row.level.method}
    most, wanted = sorted(losses, key=losses.__getitem__)[-MEASURED:], defaultdict[str, list[Any]](list)
    pairs = [
        (each, weight)
        for each, weight in zip(holdings, weights, strict=True)
        if each.path in most and each.kind in FITTED and each.groups == len(each.holders) == 1
    ]

    def watch(whole: Module, some: Sequence[Holding], call: Callable[..., None]) -> None:
        run = copied(whole)  # calls may write to it
        see(run, [replace(each, holders=[(_layer(run, each), each.kind)]) for each in some], see=call)

    def wants(holding: Holding, *call: Any) -> None:
        wanted[holding.path].append(_product(holding, *call)[1])

    watch(network, [each for each, _ in pairs], wants)
    for holding, weight in pairs:
        results, sums = iter(wanted.pop(holding.path, ())), list[Any]()

        def adds(holding: Holding, *call: Any, results: Any = results, sums: list[Any] = sums) -> None:
            rows, product = _product(holding, *call)
            found = _moments(rows, next(results) - product)
            sums[:] = [a + b for a, b in zip(sums, found, strict=True)] if sums else found

        watch(model, [holding], adds)
        if sums and sums[0]:
            layer = _layer(model, holding)
            _correct(
                holding, weight, layer, sums, lambda one: one.fitted(*chosen[one.path], allocation.modes)
            )
            array = numbers(layer.weight.detach().cpu(), weight.path)
            misfits[weight.path] = weight.target.misfit(array)
    return replace(made, model=model, misfits=misfits)


def _layer(network: Module, holding: Holding) -> Any:
    """The layer of a network that holds a weight."""
    return network.get_submodule(holding.path.rpartition(".")[0])


def _matrix(holding: Holding, weight: torch.Tensor) -> torch.Tensor:
    """A weight as a matrix, results by operands; and such a matrix as the weight if that has two dimensions."""
    return weight.mT if holding.columns == (0,) else weight.flatten(1)


def _product(holding: Holding, *call: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows that a call multiplies, and their products with the dense weight."""
    rows, *_ = holding.operands(*call)
    return rows, rows @ _matrix(holding, holding.weight.detach()).mT.to(rows)


def _moments(rows: torch.Tensor, missing: torch.Tensor) -> list[Any]:
    """The number of rows x̂; the sums of x̂ and of e = y − W·x̂; of x̂·x̂ᵀ and e·x̂ᵀ, if they take little memory."""
    some = rows if rows.shape[1] <= MOST else rows[:, :0]
    found = rows.sum(0), missing.sum(0), some.mT @ some, missing.mT @ some
    return [len(rows), *(each.double() for each in found)]


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
        sides = weight.metric.sides[-1:] if weight.metric else ()
        other = next((side for side in sides if not {*side.dims} & {*holding.columns}), None)
        metric = Metric(holding.columns, squares.cpu().numpy(), OUTPUT_DAMPING, other)
        array = better.reshape(holding.shape).to(weight.array)
        found = fit(replace(weight, array=array, metric=metric)).factors
        names = {name: name.replace(CODES, ".codes").replace(SCALE, ".scale") for name in found}
        layer._modules[layer._place].load_state_dict({names[name]: each for name, each in found.items()})
    if bias is not None:
        lost = matrix - _matrix(holding, layer.weight.detach()).double()
        with torch.no_grad():
            bias.add_((missing + lost @ inputs).to(bias))
