"""What tests of studies share: a study with what it prints, studies as files, and what is wrong with one."""

from __future__ import annotations

import functools
import io
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tensornet.study import RunResult, run_study

Finished = tuple[Path, list[RunResult], str]
"""A folder, the results, and what was printed."""

DATA = Path(__file__).parent / "data"
WRITTEN = (DATA / "written.toml").read_text(encoding="utf-8")
COMPRESSED = (DATA / "compressed.toml").read_text(encoding="utf-8")


def study(folder: Path, width: int = 200, **settings: Any) -> tuple[list[RunResult], str]:
    """The results of a study, whose times are not measured if nothing else is said, and what was printed."""
    printed = io.StringIO()
    console = Console(file=printed, width=width)
    return run_study(folder, console=console, **{"measure": False, **settings}), printed.getvalue()


def toml(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def kept(folder: Path, name: str) -> Path:
    """The one file of a run with such a name."""
    (path,) = (folder / "runs").glob(name)
    return path


@contextmanager
def stopped_after(steps: int, name: str = "*.checkpoint") -> Iterator[None]:
    """Every step is kept, and the study that runs here is interrupted after so many checkpoints of that name."""
    from tensornet.study import jobs
    from tensornet.study.results import RunFile

    save, left = RunFile.save, [steps]

    def stop(kept: RunFile, *content: Any) -> None:
        save(kept, *content)
        left[0] -= kept.path.match(name)
        if not left[0]:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RunFile, "save", stop)
        patched.setattr(jobs, "train", functools.partial(jobs.train, every=0.0))
        with pytest.raises(KeyboardInterrupt):
            yield


@dataclass
class Unsteady:
    """Workers that call functions here; what of all that was asked so far was asked last is lost if `lose` says so."""

    lose: Callable[[list[Any]], bool]
    asked: list[Any] = field(default_factory=list)

    def threads(self, cores: int) -> int:
        return 1

    def lost(self) -> tuple[type[BaseException], ...]:
        return (BrokenProcessPool,)

    @contextmanager
    def open(self) -> Iterator[Unsteady]:
        yield self

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.asked.append(arguments[-1])
        if self.lose(self.asked):
            future.set_exception(BrokenProcessPool("gone"))
        else:
            future.set_result(function(*arguments))
        return future


def wrong_study(text: str = "", old: str = "", new: str = "", **settings: Any) -> None:
    """Runs a study, as a file with something else in it if one is given, before which nothing is trained."""
    pytest.importorskip("sklearn")
    assert old in text
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "out"
        task = {"task": toml(Path(name), text.replace(old, new))} if text else {}
        try:
            study(folder, **task, **settings)
        finally:
            assert not list(folder.glob("runs/*.safetensors"))
