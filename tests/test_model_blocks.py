"""Models are made of blocks: equal layers are one graph, planned and written once, under the names they had."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import numpy as np
import pytest
import sympy

import tensornet as tn
from tensornet import models
from tensornet.planning.plans import Step
from tensornet.sizes import evaluate

from .conftest import sampled, table

SHAPES = {name: digest for name, _, digest in table("presets.txt") if digest != "-"}
"""For each preset a digest of the names and shapes of its parameters and constants, from before there were blocks."""


def blocks(graph: tn.Graph, scope: str) -> list[tn.Graph]:
    """The blocks that a graph calls under scopes of that pattern."""
    return [call.graph for call in graph.calls if re.fullmatch(scope, call.scope)]


BY_DAY = [
    *("perceiver_imagenet_shared", "swin_t", "tensor_swin_28"),
    *("transformer_base", "vit_ti_14", "xlnet_base"),
]


@pytest.mark.parametrize("name", sampled(SHAPES, BY_DAY))
def test_parameters_are_called_as_ever(name: str) -> None:
    graph = models.create(name)
    lines = sorted(
        f"{leaf.name} {leaf.kind} {[evaluate(size, graph.bound) for size in leaf.shape]}"
        for leaf in graph.leaves
    )
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12] == SHAPES[name]


# ---------------------------------------------------------------------------- equal layers


@pytest.mark.parametrize(("name", "scope", "calls", "different"), table("equal_layers.txt"))
def test_equal_layers_are_equal_blocks(name: str, scope: str, calls: str, different: str) -> None:
    found = blocks(models.create(name), scope)
    assert (len(found), len(set(found))) == (int(calls), int(different))


def test_what_is_dropped_at_other_rates_is_another_block() -> None:
    swin = models.swin(16, 2, 4, (4,), (2,), 5, window=2)
    assert len(set(blocks(swin, r"stages\.0\.blocks\.\d"))) == 2
    deep = models.swin(16, 2, 4, (4,), (2,), 5, window=2, stochastic_depth=0.3)
    first, *rest = blocks(deep, r"stages\.0\.blocks\.\d")
    assert first == blocks(swin, r"stages\.0\.blocks\.0")[0]  # at a rate of 0 nothing is drawn
    assert len({first, *rest}) == 4


def test_code_is_as_long_as_the_models_are_different() -> None:
    for name, most in (("vit_b_16", 150), ("perceiver_imagenet", 400)):
        assert tn.plan(models.create(name), backend="torch", compare=False, b=1).code.count("\n") < most


def test_a_deeper_model_adds_calls_alone() -> None:
    towers = [models.vit(32, 8, 16, depth, 2, classes=3) for depth in (2, 5)]
    plans = [tn.plan(each, backend="numpy", compare=False, b=2) for each in towers]
    (shallow,), (deep,) = (plan.functions for plan in plans)
    assert shallow == deep
    assert plans[1].flops - plans[0].flops == 3 * deep.flops


def test_what_cross_attends_share_is_computed_once() -> None:
    """Keys and values of the inputs, as where all is one: written out, equal equations are found to be one."""
    graph = models.perceiver((16, 16), 3, 8, 16, 1, 2, 5, repeats=4, cross_attends=4, bands=4)
    called, written_out = (tn.plan(each, backend="numpy", compare=False, b=4) for each in (graph, graph.flat))
    assert "called 3 times" in str(called)
    assert called.flops == written_out.flops
    assert called.peak_memory <= written_out.peak_memory
    made = [step for step in called.steps if "cross.1.attention.k" in step.reads]
    assert (
        sum(isinstance(step, Step) for step in made) <= 1
    )  # brought in the order of the block for all calls


# ---------------------------------------------------------------------------- names


def numbered_axes(text: str) -> list[str]:
    """What stands in brackets with an axis that has a number."""
    indices = re.findall(r"\[([^\[\]]*)\]", text)
    assert indices
    return [index for index in indices if re.search(r"(?<![\w.])[a-z]\w*_\d+\b", index)]


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("vit_b_16", {"b": 1}),
        ("swin_t", {"b": 1}),
        ("perceiver_imagenet", {"b": 1}),
        ("perceiver_io_imagenet_learned", {"b": 1}),
        ("transformer_base", {"b": 1, "m": 16, "n": 12}),
    ],
)
def test_axes_go_by_plain_names(name: str, sizes: dict[str, int]) -> None:
    """A number tells two axes of one equation apart, and there are none such here."""
    graph = models.create(name)
    assert not numbered_axes(str(graph))
    plan = tn.plan(graph, backend="torch", compare=False, **sizes)
    assert not numbered_axes(str(plan))
    assert not numbered_axes(plan.code)


APART = [("tensor_swin_t", 16), ("xlnet_base", 128)]


@pytest.mark.parametrize(("name", "size"), sampled(APART, APART[1:]))
def test_a_number_tells_axes_of_one_step_apart(name: str, size: int) -> None:
    """Where two axes that their equations give one name meet, one of them has it."""
    graph = models.create(name)
    assert not numbered_axes(str(graph))
    plan = tn.plan(graph, backend="torch", compare=False, **dict.fromkeys(graph.open_sizes, size))
    steps = [step for each in (plan, *plan.functions) for step in each.steps if isinstance(step, Step)]
    apart: list[str] = []
    for step in steps:
        axes = {axis.name for axis in step.axes}
        plain = {re.sub(r"(_\d+)+$", "", name) for name in axes}
        assert plain <= axes, str(step.equation)
        apart += axes - plain
    assert apart


READ = ("swin_t", "tensor_swin_t", "perceiver_imagenet", "transformer_base", "xlnet_base")


@pytest.mark.parametrize("name", sampled(READ, ["swin_t", "xlnet_base"]))
def test_a_preset_reads_back(name: str) -> None:
    graph = models.create(name)
    constants = {leaf.name: leaf.value.array() for leaf in graph.constants if leaf.value is not None}
    for each in (graph, graph.flat):
        assert tn.layer(str(each), constants=constants) == each


SYMBOLIC: list[tuple[str, dict[str, Any]]] = [
    ("vit", {"image": 32, "patch": 8, "dim": "E", "heads": "k", "depth": 2}),
    ("vit", {"image": 32, "patch": 8, "dim": "F", "heads": "D", "hidden": "h", "depth": 2, "classes": "W"}),
    ("swin", {"image": 32, "dim": "h", "depths": (2,), "heads": ("w",), "window": 4}),
    ("transformer", {"dim": "h*d", "heads": "h", "depth": 2, "hidden": "m", "vocabulary": "n"}),
    ("xlnet", {"dim": "h*k", "heads": "k", "depth": 3, "hidden": "n", "vocabulary": "p"}),
    (
        "perceiver",
        {"shape": None, "channels": "b", "latents": "m", "dim": "e", "depth": 1, "repeats": 2}
        | {"cross_attends": 2, "heads": "h", "positions": None, "cross_width": "queries", "classes": "n"},
    ),
]


@pytest.mark.parametrize(("name", "settings"), SYMBOLIC)
def test_a_model_of_symbols_is_made_of_blocks_too(name: str, settings: dict[str, Any]) -> None:
    """The caller's symbols are those of axes and of tensors inside of blocks."""
    graph = models.create(name, **settings)
    assert graph.calls
    assert tn.layer(str(graph)) == graph
    assert tn.layer(str(graph.flat)) == graph.flat
    flat = [each for value in settings.values() for each in (value if isinstance(value, tuple) else [value])]
    names = [each for each in flat if isinstance(each, str) and each != "queries"]
    wanted = {symbol.name for size in names for symbol in sympy.sympify(size).free_symbols}
    assert wanted <= set(graph.open_sizes)


def test_symbols_with_the_names_of_tensors_change_no_value() -> None:
    numbers = {"depth": 2, "mask": None, "segments": False}
    plain = models.xlnet(11, 8, heads=2, hidden=12, **numbers)
    symbolic = models.xlnet("p", "h*k", heads="k", hidden="n", **numbers)
    symbolic = symbolic.bind(p=11, h=4, k=2, n=12)
    rng = np.random.default_rng(0)
    parameters = tn.init(plain)
    given = rng.integers(0, 11, (3, 6)), rng.integers(0, 6, (3, 2))
    found, wanted = (tn.compile(graph)(parameters, *given) for graph in (symbolic, plain))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
