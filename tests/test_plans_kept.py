"""Plans as text, on disk, and while they are made."""

from __future__ import annotations

import functools
import json
import math
import os
import random
import stat
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import tensornet as tn
from tensornet import models
from tensornet.codec import Part, read_value, write
from tensornet.device.cost_model import default_profile
from tensornet.files import Store
from tensornet.graph.element_types import holding
from tensornet.language.expression import Call, Contraction, Literal, Ref, Size
from tensornet.ops.table import Element
from tensornet.planning import plan_cache
from tensornet.planning.plan_cache import Occasion
from tensornet.planning.plans import Plan
from tensornet.runtime import executable

from .conftest import fresh, sampled, within
from .damage import BYTES, DOCUMENTS
from .programs import SUMMED_ALONE
from .test_equation import expression_texts
from .test_models import SMALL

pytestmark = pytest.mark.filterwarnings(SUMMED_ALONE)

SEED = random.Random


def exactly(value: Any) -> Any:
    """What came back after JSON; a text of JSON in between, for tuples and kinds of numbers."""
    return json.loads(json.dumps(value))


def read_expression(expression: Any) -> Any:
    """An expression that went through JSON."""
    union = Ref | Literal | Size | Contraction | Call
    return read_value(union, Part(exactly(write(expression)), "it"))


# ---------------------------------------------------------------------------- plans as text


@pytest.mark.parametrize("name", sampled(sorted(SMALL), sorted(SMALL)[::4]))
def test_plans_of_the_models_read_back_equal(name: str) -> None:
    found = tn.plan(models.create(name, **SMALL[name]), backend="torch", compare=False)
    assert Plan.from_json(found.to_json()) == found


@given(expression_texts())
def test_any_expression_reads_back_equal(text: str) -> None:
    try:
        (line,) = tn.language.parser.parse_block(f"y = {text}")
    except tn.EquationError:
        return
    assert read_expression(line.right) == line.right


@pytest.mark.parametrize(
    "expression",
    [
        Contraction((Contraction((Ref("x", ("b",)), Ref("z", ())), ()), Literal(1)), ()),  # text: x[b] * z
        Call("add", (Call("add", (Literal(1), Literal(2.0))), Literal(-0.0))),
        Call("normalize", tuple(Ref(each, ("c",)) for each in "xgu"), ("c",), (("eps", (Literal(1e-6),)),)),
        Contraction((Ref("x", ("0.0", ("1.0", "1.1"))), Literal(float("inf")), Literal(2j)), ("0.0",)),
        Call("pad", (Ref("x", ("i",)),), (), (("i", (Literal(-1), Size("d"))), ("value", (Literal(float("-inf")),)))),
        Ref("E", (Ref("t", ("b", ("i",))), -1, "...")),
        Literal(10**40),
        Literal(True),
    ],
)  # fmt: skip
def test_what_text_would_lose_is_kept(expression: Any) -> None:
    again = read_expression(expression)
    assert again == expression
    assert repr(again) == repr(expression)


def small_plan() -> Plan:
    """A plan with a bit of everything: a gather, a pad, a composite, a constant, a start."""
    graph = tn.layer(
        "e[b,i,d] = E[t[b,i],d] * m[d]\nh[b,i,(k,d)] = pad(e[b,i,d], i=(1,1)) * W[k]\n"
        "y[b,o] = softmax[o](h[b,i,(k,d)] * V[i,k,d,o] + inf * index(o)) * sqrt(d) / (b + 1)",
        inputs="t", constants={"m": np.arange(3.0)}, init={"W": np.ones(2)}, k=2,
    )  # fmt: skip
    return tn.plan(graph, b=3)


def test_a_plan_is_told_by_format_and_version() -> None:
    document = json.loads(small_plan().to_json())
    assert (document["format"], document["version"]) == ("tensornet.plan", 16)
    assert document["steps"][0]["equation"]["text"] == str(small_plan().steps[0].equation)


def test_damage_of_every_kind_is_refused_or_harmless() -> None:
    """Of a plan, of a graph, and of a graph of blocks."""
    documents = (small_plan(), small_plan().graph, models.window_attention(4, 1, 2, grid=(4, 4), shift=1))
    for draw, whole in ((SEED(0), each) for each in documents):
        for way in (*BYTES.values(), *DOCUMENTS.values()):
            for _ in range(20):
                damaged = way(whole.to_json().encode(), draw)
                try:
                    found = type(whole).from_json(damaged.decode(errors="replace"))
                except (tn.EquationError, tn.ShapeError):
                    continue
                assert type(whole).from_json(found.to_json()) == found


@pytest.mark.usefixtures("registering")
def test_the_names_of_registered_functions_must_be_known() -> None:
    tn.register("halved", numpy=lambda a: a / 2)
    found = tn.plan(tn.layer("y[i] = halved(x[i])", inputs="x"))
    assert Plan.from_json(found.to_json()) == found
    told = r"calls 'quartered', which is no function here\nfix: tensornet.reg"
    with pytest.raises(tn.EquationError, match=told):
        Plan.from_json(found.to_json().replace("halved", "quartered"))


# ---------------------------------------------------------------------------- plans on disk

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="files have no owner or mode there")


def layer(**given: Any) -> tn.Graph:
    """A layer with a constant, an index and enough to plan."""
    text = "y[b,p,q] = E[t[b],i,j] * m[i] * U[p,i] * V[q,j]"
    made = {"constants": {"m": np.arange(3.0)}, "E0": 9, "i": 3, "j": 4, "p": 2, "q": 5, **given}
    return tn.layer(text, inputs="t", **made)


@pytest.fixture
def planned_anew(monkeypatch: pytest.MonkeyPatch) -> list[tn.Graph]:
    """The graphs that were planned, and not recalled."""
    found: list[tn.Graph] = []
    plan = executable.planned
    monkeypatch.setattr(
        executable, "planned", lambda graph, *of, **by: found.append(graph) or plan(graph, *of, **by)
    )
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where plans are kept, which is not there yet; whoever edits the source meanwhile does no harm."""
    monkeypatch.setenv("TENSORNET_CACHE", str(tmp_path / "kept"))
    monkeypatch.setattr(plan_cache, "_library", lambda: "this")
    return tmp_path / "kept"


def in_a_new_process(**given: Any) -> Plan:
    """The plan of a layer as a process that has made none yet gets it; what it computes is looked at."""
    executable._made.cache_clear()
    graph, t = layer(**given), np.array([1, 0, 2])
    function, held = tn.compile(graph, backend="numpy"), tn.init(graph, seed=0)
    m = graph.constants[0].value.array()
    expected = np.einsum("bij,i,pi,qj->bpq", held["E"][t], m, held["U"], held["V"])
    np.testing.assert_allclose(function(held, t), expected, rtol=1e-4, atol=1e-4)
    return function.plan


@pytest.mark.parametrize(
    ("second", "planner", "plans"),
    [({}, "this", 1), ({"constants": {"m": np.array([5.0, -1.0, 0.5])}}, "this", 1), ({}, "another", 2)],
    ids=["again", "what a constant holds", "another planner"],
)
def test_a_plan_is_recalled_by_who_made_it_whatever_a_constant_holds(
    second: dict[str, Any], planner: str, plans: int,
    folder: Path, planned_anew: list[tn.Graph], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    first = in_a_new_process()
    (path,) = folder.iterdir()
    assert json.loads(path.read_text())["content"]["code"] == ""
    monkeypatch.setattr(plan_cache, "_library", lambda: planner)
    again = in_a_new_process(**second)
    assert again == first or second
    assert again.code == first.code
    assert len(planned_anew) == plans


@pytest.mark.parametrize("place", [None, "/proc/nowhere", "{}/file/folder", "{}/file", "x" * 5000])
def test_nothing_is_kept_by_default_nor_where_nothing_can_be_written(
    place: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planned_anew: list[tn.Graph]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path))
    monkeypatch.delenv("TENSORNET_CACHE", raising=False)
    if place:
        monkeypatch.setenv("TENSORNET_CACHE", place.format(tmp_path))
    for _ in range(2):
        in_a_new_process()
    assert len(planned_anew) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_another_process_recalls_the_same(folder: Path) -> None:
    """Hashes of texts differ from process to process; the plan does not."""
    code = (
        "import tensornet as tn\nfrom tensornet.runtime import executable\n"
        "graph = tn.layer('y[b,p,q] = x[b,i,j] * U[p,i] * V[q,j]', inputs='x', i=3, j=4, p=2, q=5)\n"
        "print(tn.compile(graph, backend='numpy').plan.code)\n"
    )
    recalling = code.replace("graph =", "executable.planned = None\ngraph =")
    assert fresh(code) == fresh(recalling) != ""
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"dtype": "float64"},
        {"memory_limit": 10**9},
        {"device": "cpu:0"},
        {"lengths": (("b", 5),)},
        {"backend": "torch"},
        {"profile": replace(default_profile("cpu"), launch=1.0)},
        {"graph": layer(q=6)},
        {"graph": holding(layer(), {"t": Element.SHORT})},
        {"graph": layer(constants={"m": np.arange(3)})},
        {"graph": layer().select("y").bind(b=3)},
    ],
)  # fmt: skip
def test_other_occasions_have_other_plans(other: dict[str, Any], folder: Path) -> None:
    usual = Occasion(layer(), "numpy", "cpu", "float32", None, (("b", 6),), default_profile("cpu"))
    plan = tn.plan(layer(), compare=False)
    assert usual.recall() is None
    assert usual.keep(plan) is not None
    assert usual.recall() == replace(plan, code="")
    assert replace(usual, **other).recall() is None


@pytest.mark.usefixtures("registering")
def test_a_function_of_the_users_own_counts_as_it_is_registered(folder: Path) -> None:
    for over_axis, text in ((False, "y[i] = cubed(x[i])"), (True, "y[i] = cubed[i](x[i])")):
        tn.register("cubed", numpy=lambda a, axis=0: a**3, over_axis=over_axis)
        graph = tn.layer(text, inputs="x")
        Occasion(graph, "numpy", "cpu", "float32", None, (), default_profile("cpu")).keep(tn.plan(graph))
    assert len(list(folder.iterdir())) == 2


def test_source_that_was_changed_since_it_was_loaded_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORNET_CACHE", str(tmp_path))
    try:
        for loaded, count in ((0.0, 0), (math.inf, 1)):
            plan_cache._library.cache_clear()
            monkeypatch.setattr(plan_cache, "_LOADED", loaded)
            in_a_new_process()
            assert len(list(tmp_path.iterdir())) == count
    finally:
        plan_cache._library.cache_clear()


def test_of_a_damaged_entry_nothing_is_believed_and_it_is_written_anew(
    folder: Path, planned_anew: list[tn.Graph]
) -> None:
    first = in_a_new_process()
    (path,) = folder.iterdir()
    whole, draw = path.read_bytes(), SEED(0)
    found = [way(whole, draw) for way in BYTES.values() for _ in range(4)]
    step = len(whole) // 20
    for at in range(0, len(whole), step):
        flipped = whole[at] ^ (1 << draw.randrange(7))
        found += [whole[:at], whole[:at] + bytes([flipped]) + whole[at + 1 :]]
    for way in DOCUMENTS.values():
        found += [way(whole, draw) for _ in range(8)]
    for number, damaged in enumerate(found):
        path.write_bytes(damaged)
        planned_anew.clear()
        second = in_a_new_process()
        assert second == first
        assert planned_anew or json.loads(damaged) == json.loads(whole), number
        assert json.loads(path.read_bytes()) == json.loads(whole)


def test_an_entry_of_another_key_is_not_believed(folder: Path, planned_anew: list[tn.Graph]) -> None:
    in_a_new_process()
    (first,) = folder.iterdir()
    in_a_new_process(q=6)
    (second,) = set(folder.iterdir()) - {first}
    first.write_bytes(second.read_bytes())
    in_a_new_process()
    assert len(planned_anew) == 3


def test_code_in_a_file_is_not_run(folder: Path, planned_anew: list[tn.Graph]) -> None:
    """Even if the seal is as it should be."""
    in_a_new_process()
    (path,) = folder.iterdir()
    document = json.loads(path.read_text())
    Store(folder, "plan").write(document["key"], {**document["content"], "code": "raise SystemExit('run')\n"})
    assert path in folder.iterdir()
    in_a_new_process()
    assert len(planned_anew) == 1


@POSIX
def test_only_files_of_the_users_own_are_believed(
    folder: Path, planned_anew: list[tn.Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_a_new_process()
    (path,) = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o620)  # a group may write it
    in_a_new_process()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
        in_a_new_process()
    path.unlink()
    os.mkfifo(path)  # nothing to wait for
    with within(20):
        in_a_new_process()
    assert len(planned_anew) == 4
    in_a_new_process()
    assert len(planned_anew) == 4


def test_the_entries_used_longest_ago_go(tmp_path: Path) -> None:
    few = Store(tmp_path, "plan", 3)
    device = Store(tmp_path, "device").write("a", 0)
    now = time.time()
    for number, key in enumerate("abcd"):
        path = few.write(key, {"it": key})
        assert path is not None
        if path.exists():
            os.utime(path, (now - 100 + number,) * 2)
        if key == "c":
            assert few.read("a") == {"it": "a"}  # of use just now
    assert [few.read(key) for key in "abcd"] == [{"it": "a"}, None, {"it": "c"}, {"it": "d"}]
    left, new = tmp_path / "plan-0123.abandoned", tmp_path / "plan-0123.new"
    left.touch()
    new.touch()
    os.utime(left, (now - 10**5,) * 2)
    few.write("e", {})
    assert (left.exists(), new.exists(), device is not None and device.exists()) == (False, True, True)


def test_many_processes_write_and_read_at_once(tmp_path: Path) -> None:
    """Each finds nothing, or what one of them wrote whole; at the end all is there and nothing else."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom tensornet.files import Store\n"
        f"store = Store(Path({str(tmp_path)!r}), 'plan', 5)\n"
        "for n in range(150):\n"
        "    assert store.write('same', [int(sys.argv[1])] * 5000) is not None\n"
        "    assert store.write(f'own {sys.argv[1]} {n % 9}', n) is not None\n"
        "    found = store.read('same')\n"
        "    assert found is None or (len(found) == 5000 and len(set(found)) == 1), found[:5]\n"
    )
    with ThreadPoolExecutor() as together:
        assert [*together.map(functools.partial(fresh, code), "012")] == [""] * 3
    assert len(list(tmp_path.iterdir())) <= 5 + 3
    assert {path.suffix for path in tmp_path.iterdir()} == {".json"}
