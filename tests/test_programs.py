"""Programs against the oracle on every backend: written ones, those that once went wrong, and random ones.

`data/equations.txt` holds an equation or more a record, `data/programs.txt` what random programs have found. What is
compared stands in `differential.check`: values, gradients, tangents, and what reads back.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from random import SystemRandom
from typing import Any

import pytest

from tensornet.ops.table import FUNCTIONS

from .conftest import sampled
from .differential import DEVICES, check, outcome, shrunk, survey
from .programs import SUMMED_ALONE, Program, program, recorded, records

pytestmark = pytest.mark.filterwarnings(SUMMED_ALONE, "ignore:.* encountered in:RuntimeWarning")

KEPT = Path(__file__).parent / "data" / "programs.txt"
SHARE_REFUSED = 0.15
BY_DAY = {"numpy": 1, "torch": 4, "jax": 48, "array-api-strict": 6}
"""On a backend each so many of the written programs run by day, and all of them by night."""
THOROUGH = 12
"""By day each so many of them is thorough on NumPy; those that torch has leave their gradients to it."""
GRADIENTS = {"torch": 1}
"""Torch takes value_and_grad and tangents, and the others gradient: `check` goes by seeds."""
AT_EACH_SAVE = 6
"""On NumPy each so many of them is in `make quick`."""


WRITTEN = records("equations.txt")


def title(record: str) -> str:
    return record.splitlines()[-1]


def written() -> list[Any]:
    """Each program by day with a share of the backends; by night whole, with each."""
    found = []
    for number, record in enumerate(WRITTEN):
        cases = {backend: as_on(record, backend) for backend in BY_DAY}
        found.append(pytest.param(cases, None, marks=pytest.mark.slow, id=f"{title(record)}-whole"))
        for place, (backend, every) in enumerate(BY_DAY.items()):
            if (number + place) % every:
                continue
            case = cases[backend]
            if backend == "torch":
                case = replace(case, seed=7)  # without tangents
            if backend == "numpy":  # each second gradient is read back from its text
                case = replace(case, seed=3 * (number % 2))
                if (number + 1) % BY_DAY["torch"] == 0:
                    case = replace(case, gradients=False)
            marks = [pytest.mark.quick] if backend == "numpy" and not number % AT_EACH_SAVE else []
            thorough = backend != "torch" and number % THOROUGH == 0
            found.append(
                pytest.param({backend: case}, thorough, marks=marks, id=f"{title(record)}-{backend}")
            )
    return found


def as_on(record: str, backend: str) -> Program:
    """A program as it is tried on a backend."""
    case = replace(recorded(record), seed=GRADIENTS.get(backend, 0))
    if backend not in ("numpy", "torch"):
        case = replace(case, gradients=False)  # JAX compiles them long, and they are the same graphs
    return case


@pytest.mark.parametrize(("cases", "thorough"), written())
def test_written_programs(cases: dict[str, Program], thorough: bool | None) -> None:
    for backend, case in cases.items():
        check(case, backend, thorough=backend != "torch" if thorough is None else thorough)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", DEVICES)
def test_written_programs_on_a_gpu(backend: str) -> None:
    if backend == "cupy":
        pytest.importorskip("cupy")
    wrong = dict[str, str]()
    for record in WRITTEN:
        if backend != "cupy" and "hardswish" in record:
            continue  # PyTorch's kernel on CUDA has 1/6 to seven digits, in float64 too
        if kind := outcome(recorded(record), backend):
            wrong[record] = kind
    assert not wrong


def test_every_function_is_in_a_written_program() -> None:
    words = {word for record in WRITTEN for word in re.findall(r"\w+(?=[\[(])", record)}
    others = {"reciprocal", "add", "dropout", "dropped"}  # supported otherwise, or random
    rows = (
        row for row in FUNCTIONS.values() if not row.is_kernel and not row.implementations and not row.infix
    )
    assert {row.name for row in rows} - others <= words


@pytest.mark.parametrize("backend", sampled(BY_DAY, ["numpy"]))
@pytest.mark.parametrize("record", records("programs.txt"), ids=title)
def test_what_went_wrong_once(record: str, backend: str) -> None:
    assert outcome(recorded(record), backend) in ("", "unsure: both refuse it")


def test_random_programs() -> None:
    found = survey(0, range(24), every=24, smaller=False)
    assert not found.findings, str(found)
    assert sum(found.refused.values()) < SHARE_REFUSED * found.tried, str(found)


@pytest.mark.slow
def test_fresh_programs() -> None:
    """Other programs each time; what goes wrong is kept."""
    seed = SystemRandom().randrange(2**31)
    found = survey(seed, range(3000))
    if found.findings:
        with KEPT.open("a") as file:
            file.writelines(f"\n{each}" for kind, each in found.examples.items() if kind in found.findings)
    assert not found.findings, str(found)


def test_a_record_is_the_program() -> None:
    for number in range(20):
        case = program(1, number)
        again = recorded(case.record())
        assert (again.text, again.given, again.outputs) == (case.text, case.given, case.outputs)
        assert all(
            (array == again.arrays()[name]).all() for name, array in case.arrays().items() if not case.special
        )


def test_a_finding_becomes_smaller() -> None:
    case = program(0, 3)
    least = shrunk(case, lambda each: "=" in each.text)
    assert len(least.text) <= len(case.text)
