"""The experiments of the thesis: what their rows are, and a small one from the files to the report."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

import tensornet as tn
from tensornet.errors import TensornetError
from tensornet.study import results_folder
from tensornet.study import thesis as study_thesis
from tensornet.study.arrays import load_arrays
from tensornet.study.report import report
from tensornet.study.results import read_tensors, runs_of
from tensornet.study.task import Recipe
from tensornet.study.thesis import experiments, fitting, load_images, read_mnist, source_of, thesis

from .conftest import needs, normal, sampled
from .studies import Finished, kept, study
from .test_data import write_mnist

needs("sklearn", "matplotlib")

CLASSES = {"digits": 10, "mnist": 10, "cifar10": 10, "tiny-imagenet": 200}
LIMIT = 1_368_626
"""Parameters of the tensorized model of the thesis."""


@functools.cache
def graph_of(name: str, row: str) -> tn.Graph:
    settings = {**experiments()[name]["shape"], **thesis(name).rows[row].settings}
    return tn.models.tensor_swin(classes=CLASSES[name], **settings)


ROWS = [(name, row) for name in experiments() for row in thesis(name).rows if name != "tiny-imagenet"]
"""Those of Tiny ImageNet are those of CIFAR-10."""


@pytest.mark.parametrize(
    ("name", "row"),
    sampled(ROWS, [row for row in ROWS if row[0] == "digits" or row[1] in ("swin", "tensor-8x8x12")]),
)
def test_the_rows_are_what_they_say(name: str, row: str) -> None:
    shape, count = experiments()[name]["shape"], tn.parameter_count(graph_of(name, row))
    settings = thesis(name).rows[row].settings
    last = settings["modes"][-1]
    if row == "swin":
        dense = tn.models.swin(
            **{name: shape[name] for name in ("image", "patch", "channels", "window", "depths")},
            dim=math.prod(settings["modes"][0]),
            heads=[math.prod(each) for each in settings["heads"]],
            classes=CLASSES[name],
        )
        assert count == tn.parameter_count(dense)
    else:
        assert row.startswith("tensor-" + "x".join(map(str, last)))
        assert count <= LIMIT
        assert 10 * count <= LIMIT or name == "cifar10"
        assert tn.parameter_formula(graph_of(name, row)).subs(graph_of(name, row).bound) == count
    assert tn.Graph.from_json(graph_of(name, row).to_json()) == graph_of(name, row)


def test_the_published_figures_are_those_of_the_thesis() -> None:
    """Tables 4.1.1, 4.2.2 and 4.3.3: test top-1 of each row."""
    found = {name: [(each[0], each[2], each[5]) for each in thesis(name).published] for name in experiments()}
    swin, tensor = ("Swin-T", 27_528_690), ("tensorized", LIMIT)
    assert found == {
        "digits": [],
        "mnist": [(*swin, 97.0), (*tensor, 98.9)],
        "cifar10": [(*swin, 80.92), (*tensor, 81.80)],
        "tiny-imagenet": [(*swin, 64.14), (*tensor, 30.85), (*tensor, 35.90)],
    }


def test_each_data_set_has_a_folder_of_its_own(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    assert results_folder("thesis") == Path("study-thesis-digits")
    assert results_folder("thesis", "cifar10") == Path("study-thesis-cifar10")
    assert results_folder("thesis", str(tmp_path)) == Path("study-thesis-mnist")
    assert results_folder("text") == Path("study-text")
    with pytest.raises(TensornetError, match="there are no images 'imagenet'"):
        results_folder("thesis", "imagenet")


def test_the_rows_of_tiny_imagenet_are_those_of_cifar10() -> None:
    assert thesis("tiny-imagenet").rows == thesis("cifar10").rows


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, without_pictures: None) -> Finished:
    """MNIST's files with noise in them, one epoch of two runs."""
    data, folder = tmp_path_factory.mktemp("mnist"), tmp_path_factory.mktemp("results")
    write_mnist(data, 20)
    settings: dict[str, Any] = {"rows": ["tensor-4x4x8"], "threads": 1, "recipe": {"batch": 10}}
    return folder, *study(folder, 160, task="thesis", data=str(data), epochs=1, **settings)


def test_each_row_is_trained_by_both_optimizers(finished: Finished) -> None:
    folder, results, printed = finished
    assert [each.name for each in results] == ["tensor-4x4x8-adamw", "tensor-4x4x8-adam"]
    assert [each.recipe.optimizer for each in results] == ["adamw", "adam"]
    recipes = [
        json.loads(read_tensors(kept(folder, f"{each.name}.*.safetensors"))[1]["settings"])["trained"]
        for each in results
    ]
    assert [(each["optimizer"], each["weight_decay"]) for each in recipes] == [("adamw", 0.02), ("adam", 0.0)]
    assert {each["learning_rate"] for each in recipes} == {0.02}
    assert {each["batch"] for each in recipes} == {10}
    assert "mnist0: Swin and tensorized Swin" in printed


def test_a_report_of_other_images_tells_of_them_alone(finished: Finished) -> None:
    """Noise in the files of MNIST: neither its name, nor what was published of it, nor what was tried on it."""
    report = (finished[0] / "report.md").read_text(encoding="utf-8")
    assert report.startswith("# mnist0: Swin and tensorized Swin\n")
    assert "Classifiers of a folder, in the format of MNIST: 20 images of 28×28 pixels" in report
    assert "published" not in report
    assert "chosen in short trials" not in report
    page = (finished[0] / "report.html").read_text(encoding="utf-8")
    assert "published" not in page
    assert "shifted by up to 1.5 pixels, turned by up to 5°, zoomed by up to 5 %, at random" in report
    assert "trained by one schedule: 1 epochs of AdamW or Adam" in report
    assert "soft attention | Adam, 0.02, 0 | 10,602 |" in report
    assert "--row tensor-4x4x8 --set batch=10 --set epochs=1\n" in report


def report_of(finished: Finished, recipe: Recipe | None = None, **changes: Any) -> str:
    """The report if the images were those of MNIST, and the runs of this recipe."""
    folder, results, _ = finished
    environment = json.loads((folder / "results.json").read_text(encoding="utf-8"))["environment"]
    task = thesis("mnist")
    examples = replace(load_images(source_of("digits"), 0), name="MNIST", known=True)
    own = task.recipe.changed(task.rows["tensor-4x4x8"].recipe)
    assert own.learning_rate == 0.02
    runs = []
    for each in results:
        of = (recipe or own).optimized_by(each.recipe.optimizer)
        runs.append(replace(each, recipe=of, history=each.history * of.epochs))
    environment |= {"recipe": asdict(task.recipe), "changes": changes}
    return report(task.of(examples), runs_of(runs, {}), environment)


def test_the_report_has_the_published_figures_beside_ours(finished: Finished) -> None:
    """Where the images are those of the publication, and the recipe is the study's own."""
    results, report = finished[1], report_of(finished)
    assert report.startswith("# MNIST: Swin and tensorized Swin\n")
    assert "| tensorized (published) | – | 1,368,626 | 97.30 | 99.90 | 98.90 | 100.00 |" in report
    assert "table 4.2.2" in report
    assert "recipe learning rate, shift, rotate and zoom were chosen in short trials that looked at" in report
    for each in results:
        shares = (each.train_top1, each.train_top5, each.test_top1, each.test_top5)
        figures = " | ".join(f"{share:.2f}" for share in shares)
        assert (
            f"| {each.name} | {'AdamW' if each.recipe.optimizer == 'adamw' else 'Adam'} | 10,602 | {figures} |"
            in report
        )


def test_another_recipe_is_not_that_of_the_publication(finished: Finished) -> None:
    changes: dict[str, Any] = {"epochs": 2, "learning_rate": 0.5, "shift": 0, "batch": 8}
    report = report_of(finished, thesis("mnist").recipe.changed(changes), **changes)
    assert "published" not in report
    assert "| AdamW, 0.5, 0.02, 2 epochs, batch 8, shift 0 |" in report


def test_only_the_published_files_are_those_of_a_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By all that is in them."""
    write_mnist(tmp_path / "a", packed=True)
    assert not load_images(source_of(str(tmp_path / "a")), 0).known
    content = b"".join(each.tobytes() for each in read_mnist(tmp_path / "a").values())
    monkeypatch.setattr(study_thesis, "MNIST", hashlib.sha256(content).hexdigest())
    examples = load_images(source_of(str(tmp_path / "a")), 0)
    assert (examples.known, examples.name) == (True, "MNIST")
    assert examples.about.startswith("mnist: 20 images")


# ---- arrays of one's own


SHAPES: dict[tuple[int, ...], tuple[Any, int, int, int]] = {
    (8, 8): (8, 1, 2, 2),
    (16, 16): (16, 1, 2, 4),
    (28, 28): (28, 1, 4, 7),
    (3, 32, 32): (32, 3, 4, 4),
    (32, 32, 3): (32, 3, 4, 4),
    (10, 12, 1): ((10, 12), 1, 2, 5),
    (17, 13): ((17, 13), 1, 2, 7),
    (1, 5): ((1, 5), 1, 2, 1),
}
"""Of shapes of an image its sides, channels, patch and window."""


def images_of(shape: tuple[int, ...]) -> tuple[Any, list[int]]:
    return normal(6, *shape), [0, 1, 2] * 2


def test_images_of_any_size_have_patches_and_windows() -> None:
    for shape, sizes in SHAPES.items():
        pixels, labels = images_of(shape)
        fitted = fitting(load_arrays(lambda: (pixels, labels, pixels, labels), images=True))  # noqa: B023
        assert fitted == dict(zip(("image", "channels", "patch", "window"), sizes, strict=True))


@pytest.mark.parametrize(
    "shape", [pytest.param(each, marks=[pytest.mark.slow] * (each != (17, 13))) for each in SHAPES]
)
def test_images_of_any_size_are_classified(shape: tuple[int, ...]) -> None:
    pixels, labels = images_of(shape)
    examples = load_arrays(lambda: (pixels, labels, pixels, labels), images=True)
    task = thesis(lambda: (pixels, labels, pixels, labels))
    graph = examples.behind_standard(task.build(task.rows["tensor-4x2x2"], examples))
    run = tn.compile(graph, backend="numpy")
    assert run(tn.init(graph, seed=0), examples.train_inputs[0].numpy()).shape == (6, 3)


@pytest.mark.slow
def test_a_run_by_sgd_stands_beside_the_others(finished: Finished) -> None:
    folder, _, _ = finished
    data = json.loads((folder / "results.json").read_text())["environment"]["data"]["place"]
    settings: dict[str, Any] = {"rows": "tensor-4x4x8", "threads": 1, "recipe": {"batch": 10}}
    _, printed = study(folder, task="thesis", data=data, epochs=1, optimizers="sgd", measure=True, **settings)
    names = [each["name"] for each in json.loads((folder / "results.json").read_text())["results"]]
    assert names == ["tensor-4x4x8-adamw", "tensor-4x4x8-adam", "tensor-4x4x8-sgd"]
    assert "kept" not in printed
