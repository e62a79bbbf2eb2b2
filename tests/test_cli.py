"""The command line: what it prints, and what it refuses."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

import tensornet as tn
from tensornet import cli
from tensornet.ops.table import FUNCTIONS, SUM

from .conftest import normal, rows

# ---------------------------------------------------------------------------- The command line


COMMANDS = ("plan", "count", "draw", "sweep", "compress", "functions", "study", "calibrate")


PLAIN = {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """The command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name, value in PLAIN.items():
            patch.setenv(name, value)
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code = main(*arguments)
    return subprocess.CompletedProcess(arguments, int(code), out.getvalue(), err.getvalue())


def started(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own."""
    command = [sys.executable, "-X", "utf8", "-m", "tensornet", *arguments]
    environment = {**os.environ, **PLAIN}
    return subprocess.run(
        command, input=stdin, capture_output=True, env=environment, timeout=120, check=False
    )


def test_help_reads_well() -> None:
    done = run("--help")
    assert done.returncode == 0
    for word in ("fewest FLOPs", "handwritten", *COMMANDS):
        assert word in done.stdout
    for command in COMMANDS:
        assert "--json" in run(command, "--help").stdout


def test_plan_shows_the_plan_beside_the_others() -> None:
    sizes = ["--size", "b=1000,i=8,j=8", "--size", "p=8,q=8"]
    done = run("plan", "y[b,p,q] = x[b,i,j] * U[p,i] * V[q,j]", "--inputs", "x", *sizes, "--code")
    assert done.returncode == 0
    for word in ("this plan:", "as written:", "fewest FLOPs:", "def forward(x, U, V):"):
        assert word in done.stdout


def test_equations_are_counted_and_come_from_files(tmp_path: Path) -> None:
    text = "h[b,r] = x[b,i] * U[r,i]\ny[b,o] = h[b,r] * V[o,r]\n"
    file = tmp_path / "low.txt"
    file.write_text(text, encoding="utf-8")
    sizes = ["--inputs", "x", "--size", "b=10,i=64,o=32,r=4", "--json"]
    found = [json.loads(run("count", given, *sizes).stdout) for given in (str(file), text)]
    assert {each["parameters"] for each in found} == {4 * (64 + 32)}
    planned = json.loads(run("plan", str(file), *sizes).stdout)
    assert {each["flops"] for each in found} == {planned["flops"]}
    absent = run("plan", str(tmp_path / "absent.txt"))
    assert absent.returncode == 2
    assert "no equation, and no file of such" in absent.stderr


def test_files_of_equations_are_drawn_swept_and_compressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "net.txt"
    file.write_text("h[b,k] = tanh(x[b,i] * U[k,i])\ny[b,o] = h[b,k] * V[o,k]\n", encoding="utf-8")

    def told(*arguments: str) -> Any:
        result = CliRunner().invoke(cli.app, [*arguments, "--inputs", "x", "--json"])
        assert result.exit_code == 0, result.output + str(result.exception)
        return json.loads(result.stdout)

    assert told("draw", str(file), "--out", "net.svg") == {"file": "net.svg"}
    assert "tanh" in (tmp_path / "net.svg").read_text(encoding="utf-8")
    told("draw", "trl", "--set", "sizes=4,4", "--set", "outputs=3", "--out", "trl.svg")
    told("draw", "vit", "--set", "depth=2", "--unfold", "--style", "layers", "--out", "vit.mmd")
    assert "subgraph" in Path("vit.mmd").read_text(encoding="utf-8")
    swept = told("sweep", str(file), "--over", "k=8,16", "--size", "b=4,i=8,o=8", "--no-measure")
    assert [row["parameters"] for row in swept["rows"]] == [8 * 16, 16 * 16]
    draw = np.random.default_rng(0)
    arrays = {"U": draw.standard_normal((16, 12)), "V": draw.standard_normal((10, 16))}
    save_file(arrays, tmp_path / "net.safetensors")
    small = told("compress", "net.safetensors", "--equations", str(file), "--parameters", "0.5")
    read = tn.load_compressed(small["file"])
    assert tn.parameter_count(read.model) == small["parameters"][1] <= 0.5 * 16 * 22
    assert [leaf.name for leaf in read.model.inputs] == ["x"]
    page = tmp_path / "page.html"
    options = ["--bytes", "0.3", "--compare", "--report", "page.html", "--out", "c"]
    small = told("compress", "net.safetensors", "--equations", str(file), *options)
    rows = dict[str, dict[str, Any]]()
    for row in small["compared"]:  # the budget first, then other sizes
        rows.setdefault(row["settings"]["method"], row)
    weights = arrays.values()
    scales = [np.abs(each).max(1, keepdims=True) for each in weights]
    plain = {  # rows rounded to the nearest of 255 and of 16 values
        "int8": [s * np.round(each / s * 127) / 127 for each, s in zip(weights, scales, strict=True)],
        "int4": [
            s * (np.floor(each / s * 7.999) * 2 + 1) / 15 for each, s in zip(weights, scales, strict=True)
        ],
    }
    for name, ends in plain.items():
        lost = [((a - b) ** 2).sum() / (a**2).sum() for a, b in zip(weights, ends, strict=True)]
        assert rows[name]["error"] <= 1.05 * np.sqrt(np.mean(lost))
    assert rows.keys() == {"yours", "SVD", "int8", "int4"}
    assert rows["yours"]["error"] <= min(row["error"] for row in rows.values()) * 1.01
    assert all(row["stored"] <= 0.3 * 8 * 16 * 22 for row in rows.values())
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") == 2  # by bytes and by time
    assert rows["SVD"]["relative"] > 0
    assert all(word in text for word in ("<svg", "SVD", "int4", "<h2>Weights</h2>", "net.safetensors"))
    refused = {"y[b,o] = x[b,i] * U[o,i]": "disagree about V", "": "says nothing of the equations"}
    for wrong, message in refused.items():
        more = ["--out", "b", "--inputs", "x", *(["--equations", wrong] if wrong else [])]
        done = CliRunner().invoke(cli.app, ["compress", "net.safetensors", "--parameters", "0.5", *more])
        assert message in str(done.exception)


def test_plan_as_json_and_from_standard_input() -> None:
    sizes = ("--size", "b=10,i=4,o=2", "--json")
    document = json.loads(
        run("plan", "-", "--inputs", "x", *sizes, stdin="y[b,o] = x[b,i] * W[o,i]\n").stdout
    )
    assert document["flops"] == 160
    assert [row["name"] for row in document["alternatives"]] == ["as written", "fewest FLOPs"]


NEWER = sys.version_info >= (3, 11)  # what Python says of what it cannot read
UNPRINTABLE = "invalid non-printable character U+001B" if NEWER else "invalid syntax"

WRONG = [(shlex.split(command), told.replace("\\n", "\n")) for command, told in rows("commands.txt")]
WRONG += [
    (
        ["plan", "y[b] = x[b]", "--inputs", "x", "--outputs", "\x1b[31mz"],
        f"syntax error: {UNPRINTABLE}\n  line 1: \\x1b: output\n",
    )
]


def main(*arguments: str) -> str:
    """Runs the command line in this process; its exit code, as text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["tensornet", *arguments])
        with pytest.raises(SystemExit, match=r"^\d+$") as ended:
            cli.main()
    return str(ended.value)


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_a_wrong_command_ends_with_two_and_one_message(
    arguments: list[str], message: str, form: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(*arguments, *form) == "2"
    done = capsys.readouterr()
    assert done.out == ""
    assert done.err.startswith(message if message == "Usage:" else f"error: {message}")


def test_sizes_without_their_option_are_told_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("plan", "y[b,o] = x[b,i]*W[o,i]", "b=64", "i=3") == "2"
    assert capsys.readouterr().err.endswith("fix: give sizes by an option, --size b=64,i=3\n")


def test_sizes_left_open_are_assumed_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "y[b,o] = x[b,i]*W[o,i]", "--inputs", "x", "--size", "i=4"]
    assert main(*arguments) == "0"
    shown = capsys.readouterr().out
    assert shown.startswith("plan for numpy on cpu, float32, assuming b=64, o=64\n")
    graph = tn.layer("y[b,o] = x[b,i]*W[o,i]", inputs="x", i=4)
    assert str(tn.plan(graph, b=3)).startswith("plan for numpy on cpu, float32, at b=3, assuming o=64\n")
    assert str(tn.plan(graph, b=64, o=64)).startswith("plan for numpy on cpu, float32, at b=64, o=64\n")
    main(*arguments, "--json")
    document = json.loads(capsys.readouterr().out)
    assert (dict(document["sizes"]), document["assumed"]) == ({"b": 64, "o": 64}, ["b", "o"])
    assert document["flops"] == 2 * 64 * 64 * 4


@pytest.mark.parametrize(
    ("piped", "message"),
    [
        (b"y[b] = x[b]\xff", "standard input is no text in UTF-8: byte 0xff at position 11"),
        (b"y[b] = x[b]\x00", "syntax error: "),
        (b"", "the input 'x' is never used"),
    ],
)
def test_what_is_piped_in_may_be_no_text(piped: bytes, message: str) -> None:
    done = started("plan", "-", "--inputs", "x", stdin=piped)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().startswith(f"error: {message}")


def test_a_terminal_of_few_letters_shows_the_rest_as_question_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = started("plan", "y[b] = x[b,i]*v[i]", "--inputs", "x")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"1.00? the time" in done.stdout


def test_count_prints_formula_number_and_parts() -> None:
    done = run("count", "tcl", "--set", "sizes=4,4,3", "--set", "ranks=4,4,6")
    assert "parameters: i1*r1 + i2*r2 + i3*r3 = 50" in done.stdout
    settings = ["--set", "sizes=4,4", "--set", "outputs=10", "--set", "rank=2,2,3"]
    document = json.loads(run("count", "trl", *settings, "--json").stdout)
    assert document["parameters"] == 68 == sum(part["parameters"] for part in document["parts"])
    assert "tucker_to_tensor" in run("count").stdout
    wide = run("count", "tensor_swin_t").stdout.splitlines()
    assert max(map(len, wide)) <= 80
    assert "    2*A3*B3*C3" in wide
    assert set(json.loads(run("count", "--json").stdout)["tcl"]) == {"sizes", "ranks", "bias"}


def test_count_says_at_which_sizes_it_planned(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["count", "tcl", "--set", "sizes=4,4", "--set", "ranks=2"]
    main(*arguments)
    assert "the FLOPs are those of the order planned assuming lead=64" in capsys.readouterr().out
    main(*arguments, "--json")
    assert json.loads(capsys.readouterr().out)["assumed"] == {"lead": 64}


def test_functions_lists_the_whole_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("functions", "--json") == "0"
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == {*(name for name, row in FUNCTIONS.items() if not row.is_kernel), "sum"}
    normalize = rows["normalize"]
    assert [normalize[name] for name in ("kind", "form", "axes", "arity", "options")] == [
        *("axis", "normalize[j](a, eps=1e-05)", "kept", [1, 1], {"eps": 1e-5})
    ]
    assert [normalize[name] for name in ("amounts", "infix", "yields", "complex")] == [
        [],
        "",
        "real",
        "refused",
    ]
    assert normalize["formula"] == "(a − mean) / √(variance + eps)"
    assert normalize["derivative"] == ["rsqrt(var[j](a) + eps) * (g - mean[j](g) - y * mean[j](g * y))"]
    assert normalize["example"] == "y[j] = normalize[j](a[j])"
    assert len(normalize) == 13
    assert main("functions") == "0"
    shown = capsys.readouterr().out
    for row in rows.values():
        assert row["name"] in shown
    assert "softmax[j](a)" in shown
    assert main("functions", "--page", "--json") == "0"
    assert json.loads(capsys.readouterr().out)["text"].startswith("# The language")


SYMBOLS = {", …": "", "(before, after)": "(1, 1)", "rate": "0.5", "i=s": "i=1", "low, high": "0, 1"}
SYMBOLS |= {", start)": ", 0)", "[t]": "[j]"}
"""What stands in the forms for something else, and one such thing."""
AXES = {
    "top": ("i,k", "i,j"),
    "index": ("i", ""),
    **dict.fromkeys(("repeat", "stack", "onehot"), ("i,j", "i")),
}
"""What is on the left, and what operands have, where that is not the same."""


@pytest.mark.parametrize(
    "row", [*(row for row in FUNCTIONS.values() if not row.is_kernel), SUM], ids=lambda row: row.name
)
def test_every_function_reads_as_it_is_listed(row: Any) -> None:
    """The form in the list, put into an equation, calls the function of that name; so does its example."""
    form = row.form
    for symbol, example in SYMBOLS.items():
        form = form.replace(symbol, example)
    left, axes = AXES.get(row.name, ("i" if row.kind == "reduction" else "i,j", "i,j"))
    operands = [
        f"{name}[{axes}]" for name in ("a", "b", "condition", "kept") if re.search(rf"\b{name}\b", form)
    ]
    sizes = {axis: 2 for axis in "ijk" if axis in left and axis not in " ".join(operands)}
    shown = [name for name, _ in row.shown.given if name not in "ijk"]
    for equation in (
        tn.layer(f"y[{left}] = {form}", inputs=operands, **sizes).equations[-1],
        tn.layer(row.shown.equation, inputs=shown).equations[-1],
    ):
        assert row.name in [getattr(part, "function", "sum") for part in equation.right.subexpressions]


def test_calibrate_keeps_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORNET_CACHE", str(tmp_path))
    document = json.loads(run("calibrate", "--backend", "numpy", "--json").stdout)
    assert Path(document["path"]).parent == tmp_path
    assert json.loads(Path(document["path"]).read_text())["content"]["flops"] == document["flops"]
    for wrong in (["--backend", "cupy"], ["--device", "gpu"], ["--backend", "torch", "--device", "cuda:99"]):
        assert main("calibrate", *wrong, "--json") == "2"
    assert len(list(tmp_path.iterdir())) == 1


def test_warnings_are_told_without_a_place_in_the_source(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main("count", "linear", "--set", "rank=0.001", *SMALL) == "0"
    told = capsys.readouterr().err
    assert told.startswith("warning: rank=0.001 asks for")
    assert ".py" not in told


SMALL = ("--set", "in_sizes=7,7", "--set", "out_sizes=7,7", "--set", "factorization=cp")


def test_version() -> None:
    assert started("--version").stdout == b"tensornet 0.2.0\n"


# ---------------------------------------------------------------------------- What commands are given that is wrong


ARRAYS = {
    "A": normal(32, 64).astype("float32"),
    "B": normal(16, 32, seed=1).astype("float32"),
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
    code = main(*arguments)
    told = capsys.readouterr().err
    assert code == "2", told
    assert "error: " in told
    assert "fix: " in told
    return told


COMPRESS = ("compress", "net.safetensors", "--equations", "net.txt", "--inputs", "x")
SWEEP = shlex.split("sweep 'y[b,o] = x[b,i] * U[r,i] * V[o,r]' --inputs x --over r=1,2 --backend numpy")
LINEAR = ("linear", "--set", "in_sizes=4,4", "--set", "out_sizes=4,4")


@pytest.mark.parametrize(("command", "message"), rows("refused.txt"))
def test_what_is_wrong_is_refused_and_leaves_all_as_it_was(
    command: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "empty.toml").write_text("# nothing\n", encoding="utf-8")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert message in refused(capsys, *shlex.split(command))
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
    assert main(*COMPRESS, "--parameters", "0.5") != "0"
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
    assert main("compress", ".", "--parameters", "0.5") == "0"
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
    assert main("draw", "net.txt", "--inputs", "x", "--out", "new/net.svg") == "0"
    assert [path.name for path in (folder / "new").iterdir()] == ["net.svg"]


def test_no_name_of_a_file_holds_a_nul_byte(folder: Path) -> None:
    with pytest.raises(tn.TensornetError, match=r"cannot write .*: no name of a file holds a NUL byte"):
        tn.draw(tn.layer("y[i] = x[i]", inputs="x"), "net\0.svg")


def test_what_was_swept_is_told_though_no_picture_can_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--size", "b=4,i=8,o=8", "--no-measure")
    assert main(*SWEEP, *sizes, "--picture", "file/net.svg", "--json") == "2"
    done = capsys.readouterr()
    assert [row["parameters"] for row in json.loads(done.out)["rows"]] == [16, 32]
    assert "error: cannot write file/net.svg" in done.err


def test_rows_that_need_more_memory_than_there_is_are_not_timed(capsys: pytest.CaptureFixture[str]) -> None:
    large = ("--size", f"b={10**12},i=8,o=8", "--rounds", "1")
    assert main(*SWEEP, *large, "--json") == "0"
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert all("not timed: " in row["note"] and row["seconds"] is None for row in rows)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_a_sweep_on_a_device_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, *SWEEP[:-1], "torch", "--device", "cuda:0", "--size", "b=4,i=8,o=8")
    assert "there is no device 'cuda:0' here" in told


def test_sizes_reach_layers_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("count", *LINEAR, "--json", "--size", "lead=10") == "0"
    document = json.loads(capsys.readouterr().out)
    assert (document["sizes"]["lead"], document["flops"]) == (10, 2 * 10 * 16 * 16)
