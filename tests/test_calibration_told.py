"""A device is measured once, also while it is busy, and whoever sits before it is told."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tensornet.device import calibration
from tensornet.device.calibration import load_profile, save_profile
from tensornet.device.cost_model import DeviceProfile, default_profile
from tensornet.files import Store
from tensornet.protocol import load_backend

KEY = "a device"
STEADY = replace(default_profile("cpu"), key=KEY)
BUSY = replace(STEADY, unrest=0.8)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Any]]:
    """What measuring gives, in turn: constants, or seconds to wait before those that are next."""
    left: list[Any] = []
    clock = [0.0]

    def measure(backend: Any, device: str, dtype: str) -> DeviceProfile:
        clock[0] += left.pop(0)
        return left.pop(0)  # type: ignore[no-any-return]

    monkeypatch.setenv("TENSORNET_CALIBRATE", "1")
    monkeypatch.setenv("TENSORNET_CACHE", str(tmp_path))
    monkeypatch.setattr(calibration, "_key", lambda backend, device, dtype: KEY)
    monkeypatch.setattr(calibration, "measure", measure)
    monkeypatch.setattr(calibration.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(calibration, "is_busy", lambda: False)
    yield left
    calibration._profile_of.cache_clear()


def process() -> DeviceProfile:
    """What the first call of a new process finds."""
    calibration._profile_of.cache_clear()
    return calibration.profile_of(load_backend("numpy"), "cpu", "float32")


def a_day_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time() + calibration.DAY + 1.0
    monkeypatch.setattr(calibration.time, "time", lambda: now)


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize(
    ("seconds", "found", "words"),
    [
        (3.2, STEADY, "tensornet: measured cpu for float32 in 3.2 s (TENSORNET_CALIBRATE=0: no); kept\n"),
        (1.2, BUSY, "the device had other work: built-in constants are used, see `tensornet calibrate`\n"),
        (0.9, STEADY, ""),
    ],
)
def test_a_terminal_is_told_that_the_device_was_measured(
    is_terminal: bool,
    seconds: float,
    found: DeviceProfile,
    words: str,
    measured: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    measured += [seconds, found]
    for expected in (words if is_terminal else "", ""):
        assert process() == found
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err.endswith(expected)
        assert told.err.count("\n") == bool(expected)


def test_what_is_measured_while_busy_is_kept_provisionally(measured: list[Any], tmp_path: Path) -> None:
    before = time.time()
    measured += [0.0, BUSY]
    assert [process(), process()] == [BUSY, BUSY]
    assert before <= Store(tmp_path, "device").read(KEY)["provisional"] <= time.time()
    save_profile(STEADY)
    assert "provisional" not in Store(tmp_path, "device").read(KEY)


def test_a_quiet_machine_replaces_them_once_a_day(
    measured: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    worse, better = (replace(BUSY, unrest=unrest) for unrest in (0.9, 0.5))
    save_profile(BUSY)
    for found, kept in ((worse, BUSY), (better, better), (STEADY, STEADY)):
        a_day_later(monkeypatch)
        monkeypatch.setattr(calibration, "is_busy", lambda: True)
        before = load_profile(KEY)
        assert process() == before
        monkeypatch.setattr(calibration, "is_busy", lambda: False)
        measured += [0.0, found]
        assert [process(), process()] == [kept, kept]
        assert measured == []
    a_day_later(monkeypatch)
    assert process() == STEADY


def test_a_busy_machine_is_one_whose_programs_have_most_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensornet import threads

    monkeypatch.setattr(threads.os, "cpu_count", lambda: 4)
    found = []
    for load in (0.2, 2.9, 3.1):
        monkeypatch.setattr(threads.os, "getloadavg", lambda load=load: (load, 0.0, 0.0), raising=False)
        found.append(threads.is_busy())
    assert found == [False, False, True]
