"""Factorized layers: linear, convolution and embedding layers with factors as weights."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import torch

from tensornet.compression.levels import WEIGHT
from tensornet.errors import EquationError, ShapeError
from tensornet.frontend.layers import layer
from tensornet.graph.graph import Graph
from tensornet.weights.equations import LETTERS, Modes, bits_of_ranks, formed, rounding_of
from tensornet.weights.factorizations import Factor, Factored, Rank

from ..module import held_value
from ..module import make as module_of
from ..products import is_eager, is_recorded
from .rounded import Kept, Rounded, by_columns, tensors_in
from .running import fastest

Module: TypeAlias = torch.nn.Module
Held: TypeAlias = torch.nn.Parameter | Rounded

# ---------------------------------------------------------------------------- kinds of layers


@dataclass(frozen=True)
class Kind:
    """A kind of layer: the name and the role of its weight.

    Attributes:
        name: identifies the kind.
        parameter: the name of the weight.
        text: the equation of the result from the input and the weight. Empty if the module itself computes it.
        columns: the dimensions of the weight that are dimensions of the input; none if rows are looked up.
        input: the name of the input in the equation.
    """

    name: str
    parameter: str = "weight"
    text: str = ""
    columns: tuple[int, ...] = (1,)
    input: str = "x"

    @property
    def factors(self) -> str:
        """The name of the submodule that holds the factors."""
        return f"{self.parameter}_factors"

    @property
    def is_whole(self) -> bool:
        """Whether the layer computes with the whole weight, which factors make at each call."""
        return self.name == "whole"


LINEAR = Kind("linear", text=f"y[...,o] = x[...,i] * {WEIGHT}[o,i]")
TURNED = Kind("conv1d of transformers", text=f"y[...,i] = x[...,o] * {WEIGHT}[o,i]", columns=(0,))
EMBEDDING = Kind("embedding", text=f"y[...,i] = {WEIGHT}[k[...],i]", columns=(), input="k")
CONVOLUTION = Kind("convolution")
WHOLE = functools.partial(Kind, "whole")
"""The kinds of layers that compute with the whole weight."""

LINEARS = LINEAR, TURNED

KINDS: Mapping[Any, Kind] = {
    torch.nn.Linear: LINEAR,
    torch.nn.Embedding: EMBEDDING,
    torch.nn.modules.conv._ConvTransposeNd: WHOLE(columns=(0,)),
    torch.nn.modules.conv._ConvNd: CONVOLUTION,
    torch.nn.EmbeddingBag: WHOLE(columns=()),
    torch.nn.Bilinear: WHOLE(columns=(1, 2)),
    torch.nn.MultiheadAttention: WHOLE("in_proj_weight"),
}
"""The kinds of torch's layers."""

UNCALLED = torch.nn.modules.linear.NonDynamicallyQuantizableLinear
"""The projection of the results of attention, which is not called: a function reads its weight."""

READING = (UNCALLED, *(layer for layer, kind in KINDS.items() if kind.is_whole))
"""The layers that read their whole weight in each call, and do not write to it."""

TYPES = torch.float16, torch.bfloat16, torch.float32, torch.float64
"""The types of such parameters."""

LEAST = 1024
"""The least elements of a parameter of another module that may become factors."""


def kinds_of(module: Module) -> list[Kind]:
    """The kinds of the weights of a module: that of its layer, and of other parameters, which it reads as a whole."""
    nn = torch.nn
    own = None if isinstance(module, torch.jit.ScriptModule) else kind_of(module)
    found = [] if own is None else [own]
    if isinstance(module, nn.RNNBase | torch.jit.ScriptModule):
        return found
    known = {each.parameter for each in found} | ({"weight"} if isinstance(module, tuple(KINDS)) else set())
    for name, each in module._parameters.items():
        if each is None or isinstance(each, nn.UninitializedParameter) or name in known or each.ndim < 2:
            continue
        if each.numel() >= LEAST and min(len(each), each[0].numel()) > 1 and each.dtype in TYPES:
            found.append(WHOLE(name))
    return found


def kind_of(module: Module) -> Kind | None:
    """The kind of a layer, or None if its weight cannot be replaced by factors."""
    if isinstance(module._parameters.get("weight"), torch.nn.UninitializedParameter):
        return None
    if type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers."):
        return TURNED
    found = next((kind for layer, kind in KINDS.items() if isinstance(module, layer)), None)
    is_table = isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag)
    return None if is_table and (module.max_norm is not None or module.sparse) else found


# ---------------------------------------------------------------------------- modules with factors


class Whole:
    """A mixin for a module with factorized weights. The module's own class comes next among the base classes.

    The factors are the parameters of a submodule, such as `fc.weight_factors.U`. A weight itself is computed from
    them at each read.
    """

    def extra_repr(self) -> str:
        """The module's own text, and the equations of its weights, where these are only their factors."""
        module: Any = self
        wholes = (each for name, each in module._wholes.items() if name not in module._parameters)
        texts = super().extra_repr(), *(str(each.program.graph.equations[-1]) for each in wholes)  # type: ignore[misc]
        return ", ".join(filter(None, texts))

    def train(self, mode: bool = True) -> Any:
        """Training mode, or evaluation mode. What was kept is made again."""
        module: Any = self
        for each in module._wholes.values():
            each.kept.clear()
        return super().train(mode)  # type: ignore[misc]


class Factorized(Whole):
    """The same for a layer that computes with the factors.

    With an adapter, the weight W₀ stays a parameter, and s·∏ factors is added to it.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the layer in the fastest way if its `forward` is the standard one, else with its weight."""
        held = self.__dict__
        if len(args) != 1 or kwargs or held["_run"] is None:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        x = args[0]
        if held["training"] or torch.is_grad_enabled() or is_recorded():  # which may be at other sizes
            return held["_usual"](self, x)
        return held["_faster"].get(x.numel().bit_length(), _measured)(self, x)


Way: TypeAlias = Callable[[Any, Any], Any]
"""Computes the result of a layer from the input."""

MOST = 1 << 22
"""The most elements of a weight that is kept beside its factors: by larger ones factors are faster."""


def _measured(module: Any, x: Any) -> Any:
    """The fastest way at about so many rows, by the clock on the CPU, and what it makes."""
    size, usual = x.numel(), module._usual
    if not size or not x.is_cpu or not is_eager(x):
        return usual(module, x)
    ways, integers = [usual], module.__dict__.get("_integers")
    if usual is _by_factors and "weight" not in module._parameters and module.weight.numel() <= MOST:
        ways.append(_by_whole)
    if integers is not None and integers.may_pay(size // x.shape[-1]):
        ways.append(_by_integers)
    alike = size.bit_length(), x.dtype, module._kind, usual, *(each.shape for each in tensors_in(module))
    way = module._faster[size.bit_length()] = fastest(ways, lambda each: each(module, x), alike)
    if _by_whole not in module._faster.values():
        module._wholes["weight"].kept.clear()
    return way(module, x)


def _by_factors(module: Any, x: Any) -> Any:
    """By the factors."""
    return module._run(module, x, None)


def _by_whole(module: Any, x: Any) -> Any:
    """By the whole weight, which calls without gradients keep."""
    lone = module._wholes["weight"].lone
    whole = (
        _kept(module, "weight") if lone is None else module._modules[module._place]._modules[lone].forward()
    )
    return module._run(module, x, whole)


def _by_integers(module: Any, x: Any) -> Any:
    """By kernels that round inputs, where these take them."""
    made = module.__dict__["_integers"].linear(module, x) if is_eager(x) else None
    return module._usual(module, x) if made is None else made


def _linear(module: Any, x: Any, whole: torch.Tensor | None) -> Any:
    linear, held = torch.nn.functional.linear, module._parameters
    bias = held["bias"] if held else module.bias  # replicas have no parameters
    is_turned = module._kind.name == TURNED.name
    # rows that do not lie one after another are multiplied in two steps, if nothing needs gradients
    x = x if x.ndim == 2 else x.contiguous()
    if whole is not None:
        return linear(x, whole.mT if is_turned else whole, bias)
    factors, weight = module._modules[module._place], held.get("weight")
    own = bias if weight is None else None
    if module._is_low_rank:
        u, v = factors_of(module)
        last, first = (v.mT, u.mT) if is_turned else (u, v)
        found = linear(linear(x, first), last, own)
    else:
        found = factors(x)
        found = found if own is None else found + own.to(found.dtype)
    if weight is None:
        return found
    y = linear(x, weight.mT if is_turned else weight, bias)
    return y.add(found.to(y.dtype), alpha=module._scale)


def factors_of(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """U and V of a layer of low rank."""
    held = layer._modules[layer._place]
    return held_value(held.U), held_value(held.V)


def _embedding(module: Any, x: Any, whole: torch.Tensor | None) -> Any:
    found = module._modules[module._place](x) if whole is None else torch.nn.functional.embedding(x, whole)
    if module.padding_idx is None:
        return found
    return torch.where((x == module.padding_idx)[..., None], module.padding_row, found)


def _convolution(module: Any, x: Any, whole: torch.Tensor | None) -> Any:
    """A convolution with fewer channels, then a pointwise one to all output channels. A pointwise one may come before
    it. All groups share the kernels except the last."""
    kernels = module._modules[module._place]() if whole is None else whole
    if isinstance(kernels, torch.Tensor):
        return _convolved(module, x, kernels, module.bias)
    alone = (torch.conv1d, torch.conv2d, torch.conv3d)[len(module.kernel_size) - 1]
    places, groups = (1,) * len(module.kernel_size), module.groups
    last, core, *first = kernels
    for each in first:
        x = alone(x, each.repeat(groups, 1).reshape(-1, each.shape[1], *places), groups=groups)
    x = _convolved(module, x, core.repeat(groups, *(1 for _ in core.shape[1:])), None)
    return alone(x, last.reshape(*last.shape, *places), module.bias, groups=groups)


def _convolved(module: Any, x: Any, kernel: Any, bias: Any) -> Any:
    """The convolution by another kernel. One along a single axis of images is faster if this axis is the last one."""
    is_column = kernel.ndim == 4 and kernel.shape[3] == 1 == x.shape[-1] and x.device.type == "cpu"
    if not is_column or module.padding_mode != "zeros":
        return module._conv_forward(x, kernel, bias)
    given = (module.stride, module.padding, module.dilation)
    turned: list[Any] = [each if isinstance(each, str) else each[::-1] for each in given]
    return torch.conv2d(x.mT, kernel.mT, bias, turned[0], turned[1], turned[2], module.groups).mT


_RUN = {LINEAR: _linear, TURNED: _linear, EMBEDDING: _embedding, CONVOLUTION: _convolution}
"""The functions that compute a layer from its input, and from its whole weight or, without one, from its factors."""


class _Made(NamedTuple):
    """How the weight of a module is made.

    Attributes:
        program: multiplies the factors.
        place: the name of the submodule that holds them.
        blank: a tensor of the shape of the weight; None where calls read the weight as a whole.
        lone: the name of the one factor, if the weight is only rounded.
        kept: the weight, in calls without gradients.
    """

    program: Any
    place: str
    blank: torch.Tensor | None
    lone: str | None
    kept: Kept[torch.Tensor]


def _whole_of(module: Any, parameter: str) -> torch.Tensor:
    """The weight of a layer, computed from its factors."""
    program, place, _, lone, _ = module._wholes[parameter]
    factors = [held_value(getattr(module._modules[place], leaf.name)) for leaf in program.graph.inputs]
    array: torch.Tensor = factors[0]
    if lone is None:
        array = program(*factors).to(array.dtype).contiguous()  # as a parameter is, under autocast too
    kind = module.__dict__.get("_kind")
    if kind == EMBEDDING and parameter == kind.parameter and module.padding_idx is not None:
        is_padding = torch.arange(len(array), device=array.device) == module.padding_idx
        array = torch.where(is_padding[:, None], module.padding_row, array)
    base: torch.Tensor | None = module._parameters.get(parameter)
    return array if base is None else base.add(array.to(base.dtype), alpha=module._scale)


def _kept(module: Any, parameter: str) -> torch.Tensor:
    """The same; calls without gradients keep it while no factor changes, if it is read again."""
    if torch.is_grad_enabled() or is_recorded():
        return _whole_of(module, parameter)
    held = module.__dict__
    _, place, _, lone, known = held["_wholes"][parameter]
    base = held["_parameters"].get(parameter), held["_buffers"].get("padding_row")
    tensors = [*tensors_in(held["_modules"][place]), *(each for each in base if each is not None)]
    if torch.is_autocast_enabled(tensors[0].device.type):
        return _whole_of(module, parameter)

    def make() -> torch.Tensor:
        made = _whole_of(module, parameter)
        return by_columns(made) if lone is None and held.get("_kind") == LINEAR else made

    found: torch.Tensor = known.read_again(tensors, held["training"], make)
    return found


def _weight_of(parameter: str) -> property:
    """A property: the weight of a layer, computed from its factors. As a parameter is, it is read only when used."""

    def read(module: Any) -> torch.Tensor:
        if parameter not in module.__dict__.get("_wholes", ()):
            raise AttributeError(parameter)
        _, place, blank, *_ = module._wholes[parameter]
        if blank is None or is_recorded():
            return _kept(module, parameter)

        def like() -> torch.Tensor:
            base: torch.Tensor | None = module._parameters.get(parameter)
            return base if base is not None else next(module._modules[place].parameters())

        if module.__dict__.get("_place") == place:  # whose calls need no whole weight
            return Lazy.of(blank, functools.partial(_kept, module, parameter), like)
        made = _kept(module, parameter)
        return Lazy.of(blank, lambda: made, like)

    return property(read)


@dataclass(frozen=True)
class Form:
    """The graphs of a factorized weight.

    Attributes:
        program: computes the weight from its factors.
        run: the part of the layer's computation that reads the factors.
    """

    program: Graph
    run: Graph


def form_of(
    kind: Kind, shape: tuple[int, ...], method: str, rank: Rank, modes: Modes | None, groups: int = 1
) -> Form:
    """The graphs for a weight of this shape. Those of a rounded form read factors of real numbers.

    Args:
        kind: of the layer.
        shape: of the weight.
        method, rank, modes: the form, as for `substitute`.
        groups: of a convolution.
    """
    method, rounding = rounding_of(method)
    modes = 1 if rounding is not None and method == "dense" else modes
    if rounding is not None and rounding.bits is None:
        rank = len(bits_of_ranks(rank))
    form = formed(tuple((size,) for size in shape), method, rank, modes)
    program = form.program
    if kind.is_whole:
        return Form(program, program)
    if kind == CONVOLUTION:
        return Form(program, _chain(program, form.product, shape, groups))
    sizes: dict[str, Any] = {**form.sizes}
    return Form(
        program, layer(f"{WEIGHT}[{form.left}] = {form.product}\n{kind.text}", inputs=kind.input, **sizes)
    )


def dense(kind: Kind, shape: tuple[int, ...]) -> Graph:
    """A linear layer with its whole weight."""
    sizes: dict[str, Any] = dict(zip("oi", shape, strict=True))
    return layer(kind.text, inputs=kind.input, **sizes)


def _chain(program: Graph, found: Factored, shape: tuple[int, ...], groups: int) -> Graph:
    """A kernel split into one with fewer channels and a pointwise one after it, and maybe a pointwise one before it.

    K[o,i,u,v] = Σ last[o,r]·core[r,s,u,v]·first[s,i]. The kernel stays whole if the split takes as many products, or
    if several factors hold parts of the output channels. With groups, o counts the channels of all, i those of one.
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
    spent = math.prod(sizes[axis] for axis in last.axes) + groups * few * math.prod(shape[2:])
    spent += 0 if first is None else groups * math.prod(sizes[axis] for axis in first.axes)
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


def splits_output(shape: tuple[int, ...], method: str, modes: Modes | None) -> bool:
    """Whether no factor of a kernel in this form has exactly the output channels and ranks as its axes."""
    try:
        found = formed(tuple((size,) for size in shape), method, 1, modes).product
    except ShapeError:  # the form does not fit this shape
        return False
    return _end(found.factors, "o", set(LETTERS[: len(shape)])) is None


def _end(factors: Sequence[Factor], axis: str, axes: Container[str]) -> Factor | None:
    """The only factor with an axis, if its other axes are ranks, at least one. Else None."""
    having = [factor for factor in factors if axis in factor.axes]
    if len(having) != 1 or sum(each in axes for each in having[0].axes) != 1 or len(having[0].axes) < 2:
        return None
    return having[0]


def _ranks(factor: Factor, axes: Container[str]) -> tuple[str, ...]:
    return tuple(axis for axis in factor.axes if axis not in axes)


def _joined(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"({','.join(names)})"


def factorize(module: Any, kind: Kind, form: Form, factors: Mapping[str, Held]) -> None:
    """Puts factors in the place of a module's weight, in place. Nothing else in the module changes."""
    weight = module._parameters[kind.parameter]
    if kind == EMBEDDING and module.padding_idx is not None:
        module.register_buffer("padding_row", weight.detach()[module.padding_idx].clone())
    attach(module, kind, form, factors, Whole if kind.is_whole else Factorized, kind.factors)
    del module._parameters[kind.parameter]


def attach(
    module: Any, kind: Kind, form: Form, factors: Mapping[str, Held], besides: Any, place: str
) -> None:
    """Gives a module a submodule with factors, under the name `place`, and the mixin that computes with them."""
    is_plain = type(module).forward in _PLAIN or kind == TURNED
    shape = module._parameters[kind.parameter].shape
    blank = None if isinstance(module, READING) else torch.empty(shape, device="meta")
    # its factors are inputs, because another module holds them and may change them
    leaves = tuple(replace(leaf, kind="input", start=None) for leaf in form.program.leaves)
    numbers = {name: each().detach() if isinstance(each, Rounded) else each for name, each in factors.items()}
    whole, run = module_of(replace(form.program, leaves=leaves)), module_of(form.run, params=numbers)
    for name, each in factors.items():
        del run._parameters[name]
        if isinstance(each, Rounded) and kind == LINEAR and blank is not None:
            each.lies = by_columns
        setattr(run, name, each)
    run.train(module.training)
    first: tuple[Any, Any, tuple[str, ...]] = (besides, type(module), ())
    former, base, names = getattr(type(module), "_made_of", first)
    besides = former if besides is Whole else besides
    module.__class__ = _class_of(besides, base, (*names, kind.parameter))
    module.add_module(place, run)
    *others, last = factors.items()
    lone = None if others or not isinstance(last[1], Rounded) else last[0]
    made = _Made(whole, place, blank, lone, Kept[torch.Tensor]())
    module.__dict__.setdefault("_wholes", {})[kind.parameter] = made
    if not kind.is_whole:
        is_matrices = factors.keys() == {*"UV"} and all(each.ndim == 2 for each in numbers.values())
        usual = _by_factors if lone is None else _by_whole
        own = {"_run": _RUN[kind] if is_plain else None, "_usual": usual, "_is_low_rank": is_matrices}
        module.__dict__.update(own, _kind=kind, _place=place, _faster={})


def detach(module: Any) -> None:
    """Undoes `attach`. The weight stays in the parameters of the module."""
    _, base, names = type(module)._made_of
    others = tuple(name for name in names if name != module._kind.parameter)
    module.__class__ = _class_of(Whole, base, others) if others else base
    del module._modules[module._place], module._wholes[module._kind.parameter]
    own = "_run", "_usual", "_is_low_rank", "_kind", "_place", "_faster"
    for name in (*own, *(() if others else ("_wholes",))):
        del module.__dict__[name]


@functools.lru_cache(maxsize=256)
def _class_of(besides: Any, base: type, names: tuple[str, ...]) -> type:
    """A class with a mixin, and with weights as properties. It is created once, and again by loading a pickle."""
    own = {"__module__": besides.__module__, "__reduce__": _reduced, "_made_of": (besides, base, names)}
    own |= {name: _weight_of(name) for name in names}
    return type(f"{besides.__name__}{base.__name__}", (besides, base), own)


def _reduced(module: Any) -> tuple[Any, ...]:
    return _bare, type(module)._made_of, dict(module.__dict__)


def _bare(besides: Any, base: type, names: tuple[str, ...]) -> Any:
    made: Any = _class_of(besides, base, names)
    return made.__new__(made)


_PLAIN = frozenset(
    each.forward
    for each in (*(torch.nn.Linear, torch.nn.Embedding), *(torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d))
)
"""The standard `forward` functions of torch's layers."""


# ---------------------------------------------------------------------------- lazy tensors


_TENSOR = torch.Tensor

_SHAPE = frozenset(
    [
        *(getattr(_TENSOR, name).__get__ for name in ("shape", "ndim")),
        *(_TENSOR.size, _TENSOR.dim, _TENSOR.numel, _TENSOR.__len__),
        *(_TENSOR.is_floating_point, _TENSOR.is_complex),
    ]
)
"""What tells the shape, or that numbers are real."""

_LIKE = frozenset(getattr(_TENSOR, name).__get__ for name in ("dtype", "device"))

_READS = frozenset(["requires_grad_", "__invert__", "__int__", "__index__"])
"""Methods with names like those that write."""


class Lazy(_TENSOR):
    """A weight of factors. Its shape, type and device multiply no factors, and nothing may write to it."""

    _make: Callable[[], torch.Tensor]
    _like: Callable[[], torch.Tensor]

    @staticmethod
    def of(blank: torch.Tensor, make: Callable[[], torch.Tensor], like: Callable[[], torch.Tensor]) -> Lazy:
        """A lazy tensor.

        Args:
            blank: a tensor of the same shape on the device "meta", so that what reads no values by `make` fails.
            make: makes its values.
            like: gives a tensor of its type on its device.
        """
        found = blank.as_subclass(Lazy)
        found._make, found._like = make, like
        return found

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs:
            if isinstance(kwargs.get("out"), Lazy) or (not args and _writes(func)):
                raise _unwritten(func)
            kwargs = {key: _made(each) for key, each in kwargs.items()}
        if args and type(first := args[0]) is Lazy:
            if func in _SHAPE:
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args)
            if func in _LIKE:
                return func(first._like())
            if func == _TENSOR.data.__get__:  # type: ignore[attr-defined]
                return cls.of(first.as_subclass(_TENSOR), lambda: first._make().detach(), first._like)
            if _writes(func):
                raise _unwritten(func)
        return func(*[_made(each) for each in args], **(kwargs or {}))


@functools.lru_cache(maxsize=256)
def _writes(func: Any) -> bool:
    """Whether a method writes to its tensor."""
    name = getattr(func, "__name__", "")
    is_special = name.startswith("__")
    return name not in _READS and (name.startswith(("__set", "__i")) if is_special else name.endswith("_"))


def _unwritten(func: Any) -> EquationError:
    return EquationError(
        f"'{func.__name__}' writes to a weight that factors make, which would be lost",
        fix="write to its factors, or compress with exclude= the name of this weight",
    )


def _made(found: Any) -> Any:
    """An argument with values in the place of lazy tensors."""
    if type(found) is Lazy:
        return found._make()
    if type(found) in (tuple, list) and Lazy in map(type, found):
        return type(found)(map(_made, found))
    return found
