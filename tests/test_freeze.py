"""Both ways as one plan, and parameters that are constants: equal results, fewer steps at a call."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tensornet as tn
from tensornet import models
from tensornet.codegen.context import CodegenContext
from tensornet.contraction.order_search import fastest
from tensornet.contraction.pairs import Problem, flatten, view_order
from tensornet.device.cost_model import default_profile
from tensornet.language.expression import Ref
from tensornet.planning.plans import Plan
from tensornet.protocol import load_backend

from . import oracle
from .conftest import covered, normal, products_from, saved_for_backward, stacked, those_of
from .differential import by_numpy
from .programs import SUMMED_ALONE, recorded, records

# ---------------------------------------------------------------------------- Parameters that are constants


CPU = default_profile("cpu")
MODES = (4, 6, 4)
ADAPTER = tn.layer("y[b,o] = x[b,i] * W[o,i] + 0.5 * x[b,i] * A[r,i] * B[o,r]", inputs="x", i=6, o=5, r=2)


def drawn(graph: tn.Graph, seed: int = 0) -> dict[str, Any]:
    return tn.init(graph, seed=seed, dtype="float64")


# ---------------------------------------------------------------------------- what runs


@pytest.mark.parametrize(
    ("kind", "backend"), covered(["tucker", "cp", "tt", "blocktt", "kronecker"], ["numpy", "torch", "jax"])
)
def test_a_frozen_factorized_layer_computes_the_same(kind: str, backend: str) -> None:
    graph = tn.models.linear(MODES, MODES, factorization=kind, rank=0.3)
    params = drawn(graph)
    frozen = tn.freeze(graph, params)
    assert not frozen.parameters
    for batch in (1, 7, 500):
        x = normal(batch, 96, seed=batch)
        found = tn.compile(frozen, backend=backend)({}, load_backend(backend).asarray(x))
        np.testing.assert_allclose(found, tn.compile(graph)(params, x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["cp", "blocktt", "kronecker"])
def test_a_frozen_factorized_layer_runs_as_the_dense_one_where_that_is_fastest(kind: str) -> None:
    graph = tn.models.linear((8, 16, 8), (8, 16, 8), factorization=kind, rank=0.2)
    plan = tn.plan(tn.freeze(graph, drawn(graph)), backend="torch", profile=CPU, lead=64)
    (step,) = plan.steps
    assert step.arrangement.kind == "linear"
    assert plan.once
    dense = tn.plan(tn.models.linear((8, 16, 8), (8, 16, 8)), backend="torch", profile=CPU, lead=64)
    assert plan.seconds <= 1.01 * dense.seconds
    assert "done once:" in str(plan)


def test_a_weight_is_made_to_lie_as_its_product_reads_it() -> None:
    graph = tn.models.linear((8, 8, 16), (8, 8, 16), factorization="kronecker", rank=0.2)
    plan = tn.plan(tn.freeze(graph, drawn(graph)), backend="torch", profile=CPU, lead=64)
    way = plan.steps[0].arrangement
    made = [step.equation.kept for step in plan.once]
    *_, weight = (axes for axes in made if len(axes) == 6)
    assert weight == (*way.columns, *way.summed)


def test_a_frozen_layer_of_low_rank_keeps_going_through_its_factors() -> None:
    graph = tn.layer(
        "y[b,o] = x[b,i] * A[i,r] * B[r,s] * C[s,t] * D[t,o]", inputs="x", i=1024, r=8, s=8, t=8, o=1024
    )
    params = tn.init(graph)
    plan = tn.plan(tn.freeze(graph, params), profile=CPU, b=64)
    assert len(plan.steps) == 2
    assert plan.flops == 2 * 2 * 64 * 1024 * 8


def test_no_order_is_faster_at_a_call() -> None:
    """Every way to multiply some of the factors beforehand, each priced as a layer of what they make."""
    sizes = {"i": 60, "r": 9, "s": 50, "t": 7, "o": 80}
    factors = [("i", "r"), ("r", "s"), ("s", "t"), ("t", "o")]
    text = "y[b,o] = x[b,i] * " + " * ".join(f"F{n}[{','.join(axes)}]" for n, axes in enumerate(factors))
    graph = tn.layer(text, inputs="x", **sizes)
    params = tn.init(graph)
    found = tn.plan(tn.freeze(graph, params), profile=CPU, b=40).seconds
    others = []
    for cuts in itertools.chain.from_iterable(itertools.combinations("rst", n) for n in range(4)):
        ends = ["i", *cuts, "o"]
        merged = " * ".join(f"M{n}[{b},{a}]" for n, (a, b) in enumerate(itertools.pairwise(ends)))
        layer = tn.layer(f"y[b,o] = x[b,i] * {merged}", inputs="x", **{a: sizes[a] for a in ends})
        others.append(tn.plan(layer, profile=CPU, b=40).seconds)
    assert found <= 1.05 * min(others)


def test_a_weight_too_large_to_keep_is_not_made() -> None:
    sizes = {"b": 10**6, "i": 200_000, "r": 1000, "o": 200_000}
    layouts = (("b", "i"), ("i", "r"), ("r", "o"))
    problem = Problem(layouts, frozenset("bo"), None, sizes, CPU, 4, frozenset({1, 2}))
    order = fastest(problem)
    assert [{pair.first, pair.second} for pair in order] == [{0, 1}, {2, 3}]


def test_an_adapter_keeps_its_parameters() -> None:
    params = drawn(ADAPTER)
    frozen = tn.freeze(ADAPTER, params, "W")
    assert [leaf.name for leaf in frozen.parameters] == ["A", "B"]
    module = tn.module(frozen, params={name: params[name] for name in "AB"}, dtype="float64")
    x = torch.randn(3, 6, dtype=torch.float64)
    np.testing.assert_allclose(module(x).detach(), by_numpy(ADAPTER, {**params, "x": x})["y"])
    module(x).sum().backward()
    assert {name for name, each in module.named_parameters() if each.grad is not None} == {"A", "B"}
    assert set(tn.init(frozen)) == {"A", "B"}


def test_blocks_are_frozen_where_they_are_called() -> None:
    model = stack(4)
    params = drawn(model)
    frozen = tn.freeze(model, params, ["layers.*"])
    assert [leaf.name for leaf in frozen.parameters] == ["head"]
    assert len(tn.plan(frozen, b=2).functions) == 1  # values make no other code
    x = normal(2, 5)
    rest = {"head": params["head"]}
    np.testing.assert_allclose(tn.compile(frozen)(rest, x), tn.compile(model)(params, x), rtol=1e-9)
    some = tn.freeze(model, params, "layers.1.* head")
    assert not any(leaf.name.startswith("layers.1") for leaf in some.parameters)
    left = {leaf.name: params[leaf.name] for leaf in some.parameters}
    np.testing.assert_allclose(tn.compile(some)(left, x), tn.compile(model)(params, x), rtol=1e-9)
    module = tn.module(frozen, params=rest, dtype="float64")
    np.testing.assert_allclose(module(torch.from_numpy(x)).detach(), tn.compile(model)(params, x), rtol=1e-9)


def stack(depth: int) -> tn.Graph:
    """Equal layers, called, and a head."""
    layer = tn.layer(
        "h[b,f] = gelu(x[b,i] * A[i,r] * B[r,f])\ng[b,f] = h * s[f]\nk[b,f] = tanh(g)\n"
        "z[b,i] = k[b,f] * C[f,i]\ny[b,i] = z + x[b,i]",
        inputs="x", i=5, r=2, f=7,
    )  # fmt: skip
    head = tn.layer("y[b] = x[b,i] * head[i]", inputs="x", i=5)
    return stacked(*((layer, f"layers.{n}") for n in range(depth)), (head, ""), inputs="x[b,i]", i=5)


# ---------------------------------------------------------------------------- as a value


def test_a_frozen_graph_travels() -> None:
    frozen = tn.freeze(ADAPTER, drawn(ADAPTER), "W A")
    assert tn.Graph.from_json(frozen.to_json()) == frozen
    assert pickle.loads(pickle.dumps(frozen)) == frozen
    assert "W[o,i]: constant" in str(frozen)
    assert frozen != tn.freeze(ADAPTER, drawn(ADAPTER, seed=1), "W A")
    assert tn.freeze(tn.freeze(ADAPTER, drawn(ADAPTER), "W"), drawn(ADAPTER), "A") == frozen


def test_arrays_of_any_library_and_type_freeze() -> None:
    w = torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16, requires_grad=True)
    frozen = tn.freeze(tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x"), {"W": w})
    assert frozen.bound == {"i": 2, "o": 1}
    assert tn.compile(frozen)({}, np.ones((1, 2))).tolist() == [[3.0]]


# ---------------------------------------------------------------------------- modules without parameters


def test_what_a_number_chooses_is_not_the_constant_itself() -> None:
    graph = tn.layer("c = sum[j](x[j])\ny[i] = where(c > 0, V[i], 0)", inputs="x", i=4, j=3)
    call = tn.compile(tn.freeze(graph, {"V": torch.arange(4.0)}), backend="torch")
    call({}, torch.ones(3)).add_(1)
    torch.testing.assert_close(call({}, torch.ones(3)), torch.arange(4.0))


def test_a_module_without_parameters() -> None:
    graph = tn.models.linear(MODES, MODES, factorization="blocktt", rank=0.3)
    params = drawn(graph)
    module = tn.module(tn.freeze(graph, params))
    assert not list(module.parameters())
    assert not module.state_dict()
    x = torch.randn(5, 96, dtype=torch.float64)
    wanted = torch.from_numpy(tn.compile(graph)(params, x.numpy()))
    for dtype, tolerance in ((torch.float64, 1e-6), (torch.float32, 1e-5), (torch.bfloat16, 5e-2)):
        torch.testing.assert_close(module(x.to(dtype)), wanted.to(dtype), rtol=tolerance, atol=tolerance)
        torch._dynamo.reset()
        run = torch.compile(copy.deepcopy(module), fullgraph=True, backend="eager")
        torch.testing.assert_close(run(x.to(dtype)), wanted.to(dtype), rtol=tolerance, atol=tolerance)
        program = torch.export.export(copy.deepcopy(module), (x.to(dtype),))
        found = program.module()(x.to(dtype))
        torch.testing.assert_close(found, wanted.to(dtype), rtol=tolerance, atol=tolerance)
    again = pickle.loads(pickle.dumps(module))
    torch.testing.assert_close(again(x), module(x))
    assert x.requires_grad_().grad is None
    module(x).sum().backward()
    assert x.grad is not None


def test_a_kernel_takes_no_operand_whose_sizes_others_tell() -> None:
    """Keys by a frozen train could go to the attention kernel as two parts, of which one has half of a dimension."""
    vit = tn.models.vit(image=32, patch=16, channels=3, dim=384, depth=1, heads=6, classes=10)
    graph = tn.substitute(vit, {"*.Wk": ("tt", (1, 68, 4))})
    params = tn.init(graph, seed=0)
    x = normal(1, 3, 32, 32).astype("float32")
    found = tn.compile(tn.freeze(graph, params), backend="torch")({}, torch.tensor(x))
    np.testing.assert_allclose(found, tn.compile(graph)(params, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_frozen_parameters_keep_their_floating_type_where_all_inputs_are_integers(dtype: str) -> None:
    layer = tn.layer("k[b]: input\nE[v,c]: parameter\ny[b,c] = E[k[b],c]")
    frozen = tn.freeze(layer, {"E": np.ones((4, 3), dtype)})
    assert tn.compile(frozen)({}, np.array([0, 1])).dtype == dtype
    assert tn.compile(frozen, dtype="float32")({}, np.array([0, 1])).dtype == "float32"


# ---------------------------------------------------------------------------- Products that torch's autograd is handed with the backward pass that was planned


CP = "y[b,o,p] = x[b,i,j] * A[i,r] * B[j,r] * C[o,r] * D[p,r]"


def product(text: str, equation: str, shape: tuple[int, ...], **sizes: int) -> Any:
    return tn.layer(text, inputs="x", **sizes), equation, shape


PRODUCTS = {
    "contraction layer": (models.tcl((4, 3, 5), (2, 4, 3)), "zabc,pa,qb,rc->zpqr", (6, 4, 3, 5)),
    "chain": product(
        "y[b,o] = x[b,i] * P[i,j] * Q[j,k] * R[k,o]", "bi,ij,jk,ko->bo", (7, 6), i=6, j=3, k=4, o=5
    ),
    "cp": product(CP, "bij,ir,jr,or,pr->bop", (5, 4, 3), i=4, j=3, r=5, o=2, p=6),
    "one alone on an axis": product("y[b,k] = x[b,i] * u[i] * w[i,k]", "bi,i,ik->bk", (5, 4), i=4, k=3),
}


LARGE = {
    f"{batch} examples": (models.tcl(modes, ranks), "zabc,pa,qb,rc->zpqr", (batch, *modes))
    for modes, ranks, batch in (
        ((8, 8, 12), (8, 8, 12), 400),
        ((4, 8, 12), (4, 8, 12), 900),
        ((5, 3, 4), (6, 2, 3), 3000),
    )
}
"""At sizes at which weights are repeated along the batch, and their gradients added up over it."""


def made(name: str, **options: Any) -> tuple[Any, Callable[..., torch.Tensor], torch.Tensor]:
    """A module of a product, the same by torch.einsum of x and the parameters, and an x."""
    graph, equation, shape = (PRODUCTS | LARGE)[name]
    module = tn.module(graph, seed=0, dtype="float64", **options)
    x = torch.randn(shape, dtype=torch.float64)
    return module, lambda x, *parameters: torch.einsum(equation, x, *parameters), x


def values(module: Any) -> list[torch.Tensor]:
    return [each.detach().clone().requires_grad_() for each in module.parameters()]


agree = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "of_inputs"), [*itertools.product(PRODUCTS, [False, True]), *((name, True) for name in LARGE)]
)
def test_gradients_are_those_of_einsum(name: str, of_inputs: bool) -> None:
    module, einsum, x = made(name)
    x.requires_grad_(of_inputs)
    y = module(x)
    assert module.plan.goes_back
    leaves = ([x] if of_inputs else []) + [*module.parameters()]
    gradient = torch.randn(y.shape, dtype=y.dtype)
    parameters = values(module)
    z = einsum(x, *parameters)
    agree([y], [z])
    others = ([x] if of_inputs else []) + parameters
    agree(torch.autograd.grad(y, leaves, gradient), torch.autograd.grad(z, others, gradient))


def test_a_product_is_left_to_autograd_where_its_own_backward_pass_saves_less_than_a_node_costs(
    users_node: float,
) -> None:
    layer, leads = models.tcl((4, 4, 6), (4, 4, 6)), (4, 100_352)
    chain, _, _ = PRODUCTS["chain"]
    for node in (users_node, 50e-6):
        with products_from(node):
            given: Any = {"backend": "torch", "training": True, "profile": CPU}
            plans = [tn.plan(layer, lead=lead, **given) for lead in leads]
            plans.append(tn.plan(chain, b=9, **given))
        assert [plan.goes_back for plan in plans] == [False, True, False]


OF_THREE = re.compile(r"\w+\[[^\]]*\] \* \w+\[[^\]]*\] \* \w+\[")
ABOUT = ("# about: a filter that", "# about: a state that is read", "# about: a start that few")
WRITTEN = [each for each in records("equations.txt") if OF_THREE.search(each) or each.startswith(ABOUT)]
assert len(WRITTEN) >= 35


@pytest.mark.filterwarnings(SUMMED_ALONE)
@pytest.mark.parametrize("users", [False, True])
@pytest.mark.parametrize("record", WRITTEN, ids=lambda record: record.splitlines()[-1])
def test_written_programs_by_autograd(record: str, users: bool, users_node: float) -> None:
    """Products of three factors, in nodes of their own as elsewhere in the tests, and as users have them; and filters that
    run backwards, and states."""
    case = recorded(record)
    graph, given = case.graph(), case.arrays()
    run, names = tn.compile(graph, backend="torch"), [leaf.name for leaf in graph.leaves]

    def call(*arrays: torch.Tensor) -> Any:
        by_name = dict(zip(names, arrays, strict=True))
        return run(those_of(graph, by_name), *(by_name[leaf.name] for leaf in graph.inputs))

    arrays = [torch.tensor(given[name]).requires_grad_(given[name].dtype.kind == "f") for name in names]
    with products_from(users_node if users else 0.0):
        found, expected = call(*arrays), oracle.run(case.text, given, case.given, case.outputs)
        for name, y in zip(case.outputs, found if isinstance(found, tuple) else (found,), strict=True):
            np.testing.assert_allclose(y.detach(), expected[name], rtol=1e-9, atol=1e-9)
        assert not (users and run.plan.goes_back and len(names) < 10)  # ten tensors take long enough
        assert torch.autograd.gradcheck(call, arrays, fast_mode=True)


def test_some_parameters_may_be_frozen() -> None:
    module, einsum, x = made("chain")
    module.Q.requires_grad_(False)
    parameters = values(module)
    found = torch.autograd.grad(module(x).pow(2).sum(), [module.P, module.R])
    agree(found, torch.autograd.grad(einsum(x, *parameters).pow(2).sum(), [parameters[0], parameters[2]]))
    back = next(block.backward for block in module.plan.functions if block.backward is not None)
    assert len(back.graph.outputs) == 2
    module.R.requires_grad_(False)
    found = torch.autograd.grad(module(x).sum(), [module.P])
    agree(found, torch.autograd.grad(einsum(x, *parameters).sum(), parameters[:1]))
    assert not module.plan.goes_back  # a product with one factor that changes is autograd's as it is


def test_where_nobody_wants_gradients_nothing_goes_back() -> None:
    module, _, x = made("contraction layer")
    with torch.no_grad():
        module(x)
    assert not module.plan.goes_back
    with torch.inference_mode():
        assert module(x).shape == (6, 2, 4, 3)
    module(x)
    assert module.plan.goes_back


@pytest.mark.parametrize("options", [{"backward": "autograd"}, {"memory_limit": 10**9}])
def test_it_can_be_left_to_autograd(options: dict[str, Any]) -> None:
    module, einsum, x = made("contraction layer", **options)
    y, parameters = module(x), values(module)
    assert not module.plan.goes_back
    found = torch.autograd.grad(y.sum(), [*module.parameters()])
    agree(found, torch.autograd.grad(einsum(x, *parameters).sum(), parameters))


def test_autocast_trains() -> None:
    module, _, x = made("contraction layer")
    module.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = module(x.float())
    found = torch.autograd.grad(y.float().pow(2).sum(), [*module.parameters()])
    whole = torch.autograd.grad(module(x.float()).pow(2).sum(), [*module.parameters()])
    assert module.plan.goes_back
    for one, other in zip(found, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=0.1, atol=0.1 * float(other.abs().max()))


def test_a_plan_for_training_reads_back_and_says_what_is_kept() -> None:
    graph = PRODUCTS["chain"][0]
    for backend, wrt in (("torch", "*"), ("numpy", None)):
        plan = tn.plan(graph, backend=backend, training=True, wrt=wrt, b=100)
        assert Plan.from_json(plan.to_json()) == plan
        back = [plan, *plan.functions]
        (found,) = (each for each in back if each.backward is not None)
        assert f"{found.kept[0][0]} of " in str(plan)
        assert re.search(r"^     back: .*FLOP", str(plan), re.M)
    many = tn.plan(models.vit(8, 4, 6, 2, 3, 12, 5), training=True, b=2, compare=False)
    assert Plan.from_json(many.to_json()) == many
    assert " more of " in str(many)
    sizes = dict(many.sizes)
    assert sum(size for _, size in many.kept) > 4 * sizes["b"] * 5 * 8


def test_what_is_kept_is_what_autograd_holds() -> None:
    """The bytes of the tensors saved besides the operands are those that the plan tells."""
    module, _, x = made("cp")
    x = torch.randn(500, *x.shape[1:], dtype=torch.float64, requires_grad=True)
    module(x)
    (product,) = (block for block in module.plan.functions if block.backward is not None)
    own = {each.untyped_storage().data_ptr() for each in (x, *module.parameters())}
    with saved_for_backward() as saved:
        y = module(x)
    besides = sum(size for at, size in saved.items() if at not in own)
    assert all(len(each.results) == 1 for each in module.plan.steps if hasattr(each, "results"))
    assert besides == sum(size for _, size in product.kept) > 0
    del y


# ---------------------------------------------------------------------------- orders


@given(st.data())
def test_the_order_of_groups_is_that_of_some_permutation(data: Any) -> None:
    layout = tuple(data.draw(st.permutations("abcdef"))[: data.draw(st.integers(0, 6))])
    axes = list(data.draw(st.permutations(layout)) if data.draw(st.booleans()) else layout)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(axes)), min_size=2, max_size=3)))
    parts = [tuple(axes[a:b]) for a, b in itertools.pairwise([0, *cuts, len(axes)])]
    groups = tuple(data.draw(st.permutations(parts)))
    present = [n for n, group in enumerate(groups) if group]
    orders = (
        order
        for order in itertools.permutations(present)
        if flatten(tuple(groups[n] for n in order)) == layout
    )
    assert view_order(layout, groups) == next(orders, None)


def steps_back(module: Any) -> tuple[Any, ...]:
    (back,) = (block.backward for block in module.plan.functions if block.backward is not None)
    return tuple(back.steps)


def test_nothing_as_large_as_the_batch_is_copied_where_products_can_go_around() -> None:
    """Each product leaves the axis first that the next sums, forward and back; weights' gradients are added up."""
    module = tn.module(models.tcl((8, 8, 12), (8, 8, 12)), seed=0)
    x = torch.randn(1568, 8, 8, 12, requires_grad=True)
    module(x)
    steps = steps_back(module)
    copied = [step.equation for step in steps if isinstance(step.equation.right, Ref)]
    assert not any("lead" in equation.kept for equation in copied)
    assert sum(step.arrangement is not None and step.arrangement.added == ("lead",) for step in steps) >= 1
    assert all(step.arrangement.batch == ("lead",) for step in steps if step.arrangement.added)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_products_are_added_up_where_that_spares_copies(backend: str) -> None:
    graph = tn.layer("G[p,a] = g[z,p,b,c] * x[z,a,b,c]", inputs="g x", p=8, a=6, b=8, c=12)
    plan = tn.plan(graph, backend=backend, compare=False, z=1500)
    (step,) = plan.steps
    assert step.arrangement.added == ("z",)
    assert set(step.arrangement.contracted) == {"z", "b", "c"}
    alone = tn.layer("G[p,a] = g[z,p] * x[z,a]", inputs="g x", p=8, a=6)
    assert not tn.plan(alone, backend=backend, compare=False, z=1500).steps[0].arrangement.added
    rng = np.random.default_rng(0)
    g, x = rng.standard_normal((1500, 8, 8, 12)), rng.standard_normal((1500, 6, 8, 12))
    given_ = tn.to_backend({"g": g, "x": x}, backend).values()
    found = np.asarray(tn.compile(graph, backend=backend)({}, *given_))
    np.testing.assert_allclose(found, np.einsum("zpbc,zabc->pa", g, x), rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------------------- copies


def test_a_rotation_is_copied_as_a_matrix_turned() -> None:
    text = "u[a,c,b] = x[b,a,c] + v[a,c,b]\ny[a,c,k] = u[a,c,b] * W[a,b,k] * w[c]"
    context = context_of(tn.layer(text, inputs="x v", b=50, k=3, a=4, c=5))
    x = Ref("x", ("b", "a", "c"))
    assert context.turned(x, ("a", "c", "b")) == "x.reshape(50, 20).permute(1, 0)"
    assert context.turned(x, ("c", "a", "b")) is None
    assert context.turned(x, ("b", "a", "c")) is None


def context_of(graph: tn.Graph) -> CodegenContext:
    backend = load_backend("torch")
    plan = tn.plan(graph, backend=backend, compare=False)
    return CodegenContext(plan, backend, plan.leaves, sizes={"a": 4, "b": 50, "c": 5})


def test_gradients_that_are_differentiated_of_factors_made_of_one_another() -> None:
    graph = tn.layer("h[b,i] = tanh(x[b,i] + w[i])\ny[b] = x[b,i] * h[b,i] * w[i]", inputs="x")
    x, w = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 4), (4,)))
    f = tn.compile(graph, backend="torch")
    y, h = f({"w": w}, x), torch.tanh(x + w)
    assert f.plan.goes_back
    seed, along = torch.randn(3), torch.randn(3, 4)
    once, twice = [], []
    for each in (y, torch.einsum("bi,bi,i->b", x, h, w)):
        once.append(torch.autograd.grad(each, (x, w), seed.double(), create_graph=True, retain_graph=True))
        twice.append(torch.autograd.grad(once[-1][0], (x, w), along.double()))
    torch.testing.assert_close(*once)
    torch.testing.assert_close(*twice)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_what_only_a_product_reads_lies_in_the_order_of_its_reader(backend: str) -> None:
    """The gradients of NetVLAD hold one tensor of residuals at a time; in the order of the text they hold two."""
    layer = tn.layer(
        """
        a[b,n,k] = softmax[k](x[b,n,d] * W[k,d] + c[k])
        v[b,k,d] = sum[n](a[b,n,k] * (x[b,n,d] - C[k,d]))
        y = sum[b,k,d](tanh(v[b,k,d]))
        """,
        inputs="x",
        outputs="y",
    )
    graph, sizes = tn.gradient(layer, wrt=["W", "c", "C", "x"]), {"b": 8, "n": 100, "k": 16, "d": 64}
    plan = tn.plan(graph, backend=backend, profile=CPU, compare=False, **sizes)
    assert plan.peak_memory < 1.3 * 4 * math.prod(sizes.values())


def test_a_result_that_gets_a_gradient_lies_as_it_is_declared(users_node: float) -> None:
    """The gradient comes in that order, and would be copied into any other."""
    module, x = tn.module(models.tcl((8, 8, 6), (8, 16, 12)), seed=0), torch.randn(64, 8, 8, 6)
    with products_from(users_node):
        assert module(x).is_contiguous()
