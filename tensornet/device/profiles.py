"""Profile cache: measured constants on disk, checked for plausibility."""

from __future__ import annotations

import time
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from ..files import Store, cache_folder
from .cost_model import COLUMNS, DeviceProfile

__all__ = ["bounded", "is_due", "load_profile", "save_profile"]

DAY = 86_400.0
"""Seconds after which provisional constants may be measured again."""

PROVISIONAL = "provisional"
"""The key that marks constants measured while the device had other work; its value is when they were stored."""

WIDEST, LATEST = 1e4, 1e6
"""The largest plausible widths and starts of rows."""

RANGES = {each.name: each.metadata["range"] for each in fields(DeviceProfile) if each.metadata}
"""The least and the largest plausible value of each constant, for slow and for future devices."""


def bounded(profile: DeviceProfile) -> DeviceProfile:
    """The constants, each clipped to its plausible range, so that `load_profile` accepts them."""
    constants: dict[str, Any] = {
        name: _clipped(getattr(profile, name), *limits) for name, limits in RANGES.items()
    }
    widths = tuple(
        tuple(_clipped(each, least, WIDEST) for each, least in zip(table, COLUMNS, strict=True))
        for table in profile.widths
    )
    starts = tuple(tuple(_clipped(each, 0.0, LATEST) for each in table) for table in profile.starts)
    return replace(profile, **constants, widths=widths, starts=starts)


def _clipped(value: float, least: float, most: float) -> float:
    return min(most, max(least, value))


def load_profile(key: str) -> DeviceProfile | None:
    """The constants stored under `key`; None if they are missing, of another version, or implausible."""
    try:
        found = {name: value for name, value in _store().read(key).items() if name != PROVISIONAL}
        tables = {name: tuple(map(tuple, found[name])) for name in ("widths", "starts")}
        profile = DeviceProfile(**{**found, **tables})
        is_whole = profile.key == key and found.keys() == asdict(profile).keys()
        shapes = [[len(table) for table in tables[name]] for name in ("widths", "starts")]
        is_whole = is_whole and shapes in ([[], []], [[len(COLUMNS)] * 3] * 2)
        is_whole = is_whole and not any(isinstance(each, bool) for each in found.values())
        return profile if is_whole and bounded(profile) == profile else None
    except (AttributeError, TypeError, KeyError, ValueError):
        return None


def save_profile(profile: DeviceProfile) -> Path | None:
    """Stores the constants, with the time if they are provisional.

    Returns the path, or None if the folder cannot be written.
    """
    mark = {} if profile.is_steady else {PROVISIONAL: time.time()}
    return _store().write(profile.key, {**asdict(profile), **mark})


def is_due(profile: DeviceProfile) -> bool:
    """Whether the stored constants are provisional, and have been for a day."""
    if profile.is_steady:
        return False
    since = (_store().read(profile.key) or {}).get(PROVISIONAL)
    return not isinstance(since, int | float) or abs(time.time() - since) > DAY


def _store() -> Store:
    return Store(cache_folder(), "device")
