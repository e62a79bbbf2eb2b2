"""What the site shows of data: speeds of `benchmarks/results` and options of the command line; downloads that run."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
CHECK = Path(__file__).parent / "gallery" / "against.py"
IMPORT = "from against import check\n"
FUTURE = "from __future__ import annotations\n"
OURS = "tensornet"
WAYS = {"forward": "forward", "backward": "both ways", "step": "step of AdamW"}
MODULES = {"tcl": "contractions --only TCL"}  # where a suite is no module of its own


def commands() -> str:
    """The commands and their options, as typer documents them."""
    command = [sys.executable, "-m", "typer", "tensornet.cli", "utils", "docs", "--name", "tensornet"]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return found.split("\n", 1)[1]


def measured(suite: str) -> str:
    """A table of the means of a suite, device by device, and one of its cases for each."""
    documents = [
        json.loads(each.read_text(encoding="utf-8")) for each in sorted(RESULTS.glob(f"{suite}-*.json"))
    ]
    heads = list(dict.fromkeys(head for each in documents for head in ratios(each)))
    lines = [_line(["", *(f"{other}, {way}" for other, way in heads)]), _rule(heads)]
    for each in documents:
        found = ratios(each)
        means = (_mean(list(found[head].values())) if head in found else "" for head in heads)
        lines.append(_line([_place(each), *means]))
    return "\n\n".join(["\n".join(lines), *(_cases(each) for each in documents)])


def ratios(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, float]]:
    """The time of others divided by ours: (another, what is timed) to case to ratio."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in document["rows"]:
        way = WAYS[row["measure"]] + (", compiled" if row["mode"] == "compile" else "")
        for other, each in row["seconds"].items():
            if other != OURS:
                ratio = each["median"] / row["seconds"][OURS]["median"]
                found.setdefault((other, way), {})[row["case"]] = ratio
    return found


def add_check(path: Path) -> None:
    """Puts the module with the check of the gallery into a download that imports it: a script, a notebook, or a zip."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            members = {each: archive.read(each).decode("utf-8") for each in archive.namelist()}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in members.items():
                archive.writestr(name, with_check(text, Path(name).suffix))
    else:
        path.write_text(with_check(path.read_text(encoding="utf-8"), path.suffix), encoding="utf-8")


def with_check(text: str, suffix: str) -> str:
    """The text of a script or a notebook, with the source of the check in the place of its import."""
    source = CHECK.read_text(encoding="utf-8").replace(FUTURE, "")
    if suffix == ".py":
        return text.replace(IMPORT, source)
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        cell["source"] = ["".join(cell["source"]).replace(IMPORT.strip(), source.strip())]
    return json.dumps(notebook, indent=1)


def _cases(document: dict[str, Any]) -> str:
    found = ratios(document)
    lines = [_line(["case", *(f"{other}, {way}" for other, way in found)]), _rule(found)]
    for case in dict.fromkeys(row["case"] for row in document["rows"]):
        lines.append(_line([case, *(f"{each[case]:.2f}" if case in each else "" for each in found.values())]))
    versions = ", ".join(f"{name} {number}" for name, number in document["versions"].items())
    told = f"`{_command(document)}`, with {versions}."
    summary = f"<details><summary>Case by case: {_place(document)}</summary>"
    return "\n\n".join([summary, told, "\n".join(lines), "</details>"])


def _place(document: dict[str, Any]) -> str:
    threads = f", {document['threads']} threads" if document["size"] == "usual" else ""
    return f"{document['device']}{threads}, {document['dtype']}".replace(" 1 threads", " 1 thread")


def _command(document: dict[str, Any]) -> str:
    module = MODULES.get(document["suite"], document["suite"])
    if document["size"] == "usual":
        clock = " --clock process" if document["clock"] == "process" else ""
        return f"python -m benchmarks.{module} --threads {document['threads']}{clock}"
    return f"python -m benchmarks.{module} --device cuda:0 --size large --dtype {document['dtype']}"


def _mean(found: list[float]) -> str:
    return f"{statistics.geometric_mean(found):.2f} ({min(found):.2f})"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rule(heads: Iterable[object]) -> str:
    return "|---|" + "".join("--:|" for _ in heads)
