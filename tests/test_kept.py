"""What is kept for the backward pass: told before anything runs, and bounded by making calls of blocks again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import tensornet as tn
from tensornet import models
from tensornet.backends.torch.checkpoint import without_cheap
from tensornet.planning.plans import Plan

from .conftest import sampled, stacked

MODELS: dict[str, tuple[Callable[[], tn.Graph], tuple[int, ...]]] = {
    "vit": (lambda: models.vit(16, 4, 24, 4, 3, 48, 10), (3, 3, 16, 16)),
    "vit that drops": (lambda: models.vit(16, 4, 24, 4, 3, 48, 10, dropout=0.1), (3, 3, 16, 16)),
    "swin": (lambda: models.swin(16, 2, 8, (2, 2), (2, 4), window=2, classes=5), (2, 3, 16, 16)),
}


def planned(graph: tn.Graph, **options: Any) -> Plan:
    """A plan of torch for training."""
    return tn.plan(graph, backend="torch", training=True, **{"compare": False, **options})


def kept(plan: Plan) -> int:
    return sum(size for _, size in plan.kept)


def told_to_do(error: Exception) -> int:
    """The bytes that an error says would do."""
    return int(str(error).split("allow ")[1].split(" bytes")[0].replace(",", ""))


def drawn(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def of_random_values(graph: tn.Graph, **options: Any) -> Any:
    """A module of which no parameter is 0."""
    module = tn.module(graph, seed=0, dtype="float64", **options)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for each in module.parameters():
            each.copy_(0.3 * torch.randn(each.shape, generator=generator, dtype=each.dtype))
    return module


class Seen(TorchDispatchMode):
    """The memory that was made while this is on, and how much of it is still alive."""

    def __init__(self, given: set[int]) -> None:
        super().__init__()
        self.given, self.made = given, dict[int, tuple[StorageWeakRef, int]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in torch.utils._pytree.tree_leaves(result):
            if isinstance(each, torch.Tensor):
                storage = getattr(each, "_local_tensor", each).untyped_storage()  # of a DTensor
                if storage._cdata not in self.given:
                    self.made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return result

    @property
    def alive(self) -> int:
        return sum(size for reference, size in self.made.values() if not reference.expired())


def kept_by(module: Any, *values: torch.Tensor) -> int:
    """Bytes that are alive after the forward pass because of the backward pass."""
    module(*values)  # plans
    given = {each.untyped_storage()._cdata for each in (*values, *module.parameters(), *module.buffers())}
    with Seen(given) as seen:
        found = results_of(module, values)
    nodes = [each.grad_fn for each in found]
    assert None not in nodes
    del found
    return seen.alive


@pytest.mark.parametrize("name", ["vit", "swin"])
def test_what_autograd_keeps_is_told_before(name: str) -> None:
    make, shape = MODELS[name]
    graph = make()
    options = {"dtype": "float64", "memory_limit": 10**9}
    plan = planned(graph, b=shape[0], **options)
    told = kept(plan)
    found = kept_by(tn.module(graph, seed=0, **options), drawn(shape))
    tables = 1000 if torch.__version__ >= "2.13" else 3000  # of positions, which are there once for all calls
    assert told <= found < told + tables
    assert f"autograd keeps {told / 1e3:.3g} kB: " in str(plan)


@pytest.mark.parametrize("name", MODELS)
def test_half_of_it_trains_the_same(name: str) -> None:
    make, shape = MODELS[name]
    graph, x = make(), drawn(shape)
    plan = planned(graph, dtype="float64", b=shape[0])
    assert Plan.from_json(plan.to_json()) == plan
    half = kept(plan) // 2
    free, bound = of_random_values(graph), of_random_values(graph, memory_limit=half)
    if name != "vit that drops":  # where tensors of random numbers are made anew
        assert kept_by(bound, x) <= half
    for module in (free, bound):
        torch.manual_seed(3)
        module(x).pow(2).sum().backward()
    assert any(getattr(step, "recomputed", False) for step in bound.plan.steps)
    one, other = ([each.grad for each in module.parameters()] for module in (free, bound))
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    assert Plan.from_json(bound.plan.to_json()) == bound.plan


def test_the_first_calls_are_made_again_and_no_more_than_it_takes() -> None:
    graph = MODELS["vit"][0]()

    most = kept(planned(graph, b=64))
    counts = []
    for limit in range(most, most // 3, -most // 12):
        plan = planned(graph, memory_limit=limit, b=64)
        again = [step.recomputed for step in plan.steps if hasattr(step, "recomputed")]
        assert again == sorted(again, reverse=True)
        assert kept(plan) <= limit
        counts.append(sum(again))
        told = str(plan).count("recomputed in the backward pass")
        assert told == counts[-1] == plan.code.count("= recomputed(")
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert counts[-1] > 1


def gated(width: int) -> tn.Graph:
    """Blocks with a norm and a gate."""
    text = """
    n[b,t,c] = x[b,t,c] / sqrt(mean[c](x[b,t,c] ** 2) + 0.01) * g[c]
    v[b,t,f] = n[b,t,c] * V[f,c]
    w[b,t,f] = n[b,t,c] * U[f,c]
    u[b,t,f] = silu(v[b,t,f]) * w[b,t,f]
    y[b,t,c] = x[b,t,c] + u[b,t,f] * W[c,f]
    """
    block = tn.layer(text, inputs="x", c=width, f=2 * width)
    return stacked(*((block, f"layers.{n}") for n in range(3)), inputs="x[b,t,c]", c=width)


CHEAP = {
    "norms and gelu": (MODELS["vit"][0], (3, 3, 16, 16), 0.75),
    "gates": (lambda: gated(8), (3, 5, 8), 0.75),
}


@pytest.mark.parametrize("name", CHEAP)
def test_cheap_results_are_made_again_before_any_call(name: str) -> None:
    make, shape, share = CHEAP[name]
    graph, x = make(), drawn(shape).requires_grad_()
    sizes = {axis: shape[0] if axis == "b" else shape[1] for axis in graph.open_sizes}
    limit = int(share * kept(planned(graph, dtype="float64", **sizes)))
    free, bound = of_random_values(graph), of_random_values(graph, memory_limit=limit)
    found = kept_by(bound, x.detach())
    assert "recomputed(" not in bound.plan.code
    assert "and recomputes cheap results" in str(bound.plan)
    assert kept(bound.plan) <= found < kept(bound.plan) + 1000
    assert found <= limit + 1000
    slopes = (
        gradients_of if name == "gates" else first_gradients
    )  # torch's fused attention has no second ones
    torch.testing.assert_close(slopes(bound, [x]), slopes(free, [x]), rtol=1e-9, atol=1e-11)


def first_gradients(module: Any, values: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(module(*values).pow(2).sum(), [*module.parameters(), *values])


def test_cheap_results_under_what_torch_does_to_functions() -> None:
    make, shape, share = CHEAP["norms and gelu"]
    graph, x = make(), drawn(shape).requires_grad_()
    limit = int(share * kept(planned(graph, dtype="float64", b=3)))
    free, bound = of_random_values(graph), of_random_values(graph, memory_limit=limit)
    expected = first_gradients(free, [x])
    with torch.autograd.graph.save_on_cpu():
        torch.testing.assert_close(first_gradients(bound, [x]), expected, rtol=1e-9, atol=1e-11)
    compiled = torch.compile(bound, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(first_gradients(compiled, [x]), expected, rtol=1e-9, atol=1e-11)
    values = dict(bound.named_parameters())
    slopes = torch.func.grad(lambda p: torch.func.functional_call(bound, p, x).pow(2).sum())(values)
    torch.testing.assert_close((*slopes.values(), expected[-1]), expected, rtol=1e-9, atol=1e-11)
    found = []
    for module in (free.float(), bound.float()):
        with torch.autocast("cpu", torch.bfloat16):
            y = module(x.float())
        found.append(torch.autograd.grad(y.sum(), [*module.parameters()]))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("limited", [False, True])
def test_what_is_written_to_before_the_backward_pass_is_told(limited: bool) -> None:
    make, shape, share = CHEAP["gates"]
    graph = make()
    limit = int(share * kept(planned(graph, dtype="float64", b=3, t=5))) if limited else None
    module, x = of_random_values(graph, memory_limit=limit), drawn(shape).requires_grad_()
    total = module(x).sum()
    with torch.no_grad():
        for each in module.parameters():
            each.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def test_a_cheap_result_that_is_written_to_is_saved() -> None:
    def changed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        made = torch.nn.functional.gelu(x)
        with torch.no_grad():
            made += 1  # as the layers of others do
        return made @ weight

    x, weight = drawn((4, 3)).requires_grad_(), drawn((3, 2)).requires_grad_()
    one, other = (torch.autograd.grad(f(x, weight).sum(), weight) for f in (changed, without_cheap(changed)))
    torch.testing.assert_close(other, one)


def test_too_little_is_told_and_how_much_would_do() -> None:
    graph, (batch, *_) = MODELS["vit"][0](), MODELS["vit"][1]
    with pytest.raises(tn.BackendError, match="bytes kept, and memory_limit is 1,000") as raised:
        planned(graph, memory_limit=1000, b=batch)
    least = told_to_do(raised.value)
    assert kept(planned(graph, memory_limit=least, b=batch)) <= least
    with pytest.raises(tn.BackendError, match="gradients need at least"):
        planned(graph, memory_limit=least - 1, b=batch)


def test_positions_are_looked_up_in_what_is_recorded() -> None:
    graph = tn.layer("E[v,c]: parameter\ny[b,t,c] = E[k[b,t],c] * w[c] * u[c]", inputs="k", v=10, c=4)
    assert kept(planned(graph, b=3, t=5, compare=True)) > 0


WAYS = [(name, backend) for name in ("vit", "swin") for backend in ("numpy", "torch")]
LOSS = tn.layer("loss = sum[b,o](y[b,o] ** 2)", inputs="y[b,o]")


@pytest.mark.parametrize(("name", "backend"), sampled(WAYS, WAYS[:2]))
def test_both_ways_in_one_program_keep_to_a_limit(backend: str, name: str) -> None:
    make, shape = MODELS[name]
    graph = make()
    draw = np.random.default_rng(0)
    values = {"x": drawn(shape).numpy()} | {
        key: 0.3 * draw.standard_normal(array.shape)
        for key, array in tn.init(graph, seed=0, dtype="float64").items()
    }
    parameters = tn.to_backend(values, backend)
    x = parameters.pop("x")
    step = tn.value_and_grad(graph, loss=LOSS, backend=backend)
    value, gradients = step(parameters, x)
    limit = int(0.85 * step.plan.peak_memory)
    bound = tn.value_and_grad(graph, loss=LOSS, backend=backend, memory_limit=limit)
    other, others = bound(parameters, x)
    assert bound.plan.peak_memory <= limit
    assert "pieces" not in str(bound.plan)
    assert any(call.apart for call in bound.graph.calls)
    np.testing.assert_allclose(other, value, rtol=1e-12)
    for key, gradient in gradients.items():
        np.testing.assert_allclose(others[key], gradient, rtol=1e-9, atol=1e-12)


def test_what_draws_is_not_made_again_by_a_program() -> None:
    graph = MODELS["vit that drops"][0]()
    parameters, x = tn.init(graph, seed=0, dtype="float64"), drawn((3, 3, 16, 16)).numpy()
    step = tn.value_and_grad(graph, loss=LOSS)
    step(parameters, x)
    with pytest.raises(tn.BackendError, match="the plan needs"):
        tn.value_and_grad(graph, loss=LOSS, memory_limit=int(0.8 * step.plan.peak_memory))(parameters, x)


# ---------------------------------------------------------------------------- recurrences

CELL = """
f[b,t,o] = sigmoid(x[b,t,i] * W[o,i] + previous[t](h[b,t,p]) * U[o,p])
h[b,t,o] = tanh(f[b,t,o] * V[o,i] * x[b,t,i]) + f[b,t,o] * previous[t](h[b,t,o], h0[b,o])
"""


def of_torch(kind: Any, layers: int) -> tn.Graph:
    """Layers that the library has a kernel for."""
    graph, _ = tn.models.from_torch(kind(6, 8, num_layers=layers, batch_first=True))
    return graph


CELL_SHAPES = [(3, 50, 6), (3, 8)]
ALONE = "h[t,b,o] = tanh(previous[t](h[t,b,p], h0[b,p]) * U[o,p])"
LINEAR = "h[b,t,o] = sigmoid(x[b,t,o]) * previous[t](h[b,t,o]) + w[o] * x[b,t,o]"


def cell(text: str = CELL, outputs: str = "h", **options: Any) -> tn.Graph:
    return tn.layer(text, **{"inputs": "x, h0", "outputs": outputs, "i": 6, "o": 8, **options})


LOOPS: dict[str, tuple[Callable[[], tn.Graph], list[tuple[int, ...]]]] = {
    "cell": (lambda: cell(outputs="h, f"), CELL_SHAPES),
    "from the end": (lambda: cell(CELL.replace("previous", "following")), CELL_SHAPES),
    "nothing comes in": (lambda: tn.layer(ALONE, inputs="h0", outputs="h", t=50, o=8), [(3, 8)]),
    "kernel": (lambda: of_torch(torch.nn.LSTM, 1), [(3, 50, 6)]),
    "linear": (lambda: tn.layer(LINEAR, inputs="x", o=8), [(3, 50, 8)]),
    "layers": (lambda: of_torch(torch.nn.GRU, 3), [(3, 50, 6)]),
}


def looped(name: str) -> tuple[tn.Graph, list[torch.Tensor], dict[str, int]]:
    """A graph with a recurrence, its inputs, and its open sizes."""
    make, shapes = LOOPS[name]
    graph = make()
    sizes = {axis: {"b": 3, "t": 50}[axis] for axis in graph.open_sizes}
    return graph, [drawn(shape) for shape in shapes], sizes


def results_of(module: Any, values: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    found = module(*values)
    return found if isinstance(found, tuple) else (found,)


def gradients_of(module: Any, values: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Those of a number, and those of a number made of these."""
    given = [each.clone().requires_grad_() for each in values]
    wrt = [*module.parameters(), *given]
    total = sum(torch.sin(each).sum() for each in results_of(module, given))
    assert isinstance(total, torch.Tensor)
    first = torch.autograd.grad(total, wrt, create_graph=True)
    norm = torch.stack([(each**2).sum() for each in first]).sum()
    return (*first, *torch.autograd.grad(norm, wrt))


def least_of(graph: tn.Graph, wrt: list[str], **sizes: int) -> int:
    """The bytes that are kept at least."""
    with pytest.raises(tn.BackendError, match="only calls of blocks and positions of a recurrence") as raised:
        planned(graph, dtype="float64", memory_limit=1, wrt=wrt, **sizes)
    return told_to_do(raised.value)


@pytest.mark.parametrize("name", sampled(LOOPS, ["cell", "kernel", "linear"]))
def test_recurrences_are_made_again_in_segments(name: str) -> None:
    graph, values, sizes = looped(name)
    wrt = [leaf.name for leaf in (*graph.inputs, *graph.parameters)]
    least = least_of(graph, wrt, **sizes)
    assert least < 0.7 * kept(planned(graph, dtype="float64", wrt=wrt, **sizes))
    expected = gradients_of(of_random_values(graph), values)
    module = of_random_values(graph, memory_limit=least)
    found = gradients_of(module, values)
    assert (
        "along(" if name == "linear" else "along_recomputed("
    ) in module.plan.code  # the kernel keeps most
    assert kept(module.plan) <= least
    assert Plan.from_json(module.plan.to_json()) == module.plan
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", sampled(["cell", "from the end", "kernel"], ["cell", "kernel"]))
def test_what_segments_keep_is_told_before(name: str) -> None:
    graph, values, sizes = looped(name)
    least = least_of(graph, [leaf.name for leaf in graph.parameters], **sizes)
    for limit in (least, 3 * least // 2):
        module = of_random_values(graph, memory_limit=limit)
        found = kept_by(module, *values)
        told = kept(module.plan)
        assert told <= found < told + 1000
        assert told <= limit


def test_a_recurrence_is_cut_into_no_more_segments_than_it_takes() -> None:
    graph = tn.layer(CELL, inputs="x, h0", i=6, o=8)
    most = kept(planned(graph, b=3, t=64))
    lengths = []
    for limit in range(
        most, 2 * most // 3, -most // 10
    ):  # below, the states before segments are recomputed too
        plan = planned(graph, memory_limit=limit, b=3, t=64)
        assert kept(plan) <= limit
        (loop,) = (step.along for step in plan.steps if getattr(step, "along", None))
        lengths.append(loop.segment)
    assert lengths[0] is None
    assert lengths[1:] == sorted(lengths[1:], reverse=True)
    assert lengths[-1] < lengths[1]


def test_other_lengths_than_planned_for_and_none() -> None:
    graph = cell()
    free, bound = of_random_values(graph), of_random_values(graph, memory_limit=15_000)
    for length in (50, 41, 33, 1, 0):
        values = [drawn((3, length, 6)), drawn((3, 8))]
        gradients = []
        for module in (free, bound):
            x, h0 = (each.clone().requires_grad_() for each in values)
            total, wrt = torch.sin(module(x, h0)).sum(), [*module.parameters(), x, h0]
            gradients.append(torch.autograd.grad(total, wrt, allow_unused=True, materialize_grads=True))
        assert ("along_recomputed(" in bound.plan.code) == (length > 30)
        torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-11)


def test_segments_drop_the_same() -> None:
    text = "h[b,t,o] = tanh(dropout(previous[t](h[b,t,p]), 0.3) * U[o,p] + x[b,t,o])"
    graph = tn.layer(text, inputs="x", o=8)
    x = drawn((3, 50, 8)).requires_grad_()
    gradients = []
    for limit in (None, 6_000):
        module = of_random_values(graph, memory_limit=limit)
        torch.manual_seed(3)
        gradients.append(torch.autograd.grad(torch.sin(module(x)).sum(), [x, *module.parameters()]))
    assert "along_recomputed(" in module.plan.code
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-11)


def test_saved_bytes_beyond_the_limit_are_warned_of_where_nothing_is_recomputed() -> None:
    text = "a[b,o] = tanh(x[b,i] * W[o,i])\nc[b,o] = tanh(a[b,p] * V[o,p])\ny[b,o] = tanh(c[b,p] * U[o,p])"
    graph = tn.layer(text, inputs="x", i=8, o=8, p=8)
    make = partial(tn.plan, graph, backend="torch", training=True, compare=False, b=512)
    kept = sum(size for _, size in make().kept)
    with pytest.warns(
        tn.TensornetWarning, match=r"keeps [\d,]+ bytes .* memory_limit is [\d,]+\nfix: call its"
    ):
        assert sum(size for _, size in make(memory_limit=kept - 1).kept) == kept
    assert make(memory_limit=10**9).kept
