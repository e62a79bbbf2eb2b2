"""Layers whose axes have any names, in models, blocks and texts, against the same layers one after another."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tensornet as tn
from tensornet.graph.argument_shapes import sizes_from_shapes
from tensornet.graph.shape_inference import dim_size
from tensornet.sizes import evaluate

NAMES = "bcijknpu"
LAYERS: tuple[tuple[str, dict[str, int]], ...] = (
    ("y[B,A] = x[A,B]", {}),
    ("y[A,C] = x[A,B] * W[C,B]", {"C": 3}),
    ("y[A,C] = x[A,C+D] * W[D]", {"D": 2}),
    ("y[A,C] = sum[D](x[A,2*C+D])", {"C": 2}),
    ("y[A,C] = sum[D](x[A,C+D])", {"D": 2}),
    ("y[A,C] = x[A,C+1] * D", {"D": 3}),
    ("y[A,B] = x[A,B] / sqrt(B)", {}),
    ("y[A,C] = sum[B](x[A,B]) * index(C) + C", {"C": 2}),
    ("y[A,(C,B)] = x[A,B] * W[C]", {"C": 2}),
    ("y[A,B] = softmax[B](x[A,B]) + roll(x[A,B], B=1)", {}),
    ("y[A,B] = pad(x[A,B], B=(1,0))", {}),
    ("x[A,B]: input\ny[A,B] = x[A,1:]", {}),
    ("h[A,B] = 0.5 * h[A,B-1] + x[A,B]", {}),
    ("D: 2\ny[A,C] = x[A,C+D]", {}),
    ("y[A,C] = 0\ny[A,index(B)//2] += x[A,B]", {"C": 4}),
    ("y[A,B] = x[A,B] * x[E,B] * W[E,A]", {}),
)


def drawn(draw: random.Random) -> tuple[str, dict[str, int]]:
    """A layer of one input, with names for its axes."""
    text, sizes = draw.choice(LAYERS)
    names = dict(zip("ABCDE", draw.sample(NAMES, 5), strict=True))
    return re.sub(r"\b[ABCDE]\b", lambda found: names[found.group()], text), {
        names[axis]: size for axis, size in sizes.items()
    }


def one_by_one(layers: Sequence[tn.Graph], x: Any, rng: Any) -> tuple[dict[str, Any], Any]:
    """The parameters, and what the layers make of an array, one after another."""
    params: dict[str, Any] = {}
    for number, layer in enumerate(layers):
        bound = layer.bind(**sizes_from_shapes(layer, layer.inputs, [x.shape]))
        sizes = {
            leaf.name: [evaluate(dim_size(dim), bound.bound) for dim in leaf.dims]
            for leaf in bound.parameters
        }
        own = {name: rng.standard_normal(shape) for name, shape in sizes.items()}
        x = tn.compile(layer)(own, x)
        if not x.size:
            raise tn.ShapeError("nothing is left")
        params |= {f"s{number}.{name}": array for name, array in own.items()}
    return params, x


def forms(draw: random.Random, layers: Sequence[tn.Graph], given: dict[str, int], inputs: str) -> tn.Graph:
    """A model of the layers; some of them may stand in a block of their own."""
    cut = draw.randrange(len(layers))

    def calls(first: int, last: int) -> Callable[[Any], Any]:
        def forward(x: Any) -> Any:
            for number in range(first, last):
                x = layers[number](x, scope=f"s{number}")
            return x

        return forward

    if not cut:
        return tn.model(calls(0, len(layers)), inputs=inputs, **given)
    inner = tn.model(calls(0, cut), inputs=f"x[{','.join(draw.sample(NAMES, 2))}]")
    return tn.model(lambda x: calls(cut, len(layers))(inner(x)), inputs=inputs, **given)


@pytest.mark.parametrize(
    "first", [pytest.param(n, marks=[pytest.mark.slow] * (n > 0)) for n in range(0, 800, 20)]
)
def test_names_of_axes_are_of_a_layer_alone(first: int) -> None:
    compared = 0
    for seed in range(first, first + 20):
        draw, rng = random.Random(seed), np.random.default_rng(seed)
        kinds = [drawn(draw) for _ in range(draw.randint(1, 3))]
        layers = [tn.layer(text, inputs=() if ": input" in text else "x", **sizes) for text, sizes in kinds]
        layers = [draw.choice(layers) for _ in range(draw.randint(1, 5))]
        x = rng.standard_normal((draw.randint(1, 5), draw.randint(2, 7)))
        axes = draw.sample(NAMES, 2)
        given = {axis: size for axis, size in zip(axes, x.shape, strict=True) if draw.random() < 0.5}
        try:
            params, expected = one_by_one(layers, x, rng)
        except tn.ShapeError:  # too short for a layer
            continue
        graph = forms(draw, layers, given, f"x[{','.join(axes)}]")
        sized = graph.bind(**sizes_from_shapes(graph, graph.inputs, [x.shape]))
        for each in (graph, graph.flat, sized, sized.flat):
            assert tn.layer(str(each)) == each, seed
            assert tn.Graph.from_json(each.to_json()) == each, seed
            found = tn.compile(tn.layer(str(each)))(
                {leaf.name: params[leaf.name] for leaf in each.parameters}, x
            )
            np.testing.assert_allclose(found, expected, atol=1e-9, err_msg=str(seed))
        compared += 1
    assert compared > 10
