"""The PyTorch backend, on CPU and CUDA."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from tensornet.device.model import packed_with
from tensornet.errors import BackendError, no_positions, outside
from tensornet.protocol import Argument, Kept, backend_of

from ..associative_scan import recurrence
from ..integer_division import floor_divide, remainder
from ..scan import along, gone_along
from ..scatter import rows_told
from ..slicing import in_pieces
from ..templates import KERNELS, OWN, functions
from ..top_k import largest
from ..windows import reach

__all__ = ["TorchBackend", "as_numpy", "backend"]

templates: Mapping[str, str] = {
    **OWN,
    **KERNELS,
    "reshape": "{0}.reshape({shape})",
    "permute": "{0}.permute({axes})",
    "contiguous": "{0}.contiguous()",
    "matmul": "torch.matmul({0}, {1})",
    "large_matmul": "large_matmul({0}, {1})",
    "linear": "F.linear({0})",
    "large_linear": "large_linear({0})",
    "packed_linear": "packed_linear({0})",
    "packed_matmul": "packed_matmul({0}, {1})",
    **{
        packed_with(name): f'packed_linear({{0}}, then="{name}")'
        for name in ("relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh")
    },
    "scaled_dot_product_attention": "F.scaled_dot_product_attention({0}, {1}, {2}, {more})",
    "signed_attention": "signed_attention({0}, {1}, {2}, {more})",
    "whole_matmul": "whole_matmul({0}, {1})",
    "vecdot": "({0} * {1}).sum(-1)",
    "added": "added({0}, {1})",
    "subtracted": "subtracted({0}, {1})",
    "broadcast": "{0}.expand({shape})",
    "within": "within({0}, {size}, {name})",
    "take": "take({0}, {1}, {axis})",
    "grouped_matmul": "grouped_matmul({0}, {1}, {2})",
    "grouped_outer": "grouped_outer({0}, {1}, {2}, {size})",
    "scatter_count": "scatter_count({0}, {size}).to({dtype})",
    "lstm_along": "lstm_along({0}, back={back})",
    "gru_along": "gru_along({0}, back={back})",
    "tanh_along": "tanh_along({0}, back={back})",
    "relu_along": "relu_along({0}, back={back})",
    "concat": "torch.cat([{0}], dim={axis})",
    "stack": "torch.cat([{0}], dim={axis})",
    "with_vjp": "with_vjp({0}, {1}, {reads}, {gives})",
    "recomputed": "recomputed({0})",
    "along_recomputed": "along_recomputed({0}, {1}, {2}, {3}, {size}, {axes}, {states}, {results}, {back}, {last}, "
    "{segment}, {more})",
    "roll": "roll({0}, {shift}, {axes})",
    "pad": "F.pad({0}, {backwards}, value={value})",
    "arange": "torch.arange({0}, device={like}.device)",
    "arange_alone": "torch.arange({0})",
    "onehot": "({0}[..., None] == {positions}).to({dtype})",
    "int64": "{0}.to(torch.int64)",
    "cast": "{0}.to({dtype})",
    "dtype": "torch.{0}",
    "scalar": "number({0}, {dtype}, {like})",
    **functions("torch"),
    "sign": "sign({0})",
    "rsqrt": "torch.rsqrt({0})",
    "erf": "torch.special.erf({0})",
    "sigmoid": "torch.sigmoid({0})",
    "relu": "torch.relu({0})",
    "gelu": "F.gelu({0})",
    "gelu_tanh": 'F.gelu({0}, approximate="tanh")',
    "silu": "F.silu({0})",
    "softplus": "F.softplus({0}, threshold=60)",
    "log_sigmoid": "F.logsigmoid({0})",
    "leaky_relu": "F.leaky_relu({0}, {slope})",
    "elu": "F.elu({0}, {alpha})",
    "selu": "F.selu({0})",
    "mish": "F.mish({0})",
    "softsign": "F.softsign({0})",
    "hardsigmoid": "F.relu6({0} + 3) / 6",
    "hardswish": "F.hardswish({0})",
    "clip": "binary(torch.minimum, binary(torch.maximum, {0}, {1}), {2})",
    "maximum": "binary(torch.maximum, {0}, {1})",
    "minimum": "binary(torch.minimum, {0}, {1})",
    "where": "torch.where({0}, {1}, {2})",
    "dropout": "F.dropout({0}, {1}, training)",
    "hardmax": "(torch.argmax({0}, dim={axis}, keepdim=True) == {positions}).to({dtype})",
    "softmax": "torch.softmax({0}, {axis})",
    "log_softmax": "torch.log_softmax({0}, {axis})",
    "cumsum": "running(torch.cumsum, {0}, {axis}, {back})",
    "cumprod": "running(torch.cumprod, {0}, {axis}, {back})",
    "sum": "torch.sum({0}, {axes})",
    "mean": "torch.mean({0}, {axes})",
    "var": "variance({0}, {axes})",
    "std": "deviation({0}, {axes})",
    "norm": "torch.linalg.vector_norm({0}, dim={axes})",
    "argmax": "torch.argmax({0}, dim={axis})",
    "argmin": "torch.argmin({0}, dim={axis})",
    "argsort": "torch.argsort({0}, dim={axis}, stable=True)",
    "max": "torch.amax({0}, {axes})",
    "min": "torch.amin({0}, {axes})",
    "prod": "torch.prod({0}, {axis})",
    "logsumexp": "torch.logsumexp({0}, {axes})",
}


def _library() -> Any:
    try:
        import torch
    except ImportError:
        raise BackendError("PyTorch is not installed", fix="pip install 'torch>=2.12'") from None
    return torch


@functools.cache
def _beside(name: str) -> Any:
    """A module of this package that imports torch, loaded at its first use."""
    return importlib.import_module(f"{__name__}.{name}")


def _recur(a: Any, b: Any, start: float, back: float) -> Any:
    """y[0] = start, y[j] = a[j-1]·y[j-1] + b[j-1] along the last axis, or with `back` from its end."""
    torch = _library()
    if not isinstance(a, int | float) and not isinstance(b, int | float):
        a, b = torch.broadcast_tensors(a, b)
    return recurrence(a, b, start, back, torch.cat, torch.flip, torch.full_like, torch.cumprod)


def _dropped(kept: Any, x: Any, rate: float, training: bool) -> Any:
    """Dropout with a given mask: x / (1 − rate) where it is kept, else 0. In evaluation, x in the shape of the mask."""
    if training:
        return _library().where(kept, x / (1.0 - rate), 0.0)
    return x if x.shape == kept.shape else _library().where(kept, x, x)


def _top(x: Any, axis: int, size: int) -> Any:
    """The positions of the largest elements, largest first. Of equal elements, the first comes first."""
    torch = _library()
    return largest(
        x, axis, size, lambda x, axis: torch.argsort(x, dim=axis, stable=True), lambda x, axis: x.flip(axis)
    )


def _sign(x: Any) -> Any:
    """−1, 0 or 1, and NaN for NaN, where `torch.sign` gives 0.

    Without a gradient, numbers between −1 and 1 are multiplied in place until they reach ±1. A mask takes longer.
    """
    torch = _library()
    if not x.is_floating_point():
        return torch.sign(x)
    if x.requires_grad:
        return torch.sign(x).masked_fill_(x != x, math.nan)
    half_way = 2.0 ** {torch.float64: 540, torch.float16: 13}.get(
        x.dtype, 75
    )  # two multiplications by it take the smallest number past 1
    return torch.nn.functional.hardtanh_(x.detach().clamp(-1, 1).mul_(half_way).mul_(half_way))


def _divided_down(a: Any, b: Any) -> Any:
    return _library().div(a, b, rounding_mode="floor")


def _finite(value: float, like: Any) -> float:
    """A number clamped to the range of finite numbers in the element type of another tensor."""
    if not like.is_floating_point():
        return value
    info = _library().finfo(like.dtype)
    return float(max(info.min, min(info.max, value)))


def _within(index: Any, size: int, name: str) -> Any:
    """Positions as int64, checked to be integers from 0 to `size` − 1.

    On an accelerator and during tracing, their values cannot be checked. An invalid position becomes one
    that no dimension has, so that a gather fails there instead of reading a neighbour.
    """
    torch = _library()
    if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
        raise no_positions(name, str(index.dtype))
    index = index.to(torch.int64)
    is_fake = isinstance(index, torch._subclasses.fake_tensor.FakeTensor)
    if torch.compiler.is_compiling() or index.device.type != "cpu" or is_fake:
        return torch.where((index >= 0) & (index < size), index, 2**40)
    if index.numel():
        low, high = (int(each) for each in torch.aminmax(index))
        if low < 0 or high >= size:
            raise outside(name, low if low < 0 else high, size)
    return index


def _take(x: Any, index: Any, axis: int) -> Any:
    """The elements at positions along an axis: by rows, or one by one if the axis is the last of several."""
    torch = _library()
    if axis + 1 < x.ndim or x.ndim == 1:
        return torch.index_select(x, axis, index)
    return torch.gather(x, axis, index.expand(*x.shape[:-1], index.shape[0]))


def _windows(x: Any, axis: int, first: int, by: int, apart: int, outer: int, inner: int) -> Any:
    """y[…,p,u,…] = x[…,first + by·p + apart·u,…], as a view."""
    if not outer * inner:
        return x.narrow(axis, 0, 0).reshape(*x.shape[:axis], outer, inner, *x.shape[axis + 1 :])
    last = first + reach(by, apart, outer, inner)
    x = x if (first, last) == (0, x.shape[axis]) else x.narrow(axis, first, last - first)
    seen = x.unfold(axis, reach(by, apart, 1, inner), by)
    return (seen if apart == 1 else seen[..., ::apart]).movedim(-1, axis + 1)


def _scatter_add(positions: Any, x: Any, size: int) -> Any:
    """Rows added up at the given positions: y[b,v,c] = Σ_s x[b,s,c], where positions[b,s] is v.

    Batch and channels may be missing. Rows with a position outside the range 0 to `size` − 1 are dropped.
    """
    torch = _library()
    if x.dtype in (torch.float16, torch.bfloat16):  # not accurate enough for long sums
        return _scatter_add(positions, x.float(), size).to(x.dtype)
    rows, count = rows_told(torch, positions.long(), size)
    batch, channels = positions.shape[:-1], x.shape[positions.ndim :]
    x = x.expand(*positions.shape, *channels).reshape(*rows.shape, *channels)
    either = rows[:1] + x.reshape(-1)[:1]  # under vmap, a tensor written in place needs the batch of both
    made = either.new_zeros((count + 1, *channels), dtype=x.dtype).index_add_(0, rows, x)
    return made[:-1].reshape(*batch, size, *channels)


def _spaced(x: Any, axis: int, first: int, by: int, size: int) -> Any:
    """y[…,first + by·p,…] = x[…,p,…], and 0 elsewhere along an axis of this size."""
    end = first + by * x.shape[axis]
    zeros = x.new_zeros((*x.shape[:axis], size, *x.shape[axis + 1 :]))
    return _library().slice_scatter(zeros, x, axis, first, min(end, size), by)


def _scatter_count(positions: Any, size: int) -> Any:
    """How often each of `size` positions occurs: y[b,v] = Σ_s (positions[b,s] == v)."""
    torch = _library()
    rows, count = rows_told(torch, positions.long(), size)
    made = rows.new_zeros(count + 1).scatter_add_(0, rows, torch.ones_like(rows))
    return made[:-1].reshape(*positions.shape[:-1], size)


def _floating(arrays: Any, otherwise: Any) -> Any:
    """The element type of the first complex tensor, or else of the first floating one."""
    found = [a.dtype for a in arrays if a.is_complex()] + [a.dtype for a in arrays if a.is_floating_point()]
    return found[0] if found else otherwise


def _wide(dtype: Any) -> Any:
    """The real type for a working type: float64 if that is float64 or complex128, else float32."""
    torch = _library()
    return torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32


def _widen(x: Any, dtype: Any) -> Any:
    return x if x.is_complex() else x.to(_wide(dtype))


def _whole_matmul(a: Any, b: Any) -> Any:
    """The matrix product of integers. CUDA has none, so doubles are used there, which are exact below 2⁵³."""
    torch = _library()
    if a.device.type == "cpu":
        return torch.matmul(a, b)
    return torch.matmul(a.to(torch.float64), b.to(torch.float64)).to(torch.int64)


def _number(value: Any, dtype: Any, like: Any) -> Any:
    """A number as a tensor, on the device of another tensor."""
    # filled on the device: a copy from the host would wait for the device, and cannot be part of a CUDA graph
    return _library().full((), value, dtype=dtype, device=None if like is None else like.device)


def _in_pieces(function: Any, size: int, length: int, axes: tuple[int, ...]) -> Any:
    """The results of a function, computed piece by piece. Pieces that autograd records are concatenated at the end:
    each write into a whole tensor would cost the backward pass a copy of it."""

    def empty(like: Any, shape: tuple[int, ...]) -> Any:
        return None if like.requires_grad else like.new_empty(shape)

    return in_pieces(function, size, length, axes, empty, _library().cat)


def _whole_along() -> dict[str, Any]:
    """How `along` splits operands into positions and stacks results. It stacks them at the end, as autograd and
    compilers require."""
    torch = _library()

    def blank(x: Any, axis: int) -> Any:
        return x.new_zeros(x.shape[:axis] + x.shape[axis + 1 :])

    return {"parts": torch.unbind, "blank": blank, "empty": lambda like, size: None, "stacked": torch.stack}


def _along(*call: Any) -> Any:
    """A function called at each position of an axis."""
    return along(*call, **_whole_along())


def _along_recomputed(
    function: Any,
    cut: Sequence[Any],
    states: Sequence[Any],
    rest: Sequence[Any],
    size: int,
    axes: Sequence[int],
    following: Sequence[int],
    results: int,
    back: bool,
    last: bool,
    segment: int,
    recomputed: Any,
    **options: Any,
) -> Any:
    """A function called along an axis, in segments of `segment` positions. Each segment is one recomputed call."""
    count = len(cut)

    def positions(*given: Any, length: int, **options: Any) -> tuple[Any, ...]:
        called = functools.partial(function, **options) if options else function
        pieces, now, others = given[:count], given[count : count + len(states)], given[count + len(states) :]
        wholes, left = gone_along(
            *(called, pieces, now, others, length, axes, following, results, back), **_whole_along()
        )
        return (*wholes, *left)

    made, now = list[Any](), states
    for done in range(0, max(size, 1), segment):
        length = min(segment, size - done)
        first = size - done - length if back else done
        pieces = [x.narrow(axis, first, length) for x, axis in zip(cut, axes, strict=True)]
        found = recomputed(positions, *pieces, *now, *rest, length=length, **options)
        made.append(found[:results])
        now = found[results:]
    wholes = [_library().cat(each) for each in zip(*(made[::-1] if back else made), strict=True)]
    wholes.extend(now if last else ())
    return wholes[0] if len(wholes) == 1 else tuple(wholes)


def _running(function: Any, x: Any, axis: int, back: float) -> Any:
    """A function of the elements up to each position along an axis, or with `back`, of those from it to the last."""
    return function(x.flip(axis), axis).flip(axis) if back else function(x, axis)


def _roll(x: Any, shifts: tuple[int, ...], axes: tuple[int, ...]) -> Any:
    """Elements rolled along axes. Under a compiler, slices are concatenated instead, because it does not know the
    layout of the gradient of `torch.roll`."""
    torch = _library()
    if not torch.compiler.is_compiling():
        return torch.roll(x, shifts, axes)
    for shift, axis in zip(shifts, axes, strict=True):
        size = x.shape[axis]
        at = -shift % size
        x = torch.cat([x.narrow(axis, at, size - at), x.narrow(axis, 0, at)], axis)
    return x


def _binary(function: Any, a: Any, b: Any) -> Any:
    """An elementwise function of two tensors. One may be a number, which gets the element type of the other."""
    torch = _library()
    if not isinstance(a, torch.Tensor):
        a = torch.full((), a, dtype=b.dtype, device=b.device)
    if not isinstance(b, torch.Tensor):
        b = torch.full((), b, dtype=a.dtype, device=a.device)
    return function(a, b)


def _dense(tensor: Any) -> Any:
    """A strided tensor of plain numbers. Sparse tensors are made dense, and quantized ones are dequantized."""
    if tensor.is_nested:
        fix = "pad its parts to one length: torch.nested.to_padded_tensor(tensor, 0.0)"
        raise BackendError("a nested tensor has no shape", fix=fix)
    tensor = tensor if tensor.layout is _library().strided else tensor.to_dense()
    return tensor.dequantize() if tensor.is_quantized else tensor


def as_numpy(tensor: Any) -> Any:
    """A tensor as a NumPy array. Floating types that NumPy does not have, such as bfloat16, become float32."""
    import numpy

    tensor = _dense(tensor.detach()).cpu()
    known = not tensor.is_floating_point() or hasattr(numpy, str(tensor.dtype).removeprefix("torch."))
    return (tensor if known else tensor.float()).numpy()


class TorchBackend:
    """The PyTorch backend. The generated code is ordinary torch operations, so autograd,
    `torch.compile(fullgraph=True)` and `torch.export` work on it."""

    name = "torch"
    templates = templates

    def namespace(self) -> Mapping[str, Any]:
        return {
            "torch": _library(),
            "F": _library().nn.functional,
            "math": math,
            "normalize": _beside("normalize").normalize,
            "variance": _beside("normalize").variance,
            "deviation": _beside("normalize").deviation,
            "recur": _recur,
            "dropped": _dropped,
            "top": _top,
            "within": _within,
            "take": _take,
            "windows": _windows,
            "spaced": _spaced,
            "scatter_add": _scatter_add,
            "scatter_count": _scatter_count,
            "max_pool": _beside("convolution").max_pool,
            "mean_pool": _beside("convolution").mean_pool,
            **_beside("convolution").CONVOLUTIONS,
            "lstm_along": _beside("rnn").lstm_along,
            "gru_along": _beside("rnn").gru_along,
            "tanh_along": _beside("rnn").tanh_along,
            "relu_along": _beside("rnn").relu_along,
            "finite": _finite,
            "sign": _sign,
            "floor_divide": functools.partial(floor_divide, _library(), _divided_down),
            "remainder": functools.partial(remainder, _library(), operator.mod),
            "binary": _binary,
            "floating": _floating,
            "wide": _wide,
            "widen": _widen,
            "whole_matmul": _whole_matmul,
            "number": _number,
            "in_pieces": _in_pieces,
            "along": _along,
            "running": _running,
            "recomputed": _beside("checkpoint").recomputed,
            "along_recomputed": _along_recomputed,
            "roll": _roll,
            "added": _beside("in_place").added,
            "subtracted": _beside("in_place").subtracted,
            "large_matmul": _beside("huge_pages").large_matmul,
            "large_linear": _beside("huge_pages").large_linear,
            "packed_linear": _beside("onednn").packed_linear,
            "packed_matmul": _beside("onednn").packed_matmul,
            "with_vjp": _beside("products").with_vjp,
            "grouped_matmul": _beside("grouped_gemm").grouped_matmul,
            "grouped_outer": _beside("grouped_gemm").grouped_outer,
            "signed_attention": _beside("signed_attention").signed_attention,
        }

    def device(self, array: Any = None) -> str:
        if array is not None:
            return str(array.device)
        return str(_library().get_default_device())

    def check_device(self, device: str) -> None:
        if importlib.util.find_spec("torch") is None:
            return  # plans may be made here and run elsewhere
        try:
            _library().device(device)
        except (RuntimeError, TypeError):
            fix = "use device='cpu' or 'cuda:0'"
            raise BackendError(f"PyTorch has no device '{device}'", fix=fix) from None

    def check_here(self, device: str) -> None:
        """Raises an error if the device is a GPU that this machine does not have."""
        torch = _library()
        self.check_device(device)
        asked = torch.device(device)
        if asked.type == "cuda" and (asked.index or 0) >= torch.cuda.device_count():
            raise BackendError(f"there is no device '{device}' here", fix="use device='cpu'")

    def version(self, device: str) -> str:
        import platform

        torch = _library()
        if device.startswith("cuda"):
            self.check_here(device)
            where = torch.cuda.get_device_name(device)
        else:
            where = f"{platform.processor() or platform.machine()} x{torch.get_num_threads()}"
        return f"torch {torch.__version__} on {where}"

    def asarray(self, array: Any, dtype: str | None = None, device: str | None = None) -> Any:
        torch = _library()
        kind = None if dtype is None else getattr(torch, dtype)
        if not isinstance(array, torch.Tensor) and hasattr(array, "__dlpack__") and hasattr(array, "device"):
            library = backend_of(array).name
            array = array.copy() if library == "numpy" else torch.from_dlpack(array)
            array = array.clone() if library == "jax" else array  # JAX arrays must not be written into
        if isinstance(array, torch.Tensor):
            array = _dense(array)
        if device is not None:
            self.check_here(str(device))
        return torch.as_tensor(array, dtype=kind, device=device)

    def numpy(self, array: Any) -> Any:
        return as_numpy(array)

    def dtype(self, array: Any) -> str:
        return str(array.dtype).removeprefix("torch.")

    def signing(self) -> Callable[[Sequence[Any]], Hashable]:
        _library()
        found: Callable[[Sequence[Any]], Hashable] = _beside("products").signature
        return found

    def autocasts(self, array: Any) -> bool:
        device = getattr(array.device, "type", "cpu")  # an array of another library has no torch device
        try:
            return bool(_library().is_autocast_enabled(device))
        except RuntimeError:  # the device has no autocast
            return False

    def changing(self, arrays: Sequence[Any]) -> tuple[int, ...]:
        if _library().compiler.is_compiling():  # a compiler cannot trace the import below
            return ()
        found: tuple[int, ...] = _beside("products").changing(arrays)
        return found

    def kept(self, make: Callable[..., Any], given: Sequence[Argument], device: str) -> Kept | None:
        kept: Callable[..., Kept | None] = _beside("saved_tensors").kept
        return kept(make, given, device)

    def as_one(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def synchronize(self, device: str, *made: Any) -> None:
        if device.startswith("cuda"):
            _library().cuda.synchronize(device)

    def module(self, graph: Any, **options: Any) -> Any:
        """A graph as a `torch.nn.Module`."""
        return _beside("module").make(graph, **options)

    def compressed(self, module: Any, **options: Any) -> Any:
        """A `torch.nn.Module` with factors in the place of weights."""
        return _beside("networks.compressed").compressed(module, **options)

    def adapted(self, module: Any, weights: Any, **options: Any) -> Any:
        """A `torch.nn.Module` with adapters."""
        return _beside("networks.adapters").adapted(module, weights, **options)

    def merged(self, module: Any) -> Any:
        """A `torch.nn.Module` whose adapters are added to its weights."""
        return _beside("networks.adapters").merged(module)

    def load_peft(self, module: Any, folder: Any) -> Any:
        """A `torch.nn.Module` with the adapters from a folder that peft wrote."""
        return _beside("networks.adapters").load_peft(module, folder)

    def adapters_of(self, module: Any) -> Any:
        """The factors of the adapters, and the form of each adapter."""
        return _beside("networks.adapters").adapters_of(module)

    def with_adapters(self, module: Any, tensors: Any, rows: Any) -> Any:
        """A copy of a module with the given adapters."""
        return _beside("networks.adapters").with_adapters(module, tensors, rows)

    def save_peft(self, module: Any, folder: Any) -> Any:
        """Writes the adapters of a module in the format of peft."""
        return _beside("networks.adapters").save_peft(module, folder)

    def restored(self, module: Any, allocation: Any, path: str) -> Any:
        """A `torch.nn.Module` with factors as in an allocation, and their values from a file."""
        return _beside("networks.compressed").restored(module, allocation, path)


backend = TorchBackend()
