"""A study as one TOML file: its classifiers, budgets, seeds and recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tensornet as tn
from tensornet.errors import TensornetError, near

from .compressing import CompressedRow
from .libraries import toml
from .recipe import OPTIMIZERS, Recipe, checked_seeds
from .task import Examples, Task
from .written_rows import BuiltRow, RowEntry, check_keys, entries, located, wrong

__all__ = ["StudyFile", "read_study"]


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
            raise wrong(self.path, "reference", f"there is no row '{self.reference}'", fix)
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

        own = all(entry.built is None for entry in entries.values())
        labels = {name: entry.label for name, entry in entries.items() if entry.label}
        controls = frozenset(name for name, entry in entries.items() if entry.control)
        return replace(
            base,
            title=self.title or (base.title if own else f"{{data}}: the rows of {Path(self.path).name}"),
            rows=rows,
            recipe=recipe,
            build=lambda row, examples: self._build(base, row, examples),
            changes=changes_of,
            overrides=recipes,
            reference=reference if reference in rows else "",
            optimizers=self.optimizers or base.optimizers,
            labels={**base.labels, **labels},
            controls=controls or base.controls & rows.keys(),
            base=base,
        )

    def _origin(self, entries: Mapping[str, RowEntry], entry: RowEntry) -> RowEntry | None:
        """The row that a compressed row is made from; None for other rows."""
        if not isinstance(entry.built, CompressedRow):
            return None
        origin = entries.get(entry.built.origin)
        if origin is None or isinstance(origin.built, CompressedRow):
            trained = [name for name, each in entries.items() if not isinstance(each.built, CompressedRow)]
            message = f"there is no row '{entry.built.origin}' that is trained from scratch"
            fix = f"choose of {', '.join(trained)}, or add [rows.{entry.built.origin}]"
            raise wrong(self.path, f"{entry.place}.from", message, fix)
        return origin

    def _changed(self, recipe: Recipe, key: str, changes: Mapping[str, Any], epochs: int = 1) -> Recipe:
        """A recipe with other numbers; `epochs` is the least number of epochs allowed."""
        if "optimizer" in changes:
            fix = f'write optimizers = ["{changes["optimizer"]}"] above the tables'
            raise wrong(self.path, f"{key}.optimizer", "the optimizer is not a number of the recipe", fix)
        with located(self.path, key):
            return recipe.changed(changes, epochs)

    def _known(self, base: Task, name: str, entry: RowEntry) -> Any:
        """The row of this name in the base study."""
        if name not in base.rows:
            fix = f"{near(name, base.rows)}give it a model, or choose of {', '.join(base.rows)}"
            raise wrong(self.path, entry.place, f"the study '{self.study}' has no row '{name}'", fix)
        return base.rows[name]

    def _build(self, base: Task, row: Any, examples: Examples) -> tn.Graph:
        """The classifier of a row that is trained from scratch, with a logit for each class of these examples."""
        if not isinstance(row, BuiltRow):
            return base.build(row, examples)
        taken = tn.models.settings(row.model)
        known = {name: size for name, size in examples.sizes.items() if name in taken}
        return tn.models.create(row.model, **{**known, **row.settings})

    def key_of(self, name: str) -> str:
        """The key that an error about a row names: its settings if it has a model, else the row itself."""
        entry = self.rows.get(name, RowEntry(f"rows.{name}"))
        return f"{entry.place}.settings" if isinstance(entry.built, BuiltRow) else entry.place


# ---------------------------------------------------------------------------- reading


def read_study(path: str | Path) -> StudyFile:
    """The study that a TOML file describes.

    Raises:
        TensornetError: the file does not exist, it is not TOML, or a key or its value is invalid. The error
            names the file, the key and the fix.
    """
    path, name = Path(path), str(path)
    try:
        text = path.read_text(encoding="utf-8")
        document = toml().loads(text)
    except OSError as error:
        reason = error.strerror or error
        raise TensornetError(f"cannot read {name}: {reason}", fix="give a TOML file") from None
    except RecursionError:
        where, deep = (
            f"line {_deepest_line(text)}",
            f"lists or tables lie more than {LEVELS} deep in one another",
        )
        raise wrong(name, where, deep, "write them flat") from None
    except ValueError as error:  # not UTF-8, or not TOML: the error says where
        raise TensornetError(
            f"{name} is no TOML: {error}", fix="see docs/studies.md for one that is"
        ) from None
    if not document:
        raise TensornetError(f"{name} says nothing", fix=f"give one or more of {', '.join(_KEYS)}")
    _check_levels(name, document)
    check_keys(name, "", document, _KEYS)
    told = {key: document[key] for key in ("study", "title", "reference", "recipe") if key in document}
    if "data" in document:
        beside = path.parent / document["data"]
        told["data"] = str(beside if beside.exists() else document["data"])
    if "seeds" in document:
        with located(name, "seeds"):
            told["seeds"] = checked_seeds(document["seeds"])
    rows: dict[str, RowEntry] = {}
    for row, entry in entries(name, document):
        if row in rows:
            raise wrong(name, entry.place, f"there are two rows '{row}'", "give one of them another name")
        rows[row] = entry
    return StudyFile(name, **told, optimizers=_optimizers(name, document), rows=rows)


LEVELS = 16
"""The deepest nesting of lists and tables that is allowed; a study needs half of it."""


def _check_levels(path: str, document: Mapping[str, Any]) -> None:
    """Raises an error if lists or tables are nested deeper than `LEVELS`; a recursive check could overflow."""
    inside: list[tuple[str, int, Any]] = [(key, 1, value) for key, value in document.items()]
    while inside:
        place, level, value = inside.pop()
        if level > LEVELS:
            message = f"lists or tables lie more than {LEVELS} deep in one another"
            raise wrong(path, ".".join(place.split(".")[:4]), message, "write them flat")
        if isinstance(value, dict):
            inside += [(f"{place}.{key}", level + 1, each) for key, each in value.items()]
        elif isinstance(value, list):
            inside += [(place, level + 1, each) for each in value]


def _deepest_line(text: str) -> int:
    """The number of the first line with the most opening brackets, braces and dots together."""
    lines = text.splitlines()
    depths = [line.count("[") + line.count("{") + line.count(".") for line in lines]
    return depths.index(max(depths)) + 1


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


def _optimizers(path: str, document: Mapping[str, Any]) -> tuple[str, ...]:
    names = document.get("optimizers", [])
    for each in names:
        if not isinstance(each, str) or each not in OPTIMIZERS:
            fix = f"{near(str(each), OPTIMIZERS)}choose of {', '.join(OPTIMIZERS)}"
            raise wrong(path, "optimizers", f"there is no optimizer '{each}'", fix)
    return tuple(dict.fromkeys(names))
