"""A share of `make fuzz` with every run of the tests, the same input each time; `test_programs.py` has programs."""

from __future__ import annotations

import pytest

from .fuzz import run
from .fuzz.targets import TARGETS
from .programs import SUMMED_ALONE

pytestmark = pytest.mark.filterwarnings(SUMMED_ALONE)

SHARE = 0.008


@pytest.mark.parametrize("name", TARGETS)
def test_random_input_finds_nothing(name: str) -> None:
    target = TARGETS[name]
    report = run(target, range(max(5, round(SHARE * target.attempts))))
    assert not report.findings, "\n".join(map(str, report.findings.values()))
    assert report.accepted
