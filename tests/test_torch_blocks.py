"""Blocks as modules: run alone, hooked, wrapped, replaced and checkpointed as users of torch do."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.utils import parametrizations, parametrize, prune

import tensornet as tn

from .differential import by_numpy

ATTENTION = """
    q[b,i,h,d] = x[b,i,c] * Q[(h,d),c]
    k[b,j,h,d] = x[b,j,c] * K[(h,d),c]
    s[b,h,i,j] = q * k / sqrt(d)
    a[b,h,i,j] = softmax[j](s)
    y[b,i,c]   = sum[h](a * x[b,j,c])
"""
DEPTH = 3


def encoder(dropout: float = 0.0) -> tn.Graph:
    """An encoder of blocks of two layers each, between an embedding and a head."""
    attention = tn.layer(ATTENTION, inputs="x", h=2, d=4, c="D")
    line = "y[b,i,c] = x[b,i,c] + gelu(x[b,i,e] * W[f,e] + u[f]) * Z[c,f]"
    mlp = tn.layer(line, inputs="x", f="2*D", c="D")
    noise = tn.layer(f"y[...] = dropout(x[...], {dropout})", inputs="x")

    def layer(x: Any) -> Any:
        x = mlp(attention(x, scope="attention"), scope="mlp")
        return noise(x) if dropout else x

    block = tn.model(layer, inputs="x[b,i,D]")
    embed = tn.layer("y[b,i,c] = x[b,i,e] * E[c,e]", inputs="x", c="D")
    head = tn.layer("y[b,k] = mean[i](x[b,i,c]) * W[k,c]", inputs="x", k=5)

    def forward(x: Any) -> Any:
        x = embed(x, scope="embed")
        for number in range(DEPTH):
            x = block(x, scope=f"blocks.{number}")
        return head(x, scope="head")

    return tn.model(forward, inputs="x[b,i,e]", e=6, D=8, i=7)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(8, 7, 6, generator=generator), torch.randint(0, 5, (8,), generator=generator)


def trained(module: torch.nn.Module, x: torch.Tensor, target: torch.Tensor) -> None:
    """One step of stochastic gradient descent."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    torch.nn.functional.cross_entropy(module(x), target).backward()
    optimizer.step()


def computed(block: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What a block gives, by the reference, from the parameters that it has now."""
    arrays = {name: each.detach().numpy() for name, each in block.named_parameters()}
    (given,), (result,) = block.graph.inputs, block.graph.outputs
    found = by_numpy(block.graph, {**arrays, given.name: x.detach().numpy()})
    return torch.from_numpy(found[result]).float()


def test_modules_mirror_the_calls_and_hold_the_parameters_by_name() -> None:
    graph = encoder()
    module = tn.module(graph, seed=0)
    assert isinstance(module.blocks, torch.nn.ModuleList)
    assert len(module.blocks) == DEPTH
    assert list(module.state_dict()) == [leaf.name for leaf in graph.parameters]
    assert "blocks.1.mlp.y = " in repr(module)
    assert [name for name, _ in module.named_children()] == ["embed", "blocks", "head"]
    assert sorted(name for name, _ in module.blocks[1].named_parameters()) == [
        "attention.K", "attention.Q", "mlp.W", "mlp.Z", "mlp.u",
    ]  # fmt: skip
    x, _ = data()
    expected = tn.compile(graph, backend="torch")(dict(module.named_parameters()), x)
    assert torch.allclose(module(x), expected, atol=1e-6)


def test_a_block_runs_alone_and_may_be_replaced() -> None:
    module, (x, _) = tn.module(encoder(), seed=0), data()
    y = module.embed(x)
    for block in module.blocks:
        y = block.mlp(block.attention(y))
    assert torch.allclose(module.head(y), module(x), atol=1e-6)
    assert torch.allclose(
        module.blocks[0](module.embed(x)), computed(module.blocks[0], module.embed(x)), atol=1e-5
    )
    module.blocks[1] = torch.nn.Identity()
    y = module.blocks[2](module.blocks[0](module.embed(x)))
    assert torch.allclose(module(x), module.head(y), atol=1e-6)


def test_hooks_fire_on_blocks_at_any_depth() -> None:
    module, (x, _) = tn.module(encoder(), seed=0), data()
    plain, seen = module(x), []
    hooks = [
        module.blocks[1].register_forward_hook(lambda _, given, found: seen.append((given[0], found))),
        module.blocks[1].mlp.register_forward_hook(lambda _, given, found: seen.append((given[0], found))),
        module.embed.register_forward_pre_hook(lambda _, given: seen.append(given)),
    ]
    assert torch.allclose(module(x), plain, atol=1e-6)
    (given,), (inner, result), (whole, last) = seen
    assert given is x
    assert torch.allclose(module.blocks[1].attention(whole), inner, atol=1e-6)
    assert result is last
    for hook in hooks:
        hook.remove()
    module(x)
    assert len(seen) == 3
    module.blocks[2].attention.register_forward_hook(lambda _, given, found: 0 * found)
    assert not torch.allclose(module(x), plain, atol=1e-3)


@pytest.mark.parametrize("how", ["wrapped", "called"])
def test_checkpointed_blocks_have_the_same_gradients(how: str) -> None:
    module, (x, target) = tn.module(encoder(), seed=0), data()
    other = copy.deepcopy(module)
    trained(module, x, target)
    if how == "wrapped":
        for number in range(DEPTH):
            other.blocks[number] = checkpoint_wrapper(other.blocks[number])
        trained(other, x, target)
    else:
        y = other.embed(x)
        for block in other.blocks:
            y = torch.utils.checkpoint.checkpoint(block, y, use_reentrant=False)
        torch.nn.functional.cross_entropy(other.head(y), target).backward()
        torch.optim.SGD(other.parameters(), lr=0.1).step()
    for one, two in zip(module.parameters(), other.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-6)


def test_copies_and_pickles_are_apart() -> None:
    module, (x, target) = tn.module(encoder(), seed=0), data()
    expected = module(x)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(x), expected)
        trained(other, x, target)
        assert torch.equal(module(x), expected)
        assert other.blocks[0] is not module.blocks[0]
        given = module.embed(x)
        assert torch.allclose(other.blocks[0](given), computed(other.blocks[0], given), atol=1e-5)
        assert not torch.allclose(other.blocks[0](given), module.blocks[0](given), atol=1e-5)


def test_compiled_and_exported_whole() -> None:
    module, (x, target) = tn.module(encoder(), seed=0), data()
    expected = module(x)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(x), expected, atol=1e-6)
    fresh = tn.module(encoder(), seed=0)
    assert torch.allclose(torch.compile(fresh, fullgraph=True, backend="aot_eager")(x), expected, atol=1e-6)
    batch = torch.export.Dim("batch", min=2)
    exported = torch.export.export(fresh, (x,), dynamic_shapes=({0: batch},))
    assert torch.allclose(exported.module()(torch.cat([x, x])), torch.cat([expected, expected]), atol=1e-6)
    trained(compiled, x, target)
    assert not torch.allclose(module(x), expected, atol=1e-6)


def test_a_module_moves_and_converts_with_its_blocks() -> None:
    module, (x, _) = tn.module(encoder(), seed=0), data()
    expected = module(x)
    assert torch.allclose(module.double()(x.double()).float(), expected, atol=1e-5)
    assert torch.allclose(module.to(torch.bfloat16)(x.bfloat16()).float(), expected, atol=0.1)


def test_dropout_inside_a_block_goes_by_the_mode_of_its_module() -> None:
    module, (x, _) = tn.module(encoder(dropout=0.5), seed=0), data()
    module.eval()
    assert torch.equal(module(x), module(x))
    module.train()
    assert not torch.allclose(module(x), module(x))
    for block in module.blocks:
        block.eval()
    assert torch.equal(module(x), module(x))


def test_one_scope_called_twice_is_one_module() -> None:
    dense = tn.layer("y[b,o] = x[b,i] * W[o,i]", inputs="x", o=4)
    graph = tn.model(lambda x: dense(dense(x, scope="same"), scope="same"), inputs="x[b,i]", i=4)
    module, calls = tn.module(graph, seed=0), []
    module.same.register_forward_hook(lambda *_: calls.append(1))
    x = torch.ones(2, 4)
    assert torch.allclose(module(x), x @ module.same.W.T @ module.same.W.T, atol=1e-6)
    assert len(calls) == 2


def test_what_stands_in_a_place_is_what_is_computed_with() -> None:
    module, other, (x, _) = tn.module(encoder(), seed=0), tn.module(encoder(), seed=1), data()
    module(x)
    module.head, module.blocks = other.head, other.blocks
    y = module.embed(x)
    for block in other.blocks:
        y = block(y)
    torch.testing.assert_close(module(x), other.head(y))
    module.blocks[0].mlp = other.blocks[2].mlp
    graph = tn.layer("y[b,k] = max[i](x[b,i,c]) * W[k,c]", inputs="x", k=5, c=8)
    module.head = tn.module(graph, seed=2)  # with the same names as the head, and another meaning
    first = other.blocks[2].mlp(other.blocks[0].attention(module.embed(x)))
    expected = module.head(other.blocks[2](other.blocks[1](first)))
    torch.testing.assert_close(module(x), expected)
    assert not torch.allclose(module(x), other.head(y))


def test_what_replaces_a_block_is_not_filled_with_its_tensors() -> None:
    scale = tn.layer("y[b,c] = x[b,d] * W[c,d] * T[c]", inputs="x", c=3, constants={"T": [1.0, 2.0, 3.0]})
    module = tn.module(tn.model(lambda x: scale(scale(x, scope="a"), scope="b"), inputs="x[b,c]", c=3))
    module.b = torch.nn.Linear(3, 3)
    module.double().reset_parameters(0)
    assert sorted(module.state_dict()) == ["a.W", "b.bias", "b.weight"]
    assert module(torch.ones(2, 3, dtype=torch.float64)).dtype == torch.float64


class _Twice(torch.nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


@pytest.mark.parametrize("path", ["blocks.1.mlp", "head"])
@pytest.mark.parametrize("how", ["parametrized", "pruned", "normalised"])
def test_a_parameter_may_be_made_of_others(path: str, how: str) -> None:
    module, (x, _) = tn.module(encoder(), seed=0), data()
    values = {name: each.detach().clone() for name, each in module.named_parameters()}
    owner = module.get_submodule(path)
    if how == "parametrized":
        parametrize.register_parametrization(owner, "W", _Twice())
    elif how == "pruned":
        prune.l1_unstructured(owner, "W", amount=0.5)
    else:
        parametrizations.weight_norm(owner, "W")
        owner.parametrizations.W.original0.data.mul_(3)
    values[f"{path}.W"] = owner.W.detach()
    expected = tn.compile(module.graph, backend="torch")(values, x)
    torch.testing.assert_close(module(x), expected)
    module(x).sum().backward()
    assert all(each.grad is not None for each in owner.parameters())


def test_a_replica_computes_with_its_own_parameters() -> None:
    module, (x, _) = tn.module(encoder(), seed=0), data()
    module(x)
    made = {each: each._replicate_for_data_parallel() for each in module.modules()}
    for each, replica in made.items():
        for name, child in each._modules.items():
            setattr(replica, name, made[child])
        for name, parameter in each._parameters.items():
            setattr(replica, name, 2 * parameter)
    doubled = {name: 2 * each for name, each in module.named_parameters()}
    expected = tn.compile(module.graph, backend="torch")(doubled, x)
    torch.testing.assert_close(made[module](x), expected)


def test_a_module_of_a_recurrence_along_two_axes() -> None:
    text = "R[i,-1] = 9\nR[-1,j] = 9\nR[i,j] = d[i,j] + tanh(minimum(R[i-1,j], R[i,j-1]))"
    layer, d = tn.layer(text, inputs="d"), torch.rand(3, 4, dtype=torch.float64)
    assert torch.equal(tn.module(layer)(d), tn.compile(layer, backend="torch")({}, d))
