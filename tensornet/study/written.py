"""A study as one TOML file: its classifiers, budgets, seeds and recipe."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tensornet as tn
from tensornet.compression.allocating import Budget, flat
from tensornet.errors import TensornetError, near

from .arrays import Data
from .compressing import BUDGETS, CompressedRow
from .digits import digits
from .libraries import frozen, toml
from .task import OPTIMIZERS, BuiltRow, Examples, Recipe, Task, built, checked_seeds
from .text import text
from .thesis import thesis

__all__ = ["forget_examples", "read_study", "RowEntry", "StudyFile", "Subject", "TASKS"]

BUDGET = "budget"
"""The placeholder in the settings of a row that is replaced by each of its budgets."""

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


@dataclass(frozen=True)
class StudyFile:
    """A study as its file describes it; keys that the file leaves out come from the study it is based on.

    Attributes:
        path: the file.
        study: the study it is based on, with the examples, the recipe, and the rows that are only named.
        data: where the examples come from.
        title: the heading of the report.
        reference: the row that the parameters of the others are compared with.
        seeds: each row is trained once for each.
        optimizers: each row is trained by each of them.
        recipe: changes of the recipe, for every row and optimizer.
        rows: name → its entry in the file; all rows of the study if there is none.
    """

    path: str
    study: str = "digits"
    data: str | None = None
    title: str = ""
    reference: str = ""
    seeds: tuple[int, ...] = (0,)
    optimizers: tuple[str, ...] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)
    rows: Mapping[str, RowEntry] = field(default_factory=dict)

    def of(self, base: Task) -> Task:
        """This study as a task: the base task with the changes of the file.

        Raises:
            TensornetError: a row without a model does not exist in that study, or a number of the recipe is
                invalid. The error names the file, the key and the fix.
        """
        entries = self.rows or {name: RowEntry(f"rows.{name}") for name in base.rows}
        rows = {name: entry.built or self._known(base, name, entry) for name, entry in entries.items()}
        if self.reference and self.reference not in rows:
            fix = f"choose of {', '.join(rows)}"
            raise _wrong("reference", f"there is no row '{self.reference}'", fix)
        recipe, recipes = _changed(base.recipe, "recipe", self.recipe), {}
        for name, entry in entries.items():
            origin = self._origin(entries, entry)
            changes = {**(origin.recipe if origin else {}), **entry.recipe}
            _changed(recipe, f"{entry.place}.recipe", changes, 0 if origin else 1)
            recipes[name] = {**self.recipe, **changes}

        own = all(entry.built is None for entry in entries.values())
        controls = frozenset(name for name, entry in entries.items() if entry.control)
        reference = self.reference or base.reference
        return replace(
            base,
            title=self.title or (base.title if own else f"{{data}}: the rows of {Path(self.path).name}"),
            rows=rows,
            recipe=recipe,
            build=functools.partial(_build, base),
            overrides=recipes,
            reference=reference if reference in rows else "",
            optimizers=self.optimizers or base.optimizers,
            labels={**base.labels, **{name: entry.label for name, entry in entries.items() if entry.label}},
            controls=controls or base.controls & rows.keys(),
            kinds=base.kinds if own else ("controls", "rows"),
            base=base,
        )

    def _origin(self, entries: Mapping[str, RowEntry], entry: RowEntry) -> RowEntry | None:
        """The row that a compressed row is made from; None for other rows."""
        if not isinstance(entry.built, CompressedRow):
            return None
        trained = {name: each for name, each in entries.items() if not isinstance(each.built, CompressedRow)}
        name = entry.built.origin
        if name not in trained:
            fix = f"choose of {', '.join(trained)}, or add [rows.{name}]"
            raise _wrong(f"{entry.place}.from", f"there is no row '{name}' that is trained from scratch", fix)
        return trained[name]

    def _known(self, base: Task, name: str, entry: RowEntry) -> Any:
        """The row of this name in the base study."""
        if name not in base.rows:
            fix = f"{near(name, base.rows)}give it a model, or choose of {', '.join(base.rows)}"
            raise _wrong(entry.place, f"the study '{self.study}' has no row '{name}'", fix)
        return base.rows[name]

    def key_of(self, name: str) -> str:
        """The key that an error about a row names: its settings if it has a model, else the row itself."""
        entry = self.rows.get(name, RowEntry(f"rows.{name}"))
        return f"{entry.place}.settings" if isinstance(entry.built, BuiltRow) else entry.place


def _changed(recipe: Recipe, key: str, changes: Mapping[str, Any], epochs: int = 1) -> Recipe:
    """A recipe with other numbers; `epochs` is the least number of epochs allowed."""
    if "optimizer" in changes:
        fix = f'write optimizers = ["{changes["optimizer"]}"] above the tables'
        raise _wrong(f"{key}.optimizer", "the optimizer is not a number of the recipe", fix)
    with located(key):
        return recipe.changed(changes, epochs)


def _build(base: Task, row: Any, examples: Examples) -> tn.Graph:
    """The classifier of a row that is trained from scratch."""
    return (base.build if row in base.rows.values() else built)(row, examples)


# ---------------------------------------------------------------------------- reading


def read_study(path: str | Path) -> StudyFile:
    """The study that a TOML file describes.

    Raises:
        TensornetError: the file does not exist, it is not TOML, or a key or its value is invalid. The error
            names the file, the key and the fix.
    """
    path, name = Path(path), str(path)
    try:
        document = toml(path)
    except OSError as error:
        raise TensornetError(
            f"cannot read {name}: {error.strerror or error}", fix="give a TOML file"
        ) from None
    except RecursionError:
        raise _wrong(name, DEEP, "write them flat") from None
    except ValueError as error:  # not UTF-8, or not TOML: the error says where
        fix = (
            "write key = value, and a table [rows.name] for each row; `tensornet study --help` has an example"
        )
        raise TensornetError(f"{name} is no TOML: {error}", fix=fix) from None
    if not document:
        raise TensornetError(f"{name} says nothing", fix=f"give one or more of {', '.join(KEYS)}")
    with located(name):
        _check_levels(document)
        return _study(path, document)


LEVELS = 100
"""The deepest nesting of lists and tables that is allowed: ten times what a study needs, a tenth of what Python can."""

DEEP = f"lists or tables lie more than {LEVELS} deep in one another"


def _check_levels(document: Mapping[str, Any]) -> None:
    """Raises an error if lists or tables are nested deeper than `LEVELS`; recursion over them could overflow."""
    for key, value in document.items():
        inside: list[Any] = [[value]]
        for _ in range(LEVELS):
            nested = (each.values() if isinstance(each, dict) else each for each in inside)
            inside = [each for values in nested for each in values if isinstance(each, dict | list)]
        if inside:
            raise _wrong(key, DEEP, "write them flat")


def _study(path: Path, document: Mapping[str, Any]) -> StudyFile:
    """The study of a parsed file."""
    _check_keys("", document, KEYS)
    told = {key: document[key] for key in (*list(KEYS)[:4], "recipe") if key in document}
    if "data" in told and (path.parent / told["data"]).exists():
        told["data"] = str(path.parent / told["data"])
    if "seeds" in document:
        with located("seeds"):
            told["seeds"] = checked_seeds(document["seeds"])
    rows: dict[str, RowEntry] = {}
    for row, entry in _entries(document):
        if row in rows:
            raise _wrong(entry.place, f"there are two rows '{row}'", "give one of them another name")
        rows[row] = entry
    names = document.get("optimizers", [])
    for each in names:
        if not isinstance(each, str) or each not in OPTIMIZERS:
            fix = f"{near(str(each), OPTIMIZERS)}choose of {', '.join(OPTIMIZERS)}"
            raise _wrong("optimizers", f"there is no optimizer '{each}'", fix)
    return StudyFile(str(path), **told, optimizers=tuple(dict.fromkeys(names)), rows=rows)


def _entries(document: Mapping[str, Any]) -> Iterator[tuple[str, RowEntry]]:
    """The rows by name; a row with budgets gives one for each of them."""
    rows = document.get("rows", {})
    if isinstance(rows, list):
        yield from ((str(name), RowEntry("rows")) for name in rows)
        return
    for name, row in rows.items():
        place = f"rows.{name}"
        if not re.fullmatch(r"[\w+-][\w.+-]*", name):
            raise _wrong(place, "a name goes into names of files", "use letters, digits, and - + _ .")
        if not isinstance(row, dict):
            raise _wrong(place, f"it is {row!r}", f"write a table: [{place}]")
        read, known = (_compressed, COMPRESSED) if "from" in row else (_built, BUILT)
        _check_keys(place, row, known)
        key, make = read(place, row)
        budgets = row.get("budgets", document.get("budgets", []))
        if key and not budgets:
            fix = f"give a list, e.g. budgets = [0.1, 0.3], in the file or in [{place}]"
            raise _wrong(f"{place}.{key}", "there are no budgets", fix)
        if not key and "budgets" in row:
            fix = f'write "{BUDGET}" in the place of the setting that takes them'
            raise _wrong(f"{place}.budgets", "no setting takes them", fix)
        entry = RowEntry(place, None, row.get("recipe", {}), row.get("label", ""), row.get("control", False))
        for budget in map(frozen, budgets) if key else ():
            told = "x".join(map(str, budget)) if isinstance(budget, tuple) else str(budget)
            label = f"{entry.label or name} {told.replace('x', '×')}"
            yield f"{name}-{told}", replace(entry, built=make(budget, told), label=label)
        if not key:
            yield name, replace(entry, built=make(None, ""))


Make = Callable[[Any, str], BuiltRow | CompressedRow | None]
"""A row with a budget, and the text of the budget in names."""


def _built(place: str, row: Mapping[str, Any]) -> tuple[str, Make]:
    """The key of a row that takes its budgets, and the row of a model for each."""
    model, settings = row.get("model"), frozen(row.get("settings", {}))
    if model is None and (settings or "about" in row or "budgets" in row):
        raise _wrong(place, "it has settings, and no model", 'add model = "…", one of `tensornet count`')
    if model is not None and model not in tn.models.names():
        fix = f"{near(model, tn.models.names())}`tensornet count` lists the models and their settings"
        raise _wrong(f"{place}.model", f"there is no model '{model}'", fix)
    known = tn.models.settings(model) if model else {}
    for key in settings.keys() - known.keys():
        fix = f"{near(key, known)}its settings: {', '.join(known)}"
        raise _wrong(f"{place}.settings.{key}", f"'{model}' has no such setting", fix)
    where = [key for key, value in settings.items() if value == BUDGET]

    def make(budget: Any, told: str) -> BuiltRow | None:
        at = f", {', '.join(where)} {told.replace('x', '×')}" if where else ""
        own = {**settings, **dict.fromkeys(where, budget)}
        return BuiltRow(row.get("about", f"`{model}`") + at, model, own) if model else None

    return f"settings.{where[0]}" if where else "", make


def _compressed(place: str, row: Mapping[str, Any]) -> tuple[str, Make]:
    """The key of a row that takes its budgets, and the row compressed from another for each."""
    kinds = [kind for kind in BUDGETS if kind in row]
    if len(kinds) != 1:
        found = f"there are {len(kinds)} budgets" if kinds else "there is no budget"
        raise _wrong(place, found, f"give one of {', '.join(BUDGETS)}")
    if row.get("calibrate", 0) < 0:
        raise _wrong(f"{place}.calibrate", f"it is {row['calibrate']}", "give how many examples, or 0")
    (kind,), own = kinds, {key: row[key] for key in ("modes", "uniform") if key in row}
    own |= {key: flat(row[key]) for key in ("method", "include", "exclude") if key in row}

    def make(budget: Any, told: str) -> CompressedRow:
        amount = budget if told else row[kind]
        with located(f"{place}.{kind}"):
            Budget.of(**{kind: amount})
        made = CompressedRow(
            row.get("about", ""), row["from"], kind, amount, frozen(own), row.get("calibrate", 0)
        )
        return made if made.about else replace(made, about=_compression(made))

    return kind if row[kind] == BUDGET else "", make


def _compression(row: CompressedRow) -> str:
    """A description: `swin` at 20 % of its parameters, low_rank, weighed by 512 examples."""
    amount = f"{100 * row.amount:g} %" if isinstance(row.amount, float) else f"{row.amount:,}"
    what = f"an error of {amount}" if row.budget == "error" else f"{amount} of its {row.budget}"
    how = " or ".join(row.settings.get("method", ("low_rank",)))
    same = ", the same part of each weight" if row.settings.get("uniform") else ""
    weighed = f", weighed by {row.calibrate:,} examples" if row.calibrate else ""
    return f"`{row.origin}` at {what}, {how}{same}{weighed}"


# ---------------------------------------------------------------------------- errors


def _check_keys(place: str, table: Mapping[str, Any], known: Mapping[str, str]) -> None:
    """Raises an error unless each key is known and its value has an allowed type."""
    for key, value in table.items():
        full = f"{place}.{key}" if place else key
        if key not in known:
            fix = f"{near(key, known)}its keys: {', '.join(known)}"
            raise _wrong(full, "there is no such key", fix)
        whole = key not in ("seeds", "calibrate", "modes") or type(value) is not float
        if KINDS.get(type(value), "?") not in known[key] or not whole:
            raise _wrong(full, f"it is {value!r}", f"give {known[key]}")


@contextmanager
def located(key: str) -> Iterator[None]:
    """Puts the key, or the file, in front of an error."""
    try:
        yield
    except TensornetError as error:
        raise type(error)(f"{key}: {error.message}", error.place, error.fix) from None


def _wrong(key: str, message: str, fix: str) -> TensornetError:
    """An error that names the key and the fix."""
    return TensornetError(f"{key}: {message}", fix=fix)


TASKS: dict[str, Callable[[Data], Task]] = {"digits": digits, "text": text, "thesis": thesis}
"""The tasks, by name; the thesis is a separate study for each data set."""


@dataclass(frozen=True)
class Subject:
    """The subject of a study.

    Attributes:
        name: one of `TASKS`.
        data: where the examples come from, as the task takes it.
        written: the changes of the task by a file.
    """

    name: str
    data: Data = None
    written: StudyFile | None = None

    @classmethod
    def of(cls, task: str | Path, data: Data | Path = None) -> Subject:
        """The subject of a study, which is given by its name or by its file.

        Raises:
            TensornetError: the file does not describe a study.
        """
        data = data if data is None or callable(data) else str(data)
        if not str(task).endswith(".toml"):
            return cls(str(task), data)
        written = read_study(task)
        return cls(written.study, data or written.data, written)

    @property
    def task(self) -> Task:
        """The task.

        Raises:
            TensornetError: there is no task of this name, or the file requires something that the task lacks.
        """
        if self.name not in TASKS:
            message, fix = f"there is no study '{self.name}'", f"choose of {', '.join(TASKS)}"
            if self.written is not None:
                raise TensornetError(f"{self.written.path}: study: {message}", fix=fix)
            raise TensornetError(message, fix=f"{fix}, or give a file, as my.toml")
        base = TASKS[self.name](self.data)
        if self.written is None:
            return base
        with located(self.written.path):
            return self.written.of(base)

    def examples(self, seed: int) -> Examples:
        """The examples of a seed; those of the last call are cached."""
        return _examples(self.name, self.data, seed if TASKS[self.name](self.data).splits else 0)


@functools.lru_cache(maxsize=1)
def _examples(name: str, data: Data, seed: int) -> Examples:
    return TASKS[name](data).load(seed, data)


def forget_examples() -> None:
    """Clears the cache, so that examples are loaded again at the next call."""
    _examples.cache_clear()
