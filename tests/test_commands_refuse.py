"""What commands are given that is wrong: one message, exit code 2, and nothing written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import tensornet as tn

from .test_cli import main as ended

ARRAYS = {
    "A": np.random.default_rng(0).standard_normal((32, 64)).astype("float32"),
    "B": np.random.default_rng(1).standard_normal((16, 32)).astype("float32"),
}
TEXT = "h[b,k] = tanh(x[b,i] * A[k,i])\ny[b,o] = h[b,k] * B[o,k]"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with tensors and their equations, in which commands run."""
    monkeypatch.chdir(tmp_path)
    save_file(ARRAYS, "net.safetensors")
    (tmp_path / "net.txt").write_text(TEXT, encoding="utf-8")
    (tmp_path / "file").touch()
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Runs a command that must end with 2 and a message; what it says."""
    code = ended(*arguments)
    told = capsys.readouterr().err
    assert code == "2", told
    assert "error: " in told
    assert "fix: " in told
    return told


COMPRESS = ("compress", "net.safetensors", "--equations", "net.txt", "--inputs", "x")
SWEPT = "y[b,o] = x[b,i] * U[r,i] * V[o,r]"
SWEEP = ("sweep", SWEPT, "--inputs", "x", "--over", "r=1,2", "--backend", "numpy")
LINEAR = ("linear", "--set", "in_sizes=4,4", "--set", "out_sizes=4,4")
HALF = ("--parameters", "0.5")

REFUSED = [
    ((*COMPRESS, *HALF, "--out", "file/small.safetensors"), "cannot write file/small.safetensors: "),
    ((*COMPRESS, *HALF, "--out", "net.safetensors"), "net.safetensors is there already"),
    ((*COMPRESS, *HALF, "--out", "file/deep/small.safetensors", "--json"), "cannot write "),
    ((*COMPRESS, "--error", "2"), "the budget error= is 2"),
    ((*COMPRESS, "--error", "0"), "the budget error= is 0"),
    ((*COMPRESS, "--seconds", "2"), "the budget seconds= is 2"),
    ((*COMPRESS, "--parameters", "1.5"), "the budget parameters= is 1.5"),
    (("sweep", *LINEAR, "--set", "rank=1", "--over", "rank=1,2"), "'rank' is given by --set and by --over"),
    (("count", *LINEAR, "--json", "--size", "leed=10"), "'leed' is not an open size"),
    (("count", "net.txt", "--set", "i=3"), "--set is for layers and models"),
    (("study", "empty.toml", "--out", "results"), "empty.toml says nothing"),
    (("study", "--jobs", "2", "--threads", "2000", "--out", "results"), "threads is 2000"),
    (("study", "--shard", "b=data", "--out", "results"), "shard= and links= are for a mesh"),
    (("draw", "net.txt", "--inputs", "x", "--out", "file/net.svg"), "cannot write file/net.svg"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_what_is_wrong_is_refused_and_leaves_all_as_it_was(
    arguments: tuple[str, ...], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "empty.toml").write_text("# nothing\n", encoding="utf-8")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert message in refused(capsys, *arguments)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing stops this user")
def test_a_folder_that_is_for_reading_only(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.chmod(0o500)
    try:
        assert "cannot write " in refused(capsys, *COMPRESS, "--parameters", "0.5")
    finally:
        folder.chmod(0o700)


def test_an_interruption_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(arrays: Any, path: Any, metadata: Any) -> None:
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("safetensors.numpy.save_file", interrupted)
    before = sorted(path.name for path in folder.iterdir())
    assert ended(*COMPRESS, "--parameters", "0.5") != "0"
    assert sorted(path.name for path in folder.iterdir()) == before


def test_what_is_pickled_is_told_how_to_be_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({name: torch.tensor(array) for name, array in ARRAYS.items()}, "net.pt")
    np.savez("net.npz", **ARRAYS)  # type: ignore[arg-type]
    for name in ("net.pt", "net.npz"):
        assert "nothing is unpickled here" in refused(capsys, "compress", name, "--parameters", "0.5")
    (folder / "half.safetensors").write_bytes((folder / "net.safetensors").read_bytes()[:-40])
    assert "write it again" in refused(capsys, "compress", "half.safetensors", "--parameters", "0.5")


def test_types_that_numpy_has_not(capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.torch import save_file as save_tensors

    tensors = {name: torch.tensor(array).to(torch.float8_e4m3fn) for name, array in ARRAYS.items()}
    save_tensors(tensors, "eight.safetensors")
    options = ["--equations", "net.txt", "--inputs", "x", "--parameters", "0.5"]
    assert "'A' is of type F8_E4M3" in refused(capsys, "compress", "eight.safetensors", *options)


CONFIG = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    **{"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64},
    **{"vocab_size": 50, "max_position_embeddings": 16},
}


@pytest.mark.filterwarnings("ignore")  # of transformers
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("{]", "not a valid JSON"),
        ("[1]", "`model_type` key in its config.json"),
        ('{"architectures": [3]}', "`model_type` key in its config.json"),
        (json.dumps(CONFIG | {"architectures": ["pipeline"]}), "no attribute 'from_pretrained'"),
        (json.dumps(CONFIG | {"architectures": ["NoModel"]}), "no attribute NoModel"),
        (json.dumps(CONFIG), "no file named model.safetensors"),
    ],
)
def test_folders_that_hold_no_model(
    config: str, reason: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    (folder / "bert").mkdir()
    (folder / "bert" / "config.json").write_text(config, encoding="utf-8")
    told = refused(capsys, "compress", "bert", "--parameters", "0.5")
    assert "bert cannot be loaded: " in told
    assert reason in told


@pytest.mark.filterwarnings("ignore")  # of transformers
def test_a_folder_of_a_model_is_whole_or_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers")
    transformers.BertModel(transformers.BertConfig(**CONFIG)).save_pretrained("bert")
    weights = folder / "bert" / "model.safetensors"
    content, arrays = weights.read_bytes(), load_file(weights)
    told = refused(capsys, "compress", "bert", "--parameters", "0.5", "--size", "b=4")
    assert "a module has no use for b=" in told
    monkeypatch.chdir(folder / "bert")
    assert ended("compress", ".", "--parameters", "0.5") == "0"
    monkeypatch.chdir(folder)
    assert (folder / "bert.small.safetensors").is_file()
    save_file(
        {name: each for name, each in arrays.items() if "pooler" not in name}, weights, {"format": "pt"}
    )
    told = refused(capsys, "compress", "bert", "--parameters", "0.5", "--out", "a.safetensors")
    assert "has no values of pooler.dense.bias, pooler.dense.weight" in told
    weights.write_bytes(content[: len(content) // 2])
    told = refused(capsys, "compress", "bert", "--parameters", "0.5", "--out", "a.safetensors")
    assert "cannot be loaded" in told


def test_a_drawing_is_written_whole(folder: Path) -> None:
    assert ended("draw", "net.txt", "--inputs", "x", "--out", "new/net.svg") == "0"
    assert [path.name for path in (folder / "new").iterdir()] == ["net.svg"]


def test_no_name_of_a_file_holds_a_nul_byte(folder: Path) -> None:
    with pytest.raises(tn.TensornetError, match=r"cannot write .*: no name of a file holds a NUL byte"):
        tn.draw(tn.layer("y[i] = x[i]", inputs="x"), "net\0.svg")


def test_what_was_swept_is_told_though_no_picture_can_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--size", "b=4,i=8,o=8", "--no-measure")
    assert ended(*SWEEP, *sizes, "--picture", "file/net.svg", "--json") == "2"
    done = capsys.readouterr()
    assert [row["parameters"] for row in json.loads(done.out)["rows"]] == [16, 32]
    assert "error: cannot write file/net.svg" in done.err


def test_rows_that_need_more_memory_than_there_is_are_not_timed(capsys: pytest.CaptureFixture[str]) -> None:
    large = ("--size", f"b={10**12},i=8,o=8", "--rounds", "1")
    assert ended(*SWEEP, *large, "--json") == "0"
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert all("not timed: " in row["note"] and row["seconds"] is None for row in rows)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_a_sweep_on_a_device_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, *SWEEP[:-1], "torch", "--device", "cuda:0", "--size", "b=4,i=8,o=8")
    assert "there is no device 'cuda:0' here" in told


def test_sizes_reach_layers_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("count", *LINEAR, "--json", "--size", "lead=10") == "0"
    document = json.loads(capsys.readouterr().out)
    assert (document["sizes"]["lead"], document["flops"]) == (10, 2 * 10 * 16 * 16)
