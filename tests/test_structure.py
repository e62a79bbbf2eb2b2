"""The shape of the repository: imports go down the floors, and load nothing before it is asked for."""

from __future__ import annotations

import ast
import functools
import graphlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import tensornet as tn

from .by_day import chosen
from .conftest import ROOT, fresh

pytestmark = pytest.mark.quick

FLOORS = (
    (
        *("errors", "sizes", "dtypes", "token_orders", "protocol", "threads", "syntax"),
        *("codec", "display", "files"),
    ),
    ("ops",),
    ("language",),
    ("graph", "frontend", "passes", "scan", "ir"),
    ("weights", "autodiff", "initialization", "drawing"),
    ("device", "contraction", "lowering", "planning"),
    ("sharding",),
    ("codegen",),
    ("runtime",),
    ("fitting",),
    ("compression", "sweeping"),
    ("api",),
    ("models", "backends"),
    ("cli", "study"),
)
"""The way of the data, upwards: imports go down, for types, within functions and by `importlib` too."""

FLOOR_OF = {part: floor for floor, parts in enumerate(FLOORS) for part in parts}
ENTRANCE = "tensornet"  # the package itself, and how it is started, may import any floor
LAZY = ("torch", "jax", "cupy", "tensorly", "sympy", "opt_einsum", "matplotlib", "scipy")


@dataclass(frozen=True)
class Import:
    """One imported module, as `tensornet.graph` or `numpy`, and where it is written."""

    file: Path
    line: int
    module: str
    names: tuple[str, ...]
    at_top: bool
    for_types: bool

    @property
    def top(self) -> str:
        return self.module.split(".")[0]

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.module}"


def sources() -> list[Path]:
    """Every Python file of the library, each once although links lead to some twice."""
    folders = [ROOT / "tensornet", ROOT / "backends", ROOT / "models"]
    found = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    linked = (ROOT / "tensornet" / "backends", ROOT / "tensornet" / "models")
    return [path for path in found if not any(link in path.parents for link in linked)]


def module_of(path: Path) -> str:
    """The name a file is imported by: `tensornet.graph`, `tensornet.backends.numpy`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "tensornet" else ("tensornet", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str | None:
    """What of the library a module belongs to: a file, or one of its folders; nothing if foreign."""
    names = module.split(".")
    if names[0] != "tensornet":
        return None
    return names[1] if len(names) > 1 else ENTRANCE


@functools.cache
def imports(path: Path) -> tuple[Import, ...]:
    """Every import statement in a file, those inside functions included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    module = module_of(path)
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    return tuple(_imports(tree, path, package, at_top=True, for_types=False))


def _last_name(function: ast.expr) -> str:
    """What a function is called, without what it belongs to."""
    return str(getattr(function, "attr", getattr(function, "id", "")))


def _imports(
    node: ast.AST, path: Path, package: list[str], at_top: bool, for_types: bool
) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        inner_types = for_types or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
        inner_top = at_top and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(path, child.lineno, alias.name, (), at_top, for_types)
        elif isinstance(child, ast.ImportFrom):
            base = package[: len(package) - child.level + 1] if child.level else []
            names = tuple(alias.name for alias in child.names)
            module = ".".join([*base, *([child.module] if child.module else [])])
            for each in _targets(module, names):
                yield Import(path, child.lineno, each, names, at_top, for_types)
        else:
            if isinstance(child, ast.Call) and _last_name(child.func).endswith("import_module"):
                yield from _by_name(child, path, package, at_top)
            yield from _imports(child, path, package, inner_top, inner_types)


def _by_name(call: ast.Call, path: Path, package: list[str], at_top: bool) -> Iterator[Import]:
    """What `importlib.import_module` is given: a name, or one put together, which is told by its beginning."""
    match call.args[0]:
        case ast.Constant(value=str(name)):
            found = name if not name.startswith(".") else ".".join([*package, name.lstrip(".")])
            yield Import(path, call.lineno, found, (), at_top, False)
        case ast.JoinedStr(values=[ast.Constant(value=str(start)), *_]) if start.startswith("tensornet"):
            yield Import(path, call.lineno, start.rstrip("."), (), at_top, False)


def _targets(module: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """What `from module import names` loads: submodules, where the names are such."""
    if module.split(".")[0] != "tensornet":
        return (module,)
    submodules = tuple(f"{module}.{name}" for name in names if f"{module}.{name}" in MODULES)
    return submodules if len(submodules) == len(names) else (module, *submodules)


FILES = sources()
MODULES = frozenset(module_of(path) for path in FILES)


# ---------------------------------------------------------------------------- floors


def test_every_file_stands_on_a_floor() -> None:
    parts = {part_of(module_of(path)) for path in FILES} - {ENTRANCE, "__main__"}
    assert parts <= FLOOR_OF.keys(), "give each a floor, here and in the design"


def goes_up(part: str | None, each: Import) -> bool:
    """Whether an import of a part, one for types included, is of a floor above."""
    target = part_of(each.module)
    if target is None:
        return False
    if target == ENTRANCE:
        return part not in FLOORS[-1]
    return FLOOR_OF[target] > FLOOR_OF[part]  # type: ignore[index]


ARRAYS = {"torch", "jax", "cupy", "scipy", "tensorly"}
WRONG: dict[str, Callable[[str | None, Import], bool]] = {
    "up the floors": lambda part, each: part not in (ENTRANCE, "__main__") and goes_up(part, each),
    "between models and backends": lambda part, each: {part, part_of(each.module)} == {"models", "backends"},
    "of an array library in a model": lambda part, each: (
        part == "models" and each.top in {*ARRAYS, "numpy", "array_api_compat"}
    ),
    # the one for its optimizers, the other for its reading of lists
    "of opt_einsum but in the search and einsum": lambda part, each: (
        each.top == "opt_einsum" and each.file.name not in ("eager.py", "order_search.py")
    ),
    "of an array library at the top": lambda part, each: (
        each.at_top and not each.for_types and each.top in ARRAYS and part not in ("backends", "study", "cli")
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_no_import_goes(kind: str) -> None:
    parts = {path: part_of(module_of(path)) for path in FILES}
    assert not [str(each) for path in FILES for each in imports(path) if WRONG[kind](parts[path], each)]


def test_no_circle_among_imports() -> None:
    """Nor one that only waits inside a function, or is for types."""
    graph: dict[str, set[str]] = {}
    for path in FILES:
        module = module_of(path)
        if module == ENTRANCE or path.name == "__init__.py":  # loaded first by Python, whoever asks
            continue
        targets = {each.module for each in imports(path)}
        graph[module] = {each for each in targets if part_of(each) not in (None, ENTRANCE)} - {module}
    order = tuple(graphlib.TopologicalSorter(graph).static_order())
    assert order.index("tensornet.errors") < order.index("tensornet.graph.graph")


def test_imports_by_name_are_seen(tmp_path: Path) -> None:
    """In the core nothing is imported by a name put together elsewhere; what is left loads its own parts."""
    text = 'import importlib\ndef late():\n    return importlib.import_module("tensornet.runtime.eager")\n'
    found = [
        each.module
        for each in _imports(ast.parse(text), ROOT / "tensornet" / "errors.py", ["tensornet"], True, False)
    ]
    assert found == ["importlib", "tensornet.runtime.eager"]
    users = {str(path.relative_to(ROOT)) for path in FILES if "import_module(" in path.read_text("utf-8")}
    own = {
        "tensornet/__init__.py",
        "tensornet/api.py",
        "backends/__init__.py",
        "backends/jax/__init__.py",
        "backends/torch/__init__.py",
    }
    foreign = {"backends/array_api.py", "tensornet/errors.py"}
    assert users == own | foreign


def test_rooms_say_what_comes_in_and_what_goes_out() -> None:
    rooms = [path for path in (ROOT / "tensornet").iterdir() if (path / "__init__.py").exists()]
    for room in rooms:
        if not room.is_symlink() and room.name != "study":
            text = ast.get_docstring(ast.parse((room / "__init__.py").read_text("utf-8"))) or ""
            assert "In: " in text
            assert "Out: " in text


# ---------------------------------------------------------------------------- names


def test_no_file_hides_a_public_function() -> None:
    files = {module_of(path).split(".")[1] for path in FILES if module_of(path) != ENTRANCE}
    assert files & set(tn.__all__) == {"models"}  # which is the folder itself


def test_an_unknown_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'tensornet' has no attribute 'nothing'"):
        _ = tn.nothing


@pytest.mark.parametrize("name", ["backends", "models"])
def test_the_links_lead_to_the_folders_at_the_top(name: str) -> None:
    if not (ROOT / name / "__init__.py").exists():
        pytest.skip("an installed package has no links, only a checkout")
    link = ROOT / "tensornet" / name
    assert link.is_symlink()
    assert os.readlink(link) == f"../{name}"
    assert link.resolve() == ROOT / name


def test_every_file_opens_by_saying_what_it_is_for() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in FILES}
    silent = {path for path, text in texts.items() if not ast.get_docstring(ast.parse(text))}
    assert [str(path) for path in silent if path.name != "__init__.py" or texts[path]] == []


def test_no_folder_of_the_compiler_has_more_than_16_files() -> None:
    folders = Counter(path.parent.relative_to(ROOT) for path in FILES)
    large = {str(folder) for folder, files in folders.items() if files > 16}
    assert large <= {"models", "tensornet/study"}


def test_the_glossary_names_files_whose_docstrings_begin_with_its_words() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text("utf-8").partition("\n## In the code\n")[2]
    rows = [line.split("|")[1:4] for line in text.splitlines() if line.startswith("|")][2:]
    wrong = []
    for word, _, where in rows:
        name = where.strip().strip("`")
        path = ROOT / name if name.startswith("backends/") else ROOT / "tensornet" / name
        first = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").splitlines()[0]
        if word.strip().lower() not in first.lower():
            wrong.append(f"{name}: {word.strip()}")
    assert not wrong
    assert len(rows) > 40


# ---------------------------------------------------------------------------- what an import loads


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh process holds after running `code`: ours, and the top-level ones of others."""
    own = "name if name.startswith('tensornet.') else name.split('.')[0]"
    script = f"{code}\nimport json, sys\nprint(json.dumps(sorted({{{own} for name in sys.modules}})))"
    return set(json.loads(fresh(script).splitlines()[-1]))


def test_importing_the_library_loads_nothing_heavy() -> None:
    loaded = loaded_by("import tensornet")
    assert not loaded & {*LAZY, "numpy", "rich", "typer"}
    own = {each for each in loaded if each.startswith("tensornet.")}
    assert own == {"tensornet.api", "tensornet.errors", "tensornet.protocol", "tensornet.backends"}


HEAVY = {"torch", "jax", "cupy", "scipy", "tensorly", "matplotlib"}
LAYER = "import tensornet as tn\ntn.layer('y[b,o] = x[b,i] * W[o,i]', inputs='x', i=4, o=2)"


@pytest.mark.parametrize(
    ("code", "loads", "leaves_out"),
    [
        (
            "import tensornet as tn\nassert {*tn.__all__, 'language'} <= {*dir(tn)}",
            set(),
            {"tensornet.graph"},
        ),
        (LAYER, set(), {*HEAVY, "opt_einsum", "tensornet.language.reference"}),
        ("import tensornet.study", {"tensornet.study"}, {"torch", "sklearn", "matplotlib"}),
        (
            "import tensornet as tn, numpy as np\ntn.einsum('i j, j -> i', np.eye(2), np.ones(2))",
            {"opt_einsum"},
            {*HEAVY, "sympy"},
        ),
    ],
    ids=["a list of names", "a layer", "a study", "a product on numpy"],
)
def test_what_is_asked_for_is_loaded_and_nothing_else(
    code: str, loads: set[str], leaves_out: set[str]
) -> None:
    loaded = loaded_by(code)
    assert loads <= loaded
    assert not loaded & leaves_out


def test_what_is_listed_is_public() -> None:
    """What a prompt completes: no import, no room that nobody is shown."""
    from tensornet import backends, models

    assert len({*tn.__all__}) == len(tn.__all__)
    public = {tn: {*tn.__all__, "backends", "language"}, models: {*models.__all__}}
    for module, names in public.items():
        assert {name for name in dir(module) if not name.startswith("__")} == names
        assert all(hasattr(module, name) for name in dir(module))
    listed = {name for name in dir(backends) if not name.startswith("__")}
    assert listed <= {"numpy", "torch", "cupy", "jax"}
    assert all(hasattr(backends, name) for name in listed)


def test_by_day_each_value_of_a_setting_is_tried() -> None:
    items = [{"backend": n % 4, "size": n // 4 % 3, "case": n} for n in range(36)]
    kept = chosen(items, 6)
    assert {items[n]["backend"] for n in kept} == {0, 1, 2, 3}
    assert {items[n]["size"] for n in kept} == {0, 1, 2}
    assert len(kept) == 6
    assert chosen(items, 0) == set()
    assert chosen([{} for _ in range(7)], 3) == {0, 3, 6}
    assert chosen([{"text": n, "expected": n, "backend": n % 2} for n in range(6)], 3) == {0, 1}
