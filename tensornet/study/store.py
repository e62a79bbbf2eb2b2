"""Runs on disk: a finished run is a JSON file and its weights, written atomically, identified by its settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tensornet as tn
from tensornet.errors import TensornetError
from tensornet.sizes import evaluate

from .checkpoint import Checkpoints
from .files import BLANK, SEAL, is_sealed, read_tensors, remove, seal, sealed_tensors, set_aside, write_whole
from .libraries import library
from .results import RunResult, Trained
from .schema import read

__all__ = ["RunStore", "fingerprint", "load_trained"]

FORMAT = "tensornet.study.run.3"
"""The format of a result. The third has the seed, and no times, which are measured apart."""

WEIGHTS = "tensornet.study.run.2"
"""The format of its weights: sealed, and with the scaling of the inputs in the graph."""

SECONDS_OF_WAITING = 30.0
"""The seconds to wait until a stopped process releases a run that another process resumes."""


def fingerprint(settings: Mapping[str, Any]) -> str:
    """A text that changes if any setting changes, or the format in which a run is kept."""
    document = {"format": FORMAT, **settings}
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class RunStore:
    """The runs in a folder, each identified by its name and a fingerprint of everything its numbers depend on.

    A finished run is `runs/<name>.seed<n>.<fingerprint>.json` and its weights, `….safetensors`; an unfinished
    run has checkpoints. Runs with other settings have other files, so no run overwrites another. Each file
    is sealed. A file that has changed since it was written is set aside, and its run counts as unfinished.

    Attributes:
        folder: the folder of the study.
        say: receives a message if a file is set aside.
    """

    folder: Path
    say: Callable[[str], None] = lambda text: None

    def path(self, name: str, settings: Mapping[str, Any]) -> Path:
        """The file of the result of a run."""
        return self.folder / "runs" / f"{name}.seed{settings['seed']}.{fingerprint(settings)[:8]}.json"

    def progress(self, name: str, settings: Mapping[str, Any]) -> Path:
        """The file in which a run that is trained by another process reports its progress."""
        return self.path(name, settings).with_suffix(".progress")

    def prepare(self) -> None:
        """Creates the folder, and checks that it can be written before any run is trained.

        Raises:
            TensornetError: it cannot be created or written.
        """
        probe = self.folder / "runs" / ".writable"
        write_whole(probe, b"")
        probe.unlink(missing_ok=True)

    def checkpoints(self, name: str, settings: Mapping[str, Any]) -> Checkpoints:
        """The checkpoints of an unfinished run."""
        path = self.path(name, settings).with_suffix(".checkpoint")
        return Checkpoints(path, fingerprint(settings), self.say)

    def start(self, name: str, settings: Mapping[str, Any]) -> Checkpoints:
        """The starting point of an unfinished run, kept because it was costly to compute."""
        path = self.path(name, settings).with_suffix(".start")
        return Checkpoints(path, fingerprint(settings), self.say)

    @contextmanager
    def training(self, name: str, settings: Mapping[str, Any], wait: float = 0.0) -> Iterator[None]:
        """Locks a run, so that no other process trains it; waits up to `wait` seconds for one that does.

        Raises:
            TensornetError: another process still trains it.
        """
        locks, path = library("filelock"), self.path(name, settings).with_suffix(".lock")
        if path.is_dir():
            set_aside(path)
        try:
            with locks.FileLock(path, timeout=wait):
                yield
                path.unlink(missing_ok=True)
        except locks.Timeout:
            raise TensornetError(
                f"another process trains {name} in {self.folder}", fix="wait for it, or give another --out"
            ) from None

    def save(self, trained: Trained, settings: Mapping[str, Any]) -> None:
        """Keeps a finished run: its result as JSON, its classifier and parameters as safetensors.

        Raises:
            TensornetError: the folder cannot be written.
        """
        path = self.path(trained.result.name, settings)
        metadata = {"format": WEIGHTS, "graph": trained.graph.to_json()}
        weights = sealed_tensors(trained.parameters, metadata)
        document = {
            "format": FORMAT,
            SEAL: BLANK,
            "fingerprint": fingerprint(settings),
            "weights": hashlib.sha256(weights).hexdigest(),
            "settings": settings,
            "result": asdict(trained.result),
        }
        write_whole(path.with_suffix(".safetensors"), weights)
        # the JSON marks the run as finished, so it is written last
        write_whole(path, seal((json.dumps(document, indent=1) + "\n").encode()))
        for half_written in path.parent.glob(f".{path.stem}.*"):  # left by a process that was killed
            remove(half_written)

    def load(self, name: str, settings: Mapping[str, Any]) -> RunResult | None:
        """The finished run with these settings; None if it is absent, or damaged and therefore set aside."""
        path = self.path(name, settings)
        if not path.exists():
            return None
        try:
            return self._read(path, name, settings)
        except (OSError, ValueError, RecursionError) as error:
            self.say(f"{path} is damaged, set aside and not used: {error}")
            for each in (path, path.with_suffix(".safetensors")):
                set_aside(each)
            return None

    def _read(self, path: Path, name: str, settings: Mapping[str, Any]) -> RunResult:
        """The result in a file; raises an error with the reason if `save` did not write the file."""
        content = path.read_bytes()
        if not is_sealed(content):
            raise ValueError("its content is not what was written")
        document = read(_Kept, json.loads(content))
        if (document.format, document.fingerprint) != (FORMAT, fingerprint(settings)):
            raise ValueError("it is not one of this run")
        weights = path.with_suffix(".safetensors").read_bytes()
        if hashlib.sha256(weights).hexdigest() != document.weights:
            raise ValueError("the weights beside it are not those that were written")
        result = document.result
        found = (result.name, result.seed, asdict(result.recipe))
        if found != (name, settings["seed"], settings["trained"]):
            raise ValueError("its result is of another run")
        return result

    def remove(self, name: str, settings: Mapping[str, Any]) -> None:
        """Removes the files of a run, finished or not."""
        path = self.path(name, settings)
        for each in (path, path.with_suffix(".safetensors")):
            remove(each)
        self.checkpoints(name, settings).remove()
        self.start(name, settings).remove()


@dataclass(frozen=True)
class _Kept:
    """The content of the JSON file of a finished run."""

    format: str
    seal: str
    fingerprint: str
    weights: str
    settings: dict[str, Any]
    result: RunResult


def load_trained(path: str | Path) -> tuple[tn.Graph, dict[str, Any]]:
    """The classifier of a finished run, and its parameters by name, as torch tensors.

    The graph takes inputs as the data set has them; its first equation scales them as in training.
    Images are pixels from 0 to 255, (n, channels, height, width), as floating-point numbers. The digits of
    scikit-learn go from 0 to 16, (n, 8, 8) in the study `digits` and (n, 1, 8, 8) in `thesis`. Texts are
    tokens and a mask of those that are not padding, (n, words) each.

    Args:
        path: the file `runs/<name>.seed<n>.<fingerprint>.safetensors` of a study.

    Returns:
        The graph, inputs → y[b,o], a logit for each class, and its parameters.

    Raises:
        TensornetError: the file does not exist, it is damaged, no study wrote it, or an earlier version
            wrote it, which did not keep the scaling of inputs.
    """
    try:
        parameters, metadata = read_tensors(Path(path))
        if metadata.get("format") != WEIGHTS:
            raise ValueError("no study wrote it")
        graph = tn.Graph.from_json(metadata.get("graph", ""))
        check_parameters(graph, parameters)
    except (OSError, ValueError) as reason:
        raise TensornetError(
            f"{path} is not a trained classifier: {reason}",
            fix="give one of runs/*.safetensors of a study, whole; for one of an earlier version, which did not"
            " keep how inputs are scaled, give its `tensornet study` command again",
        ) from None
    return graph, parameters


def check_parameters(graph: tn.Graph, parameters: Mapping[str, Any]) -> None:
    """Raises ValueError unless these are the parameters of the graph, each with its shape."""
    shapes = {
        leaf.name: tuple(evaluate(size, graph.bound) for size in leaf.shape) for leaf in graph.parameters
    }
    if parameters.keys() != shapes.keys():
        names = ", ".join(sorted(parameters.keys() ^ shapes.keys()))
        raise ValueError(f"its graph and its parameters disagree about {names}")
    for name, shape in shapes.items():
        if tuple(parameters[name].shape) != shape:
            raise ValueError(f"'{name}' has the shape {tuple(parameters[name].shape)}, not {shape}")
        if not parameters[name].is_floating_point():
            raise ValueError(f"'{name}' holds {parameters[name].dtype}")
