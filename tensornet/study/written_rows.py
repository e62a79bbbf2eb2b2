"""The rows of a study file: built from a model or compressed from another row, one for each budget."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import tensornet as tn
from tensornet.compression.allocating import Budget, flat
from tensornet.errors import TensornetError, near

from .compressing import BUDGETS, CompressedRow

__all__ = ["BuiltRow", "RowEntry", "check_keys", "entries", "located", "wrong"]

BUDGET = "budget"
"""The placeholder in the settings of a row that is replaced by each of its budgets."""


@dataclass(frozen=True)
class BuiltRow:
    """A classifier, given by the name of its builder.

    Attributes:
        about: a short description.
        model: one of `tensornet.models.names()`.
        settings: its own settings; `classes` and `vocabulary`, if it takes them, come from the examples.
    """

    about: str
    model: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class RowEntry:
    """The file's entry for one row.

    Attributes:
        place: its key, such as "rows.dense".
        built: the row itself; None for the row of this name in the base study.
        recipe: its changes of the recipe.
        label: its name in pictures.
        control: whether the others are compared with it.
    """

    place: str
    built: BuiltRow | CompressedRow | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""
    control: bool = False


# ---------------------------------------------------------------------------- reading


_SHARED: dict[str, tuple[type, ...]] = {
    "about": (str,),
    "label": (str,),
    "control": (bool,),
    "budgets": (list,),
    "recipe": (dict,),
}
_ROW: dict[str, tuple[type, ...]] = {"model": (str,), "settings": (dict,), **_SHARED}
_COMPRESSED: dict[str, tuple[type, ...]] = {
    "from": (str,),
    **dict.fromkeys(BUDGETS, (int, float, str)),
    "method": (str, list),
    "modes": (int, list),
    "include": (str, list),
    "exclude": (str, list),
    "uniform": (bool,),
    "calibrate": (int,),
    **_SHARED,
}
"""The keys of a row that is compressed from another."""


def entries(path: str, document: Mapping[str, Any]) -> Iterator[tuple[str, RowEntry]]:
    """The rows by name; a row with budgets gives one for each of them."""
    rows = document.get("rows", {})
    if isinstance(rows, list):
        yield from ((str(name), RowEntry("rows")) for name in rows)
        return
    for name, row in rows.items():
        place = f"rows.{name}"
        if not re.fullmatch(r"[\w+-][\w.+-]*", name):
            raise wrong(path, place, "a name goes into names of files", "use letters, digits, and - + _ .")
        if not isinstance(row, dict):
            raise wrong(path, place, f"it is {row!r}", f"write a table: [{place}]")
        rows_of = _compressed if "from" in row else _built
        check_keys(path, place, row, _COMPRESSED if "from" in row else _ROW)
        yield from rows_of(path, place, name, row, document.get("budgets", []))


def _built(
    path: str, place: str, name: str, row: Mapping[str, Any], budgets: Sequence[Any]
) -> Iterator[tuple[str, RowEntry]]:
    """The rows of a model: one for each budget, or a single one if no setting takes a budget."""
    model, settings = row.get("model"), _frozen(row.get("settings", {}))
    if model is None and (settings or "about" in row or "budgets" in row):
        raise wrong(path, place, "it has settings, and no model", 'add model = "…", one of `tensornet count`')
    if model is not None and model not in tn.models.names():
        fix = f"{near(model, tn.models.names())}`tensornet count` lists the models and their settings"
        raise wrong(path, f"{place}.model", f"there is no model '{model}'", fix)
    known = tn.models.settings(model) if model else {}
    for key in settings:
        if key not in known:
            fix = f"{near(key, known)}its settings: {', '.join(known)}"
            raise wrong(path, f"{place}.settings.{key}", f"'{model}' has no such setting", fix)
    where = [key for key, value in settings.items() if value == BUDGET]
    about = row.get("about", f"`{model}`")
    for told, entry, budget in _of_budgets(
        path, place, name, row, budgets, f"settings.{where[0]}" if where else ""
    ):
        if model is None:
            yield name, entry
        elif not told:
            yield name, replace(entry, built=BuiltRow(about, model, settings))
        else:
            more = f"{about}, {', '.join(where)} {told.replace('x', '×')}"
            built = BuiltRow(more, model, {**settings, **dict.fromkeys(where, budget)})
            yield f"{name}-{told}", replace(entry, built=built)


def _compressed(
    path: str, place: str, name: str, row: Mapping[str, Any], budgets: Sequence[Any]
) -> Iterator[tuple[str, RowEntry]]:
    """The rows compressed from another: one for each budget, or a single one if the row gives a number."""
    kinds = [kind for kind in BUDGETS if kind in row]
    if len(kinds) != 1:
        found = f"there are {len(kinds)} budgets" if kinds else "there is no budget"
        raise wrong(path, place, found, f"give one of {', '.join(BUDGETS)}")
    (kind,) = kinds
    own = {key: tuple(flat(row[key])) for key in ("method", "include", "exclude") if key in row} | {
        key: _frozen(row[key]) for key in ("modes", "uniform", "calibrate") if key in row
    }
    if row.get("calibrate", 0) < 0:
        raise wrong(path, f"{place}.calibrate", f"it is {row['calibrate']}", "give how many examples, or 0")
    for told, entry, budget in _of_budgets(
        path, place, name, row, budgets, kind if row[kind] == BUDGET else ""
    ):
        amount = budget if told else row[kind]
        with located(path, f"{place}.{kind}"):
            Budget.of(**{kind: amount})
        built = CompressedRow(row.get("about", ""), row["from"], kind, amount, **own)
        built = built if built.about else replace(built, about=_compression(built))
        yield f"{name}-{told}" if told else name, replace(entry, built=built)


def _compression(row: CompressedRow) -> str:
    """A description: `swin` at 20 % of its parameters, low_rank, weighed by 512 examples."""
    how = f"{100 * row.amount:g} %" if isinstance(row.amount, float) else f"{row.amount:,}"
    what = f"an error of {how}" if row.budget == "error" else f"{how} of its {row.budget}"
    parts = [f"`{row.origin}` at {what}", " or ".join(row.method)]
    parts += ["the same part of each weight"] if row.uniform else []
    parts += [f"weighed by {row.calibrate:,} examples"] if row.calibrate else []
    return ", ".join(parts)


def _of_budgets(
    path: str, place: str, name: str, row: Mapping[str, Any], budgets: Sequence[Any], key: str
) -> Iterator[tuple[str, RowEntry, Any]]:
    """For each budget of a row: its text in names, an entry, and the budget; without a budget, one entry.

    Args:
        path, place, name, row: the row.
        budgets: the budgets of the file, for rows that have none of their own.
        key: the key of the row that takes the budgets; empty if none does.
    """
    entry = RowEntry(place, None, row.get("recipe", {}), row.get("label", ""), row.get("control", False))
    own = row.get("budgets", budgets)
    if key and not own:
        fix = f"give a list, e.g. budgets = [0.1, 0.3], in the file or in [{place}]"
        raise wrong(path, f"{place}.{key}", "there are no budgets", fix)
    if not key:
        if "budgets" in row:
            fix = f'write "{BUDGET}" in the place of the setting that takes them'
            raise wrong(path, f"{place}.budgets", "no setting takes them", fix)
        yield "", entry, None
        return
    for budget in map(_frozen, own):
        told = "x".join(map(str, budget)) if isinstance(budget, tuple) else str(budget)
        yield told, replace(entry, label=f"{entry.label or name} {told.replace('x', '×')}"), budget


def _frozen(value: Any) -> Any:
    """The value with tuples in place of lists, at every level."""
    if isinstance(value, dict):
        return {name: _frozen(each) for name, each in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


# ---------------------------------------------------------------------------- errors


_TOLD = {
    str: "a text",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "a table",
    bool: "true or false",
}


def check_keys(
    path: str, place: str, table: Mapping[str, Any], known: Mapping[str, tuple[type, ...]]
) -> None:
    """Raises an error unless each key is known and its value has an allowed type."""
    for key, value in table.items():
        full = f"{place}.{key}" if place else key
        if key not in known:
            fix = f"{near(key, known)}its keys: {', '.join(known)}"
            raise wrong(path, full, "there is no such key", fix)
        if type(value) not in known[key]:
            fix = f"give {' or '.join(dict.fromkeys(_TOLD[kind] for kind in known[key]))}"
            raise wrong(path, full, f"it is {value!r}", fix)


@contextmanager
def located(path: str, key: str) -> Iterator[None]:
    """Puts the file and the key in front of an error."""
    try:
        yield
    except TensornetError as error:
        raise type(error)(f"{path}: {key}: {error.message}", error.place, error.fix) from None


def wrong(path: str, key: str, message: str, fix: str) -> TensornetError:
    """An error that names the file, the key and the fix."""
    return TensornetError(f"{path}: {key}: {message}", fix=fix)
