"""Convolutions: tensornet, the library's own, a chain of these written by hand, and tensorly-torch.

    python -m benchmarks.convolution --threads 1 --clock process

Forward, and both ways with the bytes that are kept for backward. By hand, a factorized kernel is the chain of
convolutions that the papers print, and autograd goes back through it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import tltorch
import torch
from torch.nn import functional

import tensornet as tn

from .report import run
from .suite import MEASURES, OURS, Case, Contestant, Place, Suite, ours

__all__ = ["SUITE"]

_FORWARD = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


@dataclass(frozen=True)
class Shape:
    """What a convolution is of; as many zeros are around as keep the image where the stride is 1.

    Attributes:
        batch, channels, image: of x[b, C, H, …].
        kernel, stride, groups, dimensions: of the kernel, which has as many channels out.
    """

    batch: int
    channels: int
    image: int
    kernel: int = 3
    stride: int = 1
    groups: int = 1
    dimensions: int = 2

    def __str__(self) -> str:
        extent = f"{self.image}^{self.dimensions}" if self.dimensions > 1 else f"{self.image}"
        told = f"{self.channels} channels, {self.batch} × {extent}, kernel {self.kernel}"
        told += f", stride {self.stride}" if self.stride > 1 else ""
        return told + (f", {self.groups} groups" if self.groups > 1 else "")

    @property
    def moves(self) -> dict[str, int]:
        """Settings that the libraries call as we do."""
        return {"stride": self.stride, "padding": self.kernel // 2}

    def convolved(self, x: torch.Tensor, weight: torch.Tensor, **moves: int) -> torch.Tensor:
        """By the library; a matrix is a kernel of one element along each dimension."""
        ones = (1,) * (self.dimensions + 2 - weight.ndim)
        found: torch.Tensor = _FORWARD[self.dimensions](x, weight.reshape(*weight.shape, *ones), **moves)
        return found


def convolution(form: str, rank: Any, shape: Shape, place: Place) -> dict[str, Contestant]:
    """A kernel as it is, or a product of factors, of the same weights."""
    settings = {"factorization": form, "rank": rank, "groups": shape.groups, "dimensions": shape.dimensions}
    graph = tn.models.convolution(
        shape.channels, shape.channels, shape.kernel, bias=False, **settings, **shape.moves
    )
    x = place.drawn(shape.batch, shape.channels, *(shape.image,) * shape.dimensions).requires_grad_()
    mine = ours(graph, None, (x,), place)
    names = (leaf.name for leaf in graph.parameters)
    p = {
        name: each.detach().clone().requires_grad_()
        for name, each in zip(names, mine.parameters, strict=True)
    }
    chain = partial(_CHAINS[form], shape, p)
    found = {
        OURS: mine,
        "by hand" if form != "dense" else "torch": Contestant(chain, (x,), tuple(p.values())),
    }
    if form in _FACTORS:
        layer = _layer(form, rank, shape, p).to(place.device, place.dtype)
        found["tensorly-torch"] = Contestant(layer, (x,), tuple(layer.parameters()))
    return found


# ---------------------------------------------------------------------------- by hand


def _dense(shape: Shape, p: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return shape.convolved(x, p["F"], groups=shape.groups, **shape.moves)


def _tucker2(shape: Shape, p: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    z = shape.convolved(shape.convolved(x, p["U"].T), p["G"], **shape.moves)
    return shape.convolved(z, p["V"])


def _cp(shape: Shape, p: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    windows = [p[f"U{n}"] for n in range(3, 3 + shape.dimensions)]
    axes = "uvw"[: shape.dimensions]
    kernel = torch.einsum(f"{','.join(f'{axis}t' for axis in axes)}->t{axes}", *windows).unsqueeze(1)
    z = shape.convolved(shape.convolved(x, p["U2"].T), kernel, groups=kernel.shape[0], **shape.moves)
    return shape.convolved(z, p["U1"])


def _tt(shape: Shape, p: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    kernel = torch.einsum("acr,rus,sv->acuv", p["G2"], p["G3"], p["G4"])
    return shape.convolved(shape.convolved(x, kernel, **shape.moves), p["G1"])


def _separable(shape: Shape, p: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    z = shape.convolved(x, p["D"].unsqueeze(1), groups=shape.channels, **shape.moves)
    return shape.convolved(z, p["P"])


_CHAINS = {"dense": _dense, "tucker2": _tucker2, "cp": _cp, "tt": _tt, "separable": _separable}


# ---------------------------------------------------------------------------- tensorly-torch

_FACTORS = {"tucker2": ("V", "U"), "cp": ("U1", "U2", "U3", "U4", "U5")}
"""The factors of a layer of theirs, by the names that they have here."""


def _layer(form: str, rank: Any, shape: Shape, p: Mapping[str, torch.Tensor]) -> torch.nn.Module:
    """Theirs, of the same kernel: a Tucker kernel has factors of the window too, and these are the identity."""
    channels = (shape.channels, shape.channels)
    kernel = (shape.kernel,) * shape.dimensions
    form_there, ranks = ("tucker", (*rank, *kernel)) if form == "tucker2" else (form, rank)
    settings = {"factorization": form_there, "rank": ranks, "order": shape.dimensions, **shape.moves}
    layer = tltorch.FactorizedConv(*channels, shape.kernel, implementation="factorized", **settings)
    names = [name for name in _FACTORS[form] if name in p]
    values = [p[name].detach() for name in names]
    values += [torch.eye(shape.kernel) for _ in range(2 + shape.dimensions - len(names))]
    with torch.no_grad():
        for factor, value in zip(layer.weight.factors, values, strict=True):
            factor.copy_(value)
        if form == "tucker2":
            layer.weight.core.copy_(p["G"].detach())
        else:
            layer.weight.weights.fill_(1)
    return layer


# ---------------------------------------------------------------------------- cases


def _case(form: str, rank: Any, shape: Shape) -> Case:
    told = "" if form in ("dense", "separable") else f" of rank {rank}"
    return Case(f"{form}{told}, {shape}", partial(convolution, form, rank, shape), MEASURES)


def _cases(batch: int, channels: int, image: int) -> tuple[Case, ...]:
    """Each form, with and without a stride, in one to three dimensions."""
    few = channels // 4
    plain = Shape(batch, channels, image)
    moving = Shape(batch, channels, image, stride=2)
    many = Shape(4 * batch, channels, image // 2)
    line = Shape(batch, channels, 8 * image, dimensions=1)
    space = Shape(batch // 2, channels // 2, image // 2, dimensions=3)
    shapes = (plain, moving, many, line, space)
    grouped = (Shape(batch, channels, image, groups=4), Shape(batch, channels, image, groups=channels))
    dense = (*shapes, Shape(batch, channels, image, kernel=1), *grouped)
    return (
        *(_case("dense", "same", each) for each in dense),
        *(_case("tucker2", (few, few), each) for each in shapes),
        *(_case("cp", 2 * few, each) for each in shapes),
        *(_case("tt", (few, few, 3), each) for each in (plain, moving)),
        *(_case("separable", "same", each) for each in (plain, moving)),
    )


SUITE = Suite(
    "convolution",
    "convolutions, against the library's and chains of these",
    {"usual": _cases(8, 128, 28), "tiny": _cases(2, 8, 6), "large": _cases(64, 256, 56)},
)

if __name__ == "__main__":
    run(SUITE)
