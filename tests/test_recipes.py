"""The recipes of CONTRIBUTING: each diff applies to the tree, and what it shows then holds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RECIPE = re.compile(r"^### ([^\n]+)\n.*?```diff\n(.*?)```\n\n```python\n(.*?)```", re.S | re.M)
RECIPES = {
    title: (diff, shown) for title, diff, shown in RECIPE.findall((ROOT / "CONTRIBUTING.md").read_text())
}


def test_the_recipes_apply() -> None:
    assert len(RECIPES) == 6
    stale = {}
    for title, (diff, _) in RECIPES.items():
        checked = subprocess.run(
            ["git", "apply", "--check", "-"], input=diff, cwd=ROOT, text=True, capture_output=True
        )
        if checked.returncode:
            stale[title] = checked.stderr
    assert not stale


@pytest.mark.slow
@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_works(title: str, tmp_path: Path) -> None:
    diff, shown = RECIPES[title]
    for folder in ("tensornet", "backends", "models"):
        shutil.copytree(ROOT / folder, tmp_path / folder, True, shutil.ignore_patterns("__pycache__"))
    (tmp_path / "shown.txt").write_text(shown)
    applied = subprocess.run(["git", "apply", "-"], input=diff, cwd=tmp_path, text=True, capture_output=True)
    assert not applied.returncode, applied.stderr
    done = subprocess.run(
        [sys.executable, "-m", "doctest", "shown.txt"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, text=True, capture_output=True,
    )  # fmt: skip
    assert not done.returncode, done.stdout + done.stderr
