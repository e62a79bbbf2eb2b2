"""Random programs against the oracle, and those that once went wrong."""

from __future__ import annotations

from pathlib import Path
from random import SystemRandom

import pytest

from .differential import outcome, shrunk, survey
from .programs import program, recorded

KEPT = Path(__file__).parent / "data" / "programs.txt"
"""Programs that went wrong once, one a record."""

SHARE_REFUSED = 0.15


def kept() -> list[str]:
    return [each for each in KEPT.read_text().split("\n\n") if each.strip()]


@pytest.mark.parametrize("record", kept(), ids=lambda record: record.splitlines()[-1])
@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_what_went_wrong_once(record: str, backend: str) -> None:
    assert outcome(recorded(record), backend) in ("", "unsure: both refuse it")


def test_random_programs() -> None:
    found = survey(0, range(150), every=75, smaller=False)
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
