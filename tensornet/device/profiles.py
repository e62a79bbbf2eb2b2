"""Profile cache: measured constants on disk, checked for plausibility."""

from __future__ import annotations

import itertools
import time
from dataclasses import asdict, fields, replace
from pathlib import Path

from ..json_store import Store, cache_folder
from .model import COLUMNS, DeviceProfile

__all__ = ["UNITS", "bounded", "is_due", "load_profile", "save_profile"]

DAY = 86_400.0
"""Seconds after which provisional constants may be measured again."""

PROVISIONAL = "provisional"
"""The key that marks constants measured while the device had other work; its value is when they were stored."""

_PLAUSIBLE = {
    "flops": (1e7, 1e18),
    "bandwidth": (1e6, 1e15),
    "near_bandwidth": (1e6, 1e15),
    "held_bandwidth": (1e6, 1e15),
    "jump_bandwidth": (1e6, 1e15),
    "pass_bandwidth": (1e6, 1e16),
    "launch": (1e-9, 1.0),
    "view": (1e-9, 1.0),
    "batch": (1e-12, 1.0),
    "small": (0.0, 1e5),
    "plain": (1e-14, 1e-2),
    "along": (1e-14, 1e-2),
    "run": (1e-14, 1e-2),
    "even": (0.0, 1e-2),
    "blocked": (0.0, 1e-2),
    "scattered": (1e-15, 1e-3),
    "near_line": (1e-14, 1e-2),
    "line": (1e-14, 1e-2),
    "fresh_bytes": (1.0, 1e18),
    "fresh_bandwidth": (1e5, 1e18),
    "fresh_product": (1e5, 1e18),
    "tile": (1.0, 1e6),
    "scored": (0.0, 1e-6),
    "cached": (1e3, 1e19),
    "turned": (0.0, 1e-3),
    "aliased": (0.0, 1e-3),
    "packed_flops": (0.0, 1e19),
    "packed_launch": (0.0, 1e-1),
    "product": (0.0, 1e-1),
    "vector_bandwidth": (1e6, 1e18),
    "cores": (1.0, 1e4),
    "grain": (0.0, 1e9),
    "packing": (0.0, 1e3),
    "stored": (0.0, 1e3),
    "spread": (1.0, 1e3),
    "unrest": (0.0, 1e3),
}
"""The least and the largest plausible value of each constant, for slow and for future devices."""

WIDEST, LATEST = 1e4, 1e6
"""The largest plausible widths and starts of rows."""

_NAMES = {field.name for field in fields(DeviceProfile)}

UNITS = {
    "flops": "FLOP/s",
    "bandwidth": "bytes/s",
    "near_bandwidth": "bytes/s",
    "held_bandwidth": "bytes/s",
    "jump_bandwidth": "bytes/s",
    "pass_bandwidth": "bytes/s",
    "packing": "rows",
    "stored": "multiply-adds",
    "launch": "s",
    "view": "s",
    "batch": "s",
    "small": "multiply-adds",
    "plain": "s",
    "along": "s",
    "run": "s",
    "even": "s",
    "blocked": "s",
    "scattered": "s",
    "turned": "s",
    "aliased": "s",
    "packed_flops": "FLOP/s",
    "packed_launch": "s",
    "product": "s",
    "vector_bandwidth": "bytes/s",
    "cores": "times one",
    "grain": "bytes",
    "near_line": "s",
    "line": "s",
    "fresh_bytes": "bytes",
    "fresh_bandwidth": "bytes/s",
    "fresh_product": "bytes/s",
    "scored": "s",
}
"""The units of the constants."""


def bounded(profile: DeviceProfile) -> DeviceProfile:
    """The constants, each clipped to its plausible range, so that `load_profile` accepts them."""
    constants = {
        name: min(most, max(least, getattr(profile, name))) for name, (least, most) in _PLAUSIBLE.items()
    }
    widths = tuple(
        tuple(min(WIDEST, max(least, each)) for each, least in zip(table, COLUMNS, strict=True))
        for table in profile.widths
    )
    starts = tuple(tuple(min(LATEST, max(0.0, each)) for each in table) for table in profile.starts)
    return replace(profile, **constants, widths=widths, starts=starts)


def load_profile(key: str) -> DeviceProfile | None:
    """The constants stored under `key`; None if they are missing, not as written, or implausible."""
    try:
        found = {name: value for name, value in _store().read(key).items() if name != PROVISIONAL}
        tables = {name: tuple(map(tuple, found[name])) for name in ("widths", "starts")}
        profile = DeviceProfile(**{**found, **tables})
        return profile if profile.key == key and found.keys() == _NAMES and _plausible(profile) else None
    except (AttributeError, TypeError, KeyError):  # none stored, or constants of another version
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


def _plausible(profile: DeviceProfile) -> bool:
    numbers = ((getattr(profile, name), *bounds) for name, bounds in _PLAUSIBLE.items())
    rows = (
        (each, least, WIDEST) for table in profile.widths for each, least in zip(table, COLUMNS, strict=False)
    )
    starts = ((each, 0.0, LATEST) for table in profile.starts for each in table)
    shapes = [[len(table) for table in tables] for tables in (profile.widths, profile.starts)]
    return shapes in ([[], []], [[len(COLUMNS)] * 3] * 2) and all(
        type(value) in (int, float) and least <= value <= largest
        for value, least, largest in itertools.chain(numbers, rows, starts)
    )
