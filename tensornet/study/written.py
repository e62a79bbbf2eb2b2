"""A study as one TOML file: which classifiers, of what budgets, over which seeds, by which recipe."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import tensornet as tn
from tensornet.compression.allocating import Budget, flat
from tensornet.errors import TensornetError, near
from tensornet.graph.fitting import sizes_from_shapes
from tensornet.sizes import evaluate

from .compressing import BUDGETS, CompressedRow
from .libraries import toml
from .recipe import OPTIMIZERS, Recipe
from .seeds import checked_seeds
from .task import Examples, Task

__all__ = ["BuiltRow", "RowEntry", "StudyFile", "read_study"]

BUDGET = "budget"
"""What stands in the settings of a row in the place of each of its budgets."""


@dataclass(frozen=True)
class BuiltRow:
    """A classifier by the name of its builder.

    Attributes:
        about: what it is, in a few words.
        model: one of `tensornet.models.names()`.
        settings: its own; `classes` and `vocabulary`, where it takes them, are those of the examples.
    """

    about: str
    model: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class RowEntry:
    """What the file says of one row.

    Attributes:
        place: its key, as "rows.dense".
        built: how it is made; nothing for the row of that name that the study has already.
        recipe: what it changes of the recipe.
        label: its name in pictures.
        control: whether it is what the others are compared with.
    """

    place: str
    built: BuiltRow | CompressedRow | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""
    control: bool = False


@dataclass(frozen=True)
class StudyFile:
    """A study as its file says it; what the file leaves out is that of the study it is based on.

    Attributes:
        path: the file.
        study: what it is based on: the examples, the recipe, the rows that are only named.
        data: where the examples come from.
        title: the heading of the report.
        reference: the row that the parameters of the others are compared with.
        seeds: each row is trained once for each.
        optimizers: each row is trained by each of them.
        recipe: what is changed of the recipe, for every row and optimizer.
        rows: name → what the file says of it; all rows of the study if there is none.
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
        """This study, as a change of the one it is based on.

        Raises:
            TensornetError: a row without a model is none of that study, or a number of the recipe makes no
                sense; it names the file, the key and the fix.
        """
        entries = self.rows or {name: RowEntry(f"rows.{name}") for name in base.rows}
        rows = {name: entry.built or self._known(base, name, entry) for name, entry in entries.items()}
        if self.reference and self.reference not in rows:
            fix = f"choose of {', '.join(rows)}"
            raise _error(self.path, "reference", f"there is no row '{self.reference}'", fix)
        reference = self.reference or base.reference
        recipe = self._changed(base.recipe, "recipe", self.recipe)
        recipes = {}
        for name, entry in entries.items():
            origin = self._origin(entries, entry)
            changes = {**({} if origin is None else origin.recipe), **entry.recipe}
            self._changed(recipe, f"{entry.place}.recipe", changes, 1 if origin is None else 0)
            recipes[name] = {**self.recipe, **changes}

        def changes_of(row: Any) -> Mapping[str, Any]:
            row = rows[row.origin] if isinstance(row, CompressedRow) else row
            return {} if isinstance(row, BuiltRow) else base.changes(row)

        labels = {name: entry.label for name, entry in entries.items() if entry.label}
        controls = frozenset(name for name, entry in entries.items() if entry.control)
        return replace(
            base,
            title=self.title or base.title,
            rows=rows,
            recipe=recipe,
            build=lambda row, examples: self._build(base, row, examples),
            changes=changes_of,
            overrides=recipes,
            reference=reference if reference in rows else "",
            optimizers=self.optimizers or base.optimizers,
            labels={**base.labels, **labels},
            controls=controls or base.controls & rows.keys(),
        )

    def _origin(self, entries: Mapping[str, RowEntry], entry: RowEntry) -> RowEntry | None:
        """The row that another is made of, if it is made of one."""
        if not isinstance(entry.built, CompressedRow):
            return None
        origin = entries.get(entry.built.origin)
        if origin is None or isinstance(origin.built, CompressedRow):
            trained = [name for name, each in entries.items() if not isinstance(each.built, CompressedRow)]
            message = f"there is no row '{entry.built.origin}' that is trained from scratch"
            fix = f"choose of {', '.join(trained)}, or add [rows.{entry.built.origin}]"
            raise _error(self.path, f"{entry.place}.from", message, fix)
        return origin

    def _changed(self, recipe: Recipe, key: str, changes: Mapping[str, Any], epochs: int = 1) -> Recipe:
        """A recipe with other numbers, of so many epochs at the least."""
        if "optimizer" in changes:
            fix = f'write optimizers = ["{changes["optimizer"]}"] above the tables'
            raise _error(self.path, f"{key}.optimizer", "the optimizer is not a number of the recipe", fix)
        with _told(self.path, key):
            return recipe.changed(changes, epochs)

    def _known(self, base: Task, name: str, entry: RowEntry) -> Any:
        """The row of that name that the study has."""
        if name not in base.rows:
            fix = f"{near(name, base.rows)}give it a model, or choose of {', '.join(base.rows)}"
            raise _error(self.path, entry.place, f"the study '{self.study}' has no row '{name}'", fix)
        return base.rows[name]

    def _build(self, base: Task, row: Any, examples: Examples) -> tn.Graph:
        """The classifier of a row that is trained from scratch: of these examples, a logit for each class."""
        if not isinstance(row, BuiltRow):
            return base.build(row, examples)
        place = next(entry.place for entry in self.rows.values() if entry.built == row)
        taken = tn.models.settings(row.model)
        known = {name: size for name, size in examples.sizes.items() if name in taken}
        with _told(self.path, f"{place}.settings"):
            graph = tn.models.create(row.model, **{**known, **row.settings})
            _check(graph, examples)
        return graph


def _check(graph: tn.Graph, examples: Examples) -> None:
    """Raises an error unless the graph takes these inputs, and gives a logit for each class."""
    shapes = [tuple(each.shape) for each in examples.train_inputs]
    if len(graph.inputs) != len(shapes) or len(graph.outputs) != 1:
        raise TensornetError(
            f"the model takes {len(graph.inputs)} inputs and gives {len(graph.outputs)} results,"
            f" and an example has {len(shapes)}, of one class",
            fix="choose a model that takes and gives as many",
        )
    sizes = {**graph.bound, **sizes_from_shapes(graph, graph.inputs, shapes)}
    dims = graph.dims[graph.outputs[0]]
    shape = tuple(prod(evaluate(axis.size, sizes) for axis in dim) for dim in dims)
    classes = int(max(examples.train_labels.max(), examples.test_labels.max())) + 1
    if len(shape) != 2 or shape[1] != classes:
        told = "×".join(map(str, shape))
        raise TensornetError(
            f"of {shapes[0][0]:,} examples the model makes {told} numbers",
            fix=f"let it give a logit for each of the {classes} classes of an example",
        )


# ---------------------------------------------------------------------------- reading


def read_study(path: str | Path) -> StudyFile:
    """The study that a TOML file says.

    Raises:
        TensornetError: there is no such file, it is no TOML, or a key or its value makes no sense; the error
            names the file, the key and the fix.
    """
    path, name = Path(path), str(path)
    try:
        document = toml().loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or error
        raise TensornetError(f"cannot read {name}: {reason}", fix="give a TOML file") from None
    except ValueError as error:  # no text in UTF-8, or no TOML: it says where
        raise TensornetError(
            f"{name} is no TOML: {error}", fix="see docs/studies.md for one that is"
        ) from None
    _check_keys(name, "", document, _KEYS)
    told = {key: document[key] for key in ("study", "title", "reference", "recipe") if key in document}
    if "data" in document:
        beside = path.parent / document["data"]
        told["data"] = str(beside if beside.is_dir() else document["data"])
    if "seeds" in document:
        with _told(name, "seeds"):
            told["seeds"] = checked_seeds(document["seeds"])
    rows: dict[str, RowEntry] = {}
    for row, entry in _entries(name, document):
        if row in rows:
            raise _error(name, entry.place, f"there are two rows '{row}'", "give one of them another name")
        rows[row] = entry
    return StudyFile(name, **told, optimizers=_optimizers(name, document), rows=rows)


_KEYS: dict[str, tuple[type, ...]] = {
    "study": (str,),
    "data": (str,),
    "title": (str,),
    "reference": (str,),
    "seeds": (int, list),
    "optimizers": (list,),
    "budgets": (list,),
    "recipe": (dict,),
    "rows": (dict, list),
}
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
"""The keys of a row that is made of another."""
_TOLD = {
    str: "a text",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "a table",
    bool: "true or false",
}


def _check_keys(
    path: str, place: str, table: Mapping[str, Any], known: Mapping[str, tuple[type, ...]]
) -> None:
    """Each key is known, and its value of a kind that it has."""
    for key, value in table.items():
        full = f"{place}.{key}" if place else key
        if key not in known:
            fix = f"{near(key, known)}its keys: {', '.join(known)}"
            raise _error(path, full, "there is no such key", fix)
        if type(value) not in known[key]:
            fix = f"give {' or '.join(dict.fromkeys(_TOLD[kind] for kind in known[key]))}"
            raise _error(path, full, f"it is {value!r}", fix)


def _optimizers(path: str, document: Mapping[str, Any]) -> tuple[str, ...]:
    names = document.get("optimizers", [])
    for each in names:
        if each not in OPTIMIZERS:
            fix = f"{near(str(each), OPTIMIZERS)}choose of {', '.join(OPTIMIZERS)}"
            raise _error(path, "optimizers", f"there is no optimizer '{each}'", fix)
    return tuple(dict.fromkeys(names))


def _entries(path: str, document: Mapping[str, Any]) -> Iterator[tuple[str, RowEntry]]:
    """The rows by name, one for each budget where a row has such."""
    rows = document.get("rows", {})
    if isinstance(rows, list):
        yield from ((str(name), RowEntry("rows")) for name in rows)
        return
    for name, row in rows.items():
        place = f"rows.{name}"
        if not re.fullmatch(r"[\w+-][\w.+-]*", name):
            raise _error(path, place, "a name goes into names of files", "use letters, digits, and - + _ .")
        if not isinstance(row, dict):
            raise _error(path, place, f"it is {row!r}", f"write a table: [{place}]")
        rows_of = _compressed if "from" in row else _built
        _check_keys(path, place, row, _COMPRESSED if "from" in row else _ROW)
        yield from rows_of(path, place, name, row, document.get("budgets", []))


def _built(
    path: str, place: str, name: str, row: Mapping[str, Any], budgets: Sequence[Any]
) -> Iterator[tuple[str, RowEntry]]:
    """A row of a model for each of its budgets; one where its settings name none."""
    model, settings = row.get("model"), _frozen(row.get("settings", {}))
    if model is None and (settings or "about" in row or "budgets" in row):
        raise _error(
            path, place, "it has settings, and no model", 'add model = "…", one of `tensornet count`'
        )
    if model is not None and model not in tn.models.names():
        fix = f"{near(model, tn.models.names())}`tensornet count` lists the models and their settings"
        raise _error(path, f"{place}.model", f"there is no model '{model}'", fix)
    known = tn.models.settings(model) if model else {}
    for key in settings:
        if key not in known:
            fix = f"{near(key, known)}its settings: {', '.join(known)}"
            raise _error(path, f"{place}.settings.{key}", f"'{model}' has no such setting", fix)
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
    """A row that is made of another, for each of its budgets; one where it has a number."""
    kinds = [kind for kind in BUDGETS if kind in row]
    if len(kinds) != 1:
        found = f"there are {len(kinds)} budgets" if kinds else "there is no budget"
        raise _error(path, place, found, f"give one of {', '.join(BUDGETS)}")
    (kind,) = kinds
    own = {key: tuple(flat(row[key])) for key in ("method", "include", "exclude") if key in row} | {
        key: _frozen(row[key]) for key in ("modes", "uniform", "calibrate") if key in row
    }
    if row.get("calibrate", 0) < 0:
        raise _error(path, f"{place}.calibrate", f"it is {row['calibrate']}", "give how many examples, or 0")
    for told, entry, budget in _of_budgets(
        path, place, name, row, budgets, kind if row[kind] == BUDGET else ""
    ):
        amount = budget if told else row[kind]
        with _told(path, f"{place}.{kind}"):
            Budget.of(**{kind: amount})
        built = CompressedRow(row.get("about", ""), row["from"], kind, amount, **own)
        built = built if built.about else replace(built, about=_compression(built))
        yield f"{name}-{told}" if told else name, replace(entry, built=built)


def _compression(row: CompressedRow) -> str:
    """`swin` at 20 % of its parameters, low_rank, weighed by 512 examples."""
    how = f"{100 * row.amount:g} %" if isinstance(row.amount, float) else f"{row.amount:,}"
    what = f"an error of {how}" if row.budget == "error" else f"{how} of its {row.budget}"
    parts = [f"`{row.origin}` at {what}", " or ".join(row.method)]
    parts += ["the same part of each weight"] if row.uniform else []
    parts += [f"weighed by {row.calibrate:,} examples"] if row.calibrate else []
    return ", ".join(parts)


def _of_budgets(
    path: str, place: str, name: str, row: Mapping[str, Any], budgets: Sequence[Any], key: str
) -> Iterator[tuple[str, RowEntry, Any]]:
    """What is the same for each of a row's budgets: how the budget is written in names, an entry, the budget.

    Args:
        path, place, name, row: the row.
        budgets: those of the file.
        key: where the row wants them, if it does.
    """
    entry = RowEntry(place, None, row.get("recipe", {}), row.get("label", ""), row.get("control", False))
    own = row.get("budgets", budgets)
    if key and not own:
        fix = f"give a list, e.g. budgets = [0.1, 0.3], in the file or in [{place}]"
        raise _error(path, f"{place}.{key}", "there are no budgets", fix)
    if not key:
        if "budgets" in row:
            fix = f'write "{BUDGET}" in the place of the setting that takes them'
            raise _error(path, f"{place}.budgets", "no setting takes them", fix)
        yield "", entry, None
        return
    for budget in map(_frozen, own):
        told = "x".join(map(str, budget)) if isinstance(budget, tuple) else str(budget)
        yield told, replace(entry, label=f"{entry.label or name} {told.replace('x', '×')}"), budget


def _frozen(value: Any) -> Any:
    """Lists as tuples, within and without."""
    if isinstance(value, dict):
        return {name: _frozen(each) for name, each in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


@contextmanager
def _told(path: str, key: str) -> Iterator[None]:
    """Puts the file and the key in front of an error."""
    try:
        yield
    except TensornetError as error:
        raise type(error)(f"{path}: {key}: {error.message}", error.place, error.fix) from None


def _error(path: str, key: str, message: str, fix: str) -> TensornetError:
    return TensornetError(f"{path}: {key}: {message}", fix=fix)
