"""Configurations of studies: one TOML file with classifiers, budgets, seeds and a recipe."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tensornet as tn
from tensornet.compression.allocating import Budget
from tensornet.errors import TensornetError, names_in, near

from .arrays import Data
from .compressing import BUDGETS, CompressedRow
from .digits import digits
from .libraries import frozen, toml
from .task import OPTIMIZERS, BuiltRow, Examples, Recipe, Task, built, checked_seeds
from .text import text
from .thesis import thesis

BUDGET = "budget"
"""The placeholder in a row that is replaced by each of its budgets."""

FLAG = "true or false"
KINDS = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "a table", bool: FLAG}

KEYS = dict.fromkeys(("study", "data", "title", "reference"), "a text") | {"seeds": "a number or a list"}
KEYS |= {"optimizers": "a list", "budgets": "a list", "recipe": "a table", "rows": "a table or a list"}
"""The keys of a file, and what their values may be."""

OF_ROWS = {"about": "a text", "label": "a text", "control": FLAG, "budgets": "a list", "recipe": "a table"}
BUILT = {"model": "a text", "settings": "a table"} | OF_ROWS
COMPRESSED = {"from": "a text"} | dict.fromkeys(BUDGETS, "a number or a text")
COMPRESSED |= {"method": "a text or a list", "modes": "a number or a list"}
COMPRESSED |= dict.fromkeys(("include", "exclude"), "a text or a list")
COMPRESSED |= {"uniform": FLAG, "calibrate": "a number"} | OF_ROWS
"""The keys of a row that is compressed from another."""

TASKS: dict[str, Callable[[Data], Task]] = {"digits": digits, "text": text, "thesis": thesis}
"""The tasks, by name; the thesis is a separate study for each data set."""


@dataclass(frozen=True)
class Subject:
    """The subject of a study.

    Attributes:
        name: one of `TASKS`.
        data: where the examples come from, as the task takes it.
        path: the file that changes the task, if there is one.
        document: its content.
    """

    name: str
    data: Data = None
    path: str = ""
    document: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, task: str | Path, data: Data | Path = None) -> Subject:
        """The subject of a study, which is given by its name or by its file.

        Raises:
            TensornetError: the file does not exist, it is not TOML, or a key or its value is invalid. The error
                names the file, the key and the fix.
        """
        data = data if data is None or callable(data) else str(data)
        path = Path(task)
        if path.suffix != ".toml":
            return cls(str(task), data)
        document = _read(path)
        if data is None and "data" in document:
            beside = path.parent / document["data"]
            data = str(beside) if beside.exists() else document["data"]
        return cls(document.get("study", "digits"), data, str(path), document)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the file."""
        with located(self.path), located("seeds"):
            return checked_seeds(self.document.get("seeds", [0]))

    @property
    def task(self) -> Task:
        """The task.

        Raises:
            TensornetError: there is no task of this name, or the file requires something that the task lacks.
        """
        with located(self.path):
            if self.name not in TASKS:
                place, fix = ("study: ", "") if self.path else ("", ", or give a file, as my.toml")
                told = f"{place}there is no study '{self.name}'"
                raise TensornetError(told, fix=f"choose of {', '.join(TASKS)}{fix}")
            base = TASKS[self.name](self.data)
            return _changed(base, self.path, self.document) if self.path else base

    def examples(self, seed: int) -> Examples:
        """The examples of a seed."""
        return examples_of(self.name, self.data, seed if TASKS[self.name](self.data).splits else 0)


@functools.lru_cache(maxsize=1)
def examples_of(name: str, data: Data, seed: int) -> Examples:
    """The examples of a task; those of the last call are cached."""
    return TASKS[name](data).load(seed)


# ---------------------------------------------------------------------------- the file


def _read(path: Path) -> dict[str, Any]:
    """The content of a file, whose keys are known."""
    try:
        with located(str(path)):
            document: dict[str, Any] = toml(path)
    except OSError as error:
        told = f"cannot read {path}: {error.strerror or error}"
        raise TensornetError(told, fix="give a TOML file") from None
    except ValueError as error:  # not UTF-8, or not TOML: the error says where
        fix = "write key = value, and a table [rows.name] for each row, as `tensornet study --help` shows"
        raise TensornetError(f"{path} is no TOML: {error}", fix=fix) from None
    if not document:
        raise TensornetError(f"{path} says nothing", fix=f"give one or more of {', '.join(KEYS)}")
    with located(str(path)):
        _check_keys("", document, KEYS)
        for each in document.get("optimizers", []):
            _check_known("optimizers", str(each), OPTIMIZERS, f"there is no optimizer '{each}'")
    return document


def _changed(base: Task, path: str, document: Mapping[str, Any]) -> Task:
    """A task with the changes of a file; what the file leaves out stays as it is."""
    entries: dict[str, _Entry] = {}
    for entry in _entries(base, document):
        if entry.name in entries:
            raise _wrong(entry.place, f"there are two rows '{entry.name}'", "give one of them another name")
        entries[entry.name] = entry
    reference, shared = document.get("reference", base.reference), document.get("recipe", {})
    if "reference" in document:
        _check_known("reference", reference, entries, f"there is no row '{reference}'")
    recipe = _recipe(base.recipe, "recipe", shared)
    own = all("model" not in each.table and "from" not in each.table for each in entries.values())
    labels = {name: each.table["label"] for name, each in entries.items() if "label" in each.table}
    controls = frozenset(name for name, each in entries.items() if each.table.get("control"))
    return replace(
        base,
        title=document.get("title", base.title if own else f"{{data}}: the rows of {Path(path).name}"),
        rows={name: each.row for name, each in entries.items()},
        recipe=recipe,
        build=functools.partial(_build, base),
        overrides={name: _own(entries, each, recipe, shared) for name, each in entries.items()},
        reference=reference if reference in entries else "",
        optimizers=tuple(dict.fromkeys(document.get("optimizers", base.optimizers))),
        labels={**base.labels, **labels},
        controls=controls or base.controls & entries.keys(),
        kinds=base.kinds if own else Task.kinds,
        places={
            name: f"{path}: {each.place}{'.settings' * ('model' in each.table)}"
            for name, each in entries.items()
        },
        published=(),
    )


def _own(
    entries: Mapping[str, _Entry], entry: _Entry, recipe: Recipe, shared: Mapping[str, Any]
) -> dict[str, Any]:
    """A row's own changes of the recipe, checked; those of all rows are in the recipe that a compressed row changes."""
    made, changes = isinstance(entry.row, CompressedRow), entry.table.get("recipe", {})
    trained = [name for name, each in entries.items() if not isinstance(each.row, CompressedRow)]
    if made and entry.row.origin not in trained:
        told = f"there is no row '{entry.row.origin}' that is trained from scratch"
        fix = f"choose of {', '.join(trained)}, or add [rows.{entry.row.origin}]"
        raise _wrong(f"{entry.place}.from", told, fix)
    _recipe(recipe, f"{entry.place}.recipe", changes, 0 if made else 1)
    return {**({} if made else shared), **changes}


def _recipe(recipe: Recipe, key: str, changes: Mapping[str, Any], epochs: int = 1) -> Recipe:
    """A recipe with other numbers; `epochs` is the least number of epochs allowed."""
    if "optimizer" in changes:
        fix = f'write optimizers = ["{changes["optimizer"]}"] above the tables'
        raise _wrong(f"{key}.optimizer", "the optimizer is not a number of the recipe", fix)
    with located(key):
        return recipe.changed(changes, epochs)


def _build(base: Task, row: Any, examples: Examples) -> tn.Graph:
    """The classifier of a row that is trained from scratch."""
    return (base.build if row in base.rows.values() else built)(row, examples)


# ---------------------------------------------------------------------------- the rows


@dataclass(frozen=True)
class _Entry:
    """A row of a file: its name, its key in the file, the row, and its table, with a budget in its place."""

    name: str
    place: str
    row: Any
    table: Mapping[str, Any]


def _entries(base: Task, document: Mapping[str, Any]) -> Iterator[_Entry]:
    """The rows in their order; a row with budgets gives one for each of them."""
    given = document.get("rows") or {name: {} for name in base.rows}
    listed = isinstance(given, list)
    for name, table in {str(name): {} for name in given}.items() if listed else given.items():
        place = "rows" if listed else f"rows.{name}"
        if not re.fullmatch(r"[\w+-][\w.+-]*", name):
            raise _wrong(place, "a name goes into names of files", "use letters, digits, and - + _ .")
        if not isinstance(table, dict):
            raise _wrong(place, f"it is {table!r}", f"write a table: [{place}]")
        _check_keys(place, table, COMPRESSED if "from" in table else BUILT)
        for at, each, which in _by_budget(place, name, table, document.get("budgets", [])):
            if "from" in table:
                row: Any = _compressed(place, each)
            elif "model" in table:
                row = _built(place, each, which)
            else:
                row = _known(base, place, name, table)
            yield _Entry(at, place, row, each)


def _by_budget(
    place: str, name: str, table: Mapping[str, Any], shared: list[Any]
) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """The names and tables of a row, with each of its budgets in the place of "budget", and what this says."""
    settings, budgets = table.get("settings", {}), table.get("budgets", shared)
    within = [key for key, value in settings.items() if value == BUDGET]
    keys = [f"settings.{key}" for key in within] + [key for key in BUDGETS if table.get(key) == BUDGET]
    if keys and not budgets:
        fix = f"give a list, e.g. budgets = [0.1, 0.3], in the file or in [{place}]"
        raise _wrong(f"{place}.{keys[0]}", "there are no budgets", fix)
    if not keys:
        if "budgets" in table and ("model" in table or "from" in table):
            fix = f'write "{BUDGET}" in the place of the setting that takes them'
            raise _wrong(f"{place}.budgets", "no setting takes them", fix)
        yield name, table, ""
        return
    for budget in map(frozen, budgets):
        told = "x".join(map(str, budget)) if isinstance(budget, tuple) else str(budget)
        shown = told.replace("x", "×")
        filled = {key: budget for key in BUDGETS if key in keys}
        filled |= {"label": f"{table.get('label') or name} {shown}"}
        filled |= {"settings": settings | dict.fromkeys(within, budget)} if within else {}
        yield f"{name}-{told}", {**table, **filled}, f", {', '.join(within)} {shown}"


def _known(base: Task, place: str, name: str, table: Mapping[str, Any]) -> Any:
    """The row of this name in the base study."""
    if not table.keys().isdisjoint(("settings", "about", "budgets")):
        raise _wrong(place, "it has settings, and no model", 'add model = "…", one of `tensornet count`')
    told = f"the study '{base.name.partition('-')[0]}' has no row '{name}'"
    _check_known(place, name, base.rows, told, "give it a model, or choose of")
    return base.rows[name]


def _built(place: str, table: Mapping[str, Any], budget: str) -> BuiltRow:
    """The row of a model."""
    model, settings = table["model"], frozen(table.get("settings", {}))
    _check_known(f"{place}.model", model, tn.models.names(), f"there is no model '{model}'")
    for key in settings:
        told = f"'{model}' has no such setting"
        _check_known(f"{place}.settings.{key}", key, tn.models.settings(model), told, "its settings:")
    return BuiltRow(table.get("about", f"`{model}`") + budget, model, settings)


def _compressed(place: str, table: Mapping[str, Any]) -> CompressedRow:
    """The row compressed from another."""
    kinds = [kind for kind in BUDGETS if kind in table]
    if len(kinds) != 1:
        found = f"there are {len(kinds)} budgets" if kinds else "there is no budget"
        raise _wrong(place, found, f"give one of {', '.join(BUDGETS)}")
    if table.get("calibrate", 0) < 0:
        raise _wrong(f"{place}.calibrate", f"it is {table['calibrate']}", "give how many examples, or 0")
    (kind,), own = kinds, {key: table[key] for key in ("modes", "uniform") if key in table}
    own |= {key: names_in(table[key], key, 1) for key in ("method", "include", "exclude") if key in table}
    amount, origin, calibrate = table[kind], table["from"], table.get("calibrate", 0)
    with located(f"{place}.{kind}"):
        Budget.of(**{kind: amount})
    share = f"{100 * amount:g} %" if isinstance(amount, float) else f"{amount:,}"
    told = f"an error of {share}" if kind == "error" else f"{share} of its {kind}"
    how = " or ".join(own.get("method", ("low_rank",)))
    same = ", the same part of each weight" if own.get("uniform") else ""
    weighed = f", weighed by {calibrate:,} examples" if calibrate else ""
    about = table.get("about", f"`{origin}` at {told}, {how}{same}{weighed}")
    return CompressedRow(about, origin, kind, amount, frozen(own), calibrate)


# ---------------------------------------------------------------------------- errors


def _check_keys(place: str, table: Mapping[str, Any], known: Mapping[str, str]) -> None:
    """Raises an error unless each key is known and its value has an allowed type."""
    for key, value in table.items():
        full = f"{place}.{key}" if place else key
        _check_known(full, key, known, "there is no such key", "its keys:")
        whole = key not in ("seeds", "calibrate", "modes") or type(value) is not float
        if KINDS.get(type(value), "?") not in known[key] or not whole:
            raise _wrong(full, f"it is {value!r}", f"give {known[key]}")


def _check_known(key: str, name: str, known: Iterable[str], message: str, what: str = "choose of") -> None:
    """Raises an error with a message unless a name is known."""
    names = list(known)
    if name not in names:
        raise _wrong(key, message, f"{near(name, names)}{what} {', '.join(names)}")


@contextmanager
def located(key: str) -> Iterator[None]:
    """Puts the key, or the file, in front of an error; of what Python cannot go through, it says why."""
    try:
        yield
    except TensornetError as error:
        place = f"{key}: " if key else ""
        raise type(error)(f"{place}{error.message}", error.place, error.fix) from None
    except RecursionError:
        fix = "write them flat"
        raise TensornetError(f"{key}: lists or tables lie too deep in one another", fix=fix) from None


def _wrong(key: str, message: str, fix: str) -> TensornetError:
    """An error that names the key and the fix."""
    return TensornetError(f"{key}: {message}", fix=fix)
