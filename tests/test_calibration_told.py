"""A device is measured once, and whoever sits before it is told."""

from __future__ import annotations

from typing import Any

import pytest

from tensornet.planning import calibration, watching
from tensornet.planning.device import default_profile
from tensornet.protocol import load_backend


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_is_told_that_the_device_is_measured(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known: list[Any] = [None, default_profile("cpu", "float32")]
    monkeypatch.setenv("TENSORNET_CALIBRATE", "1")
    monkeypatch.setattr(watching, "_is_terminal", lambda: is_terminal)
    monkeypatch.setattr(calibration, "load_profile", lambda key: known.pop(0))
    monkeypatch.setattr(calibration, "save_profile", lambda profile: None)
    monkeypatch.setattr(calibration, "measure", lambda backend, device, dtype: default_profile(device, dtype))
    for expected in ("tensornet: measuring cpu for float32, some seconds" if is_terminal else "", ""):
        calibration._profile_of.cache_clear()
        calibration.profile_of(load_backend("numpy"), "cpu", "float32")
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err.startswith(expected)
        assert bool(told.err) == bool(expected)
    calibration._profile_of.cache_clear()
