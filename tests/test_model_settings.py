"""Models of random small settings: they build, their formula counts their arrays, and backends agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet import models
from tensornet.models.tensor_swin import PARTS

from .conftest import examples, parameters_of

size = st.integers(1, 3)
switch = st.booleans()


def agree(graph: tn.Graph, *inputs: Any) -> None:
    """As many parameters as arrays hold, and the same outputs on NumPy and on torch."""
    parameters = parameters_of(graph)
    held = sum(array.size for array in parameters.values())
    assert tn.parameter_count(graph) == held == sum(row[2] for row in tn.parameter_table(graph))
    expected = tn.compile(graph)(parameters, *inputs)
    tensors = [torch.tensor(each) for each in inputs]
    found = tn.compile(graph, backend="torch")(tn.to_backend(parameters, "torch"), *tensors)
    outputs = zip(*(each if isinstance(each, tuple) else (each,) for each in (expected, found)), strict=True)
    for ours, theirs in outputs:
        assert np.isfinite(ours).all()
        np.testing.assert_allclose(theirs.numpy(), ours, rtol=1e-8, atol=1e-9)


@given(st.data(), st.tuples(st.integers(1, 9), st.integers(1, 9)))
@examples(4)
def test_swin(data: st.DataObject, image: tuple[int, int]) -> None:
    stages = data.draw(st.integers(1, 2))
    graph = models.swin(
        image,
        data.draw(size),
        2 * data.draw(size),
        data.draw(st.tuples(*[st.integers(0, 2)] * stages)),
        data.draw(st.tuples(*[st.integers(1, 2)] * stages)),
        data.draw(st.sampled_from([None, 1, 3])),
        window=data.draw(st.integers(1, 4)),
        narrow=data.draw(st.sampled_from(["square", "axes", "padded"])),
        padding=data.draw(st.sampled_from(["before", "after"])),
        ratio=data.draw(st.sampled_from([0.5, 1, 2])),
        channels=data.draw(size),
        tokens=data.draw(switch),
        weights=data.draw(st.sampled_from(["soft", "signed"])),
        qkv_bias=data.draw(switch),
        patch_eps=data.draw(st.sampled_from([None, 0.1])),
    )
    agree(graph, np.random.default_rng(0).standard_normal((2, graph.bound["C"], *image)))


modes = st.tuples(size, size, size)


@pytest.mark.filterwarnings("ignore:in 'head.y'")  # which starts off its scale where all sizes are 1
@given(st.data(), st.tuples(st.integers(1, 7), st.integers(1, 7)), modes)
@examples(3)
def test_tensor_swin(data: st.DataObject, image: tuple[int, int], first: tuple[int, int, int]) -> None:
    after = list(first)
    after[data.draw(st.integers(0, 2))] *= 2
    every = [first, tuple(after)][: data.draw(st.integers(1, 2))]
    graph = models.tensor_swin(
        image,
        data.draw(size),
        every,  # type: ignore[arg-type]
        data.draw(st.tuples(*[st.integers(0, 2)] * len(every))),
        [tuple(data.draw(st.sampled_from([1, mode])) for mode in each) for each in every],  # type: ignore[misc]
        data.draw(size),
        tensorized=tuple(data.draw(st.sets(st.sampled_from(PARTS)))),
        window=data.draw(size),
        narrow=data.draw(st.sampled_from(["square", "axes", "padded"])),
        padding=data.draw(st.sampled_from(["before", "after"])),
        ratios=data.draw(modes),
        channels=data.draw(size),
        position_bias=data.draw(switch),
    )
    agree(graph, np.random.default_rng(0).standard_normal((2, graph.bound["C"], *image)))


@given(st.data(), size, st.integers(1, 4), st.integers(0, 2))
@examples(4)
def test_xlnet(data: st.DataObject, batch: int, length: int, past: int) -> None:
    heads = data.draw(size)
    chosen: dict[str, Any] = {
        "two_streams": data.draw(switch),
        "mask": data.draw(st.sampled_from([None, "permutation", "padding", ("permutation", "padding")])),
        "causal": data.draw(switch),
        "segments": data.draw(switch),
        "memory": data.draw(switch),
        "clamp_len": data.draw(st.sampled_from([None, 1, 2])),
        "bi_data": data.draw(switch),
        "empty": data.draw(st.sampled_from(["nothing", "all"])),
        "logits_bias": data.draw(switch),
    }
    chosen["head"] = data.draw(st.sampled_from(["tokens", None] + ["classes"] * (not chosen["two_streams"])))
    depth, dim = data.draw(st.integers(0, 2)), 2 * heads * data.draw(size)
    graph = models.xlnet(data.draw(size), dim, depth, heads, data.draw(size), classes=2, **chosen)
    rng = np.random.default_rng(0)
    kinds = {
        "t": rng.integers(0, graph.bound["V"], (batch, length)),
        "z": rng.integers(0, length, (batch, 2)),
        "see": rng.integers(0, 2, (batch, length, length)),
        "keep": rng.integers(0, 2, (batch, length)),
        "segment": rng.integers(0, 2, (batch, length)),
    }
    memory = rng.standard_normal((batch, past, dim))
    agree(graph, *(kinds.get(leaf.name, memory) for leaf in graph.inputs))


@given(st.data(), st.lists(size, min_size=0, max_size=3))
@examples(3)
def test_perceiver(data: st.DataObject, shape: list[int]) -> None:
    heads, tokens = data.draw(size), data.draw(switch)
    places: list[Any] = [None] if tokens or not shape else ["fourier", None]
    places += ["learned"] if shape else []
    places += ["given"] if not (shape or tokens) else []
    chosen: dict[str, Any] = {
        "repeats": data.draw(st.integers(0, 2)),
        "cross_attends": data.draw(st.integers(0, 2)),
        "share_cross": data.draw(st.sampled_from(["all", "rest", "none"])),
        "share_latent": data.draw(st.sampled_from(["all", "rest", "none"])),
        "cross_width": data.draw(st.sampled_from(["inputs", "queries", 3])),
        "positions": data.draw(st.sampled_from(places)),
        "bands": data.draw(size),
        "position_dim": data.draw(size),
        "mask": data.draw(switch),
        "head": data.draw(st.sampled_from(["mean", "query", "given", None])),
        "query_dim": data.draw(st.sampled_from([None, 1, 4])),
        "query_residual": data.draw(switch),
        "decoder_width": data.draw(st.sampled_from([None, "inputs", "queries", 3])),
        "decoder_values": data.draw(st.sampled_from([None, 2])),
        "widening": data.draw(size),
        "decoder_widening": data.draw(size),
    }
    channels, classes = data.draw(size), data.draw(st.sampled_from([None, 1, 3]))
    if tokens:
        chosen |= {"vocabulary": data.draw(size)}
        tied = chosen["head"] in ("query", "given") and data.draw(switch)
        chosen |= {"tied": True, "query_dim": None} if tied else {}
        shape = [max(shape, default=1)]
    if chosen["head"] == "query":
        chosen["outputs"] = data.draw(st.sampled_from([None, 1, 2]))
    if chosen["positions"] == "given":
        chosen["resolution"] = data.draw(st.lists(size, min_size=1, max_size=3))
    dim, depth = heads * data.draw(size), data.draw(st.integers(0, 2))
    graph = models.perceiver(shape or None, channels, data.draw(size), dim, depth, heads, classes, **chosen)
    rng = np.random.default_rng(0)
    many = shape[0] if tokens else int(np.prod(shape)) if shape else data.draw(size)
    x = rng.integers(0, chosen["vocabulary"], (2, many)) if tokens else None
    x = rng.standard_normal((2, channels, *shape) if shape else (2, many, channels)) if x is None else x
    rest: dict[str, Any] = {"p": rng.uniform(-1, 1, (2, many, len(chosen.get("resolution", ()))))}
    rest |= {"keep": rng.integers(0, 2, (2, many))}
    rest |= {"q": rng.standard_normal((2, 3, graph.bound.get("Q", 1)))}
    agree(graph, *(rest.get(leaf.name, x) for leaf in graph.inputs))
