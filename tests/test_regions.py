"""Regions: calls run as written until a kernel is there, whatever becomes of the compiler."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tensornet.backends.torch import regions  # noqa: E402
from tensornet.backends.torch.regions import Region  # noqa: E402
from tensornet.backends.torch.signed_attention import _differentiated, _weighed  # noqa: E402

pytestmark = pytest.mark.skipif(regions.LOADER is None, reason="this PyTorch loads no packages")

SHIFT = {"biased": True, "late": -1}


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TENSORNET_CACHE", str(tmp_path))
    monkeypatch.setenv(regions.SETTING, "1")
    return tmp_path / "regions"


class Compiler:
    """In the place of the compiling process: it ends with an error when it is told to."""

    started: list[Compiler]

    def __init__(self, *command: Any, **more: Any) -> None:
        self.ended = False
        self.started.append(self)

    def poll(self) -> int | None:
        return 1 if self.ended else None

    def communicate(self) -> tuple[None, bytes]:
        return None, b"a line\nno compiler for C++\n"

    def kill(self) -> None:
        self.ended = True


@pytest.fixture
def compilers(monkeypatch: pytest.MonkeyPatch) -> list[Compiler]:
    """The processes that were started."""
    Compiler.started = []
    monkeypatch.setattr(subprocess, "Popen", Compiler)
    monkeypatch.setattr(regions._Job, "running", None)
    return Compiler.started


def twice(x: Any) -> tuple[Any]:
    return (x.mul_(2),)


def results(region: Region, *shapes: tuple[int, ...]) -> list[Any]:
    return [region(torch.ones(shape))[0].unique().tolist() for shape in shapes]


def test_short_programs_start_no_compiler(compilers: list[Compiler]) -> None:
    region = Region(twice)
    assert results(region, *[(3, 5)] * 20) == [[2.0]] * 20
    assert compilers == []


def test_one_kernel_is_compiled_at_a_time_and_a_failure_changes_nothing(
    compilers: list[Compiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(regions, "WORTH", 0.0)
    monkeypatch.setattr(regions, "say", said.append)
    region = Region(twice)
    assert results(region, (3, 5), (9, 5), (3, 6), (1, 5)) == [[2.0]] * 4
    assert len(compilers) == 1
    assert said == []
    compilers[0].ended = True
    assert results(region, (3, 5), (3, 5), (3, 6)) == [[2.0]] * 3
    assert said == ["tensornet: twice runs as written, it could not be compiled: no compiler for C++"]
    assert len(compilers) == 2


def test_a_kernel_that_nobody_waits_for_any_more_leaves_room_for_the_next(
    compilers: list[Compiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regions, "WORTH", 0.0)
    region = Region(twice)
    results(region, (3, 5))
    compilers[0].ended = True
    assert results(region, (3, 6)) == [[2.0]]
    assert len(compilers) == 2


def test_without_processes_all_runs_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*command: Any, **more: Any) -> None:
        raise PermissionError("no processes here")

    monkeypatch.setattr(regions, "WORTH", 0.0)
    monkeypatch.setattr(subprocess, "Popen", refused)
    assert results(Region(twice), (3, 5), (3, 5)) == [[2.0]] * 2


def test_an_environment_variable_turns_compiling_off(
    compilers: list[Compiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regions, "WORTH", 0.0)
    monkeypatch.setenv(regions.SETTING, "0")
    assert results(Region(twice), (3, 5), (3, 5)) == [[2.0]] * 2
    assert compilers == []


def test_a_kernel_serves_contiguous_tensors_of_one_kind() -> None:
    region, x = Region(twice), torch.ones(4, 6)
    kinds = [region._kind((each,), {}) for each in (x, x[:3], x[:1], x.double(), x.mT, x[:0], x[:, :4])]
    assert kinds[0] is kinds[1] is not None
    assert None not in kinds[2:4]
    assert len({*map(id, kinds[:4])}) == 3
    assert kinds[4:] == [None] * 3
    assert region._kind((torch.nn.Parameter(x),), {}) is None


def test_a_file_that_another_user_may_have_written_is_not_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(regions, "LOADER", lambda path, *more: loaded.append(path))
    kind = Region(twice)._kind((torch.ones(3, 5),), {})
    assert kind is not None
    folder.mkdir()
    kind._path.touch(0o666)
    kind._path.chmod(0o666)
    kind._load()
    assert loaded == []


def scores(dtype: Any, tiles: int) -> list[Any]:
    draw = torch.Generator().manual_seed(tiles)
    shapes = (tiles, 2, 7, 7), (tiles, 2, 7, 7), (tiles, 2, 7, 1), (tiles, 2, 7, 1), (1, 2, 7, 7)
    working = torch.promote_types(dtype, torch.float32)
    dtypes = (dtype, dtype, *[working] * 3)
    drawn = [torch.randn(shape, generator=draw).to(kind) for shape, kind in zip(shapes, dtypes, strict=True)]
    return [*drawn, torch.rand(tiles, 1, 7, 7, generator=draw) < 0.7]


@pytest.mark.slow
@pytest.mark.parametrize(("written", "dtype"), [(_weighed, torch.float32), (_differentiated, torch.bfloat16)])
def test_a_kernel_computes_what_is_written_for_any_number_of_rows(
    written: Region, dtype: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(regions.SETTING, "wait")
    for tiles in (3, 5):
        x, *given = scores(dtype, tiles)
        given = given[3 * (written is _weighed) :]
        region = Region(written.function)  # which finds the kernel on disk from the second time on
        kind = region._kind((x, *given), SHIFT)
        assert kind is not None
        assert kind.kernel is not None
        found = region(x.clone(), *given, **SHIFT)
        for one, other in zip(found, written.function(x.clone(), *given, **SHIFT), strict=True):
            torch.testing.assert_close(one, other)
    assert len([*folder.glob("region-*.pt2")]) == 1
