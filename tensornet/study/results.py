"""Results of runs: an entry for each epoch, the result, the trained classifier; and the files that hold them.

Files hold tensors and texts as safetensors, each written atomically, sealed by a digest, and named by the settings of
its run. A finished run is one file, an unfinished one its newest checkpoint.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import tensornet as tn
from tensornet.codec import Part, Text, document, read, write
from tensornet.errors import TensornetError
from tensornet.files import whole

from .libraries import library
from .task import Recipe


@document()
@dataclass(frozen=True)
class Epoch:
    """The figures of a run after an epoch: loss in nats, accuracies in percent.

    The training figures are those of the mini-batches during training: augmented, with dropout, and
    while the parameters changed.
    """

    train_loss: float
    train_top1: float
    train_top5: float
    test_top1: float
    test_top5: float


@document()
@dataclass(frozen=True)
class CompressedWeight:
    """The form and ranks that a weight was given, and its errors.

    Attributes:
        path, shape: the name and the shape of the weight.
        form: its new form; "dense" if it is unchanged.
        ranks: the ranks of the form.
        parameters: the number of elements of its factors.
        error: ‖W − Ŵ‖ / ‖W‖.
        output_error: ‖(W − Ŵ)·x‖ / ‖W·x‖ over the calibration examples, if there were any.
    """

    path: Text
    shape: tuple[int, ...]
    form: Text
    ranks: tuple[int, ...]
    parameters: int
    error: float
    output_error: float | None


@document()
@dataclass(frozen=True)
class Compression:
    """How a trained classifier was compressed, before fine-tuning.

    Attributes:
        origin: the name of the run that trained it.
        parameters: its number of parameters before compression.
        before_top1, before_top5: its test accuracies before compression, in percent.
        test_top1, test_top5: the same with factors in place of weights, without further training.
        error: ‖y − ŷ‖ / ‖y‖ over the logits y of the test examples.
        weights: one entry for each weight.
    """

    origin: Text
    parameters: int
    before_top1: float
    before_top5: float
    test_top1: float
    test_top5: float
    error: float
    weights: tuple[CompressedWeight, ...]

    @property
    def weight_error(self) -> float:
        """The error of all weights together: (Σ e² / count)^½."""
        squares = [each.error**2 for each in self.weights]
        return math.sqrt(sum(squares) / max(1, len(squares)))


@document()
@dataclass(frozen=True)
class RunResult:
    """A finished run.

    Attributes:
        name: the name of the run: the row, and the optimizer if there are several.
        row: the name of its row in the task.
        seed: the seed of everything that is random in it.
        about: a description of the classifier.
        recipe: how it was trained.
        formula: its number of parameters, in the sizes of axes.
        sizes: those sizes, as "i=8, j=8".
        parameters: the value of the formula.
        counted: the number of elements of `module.parameters()`.
        flops: FLOPs of the contractions for one example, forward.
        history: one entry for each epoch.
        train_top1: percent of training examples whose most likely class is right, after the last epoch,
            evaluated as the test examples are.
        train_top5: percent whose five most likely classes contain the right one.
        test_top1, test_top5: the same for the test examples.
        compression: how the classifier that it starts from was compressed, if it was.
    """

    name: Text
    row: Text
    seed: int
    about: Text
    recipe: Recipe
    formula: Text
    sizes: Text
    parameters: int
    counted: int
    flops: int
    history: tuple[Epoch, ...]
    train_top1: float
    train_top5: float
    test_top1: float
    test_top5: float
    compression: Compression | None = None


@document()
@dataclass(frozen=True)
class Appraisal:
    """The measured costs of the classifier of a run.

    Attributes:
        name: the name of the run.
        equations: the classifier as text.
        plan: the plan of a training step on a mini-batch, as text.
        kept: bytes kept from the forward pass to the backward pass, for a mini-batch.
        step_ms: milliseconds of a training step (forward, backward, update) on one prepared mini-batch,
            the median over rounds in which the classifiers take turns.
        latency_ms: milliseconds of a prediction for one example, measured in the same way.
    """

    name: Text
    equations: Text
    plan: Text
    kept: int
    step_ms: float
    latency_ms: float


@dataclass(frozen=True)
class Trained:
    """The result of a run, the classifier, and the final parameters, by name."""

    result: RunResult
    graph: tn.Graph
    parameters: Mapping[str, Any]


SHARES = ("train_top1", "train_top5", "test_top1", "test_top5")
"""The accuracies of a result."""

COLUMNS: tuple[str, ...] = ("name", "seed", "about", "optimizer", "learning_rate", "weight_decay", "formula")
COLUMNS += ("sizes", "parameters", "counted", "flops", *SHARES, "step_ms", "latency_ms", "kept")
COLUMNS += ("origin", "before_top1", "compressed_top1", "error", "weight_error")
"""The columns of results.csv: those of a result, its recipe, its measured costs, and its compression."""


def runs_of(results: Sequence[RunResult], costs: Mapping[str, Appraisal]) -> Any:
    """A line for each run, with `COLUMNS`, and `row` and `result`."""
    lines = []
    for each in results:
        line = {**asdict(each.recipe), **asdict(each), "result": each}
        line |= asdict(costs[each.name]) if each.name in costs else {}
        if (made := each.compression) is not None:
            line |= {name: getattr(made, name) for name in ("origin", "before_top1", "error", "weight_error")}
            line |= {"compressed_top1": made.test_top1}
        lines.append(line)
    return library("pandas").DataFrame(lines).reindex(columns=[*COLUMNS, "row", "result"])


def pareto_front(points: Any, cost: str = "parameters") -> Any:
    """The Pareto front: the lines that are more accurate than all others that cost no more."""
    ordered = points.sort_values([cost, "test_top1"], ascending=[True, False], kind="stable")
    best = ordered.test_top1.cummax().shift(fill_value=-1.0)
    return ordered[ordered.test_top1 > best]


def told(values: Any) -> str:
    """The text of a figure, which has a value for each seed: `97.20`, or for several `97.20 ± 0.31 (3)`.

    Example:
        >>> import pandas
        >>> told(pandas.Series([97.2])), told(pandas.Series([97.0, 98.0]))
        ('97.20', '97.50 ± 0.71 (2)')
    """
    mean = f"{values.mean():.2f}" if len(values) else ""
    return mean if len(values) < 2 else f"{mean} ± {values.std():.2f} ({len(values)})"


# ---------------------------------------------------------------------------- files

Value = TypeVar("Value")
Tensors = Mapping[str, Any]
Texts = Mapping[str, str]

BLANK = 64 * "0"
"""The placeholder of the digest while it is computed."""

SEAL = re.compile(rb'("seal": ?")([0-9a-f]{64})(?=")')
"""The digest of the file that contains it; its quotes are not escaped, so it is not inside another text."""

FORMAT = "tensornet.study.run.4"
"""The format of a finished run. The fourth is one file, with the result beside the weights."""


def seal(content: bytes) -> bytes:
    """Writes the digest of content that holds `"seal": BLANK` once in the place of BLANK.

    Example:
        >>> is_sealed(seal(f'{{"seal": "{BLANK}", "loss": 0.5}}'.encode()))
        True
        >>> is_sealed(seal(f'{{"seal": "{BLANK}", "loss": 0.5}}'.encode()).replace(b"0.5", b"0.1"))
        False
    """
    blank = SEAL.sub(rb"\g<1>" + BLANK.encode(), content, 1)
    return SEAL.sub(rb"\g<1>" + hashlib.sha256(blank).hexdigest().encode(), content, 1)


def is_sealed(content: bytes) -> bool:
    """Whether the content is complete and as `seal` returned it."""
    return SEAL.search(content) is not None and seal(content) == content


def sealed_tensors(tensors: Tensors, texts: Texts) -> bytes:
    """Tensors and texts by name, as the content of a safetensors file, sealed."""
    return seal(library("safetensors.torch").save(dict(tensors), {"seal": BLANK, **texts}))


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The tensors and the texts that `sealed_tensors` stored.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is damaged or something else; the error says what.
    """
    if not is_sealed(path.read_bytes()):
        raise ValueError("its content is not what was written")
    safetensors = library("safetensors")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from None


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file atomically: a reader finds the old content or the new, never a part.

    A folder of the same name is renamed.

    Raises:
        TensornetError: the folder cannot be created or written.
    """
    with whole(path) as half:
        half.write_bytes(content)
        if path.is_dir():
            path.rename(path.with_name(f"{path.name}.damaged"))


@dataclass(frozen=True)
class RunFile:
    """A file of a run: tensors and texts, with the fingerprint of the settings of the run.

    Attributes:
        path: the file.
        fingerprint: a file with another one is not read.
        say: receives a message if the file is damaged.
    """

    path: Path
    fingerprint: str
    say: Callable[[str], None] = lambda text: None

    def save(self, tensors: Tensors, texts: Texts) -> None:
        """Writes the file.

        Raises:
            TensornetError: the folder cannot be written.
        """
        texts = {"format": FORMAT, "fingerprint": self.fingerprint, **texts}
        write_whole(self.path, sealed_tensors(tensors, texts))

    def load(self, take: Callable[[Tensors, Texts], Value]) -> Value | None:
        """What `take` makes of the content; None if there is no file, or it is damaged."""
        if not self.path.exists():
            return None
        try:
            tensors, texts = read_tensors(self.path)
            if (texts["format"], texts["fingerprint"]) != (FORMAT, self.fingerprint):
                raise ValueError("it is not one of this run")
            return take(tensors, texts)
        except (OSError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
            self.say(f"{self.path} is damaged and not used: {error}")
            return None


@dataclass(frozen=True)
class RunStore:
    """The runs in a folder, each identified by its name and a fingerprint of everything its numbers depend on.

    Runs with other settings have other files, so no run overwrites another. If a file has changed since it was
    written, its run counts as unfinished, and writes it again.

    Attributes:
        folder: the folder of the study.
        say: receives a message if a file is damaged.
    """

    folder: Path
    say: Callable[[str], None] = lambda text: None

    def file(self, name: str, settings: Mapping[str, Any], end: str = "safetensors") -> RunFile:
        """The file of a finished run, or by its suffix its "checkpoint"; other settings or formats have other files."""
        document = json.dumps({"format": FORMAT, **settings}, sort_keys=True)
        key = hashlib.sha256(document.encode()).hexdigest()[:16]
        path = self.folder / "runs" / f"{name}.seed{settings['seed']}.{key[:8]}.{end}"
        return RunFile(path, key, self.say)

    def save(self, trained: Trained, settings: Mapping[str, Any]) -> None:
        """Keeps a finished run: its result, its classifier and its parameters; its checkpoint is removed.

        Raises:
            TensornetError: the folder cannot be written.
        """
        file = self.file(trained.result.name, settings)
        result, graph = json.dumps(write(trained.result)), trained.graph.to_json()
        file.save(trained.parameters, {"result": result, "settings": json.dumps(settings), "graph": graph})
        halves = file.path.parent.glob(f".*.{file.path.stem}.*")  # left by processes that were killed
        for each in (file.path.with_suffix(".checkpoint"), *halves):
            with contextlib.suppress(OSError):  # there is none, or a folder
                each.unlink()

    def load(self, name: str, settings: Mapping[str, Any]) -> RunResult | None:
        """The finished run with these settings; None if it is absent or damaged."""
        file = self.file(name, settings)
        return file.load(lambda _, texts: read(RunResult, Part.of(texts["result"], "result")))


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
        TensornetError: the file does not exist, it is damaged, or no study wrote it.
    """
    try:
        parameters, texts = read_tensors(Path(path))
        if texts.get("format") != FORMAT:
            raise ValueError("no study of this version wrote it")
        return tn.Graph.from_json(texts["graph"]), parameters
    except (OSError, ValueError, KeyError) as reason:
        again = "for one of an earlier version give its `tensornet study` command again"
        fix = f"give one of runs/*.safetensors of a study, whole; {again}"
        raise TensornetError(f"{path} is not a trained classifier: {reason}", fix=fix) from None
