"""Started by torchrun from `test_sharding.py`: sharded modules and programs against one process, in float64."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import math
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import distributed
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard

import tensornet as tn
from tensornet.backends.torch import collectives
from tensornet.graph.argument_shapes import sizes_from_shapes
from tensornet.sharding import sharded as made
from tensornet.sharding.mesh import Mesh
from tensornet.sharding.part import part_of
from tensornet.sharding.search import CostTable, eliminated
from tests.test_kept import Seen

from .conftest import rows
from .programs import program

FREE = {"data": (1e18, 0.0), "model": (1e18, 0.0)}
"""Links that cost nothing, so that the search divides even small graphs."""


def normal(*shape: int) -> Callable[[torch.Generator], torch.Tensor]:
    return lambda draw: torch.randn(*shape, generator=draw)


def tokens(high: int, *shape: int) -> Callable[[torch.Generator], torch.Tensor]:
    return lambda draw: torch.randint(high, shape, generator=draw)


def tensor_train() -> tn.Graph:
    text = "h[b,f,g] = relu(x[b,i,j] * A[f,i,r] * B[r,g,j])\ny[b,o] = h[b,f,g] * C[o,f,g]"
    return tn.layer(text, inputs="x", i=4, j=4, f=4, g=4, r=4, o=4)


def tensor_swin() -> tn.Graph:
    modes = ((2, 2, 2), (2, 2, 4))
    return tn.models.tensor_swin(16, 2, modes, (1, 2), ((2, 1, 1), (2, 1, 2)), 4, window=2)


HEADS: dict[str, Any] = {"h": "model", "f": "model"}
BOTH: dict[str, Any] = {"b": "data", **HEADS}


def of_model(told: str) -> tuple[Callable[[], tn.Graph], list[Any], list[dict[str, Any]]]:
    """What makes a model, what draws its inputs, and its placements."""
    make, inputs, *shards = told.split("; ")
    drawn = []
    for high, _, shape in (each.rpartition(":") for each in inputs.split()):
        sizes = [int(size) for size in shape.split(",")]
        drawn.append(tokens(int(high), *sizes) if high else normal(*sizes))
    return lambda: eval(make), drawn, [eval(each) for each in shards]


MODELS = {name: of_model(told) for name, told in rows("sharded_models.txt")}


def ways(name: str) -> list[tuple[str, Any]]:
    """What is divided in a model: batch, heads and hidden layers, both, and what the search chooses."""
    own = MODELS[name][2]
    batch: dict[str, Any] = {"..." if name == "mixture" else "b": "data"}
    model = [each for each in own if "data" not in each.values()] or [HEADS]
    mixed = [each for each in own if "data" in each.values()]
    return [
        *(("data", each) for each in (batch,)),
        *(("model", each) for each in model),
        *(("mixed", each) for each in mixed),
        ("auto", "auto"),
    ]


@functools.cache  # each mesh has process groups, and threads of gloo, of its own
def mesh(along: str = "data") -> Any:
    """All processes along two axes; those of two along this one."""
    count = distributed.get_world_size()
    shape = {1: (1, 1), 2: (2, 1) if along == "data" else (1, 2)}.get(count, (2, count // 2))
    return init_device_mesh("cpu", shape, mesh_dim_names=("data", "model"))


def mesh_for(how: str) -> Any:
    """The mesh for a way to divide a model."""
    return mesh("model") if how == "model" and distributed.get_world_size() == 2 else mesh()


def whole(y: Any) -> list[torch.Tensor]:
    return [
        each.full_tensor() if isinstance(each, DTensor) else each
        for each in (y if isinstance(y, tuple) else (y,))
    ]


def step(
    module: torch.nn.Module, optimizer: torch.optim.Optimizer, inputs: list[torch.Tensor], seed: int
) -> Any:
    """One step of training; the outputs, and the gradients before clipping."""
    torch.manual_seed(seed)
    found = whole(module(*inputs))
    draw = torch.Generator().manual_seed(seed)
    loss = sum(((y - torch.randn(y.shape, generator=draw)) ** 2).sum() for y in found)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[union-attr]
    grads = {name: whole(p.grad)[0].clone() for name, p in module.named_parameters() if p.grad is not None}
    torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimizer.step()
    return found, grads, loss


def agree(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9, equal_nan=True)


def largest(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The largest difference, after a look that none is too large."""
    agree(found, expected)
    return max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True) if a.numel())


def models(*names: str) -> None:
    """Outputs, gradients and parameters after two steps, in several placements; the largest differences."""
    for name in names or MODELS:
        make, given, _ = MODELS[name]
        graph = make()
        inputs = [one(torch.Generator().manual_seed(n)) for n, one in enumerate(given)]
        for how, shard in ways(name):
            alone = tn.module(graph, seed=0, dtype="float64")
            links = FREE if how == "auto" else None
            devices = mesh_for(how)
            divided = tn.module(graph, seed=0, dtype="float64", mesh=devices, shard=shard, links=links)
            both = [(each, torch.optim.AdamW(each.parameters(), lr=1e-2)) for each in (alone, divided)]
            differ = [0.0, 0.0]
            for seed in range(2):
                (y, grads, _), (z, others, _) = (step(*each, inputs, seed) for each in both)
                expected = [grads.get(k, torch.zeros_like(each)) for k, each in others.items()]
                differ = [
                    max(differ[0], largest(z, y)),
                    max(differ[1], largest([*others.values()], expected)),
                ]
            differ.append(largest(whole(tuple(divided.parameters())), [*alone.parameters()]))
            if distributed.get_rank() == 0:
                size = "×".join(map(str, devices.shape))
                print(
                    f"{name} {how} {size}: outputs, gradients, parameters {' '.join(f'{d:.0e}' for d in differ)}",
                    flush=True,
                )


def smoke() -> None:
    """A plan's bytes are those that collectives move, and two processes train as one."""
    graph = tn.layer(
        "h[b,f] = gelu(x[b,c] * W[f,c])\ny[b,o] = h[b,f] * V[o,f] + u[o]", inputs="x", c=4, f=8, o=4
    )
    counted(
        graph, {"b": "data", "f": "model"}, [torch.randn(4, 4, generator=torch.Generator().manual_seed(0))]
    )
    for told in ({"b": "data"}, {"f": "data"}, {"b": "data", "f": "data"}, {"c": "data", "o": "data"}):
        gradients_of_gradients(graph, told)
    rows()
    copies()
    inputs()


def inputs() -> None:
    """A batch that does not divide is computed whole, and other tensors on another process are an error on all."""
    graph = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", i=2, o=4)
    told: dict[str, Any] = {"dtype": "float64", "seed": 0}
    module = tn.module(graph, **told, mesh=mesh(), shard={"b": "data"})
    x = torch.arange(6.0).reshape(3, 2)
    with pytest.warns(
        tn.TensornetWarning, match="3 positions, which 2 devices along 'data' do not divide: each takes all"
    ):
        agree(whole(module(x)), whole(tn.module(graph, **told)(x)))
    for other in (torch.full((4, 2), float(mesh().get_rank())), torch.ones(4 + 2 * mesh().get_rank(), 2)):
        with pytest.raises(tn.BackendError, match="'x' is not the same tensor on the processes 0 and 1"):
            module(other)
    assert module(torch.ones(4, 2)).placements == (Shard(0), Replicate())


def gradients_of_gradients(graph: tn.Graph, shard: Any) -> None:
    """The gradients of a penalty on gradients, of parameters and of the input."""
    found = []
    for divided in ({}, {"mesh": mesh(), "shard": shard}):
        module = tn.module(graph, dtype="float64", seed=0, **divided)
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
        leaves = [*module.parameters(), x]
        grads = torch.autograd.grad(whole(module(x))[0].sin().sum(), leaves, create_graph=True)
        sum((each**2).sum() for each in whole(grads)).backward()  # type: ignore[union-attr]
        found.append(whole(tuple(each.grad for each in leaves)))
    agree(*found)


def rows() -> None:
    """Rows of a divided table: no other row counts, whatever it holds, and a wrong position is an error."""
    graph = tn.layer("E[v,c]: parameter\nt[b] = x[b] + 1\ny[b,c] = E[t[b],c]", inputs="x", v=4, c=2)
    module = tn.module(graph, dtype="float64", seed=0, mesh=mesh(), shard={"v": "data"})
    table = torch.tensor([[math.nan] * 2, [1.0, 2.0], [-math.inf] * 2, [math.inf, 4.0]])
    module.load_state_dict({"E": module._distributed("E", table)})
    for at in ([0, 2], [1, 0], [-1, 2]):
        agree(whole(module(torch.tensor(at)))[0].nan_to_num(5.0), table[torch.tensor(at) + 1].nan_to_num(5.0))
    for at in ([3, 0], [-2, 0]):
        with pytest.raises(
            tn.ShapeError,
            match=f"holds the position {at[0] + 1 - 2 * mesh().get_local_rank(0)}.*on process {mesh().get_rank()} of 2",
        ):
            module(torch.tensor(at))


def copies() -> None:
    """Copies of a module on a mesh are such modules; its blocks are one program, which no hook of one can enter."""
    make, (given, *_), _ = MODELS["llama"]
    module = tn.module(make(), dtype="float64", seed=0, mesh=mesh(), shard={"b": "data"})
    x = given(torch.Generator().manual_seed(0))
    (expected,) = whole(module(x))
    copied = copy.deepcopy(module)
    agree(whole(copied(x))[0], expected)
    kept = io.BytesIO()
    torch.save(module, kept)
    agree(whole(torch.load(io.BytesIO(kept.getvalue()), weights_only=False)(x))[0], expected)
    copied.reset_parameters(1)
    assert not torch.allclose(whole(copied(x))[0], expected)
    copied.reset_parameters(0)
    agree(whole(copied(x))[0], expected)
    assert module.plan.sizes == () or dict(module.plan.sizes)["b"] == 4 // mesh().size(0)
    copied.embedding.register_forward_hook(lambda *_: None)
    with pytest.raises(tn.BackendError, match="the block 'embedding' was replaced, hooked or wrapped"):
        copied(x)
    with pytest.raises(tn.BackendError, match="is a ndarray, not a tensor of torch"):
        module(x.numpy())
    with pytest.raises(tn.BackendError, match="processes that time plans"):
        tn.module(make(), mesh=mesh(), shard={"b": "data"}, tune="measure")


@contextlib.contextmanager
def watched() -> Iterator[list[float]]:
    """The bytes that collectives move meanwhile, each as its share of the operand in a ring."""
    moved: list[float] = []
    shares: dict[str, tuple[Callable[[int], float], int]] = {
        "all_reduce": (lambda n: 2 * (n - 1) / n, 0),
        "_gather": (lambda n: n - 1, 1),
        "_scatter": (lambda n: (n - 1) / n, 1),
        "all_to_all_single": (lambda n: (n - 1) / n, 1),
    }
    with contextlib.ExitStack() as stack:
        for name, (share, at) in shares.items():
            of = collectives if name.startswith("_") else distributed

            def run(own: Any, share: Any, at: int, *given: Any, group: Any) -> Any:
                moved.append(share(distributed.get_world_size(group)) * given[at].nbytes)
                return own(*given, group=group)

            run = functools.partial(run, getattr(of, name), share, at)
            stack.enter_context(mock.patch.object(of, name, run))
        yield moved


def counted(
    graph: tn.Graph, shard: Any, inputs: list[torch.Tensor], links: Any = None
) -> tuple[float, float]:
    """Bytes that a step moves, which are those of the plan; and the memory of a device, in terms of the plan's."""
    sizes = sizes_from_shapes(graph, graph.inputs, [tuple(x.shape) for x in inputs])
    sizes = {name: size for name, size in sizes.items() if name in graph.open_sizes}
    told: dict[str, Any] = {"mesh": mesh(), "shard": shard, "links": links, "dtype": "float64"}
    plan = tn.plan(graph, **told, **sizes, training=True)
    module = tn.module(graph, **told, seed=0, plan_at=sizes)
    optimizer = torch.optim.AdamW(module.parameters())
    step(module, optimizer, inputs, 0)
    held = [*module.parameters(), *(each for state in optimizer.state.values() for each in state.values())]
    own = sum(getattr(x, "_local_tensor", x).nbytes for x in held if x.ndim)
    own += sum(p.grad._local_tensor.nbytes for p in module.parameters() if p.grad is not None)
    given = {p._local_tensor.untyped_storage()._cdata for p in module.parameters()}
    with watched() as moved:
        with Seen(given | {x.untyped_storage()._cdata for x in inputs}) as seen:
            found = module(*inputs)
        alive = seen.alive
        several = found if isinstance(found, tuple) else (found,)
        torch.autograd.backward(several, [torch.ones_like(y) for y in several])
    assert math.isclose(sum(moved), plan.moved), (sum(moved), plan.moved, str(plan))
    return plan.moved, (own + alive) / plan.training_memory


def bytes_of_models(*names: str) -> None:
    """The bytes that are moved in models, counted, are those of their plans, and their memory within a tenth."""
    for name in names or MODELS:
        make, given, _ = MODELS[name]
        given = [normal(64, 8)] if name == "mixture" else given  # what plans take for "..."
        inputs = [one(torch.Generator().manual_seed(n)) for n, one in enumerate(given)]
        for how, shard in ways(name):
            moved, share = counted(make(), shard, inputs, FREE if how == "auto" else None)
            if distributed.get_rank() == 0:
                print(f"{name} {how}: {moved:.0f} bytes, {share:.3f} of the memory", flush=True)


def trained(folder: str, steps: str, dies: str = "") -> None:
    """Trains from the last checkpoint to so many steps, with a checkpoint after each; or until one process is killed."""
    make, given, _ = MODELS["vit"]
    inputs = [one(torch.Generator().manual_seed(n)) for n, one in enumerate(given)]
    module = tn.module(make(), seed=0, dtype="float64", mesh=mesh(), shard=BOTH)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    kept = sorted(each.parent for each in Path(folder).glob("*/.metadata"))  # it is written last
    if kept:
        state = dict(zip(("model", "optimizer"), get_state_dict(module, optimizer), strict=True))
        checkpoint.load(state, checkpoint_id=kept[-1])
        told = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
        set_state_dict(module, optimizer, **told)
    for n in range(len(kept), int(steps)):
        if dies == str(n) and distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        *_, loss = step(module, optimizer, inputs, n)
        state = dict(zip(("model", "optimizer"), get_state_dict(module, optimizer), strict=True))
        checkpoint.save(state, checkpoint_id=Path(folder, f"{n:03}"))
        if distributed.get_rank() == 0:
            print("loss", n, repr(loss.item()), flush=True)


def composed() -> None:
    """Modules on a mesh under `fully_shard`, under `torch.compile`, and with the state of one device."""
    text, x = "h[b,f] = gelu(x[b,c] * W[f,c])\ny[b,o] = h[b,f] * V[o,f] + u[o]", normal(4, 4)
    graph = tn.layer(text, inputs="x", c=4, f=8, o=4)
    told: dict[str, Any] = {"dtype": "float64", "seed": 0}
    inputs = [x(torch.Generator().manual_seed(0))]
    alone = tn.module(graph, **told)
    with torch.no_grad():
        alone.u.copy_(torch.arange(4.0))
    divided = tn.module(graph, **told, mesh=mesh(), shard={"b": "data", "f": "model"})
    torch.nn.ModuleList([divided]).load_state_dict({f"0.{k}": v for k, v in alone.state_dict().items()})
    agree(whole(divided(*inputs)), whole(alone(*inputs)))
    compiled = torch.compile(divided)
    both = [(each, torch.optim.AdamW(each.parameters(), lr=1e-2)) for each in (alone, compiled)]
    for seed in range(2):
        (y, _, _), (z, _, _) = (step(*each, inputs, seed) for each in both)
        agree(z, y)
    agree([each.full_tensor() for each in divided.parameters()], list(alone.parameters()))
    parts = tn.module(graph, **told, mesh=mesh()["model"], shard={"f": "model"})
    parts.load_state_dict(alone.state_dict())
    fully_shard(parts, mesh=mesh()["data"])
    count, rank = mesh().size(0), mesh().get_local_rank(0)
    both = [(each, torch.optim.AdamW(each.parameters(), lr=1e-2)) for each in (alone, parts)]
    for _ in range(2):
        for module, optimizer in both:
            own = inputs[0] if module is alone else inputs[0].chunk(count)[rank]
            optimizer.zero_grad()
            whole(module(own))[0].square().mean().backward()
            optimizer.step()
    agree([each.full_tensor() for each in parts.parameters()], list(alone.parameters()))


def wrapped(how: str) -> None:
    """A module that torch copies to each process, or divides block by block, trains as on one."""
    module, alone = (tn.module(tn.models.vit(16, 4, 32, 3, 4, 64, 10), seed=0) for _ in range(2))
    rank, count, whole = distributed.get_rank(), distributed.get_world_size(), module
    if how == "copied":
        whole = torch.nn.parallel.DistributedDataParallel(module)
    else:
        for each in (*module.blocks, module):
            fully_shard(each, mesh=mesh()["data"])
        held = sum(each.to_local().numel() for each in module.parameters())
        assert held < 0.6 * sum(each.numel() for each in alone.parameters())
    draw = torch.Generator().manual_seed(0)
    x, goal = normal(6, 3, 16, 16)(draw), normal(6, 10)(draw)
    losses = []
    for model, rows, parts in ((whole, slice(rank, None, count), count), (alone, slice(None), 1)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for _ in range(4):
            optimizer.zero_grad()
            loss = (model(x[rows]) - goal[rows]).square().sum() * parts / len(x)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            optimizer.step()
        losses.append(loss.detach())
    distributed.all_reduce(losses[0])
    torch.testing.assert_close(losses[0] / count, losses[1], rtol=1e-5, atol=1e-6)
    for name, each in module.state_dict().items():
        found = each.full_tensor() if how == "divided" else each
        torch.testing.assert_close(found, alone.state_dict()[name], rtol=1e-4, atol=1e-5)


def strayed() -> None:
    """A wrong position on one process only: it raises there, and torchrun ends the others."""
    graph = tn.layer("E[v,c]: parameter\ny[b,c] = E[t[b],c]", inputs="t", v=4, c=2)
    module = tn.module(graph, seed=0, mesh=mesh(), shard={"b": "data"})
    whole(module(torch.tensor([0, 1, 2, 9])))


# ---------------------------------------------------------------------------- random programs


def at_random(graph: tn.Graph, shapes: dict[str, tuple[int, ...]], seed: int) -> made.Sharded:
    """A graph in placements drawn at random, among all that are valid."""
    devices, numbers = Mesh.of(mesh()), made.in_numbers(graph, {}, shapes)
    leaves = frozenset(leaf.name for leaf in numbers.leaves if leaf.kind != "constant")
    part = part_of(numbers, devices, made._asked(numbers, made._Rules(None), ""), leaves, 8)
    draw = np.random.default_rng(seed)

    def noise() -> Iterator[CostTable]:
        for variable, choices in part.choices.items():
            outs = [getattr(each, "out", each) or ("replicated",) for each in choices]
            whole = [2.0 * outs[n].count("replicated") for n in range(len(outs))]
            yield CostTable((variable,), draw.random(len(choices)) + np.array(whole) * (draw.random() < 0.8))

    tables = [*part.tables, *made._inputs(part), *noise()]
    used = {each for table in tables for each in table.variables}
    solved = eliminated({each: len(found) for each, found in part.choices.items() if each in used}, tables)
    return made.of_choices(part, numbers, solved.choices({}), 0.0)


def own(x: torch.Tensor, place: Any) -> torch.Tensor:
    for axis, each in enumerate(place):
        if isinstance(each, int):
            x = x.chunk(mesh().size(axis), each)[mesh().get_local_rank(axis)]
    return x.detach().clone().requires_grad_(x.is_floating_point())


def gradients(
    made: list[torch.Tensor], seeds: list[torch.Tensor], leaves: list[torch.Tensor]
) -> list[torch.Tensor]:
    pairs = [(y, g) for y, g in zip(made, seeds, strict=True) if y.requires_grad]
    if not pairs or not leaves:
        return [torch.zeros_like(each) for each in leaves]
    found = torch.autograd.grad(
        [y for y, _ in pairs], leaves, [g.to(y.dtype) for y, g in pairs], allow_unused=True
    )
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]


def programs(seed: str, count: str) -> None:
    """Values and gradients of random programs in random placements."""
    done = 0
    for number in range(int(count)):
        case = program(int(seed), number)
        if case.special or case.wrong or 0 in case.sizes.values() or "//" in case.text:
            continue
        arrays = {k: torch.as_tensor(v) for k, v in case.arrays().items()}
        try:
            graph = case.graph()
            shapes = {name: tuple(x.shape) for name, x in arrays.items()}
            made.in_numbers(graph, {}, shapes)
        except tn.TensornetError:  # it is wrong on one device too
            continue
        one_program(graph, arrays, number)
        done += 1
    assert done > int(count) / 2
    if distributed.get_rank() == 0:
        print(done, "programs")


def one_program(graph: tn.Graph, arrays: dict[str, torch.Tensor], number: int) -> None:
    sharded = at_random(graph, {name: tuple(x.shape) for name, x in arrays.items()}, number)
    runs = []
    for which, cut in ((sharded.graph, lambda x, _: own(x, ())), (sharded.local, own)):
        params = {leaf.name: cut(arrays[leaf.name], sharded.places[leaf.name]) for leaf in graph.parameters}
        inputs = [cut(arrays[leaf.name], sharded.places[leaf.name]) for leaf in graph.inputs]
        with collectives.on_mesh(mesh()):
            y = tn.compile(which, backend="torch")(params, *inputs)
        leaves = [x for x in (*params.values(), *inputs) if x.requires_grad]
        runs.append((list(y) if isinstance(y, tuple) else [y], leaves))
    (y, leaves), (z, others) = runs
    agree(z, [own(each, place) for each, place in zip(y, sharded.results, strict=True)])
    draw = torch.Generator().manual_seed(number)
    seeds = [torch.randn(each.shape, generator=draw) for each in y]
    expected = gradients(y, seeds, leaves)
    cut_seeds = [own(g, place) for g, place in zip(seeds, sharded.results, strict=True)]
    names = [
        leaf.name for leaf in (*graph.parameters, *graph.inputs) if arrays[leaf.name].is_floating_point()
    ]
    places = [sharded.places[name] for name in names]
    agree(gradients(z, cut_seeds, others), [own(g, place) for g, place in zip(expected, places, strict=True)])


def started(name: str, *arguments: str, **group: Any) -> None:
    """Calls a function of this file as one process of a group."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    distributed.init_process_group("gloo", **group)
    try:
        globals()[name](*arguments)
    finally:
        distributed.destroy_process_group()


if __name__ == "__main__":
    started(*sys.argv[1:])
