"""What commands are given that is wrong: one message, exit code 2, and nothing written."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from tensornet import cli

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


def ended(*arguments: str) -> str:
    """Runs a command; its exit code, as text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["tensornet", *arguments])
        with pytest.raises(SystemExit) as found:
            cli.main()
    return str(found.value)


COMPRESS = ("compress", "net.safetensors", "--equations", "net.txt", "--inputs", "x")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "file/small.safetensors"], "cannot write file/small.safetensors: "),
        (["--out", "net.safetensors"], "net.safetensors is there already"),
        (["--out", "file/deep/small.safetensors", "--json"], "cannot write "),
    ],
)
def test_results_that_cannot_be_written_are_refused_beforehand(
    options: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert message in refused(capsys, *COMPRESS, "--parameters", "0.5", *options)
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


@pytest.mark.parametrize(
    ("option", "amount"), [("--error", "2"), ("--error", "0"), ("--seconds", "2"), ("--parameters", "1.5")]
)
def test_budgets_above_all_there_is(option: str, amount: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is no budget" in refused(capsys, *COMPRESS, option, amount)


def test_what_is_pickled_is_told_how_to_be_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({name: torch.tensor(array) for name, array in ARRAYS.items()}, "net.pt")
    np.savez("net.npz", **ARRAYS)  # type: ignore[arg-type]
    for name in ("net.pt", "net.npz"):
        assert "nothing is unpickled here" in refused(capsys, "compress", name, "--parameters", "0.5")
    (folder / "half.safetensors").write_bytes((folder / "net.safetensors").read_bytes()[:-40])
    told = refused(capsys, "compress", "half.safetensors", "--parameters", "0.5")
    assert "write it anew" in told
    assert "unpickled" not in told


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
    ("config", "message"),
    [
        ("{]", "is no JSON"),
        ("[1]", "names no class"),
        ('{"architectures": [3]}', "names no class"),
        ('{"architectures": ["pipeline"]}', "transformers has no 'pipeline'"),
        (json.dumps(CONFIG), "cannot be loaded"),
    ],
)
def test_folders_that_hold_no_model(
    config: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    (folder / "bert").mkdir()
    (folder / "bert" / "config.json").write_text(config, encoding="utf-8")
    assert message in refused(capsys, "compress", "bert", "--parameters", "0.5")


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


def test_drawings_are_written_whole_or_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = ("draw", "net.txt", "--inputs", "x", "--out")
    assert "cannot write file/net.svg" in refused(capsys, *draw, "file/net.svg")
    assert ended(*draw, "new/net.svg") == "0"
    assert [path.name for path in (folder / "new").iterdir()] == ["net.svg"]


SWEEP = (
    "sweep",
    "y[b,o] = x[b,i] * U[r,i] * V[o,r]",
    "--inputs",
    "x",
    "--over",
    "r=1,2",
    "--backend",
    "numpy",
)


def test_what_was_swept_is_told_though_no_picture_can_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--size", "b=4,i=8,o=8", "--no-measure")
    assert ended(*SWEEP, *sizes, "--picture", "file/net.svg", "--json") == "2"
    done = capsys.readouterr()
    assert [row["parameters"] for row in json.loads(done.out)["rows"]] == [16, 32]
    assert "error: cannot write file/net.svg" in done.err


def test_rows_that_need_more_memory_than_there_is_are_not_timed(capsys: pytest.CaptureFixture[str]) -> None:
    large = ("--size", f"b={10**7},i={10**8},o=8", "--rounds", "1")
    assert ended(*SWEEP, *large, "--json") == "0"
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert all("not timed: " in row["note"] and row["seconds"] is None for row in rows)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_a_sweep_on_a_device_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, *SWEEP[:-1], "torch", "--device", "cuda:0", "--size", "b=4,i=8,o=8")
    assert "there is no device 'cuda:0' here" in told


def test_a_setting_is_fixed_or_swept(capsys: pytest.CaptureFixture[str]) -> None:
    named = ("sweep", "linear", "--set", "in_sizes=4,4", "--set", "out_sizes=4,4", "--set", "rank=1")
    assert "'rank' is given by --set and by --over" in refused(capsys, *named, "--over", "rank=1,2")


def test_sizes_reach_layers_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    named = ("count", "linear", "--set", "in_sizes=4,4", "--set", "out_sizes=4,4", "--json", "--size")
    assert ended(*named, "lead=10") == "0"
    document = json.loads(capsys.readouterr().out)
    assert (document["sizes"]["lead"], document["flops"]) == (10, 2 * 10 * 16 * 16)
    assert "'leed' is not an open size" in refused(capsys, *named, "leed=10")
    assert "--set is for layers and models" in refused(capsys, "count", "net.txt", "--set", "i=3")


def test_a_study_of_an_empty_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "empty.toml").write_text("# nothing\n", encoding="utf-8")
    assert "empty.toml says nothing" in refused(capsys, "study", "empty.toml", "--out", "results")
    assert not (folder / "results").exists()
