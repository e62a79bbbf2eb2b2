"""Which tests run by day: `data/by_day.txt` has those that take long, with the share of their items that does.

    pytest -n 2 -m "not slow" --all-day --junitxml=times.xml tests
    python -m tests.by_day times.xml

writes the table anew, out of measured times. A test of one item that takes longer than `ALONE` is for the night, and of
one with many so few run by day that they take about `TOGETHER`, or that each value of each setting is tried.
"""

from __future__ import annotations

import itertools
import math
import sys
import xml.etree.ElementTree
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

TABLE = Path(__file__).parent / "data" / "by_day.txt"
ALONE, TOGETHER = 2.7, 0.6
"""Seconds, of a machine on which others ran as well: `make test` then takes less than four minutes on two cores."""

FEW = 8
"""A setting of so many values at most has each of them in an item by day."""

CHOOSES = ("tests/test_programs.py", "tests/test_errors.py", "tests/test_fuzz.py")
"""These files say themselves what is tried by day."""

SMOKE = {
    "tests/test_models.py::test_a_model_is_one_graph_to_torch_compile",
    "tests/test_recurrences.py::test_gradients_are_those_of_torch",
    "tests/test_torch.py::test_autograd_agrees_with_planned_gradients",
    "tests/test_readme.py::test_python_blocks_print_what_a_page_prints",
    "tests/test_structure.py::test_no_import_goes",
    "tests/test_training.py::test_kill_9_at_any_moment_ends_in_the_same_numbers",
}
"""One of each kind of long test runs by day: a compiler, gradients, the README, the house, processes."""


def shares() -> dict[str, int]:
    """Of each test in the table, every how many-th item runs by day; 0 where none does."""
    lines = (line.split() for line in TABLE.read_text().splitlines() if not line.startswith("#"))
    return {name: int(share.removeprefix("1/")) for share, name in lines}


def for_the_night(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """The items that do not run by day, by the table."""
    every, tests = shares(), defaultdict[str, list[pytest.Item]](list)
    for item in items:
        name = item.nodeid.partition("[")[0]
        if name in every and item.get_closest_marker("slow") is None:
            tests[name].append(item)
    for name, each in tests.items():
        kept = chosen([settings(item) for item in each], every[name])
        yield from (item for n, item in enumerate(each) if n not in kept)


def settings(item: pytest.Item) -> dict[str, int]:
    """Which value of each of its parameters an item has; of one parameter alone the values are cases, no settings."""
    found: dict[str, int] = item.callspec.indices if hasattr(item, "callspec") else {}
    return {name: n for name, n in found.items() if len(found) > 1 or name == "backend"}


def chosen(items: Sequence[Mapping[str, int]], every: int) -> set[int]:
    """Of the items of a test, by their settings, those that run by day: every n-th, and so many that each value of a
    setting with few of them is in one. What varies together, as in a list of cases, is no setting."""
    if not every:
        return set()
    varied = Counter(tuple(item[name] for item in items) for name in items[0])
    alone = (name for name in items[0] if varied[tuple(item[name] for item in items)] == 1)
    values = {name: {item[name] for item in items} for name in alone}
    waiting = {(name, n) for name, found in values.items() if len(found) <= FEW for n in found}
    kept = set[int]()
    while waiting:
        best = max(range(len(items)), key=lambda n: len(waiting & items[n].items()))
        kept.add(best)
        waiting -= items[best].items()
    evenly = (n for n in range(0, len(items), every) if n not in kept)
    return kept.union(itertools.islice(evenly, max(0, math.ceil(len(items) / every) - len(kept))))


def written(times: Mapping[str, Sequence[float]]) -> list[str]:
    """The table, of the seconds that the items of each test take."""
    found = []
    for name, each in sorted(times.items()):
        total, chosen = sum(each), name.startswith(CHOOSES) or name in SMOKE
        if len(each) == 1 and total > ALONE and not chosen:
            found.append(f"0 {name}")
        if len(each) > 1 and (every := min(len(each), math.ceil(total / TOGETHER))) > 1 and not chosen:
            found.append(f"1/{every} {name}")
    return found


def _times(report: str) -> dict[str, list[float]]:
    """The seconds of the items of each test, out of pytest's report of a run."""
    found = defaultdict[str, list[float]](list)
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is None:
            name = f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name'].partition('[')[0]}"
            found[name].append(float(case.attrib["time"]))
    return found


if __name__ == "__main__":
    header = "# Tests that take long, and the share of their items that runs by day: see tests/by_day.py."
    TABLE.write_text("\n".join([header, *written(_times(sys.argv[1]))]) + "\n")
