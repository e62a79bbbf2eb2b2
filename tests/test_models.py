"""Every model on every backend, as text, compiled, trained; its blocks, its settings, and faults that were found."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import math
import re
from collections.abc import Callable
from typing import Any

import array_api_strict
import hypothesis
import numpy as np
import pytest
import sympy
import torch
from hypothesis import strategies as st

import tensornet as tn
from tensornet import models
from tensornet.models.attention import dot_product_attention
from tensornet.planning.plans import Step
from tensornet.protocol import backend_of, load_backend
from tensornet.sizes import evaluate

from .conftest import examples, rows, sampled, table
from .conftest import parameters_of as parameters_of
from .differential import computed, drawn_of_kinds

FEW = pytest.mark.filterwarnings("ignore::tensornet.TensornetWarning")  # ranks that do not come out

# ---------------------------------------------------------------------------- Every model on every backend, as text, compiled, trained


Array = Any


def drawn(text: str) -> Callable[[np.random.Generator], list[Array]]:
    """What draws inputs, told by their shapes: numbers, words below 11, one of two or six, and what is seen of most."""
    kinds: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
        "": lambda rng, shape: rng.standard_normal(shape),
        "inside": lambda rng, shape: rng.uniform(-1, 1, shape),
        "seen": lambda rng, shape: rng.random(shape) < 0.7,
        "all": lambda rng, shape: np.ones(shape, bool),
        "word": lambda rng, shape: rng.integers(0, 11, shape),
        "six": lambda rng, shape: rng.integers(0, 6, shape),
        "two": lambda rng, shape: rng.integers(0, 2, shape),
    }
    told = [each.rpartition(":") for each in text.split()]
    return lambda rng: [kinds[kind](rng, tuple(map(int, shape.split(",")))) for kind, _, shape in told]


def made(call: str, inputs: str) -> tuple[tn.Graph, Any]:
    """A model, made when a test asks for it, and what draws its inputs."""
    return eval(f"models.{call}"), drawn(inputs)


MODELS: dict[str, Callable[[], tuple[tn.Graph, Callable[[np.random.Generator], list[Array]]]]] = {
    name: functools.cache(functools.partial(made, call, inputs))
    for (name, call), inputs in ((text.split(": "), inputs) for text, inputs in rows("every_model.txt"))
}


def first(y: Any) -> Any:
    return y[0] if isinstance(y, tuple) else y


def agrees_with_numpy(name: str, library: Any, tolerance: float = 1e-9, **on: str) -> None:
    graph, inputs = MODELS[name]()
    given, parameters = inputs(np.random.default_rng(0)), parameters_of(graph)
    expected = first(tn.compile(graph)(parameters, *given))
    # masks as numbers where no truths are compared
    given = [each + 0 if library.name == "array_api_strict" else each for each in given]
    arrays = [library.asarray(each, **on) for each in given]
    moved = {name: library.asarray(array, **on) for name, array in parameters.items()}
    found = first(tn.compile(graph, backend=library)(moved, *arrays))
    np.testing.assert_allclose(library.numpy(found), expected, rtol=tolerance, atol=tolerance / 100)


@pytest.mark.parametrize("name", MODELS)
def test_torch_agrees_with_numpy(name: str) -> None:
    """`test_jax.py` has JAX."""
    agrees_with_numpy(name, load_backend("torch"))


@pytest.mark.parametrize("name", MODELS)
def test_the_code_of_cupy_agrees_with_numpy(name: str) -> None:
    """Under array-api-strict, which takes nothing for granted."""
    agrees_with_numpy(name, backend_of(array_api_strict.asarray(0.0)))


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["torch", "cupy"])
@pytest.mark.parametrize("name", MODELS)
def test_a_gpu_agrees_with_numpy(name: str, backend: str) -> None:
    if backend == "cupy":
        pytest.importorskip("cupy")
    agrees_with_numpy(name, load_backend(backend), 1e-8, device="cuda")


@pytest.mark.parametrize("name", MODELS)
def test_a_printed_model_reads_back(name: str) -> None:
    graph, _ = MODELS[name]()
    constants = {leaf.name: leaf.value.array() for leaf in graph.constants if leaf.value is not None}
    for each in (graph, graph.flat):
        assert tn.layer(str(each), constants=constants) == each
    assert tn.Graph.from_json(graph.to_json()) == graph


@pytest.mark.parametrize("name", sampled(MODELS, ["vit"]))
def test_a_model_is_one_graph_to_torch_compile(name: str) -> None:
    """Forward and backward, traced whole; `slow` tests trace all, and compile to machine code."""
    _compiled_step(name, "aot_eager")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", MODELS)
def test_a_model_compiles_to_machine_code(name: str) -> None:
    _compiled_step(name, "inductor")


def prepared(name: str) -> tuple[torch.nn.Module, list[torch.Tensor]]:
    """The module of a model, and tensors for its inputs."""
    graph, inputs = MODELS[name]()
    given = [torch.tensor(each) for each in inputs(np.random.default_rng(0))]
    given = [each.float() if each.is_floating_point() else each for each in given]
    return tn.module(graph, seed=0), given


def _compiled_step(name: str, backend: str) -> None:
    torch._dynamo.reset()
    module, given = prepared(name)
    module.load_state_dict({n: torch.tensor(p) for n, p in parameters_of(MODELS[name]()[0]).items()})
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    losses = [first(each(*given)).square().mean() for each in (module, compiled)]
    torch.testing.assert_close(losses[1], losses[0])
    gradients = [torch.autograd.grad(loss, list(module.parameters()), allow_unused=True) for loss in losses]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-4)


LEARNING = [name for name in MODELS if name not in ("xlnet_memory", "llama_stored")]


@pytest.mark.parametrize("name", sampled(LEARNING, ["vit", "transformer", "gpt2"]))
def test_a_model_learns_its_examples(name: str) -> None:
    module, given = prepared(name)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    labels = torch.randint(0, module(*given).shape[-1], module(*given).shape[:-1])
    losses = []
    for _ in range(40):
        logits = module(*given)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.parametrize("name", MODELS)
def test_initial_outputs_are_of_unit_size(name: str) -> None:
    """Neither vanishing nor exploding with the derived initial values."""
    graph, inputs = MODELS[name]()
    y = first(tn.compile(graph)(tn.init(graph, seed=3, dtype="float64"), *inputs(np.random.default_rng(0))))
    assert 0.01 < y.std() < 10


def test_names_and_settings() -> None:
    names = models.names()
    assert {*MODELS, "vit_b_16", "xlnet_base"} - {"perceiver_io", "llama_stored", "xlnet_memory"} <= {*names}
    assert models.settings("vit_l_16")["dim"] == 1024
    assert models.settings("vit_l_16")["classes"] == 1000
    settings = models.settings("linear")
    assert settings["in_sizes"] is models.REQUIRED
    assert str(settings).startswith("{'in_sizes': required, 'out_sizes': required, 'factorization': 'dense'")
    for name in names:
        if any(name.startswith(each) for each in ("vit_", "perceiver_", "xlnet_", "transformer_b")):
            assert models.create(name, depth=1).parameters


@pytest.mark.parametrize(("preset", "number"), [row[:2] for row in table("presets.txt") if row[1] != "-"])
def test_presets_have_the_published_numbers_of_parameters(preset: str, number: str) -> None:
    name, *changes = preset.split(",")
    graph = models.create(name, **dict(each.split("=") for each in changes))
    assert tn.parameter_count(graph) == sum(row[2] for row in tn.parameter_table(graph)) == int(number)


# ---------------------------------------------------------------------------- Models are made of blocks


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


@pytest.mark.parametrize(("settings", "names"), rows("symbolic_models.txt"))
def test_a_model_of_symbols_is_made_of_blocks_too(settings: str, names: str) -> None:
    """The caller's symbols are those of axes and of tensors inside of blocks."""
    graph = eval(f"models.create({settings})")
    assert graph.calls
    assert tn.layer(str(graph)) == graph
    assert tn.layer(str(graph.flat)) == graph.flat
    assert {*names.split()} <= set(graph.open_sizes)


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


# ---------------------------------------------------------------------------- Faults that reviewers found in models, each held by a test


LOGITS = np.log([[0.7, 0.2, 0.1], [0.05, 0.05, 0.9]])


def test_a_position_outside_fails_in_compiled_code() -> None:
    module = tn.module(models.cross_entropy())
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    good = compiled(torch.tensor(LOGITS), torch.tensor([0, 2]))
    torch.testing.assert_close(good, module(torch.tensor(LOGITS), torch.tensor([0, 2])))
    with pytest.raises(RuntimeError, match="out of bounds"):  # torch.gather says so
        compiled(torch.tensor(LOGITS), torch.tensor([3, 2]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_row_that_sees_nothing_is_finite_in_every_type(dtype: torch.dtype) -> None:
    q, k, v = torch.randn(3, 1, 1, 3, 4).to(dtype)
    f = tn.compile(dot_product_attention(mask="padding"), backend="torch")
    found = f({}, q, k, v, torch.zeros(1, 3, dtype=torch.bool))
    torch.testing.assert_close(found, v.mean(2, keepdim=True).expand_as(v), rtol=2e-2, atol=2e-2)


def test_symbols_with_assumptions() -> None:
    plain, positive = sympy.symbols("D h"), sympy.symbols("D h", positive=True, integer=True)
    formulas = [tn.parameter_formula(models.vit(8, 4, dim, 1, heads)) for dim, heads in (plain, positive)]
    assert formulas[0] == formulas[1]


@pytest.mark.parametrize("text", ["maximum(sum[n](x[b,n]), 1)", "minimum(sum[n](x[b,n]), 0.5)"])
def test_the_larger_of_a_tensor_and_a_number_compiles(text: str) -> None:
    module = tn.module(tn.layer(f"y[b] = {text}", inputs="x"))
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(torch.ones(2, 3)), module(torch.ones(2, 3)))


def test_a_loss_of_impossible_classes_is_finite() -> None:
    logits = np.array([[1.0, -np.inf, 2.0], [0.0, 1.0, -np.inf]])
    expected = torch.nn.functional.cross_entropy(torch.tensor(logits), torch.tensor([0, 1])).item()
    np.testing.assert_allclose(tn.compile(models.cross_entropy())({}, logits, np.array([0, 1])), expected)
    logits[1] = np.nan
    ignoring = tn.compile(models.cross_entropy(ignore=-1))
    assert np.isfinite(ignoring({}, logits, np.array([0, -1])))


def test_numbers_of_numpy_are_numbers() -> None:
    graph = models.attention(4, 2, beta=np.float64(0.5), dropout=np.float64(0.1))
    assert [leaf.name for leaf in graph.parameters] == ["Wq", "bq", "Wk", "bk", "Wv", "bv", "Wo", "bo"]


def test_an_axis_may_be_called_as_the_graph_calls_itself() -> None:
    assert tn.layer("y[self] = x[self]", inputs="x").bind(self=3).bound == {"self": 3}


# ---------------------------------------------------------------------------- Every setting of every model


def parted(setting: str) -> tuple[str, str, str]:
    return setting.partition("=")


SMALL: dict[str, dict[str, Any]] = {
    name: {key: ast.literal_eval(value) for key, _, value in map(parted, settings)}
    for name, *settings in table("small_models.txt")
}
PRESETS = [name for name in models.names() if name not in SMALL]
BASES = (
    *("tensor_swin", "perceiver", "transformer", "swin", "vit", "xlnet"),
    *("bert", "clip_text", "clip_vision", "deit", "gpt2", "llama"),
)

WRONG: list[Any] = [
    *(0, -1, -2.0, math.nan, math.inf, 1j, "", "D/", "a b", b"x", object, {}, {1, 2}),
    *((), (1,), (-1, 2), (1, 2, 3), ("a", 2), (None,), ((),), ((1, 2), 3), np.ones((2, 2)), sympy.oo),
    sympy.Rational(9, 2),
]
MORE: list[Any] = [
    *(10**30, None, True, 1, 3, 0.5, "x", "D", "b", "relu", "1/2", "x[i]"),
    *((0, 1), (2, 3), (0.5, 2), ((2, 1, 1), (1, 2)), [2]),
    *({"a": 1}, len, np.ones(2), np.ones((2, 2), int), np.float32(0.1), np.int64(2)),
    *(sympy.Symbol("D"), sympy.nan, sympy.Integer(2)),
]


def survive(name: str, small: dict[str, Any], values: list[Any]) -> None:
    for setting in models.settings(name):
        for value in values:
            with contextlib.suppress(tn.TensornetError):
                assert isinstance(models.create(name, **{**small, setting: value}), tn.Graph)


@FEW
def test_all_functions_are_here() -> None:
    assert {name for name in models.names() if hasattr(models, name)} == set(SMALL)


@FEW
@pytest.mark.parametrize("name", SMALL)
def test_a_wrong_setting_is_an_error_of_ours(name: str) -> None:
    assert isinstance(models.create(name, **SMALL[name]), tn.Graph)
    survive(name, SMALL[name], WRONG)


@FEW
@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_more_wrong_settings(name: str) -> None:
    survive(name, SMALL[name], MORE)


@FEW
@pytest.mark.parametrize("name", PRESETS)
def test_a_wrong_setting_of_a_preset(name: str) -> None:
    base = next(each for each in BASES if each in name)
    survive(name, SMALL[base], [object, (None,)])


@FEW
def test_numbers_of_any_library_and_lists() -> None:
    expected = models.tcl((4, 4), (2, 3))
    assert models.tcl([np.int64(4), sympy.Integer(4)], np.array([2, 3])) == expected
    assert models.attention(np.int32(4), np.int64(2), dropout=np.float32(0.5)) == models.attention(
        4, 2, dropout=0.5
    )
    assert models.tcl((4, 4), 1.0) != models.tcl((4, 4), 1)


# ---------------------------------------------------------------------------- random settings

DRAWN = [
    (name, {key: [*map(ast.literal_eval, values.split("|"))] for key, _, values in map(parted, settings)})
    for name, *settings in table("random_models.txt")
]


@FEW
@pytest.mark.parametrize(("name", "choices"), DRAWN)
@hypothesis.given(st.data())
@examples(6)
def test_models_of_random_settings(name: str, choices: dict[str, list[Any]], data: st.DataObject) -> None:
    """As many parameters as arrays hold, and the same outputs on NumPy and on torch."""
    settings = dict[str, Any]()
    for key, values in choices.items():
        together, found = key.split(","), data.draw(st.sampled_from(values))
        settings |= zip(together, found, strict=True) if len(together) > 1 else {key: found}
    try:
        graph = models.create(name, **settings)
    except tn.TensornetError:
        hypothesis.reject()
    arrays, _ = drawn_of_kinds(graph)
    held = sum(arrays[leaf.name].size for leaf in graph.parameters)
    assert tn.parameter_count(graph) == held == sum(row[2] for row in tn.parameter_table(graph))
    expected = computed(graph, arrays, "numpy")
    for output, found in computed(graph, arrays, "torch").items():
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found, expected[output], rtol=1e-8, atol=1e-9)
