"""Error texts: each record of `data/errors.txt` is Python, and behind '|' the whole message that its last line raises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy
import torch

import tensornet as tn
from tensornet import models

pytestmark = pytest.mark.quick

TABLE = Path(__file__).parent / "data" / "errors.txt"
LONGEST = 240
"""A longer line of a message is held against so many characters: lists of all names grow."""
NAMES: dict[str, Any] = {
    "tn": tn, "np": np, "torch": torch, "models": models, "sympy": sympy, "pytest": pytest,
}  # fmt: skip


def records() -> list[Any]:
    """The records, each under its heading."""
    found, heading, title, seen = [], "", "", dict[str, int]()
    for each in TABLE.read_text().split("\n\n"):
        if each.startswith("## "):
            heading = each[3:].strip()
        elif each.startswith("# "):
            title = each[2:].strip()
        elif each.strip():
            name = f"{heading}: {title}"
            seen[name] = seen.get(name, 0) + 1
            found.append(pytest.param(each.strip("\n"), id=f"{name} {seen[name]}"))
    return found


def raised(code: str) -> str:
    """What the last line raises, as it stands in the table."""
    lines, names = code.split("\n"), dict(NAMES)
    exec("\n".join(lines[:-1]), names)
    try:
        exec(lines[-1], names)
    except tn.TensornetError as error:
        message = f"{type(error).__name__}: {error}"
    else:
        pytest.fail("nothing is raised")
    shown = (line if len(line) <= LONGEST else f"{line[:LONGEST]}…" for line in message.split("\n"))
    return "\n".join(f"| {line}".rstrip() for line in shown)


@pytest.mark.parametrize("record", records())
def test_error(record: str, request: pytest.FixtureRequest) -> None:
    code, bar, message = record.partition("\n|")
    found = raised(code)
    if request.config.getoption("--update"):
        TABLE.write_text(TABLE.read_text().replace(f"\n\n{record}\n", f"\n\n{code}\n{found}\n", 1))
    else:
        assert found == (bar + message).lstrip("\n")


def test_a_device_that_is_not_there_is_refused_in_torch_s_words() -> None:
    """Which are others in each build of torch."""
    from tensornet.study.hardware import Hardware

    with pytest.raises(tn.BackendError, match=r"there is no device 'cuda:77': .*\nfix: give"):
        Hardware.chosen("cuda:77")
