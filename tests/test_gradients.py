"""Derivatives as graphs, on every backend: against torch's autograd, and differences, in float64."""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet.frontend.composition import with_loss
from tensornet.planning.gradients import joint_graph

from .conftest import normal, rows, sampled, stacked
from .differential import BACKENDS, by_numpy, computed, drawn
from .programs import SUMMED_ALONE
from .test_models import MODELS, parameters_of

pytestmark = pytest.mark.filterwarnings(SUMMED_ALONE)

Array = Any
Arrays = Mapping[str, Array]

STRICT = "array-api-strict"


def array_of(backend: str, array: Array) -> Array:
    """The array as one of a backend; masks as numbers where truths are not compared."""
    return BACKENDS[backend]().asarray(array + 0 if backend == STRICT else array)


def seeds_of(graph: tn.Graph, arrays: Arrays) -> dict[str, Array]:
    """Random gradients of the results: 1 of a number, which is given none from outside."""
    rng = np.random.default_rng(7)
    found = computed(graph, arrays, "torch")
    return {
        name: rng.standard_normal(each.shape) if each.ndim else np.ones(()) for name, each in found.items()
    }


def by_autograd(graph: tn.Graph, arrays: Arrays, wrt: Sequence[str], seeds: Arrays) -> list[Array]:
    """The gradients as torch differentiates the graph itself."""
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    leaves = [tensors[name].requires_grad_() for name in wrt]
    given = [tensors[leaf.name] for leaf in graph.inputs]
    held = {leaf.name: tensors[leaf.name] for leaf in graph.parameters}
    found = tn.compile(graph, backend="torch")(held, *given)
    pairs = dict(zip(graph.outputs, found if isinstance(found, tuple) else (found,), strict=True))
    pairs = {name: each for name, each in pairs.items() if each.requires_grad}
    if not pairs:
        return [np.zeros_like(arrays[name]) for name in wrt]
    gradients = torch.autograd.grad(
        list(pairs.values()),
        leaves,
        [torch.tensor(seeds[name]) for name in pairs],
        allow_unused=True,
        materialize_grads=True,
    )
    return [each.numpy() for each in gradients]


def agree(found: Sequence[Array], expected: Sequence[Array], tolerance: float = 1e-9) -> None:
    """Equal shapes, and values beside the largest of each."""
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        scale = max(1.0, float(np.abs(other[np.isfinite(other)]).max(initial=0.0)))
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * scale)


def check(
    graph: tn.Graph,
    arrays: Arrays,
    wrt: Sequence[str] | None = None,
    backends: Sequence[str] = ("numpy", "torch", STRICT),
    tolerance: float = 1e-9,
) -> tn.Graph:
    """The gradient of a graph, which agrees with autograd and reads back from its text and from JSON."""
    leaves = [leaf.name for leaf in graph.parameters] if wrt is None else list(wrt)
    derivative = tn.gradient(graph, wrt=leaves)
    constants = {leaf.name: leaf.value.array() for leaf in derivative.constants if leaf.value is not None}
    assert tn.Graph.from_json(derivative.to_json()) == derivative
    assert tn.layer(str(derivative), constants=constants) == derivative
    seeds = seeds_of(graph, arrays)
    expected = by_autograd(graph, arrays, leaves, seeds)
    everything = {**arrays, **{f"{name}.grad": each for name, each in seeds.items()}}
    for backend in backends:
        agree([*computed(derivative, everything, backend).values()], expected, tolerance)
    return derivative


def agrees_with_differences(graph: tn.Graph, arrays: Arrays, wrt: Sequence[str]) -> None:
    """The gradients, along a direction, are the quotient of differences."""
    seeds = seeds_of(graph, arrays)
    everything = {**arrays, **{f"{name}.grad": each for name, each in seeds.items()}}
    gradients = by_numpy(tn.gradient(graph, wrt=list(wrt)), everything).values()
    directions = {name: example(*np.shape(arrays[name])) for name in wrt}
    totals = []
    for step in (1e-5, -1e-5):
        found = by_numpy(graph, {**arrays, **{n: arrays[n] + step * directions[n] for n in wrt}})
        totals.append(sum(float(np.sum(found[each] * seeds[each])) for each in found))
    along = sum(float(np.sum(one * two)) for one, two in zip(gradients, directions.values(), strict=True))
    assert along == pytest.approx((totals[0] - totals[1]) / 2e-5, rel=1e-6, abs=1e-6)


# ---------------------------------------------------------------------------- every function


def product_of_others(x: Array, *left_out: int) -> float:
    """The product of all but some elements, which is a derivative of the product by these."""
    return float(np.prod([each for at, each in enumerate(x) if at not in left_out]))


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax", STRICT])
@pytest.mark.parametrize("zeros", [[], [1], [0, 3], [0, 1, 3], [0, 1, 2, 3]], ids=str)
def test_derivatives_of_a_product_of_elements_of_any_order(zeros: list[int], backend: str) -> None:
    """∂³/∂x_i∂x_j∂x_k Π x is the product of the others where i, j and k differ, and else 0; zeros are nothing special."""
    graph, library = tn.layer("y = prod[i](x[i])", inputs="x"), BACKENDS[backend]()
    x = example(5) + 0.25
    x[zeros] = 0.0
    for order in (1, 2, 3):
        graph = tn.gradient(graph, wrt="x")
        assert tn.layer(str(graph)) == graph
        vectors = [example(5) * 0.5**n for n in range(1, order)]
        found = library.numpy(tn.compile(graph, backend=library)({}, *map(library.asarray, (x, *vectors))))
        expected = np.zeros(5)
        for at in itertools.permutations(range(5), order):
            weight = math.prod(vector[k] for vector, k in zip(vectors, at[1:], strict=True))
            expected[at[0]] += weight * product_of_others(x, *at)
        single = backend == "jax"  # which has no float64 here
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 if single else 1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "y = prod[b,i](x[b,i])",
        "y[b] = prod[i,k](x[b,i] * z[k])",
        "y[b] = prod[i](x[b,i] - z[i]) * x[b,0]",
        "y[b,i] = recur[i](x[b,i], prod[i2](x[b,i2]), start=1)",
        "y[i,b] = recur[b](z[i], x[b,i], start=-1, back=1)",
        "h[t,k] = tanh(z[k] + h[t-1,j] * x[t,j])\ny = sum[t,k](h[t,k] ** 2)",
    ],
)
def test_second_derivatives_where_elements_are_0(text: str) -> None:
    graph = tn.layer(text, inputs="x z" if "z[" in text else "x")
    arrays = {"x": example(3, 4), "z": example(4)}
    arrays["x"][1, 2] = arrays["x"][2, 0] = arrays["x"][2, 1] = arrays["z"][0] = 0.0
    arrays = {leaf.name: arrays[leaf.name] for leaf in graph.inputs}
    wrt = list(arrays)
    once = tn.gradient(graph, wrt=wrt)
    arrays |= {f"{name}.grad": each for name, each in seeds_of(graph, arrays).items() if each.ndim}
    check(once, arrays, wrt)
    agrees_with_differences(once, arrays, wrt)


@pytest.mark.parametrize("wrt", [["x"], ["z"], ["x", "z"]])
def test_a_product_of_factors_that_do_not_change(wrt: list[str]) -> None:
    """Two factors without gradients may be multiplied first."""
    graph = tn.layer("y[b,i] = x[b] * x[b] * z[i] * roll(z[i], i=-1)", inputs="x z")
    check(graph, {"x": example(3), "z": example(4)}, wrt)


@pytest.mark.parametrize(("text", "told"), rows("kinks.txt"))
def test_derivatives_at_kinks_are_those_of_the_page(text: str, told: str) -> None:
    """The page of the language says them, and what torch and JAX say instead."""
    expression, _, elements = text.rpartition(" at ")
    x, expected = (np.array(each.split(), float) for each in (elements, told))
    left = "z" if expression.startswith(("max[", "norm", "std")) else "z[i]"
    total = "z * 1" if left == "z" else "sum[i](z[i])"
    graph = tn.layer(f"{left} = {expression}\ny = {total}", inputs="x", outputs="y")
    found = by_numpy(tn.gradient(graph, wrt="x"), {"x": x})["x.grad"]
    np.testing.assert_array_equal(found, expected)
    (autograd,) = by_autograd(graph, {"x": x}, ["x"], {"y": np.ones(())})
    np.testing.assert_array_equal(autograd, expected)


# ---------------------------------------------------------------------------- positions


@pytest.mark.parametrize(("text", "told"), rows("placed.txt"))
def test_what_is_read_or_written_at_sums_of_positions(text: str, told: str) -> None:
    """Such a sum may speak of a size, pass an end of a tensor or end before it; adding drops what lies outside."""
    inputs, *numbers = (part.strip() for part in told.split("|"))
    sizes, given = ({each[0]: int(each[2:]) for each in part.split()} for part in numbers)
    graph = tn.layer(text.replace("\\n", "\n"), inputs=inputs, **given)
    arrays, wrt = drawn(graph, **sizes), [leaf.name for leaf in graph.inputs]
    backends = ("numpy", "torch", STRICT, *(["jax"] if given.get("v") == 2 else []))
    derivative = check(graph, arrays, wrt, backends, tolerance=1e-6)
    agrees_with_differences(graph, arrays, wrt)
    everything = {**arrays, **{f"{name}.grad": each for name, each in seeds_of(graph, arrays).items()}}
    check(derivative, everything, wrt, backends=("numpy",))


@pytest.mark.parametrize("back", [False, True])
def test_the_gradient_of_a_start_before_every_second_position(back: bool) -> None:
    """The length of such a recurrence is a floor of an open size."""
    text = "z[b,t] = x[b,2*t]\nh[b,t] = tanh(z[b,t] + 0.5 * h[b,t-1])\nh[b,-1] = s[b]"
    text = text.replace("t-1", "t+1").replace("[b,-1]", "[b,+1]") if back else text
    graph = tn.layer(text, inputs="x[b,n] s[b]")
    arrays = {"x": example(2, 5), "s": example(2)}
    check(graph, arrays, ["x", "s"], backends=("numpy", "torch"))
    agrees_with_differences(graph, arrays, ["x", "s"])
    again = tn.gradient(graph, wrt="s")
    agrees_with_differences(again, {**arrays, "h.grad": example(2, 3)}, ["x", "s", "h.grad"])


def test_a_size_in_brackets_is_not_the_name_of_an_axis() -> None:
    """In `E[t[i]+i]`, the axis `i` would be a position, although it is as long as `n`."""
    graph = tn.layer("y[i] = E[t[i]+n] * x[n-1-i]", inputs="t[n] E[k] x[n]")
    arrays = {"t": np.array([0, 2, 1]), "E": example(6), "x": example(3)}
    derivative = tn.gradient(tn.gradient(graph, wrt="E x"), wrt="E x")
    assert tn.layer(str(derivative)) == derivative
    check(graph, arrays, ["E", "x"])


# ---------------------------------------------------------------------------- models


@pytest.mark.parametrize("name", sampled(MODELS, ["vit", "transformer_classifier"]))
def test_models(name: str) -> None:
    graph, inputs = MODELS[name]()
    given = dict(zip((leaf.name for leaf in graph.inputs), inputs(np.random.default_rng(0)), strict=True))
    check(graph, {**given, **parameters_of(graph)})


# ---------------------------------------------------------------------------- blocks, parameters, choices

LAYER = tn.layer("h[b,j] = tanh(x[b,i] * W[j,i] + u[j])\ny[b,i] = x[b,i] + h[b,j] * V[i,j]", inputs="x", j=5)
HEAD = tn.layer("loss = mean[b](logsumexp[i](x[b,i]))", inputs="x")


def tower(scopes: Sequence[str]) -> tn.Graph:
    """The layer called under these scopes, one after another."""
    return stacked(*((LAYER, scope) for scope in scopes), (HEAD, ""), inputs="x[b,i]", i=4)


def arrays_of(graph: tn.Graph, **inputs: Array) -> dict[str, Array]:
    """Inputs, and random parameters."""
    return {**inputs, **parameters_of(graph)}


def example(*shape: int) -> Array:
    return normal(*shape, seed=5)


@pytest.mark.parametrize(
    "scopes", sampled([*map(list, ("aa", "aba", "abcdefgh"))], [["a", "a"], ["a", "b", "a"]])
)
def test_blocks_called_often_and_parameters_shared(scopes: Sequence[str]) -> None:
    graph = tower(scopes)
    arrays = arrays_of(graph, x=example(3, 4))
    derivative = check(graph, arrays, [*parameters_of(graph), "x"])
    written = sum(line.startswith("def ") for line in str(derivative).splitlines())
    assert written <= 6  # however often it is called


def test_a_parameter_that_nothing_reads_gets_zeros() -> None:
    graph = tn.layer("y = sum[b](x[b] * w)\nz[b] = x[b] * W[i,b]", inputs="x", outputs="y z", i=2)
    derivative = tn.gradient(graph, of="y", wrt="W w")
    assert derivative.outputs == ("W.grad", "w.grad")
    found = by_numpy(derivative, {"x": np.ones(3), "w": np.ones(()), "W": np.ones((2, 3))})
    np.testing.assert_array_equal(found["W.grad"], np.zeros((2, 3)))
    assert found["w.grad"] == 3


@pytest.mark.parametrize("wrt", ["u.*", "*.w", "u.w x", ["x", "v.w"], "*"])
def test_leaves_are_chosen_by_patterns(wrt: Any) -> None:
    one = tn.layer("y[b,i] = tanh(x[b,i] * w[i])", inputs="x")
    graph = tn.model(lambda x: one(one(x, scope="u"), scope="v"), inputs="x[b,i]", i=4)
    chosen = {
        "u.*": ("u.w",), "*.w": ("u.w", "v.w"), "u.w x": ("u.w", "x"), "*": ("x", "u.w", "v.w"),
    }.get(wrt if isinstance(wrt, str) else "", ("x", "v.w"))  # fmt: skip
    assert tn.gradient(graph, wrt=wrt).outputs == tuple(f"{name}.grad" for name in chosen)
    check(graph, arrays_of(graph, x=example(3, 4)), chosen, backends=("numpy",))


def test_results_are_chosen() -> None:
    graph = tn.layer("h[b] = tanh(x[b] * w)\ny[b] = h[b] ** 2\nz = mean[b](h[b])", inputs="x", outputs="y z")
    for of in (("y",), ("z",), ("y", "z"), ("h", "y")):
        assert tn.gradient(graph, of=of) == tn.gradient(graph.select(of))
        check(graph.select(of), {"x": example(3), "w": np.array(0.7)}, backends=("numpy",))
    assert [leaf.name for leaf in tn.gradient(graph).inputs] == ["x", "y.grad"]  # none of a number


def test_a_result_may_be_named_twice_or_be_a_leaf() -> None:
    double = tn.layer("y[b] = x[b] * w", inputs="x")
    graph = tn.model(lambda x: (lambda y: (y, y))(double(x)), inputs="x[b]")
    assert [leaf.name for leaf in tn.gradient(graph).inputs] == ["x", "y.grad"]
    check(graph, {"x": example(3), "w": np.array(0.5)})
    graph = tn.layer("y[b] = x[b] * w", inputs="x", outputs="y w x")
    derivative = tn.gradient(graph, of="x", wrt="x")
    seed = derivative.inputs[1].name
    found = by_numpy(derivative, {"x": np.ones(3), "w": np.ones(()), seed: example(3)})
    np.testing.assert_array_equal(next(iter(found.values())), example(3))


def test_names_of_the_users_own_that_read_as_gradients() -> None:
    graph = tn.layer("y[b] = x.grad[b] * x[b] * w.grad * w", inputs="x x.grad")
    derivative = tn.gradient(graph, wrt="w w.grad x")
    assert derivative.outputs == ("w.grad_1", "w.grad.grad", "x.grad_1")
    arrays = {"x": example(3), "x.grad": example(3) + 1, "w": np.array(2.0), "w.grad": np.array(3.0)}
    check(graph, arrays, ["w", "w.grad", "x"], backends=("numpy",))
    graph = tn.layer("w.grad[b] = x[b] * w\ny = sum[b](w.grad[b] ** 2)", inputs="x")
    assert tn.gradient(graph).outputs == ("w.grad_1",)


def test_constants_are_not_differentiated() -> None:
    graph = tower("ab")
    parameters = parameters_of(graph)
    frozen = tn.freeze(graph, parameters, "a.*")
    derivative = tn.gradient(frozen)
    assert derivative.outputs == ("b.W.grad", "b.u.grad", "b.V.grad")
    arrays = {**parameters, "x": example(3, 4)}
    expected = by_autograd(graph, arrays, ["b.W", "b.u", "b.V"], {"loss": np.ones(())})
    for backend in ("numpy", "torch", STRICT):
        agree(list(computed(derivative, arrays, backend).values()), expected)


# ---------------------------------------------------------------------------- more than once


def test_derivatives_of_derivatives() -> None:
    graph = tower("aab")
    arrays = arrays_of(graph, x=example(3, 4))
    first = tn.gradient(graph, wrt="a.* x")
    check(first, arrays, ["a.W", "b.V", "x"], tolerance=1e-8)
    third = tn.gradient(tn.layer("y = sum[b](sin(x[b]) * x[b] ** 4)", inputs="x"), wrt="x")
    x, directions = example(3), []
    for number in range(2):
        check(third, {"x": x, **dict(directions)}, ["x"], tolerance=1e-8)
        directions.append((f"{third.outputs[0]}.grad", example(3) + number))
        third = tn.gradient(third, wrt="x")
    s, c = np.sin(x), np.cos(x)
    expected = -c * x**4 - 12 * s * x**3 + 36 * c * x**2 + 24 * s * x  # (sin·x⁴)‴, times both directions
    found = by_numpy(third, {"x": x, **dict(directions)})
    np.testing.assert_allclose(found[third.outputs[0]], expected * directions[0][1] * directions[1][1])


@pytest.mark.parametrize("name", sampled(["vit", "tensor_swin"], ["vit"]))
def test_products_of_the_hessian_of_a_model_with_a_vector(name: str) -> None:
    graph, inputs = MODELS[name]()
    whole = with_loss(graph, tn.layer("loss = mean[b,o](y[b,o] ** 2)", inputs="y[b,o]"))
    (x,), parameters = inputs(np.random.default_rng(0)), parameters_of(whole)
    chosen = list(parameters)[::5]
    tangents = {name: example(*parameters[name].shape) for name in chosen}
    product = tn.jvp(tn.gradient(whole, wrt=chosen), wrt=chosen)
    given = {f"{name}.tangent": each for name, each in tangents.items()}
    assert {leaf.name for leaf in product.inputs} == {"x", *given}
    found = by_numpy(product, {**parameters, "x": x, **given})

    run = tn.compile(whole, backend="torch")
    held = {name: torch.tensor(array) for name, array in parameters.items()}
    leaves = [held[name].requires_grad_() for name in chosen]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        first = torch.autograd.grad(run(held, torch.tensor(x)), leaves, create_graph=True)
        inner = sum((g * torch.tensor(tangents[name])).sum() for name, g in zip(chosen, first, strict=True))
        expected = torch.autograd.grad(inner, leaves, materialize_grads=True)
    agree(list(found.values()), [each.numpy() for each in expected], 1e-8)


# ---------------------------------------------------------------------------- what it costs


def chain(length: int) -> tn.Graph:
    """A product of so many matrices."""
    axes = [f"i{n}" for n in range(length + 1)]
    factors = " * ".join(f"W{n}[{axes[n]},{axes[n + 1]}]" for n in range(length))
    return tn.layer(f"y[{axes[0]},{axes[-1]}] = {factors}", **dict.fromkeys(axes, 6))


def test_a_chain_of_factors_costs_as_many_products() -> None:
    lines = {length: len(tn.gradient(chain(length)).lines()) for length in (8, 16, 32)}
    assert lines[16] - lines[8] == 8 * 3  # for each factor a product forward, and two back
    assert lines[32] - lines[16] == 16 * 3
    graph = chain(6)
    check(graph, {name: example(6, 6) + n for n, name in enumerate(parameters_of(graph))}, tolerance=1e-8)


@pytest.mark.parametrize("count", sampled([12, 32], [12]))
def test_a_tensor_train(count: int) -> None:
    """An input of 2ⁿ numbers as a train, beside a train of weights: the backward pass costs at most 4 times the one there."""
    cores = []
    for n in range(count):
        left = f"r{n}," if n else ""
        right = f",r{n + 1}" if n < count - 1 else ""
        cores.append(f"G{n}[{left}i{n}{right}]")
        left, right = left.replace("r", "s"), right.replace("r", "s")
        cores.append(f"H{n}[{left}i{n}{right}]")
    sizes = {f"i{n}": 2 for n in range(count)} | {f"{a}{n}": 4 for a in "rs" for n in range(1, count)}
    graph = tn.layer(f"y = {' * '.join(cores)}", **sizes)
    forward, both = (int(tn.flop_count(each)) for each in (graph, tn.gradient(graph)))
    assert both - forward <= 4 * forward
    arrays = {leaf.name: normal(*(sizes[axis.name] for (axis,) in leaf.dims)) for leaf in graph.parameters}
    check(graph, arrays, backends=("numpy",), tolerance=1e-8)


# ---------------------------------------------------------------------------- a loss, and its gradients


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_gradients_are_of_the_type_of_the_call(dtype: str) -> None:
    line = tn.layer("y[b] = w * x[b] + u + 0 * v * where(x[b] > 2, 1, 0)", inputs="x")
    square = tn.layer("loss = mean[b]((y[b] - t[b]) ** 2)", inputs="y[b], t[b]")
    of = getattr(torch, dtype)
    step = tn.value_and_grad(line, loss=square, backend="torch", wrt="*")
    held = {name: torch.tensor(0.5, dtype=of, requires_grad=True) for name in "wuv"}
    value, gradients = step(held, torch.ones(3, dtype=of), torch.zeros(3, dtype=of))
    assert {each.dtype for each in (value, *gradients.values())} == {of}
    assert not any(each.requires_grad for each in (value, *gradients.values()))
    assert {name: float(each) for name, each in gradients.items() if name in "wuv"} == {
        "w": 2.0,
        "u": 2.0,
        "v": 0.0,
    }
    if dtype != "bfloat16":
        arrays = {name: np.array(0.5, dtype) for name in "wuv"}
        found = tn.value_and_grad(line, loss=square)(arrays, np.ones(3, dtype), np.zeros(3, dtype))
        assert {str(each.dtype) for each in (found[0], *found[1].values())} == {dtype}


def test_a_loss_by_its_name() -> None:
    graph = tn.layer(
        "h[b] = tanh(x[b] * w)\nloss = mean[b](h[b] ** 2)\nmost = max[b](h[b])",
        inputs="x",
        outputs="h loss most",
    )
    arrays = {"w": np.array(0.5)}
    value, gradients = tn.value_and_grad(graph, loss="most")(arrays, np.array([1.0, 3.0]))
    assert float(value) == pytest.approx(np.tanh(1.5))
    assert float(gradients["w"]) == pytest.approx(3 * (1 - np.tanh(1.5) ** 2))
    again = tn.value_and_grad(tn.layer("l = sum[b](x[b] ** 2)", inputs="x"), wrt="x")
    np.testing.assert_array_equal(again({}, np.array([1.0, 3.0]))[1]["x"], [2.0, 6.0])
    assert repr(again).startswith("<ValueAndGrad of l by x, on numpy>")


# ---------------------------------------------------------------------------- complex numbers


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax", STRICT])
@pytest.mark.parametrize(
    "derivative", [tn.gradient, tn.jvp, lambda graph, wrt: tn.gradient(tn.gradient(graph, wrt=wrt), wrt=wrt)]
)
def test_derivatives_are_of_real_numbers(derivative: Any, backend: str) -> None:
    """|x w|² has the gradient 2 x̄ x w: the rule for real numbers, 2 x² w, is none."""
    graph = tn.layer("h[b] = x[b] * w[b]\nloss = sum[b](h[b] * h[b])", inputs="x")
    found = derivative(graph, wrt="w")
    library = BACKENDS[backend]()
    given = [np.ones(tuple(2 for _ in leaf.dims), "complex64") for leaf in found.inputs]
    f = tn.compile(found, backend=library)
    message = r"the derivative '.*\.(grad|tangent)' needs real numbers, and complex ones are given\nfix: give the real and the imag"
    with pytest.raises(tn.DtypeError, match=message):
        f({"w": library.asarray(np.ones(2, "complex64"))}, *map(library.asarray, given))
    f({"w": library.asarray(np.ones(2, "float32"))}, *(library.asarray(each.real) for each in given))
    with pytest.raises(tn.DtypeError, match=message):
        tn.plan(found, dtype="complex64")
    whole = tn.compile(graph, backend=library)
    assert library.numpy(whole({"w": library.asarray(1j * given[0])}, library.asarray(given[0]))) == -2


# ---------------------------------------------------------------------------- dropout

DROPPING = tn.layer("h[b,j] = dropout(x[b,i] * W[j,i], 0.5)\nloss = sum[b,j](h[b,j] ** 2)", inputs="x")


def test_both_ways_drop_the_same() -> None:
    x, w = torch.tensor(example(4, 3)), torch.tensor(example(50, 3), requires_grad=True)
    step, forward = tn.value_and_grad(DROPPING, backend="torch"), tn.compile(DROPPING, backend="torch")
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        value, gradients = step({"W": w}, x)
        torch.manual_seed(seed)
        loss = forward({"W": w}, x, training=True)
        torch.testing.assert_close(value, loss.detach())
        torch.testing.assert_close(gradients["W"], torch.autograd.grad(loss, w)[0])
        found.append(float(value))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_nothing_is_dropped_outside_training(backend: str) -> None:
    x, w = example(4, 3), example(50, 3)
    step = tn.value_and_grad(DROPPING, backend=backend)
    value, gradients = step({"W": array_of(backend, w)}, array_of(backend, x), training=False)
    np.testing.assert_allclose(np.asarray(gradients["W"]), 2 * (x @ w.T).T @ x)
    assert float(value) == pytest.approx(np.sum((x @ w.T) ** 2))


@pytest.mark.parametrize("backend", ["numpy", "jax", STRICT])
def test_what_is_dropped_is_kept_for_the_way_back_as_truth_values(backend: str) -> None:
    graph = tn.layer("h[b,j] = dropout(x[b,i] * W[j,i], 0.25)\nloss = sum[b,j](h[b,j])", inputs="x")
    plan = tn.plan(graph, backend=BACKENDS[backend](), training=True, b=64, i=8, j=32)
    assert plan.kept == (("h_mask", 64 * 32),)
    assert tn.Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("backend", ["numpy", "torch", STRICT])
def test_what_is_left_is_on_the_scale_of_the_whole(backend: str) -> None:
    """y = x · m / (1 − rate), the gradient ȳ · m / (1 − rate), with one m of both ways; neither outside training."""
    graph, library = (
        tn.layer("y[i] = dropout(x[i] ** 2, 0.25)\nz[i] = 1 * y[i]", inputs="x", outputs="z"),
        BACKENDS[backend](),
    )
    ways = joint_graph(graph, ("x",), alone=False)
    joined = tn.compile(ways.joined(("z",)), backend=library)
    x, seed = np.linspace(1.0, 2.0, 400), np.linspace(-1.0, 1.0, 400) + 2.0
    for training in (True, False):
        y, gradient = map(library.numpy, joined({}, *map(library.asarray, (x, seed)), training=training))
        kept = (y != 0) / 0.75 if training else np.ones(400)
        assert 0.1 < np.mean(y == 0) < 0.4 or not training
        np.testing.assert_allclose(y, x**2 * kept, rtol=1e-12)
        np.testing.assert_allclose(gradient, 2 * x * seed * kept, rtol=1e-12)


# ---------------------------------------------------------------------------- functions of one's own


@pytest.mark.usefixtures("registering")
def test_a_function_of_ones_own() -> None:
    tn.register("cubed", derivative="3 * g * a ** 2", numpy=lambda a: a**3, torch=lambda a: a**3)
    tn.register(
        "ratio",
        arity=2,
        derivative=("g / b", "-g * y / b"),
        numpy=lambda a, b: a / b,
        torch=lambda a, b: a / b,
    )
    graph = tn.layer("h[b] = cubed(x[b,i] * w[i])\ny[b,i] = ratio(h[b], cubed(1 + w[i] ** 2))", inputs="x")
    arrays = {"x": example(3, 4), "w": example(4)}
    check(graph, arrays, ["x", "w"], backends=("numpy", "torch"))
    check(tn.gradient(graph), {**arrays, "y.grad": example(3, 4)}, ["x", "w"], backends=("numpy",))


@pytest.mark.usefixtures("registering")
def test_a_function_without_a_derivative_is_shown() -> None:
    tn.register("mystery", numpy=np.cbrt)
    tn.register("along", over_axis=True, numpy=lambda a, axis: a)
    message = r"'{}' has no derivative\n  line 1: (?s:.*)\^(?s:.*)register it with one: tn.register\('{}', derivative="
    for name, text in (("mystery", "mystery(x[b,i] * w)"), ("along", "along[i](x[b,i] * w)")):
        layer = tn.layer(f"y[b,i] = tanh({text})", inputs="x")
        scoped = tn.model(lambda x, layer=layer: layer(x, scope="s"), inputs="x[b,i]")
        for graph in (layer, scoped):
            with pytest.raises(tn.EquationError, match=message.format(name, name)):
                tn.gradient(graph)
    apart = tn.layer("y[b] = x[b] * w + mystery(x[b])", inputs="x")  # on no way to what is asked for
    assert tn.gradient(apart, wrt="w").outputs == ("w.grad",)


@pytest.mark.usefixtures("registering")
def test_a_derivative_speaks_of_its_operands() -> None:
    tn.register("done", derivative="g * pi * where(a > -inf, cos(a), y)", numpy=np.sin, torch=torch.sin)


# ---------------------------------------------------------------------------- what cannot be


@pytest.mark.parametrize("text", ["l = sum[b](t[b]) * w", "l = mean[b](t[b] * w)", "l = w * 3", "l = w"])
def test_gradients_made_of_integers_are_numbers(text: str) -> None:
    graph = tn.layer(text, inputs="t" if "t[" in text else ())
    for dtype in ("float16", "float32", "float64"):
        given = [np.array([1, 2, 6])] if graph.inputs else []
        _, gradients = tn.value_and_grad(graph)({"w": np.array(2, dtype)}, *given)
        assert str(gradients["w"].dtype) == dtype
        assert gradients["w"] == {"sum": 9, "mea": 3, "w *": 3, "w": 1}[text[4:7]]


def test_a_product_that_no_gradient_goes_through_is_kept() -> None:
    """It is as large as what is made of it, and takes longer than all else on the way."""
    graph = tn.layer("y[b,o] = tanh(x[b,i] * W[o,i]) * u[o]", inputs="x")
    found = joint_graph(graph, ("u",), alone=False)
    assert len(found.residuals) == 1
    assert [leaf.name for leaf in found.backward.leaves] == [*found.residuals, "y.grad"]


def test_a_loss_with_its_gradients_is_pickled_and_has_the_graph_of_its_plan() -> None:
    graph = tn.layer(
        "y[b,o] = tanh(x[b,i] * W[o,i])\nl = sum[b,o](y[b,o])", inputs="x", outputs="l", i=4, o=3
    )
    parameters, f = tn.init(graph, seed=0, dtype="float64"), tn.value_and_grad(graph, memory_limit="1 MiB")
    for size in (2, 200, 2):
        value, gradients = f(parameters, np.ones((size, 4)))
        assert f.graph == f.plan.graph
    again = pickle.loads(pickle.dumps(f))
    other, others = again(parameters, np.ones((2, 4)))
    assert other == value
    np.testing.assert_array_equal(others["W"], gradients["W"])
    assert (again.memory_limit, again.wrt) == (f.memory_limit, f.wrt)
