"""Region compilation: a function of elements and rows that inductor compiles as one kernel, in a process of its own.

A region runs as written until its kernel is there, so no call waits for a compiler. Kernels are kept on disk. Without a
compiler, all calls run as written.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import inspect
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import torch

from tensornet.files import cache_folder, is_own, whole
from tensornet.planning.progress import say

__all__ = ["Region", "compile_region"]

Tensor: TypeAlias = torch.Tensor
Tensors: TypeAlias = tuple[Tensor, ...]

SETTING = "TENSORNET_REGIONS"
"""The environment variable that says when regions are compiled: "0" never, "wait" at the first call. Otherwise after
`WORTH` seconds."""

WORTH = 5.0
"""Seconds that calls of one kind take as written before their kernel is compiled, which takes 5 to 20 seconds."""

MOST = 64
"""The most kernels that are kept on disk. The least recently used ones are removed."""

LONGEST = 300
"""The most characters of a compiler's message that are reported."""

OPEN = -1
"""In the place of the first size of a tensor, if one kernel serves every size above 1."""

LOADER: Any = getattr(getattr(torch._C, "_aoti", None), "AOTIModelPackageLoader", None)
"""The loader of compiled packages. The public one imports the compiler, which takes a second."""


class Region:
    """A function of contiguous tensors to a tuple of tensors, compiled as one kernel where that pays.

    Args:
        function: the function as written, at the top of a module. It may write into its first tensor, which no caller
            reads afterwards. Options are numbers and truth values.
    """

    def __init__(self, function: Callable[..., Tensors]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._kinds: dict[Any, _Kind] = {}

    def __call__(self, *tensors: Tensor, **options: Any) -> Tensors:
        kind = self._kind(tensors, options)
        if kind is None:
            return self.function(*tensors, **options)
        if kind.kernel is None:
            return kind.as_written(self.function, tensors, options)
        return tuple(kind.kernel(list(tensors)))

    def _kind(self, tensors: Tensors, options: Mapping[str, Any]) -> _Kind | None:
        """The kind of a call: shapes, element types, device, options and threads. None if no kernel can serve it."""
        parts: list[Any] = [torch.get_num_threads(), tensors[0].device, *options.values()]
        for each in tensors:
            if type(each) is not Tensor or not each.is_contiguous() or not each.numel():
                return None
            parts += [each.dtype, OPEN if each.shape[0] > 1 else 1, each.shape[1:]]
        found = self._kinds.get(key := tuple(parts))
        if found is None:
            found = self._kinds[key] = _Kind(_asked(self.function, tensors, options))
        return found


def _asked(function: Callable[..., Any], tensors: Tensors, options: Mapping[str, Any]) -> dict[str, Any]:
    """What the compiling process has to know: the function, and the tensors that it is compiled for."""
    return {
        "module": function.__module__,
        "name": function.__name__,
        "shapes": [[OPEN if each.shape[0] > 1 else 1, *each.shape[1:]] for each in tensors],
        "dtypes": [str(each.dtype).removeprefix("torch.") for each in tensors],
        "device": str(tensors[0].device),
        "options": dict(options),
        "threads": torch.get_num_threads(),
    }


class _Kind:
    """Calls that share a kernel.

    Attributes:
        kernel: the kernel, once it is loaded.
        waits: whether the first call waits for the compiler.
    """

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self._asked, self._seconds, setting = asked, 0.0, os.environ.get(SETTING, "1")
        self.waits, self._is_settled = setting == "wait", setting == "0" or LOADER is None
        self.kernel: Callable[[list[Tensor]], list[Tensor]] | None = None
        if not self._is_settled:
            self._path = cache_folder() / "regions" / f"region-{_digest(asked)}.pt2"
            self._load()
        while self.waits and not (self.kernel or self._is_settled):
            self._compile()

    def as_written(
        self, function: Callable[..., Tensors], tensors: Tensors, options: Mapping[str, Any]
    ) -> Tensors:
        """A call as written. Its time counts towards compiling the kernel."""
        if self._is_settled:
            return function(*tensors, **options)
        start = time.perf_counter()
        made = function(*tensors, **options)
        self._seconds += time.perf_counter() - start
        if self._seconds > WORTH:
            self._compile()
        return made

    def _compile(self) -> None:
        """Starts the compiler if no other kernel is being compiled, or loads what it made once it has ended."""
        self._load()  # another process may have compiled it
        if self.kernel is not None:
            return
        try:
            with _turn:
                job = _Job.of(self, self._path, self._asked)
                if job is None or not (self.waits or job.has_ended()):
                    return
                error = job.end()
        except OSError as problem:  # processes cannot be started here
            error = str(problem)
        self._load()
        if self.kernel is None:
            self._is_settled = True
            say(f"tensornet: {self._asked['name']} runs as written, it could not be compiled: {error}")

    def _load(self) -> None:
        """Loads the kernel, if it is on disk and only this user can have written it."""
        with suppress(OSError, RuntimeError):
            if is_own(os.stat(self._path)):
                index = torch.device(self._asked["device"]).index
                self.kernel = LOADER(
                    str(self._path), "model", False, 1, -1 if index is None else index
                ).boxed_run
                os.utime(self._path)


_turn = threading.Lock()
"""Held while a job is started, asked, or ended."""


class _Job:
    """The process that compiles a kernel. There is one at a time, and it ends with this process."""

    running: _Job | None = None

    def __init__(self, kind: _Kind, path: Path, asked: Mapping[str, Any]) -> None:
        self.kind = kind
        given = f"region, {str(path)!r}, {json.dumps(asked)!r}, {0 if kind.waits else 19}"
        read = f"from {asked['module']} import {asked['name']} as region"
        call = f"{read}; from {__name__} import compile_region; compile_region({given})"
        folders = os.pathsep.join(each or os.getcwd() for each in sys.path)
        around = {**os.environ, SETTING: "0", "PYTHONPATH": folders}
        streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout"), subprocess.DEVNULL)
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", call], stderr=subprocess.PIPE, env=around, **streams
        )
        atexit.register(self.process.kill)

    @classmethod
    def of(cls, kind: _Kind, path: Path, asked: Mapping[str, Any]) -> _Job | None:
        """The process that compiles the kernel of a kind, started if there is none. None if it compiles another."""
        if cls.running is not None and cls.running.kind is not kind and cls.running.has_ended():
            cls.running.end()
        if cls.running is None:
            cls.running = cls(kind, path, asked)
        return cls.running if cls.running.kind is kind else None

    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self.process.poll() is not None

    def end(self) -> str:
        """Waits for the process. Returns the last line that it wrote."""
        _, said = self.process.communicate()
        atexit.unregister(self.process.kill)
        type(self).running = None
        lines: list[str] = said.decode(errors="replace").strip().split("\n")
        return lines[-1] or "no message"


# ---------------------------------------------------------------------------- on disk


def _digest(asked: Mapping[str, Any]) -> str:
    """The digest of all that a kernel depends on: what is asked, the source, torch, and the processor."""
    source = ""
    with suppress(OSError, TypeError):  # there is none beside compiled files
        source = inspect.getsource(sys.modules[asked["module"]])
    told = [asked, source, torch.__version__, _processor()]
    if not asked["device"].startswith("cpu"):
        told.append(torch.cuda.get_device_name(asked["device"]))
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:24]


@functools.cache
def _processor() -> str:
    """The instructions of this processor, because kernels use all of them."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").split("\n")
        return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
    return f"{platform.machine()} {platform.processor()} {platform.node()}"


# ---------------------------------------------------------------------------- in the compiling process


def compile_region(region: Region, path: str, told: str, below: int) -> None:
    """Compiles a region and writes its kernel to `path`.

    Args:
        region: the region.
        path: the file, written in one step.
        told: what `_asked` gives, as JSON.
        below: by how much the priority of this process is lowered.
    """
    if hasattr(os, "nice"):
        os.nice(below)
    asked = json.loads(told)
    torch.set_num_threads(asked["threads"])
    shapes = asked["shapes"]
    given = tuple(
        torch.zeros([4 if size == OPEN else size for size in shape], dtype=dtype, device=asked["device"])
        for shape, dtype in zip(shapes, (getattr(torch, each) for each in asked["dtypes"]), strict=True)
    )
    rows = torch.export.Dim("rows", min=2, max=2**40)
    dims = tuple({0: rows} if shape[0] == OPEN else None for shape in shapes)
    module = _Module(functools.partial(region.function, **asked["options"]))
    try:
        with torch.no_grad():
            _package(torch.export.export(module, given, dynamic_shapes=(dims,)), Path(path))
    except Exception as error:  # of the compiler, whatever it is: the message may hold a whole program
        sys.exit(" ".join(str(error).split())[:LONGEST])


class _Module(torch.nn.Module):
    """A function of tensors as the module that is exported. What it writes into its first tensor stays inside."""

    def __init__(self, function: Callable[..., Tensors]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *tensors: Tensor) -> Tensors:
        return self._function(tensors[0].clone(), *tensors[1:])


def _package(program: Any, path: Path) -> None:
    """Compiles an exported program to a file, and removes the files that were not used for the longest time."""
    with whole(path) as half:
        torch._inductor.aoti_compile_and_package(program, package_path=str(half))
    kept: Sequence[Path] = sorted(path.parent.glob("region-*"), key=lambda each: each.stat().st_mtime)
    for each in kept[:-MOST]:
        each.unlink(missing_ok=True)
