"""A share of `make fuzz` with every run of the tests: some ten seconds, the same input each time."""

from __future__ import annotations

import pytest

from .fuzz import run
from .fuzz.targets import TARGETS
from .programs import SUMMED_ALONE

pytestmark = pytest.mark.filterwarnings(SUMMED_ALONE)


@pytest.mark.parametrize("share", [0.006, pytest.param(0.05, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TARGETS)
def test_random_input_finds_nothing(name: str, share: float) -> None:
    target = TARGETS[name]
    report = run(target, range(max(5, round(share * target.attempts))))
    assert not report.findings, "\n".join(map(str, report.findings.values()))
    assert report.accepted
