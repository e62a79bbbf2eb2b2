"""The measured constants of devices on disk: written whole or not at all, and read with suspicion."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path

from .device import DeviceProfile

__all__ = ["cache_folder", "load_profile", "save_profile"]


def cache_folder() -> Path:
    """Where measured constants are kept: `TENSORNET_CACHE`, else the user's cache folder."""
    chosen = os.environ.get("TENSORNET_CACHE")
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("tensornet"))


def _path(key: str) -> Path:
    import hashlib

    return cache_folder() / f"device-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


_PLAUSIBLE = {
    "flops": (1e7, 1e18),
    "half": (1e-3, 1e5),
    "half_rows": (1e-3, 1e5),
    "half_columns": (1e-3, 1e5),
    "bandwidth": (1e6, 1e15),
    "permute_bandwidth": (1e5, 1e15),
    "launch": (1e-9, 1.0),
    "batch": (1e-12, 1.0),
    "fresh_bytes": (1.0, 1e18),
    "fresh_bandwidth": (1e5, 1e18),
}
"""The least and the largest that each constant of any device, slow or to come, may be."""


def load_profile(key: str) -> DeviceProfile | None:
    """The constants measured under `key`, if they are there, as they were written, and plausible."""
    try:
        document = json.loads(_path(key).read_text(encoding="utf-8"))
        profile = DeviceProfile(**{name: document[name] for name in DeviceProfile.__dataclass_fields__})
        believed = profile.key == key and document["seal"] == _seal(profile) and _plausible(profile)
        return profile if believed else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def save_profile(profile: DeviceProfile) -> Path | None:
    """Keeps the constants; returns where, or nothing if the folder cannot be written."""
    path, temporary = _path(profile.key), None
    text = json.dumps({**asdict(profile), "seal": _seal(profile)}, indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.stem}.")
        with open(number, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError:
        return None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
    return path


def _seal(profile: DeviceProfile) -> str:
    """A digest of all the constants: a file of which a digit was lost is not believed."""
    import hashlib

    return hashlib.sha256(repr(asdict(profile)).encode()).hexdigest()


def _plausible(profile: DeviceProfile) -> bool:
    return all(
        type(value) in (int, float) and least <= value <= largest
        for name, (least, largest) in _PLAUSIBLE.items()
        for value in [getattr(profile, name)]
    )
