"""Modules whose weights are factors: the layers of any torch network, made smaller in place of themselves."""

from __future__ import annotations

import copy
import functools
import math
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from tensornet.compression.allocating import Allocation, Budget, allotted, flat
from tensornet.compression.compressed import Compressed
from tensornet.compression.compressing import cost_of, included
from tensornet.compression.levels import WEIGHT, Candidate, gathered, multiplied
from tensornet.errors import EquationError, ShapeError
from tensornet.factorizations import Factor, Factored
from tensornet.fitting.approximating import approximate
from tensornet.fitting.metrics import DAMPING, Metric
from tensornet.fitting.weights import Misfit
from tensornet.graph.graph import Graph
from tensornet.graph.instances import of_tensors_named
from tensornet.graph.layers import layer
from tensornet.graph.substitution import substitute
from tensornet.graph.weights import LETTERS, Modes, in_form
from tensornet.protocol import load_backend
from tensornet.ranks import Rank
from tensornet.sizes import evaluate

from .torch_module import make as module_of

__all__ = ["LINEAR", "TURNED", "Kind", "compressed", "kind_of", "restored", "without_scope"]

Module: TypeAlias = torch.nn.Module
Patterns: TypeAlias = str | Sequence[str]

# ---------------------------------------------------------------------------- kinds of layers


@dataclass(frozen=True)
class Kind:
    """A kind of layer: what its weight is called and does.

    Attributes:
        name: what it is called where it is stored.
        parameter: the name of the weight.
        text: what it computes, of x and a weight; nothing where that is the module's own affair.
        columns: the dimensions of the weight that its inputs have.
    """

    name: str
    parameter: str = "weight"
    text: str = ""
    columns: tuple[int, ...] = (1,)

    @property
    def factors(self) -> str:
        """What the module is called that holds the factors."""
        return f"{self.parameter}_factors"


LINEAR = Kind("linear", text=f"y[...,o] = x[...,i] * {WEIGHT}[o,i]")
TURNED = Kind("conv1d of transformers", text=f"y[...,o] = x[...,i] * {WEIGHT}[i,o]", columns=(0,))
EMBEDDING = Kind("embedding")
CONVOLUTION = Kind("convolution")
PROJECTIONS = Kind("projections", parameter="in_proj_weight")


def kind_of(module: Module) -> Kind | None:
    """What kind of layer a module is, if it is one whose weight may be factors."""
    nn = torch.nn
    if isinstance(getattr(module, "weight", None), nn.UninitializedParameter):
        return None
    if isinstance(module, nn.Linear):
        return LINEAR
    if isinstance(module, nn.Embedding):
        return EMBEDDING if module.max_norm is None and not module.sparse else None
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return CONVOLUTION
    if isinstance(module, nn.MultiheadAttention):
        return PROJECTIONS if module.in_proj_weight is not None else None
    if type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers."):
        return TURNED
    return None


# ---------------------------------------------------------------------------- modules with factors


class Factorized:
    """What a layer is besides, whose weight is made of factors; behind it stands the class that the layer had.

    The factors are the parameters of a module beside it, as `fc.weight_factors.U`. The weight itself is computed of
    them whenever it is read.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the layer computes, through its factors where it does nothing but what its class does."""
        module: Any = self
        direct = _DIRECT.get(module._kind.name) if module._is_plain else None
        if direct is not None and len(args) == 1 and not kwargs:
            return direct(module, args[0])
        return super().forward(*args, **kwargs)  # type: ignore[misc]

    def extra_repr(self) -> str:
        """The layer's own, and the equation of its weight."""
        module: Any = self
        own: str = super().extra_repr()  # type: ignore[misc]
        return ", ".join(each for each in (own, str(module._whole.graph.equations[-1])) if each)


def _linear(module: Any, x: Any) -> Any:
    found = module._modules[module._kind.factors](x)
    return found if module.bias is None else found + module.bias


def _embedding(module: Any, x: Any) -> Any:
    found = module._modules[module._kind.factors](x)
    if module.padding_idx is None:
        return found
    return torch.where((x == module.padding_idx)[..., None], module.padding_row, found)


def _convolution(module: Any, x: Any) -> Any:
    """A convolution of fewer channels, and at each place all channels from these."""
    kernels = module._modules[module._kind.factors]()
    if isinstance(kernels, torch.Tensor):
        return module._conv_forward(x, kernels, module.bias)
    alone = (torch.conv1d, torch.conv2d, torch.conv3d)[len(module.kernel_size) - 1]
    places = (1,) * len(module.kernel_size)
    last, core, *first = kernels
    for each in first:
        x = alone(x, each.reshape(*each.shape, *places))
    x = module._conv_forward(x, core, None)
    return alone(x, last.reshape(*last.shape, *places), module.bias)


_DIRECT: dict[str, Callable[[Any, Any], Any]] = {
    LINEAR.name: _linear,
    TURNED.name: _linear,
    EMBEDDING.name: _embedding,
    CONVOLUTION.name: _convolution,
}


def _weight_of(parameter: str) -> property:
    """The weight of a layer, computed of its factors."""

    def read(module: Any) -> torch.Tensor:
        if "_whole" not in module.__dict__:
            raise AttributeError(parameter)
        array: torch.Tensor = module._whole()
        if module._kind is EMBEDDING and module.padding_idx is not None:
            is_padding = torch.arange(len(array), device=array.device) == module.padding_idx
            array = torch.where(is_padding[:, None], module.padding_row, array)
        return array

    return property(read)


@functools.lru_cache(maxsize=256)
def _class_of(base: type, parameter: str) -> type:
    """The class of a layer of factors: that of the layer, of which the weight is computed."""
    own = {"__module__": __name__, parameter: _weight_of(parameter), "__reduce__": _reduced}
    return type(f"Factorized{base.__name__}", (Factorized, base), own)


def _reduced(module: Any) -> tuple[Any, ...]:
    return _bare, (type(module).__mro__[2], module._kind.parameter), dict(module.__dict__)


def _bare(base: type, parameter: str) -> Any:
    made: Any = _class_of(base, parameter)
    return made.__new__(made)


@dataclass(frozen=True)
class Form:
    """The form of a weight, and what computes with it.

    Attributes:
        program: the weight of its factors.
        run: what a layer of its kind computes of them.
    """

    program: Graph
    run: Graph


def form_of(
    kind: Kind, shape: tuple[int, ...], method: str, rank: Rank, modes: Modes | None, whole: bool
) -> Form:
    """What computes a weight of some shape, and what a layer computes with it.

    Args:
        kind: of the layer.
        shape: of the weight.
        method, rank, modes: the form, as `substitute` takes it.
        whole: whether the layer can do with nothing but the weight.
    """
    program, found = in_form(tuple((size,) for size in shape), method, rank, modes)
    if whole or kind is PROJECTIONS:
        return Form(program, program)
    if kind is CONVOLUTION:
        return Form(program, _chain(program, found, shape))
    sizes: dict[str, Any] = dict(zip("io" if kind is TURNED else "oi", shape, strict=True))
    text = kind.text or f"{WEIGHT}[o,i]: parameter\ny[...,i] = {WEIGHT}[k[...],i]"
    dense = layer(text, inputs="x" if kind.text else "k", **sizes)
    made = substitute(dense, {WEIGHT: (method, rank)}, modes=modes)
    return Form(program, without_scope(made))


def without_scope(graph: Graph) -> Graph:
    """The graph whose factors have names without that of the weight."""
    names = {leaf.name: leaf.name.removeprefix(f"{WEIGHT}.") for leaf in graph.parameters}
    leaves = tuple(replace(leaf, name=names.get(leaf.name, leaf.name)) for leaf in graph.leaves)
    return replace(graph, leaves=leaves, body=tuple(of_tensors_named(item, names) for item in graph.body))


def _chain(program: Graph, found: Factored, shape: tuple[int, ...]) -> Graph:
    """A kernel as one that makes fewer channels, and one of a single place; and one such before, if there is one.

    K[o,i,u,v] = Σ last[o,r]·core[r,s,u,v]·first[s,i]; where that takes as many products, the kernel as it is.
    """
    axes = set(LETTERS[: len(shape)])
    sizes = {**dict(zip(LETTERS, shape, strict=False)), **found.ranks}
    last = _end(found.factors, "o", axes)
    if last is None:
        return program
    rest = [factor for factor in found.factors if factor is not last]
    first = _end(rest, "i", axes)
    if first is not None and (set(first.axes) & set(last.axes) or len(rest) == 1):
        first = None
    core = [factor for factor in rest if factor is not first]
    inner, outer = _ranks(last, axes), _ranks(first, axes) if first is not None else ("i",)
    places = LETTERS[2 : len(shape)]
    few = math.prod(sizes[axis] for axis in (*inner, *outer))
    spent = math.prod(sizes[axis] for axis in last.axes) + few * math.prod(shape[2:])
    spent += 0 if first is None else math.prod(sizes[axis] for axis in first.axes)
    if spent >= math.prod(shape):
        return program
    lines = [
        f"last[o,{_joined(inner)}] = {last}",
        f"core[{_joined(inner)},{_joined(outer)},{','.join(places)}] = {' * '.join(map(str, core))}",
        *([] if first is None else [f"first[{_joined(outer)},i] = {first}"]),
    ]
    outputs = ["last", "core", *([] if first is None else ["first"])]
    known: dict[str, Any] = {
        name: size for name, size in sizes.items() if any(name in f.axes for f in found.factors)
    }
    return layer("\n".join(lines), outputs=outputs, **known)


def _end(factors: Sequence[Factor], axis: str, axes: Container[str]) -> Factor | None:
    """The factor that has a dimension and else nothing but ranks, if it alone has it."""
    having = [factor for factor in factors if axis in factor.axes]
    if len(having) != 1 or sum(each in axes for each in having[0].axes) != 1 or len(having[0].axes) < 2:
        return None
    return having[0]


def _ranks(factor: Factor, axes: Container[str]) -> tuple[str, ...]:
    return tuple(axis for axis in factor.axes if axis not in axes)


def _joined(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"({','.join(names)})"


def factorize(module: Any, kind: Kind, form: Form, factors: Mapping[str, torch.nn.Parameter]) -> None:
    """Puts factors in the place of a module's weight; the module stays what it is in all else."""
    dense = module._parameters.pop(kind.parameter)
    if kind is EMBEDDING and module.padding_idx is not None:
        module.register_buffer("padding_row", dense.detach()[module.padding_idx].clone())
    is_plain = type(module).forward in _PLAIN or kind is TURNED
    whole, run = (module_of(graph, params=factors) for graph in (form.program, form.run))
    for name, parameter in factors.items():
        whole._parameters[name] = run._parameters[name] = parameter
    for each in (whole, run):
        each.train(module.training)
    base: Any = type(module)
    module.__class__ = _class_of(base, kind.parameter)
    module.add_module(kind.factors, run)
    module.__dict__.update(_kind=kind, _whole=whole, _is_plain=is_plain)


_PLAIN = frozenset(
    each.forward
    for each in (
        *(torch.nn.Linear, torch.nn.Embedding),
        *(torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d),
    )
)
"""What layers compute that do nothing of their own."""


# ---------------------------------------------------------------------------- networks


@dataclass(eq=False)
class _Holding:
    """A weight, and the layers that hold it.

    Attributes:
        path: its first name.
        weight: the parameter.
        holders: the layers, with their kinds; several where it is tied.
        moments: the sum of x·xᵀ over the rows x that it was multiplied by.
        rows: how many these were in the largest call.
    """

    path: str
    weight: torch.nn.Parameter
    holders: list[tuple[Any, Kind]]
    moments: torch.Tensor | None = None
    rows: int = 0

    @property
    def kind(self) -> Kind:
        """That of the first layer."""
        return self.holders[0][1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the weight."""
        return tuple(self.weight.shape)

    @property
    def dims(self) -> tuple[tuple[int, ...], ...]:
        """Its dimensions, each of one axis."""
        return tuple((size,) for size in self.shape)

    def see(self, kind: Kind, x: torch.Tensor, y: torch.Tensor) -> None:
        """Counts what a layer was given and gave."""
        self.rows = max(self.rows, y.numel() // (y.shape[1] if kind is CONVOLUTION else y.shape[-1]))
        if kind.text and len(self.holders) == 1:
            rows = x.detach().reshape(-1, x.shape[-1]).double()
            found = rows.mT @ rows
            self.moments = found if self.moments is None else self.moments + found

    def candidate(self) -> Candidate:
        """What a budget may be spread over."""
        kind, count = self.kind, len(self.shape)
        columns = tuple(range(1, count)) if kind is CONVOLUTION else kind.columns
        lone = gathered(self.dims) if kind is EMBEDDING else multiplied(self.dims, columns)
        metric = None
        if self.moments is not None:
            metric = Metric(kind.columns, self.moments.cpu().numpy(), DAMPING)
        array = self.weight.detach().cpu()
        return Candidate(self.path, self.dims, lone, array, max(1, self.rows), metric)


def _holdings(module: Module, include: Patterns, exclude: Patterns) -> list[_Holding]:
    """The weights of a network that may become factors, each once."""
    found: dict[int, _Holding] = {}
    for name, each in module.named_modules():
        kind = kind_of(each)
        weight = None if kind is None else each._parameters.get(kind.parameter)
        if kind is None or weight is None or not weight.is_floating_point():
            continue
        path = f"{name}.{kind.parameter}" if name else kind.parameter
        if id(weight) in found:
            found[id(weight)].holders.append((each, kind))
        else:
            found[id(weight)] = _Holding(path, weight, [(each, kind)])
    elsewhere = Counter(id(weight) for _, weight in module.named_parameters(remove_duplicate=False))
    whole = [each for key, each in found.items() if elsewhere[key] == len(each.holders)]
    known = [each.path for each in whole]
    if not known:
        fix = "give one with linear layers, convolutions or embeddings"
        raise EquationError("the network has no weight that may become factors", fix=fix)
    wanted = included(known, include, exclude, "weight that may become factors", "weights")
    return [each for each in whole if each.path in wanted]


def compressed(
    module: Module,
    *,
    parameters: float | None,
    flops: float | None,
    seconds: float | None,
    error: float | None,
    method: str | Sequence[str],
    modes: Modes | None,
    include: Patterns,
    exclude: Patterns,
    uniform: bool,
    calibrate: Any,
    device: str | None,
    progress: Callable[[str, int, int], None] | None,
) -> Compressed:
    """A copy of a network in which some weights are factors; see `tensornet.compress`.

    Raises:
        EquationError: a pattern tells nothing.
        ShapeError: there is not one budget, no forms meet it, or nothing tells how large calls are.
    """
    budget = Budget.of(parameters=parameters, flops=flops, seconds=seconds, error=error)
    network = copy.deepcopy(module)
    holdings = _holdings(network, include, exclude)
    if calibrate is not None:
        _calibrate(network, holdings, calibrate)
    elif budget.kind in ("flops", "seconds"):
        fix = f"give calibrate=, batches of inputs, or a budget of parameters instead of {budget.kind}"
        raise ShapeError("nothing tells by how many rows weights are multiplied", fix=fix)
    candidates = [each.candidate() for each in holdings]
    count = sum(each.numel() for each in network.parameters())
    cost = cost_of(budget, load_backend("torch"), device, modes)
    others = count - sum(each.weight.numel() for each in holdings) if cost is None else 0.0
    allocation = allotted(candidates, budget, flat(method), cost, others, count, modes, uniform, progress)
    misfits = {}
    for each, candidate in zip(holdings, candidates, strict=True):
        told = allocation.weights.get(each.path)
        if told is not None:
            program, _ = in_form(each.dims, *told, modes)
            found = approximate(program, candidate.array, metric=candidate.metric, path=each.path)
            _put(each, *told, modes, found.factors)
            misfits[each.path] = Misfit(found.error, found.output)
    return Compressed(network, None, allocation, misfits)


def restored(module: Module, allocation: Allocation, path: str) -> Module:
    """A copy of a network with factors where an allocation has them, and all values from a safetensors file.

    Raises:
        EquationError: the network has no such weights, or others than the file.
    """
    from safetensors.torch import load_model

    network, weights = copy.deepcopy(module), allocation.weights
    holdings = {each.path: each for each in _holdings(network, list(weights), ())} if weights else {}
    shapes_of = {row.path: row.shape for row in allocation.rows}
    for name in weights:
        if holdings[name].shape != shapes_of[name]:
            fix = "give a module of the structure that was compressed"
            raise EquationError(f"'{name}' has shape {holdings[name].shape}, not {shapes_of[name]}", fix=fix)
    for name, (method, rank) in weights.items():
        holding = holdings[name]
        program, _ = in_form(holding.dims, method, rank, allocation.modes)
        shapes = {
            leaf.name: [int(evaluate(size, program.bound)) for size in leaf.shape]
            for leaf in program.parameters
        }
        _put(
            holding,
            method,
            rank,
            allocation.modes,
            {name: torch.zeros(shape) for name, shape in shapes.items()},
        )
    try:
        load_model(network, path)
    except RuntimeError as error:
        fix = "give a module of the structure that was compressed"
        raise EquationError(f"the module is not that of {path}: {error}", fix=fix) from None
    return network


def _put(
    holding: _Holding, method: str, rank: Rank, modes: Modes | None, factors: Mapping[str, torch.Tensor]
) -> None:
    """Puts factors in the place of a weight wherever it is held."""
    like = holding.weight
    made = {
        name: torch.nn.Parameter(array.to(like.device, like.dtype), requires_grad=like.requires_grad)
        for name, array in factors.items()
    }
    for module, kind in holding.holders:
        whole = kind is CONVOLUTION and module.groups > 1
        factorize(module, kind, form_of(kind, holding.shape, method, rank, modes, whole), made)


def _calibrate(network: Module, holdings: Sequence[_Holding], batches: Any) -> None:
    """Runs a network on batches, and has each weight see what it is multiplied by."""
    hooks = [
        module.register_forward_hook(functools.partial(_seen, holding, kind))
        for holding in holdings
        for module, kind in holding.holders
        if kind is not PROJECTIONS
    ]
    training = network.training
    network.eval()
    try:
        with torch.no_grad():
            for batch in [batches] if isinstance(batches, torch.Tensor | tuple | Mapping) else batches:
                if isinstance(batch, Mapping):
                    network(**batch)
                else:
                    network(*batch if isinstance(batch, tuple | list) else (batch,))
    finally:
        network.train(training)
        for hook in hooks:
            hook.remove()


def _seen(holding: _Holding, kind: Kind, module: Module, args: tuple[Any, ...], result: Any) -> None:
    if args and isinstance(result, torch.Tensor):
        holding.see(kind, args[0], result)
