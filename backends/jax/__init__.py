"""The JAX backend: pure functions for `jax.jit`, `jax.grad`, `jax.vmap` and `jax.shard_map`.

`jax.jit` compiles the result of `tensornet.compile` as a whole, or a caller traces it. Some behaviour is that of JAX:

- Without `jax_enable_x64` there are no 64-bit elements: arrays of float64 become float32, and positions and counts
  are int32, exact below 2³¹. Set it for the process, by `jax.config.update` or `JAX_ENABLE_X64=1`: constants are
  computed in a separate thread, where a `with` block has no effect.
- Positions are checked if they have values. While a transform traces, and in a loop, they have none. A read at a
  wrong position then gives NaN or the least integer, and an addition at one is dropped.
- Subnormal numbers count as 0.
- A pure function has no random numbers of its own, so dropout raises an error in training: give its mask as an input.
- XLA divides by a number by multiplying with its reciprocal, which may differ in the last bit. Integers are divided
  exactly.
- Arrays stay on the devices where JAX puts them, sharded or not. A device is named by its kind, `cpu` or `gpu`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from tensornet.errors import BackendError
from tensornet.ops.collectives import COLLECTIVES
from tensornet.protocol import backend_of

from ..array_api import CONVOLUTIONS, KERNELS, Plain, processor, standard

__all__ = ["JaxBackend", "backend"]

templates: Mapping[str, str] = {
    **standard("jnp"),
    **KERNELS,
    **CONVOLUTIONS,
    "relu": "jax.nn.relu({0})",
    **{name: f"{name}({{0}}, {{mesh}})" for name in COLLECTIVES},
    "rsqrt": "jax.lax.rsqrt({0})",
    "within": "within({0}, {size}, {name}, {past})",
    "take": 'jnp.take({0}, {1}, axis={axis}, mode="fill")',
    "pad": "jnp.pad({0}, {pairs}, constant_values={value})",
    "arange": "jnp.arange({0})",
    "int64": "whole({0})",
    "dtype": 'element("{0}")',
    "average_hardmax": "average_hardmax({0}, {axis}, {positions}, {dtype})",
    "average_hardmin": "average_hardmax(-{0}, {axis}, {positions}, {dtype})",
    **{name: f"jax.nn.{name}({{0}}, axis={{axis}})" for name in ("softmax", "log_softmax")},
    "logsumexp": "jax.nn.logsumexp({0}, axis={axes})",
    "norm": "jnp.linalg.vector_norm({0}, axis={axes})",
}


def _library() -> Any:
    try:
        import jax
    except ImportError:
        raise BackendError("JAX is not installed", fix="pip install 'jax>=0.6.1'") from None
    return jax


def _beside(name: str) -> Any:
    """A module of this package that imports JAX, loaded at its first use."""
    _library()
    return importlib.import_module(f"{__name__}.{name}")


_DEVICE = re.compile(r"(cpu|gpu|cuda|rocm|tpu)(?::(\d+))?")


class JaxBackend(Plain):
    """Arrays of JAX; the generated code is pure, so every transform of JAX works on it."""

    name = "jax"
    templates = templates

    def namespace(self) -> Mapping[str, Any]:
        return {**_beside("functions").NAMESPACE, **_beside("sharding").FUNCTIONS}

    def sharded(self, graph: Any, **options: Any) -> Any:
        """A graph as a function on a mesh of devices."""
        return _beside("sharding").ShardedFunction(graph, self, **options)

    def device(self, array: Any = None) -> str:
        jax = _library()
        if array is None or isinstance(array, jax.core.Tracer):
            return str(jax.default_backend())
        return str(next(iter(array.devices())).platform)

    def check_device(self, device: str) -> None:
        if not isinstance(device, str) or not _DEVICE.fullmatch(device):
            raise BackendError(f"JAX has no device '{device}'", fix="use device='cpu' or 'gpu:0'")

    def version(self, device: str) -> str:
        import os

        found = _device(device)
        where = processor(os.cpu_count()) if found.platform == "cpu" else found.device_kind
        return f"jax {_library().__version__} on {where}"

    def asarray(self, array: Any, dtype: str | None = None, device: str | None = None) -> Any:
        jax = _library()
        kind = None if dtype is None else _asked(dtype)
        put = None if device in (None, self.device()) else _device(str(device))
        if isinstance(array, jax.Array):
            array = array if kind is None else array.astype(kind)
            return array if put is None else jax.device_put(array, put)
        if kind is None and str(getattr(array, "dtype", "")).endswith("bfloat16"):
            kind = _beside("functions").element("bfloat16")
        import numpy

        held = numpy.array(backend_of(array).numpy(array), dtype=kind)  # jax.numpy.array compiles each shape
        with jax.ensure_compile_time_eval():  # the array has values, even inside a trace
            return jax.device_put(held, put)

    def numpy(self, array: Any) -> Any:
        import numpy

        found = numpy.array(array)
        return found if found.dtype.kind in "biufc" else found.astype(numpy.float32)

    def as_one(self, function: Callable[..., Any]) -> Callable[..., Any]:
        found: Callable[..., Any] = _beside("functions").as_one(function)
        return found

    def synchronize(self, device: str, *made: Any) -> None:
        _library().block_until_ready(made)


def _asked(dtype: str) -> Any:
    """The element type of a name; raises a BackendError if JAX does not have it."""
    found = _beside("functions").element(dtype)
    if str(found) != dtype:
        raise BackendError(
            f"JAX has no {dtype} unless jax_enable_x64 is on",
            fix="jax.config.update('jax_enable_x64', True) at the start of the program, for all of it",
        )
    return found


def _device(name: str) -> Any:
    """The device of a name; raises a BackendError if it is not available."""
    kind, _, number = name.partition(":")
    try:
        return _library().devices(kind)[int(number or 0)]
    except (RuntimeError, IndexError):
        raise BackendError(f"there is no device '{name}' here", fix="use device='cpu'") from None


backend = JaxBackend()
