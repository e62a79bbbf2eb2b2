"""The PyTorch backend, on CPU and CUDA."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensornet.errors import BackendError
from tensornet.ops.collectives import COLLECTIVES
from tensornet.protocol import Argument, CallCache, Kept, backend_of

from ..array_api import COMMON, CONVOLUTIONS, KERNELS, PLAIN, Plain, processor

__all__ = ["TorchBackend", "as_numpy", "backend"]

templates: Mapping[str, str] = {
    "in_tiles": "in_pieces({0}, {size}, {length}, {axes}, True)",
    **COMMON,
    **KERNELS,
    **CONVOLUTIONS,
    "convolution_bias": "convolution_bias({0}, {1}, {2}, {groups}, {windows})",
    **{name: f"torch.{name}({{0}})" for name in (*PLAIN, "rsqrt", "sigmoid", "relu")},
    **{name: f"F.{name}({{0}})" for name in ("linear", "gelu", "selu", "mish", "softsign", "hardswish")},
    **{name: f"{name}({{0}})" for name in ("sign", "silu", "large_linear", "recomputed", "without_cheap")},
    **{name: f"{name}({{0}}, {{1}})" for name in ("large_matmul", "whole_matmul")},
    **{
        name: f"{name}({{0}}, back={{back}})"
        for name in ("lstm_along", "gru_along", "tanh_along", "relu_along")
    },
    "reciprocal": "torch.reciprocal({0})",  # half as long as 1 / x
    "select": "{0}.select({axis}, {1})",
    "sum": "torch.sum({0}, {axes})",
    "mean": "mean({0}, {axes})",
    "logsumexp": "logsumexp({0}, {axes})",
    **{name: f"torch.{name}({{0}}, {{axis}})" for name in ("softmax", "log_softmax", "prod")},
    "argmax": "torch.max({0}, dim={axis})[1]",  # torch.argmax takes two to four times as long
    "argmin": "torch.min({0}, dim={axis})[1]",
    **{name: f"{name}({{0}}, {{mesh}})" for name in COLLECTIVES},
    "reshape": "{0}.reshape{shape}",
    "permute": "{0}.permute{axes}",
    "contiguous": "{0}.contiguous()",
    "copy": "{0}.clone()",
    "matmul": "torch.matmul({0}, {1})",
    "scaled_dot_product_attention": "scaled_dot_product_attention({0}, {1}, {2}, {more})",
    "signed_attention": "signed_attention({0}, {1}, {2}, {more})",
    "batch_norm": "batch_norm({eps}, {0})",
    "pairwise_distance": "pairwise_distance({0}, {1}, {root})",
    "vecdot": "({0} * {1}).sum(-1)",
    "broadcast": "{0}.expand{shape}",
    "take": "take({0}, {1}, {axis})",
    "diagonal": "{0}.diagonal(dim1={first}, dim2={second})",
    "flip": "{0}.flip({axes})",
    "gather": "gather({0}, {1}, {axis})",
    "scatter_count": "scatter_count({0}, {size}{inside}).to({dtype})",
    "concat": "torch.cat([{0}], dim={axis})",
    "stack": "torch.cat([{0}], dim={axis})",
    "with_vjp": "with_vjp({0}, {1}, {reads}, {gives})",
    "along_recomputed": "along_recomputed({0}, {1}, {2}, {3}, {size}, {axes}, {states}, {results}, {back}, "
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
    "erf": "torch.special.erf({0})",
    "gelu_tanh": 'F.gelu({0}, approximate="tanh")',
    "softplus": "F.softplus({0}, threshold=60)",
    "log_sigmoid": "F.logsigmoid({0})",
    "leaky_relu": "F.leaky_relu({0}, {slope})",
    "elu": "F.elu({0}, {alpha})",
    "hardsigmoid": "F.relu6({0} + 3) / 6",
    "clip": "clip({0}, {1}, {2})",
    "maximum": "binary(torch.maximum, {0}, {1})",
    "minimum": "binary(torch.minimum, {0}, {1})",
    "where": "where({0}, {1}, {2})",
    "dropout": "dropout({0}, {1}, training)",
    "hardmax": "(torch.max({0}, dim={axis}, keepdim=True)[1] == {positions}).to({dtype})",
    "var": "variance({0}, {axes})",
    "std": "deviation({0}, {axes})",
    "norm": "norm({0}, {axes})",
    "argsort": "argsort({0}, {axis})",
    "max": "extreme(True, {0}, {axes})",
    "min": "extreme(False, {0}, {axes})",
}


_PARTS = ("checkpoint", "kernels", "products", "rnn", "signed_attention")
"""The modules whose functions generated code may use."""


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


class TorchBackend(Plain):
    """The PyTorch backend. The generated code is ordinary torch operations, so autograd,
    `torch.compile(fullgraph=True)` and `torch.export` work on it."""

    name = "torch"
    templates = templates

    def namespace(self) -> Mapping[str, Any]:
        torch = _library()
        functions = {name: getattr(_beside(part), name) for part in _PARTS for name in _beside(part).__all__}
        functions = {**_beside("functions").FUNCTIONS, **_beside("collectives").FUNCTIONS, **functions}
        return {**functions, "torch": torch, "F": torch.nn.functional, "math": math}

    def device(self, array: Any = None) -> str:
        if array is not None:
            return str(array.device)
        return str(_library().get_default_device())

    def check_device(self, device: str) -> None:
        if importlib.util.find_spec("torch") is None:
            return  # plans may be made here and run elsewhere
        try:
            _library().device(device)
        except (RuntimeError, TypeError, ValueError):
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
        torch = _library()
        if device.startswith("cuda"):
            self.check_here(device)
            where = torch.cuda.get_device_name(device)
        else:
            where = processor(torch.get_num_threads())
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

    def call_cache(self, most: int) -> CallCache:
        _library()
        found: CallCache = _beside("call_cache").GuardedCache(most, _beside("call_cache").signature)
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
        kept: Callable[..., Kept | None] = _beside("checkpoint").kept
        return kept(make, given, device)

    def synchronize(self, device: str, *made: Any) -> None:
        if device.startswith("cuda"):
            _library().cuda.synchronize(device)

    def module(self, graph: Any, **options: Any) -> Any:
        """A graph as a `torch.nn.Module`, on one device or on a mesh of devices."""
        return _beside("sharding" if "mesh" in options else "module").make(graph, **options)

    def on_mesh(self, mesh: Any) -> Any:
        """A context in which collectives on arrays without values have the sizes of a mesh."""
        return _beside("collectives").on_mesh(mesh)

    @property
    def networks(self) -> Any:
        """The functions that compress and adapt networks of torch."""
        return _beside("networks")


backend = TorchBackend()
