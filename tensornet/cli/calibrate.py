"""The command `calibrate`, which measures a device."""

from __future__ import annotations

from rich.table import Table

from .options import Backend, Device, Dtype, Json, answer

__all__ = ["calibrate"]


def calibrate(
    backend: Backend = "torch", device: Device = None, dtype: Dtype = "float32", as_json: Json = False
) -> None:
    """Measure the constants of this device again, and store them for all later plans."""
    from dataclasses import asdict, fields
    from math import inf

    from ..device.calibration import measure
    from ..device.cost_model import COLUMNS
    from ..device.profiles import save_profile
    from ..display import rounded
    from ..dtypes import element_type
    from ..protocol import load_backend

    chosen = load_backend(backend)
    place = chosen.device() if device is None else device
    profile = measure(chosen, place, element_type(dtype), patience=inf)
    path = save_profile(profile)
    table = Table("constant", "value", title=profile.key, title_justify="left")
    for each in fields(profile):
        if unit := each.metadata.get("unit"):
            table.add_row(each.name, f"{rounded(getattr(profile, each.name), 3)} {unit}")
    for columns, *widths in zip(COLUMNS, *profile.widths, strict=False):
        told = ", ".join(rounded(width, 3) for width in widths)
        table.add_row(f"{columns} columns", f"the time of {told}")
    notes = [
        f"four of five times measured lie within a factor {rounded(profile.spread, 2)} of what these say"
    ]
    if not profile.is_steady:
        part = f"the device had other work ({100 * profile.unrest:,.0f} %)"
        notes.append(f"{part}: the built-in constants stay in use; measure again when it is idle")
    notes.append(f"kept in {path}" if path else "the cache folder cannot be written: nothing is kept")
    answer(as_json, {**asdict(profile), "path": str(path or "")}, table, *notes)
