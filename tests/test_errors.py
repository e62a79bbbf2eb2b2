"""Error texts: each record of `data/errors.txt` is Python, and behind '|' the whole message that its last line raises.

A line of a message that ends in … holds for its beginning: the rest is Python's, or another library's. A record runs in
an empty folder of its own.
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy
import torch

import tensornet as tn
from tensornet import models

from .programs import SUMMED_ALONE
from .studies import COMPRESSED, WRITTEN, wrong_study

OF_OTHERS = (
    "ignore:the matrix subclass",
    "ignore:The PyTorch API of nested",
    "ignore:Sparse CSR",
    "ignore:torch.quantize_per",
)
pytestmark = [pytest.mark.quick, pytest.mark.filterwarnings(SUMMED_ALONE, *OF_OTHERS)]

TABLE = Path(__file__).parent / "data" / "errors.txt"
LONGEST = 240
"""A longer line of a message is held against so many characters: lists of all names grow."""
NAMES: dict[str, Any] = {
    "tn": tn, "np": np, "torch": torch, "nn": torch.nn, "models": models, "sympy": sympy, "pytest": pytest,
    "Path": Path, "json": json,
    "WRITTEN": WRITTEN, "COMPRESSED": COMPRESSED, "wrong_study": wrong_study,
}  # fmt: skip


def records() -> dict[str, list[str]]:
    """The records under each title."""
    found, heading, title = dict[str, list[str]](), "", ""
    for each in TABLE.read_text().split("\n\n"):
        if each.startswith("## "):
            heading = each[3:].strip()
        elif each.startswith("# "):
            title = each[2:].strip()
        elif each.strip():
            found.setdefault(f"{heading}: {title}", []).append(each.strip("\n"))
    return found


RECORDS = records()


def raised(code: str) -> str:
    """What the last line raises, as it stands in the table."""
    lines, names = code.split("\n"), dict(NAMES)
    exec("\n".join(lines[:-1]), names)
    try:
        exec(lines[-1], names)
    except tn.TensornetError as error:
        message = re.sub(r"/\S*/mine\.toml", "mine.toml", f"{type(error).__name__}: {error}")
    else:
        pytest.fail(f"nothing is raised by\n{code}")
    shown = (line if len(line) <= LONGEST else f"{line[:LONGEST]}…" for line in message.split("\n"))
    return "\n".join(f"| {line}".rstrip() for line in shown)


def agrees(found: str, kept: str) -> bool:
    """Whether a message is the one that is kept, of which a line may say its beginning alone."""
    lines = itertools.zip_longest(found.split("\n"), kept.split("\n"), fillvalue="")
    return all(one == two or (two.endswith("…") and one.startswith(two[:-1])) for one, two in lines)


@pytest.mark.parametrize("title", RECORDS)
def test_errors(
    title: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = list[str]()
    for number, record in enumerate(RECORDS[title]):
        code, bar, message = record.partition("\n|")
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        found, kept = raised(code), (bar + message).lstrip("\n")
        if agrees(found, kept) or found == kept:
            continue
        if request.config.getoption("--update"):
            TABLE.write_text(TABLE.read_text().replace(f"\n\n{record}\n", f"\n\n{code}\n{found}\n", 1))
        else:
            wrong.append(f"{code}\n{found}")
    assert not wrong, "\n\n".join(wrong)


def test_a_device_that_is_not_there_is_refused_in_torch_s_words() -> None:
    """Which are others in each build of torch."""
    from tensornet.study.training import Hardware

    with pytest.raises(tn.BackendError, match=r"there is no device 'cuda:77': .*\nfix: give"):
        Hardware.chosen("cuda:77")
