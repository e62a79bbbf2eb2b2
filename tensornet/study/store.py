"""Runs on disk: of a finished one a JSON and its weights, written whole or not at all, known by its settings."""

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
"""Of a result. The third: with its seed, and without times, which are measured apart."""

WEIGHTS = "tensornet.study.run.2"
"""Of its weights: sealed, and with the scaling of the inputs in the graph."""

SECONDS_OF_WAITING = 30.0
"""For a process that was stopped to let go of a run that another goes on with."""


def fingerprint(settings: Mapping[str, Any]) -> str:
    """A text that differs when any setting does, or the format in which a run is kept."""
    document = {"format": FORMAT, **settings}
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class RunStore:
    """The runs in a folder, each known by its name and a fingerprint of all that its numbers depend on.

    Of a finished one `runs/<name>.seed<n>.<fingerprint>.json` and its weights, `….safetensors`; meanwhile its
    checkpoints. Runs with other settings have other files, so none is ever lost to another. Each file
    is sealed; what is not as it was written is set aside, and the run counts as unfinished.

    Attributes:
        folder: that of the study.
        say: told when a file is set aside.
    """

    folder: Path
    say: Callable[[str], None] = lambda text: None

    def path(self, name: str, settings: Mapping[str, Any]) -> Path:
        """Where the result of a run is kept."""
        return self.folder / "runs" / f"{name}.seed{settings['seed']}.{fingerprint(settings)[:8]}.json"

    def progress(self, name: str, settings: Mapping[str, Any]) -> Path:
        """Where a run that is trained elsewhere says how far it is."""
        return self.path(name, settings).with_suffix(".progress")

    def prepare(self) -> None:
        """Makes the folder, so that one that cannot be written is known before a run is trained.

        Raises:
            TensornetError: it cannot be made or written.
        """
        probe = self.folder / "runs" / ".writable"
        write_whole(probe, b"")
        probe.unlink(missing_ok=True)

    def checkpoints(self, name: str, settings: Mapping[str, Any]) -> Checkpoints:
        """The checkpoints of a run, which is not finished."""
        path = self.path(name, settings).with_suffix(".checkpoint")
        return Checkpoints(path, fingerprint(settings), self.say)

    def start(self, name: str, settings: Mapping[str, Any]) -> Checkpoints:
        """What a run that is not finished starts from, where making it took work."""
        path = self.path(name, settings).with_suffix(".start")
        return Checkpoints(path, fingerprint(settings), self.say)

    @contextmanager
    def training(self, name: str, settings: Mapping[str, Any], wait: float = 0.0) -> Iterator[None]:
        """Keeps other processes from training the same run; waits so many seconds for one that does.

        Raises:
            TensornetError: one does already.
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
        # the JSON says that the run is finished, so it comes last
        write_whole(path, seal((json.dumps(document, indent=1) + "\n").encode()))
        for half_written in path.parent.glob(f".{path.stem}.*"):  # by a process that was killed
            remove(half_written)

    def load(self, name: str, settings: Mapping[str, Any]) -> RunResult | None:
        """The finished run with these settings, or nothing: it is absent, or was damaged and is set aside."""
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
        """Raises an error that says why this is not what `save` wrote."""
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
        """Removes all of a run, finished or not."""
        path = self.path(name, settings)
        for each in (path, path.with_suffix(".safetensors")):
            remove(each)
        self.checkpoints(name, settings).remove()
        self.start(name, settings).remove()


@dataclass(frozen=True)
class _Kept:
    """What the JSON of a finished run holds."""

    format: str
    seal: str
    fingerprint: str
    weights: str
    settings: dict[str, Any]
    result: RunResult


def load_trained(path: str | Path) -> tuple[tn.Graph, dict[str, Any]]:
    """The classifier of a finished run, and its parameters by name, as tensors of torch.

    The graph takes inputs as the data set has them: its first equation scales them as in training.
    Images are pixels from 0 to 255, (n, channels, height, width), as floating numbers; the digits of
    scikit-learn go from 0 to 16, (n, 8, 8) in the study `digits` and (n, 1, 8, 8) in `thesis`; texts are
    tokens and which of them are there, (n, words) each.

    Args:
        path: the file `runs/<name>.seed<n>.<fingerprint>.safetensors` of a study.

    Returns:
        The graph, inputs → y[b,o], a logit for each class, and its parameters.

    Raises:
        TensornetError: there is no such file, it is damaged, no study wrote it, or one of a version
            that did not keep how inputs are scaled.
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
    """Raises ValueError unless these are the parameters of the graph, each of its shape."""
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
