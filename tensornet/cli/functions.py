"""The commands `functions`, which describes the functions of the language, and `calibrate`, which measures a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ..errors import EquationError, near
from .options import Backend, Device, Dtype, Json, answer

if TYPE_CHECKING:
    from ..ops.record import Function


def functions(
    name: Annotated[str, typer.Argument(help="A function, or a section; else all are listed.")] = "",
    page: Annotated[bool, typer.Option("--page", help="Print the reference.")] = False,
    as_json: Json = False,
) -> None:
    """List the functions of the equation language, describe one, or print a section of its reference.

    Example: tensornet functions softmax

    Example: tensornet functions axes
    """
    from ..language import reference
    from ..language.diagnostics import called_elsewhere
    from ..ops.table import FUNCTIONS, SUM
    from ..runtime.compiling import result_of

    if page:
        text = reference.page(result_of)
        answer(as_json, {"name": "page", "text": text}, text.removesuffix("\n"))
        return
    if section := reference.sections().get(name):
        answer(as_json, {"name": name, "text": section}, section)
        return
    rows = [*(row for row in FUNCTIONS.values() if not row.is_kernel), SUM]
    if name:
        found = next((row for row in rows if name in (row.name, row.infix)), None)
        if found is None:
            hint = called_elsewhere(name) or near(name, [row.name for row in rows])
            fix = f"{hint}`tensornet functions` lists all"
            raise EquationError(f"'{name}' is not a function", fix=fix)
        _tell_function(found, as_json)
        return
    table = Table("function", "form", "formula")
    for row in rows:
        table.add_row(row.name, row.form, row.formula)
    more = "besides: + - * / and the numbers pi and inf; tensornet.register adds functions of your own"
    answer(as_json, [reference.document(row) for row in rows], table, more)


def _tell_function(row: Function, as_json: bool) -> None:
    """Prints the record of a function, and the result of its example."""
    from ..language import reference
    from ..runtime.compiling import result_of

    shown = row.shown
    result = "" if row.implementations else result_of(shown)
    lines = [row.name]
    lines += [f"  {what + ':':<12}{text.replace('`', '')}" for what, text in reference.told(row).items()]
    if result:
        lines.append(f"  {'example:':<12}{shown.equation}")
        lines += [f"  {'':<12}{name} = {value}" for name, value in (*shown.given, ("y", result))]
    answer(as_json, {**reference.document(row), "result": result}, *lines)


def calibrate(
    backend: Backend = "torch", device: Device = None, dtype: Dtype = "float32", as_json: Json = False
) -> None:
    """Measure the constants of this device again, and store them for all later plans."""
    from dataclasses import asdict, fields
    from math import inf

    from ..device.calibration import measure, save_profile
    from ..device.cost_model import COLUMNS
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
    notes = [f"four of five measured times are within a factor {rounded(profile.spread, 2)} of the expected"]
    if not profile.is_steady:
        part = f"the device had other work ({100 * profile.unrest:,.0f} %)"
        notes.append(f"{part}: the built-in constants stay in use; measure again when it is idle")
    notes.append(f"kept in {path}" if path else "the cache folder cannot be written: nothing is kept")
    answer(as_json, {**asdict(profile), "path": str(path or "")}, table, *notes)
