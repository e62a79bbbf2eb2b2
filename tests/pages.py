"""Runs the Python of a page and holds it to what the page prints: `python tests/pages.py docs/guides/start.md`."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path
from typing import Any


def run_blocks(text: str, file: str) -> tuple[dict[str, Any], int]:
    """What the Python blocks of a page leave behind, and how many ran; each prints what stands below it."""
    names: dict[str, Any] = {}
    ran = 0
    for code, _, expected in re.findall(r"```python\n(.*?)```\n(```text\n(.*?)```)?", text, re.S):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, file, "exec"), names)
        if expected:
            assert printed.getvalue() == expected, printed.getvalue()
        ran += 1
    return names, ran


if __name__ == "__main__":
    for name in sys.argv[1:]:
        _, count = run_blocks(Path(name).read_text(encoding="utf-8"), name)
        print(f"{name}: {count} blocks ran on Python {sys.version.split()[0]}")
