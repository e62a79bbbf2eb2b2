"""What is built: the wheel and the sdist hold the library and nothing else, and the wheel runs on its own."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import tensornet as tn

from .conftest import ROOT
from .test_structure import module_of, sources

NEEDED = ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "backends", "models", "tensornet")
NAMED = rf"tensornet_einsum-{re.escape(tn.__version__)}"
README = (ROOT / "README.md").read_text(encoding="utf-8")


def built(kind: str, source: Path, folder: Path) -> Path:
    """The file that the build backend makes of a source tree, without the network."""
    code = f"from setuptools.build_meta import build_{kind} as build; build({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True, timeout=120)
    (found,) = folder.iterdir()
    return found


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree as it lies here, tests and all, so that building leaves nothing behind."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in (*NEEDED, "tests", "benchmarks", "CHANGELOG.md", "Makefile"):
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def sdist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist of the checkout, unpacked."""
    archive = built("sdist", checkout, tmp_path_factory.mktemp("sdist"))
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(archive) as file:
        file.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (found,) = folder.iterdir()
    assert re.fullmatch(NAMED, found.name)
    return found


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built of nothing but the sdist."""
    return built("wheel", sdist, tmp_path_factory.mktemp("wheel"))


def test_the_sdist_holds_the_library_and_no_tests(sdist: Path) -> None:
    found = {str(path.relative_to(sdist)) for path in sdist.rglob("*.py")}
    assert found == {str(path.relative_to(ROOT)) for path in sources()}
    assert {each.name for each in sdist.iterdir()} == {
        *NEEDED, "CHANGELOG.md", "PKG-INFO", "setup.cfg", "tensornet_einsum.egg-info"
    }  # fmt: skip


def test_the_wheel_holds_every_module(wheel: Path) -> None:
    modules = {f"{module_of(path).replace('.', '/')}" for path in sources()}
    with zipfile.ZipFile(wheel) as file:
        names = [name for name in file.namelist() if ".dist-info/" not in name]
    assert {name.removesuffix(".py").removesuffix("/__init__") for name in names} == {
        *modules, "tensornet/py.typed", "tensornet/language/grammar.md", "tensornet/study/report.md.jinja", "tensornet/study/report.html.jinja",
        "tensornet/study/thesis.toml",
    }  # fmt: skip


def test_the_metadata_say_who_and_what(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        (name,) = (each for each in file.namelist() if each.endswith(".dist-info/METADATA"))
        metadata = email.message_from_string(file.read(name).decode())
    assert metadata["Version"] == tn.__version__
    assert metadata["Author"] == "The tensornet authors"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_payload() == README


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("CITATION.cff", r"^version: (\S+)$"),
        ("CHANGELOG.md", r"^## (\S+)"),
        ("docs/versions.md", r"version = \{(\S+)\}"),
    ],
)
def test_all_that_name_the_version_agree(file: str, pattern: str) -> None:
    found = re.search(pattern, (ROOT / file).read_text(encoding="utf-8"), re.M)
    assert found[1] == tn.__version__


def test_the_wheel_runs_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    code = "import tensornet as tn; print(tn.__file__, tn.parameter_count(tn.models.tcl((4, 4), 2)))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(tmp_path / "site" / "tensornet" / "__init__.py"), "16"], done.stderr


def test_links_of_the_readme_hold_outside_the_repository() -> None:
    prose = re.sub(r"```.*?```|`[^`]*`", "", README, flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)]*)\)", prose):
        assert target.startswith("https://"), target


TEXTS = [*sources(), ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]


def test_nothing_is_asked_of_an_index_that_does_not_have_it() -> None:
    """The library is on no index: who installs it has the files."""
    asked = re.compile(r"pip install \S*tensornet")
    assert [str(path) for path in TEXTS if asked.search(path.read_text(encoding="utf-8"))] == []


def test_the_oldest_versions_are_those_declared() -> None:
    """What `make test-oldest` installs; of a release that was withdrawn the next one."""
    tomllib = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    declared = [*project["dependencies"], *extras["study"], *extras["dev"]]
    lines = (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
    oldest = dict(line.split("==") for line in lines if not line.startswith("#"))
    for each in declared:
        name, least = re.fullmatch(r"([\w-]+)>=([\d.]+)(?:;.*)?", each).groups()  # type: ignore[union-attr]
        assert f"{oldest[name.replace('_', '-')]}.".startswith(f"{least}."), each
    assert set(extras["torch"] + extras["jax"]) <= set(declared)
