"""JAX: every transform of it on compiled functions, against NumPy in float64 and torch."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet import models
from tensornet.device import calibration
from tensornet.device.cost_model import default_profile
from tensornet.protocol import backend_of, load_backend

from .conftest import fresh, normal, sampled
from .differential import by_numpy
from .programs import SUMMED_ALONE
from .test_models import MODELS, first, parameters_of

pytestmark = pytest.mark.filterwarnings(SUMMED_ALONE)

DENSE = tn.layer("y[b,p] = gelu(x[b,i] * W[p,i] + u[p])", inputs="x", i=4, p=3)
ATTENTION = models.attention(8, 2, mask="causal")


exact = functools.partial(np.testing.assert_allclose, rtol=1e-12)
close = functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-11)


def on_jax(**arrays: Any) -> dict[str, Any]:
    return tn.to_backend(arrays, "jax")


def drawn(graph: tn.Graph, *shapes: tuple[int, ...]) -> tuple[dict[str, Any], list[Any]]:
    """Parameters and inputs in float64."""
    rng = np.random.default_rng(0)
    return parameters_of(graph), [rng.standard_normal(shape) for shape in shapes]


# ---------------------------------------------------------------------------- transforms

TRACED = ("vit", "transformer_classifier", "tensor_swin", "llama_stored")
"""A stack of blocks, words with a mask, windows and cores, positions that others are stored before."""


def model(name: str) -> tuple[tn.Graph, dict[str, Any], list[Any], Any]:
    """A model, its parameters and inputs, and its function on JAX of parameters alone."""
    graph, inputs = MODELS[name]()
    given = inputs(np.random.default_rng(0))
    f, arrays = tn.compile(graph, backend="jax"), [on_jax(x=each)["x"] for each in given]
    return graph, parameters_of(graph), given, lambda parameters: first(f(parameters, *arrays))


@pytest.mark.parametrize("name", sampled(MODELS, TRACED))
def test_a_traced_model_is_the_same_function(name: str) -> None:
    """All that the models look at, positions and masks too, they look at before they run."""
    graph, parameters, given, f = model(name)
    expected = first(tn.compile(graph)(parameters, *given))
    close(jax.jit(f)(on_jax(**parameters)), expected)


@pytest.mark.parametrize("name", sampled(MODELS, ["vit"]))
def test_gradients_of_models_are_those_of_torch(name: str) -> None:
    graph, parameters, given, f = model(name)
    theirs, tensors = tn.compile(graph, backend="torch"), list(map(torch.tensor, given))
    weights = normal(*jax.eval_shape(f, on_jax(**parameters)).shape, seed=2)
    expected = torch.func.grad(lambda p: (first(theirs(p, *tensors)) * torch.tensor(weights)).sum())(
        tn.to_backend(parameters, "torch")
    )
    found = jax.jit(jax.grad(lambda p: jnp.sum(f(p) * weights)))(on_jax(**parameters))
    for each in parameters:
        np.testing.assert_allclose(found[each], expected[each], rtol=1e-6, atol=1e-9, err_msg=each)


FUNCTIONS_OF_X = """
a[b,i] = relu(x[b,i]) * silu(x[b,i]) + softplus(x[b,i]) * erf(x[b,i])
c[b,i] = softmax[i](x[b,i]) - log_softmax[b](x[b,i]) * logsumexp[i](x[b,i])
d[b,i] = normalize[i](x[b,i]) * var[b](x[b,i]) + normalize[b](x[b,i])
e[b,i] = max[i](x[b,i]) * min[b](x[b,i]) - prod[i](x[b,i]) + maximum(x[b,i], 0.1)
f[b,i] = roll(x[b,i], i=1) * rsqrt(x[b,i] * x[b,i] + 1) + gelu_tanh(x[b,i])
g[i,k] = x[b,i] * w[b,k] + where(x[k,i] > 0, x[k,i], 0.5 * x[k,i])
h[b,i] = x[i,i] * x[b,0]
"""


def test_gradients_of_functions_are_those_of_torch() -> None:
    graph = tn.layer(FUNCTIONS_OF_X, inputs="x w", outputs="a c d e f g h", b=4, i=4)
    x, w = normal(2, 4, 4)
    tensors = [torch.tensor(each, requires_grad=True) for each in (x, w)]
    sum(each.square().sum() for each in tn.compile(graph, backend="torch")({}, *tensors)).backward()
    f = tn.compile(graph, backend="jax")
    found = jax.grad(lambda *arrays: sum(jnp.sum(each**2) for each in f({}, *arrays)), (0, 1))(x, w)
    for one, tensor in zip(found, tensors, strict=True):
        close(one, tensor.grad)


def test_planned_gradients_are_those_of_jax() -> None:
    """The loss and its gradients as one function, which is traced as any."""
    parameters, (x,) = drawn(ATTENTION, (2, 5, 8))
    square = tn.layer("loss = mean[b,i,o](y[b,i,o] ** 2)", inputs="y[b,i,o]")
    both, f = tn.value_and_grad(ATTENTION, loss=square, backend="jax"), tn.compile(ATTENTION, backend="jax")
    moved = on_jax(**parameters)
    value, gradients = jax.jit(both)(moved, jnp.asarray(x))
    theirs = jax.jit(jax.value_and_grad(lambda p: jnp.mean(f(p, jnp.asarray(x)) ** 2)))
    expected, slopes = theirs(moved)
    np.testing.assert_allclose(value, expected, rtol=1e-9)
    for name in parameters:
        np.testing.assert_allclose(gradients[name], slopes[name], rtol=1e-7, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("name", ["max", "min"])
def test_gradients_of_an_extreme_lose_no_element(name: str) -> None:
    """XLA may compute the operand twice, and round it in two ways."""
    text = f"y[n,c,k] = {name}[i](x[1,i] * A[c+k,i+k] - W[n])"
    graph = tn.gradient(tn.layer(text, inputs="x[r,i]", r=2, i=2, k=2, n=2, c=1), wrt=["A", "W"])
    step = tn.compile(graph, backend="jax", dtype="float64")
    shapes = {"x": (2, 2), "y.grad": (2, 1, 2), "A": (2, 3), "W": (2,)}
    for seed in range(10):
        draw = np.random.default_rng(seed)
        arrays = {key: draw.standard_normal(shape) for key, shape in shapes.items()}
        expected = by_numpy(graph, arrays)
        given = on_jax(**arrays)
        found = step({key: given[key] for key in ("A", "W")}, given["x"], given["y.grad"])
        for one, two in zip(found, expected.values(), strict=True):
            np.testing.assert_allclose(np.asarray(one), two)


def test_second_derivatives_and_forward_mode() -> None:
    parameters, (x,) = drawn(DENSE, (5, 4))
    f, moved = tn.compile(DENSE, backend="jax"), on_jax(**parameters)
    towards = jnp.asarray(normal(*x.shape, seed=1))

    def loss(x: Any) -> Any:
        return jnp.sum(f(moved, x) ** 2)

    _, forward = jax.jvp(loss, (jnp.asarray(x),), (towards,))
    exact(forward, jnp.sum(jax.grad(loss)(x) * towards))
    curved = jax.jvp(jax.grad(loss), (jnp.asarray(x),), (towards,))[1]
    module = tn.module(DENSE, params=parameters)

    def theirs(x: torch.Tensor) -> torch.Tensor:
        return module(x).square().sum()

    _, expected = torch.autograd.functional.hvp(theirs, torch.tensor(x), torch.tensor(np.asarray(towards)))
    np.testing.assert_allclose(curved, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("jitted", [False, True])
def test_a_batch_is_mapped(jitted: bool) -> None:
    """Over the input, over the parameters of an ensemble, and over both."""
    parameters, (x,) = drawn(ATTENTION, (3, 2, 5, 8))
    many = {name: np.stack([array, 2 * array, -array]) for name, array in parameters.items()}
    expected = np.stack([tn.compile(ATTENTION)({n: a[k] for n, a in many.items()}, x[k]) for k in range(3)])
    f = jax.vmap(tn.compile(ATTENTION, backend="jax"))
    found = (jax.jit(f) if jitted else f)(on_jax(**many), jnp.asarray(x))
    close(found, expected)
    shared = jax.vmap(tn.compile(ATTENTION, backend="jax"), in_axes=(None, 0))
    np.testing.assert_allclose(
        shared(on_jax(**parameters), jnp.asarray(x))[0], tn.compile(ATTENTION)(parameters, x[0]), rtol=1e-9
    )


def test_rows_at_told_positions_are_mapped_and_differentiated() -> None:
    graph = tn.layer("y[v,c] = onehot[v](t[s]) * x[s,c]", inputs="t x", v=1000, c=3)
    rng = np.random.default_rng(0)
    t, x = rng.integers(-2, 1000, (4, 50)), rng.standard_normal((4, 50, 3))
    f = tn.compile(graph, backend="jax")
    found = jax.jit(jax.vmap(lambda t, x: f({}, t, x)))(t, x)
    assert "scatter_add" in f.plan.code
    exact(found, [tn.compile(graph)({}, *each) for each in zip(t, x, strict=True)])
    gradient = jax.grad(lambda x: jnp.sum(f({}, jnp.asarray(t[0]), x)))(jnp.asarray(x[0]))
    np.testing.assert_array_equal(gradient, np.repeat((t[0] >= 0)[:, None], 3, 1))


SHARDED = """
import numpy as np, tensornet as tn, jax
from functools import partial
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
assert jax.device_count() == 4
mesh = Mesh(np.array(jax.devices()), ("d",))
graph = tn.models.transformer_classifier(11, 3, 8, 2, 2, 12)
params = tn.init(graph, dtype="float64")
t, see = np.random.default_rng(0).integers(0, 11, (8, 6)), np.ones((8, 6), bool)
expected = tn.compile(graph)(params, t, see)
f = tn.compile(graph, backend="jax")
moved = tn.to_backend(params, "jax")
spread = jax.jit(jax.shard_map(lambda *a: f(*a), mesh=mesh, in_specs=(P(), P("d"), P("d")), out_specs=P("d")))
np.testing.assert_allclose(spread(moved, t, see), expected, rtol=1e-9, atol=1e-12)

def loss(params, t, see):
    return jax.lax.pmean((f(params, t, see) ** 2).mean(), "d")

whole = jax.shard_map(loss, mesh=mesh, in_specs=(P(), P("d"), P("d")), out_specs=P())
found = jax.jit(jax.grad(whole))(moved, t, see)
wanted = jax.grad(lambda p: (f(p, jax.numpy.array(t), jax.numpy.array(see)) ** 2).mean())(moved)
for name in wanted:
    np.testing.assert_allclose(found[name], wanted[name], rtol=1e-7, atol=1e-12)

rows = tn.layer("y[v,c] = onehot[v](t[s]) * x[s,c]", inputs="t x", v=1000, c=3)
add = tn.compile(rows, backend="jax")
at, x = np.random.default_rng(0).integers(0, 1000, 40), np.random.default_rng(0).standard_normal((40, 3))
total = jax.shard_map(
    lambda t, x: jax.lax.psum(add({}, t, x), "d"), mesh=mesh, in_specs=(P("d"), P("d")), out_specs=P()
)
np.testing.assert_allclose(jax.jit(total)(at, x), tn.compile(rows)({}, at, x), rtol=1e-12)
assert "scatter_add" in add.plan.code

split = NamedSharding(mesh, P("d"))
sharded = f(tn.to_backend(params, "jax"), jax.device_put(t, split), jax.device_put(see, split))
np.testing.assert_allclose(sharded, expected, rtol=1e-9, atol=1e-12)
assert len(sharded.devices()) == 4
two = tn.to_backend(params, "jax", device="cpu:2")
assert {str(each.devices()) for each in two.values()} == {str({jax.devices()[2]})}
print("agrees")
"""


DIVIDED = """
import numpy as np, tensornet as tn, jax, jax.numpy as jnp
graph = tn.layer(
    "E[v,c]: parameter\\nn[b,c] = E[x[b],c]\\nh[b,f] = gelu(n[b,c] * W[f,c])\\ny[b,o] = h[b,f] * V[o,f]", inputs="x",
    v=8, c=4, f=8, o=4,
)
params = tn.init(graph, seed=0, dtype="float64")
params["E"][7] = np.inf  # a row that is not read
moved, x = tn.to_backend(params, "jax"), jnp.array([1, 6, 0, 3])
alone = tn.compile(graph, backend="jax")
close = lambda found, expected: jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), found, expected)
for shape, names, shard in (
    ((4,), ("d",), {"f": "d"}), ((4,), ("d",), {"v": "d"}), ((2, 2), ("d", "m"), {"b": "d", "f": "m"}),
    ((2, 2), ("d", "m"), {"v": "m", "f": ("d", "m")}), ((2, 1, 2), ("a", "b", "c"), {"b": "a", "c": "c"}),
    ((2, 2), ("d", "m"), {}), ((2, 2), ("d", "m"), "auto"),
):
    f = tn.compile(graph, backend="jax", mesh=jax.make_mesh(shape, names), shard=shard)
    loss, other = (lambda params, f=f: (f(params, x) ** 2).sum() for f in (f, alone))
    close(f(moved, x), alone(moved, x))
    close(jax.jit(jax.value_and_grad(loss))(moved), jax.value_and_grad(other)(moved))
    held = tn.compile(graph, backend="jax", mesh=jax.make_mesh(shape, names), shard=shard, params=params)
    close(held(x), alone(moved, x))
    for wrong in (lambda: f(moved), lambda: f({}, x), lambda: f(moved, [1])):
        try:
            wrong()
        except tn.TensornetError as error:
            print(str(error).splitlines()[0])
"""


@pytest.mark.slow
def test_a_graph_is_divided_over_four_devices() -> None:
    told = """\
the function takes 1 input(s) (x), not 0
the parameters 'E', 'W', 'V' are missing
'x' is a list, not an array of jax
"""
    flags = "--xla_force_host_platform_device_count=4"
    assert fresh(DIVIDED, XLA_FLAGS=flags, PYTHONWARNINGS="error") == 7 * told


def test_rows_are_divided_over_a_mesh() -> None:
    """Of one device; a `slow` test has four."""
    parameters, (x,) = drawn(DENSE, (6, 4))
    f, spec = tn.compile(DENSE, backend="jax"), jax.sharding.PartitionSpec
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    spread = jax.shard_map(lambda *a: f(*a), mesh=mesh, in_specs=(spec(), spec("d")), out_specs=spec("d"))
    found = jax.jit(spread)(on_jax(**parameters), x)
    np.testing.assert_allclose(found, tn.compile(DENSE)(parameters, x), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_what_is_computed_on_several_devices() -> None:
    flags = "--xla_force_host_platform_device_count=4"
    assert fresh(SHARDED, XLA_FLAGS=flags, PYTHONWARNINGS="error").split() == ["agrees"]


@pytest.mark.parametrize("rows", sampled([512, 500], [500]))
def test_a_limit_of_memory_holds_where_it_is_traced(rows: int) -> None:
    """Results are put together at last, so they are there twice."""
    graph = tn.layer("h[b,f] = gelu(x[b,i] * W[f,i])\ny[b,o] = h * V[o,f]", inputs="x", i=16, f=1024, o=16)
    parameters, (x,) = drawn(graph, (rows, 16))
    moved = on_jax(x=x, **parameters)
    x = moved.pop("x")
    free = tn.compile(graph, backend="jax")
    expected = free(moved, x)
    limit = free.plan.peak_memory // 4
    f = tn.compile(graph, backend="jax", memory_limit=limit)
    np.testing.assert_allclose(f(moved, x), expected, rtol=1e-9, atol=1e-12)
    compiled = jax.jit(f).lower(moved, x).compile()
    np.testing.assert_allclose(compiled(moved, x), expected, rtol=1e-9, atol=1e-12)
    memory = compiled.memory_analysis()
    alive = memory.argument_size_in_bytes + memory.temp_size_in_bytes + memory.output_size_in_bytes
    if jax.__version_info__ >= (0, 7):  # XLA kept more before
        assert alive <= limit + expected.nbytes
    one, other = (jax.grad(lambda x, f=f: jnp.sum(jax.jit(f)(moved, x) ** 2))(x) for f in (f, free))
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------------------- what is seen while tracing


def test_no_tracer_is_kept() -> None:
    """Constants and tables made while one trace runs serve the next, and calls without any."""
    functions_of = [
        tn.layer("y[b,i] = x[b,i] * c[i] + sin(index(i))", inputs="x", constants={"c": np.arange(1.0, 4.0)}),
        tn.layer("m[i,j] = 1.0 * (index(i) >= index(j))\ny[b,i] = x[b,j] * m[i,j] + c[i]", inputs="x",
                 constants={"c": np.arange(1.0, 4.0)}, j=3),
        tn.layer("y[b,i] = E[t[i],b] * x[b,i]", inputs="x E", constants={"t": np.array([2, 0, 1])}),
    ]  # fmt: skip
    for graph in functions_of:
        inputs = [normal(3, 3) for _ in graph.inputs]
        expected = tn.compile(graph)({}, *inputs)
        f = tn.compile(graph, backend="jax")
        arrays = [jnp.asarray(each) for each in inputs]
        with jax.checking_leaks():
            exact(jax.jit(f)({}, *arrays), expected)
        exact(f({}, *arrays), expected)
        exact(jax.jit(lambda *a, f=f: f({}, *a) + 0)(*arrays), expected)
        jax.grad(lambda *a, f=f: jnp.sum(f({}, *a)))(*arrays)
        np.testing.assert_allclose(
            jax.vmap(lambda *a, f=f: f({}, *a))(*[a[None] for a in arrays])[0], expected
        )


def test_parameters_drawn_and_moved_while_tracing_are_there() -> None:
    x = normal(5, 4)
    held: list[Any] = []

    @jax.jit
    def traced(x: Any) -> Any:
        held.append(tn.init(DENSE, backend="jax", dtype="float64"))
        return tn.compile(DENSE, backend="jax", params=held[0])(x)

    expected = tn.compile(DENSE)(tn.init(DENSE, dtype="float64"), x)
    np.testing.assert_allclose(traced(x), expected, rtol=1e-9)
    np.testing.assert_allclose(tn.compile(DENSE, backend="jax")(held[0], jnp.asarray(x)), expected, rtol=1e-9)


def test_arrays_of_new_shapes_compile_nothing(caplog: pytest.LogCaptureFixture) -> None:
    given = np.arange(12, dtype="float32").reshape(3, 4)
    found = load_backend("jax").asarray(given, dtype="float16")  # what is loaded first, is
    with jax.log_compiles():
        found = [load_backend("jax").asarray(given[:n], dtype="float32") for n in range(1, 4)]
        given[:] = 0.0  # they hold values of their own
        assert caplog.records == []
    assert [float(each.sum()) for each in found] == [6.0, 28.0, 66.0]


def test_a_device_is_measured_outside_of_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORNET_CALIBRATE", "1")
    monkeypatch.setattr(calibration, "load_profile", lambda key: None)
    monkeypatch.setattr(calibration, "save_profile", lambda profile: None)
    calibration._profile_of.cache_clear()
    seen: list[Any] = []

    def measure(backend: Any, device: str, dtype: str) -> Any:
        seen.append(jnp.ones(2) + 1)
        return default_profile(device, dtype)

    monkeypatch.setattr(calibration, "measure", measure)
    graph = tn.layer("y[b,p] = x[b,i] * W[p,i]", inputs="x", i=4, p=5)
    jax.jit(tn.compile(graph, backend="jax"))({"W": jnp.ones((5, 4))}, jnp.ones((2, 4)))
    calibration._profile_of.cache_clear()
    assert [isinstance(each, jax.core.Tracer) for each in seen] == [False]


def test_an_einsum_is_traced() -> None:
    a, b = (normal(3, 4, seed=n) for n in range(2))
    expected = np.einsum("bi,ci->bc", a, b)
    exact(tn.einsum("bi,ci->bc", jnp.asarray(a), jnp.asarray(b)), expected)
    found = jax.jit(lambda a, b: tn.einsum("b i, c i -> b c", a, b))(a, b)
    exact(found, expected)
    exact(jax.grad(lambda a: tn.einsum("bi,bi->", a, a))(jnp.asarray(a)), 2 * a)


@pytest.mark.parametrize(
    ("text", "inputs", "shape"),
    [
        ("y[b] = x[t[b]]", "x[i] t", (7,)),
        ("y[b] = x[t[b],b]", "x[i,b] t", (7, 3)),
        ("y[b] = x[b,t[b]]", "x[b,i] t", (3, 7)),
        ("y[b] = x[b,t[b],t[b]]", "x[b,i,j] t", (3, 7, 7)),
        ("y[b,c] = x[t[b],c]", "x[i,c] t", (7, 2)),
    ],
)
def test_a_wrong_position_reads_no_neighbour(text: str, inputs: str, shape: tuple[int, ...]) -> None:
    """It is an error where it has a value, and NaN where it is traced, whatever integers there are."""
    x = normal(*shape)
    f = tn.compile(tn.layer(text, inputs=inputs), backend="jax")
    good = np.array([6, 0, 3])
    expected = by_numpy(f.graph, {"x": x, "t": good})["y"]
    for kind in ("int8", "int64") if "c" in text else ("int32", "uint8"):
        t = good.astype(kind)
        exact(jax.jit(f)({}, x, t), expected)
        for wrong in (7, 100, -1, -7)[: 2 if kind == "uint8" else 4]:
            t[1] = np.asarray(wrong).astype(kind)
            found = jax.jit(f)({}, x, t)
            assert np.isnan(found[1]).all()
            exact(found[::2], expected[::2])
            with pytest.raises(tn.ShapeError, match=f"'t' holds the position {wrong}, where there are 7"):
                f({}, jnp.asarray(x), jnp.asarray(t))
    with pytest.raises(tn.DtypeError, match="'t' indexes, and holds float64"):
        jax.jit(f)({}, x, good.astype(float))


@pytest.fixture
def traced(registering: None) -> list[bool]:
    """A function of the user's own, and what it was called with: whether that was traced."""
    seen: list[bool] = []

    def function(a: Any) -> Any:
        seen.append(isinstance(a, jax.core.Tracer))
        return a + 1

    tn.register("seen_on_jax", jax=function, numpy=lambda a: a + 1)
    return seen


def test_what_is_compiled_runs_as_one(traced: list[bool]) -> None:
    """It is traced once for each kind of arrays, or where that is switched off never."""
    graph = tn.layer("y[b] = seen_on_jax(x[b,i]) * W[i]", inputs="x", i=3)
    f, plain = tn.compile(graph, backend="jax"), tn.compile(graph, backend="jax", jit=False)
    for rows in (2, 2, 5, 2):
        x = jnp.arange(3.0 * rows).reshape(rows, 3)
        np.testing.assert_allclose(f({"W": jnp.ones(3)}, x), (x + 1).sum(1))
    assert traced == [True, True]
    np.testing.assert_allclose(plain({"W": jnp.ones(3)}, x), (x + 1).sum(1))
    assert traced[2:] == [False]
    assert float(jax.grad(lambda x: f({"W": jnp.ones(3)}, x).sum())(x)[0, 0]) == 1
    copied = pickle.loads(pickle.dumps(plain))
    copied({"W": jnp.ones(3)}, x)
    assert traced[-1] is False
    with pytest.raises(tn.ShapeError, match="axis 'i' of 'x' is 4, and should be 3"):
        f({"W": jnp.ones(3)}, jnp.ones((2, 4)))


def test_a_step_runs_as_one(traced: list[bool]) -> None:
    graph = tn.layer("y[b] = seen_on_jax(x[b]) * w\nl = mean[b](y)", inputs="x", outputs="l")
    for jit in (True, False):
        step = tn.value_and_grad(graph, backend="jax", jit=jit)
        value, gradients = step({"w": jnp.array(2.0)}, jnp.array([1.0, 3.0]))
        assert (float(value), float(gradients["w"])) == (6, 3)
    assert traced == [True, False]


@pytest.mark.usefixtures("registering")
def test_what_cannot_be_traced_runs_as_it_did() -> None:
    tn.register("by_numpy", jax=lambda a: jnp.asarray(np.asarray(a) * 2))
    f = tn.compile(tn.layer("y[i] = by_numpy(x[i])", inputs="x"), backend="jax")
    assert f({}, jnp.array([1.0, 2.0])).tolist() == [2, 4]


@pytest.mark.parametrize("jit", [True, False])
@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("y[n,c] = E[t[n],c] * 2", None),
        ("y[v,c] = 0\ny[t[n],c] += E[n,c]\nv: 4", None),
        ("y[n,c] = exp(sum[d](E[t[n],d] * E[n,c]))", 70_000),
    ],
    ids=["read", "added", "in pieces"],
)
def test_positions_are_looked_at_though_all_runs_as_one(text: str, limit: int | None, jit: bool) -> None:
    rows = 500 if limit else 4
    f = tn.compile(tn.layer(text, inputs="t E"), backend="jax", memory_limit=limit, jit=jit)
    t, E = np.arange(rows) % 4, jnp.ones((rows, 3))
    right = f({}, jnp.asarray(t), E)
    t[-1] = rows + 3
    with pytest.raises(tn.ShapeError, match=f"'t' holds the position {rows + 3}, where there are {rows}"):
        f({}, jnp.asarray(t), E)
    np.testing.assert_allclose(np.asarray(jax.jit(f)({}, jnp.asarray(t), E))[0], right[0], rtol=1e-6)


# ---------------------------------------------------------------------------- arrays


def test_arrays_and_tracers_are_of_jax() -> None:
    seen: list[Any] = []
    jax.jit(jax.vmap(jax.grad(lambda x: seen.append(x) or jnp.sum(x))))(jnp.ones((2, 3)))  # type: ignore[func-returns-value]
    for array in (jnp.ones(2), *seen):
        assert backend_of(array).name == "jax"


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "bool", "complex64"])
def test_arrays_move_between_libraries(dtype: str) -> None:
    values = np.array([[0, 1, 2], [3, 4, 5]])
    made = tn.to_backend({"a": values}, "jax", dtype=dtype)["a"]
    assert str(made.dtype) == dtype
    back = tn.to_backend({"a": made}, "numpy")["a"]
    assert isinstance(back, np.ndarray)
    assert str(back.dtype) == ("float32" if dtype == "bfloat16" else dtype)
    np.testing.assert_array_equal(back, values.astype(back.dtype))
    tensor = tn.to_backend({"a": made}, "torch")["a"]
    assert str(tensor.dtype) == f"torch.{dtype}"
    again = tn.to_backend({"a": tensor}, "jax")["a"]
    assert str(again.dtype) == dtype
    np.testing.assert_array_equal(again, made)


def test_what_is_moved_is_a_copy() -> None:
    """Arrays of JAX do not change, whoever writes into what they were made of, or what is made of them."""
    array, tensor = np.zeros(1000), torch.zeros(1000)
    made = on_jax(a=array, t=tensor)
    array[:], tensor[:] = 1, 1
    assert not made["a"].any()
    assert not made["t"].any()
    tn.to_backend(made, "numpy")["a"][:] = 1
    tn.to_backend(made, "torch")["a"][:] = 1
    assert not made["a"].any()


def test_a_function_is_pickled() -> None:
    parameters, (x,) = drawn(DENSE, (5, 4))
    f = tn.compile(DENSE, backend="jax", params=parameters)
    expected = f(jnp.asarray(x))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(f))(jnp.asarray(x)), expected)


NARROW = """
import numpy as np, pytest, tensornet as tn, jax, jax.numpy as jnp
assert not jax.config.jax_enable_x64
graph = tn.layer(
    "e[b,n,c] = E[t[b,n],c] + sin(index(n)) * g[c]\\ny[b,n,v] = onehot[v](t[b,n]) * (sum[c](e) + c) + x[b,n,n]",
    inputs="t x", v=7, c=3, E0=7,
)
params = {name: np.asarray(a, "float64") for name, a in tn.init(graph).items()}
t = np.random.default_rng(0).integers(0, 7, (2, 4))
x = np.random.default_rng(0).standard_normal((2, 4, 4))
expected = tn.compile(graph)(params, t, x)
f, moved = tn.compile(graph, backend="jax"), tn.to_backend(params, "jax")
assert {str(a.dtype) for a in moved.values()} == {"float32"}
arrays = tn.to_backend({"t": t, "x": x}, "jax")
assert str(arrays["t"].dtype) == "int32"
for each in (f, jax.jit(f)):
    np.testing.assert_allclose(each(moved, *arrays.values()), expected, rtol=1e-5, atol=1e-5)
rows = tn.layer("y[b] = x[t[b],t[b],t[b]]", inputs="x[i,j,k] t")
wrong = jax.jit(tn.compile(rows, backend="jax"))({}, jnp.ones((1024, 8, 128)), jnp.array([8, 7, -1, 2**31 - 1]))
assert np.isnan(wrong[np.array([0, 2, 3])]).all() and wrong[1] == 1, wrong
count = tn.compile(tn.layer("y[v] = sum[s](onehot[v](t[s]))\\nz[i] = index(i) * 3", inputs="t", outputs="y z", v=9, i=4), backend="jax")
y, z = count({}, jnp.array([1, 1, 8]))
assert y.tolist() == [0, 2, 0, 0, 0, 0, 0, 0, 1] and z.tolist() == [0, 3, 6, 9]
for make in (lambda: tn.init(graph, backend="jax", dtype="float64"), lambda: tn.to_backend(params, "jax", dtype="int64")):
    with pytest.raises(tn.BackendError, match="unless jax_enable_x64 is on(?s:.*)for all of it"):
        make()
print("agrees")
"""


def test_without_elements_of_64_bits_nothing_warns() -> None:
    assert fresh(NARROW, JAX_ENABLE_X64="0", PYTHONWARNINGS="error").split() == ["agrees"]
